/* runtime/program/operator_test.c - host operators in bundles: found in a pack by name, shapes and
 * workspace, order, errors. The operators are functions of the test. */
#include "runtime/program/testing.h"

#include "accrt/commands.h"

#define F32 ACCRT_DTYPE_F32

/* ---- The pack ---- */

static struct {
  int prepared, executed, destroyed, queried, kernel_runs;
  uint64_t workspace_bytes; /* bytes that `scale` requests beyond its need */
  const void* workspace;    /* of the last execute */
  bool saw_addresses;       /* in prepare or query_workspace */
} seen;

typedef struct scale_params {
  accrt_kernel_tensor_t x;
  accrt_kernel_tensor_t y;
  int64_t times;
  float plus;
} scale_params_t;

static int64_t elements_of(const accrt_kernel_tensor_t* tensor) {
  int64_t count = 1;
  for (uint32_t i = 0; i < tensor->rank; ++i)
    count *= tensor->shape[i];
  return count;
}

/* Element `index` in row-major order, wherever its strides put it. */
static float* element_of(const accrt_kernel_tensor_t* tensor, int64_t index) {
  int64_t offset = 0;
  for (uint32_t i = tensor->rank; i-- > 0;) {
    offset += index % tensor->shape[i] * tensor->strides[i];
    index /= tensor->shape[i];
  }
  return (float*)tensor->data + offset;
}

static int32_t scale_query(const accrt_kernel_environment_t* environment,
                           const accrt_operator_call_t* call, uint64_t* out_size_bytes) {
  const scale_params_t* p = call->params;
  (void)environment;
  ++seen.queried;
  seen.saw_addresses = seen.saw_addresses || p->x.data != NULL || p->y.data != NULL;
  *out_size_bytes = (uint64_t)elements_of(&p->x) * sizeof(float) + seen.workspace_bytes;
  return 0;
}

/* The state: how many elements there are. */
static int32_t scale_prepare(const accrt_kernel_environment_t* environment,
                             const accrt_operator_call_t* call, void** out_state) {
  const scale_params_t* p = call->params;
  (void)environment;
  int64_t* count = malloc(sizeof *count);
  if (count == NULL)
    return 1;
  *count = elements_of(&p->x);
  ++seen.prepared;
  seen.saw_addresses = seen.saw_addresses || p->x.data != NULL || p->y.data != NULL;
  *out_state = count;
  return 0;
}

/* Through the workspace, which must be zero at entry. */
static int32_t scale_execute(const accrt_kernel_environment_t* environment,
                             const accrt_operator_call_t* call, void* state) {
  const scale_params_t* p = call->params;
  const int64_t count = *(const int64_t*)state;
  float* scratch = call->workspace;
  (void)environment;
  ++seen.executed;
  seen.workspace = call->workspace;
  if (call->device_type != 1 || call->stream != NULL || (uintptr_t)call->workspace % 256 != 0 ||
      call->workspace_size_bytes < (uint64_t)count * sizeof(float))
    return 2;
  for (int64_t i = 0; i < count; ++i) {
    if (scratch[i] != 0.0f)
      return 3;
    scratch[i] = *element_of(&p->x, i) * (float)p->times + p->plus;
  }
  for (int64_t i = 0; i < count; ++i)
    *element_of(&p->y, i) = scratch[i];
  return 0;
}

static void scale_destroy(const accrt_kernel_environment_t* environment, void* state) {
  (void)environment;
  ++seen.destroyed;
  free(state);
}

typedef struct fail_params {
  int64_t code;
  uint32_t where; /* 0 execute, 1 prepare, 2 query_workspace */
} fail_params_t;

static int32_t fail_at(const accrt_operator_call_t* call, uint32_t where) {
  const fail_params_t* p = call->params;
  if (p->where != where || (where == 0 && p->code == 0))
    return 0;
  (void)snprintf(call->message, call->message_capacity_bytes, "as it was told\n(%u)", where);
  return where == 0 ? (int32_t)p->code : 77;
}

static int32_t fail_query(const accrt_kernel_environment_t* environment,
                          const accrt_operator_call_t* call, uint64_t* out_size_bytes) {
  (void)environment;
  *out_size_bytes = 0;
  return fail_at(call, 2);
}
static int32_t fail_prepare(const accrt_kernel_environment_t* environment,
                            const accrt_operator_call_t* call, void** out_state) {
  (void)environment;
  *out_state = NULL;
  return fail_at(call, 1);
}
static int32_t fail_execute(const accrt_kernel_environment_t* environment,
                            const accrt_operator_call_t* call, void* state) {
  (void)environment;
  (void)state;
  return fail_at(call, 0);
}
static int32_t do_nothing(const accrt_kernel_environment_t* environment,
                          const accrt_operator_call_t* call, void* state) {
  (void)environment;
  (void)call;
  (void)state;
  return 0;
}

static const accrt_kernel_param_t scale_params[] = {
    ACCRT_KERNEL_PARAM(scale_params_t, x, TENSOR, READ),
    ACCRT_KERNEL_PARAM(scale_params_t, y, TENSOR, WRITE),
    {"times", ACCRT_KERNEL_PARAM_SYMBOL, 0, ACCRT_KERNEL_PARAM_FLAG_VARIES, 3,
     offsetof(scale_params_t, times), 8, 0},
    ACCRT_KERNEL_PARAM(scale_params_t, plus, SCALAR, NONE),
};
static const accrt_kernel_param_t kernel_params[] = {
    ACCRT_KERNEL_PARAM(scale_params_t, x, TENSOR, READ),
    ACCRT_KERNEL_PARAM(scale_params_t, y, TENSOR, WRITE),
    ACCRT_KERNEL_PARAM(scale_params_t, times, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(scale_params_t, plus, SCALAR, NONE),
};
static const accrt_kernel_param_t fail_params[] = {
    {"code", ACCRT_KERNEL_PARAM_SYMBOL, 0, ACCRT_KERNEL_PARAM_FLAG_VARIES, 3, 0, 8, 0},
    ACCRT_KERNEL_PARAM(fail_params_t, where, SCALAR, NONE),
};
static const accrt_kernel_param_t stay_params[] = {
    ACCRT_KERNEL_PARAM(fail_params_t, code, SYMBOL, NONE)};
static const accrt_operator_def_t operators[] = {
    {.struct_size = sizeof(accrt_operator_def_t),
     .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC | ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE |
               ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL,
     .name = "scale",
     .params = scale_params,
     .param_count = 4,
     .params_size_bytes = sizeof(scale_params_t),
     .device_type = 1,
     .query_workspace = scale_query,
     .prepare = scale_prepare,
     .execute = scale_execute,
     .destroy = scale_destroy},
    {.struct_size = sizeof(accrt_operator_def_t),
     .traits = ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL,
     .name = "fail",
     .params = fail_params,
     .param_count = 2,
     .params_size_bytes = sizeof(fail_params_t),
     .query_workspace = fail_query,
     .prepare = fail_prepare,
     .execute = fail_execute},
    {.struct_size = sizeof(accrt_operator_def_t),
     .traits = ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL,
     .name = "cuda_only",
     .params = fail_params,
     .param_count = 1,
     .params_size_bytes = 8,
     .device_type = 2,
     .execute = do_nothing},
    {.struct_size = sizeof(accrt_operator_def_t),
     .traits = ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL,
     .name = "stays",
     .params = stay_params,
     .param_count = 1,
     .params_size_bytes = 8,
     .execute = do_nothing},
    {.struct_size = sizeof(accrt_operator_def_t),
     .traits = ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL,
     .name = "quiet",
     .params = fail_params,
     .param_count = 1,
     .params_size_bytes = 8,
     .execute = do_nothing},
};
/* A kernel with the same effect as `scale`. */
static int32_t scale_kernel(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  const scale_params_t* p = dispatch->params;
  (void)environment;
  (void)workgroup;
  ++seen.kernel_runs;
  for (int64_t i = 0; i < elements_of(&p->x); ++i)
    *element_of(&p->y, i) = *element_of(&p->x, i) * (float)p->times + p->plus;
  return 0;
}
static const accrt_kernel_def_t kernels[] = {{
    .struct_size = sizeof(accrt_kernel_def_t),
    .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC | ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL,
    .name = "scale_kernel",
    .entry = scale_kernel,
    .params = kernel_params,
    .param_count = 4,
    .params_size_bytes = sizeof(scale_params_t),
}};
static const accrt_kernel_pack_table_t table = {
    .struct_size = sizeof table,
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "test.operators",
    .kernels = kernels,
    .kernel_count = 1,
    .kernel_size_bytes = sizeof kernels[0],
    .host_operators = operators,
    .host_operator_count = sizeof operators / sizeof operators[0],
    .host_operator_size_bytes = sizeof operators[0],
};

static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  (void)environment;
  return max_abi >= ACCRT_KERNEL_ABI_VERSION ? &table : NULL;
}

/* ---- Fixture ---- */

static fixture_t* open_operators(accrt_kernel_pack_t** out_pack) {
  memset(&seen, 0, sizeof seen);
  fixture_t* f = calloc(1, sizeof *f);
  assert_non_null(f);
  f->instance = open_instance(&f->watch, "2", ACCRT_HOST_CODE_ALL);
  OK(accrt_instance_device_by_name(f->instance, "host", &f->device));
  OK(accrt_kernel_pack_register(f->instance, query, out_pack));
  f->bundle = open_bundle(f->instance, "operators");
  OK(accrt_program_create(f->device, f->bundle, NULL, &f->program));
  /* The program retains the pack. */
  accrt_kernel_pack_release(*out_pack);
  OK(accrt_session_create(f->program, NULL, &f->session));
  return f;
}
#define OPERATORS(f)                                                                               \
  (void)state;                                                                                     \
  if (!have_bundles())                                                                             \
    skip();                                                                                        \
  accrt_kernel_pack_t* pack;                                                                       \
  fixture_t* f = open_operators(&pack)

/* Checks that every state was destroyed. */
static void close_operators(fixture_t* f) {
  close_fixture(f);
  assert_int_equal(seen.prepared, seen.destroyed);
}

/* ---- Tests ---- */

static void strides_values_and_addresses(void** state) {
  OPERATORS(f);
  float x[12], y[12];
  for (int i = 0; i < 12; ++i)
    x[i] = (float)i;
  accrt_call_t* call = make_call(f->session, "scale");
  OK(set_matrix(call, "x", x, F32, 4, 3));
  for (int64_t times = 0; times < 4; ++times) { /* patched: one plan, prepared once */
    float elsewhere[12];
    OK(set_matrix(call, "y", times % 2 == 0 ? y : elsewhere, F32, 3, 4));
    OK(set_number(call, "times", times));
    OK(run(call));
    const float* got = times % 2 == 0 ? y : elsewhere;
    for (int row = 0; row < 4; ++row) {
      for (int column = 0; column < 3; ++column)
        assert_true(got[column * 4 + row] == x[row * 3 + column] * (float)times + 1.0f);
    }
  }
  assert_int_equal(seen.prepared, 1);
  assert_int_equal(seen.executed, 4);
  assert_false(seen.saw_addresses);
  OK(set_matrix(call, "x", x, F32, 2, 3)); /* other shapes, so another plan and another state */
  OK(set_matrix(call, "y", y, F32, 3, 2));
  OK(run(call));
  assert_int_equal(seen.prepared, 2);
  accrt_call_release(call);
  close_operators(f);
}

static void one_workspace_for_all(void** state) {
  OPERATORS(f);
  seen.workspace_bytes = 1000;
  float x[5] = {0, 1, 2, 3, 4}, y[5], z[5];
  accrt_call_t* call = make_call(f->session, "chain");
  OK(set_vector(call, "x", x, F32, 5));
  OK(set_vector(call, "y", y, F32, 5));
  OK(set_vector(call, "z", z, F32, 5));
  for (int round = 0; round < 50; ++round) {
    memset(y, 0xff, sizeof y);
    memset(z, 0xff, sizeof z);
    OK(run(call));
    for (int i = 0; i < 5; ++i) {
      assert_true(y[i] == (x[i] * 2 + 1) * 2 + 1);
      assert_true(z[i] == x[i] * 2 + 1);
    }
  }
  /* Behind the function's own 24 bytes. */
  const accrt_symbol_value_t n = {"n", 5};
  accrt_memory_estimate_t estimate = ACCRT_MEMORY_ESTIMATE_INIT;
  OK(accrt_program_estimate(f->program, "chain", &n, 1, (uint32_t)sizeof n, &estimate));
  assert_int_equal(estimate.transient_bytes, 256 + 5 * sizeof(float) + 1000);
  assert_int_equal(f->session->arena_bytes, estimate.transient_bytes);
  assert_true((uint64_t)(uintptr_t)seen.workspace == f->session->arena_address + 256);
  /* Asynchronously as well. */
  memset(y, 0xff, sizeof y);
  OK(accrt_call_submit(call, NULL, 0, NULL, 0));
  OK(accrt_stream_synchronize(accrt_session_stream(f->session), ACCRT_TIMEOUT_INFINITE,
                              ACCRT_WAIT_BLOCK));
  assert_true(y[4] == (x[4] * 2 + 1) * 2 + 1);
  accrt_call_release(call);
  close_operators(f);
}

/* If a shape changes from call to call, the next variant is used. Without another variant the error
 * says why. */
static void shapes_must_stay(void** state) {
  OPERATORS(f);
  float x[4] = {1, 2, 3, 4}, y[4];
  accrt_call_t* call = make_call(f->session, "bucket");
  OK(set_vector(call, "x", x, F32, 4));
  OK(set_vector(call, "y", y, F32, 4));
  FAILS(run(call), NO_VARIANT,
        "it is an operator, and the shape of 'x' changes from call to call with a bucket");
  accrt_call_release(call);
  call = make_call(f->session, "stays");
  OK(set_number(call, "times", 5));
  FAILS(run(call), NO_VARIANT, "the value of 'code' changes from call to call with a bucket or");
  accrt_call_release(call);
  const char* const names[2] = {"bucket_or", "n_or"};
  for (int i = 0; i < 2; ++i) {
    call = make_call(f->session, names[i]);
    OK(set_vector(call, "x", x, F32, 4));
    OK(set_vector(call, "y", y, F32, 4));
    OK(run(call));
    assert_true(y[3] == 9.0f);
    assert_int_equal(seen.executed, i);    /* the operator for a fixed shape */
    assert_int_equal(seen.kernel_runs, 1); /* the kernel for a changing one */
    accrt_call_release(call);
  }
  close_operators(f);
}

static void errors_have_code_and_message(void** state) {
  OPERATORS(f);
  accrt_call_t* call = make_call(f->session, "fail");
  OK(set_number(call, "times", 0));
  OK(run(call));
  OK(set_number(call, "times", 41));
  FAILS(run(call), KERNEL, "as it was told (0)");
  assert_int_equal(accrt_error_current()->driver_code, 41);
  accrt_call_release(call);
  OK(accrt_session_reset(f->session));
  call = make_call(f->session, "fail_prepare");
  OK(set_number(call, "times", 0));
  FAILS(run(call), KERNEL, "operator 'fail': prepare gave 77: as it was told (1)");
  assert_int_equal(accrt_error_current()->driver_code, 77);
  accrt_call_release(call);
  call = make_call(f->session, "fail_query");
  OK(set_number(call, "times", 0));
  FAILS(run(call), KERNEL, "operator 'fail': query_workspace gave 77: as it was told (2)");
  assert_int_equal(accrt_error_current()->driver_code, 77);
  accrt_call_release(call);
  close_operators(f);
}

static void passed_over_with_the_reason(void** state) {
  OPERATORS(f);
  accrt_call_t* call = make_call(f->session, "gone");
  OK(set_number(call, "times", 5));
  OK(run(call));
  const uint32_t kernel = accrt_bundle_lookup_kernel(f->bundle, "gone");
  char text[1024];
  uint32_t chosen;
  OK(accrt_program_variant(f->program, kernel, &chosen, text, sizeof text, NULL));
  assert_int_equal(chosen, 3);
  assert_non_null(strstr(text, "its image has no kernel 'no_such_operator'"));
  assert_non_null(strstr(text, "the operator is for devices of type 2, host:0 is of 1"));
  assert_non_null(strstr(text, "1 parameters in 8 bytes in the bundle, 2 in 16 in the pack"));
  accrt_call_release(call);
  close_operators(f);
}

/* Without the pack the bundle cannot run. The error says for each variant that the pack is missing,
 * and where it was searched. */
static void missing_pack(void** state) {
  (void)state;
  if (!have_bundles())
    skip();
  memset(&seen, 0, sizeof seen);
  fixture_t* f = calloc(1, sizeof *f);
  assert_non_null(f);
  const accrt_allocator_t allocator = {&f->watch, watch_allocate, watch_deallocate};
  const accrt_option_t option = {"packs.path", "/nonexistent/packs"};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  OK(accrt_instance_create(&options, &f->instance));
  OK(accrt_instance_device_by_name(f->instance, "host", &f->device));
  f->bundle = open_bundle(f->instance, "operators");
  FAILS(accrt_program_create(f->device, f->bundle, NULL, &f->program), NO_VARIANT,
        "pack 'test.operators': /nonexistent/packs/test.operators.so");
  close_fixture(f);
}

/* An unsigned bundle may not run code on the host, not even code of packs that the program
 * registered. */
static void policy_is_asked(void** state) {
  (void)state;
  if (!have_bundles())
    skip();
  static const struct {
    uint32_t policy;
    const char* text;
  } policies[] = {{ACCRT_HOST_CODE_NONE, "the policy is 'no-host-code'"},
                  {ACCRT_HOST_CODE_SIGNED, "the policy is 'signed'"}};
  for (size_t i = 0; i < sizeof policies / sizeof policies[0]; ++i) {
    memset(&seen, 0, sizeof seen);
    fixture_t* f = calloc(1, sizeof *f);
    assert_non_null(f);
    accrt_kernel_pack_t* pack;
    f->instance = open_instance(&f->watch, "2", policies[i].policy);
    OK(accrt_instance_device_by_name(f->instance, "host", &f->device));
    OK(accrt_kernel_pack_register(f->instance, query, &pack));
    f->bundle = open_bundle(f->instance, "operators");
    FAILS(accrt_program_create(f->device, f->bundle, NULL, &f->program), NO_VARIANT,
          policies[i].text);
    accrt_kernel_pack_release(pack);
    close_fixture(f);
  }
}

/* Creates programs without memory: nothing leaks, and a failed allocation does not make a variant
 * look missing. */
static void programs_without_memory(void** state) {
  OPERATORS(f);
  accrt_program_t* program = NULL;
  accrt_bundle_t* bundles[2] = {f->bundle, open_bundle(f->instance, "targets")};
  for (int i = 0; i < 2; ++i) {
    accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
    for (long n = 1; status == ACCRT_ERROR_OUT_OF_MEMORY; ++n) {
      const long long live = atomic_load(&f->watch.live);
      atomic_store(&f->watch.fail_at, atomic_load(&f->watch.count) + n);
      status = accrt_program_create(f->device, bundles[i], NULL, &program);
      atomic_store(&f->watch.fail_at, 0);
      accrt_program_release(program);
      if (status != ACCRT_OK) /* a created program leaves allocations of its bundle */
        assert_int_equal(atomic_load(&f->watch.live), live);
      assert_true(n < 1000);
    }
    assert_int_equal(status, ACCRT_OK);
  }
  accrt_bundle_release(bundles[1]);
  close_operators(f);
}

static void failing_allocations(void** state) {
  (void)state;
  if (!have_bundles())
    skip();
  accrt_kernel_pack_t* pack;
  fixture_t* f = open_operators(&pack);
  float x[5] = {0, 1, 2, 3, 4}, y[5], z[5];
  accrt_status_t status = ACCRT_ERROR_OUT_OF_MEMORY;
  for (long n = 0; status != ACCRT_OK; ++n) {
    accrt_session_t* session;
    OK(accrt_session_create(f->program, NULL, &session));
    accrt_call_t* call = make_call(session, "chain");
    OK(set_vector(call, "x", x, F32, 5));
    OK(set_vector(call, "y", y, F32, 5));
    OK(set_vector(call, "z", z, F32, 5));
    atomic_store(&f->watch.fail_at, atomic_load(&f->watch.count) + 1 + n);
    status = run(call);
    atomic_store(&f->watch.fail_at, 0);
    assert_true(status == ACCRT_OK || status == ACCRT_ERROR_OUT_OF_MEMORY);
    accrt_call_release(call);
    accrt_session_release(session);
    assert_true(n < 1000);
  }
  close_operators(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(strides_values_and_addresses),
      cmocka_unit_test(one_workspace_for_all),
      cmocka_unit_test(shapes_must_stay),
      cmocka_unit_test(errors_have_code_and_message),
      cmocka_unit_test(passed_over_with_the_reason),
      cmocka_unit_test(missing_pack),
      cmocka_unit_test(policy_is_asked),
      cmocka_unit_test(failing_allocations),
      cmocka_unit_test(programs_without_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
