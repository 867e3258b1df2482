/* python/native/torch_shim.c - kernels of torch's operators without Python in the call: tensors
 * are read, results made and a bundle's function run by torch's stable C functions and the
 * library's. Whatever is not known here (new shapes, captured streams, errors) goes to a second
 * operator, whose kernel is python/accrt/torch/_operator.py. docs/decisions/torch-kernels-in-c.md
 * has the reasons.
 *
 * Kernels run without the interpreter's lock. This file is compiled so that torch's exceptions pass
 * through it; none begins or ends in it.
 */
#include "python/native/torch_shim.h"

#include <stdlib.h>
#include <string.h>

#include "python/native/torch_functions.h"

enum { MOST_OPERATORS = 512 };

static torch_functions_t torch;

/* ---- Reading the arguments ---- */

static bool read_data(void* tensor, void** out_data) {
  const void* data;
  if (torch.torch_get_const_data_ptr == NULL)
    return torch.aoti_torch_get_data_ptr(tensor, out_data) == 0;
  if (torch.torch_get_const_data_ptr(tensor, &data) != 0)
    return false;
  *out_data = (void*)(uintptr_t)data; /* the function only reads it */
  return true;
}

static bool is_on_device(const shim_t* shim, void* tensor) {
  int32_t device, index = 0;
  return torch.aoti_torch_get_device_type(tensor, &device) == 0 && device == shim->device &&
         (!shim->is_gpu ||
          (torch.aoti_torch_get_device_index(tensor, &index) == 0 && index == shim->device_index));
}

bool accrt_native_is_contiguous(const sizes_t* sizes, const int64_t* strides) {
  int64_t step = 1;
  for (uint32_t i = 0; i < sizes->rank; ++i) {
    if (sizes->shape[i] == 0)
      return true;
  }
  for (uint32_t i = sizes->rank; i-- > 0;) {
    if (sizes->shape[i] != 1 && strides[i] != step)
      return false;
    step *= sizes->shape[i]; /* so far it has as many elements in its memory */
  }
  return true;
}

static bool read_tensor(const shim_t* shim, const declared_t* declared, void* tensor,
                        given_t* out) {
  int64_t rank;
  int64_t *sizes, *strides;
  int32_t type;
  if (!is_on_device(shim, tensor) || torch.aoti_torch_get_dtype(tensor, &type) != 0 ||
      type != declared->type || torch.aoti_torch_get_dim(tensor, &rank) != 0 || rank < 0 ||
      rank > ACCRT_MAX_RANK || torch.aoti_torch_get_sizes(tensor, &sizes) != 0 ||
      torch.aoti_torch_get_strides(tensor, &strides) != 0 || !read_data(tensor, &out->data))
    return false;
  out->tensor = tensor;
  out->sizes.rank = (uint32_t)rank;
  if (rank > 0)
    memcpy(out->sizes.shape, sizes, (size_t)rank * sizeof *sizes);
  return accrt_native_is_contiguous(&out->sizes, strides);
}

static bool read_given(const shim_t* shim, const torch_value_t* stack, given_t* out) {
  for (size_t i = 0; i < shim->inputs_count; ++i) {
    const declared_t* declared = &shim->inputs[i];
    torch_value_t value = stack[i];
    out[i].tensor = NULL;
    out[i].sizes.rank = NOTHING;
    if ((declared->kind & KIND_OPTIONAL) != 0) {
      if (value == 0)
        continue;
      value = *(const torch_value_t*)(uintptr_t)value;
    }
    if ((declared->kind & KIND_SCALAR) != 0) {
      out[i].sizes.rank = NO_TENSOR;
      out[i].sizes.shape[0] = (int64_t)value;
    } else if (!read_tensor(shim, declared, (void*)(uintptr_t)value, &out[i])) {
      return false;
    }
  }
  return true;
}

/* ---- What was seen before ---- */

static bool same_sizes(const sizes_t* a, const sizes_t* b) {
  const size_t count = a->rank == NO_TENSOR ? 1 : a->rank == NOTHING ? 0 : a->rank;
  return a->rank == b->rank &&
         (count == 0 || memcmp(a->shape, b->shape, count * sizeof *a->shape) == 0);
}

static known_shapes_t* find_known(const shim_t* shim, const given_t* given) {
  for (size_t k = 0; k < shim->known_count; ++k) {
    size_t i = 0;
    while (i < shim->inputs_count && same_sizes(&shim->known[k]->inputs[i], &given[i].sizes))
      ++i;
    if (i == shim->inputs_count)
      return shim->known[k];
  }
  return NULL;
}

static lane_t* find_lane(shim_t* shim, const void* stream) {
  for (size_t i = 0; i < shim->lanes_count; ++i) {
    lane_t* lane = &shim->lanes[i];
    if (!lane->is_taken && lane->call != NULL && lane->stream == stream)
      return lane;
  }
  return NULL;
}

known_shapes_t* accrt_native_find_known(shim_t* shim, const given_t* given) {
  pthread_mutex_lock(&shim->mutex);
  known_shapes_t* known = find_known(shim, given);
  pthread_mutex_unlock(&shim->mutex);
  return known;
}

lane_t* accrt_native_take_lane(shim_t* shim, const known_shapes_t* known, const given_t* given,
                               place_t* place, sizes_t* results, PyObject** out_specs) {
  lane_t* lane = NULL;
  pthread_mutex_lock(&shim->mutex);
  if (known == NULL)
    known = find_known(shim, given);
  if (known != NULL)
    lane = find_lane(shim, place->stream);
  if (lane != NULL) {
    lane->is_taken = true;
    place->buffer = shim->buffer;
    place->base = shim->base;
    memcpy(results, known->results, shim->results_count * sizeof *results);
    if (out_specs != NULL) {
      *out_specs = known->specs;
      Py_XINCREF(known->specs);
    }
  }
  pthread_mutex_unlock(&shim->mutex);
  return lane;
}

void accrt_native_give_lane(lane_t* lane, bool has_failed) {
  if (has_failed)
    lane->call = NULL;
  lane->is_taken = false; /* and now the lane is another thread's */
}

bool accrt_native_shim_stream(const shim_t* shim, void** out_stream) {
  int32_t index;
  int captured = 1;
  return torch.aoti_torch_get_current_device_index(&index) == 0 && index == shim->device_index &&
         torch.aoti_torch_get_current_cuda_stream(index, out_stream) == 0 &&
         shim->is_capturing(*out_stream, &captured) == 0 && captured == 0;
}

/* ---- The call ---- */

bool accrt_native_bind_tensor(const shim_t* shim, const place_t* place, accrt_call_t* call,
                              size_t index, const given_t* given, accrt_dtype_t dtype) {
  accrt_tensor_t tensor = {0};
  tensor.dtype = dtype;
  tensor.rank = given->sizes.rank;
  tensor.shape = given->sizes.shape;
  tensor.data = given->data;
  if (shim->is_gpu) {
    const uint64_t address = (uint64_t)(uintptr_t)given->data;
    bool is_empty = false;
    for (uint32_t i = 0; i < tensor.rank; ++i)
      is_empty |= tensor.shape[i] == 0;
    if (place->buffer == NULL || (!is_empty && address < place->base))
      return false;
    tensor.buffer = place->buffer;
    tensor.data = NULL;
    tensor.offset_bytes = is_empty ? 0 : address - place->base;
  }
  return accrt_native_api.call_set_tensor(call, (uint32_t)index, &tensor) == ACCRT_OK;
}

static bool bind_value(const place_t* place, const lane_t* lane, size_t index, const shim_t* shim,
                       const given_t* given) {
  if (given->sizes.rank == NOTHING)
    return accrt_native_api.call_set_tensor(lane->call, (uint32_t)index, NULL) == ACCRT_OK;
  if (given->sizes.rank == NO_TENSOR)
    return accrt_native_api.call_set_scalar(lane->call, (uint32_t)index, given->sizes.shape[0]) ==
           ACCRT_OK;
  return accrt_native_bind_tensor(shim, place, lane->call, index, given, shim->inputs[index].dtype);
}

static bool is_bound_to(const bound_t* bound, const place_t* place, const given_t* given) {
  return bound->is_bound && bound->data == given->data && bound->buffer == place->buffer &&
         bound->base == place->base && same_sizes(&bound->sizes, &given->sizes);
}

bool accrt_native_bind_inputs(const shim_t* shim, const place_t* place, const lane_t* lane,
                              const given_t* given) {
  for (size_t i = 0; i < shim->inputs_count; ++i) {
    bound_t* bound = &lane->bound[i];
    if (is_bound_to(bound, place, &given[i]))
      continue;
    bound->is_bound = false;
    if (!bind_value(place, lane, i, shim, &given[i]))
      return false;
    if (given[i].sizes.rank <= ACCRT_MAX_RANK)
      *bound = (bound_t){true, given[i].data, place->buffer, place->base, given[i].sizes};
  }
  return true;
}

static bool make_result(const shim_t* shim, const declared_t* declared, given_t* result) {
  int64_t strides[ACCRT_MAX_RANK];
  int64_t step = 1;
  const sizes_t* sizes = &result->sizes;
  for (uint32_t i = sizes->rank; i-- > 0;) {
    strides[i] = step;
    step *= sizes->shape[i] > 1 ? sizes->shape[i] : 1; /* Python code has made one of these sizes */
  }
  const int32_t index = shim->is_gpu ? shim->device_index : -1;
  return torch.aoti_torch_empty_strided((int64_t)sizes->rank, sizes->shape, strides, declared->type,
                                        shim->device, index, &result->tensor) == 0 &&
         torch.aoti_torch_get_data_ptr(result->tensor, &result->data) == 0;
}

/* Makes the results and binds them. Those that are made are in results[].tensor in any case. */
static bool bind_results(const shim_t* shim, const place_t* place, accrt_call_t* call,
                         given_t* results) {
  for (size_t i = 0; i < shim->results_count; ++i) {
    if (!make_result(shim, &shim->results[i], &results[i]) ||
        !accrt_native_bind_tensor(shim, place, call, shim->inputs_count + i, &results[i],
                                  shim->results[i].dtype))
      return false;
  }
  return true;
}

bool accrt_native_run_bound(const shim_t* shim, accrt_call_t* call) {
  return (shim->is_gpu ? accrt_native_api.call_submit(call, NULL, 0, NULL, 0)
                       : accrt_native_api.call_run(call, ACCRT_TIMEOUT_INFINITE)) == ACCRT_OK;
}

static void delete_tensor(void* tensor) {
  if (tensor != NULL)
    (void)torch.aoti_torch_delete_tensor_object(tensor);
}

/* The kernel owns what is on the stack: arguments go, results come. */
static void put_results(const shim_t* shim, torch_value_t* stack, const given_t* given,
                        const given_t* results) {
  for (size_t i = 0; i < shim->inputs_count; ++i) {
    delete_tensor(given[i].tensor);
    if ((shim->inputs[i].kind & KIND_OPTIONAL) != 0 && stack[i] != 0)
      (void)torch.torch_delete_stable_ivalue((torch_value_t*)(uintptr_t)stack[i]);
  }
  for (size_t i = 0; i < shim->results_count; ++i)
    stack[i] = (torch_value_t)(uintptr_t)results[i].tensor;
}

/* False: nothing has changed, and the stack is as it was. */
static bool run_known(shim_t* shim, torch_value_t* stack) {
  given_t given[MOST_INPUTS], results[MOST_RESULTS];
  sizes_t sizes[MOST_RESULTS];
  place_t place = {0};
  if (!read_given(shim, stack, given) ||
      (shim->is_gpu && !accrt_native_shim_stream(shim, &place.stream)))
    return false;
  lane_t* lane = accrt_native_take_lane(shim, NULL, given, &place, sizes, NULL);
  if (lane == NULL)
    return false;
  accrt_call_t* call = lane->call;
  for (size_t i = 0; i < shim->results_count; ++i) {
    results[i].tensor = NULL;
    results[i].sizes = sizes[i];
  }
  bool has_failed = false;
  bool done = accrt_native_bind_inputs(shim, &place, lane, given) &&
              bind_results(shim, &place, call, results);
  if (done) {
    done = accrt_native_run_bound(shim, call);
    has_failed = !done;
  }
  accrt_native_give_lane(lane, has_failed);
  if (done) {
    put_results(shim, stack, given, results);
    return true;
  }
  for (size_t i = 0; i < shim->results_count; ++i)
    delete_tensor(results[i].tensor);
  return false;
}

/* torch gives a status where Python code raised. Its own function raises anew from here, and Entry
 * gives Python callers their exception back. Nothing is held, and nothing is left to do. */
static void run(shim_t* shim, torch_value_t* stack) {
  if (run_known(shim, stack))
    return;
  accrt_native_forget_noted();
  if (torch.aoti_torch_call_dispatcher(shim->fallback, "", stack) == 0)
    return;
  const char* text = accrt_native_noted_text();
  torch.aoti_torch_check(false, shim->name, "accrt", 0, text[0] != '\0' ? text : shim->name);
}

/* ---- A function for each operator: torch's kernels have no place for data ---- */

static shim_t* shims[MOST_OPERATORS];
static size_t shims_count;

/* clang-format off */
#define KERNEL(n)                                                                   \
  static void kernel_##n(torch_value_t* stack, uint64_t inputs, uint64_t results) { \
    (void)inputs;                                                                   \
    (void)results;                                                                  \
    run(shims[0x##n], stack);                                                       \
  }
#define NAMED(n) kernel_##n,
#define SIXTEEN(F, n)                                                           \
  F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7)               \
  F(n##8) F(n##9) F(n##a) F(n##b) F(n##c) F(n##d) F(n##e) F(n##f)
#define ALL(F)                                                                  \
  SIXTEEN(F, 00) SIXTEEN(F, 01) SIXTEEN(F, 02) SIXTEEN(F, 03)                   \
  SIXTEEN(F, 04) SIXTEEN(F, 05) SIXTEEN(F, 06) SIXTEEN(F, 07)                   \
  SIXTEEN(F, 08) SIXTEEN(F, 09) SIXTEEN(F, 0a) SIXTEEN(F, 0b)                   \
  SIXTEEN(F, 0c) SIXTEEN(F, 0d) SIXTEEN(F, 0e) SIXTEEN(F, 0f)                   \
  SIXTEEN(F, 10) SIXTEEN(F, 11) SIXTEEN(F, 12) SIXTEEN(F, 13)                   \
  SIXTEEN(F, 14) SIXTEEN(F, 15) SIXTEEN(F, 16) SIXTEEN(F, 17)                   \
  SIXTEEN(F, 18) SIXTEEN(F, 19) SIXTEEN(F, 1a) SIXTEEN(F, 1b)                   \
  SIXTEEN(F, 1c) SIXTEEN(F, 1d) SIXTEEN(F, 1e) SIXTEEN(F, 1f)
ALL(KERNEL)
/* clang-format on */
static torch_kernel_fn_t* const kernels[MOST_OPERATORS] = {ALL(NAMED)};

/* ---- What Python code calls ---- */

/* torch_functions(): pairs of the name of a function of torch's, and whether it is needed. */
static PyObject* torch_names(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
#define NAME(name, needed, arguments) #name, needed,
#define FORM(name, needed, arguments) "(si)"
  return Py_BuildValue("[" TORCH_FUNCTIONS(FORM) "(si)]", TORCH_FUNCTIONS(NAME) "aoti_torch_check",
                       1);
#undef FORM
#undef NAME
}

/* connect_torch(addresses): of the functions, in that order; 0: it is not there. */
static PyObject* connect_torch(PyObject* module, PyObject* addresses) {
  (void)module;
  void* found[sizeof torch / sizeof(void*)];
  _Static_assert(sizeof found == sizeof torch, "a table of pointers alone");
  const size_t count = sizeof found / sizeof *found;
  if (!PyList_Check(addresses) || PyList_Size(addresses) != (Py_ssize_t)count) {
    PyErr_SetString(PyExc_TypeError, "connect_torch takes a list of addresses");
    return NULL;
  }
  for (size_t i = 0; i < count; ++i)
    found[i] = PyLong_AsVoidPtr(PyList_GetItem(addresses, (Py_ssize_t)i));
  if (PyErr_Occurred() != NULL)
    return NULL;
  memcpy(&torch, found, sizeof torch);
  Py_RETURN_NONE;
}

/* kernels_left(): for how many Shims there are functions. */
static PyObject* kernels_left(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  return PyLong_FromSize_t(MOST_OPERATORS - shims_count);
}

typedef struct holder {
  PyObject ob_base;
  shim_t* shim;
} holder_t;

static bool read_declared(PyObject* list, size_t most, declared_t* out, size_t* out_count) {
  const Py_ssize_t count = PyTuple_Size(list);
  if (count < 0 || (size_t)count > most) {
    PyErr_SetString(PyExc_ValueError, "more arguments than a Shim takes");
    return false;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    int dtype;
    if (!PyArg_ParseTuple(PyTuple_GetItem(list, i), "iii", &out[i].kind, &out[i].type, &dtype))
      return false;
    out[i].dtype = (accrt_dtype_t)dtype;
  }
  *out_count = (size_t)count;
  return true;
}

static char* copied(const char* text) {
  const size_t size = strlen(text) + 1;
  char* copy = malloc(size);
  return copy != NULL ? memcpy(copy, text, size) : NULL;
}

/* The kernel of the next number is torch's from now on. */
static bool register_kernel(shim_t* shim, const char* space, const char* key) {
  void* library = NULL; /* for as long as the process */
  if (shims_count == MOST_OPERATORS) {
    PyErr_SetString(PyExc_RuntimeError, "there is no kernel left");
    return false;
  }
  shims[shims_count] = shim;
  if (torch.aoti_torch_library_init_impl(space, key, __FILE__, __LINE__, &library) != 0 ||
      torch.aoti_torch_library_impl(library, shim->name, kernels[shims_count]) != 0) {
    PyErr_SetString(PyExc_RuntimeError, "torch does not take the kernel");
    return false;
  }
  ++shims_count;
  return true;
}

static void free_shim(shim_t* shim) {
  if (shim == NULL)
    return;
  free(shim->name);
  free(shim->fallback);
  free(shim);
}

/* Shim(space, name, fallback, key, device, is_capturing, inputs, results): an operator's kernel.
 * is_capturing: cuStreamIsCapturing, or 0 for processors. inputs, results: (kind, torch's type, the
 * library's) of each. */
static PyObject* holder_new(PyTypeObject* type, PyObject* arguments, PyObject* named) {
  const char *space, *name, *fallback, *key;
  int device;
  PyObject *is_capturing, *inputs, *results;
  (void)named;
  if (!PyArg_ParseTuple(arguments, "ssssiO!O!O!", &space, &name, &fallback, &key, &device,
                        &PyLong_Type, &is_capturing, &PyTuple_Type, &inputs, &PyTuple_Type,
                        &results))
    return NULL;
  allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
  holder_t* self = (holder_t*)allocate(type, 0);
  shim_t* shim = self != NULL ? calloc(1, sizeof *shim) : NULL;
  if (shim == NULL) {
    Py_XDECREF(self);
    return self != NULL ? PyErr_NoMemory() : NULL;
  }
  void* const capturing = PyLong_AsVoidPtr(is_capturing);
  memcpy(&shim->is_capturing, &capturing, sizeof capturing);
  shim->is_gpu = capturing != NULL;
  shim->device = device;
  shim->device_index = -1;
  shim->name = copied(name);
  shim->fallback = copied(fallback);
  if (PyErr_Occurred() != NULL || shim->name == NULL || shim->fallback == NULL ||
      pthread_mutex_init(&shim->mutex, NULL) != 0 ||
      !read_declared(inputs, MOST_INPUTS, shim->inputs, &shim->inputs_count) ||
      !read_declared(results, MOST_RESULTS, shim->results, &shim->results_count) ||
      !register_kernel(shim, space, key)) {
    if (PyErr_Occurred() == NULL)
      PyErr_NoMemory();
    free_shim(shim);
    Py_DECREF(self);
    return NULL;
  }
  self->shim = shim;
  return (PyObject*)self;
}

static void holder_free(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  freefunc free_object = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
  free_object(object);
  Py_DECREF(type);
}

static bool read_sizes(PyObject* value, sizes_t* out) {
  out->rank = value == Py_None ? NOTHING : NO_TENSOR;
  if (PyLong_Check(value)) {
    out->shape[0] = PyLong_AsLongLong(value);
  } else if (PyTuple_Check(value)) {
    const Py_ssize_t rank = PyTuple_Size(value);
    if (rank > ACCRT_MAX_RANK)
      return false;
    out->rank = (uint32_t)rank;
    for (Py_ssize_t i = 0; i < rank; ++i)
      out->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(value, i));
  } else if (value != Py_None) {
    return false;
  }
  return PyErr_Occurred() == NULL;
}

static bool read_all_sizes(PyObject* list, size_t count, sizes_t* out) {
  if (PyTuple_Size(list) != (Py_ssize_t)count)
    return false;
  for (size_t i = 0; i < count; ++i) {
    if (!read_sizes(PyTuple_GetItem(list, (Py_ssize_t)i), &out[i]))
      return false;
  }
  return true;
}

/* learn(inputs, results, specs): shapes of inputs (numbers of scalars, None), and those of the
 * results; what the maker is called with for each of these. */
static PyObject* holder_learn(PyObject* object, PyObject* arguments) {
  shim_t* shim = ((const holder_t*)object)->shim;
  PyObject *inputs, *results, *specs = NULL;
  if (!PyArg_ParseTuple(arguments, "O!O!|O!", &PyTuple_Type, &inputs, &PyTuple_Type, &results,
                        &PyTuple_Type, &specs))
    return NULL;
  given_t given[MOST_INPUTS];
  known_shapes_t* fresh = calloc(1, sizeof *fresh);
  if (fresh == NULL)
    return PyErr_NoMemory();
  if (!read_all_sizes(inputs, shim->inputs_count, fresh->inputs) ||
      !read_all_sizes(results, shim->results_count, fresh->results)) {
    PyErr_Clear();
    free(fresh);
    Py_RETURN_FALSE;
  }
  for (size_t i = 0; i < shim->inputs_count; ++i)
    given[i].sizes = fresh->inputs[i];
  Py_XINCREF(specs);
  fresh->specs = specs;
  pthread_mutex_lock(&shim->mutex);
  known_shapes_t* before = fresh;
  if (find_known(shim, given) == NULL) {
    before = shim->known[shim->next_known];
    shim->known[shim->next_known] = fresh;
    shim->next_known = (shim->next_known + 1) % MOST_KNOWN;
    shim->known_count += shim->known_count < MOST_KNOWN ? 1 : 0;
  }
  pthread_mutex_unlock(&shim->mutex);
  if (shim->latest == before)
    shim->latest = NULL;
  PyObject* old_specs = before != NULL ? before->specs : NULL;
  PyObject* old_check = before != NULL ? before->check : NULL;
  free(before);
  Py_XDECREF(old_specs);
  Py_XDECREF(old_check);
  Py_RETURN_TRUE;
}

/* make_with(maker, checker): makes the results of Python's calls, of what `learn` was given; makes
 * a function of a call's arguments that says whether others are as these, or None. It stays as it
 * is where none is given. */
static PyObject* holder_make_with(PyObject* object, PyObject* arguments) {
  shim_t* shim = ((const holder_t*)object)->shim;
  PyObject *maker, *checker = shim->checker;
  if (!PyArg_ParseTuple(arguments, "O|O", &maker, &checker))
    return NULL;
  PyObject* const before[] = {shim->maker, shim->checker};
  Py_INCREF(maker);
  Py_XINCREF(checker);
  shim->maker = maker;
  shim->checker = checker;
  Py_XDECREF(before[0]);
  Py_XDECREF(before[1]);
  Py_RETURN_NONE;
}

/* window(kept, buffer, base, index): memory of the GPU of that index. `kept` lives for ever, as
 * torch's kernels do: one may run while the interpreter ends. */
static PyObject* holder_window(PyObject* object, PyObject* arguments) {
  shim_t* shim = ((const holder_t*)object)->shim;
  PyObject *kept, *buffer;
  unsigned long long base;
  int index;
  if (!PyArg_ParseTuple(arguments, "OO!Ki", &kept, &PyLong_Type, &buffer, &base, &index))
    return NULL;
  void* const handle = PyLong_AsVoidPtr(buffer);
  if (PyErr_Occurred() != NULL)
    return NULL;
  Py_INCREF(kept);
  pthread_mutex_lock(&shim->mutex);
  shim->buffer = handle;
  shim->base = base;
  shim->device_index = index;
  pthread_mutex_unlock(&shim->mutex);
  Py_RETURN_NONE;
}

/* lacks_lane(stream): whether a call on it would find none, and there is a place for one. */
static PyObject* holder_lacks_lane(PyObject* object, PyObject* value) {
  shim_t* shim = ((const holder_t*)object)->shim;
  const void* stream = PyLong_AsVoidPtr(value);
  if (PyErr_Occurred() != NULL)
    return NULL;
  pthread_mutex_lock(&shim->mutex);
  const bool lacks = find_lane(shim, stream) == NULL && shim->lanes_count < MOST_LANES;
  pthread_mutex_unlock(&shim->mutex);
  return PyBool_FromLong(lacks);
}

/* add_lane(kept, call, stream): the address of a call without other users, which `kept` keeps. */
static PyObject* holder_add_lane(PyObject* object, PyObject* arguments) {
  shim_t* shim = ((const holder_t*)object)->shim;
  PyObject *kept, *call, *stream;
  if (!PyArg_ParseTuple(arguments, "OO!O!", &kept, &PyLong_Type, &call, &PyLong_Type, &stream))
    return NULL;
  void* const handles[2] = {PyLong_AsVoidPtr(call), PyLong_AsVoidPtr(stream)};
  if (PyErr_Occurred() != NULL)
    return NULL;
  bound_t* bound = calloc(shim->inputs_count + 1, sizeof *bound); /* for ever, as the lane */
  if (bound == NULL)
    return PyErr_NoMemory();
  pthread_mutex_lock(&shim->mutex);
  if (shim->lanes_count < MOST_LANES) {
    Py_INCREF(kept);
    lane_t* lane = &shim->lanes[shim->lanes_count++];
    lane->bound = bound;
    bound = NULL;
    lane->call = handles[0];
    lane->stream = handles[1];
  }
  pthread_mutex_unlock(&shim->mutex);
  free(bound);
  Py_RETURN_NONE;
}

static PyTypeObject* holder_type;

shim_t* accrt_native_shim_of(PyObject* object) {
  return Py_TYPE(object) == holder_type ? ((const holder_t*)object)->shim : NULL;
}

bool accrt_native_add_shim(PyObject* module) {
  static PyMethodDef functions[] = {
      {"torch_functions", torch_names, METH_NOARGS, "Pairs of a name, and whether it is needed."},
      {"connect_torch", connect_torch, METH_O, "connect_torch(addresses): in that order."},
      {"kernels_left", kernels_left, METH_NOARGS, "For how many Shims there are functions."},
      {NULL, NULL, 0, NULL}};
  static PyMethodDef methods[] = {
      {"learn", holder_learn, METH_VARARGS, "learn(inputs, results, specs): of new shapes."},
      {"make_with", holder_make_with, METH_VARARGS, "make_with(maker, checker): for Python."},
      {"window", holder_window, METH_VARARGS, "window(kept, buffer, base, index)"},
      {"lacks_lane", holder_lacks_lane, METH_O, "lacks_lane(stream): whether one may be added."},
      {"add_lane", holder_add_lane, METH_VARARGS, "add_lane(kept, call, stream)"},
      {NULL, NULL, 0, NULL}};
  static PyType_Slot slots[] = {{Py_tp_new, NATIVE_SLOT(holder_new)},
                                {Py_tp_dealloc, NATIVE_SLOT(holder_free)},
                                {Py_tp_methods, methods},
                                {0, NULL}};
  static PyType_Spec spec = {"accrt._native.Shim", sizeof(holder_t), 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* type = PyType_FromSpec(&spec);
  Py_XINCREF(type);
  holder_type = (PyTypeObject*)type;
  return type != NULL && PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddObject(module, "Shim", type) == 0;
}
