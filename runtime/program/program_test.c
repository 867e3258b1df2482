/* runtime/program/program_test.c - programs: creation, refusals, variants, weights, estimates. */
#include "runtime/program/testing.h"

#include "runtime/core/struct.h"

/* ---- Creation and its refusals ---- */

static void creates_and_reflects(void** state) {
  FIXTURE(f);
  assert_ptr_equal(accrt_program_bundle(f->program), f->bundle);
  assert_null(accrt_program_bundle(NULL));
  accrt_program_t* again = accrt_program_retain(f->program);
  assert_ptr_equal(again, f->program);
  accrt_program_release(again);
  accrt_program_release(NULL);
  assert_null(accrt_program_retain(NULL));
}

static void refuses_bad_arguments(void** state) {
  FIXTURE(f);
  accrt_program_t* program = f->program;
  FAILS(accrt_program_create(NULL, f->bundle, NULL, &program), INVALID_ARGUMENT, "device is NULL");
  assert_null(program);
  FAILS(accrt_program_create(f->device, NULL, NULL, &program), INVALID_ARGUMENT, "bundle is NULL");
  FAILS(accrt_program_create(f->device, f->bundle, NULL, NULL), INVALID_ARGUMENT, "out_program");
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  options.flags = 4;
  FAILS(accrt_program_create(f->device, f->bundle, &options, &program), INVALID_ARGUMENT, "0x4");
  options.flags = 0;
  options.struct_size = 3;
  FAILS(accrt_program_create(f->device, f->bundle, &options, &program), INVALID_ARGUMENT,
        "struct_size 3");
}

static void refuses_another_instance(void** state) {
  FIXTURE(f);
  watch_t watch = {0};
  accrt_instance_t* other = open_instance(&watch, "1", ACCRT_HOST_CODE_ALL);
  accrt_bundle_t* bundle = open_bundle(other, "program");
  accrt_program_t* program;
  FAILS(accrt_program_create(f->device, bundle, NULL, &program), INVALID_ARGUMENT,
        "different instances");
  accrt_bundle_release(bundle);
  accrt_instance_release(other);
  assert_int_equal(atomic_load(&watch.live), 0);
}

static void asks_the_policy(void** state) {
  FIXTURE(f);
  (void)f;
  static const uint32_t policies[] = {ACCRT_HOST_CODE_DEFAULT, ACCRT_HOST_CODE_SIGNED,
                                      ACCRT_HOST_CODE_NONE};
  for (int i = 0; i < 3; ++i) {
    const uint32_t policy = policies[i];
    watch_t watch = {0};
    accrt_instance_t* instance = open_instance(&watch, "1", policy);
    accrt_device_t* device;
    OK(accrt_instance_device_by_name(instance, "host", &device));
    accrt_bundle_t* bundle = open_bundle(instance, "program");
    accrt_program_t* program;
    FAILS(accrt_program_create(device, bundle, NULL, &program), UNTRUSTED, "signed by no key");
    ALSO("accx trust add");
    ALSO("accx sign");
    ALSO("ACCRT_TRUST=all");
    ALSO(policy == ACCRT_HOST_CODE_NONE ? "'no-host-code'" : "'signed'");
    accrt_bundle_release(bundle);
    accrt_device_release(device);
    accrt_instance_release(instance);
    assert_int_equal(atomic_load(&watch.live), 0);
  }
}

static void refuse_bundle(fixture_t* f, const char* name, accrt_status_t status,
                          const char* const* texts) {
  accrt_bundle_t* bundle = open_bundle(f->instance, name);
  accrt_program_t* program;
  require_status(accrt_program_create(f->device, bundle, NULL, &program), status, texts[0], name,
                 __LINE__);
  assert_null(program);
  for (int i = 1; texts[i] != NULL; ++i)
    ALSO(texts[i]);
  accrt_bundle_release(bundle);
}
#define TEXTS(...) ((const char* const[]){__VA_ARGS__, NULL})

static void compares_declaration_and_image(void** state) {
  FIXTURE(f);
  const accrt_status_t status = ACCRT_ERROR_INVALID_FORMAT;
  refuse_bundle(f, "wrong_kind", status,
                TEXTS("affine", "parameter 4 ('n'", "kind is 3 in the bundle and 4"));
  refuse_bundle(f, "wrong_access", status,
                TEXTS("parameter 1 ('y'", "access is 3 in the bundle and 2"));
  refuse_bundle(f, "wrong_offset", status,
                TEXTS("size of the parameter block is 40 in the bundle and 32"));
  refuse_bundle(f, "wrong_size", status,
                TEXTS("parameter 2 ('alpha'", "size is 2 in the bundle and 4"));
  refuse_bundle(f, "wrong_flags", status,
                TEXTS("parameter 0 ('x'", "flags is 1 in the bundle and 0"));
  refuse_bundle(f, "wrong_count", status, TEXTS("number of parameters is 4 in the bundle and 5"));
  refuse_bundle(f, "wrong_local", status,
                TEXTS("reverse", "local memory is 128 in the bundle and 64"));
  refuse_bundle(f, "wrong_traits", status, TEXTS("traits is 0 in the bundle and 1"));
  refuse_bundle(f, "wrong_entry", status, TEXTS("no kernel 'no_such_entry'"));
}

static void says_why_no_variant(void** state) {
  FIXTURE(f);
  refuse_bundle(
      f, "no_variant", ACCRT_ERROR_NO_VARIANT,
      TEXTS("kernel 'affine' cannot run on host:0", "variant 0 (cuda sm_90): it is for driver cuda",
            "variant 1 (host z80): the device is ", "variant 2 (host portable): the device lacks",
            "variant 3 (host x86-64-v9): the device is"));
}

static void tells_a_failed_prepare(void** state) {
  FIXTURE(f);
  refuse_bundle(f, "broken_prepare", ACCRT_ERROR_KERNEL,
                TEXTS("prepare function 'broken'", "asked to fail"));
  assert_int_equal(accrt_error_current()->driver_code, 5);
}

static void overrides_variants(void** state) {
  FIXTURE(f);
  accrt_program_options_t options = ACCRT_PROGRAM_OPTIONS_INIT;
  options.variant_override = "x86-64-v1";
  accrt_program_t* program;
  FAILS(accrt_program_create(f->device, f->bundle, &options, &program), NO_VARIANT,
        "only variants for x86-64-v1 are asked for");
}

static void names_the_variant(void** state) {
  FIXTURE(f);
  const uint32_t kernel = accrt_bundle_lookup_kernel(f->bundle, "which");
  uint32_t variant = 9;
  uint64_t size = 0;
  char text[512];
  OK(accrt_program_variant(f->program, kernel, &variant, text, sizeof text, &size));
  assert_int_equal(size, strlen(text) + 1);
  assert_int_equal(variant, 0); /* none is free of predicates, so the preferred one */
  assert_non_null(strstr(text, "variant 0 (host portable): chosen"));
  assert_non_null(strstr(text, "variant 1 (host portable): where its argument predicates hold"));
  OK(accrt_program_variant(f->program, kernel, NULL, NULL, 0, &size));
  FAILS(accrt_program_variant(f->program, kernel, &variant, text, 5, &size), OUT_OF_RANGE,
        "5 were given");
  assert_int_equal(
      size,
      strlen("variant 0 (host portable): chosen; variant 1 (host portable): where its argument "
             "predicates hold") +
          1);
  FAILS(accrt_program_variant(f->program, 99, &variant, text, sizeof text, &size), OUT_OF_RANGE,
        "kernel 99");
  FAILS(accrt_program_variant(NULL, 0, &variant, text, sizeof text, &size), INVALID_ARGUMENT,
        "program is NULL");
}

static void family_rules(void** state) {
  FIXTURE(f);
  const accrt_bundle_tables_t* tables = f->program->tables;
  char arch_text[] = "x86-64";
  (void)arch_text;
  char why[160];
  /* Architectures are named by offsets in the bundle's strings. So build a program with another
   * string table. */
  static const char strings[] = "\0host\0x86-64-v2\0x86-64-v9\0x86-64";
  accrt_bundle_tables_t own = *tables;
  own.strings = strings;
  accrt_program_t program = *f->program;
  program.tables = &own;
  accx_variant_t variant = {.driver = 1, .arch_kind = ACCX_ARCH_FAMILY, .arch = 6};
  const char* device_arch = accrt_device_facts(f->device)->arch;
  const bool is_x86 = strncmp(device_arch, "x86-64-v", 8) == 0 && device_arch[8] >= '2';
  assert_int_equal(accrt_variant_fits(&program, &variant, why, sizeof why), is_x86);
  variant.arch = 26; /* plain x86-64 */
  assert_int_equal(accrt_variant_fits(&program, &variant, why, sizeof why), is_x86);
  variant.arch_kind = ACCX_ARCH_EXACT;
  assert_false(accrt_variant_fits(&program, &variant, why, sizeof why));
  variant.arch_kind = ACCX_ARCH_FAMILY;
  variant.arch = 16; /* v9 */
  assert_false(accrt_variant_fits(&program, &variant, why, sizeof why));
  variant.arch_kind = ACCX_ARCH_PORTABLE;
  assert_false(accrt_variant_fits(&program, &variant, why, sizeof why)); /* requires v9 or later */
  variant.arch = 0;
  variant.required_features = 8;
  assert_false(accrt_variant_fits(&program, &variant, why, sizeof why));
  assert_non_null(strstr(why, "0x8"));
}

static void orders_variants(void** state) {
  FIXTURE(f);
  static const char strings[] = "\0host\0x86-64-v3\0x86-64-v4\0x86-64-v2";
  accrt_bundle_tables_t own = *f->program->tables;
  const accx_variant_t variants[] = {
      {.driver = 1, .arch_kind = ACCX_ARCH_PORTABLE},
      {.driver = 1, .arch_kind = ACCX_ARCH_FAMILY, .arch = 26},
      {.driver = 1, .arch_kind = ACCX_ARCH_FAMILY, .arch = 6},
      {.driver = 1, .arch_kind = ACCX_ARCH_FAMILY, .arch = 16},
      {.driver = 1, .arch_kind = ACCX_ARCH_EXACT, .arch = 6},
      {.driver = 1, .arch_kind = ACCX_ARCH_PORTABLE, .priority = 1},
      {.driver = 1, .arch_kind = ACCX_ARCH_PORTABLE},
  };
  own.strings = strings;
  own.variants = variants;
  accrt_program_t program = *f->program;
  program.tables = &own;
  const uint32_t order[] = {5, 4, 3, 2, 1, 0, 6};
  for (int i = 0; i < 6; ++i) {
    assert_true(accrt_variant_compare(&program, order[i], order[i + 1]) < 0);
    assert_true(accrt_variant_compare(&program, order[i + 1], order[i]) > 0);
  }
  assert_int_equal(accrt_variant_compare(&program, 3, 3), 0);
}

/* ---- Weights ---- */

static void check_weights(accrt_call_t* call, float base, float step, float bias) {
  OK(run(call));
  const float* w = result_data(call, 0);
  const float* r = result_data(call, 1);
  const float* d = result_data(call, 2);
  for (int i = 0; i < 8; ++i) {
    const float value = base + step * (float)i;
    assert_true(w[i] == value + 10.0f);
    assert_true(r[i] == base + step * (float)(7 - i));
    assert_true(d[i] == 2.0f * value + bias);
  }
}

static void prepares_and_swaps(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "weights");
  check_weights(call, 0, 1, 0.5f);
  float fresh[8];
  for (int i = 0; i < 8; ++i)
    fresh[i] = 100.0f - (float)i;
  const int64_t n = 8;
  accrt_weight_t weight = {"weight", tensor_of(fresh, ACCRT_DTYPE_F32, 1, &n)};
  OK(accrt_program_swap_weights(f->program, &weight, 1, sizeof weight));
  memset(fresh, 0, sizeof fresh); /* the bytes were copied */
  check_weights(call, 100, -1, 0.5f);
  for (int i = 0; i < 8; ++i)
    fresh[i] = 3.0f;
  weight.name = "bias";
  OK(accrt_program_swap_weights(f->program, &weight, 1, sizeof weight));
  check_weights(call, 100, -1, 3.0f);
  OK(accrt_program_swap_weights(f->program, NULL, 0, sizeof weight));
  accrt_call_release(call);
}

static void swap_refuses(void** state) {
  FIXTURE(f);
  accrt_call_t* call = make_call(f->session, "weights");
  float fresh[8] = {0};
  int64_t n = 8;
  accrt_weight_t weights[2] = {{"weight", tensor_of(fresh, ACCRT_DTYPE_F32, 1, &n)},
                               {"weight", tensor_of(fresh, ACCRT_DTYPE_F32, 1, &n)}};
  const uint32_t size = sizeof weights[0];
  const uint32_t cancel = 1;
  accrt_budget_t budget = ACCRT_BUDGET_INIT;
  budget.cancel = &cancel;
  FAILS(accrt_program_swap_weights_within(f->program, weights, 1, size, &budget), CANCELLED,
        "replacing weights of");
  budget.cancel = NULL;
  budget.timeout_ns = 1;
  FAILS(accrt_program_swap_weights_within(f->program, weights, 1, size, &budget), TIMEOUT,
        "longer than its limit of 1 ns");
  FAILS(accrt_program_swap_weights(f->program, weights, 2, size), INVALID_ARGUMENT,
        "weight 'weight' is given twice");
  weights[1].name = "wieght";
  FAILS(accrt_program_swap_weights(f->program, weights, 2, size), NOT_FOUND,
        "did you mean 'weight'");
  weights[1].name = "reversed";
  FAILS(accrt_program_swap_weights(f->program, weights, 2, size), NOT_FOUND,
        "made by a prepare function");
  weights[1].name = "bias";
  weights[1].tensor.dtype = ACCRT_DTYPE_I32;
  FAILS(accrt_program_swap_weights(f->program, weights, 2, size), TYPE_MISMATCH,
        "weight 'bias' (f32): got i32");
  weights[1].tensor.dtype = ACCRT_DTYPE_F32;
  const int64_t small = 7;
  weights[1].tensor.shape = &small;
  FAILS(accrt_program_swap_weights(f->program, weights, 2, size), SHAPE_MISMATCH,
        "got 7, expected 8");
  weights[1].tensor.shape = &n;
  const int64_t stride = 2;
  weights[1].tensor.strides = &stride;
  FAILS(accrt_program_swap_weights(f->program, weights, 2, size), SHAPE_MISMATCH, "not contiguous");
  weights[1].tensor.strides = NULL;
  FAILS(accrt_program_swap_weights(f->program, weights, 2, size - 8), INVALID_ARGUMENT,
        "accrt_weight_t");
  weights[1].name = NULL;
  FAILS(accrt_program_swap_weights(f->program, weights, 2, size), INVALID_ARGUMENT, "NULL");
  FAILS(accrt_program_swap_weights(NULL, weights, 2, size), INVALID_ARGUMENT, "program is NULL");
  FAILS(accrt_program_swap_weights(f->program, NULL, 2, size), INVALID_ARGUMENT, "weights is NULL");
  check_weights(call, 0, 1, 0.5f); /* all or none: the valid one was not used either */
  accrt_call_release(call);
}

/* ---- Estimates ---- */

static accrt_memory_estimate_t estimate(fixture_t* f, const char* function,
                                        const accrt_symbol_value_t* symbols, uint32_t count) {
  accrt_memory_estimate_t result = ACCRT_MEMORY_ESTIMATE_INIT;
  OK(accrt_program_estimate(f->program, function, symbols, count, sizeof *symbols, &result));
  return result;
}

static void estimates_memory(void** state) {
  FIXTURE(f);
  const accrt_symbol_value_t symbols[] = {{"b", 17}, {"cap", 10}};
  accrt_memory_estimate_t e = estimate(f, "bucket", symbols, 2);
  assert_int_equal(e.state_bytes, 10 * 16 + 8 + 5);   /* cache, counter, nibbles */
  assert_int_equal(e.transient_bytes, 64 * 16 + 256); /* 17 is sized as its bucket, 64 */
  assert_int_equal(e.result_bytes, 64 * 16);
  assert_int_equal(e.weight_bytes, 3 * 32);
  e = estimate(f, "bucket", NULL, 0);
  assert_int_equal(e.state_bytes, 64 * 16 + 8 + 32);
  assert_int_equal(e.transient_bytes, 100 * 16 + 256); /* not 128: b is up to 100 */
  e = estimate(f, "calls", NULL, 0);
  assert_int_equal(e.transient_bytes,
                   256 + 64); /* the callee's 64, aligned to 256, after the caller's 32 */
  e = estimate(f, "inplace", NULL, 0);
  assert_int_equal(e.result_bytes, 0); /* in its input's memory */
}

static void estimate_refuses(void** state) {
  FIXTURE(f);
  accrt_memory_estimate_t e = ACCRT_MEMORY_ESTIMATE_INIT;
  const uint32_t size = sizeof(accrt_symbol_value_t);
  FAILS(accrt_program_estimate(f->program, "buckets", NULL, 0, size, &e), NOT_FOUND,
        "did you mean 'bucket'");
  accrt_symbol_value_t symbol = {"bb", 1};
  FAILS(accrt_program_estimate(f->program, "bucket", &symbol, 1, size, &e), NOT_FOUND,
        "no symbol 'bb'");
  symbol = (accrt_symbol_value_t){"m", 12};
  FAILS(accrt_program_estimate(f->program, "bucket", &symbol, 1, size, &e), SHAPE_MISMATCH,
        "symbol 'm': got 12, allowed: 8 to 64, multiples of 8");
  FAILS(accrt_program_estimate(f->program, "huge", NULL, 0, size, &e), OVERFLOW, "result 'y'");
  FAILS(accrt_program_estimate(f->program, "bucket", NULL, 1, size, &e), INVALID_ARGUMENT,
        "list is NULL");
  FAILS(accrt_program_estimate(f->program, "bucket", &symbol, 1, 12, &e), INVALID_ARGUMENT,
        "accrt_symbol_value_t");
  FAILS(accrt_program_estimate(f->program, "bucket", NULL, 0, size, NULL), INVALID_ARGUMENT,
        "accrt_memory_estimate_t");
  FAILS(accrt_program_estimate(NULL, "bucket", NULL, 0, size, &e), INVALID_ARGUMENT,
        "program is NULL");
  FAILS(accrt_program_estimate(f->program, NULL, NULL, 0, size, &e), INVALID_ARGUMENT,
        "name is NULL");
  FAILS(accrt_program_estimate(f->program, "step", NULL, 0, size, &e), PERMISSION_DENIED,
        "internal");
  FAILS(accrt_program_estimate(f->program, "make_doubled", NULL, 0, size, &e), PERMISSION_DENIED,
        "prepare");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      FIXTURE_TEST(creates_and_reflects),
      FIXTURE_TEST(refuses_bad_arguments),
      FIXTURE_TEST(refuses_another_instance),
      FIXTURE_TEST(asks_the_policy),
      FIXTURE_TEST(compares_declaration_and_image),
      FIXTURE_TEST(says_why_no_variant),
      FIXTURE_TEST(tells_a_failed_prepare),
      FIXTURE_TEST(overrides_variants),
      FIXTURE_TEST(names_the_variant),
      FIXTURE_TEST(family_rules),
      FIXTURE_TEST(orders_variants),
      FIXTURE_TEST(prepares_and_swaps),
      FIXTURE_TEST(swap_refuses),
      FIXTURE_TEST(estimates_memory),
      FIXTURE_TEST(estimate_refuses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
