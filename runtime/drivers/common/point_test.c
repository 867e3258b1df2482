/* runtime/drivers/common/point_test.c - two threads see that a device has reached values of one
 * semaphore: each order of their steps. point.c and stream_settle.c are compiled into this program,
 * so that a test can let the other thread in wherever the first one has let go of a lock. */
#define TEST_DRIVER_NATIVE 1
#include "runtime/drivers/common/test_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdbool.h>

#include "runtime/drivers/common/objects.h"

/* The other thread comes in behind the `at`-th lock that the thread of the test lets go. */
static struct {
  pthread_t self;
  int at, seen;
  bool is_on, has_come;
  accrt_semaphore_t* semaphore;
  uint64_t value; /* what the other thread sees */
} other;

static void* step_and_look(void* user) {
  (void)user;
  while (test_driver_step())
    continue;
  assert_int_equal(accrt_semaphore_query(other.semaphore, &other.value), ACCRT_OK);
  return NULL;
}

static void let_other_in(void) {
  if (!pthread_equal(other.self, pthread_self()) || !other.is_on || ++other.seen != other.at)
    return;
  pthread_t thread;
  other.has_come = true;
  assert_int_equal(pthread_create(&thread, NULL, step_and_look, NULL), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
}

static void unlock_and_let_in(accrt_mutex_t* mutex) {
  accrt_mutex_unlock(mutex);
  let_other_in();
}

#undef accrt_mutex_unlock
#define accrt_mutex_unlock unlock_and_let_in
#include "runtime/drivers/common/point.c"
#include "runtime/drivers/common/stream_settle.c"

#define WORDS 2

static void begin_other(accrt_semaphore_t* semaphore, int at) {
  memset(&other, 0, sizeof other);
  other.self = pthread_self();
  other.at = at;
  other.semaphore = semaphore;
  other.is_on = true;
}

/* The first value is reached when this thread looks, the second one while it does. True when the
 * other thread has come. */
static bool look_with_other(int at) {
  test_world_t world;
  accrt_stream_t* stream;
  accrt_semaphore_t* semaphore;
  uint32_t words[WORDS] = {0};
  uint64_t value;
  assert_int_equal(test_world_open(&world, TEST_DRIVER_STEPPED), ACCRT_OK);
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &semaphore), ACCRT_OK);
  for (uint32_t i = 0; i < WORDS; ++i) {
    const accrt_place_t place = {NULL, &words[i], 0};
    assert_int_equal(accrt_stream_fill(stream, &place, 4, i + 1, 4), ACCRT_OK);
    assert_int_equal(accrt_stream_signal(stream, semaphore, i + 1), ACCRT_OK);
  }
  assert_true(test_driver_step()); /* the fill */
  assert_true(test_driver_step()); /* the signal */
  begin_other(semaphore, at);
  assert_int_equal(accrt_semaphore_query(semaphore, &value), ACCRT_OK);
  other.is_on = false;
  assert_in_range(value, 1, WORDS);
  if (other.has_come)
    assert_int_equal(other.value, WORDS);
  while (test_driver_step())
    continue;
  assert_int_equal(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
  assert_int_equal(accrt_semaphore_query(semaphore, &value), ACCRT_OK);
  assert_int_equal(value, WORDS);
  accrt_semaphore_release(semaphore);
  accrt_stream_release(stream);
  assert_int_equal(test_world_close(&world), 0);
  return other.has_come;
}

/* A stream whose signals come in order does not fail, whoever sees them first. */
static void test_two_threads_look(void** state) {
  (void)state;
  int at = 1;
  while (look_with_other(at))
    ++at;
  assert_true(at > 3); /* it came behind each step, at least */
}

/* The first signal was held back behind a gate and is an operation, the second one is an event.
 * This thread reports the end of the first one. True when the other thread has come. */
static bool report_with_other(int at) {
  test_world_t world;
  accrt_stream_t* stream;
  accrt_semaphore_t *semaphore, *gate;
  uint32_t words[WORDS] = {0};
  uint64_t value;
  assert_int_equal(test_world_open(&world, TEST_DRIVER_STEPPED), ACCRT_OK);
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &semaphore), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(stream, gate, 1), ACCRT_OK);
  for (uint32_t i = 0; i < WORDS; ++i) {
    const accrt_place_t place = {NULL, &words[i], 0};
    assert_int_equal(accrt_stream_fill(stream, &place, 4, i + 1, 4), ACCRT_OK);
    assert_int_equal(accrt_stream_signal(stream, semaphore, i + 1), ACCRT_OK);
    if (i == 0)
      assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK);
  }
  begin_other(semaphore, at);
  while (test_driver_step())
    continue;
  other.is_on = false;
  assert_int_equal(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
  assert_int_equal(accrt_semaphore_query(semaphore, &value), ACCRT_OK);
  assert_int_equal(value, WORDS);
  accrt_semaphore_release(semaphore);
  accrt_semaphore_release(gate);
  accrt_stream_release(stream);
  while (test_driver_step())
    continue;
  assert_int_equal(test_world_close(&world), 0);
  return other.has_come;
}

static void test_operations_before_events(void** state) {
  (void)state;
  int at = 1;
  while (report_with_other(at))
    ++at;
  assert_true(at > 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_threads_look),
                                     cmocka_unit_test(test_operations_before_events)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
