/* python/native/launch.c - a kernel of a GPU launched on other libraries' tensors in one step: they
 * are checked and their addresses written to a prepared launch, which is enqueued on the current
 * stream of their library. python/accrt/_kernel_gpu.py does the same in many. */
#include <float.h>
#include <string.h>

#include "python/native/exchange.h"
#include "python/native/native.h"

enum { EXCHANGE_CUDA = 2, MOST_PARAMETERS = 64, MOST_GPUS = 8, MOST_STREAMS = 16, LAUNCHES = 2 };

/* As Python gives them, packed. `kind`: 0 is memory, another the code of Python's struct module. */
typedef struct parameter {
  uint8_t kind;
  uint8_t align_log2;
  uint16_t dtype; /* 0: any */
  uint32_t offset_bytes;
} parameter_t;
_Static_assert(sizeof(parameter_t) == 8, "parameter_t");

/* A stream of another library's, and the one that wraps it. */
typedef struct known_stream {
  void* native;
  accrt_stream_t* stream;
} known_stream_t;

typedef struct gpu {
  int32_t device_id;
  size_t stream_count;
  known_stream_t streams[MOST_STREAMS];
  accrt_launch_t* launches[LAUNCHES]; /* each for one thread at a time */
  bool busy[LAUNCHES];
} gpu_t;

typedef struct launcher {
  PyObject ob_base;
  PyObject* kept; /* what keeps launches and streams */
  size_t size_bytes;
  size_t count;
  size_t gpu_count;
  parameter_t parameters[MOST_PARAMETERS];
  gpu_t gpus[MOST_GPUS];
} launcher_t;

/* What one call needs. */
typedef struct firing {
  gpu_t* gpu;
  PyObject* first; /* tensor: whose library's stream it is */
  bool is_array;   /* it has the CUDA array interface, which names the stream */
  void* named;
  uint32_t grid[3];
  _Alignas(16) unsigned char block[ACCRT_KERNEL_MAX_PARAMS_BYTES];
} firing_t;

/* ---- Arguments ---- */

static bool is_contiguous(const exchange_tensor_t* lent) {
  int64_t step = 1;
  for (int32_t i = lent->ndim - 1; lent->strides != NULL && i >= 0; --i) {
    if (lent->shape[i] == 0)
      return true;
    if (lent->shape[i] != 1 && lent->strides[i] != step)
      return false;
    step *= lent->shape[i];
  }
  return true;
}

/* A tensor as its class lends it. */
typedef struct given {
  exchange_tensor_t lent; /* may point into `array` */
  accrt_dtype_t dtype;
  bool is_array;
  native_cuda_array_t array;
} given_t;

/* Arrays with the CUDA array interface: those that may be written, and whose stream is said. */
static bool read_array(PyObject* value, given_t* given) {
  native_cuda_array_t* array = &given->array;
  if (!accrt_native_cuda_array(value, array) || !array->has_stream || array->read_only)
    return false;
  given->lent = (exchange_tensor_t){.data = (void*)(uintptr_t)array->address,
                                    .device_type = EXCHANGE_CUDA,
                                    .device_id = array->device_id,
                                    .ndim = (int32_t)array->rank,
                                    .shape = array->shape,
                                    .strides = array->has_strides ? array->strides : NULL};
  given->dtype = array->dtype;
  return true;
}

static bool read_tensor(PyObject* value, given_t* given) {
  given->dtype = accrt_native_borrow(value, &given->lent);
  given->is_array = given->dtype == ACCRT_DTYPE_NONE;
  return given->is_array ? read_array(value, given) : !accrt_native_is_negative(value);
}

/* All tensors are of one library, and so of one stream. */
static bool same_library(const firing_t* firing, const given_t* given) {
  return firing->is_array == given->is_array &&
         (!given->is_array || accrt_native_same_stream(firing->named, given->array.stream));
}

/* The GPU that the first tensor lies on, for all of them. */
static bool lies_there(launcher_t* self, firing_t* firing, PyObject* value, const given_t* given) {
  const int32_t device_id = given->lent.device_id;
  if (firing->gpu != NULL)
    return firing->gpu->device_id == device_id && same_library(firing, given);
  for (size_t i = 0; i < self->gpu_count; ++i) {
    if (self->gpus[i].device_id == device_id)
      firing->gpu = &self->gpus[i];
  }
  firing->first = value;
  firing->is_array = given->is_array;
  firing->named = given->is_array ? given->array.stream : NULL;
  return firing->gpu != NULL;
}

static bool put_memory(launcher_t* self, firing_t* firing, const parameter_t* parameter,
                       PyObject* value) {
  given_t given;
  if (!read_tensor(value, &given) || (parameter->dtype != 0 && parameter->dtype != given.dtype))
    return false;
  const exchange_tensor_t* lent = &given.lent;
  const uint64_t address = (uint64_t)(uintptr_t)lent->data + lent->byte_offset;
  const uint64_t mask = (UINT64_C(1) << parameter->align_log2) - 1;
  if (lent->device_type != EXCHANGE_CUDA || (address & mask) != 0 || !is_contiguous(lent) ||
      !lies_there(self, firing, value, &given))
    return false;
  memcpy(firing->block + parameter->offset_bytes, &address, sizeof address);
  return true;
}

static bool put_float(unsigned char* place, uint8_t kind, PyObject* value) {
  if (!PyFloat_CheckExact(value) && !PyLong_CheckExact(value))
    return false;
  const double number = PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred() != NULL)
    return false;
  if (kind == 'd') {
    memcpy(place, &number, sizeof number);
    return true;
  }
  const bool is_finite = number - number == 0;
  if (is_finite && (number > (double)FLT_MAX || number < -(double)FLT_MAX))
    return false;
  const float rounded = (float)number;
  memcpy(place, &rounded, sizeof rounded);
  return true;
}

/* Bits of an integer type, by the code of Python's struct module; 0: it is none. */
static unsigned width_of(uint8_t kind) {
  static const char codes[] = "bBhHiIqQ";
  const char* found = strchr(codes, kind);
  return found != NULL && kind != 0 ? 8u << ((size_t)(found - codes) / 2) : 0;
}

static bool put_integer(unsigned char* place, uint8_t kind, PyObject* value) {
  const unsigned width = width_of(kind);
  if (width == 0 || !PyLong_CheckExact(value))
    return false;
  if (kind == 'Q') {
    const unsigned long long large = PyLong_AsUnsignedLongLong(value);
    memcpy(place, &large, sizeof large);
    return PyErr_Occurred() == NULL;
  }
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred() != NULL)
    return false;
  const bool is_signed = kind >= 'a';
  const long long most = (long long)(UINT64_MAX >> (64 - width + (is_signed ? 1u : 0u)));
  if (number > most || number < (is_signed ? -most - 1 : 0))
    return false;
  memcpy(place, &number, width / 8); /* little-endian: the low bytes */
  return true;
}

static bool put(launcher_t* self, firing_t* firing, const parameter_t* parameter, PyObject* value) {
  unsigned char* place = firing->block + parameter->offset_bytes;
  if (parameter->kind == 0)
    return put_memory(self, firing, parameter, value);
  if (parameter->kind == 'f' || parameter->kind == 'd')
    return put_float(place, parameter->kind, value);
  return put_integer(place, parameter->kind, value);
}

static bool put_all(launcher_t* self, firing_t* firing, PyObject* values) {
  if (!PyTuple_Check(values) || PyTuple_Size(values) != (Py_ssize_t)self->count)
    return false;
  for (size_t i = 0; i < self->count; ++i) {
    if (!put(self, firing, &self->parameters[i], PyTuple_GetItem(values, (Py_ssize_t)i)))
      return false;
  }
  return firing->gpu != NULL;
}

static bool read_size(PyObject* value, uint32_t* out) {
  const unsigned long size = PyLong_CheckExact(value) ? PyLong_AsUnsignedLong(value) : 0;
  *out = (uint32_t)size;
  return size > 0 && size <= UINT32_MAX && PyErr_Occurred() == NULL;
}

static bool read_grid(PyObject* grid, firing_t* firing) {
  firing->grid[0] = firing->grid[1] = firing->grid[2] = 1;
  if (!PyTuple_Check(grid))
    return read_size(grid, &firing->grid[0]);
  const Py_ssize_t count = PyTuple_Size(grid);
  bool is_good = count >= 1 && count <= 3;
  for (Py_ssize_t i = 0; is_good && i < count; ++i)
    is_good = read_size(PyTuple_GetItem(grid, i), &firing->grid[i]);
  return is_good;
}

/* ---- The launch ---- */

static accrt_stream_t* current(const firing_t* firing) {
  void* native = firing->named;
  const gpu_t* gpu = firing->gpu;
  if (!firing->is_array &&
      !accrt_native_current_stream(firing->first, EXCHANGE_CUDA, gpu->device_id, &native))
    return NULL;
  for (size_t i = 0; i < gpu->stream_count; ++i) {
    if (accrt_native_same_stream(gpu->streams[i].native, native))
      return gpu->streams[i].stream;
  }
  return NULL;
}

/* Another thread may have one of them while it has not the interpreter's lock. */
static size_t idle_launch(const gpu_t* gpu) {
  size_t found = 0;
  while (found < LAUNCHES && (gpu->busy[found] || gpu->launches[found] == NULL))
    ++found;
  return found;
}

static PyObject* fire(launcher_t* self, firing_t* firing) {
  gpu_t* gpu = firing->gpu;
  accrt_stream_t* stream = current(firing);
  const size_t index = idle_launch(gpu);
  if (stream == NULL || index == LAUNCHES) {
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
  }
  accrt_launch_t* launch = gpu->launches[index];
  accrt_status_t status;
  PyObject* kept = self->kept;
  Py_INCREF(kept);
  Py_INCREF((PyObject*)self);
  gpu->busy[index] = true;
  memcpy(accrt_native_api.launch_params(launch), firing->block, self->size_bytes);
  Py_BEGIN_ALLOW_THREADS; /* the driver waits for room in a queue that is full */
  status = accrt_native_api.stream_launch_prepared(stream, launch, firing->grid);
  Py_END_ALLOW_THREADS;
  gpu->busy[index] = false;
  Py_DECREF((PyObject*)self);
  Py_DECREF(kept);
  if (status != ACCRT_OK)
    return PyLong_FromLong((long)status);
  Py_RETURN_NONE;
}

/* launcher(values, grid): None: it is enqueued; NotImplemented: nothing is, do it otherwise; a
 * number: the status of what failed. */
static PyObject* launcher_call(PyObject* object, PyObject* arguments, PyObject* named) {
  launcher_t* self = (launcher_t*)object;
  (void)named;
  if (PyTuple_Size(arguments) != 2) {
    PyErr_SetString(PyExc_TypeError, "a Launcher takes values and a grid");
    return NULL;
  }
  firing_t firing;
  firing.gpu = NULL;
  firing.first = NULL;
  memset(firing.block, 0, self->size_bytes);
  if (!put_all(self, &firing, PyTuple_GetItem(arguments, 0)) ||
      !read_grid(PyTuple_GetItem(arguments, 1), &firing)) {
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
  }
  return fire(self, &firing);
}

/* ---- What it knows ---- */

static gpu_t* gpu_of(launcher_t* self, int device_id) {
  for (size_t i = 0; i < self->gpu_count; ++i) {
    if (self->gpus[i].device_id == device_id)
      return &self->gpus[i];
  }
  if (self->gpu_count == MOST_GPUS)
    return NULL;
  gpu_t* gpu = &self->gpus[self->gpu_count++];
  gpu->device_id = device_id;
  return gpu;
}

/* learn_launch(device_id, pointer, address): whether there was room for it. */
static PyObject* launcher_learn_launch(PyObject* object, PyObject* arguments) {
  launcher_t* self = (launcher_t*)object;
  PyObject *pointer, *address;
  int device_id;
  if (!PyArg_ParseTuple(arguments, "iOO!", &device_id, &pointer, &PyLong_Type, &address))
    return NULL;
  void* launch = PyLong_AsVoidPtr(address);
  if (launch == NULL)
    return PyErr_Occurred() != NULL ? NULL : PyBool_FromLong(0);
  gpu_t* gpu = gpu_of(self, device_id);
  for (size_t i = 0; gpu != NULL && i < LAUNCHES; ++i) {
    if (gpu->launches[i] != NULL)
      continue;
    if (PyList_Append(self->kept, pointer) != 0)
      return NULL;
    gpu->launches[i] = launch;
    Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

/* learn_stream(device_id, native, pointer, address): whether there was room for it. */
static PyObject* launcher_learn_stream(PyObject* object, PyObject* arguments) {
  launcher_t* self = (launcher_t*)object;
  PyObject *native, *pointer, *address;
  int device_id;
  if (!PyArg_ParseTuple(arguments, "iO!OO!", &device_id, &PyLong_Type, &native, &pointer,
                        &PyLong_Type, &address))
    return NULL;
  const known_stream_t known = {PyLong_AsVoidPtr(native), PyLong_AsVoidPtr(address)};
  if (PyErr_Occurred() != NULL)
    return NULL;
  gpu_t* gpu = gpu_of(self, device_id);
  if (gpu == NULL || gpu->stream_count == MOST_STREAMS)
    Py_RETURN_FALSE;
  if (PyList_Append(self->kept, pointer) != 0)
    return NULL;
  gpu->streams[gpu->stream_count++] = known;
  Py_RETURN_TRUE;
}

/* ---- The class ---- */

/* Launcher(parameters, size_bytes): a record of 8 bytes for each parameter. */
static PyObject* launcher_new(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  const char* records;
  Py_ssize_t bytes;
  unsigned size_bytes;
  (void)named;
  if (!PyArg_ParseTuple(arguments, "y#I", &records, &bytes, &size_bytes))
    return NULL;
  const size_t count = (size_t)bytes / sizeof(parameter_t);
  if (count > MOST_PARAMETERS || size_bytes > ACCRT_KERNEL_MAX_PARAMS_BYTES) {
    PyErr_SetString(PyExc_ValueError, "more parameters than a Launcher takes");
    return NULL;
  }
  PyObject* kept = PyList_New(0);
  allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
  launcher_t* self = kept != NULL ? (launcher_t*)allocate(type, 0) : NULL;
  if (self == NULL) {
    Py_XDECREF(kept);
    return NULL;
  }
  self->kept = kept;
  self->count = count;
  self->size_bytes = size_bytes;
  memcpy(self->parameters, records, count * sizeof(parameter_t));
  for (size_t i = 0; i < count; ++i) {
    if (self->parameters[i].offset_bytes + 8 > ACCRT_KERNEL_MAX_PARAMS_BYTES)
      self->parameters[i].offset_bytes = 0;
  }
  return (PyObject*)self;
}

static void launcher_free(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(((launcher_t*)object)->kept);
  freefunc free_object = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
  free_object(object);
  Py_DECREF(type);
}

bool accrt_native_add_launcher(PyObject* module) {
  static PyMethodDef methods[] = {{"learn_launch", launcher_learn_launch, METH_VARARGS,
                                   "learn_launch(device_id, pointer, address)"},
                                  {"learn_stream", launcher_learn_stream, METH_VARARGS,
                                   "learn_stream(device_id, native, pointer, address)"},
                                  {NULL, NULL, 0, NULL}};
  static PyType_Slot slots[] = {{Py_tp_new, NATIVE_SLOT(launcher_new)},
                                {Py_tp_call, NATIVE_SLOT(launcher_call)},
                                {Py_tp_dealloc, NATIVE_SLOT(launcher_free)},
                                {Py_tp_methods, methods},
                                {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Launcher", sizeof(launcher_t), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  PyObject* type = PyType_FromSpec(&spec);
  return type != NULL && PyModule_AddObject(module, "Launcher", type) == 0;
}
