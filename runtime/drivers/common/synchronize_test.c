/* runtime/drivers/common/synchronize_test.c - a thread waits for a stream, or asks whether it is
 * idle, while another thread resets it: what the first thread found there was dropped, and it hears
 * of that. stream_wait.c and stream_settle.c are compiled into this program, so that a test can let
 * the other thread in wherever the first one has let go of a lock. */
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
} other;

static void* reset(void* user) {
  (void)user;
  assert_int_equal(accrt_stream_reset(other.stream), ACCRT_OK);
  atomic_store(&other.is_over, true);
  return NULL;
}

/* Waits for the other thread, but not for long: that it waits for this one is as it should be. */
static void let_other_in(void) {
  if (!pthread_equal(other.self, pthread_self()) || !other.is_on || ++other.seen != other.at)
    return;
  other.has_come = true;
  assert_int_equal(pthread_create(&other.thread, NULL, reset, NULL), 0);
  for (int i = 0; i < 20 && !atomic_load(&other.is_over); ++i)
    (void)usleep(1000);
}

static void unlock_and_let_in(accrt_mutex_t* mutex) {
  accrt_mutex_unlock(mutex);
  let_other_in();
}

#undef accrt_mutex_unlock
#define accrt_mutex_unlock unlock_and_let_in
#include "runtime/drivers/common/stream_settle.c"
#include "runtime/drivers/common/stream_wait.c"

/* The device: it runs what a failed stream asks of it, until it is told to stop. */
static void* run_device(void* is_stopped) {
  while (!atomic_load((atomic_bool*)is_stopped)) {
    if (!test_driver_step())
      (void)usleep(100);
  }
  return NULL;
}

static accrt_status_t synchronize_stream(accrt_stream_t* stream) {
  return accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, 0);
}

/* The work has failed when this thread asks. `has_event`: an event stands behind it. True when the
 * other thread has come. */
static bool ask_with_other(accrt_status_t (*ask)(accrt_stream_t*), bool has_event, int at) {
  test_world_t world;
  accrt_stream_t* stream;
  accrt_event_t* event;
  uint32_t word = 0;
  pthread_t device;
  atomic_bool is_stopped = false;
  const accrt_place_t place = {NULL, &word, 0};
  assert_int_equal(test_world_open(&world, TEST_DRIVER_STEPPED), ACCRT_OK);
  memset(&other, 0, sizeof other);
  assert_int_equal(accrt_stream_create(world.device, NULL, &stream), ACCRT_OK);
  assert_int_equal(accrt_event_create(world.device, 0, &event), ACCRT_OK);
  test_driver_fail(TEST_FUNCTION_RUN, 1, ACCRT_ERROR_KERNEL);
  assert_int_equal(accrt_stream_fill(stream, &place, 4, 1, 4), ACCRT_OK);
  if (has_event)
    assert_int_equal(accrt_stream_record(stream, event), ACCRT_OK);
  while (test_driver_step())
    continue;
  assert_int_equal(pthread_create(&device, NULL, run_device, &is_stopped), 0);
  other.self = pthread_self();
  other.at = at;
  other.stream = stream;
  other.is_on = true;
  const accrt_status_t status = ask(stream);
  /* A query may come before the device has reported. */
  if (ask == synchronize_stream || status != ACCRT_ERROR_NOT_READY)
    assert_int_equal(status, ACCRT_ERROR_POISONED);
  other.is_on = false;
  if (other.has_come)
    assert_int_equal(pthread_join(other.thread, NULL), 0);
  assert_int_equal(accrt_stream_reset(stream), ACCRT_OK);
  assert_int_equal(ask(stream), ACCRT_OK); /* it was not there before the reset */
  atomic_store(&is_stopped, true);
  assert_int_equal(pthread_join(device, NULL), 0);
  while (test_driver_step()) /* queries leave records in the queue */
    continue;
  accrt_event_release(event);
  accrt_stream_release(stream);
  assert_int_equal(test_world_close(&world), 0);
  return other.has_come;
}

static void ask_in_each_order(accrt_status_t (*ask)(accrt_stream_t*)) {
  for (int has_event = 0; has_event <= 1; ++has_event) {
    int at = 1;
    while (ask_with_other(ask, has_event != 0, at))
      ++at;
    assert_true(at > 1);
  }
}

static void test_synchronize(void** state) {
  (void)state;
  ask_in_each_order(synchronize_stream);
}

static void test_query(void** state) {
  (void)state;
  ask_in_each_order(accrt_stream_query);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_synchronize),
                                     cmocka_unit_test(test_query)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
