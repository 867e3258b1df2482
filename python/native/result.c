/* python/native/result.c - Tensors of results: the C tensor alone, until Python code asks for
 * shape, strides or buffer (Tensor.__getattr__), which most results are dropped without. */
#include <string.h>

#include "python/native/native.h"

static PyTypeObject* tensor_class;
static PyObject* names_of_types; /* id -> short name */
static PyObject* result_class;
static bool has_ended;

PyObject* accrt_native_learn_results(PyObject* module, PyObject* arguments) {
  (void)module;
  PyObject *tensor, *names;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyType_Type, &tensor, &PyDict_Type, &names))
    return NULL;
  Py_INCREF(tensor);
  Py_INCREF(names);
  tensor_class = (PyTypeObject*)tensor;
  names_of_types = names;
  Py_RETURN_NONE;
}

PyObject* accrt_native_end(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  has_ended = true;
  accrt_native_keep_end();
  Py_RETURN_NONE;
}

static PyObject* new_object(PyTypeObject* type) {
  allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
  return allocate(type, 0);
}

static PyObject* new_result(const accrt_tensor_t* tensor, PyObject* device) {
  native_result_t* result = (native_result_t*)new_object((PyTypeObject*)result_class);
  if (result == NULL)
    return NULL;
  result->tensor = *tensor;
  result->tensor.shape = result->shape;
  result->tensor.strides = result->strides;
  memcpy(result->shape, tensor->shape, tensor->rank * sizeof *result->shape);
  memcpy(result->strides, tensor->strides, tensor->rank * sizeof *result->strides);
  (void)accrt_native_api.buffer_retain(tensor->buffer);
  Py_INCREF(device);
  result->device = device;
  return (PyObject*)result;
}

PyObject* accrt_native_result(const accrt_tensor_t* tensor, PyObject* device) {
  PyObject* owned = tensor_class != NULL ? new_result(tensor, device) : NULL;
  PyObject* made = owned != NULL ? new_object(tensor_class) : NULL;
  if (made != NULL && PyObject_SetAttr(made, accrt_native_names.owned, owned) != 0) {
    Py_DECREF(made);
    made = NULL;
  }
  Py_XDECREF(owned);
  return made;
}

const native_result_t* accrt_native_as_result(PyObject* object) {
  return (PyObject*)Py_TYPE(object) == result_class ? (const native_result_t*)object : NULL;
}

/* ---- What Python code asks it for ---- */

static PyObject* numbers(const int64_t* values, uint32_t count) {
  PyObject* tuple = PyTuple_New((Py_ssize_t)count);
  for (uint32_t i = 0; tuple != NULL && i < count; ++i) {
    PyObject* number = PyLong_FromLongLong(values[i]);
    if (number == NULL) {
      Py_DECREF(tuple);
      return NULL;
    }
    PyTuple_SetItem(tuple, (Py_ssize_t)i, number);
  }
  return tuple;
}

static PyObject* name_of(accrt_dtype_t dtype) {
  PyObject* id = PyLong_FromUnsignedLong((unsigned long)dtype);
  PyObject* name = id != NULL ? PyDict_GetItemWithError(names_of_types, id) : NULL;
  Py_XDECREF(id);
  return name;
}

/* parts(): (the buffer's address, device, dtype, shape, strides, offset_bytes). */
static PyObject* result_parts(PyObject* object, PyObject* unused) {
  const native_result_t* self = (const native_result_t*)object;
  (void)unused;
  PyObject* name = self->tensor.buffer != NULL ? name_of(self->tensor.dtype) : NULL;
  if (name == NULL) {
    if (PyErr_Occurred() == NULL)
      PyErr_SetString(PyExc_ValueError, "an empty Result");
    return NULL;
  }
  return Py_BuildValue("NOONNK", PyLong_FromVoidPtr(self->tensor.buffer), self->device, name,
                       numbers(self->shape, self->tensor.rank),
                       numbers(self->strides, self->tensor.rank),
                       (unsigned long long)self->tensor.offset_bytes);
}

static void result_free(PyObject* object) {
  native_result_t* self = (native_result_t*)object;
  PyTypeObject* type = Py_TYPE(object);
  if (self->tensor.buffer != NULL && !has_ended)
    accrt_native_api.buffer_release(self->tensor.buffer);
  Py_XDECREF(self->device);
  freefunc free_object = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
  free_object(object);
  Py_DECREF(type);
}

bool accrt_native_add_result(PyObject* module) {
  static PyMethodDef methods[] = {
      {"parts", result_parts, METH_NOARGS, "Address, device, dtype, shape, strides, offset."},
      {NULL, NULL, 0, NULL}};
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, NATIVE_SLOT(result_free)}, {Py_tp_methods, methods}, {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Result", sizeof(native_result_t), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  result_class = PyType_FromSpec(&spec);
  if (result_class == NULL)
    return false;
  Py_INCREF(result_class);
  return PyModule_AddObject(module, "Result", result_class) == 0;
}
