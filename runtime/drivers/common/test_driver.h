/* runtime/drivers/common/test_driver.h - test fixture: a small driver that can be slow, synchronous, stepped, or broken.
 *
 * For tests alone. One configuration per test program (`test_driver`); it registers as the driver "test". What it runs it runs
 * right: copies, fills and host kernels, one workgroup after the other, in order of enqueuing over all queues.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "accrt/sys/driver.h"
#include "runtime/core/test_allocator.h"

/* CMocka has a macro `fail`: calls of environment->fail are written with parentheses around the function. */

enum test_driver_mode {
  TEST_DRIVER_SYNCHRONOUS, /* work runs inside the enqueue */
  TEST_DRIVER_THREAD,      /* a thread runs it */
  TEST_DRIVER_STEPPED,     /* the test runs it with test_driver_step */
  TEST_DRIVER_CALLER,      /* device_progress runs it: ACCRT_DEVICE_FLAG_CALLER_RUNS */
};

enum test_driver_slot {
  TEST_SLOT_OPEN,
  TEST_SLOT_DEVICE_OPEN,
  TEST_SLOT_MEMORY_ALLOCATE,
  TEST_SLOT_MEMORY_IMPORT,
  TEST_SLOT_MEMORY_EXPORT,
  TEST_SLOT_QUEUE_CREATE,
  TEST_SLOT_QUEUE_ENQUEUE,
  TEST_SLOT_QUEUE_EXECUTE,
  TEST_SLOT_QUEUE_NOTIFY,
  TEST_SLOT_QUEUE_RESET,
  TEST_SLOT_QUEUE_RUN,
  TEST_SLOT_LIST_CREATE,
  TEST_SLOT_RUN, /* a command fails while it runs */
  TEST_SLOT_COUNT,
};

typedef struct test_job test_job_t;

typedef struct test_driver_state {
  /* set by the test before the driver is registered */
  int mode;
  uint32_t device_count;
  uint32_t device_flags; /* 0: HOST_MEMORY | TIMESTAMPS | HOST_KERNELS */
  uint64_t memory_limit_bytes;
  uint64_t granularity_bytes;
  uint64_t grow_bytes;
  uint32_t abi_version;      /* 0: ours */
  uint32_t table_size_bytes; /* 0: ours */
  int no_import, no_export, no_run, no_host_memory_kind;
  const char* const* option_keys;
  /* the n-th call of a slot from now fails with this status (n 1: the next) */
  atomic_int fail_at[TEST_SLOT_COUNT];
  accrt_status_t fail_status[TEST_SLOT_COUNT];
  /* what is there */
  atomic_long memory_bytes, mappings, imports, queues, lists, devices, drivers, runs;
  atomic_int lost;
  /* work */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t thread;
  int stopping;
  test_job_t *head, **tail;
  const accrt_driver_environment_t* environment;
} test_driver_state_t;

static test_driver_state_t test_driver;

struct accrt_driver {
  int unused;
};
struct accrt_driver_device {
  uint32_t index;
};
struct accrt_driver_queue {
  atomic_int failed;
  atomic_long in_flight;
  accrt_error_t error;
};
struct accrt_driver_list {
  const accrt_driver_command_t* commands;
  uint32_t count;
};

struct test_job {
  test_job_t* next;
  accrt_driver_queue_t* queue;
  accrt_driver_list_t* list;
  accrt_driver_command_t command;
  int is_notify;
  unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  accrt_driver_binding_t* bindings;
  uint64_t* scalars;
  uint32_t binding_count, scalar_count;
  uint64_t number;
  accrt_driver_completion_t completion;
};

static inline void test_driver_reset(int mode) {
  memset(&test_driver, 0, sizeof test_driver);
  test_driver.mode = mode;
  test_driver.device_count = 1;
  test_driver.memory_limit_bytes = UINT64_C(1) << 30;
  test_driver.granularity_bytes = 4096;
  test_driver.grow_bytes = 65536;
  (void)pthread_mutex_init(&test_driver.lock, NULL);
  (void)pthread_cond_init(&test_driver.changed, NULL);
}

static inline void test_driver_fail(enum test_driver_slot slot, int n, accrt_status_t status) {
  test_driver.fail_status[slot] = status;
  atomic_store(&test_driver.fail_at[slot], n);
}

static inline accrt_status_t test_fault(enum test_driver_slot slot, const char* name) {
  if (atomic_load(&test_driver.fail_at[slot]) == 0 ||
      atomic_fetch_sub(&test_driver.fail_at[slot], 1) != 1)
    return ACCRT_OK;
  const accrt_status_t status = test_driver.fail_status[slot];
  if (status == ACCRT_ERROR_DEVICE_LOST)
    atomic_store(&test_driver.lost, 1);
  return (test_driver.environment->fail)(test_driver.environment, status, 77, "TEST_FAULT", name,
                                         "injected fault");
}

static inline uint64_t test_now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline void* test_driver_alloc(size_t size_bytes) {
  const accrt_allocator_t* allocator = test_driver.environment->allocator;
  void* memory = allocator->allocate(allocator->self, size_bytes, 16);
  if (memory != NULL)
    memset(memory, 0, size_bytes);
  return memory;
}

static inline void test_driver_free(void* memory, size_t size_bytes) {
  const accrt_allocator_t* allocator = test_driver.environment->allocator;
  if (memory != NULL)
    allocator->deallocate(allocator->self, memory, size_bytes, 16);
}

static inline accrt_status_t test_no_memory(const char* operation) {
  return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_OUT_OF_MEMORY, 0,
                                         NULL, operation, "no memory");
}

/* ---- Running commands ---- */

static inline uint64_t test_value(const accrt_driver_value_t* value, const uint64_t* scalars) {
  return value->constant + (value->scalar == ACCRT_DRIVER_NONE ? 0 : scalars[value->scalar]);
}

static inline uint64_t test_address(const accrt_driver_range_t* range,
                                    const accrt_driver_binding_t* bindings,
                                    const uint64_t* scalars) {
  const uint64_t base = range->binding == ACCRT_DRIVER_NONE ? 0 : bindings[range->binding].address;
  if (range->binding != ACCRT_DRIVER_NONE && base == 0)
    return 0;
  return base + test_value(&range->offset, scalars);
}

static inline void test_run_copy(const accrt_driver_copy_t* copy,
                                 const accrt_driver_binding_t* bindings, const uint64_t* scalars) {
  const char* source = (const char*)(uintptr_t)test_address(&copy->source, bindings, scalars);
  char* target = (char*)(uintptr_t)test_address(&copy->target, bindings, scalars);
  uint64_t extent[3], from[2], to[2];
  for (int i = 0; i < 3; ++i)
    extent[i] = test_value(&copy->extent[i], scalars);
  for (int i = 0; i < 2; ++i) {
    from[i] = test_value(&copy->source_stride_bytes[i], scalars);
    to[i] = test_value(&copy->target_stride_bytes[i], scalars);
  }
  for (uint64_t z = 0; z < extent[2]; ++z) {
    for (uint64_t y = 0; y < extent[1]; ++y) {
      memcpy(target + z * to[1] + y * to[0], source + z * from[1] + y * from[0], extent[0]);
    }
  }
}

static inline void test_run_fill(const accrt_driver_fill_t* fill,
                                 const accrt_driver_binding_t* bindings, const uint64_t* scalars) {
  char* target = (char*)(uintptr_t)test_address(&fill->target, bindings, scalars);
  const uint64_t size_bytes = test_value(&fill->target.size_bytes, scalars);
  for (uint64_t i = 0; i < size_bytes; i += fill->pattern_bytes)
    memcpy(target + i, &fill->pattern, fill->pattern_bytes);
}

static inline void test_patch(const accrt_driver_patch_t* patch, unsigned char* params,
                              const accrt_driver_binding_t* bindings, const uint64_t* scalars) {
  const uint64_t value = patch->kind == ACCRT_DRIVER_PATCH_ADDRESS
                             ? test_address(&patch->range, bindings, scalars)
                             : test_value(&patch->value, scalars);
  memcpy(params + patch->offset_bytes, &value, patch->size_bytes);
}

static inline int32_t test_run_dispatch(const accrt_driver_dispatch_t* dispatch,
                                        const accrt_driver_binding_t* bindings,
                                        const uint64_t* scalars, uint64_t number,
                                        char message[256]) {
  _Alignas(16) unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  if (dispatch->params_size_bytes > 0)
    memcpy(params, dispatch->params, dispatch->params_size_bytes);
  for (uint32_t i = 0; i < dispatch->patch_count; ++i)
    test_patch(&dispatch->patches[i], params, bindings, scalars);
  accrt_kernel_dispatch_t call = {.struct_size = (uint32_t)sizeof call,
                                  .params = params,
                                  .params_size_bytes = dispatch->params_size_bytes,
                                  .worker_count = 1,
                                  .submission = number};
  for (int i = 0; i < 3; ++i)
    call.workgroup_count[i] = (uint32_t)test_value(&dispatch->grid[i], scalars);
  accrt_kernel_workgroup_t group = {
      .struct_size = (uint32_t)sizeof group, .message = message, .message_capacity_bytes = 256};
  for (uint32_t z = 0; z < call.workgroup_count[2]; ++z) {
    for (uint32_t y = 0; y < call.workgroup_count[1]; ++y) {
      for (uint32_t x = 0; x < call.workgroup_count[0]; ++x) {
        group.workgroup_id[0] = x;
        group.workgroup_id[1] = y;
        group.workgroup_id[2] = z;
        const int32_t code =
            dispatch->kernel->definition->entry(dispatch->kernel->environment, &call, &group);
        if (code != 0)
          return code;
      }
    }
  }
  return 0;
}

static inline void test_set_error(accrt_error_t* error, accrt_status_t status, int32_t code,
                                  const char* operation, const char* message) {
  memset(error, 0, sizeof *error);
  error->struct_size = (uint32_t)sizeof *error;
  error->status = status;
  error->driver_code = code;
  (void)snprintf(error->driver_name, sizeof error->driver_name, "%s", "TEST_CODE");
  (void)snprintf(error->operation, sizeof error->operation, "%s",
                 operation != NULL ? operation : "");
  (void)snprintf(error->message, sizeof error->message, "%s", message);
}

static inline accrt_status_t test_run_command(const accrt_driver_command_t* command,
                                              const accrt_driver_binding_t* bindings,
                                              const uint64_t* scalars, uint64_t number,
                                              accrt_error_t* error) {
  char message[256] = "";
  int32_t code = 0;
  atomic_fetch_add(&test_driver.runs, 1);
  if (atomic_load(&test_driver.fail_at[TEST_SLOT_RUN]) != 0 &&
      atomic_fetch_sub(&test_driver.fail_at[TEST_SLOT_RUN], 1) == 1) {
    const accrt_status_t status = test_driver.fail_status[TEST_SLOT_RUN];
    if (status == ACCRT_ERROR_DEVICE_LOST)
      atomic_store(&test_driver.lost, 1);
    test_set_error(error, status, 78, command->name, "injected failure of a command");
    return status;
  }
  switch (command->opcode) {
  case ACCRT_DRIVER_COMMAND_COPY:
    test_run_copy(&command->as.copy, bindings, scalars);
    break;
  case ACCRT_DRIVER_COMMAND_FILL:
    test_run_fill(&command->as.fill, bindings, scalars);
    break;
  case ACCRT_DRIVER_COMMAND_DISPATCH:
    code = test_run_dispatch(&command->as.dispatch, bindings, scalars, number, message);
    break;
  default:
    break;
  }
  if (code == 0)
    return ACCRT_OK;
  test_set_error(error, ACCRT_ERROR_KERNEL, code, command->name, message);
  return ACCRT_ERROR_KERNEL;
}

static inline accrt_status_t test_run_all(const accrt_driver_list_t* list,
                                          const accrt_driver_binding_t* bindings,
                                          const uint64_t* scalars, uint64_t number,
                                          accrt_error_t* error) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < list->count && status == ACCRT_OK; ++i) {
    status = test_run_command(&list->commands[i], bindings, scalars, number, error);
  }
  return status;
}

static inline void test_free_job(test_job_t* job) {
  test_driver_free(job->bindings, job->binding_count * sizeof *job->bindings);
  test_driver_free(job->scalars, job->scalar_count * sizeof *job->scalars);
  test_driver_free(job, sizeof *job);
}

static inline void test_run_job(test_job_t* job) {
  accrt_driver_queue_t* queue = job->queue;
  accrt_status_t status = ACCRT_OK;
  accrt_error_t error;
  if (atomic_load(&queue->failed)) {
    status = ACCRT_ERROR_POISONED;
    error = queue->error;
    error.status = status;
  } else if (!job->is_notify) {
    status =
        job->list != NULL
            ? test_run_all(job->list, job->bindings, job->scalars, job->number, &error)
            : test_run_command(&job->command, job->bindings, job->scalars, job->number, &error);
    if (status != ACCRT_OK) {
      queue->error = error;
      atomic_store(&queue->failed, 1);
    }
  }
  const accrt_driver_completion_t completion = job->completion;
  test_free_job(job);
  atomic_fetch_sub(&queue->in_flight, 1);
  if (completion.done != NULL)
    completion.done(completion.user, status, status == ACCRT_OK ? NULL : &error, test_now_ns());
}

/* Runs one job; 0 when there is none. */
static inline uint32_t test_driver_step(void) {
  (void)pthread_mutex_lock(&test_driver.lock);
  test_job_t* job = test_driver.head;
  if (job != NULL) {
    test_driver.head = job->next;
    if (test_driver.head == NULL)
      test_driver.tail = NULL;
  }
  (void)pthread_mutex_unlock(&test_driver.lock);
  if (job == NULL)
    return 0;
  test_run_job(job);
  return 1;
}

static inline void* test_driver_run_thread(void* unused) {
  (void)unused;
  for (;;) {
    (void)pthread_mutex_lock(&test_driver.lock);
    while (test_driver.head == NULL && !test_driver.stopping)
      (void)pthread_cond_wait(&test_driver.changed, &test_driver.lock);
    const int stop = test_driver.head == NULL;
    (void)pthread_mutex_unlock(&test_driver.lock);
    if (stop)
      return NULL;
    (void)test_driver_step();
  }
}

static inline accrt_status_t test_add_job(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                          const accrt_driver_command_t* command,
                                          const accrt_driver_submission_t* submission,
                                          accrt_driver_completion_t completion) {
  test_job_t* job = test_driver_alloc(sizeof *job);
  if (job == NULL)
    return test_no_memory("queue");
  job->queue = queue;
  job->list = list;
  job->is_notify = list == NULL && command == NULL;
  job->completion = completion;
  if (command != NULL) {
    job->command = *command;
    if (command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH &&
        command->as.dispatch.params_size_bytes > 0) {
      memcpy(job->params, command->as.dispatch.params, command->as.dispatch.params_size_bytes);
      job->command.as.dispatch.params = job->params;
    }
  }
  if (submission != NULL) {
    job->number = submission->number;
    job->binding_count = submission->binding_count;
    job->scalar_count = submission->scalar_count;
    if (job->binding_count > 0) {
      job->bindings = test_driver_alloc(job->binding_count * sizeof *job->bindings);
      if (job->bindings != NULL)
        memcpy(job->bindings, submission->bindings, job->binding_count * sizeof *job->bindings);
    }
    if (job->scalar_count > 0) {
      job->scalars = test_driver_alloc(job->scalar_count * sizeof *job->scalars);
      if (job->scalars != NULL)
        memcpy(job->scalars, submission->scalars, job->scalar_count * sizeof *job->scalars);
    }
    if ((job->binding_count > 0 && job->bindings == NULL) ||
        (job->scalar_count > 0 && job->scalars == NULL)) {
      if (job->bindings == NULL)
        job->binding_count = 0;
      if (job->scalars == NULL)
        job->scalar_count = 0;
      test_free_job(job);
      return test_no_memory("queue");
    }
  }
  atomic_fetch_add(&queue->in_flight, 1);
  if (test_driver.mode == TEST_DRIVER_SYNCHRONOUS) {
    test_run_job(job);
    return ACCRT_OK;
  }
  (void)pthread_mutex_lock(&test_driver.lock);
  if (test_driver.tail == NULL) {
    test_driver.head = job;
  } else {
    *test_driver.tail = job;
  }
  test_driver.tail = &job->next;
  (void)pthread_cond_signal(&test_driver.changed);
  (void)pthread_mutex_unlock(&test_driver.lock);
  return ACCRT_OK;
}

/* ---- The table ---- */

#define TEST_TRY(slot)                                                                             \
  do {                                                                                             \
    const accrt_status_t fault_ = test_fault((slot), __func__);                                    \
    if (fault_ != ACCRT_OK)                                                                        \
      return fault_;                                                                               \
  } while (0)

static inline accrt_status_t test_open(const accrt_driver_environment_t* environment,
                                       accrt_driver_t** out_driver) {
  test_driver.environment = environment;
  *out_driver = NULL;
  TEST_TRY(TEST_SLOT_OPEN);
  *out_driver = test_driver_alloc(sizeof **out_driver);
  if (*out_driver == NULL)
    return test_no_memory(__func__);
  test_driver.stopping = 0;
  if (test_driver.mode == TEST_DRIVER_THREAD) {
    (void)pthread_create(&test_driver.thread, NULL, test_driver_run_thread, NULL);
  }
  atomic_fetch_add(&test_driver.drivers, 1);
  return ACCRT_OK;
}

static inline void test_close(accrt_driver_t* driver) {
  (void)pthread_mutex_lock(&test_driver.lock);
  test_driver.stopping = 1;
  (void)pthread_cond_broadcast(&test_driver.changed);
  (void)pthread_mutex_unlock(&test_driver.lock);
  if (test_driver.mode == TEST_DRIVER_THREAD)
    (void)pthread_join(test_driver.thread, NULL);
  test_driver_free(driver, sizeof *driver);
  atomic_fetch_sub(&test_driver.drivers, 1);
}

static inline uint32_t test_device_count(accrt_driver_t* driver) {
  (void)driver;
  return test_driver.device_count;
}

static inline accrt_status_t test_device_open(accrt_driver_t* driver, uint32_t index,
                                              accrt_driver_device_t** out_device) {
  (void)driver;
  *out_device = NULL;
  TEST_TRY(TEST_SLOT_DEVICE_OPEN);
  accrt_driver_device_t* device = test_driver_alloc(sizeof *device);
  if (device == NULL)
    return test_no_memory(__func__);
  device->index = index;
  *out_device = device;
  atomic_fetch_add(&test_driver.devices, 1);
  return ACCRT_OK;
}

static inline void test_device_close(accrt_driver_device_t* device) {
  test_driver_free(device, sizeof *device);
  atomic_fetch_sub(&test_driver.devices, 1);
}

static inline void test_device_info(accrt_driver_device_t* device, accrt_device_info_t* out_info) {
  (void)device;
  out_info->flags = test_driver.device_flags != 0
                        ? test_driver.device_flags
                        : ACCRT_DEVICE_FLAG_HOST_MEMORY | ACCRT_DEVICE_FLAG_TIMESTAMPS |
                              ACCRT_DEVICE_FLAG_HOST_KERNELS;
  if (test_driver.mode == TEST_DRIVER_CALLER)
    out_info->flags |= ACCRT_DEVICE_FLAG_CALLER_RUNS;
  (void)snprintf(out_info->description, sizeof out_info->description, "%s", "a device for tests");
  out_info->min_alignment_bytes = 64;
  out_info->concurrency = 1;
}

static inline accrt_status_t test_device_status(accrt_driver_device_t* device) {
  (void)device;
  return atomic_load(&test_driver.lost) ? ACCRT_ERROR_DEVICE_LOST : ACCRT_OK;
}

static inline uint32_t test_device_progress(accrt_driver_device_t* device) {
  (void)device;
  return test_driver_step();
}

static inline void test_memory_info(accrt_driver_device_t* device, uint32_t kind,
                                    accrt_driver_memory_info_t* out_info) {
  (void)device;
  out_info->supported = kind == ACCRT_MEMORY_DEVICE ||
                        (kind == ACCRT_MEMORY_HOST && !test_driver.no_host_memory_kind);
  out_info->granularity_bytes = test_driver.granularity_bytes;
  out_info->default_grow_bytes = test_driver.grow_bytes;
  out_info->alignment_bytes = 4096;
}

static inline accrt_status_t test_memory_allocate(accrt_driver_device_t* device, uint32_t kind,
                                                  uint64_t size_bytes,
                                                  accrt_driver_memory_t* out_memory) {
  (void)device;
  (void)kind;
  memset(out_memory, 0, sizeof *out_memory);
  TEST_TRY(TEST_SLOT_MEMORY_ALLOCATE);
  void* memory = NULL;
  if (size_bytes % test_driver.granularity_bytes != 0) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_INTERNAL, 0, NULL,
                                           __func__, "no multiple");
  }
  if ((uint64_t)atomic_load(&test_driver.memory_bytes) + size_bytes >
          test_driver.memory_limit_bytes ||
      posix_memalign(&memory, 4096, size_bytes) != 0) {
    return (test_driver.environment->fail)(
        test_driver.environment, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, 2, "TEST_OOM", __func__, "full");
  }
  atomic_fetch_add(&test_driver.memory_bytes, (long)size_bytes);
  atomic_fetch_add(&test_driver.mappings, 1);
  *out_memory = (accrt_driver_memory_t){memory, (uint64_t)(uintptr_t)memory, memory, size_bytes};
  if (test_driver.device_flags != 0 &&
      (test_driver.device_flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) == 0)
    out_memory->host_pointer = NULL;
  return ACCRT_OK;
}

static inline void test_memory_free(accrt_driver_device_t* device,
                                    const accrt_driver_memory_t* memory) {
  (void)device;
  atomic_fetch_sub(&test_driver.memory_bytes, (long)memory->size_bytes);
  atomic_fetch_sub(&test_driver.mappings, 1);
  free(memory->handle);
}

static inline accrt_status_t test_memory_import(accrt_driver_device_t* device, void* pointer,
                                                uint64_t size_bytes,
                                                accrt_driver_memory_t* out_memory) {
  (void)device;
  memset(out_memory, 0, sizeof *out_memory);
  TEST_TRY(TEST_SLOT_MEMORY_IMPORT);
  atomic_fetch_add(&test_driver.imports, 1);
  *out_memory = (accrt_driver_memory_t){pointer, (uint64_t)(uintptr_t)pointer, pointer, size_bytes};
  return ACCRT_OK;
}

static inline void test_memory_unimport(accrt_driver_device_t* device,
                                        const accrt_driver_memory_t* memory) {
  (void)device;
  (void)memory;
  atomic_fetch_sub(&test_driver.imports, 1);
}

/* Exports: handles are addresses, and work within the process; descriptors are there to be closed. */
static inline accrt_status_t test_memory_allocate_exportable(accrt_driver_device_t* device,
                                                             uint64_t size_bytes,
                                                             uint32_t handle_kind,
                                                             accrt_driver_memory_t* out_memory) {
  (void)handle_kind;
  return test_memory_allocate(device, ACCRT_MEMORY_DEVICE, size_bytes, out_memory);
}

static inline accrt_status_t test_memory_export(accrt_driver_device_t* device,
                                                const accrt_driver_memory_t* memory,
                                                uint32_t handle_kind,
                                                accrt_driver_handle_t* out_handle) {
  (void)device;
  memset(out_handle, 0, sizeof *out_handle);
  out_handle->fd = -1;
  TEST_TRY(TEST_SLOT_MEMORY_EXPORT);
  out_handle->kind = handle_kind;
  out_handle->size_bytes = memory->size_bytes;
  memcpy(out_handle->bytes, &memory->device_address, sizeof memory->device_address);
  if (handle_kind == ACCRT_DRIVER_HANDLE_FD)
    out_handle->fd = dup(STDERR_FILENO);
  return ACCRT_OK;
}

static inline accrt_status_t test_memory_import_handle(accrt_driver_device_t* device,
                                                       const accrt_driver_handle_t* handle,
                                                       accrt_driver_memory_t* out_memory) {
  uint64_t address;
  memcpy(&address, handle->bytes, sizeof address);
  return test_memory_import(device, (void*)(uintptr_t)address, handle->size_bytes, out_memory);
}

static inline accrt_status_t test_queue_create(accrt_driver_device_t* device, int32_t priority,
                                               accrt_driver_queue_t** out_queue) {
  (void)device;
  (void)priority;
  *out_queue = NULL;
  TEST_TRY(TEST_SLOT_QUEUE_CREATE);
  *out_queue = test_driver_alloc(sizeof **out_queue);
  if (*out_queue == NULL)
    return test_no_memory(__func__);
  atomic_fetch_add(&test_driver.queues, 1);
  return ACCRT_OK;
}

static inline void test_queue_destroy(accrt_driver_queue_t* queue) {
  test_driver_free(queue, sizeof *queue);
  atomic_fetch_sub(&test_driver.queues, 1);
}

static inline accrt_status_t test_queue_enqueue(accrt_driver_queue_t* queue,
                                                const accrt_driver_command_t* command,
                                                const accrt_driver_submission_t* submission) {
  TEST_TRY(TEST_SLOT_QUEUE_ENQUEUE);
  return test_add_job(queue, NULL, command, submission, submission->completion);
}

static inline accrt_status_t test_queue_execute(accrt_driver_queue_t* queue,
                                                accrt_driver_list_t* list,
                                                const accrt_driver_submission_t* submission) {
  TEST_TRY(TEST_SLOT_QUEUE_EXECUTE);
  return test_add_job(queue, list, NULL, submission, submission->completion);
}

static inline accrt_status_t test_queue_run(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                            const accrt_driver_submission_t* submission) {
  TEST_TRY(TEST_SLOT_QUEUE_RUN);
  if (atomic_load(&queue->in_flight) != 0)
    return ACCRT_ERROR_NOT_READY;
  accrt_error_t error;
  const accrt_status_t status =
      test_run_all(list, submission->bindings, submission->scalars, submission->number, &error);
  if (status == ACCRT_OK)
    return ACCRT_OK;
  return (test_driver.environment->fail)(test_driver.environment, status, error.driver_code,
                                         error.driver_name, error.operation, error.message);
}

static inline accrt_status_t test_queue_notify(accrt_driver_queue_t* queue,
                                               accrt_driver_completion_t completion) {
  TEST_TRY(TEST_SLOT_QUEUE_NOTIFY);
  return test_add_job(queue, NULL, NULL, NULL, completion);
}

static inline accrt_status_t test_queue_reset(accrt_driver_queue_t* queue) {
  TEST_TRY(TEST_SLOT_QUEUE_RESET);
  atomic_store(&queue->failed, 0);
  return ACCRT_OK;
}

static inline accrt_status_t test_list_create(accrt_driver_device_t* device,
                                              const accrt_driver_list_info_t* info,
                                              accrt_driver_list_t** out_list) {
  (void)device;
  *out_list = NULL;
  TEST_TRY(TEST_SLOT_LIST_CREATE);
  *out_list = test_driver_alloc(sizeof **out_list);
  if (*out_list == NULL)
    return test_no_memory(__func__);
  (*out_list)->commands = info->commands;
  (*out_list)->count = info->command_count;
  atomic_fetch_add(&test_driver.lists, 1);
  return ACCRT_OK;
}

static inline void test_list_destroy(accrt_driver_list_t* list) {
  test_driver_free(list, sizeof *list);
  atomic_fetch_sub(&test_driver.lists, 1);
}

static inline const void* test_driver_query(uint32_t max_abi) {
  static accrt_driver_table_t table;
  (void)max_abi;
  table = (accrt_driver_table_t){
      .struct_size =
          test_driver.table_size_bytes != 0 ? test_driver.table_size_bytes : (uint32_t)sizeof table,
      .abi_version =
          test_driver.abi_version != 0 ? test_driver.abi_version : ACCRT_DRIVER_ABI_VERSION,
      .name = "test",
      .option_keys = test_driver.option_keys,
      .open = test_open,
      .close = test_close,
      .device_count = test_device_count,
      .device_open = test_device_open,
      .device_close = test_device_close,
      .device_info = test_device_info,
      .device_status = test_device_status,
      .device_progress = test_device_progress,
      .memory_info = test_memory_info,
      .memory_allocate = test_memory_allocate,
      .memory_free = test_memory_free,
      .memory_import = test_driver.no_import ? NULL : test_memory_import,
      .memory_unimport = test_memory_unimport,
      .queue_create = test_queue_create,
      .queue_destroy = test_queue_destroy,
      .queue_enqueue = test_queue_enqueue,
      .queue_execute = test_queue_execute,
      .queue_run = test_driver.no_run ? NULL : test_queue_run,
      .queue_notify = test_queue_notify,
      .queue_reset = test_queue_reset,
      .list_create = test_list_create,
      .list_destroy = test_list_destroy,
      .memory_allocate_exportable = test_driver.no_export ? NULL : test_memory_allocate_exportable,
      .memory_export = test_driver.no_export ? NULL : test_memory_export,
      .memory_import_handle = test_driver.no_export ? NULL : test_memory_import_handle,
  };
  return &table;
}

/* ---- A whole test's surroundings: instance, device, and the proof at the end that nothing is left ---- */

typedef struct test_world {
  test_allocator_t allocator;
  accrt_instance_t* instance;
  accrt_device_t* device;
} test_world_t;

static inline accrt_status_t test_world_open(test_world_t* world, int mode) {
  memset(world, 0, sizeof *world);
  test_driver_reset(mode);
  const accrt_allocator_t interface = test_allocator_interface(&world->allocator);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.allocator = &interface;
  accrt_status_t status = accrt_instance_create(&options, &world->instance);
  if (status == ACCRT_OK)
    status = accrt_instance_register_driver(world->instance, test_driver_query);
  if (status == ACCRT_OK)
    status = accrt_instance_device_by_name(world->instance, "test", &world->device);
  return status;
}

/* What is still there; 0 when all is well. */
static inline long test_world_left(const test_world_t* world) {
  return atomic_load(&world->allocator.live_count) + atomic_load(&world->allocator.wrong_count) +
         atomic_load(&test_driver.memory_bytes) + atomic_load(&test_driver.mappings) +
         atomic_load(&test_driver.imports) + atomic_load(&test_driver.queues) +
         atomic_load(&test_driver.lists) + atomic_load(&test_driver.devices) +
         atomic_load(&test_driver.drivers);
}

static inline long test_world_close(test_world_t* world) {
  accrt_device_release(world->device);
  accrt_instance_release(world->instance);
  return test_world_left(world);
}

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_H_ */
