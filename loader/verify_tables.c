/* loader/verify_tables.c - strings, symbols, expressions, types and states (rules 30 to 50, 56). It
 * reads private memory only, and takes linear time. */
#include "loader/internal.h"

#include "accrt/tensor.h"
#include "format/layout.h"
#include "runtime/core/utf8.h"

/* ---- Strings ---- */

/* Most tables are ASCII, and one pass over the whole table is quick. */
static bool is_ascii(const char* bytes, uint64_t size_bytes) {
  uint64_t bits = 0, at = 0;
  for (uint64_t word; size_bytes - at >= sizeof word; at += sizeof word) {
    memcpy(&word, bytes + at, sizeof word);
    bits |= word;
  }
  for (; at < size_bytes; ++at)
    bits |= (unsigned char)bytes[at];
  return (bits & UINT64_C(0x8080808080808080)) == 0;
}

static accrt_status_t check_utf8(const accx_verifier_t* verifier, const char* text,
                                 uint32_t index) {
  const size_t end = accrt_utf8_check(text);
  if (text[end] == '\0')
    return ACCRT_OK;
  return ACCX_REJECT(verifier, STRING_UTF8, "strings", index, NULL,
                     "byte 0x%02x at %zu is not UTF-8", (unsigned char)text[end], end);
}

accrt_status_t accx_verify_strings(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const char* strings = tables->strings;
  const uint64_t size = tables->strings_size_bytes;
  if (strings[0] != '\0' || strings[size - 1] != '\0') {
    return ACCX_REJECT(verifier, STRING_TABLE, "strings", ACCX_NONE, NULL,
                       "the first byte is %u and the last %u, not 0", (unsigned char)strings[0],
                       (unsigned char)strings[size - 1]);
  }
  uint32_t count = 0;
  const char* previous = NULL;
  const bool ascii = is_ascii(strings, size);
  for (uint64_t at = 0; at < size; ++count) {
    const char* text = strings + at;
    const size_t length = strlen(text);
    if (length > ACCX_MAX_STRING_BYTES) {
      return ACCX_REJECT(verifier, STRING_UTF8, "strings", count, NULL,
                         "%zu bytes long; the limit is %u", length, ACCX_MAX_STRING_BYTES);
    }
    if (previous != NULL && strcmp(previous, text) >= 0) {
      return ACCX_REJECT(verifier, STRING_ORDER, "strings", count, NULL,
                         "'%.40s' does not come after '%.40s'", text, previous);
    }
    if (!ascii)
      ACCRT_TRY(check_utf8(verifier, text, count));
    previous = text;
    at += length + 1;
  }
  if (count != tables->string_count) {
    return ACCX_REJECT(verifier, STRING_TABLE, "strings", ACCX_NONE, NULL,
                       "record_count says %" PRIu32 " strings, there are %" PRIu32,
                       tables->string_count, count);
  }
  return ACCRT_OK;
}

static bool is_string(const accrt_bundle_tables_t* tables, uint32_t offset) {
  return offset < tables->strings_size_bytes &&
         (offset == 0 || tables->strings[offset - 1] == '\0');
}

const char* accx_verifier_text(const accx_verifier_t* verifier, uint32_t offset) {
  return is_string(verifier->tables, offset) ? verifier->tables->strings + offset : "?";
}

accrt_status_t accx_check_string(const accx_verifier_t* verifier, uint32_t offset,
                                 const char* section, uint32_t index, const char* field) {
  if (is_string(verifier->tables, offset))
    return ACCRT_OK;
  return ACCX_REJECT(verifier, STRING_REFERENCE, section, index, field,
                     "%" PRIu32 " is not the offset of a string", offset);
}

accrt_status_t accx_check_name(const accx_verifier_t* verifier, uint32_t offset,
                               const char* section, uint32_t index, const char* field) {
  ACCRT_TRY(accx_check_string(verifier, offset, section, index, field));
  const char* const name = verifier->tables->strings + offset;
  /* The table ends with NUL. A name that is too long is refused, so it is measured only once. */
  if (name[0] != '\0' && strnlen(name, ACCX_MAX_NAME_BYTES + 1) <= ACCX_MAX_NAME_BYTES)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, NAME, section, index, field,
                     "a name of %zu bytes; 1 to %u are allowed", strlen(name), ACCX_MAX_NAME_BYTES);
}

/* Strings ascend, so the order of offsets is the order of strings. One comparison proves order and
 * uniqueness. */
accrt_status_t accx_check_ordered_name(const accx_verifier_t* verifier, uint32_t offset,
                                       uint32_t previous, const char* section, uint32_t index,
                                       const char* field) {
  ACCRT_TRY(accx_check_name(verifier, offset, section, index, field));
  if (offset > previous)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, NAME_ORDER, section, index, field,
                     "'%.64s' does not come after '%.64s'", accx_verifier_text(verifier, offset),
                     accx_verifier_text(verifier, previous));
}

void accx_set_clear(accx_verifier_t* verifier) {
  ++verifier->set_epoch;
}

/* Returns a key's entry in the table, and whether the table has the key. */
static bool set_find(const accx_verifier_t* verifier, uint32_t key, uint32_t* out_at) {
  const uint32_t mask = verifier->set_capacity - 1;
  uint32_t at = (uint32_t)accrt_hash_u64(key, verifier->set_seed) & mask;
  while (verifier->set_epochs[at] == verifier->set_epoch && verifier->set_keys[at] != key)
    at = (at + 1) & mask;
  *out_at = at;
  return verifier->set_epochs[at] == verifier->set_epoch;
}

bool accx_set_add(accx_verifier_t* verifier, uint32_t key) {
  uint32_t at;
  if (set_find(verifier, key, &at))
    return false;
  verifier->set_epochs[at] = verifier->set_epoch;
  verifier->set_keys[at] = key;
  return true;
}

uint32_t* accx_set_find(const accx_verifier_t* verifier, uint32_t key) {
  uint32_t at;
  return set_find(verifier, key, &at) ? &verifier->set_values[at] : NULL;
}

uint32_t* accx_set_value(accx_verifier_t* verifier, uint32_t key, uint32_t value) {
  uint32_t at;
  if (!set_find(verifier, key, &at)) {
    verifier->set_epochs[at] = verifier->set_epoch;
    verifier->set_keys[at] = key;
    verifier->set_values[at] = value;
  }
  return &verifier->set_values[at];
}

/* ---- Metadata and symbols ---- */

static accrt_status_t verify_metadata(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t previous = 0;
  for (uint32_t i = 0; i < tables->metadata_count; ++i) {
    ACCRT_TRY(
        accx_check_ordered_name(verifier, tables->metadata[i].key, previous, "metadata", i, "key"));
    ACCRT_TRY(accx_check_string(verifier, tables->metadata[i].value, "metadata", i, "value"));
    previous = tables->metadata[i].key;
  }
  return ACCRT_OK;
}

static accrt_status_t check_symbol_range(const accx_verifier_t* verifier,
                                         const accx_symbol_t* symbol, uint32_t index) {
  const bool ordered = symbol->minimum >= 0 && symbol->minimum <= symbol->maximum &&
                       symbol->maximum <= ACCX_MAX_SYMBOL_VALUE && symbol->divisor >= 1;
  if (ordered && symbol->maximum / symbol->divisor * symbol->divisor >= symbol->minimum)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, SYMBOL_RANGE, "symbols", index, "minimum",
                     "'%.64s' has the range [%" PRId64 ", %" PRId64 "] in multiples of %" PRId64,
                     accx_verifier_text(verifier, symbol->name), symbol->minimum, symbol->maximum,
                     symbol->divisor);
}

static accrt_status_t check_buckets(const accx_verifier_t* verifier, const accx_symbol_t* symbol,
                                    uint32_t index, uint32_t next) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const bool wants = symbol->symbol_class == ACCX_SYMBOL_BUCKET;
  const uint32_t first = wants ? next : 0;
  if (wants != (symbol->bucket_count > 0) || symbol->bucket_first != first ||
      !accrt_range_fits(first, symbol->bucket_count, tables->bucket_count)) {
    return ACCX_REJECT(verifier, SYMBOL_BUCKETS, "symbols", index, "bucket_first",
                       "'%.64s' (class %" PRIu32 ") has %" PRIu32 " buckets from %" PRIu32
                       ", expected from %" PRIu32 " of %" PRIu32,
                       accx_verifier_text(verifier, symbol->name), symbol->symbol_class,
                       symbol->bucket_count, symbol->bucket_first, first, tables->bucket_count);
  }
  int64_t previous = 0;
  for (uint32_t i = 0; i < symbol->bucket_count; ++i) {
    const int64_t bound = tables->buckets[first + i];
    const bool last = i + 1 == symbol->bucket_count;
    if (bound <= previous || bound > ACCX_MAX_SYMBOL_VALUE || (last && bound < symbol->maximum)) {
      return ACCX_REJECT(verifier, SYMBOL_BUCKETS, "buckets", first + i, NULL,
                         "%" PRId64 " after %" PRId64 " of symbol '%.64s' with maximum %" PRId64,
                         bound, previous, accx_verifier_text(verifier, symbol->name),
                         symbol->maximum);
    }
    previous = bound;
  }
  return ACCRT_OK;
}

accrt_status_t accx_verify_symbols(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  ACCRT_TRY(verify_metadata(verifier));
  uint32_t previous = 0, next_bucket = 0;
  for (uint32_t i = 0; i < tables->symbol_count; ++i) {
    const accx_symbol_t* symbol = &tables->symbols[i];
    ACCRT_TRY(accx_check_ordered_name(verifier, symbol->name, previous, "symbols", i, "name"));
    previous = symbol->name;
    if (symbol->symbol_class >= ACCX_SYMBOL_END) {
      return ACCX_REJECT(verifier, SYMBOL_CLASS, "symbols", i, "symbol_class",
                         "%" PRIu32 " of '%.64s' is not known", symbol->symbol_class,
                         accx_verifier_text(verifier, symbol->name));
    }
    ACCRT_TRY(check_symbol_range(verifier, symbol, i));
    ACCRT_TRY(check_buckets(verifier, symbol, i, next_bucket));
    next_bucket += symbol->bucket_count;
  }
  if (next_bucket == tables->bucket_count)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, SYMBOL_BUCKETS, "buckets", next_bucket, NULL,
                     "%" PRIu32 " buckets, but symbols name only %" PRIu32, tables->bucket_count,
                     next_bucket);
}

/* ---- Expressions ---- */

/* Nodes [first, first + count) of the module scope (function NONE) or of a function. */
typedef struct scope_range {
  uint32_t first;
  uint32_t count;
  uint32_t function;
} scope_range_t;

static accrt_status_t check_operands(const accx_verifier_t* verifier, const scope_range_t* scope,
                                     uint32_t index, uint16_t* out_uses) {
  const accx_expression_t* node = &verifier->tables->expressions[index];
  const uint32_t operands[3] = {node->a, node->b, node->c};
  const uint32_t count = accx_expression_operands(node->op);
  uint32_t flags = 0, depth = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    const bool good = i < count ? operands[i] < index - scope->first : operands[i] == ACCX_NONE;
    if (!good) {
      return ACCX_REJECT(verifier, EXPRESSION_OPERANDS, "expressions", index,
                         i == 0   ? "a"
                         : i == 1 ? "b"
                                  : "c",
                         "operand %" PRIu32 " of node %" PRIu32 " (op %" PRIu32 ") of its scope",
                         operands[i], index - scope->first, node->op);
    }
    if (i >= count)
      continue;
    const uint32_t uses = verifier->expression_uses[scope->first + operands[i]];
    flags |= uses & 0xFFu;
    if (uses >> 8 > depth)
      depth = uses >> 8;
  }
  if (count > 0 && node->immediate != 0) {
    return ACCX_REJECT(verifier, EXPRESSION_OPERANDS, "expressions", index, "immediate",
                       "%" PRId64 " in an op (%" PRIu32 ") that has none", node->immediate,
                       node->op);
  }
  *out_uses = (uint16_t)(flags | depth << 8);
  return ACCRT_OK;
}

static bool is_optional_input(const accrt_bundle_tables_t* tables, uint32_t function,
                              int64_t index) {
  if (function == ACCX_NONE || index < 0 || index >= tables->functions[function].input_count)
    return false;
  const accx_argument_t* argument =
      &tables->arguments[tables->functions[function].argument_first + (uint32_t)index];
  return (argument->flags & ACCX_ARGUMENT_FLAG_OPTIONAL) != 0;
}

static accrt_status_t check_leaf(const accx_verifier_t* verifier, const scope_range_t* scope,
                                 uint32_t index, uint16_t* uses) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_expression_t* node = &tables->expressions[index];
  const int64_t value = node->immediate;
  const bool in_function = scope->function != ACCX_NONE;
  bool good = true;
  switch (node->op) {
  case ACCX_EXPR_SYMBOL:
    good = value >= 0 && value < tables->symbol_count;
    if (good)
      *uses = (uint16_t)(1u << tables->symbols[value].symbol_class);
    break;
  case ACCX_EXPR_INDUCTION:
    good = in_function && value >= 0 && value < ACCX_MAX_BLOCK_DEPTH;
    if (good)
      *uses = (uint16_t)((value + 1) << 8);
    break;
  case ACCX_EXPR_PRESENT:
    good = is_optional_input(tables, scope->function, value);
    *uses = ACCX_USES_PRESENT;
    break;
  default:
    break;
  }
  if (good)
    return ACCRT_OK;
  return ACCX_REJECT(
      verifier, EXPRESSION_LEAF, "expressions", index, "immediate",
      "%" PRId64 " of op %" PRIu32 " names nothing in %s'%.64s'", value, node->op,
      in_function ? "function " : "the scope of states ",
      in_function ? accx_verifier_text(verifier, tables->functions[scope->function].name) : "");
}

static accrt_status_t verify_scope(const accx_verifier_t* verifier, const scope_range_t* scope) {
  for (uint32_t i = scope->first; i < scope->first + scope->count; ++i) {
    ACCRT_TRY(accrt_charge_record(i));
    const uint32_t op = verifier->tables->expressions[i].op;
    if (op >= ACCX_EXPR_END) {
      return ACCX_REJECT(verifier, EXPRESSION_OP, "expressions", i, "op",
                         "%" PRIu32 " is not known", op);
    }
    ACCRT_TRY(check_operands(verifier, scope, i, &verifier->expression_uses[i]));
    ACCRT_TRY(check_leaf(verifier, scope, i, &verifier->expression_uses[i]));
  }
  return ACCRT_OK;
}

accrt_status_t accx_verify_scopes(accx_verifier_t* verifier) {
  accrt_bundle_tables_t* tables = verifier->tables;
  const uint32_t total = tables->expression_count;
  uint32_t next = tables->function_count > 0 ? tables->functions[0].expression_first : total;
  for (uint32_t i = 0; i < tables->function_count; ++i) {
    const accx_function_t* function = &tables->functions[i];
    if (function->expression_first != next ||
        !accrt_range_fits(next, function->expression_count, total)) {
      return ACCX_REJECT(verifier, EXPRESSION_SCOPE, "functions", i, "expression_first",
                         "%" PRIu32 " nodes from %" PRIu32 ", expected from %" PRIu32
                         " of %" PRIu32,
                         function->expression_count, function->expression_first, next, total);
    }
    next += function->expression_count;
  }
  if (next != total) {
    return ACCX_REJECT(verifier, EXPRESSION_SCOPE, "expressions", next, NULL,
                       "%" PRIu32 " nodes, but scopes end at %" PRIu32, total, next);
  }
  tables->module_expression_count =
      tables->function_count > 0 ? tables->functions[0].expression_first : total;
  const scope_range_t module = {0, tables->module_expression_count, ACCX_NONE};
  ACCRT_TRY(verify_scope(verifier, &module));
  for (uint32_t i = 0; i < tables->function_count; ++i) {
    const scope_range_t scope = {tables->functions[i].expression_first,
                                 tables->functions[i].expression_count, i};
    ACCRT_TRY(verify_scope(verifier, &scope));
  }
  return ACCRT_OK;
}

accrt_status_t accx_check_expression(const accx_verifier_t* verifier, const accx_scope_t* scope,
                                     uint32_t node, const char* section, uint32_t index,
                                     const char* field) {
  if (node >= scope->count) {
    return ACCX_REJECT(verifier, EXPRESSION_USE, section, index, field,
                       "expression %" PRIu32 " of a scope with %" PRIu32, node, scope->count);
  }
  const uint32_t uses = verifier->expression_uses[scope->first + node];
  if ((uses & 0xFFu & ~scope->allowed) == 0 && uses >> 8 <= scope->repeat_depth)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, EXPRESSION_USE, section, index, field,
                     "expression %" PRIu32
                     " uses kinds 0x%x and repeat depth %u; here 0x%x and depth %u are allowed",
                     node, uses & 0xFFu, uses >> 8, scope->allowed, scope->repeat_depth);
}

/* ---- Types ---- */

accrt_status_t accx_check_dtype(const accx_verifier_t* verifier, uint32_t dtype,
                                const char* section, uint32_t index, const char* field) {
  if (accrt_dtype_bits(dtype) != 0)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, TYPE, section, index, field, "data type %" PRIu32 " is not known",
                     dtype);
}

accrt_status_t accx_check_tensor(const accx_verifier_t* verifier, const accx_tensor_facts_t* facts,
                                 const char* section, uint32_t index) {
  ACCRT_TRY(accx_check_dtype(verifier, facts->dtype, section, index, "dtype"));
  if (accx_layout_find(facts->encoding) == NULL) {
    return ACCX_REJECT(verifier, TYPE, section, index, "encoding", "%" PRIu32 " is not known",
                       facts->encoding);
  }
  if (facts->rank > ACCX_MAX_RANK) {
    return ACCX_REJECT(verifier, TYPE, section, index, "rank", "%" PRIu32 "; the limit is %d",
                       facts->rank, ACCX_MAX_RANK);
  }
  const accx_layout_problem_t problem =
      accx_layout_check_type(facts->encoding, facts->dtype, facts->group_elements, facts->rank);
  if (problem == ACCX_LAYOUT_GOOD)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, LAYOUT_TYPE, section, index, "encoding",
                     "%s of %s, group %" PRIu32 ", rank %" PRIu32 ": %s",
                     accx_layout_find(facts->encoding)->name, accrt_dtype_name(facts->dtype),
                     facts->group_elements, facts->rank, accx_layout_problem_text(problem));
}

static accrt_status_t check_dim(const accx_verifier_t* verifier, const accx_scope_t* scope,
                                uint32_t node, const char* section, uint32_t index) {
  ACCRT_TRY(accx_check_expression(verifier, scope, node, section, index, "dims"));
  const accx_expression_t* expression = &verifier->tables->expressions[scope->first + node];
  const int64_t value = expression->immediate;
  if (expression->op != ACCX_EXPR_CONSTANT || (value >= 0 && value <= ACCX_MAX_SYMBOL_VALUE))
    return ACCRT_OK;
  return ACCX_REJECT(verifier, TYPE, section, index, "dims",
                     "%" PRId64 " is not between 0 and 2^48", value);
}

accrt_status_t accx_check_type(const accx_verifier_t* verifier, const accx_scope_t* scope,
                               const accx_type_t* type, const char* section, uint32_t index) {
  const accx_tensor_facts_t facts = {type->dtype, type->encoding, type->rank, type->group_elements};
  ACCRT_TRY(accx_check_tensor(verifier, &facts, section, index));
  for (uint32_t i = 0; i < ACCX_MAX_RANK; ++i) {
    if (i < type->rank) {
      ACCRT_TRY(check_dim(verifier, scope, type->dims[i], section, index));
    } else if (type->dims[i] != ACCX_NONE) {
      return ACCX_REJECT(verifier, TYPE, section, index, "dims",
                         "entry %" PRIu32 " past rank %" PRIu32 " is %" PRIu32, i, type->rank,
                         type->dims[i]);
    }
  }
  return ACCRT_OK;
}

/* ---- States ---- */

accrt_status_t accx_verify_states(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_scope_t scope = {0, tables->module_expression_count, ACCX_USES_SESSION, 0};
  uint32_t previous = 0;
  for (uint32_t i = 0; i < tables->state_count; ++i) {
    const accx_state_t* state = &tables->states[i];
    ACCRT_TRY(accx_check_ordered_name(verifier, state->name, previous, "states", i, "name"));
    previous = state->name;
    ACCRT_TRY(accx_check_type(verifier, &scope, &state->type, "states", i));
    const uint32_t bits = accrt_dtype_bits(state->type.dtype);
    if (state->flags != 0 || state->type.encoding != ACCX_ENCODING_PLAIN ||
        (bits < 64 && state->fill_pattern >> bits != 0)) {
      return ACCX_REJECT(verifier, STATE, "states", i, "fill_pattern",
                         "'%.64s': flags 0x%" PRIx32 ", encoding %" PRIu32 ", pattern 0x%" PRIx64
                         " of %" PRIu32 " bits",
                         accx_verifier_text(verifier, state->name), state->flags,
                         state->type.encoding, state->fill_pattern, bits);
    }
  }
  return ACCRT_OK;
}
