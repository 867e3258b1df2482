/* python/native/torch_entry.c - what Python calls for an operator of torch's. Where no gradient is
 * wanted it leaves torch's dispatcher out, or else torch's Python code for gradients. An error of
 * Python's that became one of C++ on its way is given back as it was. */
#include <string.h>

#include "python/native/native.h"

/* An error that Python code raised below a kernel in C, of this thread. torch makes a RuntimeError
 * with the same text of it. */
typedef struct noted {
  int depth;       /* of entries: only they take the error */
  PyObject* error; /* or NULL */
  char text[2048];
} noted_t;
static _Thread_local noted_t noted;

const char* accrt_native_noted_text(void) {
  return noted.text;
}

void accrt_native_forget_noted(void) {
  noted.text[0] = '\0';
}

/* note_error(error, text): an exception that a kernel in C cannot raise. */
static PyObject* note_error(PyObject* module, PyObject* arguments) {
  PyObject* error;
  const char* text;
  (void)module;
  if (!PyArg_ParseTuple(arguments, "Os", &error, &text))
    return NULL;
  const size_t count = strlen(text) < sizeof noted.text ? strlen(text) : sizeof noted.text - 1;
  memcpy(noted.text, text, count);
  noted.text[count] = '\0';
  PyObject* before = noted.error;
  noted.error = noted.depth > 0 ? error : NULL;
  Py_XINCREF(noted.error);
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

/* ---- Giving an error back ---- */

static bool has_text(PyObject* error, const char* text) {
  PyObject* shown = PyObject_Str(error);
  PyObject* bytes = shown != NULL ? PyUnicode_AsUTF8String(shown) : NULL;
  char* found = bytes != NULL ? PyBytes_AsString(bytes) : NULL;
  const bool is_in = found != NULL && strstr(found, text) != NULL;
  Py_XDECREF(bytes);
  Py_XDECREF(shown);
  PyErr_Clear();
  return is_in;
}

/* An exception is set. If it is what torch made of the noted one, that one is set instead. */
static void restore_noted(void) {
  PyObject *type, *value, *trace;
  if (noted.error == NULL || !PyErr_ExceptionMatches(PyExc_RuntimeError))
    return;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value == NULL || value == noted.error || !has_text(value, noted.text)) {
    PyErr_Restore(type, value, trace);
    return;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  PyObject* first = noted.error;
  noted.error = NULL;
  type = (PyObject*)Py_TYPE(first);
  Py_INCREF(type);
  PyErr_Restore(type, first, PyException_GetTraceback(first));
}

/* ---- The class ---- */

typedef struct entry {
  PyObject ob_base;
  PyObject* inner;      /* torch's own object, which calls the operator */
  PyObject* below;      /* a class: while there is one of it, gradients are left out; or None */
  PyObject* plain[2];   /* classes of tensors that mean what torch's do */
  PyObject* is_wanted;  /* is_grad_enabled */
  PyObject* states[3];  /* functions whose results are false if nothing looks into calls */
  PyObject* shims[2];   /* of processors and of GPUs; others than a Shim: there is none */
  PyObject* watched;    /* called in place of inner under a transform or with a forward level */
  PyObject* transforms; /* a function: whether there is a transform */
  PyObject* levels;     /* the dict of torch.autograd.forward_ad */
  PyObject* graded;     /* called in place of all of this where a gradient is wanted; or None */
} entry_t;

typedef enum asks { ASKS_NOTHING, ASKS_GRADIENT, ASKS_UNKNOWN } asks_t;

static asks_t asks_of_values(const entry_t* self, PyObject* values, int depth);

/* What an argument asks for: a gradient, or what is not known here. */
static asks_t asks_of(const entry_t* self, PyObject* value, int depth) {
  if (value == Py_None || PyLong_CheckExact(value))
    return ASKS_NOTHING;
  if (PyList_CheckExact(value) && depth == 0)
    return asks_of_values(self, value, depth + 1);
  const PyObject* type = (PyObject*)Py_TYPE(value);
  if (type != self->plain[0] && type != self->plain[1])
    return ASKS_UNKNOWN;
  const native_answer_t answer = accrt_native_wants_gradient(value);
  return answer == ANSWER_NO ? ASKS_NOTHING : answer == ANSWER_YES ? ASKS_GRADIENT : ASKS_UNKNOWN;
}

static asks_t asks_of_values(const entry_t* self, PyObject* values, int depth) {
  asks_t most = ASKS_NOTHING;
  const bool is_list = PyList_CheckExact(values);
  const Py_ssize_t count = is_list ? PyList_Size(values) : PyTuple_Size(values);
  for (Py_ssize_t i = 0; i < count && most != ASKS_UNKNOWN; ++i) {
    PyObject* value = is_list ? PyList_GetItem(values, i) : PyTuple_GetItem(values, i);
    const asks_t one = asks_of(self, value, depth);
    most = one > most ? one : most;
  }
  return most;
}

static bool gives_false(PyObject* function) {
  PyObject* value = PyObject_CallObject(function, NULL);
  const int is_true = value != NULL ? PyObject_IsTrue(value) : 1;
  Py_XDECREF(value);
  return is_true == 0;
}

/* What the arguments of a call ask for. */
static asks_t asks_of_call(const entry_t* self, PyObject* given, PyObject* named) {
  if (named != NULL && PyDict_Size(named) != 0)
    return ASKS_UNKNOWN;
  const asks_t asks = asks_of_values(self, given, 0);
  return asks == ASKS_GRADIENT && gives_false(self->is_wanted) ? ASKS_NOTHING : asks;
}

/* Whether nothing looks into calls: no mode, no transform. */
static bool is_unwatched(const entry_t* self) {
  bool unwatched = true;
  for (size_t i = 0; i < sizeof self->states / sizeof *self->states && unwatched; ++i)
    unwatched = gives_false(self->states[i]);
  return unwatched;
}

/* Whether tensors may have gradients of forward mode, which they do not say by themselves. */
static bool has_level(const entry_t* self) {
  PyObject* level = PyDict_GetItem(self->levels, accrt_native_names.level);
  return level == NULL || !PyLong_Check(level) || PyLong_AsLong(level) >= 0;
}

/* By torch's dispatcher. */
static PyObject* dispatch(const entry_t* self, PyObject* given, PyObject* named, bool is_plain) {
  PyObject* below = is_plain && self->below != Py_None && is_unwatched(self)
                        ? PyObject_CallObject(self->below, NULL)
                        : NULL;
  PyErr_Clear();
  const bool is_watched = has_level(self) || !gives_false(self->transforms);
  PyErr_Clear();
  ++noted.depth;
  PyObject* result = PyObject_Call(is_watched ? self->watched : self->inner, given, named);
  --noted.depth;
  Py_XDECREF(below);
  return result;
}

/* Whether torch's code for gradients would do no more than `graded` does. */
static bool is_graded(const entry_t* self, asks_t asks) {
  return asks == ASKS_GRADIENT && self->graded != Py_None && PyErr_Occurred() == NULL &&
         accrt_native_is_bare() && gives_false(self->transforms);
}

static PyObject* entry_call(PyObject* object, PyObject* given, PyObject* named) {
  const entry_t* self = (const entry_t*)object;
  const bool is_leveled = has_level(self), is_quiet = !is_leveled && accrt_native_is_quiet();
  PyObject* result = is_quiet && (named == NULL || PyDict_Size(named) == 0)
                         ? accrt_native_call_again(self->shims, given)
                         : NULL;
  if (result != NULL)
    return result;
  PyErr_Clear();
  const asks_t asks = is_leveled ? ASKS_UNKNOWN : asks_of_call(self, given, named);
  const bool is_plain = asks == ASKS_NOTHING;
  if (is_graded(self, asks))
    return PyObject_CallObject(self->graded, given);
  result = is_plain && is_quiet ? accrt_native_call_directly(self->shims, given) : NULL;
  if (result != NULL)
    return result;
  PyErr_Clear();
  result = dispatch(self, given, named, is_plain);
  if (noted.error == NULL)
    return result;
  if (result == NULL)
    restore_noted();
  if (noted.depth == 0) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject* error = noted.error;
    noted.error = NULL;
    Py_XDECREF(error);
    PyErr_Restore(type, value, trace);
  }
  return result;
}

/* Entry(inner, below, Tensor, Parameter, is_grad_enabled, (three functions), (two Shims), watched,
 * transforms, levels, graded) */
static PyObject* entry_new(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  PyObject* all[14];
  (void)named;
  if (!PyArg_ParseTuple(arguments, "OOOOO(OOO)(OO)OOO!O", &all[0], &all[1], &all[2], &all[3],
                        &all[4], &all[5], &all[6], &all[7], &all[8], &all[9], &all[10], &all[11],
                        &PyDict_Type, &all[12], &all[13]))
    return NULL;
  allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
  entry_t* self = (entry_t*)allocate(type, 0);
  if (self == NULL)
    return NULL;
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    Py_INCREF(all[i]);
  self->inner = all[0];
  self->below = all[1];
  memcpy(self->plain, &all[2], sizeof self->plain);
  self->is_wanted = all[4];
  memcpy(self->states, &all[5], sizeof self->states);
  memcpy(self->shims, &all[8], sizeof self->shims);
  self->watched = all[10];
  self->transforms = all[11];
  self->levels = all[12];
  self->graded = all[13];
  return (PyObject*)self;
}

/* Attributes are those of torch's own object. */
static PyObject* entry_get(PyObject* object, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(object, name);
  if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
    return found;
  PyErr_Clear();
  return PyObject_GetAttr(((const entry_t*)object)->inner, name);
}

static void entry_free(PyObject* object) {
  entry_t* self = (entry_t*)object;
  PyTypeObject* type = Py_TYPE(object);
  PyObject* const kept[] = {self->inner,     self->below,     self->plain[0],  self->plain[1],
                            self->is_wanted, self->states[0], self->states[1], self->states[2],
                            self->shims[0],  self->shims[1],  self->watched,   self->transforms,
                            self->levels,    self->graded};
  for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i)
    Py_XDECREF(kept[i]);
  freefunc free_object = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
  free_object(object);
  Py_DECREF(type);
}

bool accrt_native_add_entry(PyObject* module) {
  static PyMethodDef functions[] = {
      {"note_error", note_error, METH_VARARGS, "note_error(error, text): for Entry to raise."},
      {NULL, NULL, 0, NULL}};
  static PyType_Slot slots[] = {{Py_tp_new, NATIVE_SLOT(entry_new)},
                                {Py_tp_call, NATIVE_SLOT(entry_call)},
                                {Py_tp_getattro, NATIVE_SLOT(entry_get)},
                                {Py_tp_dealloc, NATIVE_SLOT(entry_free)},
                                {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Entry", sizeof(entry_t), 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* type = PyType_FromSpec(&spec);
  return type != NULL && PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddObject(module, "Entry", type) == 0;
}
