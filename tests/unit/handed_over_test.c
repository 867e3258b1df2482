/* tests/unit/handed_over_test.c - a thread that learns of the end of work may release everything at
 * once: the call, the stream, the semaphore, the event, the instance. The call that told it may not
 * have returned on its thread. The sanitizers find a use that comes too late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "accrt/accrt.h"

#define BUNDLE ACCRT_TEST_DATA "/program.accx"

#define ROUNDS 150

/* One thread signals. Another one waits for that and has the only handles. Those that a test does
 * not need are NULL. */
typedef struct handed_over {
  accrt_instance_t* instance;
  accrt_stream_t* stream;
  accrt_semaphore_t* semaphore;
  accrt_semaphore_t* gate; /* work of the stream waits for it */
  accrt_event_t* event;
  accrt_call_t* call;
  accrt_status_t (*tell)(struct handed_over* objects);
  atomic_int told; /* a status; ACCRT_OK until `tell` has returned */
  uint8_t memory[4096];
  atomic_int is_over;
} handed_over_t;

static void release_all(handed_over_t* objects) {
  accrt_semaphore_release(objects->semaphore);
  accrt_semaphore_release(objects->gate);
  accrt_event_release(objects->event);
  accrt_call_release(objects->call);
  accrt_stream_release(objects->stream);
  accrt_instance_release(objects->instance);
}

static void ignore_event(void* self, const accrt_trace_event_t* event) {
  (void)self;
  (void)event;
}

static void open_all(handed_over_t* objects) {
  accrt_option_t threads = {"host.threads", "1"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &threads;
  options.option_count = 1;
  options.option_size_bytes = sizeof threads;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  /* Threads of the device tell the ends of work whose times are traced. */
  const accrt_trace_sink_t sink = {NULL, ignore_event};
  options.trace_sink = &sink;
  accrt_device_t* device;
  assert_int_equal(accrt_instance_create(&options, &objects->instance), ACCRT_OK);
  assert_int_equal(accrt_instance_device_by_name(objects->instance, "host", &device), ACCRT_OK);
  assert_int_equal(accrt_stream_create(device, NULL, &objects->stream), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(objects->instance, 0, &objects->semaphore), ACCRT_OK);
  assert_int_equal(accrt_semaphore_create(objects->instance, 0, &objects->gate), ACCRT_OK);
  assert_int_equal(accrt_event_create(device, ACCRT_EVENT_FLAG_TIMING, &objects->event), ACCRT_OK);
  atomic_init(&objects->is_over, 0);
}

/* A call whose session, program and bundle no one else holds. */
static void open_call(handed_over_t* objects, const char* function, accrt_stream_t* stream) {
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.stream = stream;
  assert_int_equal(accrt_instance_device_by_name(objects->instance, "host", &device), ACCRT_OK);
  assert_int_equal(accrt_bundle_open_path(objects->instance, BUNDLE, NULL, &bundle), ACCRT_OK);
  assert_int_equal(accrt_program_create(device, bundle, NULL, &program), ACCRT_OK);
  assert_int_equal(accrt_session_create(program, &options, &session), ACCRT_OK);
  assert_int_equal(accrt_call_create(session, function, &objects->call), ACCRT_OK);
  accrt_session_release(session);
  accrt_program_release(program);
  accrt_bundle_release(bundle);
}

/* What a thread of the device ends, while the caller enqueues what is behind it. */
static void enqueue_work(handed_over_t* objects) {
  const accrt_place_t place = {.pointer = objects->memory};
  assert_int_equal(accrt_stream_fill(objects->stream, &place, sizeof objects->memory, 0x5a, 1),
                   ACCRT_OK);
}

static void* telling(void* user) {
  handed_over_t* objects = user;
  /* Release pairs with the acquire of the loop that waits for an event. */
  atomic_store_explicit(&objects->told, (int)objects->tell(objects), memory_order_release);
  return NULL;
}

static accrt_status_t signal_by_stream(handed_over_t* objects) {
  return accrt_stream_signal(objects->stream, objects->semaphore, 1);
}
static accrt_status_t signal_behind_work(handed_over_t* objects) {
  enqueue_work(objects);
  return accrt_stream_signal(objects->stream, objects->semaphore, 1);
}
static accrt_status_t signal_deferred(handed_over_t* objects) {
  const accrt_status_t status = accrt_stream_wait(objects->stream, objects->gate, 1);
  if (status != ACCRT_OK)
    return status;
  return accrt_stream_signal(objects->stream, objects->semaphore, 1);
}
/* What this thread opens leads to the signal. */
static accrt_status_t open_gate(handed_over_t* objects) {
  assert_int_equal(signal_deferred(objects), ACCRT_OK);
  return accrt_semaphore_signal(objects->gate, 1);
}
static accrt_status_t cancel(handed_over_t* objects) {
  assert_int_equal(signal_deferred(objects), ACCRT_OK);
  return accrt_stream_cancel(objects->stream);
}
static accrt_status_t submit(handed_over_t* objects) {
  const accrt_timepoint_t signal = {objects->semaphore, 1};
  return accrt_call_submit(objects->call, NULL, 0, &signal, 1);
}
static accrt_status_t submit_behind_work(handed_over_t* objects) {
  enqueue_work(objects);
  return submit(objects);
}
/* The other thread knows of the first signal, and releases the semaphores of both. */
static accrt_status_t submit_two(handed_over_t* objects) {
  const accrt_timepoint_t signals[] = {{objects->semaphore, 1}, {objects->gate, 1}};
  return accrt_call_submit(objects->call, NULL, 0, signals, 2);
}
static accrt_status_t submit_twice_the_same(handed_over_t* objects) {
  const accrt_timepoint_t signals[] = {{objects->semaphore, 1}, {objects->semaphore, 2}};
  return accrt_call_submit(objects->call, NULL, 0, signals, 2);
}
/* The second signal is refused, and those that are left are failed. */
static accrt_status_t submit_and_give_up(handed_over_t* objects) {
  const accrt_timepoint_t signals[] = {
      {objects->semaphore, 1}, {objects->gate, UINT64_MAX}, {objects->gate, 1}};
  const accrt_status_t status = accrt_call_submit(objects->call, NULL, 0, signals, 3);
  return status == ACCRT_ERROR_INVALID_ARGUMENT ? ACCRT_OK : ACCRT_ERROR_INTERNAL;
}
static accrt_status_t record(handed_over_t* objects) {
  return accrt_stream_record(objects->stream, objects->event);
}
static accrt_status_t record_behind_work(handed_over_t* objects) {
  enqueue_work(objects);
  return record(objects);
}
static accrt_status_t signal_by_host(handed_over_t* objects) {
  return accrt_semaphore_signal(objects->semaphore, 1);
}
static accrt_status_t fail_by_host(handed_over_t* objects) {
  return accrt_semaphore_fail(objects->semaphore, ACCRT_ERROR_CANCELLED, "it is over");
}

/* `policy`: how the other thread waits for the semaphore, which is to end as `wanted`. `calls`: it
 * has a call. */
static void hand_over_as(accrt_status_t (*tell)(handed_over_t*), uint32_t policy,
                         accrt_status_t wanted, bool calls) {
  for (int round = 0; round < ROUNDS; ++round) {
    handed_over_t objects = {.tell = tell};
    pthread_t thread;
    open_all(&objects);
    if (calls)
      open_call(&objects, "weights", round % 2 == 0 ? objects.stream : NULL);
    assert_int_equal(pthread_create(&thread, NULL, telling, &objects), 0);
    assert_int_equal(accrt_semaphore_wait(objects.semaphore, 1, ACCRT_TIMEOUT_INFINITE, policy),
                     wanted);
    release_all(&objects);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&objects.told), ACCRT_OK);
  }
}

static void hand_over(accrt_status_t (*tell)(handed_over_t*), uint32_t policy,
                      accrt_status_t wanted) {
  hand_over_as(tell, policy, wanted, false);
}

static void test_a_stream_signals(void** state) {
  (void)state;
  hand_over(signal_by_stream, ACCRT_WAIT_BLOCK, ACCRT_OK);
  hand_over(signal_by_stream, ACCRT_WAIT_YIELD, ACCRT_OK);
  hand_over(signal_behind_work, ACCRT_WAIT_BLOCK, ACCRT_OK);
  hand_over(signal_behind_work, ACCRT_WAIT_YIELD, ACCRT_OK);
}

static void test_the_host_signals(void** state) {
  (void)state;
  hand_over(signal_by_host, ACCRT_WAIT_BLOCK, ACCRT_OK);
  hand_over(signal_by_host, ACCRT_WAIT_YIELD, ACCRT_OK);
  hand_over(open_gate, ACCRT_WAIT_BLOCK, ACCRT_OK);
  hand_over(open_gate, ACCRT_WAIT_YIELD, ACCRT_OK);
}

static void test_a_stream_is_cancelled(void** state) {
  (void)state;
  hand_over(cancel, ACCRT_WAIT_BLOCK, ACCRT_ERROR_POISONED);
  hand_over(cancel, ACCRT_WAIT_YIELD, ACCRT_ERROR_POISONED);
}

static void test_a_call_is_submitted(void** state) {
  (void)state;
  if (access(BUNDLE, R_OK) != 0)
    skip();
  accrt_status_t (*const tells[])(handed_over_t*) = {submit, submit_behind_work, submit_two,
                                                     submit_twice_the_same, submit_and_give_up};
  for (size_t i = 0; i < sizeof tells / sizeof *tells; ++i) {
    hand_over_as(tells[i], ACCRT_WAIT_BLOCK, ACCRT_OK, true);
    hand_over_as(tells[i], ACCRT_WAIT_YIELD, ACCRT_OK, true);
  }
}

/* Waits until the event has been recorded, and the record has been reached. */
static void hand_over_event(accrt_status_t (*tell)(handed_over_t*)) {
  for (int round = 0; round < ROUNDS; ++round) {
    handed_over_t objects = {.tell = tell};
    pthread_t thread;
    int64_t elapsed_ns;
    open_all(&objects);
    assert_int_equal(pthread_create(&thread, NULL, telling, &objects), 0);
    accrt_status_t status = ACCRT_ERROR_NOT_READY;
    /* Acquire pairs with the release in telling(). */
    while (atomic_load_explicit(&objects.told, memory_order_acquire) == ACCRT_OK) {
      status = accrt_event_elapsed(objects.event, objects.event, &elapsed_ns);
      if (status == ACCRT_OK || status == ACCRT_ERROR_POISONED)
        break;
      (void)sched_yield();
    }
    release_all(&objects);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(atomic_load(&objects.told), ACCRT_OK);
    assert_int_equal(status, ACCRT_OK);
  }
}

static void test_a_stream_records(void** state) {
  (void)state;
  hand_over_event(record);
  hand_over_event(record_behind_work);
}

static void test_the_host_fails(void** state) {
  (void)state;
  hand_over(fail_by_host, ACCRT_WAIT_BLOCK, ACCRT_ERROR_POISONED);
  hand_over(fail_by_host, ACCRT_WAIT_YIELD, ACCRT_ERROR_POISONED);
}

static void release_when_told(void* user, accrt_status_t status) {
  handed_over_t* objects = user;
  atomic_store_explicit(&objects->told, (int)status, memory_order_relaxed);
  release_all(objects);
  /* Release pairs with the acquire of the test. */
  atomic_store_explicit(&objects->is_over, 1, memory_order_release);
}

static void test_a_notification(void** state) {
  (void)state;
  for (int round = 0; round < ROUNDS; ++round) {
    handed_over_t objects = {0};
    open_all(&objects);
    if (round % 2 == 0)
      enqueue_work(&objects);
    assert_int_equal(accrt_stream_notify(objects.stream, release_when_told, &objects), ACCRT_OK);
    /* Acquire pairs with the release of the notification. */
    while (atomic_load_explicit(&objects.is_over, memory_order_acquire) == 0)
      (void)sched_yield();
    assert_int_equal(atomic_load(&objects.told), ACCRT_OK);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_stream_signals),      cmocka_unit_test(test_the_host_signals),
      cmocka_unit_test(test_the_host_fails),        cmocka_unit_test(test_a_notification),
      cmocka_unit_test(test_a_stream_is_cancelled), cmocka_unit_test(test_a_call_is_submitted),
      cmocka_unit_test(test_a_stream_records)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
