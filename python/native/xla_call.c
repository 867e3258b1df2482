/* python/native/xla_call.c - what XLA calls for a bundle's function (jax.ffi): arguments and
 * results are read from XLA's frame and bound where they lie, and the function is run on the host
 * or enqueued on XLA's CUDA stream. python/accrt/jax is the Python side, and
 * docs/decisions/jax-functions.md has the reasons.
 *
 * XLA calls without the interpreter's lock, from any thread, and no Python code runs here. A
 * function that XLA may call lives until the process ends: compiled code has its number alone.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "python/native/native.h"
#include "python/native/xla_functions.h"

enum { MOST_ARGUMENTS = 62 };
enum { INPUT_READ = 0, INPUT_SCALAR = 1, INPUT_WRITTEN = 2 };

/* A call of a session of its own. One thread has it at a time. */
typedef struct lane {
  accrt_session_t* session;
  accrt_call_t* call;
  void* stream;
  struct lane* next;
} lane_t;

/* A program on a device, and its lanes that no thread has. */
typedef struct place {
  char device[32];
  accrt_program_t* program;
  accrt_device_t* device_handle;
  accrt_buffer_t* window; /* a GPU's memory from `base` on */
  uint64_t base;
  lane_t* idle;
  struct place* next;
} place_t;

typedef struct function {
  int64_t number;
  char* name;
  char* where; /* for messages */
  accrt_instance_t* instance;
  accrt_bundle_t* bundle;
  size_t inputs_count, results_count;
  uint8_t kinds[MOST_ARGUMENTS];
  bool is_fixed; /* the places are all that there are */
  pthread_mutex_t mutex;
  place_t* places; /* what follows each and is in it is under the mutex */
  struct function* next;
} function_t;

static pthread_mutex_t functions_mutex = PTHREAD_MUTEX_INITIALIZER;
static function_t* functions; /* those that are there stay as they are */

/* One call: what XLA has given, and what went wrong. */
typedef struct run {
  const xla_frame_t* frame;
  function_t* function;
  place_t* place;
  lane_t* lane;
  accrt_buffer_t* window;
  uint64_t base;
  const int64_t* numbers; /* the attribute: the function, what is given, its scalars */
  size_t numbers_count;
  bool is_gpu;
  int32_t code;
  char text[768];
} run_t;

/* ---- What goes wrong ---- */

static bool fail(run_t* run, int32_t code, const char* text) {
  run->code = code;
  (void)snprintf(run->text, sizeof run->text, "accrt: %s",
                 text[0] != '\0' ? text : "the call failed");
  return false;
}

static int32_t code_of(accrt_status_t status) {
  switch (status) {
  case ACCRT_ERROR_INVALID_ARGUMENT:
  case ACCRT_ERROR_SHAPE_MISMATCH:
  case ACCRT_ERROR_TYPE_MISMATCH:
  case ACCRT_ERROR_OUT_OF_RANGE:
    return XLA_INVALID_ARGUMENT;
  case ACCRT_ERROR_NOT_FOUND:
  case ACCRT_ERROR_NO_VARIANT:
    return XLA_NOT_FOUND;
  case ACCRT_ERROR_UNTRUSTED:
  case ACCRT_ERROR_PERMISSION_DENIED:
    return XLA_PERMISSION_DENIED;
  case ACCRT_ERROR_OUT_OF_MEMORY:
  case ACCRT_ERROR_OUT_OF_DEVICE_MEMORY:
    return XLA_RESOURCE_EXHAUSTED;
  case ACCRT_ERROR_CANCELLED:
    return XLA_CANCELLED;
  case ACCRT_ERROR_UNSUPPORTED:
    return XLA_UNIMPLEMENTED;
  default:
    return XLA_INTERNAL;
  }
}

/* False, with the library's record, unless the status is ACCRT_OK. */
static bool is_fine(run_t* run, accrt_status_t status) {
  if (status == ACCRT_OK)
    return true;
  accrt_error_t error = ACCRT_ERROR_INIT;
  char text[sizeof run->text - 16];
  if (accrt_native_api.last_error(&error) != ACCRT_OK || error.status != status)
    error.message[0] = '\0';
  (void)snprintf(text, sizeof text, "%.160s: %s (%s)", run->function->where, error.message,
                 accrt_native_api.status_name(status));
  return fail(run, code_of(status), text);
}

static xla_error_t* error_of(const run_t* run) {
  xla_error_args_t args = {sizeof args, NULL, run->text, run->code};
  return run->frame->api->error_create(&args);
}

/* What one of XLA's own functions gave is not needed: what it says is said here. */
static bool is_given(const run_t* run, xla_error_t* error) {
  if (error == NULL)
    return true;
  xla_error_destroy_args_t args = {sizeof args, NULL, error};
  run->frame->api->error_destroy(&args);
  return false;
}

/* ---- The function and its place ---- */

static function_t* find_locked(int64_t number) {
  function_t* found = functions;
  while (found != NULL && found->number != number)
    found = found->next;
  return found;
}

static function_t* find_function(int64_t number) {
  pthread_mutex_lock(&functions_mutex);
  function_t* found = find_locked(number);
  pthread_mutex_unlock(&functions_mutex);
  return found;
}

static bool read_attribute(run_t* run) {
  const xla_attributes_t* given = &run->frame->attributes;
  const xla_array_t* array = given->count == 1 ? given->values[0] : NULL;
  if (array == NULL || given->kinds[0] != XLA_ATTR_ARRAY || array->type != XLA_S64 ||
      array->count < 2)
    return fail(run, XLA_INVALID_ARGUMENT, "the call was not made by accrt.jax of this version");
  run->numbers = array->data;
  run->numbers_count = array->count;
  run->function = find_function(run->numbers[0]);
  if (run->function == NULL)
    return fail(run, XLA_FAILED_PRECONDITION,
                "the function is not there in this process: what was exported or loaded needs "
                "accrt.jax.function(...) of the same bundle and function first");
  return true;
}

static bool find_device(run_t* run, char* out_name, size_t size) {
  const xla_api_t* api = run->frame->api;
  xla_ordinal_args_t args = {sizeof args, NULL, run->frame->context, 0};
  if (!run->is_gpu) {
    (void)snprintf(out_name, size, "host:0");
    return true;
  }
  if (api->struct_size < sizeof *api || !is_given(run, api->ordinal_get(&args)))
    return fail(run, XLA_UNIMPLEMENTED, "this jaxlib does not say which GPU a call is for");
  (void)snprintf(out_name, size, "cuda:%d", args.ordinal);
  return true;
}

static void end_place(place_t* place) {
  accrt_native_api.program_release(place->program);
  accrt_native_api.device_release(place->device_handle);
  free(place);
}

/* A program on the device, which the first call there makes. */
static bool make_place(run_t* run, const char* device) {
  function_t* function = run->function;
  char text[320];
  if (function->is_fixed) {
    (void)snprintf(text, sizeof text,
                   "%.120s: the program is on %s, and was called on %s: give the bundle instead, "
                   "to have one on each device",
                   function->where, function->places->device, device);
    return fail(run, XLA_INVALID_ARGUMENT, text);
  }
  place_t* place = calloc(1, sizeof *place);
  if (place == NULL)
    return fail(run, XLA_RESOURCE_EXHAUSTED, "there is no memory for a program");
  (void)snprintf(place->device, sizeof place->device, "%s", device);
  if (!is_fine(run, accrt_native_api.instance_device_by_name(function->instance, device,
                                                             &place->device_handle)) ||
      !is_fine(run, accrt_native_api.program_create(place->device_handle, function->bundle, NULL,
                                                    &place->program))) {
    end_place(place);
    return false;
  }
  place->next = function->places;
  function->places = place;
  return true;
}

static place_t* find_place(const function_t* function, const char* device) {
  place_t* found = function->places;
  while (found != NULL && strcmp(found->device, device) != 0)
    found = found->next;
  return found;
}

/* ---- Lanes ---- */

static void end_lane(lane_t* lane) {
  if (lane == NULL)
    return;
  accrt_native_api.call_release(lane->call);
  accrt_native_api.session_release(lane->session);
  free(lane);
}

static lane_t* make_lane(run_t* run, const place_t* place, void* native) {
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  accrt_stream_t* stream = NULL;
  lane_t* lane = calloc(1, sizeof *lane);
  if (lane == NULL) {
    (void)fail(run, XLA_RESOURCE_EXHAUSTED, "there is no memory for a session");
    return NULL;
  }
  bool is_made = !run->is_gpu ||
                 is_fine(run, accrt_native_api.stream_wrap(place->device_handle, native, &stream));
  options.stream = stream;
  is_made =
      is_made &&
      is_fine(run, accrt_native_api.session_create(place->program, &options, &lane->session)) &&
      is_fine(run, accrt_native_api.call_create(lane->session, run->function->name, &lane->call));
  accrt_native_api.stream_release(stream); /* the session has it */
  lane->stream = native;
  if (is_made)
    return lane;
  end_lane(lane);
  return NULL;
}

static lane_t* take_idle(place_t* place, const void* stream) {
  for (lane_t** at = &place->idle; *at != NULL; at = &(*at)->next) {
    lane_t* found = *at;
    if (found->stream != stream)
      continue;
    *at = found->next;
    return found;
  }
  return NULL;
}

/* A lane is this call's alone until it is given back. */
static bool take_lane(run_t* run) {
  char device[32];
  xla_stream_args_t args = {sizeof args, NULL, run->frame->context, NULL};
  if (!find_device(run, device, sizeof device))
    return false;
  if (run->is_gpu && !is_given(run, run->frame->api->stream_get(&args)))
    return fail(run, XLA_INTERNAL, "XLA gives no stream");
  pthread_mutex_lock(&run->function->mutex);
  run->place = find_place(run->function, device);
  if (run->place == NULL && make_place(run, device))
    run->place = find_place(run->function, device);
  if (run->place != NULL)
    run->lane = take_idle(run->place, args.stream);
  pthread_mutex_unlock(&run->function->mutex);
  if (run->place != NULL && run->lane == NULL)
    run->lane = make_lane(run, run->place, args.stream);
  return run->lane != NULL;
}

static void give_lane(run_t* run, bool has_failed) {
  if (has_failed) { /* the next call begins anew */
    end_lane(run->lane);
    return;
  }
  pthread_mutex_lock(&run->function->mutex);
  run->lane->next = run->place->idle;
  run->place->idle = run->lane;
  pthread_mutex_unlock(&run->function->mutex);
}

/* ---- Arguments ---- */

static bool is_empty(const xla_buffer_t* buffer) {
  for (int64_t i = 0; i < buffer->rank; ++i) {
    if (buffer->dims[i] == 0)
      return true;
  }
  return false;
}

static accrt_dtype_t dtype_of(int32_t type) {
  switch (type) {
#define XLA_TYPE_CASE(name, number, ours)                                                          \
  case XLA_##name:                                                                                 \
    return ACCRT_DTYPE_##ours;
    XLA_TYPES(XLA_TYPE_CASE)
#undef XLA_TYPE_CASE
  default:
    return ACCRT_DTYPE_NONE;
  }
}

static bool bind(run_t* run, uint32_t index, const xla_buffer_t* buffer) {
  accrt_tensor_t tensor = {0};
  tensor.dtype = dtype_of(buffer->type);
  if (tensor.dtype == ACCRT_DTYPE_NONE || buffer->rank < 0 || buffer->rank > ACCRT_MAX_RANK)
    return fail(run, XLA_INVALID_ARGUMENT, "a tensor's type or number of dimensions is not known");
  tensor.rank = (uint32_t)buffer->rank;
  tensor.shape = buffer->dims;
  tensor.data = buffer->data;
  if (run->is_gpu) {
    tensor.data = NULL;
    tensor.buffer = run->window;
    tensor.offset_bytes = is_empty(buffer) ? 0 : (uint64_t)(uintptr_t)buffer->data - run->base;
  }
  return is_fine(run, accrt_native_api.call_set_tensor(run->lane->call, index, &tensor));
}

static bool is_alike(const xla_buffer_t* a, const xla_buffer_t* b) {
  return a->type == b->type && a->rank == b->rank && a->rank >= 0 &&
         (a->rank == 0 || memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0);
}

/* An input that the function writes: XLA gives the memory of a further result, which has its value
 * already where XLA could share the two. */
static bool bind_written(run_t* run, uint32_t index, const xla_buffer_t* given,
                         const xla_buffer_t* written) {
  if (!is_alike(given, written)) /* XLA's program may be of an untrusted file */
    return fail(run, XLA_INVALID_ARGUMENT,
                "a written input and its result differ in type or shape");
  if (given->data != written->data && !is_empty(given)) {
    uint64_t count = accrt_native_api.dtype_bits(dtype_of(given->type)) / 8;
    if (run->is_gpu)
      return fail(run, XLA_INTERNAL, "XLA did not put a written input where its result is");
    for (int64_t i = 0; i < given->rank; ++i)
      count *= (uint64_t)given->dims[i]; /* it has as many bytes in its memory */
    memcpy(written->data, given->data, count);
  }
  return bind(run, index, written);
}

static bool bind_inputs(run_t* run) {
  const function_t* function = run->function;
  const xla_values_t *given = &run->frame->arguments, *made = &run->frame->results;
  size_t argument = 0, written = function->results_count, number = 2;
  for (uint32_t i = 0; i < function->inputs_count; ++i) {
    const bool is_there = ((uint64_t)run->numbers[1] >> i & 1) != 0;
    bool is_set;
    if (!is_there) {
      is_set = is_fine(run, accrt_native_api.call_set_tensor(run->lane->call, i, NULL));
    } else if (function->kinds[i] == INPUT_SCALAR) {
      is_set = number < run->numbers_count &&
               is_fine(run, accrt_native_api.call_set_scalar(run->lane->call, i,
                                                             run->numbers[number++]));
    } else if (argument >= (size_t)given->count) {
      is_set = false;
    } else if (function->kinds[i] == INPUT_WRITTEN) {
      is_set = written < (size_t)made->count &&
               bind_written(run, i, given->values[argument], made->values[written]);
      ++argument;
      ++written;
    } else {
      is_set = bind(run, i, given->values[argument++]);
    }
    if (!is_set && run->text[0] == '\0')
      return fail(run, XLA_INVALID_ARGUMENT, "the call has fewer arguments than the function");
    if (!is_set)
      return false;
  }
  if (argument < (size_t)given->count || written < (size_t)made->count ||
      number < run->numbers_count)
    return fail(run, XLA_INVALID_ARGUMENT, "the call has more values than the function");
  return true;
}

static bool bind_all(run_t* run) {
  const size_t count = run->function->results_count;
  const xla_values_t* made = &run->frame->results;
  if ((size_t)made->count < count)
    return fail(run, XLA_INVALID_ARGUMENT, "the call has fewer results than the function");
  if (!bind_inputs(run))
    return false;
  for (size_t i = 0; i < count; ++i) {
    if (!bind(run, (uint32_t)(run->function->inputs_count + i), made->values[i]))
      return false;
  }
  return true;
}

/* ---- The memory of a GPU ---- */

static uint64_t lowest(const xla_values_t* values, uint64_t so_far) {
  for (int64_t i = 0; i < values->count; ++i) {
    const xla_buffer_t* buffer = values->values[i];
    const uint64_t address = (uint64_t)(uintptr_t)buffer->data;
    if (!is_empty(buffer) && address < so_far)
      so_far = address;
  }
  return so_far;
}

/* A buffer in which every argument is at an offset: it reserves and maps nothing. Calls that are
 * bound to an earlier one keep it. */
static bool find_window(run_t* run, bool* out_is_empty) {
  const uint64_t reach = UINT64_C(1) << 57;
  place_t* place = run->place;
  const uint64_t base = lowest(&run->frame->arguments, lowest(&run->frame->results, UINT64_MAX));
  bool is_there = true;
  *out_is_empty = base == UINT64_MAX;
  if (*out_is_empty)
    return true;
  pthread_mutex_lock(&run->function->mutex);
  if (place->window == NULL || base < place->base) {
    accrt_buffer_t* window = NULL;
    is_there =
        is_fine(run, accrt_native_api.buffer_import(place->device_handle, (void*)(uintptr_t)base,
                                                    reach, NULL, NULL, &window));
    if (is_there) {
      accrt_native_api.buffer_release(place->window);
      place->window = window;
      place->base = base;
    }
  }
  if (is_there) {
    run->window = accrt_native_api.buffer_retain(place->window);
    run->base = place->base;
  }
  pthread_mutex_unlock(&run->function->mutex);
  return is_there;
}

/* ---- The call ---- */

static bool run_bound(run_t* run) {
  bool is_nothing = false;
  if (run->is_gpu && !find_window(run, &is_nothing))
    return false;
  if (is_nothing)
    return true;
  if (!bind_all(run))
    return false;
  accrt_call_t* call = run->lane->call;
  return is_fine(run, run->is_gpu ? accrt_native_api.call_submit(call, NULL, 0, NULL, 0)
                                  : accrt_native_api.call_run(call, ACCRT_TIMEOUT_INFINITE));
}

/* XLA asks what the handler was made for. */
static bool is_asked(xla_frame_t* frame, int minor) {
  const xla_extension_t* extension = frame->extensions;
  if (extension == NULL || extension->type != XLA_EXTENSION_METADATA)
    return false;
  xla_metadata_t* metadata = ((const xla_metadata_extension_t*)frame->extensions)->metadata;
  metadata->version.major = XLA_MAJOR;
  metadata->version.minor = minor;
  return true;
}

static int xla_minor; /* of the jaxlib that is there: what is used has been the same since 0 */

static xla_error_t* call_function(xla_frame_t* frame, bool is_gpu) {
  if (is_asked(frame, xla_minor))
    return NULL;
  run_t run = {.frame = frame, .is_gpu = is_gpu};
  if (frame->stage != XLA_STAGE_EXECUTE)
    return NULL;
  if (!read_attribute(&run) || !take_lane(&run))
    return error_of(&run);
  const bool is_done = run_bound(&run);
  give_lane(&run, !is_done);
  accrt_native_api.buffer_release(run.window);
  return is_done ? NULL : error_of(&run);
}

static xla_error_t* call_on_host(xla_frame_t* frame) {
  return call_function(frame, false);
}

static xla_error_t* call_on_gpu(xla_frame_t* frame) {
  return call_function(frame, true);
}

/* ---- What Python code calls ---- */

/* xla_handlers(minor): addresses of what XLA calls on the host and on GPUs. */
static PyObject* xla_handlers(PyObject* module, PyObject* arguments) {
  xla_handler_t* const both[2] = {call_on_host, call_on_gpu};
  (void)module;
  if (!PyArg_ParseTuple(arguments, "i", &xla_minor))
    return NULL;
  return Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)both[0],
                       (unsigned long long)(uintptr_t)both[1]);
}

static char* copied(const char* text) {
  const size_t size = strlen(text) + 1;
  char* copy = malloc(size);
  return copy != NULL ? memcpy(copy, text, size) : NULL;
}

static void end_function(function_t* function) {
  if (function == NULL)
    return;
  free(function->name);
  free(function->where);
  free(function);
}

/* The program that is the only one. */
static bool fix_place(function_t* function, void* program, void* device, const char* name) {
  place_t* place = program != NULL ? calloc(1, sizeof *place) : NULL;
  if (place == NULL)
    return program == NULL;
  (void)snprintf(place->device, sizeof place->device, "%s", name);
  place->program = accrt_native_api.program_retain(program);
  place->device_handle = accrt_native_api.device_retain(device);
  function->places = place;
  function->is_fixed = true;
  return true;
}

/* Puts it where XLA's calls find it, under the next number that is free. */
static void publish(function_t* function) {
  pthread_mutex_lock(&functions_mutex);
  while (find_locked(function->number) != NULL)
    ++function->number;
  function->next = functions;
  functions = function;
  pthread_mutex_unlock(&functions_mutex);
}

/* xla_function(number, name, where, instance, bundle, program, device, device's name, kinds,
 * results): its number, which is the next free one from that on. program, device: 0, or the only
 * ones. kinds: a byte for each input. */
static PyObject* xla_function(PyObject* module, PyObject* arguments) {
  const char *name, *where, *device_name, *kinds;
  long long number;
  unsigned long long instance, bundle, program, device;
  Py_ssize_t inputs_count, results_count;
  (void)module;
  if (!PyArg_ParseTuple(arguments, "LssKKKKsy#n", &number, &name, &where, &instance, &bundle,
                        &program, &device, &device_name, &kinds, &inputs_count, &results_count))
    return NULL;
  if (inputs_count > MOST_ARGUMENTS || results_count < 0) {
    PyErr_Format(PyExc_ValueError, "%s: more than %d inputs", where, MOST_ARGUMENTS);
    return NULL;
  }
  function_t* function = calloc(1, sizeof *function);
  if (function == NULL)
    return PyErr_NoMemory();
  function->number = number;
  function->inputs_count = (size_t)inputs_count;
  function->results_count = (size_t)results_count;
  memcpy(function->kinds, kinds, (size_t)inputs_count);
  function->name = copied(name);
  function->where = copied(where);
  if (function->name == NULL || function->where == NULL ||
      pthread_mutex_init(&function->mutex, NULL) != 0 ||
      !fix_place(function, (void*)(uintptr_t)program, (void*)(uintptr_t)device, device_name)) {
    end_function(function);
    return PyErr_NoMemory();
  }
  function->instance = accrt_native_api.instance_retain((void*)(uintptr_t)instance);
  function->bundle = accrt_native_api.bundle_retain((void*)(uintptr_t)bundle);
  publish(function);
  return PyLong_FromLongLong(function->number);
}

bool accrt_native_add_xla(PyObject* module) {
  static PyMethodDef functions_of_module[] = {
      {"xla_handlers", xla_handlers, METH_VARARGS, "xla_handlers(minor): two addresses."},
      {"xla_function", xla_function, METH_VARARGS, "xla_function(number, ...): its number."},
      {NULL, NULL, 0, NULL}};
  return PyModule_AddFunctions(module, functions_of_module) == 0;
}
