/* Streams: order, deferral, failure and reset, device loss; on drivers that are synchronous,
 * threaded, stepped by the test, and run by the caller. */
#include "runtime/drivers/common/stream_test.h"

static void test_order(void** state) {
  (void)state;
  FOR_MODES {
    open_world(modes[mode_]);
    accrt_stream_t* stream = make_stream();
    accrt_semaphore_t* semaphore = make_semaphore(0);
    uint32_t words[3] = {1, 2, 3};
    const accrt_place_t a = {NULL, &words[0], 0}, b = {NULL, &words[1], 0},
                        c = {NULL, &words[2], 0};
    fill(stream, &words[0], 7);
    assert_int_equal(accrt_stream_copy(stream, &a, &b, 4), ACCRT_OK);
    assert_int_equal(accrt_stream_signal(stream, semaphore, 1), ACCRT_OK);
    fill(stream, &words[0], 8);
    assert_int_equal(accrt_stream_copy(stream, &b, &c, 4), ACCRT_OK);
    assert_int_equal(accrt_stream_signal(stream, semaphore, 5), ACCRT_OK);
    assert_int_equal(accrt_semaphore_wait(semaphore, 1, FOREVER, ACCRT_WAIT_BLOCK), ACCRT_OK);
    assert_int_equal(words[1], 7);
    assert_int_equal(accrt_stream_synchronize(stream, FOREVER, ACCRT_WAIT_BLOCK), ACCRT_OK);
    assert_int_equal(value_of(semaphore), 5);
    assert_int_equal(words[0], 8);
    assert_int_equal(words[2], 7);
    assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
    accrt_semaphore_release(semaphore);
    accrt_stream_release(stream);
    close_world();
  }
}

static void test_bad_arguments(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_stream_t* stream = (accrt_stream_t*)1;
  assert_int_equal(accrt_stream_create(NULL, NULL, &stream), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(stream);
  assert_int_equal(accrt_stream_create(world.device, NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
  options.struct_size = 3;
  assert_int_equal(accrt_stream_create(world.device, &options, &stream),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  options = (accrt_stream_options_t)ACCRT_STREAM_OPTIONS_INIT;
  options.label = "named";
  assert_int_equal(accrt_stream_create(world.device, &options, &stream), ACCRT_OK);
  accrt_semaphore_t* semaphore = make_semaphore(0);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_stream_query(NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_synchronize(NULL, 0, 0), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_synchronize(stream, 0, 9), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_error(NULL, &error), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_error(stream, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_reset(NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_wait(NULL, semaphore, 1), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_wait(stream, NULL, 1), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_wait(stream, semaphore, UINT64_MAX), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_signal(stream, NULL, 1), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_signal(stream, semaphore, UINT64_MAX),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_notify(stream, NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_id(NULL), 0);
  assert_null(accrt_stream_device(NULL));
  assert_ptr_equal(accrt_stream_device(stream), world.device);
  assert_null(accrt_stream_retain(NULL));
  accrt_stream_release(NULL);
  accrt_stream_t* second = make_stream();
  assert_true(accrt_stream_id(second) > accrt_stream_id(stream));
  accrt_stream_release(second);
  accrt_stream_release(accrt_stream_retain(stream));
  accrt_stream_release(stream);
  accrt_semaphore_release(semaphore);
  close_world();
}

static void test_wait_before_signal(void** state) {
  (void)state;
  FOR_MODES {
    open_world(modes[mode_]);
    accrt_stream_t* stream = make_stream();
    accrt_semaphore_t* gate = make_semaphore(0);
    accrt_semaphore_t* done = make_semaphore(0);
    uint32_t word = 0;
    assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
    fill(stream, &word, 11);
    assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(stream, gate, 2), ACCRT_OK);
    fill(stream, &word, 22);
    assert_int_equal(accrt_stream_signal(stream, done, 2), ACCRT_OK);
    assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
    assert_int_equal(accrt_stream_synchronize(stream, 0, 0), ACCRT_ERROR_NOT_READY);
    assert_int_equal(accrt_stream_synchronize(stream, MS, 0), ACCRT_ERROR_TIMEOUT);
    assert_int_equal(word, 0);
    assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
    assert_int_equal(accrt_semaphore_wait(done, 1, FOREVER, 0), ACCRT_OK);
    assert_int_equal(word, 11);
    assert_int_equal(accrt_semaphore_wait(done, 2, MS, 0), ACCRT_ERROR_TIMEOUT);
    assert_int_equal(accrt_semaphore_signal(gate, 7), ACCRT_OK);
    assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
    assert_int_equal(word, 22);
    assert_int_equal(value_of(done), 2);
    accrt_semaphore_release(gate);
    accrt_semaphore_release(done);
    accrt_stream_release(stream);
    close_world();
  }
}

/* A long chain over many streams, made backwards: all of it runs when the first is signalled,
 * without deep recursion. */
static void test_chain_of_streams(void** state) {
  (void)state;
  enum { LENGTH = 3000 };
  FOR_MODES {
    open_world(modes[mode_]);
    accrt_stream_t* streams[2] = {make_stream(), make_stream()};
    accrt_semaphore_t* semaphore = make_semaphore(0);
    uint32_t words[LENGTH];
    memset(words, 0, sizeof words);
    for (uint32_t i = 1; i < LENGTH; ++i) {
      accrt_stream_t* stream = streams[i % 2];
      assert_int_equal(accrt_stream_wait(stream, semaphore, i), ACCRT_OK);
      const accrt_place_t from = {NULL, &words[i - 1], 0}, to = {NULL, &words[i], 0};
      assert_int_equal(accrt_stream_copy(stream, &from, &to, 4), ACCRT_OK);
      assert_int_equal(accrt_stream_signal(stream, semaphore, i + 1), ACCRT_OK);
    }
    words[0] = 5;
    assert_int_equal(accrt_semaphore_signal(semaphore, 1), ACCRT_OK);
    assert_int_equal(accrt_semaphore_wait(semaphore, LENGTH, FOREVER, 0), ACCRT_OK);
    assert_int_equal(words[LENGTH - 1], 5);
    for (int i = 0; i < 2; ++i) {
      assert_int_equal(accrt_stream_synchronize(streams[i], FOREVER, 0), ACCRT_OK);
      accrt_stream_release(streams[i]);
    }
    accrt_semaphore_release(semaphore);
    close_world();
  }
}

/* What is given to the driver is given in order, and nothing behind a wait is given before it is
 * over. */
static void test_deferral_is_invisible_to_the_driver(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* gate = make_semaphore(0);
  uint32_t word = 0;
  fill(stream, &word, 1);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  fill(stream, &word, 2);
  assert_int_equal(test_driver_step(), 1);
  assert_int_equal(test_driver_step(), 0);
  assert_int_equal(word, 1);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(test_driver_step(), 1);
  assert_int_equal(word, 2);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  accrt_semaphore_release(gate);
  accrt_stream_release(stream);
  close_world();
}

static void test_repeated_use_allocates_nothing(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* semaphore = make_semaphore(0);
  uint32_t word = 0;
  long before = 0;
  uint64_t value = 0;
  for (int round = 0; round < 100; ++round) {
    if (round == 2)
      before = atomic_load(&world.allocator.total_count);
    const long driver_jobs = 2; /* the test driver allocates one for each command */
    assert_int_equal(accrt_stream_wait(stream, semaphore, value + 1), ACCRT_OK);
    fill(stream, &word, 1);
    assert_int_equal(accrt_stream_signal(stream, semaphore, value + 2), ACCRT_OK);
    assert_int_equal(accrt_semaphore_signal(semaphore, value + 1), ACCRT_OK);
    fill(stream, &word, 2);
    assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
    value += 2;
    before += round >= 2 ? driver_jobs : 0;
  }
  assert_int_equal(atomic_load(&world.allocator.total_count), before);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(stream);
  close_world();
}

/* The same with a thread of the driver: an operation is back before anybody hears of its end. */
static void test_repeated_waits_allocate_nothing(void** state) {
  (void)state;
  enum { ROUNDS = 2000 };
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  uint32_t word = 0;
  fill(stream, &word, 1);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  const long before = atomic_load(&world.allocator.total_count);
  for (int round = 0; round < ROUNDS; ++round) {
    fill(stream, &word, 1);
    assert_int_equal(accrt_stream_synchronize(stream, FOREVER, ACCRT_WAIT_SPIN), ACCRT_OK);
  }
  /* The test driver allocates one job for each. */
  assert_int_equal(atomic_load(&world.allocator.total_count) - before, ROUNDS);
  accrt_stream_release(stream);
  close_world();
}

/* ---- Failure ---- */

static void check_failed(accrt_stream_t* stream, accrt_status_t cause, uint64_t submission) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
  assert_int_equal(error.status, cause);
  assert_int_equal(error.submission, submission);
}

static void test_failure_of_a_command(void** state) {
  (void)state;
  FOR_MODES {
    open_world(modes[mode_]);
    accrt_stream_t* stream = make_stream();
    accrt_semaphore_t *before = make_semaphore(0), *after = make_semaphore(0);
    uint32_t words[3] = {0, 0, 0};
    accrt_semaphore_t* gate = make_semaphore(0);
    test_driver_fail(TEST_FUNCTION_RUN, 2, ACCRT_ERROR_KERNEL);
    assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
    fill(stream, &words[0], 1);
    assert_int_equal(accrt_stream_signal(stream, before, 1), ACCRT_OK);
    fill(stream, &words[1], 2); /* fails: submission 4 */
    assert_int_equal(accrt_stream_signal(stream, after, 1), ACCRT_OK);
    fill(stream, &words[2], 3);
    assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
    assert_int_equal(accrt_semaphore_wait(before, 1, FOREVER, 0), ACCRT_OK);
    assert_int_equal(accrt_semaphore_wait(after, 1, FOREVER, 0), ACCRT_ERROR_POISONED);
    check_failed(stream, ACCRT_ERROR_KERNEL, 4);
    accrt_error_t error = ACCRT_ERROR_INIT;
    assert_int_equal(accrt_semaphore_error(after, &error), ACCRT_OK);
    assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
    assert_int_equal(error.submission, 4);
    assert_int_equal(error.driver_code, 78);
    assert_string_equal(error.driver_name, "TEST_CODE");
    assert_string_equal(error.message, "injected failure of a command");
    /* Later enqueues say so, with the cause in the message. */
    const accrt_place_t place = {NULL, &words[2], 0};
    assert_int_equal(accrt_stream_fill(stream, &place, 4, 0, 4), ACCRT_ERROR_POISONED);
    assert_int_equal(accrt_last_error(&error), ACCRT_OK);
    assert_non_null(strstr(error.message, "injected failure of a command"));
    assert_int_equal(accrt_stream_wait(stream, before, 1), ACCRT_ERROR_POISONED);
    assert_int_equal(accrt_stream_signal(stream, before, 2), ACCRT_ERROR_POISONED);
    assert_int_equal(accrt_stream_signal(stream, after, 2), ACCRT_ERROR_POISONED);
    assert_int_equal(accrt_stream_fill(stream, &place, 0, 0, 4), ACCRT_ERROR_POISONED);
    assert_int_equal(words[0], 1);
    assert_int_equal(words[1], 0);
    assert_int_equal(words[2], 0);
    /* A reset clears it. */
    assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
    assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
    assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
    assert_int_equal(error.status, ACCRT_OK);
    fill(stream, &words[2], 9);
    assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
    assert_int_equal(words[2], 9);
    accrt_semaphore_release(gate);
    accrt_semaphore_release(before);
    accrt_semaphore_release(after);
    accrt_stream_release(stream);
    close_world();
  }
}

/* A failed wait fails the stream; what it would have signalled gets the same record; so on to the
 * next stream. */
static void test_failure_travels(void** state) {
  (void)state;
  FOR_MODES {
    open_world(modes[mode_]);
    accrt_stream_t *first = make_stream(), *second = make_stream();
    accrt_semaphore_t *gate = make_semaphore(0), *middle = make_semaphore(0),
                      *end = make_semaphore(0);
    uint32_t words[2] = {0, 0};
    assert_int_equal(accrt_stream_wait(second, middle, 1), ACCRT_OK);
    fill(second, &words[1], 1);
    assert_int_equal(accrt_stream_signal(second, end, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(first, gate, 1), ACCRT_OK);
    fill(first, &words[0], 1);
    assert_int_equal(accrt_stream_signal(first, middle, 1), ACCRT_OK);
    assert_int_equal(accrt_semaphore_fail(gate, ACCRT_ERROR_CANCELLED, "cancelled by its owner"),
                     ACCRT_OK);
    assert_int_equal(accrt_semaphore_wait(end, 1, FOREVER, 0), ACCRT_ERROR_POISONED);
    accrt_error_t error = ACCRT_ERROR_INIT;
    assert_int_equal(accrt_semaphore_error(end, &error), ACCRT_OK);
    assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
    assert_string_equal(error.message, "cancelled by its owner");
    check_failed(first, ACCRT_ERROR_CANCELLED, 1);
    check_failed(second, ACCRT_ERROR_CANCELLED, 1);
    assert_int_equal(words[0] + words[1], 0);
    /* Waiting for what has failed already is refused at once, and does not fail the stream. */
    assert_int_equal(accrt_stream_reset(first), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(first, gate, 1), ACCRT_ERROR_POISONED);
    assert_int_equal(accrt_stream_query(first), ACCRT_OK);
    accrt_semaphore_release(gate);
    accrt_semaphore_release(middle);
    accrt_semaphore_release(end);
    accrt_stream_release(first);
    accrt_stream_release(second);
    close_world();
  }
}

static void test_signal_that_is_not_above(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* semaphore = make_semaphore(10);
  assert_int_equal(accrt_stream_signal(stream, semaphore, 10), ACCRT_OK);
  check_failed(stream, ACCRT_ERROR_OUT_OF_RANGE, 1);
  assert_int_equal(value_of(semaphore), 10);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(accrt_stream_signal(stream, semaphore, 11), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(stream);
  close_world();
}

/* A driver's refusal comes back from the call that meets it; from deferred work it fails the
 * stream. */
static void test_driver_refuses(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  test_driver_fail(TEST_FUNCTION_QUEUE_CREATE, 1, ACCRT_ERROR_OUT_OF_MEMORY);
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_ERROR_OUT_OF_MEMORY);
  stream = make_stream();
  accrt_semaphore_t *gate = make_semaphore(0), *done = make_semaphore(0);
  uint32_t word = 0;
  const accrt_place_t place = {NULL, &word, 0};
  test_driver_fail(TEST_FUNCTION_QUEUE_ENQUEUE, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_stream_fill(stream, &place, 4, 1, 4), ACCRT_ERROR_DRIVER);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_int_equal(error.driver_code, 77);
  assert_string_equal(error.driver_name, "TEST_FAULT");
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  fill(stream, &word, 2);
  assert_int_equal(word, 2);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  fill(stream, &word, 3);
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
  test_driver_fail(TEST_FUNCTION_QUEUE_ENQUEUE, 1, ACCRT_ERROR_DRIVER);
  accrt_clear_error();
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_OK); /* not the signaller's fault */
  assert_int_equal(accrt_semaphore_wait(done, 1, FOREVER, 0), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_DRIVER);
  assert_int_equal(word, 2);
  /* A reset that the driver refuses leaves the stream failed. */
  test_driver_fail(TEST_FUNCTION_QUEUE_RESET, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  accrt_semaphore_release(gate);
  accrt_semaphore_release(done);
  accrt_stream_release(stream);
  close_world();
}

static void test_reset_drops_what_waits(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t *gate = make_semaphore(0), *done = make_semaphore(0);
  uint32_t word = 0;
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  fill(stream, &word, 3);
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_semaphore_error(done, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(word, 0);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  accrt_semaphore_release(gate);
  accrt_semaphore_release(done);
  accrt_stream_release(stream);
  close_world();
}

static void test_device_lost(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t* done = make_semaphore(0);
  assert_int_equal(accrt_device_status(world.device), ACCRT_OK);
  uint32_t word = 0;
  test_driver_fail(TEST_FUNCTION_RUN, 1, ACCRT_ERROR_DEVICE_LOST);
  fill(stream, &word, 1);
  const accrt_status_t status = accrt_stream_signal(stream, done, 1);
  if (status == ACCRT_OK)
    assert_int_equal(accrt_semaphore_wait(done, 1, FOREVER, 0), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_DEVICE_LOST);
  const accrt_place_t place = {NULL, &word, 0};
  assert_int_equal(accrt_stream_fill(stream, &place, 4, 1, 4), ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_ERROR_DEVICE_LOST);
  assert_int_equal(accrt_device_status(world.device), ACCRT_ERROR_DEVICE_LOST);
  accrt_stream_t* other;
  assert_int_equal(accrt_stream_create(world.device, NULL, &other), ACCRT_ERROR_DEVICE_LOST);
  accrt_semaphore_release(done);
  accrt_stream_release(stream);
  close_world();
}

/* A wait for ever ends when everything before has ended, also what was running when the stream
 * failed: memory may go then. */
static void* synchronize(void* argument) {
  return (void*)(intptr_t)accrt_stream_synchronize(argument, FOREVER, ACCRT_WAIT_BLOCK);
}

static void test_failure_waits_for_what_runs(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t *gate = make_semaphore(0), *before = make_semaphore(0);
  uint32_t words[2] = {0, 0};
  fill(stream, &words[0], 1);
  assert_int_equal(accrt_stream_signal(stream, before, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  fill(stream, &words[1], 1);
  assert_int_equal(accrt_semaphore_fail(gate, ACCRT_ERROR_CANCELLED, NULL), ACCRT_OK);
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_synchronize(stream, 0, 0), ACCRT_ERROR_POISONED);
  pthread_t thread;
  void* result;
  assert_int_equal(pthread_create(&thread, NULL, synchronize, stream), 0);
  (void)usleep(5000);
  assert_int_equal(value_of(before), 0);
  assert_int_equal(test_driver_step(), 1);
  while (test_driver_step())
    continue; /* a native record and a mark, where there are such */
  assert_int_equal(pthread_join(thread, &result), 0);
  assert_int_equal((intptr_t)result, ACCRT_ERROR_POISONED);
  assert_int_equal(value_of(before), 1); /* what was before the failure is not touched by it */
  assert_int_equal(words[0], 1);
  assert_int_equal(words[1], 0);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  accrt_semaphore_release(gate);
  accrt_semaphore_release(before);
  accrt_stream_release(stream);
  close_world();
}

/* A stream is reset while a semaphore that it waits for is on its way to say so: the wait is let go
 * exactly once. */
static void test_reset_overtakes_a_wait_that_fires(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t *gate = make_semaphore(0), *done = make_semaphore(0);
  uint32_t word = 0;
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  fill(stream, &word, 1);
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
  accrt_context_enter(); /* as inside a completion: follow-up work waits for the way out */
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(accrt_semaphore_wait(done, 1, FOREVER, 0), ACCRT_ERROR_POISONED);
  fill(stream, &word, 2);
  accrt_context_leave();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(word, 2);
  accrt_semaphore_release(gate);
  accrt_semaphore_release(done);
  accrt_stream_release(stream);
  close_world();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_bad_arguments),
      cmocka_unit_test(test_wait_before_signal),
      cmocka_unit_test(test_chain_of_streams),
      cmocka_unit_test(test_deferral_is_invisible_to_the_driver),
      cmocka_unit_test(test_repeated_use_allocates_nothing),
      cmocka_unit_test(test_repeated_waits_allocate_nothing),
      cmocka_unit_test(test_failure_of_a_command),
      cmocka_unit_test(test_failure_travels),
      cmocka_unit_test(test_failure_waits_for_what_runs),
      cmocka_unit_test(test_signal_that_is_not_above),
      cmocka_unit_test(test_driver_refuses),
      cmocka_unit_test(test_reset_drops_what_waits),
      cmocka_unit_test(test_device_lost),
      cmocka_unit_test(test_reset_overtakes_a_wait_that_fires),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
