/* runtime/drivers/host/queue_test.c - asynchronous queues: order, several at once, failure and
 * skipping, progress by number, an embedder's executor, no threads at all, memory that runs out,
 * and no allocation once warm.
 */
#include "accrt/stream.h"
#include "runtime/drivers/host/testing.h"

static const char* const thread_counts[] = {"0", "1", "2", "4"};

static void for_devices(void (*body)(test_device_t*)) {
  for (size_t i = 0; i < sizeof thread_counts / sizeof thread_counts[0]; ++i) {
    test_device_t test;
    test_environment_init(&test.environment, thread_counts[i]);
    test_set_option(&test.environment, "host.spin_us", i % 2 == 0 ? "0" : "50");
    test_device_open_prepared(&test);
    body(&test);
    test_device_close(&test);
  }
}

/* Appends its number to a log that one queue owns: unsynchronized on purpose, the queue's order
 * must do. */
typedef struct log_params {
  uint32_t* log;
  uint32_t* length;
  uint32_t number;
  uint32_t fail; /* returns this */
} log_params_t;

static int32_t append_log(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const log_params_t* params = dispatch->params;
  if (params->fail != 0) {
    snprintf(workgroup->message, workgroup->message_capacity_bytes, "number %u", params->number);
    return (int32_t)params->fail;
  }
  params->log[(*params->length)++] = params->number;
  return 0;
}

static const accrt_kernel_def_t log_definition = {
    .struct_size = (uint32_t)sizeof(accrt_kernel_def_t), .name = "log", .entry = append_log};
static const accrt_driver_kernel_t log_kernel = {&log_definition, &test_kernel_environment, NULL};
static const uint32_t one[3] = {1, 1, 1};

static void enqueue_log(test_device_t* test, accrt_driver_queue_t* queue,
                        const log_params_t* params, test_signal_t* signal) {
  const accrt_driver_command_t command = test_dispatch(&log_kernel, one, params, sizeof *params);
  accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  submission.number = params->number;
  if (signal != NULL)
    submission.completion = test_completion(signal);
  assert_int_equal(test->table->queue_enqueue(queue, &command, &submission), ACCRT_OK);
}

#define ENTRIES 200
#define QUEUES 9

static void check_order(test_device_t* test) {
  static uint32_t logs[QUEUES][ENTRIES];
  static test_signal_t ends[QUEUES];
  uint32_t lengths[QUEUES] = {0};
  accrt_driver_queue_t* queues[QUEUES];
  memset(ends, 0, sizeof ends);
  for (int q = 0; q < QUEUES; ++q) {
    assert_int_equal(test->table->queue_create(test->device, q - 4, &queues[q]), ACCRT_OK);
  }
  for (uint32_t i = 0; i < ENTRIES; ++i) {
    for (int q = 0; q < QUEUES; ++q) {
      const log_params_t params = {.log = logs[q], .length = &lengths[q], .number = i};
      enqueue_log(test, queues[q], &params, NULL);
    }
  }
  for (int q = 0; q < QUEUES; ++q) {
    assert_int_equal(test->table->queue_notify(queues[q], test_completion(&ends[q])), ACCRT_OK);
  }
  for (int q = 0; q < QUEUES; ++q) {
    test_signal_wait(test, &ends[q], 1);
    assert_int_equal(ends[q].status, ACCRT_OK);
    assert_true(ends[q].time_ns != 0);
    assert_int_equal(lengths[q], ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; ++i)
      assert_int_equal(logs[q][i], i);
    test->table->queue_destroy(queues[q]);
  }
}

static void test_order(void** state) {
  (void)state;
  for_devices(check_order);
}

/* Lists, copies and fills through one queue, each seeing what was before. */
static void check_mixed(test_device_t* test) {
  static uint32_t log[64];
  uint32_t length = 0;
  static unsigned char area[3 << 20];
  static unsigned char copied[3 << 20];
  test_signal_t end = {0};
  accrt_driver_queue_t* queue;
  assert_int_equal(test->table->queue_create(test->device, 0, &queue), ACCRT_OK);
  const log_params_t params = {.log = log, .length = &length, .number = 5};
  const accrt_driver_command_t list_command =
      test_dispatch(&log_kernel, one, &params, sizeof params);
  accrt_driver_list_t* list;
  assert_int_equal(
      test->table->list_create(
          test->device,
          &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                      .command_count = 1,
                                      .commands = &list_command,
                                      .binding_count = 0,
                                      .scalar_count = 0},
          &list),
      ACCRT_OK);
  accrt_driver_command_t fill = {.opcode = ACCRT_DRIVER_COMMAND_FILL};
  fill.as.fill.target = test_memory(area, sizeof area);
  fill.as.fill.pattern_bytes = 4;
  const accrt_driver_command_t copy =
      test_copy(test_memory(area, sizeof area), test_memory(copied, sizeof copied), sizeof area);
  const accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  for (uint32_t i = 1; i <= 20; ++i) {
    fill.as.fill.pattern = i * UINT32_C(0x01020304);
    assert_int_equal(test->table->queue_enqueue(queue, &fill, &submission), ACCRT_OK);
    assert_int_equal(test->table->queue_enqueue(queue, &copy, &submission), ACCRT_OK);
    assert_int_equal(test->table->queue_execute(queue, list, &submission), ACCRT_OK);
  }
  assert_int_equal(test->table->queue_notify(queue, test_completion(&end)), ACCRT_OK);
  test_signal_wait(test, &end, 1);
  assert_int_equal(length, 20);
  const uint32_t last = 20 * UINT32_C(0x01020304);
  for (size_t i = 0; i < sizeof copied; i += 4)
    assert_memory_equal(&copied[i], &last, 4);
  test->table->queue_destroy(queue);
  test->table->list_destroy(list);
}

static void test_mixed(void** state) {
  (void)state;
  for_devices(check_mixed);
}

/* After a failure: the failing one tells it, those behind are skipped, a notification has the
 * record, reset clears. */
static void check_failure(test_device_t* test) {
  uint32_t log[8] = {0};
  uint32_t length = 0;
  test_signal_t signals[4];
  memset(signals, 0, sizeof signals);
  accrt_driver_queue_t* queue;
  assert_int_equal(test->table->queue_create(test->device, 0, &queue), ACCRT_OK);
  log_params_t params = {.log = log, .length = &length, .number = 1};
  enqueue_log(test, queue, &params, &signals[0]);
  params.number = 2;
  params.fail = 77;
  enqueue_log(test, queue, &params, &signals[1]);
  params.number = 3;
  params.fail = 0;
  enqueue_log(test, queue, &params, &signals[2]);
  assert_int_equal(test->table->queue_notify(queue, test_completion(&signals[3])), ACCRT_OK);
  for (int i = 0; i < 4; ++i)
    test_signal_wait(test, &signals[i], 1);
  assert_int_equal(signals[0].status, ACCRT_OK);
  assert_int_equal(signals[1].status, ACCRT_ERROR_KERNEL);
  assert_int_equal(signals[1].error.driver_code, 77);
  assert_int_equal(signals[1].error.submission, 2);
  assert_non_null(strstr(signals[1].error.message, "number 2"));
  assert_int_equal(signals[2].status, ACCRT_ERROR_POISONED);
  assert_int_equal(signals[2].error.submission, 2);
  assert_int_equal(signals[3].status, ACCRT_ERROR_KERNEL);
  assert_int_equal(length, 1);
  /* Idle and failed: a notification still tells. */
  test_signal_t late = {0};
  assert_int_equal(test->table->queue_notify(queue, test_completion(&late)), ACCRT_OK);
  test_signal_wait(test, &late, 1);
  assert_int_equal(late.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(test->table->queue_reset(queue), ACCRT_OK);
  test_signal_t again = {0};
  enqueue_log(test, queue, &params, &again);
  test_signal_wait(test, &again, 1);
  assert_int_equal(again.status, ACCRT_OK);
  assert_int_equal(length, 2);
  test->table->queue_destroy(queue);
}

static void test_failure(void** state) {
  (void)state;
  for_devices(check_failure);
}

/* ---- Running on the caller beside other queues, from several threads ---- */

typedef struct runner {
  test_device_t* test;
  accrt_driver_list_t* list;
  uint32_t asynchronous;
} runner_t;

static int32_t count_up(const accrt_kernel_environment_t* environment,
                        const accrt_kernel_dispatch_t* dispatch,
                        const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  atomic_uint* const* cell = dispatch->params;
  if (workgroup->local_memory_size_bytes != 512)
    return 1;
  memset(workgroup->local_memory, (int)workgroup->worker_id, 512);
  atomic_fetch_add(*cell, 1);
  return 0;
}

#define RUNS 300

static void* run_many(void* argument) {
  const runner_t* runner = argument;
  test_device_t* test = runner->test;
  accrt_driver_queue_t* queue;
  atomic_uint cell;
  atomic_init(&cell, 0);
  const accrt_driver_binding_t binding = {(uint64_t)(uintptr_t)&cell, sizeof cell};
  test_signal_t end = {0};
  accrt_driver_submission_t submission = test_submission(&binding, 1, NULL, 0);
  if (test->table->queue_create(test->device, 0, &queue) != ACCRT_OK)
    return "queue_create";
  for (int i = 0; i < RUNS; ++i) {
    const accrt_status_t status = runner->asynchronous
                                      ? test->table->queue_execute(queue, runner->list, &submission)
                                      : test->table->queue_run(queue, runner->list, &submission);
    if (status != ACCRT_OK)
      return "run";
  }
  if (test->table->queue_notify(queue, test_completion(&end)) != ACCRT_OK)
    return "queue_notify";
  test_signal_wait(test, &end, 1);
  test->table->queue_destroy(queue);
  return atomic_load(&cell) == RUNS * 16 ? NULL : "count";
}

static void check_parallel(test_device_t* test) {
  accrt_kernel_def_t definition = test_definition("count", count_up);
  definition.local_memory_size_bytes = 512;
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const uint32_t grid[3] = {8, 2, 1};
  const void* params = NULL;
  accrt_driver_patch_t patch = {.kind = ACCRT_DRIVER_PATCH_ADDRESS, .size_bytes = 8};
  patch.range = test_range(0, 0, 4);
  accrt_driver_command_t command = test_dispatch(&kernel, grid, &params, sizeof params);
  command.as.dispatch.patches = &patch;
  command.as.dispatch.patch_count = 1;
  accrt_driver_list_t* list;
  assert_int_equal(
      test->table->list_create(
          test->device,
          &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                      .command_count = 1,
                                      .commands = &command,
                                      .binding_count = 1,
                                      .scalar_count = 0},
          &list),
      ACCRT_OK);
  runner_t runners[6];
  pthread_t threads[6];
  for (uint32_t i = 0; i < 6; ++i) {
    runners[i] = (runner_t){.test = test, .list = list, .asynchronous = i % 2};
    assert_int_equal(pthread_create(&threads[i], NULL, run_many, &runners[i]), 0);
  }
  for (int i = 0; i < 6; ++i) {
    void* problem = NULL;
    pthread_join(threads[i], &problem);
    if (problem != NULL)
      fail_msg("thread %d: %s", i, (const char*)problem);
  }
  test->table->list_destroy(list);
}

static void test_parallel(void** state) {
  (void)state;
  for_devices(check_parallel);
}

/* ---- queue_run refuses a queue that is not idle, and one that has failed ---- */

static atomic_uint gate;

static int32_t wait_at_gate(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  const struct timespec moment = {0, 50000};
  while (atomic_load(&gate) == 0)
    nanosleep(&moment, NULL);
  return 0;
}

static void test_run_needs_idle_queue(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "1");
  const accrt_kernel_def_t definition = test_definition("gate", wait_at_gate);
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  const accrt_driver_command_t command = test_dispatch(&kernel, one, NULL, 0);
  accrt_driver_list_t* list;
  assert_int_equal(
      test.table->list_create(
          test.device,
          &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                      .command_count = 1,
                                      .commands = &command,
                                      .binding_count = 0,
                                      .scalar_count = 0},
          &list),
      ACCRT_OK);
  accrt_driver_queue_t* queue;
  assert_int_equal(test.table->queue_create(test.device, 0, &queue), ACCRT_OK);
  atomic_store(&gate, 0);
  test_signal_t end = {0};
  accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  submission.completion = test_completion(&end);
  assert_int_equal(test.table->queue_execute(queue, list, &submission), ACCRT_OK);
  assert_int_equal(test.table->queue_run(queue, list, &submission), ACCRT_ERROR_NOT_READY);
  atomic_store(&gate, 1);
  test_signal_wait(&test, &end, 1);
  /* From inside of the completion on, the queue is idle. */
  assert_int_equal(test.table->queue_run(queue, list, &submission), ACCRT_OK);
  assert_int_equal(atomic_load(&end.count), 1); /* queue_run completes nothing */
  log_params_t params = {.fail = 3};
  enqueue_log(&test, queue, &params, &end);
  test_signal_wait(&test, &end, 2);
  assert_int_equal(test.table->queue_run(queue, list, &submission), ACCRT_ERROR_POISONED);
  test.table->queue_destroy(queue);
  test.table->list_destroy(list);
  test_device_close(&test);
}

/* ---- A queue may be destroyed and its device closed from where a completion tells the end ---- */

static void test_destroy_after_completion(void** state) {
  (void)state;
  for (int i = 0; i < 200; ++i) {
    test_device_t test;
    test_device_open(&test, "2");
    accrt_driver_queue_t* queue;
    assert_int_equal(test.table->queue_create(test.device, 0, &queue), ACCRT_OK);
    uint32_t log[1];
    uint32_t length = 0;
    const log_params_t params = {.log = log, .length = &length};
    test_signal_t end = {0};
    enqueue_log(&test, queue, &params, &end);
    while (atomic_load(&end.count) == 0) {
    }
    test.table->queue_destroy(queue);
    test_device_close(&test);
  }
}

/* ---- No threads: nothing moves but in progress ---- */

static void test_caller_runs(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "0");
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  test.table->device_info(test.device, &info);
  assert_true((info.flags & ACCRT_DEVICE_FLAG_CALLER_RUNS) != 0);
  accrt_driver_queue_t* queue;
  assert_int_equal(test.table->queue_create(test.device, 0, &queue), ACCRT_OK);
  assert_int_equal(test.table->device_progress(test.device), 0);
  uint32_t log[2];
  uint32_t length = 0;
  const log_params_t params = {.log = log, .length = &length};
  test_signal_t end = {0};
  enqueue_log(&test, queue, &params, &end);
  enqueue_log(&test, queue, &params, &end);
  assert_int_equal(atomic_load(&end.count), 0);
  assert_int_equal(test.table->device_progress(test.device), 1);
  assert_int_equal(atomic_load(&end.count), 1);
  assert_int_equal(test.table->device_progress(test.device), 1);
  assert_int_equal(test.table->device_progress(test.device), 0);
  assert_int_equal(length, 2);
  test.table->queue_destroy(queue);
  test_device_close(&test);
}

/* ---- Progress by number ---- */

/* Runs until a flag is set. */
static int32_t wait_for_flag(const accrt_kernel_environment_t* environment,
                             const accrt_kernel_dispatch_t* dispatch,
                             const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  atomic_int* const* params = dispatch->params;
  const struct timespec moment = {0, 20000};
  while (atomic_load(*params) == 0)
    nanosleep(&moment, NULL);
  return 0;
}

static const accrt_kernel_def_t flag_definition = {
    .struct_size = (uint32_t)sizeof(accrt_kernel_def_t), .name = "flag", .entry = wait_for_flag};
static const accrt_driver_kernel_t flag_kernel = {&flag_definition, &test_kernel_environment, NULL};

static void enqueue_flag(test_device_t* test, accrt_driver_queue_t* queue, atomic_int* flag,
                         uint64_t number) {
  const accrt_driver_command_t command = test_dispatch(&flag_kernel, one, &flag, sizeof flag);
  accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  submission.number = number;
  assert_int_equal(test->table->queue_enqueue(queue, &command, &submission), ACCRT_OK);
}

static uint64_t ask(test_device_t* test, accrt_driver_queue_t* queue) {
  uint64_t number = UINT64_MAX;
  assert_int_equal(test->table->queue_progress(queue, &number), ACCRT_OK);
  return number;
}

/* Numbers with gaps: a wait is for what is up to its number, and for nothing behind it. */
static void check_numbers(test_device_t* test) {
  uint32_t log[2], length = 0;
  const log_params_t first = {.log = log, .length = &length, .number = 10};
  const log_params_t last = {.log = log, .length = &length, .number = 30};
  accrt_driver_queue_t* queue;
  assert_int_equal(test->table->queue_create(test->device, 0, &queue), ACCRT_OK);
  assert_int_equal(ask(test, queue), 0);
  assert_int_equal(test->table->queue_wait(queue, 99, 0, ACCRT_WAIT_BLOCK), ACCRT_OK);
  enqueue_log(test, queue, &first, NULL);
  assert_int_equal(test->table->queue_wait(queue, 10, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN),
                   ACCRT_OK);
  assert_int_equal(length, 1);
  assert_int_equal(ask(test, queue), 10);
  atomic_int flag = 0;
  enqueue_flag(test, queue, &flag, 20);
  enqueue_log(test, queue, &last, NULL);
  assert_int_equal(test->table->queue_wait(queue, 15, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
                   ACCRT_OK);
  for (uint64_t number = 20; number <= 30; number += 5)
    assert_int_equal(test->table->queue_wait(queue, number, 0, ACCRT_WAIT_YIELD),
                     ACCRT_ERROR_TIMEOUT);
  assert_int_equal(ask(test, queue), 10);
  atomic_store(&flag, 1);
  assert_int_equal(test->table->queue_wait(queue, 25, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
                   ACCRT_OK);
  assert_true(ask(test, queue) >= 20);
  assert_int_equal(
      test->table->queue_wait(queue, UINT64_MAX, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_YIELD),
      ACCRT_OK);
  assert_int_equal(ask(test, queue), 30);
  assert_int_equal(length, 2);
  test->table->queue_destroy(queue);
}

static void test_numbers(void** state) {
  (void)state;
  for_devices(check_numbers);
}

/* A failure is told until a reset, beside the last number that succeeded. What a cancel drops is
 * one too. */
static void check_failing_numbers(test_device_t* test) {
  uint32_t log[8], length = 0;
  log_params_t params = {.log = log, .length = &length, .number = 5};
  accrt_driver_queue_t* queue;
  assert_int_equal(test->table->queue_create(test->device, 0, &queue), ACCRT_OK);
  for (int cancels = 0; cancels < 2; ++cancels) {
    const accrt_status_t wanted = cancels ? ACCRT_ERROR_CANCELLED : ACCRT_ERROR_KERNEL;
    params.fail = 0;
    params.number += 5;
    const uint64_t good = params.number;
    enqueue_log(test, queue, &params, NULL);
    assert_int_equal(test->table->queue_wait(queue, good, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
    if (cancels)
      test->table->queue_cancel(queue);
    assert_int_equal(ask(test, queue), good); /* nothing has been dropped */
    params.fail = 7;
    params.number += 2;
    enqueue_log(test, queue, &params, NULL);
    params.number += 2;
    enqueue_log(test, queue, &params, NULL);
    for (int i = 0; i < 2; ++i) {
      uint64_t number = UINT64_MAX;
      assert_int_equal(
          test->table->queue_wait(queue, params.number, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
          wanted);
      assert_int_equal(test->table->queue_progress(queue, &number), wanted);
      assert_int_equal(number, good);
    }
    assert_int_equal(test->table->queue_reset(queue), ACCRT_OK);
    assert_int_equal(ask(test, queue), params.number);
  }
  assert_int_equal(length, 2);
  test->table->queue_destroy(queue);
}

static void test_failing_numbers(void** state) {
  (void)state;
  for_devices(check_failing_numbers);
}

/* ---- An embedder's executor ---- */

#define EXECUTOR_THREADS 3

typedef struct embedder {
  accrt_executor_t executor;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  pthread_t threads[EXECUTOR_THREADS];
  struct {
    void (*task)(void*);
    void* argument;
  } tasks[64];
  uint32_t task_count;
  uint32_t submitted;
  uint32_t refuse_every; /* 1: all, 0: none */
  bool stopping;
} embedder_t;

static int32_t embedder_submit(void* self, void (*task)(void*), void* argument) {
  embedder_t* embedder = self;
  pthread_mutex_lock(&embedder->mutex);
  ++embedder->submitted;
  const bool refuse =
      embedder->refuse_every != 0 && embedder->submitted % embedder->refuse_every == 0;
  if (!refuse) {
    embedder->tasks[embedder->task_count].task = task;
    embedder->tasks[embedder->task_count++].argument = argument;
    pthread_cond_signal(&embedder->changed);
  }
  pthread_mutex_unlock(&embedder->mutex);
  return refuse;
}

static void* embedder_thread(void* argument) {
  embedder_t* embedder = argument;
  pthread_mutex_lock(&embedder->mutex);
  for (;;) {
    while (embedder->task_count == 0 && !embedder->stopping) {
      pthread_cond_wait(&embedder->changed, &embedder->mutex);
    }
    if (embedder->task_count == 0)
      break;
    --embedder->task_count;
    void (*task)(void*) = embedder->tasks[embedder->task_count].task;
    void* task_argument = embedder->tasks[embedder->task_count].argument;
    pthread_mutex_unlock(&embedder->mutex);
    task(task_argument);
    pthread_mutex_lock(&embedder->mutex);
  }
  pthread_mutex_unlock(&embedder->mutex);
  return NULL;
}

static void check_executor(uint32_t refuse_every) {
  static embedder_t embedder;
  memset(&embedder, 0, sizeof embedder);
  embedder.executor = (accrt_executor_t){
      .self = &embedder, .submit = embedder_submit, .concurrency = EXECUTOR_THREADS};
  embedder.refuse_every = refuse_every;
  pthread_mutex_init(&embedder.mutex, NULL);
  pthread_cond_init(&embedder.changed, NULL);
  for (int i = 0; i < EXECUTOR_THREADS; ++i) {
    assert_int_equal(pthread_create(&embedder.threads[i], NULL, embedder_thread, &embedder), 0);
  }
  test_device_t test;
  test_environment_init(&test.environment, NULL);
  test.environment.base.executor = &embedder.executor;
  test_device_open_prepared(&test);
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  test.table->device_info(test.device, &info);
  assert_int_equal(info.concurrency, EXECUTOR_THREADS);
  assert_int_equal(info.flags & ACCRT_DEVICE_FLAG_CALLER_RUNS, 0);
  check_order(&test);
  check_mixed(&test);
  check_failure(&test);
  check_parallel(&test);
  test_device_close(&test);
  assert_true(embedder.submitted > 0);
  pthread_mutex_lock(&embedder.mutex);
  embedder.stopping = true;
  pthread_cond_broadcast(&embedder.changed);
  pthread_mutex_unlock(&embedder.mutex);
  for (int i = 0; i < EXECUTOR_THREADS; ++i)
    pthread_join(embedder.threads[i], NULL);
  pthread_cond_destroy(&embedder.changed);
  pthread_mutex_destroy(&embedder.mutex);
}

static void test_executor(void** state) {
  (void)state;
  check_executor(0);
}

/* One that refuses sometimes, and one that always does: the work is done all the same. */
static void test_executor_refuses(void** state) {
  (void)state;
  check_executor(2);
  check_executor(1);
}

/* ---- Memory ---- */

static void test_no_allocation_when_warm(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "2");
  uint32_t log[1];
  uint32_t length = 0;
  const log_params_t params = {.log = log, .length = &length, .fail = 0};
  const accrt_driver_command_t command = test_dispatch(&log_kernel, one, &params, sizeof params);
  accrt_driver_list_t* list;
  assert_int_equal(
      test.table->list_create(
          test.device,
          &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                      .command_count = 1,
                                      .commands = &command,
                                      .binding_count = 0,
                                      .scalar_count = 0},
          &list),
      ACCRT_OK);
  accrt_driver_queue_t* queue;
  assert_int_equal(test.table->queue_create(test.device, 0, &queue), ACCRT_OK);
  test_signal_t end = {0};
  accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  submission.completion = test_completion(&end);
  long warm = 0;
  for (int i = 0; i < 1000; ++i) {
    /* Three in flight, then none, so that as many entries are needed as in the first round. */
    length = 0;
    assert_int_equal(test.table->queue_execute(queue, list, &submission), ACCRT_OK);
    test_signal_wait(&test, &end, 3 * i + 1);
    length = 0;
    enqueue_log(&test, queue, &params, &end);
    test_signal_wait(&test, &end, 3 * i + 2);
    assert_int_equal(test.table->queue_notify(queue, test_completion(&end)), ACCRT_OK);
    test_signal_wait(&test, &end, 3 * i + 3);
    length = 0;
    assert_int_equal(test.table->queue_run(queue, list, &submission), ACCRT_OK);
    if (i == 10)
      warm = atomic_load(&test.environment.allocation_count);
  }
  /* An entry is given back after its completion, so one or two more may exist than are in
   * flight. */
  assert_true(atomic_load(&test.environment.allocation_count) <= warm + 4);
  test.table->queue_destroy(queue);
  test.table->list_destroy(list);
  test_device_close(&test);
}

/* A run on the caller allocates nothing at all, from the first on. */
static void test_no_allocation_on_the_caller(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "2");
  accrt_kernel_def_t definition = test_definition("count", count_up);
  definition.local_memory_size_bytes = 512;
  const accrt_driver_kernel_t kernel = {&definition, &test_kernel_environment, NULL};
  atomic_uint cell;
  atomic_init(&cell, 0);
  const void* params = &cell;
  const uint32_t grid[3] = {64, 1, 1};
  const accrt_driver_command_t command = test_dispatch(&kernel, grid, &params, sizeof params);
  accrt_driver_queue_t* queue;
  assert_int_equal(test.table->queue_create(test.device, 0, &queue), ACCRT_OK);
  accrt_driver_list_t* list;
  assert_int_equal(
      test.table->list_create(
          test.device,
          &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                      .command_count = 1,
                                      .commands = &command,
                                      .binding_count = 0,
                                      .scalar_count = 0},
          &list),
      ACCRT_OK);
  const accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
  const long before = atomic_load(&test.environment.allocation_count);
  for (int i = 0; i < 100; ++i) {
    assert_int_equal(test.table->queue_run(queue, list, &submission), ACCRT_OK);
  }
  assert_int_equal(atomic_load(&test.environment.allocation_count), before);
  assert_int_equal(atomic_load(&cell), 6400);
  test.table->queue_destroy(queue);
  test.table->list_destroy(list);
  test_device_close(&test);
}

/* Every allocation of opening a device, making a queue and enqueuing fails once. */
static void test_no_memory(void** state) {
  (void)state;
  uint32_t failures = 0;
  for (long allowed = 0;; ++allowed) {
    test_device_t test;
    test_environment_init(&test.environment, "2");
    test.table = accrt_driver_host_query(ACCRT_DRIVER_ABI_VERSION);
    atomic_store(&test.environment.fail_after, allowed);
    accrt_driver_queue_t* queue = NULL;
    uint32_t log[1];
    uint32_t length = 0;
    test_signal_t end = {0};
    const log_params_t params = {.log = log, .length = &length};
    const accrt_driver_command_t command = test_dispatch(&log_kernel, one, &params, sizeof params);
    accrt_driver_submission_t submission = test_submission(NULL, 0, NULL, 0);
    submission.completion = test_completion(&end);
    accrt_status_t status = test.table->open(&test.environment.base, &test.driver);
    if (status == ACCRT_OK) {
      status = test.table->device_open(test.driver, 0, &test.device);
      if (status == ACCRT_OK) {
        status = test.table->queue_create(test.device, 0, &queue);
        if (status == ACCRT_OK) {
          status = test.table->queue_enqueue(queue, &command, &submission);
          if (status == ACCRT_OK)
            test_signal_wait(&test, &end, 1);
          test.table->queue_destroy(queue);
        }
        test.table->device_close(test.device);
      }
      test.table->close(test.driver);
    }
    assert_int_equal(atomic_load(&test.environment.live_allocations), 0);
    if (status == ACCRT_OK)
      break;
    assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
    ++failures;
  }
  assert_true(failures >= 4);
}

static void test_device_memory(void** state) {
  (void)state;
  test_device_t test;
  test_device_open(&test, "1");
  accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
  test.table->memory_info(test.device, 1, &info);
  assert_int_equal(info.supported, 1);
  const uint64_t small = info.granularity_bytes, large = UINT64_C(3) << 20;
  const uint64_t sizes[] = {small, small, large, large, UINT64_C(64) << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    accrt_driver_memory_t memory;
    assert_int_equal(test.table->memory_allocate(test.device, 1, sizes[i], &memory), ACCRT_OK);
    assert_int_equal(memory.device_address % info.alignment_bytes, 0);
    assert_true((uint64_t)(uintptr_t)memory.host_pointer == memory.device_address);
    char* const bytes = memory.host_pointer;
    for (uint64_t at = 0; at < sizes[i] && info.zeroed; at += 509)
      assert_int_equal(bytes[at], 0);
    memset(bytes, 1, sizes[i]);
    test.table->memory_free(test.device, &memory);
  }
  accrt_driver_memory_t memory;
#ifndef ACCRT_POOL_ONE_MAPPING_PER_ALLOCATION
  assert_int_equal(test.table->memory_allocate(test.device, 1, UINT64_C(1) << 62, &memory),
                   ACCRT_ERROR_OUT_OF_DEVICE_MEMORY);
#endif
  assert_int_equal(test.table->memory_allocate(test.device, 99, 65536, &memory),
                   ACCRT_ERROR_UNSUPPORTED);
  test.table->memory_info(test.device, 99, &info);
  assert_int_equal(info.supported, 0);
  test_device_close(&test);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_mixed),
      cmocka_unit_test(test_failure),
      cmocka_unit_test(test_parallel),
      cmocka_unit_test(test_run_needs_idle_queue),
      cmocka_unit_test(test_destroy_after_completion),
      cmocka_unit_test(test_caller_runs),
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_failing_numbers),
      cmocka_unit_test(test_executor),
      cmocka_unit_test(test_executor_refuses),
      cmocka_unit_test(test_no_allocation_when_warm),
      cmocka_unit_test(test_no_allocation_on_the_caller),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_device_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
