/* Lists in pieces: a stream is not reset between two pieces of one list. The test driver runs what
 * the test lets it run. */
#include "runtime/drivers/common/internal.h"
#include "runtime/drivers/common/test_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <limits.h>
#include <stdbool.h>
#include <unistd.h>

#define FOREVER ACCRT_TIMEOUT_INFINITE
#define WORDS 6

/* At the `at`-th event of a submission, another thread cancels and resets the stream. */
typedef struct intruder {
  accrt_stream_t* stream;
  pthread_t thread;
  uint32_t at, seen;
  bool is_submitting, has_begun;
  atomic_bool is_cancelled;
  atomic_bool is_over;      /* the reset has returned */
  bool has_failed;          /* there was something to cancel */
  bool was_over_in_between; /* the reset returned while the list was being submitted */
} intruder_t;

static void* cancel_and_reset(void* user) {
  intruder_t* own = user;
  assert_int_equal(accrt_stream_cancel(own->stream), ACCRT_OK);
  own->has_failed = accrt_stream_failures(own->stream) != 0;
  atomic_store(&own->is_cancelled, true);
  assert_int_equal(accrt_stream_reset(own->stream), ACCRT_OK);
  atomic_store(&own->is_over, true);
  return NULL;
}

/* The device runs until the reset has returned, for at most so many milliseconds. */
static void run_until_over(intruder_t* own, int limit_ms) {
  for (int i = 0; i < limit_ms && !atomic_load(&own->is_over); ++i) {
    while (test_driver_step())
      continue;
    (void)usleep(1000);
  }
}

/* Called by the thread that submits, which holds no lock. */
static void intrude(void* self, const accrt_trace_event_t* event) {
  intruder_t* own = self;
  if (!own->is_submitting || own->has_begun || event->kind != ACCRT_TRACE_SUBMIT ||
      ++own->seen != own->at)
    return;
  own->has_begun = true;
  assert_int_equal(pthread_create(&own->thread, NULL, cancel_and_reset, own), 0);
  while (!atomic_load(&own->is_cancelled))
    (void)usleep(100);
  run_until_over(own, 50);
  own->was_over_in_between = atomic_load(&own->is_over) && own->has_failed;
}

static accrt_commands_t* record_fills(accrt_device_t* device, uint32_t words[WORDS]) {
  accrt_commands_t* commands;
  assert_int_equal(accrt_commands_create(device, 0, &commands), ACCRT_OK);
  for (uint32_t i = 0; i < WORDS; ++i) {
    const accrt_binding_place_t place = {ACCRT_BINDING_NONE, 0, {NULL, &words[i], 0}};
    assert_int_equal(accrt_commands_fill(commands, &place, 4, i + 1, 4, NULL, NULL), ACCRT_OK);
  }
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  return commands;
}

/* What ran of the list is its beginning: nothing behind a piece that was dropped. */
static void check_prefix(const uint32_t words[WORDS]) {
  uint32_t count = 0;
  while (count < WORDS && words[count] == count + 1)
    ++count;
  for (uint32_t i = count; i < WORDS; ++i)
    assert_int_equal(words[i], 0);
}

/* True when the intruder came. `*out_failures`: grows when it had something to cancel. */
static bool submit_with_intruder(uint32_t at, uint32_t* out_failures) {
  test_driver_reset(TEST_DRIVER_STEPPED);
  intruder_t own = {.at = at};
  uint32_t words[WORDS] = {0};
  const accrt_trace_sink_t sink = {&own, intrude};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  accrt_stream_options_t pieces = ACCRT_STREAM_OPTIONS_INIT;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.trace_sink = &sink;
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_instance_register_driver(instance, test_driver_query), ACCRT_OK);
  assert_int_equal(accrt_instance_device(instance, 0, &device), ACCRT_OK);
  pieces.ahead = 1;
  pieces.commands_per_piece = 1;
  assert_int_equal(accrt_stream_create(device, &pieces, &stream), ACCRT_OK);
  accrt_commands_t* commands = record_fills(device, words);
  own.stream = stream;
  own.is_submitting = true;
  const accrt_status_t status = accrt_stream_submit(stream, commands, NULL, 0, 0);
  own.is_submitting = false;
  assert_true(status == ACCRT_OK || status == ACCRT_ERROR_POISONED);
  if (own.has_begun) {
    run_until_over(&own, INT_MAX);
    assert_int_equal(pthread_join(own.thread, NULL), 0);
  }
  assert_false(own.was_over_in_between);
  while (accrt_stream_query(stream) == ACCRT_ERROR_NOT_READY)
    (void)test_driver_step();
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  check_prefix(words);
  accrt_commands_release(commands);
  accrt_stream_release(stream);
  accrt_device_release(device);
  accrt_instance_release(instance);
  *out_failures += own.has_failed;
  return own.has_begun;
}

static void test_no_reset_between_pieces(void** state) {
  (void)state;
  uint32_t at = 1, failures = 0;
  while (submit_with_intruder(at, &failures))
    ++at;
  assert_true(failures >= WORDS - 1); /* it came behind each piece, at least */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_reset_between_pieces)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
