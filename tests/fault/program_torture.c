/* tests/fault/program_torture.c - every allocation of creating and running a program fails in turn, once and then for ever: each
 * failure is reported, nothing is lost, and what was there before still works. */
#include "runtime/program/testing.h"

#define F32 ACCRT_DTYPE_F32
#define MOST_ALLOCATIONS 4000
#define MOST_SPARES 300 /* records that pools and streams keep for later */

/* Something that is tried under failing allocations. Gives what failed, or ACCRT_OK. */
typedef accrt_status_t (*attempt_t)(fixture_t* f);

static void expect_memory_status(accrt_status_t status, long long number) {
  if (status == ACCRT_ERROR_OUT_OF_MEMORY || status == ACCRT_ERROR_OUT_OF_DEVICE_MEMORY)
    return;
  print_error("allocation %lld failed: %s: %s\n", number, accrt_status_name(status),
              accrt_error_current()->message);
  fail();
}

/* Fails allocation 1, 2, 3 ... of the attempt until it succeeds. Returns how many there were. */
static long long torture(fixture_t* f, attempt_t attempt, int for_ever) {
  const long long live = atomic_load(&f->watch.live);
  for (long long number = 1; number < MOST_ALLOCATIONS; ++number) {
    const long long fail_at = atomic_load(&f->watch.count) + number;
    atomic_store(&f->watch.fail_on, for_ever);
    atomic_store(&f->watch.fail_at, fail_at);
    const accrt_status_t status = attempt(f);
    const bool was_reached = atomic_load(&f->watch.count) >= fail_at;
    atomic_store(&f->watch.fail_at, 0);
    if (status != ACCRT_OK)
      expect_memory_status(status, number);
    /* Pools and streams keep spare records for the next one: a few, not one for each of the attempts. Streams and sessions
     * end when their work has; waiting and trimming take back what is left of them. */
    for (int i = 0; i < 5000 && atomic_load(&f->watch.live) > live + MOST_SPARES; ++i) {
      usleep(1000);
      accrt_pool_t* pool;
      OK(accrt_device_pool(f->device, ACCRT_MEMORY_DEVICE, &pool));
      OK(accrt_pool_trim(pool, UINT64_MAX));
      OK(accrt_stream_synchronize(accrt_session_stream(f->session), ACCRT_TIMEOUT_INFINITE,
                                  ACCRT_WAIT_BLOCK));
    }
    assert_true(atomic_load(&f->watch.live) <= live + MOST_SPARES);
    if (status == ACCRT_OK && !was_reached)
      return number - 1;
  }
  fail_msg("more than %d allocations", MOST_ALLOCATIONS);
  return 0;
}

static void torture_both(void** state, const char* name, attempt_t attempt) {
  FIXTURE(f);
  const long long once = torture(f, attempt, 0);
  const long long for_ever = torture(f, attempt, 1);
  print_message("%s: %lld and %lld allocations failed in turn\n", name, once, for_ever);
  /* The fixture's own objects still work. */
  accrt_call_t* call = make_call(f->session, "empty");
  OK(run(call));
  accrt_call_release(call);
}

static accrt_status_t create_program(fixture_t* f) {
  accrt_program_t* program;
  const accrt_status_t status = accrt_program_create(f->device, f->bundle, NULL, &program);
  if (status != ACCRT_OK)
    assert_null(program);
  accrt_program_release(program);
  return status;
}
static void program_create(void** state) {
  torture_both(state, "program_create", create_program);
}

static accrt_status_t create_session(fixture_t* f) {
  accrt_session_t* session;
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.label = "tortured";
  const accrt_status_t status = accrt_session_create(f->program, &options, &session);
  if (status != ACCRT_OK)
    assert_null(session);
  accrt_session_release(session);
  return status;
}
static void session_create(void** state) {
  torture_both(state, "session_create", create_session);
}

static accrt_status_t clone_session(fixture_t* f) {
  accrt_session_t* session;
  const accrt_status_t status = accrt_session_clone(f->session, NULL, &session);
  accrt_session_release(session);
  return status;
}
static void session_clone(void** state) {
  torture_both(state, "session_clone", clone_session);
}

/* A call from nothing to its result, in a session of its own so that the plan is made anew. */
static accrt_status_t call_function(fixture_t* f, const char* function, const char* scalar,
                                    int64_t value, int64_t rows) {
  static _Alignas(16) float x[512];
  accrt_session_t* session;
  accrt_call_t* call = NULL;
  accrt_status_t status = accrt_session_create(f->program, NULL, &session);
  if (status == ACCRT_OK)
    status = accrt_call_create(session, function, &call);
  if (status == ACCRT_OK && scalar != NULL)
    status = set_number(call, scalar, value);
  if (status == ACCRT_OK && rows != 0)
    status = set_matrix(call, "x", x, F32, rows, 4);
  if (status == ACCRT_OK)
    status = accrt_call_run(call, ACCRT_TIMEOUT_INFINITE);
  if (status != ACCRT_OK && call != NULL) {
    /* Once there is memory again, the same call works: the session was not harmed. */
    const long long fail_at = atomic_exchange(&f->watch.fail_at, 0);
    const accrt_error_t saved = *accrt_error_current();
    if (scalar != NULL)
      OK(set_number(call, scalar, value));
    if (rows != 0)
      OK(set_matrix(call, "x", x, F32, rows, 4));
    OK(accrt_call_run(call, ACCRT_TIMEOUT_INFINITE));
    (void)accrt_error_restore(&saved);
    atomic_store(&f->watch.fail_at, fail_at);
  }
  accrt_call_release(call);
  accrt_session_release(session);
  return status;
}

static accrt_status_t call_bucket(fixture_t* f) {
  return call_function(f, "bucket", NULL, 0, 20);
}
static void calls_with_transients(void** state) {
  torture_both(state, "bucket", call_bucket);
}

static accrt_status_t call_calls(fixture_t* f) {
  return call_function(f, "calls", "position", 4, 0);
}
static void calls_with_callees(void** state) {
  torture_both(state, "calls", call_calls);
}

static accrt_status_t call_order(fixture_t* f) {
  return call_function(f, "order", "rounds", 7, 0);
}
static void calls_with_loops(void** state) {
  torture_both(state, "order", call_order);
}

static accrt_status_t submit_calls(fixture_t* f) {
  accrt_session_t* session;
  accrt_call_t* call = NULL;
  accrt_status_t status = accrt_session_create(f->program, NULL, &session);
  if (status == ACCRT_OK)
    status = accrt_call_create(session, "count", &call);
  for (int64_t i = 0; i < 3 && status == ACCRT_OK; ++i) {
    status = set_number(call, "digit", i);
    if (status == ACCRT_OK)
      status = accrt_call_submit(call, NULL, 0, NULL, 0);
  }
  accrt_call_release(call);
  accrt_stream_t* stream = accrt_stream_retain(accrt_session_stream(session));
  accrt_session_release(session);
  if (stream != NULL) {
    const accrt_error_t saved = *accrt_error_current();
    (void)accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
    (void)accrt_error_restore(&saved);
  }
  accrt_stream_release(stream);
  return status;
}
static void submits(void** state) {
  torture_both(state, "submit", submit_calls);
}

static accrt_status_t swap(fixture_t* f) {
  float fresh[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const int64_t n = 8;
  const accrt_weight_t weight = {"weight", tensor_of(fresh, F32, 1, &n)};
  return accrt_program_swap_weights(f->program, &weight, 1, sizeof weight);
}
static void swaps_weights(void** state) {
  torture_both(state, "swap_weights", swap);
}

static accrt_status_t estimate(fixture_t* f) {
  accrt_memory_estimate_t result = ACCRT_MEMORY_ESTIMATE_INIT;
  return accrt_program_estimate(f->program, "calls", NULL, 0, sizeof(accrt_symbol_value_t),
                                &result);
}
static void estimates(void** state) {
  torture_both(state, "estimate", estimate);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FIXTURE_TEST(program_create),
      FIXTURE_TEST(session_create),
      FIXTURE_TEST(session_clone),
      FIXTURE_TEST(calls_with_transients),
      FIXTURE_TEST(calls_with_callees),
      FIXTURE_TEST(calls_with_loops),
      FIXTURE_TEST(submits),
      FIXTURE_TEST(swaps_weights),
      FIXTURE_TEST(estimates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
