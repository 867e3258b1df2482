/* python/native/torch_direct.c - an operator of torch's, called from Python without torch's
 * dispatcher: where nothing is set up that the dispatcher would ask, and the tensors are plain, it
 * would come to the operator's kernel. Here the same is done at once. Whatever is not known goes to
 * the dispatcher. docs/decisions/torch-kernels-in-c.md has the reasons.
 */
#include <string.h>

#include "python/native/exchange.h"
#include "python/native/torch_shim.h"

enum { MOST_STATES = 4, MOST_PATIENCE = 1023 };
enum { EXCHANGE_CUDA = 2 };

/* What the dispatcher adds to and takes from the keys of all calls of a thread: two sets of keys,
 * both empty unless something is set up. */
typedef struct dispatch_state {
  uint64_t added, removed;
} dispatch_state_t;

/* Functions of torch's and of the C library's, which Python code looked up. */
static struct {
  void* (*find)(void* library, const char* name); /* dlsym */
  void* library;                                  /* libc10 */
  bool (*has_watchers)(void);                     /* profilers are */
  bool (*has_function_mode)(void);
  dispatch_state_t accepted[MOST_STATES];
  size_t accepted_count;
} dispatcher;

/* This thread's, which lies there as long as the thread is. */
static const dispatch_state_t* thread_state(void) {
  static _Thread_local const dispatch_state_t* found;
  if (found == NULL && dispatcher.find != NULL)
    found = dispatcher.find(dispatcher.library, "_ZN3c104impl26raw_local_dispatch_key_setE");
  return found;
}

bool accrt_native_is_quiet(void) {
  const dispatch_state_t* now = thread_state();
  bool is_known = false;
  for (size_t i = 0; now != NULL && i < dispatcher.accepted_count && !is_known; ++i)
    is_known = now->added == dispatcher.accepted[i].added &&
               now->removed == dispatcher.accepted[i].removed;
  return is_known && !dispatcher.has_watchers() && !dispatcher.has_function_mode();
}

bool accrt_native_is_bare(void) {
  const dispatch_state_t* now = thread_state();
  return now != NULL && now->added == 0 && now->removed == 0 && accrt_native_is_quiet();
}

/* ---- Reading the arguments ---- */

/* Where the tensors of a call are: `kind` is DLPack's number; 0: there was none so far. */
typedef struct device {
  int32_t kind;
  int32_t index;
} device_t;

static bool is_same_device(device_t* device, const exchange_tensor_t* lent) {
  if (device->kind == 0)
    *device = (device_t){lent->device_type, lent->device_id};
  return lent->device_type == device->kind && lent->device_id == device->index;
}

static bool is_empty(const sizes_t* sizes) {
  for (uint32_t i = 0; i < sizes->rank; ++i) {
    if (sizes->shape[i] == 0)
      return true;
  }
  return false;
}

static bool read_tensor(PyObject* value, accrt_dtype_t dtype, device_t* device, given_t* out) {
  exchange_tensor_t lent;
  if (accrt_native_borrow(value, &lent) != dtype || dtype == ACCRT_DTYPE_NONE ||
      !is_same_device(device, &lent))
    return false;
  out->sizes.rank = (uint32_t)lent.ndim;
  if (lent.ndim > 0)
    memcpy(out->sizes.shape, lent.shape, (size_t)lent.ndim * sizeof *lent.shape);
  if (lent.strides != NULL && !accrt_native_is_contiguous(&out->sizes, lent.strides))
    return false;
  out->data = lent.data != NULL ? (char*)lent.data + lent.byte_offset : NULL;
  return out->data != NULL || is_empty(&out->sizes);
}

static bool read_input(const declared_t* declared, PyObject* value, device_t* device,
                       given_t* out) {
  out->tensor = NULL;
  out->sizes.rank = NOTHING;
  if (value == Py_None)
    return (declared->kind & KIND_OPTIONAL) != 0;
  if ((declared->kind & KIND_SCALAR) == 0)
    return read_tensor(value, declared->dtype, device, out) && !accrt_native_is_negative(value);
  if (!PyLong_CheckExact(value))
    return false;
  out->sizes.rank = NO_TENSOR;
  out->sizes.shape[0] = PyLong_AsLongLong(value);
  return out->sizes.shape[0] != -1 || PyErr_Occurred() == NULL;
}

static bool read_inputs(const shim_t* shim, PyObject* values, device_t* device, given_t* out) {
  if (PyTuple_Size(values) != (Py_ssize_t)shim->inputs_count)
    return false;
  for (size_t i = 0; i < shim->inputs_count; ++i) {
    if (!read_input(&shim->inputs[i], PyTuple_GetItem(values, (Py_ssize_t)i), device, &out[i]))
      return false;
  }
  return device->kind != 0;
}

/* ---- The results ---- */

/* A new tensor of the wanted sizes, in memory of torch's on that device; NULL: there is none. */
static PyObject* make_result(const shim_t* shim, size_t index, PyObject* specs, device_t device,
                             given_t* result) {
  const sizes_t wanted = result->sizes;
  PyObject* spec = PyTuple_GetItem(specs, (Py_ssize_t)index);
  PyObject* made = spec != NULL ? PyObject_CallObject(shim->maker, spec) : NULL;
  if (made != NULL && read_tensor(made, shim->results[index].dtype, &device, result) &&
      result->sizes.rank == wanted.rank &&
      memcmp(result->sizes.shape, wanted.shape, wanted.rank * sizeof *wanted.shape) == 0)
    return made;
  Py_XDECREF(made);
  return NULL;
}

/* What an operator gives: one tensor, a tuple of them, or None. NULL: they could not be made. */
static PyObject* make_results(const shim_t* shim, PyObject* specs, device_t device,
                              given_t* results) {
  if (shim->results_count == 1)
    return make_result(shim, 0, specs, device, results);
  PyObject* made = shim->results_count > 0 ? PyTuple_New((Py_ssize_t)shim->results_count) : Py_None;
  if (shim->results_count == 0)
    Py_INCREF(made);
  for (size_t i = 0; i < shim->results_count && made != NULL; ++i) {
    PyObject* one = make_result(shim, i, specs, device, &results[i]);
    if (one == NULL || PyTuple_SetItem(made, (Py_ssize_t)i, one) != 0)
      Py_CLEAR(made);
  }
  return made;
}

static bool bind_results(const shim_t* shim, const place_t* place, accrt_call_t* call,
                         const given_t* results) {
  for (size_t i = 0; i < shim->results_count; ++i) {
    if (!accrt_native_bind_tensor(shim, place, call, shim->inputs_count + i, &results[i],
                                  shim->results[i].dtype))
      return false;
  }
  return true;
}

/* ---- The call ---- */

/* Others may run Python meanwhile, as while a kernel runs that torch calls: a GPU whose queue is
 * full makes the caller wait. */
static bool run_unlocked(const shim_t* shim, accrt_call_t* call) {
  PyThreadState* thread = PyEval_SaveThread();
  const bool done = accrt_native_run_bound(shim, call);
  PyEval_RestoreThread(thread);
  return done;
}

/* ---- Arguments as they were before ---- */

/* Where the tensors of a call lie whose arguments may be as those of the latest call were. False:
 * there is no check of those (one was no tensor, for example), or one of these cannot be read. */
static bool read_places(const shim_t* shim, PyObject* values, device_t* device, given_t* out) {
  const known_shapes_t* latest = shim->latest;
  if (latest == NULL || latest->check == NULL || latest->check == Py_None ||
      PyTuple_Size(values) != (Py_ssize_t)shim->inputs_count)
    return false;
  for (size_t i = 0; i < shim->inputs_count; ++i) {
    exchange_tensor_t lent;
    if (accrt_native_borrow(PyTuple_GetItem(values, (Py_ssize_t)i), &lent) == ACCRT_DTYPE_NONE ||
        !is_same_device(device, &lent))
      return false;
    out[i].tensor = NULL;
    out[i].data = lent.data != NULL ? (char*)lent.data + lent.byte_offset : NULL;
    out[i].sizes.rank = latest->inputs[i].rank;
    memcpy(out[i].sizes.shape, latest->inputs[i].shape,
           out[i].sizes.rank * sizeof *out[i].sizes.shape);
  }
  return device->kind != 0;
}

/* Whether the arguments are as those of the latest call were: tensors without a gradient and not
 * negated, of the same types, shapes, strides and device. One call of torch's own check of compiled
 * code's arguments is less than two questions for each tensor. It ends the process if a tensor has
 * no strides (nested, sparse): read_places refuses those before. */
static bool are_like_latest(const shim_t* shim, PyObject* values) {
  const known_shapes_t* latest = shim->latest;
  PyObject* check = latest->check;
  Py_INCREF(check);
  PyObject* same = PyObject_CallObject(check, values);
  if (same == NULL)
    PyErr_Clear();
  Py_DECREF(check);
  Py_XDECREF(same);
  if (same != Py_True || shim->latest != latest)
    return false;
  shim->latest->misses = 0;
  return true;
}

/* Whether a check is to be made of a call's arguments: there is none, or it keeps saying no. The
 * first call may have been of another kind than those that follow (in torch.inference_mode, or of
 * tensors that want a gradient). Between kinds that alternate, few calls make one. */
static bool is_check_due(const shim_t* shim, known_shapes_t* known) {
  if (known == NULL || shim->checker == NULL || known->check == NULL)
    return known != NULL && shim->checker != NULL;
  if (shim->latest != known || ++known->misses <= known->patience)
    return false;
  known->misses = 0;
  known->patience = known->patience < MOST_PATIENCE ? 2 * known->patience + 1 : MOST_PATIENCE;
  return true;
}

/* After a call that was found to be plain: the next one with such arguments is known by `check`.
 * What was seen may be replaced while Python code runs. */
static void learn_check(shim_t* shim, const given_t* given, PyObject* values) {
  known_shapes_t* known = accrt_native_find_known(shim, given);
  if (is_check_due(shim, known)) {
    PyObject* check = PyObject_CallObject(shim->checker, values);
    PyErr_Clear();
    known = accrt_native_find_known(shim, given);
    PyObject* before = check;
    if (known != NULL && check != NULL) {
      before = known->check;
      known->check = check;
    }
    shim->latest = known;
    Py_XDECREF(before);
    return;
  }
  shim->latest = known;
}

/* On a lane that is taken. `results` have their sizes. */
static PyObject* call_on(const shim_t* shim, lane_t* lane, const place_t* place, PyObject* specs,
                         device_t device, const given_t* given, given_t* results) {
  bool has_failed = false;
  PyObject* made = NULL;
  if (specs != NULL && accrt_native_bind_inputs(shim, place, lane, given))
    made = make_results(shim, specs, device, results);
  if (made != NULL && bind_results(shim, place, lane->call, results))
    has_failed = !run_unlocked(shim, lane->call);
  else
    Py_CLEAR(made);
  accrt_native_give_lane(lane, has_failed);
  if (has_failed)
    Py_CLEAR(made);
  return made;
}

/* The call on arguments that were read. known: their shapes, or NULL. */
static PyObject* call_read(shim_t* shim, PyObject* values, const known_shapes_t* known,
                           device_t device, const given_t* given) {
  given_t results[MOST_RESULTS];
  sizes_t sizes[MOST_RESULTS];
  place_t place = {0};
  PyObject* specs = NULL;
  if (shim->maker == NULL || (shim->is_gpu && (device.index != shim->device_index ||
                                               !accrt_native_shim_stream(shim, &place.stream))))
    return NULL;
  lane_t* lane = accrt_native_take_lane(shim, known, given, &place, sizes, &specs);
  if (lane == NULL)
    return NULL;
  for (size_t i = 0; i < shim->results_count; ++i)
    results[i].sizes = sizes[i];
  PyObject* made = call_on(shim, lane, &place, specs, device, given, results);
  Py_XDECREF(specs);
  if (made != NULL && known == NULL)
    learn_check(shim, given, values);
  return made;
}

PyObject* accrt_native_call_again(PyObject* const shims[2], PyObject* values) {
  given_t given[MOST_INPUTS];
  for (size_t i = 0; i < 2; ++i) {
    device_t device = {0};
    shim_t* shim = accrt_native_shim_of(shims[i]);
    if (shim != NULL && read_places(shim, values, &device, given) && are_like_latest(shim, values))
      return call_read(shim, values, shim->latest, device, given);
  }
  return NULL;
}

PyObject* accrt_native_call_directly(PyObject* const shims[2], PyObject* values) {
  given_t given[MOST_INPUTS];
  device_t device = {0};
  shim_t* shim = accrt_native_shim_of(shims[0]);
  if (shim == NULL || !read_inputs(shim, values, &device, given))
    return NULL;
  if (device.kind != EXCHANGE_CPU)
    shim = device.kind == EXCHANGE_CUDA ? accrt_native_shim_of(shims[1]) : NULL;
  return shim != NULL ? call_read(shim, values, NULL, device, given) : NULL;
}

/* ---- What Python code calls ---- */

/* connect_dispatcher(dlsym, library, has_watchers, has_function_mode): addresses; library: what
 * dlopen gave for libc10. */
static PyObject* connect_dispatcher(PyObject* module, PyObject* arguments) {
  (void)module;
  unsigned long long all[4];
  if (!PyArg_ParseTuple(arguments, "KKKK", &all[0], &all[1], &all[2], &all[3]))
    return NULL;
  memcpy(&dispatcher.find, &all[0], sizeof dispatcher.find);
  dispatcher.library = (void*)(uintptr_t)all[1];
  memcpy(&dispatcher.has_watchers, &all[2], sizeof dispatcher.has_watchers);
  memcpy(&dispatcher.has_function_mode, &all[3], sizeof dispatcher.has_function_mode);
  Py_RETURN_NONE;
}

/* dispatch_state(): (added, removed) of this thread; None: it is not to be had. */
static PyObject* dispatch_state(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  const dispatch_state_t* now = thread_state();
  if (now == NULL)
    Py_RETURN_NONE;
  return Py_BuildValue("(KK)", (unsigned long long)now->added, (unsigned long long)now->removed);
}

/* accept_states(*pairs): under these and no others is an operator called directly. */
static PyObject* accept_states(PyObject* module, PyObject* pairs) {
  (void)module;
  const Py_ssize_t count = PyTuple_Size(pairs);
  dispatcher.accepted_count = 0;
  for (Py_ssize_t i = 0; i < count && i < MOST_STATES; ++i) {
    unsigned long long added, removed;
    if (!PyArg_ParseTuple(PyTuple_GetItem(pairs, i), "KK", &added, &removed))
      return NULL;
    dispatcher.accepted[dispatcher.accepted_count++] = (dispatch_state_t){added, removed};
  }
  Py_RETURN_NONE;
}

/* calls_are_direct(): in this thread, as it is now. */
static PyObject* calls_are_direct(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  return PyBool_FromLong(accrt_native_is_quiet());
}

bool accrt_native_add_direct(PyObject* module) {
  static PyMethodDef functions[] = {
      {"connect_dispatcher", connect_dispatcher, METH_VARARGS,
       "connect_dispatcher(dlsym, library, has_watchers, has_function_mode)"},
      {"dispatch_state", dispatch_state, METH_NOARGS, "(added, removed) of this thread, or None."},
      {"accept_states", accept_states, METH_VARARGS, "accept_states(*pairs): calls are direct."},
      {"calls_are_direct", calls_are_direct, METH_NOARGS, "Whether they may be, in this thread."},
      {NULL, NULL, 0, NULL}};
  return PyModule_AddFunctions(module, functions) == 0;
}
