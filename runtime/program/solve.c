/* runtime/program/solve.c - from a call's shapes to values of symbols: it checks every dimension
 * and computes the shapes of results.
 *
 * The first bare dimension or scalar that names a symbol binds it. All later ones must be equal. It
 * allocates nothing.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/program/internal.h"

void accrt_call_prefix(const accrt_call_t* call, uint32_t argument) {
  char type[128] = "";
  if (!accrt_bundle_record_type_text(call->program->bundle, call->function, argument, type,
                                     sizeof type))
    (void)snprintf(type, sizeof type, "%s", "its type is too long to show");
  accrt_error_prefix("function '%s', %s '%s' (%s)",
                     accrt_function_name(call->program, call->function),
                     argument < call->input_count ? "input" : "result",
                     accrt_call_argument_name(call, argument), type);
}

static const char* symbol_name(const accrt_call_t* call, uint32_t symbol) {
  return symbol == ACCX_NONE
             ? ""
             : accrt_program_string(call->program, call->program->tables->symbols[symbol].name);
}

/* The origin of a number: "dimension 1" or "value". */
static const char* place_text(uint32_t dimension, char* text, size_t capacity_bytes) {
  if (dimension == ACCX_NONE)
    return "value";
  (void)snprintf(text, capacity_bytes, "dimension %" PRIu32, dimension);
  return text;
}

static accrt_status_t fail_range(const accrt_call_t* call, uint32_t argument, uint32_t dimension,
                                 uint32_t symbol, int64_t got) {
  char place[32];
  char range[96];
  const accrt_status_t status = ACCRT_FAIL(
      SHAPE_MISMATCH, "%s, symbol '%s': got %" PRId64 ", allowed: %s",
      place_text(dimension, place, sizeof place), symbol_name(call, symbol), got,
      accrt_symbol_range_text(&call->program->tables->symbols[symbol], range, sizeof range));
  accrt_call_prefix(call, argument);
  return status;
}

static accrt_status_t fail_equality(const accrt_call_t* call, uint32_t argument, uint32_t dimension,
                                    uint32_t symbol, int64_t got) {
  char place[32];
  char range[96];
  const uint32_t binder = call->binders[symbol];
  const accrt_status_t status = ACCRT_FAIL(
      SHAPE_MISMATCH,
      "%s, symbol '%s': got %" PRId64 ", but %s%s%s says %" PRId64 " (its range: %s)",
      place_text(dimension, place, sizeof place), symbol_name(call, symbol), got,
      binder == ACCX_NONE ? "the session" : "input '",
      binder == ACCX_NONE ? "" : accrt_call_argument_name(call, binder),
      binder == ACCX_NONE ? "" : "'", call->symbols[symbol].value,
      accrt_symbol_range_text(&call->program->tables->symbols[symbol], range, sizeof range));
  accrt_call_prefix(call, argument);
  return status;
}

/* Binds a symbol, or checks that it already has this value. */
static accrt_status_t bind_or_check(accrt_call_t* call, uint32_t argument, uint32_t dimension,
                                    uint32_t symbol, int64_t value) {
  accrt_expr_value_t* present = &call->symbols[symbol];
  if (present->fault == ACCRT_EXPR_OK) {
    return present->value == value ? ACCRT_OK
                                   : fail_equality(call, argument, dimension, symbol, value);
  }
  if (!accrt_symbol_allows(&call->program->tables->symbols[symbol], value)) {
    return fail_range(call, argument, dimension, symbol, value);
  }
  *present = accrt_expr_known(value);
  call->binders[symbol] = argument;
  return ACCRT_OK;
}

static const accx_expression_t* dimension_node(const accrt_call_t* call, uint32_t argument,
                                               uint32_t dimension) {
  return &accrt_function_scope(call->program,
                               call->function)[call->signature[argument].type.dims[dimension]];
}

static accrt_status_t fail_unbound(const accrt_call_t* call, uint32_t argument) {
  const accrt_status_t status = ACCRT_FAIL(INVALID_ARGUMENT, "it is not bound");
  accrt_call_prefix(call, argument);
  return status;
}

static accrt_status_t bind_symbols(accrt_call_t* call) {
  for (uint32_t i = 0; i < call->input_count; ++i) {
    const accx_argument_t* record = &call->signature[i];
    const accrt_call_argument_t* argument = &call->arguments[i];
    call->present[i] = argument->bound;
    if (!argument->bound && (record->flags & ACCX_ARGUMENT_FLAG_OPTIONAL) != 0)
      continue;
    if (!argument->bound)
      return fail_unbound(call, i);
    accrt_status_t status = ACCRT_OK;
    if (record->kind == ACCX_ARGUMENT_SCALAR)
      status = bind_or_check(call, i, ACCX_NONE, record->symbol, argument->scalar);
    for (uint32_t d = 0; d < record->type.rank && status == ACCRT_OK; ++d) {
      const accx_expression_t* node = dimension_node(call, i, d);
      if (node->op == ACCX_EXPR_SYMBOL)
        status = bind_or_check(call, i, d, (uint32_t)node->immediate, argument->shape[d]);
    }
    if (status != ACCRT_OK)
      return status;
  }
  return ACCRT_OK;
}

static void evaluate_signature(accrt_call_t* call) {
  const accrt_program_function_t* info = &call->program->functions[call->function];
  const accx_expression_t* scope = accrt_function_scope(call->program, call->function);
  const accrt_expr_environment_t environment = {call->symbols, call->present, NULL, 0};
  for (uint32_t i = 0; i < info->signature_node_count; ++i) {
    const uint32_t node = info->signature_nodes[i];
    call->signature_values[node] =
        accrt_expr_node(&scope[node], &environment, call->signature_values);
  }
}

static accrt_status_t fail_value(const accrt_call_t* call, uint32_t argument, uint32_t dimension,
                                 accrt_expr_value_t value) {
  char place[32];
  const accrt_status_t status = accrt_expr_fail(value, symbol_name(call, value.symbol),
                                                place_text(dimension, place, sizeof place));
  accrt_call_prefix(call, argument);
  return status;
}

static accrt_status_t fail_dimension(const accrt_call_t* call, uint32_t argument,
                                     uint32_t dimension, int64_t got, int64_t expected) {
  const accrt_status_t status =
      ACCRT_FAIL(SHAPE_MISMATCH, "dimension %" PRIu32 ": got %" PRId64 ", expected %" PRId64,
                 dimension, got, expected);
  accrt_call_prefix(call, argument);
  return status;
}

static accrt_status_t check_dimensions(const accrt_call_t* call, uint32_t argument) {
  const accx_type_t* type = &call->signature[argument].type;
  const accrt_call_argument_t* given = &call->arguments[argument];
  for (uint32_t d = 0; d < type->rank; ++d) {
    const accrt_expr_value_t value = call->signature_values[type->dims[d]];
    if (value.fault != ACCRT_EXPR_OK)
      return fail_value(call, argument, d, value);
    if (value.value == given->shape[d])
      continue;
    const accx_expression_t* node = dimension_node(call, argument, d);
    if (node->op == ACCX_EXPR_SYMBOL)
      return fail_equality(call, argument, d, (uint32_t)node->immediate, given->shape[d]);
    return fail_dimension(call, argument, d, given->shape[d], value.value);
  }
  return ACCRT_OK;
}

static accrt_status_t fail_negative(const accrt_call_t* call, uint32_t argument, uint32_t dimension,
                                    int64_t value) {
  const accrt_status_t status =
      ACCRT_FAIL(OUT_OF_RANGE, "dimension %" PRIu32 " would be %" PRId64, dimension, value);
  accrt_call_prefix(call, argument);
  return status;
}

/* Computes the shape of a result that the caller did not bind. */
static accrt_status_t shape_result(accrt_call_t* call, uint32_t argument) {
  const accx_type_t* type = &call->signature[argument].type;
  accrt_call_argument_t* result = &call->arguments[argument];
  for (uint32_t d = 0; d < type->rank; ++d) {
    const accrt_expr_value_t value = call->signature_values[type->dims[d]];
    if (value.fault != ACCRT_EXPR_OK)
      return fail_value(call, argument, d, value);
    result->shape[d] = value.value;
    if (value.value < 0)
      return fail_negative(call, argument, d, value.value);
  }
  if (accrt_shape_bytes(type->dtype, type->rank, result->shape, &result->size_bytes))
    return ACCRT_OK;
  const accrt_status_t status = ACCRT_FAIL(OVERFLOW, "its size does not fit 63 bits");
  accrt_call_prefix(call, argument);
  return status;
}

accrt_status_t accrt_call_solve(accrt_call_t* call) {
  const uint32_t symbol_count = call->program->tables->symbol_count;
  for (uint32_t i = 0; i < symbol_count; ++i) {
    call->symbols[i] = call->session->symbols[i];
    call->binders[i] = ACCX_NONE;
  }
  ACCRT_TRY(bind_symbols(call));
  evaluate_signature(call);
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < call->argument_count && status == ACCRT_OK; ++i) {
    const bool is_result = i >= call->input_count;
    if (is_result && !call->arguments[i].bound) {
      status = shape_result(call, i);
    } else if (call->present[i]) {
      status = check_dimensions(call, i);
    }
  }
  return status;
}

accrt_status_t accrt_call_solve_scalars(accrt_call_t* call) {
  const uint8_t* quick = call->program->functions[call->function].quick_scalars;
  for (uint32_t i = 0; i < call->input_count; ++i) {
    if (!quick[i])
      continue;
    const uint32_t symbol = call->signature[i].symbol;
    const int64_t value = call->arguments[i].scalar;
    if (!accrt_symbol_allows(&call->program->tables->symbols[symbol], value)) {
      return fail_range(call, i, ACCX_NONE, symbol, value);
    }
    call->symbols[symbol] = accrt_expr_known(value);
  }
  return ACCRT_OK;
}
