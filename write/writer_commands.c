/* write/writer_commands.c - a bundle writer's commands: blocks, operands, ranges. They are stored
 * as in the file, except that references are still ids. This file may not add arguments or slots to
 * a function, and does not sort or write.
 */
#include "format/sort.h"
#include "write/writer.h"

#include "accrt/tensor.h"
#include "runtime/core/pack.h"
#include "runtime/core/struct.h"

/* ---- Ranges and operands ---- */

/* The place for a new command. */
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

/* Reads a size that may be left out. */
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

/* Returns why a slot forbids an access; NULL when it allows it. */
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
  ACCRT_TRY(accx_writer_index(writer, WRITER_SLOT, range->slot, false, "a range's slot", &index));
  const writer_slot_t* slot = WRITER_ITEM(writer, slot, WRITER_SLOT, index);
  if (slot->function != making->function)
    return WRITER_FAIL(
        writer, INVALID_ARGUMENT, "'%.64s' is a slot of function '%.64s'", slot_name(writer, slot),
        accx_writer_text(writer, accx_writer_function_at(writer, slot->function)->record.name));
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
    ACCRT_TRY(use(making, range->size, true, "a range's size"));
  return read_size(making, range->offset, 0, "a range's offset", &out_range->offset);
}

/* Row-major strides: 1, then products. Products of numbers are computed at once. */
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
    ACCRT_TRY(use(making, operand->shape[i], true, "a size of the tensor"));
    made.shape[i] = operand->shape[i];
    given = given || operand->strides[i] != 0;
  }
  accrt_writer_id_t stride = 0;
  for (uint32_t i = rank; i-- > 0;) {
    if (given)
      ACCRT_TRY(use(making, operand->strides[i], false, "a stride of the tensor"));
    else if (stride == 0)
      ACCRT_TRY(accx_writer_number(writer, 1, &stride));
    else
      ACCRT_TRY(next_stride(making, stride, made.shape[i + 1], &stride));
    made.strides[i] = given ? operand->strides[i] : stride;
  }
  ACCRT_TRY(accx_writer_new(writer, WRITER_VIEW, &item));
  *item = made;
  *out_view = accx_writer_commit(writer, WRITER_VIEW);
  return ACCRT_OK;
}

/* The requirements for an operand. */
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
    ACCRT_TRY(read_view(making, given, &out->view));
    break;
  default:
    break;
  }
  ACCRT_TRY(read_range(making, &given->range, rule->access, true, &out->range));
  const uint32_t slot = WRITER_INDEX(given->range.slot);
  if (given->kind != ACCX_OPERAND_WORKSPACE ||
      WRITER_ITEM(writer, slot, WRITER_SLOT, slot)->kind == ACCX_SLOT_TRANSIENT)
    return ACCRT_OK;
  return WRITER_FAIL(writer, INVALID_ARGUMENT, "a workspace lies in the arena");
}

/* ---- Dispatches and calls ---- */

/* The receiver of operands: a kernel or a function. */
typedef struct callee {
  const writer_kernel_t* kernel; /* or NULL */
  uint32_t function;
  uint32_t count;
} callee_t;

/* The argument with this index: inputs first, then results. */
static const accx_argument_t* argument_at(const accrt_bundle_writer_t* writer, uint32_t function,
                                          uint32_t index) {
  const writer_function_t* item = accx_writer_function_at(writer, function);
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
  ACCRT_TRY(accx_writer_string(writer, name, "an operand's name", &key.a));
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
    *out_index += accx_writer_function_at(writer, callee->function)->record.input_count;
  return ACCRT_OK;
}

/* Finds the parameter or argument of an operand. */
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
  ACCRT_TRY(read_operand(making, given, &rule, out));
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
    ACCRT_TRY(place_operand(making, callee, i, &index));
    ACCRT_TRY(put_operand(making, callee, &given->operands[i], index, &operands[index]));
  }
  for (uint32_t i = 0; i < callee->count; ++i) {
    if (operands[i].kind == 0)
      ACCRT_TRY(put_operand(making, callee, &absent, i, &operands[i]));
  }
  return ACCRT_OK;
}

/* Allocates a command's own fields in the arena. */
static accrt_status_t make_body(const making_t* making, size_t size_bytes, void** out_body) {
  ACCRT_TRY(accx_writer_reserve(making->writer, size_bytes, out_body));
  making->made->body = *out_body;
  making->made->header.size_bytes = (uint32_t)size_bytes;
  return ACCRT_OK;
}

static accrt_status_t make_dispatch(const making_t* making) {
  static const char* const fields[] = {"grid x", "grid y", "grid z"};
  const accrt_bundle_writer_t* writer = making->writer;
  uint32_t index;
  ACCRT_TRY(
      accx_writer_index(writer, WRITER_KERNEL, making->given->target, false, "target", &index));
  const callee_t callee = {
      WRITER_ITEM(writer, kernel, WRITER_KERNEL, index), 0,
      WRITER_ITEM(writer, kernel, WRITER_KERNEL, index)->record.parameter_count};
  void* memory;
  ACCRT_TRY(
      make_body(making, sizeof(accx_dispatch_t) + callee.count * sizeof(accx_operand_t), &memory));
  accx_dispatch_t* body = memory;
  body->kernel = making->given->target;
  body->operand_count = callee.count;
  for (uint32_t i = 0; i < 3; ++i)
    ACCRT_TRY(read_size(making, making->given->grid[i], 1, fields[i], &body->grid[i]));
  return read_operands(making, &callee, (accx_operand_t*)(void*)(body + 1));
}

static accrt_status_t make_call(const making_t* making) {
  const accrt_bundle_writer_t* writer = making->writer;
  uint32_t index;
  ACCRT_TRY(
      accx_writer_index(writer, WRITER_FUNCTION, making->given->target, false, "target", &index));
  const accx_function_t* function = &accx_writer_function_at(writer, index)->record;
  const accx_function_t* caller = &accx_writer_function_at(writer, making->function)->record;
  if ((function->flags & ACCX_FUNCTION_PREPARE) != 0)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "prepare functions are not called");
  if (function->target != 0 && function->target != caller->target)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "the function is for '%.32s'; only functions without a target, or with the "
                       "caller's, are called",
                       accx_writer_text(writer, function->target));
  const callee_t callee = {NULL, index, function->input_count + function->result_count};
  void* memory;
  ACCRT_TRY(
      make_body(making, sizeof(accx_call_t) + callee.count * sizeof(accx_operand_t), &memory));
  accx_call_t* body = memory;
  *body = (accx_call_t){making->given->target, callee.count};
  return read_operands(making, &callee, (accx_operand_t*)(void*)(body + 1));
}

/* ---- The other commands ---- */

static accrt_status_t make_copy(const making_t* making) {
  const accrt_writer_command_t* given = making->given;
  void* memory;
  ACCRT_TRY(make_body(making, sizeof(accx_copy_t), &memory));
  accx_copy_t* body = memory;
  ACCRT_TRY(read_range(making, &given->source, ACCRT_KERNEL_ACCESS_READ, false, &body->source));
  ACCRT_TRY(
      read_range(making, &given->destination, ACCRT_KERNEL_ACCESS_WRITE, false, &body->target));
  if (given->extent[0] == 0)
    return WRITER_FAIL(making->writer, INVALID_ARGUMENT, "the first extent is missing");
  for (uint32_t i = 0; i < 3; ++i)
    ACCRT_TRY(read_size(making, given->extent[i], 1, "an extent", &body->extent[i]));
  for (uint32_t i = 0; i < 2; ++i) {
    ACCRT_TRY(read_size(making, given->source_stride[i], 0, "a stride", &body->source_stride[i]));
    ACCRT_TRY(
        read_size(making, given->destination_stride[i], 0, "a stride", &body->target_stride[i]));
  }
  return ACCRT_OK;
}

/* REPEAT and BRANCH: checks their blocks, and their expression, which must be known at planning. */
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
  ACCRT_TRY(accx_writer_use(writer, making->given->value, &place,
                            repeat ? "the count" : "the condition"));
  ACCRT_TRY(make_body(making, repeat ? sizeof(accx_repeat_t) : sizeof(accx_branch_t), &memory));
  *(uint32_t*)memory = making->given->value;
  for (uint32_t i = 0; i < (repeat ? 1u : 2u); ++i) {
    ACCRT_TRY(accx_writer_new(writer, WRITER_BLOCK, &block));
    *block = (writer_block_t){
        making->function, WRITER_NO, WRITER_NO, 0, depth, making->repeat_depth + repeat, 0};
    made->blocks[i] = accx_writer_commit(writer, WRITER_BLOCK);
  }
  return ACCRT_OK;
}
_Static_assert(offsetof(accx_repeat_t, count) == 0 && offsetof(accx_branch_t, condition) == 0,
               "make_nested writes both");

/* By field: its offset in accrt_writer_command_t. */
static const uint8_t members[] = {
#define DEF_FIELD(command, struct, field, count, kind, member, meaning)                            \
  offsetof(accrt_writer_command_t, member),
#include "format/format.def"
};
static const uint8_t body_bytes[] = {
    0,
#define DEF_COMMAND(number, name, word, bytes, ...) bytes,
#define DEF_RESERVED_COMMAND(...) 0,
#include "format/format.def"
};

static accrt_status_t make_pattern(const making_t* making, const accx_field_t* field,
                                   const uint64_t* pattern, const uint32_t* given_bytes,
                                   unsigned char* at) {
  const uint32_t bytes = *given_bytes != 0 ? *given_bytes : 1;
  if (!accrt_is_power_of_two(bytes) || bytes > 8 || (bytes < 8 && *pattern >> (8 * bytes) != 0))
    return WRITER_FAIL(making->writer, INVALID_ARGUMENT,
                       "%s 0x%" PRIx64 " of %" PRIu32 " bytes; 1, 2, 4 or 8 are allowed",
                       field->name, *pattern, bytes);
  memcpy(at, pattern, sizeof *pattern);
  memcpy(at + sizeof *pattern, &bytes, sizeof bytes);
  return ACCRT_OK;
}

static accrt_status_t make_field(const making_t* making, const accx_field_t* field,
                                 const void* member, const void* next_member, unsigned char* at) {
  const uint32_t* ids = member;
  uint32_t* numbers = (uint32_t*)(void*)at;
  if (accx_field_is_range(field->kind))
    return read_range(making, member, accx_field_access(field->kind),
                      !accx_field_is_start(field->kind), (accx_range_t*)(void*)at);
  switch (field->kind) {
  case ACCX_FIELD_PATTERN:
    return make_pattern(making, field, member, next_member, at);
  case ACCX_FIELD_STRING: {
    const char* text;
    memcpy(&text, member, sizeof text);
    return accx_writer_string(making->writer, text, "the text", numbers);
  }
  case ACCX_FIELD_SIZE:
    for (uint32_t i = 0; i < field->count; ++i)
      ACCRT_TRY(read_size(making, ids[i], 0, field->name, &numbers[i]));
    return ACCRT_OK;
  default:
    return ACCRT_OK;
  }
}

/* Makes a command whose definition describes its fields in accrt_writer_command_t. */
static accrt_status_t make_fields(const making_t* making) {
  const uint32_t opcode = making->given->opcode;
  uint32_t count, all;
  const accx_field_t* first = accx_fields_of(ACCX_COMMAND_DISPATCH, &all);
  const accx_field_t* fields = accx_fields_of(opcode, &count);
  void* memory;
  ACCRT_TRY(make_body(making, body_bytes[opcode], &memory));
  /* Patterns first, in the order of the verifier. */
  for (uint32_t i = 0; i < 2 * count; ++i) {
    const accx_field_t* field = &fields[i % count];
    if ((field->kind == ACCX_FIELD_PATTERN) != (i < count))
      continue;
    /* never the last field, because a pattern is not last */
    const uint8_t* member = &members[field - first];
    const unsigned char* given = (const unsigned char*)making->given;
    ACCRT_TRY(make_field(making, field, given + member[0],
                         field->kind == ACCX_FIELD_PATTERN ? given + member[1] : NULL,
                         (unsigned char*)memory + field->offset));
  }
  return ACCRT_OK;
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
  const uint64_t required = 0
#define DEF_COMMAND(number, name, word, bytes, operands, required, ...)                            \
  | (uint64_t)required << number
#include "format/format.def"
      ;
  if (!accx_opcode_known(making->given->opcode))
    return make_raw(making);
  making->made->header.flags =
      (required >> making->given->opcode & 1) != 0 ? ACCX_COMMAND_FLAG_REQUIRED : 0;
  switch (making->given->opcode) {
  case ACCX_COMMAND_DISPATCH:
    return make_dispatch(making);
  case ACCX_COMMAND_COPY:
    return make_copy(making);
  case ACCX_COMMAND_BARRIER:
    return ACCRT_OK;
  case ACCX_COMMAND_CALL:
    return make_call(making);
  case ACCX_COMMAND_REPEAT:
  case ACCX_COMMAND_BRANCH:
    return make_nested(making);
  default:
    return make_fields(making);
  }
}

/* ---- Adding a command ---- */

/* The words of accrt_writer_command_t that a field occupies. */
#define WORDS(field)                                                                               \
  (((UINT64_C(1) << sizeof((accrt_writer_command_t*)NULL)->field / 4) - 1)                         \
   << offsetof(accrt_writer_command_t, field) / 4)

/* Fields that the opcode does not use must be zero. Otherwise their values would be lost
 * silently. */
static accrt_status_t check_unused(const accrt_bundle_writer_t* writer,
                                   const accrt_writer_command_t* command) {
  static const struct {
    uint32_t opcode;
    uint64_t words;
  } all[] = {
      {0, WORDS(raw) | WORDS(raw_size_bytes) | WORDS(flags)},
#define DEF_COMMAND(number, name, word, bytes, has_operands, ...)                                  \
  {number, has_operands ? WORDS(operands) | WORDS(operand_count) : 0},
#define DEF_FIELD(command, struct, field, count, kind, member, ...)                                \
  {ACCX_COMMAND_##command, WORDS(member)},
#include "format/format.def"
  };
  const uint32_t opcode = accx_opcode_known(command->opcode) ? command->opcode : 0;
  uint64_t used = 0;
  for (uint32_t i = 0; i < sizeof all / sizeof *all; ++i)
    used |= all[i].opcode == opcode ? all[i].words : 0;
  uint32_t words[sizeof *command / 4];
  memcpy(words, command, sizeof words);
  for (uint32_t i = offsetof(accrt_writer_command_t, target) / 4; i < sizeof words / 4; ++i) {
    if (words[i] != 0 && (used >> i & 1) == 0)
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
  ACCRT_TRY(accx_writer_reserve(writer, count * sizeof(uint32_t), &memory));
  uint32_t* predecessors = memory;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t index;
    ACCRT_TRY(
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

/* Reads the command's name, and makes it the subject of messages. */
static accrt_status_t read_name(const making_t* making) {
  accrt_bundle_writer_t* writer = making->writer;
  const accrt_writer_command_t* given = making->given;
  const char* name = given->name;
  uint32_t index;
  if (name == NULL && given->opcode == ACCX_COMMAND_DISPATCH) {
    ACCRT_TRY(accx_writer_index(writer, WRITER_KERNEL, given->target, false, "target", &index));
    name = accx_writer_text(writer, WRITER_ITEM(writer, kernel, WRITER_KERNEL, index)->record.name);
  } else if (name == NULL && given->opcode == ACCX_COMMAND_CALL) {
    ACCRT_TRY(accx_writer_index(writer, WRITER_FUNCTION, given->target, false, "target", &index));
    name = accx_writer_text(writer, accx_writer_function_at(writer, index)->record.name);
  }
  writer->where.name = name;
  ACCRT_TRY(accx_writer_index(writer, WRITER_LOCATION, given->location, true, "location", &index));
  making->made->header.location = given->location;
  return accx_writer_string(writer, name, "the name", &making->made->header.name);
}

/* Marks the slot of a range as used, if the range has one (0: none). */
static void use_slot(accrt_bundle_writer_t* writer, const accx_range_t* range) {
  if (range->slot != 0)
    WRITER_ITEM(writer, slot, WRITER_SLOT, WRITER_INDEX(range->slot))->used = true;
}

static void use_slots(accrt_bundle_writer_t* writer, const writer_command_t* command) {
  const unsigned char* body = command->body;
  const accx_operand_t* operands = NULL;
  uint32_t count, operand_count = 0;
  const accx_field_t* fields = accx_fields_of(command->header.opcode, &count);
  for (uint32_t i = 0; i < count; ++i) {
    if (accx_field_is_range(fields[i].kind))
      use_slot(writer, (const accx_range_t*)(const void*)(body + fields[i].offset));
  }
  if (command->header.opcode == ACCX_COMMAND_DISPATCH) {
    operands = accx_dispatch_operands(command->body);
    operand_count = ((const accx_dispatch_t*)command->body)->operand_count;
  } else if (command->header.opcode == ACCX_COMMAND_CALL) {
    operands = accx_call_operands(command->body);
    operand_count = ((const accx_call_t*)command->body)->operand_count;
  }
  for (uint32_t i = 0; i < operand_count; ++i)
    use_slot(writer, &operands[i].range);
}

/* Appends a finished command to its block. */
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
    item->next_call = accx_writer_function_at(writer, block->function)->first_call;
    accx_writer_function_at(writer, block->function)->first_call = index;
  }
  use_slots(writer, made);
  return index;
}

static accrt_status_t add_command(accrt_bundle_writer_t* writer, accrt_writer_id_t block,
                                  const accrt_writer_command_t* command, uint32_t* out_index) {
  accrt_writer_command_t local;
  writer_command_t made = {
      .next = WRITER_NO, .next_call = WRITER_NO, .blocks = {WRITER_NO, WRITER_NO}};
  writer_command_t* item;
  ACCRT_TRY(accrt_struct_read("accrt_writer_command_t", command, &local, sizeof local));
  ACCRT_TRY(accx_writer_index(writer, WRITER_BLOCK, block, false, "block", &made.block));
  const writer_block_t* owner = WRITER_ITEM(writer, block, WRITER_BLOCK, made.block);
  const making_t making = {writer, &local, owner->function, owner->repeat_depth, &made};
  made.index = owner->count;
  made.header.opcode = (uint16_t)local.opcode;
  writer->where.function = owner->function;
  writer->where.command = owner->count;
  writer->where.kind = accx_writer_opcode_name(local.opcode);
  if (owner->depth > ACCX_MAX_BLOCK_DEPTH)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "blocks nest at most %u deep", ACCX_MAX_BLOCK_DEPTH);
  ACCRT_TRY(read_name(&making));
  ACCRT_TRY(check_unused(writer, &local));
  ACCRT_TRY(read_predecessors(&making));
  ACCRT_TRY(accx_writer_new(writer, WRITER_COMMAND, &item));
  ACCRT_TRY(make_command(&making));
  *out_index = link_command(writer, &made);
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_writer_add_command(accrt_bundle_writer_t* writer,
                                               accrt_writer_id_t block,
                                               const accrt_writer_command_t* command,
                                               accrt_writer_id_t* out_id) {
  uint32_t index = 0;
  accrt_status_t status = accx_writer_begin(writer, ACCRT_THIS_FUNCTION, NULL, NULL);
  if (status != ACCRT_OK) {
    if (out_id != NULL)
      *out_id = 0;
    return status;
  }
  WRITER_INSIDE(writer);
  if (out_id == NULL)
    return accx_writer_out(writer, out_id);
  /* `after` may point to the place for the id, so the id is written last. */
  status = add_command(writer, block, command, &index);
  *out_id = status == ACCRT_OK ? accx_writer_id(WRITER_COMMAND, index) : 0;
  return status;
}

accrt_status_t accrt_bundle_writer_block(accrt_bundle_writer_t* writer, accrt_writer_id_t command,
                                         uint32_t index, accrt_writer_id_t* out_block) {
  WRITER_ENTER_FOR(writer, NULL, NULL, out_block);
  uint32_t at;
  ACCRT_TRY(accx_writer_index(writer, WRITER_COMMAND, command, false, "command", &at));
  const writer_command_t* item = WRITER_ITEM(writer, command, WRITER_COMMAND, at);
  if (index > 1 || item->blocks[index] == WRITER_NO)
    return WRITER_FAIL(writer, OUT_OF_RANGE, "command '%.64s' has no block %" PRIu32,
                       accx_writer_text(writer, item->header.name), index);
  *out_block = accx_writer_id(WRITER_BLOCK, item->blocks[index]);
  return ACCRT_OK;
}
