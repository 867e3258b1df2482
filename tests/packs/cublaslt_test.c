/* cublaslt_test.c - the pack accrt.cublaslt through its own interface, with a stand-in for the
 * library on the CPU: layouts, epilogues and batches against plain loops, everything it
 * refuses, and every call of the library failing once. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "packs/cublaslt/matmul.h"

static const accrt_operator_def_t* operator_def;
static void* pack;
static int (*stand_in_calls)(void);
static int (*stand_in_heuristics)(void);
static uint64_t (*stand_in_chosen_for)(uint64_t* out_reduction);

static int setup(void** state) {
  (void)state;
  pack = dlopen(ACCRT_TEST_PACK, RTLD_NOW | RTLD_LOCAL);
  if (pack == NULL) {
    print_error("%s\n", dlerror());
    return 1;
  }
  accrt_kernel_pack_query_fn_t query;
  void* symbol = dlsym(pack, ACCRT_KERNEL_PACK_SYMBOL);
  memcpy(&query, &symbol, sizeof query);
  const accrt_kernel_pack_table_t* table = query(ACCRT_KERNEL_ABI_VERSION, NULL);
  if (table == NULL)
    return 1;
  operator_def = table->host_operators;
  void* library = dlopen("libcublasLt.so.13", RTLD_NOW);
  symbol = library ? dlsym(library, "cublasLtStandInCalls") : NULL;
  memcpy(&stand_in_calls, &symbol, sizeof stand_in_calls);
  symbol = library ? dlsym(library, "cublasLtStandInHeuristics") : NULL;
  memcpy(&stand_in_heuristics, &symbol, sizeof stand_in_heuristics);
  void* chosen_for = library ? dlsym(library, "cublasLtStandInChosenFor") : NULL;
  memcpy(&stand_in_chosen_for, &chosen_for, sizeof stand_in_chosen_for);
  return symbol == NULL || chosen_for == NULL;
}

enum { SPACE = 4096 };

/* ---- One product ------------------------------------------------------------------------------------------------- */

typedef struct product {
  matmul_params_t p;
  char message[256];
  accrt_operator_call_t call;
  uint64_t workspace_size_bytes;
  void* state;
} product_t;

static int64_t form_of(accrt_dtype_t a, accrt_dtype_t c, accrt_dtype_t bias, int activation,
                       int64_t flags) {
  return (int64_t)a | (int64_t)c << 8 | (int64_t)bias << 16 | (int64_t)activation << 24 | flags;
}

static void describe(product_t* it, int64_t m, int64_t n, int64_t k, int64_t form) {
  const int nk = (form & MATMUL_FORM_B_IS_NK) != 0;
  memset(it, 0, sizeof *it);
  it->p = (matmul_params_t){
      .m = m,
      .n = n,
      .k = k,
      .lda = k + 3,
      .ldb = nk ? k + 1 : n + 5,
      .ldc = n + 2,
      .ld_residual = n + 7,
      .batch0 = 1,
      .batch1 = 1,
      .form = form,
      .scale = 1.0f,
      .a_bytes = 4 * SPACE,
      .b_bytes = 4 * SPACE,
      .bias_bytes = 4 * SPACE,
      .residual_bytes = 4 * SPACE,
      .c_bytes = 4 * SPACE,
  };
  it->call = (accrt_operator_call_t){
      .struct_size = sizeof it->call,
      .device_type = 2,
      .params_size_bytes = sizeof it->p,
      .params = &it->p,
      .message = it->message,
      .message_capacity_bytes = sizeof it->message,
  };
}

static int32_t prepare(product_t* it) {
  const int32_t code = operator_def->query_workspace(NULL, &it->call, &it->workspace_size_bytes);
  return code ? code : operator_def->prepare(NULL, &it->call, &it->state);
}

static int32_t execute(product_t* it) {
  static char workspace[4096];
  assert_true(it->workspace_size_bytes <= sizeof workspace);
  it->call.workspace = workspace;
  it->call.workspace_size_bytes = it->workspace_size_bytes;
  return operator_def->execute(NULL, &it->call, it->state);
}

static uint32_t seed = 20261120;
static float draw(void) {
  seed = seed * 1664525u + 1013904223u;
  return (float)(int32_t)(seed >> 24) / 64.0f - 2.0f; /* exact in bf16 and f16 */
}

static void put(accrt_dtype_t dtype, void* base, int64_t at, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (dtype == ACCRT_DTYPE_F32) {
    ((float*)base)[at] = value;
  } else if (dtype == ACCRT_DTYPE_BF16) {
    ((uint16_t*)base)[at] = (uint16_t)(bits >> 16);
  } else {
    const uint32_t exponent = (bits >> 23 & 255) - 112, fraction = bits >> 13 & 1023;
    ((uint16_t*)base)[at] =
        (uint16_t)(bits >> 16 & 0x8000) | (uint16_t)(value == 0 ? 0 : exponent << 10 | fraction);
  }
}

static double get(accrt_dtype_t dtype, const void* base, int64_t at) {
  if (dtype == ACCRT_DTYPE_F32)
    return (double)((const float*)base)[at];
  const uint32_t bits = (uint32_t)((const uint16_t*)base)[at] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

typedef struct operand {
  accrt_dtype_t dtype;
  char* memory;
  float* value;
} operand_t;

static operand_t operand_make(accrt_dtype_t dtype, size_t shift_bytes) {
  operand_t o = {dtype, calloc(1, SPACE * 4 + 64), calloc(SPACE, sizeof(float))};
  assert_true(o.memory != NULL && o.value != NULL);
  for (int64_t i = 0; i < SPACE; ++i) {
    o.value[i] = draw();
    put(dtype, o.memory + shift_bytes, i, o.value[i]);
  }
  return o;
}

static void operand_free(operand_t* o) {
  free(o->memory);
  free(o->value);
}

static double expected(const product_t* it, const operand_t* o, int64_t z, int64_t row,
                       int64_t column) {
  const matmul_params_t* p = &it->p;
  const int64_t outer = z / p->batch1, inner = z % p->batch1;
  const float* a = o[0].value + outer * p->a0 + inner * p->a1;
  const float* b = o[1].value + outer * p->b0 + inner * p->b1;
  double sum = 0;
  for (int64_t i = 0; i < p->k; ++i) {
    const int64_t at = p->form & MATMUL_FORM_B_IS_NK ? column * p->ldb + i : i * p->ldb + column;
    sum += (double)a[row * p->lda + i] * (double)b[at];
  }
  sum *= (double)p->scale;
  if (MATMUL_FORM_BIAS(p->form))
    sum += (double)o[2].value[column];
  if (MATMUL_FORM_ACTIVATION(p->form) == MATMUL_RELU)
    sum = sum < 0 ? 0 : sum;
  if (MATMUL_FORM_ACTIVATION(p->form) == MATMUL_GELU_TANH)
    sum = 0.5 * sum * (1 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
  if (p->form & MATMUL_FORM_RESIDUAL)
    sum += (double)o[3].value[row * p->ld_residual + column];
  return sum;
}

/** Runs it with arguments that begin `shift_bytes` past an aligned address. */
static void run_and_compare(product_t* it, size_t shift_bytes) {
  matmul_params_t* p = &it->p;
  const accrt_dtype_t a = MATMUL_FORM_A(p->form), c = MATMUL_FORM_C(p->form);
  operand_t o[5] = {operand_make(a, shift_bytes), operand_make(a, shift_bytes),
                    operand_make(c, shift_bytes), operand_make(c, shift_bytes),
                    operand_make(c, shift_bytes)};
  assert_int_equal(prepare(it), 0);
  p->a = o[0].memory + shift_bytes;
  p->b = o[1].memory + shift_bytes;
  p->bias = MATMUL_FORM_BIAS(p->form) ? o[2].memory + shift_bytes : NULL;
  p->residual = p->form & MATMUL_FORM_RESIDUAL ? o[3].memory + shift_bytes : NULL;
  p->c = o[4].memory + shift_bytes;
  const int32_t code = execute(it);
  if (code != 0)
    fail_msg("code %d: %s", (int)code, it->message);
  const double relative = c == ACCRT_DTYPE_F32 ? 1e-6 : 1.0 / 128; /* the stand-in cuts bf16 off */
  for (int64_t z = 0; z < p->batch0 * p->batch1; ++z) {
    for (int64_t i = 0; i < p->m * p->n; ++i) {
      const int64_t row = i / p->n, column = i % p->n;
      const double want = expected(it, o, z, row, column);
      const int64_t at = z / p->batch1 * p->c0 + z % p->batch1 * p->c1 + row * p->ldc + column;
      const double have = get(c, p->c, at);
      if (!(fabs(have - want) <= relative * (fabs(want) + 1)))
        fail_msg("batch %lld row %lld column %lld: %g, not %g", (long long)z, (long long)row,
                 (long long)column, have, want);
    }
  }
  operator_def->destroy(NULL, it->state);
  for (size_t i = 0; i < 5; ++i)
    operand_free(&o[i]);
}

static void products_match(void** state) {
  (void)state;
  print_message("seed %u\n", seed);
  const accrt_dtype_t types[][2] = {{ACCRT_DTYPE_F32, ACCRT_DTYPE_F32},
                                    {ACCRT_DTYPE_BF16, ACCRT_DTYPE_BF16},
                                    {ACCRT_DTYPE_BF16, ACCRT_DTYPE_F32},
                                    {ACCRT_DTYPE_F16, ACCRT_DTYPE_F32}};
  const int activations[] = {MATMUL_NONE, MATMUL_RELU, MATMUL_GELU_TANH};
  for (size_t t = 0; t < 4; ++t) {
    for (size_t i = 0; i < 3 * 8; ++i) {
      const int64_t flags =
          (i & 1 ? MATMUL_FORM_B_IS_NK : 0) | (i & 2 && i / 8 == 0 ? MATMUL_FORM_RESIDUAL : 0);
      product_t it;
      const accrt_dtype_t bias = i & 4 ? types[t][1] : ACCRT_DTYPE_NONE;
      describe(&it, 5 + (int64_t)i, 7, 9,
               form_of(types[t][0], types[t][1], bias, activations[i / 8], flags));
      it.p.scale = i & 1 ? 1.0f : 0.5f;
      run_and_compare(&it, i & 1 ? 4 : 0);
    }
  }
}

static void batches_match(void** state) {
  (void)state;
  for (int64_t outer = 1; outer < 4; outer += 2) {
    for (int64_t inner = 1; inner < 4; ++inner) {
      product_t it;
      describe(&it, 4, 6, 5, form_of(ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, 0, 0, MATMUL_FORM_B_IS_NK));
      it.p.batch0 = outer, it.p.batch1 = inner;
      it.p.a1 = 40, it.p.b1 = 0, it.p.c1 = 50; /* one b for all */
      it.p.a0 = 40 * inner, it.p.b0 = 0, it.p.c0 = 50 * inner;
      run_and_compare(&it, 0);
    }
  }
}

static void empty_products_do_nothing(void** state) {
  (void)state;
  product_t it;
  describe(&it, 0, 6, 5, form_of(ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, 0, 0, 0));
  assert_int_equal(prepare(&it), 0);
  assert_int_equal(it.workspace_size_bytes, 0);
  assert_int_equal(execute(&it), 0);
  operator_def->destroy(NULL, it.state);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void refused(product_t* it, int32_t code, const char* text) {
  assert_int_equal(prepare(it), code);
  assert_null(it->state);
  if (strstr(it->message, text) == NULL)
    fail_msg("'%s' does not say '%s'", it->message, text);
  it->call.message_capacity_bytes = 0; /* nobody listens */
  it->message[0] = 'x';
  assert_int_equal(operator_def->prepare(NULL, &it->call, &it->state), code);
  assert_int_equal(it->message[0], 'x');
}

static void what_it_does_not_do_is_refused(void** state) {
  (void)state;
  const accrt_dtype_t f32 = ACCRT_DTYPE_F32, bf16 = ACCRT_DTYPE_BF16;
  product_t it;
  describe(&it, 2, 3, 4, form_of(f32, f32, 0, 2, 0)); /* GELU with erf */
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "activation is not supported (2)");
  describe(&it, 2, 3, 4, form_of(f32, f32, 0, MATMUL_RELU, MATMUL_FORM_RESIDUAL));
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "activation with residual");
  describe(&it, 2, 3, 4, form_of(ACCRT_DTYPE_I8, f32, 0, 0, 0));
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "types of a and c");
  describe(&it, 2, 3, 4, form_of(f32, bf16, 0, 0, 0));
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "types of a and c");
  describe(&it, 2, 3, 4, form_of(bf16, bf16, f32, 0, 0));
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "another type than c");
  describe(&it, 2, 3, 0, form_of(f32, f32, 0, 0, 0));
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "a size is out of range (0)");
  describe(&it, 2, 3, 4, form_of(f32, f32, 0, 0, 0));
  it.p.batch0 = 2, it.p.batch1 = 2, it.p.a0 = 7, it.p.a1 = 8;
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "batch steps");
  describe(&it, 2, 3, 4, form_of(f32, f32, 0, 0, 0));
  it.p.batch0 = (int64_t)1 << 40;
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "too large a batch");
  describe(&it, 2, 3, 4, form_of(f32, f32, 0, 0, 0));
  it.call.params_size_bytes = 40;
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "parameter block is too small (40)");
  describe(&it, 1, 1, 4, form_of(f32, f32, 0, 0, 0));
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "no algorithm");
}

static void bad_executions_are_refused(void** state) {
  (void)state;
  product_t it;
  describe(&it, 2, 3, 4,
           form_of(ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, 0, MATMUL_FORM_RESIDUAL));
  assert_int_equal(prepare(&it), 0);
  assert_int_equal(execute(&it), MATMUL_ERROR_ARGUMENT);
  assert_non_null(strstr(it.message, "missing"));
  float number = 0;
  it.p.bias = it.p.residual = &number;
  it.workspace_size_bytes -= 1;
  assert_int_equal(execute(&it), MATMUL_ERROR_ARGUMENT);
  assert_non_null(strstr(it.message, "workspace"));
  operator_def->destroy(NULL, it.state);
  operator_def->destroy(NULL, NULL);
}

/** Prepares and runs a product that was not seen before; -1 when all went well. */
static int32_t try_product(int64_t k, char* message, size_t capacity_bytes) {
  static float numbers[1024];
  product_t it;
  describe(&it, 2, 3, k,
           form_of(ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, 0, MATMUL_FORM_B_IS_NK));
  it.p.batch1 = 2, it.p.a1 = it.p.b1 = it.p.c1 = 4;
  int32_t code = prepare(&it);
  if (code == 0) {
    it.p.a = it.p.b = it.p.bias = it.p.c = numbers;
    code = execute(&it);
  }
  operator_def->destroy(NULL, it.state);
  snprintf(message, capacity_bytes, "%s", it.message);
  return code ? code : -1;
}

static void every_call_may_fail(void** state) {
  (void)state;
  char message[256], number[16];
  int failures = 0;
  for (int64_t k = 10;; ++k) {
    snprintf(number, sizeof number, "%d", stand_in_calls() + 1 + failures);
    setenv("STAND_IN_FAIL", number, 1);
    const int32_t code = try_product(k, message, sizeof message);
    if (code == -1)
      break;
    assert_true(code == MATMUL_ERROR_CALL || code == MATMUL_ERROR_UNSUPPORTED);
    assert_non_null(strstr(message, "CUBLAS_STATUS"));
    failures++;
  }
  unsetenv("STAND_IN_FAIL");
  assert_true(failures > 30);
  assert_int_equal(try_product(9, message, sizeof message), -1);
}

/** How often an algorithm is asked for while a product is prepared, its workspace asked for included. */
static int asked_for(product_t* it) {
  const int before = stand_in_heuristics();
  assert_int_equal(prepare(it), 0);
  operator_def->destroy(NULL, it->state);
  it->state = NULL;
  return stand_in_heuristics() - before;
}

/** Whatever the number of rows, batch-invariant products take the algorithm that was chosen for 256,
 * whose sums have no parts. */
static void invariant_products_have_one_algorithm(void** state) {
  (void)state;
  const int64_t form = form_of(ACCRT_DTYPE_BF16, ACCRT_DTYPE_F32, 0, 0,
                               MATMUL_FORM_B_IS_NK | MATMUL_FORM_BATCH_INVARIANT);
  const int64_t rows[] = {1, 7, 90};
  uint64_t reduction;
  product_t it;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const int asked = stand_in_heuristics();
    describe(&it, rows[i], 19, 33, form);
    run_and_compare(&it, 0);
    assert_int_equal(stand_in_chosen_for(&reduction), 256);
    assert_int_equal(reduction, 0);
    assert_int_equal(stand_in_heuristics() - asked, i == 0 ? 2 : 0);
  }
  describe(&it, 7, 19, 33, form & ~MATMUL_FORM_BATCH_INVARIANT);
  run_and_compare(&it, 0);
  assert_int_equal(stand_in_chosen_for(&reduction), 7);
  assert_int_equal(reduction, 2);
  describe(&it, 5000, 19, 33, form); /* for which the stand-in's algorithms are not */
  refused(&it, MATMUL_ERROR_UNSUPPORTED, "does not do rows (5000)");
}

/** Once for wide and once for narrow addresses, then never again for the same product; every part of a shape counts, and the
 * device, whose algorithms need not be another's. */
static void choices_are_kept(void** state) {
  (void)state;
  const int64_t form = form_of(ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, 0, 0, 0);
  product_t it;
  describe(&it, 5, 6, 700, form);
  assert_int_equal(asked_for(&it), 2);
  for (int i = 0; i < 5; ++i)
    assert_int_equal(asked_for(&it), 0);
  int64_t* const parts[] = {&it.p.m, &it.p.n, &it.p.k, &it.p.lda, &it.p.ldb, &it.p.ldc};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; ++i) {
    *parts[i] += 1;
    if (i < 3) /* rows of a longer matrix are longer */
      it.p.lda = it.p.ldb = it.p.ldc = 800 + (int64_t)i;
    assert_int_equal(asked_for(&it), 2);
    assert_int_equal(asked_for(&it), 0);
  }
  it.p.form = form_of(ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, 0, MATMUL_RELU, 0);
  assert_int_equal(asked_for(&it), 2);
  it.call.device_id = 1;
  assert_int_equal(asked_for(&it), 2);
  assert_int_equal(asked_for(&it), 0);
  it.call.device_id = 0;
  assert_int_equal(asked_for(&it), 0);
  /* What failed is not kept. */
  it.p.k = 650;
  char number[16];
  const int before = stand_in_calls(), asked = stand_in_heuristics();
  product_t other = it;
  other.p.k = 651;
  other.call.params = &other.p;
  assert_int_equal(prepare(&other), 0); /* tells how many calls there are */
  operator_def->destroy(NULL, other.state);
  assert_int_equal(stand_in_heuristics() - asked, 2);
  int failed = 0;
  for (int nth = 1; nth <= stand_in_calls() - before && failed == 0; ++nth) {
    snprintf(number, sizeof number, "%d", stand_in_calls() + nth);
    setenv("STAND_IN_FAIL", number, 1);
    failed = prepare(&it);
    unsetenv("STAND_IN_FAIL");
    operator_def->destroy(NULL, it.state);
    it.state = NULL;
  }
  assert_int_not_equal(failed, 0);
  assert_int_equal(asked_for(&it), 2);
}

/** A bundle chooses sizes and steps: nothing is touched past a buffer's length, and no sum wraps around. */
static void hostile_sizes_are_refused(void** state) {
  (void)state;
  const accrt_dtype_t f32 = ACCRT_DTYPE_F32;
  static float memory[SPACE];
  product_t it;
  describe(&it, 5, 6, 7, form_of(f32, f32, f32, 0, MATMUL_FORM_RESIDUAL));
  it.p.batch0 = 3, it.p.a0 = 100, it.p.b0 = 101, it.p.c0 = 102;
  it.p.a = it.p.b = it.p.bias = it.p.residual = memory, it.p.c = memory;
  assert_int_equal(prepare(&it), 0);
  const int64_t needed[] = {4 * (2 * 100 + 4 * it.p.lda + 7), 4 * (2 * 101 + 6 * it.p.ldb + 6),
                            4 * 6, 4 * (2 * 102 + 4 * it.p.ld_residual + 6),
                            4 * (2 * 102 + 4 * it.p.ldc + 6)};
  int64_t* const lengths[] = {&it.p.a_bytes, &it.p.b_bytes, &it.p.bias_bytes, &it.p.residual_bytes,
                              &it.p.c_bytes};
  for (int i = 0; i < 5; ++i)
    *lengths[i] = needed[i];
  assert_int_equal(execute(&it), 0);
  for (int i = 0; i < 5; ++i) {
    *lengths[i] = needed[i] - 1;
    assert_int_equal(execute(&it), MATMUL_ERROR_ARGUMENT);
    assert_non_null(strstr(it.message, "longer than its buffer"));
    *lengths[i] = needed[i];
  }
  operator_def->destroy(NULL, it.state);
  static const int64_t huge[] = {INT64_MAX, INT64_MAX / 2, INT64_MAX / 4 + 1, INT64_MIN, -1};
  for (size_t h = 0; h < sizeof huge / sizeof huge[0]; ++h) {
    for (int which = 0; which < 12; ++which) {
      describe(&it, 5, 6, 7, form_of(f32, f32, f32, 0, MATMUL_FORM_RESIDUAL));
      it.p.batch0 = it.p.batch1 = 2, it.p.a0 = it.p.b0 = it.p.c0 = 2;
      it.p.a1 = it.p.b1 = it.p.c1 = 1;
      int64_t* const parts[] = {&it.p.m,   &it.p.n,           &it.p.k,      &it.p.lda,
                                &it.p.ldb, &it.p.ldc,         &it.p.batch0, &it.p.batch1,
                                &it.p.a1,  &it.p.ld_residual, &it.p.b1,     &it.p.c1};
      *parts[which] = huge[h];
      assert_int_equal(prepare(&it), MATMUL_ERROR_UNSUPPORTED);
    }
  }
}

/** A first product whose handle cannot be made; later ones have one. */
static void a_handle_may_fail(void** state) {
  (void)state;
  char number[16];
  product_t it;
  describe(&it, 2, 3, 4, form_of(ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, 0, 0, 0));
  it.call.device_id = 5;
  snprintf(number, sizeof number, "%d", stand_in_calls() + 1);
  setenv("STAND_IN_FAIL", number, 1);
  assert_int_equal(prepare(&it), MATMUL_ERROR_LIBRARY);
  unsetenv("STAND_IN_FAIL");
  assert_non_null(strstr(it.message, "device 5: CUBLAS_STATUS_INTERNAL_ERROR"));
  assert_int_equal(prepare(&it), 0);
  operator_def->destroy(NULL, it.state);
}

/** Run where no library is: the pack refuses. */
static int missing(void) {
  void* found = dlopen("libcublasLt.so.13", RTLD_LAZY);
  pack = dlopen(ACCRT_TEST_PACK, RTLD_NOW | RTLD_LOCAL);
  void* symbol = pack ? dlsym(pack, ACCRT_KERNEL_PACK_SYMBOL) : NULL;
  accrt_kernel_pack_query_fn_t query;
  memcpy(&query, &symbol, sizeof query);
  if (query == NULL || query(1, NULL) != NULL)
    return 1; /* an older runtime is always refused */
  if (found != NULL)
    return 77; /* this machine has the library */
  return query(ACCRT_KERNEL_ABI_VERSION, NULL) == NULL ? 0 : 1;
}

/** Run where a library lies in a folder that is not believed: it is not opened, and the pack
 * refuses. */
static int planted(void) {
  pack = dlopen(ACCRT_TEST_PACK, RTLD_NOW | RTLD_LOCAL);
  void* symbol = pack ? dlsym(pack, ACCRT_KERNEL_PACK_SYMBOL) : NULL;
  accrt_kernel_pack_query_fn_t query;
  memcpy(&query, &symbol, sizeof query);
  const accrt_kernel_pack_table_t* table = query ? query(ACCRT_KERNEL_ABI_VERSION, NULL) : NULL;
  if (query == NULL)
    return 1;
  if (table != NULL) { /* this machine has another, or the pack believes what was planted */
    product_t it;
    operator_def = table->host_operators;
    describe(&it, 2, 3, 4, form_of(ACCRT_DTYPE_F32, ACCRT_DTYPE_F32, 0, 0, MATMUL_FORM_B_IS_NK));
    (void)prepare(&it);
  }
  void* library = dlopen("libcublasLt.so.13", RTLD_LAZY | RTLD_NOLOAD);
  return library != NULL && dlsym(library, "cublasLtStandInCalls") != NULL;
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "planted") == 0)
    return planted();
  if (argc == 2 && strcmp(argv[1], "missing") == 0)
    return missing();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_match),
      cmocka_unit_test(batches_match),
      cmocka_unit_test(empty_products_do_nothing),
      cmocka_unit_test(what_it_does_not_do_is_refused),
      cmocka_unit_test(bad_executions_are_refused),
      cmocka_unit_test(hostile_sizes_are_refused),
      cmocka_unit_test(invariant_products_have_one_algorithm),
      cmocka_unit_test(choices_are_kept),
      cmocka_unit_test(every_call_may_fail),
      cmocka_unit_test(a_handle_may_fail),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
