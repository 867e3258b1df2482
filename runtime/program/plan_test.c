/* runtime/program/plan_test.c - plans: order of commands, loops, branches, calls, checks in each
 * call, choice of variants. */
#include "runtime/program/testing.h"

#define F32 ACCRT_DTYPE_F32

static int64_t number(accrt_call_t* call, uint32_t result) {
  return *(const int64_t*)result_data(call, result);
}

/* ---- Order ---- */

static void keeps_order(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "order");
  const int64_t expected[] = {146, 1246, 123546, 1234546};
  for (int64_t rounds = 0; rounds < 4; ++rounds) {
    OK(set_number(call, "rounds", rounds));
    for (int i = 0; i < 20; ++i) {
      OK(run(call));
      assert_int_equal(number(call, 0), expected[rounds]);
    }
  }
  accrt_call_release(call);
}

/* Checks the predecessors in the flat list of a plan. */
static void flattens_to_a_chain(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "order");
  OK(set_number(call, "rounds", 2));
  OK(run(call));
  const accrt_plan_t* plan = call->plan;
  /* fill, 1, 2, 3, 5, 4, marker, 6: no command is added, and each follows one other. The branch
   * that is not taken is replaced by its predecessors: 6 follows the barrier behind 4, in parallel
   * with the marker. */
  const uint32_t expected[8] = {0, 0, 1, 2, 3, 4, 5, 5};
  assert_int_equal(plan->command_count, 8);
  for (uint32_t i = 0; i < plan->command_count; ++i) {
    assert_int_equal(plan->commands[i].predecessor_count, i == 0 ? 0 : 1);
    if (i > 0)
      assert_int_equal(plan->commands[i].predecessors[0], expected[i]);
  }
  assert_int_equal(plan->binding_count, 1);
  assert_int_equal(plan->node_count, 0);
  accrt_call_release(call);
}

static void runs_callees(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "calls");
  for (int64_t position = 0; position < 9; ++position) {
    OK(set_number(call, "position", position));
    OK(run(call));
    const int64_t* y = result_data(call, 0);
    assert_int_equal(y[0], position * 1000 + 123);
    assert_int_equal(y[1], position + 1);
  }
  assert_int_equal(f->session->plan_count, 1);
  assert_int_equal(call->plan->scalar_count, 2); /* position, position + 1 */
  assert_int_equal(call->plan->arena_bytes, 256 + 64);
  accrt_call_release(call);
  call = make_call(f->session, "short_call");
  OK(set_number(call, "position", 0));
  OK(run(call));
  OK(set_number(call, "position", 1));
  FAILS(run(call), OUT_OF_RANGE,
        "argument of a call: 8 bytes at offset 0 do not fit 'io' of 4 bytes");
  ALSO("function 'short_call'");
  accrt_call_release(call);
}

static void limits_unrolling(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "order");
  OK(set_number(call, "rounds", 1000));
  OK(run(call));
  OK(set_number(call, "rounds", INT64_C(1) << 40));
  FAILS(run(call), OUT_OF_RANGE, "function 'order': command 2");
  ALSO("count is 1099511627776, allowed: 0 to 262144");
  OK(set_number(call, "rounds", INT64_C(1) << 18));
  FAILS(run(call), OUT_OF_RANGE, "unroll to more than 262144 commands");
  OK(set_number(call, "rounds", 1));
  OK(run(call));
  assert_int_equal(number(call, 0), 1246);
  accrt_call_release(call);
}

static void zeroes_workspaces(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "scratch");
  for (int i = 0; i < 3; ++i) {
    OK(run(call));
    const int64_t* y = result_data(call, 0);
    assert_int_equal(y[0], 0);
    assert_int_equal(y[1], 0);
  }
  accrt_call_release(call);
}

/* ---- Checks at each call ---- */

static void fails_at(accrt_call_t* call, int64_t position, accrt_status_t status,
                     const char* text) {
  OK(set_number(call, "position", position));
  require_status(run(call), status, text, "run", (int)position);
}

static void checks_ranges_at_each_call(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "spread");
  OK(set_number(call, "position", 1));
  OK(run(call));
  fails_at(call, 0, ACCRT_ERROR_OUT_OF_RANGE,
           "target: 16 bytes at offset -16 do not fit 'cache' of 1024 bytes");
  ALSO("function 'spread', command 0 'copy' of its plan");
  OK(set_number(call, "position", 63));
  OK(run(call));
  accrt_call_release(call);

  call = make_call(f->session, "overlap");
  fails_at(call, 3, ACCRT_ERROR_ALIASED,
           "source and target overlap in 'cache': 32 bytes at offset 0 and 32 bytes at offset 24");
  OK(set_number(call, "position", 4));
  OK(run(call));
  accrt_call_release(call);

  call = make_call(f->session, "rows");
  fails_at(call, 1, ACCRT_ERROR_OUT_OF_RANGE,
           "target: rows of 8 bytes overlap in 'transient memory': strides 4 and 0 bytes");
  ALSO("function 'rows', command 0 'onto' of its plan");
  OK(set_number(call, "position", 2));
  OK(run(call));
  accrt_call_release(call);
  call = make_call(f->session, "planes");
  fails_at(call, 1, ACCRT_ERROR_OUT_OF_RANGE, "strides 8 and 8 bytes");
  OK(set_number(call, "position", 0));
  FAILS(run(call), OUT_OF_RANGE, "strides 8 and 0 bytes");
  OK(set_number(call, "position", 2));
  OK(run(call));
  accrt_call_release(call);
  call = make_call(f->session, "onto");
  fails_at(call, 2, ACCRT_ERROR_OUT_OF_RANGE, "rows of 8 bytes overlap");
  OK(set_number(call, "position", 1));
  OK(run(call));
  OK(set_number(call, "position", 0));
  OK(run(call));
  accrt_call_release(call);

  call = make_call(f->session, "grid");
  fails_at(call, 4, ACCRT_ERROR_OUT_OF_RANGE, "grid x is -1, allowed: 0 to 4294967295");
  OK(set_number(call, "position", 5)); /* a grid of 0 runs nothing */
  OK(run(call));
  OK(set_number(call, "position", 9));
  OK(run(call));
  accrt_call_release(call);

  call = make_call(f->session, "view");
  OK(set_number(call, "position", 3));
  OK(run(call));
  assert_true(*(const float*)result_data(call, 0) == 16.0f);
  fails_at(call, 4, ACCRT_ERROR_OUT_OF_RANGE,
           "view in its range: 80 bytes at offset 0 do not fit 'x' of 64 bytes");
  accrt_call_release(call);

  call = make_call(f->session, "fills");
  OK(set_number(call, "position", 2));
  OK(run(call));
  fails_at(call, 3, ACCRT_ERROR_OUT_OF_RANGE,
           "target 'transient memory': offset 0 and size 6 must be multiples of the pattern's 4");
  accrt_call_release(call);
}

/* The bytes that a view touches are checked at both ends, for strides of every kind. */
static void checks_what_views_reach(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "unproved_stride");
  fails_at(call, 7, ACCRT_ERROR_OUT_OF_RANGE,
           "view in its range: 208 bytes at offset 0 do not fit 'x' of 64 bytes");
  ALSO("function 'unproved_stride', command 0 'total' of its plan");
  accrt_call_release(call);

  call = make_call(f->session, "unproved_back");
  fails_at(call, 7, ACCRT_ERROR_OUT_OF_RANGE,
           "first byte that a view reaches in 'cache' is -128, at least 0 is needed");
  accrt_call_release(call);

  call = make_call(f->session, "moving_stride");
  for (int64_t position = 3; position <= 13; ++position) {
    OK(set_number(call, "position", position));
    OK(run(call));
    assert_true(*(const float*)result_data(call, 0) == 16.0f);
  }
  fails_at(call, 14, ACCRT_ERROR_OUT_OF_RANGE,
           "view in its range: 304 bytes at offset 0 do not fit 'x' of 256 bytes");
  fails_at(call, 2, ACCRT_ERROR_OUT_OF_RANGE, "in 'cache' is -32, at least 0 is needed");
  fails_at(call, 0, ACCRT_ERROR_OUT_OF_RANGE, "in 'cache' is -128, at least 0 is needed");
  accrt_call_release(call);

  call = make_call(f->session, "back");
  OK(set_number(call, "position", 3));
  OK(run(call));
  fails_at(call, 2, ACCRT_ERROR_OUT_OF_RANGE, "in 'cache' is -16, at least 0 is needed");
  accrt_call_release(call);

  call = make_call(f->session, "back_nibbles");
  fails_at(call, 4, ACCRT_ERROR_OUT_OF_RANGE, "in 'cache' is -1, at least 0 is needed");
  accrt_call_release(call);

  call = make_call(f->session, "hollow_view");
  OK(set_number(call, "position", 5));
  OK(run(call));
  accrt_call_release(call);

  call = make_call(f->session, "callee_back");
  fails_at(call, 5, ACCRT_ERROR_OUT_OF_RANGE, "in 'x' is -16, at least 0 is needed");
  ALSO("in function 'reach_back'");
  accrt_call_release(call);
}

/* Copies of 0 bytes: their conditions on dimensions are checked once, and they are not commands. */
static void checks_conditions(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "conditions");
  for (int64_t position = 0; position <= 6; ++position) {
    OK(set_number(call, "position", position));
    OK(run(call));
    assert_int_equal(number(call, 0), position);
  }
  assert_int_equal(call->plan->command_count, 1);
  assert_int_equal(call->plan->check_count, 2);
  fails_at(call, 7, ACCRT_ERROR_OUT_OF_RANGE,
           "function 'conditions': slice of 'x', dimension 1: 2 elements from 7 on do not fit in 8 "
           "(-1 would be left)");
  OK(set_number(call, "position", 6));
  OK(run(call));
  accrt_call_release(call);
}

/* A failure before launch leaves the session usable and its states unchanged. */
static void refusals_do_not_poison(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "grid");
  fails_at(call, 0, ACCRT_ERROR_OUT_OF_RANGE, "grid x");
  accrt_error_t error = ACCRT_ERROR_INIT;
  OK(accrt_session_error(f->session, &error));
  assert_int_equal(error.status, ACCRT_OK);
  accrt_call_release(call);
}

static void only_what_may_fail_is_checked(void** state) {
  FIXTURE(f);
  _Alignas(16) static float x[400];
  accrt_call_t* call = make_call(f->session, "bucket");
  OK(set_matrix(call, "x", x, F32, 20, 4));
  OK(run(call));
  assert_int_equal(call->plan->check_count, 0); /* the bucket's bounds prove all checks */
  assert_true(call->plan->scalar_count > 0);
  accrt_call_release(call);
}

/* ---- Variants ---- */

static int64_t which(fixture_t* f, const char* function, int64_t n) {
  _Alignas(16) static float x[128];
  accrt_call_t* call = make_call(f->session, function);
  OK(set_vector(call, "x", x, F32, n));
  OK(run(call));
  const int64_t image = number(call, 0);
  accrt_call_release(call);
  return image;
}

static void proves_predicates(void** state) {
  FIXTURE(f);
  assert_int_equal(which(f, "which", 16), 2);
  assert_int_equal(which(f, "which", 64), 2);
  assert_int_equal(which(f, "which", 20), 1);        /* not divisible by 8 */
  assert_int_equal(which(f, "which", 8), 1);         /* not at least 16 */
  assert_int_equal(which(f, "which", 72), 1);        /* not at most 64 */
  assert_int_equal(which(f, "which_mode", 16), 1);   /* mode is not 3 */
  assert_int_equal(which(f, "which_offset", 16), 1); /* 4 bytes off */
  assert_int_equal(which(f, "which_live", 32), 2);   /* bucket 16..64, divisor 8: proved for all */
  assert_int_equal(which(f, "which_live", 8), 1);    /* bucket 8..15 may be less than 16 */
  assert_int_equal(which(f, "which_live", 128), 1);  /* bucket 65..128 is more than 64 */
}

static void says_why_no_variant_fits(void** state) {
  FIXTURE(f);
  _Alignas(16) static float x[128];
  accrt_call_t* call = make_call(f->session, "which_none");
  OK(set_vector(call, "x", x, F32, 16));
  FAILS(
      run(call), NO_VARIANT,
      "function 'which_none': command 0 'which': no variant of kernel 'which' fits its arguments");
  ALSO("variant 0 (portable): parameter 'mode' is not proved equal to 3 (it is 10)");
  ALSO("variant 1 (portable): parameter 'mode' is not proved at most 9 (it is 10)");
  accrt_call_release(call);
}

/* ---- The golden bundle: one of everything, made by tests/golden/make.py ---- */

#define N 8
static void fill_inputs(float* x, float* bias, float* update) {
  for (int i = 0; i < 4 * N; ++i)
    x[i] = (float)i;
  for (int i = 0; i < N; ++i) {
    bias[i] = 100.0f;
    update[i] = (float)(i + 1);
  }
}

static void check_golden_state(accrt_session_t* session, int64_t position) {
  int64_t shape[8];
  int64_t strides[8];
  accrt_tensor_t tensor;
  void* pointer;
  OK(accrt_session_state(session, "cache", &tensor, shape, strides));
  OK(accrt_buffer_map(tensor.buffer, 0, 0, &pointer));
  const float* cache = pointer;
  /* The first four of the reversed weights in the position's row. Before it, two pairs of the
   * stored ones. */
  const float expected[8] = {4, 5, 6, 7, 7, 6, 5, 4};
  assert_memory_equal(cache + (position - 1) * 4, expected, sizeof expected);
  assert_true(cache[(position + 1) * 4] == 1.0f);
}

static void runs_the_golden_bundle(void** state) {
  FIXTURE(f);
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
  OK(accrt_bundle_open_path(f->instance, "tests/golden/0.1/everything.accx", NULL, &bundle));
  OK(accrt_program_create(f->device, bundle, NULL, &program));
  const accrt_symbol_value_t length = {"length", 16};
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.symbols = &length;
  options.symbol_count = 1;
  options.symbol_size_bytes = sizeof length;
  OK(accrt_session_create(program, &options, &session));
  accrt_call_t* call = make_call(session, "main");
  _Alignas(16) float x[4 * N];
  _Alignas(16) float bias[N];
  _Alignas(16) float update[N];
  _Alignas(16) float spare[N];
  OK(set_matrix(call, "x", x, F32, 4, N));
  OK(set_vector(call, "update", update, F32, N));
  OK(set_vector(call, "spare", spare, F32, N));
  for (int round = 0; round < 4; ++round) {
    fill_inputs(x, bias, update);
    OK(set_number(call, "position", 3));
    if (round % 2 == 0) {
      OK(set_vector(call, "bias", bias, F32, N));
    } else {
      OK(accrt_call_set_tensor(call, index_of(call, "bias"), NULL));
    }
    OK(run(call));
    const float* y = result_data(call, 0);
    const float* sums = result_data(call, 1);
    for (int i = 0; i < N; ++i)
      assert_true(y[i] == 2.0f * (float)i + (round % 2 == 0 ? 100.0f : 0.0f));
    for (int r = 0; r < 4; ++r) {
      float sum = 0;
      for (int i = 0; i < N; ++i)
        sum += x[r * N + i] * x[r * N + i];
      assert_true(sums[r] == sum);
    }
    assert_ptr_equal(result_data(call, 2), update);
    /* spare = update / 2; update[0] = spare[0]; spare = update / 2. */
    assert_true(update[0] == 0.5f && update[1] == 2.0f);
    assert_true(spare[0] == 0.25f && spare[1] == 1.0f);
    check_golden_state(session, 3);
  }
  accrt_call_release(call);
  accrt_session_release(session);
  accrt_program_release(program);
  accrt_bundle_release(bundle);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FIXTURE_TEST(keeps_order),
      FIXTURE_TEST(flattens_to_a_chain),
      FIXTURE_TEST(runs_callees),
      FIXTURE_TEST(limits_unrolling),
      FIXTURE_TEST(zeroes_workspaces),
      FIXTURE_TEST(checks_ranges_at_each_call),
      FIXTURE_TEST(checks_what_views_reach),
      FIXTURE_TEST(checks_conditions),
      FIXTURE_TEST(refusals_do_not_poison),
      FIXTURE_TEST(only_what_may_fail_is_checked),
      FIXTURE_TEST(proves_predicates),
      FIXTURE_TEST(says_why_no_variant_fits),
      FIXTURE_TEST(runs_the_golden_bundle),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
