/* Semaphores: values, waiting by every policy, timeouts, failure, many timepoints, eventfds,
 * threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/drivers/common/test_driver.h"

#define MS UINT64_C(1000000)

static test_world_t world;

static int set_up(void** state) {
  (void)state;
  return (int)test_world_open(&world, TEST_DRIVER_THREAD);
}

static int tear_down(void** state) {
  (void)state;
  return (int)test_world_close(&world);
}

static accrt_semaphore_t* make(uint64_t value) {
  accrt_semaphore_t* semaphore;
  assert_int_equal(accrt_semaphore_create(world.instance, value, &semaphore), ACCRT_OK);
  return semaphore;
}

static void test_values(void** state) {
  (void)state;
  accrt_semaphore_t* semaphore = make(5);
  uint64_t value;
  assert_int_equal(accrt_semaphore_query(semaphore, &value), ACCRT_OK);
  assert_int_equal(value, 5);
  assert_int_equal(accrt_semaphore_signal(semaphore, 5), ACCRT_ERROR_OUT_OF_RANGE);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "value 5 is not above the present 5"));
  assert_int_equal(accrt_semaphore_signal(semaphore, 9), ACCRT_OK);
  assert_int_equal(accrt_semaphore_signal(semaphore, 8), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_semaphore_query(semaphore, &value), ACCRT_OK);
  assert_int_equal(value, 9);
  accrt_semaphore_release(accrt_semaphore_retain(semaphore));
  accrt_semaphore_release(semaphore);
}

static void test_bad_arguments(void** state) {
  (void)state;
  accrt_semaphore_t* semaphore = (accrt_semaphore_t*)1;
  assert_int_equal(accrt_semaphore_create(NULL, 0, &semaphore), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_null(semaphore);
  assert_int_equal(accrt_semaphore_create(world.instance, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_create(world.instance, UINT64_MAX, &semaphore),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  semaphore = make(0);
  uint64_t value;
  assert_int_equal(accrt_semaphore_query(NULL, &value), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_query(semaphore, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_signal(NULL, 1), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_signal(semaphore, UINT64_MAX), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_wait(NULL, 1, 0, 0), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_wait(semaphore, 1, 0, 3), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_fail(semaphore, ACCRT_OK, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_fail(NULL, ACCRT_ERROR_CANCELLED, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_error(semaphore, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_wait_many(NULL, 1, 0, 0, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_wait_many(NULL, 0, 1, 0, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_wait_many(NULL, 0, 0, 0, 0, NULL), ACCRT_OK);
  const accrt_timepoint_t none = {NULL, 1};
  assert_int_equal(accrt_semaphore_wait_many(&none, 1, 0, 0, 0, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  int32_t fd = 7;
  assert_int_equal(accrt_semaphore_export_eventfd(NULL, 1, &fd), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(fd, -1);
  accrt_semaphore_release(semaphore);
  accrt_semaphore_release(NULL);
  assert_null(accrt_semaphore_retain(NULL));
}

static void test_timeouts(void** state) {
  (void)state;
  accrt_semaphore_t* semaphore = make(0);
  for (uint32_t policy = ACCRT_WAIT_BLOCK; policy <= ACCRT_WAIT_SPIN; ++policy) {
    assert_int_equal(accrt_semaphore_wait(semaphore, 0, 0, policy), ACCRT_OK);
    assert_int_equal(accrt_semaphore_wait(semaphore, 1, 0, policy), ACCRT_ERROR_NOT_READY);
    const uint64_t begin_ns = test_now_ns();
    assert_int_equal(accrt_semaphore_wait(semaphore, 1, 5 * MS, policy), ACCRT_ERROR_TIMEOUT);
    assert_true(test_now_ns() - begin_ns >= 5 * MS);
  }
  accrt_semaphore_release(semaphore);
}

typedef struct signaller {
  accrt_semaphore_t* semaphore;
  uint64_t value;
  uint64_t delay_ns;
} signaller_t;

static void* signal_later(void* argument) {
  const signaller_t* signaller = argument;
  (void)usleep((useconds_t)(signaller->delay_ns / 1000));
  assert_int_equal(accrt_semaphore_signal(signaller->semaphore, signaller->value), ACCRT_OK);
  return NULL;
}

static void test_wait_from_another_thread(void** state) {
  (void)state;
  accrt_semaphore_t* semaphore = make(0);
  uint64_t value = 0;
  for (uint32_t policy = ACCRT_WAIT_BLOCK; policy <= ACCRT_WAIT_SPIN; ++policy) {
    signaller_t signaller = {semaphore, ++value, 3 * MS};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, signal_later, &signaller), 0);
    assert_int_equal(accrt_semaphore_wait(semaphore, value, ACCRT_TIMEOUT_INFINITE, policy),
                     ACCRT_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
  }
  accrt_semaphore_release(semaphore);
}

/* Two threads play ping-pong over two semaphores: every wake-up must arrive. */
#define ROUNDS 2000
typedef struct pair {
  accrt_semaphore_t *ping, *pong;
} pair_t;

static void* answer(void* argument) {
  const pair_t* pair = argument;
  for (uint64_t i = 1; i <= ROUNDS; ++i) {
    if (accrt_semaphore_wait(pair->ping, i, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK) != ACCRT_OK)
      return (void*)1;
    if (accrt_semaphore_signal(pair->pong, i) != ACCRT_OK)
      return (void*)1;
  }
  return NULL;
}

static void test_ping_pong(void** state) {
  (void)state;
  pair_t pair = {make(0), make(0)};
  pthread_t thread;
  void* result;
  assert_int_equal(pthread_create(&thread, NULL, answer, &pair), 0);
  for (uint64_t i = 1; i <= ROUNDS; ++i) {
    assert_int_equal(accrt_semaphore_signal(pair.ping, i), ACCRT_OK);
    assert_int_equal(accrt_semaphore_wait(pair.pong, i, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
                     ACCRT_OK);
  }
  assert_int_equal(pthread_join(thread, &result), 0);
  assert_null(result);
  accrt_semaphore_release(pair.ping);
  accrt_semaphore_release(pair.pong);
}

static void test_failure(void** state) {
  (void)state;
  accrt_semaphore_t* semaphore = make(3);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_semaphore_error(semaphore, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_OK);
  assert_int_equal(accrt_semaphore_fail(semaphore, ACCRT_ERROR_CANCELLED, "not wanted any more"),
                   ACCRT_OK);
  assert_int_equal(accrt_semaphore_fail(semaphore, ACCRT_ERROR_IO, "second"), ACCRT_OK);
  uint64_t value = 0;
  assert_int_equal(accrt_semaphore_query(semaphore, &value), ACCRT_ERROR_POISONED);
  assert_int_equal(value, 3);
  assert_int_equal(accrt_semaphore_signal(semaphore, 4), ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_semaphore_wait(semaphore, 4, ACCRT_TIMEOUT_INFINITE, 0),
                   ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "not wanted any more"));
  /* What was reached before stays reached. */
  assert_int_equal(accrt_semaphore_wait(semaphore, 3, 0, 0), ACCRT_OK);
  assert_int_equal(accrt_semaphore_error(semaphore, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_string_equal(error.message, "not wanted any more");
  assert_string_equal(error.operation, "accrt_semaphore_fail");
  accrt_semaphore_release(semaphore);
}

static void* fail_later(void* argument) {
  (void)usleep(3000);
  assert_int_equal(accrt_semaphore_fail(argument, ACCRT_ERROR_CANCELLED, NULL), ACCRT_OK);
  return NULL;
}

static void test_failure_wakes(void** state) {
  (void)state;
  for (uint32_t policy = ACCRT_WAIT_BLOCK; policy <= ACCRT_WAIT_SPIN; ++policy) {
    accrt_semaphore_t* semaphore = make(0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_later, semaphore), 0);
    assert_int_equal(accrt_semaphore_wait(semaphore, 1, ACCRT_TIMEOUT_INFINITE, policy),
                     ACCRT_ERROR_POISONED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    accrt_semaphore_release(semaphore);
  }
}

/* A success leaves the thread's record alone. */
static void test_record_is_kept(void** state) {
  (void)state;
  accrt_semaphore_t* semaphore = make(0);
  assert_int_equal(accrt_semaphore_signal(semaphore, UINT64_MAX), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_fail(semaphore, ACCRT_ERROR_CANCELLED, "other"), ACCRT_OK);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_INVALID_ARGUMENT);
  assert_string_equal(error.operation, "accrt_semaphore_signal");
  accrt_semaphore_release(semaphore);
}

static void test_wait_many(void** state) {
  (void)state;
  enum { COUNT = 20 }; /* more than fit on the stack */
  accrt_timepoint_t timepoints[COUNT];
  for (uint32_t i = 0; i < COUNT; ++i)
    timepoints[i] = (accrt_timepoint_t){make(0), 1};
  uint32_t index = 99;
  assert_int_equal(accrt_semaphore_wait_many(timepoints, COUNT, 1, 0, 0, &index),
                   ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_semaphore_wait_many(timepoints, COUNT, 1, MS, 0, &index),
                   ACCRT_ERROR_TIMEOUT);
  signaller_t signaller = {timepoints[13].semaphore, 1, 3 * MS};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, signal_later, &signaller), 0);
  assert_int_equal(
      accrt_semaphore_wait_many(timepoints, COUNT, 1, ACCRT_TIMEOUT_INFINITE, 0, &index), ACCRT_OK);
  assert_int_equal(index, 13);
  assert_int_equal(pthread_join(thread, NULL), 0);
  for (uint32_t i = 0; i < COUNT - 1; ++i) {
    if (i != 13)
      assert_int_equal(accrt_semaphore_signal(timepoints[i].semaphore, 1), ACCRT_OK);
  }
  assert_int_equal(accrt_semaphore_wait_many(timepoints, COUNT, 0, MS, 0, NULL),
                   ACCRT_ERROR_TIMEOUT);
  signaller = (signaller_t){timepoints[COUNT - 1].semaphore, 1, 3 * MS};
  assert_int_equal(pthread_create(&thread, NULL, signal_later, &signaller), 0);
  assert_int_equal(accrt_semaphore_wait_many(timepoints, COUNT, 0, ACCRT_TIMEOUT_INFINITE, 0, NULL),
                   ACCRT_OK);
  assert_int_equal(pthread_join(thread, NULL), 0);
  for (uint32_t i = 0; i < COUNT; ++i)
    timepoints[i].value = 2;
  assert_int_equal(accrt_semaphore_fail(timepoints[4].semaphore, ACCRT_ERROR_CANCELLED, NULL),
                   ACCRT_OK);
  assert_int_equal(accrt_semaphore_wait_many(timepoints, COUNT, 0, ACCRT_TIMEOUT_INFINITE, 0, NULL),
                   ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_semaphore_wait_many(timepoints, COUNT, 1, ACCRT_TIMEOUT_INFINITE, 0, NULL),
                   ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_semaphore_signal(timepoints[5].semaphore, 2), ACCRT_OK);
  assert_int_equal(
      accrt_semaphore_wait_many(timepoints, COUNT, 1, ACCRT_TIMEOUT_INFINITE, 0, &index), ACCRT_OK);
  assert_int_equal(index, 5);
  for (uint32_t i = 0; i < COUNT; ++i)
    accrt_semaphore_release(timepoints[i].semaphore);
}

static void test_wait_many_allocation(void** state) {
  (void)state;
  enum { COUNT = 20 };
  accrt_timepoint_t timepoints[COUNT];
  accrt_semaphore_t* semaphore = make(0);
  for (uint32_t i = 0; i < COUNT; ++i)
    timepoints[i] = (accrt_timepoint_t){semaphore, 1};
  test_allocator_fail(&world.allocator, 1, 0);
  assert_int_equal(accrt_semaphore_wait_many(timepoints, COUNT, 0, 0, 0, NULL),
                   ACCRT_ERROR_OUT_OF_MEMORY);
  test_allocator_fail(&world.allocator, 2, 0);
  assert_int_equal(accrt_semaphore_wait_many(timepoints, COUNT, 0, 0, 0, NULL),
                   ACCRT_ERROR_OUT_OF_MEMORY);
  /* Few need none. */
  test_allocator_fail(&world.allocator, 1, 1);
  assert_int_equal(accrt_semaphore_wait_many(timepoints, 8, 0, MS, 0, NULL), ACCRT_ERROR_TIMEOUT);
  test_allocator_fail(&world.allocator, 0, 0);
  accrt_semaphore_release(semaphore);
}

static int readable(int fd, int timeout_ms) {
  struct pollfd item = {.fd = fd, .events = POLLIN};
  return poll(&item, 1, timeout_ms);
}

static void test_eventfd(void** state) {
  (void)state;
  accrt_semaphore_t* semaphore = make(0);
  int32_t reached, later, failed;
  assert_int_equal(accrt_semaphore_export_eventfd(semaphore, 0, &reached), ACCRT_OK);
  assert_int_equal(readable(reached, 0), 1);
  assert_int_equal(accrt_semaphore_export_eventfd(semaphore, 2, &later), ACCRT_OK);
  assert_int_equal(accrt_semaphore_export_eventfd(semaphore, 3, &failed), ACCRT_OK);
  assert_int_equal(accrt_semaphore_signal(semaphore, 1), ACCRT_OK);
  assert_int_equal(readable(later, 0), 0);
  signaller_t signaller = {semaphore, 2, 3 * MS};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, signal_later, &signaller), 0);
  assert_int_equal(readable(later, 10000), 1);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(readable(failed, 0), 0);
  assert_int_equal(accrt_semaphore_fail(semaphore, ACCRT_ERROR_CANCELLED, NULL), ACCRT_OK);
  assert_int_equal(readable(failed, 1000), 1);
  (void)close(reached);
  (void)close(later);
  (void)close(failed);
  test_allocator_fail(&world.allocator, 1, 0);
  assert_int_equal(accrt_semaphore_export_eventfd(semaphore, 9, &later), ACCRT_ERROR_OUT_OF_MEMORY);
  assert_int_equal(later, -1);
  accrt_semaphore_release(semaphore);
}

/* No descriptors left: the system's own error is in the record. */
static void test_eventfd_without_descriptors(void** state) {
  (void)state;
  accrt_semaphore_t* semaphore = make(0);
  struct rlimit before, none;
  int32_t fd;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = dup(0); /* one is free: for the first of the two that an export needs */
  assert_true(lowest >= 0);
  (void)close(lowest);
  for (rlim_t extra = 0; extra < 2; ++extra) {
    none = before;
    none.rlim_cur = (rlim_t)lowest + extra;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const accrt_status_t status = accrt_semaphore_export_eventfd(semaphore, 1, &fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, ACCRT_ERROR_IO);
    assert_int_equal(fd, -1);
    accrt_error_t error = ACCRT_ERROR_INIT;
    assert_int_equal(accrt_last_error(&error), ACCRT_OK);
    assert_int_equal(error.driver_code, EMFILE);
    assert_string_equal(error.driver_name, "EMFILE");
    assert_string_equal(error.operation, "accrt_semaphore_export_eventfd");
  }
  assert_int_equal(accrt_semaphore_export_eventfd(semaphore, UINT64_MAX, &fd),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_semaphore_export_eventfd(semaphore, 1, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_semaphore_release(semaphore);
}

/* A descriptor that nobody made readable is not leaked with the semaphore. */
static void test_eventfd_outlives(void** state) {
  (void)state;
  accrt_semaphore_t* semaphore = make(0);
  int32_t fd;
  assert_int_equal(accrt_semaphore_export_eventfd(semaphore, 1, &fd), ACCRT_OK);
  accrt_semaphore_release(semaphore);
  assert_int_equal(readable(fd, 1000), 1);
  (void)close(fd);
}

/* ---- Waits that nobody can end ---- */

static accrt_stream_t* make_stream(void) {
  accrt_stream_t* stream;
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  return stream;
}

/* The semaphore has failed because `id` was left alone, at `value`. */
static void assert_left(accrt_semaphore_t* semaphore, uint64_t value) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  char text[32];
  assert_int_equal(accrt_semaphore_wait(semaphore, 1, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK),
                   ACCRT_ERROR_POISONED);
  assert_int_equal(accrt_semaphore_error(semaphore, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_non_null(strstr(error.message, "nothing can raise it any more"));
  snprintf(text, sizeof text, "is at %d,", (int)value);
  assert_non_null(strstr(error.message, text));
}

static void test_last_handle(void** state) {
  (void)state;
  accrt_stream_t* stream = make_stream();
  accrt_semaphore_t *never = make(3), *done = make(0);
  assert_int_equal(accrt_stream_wait(stream, never, 4), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, never, 5), ACCRT_OK); /* has not begun to watch */
  assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
  accrt_semaphore_release(accrt_semaphore_retain(never));
  assert_int_equal(accrt_semaphore_wait(done, 1, 10 * MS, ACCRT_WAIT_BLOCK), ACCRT_ERROR_TIMEOUT);
  accrt_semaphore_release(never);
  assert_left(done, 3);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_stream_error(stream, &error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  accrt_semaphore_release(done);
  accrt_stream_release(stream);
}

/* What a stream has still to signal counts as somebody who can; so does what it has failed. */
static void test_signals_of_streams_are_waited_for(void** state) {
  (void)state;
  for (int end = 0; end < 3; ++end) {
    accrt_stream_t *one = make_stream(), *two = make_stream(), *three = make_stream();
    accrt_semaphore_t *gate = make(0), *middle = make(0), *two_done = make(0),
                      *three_done = make(0);
    assert_int_equal(accrt_stream_wait(one, gate, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_signal(one, middle, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(two, middle, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_signal(two, two_done, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(three, middle, 2), ACCRT_OK);
    assert_int_equal(accrt_stream_signal(three, three_done, 1), ACCRT_OK);
    accrt_semaphore_release(middle);
    assert_int_equal(accrt_semaphore_wait(two_done, 1, 5 * MS, 0), ACCRT_ERROR_TIMEOUT);
    assert_int_equal(accrt_semaphore_wait(three_done, 1, 0, 0), ACCRT_ERROR_NOT_READY);
    if (end == 0) {
      assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
      assert_int_equal(accrt_semaphore_wait(two_done, 1, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
      assert_left(three_done, 1);
    } else if (end == 1) {
      assert_int_equal(accrt_semaphore_fail(gate, ACCRT_ERROR_KERNEL, "no gate"), ACCRT_OK);
    } else {
      accrt_semaphore_release(gate);
      assert_left(two_done, 0);
      assert_left(three_done, 0);
    }
    accrt_error_t error = ACCRT_ERROR_INIT;
    if (end == 1) {
      assert_int_equal(accrt_semaphore_wait(three_done, 1, ACCRT_TIMEOUT_INFINITE, 0),
                       ACCRT_ERROR_POISONED);
      assert_int_equal(accrt_semaphore_error(three_done, &error), ACCRT_OK);
      assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
    }
    if (end != 2)
      accrt_semaphore_release(gate);
    accrt_semaphore_release(two_done);
    accrt_semaphore_release(three_done);
    accrt_stream_release(one);
    accrt_stream_release(two);
    accrt_stream_release(three);
  }
}

/* Records of events are somebody who can, and a value that was reached needs nobody. */
static void test_events_and_reached_values_need_no_handle(void** state) {
  (void)state;
  accrt_stream_t *one = make_stream(), *two = make_stream();
  accrt_semaphore_t *gate = make(0), *behind = make(7), *done = make(0);
  accrt_event_t* event;
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(one, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait_event(two, event), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(two, behind, 7), ACCRT_OK);
  assert_int_equal(accrt_stream_signal(two, done, 1), ACCRT_OK);
  accrt_semaphore_release(behind);
  accrt_event_release(event);
  assert_int_equal(accrt_semaphore_wait(done, 1, 5 * MS, 0), ACCRT_ERROR_TIMEOUT);
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  assert_int_equal(accrt_semaphore_wait(done, 1, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
  accrt_semaphore_release(gate);
  accrt_semaphore_release(done);
  accrt_stream_release(one);
  accrt_stream_release(two);
}

static void* let_go(void* argument) {
  const signaller_t* signaller = argument;
  if (signaller->value != 0)
    assert_int_equal(accrt_semaphore_signal(signaller->semaphore, signaller->value), ACCRT_OK);
  accrt_semaphore_release(signaller->semaphore);
  return NULL;
}

/* The last handle goes while streams begin to wait, are cancelled and go away. */
static void test_handles_that_go_meanwhile(void** state) {
  (void)state;
  for (uint64_t round = 0; round < 400; ++round) {
    accrt_semaphore_t *shared = make(0), *done = make(0);
    accrt_stream_t* stream = make_stream();
    signaller_t signaller = {accrt_semaphore_retain(shared), round % 3 == 0, 0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, let_go, &signaller), 0);
    if (round % 4 == 0)
      usleep(50);
    assert_int_equal(accrt_stream_wait(stream, shared, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_wait(stream, shared, 1), ACCRT_OK);
    assert_int_equal(accrt_stream_signal(stream, done, 1), ACCRT_OK);
    accrt_semaphore_release(shared);
    if (round % 5 == 0)
      assert_int_equal(accrt_stream_cancel(stream), ACCRT_OK);
    const accrt_status_t status = accrt_semaphore_wait(done, 1, ACCRT_TIMEOUT_INFINITE, 0);
    assert_true(status == ACCRT_OK || status == ACCRT_ERROR_POISONED);
    assert_true(status == ACCRT_OK || round % 3 != 0 || round % 5 == 0);
    assert_true(status == ACCRT_ERROR_POISONED || round % 3 == 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    accrt_semaphore_release(done);
    accrt_stream_release(stream);
  }
}

static void test_other_instance(void** state) {
  (void)state;
  accrt_instance_t* other;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  assert_int_equal(accrt_instance_create(&options, &other), ACCRT_OK);
  accrt_timepoint_t timepoints[2] = {{make(1), 1}, {NULL, 1}};
  assert_int_equal(accrt_semaphore_create(other, 1, &timepoints[1].semaphore), ACCRT_OK);
  assert_int_equal(accrt_semaphore_wait_many(timepoints, 2, 0, 0, 0, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_semaphore_release(timepoints[0].semaphore);
  accrt_semaphore_release(timepoints[1].semaphore);
  accrt_instance_release(other);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_values, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_bad_arguments, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_timeouts, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_wait_from_another_thread, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_ping_pong, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_failure, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_failure_wakes, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_record_is_kept, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_wait_many, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_wait_many_allocation, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_eventfd, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_eventfd_without_descriptors, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_eventfd_outlives, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_last_handle, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_signals_of_streams_are_waited_for, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_events_and_reached_values_need_no_handle, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_handles_that_go_meanwhile, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_other_instance, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
