/* runtime/program/plan_lower.c - translates one command of a bundle to one driver command, or to
 * two where a workspace must be zero.
 *
 * It does not decide the order: the builder holds the predecessors.
 */
#include <string.h>

#include "runtime/program/plan_builder.h"

/* Budget steps for one operand, or for one dimension of its view. */
#define OPERAND_STEPS 8u

static accrt_symbolic_value_t constant(int64_t value) {
  return accrt_symbolic_constant(value);
}

/* ---- Appending ---- */

accrt_status_t accrt_plan_append(accrt_plan_builder_t* builder,
                                 const accrt_driver_command_t* command, uint32_t* out_index) {
  if (builder->command_count >= ACCRT_MAX_PLAN_COMMANDS ||
      builder->predecessor_count > ACCRT_MAX_PLAN_EDGES - builder->edge_count) {
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "its loops and calls unroll to more than %u commands or %u dependencies",
                      ACCRT_MAX_PLAN_COMMANDS, ACCRT_MAX_PLAN_EDGES);
  }
  void* memory = builder->commands;
  ACCRT_TRY(accrt_grow_array(builder->allocator, (size_t)builder->command_count + 1,
                             sizeof *builder->commands, &builder->command_capacity, &memory));
  builder->commands = memory;
  ACCRT_TRY(accrt_zone_take(&builder->plan->zone, builder->predecessor_count,
                            sizeof *builder->predecessors, &memory));
  if (builder->predecessor_count != 0) {
    memcpy(memory, builder->predecessors,
           builder->predecessor_count * sizeof *builder->predecessors);
  }
  accrt_driver_command_t* place = &builder->commands[builder->command_count];
  *place = *command;
  place->predecessors = memory;
  place->predecessor_count = builder->predecessor_count;
  builder->edge_count += builder->predecessor_count;
  *out_index = builder->command_count++;
  return ACCRT_OK;
}

/* ---- Dispatch ---- */

/* A dispatch during its translation. */
typedef struct lowering {
  accrt_plan_builder_t* builder;
  const accrt_frame_t* frame;
  const accx_dispatch_t* record;
  const accrt_kernel_def_t* declared;
  accrt_plan_operand_t operands[ACCRT_KERNEL_MAX_PARAMS];
  const accrt_program_variant_t* variant;
  unsigned char* params; /* template of the parameter block */
  const accrt_driver_patch_t* patches;
} lowering_t;

static accrt_status_t add_patch(accrt_plan_builder_t* builder, const accrt_driver_patch_t* patch) {
  void* patches = builder->patches;
  const accrt_status_t status =
      accrt_grow_array(builder->allocator, (size_t)builder->patch_count + 1,
                       sizeof *builder->patches, &builder->patch_capacity, &patches);
  builder->patches = patches;
  if (status == ACCRT_OK)
    builder->patches[builder->patch_count++] = *patch;
  return status;
}

/* Writes a value of `size_bytes` to the parameter block: to the template when it is known,
 * otherwise as a patch. */
static accrt_status_t put_value(lowering_t* lowering, uint32_t offset_bytes, uint32_t size_bytes,
                                accrt_symbolic_value_t value) {
  if (value.node == ACCX_NONE) {
    memcpy(lowering->params + offset_bytes, &value.constant, size_bytes);
    return ACCRT_OK;
  }
  accrt_driver_patch_t patch;
  memset(&patch, 0, sizeof patch);
  patch.kind = ACCRT_DRIVER_PATCH_VALUE;
  patch.offset_bytes = offset_bytes;
  patch.size_bytes = size_bytes;
  patch.range.binding = ACCRT_DRIVER_NONE;
  patch.range.offset.scalar = ACCRT_DRIVER_NONE;
  patch.range.size_bytes.scalar = ACCRT_DRIVER_NONE;
  const accrt_status_t status = accrt_plan_driver_value(lowering->builder, value, &patch.value);
  return status != ACCRT_OK ? status : add_patch(lowering->builder, &patch);
}

static accrt_status_t put_address(lowering_t* lowering, uint32_t offset_bytes,
                                  const accrt_plan_range_t* range) {
  if (range->slot == NULL || range->absent)
    return ACCRT_OK; /* the template already has NULL */
  accrt_driver_patch_t patch;
  memset(&patch, 0, sizeof patch);
  patch.kind = ACCRT_DRIVER_PATCH_ADDRESS;
  patch.offset_bytes = offset_bytes;
  patch.size_bytes = 8;
  patch.value.scalar = ACCRT_DRIVER_NONE;
  const accrt_status_t status = accrt_plan_driver_range(lowering->builder, range, &patch.range);
  return status != ACCRT_OK ? status : add_patch(lowering->builder, &patch);
}

/* The bytes of a number of elements. `divide` says how to round. */
static accrt_symbolic_value_t element_bytes(accrt_symbolic_t* symbolic, uint32_t dtype,
                                            uint32_t divide, accrt_symbolic_value_t count) {
  const uint32_t bits = accrt_dtype_bits(dtype);
  if (bits % 8 == 0)
    return accrt_symbolic_two(symbolic, ACCX_EXPR_MUL, count, constant(bits / 8));
  count = accrt_symbolic_two(symbolic, ACCX_EXPR_MUL, count, constant(bits));
  return accrt_symbolic_two(symbolic, divide, count, constant(8));
}

/* The elements that a view touches, relative to element 0: the lowest one (`below`, 0 or negative),
 * and the one behind the highest (`above`). Both are 0 when the view has no element. */
static void view_reach(accrt_symbolic_t* symbolic, uint32_t rank,
                       const accrt_symbolic_value_t* shape, const accrt_symbolic_value_t* strides,
                       accrt_symbolic_value_t* out_below, accrt_symbolic_value_t* out_above) {
  const accrt_symbolic_value_t zero = constant(0);
  accrt_symbolic_value_t below = zero;
  accrt_symbolic_value_t above = constant(1);
  accrt_symbolic_value_t count = constant(1);
  for (uint32_t i = 0; i < rank; ++i) {
    const accrt_symbolic_value_t steps =
        accrt_symbolic_two(symbolic, ACCX_EXPR_SUB, shape[i], constant(1));
    const accrt_symbolic_value_t span =
        accrt_symbolic_two(symbolic, ACCX_EXPR_MUL, steps, strides[i]);
    const accrt_symbolic_bounds_t bounds = accrt_symbolic_bounds_of(symbolic, strides[i]);
    /* An unknown stride may have either sign. MAX and MIN decide in the call. */
    if (bounds.maximum > 0) {
      const accrt_symbolic_value_t up =
          bounds.minimum >= 0 ? span : accrt_symbolic_two(symbolic, ACCX_EXPR_MAX, span, zero);
      above = accrt_symbolic_two(symbolic, ACCX_EXPR_ADD, above, up);
    }
    if (bounds.minimum < 0) {
      const accrt_symbolic_value_t down =
          bounds.maximum <= 0 ? span : accrt_symbolic_two(symbolic, ACCX_EXPR_MIN, span, zero);
      below = accrt_symbolic_two(symbolic, ACCX_EXPR_ADD, below, down);
    }
    if (shape[i].fault != ACCRT_EXPR_OK ||
        accrt_symbolic_bounds_of(symbolic, shape[i]).minimum <= 0) {
      const accrt_symbolic_value_t some =
          accrt_symbolic_two(symbolic, ACCX_EXPR_NE, shape[i], zero);
      count = accrt_symbolic_is_known(count, 1)
                  ? some
                  : accrt_symbolic_two(symbolic, ACCX_EXPR_AND, count, some);
    }
  }
  *out_below = accrt_symbolic_apply(symbolic, ACCX_EXPR_SELECT, count, below, zero);
  *out_above = accrt_symbolic_apply(symbolic, ACCX_EXPR_SELECT, count, above, zero);
}

/* Checks a view. Element 0 is at the start of the view's range, and elements from there on must lie
 * in the range. Elements before it must lie in the slot. */
static accrt_status_t check_view(lowering_t* lowering, const accx_view_t* view,
                                 const accx_range_t* record, const accrt_plan_range_t* range,
                                 const char* name) {
  accrt_plan_builder_t* builder = lowering->builder;
  accrt_symbolic_t* symbolic = &builder->symbolic;
  const accrt_symbolic_value_t zero = constant(0);
  accrt_symbolic_value_t shape[ACCX_MAX_RANK];
  accrt_symbolic_value_t strides[ACCX_MAX_RANK];
  accrt_status_t status = accrt_charge((uint64_t)view->rank * OPERAND_STEPS);
  for (uint32_t i = 0; i < view->rank && status == ACCRT_OK; ++i) {
    status = accrt_frame_value(builder, lowering->frame, view->shape[i], name, &shape[i]);
    if (status == ACCRT_OK)
      status = accrt_frame_value(builder, lowering->frame, view->strides[i], name, &strides[i]);
    if (status == ACCRT_OK)
      status = accrt_plan_check(builder, ACCRT_CHECK_AT_LEAST, "dimension of a view", name,
                                shape[i], zero, zero, zero);
  }
  if (status != ACCRT_OK || range->absent)
    return status;
  accrt_symbolic_value_t below;
  accrt_symbolic_value_t above;
  view_reach(symbolic, view->rank, shape, strides, &below, &above);
  above = element_bytes(symbolic, view->dtype, ACCX_EXPR_CEILDIV, above);
  status = accrt_plan_check(builder, ACCRT_CHECK_RANGE, "view in its range", name, zero, above,
                            range->size, zero);
  if (status != ACCRT_OK || accrt_symbolic_is_known(below, 0))
    return status;
  below = element_bytes(symbolic, view->dtype, ACCX_EXPR_FLOORDIV, below);
  accrt_symbolic_value_t first;
  ACCRT_TRY(accrt_frame_value(builder, lowering->frame, record->offset, name, &first));
  first = accrt_symbolic_two(symbolic, ACCX_EXPR_ADD, first, below);
  return accrt_plan_check(builder, ACCRT_CHECK_AT_LEAST, "first byte that a view reaches in",
                          range->slot->name, first, zero, zero, zero);
}

static accrt_status_t put_view(lowering_t* lowering, uint32_t offset_bytes,
                               const accx_view_t* view) {
  accrt_kernel_tensor_t tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.dtype = view->dtype;
  tensor.rank = view->rank;
  memcpy(lowering->params + offset_bytes, &tensor, sizeof tensor);
  const accrt_symbolic_value_t* values = lowering->frame->values;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < view->rank && status == ACCRT_OK; ++i) {
    const uint32_t shape = offset_bytes + (uint32_t)offsetof(accrt_kernel_tensor_t, shape) + 8 * i;
    const uint32_t stride =
        offset_bytes + (uint32_t)offsetof(accrt_kernel_tensor_t, strides) + 8 * i;
    status = put_value(lowering, shape, 8, values[view->shape[i]]);
    if (status == ACCRT_OK)
      status = put_value(lowering, stride, 8, values[view->strides[i]]);
  }
  return status;
}

static accrt_status_t fail_absent(const accrt_kernel_param_t* param, const char* slot) {
  return ACCRT_FAIL(INVALID_ARGUMENT, "parameter '%s' needs '%s', which the call leaves out",
                    param->name, slot);
}

static bool shape_is_patched(const accrt_frame_t* frame, const accx_view_t* view) {
  for (uint32_t i = 0; i < view->rank; ++i) {
    if (!accrt_symbolic_is_constant(frame->values[view->shape[i]]) ||
        !accrt_symbolic_is_constant(frame->values[view->strides[i]]))
      return true;
  }
  return false;
}

static accrt_status_t resolve_operand(lowering_t* lowering, uint32_t index) {
  accrt_plan_builder_t* builder = lowering->builder;
  const accx_operand_t* operand = &accx_dispatch_operands(lowering->record)[index];
  const accrt_kernel_param_t* param = &lowering->declared->params[index];
  accrt_plan_operand_t* out = &lowering->operands[index];
  ACCRT_TRY(accrt_charge(OPERAND_STEPS));
  memset(out, 0, sizeof *out);
  out->value = constant((int64_t)operand->immediate);
  switch (operand->kind) {
  case ACCX_OPERAND_SYMBOL:
    return accrt_frame_value(builder, lowering->frame, operand->expression, param->name,
                             &out->value);
  case ACCX_OPERAND_SCALAR:
  case ACCX_OPERAND_ABSENT:
    return ACCRT_OK;
  default:
    break;
  }
  ACCRT_TRY(accrt_plan_resolve_range(builder, lowering->frame, &operand->range, NULL, param->name,
                                     &out->range));
  if (out->range.absent && (param->flags & ACCRT_KERNEL_PARAM_FLAG_OPTIONAL) == 0) {
    return fail_absent(param, out->range.slot->name);
  }
  if (operand->kind != ACCX_OPERAND_TENSOR)
    return ACCRT_OK;
  out->shape_is_patched = shape_is_patched(lowering->frame, &builder->tables->views[operand->view]);
  return check_view(lowering, &builder->tables->views[operand->view], &operand->range, &out->range,
                    param->name);
}

static accrt_status_t put_operand(lowering_t* lowering, uint32_t index) {
  const accx_operand_t* operand = &accx_dispatch_operands(lowering->record)[index];
  const accrt_kernel_param_t* param = &lowering->declared->params[index];
  const accrt_plan_operand_t* resolved = &lowering->operands[index];
  accrt_status_t status = ACCRT_OK;
  switch (operand->kind) {
  case ACCX_OPERAND_SCALAR:
  case ACCX_OPERAND_SYMBOL:
    return put_value(lowering, param->offset_bytes, param->size_bytes, resolved->value);
  case ACCX_OPERAND_ABSENT:
    return ACCRT_OK;
  case ACCX_OPERAND_TENSOR:
    status =
        put_view(lowering, param->offset_bytes, &lowering->builder->tables->views[operand->view]);
    break;
  default:
    break;
  }
  return status != ACCRT_OK ? status : put_address(lowering, param->offset_bytes, &resolved->range);
}

/* Fills a workspace with zeros before the dispatch. The dispatch then follows only the fill. */
static accrt_status_t zero_workspace(lowering_t* lowering, const accrt_plan_range_t* range,
                                     const char* name) {
  accrt_plan_builder_t* builder = lowering->builder;
  accrt_driver_command_t command;
  memset(&command, 0, sizeof command);
  command.opcode = ACCRT_DRIVER_COMMAND_FILL;
  command.name = name;
  command.as.fill.pattern_bytes = 1;
  ACCRT_TRY(accrt_plan_driver_range(builder, range, &command.as.fill.target));
  command.as.fill.target.access = ACCRT_KERNEL_ACCESS_WRITE;
  uint32_t index = 0;
  ACCRT_TRY(accrt_plan_append(builder, &command, &index));
  if (builder->predecessor_capacity == 0) {
    void* predecessors = builder->predecessors;
    ACCRT_TRY(accrt_grow_array(builder->allocator, 1, sizeof *builder->predecessors,
                               &builder->predecessor_capacity, &predecessors));
    builder->predecessors = predecessors;
  }
  builder->predecessors[0] = index;
  builder->predecessor_count = 1;
  return ACCRT_OK;
}

static accrt_status_t zero_workspaces(lowering_t* lowering, const char* name) {
  if ((lowering->declared->traits & ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE) == 0)
    return ACCRT_OK;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < lowering->record->operand_count && status == ACCRT_OK; ++i) {
    if (accx_dispatch_operands(lowering->record)[i].kind != ACCX_OPERAND_WORKSPACE)
      continue;
    status = zero_workspace(lowering, &lowering->operands[i].range, name);
  }
  return status;
}

static accrt_status_t lower_grid(lowering_t* lowering, accrt_driver_dispatch_t* dispatch) {
  static const char names[3][9] = {"grid x", "grid y", "grid z"};
  accrt_plan_builder_t* builder = lowering->builder;
  accrt_status_t status = ACCRT_OK;
  for (int i = 0; i < 3 && status == ACCRT_OK; ++i) {
    accrt_symbolic_value_t value;
    ACCRT_TRY(
        accrt_frame_value(builder, lowering->frame, lowering->record->grid[i], names[i], &value));
    status = accrt_plan_check(builder, ACCRT_CHECK_GRID, names[i], "", value, constant(0),
                              constant(0), constant(0));
    if (status == ACCRT_OK)
      status = accrt_plan_driver_value(builder, value, &dispatch->grid[i]);
  }
  return status;
}

/* The parameters of the chosen code: the declared ones, then a pack's lengths. */
static const accrt_kernel_param_t* own_params(const lowering_t* lowering, uint32_t* out_count,
                                              uint32_t* out_size_bytes) {
  const accrt_program_variant_t* variant = lowering->variant;
  if (variant->operation != NULL) {
    const accrt_operator_def_t* operation = variant->operation->definition;
    *out_count = operation->param_count, *out_size_bytes = operation->params_size_bytes;
    return operation->params;
  }
  const accrt_kernel_def_t* kernel = variant->kernel->definition;
  *out_count = kernel->param_count, *out_size_bytes = kernel->params_size_bytes;
  return kernel->params;
}

/* Writes the length of each BUFFER or WORKSPACE, from its address to its end, in the order of the
 * addresses. */
static accrt_status_t put_lengths(lowering_t* lowering, const accrt_kernel_param_t* params,
                                  uint32_t count) {
  accrt_status_t status = ACCRT_OK;
  uint32_t address = 0;
  for (uint32_t i = lowering->record->operand_count; i < count && status == ACCRT_OK; ++i) {
    while (params[address].kind != ACCRT_KERNEL_PARAM_BUFFER &&
           params[address].kind != ACCRT_KERNEL_PARAM_WORKSPACE)
      ++address;
    const accrt_plan_range_t* range = &lowering->operands[address++].range;
    if (range->slot != NULL && !range->absent)
      status = put_value(lowering, params[i].offset_bytes, params[i].size_bytes, range->size);
  }
  return status;
}

/* Makes the parameter block and its patches in the plan's zone. */
static accrt_status_t lower_params(lowering_t* lowering, uint32_t* out_size_bytes) {
  accrt_plan_builder_t* builder = lowering->builder;
  void* memory;
  uint32_t count;
  const accrt_kernel_param_t* params = own_params(lowering, &count, out_size_bytes);
  accrt_status_t status = accrt_zone_take(&builder->plan->zone, *out_size_bytes, 1, &memory);
  lowering->params = memory;
  builder->patch_count = 0;
  for (uint32_t i = 0; i < lowering->record->operand_count && status == ACCRT_OK; ++i) {
    status = put_operand(lowering, i);
  }
  if (status == ACCRT_OK)
    status = put_lengths(lowering, params, count);
  if (status != ACCRT_OK)
    return status;
  status = accrt_zone_take(&builder->plan->zone, builder->patch_count, sizeof *builder->patches,
                           &memory);
  if (status != ACCRT_OK || builder->patch_count == 0)
    return status;
  memcpy(memory, builder->patches, builder->patch_count * sizeof *builder->patches);
  lowering->patches = memory;
  return ACCRT_OK;
}

/* Translates an operator. It has no grid. */
static accrt_status_t lower_operator(lowering_t* lowering, const char* name, uint32_t* out_index) {
  accrt_plan_builder_t* builder = lowering->builder;
  accrt_driver_invoke_t invoke;
  memset(&invoke, 0, sizeof invoke);
  ACCRT_TRY(lower_params(lowering, &invoke.params_size_bytes));
  invoke.operation = lowering->variant->operation;
  invoke.params = lowering->params;
  invoke.patches = lowering->patches;
  invoke.patch_count = builder->patch_count;
  return accrt_plan_append_operator(builder, &invoke, name, out_index);
}

static accrt_status_t lower_dispatch(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                     const accx_command_t* command, uint32_t* out_index) {
  lowering_t lowering;
  lowering.builder = builder;
  lowering.frame = frame;
  lowering.record = accx_command_fields(command);
  lowering.declared = &builder->program->kernels[lowering.record->kernel].declared;
  lowering.variant = NULL;
  lowering.params = NULL;
  lowering.patches = NULL;
  accrt_driver_command_t result;
  memset(&result, 0, sizeof result);
  result.opcode = ACCRT_DRIVER_COMMAND_DISPATCH;
  result.name = command->name != 0 ? accrt_program_string(builder->program, command->name)
                                   : lowering.declared->name;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < lowering.record->operand_count && status == ACCRT_OK; ++i) {
    status = resolve_operand(&lowering, i);
  }
  if (status == ACCRT_OK) {
    status = accrt_plan_choose_variant(builder, lowering.record->kernel, lowering.operands,
                                       &lowering.variant);
  }
  if (status == ACCRT_OK && lowering.variant->operation != NULL)
    return lower_operator(&lowering, result.name, out_index);
  if (status != ACCRT_OK || builder->request->measure_only)
    return status;
  if (status == ACCRT_OK)
    result.as.dispatch.kernel = lowering.variant->kernel;
  if (status == ACCRT_OK)
    status = zero_workspaces(&lowering, result.name);
  if (status == ACCRT_OK)
    status = lower_grid(&lowering, &result.as.dispatch);
  if (status == ACCRT_OK)
    status = lower_params(&lowering, &result.as.dispatch.params_size_bytes);
  result.as.dispatch.params = lowering.params;
  result.as.dispatch.patches = lowering.patches;
  result.as.dispatch.patch_count = builder->patch_count;
  return status != ACCRT_OK ? status : accrt_plan_append(builder, &result, out_index);
}

/* ---- Copy, fill, marker ---- */

static accrt_status_t copy_values(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                  const accx_copy_t* record, accrt_symbolic_value_t extent[3],
                                  accrt_symbolic_value_t source[2],
                                  accrt_symbolic_value_t target[2]) {
  static const char names[3][9] = {"extent 0", "extent 1", "extent 2"};
  const accrt_symbolic_value_t zero = constant(0);
  accrt_status_t status = ACCRT_OK;
  for (int i = 0; i < 3 && status == ACCRT_OK; ++i) {
    ACCRT_TRY(accrt_frame_value(builder, frame, record->extent[i], names[i], &extent[i]));
    status =
        accrt_plan_check(builder, ACCRT_CHECK_AT_LEAST, names[i], "", extent[i], zero, zero, zero);
  }
  for (int i = 0; i < 2 && status == ACCRT_OK; ++i) {
    status =
        accrt_frame_value(builder, frame, record->source_stride[i], "source stride", &source[i]);
    if (status == ACCRT_OK) {
      status =
          accrt_frame_value(builder, frame, record->target_stride[i], "target stride", &target[i]);
    }
    if (status != ACCRT_OK)
      return status;
    ACCRT_TRY(accrt_plan_check(builder, ACCRT_CHECK_AT_LEAST, "source stride", "", source[i], zero,
                               zero, zero));
    status = accrt_plan_check(builder, ACCRT_CHECK_AT_LEAST, "target stride", "", target[i], zero,
                              zero, zero);
  }
  return status;
}

static accrt_status_t check_disjoint(accrt_plan_builder_t* builder,
                                     const accrt_plan_range_t* source,
                                     const accrt_plan_range_t* target) {
  if (source->slot->kind != target->slot->kind || source->slot->index != target->slot->index)
    return ACCRT_OK;
  return accrt_plan_check(builder, ACCRT_CHECK_DISJOINT, "source and target", target->slot->name,
                          source->offset, source->size, target->offset, target->size);
}

/* Yields 1 where `count` pieces of `size` bytes, `stride` apart, do not overlap. A check that the
 * bounds prove costs nothing in a call. */
static accrt_symbolic_value_t are_disjoint(accrt_symbolic_t* symbolic, accrt_symbolic_value_t size,
                                           accrt_symbolic_value_t count,
                                           accrt_symbolic_value_t stride) {
  const accrt_symbolic_bounds_t have = accrt_symbolic_bounds_of(symbolic, stride);
  const accrt_symbolic_bounds_t need = accrt_symbolic_bounds_of(symbolic, size);
  const bool same = size.node != ACCX_NONE && size.node == stride.node;
  if (accrt_symbolic_bounds_of(symbolic, count).maximum <= 1 || same ||
      have.minimum >= need.maximum)
    return constant(1);
  const accrt_symbolic_value_t few = accrt_symbolic_two(symbolic, ACCX_EXPR_LE, count, constant(1));
  return accrt_symbolic_two(symbolic, ACCX_EXPR_OR, few,
                            accrt_symbolic_two(symbolic, ACCX_EXPR_LE, size, stride));
}

/* Yields 1 where a copy's target rows do not overlap: `inner` repeats the rows, `outer` repeats
 * those groups. */
static accrt_symbolic_value_t rows_are_disjoint(accrt_symbolic_t* symbolic,
                                                const accrt_symbolic_value_t extent[3],
                                                const accrt_symbolic_value_t stride[2], int inner,
                                                int outer) {
  const accrt_symbolic_value_t count = extent[1 + inner];
  accrt_symbolic_value_t span = extent[0];
  if (accrt_symbolic_bounds_of(symbolic, count).maximum > 1) {
    const accrt_symbolic_value_t steps =
        accrt_symbolic_two(symbolic, ACCX_EXPR_SUB, count, constant(1));
    span = accrt_symbolic_two(symbolic, ACCX_EXPR_ADD, span,
                              accrt_symbolic_two(symbolic, ACCX_EXPR_MUL, steps, stride[inner]));
  }
  const accrt_symbolic_value_t first = are_disjoint(symbolic, extent[0], count, stride[inner]);
  const accrt_symbolic_value_t second =
      are_disjoint(symbolic, span, extent[1 + outer], stride[outer]);
  return accrt_symbolic_is_known(first, 1)
             ? second
             : accrt_symbolic_two(symbolic, ACCX_EXPR_AND, first, second);
}

/* Checks that the target rows of a copy do not overlap. Overlapping rows would have no defined
 * order, and their number alone would decide how long the device is busy. */
static accrt_status_t check_rows(accrt_plan_builder_t* builder, const accrt_plan_range_t* target,
                                 const accrt_symbolic_value_t extent[3],
                                 const accrt_symbolic_value_t stride[2]) {
  accrt_symbolic_t* symbolic = &builder->symbolic;
  accrt_symbolic_value_t holds = rows_are_disjoint(symbolic, extent, stride, 0, 1);
  if (accrt_symbolic_is_known(holds, 1))
    return ACCRT_OK;
  const accrt_symbolic_value_t exchanged = rows_are_disjoint(symbolic, extent, stride, 1, 0);
  if (accrt_symbolic_is_known(exchanged, 1))
    return ACCRT_OK;
  holds = accrt_symbolic_two(symbolic, ACCX_EXPR_OR, holds, exchanged);
  /* A copy of 0 bytes has no rows. */
  holds = accrt_symbolic_apply(symbolic, ACCX_EXPR_SELECT, target->size, holds, constant(1));
  return accrt_plan_check(builder, ACCRT_CHECK_ROWS, "target", target->slot->name, holds, extent[0],
                          stride[0], stride[1]);
}

static accrt_status_t copy_ranges(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                  const accx_copy_t* record, accrt_driver_copy_t* copy) {
  accrt_symbolic_value_t extent[3];
  accrt_symbolic_value_t source_stride[2];
  accrt_symbolic_value_t target_stride[2];
  ACCRT_TRY(copy_values(builder, frame, record, extent, source_stride, target_stride));
  /* The footprint covers rows and planes. The bytes of a row are contiguous. A row of 0 bytes
   * touches nothing. */
  accrt_symbolic_value_t size =
      accrt_plan_footprint(builder, 2, extent + 1, source_stride, extent[0]);
  const accrt_symbolic_value_t zero = constant(0);
  const accrt_symbolic_value_t source_size =
      accrt_symbolic_apply(&builder->symbolic, ACCX_EXPR_SELECT, extent[0], size, zero);
  size = accrt_plan_footprint(builder, 2, extent + 1, target_stride, extent[0]);
  const accrt_symbolic_value_t target_size =
      accrt_symbolic_apply(&builder->symbolic, ACCX_EXPR_SELECT, extent[0], size, zero);
  accrt_plan_range_t source;
  accrt_plan_range_t target;
  ACCRT_TRY(
      accrt_plan_resolve_range(builder, frame, &record->source, &source_size, "source", &source));
  ACCRT_TRY(
      accrt_plan_resolve_range(builder, frame, &record->target, &target_size, "target", &target));
  if (source.absent || target.absent) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "it copies '%s', which the call leaves out",
                      source.absent ? source.slot->name : target.slot->name);
  }
  source.access = ACCRT_KERNEL_ACCESS_READ;
  target.access = ACCRT_KERNEL_ACCESS_WRITE;
  accrt_status_t status = check_rows(builder, &target, extent, target_stride);
  if (status == ACCRT_OK)
    status = check_disjoint(builder, &source, &target);
  if (status == ACCRT_OK)
    status = accrt_plan_driver_range(builder, &source, &copy->source);
  if (status == ACCRT_OK)
    status = accrt_plan_driver_range(builder, &target, &copy->target);
  for (int i = 0; i < 3 && status == ACCRT_OK; ++i) {
    status = accrt_plan_driver_value(builder, extent[i], &copy->extent[i]);
  }
  for (int i = 0; i < 2 && status == ACCRT_OK; ++i) {
    status = accrt_plan_driver_value(builder, source_stride[i], &copy->source_stride_bytes[i]);
    if (status == ACCRT_OK) {
      status = accrt_plan_driver_value(builder, target_stride[i], &copy->target_stride_bytes[i]);
    }
  }
  return status;
}

bool accrt_plan_is_condition(const accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                             const accx_command_t* command) {
  if (command->opcode != ACCX_COMMAND_COPY)
    return false;
  const accx_copy_t* copy = accx_command_fields(command);
  const accx_expression_t* bytes =
      &accrt_function_scope(builder->program, frame->function)[copy->extent[0]];
  return bytes->op == ACCX_EXPR_CONSTANT && bytes->immediate == 0;
}

accrt_status_t accrt_plan_check_condition(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                          const accx_command_t* command) {
  const accx_copy_t* copy = accx_command_fields(command);
  const char* const what =
      command->name != 0 ? accrt_program_string(builder->program, command->name) : "copy";
  const uint32_t expressions[6] = {copy->extent[1],        copy->extent[2],
                                   copy->source_stride[0], copy->source_stride[1],
                                   copy->target_stride[0], copy->target_stride[1]};
  const accrt_symbolic_value_t zero = constant(0);
  accrt_symbolic_value_t values[6];
  accrt_plan_range_t range;
  accrt_status_t status =
      accrt_plan_resolve_range(builder, frame, &copy->source, &zero, "source", &range);
  if (status == ACCRT_OK)
    status = accrt_plan_resolve_range(builder, frame, &copy->target, &zero, "target", &range);
  for (int i = 0; i < 6 && status == ACCRT_OK; ++i)
    status = accrt_frame_value(builder, frame, expressions[i], what, &values[i]);
  if (status == ACCRT_OK)
    status = accrt_plan_check(builder, ACCRT_CHECK_DIMENSION, what, "", values[0], values[1],
                              values[2], values[3]);
  for (int i = 4; i < 6 && status == ACCRT_OK; ++i)
    status = accrt_plan_check(builder, ACCRT_CHECK_AT_LEAST, "target stride", "", values[i], zero,
                              zero, zero);
  return status;
}

static accrt_status_t lower_fill(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                 const accx_fill_t* record, accrt_driver_fill_t* fill) {
  accrt_plan_range_t target;
  ACCRT_TRY(accrt_plan_resolve_range(builder, frame, &record->target, NULL, "target", &target));
  if (target.absent)
    return ACCRT_FAIL(INVALID_ARGUMENT, "it fills '%s', which the call leaves out",
                      target.slot->name);
  target.access = ACCRT_KERNEL_ACCESS_WRITE;
  fill->pattern = record->pattern;
  fill->pattern_bytes = record->pattern_bytes;
  accrt_status_t status =
      accrt_plan_check(builder, ACCRT_CHECK_MULTIPLE, "target", target.slot->name, target.offset,
                       target.size, constant((int64_t)record->pattern_bytes), constant(0));
  return status != ACCRT_OK ? status : accrt_plan_driver_range(builder, &target, &fill->target);
}

accrt_status_t accrt_plan_lower(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                const accx_command_t* command, uint32_t* out_index) {
  accrt_driver_command_t result;
  memset(&result, 0, sizeof result);
  result.name = accrt_program_string(builder->program, command->name);
  accrt_status_t status = ACCRT_OK;
  switch (command->opcode) {
  case ACCX_COMMAND_DISPATCH:
    return lower_dispatch(builder, frame, command, out_index);
  case ACCX_COMMAND_COPY:
    result.opcode = ACCRT_DRIVER_COMMAND_COPY;
    if (command->name == 0)
      result.name = "copy";
    status = copy_ranges(builder, frame, accx_command_fields(command), &result.as.copy);
    break;
  case ACCX_COMMAND_FILL:
    result.opcode = ACCRT_DRIVER_COMMAND_FILL;
    if (command->name == 0)
      result.name = "fill";
    status = lower_fill(builder, frame, accx_command_fields(command), &result.as.fill);
    break;
  default: { /* MARKER */
    const accx_marker_t* marker = accx_command_fields(command);
    result.opcode = ACCRT_DRIVER_COMMAND_MARKER;
    result.name = accrt_program_string(builder->program, marker->text);
    break;
  }
  }
  return status != ACCRT_OK ? status : accrt_plan_append(builder, &result, out_index);
}
