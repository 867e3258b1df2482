/* loader/writer_functions.c - functions of a bundle writer: signatures, slots, blocks and commands. Commands are kept as in the file,
 * but for references, which stay ids; nothing is ordered or written here. */
#include "loader/sort.h"
#include "loader/writer.h"

#include "accrt/tensor.h"
#include "runtime/core/pack.h"
#include "runtime/core/struct.h"

#define DEFAULT_ARENA_ALIGN 256u

static writer_function_t* function_at(const accrt_bundle_writer_t* writer, uint32_t index) {
  return WRITER_ITEM(writer, function, WRITER_FUNCTION, index);
}

static accrt_status_t begin_in_function(accrt_bundle_writer_t* writer, const char* operation,
                                        accrt_writer_id_t function, accrt_writer_id_t* out_id,
                                        uint32_t* out_function) {
  ACCX_TRY(accx_writer_begin(writer, operation, NULL, NULL));
  ACCX_TRY(accx_writer_out(writer, out_id));
  ACCX_TRY(accx_writer_index(writer, WRITER_FUNCTION, function, false, "function", out_function));
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
  WRITER_BEGIN(writer, function, &local, "function", out_id);
  ACCX_TRY(accx_writer_out(writer, out_body));
  ACCX_TRY(accx_writer_name(writer, local.name, "the name", &key.a));
  ACCX_TRY(accx_writer_string(writer, local.doc, "doc", &doc));
  ACCX_TRY(accx_writer_string(writer, local.target, "target", &key.b));
  if (local.flags > ACCX_FUNCTION_INTERNAL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "flags 0x%" PRIx32 "; PREPARE or INTERNAL or none",
                       local.flags);
  ACCX_TRY(accx_writer_claim(writer, &key));
  ACCX_TRY(accx_writer_new(writer, WRITER_FUNCTION, &item));
  ACCX_TRY(accx_writer_new(writer, WRITER_BLOCK, &block));
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

/* The type of a constant, with numbers as dimensions. */
static accrt_status_t type_of_constant(accrt_bundle_writer_t* writer, uint32_t constant,
                                       accx_type_t* out_type) {
  const accx_constant_t record = WRITER_ITEM(writer, constant, WRITER_CONSTANT, constant)->record;
  *out_type = (accx_type_t){record.dtype, record.encoding, record.rank, record.group_elements, {0}};
  for (uint32_t i = 0; i < record.rank; ++i)
    ACCX_TRY(accx_writer_number(writer, record.shape[i], &out_type->dims[i]));
  return ACCRT_OK;
}

static accrt_status_t read_type(accrt_bundle_writer_t* writer,
                                const accrt_writer_argument_t* argument, accx_argument_t* record) {
  static const accrt_writer_type_t none;
  uint32_t constant, symbol;
  ACCX_TRY(
      accx_writer_index(writer, WRITER_CONSTANT, argument->constant, true, "constant", &constant));
  ACCX_TRY(accx_writer_index(writer, WRITER_EXPRESSION, argument->symbol, true, "symbol", &symbol));
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
  const bool prepare = (function_at(writer, function)->record.flags & ACCX_FUNCTION_PREPARE) != 0;
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

/* The input that a result shares the storage of. */
static accrt_status_t read_alias(const accrt_bundle_writer_t* writer,
                                 const accrt_writer_argument_t* argument, uint32_t function,
                                 accx_argument_t* record, uint32_t* out_input) {
  *out_input = WRITER_NO;
  record->alias_kind = argument->alias_kind;
  record->alias_input = ACCX_NONE;
  if (argument->alias_kind == ACCX_ALIAS_NONE && argument->alias_input == 0)
    return ACCRT_OK;
  uint32_t index;
  ACCX_TRY(
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

/* Puts an argument behind those of its kind. */
static void link_argument(accrt_bundle_writer_t* writer, uint32_t index) {
  writer_argument_t* item = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, index);
  writer_function_t* function = function_at(writer, item->function);
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
  ACCX_TRY(begin_in_function(writer, __func__, function, out_slot, &made.function));
  ACCX_TRY(accrt_struct_read("accrt_writer_argument_t", argument, &local, sizeof local));
  const bool result = local.kind == ACCX_ARGUMENT_RESULT;
  writer->where.kind = result ? "result" : "input";
  writer->where.name = local.name;
  ACCX_TRY(accx_writer_reserved(writer, local.reserved));
  if (local.kind > ACCX_ARGUMENT_SCALAR || local.optional > (result ? 0 : 1))
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "kind %" PRIu32 ", optional %" PRIu32, local.kind,
                       local.optional);
  ACCX_TRY(accx_writer_name(writer, local.name, "the name", &made.record.name));
  ACCX_TRY(accx_writer_string(writer, local.doc, "doc", &made.record.doc));
  ACCX_TRY(read_type(writer, &local, &made.record));
  ACCX_TRY(check_prepare_argument(writer, &local, made.function));
  ACCX_TRY(read_alias(writer, &local, made.function, &made.record, &alias));
  const accx_function_t* owner = &function_at(writer, made.function)->record;
  if (owner->input_count + owner->result_count == ACCX_MAX_ARGUMENTS)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "a function has at most %u arguments",
                       ACCX_MAX_ARGUMENTS);
  made.record.kind = local.kind;
  made.record.flags = local.optional;
  key = (writer_key_t){
      .kind = result ? WRITER_RESULT : WRITER_INPUT, .a = made.record.name, .b = made.function};
  ACCX_TRY(accx_writer_claim(writer, &key));
  ACCX_TRY(accx_writer_new(writer, WRITER_SLOT, &slot));
  ACCX_TRY(accx_writer_new(writer, WRITER_ARGUMENT, &item));
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
  ACCX_TRY(accx_writer_new(writer, WRITER_SLOT, &item));
  writer_function_t* function = function_at(writer, slot->function);
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
  ACCX_TRY(begin_in_function(writer, __func__, function, out_slot, &owner));
  const bool state = target >> WRITER_INDEX_BITS == WRITER_STATE;
  ACCX_TRY(accx_writer_index(writer, state ? WRITER_STATE : WRITER_CONSTANT, target, false,
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
  ACCX_TRY(accx_writer_make_room(writer));
  ACCX_TRY(add_slot(writer, &slot, out_slot));
  accx_writer_put(writer, &key, *out_slot);
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_arena(accrt_bundle_writer_t* writer, accrt_writer_id_t function,
                                         accrt_writer_id_t size_bytes, uint32_t align_bytes,
                                         accrt_writer_id_t* out_slot) {
  const writer_place_t place = {ACCX_USES_SYMBOLS | ACCX_USES_PRESENT, 0, true};
  uint32_t owner;
  ACCX_TRY(begin_in_function(writer, __func__, function, out_slot, &owner));
  const uint32_t align = align_bytes != 0 ? align_bytes : DEFAULT_ARENA_ALIGN;
  if (size_bytes != 0)
    ACCX_TRY(accx_writer_use(writer, size_bytes, &place, "the arena's size"));
  if (!accrt_is_power_of_two(align) || align > ACCX_DATA_ALIGN)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "the arena is aligned to %" PRIu32 ", no power of two up to %u", align,
                       ACCX_DATA_ALIGN);
  const writer_slot_t slot = {.function = owner, .kind = ACCX_SLOT_TRANSIENT};
  if (function_at(writer, owner)->arena == WRITER_NO) {
    ACCX_TRY(add_slot(writer, &slot, out_slot));
    function_at(writer, owner)->arena = WRITER_INDEX(*out_slot);
  }
  writer_function_t* item = function_at(writer, owner);
  *out_slot = accx_writer_id(WRITER_SLOT, item->arena);
  if (size_bytes == 0)
    return ACCRT_OK;
  item->record.transient_size = size_bytes;
  item->record.transient_align = align;
  return ACCRT_OK;
}

/* ---- Ranges and operands ---- */

/* Where a command is being made. */
typedef struct making {
  accrt_bundle_writer_t* writer;
  const accrt_writer_command_t* given;
  uint32_t function;
  uint32_t repeat_depth;
  writer_command_t* made;
} making_t;

static accrt_status_t use(const making_t* making, accrt_writer_id_t id, bool size,
                          const char* field) {
  const writer_place_t place = {ACCX_USES_ANY, making->repeat_depth, size};
  return accx_writer_use(making->writer, id, &place, field);
}

/* A size that may be left out. */
static accrt_status_t read_size(const making_t* making, accrt_writer_id_t id, int64_t otherwise,
                                const char* field, accrt_writer_id_t* out_id) {
  *out_id = id;
  return id == 0 ? accx_writer_number(making->writer, otherwise, out_id)
                 : use(making, id, true, field);
}

static const char* slot_name(const accrt_bundle_writer_t* writer, const writer_slot_t* slot) {
  const uint32_t index =
      slot->kind == ACCX_SLOT_ARGUMENT ? slot->target : WRITER_INDEX(slot->target);
  switch (slot->kind) {
  case ACCX_SLOT_ARGUMENT:
    return accx_writer_text(writer,
                            WRITER_ITEM(writer, argument, WRITER_ARGUMENT, index)->record.name);
  case ACCX_SLOT_CONSTANT:
    return accx_writer_text(writer,
                            WRITER_ITEM(writer, constant, WRITER_CONSTANT, index)->record.name);
  case ACCX_SLOT_STATE:
    return accx_writer_text(
        writer, ((const accx_state_t*)accx_writer_item(writer, WRITER_STATE, index))->name);
  default:
    return "the arena";
  }
}

/* Why a slot may not be accessed so; NULL when it may. */
static const char* refused_access(const accrt_bundle_writer_t* writer, const writer_slot_t* slot,
                                  uint32_t access) {
  const bool writes = (access & ACCRT_KERNEL_ACCESS_WRITE) != 0;
  if (slot->kind == ACCX_SLOT_CONSTANT)
    return writes ? "a constant is read only" : NULL;
  if (slot->kind != ACCX_SLOT_ARGUMENT)
    return NULL;
  const uint32_t kind = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, slot->target)->record.kind;
  if (kind == ACCX_ARGUMENT_SCALAR)
    return "a scalar has no storage";
  return writes && kind == ACCX_ARGUMENT_READ
             ? "the input is read only; declare it READ_WRITE or DONATED to write it"
             : NULL;
}

static accrt_status_t read_range(const making_t* making, const accrt_writer_range_t* range,
                                 uint32_t access, bool sized, accx_range_t* out_range) {
  const accrt_bundle_writer_t* writer = making->writer;
  uint32_t index;
  ACCX_TRY(accx_writer_index(writer, WRITER_SLOT, range->slot, false, "a range's slot", &index));
  const writer_slot_t* slot = WRITER_ITEM(writer, slot, WRITER_SLOT, index);
  if (slot->function != making->function)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "'%.64s' is a slot of function '%.64s'",
                       slot_name(writer, slot),
                       accx_writer_text(writer, function_at(writer, slot->function)->record.name));
  if (range->access != 0 && range->access != access)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "the range of '%.64s' is for access %" PRIu32 ", needed is %" PRIu32
                       " (1 read, 2 write, 3 both)",
                       slot_name(writer, slot), range->access, access);
  const char* why = refused_access(writer, slot, access);
  if (why != NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "'%.64s': %s", slot_name(writer, slot), why);
  *out_range = (accx_range_t){range->slot, access, 0, range->size};
  if (range->size != 0 && !sized)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "a copy's sizes are its extents, not its ranges'");
  if (range->size != 0)
    ACCX_TRY(use(making, range->size, true, "a range's size"));
  return read_size(making, range->offset, 0, "a range's offset", &out_range->offset);
}

/* Row-major strides: 1, then products; numbers are multiplied at once. */
static accrt_status_t next_stride(const making_t* making, accrt_writer_id_t stride,
                                  accrt_writer_id_t size, accrt_writer_id_t* out_stride) {
  accrt_bundle_writer_t* writer = making->writer;
  const writer_expression_t a =
      *WRITER_ITEM(writer, expression, WRITER_EXPRESSION, WRITER_INDEX(stride));
  const writer_expression_t b =
      *WRITER_ITEM(writer, expression, WRITER_EXPRESSION, WRITER_INDEX(size));
  int64_t product;
  if (a.node.op == ACCX_EXPR_CONSTANT && b.node.op == ACCX_EXPR_CONSTANT &&
      !__builtin_mul_overflow(a.node.immediate, b.node.immediate, &product))
    return accx_writer_number(writer, product, out_stride);
  const uint32_t flags = (a.uses | b.uses) & 0xFFu;
  const uint32_t depth = a.uses >> 8 > b.uses >> 8 ? a.uses >> 8 : b.uses >> 8;
  const accx_expression_t node = {ACCX_EXPR_MUL, WRITER_INDEX(stride), WRITER_INDEX(size),
                                  WRITER_NO, 0};
  return accx_writer_node(writer, &node, flags | depth << 8, out_stride);
}

static accrt_status_t read_view(const making_t* making, const accrt_writer_operand_t* operand,
                                uint32_t* out_view) {
  accrt_bundle_writer_t* writer = making->writer;
  const uint32_t rank = operand->rank;
  if (rank > ACCX_MAX_RANK || accrt_dtype_bits(operand->dtype) == 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "data type %" PRIu32 ", rank %" PRIu32 " of at most %d", operand->dtype,
                       rank, ACCX_MAX_RANK);
  accx_view_t made = {.dtype = operand->dtype, .rank = rank}, *item;
  bool given = false;
  for (uint32_t i = 0; i < rank; ++i) {
    ACCX_TRY(use(making, operand->shape[i], true, "a size of the tensor"));
    made.shape[i] = operand->shape[i];
    given = given || operand->strides[i] != 0;
  }
  accrt_writer_id_t stride = 0;
  for (uint32_t i = rank; i-- > 0;) {
    if (given)
      ACCX_TRY(use(making, operand->strides[i], false, "a stride of the tensor"));
    else if (stride == 0)
      ACCX_TRY(accx_writer_number(writer, 1, &stride));
    else
      ACCX_TRY(next_stride(making, stride, made.shape[i + 1], &stride));
    made.strides[i] = given ? operand->strides[i] : stride;
  }
  ACCX_TRY(accx_writer_new(writer, WRITER_VIEW, &item));
  *item = made;
  *out_view = accx_writer_commit(writer, WRITER_VIEW);
  return ACCRT_OK;
}

/* What an operand must be. */
typedef struct operand_rule {
  const char* name;
  uint32_t kind;
  uint32_t access;
  uint32_t size_bytes;
  bool optional;
} operand_rule_t;

static accrt_status_t read_operand(const making_t* making, const accrt_writer_operand_t* given,
                                   const operand_rule_t* rule, accx_operand_t* out) {
  const accrt_bundle_writer_t* writer = making->writer;
  *out = (accx_operand_t){.kind = given->kind, .view = ACCX_NONE};
  if (given->kind == ACCX_OPERAND_ABSENT) {
    if (rule->optional)
      return ACCRT_OK;
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "it is not optional, and must be given");
  }
  if (given->kind != rule->kind)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "a %s is needed, not a %s",
                       accrt_kernel_param_kind_name(rule->kind),
                       accrt_kernel_param_kind_name(given->kind));
  switch (given->kind) {
  case ACCX_OPERAND_SYMBOL:
    out->expression = given->value;
    return use(making, given->value, false, "the value");
  case ACCX_OPERAND_SCALAR:
    out->immediate = given->bits;
    if (rule->size_bytes >= 8 || given->bits >> (8 * rule->size_bytes) == 0)
      return ACCRT_OK;
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "0x%" PRIx64 " does not fit %" PRIu32 " bytes",
                       given->bits, rule->size_bytes);
  case ACCX_OPERAND_TENSOR:
    ACCX_TRY(read_view(making, given, &out->view));
    break;
  default:
    break;
  }
  ACCX_TRY(read_range(making, &given->range, rule->access, true, &out->range));
  const uint32_t slot = WRITER_INDEX(given->range.slot);
  if (given->kind != ACCX_OPERAND_WORKSPACE ||
      WRITER_ITEM(writer, slot, WRITER_SLOT, slot)->kind == ACCX_SLOT_TRANSIENT)
    return ACCRT_OK;
  return WRITER_FAIL(writer, INVALID_ARGUMENT, "a workspace lies in the arena");
}

/* ---- Dispatches and calls ---- */

/* What takes operands: a kernel, or a function. */
typedef struct callee {
  const writer_kernel_t* kernel; /* or NULL */
  uint32_t function;
  uint32_t count;
} callee_t;

/* The index-th argument: inputs, then results. */
static const accx_argument_t* argument_at(const accrt_bundle_writer_t* writer, uint32_t function,
                                          uint32_t index) {
  const writer_function_t* item = function_at(writer, function);
  uint32_t at = item->first_input;
  if (index >= item->record.input_count) {
    index -= item->record.input_count;
    at = item->first_result;
  }
  while (index-- > 0)
    at = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, at)->next;
  return &WRITER_ITEM(writer, argument, WRITER_ARGUMENT, at)->record;
}

static operand_rule_t rule_of_parameter(const accrt_bundle_writer_t* writer,
                                        const accx_parameter_t* parameter) {
  return (operand_rule_t){accx_writer_text(writer, parameter->name), parameter->kind,
                          parameter->access, parameter->size_bytes, parameter->flags != 0};
}

static operand_rule_t rule_of_argument(const accrt_bundle_writer_t* writer,
                                       const accx_argument_t* argument) {
  static const uint8_t accesses[] = {[ACCX_ARGUMENT_READ] = ACCRT_KERNEL_ACCESS_READ,
                                     [ACCX_ARGUMENT_READ_WRITE] = ACCRT_KERNEL_ACCESS_READ_WRITE,
                                     [ACCX_ARGUMENT_DONATED] = ACCRT_KERNEL_ACCESS_READ_WRITE,
                                     [ACCX_ARGUMENT_RESULT] = ACCRT_KERNEL_ACCESS_WRITE,
                                     [ACCX_ARGUMENT_SCALAR] = ACCRT_KERNEL_ACCESS_NONE};
  const bool scalar = argument->kind == ACCX_ARGUMENT_SCALAR;
  return (operand_rule_t){accx_writer_text(writer, argument->name),
                          scalar ? ACCX_OPERAND_SYMBOL : ACCX_OPERAND_BUFFER,
                          accesses[argument->kind], 0, argument->flags != 0};
}

static operand_rule_t rule_at(const accrt_bundle_writer_t* writer, const callee_t* callee,
                              uint32_t index) {
  return callee->kernel != NULL
             ? rule_of_parameter(writer, &callee->kernel->parameters[index])
             : rule_of_argument(writer, argument_at(writer, callee->function, index));
}

static accrt_status_t find_parameter(const accrt_bundle_writer_t* writer, const callee_t* callee,
                                     const char* name, uint32_t* out_index) {
  accrt_near_t near;
  *out_index = accx_writer_parameter(writer, callee->kernel, name);
  if (*out_index != WRITER_NO)
    return ACCRT_OK;
  return WRITER_FAIL(writer, INVALID_ARGUMENT, "the kernel has no parameter '%.64s'%s", name,
                     accx_writer_near_parameter(writer, callee->kernel, name, &near));
}

static accrt_status_t find_argument(accrt_bundle_writer_t* writer, const callee_t* callee,
                                    const char* name, uint32_t* out_index) {
  accrt_near_t near;
  writer_key_t key = {.kind = WRITER_INPUT, .b = callee->function};
  ACCX_TRY(accx_writer_string(writer, name, "an operand's name", &key.a));
  const uint32_t input = accx_writer_find(writer, &key);
  key.kind = WRITER_RESULT;
  const uint32_t result = accx_writer_find(writer, &key);
  if (input != WRITER_NO && result != WRITER_NO)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "'%.64s' is an input and a result: give operands by index", name);
  if (input == WRITER_NO && result == WRITER_NO)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "the function has no argument '%.64s'%s", name,
                       accx_writer_near(writer, WRITER_INPUT, callee->function, name, &near));
  const uint32_t found = input != WRITER_NO ? input : result;
  *out_index = WRITER_ITEM(writer, argument, WRITER_ARGUMENT, found)->index;
  if (input == WRITER_NO)
    *out_index += function_at(writer, callee->function)->record.input_count;
  return ACCRT_OK;
}

/* Which parameter or argument an operand is for. */
static accrt_status_t place_operand(const making_t* making, const callee_t* callee, uint32_t given,
                                    uint32_t* out_index) {
  const char* name = making->given->operands[given].name;
  *out_index = given;
  if (name != NULL && callee->kernel != NULL)
    return find_parameter(making->writer, callee, name, out_index);
  if (name != NULL)
    return find_argument(making->writer, callee, name, out_index);
  if (given < callee->count)
    return ACCRT_OK;
  return WRITER_FAIL(making->writer, INVALID_ARGUMENT, "operand %" PRIu32 " of %" PRIu32, given,
                     callee->count);
}

static accrt_status_t put_operand(const making_t* making, const callee_t* callee,
                                  const accrt_writer_operand_t* given, uint32_t index,
                                  accx_operand_t* out) {
  writer_where_t* where = &making->writer->where;
  const operand_rule_t rule = rule_at(making->writer, callee, index);
  where->part_kind = callee->kernel != NULL ? "parameter" : "argument";
  where->part = rule.name;
  if (out->kind != 0)
    return WRITER_FAIL(making->writer, INVALID_ARGUMENT, "it is given twice");
  ACCX_TRY(read_operand(making, given, &rule, out));
  where->part_kind = NULL;
  return ACCRT_OK;
}

static accrt_status_t read_operands(const making_t* making, const callee_t* callee,
                                    accx_operand_t* operands) {
  static const accrt_writer_operand_t absent = {.kind = ACCX_OPERAND_ABSENT};
  const accrt_writer_command_t* given = making->given;
  if (given->operand_count != 0 && given->operands == NULL)
    return WRITER_FAIL(making->writer, INVALID_ARGUMENT, "operands is NULL");
  for (uint32_t i = 0; i < given->operand_count; ++i) {
    uint32_t index;
    ACCX_TRY(place_operand(making, callee, i, &index));
    ACCX_TRY(put_operand(making, callee, &given->operands[i], index, &operands[index]));
  }
  for (uint32_t i = 0; i < callee->count; ++i) {
    if (operands[i].kind == 0)
      ACCX_TRY(put_operand(making, callee, &absent, i, &operands[i]));
  }
  return ACCRT_OK;
}

/* The own fields of a command, in the arena. */
static accrt_status_t make_body(const making_t* making, size_t size_bytes, void** out_body) {
  ACCX_TRY(accx_writer_reserve(making->writer, size_bytes, out_body));
  making->made->body = *out_body;
  making->made->header.size_bytes = (uint32_t)size_bytes;
  return ACCRT_OK;
}

static accrt_status_t make_dispatch(const making_t* making) {
  static const char* const fields[] = {"grid x", "grid y", "grid z"};
  const accrt_bundle_writer_t* writer = making->writer;
  uint32_t index;
  ACCX_TRY(
      accx_writer_index(writer, WRITER_KERNEL, making->given->target, false, "target", &index));
  const callee_t callee = {
      WRITER_ITEM(writer, kernel, WRITER_KERNEL, index), 0,
      WRITER_ITEM(writer, kernel, WRITER_KERNEL, index)->record.parameter_count};
  void* memory;
  ACCX_TRY(
      make_body(making, sizeof(accx_dispatch_t) + callee.count * sizeof(accx_operand_t), &memory));
  accx_dispatch_t* body = memory;
  body->kernel = making->given->target;
  body->operand_count = callee.count;
  for (uint32_t i = 0; i < 3; ++i)
    ACCX_TRY(read_size(making, making->given->grid[i], 1, fields[i], &body->grid[i]));
  return read_operands(making, &callee, (accx_operand_t*)(void*)(body + 1));
}

static accrt_status_t make_call(const making_t* making) {
  const accrt_bundle_writer_t* writer = making->writer;
  uint32_t index;
  ACCX_TRY(
      accx_writer_index(writer, WRITER_FUNCTION, making->given->target, false, "target", &index));
  const accx_function_t* function = &function_at(writer, index)->record;
  const accx_function_t* caller = &function_at(writer, making->function)->record;
  if ((function->flags & ACCX_FUNCTION_PREPARE) != 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "prepare functions are not called");
  if (function->target != 0 && function->target != caller->target)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "the function is for '%.32s'; only functions without a target, or with the "
                       "caller's, are called",
                       accx_writer_text(writer, function->target));
  const callee_t callee = {NULL, index, function->input_count + function->result_count};
  void* memory;
  ACCX_TRY(make_body(making, sizeof(accx_call_t) + callee.count * sizeof(accx_operand_t), &memory));
  accx_call_t* body = memory;
  *body = (accx_call_t){making->given->target, callee.count};
  return read_operands(making, &callee, (accx_operand_t*)(void*)(body + 1));
}

/* ---- The other commands ---- */

static accrt_status_t make_copy(const making_t* making) {
  const accrt_writer_command_t* given = making->given;
  void* memory;
  ACCX_TRY(make_body(making, sizeof(accx_copy_t), &memory));
  accx_copy_t* body = memory;
  ACCX_TRY(read_range(making, &given->source, ACCRT_KERNEL_ACCESS_READ, false, &body->source));
  ACCX_TRY(
      read_range(making, &given->destination, ACCRT_KERNEL_ACCESS_WRITE, false, &body->target));
  if (given->extent[0] == 0)
    return WRITER_FAIL(making->writer, INVALID_ARGUMENT, "the first extent is missing");
  for (uint32_t i = 0; i < 3; ++i)
    ACCX_TRY(read_size(making, given->extent[i], 1, "an extent", &body->extent[i]));
  for (uint32_t i = 0; i < 2; ++i) {
    ACCX_TRY(read_size(making, given->source_stride[i], 0, "a stride", &body->source_stride[i]));
    ACCX_TRY(
        read_size(making, given->destination_stride[i], 0, "a stride", &body->target_stride[i]));
  }
  return ACCRT_OK;
}

static accrt_status_t make_fill(const making_t* making) {
  const accrt_writer_command_t* given = making->given;
  const uint32_t bytes = given->pattern_bytes != 0 ? given->pattern_bytes : 1;
  void* memory;
  if (!accrt_is_power_of_two(bytes) || bytes > 8 ||
      (bytes < 8 && given->pattern >> (8 * bytes) != 0))
    return WRITER_FAIL(making->writer, INVALID_ARGUMENT,
                       "pattern 0x%" PRIx64 " of %" PRIu32 " bytes; 1, 2, 4 or 8 are allowed",
                       given->pattern, bytes);
  ACCX_TRY(make_body(making, sizeof(accx_fill_t), &memory));
  accx_fill_t* body = memory;
  body->pattern = given->pattern;
  body->pattern_bytes = bytes;
  return read_range(making, &given->destination, ACCRT_KERNEL_ACCESS_WRITE, true, &body->target);
}

/* REPEAT and BRANCH: their blocks, and an expression that is known when a plan is made. */
static accrt_status_t make_nested(const making_t* making) {
  accrt_bundle_writer_t* writer = making->writer;
  writer_command_t* made = making->made;
  const bool repeat = made->header.opcode == ACCX_COMMAND_REPEAT;
  const writer_place_t place = {ACCX_USES_SPECIALIZE | ACCX_USES_SESSION | ACCX_USES_PRESENT,
                                making->repeat_depth, repeat};
  const writer_block_t* around = WRITER_ITEM(writer, block, WRITER_BLOCK, made->block);
  const uint32_t depth = around->depth + 1;
  void* memory;
  writer_block_t* block;
  if (repeat && depth > ACCX_MAX_BLOCK_DEPTH)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "blocks nest at most %u deep", ACCX_MAX_BLOCK_DEPTH);
  ACCX_TRY(accx_writer_use(writer, making->given->value, &place,
                           repeat ? "the count" : "the condition"));
  ACCX_TRY(make_body(making, repeat ? sizeof(accx_repeat_t) : sizeof(accx_branch_t), &memory));
  *(uint32_t*)memory = making->given->value;
  for (uint32_t i = 0; i < (repeat ? 1u : 2u); ++i) {
    ACCX_TRY(accx_writer_new(writer, WRITER_BLOCK, &block));
    *block = (writer_block_t){
        making->function, WRITER_NO, WRITER_NO, 0, depth, making->repeat_depth + repeat, 0};
    made->blocks[i] = accx_writer_commit(writer, WRITER_BLOCK);
  }
  return ACCRT_OK;
}
_Static_assert(offsetof(accx_repeat_t, count) == 0 && offsetof(accx_branch_t, condition) == 0,
               "make_nested writes both");

static accrt_status_t make_marker(const making_t* making) {
  void* memory;
  ACCX_TRY(make_body(making, sizeof(accx_marker_t), &memory));
  return accx_writer_string(making->writer, making->given->text, "the text",
                            &((accx_marker_t*)memory)->text);
}

static accrt_status_t make_raw(const making_t* making) {
  const accrt_writer_command_t* given = making->given;
  const uint32_t size = given->raw_size_bytes;
  if (given->opcode == 0 || given->opcode > UINT16_MAX || size % 8 != 0 ||
      (size != 0 && given->raw == NULL) || given->flags > ACCRT_WRITER_COMMAND_REQUIRED)
    return WRITER_FAIL(making->writer, INVALID_ARGUMENT,
                       "opcode %" PRIu32 ", %" PRIu32
                       " raw bytes (a multiple of 8), flags 0x%" PRIx32,
                       given->opcode, size, given->flags);
  making->made->header.flags = (uint16_t)given->flags;
  making->made->header.size_bytes = size;
  return accx_writer_copy(making->writer, given->raw, size, &making->made->body);
}

static accrt_status_t make_command(const making_t* making) {
  making->made->header.flags = ACCX_COMMAND_FLAG_REQUIRED;
  switch (making->given->opcode) {
  case ACCX_COMMAND_DISPATCH:
    return make_dispatch(making);
  case ACCX_COMMAND_COPY:
    return make_copy(making);
  case ACCX_COMMAND_FILL:
    return make_fill(making);
  case ACCX_COMMAND_BARRIER:
    return ACCRT_OK;
  case ACCX_COMMAND_CALL:
    return make_call(making);
  case ACCX_COMMAND_REPEAT:
  case ACCX_COMMAND_BRANCH:
    return make_nested(making);
  case ACCX_COMMAND_MARKER:
    making->made->header.flags = 0;
    return make_marker(making);
  default:
    return make_raw(making);
  }
}

/* ---- Adding one ---- */

/* The words of accrt_writer_command_t that a field covers. */
#define WORDS(field)                                                                               \
  (((UINT64_C(1) << sizeof((accrt_writer_command_t*)NULL)->field / 4) - 1)                         \
   << offsetof(accrt_writer_command_t, field) / 4)

/* Fields that the opcode does not use are zero: what is in them would be lost without a word. */
static accrt_status_t check_unused(const accrt_bundle_writer_t* writer,
                                   const accrt_writer_command_t* command) {
  static const uint64_t used[] = {
      WORDS(raw) | WORDS(raw_size_bytes) | WORDS(flags),
      WORDS(target) | WORDS(grid) | WORDS(operands) | WORDS(operand_count),
      WORDS(source) | WORDS(destination) | WORDS(extent) | WORDS(source_stride) |
          WORDS(destination_stride),
      WORDS(destination) | WORDS(pattern_bytes) | WORDS(pattern),
      0,
      WORDS(target) | WORDS(operands) | WORDS(operand_count),
      WORDS(value),
      WORDS(value),
      WORDS(text),
  };
  const uint32_t opcode = command->opcode <= ACCX_COMMAND_MARKER ? command->opcode : 0;
  uint32_t words[sizeof *command / 4];
  memcpy(words, command, sizeof words);
  for (uint32_t i = offsetof(accrt_writer_command_t, target) / 4; i < sizeof words / 4; ++i) {
    if (words[i] != 0 && (used[opcode] >> i & 1) == 0)
      return WRITER_FAIL(writer, INVALID_ARGUMENT,
                         "the field at byte %" PRIu32 " of accrt_writer_command_t is not of this "
                         "opcode, and not 0",
                         i * 4);
  }
  return ACCRT_OK;
}
_Static_assert(sizeof(accrt_writer_command_t) / 4 <= 64, "one bit a word");

static bool less_number(const void* context, uint32_t a, uint32_t b) {
  (void)context;
  return a < b;
}

static accrt_status_t read_predecessors(const making_t* making) {
  accrt_bundle_writer_t* writer = making->writer;
  const accrt_writer_command_t* given = making->given;
  const uint32_t count = given->after_count;
  if (count > ACCX_MAX_RECORDS || (count != 0 && given->after == NULL) ||
      (count != 0 && given->opcode == ACCX_COMMAND_BARRIER))
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "%" PRIu32 " predecessors; a barrier has none",
                       count);
  void* memory;
  ACCX_TRY(accx_writer_reserve(writer, count * sizeof(uint32_t), &memory));
  uint32_t* predecessors = memory;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t index;
    ACCX_TRY(
        accx_writer_index(writer, WRITER_COMMAND, given->after[i], false, "a predecessor", &index));
    const writer_command_t* before = WRITER_ITEM(writer, command, WRITER_COMMAND, index);
    if (before->block != making->made->block)
      return WRITER_FAIL(writer, INVALID_ARGUMENT,
                         "predecessor %" PRIu32 " ('%.64s') is a command of another block", i,
                         accx_writer_text(writer, before->header.name));
    predecessors[i] = before->index;
  }
  accx_sort(predecessors, count, less_number, NULL);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (kept == 0 || predecessors[kept - 1] != predecessors[i])
      predecessors[kept++] = predecessors[i];
  }
  making->made->predecessors = predecessors;
  making->made->header.predecessor_count = kept;
  return ACCRT_OK;
}

/* A command's name, and in messages what it is of. */
static accrt_status_t read_name(const making_t* making) {
  accrt_bundle_writer_t* writer = making->writer;
  const accrt_writer_command_t* given = making->given;
  const char* name = given->name;
  uint32_t index;
  if (name == NULL && given->opcode == ACCX_COMMAND_DISPATCH) {
    ACCX_TRY(accx_writer_index(writer, WRITER_KERNEL, given->target, false, "target", &index));
    name = accx_writer_text(writer, WRITER_ITEM(writer, kernel, WRITER_KERNEL, index)->record.name);
  } else if (name == NULL && given->opcode == ACCX_COMMAND_CALL) {
    ACCX_TRY(accx_writer_index(writer, WRITER_FUNCTION, given->target, false, "target", &index));
    name = accx_writer_text(writer, function_at(writer, index)->record.name);
  }
  writer->where.name = name;
  ACCX_TRY(accx_writer_index(writer, WRITER_LOCATION, given->location, true, "location", &index));
  making->made->header.location = given->location;
  return accx_writer_string(writer, name, "the name", &making->made->header.name);
}

/* The index-th range of a command, or NULL: each names a slot, or none (0). */
static const accx_range_t* range_of(const writer_command_t* command, uint32_t index) {
  const void* body = command->body;
  const accx_operand_t* operands = NULL;
  uint32_t count = 0;
  switch (command->header.opcode) {
  case ACCX_COMMAND_COPY:
    return index == 0   ? &((const accx_copy_t*)body)->source
           : index == 1 ? &((const accx_copy_t*)body)->target
                        : NULL;
  case ACCX_COMMAND_FILL:
    return index == 0 ? &((const accx_fill_t*)body)->target : NULL;
  case ACCX_COMMAND_DISPATCH:
    operands = accx_dispatch_operands(body);
    count = ((const accx_dispatch_t*)body)->operand_count;
    break;
  case ACCX_COMMAND_CALL:
    operands = accx_call_operands(body);
    count = ((const accx_call_t*)body)->operand_count;
    break;
  default:
    break;
  }
  return index < count ? &operands[index].range : NULL;
}

/* Puts a finished command behind the others of its block. */
static uint32_t link_command(accrt_bundle_writer_t* writer, const writer_command_t* made) {
  const uint32_t index = accx_writer_commit(writer, WRITER_COMMAND);
  writer_command_t* item = WRITER_ITEM(writer, command, WRITER_COMMAND, index);
  writer_block_t* block = WRITER_ITEM(writer, block, WRITER_BLOCK, made->block);
  *item = *made;
  if (block->last == WRITER_NO)
    block->first = index;
  else
    WRITER_ITEM(writer, command, WRITER_COMMAND, block->last)->next = index;
  block->last = index;
  ++block->count;
  if (made->header.opcode == ACCX_COMMAND_CALL) {
    item->next_call = function_at(writer, block->function)->first_call;
    function_at(writer, block->function)->first_call = index;
  }
  const accx_range_t* range;
  for (uint32_t i = 0; (range = range_of(made, i)) != NULL; ++i) {
    if (range->slot != 0)
      WRITER_ITEM(writer, slot, WRITER_SLOT, WRITER_INDEX(range->slot))->used = true;
  }
  return index;
}

static accrt_status_t add_command(accrt_bundle_writer_t* writer, accrt_writer_id_t block,
                                  const accrt_writer_command_t* command, uint32_t* out_index) {
  accrt_writer_command_t local;
  writer_command_t made = {
      .next = WRITER_NO, .next_call = WRITER_NO, .blocks = {WRITER_NO, WRITER_NO}};
  writer_command_t* item;
  ACCX_TRY(accrt_struct_read("accrt_writer_command_t", command, &local, sizeof local));
  ACCX_TRY(accx_writer_index(writer, WRITER_BLOCK, block, false, "block", &made.block));
  const writer_block_t* owner = WRITER_ITEM(writer, block, WRITER_BLOCK, made.block);
  const making_t making = {writer, &local, owner->function, owner->repeat_depth, &made};
  made.index = owner->count;
  made.header.opcode = (uint16_t)local.opcode;
  writer->where.function = owner->function;
  writer->where.command = owner->count;
  writer->where.kind = accx_writer_opcode_name(local.opcode);
  if (owner->depth > ACCX_MAX_BLOCK_DEPTH)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "blocks nest at most %u deep", ACCX_MAX_BLOCK_DEPTH);
  ACCX_TRY(read_name(&making));
  ACCX_TRY(check_unused(writer, &local));
  ACCX_TRY(read_predecessors(&making));
  ACCX_TRY(accx_writer_new(writer, WRITER_COMMAND, &item));
  ACCX_TRY(make_command(&making));
  *out_index = link_command(writer, &made);
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_add_command(accrt_bundle_writer_t* writer,
                                               accrt_writer_id_t block,
                                               const accrt_writer_command_t* command,
                                               accrt_writer_id_t* out_id) {
  uint32_t index = 0;
  ACCX_TRY(accx_writer_begin(writer, __func__, NULL, NULL));
  if (out_id == NULL)
    return accx_writer_out(writer, out_id);
  /* The id may be put where `after` points to: it is written last. */
  const accrt_status_t status = add_command(writer, block, command, &index);
  *out_id = status == ACCRT_OK ? accx_writer_id(WRITER_COMMAND, index) : 0;
  return status;
}

accrt_status_t accrt_bundle_writer_block(accrt_bundle_writer_t* writer, accrt_writer_id_t command,
                                         uint32_t index, accrt_writer_id_t* out_block) {
  ACCX_TRY(accx_writer_begin(writer, __func__, NULL, NULL));
  ACCX_TRY(accx_writer_out(writer, out_block));
  uint32_t at;
  ACCX_TRY(accx_writer_index(writer, WRITER_COMMAND, command, false, "command", &at));
  const writer_command_t* item = WRITER_ITEM(writer, command, WRITER_COMMAND, at);
  if (index > 1 || item->blocks[index] == WRITER_NO)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "command '%.64s' has no block %" PRIu32,
                       accx_writer_text(writer, item->header.name), index);
  *out_block = accx_writer_id(WRITER_BLOCK, item->blocks[index]);
  return ACCRT_OK;
}
