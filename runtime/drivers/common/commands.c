/* runtime/drivers/common/commands.c - command lists: their life, and recording with a binding
 * table. It may not know how lists are submitted (commands_submit.c), or how streams or drivers run
 * them.
 *
 * What depends on bindings is written down while recording: for each binding how far its ranges
 * reach (so that a submission checks one number for each), and the few facts that only addresses
 * can tell (copies that may overlap, fills' alignment).
 */
#include <string.h>

#include "runtime/core/pack.h"
#include "runtime/drivers/common/commands.h"
#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/operator.h"
#include "runtime/drivers/common/value.h"

#define MAX_BINDINGS 65535u
#define MAX_COMMANDS 0x7FFFFFFFu
#define WORKSPACE_ALIGN 256u /* of an operator's, as accrt/kernel.h promises */

/* ---- Life ---- */

accrt_status_t accrt_commands_create(accrt_device_t* device, uint32_t binding_count,
                                     accrt_commands_t** out_commands) {
  if (out_commands != NULL)
    *out_commands = NULL;
  ACCRT_ENTER(out_commands, device);
  if (binding_count > MAX_BINDINGS)
    return ACCRT_FAIL(INVALID_ARGUMENT, "binding_count %" PRIu32 " is above %u", binding_count,
                      MAX_BINDINGS);
  void* memory;
  const accrt_allocator_t* allocator = &device->instance->allocator;
  ACCRT_TRY(accrt_alloc(allocator, sizeof(accrt_commands_t), &memory));
  accrt_commands_t* commands = memory;
  accrt_status_t status =
      accrt_alloc_array(allocator, binding_count, sizeof *commands->needs, &memory);
  if (status != ACCRT_OK) {
    accrt_free(allocator, commands, sizeof *commands);
    return status;
  }
  accrt_object_init(&commands->object);
  commands->device = accrt_device_ref(device);
  commands->instance = device->instance;
  commands->binding_count = binding_count;
  commands->needs = memory;
  *out_commands = commands;
  return ACCRT_OK;
}

static void destroy(accrt_zombie_t* zombie) {
  accrt_commands_t* commands = (accrt_commands_t*)zombie;
  const accrt_allocator_t* allocator = &commands->instance->allocator;
  accrt_pieces_free(commands->device, &commands->divided);
  if (commands->list != NULL)
    commands->device->table->list_destroy(commands->list);
  /* After the list, which calls the destroy functions of its operators. */
  for (size_t i = 0; i < commands->pack_count; ++i)
    accrt_kernel_pack_unref(commands->packs[i]);
  for (size_t i = 0; i < commands->blob_count; ++i)
    accrt_free(allocator, commands->blobs[i].memory, commands->blobs[i].size_bytes);
  accrt_free_array(allocator, commands->blobs, commands->blob_capacity, sizeof *commands->blobs);
  accrt_free_array(allocator, commands->commands, commands->capacity, sizeof *commands->commands);
  accrt_free_array(allocator, commands->ranges, commands->range_capacity, sizeof *commands->ranges);
  accrt_free_array(allocator, commands->checks, commands->check_capacity, sizeof *commands->checks);
  accrt_free_array(allocator, commands->packs, commands->pack_capacity, sizeof *commands->packs);
  accrt_free_array(allocator, commands->buffers, commands->buffer_capacity,
                   sizeof *commands->buffers);
  accrt_free_array(allocator, commands->needs, commands->binding_count, sizeof *commands->needs);
  accrt_free(allocator, commands, sizeof *commands);
}

void accrt_commands_ref(accrt_commands_t* commands) {
  accrt_object_retain(&commands->object);
}

void accrt_commands_unref(accrt_commands_t* commands) {
  if (commands == NULL || !accrt_object_release(&commands->object))
    return;
  accrt_instance_t* instance = commands->instance;
  /* Nothing in flight needs these any more. */
  for (size_t i = 0; i < commands->buffer_count; ++i)
    accrt_buffer_unref(commands->buffers[i]);
  /* The driver's list, and the packs of its kernels, when it is safe. */
  commands->zombie.destroy = destroy;
  accrt_dispose(instance, &commands->zombie);
}

accrt_commands_t* accrt_commands_retain(accrt_commands_t* commands) {
  if (commands == NULL || accrt_forked())
    return commands;
  accrt_object_retain(&commands->object);
  (void)accrt_device_ref(commands->device);
  return commands;
}

void accrt_commands_release(accrt_commands_t* commands) {
  if (commands == NULL || accrt_forked())
    return;
  accrt_device_t* device = commands->device;
  accrt_commands_unref(commands);
  accrt_device_unref(device);
}

/* ---- Recording ---- */

/* What one record call adds; committed as a whole or not at all. */
typedef struct addition {
  accrt_driver_command_t command;
  blob_t blob;
  uint32_t* predecessors; /* inside the blob */
  accrt_kernel_pack_t* pack;
  bound_range_t* ranges;
  uint32_t range_count;
  accrt_buffer_t* const* buffers;
  uint32_t buffer_count;
  bool late;
  late_check_t check;
} addition_t;

static accrt_status_t enter_recording(accrt_commands_t* commands, const char* function,
                                      uint32_t* out_index) {
  if (out_index != NULL)
    *out_index = 0;
  ACCRT_ENTER_AS(function, commands);
  return ACCRT_OK;
}

/* Inside. */
static accrt_status_t check_open(const accrt_commands_t* commands) {
  if (commands->finalized)
    return ACCRT_FAIL(INVALID_STATE, "the list is finalized and does not change any more");
  if (commands->count >= MAX_COMMANDS)
    return ACCRT_FAIL(OUT_OF_RANGE, "a list has at most %u commands", MAX_COMMANDS);
  return ACCRT_OK;
}

/* First lines of a function that records. */
#define ENTER_RECORDING(commands, out_index)                                                       \
  ACCRT_TRY(enter_recording((commands), ACCRT_THIS_FUNCTION, (out_index)));                        \
  ACCRT_GUARD(&(commands)->guard, "command list");                                                 \
  ACCRT_TRY(check_open(commands))

static accrt_status_t check_predecessors(const accrt_commands_t* commands,
                                         const accrt_predecessors_t* given, uint32_t* out_count) {
  *out_count = 0;
  if (given != NULL && given->reserved != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "predecessors->reserved is %" PRIu32 ", not 0",
                      given->reserved);
  if (given == NULL || given->count == ACCRT_AFTER_PREVIOUS) {
    *out_count = commands->count > 0 ? 1 : 0;
    return ACCRT_OK;
  }
  *out_count = given->count;
  if (given->count > 0 && given->commands == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%" PRIu32 " predecessors, and no list of them",
                      given->count);
  for (uint32_t i = 0; i < given->count; ++i) {
    if (given->commands[i] >= commands->count) {
      return ACCRT_FAIL(OUT_OF_RANGE,
                        "predecessor %" PRIu32 " of command %zu, of which %zu are recorded",
                        given->commands[i], commands->count, commands->count);
    }
  }
  return ACCRT_OK;
}

/* The command's own memory: 16-aligned parts one after the other. */
static accrt_status_t make_blob(accrt_commands_t* commands, addition_t* addition,
                                size_t extra_bytes, const accrt_predecessors_t* given) {
  uint32_t count;
  ACCRT_TRY(check_predecessors(commands, given, &count));
  const size_t list_bytes = ((size_t)count * sizeof(uint32_t) + 15u) & ~(size_t)15u;
  addition->blob.size_bytes = list_bytes + extra_bytes;
  ACCRT_TRY(accrt_alloc(&commands->instance->allocator, addition->blob.size_bytes,
                        &addition->blob.memory));
  /* What was asked for comes first, the predecessors behind it. */
  addition->predecessors =
      count > 0 ? (uint32_t*)(void*)((char*)addition->blob.memory + extra_bytes) : NULL;
  addition->command.predecessor_count = count;
  addition->command.predecessors = addition->predecessors;
  if (count > 0 && given != NULL && given->count != ACCRT_AFTER_PREVIOUS) {
    memcpy(addition->predecessors, given->commands, count * sizeof(uint32_t));
  } else if (count > 0) {
    addition->predecessors[0] = (uint32_t)commands->count - 1;
  }
  return ACCRT_OK;
}

static bool has_pack(const accrt_commands_t* commands, const accrt_kernel_pack_t* pack) {
  for (size_t i = 0; i < commands->pack_count; ++i) {
    if (commands->packs[i] == pack)
      return true;
  }
  return false;
}

static bool has_buffer(const accrt_commands_t* commands, const accrt_buffer_t* buffer) {
  for (size_t i = 0; i < commands->buffer_count; ++i) {
    if (commands->buffers[i] == buffer)
      return true;
  }
  return false;
}

static accrt_status_t reserve(accrt_commands_t* commands, const addition_t* addition) {
  const accrt_allocator_t* allocator = &commands->instance->allocator;
  void* pointer;
  accrt_status_t status;
#define GROW(array, capacity, needed)                                                              \
  pointer = commands->array;                                                                       \
  status = accrt_grow_array(allocator, (needed), sizeof *commands->array, &commands->capacity,     \
                            &pointer);                                                             \
  commands->array = pointer;                                                                       \
  if (status != ACCRT_OK)                                                                          \
  return status
  GROW(commands, capacity, commands->count + 1);
  GROW(blobs, blob_capacity, commands->blob_count + 1);
  GROW(ranges, range_capacity, commands->range_count + addition->range_count);
  GROW(checks, check_capacity, commands->check_count + 1);
  GROW(packs, pack_capacity, commands->pack_count + 1);
  GROW(buffers, buffer_capacity, commands->buffer_count + addition->buffer_count);
#undef GROW
  return ACCRT_OK;
}

static void add_ranges(accrt_commands_t* commands, const addition_t* addition) {
  for (uint32_t i = 0; i < addition->range_count; ++i) {
    const bound_range_t* range = &addition->ranges[i];
    const uint64_t end = range->offset_bytes + range->size_bytes; /* checked by bind_range */
    need_t* need = &commands->needs[range->binding];
    if (need->size_bytes < end)
      need->size_bytes = end;
    const uint32_t opcode = addition->command.opcode;
    need->reached |= opcode != ACCRT_DRIVER_COMMAND_COPY;
    need->by_kernel |= opcode != ACCRT_DRIVER_COMMAND_COPY && opcode != ACCRT_DRIVER_COMMAND_FILL;
    commands->ranges[commands->range_count++] = *range;
  }
}

/* Takes over the blob. Fails before anything is changed. */
static accrt_status_t commit(accrt_commands_t* commands, addition_t* addition,
                             uint32_t* out_index) {
  const accrt_status_t status = reserve(commands, addition);
  if (status != ACCRT_OK) {
    accrt_free(&commands->instance->allocator, addition->blob.memory, addition->blob.size_bytes);
    return status;
  }
  const uint32_t index = (uint32_t)commands->count;
  commands->commands[commands->count++] = addition->command;
  if (addition->blob.memory != NULL)
    commands->blobs[commands->blob_count++] = addition->blob;
  if (addition->late)
    commands->checks[commands->check_count++] = addition->check;
  add_ranges(commands, addition);
  if (addition->pack != NULL && !has_pack(commands, addition->pack)) {
    accrt_kernel_pack_ref(addition->pack);
    commands->packs[commands->pack_count++] = addition->pack;
  }
  for (uint32_t i = 0; i < addition->buffer_count; ++i) {
    if (!has_buffer(commands, addition->buffers[i])) {
      accrt_buffer_ref(addition->buffers[i]);
      commands->buffers[commands->buffer_count++] = addition->buffers[i];
    }
  }
  if (out_index != NULL)
    *out_index = index;
  return ACCRT_OK;
}

static accrt_status_t bind_range(accrt_commands_t* commands, uint32_t binding,
                                 uint64_t offset_bytes, uint64_t size_bytes, const char* what,
                                 bound_range_t* out_range) {
  uint64_t end;
  if (binding >= commands->binding_count) {
    return ACCRT_FAIL(OUT_OF_RANGE, "%s: binding %" PRIu32 " of %" PRIu32, what, binding,
                      commands->binding_count);
  }
  if (!accrt_add_u64(offset_bytes, size_bytes, &end)) {
    return ACCRT_FAIL(OVERFLOW, "%s: offset %" PRIu64 " + size %" PRIu64 " does not fit 64 bits",
                      what, offset_bytes, size_bytes);
  }
  *out_range = (bound_range_t){(uint32_t)commands->count, binding, offset_bytes, size_bytes};
  return ACCRT_OK;
}

/* ---- Dispatch ---- */

static accrt_status_t collect_arguments(accrt_commands_t* commands, accrt_kernel_t* kernel,
                                        const accrt_kernel_argument_t* arguments, uint32_t count,
                                        bound_range_t* ranges, accrt_buffer_t** buffers,
                                        addition_t* addition) {
  const accrt_kernel_def_t* definition = accrt_kernel_driver_view(kernel)->definition;
  addition->ranges = ranges;
  addition->buffers = buffers;
  for (uint32_t i = 0; i < count; ++i) {
    const accrt_kernel_argument_t* argument = &arguments[i];
    const uint32_t kind = definition->params[i].kind;
    if (kind == ACCRT_KERNEL_PARAM_SCALAR || kind == ACCRT_KERNEL_PARAM_SYMBOL)
      continue;
    if (argument->binding == ACCRT_BINDING_NONE || commands->binding_count == 0) {
      if (argument->buffer != NULL)
        buffers[addition->buffer_count++] = argument->buffer;
      continue;
    }
    /* To the end of the binding: as far as the tensor reaches, at least. */
    uint64_t size_bytes = argument->size_bytes == ACCRT_TO_END ? 0 : argument->size_bytes;
    accrt_status_t status = ACCRT_OK;
    if (argument->size_bytes == ACCRT_TO_END && kind == ACCRT_KERNEL_PARAM_TENSOR)
      status = accrt_launch_reach(argument->tensor, &size_bytes);
    if (status == ACCRT_OK) {
      status = bind_range(commands, argument->binding, argument->offset_bytes, size_bytes,
                          definition->params[i].name, &ranges[addition->range_count]);
    }
    if (status != ACCRT_OK)
      return status;
    addition->range_count += 1;
  }
  return ACCRT_OK;
}

/* Arguments of a kernel or operator while they are recorded. */
typedef struct recording {
  addition_t addition;
  accrt_packing_t packing;
  bound_range_t ranges[ACCRT_KERNEL_MAX_PARAMS];
  accrt_buffer_t* buffers[ACCRT_KERNEL_MAX_PARAMS];
  uint32_t* spare; /* room for one predecessor, in the command's memory */
} recording_t;

/* Packs the arguments into memory of the command's own. */
static accrt_status_t record_arguments(accrt_commands_t* commands, accrt_kernel_t* kernel,
                                       const accrt_kernel_argument_t* arguments,
                                       uint32_t argument_count,
                                       const accrt_predecessors_t* predecessors,
                                       recording_t* recording) {
  const accrt_kernel_def_t* definition = accrt_kernel_driver_view(kernel)->definition;
  addition_t* addition = &recording->addition;
  *addition = (addition_t){.pack = kernel->pack};
  addition->command.name = definition->name;
  const size_t params_bytes = (definition->params_size_bytes + 15u) & ~15u;
  const size_t patches_bytes = argument_count * sizeof(accrt_driver_patch_t);
  const size_t spare_bytes = 16;
  ACCRT_TRY(
      make_blob(commands, addition, params_bytes + patches_bytes + spare_bytes, predecessors));
  recording->spare =
      (uint32_t*)(void*)((char*)addition->blob.memory + params_bytes + patches_bytes);
  recording->packing = (accrt_packing_t){.device = commands->device,
                                         .kernel = kernel,
                                         .arguments = arguments,
                                         .argument_count = argument_count,
                                         .binding_count = commands->binding_count,
                                         .block = addition->blob.memory};
  /* A kernel without parameters may have no memory of its own. */
  if (argument_count > 0) {
    recording->packing.patches =
        (accrt_driver_patch_t*)(void*)((char*)addition->blob.memory + params_bytes);
  }
  accrt_status_t status = accrt_launch_pack(&recording->packing);
  if (status == ACCRT_OK) {
    status = collect_arguments(commands, kernel, arguments, argument_count, recording->ranges,
                               recording->buffers, addition);
  }
  if (recording->packing.patch_count == 0)
    recording->packing.patches = NULL;
  if (status != ACCRT_OK)
    accrt_free(&commands->instance->allocator, addition->blob.memory, addition->blob.size_bytes);
  return status;
}

accrt_status_t accrt_commands_dispatch(accrt_commands_t* commands, accrt_kernel_t* kernel,
                                       const uint32_t grid[3],
                                       const accrt_kernel_argument_t* arguments,
                                       uint32_t argument_count, uint32_t argument_size_bytes,
                                       const accrt_predecessors_t* predecessors,
                                       uint32_t* out_index) {
  ENTER_RECORDING(commands, out_index);
  ACCRT_TRY(accrt_launch_check(commands->device, kernel, grid, arguments, argument_count,
                               argument_size_bytes));
  recording_t recording;
  ACCRT_TRY(
      record_arguments(commands, kernel, arguments, argument_count, predecessors, &recording));
  const accrt_packing_t* packing = &recording.packing;
  recording.addition.command.opcode = ACCRT_DRIVER_COMMAND_DISPATCH;
  recording.addition.command.as.dispatch = (accrt_driver_dispatch_t){
      .kernel = accrt_kernel_driver_view(kernel),
      .grid = {VALUE(grid[0]), VALUE(grid[1]), VALUE(grid[2])},
      .params = packing->block,
      .params_size_bytes = accrt_kernel_driver_view(kernel)->definition->params_size_bytes,
      .patch_count = packing->patch_count,
      .patches = packing->patches};
  return commit(commands, &recording.addition, out_index);
}

/* ---- Host operators ---- */

/* Room for the operator's workspace behind that of the others: `*out_end` is where the next one's
 * may begin. */
static accrt_status_t find_workspace(const accrt_commands_t* commands, const accrt_kernel_t* kernel,
                                     const void* block, accrt_driver_range_t* out_range,
                                     uint64_t* out_end) {
  const accrt_driver_operator_t* operation = accrt_kernel_operator_view(kernel);
  *out_range = (accrt_driver_range_t){.binding = ACCRT_DRIVER_NONE,
                                      .access = ACCRT_KERNEL_ACCESS_READ_WRITE,
                                      .offset = VALUE(0),
                                      .size_bytes = VALUE(0)};
  *out_end = commands->workspace_bytes;
  uint64_t size_bytes, begin_bytes, end_bytes;
  const accrt_status_t status = accrt_device_operator_workspace(
      commands->device, operation, block, operation->definition->params_size_bytes, &size_bytes);
  if (status != ACCRT_OK || size_bytes == 0)
    return status;
  if (!accrt_align_u64(commands->workspace_bytes, WORKSPACE_ALIGN, &begin_bytes) ||
      !accrt_add_u64(begin_bytes, size_bytes, &end_bytes)) {
    return ACCRT_FAIL(OVERFLOW, "operator '%s' asks for %" PRIu64 " bytes of workspace",
                      operation->definition->name, size_bytes);
  }
  out_range->binding = commands->binding_count; /* the one behind the caller's */
  out_range->offset = VALUE(begin_bytes);
  out_range->size_bytes = VALUE(size_bytes);
  *out_end = end_bytes;
  return ACCRT_OK;
}

/* A fill before the operator: it takes over what the operator follows, and the operator follows it
 * alone. */
static accrt_status_t record_zeros(accrt_commands_t* commands,
                                   const accrt_driver_range_t* workspace, recording_t* recording) {
  addition_t* operation = &recording->addition;
  addition_t fill = {.command = {.opcode = ACCRT_DRIVER_COMMAND_FILL,
                                 .name = operation->command.name,
                                 .as.fill = {.target = *workspace, .pattern_bytes = 1}}};
  fill.command.as.fill.target.access = ACCRT_KERNEL_ACCESS_WRITE;
  const accrt_predecessors_t given = {operation->predecessors, operation->command.predecessor_count,
                                      0};
  accrt_status_t status = make_blob(commands, &fill, 0, &given);
  uint32_t index = 0;
  if (status == ACCRT_OK)
    status = commit(commands, &fill, &index);
  if (status != ACCRT_OK) {
    accrt_free(&commands->instance->allocator, operation->blob.memory, operation->blob.size_bytes);
    return status;
  }
  *recording->spare = index;
  operation->command.predecessor_count = 1;
  operation->command.predecessors = recording->spare;
  return ACCRT_OK;
}

/* Takes back a fill that was just recorded. */
static void drop_last(accrt_commands_t* commands) {
  const accrt_driver_command_t* last = &commands->commands[--commands->count];
  if (last->predecessor_count == 0)
    return;
  const blob_t* blob = &commands->blobs[--commands->blob_count];
  accrt_free(&commands->instance->allocator, blob->memory, blob->size_bytes);
}

accrt_status_t accrt_commands_invoke(accrt_commands_t* commands, accrt_kernel_t* operation,
                                     const accrt_kernel_argument_t* arguments,
                                     uint32_t argument_count, uint32_t argument_size_bytes,
                                     const accrt_predecessors_t* predecessors,
                                     uint32_t* out_index) {
  ENTER_RECORDING(commands, out_index);
  if (operation == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "operation is NULL");
  ACCRT_TRY(accrt_operator_check_device(commands->device, operation));
  ACCRT_TRY(accrt_arguments_check(operation, arguments, argument_count, argument_size_bytes));
  recording_t recording;
  ACCRT_TRY(
      record_arguments(commands, operation, arguments, argument_count, predecessors, &recording));
  accrt_driver_range_t workspace;
  uint64_t workspace_end;
  accrt_status_t status =
      find_workspace(commands, operation, recording.packing.block, &workspace, &workspace_end);
  if (status != ACCRT_OK) {
    accrt_free(&commands->instance->allocator, recording.addition.blob.memory,
               recording.addition.blob.size_bytes);
    return status;
  }
  recording.addition.command.opcode = ACCRT_DRIVER_COMMAND_OPERATOR;
  recording.addition.command.as.invoke = (accrt_driver_invoke_t){
      .operation = accrt_kernel_operator_view(operation),
      .params = recording.packing.block,
      .params_size_bytes = accrt_kernel_driver_view(operation)->definition->params_size_bytes,
      .patch_count = recording.packing.patch_count,
      .patches = recording.packing.patches,
      .workspace = workspace};
  const uint32_t traits = accrt_kernel_operator_view(operation)->definition->traits;
  const bool zeroes =
      (traits & ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE) != 0 && workspace.binding != ACCRT_DRIVER_NONE;
  if (zeroes)
    status = record_zeros(commands, &workspace, &recording);
  if (status != ACCRT_OK)
    return status;
  status = commit(commands, &recording.addition, out_index);
  if (status == ACCRT_OK) {
    commands->workspace_bytes = workspace_end;
  } else if (zeroes) {
    drop_last(commands);
  }
  return status;
}

/* ---- Copies, fills, barriers, markers ---- */

/* One side of a copy or the target of a fill: a driver range, and what it means for binding or
 * buffer. */
typedef struct side {
  accrt_driver_range_t range;
  bound_range_t bound;
  bool is_bound;
  accrt_buffer_t* buffer;
} side_t;

static accrt_status_t resolve_side(accrt_commands_t* commands, const accrt_binding_place_t* place,
                                   uint64_t size_bytes, uint32_t access, const char* what,
                                   side_t* out_side) {
  *out_side = (side_t){
      .range = {.binding = ACCRT_DRIVER_NONE, .access = access, .size_bytes = VALUE(size_bytes)}};
  if (place->reserved != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s->reserved is %" PRIu32 ", not 0", what,
                      place->reserved);
  if (place->binding != ACCRT_BINDING_NONE) {
    out_side->is_bound = true;
    out_side->range.binding = place->binding;
    out_side->range.offset = VALUE(place->place.offset_bytes);
    return bind_range(commands, place->binding, place->place.offset_bytes, size_bytes, what,
                      &out_side->bound);
  }
  uint64_t address;
  ACCRT_TRY(accrt_place_resolve(commands->device, &place->place, size_bytes, what, &address));
  out_side->range.offset = VALUE(address);
  out_side->buffer = place->place.buffer;
  return ACCRT_OK;
}

static void add_side(addition_t* addition, const side_t* side, bound_range_t* ranges,
                     accrt_buffer_t** buffers) {
  addition->ranges = ranges;
  addition->buffers = buffers;
  if (side->is_bound)
    ranges[addition->range_count++] = side->bound;
  if (side->buffer != NULL)
    buffers[addition->buffer_count++] = side->buffer;
}

/* Where ACCRT_TO_END of a copy ends: with the source, or with the target if the source is host
 * memory. NULL: with a binding. */
static const accrt_place_t* ending_place(const accrt_binding_place_t* source,
                                         const accrt_binding_place_t* target) {
  if (source->binding == ACCRT_BINDING_NONE && source->place.buffer == NULL)
    source = target;
  return source->binding == ACCRT_BINDING_NONE ? &source->place : NULL;
}

accrt_status_t accrt_commands_copy(accrt_commands_t* commands, const accrt_binding_place_t* source,
                                   const accrt_binding_place_t* target,
                                   const accrt_copy_region_t* region,
                                   const accrt_predecessors_t* predecessors, uint32_t* out_index) {
  ENTER_RECORDING(commands, out_index);
  if (source == NULL || target == NULL || region == NULL)
    return ACCRT_FAIL_NULL(source, target, region);
  uint64_t source_bytes, target_bytes;
  accrt_copy_region_t own = *region;
  region = &own;
  ACCRT_TRY(accrt_region_check(&own, ending_place(source, target), &source_bytes, &target_bytes));
  side_t from, to;
  ACCRT_TRY(
      resolve_side(commands, source, source_bytes, ACCRT_KERNEL_ACCESS_READ, "source", &from));
  ACCRT_TRY(resolve_side(commands, target, target_bytes, ACCRT_KERNEL_ACCESS_WRITE, "target", &to));
  const bool same_base = from.range.binding == to.range.binding;
  if (same_base && accrt_ranges_overlap(from.range.offset.constant, source_bytes,
                                        to.range.offset.constant, target_bytes)) {
    return ACCRT_FAIL(ALIASED,
                      "source (offset %" PRIu64 ", %" PRIu64 " bytes) and target (offset %" PRIu64
                      ", %" PRIu64 " bytes) overlap",
                      source->place.offset_bytes, source_bytes, target->place.offset_bytes,
                      target_bytes);
  }
  addition_t addition = {.late = !same_base && source_bytes > 0,
                         .check = {(uint32_t)commands->count, 0, source_bytes, target_bytes}};
  bound_range_t ranges[2];
  accrt_buffer_t* buffers[2];
  add_side(&addition, &from, ranges, buffers);
  add_side(&addition, &to, ranges, buffers);
  ACCRT_TRY(make_blob(commands, &addition, 0, predecessors));
  addition.command.opcode = ACCRT_DRIVER_COMMAND_COPY;
  addition.command.name = "copy";
  addition.command.as.copy = (accrt_driver_copy_t){
      .source = from.range,
      .target = to.range,
      .extent = {VALUE(region->extent[0]), VALUE(region->extent[1]), VALUE(region->extent[2])},
      .source_stride_bytes = {VALUE(region->source_stride_bytes[0]),
                              VALUE(region->source_stride_bytes[1])},
      .target_stride_bytes = {VALUE(region->target_stride_bytes[0]),
                              VALUE(region->target_stride_bytes[1])}};
  return commit(commands, &addition, out_index);
}

accrt_status_t accrt_commands_fill(accrt_commands_t* commands, const accrt_binding_place_t* target,
                                   uint64_t size_bytes, uint64_t pattern, uint32_t pattern_bytes,
                                   const accrt_predecessors_t* predecessors, uint32_t* out_index) {
  ENTER_RECORDING(commands, out_index);
  if (target == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "target is NULL");
  if (target->binding == ACCRT_BINDING_NONE)
    size_bytes = accrt_place_size(&target->place, size_bytes);
  if (size_bytes == ACCRT_TO_END) {
    return ACCRT_FAIL(
        OUT_OF_RANGE,
        "target: ACCRT_TO_END, and where it ends is not known while the list is recorded");
  }
  ACCRT_TRY(accrt_fill_check(target->place.offset_bytes, size_bytes, pattern_bytes));
  side_t to;
  ACCRT_TRY(resolve_side(commands, target, size_bytes, ACCRT_KERNEL_ACCESS_WRITE, "target", &to));
  if (to.buffer != NULL)
    ACCRT_TRY(accrt_buffer_check_reach(commands->device, to.buffer, false, "target"));
  addition_t addition = {.late = pattern_bytes > 1 && size_bytes > 0,
                         .check = {(uint32_t)commands->count, pattern_bytes, 0, size_bytes}};
  bound_range_t ranges[1];
  accrt_buffer_t* buffers[1];
  add_side(&addition, &to, ranges, buffers);
  ACCRT_TRY(make_blob(commands, &addition, 0, predecessors));
  addition.command.opcode = ACCRT_DRIVER_COMMAND_FILL;
  addition.command.name = "fill";
  addition.command.as.fill =
      (accrt_driver_fill_t){.target = to.range, .pattern = pattern, .pattern_bytes = pattern_bytes};
  return commit(commands, &addition, out_index);
}

accrt_status_t accrt_commands_barrier(accrt_commands_t* commands, uint32_t* out_index) {
  ENTER_RECORDING(commands, out_index);
  addition_t addition = {.command = {.opcode = ACCRT_DRIVER_COMMAND_BARRIER, .name = "barrier"}};
  return commit(commands, &addition, out_index);
}

accrt_status_t accrt_commands_marker(accrt_commands_t* commands, const char* text,
                                     const accrt_predecessors_t* predecessors,
                                     uint32_t* out_index) {
  ENTER_RECORDING(commands, out_index);
  if (text == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "text is NULL");
  const size_t text_bytes = strlen(text) + 1;
  addition_t addition = {.command = {.opcode = ACCRT_DRIVER_COMMAND_MARKER}};
  ACCRT_TRY(make_blob(commands, &addition, (text_bytes + 15u) & ~(size_t)15u, predecessors));
  memcpy(addition.blob.memory, text, text_bytes);
  addition.command.name = addition.blob.memory;
  return commit(commands, &addition, out_index);
}

/* Memory for the operators. A call that fails later leaves it for the next try. */
static accrt_status_t make_workspace(accrt_commands_t* commands) {
  if (commands->workspace_bytes == 0 || commands->workspace != NULL)
    return ACCRT_OK;
  void* buffers = commands->buffers;
  ACCRT_TRY(accrt_grow_array(&commands->instance->allocator, commands->buffer_count + 1,
                             sizeof *commands->buffers, &commands->buffer_capacity, &buffers));
  commands->buffers = buffers;
  accrt_pool_t* pool;
  ACCRT_TRY(accrt_pool_default(commands->device, ACCRT_MEMORY_DEVICE, &pool));
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.alignment_bytes = WORKSPACE_ALIGN;
  options.label = "workspace of recorded operators";
  ACCRT_TRY(
      accrt_inner_buffer_create(pool, commands->workspace_bytes, &options, &commands->workspace));
  /* The caller's reference becomes the list's, which is an internal one. */
  accrt_instance_release(commands->instance);
  commands->buffers[commands->buffer_count++] = commands->workspace;
  return ACCRT_OK;
}

static accrt_status_t create_list(accrt_commands_t* commands) {
  void* memory;
  const uint32_t count = accrt_commands_table_count(commands);
  const accrt_allocator_t* allocator = &commands->instance->allocator;
  ACCRT_TRY(accrt_alloc_array(allocator, count, sizeof(uint32_t), &memory));
  uint32_t* flags = memory;
  if (count > commands->binding_count)
    flags[commands->binding_count] = ACCRT_DRIVER_BINDING_STABLE;
  const accrt_driver_list_info_t info = accrt_commands_info(commands, flags);
  accrt_status_t status =
      commands->device->table->list_create(commands->device->driver_device, &info, &commands->list);
  accrt_free_array(allocator, memory, count, sizeof(uint32_t));
  return status;
}

accrt_status_t accrt_commands_finalize(accrt_commands_t* commands) {
  ENTER_RECORDING(commands, NULL);
  ACCRT_TRY(make_workspace(commands));
  const accrt_status_t status = create_list(commands);
  if (status != ACCRT_OK) {
    accrt_device_note_status(commands->device, status);
    commands->list = NULL;
    return status;
  }
  commands->finalized = true;
  return ACCRT_OK;
}

accrt_status_t accrt_commands_count(accrt_commands_t* commands, uint32_t* out_count) {
  if (out_count != NULL)
    *out_count = 0;
  ACCRT_ENTER(out_count, commands);
  *out_count = (uint32_t)commands->count;
  return ACCRT_OK;
}
