/* Streams on a driver that tells progress by number: work that nobody is told of, things that go
 * while work uses them, many threads on one stream. */
#include "runtime/drivers/common/numbers_test.h"

/* ---- Numbers alone ---- */

static void test_numbers(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  accrt_buffer_t* buffer = make_buffer(64);
  const accrt_place_t place = {buffer, NULL, 0};
  assert_false(accrt_stream_traces(stream));
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  const long allocations = atomic_load(&world.allocator.total_count);
  for (int i = 0; i < 3; ++i)
    assert_int_equal(accrt_stream_fill(stream, &place, 4, 7, 4), ACCRT_OK);
  /* The driver for tests makes a job of each; the library makes nothing. */
  assert_int_equal(atomic_load(&world.allocator.total_count), allocations + 3);
  assert_int_equal(accrt_stream_last_submission(stream), 3);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  assert_says("has completed 0 of 3");
  assert_false(accrt_buffer_is_unshared(buffer));
  assert_int_equal(accrt_stream_synchronize(stream, 0, ACCRT_WAIT_BLOCK), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_stream_synchronize(stream, MS, ACCRT_WAIT_SPIN), ACCRT_ERROR_TIMEOUT);
  assert_int_equal(test_driver_step(), 1);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  assert_says("has completed 1 of 3");
  assert_int_equal(accrt_stream_wait_number(stream, 1, 0, 0, ACCRT_WAIT_BLOCK), ACCRT_OK);
  run_all();
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  assert_true(accrt_buffer_is_unshared(buffer));
  assert_int_equal(atomic_load(&test_driver.notifies), 0);
  accrt_buffer_release(buffer);
  accrt_stream_release(stream);
  close_world();
}

static void test_waits_in_the_driver(void** state) {
  (void)state;
  for (int i = 0; i < 3; ++i) {
    open_world(TEST_DRIVER_THREAD);
    accrt_stream_t* stream = make_stream();
    uint32_t word = 0;
    for (uint32_t k = 1; k <= 50; ++k) {
      fill(stream, &word, k);
      assert_int_equal(accrt_stream_synchronize(stream, FOREVER, policies[i]), ACCRT_OK);
      assert_int_equal(word, k);
    }
    assert_int_equal(atomic_load(&test_driver.notifies), 0);
    assert_true(atomic_load(&test_driver.queue_waits) > 0);
    accrt_stream_release(stream);
    close_world();
  }
}

static void ignore(void* user, accrt_status_t status) {
  (void)user;
  (void)status;
}

/* A failure comes to light when somebody asks (how: 0 query, 1 wait, 2 an operation's completion),
 * at the right number. */
static void check_failure(int how) {
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* semaphore = make_semaphore();
  uint32_t words[3] = {0, 0, 0};
  fill(stream, &words[0], 1);
  test_driver_fail(TEST_FUNCTION_RUN, 2, ACCRT_ERROR_KERNEL);
  fill(stream, &words[1], 2);
  fill(stream, &words[2], 3);
  assert_int_equal(accrt_stream_signal(stream, semaphore, 1), ACCRT_OK);
  if (how == 2)
    assert_int_equal(accrt_stream_notify(stream, ignore, NULL), ACCRT_OK);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  run_all();
  if (how == 0)
    assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_POISONED);
  if (how == 1) /* without limit it would wait until nothing runs */
    assert_int_equal(accrt_stream_synchronize(stream, MS, 0), ACCRT_ERROR_POISONED);
  assert_int_equal(try_fill(stream, &words[0], 9), ACCRT_ERROR_POISONED);
  run_all(); /* the mark behind what was skipped */
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(error.driver_code, 78);
  assert_int_equal(error.submission, 2);
  assert_int_equal(words[0], 1);
  assert_int_equal(words[1], 0);
  assert_int_equal(words[2], 0);
  uint64_t value;
  assert_int_equal(accrt_semaphore_query(semaphore, &value), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_semaphore_error(semaphore, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(accrt_stream_outcome(stream, 1, 1, &error), ACCRT_OK);
  assert_int_equal(accrt_stream_outcome(stream, 1, 2, &error), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(accrt_stream_outcome(stream, 1, 3, &error), ACCRT_ERROR_POISONED);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  fill(stream, &words[0], 5);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[0], 5);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(stream);
  close_world();
}

static void test_failure(void** state) {
  (void)state;
  for (int how = 0; how < 3; ++how)
    check_failure(how);
}

/* Work that the caller is to run finds a queue that has failed before, which nobody had asked for:
 * the failure is the old one's, with its number, and nothing of it counts as complete. */
static void test_work_on_the_caller_finds_a_failure(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  uint32_t words[2] = {0, 0};
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(world.device, 0, &commands), ACCRT_OK);
  const accrt_binding_place_t place = {ACCRT_BINDING_NONE, 0, {NULL, &words[1], 0}};
  assert_int_equal(accrt_commands_fill(commands, &place, 4, 3, 4, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  test_driver_fail(TEST_FUNCTION_RUN, 1, ACCRT_ERROR_KERNEL);
  fill(stream, &words[0], 1);
  run_all();
  const accrt_status_t status =
      accrt_stream_run(stream, commands, NULL, 0, sizeof(accrt_binding_t), FOREVER);
  assert_int_equal(status, ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(error.submission, 1);
  assert_int_equal(accrt_stream_outcome(stream, 1, 1, &error), ACCRT_ERROR_POISONED);
  assert_int_equal(words[1], 0);
  run_all();
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(accrt_stream_run(stream, commands, NULL, 0, sizeof(accrt_binding_t), FOREVER),
                   ACCRT_OK);
  assert_int_equal(words[1], 3);
  accrt_commands_release(commands);
  accrt_stream_release(stream);
  close_world();
}

/* A driver that cannot say how far it is has not failed. */
static void test_driver_cannot_say(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  uint32_t word = 0;
  fill(stream, &word, 1);
  test_driver_fail(TEST_FUNCTION_QUEUE_PROGRESS, 1, ACCRT_ERROR_OUT_OF_MEMORY);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  test_driver_fail(TEST_FUNCTION_QUEUE_WAIT, 1, ACCRT_ERROR_OUT_OF_MEMORY);
  assert_int_equal(accrt_stream_synchronize(stream, MS, 0), ACCRT_ERROR_OUT_OF_MEMORY);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  test_driver_fail(TEST_FUNCTION_QUEUE_ENQUEUE, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(try_fill(stream, &word, 2), ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK); /* its number is nobody's */
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  /* The device goes. */
  fill(stream, &word, 3);
  test_driver_fail(TEST_FUNCTION_QUEUE_WAIT, 1, ACCRT_ERROR_DEVICE_LOST);
  test_driver_fail(TEST_FUNCTION_QUEUE_NOTIFY, 1, ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(try_fill(stream, &word, 4), ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(accrt_device_status(world.device), ACCRT_ERROR_DEVICE_LOST);
  run_all();
  accrt_stream_release(stream);
  close_world();
}

/* Notifications, deferred work and work without operations keep their order. */
static void test_order_of_all_kinds(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* gate = make_semaphore();
  uint32_t words[4] = {0, 0, 0, 0};
  heard_t heard[2] = {{.word = &words[1]}, {.word = &words[2]}};
  fill(stream, &words[0], 1);
  copy(stream, &words[0], &words[1]);
  assert_int_equal(accrt_stream_notify(stream, hear, &heard[0]), ACCRT_OK);
  fill(stream, &words[0], 2);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  copy(stream, &words[0], &words[2]); /* deferred */
  fill(stream, &words[0], 3);
  assert_int_equal(accrt_stream_notify(stream, hear, &heard[1]), ACCRT_OK);
  wait_for(&heard[0].count, 1);
  assert_int_equal(heard[0].seen, 1);
  assert_int_equal(accrt_stream_synchronize(stream, MS, 0), ACCRT_ERROR_TIMEOUT);
  assert_int_equal(words[2], 0);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  copy(stream, &words[0], &words[3]); /* at once again, or behind */
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[2], 2);
  assert_int_equal(words[3], 3);
  wait_for(&heard[1].count, 1);
  assert_int_equal(heard[1].seen, 2);
  /* Nothing is deferred any more: no operation is made. */
  const long notifies = atomic_load(&test_driver.notifies);
  fill(stream, &words[0], 4);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(atomic_load(&test_driver.notifies), notifies);
  accrt_semaphore_release(gate);
  accrt_stream_release(stream);
  close_world();
}

/* A wait of a number before a semaphore that nobody signals does not wait for that. */
static void test_numbers_before_a_deferral(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* gate = make_semaphore();
  uint32_t word = 0;
  fill(stream, &word, 1);
  const uint64_t number = accrt_stream_last_submission(stream);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  fill(stream, &word, 2);
  assert_int_equal(accrt_stream_wait_number(stream, number, FOREVER, FOREVER, 0), ACCRT_OK);
  assert_int_equal(word, 1);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(word, 2);
  /* A wait as the last thing of a stream. */
  fill(stream, &word, 3);
  assert_int_equal(accrt_stream_wait(stream, gate, 2), ACCRT_OK);
  assert_int_equal(accrt_semaphore_signal(gate, 2), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(word, 3);
  accrt_semaphore_release(gate);
  accrt_stream_release(stream);
  close_world();
}

/* ---- Things that go while work uses them ---- */

static void test_release_in_flight(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  accrt_buffer_t* buffer = make_buffer(64);
  accrt_commands_t* commands;
  const accrt_binding_place_t bound = {.binding = 0};
  assert_int_equal(accrt_commands_create(world.device, 1, &commands), ACCRT_OK);
  assert_int_equal(accrt_commands_fill(commands, &bound, 4, 9, 4, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  uint32_t word = 0;
  const accrt_binding_t binding = {NULL, &word, 0, 4};
  for (int i = 0; i < 3; ++i)
    assert_int_equal(accrt_stream_submit(stream, commands, &binding, 1, sizeof binding), ACCRT_OK);
  accrt_commands_release(commands);
  assert_int_equal(atomic_load(&test_driver.lists), 1);
  const accrt_place_t place = {buffer, NULL, 0};
  assert_int_equal(accrt_stream_fill(stream, &place, 64, 1, 4), ACCRT_OK);
  accrt_buffer_release(buffer);
  run_all();
  assert_int_equal(word, 9);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(atomic_load(&test_driver.lists), 0); /* nothing uses it any more */
  /* The stream itself. */
  fill(stream, &word, 10);
  fill(stream, &word, 11);
  accrt_stream_release(stream);
  assert_int_equal(atomic_load(&test_driver.queues), 1);
  run_all();
  assert_int_equal(word, 11);
  close_world();
}

static void test_stream_goes_while_its_driver_works(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  uint32_t word = 0;
  for (int i = 0; i < 200; ++i) {
    accrt_stream_t* stream = make_stream();
    for (uint32_t k = 0; k < 5; ++k)
      fill(stream, &word, k);
    accrt_stream_release(stream);
  }
  close_world();
}

static void note_release(void* user) {
  atomic_fetch_add((atomic_int*)user, 1);
}

/* Whoever lent memory hears that it is free again, although nobody waits for the stream. */
static void test_watchers(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  uint32_t words[16] = {0};
  atomic_int released;
  atomic_init(&released, 0);
  for (int i = 1; i <= 20; ++i) {
    accrt_buffer_t* buffer;
    assert_int_equal(
        accrt_buffer_import(world.device, words, sizeof words, note_release, &released, &buffer),
        ACCRT_OK);
    const accrt_place_t place = {buffer, NULL, 0};
    assert_int_equal(accrt_stream_fill(stream, &place, sizeof words, (uint64_t)i, 4), ACCRT_OK);
    accrt_buffer_release(buffer);
    wait_for(&released, i);
    assert_int_equal(words[15], i);
  }
  accrt_stream_release(stream);
  close_world();
}

/* ---- Many threads, one stream ---- */

#define THREADS 4
#define ROUNDS 1500
static accrt_launch_t* thread_launches[THREADS];
static accrt_stream_t* shared_stream;

static void* launch_often(void* user) {
  accrt_launch_t* launch = user;
  const uint32_t grid[3] = {1, 1, 1};
  for (int i = 0; i < ROUNDS; ++i) {
    if (accrt_stream_launch_prepared(shared_stream, launch, grid) != ACCRT_OK)
      return (void*)1;
    if (i % 100 == 7 && accrt_stream_synchronize(shared_stream, FOREVER, 0) != ACCRT_OK)
      return (void*)2;
    if (i % 50 == 3)
      (void)accrt_stream_query(shared_stream);
  }
  return NULL;
}

static void test_contention(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_kernel_t* kernel;
  accrt_kernel_pack_t* pack = load_module(&kernel);
  accrt_buffer_t* buffer = make_buffer(64);
  uint32_t* word = words_of(buffer);
  *word = 0;
  shared_stream = make_stream();
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) {
    thread_launches[i] = make_launch(kernel, buffer, (uint32_t)i + 1);
    assert_int_equal(pthread_create(&threads[i], NULL, launch_often, thread_launches[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i) {
    void* result;
    assert_int_equal(pthread_join(threads[i], &result), 0);
    assert_null(result);
  }
  assert_int_equal(accrt_stream_synchronize(shared_stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(*word, ROUNDS * (1 + 2 + 3 + 4));
  for (int i = 0; i < THREADS; ++i)
    accrt_launch_release(thread_launches[i]);
  accrt_kernel_pack_release(pack);
  accrt_buffer_release(buffer);
  accrt_stream_release(shared_stream);
  close_world();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_waits_in_the_driver),
      cmocka_unit_test(test_failure),
      cmocka_unit_test(test_work_on_the_caller_finds_a_failure),
      cmocka_unit_test(test_driver_cannot_say),
      cmocka_unit_test(test_order_of_all_kinds),
      cmocka_unit_test(test_numbers_before_a_deferral),
      cmocka_unit_test(test_release_in_flight),
      cmocka_unit_test(test_stream_goes_while_its_driver_works),
      cmocka_unit_test(test_watchers),
      cmocka_unit_test(test_contention),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
