/* tests/cts/semaphore.c - timeline semaphores between host threads, streams and devices. */
#include "cts.h"

#include <poll.h>
#include <unistd.h>

static bool is_readable(int32_t fd, int timeout_ms) {
  struct pollfd entry = {.fd = fd, .events = POLLIN};
  return poll(&entry, 1, timeout_ms) == 1 && (entry.revents & POLLIN) != 0;
}

typedef struct helper {
  accrt_semaphore_t* semaphore;
  uint64_t value;
  uint32_t after_ms;
  accrt_status_t fail_with; /* ACCRT_OK: signal */
  accrt_status_t result;
} helper_t;

static void* signal_later(void* argument) {
  helper_t* helper = argument;
  cts_sleep_ms(helper->after_ms);
  helper->result =
      helper->fail_with == ACCRT_OK
          ? accrt_semaphore_signal(helper->semaphore, helper->value)
          : accrt_semaphore_fail(helper->semaphore, helper->fail_with, "from a thread");
  return NULL;
}

static void* wait_for_value(void* argument) {
  helper_t* helper = argument;
  helper->result = accrt_semaphore_wait(helper->semaphore, helper->value, CTS_PATIENCE,
                                        helper->after_ms % 3); /* each policy */
  return NULL;
}

/* ---- What must work ---- */

static void test_values(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 5);
  uint64_t value = 0;
  OK(accrt_semaphore_query(semaphore, &value));
  assert_int_equal(value, 5);
  OK(accrt_semaphore_wait(semaphore, 5, 0, ACCRT_WAIT_BLOCK));
  OK(accrt_semaphore_wait(semaphore, 0, 0, ACCRT_WAIT_BLOCK));
  OK(accrt_semaphore_signal(semaphore, 100));
  OK(accrt_semaphore_query(semaphore, &value));
  assert_int_equal(value, 100);
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_semaphore_error(semaphore, &error));
  assert_int_equal(error.status, ACCRT_OK);
  accrt_semaphore_release(semaphore);
}

static void test_host_to_host(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  for (uint32_t policy = 0; policy < 3; ++policy) {
    helper_t helper = {.semaphore = semaphore, .value = policy + 1, .after_ms = 5};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, signal_later, &helper), 0);
    const accrt_status_t status = accrt_semaphore_wait(semaphore, policy + 1, CTS_PATIENCE, policy);
    pthread_join(thread, NULL);
    OK(status);
    OK(helper.result);
  }
  accrt_semaphore_release(semaphore);
}

static void test_many_waiters(void** state) {
  cts_t* cts = *state;
  enum { COUNT = 12 };
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  helper_t helpers[COUNT];
  pthread_t threads[COUNT];
  for (uint32_t i = 0; i < COUNT; ++i) {
    helpers[i] = (helper_t){.semaphore = semaphore, .value = 1 + i % 4, .after_ms = i};
    assert_int_equal(pthread_create(&threads[i], NULL, wait_for_value, &helpers[i]), 0);
  }
  for (uint64_t value = 1; value <= 4; ++value) {
    cts_sleep_ms(2);
    OK(accrt_semaphore_signal(semaphore, value));
  }
  for (uint32_t i = 0; i < COUNT; ++i) {
    pthread_join(threads[i], NULL);
    OK(helpers[i].result);
  }
  accrt_semaphore_release(semaphore);
}

static void test_stream_signals_host(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  accrt_buffer_t* cell = cts_buffer(cts, 4);
  const accrt_place_t at = cts_at(cell, 0);
  const accrt_place_t out = cts_host(&word);
  for (uint32_t i = 1; i <= 50; ++i) {
    OK(accrt_stream_fill(cts->stream, &at, 4, i, 4));
    OK(accrt_stream_copy(cts->stream, &at, &out, 4));
    OK(accrt_stream_signal(cts->stream, semaphore, i));
    OK(accrt_semaphore_wait(semaphore, i, CTS_PATIENCE, i % 3));
    assert_int_equal(word, i);
  }
  accrt_buffer_release(cell);
  accrt_semaphore_release(semaphore);
}

/* Waiting before anybody signals, in either order of enqueuing. */
static void test_wait_before_signal(void** state) {
  cts_t* cts = *state;
  uint32_t seen = 0;
  accrt_stream_t* producer = cts_stream(cts);
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  accrt_buffer_t* word = cts_buffer(cts, 4);
  const accrt_place_t word_at = cts_at(word, 0);
  const accrt_place_t seen_at = cts_host(&seen);
  for (uint32_t i = 1; i <= 20; ++i) {
    OK(accrt_stream_wait(cts->stream, semaphore, i));
    OK(accrt_stream_copy(cts->stream, &word_at, &seen_at, 4));
    OK(accrt_stream_fill(producer, &word_at, 4, i, 4));
    OK(accrt_stream_signal(producer, semaphore, i));
    cts_sync(cts->stream);
    assert_int_equal(seen, i);
  }
  accrt_buffer_release(word);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(producer);
}

/* Two streams take turns, everything enqueued before anything may run. */
static void test_ping_pong(void** state) {
  cts_t* cts = *state;
  enum { ROUNDS = 100 };
  uint32_t log[2 * ROUNDS] = {0};
  accrt_stream_t* other = cts_stream(cts);
  accrt_semaphore_t* turn = cts_semaphore(cts, 0);
  accrt_buffer_t* counter = cts_buffer(cts, 4);
  const accrt_place_t counter_at = cts_at(counter, 0);
  for (uint32_t i = 0; i < ROUNDS; ++i) {
    accrt_stream_t* streams[2] = {cts->stream, other};
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t step = 2 * i + k;
      const accrt_place_t log_at = cts_host(&log[step]);
      OK(accrt_stream_wait(streams[k], turn, step + 1));
      OK(accrt_stream_fill(streams[k], &counter_at, 4, step, 4));
      OK(accrt_stream_copy(streams[k], &counter_at, &log_at, 4));
      OK(accrt_stream_signal(streams[k], turn, step + 2));
    }
  }
  OK(accrt_semaphore_signal(turn, 1));
  cts_sync(cts->stream);
  cts_sync(other);
  for (uint32_t i = 0; i < 2 * ROUNDS; ++i)
    assert_int_equal(log[i], i);
  uint64_t value = 0;
  OK(accrt_semaphore_query(turn, &value));
  assert_int_equal(value, 2 * ROUNDS + 1);
  accrt_buffer_release(counter);
  accrt_semaphore_release(turn);
  accrt_stream_release(other);
}

static void test_host_signal_from_thread_releases_stream(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  accrt_buffer_t* cell = cts_buffer(cts, 4);
  const accrt_place_t at = cts_at(cell, 0);
  const accrt_place_t out = cts_host(&word);
  OK(accrt_stream_wait(cts->stream, semaphore, 3));
  OK(accrt_stream_fill(cts->stream, &at, 4, 99, 4));
  OK(accrt_stream_copy(cts->stream, &at, &out, 4));
  helper_t helper = {.semaphore = semaphore, .value = 3, .after_ms = 10};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, signal_later, &helper), 0);
  const accrt_status_t status =
      accrt_stream_synchronize(cts->stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK);
  pthread_join(thread, NULL);
  OK(status);
  assert_int_equal(word, 99);
  accrt_buffer_release(cell);
  accrt_semaphore_release(semaphore);
}

static void test_wait_for_all(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* first = cts_semaphore(cts, 0);
  accrt_semaphore_t* second = cts_semaphore(cts, 0);
  const accrt_timepoint_t points[] = {{first, 1}, {second, 2}};
  assert_int_equal(accrt_semaphore_wait_many(points, 2, 0, 0, ACCRT_WAIT_BLOCK, NULL),
                   ACCRT_ERROR_NOT_READY);
  OK(accrt_stream_signal(cts->stream, first, 1));
  helper_t helper = {.semaphore = second, .value = 2, .after_ms = 5};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, signal_later, &helper), 0);
  const accrt_status_t status =
      accrt_semaphore_wait_many(points, 2, 0, CTS_PATIENCE, ACCRT_WAIT_BLOCK, NULL);
  pthread_join(thread, NULL);
  OK(status);
  OK(accrt_semaphore_wait_many(NULL, 0, 0, 0, ACCRT_WAIT_BLOCK, NULL)); /* nothing to wait for */
  accrt_semaphore_release(first);
  accrt_semaphore_release(second);
}

static void test_wait_for_any(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphores[3];
  accrt_timepoint_t points[3];
  for (int i = 0; i < 3; ++i) {
    semaphores[i] = cts_semaphore(cts, 0);
    points[i] = (accrt_timepoint_t){semaphores[i], 1};
  }
  OK(accrt_stream_signal(cts->stream, semaphores[1], 1));
  uint32_t index = 99;
  OK(accrt_semaphore_wait_many(points, 3, 1, CTS_PATIENCE, ACCRT_WAIT_BLOCK, &index));
  assert_int_equal(index, 1);
  for (int i = 0; i < 3; ++i)
    accrt_semaphore_release(semaphores[i]);
}

static void test_eventfd(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  int32_t fds[2] = {-1, -1};
  OK(accrt_semaphore_export_eventfd(semaphore, 1, &fds[0]));
  OK(accrt_semaphore_export_eventfd(semaphore, 2, &fds[1]));
  assert_false(is_readable(fds[0], 0));
  OK(accrt_stream_signal(cts->stream, semaphore, 1));
  assert_true(is_readable(fds[0], 30000));
  assert_false(is_readable(fds[1], 0));
  OK(accrt_semaphore_signal(semaphore, 2));
  assert_true(is_readable(fds[1], 30000));
  int32_t late = -1;
  OK(accrt_semaphore_export_eventfd(semaphore, 1, &late)); /* reached already */
  assert_true(is_readable(late, 30000));
  close(late);
  close(fds[0]);
  close(fds[1]);
  accrt_semaphore_release(semaphore);
}

static void test_eventfd_outlives_interest(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  int32_t fd = -1;
  OK(accrt_semaphore_export_eventfd(semaphore, 1, &fd));
  close(fd); /* the caller lost interest; the signal must not touch a foreign descriptor */
  OK(accrt_semaphore_signal(semaphore, 1));
  accrt_semaphore_release(semaphore);
}

static void test_between_devices(void** state) {
  cts_t* cts = *state;
  uint32_t word = 0;
  uint32_t seen = 0;
  accrt_stream_t* there = NULL;
  OK(accrt_stream_create(cts->second, NULL, &there));
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  accrt_buffer_t* cell = cts_buffer(cts, 4);
  const accrt_place_t cell_at = cts_at(cell, 0);
  const accrt_place_t word_at = cts_host(&word);
  const accrt_place_t seen_at = cts_host(&seen);
  OK(accrt_stream_wait(there, semaphore, 1));
  OK(accrt_stream_copy(there, &word_at, &seen_at, 4));
  OK(accrt_stream_signal(there, semaphore, 2));
  OK(accrt_stream_fill(cts->stream, &cell_at, 4, 17, 4));
  OK(accrt_stream_copy(cts->stream, &cell_at, &word_at, 4));
  OK(accrt_stream_signal(cts->stream, semaphore, 1));
  OK(accrt_semaphore_wait(semaphore, 2, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  assert_int_equal(seen, 17);
  accrt_buffer_release(cell);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(there);
}

/* ---- What must fail ---- */

static void test_signal_must_grow(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 5);
  FAILS(OUT_OF_RANGE, accrt_semaphore_signal(semaphore, 5));
  MESSAGE_HAS("5");
  FAILS(OUT_OF_RANGE, accrt_semaphore_signal(semaphore, 4));
  uint64_t value = 0;
  OK(accrt_semaphore_query(semaphore, &value));
  assert_int_equal(value, 5);
  accrt_semaphore_release(semaphore);
}

static void test_largest_number_is_no_value(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  assert_int_not_equal(accrt_semaphore_signal(semaphore, UINT64_MAX), ACCRT_OK);
  accrt_semaphore_t* other = NULL;
  assert_int_not_equal(accrt_semaphore_create(cts->instance, UINT64_MAX, &other), ACCRT_OK);
  assert_null(other);
  accrt_semaphore_release(semaphore);
}

static void test_wait_times_out(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  for (uint32_t policy = 0; policy < 3; ++policy) {
    const uint64_t begin_ns = cts_now_ns();
    FAILS(TIMEOUT, accrt_semaphore_wait(semaphore, 1, CTS_MOMENT, policy));
    assert_true(cts_now_ns() - begin_ns >= CTS_MOMENT);
    assert_int_equal(accrt_semaphore_wait(semaphore, 1, 0, policy), ACCRT_ERROR_NOT_READY);
  }
  accrt_semaphore_release(semaphore);
}

static void test_wait_many_times_out(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 1);
  const accrt_timepoint_t points[] = {{semaphore, 1}, {semaphore, 2}};
  FAILS(TIMEOUT, accrt_semaphore_wait_many(points, 2, 0, CTS_MOMENT, ACCRT_WAIT_BLOCK, NULL));
  FAILS(TIMEOUT, accrt_semaphore_wait_many(points + 1, 1, 1, CTS_MOMENT, ACCRT_WAIT_BLOCK, NULL));
  accrt_semaphore_release(semaphore);
}

static void test_failed_semaphore(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 3);
  OK(accrt_semaphore_fail(semaphore, ACCRT_ERROR_CANCELLED, "first reason"));
  OK(accrt_semaphore_fail(semaphore, ACCRT_ERROR_IO, "second reason")); /* keeps the first */
  uint64_t value = 0;
  FAILS(POISONED, accrt_semaphore_query(semaphore, &value));
  assert_int_equal(value, 3);
  FAILS(POISONED, accrt_semaphore_wait(semaphore, 4, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  MESSAGE_HAS("first reason");
  OK(accrt_semaphore_wait(semaphore, 3, 0, ACCRT_WAIT_BLOCK)); /* reached before */
  FAILS(POISONED, accrt_semaphore_signal(semaphore, 4));
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_semaphore_error(semaphore, &error));
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_non_null(strstr(error.message, "first reason"));
  accrt_semaphore_release(semaphore);
}

static void test_failure_wakes_waiters(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  helper_t helper = {.semaphore = semaphore, .after_ms = 10, .fail_with = ACCRT_ERROR_CANCELLED};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, signal_later, &helper), 0);
  const accrt_status_t status = accrt_semaphore_wait(semaphore, 1, CTS_PATIENCE, ACCRT_WAIT_BLOCK);
  pthread_join(thread, NULL);
  FAILS(POISONED, status);
  MESSAGE_HAS("from a thread");
  accrt_semaphore_release(semaphore);
}

static void test_failure_travels(void** state) {
  cts_t* cts = *state;
  accrt_stream_t* other = cts_stream(cts);
  accrt_semaphore_t* a = cts_semaphore(cts, 0);
  accrt_semaphore_t* b = cts_semaphore(cts, 0);
  accrt_semaphore_t* c = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(cts->stream, a, 1));
  OK(accrt_stream_signal(cts->stream, b, 1));
  OK(accrt_stream_wait(other, b, 1));
  OK(accrt_stream_signal(other, c, 1));
  OK(accrt_semaphore_fail(a, ACCRT_ERROR_DATA_CORRUPT, "the source of it all"));
  FAILS(POISONED, accrt_semaphore_wait(c, 1, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  MESSAGE_HAS("the source of it all");
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_semaphore_error(c, &error));
  assert_int_equal(error.status, ACCRT_ERROR_DATA_CORRUPT); /* with the same record */
  OK(accrt_stream_error(other, &error));
  assert_int_equal(error.status, ACCRT_ERROR_DATA_CORRUPT);
  OK(accrt_stream_reset(cts->stream));
  OK(accrt_stream_reset(other));
  accrt_semaphore_release(a);
  accrt_semaphore_release(b);
  accrt_semaphore_release(c);
  accrt_stream_release(other);
}

static void test_stream_waits_for_failed(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  OK(accrt_semaphore_fail(semaphore, ACCRT_ERROR_CANCELLED, "gone"));
  FAILS(POISONED, accrt_stream_wait(cts->stream, semaphore, 1));
  OK(accrt_stream_reset(cts->stream));
  OK(accrt_stream_query(cts->stream));
  accrt_semaphore_release(semaphore);
}

static void test_stream_signal_must_grow(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  accrt_semaphore_t* gate = cts_semaphore(cts, 0);
  OK(accrt_stream_wait(cts->stream, gate, 1));
  OK(accrt_stream_signal(cts->stream, semaphore, 5));
  OK(accrt_semaphore_signal(semaphore, 10)); /* overtakes */
  OK(accrt_semaphore_signal(gate, 1));
  FAILS(POISONED, accrt_stream_synchronize(cts->stream, CTS_PATIENCE, ACCRT_WAIT_BLOCK));
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_stream_error(cts->stream, &error));
  assert_int_equal(error.status, ACCRT_ERROR_OUT_OF_RANGE);
  OK(accrt_stream_reset(cts->stream));
  accrt_semaphore_release(semaphore);
  accrt_semaphore_release(gate);
}

static void test_wait_many_with_failed(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* good = cts_semaphore(cts, 0);
  accrt_semaphore_t* bad = cts_semaphore(cts, 0);
  const accrt_timepoint_t points[] = {{good, 1}, {bad, 1}};
  OK(accrt_semaphore_fail(bad, ACCRT_ERROR_CANCELLED, "bad one"));
  FAILS(POISONED, accrt_semaphore_wait_many(points, 2, 0, CTS_PATIENCE, ACCRT_WAIT_BLOCK, NULL));
  accrt_semaphore_release(good);
  accrt_semaphore_release(bad);
}

static void test_eventfd_of_failed(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  int32_t fd = -1;
  OK(accrt_semaphore_export_eventfd(semaphore, 1, &fd));
  assert_false(is_readable(fd, 0));
  OK(accrt_semaphore_fail(semaphore, ACCRT_ERROR_CANCELLED, NULL));
  assert_true(is_readable(fd, 30000));
  close(fd);
  accrt_semaphore_release(semaphore);
}

static void test_fail_needs_a_failure(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  FAILS(INVALID_ARGUMENT, accrt_semaphore_fail(semaphore, ACCRT_OK, "fine"));
  uint64_t value = 1;
  OK(accrt_semaphore_query(semaphore, &value));
  accrt_semaphore_release(semaphore);
}

static void test_unknown_policy(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = cts_semaphore(cts, 0);
  FAILS(INVALID_ARGUMENT, accrt_semaphore_wait(semaphore, 1, 1000, 17));
  accrt_semaphore_release(semaphore);
}

static void test_null_arguments(void** state) {
  cts_t* cts = *state;
  accrt_semaphore_t* semaphore = NULL;
  int32_t fd = 7;
  FAILS(INVALID_ARGUMENT, accrt_semaphore_create(NULL, 0, &semaphore));
  FAILS(INVALID_ARGUMENT, accrt_semaphore_create(cts->instance, 0, NULL));
  FAILS(INVALID_ARGUMENT, accrt_semaphore_signal(NULL, 1));
  FAILS(INVALID_ARGUMENT, accrt_semaphore_wait(NULL, 1, 0, ACCRT_WAIT_BLOCK));
  FAILS(INVALID_ARGUMENT, accrt_semaphore_wait_many(NULL, 2, 0, 0, ACCRT_WAIT_BLOCK, NULL));
  FAILS(INVALID_ARGUMENT, accrt_semaphore_export_eventfd(NULL, 1, &fd));
  assert_int_equal(fd, -1);
  FAILS(INVALID_ARGUMENT, accrt_stream_wait(cts->stream, NULL, 1));
  FAILS(INVALID_ARGUMENT, accrt_stream_signal(cts->stream, NULL, 1));
  accrt_semaphore_release(NULL);
}

const cts_test_t cts_semaphore_tests[] = {
    CTS_P(test_values, 0),
    CTS_P(test_host_to_host, 0),
    CTS_P(test_many_waiters, 0),
    CTS_P(test_stream_signals_host, 0),
    CTS_P(test_wait_before_signal, 0),
    CTS_P(test_ping_pong, 0),
    CTS_P(test_host_signal_from_thread_releases_stream, 0),
    CTS_P(test_wait_for_all, 0),
    CTS_P(test_wait_for_any, 0),
    CTS_P(test_eventfd, CTS_NEEDS_THREADS),
    CTS_P(test_eventfd_outlives_interest, CTS_NEEDS_THREADS),
    CTS_P(test_between_devices, CTS_NEEDS_TWO_DEVICES),
    CTS_N(test_signal_must_grow, 0),
    CTS_N(test_largest_number_is_no_value, 0),
    CTS_N(test_wait_times_out, 0),
    CTS_N(test_wait_many_times_out, 0),
    CTS_N(test_failed_semaphore, 0),
    CTS_N(test_failure_wakes_waiters, 0),
    CTS_N(test_failure_travels, 0),
    CTS_N(test_stream_waits_for_failed, 0),
    CTS_N(test_stream_signal_must_grow, 0),
    CTS_N(test_wait_many_with_failed, 0),
    CTS_N(test_eventfd_of_failed, CTS_NEEDS_THREADS),
    CTS_N(test_fail_needs_a_failure, 0),
    CTS_N(test_unknown_policy, 0),
    CTS_N(test_null_arguments, 0),
    CTS_END,
};
