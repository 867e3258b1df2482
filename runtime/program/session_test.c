/* runtime/program/session_test.c - sessions: state, clones, reset, failure, asynchronous calls, end
 * of life. */
#include "runtime/program/testing.h"

#define F32 ACCRT_DTYPE_F32

/* ---- State ---- */

/* Host address of a state, after everything enqueued. */
static void* state_data(accrt_session_t* session, const char* name, accrt_tensor_t* out_tensor,
                        int64_t* shape) {
  int64_t strides[8];
  void* pointer;
  OK(accrt_session_state(session, name, out_tensor, shape, strides));
  OK(accrt_stream_synchronize(accrt_session_stream(session), ACCRT_TIMEOUT_INFINITE,
                              ACCRT_WAIT_BLOCK));
  OK(accrt_buffer_map(out_tensor->buffer, out_tensor->offset_bytes, 8, &pointer));
  OK(accrt_buffer_unmap(out_tensor->buffer));
  return pointer;
}

static accrt_session_t* open_session(fixture_t* f, int64_t cap, const char* label) {
  const accrt_symbol_value_t symbol = {"cap", cap};
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.symbols = &symbol;
  options.symbol_count = 1;
  options.symbol_size_bytes = sizeof symbol;
  options.label = label;
  accrt_session_t* session;
  OK(accrt_session_create(f->program, &options, &session));
  return session;
}

static float append(accrt_session_t* session, int64_t position, float value) {
  _Alignas(16) float v[4] = {value, value, value, value};
  accrt_call_t* call = make_call(session, "append");
  OK(set_vector(call, "v", v, F32, 4));
  OK(set_number(call, "position", position));
  OK(run(call));
  const float total = *(const float*)result_data(call, 0);
  accrt_call_release(call);
  return total;
}

static int64_t count(accrt_session_t* session, int64_t digit) {
  accrt_call_t* call = make_call(session, "count");
  OK(set_number(call, "digit", digit));
  OK(run(call));
  const int64_t value = *(const int64_t*)result_data(call, 0);
  accrt_call_release(call);
  return value;
}

static void sizes_and_fills_state(void** state) {
  FIXTURE(f);
  accrt_session_t* session = open_session(f, 10, "small");
  accrt_tensor_t tensor;
  int64_t shape[8];
  const float* cache = state_data(session, "cache", &tensor, shape);
  assert_int_equal(tensor.rank, 2);
  assert_int_equal(tensor.dtype, F32);
  assert_int_equal(shape[0], 10);
  assert_int_equal(shape[1], 4);
  for (int i = 0; i < 40; ++i)
    assert_true(cache[i] == 1.0f);
  assert_int_equal(*(const int64_t*)state_data(session, "counter", &tensor, shape), 7);
  assert_true(append(session, 2, 5.0f) == 4 + 4 + 20.0f);
  assert_true(append(session, 9, 0.0f) == 7 * 4 + 4 + 20.0f);
  accrt_call_t* call = make_call(session, "append");
  _Alignas(16) float v[4] = {0};
  OK(set_vector(call, "v", v, F32, 4));
  OK(set_number(call, "position", 10));
  FAILS(run(call), OUT_OF_RANGE, "do not fit 'cache' of 160 bytes");
  accrt_call_release(call);
  accrt_session_release(session);
}

static void refuses_bad_sessions(void** state) {
  FIXTURE(f);
  accrt_session_t* session;
  accrt_symbol_value_t symbol = {"cap", 65};
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.symbols = &symbol;
  options.symbol_count = 1;
  options.symbol_size_bytes = sizeof symbol;
  FAILS(accrt_session_create(f->program, &options, &session), SHAPE_MISMATCH,
        "symbol 'cap': got 65, allowed: 1 to 64");
  symbol = (accrt_symbol_value_t){"n", 1};
  FAILS(accrt_session_create(f->program, &options, &session), NOT_FOUND, "no session symbol 'n'");
  symbol = (accrt_symbol_value_t){"cup", 1};
  FAILS(accrt_session_create(f->program, &options, &session), NOT_FOUND, "did you mean 'cap'");
  symbol.name = NULL;
  FAILS(accrt_session_create(f->program, &options, &session), INVALID_ARGUMENT, "NULL");
  const accrt_symbol_value_t twice[2] = {{"cap", 8}, {"cap", 8}};
  options.symbols = twice;
  options.symbol_count = 2;
  FAILS(accrt_session_create(f->program, &options, &session), INVALID_ARGUMENT,
        "symbol 'cap' is given twice");
  FAILS(accrt_session_clone(f->session, &options, &session), INVALID_ARGUMENT,
        "symbol 'cap' is given twice");
  options.symbol_size_bytes = 8;
  FAILS(accrt_session_create(f->program, &options, &session), INVALID_ARGUMENT,
        "accrt_symbol_value_t");
  options.symbol_count = 0;
  options.flags = 1;
  FAILS(accrt_session_create(f->program, &options, &session), INVALID_ARGUMENT, "flags");
  FAILS(accrt_session_create(NULL, NULL, &session), INVALID_ARGUMENT, "program");
  FAILS(accrt_session_create(f->program, NULL, NULL), INVALID_ARGUMENT, "out_session");
  accrt_pool_options_t pool_options = ACCRT_POOL_OPTIONS_INIT;
  pool_options.limit_bytes = 256;
  accrt_pool_t* pool;
  OK(accrt_pool_create(f->device, &pool_options, &pool));
  options = (accrt_session_options_t)ACCRT_SESSION_OPTIONS_INIT;
  options.pool = pool;
  options.label = "tiny";
  FAILS(accrt_session_create(f->program, &options, &session), OUT_OF_DEVICE_MEMORY,
        "state 'cache'");
  assert_null(session);
  accrt_pool_release(pool);
}

/* A state may be as large as a bundle likes: what it takes is charged before it is there. */
static void creation_has_a_budget(void** state) {
  FIXTURE(f);
  accrt_session_t *session, *clone;
  accrt_budget_t small = ACCRT_BUDGET_INIT, plans = ACCRT_BUDGET_INIT;
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  /* Each allocation is charged, and the states: a limit that is too small fails as one. */
  options.budget = &small;
  accrt_status_t status = ACCRT_ERROR_BUDGET;
  for (uint64_t limit = 256; status != ACCRT_OK; limit += 256) {
    assert_true(limit < 1 << 20);
    small.max_memory_bytes = limit;
    status = accrt_session_create(f->program, &options, &session);
    if (status == ACCRT_OK)
      break;
    FAILS(status, BUDGET, "making a session of");
    assert_null(session);
  }
  small.max_memory_bytes = 64 * 4 * sizeof(float); /* the largest 'cache' alone */
  FAILS(accrt_session_clone(session, &options, &clone), BUDGET, "bytes of host memory");
  assert_null(clone);
  accrt_session_release(session);
  /* A budget of its own, beside that of the plans. */
  plans.max_memory_bytes = 1;
  /* Not the limit that was enough above: how many records of work the next session can take again
   * depends on what the device's thread has ended by now. */
  small.max_memory_bytes = 1 << 20;
  options.budget = &plans;
  FAILS(accrt_session_create(f->program, &options, &session), BUDGET, "limit of 1");
  options.creation_budget = &small;
  OK(accrt_session_create(f->program, &options, &session));
  FAILS(accrt_session_warmup(session, "append", NULL, 0, 0), BUDGET, "planning 'append'");
  accrt_session_release(session);
  const uint32_t cancel = 1;
  small = (accrt_budget_t)ACCRT_BUDGET_INIT;
  small.cancel = &cancel;
  FAILS(accrt_session_create(f->program, &options, &session), CANCELLED, "making a session of");
  small.cancel = NULL;
  small.timeout_ns = 1;
  FAILS(accrt_session_create(f->program, &options, &session), TIMEOUT, "limit of 1 ns");
  small.reserved = 1;
  FAILS(accrt_session_create(f->program, &options, &session), INVALID_ARGUMENT, "accrt_budget_t");
}

static void sessions_do_not_see_one_another(void** state) {
  FIXTURE(f);
  accrt_session_t* a = open_session(f, 8, NULL);
  accrt_session_t* b = open_session(f, 8, NULL);
  for (int64_t i = 1; i < 5; ++i) {
    (void)count(a, i);
    (void)count(b, 9 - i);
  }
  assert_int_equal(count(a, 5), 712345);
  assert_int_equal(count(b, 4), 787654);
  assert_int_equal(count(f->session, 1), 71);
  accrt_session_release(a);
  accrt_session_release(b);
}

static void exports_and_imports_state(void** state) {
  FIXTURE(f);
  int64_t shape[8];
  int64_t strides[8];
  accrt_tensor_t tensor;
  FAILS(accrt_session_state(f->session, "cachee", &tensor, shape, strides), NOT_FOUND,
        "did you mean 'cache'");
  FAILS(accrt_session_state(f->session, NULL, &tensor, shape, strides), INVALID_ARGUMENT, "NULL");
  FAILS(accrt_session_state(f->session, "cache", NULL, shape, strides), INVALID_ARGUMENT, "NULL");
  OK(accrt_session_state(f->session, "counter", &tensor, shape, strides));
  const int64_t value = 42;
  const accrt_place_t source = {NULL, (void*)(uintptr_t)&value, 0};
  const accrt_place_t target = {tensor.buffer, NULL, tensor.offset_bytes};
  OK(accrt_stream_copy(accrt_session_stream(f->session), &source, &target, 8));
  assert_int_equal(count(f->session, 1), 421);
}

static void binds_state_from_outside(void** state) {
  FIXTURE(f);
  accrt_pool_t* pool;
  OK(accrt_device_pool(f->device, ACCRT_MEMORY_DEVICE, &pool));
  accrt_buffer_t* buffer;
  OK(accrt_buffer_create(pool, 264, NULL, &buffer));
  void* pointer;
  OK(accrt_buffer_map(buffer, 0, 264, &pointer));
  *(int64_t*)((char*)pointer + 256) = 1000;
  assert_int_equal(count(f->session, 3), 73);
  FAILS(accrt_session_bind_state(f->session, "counter", buffer, 260), OUT_OF_RANGE,
        "needs 8 bytes, the buffer has 4");
  FAILS(accrt_session_bind_state(f->session, "counter", buffer, 8), INVALID_ARGUMENT,
        "not a multiple of 256");
  FAILS(accrt_session_bind_state(f->session, "nothing", buffer, 0), NOT_FOUND, "nothing");
  FAILS(accrt_session_bind_state(NULL, "counter", buffer, 0), INVALID_ARGUMENT, "session");
  OK(accrt_session_bind_state(f->session, "counter", buffer, 256));
  accrt_buffer_t* borrowed = buffer;
  accrt_buffer_release(buffer); /* the session keeps it */
  assert_int_equal(count(f->session, 5), 10005);
  accrt_tensor_t tensor;
  int64_t shape[8];
  assert_int_equal(*(const int64_t*)state_data(f->session, "counter", &tensor, shape), 10005);
  assert_ptr_equal(tensor.buffer, borrowed);
  OK(accrt_session_reset(f->session));
  assert_int_equal(count(f->session, 1), 71);
  OK(accrt_session_bind_state(f->session, "counter", NULL, 0));
  assert_int_equal(count(f->session, 2), 72);
}

static void clones(void** state) {
  FIXTURE(f);
  accrt_session_t* original = open_session(f, 8, "original");
  (void)append(original, 1, 3.0f);
  (void)count(original, 4);
  accrt_session_t* clone;
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  accrt_symbol_value_t symbol = {"cap", 9};
  options.symbols = &symbol;
  options.symbol_count = 1;
  options.symbol_size_bytes = sizeof symbol;
  FAILS(accrt_session_clone(original, &options, &clone), SHAPE_MISMATCH,
        "the session has 8, the clone cannot have 9");
  symbol.name = "cop";
  FAILS(accrt_session_clone(original, &options, &clone), NOT_FOUND, "cop");
  FAILS(accrt_session_clone(NULL, &options, &clone), INVALID_ARGUMENT, "session");
  FAILS(accrt_session_clone(original, &options, NULL), INVALID_ARGUMENT, "out_session");
  symbol = (accrt_symbol_value_t){"cap", 8};
  OK(accrt_session_clone(original, &options, &clone));
  (void)count(original, 5);
  assert_int_equal(count(clone, 6), 746);
  assert_int_equal(count(original, 7), 7457);
  assert_true(append(clone, 2, 0.0f) == 4 + 12.0f);
  accrt_session_t* other;
  OK(accrt_session_clone(clone, NULL, &other));
  options = (accrt_session_options_t)ACCRT_SESSION_OPTIONS_INIT;
  options.stream = accrt_session_stream(clone);
  accrt_session_t* same_stream;
  OK(accrt_session_clone(clone, &options, &same_stream));
  accrt_session_release(clone);
  assert_int_equal(count(other, 1), 7461);
  assert_int_equal(count(same_stream, 2), 7462);
  accrt_session_release(same_stream);
  accrt_session_release(other);
  accrt_session_release(original);
}

/* The counter, without waiting for any stream. */
static int64_t counter_now(accrt_session_t* session) {
  accrt_tensor_t tensor;
  int64_t shape[8];
  int64_t strides[8];
  void* pointer;
  OK(accrt_session_state(session, "counter", &tensor, shape, strides));
  OK(accrt_buffer_map(tensor.buffer, tensor.offset_bytes, 8, &pointer));
  const int64_t value = *(const int64_t*)pointer;
  OK(accrt_buffer_unmap(tensor.buffer));
  return value;
}

static void state_is_there_when_a_function_returns(void** state) {
  FIXTURE(f);
  for (int round = 0; round < 100; ++round) {
    accrt_session_t* session = open_session(f, 8, NULL);
    assert_int_equal(counter_now(session), 7);
    accrt_call_t* call = make_call(session, "count");
    OK(set_number(call, "digit", 3));
    OK(accrt_call_submit(call, NULL, 0, NULL, 0));
    accrt_session_t* clone;
    OK(accrt_session_clone(session, NULL, &clone));
    assert_int_equal(counter_now(clone), 73);
    OK(accrt_call_submit(call, NULL, 0, NULL, 0));
    OK(accrt_session_reset(session));
    assert_int_equal(counter_now(session), 7);
    OK(run(call));
    OK(accrt_session_bind_state(session, "counter", NULL, 0));
    assert_int_equal(counter_now(session), 7);
    accrt_call_release(call);
    accrt_session_release(clone);
    accrt_session_release(session);
  }
}

/* What fills storage that nothing uses yet waits for nothing either. */
static void new_state_does_not_wait_for_calls(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* start;
  OK(accrt_semaphore_create(f->instance, 0, &start));
  const accrt_timepoint_t wait = {start, 1};
  accrt_call_t* call = make_call(f->session, "count");
  OK(set_number(call, "digit", 3));
  OK(accrt_call_submit(call, &wait, 1, NULL, 0));
  OK(accrt_session_bind_state(f->session, "counter", NULL, 0));
  assert_int_equal(counter_now(f->session), 7);
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.stream = accrt_session_stream(f->session);
  accrt_session_t* other;
  OK(accrt_session_create(f->program, &options, &other));
  assert_int_equal(counter_now(other), 7);
  OK(accrt_semaphore_signal(start, 1));
  assert_int_equal(count(other, 1), 71);
  assert_int_equal(count(f->session, 2), 72);
  accrt_session_release(other);
  accrt_call_release(call);
  accrt_semaphore_release(start);
}

/* ---- Failure ---- */

static accrt_status_t fail_with(accrt_call_t* call, int64_t code) {
  OK(set_number(call, "code", code));
  return run(call);
}

/* The failure of a run is that of a wait for it, however it ran and whatever ran before. */
static void waits_tell_of_failed_runs(void** state) {
  FIXTURE(f);
  static const uint64_t limits_ns[] = {ACCRT_TIMEOUT_INFINITE, UINT64_C(60000000000)};
  for (size_t i = 0; i < sizeof limits_ns / sizeof limits_ns[0]; ++i) {
    accrt_call_t* call = make_call(f->session, "fail");
    for (int round = 0; round < 2; ++round) { /* in the second one a run has succeeded before */
      OK(set_number(call, "code", 13));
      FAILS(accrt_call_run(call, limits_ns[i]), KERNEL, "asked to fail");
      FAILS(accrt_call_wait(call, ACCRT_TIMEOUT_INFINITE), KERNEL, "asked to fail");
      assert_int_equal(accrt_error_current()->driver_code, 13);
      OK(accrt_session_reset(f->session));
      FAILS(accrt_call_wait(call, ACCRT_TIMEOUT_INFINITE), POISONED, NULL);
      OK(fail_with(call, 0));
      OK(accrt_call_wait(call, ACCRT_TIMEOUT_INFINITE));
    }
    accrt_call_release(call);
  }
}

static void poisons_until_reset(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "fail");
  OK(fail_with(call, 0));
  (void)count(f->session, 3);
  FAILS(fail_with(call, 12), KERNEL, "asked to fail");
  assert_int_equal(accrt_error_current()->driver_code, 12);
  FAILS(fail_with(call, 0), POISONED, "asked to fail");
  ALSO("accrt_session_reset");
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_session_error(f->session, &error));
  assert_int_equal(error.status, ACCRT_ERROR_KERNEL);
  assert_int_equal(error.driver_code, 12);
  accrt_session_t* clone;
  FAILS(accrt_session_clone(f->session, NULL, &clone), POISONED, "asked to fail");
  accrt_session_t* other = open_session(f, 4, NULL); /* of the same program: not touched */
  assert_int_equal(count(other, 1), 71);
  accrt_session_release(other);
  OK(accrt_session_reset(f->session));
  OK(accrt_session_error(f->session, &error));
  assert_int_equal(error.status, ACCRT_OK);
  OK(fail_with(call, 0));
  assert_int_equal(count(f->session, 1), 71); /* the state has its initial value */
  accrt_call_release(call);
  FAILS(accrt_session_reset(NULL), INVALID_ARGUMENT, "session");
  FAILS(accrt_session_error(NULL, &error), INVALID_ARGUMENT, "session");
  FAILS(accrt_session_error(f->session, NULL), INVALID_ARGUMENT, "accrt_error_t");
}

static void reports_failures_of_submitted_calls(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* semaphore;
  OK(accrt_semaphore_create(f->instance, 0, &semaphore));
  const accrt_timepoint_t done = {semaphore, 1};
  accrt_call_t* call = make_call(f->session, "fail");
  OK(set_number(call, "code", 3));
  OK(accrt_call_submit(call, NULL, 0, &done, 1));
  FAILS(accrt_semaphore_wait(semaphore, 1, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK), POISONED,
        "asked to fail");
  /* The completion may come a little after the semaphore. */
  while (accrt_session_check(f->session) == ACCRT_OK)
    usleep(100);
  FAILS(accrt_call_submit(call, NULL, 0, NULL, 0), POISONED, "asked to fail");
  FAILS(run(call), POISONED, NULL);
  OK(accrt_session_reset(f->session)); /* also its own stream */
  OK(set_number(call, "code", 0));
  OK(accrt_call_submit(call, NULL, 0, NULL, 0));
  OK(run(call));
  accrt_call_release(call);
  accrt_semaphore_release(semaphore);
}

static void leaves_a_given_stream_alone(void** state) {
  FIXTURE(f);
  accrt_stream_t* stream;
  OK(accrt_stream_create(f->device, NULL, &stream));
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.stream = stream;
  accrt_session_t* session;
  OK(accrt_session_create(f->program, &options, &session));
  assert_ptr_equal(accrt_session_stream(session), stream);
  assert_null(accrt_session_stream(NULL));
  accrt_call_t* call = make_call(session, "fail");
  OK(set_number(call, "code", 3));
  OK(accrt_call_submit(call, NULL, 0, NULL, 0));
  FAILS(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK), POISONED,
        "asked to fail");
  FAILS(accrt_session_reset(session), POISONED, NULL);
  OK(accrt_stream_reset(stream));
  OK(accrt_session_reset(session));
  OK(set_number(call, "code", 0));
  OK(run(call));
  accrt_call_release(call);
  accrt_session_release(session);
  accrt_stream_release(stream);
}

/* ---- Asynchronous calls ---- */

static void submits_in_order(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* start;
  accrt_semaphore_t* end;
  OK(accrt_semaphore_create(f->instance, 0, &start));
  OK(accrt_semaphore_create(f->instance, 0, &end));
  accrt_call_t* call = make_call(f->session, "count");
  int64_t y[4] = {0};
  for (int64_t i = 0; i < 4; ++i) {
    const accrt_timepoint_t wait = {start, (uint64_t)i + 1};
    const accrt_timepoint_t signal = {end, (uint64_t)i + 1};
    OK(set_number(call, "digit", i + 1));
    OK(set_vector(call, "y", &y[i], ACCRT_DTYPE_I64, 1));
    OK(accrt_call_submit(call, &wait, 1, &signal,
                         1)); /* arguments are as they were at the submit */
  }
  FAILS(accrt_semaphore_wait(end, 1, 0, ACCRT_WAIT_BLOCK), NOT_READY, NULL);
  OK(accrt_semaphore_signal(start, 2));
  OK(accrt_semaphore_wait(end, 2, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  assert_int_equal(y[1], 712);
  OK(accrt_semaphore_signal(start, 4));
  OK(accrt_semaphore_wait(end, 4, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  assert_int_equal(y[0], 71);
  assert_int_equal(y[3], 71234);
  accrt_call_release(call);
  accrt_semaphore_release(start);
  accrt_semaphore_release(end);
}

static void results_in_flight_are_new(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* start;
  OK(accrt_semaphore_create(f->instance, 0, &start));
  const accrt_timepoint_t wait = {start, 1};
  accrt_call_t* call = make_call(f->session, "iota");
  accrt_buffer_t* kept[4];
  int64_t shape[8];
  int64_t strides[8];
  accrt_tensor_t tensor;
  for (int64_t i = 0; i < 4; ++i) {
    OK(set_number(call, "position", i * 10));
    OK(accrt_call_submit(call, &wait, i == 0, NULL, 0));
    OK(accrt_call_result(call, 0, &tensor, shape, strides));
    kept[i] = accrt_buffer_retain(tensor.buffer);
    for (int64_t k = 0; k < i; ++k)
      assert_ptr_not_equal(kept[k], kept[i]);
  }
  OK(accrt_semaphore_signal(start, 1));
  OK(accrt_stream_synchronize(accrt_session_stream(f->session), ACCRT_TIMEOUT_INFINITE,
                              ACCRT_WAIT_BLOCK));
  for (int64_t i = 0; i < 4; ++i) {
    void* pointer;
    OK(accrt_buffer_map(kept[i], 0, 32, &pointer));
    assert_int_equal(((const int64_t*)pointer)[3], i * 10 + 3);
    OK(accrt_buffer_unmap(kept[i]));
    accrt_buffer_release(kept[i]);
  }
  accrt_call_release(call);
  accrt_semaphore_release(start);
}

static void times_out_and_goes_on(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* start;
  OK(accrt_semaphore_create(f->instance, 0, &start));
  const accrt_timepoint_t wait = {start, 1};
  accrt_call_t* call = make_call(f->session, "count");
  OK(set_number(call, "digit", 1));
  OK(accrt_call_submit(call, &wait, 1, NULL, 0));
  FAILS(accrt_call_run(call, 1000000), TIMEOUT,
        "function 'count' was not complete after 1000000 ns");
  FAILS(accrt_call_run(call, 0), TIMEOUT, "it still runs");
  OK(accrt_semaphore_signal(start, 1));
  OK(run(call));
  assert_int_equal(*(const int64_t*)result_data(call, 0), 71111);
  accrt_call_release(call);
  accrt_semaphore_release(start);
}

static void refuses_bad_timepoints(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "empty");
  const accrt_timepoint_t none = {NULL, 1};
  FAILS(accrt_call_submit(call, NULL, 1, NULL, 0), INVALID_ARGUMENT, "waits is NULL");
  FAILS(accrt_call_submit(call, NULL, 0, &none, 1), INVALID_ARGUMENT,
        "signals[0].semaphore is NULL");
  FAILS(accrt_call_submit(NULL, NULL, 0, NULL, 0), INVALID_ARGUMENT, "call is NULL");
  accrt_semaphore_t* failed;
  OK(accrt_semaphore_create(f->instance, 0, &failed));
  OK(accrt_semaphore_fail(failed, ACCRT_ERROR_CANCELLED, "called off"));
  const accrt_timepoint_t wait = {failed, 1};
  FAILS(accrt_call_submit(call, &wait, 1, NULL, 0), POISONED, "called off");
  FAILS(accrt_call_submit(call, NULL, 0, &wait, 1), POISONED,
        "called off"); /* cannot be signalled either */
  OK(run(call));       /* nothing was enqueued */
  accrt_semaphore_release(failed);
  accrt_call_release(call);
}

static void cancels(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* start;
  OK(accrt_semaphore_create(f->instance, 0, &start));
  const accrt_timepoint_t wait = {start, 1};
  accrt_call_t* call = make_call(f->session, "count");
  OK(set_number(call, "digit", 1));
  OK(accrt_call_submit(call, &wait, 1, NULL, 0));
  OK(accrt_semaphore_fail(start, ACCRT_ERROR_CANCELLED, "called off"));
  while (accrt_session_check(f->session) == ACCRT_OK)
    usleep(100);
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_session_error(f->session, &error));
  assert_non_null(strstr(error.message, "called off"));
  OK(accrt_session_reset(f->session));
  OK(run(call));
  assert_int_equal(*(const int64_t*)result_data(call, 0), 71);
  accrt_call_release(call);
  accrt_semaphore_release(start);
}

static void swaps_weights_under_calls_in_flight(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* start;
  OK(accrt_semaphore_create(f->instance, 0, &start));
  const accrt_timepoint_t wait = {start, 1};
  accrt_call_t* call = make_call(f->session, "scale_weight");
  _Alignas(16) float x[8] = {0};
  _Alignas(16) float y[2][8] = {{0}};
  float fresh[8] = {9, 9, 9, 9, 9, 9, 9, 9};
  const int64_t n = 8;
  const accrt_weight_t weight = {"weight", tensor_of(fresh, F32, 1, &n)};
  OK(set_vector(call, "x", x, F32, 8));
  for (int round = 0; round < 3; ++round) {
    OK(set_vector(call, "y", y[0], F32, 8));
    OK(accrt_call_submit(call, &wait, round == 0, NULL, 0));
    for (int i = 0; i < 8; ++i)
      fresh[i] = (float)round;
    OK(accrt_program_swap_weights(f->program, &weight, 1, sizeof weight));
    OK(set_vector(call, "y", y[1], F32, 8));
    OK(accrt_call_submit(call, NULL, 0, NULL, 0));
    if (round == 0)
      OK(accrt_semaphore_signal(start, 1));
    OK(accrt_stream_synchronize(accrt_session_stream(f->session), ACCRT_TIMEOUT_INFINITE,
                                ACCRT_WAIT_BLOCK));
    for (int i = 0; i < 8; ++i) {
      assert_true(y[0][i] == (round == 0 ? (float)i : (float)(round - 1)));
      assert_true(y[1][i] == (float)round);
    }
  }
  accrt_call_release(call);
  accrt_semaphore_release(start);
}

static void grows_the_arena_under_calls_in_flight(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* start;
  OK(accrt_semaphore_create(f->instance, 0, &start));
  const accrt_timepoint_t wait = {start, 1};
  _Alignas(16) static float x[400];
  _Alignas(16) static float y[3][400];
  for (int i = 0; i < 400; ++i)
    x[i] = (float)i;
  const int64_t sizes[3] = {4, 50, 100};
  accrt_call_t* call = make_call(f->session, "bucket");
  for (int i = 0; i < 3; ++i) {
    OK(set_matrix(call, "x", x, F32, sizes[i], 4));
    OK(set_matrix(call, "y", y[i], F32, sizes[i], 4));
    OK(accrt_call_submit(call, &wait, i == 0, NULL, 0));
  }
  accrt_call_release(call);
  OK(accrt_semaphore_signal(start, 1));
  OK(accrt_stream_synchronize(accrt_session_stream(f->session), ACCRT_TIMEOUT_INFINITE,
                              ACCRT_WAIT_BLOCK));
  for (int i = 0; i < 3; ++i) {
    for (int64_t k = 0; k < sizes[i] * 4; ++k)
      assert_true(y[i][k] == 2.0f * (float)k + 1.0f);
  }
  accrt_semaphore_release(start);
}

/* ---- End of life ---- */

static void releases_with_calls_in_flight(void** state) {
  FIXTURE(f);
  accrt_semaphore_t* start;
  accrt_semaphore_t* end;
  OK(accrt_semaphore_create(f->instance, 0, &start));
  OK(accrt_semaphore_create(f->instance, 0, &end));
  const accrt_timepoint_t wait = {start, 1};
  accrt_session_t* session = open_session(f, 8, "short-lived");
  accrt_call_t* call = make_call(session, "count");
  OK(set_number(call, "digit", 1));
  int64_t y = 0;
  OK(set_vector(call, "y", &y, ACCRT_DTYPE_I64, 1));
  for (uint64_t i = 0; i < 5; ++i) {
    const accrt_timepoint_t signal = {end, i + 1};
    OK(accrt_call_submit(call, &wait, i == 0, &signal, 1));
  }
  accrt_call_release(call);
  accrt_session_release(session);
  OK(accrt_semaphore_signal(start, 1));
  OK(accrt_semaphore_wait(end, 5, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  assert_int_equal(y, 711111);
  accrt_semaphore_release(start);
  accrt_semaphore_release(end);
}

static void releases_everything_with_a_call_in_flight(void** state) {
  if (!have_bundles())
    skip();
  (void)state;
  for (int round = 0; round < 20; ++round) {
    fixture_t* f = open_fixture("2");
    accrt_semaphore_t* start;
    OK(accrt_semaphore_create(f->instance, 0, &start));
    const accrt_timepoint_t wait = {start, 1};
    accrt_call_t* call = make_call(f->session, "count");
    OK(set_number(call, "digit", 1));
    OK(accrt_call_submit(call, &wait, 1, NULL, 0));
    accrt_call_release(call);
    accrt_session_release(f->session);
    accrt_program_release(f->program);
    accrt_bundle_release(f->bundle);
    accrt_device_release(f->device);
    accrt_instance_release(f->instance);
    OK(accrt_semaphore_signal(start, 1));
    accrt_semaphore_release(start); /* the last reference: waits for the call, then frees all */
    assert_int_equal(atomic_load(&f->watch.live), 0);
    free(f);
  }
}

/* The call waits for what never comes, on a device with and without threads: the end of the
 * instance drops it. */
static void drops_calls_that_nobody_starts(void** state) {
  if (!have_bundles())
    skip();
  (void)state;
  for (int round = 0; round < 20; ++round) {
    fixture_t* f = open_fixture(round % 2 == 0 ? "2" : "0");
    accrt_semaphore_t* start;
    OK(accrt_semaphore_create(f->instance, 0, &start));
    const accrt_timepoint_t wait = {start, 1};
    accrt_session_t* other = open_session(f, 8, "other"); /* two keep the program */
    accrt_session_t* sessions[] = {f->session, other};
    for (int i = 0; i < 2; ++i) {
      accrt_call_t* call = make_call(sessions[i], "count");
      OK(set_number(call, "digit", 1));
      OK(accrt_call_submit(call, &wait, 1, NULL, 0));
      accrt_call_release(call);
      accrt_session_release(sessions[i]);
    }
    accrt_semaphore_release(start);
    accrt_instance_release(f->instance);
    accrt_device_release(f->device);
    accrt_bundle_release(f->bundle);
    accrt_program_release(f->program);
    assert_int_equal(atomic_load(&f->watch.live), 0);
    free(f);
  }
}

typedef struct last_use {
  fixture_t* fixture;
  atomic_int over;
} last_use_t;

/* On the runtime's own thread, which cannot wait for itself. */
static void release_instance(void* user, accrt_status_t status) {
  (void)status;
  last_use_t* last = user;
  accrt_instance_release(last->fixture->instance);
  atomic_store(&last->over, 1);
}

static void releases_the_last_reference_in_a_notification(void** state) {
  if (!have_bundles())
    skip();
  (void)state;
  for (int round = 0; round < 20; ++round) {
    last_use_t last = {open_fixture("2"), 0};
    fixture_t* f = last.fixture;
    accrt_semaphore_t* start;
    OK(accrt_semaphore_create(f->instance, 0, &start));
    const accrt_timepoint_t wait = {start, 1};
    accrt_call_t* call = make_call(f->session, "count");
    OK(set_number(call, "digit", 1));
    OK(accrt_call_submit(call, &wait, 1, NULL, 0));
    accrt_call_release(call);
    accrt_stream_t* stream;
    OK(accrt_stream_create(f->device, NULL, &stream));
    accrt_session_release(f->session);
    accrt_program_release(f->program);
    accrt_bundle_release(f->bundle);
    accrt_device_release(f->device);
    accrt_semaphore_release(start);
    OK(accrt_stream_notify(stream, release_instance, &last));
    accrt_stream_release(stream);
    for (int i = 0; i < 5000 && (atomic_load(&last.over) == 0 || atomic_load(&f->watch.live) != 0);
         ++i)
      usleep(1000);
    assert_int_equal(atomic_load(&last.over), 1);
    assert_int_equal(atomic_load(&f->watch.live), 0);
    usleep(1000); /* the thread leaves the allocator's record */
    free(f);
  }
}

/* ---- Traces ---- */

typedef struct traced {
  atomic_int calls;
  atomic_int failed;
  atomic_int named;
} traced_t;

static void note_event(void* self, const accrt_trace_event_t* event) {
  traced_t* traced = self;
  if (event->kind != ACCRT_TRACE_CALL)
    return;
  atomic_fetch_add(&traced->calls, 1);
  atomic_fetch_add(&traced->failed, event->status != ACCRT_OK);
  atomic_fetch_add(&traced->named, strcmp(event->name, "fail") == 0 &&
                                       event->end_ns >= event->begin_ns && event->begin_ns > 0);
}

/* A program of an instance that traces; without a session. */
static fixture_t open_traced(const accrt_trace_sink_t* sink) {
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.trace_sink = sink;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  fixture_t f = {0};
  OK(accrt_instance_create(&options, &f.instance));
  OK(accrt_instance_device_by_name(f.instance, "host", &f.device));
  f.bundle = open_bundle(f.instance, "program");
  OK(accrt_program_create(f.device, f.bundle, NULL, &f.program));
  return f;
}

static void traces_calls(void** state) {
  if (!have_bundles())
    skip();
  (void)state;
  traced_t traced = {0};
  const accrt_trace_sink_t sink = {&traced, note_event};
  fixture_t f = open_traced(&sink);
  OK(accrt_session_create(f.program, NULL, &f.session));
  accrt_call_t* call = make_call(f.session, "fail");
  OK(set_number(call, "code", 0));
  OK(run(call));
  OK(run(call)); /* on the caller */
  OK(accrt_call_submit(call, NULL, 0, NULL, 0));
  OK(accrt_stream_synchronize(accrt_session_stream(f.session), ACCRT_TIMEOUT_INFINITE,
                              ACCRT_WAIT_BLOCK));
  OK(set_number(call, "code", 2));
  FAILS(run(call), KERNEL, NULL);
  accrt_call_release(call);
  accrt_session_release(f.session);
  accrt_program_release(f.program);
  accrt_bundle_release(f.bundle);
  accrt_device_release(f.device);
  accrt_instance_release(f.instance);
  assert_int_equal(atomic_load(&traced.calls), 4);
  assert_int_equal(atomic_load(&traced.named), 4);
  assert_int_equal(atomic_load(&traced.failed), 1);
}

static void note_status(void* self, const accrt_trace_event_t* event) {
  if (event->kind == ACCRT_TRACE_CALL)
    atomic_store((_Atomic accrt_status_t*)self, event->status);
}

/* A call in pieces whose first piece fails: the trace says why, as the record does. */
static void traces_divided_calls(void** state) {
  if (!have_bundles())
    skip();
  (void)state;
  _Atomic accrt_status_t seen = ACCRT_OK;
  const accrt_trace_sink_t sink = {&seen, note_status};
  fixture_t f = open_traced(&sink);
  accrt_stream_options_t pieces = ACCRT_STREAM_OPTIONS_INIT;
  pieces.ahead = 1;
  pieces.commands_per_piece = 1;
  accrt_stream_t* stream;
  OK(accrt_stream_create(f.device, &pieces, &stream));
  accrt_session_options_t wanted = ACCRT_SESSION_OPTIONS_INIT;
  wanted.stream = stream;
  OK(accrt_session_create(f.program, &wanted, &f.session));
  accrt_call_t* call = make_call(f.session, "fail_early");
  OK(set_number(call, "code", 2));
  accrt_semaphore_t* gate;
  OK(accrt_semaphore_create(f.instance, 0, &gate));
  const accrt_timepoint_t wait = {gate, 1};
  OK(accrt_call_submit(call, &wait, 1, NULL, 0));
  OK(accrt_semaphore_signal(gate, 1));
  FAILS(accrt_call_wait(call, ACCRT_TIMEOUT_INFINITE), KERNEL, NULL);
  assert_int_equal(atomic_load(&seen), ACCRT_ERROR_KERNEL);
  OK(accrt_stream_reset(stream));
  OK(accrt_session_reset(f.session));
  accrt_call_release(call);
  accrt_semaphore_release(gate);
  accrt_session_release(f.session);
  accrt_stream_release(stream);
  accrt_program_release(f.program);
  accrt_bundle_release(f.bundle);
  accrt_instance_release(f.instance);
}

static void works_without_threads(void** state) {
  if (!have_bundles())
    skip();
  (void)state;
  fixture_t* f = open_fixture("0");
  assert_int_equal(count(f->session, 1), 71);
  accrt_call_t* call = make_call(f->session, "count");
  OK(set_number(call, "digit", 2));
  OK(accrt_call_submit(call, NULL, 0, NULL, 0));
  OK(accrt_call_submit(call, NULL, 0, NULL, 0));
  OK(run(call));
  assert_int_equal(*(const int64_t*)result_data(call, 0), 71222);
  OK(accrt_call_submit(call, NULL, 0, NULL, 0)); /* in flight at the end, and nobody waits */
  accrt_call_release(call);
  close_fixture(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FIXTURE_TEST(sizes_and_fills_state),
      FIXTURE_TEST(refuses_bad_sessions),
      FIXTURE_TEST(creation_has_a_budget),
      FIXTURE_TEST(sessions_do_not_see_one_another),
      FIXTURE_TEST(exports_and_imports_state),
      FIXTURE_TEST(binds_state_from_outside),
      FIXTURE_TEST(clones),
      FIXTURE_TEST(state_is_there_when_a_function_returns),
      FIXTURE_TEST(new_state_does_not_wait_for_calls),
      FIXTURE_TEST(waits_tell_of_failed_runs),
      FIXTURE_TEST(poisons_until_reset),
      FIXTURE_TEST(reports_failures_of_submitted_calls),
      FIXTURE_TEST(leaves_a_given_stream_alone),
      FIXTURE_TEST(submits_in_order),
      FIXTURE_TEST(results_in_flight_are_new),
      FIXTURE_TEST(times_out_and_goes_on),
      FIXTURE_TEST(refuses_bad_timepoints),
      FIXTURE_TEST(cancels),
      FIXTURE_TEST(swaps_weights_under_calls_in_flight),
      FIXTURE_TEST(grows_the_arena_under_calls_in_flight),
      FIXTURE_TEST(releases_with_calls_in_flight),
      cmocka_unit_test(releases_everything_with_a_call_in_flight),
      cmocka_unit_test(drops_calls_that_nobody_starts),
      cmocka_unit_test(releases_the_last_reference_in_a_notification),
      cmocka_unit_test(traces_calls),
      cmocka_unit_test(traces_divided_calls),
      cmocka_unit_test(works_without_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
