/* runtime/drivers/common/test_driver.h - test fixture: a small driver that can be slow,
 * synchronous, stepped, or broken.
 *
 * With `native` it has the optional functions of 0.2 too: progress by number, events, prepared
 * launches, wrapped queues, modules. Its queues then run in any order that their waits allow
 * (`shuffle`), and what they run nobody is told of.
 *
 * For tests alone. One configuration per test program (`test_driver`); it registers as the driver
 * "test". What it runs it runs right: copies, fills and host kernels, one workgroup after the
 * other, in order of enqueuing over all queues.
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

/* CMocka has a macro `fail`: calls of environment->fail are written with parentheses around the
 * function. */

enum test_driver_mode {
  TEST_DRIVER_SYNCHRONOUS, /* work runs inside the enqueue */
  TEST_DRIVER_THREAD,      /* a thread runs it */
  TEST_DRIVER_STEPPED,     /* the test runs it with test_driver_step */
  TEST_DRIVER_CALLER,      /* device_progress runs it: ACCRT_DEVICE_FLAG_CALLER_RUNS */
};

enum test_driver_function {
  TEST_FUNCTION_OPEN,
  TEST_FUNCTION_DEVICE_OPEN,
  TEST_FUNCTION_MEMORY_ALLOCATE,
  TEST_FUNCTION_MEMORY_IMPORT,
  TEST_FUNCTION_MEMORY_EXPORT,
  TEST_FUNCTION_QUEUE_CREATE,
  TEST_FUNCTION_QUEUE_ENQUEUE,
  TEST_FUNCTION_QUEUE_EXECUTE,
  TEST_FUNCTION_QUEUE_NOTIFY,
  TEST_FUNCTION_QUEUE_RESET,
  TEST_FUNCTION_QUEUE_RUN,
  TEST_FUNCTION_LIST_CREATE,
  TEST_FUNCTION_RUN, /* a command fails while it runs */
  TEST_FUNCTION_QUEUE_PROGRESS,
  TEST_FUNCTION_QUEUE_WAIT,
  TEST_FUNCTION_EVENT_CREATE,
  TEST_FUNCTION_EVENT_RECORD,
  TEST_FUNCTION_EVENT_WAIT,
  TEST_FUNCTION_LAUNCH_CREATE,
  TEST_FUNCTION_QUEUE_LAUNCH,
  TEST_FUNCTION_MODULE_LOAD,
  TEST_FUNCTION_COUNT,
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
  uint32_t zeroed;           /* what it says of its memory */
  uint32_t abi_version;      /* 0: ours */
  uint32_t table_size_bytes; /* 0: ours */
  int no_import, no_export, no_run, no_host_memory_kind;
  int native;    /* has the functions of 0.2 */
  uint32_t seed; /* not 0: which queue goes on is chosen at random */
  const char* const* option_keys;
  /* the n-th call of a function from now fails with this status (n 1: the next) */
  atomic_int fail_at[TEST_FUNCTION_COUNT];
  accrt_status_t fail_status[TEST_FUNCTION_COUNT];
  /* what is there */
  atomic_long memory_bytes, mappings, imports, queues, lists, devices, drivers, runs;
  atomic_long events, launches, modules, natives;
  /* how often it was called */
  atomic_long notifies, records, waits, progresses, queue_waits;
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

/* Tests on the driver with the functions of 0.2 include the others with this set. */
#ifndef TEST_DRIVER_NATIVE
#define TEST_DRIVER_NATIVE 0
#endif

/* Somebody else's queue. */
typedef struct test_native {
  uint32_t device_index;
  atomic_int capturing;
} test_native_t;

struct accrt_driver_event {
  atomic_long references; /* of its maker and of jobs */
  uint64_t recorded;      /* under the driver's lock, as all below: counts records */
  uint64_t reached;       /* the latest of them that was reached */
  uint64_t time_ns;
  int failed; /* the latest that was reached carries `error` */
  accrt_error_t error;
};
struct accrt_driver_launch {
  const accrt_driver_kernel_t* kernel;
};
struct accrt_driver_module {
  uint32_t kind;
};

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
  test_native_t* native; /* wrapped */
  /* under the driver's lock */
  uint64_t enqueued, ended; /* numbers */
  int running;
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
  accrt_driver_event_t *recorded, *awaited; /* one reference */
  uint64_t sequence;                        /* of the record */
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
  test_driver.native = TEST_DRIVER_NATIVE;
  test_driver.seed = TEST_DRIVER_NATIVE ? 20261120u : 0;
  test_driver.device_count = 1;
  test_driver.memory_limit_bytes = UINT64_C(1) << 30;
  test_driver.granularity_bytes = 4096;
  test_driver.grow_bytes = 65536;
  (void)pthread_mutex_init(&test_driver.lock, NULL);
  (void)pthread_cond_init(&test_driver.changed, NULL);
}

static inline void test_driver_fail(enum test_driver_function function, int n,
                                    accrt_status_t status) {
  test_driver.fail_status[function] = status;
  atomic_store(&test_driver.fail_at[function], n);
}

static inline accrt_status_t test_fault(enum test_driver_function function, const char* name) {
  if (atomic_load(&test_driver.fail_at[function]) == 0 ||
      atomic_fetch_sub(&test_driver.fail_at[function], 1) != 1)
    return ACCRT_OK;
  const accrt_status_t status = test_driver.fail_status[function];
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
        accrt_kernel_workgroup_fn_t entry = dispatch->kernel->definition->entry;
        if (dispatch->kernel->module_kernel != NULL)
          memcpy(&entry, dispatch->kernel->module_kernel, sizeof entry);
        const int32_t code = entry(dispatch->kernel->environment, &call, &group);
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
  if (atomic_load(&test_driver.fail_at[TEST_FUNCTION_RUN]) != 0 &&
      atomic_fetch_sub(&test_driver.fail_at[TEST_FUNCTION_RUN], 1) == 1) {
    const accrt_status_t status = test_driver.fail_status[TEST_FUNCTION_RUN];
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

/* ---- Events ---- */

static inline void test_event_unref(accrt_driver_event_t* event) {
  if (event != NULL && atomic_fetch_sub(&event->references, 1) == 1)
    test_driver_free(event, sizeof *event);
}

static inline accrt_driver_event_t* test_event_ref(accrt_driver_event_t* event) {
  atomic_fetch_add(&event->references, 1);
  return event;
}

/* Under the lock. */
static inline void test_event_reach(const test_job_t* job, const accrt_error_t* error) {
  accrt_driver_event_t* event = job->recorded;
  if (job->sequence < event->reached)
    return;
  event->reached = job->sequence;
  event->time_ns = test_now_ns();
  event->failed = error != NULL;
  if (error != NULL)
    event->error = *error;
}

static inline void test_free_job(test_job_t* job) {
  test_event_unref(job->recorded);
  test_event_unref(job->awaited);
  test_driver_free(job->bindings, job->binding_count * sizeof *job->bindings);
  test_driver_free(job->scalars, job->scalar_count * sizeof *job->scalars);
  test_driver_free(job, sizeof *job);
}

static inline accrt_status_t test_run_work(test_job_t* job, accrt_error_t* error) {
  if (job->is_notify || job->recorded != NULL)
    return ACCRT_OK;
  if (job->awaited != NULL) {
    (void)pthread_mutex_lock(&test_driver.lock);
    const int failed = job->awaited->failed;
    *error = job->awaited->error;
    (void)pthread_mutex_unlock(&test_driver.lock);
    return failed ? error->status : ACCRT_OK;
  }
  return job->list != NULL
             ? test_run_all(job->list, job->bindings, job->scalars, job->number, error)
             : test_run_command(&job->command, job->bindings, job->scalars, job->number, error);
}

static inline void test_run_job(test_job_t* job) {
  accrt_driver_queue_t* queue = job->queue;
  accrt_status_t status = ACCRT_OK;
  accrt_error_t error;
  memset(&error, 0, sizeof error);
  if (atomic_load(&queue->failed)) {
    status = ACCRT_ERROR_POISONED;
    error = queue->error;
    if (!job->is_notify)
      error.status = status;
    else
      status = error.status;
  } else {
    status = test_run_work(job, &error);
    if (status != ACCRT_OK) {
      if (error.submission == 0)
        error.submission = job->number;
      queue->error = error;
      atomic_store(&queue->failed, 1);
    }
  }
  const accrt_driver_completion_t completion = job->completion;
  (void)pthread_mutex_lock(&test_driver.lock);
  if (job->recorded != NULL)
    test_event_reach(job, status == ACCRT_OK ? NULL : &queue->error);
  if (job->number > queue->ended && status == ACCRT_OK)
    queue->ended = job->number;
  queue->running = 0;
  atomic_fetch_sub(&queue->in_flight, 1);
  (void)pthread_cond_broadcast(&test_driver.changed);
  (void)pthread_mutex_unlock(&test_driver.lock);
  test_free_job(job);
  if (completion.done != NULL)
    completion.done(completion.user, status, status == ACCRT_OK ? NULL : &error, test_now_ns());
}

/* Whether a job may run: it is its queue's first, and what it waits for was reached. Under the
 * lock. */
static inline int test_may_run(const test_job_t* job) {
  if (job->queue->running)
    return 0;
  for (const test_job_t* before = test_driver.head; before != job; before = before->next) {
    if (before->queue == job->queue)
      return 0;
  }
  return job->awaited == NULL || job->awaited->reached >= job->sequence;
}

/* Takes the first job that may run, or one of them at random. Under the lock. */
static inline test_job_t* test_take_job(void) {
  test_job_t** chosen = NULL;
  uint32_t count = 0, seen = 0;
  for (test_job_t** link = &test_driver.head; *link != NULL; link = &(*link)->next) {
    if (++seen > 16 && chosen != NULL)
      break; /* enough of a choice */
    if (!test_may_run(*link))
      continue;
    count += 1;
    if (chosen == NULL) {
      chosen = link;
    } else if (test_driver.seed != 0) {
      test_driver.seed = test_driver.seed * 1664525u + 1013904223u;
      if ((test_driver.seed >> 8) % count == 0)
        chosen = link;
    }
    if (test_driver.seed == 0)
      break;
  }
  if (chosen == NULL)
    return NULL;
  test_job_t* job = *chosen;
  *chosen = job->next;
  job->next = NULL;
  job->queue->running = 1;
  test_driver.tail = NULL;
  for (test_job_t* at = test_driver.head; at != NULL; at = at->next)
    test_driver.tail = &at->next;
  return job;
}

/* Runs one job; 0 when there is none. */
static inline uint32_t test_driver_step(void) {
  (void)pthread_mutex_lock(&test_driver.lock);
  test_job_t* job = test_take_job();
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
    test_job_t* job;
    while ((job = test_take_job()) == NULL && !test_driver.stopping)
      (void)pthread_cond_wait(&test_driver.changed, &test_driver.lock);
    (void)pthread_mutex_unlock(&test_driver.lock);
    if (job == NULL)
      return NULL;
    test_run_job(job);
  }
}

/* Puts a job that has all it needs behind the others, or runs it. */
static inline void test_push_job(test_job_t* job) {
  (void)pthread_mutex_lock(&test_driver.lock);
  atomic_fetch_add(&job->queue->in_flight, 1);
  if (job->number > job->queue->enqueued)
    job->queue->enqueued = job->number;
  if (test_driver.mode == TEST_DRIVER_SYNCHRONOUS) {
    (void)pthread_mutex_unlock(&test_driver.lock);
    test_run_job(job);
    return;
  }
  if (test_driver.tail == NULL) {
    test_driver.head = job;
  } else {
    *test_driver.tail = job;
  }
  test_driver.tail = &job->next;
  (void)pthread_cond_broadcast(&test_driver.changed);
  (void)pthread_mutex_unlock(&test_driver.lock);
}

/* Refuses what is enqueued on a queue that its owner captures. */
static inline accrt_status_t test_check_capture(const accrt_driver_queue_t* queue,
                                                const char* operation) {
  if (queue->native == NULL || !atomic_load(&queue->native->capturing))
    return ACCRT_OK;
  return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_INVALID_STATE, 900,
                                         "TEST_CAPTURING", operation,
                                         "the queue is being captured");
}

static inline accrt_status_t test_add_job(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                          const accrt_driver_command_t* command,
                                          const accrt_driver_submission_t* submission,
                                          accrt_driver_completion_t completion) {
  const accrt_status_t status = test_check_capture(queue, "queue");
  if (status != ACCRT_OK)
    return status;
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
  test_push_job(job);
  return ACCRT_OK;
}

/* ---- The table ---- */

#define TEST_TRY(function)                                                                         \
  do {                                                                                             \
    const accrt_status_t fault_ = test_fault((function), __func__);                                \
    if (fault_ != ACCRT_OK)                                                                        \
      return fault_;                                                                               \
  } while (0)

static inline accrt_status_t test_open(const accrt_driver_environment_t* environment,
                                       accrt_driver_t** out_driver) {
  test_driver.environment = environment;
  *out_driver = NULL;
  TEST_TRY(TEST_FUNCTION_OPEN);
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
  TEST_TRY(TEST_FUNCTION_DEVICE_OPEN);
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
  out_info->zeroed = test_driver.zeroed;
}

static inline accrt_status_t test_memory_allocate(accrt_driver_device_t* device, uint32_t kind,
                                                  uint64_t size_bytes,
                                                  accrt_driver_memory_t* out_memory) {
  (void)device;
  (void)kind;
  memset(out_memory, 0, sizeof *out_memory);
  TEST_TRY(TEST_FUNCTION_MEMORY_ALLOCATE);
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
  TEST_TRY(TEST_FUNCTION_MEMORY_IMPORT);
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

/* Exports: handles are addresses, and work within the process; descriptors are there to be
 * closed. */
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
  TEST_TRY(TEST_FUNCTION_MEMORY_EXPORT);
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
  TEST_TRY(TEST_FUNCTION_QUEUE_CREATE);
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
  TEST_TRY(TEST_FUNCTION_QUEUE_ENQUEUE);
  return test_add_job(queue, NULL, command, submission, submission->completion);
}

static inline accrt_status_t test_queue_execute(accrt_driver_queue_t* queue,
                                                accrt_driver_list_t* list,
                                                const accrt_driver_submission_t* submission) {
  TEST_TRY(TEST_FUNCTION_QUEUE_EXECUTE);
  return test_add_job(queue, list, NULL, submission, submission->completion);
}

static inline accrt_status_t test_queue_run(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                            const accrt_driver_submission_t* submission) {
  TEST_TRY(TEST_FUNCTION_QUEUE_RUN);
  if (atomic_load(&queue->in_flight) != 0)
    return ACCRT_ERROR_NOT_READY;
  if (atomic_load(&queue->failed))
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_POISONED, 0, NULL,
                                           "queue_run", "the queue has failed");
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
  atomic_fetch_add(&test_driver.notifies, 1);
  TEST_TRY(TEST_FUNCTION_QUEUE_NOTIFY);
  return test_add_job(queue, NULL, NULL, NULL, completion);
}

/* ---- The functions of 0.2 ---- */

static inline accrt_status_t test_queue_failure(const accrt_driver_queue_t* queue,
                                                const char* operation) {
  const accrt_error_t* error = &queue->error;
  (void)operation;
  (void)(test_driver.environment->fail)(test_driver.environment, error->status, error->driver_code,
                                        error->driver_name, error->operation, error->message);
  return error->status;
}

static inline accrt_status_t test_queue_progress(accrt_driver_queue_t* queue,
                                                 uint64_t* out_number) {
  *out_number = 0;
  atomic_fetch_add(&test_driver.progresses, 1);
  TEST_TRY(TEST_FUNCTION_QUEUE_PROGRESS);
  (void)pthread_mutex_lock(&test_driver.lock);
  *out_number = queue->ended;
  (void)pthread_mutex_unlock(&test_driver.lock);
  return atomic_load(&queue->failed) ? test_queue_failure(queue, __func__) : ACCRT_OK;
}

/* Waits for something of the driver's to become true, running jobs itself where nobody else does.
 * Holds the lock when `ready` is asked. */
static inline accrt_status_t test_wait_until(int (*ready)(void* user), void* user,
                                             uint64_t timeout_ns) {
  const uint64_t begin_ns = test_now_ns();
  for (;;) {
    (void)pthread_mutex_lock(&test_driver.lock);
    const int done = ready(user);
    (void)pthread_mutex_unlock(&test_driver.lock);
    if (done)
      return ACCRT_OK;
    if (timeout_ns != UINT64_MAX && test_now_ns() - begin_ns >= timeout_ns)
      return ACCRT_ERROR_TIMEOUT;
    if (test_driver.mode != TEST_DRIVER_STEPPED || timeout_ns != UINT64_MAX ||
        test_driver_step() == 0) {
      const struct timespec pause = {0, 20000};
      (void)nanosleep(&pause, NULL);
    }
  }
}

typedef struct test_number {
  accrt_driver_queue_t* queue;
  uint64_t number;
} test_number_t;

static inline int test_number_ready(void* user) {
  const test_number_t* wanted = user;
  return wanted->queue->ended >= wanted->number || atomic_load(&wanted->queue->failed);
}

static inline accrt_status_t test_queue_wait(accrt_driver_queue_t* queue, uint64_t number,
                                             uint64_t timeout_ns, uint32_t policy) {
  (void)policy;
  atomic_fetch_add(&test_driver.queue_waits, 1);
  TEST_TRY(TEST_FUNCTION_QUEUE_WAIT);
  (void)pthread_mutex_lock(&test_driver.lock);
  test_number_t wanted = {queue, number < queue->enqueued ? number : queue->enqueued};
  (void)pthread_mutex_unlock(&test_driver.lock);
  const accrt_status_t status = test_wait_until(test_number_ready, &wanted, timeout_ns);
  if (atomic_load(&queue->failed))
    return test_queue_failure(queue, __func__);
  return status;
}

static inline accrt_status_t test_event_create(accrt_driver_device_t* device, uint32_t flags,
                                               accrt_driver_event_t** out_event) {
  (void)device;
  (void)flags;
  *out_event = NULL;
  TEST_TRY(TEST_FUNCTION_EVENT_CREATE);
  *out_event = test_driver_alloc(sizeof **out_event);
  if (*out_event == NULL)
    return test_no_memory(__func__);
  atomic_store(&(*out_event)->references, 1);
  atomic_fetch_add(&test_driver.events, 1);
  return ACCRT_OK;
}

static inline void test_event_destroy(accrt_driver_event_t* event) {
  test_event_unref(event);
  atomic_fetch_sub(&test_driver.events, 1);
}

static inline accrt_status_t test_add_event_job(accrt_driver_queue_t* queue,
                                                accrt_driver_event_t* event, int record) {
  const accrt_status_t status = test_check_capture(queue, record ? "record" : "wait");
  if (status != ACCRT_OK)
    return status;
  test_job_t* job = test_driver_alloc(sizeof *job);
  if (job == NULL)
    return test_no_memory("event");
  job->queue = queue;
  (void)pthread_mutex_lock(&test_driver.lock);
  job->sequence = record ? ++event->recorded : event->recorded;
  (void)pthread_mutex_unlock(&test_driver.lock);
  *(record ? &job->recorded : &job->awaited) = test_event_ref(event);
  test_push_job(job);
  return ACCRT_OK;
}

static inline accrt_status_t test_event_record(accrt_driver_queue_t* queue,
                                               accrt_driver_event_t* event) {
  atomic_fetch_add(&test_driver.records, 1);
  TEST_TRY(TEST_FUNCTION_EVENT_RECORD);
  return test_add_event_job(queue, event, 1);
}

static inline accrt_status_t test_event_wait(accrt_driver_queue_t* queue,
                                             accrt_driver_event_t* event) {
  atomic_fetch_add(&test_driver.waits, 1);
  TEST_TRY(TEST_FUNCTION_EVENT_WAIT);
  return test_add_event_job(queue, event, 0);
}

static inline int test_event_ready(void* user) {
  const accrt_driver_event_t* event = user;
  return event->reached >= event->recorded;
}

static inline accrt_status_t test_event_outcome(accrt_driver_event_t* event) {
  (void)pthread_mutex_lock(&test_driver.lock);
  const int ready = test_event_ready(event), failed = event->failed;
  const accrt_error_t error = event->error;
  (void)pthread_mutex_unlock(&test_driver.lock);
  if (!ready)
    return ACCRT_ERROR_NOT_READY;
  if (!failed)
    return ACCRT_OK;
  return (test_driver.environment->fail)(test_driver.environment, error.status, error.driver_code,
                                         error.driver_name, error.operation, error.message);
}

static inline accrt_status_t test_event_synchronize(accrt_driver_event_t* event,
                                                    uint64_t timeout_ns, uint32_t policy) {
  (void)policy;
  const accrt_status_t status = test_wait_until(test_event_ready, event, timeout_ns);
  return status == ACCRT_OK ? test_event_outcome(event) : status;
}

static inline accrt_status_t test_event_elapsed(accrt_driver_event_t* start,
                                                accrt_driver_event_t* end,
                                                int64_t* out_elapsed_ns) {
  (void)pthread_mutex_lock(&test_driver.lock);
  *out_elapsed_ns = (int64_t)(end->time_ns - start->time_ns);
  (void)pthread_mutex_unlock(&test_driver.lock);
  return ACCRT_OK;
}

static inline accrt_status_t test_launch_create(accrt_driver_device_t* device,
                                                const accrt_driver_kernel_t* kernel,
                                                accrt_driver_launch_t** out_launch) {
  (void)device;
  *out_launch = NULL;
  TEST_TRY(TEST_FUNCTION_LAUNCH_CREATE);
  *out_launch = test_driver_alloc(sizeof **out_launch);
  if (*out_launch == NULL)
    return test_no_memory(__func__);
  (*out_launch)->kernel = kernel;
  atomic_fetch_add(&test_driver.launches, 1);
  return ACCRT_OK;
}

static inline void test_launch_destroy(accrt_driver_launch_t* launch) {
  test_driver_free(launch, sizeof *launch);
  atomic_fetch_sub(&test_driver.launches, 1);
}

static inline accrt_status_t test_queue_launch(accrt_driver_queue_t* queue,
                                               accrt_driver_launch_t* launch,
                                               const uint32_t grid[3], const void* params,
                                               uint64_t number) {
  TEST_TRY(TEST_FUNCTION_QUEUE_LAUNCH);
  accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_DISPATCH, .name = "launch"};
  command.as.dispatch =
      (accrt_driver_dispatch_t){.kernel = launch->kernel,
                                .grid = {{grid[0], ACCRT_DRIVER_NONE, 0},
                                         {grid[1], ACCRT_DRIVER_NONE, 0},
                                         {grid[2], ACCRT_DRIVER_NONE, 0}},
                                .params = params,
                                .params_size_bytes = launch->kernel->definition->params_size_bytes};
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .number = number};
  const accrt_driver_completion_t nobody = {NULL, NULL};
  return test_add_job(queue, NULL, &command, &submission, nobody);
}

static inline accrt_status_t test_queue_wrap(accrt_driver_device_t* device, void* native,
                                             accrt_driver_queue_t** out_queue) {
  *out_queue = NULL;
  if (((test_native_t*)native)->device_index != device->index) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_INVALID_ARGUMENT, 0,
                                           NULL, __func__, "of another device");
  }
  TEST_TRY(TEST_FUNCTION_QUEUE_CREATE);
  *out_queue = test_driver_alloc(sizeof **out_queue);
  if (*out_queue == NULL)
    return test_no_memory(__func__);
  (*out_queue)->native = native;
  atomic_fetch_add(&test_driver.queues, 1);
  return ACCRT_OK;
}

static inline void* test_queue_native(accrt_driver_queue_t* queue) {
  return queue->native != NULL ? (void*)queue->native : (void*)queue;
}

/* A module's image is the text "test module"; its one kernel "add" has {address of a u32, u32}. */
static inline int32_t test_module_add(const accrt_kernel_environment_t* environment,
                                      const accrt_kernel_dispatch_t* dispatch,
                                      const accrt_kernel_workgroup_t* group) {
  (void)environment;
  (void)group;
  uint64_t address;
  uint32_t value;
  memcpy(&address, dispatch->params, sizeof address);
  memcpy(&value, (const char*)dispatch->params + 8, sizeof value);
  *(uint32_t*)(uintptr_t)address += value;
  return 0;
}

static inline accrt_status_t test_module_load(accrt_driver_device_t* device,
                                              const accrt_driver_image_t* image,
                                              accrt_driver_module_t** out_module) {
  (void)device;
  *out_module = NULL;
  TEST_TRY(TEST_FUNCTION_MODULE_LOAD);
  if (image->size_bytes < 11 || memcmp(image->data, "test module", 11) != 0) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_INVALID_FORMAT, 0,
                                           NULL, __func__, "no module of the test driver");
  }
  *out_module = test_driver_alloc(sizeof **out_module);
  if (*out_module == NULL)
    return test_no_memory(__func__);
  (*out_module)->kind = image->kind;
  atomic_fetch_add(&test_driver.modules, 1);
  return ACCRT_OK;
}

static inline void test_module_unload(accrt_driver_module_t* module) {
  test_driver_free(module, sizeof *module);
  atomic_fetch_sub(&test_driver.modules, 1);
}

static inline accrt_status_t test_module_find(accrt_driver_module_t* module, const char* entry,
                                              const accrt_kernel_def_t* declared,
                                              void** out_module_kernel) {
  static accrt_kernel_workgroup_fn_t add = test_module_add;
  (void)module;
  *out_module_kernel = NULL;
  if (strcmp(entry, "add") != 0) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_NOT_FOUND, 0, NULL,
                                           __func__, "no such kernel");
  }
  if (declared->params_size_bytes != 16) {
    return (test_driver.environment->fail)(test_driver.environment, ACCRT_ERROR_INVALID_FORMAT, 0,
                                           NULL, __func__, "its block has 16 bytes");
  }
  *out_module_kernel = &add;
  return ACCRT_OK;
}

static inline accrt_status_t test_queue_reset(accrt_driver_queue_t* queue) {
  TEST_TRY(TEST_FUNCTION_QUEUE_RESET);
  atomic_store(&queue->failed, 0);
  return ACCRT_OK;
}

static inline accrt_status_t test_list_create(accrt_driver_device_t* device,
                                              const accrt_driver_list_info_t* info,
                                              accrt_driver_list_t** out_list) {
  (void)device;
  *out_list = NULL;
  TEST_TRY(TEST_FUNCTION_LIST_CREATE);
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

/* Adds the functions of 0.2. */
static inline void test_driver_add_native(accrt_driver_table_t* table) {
  table->module_load = test_module_load;
  table->module_unload = test_module_unload;
  table->module_find = test_module_find;
  table->queue_progress = test_queue_progress;
  table->queue_wait = test_queue_wait;
  table->event_create = test_event_create;
  table->event_destroy = test_event_destroy;
  table->event_record = test_event_record;
  table->event_wait = test_event_wait;
  table->event_query = test_event_outcome;
  table->event_synchronize = test_event_synchronize;
  table->event_elapsed = test_event_elapsed;
  table->launch_create = test_launch_create;
  table->launch_destroy = test_launch_destroy;
  table->queue_launch = test_queue_launch;
  table->queue_wrap = test_queue_wrap;
  table->queue_native = test_queue_native;
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
  if (test_driver.native)
    test_driver_add_native(&table);
  return &table;
}

/* ---- A whole test's surroundings ---- */

/* Instance, device, and the proof at the end that nothing is left. */

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
         atomic_load(&test_driver.events) + atomic_load(&test_driver.launches) +
         atomic_load(&test_driver.modules) + atomic_load(&test_driver.drivers);
}

static inline long test_world_close(test_world_t* world) {
  accrt_device_release(world->device);
  accrt_instance_release(world->instance);
  return test_world_left(world);
}

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_H_ */
