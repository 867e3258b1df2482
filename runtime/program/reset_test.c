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

/* ---- While a call is enqueued ---- */

/* Another thread cancels and resets the stream at the `at`-th allocation of a thread that is in a
 * call of the library. */
typedef struct intruder {
  accrt_stream_t* stream;
  pthread_t thread;
  int at, seen;
  bool has_begun;
  atomic_bool is_cancelled;
  atomic_bool is_over; /* the reset has returned */
} intruder_t;

static void* cancel_and_reset(void* user) {
  intruder_t* own = user;
  (void)accrt_stream_cancel(own->stream);
  atomic_store(&own->is_cancelled, true);
  (void)accrt_stream_reset(own->stream);
  atomic_store(&own->is_over, true);
  return NULL;
}

/* Holds the thread until the cancel is over, and for a while longer if the reset is not: a reset
 * that waits for this thread is as it should be. */
static void intrude(void* user) {
  intruder_t* own = user;
  if (own->has_begun || ++own->seen != own->at)
    return;
  own->has_begun = true;
  assert_int_equal(pthread_create(&own->thread, NULL, cancel_and_reset, own), 0);
  while (!atomic_load(&own->is_cancelled))
    usleep(100);
  for (int i = 0; i < 20 && !atomic_load(&own->is_over); ++i)
    usleep(1000);
}

static void let_in(fixture_t* f, intruder_t* own) {
  f->watch.caller = pthread_self();
  f->watch.before_user = own;
  f->watch.before = intrude;
}

static void keep_out(fixture_t* f, const intruder_t* own) {
  f->watch.before = NULL;
  if (own->has_begun)
    assert_int_equal(pthread_join(own->thread, NULL), 0);
}

/* A call with two waits and a signal: it succeeds as a whole, after both, or it fails. True while
 * the intruder comes. */
static bool submit_with_intruder(fixture_t* f, int at) {
  accrt_semaphore_t *first, *second, *done;
  accrt_stream_t* stream;
  int64_t y = 0;
  OK(accrt_semaphore_create(f->instance, 0, &first));
  OK(accrt_semaphore_create(f->instance, 0, &second));
  OK(accrt_semaphore_create(f->instance, 0, &done));
  OK(accrt_stream_create(f->device, NULL, &stream));
  accrt_session_t* session = open_on(f, stream);
  accrt_call_t* call = make_call(session, "count");
  const accrt_timepoint_t waits[2] = {{first, 1}, {second, 1}}, signal = {done, 1};
  OK(set_number(call, "digit", 1));
  OK(set_vector(call, "y", &y, ACCRT_DTYPE_I64, 1));
  intruder_t own = {.stream = stream, .at = at};
  let_in(f, &own);
  const accrt_status_t status = accrt_call_submit(call, waits, 2, &signal, 1);
  keep_out(f, &own);
  OK(accrt_semaphore_signal(second, 1));
  if (status != ACCRT_OK) {
    assert_int_equal(status, ACCRT_ERROR_POISONED);
  } else if (accrt_stream_failures(stream) != 0) {
    FAILS(accrt_semaphore_wait(done, 1, ACCRT_TIMEOUT_INFINITE, 0), POISONED, NULL);
    FAILS(accrt_call_wait(call, ACCRT_TIMEOUT_INFINITE), CANCELLED, NULL);
  } else { /* the intruder came before there was anything to cancel, or not at all */
    OK(accrt_semaphore_signal(first, 1));
    OK(accrt_semaphore_wait(done, 1, ACCRT_TIMEOUT_INFINITE, 0));
    assert_int_equal(y, 71);
  }
  (void)accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
  if (status != ACCRT_OK || accrt_stream_failures(stream) != 0)
    assert_int_equal(y, 0);
  accrt_call_release(call);
  accrt_session_release(session);
  accrt_stream_release(stream);
  accrt_semaphore_release(first);
  accrt_semaphore_release(second);
  accrt_semaphore_release(done);
  return own.has_begun;
}

static void submits_in_one_life(void** state) {
  FIXTURE(f);
  int at = 1;
  while (submit_with_intruder(f, at))
    ++at;
  assert_true(at > 4); /* it came at each operation, at least */
}

static void* open_later(void* gate) {
  usleep(20000);
  (void)accrt_semaphore_signal(gate, 1);
  return NULL;
}

/* Without a limit: the call may run on this thread. Its plan is made first, and meanwhile the call
 * before it is dropped. True while the intruder comes. */
static bool run_here_with_intruder(fixture_t* f, int at) {
  accrt_semaphore_t* gate;
  accrt_stream_t* stream;
  pthread_t opener;
  OK(accrt_semaphore_create(f->instance, 0, &gate));
  OK(accrt_stream_create(f->device, NULL, &stream));
  accrt_session_t* session = open_on(f, stream);
  accrt_call_t* call = make_call(session, "count");
  const accrt_timepoint_t wait = {gate, 1};
  OK(set_number(call, "digit", 1));
  OK(accrt_call_submit(call, &wait, 1, NULL, 0));
  accrt_call_t* other = make_call(session, "iota");
  OK(set_number(other, "position", 5));
  assert_int_equal(pthread_create(&opener, NULL, open_later, gate), 0);
  intruder_t own = {.stream = stream, .at = at};
  let_in(f, &own);
  const accrt_status_t status = run(other);
  keep_out(f, &own);
  assert_int_equal(pthread_join(opener, NULL), 0);
  assert_int_equal(status == ACCRT_OK, accrt_stream_failures(stream) == 0);
  if (status == ACCRT_OK)
    assert_int_equal(*(const int64_t*)result_data(other, 0), 5);
  accrt_call_release(other);
  accrt_call_release(call);
  accrt_session_release(session);
  accrt_stream_release(stream);
  accrt_semaphore_release(gate);
  return own.has_begun;
}

/* A call behind one that is dropped meanwhile does not succeed. True while the intruder comes. */
static bool run_with_intruder(fixture_t* f, int at, uint64_t timeout_ns) {
  accrt_semaphore_t* start;
  accrt_stream_t* stream;
  int64_t y = 0;
  OK(accrt_semaphore_create(f->instance, 0, &start));
  OK(accrt_stream_create(f->device, NULL, &stream));
  accrt_session_t* session = open_on(f, stream);
  accrt_call_t* call = make_call(session, "count");
  const accrt_timepoint_t wait = {start, 1};
  OK(set_number(call, "digit", 1));
  OK(accrt_call_submit(call, &wait, 1, NULL, 0));
  accrt_call_t* other = make_call(session, "count");
  OK(set_number(other, "digit", 2));
  OK(set_vector(other, "y", &y, ACCRT_DTYPE_I64, 1));
  intruder_t own = {.stream = stream, .at = at};
  let_in(f, &own);
  const accrt_status_t status = accrt_call_run(other, timeout_ns);
  keep_out(f, &own);
  if (own.has_begun) {
    assert_int_not_equal(status, ACCRT_OK);
    FAILS(accrt_call_run(other, ACCRT_TIMEOUT_INFINITE), POISONED, "accrt_session_reset");
    assert_int_equal(y, 0);
  } else {
    FAILS(status, TIMEOUT, NULL);
    OK(accrt_semaphore_signal(start, 1));
    OK(accrt_call_wait(other, ACCRT_TIMEOUT_INFINITE));
    assert_int_equal(y, 712);
  }
  accrt_call_release(other);
  accrt_call_release(call);
  accrt_session_release(session);
  accrt_stream_release(stream);
  accrt_semaphore_release(start);
  return own.has_begun;
}

static void runs_stand_on_the_runs_before(void** state) {
  FIXTURE(f);
  int at = 1;
  while (run_with_intruder(f, at, 10000000))
    ++at;
  assert_true(at > 1);
  at = 1;
  while (run_here_with_intruder(f, at))
    ++at;
  assert_true(at > 1);
}

/* A clone of a session with a call in flight has all of its state, or is refused. True while the
 * intruder comes. */
static bool clone_with_intruder(fixture_t* f, int at) {
  accrt_semaphore_t* gate;
  accrt_stream_t* stream;
  pthread_t opener;
  OK(accrt_semaphore_create(f->instance, 0, &gate));
  OK(accrt_stream_create(f->device, NULL, &stream));
  accrt_session_t* session = open_on(f, stream);
  accrt_call_t* call = make_call(session, "count");
  const accrt_timepoint_t wait = {gate, 1};
  OK(set_number(call, "digit", 1));
  OK(accrt_call_submit(call, &wait, 1, NULL, 0));
  assert_int_equal(pthread_create(&opener, NULL, open_later, gate), 0);
  intruder_t own = {.stream = stream, .at = at};
  accrt_session_t* clone;
  let_in(f, &own);
  const accrt_status_t status = accrt_session_clone(session, NULL, &clone);
  keep_out(f, &own);
  assert_int_equal(pthread_join(opener, NULL), 0);
  if (accrt_stream_failures(stream) != 0) {
    assert_int_equal(status, ACCRT_ERROR_POISONED);
    assert_null(clone);
  } else {
    OK(status);
    accrt_call_t* next = make_call(clone, "count");
    OK(set_number(next, "digit", 2));
    OK(run(next));
    assert_int_equal(*(const int64_t*)result_data(next, 0), 712);
    accrt_call_release(next);
    accrt_session_release(clone);
  }
  accrt_call_release(call);
  accrt_session_release(session);
  accrt_stream_release(stream);
  accrt_semaphore_release(gate);
  return own.has_begun;
}

static void clones_in_one_life(void** state) {
  FIXTURE(f);
  int at = 1;
  while (clone_with_intruder(f, at))
    ++at;
  assert_true(at > 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FIXTURE_TEST(remembers_dropped_calls),       FIXTURE_TEST(refuses_calls_behind_dropped_ones),
      FIXTURE_TEST(keeps_what_ended_well),         FIXTURE_TEST(submits_in_one_life),
      FIXTURE_TEST(runs_stand_on_the_runs_before), FIXTURE_TEST(clones_in_one_life),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
