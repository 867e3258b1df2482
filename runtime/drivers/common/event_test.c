/* Events: order between streams, re-recording, timing, failure. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <unistd.h>

#define MS UINT64_C(1000000)
#define FOREVER ACCRT_TIMEOUT_INFINITE

static test_world_t world;

static void open_world(int mode) {
  assert_int_equal(test_world_open(&world, mode), ACCRT_OK);
}
static void close_world(void) {
  assert_int_equal(test_world_close(&world), 0);
}

static accrt_stream_t* make_stream(void) {
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  return stream;
}

static accrt_event_t* make_event(uint32_t flags) {
  accrt_event_t* event;
  assert_int_equal(accrt_event_create(world.device, flags, &event), ACCRT_OK);
  return event;
}

static void fill(accrt_stream_t* stream, uint32_t* word, uint32_t value) {
  const accrt_place_t place = {NULL, word, 0};
  assert_int_equal(accrt_stream_fill(stream, &place, 4, value, 4), ACCRT_OK);
}

static void test_bad_arguments(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_event_t* event = (accrt_event_t*)1;
  assert_int_equal(accrt_event_create(NULL, 0, &event), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(event);
  assert_int_equal(accrt_event_create(world.device, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_event_create(world.device, 2, &event), ACCRT_ERROR_INVALID_ARGUMENT);
  event = make_event(0);
  accrt_stream_t* stream = make_stream();
  accrt_error_t error = ACCRT_ERROR_INIT;
  int64_t elapsed;
  assert_int_equal(accrt_stream_record(NULL, event), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_record(stream, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_wait_event(stream, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_event_query(NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_event_synchronize(NULL, 0, 0), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_event_synchronize(event, 0, 7), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_event_error(NULL, &error), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_event_error(event, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_event_elapsed(NULL, event, &elapsed), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_event_elapsed(event, event, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_event_elapsed(event, event, &elapsed),
                   ACCRT_ERROR_INVALID_STATE); /* no timing */
  assert_int_equal(accrt_event_error(event, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_OK);
  accrt_event_release(accrt_event_retain(event));
  accrt_event_release(event);
  accrt_event_release(NULL);
  assert_null(accrt_event_retain(NULL));
  accrt_stream_release(stream);
  close_world();
}

static void test_other_device(void** state) {
  (void)state;
  test_driver_reset(TEST_DRIVER_SYNCHRONOUS);
  test_driver.device_count = 2;
  test_driver.device_flags = ACCRT_DEVICE_FLAG_HOST_MEMORY;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_instance_t* instance;
  accrt_device_t* devices[2];
  accrt_stream_t* stream;
  accrt_event_t *event, *here;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  for (uint32_t i = 0; i < 2; ++i)
    assert_int_equal(accrt_instance_device(instance, i, &devices[i]), ACCRT_OK);
  assert_int_equal(accrt_stream_create(devices[0], NULL, &stream), ACCRT_OK);
  assert_int_equal(accrt_event_create(devices[1], ACCRT_EVENT_FLAG_TIMING, &event),
                   ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(accrt_event_create(devices[1], 0, &event), ACCRT_OK);
  assert_int_equal(accrt_event_create(devices[0], 0, &here), ACCRT_OK);
  assert_int_equal(accrt_stream_record(stream, event), ACCRT_ERROR_INVALID_ARGUMENT);
  /* A driver's own events may be waited for across its devices. */
  assert_int_equal(accrt_stream_wait_event(stream, event),
                   TEST_DRIVER_NATIVE ? ACCRT_OK : ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "test:1"));
  assert_string_equal(error.operation,
                      TEST_DRIVER_NATIVE ? "accrt_stream_record" : "accrt_stream_wait_event");
  int64_t elapsed;
  assert_int_equal(accrt_event_elapsed(here, event, &elapsed), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_event_release(here);
  accrt_event_release(event);
  accrt_stream_release(stream);
  for (uint32_t i = 0; i < 2; ++i)
    accrt_device_release(devices[i]);
  accrt_instance_release(instance);
}

static void test_order_between_streams(void** state) {
  (void)state;
  static const int modes[] = {TEST_DRIVER_SYNCHRONOUS, TEST_DRIVER_THREAD, TEST_DRIVER_CALLER};
  for (int m = 0; m < 3; ++m) {
    open_world(modes[m]);
    accrt_stream_t *one = make_stream(), *two = make_stream();
    accrt_event_t* event = make_event(0);
    accrt_semaphore_t* gate;
    assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
    uint32_t words[2] = {0, 0};
    assert_int_equal(accrt_stream_wait_event(two, event),
                     ACCRT_OK); /* never recorded: nothing to wait for */
    assert_int_equal(accrt_event_query(event), ACCRT_OK);
    assert_int_equal(accrt_event_synchronize(event, 0, 0), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(one, gate, 1), ACCRT_OK);
    fill(one, &words[0], 4);
    assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
    assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
    const accrt_place_t from = {NULL, &words[0], 0}, to = {NULL, &words[1], 0};
    assert_int_equal(accrt_stream_copy(two, &from, &to, 4), ACCRT_OK);
    assert_int_equal(accrt_event_query(event), ACCRT_ERROR_NOT_READY);
    assert_int_equal(accrt_event_synchronize(event, 0, 0), ACCRT_ERROR_NOT_READY);
    assert_int_equal(accrt_event_synchronize(event, MS, 0), ACCRT_ERROR_TIMEOUT);
    assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
    assert_int_equal(accrt_event_synchronize(event, FOREVER, 0), ACCRT_OK);
    assert_int_equal(accrt_event_query(event), ACCRT_OK);
    assert_int_equal(accrt_stream_synchronize(two, FOREVER, 0), ACCRT_OK);
    assert_int_equal(words[1], 4);
    accrt_semaphore_release(gate);
    accrt_event_release(event);
    accrt_stream_release(one);
    accrt_stream_release(two);
    close_world();
  }
}

/* A wait belongs to the record that was the latest when it was enqueued, whatever is recorded
 * later, and where. */
static void test_recording_again(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_stream_t *one = make_stream(), *two = make_stream(), *waiting = make_stream();
  accrt_event_t* event = make_event(0);
  accrt_semaphore_t* gate;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
  uint32_t word = 0;
  assert_int_equal(accrt_stream_wait(one, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(waiting, event), ACCRT_OK);
  fill(waiting, &word, 1);
  assert_int_equal(accrt_stream_record(two, event), ACCRT_OK); /* reached at once */
  assert_int_equal(accrt_event_query(event), ACCRT_OK);
  assert_int_equal(accrt_stream_query(waiting), ACCRT_ERROR_NOT_READY);
  assert_int_equal(word, 0);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(word, 1);
  assert_int_equal(accrt_event_query(event), ACCRT_OK);
  /* Again and again on one stream: nothing is allocated, but for the jobs of the driver for
   * tests. */
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  const long before = atomic_load(&world.allocator.total_count);
  for (int i = 0; i < 100; ++i) {
    assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
    assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  }
  if (!TEST_DRIVER_NATIVE)
    assert_int_equal(atomic_load(&world.allocator.total_count), before);
  accrt_semaphore_release(gate);
  accrt_event_release(event);
  accrt_stream_release(one);
  accrt_stream_release(two);
  accrt_stream_release(waiting);
  close_world();
}

/* The record of the last error names the public function that failed, and none below it. */
static void assert_operation(const char* wanted) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_string_equal(error.operation, wanted);
}

static void test_timing(void** state) {
  (void)state;
  open_world(TEST_DRIVER_STEPPED);
  accrt_stream_t* stream = make_stream();
  accrt_event_t *start = make_event(ACCRT_EVENT_FLAG_TIMING),
                *end = make_event(ACCRT_EVENT_FLAG_TIMING);
  int64_t elapsed = 1;
  assert_int_equal(accrt_event_elapsed(start, end, &elapsed),
                   ACCRT_ERROR_INVALID_STATE); /* never recorded */
  assert_operation("accrt_event_elapsed");
  assert_int_equal(elapsed, 0);
  assert_int_equal(accrt_stream_record(stream, start), ACCRT_OK);
  while (test_driver_step())
    continue;
  uint32_t word = 0;
  fill(stream, &word, 1);
  assert_int_equal(accrt_stream_record(stream, end), ACCRT_OK);
  assert_int_equal(accrt_event_elapsed(start, end, &elapsed), ACCRT_ERROR_NOT_READY);
  assert_operation("accrt_event_elapsed");
  (void)usleep(5000);
  while (test_driver_step())
    continue;
  assert_int_equal(accrt_event_elapsed(start, end, &elapsed), ACCRT_OK);
  assert_true(elapsed >= (int64_t)(5 * MS));
  assert_int_equal(accrt_event_elapsed(end, start, &elapsed), ACCRT_OK);
  assert_true(elapsed <= -(int64_t)(5 * MS));
  /* A driver that cannot notify leaves the order and a time. */
  fill(stream, &word, 2);
  test_driver_fail(TEST_FUNCTION_QUEUE_NOTIFY, 1, ACCRT_ERROR_DRIVER);
  assert_int_equal(accrt_stream_record(stream, end), ACCRT_OK);
  assert_int_equal(accrt_event_query(end), ACCRT_ERROR_NOT_READY);
  while (test_driver_step())
    continue;
  assert_int_equal(accrt_event_query(end), ACCRT_OK);
  assert_int_equal(accrt_event_elapsed(start, end, &elapsed), ACCRT_OK);
  assert_true(elapsed > 0);
  accrt_event_release(start);
  accrt_event_release(end);
  accrt_stream_release(stream);
  close_world();
}

static void test_failure(void** state) {
  (void)state;
  open_world(TEST_DRIVER_SYNCHRONOUS);
  accrt_stream_t *stream = make_stream(), *other = make_stream();
  accrt_event_t* event = make_event(ACCRT_EVENT_FLAG_TIMING);
  accrt_semaphore_t* gate;
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_record(stream, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(other, event), ACCRT_OK);
  assert_int_equal(accrt_semaphore_fail(gate, ACCRT_ERROR_CANCELLED, "stopped"), ACCRT_OK);
  assert_int_equal(accrt_event_query(event), ACCRT_ERROR_POISONED);
  assert_operation("accrt_event_query");
  int64_t elapsed;
  assert_int_equal(accrt_event_elapsed(event, event, &elapsed), ACCRT_ERROR_POISONED);
  assert_operation("accrt_event_elapsed");
  assert_int_equal(accrt_event_synchronize(event, FOREVER, 0), ACCRT_ERROR_POISONED);
  assert_operation("accrt_event_synchronize");
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_event_error(event, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_string_equal(error.message, "stopped");
  assert_int_equal(accrt_stream_query(other), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_wait_event(stream, event), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_record(stream, event), ACCRT_ERROR_POISONED);
  /* A record that was refused changed nothing; one that is taken replaces the failure. */
  assert_int_equal(accrt_event_query(event), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(accrt_stream_record(stream, event), ACCRT_OK);
  assert_int_equal(accrt_event_query(event), ACCRT_OK);
  assert_int_equal(accrt_event_error(event, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_OK);
  accrt_semaphore_release(gate);
  accrt_event_release(event);
  accrt_stream_release(stream);
  accrt_stream_release(other);
  close_world();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_arguments),
      cmocka_unit_test(test_other_device),
      cmocka_unit_test(test_order_between_streams),
      cmocka_unit_test(test_recording_again),
      cmocka_unit_test(test_timing),
      cmocka_unit_test(test_failure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
