/* runtime/drivers/common/event_record_test.c - an event that one stream records late, behind what
 * it has deferred, while another stream records it again: the latest record counts. event.c is
 * compiled into this program, so that a test can let the other thread in wherever the first one has
 * let go of a lock. */
#include "abi/bodies.h" /* as the library's own sources are compiled */

#define TEST_DRIVER_NATIVE 1
#include "runtime/drivers/common/test_driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdbool.h>
#include <unistd.h>

#include "runtime/drivers/common/objects.h"

/* The other thread comes in behind the `at`-th lock that the thread of the test lets go. */
static struct {
  pthread_t self, thread;
  int at, seen;
  bool is_on, has_come;
  atomic_bool is_over;
  accrt_stream_t* stream;
  accrt_event_t* event;
  pthread_t last; /* who gave the driver the last record; under the driver's call */
} other;

static void* record_again(void* user) {
  (void)user;
  assert_int_equal(accrt_stream_record(other.stream, other.event), ACCRT_OK);
  atomic_store(&other.is_over, true);
  return NULL;
}

/* Waits for the other thread, but not for long: that it waits for this one is as it should be. */
static void let_other_in(void) {
  if (!pthread_equal(other.self, pthread_self()) || !other.is_on || ++other.seen != other.at)
    return;
  other.has_come = true;
  assert_int_equal(pthread_create(&other.thread, NULL, record_again, NULL), 0);
  for (int i = 0; i < 20 && !atomic_load(&other.is_over); ++i)
    (void)usleep(1000);
}

static void unlock_and_let_in(accrt_mutex_t* mutex) {
  accrt_mutex_unlock(mutex);
  let_other_in();
}

#undef accrt_mutex_unlock
#define accrt_mutex_unlock unlock_and_let_in
#include "runtime/drivers/common/event.c"

static void note_last(void* user) {
  (void)user;
  other.last = pthread_self();
}

/* True when the other thread has come. */
static bool record_late_with_other(int at) {
  test_world_t world;
  accrt_stream_t *one, *two;
  accrt_semaphore_t* gate;
  accrt_event_t* event;
  uint32_t words[2] = {0};
  const accrt_place_t places[2] = {{NULL, &words[0], 0}, {NULL, &words[1], 0}};
  assert_int_equal(test_world_open(&world, TEST_DRIVER_STEPPED), ACCRT_OK);
  memset(&other, 0, sizeof other);
  assert_int_equal(accrt_stream_create(world.device, NULL, &one), ACCRT_OK);
  assert_int_equal(accrt_stream_create(world.device, NULL, &two), ACCRT_OK);
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(world.instance, 0, &gate), ACCRT_OK);
  assert_int_equal(accrt_stream_wait(one, gate, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_fill(one, &places[0], 4, 1, 4), ACCRT_OK);
  assert_int_equal(accrt_stream_record(one, event), ACCRT_OK);
  assert_int_equal(accrt_stream_fill(two, &places[1], 4, 2, 4), ACCRT_OK);
  test_driver.recorded = note_last;
  other.self = pthread_self();
  other.at = at;
  other.stream = two;
  other.event = event;
  other.is_on = true;
  assert_int_equal(accrt_semaphore_signal(gate, 1), ACCRT_OK); /* this thread records it */
  other.is_on = false;
  if (other.has_come) {
    assert_int_equal(pthread_join(other.thread, NULL), 0);
    if (mode_of(event) == ACCRT_EVENT_NATIVE)
      assert_true(pthread_equal(other.last, other.thread));
  }
  while (test_driver_step())
    continue;
  assert_int_equal(accrt_event_synchronize(event, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(one, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(two, ACCRT_TIMEOUT_INFINITE, 0), ACCRT_OK);
  test_driver.recorded = NULL;
  accrt_semaphore_release(gate);
  accrt_event_release(event);
  accrt_stream_release(one);
  accrt_stream_release(two);
  while (test_driver_step())
    continue;
  assert_int_equal(test_world_close(&world), 0);
  return other.has_come;
}

static void test_latest_record_counts(void** state) {
  (void)state;
  int at = 1;
  while (record_late_with_other(at))
    ++at;
  assert_true(at > 2); /* it came before and behind the driver's record */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_latest_record_counts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
