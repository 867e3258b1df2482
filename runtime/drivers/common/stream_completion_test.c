/* How streams tell of ends and end themselves: completions of lists, notifications, end of life,
 * many threads, exports and traces. */
#include "runtime/drivers/common/stream_test.h"

/* ---- Lists: what the program layer uses ---- */

typedef struct finished {
  atomic_int calls;
  atomic_int status;
  atomic_int cause;
} finished_t;

static void finish(void* user, accrt_status_t status, const accrt_error_t* error,
                   uint64_t time_ns) {
  finished_t* finished = user;
  (void)time_ns;
  atomic_store(&finished->cause, error != NULL ? error->status : ACCRT_OK);
  atomic_store(&finished->status, status);
  atomic_fetch_add(&finished->calls, 1);
}

static void execute(accrt_stream_t* stream, accrt_driver_list_t* list, uint32_t* target,
                    finished_t* finished) {
  const accrt_driver_binding_t binding = {(uint64_t)(uintptr_t)target, 4};
  const uint64_t scalar = 4;
  const accrt_stream_work_t work = {.list = list,
                                    .bindings = &binding,
                                    .scalars = &scalar,
                                    .binding_count = 1,
                                    .scalar_count = 1,
                                    .name = "list",
                                    .completion = {finish, finished}};
  uint64_t submission;
  assert_int_equal(accrt_stream_execute(stream, &work, &submission), ACCRT_OK);
  assert_true(submission > 0);
}

static void test_completions_of_lists(void** state) {
  (void)state;
  FOR_MODES {
    open_world(modes[mode_]);
    accrt_stream_t* stream = make_stream();
    accrt_semaphore_t *gate = make_semaphore(0), *never = make_semaphore(0);
    /* The size of the fill is a scalar of the submission. */
    accrt_driver_command_t command = {.opcode = ACCRT_DRIVER_COMMAND_FILL, .name = "fill"};
    command.as.fill = (accrt_driver_fill_t){.target = {.binding = 0,
                                                       .access = ACCRT_KERNEL_ACCESS_WRITE,
                                                       .offset = {.scalar = ACCRT_DRIVER_NONE},
                                                       .size_bytes = {.scalar = 0}},
                                            .pattern = 9,
                                            .pattern_bytes = 4};
    accrt_driver_list_t* list;
    const accrt_driver_table_t* table = accrt_device_driver_table(world.device);
    assert_int_equal(table->list_create(accrt_device_driver_device(world.device),
                                        &(accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(
                                                                        accrt_driver_list_info_t),
                                                                    .command_count = 1,
                                                                    .commands = &command,
                                                                    .binding_count = 1,
                                                                    .scalar_count = 1},
                                        &list),
                     ACCRT_OK);
    finished_t good = {0}, bad = {0}, behind = {0}, dropped = {0};
    uint32_t words[4] = {0};
    assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
    execute(stream, list, &words[0], &good);
    execute(stream, list, &words[1], &bad);
    execute(stream, list, &words[2], &behind);
    assert_int_equal(accrt_stream_wait(stream, never, 1), ACCRT_OK);
    execute(stream, list, &words[3], &dropped);
    test_driver_fail(TEST_FUNCTION_RUN, 2, ACCRT_ERROR_KERNEL);
    assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_ERROR_POISONED);
    finished_t* all[4] = {&good, &bad, &behind, &dropped};
    const accrt_status_t expected[4] = {ACCRT_OK, ACCRT_ERROR_KERNEL, ACCRT_ERROR_POISONED,
                                        ACCRT_ERROR_POISONED};
    for (int i = 0; i < 4; ++i) {
      assert_int_equal(atomic_load(&all[i]->calls), 1);
      assert_int_equal(atomic_load(&all[i]->status), expected[i]);
      assert_int_equal(atomic_load(&all[i]->cause), i == 0 ? ACCRT_OK : ACCRT_ERROR_KERNEL);
      assert_int_equal(words[i], i == 0 ? 9 : 0);
    }
    table->list_destroy(list);
    accrt_semaphore_release(gate);
    accrt_semaphore_release(never);
    accrt_stream_release(stream);
    close_world();
  }
}

/* What another thread enqueues while a list runs on its caller goes to the driver when that is
 * over. */
typedef struct intruder {
  accrt_stream_t* stream;
  uint32_t words[2];
} intruder_t;
static intruder_t intruder;

static int32_t intrude(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* group) {
  (void)environment;
  (void)dispatch;
  (void)group;
  const accrt_place_t from = {NULL, &intruder.words[0], 0}, to = {NULL, &intruder.words[1], 0};
  /* Not what a kernel may do: it stands for another thread, at a moment that is sure. */
  const bool taken = accrt_stream_copy(intruder.stream, &from, &to, 4) == ACCRT_OK;
  const bool deferred = accrt_stream_query(intruder.stream) == ACCRT_ERROR_NOT_READY;
  intruder.words[0] = 5;
  return taken && deferred ? 0 : 1;
}

static const accrt_kernel_def_t intruder_definition = {
    .struct_size = (uint32_t)sizeof intruder_definition, .name = "intrude", .entry = intrude};
static const accrt_kernel_pack_table_t intruder_table = {
    .struct_size = (uint32_t)sizeof intruder_table,
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "stream_test",
    .kernels = &intruder_definition,
    .kernel_count = 1,
    .kernel_size_bytes = (uint32_t)sizeof intruder_definition};
static const accrt_kernel_pack_table_t*
query_intruder(uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  return &intruder_table;
}

static void test_enqueue_while_the_caller_runs(void** state) {
  (void)state;
  FOR_MODES {
    open_world(modes[mode_]);
    intruder = (intruder_t){.stream = make_stream()};
    accrt_kernel_pack_t* pack;
    accrt_kernel_t* kernel;
    accrt_commands_t* commands;
    const uint32_t one[3] = {1, 1, 1};
    assert_int_equal(accrt_kernel_pack_register(world.instance, query_intruder, &pack), ACCRT_OK);
    assert_int_equal(accrt_kernel_pack_kernel(pack, 0, &kernel), ACCRT_OK);
    assert_int_equal(accrt_commands_create(world.device, 0, &commands), ACCRT_OK);
    assert_int_equal(accrt_commands_dispatch(commands, kernel, one, NULL, 0,
                                             sizeof(accrt_kernel_argument_t), NULL, NULL),
                     ACCRT_OK);
    assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
    assert_int_equal(
        accrt_stream_run(intruder.stream, commands, NULL, 0, sizeof(accrt_binding_t), FOREVER),
        ACCRT_OK);
    assert_int_equal(accrt_stream_synchronize(intruder.stream, FOREVER, 0), ACCRT_OK);
    assert_int_equal(intruder.words[1], 5);
    accrt_commands_release(commands);
    accrt_kernel_pack_release(pack);
    accrt_stream_release(intruder.stream);
    close_world();
  }
}

/* ---- Notifications ---- */

typedef struct noted {
  atomic_int calls;
  atomic_int status;
  pthread_t thread;
  accrt_semaphore_t* semaphore;
} noted_t;

static void note(void* user, accrt_status_t status) {
  noted_t* noted = user;
  noted->thread = pthread_self();
  atomic_store(&noted->status, status);
  /* It may call the library. */
  if (noted->semaphore != NULL)
    assert_int_equal(accrt_semaphore_signal(noted->semaphore, 1), ACCRT_OK);
  atomic_fetch_add(&noted->calls, 1);
}

static void await_call(noted_t* noted) {
  for (int i = 0; i < 5000 && atomic_load(&noted->calls) == 0; ++i)
    (void)usleep(1000);
  assert_int_equal(atomic_load(&noted->calls), 1);
}

static void test_notify(void** state) {
  (void)state;
  FOR_MODES {
    open_world(modes[mode_]);
    accrt_stream_t *stream = make_stream(), *waiting = make_stream();
    noted_t good = {0}, bad = {0};
    good.semaphore = make_semaphore(0);
    uint32_t words[2] = {0, 0};
    /* A stream that goes on because a notification signals. */
    assert_int_equal(accrt_stream_wait(waiting, good.semaphore, 1), ACCRT_OK);
    fill(waiting, &words[1], 2);
    fill(stream, &words[0], 1);
    assert_int_equal(accrt_stream_notify(stream, note, &good), ACCRT_OK);
    assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
    await_call(&good);
    assert_int_equal(atomic_load(&good.status), ACCRT_OK);
    assert_false(pthread_equal(good.thread, pthread_self()));
    assert_int_equal(accrt_stream_synchronize(waiting, FOREVER, 0), ACCRT_OK);
    assert_int_equal(words[1], 2);
    accrt_semaphore_t* gate = make_semaphore(0);
    assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_notify(stream, note, &bad), ACCRT_OK);
    assert_int_equal(accrt_semaphore_fail(gate, ACCRT_ERROR_CANCELLED, NULL), ACCRT_OK);
    await_call(&bad);
    assert_int_equal(atomic_load(&bad.status), ACCRT_ERROR_CANCELLED);
    assert_int_equal(accrt_stream_notify(stream, note, &bad), ACCRT_ERROR_POISONED);
    accrt_semaphore_release(gate);
    accrt_semaphore_release(good.semaphore);
    accrt_stream_release(stream);
    accrt_stream_release(waiting);
    close_world();
    assert_int_equal(atomic_load(&bad.calls), 1);
  }
}

/* The last references go inside a notification: the instance ends on its own thread. */
typedef struct last_holder {
  accrt_stream_t* stream;
  accrt_device_t* device;
  accrt_instance_t* instance;
} last_holder_t;

static void drop_all(void* user, accrt_status_t status) {
  last_holder_t* holder = user;
  (void)status;
  accrt_stream_release(holder->stream);
  accrt_device_release(holder->device);
  accrt_instance_release(holder->instance);
}

static void test_last_release_inside_a_notification(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  last_holder_t holder = {make_stream(), world.device, world.instance};
  assert_int_equal(accrt_stream_notify(holder.stream, drop_all, &holder), ACCRT_OK);
  for (int i = 0; i < 5000 && test_world_left(&world) != 0; ++i)
    (void)usleep(1000);
  assert_int_equal(test_world_left(&world), 0);
}

/* The same, while another stream still holds a notification that waits: it is called before the
 * instance is gone. */
static void test_last_release_with_a_notification_that_waits(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  last_holder_t holder = {make_stream(), world.device, world.instance};
  accrt_stream_t* waiting = make_stream();
  accrt_semaphore_t* gate = make_semaphore(0);
  noted_t noted = {0};
  assert_int_equal(accrt_stream_wait(waiting, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_notify(waiting, note, &noted), ACCRT_OK);
  accrt_stream_release(waiting);
  accrt_semaphore_release(gate);
  assert_int_equal(accrt_stream_notify(holder.stream, drop_all, &holder), ACCRT_OK);
  for (int i = 0; i < 5000 && test_world_left(&world) != 0; ++i)
    (void)usleep(1000);
  assert_int_equal(test_world_left(&world), 0);
  assert_int_equal(atomic_load(&noted.status), ACCRT_ERROR_CANCELLED);
}

/* ---- End of life ---- */

static void test_release_with_work_in_flight(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* done = make_semaphore(0);
  enum { COUNT = 500 };
  static uint32_t words[COUNT];
  memset(words, 0, sizeof words);
  for (uint32_t i = 0; i < COUNT; ++i)
    fill(stream, &words[i], i + 1);
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
  accrt_stream_release(stream); /* it still runs */
  assert_int_equal(accrt_semaphore_wait(done, 1, FOREVER, 0), ACCRT_OK);
  for (uint32_t i = 0; i < COUNT; ++i)
    assert_int_equal(words[i], i + 1);
  accrt_semaphore_release(done);
  close_world();
}

static void test_instance_ends_with_work_that_waits(void** state) {
  (void)state;
  FOR_MODES {
    open_world(modes[mode_]);
    accrt_stream_t* stream = make_stream();
    accrt_semaphore_t *gate = make_semaphore(0), *done = make_semaphore(0);
    noted_t noted = {0};
    uint32_t words[2] = {0, 0};
    fill(stream, &words[0], 1);
    assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
    fill(stream, &words[1], 1);
    assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_notify(stream, note, &noted), ACCRT_OK);
    accrt_stream_release(stream);
    accrt_semaphore_release(gate);
    accrt_semaphore_release(done);
    close_world();
    assert_int_equal(words[0], 1);
    assert_int_equal(words[1], 0);
    assert_int_equal(atomic_load(&noted.calls), 1);
    assert_int_equal(atomic_load(&noted.status), ACCRT_ERROR_CANCELLED);
  }
}

/* ---- Threads ---- */

typedef struct worker {
  accrt_stream_t* streams[2];
  accrt_semaphore_t* semaphore; /* of this thread alone */
  uint32_t* counter;
  int failed;
} worker_t;

/* Many threads share two streams; each checks its own signals. */
static void* hammer(void* argument) {
  worker_t* worker = argument;
  uint32_t source = 0;
  const accrt_place_t from = {NULL, &source, 0}, to = {NULL, worker->counter, 0};
  for (uint64_t i = 1; i <= 300 && !worker->failed; ++i) {
    accrt_stream_t *one = worker->streams[i % 2], *two = worker->streams[(i + 1) % 2];
    source = (uint32_t)i;
    worker->failed |= accrt_stream_copy(one, &from, &to, 4) != ACCRT_OK;
    worker->failed |= accrt_stream_signal(one, worker->semaphore, 2 * i - 1) != ACCRT_OK;
    worker->failed |= accrt_stream_wait(two, worker->semaphore, 2 * i - 1) != ACCRT_OK;
    worker->failed |= accrt_stream_signal(two, worker->semaphore, 2 * i) != ACCRT_OK;
    worker->failed |=
        accrt_semaphore_wait(worker->semaphore, 2 * i, FOREVER, ACCRT_WAIT_BLOCK) != ACCRT_OK;
    worker->failed |= *worker->counter != i;
  }
  return NULL;
}

static void test_many_threads(void** state) {
  (void)state;
  enum { THREADS = 4 };
  FOR_MODES {
    open_world(modes[mode_]);
    accrt_stream_t *one = make_stream(), *two = make_stream();
    worker_t workers[THREADS];
    uint32_t counters[THREADS] = {0};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i) {
      workers[i] = (worker_t){{one, two}, make_semaphore(0), &counters[i], 0};
      assert_int_equal(pthread_create(&threads[i], NULL, hammer, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; ++i) {
      assert_int_equal(pthread_join(threads[i], NULL), 0);
      assert_int_equal(workers[i].failed, 0);
      accrt_semaphore_release(workers[i].semaphore);
    }
    accrt_stream_release(one);
    accrt_stream_release(two);
    close_world();
  }
}

/* Failing, resetting and enqueuing at the same time: nothing hangs, nothing is left. */
typedef struct chaos {
  accrt_stream_t* stream;
  atomic_int stop;
} chaos_t;

static void* chaos_reset(void* argument) {
  chaos_t* chaos = argument;
  while (!atomic_load(&chaos->stop))
    (void)accrt_stream_reset(chaos->stream);
  return NULL;
}

static void* chaos_enqueue(void* argument) {
  chaos_t* chaos = argument;
  uint32_t word = 0;
  const accrt_place_t place = {NULL, &word, 0};
  for (int i = 0; i < 400; ++i) {
    accrt_semaphore_t* semaphore = make_semaphore(0);
    (void)accrt_stream_fill(chaos->stream, &place, 4, 1, 4);
    const bool waits = accrt_stream_wait(chaos->stream, semaphore, 1) == ACCRT_OK;
    const bool signals = waits && accrt_stream_signal(chaos->stream, semaphore, 2) == ACCRT_OK;
    if (i % 2 == 0) {
      (void)accrt_semaphore_signal(semaphore, 1);
    } else {
      (void)accrt_semaphore_fail(semaphore, ACCRT_ERROR_CANCELLED, NULL);
    }
    if (signals) {
      const accrt_status_t status = accrt_semaphore_wait(semaphore, 2, FOREVER, 0);
      assert_true(status == ACCRT_OK || status == ACCRT_ERROR_POISONED);
    }
    accrt_semaphore_release(semaphore);
  }
  /* Its memory may be in use until all is over. */
  (void)accrt_stream_synchronize(chaos->stream, FOREVER, 0);
  while (accrt_stream_reset(chaos->stream) != ACCRT_OK)
    continue;
  return NULL;
}

static void test_chaos(void** state) {
  (void)state;
  FOR_MODES {
    open_world(modes[mode_]);
    chaos_t chaos = {.stream = make_stream()};
    pthread_t resetter, enqueuers[2];
    assert_int_equal(pthread_create(&resetter, NULL, chaos_reset, &chaos), 0);
    for (int i = 0; i < 2; ++i)
      assert_int_equal(pthread_create(&enqueuers[i], NULL, chaos_enqueue, &chaos), 0);
    for (int i = 0; i < 2; ++i)
      assert_int_equal(pthread_join(enqueuers[i], NULL), 0);
    atomic_store(&chaos.stop, 1);
    assert_int_equal(pthread_join(resetter, NULL), 0);
    accrt_stream_release(chaos.stream);
    close_world();
  }
}

/* ---- Exports and traces ---- */

static void test_eventfd_needs_threads(void** state) {
  (void)state;
  open_world(TEST_DRIVER_CALLER);
  accrt_semaphore_t* semaphore = make_semaphore(0);
  int32_t fd;
  assert_int_equal(accrt_semaphore_export_eventfd(semaphore, 1, &fd), ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(fd, -1);
  accrt_semaphore_release(semaphore);
  close_world();
}

typedef struct traced {
  atomic_int submitted, completed;
} traced_t;

static void count_trace(void* self, const accrt_trace_event_t* event) {
  traced_t* traced = self;
  assert_non_null(event->name);
  if (event->kind == ACCRT_TRACE_SUBMIT)
    atomic_fetch_add(&traced->submitted, 1);
  if (event->kind == ACCRT_TRACE_COMPLETE)
    atomic_fetch_add(&traced->completed, 1);
}

static void test_traces(void** state) {
  (void)state;
  test_driver_reset(TEST_DRIVER_THREAD);
  traced_t traced = {0};
  const accrt_trace_sink_t sink = {&traced, count_trace};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.trace_sink = &sink;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  assert_int_equal(accrt_instance_device(instance, 0, &device), ACCRT_OK);
  assert_int_equal(accrt_stream_create(device, NULL, &stream), ACCRT_OK);
  uint32_t words[10];
  for (int i = 0; i < 10; ++i)
    fill(stream, &words[i], 1);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(atomic_load(&traced.submitted), 10);
  assert_int_equal(atomic_load(&traced.completed), 10);
  accrt_stream_release(stream);
  accrt_device_release(device);
  accrt_instance_release(instance);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_completions_of_lists),
      cmocka_unit_test(test_enqueue_while_the_caller_runs),
      cmocka_unit_test(test_notify),
      cmocka_unit_test(test_last_release_inside_a_notification),
      cmocka_unit_test(test_last_release_with_a_notification_that_waits),
      cmocka_unit_test(test_release_with_work_in_flight),
      cmocka_unit_test(test_instance_ends_with_work_that_waits),
      cmocka_unit_test(test_many_threads),
      cmocka_unit_test(test_chaos),
      cmocka_unit_test(test_eventfd_needs_threads),
      cmocka_unit_test(test_traces),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
