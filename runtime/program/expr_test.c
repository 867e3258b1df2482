/* runtime/program/expr_test.c - every operation at its edges, and the lazy operands. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "accrt/instance.h"
#include "runtime/core/error.h"
#include "runtime/program/expr.h"

static accrt_expr_value_t apply(uint32_t op, int64_t a, int64_t b) {
  return accrt_expr_apply(op, accrt_expr_known(a), accrt_expr_known(b), accrt_expr_known(0));
}

static void expect(uint32_t op, int64_t a, int64_t b, int64_t result) {
  const accrt_expr_value_t value = apply(op, a, b);
  assert_int_equal(value.fault, ACCRT_EXPR_OK);
  assert_int_equal(value.value, result);
}

static void expect_fault(uint32_t op, int64_t a, int64_t b, uint32_t fault) {
  assert_int_equal(apply(op, a, b).fault, fault);
}

static void arithmetic(void** state) {
  (void)state;
  expect(ACCX_EXPR_ADD, INT64_MAX - 1, 1, INT64_MAX);
  expect_fault(ACCX_EXPR_ADD, INT64_MAX, 1, ACCRT_EXPR_OVERFLOW);
  expect(ACCX_EXPR_SUB, INT64_MIN + 1, 1, INT64_MIN);
  expect_fault(ACCX_EXPR_SUB, INT64_MIN, 1, ACCRT_EXPR_OVERFLOW);
  expect(ACCX_EXPR_MUL, INT64_C(1) << 31, INT64_C(1) << 31, INT64_C(1) << 62);
  expect_fault(ACCX_EXPR_MUL, INT64_C(1) << 32, INT64_C(1) << 31, ACCRT_EXPR_OVERFLOW);
  expect_fault(ACCX_EXPR_MUL, INT64_MIN, -1, ACCRT_EXPR_OVERFLOW);
}

/* Division as in Python, checked by its rule: q*b + r == a with r between 0 and b. */
static void division(void** state) {
  (void)state;
  for (int64_t a = -9; a <= 9; ++a) {
    for (int64_t b = -4; b <= 4; ++b) {
      if (b == 0)
        continue;
      const int64_t quotient = apply(ACCX_EXPR_FLOORDIV, a, b).value;
      const int64_t remainder = apply(ACCX_EXPR_MOD, a, b).value;
      assert_int_equal(quotient * b + remainder, a);
      assert_true(b > 0 ? remainder >= 0 && remainder < b : remainder <= 0 && remainder > b);
      expect(ACCX_EXPR_CEILDIV, a, b, -apply(ACCX_EXPR_FLOORDIV, -a, b).value);
    }
  }
  expect_fault(ACCX_EXPR_FLOORDIV, 1, 0, ACCRT_EXPR_DIVIDE);
  expect_fault(ACCX_EXPR_CEILDIV, 1, 0, ACCRT_EXPR_DIVIDE);
  expect_fault(ACCX_EXPR_MOD, 1, 0, ACCRT_EXPR_DIVIDE);
  expect_fault(ACCX_EXPR_FLOORDIV, INT64_MIN, -1, ACCRT_EXPR_OVERFLOW);
  expect_fault(ACCX_EXPR_CEILDIV, INT64_MIN, -1, ACCRT_EXPR_OVERFLOW);
  expect(ACCX_EXPR_MOD, INT64_MIN, -1, 0);
  expect(ACCX_EXPR_CEILDIV, INT64_MAX, 2, (INT64_C(1) << 62));
}

static void comparisons(void** state) {
  (void)state;
  expect(ACCX_EXPR_MIN, -1, 1, -1);
  expect(ACCX_EXPR_MAX, -1, 1, 1);
  expect(ACCX_EXPR_EQ, 3, 3, 1);
  expect(ACCX_EXPR_NE, 3, 3, 0);
  expect(ACCX_EXPR_LT, 3, 3, 0);
  expect(ACCX_EXPR_LE, 3, 3, 1);
  expect(ACCX_EXPR_AND, 2, -5, 1);
  expect(ACCX_EXPR_AND, 2, 0, 0);
  expect(ACCX_EXPR_OR, 0, 7, 1);
  expect(ACCX_EXPR_OR, 0, 0, 0);
  expect(ACCX_EXPR_NOT, 0, 0, 1);
  expect(ACCX_EXPR_NOT, 9, 0, 0);
}

static void lazy_operands(void** state) {
  (void)state;
  const accrt_expr_value_t zero = accrt_expr_known(0);
  const accrt_expr_value_t one = accrt_expr_known(1);
  const accrt_expr_value_t none = accrt_expr_unknown(4);
  assert_int_equal(accrt_expr_apply(ACCX_EXPR_AND, zero, none, zero).fault, ACCRT_EXPR_OK);
  assert_int_equal(accrt_expr_apply(ACCX_EXPR_AND, one, none, zero).symbol, 4);
  assert_int_equal(accrt_expr_apply(ACCX_EXPR_AND, none, zero, zero).fault, ACCRT_EXPR_NO_VALUE);
  assert_int_equal(accrt_expr_apply(ACCX_EXPR_OR, one, none, zero).value, 1);
  assert_int_equal(accrt_expr_apply(ACCX_EXPR_SELECT, one, zero, none).fault, ACCRT_EXPR_OK);
  assert_int_equal(accrt_expr_apply(ACCX_EXPR_SELECT, zero, zero, none).fault, ACCRT_EXPR_NO_VALUE);
  assert_int_equal(accrt_expr_apply(ACCX_EXPR_SELECT, none, zero, zero).fault, ACCRT_EXPR_NO_VALUE);
  assert_int_equal(accrt_expr_apply(ACCX_EXPR_ADD, one, none, zero).symbol, 4);
}

static void scopes(void** state) {
  (void)state;
  const uint32_t n = ACCX_NONE;
  const accx_expression_t nodes[] = {
      {ACCX_EXPR_SYMBOL, n, n, n, 1}, {ACCX_EXPR_CONSTANT, n, n, n, 10},
      {ACCX_EXPR_MUL, 0, 1, n, 0},    {ACCX_EXPR_INDUCTION, n, n, n, 0},
      {ACCX_EXPR_ADD, 2, 3, n, 0},    {ACCX_EXPR_PRESENT, n, n, n, 1},
      {ACCX_EXPR_SYMBOL, n, n, n, 0}, {ACCX_EXPR_SELECT, 5, 6, 4, 0},
  };
  const accrt_expr_value_t symbols[] = {accrt_expr_unknown(0), accrt_expr_known(7)};
  const uint8_t present[] = {1, 0};
  const int64_t induction = 3;
  accrt_expr_value_t values[8];
  const accrt_expr_environment_t inside = {symbols, present, &induction, 1};
  accrt_expr_evaluate(nodes, 8, &inside, values);
  assert_int_equal(values[4].value, 73);
  assert_int_equal(values[6].fault, ACCRT_EXPR_NO_VALUE);
  assert_int_equal(values[7].value, 73); /* the argument is absent, so symbol 0 does not matter */
  const accrt_expr_environment_t outside = {symbols, present, NULL, 0};
  accrt_expr_evaluate(nodes, 8, &outside, values);
  assert_int_equal(values[4].fault, ACCRT_EXPR_NO_VALUE);
  assert_int_equal(values[4].symbol, ACCX_NONE);
}

static void expect_message(accrt_expr_value_t value, accrt_status_t status, const char* text) {
  assert_int_equal(accrt_expr_fail(value, "seq", "grid x"), status);
  assert_non_null(strstr(accrt_error_current()->message, text));
  assert_non_null(strstr(accrt_error_current()->message, "grid x"));
}

static void messages(void** state) {
  (void)state;
  expect_message(apply(ACCX_EXPR_ADD, INT64_MAX, 1), ACCRT_ERROR_OVERFLOW, "64 bits");
  expect_message(apply(ACCX_EXPR_MOD, 1, 0), ACCRT_ERROR_OVERFLOW, "divides by zero");
  expect_message(accrt_expr_unknown(2), ACCRT_ERROR_INVALID_ARGUMENT, "'seq' has no value");
  expect_message(accrt_expr_unknown(ACCX_NONE), ACCRT_ERROR_INVALID_ARGUMENT, "outside the loop");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(arithmetic),    cmocka_unit_test(division), cmocka_unit_test(comparisons),
      cmocka_unit_test(lazy_operands), cmocka_unit_test(scopes),   cmocka_unit_test(messages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
