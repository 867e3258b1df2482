/* write/writer_functions.c - a bundle writer's functions: signatures and slots. Their commands are
 * in writer_commands.c. This file does not sort or write.
 */
#include "write/writer.h"

#include "runtime/core/struct.h"

#define DEFAULT_ARENA_ALIGN 256u

static accrt_status_t find_function(accrt_bundle_writer_t* writer, accrt_writer_id_t function,
                                    uint32_t* out_function) {
  ACCRT_TRY(accx_writer_index(writer, WRITER_FUNCTION, function, false, "function", out_function));
  writer->where.function = *out_function;
  return ACCRT_OK;
}

/* ---- Functions ---- */

accrt_status_t accrt_bundle_writer_add_function(accrt_bundle_writer_t* writer,
                                                const accrt_writer_function_t* function,
                                                accrt_writer_id_t* out_id,
                                                accrt_writer_id_t* out_body) {
  accrt_writer_function_t local;
  writer_function_t* item;
  writer_block_t* block;
  writer_key_t key = {.kind = WRITER_FUNCTION};
  uint32_t doc;
  if (out_body != NULL)
    *out_body = 0;
  WRITER_BEGIN(writer, function, &local, "function", out_id);
  ACCRT_TRY(accx_writer_out(writer, out_body));
  ACCRT_TRY(accx_writer_name(writer, local.name, "the name", &key.a));
  ACCRT_TRY(accx_writer_string(writer, local.doc, "doc", &doc));
  ACCRT_TRY(accx_writer_string(writer, local.target, "target", &key.b));
  if (local.flags > ACCX_FUNCTION_INTERNAL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "flags 0x%" PRIx32 "; PREPARE or INTERNAL or none",
                       local.flags);
  ACCRT_TRY(accx_writer_claim(writer, &key));
  ACCRT_TRY(accx_writer_new(writer, WRITER_FUNCTION, &item));
  ACCRT_TRY(accx_writer_new(writer, WRITER_BLOCK, &block));
  const uint32_t index = accx_writer_commit(writer, WRITER_FUNCTION);
  *block = (writer_block_t){index, WRITER_NO, WRITER_NO, 0, 1, 0, 0};
  *item = (writer_function_t){
      .record = {.name = key.a,
                 .flags = local.flags,
                 .required_features =
                     local.required_features | (key.b != 0 ? ACCX_FEATURE_FUNCTION_TARGET : 0),
                 .body = accx_writer_commit(writer, WRITER_BLOCK),
                 .transient_align = 1,
                 .doc = doc,
                 .target = key.b},
      .first_input = WRITER_NO,
      .last_input = WRITER_NO,
      .first_result = WRITER_NO,
      .last_result = WRITER_NO,
      .first_slot = WRITER_NO,
      .arena = WRITER_NO,
      .first_call = WRITER_NO};
  *out_id = accx_writer_id(WRITER_FUNCTION, index);
  *out_body = accx_writer_id(WRITER_BLOCK, item->record.body);
  accx_writer_put(writer, &key, *out_id);
  return ACCRT_OK;
}

/* ---- Arguments ---- */

/* The type of a constant. Its dimensions are numbers. */
static accrt_status_t type_of_constant(accrt_bundle_writer_t* writer, uint32_t constant,
                                       accx_type_t* out_type) {
  const accx_constant_t record = WRITER_ITEM(writer, constant, WRITER_CONSTANT, constant)->record;
  *out_type = (accx_type_t){record.dtype, record.encoding, record.rank, record.group_elements, {0}};
  for (uint32_t i = 0; i < record.rank; ++i)
    ACCRT_TRY(accx_writer_number(writer, record.shape[i], &out_type->dims[i]));
  return ACCRT_OK;
}

static accrt_status_t read_type(accrt_bundle_writer_t* writer,
                                const accrt_writer_argument_t* argument, accx_argument_t* record) {
  static const accrt_writer_type_t none;
  uint32_t constant, symbol;
  ACCRT_TRY(
      accx_writer_index(writer, WRITER_CONSTANT, argument->constant, true, "constant", &constant));
  ACCRT_TRY(
      accx_writer_index(writer, WRITER_EXPRESSION, argument->symbol, true, "symbol", &symbol));
  const bool scalar = argument->kind == ACCX_ARGUMENT_SCALAR;
  const bool is_symbol =
      symbol != WRITER_NO &&
      WRITER_ITEM(writer, expression, WRITER_EXPRESSION, symbol)->node.op == ACCX_EXPR_SYMBOL;
  if (scalar ? !is_symbol : argument->symbol != 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "a SCALAR names a symbol, others name none");
  record->symbol = argument->symbol;
  record->constant = argument->constant;
  if (!scalar && constant == WRITER_NO)
    return accx_writer_type(writer, &argument->type, ACCX_USES_SYMBOLS, &record->type);
  if (memcmp(&argument->type, &none, sizeof none) != 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "the type follows from the %s and is not given",
                       scalar ? "symbol" : "constant");
  record->type.dtype = ACCRT_DTYPE_I64;
  return scalar ? ACCRT_OK : type_of_constant(writer, constant, &record->type);
}

static accrt_status_t check_prepare_argument(const accrt_bundle_writer_t* writer,
                                             const accrt_writer_argument_t* argument,
                                             uint32_t function) {
  const bool prepare =
      (accx_writer_function_at(writer, function)->record.flags & ACCX_FUNCTION_PREPARE) != 0;
  if (!prepare && argument->constant == 0)
    return ACCRT_OK;
  if (!prepare || argument->constant == 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "arguments of prepare functions, and no others, are constants");
  const accx_constant_t* constant =
      &WRITER_ITEM(writer, constant, WRITER_CONSTANT, WRITER_INDEX(argument->constant))->record;
  const bool made = constant->source == ACCX_CONSTANT_PREPARED;
  if (made == (argument->kind == ACCX_ARGUMENT_RESULT) &&
      (made || argument->kind == ACCX_ARGUMENT_READ) && argument->optional == 0)
    return ACCRT_OK;
  return WRITER_FAIL(writer, INVALID_ARGUMENT,
                     "constant '%.64s' %s; prepare functions read stored constants and make "
                     "prepared ones",
                     accx_writer_text(writer, constant->name),
                     made ? "is made by a prepare function" : "is stored");
}

/* Finds the input whose storage a result shares. */
static accrt_status_t read_alias(const accrt_bundle_writer_t* writer,
                                 const accrt_writer_argument_t* argument, uint32_t function,
                                 accx_argument_t* record, uint32_t* out_input) {
  *out_input = WRITER_NO;
  record->alias_kind = argument->alias_kind;
  record->alias_input = ACCX_NONE;
  if (argument->alias_kind == ACCX_ALIAS_NONE && argument->alias_input == 0)
    return ACCRT_OK;
  uint32_t index;
  ACCRT_TRY(
      accx_writer_index(writer, WRITER_SLOT, argument->alias_input, false, "alias_input", &index));
  const writer_slot_t* slot = WRITER_ITEM(writer, slot, WRITER_SLOT, index);
  const writer_argument_t* input =
      slot->kind == ACCX_SLOT_ARGUMENT && slot->function == function
          ? WRITER_ITEM(writer, argument, WRITER_ARGUMENT, slot->target)
          : NULL;
  if (argument->kind == ACCX_ARGUMENT_RESULT && argument->alias_kind - 1 < ACCX_ALIAS_MUST &&
      input != NULL && !input->aliased &&
      (input->record.kind == ACCX_ARGUMENT_READ_WRITE ||
       input->record.kind == ACCX_ARGUMENT_DONATED)) {
    record->alias_input = input->index;
    *out_input = slot->target;
    return ACCRT_OK;
  }
  return WRITER_FAIL(writer, INVALID_ARGUMENT,
                     "alias kind %" PRIu32 " with '%.64s'; a result shares the storage of a "
                     "READ_WRITE or DONATED input of its function that no other result shares",
                     argument->alias_kind,
                     input != NULL ? accx_writer_text(writer, input->record.name) : "no input");
}

/* Appends an argument to the inputs or results. */
static void link_argument(accrt_bundle_writer_t* writer, uint32_t index) {
  writer_argument_t* item = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, index);
  writer_function_t* function = accx_writer_function_at(writer, item->function);
  const bool result = item->record.kind == ACCX_ARGUMENT_RESULT;
  uint32_t* first = result ? &function->first_result : &function->first_input;
  uint32_t* last = result ? &function->last_result : &function->last_input;
  uint32_t* count = result ? &function->record.result_count : &function->record.input_count;
  item->index = (*count)++;
  item->next = WRITER_NO;
  if (*first == WRITER_NO)
    *first = index;
  else
    WRITER_ITEM(writer, argument, WRITER_ARGUMENT, *last)->next = index;
  *last = index;
}

accrt_status_t accrt_bundle_writer_add_argument(accrt_bundle_writer_t* writer,
                                                accrt_writer_id_t function,
                                                const accrt_writer_argument_t* argument,
                                                accrt_writer_id_t* out_slot) {
  accrt_writer_argument_t local;
  writer_argument_t made = {0}, *item;
  writer_slot_t* slot;
  writer_key_t key = {.kind = WRITER_INPUT};
  uint32_t alias;
  WRITER_ENTER_FOR(writer, NULL, NULL, out_slot);
  ACCRT_TRY(find_function(writer, function, &made.function));
  ACCRT_TRY(accrt_struct_read("accrt_writer_argument_t", argument, &local, sizeof local));
  const bool result = local.kind == ACCX_ARGUMENT_RESULT;
  writer->where.kind = result ? "result" : "input";
  writer->where.name = local.name;
  ACCRT_TRY(accx_writer_reserved(writer, local.reserved));
  if (local.kind > ACCX_ARGUMENT_SCALAR || local.optional > (result ? 0 : 1))
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "kind %" PRIu32 ", optional %" PRIu32, local.kind,
                       local.optional);
  ACCRT_TRY(accx_writer_name(writer, local.name, "the name", &made.record.name));
  ACCRT_TRY(accx_writer_string(writer, local.doc, "doc", &made.record.doc));
  ACCRT_TRY(read_type(writer, &local, &made.record));
  ACCRT_TRY(check_prepare_argument(writer, &local, made.function));
  ACCRT_TRY(read_alias(writer, &local, made.function, &made.record, &alias));
  const accx_function_t* owner = &accx_writer_function_at(writer, made.function)->record;
  if (owner->input_count + owner->result_count == ACCX_MAX_ARGUMENTS)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "a function has at most %u arguments",
                       ACCX_MAX_ARGUMENTS);
  made.record.kind = local.kind;
  made.record.flags = local.optional;
  key = (writer_key_t){
      .kind = result ? WRITER_RESULT : WRITER_INPUT, .a = made.record.name, .b = made.function};
  ACCRT_TRY(accx_writer_claim(writer, &key));
  ACCRT_TRY(accx_writer_new(writer, WRITER_SLOT, &slot));
  ACCRT_TRY(accx_writer_new(writer, WRITER_ARGUMENT, &item));
  *item = made;
  const uint32_t index = accx_writer_commit(writer, WRITER_ARGUMENT);
  link_argument(writer, index);
  if (alias != WRITER_NO)
    WRITER_ITEM(writer, argument, WRITER_ARGUMENT, alias)->aliased = 1;
  *slot = (writer_slot_t){
      .function = made.function, .kind = ACCX_SLOT_ARGUMENT, .target = index, .next = WRITER_NO};
  *out_slot = accx_writer_id(WRITER_SLOT, accx_writer_commit(writer, WRITER_SLOT));
  accx_writer_put(writer, &key, index);
  return ACCRT_OK;
}

/* ---- Slots ---- */

static accrt_status_t add_slot(accrt_bundle_writer_t* writer, const writer_slot_t* slot,
                               accrt_writer_id_t* out_slot) {
  writer_slot_t* item;
  ACCRT_TRY(accx_writer_new(writer, WRITER_SLOT, &item));
  writer_function_t* function = accx_writer_function_at(writer, slot->function);
  *item = *slot;
  item->next = function->first_slot;
  function->first_slot = accx_writer_commit(writer, WRITER_SLOT);
  *out_slot = accx_writer_id(WRITER_SLOT, function->first_slot);
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_slot(accrt_bundle_writer_t* writer, accrt_writer_id_t function,
                                        accrt_writer_id_t target, uint32_t component,
                                        accrt_writer_id_t* out_slot) {
  uint32_t owner, index, count = 1;
  WRITER_ENTER_FOR(writer, NULL, NULL, out_slot);
  ACCRT_TRY(find_function(writer, function, &owner));
  const bool state = target >> WRITER_INDEX_BITS == WRITER_STATE;
  ACCRT_TRY(accx_writer_index(writer, state ? WRITER_STATE : WRITER_CONSTANT, target, false,
                              "target", &index));
  if (!state)
    count = WRITER_ITEM(writer, constant, WRITER_CONSTANT, index)->record.component_count;
  if (component >= count)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "component %" PRIu32 " of %" PRIu32, component, count);
  const writer_key_t key = {.kind = WRITER_SLOT, .a = owner, .b = target, .c = component};
  *out_slot = accx_writer_find(writer, &key);
  if (*out_slot != WRITER_NO)
    return ACCRT_OK;
  *out_slot = 0;
  const writer_slot_t slot = {.function = owner,
                              .kind = state ? ACCX_SLOT_STATE : ACCX_SLOT_CONSTANT,
                              .target = target,
                              .component = component};
  ACCRT_TRY(accx_writer_make_room(writer));
  ACCRT_TRY(add_slot(writer, &slot, out_slot));
  accx_writer_put(writer, &key, *out_slot);
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_arena(accrt_bundle_writer_t* writer, accrt_writer_id_t function,
                                         accrt_writer_id_t size_bytes, uint32_t align_bytes,
                                         accrt_writer_id_t* out_slot) {
  const writer_place_t place = {ACCX_USES_SYMBOLS | ACCX_USES_PRESENT, 0, true};
  uint32_t owner;
  WRITER_ENTER_FOR(writer, NULL, NULL, out_slot);
  ACCRT_TRY(find_function(writer, function, &owner));
  const uint32_t align = align_bytes != 0 ? align_bytes : DEFAULT_ARENA_ALIGN;
  if (size_bytes != 0)
    ACCRT_TRY(accx_writer_use(writer, size_bytes, &place, "the arena's size"));
  if (!accrt_is_power_of_two(align) || align > ACCX_DATA_ALIGN)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "the arena is aligned to %" PRIu32 ", no power of two up to %u", align,
                       ACCX_DATA_ALIGN);
  const writer_slot_t slot = {.function = owner, .kind = ACCX_SLOT_TRANSIENT};
  if (accx_writer_function_at(writer, owner)->arena == WRITER_NO) {
    ACCRT_TRY(add_slot(writer, &slot, out_slot));
    accx_writer_function_at(writer, owner)->arena = WRITER_INDEX(*out_slot);
  }
  writer_function_t* item = accx_writer_function_at(writer, owner);
  *out_slot = accx_writer_id(WRITER_SLOT, item->arena);
  if (size_bytes == 0)
    return ACCRT_OK;
  item->record.transient_size = size_bytes;
  item->record.transient_align = align;
  return ACCRT_OK;
}
