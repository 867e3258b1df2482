/* write/layout_encode_test.c - quantization: the result is close, a report says how close, parts
 * give the same bytes as the whole, and no values or options cause writes outside the components.
 *
 * Prints the seed of its random values; ACCRT_TEST_SEED sets it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/accrt.h"
#include "accrt/write.h"
#include "format/layout.h"
#include "tests/random.h"

#define ROWS 256
#define COLUMNS 512
#define GUARD 64

static uint64_t random_state;

static uint64_t next_random(void) {
  return test_random(&random_state);
}
/* Near a normal distribution of deviation 0.02. */
static float next_normal(void) {
  float sum = 0;
  for (int i = 0; i < 12; ++i)
    sum += (float)(next_random() >> 40) * 0x1p-24f;
  return (sum - 6.0f) * 0.02f;
}

/* A weight in a layout, in memory with guards. */
typedef struct target {
  accrt_layout_tensor_t tensor;
  int64_t shape[2];
  unsigned char* memory[ACCRT_LAYOUT_ROLE_COUNT];
} target_t;

static void make_target(target_t* target, uint32_t layout, int64_t rows, int64_t columns) {
  memset(target, 0, sizeof *target);
  const accx_layout_t* known = accx_layout_find(layout);
  accrt_layout_tensor_t* tensor = &target->tensor;
  target->shape[0] = rows;
  target->shape[1] = columns;
  tensor->struct_size = sizeof *tensor;
  tensor->layout = layout;
  tensor->dtype = ACCRT_DTYPE_F32;
  tensor->rank = 2;
  tensor->shape = target->shape;
  tensor->group_elements = (known->flags & ACCRT_LAYOUT_FLAG_FREE_GROUP) != 0 ? 64 : 0;
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    if ((known->required_roles >> role & 1) == 0)
      continue;
    const uint32_t dtypes = known->dtypes[role];
    accrt_layout_component_t* component = &tensor->components[role];
    component->dtype = (dtypes >> ACCRT_DTYPE_F32 & 1) != 0 ? ACCRT_DTYPE_F32
                                                            : (accrt_dtype_t)__builtin_ctz(dtypes);
    assert_int_equal(accrt_layout_component_size(tensor, role, &component->size_bytes), ACCRT_OK);
    target->memory[role] = malloc(component->size_bytes + 2 * GUARD);
    assert_non_null(target->memory[role]);
    memset(target->memory[role], 0xA5, component->size_bytes + 2 * GUARD);
    component->data = target->memory[role] + GUARD;
  }
}

static void check_guards(const target_t* target) {
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    const unsigned char* memory = target->memory[role];
    const uint64_t size = target->tensor.components[role].size_bytes;
    for (uint64_t i = 0; memory != NULL && i < GUARD; ++i) {
      assert_int_equal(memory[i], 0xA5);
      assert_int_equal(memory[GUARD + size + i], 0xA5);
    }
  }
}

static void free_target(target_t* target) {
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role)
    free(target->memory[role]);
}

static float* make_weight(void) {
  float* weight = malloc(sizeof *weight * ROWS * COLUMNS);
  assert_non_null(weight);
  for (uint32_t i = 0; i < ROWS * COLUMNS; ++i)
    weight[i] = next_normal() * (next_random() % 500 == 0 ? 6.0f : 1.0f);
  return weight;
}

static bool writable(uint32_t index, uint32_t* out_layout) {
  const accx_layout_t* layout = accx_layout_at(index);
  *out_layout = layout->id;
  return (layout->flags & ACCRT_LAYOUT_FLAG_WRITABLE) != 0;
}

static double sqnr(const accrt_quantize_report_t* report) {
  return 10 * log10(report->weight_squares / report->error_squares);
}

/* Minimum signal-to-noise ratio in decibels, by bits of an element: that of a uniform quantizer for
 * normal values with a few outliers of six deviations, less 2. */
static double least_sqnr(uint32_t layout) {
  switch (layout) {
  case ACCRT_LAYOUT_PLAIN:
    return 140;
  case ACCRT_LAYOUT_I8_GROUP:
  case ACCRT_LAYOUT_Q8_0:
    return 38;
  case ACCRT_LAYOUT_Q6_K:
    return 30;
  case ACCRT_LAYOUT_Q5_K:
    return 24;
  case ACCRT_LAYOUT_I8_CHANNEL:
  case ACCRT_LAYOUT_F8_TENSOR:
  case ACCRT_LAYOUT_F8_CHANNEL:
  case ACCRT_LAYOUT_F8_BLOCK128:
  case ACCRT_LAYOUT_MXFP8:
    return 28;
  default:
    return 16;
  }
}

static void check_round_trip(uint32_t layout, const float* weight,
                             const accrt_quantize_options_t* options,
                             accrt_quantize_report_t* report) {
  target_t target;
  make_target(&target, layout, ROWS, COLUMNS);
  *report = (accrt_quantize_report_t)ACCRT_QUANTIZE_REPORT_INIT;
  assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, ROWS, options, report),
                   ACCRT_OK);
  check_guards(&target);
  float* back = malloc(sizeof *back * ROWS * COLUMNS);
  assert_non_null(back);
  assert_int_equal(accrt_layout_dequantize(&target.tensor, 0, ROWS, back), ACCRT_OK);
  double squares = 0, largest = 0;
  for (uint32_t i = 0; i < ROWS * COLUMNS; ++i) {
    const double error = (double)weight[i] - (double)back[i];
    squares += error * error;
    largest = fabs(error) > largest ? fabs(error) : largest;
  }
  /* The report is exactly about the dequantized values; only the sums are in another order. */
  assert_true(fabs(squares - report->error_squares) <= 1e-9 * squares);
  assert_true(largest == report->max_error);
  assert_int_equal(report->elements, ROWS * COLUMNS);
  free(back);
  free_target(&target);
}

static void test_round_trip(void** state) {
  (void)state;
  float* weight = make_weight();
  uint32_t layout;
  for (uint32_t i = 0; accx_layout_at(i) != NULL; ++i) {
    if (!writable(i, &layout))
      continue;
    accrt_quantize_report_t nearest, searched;
    check_round_trip(layout, weight, NULL, &nearest);
    if (sqnr(&nearest) < least_sqnr(layout))
      fail_msg("%s: %.2f dB", accx_layout_at(i)->name, sqnr(&nearest));
    accrt_quantize_options_t options = ACCRT_QUANTIZE_OPTIONS_INIT;
    options.method = ACCRT_QUANTIZE_SEARCH;
    check_round_trip(layout, weight, &options, &searched);
    /* Superblocks round their scales after the search. */
    assert_true(searched.error_squares <= nearest.error_squares * 1.001);
  }
  free(weight);
}

static void test_importance(void** state) {
  (void)state;
  float* weight = make_weight();
  float importance[COLUMNS];
  for (uint32_t i = 0; i < COLUMNS; ++i)
    importance[i] = i % 4 == 0 ? 100.0f : 0.01f;
  uint32_t layout;
  for (uint32_t i = 0; accx_layout_at(i) != NULL; ++i) {
    if (!writable(i, &layout) || layout == ACCRT_LAYOUT_PLAIN)
      continue;
    accrt_quantize_options_t options = ACCRT_QUANTIZE_OPTIONS_INIT;
    options.importance = importance;
    accrt_quantize_report_t nearest, searched;
    check_round_trip(layout, weight, &options, &nearest);
    options.method = ACCRT_QUANTIZE_SEARCH;
    check_round_trip(layout, weight, &options, &searched);
    if (!(searched.weighted_error_squares < nearest.weighted_error_squares))
      fail_msg("%s: %g beside %g", accx_layout_at(i)->name, searched.weighted_error_squares,
               nearest.weighted_error_squares);
  }
  free(weight);
}

static void test_parts_make_the_whole(void** state) {
  (void)state;
  float* weight = make_weight();
  uint32_t layout;
  for (uint32_t i = 0; accx_layout_at(i) != NULL; ++i) {
    if (!writable(i, &layout))
      continue;
    target_t whole, parts;
    make_target(&whole, layout, ROWS, COLUMNS);
    make_target(&parts, layout, ROWS, COLUMNS);
    accrt_quantize_report_t report = ACCRT_QUANTIZE_REPORT_INIT;
    assert_int_equal(accrt_layout_quantize(&whole.tensor, weight, 0, ROWS, NULL, &report),
                     ACCRT_OK);
    accrt_quantize_options_t options = ACCRT_QUANTIZE_OPTIONS_INIT;
    options.amax = (float)report.amax;
    const accrt_quantize_options_t* given =
        layout == ACCRT_LAYOUT_NVFP4 || layout == ACCRT_LAYOUT_F8_TENSOR ? &options : NULL;
    const uint64_t step = layout == ACCRT_LAYOUT_F8_BLOCK128 ? 128 : 64;
    for (uint64_t row = 0; row < ROWS; row += step)
      assert_int_equal(
          accrt_layout_quantize(&parts.tensor, weight + row * COLUMNS, row, step, given, NULL),
          ACCRT_OK);
    for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
      const uint64_t size = whole.tensor.components[role].size_bytes;
      if (size != 0)
        assert_memory_equal(whole.tensor.components[role].data, parts.tensor.components[role].data,
                            size);
    }
    free_target(&whole);
    free_target(&parts);
  }
  free(weight);
}

#define EXTREME_ROWS 130

static void test_extreme_values(void** state) {
  (void)state;
  static const float extremes[] = {0, -0.0f, 1e-45f, -1e-40f, 1e-30f, 0x1p60f, -0x1p60f, 1, -3e-8f};
  float* weight = malloc(sizeof *weight * EXTREME_ROWS * 256);
  float* back = malloc(sizeof *back * EXTREME_ROWS * 256);
  assert_true(weight != NULL && back != NULL);
  uint32_t layout;
  for (uint32_t kind = 0; kind < 4; ++kind) {
    for (uint32_t i = 0; i < EXTREME_ROWS * 256; ++i)
      weight[i] = kind == 0   ? 0.0f
                  : kind == 1 ? 1e-44f
                  : kind == 2 ? extremes[next_random() % (sizeof extremes / sizeof *extremes)]
                              : extremes[i / 16 % (sizeof extremes / sizeof *extremes)];
    for (uint32_t i = 0; accx_layout_at(i) != NULL; ++i) {
      if (!writable(i, &layout))
        continue;
      target_t target;
      make_target(&target, layout, EXTREME_ROWS, 256);
      accrt_quantize_options_t options = ACCRT_QUANTIZE_OPTIONS_INIT;
      options.method = i % 2;
      assert_int_equal(
          accrt_layout_quantize(&target.tensor, weight, 0, EXTREME_ROWS, &options, NULL), ACCRT_OK);
      check_guards(&target);
      assert_int_equal(accrt_layout_dequantize(&target.tensor, 0, EXTREME_ROWS, back), ACCRT_OK);
      for (uint32_t k = 0; k < EXTREME_ROWS * 256; ++k) {
        assert_true(isfinite(back[k]));
        assert_true(kind != 0 || back[k] == 0);
      }
      free_target(&target);
    }
  }
  free(weight);
  free(back);
}

/* Other types of scales and elements than the default: nearly as good. */
static void test_other_types(void** state) {
  (void)state;
  static const struct {
    uint32_t layout, role;
    accrt_dtype_t dtype;
    double least;
  } cases[] = {{ACCRT_LAYOUT_I8_GROUP, 1, ACCRT_DTYPE_F16, 38},
               {ACCRT_LAYOUT_I8_GROUP, 1, ACCRT_DTYPE_BF16, 38},
               {ACCRT_LAYOUT_I4_GROUP_ASYM, 1, ACCRT_DTYPE_F16, 16},
               {ACCRT_LAYOUT_F8_CHANNEL, 1, ACCRT_DTYPE_BF16, 28},
               {ACCRT_LAYOUT_F8_CHANNEL, 0, ACCRT_DTYPE_F8E5M2, 22},
               {ACCRT_LAYOUT_MXFP8, 0, ACCRT_DTYPE_F8E5M2, 22},
               {ACCRT_LAYOUT_PLAIN, 0, ACCRT_DTYPE_F16, 60},
               {ACCRT_LAYOUT_PLAIN, 0, ACCRT_DTYPE_BF16, 45}};
  float* weight = make_weight();
  for (uint32_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    target_t target;
    make_target(&target, cases[i].layout, ROWS, COLUMNS);
    accrt_layout_component_t* component = &target.tensor.components[cases[i].role];
    component->dtype = cases[i].dtype;
    if (cases[i].layout == ACCRT_LAYOUT_PLAIN)
      target.tensor.dtype = cases[i].dtype;
    assert_int_equal(
        accrt_layout_component_size(&target.tensor, cases[i].role, &component->size_bytes),
        ACCRT_OK);
    for (uint32_t method = 0; method < 2; ++method) {
      accrt_quantize_options_t options = ACCRT_QUANTIZE_OPTIONS_INIT;
      accrt_quantize_report_t report = ACCRT_QUANTIZE_REPORT_INIT;
      options.method = method;
      assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, ROWS, &options, &report),
                       ACCRT_OK);
      if (sqnr(&report) < cases[i].least)
        fail_msg("case %u: %.2f dB", i, sqnr(&report));
    }
    free_target(&target);
  }
  target_t target;
  make_target(&target, ACCRT_LAYOUT_PLAIN, 1, 1);
  target.tensor.dtype = target.tensor.components[0].dtype = ACCRT_DTYPE_I32;
  assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, 1, NULL, NULL),
                   ACCRT_ERROR_UNSUPPORTED);
  free_target(&target);
  free(weight);
}

static void test_refusals(void** state) {
  (void)state;
  float weight[256] = {1, 2, 3};
  float importance[256] = {0};
  target_t target;
  make_target(&target, ACCRT_LAYOUT_Q4_K, 1, 256);
  accrt_quantize_options_t options = ACCRT_QUANTIZE_OPTIONS_INIT;
  const float bad[] = {NAN, INFINITY, -INFINITY, 0x1.1p60f};
  for (uint32_t i = 0; i < 4; ++i) {
    weight[200] = bad[i];
    assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, 1, NULL, NULL),
                     ACCRT_ERROR_INVALID_ARGUMENT);
    weight[200] = 0;
    importance[3] = i == 3 ? -1.0f : bad[i];
    options.importance = importance;
    assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, 1, &options, NULL),
                     ACCRT_ERROR_INVALID_ARGUMENT);
    options.importance = NULL;
    options.amax = i == 3 ? -1.0f : bad[i];
    assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, 1, &options, NULL),
                     ACCRT_ERROR_INVALID_ARGUMENT);
    options.amax = 0;
  }
  options.method = 2;
  assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, 1, &options, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_layout_quantize(&target.tensor, NULL, 0, 1, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 1, 1, NULL, NULL),
                   ACCRT_ERROR_OUT_OF_RANGE);
  free_target(&target);
  make_target(&target, ACCRT_LAYOUT_AWQ, 8, 64);
  assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, 1, NULL, NULL),
                   ACCRT_ERROR_UNSUPPORTED);
  free_target(&target);
  make_target(&target, ACCRT_LAYOUT_F8_BLOCK128, 256, 1);
  assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, 100, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 64, 192, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  free_target(&target);
  make_target(&target, ACCRT_LAYOUT_NVFP4, 4, 64);
  assert_int_equal(accrt_layout_quantize(&target.tensor, weight, 0, 1, NULL, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  free_target(&target);
}

int main(void) {
  random_state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip),           cmocka_unit_test(test_importance),
      cmocka_unit_test(test_parts_make_the_whole), cmocka_unit_test(test_extreme_values),
      cmocka_unit_test(test_other_types),          cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
