/* runtime/drivers/host/prepare.c - turns a driver command into one that is ready to run: values
 * resolved, work counted in units. It allocates nothing.
 */
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"

uint64_t accrt_host_value(const accrt_driver_value_t* value,
                          const accrt_driver_submission_t* submission) {
  if (value->scalar == ACCRT_DRIVER_NONE || submission == NULL)
    return value->constant;
  return value->constant + submission->scalars[value->scalar];
}

/* `null_base` 1: the address is 0 when the binding's is. */
static uint64_t resolve_range(const accrt_driver_range_t* range,
                              const accrt_driver_submission_t* submission, bool null_base) {
  const uint64_t offset = accrt_host_value(&range->offset, submission);
  if (range->binding == ACCRT_DRIVER_NONE || submission == NULL)
    return offset;
  const uint64_t base = submission->bindings[range->binding].address;
  return null_base && base == 0 ? 0 : base + offset;
}

static void patch_params(const accrt_driver_dispatch_t* dispatch,
                         const accrt_driver_submission_t* submission, unsigned char* params) {
  for (uint32_t i = 0; i < dispatch->patch_count; ++i) {
    const accrt_driver_patch_t* patch = &dispatch->patches[i];
    const uint64_t bits = patch->kind == ACCRT_DRIVER_PATCH_ADDRESS
                              ? resolve_range(&patch->range, submission, true)
                              : accrt_host_value(&patch->value, submission);
    memcpy(params + patch->offset_bytes, &bits, patch->size_bytes); /* low bytes: little-endian */
  }
}

static void prepare_dispatch(const host_device_t* device, const accrt_driver_dispatch_t* dispatch,
                             const accrt_driver_submission_t* submission, void* params,
                             host_dispatch_t* out_dispatch) {
  const accrt_kernel_def_t* definition = dispatch->kernel->definition;
  out_dispatch->entry = definition->entry;
  out_dispatch->environment = dispatch->kernel->environment;
  out_dispatch->local_bytes = definition->local_memory_size_bytes;
  out_dispatch->traits = definition->traits;
  accrt_kernel_dispatch_t* view = &out_dispatch->view;
  view->struct_size = (uint32_t)sizeof *view;
  for (int i = 0; i < 3; ++i) {
    view->workgroup_count[i] = (uint32_t)accrt_host_value(&dispatch->grid[i], submission);
  }
  view->params = params;
  view->params_size_bytes = dispatch->params_size_bytes;
  view->worker_count = device->concurrency;
  view->submission = submission == NULL ? 0 : submission->number;
  if (dispatch->params_size_bytes != 0) {
    memcpy(params, dispatch->params, dispatch->params_size_bytes);
    patch_params(dispatch, submission, params);
  }
}

static void prepare_copy(const accrt_driver_copy_t* copy,
                         const accrt_driver_submission_t* submission, host_copy_t* out_copy) {
  out_copy->source = resolve_range(&copy->source, submission, false);
  out_copy->target = resolve_range(&copy->target, submission, false);
  for (int i = 0; i < 3; ++i)
    out_copy->extent[i] = accrt_host_value(&copy->extent[i], submission);
  for (int i = 0; i < 2; ++i) {
    out_copy->source_stride[i] = accrt_host_value(&copy->source_stride_bytes[i], submission);
    out_copy->target_stride[i] = accrt_host_value(&copy->target_stride_bytes[i], submission);
  }
}

static uint64_t repeat_pattern(uint64_t pattern, uint32_t pattern_bytes) {
  for (uint32_t bytes = pattern_bytes; bytes < 8; bytes *= 2) {
    pattern &= (UINT64_C(1) << (8 * bytes)) - 1;
    pattern |= pattern << (8 * bytes);
  }
  return pattern;
}

void accrt_host_prepare(const host_device_t* device, const accrt_driver_command_t* command,
                        const accrt_driver_submission_t* submission, void* params,
                        host_command_t* out_command) {
  memset(out_command, 0, sizeof *out_command);
  out_command->kind = command->opcode;
  out_command->name = command->name;
  switch (command->opcode) {
  case ACCRT_DRIVER_COMMAND_DISPATCH:
    if (command->name == NULL)
      out_command->name = command->as.dispatch.kernel->definition->name;
    prepare_dispatch(device, &command->as.dispatch, submission, params, &out_command->as.dispatch);
    break;
  case ACCRT_DRIVER_COMMAND_COPY:
    prepare_copy(&command->as.copy, submission, &out_command->as.copy);
    break;
  case ACCRT_DRIVER_COMMAND_FILL:
    out_command->as.fill.target = resolve_range(&command->as.fill.target, submission, false);
    out_command->as.fill.size_bytes =
        accrt_host_value(&command->as.fill.target.size_bytes, submission);
    out_command->as.fill.pattern =
        repeat_pattern(command->as.fill.pattern, command->as.fill.pattern_bytes);
    break;
  default: /* a marker */
    break;
  }
}

/* ---- What changes at submission ---- */

void accrt_host_moving(const accrt_driver_command_t* source, const host_command_t* command,
                       host_moving_t* out_moving) {
  memset(out_moving, 0, sizeof *out_moving);
  switch (source->opcode) {
  case ACCRT_DRIVER_COMMAND_DISPATCH:
    out_moving->values[0] = (host_values_t){source->as.dispatch.grid, 3};
    break;
  case ACCRT_DRIVER_COMMAND_COPY:
    out_moving->values[0] = (host_values_t){source->as.copy.extent, 3};
    out_moving->values[1] = (host_values_t){source->as.copy.source_stride_bytes, 2};
    out_moving->values[2] = (host_values_t){source->as.copy.target_stride_bytes, 2};
    out_moving->ranges[0] = (host_address_t){&source->as.copy.source, &command->as.copy.source};
    out_moving->ranges[1] = (host_address_t){&source->as.copy.target, &command->as.copy.target};
    break;
  case ACCRT_DRIVER_COMMAND_FILL:
    out_moving->values[0] = (host_values_t){&source->as.fill.target.size_bytes, 1};
    out_moving->ranges[0] = (host_address_t){&source->as.fill.target, &command->as.fill.target};
    break;
  default:
    break;
  }
}

/* ---- Units ---- */

static void set_units(host_command_t* command, uint64_t items, uint64_t items_per_unit) {
  const uint64_t least = items / HOST_MAX_COMMAND_UNITS + 1;
  command->item_count = items;
  command->items_per_unit = items_per_unit < least ? least : items_per_unit;
  command->unit_count =
      (uint32_t)(items / command->items_per_unit + (items % command->items_per_unit != 0));
}

static accrt_status_t measure_dispatch(const host_device_t* device, host_command_t* command) {
  const uint32_t* count = command->as.dispatch.view.workgroup_count;
  uint64_t items = (uint64_t)count[0] * count[1];
  if (!accrt_mul_u64(items, count[2], &items)) {
    return accrt_host_fail(device->environment, ACCRT_ERROR_OVERFLOW, 0, NULL, "dispatch",
                           "grid of %u x %u x %u workgroups of kernel '%s' does not fit 64 bits",
                           count[0], count[1], count[2], command->name);
  }
  const bool serial = (command->as.dispatch.traits & ACCRT_KERNEL_TRAIT_SERIAL) != 0;
  set_units(command, items, serial && items != 0 ? items : 1);
  return ACCRT_OK;
}

static void measure_copy(host_command_t* command) {
  host_copy_t* copy = &command->as.copy;
  accrt_host_copy_simplify(copy);
  const uint64_t rows = copy->extent[1] * copy->extent[2];
  if (copy->extent[0] == 0 || rows == 0) {
    set_units(command, 0, 1);
  } else if (rows == 1) {
    set_units(command, copy->extent[0], HOST_COPY_UNIT_BYTES);
  } else {
    set_units(command, rows, HOST_COPY_UNIT_BYTES / copy->extent[0] + 1);
  }
}

accrt_status_t accrt_host_measure(const host_device_t* device, host_command_t* command) {
  switch (command->kind) {
  case ACCRT_DRIVER_COMMAND_DISPATCH:
    return measure_dispatch(device, command);
  case ACCRT_DRIVER_COMMAND_COPY:
    measure_copy(command);
    return ACCRT_OK;
  case ACCRT_DRIVER_COMMAND_FILL:
    set_units(command, command->as.fill.size_bytes, HOST_COPY_UNIT_BYTES);
    /* A unit starts at a multiple of the pattern. */
    command->items_per_unit = (command->items_per_unit + 7) & ~UINT64_C(7);
    command->unit_count =
        (uint32_t)((command->item_count + command->items_per_unit - 1) / command->items_per_unit);
    return ACCRT_OK;
  default:
    set_units(command, 0, 1);
    return ACCRT_OK;
  }
}
