/* python/native/enqueue.c - a call on tensors of torch's on a GPU in one step: they are bound where
 * they lie, and the call is enqueued. python/accrt/torch/_cuda.py does the same in many. */
#include <string.h>

#include "python/native/exchange.h"
#include "python/native/native.h"

typedef struct enqueuer {
  PyObject ob_base;
  accrt_call_t* call;
  PyObject* pointer;      /* which keeps the call */
  PyObject* kept;         /* which keeps the buffer */
  accrt_buffer_t* buffer; /* all memory from `base` on */
  uint64_t base;
  int32_t device_type; /* as DLPack numbers them */
  int32_t device_id;
} enqueuer_t;

/* Says where in the buffer a tensor lies. An empty one lies anywhere. */
static bool place(const enqueuer_t* self, const exchange_tensor_t* lent, accrt_tensor_t* tensor) {
  const uint64_t address = (uint64_t)(uintptr_t)lent->data + lent->byte_offset;
  bool is_empty = false;
  for (int32_t i = 0; i < lent->ndim; ++i)
    is_empty |= lent->shape[i] == 0;
  if (!is_empty && (lent->device_type != self->device_type || lent->device_id != self->device_id ||
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

/* Enqueuer(pointer, address, kept, buffer, base, device_type, device_id) */
static PyObject* enqueuer_new(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  PyObject *pointer, *address, *kept, *buffer;
  unsigned long long base;
  int device_type, device_id;
  (void)named;
  if (!PyArg_ParseTuple(arguments, "OO!OO!Kii", &pointer, &PyLong_Type, &address, &kept,
                        &PyLong_Type, &buffer, &base, &device_type, &device_id))
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
  self->device_type = device_type;
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

/* ---- An operator's whole call ---- */

enum { MOST_INPUTS = 16, MOST_KNOWN = 8, NO_TENSOR = 254, NOTHING = 255 };

/* What an input was: its rank and shape; NO_TENSOR: a number, in shape[0]. */
typedef struct input_shape {
  uint32_t rank;
  int64_t shape[ACCRT_MAX_RANK];
} input_shape_t;

/* Inputs of shapes that were seen, and what `make` is called with for the results: pairs of a tuple
 * and a dict. */
typedef struct known_shapes {
  input_shape_t inputs[MOST_INPUTS];
  PyObject* specs;
} known_shapes_t;

typedef int is_capturing_fn_t(void* stream, int* out_status); /* cuStreamIsCapturing */

typedef struct quick {
  PyObject ob_base;
  PyObject* lanes;      /* dict: stream -> list of lanes that are free */
  PyObject* function;   /* name */
  PyObject* get_stream; /* called with `place`: the number of the current stream */
  PyObject* place;
  PyObject* make; /* makes a result */
  PyTypeObject* enqueuer;
  is_capturing_fn_t* is_capturing; /* or NULL */
  Py_ssize_t inputs;
  size_t known_count, next_known;
  known_shapes_t known[MOST_KNOWN];
} quick_t;

static bool read_shape(PyObject* value, input_shape_t* out) {
  exchange_tensor_t lent;
  if (value == Py_None) {
    out->rank = NOTHING;
    return true;
  }
  if (PyLong_CheckExact(value)) {
    out->rank = NO_TENSOR;
    out->shape[0] = PyLong_AsLongLong(value);
    return PyErr_Occurred() == NULL;
  }
  if (accrt_native_borrow(value, &lent) == ACCRT_DTYPE_NONE)
    return false;
  out->rank = (uint32_t)lent.ndim;
  if (lent.ndim > 0)
    memcpy(out->shape, lent.shape, (size_t)lent.ndim * sizeof *out->shape);
  return true;
}

static bool same_shape(const input_shape_t* a, const input_shape_t* b) {
  const size_t count = a->rank == NO_TENSOR ? 1 : a->rank == NOTHING ? 0 : a->rank;
  return a->rank == b->rank && (count == 0 || memcmp(a->shape, b->shape, count * 8) == 0);
}

static bool read_shapes(const quick_t* self, PyObject* given, input_shape_t* out) {
  if (PyTuple_Size(given) != self->inputs)
    return false;
  for (Py_ssize_t i = 0; i < self->inputs; ++i) {
    if (!read_shape(PyTuple_GetItem(given, i), &out[i]))
      return false;
  }
  return true;
}

/* What results are made with; borrowed; NULL: these shapes are new. */
static PyObject* find_specs(const quick_t* self, PyObject* given) {
  input_shape_t shapes[MOST_INPUTS];
  if (!read_shapes(self, given, shapes))
    return NULL;
  for (size_t k = 0; k < self->known_count; ++k) {
    Py_ssize_t i = 0;
    while (i < self->inputs && same_shape(&self->known[k].inputs[i], &shapes[i]))
      ++i;
    if (i == self->inputs)
      return self->known[k].specs;
  }
  return NULL;
}

/* A tuple of new results; NULL: they could not be made. */
static PyObject* make_results(const quick_t* self, PyObject* specs) {
  const Py_ssize_t count = PyTuple_Size(specs);
  PyObject* made = PyTuple_New(count);
  for (Py_ssize_t i = 0; i < count && made != NULL; ++i) {
    PyObject* spec = PyTuple_GetItem(specs, i);
    PyObject* named = PyTuple_GetItem(spec, 1);
    PyObject* one =
        PyObject_Call(self->make, PyTuple_GetItem(spec, 0), named == Py_None ? NULL : named);
    if (one == NULL) {
      Py_DECREF(made);
      return NULL;
    }
    PyTuple_SetItem(made, i, one);
  }
  return made;
}

/* The enqueuer of the lane that is next on the current stream: a new reference; NULL: there is
 * none, or the stream is captured. */
static enqueuer_t* find_enqueuer(const quick_t* self) {
  PyObject* stream = PyObject_CallObject(self->get_stream, self->place);
  PyObject* lanes = stream != NULL ? PyDict_GetItemWithError(self->lanes, stream) : NULL;
  int captured = 0;
  if (lanes != NULL && self->is_capturing != NULL &&
      self->is_capturing(PyLong_AsVoidPtr(stream), &captured) != 0)
    captured = 1;
  Py_XDECREF(stream);
  const Py_ssize_t count = lanes != NULL && captured == 0 ? PyList_Size(lanes) : 0;
  if (count <= 0)
    return NULL;
  PyObject* quick = PyObject_GetAttr(PyList_GetItem(lanes, count - 1), accrt_native_names.quick);
  PyObject* found = quick != NULL ? PyDict_GetItemWithError(quick, self->function) : NULL;
  Py_XINCREF(found);
  Py_XDECREF(quick);
  if (found != NULL && Py_TYPE(found) != self->enqueuer) {
    Py_DECREF(found);
    found = NULL;
  }
  return (enqueuer_t*)found;
}

/* Nothing gives the interpreter's lock up in here, so the lane needs no taking. */
static bool bind_and_submit(const enqueuer_t* enqueuer, PyObject* given, PyObject* made) {
  const Py_ssize_t inputs = PyTuple_Size(given);
  const Py_ssize_t results = PyTuple_Size(made);
  for (Py_ssize_t i = 0; i < inputs; ++i) {
    if (!set_argument(enqueuer, (uint32_t)i, PyTuple_GetItem(given, i)))
      return false;
  }
  for (Py_ssize_t i = 0; i < results; ++i) {
    if (!set_tensor(enqueuer, (uint32_t)(inputs + i), PyTuple_GetItem(made, i)))
      return false;
  }
  return accrt_native_api.call_submit(enqueuer->call, NULL, 0, NULL, 0) == ACCRT_OK;
}

/* quick(*given): the results, whose work is enqueued; NotImplemented: nothing is. */
static PyObject* quick_call(PyObject* object, PyObject* given, PyObject* named) {
  const quick_t* self = (const quick_t*)object;
  (void)named;
  PyObject* specs = find_specs(self, given);
  Py_XINCREF(specs); /* another thread may learn shapes while results are made */
  PyObject* made = specs != NULL ? make_results(self, specs) : NULL;
  Py_XDECREF(specs);
  enqueuer_t* enqueuer = made != NULL ? find_enqueuer(self) : NULL;
  const bool done = enqueuer != NULL && bind_and_submit(enqueuer, given, made);
  Py_XDECREF(enqueuer);
  if (!done) {
    Py_XDECREF(made);
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
  }
  if (PyTuple_Size(made) != 1)
    return made;
  PyObject* one = PyTuple_GetItem(made, 0);
  Py_INCREF(one);
  Py_DECREF(made);
  return one;
}

/* learn(given, specs): inputs of these shapes have results that are made with `specs`. */
static PyObject* quick_learn(PyObject* object, PyObject* arguments) {
  quick_t* self = (quick_t*)object;
  PyObject *given, *specs;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &given, &PyTuple_Type, &specs))
    return NULL;
  known_shapes_t fresh;
  if (find_specs(self, given) == NULL && read_shapes(self, given, fresh.inputs)) {
    known_shapes_t* place = &self->known[self->next_known];
    PyObject* before = place->specs;
    memcpy(place->inputs, fresh.inputs, sizeof fresh.inputs);
    Py_INCREF(specs);
    place->specs = specs;
    Py_XDECREF(before);
    self->next_known = (self->next_known + 1) % MOST_KNOWN;
    self->known_count += self->known_count < MOST_KNOWN ? 1 : 0;
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

/* Quick(lanes, function, inputs, get_stream, place, make, Enqueuer, is_capturing) */
static PyObject* quick_new(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  PyObject *lanes, *function, *get_stream, *place, *make, *enqueuer, *is_capturing;
  Py_ssize_t inputs;
  (void)named;
  if (!PyArg_ParseTuple(arguments, "O!OnOO!OO!O!", &PyDict_Type, &lanes, &function, &inputs,
                        &get_stream, &PyTuple_Type, &place, &make, &PyType_Type, &enqueuer,
                        &PyLong_Type, &is_capturing))
    return NULL;
  if (inputs < 0 || inputs > MOST_INPUTS) {
    PyErr_SetString(PyExc_ValueError, "more inputs than a Quick takes");
    return NULL;
  }
  void* const address = PyLong_AsVoidPtr(is_capturing);
  if (PyErr_Occurred() != NULL)
    return NULL;
  allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
  quick_t* self = (quick_t*)allocate(type, 0);
  if (self == NULL)
    return NULL;
  self->inputs = inputs;
  self->is_capturing = (is_capturing_fn_t*)(uintptr_t)address;
  PyObject* const kept[] = {lanes, function, get_stream, place, make, enqueuer};
  for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i)
    Py_INCREF(kept[i]);
  self->lanes = lanes;
  self->function = function;
  self->get_stream = get_stream;
  self->place = place;
  self->make = make;
  self->enqueuer = (PyTypeObject*)enqueuer;
  return (PyObject*)self;
}

static void quick_free(PyObject* object) {
  quick_t* self = (quick_t*)object;
  PyTypeObject* type = Py_TYPE(object);
  PyObject* const kept[] = {self->lanes, self->function, self->get_stream,
                            self->place, self->make,     (PyObject*)self->enqueuer};
  for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i)
    Py_XDECREF(kept[i]);
  for (size_t i = 0; i < self->known_count; ++i)
    Py_XDECREF(self->known[i].specs);
  freefunc free_object = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
  free_object(object);
  Py_DECREF(type);
}

static bool add_quick(PyObject* module) {
  static PyMethodDef methods[] = {
      {"learn", quick_learn, METH_VARARGS, "learn(given, specs): of shapes that are new."},
      {NULL, NULL, 0, NULL}};
  static PyType_Slot slots[] = {{Py_tp_new, NATIVE_SLOT(quick_new)},
                                {Py_tp_call, NATIVE_SLOT(quick_call)},
                                {Py_tp_dealloc, NATIVE_SLOT(quick_free)},
                                {Py_tp_methods, methods},
                                {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Quick", sizeof(quick_t), 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* type = PyType_FromSpec(&spec);
  return type != NULL && PyModule_AddObject(module, "Quick", type) == 0;
}

bool accrt_native_add_enqueuer(PyObject* module) {
  static PyType_Slot slots[] = {{Py_tp_new, NATIVE_SLOT(enqueuer_new)},
                                {Py_tp_call, NATIVE_SLOT(enqueuer_call)},
                                {Py_tp_dealloc, NATIVE_SLOT(enqueuer_free)},
                                {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Enqueuer", sizeof(enqueuer_t), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  PyObject* type = PyType_FromSpec(&spec);
  return type != NULL && PyModule_AddObject(module, "Enqueuer", type) == 0 && add_quick(module);
}
