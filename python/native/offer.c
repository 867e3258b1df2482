/* python/native/offer.c - DLPack's C exchange as accrt.Tensor offers it, and capsules of what
 * others offer. A consumer of a tensor on a device has no stream to follow: work that
 * still fills the tensor is waited for here. */
#include <stdlib.h>
#include <string.h>

#include "python/native/exchange.h"
#include "python/native/native.h"

#define CAPSULE_NAME "dltensor_versioned"
enum { ALIGN_BYTES = 64 };

static PyObject* from_capsule; /* Python's: a capsule to a Tensor */

/* ---- A Tensor to a managed tensor ---- */

/* Waits for the work that fills the memory, if there is any: as Buffer._settle. */
static bool settle(PyObject* tensor) {
  PyObject* owned = PyObject_GetAttr(tensor, accrt_native_names.owned);
  if (owned != NULL) { /* of a run that is over */
    Py_DECREF(owned);
    return true;
  }
  PyErr_Clear();
  PyObject* buffer = PyObject_GetAttrString(tensor, "_buffer");
  PyObject* done = buffer != NULL ? PyObject_CallMethod(buffer, "_settle", NULL) : NULL;
  Py_XDECREF(buffer);
  Py_XDECREF(done);
  return done != NULL;
}

static int fail_with_record(void) {
  accrt_error_t record = ACCRT_ERROR_INIT;
  accrt_native_api.last_error(&record);
  PyErr_SetString(PyExc_BufferError, record.message);
  return -1;
}

static int from_object(void* object, exchange_managed_t** out);

/* Whether a stride is negative, which torch has not: it ends the process where it gets one. */
static bool runs_backwards(const accrt_tensor_t* tensor) {
  for (uint32_t i = 0; tensor->strides != NULL && i < tensor->rank; ++i) {
    if (tensor->strides[i] < 0 && tensor->shape[i] > 1)
      return true;
  }
  return false;
}

/* Of a copy whose elements are in order. */
static int from_copy(PyObject* object, exchange_managed_t** out) {
  PyObject* copy = PyObject_CallMethod(object, "_forwards", NULL);
  const int result = copy != NULL ? from_object(copy, out) : -1;
  Py_XDECREF(copy);
  return result;
}

/* f4e2m1 as torch has it, where that is possible: two elements of the last dimension are one of two
 * lanes. The same is in accrt/_nibbles.py. */
static void give_pairs(exchange_tensor_t* tensor) {
  const int32_t last = tensor->ndim - 1;
  if (tensor->code != EXCHANGE_F4E2M1 || last < 0 || tensor->shape[last] % 2 != 0 ||
      (tensor->strides[last] != 1 && tensor->shape[last] != 0))
    return;
  bool is_empty = tensor->shape[last] == 0, is_split = false;
  for (int32_t i = 0; i < last; ++i) {
    is_empty = is_empty || tensor->shape[i] == 0;
    is_split = is_split || (tensor->shape[i] > 1 && tensor->strides[i] % 2 != 0);
  }
  if (is_split && !is_empty)
    return;
  tensor->lanes = 2;
  tensor->shape[last] /= 2;
  for (int32_t i = 0; i < last; ++i)
    tensor->strides[i] /= 2;
}

static int from_object(void* object, exchange_managed_t** out) {
  native_view_t view;
  *out = NULL;
  if (!settle(object))
    return -1;
  if (!accrt_native_take(object, false, NULL, &view) || view.tensor.buffer == NULL) {
    PyErr_SetString(PyExc_TypeError, "this is no accrt.Tensor");
    return -1;
  }
  if (runs_backwards(&view.tensor)) {
    Py_DECREF(view.owner);
    return from_copy(object, out);
  }
  struct DLManagedTensorVersioned* managed;
  const accrt_status_t status =
      accrt_native_api.dlpack_export(&view.tensor, view.read_only, &managed);
  Py_DECREF(view.owner);
  if (status != ACCRT_OK)
    return fail_with_record();
  *out = (exchange_managed_t*)managed;
  give_pairs(&(*out)->tensor);
  return 0;
}

/* ---- Capsules ---- */

/* Of what was not taken. */
static void free_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, CAPSULE_NAME) != 0)
    accrt_native_delete(PyCapsule_GetPointer(capsule, CAPSULE_NAME));
}

static PyObject* new_capsule(exchange_managed_t* managed) {
  PyObject* capsule = PyCapsule_New(managed, CAPSULE_NAME, free_capsule);
  if (capsule == NULL)
    accrt_native_delete(managed);
  return capsule;
}

PyObject* accrt_native_capsule(PyObject* module, PyObject* value) {
  (void)module;
  exchange_managed_t* managed = accrt_native_exchanged(value);
  if (managed == NULL)
    Py_RETURN_NONE;
  return new_capsule(managed);
}

/* A managed tensor, which is given away, to a Tensor. */
static int to_object(exchange_managed_t* managed, void** out_object) {
  PyObject* capsule = new_capsule(managed);
  *out_object = capsule != NULL ? PyObject_CallFunctionObjArgs(from_capsule, capsule, NULL) : NULL;
  Py_XDECREF(capsule);
  return *out_object != NULL ? 0 : -1;
}

/* ---- New memory ---- */

/* Header, shape, strides and elements in one allocation. */
static void free_allocated(exchange_managed_t* self) {
  free(self->manager_context);
}

static bool count_bytes(const exchange_tensor_t* prototype, size_t* out_bytes) {
  const size_t bits = (size_t)prototype->bits * prototype->lanes;
  size_t elements = 1, total;
  for (int32_t i = 0; i < prototype->ndim; ++i) {
    if (prototype->shape[i] < 0 ||
        __builtin_mul_overflow(elements, (size_t)prototype->shape[i], &elements))
      return false;
  }
  if (__builtin_mul_overflow(elements, bits, &total) || total > SIZE_MAX / 2)
    return false;
  *out_bytes = (total + 7) / 8;
  return true;
}

static void describe(exchange_managed_t* managed, const exchange_tensor_t* prototype) {
  int64_t* shape = (int64_t*)(managed + 1);
  int64_t* strides = shape + prototype->ndim;
  int64_t stride = 1;
  for (int32_t i = prototype->ndim; i-- > 0;) {
    shape[i] = prototype->shape[i];
    strides[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  managed->tensor.shape = shape;
  managed->tensor.strides = strides;
}

static int allocate(exchange_tensor_t* prototype, exchange_managed_t** out, void* error_context,
                    exchange_set_error_fn* set_error) {
  *out = NULL;
  size_t bytes;
  if (prototype->device_type != EXCHANGE_CPU || prototype->ndim < 0 ||
      prototype->ndim > ACCRT_MAX_RANK || !count_bytes(prototype, &bytes)) {
    set_error(error_context, "BufferError", "accrt allocates on the host, at most 8 dimensions");
    return -1;
  }
  const size_t head =
      sizeof(exchange_managed_t) + 2 * (size_t)prototype->ndim * sizeof(int64_t) + ALIGN_BYTES;
  char* memory = malloc(head + bytes + ALIGN_BYTES);
  if (memory == NULL) {
    set_error(error_context, "MemoryError", "there is not enough memory for a tensor");
    return -1;
  }
  exchange_managed_t* managed = (exchange_managed_t*)memory;
  *managed = (exchange_managed_t){.major = EXCHANGE_MAJOR,
                                  .minor = EXCHANGE_MINOR,
                                  .manager_context = memory,
                                  .deleter = free_allocated,
                                  .tensor = *prototype};
  describe(managed, prototype);
  const uintptr_t begin = (uintptr_t)memory + head;
  managed->tensor.data = memory + head + (ALIGN_BYTES - begin % ALIGN_BYTES) % ALIGN_BYTES;
  managed->tensor.byte_offset = 0;
  *out = managed;
  return 0;
}

static int current_stream(int32_t device_type, int32_t device_id, void** out_stream) {
  (void)device_type;
  (void)device_id;
  *out_stream = NULL;
  return 0;
}

static exchange_api_t table = {
    {EXCHANGE_MAJOR, EXCHANGE_MINOR, NULL}, allocate, from_object, to_object, NULL, current_stream};

PyObject* accrt_native_offer(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* function;
  if (!PyArg_ParseTuple(arguments, "O", &function))
    return NULL;
  Py_INCREF(function);
  from_capsule = function;
  return PyCapsule_New(&table, EXCHANGE_CAPSULE, NULL);
}
