/* loader/verify_commands.c - the command stream: blocks, commands, operands, ranges, calls (rules
 * 72 and 80 to 94). */
#include "loader/internal.h"
#include "format/names.h"

/* The format's description of one opcode. */
typedef struct command_kind {
  uint32_t fields_bytes;
  bool has_operands; /* behind the fields; the second field is their number */
  bool required;
  uint8_t since_minor; /* first minor of the command set with this opcode */
} command_kind_t;

/* Indexed by opcode. */
static const command_kind_t command_kinds[] = {
    {0, false, false, 0},
#define DEF_COMMAND(number, name, word, bytes, operands, required, since, ...)                     \
  {bytes, operands, required, since},
#define DEF_RESERVED_COMMAND(...) {0, false, false, 0},
#include "format/format.def"
};
_Static_assert(sizeof command_kinds / sizeof command_kinds[0] == ACCX_COMMAND_END,
               "one entry an opcode");

/* Position in a function's commands. */
typedef struct walk {
  accx_verifier_t* verifier;
  uint32_t function;
  uint32_t view_first; /* the function's first view */
  accx_scope_t scope;
  const accx_command_t* command;
  uint32_t record; /* index of the command in the stream */
  uint32_t place;  /* index in its block */
} walk_t;

static const command_kind_t* kind_of(const accx_command_t* command) {
  return &command_kinds[accx_command_known(command) ? command->opcode : 0];
}

static const char* name_of(const accx_command_t* command) {
  return accx_command_known(command) ? accx_number_name(ACCX_NUMBERS_OPCODE, command->opcode) : "?";
}

#define COMMAND_REJECT(walk, rule, field, format, ...)                                             \
  ACCX_REJECT((walk)->verifier, rule, "commands", (walk)->record, (field),                         \
              "function '%.64s', %s '%.64s': " format,                                             \
              accx_verifier_text((walk)->verifier,                                                 \
                                 (walk)->verifier->tables->functions[(walk)->function].name),      \
              name_of((walk)->command),                                                            \
              accx_verifier_text((walk)->verifier, (walk)->command->name), __VA_ARGS__)

/* ---- The stream ---- */

static uint64_t predecessors_size(const accx_command_t* command) {
  return ((uint64_t)command->predecessor_count * 4 + 7) & ~UINT64_C(7);
}

/* The size that the command must have; for unknown opcodes the minimum. */
static uint64_t needed_size(const accx_command_t* command) {
  uint64_t size = sizeof *command + kind_of(command)->fields_bytes + predecessors_size(command);
  if (command->size_bytes < sizeof *command + kind_of(command)->fields_bytes)
    return size;
  const uint32_t* fields = accx_command_fields(command);
  const uint64_t operands = kind_of(command)->has_operands ? fields[1] : 0;
  return size + operands * sizeof(accx_operand_t);
}
_Static_assert(offsetof(accx_dispatch_t, operand_count) == 4 &&
                   offsetof(accx_call_t, operand_count) == 4,
               "needed_size reads them");

static accrt_status_t check_command_size(const accx_verifier_t* verifier, const unsigned char* at,
                                         uint64_t left, uint32_t record) {
  const accx_command_t* command = (const accx_command_t*)(const void*)at;
  if (left < sizeof *command) {
    return ACCX_REJECT(verifier, COMMAND_SIZE, "commands", record, NULL,
                       "%" PRIu64 " bytes are left in its block", left);
  }
  const uint64_t size = command->size_bytes;
  bool good = size >= sizeof *command && size % 8 == 0 && size <= left;
  uint64_t needed = sizeof *command;
  if (good) {
    needed = needed_size(command);
    good = accx_command_known(command) ? size == needed : size >= needed;
  }
  if (good)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, COMMAND_SIZE, "commands", record, "size_bytes",
                     "opcode %u has %" PRIu64 " bytes, needs %" PRIu64 ", %" PRIu64
                     " are left in its block",
                     command->opcode, size, needed, left);
}

static accrt_status_t read_block(accx_verifier_t* verifier, uint32_t index, uint32_t* record) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  accrt_bundle_t* bundle = verifier->bundle;
  const accx_block_t* block = &tables->blocks[index];
  /* A bundle without commands has no stream. */
  const unsigned char* at =
      bundle->command_stream != NULL ? bundle->command_stream + block->offset_bytes : NULL;
  uint64_t left = block->size_bytes;
  bundle->block_first[index] = *record;
  if (block->command_count > tables->command_count - *record) {
    return ACCX_REJECT(verifier, BLOCK_TILING, "blocks", index, "command_count",
                       "%" PRIu32 " commands after %" PRIu32 " of %" PRIu32, block->command_count,
                       *record, tables->command_count);
  }
  for (uint32_t i = 0; i < block->command_count; ++i) {
    ACCRT_TRY(check_command_size(verifier, at, left, *record));
    const accx_command_t* command = (const accx_command_t*)(const void*)at;
    bundle->commands[(*record)++] = command;
    if (kind_of(command)->since_minor > verifier->commands_minor)
      verifier->commands_minor = kind_of(command)->since_minor;
    at += command->size_bytes;
    left -= command->size_bytes;
  }
  if (left == 0)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, BLOCK_TILING, "blocks", index, "size_bytes",
                     "%" PRIu64 " bytes are left after its %" PRIu32 " commands", left,
                     block->command_count);
}

accrt_status_t accx_verify_blocks(accx_verifier_t* verifier) {
  accrt_bundle_tables_t* tables = verifier->tables;
  accrt_bundle_t* bundle = verifier->bundle;
  void *commands, *firsts;
  ACCRT_TRY(accrt_alloc_array(bundle->allocator, tables->command_count, sizeof(accx_command_t*),
                              &commands));
  bundle->commands = commands;
  tables->commands = commands;
  ACCRT_TRY(accrt_alloc_array(bundle->allocator, tables->block_count, sizeof(uint32_t), &firsts));
  bundle->block_first = firsts;
  tables->block_first = firsts;
  uint64_t next = 0;
  uint32_t record = 0;
  for (uint32_t i = 0; i < tables->block_count; ++i) {
    const accx_block_t* block = &tables->blocks[i];
    if (block->offset_bytes != next ||
        !accrt_range_fits(next, block->size_bytes, bundle->command_stream_size_bytes)) {
      return ACCX_REJECT(verifier, BLOCK_TILING, "blocks", i, "offset_bytes",
                         "%" PRIu32 " bytes at %" PRIu64 ", expected at %" PRIu64 " of %" PRIu64,
                         block->size_bytes, block->offset_bytes, next,
                         bundle->command_stream_size_bytes);
    }
    ACCRT_TRY(read_block(verifier, i, &record));
    next += block->size_bytes;
  }
  if (next == bundle->command_stream_size_bytes && record == tables->command_count)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, BLOCK_TILING, "blocks", ACCX_NONE, NULL,
                     "blocks end at %" PRIu64 " of %" PRIu64 " bytes and %" PRIu32 " of %" PRIu32
                     " commands",
                     next, bundle->command_stream_size_bytes, record, tables->command_count);
}

/* ---- Checks for every command ---- */

static accrt_status_t check_predecessors(const walk_t* walk) {
  const accx_command_t* command = walk->command;
  const uint32_t* predecessors = accx_command_predecessors(command);
  const uint32_t count = command->predecessor_count;
  const bool none_allowed = command->opcode == ACCX_COMMAND_BARRIER;
  for (uint32_t i = 0; i < count; ++i) {
    const bool ascends = i == 0 || predecessors[i] > predecessors[i - 1];
    if (!none_allowed && ascends && predecessors[i] < walk->place)
      continue;
    return COMMAND_REJECT(walk, COMMAND_PREDECESSORS, "predecessors",
                          "entry %" PRIu32 " of %" PRIu32 " is %" PRIu32
                          "; this is command %" PRIu32 " of its block",
                          i, count, predecessors[i], walk->place);
  }
  if (count % 2 == 1 && predecessors[count] != 0) {
    return COMMAND_REJECT(walk, COMMAND_FIELDS, "padding", "%" PRIu32 " is not 0",
                          predecessors[count]);
  }
  return ACCRT_OK;
}

static accrt_status_t check_header(const walk_t* walk) {
  const accx_command_t* command = walk->command;
  const accx_verifier_t* verifier = walk->verifier;
  ACCRT_TRY(accx_check_string(verifier, command->name, "commands", walk->record, "name"));
  const uint32_t wanted = kind_of(command)->required ? ACCX_COMMAND_FLAG_REQUIRED : 0;
  const bool known = accx_command_known(command);
  if ((command->flags & ~ACCX_COMMAND_FLAG_REQUIRED) != 0 || (known && command->flags != wanted)) {
    return COMMAND_REJECT(walk, COMMAND_FLAGS, "flags", "0x%x of opcode %u", command->flags,
                          command->opcode);
  }
  /* A function may need features that this library lacks. The call refuses it, not the verifier. */
  const uint64_t features =
      verifier->tables->functions[walk->function].required_features & ~ACCX_FUNCTION_FEATURES_KNOWN;
  if (!known && (command->flags & ACCX_COMMAND_FLAG_REQUIRED) != 0 && features == 0) {
    return COMMAND_REJECT(walk, COMMAND_UNKNOWN, "opcode",
                          "the file requires opcode %u, which this library does not know",
                          command->opcode);
  }
  const uint32_t location = command->location;
  if (command->reserved != 0 ||
      (location != ACCX_NONE && location >= verifier->tables->location_count)) {
    return COMMAND_REJECT(walk, COMMAND_FIELDS, "reserved",
                          "reserved %" PRIu32 ", location %" PRIu32, command->reserved,
                          command->location);
  }
  return check_predecessors(walk);
}

/* ---- Expressions and ranges of commands ---- */

static accrt_status_t check_number(const walk_t* walk, uint32_t node, const char* field) {
  return accx_check_expression(walk->verifier, &walk->scope, node, "commands", walk->record, field);
}

/* Checks a value that may not be negative. */
static accrt_status_t check_size(const walk_t* walk, uint32_t node, const char* field) {
  ACCRT_TRY(check_number(walk, node, field));
  const accx_expression_t* expression =
      &walk->verifier->tables->expressions[walk->scope.first + node];
  if (expression->op != ACCX_EXPR_CONSTANT || expression->immediate >= 0)
    return ACCRT_OK;
  return COMMAND_REJECT(walk, EXPRESSION_USE, field,
                        "expression %" PRIu32 " is %" PRId64 ", which is negative", node,
                        expression->immediate);
}

/* The accesses that a slot allows; 0 for a slot without storage. */
static uint32_t slot_access(const accrt_bundle_tables_t* tables, const accx_function_t* function,
                            const accx_slot_t* slot) {
  if (slot->kind == ACCX_SLOT_CONSTANT)
    return ACCRT_KERNEL_ACCESS_READ;
  if (slot->kind != ACCX_SLOT_ARGUMENT)
    return ACCRT_KERNEL_ACCESS_READ_WRITE;
  const uint32_t kind = tables->arguments[function->argument_first + slot->index].kind;
  if (kind == ACCX_ARGUMENT_SCALAR)
    return 0;
  return kind == ACCX_ARGUMENT_READ ? ACCRT_KERNEL_ACCESS_READ : ACCRT_KERNEL_ACCESS_READ_WRITE;
}

static accrt_status_t check_range(const walk_t* walk, const accx_range_t* range, uint32_t access,
                                  const char* field) {
  const accrt_bundle_tables_t* tables = walk->verifier->tables;
  const accx_function_t* function = &tables->functions[walk->function];
  uint32_t allowed = 0;
  if (range->slot < function->slot_count) {
    allowed = slot_access(tables, function, &tables->slots[function->slot_first + range->slot]);
  }
  if (allowed == 0) {
    return COMMAND_REJECT(walk, RANGE_SLOT, field, "slot %" PRIu32 " of %" PRIu32 " has no storage",
                          range->slot, function->slot_count);
  }
  if (range->access != access || (access & ~allowed) != 0) {
    return COMMAND_REJECT(walk, RANGE_ACCESS, field,
                          "access %" PRIu32 " to slot %" PRIu32 "; the command has %" PRIu32
                          ", the slot allows %" PRIu32,
                          range->access, range->slot, access, allowed);
  }
  ACCRT_TRY(check_size(walk, range->offset, field));
  return range->size == ACCX_NONE ? ACCRT_OK : check_size(walk, range->size, field);
}

static bool range_is_empty(const accx_range_t* range) {
  return range->slot == ACCX_NONE && range->access == 0 && range->offset == ACCX_NONE &&
         range->size == ACCX_NONE;
}

/* ---- Operands ---- */

static accrt_status_t check_view(walk_t* walk, uint32_t index) {
  accx_verifier_t* verifier = walk->verifier;
  const accrt_bundle_tables_t* tables = verifier->tables;
  if (index < walk->view_first || index > verifier->next_view || index >= tables->view_count) {
    return COMMAND_REJECT(walk, VIEW, "view",
                          "%" PRIu32 " of %" PRIu32 "; this function's begin at %" PRIu32
                          ", the next one is %" PRIu32,
                          index, tables->view_count, walk->view_first, verifier->next_view);
  }
  if (index == verifier->next_view)
    ++verifier->next_view;
  const accx_view_t* view = &tables->views[index];
  ACCRT_TRY(accx_check_dtype(verifier, view->dtype, "views", index, "dtype"));
  if (view->rank > ACCX_MAX_RANK) {
    return ACCX_REJECT(verifier, VIEW, "views", index, "rank", "%" PRIu32 "; the limit is %d",
                       view->rank, ACCX_MAX_RANK);
  }
  for (uint32_t i = 0; i < ACCX_MAX_RANK; ++i) {
    if (i < view->rank) {
      ACCRT_TRY(check_size(walk, view->shape[i], "view.shape"));
      ACCRT_TRY(check_number(walk, view->strides[i], "view.strides"));
    } else if (view->shape[i] != ACCX_NONE || view->strides[i] != ACCX_NONE) {
      return ACCX_REJECT(verifier, VIEW, "views", index, "shape",
                         "entry %" PRIu32 " past rank %" PRIu32 " is used", i, view->rank);
    }
  }
  return ACCRT_OK;
}

/* The requirements for an operand. */
typedef struct operand_rule {
  uint32_t kind; /* ACCX_OPERAND_* */
  uint32_t access;
  uint32_t size_bytes; /* SCALAR */
  bool optional;
} operand_rule_t;

static bool operand_is_clean(const accx_operand_t* operand) {
  const uint32_t kind = operand->kind;
  const bool has_range =
      kind == ACCX_OPERAND_BUFFER || kind == ACCX_OPERAND_TENSOR || kind == ACCX_OPERAND_WORKSPACE;
  return operand->reserved == 0 &&
         (kind == ACCX_OPERAND_SYMBOL || operand->expression == ACCX_NONE) &&
         (kind == ACCX_OPERAND_TENSOR || operand->view == ACCX_NONE) &&
         (has_range || range_is_empty(&operand->range)) &&
         (kind == ACCX_OPERAND_SCALAR || operand->immediate == 0);
}

static bool slot_is_transient(const walk_t* walk, uint32_t slot) {
  const accrt_bundle_tables_t* tables = walk->verifier->tables;
  const accx_function_t* function = &tables->functions[walk->function];
  return slot < function->slot_count &&
         tables->slots[function->slot_first + slot].kind == ACCX_SLOT_TRANSIENT;
}

static accrt_status_t check_operand(walk_t* walk, const accx_operand_t* operand,
                                    const operand_rule_t* rule, uint32_t index) {
  const bool absent = operand->kind == ACCX_OPERAND_ABSENT && rule->optional;
  if (operand->kind != rule->kind && !absent) {
    return COMMAND_REJECT(walk, OPERAND, "operands",
                          "operand %" PRIu32 " is of kind %" PRIu32 ", declared is %" PRIu32, index,
                          operand->kind, rule->kind);
  }
  if (!operand_is_clean(operand)) {
    return COMMAND_REJECT(walk, COMMAND_FIELDS, "operands",
                          "operand %" PRIu32 " of kind %" PRIu32
                          " has a field that its kind does not use",
                          index, operand->kind);
  }
  switch (operand->kind) {
  case ACCX_OPERAND_SCALAR:
    if (rule->size_bytes >= 8 || operand->immediate >> (8 * rule->size_bytes) == 0)
      return ACCRT_OK;
    return COMMAND_REJECT(walk, OPERAND, "operands",
                          "operand %" PRIu32 " is 0x%" PRIx64 ", declared are %" PRIu32 " bytes",
                          index, operand->immediate, rule->size_bytes);
  case ACCX_OPERAND_SYMBOL:
    return check_number(walk, operand->expression, "operands");
  case ACCX_OPERAND_ABSENT:
    return ACCRT_OK;
  case ACCX_OPERAND_TENSOR:
    ACCRT_TRY(check_view(walk, operand->view));
    break;
  case ACCX_OPERAND_WORKSPACE:
    if (slot_is_transient(walk, operand->range.slot))
      break;
    return COMMAND_REJECT(walk, OPERAND, "operands",
                          "workspace %" PRIu32 " is slot %" PRIu32 ", not the arena", index,
                          operand->range.slot);
  default:
    break;
  }
  return check_range(walk, &operand->range, rule->access, "operands");
}

/* ---- Fields of one opcode ---- */

/* Checks a value that is decided at planning: it may not use symbols that get their value later. */
static accrt_status_t check_decision(const walk_t* walk, uint32_t node, const char* field) {
  accx_scope_t scope = walk->scope;
  scope.allowed = ACCX_USES_SPECIALIZE | ACCX_USES_SESSION | ACCX_USES_PRESENT;
  return accx_check_expression(walk->verifier, &scope, node, "commands", walk->record, field);
}

static const uint32_t* field_at(const walk_t* walk, const accx_field_t* field) {
  return (const uint32_t*)accx_command_fields(walk->command) + field->offset / 4;
}

static accrt_status_t check_pattern(const walk_t* walk, const accx_field_t* field) {
  const uint64_t pattern = *(const uint64_t*)(const void*)field_at(walk, field);
  const uint32_t bytes = *field_at(walk, field + 1);
  if (bytes <= 8 && accrt_is_power_of_two(bytes) && (bytes == 8 || pattern >> (8 * bytes) == 0))
    return ACCRT_OK;
  return COMMAND_REJECT(walk, FILL, field->name, "0x%" PRIx64 " of %" PRIu32 " bytes", pattern,
                        bytes);
}

/* Checks a field that depends on nothing else: a pattern, a reserved field, the size of a range
 * that has none. */
static accrt_status_t check_constant(const walk_t* walk, const accx_field_t* field) {
  if (field->kind == ACCX_FIELD_PATTERN)
    return check_pattern(walk, field);
  const uint32_t* at = field_at(walk, field);
  uint32_t wanted = 0;
  if (accx_field_is_start(field->kind)) {
    at = &((const accx_range_t*)(const void*)at)->size;
    wanted = ACCX_NONE;
  } else if (field->kind != ACCX_FIELD_ZERO)
    return ACCRT_OK;
  return *at == wanted ? ACCRT_OK
                       : COMMAND_REJECT(walk, COMMAND_FIELDS, field->name,
                                        "%" PRIu32 ", not %" PRIu32, *at, wanted);
}

static accrt_status_t check_field(const walk_t* walk, const accx_field_t* field) {
  const uint32_t* at = field_at(walk, field);
  if (accx_field_is_range(field->kind))
    return check_range(walk, (const accx_range_t*)(const void*)at, accx_field_access(field->kind),
                       field->name);
  switch (field->kind) {
  case ACCX_FIELD_SIZE:
    for (uint32_t i = 0; i < field->count; ++i)
      ACCRT_TRY(check_size(walk, at[i], field->name));
    return ACCRT_OK;
  case ACCX_FIELD_DECIDED:
    return check_decision(walk, *at, field->name);
  case ACCX_FIELD_DECIDED_SIZE:
    ACCRT_TRY(check_decision(walk, *at, field->name));
    return check_size(walk, *at, field->name);
  case ACCX_FIELD_STRING:
    return accx_check_string(walk->verifier, *at, "commands", walk->record, field->name);
  default:
    return ACCRT_OK; /* checked with the opcode or during the walk */
  }
}

static accrt_status_t check_fields(const walk_t* walk) {
  uint32_t count;
  const accx_field_t* fields = accx_fields_of(walk->command->opcode, &count);
  for (uint32_t i = 0; i < count; ++i)
    ACCRT_TRY(check_constant(walk, &fields[i]));
  for (uint32_t i = 0; i < count; ++i)
    ACCRT_TRY(check_field(walk, &fields[i]));
  return ACCRT_OK;
}

/* ---- Commands by opcode ---- */

static accrt_status_t check_dispatch(walk_t* walk) {
  const accrt_bundle_tables_t* tables = walk->verifier->tables;
  const accx_dispatch_t* dispatch = accx_command_fields(walk->command);
  if (dispatch->kernel >= tables->kernel_count ||
      dispatch->operand_count != tables->kernels[dispatch->kernel].parameter_count) {
    return COMMAND_REJECT(walk, DISPATCH_KERNEL, "kernel",
                          "kernel %" PRIu32 " of %" PRIu32 " with %" PRIu32
                          " operands: no such kernel, or not its count",
                          dispatch->kernel, tables->kernel_count, dispatch->operand_count);
  }
  ACCRT_TRY(check_fields(walk));
  const accx_kernel_t* kernel = &tables->kernels[dispatch->kernel];
  const accx_operand_t* operands = accx_dispatch_operands(dispatch);
  for (uint32_t i = 0; i < dispatch->operand_count; ++i) {
    const accx_parameter_t* parameter = &tables->parameters[kernel->parameter_first + i];
    /* Parameter and operand kinds have the same numbers. */
    const operand_rule_t rule = {parameter->kind, parameter->access, parameter->size_bytes,
                                 (parameter->flags & ACCRT_KERNEL_PARAM_FLAG_OPTIONAL) != 0};
    ACCRT_TRY(check_operand(walk, &operands[i], &rule, i));
  }
  return ACCRT_OK;
}
_Static_assert(ACCX_OPERAND_BUFFER == ACCRT_KERNEL_PARAM_BUFFER &&
                   ACCX_OPERAND_TENSOR == ACCRT_KERNEL_PARAM_TENSOR &&
                   ACCX_OPERAND_SCALAR == ACCRT_KERNEL_PARAM_SCALAR &&
                   ACCX_OPERAND_SYMBOL == ACCRT_KERNEL_PARAM_SYMBOL &&
                   ACCX_OPERAND_WORKSPACE == ACCRT_KERNEL_PARAM_WORKSPACE,
               "check_dispatch compares them");

static operand_rule_t call_rule(const accx_argument_t* argument) {
  operand_rule_t rule = {ACCX_OPERAND_BUFFER, ACCRT_KERNEL_ACCESS_READ_WRITE, 0,
                         (argument->flags & ACCX_ARGUMENT_FLAG_OPTIONAL) != 0};
  if (argument->kind == ACCX_ARGUMENT_SCALAR)
    rule.kind = ACCX_OPERAND_SYMBOL;
  if (argument->kind == ACCX_ARGUMENT_READ)
    rule.access = ACCRT_KERNEL_ACCESS_READ;
  if (argument->kind == ACCX_ARGUMENT_RESULT)
    rule.access = ACCRT_KERNEL_ACCESS_WRITE;
  return rule;
}

static accrt_status_t check_call(walk_t* walk) {
  accx_verifier_t* verifier = walk->verifier;
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_call_t* call = accx_command_fields(walk->command);
  if (call->function >= walk->function ||
      (tables->functions[call->function].flags & ACCX_FUNCTION_PREPARE) != 0) {
    return COMMAND_REJECT(walk, CALL, "function", "function %" PRIu32 " from function %" PRIu32,
                          call->function, walk->function);
  }
  const accx_function_t* callee = &tables->functions[call->function];
  const uint32_t target = tables->functions[walk->function].target;
  if (callee->target != 0 && callee->target != target) {
    return COMMAND_REJECT(walk, CALL_TARGET, "function",
                          "function %" PRIu32 " is for '%.64s', the caller for '%.64s'",
                          call->function, accx_verifier_text(verifier, callee->target),
                          target != 0 ? accx_verifier_text(verifier, target) : "any driver");
  }
  if (call->operand_count != callee->input_count + callee->result_count) {
    return COMMAND_REJECT(walk, OPERAND, "operand_count",
                          "%" PRIu32 " operands for %" PRIu32 " arguments", call->operand_count,
                          callee->input_count + callee->result_count);
  }
  const accx_operand_t* operands = accx_call_operands(call);
  for (uint32_t i = 0; i < call->operand_count; ++i) {
    const operand_rule_t rule = call_rule(&tables->arguments[callee->argument_first + i]);
    ACCRT_TRY(check_operand(walk, &operands[i], &rule, i));
  }
  accx_function_facts_t* facts = &verifier->facts[walk->function];
  const accx_function_facts_t* below = &verifier->facts[call->function];
  facts->impure |= below->impure;
  facts->expanded_commands += below->expanded_commands;
  if (below->call_depth + 1 > facts->call_depth)
    facts->call_depth = below->call_depth + 1;
  if (facts->call_depth >= ACCX_MAX_CALL_DEPTH ||
      facts->expanded_commands > ACCX_MAX_EXPANDED_COMMANDS) {
    return COMMAND_REJECT(walk, CALL_LIMITS, "function",
                          "calls nest %" PRIu32 " deep and expand to %" PRIu64 " commands",
                          facts->call_depth + 1, facts->expanded_commands);
  }
  return accx_need_symbols_of(verifier, walk->function, call->function);
}

/* ---- The walk ---- */

static accrt_status_t check_block(const walk_t* outer, uint32_t block, uint32_t block_depth,
                                  uint32_t repeat_depth);

static accrt_status_t enter_block(const walk_t* walk, uint32_t block, uint32_t block_depth,
                                  bool repeats, const char* field) {
  if (block != walk->verifier->next_block || block >= walk->verifier->tables->block_count) {
    return COMMAND_REJECT(walk, BLOCK_USE, field,
                          "block %" PRIu32 " of %" PRIu32 ", the next one is %" PRIu32, block,
                          walk->verifier->tables->block_count, walk->verifier->next_block);
  }
  if (block_depth == ACCX_MAX_BLOCK_DEPTH) {
    return COMMAND_REJECT(walk, BLOCK_DEPTH, field, "blocks nest more than %u deep",
                          ACCX_MAX_BLOCK_DEPTH);
  }
  return check_block(walk, block, block_depth + 1, walk->scope.repeat_depth + (repeats ? 1u : 0u));
}

static accrt_status_t check_command(walk_t* walk) {
  ACCRT_TRY(check_header(walk));
  switch (walk->command->opcode) {
  case ACCX_COMMAND_DISPATCH:
    return check_dispatch(walk);
  case ACCX_COMMAND_CALL:
    return check_call(walk);
  default:
    return check_fields(walk); /* an unknown command that may be ignored has no known fields */
  }
}

/* Checks the blocks that a command contains. */
static accrt_status_t check_nested(const walk_t* walk, uint32_t block_depth) {
  if (walk->command->opcode == ACCX_COMMAND_REPEAT) {
    const accx_repeat_t* repeat = accx_command_fields(walk->command);
    return enter_block(walk, repeat->block, block_depth, true, "block");
  }
  if (walk->command->opcode != ACCX_COMMAND_BRANCH)
    return ACCRT_OK;
  const accx_branch_t* branch = accx_command_fields(walk->command);
  if (branch->then_block != ACCX_NONE)
    ACCRT_TRY(enter_block(walk, branch->then_block, block_depth, false, "then_block"));
  return branch->else_block == ACCX_NONE
             ? ACCRT_OK
             : enter_block(walk, branch->else_block, block_depth, false, "else_block");
}

static void walk_to(walk_t* walk, uint32_t block, uint32_t place) {
  const accrt_bundle_tables_t* tables = walk->verifier->tables;
  walk->place = place;
  walk->record = tables->block_first[block] + place;
  walk->command = tables->commands[walk->record];
}

/* Walks in the order of the stream: a block's commands, then those of the blocks inside it. */
static accrt_status_t check_block(const walk_t* outer, uint32_t block, uint32_t block_depth,
                                  uint32_t repeat_depth) {
  accx_verifier_t* verifier = outer->verifier;
  walk_t walk = *outer;
  walk.scope.repeat_depth = repeat_depth;
  const uint32_t count = verifier->tables->blocks[block].command_count;
  ACCRT_TRY(accrt_charge((uint64_t)count + 1));
  ++verifier->next_block;
  verifier->bundle->function_command_count[walk.function] += count;
  verifier->facts[walk.function].expanded_commands += count;
  for (uint32_t i = 0; i < count; ++i) {
    walk_to(&walk, block, i);
    ACCRT_TRY(check_command(&walk));
  }
  for (uint32_t i = 0; i < count; ++i) {
    walk_to(&walk, block, i);
    ACCRT_TRY(check_nested(&walk, block_depth));
  }
  return ACCRT_OK;
}

accrt_status_t accx_verify_body(accx_verifier_t* verifier, uint32_t function) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_function_t* owner = &tables->functions[function];
  if (owner->body != verifier->next_block || owner->body >= tables->block_count) {
    return ACCX_REJECT(verifier, BLOCK_USE, "functions", function, "body",
                       "block %" PRIu32 " of %" PRIu32 ", the next one is %" PRIu32, owner->body,
                       tables->block_count, verifier->next_block);
  }
  const walk_t walk = {
      .verifier = verifier,
      .function = function,
      .view_first = verifier->next_view,
      .scope = {owner->expression_first, owner->expression_count, ACCX_USES_ANY, 0},
  };
  return check_block(&walk, owner->body, 1, 0);
}
