/* python/native/caller.c - a call from Python in one step: arguments are taken apart and bound, the
 * call runs, its results become Tensors. What this does not know it leaves to python/accrt/call.py,
 * which does the same in many. */
#include "python/native/native.h"

/* Of an argument, as Python gives them, a byte each. */
enum {
  ARGUMENT_WRITTEN = 1,
  ARGUMENT_SCALAR = 2,
  ARGUMENT_OPTIONAL = 4,
  ARGUMENT_BITS = 8,   /* of a type that numpy lacks */
  ARGUMENT_SHARED = 16 /* results may have its memory, and then it has to be a buffer */
};
enum { MOST_ARGUMENTS = 256 };

/* What `set` has done: nothing, bound an input, bound one that is like the one before, bound a
 * result, bound one that is like the one before. */
enum { SET_NOTHING = 0, SET_INPUT, SET_LIKE_INPUT, SET_RESULT, SET_LIKE_RESULT };

typedef struct caller {
  PyObject ob_base;
  accrt_call_t* call;
  PyObject* pointer; /* which keeps the call */
  PyObject* device;
  PyObject* bound; /* a set: of what C has a tensor */
  PyObject* gpu;   /* a Gpu, if the device is one; or NULL */
  PyObject* names; /* dict: name of an argument -> index */
  uint64_t slice_ns;
  accrt_status_t status; /* of the latest run */
  bool is_host;
  bool is_like_before; /* the argument that was bound last */
  Py_ssize_t inputs;
  Py_ssize_t count; /* of all arguments */
  uint8_t kinds[MOST_ARGUMENTS];
  bool external[MOST_ARGUMENTS]; /* C retains a tensor of another library there */
  bool any_external;
  uint64_t forms[MOST_ARGUMENTS]; /* a number for the type and shape that `set` has bound */
} caller_t;

/* ---- Arguments ---- */

/* Whether `bound` knows that C has a tensor there. It learns that before C does. */
static bool note_bound(const caller_t* self, Py_ssize_t index) {
  PyObject* number = PyLong_FromSsize_t(index);
  const bool noted = number != NULL && PySet_Add(self->bound, number) == 0;
  Py_XDECREF(number);
  return noted;
}

static bool unbind(const caller_t* self, Py_ssize_t index) {
  PyObject* number = PyLong_FromSsize_t(index);
  const int is_bound = number != NULL ? PySet_Contains(self->bound, number) : -1;
  bool done = is_bound == 0;
  if (is_bound == 1) {
    done = accrt_native_api.call_set_tensor(self->call, (uint32_t)index, NULL) == ACCRT_OK &&
           PySet_Discard(self->bound, number) >= 0;
  }
  Py_XDECREF(number);
  return done;
}

static bool set_scalar(const caller_t* self, Py_ssize_t index, PyObject* value) {
  if (!PyLong_CheckExact(value))
    return false;
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred() != NULL)
    return false;
  return accrt_native_api.call_set_scalar(self->call, (uint32_t)index, number) == ACCRT_OK;
}

/* Integers of one or two bytes may be the bits of a float that numpy lacks. */
static bool may_be_bits(const native_view_t* view) {
  return view->is_array &&
         (view->tensor.dtype == ACCRT_DTYPE_U8 || view->tensor.dtype == ACCRT_DTYPE_U16);
}

/* A number of a tensor's type and shape. If two have the same one, the submission that needs a plan
 * makes it. */
static uint64_t form_of(const native_view_t* view) {
  uint64_t form = (uint64_t)view->tensor.dtype << 8 | view->tensor.rank;
  for (uint32_t i = 0; i < view->tensor.rank; ++i)
    form = (form ^ (uint64_t)view->shape[i]) * UINT64_C(0x9e3779b97f4a7c15) + 1;
  return form;
}

/* Binds an array or a tensor. out_owner: a new reference to what keeps its memory. */
static bool set_tensor(caller_t* self, Py_ssize_t index, PyObject* value, PyObject** out_owner) {
  native_view_t view;
  const uint8_t kind = self->kinds[index];
  const bool may_lie_apart = (kind & ARGUMENT_SHARED) == 0;
  if (!accrt_native_take(value, self->is_host && may_lie_apart, may_lie_apart ? self->gpu : NULL,
                         &view))
    return false;
  const bool fits = !(view.read_only && (kind & ARGUMENT_WRITTEN) != 0) &&
                    !((kind & ARGUMENT_BITS) != 0 && may_be_bits(&view));
  if (!fits || !note_bound(self, index) ||
      accrt_native_api.call_set_tensor(self->call, (uint32_t)index, &view.tensor) != ACCRT_OK) {
    Py_DECREF(view.owner);
    return false;
  }
  const uint64_t form = form_of(&view);
  self->is_like_before = self->forms[index] == form;
  self->forms[index] = form;
  self->external[index] = view.is_external;
  self->any_external = self->any_external || view.is_external;
  *out_owner = view.owner;
  return true;
}

/* Unbinds the tensors of other libraries of a call that is over: their owners want the memory
 * back. What cannot be unbound stays until the next call. */
static void let_go(caller_t* self) {
  if (!self->any_external)
    return;
  self->any_external = false;
  for (Py_ssize_t i = 0; i < self->count; ++i) {
    if (self->external[i] && !unbind(self, i))
      self->any_external = true;
    else
      self->external[i] = false;
  }
  PyErr_Clear();
}

/* Binds one argument of a call; the list `kept` has what it uses. */
static bool set_argument(caller_t* self, Py_ssize_t index, PyObject* value, PyObject* kept) {
  const uint8_t kind = self->kinds[index];
  if (value == Py_None)
    return (kind & (ARGUMENT_SCALAR | ARGUMENT_OPTIONAL)) == ARGUMENT_OPTIONAL &&
           unbind(self, index);
  if ((kind & ARGUMENT_SCALAR) != 0)
    return set_scalar(self, index, value);
  PyObject* owner;
  if (!set_tensor(self, index, value, &owner))
    return false;
  /* The caller has the value; what was made of it is kept here. */
  const bool done = owner == value || PyList_Append(kept, owner) == 0;
  Py_DECREF(owner);
  return done;
}

/* What out= gives for a result: borrowed; None: nothing; NULL: it does not fit. */
static PyObject* output_at(const caller_t* self, PyObject* out, Py_ssize_t index) {
  const Py_ssize_t results = self->count - self->inputs;
  if (out == Py_None)
    return out;
  if (PyTuple_Check(out))
    return PyTuple_Size(out) == results ? PyTuple_GetItem(out, index) : NULL;
  return results == 1 && !PyList_Check(out) ? out : NULL;
}

static bool set_all(caller_t* self, PyObject* inputs, PyObject* out, PyObject* kept) {
  const Py_ssize_t given = PyTuple_Size(inputs);
  if (given > self->inputs)
    return false;
  for (Py_ssize_t i = 0; i < self->inputs; ++i) {
    if (!set_argument(self, i, i < given ? PyTuple_GetItem(inputs, i) : Py_None, kept))
      return false;
  }
  for (Py_ssize_t i = self->inputs; i < self->count; ++i) {
    PyObject* value = output_at(self, out, i - self->inputs);
    if (value == NULL || !set_argument(self, i, value, kept))
      return false;
  }
  return true;
}

/* ---- Results ---- */

static PyObject* result_at(const caller_t* self, PyObject* out, Py_ssize_t index) {
  PyObject* given = output_at(self, out, index);
  if (given != Py_None) {
    Py_INCREF(given);
    return given;
  }
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK];
  int64_t strides[ACCRT_MAX_RANK];
  const accrt_status_t status =
      accrt_native_api.call_result(self->call, (uint32_t)index, &tensor, shape, strides);
  if (status != ACCRT_OK || tensor.buffer == NULL)
    return NULL;
  return accrt_native_result(&tensor, self->device);
}

/* One alone, several as a tuple; NULL, without an exception, where Python code has to say why. */
static PyObject* all_results(const caller_t* self, PyObject* out) {
  const Py_ssize_t results = self->count - self->inputs;
  PyObject* tuple = results == 1 ? NULL : PyTuple_New(results);
  PyObject* one = tuple;
  for (Py_ssize_t i = 0; i < results; ++i) {
    one = result_at(self, out, i);
    if (one == NULL || results == 1)
      break;
    PyTuple_SetItem(tuple, i, one);
  }
  if (one == NULL) {
    Py_XDECREF(tuple);
    PyErr_Clear();
  }
  return results == 1 || one == NULL ? one : tuple;
}

/* ---- The class ---- */

/* caller(inputs, out, kept): the results; NotImplemented: nothing ran, bind and run it otherwise;
 * itself: it ran, or runs, and `status` says how far that came. */
static PyObject* caller_call(PyObject* object, PyObject* arguments, PyObject* named) {
  caller_t* self = (caller_t*)object;
  (void)named;
  if (PyTuple_Size(arguments) != 3 || !PyTuple_Check(PyTuple_GetItem(arguments, 0)) ||
      !PyList_Check(PyTuple_GetItem(arguments, 2))) {
    PyErr_SetString(PyExc_TypeError, "a Caller takes inputs, out and a list");
    return NULL;
  }
  PyObject* out = PyTuple_GetItem(arguments, 1);
  if (self->call == NULL ||
      !set_all(self, PyTuple_GetItem(arguments, 0), out, PyTuple_GetItem(arguments, 2)) ||
      (self->gpu != NULL && !accrt_native_order(self->gpu))) {
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
  }
  accrt_status_t status;
  Py_INCREF(self->pointer); /* also when this object is gone meanwhile */
  PyObject* pointer = self->pointer;
  Py_BEGIN_ALLOW_THREADS;
  status = accrt_native_api.call_attempt(self->call, self->slice_ns);
  Py_END_ALLOW_THREADS;
  Py_DECREF(pointer);
  self->status = status;
  PyObject* results = status == ACCRT_OK ? all_results(self, out) : NULL;
  if (results != NULL) {
    let_go(self);
    return results;
  }
  Py_INCREF(object);
  return object;
}

static bool is_false(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object, name);
  Py_XDECREF(value);
  return value == Py_False;
}

/* No thread is in a method of several steps of the call's session, or in a run of it. */
static bool is_idle(PyObject* call) {
  PyObject* uses = PyObject_GetAttr(call, accrt_native_names.uses);
  const bool is_free = uses != NULL && PyDict_Check(uses) && PyDict_Size(uses) == 0;
  Py_XDECREF(uses);
  return is_free && is_false(call, accrt_native_names.running);
}

/* What a submission that may be in flight uses is kept until that is over: now that C has another
 * tensor, none begins with it any more. */
static bool keep(PyObject* call, PyObject* before) {
  if (before == NULL || is_false(call, accrt_native_names.submitted))
    return true;
  PyObject* in_flight = PyObject_GetAttr(call, accrt_native_names.in_flight);
  PyObject* kept =
      in_flight != NULL
          ? PyObject_CallMethodObjArgs(in_flight, accrt_native_names.keep, before, NULL)
          : NULL;
  Py_XDECREF(in_flight);
  Py_XDECREF(kept);
  return kept != NULL;
}

/* Puts what keeps an argument's memory into the call's dict. On false C has the tensor, and the
 * dict may not: Python code binds it again, and keeps both. */
static bool put_owner(PyObject* call, PyObject* views, PyObject* number, PyObject* owner) {
  PyObject* before = PyDict_GetItemWithError(views, number);
  Py_XINCREF(before);
  const bool done = PyDict_SetItem(views, number, owner) == 0 && keep(call, before);
  Py_XDECREF(before);
  return done;
}

/* The index of an argument, by its name or as it is: borrowed; NULL: there is none. */
static PyObject* number_of(const caller_t* self, PyObject* which) {
  if (PyLong_CheckExact(which))
    return which;
  return PyUnicode_CheckExact(which) ? PyDict_GetItemWithError(self->names, which) : NULL;
}

static int set_one(caller_t* self, PyObject* call, PyObject* which, PyObject* value,
                   PyObject* views) {
  PyObject* number = number_of(self, which);
  const Py_ssize_t index = number != NULL ? PyLong_AsSsize_t(number) : -1;
  PyObject* owner;
  if (index < 0 || index >= self->count || self->call == NULL || !is_idle(call))
    return SET_NOTHING;
  if ((self->kinds[index] & ARGUMENT_SCALAR) != 0)
    return set_scalar(self, index, value) ? SET_INPUT : SET_NOTHING;
  if (value == Py_None || !set_tensor(self, index, value, &owner))
    return SET_NOTHING;
  const bool done = put_owner(call, views, number, owner);
  Py_DECREF(owner);
  return !done ? SET_NOTHING
               : (index < self->inputs ? SET_INPUT : SET_RESULT) + (self->is_like_before ? 1 : 0);
}

/* set(call, which, value, views): binds an argument of a call that no thread is in. The lock of the
 * interpreter is held throughout, so nothing comes in between. 0: do it otherwise; else it is
 * bound: 1: an input, 3: a result; 2, 4: of the type and shape of what was bound here before. */
static PyObject* caller_set(PyObject* object, PyObject* arguments) {
  caller_t* self = (caller_t*)object;
  if (PyTuple_Size(arguments) != 4 || !PyDict_Check(PyTuple_GetItem(arguments, 3))) {
    PyErr_SetString(PyExc_TypeError, "set takes a call, an argument, a value and a dict");
    return NULL;
  }
  const int done = set_one(self, PyTuple_GetItem(arguments, 0), PyTuple_GetItem(arguments, 1),
                           PyTuple_GetItem(arguments, 2), PyTuple_GetItem(arguments, 3));
  PyErr_Clear();
  return PyLong_FromLong(done);
}

/* result(index): a result of the latest run; None: Python code has to say why there is none. */
static PyObject* caller_result(PyObject* object, PyObject* arguments) {
  const caller_t* self = (const caller_t*)object;
  Py_ssize_t index;
  if (!PyArg_ParseTuple(arguments, "n", &index))
    return NULL;
  PyObject* result = NULL;
  if (self->call != NULL && index >= 0 && index < self->count - self->inputs)
    result = result_at(self, Py_None, index);
  if (result != NULL)
    return result;
  PyErr_Clear();
  Py_RETURN_NONE;
}

/* let_go(): unbinds the tensors of other libraries of the latest call, which is over. */
static PyObject* caller_let_go(PyObject* object, PyObject* unused) {
  caller_t* self = (caller_t*)object;
  (void)unused;
  if (self->call != NULL)
    let_go(self);
  Py_RETURN_NONE;
}

static PyObject* caller_status(PyObject* object, PyObject* unused) {
  (void)unused;
  return PyLong_FromLong((long)((const caller_t*)object)->status);
}

static PyObject* caller_new(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  PyObject *pointer, *address, *bound, *device, *gpu, *names;
  const char* kinds;
  Py_ssize_t count, inputs;
  int is_host;
  unsigned long long slice_ns;
  (void)named;
  if (!PyArg_ParseTuple(arguments, "OO!y#nO!OpKOO!", &pointer, &PyLong_Type, &address, &kinds,
                        &count, &inputs, &PySet_Type, &bound, &device, &is_host, &slice_ns, &gpu,
                        &PyDict_Type, &names))
    return NULL;
  if (count > MOST_ARGUMENTS || inputs < 0 || inputs > count) {
    PyErr_SetString(PyExc_ValueError, "more arguments than a Caller takes");
    return NULL;
  }
  void* call = PyLong_AsVoidPtr(address);
  if (call == NULL && PyErr_Occurred() != NULL)
    return NULL;
  allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
  caller_t* self = (caller_t*)allocate(type, 0);
  if (self == NULL)
    return NULL;
  self->call = call;
  self->inputs = inputs;
  self->count = count;
  self->is_host = is_host != 0;
  self->slice_ns = slice_ns;
  for (Py_ssize_t i = 0; i < count; ++i)
    self->kinds[i] = (uint8_t)kinds[i];
  Py_INCREF(pointer);
  self->pointer = pointer;
  Py_INCREF(bound);
  self->bound = bound;
  Py_INCREF(device);
  self->device = device;
  Py_INCREF(names);
  self->names = names;
  if (accrt_native_is_gpu(gpu)) {
    Py_INCREF(gpu);
    self->gpu = gpu;
  }
  return (PyObject*)self;
}

static void caller_free(PyObject* object) {
  caller_t* self = (caller_t*)object;
  PyTypeObject* type = Py_TYPE(object);
  Py_XDECREF(self->pointer);
  Py_XDECREF(self->bound);
  Py_XDECREF(self->device);
  Py_XDECREF(self->gpu);
  Py_XDECREF(self->names);
  freefunc free_object = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
  free_object(object);
  Py_DECREF(type);
}

bool accrt_native_add_caller(PyObject* module) {
  static PyMethodDef methods[] = {
      {"set", caller_set, METH_VARARGS, "set(call, which, value, views): binds an argument."},
      {"result", caller_result, METH_VARARGS, "result(index): a result of the latest run."},
      {"let_go", caller_let_go, METH_NOARGS, "Unbinds tensors of others of a call that is over."},
      {"status", caller_status, METH_NOARGS, "What the latest run came to."},
      {NULL, NULL, 0, NULL}};
  static PyType_Slot slots[] = {{Py_tp_new, NATIVE_SLOT(caller_new)},
                                {Py_tp_call, NATIVE_SLOT(caller_call)},
                                {Py_tp_dealloc, NATIVE_SLOT(caller_free)},
                                {Py_tp_methods, methods},
                                {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Caller", sizeof(caller_t), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  PyObject* type = PyType_FromSpec(&spec);
  return type != NULL && PyModule_AddObject(module, "Caller", type) == 0;
}
