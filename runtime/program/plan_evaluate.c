/* runtime/program/plan_evaluate.c - what a call computes for its plan: patched values for the
 * call's symbols, and the checks that depend on them. It allocates nothing.
 */
#include "runtime/program/internal.h"

static accrt_status_t fail_check(const accrt_plan_check_t* check, const int64_t values[4]) {
  switch (check->kind) {
  case ACCRT_CHECK_RANGE:
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "%s: %" PRId64 " bytes at offset %" PRId64 " do not fit%s%s%s of %" PRId64
                      " bytes",
                      check->what, values[1], values[0], check->detail[0] != '\0' ? " '" : "",
                      check->detail, check->detail[0] != '\0' ? "'" : "", values[2]);
  case ACCRT_CHECK_GRID:
    return ACCRT_FAIL(OUT_OF_RANGE, "%s is %" PRId64 ", allowed: 0 to %" PRIu32, check->what,
                      values[0], UINT32_MAX);
  case ACCRT_CHECK_AT_LEAST:
    return ACCRT_FAIL(OUT_OF_RANGE, "%s '%s' is %" PRId64 ", at least %" PRId64 " is needed",
                      check->what, check->detail, values[0], values[1]);
  case ACCRT_CHECK_MULTIPLE:
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "%s '%s': offset %" PRId64 " and size %" PRId64
                      " must be multiples of the pattern's %" PRId64 " bytes",
                      check->what, check->detail, values[0], values[1], values[2]);
  case ACCRT_CHECK_DIMENSION:
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "%s: %" PRId64 " elements from %" PRId64 " on do not fit in %" PRId64
                      " (%" PRId64 " would be left)",
                      check->what, values[2], values[0], values[3], values[1]);
  case ACCRT_CHECK_ROWS:
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "%s: rows of %" PRId64 " bytes overlap in '%s': strides %" PRId64
                      " and %" PRId64 " bytes",
                      check->what, values[1], check->detail, values[2], values[3]);
  default:
    return ACCRT_FAIL(ALIASED,
                      "%s overlap in '%s': %" PRId64 " bytes at offset %" PRId64 " and %" PRId64
                      " bytes at offset %" PRId64,
                      check->what, check->detail, values[1], values[0], values[3], values[2]);
  }
}

static bool check_holds(uint32_t kind, const int64_t values[4]) {
  int64_t end;
  switch (kind) {
  case ACCRT_CHECK_RANGE:
    return values[0] >= 0 && values[1] >= 0 &&
           !__builtin_add_overflow(values[0], values[1], &end) && end <= values[2];
  case ACCRT_CHECK_GRID:
    return values[0] >= 0 && values[0] <= (int64_t)UINT32_MAX;
  case ACCRT_CHECK_AT_LEAST:
    return values[0] >= values[1];
  case ACCRT_CHECK_MULTIPLE:
    return values[2] > 0 && values[0] % values[2] == 0 && values[1] % values[2] == 0;
  case ACCRT_CHECK_ROWS:
    return values[0] != 0;
  case ACCRT_CHECK_DIMENSION:
    return (values[0] | values[1] | values[2] | values[3]) >= 0;
  /* DISJOINT: other checks place both ranges inside one object, so the sums cannot overflow. */
  default:
    return values[1] == 0 || values[3] == 0 || values[0] + values[1] <= values[2] ||
           values[2] + values[3] <= values[0];
  }
}

accrt_status_t accrt_plan_check_values(const accrt_plan_check_t* check, const int64_t values[4]) {
  return check_holds(check->kind, values) ? ACCRT_OK : fail_check(check, values);
}

static accrt_status_t fail_root(const accrt_plan_t* plan, accrt_expr_value_t value) {
  const char* symbol = "";
  if (value.symbol != ACCX_NONE) {
    symbol = accrt_program_string(plan->program, plan->program->tables->symbols[value.symbol].name);
  }
  const accrt_status_t status =
      accrt_expr_fail(value, symbol, "a value that depends on the call's symbols");
  accrt_error_prefix("function '%s'", accrt_function_name(plan->program, plan->function));
  return status;
}

static accrt_status_t make_check(const accrt_plan_t* plan, const accrt_plan_check_t* check,
                                 const accrt_expr_value_t* values) {
  int64_t known[4];
  for (int i = 0; i < 4; ++i) {
    const accrt_plan_value_t* value = &check->values[i];
    known[i] = value->node == ACCX_NONE ? value->constant : values[value->node].value;
  }
  if (check_holds(check->kind, known))
    return ACCRT_OK;
  const accrt_status_t status = fail_check(check, known);
  if (check->command == ACCX_NONE) {
    accrt_error_prefix("function '%s'", accrt_function_name(plan->program, plan->function));
    return status;
  }
  accrt_error_prefix("function '%s', command %" PRIu32 " '%s' of its plan",
                     accrt_function_name(plan->program, plan->function), check->command,
                     check->name);
  return status;
}

accrt_status_t accrt_plan_evaluate(const accrt_plan_t* plan, const accrt_expr_value_t* symbols,
                                   accrt_expr_value_t* values, uint64_t* out_scalars) {
  const accrt_expr_environment_t environment = {symbols, NULL, NULL, 0};
  accrt_expr_evaluate(plan->nodes, plan->node_count, &environment, values);
  for (uint32_t i = 0; i < plan->root_count; ++i) {
    const accrt_expr_value_t value = values[plan->roots[i]];
    if (value.fault != ACCRT_EXPR_OK)
      return fail_root(plan, value);
  }
  for (uint32_t i = 0; i < plan->check_count; ++i) {
    ACCRT_TRY(make_check(plan, &plan->checks[i], values));
  }
  for (uint32_t i = 0; i < plan->scalar_count; ++i) {
    out_scalars[i] = (uint64_t)values[plan->scalars[i]].value;
  }
  return ACCRT_OK;
}
