/* runtime/program/plan.c - making a plan: from a request to a driver list, and its release.
 *
 * A plan contains no address. Arguments, constants, states and the arena come from the binding
 * table of each execution. All commands of a function, host operators included, are one driver
 * list. The driver splits that list where it must.
 */
#include <string.h>

#include "runtime/program/plan_builder.h"

/* ---- Builder ---- */

static accrt_status_t builder_init(accrt_plan_builder_t* builder,
                                   const accrt_plan_request_t* request, accrt_plan_t* plan) {
  memset(builder, 0, sizeof *builder);
  builder->request = request;
  builder->program = request->program;
  builder->tables = request->program->tables;
  builder->allocator = request->program->allocator;
  builder->plan = plan;
  builder->workspace_last = ACCX_NONE;
  accrt_symbolic_init(&builder->symbolic, builder->allocator);
  void* memory;
  ACCRT_TRY(accrt_charge(
      ((uint64_t)builder->tables->component_count + builder->tables->state_count) / 8));
  ACCRT_TRY(accrt_alloc_array(builder->allocator,
                              accrt_function_argument_count(builder->program, request->function),
                              sizeof *builder->argument_bindings, &memory));
  builder->argument_bindings = memory;
  ACCRT_TRY(accrt_alloc_array(builder->allocator, builder->tables->component_count,
                              sizeof *builder->component_bindings, &memory));
  builder->component_bindings = memory;
  accrt_status_t status = accrt_alloc_array(builder->allocator, builder->tables->state_count,
                                            sizeof *builder->state_bindings, &memory);
  builder->state_bindings = memory;
  return status;
}

static void builder_deinit(accrt_plan_builder_t* builder) {
  const accrt_allocator_t* allocator = builder->allocator;
  const uint32_t argument_count =
      accrt_function_argument_count(builder->program, builder->request->function);
  accrt_symbolic_deinit(&builder->symbolic);
  accrt_free_array(allocator, builder->commands, builder->command_capacity,
                   sizeof *builder->commands);
  accrt_free_array(allocator, builder->bindings, builder->binding_capacity,
                   sizeof *builder->bindings);
  accrt_free_array(allocator, builder->checks, builder->check_capacity, sizeof *builder->checks);
  accrt_free_array(allocator, builder->patches, builder->patch_capacity, sizeof *builder->patches);
  accrt_free_array(allocator, builder->scalars, builder->scalar_capacity, sizeof *builder->scalars);
  accrt_free_array(allocator, builder->scalar_of_node, builder->node_capacity,
                   sizeof *builder->scalar_of_node);
  accrt_free_array(allocator, builder->predecessors, builder->predecessor_capacity,
                   sizeof *builder->predecessors);
  accrt_free_array(allocator, builder->workspace_users, builder->workspace_user_capacity,
                   sizeof *builder->workspace_users);
  accrt_free_array(allocator, builder->argument_bindings, argument_count,
                   sizeof *builder->argument_bindings);
  accrt_free_array(allocator, builder->component_bindings, builder->tables->component_count,
                   sizeof *builder->component_bindings);
  accrt_free_array(allocator, builder->state_bindings, builder->tables->state_count,
                   sizeof *builder->state_bindings);
}

/* ---- From builder to plan ---- */

/* Copies an array to the plan's zone. */
static accrt_status_t copy_to_zone(accrt_plan_t* plan, const void* array, size_t count,
                                   size_t element_bytes, void** out_copy) {
  const accrt_status_t status = accrt_zone_take(&plan->zone, count, element_bytes, out_copy);
  if (status == ACCRT_OK && count != 0)
    memcpy(*out_copy, array, count * element_bytes);
  return status;
}

static void mark(uint8_t* needed, uint32_t node) {
  if (node != ACCX_NONE)
    needed[node] = 1;
}

/* Marks every node that scalars and checks need: 2 for roots, 1 for the nodes below them. */
static void mark_nodes(const accrt_plan_builder_t* builder, uint8_t* needed) {
  for (uint32_t i = 0; i < builder->scalar_count; ++i)
    needed[builder->scalars[i]] = 2;
  for (uint32_t i = 0; i < builder->check_count; ++i) {
    for (int v = 0; v < 4; ++v) {
      if (builder->checks[i].values[v].node != ACCX_NONE)
        needed[builder->checks[i].values[v].node] = 2;
    }
  }
  for (uint32_t i = builder->symbolic.count; i-- > 0;) {
    const accx_expression_t* node = &builder->symbolic.nodes[i];
    if (!needed[i])
      continue;
    const uint32_t operands[3] = {node->a, node->b, node->c};
    for (uint32_t o = 0; o < accx_expression_operands(node->op); ++o) {
      if (!needed[operands[o]])
        mark(needed, operands[o]);
    }
  }
}

static uint32_t renumber(const uint32_t* numbers, uint32_t node) {
  return node == ACCX_NONE ? ACCX_NONE : numbers[node];
}

/* Copies the needed nodes in order. `numbers` gets their new indices. */
static void copy_nodes(const accrt_plan_builder_t* builder, const uint8_t* needed,
                       uint32_t* numbers) {
  accrt_plan_t* plan = builder->plan;
  uint32_t count = 0;
  uint32_t root = 0;
  for (uint32_t i = 0; i < builder->symbolic.count; ++i) {
    if (!needed[i])
      continue;
    accx_expression_t node = builder->symbolic.nodes[i];
    node.a = renumber(numbers, node.a);
    node.b = renumber(numbers, node.b);
    node.c = renumber(numbers, node.c);
    numbers[i] = count;
    plan->nodes[count++] = node;
    if (needed[i] == 2)
      plan->roots[root++] = numbers[i];
  }
}

static accrt_status_t copy_needed(accrt_plan_builder_t* builder, const uint8_t* needed,
                                  uint32_t* numbers) {
  accrt_plan_t* plan = builder->plan;
  for (uint32_t i = 0; i < builder->symbolic.count; ++i) {
    plan->node_count += needed[i] != 0;
    plan->root_count += needed[i] == 2;
  }
  void* memory;
  ACCRT_TRY(accrt_zone_take(&plan->zone, plan->node_count, sizeof *plan->nodes, &memory));
  plan->nodes = memory;
  ACCRT_TRY(accrt_zone_take(&plan->zone, plan->root_count, sizeof *plan->roots, &memory));
  plan->roots = memory;
  copy_nodes(builder, needed, numbers);
  ACCRT_TRY(
      copy_to_zone(plan, builder->scalars, builder->scalar_count, sizeof *plan->scalars, &memory));
  plan->scalars = memory;
  plan->scalar_count = builder->scalar_count;
  for (uint32_t i = 0; i < plan->scalar_count; ++i)
    plan->scalars[i] = numbers[plan->scalars[i]];
  ACCRT_TRY(
      copy_to_zone(plan, builder->checks, builder->check_count, sizeof *plan->checks, &memory));
  plan->checks = memory;
  plan->check_count = builder->check_count;
  for (uint32_t i = 0; i < plan->check_count; ++i) {
    accrt_plan_check_t* check = &plan->checks[i];
    if (check->command < builder->command_count)
      check->name = builder->commands[check->command].name;
    for (int v = 0; v < 4; ++v)
      check->values[v].node = renumber(numbers, check->values[v].node);
  }
  return ACCRT_OK;
}

/* Copies to the plan only the nodes that calls need. */
static accrt_status_t copy_values(accrt_plan_builder_t* builder) {
  const size_t count = builder->symbolic.count;
  void* needed;
  ACCRT_TRY(accrt_alloc_array(builder->allocator, count, 1, &needed));
  void* numbers;
  accrt_status_t status = accrt_alloc_array(builder->allocator, count, sizeof(uint32_t), &numbers);
  if (status == ACCRT_OK && count != 0)
    mark_nodes(builder, needed);
  if (status == ACCRT_OK)
    status = copy_needed(builder, needed, numbers);
  accrt_free_array(builder->allocator, needed, count, 1);
  accrt_free_array(builder->allocator, numbers, count, sizeof(uint32_t));
  return status;
}

accrt_driver_list_info_t accrt_plan_list_info(const accrt_plan_t* plan) {
  return (accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                    .command_count = plan->command_count,
                                    .commands = plan->commands,
                                    .binding_count = plan->binding_count,
                                    .scalar_count = plan->scalar_count,
                                    .binding_flags = plan->binding_flags,
                                    .name = accrt_function_name(plan->program, plan->function)};
}

static accrt_status_t create_list(accrt_plan_builder_t* builder) {
  accrt_plan_t* plan = builder->plan;
  if (plan->command_count == 0)
    return ACCRT_OK;
  accrt_device_t* device = builder->program->device;
  void* memory;
  ACCRT_TRY(accrt_zone_take(&plan->zone, plan->binding_count, sizeof(uint32_t), &memory));
  uint32_t* flags = memory;
  /* Every binding except a call's arguments stays the same between calls. */
  for (uint32_t i = 0; i < plan->binding_count; ++i)
    flags[i] = plan->bindings[i].kind != ACCRT_PLAN_ARGUMENT ? ACCRT_DRIVER_BINDING_STABLE : 0;
  plan->binding_flags = flags;
  const accrt_driver_list_info_t info = accrt_plan_list_info(plan);
  return accrt_device_driver_table(device)->list_create(accrt_device_driver_device(device), &info,
                                                        &plan->list);
}

static accrt_status_t finish(accrt_plan_builder_t* builder) {
  accrt_plan_t* plan = builder->plan;
  void* memory;
  ACCRT_TRY(copy_to_zone(plan, builder->commands, builder->command_count, sizeof *plan->commands,
                         &memory));
  plan->commands = memory;
  plan->command_count = builder->command_count;
  ACCRT_TRY(copy_to_zone(plan, builder->bindings, builder->binding_count, sizeof *plan->bindings,
                         &memory));
  plan->bindings = memory;
  plan->binding_count = builder->binding_count;
  accrt_status_t status = copy_values(builder);
  return status != ACCRT_OK ? status : create_list(builder);
}

/* The allocation size of each result: room for each call of the plan. A dimension that is negative
 * in all of them has no elements here: each call is refused. */
static accrt_status_t size_results(accrt_plan_builder_t* builder, const accrt_frame_t* frame) {
  const uint32_t count = frame->record->result_count;
  void* memory;
  ACCRT_TRY(
      accrt_zone_take(&builder->plan->zone, count, sizeof *builder->plan->result_bytes, &memory));
  builder->plan->result_bytes = memory;
  const accx_argument_t* results =
      accrt_function_arguments(builder->program, frame->function) + frame->record->input_count;
  for (uint32_t i = 0; i < count; ++i) {
    const accx_type_t* type = &results[i].type;
    int64_t shape[ACCX_MAX_RANK] = {0};
    bool fits = true;
    for (uint32_t d = 0; d < type->rank; ++d) {
      const accrt_symbolic_value_t size = frame->values[type->dims[d]];
      fits = fits && size.fault == ACCRT_EXPR_OK;
      shape[d] = accrt_symbolic_bounds_of(&builder->symbolic, size).maximum;
      if (shape[d] < 0)
        shape[d] = 0;
    }
    if (!fits ||
        !accrt_shape_bytes(type->dtype, type->rank, shape, &builder->plan->result_bytes[i])) {
      return ACCRT_FAIL(OVERFLOW,
                        "result '%s': its size cannot be computed or does not fit 63 bits",
                        accrt_program_string(builder->program, results[i].name));
    }
  }
  return ACCRT_OK;
}

static accrt_status_t build(accrt_plan_builder_t* builder) {
  accrt_frame_t frame;
  accrt_status_t status = accrt_frame_enter(builder, &frame);
  if (status == ACCRT_OK)
    status = size_results(builder, &frame);
  if (status == ACCRT_OK)
    status = accrt_plan_flatten(builder, &frame);
  accrt_frame_leave(&frame);
  if (status == ACCRT_OK)
    status = builder->symbolic.status;
  if (status == ACCRT_OK)
    status = accrt_plan_place_workspace(builder);
  builder->plan->arena_bytes = builder->arena_bytes;
  if (status != ACCRT_OK || builder->request->measure_only)
    return status;
  return finish(builder);
}

static const accrt_budget_t no_budget = ACCRT_BUDGET_INIT;

accrt_status_t accrt_plan_create(const accrt_plan_request_t* request, accrt_plan_t** out_plan) {
  *out_plan = NULL;
  accrt_meter_t meter;
  accrt_plan_t* plan;
  ACCRT_TRY(ACCRT_NEW(request->program->allocator, &plan));
  accrt_object_init(&plan->object);
  plan->program = request->program;
  plan->function = request->function;
  accrt_zone_init(&plan->zone, request->program->allocator);
  accrt_plan_builder_t builder;
  accrt_meter_begin(&meter, request->budget != NULL ? request->budget : &no_budget, "planning",
                    accrt_function_name(request->program, request->function),
                    ACCRT_METER_PLAN_STEPS, ACCRT_METER_PLAN_BYTES);
  accrt_meter_limit(&meter, request->timeout_ns);
  accrt_status_t status = builder_init(&builder, request, plan);
  if (status == ACCRT_OK)
    status = build(&builder);
  if (status != ACCRT_OK) {
    accrt_error_prefix("function '%s'", accrt_function_name(request->program, request->function));
  }
  builder_deinit(&builder);
  accrt_meter_end(&meter);
  if (status == ACCRT_OK) {
    *out_plan = plan;
    plan = NULL;
  }
  accrt_plan_release(plan);
  return status;
}

void accrt_plan_release(accrt_plan_t* plan) {
  if (plan == NULL || !accrt_object_release(&plan->object))
    return;
  accrt_pieces_free(plan->program->device, &plan->divided);
  if (plan->list != NULL)
    accrt_device_driver_table(plan->program->device)->list_destroy(plan->list);
  accrt_zone_deinit(&plan->zone);
  accrt_free(plan->program->allocator, plan, sizeof *plan);
}
