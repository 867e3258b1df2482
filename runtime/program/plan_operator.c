/* runtime/program/plan_operator.c - a dispatch whose variant is a host operator: its workspace, and
 * its place in the order.
 *
 * All operators of a plan share one workspace behind the bundle's own part of the arena. It is as
 * large as the largest operator needs, and operators that use it follow one another. The
 * workspace's offset in the arena is known only at the end of planning. Until then ranges in it
 * count from 0.
 */
#include <string.h>

#include "runtime/drivers/common/operator.h"
#include "runtime/program/plan_builder.h"

/* Makes a range at the start of the arena, and the arena's binding if the plan lacks one. */
static accrt_status_t arena_range(accrt_plan_builder_t* builder, uint64_t size_bytes,
                                  accrt_driver_range_t* out_range) {
  accrt_frame_slot_t slot;
  memset(&slot, 0, sizeof slot);
  slot.kind = ACCRT_PLAN_ARENA;
  slot.name = "workspace";
  memset(out_range, 0, sizeof *out_range);
  out_range->access = ACCRT_KERNEL_ACCESS_READ_WRITE;
  out_range->offset.scalar = ACCRT_DRIVER_NONE;
  out_range->size_bytes.scalar = ACCRT_DRIVER_NONE;
  out_range->size_bytes.constant = size_bytes;
  return accrt_plan_use_binding(builder, &slot, out_range->access, &out_range->binding);
}

/* Notes a command whose workspace range moves behind the arena at the end. */
static accrt_status_t note_user(accrt_plan_builder_t* builder, uint32_t command) {
  const accrt_status_t status =
      ACCRT_GROW(builder->allocator, (size_t)builder->workspace_user_count + 1,
                 &builder->workspace_users, &builder->workspace_user_capacity);
  if (status == ACCRT_OK)
    builder->workspace_users[builder->workspace_user_count++] = command;
  return status;
}

static accrt_status_t zero(accrt_plan_builder_t* builder, const accrt_driver_range_t* workspace,
                           const char* name) {
  accrt_driver_command_t command;
  memset(&command, 0, sizeof command);
  command.opcode = ACCRT_DRIVER_COMMAND_FILL;
  command.name = name;
  command.as.fill.target = *workspace;
  command.as.fill.target.access = ACCRT_KERNEL_ACCESS_WRITE;
  command.as.fill.pattern_bytes = 1;
  uint32_t index = 0;
  accrt_status_t status = accrt_plan_append(builder, &command, &index);
  if (status == ACCRT_OK)
    status = note_user(builder, index);
  builder->predecessor_count = 0;
  return status != ACCRT_OK ? status : accrt_plan_add_predecessor(builder, index);
}

/* Asks for the workspace's size. The operator then follows the previous user of the workspace. */
static accrt_status_t take_workspace(accrt_plan_builder_t* builder, accrt_driver_invoke_t* invoke,
                                     const char* name) {
  memset(&invoke->workspace, 0, sizeof invoke->workspace);
  invoke->workspace.binding = ACCRT_DRIVER_NONE;
  invoke->workspace.offset.scalar = ACCRT_DRIVER_NONE;
  invoke->workspace.size_bytes.scalar = ACCRT_DRIVER_NONE;
  uint64_t size_bytes;
  accrt_status_t status =
      accrt_device_operator_workspace(builder->program->device, invoke->operation, invoke->params,
                                      invoke->params_size_bytes, &size_bytes);
  if (status != ACCRT_OK || size_bytes == 0)
    return status;
  if (size_bytes > builder->workspace_bytes)
    builder->workspace_bytes = size_bytes;
  if (builder->request->measure_only)
    return ACCRT_OK;
  status = arena_range(builder, size_bytes, &invoke->workspace);
  if (status == ACCRT_OK)
    status = accrt_plan_add_predecessor(builder, builder->workspace_last);
  const uint32_t traits = invoke->operation->definition->traits;
  if (status == ACCRT_OK && (traits & ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE) != 0)
    status = zero(builder, &invoke->workspace, name);
  return status;
}

accrt_status_t accrt_plan_append_operator(accrt_plan_builder_t* builder,
                                          accrt_driver_invoke_t* invoke, const char* name,
                                          uint32_t* out_index) {
  accrt_status_t status = take_workspace(builder, invoke, name);
  if (status != ACCRT_OK || builder->request->measure_only)
    return status;
  accrt_driver_command_t command;
  memset(&command, 0, sizeof command);
  command.opcode = ACCRT_DRIVER_COMMAND_OPERATOR;
  command.name = name;
  command.as.invoke = *invoke;
  status = accrt_plan_append(builder, &command, out_index);
  if (status != ACCRT_OK || invoke->workspace.binding == ACCRT_DRIVER_NONE)
    return status;
  builder->workspace_last = *out_index;
  return note_user(builder, *out_index);
}

accrt_status_t accrt_plan_place_workspace(accrt_plan_builder_t* builder) {
  if (builder->workspace_bytes == 0)
    return ACCRT_OK;
  uint64_t begin_bytes, end_bytes;
  if (!accrt_align_u64(builder->arena_bytes, ACCRT_STORAGE_ALIGN, &begin_bytes) ||
      !accrt_add_u64(begin_bytes, builder->workspace_bytes, &end_bytes) || end_bytes > INT64_MAX) {
    return ACCRT_FAIL(OVERFLOW,
                      "%" PRIu64 " bytes of transient memory and %" PRIu64
                      " of workspace for operators",
                      builder->arena_bytes, builder->workspace_bytes);
  }
  builder->arena_bytes = end_bytes;
  for (uint32_t i = 0; i < builder->workspace_user_count; ++i) {
    accrt_driver_command_t* command = &builder->commands[builder->workspace_users[i]];
    accrt_driver_range_t* range = command->opcode == ACCRT_DRIVER_COMMAND_OPERATOR
                                      ? &command->as.invoke.workspace
                                      : &command->as.fill.target;
    range->offset.constant = begin_bytes;
  }
  return ACCRT_OK;
}
