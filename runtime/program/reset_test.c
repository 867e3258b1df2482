/* runtime/program/reset_test.c - sessions on a stream that another part of the program cancels and
 * resets: no call succeeds that stands on dropped work. */
#include "runtime/program/testing.h"

#define MANY_RESETS 20

static accrt_session_t* open_on(fixture_t* f, accrt_stream_t* stream) {
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.stream = stream;
  accrt_session_t* session;
  OK(accrt_session_create(f->program, &options, &session));
  return session;
}

/* Enqueues work that waits, cancels it, and makes the stream sound again. */
static void drop_work(fixture_t* f, accrt_stream_t* stream) {
  accrt_semaphore_t* never;
  OK(accrt_semaphore_create(f->instance, 0, &never));
  OK(accrt_stream_wait(stream, never, 1));
  OK(accrt_stream_cancel(stream));
  OK(accrt_stream_reset(stream));
  accrt_semaphore_release(never);
}

/* Submits a call that waits, and drops it. */
static accrt_call_t* drop_call(fixture_t* f, accrt_session_t* session) {
  accrt_stream_t* stream = accrt_session_stream(session);
  accrt_semaphore_t* never;
  OK(accrt_semaphore_create(f->instance, 0, &never));
  const accrt_timepoint_t wait = {never, 1};
  accrt_call_t* call = make_call(session, "count");
  OK(set_number(call, "digit", 1));
  OK(accrt_call_submit(call, &wait, 1, NULL, 0));
  OK(accrt_stream_cancel(stream));
  OK(accrt_stream_reset(stream));
  accrt_semaphore_release(never);
  return call;
}

/* A call that was dropped stays dropped, however often the stream was reset before anybody asks. */
static void remembers_dropped_calls(void** state) {
  FIXTURE(f);
  for (int resets = 0; resets <= MANY_RESETS; ++resets) {
    accrt_stream_t* stream;
    OK(accrt_stream_create(f->device, NULL, &stream));
    accrt_session_t* session = open_on(f, stream);
    accrt_call_t* call = drop_call(f, session);
    for (int i = 0; i < resets; ++i)
      drop_work(f, stream);
    FAILS(accrt_call_wait(call, ACCRT_TIMEOUT_INFINITE), CANCELLED, NULL);
    FAILS(run(call), POISONED, "accrt_session_reset");
    accrt_error_t error = ACCRT_ERROR_INIT;
    OK(accrt_session_error(session, &error));
    assert_int_equal(error.status, ACCRT_ERROR_CANCELLED);
    OK(accrt_session_reset(session));
    OK(run(call));
    assert_int_equal(*(const int64_t*)result_data(call, 0), 71);
    accrt_call_release(call);
    accrt_session_release(session);
    accrt_stream_release(stream);
  }
}

/* The same without a wait: the next call finds it. */
static void refuses_calls_behind_dropped_ones(void** state) {
  FIXTURE(f);
  for (int resets = 0; resets <= MANY_RESETS; ++resets) {
    accrt_stream_t* stream;
    OK(accrt_stream_create(f->device, NULL, &stream));
    accrt_session_t* session = open_on(f, stream);
    accrt_call_t* call = drop_call(f, session);
    for (int i = 0; i < resets; ++i)
      drop_work(f, stream);
    FAILS(accrt_call_submit(call, NULL, 0, NULL, 0), POISONED, "accrt_session_reset");
    accrt_call_release(call);
    accrt_session_release(session);
    accrt_stream_release(stream);
  }
}

/* What ended well before the failures is not theirs. */
static void keeps_what_ended_well(void** state) {
  FIXTURE(f);
  accrt_stream_t* stream;
  OK(accrt_stream_create(f->device, NULL, &stream));
  accrt_session_t* session = open_on(f, stream);
  accrt_call_t* call = make_call(session, "count");
  OK(set_number(call, "digit", 2));
  OK(accrt_call_submit(call, NULL, 0, NULL, 0));
  OK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  for (int i = 0; i < MANY_RESETS; ++i)
    drop_work(f, stream);
  OK(accrt_call_wait(call, ACCRT_TIMEOUT_INFINITE));
  OK(accrt_call_submit(call, NULL, 0, NULL, 0));
  OK(accrt_call_wait(call, ACCRT_TIMEOUT_INFINITE));
  assert_int_equal(*(const int64_t*)result_data(call, 0), 722);
  accrt_call_release(call);
  accrt_session_release(session);
  accrt_stream_release(stream);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FIXTURE_TEST(remembers_dropped_calls),
      FIXTURE_TEST(refuses_calls_behind_dropped_ones),
      FIXTURE_TEST(keeps_what_ended_well),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
