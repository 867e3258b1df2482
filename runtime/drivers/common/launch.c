/* runtime/drivers/common/launch.c - checking and packing the arguments of one dispatch. It may not
 * know how kernels run. */
#include <string.h>

#include "runtime/core/pack.h"
#include "runtime/core/reach.h"
#include "runtime/core/struct.h"
#include "runtime/drivers/common/objects.h"

static const accrt_kernel_def_t* definition_of(const accrt_kernel_t* kernel) {
  return accrt_kernel_driver_view(kernel)->definition;
}

accrt_status_t accrt_kernel_fail_instance(const accrt_device_t* device,
                                          const accrt_kernel_t* kernel) {
  return ACCRT_FAIL(INVALID_ARGUMENT, "kernel '%s' of pack '%s' is of another instance than %s",
                    definition_of(kernel)->name, kernel->pack_name, device->info.name);
}

accrt_status_t accrt_kernel_check_device(accrt_device_t* device, accrt_kernel_t* kernel) {
  const accrt_driver_kernel_t* view = accrt_kernel_driver_view(kernel);
  const char* name = view->definition->name;
  if (accrt_kernel_operator_view(kernel) != NULL) {
    return ACCRT_FAIL(
        INVALID_ARGUMENT,
        "'%s' is a host operator, which has no grid: record it with accrt_commands_invoke", name);
  }
  if (kernel->device != NULL && kernel->device != device) {
    return ACCRT_FAIL(UNSUPPORTED, "kernel '%s' was loaded for %s, not for %s", name,
                      ((const accrt_device_t*)kernel->device)->info.name, device->info.name);
  }
  if (kernel->instance != NULL && kernel->instance != device->instance)
    return accrt_kernel_fail_instance(device, kernel);
  if (view->module_kernel != NULL) {
    if (device->table->module_load != NULL)
      return ACCRT_OK;
    return ACCRT_FAIL(UNSUPPORTED, "kernel '%s' is of a device module; %s runs host kernels", name,
                      device->info.name);
  }
  if ((device->info.flags & ACCRT_DEVICE_FLAG_HOST_KERNELS) != 0)
    return ACCRT_OK;
  return ACCRT_FAIL(UNSUPPORTED, "kernel '%s' is a host kernel; %s does not run those", name,
                    device->info.name);
}

accrt_status_t accrt_launch_check(accrt_device_t* device, accrt_kernel_t* kernel,
                                  const uint32_t grid[3], const accrt_kernel_argument_t* arguments,
                                  uint32_t argument_count, uint32_t argument_size_bytes) {
  if (kernel == NULL || grid == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", kernel == NULL ? "kernel" : "grid");
  const accrt_status_t status = accrt_kernel_check_device(device, kernel);
  return status != ACCRT_OK
             ? status
             : accrt_arguments_check(kernel, arguments, argument_count, argument_size_bytes);
}

accrt_status_t accrt_arguments_check(const accrt_kernel_t* kernel,
                                     const accrt_kernel_argument_t* arguments,
                                     uint32_t argument_count, uint32_t argument_size_bytes) {
  const accrt_kernel_def_t* definition = definition_of(kernel);
  if (argument_count != definition->param_count) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "kernel '%s' has %" PRIu32 " parameters, %" PRIu32 " arguments were given",
                      definition->name, definition->param_count, argument_count);
  }
  if (argument_count == 0)
    return ACCRT_OK;
  if (arguments == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "arguments is NULL");
  return accrt_struct_check_element("accrt_kernel_argument_t", argument_size_bytes,
                                    sizeof(accrt_kernel_argument_t));
}

/* ---- One argument ---- */

/* Where the argument's memory is: an address, or a binding and an offset. */
typedef struct memory_argument {
  uint64_t address;
  bool bound;
} memory_argument_t;

static accrt_status_t resolve_buffer(const accrt_packing_t* packing,
                                     const accrt_kernel_argument_t* argument, const char* name,
                                     uint64_t* out_address) {
  const accrt_place_t place = {argument->buffer, argument->pointer, argument->offset_bytes};
  const bool to_end = argument->size_bytes == ACCRT_TO_END;
  if (argument->buffer != NULL &&
      accrt_buffer_is_own(packing->device, argument->buffer, argument->offset_bytes,
                          to_end ? 0 : argument->size_bytes)) {
    *out_address = argument->buffer->address + argument->offset_bytes;
    return ACCRT_OK;
  }
  if (argument->buffer != NULL) {
    const accrt_status_t status = accrt_place_resolve(
        packing->device, &place, to_end ? 0 : argument->size_bytes, name, out_address);
    return status != ACCRT_OK
               ? status
               : accrt_buffer_check_reach(packing->device, argument->buffer, true, name);
  }
  if (argument->pointer == NULL && (argument->size_bytes == 0 || to_end)) {
    *out_address = 0;
    return ACCRT_OK;
  }
  if ((packing->device->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) == 0) {
    return ACCRT_FAIL(UNSUPPORTED, "%s: %s does not take plain host pointers", name,
                      packing->device->info.name);
  }
  if (to_end)
    return ACCRT_FAIL(OUT_OF_RANGE, "%s: a host pointer needs a size", name);
  return accrt_place_resolve(packing->device, &place, argument->size_bytes, name, out_address);
}

static accrt_status_t resolve_memory(const accrt_packing_t* packing,
                                     const accrt_kernel_argument_t* argument,
                                     const accrt_kernel_param_t* param,
                                     memory_argument_t* out_memory) {
  const char* kernel = definition_of(packing->kernel)->name;
  *out_memory = (memory_argument_t){0, false};
  if (argument->binding != ACCRT_BINDING_NONE && packing->binding_count > 0) {
    if (argument->binding >= packing->binding_count) {
      return ACCRT_FAIL(OUT_OF_RANGE,
                        "kernel '%s', parameter '%s': binding %" PRIu32 " of %" PRIu32, kernel,
                        param->name, argument->binding, packing->binding_count);
    }
    if (argument->buffer != NULL || argument->pointer != NULL) {
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "kernel '%s', parameter '%s': both binding %" PRIu32
                        " and memory of its own are given; ACCRT_BINDING_NONE says which is meant",
                        kernel, param->name, argument->binding);
    }
    out_memory->bound = true;
    return ACCRT_OK;
  }
  const accrt_status_t status =
      resolve_buffer(packing, argument, param->name, &out_memory->address);
  if (status != ACCRT_OK) {
    accrt_error_prefix("kernel '%s'", kernel);
    return status;
  }
  const bool absent =
      argument->buffer == NULL && argument->pointer == NULL && argument->size_bytes != 0;
  if (!absent || (param->flags & ACCRT_KERNEL_PARAM_FLAG_OPTIONAL) != 0)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "kernel '%s': parameter '%s' is not optional and has no memory", kernel,
                    param->name);
}

static void add_patch(accrt_packing_t* packing, const accrt_kernel_argument_t* argument,
                      const accrt_kernel_param_t* param) {
  /* "To the end" has no size before a binding is known: 0 says so to the driver, which needs none
   * for an address. */
  const uint64_t size_bytes = argument->size_bytes == ACCRT_TO_END ? 0 : argument->size_bytes;
  packing->patches[packing->patch_count++] = (accrt_driver_patch_t){
      .kind = ACCRT_DRIVER_PATCH_ADDRESS,
      .offset_bytes = param->offset_bytes,
      .size_bytes = 8,
      .range = {.binding = argument->binding,
                .access = param->access,
                .offset = {.constant = argument->offset_bytes, .scalar = ACCRT_DRIVER_NONE},
                .size_bytes = {.constant = size_bytes, .scalar = ACCRT_DRIVER_NONE}},
      .value = {.scalar = ACCRT_DRIVER_NONE}};
}

static accrt_status_t pack_memory(accrt_packing_t* packing, const accrt_kernel_argument_t* argument,
                                  const accrt_kernel_param_t* param, bool* out_bound) {
  memory_argument_t memory;
  const accrt_status_t status = resolve_memory(packing, argument, param, &memory);
  *out_bound = memory.bound;
  if (status != ACCRT_OK)
    return status;
  if (memory.bound) {
    add_patch(packing, argument, param);
  } else {
    memcpy(packing->block + param->offset_bytes, &memory.address, sizeof memory.address);
  }
  return ACCRT_OK;
}

/* The range that the argument gives the kernel; a binding's end is known at submission. */
static uint64_t range_bytes(const accrt_kernel_argument_t* argument) {
  if (argument->size_bytes != ACCRT_TO_END || argument->buffer == NULL)
    return argument->size_bytes;
  uint64_t address, buffer_bytes;
  accrt_buffer_range(argument->buffer, &address, &buffer_bytes);
  return buffer_bytes - argument->offset_bytes; /* checked by resolve_buffer */
}

static accrt_status_t check_view(const accrt_kernel_tensor_t* view, const char* kernel,
                                 const char* name) {
  if (view->rank > ACCRT_KERNEL_MAX_RANK) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "kernel '%s', parameter '%s': rank %" PRIu32 " is above %d",
                      kernel, name, view->rank, ACCRT_KERNEL_MAX_RANK);
  }
  if (accrt_dtype_bits(view->dtype) == 0) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "kernel '%s', parameter '%s': its data type is %s", kernel,
                      name, ACCRT_DTYPE_TEXT(view->dtype));
  }
  for (uint32_t i = 0; i < view->rank; ++i) {
    if (view->shape[i] < 0) {
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "kernel '%s', parameter '%s': dimension %" PRIu32 " is %" PRId64, kernel,
                        name, i, view->shape[i]);
    }
  }
  return ACCRT_OK;
}

accrt_status_t accrt_launch_reach(const accrt_kernel_tensor_t* view, uint64_t* out_size_bytes) {
  accrt_reach_bytes_t reach;
  *out_size_bytes = 0;
  if (!accrt_reach_measure(view->rank, view->shape, view->strides, accrt_dtype_bits(view->dtype),
                           &reach))
    return ACCRT_FAIL(OUT_OF_RANGE, "its strides reach further than can be addressed");
  if (reach.first_bytes < 0) {
    return ACCRT_FAIL(OUT_OF_RANGE, "its strides reach %" PRId64 " bytes before its first element",
                      -reach.first_bytes);
  }
  *out_size_bytes = reach.size_bytes;
  return ACCRT_OK;
}

/* What the view reaches must lie in its range: the kernel gets no other bounds. */
static accrt_status_t check_reach(const accrt_packing_t* packing,
                                  const accrt_kernel_argument_t* argument,
                                  const accrt_kernel_param_t* param, bool bound) {
  const bool absent = !bound && argument->buffer == NULL && argument->pointer == NULL;
  if (absent && (param->flags & ACCRT_KERNEL_PARAM_FLAG_OPTIONAL) != 0)
    return ACCRT_OK;
  const char* kernel = definition_of(packing->kernel)->name;
  uint64_t needed_bytes;
  const accrt_status_t status = accrt_launch_reach(argument->tensor, &needed_bytes);
  if (status != ACCRT_OK) {
    accrt_error_prefix("kernel '%s', parameter '%s'", kernel, param->name);
    return status;
  }
  const uint64_t given_bytes = bound ? argument->size_bytes : range_bytes(argument);
  if (needed_bytes <= given_bytes)
    return ACCRT_OK;
  return ACCRT_FAIL(OUT_OF_RANGE,
                    "kernel '%s', parameter '%s': the tensor reaches %" PRIu64
                    " bytes, its range has %" PRIu64,
                    kernel, param->name, needed_bytes, given_bytes);
}

static accrt_status_t pack_tensor(accrt_packing_t* packing, const accrt_kernel_argument_t* argument,
                                  const accrt_kernel_param_t* param) {
  const char* kernel = definition_of(packing->kernel)->name;
  if (argument->tensor == NULL) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "kernel '%s': parameter '%s' needs a tensor's shape",
                      kernel, param->name);
  }
  ACCRT_TRY(check_view(argument->tensor, kernel, param->name));
  memcpy(packing->block + param->offset_bytes, argument->tensor, sizeof *argument->tensor);
  const uint64_t none = 0;
  memcpy(packing->block + param->offset_bytes + offsetof(accrt_kernel_tensor_t, data), &none,
         sizeof none);
  bool bound;
  accrt_status_t status = pack_memory(packing, argument, param, &bound);
  return status == ACCRT_OK ? check_reach(packing, argument, param, bound) : status;
}

static void pack_value(accrt_packing_t* packing, const accrt_kernel_argument_t* argument,
                       const accrt_kernel_param_t* param) {
  /* Little-endian on every target: the low bytes come first. */
  memcpy(packing->block + param->offset_bytes, &argument->value,
         param->size_bytes <= 8 ? param->size_bytes : 8);
}

accrt_status_t accrt_launch_pack_argument(accrt_packing_t* packing, uint32_t index,
                                          const accrt_kernel_argument_t* argument) {
  const accrt_kernel_def_t* definition = definition_of(packing->kernel);
  const accrt_kernel_param_t* param = &definition->params[index];
  if (param->kind == ACCRT_KERNEL_PARAM_SEMAPHORE || param->kind == ACCRT_KERNEL_PARAM_HIDDEN) {
    return ACCRT_FAIL(UNSUPPORTED, "kernel '%s': parameter '%s' of kind %s cannot be given",
                      definition->name, param->name, accrt_kernel_param_kind_name(param->kind));
  }
  if (argument->kind != param->kind) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "kernel '%s': parameter '%s' is %s, the argument %s",
                      definition->name, param->name, accrt_kernel_param_kind_name(param->kind),
                      accrt_number_text(argument->kind - 1 < ACCRT_KERNEL_PARAM_HIDDEN
                                            ? accrt_kernel_param_kind_name(argument->kind)
                                            : NULL,
                                        argument->kind, "kind of argument",
                                        (char[ACCRT_NUMBER_TEXT_BYTES]){0}));
  }
  bool bound;
  switch (param->kind) {
  case ACCRT_KERNEL_PARAM_TENSOR:
    return pack_tensor(packing, argument, param);
  case ACCRT_KERNEL_PARAM_SCALAR:
  case ACCRT_KERNEL_PARAM_SYMBOL:
    pack_value(packing, argument, param);
    return ACCRT_OK;
  default:
    return pack_memory(packing, argument, param, &bound);
  }
}

accrt_status_t accrt_launch_pack(accrt_packing_t* packing) {
  const accrt_kernel_def_t* definition = definition_of(packing->kernel);
  packing->patch_count = 0;
  if (definition->params_size_bytes > 0)
    memset(packing->block, 0, definition->params_size_bytes);
  for (uint32_t i = 0; i < packing->argument_count; ++i) {
    ACCRT_TRY(accrt_launch_pack_argument(packing, i, &packing->arguments[i]));
  }
  return ACCRT_OK;
}

/* ---- Launching on a stream ---- */

/* The field of an argument that is no memory means nothing. */
static accrt_buffer_t* buffer_of(const accrt_kernel_argument_t* argument) {
  const bool value =
      argument->kind == ACCRT_KERNEL_PARAM_SCALAR || argument->kind == ACCRT_KERNEL_PARAM_SYMBOL;
  return value ? NULL : argument->buffer;
}

static accrt_status_t prepare_uses(accrt_stream_t* stream, const accrt_kernel_argument_t* arguments,
                                   uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    accrt_buffer_t* buffer = buffer_of(&arguments[i]);
    if (buffer == NULL)
      continue;
    ACCRT_TRY(accrt_buffer_note_use(buffer, stream, 0));
  }
  return ACCRT_OK;
}

static void note_uses(accrt_stream_t* stream, const accrt_kernel_argument_t* arguments,
                      uint32_t count, uint64_t number) {
  for (uint32_t i = 0; i < count; ++i) {
    accrt_buffer_t* buffer = buffer_of(&arguments[i]);
    if (buffer != NULL)
      accrt_buffer_note_or_wait(buffer, stream, number);
  }
}

accrt_status_t accrt_stream_dispatch(accrt_stream_t* stream, accrt_kernel_t* kernel,
                                     const uint32_t grid[3], const void* block,
                                     uint64_t* out_number) {
  const accrt_driver_kernel_t* view = accrt_kernel_driver_view(kernel);
  const accrt_kernel_def_t* definition = view->definition;
  accrt_driver_command_t command; /* only the fields of a dispatch are set and read */
  command.opcode = ACCRT_DRIVER_COMMAND_DISPATCH;
  command.predecessor_count = 0;
  command.predecessors = NULL;
  command.name = definition->name;
  command.as.dispatch =
      (accrt_driver_dispatch_t){.kernel = view,
                                .grid = {{.constant = grid[0], .scalar = ACCRT_DRIVER_NONE},
                                         {.constant = grid[1], .scalar = ACCRT_DRIVER_NONE},
                                         {.constant = grid[2], .scalar = ACCRT_DRIVER_NONE}},
                                .params = block,
                                .params_size_bytes = definition->params_size_bytes};
  const accrt_stream_work_t work = {.name = definition->name,
                                    .retained_class =
                                        kernel->pack != NULL ? &accrt_retained_pack : NULL,
                                    .retained = kernel->pack};
  return accrt_stream_enqueue_work(stream, &command, &work, out_number);
}

accrt_status_t accrt_stream_launch(accrt_stream_t* stream, accrt_kernel_t* kernel,
                                   const uint32_t grid[3], const accrt_kernel_argument_t* arguments,
                                   uint32_t argument_count, uint32_t argument_size_bytes) {
  ACCRT_ENTER(stream);
  ACCRT_TRY(accrt_launch_check(stream->device, kernel, grid, arguments, argument_count,
                               argument_size_bytes));
  _Alignas(16) unsigned char block[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  accrt_packing_t packing = {.device = stream->device,
                             .kernel = kernel,
                             .arguments = arguments,
                             .argument_count = argument_count,
                             .block = block};
  ACCRT_TRY(accrt_launch_pack(&packing));
  ACCRT_TRY(prepare_uses(stream, arguments, argument_count));
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) {
    return accrt_stream_check(stream);
  }
  uint64_t number;
  const accrt_status_t status = accrt_stream_dispatch(stream, kernel, grid, block, &number);
  if (status == ACCRT_OK)
    note_uses(stream, arguments, argument_count, number);
  return status;
}
