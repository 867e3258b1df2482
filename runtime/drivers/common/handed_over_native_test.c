/* As tests/unit/handed_over_test.c, where the driver has events and does signals and records
 * itself: a thread that learns of one may release the stream, the semaphore and the event. */
#define TEST_DRIVER_NATIVE 1
#include "runtime/drivers/common/stream_test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define ROUNDS 200

typedef struct handed_over {
  accrt_stream_t* stream;
  accrt_semaphore_t* semaphore;
  accrt_event_t* event;
  atomic_int told; /* a status; ACCRT_OK until the other thread knows better */
} handed_over_t;

/* Release pairs with the acquire in await_record. */
static void tell(handed_over_t* objects, accrt_status_t status) {
  atomic_store_explicit(&objects->told, (int)status, memory_order_release);
}

static void* signalling(void* user) {
  handed_over_t* objects = user;
  tell(objects, accrt_stream_signal(objects->stream, objects->semaphore, 1));
  return NULL;
}

static void* recording(void* user) {
  handed_over_t* objects = user;
  tell(objects, accrt_stream_record(objects->stream, objects->event));
  return NULL;
}

static accrt_status_t await_signal(handed_over_t* objects) {
  return accrt_semaphore_wait(objects->semaphore, 1, FOREVER, ACCRT_WAIT_YIELD);
}

static accrt_status_t await_record(handed_over_t* objects) {
  int64_t elapsed_ns;
  accrt_status_t status = ACCRT_ERROR_NOT_READY;
  /* Acquire pairs with the release in tell. */
  while (atomic_load_explicit(&objects->told, memory_order_acquire) == ACCRT_OK) {
    status = accrt_event_elapsed(objects->event, objects->event, &elapsed_ns);
    if (status == ACCRT_OK || status == ACCRT_ERROR_POISONED)
      break;
    (void)sched_yield();
  }
  return status;
}

static void hand_over(void* (*telling)(void*), accrt_status_t (*await)(handed_over_t*)) {
  open_world(TEST_DRIVER_THREAD);
  for (int round = 0; round < ROUNDS; ++round) {
    uint32_t word = 0;
    handed_over_t objects = {make_stream(), make_semaphore(0), NULL, ACCRT_OK};
    pthread_t thread;
    assert_int_equal(accrt_event_create(world.device, ACCRT_EVENT_FLAG_TIMING, &objects.event),
                     ACCRT_OK);
    fill(objects.stream, &word, 7);
    assert_int_equal(pthread_create(&thread, NULL, telling, &objects), 0);
    const accrt_status_t status = await(&objects);
    accrt_semaphore_release(objects.semaphore);
    accrt_event_release(objects.event);
    accrt_stream_release(objects.stream);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&objects.told), ACCRT_OK);
    assert_int_equal(status, ACCRT_OK);
    assert_int_equal(word, 7);
  }
  close_world();
}

static void test_signals(void** state) {
  (void)state;
  hand_over(signalling, await_signal);
}

static void test_records(void** state) {
  (void)state;
  hand_over(recording, await_record);
}

/* ---- A waiter that comes before the driver's function returns ---- */

typedef struct inside {
  handed_over_t objects;
  atomic_int is_inside, is_released;
} inside_t;

static void stay_inside(void* user) {
  inside_t* inside = user;
  atomic_store(&inside->is_inside, 1);
  while (atomic_load(&inside->is_released) == 0)
    (void)sched_yield();
}

/* The event is recorded a second time, so that it is the driver's already, and is over before the
 * driver's function returns. */
static void test_events_that_are_released_inside(void** state) {
  (void)state;
  open_world(TEST_DRIVER_THREAD);
  inside_t inside = {.objects = {.stream = make_stream()}};
  uint32_t word = 0;
  pthread_t thread;
  assert_int_equal(accrt_event_create(world.device, 0, &inside.objects.event), ACCRT_OK);
  assert_int_equal(accrt_stream_record(inside.objects.stream, inside.objects.event), ACCRT_OK);
  test_driver.recorded_user = &inside;
  test_driver.recorded = stay_inside;
  fill(inside.objects.stream, &word, 7);
  assert_int_equal(pthread_create(&thread, NULL, recording, &inside.objects), 0);
  while (atomic_load(&inside.is_inside) == 0)
    (void)sched_yield();
  const accrt_status_t status =
      accrt_event_synchronize(inside.objects.event, FOREVER, ACCRT_WAIT_YIELD);
  accrt_event_release(inside.objects.event);
  atomic_store(&inside.is_released, 1);
  accrt_stream_release(inside.objects.stream); /* its end waits for the record */
  assert_int_equal(pthread_join(thread, NULL), 0);
  test_driver.recorded = NULL;
  assert_int_equal(status, ACCRT_OK);
  assert_int_equal(atomic_load(&inside.objects.told), ACCRT_OK);
  assert_int_equal(word, 7);
  close_world();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_signals), cmocka_unit_test(test_records),
                                     cmocka_unit_test(test_events_that_are_released_inside)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
