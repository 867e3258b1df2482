/* As tests/unit/handed_over_test.c, where the driver has events and does signals and records
 * itself: a thread that learns of one may release the stream, the semaphore and the event. */
#define TEST_DRIVER_NATIVE 1
#include "runtime/drivers/common/stream_test.h"

#include <pthread.h>

#define ROUNDS 200

typedef struct handed_over {
  accrt_stream_t* stream;
  accrt_semaphore_t* semaphore;
  accrt_event_t* event;
  accrt_status_t told;
} handed_over_t;

static void* signalling(void* user) {
  handed_over_t* objects = user;
  objects->told = accrt_stream_signal(objects->stream, objects->semaphore, 1);
  return NULL;
}

static void* recording(void* user) {
  handed_over_t* objects = user;
  objects->told = accrt_stream_record(objects->stream, objects->event);
  return NULL;
}

static void await_signal(handed_over_t* objects) {
  assert_int_equal(accrt_semaphore_wait(objects->semaphore, 1, FOREVER, ACCRT_WAIT_YIELD),
                   ACCRT_OK);
}

static void await_record(handed_over_t* objects) {
  int64_t elapsed_ns;
  while (accrt_event_elapsed(objects->event, objects->event, &elapsed_ns) != ACCRT_OK) {
  }
}

static void hand_over(void* (*tell)(void*), void (*await)(handed_over_t*)) {
  open_world(TEST_DRIVER_THREAD);
  for (int round = 0; round < ROUNDS; ++round) {
    uint32_t word = 0;
    handed_over_t objects = {make_stream(), make_semaphore(0), NULL, ACCRT_ERROR_INTERNAL};
    pthread_t thread;
    assert_int_equal(accrt_event_create(world.device, ACCRT_EVENT_FLAG_TIMING, &objects.event),
                     ACCRT_OK);
    fill(objects.stream, &word, 7);
    assert_int_equal(pthread_create(&thread, NULL, tell, &objects), 0);
    await(&objects);
    accrt_semaphore_release(objects.semaphore);
    accrt_event_release(objects.event);
    accrt_stream_release(objects.stream);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(objects.told, ACCRT_OK);
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_signals),
                                     cmocka_unit_test(test_records)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
