/* python/native/take.c - arrays and tensors to C tensors: numpy's through __array_struct__, those
 * with DLPack's C exchange through that, and accrt's own. */
#include <string.h>

#include "python/native/exchange.h"
#include "python/native/native.h"

enum {
  KIND_COUNT = 16,
  DTYPE_COUNT = 8,
  SOURCE_ARRAY = 1,
  SOURCE_TENSOR,
  SOURCE_EXCHANGE,
  SOURCE_CUDA
};

/* Classes, by identity: a subclass may mean something else by the same memory. */
typedef struct known_class {
  PyObject* type;
  int source;
  bool asks_gradient;        /* its tensors may need to see what is done to them */
  PyObject* is_neg;          /* its method; or NULL */
  const exchange_api_t* api; /* SOURCE_EXCHANGE */
} known_class_t;

typedef struct known_dtype {
  PyObject* dtype; /* numpy's object */
  accrt_dtype_t id;
} known_dtype_t;

static known_class_t classes[KIND_COUNT];
static size_t class_count;
static known_dtype_t dtypes[DTYPE_COUNT];
static size_t dtype_count;
static PyObject* type_names; /* short name -> id */

/* ---- numpy ---- */

/* What __array_struct__ gives: PyArrayInterface of numpy's array interface, version 3. */
typedef struct array_struct {
  int two;
  int nd;
  char typekind;
  int itemsize;
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides; /* in bytes */
  void* data;
  PyObject* descr;
} array_struct_t;

enum { ARRAY_C_CONTIGUOUS = 0x1, ARRAY_NOTSWAPPED = 0x200, ARRAY_WRITEABLE = 0x400 };

static accrt_dtype_t sized(int itemsize, accrt_dtype_t one, accrt_dtype_t two, accrt_dtype_t four,
                           accrt_dtype_t eight) {
  return itemsize == 1   ? one
         : itemsize == 2 ? two
         : itemsize == 4 ? four
         : itemsize == 8 ? eight
                         : ACCRT_DTYPE_NONE;
}

static accrt_dtype_t numbers_type(const array_struct_t* array) {
  switch (array->typekind) {
  case 'b':
    return array->itemsize == 1 ? ACCRT_DTYPE_BOOL : ACCRT_DTYPE_NONE;
  case 'i':
    return sized(array->itemsize, ACCRT_DTYPE_I8, ACCRT_DTYPE_I16, ACCRT_DTYPE_I32,
                 ACCRT_DTYPE_I64);
  case 'u':
    return sized(array->itemsize, ACCRT_DTYPE_U8, ACCRT_DTYPE_U16, ACCRT_DTYPE_U32,
                 ACCRT_DTYPE_U64);
  case 'f':
    return sized(array->itemsize, ACCRT_DTYPE_NONE, ACCRT_DTYPE_F16, ACCRT_DTYPE_F32,
                 ACCRT_DTYPE_F64);
  default:
    return ACCRT_DTYPE_NONE;
  }
}

/* Types that numpy has from elsewhere (ml_dtypes) are known by their object. */
static accrt_dtype_t other_type(PyObject* value) {
  PyObject* dtype = PyObject_GetAttr(value, accrt_native_names.dtype);
  accrt_dtype_t found = ACCRT_DTYPE_NONE;
  for (size_t i = 0; dtype != NULL && i < dtype_count; ++i) {
    if (dtypes[i].dtype == dtype)
      found = dtypes[i].id;
  }
  Py_XDECREF(dtype);
  return found;
}

static bool copy_dimensions(const array_struct_t* array, native_view_t* view) {
  for (int i = 0; i < array->nd; ++i)
    view->shape[i] = array->shape[i];
  view->tensor.shape = view->shape;
  if ((array->flags & ARRAY_C_CONTIGUOUS) != 0)
    return true;
  for (int i = 0; i < array->nd; ++i) {
    if (array->strides[i] % array->itemsize != 0)
      return false;
    view->strides[i] = array->strides[i] / array->itemsize;
  }
  view->tensor.strides = view->strides;
  return true;
}

static bool take_struct(PyObject* value, const array_struct_t* array, native_view_t* view) {
  if (array->two != 2 || array->nd > ACCRT_MAX_RANK || (array->flags & ARRAY_NOTSWAPPED) == 0)
    return false;
  view->tensor.dtype = numbers_type(array);
  if (view->tensor.dtype == ACCRT_DTYPE_NONE)
    view->tensor.dtype = other_type(value);
  if (view->tensor.dtype == ACCRT_DTYPE_NONE || !copy_dimensions(array, view))
    return false;
  view->tensor.data = array->data;
  view->tensor.rank = (uint32_t)array->nd;
  view->read_only = (array->flags & ARRAY_WRITEABLE) == 0;
  view->is_array = true;
  Py_INCREF(value);
  view->owner = value;
  return true;
}

static bool take_array(PyObject* value, native_view_t* view) {
  PyObject* capsule = PyObject_GetAttr(value, accrt_native_names.array_struct);
  if (capsule == NULL)
    return false;
  const array_struct_t* array = PyCapsule_GetPointer(capsule, NULL);
  const bool taken = array != NULL && take_struct(value, array, view);
  Py_DECREF(capsule);
  return taken;
}

/* ---- DLPack's C exchange ---- */

static accrt_dtype_t exchanged_type(const exchange_tensor_t* tensor) {
  const int bytes = tensor->bits % 8 == 0 ? tensor->bits / 8 : 0;
  if (tensor->lanes != 1)
    return ACCRT_DTYPE_NONE;
  switch (tensor->code) {
  case EXCHANGE_INT:
    return sized(bytes, ACCRT_DTYPE_I8, ACCRT_DTYPE_I16, ACCRT_DTYPE_I32, ACCRT_DTYPE_I64);
  case EXCHANGE_UINT:
    return sized(bytes, ACCRT_DTYPE_U8, ACCRT_DTYPE_U16, ACCRT_DTYPE_U32, ACCRT_DTYPE_U64);
  case EXCHANGE_FLOAT:
    return sized(bytes, ACCRT_DTYPE_NONE, ACCRT_DTYPE_F16, ACCRT_DTYPE_F32, ACCRT_DTYPE_F64);
  case EXCHANGE_BFLOAT:
    return bytes == 2 ? ACCRT_DTYPE_BF16 : ACCRT_DTYPE_NONE;
  case EXCHANGE_BOOL:
    return bytes == 1 ? ACCRT_DTYPE_BOOL : ACCRT_DTYPE_NONE;
  case EXCHANGE_F8E4M3FN:
    return bytes == 1 ? ACCRT_DTYPE_F8E4M3FN : ACCRT_DTYPE_NONE;
  case EXCHANGE_F8E5M2:
    return bytes == 1 ? ACCRT_DTYPE_F8E5M2 : ACCRT_DTYPE_NONE;
  case EXCHANGE_F8E8M0:
    return bytes == 1 ? ACCRT_DTYPE_F8E8M0 : ACCRT_DTYPE_NONE;
  default:
    return ACCRT_DTYPE_NONE;
  }
}

/* All but where it lies. */
static bool take_managed(const exchange_managed_t* managed, native_view_t* view) {
  const exchange_tensor_t* tensor = &managed->tensor;
  if (managed->major != EXCHANGE_MAJOR || tensor->ndim < 0 || tensor->ndim > ACCRT_MAX_RANK)
    return false;
  view->tensor.dtype = exchanged_type(tensor);
  if (view->tensor.dtype == ACCRT_DTYPE_NONE)
    return false;
  const size_t count = (size_t)tensor->ndim;
  if (count > 0) {
    memcpy(view->shape, tensor->shape, count * sizeof *view->shape);
    view->tensor.shape = view->shape;
  }
  if (count > 0 && tensor->strides != NULL) {
    memcpy(view->strides, tensor->strides, count * sizeof *view->strides);
    view->tensor.strides = view->strides;
  }
  view->tensor.rank = (uint32_t)count;
  view->read_only = (managed->flags & EXCHANGE_READ_ONLY) != 0;
  return true;
}

/* What torch asks its own tensors, in C++: c10::TensorImpl::requires_grad() const, and
 * at::native::is_neg(const at::Tensor&), which is a pointer to such an object. `place` is where
 * Python's object of a tensor has that pointer; 0: it is not known. */
static struct {
  bool (*wants_gradient)(const void* tensor);
  bool (*is_negative)(void* const* reference);
  size_t place;
  const PyObject* type; /* torch's class */
} questions;

/* The pointer to a tensor in an object of torch's class or of a subclass; NULL: ask in Python. */
static void* const* reference_in(PyObject* value) {
  if (questions.place == 0)
    return NULL;
  void* const* reference = (void* const*)((const char*)value + questions.place);
  return *reference != NULL ? reference : NULL;
}

native_answer_t accrt_native_wants_gradient(PyObject* value) {
  void* const* reference = reference_in(value);
  if (reference != NULL)
    return questions.wants_gradient(*reference) ? ANSWER_YES : ANSWER_NO;
  PyObject* wanted = PyObject_GetAttr(value, accrt_native_names.requires_grad);
  Py_XDECREF(wanted);
  return wanted == Py_False ? ANSWER_NO : wanted == Py_True ? ANSWER_YES : ANSWER_UNKNOWN;
}

/* Reads samples, (object, address of its tensor, wants a gradient, is negative) each. */
static bool are_answered(PyObject* samples, size_t place) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(samples); ++i) {
    PyObject* object;
    unsigned long long tensor;
    int wants, negative;
    if (!PyArg_ParseTuple(PyTuple_GetItem(samples, i), "OKpp", &object, &tensor, &wants, &negative))
      return false;
    void* const* reference = (void* const*)((const char*)object + place);
    if ((uintptr_t)*reference != tensor)
      return false;
    /* The address is right: torch's functions may have it. */
    if (questions.wants_gradient(*reference) != (wants != 0) ||
        questions.is_negative(reference) != (negative != 0))
      return false;
  }
  return PyTuple_Size(samples) > 0;
}

/* learn_questions(type, size, wants_gradient, is_negative, samples): torch's class, the size of its
 * objects, the addresses of torch's functions, and samples that are asked. Whether all was as
 * expected: if not, tensors are asked in Python. */
PyObject* accrt_native_learn_questions(PyObject* module, PyObject* arguments) {
  (void)module;
  unsigned long long functions[2];
  Py_ssize_t size;
  PyObject *type, *samples;
  if (!PyArg_ParseTuple(arguments, "O!nKKO!", &PyType_Type, &type, &size, &functions[0],
                        &functions[1], &PyTuple_Type, &samples))
    return NULL;
  memcpy(&questions.wants_gradient, &functions[0], sizeof questions.wants_gradient);
  memcpy(&questions.is_negative, &functions[1], sizeof questions.is_negative);
  questions.place = 0;
  size_t found = 0;
  for (size_t at = sizeof(PyObject); found == 0 && at + sizeof(void*) <= (size_t)size;
       at += sizeof(void*)) {
    if (are_answered(samples, at))
      found = at;
  }
  if (PyErr_Occurred() != NULL)
    return NULL;
  questions.place = found;
  Py_INCREF(type); /* as known classes, for as long as the process */
  questions.type = type;
  return PyBool_FromLong(found != 0);
}

/* Whether the memory is all that there is to a tensor: no gradient of it is wanted, and its
 * numbers are not the negatives of what lies there. */
static bool is_plain(const known_class_t* known, PyObject* value) {
  void* const* reference = known->type == questions.type ? reference_in(value) : NULL;
  if (reference != NULL)
    return !questions.wants_gradient(*reference) && !questions.is_negative(reference);
  PyObject* wanted = PyObject_GetAttr(value, accrt_native_names.requires_grad);
  Py_XDECREF(wanted);
  if (wanted != Py_False)
    return false;
  if (known->is_neg == NULL)
    return false;
  PyObject* negative = PyObject_CallFunctionObjArgs(known->is_neg, value, NULL);
  Py_XDECREF(negative);
  return negative == Py_False;
}

static exchange_managed_t* ask(const known_class_t* known, PyObject* value) {
  exchange_managed_t* managed = NULL;
  if (known->asks_gradient && !is_plain(known, value))
    return NULL;
  return known->api->from_object(value, &managed) == 0 ? managed : NULL;
}

static bool place_managed(const exchange_managed_t* managed, PyObject* value, bool is_host,
                          PyObject* gpu, native_view_t* view) {
  const exchange_tensor_t* tensor = &managed->tensor;
  if (tensor->device_type != EXCHANGE_CPU)
    return gpu != NULL && accrt_native_place_exchanged(gpu, value, tensor, view);
  view->tensor.data = tensor->data != NULL ? (char*)tensor->data + tensor->byte_offset : NULL;
  return is_host;
}

static bool take_exchanged(const known_class_t* known, PyObject* value, bool is_host, PyObject* gpu,
                           native_view_t* view) {
  exchange_managed_t* managed = ask(known, value);
  if (managed == NULL)
    return false;
  const bool taken =
      take_managed(managed, view) && place_managed(managed, value, is_host, gpu, view);
  PyObject* owner = accrt_native_hold(managed);
  if (!taken || owner == NULL) {
    Py_XDECREF(owner);
    return false;
  }
  view->owner = owner;
  return true;
}

/* ---- accrt's own ---- */

Py_ssize_t accrt_native_numbers(PyObject* tuple, int64_t* out) {
  if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_Size(tuple) > ACCRT_MAX_RANK)
    return -1;
  const Py_ssize_t count = PyTuple_Size(tuple);
  for (Py_ssize_t i = 0; i < count; ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    if (out[i] == -1 && PyErr_Occurred() != NULL)
      return -1;
  }
  return count;
}

static bool read_dimensions(PyObject* value, native_view_t* view) {
  PyObject* shape = PyObject_GetAttr(value, accrt_native_names.shape);
  PyObject* strides = PyObject_GetAttr(value, accrt_native_names.strides);
  const Py_ssize_t rank = accrt_native_numbers(shape, view->shape);
  const bool fits = rank >= 0 && accrt_native_numbers(strides, view->strides) == rank;
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  if (!fits)
    return false;
  view->tensor.rank = (uint32_t)rank;
  view->tensor.shape = view->shape;
  view->tensor.strides = view->strides;
  return true;
}

/* The handle's address, which Python code reads from the pointer once. */
static accrt_buffer_t* buffer_of(PyObject* value) {
  PyObject* address = PyObject_GetAttr(value, accrt_native_names.handle);
  void* handle = address != NULL ? PyLong_AsVoidPtr(address) : NULL;
  Py_XDECREF(address);
  return handle;
}

static bool read_rest(PyObject* value, native_view_t* view) {
  PyObject* offset = PyObject_GetAttr(value, accrt_native_names.offset_bytes);
  PyObject* name = PyObject_GetAttr(value, accrt_native_names.tensor_dtype);
  PyObject* read_only = PyObject_GetAttr(value, accrt_native_names.read_only);
  PyObject* external = PyObject_GetAttr(value, accrt_native_names.external);
  PyObject* id = name != NULL ? PyDict_GetItemWithError(type_names, name) : NULL;
  if (offset != NULL)
    view->tensor.offset_bytes = PyLong_AsUnsignedLongLong(offset);
  if (id != NULL)
    view->tensor.dtype = (accrt_dtype_t)PyLong_AsLong(id);
  view->read_only = read_only != Py_False;
  view->is_external = external != Py_None;
  const bool fits = offset != NULL && id != NULL && read_only != NULL && PyErr_Occurred() == NULL;
  Py_XDECREF(offset);
  Py_XDECREF(name);
  Py_XDECREF(read_only);
  Py_XDECREF(external);
  return fits;
}

/* A result whose parts were not read. */
static bool take_result(PyObject* owned, native_view_t* view) {
  const native_result_t* result = accrt_native_as_result(owned);
  if (result == NULL || result->tensor.buffer == NULL)
    return false;
  view->tensor = result->tensor;
  Py_INCREF(owned);
  view->owner = owned;
  return true;
}

static bool take_tensor(PyObject* value, native_view_t* view) {
  PyObject* owned = PyObject_GetAttr(value, accrt_native_names.owned);
  const bool is_result = owned != NULL && take_result(owned, view);
  Py_XDECREF(owned);
  if (is_result)
    return true;
  PyErr_Clear();
  view->tensor.buffer = buffer_of(value);
  if (view->tensor.buffer == NULL || !read_dimensions(value, view) || !read_rest(value, view))
    return false;
  Py_INCREF(value);
  view->owner = value;
  return true;
}

/* ---- Any ---- */

static bool take_cuda_array(PyObject* value, PyObject* gpu, native_view_t* view) {
  native_cuda_array_t array;
  if (!accrt_native_read_cuda_array(value, &array) || !accrt_native_place_array(gpu, &array, view))
    return false;
  view->is_array = true;
  Py_INCREF(value);
  view->owner = value;
  return true;
}

static bool take_known(const known_class_t* known, PyObject* value, bool is_host, PyObject* gpu,
                       native_view_t* view) {
  if (known->source == SOURCE_ARRAY)
    return take_array(value, view);
  if (known->source == SOURCE_TENSOR)
    return take_tensor(value, view);
  if (known->source == SOURCE_CUDA)
    return gpu != NULL && take_cuda_array(value, gpu, view);
  return (is_host || gpu != NULL) && take_exchanged(known, value, is_host, gpu, view);
}

bool accrt_native_take(PyObject* value, bool is_host, PyObject* gpu, native_view_t* out_view) {
  const PyObject* type = (PyObject*)Py_TYPE(value);
  for (size_t i = 0; i < class_count; ++i) {
    if (classes[i].type != type)
      continue;
    memset(&out_view->tensor, 0, sizeof out_view->tensor);
    out_view->read_only = out_view->is_array = out_view->is_external = false;
    out_view->owner = NULL;
    const bool taken = take_known(&classes[i], value, is_host, gpu, out_view);
    if (!taken)
      PyErr_Clear();
    return taken;
  }
  return false;
}

bool accrt_native_cuda_array(PyObject* value, native_cuda_array_t* out) {
  const PyObject* type = (PyObject*)Py_TYPE(value);
  for (size_t i = 0; i < class_count; ++i) {
    if (classes[i].type == type)
      return classes[i].source == SOURCE_CUDA && accrt_native_read_cuda_array(value, out);
  }
  return false;
}

exchange_managed_t* accrt_native_exchanged(PyObject* value) {
  const PyObject* type = (PyObject*)Py_TYPE(value);
  exchange_managed_t* managed = NULL;
  for (size_t i = 0; i < class_count; ++i) {
    if (classes[i].type == type && classes[i].source == SOURCE_EXCHANGE)
      managed = ask(&classes[i], value);
  }
  PyErr_Clear();
  const bool is_host = managed != NULL && managed->major == EXCHANGE_MAJOR &&
                       managed->tensor.device_type == EXCHANGE_CPU;
  if (managed != NULL && !is_host)
    accrt_native_delete(managed);
  return is_host ? managed : NULL;
}

accrt_dtype_t accrt_native_borrow(PyObject* value, exchange_tensor_t* out_tensor) {
  for (size_t i = 0; i < class_count; ++i) {
    const known_class_t* known = &classes[i];
    if (known->source != SOURCE_EXCHANGE || !PyObject_TypeCheck(value, (PyTypeObject*)known->type))
      continue;
    if (known->api->borrow == NULL || known->api->borrow(value, out_tensor) != 0)
      break;
    return out_tensor->ndim >= 0 && out_tensor->ndim <= ACCRT_MAX_RANK ? exchanged_type(out_tensor)
                                                                       : ACCRT_DTYPE_NONE;
  }
  return ACCRT_DTYPE_NONE;
}

bool accrt_native_is_negative(PyObject* value) {
  for (size_t i = 0; i < class_count; ++i) {
    const known_class_t* known = &classes[i];
    if (known->source != SOURCE_EXCHANGE || !known->asks_gradient ||
        !PyObject_TypeCheck(value, (PyTypeObject*)known->type))
      continue;
    void* const* reference =
        (const PyObject*)Py_TYPE(value) == questions.type ? reference_in(value) : NULL;
    if (reference != NULL)
      return questions.is_negative(reference);
    PyObject* negative =
        known->is_neg != NULL ? PyObject_CallFunctionObjArgs(known->is_neg, value, NULL) : NULL;
    Py_XDECREF(negative);
    return negative != Py_False;
  }
  return false;
}

bool accrt_native_current_stream(PyObject* value, int32_t device_type, int32_t device_id,
                                 void** out_stream) {
  for (size_t i = 0; i < class_count; ++i) {
    const known_class_t* known = &classes[i];
    if (known->source == SOURCE_EXCHANGE && PyObject_TypeCheck(value, (PyTypeObject*)known->type))
      return known->api->current_stream != NULL &&
             known->api->current_stream(device_type, device_id, out_stream) == 0;
  }
  return false;
}

/* ---- Learning ---- */

/* Whether there is room for it. Classes stay known for good. */
static bool learn_class(PyObject* type, int source, const exchange_api_t* api, bool asks_gradient) {
  if (class_count == KIND_COUNT)
    return false;
  PyObject* is_neg = asks_gradient ? PyObject_GetAttr(type, accrt_native_names.is_neg) : NULL;
  PyErr_Clear();
  Py_INCREF(type);
  classes[class_count++] = (known_class_t){type, source, asks_gradient, is_neg, api};
  return true;
}

PyObject* accrt_native_learn_array(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* type;
  if (!PyArg_ParseTuple(arguments, "O!", &PyType_Type, &type))
    return NULL;
  return PyBool_FromLong(learn_class(type, SOURCE_ARRAY, NULL, false));
}

PyObject* accrt_native_learn_cuda_array(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* type;
  if (!PyArg_ParseTuple(arguments, "O!", &PyType_Type, &type))
    return NULL;
  return PyBool_FromLong(learn_class(type, SOURCE_CUDA, NULL, false));
}

PyObject* accrt_native_learn_dtype(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* dtype;
  unsigned id;
  if (!PyArg_ParseTuple(arguments, "OI", &dtype, &id))
    return NULL;
  if (dtype_count < DTYPE_COUNT) {
    Py_INCREF(dtype);
    dtypes[dtype_count++] = (known_dtype_t){dtype, (accrt_dtype_t)id};
  }
  Py_RETURN_NONE;
}

PyObject* accrt_native_learn_tensor(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* type;
  PyObject* names;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyType_Type, &type, &PyDict_Type, &names))
    return NULL;
  Py_INCREF(names);
  type_names = names;
  return PyBool_FromLong(learn_class(type, SOURCE_TENSOR, NULL, false));
}

PyObject* accrt_native_learn_exchange(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* type;
  PyObject* capsule;
  int asks_gradient;
  if (!PyArg_ParseTuple(arguments, "O!Op", &PyType_Type, &type, &capsule, &asks_gradient))
    return NULL;
  const exchange_header_t* header = PyCapsule_GetPointer(capsule, EXCHANGE_CAPSULE);
  if (header == NULL)
    return NULL;
  while (header != NULL && header->major != EXCHANGE_MAJOR)
    header = header->prev_api;
  const exchange_api_t* api = (const exchange_api_t*)header;
  if (api == NULL || api->from_object == NULL)
    Py_RETURN_FALSE;
  return PyBool_FromLong(learn_class(type, SOURCE_EXCHANGE, api, asks_gradient != 0));
}

/* ---- What is held ---- */

typedef struct held {
  PyObject ob_base;
  exchange_managed_t* managed;
} held_t;

static PyObject* held_type;

void accrt_native_delete(exchange_managed_t* managed) {
  if (managed == NULL || managed->deleter == NULL)
    return;
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  managed->deleter(managed);
  PyErr_Restore(kind, value, trace);
}

static void held_free(PyObject* self) {
  exchange_managed_t* managed = ((held_t*)self)->managed;
  PyTypeObject* type = Py_TYPE(self);
  freefunc free_object = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
  free_object(self);
  Py_DECREF(type);
  accrt_native_delete(managed);
}

PyObject* accrt_native_hold(exchange_managed_t* managed) {
  allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot((PyTypeObject*)held_type, Py_tp_alloc);
  held_t* held = (held_t*)allocate((PyTypeObject*)held_type, 0);
  if (held == NULL) {
    accrt_native_delete(managed);
    return NULL;
  }
  held->managed = managed;
  return (PyObject*)held;
}

bool accrt_native_add_held(PyObject* module) {
  static PyType_Slot slots[] = {{Py_tp_dealloc, NATIVE_SLOT(held_free)}, {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Held", sizeof(held_t), 0, Py_TPFLAGS_DEFAULT, slots};
  held_type = PyType_FromSpec(&spec);
  if (held_type == NULL)
    return false;
  Py_INCREF(held_type);
  return PyModule_AddObject(module, "Held", held_type) == 0;
}
