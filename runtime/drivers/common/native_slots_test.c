/* The optional slots of a driver: points of semaphores on the device, the driver's own events,
 * wrapped queues, prepared launches, modules, peers. */
#include "runtime/drivers/common/numbers_test.h"

/* ---- Points: signals and waits on the device ---- */

static void test_points(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t* semaphore = make_semaphore();
  uint32_t words[2] = {0, 0};
  for (uint32_t round = 1; round <= 20; ++round) {
    fill(one, &words[0], round);
    assert_int_equal(accrt_stream_signal(one, semaphore, 2 * round - 1), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(two, semaphore, 2 * round - 1), ACCRT_OK);
    copy(two, &words[0], &words[1]);
    assert_int_equal(accrt_stream_signal(two, semaphore, 2 * round), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(one, semaphore, 2 * round), ACCRT_OK);
    assert_int_equal(accrt_stream_query(one), ACCRT_ERROR_NOT_READY);
    assert_true(value_of(semaphore) <= 2 * round - 2);
    if (round % 3 == 0)
      continue; /* two rounds in flight */
    run_all();
    assert_int_equal(words[1], round);
    assert_int_equal(value_of(semaphore), 2 * round);
    assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  }
  assert_int_equal(atomic_load(&test_driver.waits), 40);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(one);
  accrt_stream_release(two);
  run_all();
  close_world();
}

/* Ping-pong without the host, with a driver that runs it later, and far more points than are kept
 * unasked. */
static void test_many_points(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t* semaphore = make_semaphore();
  uint32_t words[2] = {0, 0};
  uint64_t value = 0;
  for (uint32_t round = 1; round <= 400; ++round) {
    fill(one, &words[0], round);
    assert_int_equal(accrt_stream_signal(one, semaphore, ++value), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(two, semaphore, value), ACCRT_OK);
    copy(two, &words[0], &words[1]);
    assert_int_equal(accrt_stream_signal(two, semaphore, ++value), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(one, semaphore, value), ACCRT_OK);
  }
  assert_int_equal(accrt_semaphore_wait(semaphore, value, FOREVER, ACCRT_WAIT_BLOCK), ACCRT_OK);
  assert_int_equal(words[1], 400);
  assert_int_equal(value_of(semaphore), value);
  assert_int_equal(atomic_load(&test_driver.notifies), 0);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(one);
  accrt_stream_release(two);
  close_world();
}

static void test_host_waits_for_points(void** state) {
  (void)state;
  for (int i = 0; i < 3; ++i) {
    open_world(TEST_DRIVER_THREAD);
    accrt_stream_t *one = make_stream(), *two = make_stream();
    accrt_semaphore_t *a = make_semaphore(), *b = make_semaphore();
    uint32_t words[2] = {0, 0};
    for (uint32_t round = 1; round <= 30; ++round) {
      fill(one, &words[0], round);
      assert_int_equal(accrt_stream_signal(one, a, round), ACCRT_OK);
      fill(two, &words[1], round);
      assert_int_equal(accrt_stream_signal(two, b, round), ACCRT_OK);
      const accrt_timepoint_t points[2] = {{a, round}, {b, round}};
      uint32_t index;
      assert_int_equal(
          accrt_semaphore_wait_many(points, 2, round % 2, FOREVER, policies[i], &index), ACCRT_OK);
      assert_int_equal(accrt_semaphore_wait(a, round, FOREVER, policies[i]), ACCRT_OK);
      assert_int_equal(accrt_semaphore_wait(b, round, FOREVER, policies[i]), ACCRT_OK);
      assert_int_equal(words[0], round);
      assert_int_equal(words[1], round);
    }
    accrt_semaphore_release(a);
    accrt_semaphore_release(b);
    accrt_stream_release(one);
    accrt_stream_release(two);
    close_world();
  }
}

static void test_points_are_told(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t *semaphore = make_semaphore(), *gate = make_semaphore();
  uint32_t words[2] = {0, 0};
  struct pollfd polled = {.events = POLLIN};
  for (int before = 0; before < 2; ++before) {
    const uint64_t value = (uint64_t)before + 1;
    if (before)
      assert_int_equal(accrt_semaphore_export_eventfd(semaphore, value, &polled.fd), ACCRT_OK);
    fill(one, &words[0], 1);
    assert_int_equal(accrt_stream_signal(one, semaphore, value), ACCRT_OK);
    if (!before)
      assert_int_equal(accrt_semaphore_export_eventfd(semaphore, value, &polled.fd), ACCRT_OK);
    assert_int_equal(poll(&polled, 1, 5000), 1);
    assert_int_equal(value_of(semaphore), value);
    assert_int_equal(close(polled.fd), 0);
  }
  /* A stream that waits already, and one that defers for another reason. */
  assert_int_equal(accrt_stream_wait(two, semaphore, 3), ACCRT_OK);
  copy(two, &words[0], &words[1]);
  fill(one, &words[0], 3);
  assert_int_equal(accrt_stream_signal(one, semaphore, 3), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[1], 3);
  assert_int_equal(accrt_stream_wait(two, gate, 1), ACCRT_OK);
  fill(one, &words[0], 4);
  assert_int_equal(accrt_stream_signal(one, semaphore, 4), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(two, semaphore, 4), ACCRT_OK);
  copy(two, &words[0], &words[1]);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[1], 4);
  accrt_semaphore_release(semaphore);
  accrt_semaphore_release(gate);
  accrt_stream_release(one);
  accrt_stream_release(two);
  close_world();
}

/* What a device will still reach needs no handle; what it will not is left when it is there. */
static void test_points_outlive_handles(void** state) {
  (void)state;
  for (int begun = 0; begun < 2; ++begun) {
    open_world(TEST_DRIVER_STEPPED);
    accrt_stream_t *one = make_stream(), *two = make_stream(), *three = make_stream();
    accrt_semaphore_t *gate = make_semaphore(), *semaphore = make_semaphore();
    uint32_t words[3] = {0, 0, 0};
    /* Two holds work back for another reason, three waits for more than the device will reach. */
    if (!begun)
      assert_int_equal(accrt_stream_wait(two, gate, 1), ACCRT_OK);
    if (begun)
      assert_int_equal(accrt_stream_wait(two, semaphore, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(three, semaphore, 2), ACCRT_OK);
    fill(three, &words[2], 1);
    fill(one, &words[0], 5);
    assert_int_equal(accrt_stream_signal(one, semaphore, 1), ACCRT_OK);
    if (!begun)
      assert_int_equal(accrt_stream_wait(two, semaphore, 1), ACCRT_OK);
    copy(two, &words[0], &words[1]);
    accrt_semaphore_release(semaphore);
    assert_int_equal(accrt_stream_query(two), ACCRT_ERROR_NOT_READY);
    assert_int_equal(accrt_stream_query(three), ACCRT_ERROR_NOT_READY);
    run_all();
    assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
    run_all();
    assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
    assert_int_equal(words[1], 5);
    assert_int_equal(accrt_stream_synchronize(three, FOREVER, 0), ACCRT_ERROR_POISONED);
    assert_says("is at 1, and nothing can raise it any more");
    assert_int_equal(words[2], 0);
    accrt_semaphore_release(gate);
    accrt_stream_release(one);
    accrt_stream_release(two);
    accrt_stream_release(three);
    run_all();
    close_world();
  }
}

static void test_points_fail(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t *a = make_semaphore(), *b = make_semaphore();
  uint32_t words[2] = {0, 0};
  test_driver_fail(TEST_FUNCTION_RUN, 1, ACCRT_ERROR_KERNEL);
  fill(one, &words[0], 1);
  assert_int_equal(accrt_stream_signal(one, a, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(two, a, 1), ACCRT_OK);
  fill(two, &words[1], 1);
  assert_int_equal(accrt_stream_signal(two, b, 1), ACCRT_OK);
  run_all();
  assert_int_equal(accrt_semaphore_wait(b, 1, FOREVER, 0), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_semaphore_wait(a, 1, 0, 0), ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_semaphore_error(b, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(accrt_stream_query(one), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_query(two), ACCRT_ERROR_POISONED);
  assert_int_equal(words[1], 0);
  run_all();
  assert_int_equal(accrt_stream_reset(one), ACCRT_OK);
  assert_int_equal(accrt_stream_reset(two), ACCRT_OK);
  /* Cancelled while a device is on its way: who waits hears of it. */
  accrt_semaphore_t* c = make_semaphore();
  fill(one, &words[0], 2);
  assert_int_equal(accrt_stream_signal(one, c, 1), ACCRT_OK);
  assert_int_equal(accrt_semaphore_fail(c, ACCRT_ERROR_CANCELLED, "no more"), ACCRT_OK);
  assert_int_equal(accrt_semaphore_wait(c, 1, FOREVER, 0), ACCRT_ERROR_POISONED);
  assert_says("no more");
  run_all();
  assert_int_equal(accrt_stream_synchronize(one, FOREVER, 0), ACCRT_OK);
  /* Raised from elsewhere: the stream's signal comes too late. */
  accrt_semaphore_t* d = make_semaphore();
  assert_int_equal(accrt_stream_signal(one, d, 3), ACCRT_OK);
  assert_int_equal(accrt_semaphore_signal(d, 5), ACCRT_OK);
  run_all();
  assert_int_equal(value_of(d), 5);
  assert_int_equal(accrt_stream_query(one), ACCRT_ERROR_POISONED);
  assert_says("was to be raised to 3");
  run_all();
  accrt_semaphore_release(a);
  accrt_semaphore_release(b);
  accrt_semaphore_release(c);
  accrt_semaphore_release(d);
  accrt_stream_release(one);
  accrt_stream_release(two);
  run_all();
  close_world();
}

/* ---- Events ---- */

static void test_native_events(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_event_t* event;
  uint32_t words[2] = {0, 0};
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  fill(one, &words[0], 1);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  assert_int_equal(atomic_load(&test_driver.records), 1);
  assert_int_equal(atomic_load(&test_driver.waits), 1);
  /* Nothing but a wait: there is something to be waited for all the same. */
  assert_int_equal(accrt_stream_query(two), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_stream_synchronize(two, 0, 0), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_event_synchronize(event, 0, 0), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_event_synchronize(event, MS, 0), ACCRT_ERROR_TIMEOUT);
  copy(two, &words[0], &words[1]);
  run_all();
  assert_int_equal(words[1], 1);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(accrt_event_synchronize(event, FOREVER, 0), ACCRT_OK);
  /* Behind a failure. */
  test_driver_fail(TEST_FUNCTION_RUN, 1, ACCRT_ERROR_KERNEL);
  fill(one, &words[0], 2);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  fill(two, &words[1], 2);
  run_all();
  assert_int_equal(accrt_event_query(event), ACCRT_ERROR_POISONED);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_event_error(event, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(accrt_stream_query(two), ACCRT_ERROR_POISONED);
  assert_int_equal(words[1], 1);
  accrt_event_release(event);
  accrt_stream_release(one);
  accrt_stream_release(two);
  run_all();
  close_world();
}

/* A record that is deferred becomes the driver's when its turn comes; a wait that is deferred is
 * for the record of its time. */
static void test_deferred_events(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t* gate = make_semaphore();
  accrt_event_t* event;
  uint32_t words[3] = {0, 0, 0};
  assert_int_equal(accrt_event_create(world.device, ACCRT_EVENT_FLAG_TIMING, &event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(one, gate, 1), ACCRT_OK);
  fill(one, &words[0], 1);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  copy(two, &words[0], &words[1]);
  assert_int_equal(accrt_event_query(event), ACCRT_ERROR_NOT_READY);
  assert_int_equal(atomic_load(&test_driver.records), 0);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_event_synchronize(event, FOREVER, 0), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[1], 1);
  assert_int_equal(atomic_load(&test_driver.records), 1);
  int64_t elapsed;
  assert_int_equal(accrt_event_elapsed(event, event, &elapsed), ACCRT_OK);
  /* A stream that defers waits for a native record, which is replaced meanwhile. */
  fill(one, &words[0], 2);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(two, gate, 2), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  copy(two, &words[0], &words[2]);
  assert_int_equal(accrt_stream_wait(one, gate, 3), ACCRT_OK); /* never before the end */
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_semaphore_signal(gate, 2), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
  assert_int_equal(words[2], 2);
  assert_int_equal(accrt_semaphore_signal(gate, 3), ACCRT_OK);
  accrt_event_release(event);
  accrt_semaphore_release(gate);
  accrt_stream_release(one);
  accrt_stream_release(two);
  close_world();
}

/* ---- Somebody else's queues ---- */

static void test_wrapped(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  test_native_t native = {0}, other = {.device_index = 1};
  accrt_stream_t *stream, *own = make_stream();
  void* pointer;
  assert_int_equal(accrt_stream_wrap(world.device, &other, &stream), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(stream);
  assert_int_equal(accrt_stream_wrap(NULL, &native, &stream), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_wrap(world.device, &native, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_wrap(world.device, &native, &stream), ACCRT_OK);
  assert_int_equal(accrt_stream_native(stream, &pointer), ACCRT_OK);
  assert_ptr_equal(pointer, &native);
  assert_int_equal(accrt_stream_native(own, &pointer), ACCRT_OK);
  assert_non_null(pointer);
  accrt_semaphore_t *semaphore = make_semaphore(), *done = make_semaphore();
  accrt_event_t* event;
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  uint32_t word = 0;
  fill(stream, &word, 1);
  assert_int_equal(accrt_stream_wait(stream, semaphore, 1), ACCRT_ERROR_NOT_READY);
  assert_says("cannot hold work back");
  assert_int_equal(accrt_stream_signal(own, semaphore, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, semaphore, 1), ACCRT_OK); /* a device will signal it */
  assert_int_equal(accrt_stream_query(stream), ACCRT_ERROR_NOT_READY);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  /* Captured: everything is refused, nothing is broken. */
  atomic_store(&native.capturing, 1);
  assert_int_equal(try_fill(stream, &word, 2), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_stream_record(stream, event), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_ERROR_INVALID_STATE);
  heard_t heard = {.word = &word};
  assert_int_equal(accrt_stream_notify(stream, hear, &heard), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  atomic_store(&native.capturing, 0);
  assert_int_equal(accrt_event_query(event), ACCRT_OK); /* never recorded */
  fill(stream, &word, 3);
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(value_of(done), 1);
  assert_int_equal(word, 3);
  assert_int_equal(atomic_load(&heard.count), 0);
  /* A stream that defers does not give its queue away. */
  assert_int_equal(accrt_stream_wait(own, done, 2), ACCRT_OK);
  assert_int_equal(accrt_stream_native(own, &pointer), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_semaphore_signal(done, 2), ACCRT_OK);
  accrt_event_release(event);
  accrt_semaphore_release(semaphore);
  accrt_semaphore_release(done);
  accrt_stream_release(stream);
  accrt_stream_release(own);
  run_all();
  close_world();
}

/* ---- Prepared launches and modules ---- */

static void test_prepared(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_kernel_t* kernel;
  accrt_kernel_pack_t* pack = load_module(&kernel);
  accrt_stream_t* stream = make_stream();
  accrt_buffer_t *a = make_buffer(64), *b = make_buffer(64);
  *words_of(a) = *words_of(b) = 0;
  const uint32_t grid[3] = {1, 1, 1}, none[3] = {1, 0, 1};
  accrt_launch_t* launch;
  assert_int_equal(accrt_launch_create(world.device, NULL, &launch), ACCRT_ERROR_INVALID_ARGUMENT);
  test_driver_fail(TEST_FUNCTION_LAUNCH_CREATE, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_launch_create(world.device, kernel, &launch), ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_launch_create(world.device, kernel, &launch), ACCRT_OK);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_ERROR_INVALID_STATE);
  assert_says("'target'");
  accrt_kernel_argument_t argument = {.kind = ACCRT_KERNEL_PARAM_BUFFER,
                                      .binding = ACCRT_BINDING_NONE,
                                      .buffer = a,
                                      .size_bytes = 4};
  assert_int_equal(accrt_launch_set(launch, 2, &argument, sizeof argument),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_launch_set(launch, 1, &argument, sizeof argument),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_launch_set(launch, 0, &argument, 8), ACCRT_ERROR_INVALID_ARGUMENT);
  argument.offset_bytes = 64;
  assert_int_equal(accrt_launch_set(launch, 0, &argument, sizeof argument),
                   ACCRT_ERROR_OUT_OF_RANGE);
  argument.offset_bytes = 0;
  assert_int_equal(accrt_launch_set(launch, 0, &argument, sizeof argument), ACCRT_OK);
  const accrt_kernel_argument_t five = {
      .kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = 5};
  assert_int_equal(accrt_launch_set(launch, 1, &five, sizeof five), ACCRT_OK);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, none), ACCRT_OK);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_OK);
  /* The launch's buffers are its own: one that leaves knows who uses it. */
  argument.buffer = b;
  assert_int_equal(accrt_launch_set(launch, 0, &argument, sizeof argument), ACCRT_OK);
  assert_false(accrt_buffer_is_unshared(a));
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_OK);
  void* params = accrt_launch_params(launch);
  assert_int_equal((uintptr_t)params % 16, 0);
  const uint32_t seven = 7;
  memcpy((char*)params + 8, &seven, sizeof seven);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_OK);
  /* A stream that defers has a copy of the block. */
  accrt_semaphore_t* gate = make_semaphore();
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_launch_prepared(stream, launch, grid), ACCRT_OK);
  memset(params, 0, 16);
  accrt_launch_release(accrt_launch_retain(launch));
  accrt_launch_release(launch);
  accrt_launch_release(NULL);
  accrt_kernel_pack_release(pack);
  assert_int_equal(atomic_load(&test_driver.modules), 1); /* work in flight is its */
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  run_all();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(*words_of(a), 5);
  assert_int_equal(*words_of(b), 5 + 7 + 7);
  assert_true(accrt_buffer_is_unshared(a));
  assert_true(accrt_buffer_is_unshared(b));
  assert_int_equal(atomic_load(&test_driver.modules), 0);
  accrt_buffer_release(a);
  accrt_buffer_release(b);
  accrt_semaphore_release(gate);
  accrt_stream_release(stream);
  close_world();
}

static void test_modules(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_kernel_t* kernel;
  accrt_kernel_pack_t* pack = load_module(&kernel);
  accrt_kernel_info_t info = ACCRT_KERNEL_INFO_INIT;
  assert_int_equal(accrt_kernel_info(kernel, &info), ACCRT_OK);
  assert_string_equal(info.pack_name, "adder");
  assert_int_equal(info.block[0], 32);
  accrt_buffer_t* buffer = make_buffer(64);
  *words_of(buffer) = 1;
  accrt_stream_t* stream = make_stream();
  const uint32_t grid[3] = {2, 1, 1};
  const accrt_kernel_argument_t arguments[2] = {
      {.kind = ACCRT_KERNEL_PARAM_BUFFER,
       .binding = ACCRT_BINDING_NONE,
       .buffer = buffer,
       .size_bytes = 4},
      {.kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = 20}};
  assert_int_equal(accrt_stream_launch(stream, kernel, grid, arguments, 2, sizeof *arguments),
                   ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_int_equal(*words_of(buffer), 41);
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition, .name = "none"};
  options.image = "test module";
  options.size_bytes = 11;
  options.kernels = &definition;
  options.kernel_count = 1;
  options.kernel_size_bytes = (uint32_t)sizeof definition;
  accrt_kernel_pack_t* bad;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_says("no dimension may be 0");
  definition.block[0] = definition.block[1] = definition.block[2] = 1;
  definition.cluster[0] = 2;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_FORMAT);
  definition.cluster[0] = 0;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad), ACCRT_ERROR_NOT_FOUND);
  definition.name = "add"; /* with a block that the image does not have */
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_FORMAT);
  options.kernel_count = 0;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_says("0 kernels are declared");
  options.kernel_count = 1;
  options.image = "\001\002\003\004";
  options.size_bytes = 4;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_says("no cubin, PTX or fatbin");
  options.size_bytes = 0;
  assert_int_equal(accrt_kernel_module_load(world.device, &options, &bad),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(bad);
  assert_int_equal(atomic_load(&test_driver.modules), 1);
  accrt_kernel_pack_release(pack);
  accrt_buffer_release(buffer);
  accrt_stream_release(stream);
  close_world();
}

/* Optional slots come in groups: all of one, or none. */
static const void* query_without_wait(uint32_t max_abi) {
  accrt_driver_table_t* table = (accrt_driver_table_t*)(uintptr_t)test_driver_query(max_abi);
  table->queue_wait = NULL;
  return table;
}

static void test_groups(void** state) {
  (void)state;
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_instance_t* instance;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(instance, query_without_wait),
                   ACCRT_ERROR_INVALID_FORMAT);
  assert_says("queue_wait");
  accrt_instance_release(instance);
}

static void test_peers(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  assert_int_equal(accrt_device_enable_peer(world.device, world.device), ACCRT_OK);
  assert_int_equal(accrt_device_enable_peer(world.device, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  close_world();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_points),
      cmocka_unit_test(test_many_points),
      cmocka_unit_test(test_host_waits_for_points),
      cmocka_unit_test(test_points_are_told),
      cmocka_unit_test(test_points_outlive_handles),
      cmocka_unit_test(test_points_fail),
      cmocka_unit_test(test_native_events),
      cmocka_unit_test(test_deferred_events),
      cmocka_unit_test(test_wrapped),
      cmocka_unit_test(test_prepared),
      cmocka_unit_test(test_modules),
      cmocka_unit_test(test_groups),
      cmocka_unit_test(test_peers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
