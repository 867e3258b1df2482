/* runtime/program/call_test.c - calls: arguments, shapes, results, aliases, and the messages of
 * failures. */
#include "runtime/program/testing.h"

#define F32 ACCRT_DTYPE_F32

static void expect_four(const float* x, float a, float b, float c, float d) {
  assert_true(x[0] == a && x[1] == b && x[2] == c && x[3] == d);
}

/* ---- Running ---- */

static void runs_on_plain_memory(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "affine");
  _Alignas(16) float x[100];
  _Alignas(16) float y[100];
  for (int i = 0; i < 100; ++i)
    x[i] = (float)i;
  OK(set_vector(call, "x", x, F32, 100));
  OK(run(call));
  const float* own = result_data(call, 0);
  for (int i = 0; i < 100; ++i)
    assert_true(own[i] == 2.0f * (float)i + 1.0f);
  OK(set_vector(call, "y", y, F32, 100));
  OK(run(call));
  assert_ptr_equal(result_data(call, 0), y);
  expect_four(y, 1, 3, 5, 7);
  accrt_call_release(call);
}

static void runs_functions_of_one_command_and_of_none(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "empty");
  for (int i = 0; i < 3; ++i)
    OK(run(call));
  accrt_call_release(call);
  call = make_call(f->session, "nothing");
  for (int i = 0; i < 3; ++i)
    OK(run(call));
  accrt_call_release(call);
}

static void runs_with_zero_elements(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "affine");
  OK(set_vector(call, "x", NULL, F32, 0));
  OK(run(call));
  int64_t shape[8];
  int64_t strides[8];
  accrt_tensor_t tensor;
  OK(accrt_call_result(call, 0, &tensor, shape, strides));
  assert_int_equal(tensor.rank, 1);
  assert_int_equal(shape[0], 0);
  accrt_call_release(call);
}

static void runs_on_buffers(void** state) {
  FIXTURE(f);
  accrt_pool_t* pool;
  OK(accrt_device_pool(f->device, ACCRT_MEMORY_DEVICE, &pool));
  accrt_buffer_t* buffer;
  OK(accrt_buffer_create(pool, 256, NULL, &buffer));
  void* pointer;
  OK(accrt_buffer_map(buffer, 0, 256, &pointer));
  for (int i = 0; i < 64; ++i)
    ((float*)pointer)[i] = (float)i;
  OK(accrt_buffer_unmap(buffer));
  accrt_call_t* call = make_call(f->session, "affine");
  const int64_t n = 8;
  accrt_tensor_t tensor = tensor_of(NULL, F32, 1, &n);
  tensor.buffer = buffer;
  tensor.offset_bytes = 32;
  OK(accrt_call_set_tensor(call, 0, &tensor));
  accrt_buffer_release(buffer); /* the call retains it */
  OK(run(call));
  assert_true(((const float*)result_data(call, 0))[1] == 2.0f * 9 + 1);
  tensor.buffer = buffer;
  tensor.offset_bytes = 240;
  FAILS(accrt_call_set_tensor(call, 0, &tensor), OUT_OF_RANGE,
        "function 'affine', input 'x' (f32[n])");
  OK(run(call)); /* the binding is unchanged */
  accrt_call_release(call);
}

/* ---- Finding, binding ---- */

static void finds_arguments(void** state) {
  FIXTURE(f);
  accrt_call_t* call;
  FAILS(accrt_call_create(f->session, "afine", &call), NOT_FOUND, "did you mean 'affine'");
  assert_null(call);
  FAILS(accrt_call_create(f->session, "step", &call), PERMISSION_DENIED, "internal");
  FAILS(accrt_call_create(f->session, "make_reversed", &call), PERMISSION_DENIED,
        "prepare function");
  FAILS(accrt_call_create(f->session, NULL, &call), INVALID_ARGUMENT, "NULL");
  FAILS(accrt_call_create(NULL, "affine", &call), INVALID_ARGUMENT, "session");
  FAILS(accrt_call_create(f->session, "affine", NULL), INVALID_ARGUMENT, "out_call");
  call = make_call(f->session, "add");
  assert_int_equal(index_of(call, "x"), 0);
  assert_int_equal(index_of(call, "y"), 1);
  assert_int_equal(index_of(call, "z"), 2);
  assert_int_equal(index_of(call, "chosen"), 3);
  uint32_t index = 7;
  FAILS(accrt_call_find(call, "choosen", &index), NOT_FOUND, "did you mean 'chosen'");
  FAILS(accrt_call_find(call, NULL, &index), INVALID_ARGUMENT, "NULL");
  accrt_call_t* again = accrt_call_retain(call);
  accrt_call_release(again);
  accrt_call_release(call);
  accrt_call_release(NULL);
  assert_null(accrt_call_retain(NULL));
}

static void refuses_bad_tensors(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "add");
  _Alignas(16) float x[8] = {0};
  const int64_t shape[2] = {2, 4};
  accrt_tensor_t tensor = tensor_of(x, F32, 2, shape);
  FAILS(accrt_call_set_tensor(call, 0, &tensor), SHAPE_MISMATCH, "got 2 dimensions, expected 1");
  ALSO("function 'add', input 'x' (f32[n])");
  tensor.rank = 1;
  tensor.dtype = ACCRT_DTYPE_F64;
  FAILS(accrt_call_set_tensor(call, 0, &tensor), TYPE_MISMATCH, "got f64");
  tensor.dtype = F32;
  FAILS(accrt_call_set_tensor(call, 9, &tensor), OUT_OF_RANGE, "there is no 9");
  const int64_t strides[1] = {3};
  tensor.strides = strides;
  FAILS(accrt_call_set_tensor(call, 0, &tensor), SHAPE_MISMATCH, "not contiguous");
  tensor.strides = NULL;
  const int64_t negative = -4;
  tensor.shape = &negative;
  FAILS(accrt_call_set_tensor(call, 0, &tensor), SHAPE_MISMATCH, "dimension 0 is -4");
  tensor.shape = NULL;
  FAILS(accrt_call_set_tensor(call, 0, &tensor), INVALID_ARGUMENT, "shape is NULL");
  const int64_t huge = INT64_MAX;
  tensor.shape = &huge;
  FAILS(accrt_call_set_tensor(call, 0, &tensor), SHAPE_MISMATCH, "63 bits");
  const int64_t n = 4;
  tensor.shape = &n;
  tensor.data = (char*)x + 4;
  FAILS(accrt_call_set_tensor(call, 0, &tensor), INVALID_ARGUMENT, "not a multiple of 16");
  tensor.data = NULL;
  FAILS(accrt_call_set_tensor(call, 0, &tensor), INVALID_ARGUMENT, "input 'x'");
  FAILS(accrt_call_set_tensor(NULL, 0, &tensor), INVALID_ARGUMENT, "call is NULL");
  FAILS(accrt_call_set_scalar(call, 0, 1), INVALID_ARGUMENT, "not a scalar");
  FAILS(accrt_call_set_scalar(call, 9, 1), OUT_OF_RANGE, "there is no 9");
  FAILS(accrt_call_set_scalar(NULL, 0, 1), INVALID_ARGUMENT, "call is NULL");
  accrt_call_release(call);
  call = make_call(f->session, "iota");
  tensor.data = x;
  FAILS(accrt_call_set_tensor(call, 0, &tensor), INVALID_ARGUMENT, "it is a scalar");
  accrt_call_release(call);
}

static void small_tensors_need_less_alignment(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "affine");
  _Alignas(16) float x[8] = {0, 5};
  OK(set_vector(call, "x", x + 1, F32, 1)); /* 4 bytes: aligned as its element */
  OK(run(call));
  assert_true(*(const float*)result_data(call, 0) == 11.0f);
  FAILS(set_vector(call, "x", (char*)x + 2, F32, 1), INVALID_ARGUMENT, "not a multiple of 4");
  accrt_call_release(call);
}

/* ---- Shapes ---- */

static void solves_shapes(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "dims");
  _Alignas(16) float data[4096] = {0};
  FAILS(run(call), INVALID_ARGUMENT, "function 'dims', input 'x' (f32[n, 3]): it is not bound");
  OK(set_matrix(call, "x", data, F32, 4, 3));
  OK(set_vector(call, "y", data, F32, 8));
  OK(set_matrix(call, "z", data, F32, 16, 4));
  OK(run(call));
  int64_t shape[8];
  int64_t strides[8];
  accrt_tensor_t tensor;
  OK(accrt_call_result(call, 0, &tensor, shape, strides));
  assert_int_equal(shape[0], 20);
  OK(set_vector(call, "y", data, F32, 9));
  FAILS(run(call), SHAPE_MISMATCH, "function 'dims', input 'y' (f32[");
  ALSO("dimension 0: got 9, expected 8");
  OK(set_vector(call, "y", data, F32, 8));
  OK(set_matrix(call, "x", data, F32, 4, 5));
  FAILS(run(call), SHAPE_MISMATCH, "input 'x' (f32[n, 3]): dimension 1: got 5, expected 3");
  OK(set_matrix(call, "x", data, F32, 4, 3));
  OK(set_matrix(call, "z", data, F32, 16, 5));
  FAILS(run(call), SHAPE_MISMATCH,
        "dimension 1, symbol 'n': got 5, but input 'x' says 4 (its range: 0 to 4096)");
  OK(set_matrix(call, "z", data, F32, 12, 4));
  FAILS(run(call), SHAPE_MISMATCH,
        "dimension 0, symbol 'm': got 12, allowed: 8 to 64, multiples of 8");
  OK(set_matrix(call, "z", data, F32, 72, 4));
  FAILS(run(call), SHAPE_MISMATCH, "got 72");
  OK(set_matrix(call, "z", data, F32, 16, 4));
  OK(run(call));
  OK(set_vector(call, "w", data, F32, 5));
  OK(run(call));
  OK(set_vector(call, "w", data, F32, 6));
  FAILS(run(call), SHAPE_MISMATCH, "input 'w'");
  OK(accrt_call_set_tensor(call, index_of(call, "w"), NULL));
  OK(run(call));
  OK(set_vector(call, "r", data, F32, 19));
  FAILS(run(call), SHAPE_MISMATCH, "result 'r'");
  accrt_call_release(call);
}

static void checks_scalars(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "iota");
  FAILS(run(call), INVALID_ARGUMENT, "input 'position'");
  ALSO("it is not bound");
  OK(set_number(call, "position", 64));
  FAILS(run(call), SHAPE_MISMATCH, "value, symbol 'position': got 64, allowed: 0 to 63");
  OK(set_number(call, "position", 63));
  OK(run(call));
  assert_int_equal(((const int64_t*)result_data(call, 0))[3], 66);
  OK(set_number(call, "position", -1)); /* only a quick scalar changed */
  FAILS(run(call), SHAPE_MISMATCH, "got -1");
  OK(set_number(call, "position", 5));
  OK(run(call));
  assert_int_equal(((const int64_t*)result_data(call, 0))[0], 5);
  accrt_call_release(call);
}

static void evaluates_faults(void** state) {
  FIXTURE(f);
  _Alignas(16) float x[64] = {0};
  accrt_call_t* call = make_call(f->session, "divide");
  OK(set_vector(call, "x", x, F32, 64));
  OK(set_number(call, "d", 0));
  FAILS(run(call), OVERFLOW, "grid x: the expression divides by zero");
  ALSO("function 'divide': command 0 'affine'");
  OK(set_number(call, "d", 3));
  OK(run(call));
  accrt_call_release(call);
  call = make_call(f->session, "huge");
  OK(set_vector(call, "x", x, ACCRT_DTYPE_U8, 1));
  FAILS(run(call), OVERFLOW, "result 'y'");
  accrt_call_release(call);
  call = make_call(f->session, "optional_symbol");
  FAILS(run(call), INVALID_ARGUMENT, "symbol 'd' has no value");
  OK(set_number(call, "d", 6));
  OK(run(call));
  assert_int_equal(*(const int64_t*)result_data(call, 0), 6);
  accrt_call_release(call);
  call = make_call(f->session, "overflow");
  OK(set_number(call, "position", 0));
  OK(run(call));
  OK(set_number(call, "position", 2));
  FAILS(run(call), OVERFLOW, "does not fit 64 bits");
  accrt_call_release(call);
}

static void takes_optional_inputs(void** state) {
  FIXTURE(f);
  _Alignas(16) float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  accrt_call_t* call = make_call(f->session, "add");
  OK(set_vector(call, "x", x, F32, 8));
  OK(run(call));
  assert_true(((const float*)result_data(call, 0))[7] == 8.0f);
  assert_int_equal(*(const int64_t*)result_data(call, 1), 22);
  OK(set_vector(call, "y", x, F32, 8));
  OK(run(call));
  assert_true(((const float*)result_data(call, 0))[7] == 16.0f);
  assert_int_equal(*(const int64_t*)result_data(call, 1), 11);
  OK(accrt_call_set_tensor(call, 1, NULL));
  OK(run(call));
  assert_int_equal(*(const int64_t*)result_data(call, 1), 22);
  accrt_call_release(call);
}

/* ---- Buckets ---- */

static void follows_buckets(void** state) {
  FIXTURE(f);
  _Alignas(16) static float x[400];
  for (int i = 0; i < 400; ++i)
    x[i] = (float)i;
  accrt_call_t* call = make_call(f->session, "bucket");
  const int64_t sizes[] = {1, 15, 16, 17, 64, 65, 100, 3};
  const uint32_t plans[] = {1, 1, 1, 2, 2, 3, 3, 3};
  for (int i = 0; i < 8; ++i) {
    OK(set_matrix(call, "x", x, F32, sizes[i], 4));
    OK(run(call));
    const float* y = result_data(call, 0);
    for (int64_t k = 0; k < sizes[i] * 4; ++k)
      assert_true(y[k] == 2.0f * (float)k + 1.0f);
    assert_int_equal(f->session->plan_count, plans[i]);
  }
  OK(set_matrix(call, "x", x, F32, 101, 4));
  FAILS(run(call), SHAPE_MISMATCH, "symbol 'b': got 101, allowed: 1 to 100");
  accrt_call_release(call);
}

static void evicts_plans(void** state) {
  FIXTURE(f);
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.max_plans = 2;
  accrt_session_t* session;
  OK(accrt_session_create(f->program, &options, &session));
  accrt_call_t* call = make_call(session, "affine");
  accrt_call_t* other = make_call(session, "affine");
  _Alignas(16) float x[64];
  for (int i = 0; i < 64; ++i)
    x[i] = (float)i;
  OK(set_vector(other, "x", x, F32, 7));
  OK(run(other));
  for (int64_t n = 1; n < 64; ++n) {
    OK(set_vector(call, "x", x, F32, n));
    OK(run(call));
    assert_true(((const float*)result_data(call, 0))[n - 1] == 2.0f * (float)(n - 1) + 1.0f);
    assert_true(session->plan_count <= 2);
    OK(run(other)); /* its plan was evicted, but the call retains it */
    assert_true(((const float*)result_data(other, 0))[6] == 13.0f);
  }
  accrt_call_release(call);
  accrt_call_release(other);
  accrt_session_release(session);
}

static void keeps_many_plans(void** state) {
  FIXTURE(f);
  _Alignas(16) static float x[200];
  for (int i = 0; i < 200; ++i)
    x[i] = (float)i;
  accrt_call_t* call = make_call(f->session, "affine");
  for (int round = 0; round < 2; ++round) {
    for (int64_t n = 1; n <= 200; ++n) {
      OK(set_vector(call, "x", x, F32, n));
      OK(run(call));
      assert_true(((const float*)result_data(call, 0))[n - 1] == 2.0f * (float)(n - 1) + 1.0f);
      assert_true(f->session->plan_count <= ACCRT_DEFAULT_MAX_PLANS);
    }
  }
  assert_int_equal(f->session->plan_count, ACCRT_DEFAULT_MAX_PLANS);
  accrt_call_release(call);
}

static void needs_what_is_used(void** state) {
  FIXTURE(f);
  _Alignas(16) float x[4] = {1, 2, 3, 4};
  accrt_call_t* call = make_call(f->session, "needs_optional");
  OK(set_number(call, "rounds", 0));
  FAILS(run(call), INVALID_ARGUMENT, "parameter 'x' needs 'x', which the call leaves out");
  OK(set_number(call, "rounds", 1));
  FAILS(run(call), INVALID_ARGUMENT, "it copies 'x', which the call leaves out");
  OK(set_number(call, "rounds", 2));
  FAILS(run(call), INVALID_ARGUMENT, "it fills 'z', which the call leaves out");
  OK(set_number(call, "rounds", 1));
  OK(set_vector(call, "x", x, F32, 4));
  OK(run(call));
  expect_four(result_data(call, 0), 1, 2, 3, 4);
  accrt_call_release(call);
}

static void takes_elements_of_half_a_byte(void** state) {
  FIXTURE(f);
  _Alignas(16) uint8_t x[20] = {0x21, 0x43, 0x05};
  accrt_call_t* call = make_call(f->session, "nibbles");
  OK(set_vector(call, "x", x, ACCRT_DTYPE_U4, 5));
  OK(run(call));
  assert_memory_equal(result_data(call, 0), x, 3);
  assert_int_equal(*(const uint8_t*)result_data(call, 1), 0x55);
  OK(set_vector(call, "x", x, ACCRT_DTYPE_U4, 40));
  OK(run(call));
  OK(set_vector(call, "x", x + 1, ACCRT_DTYPE_U4, 3)); /* 2 bytes, aligned to 1 */
  OK(run(call));
  accrt_call_release(call);
}

static void refuses_negative_counts(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "backwards");
  OK(set_number(call, "rounds", 5));
  OK(run(call));
  OK(accrt_call_submit(call, NULL, 0, NULL, 0)); /* of a function without commands */
  OK(set_number(call, "rounds", 4));
  FAILS(run(call), OUT_OF_RANGE, "function 'backwards': command 0 'repeat': count is -1");
  accrt_call_release(call);
  call = make_call(f->session, "negative_view");
  OK(set_number(call, "position", 2));
  FAILS(run(call), OUT_OF_RANGE, "dimension of a view 'x' is -1, at least 0 is needed");
  OK(set_number(call, "position", 3));
  OK(run(call));
  assert_true(*(const float*)result_data(call, 0) == 0.0f);
  accrt_call_release(call);
}

static void computes_dimensions(void** state) {
  FIXTURE(f);
  _Alignas(16) float x[32] = {0};
  accrt_call_t* call = make_call(f->session, "quotient");
  OK(set_vector(call, "x", x, F32, 8));
  OK(set_number(call, "d", 0));
  FAILS(run(call), OVERFLOW, "function 'quotient', result 'y'");
  ALSO("dimension 0: the expression divides by zero");
  OK(set_vector(call, "y", x + 16, F32, 4));
  FAILS(run(call), OVERFLOW, "dimension 0: the expression divides by zero");
  OK(set_number(call, "d", 2));
  OK(run(call));
  OK(set_vector(call, "y", x + 16, F32, 5));
  FAILS(run(call), SHAPE_MISMATCH, "dimension 0: got 5, expected 4");
  accrt_call_release(call);
  call = make_call(f->session, "affine");
  OK(set_vector(call, "x", x, F32, 8));
  OK(set_vector(call, "y", x + 16, F32, 9));
  FAILS(run(call), SHAPE_MISMATCH,
        "result 'y' (f32[n]): dimension 0, symbol 'n': got 9, but input 'x' says 8");
  accrt_call_release(call);
}

static void copies_rows(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "column");
  for (int64_t rows = 0; rows < 5; ++rows) {
    OK(set_number(call, "position", rows));
    OK(run(call));
    const float* y = result_data(call, 0);
    for (int64_t i = 0; i < 64; ++i)
      assert_true(y[i] == (i < rows ? 1.0f : 0.0f));
  }
  accrt_call_release(call);
}

/* The bundle's tables are in the library's memory, so the test can set a bit of a future feature
 * there. */
static void refuses_unknown_features(void** state) {
  FIXTURE(f);
  const uint32_t index = accrt_bundle_lookup_function(f->bundle, "affine");
  accx_function_t* function = (accx_function_t*)(uintptr_t)&f->program->tables->functions[index];
  accrt_call_t* call;
  function->required_features = 0x20;
  FAILS(accrt_call_create(f->session, "affine", &call), VERSION_MISMATCH,
        "function 'affine' requires feature bit 5");
  FAILS(accrt_session_warmup(f->session, "affine", NULL, 0, sizeof(accrt_symbol_value_t)),
        VERSION_MISMATCH, "bit 5");
  function->required_features = 0;
  OK(accrt_call_create(f->session, "affine", &call));
  accrt_call_release(call);
}

static void keeps_what_is_used(void** state) {
  FIXTURE(f);
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.max_plans = 2;
  accrt_session_t* session;
  OK(accrt_session_create(f->program, &options, &session));
  const uint32_t size = sizeof(accrt_symbol_value_t);
  accrt_symbol_value_t n = {"n", 1};
  OK(accrt_session_warmup(session, "affine", &n, 1, size));
  n.value = 2;
  OK(accrt_session_warmup(session, "affine", &n, 1, size));
  n.value = 1;
  OK(accrt_session_warmup(session, "affine", &n, 1, size)); /* used again: 2 is the oldest now */
  n.value = 3;
  OK(accrt_session_warmup(session, "affine", &n, 1, size));
  const long long before = atomic_load(&f->watch.count);
  n.value = 1;
  OK(accrt_session_warmup(session, "affine", &n, 1, size));
  const long long kept = atomic_load(&f->watch.count) - before;
  n.value = 2;
  OK(accrt_session_warmup(session, "affine", &n, 1, size));
  const long long made = atomic_load(&f->watch.count) - before - kept;
  assert_true(kept < made);
  accrt_session_release(session);
}

static void warms_up(void** state) {
  FIXTURE(f);
  const uint32_t size = sizeof(accrt_symbol_value_t);
  accrt_symbol_value_t symbol = {"b", 40};
  OK(accrt_session_warmup(f->session, "bucket", &symbol, 1, size));
  assert_int_equal(f->session->plan_count, 1);
  assert_true(f->session->arena_bytes >= 64 * 16 + 256);
  _Alignas(16) static float x[400];
  accrt_call_t* call = make_call(f->session, "bucket");
  OK(set_matrix(call, "x", x, F32, 50, 4));
  OK(run(call));
  assert_int_equal(f->session->plan_count, 1);
  accrt_call_release(call);
  symbol.value = 101;
  FAILS(accrt_session_warmup(f->session, "bucket", &symbol, 1, size), SHAPE_MISMATCH, "'b'");
  const accrt_symbol_value_t twice[2] = {{"b", 8}, {"b", 16}};
  FAILS(accrt_session_warmup(f->session, "bucket", twice, 2, size), INVALID_ARGUMENT,
        "symbol 'b' is given twice");
  FAILS(accrt_session_warmup(f->session, "nix", NULL, 0, size), NOT_FOUND, "nix");
  FAILS(accrt_session_warmup(NULL, "bucket", NULL, 0, size), INVALID_ARGUMENT, "session");
  symbol = (accrt_symbol_value_t){"d", 0};
  FAILS(accrt_session_warmup(f->session, "divide", &symbol, 1, size), OVERFLOW, "divides by zero");
  FAILS(accrt_session_warmup(f->session, "which_none", NULL, 0, size), NO_VARIANT, "'mode'");
}

/* ---- Aliases ---- */

static void refuses_overlap(void** state) {
  FIXTURE(f);
  _Alignas(16) float x[16] = {0};
  accrt_call_t* call = make_call(f->session, "affine");
  OK(set_vector(call, "x", x, F32, 8));
  OK(set_vector(call, "y", x + 4, F32, 8));
  FAILS(run(call), ALIASED, "function 'affine', result 'y' (f32[n])");
  ALSO("overlap input 'x'");
  OK(set_vector(call, "y", x, F32, 8));
  FAILS(run(call), ALIASED, "input 'x'");
  OK(set_vector(call, "y", x + 8, F32, 8));
  OK(run(call));
  accrt_call_release(call);
  call = make_call(f->session, "add"); /* two inputs that are only read may be equal */
  OK(set_vector(call, "x", x, F32, 8));
  OK(set_vector(call, "y", x, F32, 8));
  OK(run(call));
  accrt_call_release(call);
}

static void updates_in_place(void** state) {
  FIXTURE(f);
  _Alignas(16) float x[16] = {1, 2, 3, 4};
  _Alignas(16) float other[16] = {0};
  accrt_call_t* call = make_call(f->session, "inplace");
  OK(set_vector(call, "x", x, F32, 4));
  OK(run(call));
  expect_four(x, 3, 5, 7, 9);
  assert_ptr_equal(result_data(call, 0), x);
  OK(run(call));
  expect_four(x, 7, 11, 15, 19);
  OK(set_vector(call, "y", other, F32, 4));
  FAILS(run(call), ALIASED, "result 'y' (f32[n]): it must have the storage of input 'x'");
  OK(set_vector(call, "y", x, F32, 4));
  OK(run(call));
  expect_four(x, 15, 23, 31, 39);
  accrt_call_release(call);
}

static void may_lie_in_donated(void** state) {
  FIXTURE(f);
  _Alignas(16) float x[16] = {1, 2, 3, 4};
  accrt_call_t* call = make_call(f->session, "donate");
  OK(set_vector(call, "x", x, F32, 4));
  OK(run(call));
  assert_ptr_not_equal(result_data(call, 0), x);
  assert_true(((const float*)result_data(call, 0))[3] == 9.0f);
  OK(set_vector(call, "y", x, F32, 4));
  OK(run(call));
  expect_four(x, 3, 5, 7, 9);
  OK(set_vector(call, "x", x + 4, F32, 4));
  OK(set_vector(call, "y", x + 4, F32, 4));
  OK(run(call));
  OK(set_vector(call, "x", x, F32, 8));
  OK(set_vector(call, "y", x + 4, F32, 8)); /* a partial overlap */
  FAILS(run(call), ALIASED, "overlap");
  accrt_call_release(call);
}

static void guards_state_and_weights(void** state) {
  FIXTURE(f);
  int64_t shape[8];
  int64_t strides[8];
  accrt_tensor_t cache;
  OK(accrt_session_state(f->session, "cache", &cache, shape, strides));
  accrt_call_t* call = make_call(f->session, "append");
  OK(set_number(call, "position", 0));
  const int64_t n = 4;
  accrt_tensor_t row = cache;
  row.rank = 1;
  row.shape = &n;
  row.strides = NULL;
  OK(accrt_call_set_tensor(call, index_of(call, "v"), &row));
  FAILS(run(call), ALIASED, "overlap state 'cache'");
  accrt_call_release(call);
  call = make_call(f->session, "scale_weight");
  _Alignas(16) float x[8] = {0};
  OK(set_vector(call, "x", x, F32, 8));
  const void* data;
  uint64_t size;
  OK(accrt_bundle_constant_data(f->bundle, accrt_bundle_lookup_constant(f->bundle, "weight"), &data,
                                &size));
  OK(set_vector(call, "y", (void*)(uintptr_t)data, F32, 8));
  FAILS(run(call), ALIASED, "memory of the 'program'");
  OK(accrt_call_set_tensor(call, index_of(call, "y"), NULL));
  /* both only read it, which is allowed */
  OK(set_vector(call, "x", (void*)(uintptr_t)data, F32, 8));
  OK(run(call));
  assert_true(((const float*)result_data(call, 0))[7] == 14.0f);
  accrt_call_release(call);
}

/* ---- Results ---- */

static void keeps_retained_results(void** state) {
  FIXTURE(f);
  _Alignas(16) float x[16] = {1};
  accrt_call_t* call = make_call(f->session, "affine");
  OK(set_vector(call, "x", x, F32, 16));
  OK(run(call));
  int64_t shape[8];
  int64_t strides[8];
  accrt_tensor_t first;
  accrt_tensor_t second;
  OK(accrt_call_result(call, 0, &first, shape, strides));
  OK(run(call));
  OK(accrt_call_result(call, 0, &second, shape, strides));
  assert_ptr_equal(first.buffer, second.buffer); /* no other reference exists, so it is reused */
  accrt_buffer_t* kept = accrt_buffer_retain(second.buffer);
  x[0] = 5;
  OK(run(call));
  OK(accrt_call_result(call, 0, &second, shape, strides));
  assert_ptr_not_equal(kept, second.buffer);
  void* pointer;
  OK(accrt_buffer_map(kept, 0, 4, &pointer));
  assert_true(*(float*)pointer == 3.0f);
  OK(accrt_buffer_unmap(kept));
  accrt_call_release(call);
  accrt_buffer_release(kept);
}

static void refuses_results_too_early(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "affine");
  int64_t shape[8];
  int64_t strides[8];
  accrt_tensor_t tensor;
  FAILS(accrt_call_result(call, 0, &tensor, shape, strides), INVALID_STATE, "was not run");
  FAILS(accrt_call_result(call, 1, &tensor, shape, strides), OUT_OF_RANGE, "1 results");
  FAILS(accrt_call_result(call, 0, NULL, shape, strides), INVALID_ARGUMENT, "NULL");
  FAILS(accrt_call_result(NULL, 0, &tensor, shape, strides), INVALID_ARGUMENT, "NULL");
  FAILS(run(NULL), INVALID_ARGUMENT, "call is NULL");
  accrt_call_release(call);
}

/* ---- The promise of a repeated call ---- */

static long long allocations_of(fixture_t* f, accrt_call_t* call, const char* scalar, int times) {
  for (int i = 0; i < 8; ++i)
    OK(run(call));
  const long long before = atomic_load(&f->watch.count);
  for (int i = 0; i < times; ++i) {
    if (scalar != NULL)
      OK(set_number(call, scalar, i % 32));
    OK(run(call));
  }
  return atomic_load(&f->watch.count) - before;
}

static void repeats_without_allocation(void** state) {
  FIXTURE(f);
  _Alignas(16) static float x[400];
  accrt_call_t* call = make_call(f->session, "empty");
  assert_int_equal(allocations_of(f, call, NULL, 1000), 0);
  accrt_call_release(call);
  call = make_call(f->session, "bucket");
  OK(set_matrix(call, "x", x, F32, 50, 4));
  assert_int_equal(allocations_of(f, call, NULL, 1000), 0);
  const long long before = atomic_load(&f->watch.count);
  for (int64_t b = 17; b <= 64; ++b) { /* other sizes of the same bucket, other storage */
    OK(set_matrix(call, "x", x + (b % 2) * 4, F32, b, 4));
    OK(run(call));
  }
  assert_int_equal(atomic_load(&f->watch.count) - before, 0);
  accrt_call_release(call);
  call = make_call(f->session, "append");
  OK(set_vector(call, "v", x, F32, 4));
  OK(set_number(call, "position", 0));
  assert_int_equal(allocations_of(f, call, "position", 1000), 0);
  accrt_call_release(call);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FIXTURE_TEST(runs_on_plain_memory),
      FIXTURE_TEST(runs_functions_of_one_command_and_of_none),
      FIXTURE_TEST(runs_with_zero_elements),
      FIXTURE_TEST(runs_on_buffers),
      FIXTURE_TEST(finds_arguments),
      FIXTURE_TEST(refuses_bad_tensors),
      FIXTURE_TEST(small_tensors_need_less_alignment),
      FIXTURE_TEST(solves_shapes),
      FIXTURE_TEST(checks_scalars),
      FIXTURE_TEST(evaluates_faults),
      FIXTURE_TEST(takes_optional_inputs),
      FIXTURE_TEST(follows_buckets),
      FIXTURE_TEST(evicts_plans),
      FIXTURE_TEST(keeps_many_plans),
      FIXTURE_TEST(needs_what_is_used),
      FIXTURE_TEST(takes_elements_of_half_a_byte),
      FIXTURE_TEST(refuses_negative_counts),
      FIXTURE_TEST(computes_dimensions),
      FIXTURE_TEST(copies_rows),
      FIXTURE_TEST(refuses_unknown_features),
      FIXTURE_TEST(keeps_what_is_used),
      FIXTURE_TEST(warms_up),
      FIXTURE_TEST(refuses_overlap),
      FIXTURE_TEST(updates_in_place),
      FIXTURE_TEST(may_lie_in_donated),
      FIXTURE_TEST(guards_state_and_weights),
      FIXTURE_TEST(keeps_retained_results),
      FIXTURE_TEST(refuses_results_too_early),
      FIXTURE_TEST(repeats_without_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
