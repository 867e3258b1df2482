/* runtime/program/expr.c - checked 64-bit evaluation of a bundle's expressions. It allocates
 * nothing. */
#include "runtime/program/expr.h"

#include <stddef.h>

#include "runtime/core/error.h"

static accrt_expr_value_t fault(uint32_t kind) {
  const accrt_expr_value_t result = {0, kind, ACCX_NONE};
  return result;
}

/* The quotient rounded down, and the remainder, which has the sign of the divisor. False on a
 * division by zero or an overflow. */
static bool divide(int64_t a, int64_t b, int64_t* out_quotient, int64_t* out_remainder) {
  if (b == -1 && a == INT64_MIN)
    return false;
  int64_t quotient = a / b;
  int64_t remainder = a % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    --quotient;
    remainder += b;
  }
  *out_quotient = quotient;
  *out_remainder = remainder;
  return true;
}

static accrt_expr_value_t apply_division(uint32_t op, int64_t a, int64_t b) {
  if (b == 0)
    return fault(ACCRT_EXPR_DIVIDE);
  if (op == ACCX_EXPR_MOD && b == -1)
    return accrt_expr_known(0);
  int64_t quotient;
  int64_t remainder;
  if (!divide(a, b, &quotient, &remainder))
    return fault(ACCRT_EXPR_OVERFLOW);
  if (op == ACCX_EXPR_MOD)
    return accrt_expr_known(remainder);
  if (op == ACCX_EXPR_CEILDIV && remainder != 0)
    ++quotient;
  return accrt_expr_known(quotient);
}

static accrt_expr_value_t apply_two(uint32_t op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
  case ACCX_EXPR_ADD:
    overflow = __builtin_add_overflow(a, b, &result);
    break;
  case ACCX_EXPR_SUB:
    overflow = __builtin_sub_overflow(a, b, &result);
    break;
  case ACCX_EXPR_MUL:
    overflow = __builtin_mul_overflow(a, b, &result);
    break;
  case ACCX_EXPR_FLOORDIV:
  case ACCX_EXPR_CEILDIV:
  case ACCX_EXPR_MOD:
    return apply_division(op, a, b);
  case ACCX_EXPR_MIN:
    result = a < b ? a : b;
    break;
  case ACCX_EXPR_MAX:
    result = a > b ? a : b;
    break;
  case ACCX_EXPR_EQ:
    result = a == b;
    break;
  case ACCX_EXPR_NE:
    result = a != b;
    break;
  case ACCX_EXPR_LT:
    result = a < b;
    break;
  case ACCX_EXPR_LE:
    result = a <= b;
    break;
  default:
    return fault(ACCRT_EXPR_NO_VALUE);
  }
  return overflow ? fault(ACCRT_EXPR_OVERFLOW) : accrt_expr_known(result);
}

accrt_expr_value_t accrt_expr_apply(uint32_t op, accrt_expr_value_t a, accrt_expr_value_t b,
                                    accrt_expr_value_t c) {
  if (a.fault != ACCRT_EXPR_OK)
    return a;
  if (op == ACCX_EXPR_NOT)
    return accrt_expr_known(a.value == 0);
  if (op == ACCX_EXPR_SELECT)
    return a.value != 0 ? b : c;
  if (op == ACCX_EXPR_AND && a.value == 0)
    return accrt_expr_known(0);
  if (op == ACCX_EXPR_OR && a.value != 0)
    return accrt_expr_known(1);
  if (b.fault != ACCRT_EXPR_OK)
    return b;
  if (op == ACCX_EXPR_AND || op == ACCX_EXPR_OR)
    return accrt_expr_known(b.value != 0);
  return apply_two(op, a.value, b.value);
}

static accrt_expr_value_t leaf(const accx_expression_t* node,
                               const accrt_expr_environment_t* environment) {
  const uint64_t index = (uint64_t)node->immediate;
  switch (node->op) {
  case ACCX_EXPR_CONSTANT:
    return accrt_expr_known(node->immediate);
  case ACCX_EXPR_SYMBOL:
    return environment->symbols[index];
  case ACCX_EXPR_INDUCTION:
    if (index >= environment->induction_count)
      return accrt_expr_unknown(ACCX_NONE);
    return accrt_expr_known(environment->inductions[index]);
  default: /* PRESENT */
    return accrt_expr_known(environment->present == NULL || environment->present[index] != 0);
  }
}

accrt_expr_value_t accrt_expr_node(const accx_expression_t* node,
                                   const accrt_expr_environment_t* environment,
                                   const accrt_expr_value_t* values) {
  const uint32_t count = accx_expression_operands(node->op);
  if (count == 0)
    return leaf(node, environment);
  const accrt_expr_value_t none = {0, ACCRT_EXPR_OK, ACCX_NONE};
  return accrt_expr_apply(node->op, values[node->a], count > 1 ? values[node->b] : none,
                          count > 2 ? values[node->c] : none);
}

void accrt_expr_evaluate(const accx_expression_t* nodes, uint32_t count,
                         const accrt_expr_environment_t* environment,
                         accrt_expr_value_t* out_values) {
  for (uint32_t i = 0; i < count; ++i)
    out_values[i] = accrt_expr_node(&nodes[i], environment, out_values);
}

accrt_status_t accrt_expr_fail(accrt_expr_value_t value, const char* symbol_name,
                               const char* what) {
  switch (value.fault) {
  case ACCRT_EXPR_OVERFLOW:
    return ACCRT_FAIL(OVERFLOW, "%s: the expression does not fit 64 bits", what);
  case ACCRT_EXPR_DIVIDE:
    return ACCRT_FAIL(OVERFLOW, "%s: the expression divides by zero", what);
  case ACCRT_EXPR_NO_VALUE:
    if (value.symbol == ACCX_NONE) {
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "%s: the expression uses a loop's counter outside the loop", what);
    }
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "%s: symbol '%s' has no value (the call leaves out all inputs that bind it)",
                      what, symbol_name);
  default:
    return ACCRT_FAIL(INTERNAL, "%s: expression fault %" PRIu32, what, value.fault);
  }
}
