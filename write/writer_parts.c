/* write/writer_parts.c - the parts of a bundle beside functions and commands: text, symbols,
 * expressions, constants, states, files, kernels, code, assets. This file does not sort or
 * write. */
#include "write/writer.h"

#include <stdio.h>

#include "accrt/tensor.h"
#include "format/layout.h"
#include "runtime/core/pack.h"
#include "runtime/core/struct.h"

#define DEFAULT_DRIVER "host"

/* ---- Text ---- */

accrt_status_t accrt_bundle_writer_add_metadata(accrt_bundle_writer_t* writer, const char* key,
                                                const char* value) {
  WRITER_ENTER(writer, "metadata key", key);
  accx_metadata_t made;
  accrt_writer_id_t id;
  ACCRT_TRY(accx_writer_string(writer, value, "the value", &made.value));
  return accx_writer_add_named(writer, WRITER_METADATA, key, &made, offsetof(accx_metadata_t, key),
                               &id);
}

accrt_status_t accrt_bundle_writer_add_string(accrt_bundle_writer_t* writer, const char* text) {
  WRITER_ENTER(writer, NULL, NULL);
  uint32_t string;
  ACCRT_TRY(accx_writer_string(writer, text, "text", &string));
  WRITER_ITEM(writer, string, WRITER_STRING, string)->kept = 1;
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_set_optional_features(accrt_bundle_writer_t* writer,
                                                         uint64_t features) {
  WRITER_ENTER(writer, NULL, NULL);
  writer->optional_features = features;
  return ACCRT_OK;
}

/* ---- Symbols ---- */

static accrt_status_t check_symbol(const accrt_bundle_writer_t* writer,
                                   const accrt_writer_symbol_t* symbol) {
  if (symbol->symbol_class > ACCX_SYMBOL_SESSION)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "there is no class %" PRIu32,
                       symbol->symbol_class);
  if ((symbol->flags & ~ACCRT_WRITER_SYMBOL_ZERO_MAXIMUM) != 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known",
                       symbol->flags);
  if (symbol->minimum < 0 || symbol->minimum > symbol->maximum ||
      symbol->maximum > ACCX_MAX_SYMBOL_VALUE || symbol->divisor < 1 ||
      symbol->maximum / symbol->divisor * symbol->divisor < symbol->minimum) {
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "range [%" PRId64 ", %" PRId64 "] in multiples of %" PRId64
                       "; 0 <= minimum <= maximum <= 2^48, with a multiple in it",
                       symbol->minimum, symbol->maximum, symbol->divisor);
  }
  if ((symbol->symbol_class == ACCX_SYMBOL_BUCKET) != (symbol->bucket_count != 0) ||
      (symbol->bucket_count != 0 && symbol->buckets == NULL))
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "BUCKET symbols have buckets, others have none");
  int64_t previous = 0;
  for (uint32_t i = 0; i < symbol->bucket_count; ++i) {
    const int64_t bound = symbol->buckets[i];
    const bool last = i + 1 == symbol->bucket_count;
    if (bound <= previous || bound > ACCX_MAX_SYMBOL_VALUE || (last && bound < symbol->maximum)) {
      return WRITER_FAIL(writer, INVALID_ARGUMENT,
                         "bucket %" PRIu32 " is %" PRId64 " after %" PRId64
                         "; buckets ascend and reach the maximum %" PRId64,
                         i, bound, previous, symbol->maximum);
    }
    previous = bound;
  }
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_add_symbol(accrt_bundle_writer_t* writer,
                                              const accrt_writer_symbol_t* symbol,
                                              accrt_writer_id_t* out_id) {
  accrt_writer_symbol_t local;
  writer_symbol_t* item;
  writer_expression_t* node;
  writer_key_t name = {.kind = WRITER_SYMBOL};
  const void* buckets;
  WRITER_BEGIN(writer, symbol, &local, "symbol", out_id);
  if (local.maximum == 0 && (local.flags & ACCRT_WRITER_SYMBOL_ZERO_MAXIMUM) == 0)
    local.maximum = ACCX_MAX_SYMBOL_VALUE;
  if (local.divisor == 0)
    local.divisor = 1;
  ACCRT_TRY(accx_writer_name(writer, local.name, "the name", &name.a));
  ACCRT_TRY(check_symbol(writer, &local));
  ACCRT_TRY(accx_writer_claim(writer, &name));
  ACCRT_TRY(
      accx_writer_copy(writer, local.buckets, local.bucket_count * sizeof(int64_t), &buckets));
  ACCRT_TRY(accx_writer_new(writer, WRITER_SYMBOL, &item));
  ACCRT_TRY(accx_writer_new(writer, WRITER_EXPRESSION, &node));
  item->record =
      (accx_symbol_t){name.a, local.symbol_class, local.minimum, local.maximum, local.divisor,
                      0,      local.bucket_count};
  item->buckets = buckets;
  node->node = (accx_expression_t){ACCX_EXPR_SYMBOL, WRITER_NO, WRITER_NO, WRITER_NO,
                                   accx_writer_commit(writer, WRITER_SYMBOL)};
  node->uses = 1u << local.symbol_class;
  *out_id = accx_writer_id(WRITER_EXPRESSION, accx_writer_commit(writer, WRITER_EXPRESSION));
  accx_writer_put(writer, &name, *out_id);
  return ACCRT_OK;
}

/* ---- Expressions ---- */

accrt_status_t accx_writer_node(accrt_bundle_writer_t* writer, const accx_expression_t* node,
                                uint32_t uses, accrt_writer_id_t* out_id) {
  const writer_key_t key = {
      WRITER_EXPRESSION | node->op << 8, node->a, node->b, node->c, node->immediate, 0, 0};
  uint32_t index = accx_writer_find(writer, &key);
  if (index == WRITER_NO) {
    writer_expression_t* item;
    ACCRT_TRY(accx_writer_make_room(writer));
    ACCRT_TRY(accx_writer_new(writer, WRITER_EXPRESSION, &item));
    *item = (writer_expression_t){*node, uses, 0};
    index = accx_writer_commit(writer, WRITER_EXPRESSION);
    accx_writer_put(writer, &key, index);
  }
  *out_id = accx_writer_id(WRITER_EXPRESSION, index);
  return ACCRT_OK;
}

accrt_status_t accx_writer_number(accrt_bundle_writer_t* writer, int64_t value,
                                  accrt_writer_id_t* out_id) {
  const accx_expression_t node = {ACCX_EXPR_CONSTANT, WRITER_NO, WRITER_NO, WRITER_NO, value};
  return accx_writer_node(writer, &node, 0, out_id);
}

accrt_status_t accrt_bundle_writer_integer(accrt_bundle_writer_t* writer, int64_t value,
                                           accrt_writer_id_t* out_id) {
  WRITER_ENTER_FOR(writer, NULL, NULL, out_id);
  return accx_writer_number(writer, value, out_id);
}

accrt_status_t accrt_bundle_writer_expression(accrt_bundle_writer_t* writer, uint32_t op,
                                              accrt_writer_id_t a, accrt_writer_id_t b,
                                              accrt_writer_id_t c, accrt_writer_id_t* out_id) {
  WRITER_ENTER_FOR(writer, NULL, NULL, out_id);
  if (op < ACCX_EXPR_ADD || op > ACCX_EXPR_SELECT)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "%" PRIu32 " is not an operation on expressions",
                       op);
  static const char* const names[] = {"operand a", "operand b", "operand c"};
  const uint32_t count = accx_expression_operands(op);
  const accrt_writer_id_t given[3] = {a, b, c};
  uint32_t operands[3] = {WRITER_NO, WRITER_NO, WRITER_NO};
  uint32_t uses = 0, depth = 0;
  for (uint32_t i = 0; i < 3; ++i) {
    if (i >= count && given[i] != 0) {
      return WRITER_FAIL(writer, INVALID_ARGUMENT, "operation %" PRIu32 " has %" PRIu32 " operands",
                         op, count);
    }
    if (i >= count)
      continue;
    ACCRT_TRY(
        accx_writer_index(writer, WRITER_EXPRESSION, given[i], false, names[i], &operands[i]));
    const uint32_t below = WRITER_ITEM(writer, expression, WRITER_EXPRESSION, operands[i])->uses;
    uses |= below & 0xFFu;
    depth = below >> 8 > depth ? below >> 8 : depth;
  }
  const accx_expression_t node = {op, operands[0], operands[1], operands[2], 0};
  return accx_writer_node(writer, &node, uses | depth << 8, out_id);
}

accrt_status_t accrt_bundle_writer_induction(accrt_bundle_writer_t* writer, uint32_t depth,
                                             accrt_writer_id_t* out_id) {
  WRITER_ENTER_FOR(writer, NULL, NULL, out_id);
  if (depth >= ACCX_MAX_BLOCK_DEPTH)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "repeats nest at most %u deep, not %" PRIu32,
                       ACCX_MAX_BLOCK_DEPTH, depth);
  const accx_expression_t node = {ACCX_EXPR_INDUCTION, WRITER_NO, WRITER_NO, WRITER_NO, depth};
  return accx_writer_node(writer, &node, (depth + 1) << 8, out_id);
}

accrt_status_t accrt_bundle_writer_present(accrt_bundle_writer_t* writer, accrt_writer_id_t input,
                                           accrt_writer_id_t* out_id) {
  WRITER_ENTER_FOR(writer, NULL, NULL, out_id);
  uint32_t index;
  ACCRT_TRY(accx_writer_index(writer, WRITER_SLOT, input, false, "input", &index));
  const writer_slot_t* slot = WRITER_ITEM(writer, slot, WRITER_SLOT, index);
  const bool argument = slot->kind == ACCX_SLOT_ARGUMENT;
  if (!argument || WRITER_ITEM(writer, argument, WRITER_ARGUMENT, slot->target)->record.flags == 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "input is the slot of no optional input");
  const accx_expression_t node = {ACCX_EXPR_PRESENT, WRITER_NO, WRITER_NO, WRITER_NO, slot->target};
  return accx_writer_node(writer, &node, ACCX_USES_PRESENT, out_id);
}

/* The name of a symbol of one of these classes that the expression uses. */
static const char* symbol_in(const accrt_bundle_writer_t* writer, uint32_t index, uint32_t uses) {
  for (;;) {
    const accx_expression_t* node =
        &WRITER_ITEM(writer, expression, WRITER_EXPRESSION, index)->node;
    if (node->op == ACCX_EXPR_SYMBOL) {
      const uint32_t symbol = (uint32_t)node->immediate;
      return accx_writer_text(writer,
                              WRITER_ITEM(writer, symbol, WRITER_SYMBOL, symbol)->record.name);
    }
    const uint32_t operands[] = {node->a, node->b, node->c};
    index = WRITER_NO;
    for (uint32_t i = 0; i < 3 && index == WRITER_NO; ++i) {
      if (operands[i] != WRITER_NO &&
          (WRITER_ITEM(writer, expression, WRITER_EXPRESSION, operands[i])->uses & uses) != 0)
        index = operands[i];
    }
    if (index == WRITER_NO)
      return "?";
  }
}

accrt_status_t accx_writer_use(const accrt_bundle_writer_t* writer, accrt_writer_id_t id,
                               const writer_place_t* place, const char* field) {
  uint32_t index;
  ACCRT_TRY(accx_writer_index(writer, WRITER_EXPRESSION, id, false, field, &index));
  const writer_expression_t* item = WRITER_ITEM(writer, expression, WRITER_EXPRESSION, index);
  const uint32_t wrong = item->uses & 0xFFu & ~place->allowed;
  if ((wrong & ACCX_USES_SYMBOLS) != 0) {
    static const char* const classes[] = {"SPECIALIZE", "BUCKET", "RUNTIME", "SESSION"};
    return WRITER_FAIL(
        writer, INVALID_ARGUMENT,
        "%s depends on symbol '%.64s', which is of class %s; that is not allowed here", field,
        symbol_in(writer, index, wrong & ACCX_USES_SYMBOLS), classes[__builtin_ctz(wrong)]);
  }
  if (wrong != 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "%s depends on whether an input is present",
                       field);
  if (item->uses >> 8 > place->repeat_depth) {
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "%s depends on the iteration of a repeat at depth %" PRIu32 "; %" PRIu32
                       " are around it",
                       field, (item->uses >> 8) - 1, place->repeat_depth);
  }
  if (place->size && item->node.op == ACCX_EXPR_CONSTANT && item->node.immediate < 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "%s is %" PRId64 ", which is negative", field,
                       item->node.immediate);
  return ACCRT_OK;
}

accrt_status_t accx_writer_type(const accrt_bundle_writer_t* writer,
                                const accrt_writer_type_t* type, uint32_t allowed,
                                accx_type_t* out_type) {
  const writer_place_t place = {allowed, 0, true};
  const accx_layout_problem_t problem =
      accx_layout_check_type(type->encoding, type->dtype, type->group_elements, type->rank);
  if (problem != ACCX_LAYOUT_GOOD) {
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "data type %" PRIu32 " (%s), encoding %" PRIu32 ", rank %" PRIu32
                       ", groups of %" PRIu32 ": %s",
                       type->dtype, accrt_dtype_name(type->dtype), type->encoding, type->rank,
                       type->group_elements, accx_layout_problem_text(problem));
  }
  *out_type = (accx_type_t){type->dtype, type->encoding, type->rank, type->group_elements, {0}};
  for (uint32_t i = 0; i < type->rank; ++i) {
    uint32_t index;
    ACCRT_TRY(accx_writer_use(writer, type->dims[i], &place, "a dimension"));
    ACCRT_TRY(
        accx_writer_index(writer, WRITER_EXPRESSION, type->dims[i], false, "a dimension", &index));
    const accx_expression_t* node =
        &WRITER_ITEM(writer, expression, WRITER_EXPRESSION, index)->node;
    if (node->op == ACCX_EXPR_CONSTANT && node->immediate > ACCX_MAX_SYMBOL_VALUE) {
      return WRITER_FAIL(writer, OUT_OF_RANGE,
                         "dimension %" PRIu32 " is %" PRId64 "; the limit is 2^48", i,
                         node->immediate);
    }
    out_type->dims[i] = type->dims[i];
  }
  return ACCRT_OK;
}

/* ---- Bytes ---- */

/* What is wrong with a source of bytes; NULL: nothing. */
static const char* bytes_fault(const accrt_writer_bytes_t* bytes) {
  const bool empty = bytes->size_bytes == 0;
  if (bytes->kind == ACCRT_WRITER_BYTES_MEMORY)
    return empty || bytes->data != NULL ? NULL : "its data is NULL";
  if (bytes->kind == ACCRT_WRITER_BYTES_READER)
    return empty || bytes->read != NULL ? NULL : "its read is NULL";
  if (bytes->kind != ACCRT_WRITER_BYTES_FILE)
    return "there is no such kind";
  const bool fits = accrt_range_fits(bytes->offset, bytes->size_bytes, INT64_MAX);
  return bytes->fd < 0 ? "its fd is negative" : fits ? NULL : "they end beyond 2^63 - 1";
}

static accrt_status_t check_bytes(const accrt_bundle_writer_t* writer,
                                  const accrt_writer_bytes_t* bytes) {
  if (bytes->size_bytes > INT64_MAX)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "%" PRIu64 " bytes", bytes->size_bytes);
  const char* fault = bytes_fault(bytes);
  if (fault == NULL)
    return ACCRT_OK;
  return WRITER_FAIL(writer, INVALID_ARGUMENT, "%" PRIu64 " bytes of kind %" PRIu32 ": %s",
                     bytes->size_bytes, bytes->kind, fault);
}

/* ---- Constants ---- */

static const char* shape_text(const accrt_writer_constant_t* constant, char text[128]) {
  size_t at = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < constant->rank && i < ACCX_MAX_RANK && at < 100; ++i)
    at += (size_t)snprintf(text + at, 128 - at, i == 0 ? "%" PRId64 : ", %" PRId64,
                           constant->shape[i]);
  return text;
}

/* Checks one component: role and type must be the layout's, the size must fit the shape. */
static accrt_status_t check_component(const accrt_bundle_writer_t* writer,
                                      const accrt_writer_constant_t* constant,
                                      const accx_layout_view_t* view,
                                      const accx_component_t* component) {
  if (!accx_layout_takes(view->layout, constant->dtype, component->role, component->dtype)) {
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "encoding %s has no component of role %" PRIu32 " and data type %s",
                       view->layout->name, component->role, accrt_dtype_name(component->dtype));
  }
  uint64_t size = component->size_bytes;
  if (constant->encoding == ACCX_ENCODING_OPAQUE ||
      (accx_layout_size(view, component->role, component->dtype, &size) &&
       size == component->size_bytes))
    return ACCRT_OK;
  char text[128];
  return WRITER_FAIL(writer, INVALID_ARGUMENT,
                     "component %" PRIu32 ": %" PRIu64
                     " bytes for %s [%s], encoding %s, which has %" PRIu64,
                     component->role, component->size_bytes, accrt_dtype_name(component->dtype),
                     shape_text(constant, text), view->layout->name, size);
}

static accrt_status_t look_at(const accrt_bundle_writer_t* writer,
                              const accrt_writer_constant_t* constant, accx_layout_view_t* view) {
  const accx_layout_problem_t problem =
      accx_layout_look(constant->encoding, constant->dtype, constant->group_elements,
                       constant->rank, constant->shape, view);
  if (problem == ACCX_LAYOUT_GOOD)
    return ACCRT_OK;
  char text[128];
  return WRITER_FAIL(writer, INVALID_ARGUMENT,
                     "data type %" PRIu32 " (%s), encoding %" PRIu32 ", groups of %" PRIu32
                     ", rank %" PRIu32 " [%s]: %s",
                     constant->dtype, accrt_dtype_name(constant->dtype), constant->encoding,
                     constant->group_elements, constant->rank, shape_text(constant, text),
                     accx_layout_problem_text(problem));
}

static accrt_status_t read_components(accrt_bundle_writer_t* writer,
                                      const accrt_writer_constant_t* constant,
                                      writer_constant_t* made) {
  const uint32_t count = constant->component_count;
  accx_layout_view_t view;
  ACCRT_TRY(look_at(writer, constant, &view));
  if (count == 0 || count > ACCRT_LAYOUT_ROLE_COUNT || constant->components == NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "%" PRIu32 " components at %p; a constant has 1 to %u, as its encoding (%s) "
                       "says",
                       count, (const void*)constant->components, ACCRT_LAYOUT_ROLE_COUNT,
                       view.layout->name);
  void *records, *bytes;
  ACCRT_TRY(accx_writer_reserve(writer, count * sizeof(accx_component_t), &records));
  ACCRT_TRY(accx_writer_reserve(writer, count * sizeof(accrt_writer_bytes_t), &bytes));
  uint32_t roles = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const accrt_writer_component_t* given = &constant->components[i];
    const uint32_t dtype = given->dtype != 0 ? given->dtype : constant->dtype;
    const accx_component_t record = {given->role, dtype, 0, given->bytes.size_bytes};
    if (given->role >= ACCRT_LAYOUT_ROLE_COUNT || roles >> given->role != 0)
      return WRITER_FAIL(writer, INVALID_ARGUMENT,
                         "role %" PRIu32 " of component %" PRIu32 ": roles ascend and are below %u",
                         given->role, i, ACCRT_LAYOUT_ROLE_COUNT);
    roles |= 1u << given->role;
    ACCRT_TRY(check_component(writer, constant, &view, &record));
    if (constant->source == ACCX_CONSTANT_INLINE)
      ACCRT_TRY(check_bytes(writer, &given->bytes));
    ((accx_component_t*)records)[i] = record;
    ((accrt_writer_bytes_t*)bytes)[i] = given->bytes;
  }
  if ((view.layout->required_roles & ~roles) != 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "encoding %s needs a component of role %d",
                       view.layout->name, __builtin_ctz(view.layout->required_roles & ~roles));
  made->components = records;
  made->bytes = bytes;
  return ACCRT_OK;
}

/* Reads the source of an EXTERNAL constant. */
static accrt_status_t read_binding(accrt_bundle_writer_t* writer,
                                   const accrt_writer_constant_t* constant,
                                   accx_constant_t* record) {
  static const accx_digest_t no_digest;
  uint32_t file;
  ACCRT_TRY(accx_writer_index(writer, WRITER_FILE, constant->file, true, "file", &file));
  ACCRT_TRY(accx_writer_string(writer, constant->tensor, "tensor", &record->tensor));
  memcpy(&record->digest, constant->digest, sizeof record->digest);
  record->file = constant->file;
  record->binding_flags = constant->binding_flags;
  const bool digest = !accx_digest_equal(&record->digest, &no_digest);
  const bool external = constant->source == ACCX_CONSTANT_EXTERNAL;
  const bool by_name = constant->binding_flags == ACCRT_BINDING_BY_NAME;
  if (external
          ? digest != by_name && constant->binding_flags <= ACCRT_BINDING_BY_NAME
          : !digest && constant->binding_flags == 0 && file == WRITER_NO && record->tensor == 0)
    return ACCRT_OK;
  return WRITER_FAIL(writer, INVALID_ARGUMENT,
                     external
                         ? "an EXTERNAL constant has a digest, or ACCRT_BINDING_BY_NAME and none"
                         : "only EXTERNAL constants have file, tensor, digest and binding flags");
}

accrt_status_t accrt_bundle_writer_add_constant(accrt_bundle_writer_t* writer,
                                                const accrt_writer_constant_t* constant,
                                                accrt_writer_id_t* out_id) {
  accrt_writer_constant_t local;
  writer_constant_t made = {.components = NULL};
  WRITER_BEGIN(writer, constant, &local, "constant", out_id);
  ACCRT_TRY(accx_writer_reserved(writer, local.reserved));
  if (local.source > ACCX_CONSTANT_EXTERNAL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "there is no source %" PRIu32, local.source);
  made.record = (accx_constant_t){.source = local.source,
                                  .dtype = local.dtype,
                                  .encoding = local.encoding,
                                  .rank = local.rank,
                                  .component_count = local.component_count,
                                  .group_elements = local.group_elements};
  ACCRT_TRY(read_components(writer, &local, &made));
  ACCRT_TRY(read_binding(writer, &local, &made.record));
  memcpy(made.record.shape, local.shape, local.rank * sizeof *local.shape);
  return accx_writer_add_named(writer, WRITER_CONSTANT, local.name, &made,
                               offsetof(writer_constant_t, record.name), out_id);
}

accrt_status_t accrt_bundle_writer_add_state(accrt_bundle_writer_t* writer,
                                             const accrt_writer_state_t* state,
                                             accrt_writer_id_t* out_id) {
  accrt_writer_state_t local;
  accx_state_t made = {0};
  WRITER_BEGIN(writer, state, &local, "state", out_id);
  ACCRT_TRY(accx_writer_reserved(writer, local.reserved));
  ACCRT_TRY(accx_writer_type(writer, &local.type, ACCX_USES_SESSION, &made.type));
  const uint32_t bits = accrt_dtype_bits(local.type.dtype);
  if (local.type.encoding != ACCX_ENCODING_PLAIN || (bits < 64 && local.fill_pattern >> bits != 0))
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "encoding %" PRIu32 ", fill pattern 0x%" PRIx64
                       "; states are PLAIN, and the pattern fits %" PRIu32 " bits",
                       local.type.encoding, local.fill_pattern, bits);
  made.fill_pattern = local.fill_pattern;
  return accx_writer_add_named(writer, WRITER_STATE, local.name, &made,
                               offsetof(accx_state_t, name), out_id);
}

/* ---- Files, shards, adapters ---- */

accrt_status_t accrt_bundle_writer_add_file(accrt_bundle_writer_t* writer, const char* name,
                                            uint32_t kind, uint64_t size_bytes,
                                            const unsigned char* digest,
                                            accrt_writer_id_t* out_id) {
  WRITER_ENTER_FOR(writer, "file", name, out_id);
  accx_file_t made = {.kind = kind, .size_bytes = size_bytes};
  if (name == NULL || !accx_file_name_good(name) || kind < ACCX_FILE_ACCX || kind >= ACCX_FILE_END)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "kind %" PRIu32 ", or not the bare name of a file of 1 to 255 bytes", kind);
  if (digest != NULL)
    memcpy(&made.digest, digest, sizeof made.digest);
  return accx_writer_add_named(writer, WRITER_FILE, name, &made, offsetof(accx_file_t, name),
                               out_id);
}

accrt_status_t accrt_bundle_writer_add_shard(accrt_bundle_writer_t* writer,
                                             accrt_writer_id_t constant, uint32_t kind,
                                             uint32_t axis, uint32_t degree, int64_t extent,
                                             const accrt_writer_segment_t* segments,
                                             uint32_t segment_count) {
  WRITER_ENTER(writer, NULL, NULL);
  uint32_t index;
  ACCRT_TRY(accx_writer_index(writer, WRITER_CONSTANT, constant, false, "constant", &index));
  writer->where.kind = "constant";
  writer->where.name =
      accx_writer_text(writer, WRITER_ITEM(writer, constant, WRITER_CONSTANT, index)->record.name);
  const writer_key_t key = {.kind = WRITER_SHARD, .a = index};
  if (accx_writer_find(writer, &key) != WRITER_NO)
    return WRITER_FAIL(writer, ALREADY_EXISTS, "it has a shard already");
  if (segment_count != 0 && segments == NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "segments is NULL");
  void* copy;
  writer_shard_t* item;
  ACCRT_TRY(accx_writer_reserve(writer, segment_count * sizeof(accx_segment_t), &copy));
  accx_segment_t* records = copy;
  for (uint32_t i = 0; i < segment_count; ++i) {
    ACCRT_TRY(accx_writer_reserved(writer, segments[i].reserved));
    records[i] = (accx_segment_t){segments[i].begin, segments[i].end, segments[i].replicas, 0};
  }
  ACCRT_TRY(accx_writer_make_room(writer));
  ACCRT_TRY(accx_writer_new(writer, WRITER_SHARD, &item));
  item->record = (accx_shard_t){constant, kind, axis, degree, extent, 0, segment_count};
  item->segments = records;
  accx_writer_put(writer, &key, accx_writer_commit(writer, WRITER_SHARD));
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_add_adapter(accrt_bundle_writer_t* writer, const char* slot,
                                               const char* input, uint32_t flags) {
  WRITER_ENTER(writer, "adapter", slot);
  accx_adapter_t made = {.flags = flags};
  accrt_writer_id_t id;
  ACCRT_TRY(accx_writer_name(writer, input, "the input", &made.input));
  return accx_writer_add_named(writer, WRITER_ADAPTER, slot, &made, offsetof(accx_adapter_t, slot),
                               &id);
}

/* ---- Code ---- */

accrt_status_t accrt_bundle_writer_add_image(accrt_bundle_writer_t* writer, const char* name,
                                             uint32_t kind, const accrt_writer_bytes_t* bytes,
                                             accrt_writer_id_t* out_id) {
  WRITER_ENTER_FOR(writer, "image", name, out_id);
  writer_key_t key = {.kind = WRITER_IMAGE};
  writer_image_t made = {.record = {.kind = kind}};
  ACCRT_TRY(accx_writer_name(writer, name, "the name", &key.a));
  const bool pack = kind == ACCX_IMAGE_PACK;
  const uint32_t there = accx_writer_find(writer, &key);
  if (pack && there != WRITER_NO &&
      WRITER_ITEM(writer, image, WRITER_IMAGE, WRITER_INDEX(there))->record.kind == kind) {
    *out_id = there;
    return ACCRT_OK;
  }
  if (kind < ACCX_IMAGE_HOST_ELF || kind >= ACCX_IMAGE_END)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "there is no kind %" PRIu32, kind);
  if (pack && !accx_pack_name_good(name))
    return WRITER_FAIL(
        writer, INVALID_ARGUMENT,
        "no name of a pack: it has letters, digits, '.', '_' and '-', at most %u, and "
        "not one of the last three first",
        ACCX_MAX_PACK_NAME_BYTES);
  if (pack != (bytes == NULL || bytes->size_bytes == 0))
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "a pack has no bytes, any other image has some");
  if (!pack) {
    ACCRT_TRY(check_bytes(writer, bytes));
    made.bytes = *bytes;
    made.record.size_bytes = bytes->size_bytes;
  }
  return accx_writer_add_named(writer, WRITER_IMAGE, name, &made,
                               offsetof(writer_image_t, record.name), out_id);
}

/* ---- Kernels ---- */

static uint32_t align_up(uint32_t value, uint32_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

/* Makes the record of a parameter behind `end`. A later check refuses alignments that are not a
 * power of two. */
static accrt_status_t place_parameter(const accrt_bundle_writer_t* writer,
                                      const accrt_writer_parameter_t* given, uint32_t end,
                                      accrt_kernel_param_t* out) {
  const bool tensor = given->kind == ACCRT_KERNEL_PARAM_TENSOR;
  const bool scalar = given->kind == ACCRT_KERNEL_PARAM_SCALAR;
  uint32_t access = given->access;
  if (given->kind == ACCRT_KERNEL_PARAM_WORKSPACE && access == ACCRT_KERNEL_ACCESS_NONE)
    access = ACCRT_KERNEL_ACCESS_READ_WRITE;
  const uint32_t size = scalar   ? given->size_bytes
                        : tensor ? (uint32_t)sizeof(accrt_kernel_tensor_t)
                                 : 8;
  const uint32_t natural = size == 0 ? 1 : size < 8 ? size : 8;
  const uint32_t align = given->align_bytes != 0 ? given->align_bytes : natural;
  const bool good = given->kind <= UINT8_MAX && access <= UINT8_MAX && given->flags <= UINT8_MAX &&
                    accrt_is_power_of_two(align) && align <= 16 &&
                    given->offset_bytes <= ACCRT_KERNEL_MAX_PARAMS_BYTES &&
                    (scalar || given->size_bytes == 0 || given->size_bytes == size);
  if (!good) {
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "kind %" PRIu32 " with access %" PRIu32 ", flags %" PRIu32 ", %" PRIu32
                       " bytes at %" PRIu32 ", aligned to %" PRIu32,
                       given->kind, given->access, given->flags, given->size_bytes,
                       given->offset_bytes, align);
  }
  const uint32_t step = align > natural ? align : natural;
  *out =
      (accrt_kernel_param_t){given->name,
                             (uint8_t)given->kind,
                             (uint8_t)access,
                             (uint8_t)given->flags,
                             (uint8_t)__builtin_ctz(align),
                             given->offset_bytes != 0 ? given->offset_bytes : align_up(end, step),
                             size,
                             0};
  return ACCRT_OK;
}

/* Places, checks and copies the parameters. */
static accrt_status_t read_parameters(accrt_bundle_writer_t* writer,
                                      const accrt_writer_kernel_t* kernel, accx_kernel_t* record,
                                      const accx_parameter_t** out_parameters) {
  accrt_kernel_param_t params[ACCRT_KERNEL_MAX_PARAMS];
  const uint32_t count = kernel->parameter_count;
  if (count > ACCRT_KERNEL_MAX_PARAMS)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "%" PRIu32 " parameters; at most %d are allowed",
                       count, ACCRT_KERNEL_MAX_PARAMS);
  if (count != 0 && kernel->parameters == NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "parameters is NULL with a count of %" PRIu32,
                       count);
  void* memory;
  ACCRT_TRY(accx_writer_reserve(writer, count * sizeof(accx_parameter_t), &memory));
  accx_parameter_t* records = memory;
  uint32_t end = 0;
  writer->where.part_kind = "parameter";
  for (uint32_t i = 0; i < count; ++i) {
    accrt_kernel_param_t* param = &params[i];
    writer->where.part = kernel->parameters[i].name;
    ACCRT_TRY(accx_writer_name(writer, writer->where.part, "the name", &records[i].name));
    ACCRT_TRY(place_parameter(writer, &kernel->parameters[i], end, param));
    end = param->offset_bytes + param->size_bytes;
    records[i] =
        (accx_parameter_t){records[i].name,   param->kind,         param->access,    param->flags,
                           param->align_log2, param->offset_bytes, param->size_bytes};
  }
  record->params_size_bytes =
      kernel->params_size_bytes != 0 ? kernel->params_size_bytes : align_up(end, 8);
  uint32_t bad = 0;
  const char* why = accrt_kernel_check_params(params, count, record->params_size_bytes, &bad);
  if (why != NULL) {
    writer->where.part = bad < count ? params[bad].name : NULL;
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "%s", why);
  }
  writer->where.part_kind = NULL;
  *out_parameters = records;
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_add_kernel(accrt_bundle_writer_t* writer,
                                              const accrt_writer_kernel_t* kernel,
                                              accrt_writer_id_t* out_id) {
  accrt_writer_kernel_t local;
  writer_kernel_t made = {.first_variant = WRITER_NO, .last_variant = WRITER_NO};
  WRITER_BEGIN(writer, kernel, &local, "kernel", out_id);
  ACCRT_TRY(accx_writer_reserved(writer, local.reserved));
  made.record = (accx_kernel_t){.traits = local.traits,
                                .parameter_count = local.parameter_count,
                                .local_memory_size_bytes = local.local_memory_bytes};
  ACCRT_TRY(read_parameters(writer, &local, &made.record, &made.parameters));
  return accx_writer_add_named(writer, WRITER_KERNEL, local.name, &made,
                               offsetof(writer_kernel_t, record.name), out_id);
}

uint32_t accx_writer_parameter(const accrt_bundle_writer_t* writer, const writer_kernel_t* kernel,
                               const char* name) {
  for (uint32_t i = 0; i < kernel->record.parameter_count; ++i) {
    if (strcmp(accx_writer_text(writer, kernel->parameters[i].name), name) == 0)
      return i;
  }
  return WRITER_NO;
}

const char* accx_writer_near_parameter(const accrt_bundle_writer_t* writer,
                                       const writer_kernel_t* kernel, const char* wanted,
                                       accrt_near_t* buffer) {
  accrt_near_init(buffer, wanted);
  for (uint32_t i = 0; i < kernel->record.parameter_count; ++i)
    accrt_near_add(buffer, accx_writer_text(writer, kernel->parameters[i].name));
  return accrt_near_text(buffer);
}

static int compare_predicates(const accx_predicate_t* a, const accx_predicate_t* b) {
  if (a->kind != b->kind)
    return a->kind < b->kind ? -1 : 1;
  if (a->parameter != b->parameter)
    return a->parameter < b->parameter ? -1 : 1;
  return a->value == b->value ? 0 : a->value < b->value ? -1 : 1;
}

/* Inserts a predicate among `count` ascending ones, if it is not there. Returns their number. */
static uint32_t insert_predicate(accx_predicate_t* predicates, uint32_t count,
                                 const accx_predicate_t* predicate) {
  uint32_t at = count;
  while (at > 0 && compare_predicates(&predicates[at - 1], predicate) > 0)
    --at;
  if (at > 0 && compare_predicates(&predicates[at - 1], predicate) == 0)
    return count;
  memmove(&predicates[at + 1], &predicates[at], (count - at) * sizeof *predicates);
  predicates[at] = *predicate;
  return count + 1;
}

static accrt_status_t read_predicates(accrt_bundle_writer_t* writer, const writer_kernel_t* kernel,
                                      const accrt_writer_variant_t* variant,
                                      writer_variant_t* made) {
  void* memory;
  const uint32_t count = variant->predicate_count;
  if (count > ACCX_MAX_RECORDS - 1 || (count != 0 && variant->predicates == NULL))
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "%" PRIu32 " predicates", count);
  ACCRT_TRY(accx_writer_reserve(writer, count * sizeof(accx_predicate_t), &memory));
  made->predicates = memory;
  for (uint32_t i = 0; i < count; ++i) {
    const accrt_writer_predicate_t* given = &variant->predicates[i];
    ACCRT_TRY(accx_writer_reserved(writer, given->reserved));
    const char* name = given->parameter != NULL ? given->parameter : "";
    const uint32_t parameter = accx_writer_parameter(writer, kernel, name);
    accrt_near_t near;
    if (parameter == WRITER_NO)
      return WRITER_FAIL(writer, INVALID_ARGUMENT, "a predicate on parameter '%.64s'%s", name,
                         accx_writer_near_parameter(writer, kernel, name, &near));
    const accx_predicate_t record = {given->kind, parameter, given->value};
    made->record.predicate_count = insert_predicate(memory, made->record.predicate_count, &record);
  }
  return ACCRT_OK;
}

/* Copies sizes in three dimensions. Those after the first may be left out. */
static void fill_sizes(uint32_t target[3], const uint32_t sizes[3]) {
  for (uint32_t i = 0; i < 3; ++i)
    target[i] = sizes[0] != 0 && sizes[i] == 0 ? 1 : sizes[i];
}

static accrt_status_t read_launch(const accrt_bundle_writer_t* writer,
                                  const accrt_writer_variant_t* variant, uint32_t image_kind,
                                  writer_variant_t* made) {
  const bool device = accx_image_is_device(image_kind);
  const bool none = variant->flags == ACCRT_WRITER_VARIANT_NO_LAUNCH;
  accx_launch_t* launch = &made->launch;
  *launch = (accx_launch_t){.traits = variant->launch_traits,
                            .dynamic_shared_bytes = variant->dynamic_shared_bytes};
  fill_sizes(launch->block, variant->block);
  fill_sizes(launch->cluster, variant->cluster);
  const uint32_t* b = launch->block;
  const uint32_t* c = launch->cluster;
  const bool given = (b[0] | b[1] | b[2] | c[0] | c[1] | c[2] | launch->traits |
                      launch->dynamic_shared_bytes) != 0;
  made->has_launch = device && !none;
  if (variant->flags > ACCRT_WRITER_VARIANT_NO_LAUNCH || (given && !made->has_launch))
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "flags 0x%" PRIx32 ", and a block, cluster, shared memory or launch traits, "
                       "which only device code has",
                       variant->flags);
  const uint64_t threads = accx_volume(b, ACCX_MAX_BLOCK_THREADS);
  if (!made->has_launch || (threads >= 1 && threads <= ACCX_MAX_BLOCK_THREADS))
    return ACCRT_OK;
  return WRITER_FAIL(writer, INVALID_ARGUMENT,
                     "device code needs a block of 1 to %u threads, not (%" PRIu32 ", %" PRIu32
                     ", %" PRIu32 ")",
                     ACCX_MAX_BLOCK_THREADS, b[0], b[1], b[2]);
}

static accrt_status_t read_variant(accrt_bundle_writer_t* writer, const writer_kernel_t* kernel,
                                   const accrt_writer_variant_t* variant, writer_variant_t* made) {
  const char* driver = variant->driver != NULL ? variant->driver : DEFAULT_DRIVER;
  writer->where.part_kind = "variant for";
  writer->where.part = driver;
  accx_variant_t* record = &made->record;
  uint32_t image;
  ACCRT_TRY(accx_writer_index(writer, WRITER_IMAGE, variant->image, false, "image", &image));
  *record = (accx_variant_t){.arch_kind = variant->arch_kind,
                             .priority = variant->priority,
                             .cpu_features = variant->cpu_features,
                             .required_features = variant->required_features,
                             .image = variant->image,
                             .entry = kernel->record.name};
  ACCRT_TRY(accx_writer_name(writer, driver, "the driver", &record->driver));
  ACCRT_TRY(accx_writer_string(writer, variant->arch, "the architecture", &record->arch));
  if (variant->entry != NULL)
    ACCRT_TRY(accx_writer_name(writer, variant->entry, "the entry", &record->entry));
  if (record->arch_kind >= ACCX_ARCH_END ||
      (record->arch_kind != ACCX_ARCH_PORTABLE && record->arch == 0))
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "architecture '%.32s' of kind %" PRIu32
                       "; only a portable variant may name none",
                       accx_writer_text(writer, record->arch), record->arch_kind);
  const accx_image_t* code = &WRITER_ITEM(writer, image, WRITER_IMAGE, image)->record;
  if (strcmp(driver, DEFAULT_DRIVER) == 0 && code->kind != ACCX_IMAGE_HOST_ELF &&
      code->kind != ACCX_IMAGE_PACK)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "image '%.64s' is of kind %" PRIu32 "; the host runs HOST_ELF and PACK",
                       accx_writer_text(writer, code->name), code->kind);
  ACCRT_TRY(read_launch(writer, variant, code->kind, made));
  return read_predicates(writer, kernel, variant, made);
}

accrt_status_t accrt_bundle_writer_add_variant(accrt_bundle_writer_t* writer,
                                               accrt_writer_id_t kernel,
                                               const accrt_writer_variant_t* variant) {
  WRITER_ENTER(writer, NULL, NULL);
  accrt_writer_variant_t local;
  uint32_t index;
  ACCRT_TRY(accrt_struct_read("accrt_writer_variant_t", variant, &local, sizeof local));
  ACCRT_TRY(accx_writer_index(writer, WRITER_KERNEL, kernel, false, "kernel", &index));
  writer_kernel_t* owner = WRITER_ITEM(writer, kernel, WRITER_KERNEL, index);
  writer->where.kind = "kernel";
  writer->where.name = accx_writer_text(writer, owner->record.name);
  writer_variant_t made = {.kernel = index, .next = WRITER_NO}, *item;
  ACCRT_TRY(read_variant(writer, owner, &local, &made));
  ACCRT_TRY(accx_writer_new(writer, WRITER_VARIANT, &item));
  *item = made;
  const uint32_t added = accx_writer_commit(writer, WRITER_VARIANT);
  if (owner->last_variant == WRITER_NO)
    owner->first_variant = added;
  else
    WRITER_ITEM(writer, variant, WRITER_VARIANT, owner->last_variant)->next = added;
  owner->last_variant = added;
  ++owner->record.variant_count;
  return ACCRT_OK;
}

/* ---- Assets, locations and raw sections ---- */

accrt_status_t accrt_bundle_writer_add_location(accrt_bundle_writer_t* writer, const char* file,
                                                uint32_t line, uint32_t column, const char* name,
                                                accrt_writer_id_t* out_id) {
  WRITER_ENTER_FOR(writer, "location", file, out_id);
  writer_key_t key = {.kind = WRITER_LOCATION, .c = line, .d = column};
  accx_location_t* item;
  ACCRT_TRY(accx_writer_string(writer, file, "the file", &key.a));
  ACCRT_TRY(accx_writer_string(writer, name, "the name", &key.b));
  uint32_t id = accx_writer_find(writer, &key);
  if (id == WRITER_NO) {
    ACCRT_TRY(accx_writer_make_room(writer));
    ACCRT_TRY(accx_writer_new(writer, WRITER_LOCATION, &item));
    *item = (accx_location_t){key.a, line, column, key.b};
    id = accx_writer_id(WRITER_LOCATION, accx_writer_commit(writer, WRITER_LOCATION));
    accx_writer_put(writer, &key, id);
  }
  *out_id = id;
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_add_asset(accrt_bundle_writer_t* writer, const char* name,
                                             const char* media_type,
                                             const accrt_writer_bytes_t* bytes) {
  WRITER_ENTER(writer, "asset", name);
  writer_asset_t made = {.record = {0}};
  accrt_writer_id_t id;
  ACCRT_TRY(accx_writer_string(writer, media_type, "the media type", &made.record.media_type));
  if (bytes == NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "bytes is NULL");
  ACCRT_TRY(check_bytes(writer, bytes));
  made.bytes = *bytes;
  made.record.size_bytes = bytes->size_bytes;
  return accx_writer_add_named(writer, WRITER_ASSET, name, &made,
                               offsetof(writer_asset_t, record.name), &id);
}

/* True for sections about the finished file that the writer does not make. DATA is one only when it
 * is encrypted. */
static bool is_about_file(uint32_t type) {
  return type == ACCX_SECTION_DATA || type == ACCX_SECTION_TREE ||
         type == ACCX_SECTION_SIGNATURES || type == ACCX_SECTION_LEAVES ||
         type == ACCX_SECTION_ENCRYPTION || type == ACCX_SECTION_TAGS;
}

static accrt_status_t read_section(const accrt_bundle_writer_t* writer,
                                   const accrt_writer_section_t* section, writer_section_t* made) {
  const accx_section_kind_t* kind = accx_section_kind(section->type);
  if (section->type == 0 || (kind != NULL && !is_about_file(section->type)))
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "the writer makes sections of type %" PRIu32 " itself", section->type);
  const char* name = kind != NULL ? kind->name : section->name != NULL ? section->name : "";
  const size_t size = strlen(name);
  bool good = size >= 1 && size < sizeof made->name;
  for (size_t i = 0; i < size; ++i)
    good = good && name[i] > ' ' && name[i] <= '~';
  if (!good)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "a section's name is 1 to 16 printable characters without spaces");
  made->type = section->type;
  const bool required = kind != NULL ? kind->required : section->flags != 0;
  made->flags = required ? ACCX_SECTION_FLAG_REQUIRED : 0;
  memcpy(made->name, name, size + 1 < sizeof made->name ? size + 1 : sizeof made->name);
  made->record_bytes = kind != NULL ? kind->record_bytes : section->record_bytes;
  made->record_count = section->record_count;
  made->bytes = section->bytes;
  ACCRT_TRY(accx_writer_reserved(writer, section->reserved));
  if (section->flags > (kind == NULL ? ACCRT_WRITER_SECTION_REQUIRED : 0))
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "flags 0x%" PRIx32, section->flags);
  uint64_t records;
  if (section->bytes.size_bytes != 0 &&
      (made->record_bytes == 0 ||
       (accrt_mul_u64(made->record_bytes, made->record_count, &records) &&
        records == section->bytes.size_bytes)))
    return ACCRT_OK;
  return WRITER_FAIL(writer, INVALID_ARGUMENT,
                     "%" PRIu64 " bytes in %" PRIu32 " records of %" PRIu32,
                     section->bytes.size_bytes, made->record_count, made->record_bytes);
}

accrt_status_t accrt_bundle_writer_add_section(accrt_bundle_writer_t* writer,
                                               const accrt_writer_section_t* section) {
  accrt_writer_section_t local;
  writer_section_t made = {0}, *item;
  uint32_t unused;
  WRITER_BEGIN(writer, section, &local, "section", &unused);
  ACCRT_TRY(read_section(writer, &local, &made));
  ACCRT_TRY(check_bytes(writer, &made.bytes));
  const writer_key_t key = {.kind = WRITER_SECTION, .a = made.type};
  ACCRT_TRY(accx_writer_claim(writer, &key));
  ACCRT_TRY(accx_writer_new(writer, WRITER_SECTION, &item));
  *item = made;
  accx_writer_put(writer, &key, accx_writer_commit(writer, WRITER_SECTION));
  return ACCRT_OK;
}
