/* python/native/gpu.c - tensors of other libraries on a GPU as arguments of a call: places in one
 * buffer over the GPU's memory, in the order of the streams. python/accrt/_window.py has the rules,
 * and python/accrt/tensor.py does the same in many steps.
 */
#include <string.h>
#include <unistd.h>

#include "python/native/exchange.h"
#include "python/native/native.h"

enum { ATTRIBUTE_TYPE = 2, ATTRIBUTE_ORDINAL = 9, MEMORY_DEVICE = 2, NO_TIMING = 2 };

/* Functions of CUDA's driver, as cuda.h declares them; 0 is success. _window.py has their names, in
 * this order. */
typedef struct cuda_functions {
  int (*context_retain)(void** out_context, int ordinal);
  int (*context_release)(int ordinal);
  int (*context_push)(void* context);
  int (*context_pop)(void** out_context);
  int (*event_create)(void** out_event, unsigned flags);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*stream_wait)(void* stream, void* event, unsigned flags);
  int (*is_capturing)(void* stream, int* out_status);
  int (*pointer_attributes)(unsigned count, int* which, void** places, uint64_t address);
} cuda_functions_t;
enum { CUDA_FUNCTIONS = sizeof(cuda_functions_t) / sizeof(void*) };

static cuda_functions_t cuda;
static bool is_connected;

/* Of one session. */
typedef struct gpu {
  PyObject ob_base;
  PyObject* kept; /* what keeps the stream and the buffer */
  accrt_stream_t* stream;
  int32_t device_type; /* as DLPack numbers them */
  int32_t device_id;
  accrt_buffer_t* buffer; /* all memory from `base` on; NULL: there is none yet */
  uint64_t base;
  uint64_t wanted; /* where a tensor lay that is not in the buffer */
  void* context;   /* the GPU's, once it is needed */
  void* event;
  pid_t process;
  bool may_order_late; /* the stream is the session's own */
  bool is_order_due;   /* a tensor of the default stream was bound since the last submission */
} gpu_t;

static PyObject* gpu_type;

/* ---- Order ---- */

static bool same_stream(const void* a, const void* b) {
  return a == b || ((uintptr_t)a <= 1 && (uintptr_t)b <= 1); /* 1 is the default stream, too */
}

bool accrt_native_same_stream(const void* a, const void* b) {
  return same_stream(a, b);
}

static bool is_free(void* stream) {
  int status = 0;
  return cuda.is_capturing(stream, &status) == 0 && status == 0;
}

/* What `own` gets later comes after what `producer` has now. An event would draw a stream that is
 * captured into the graph of the other: Python code says what is done then. */
static bool wait_for(gpu_t* self, void* own, void* producer) {
  void* context;
  if (self->context == NULL && cuda.context_retain(&self->context, self->device_id) != 0) {
    self->context = NULL;
    return false;
  }
  if (cuda.context_push(self->context) != 0)
    return false;
  if (self->event == NULL && cuda.event_create(&self->event, NO_TIMING) != 0)
    self->event = NULL;
  const bool done = self->event != NULL && is_free(producer) && is_free(own) &&
                    cuda.event_record(self->event, producer) == 0 &&
                    cuda.stream_wait(own, self->event, 0) == 0;
  (void)cuda.context_pop(&context);
  return done;
}

/* Orders the session's stream behind one of another library; one stream needs no order. The legacy
 * default stream is there until the process ends, so a session with a stream of its own may wait
 * for it once, before the submission, in place of once for each argument. Another stream may be
 * gone by then. */
static bool order(gpu_t* self, void* producer) {
  void* own;
  if (self->may_order_late && same_stream(producer, NULL)) {
    self->is_order_due = true;
    return true;
  }
  if (accrt_native_api.stream_native(self->stream, &own) != ACCRT_OK)
    return false; /* it holds work back */
  return same_stream(own, producer) || wait_for(self, own, producer);
}

bool accrt_native_order(PyObject* gpu) {
  gpu_t* self = (gpu_t*)gpu;
  void* own;
  if (!self->is_order_due)
    return true;
  if (accrt_native_api.stream_native(self->stream, &own) != ACCRT_OK || !wait_for(self, own, NULL))
    return false;
  self->is_order_due = false;
  return true;
}

/* ---- Places ---- */

static bool is_empty(const native_view_t* view) {
  for (uint32_t i = 0; i < view->tensor.rank; ++i) {
    if (view->shape[i] == 0)
      return true;
  }
  return false;
}

/* Where element 0 lies. An empty tensor lies anywhere. */
static bool place(gpu_t* self, uint64_t address, native_view_t* view) {
  const bool empty = is_empty(view);
  if (self->buffer == NULL || (!empty && address < self->base)) {
    self->wanted = empty ? 0 : address;
    return false;
  }
  view->tensor.data = NULL;
  view->tensor.buffer = self->buffer;
  view->tensor.offset_bytes = empty ? 0 : address - self->base;
  return true;
}

bool accrt_native_place_exchanged(PyObject* gpu, PyObject* value, const exchange_tensor_t* tensor,
                                  native_view_t* view) {
  gpu_t* self = (gpu_t*)gpu;
  void* producer;
  return tensor->device_type == self->device_type && tensor->device_id == self->device_id &&
         place(self, (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset, view) &&
         accrt_native_current_stream(value, self->device_type, self->device_id, &producer) &&
         order(self, producer);
}

bool accrt_native_place_array(PyObject* gpu, const native_cuda_array_t* array,
                              native_view_t* view) {
  gpu_t* self = (gpu_t*)gpu;
  view->tensor.dtype = array->dtype;
  view->tensor.rank = array->rank;
  view->tensor.shape = view->shape;
  memcpy(view->shape, array->shape, sizeof view->shape);
  if (array->has_strides) {
    memcpy(view->strides, array->strides, sizeof view->strides);
    view->tensor.strides = view->strides;
  }
  view->read_only = array->read_only;
  return (is_empty(view) || array->device_id == self->device_id) &&
         place(self, array->address, view) && (!array->has_stream || order(self, array->stream));
}

/* ---- The CUDA array interface ---- */

static PyObject* type_strings; /* "<f4" -> id */

static PyObject* entry(PyObject* interface, PyObject* name) {
  return PyDict_GetItemWithError(interface, name); /* borrowed */
}

/* Shape and strides; those are in bytes there. */
static bool read_dimensions(PyObject* interface, native_cuda_array_t* out) {
  const native_names_t* names = &accrt_native_names;
  const Py_ssize_t rank = accrt_native_numbers(entry(interface, names->array_shape), out->shape);
  PyObject* strides = entry(interface, names->array_strides);
  if (rank < 0)
    return false;
  out->rank = (uint32_t)rank;
  out->has_strides = strides != NULL && strides != Py_None;
  if (!out->has_strides)
    return true;
  const int64_t size = (int64_t)accrt_native_api.dtype_bits(out->dtype) / 8;
  if (size == 0 || accrt_native_numbers(strides, out->strides) != rank)
    return false;
  for (Py_ssize_t i = 0; i < rank; ++i) {
    if (out->shape[i] < 0 || out->strides[i] % size != 0)
      return false;
    out->strides[i] /= size;
  }
  return true;
}

static bool read_stream(PyObject* interface, native_cuda_array_t* out) {
  PyObject* version = entry(interface, accrt_native_names.version);
  PyObject* stream = entry(interface, accrt_native_names.stream);
  const long number = version != NULL && PyLong_CheckExact(version) ? PyLong_AsLong(version) : 0;
  if (number != 2 && number != 3)
    return false;
  out->has_stream = number == 3 && stream != NULL && stream != Py_None;
  if (!out->has_stream)
    return true;
  out->stream = PyLong_CheckExact(stream) ? PyLong_AsVoidPtr(stream) : NULL;
  return out->stream != NULL; /* 0 may be either of CUDA's default streams */
}

static bool read_data(PyObject* interface, native_cuda_array_t* out) {
  PyObject* data = entry(interface, accrt_native_names.data);
  if (data == NULL || !PyTuple_Check(data) || PyTuple_Size(data) != 2)
    return false;
  PyObject* address = PyTuple_GetItem(data, 0);
  if (!PyLong_CheckExact(address))
    return false;
  out->address = PyLong_AsUnsignedLongLong(address);
  out->read_only = PyTuple_GetItem(data, 1) != Py_False;
  return PyErr_Occurred() == NULL;
}

/* The GPU that has the memory; -1: none, or it is of another kind. */
static int32_t gpu_of(uint64_t address) {
  int type = 0;
  int ordinal = -1;
  int which[2] = {ATTRIBUTE_TYPE, ATTRIBUTE_ORDINAL};
  void* places[2] = {&type, &ordinal};
  if (address == 0 || cuda.pointer_attributes(2, which, places, address) != 0)
    return -1;
  return type == MEMORY_DEVICE ? ordinal : -1;
}

static bool read_interface(PyObject* interface, native_cuda_array_t* out) {
  PyObject* mask = entry(interface, accrt_native_names.mask);
  PyObject* type = entry(interface, accrt_native_names.typestr);
  PyObject* id = type != NULL ? PyDict_GetItemWithError(type_strings, type) : NULL;
  if (id == NULL || (mask != NULL && mask != Py_None))
    return false;
  out->dtype = (accrt_dtype_t)PyLong_AsLong(id);
  if (!read_dimensions(interface, out) || !read_stream(interface, out) ||
      !read_data(interface, out))
    return false;
  out->device_id = gpu_of(out->address);
  return true;
}

bool accrt_native_read_cuda_array(PyObject* value, native_cuda_array_t* out) {
  if (!is_connected || type_strings == NULL)
    return false;
  PyObject* interface = PyObject_GetAttr(value, accrt_native_names.cuda_array);
  const bool done = interface != NULL && PyDict_Check(interface) && read_interface(interface, out);
  Py_XDECREF(interface);
  return done;
}

/* learn_type_strings(dict) */
PyObject* accrt_native_learn_type_strings(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* ids;
  if (!PyArg_ParseTuple(arguments, "O!", &PyDict_Type, &ids))
    return NULL;
  Py_INCREF(ids);
  Py_XDECREF(type_strings);
  type_strings = ids;
  Py_RETURN_NONE;
}

/* connect_cuda(addresses): the driver's functions, in the order of cuda_functions_t. */
PyObject* accrt_native_connect_cuda(PyObject* module, PyObject* addresses) {
  (void)module;
  void* found[CUDA_FUNCTIONS];
  if (!PyTuple_Check(addresses) || PyTuple_Size(addresses) != CUDA_FUNCTIONS) {
    PyErr_SetString(PyExc_TypeError, "connect_cuda takes the addresses of its functions");
    return NULL;
  }
  for (Py_ssize_t i = 0; i < CUDA_FUNCTIONS; ++i) {
    found[i] = PyLong_AsVoidPtr(PyTuple_GetItem(addresses, i));
    if (found[i] == NULL)
      return PyErr_Occurred() != NULL ? NULL : PyBool_FromLong(0);
  }
  memcpy(&cuda, found, sizeof cuda);
  is_connected = true;
  Py_RETURN_TRUE;
}

/* ---- The class ---- */

/* wanted(): the address of a tensor that was not in the buffer; 0: none. It is asked once. */
static PyObject* gpu_wanted(PyObject* object, PyObject* unused) {
  gpu_t* self = (gpu_t*)object;
  (void)unused;
  const uint64_t wanted = self->wanted;
  self->wanted = 0;
  return PyLong_FromUnsignedLongLong(wanted);
}

/* order(): has the session's stream wait for the default stream, if that is due. False: Python code
 * has to. */
static PyObject* gpu_order(PyObject* object, PyObject* unused) {
  (void)unused;
  return PyBool_FromLong(accrt_native_order(object));
}

/* ordered(): Python code has done it. */
static PyObject* gpu_ordered(PyObject* object, PyObject* unused) {
  (void)unused;
  ((gpu_t*)object)->is_order_due = false;
  Py_RETURN_NONE;
}

/* use(pointer, address, base): the buffer for tensors from now on. */
static PyObject* gpu_use(PyObject* object, PyObject* arguments) {
  gpu_t* self = (gpu_t*)object;
  PyObject *pointer, *address;
  unsigned long long base;
  if (!PyArg_ParseTuple(arguments, "OO!K", &pointer, &PyLong_Type, &address, &base))
    return NULL;
  void* const buffer = PyLong_AsVoidPtr(address);
  /* Calls that have the last one retain it. */
  if (buffer == NULL || PyList_SetItem(self->kept, 1, (Py_INCREF(pointer), pointer)) != 0)
    return PyErr_Occurred() != NULL ? NULL : PyBool_FromLong(0);
  self->buffer = buffer;
  self->base = base;
  Py_RETURN_TRUE;
}

/* Gpu(pointer, address, device_type, device_id, may_order_late): of a stream. */
static PyObject* gpu_new(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  PyObject *pointer, *address;
  int device_type, device_id, may_order_late;
  (void)named;
  if (!PyArg_ParseTuple(arguments, "OO!iip", &pointer, &PyLong_Type, &address, &device_type,
                        &device_id, &may_order_late))
    return NULL;
  void* const stream = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred() != NULL)
    return NULL;
  allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
  PyObject* kept = Py_BuildValue("[OO]", pointer, Py_None);
  gpu_t* self = kept != NULL ? (gpu_t*)allocate(type, 0) : NULL;
  if (self == NULL) {
    Py_XDECREF(kept);
    return NULL;
  }
  self->kept = kept;
  self->stream = stream;
  self->device_type = device_type;
  self->device_id = device_id;
  self->process = getpid();
  self->may_order_late = may_order_late != 0;
  return (PyObject*)self;
}

static void gpu_free(PyObject* object) {
  gpu_t* self = (gpu_t*)object;
  PyTypeObject* type = Py_TYPE(object);
  const bool is_ours = self->process == getpid(); /* CUDA does not outlive a fork */
  if (self->event != NULL && is_ours)
    (void)cuda.event_destroy(self->event); /* the waits stay */
  if (self->context != NULL && is_ours)
    (void)cuda.context_release(self->device_id);
  Py_XDECREF(self->kept);
  freefunc free_object = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
  free_object(object);
  Py_DECREF(type);
}

bool accrt_native_is_gpu(PyObject* object) {
  return is_connected && (PyObject*)Py_TYPE(object) == gpu_type;
}

bool accrt_native_add_gpu(PyObject* module) {
  static PyMethodDef methods[] = {
      {"wanted", gpu_wanted, METH_NOARGS, "wanted(): what the buffer does not reach."},
      {"order", gpu_order, METH_NOARGS, "order(): waits for the default stream, if that is due."},
      {"ordered", gpu_ordered, METH_NOARGS, "ordered(): it is not due any more."},
      {"use", gpu_use, METH_VARARGS, "use(pointer, address, base): the buffer from now on."},
      {NULL, NULL, 0, NULL}};
  static PyType_Slot slots[] = {{Py_tp_new, NATIVE_SLOT(gpu_new)},
                                {Py_tp_dealloc, NATIVE_SLOT(gpu_free)},
                                {Py_tp_methods, methods},
                                {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Gpu", sizeof(gpu_t), 0, Py_TPFLAGS_DEFAULT, slots};
  gpu_type = PyType_FromSpec(&spec);
  if (gpu_type == NULL)
    return false;
  Py_INCREF(gpu_type);
  return PyModule_AddObject(module, "Gpu", gpu_type) == 0;
}
