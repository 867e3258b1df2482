/* tools/accx/kernel_probe.c - the process that runs a kernel to check it. It lays each argument
 * between red zones or at the edge of untouchable pages, runs the kernel several times, compares,
 * and writes notes of what it finds. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <ucontext.h>
#include <unistd.h>

#include "array.h"
#include "kernel_device.h"
#include "open.h"
#include "standard.h"
#include "zones.h"

#define ZONE_BYTE 0xA5u
#define OTHER_ZONE_BYTE 0x5Au

/* Where the kernel runs. */
typedef struct accx_place {
  accrt_instance_t* instance;
  accrt_kernel_pack_t* pack;
  accrt_device_t* device;
  accrt_kernel_t* kernel;
} accx_place_t;

typedef struct accx_probe {
  int pipe;
  /* On this thread, which gets the signals of faults; and as --device and --threads say. */
  accx_place_t caller, threads;
  bool remote; /* a device with memory of its own: both are the same */
  accrt_buffer_t* buffers[ACCRT_KERNEL_MAX_PARAMS]; /* there: zones and argument */
  accx_kernel_plan_t plan;
  uint32_t count;      /* of parameters */
  uint32_t case_index; /* of the case that runs */
  accx_zones_t zones[ACCRT_KERNEL_MAX_PARAMS];
  void* content[ACCRT_KERNEL_MAX_PARAMS]; /* what each argument holds before a run */
  void* result[ACCRT_KERNEL_MAX_PARAMS];  /* after the first run */
  accrt_kernel_argument_t arguments[ACCRT_KERNEL_MAX_PARAMS];
  accrt_kernel_tensor_t tensors[ACCRT_KERNEL_MAX_PARAMS];
  uint32_t found; /* findings of this case */
  bool loose;     /* its results differ, as it declares */
  char* failures; /* what was printed, in lines */
  size_t failures_bytes;
} accx_probe_t;

typedef struct accx_lay {
  accx_edge_t edge;
  unsigned char zone_byte;
  bool flipped;  /* other bytes in arguments that are only written */
  bool threaded; /* on threads of the device */
  bool recorded; /* from a recorded list */
  bool nowhere;  /* arguments of 0 bytes have no address */
} accx_lay_t;

/* ---- Notes ---- */

static void send_note(const accx_probe_t* probe, accx_kernel_note_t* note) {
  memcpy(note->with, probe->plan.with, sizeof note->with);
  while (write(probe->pipe, note, sizeof *note) < 0 && errno == EINTR) {
  }
}

static void say(const accx_probe_t* probe, accx_kernel_what_t what, uint32_t number,
                const char* name, const char* text) {
  accx_kernel_note_t note = {.what = what, .number = number};
  strncpy(note.name, name, sizeof note.name - 1);
  strncpy(note.text, text, sizeof note.text - 1);
  send_note(probe, &note);
}

static void find(accx_probe_t* probe, accx_kernel_what_t what, uint32_t index, int64_t byte) {
  accx_kernel_note_t note = {.what = what, .byte = byte};
  note.size_bytes = probe->zones[index].size_bytes;
  strncpy(note.name, probe->plan.values[index].param->name, sizeof note.name - 1);
  send_note(probe, &note);
  ++probe->found;
}

/* The process ends by itself, and not because the kernel ended it. */
static int end(const accx_probe_t* probe, int code) {
  say(probe, ACCX_KERNEL_ENDED, 0, "", "");
  return code;
}

/* The same, with what was printed. The process itself has no standard error. */
static int end_with_failures(const accx_probe_t* probe, int code) {
  if (accx_failures == NULL || fflush(accx_failures) != 0 || probe->failures == NULL)
    return end(probe, code);
  say(probe, ACCX_KERNEL_ENDED, 0, "", probe->failures);
  return code;
}

static bool is_written(const accx_probe_t* probe, uint32_t index) {
  return (probe->plan.values[index].param->access & ACCRT_KERNEL_ACCESS_WRITE) != 0;
}

static bool is_only_written(const accx_probe_t* probe, uint32_t index) {
  return probe->plan.values[index].param->access == ACCRT_KERNEL_ACCESS_WRITE;
}

/* Scratch memory is no result. */
static bool is_result(const accx_probe_t* probe, uint32_t index) {
  return is_written(probe, index) &&
         probe->plan.values[index].param->kind != ACCRT_KERNEL_PARAM_WORKSPACE;
}

static bool has_memory(const accx_probe_t* probe, uint32_t index) {
  return probe->zones[index].base != NULL;
}

/* ---- Faults ---- */

static accx_probe_t* running; /* for the signal handler */

/* True or false where the machine says so; else *out_known is false. */
static bool fault_writes(const void* context, bool* out_known) {
#if defined(__x86_64__)
  const ucontext_t* thread = context;
  *out_known = true;
  return (thread->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  (void)context;
  *out_known = false;
  return false;
#endif
}

/* A fault in the memory of an argument is a finding with a byte. Any other ends the process as it
 * would without this. Only functions that are safe in handlers are called. */
static void take_fault(int number, siginfo_t* info, void* context) {
  bool known;
  const bool writes = fault_writes(context, &known);
  int64_t byte = 0;
  for (uint32_t i = 0; i < running->count; ++i) {
    if (!accx_zones_hold(&running->zones[i], info->si_addr, &byte))
      continue;
    const bool inside = byte >= 0 && (uint64_t)byte < running->zones[i].size_bytes;
    find(running,
         inside   ? ACCX_KERNEL_WRITES_READ
         : !known ? ACCX_KERNEL_REACHES_OUTSIDE
         : writes ? ACCX_KERNEL_WRITES_OUTSIDE
                  : ACCX_KERNEL_READS_OUTSIDE,
         i, byte);
    _exit(end(running, ACCX_DIFFERENT));
  }
  (void)signal(number, SIG_DFL); /* the instruction faults again */
}

static void catch_faults(accx_probe_t* probe) {
  const struct rlimit no_core = {0, 0};
  struct sigaction action = {.sa_sigaction = take_fault, .sa_flags = SA_SIGINFO};
  static const int deadly[] = {SIGFPE, SIGILL, SIGABRT, SIGTRAP};
  running = probe;
  (void)setrlimit(RLIMIT_CORE, &no_core);
  (void)sigaction(SIGSEGV, &action, NULL);
  (void)sigaction(SIGBUS, &action, NULL);
  for (size_t i = 0; i < sizeof deadly / sizeof *deadly; ++i)
    (void)signal(deadly[i], SIG_DFL);
}

/* ---- One run ---- */

static bool lay(accx_probe_t* probe, const accx_lay_t* how) {
  for (uint32_t i = 0; i < probe->count; ++i) {
    accx_zones_t* zones = &probe->zones[i];
    if (!has_memory(probe, i))
      continue;
    /* Each has another byte, so that a copy from one zone to another shows. */
    const unsigned char zone_byte = (unsigned char)(how->zone_byte + 29 * i);
    if (!accx_zones_lay(zones, how->edge, !is_written(probe, i), zone_byte, probe->content[i]))
      return false;
    for (size_t at = 0; how->flipped && is_only_written(probe, i) && at < zones->size_bytes; ++at)
      zones->data[at] = (char)~zones->data[at];
    const bool nowhere = how->nowhere && zones->size_bytes == 0;
    probe->arguments[i].pointer = nowhere || probe->remote ? NULL : zones->data;
    probe->arguments[i].buffer = nowhere ? NULL : probe->buffers[i];
    probe->arguments[i].offset_bytes =
        probe->arguments[i].buffer ? (uint64_t)(zones->data - zones->readable) : 0;
  }
  return true;
}

/* Copies zones and arguments to the device, or from it. */
static accrt_status_t move(accx_probe_t* probe, accrt_stream_t* stream, bool back) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < probe->count && status == ACCRT_OK; ++i) {
    const accx_zones_t* zones = &probe->zones[i];
    const accrt_place_t here = {.pointer = zones->readable}, there = {.buffer = probe->buffers[i]};
    if (probe->buffers[i])
      status = accrt_stream_copy(stream, back ? &there : &here, back ? &here : &there,
                                 (uint64_t)(zones->end - zones->readable));
  }
  return status;
}

static accrt_status_t record(accx_probe_t* probe, const accx_place_t* place,
                             accrt_binding_t* bindings, uint32_t* out_used,
                             accrt_commands_t** out_list) {
  accrt_kernel_argument_t arguments[ACCRT_KERNEL_MAX_PARAMS];
  uint32_t used = 0;
  memcpy(arguments, probe->arguments, sizeof arguments);
  for (uint32_t i = 0; i < probe->count; ++i) {
    if ((!arguments[i].pointer && !arguments[i].buffer) || arguments[i].size_bytes == 0)
      continue;
    bindings[used] = (accrt_binding_t){arguments[i].buffer, arguments[i].pointer,
                                       arguments[i].offset_bytes, arguments[i].size_bytes};
    arguments[i].binding = used++;
    arguments[i].pointer = NULL;
    arguments[i].buffer = NULL;
    arguments[i].offset_bytes = 0;
  }
  *out_used = used;
  accrt_status_t status = accrt_commands_create(place->device, used, out_list);
  if (status == ACCRT_OK)
    status = accrt_commands_dispatch(*out_list, place->kernel, probe->plan.grid, arguments,
                                     probe->count, (uint32_t)sizeof *arguments, NULL, NULL);
  if (status == ACCRT_OK)
    status = accrt_commands_finalize(*out_list);
  return status;
}

static bool first_difference(const void* a, const void* b, size_t size, int64_t* out_byte) {
  const char *left = a, *right = b;
  if (size == 0 || memcmp(left, right, size) == 0)
    return false;
  size_t at = 0;
  while (left[at] == right[at])
    ++at;
  return *out_byte = (int64_t)at, true;
}

static void look_around(accx_probe_t* probe) {
  int64_t byte = 0;
  for (uint32_t i = 0; i < probe->count; ++i) {
    const accx_zones_t* zones = &probe->zones[i];
    if (!has_memory(probe, i))
      continue;
    if (accx_zones_changed(zones, &byte))
      find(probe, ACCX_KERNEL_WRITES_OUTSIDE, i, byte);
    if (!is_written(probe, i) &&
        first_difference(zones->data, probe->content[i], zones->size_bytes, &byte))
      find(probe, ACCX_KERNEL_WRITES_READ, i, byte);
  }
}

/* Waits for what has been enqueued, and gets what it did. */
static accrt_status_t finish(accx_probe_t* probe, accrt_stream_t* stream) {
  accrt_status_t status = accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, 0);
  if (status == ACCRT_OK)
    status = move(probe, stream, true);
  if (status == ACCRT_OK)
    status = accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, 0);
  return status;
}

/* Submits a list twice, as a captured graph is replayed: the second time with memory as it was, but
 * with what the first run has left in the list. */
static accrt_status_t run_recorded(accx_probe_t* probe, const accx_lay_t* how,
                                   const accx_place_t* place, accrt_stream_t* stream,
                                   bool* out_launched) {
  accrt_binding_t bindings[ACCRT_KERNEL_MAX_PARAMS];
  accrt_commands_t* list = NULL;
  uint32_t used = 0;
  accrt_status_t status = record(probe, place, bindings, &used, &list);
  for (int i = 0; i < 2 && status == ACCRT_OK && probe->found == 0; ++i) {
    if (i > 0 && !lay(probe, how))
      status = ACCRT_ERROR_OUT_OF_MEMORY;
    if (i > 0 && status == ACCRT_OK)
      status = move(probe, stream, false);
    if (status == ACCRT_OK)
      status = accrt_stream_submit(stream, list, bindings, used, (uint32_t)sizeof *bindings);
    *out_launched = *out_launched || status == ACCRT_OK;
    if (status == ACCRT_OK)
      status = finish(probe, stream);
    if (status == ACCRT_OK && i == 0)
      look_around(probe);
  }
  accrt_commands_release(list);
  return status;
}

static accrt_status_t run_directly(accx_probe_t* probe, const accx_place_t* place,
                                   accrt_stream_t* stream, bool* out_launched) {
  const accrt_status_t status =
      accrt_stream_launch(stream, place->kernel, probe->plan.grid, probe->arguments, probe->count,
                          (uint32_t)sizeof *probe->arguments);
  *out_launched = status == ACCRT_OK;
  return status == ACCRT_OK ? finish(probe, stream) : status;
}

/* What has become of a run that was begun. A device that failed is of no use to this process. */
static accrt_status_t failed_run(accx_probe_t* probe, accrt_stream_t* stream, accrt_status_t status,
                                 const char** out_message) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  const bool known = accrt_stream_error(stream, &error) == ACCRT_OK && error.status != ACCRT_OK;
  if (known && error.status == ACCRT_ERROR_KERNEL) {
    *out_message = accx_text("%s", error.message);
    return ACCRT_ERROR_KERNEL;
  }
  if (probe->remote) {
    say(probe, ACCX_KERNEL_CRASHES, 0, "", known ? error.message : accx_last_message());
    _exit(end(probe, ACCX_DIFFERENT));
  }
  accx_fail_status(status, "kernel %s", probe->plan.info.name);
  return status;
}

/* Runs the kernel once and waits. ACCRT_ERROR_KERNEL: it returned a code, *out_message is about
 * that. Any other failure is printed. */
static accrt_status_t run(accx_probe_t* probe, const accx_lay_t* how, const char** out_message) {
  const accx_place_t* place = how->threaded ? &probe->threads : &probe->caller;
  accrt_stream_t* stream = NULL;
  say(probe, ACCX_KERNEL_RUN, probe->case_index, "", "");
  if (!lay(probe, how)) {
    accx_fail(ACCX_FAILED, "the pages of the arguments cannot be set: %s", strerror(errno));
    return ACCRT_ERROR_OUT_OF_MEMORY;
  }
  accrt_status_t status = accrt_stream_create(place->device, NULL, &stream);
  if (status == ACCRT_OK)
    status = move(probe, stream, false);
  bool launched = false;
  if (status == ACCRT_OK)
    status = how->recorded ? run_recorded(probe, how, place, stream, &launched)
                           : run_directly(probe, place, stream, &launched);
  if (launched && status != ACCRT_OK)
    status = failed_run(probe, stream, status, out_message);
  else if (status != ACCRT_OK)
    accx_fail_status(status, "kernel %s", probe->plan.info.name);
  accrt_stream_release(stream);
  return status;
}

/* ---- What a run did ---- */

static void keep_results(accx_probe_t* probe) {
  for (uint32_t i = 0; i < probe->count; ++i) {
    if (has_memory(probe, i) && is_result(probe, i))
      memcpy(probe->result[i], probe->zones[i].data, probe->zones[i].size_bytes);
  }
}

/* Compares results with those of the first run. A kernel that does not declare to be deterministic
 * may give others; then nothing is compared any more. */
static void compare(accx_probe_t* probe, accx_kernel_what_t what) {
  const bool exact = (probe->plan.info.traits & ACCRT_KERNEL_TRAIT_DETERMINISTIC) != 0;
  int64_t byte = 0;
  for (uint32_t i = 0; i < probe->count && !probe->loose; ++i) {
    if (!has_memory(probe, i) || !is_result(probe, i) ||
        !first_difference(probe->zones[i].data, probe->result[i], probe->zones[i].size_bytes,
                          &byte))
      continue;
    probe->loose = what == ACCX_KERNEL_CHANGES && !exact;
    if (probe->loose)
      say(probe, ACCX_KERNEL_LOOSE, 0, "", "");
    else
      find(probe, what, i, byte);
  }
}

/* ---- One case ---- */

typedef struct accx_step {
  accx_lay_t lay;
  accx_kernel_what_t changed; /* what another result than the first means; COUNT: it is the first */
} accx_step_t;

#define STEP(edge_, zone, changed_, ...)                                                           \
  { {.edge = (edge_), .zone_byte = (zone), __VA_ARGS__}, (changed_) }
static const accx_step_t plain_steps[] = {
    STEP(ACCX_EDGE_NONE, ZONE_BYTE, ACCX_KERNEL_COUNT, .threaded = false),
    STEP(ACCX_EDGE_NONE, ZONE_BYTE, ACCX_KERNEL_CHANGES, .threaded = false),
    STEP(ACCX_EDGE_NONE, ZONE_BYTE, ACCX_KERNEL_CHANGES, .threaded = true),
    STEP(ACCX_EDGE_AFTER, ZONE_BYTE, ACCX_KERNEL_DEPENDS_OUTSIDE, .threaded = false),
    STEP(ACCX_EDGE_BEFORE, ZONE_BYTE, ACCX_KERNEL_DEPENDS_OUTSIDE, .threaded = false),
    STEP(ACCX_EDGE_NONE, OTHER_ZONE_BYTE, ACCX_KERNEL_DEPENDS_OUTSIDE, .threaded = false),
    STEP(ACCX_EDGE_NONE, ZONE_BYTE, ACCX_KERNEL_LEAVES, .flipped = true),
    STEP(ACCX_EDGE_NONE, ZONE_BYTE, ACCX_KERNEL_CHANGES_RECORDED, .threaded = true,
         .recorded = true),
};
/* With sizes of 0, and with hostile arguments: only what lies outside matters. */
static const accx_step_t edge_steps[] = {
    STEP(ACCX_EDGE_NONE, ZONE_BYTE, ACCX_KERNEL_DONE, .threaded = false),
    STEP(ACCX_EDGE_AFTER, ZONE_BYTE, ACCX_KERNEL_DONE, .threaded = false),
    STEP(ACCX_EDGE_BEFORE, ZONE_BYTE, ACCX_KERNEL_DONE, .threaded = false),
    STEP(ACCX_EDGE_NONE, ZONE_BYTE, ACCX_KERNEL_DONE, .recorded = true, .nowhere = true),
    STEP(ACCX_EDGE_NONE, ZONE_BYTE, ACCX_KERNEL_DONE, .threaded = true, .recorded = true),
};

/* Runs the steps of a case until one finds something. */
static int run_case(accx_probe_t* probe) {
  const bool plain = !probe->plan.zero && !probe->plan.hostile;
  const accx_step_t* steps = plain ? plain_steps : edge_steps;
  const size_t count =
      plain ? sizeof plain_steps / sizeof *plain_steps : sizeof edge_steps / sizeof *edge_steps;
  probe->found = 0;
  for (size_t i = 0; i < count && probe->found == 0; ++i) {
    const char* message = NULL;
    if (probe->remote && steps[i].lay.edge != ACCX_EDGE_NONE)
      continue; /* its pages cannot be set */
    const accrt_status_t status = run(probe, &steps[i].lay, &message);
    if (status != ACCRT_OK && status != ACCRT_ERROR_KERNEL)
      return accx_exit_code(status);
    look_around(probe);
    if (status == ACCRT_ERROR_KERNEL && !probe->plan.hostile) {
      say(probe, ACCX_KERNEL_REFUSES, 0, "", message);
      return ACCX_OK;
    }
    if (steps[i].changed == ACCX_KERNEL_COUNT)
      keep_results(probe);
    else if (steps[i].changed != ACCX_KERNEL_DONE && probe->found == 0)
      compare(probe, steps[i].changed);
  }
  return ACCX_OK;
}

static int fill(accx_probe_t* probe, uint32_t index) {
  const accx_kernel_value_t* value = &probe->plan.values[index];
  const char* what = accx_text("--input %s", value->param->name);
  accx_array_t array;
  const bool bytes = accrt_dtype_bits(value->dtype) < 8 ||
                     (value->dtype >= ACCRT_DTYPE_F8E4M3FN && value->dtype <= ACCRT_DTYPE_F4E2M1);
  const int64_t size = (int64_t)value->size_bytes;
  const accrt_dtype_t dtype = bytes ? ACCRT_DTYPE_U8 : value->dtype;
  int code =
      accx_array_create(dtype, bytes ? 1 : value->rank, bytes ? &size : value->shape, what, &array);
  const bool zeroed = value->param->kind == ACCRT_KERNEL_PARAM_WORKSPACE &&
                      (probe->plan.info.traits & ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE) != 0;
  if (!code)
    code = accx_array_generate(&array, zeroed ? "zeros" : value->pattern,
                               value->seed + UINT64_C(0x5851F42D4C957F2D) * (index + 1), what);
  probe->content[index] = code ? NULL : array.data;
  return code;
}

static int make_buffer(accx_probe_t* probe, uint32_t index) {
  accrt_pool_t* pool = NULL;
  const uint64_t size = probe->zones[index].size_bytes;
  accrt_status_t status = accrt_device_pool(probe->threads.device, 0, &pool);
  if (status == ACCRT_OK) /* more than zones and argument take in any layout */
    status = accrt_buffer_create(pool, probe->zones[index].reserved_bytes - 2 * ACCX_GUARD_BYTES,
                                 NULL, &probe->buffers[index]);
  return status == ACCRT_OK
             ? ACCX_OK
             : accx_fail_status(status, "%s, %llu bytes", probe->plan.values[index].param->name,
                                (unsigned long long)size);
}

static int make_memory(accx_probe_t* probe, uint32_t index) {
  const accx_kernel_value_t* value = &probe->plan.values[index];
  accrt_kernel_argument_t* argument = &probe->arguments[index];
  argument->size_bytes = value->size_bytes;
  if (value->absent)
    return ACCX_OK;
  int code = fill(probe, index);
  probe->result[index] = accx_alloc((size_t)value->size_bytes, 1);
  if (!code && !accx_zones_create((size_t)value->size_bytes, &probe->zones[index]))
    code = accx_fail(ACCX_FAILED, "there is no memory for %s: %s", value->param->name,
                     strerror(errno));
  if (!code && probe->remote)
    code = make_buffer(probe, index);
  if (code || value->param->kind != ACCRT_KERNEL_PARAM_TENSOR)
    return code;
  accrt_kernel_tensor_t* tensor = &probe->tensors[index];
  *tensor = (accrt_kernel_tensor_t){.dtype = value->dtype, .rank = value->rank};
  int64_t stride = 1;
  for (uint32_t d = value->rank; d-- > 0;) {
    tensor->shape[d] = value->shape[d];
    tensor->strides[d] = stride;
    stride *= value->shape[d] > 0 ? value->shape[d] : 1;
  }
  argument->tensor = tensor;
  return ACCX_OK;
}

static int make_arguments(accx_probe_t* probe) {
  int code = ACCX_OK;
  for (uint32_t i = 0; i < probe->count && !code; ++i) {
    const accx_kernel_value_t* value = &probe->plan.values[i];
    probe->arguments[i] = (accrt_kernel_argument_t)ACCRT_KERNEL_ARGUMENT_INIT;
    probe->arguments[i].kind = value->param->kind;
    if (accx_kernel_is_memory(value))
      code = make_memory(probe, i);
    else
      probe->arguments[i].value = value->bits;
  }
  return code;
}

static void free_memory(accx_probe_t* probe) {
  for (uint32_t i = 0; i < probe->count; ++i) {
    accx_zones_free(&probe->zones[i]);
    accrt_buffer_release(probe->buffers[i]);
    probe->buffers[i] = NULL;
    free(probe->content[i]);
    free(probe->result[i]);
    probe->content[i] = probe->result[i] = NULL;
  }
}

/* ---- The pack ---- */

/* A pack from standard input has no path of its own, and is loaded as an image. */
static int load_standard(accx_place_t* place, const char* path) {
  char* image = NULL;
  uint64_t size = 0;
  const int code = accx_kernel_read_file(path, &image, &size);
  const accrt_status_t status =
      code ? ACCRT_OK : accrt_kernel_pack_load(place->instance, image, size, NULL, &place->pack);
  free(image);
  return status == ACCRT_OK ? code : accx_fail_status(status, "%s", path);
}

/* What the system's loader would call no file, or no ELF file. */
static int refuse_others(const char* path, FILE* file) {
  static const unsigned char bundle[] = {0x89, 'A', 'C', 'C', 'X'}, elf[] = {0x7F, 'E', 'L', 'F'};
  enum { MACHINE_AT = 18, MACHINE_CUDA = 190 };
  unsigned char head[20] = {0};
  const size_t got = fread(head, 1, sizeof head, file);
  if (memcmp(head, bundle, sizeof bundle) == 0)
    return accx_fail(ACCX_FAILED,
                     "%s is a bundle: check the pack that its kernels were built as, or in Python "
                     "accrt.Kernel.check",
                     path);
  if (got < sizeof head || memcmp(head, elf, sizeof elf) != 0 || head[MACHINE_AT] == MACHINE_CUDA)
    return accx_fail(ACCX_FAILED,
                     "%s is no shared object of this machine; machine code of a GPU needs --device "
                     "cuda:0",
                     path);
  return ACCX_OK;
}

static int open_pack(accx_place_t* place, const char* path) {
  char whole[PATH_MAX];
  FILE* file = NULL;
  if (accx_standard_path() && strcmp(path, accx_standard_path()) == 0)
    return load_standard(place, path);
  if (!realpath(path, whole))
    return accx_fail(ACCX_FAILED, "%s: %s", path, strerror(errno));
  int code = accx_open_regular(path, 0, &file); /* the system's loader waits at a FIFO */
  if (code)
    return code;
  code = refuse_others(path, file);
  (void)fclose(file);
  if (code)
    return code;
  const accrt_status_t status = accrt_kernel_pack_open(place->instance, whole, &place->pack);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "%s", whole);
}

static int find_kernel(accx_place_t* place, const char* name, uint32_t index, const char* path) {
  uint32_t count = 0;
  accrt_status_t status = accrt_kernel_pack_kernel_count(place->pack, &count);
  if (status == ACCRT_OK && count == 0)
    return accx_fail(ACCX_FAILED, "%s: the pack has no kernels", path);
  if (status == ACCRT_OK)
    status = name ? accrt_kernel_pack_find(place->pack, name, &place->kernel)
                  : accrt_kernel_pack_kernel(place->pack, index, &place->kernel);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "%s", path);
}

static int open_device(accx_place_t* place, const char* name) {
  const accrt_status_t status =
      accrt_instance_device_by_name(place->instance, name, &place->device);
  return status == ACCRT_OK ? ACCX_OK : accx_fail_status(status, "--device");
}

static int open_kernel(accx_place_t* place, const accx_args_t* args, uint32_t index, bool remote) {
  const char* path = args->operands[1];
  int code = remote ? accx_kernel_load_module(args, path, place->device, &place->pack)
                    : open_pack(place, path);
  if (!code)
    code = find_kernel(place, accx_args_value(args, "kernel"), index, path);
  return code;
}

/* A device without threads, whose work is done by the thread that waits. */
static int open_caller(accx_probe_t* probe, const accx_args_t* args, uint32_t index) {
  static const accrt_option_t no_threads = {"host.threads", "0"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &no_threads;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof no_threads;
  if (probe->remote)
    return probe->caller = probe->threads, ACCX_OK;
  const accrt_status_t status = accrt_instance_create(&options, &probe->caller.instance);
  int code = status == ACCRT_OK ? open_device(&probe->caller, "host")
                                : accx_fail_status(status, "cannot start the runtime");
  if (!code)
    code = open_kernel(&probe->caller, args, index, false);
  return code;
}

/* Options for machine code of a device say nothing about a pack with a table. */
static int check_remote(accx_probe_t* probe, const accx_args_t* args) {
  static const char* const options[] = {"param", "block", "shared"};
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  const accrt_status_t status = accrt_device_info(probe->threads.device, &info);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "--device");
  probe->remote = (info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) == 0;
  for (size_t i = 0; i < sizeof options / sizeof *options && !probe->remote; ++i) {
    if (accx_args_has(args, options[i]))
      return accx_fail(ACCX_USAGE,
                       "--%s is for machine code of a device (--device cuda:0); a pack of %s has a "
                       "table, which says it",
                       options[i], info.name);
  }
  return ACCX_OK;
}

static int open_all(accx_probe_t* probe, const accx_args_t* args, uint32_t index) {
  const char* device = accx_args_value(args, "device");
  uint32_t count = 1;
  int code = accx_open_instance(args, &probe->threads.instance);
  if (!code)
    code = open_device(&probe->threads, device ? device : "host");
  if (!code)
    code = check_remote(probe, args);
  if (!code)
    code = open_kernel(&probe->threads, args, index, probe->remote);
  if (!code)
    code = accx_kernel_check_names(args, probe->threads.pack);
  if (!code)
    code = open_caller(probe, args, index);
  probe->plan.info = (accrt_kernel_info_t)ACCRT_KERNEL_INFO_INIT;
  if (code || accrt_kernel_info(probe->caller.kernel, &probe->plan.info) != ACCRT_OK)
    return code;
  if (!accx_args_has(args, "kernel"))
    (void)accrt_kernel_pack_kernel_count(probe->caller.pack, &count);
  say(probe, ACCX_KERNEL_COUNT, count, "", "");
  say(probe, ACCX_KERNEL_NAME, 0, probe->plan.info.name, "");
  return ACCX_OK;
}

static int check_kernel(accx_probe_t* probe, const accx_args_t* args, uint32_t first_case) {
  const accrt_kernel_info_t info = probe->plan.info;
  if (info.kind == ACCRT_KERNEL_KIND_OPERATOR) {
    say(probe, ACCX_KERNEL_NOT_CHECKED, 0, "",
        "it is a host operator, and only kernels are checked");
    return ACCX_OK;
  }
  int code = accx_kernel_plan(args, &info, &probe->plan);
  probe->count = info.param_count;
  if (!code && probe->plan.needs) {
    say(probe, ACCX_KERNEL_NOT_CHECKED, 0, "", probe->plan.needs);
    return ACCX_OK;
  }
  for (uint32_t i = first_case; i < probe->plan.case_count && !code; ++i) {
    probe->case_index = i;
    code = accx_kernel_plan_case(&probe->plan, i);
    if (!code)
      code = make_arguments(probe);
    if (!code)
      code = run_case(probe);
    free_memory(probe);
  }
  return code;
}

int accx_kernel_probe(const accx_args_t* args, uint32_t index, uint32_t first_case, int pipe) {
  static accx_probe_t probe;
  probe = (accx_probe_t){.pipe = pipe};
  accx_failures = open_memstream(&probe.failures, &probe.failures_bytes);
  catch_faults(&probe);
  int code = open_all(&probe, args, index);
  if (!code)
    code = check_kernel(&probe, args, first_case);
  if (!code)
    say(&probe, ACCX_KERNEL_DONE, 0, "", "");
  return end_with_failures(&probe, code); /* nothing is released */
}
