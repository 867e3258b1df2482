/* tests/cts/threaded.c - the null driver with a thread for each queue and every optional group:
 * modules, host operators with a context, progress by number, events, prepared launches, queues of
 * other libraries, memory for other processes, a second device that is a peer, queue_run. It is for
 * the suite's own tests: what the null driver cannot get wrong, because its work has ended before
 * anybody could ask, is got right here, and mutants get it wrong
 * (tests/python/test_cts_mutants.py).
 *
 * It includes null.c (-I its folder), runs its commands as they are, and may include public headers
 * and hooks.h only. One lock and one condition for the whole driver: few threads, and nothing here
 * is meant to be fast. */
#define _GNU_SOURCE /* memfd_create */
#define accrt_driver_query accrt_driver_plain_query
#include "null.c"
#undef accrt_driver_query

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "accrt/stream.h"
#include "hooks.h"

#define DEVICES 2u

/* ---- Objects: those of null.c come first in each, so that its functions take them ---- */

typedef struct point point_t;
typedef struct threaded_driver {
  accrt_driver_t base;
  pthread_mutex_t mutex;
  pthread_cond_t changed; /* anything below */
  point_t* free_points;
} threaded_driver_t;

typedef struct threaded_device {
  accrt_driver_device_t base;
  uint32_t index;
  uint32_t busy; /* one kernel at a time: all have worker id 0 */
} threaded_device_t;

/* One record of an event. Whoever waits for it holds it, whatever becomes of the event. */
struct point {
  point_t* next;
  uint32_t references;
  uint32_t reached;
  uint64_t time_ns;
  accrt_error_t failure; /* of the queue that it was recorded on */
};

struct accrt_driver_event {
  threaded_device_t* device;
  uint32_t flags;
  point_t* point; /* the latest record, or NULL */
};

struct accrt_driver_launch {
  threaded_device_t* device;
  accrt_driver_kernel_t kernel;
};

enum { JOB_COMMAND, JOB_LIST, JOB_NOTIFY, JOB_RECORD, JOB_WAIT };

typedef struct node node_t;
typedef struct threaded_queue threaded_queue_t;
typedef struct job {
  struct job* next;
  threaded_queue_t* queue; /* of the driver: it is told of the end */
  uint32_t kind;
  uint32_t numbered;                    /* COMMAND and LIST: `submission.number` counts */
  accrt_driver_submission_t submission; /* its arrays are in `block` */
  accrt_driver_command_t command;       /* and so are this one's */
  accrt_driver_kernel_t kernel;
  accrt_driver_list_t* list;
  point_t* point;
  unsigned char* block;
  size_t block_capacity_bytes;
} job_t;

#define INNER_FILLS 4u
/* A native queue: its thread runs jobs one after another, of the queue that owns it and of those
 * that wrap it. */
typedef struct native {
  threaded_device_t* device;
  pthread_t thread;
  job_t* first;
  job_t* last;
  uint32_t running; /* the thread has a job */
  uint32_t stop;
  uint32_t* destroyed;  /* on the thread's stack while it calls a completion */
  uint32_t is_captured; /* by its owner */
  node_t* graph;        /* what was captured */
  uint32_t takes_inner; /* an operator is being called */
  uint32_t inner_count; /* what it has enqueued */
  accrt_driver_fill_t inner[INNER_FILLS];
} native_t;

struct threaded_queue {
  accrt_driver_queue_t base; /* its failure is under the lock */
  native_t* native;
  uint32_t owns_native;
  uint32_t job_count; /* waiting or running */
  job_t* free_jobs;
  uint64_t enqueued_number;
  uint64_t running_number;  /* of the job that the thread has; 0: none, or it has no number */
  uint64_t ended_number;    /* well or not */
  uint64_t good_number;     /* the last that succeeded */
  uint64_t captured_number; /* the last that became part of a capture: over with those before it */
};

static threaded_driver_t* driver_of(const accrt_driver_device_t* device) {
  return (threaded_driver_t*)device->driver;
}

static threaded_driver_t* lock_of(const threaded_queue_t* queue) {
  threaded_driver_t* driver = driver_of(queue->base.device);
  pthread_mutex_lock(&driver->mutex);
  return driver;
}

static void unlock(threaded_driver_t* driver) {
  pthread_cond_broadcast(&driver->changed);
  pthread_mutex_unlock(&driver->mutex);
}

static accrt_status_t report(const threaded_driver_t* driver, const accrt_error_t* error) {
  const accrt_driver_environment_t* environment = driver->base.environment;
  return environment->fail(environment, error->status, error->driver_code, NULL, error->operation,
                           error->message);
}

static accrt_status_t refuse(const threaded_driver_t* driver, accrt_status_t status,
                             const char* operation, const char* message) {
  return driver->base.environment->fail(driver->base.environment, status, 0, NULL, operation,
                                        message);
}

static int is_captured(const threaded_queue_t* queue) {
  threaded_driver_t* driver = lock_of(queue);
  const int captured = queue->native->is_captured != 0;
  pthread_mutex_unlock(&driver->mutex);
  return captured;
}

static accrt_status_t refuse_captured(const threaded_queue_t* queue, const char* operation) {
  return refuse(driver_of(queue->base.device), ACCRT_ERROR_INVALID_STATE, operation,
                "the queue is being captured by its owner; nothing was enqueued");
}

/* Waits for a change until `deadline_ns` (ACCRT_TIMEOUT_INFINITE: for ever). 0: it is over. Under
 * the lock. */
static int wait_change(threaded_driver_t* driver, uint64_t deadline_ns) {
  if (deadline_ns == ACCRT_TIMEOUT_INFINITE)
    return pthread_cond_wait(&driver->changed, &driver->mutex) == 0;
  const struct timespec until = {.tv_sec = (time_t)(deadline_ns / UINT64_C(1000000000)),
                                 .tv_nsec = (long)(deadline_ns % UINT64_C(1000000000))};
  return pthread_cond_timedwait(&driver->changed, &driver->mutex, &until) == 0;
}

static uint64_t deadline_of(uint64_t timeout_ns) {
  const uint64_t now = now_ns();
  return timeout_ns > UINT64_MAX - 1 - now ? ACCRT_TIMEOUT_INFINITE : now + timeout_ns;
}

/* ---- Driver and devices ---- */

static accrt_status_t threaded_open(const accrt_driver_environment_t* environment,
                                    accrt_driver_t** out_driver) {
  *out_driver = NULL;
  threaded_driver_t* driver = allocate(environment, sizeof *driver, "threaded.open");
  if (driver == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  driver->base.environment = environment;
  pthread_mutex_init(&driver->mutex, NULL);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&driver->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  *out_driver = &driver->base;
  return ACCRT_OK;
}

static void threaded_close(accrt_driver_t* base) {
  threaded_driver_t* driver = (threaded_driver_t*)base;
  const accrt_driver_environment_t* environment = base->environment;
  while (driver->free_points != NULL) {
    point_t* point = driver->free_points;
    driver->free_points = point->next;
    deallocate(environment, point, sizeof *point);
  }
  pthread_cond_destroy(&driver->changed);
  pthread_mutex_destroy(&driver->mutex);
  deallocate(environment, driver, sizeof *driver);
}

static uint32_t threaded_device_count(accrt_driver_t* driver) {
  (void)driver;
  return DEVICES;
}

static accrt_status_t threaded_device_open(accrt_driver_t* driver, uint32_t index,
                                           accrt_driver_device_t** out_device) {
  *out_device = NULL;
  threaded_device_t* device = allocate(driver->environment, sizeof *device, "threaded.device_open");
  if (device == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  device->base.driver = driver;
  device->index = index;
  *out_device = &device->base;
  return ACCRT_OK;
}

static void threaded_device_close(accrt_driver_device_t* device) {
  deallocate(device->driver->environment, device, sizeof(threaded_device_t));
}

static void threaded_device_info(accrt_driver_device_t* device, accrt_device_info_t* out_info) {
  device_info(device, out_info);
  out_info->flags &= ~ACCRT_DEVICE_FLAG_ENQUEUE_RUNS;
  snprintf(out_info->description, sizeof out_info->description,
           "null device with a thread for each queue");
}

static accrt_status_t threaded_enable_peer(accrt_driver_device_t* device,
                                           accrt_driver_device_t* peer) {
  (void)device; /* the memory of both is the host's */
  (void)peer;
  return ACCRT_OK;
}

#include "threaded_memory.c"

#include "threaded_modules.c"

/* ---- Points ---- */

static point_t* take_point(threaded_driver_t* driver) {
  pthread_mutex_lock(&driver->mutex);
  point_t* point = driver->free_points;
  if (point != NULL)
    driver->free_points = point->next;
  pthread_mutex_unlock(&driver->mutex);
  if (point == NULL)
    point = allocate(driver->base.environment, sizeof *point, "event_record");
  if (point != NULL)
    memset(point, 0, sizeof *point);
  return point;
}

/* Under the lock. */
static void drop_point(threaded_driver_t* driver, point_t* point) {
  if (point == NULL || --point->references != 0)
    return;
  point->next = driver->free_points;
  driver->free_points = point;
}

/* ---- Jobs ---- */

static job_t* take_job(threaded_queue_t* queue, uint32_t kind, size_t block_bytes) {
  threaded_driver_t* driver = lock_of(queue);
  job_t* job = queue->free_jobs;
  if (job != NULL)
    queue->free_jobs = job->next;
  pthread_mutex_unlock(&driver->mutex);
  const accrt_driver_environment_t* environment = driver->base.environment;
  if (job == NULL)
    job = allocate(environment, sizeof *job, "queue");
  if (job == NULL)
    return NULL;
  if (block_bytes > job->block_capacity_bytes) {
    if (job->block != NULL)
      deallocate(environment, job->block, job->block_capacity_bytes);
    job->block_capacity_bytes = 0;
    job->block = allocate(environment, block_bytes, "queue");
    if (job->block == NULL) {
      deallocate(environment, job, sizeof *job);
      return NULL;
    }
    job->block_capacity_bytes = block_bytes;
  }
  unsigned char* block = job->block;
  const size_t capacity_bytes = job->block_capacity_bytes;
  memset(job, 0, sizeof *job);
  job->block = block;
  job->block_capacity_bytes = capacity_bytes;
  job->kind = kind;
  job->queue = queue;
  return job;
}

static void append(threaded_queue_t* queue, job_t* job) {
  threaded_driver_t* driver = lock_of(queue);
  if (job->numbered)
    queue->enqueued_number = job->submission.number;
  native_t* native = queue->native;
  if (native->first == NULL) {
    native->first = job;
  } else {
    native->last->next = job;
  }
  native->last = job;
  ++queue->job_count;
  unlock(driver);
}

static size_t padded(size_t size_bytes) {
  return (size_bytes + 15u) & ~(size_t)15u;
}

/* Copies an array behind what the block has. */
static const void* keep(unsigned char** cursor, const void* data, size_t size_bytes) {
  void* place = *cursor;
  if (size_bytes != 0)
    memcpy(place, data, size_bytes);
  *cursor += padded(size_bytes);
  return place;
}

static size_t submission_bytes(const accrt_driver_submission_t* submission) {
  return padded(submission->binding_count * sizeof *submission->bindings) +
         padded(submission->scalar_count * sizeof *submission->scalars);
}

static void keep_submission(unsigned char** cursor, const accrt_driver_submission_t* submission,
                            accrt_driver_submission_t* out_submission) {
  *out_submission = *submission;
  out_submission->bindings =
      keep(cursor, submission->bindings, submission->binding_count * sizeof *submission->bindings);
  out_submission->scalars =
      keep(cursor, submission->scalars, submission->scalar_count * sizeof *submission->scalars);
}

static size_t command_bytes(const accrt_driver_command_t* command) {
  size_t bytes = command->name == NULL ? 0 : padded(strlen(command->name) + 1);
  if (command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH)
    bytes += padded(command->as.dispatch.params_size_bytes) +
             padded(command->as.dispatch.patch_count * sizeof(accrt_driver_patch_t));
  return bytes;
}

static void keep_command(unsigned char** cursor, const accrt_driver_command_t* command,
                         job_t* job) {
  job->command = *command;
  job->command.predecessor_count = 0;
  job->command.predecessors = NULL;
  if (command->name != NULL)
    job->command.name = keep(cursor, command->name, strlen(command->name) + 1);
  if (command->opcode != ACCRT_DRIVER_COMMAND_DISPATCH)
    return;
  const accrt_driver_dispatch_t* dispatch = &command->as.dispatch;
  job->kernel = *dispatch->kernel;
  job->command.as.dispatch.kernel = &job->kernel;
  job->command.as.dispatch.params = keep(cursor, dispatch->params, dispatch->params_size_bytes);
  job->command.as.dispatch.patches =
      keep(cursor, dispatch->patches, dispatch->patch_count * sizeof(accrt_driver_patch_t));
}

static accrt_status_t capture_list(threaded_queue_t* queue, const accrt_driver_list_t* list,
                                   const accrt_driver_submission_t* submission);

static accrt_status_t threaded_enqueue(accrt_driver_queue_t* base,
                                       const accrt_driver_command_t* command,
                                       const accrt_driver_submission_t* submission) {
  threaded_queue_t* queue = (threaded_queue_t*)base;
  if (!is_known(command->opcode)) /* now: the queue's thread could only fail the queue */
    return refuse_kind(base->device->driver->environment, command->opcode, "queue_enqueue");
  if (is_captured(queue))
    return refuse_captured(queue, "queue_enqueue");
  job_t* job = take_job(queue, JOB_COMMAND, command_bytes(command) + submission_bytes(submission));
  if (job == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  unsigned char* cursor = job->block;
  keep_command(&cursor, command, job);
  keep_submission(&cursor, submission, &job->submission);
  job->numbered = 1;
  append(queue, job);
  return ACCRT_OK;
}

static accrt_status_t threaded_execute(accrt_driver_queue_t* base, accrt_driver_list_t* list,
                                       const accrt_driver_submission_t* submission) {
  threaded_queue_t* queue = (threaded_queue_t*)base;
  if (is_captured(queue))
    return capture_list(queue, list, submission);
  job_t* job = take_job(queue, JOB_LIST, submission_bytes(submission));
  if (job == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  unsigned char* cursor = job->block;
  keep_submission(&cursor, submission, &job->submission);
  job->list = list;
  job->numbered = 1;
  append(queue, job);
  return ACCRT_OK;
}

static accrt_status_t threaded_notify(accrt_driver_queue_t* base,
                                      accrt_driver_completion_t completion) {
  threaded_queue_t* queue = (threaded_queue_t*)base;
  if (is_captured(queue))
    return refuse_captured(queue, "queue_notify");
  job_t* job = take_job(queue, JOB_NOTIFY, 0);
  if (job == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  job->submission.completion = completion;
  append(queue, job);
  return ACCRT_OK;
}

/* ---- Prepared launches ---- */

static accrt_status_t launch_create(accrt_driver_device_t* device,
                                    const accrt_driver_kernel_t* kernel,
                                    accrt_driver_launch_t** out_launch) {
  *out_launch = NULL;
  accrt_driver_launch_t* launch =
      allocate(device->driver->environment, sizeof *launch, "launch_create");
  if (launch == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  launch->device = (threaded_device_t*)device;
  launch->kernel = *kernel;
  *out_launch = launch;
  return ACCRT_OK;
}

static void launch_destroy(accrt_driver_launch_t* launch) {
  deallocate(launch->device->base.driver->environment, launch, sizeof *launch);
}

static accrt_status_t queue_launch(accrt_driver_queue_t* queue, accrt_driver_launch_t* launch,
                                   const uint32_t grid[3], const void* params, uint64_t number) {
  const accrt_driver_command_t command = {
      .opcode = ACCRT_DRIVER_COMMAND_DISPATCH,
      .as.dispatch = {.kernel = &launch->kernel,
                      .grid = {{.constant = grid[0], .scalar = ACCRT_DRIVER_NONE},
                               {.constant = grid[1], .scalar = ACCRT_DRIVER_NONE},
                               {.constant = grid[2], .scalar = ACCRT_DRIVER_NONE}},
                      .params = params,
                      .params_size_bytes = launch->kernel.definition->params_size_bytes}};
  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,
                                                .number = number};
  return threaded_enqueue(queue, &command, &submission);
}

/* ---- A queue's thread ---- */

/* Kernels of the host and of modules, and operators. */
static accrt_status_t run_code(threaded_queue_t* queue, const accrt_driver_command_t* command,
                               const accrt_driver_submission_t* submission,
                               accrt_error_t* out_error) {
  if (command->opcode == ACCRT_DRIVER_COMMAND_OPERATOR)
    return run_operator(queue, command, submission, out_error);
  if (command->as.dispatch.kernel->module_kernel == NULL)
    return run_command(&queue->base, command, submission, out_error);
  accrt_kernel_def_t definition;
  accrt_driver_kernel_t kernel;
  enter_module(command->as.dispatch.kernel, &definition, &kernel);
  accrt_driver_command_t own = *command;
  own.as.dispatch.kernel = &kernel;
  return run_command(&queue->base, &own, submission, out_error);
}

static accrt_status_t run_one(threaded_queue_t* queue, const accrt_driver_command_t* command,
                              const accrt_driver_submission_t* submission,
                              accrt_error_t* out_error) {
  if (command->opcode != ACCRT_DRIVER_COMMAND_DISPATCH &&
      command->opcode != ACCRT_DRIVER_COMMAND_OPERATOR)
    return run_command(&queue->base, command, submission, out_error);
  threaded_device_t* device = (threaded_device_t*)queue->base.device;
  threaded_driver_t* driver = lock_of(queue);
  while (device->busy)
    wait_change(driver, ACCRT_TIMEOUT_INFINITE);
  device->busy = 1;
  pthread_mutex_unlock(&driver->mutex);
  const accrt_status_t status = run_code(queue, command, submission, out_error);
  lock_of(queue);
  device->busy = 0;
  unlock(driver);
  return status;
}

/* Every command, looking before each whether it is cancelled. */
static accrt_status_t run_all(threaded_queue_t* queue, const accrt_driver_command_t* commands,
                              uint32_t count, const accrt_driver_submission_t* submission,
                              accrt_error_t* out_error) {
  accrt_status_t status = is_cancelled(&queue->base)
                              ? report_cancelled("commands", 0, count, submission, out_error)
                              : ACCRT_OK;
  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i) {
    status = is_cancelled(&queue->base)
                 ? report_cancelled("commands", i, count, submission, out_error)
                 : run_one(queue, &commands[i], submission, out_error);
  }
  return status;
}

/* What follows waits for the point; its failure becomes the queue's. A cancelled queue waits for
 * nothing. */
static accrt_status_t run_wait(threaded_queue_t* queue, job_t* job, accrt_error_t* out_error) {
  threaded_driver_t* driver = lock_of(queue);
  while (!job->point->reached && !is_cancelled(&queue->base))
    wait_change(driver, ACCRT_TIMEOUT_INFINITE);
  const accrt_status_t status = job->point->reached ? job->point->failure.status : ACCRT_OK;
  if (status != ACCRT_OK)
    *out_error = job->point->failure;
  drop_point(driver, job->point);
  unlock(driver);
  return status;
}

static void reach_point(threaded_queue_t* queue, job_t* job, const accrt_error_t* error) {
  threaded_driver_t* driver = lock_of(queue);
  job->point->failure = *error;
  job->point->time_ns = now_ns();
  job->point->reached = 1;
  drop_point(driver, job->point);
  unlock(driver);
}

/* Behind a failure: work is skipped, what only tells tells it. */
static void skip(threaded_queue_t* queue, job_t* job, accrt_error_t* error) {
  if (job->kind == JOB_WAIT) {
    threaded_driver_t* driver = lock_of(queue);
    drop_point(driver, job->point);
    unlock(driver);
  }
  if (job->numbered && error->status != ACCRT_ERROR_CANCELLED)
    error->status = ACCRT_ERROR_POISONED;
}

/* Runs it, or skips it. *error: the queue's failure so far, then the job's. */
static void run_job(threaded_queue_t* queue, job_t* job, accrt_error_t* error) {
  if (error->status == ACCRT_OK && is_cancelled(&queue->base) && !job->numbered)
    report_cancelled("commands", 0, 0, &job->submission, error);
  if (error->status != ACCRT_OK) {
    skip(queue, job, error);
  } else if (job->kind == JOB_COMMAND) {
    run_all(queue, &job->command, 1, &job->submission, error);
  } else if (job->kind == JOB_LIST) {
    run_all(queue, job->list->commands, job->list->command_count, &job->submission, error);
  } else if (job->kind == JOB_WAIT) {
    run_wait(queue, job, error);
  }
  if (job->kind == JOB_RECORD)
    reach_point(queue, job, error);
}

/* What was captured is over when what came before it has ended. Under the lock. */
static void pass_captured(threaded_queue_t* queue) {
  for (const job_t* job = queue->native->first; job != NULL; job = job->next) {
    if (job->queue == queue && job->numbered && job->submission.number < queue->captured_number)
      return;
  }
  if (queue->captured_number > queue->ended_number && queue->base.failure.status == ACCRT_OK)
    queue->ended_number = queue->good_number = queue->captured_number;
}

/* Everything about the job is told before anybody hears of its end. */
static void end_job(threaded_queue_t* queue, job_t* job, const accrt_error_t* error) {
  threaded_driver_t* driver = lock_of(queue);
  const uint32_t only_tells = job->kind == JOB_NOTIFY || job->kind == JOB_RECORD;
  if (error->status != ACCRT_OK && !only_tells && queue->base.failure.status == ACCRT_OK)
    queue->base.failure = *error;
  if (job->numbered) {
    queue->ended_number = job->submission.number;
    if (error->status == ACCRT_OK)
      queue->good_number = job->submission.number;
  }
  pass_captured(queue);
  job->next = queue->free_jobs;
  queue->free_jobs = job;
  queue->native->running = 0;
  --queue->job_count;
  queue->running_number = 0;
  unlock(driver);
}

static void* work(void* argument) {
  native_t* native = argument;
  uint32_t destroyed = 0;
  threaded_driver_t* driver = driver_of(&native->device->base);
  pthread_mutex_lock(&driver->mutex);
  native->destroyed = &destroyed;
  for (;;) {
    while (native->first == NULL && !native->stop)
      wait_change(driver, ACCRT_TIMEOUT_INFINITE);
    job_t* job = native->first;
    if (job == NULL)
      break;
    native->first = job->next;
    native->running = 1;
    threaded_queue_t* queue = job->queue;
    queue->running_number = job->numbered ? job->submission.number : 0;
    accrt_error_t error = queue->base.failure;
    pthread_mutex_unlock(&driver->mutex);
    run_job(queue, job, &error);
    const accrt_driver_completion_t completion = job->submission.completion;
    end_job(queue, job, &error);
    complete(completion, error.status == ACCRT_OK ? NULL : &error);
    if (destroyed)
      return NULL; /* by the completion: the queue is gone */
    pthread_mutex_lock(&driver->mutex);
  }
  pthread_mutex_unlock(&driver->mutex);
  return NULL;
}

/* ---- Queues ---- */

static native_t* make_native(threaded_device_t* device) {
  const accrt_driver_environment_t* environment = device->base.driver->environment;
  native_t* native = allocate(environment, sizeof *native, "queue_create");
  if (native == NULL)
    return NULL;
  native->device = device;
  if (pthread_create(&native->thread, NULL, work, native) != 0) {
    deallocate(environment, native, sizeof *native);
    refuse(driver_of(&device->base), ACCRT_ERROR_OUT_OF_MEMORY, "queue_create", "no thread");
    return NULL;
  }
  return native;
}

static accrt_status_t threaded_queue_create(accrt_driver_device_t* device, int32_t priority,
                                            accrt_driver_queue_t** out_queue) {
  (void)priority;
  *out_queue = NULL;
  threaded_queue_t* queue = allocate(device->driver->environment, sizeof *queue, "queue_create");
  if (queue == NULL)
    return ACCRT_ERROR_OUT_OF_MEMORY;
  queue->base.device = device;
  queue->owns_native = 1;
  queue->native = make_native((threaded_device_t*)device);
  if (queue->native == NULL) {
    deallocate(device->driver->environment, queue, sizeof *queue);
    return ACCRT_ERROR_OUT_OF_MEMORY;
  }
  *out_queue = &queue->base;
  return ACCRT_OK;
}

static void destroy_native(threaded_driver_t* driver, native_t* native) {
  pthread_mutex_lock(&driver->mutex);
  native->stop = 1;
  unlock(driver);
  if (pthread_equal(pthread_self(), native->thread)) {
    *native->destroyed = 1;
    pthread_detach(native->thread);
  } else {
    pthread_join(native->thread, NULL);
  }
  deallocate(driver->base.environment, native, sizeof *native);
}

/* The thread, which goes on, has nothing more to do with the queue. The native queue is not looked
 * at: without jobs it may be gone. */
static void leave_native(threaded_driver_t* driver, const threaded_queue_t* queue) {
  pthread_mutex_lock(&driver->mutex);
  while (queue->job_count != 0)
    wait_change(driver, ACCRT_TIMEOUT_INFINITE);
  pthread_mutex_unlock(&driver->mutex);
}

static void threaded_queue_destroy(accrt_driver_queue_t* base) {
  threaded_queue_t* queue = (threaded_queue_t*)base;
  threaded_driver_t* driver = driver_of(base->device);
  if (queue->owns_native)
    destroy_native(driver, queue->native);
  else
    leave_native(driver, queue);
  const accrt_driver_environment_t* environment = driver->base.environment;
  while (queue->free_jobs != NULL) {
    job_t* job = queue->free_jobs;
    queue->free_jobs = job->next;
    if (job->block != NULL)
      deallocate(environment, job->block, job->block_capacity_bytes);
    deallocate(environment, job, sizeof *job);
  }
  deallocate(environment, queue, sizeof *queue);
}

static accrt_status_t threaded_reset(accrt_driver_queue_t* base) {
  threaded_driver_t* driver = lock_of((threaded_queue_t*)base);
  queue_reset(base);
  unlock(driver);
  return ACCRT_OK;
}

static void threaded_cancel(accrt_driver_queue_t* base) {
  threaded_driver_t* driver = lock_of((threaded_queue_t*)base);
  queue_cancel(base);
  unlock(driver); /* wakes it where it waits for an event */
}

static accrt_status_t threaded_run(accrt_driver_queue_t* base, accrt_driver_list_t* list,
                                   const accrt_driver_submission_t* submission) {
  threaded_queue_t* queue = (threaded_queue_t*)base;
  threaded_driver_t* driver = lock_of(queue);
  const uint32_t busy = queue->native->first != NULL || queue->native->running;
  accrt_error_t error = queue->base.failure;
  pthread_mutex_unlock(&driver->mutex);
  if (busy)
    return ACCRT_ERROR_NOT_READY;
  if (error.status != ACCRT_OK) {
    if (error.status != ACCRT_ERROR_CANCELLED)
      error.status = ACCRT_ERROR_POISONED;
    return report(driver, &error);
  }
  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)
    return report(driver, &error);
  return ACCRT_OK;
}

/* ---- Progress by number ---- */

/* The last submission up to `number` that was enqueued and may not have ended: numbers have gaps.
 * Under the lock. */
static uint64_t last_up_to(const threaded_queue_t* queue, uint64_t number) {
  if (number >= queue->enqueued_number)
    return queue->enqueued_number;
  uint64_t last = queue->running_number <= number ? queue->running_number : 0;
  for (const job_t* job = queue->native->first; job != NULL; job = job->next) {
    if (job->queue == queue && job->numbered && job->submission.number <= number)
      last = job->submission.number;
  }
  return last;
}

static accrt_status_t queue_progress(accrt_driver_queue_t* base, uint64_t* out_number) {
  threaded_queue_t* queue = (threaded_queue_t*)base;
  threaded_driver_t* driver = lock_of(queue);
  const accrt_error_t failure = queue->base.failure;
  /* Of a healthy queue all have ended, also those that had failed before a reset. */
  *out_number = failure.status == ACCRT_OK ? queue->ended_number : queue->good_number;
  pthread_mutex_unlock(&driver->mutex);
  return failure.status == ACCRT_OK ? ACCRT_OK : report(driver, &failure);
}

static accrt_status_t queue_wait(accrt_driver_queue_t* base, uint64_t number, uint64_t timeout_ns,
                                 uint32_t policy) {
  (void)policy; /* always sleeps */
  threaded_queue_t* queue = (threaded_queue_t*)base;
  const uint64_t deadline_ns = deadline_of(timeout_ns);
  threaded_driver_t* driver = lock_of(queue);
  const uint64_t target = last_up_to(queue, number);
  int in_time = 1;
  while (queue->ended_number < target && in_time)
    in_time = wait_change(driver, deadline_ns);
  const int reached = queue->ended_number >= target;
  const accrt_error_t failure = queue->base.failure;
  pthread_mutex_unlock(&driver->mutex);
  if (failure.status != ACCRT_OK)
    return report(driver, &failure);
  if (!reached)
    return refuse(driver, ACCRT_ERROR_TIMEOUT, "queue_wait", "the time was over");
  return ACCRT_OK;
}

#include "threaded_events.c"

#include "threaded_captures.c"

/* ---- The table: null.c's, with everything of above ---- */

static const accrt_driver_table_t threaded_table = {
    .struct_size = (uint32_t)sizeof threaded_table,
    .abi_version = ACCRT_DRIVER_ABI_VERSION,
    .name = "threaded",
    .open = threaded_open,
    .close = threaded_close,
    .device_count = threaded_device_count,
    .device_open = threaded_device_open,
    .device_close = threaded_device_close,
    .device_info = threaded_device_info,
    .memory_info = memory_info,
    .memory_allocate = memory_allocate,
    .memory_free = threaded_memory_free,
    .memory_import = memory_import,
    .memory_unimport = threaded_unimport,
    .module_load = module_load,
    .module_unload = module_unload,
    .module_find = module_find,
    .queue_create = threaded_queue_create,
    .queue_destroy = threaded_queue_destroy,
    .queue_enqueue = threaded_enqueue,
    .queue_execute = threaded_execute,
    .queue_run = threaded_run,
    .queue_notify = threaded_notify,
    .queue_reset = threaded_reset,
    .list_create = threaded_list_create,
    .list_destroy = threaded_list_destroy,
    .queue_progress = queue_progress,
    .queue_wait = queue_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .launch_create = launch_create,
    .launch_destroy = launch_destroy,
    .queue_launch = queue_launch,
    .queue_wrap = queue_wrap,
    .queue_native = queue_native,
    .memory_allocate_exportable = allocate_exportable,
    .memory_export = memory_export,
    .memory_import_handle = memory_import_handle,
    .device_enable_peer = threaded_enable_peer,
    .operator_workspace = operator_workspace,
    .queue_cancel = threaded_cancel,
};

__attribute__((visibility("default"))) const accrt_driver_table_t*
accrt_driver_query(uint32_t max_abi);

const accrt_driver_table_t* accrt_driver_query(uint32_t max_abi) {
  return max_abi >> 16 == ACCRT_DRIVER_ABI_MAJOR ? &threaded_table : NULL;
}
