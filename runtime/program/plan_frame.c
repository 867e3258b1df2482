/* runtime/program/plan_frame.c - frames: the values and slots of one function while a plan is made.
 * It appends no command. */
#include <string.h>

#include "runtime/program/plan_builder.h"

static const char* symbol_name(const accrt_plan_builder_t* builder, uint32_t symbol) {
  if (symbol == ACCX_NONE)
    return "";
  return accrt_program_string(builder->program, builder->tables->symbols[symbol].name);
}

accrt_status_t accrt_frame_value(const accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                 uint32_t expression, const char* what,
                                 accrt_symbolic_value_t* out_value) {
  *out_value = frame->values[expression];
  if (out_value->fault == ACCRT_EXPR_OK)
    return builder->symbolic.status;
  const accrt_expr_value_t value = {0, out_value->fault, out_value->symbol};
  return accrt_expr_fail(value, symbol_name(builder, value.symbol), what);
}

accrt_status_t accrt_frame_constant(const accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                    uint32_t expression, const char* what, int64_t* out_value) {
  accrt_symbolic_value_t value;
  ACCRT_TRY(accrt_frame_value(builder, frame, expression, what, &value));
  if (!accrt_symbolic_is_constant(value)) {
    return ACCRT_FAIL(INVALID_FORMAT, "%s depends on a bucket or runtime symbol", what);
  }
  *out_value = value.constant;
  return ACCRT_OK;
}

static accrt_symbolic_value_t evaluate_node(accrt_plan_builder_t* builder,
                                            const accrt_frame_t* frame,
                                            const accx_expression_t* node) {
  const uint64_t index = (uint64_t)node->immediate;
  switch (node->op) {
  case ACCX_EXPR_CONSTANT:
    return accrt_symbolic_constant(node->immediate);
  case ACCX_EXPR_SYMBOL:
    return frame->symbols[index];
  case ACCX_EXPR_PRESENT:
    return accrt_symbolic_constant(frame->present[index]);
  case ACCX_EXPR_INDUCTION:
    if (index >= frame->induction_count)
      return accrt_symbolic_fault(ACCRT_EXPR_NO_VALUE, ACCX_NONE);
    return accrt_symbolic_constant(frame->inductions[index]);
  default:
    break;
  }
  const accrt_symbolic_value_t zero = accrt_symbolic_constant(0);
  const uint32_t count = accx_expression_operands(node->op);
  return accrt_symbolic_apply(&builder->symbolic, node->op, frame->values[node->a],
                              count > 1 ? frame->values[node->b] : zero,
                              count > 2 ? frame->values[node->c] : zero);
}

accrt_status_t accrt_frame_evaluate(accrt_plan_builder_t* builder, accrt_frame_t* frame) {
  const accx_expression_t* scope = accrt_function_scope(builder->program, frame->function);
  const uint32_t count = frame->record->expression_count;
  ACCRT_TRY(accrt_charge((uint64_t)count + 1));
  for (uint32_t i = 0; i < count; ++i)
    frame->values[i] = evaluate_node(builder, frame, &scope[i]);
  return builder->symbolic.status;
}

/* ---- Storage of a frame ---- */

static accrt_status_t allocate(accrt_plan_builder_t* builder, uint32_t function,
                               accrt_frame_t* frame) {
  memset(frame, 0, sizeof *frame);
  accrt_zone_init(&frame->zone, builder->allocator);
  frame->function = function;
  frame->record = &builder->tables->functions[function];
  frame->last_call = ACCX_NONE;
  const uint32_t symbol_count = builder->tables->symbol_count;
  const uint32_t node_count = frame->record->expression_count;
  ACCRT_TRY(accrt_function_check_features(builder->program, function));
  ACCRT_TRY(accrt_charge((uint64_t)symbol_count + node_count + frame->record->slot_count + 64));
  void* memory[4] = {NULL};
  const struct {
    size_t count;
    size_t bytes;
  } wanted[4] = {{symbol_count, sizeof *frame->symbols},
                 {node_count, sizeof *frame->values},
                 {accrt_function_argument_count(builder->program, function), 1},
                 {frame->record->slot_count, sizeof *frame->slots}};
  accrt_status_t status = ACCRT_OK;
  for (int i = 0; i < 4 && status == ACCRT_OK; ++i) {
    status = accrt_zone_take(&frame->zone, wanted[i].count, wanted[i].bytes, &memory[i]);
  }
  frame->symbols = memory[0];
  frame->values = memory[1];
  frame->present = memory[2];
  frame->slots = memory[3];
  return status;
}

void accrt_frame_leave(accrt_frame_t* frame) {
  accrt_zone_deinit(&frame->zone);
}

/* ---- Sizes ---- */

/* The bytes of a contiguous tensor of a type. */
static accrt_symbolic_value_t type_bytes(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                         const accx_type_t* type) {
  const uint32_t bits = accrt_dtype_bits(type->dtype);
  accrt_symbolic_value_t size = accrt_symbolic_constant(bits % 8 == 0 ? bits / 8 : bits);
  for (uint32_t i = 0; i < type->rank; ++i) {
    size =
        accrt_symbolic_two(&builder->symbolic, ACCX_EXPR_MUL, size, frame->values[type->dims[i]]);
  }
  if (bits % 8 == 0)
    return size;
  return accrt_symbolic_two(&builder->symbolic, ACCX_EXPR_CEILDIV, size,
                            accrt_symbolic_constant(8));
}

/* Room for each call of the plan: the most that the size can be. */
static accrt_status_t place_arena(accrt_plan_builder_t* builder, accrt_frame_t* frame,
                                  uint64_t floor_bytes) {
  const accx_function_t* record = frame->record;
  accrt_symbolic_value_t size = accrt_symbolic_constant(0);
  if (record->transient_size != ACCX_NONE) {
    ACCRT_TRY(accrt_frame_value(builder, frame, record->transient_size,
                                "size of the transient memory", &size));
  }
  const int64_t most = accrt_symbolic_bounds_of(&builder->symbolic, size).maximum;
  const uint64_t align = record->transient_align == 0 ? 1 : record->transient_align;
  if (most < 0 || !accrt_align_u64(floor_bytes, align, &frame->arena_base) ||
      !accrt_add_u64(frame->arena_base, (uint64_t)most, &frame->arena_end) ||
      frame->arena_end > INT64_MAX) {
    return ACCRT_FAIL(OVERFLOW, "size of the transient memory: %" PRId64 " bytes after %" PRIu64,
                      most, floor_bytes);
  }
  if (frame->arena_end > builder->arena_bytes)
    builder->arena_bytes = frame->arena_end;
  return ACCRT_OK;
}

/* ---- Slots ---- */

static accrt_symbolic_value_t constant_bytes(const accrt_plan_builder_t* builder,
                                             uint32_t constant) {
  const accrt_bundle_tables_t* tables = builder->tables;
  const uint32_t component = tables->constants[constant].component_first;
  return accrt_symbolic_constant((int64_t)tables->components[component].size_bytes);
}

static void set_argument_slot(accrt_plan_builder_t* builder, accrt_frame_t* frame,
                              uint32_t argument, accrt_frame_slot_t* slot) {
  const accx_argument_t* record =
      &accrt_function_arguments(builder->program, frame->function)[argument];
  const uint32_t bits = accrt_dtype_bits(record->type.dtype);
  slot->kind = ACCRT_PLAN_ARGUMENT;
  slot->index = argument;
  slot->name = accrt_program_string(builder->program, record->name);
  slot->absent = frame->present[argument] == 0;
  slot->writable = record->kind != ACCX_ARGUMENT_READ && record->kind != ACCX_ARGUMENT_SCALAR;
  /* An argument of a prepare function has the size of its constant, whatever the layout. */
  slot->size = record->constant != ACCX_NONE ? constant_bytes(builder, record->constant)
                                             : type_bytes(builder, frame, &record->type);
  const bool is_large = slot->size.fault == ACCRT_EXPR_OK &&
                        accrt_symbolic_bounds_of(&builder->symbolic, slot->size).minimum >=
                            (int64_t)ACCRT_ARGUMENT_ALIGN;
  slot->align_bytes = is_large || bits < 8 ? ACCRT_ARGUMENT_ALIGN : bits / 8;
  if (bits < 8 && !is_large)
    slot->align_bytes = 1;
}

static void set_constant_slot(const accrt_plan_builder_t* builder, const accx_slot_t* record,
                              accrt_frame_slot_t* slot) {
  const accx_constant_t* constant = &builder->tables->constants[record->index];
  slot->kind = ACCRT_PLAN_COMPONENT;
  slot->index = constant->component_first + record->component;
  slot->name = accrt_program_string(builder->program, constant->name);
  slot->align_bytes = accrt_constant_align(constant);
  slot->size =
      accrt_symbolic_constant((int64_t)builder->tables->components[slot->index].size_bytes);
}

static void set_slots(accrt_plan_builder_t* builder, accrt_frame_t* frame) {
  for (uint32_t i = 0; i < frame->record->slot_count; ++i) {
    const accx_slot_t* record = &builder->tables->slots[frame->record->slot_first + i];
    accrt_frame_slot_t* slot = &frame->slots[i];
    slot->base = accrt_symbolic_constant(0);
    switch (record->kind) {
    case ACCX_SLOT_ARGUMENT:
      set_argument_slot(builder, frame, record->index, slot);
      break;
    case ACCX_SLOT_CONSTANT:
      set_constant_slot(builder, record, slot);
      break;
    case ACCX_SLOT_STATE:
      slot->kind = ACCRT_PLAN_STATE;
      slot->index = record->index;
      slot->writable = true;
      slot->name =
          accrt_program_string(builder->program, builder->tables->states[record->index].name);
      slot->align_bytes = ACCRT_STORAGE_ALIGN;
      slot->size = accrt_symbolic_constant((int64_t)builder->request->state_bytes[record->index]);
      break;
    default:
      slot->kind = ACCRT_PLAN_ARENA;
      slot->writable = true;
      slot->name = "transient memory";
      slot->align_bytes = ACCRT_ARENA_ALIGN;
      slot->base = accrt_symbolic_constant((int64_t)frame->arena_base);
      slot->size = accrt_symbolic_constant((int64_t)(frame->arena_end - frame->arena_base));
      break;
    }
  }
}

/* ---- Entry ---- */

static accrt_symbolic_value_t live_value(accrt_plan_builder_t* builder, uint32_t index,
                                         accrt_expr_value_t value) {
  const accx_symbol_t* symbol = &builder->tables->symbols[index];
  if (value.fault != ACCRT_EXPR_OK)
    return accrt_symbolic_fault(value.fault, value.symbol);
  accrt_symbolic_bounds_t bounds = {symbol->minimum, symbol->maximum, (uint64_t)symbol->divisor};
  if (symbol->symbol_class == ACCX_SYMBOL_BUCKET) {
    const int64_t bound =
        accrt_symbol_bucket(builder->tables, symbol, value.value, &bounds.minimum);
    if (bound < bounds.maximum)
      bounds.maximum = bound;
  } else if (symbol->symbol_class != ACCX_SYMBOL_RUNTIME) {
    return accrt_symbolic_constant(value.value);
  }
  return accrt_symbolic_symbol(&builder->symbolic, index, bounds);
}

accrt_status_t accrt_frame_enter(accrt_plan_builder_t* builder, accrt_frame_t* out_frame) {
  const accrt_plan_request_t* request = builder->request;
  ACCRT_TRY(allocate(builder, request->function, out_frame));
  for (uint32_t i = 0; i < builder->tables->symbol_count; ++i)
    out_frame->symbols[i] = live_value(builder, i, request->symbols[i]);
  const uint32_t argument_count =
      accrt_function_argument_count(builder->program, request->function);
  if (argument_count != 0)
    memcpy(out_frame->present, request->present, argument_count);
  accrt_status_t status = accrt_frame_evaluate(builder, out_frame);
  if (status == ACCRT_OK)
    status = place_arena(builder, out_frame, 0);
  if (status == ACCRT_OK)
    set_slots(builder, out_frame);
  return status != ACCRT_OK ? status : builder->symbolic.status;
}

/* ---- Calls ---- */

/* Gives the callee the values of its scalars, and notes which arguments are present. */
static accrt_status_t pass_scalars(const accrt_plan_builder_t* builder, const accrt_frame_t* caller,
                                   const accx_operand_t* operands, uint32_t count,
                                   accrt_frame_t* frame) {
  const accx_argument_t* arguments = accrt_function_arguments(builder->program, frame->function);
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i) {
    const accx_operand_t* operand = &operands[i];
    const bool has_slot = operand->kind == ACCX_OPERAND_BUFFER && operand->range.slot != ACCX_NONE;
    frame->present[i] = operand->kind != ACCX_OPERAND_ABSENT &&
                        !(has_slot && caller->slots[operand->range.slot].absent);
    if (arguments[i].kind != ACCX_ARGUMENT_SCALAR)
      continue;
    status = accrt_frame_value(builder, caller, operand->expression,
                               accrt_program_string(builder->program, arguments[i].name),
                               &frame->symbols[arguments[i].symbol]);
  }
  return status;
}

/* Makes the callee's argument refer to a range of the caller's slot. */
static accrt_status_t pass_range(accrt_plan_builder_t* builder, const accrt_frame_t* caller,
                                 const accx_argument_t* argument, const accx_operand_t* operand,
                                 accrt_frame_slot_t* slot) {
  accrt_plan_range_t range;
  accrt_status_t status =
      accrt_plan_resolve_range(builder, caller, &operand->range, NULL, slot->name, &range);
  if (status != ACCRT_OK || range.absent)
    return status;
  const accrt_symbolic_value_t zero = accrt_symbolic_constant(0);
  if (slot->size.fault == ACCRT_EXPR_OK) {
    status = accrt_plan_check(builder, ACCRT_CHECK_RANGE, "argument of a call", slot->name, zero,
                              slot->size, range.size, zero);
  }
  if (slot->writable && argument->kind != ACCX_ARGUMENT_DONATED && !range.slot->writable &&
      status == ACCRT_OK) {
    return ACCRT_FAIL(INVALID_FORMAT,
                      "argument '%s' of a call is written, and '%s' may only be read", slot->name,
                      range.slot->name);
  }
  slot->kind = range.slot->kind;
  slot->index = range.slot->index;
  slot->align_bytes = range.slot->align_bytes;
  slot->writable = slot->writable && range.slot->writable;
  slot->base = range.offset;
  return status;
}

accrt_status_t accrt_frame_call(accrt_plan_builder_t* builder, const accrt_frame_t* caller,
                                const accx_command_t* command, accrt_frame_t* out_frame) {
  const accx_call_t* call = accx_command_fields(command);
  const accx_operand_t* operands = accx_call_operands(call);
  ACCRT_TRY(allocate(builder, call->function, out_frame));
  const uint32_t symbol_count = builder->tables->symbol_count;
  if (symbol_count != 0)
    memcpy(out_frame->symbols, caller->symbols, symbol_count * sizeof *out_frame->symbols);
  ACCRT_TRY(pass_scalars(builder, caller, operands, call->operand_count, out_frame));
  ACCRT_TRY(accrt_frame_evaluate(builder, out_frame));
  ACCRT_TRY(place_arena(builder, out_frame, caller->arena_end));
  set_slots(builder, out_frame);
  const accx_argument_t* arguments = accrt_function_arguments(builder->program, call->function);
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < call->operand_count && status == ACCRT_OK; ++i) {
    if (arguments[i].kind == ACCX_ARGUMENT_SCALAR || !out_frame->present[i])
      continue;
    status = pass_range(builder, caller, &arguments[i], &operands[i], &out_frame->slots[i]);
  }
  return status != ACCRT_OK ? status : builder->symbolic.status;
}
