/* tests/cts/stream.c - streams, notifications, events, timing, failure of a stream and its
 * reset. */
#include "cts.h"

/* Closes a stream until the semaphore it gives is signalled with 1. */
static accrt_semaphore_t* close_stream(cts_t* cts, accrt_stream_t* stream) {
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(stream, gate, 1));
  return gate;
}

static void open_stream(accrt_semaphore_t* gate) {
  OK(accrt_semaphore_signal(gate, 1));
  accrt_semaphore_release(gate);
}

static accrt_event_t* make_event(cts_t* cts, uint32_t flags) {
  accrt_event_t* event = NULL;
  OK(accrt_event_create(cts->device, flags, &event));
  return event;
}

/* Device memory is filled, and copied to where the host sees it. */
static void fill_word(cts_t* cts, accrt_stream_t* stream, uint32_t* word, uint32_t value) {
  accrt_buffer_t* buffer = cts_buffer(cts, 4);
  const accrt_place_t at = cts_at(buffer, 0);
  const accrt_place_t out = cts_host(word);
  OK(accrt_stream_fill(stream, &at, 4, value, 4));
  OK(accrt_stream_copy(stream, &at, &out, 4));
  accrt_buffer_release(buffer);
}

/* ---- What must work ---- */

static void test_idle_stream(void** state) {
  cts_t* cts = *state;
  OK(accrt_stream_query(cts->stream));
  OK(accrt_stream_synchronize(cts->stream, 0, ACCRT_WAIT_BLOCK));
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_stream_error(cts->stream, &error));
  assert_int_equal(error.status, ACCRT_OK);
}

static void test_ids_and_device(void** state) {
  cts_t* cts = *state;
  accrt_stream_t* streams[8];
  uint64_t last = accrt_stream_id(cts->stream);
  assert_true(last != 0);
  for (int i = 0; i < 8; ++i) {
    accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
    options.priority = i - 4;
    options.label = "labelled";
    OK(accrt_stream_create(cts->device, &options, &streams[i]));
    assert_true(accrt_stream_id(streams[i]) > last); /* never reused */
    last = accrt_stream_id(streams[i]);
    assert_ptr_equal(accrt_stream_device(streams[i]), cts->device);
    if (i % 2 == 0) {
      accrt_stream_release(streams[i]);
      streams[i] = NULL;
    }
  }
  for (int i = 0; i < 8; ++i)
    accrt_stream_release(streams[i]);
}

/* Streams that give the device few pieces of work at a time do the same in the same order. What
 * they hold is dropped by a cancel, and they go on after a reset. */
static void test_work_is_held_back(void** state) {
  cts_t* cts = *state;
  for (uint32_t ahead = 1; ahead <= 3; ++ahead) {
    uint32_t copies[50], last = 7;
    accrt_stream_t* stream;
    accrt_semaphore_t* gate;
    accrt_error_t error = ACCRT_ERROR_INIT;
    accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
    options.ahead = ahead;
    OK(accrt_stream_create(cts->device, &options, &stream));
    OK(accrt_semaphore_create(cts->instance, 0, &gate));
    accrt_buffer_t* buffer = cts_buffer(cts, 4);
    const accrt_place_t at = cts_at(buffer, 0), end = cts_host(&last);
    for (int round = 0; round < 3; ++round) {
      for (uint32_t i = 0; i < 50; ++i) {
        const accrt_place_t out = cts_host(&copies[i]);
        OK(accrt_stream_fill(stream, &at, 4, i, 4));
        OK(accrt_stream_copy(stream, &at, &out, 4));
      }
      cts_sync(stream);
      for (uint32_t i = 0; i < 50; ++i)
        assert_int_equal(copies[i], i);
      OK(accrt_stream_wait(stream, gate, 1)); /* nobody signals */
      for (uint32_t i = 0; i < 10; ++i)
        OK(accrt_stream_fill(stream, &at, 4, 100 + i, 4));
      OK(accrt_stream_cancel(stream));
      OK(accrt_stream_error(stream, &error));
      assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
      OK(accrt_stream_reset(stream));
      OK(accrt_stream_copy(stream, &at, &end, 4));
      cts_sync(stream);
      assert_int_equal(last, 49);
    }
    accrt_buffer_release(buffer);
    accrt_semaphore_release(gate);
    accrt_stream_release(stream);
  }
}

/* What `ahead` alone holds back still runs when the stream and the instance are released. */
static void test_release_with_work_held_back(void** state) {
  enum { PIECES = 20 };
  uint32_t copies[PIECES] = {0};
  accrt_instance_t* instance = NULL;
  accrt_device_t* device;
  accrt_pool_t* pool;
  accrt_buffer_t* buffer;
  accrt_stream_t* stream;
  accrt_stream_options_t options = ACCRT_STREAM_OPTIONS_INIT;
  options.ahead = 1;
  OK(cts_instance_create(*state, &instance));
  OK(accrt_instance_device_by_name(instance, cts_settings.device, &device));
  OK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  OK(accrt_buffer_create(pool, 4, NULL, &buffer));
  OK(accrt_stream_create(device, &options, &stream));
  const accrt_place_t at = cts_at(buffer, 0);
  for (uint32_t i = 0; i < PIECES; ++i) {
    const accrt_place_t out = cts_host(&copies[i]);
    OK(accrt_stream_fill(stream, &at, 4, i + 1, 4));
    OK(accrt_stream_copy(stream, &at, &out, 4));
  }
  accrt_buffer_release(buffer);
  accrt_stream_release(stream);
  accrt_instance_release(instance);
  for (uint32_t i = 0; i < PIECES; ++i)
    assert_int_equal(copies[i], i + 1);
}

static void test_order(void** state) {
  cts_t* cts = *state;
  uint32_t copies[200];
  accrt_buffer_t* buffer = cts_buffer(cts, 4);
  const accrt_place_t at = cts_at(buffer, 0);
  for (uint32_t i = 0; i < 200; ++i) {
    const accrt_place_t out = cts_host(&copies[i]);
    OK(accrt_stream_fill(cts->stream, &at, 4, i, 4));
    OK(accrt_stream_copy(cts->stream, &at, &out, 4));
  }
  cts_sync(cts->stream);
  for (uint32_t i = 0; i < 200; ++i)
    assert_int_equal(copies[i], i);
  accrt_buffer_release(buffer);
}

static void test_wait_policies(void** state) {
  cts_t* cts = *state;
  const uint32_t policies[] = {ACCRT_WAIT_BLOCK, ACCRT_WAIT_YIELD, ACCRT_WAIT_SPIN};
  for (uint32_t i = 0; i < 3; ++i) {
    uint32_t word = 0;
    fill_word(cts, cts->stream, &word, i + 1);
    OK(accrt_stream_synchronize(cts->stream, CTS_PATIENCE, policies[i]));
    assert_int_equal(word, i + 1);
  }
}

static void test_release_with_work_in_flight(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  accrt_stream_t* stream = cts_stream(cts);
  accrt_semaphore_t* done = cts_semaphore(cts, 0);
  accrt_semaphore_t* gate = close_stream(cts, stream);
  fill_word(cts, stream, &word, 5);
  OK(accrt_stream_signal(stream, done, 1));
  accrt_stream_release(stream);
  open_stream(gate);
  OK(accrt_semaphore_wait(done, 1, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  assert_int_equal(word, 5);
  accrt_semaphore_release(done);
}

static void test_release_with_work_that_never_starts(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  accrt_stream_t* stream = cts_stream(cts);
  accrt_semaphore_t* gate = close_stream(cts, stream);
  fill_word(cts, stream, &word, 5);
  accrt_stream_release(stream);
  accrt_semaphore_release(
      gate); /* nobody can signal it any more; the fixture checks that all goes */
  assert_int_equal(word, 0);
}

typedef struct notice {
  atomic_uint count;
  atomic_int status;
  uint32_t* word;
  uint32_t seen;
} notice_t;

static void note(void* user, accrt_status_t status) {
  notice_t* notice = user;
  notice->seen = notice->word == NULL ? 0 : *notice->word;
  atomic_store(&notice->status, status);
  atomic_fetch_add(&notice->count, 1);
}

static void wait_for_notice(const notice_t* notice) {
  for (int i = 0; i < 6000 && atomic_load(&notice->count) == 0; ++i)
    cts_sleep_ms(5);
  assert_int_equal(atomic_load(&notice->count), 1);
}

static void test_notify(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  notice_t notice = {.word = &word};
  fill_word(cts, cts->stream, &word, 77);
  OK(accrt_stream_notify(cts->stream, note, &notice));
  cts_sync(cts->stream);
  wait_for_notice(&notice);
  assert_int_equal(atomic_load(&notice.status), ACCRT_OK);
  assert_int_equal(notice.seen, 77);
}

typedef struct caller {
  cts_t* cts;
  accrt_semaphore_t* done;
  atomic_int problem;
} caller_t;

static void call_library(void* user, accrt_status_t status) {
  caller_t* caller = user;
  accrt_buffer_t* buffer = NULL;
  if (status != ACCRT_OK || accrt_buffer_create(caller->cts->pool, 64, NULL, &buffer) != ACCRT_OK) {
    atomic_store(&caller->problem, 1);
  }
  accrt_buffer_release(buffer);
  if (accrt_semaphore_signal(caller->done, 1) != ACCRT_OK)
    atomic_store(&caller->problem, 2);
}

static void test_notify_may_call_the_library(void** state) {
  cts_t* cts = *state;
  caller_t caller = {.cts = cts, .done = cts_semaphore(cts, 0)};
  OK(accrt_stream_notify(cts->stream, call_library, &caller));
  cts_sync(cts->stream);
  OK(accrt_semaphore_wait(caller.done, 1, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  assert_int_equal(atomic_load(&caller.problem), 0);
  accrt_semaphore_release(caller.done);
}

static void test_event_states(void** state) {
  cts_t* cts = *state;
  accrt_event_t* event = make_event(cts, 0);
  OK(accrt_event_query(event)); /* never recorded: nothing to wait for */
  OK(accrt_event_synchronize(event, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  OK(accrt_stream_record(cts->stream, event));
  assert_int_equal(accrt_event_query(event), ACCRT_ERROR_NOT_READY);
  open_stream(gate);
  OK(accrt_event_synchronize(event, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  OK(accrt_event_query(event));
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_event_error(event, &error));
  assert_int_equal(error.status, ACCRT_OK);
  accrt_event_release(event);
}

static void test_event_between_streams(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  uint32_t seen = 0;
  accrt_stream_t* other = cts_stream(cts);
  accrt_event_t* event = make_event(cts, 0);
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  fill_word(cts, cts->stream, &word, 31);
  OK(accrt_stream_record(cts->stream, event));
  OK(accrt_stream_wait_event(other, event));
  const accrt_place_t from = cts_host(&word);
  const accrt_place_t to = cts_host(&seen);
  OK(accrt_stream_copy(other, &from, &to, 4));
  cts_sleep_ms(5);
  open_stream(gate);
  cts_sync(other);
  assert_int_equal(seen, 31);
  accrt_event_release(event);
  accrt_stream_release(other);
}

/* Work behind a closed gate holds up nobody who waits for what is before it, on its own stream or on
 * one that waits for an event behind the gate: the thread that waits is the one that opens it. */
static void test_waits_end_before_a_gate(void** state) {
  cts_t* cts = *state;
  uint32_t words[4] = {0};
  accrt_stream_t* other = cts_stream(cts);
  accrt_event_t* before = make_event(cts, 0);
  accrt_event_t* before_other = make_event(cts, 0);
  accrt_event_t* behind = make_event(cts, 0);
  for (uint32_t turn = 1; turn <= 6; ++turn) {
    fill_word(cts, cts->stream, &words[0], turn);
    OK(accrt_stream_record(cts->stream, before));
    accrt_semaphore_t* gate = close_stream(cts, cts->stream);
    fill_word(cts, cts->stream, &words[1], turn);
    OK(accrt_stream_record(cts->stream, behind));
    fill_word(cts, other, &words[2], turn);
    OK(accrt_stream_record(other, before_other));
    OK(accrt_stream_wait_event(other, behind));
    fill_word(cts, other, &words[3], turn);
    OK(accrt_event_synchronize(before, CTS_PATIENCE, turn % 3));
    OK(accrt_event_synchronize(before_other, CTS_PATIENCE, turn % 3));
    assert_int_equal(words[0], turn);
    assert_int_equal(words[2], turn);
    assert_int_equal(accrt_event_query(behind), ACCRT_ERROR_NOT_READY);
    open_stream(gate);
    cts_sync(cts->stream);
    cts_sync(other);
    assert_int_equal(words[1], turn);
    assert_int_equal(words[3], turn);
  }
  accrt_event_release(before);
  accrt_event_release(before_other);
  accrt_event_release(behind);
  accrt_stream_release(other);
}

static void test_later_record_replaces(void** state) {
  cts_t* cts = *state;
  accrt_event_t* event = make_event(cts, 0);
  OK(accrt_stream_record(cts->stream, event));
  cts_sync(cts->stream);
  OK(accrt_event_query(event));
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  OK(accrt_stream_record(cts->stream, event));
  assert_int_equal(accrt_event_query(event), ACCRT_ERROR_NOT_READY);
  open_stream(gate);
  OK(accrt_event_synchronize(event, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  accrt_event_release(event);
}

static void test_wait_for_unrecorded_event(void** state) {
  cts_t* cts = *state;
  accrt_event_t* event = make_event(cts, 0);
  OK(accrt_stream_wait_event(cts->stream, event));
  cts_sync(cts->stream);
  accrt_event_release(event);
}

static void test_elapsed_time(void** state) {
  cts_t* cts = *state;
  accrt_event_t* start = make_event(cts, ACCRT_EVENT_FLAG_TIMING);
  accrt_event_t* end = make_event(cts, ACCRT_EVENT_FLAG_TIMING);
  OK(accrt_stream_record(cts->stream, start));
  cts_sync(cts->stream);
  cts_sleep_ms(20);
  OK(accrt_stream_record(cts->stream, end));
  cts_sync(cts->stream);
  int64_t elapsed_ns = 0;
  OK(accrt_event_elapsed(start, end, &elapsed_ns));
  assert_true(elapsed_ns >= 15 * 1000000);
  assert_true(elapsed_ns < (int64_t)CTS_PATIENCE);
  OK(accrt_event_elapsed(end, start, &elapsed_ns));
  assert_true(elapsed_ns <= -15 * 1000000);
  accrt_event_release(start);
  accrt_event_release(end);
}

static void test_reset_clears_a_failure(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  cts_poison(cts, cts->stream, ACCRT_ERROR_CANCELLED, "on purpose");
  OK(accrt_stream_reset(cts->stream));
  OK(accrt_stream_query(cts->stream));
  fill_word(cts, cts->stream, &word, 8);
  cts_sync(cts->stream);
  assert_int_equal(word, 8);
}

static void test_reset_of_a_healthy_stream(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  fill_word(cts, cts->stream, &word, 8);
  OK(accrt_stream_reset(cts->stream));
  OK(accrt_stream_query(cts->stream));
}

/* ---- What must fail ---- */

static void test_synchronize_times_out(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  const uint64_t begin_ns = cts_now_ns();
  FAILS(TIMEOUT, accrt_stream_synchronize(cts->stream, CTS_MOMENT, ACCRT_WAIT_BLOCK));
  assert_true(cts_now_ns() - begin_ns >= CTS_MOMENT);
  FAILS(TIMEOUT, accrt_stream_synchronize(cts->stream, CTS_MOMENT, ACCRT_WAIT_YIELD));
  FAILS(TIMEOUT, accrt_stream_synchronize(cts->stream, CTS_MOMENT, ACCRT_WAIT_SPIN));
  open_stream(gate);
  cts_sync(cts->stream);
}

static void test_query_of_a_busy_stream(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  assert_int_equal(accrt_stream_query(cts->stream), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_stream_synchronize(cts->stream, 0, ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_NOT_READY);
  open_stream(gate);
  cts_sync(cts->stream);
}

static void test_poisoned_stream_refuses_everything(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  notice_t notice = {.word = NULL};
  const accrt_place_t at = cts_host(&word);
  uint32_t other = 0;
  const accrt_place_t from = cts_host(&other);
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  accrt_event_t* event = make_event(cts, 0);
  cts_poison(cts, cts->stream, ACCRT_ERROR_CANCELLED, "on purpose");
  FAILS(POISONED, accrt_stream_query(cts->stream));
  FAILS(POISONED, accrt_stream_fill(cts->stream, &at, 4, 1, 4));
  MESSAGE_HAS("on purpose");
  FAILS(POISONED, accrt_stream_copy(cts->stream, &from, &at, 4));
  FAILS(POISONED, accrt_stream_wait(cts->stream, semaphore, 1));
  FAILS(POISONED, accrt_stream_signal(cts->stream, semaphore, 1));
  FAILS(POISONED, accrt_stream_record(cts->stream, event));
  FAILS(POISONED, accrt_stream_notify(cts->stream, note, &notice));
  OK(accrt_stream_reset(cts->stream));
  assert_int_equal(atomic_load(&notice.count), 0);
  assert_int_equal(word, 0);
  accrt_event_release(event);
  accrt_semaphore_release(semaphore);
}

static void test_failure_record(void** state) {
  cts_t* cts = *state;
  cts_poison(cts, cts->stream, ACCRT_ERROR_CANCELLED, "the user changed his mind");
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_stream_error(cts->stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_non_null(strstr(error.message, "the user changed his mind"));
  OK(accrt_stream_reset(cts->stream));
  OK(accrt_stream_error(cts->stream, &error));
  assert_int_equal(error.status, ACCRT_OK);
}

static void test_failure_drops_what_waits(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  fill_word(cts, cts->stream, &word, 9);
  OK(accrt_semaphore_fail(gate, ACCRT_ERROR_CANCELLED, "no more"));
  FAILS(POISONED, accrt_stream_synchronize(cts->stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  OK(accrt_stream_reset(cts->stream));
  cts_sync(cts->stream);
  assert_int_equal(word, 0);
  accrt_semaphore_release(gate);
}

static void test_failure_reaches_events_and_notices(void** state) {
  cts_t* cts = *state;
  notice_t notice = {.word = NULL};
  accrt_event_t* event = make_event(cts, 0);
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  OK(accrt_stream_record(cts->stream, event));
  OK(accrt_stream_notify(cts->stream, note, &notice));
  OK(accrt_semaphore_fail(gate, ACCRT_ERROR_CANCELLED, "no more"));
  FAILS(POISONED, accrt_event_synchronize(event, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  FAILS(POISONED, accrt_event_query(event));
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_event_error(event, &error));
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  wait_for_notice(&notice);
  assert_int_not_equal(atomic_load(&notice.status), ACCRT_OK);
  OK(accrt_stream_reset(cts->stream));
  accrt_event_release(event);
  accrt_semaphore_release(gate);
}

static void test_failed_event_fails_who_waits(void** state) {
  cts_t* cts = *state;
  accrt_stream_t* other = cts_stream(cts);
  accrt_event_t* event = make_event(cts, 0);
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  OK(accrt_stream_record(cts->stream, event));
  OK(accrt_stream_wait_event(other, event));
  OK(accrt_semaphore_fail(gate, ACCRT_ERROR_CANCELLED, "upstream"));
  FAILS(POISONED, accrt_stream_synchronize(other, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_stream_error(other, &error));
  assert_non_null(strstr(error.message, "upstream"));
  OK(accrt_stream_reset(cts->stream));
  OK(accrt_stream_reset(other));
  accrt_event_release(event);
  accrt_semaphore_release(gate);
  accrt_stream_release(other);
}

static void test_event_times_out(void** state) {
  cts_t* cts = *state;
  accrt_event_t* event = make_event(cts, 0);
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  OK(accrt_stream_record(cts->stream, event));
  FAILS(TIMEOUT, accrt_event_synchronize(event, CTS_MOMENT, ACCRT_WAIT_BLOCK));
  assert_int_equal(accrt_event_synchronize(event, 0, ACCRT_WAIT_BLOCK), ACCRT_ERROR_NOT_READY);
  open_stream(gate);
  cts_sync(cts->stream);
  accrt_event_release(event);
}

static void test_elapsed_without_timing(void** state) {
  cts_t* cts = *state;
  accrt_event_t* plain = make_event(cts, 0);
  accrt_event_t* timed = make_event(cts, ACCRT_EVENT_FLAG_TIMING);
  int64_t elapsed_ns = 1;
  FAILS(INVALID_STATE, accrt_event_elapsed(timed, timed, &elapsed_ns)); /* never recorded */
  OK(accrt_stream_record(cts->stream, plain));
  OK(accrt_stream_record(cts->stream, timed));
  cts_sync(cts->stream);
  FAILS(INVALID_STATE, accrt_event_elapsed(plain, timed, &elapsed_ns));
  FAILS(INVALID_STATE, accrt_event_elapsed(timed, plain, &elapsed_ns));
  accrt_event_release(plain);
  accrt_event_release(timed);
}

static void test_elapsed_too_early(void** state) {
  cts_t* cts = *state;
  accrt_event_t* event = make_event(cts, ACCRT_EVENT_FLAG_TIMING);
  accrt_semaphore_t* gate = close_stream(cts, cts->stream);
  OK(accrt_stream_record(cts->stream, event));
  int64_t elapsed_ns = 1;
  assert_int_equal(accrt_event_elapsed(event, event, &elapsed_ns), ACCRT_ERROR_NOT_READY);
  open_stream(gate);
  cts_sync(cts->stream);
  OK(accrt_event_elapsed(event, event, &elapsed_ns));
  assert_int_equal(elapsed_ns, 0);
  accrt_event_release(event);
}

static void test_event_of_another_device(void** state) {
  cts_t* cts = *state;
  accrt_event_t* event = NULL;
  OK(accrt_event_create(cts->second, 0, &event));
  FAILS(INVALID_ARGUMENT, accrt_stream_record(cts->stream, event));
  accrt_event_release(event);
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  accrt_stream_t* stream = NULL;
  accrt_event_t* event = NULL;
  FAILS(INVALID_ARGUMENT, accrt_stream_create(NULL, NULL, &stream));
  FAILS(INVALID_ARGUMENT, accrt_stream_create(cts->device, NULL, NULL));
  FAILS(INVALID_ARGUMENT, accrt_stream_query(NULL));
  FAILS(INVALID_ARGUMENT, accrt_stream_notify(cts->stream, NULL, NULL));
  FAILS(INVALID_ARGUMENT, accrt_stream_record(cts->stream, NULL));
  FAILS(INVALID_ARGUMENT, accrt_stream_wait_event(cts->stream, NULL));
  FAILS(INVALID_ARGUMENT, accrt_event_create(cts->device, 0, NULL));
  FAILS(INVALID_ARGUMENT, accrt_event_create(cts->device, 0x80000000u, &event));
  FAILS(INVALID_ARGUMENT, accrt_event_query(NULL));
  assert_int_equal(accrt_stream_id(NULL), 0);
  accrt_stream_release(NULL);
  accrt_event_release(NULL);
}

const cts_test_t cts_stream_tests[] = {
    CTS_P(test_idle_stream, 0),
    CTS_P(test_ids_and_device, 0),
    CTS_P(test_order, 0),
    CTS_P(test_work_is_held_back, 0),
    CTS_P(test_release_with_work_held_back, 0),
    CTS_P(test_wait_policies, 0),
    CTS_P(test_release_with_work_in_flight, 0),
    CTS_P(test_release_with_work_that_never_starts, 0),
    CTS_P(test_notify, 0),
    CTS_P(test_notify_may_call_the_library, 0),
    CTS_P(test_event_states, 0),
    CTS_P(test_event_between_streams, 0),
    CTS_P(test_waits_end_before_a_gate, 0),
    CTS_P(test_later_record_replaces, 0),
    CTS_P(test_wait_for_unrecorded_event, 0),
    CTS_P(test_elapsed_time, CTS_NEEDS_TIMESTAMPS),
    CTS_P(test_reset_clears_a_failure, 0),
    CTS_P(test_reset_of_a_healthy_stream, 0),
    CTS_N(test_synchronize_times_out, 0),
    CTS_N(test_query_of_a_busy_stream, 0),
    CTS_N(test_poisoned_stream_refuses_everything, 0),
    CTS_N(test_failure_record, 0),
    CTS_N(test_failure_drops_what_waits, 0),
    CTS_N(test_failure_reaches_events_and_notices, 0),
    CTS_N(test_failed_event_fails_who_waits, 0),
    CTS_N(test_event_times_out, 0),
    CTS_N(test_elapsed_without_timing, CTS_NEEDS_TIMESTAMPS),
    CTS_N(test_elapsed_too_early, CTS_NEEDS_TIMESTAMPS),
    CTS_N(test_event_of_another_device, CTS_NEEDS_TWO_DEVICES),
    CTS_N(test_null_arguments, 0),
    CTS_END,
};
