/* runtime/drivers/null/null.c - the null driver: the smallest honest driver, to be cloned.
 *
 * One device named "null" whose memory is host memory and whose work runs on the thread that
 * submits it, before the call returns. Everything that docs/driver-guide.md calls mandatory is
 * here, in the order of the table, and nothing else, so that a new driver can start from a copy:
 * rename it, give it a device, and replace the bodies one after another while the conformance suite
 * keeps passing.
 *
 * It may include public headers only and calls no function of the library: what it needs comes
 * through the environment, so it builds outside the tree and links with nothing:
 *
 *   cc -std=c11 -shared -fPIC -fvisibility=hidden -o libaccrt_null.so null.c -I<prefix>/include -lm
 *
 * Inside the library the exported query has another name, so that two drivers can be linked
 * together.
 */
#ifndef _GNU_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#endif
#include <fenv.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "accrt/memory.h"
#include "accrt/sys/driver.h"

#define MEMORY_ALIGNMENT 256u
#define MESSAGE_BYTES 256u
#define FILL_BYTES UINT64_C(65536) /* a multiple of every pattern's */

/* ---- Objects. The runtime sees only pointers to them: a driver defines what they are. ---- */

/* What the runtime lends is valid until close: keep it, and get all memory from its allocator. */
struct accrt_driver {
  const accrt_driver_environment_t* environment;
};

struct accrt_driver_device {
  accrt_driver_t* driver;
};

/* A queue that runs everything at once has nothing in it; what it keeps is its failure. */
struct accrt_driver_queue {
  accrt_driver_device_t* device;
  accrt_error_t failure; /* status ACCRT_OK: none */
  atomic_uint cancelled; /* 1 from queue_cancel to queue_reset; another thread may set it */
};

/* A list: the commands, copied. What they point to the runtime keeps alive as long as the list. */
struct accrt_driver_list {
  accrt_driver_device_t* device;
  accrt_driver_command_t* commands;
  uint32_t command_count;
};

/* ---- Helpers ---- */

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Zeroed memory of the runtime's allocator, or NULL with an error recorded. */
static void* allocate(const accrt_driver_environment_t* environment, size_t size_bytes,
                      const char* operation) {
  void* pointer = environment->allocator->allocate(environment->allocator->self, size_bytes, 16);
  if (pointer == NULL) {
    char message[128];
    snprintf(message, sizeof message, "could not allocate %zu bytes of host memory", size_bytes);
    environment->fail(environment, ACCRT_ERROR_OUT_OF_MEMORY, 0, NULL, operation, message);
    return NULL;
  }
  memset(pointer, 0, size_bytes);
  return pointer;
}

static void deallocate(const accrt_driver_environment_t* environment, void* pointer,
                       size_t size_bytes) {
  environment->allocator->deallocate(environment->allocator->self, pointer, size_bytes, 16);
}

/* A later runtime may know more kinds of commands. A driver refuses those that it does not know,
 * before anything runs: skipped work would look like work that succeeded. */
static int is_known(uint32_t opcode) {
  return opcode >= ACCRT_DRIVER_COMMAND_DISPATCH && opcode <= ACCRT_DRIVER_COMMAND_MARKER;
}

static accrt_status_t refuse_kind(const accrt_driver_environment_t* environment, uint32_t opcode,
                                  const char* operation) {
  char message[96];
  snprintf(message, sizeof message, "the null driver has no commands of kind %" PRIu32 " here",
           opcode);
  return environment->fail(environment, ACCRT_ERROR_UNSUPPORTED, 0, NULL, operation, message);
}

/* ---- Driver ---- */

static accrt_status_t open_driver(const accrt_driver_environment_t* environment,
                                  accrt_driver_t** out_driver) {
  *out_driver = NULL;
  accrt_driver_t* driver = allocate(environment, sizeof *driver, "null.open");
  if (driver == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  driver->environment = environment;
  *out_driver = driver;
  return ACCRT_OK;
}

static void close_driver(accrt_driver_t* driver) {
  deallocate(driver->environment, driver, sizeof *driver);
}

static uint32_t device_count(accrt_driver_t* driver) {
  (void)driver;
  return 1;
}

/* ---- Device ---- */

static accrt_status_t device_open(accrt_driver_t* driver, uint32_t index,
                                  accrt_driver_device_t** out_device) {
  (void)index; /* below device_count: the runtime has checked */
  *out_device = NULL;
  accrt_driver_device_t* device = allocate(driver->environment, sizeof *device, "null.device_open");
  if (device == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  device->driver = driver;
  *out_device = device;
  return ACCRT_OK;
}

static void device_close(accrt_driver_device_t* device) {
  deallocate(device->driver->environment, device, sizeof *device);
}

#if defined(__x86_64__)
#define BASE_ARCH "x86-64"
#elif defined(__aarch64__)
#define BASE_ARCH "aarch64"
#else
#define BASE_ARCH "unknown"
#endif

/* Facts. `flags` must be true: the conformance suite chooses what to test by them. `arch` and
 * `cpu_features` decide which kernel variants are offered here; this driver claims no more than
 * what every machine has. */
static void device_info(accrt_driver_device_t* device, accrt_device_info_t* out_info) {
  (void)device;
  out_info->flags = ACCRT_DEVICE_FLAG_HOST_MEMORY | ACCRT_DEVICE_FLAG_TIMESTAMPS |
                    ACCRT_DEVICE_FLAG_HOST_KERNELS | ACCRT_DEVICE_FLAG_ENQUEUE_RUNS;
  snprintf(out_info->description, sizeof out_info->description,
           "null device: runs on the submitting thread");
  snprintf(out_info->arch, sizeof out_info->arch, BASE_ARCH);
  out_info->cpu_features = 0;
  out_info->memory_total_bytes = 0; /* unknown */
  out_info->concurrency = 1;
  out_info->min_alignment_bytes = MEMORY_ALIGNMENT;
  out_info->queue_count = 0;        /* no limit */
  out_info->dlpack_device_type = 1; /* the memory is the CPU's */
  out_info->dlpack_device_id = 0;
  out_info->priority_least = out_info->priority_greatest = 0; /* no priorities */
  memset(out_info->uuid, 0, sizeof out_info->uuid);           /* none */
}

/* ---- Memory: large blocks for the runtime's pools, which do all sub-allocation ---- */

static void memory_info(accrt_driver_device_t* device, uint32_t kind,
                        accrt_driver_memory_info_t* out_info) {
  (void)device;
  out_info->supported =
      kind == ACCRT_MEMORY_DEVICE || kind == ACCRT_MEMORY_PINNED || kind == ACCRT_MEMORY_HOST;
  out_info->granularity_bytes = MEMORY_ALIGNMENT;
  out_info->default_grow_bytes = UINT64_C(1) << 20;
  out_info->alignment_bytes = MEMORY_ALIGNMENT;
}

static accrt_status_t memory_allocate(accrt_driver_device_t* device, uint32_t kind,
                                      uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  (void)kind; /* all the same here */
  const accrt_driver_environment_t* environment = device->driver->environment;
  memset(out_memory, 0, sizeof *out_memory);
  void* pointer = environment->allocator->allocate(environment->allocator->self, (size_t)size_bytes,
                                                   MEMORY_ALIGNMENT);
  if (pointer == NULL) {
    /* This status, and no other, makes the runtime trim its pools and try again. */
    return environment->fail(environment, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, 0, NULL,
                             "memory_allocate", "the allocator gave no memory");
  }
  out_memory->handle = pointer; /* comes back in memory_free */
  out_memory->device_address = (uint64_t)(uintptr_t)pointer;
  out_memory->host_pointer = pointer;
  out_memory->size_bytes = size_bytes;
  return ACCRT_OK;
}

static void memory_free(accrt_driver_device_t* device, const accrt_driver_memory_t* memory) {
  const accrt_allocator_t* allocator = device->driver->environment->allocator;
  allocator->deallocate(allocator->self, memory->handle, (size_t)memory->size_bytes,
                        MEMORY_ALIGNMENT);
}

/* Memory of another owner. A device that must register it does so here. */
static accrt_status_t memory_import(accrt_driver_device_t* device, void* pointer,
                                    uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  (void)device;
  out_memory->handle = NULL;
  out_memory->device_address = (uint64_t)(uintptr_t)pointer;
  out_memory->host_pointer = pointer;
  out_memory->size_bytes = size_bytes;
  return ACCRT_OK;
}

static void memory_unimport(accrt_driver_device_t* device, const accrt_driver_memory_t* memory) {
  (void)device;
  (void)memory;
}

/* ---- Values and ranges: known when a list is made, or given at submission ---- */

static uint64_t value_of(const accrt_driver_value_t* value,
                         const accrt_driver_submission_t* submission) {
  if (value->scalar == ACCRT_DRIVER_NONE)
    return value->constant;
  return value->constant + submission->scalars[value->scalar];
}

static uint64_t address_of(const accrt_driver_range_t* range,
                           const accrt_driver_submission_t* submission) {
  const uint64_t offset = value_of(&range->offset, submission);
  if (range->binding == ACCRT_DRIVER_NONE)
    return offset;
  return submission->bindings[range->binding].address + offset;
}

static void* pointer_of(const accrt_driver_range_t* range,
                        const accrt_driver_submission_t* submission) {
  return (void*)(uintptr_t)address_of(range, submission);
}

/* ---- Commands. What reaches a driver has been checked: ranges fit, regions do not overlap, grids
 * fit 32 bits. ---- */

/* Fills the failure and returns its status. The number of the submission tells the user which one
 * it was. */
static accrt_status_t kernel_failed(const accrt_driver_dispatch_t* dispatch,
                                    const accrt_kernel_workgroup_t* workgroup, int32_t code,
                                    const accrt_driver_submission_t* submission,
                                    accrt_error_t* out_error) {
  memset(out_error, 0, sizeof *out_error);
  out_error->struct_size = (uint32_t)sizeof *out_error;
  out_error->status = ACCRT_ERROR_KERNEL;
  out_error->driver_code = code;
  out_error->submission = submission->number;
  snprintf(out_error->operation, sizeof out_error->operation, "dispatch");
  snprintf(out_error->message, sizeof out_error->message,
           "kernel '%s' returned %d in workgroup (%u, %u, %u)%s%s",
           dispatch->kernel->definition->name, code, workgroup->workgroup_id[0],
           workgroup->workgroup_id[1], workgroup->workgroup_id[2],
           workgroup->message[0] == '\0' ? "" : ": ", workgroup->message);
  return ACCRT_ERROR_KERNEL;
}

/* queue_cancel has come. Relaxed: nothing is published by it. */
static int is_cancelled(const accrt_driver_queue_t* queue) {
  return atomic_load_explicit(&queue->cancelled, memory_order_relaxed) != 0;
}

/* Fills the record: how far it got, after `done` of `total` commands or workgroups. */
static accrt_status_t report_cancelled(const char* what, uint64_t done, uint64_t total,
                                       const accrt_driver_submission_t* submission,
                                       accrt_error_t* out_error) {
  memset(out_error, 0, sizeof *out_error);
  out_error->struct_size = (uint32_t)sizeof *out_error;
  out_error->status = ACCRT_ERROR_CANCELLED;
  out_error->submission = submission->number;
  snprintf(out_error->operation, sizeof out_error->operation, "queue_cancel");
  snprintf(out_error->message, sizeof out_error->message,
           "cancelled after %" PRIu64 " of %" PRIu64 " %s", done, total, what);
  return ACCRT_ERROR_CANCELLED;
}

static accrt_status_t run_workgroups(const accrt_driver_queue_t* queue,
                                     const accrt_driver_dispatch_t* dispatch,
                                     const accrt_kernel_dispatch_t* view, void* local_memory,
                                     const accrt_driver_submission_t* submission,
                                     accrt_error_t* out_error) {
  char message[MESSAGE_BYTES] = "";
  accrt_kernel_workgroup_t workgroup = {
      .struct_size = (uint32_t)sizeof workgroup,
      .local_memory = local_memory,
      .local_memory_size_bytes = dispatch->kernel->definition->local_memory_size_bytes,
      .message = message,
      .message_capacity_bytes = MESSAGE_BYTES,
  };
  const uint32_t* count = view->workgroup_count;
  uint64_t done = 0;
  uint32_t* id = workgroup.workgroup_id;
  for (id[2] = 0; id[2] < view->workgroup_count[2]; ++id[2]) {
    for (id[1] = 0; id[1] < view->workgroup_count[1]; ++id[1]) {
      for (id[0] = 0; id[0] < view->workgroup_count[0]; ++id[0]) {
        if (is_cancelled(queue))
          return report_cancelled("workgroups", done, (uint64_t)count[0] * count[1] * count[2],
                                  submission, out_error);
        ++done;
        message[0] = '\0';
        const int32_t code =
            dispatch->kernel->definition->entry(dispatch->kernel->environment, view, &workgroup);
        if (code != 0)
          return kernel_failed(dispatch, &workgroup, code, submission, out_error);
      }
    }
  }
  return ACCRT_OK;
}

/* The packed block of parameters: the template, with addresses and values written in. */
static void fill_params(const accrt_driver_dispatch_t* dispatch,
                        const accrt_driver_submission_t* submission, unsigned char* params) {
  if (dispatch->params_size_bytes != 0) {
    memcpy(params, dispatch->params, dispatch->params_size_bytes);
  }
  for (uint32_t i = 0; i < dispatch->patch_count; ++i) {
    const accrt_driver_patch_t* patch = &dispatch->patches[i];
    uint64_t bits;
    if (patch->kind == ACCRT_DRIVER_PATCH_VALUE) {
      bits = value_of(&patch->value, submission);
    } else if (patch->range.binding != ACCRT_DRIVER_NONE &&
               submission->bindings[patch->range.binding].address == 0) {
      bits = 0; /* an optional buffer that is absent */
    } else {
      bits = address_of(&patch->range, submission);
    }
    memcpy(params + patch->offset_bytes, &bits, patch->size_bytes); /* little-endian hosts */
  }
}

static accrt_status_t run_dispatch(const accrt_driver_queue_t* queue,
                                   const accrt_driver_dispatch_t* dispatch,
                                   const accrt_driver_submission_t* submission,
                                   accrt_error_t* out_error) {
  _Alignas(16) unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  accrt_kernel_dispatch_t view = {.struct_size = (uint32_t)sizeof view,
                                  .params = params,
                                  .params_size_bytes = dispatch->params_size_bytes,
                                  .worker_count = 1,
                                  .submission = submission->number};
  for (int i = 0; i < 3; ++i) {
    view.workgroup_count[i] = (uint32_t)value_of(&dispatch->grid[i], submission);
    if (view.workgroup_count[i] == 0)
      return ACCRT_OK;
  }
  fill_params(dispatch, submission, params);
  const size_t local_bytes = dispatch->kernel->definition->local_memory_size_bytes;
  const accrt_allocator_t* allocator = queue->device->driver->environment->allocator;
  void* local_memory = NULL;
  if (local_bytes != 0) {
    /* 64-byte aligned. A driver that cares for speed keeps it. */
    local_memory = allocator->allocate(allocator->self, local_bytes, 64);
    if (local_memory == NULL) {
      memset(out_error, 0, sizeof *out_error);
      out_error->struct_size = (uint32_t)sizeof *out_error;
      out_error->status = ACCRT_ERROR_OUT_OF_MEMORY;
      out_error->submission = submission->number;
      snprintf(out_error->operation, sizeof out_error->operation, "dispatch");
      snprintf(out_error->message, sizeof out_error->message,
               "no %zu bytes of local memory for kernel '%s'", local_bytes,
               dispatch->kernel->definition->name);
      return ACCRT_ERROR_OUT_OF_MEMORY;
    }
  }
  /* Kernels round to nearest and keep denormals, whatever the thread does that they run on. */
  fenv_t callers;
  fegetenv(&callers);
  fesetenv(FE_DFL_ENV);
  const accrt_status_t status =
      run_workgroups(queue, dispatch, &view, local_memory, submission, out_error);
  fesetenv(&callers);
  if (local_memory != NULL) {
    allocator->deallocate(allocator->self, local_memory, local_bytes, 64);
  }
  return status;
}

/* extent[0] contiguous bytes, extent[1] rows, extent[2] planes. */
static void run_copy(const accrt_driver_copy_t* copy, const accrt_driver_submission_t* submission) {
  const unsigned char* source = pointer_of(&copy->source, submission);
  unsigned char* target = pointer_of(&copy->target, submission);
  const uint64_t bytes = value_of(&copy->extent[0], submission);
  const uint64_t rows = value_of(&copy->extent[1], submission);
  const uint64_t planes = value_of(&copy->extent[2], submission);
  if (bytes == 0 || rows == 0)
    return;
  for (uint64_t plane = 0; plane < planes; ++plane) {
    for (uint64_t row = 0; row < rows; ++row) {
      memcpy(target + row * value_of(&copy->target_stride_bytes[0], submission) +
                 plane * value_of(&copy->target_stride_bytes[1], submission),
             source + row * value_of(&copy->source_stride_bytes[0], submission) +
                 plane * value_of(&copy->source_stride_bytes[1], submission),
             bytes);
    }
  }
}

/* The first bytes one pattern after another, all others from those. */
static void run_fill(const accrt_driver_fill_t* fill, const accrt_driver_submission_t* submission) {
  unsigned char* target = pointer_of(&fill->target, submission);
  const uint64_t size_bytes = value_of(&fill->target.size_bytes, submission);
  const uint64_t first_bytes = size_bytes < FILL_BYTES ? size_bytes : FILL_BYTES;
  for (uint64_t i = 0; i < first_bytes; i += fill->pattern_bytes) {
    memcpy(target + i, &fill->pattern, fill->pattern_bytes); /* its low bytes */
  }
  for (uint64_t i = first_bytes; i < size_bytes; i += FILL_BYTES) {
    memcpy(target + i, target, size_bytes - i < FILL_BYTES ? size_bytes - i : FILL_BYTES);
  }
}

static void trace_command(const accrt_driver_environment_t* environment,
                          const accrt_driver_command_t* command,
                          const accrt_driver_submission_t* submission, accrt_status_t status,
                          uint64_t begin_ns) {
  static const char names[][8] = {"command", "", "copy", "fill", "barrier", "marker"};
  const uint32_t kind = command->opcode < sizeof names / sizeof *names ? command->opcode : 0;
  const char* name = command->name;
  if (name == NULL && command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH)
    name = command->as.dispatch.kernel->definition->name;
  const accrt_trace_event_t event = {
      .kind = ACCRT_TRACE_COMMAND,
      .status = status,
      .stream_id = submission->stream_id,
      .submission = submission->number,
      .begin_ns = begin_ns,
      .end_ns = now_ns(),
      .name = name != NULL ? name : names[kind],
  };
  environment->trace(environment, &event);
}

/* Barriers, markers and predecessors need nothing: commands are recorded after what they follow,
 * and run in that order. */
static accrt_status_t run_command(const accrt_driver_queue_t* queue,
                                  const accrt_driver_command_t* command,
                                  const accrt_driver_submission_t* submission,
                                  accrt_error_t* out_error) {
  const accrt_driver_environment_t* environment = queue->device->driver->environment;
  const uint64_t begin_ns = environment->tracing ? now_ns() : 0;
  accrt_status_t status = ACCRT_OK;
  if (command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH) {
    status = run_dispatch(queue, &command->as.dispatch, submission, out_error);
  } else if (command->opcode == ACCRT_DRIVER_COMMAND_COPY) {
    run_copy(&command->as.copy, submission);
  } else if (command->opcode == ACCRT_DRIVER_COMMAND_FILL) {
    run_fill(&command->as.fill, submission);
  }
  if (environment->tracing)
    trace_command(environment, command, submission, status, begin_ns);
  return status;
}

/* ---- Queues ---- */

static accrt_status_t queue_create(accrt_driver_device_t* device, int32_t priority,
                                   accrt_driver_queue_t** out_queue) {
  (void)priority;
  *out_queue = NULL;
  accrt_driver_queue_t* queue =
      allocate(device->driver->environment, sizeof *queue, "queue_create");
  if (queue == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  queue->device = device;
  *out_queue = queue;
  return ACCRT_OK;
}

static void queue_destroy(accrt_driver_queue_t* queue) {
  deallocate(queue->device->driver->environment, queue, sizeof *queue);
}

/* Tells how a submission ended. The last thing done with the queue: it may be destroyed by it. */
static void complete(accrt_driver_completion_t completion, const accrt_error_t* error) {
  if (completion.done == NULL)
    return;
  const accrt_status_t status = error == NULL ? ACCRT_OK : error->status;
  completion.done(completion.user, status, error, now_ns());
}

/* Runs commands and completes. A failure found while running is not the call's: it stays in the
 * queue, this submission completes with it, and those behind it are skipped and complete with
 * ACCRT_ERROR_POISONED. */
static accrt_status_t run_commands(accrt_driver_queue_t* queue,
                                   const accrt_driver_command_t* commands, uint32_t count,
                                   const accrt_driver_submission_t* submission) {
  accrt_error_t error;
  if (queue->failure.status != ACCRT_OK) {
    error = queue->failure;
    error.status = ACCRT_ERROR_POISONED;
    complete(submission->completion, &error);
    return ACCRT_OK;
  }
  accrt_status_t status = ACCRT_OK;
  if (count == 0 && is_cancelled(queue))
    status = report_cancelled("commands", 0, 0, submission, &error);
  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i) {
    status = is_cancelled(queue) ? report_cancelled("commands", i, count, submission, &error)
                                 : run_command(queue, &commands[i], submission, &error);
  }
  if (status == ACCRT_ERROR_CANCELLED) {
    complete(submission->completion, &error); /* and so do all behind it, until queue_reset */
  } else if (status != ACCRT_OK) {
    queue->failure = error;
    complete(submission->completion, &error);
  } else {
    complete(submission->completion, NULL);
  }
  return ACCRT_OK;
}

/* Optional. What runs looks before each command and each workgroup; nothing else is in the
 * queue. */
static void queue_cancel(accrt_driver_queue_t* queue) {
  atomic_store_explicit(&queue->cancelled, 1, memory_order_relaxed);
}

static accrt_status_t queue_enqueue(accrt_driver_queue_t* queue,
                                    const accrt_driver_command_t* command,
                                    const accrt_driver_submission_t* submission) {
  if (!is_known(command->opcode))
    return refuse_kind(queue->device->driver->environment, command->opcode, "queue_enqueue");
  return run_commands(queue, command, 1, submission);
}

static accrt_status_t queue_execute(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                    const accrt_driver_submission_t* submission) {
  return run_commands(queue, list->commands, list->command_count, submission);
}

/* Everything enqueued before has ended already. A failed queue reports its failure, a cancelled one
 * that it is. */
static accrt_status_t queue_notify(accrt_driver_queue_t* queue,
                                   accrt_driver_completion_t completion) {
  accrt_error_t failure = queue->failure;
  if (failure.status == ACCRT_OK && is_cancelled(queue)) {
    const accrt_driver_submission_t none = {.number = 0};
    report_cancelled("commands", 0, 0, &none, &failure);
  }
  complete(completion, failure.status == ACCRT_OK ? NULL : &failure);
  return ACCRT_OK;
}

static accrt_status_t queue_reset(accrt_driver_queue_t* queue) {
  memset(&queue->failure, 0, sizeof queue->failure);
  atomic_store_explicit(&queue->cancelled, 0, memory_order_relaxed);
  return ACCRT_OK;
}

/* ---- Lists ---- */

/* Host operators need states that live with the list, which this driver does not keep: it says so
 * when a list has one. */
static accrt_status_t check_commands(const accrt_driver_environment_t* environment,
                                     const accrt_driver_list_info_t* info) {
  for (uint32_t i = 0; i < info->command_count; ++i) {
    const uint32_t opcode = info->commands[i].opcode;
    if (!is_known(opcode) && opcode != ACCRT_DRIVER_COMMAND_OPERATOR)
      return refuse_kind(environment, opcode, "list_create");
    if (info->commands[i].opcode != ACCRT_DRIVER_COMMAND_OPERATOR)
      continue;
    char message[320];
    snprintf(message, sizeof message,
             "command %u: the null driver runs no host operators ('%.255s')", i,
             info->commands[i].as.invoke.operation->definition->name);
    return environment->fail(environment, ACCRT_ERROR_UNSUPPORTED, 0, NULL, "list_create", message);
  }
  return ACCRT_OK;
}

static accrt_status_t list_create(accrt_driver_device_t* device,
                                  const accrt_driver_list_info_t* info,
                                  accrt_driver_list_t** out_list) {
  *out_list = NULL;
  const accrt_driver_environment_t* environment = device->driver->environment;
  const accrt_status_t status = check_commands(environment, info);
  if (status != ACCRT_OK)
    return status;
  accrt_driver_list_t* list = allocate(environment, sizeof *list, "list_create");
  if (list == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  list->device = device;
  if (info->command_count != 0) {
    const size_t size_bytes = info->command_count * sizeof *list->commands;
    list->commands = allocate(environment, size_bytes, "list_create");
    if (list->commands == NULL) {
      deallocate(environment, list, sizeof *list);
      return ACCRT_ERROR_OUT_OF_MEMORY;
    }
    memcpy(list->commands, info->commands, size_bytes);
    list->command_count = info->command_count;
  }
  *out_list = list;
  return ACCRT_OK;
}

static void list_destroy(accrt_driver_list_t* list) {
  const accrt_driver_environment_t* environment = list->device->driver->environment;
  if (list->commands != NULL) {
    deallocate(environment, list->commands, list->command_count * sizeof *list->commands);
  }
  deallocate(environment, list, sizeof *list);
}

/* ---- The table. Optional functions are left out: device_status (a device that cannot be lost),
 * device_progress (only for devices that run on the caller), module_* (no machine code of its own),
 * queue_run (everything runs on the caller). ---- */

static const accrt_driver_table_t null_table = {
    .struct_size = (uint32_t)sizeof null_table,
    .abi_version = ACCRT_DRIVER_ABI_VERSION,
    .name = "null",
    .open = open_driver,
    .close = close_driver,
    .device_count = device_count,
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .memory_info = memory_info,
    .memory_allocate = memory_allocate,
    .memory_free = memory_free,
    .memory_import = memory_import,
    .memory_unimport = memory_unimport,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .queue_enqueue = queue_enqueue,
    .queue_execute = queue_execute,
    .queue_notify = queue_notify,
    .queue_reset = queue_reset,
    .list_create = list_create,
    .list_destroy = list_destroy,
    .queue_cancel = queue_cancel,
};

#ifdef ACCRT_BUILDING
const accrt_driver_table_t* accrt_driver_null_query(uint32_t max_abi);
#define QUERY accrt_driver_null_query
#else
/** The one symbol that a driver exports. */
__attribute__((visibility("default"))) const accrt_driver_table_t*
accrt_driver_query(uint32_t max_abi);
#define QUERY accrt_driver_query
#endif

/* A runtime of another major version speaks another table: refuse. Of this major, older minors know
 * fewer functions and newer ones more; both read the table up to the smaller size. */
const accrt_driver_table_t* QUERY(uint32_t max_abi) {
  return max_abi >> 16 == ACCRT_DRIVER_ABI_MAJOR ? &null_table : NULL;
}
