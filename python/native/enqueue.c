/* python/native/enqueue.c - a call on tensors of torch's on a GPU in one step: they are bound where
 * they lie, and the call is enqueued. python/accrt/torch/_cuda.py does the same in many. */
#include "python/native/exchange.h"
#include "python/native/native.h"

enum { EXCHANGE_CUDA = 2 };

typedef struct enqueuer {
  PyObject ob_base;
  accrt_call_t* call;
  PyObject* pointer;      /* which keeps the call */
  PyObject* kept;         /* which keeps the buffer */
  accrt_buffer_t* buffer; /* all memory from `base` on */
  uint64_t base;
  int32_t device_id;
} enqueuer_t;

/* Says where in the buffer a tensor lies. An empty one lies anywhere. */
static bool place(const enqueuer_t* self, const exchange_tensor_t* lent, accrt_tensor_t* tensor) {
  const uint64_t address = (uint64_t)(uintptr_t)lent->data + lent->byte_offset;
  bool is_empty = false;
  for (int32_t i = 0; i < lent->ndim; ++i)
    is_empty |= lent->shape[i] == 0;
  if (!is_empty && (lent->device_type != EXCHANGE_CUDA || lent->device_id != self->device_id ||
                    address < self->base))
    return false;
  tensor->buffer = self->buffer;
  tensor->offset_bytes = is_empty ? 0 : address - self->base;
  return true;
}

static bool set_tensor(const enqueuer_t* self, uint32_t index, PyObject* value) {
  exchange_tensor_t lent;
  accrt_tensor_t tensor = {0};
  tensor.dtype = accrt_native_borrow(value, &lent);
  if (tensor.dtype == ACCRT_DTYPE_NONE || !place(self, &lent, &tensor))
    return false;
  tensor.rank = (uint32_t)lent.ndim;
  tensor.shape = lent.shape;
  tensor.strides = lent.strides;
  return accrt_native_api.call_set_tensor(self->call, index, &tensor) == ACCRT_OK;
}

static bool set_argument(const enqueuer_t* self, uint32_t index, PyObject* value) {
  if (value == Py_None)
    return accrt_native_api.call_set_tensor(self->call, index, NULL) == ACCRT_OK;
  if (!PyLong_CheckExact(value))
    return set_tensor(self, index, value);
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred() != NULL)
    return false;
  return accrt_native_api.call_set_scalar(self->call, index, number) == ACCRT_OK;
}

/* enqueuer(*values): whether the call is enqueued. The interpreter's lock is held throughout: the
 * device is not waited for. */
static PyObject* enqueuer_call(PyObject* object, PyObject* values, PyObject* named) {
  const enqueuer_t* self = (const enqueuer_t*)object;
  (void)named;
  const Py_ssize_t count = PyTuple_Size(values);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (set_argument(self, (uint32_t)i, PyTuple_GetItem(values, i)))
      continue;
    PyErr_Clear();
    Py_RETURN_FALSE;
  }
  return PyBool_FromLong(accrt_native_api.call_submit(self->call, NULL, 0, NULL, 0) == ACCRT_OK);
}

/* Enqueuer(pointer, address, kept, buffer, base, device_id) */
static PyObject* enqueuer_new(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  PyObject *pointer, *address, *kept, *buffer;
  unsigned long long base;
  int device_id;
  (void)named;
  if (!PyArg_ParseTuple(arguments, "OO!OO!Ki", &pointer, &PyLong_Type, &address, &kept,
                        &PyLong_Type, &buffer, &base, &device_id))
    return NULL;
  void* const handles[2] = {PyLong_AsVoidPtr(address), PyLong_AsVoidPtr(buffer)};
  if (PyErr_Occurred() != NULL)
    return NULL;
  allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
  enqueuer_t* self = (enqueuer_t*)allocate(type, 0);
  if (self == NULL)
    return NULL;
  self->call = handles[0];
  self->buffer = handles[1];
  self->base = base;
  self->device_id = device_id;
  Py_INCREF(pointer);
  self->pointer = pointer;
  Py_INCREF(kept);
  self->kept = kept;
  return (PyObject*)self;
}

static void enqueuer_free(PyObject* object) {
  enqueuer_t* self = (enqueuer_t*)object;
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(self->pointer);
  Py_XDECREF(self->kept);
  freefunc free_object = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
  free_object(object);
  Py_DECREF(type);
}

bool accrt_native_add_enqueuer(PyObject* module) {
  static PyType_Slot slots[] = {{Py_tp_new, NATIVE_SLOT(enqueuer_new)},
                                {Py_tp_call, NATIVE_SLOT(enqueuer_call)},
                                {Py_tp_dealloc, NATIVE_SLOT(enqueuer_free)},
                                {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Enqueuer", sizeof(enqueuer_t), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  PyObject* type = PyType_FromSpec(&spec);
  return type != NULL && PyModule_AddObject(module, "Enqueuer", type) == 0;
}
