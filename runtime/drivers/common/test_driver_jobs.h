/* runtime/drivers/common/test_driver_jobs.h - the work of the driver in test_driver.h: its state,
 * what a command does, and the jobs of its queues. Tests include test_driver.h. */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_JOBS_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_JOBS_H_

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
  void (*recorded)(void* user); /* called at the end of event_record; NULL: nothing */
  void* recorded_user;
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

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_TEST_DRIVER_JOBS_H_ */
