/* python/native/module.c - accrt._native: what Python code calls for each argument and each call,
 * in C. The package works without it, and slower. */
#include <string.h>

#include "python/native/native.h"

accrt_api_t accrt_native_api;
native_names_t accrt_native_names;

/* ---- The module ---- */

static bool intern_names(void) {
  native_names_t* names = &accrt_native_names;
  const struct {
    PyObject** place;
    const char* text;
  } all[] = {
      {&names->array_struct, "__array_struct__"},
      {&names->dtype, "dtype"},
      {&names->requires_grad, "requires_grad"},
      {&names->is_neg, "is_neg"},
      {&names->pointer, "_pointer"},
      {&names->handle, "_handle"},
      {&names->owned, "_owned"},
      {&names->offset_bytes, "_offset_bytes"},
      {&names->tensor_dtype, "_dtype"},
      {&names->shape, "_shape"},
      {&names->strides, "_strides"},
      {&names->read_only, "_read_only"},
      {&names->external, "_external"},
      {&names->uses, "_uses"},
      {&names->running, "_running"},
      {&names->submitted, "_submitted"},
      {&names->quick, "quick"},
      {&names->in_flight, "_in_flight"},
      {&names->keep, "keep"},
      {&names->cuda_array, "__cuda_array_interface__"},
      {&names->array_shape, "shape"},
      {&names->array_strides, "strides"},
      {&names->typestr, "typestr"},
      {&names->data, "data"},
      {&names->version, "version"},
      {&names->stream, "stream"},
      {&names->mask, "mask"},
      {&names->level, "_current_level"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    *all[i].place = PyUnicode_InternFromString(all[i].text);
    if (*all[i].place == NULL)
      return false;
  }
  return true;
}

/* connect(get_api, version): the library's functions, of the library that Python code has. */
static PyObject* connect_library(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject* address;
  unsigned version;
  if (!PyArg_ParseTuple(arguments, "O!I", &PyLong_Type, &address, &version))
    return NULL;
  const accrt_get_api_fn_t get_api = (accrt_get_api_fn_t)(uintptr_t)PyLong_AsVoidPtr(address);
  if (get_api == NULL && PyErr_Occurred() != NULL)
    return NULL;
  const bool is_whole = version == ACCRT_VERSION && get_api != NULL &&
                        get_api(version, &accrt_native_api, sizeof accrt_native_api) == ACCRT_OK;
  return PyBool_FromLong(is_whole);
}

static PyMethodDef methods[] = {
    {"connect", connect_library, METH_VARARGS, "connect(get_api, version): whether they fit."},
    {"learn_array", accrt_native_learn_array, METH_VARARGS, "learn_array(numpy.ndarray)"},
    {"learn_dtype", accrt_native_learn_dtype, METH_VARARGS, "learn_dtype(dtype, id)"},
    {"learn_tensor", accrt_native_learn_tensor, METH_VARARGS, "learn_tensor(Tensor, ids)"},
    {"learn_questions", accrt_native_learn_questions, METH_VARARGS,
     "learn_questions(type, size, wants_gradient, is_negative, samples)"},
    {"learn_exchange", accrt_native_learn_exchange, METH_VARARGS,
     "learn_exchange(type, capsule, asks_gradient)"},
    {"learn_cuda_array", accrt_native_learn_cuda_array, METH_VARARGS, "learn_cuda_array(type)"},
    {"learn_type_strings", accrt_native_learn_type_strings, METH_VARARGS,
     "learn_type_strings(ids): of the CUDA array interface."},
    {"connect_cuda", accrt_native_connect_cuda, METH_O, "connect_cuda(addresses): the driver's."},
    {"learn_results", accrt_native_learn_results, METH_VARARGS, "learn_results(Tensor, names)"},
    {"offer", accrt_native_offer, METH_VARARGS, "offer(from_capsule): Tensor's table."},
    {"capsule", accrt_native_capsule, METH_O,
     "capsule(tensor): of one with the C exchange, or None."},
    {"keep", accrt_native_keep, METH_O, "keep(object): what lets go of it, and with what."},
    {"end", accrt_native_end, METH_NOARGS, "Gives nothing back any more: the process ends."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "accrt._native",
                                        "The fast path of calls; not for users.",
                                        -1,
                                        methods,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void) {
  PyObject* module = PyModule_Create(&definition);
  if (module != NULL && intern_names() && accrt_native_add_caller(module) &&
      accrt_native_add_held(module) && accrt_native_add_result(module) &&
      accrt_native_add_gpu(module) && accrt_native_add_enqueuer(module) &&
      accrt_native_add_launcher(module) && accrt_native_add_entry(module) &&
      accrt_native_add_shim(module) && accrt_native_add_direct(module) &&
      accrt_native_add_xla(module))
    return module;
  Py_XDECREF(module);
  return NULL;
}
