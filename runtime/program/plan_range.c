/* runtime/program/plan_range.c - ranges, patched values and checks while a plan is made. It appends
 * no command. */
#include <string.h>

#include "runtime/program/plan_builder.h"

/* Budget steps for the search of one check among the last ones. */
#define CHECK_STEPS 16u

/* ---- Checks ---- */

static accrt_plan_value_t plan_value(accrt_symbolic_value_t value) {
  const accrt_plan_value_t result = {value.node == ACCX_NONE ? value.constant : 0, value.node, 0};
  return result;
}

/* True when the range of a check ends exactly at its limit: both are the same value. */
static bool ends_at(accrt_plan_builder_t* builder, const accrt_symbolic_value_t values[4]) {
  const accrt_symbolic_value_t end =
      accrt_symbolic_two(&builder->symbolic, ACCX_EXPR_ADD, values[0], values[1]);
  return end.node != ACCX_NONE && end.node == values[2].node;
}

/* True when the bounds of the values prove the check. */
static bool is_proved(accrt_plan_builder_t* builder, uint32_t kind,
                      const accrt_symbolic_value_t values[4]) {
  accrt_symbolic_bounds_t bounds[4];
  for (int i = 0; i < 4; ++i)
    bounds[i] = accrt_symbolic_bounds_of(&builder->symbolic, values[i]);
  int64_t end;
  switch (kind) {
  case ACCRT_CHECK_RANGE:
    if (bounds[0].minimum < 0 || bounds[1].minimum < 0)
      return false;
    return ends_at(builder, values) ||
           (!__builtin_add_overflow(bounds[0].maximum, bounds[1].maximum, &end) &&
            end <= bounds[2].minimum);
  case ACCRT_CHECK_GRID:
    return bounds[0].minimum >= 0 && bounds[0].maximum <= (int64_t)UINT32_MAX;
  case ACCRT_CHECK_AT_LEAST:
    return bounds[0].minimum >= bounds[1].maximum;
  case ACCRT_CHECK_ROWS:
    return bounds[0].minimum > 0;
  case ACCRT_CHECK_DIMENSION:
    return bounds[0].minimum >= 0 && bounds[1].minimum >= 0 && bounds[2].minimum >= 0 &&
           bounds[3].minimum >= 0;
  case ACCRT_CHECK_MULTIPLE:
    return bounds[2].minimum == bounds[2].maximum && bounds[2].minimum > 0 &&
           bounds[0].divisor % (uint64_t)bounds[2].minimum == 0 &&
           bounds[1].divisor % (uint64_t)bounds[2].minimum == 0;
  default:
    return false;
  }
}

static bool same_check(const accrt_plan_check_t* a, const accrt_plan_check_t* b) {
  return a->kind == b->kind && memcmp(a->values, b->values, sizeof a->values) == 0;
}

/* Looks for the same check among the last ones. Neighbouring commands often repeat checks, so a
 * short search finds nearly all repetitions. */
static bool is_repeated(const accrt_plan_builder_t* builder, const accrt_plan_check_t* check) {
  const uint32_t first = builder->check_count > 64 ? builder->check_count - 64 : 0;
  for (uint32_t i = first; i < builder->check_count; ++i) {
    if (same_check(&builder->checks[i], check))
      return true;
  }
  return false;
}

accrt_status_t accrt_plan_check(accrt_plan_builder_t* builder, uint32_t kind, const char* what,
                                const char* detail, accrt_symbolic_value_t a,
                                accrt_symbolic_value_t b, accrt_symbolic_value_t c,
                                accrt_symbolic_value_t d) {
  const accrt_symbolic_value_t values[4] = {a, b, c, d};
  accrt_plan_check_t check;
  memset(&check, 0, sizeof check);
  check.kind = kind;
  check.command = ACCX_NONE;
  check.what = what;
  check.detail = detail;
  check.name = "";
  bool is_known = true;
  int64_t known[4];
  for (int i = 0; i < 4; ++i) {
    if (values[i].fault != ACCRT_EXPR_OK) {
      const accrt_expr_value_t value = {0, values[i].fault, values[i].symbol};
      const char* const name =
          value.symbol == ACCX_NONE
              ? ""
              : accrt_program_string(builder->program, builder->tables->symbols[value.symbol].name);
      return accrt_expr_fail(value, name, what);
    }
    check.values[i] = plan_value(values[i]);
    known[i] = values[i].constant;
    is_known = is_known && values[i].node == ACCX_NONE;
  }
  if (builder->symbolic.status != ACCRT_OK || builder->request->measure_only)
    return builder->symbolic.status;
  if (is_known)
    return accrt_plan_check_values(&check, known);
  if (kind != ACCRT_CHECK_DIMENSION)
    check.command = builder->command_count;
  if (is_proved(builder, kind, values))
    return ACCRT_OK;
  const accrt_status_t charged = accrt_charge(CHECK_STEPS);
  if (charged != ACCRT_OK || is_repeated(builder, &check))
    return charged;
  void* checks = builder->checks;
  const accrt_status_t status =
      accrt_grow_array(builder->allocator, (size_t)builder->check_count + 1, sizeof check,
                       &builder->check_capacity, &checks);
  builder->checks = checks;
  if (status == ACCRT_OK)
    builder->checks[builder->check_count++] = check;
  return status;
}

accrt_symbolic_value_t accrt_plan_footprint(accrt_plan_builder_t* builder, uint32_t count,
                                            const accrt_symbolic_value_t* extents,
                                            const accrt_symbolic_value_t* strides,
                                            accrt_symbolic_value_t last) {
  accrt_symbolic_t* symbolic = &builder->symbolic;
  const accrt_symbolic_value_t zero = accrt_symbolic_constant(0);
  const accrt_symbolic_value_t one = accrt_symbolic_constant(1);
  accrt_symbolic_value_t sum = last;
  accrt_symbolic_value_t any_zero = zero;
  for (uint32_t i = 0; i < count; ++i) {
    const accrt_symbolic_value_t steps =
        accrt_symbolic_two(symbolic, ACCX_EXPR_SUB, extents[i], one);
    sum = accrt_symbolic_two(symbolic, ACCX_EXPR_ADD, sum,
                             accrt_symbolic_two(symbolic, ACCX_EXPR_MUL, steps, strides[i]));
    if (extents[i].fault == ACCRT_EXPR_OK &&
        accrt_symbolic_bounds_of(symbolic, extents[i]).minimum > 0)
      continue;
    const accrt_symbolic_value_t is_zero =
        accrt_symbolic_two(symbolic, ACCX_EXPR_EQ, extents[i], zero);
    any_zero = accrt_symbolic_is_known(any_zero, 0)
                   ? is_zero
                   : accrt_symbolic_two(symbolic, ACCX_EXPR_OR, any_zero, is_zero);
  }
  return accrt_symbolic_apply(symbolic, ACCX_EXPR_SELECT, any_zero, zero, sum);
}

/* ---- Ranges ---- */

accrt_status_t accrt_plan_resolve_range(accrt_plan_builder_t* builder, const accrt_frame_t* frame,
                                        const accx_range_t* range,
                                        const accrt_symbolic_value_t* size, const char* what,
                                        accrt_plan_range_t* out_range) {
  memset(out_range, 0, sizeof *out_range);
  const accrt_frame_slot_t* slot = &frame->slots[range->slot];
  out_range->slot = slot;
  out_range->access = range->access;
  out_range->absent = slot->absent;
  out_range->offset = accrt_symbolic_constant(0);
  out_range->size = accrt_symbolic_constant(0);
  if (slot->absent)
    return ACCRT_OK;
  if ((range->access & ACCRT_KERNEL_ACCESS_WRITE) != 0 && !slot->writable) {
    return ACCRT_FAIL(INVALID_FORMAT, "%s: '%s' may only be read", what, slot->name);
  }
  accrt_symbolic_value_t offset;
  ACCRT_TRY(accrt_frame_value(builder, frame, range->offset, what, &offset));
  if (size != NULL) {
    out_range->size = *size;
  } else if (range->size != ACCX_NONE) {
    ACCRT_TRY(accrt_frame_value(builder, frame, range->size, what, &out_range->size));
  } else {
    out_range->size = accrt_symbolic_two(&builder->symbolic, ACCX_EXPR_SUB, slot->size, offset);
  }
  out_range->offset = accrt_symbolic_two(&builder->symbolic, ACCX_EXPR_ADD, slot->base, offset);
  return accrt_plan_check(builder, ACCRT_CHECK_RANGE, what, slot->name, offset, out_range->size,
                          slot->size, accrt_symbolic_constant(0));
}

static uint32_t* binding_place(accrt_plan_builder_t* builder, const accrt_frame_slot_t* slot) {
  switch (slot->kind) {
  case ACCRT_PLAN_ARGUMENT:
    return &builder->argument_bindings[slot->index];
  case ACCRT_PLAN_COMPONENT:
    return &builder->component_bindings[slot->index];
  case ACCRT_PLAN_STATE:
    return &builder->state_bindings[slot->index];
  default:
    return &builder->arena_binding;
  }
}

accrt_status_t accrt_plan_use_binding(accrt_plan_builder_t* builder, const accrt_frame_slot_t* slot,
                                      uint32_t access, uint32_t* out_binding) {
  uint32_t* const place = binding_place(builder, slot);
  if (*place == 0) {
    void* bindings = builder->bindings;
    ACCRT_TRY(accrt_grow_array(builder->allocator, (size_t)builder->binding_count + 1,
                               sizeof *builder->bindings, &builder->binding_capacity, &bindings));
    builder->bindings = bindings;
    builder->bindings[builder->binding_count].kind = slot->kind;
    builder->bindings[builder->binding_count].index = slot->index;
    *place = ++builder->binding_count;
  }
  builder->bindings[*place - 1].access |= access;
  *out_binding = *place - 1;
  return ACCRT_OK;
}

/* Finds or makes the scalar with a node's value. */
static accrt_status_t use_scalar(accrt_plan_builder_t* builder, uint32_t node,
                                 uint32_t* out_scalar) {
  ACCRT_TRY(ACCRT_GROW(builder->allocator, builder->symbolic.count, &builder->scalar_of_node,
                       &builder->node_capacity));
  if (builder->scalar_of_node[node] == 0) {
    void* scalars = builder->scalars;
    ACCRT_TRY(accrt_grow_array(builder->allocator, (size_t)builder->scalar_count + 1,
                               sizeof *builder->scalars, &builder->scalar_capacity, &scalars));
    builder->scalars = scalars;
    builder->scalars[builder->scalar_count++] = node;
    builder->scalar_of_node[node] = builder->scalar_count;
  }
  *out_scalar = builder->scalar_of_node[node] - 1;
  return ACCRT_OK;
}

accrt_status_t accrt_plan_driver_value(accrt_plan_builder_t* builder, accrt_symbolic_value_t value,
                                       accrt_driver_value_t* out_value) {
  out_value->constant = value.node == ACCX_NONE ? (uint64_t)value.constant : 0;
  out_value->scalar = ACCRT_DRIVER_NONE;
  out_value->reserved = 0;
  if (builder->symbolic.status != ACCRT_OK)
    return builder->symbolic.status;
  return value.node == ACCX_NONE ? ACCRT_OK : use_scalar(builder, value.node, &out_value->scalar);
}

accrt_status_t accrt_plan_driver_range(accrt_plan_builder_t* builder,
                                       const accrt_plan_range_t* range,
                                       accrt_driver_range_t* out_range) {
  out_range->access = range->access;
  ACCRT_TRY(accrt_plan_use_binding(builder, range->slot, range->access, &out_range->binding));
  ACCRT_TRY(accrt_plan_driver_value(builder, range->offset, &out_range->offset));
  return accrt_plan_driver_value(builder, range->size, &out_range->size_bytes);
}
