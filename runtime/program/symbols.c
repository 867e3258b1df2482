/* runtime/program/symbols.c - ranges, buckets and values of shape symbols, and sizes that depend on
 * symbols.
 *
 * It knows no call: solve.c computes symbols from a call's shapes.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/core/near_name.h"
#include "runtime/core/struct.h"
#include "runtime/program/internal.h"

bool accrt_symbol_allows(const accx_symbol_t* symbol, int64_t value) {
  return value >= symbol->minimum && value <= symbol->maximum && value % symbol->divisor == 0;
}

const char* accrt_symbol_range_text(const accx_symbol_t* symbol, char* text,
                                    size_t capacity_bytes) {
  if (symbol->divisor == 1) {
    (void)snprintf(text, capacity_bytes, "%" PRId64 " to %" PRId64, symbol->minimum,
                   symbol->maximum);
  } else {
    (void)snprintf(text, capacity_bytes, "%" PRId64 " to %" PRId64 ", multiples of %" PRId64,
                   symbol->minimum, symbol->maximum, symbol->divisor);
  }
  return text;
}

int64_t accrt_symbol_bucket(const accrt_bundle_tables_t* tables, const accx_symbol_t* symbol,
                            int64_t value, int64_t* out_low) {
  const int64_t* const bounds = tables->buckets + symbol->bucket_first;
  uint32_t i = 0;
  while (i + 1 < symbol->bucket_count && bounds[i] < value)
    ++i;
  *out_low = i == 0 || bounds[i - 1] < symbol->minimum ? symbol->minimum : bounds[i - 1] + 1;
  return bounds[i];
}

static accrt_status_t fail_symbol_name(const accrt_program_t* program, const char* name,
                                       bool session_only) {
  accrt_near_t near;
  accrt_near_init(&near, name);
  const accrt_bundle_tables_t* tables = program->tables;
  for (uint32_t i = 0; i < tables->symbol_count; ++i) {
    if (session_only && tables->symbols[i].symbol_class != ACCX_SYMBOL_SESSION)
      continue;
    accrt_near_add(&near, accrt_program_string(program, tables->symbols[i].name));
  }
  return ACCRT_FAIL(NOT_FOUND, "bundle '%s' has no %ssymbol '%s'%s",
                    accrt_bundle_name(program->bundle), session_only ? "session " : "", name,
                    accrt_near_text(&near));
}

static accrt_status_t take_value(const accrt_program_t* program, const accrt_symbol_value_t* given,
                                 bool session_only, accrt_expr_value_t* values) {
  if (given->name == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "the name of a symbol is NULL");
  const uint32_t index = accrt_bundle_lookup_symbol(program->bundle, given->name);
  if (index == ACCX_NONE)
    return fail_symbol_name(program, given->name, session_only);
  const accx_symbol_t* symbol = &program->tables->symbols[index];
  if (session_only && symbol->symbol_class != ACCX_SYMBOL_SESSION) {
    return fail_symbol_name(program, given->name, session_only);
  }
  if (!accrt_symbol_allows(symbol, given->value)) {
    char range[96];
    return ACCRT_FAIL(SHAPE_MISMATCH, "symbol '%s': got %" PRId64 ", allowed: %s", given->name,
                      given->value, accrt_symbol_range_text(symbol, range, sizeof range));
  }
  if (values[index].fault == ACCRT_EXPR_OK)
    return ACCRT_FAIL(INVALID_ARGUMENT, "symbol '%s' is given twice", given->name);
  values[index] = accrt_expr_known(given->value);
  return ACCRT_OK;
}

accrt_status_t accrt_symbols_from_list(const accrt_program_t* program,
                                       const accrt_symbol_value_t* list, uint32_t count,
                                       uint32_t element_bytes, bool session_only,
                                       accrt_expr_value_t* out_values) {
  const accrt_bundle_tables_t* tables = program->tables;
  for (uint32_t i = 0; i < tables->symbol_count; ++i)
    out_values[i] = accrt_expr_unknown(i);
  if (count != 0) {
    if (list == NULL)
      return ACCRT_FAIL(INVALID_ARGUMENT, "%" PRIu32 " symbols and the list is NULL", count);
    ACCRT_TRY(accrt_struct_check_element("accrt_symbol_value_t", element_bytes, sizeof *list));
  }
  for (uint32_t i = 0; i < count; ++i)
    ACCRT_TRY(take_value(program, &list[i], session_only, out_values));
  for (uint32_t i = 0; i < tables->symbol_count; ++i) {
    const accx_symbol_t* symbol = &tables->symbols[i];
    const bool wanted = !session_only || symbol->symbol_class == ACCX_SYMBOL_SESSION;
    if (wanted && out_values[i].fault != ACCRT_EXPR_OK)
      out_values[i] = accrt_expr_known(symbol->maximum - symbol->maximum % symbol->divisor);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_state_size(const accrt_program_t* program, uint32_t state,
                                const accrt_expr_value_t* symbols, int64_t* out_shape,
                                uint64_t* out_size_bytes) {
  const accrt_bundle_tables_t* tables = program->tables;
  const accx_state_t* record = &tables->states[state];
  const char* const name = accrt_program_string(program, record->name);
  accrt_expr_value_t* values;
  void* memory;
  const uint32_t node_count = tables->module_expression_count;
  ACCRT_TRY(accrt_alloc_array(program->allocator, node_count, sizeof *values, &memory));
  values = memory;
  const accrt_expr_environment_t environment = {symbols, NULL, NULL, 0};
  accrt_expr_evaluate(tables->expressions, node_count, &environment, values);
  int64_t shape[ACCX_MAX_RANK] = {0};
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < record->type.rank && status == ACCRT_OK; ++i) {
    const accrt_expr_value_t value = values[record->type.dims[i]];
    shape[i] = value.value;
    if (value.fault == ACCRT_EXPR_OK)
      continue;
    const char* const symbol =
        value.symbol == ACCX_NONE
            ? ""
            : accrt_program_string(program, tables->symbols[value.symbol].name);
    status = accrt_expr_fail(value, symbol, "a dimension");
    accrt_error_prefix("state '%s', dimension %" PRIu32, name, i);
  }
  accrt_free_array(program->allocator, memory, node_count, sizeof *values);
  if (status != ACCRT_OK)
    return status;
  if (!accrt_shape_bytes(record->type.dtype, record->type.rank, shape, out_size_bytes)) {
    return ACCRT_FAIL(
        OVERFLOW, "state '%s': a dimension is negative, or its size does not fit 63 bits", name);
  }
  if (out_shape != NULL)
    memcpy(out_shape, shape, sizeof shape);
  return ACCRT_OK;
}
