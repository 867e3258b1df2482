/* tests/fuzz/oracle_driver.h - a driver that runs nothing and checks everything: each range of each command of each list that it is
 * given must lie in the object that it came from, by arithmetic of its own.
 *
 * Its device memory is addresses without memory behind them, so that sizes cost nothing; nothing is ever read or written there. What
 * an object is, is looked up in the call that runs: the test's own record of an argument, the session's buffers, the bundle's weights. The
 * ranges that the plan states are believed in nothing: they are calculated again in 128 bits. A violation prints what it is and
 * aborts. It knows the structs of runtime/program, and may not use its checks.
 */
#ifndef ACCRT_TESTS_FUZZ_ORACLE_DRIVER_H_
#define ACCRT_TESTS_FUZZ_ORACLE_DRIVER_H_

#include <inttypes.h>

#include "accrt/sys/driver.h"
#include "runtime/memory/buffer.h"
#include "runtime/program/internal.h"
#include "tests/fuzz/fuzz.h"

__extension__ typedef __int128 oracle_wide_t;

/* A place in memory. */
typedef struct oracle_object {
  uint64_t address;
  uint64_t size_bytes;
  bool writable;
} oracle_object_t;

/* The call that runs. */
static struct {
  accrt_call_t* call;
  oracle_object_t arguments[64]; /* what was bound; size 0 and address 0: nothing */
  const unsigned char* file;     /* the bundle's bytes: weights are used where they lie */
  uint64_t file_bytes;
  const char* what; /* for messages */
} oracle;
static uint64_t oracle_lists, oracle_commands, oracle_ranges;

#define ORACLE_REQUIRE(condition, ...)                                                             \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "oracle: input %" PRIu64 ", %s: ", fuzz_index,                               \
              oracle.what != NULL ? oracle.what : "?");                                            \
      fprintf(stderr, __VA_ARGS__);                                                                \
      fprintf(stderr, " (%s, line %d)\n", #condition, __LINE__);                                   \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)

/* ---- Objects ---- */

static oracle_object_t oracle_buffer(const accrt_buffer_t* buffer) {
  oracle_object_t object = {0, 0, true};
  if (buffer != NULL)
    accrt_buffer_range(buffer, &object.address, &object.size_bytes);
  return object;
}

static oracle_object_t oracle_argument(const accrt_call_t* call, uint32_t index) {
  const accrt_call_argument_t* argument = &call->arguments[index];
  const accx_argument_t* record = &call->signature[index];
  oracle_object_t object = oracle.arguments[index];
  if (index >= call->input_count && !argument->bound) {
    /* A result of the runtime's own, or in the place of its input. */
    object =
        argument->shared ? oracle.arguments[record->alias_input] : oracle_buffer(argument->buffer);
  }
  object.writable = record->kind != ACCX_ARGUMENT_READ && record->kind != ACCX_ARGUMENT_SCALAR;
  return object;
}

static oracle_object_t oracle_component(const accrt_call_t* call, uint32_t index) {
  const accrt_weight_component_t* component = &call->session->weights->components[index];
  const uint64_t size_bytes = call->program->tables->components[index].size_bytes;
  oracle_object_t object = {component->address, size_bytes, false};
  if (component->buffer != NULL) {
    const oracle_object_t buffer = oracle_buffer(component->buffer);
    ORACLE_REQUIRE(object.address >= buffer.address && size_bytes <= buffer.size_bytes &&
                       object.address - buffer.address <= buffer.size_bytes - size_bytes,
                   "weight %u lies outside of its buffer", index);
  } else {
    const uint64_t begin = (uint64_t)(uintptr_t)oracle.file;
    ORACLE_REQUIRE(object.address >= begin && size_bytes <= oracle.file_bytes &&
                       object.address - begin <= oracle.file_bytes - size_bytes,
                   "weight %u lies outside of the file", index);
  }
  return object;
}

static oracle_object_t oracle_state(const accrt_call_t* call, uint32_t index) {
  const accrt_session_state_t* state = &call->session->states[index];
  oracle_object_t object = oracle_buffer(state->buffer);
  ORACLE_REQUIRE(state->offset_bytes <= object.size_bytes &&
                     state->size_bytes <= object.size_bytes - state->offset_bytes,
                 "state %u lies outside of its buffer", index);
  object.address += state->offset_bytes;
  object.size_bytes = state->size_bytes;
  return object;
}

static oracle_object_t oracle_object_of(uint32_t binding) {
  const accrt_call_t* call = oracle.call;
  const accrt_plan_binding_t* record = &call->plan->bindings[binding];
  switch (record->kind) {
  case ACCRT_PLAN_ARGUMENT:
    return oracle_argument(call, record->index);
  case ACCRT_PLAN_COMPONENT:
    return oracle_component(call, record->index);
  case ACCRT_PLAN_STATE:
    return oracle_state(call, record->index);
  default:
    return oracle_buffer(call->session->arena);
  }
}

/* ---- Ranges ---- */

/* Values of a submission as signed numbers: what a driver calculates modulo 2^64 must not need that. */
static int64_t oracle_value(const accrt_driver_value_t* value,
                            const accrt_driver_submission_t* submission) {
  if (value->scalar == ACCRT_DRIVER_NONE)
    return (int64_t)value->constant;
  ORACLE_REQUIRE(value->scalar < submission->scalar_count, "scalar %u of %u", value->scalar,
                 submission->scalar_count);
  return (int64_t)(value->constant + submission->scalars[value->scalar]);
}

/* Bytes [begin, end) of a binding, counted from its address, are in its object. */
static void oracle_check(uint32_t binding, const accrt_driver_submission_t* submission,
                         oracle_wide_t begin, oracle_wide_t end, uint32_t access,
                         const char* what) {
  ++oracle_ranges;
  ORACLE_REQUIRE(binding < submission->binding_count, "%s: binding %u of %u", what, binding,
                 submission->binding_count);
  const oracle_object_t object = oracle_object_of(binding);
  const uint64_t address = submission->bindings[binding].address;
  ORACLE_REQUIRE(address == object.address || object.size_bytes == 0,
                 "%s: binding %u is at 0x%" PRIx64 ", its object at 0x%" PRIx64, what, binding,
                 address, object.address);
  ORACLE_REQUIRE((access & ACCRT_KERNEL_ACCESS_WRITE) == 0 || object.writable,
                 "%s: binding %u is written and may only be read", what, binding);
  ORACLE_REQUIRE(begin >= 0 && begin <= end && end <= (oracle_wide_t)object.size_bytes,
                 "%s: bytes %" PRId64 " to %" PRId64 " of an object of %" PRIu64 " (binding %u)",
                 what, (int64_t)begin, (int64_t)end, object.size_bytes, binding);
}

static void oracle_range(const accrt_driver_range_t* range,
                         const accrt_driver_submission_t* submission, const char* what) {
  const oracle_wide_t offset = oracle_value(&range->offset, submission);
  const oracle_wide_t size = oracle_value(&range->size_bytes, submission);
  ORACLE_REQUIRE(size >= 0, "%s: a size below 0", what);
  oracle_check(range->binding, submission, offset, offset + size, range->access, what);
}

/* ---- Commands ---- */

/* The tensor in a parameter block: what it reaches, from its own numbers. `range` is where its elements may lie from the first on. */
static void oracle_tensor(const accrt_kernel_tensor_t* tensor, const accrt_driver_range_t* range,
                          const accrt_driver_submission_t* submission, const char* name) {
  const uint32_t bits = accrt_dtype_bits(tensor->dtype);
  ORACLE_REQUIRE(tensor->rank <= ACCRT_MAX_RANK && bits != 0, "tensor '%s' of rank %u", name,
                 tensor->rank);
  oracle_wide_t low = 0;
  oracle_wide_t high = 0; /* of the last element */
  bool any = true;
  for (uint32_t i = 0; i < tensor->rank; ++i) {
    ORACLE_REQUIRE(tensor->shape[i] >= 0, "tensor '%s': dimension %u is %" PRId64, name, i,
                   tensor->shape[i]);
    any = any && tensor->shape[i] != 0;
    const oracle_wide_t span =
        ((oracle_wide_t)tensor->shape[i] - 1) * (oracle_wide_t)tensor->strides[i];
    if (span < 0)
      low += span;
    else
      high += span;
  }
  if (!any)
    return;
  const oracle_wide_t offset = oracle_value(&range->offset, submission);
  const oracle_wide_t size = oracle_value(&range->size_bytes, submission);
  const oracle_wide_t first_bit = low * bits; /* 0 or below */
  const oracle_wide_t begin = offset - (-first_bit + 7) / 8;
  const oracle_wide_t end = offset + ((high + 1) * bits + 7) / 8;
  oracle_check(range->binding, submission, begin, end, range->access, name);
  ORACLE_REQUIRE(end <= offset + size, "tensor '%s' ends %" PRId64 " bytes behind its range", name,
                 (int64_t)(end - offset - size));
}

static const accrt_driver_patch_t* oracle_address_at(const accrt_driver_dispatch_t* dispatch,
                                                     uint32_t offset_bytes) {
  for (uint32_t i = 0; i < dispatch->patch_count; ++i) {
    if (dispatch->patches[i].kind == ACCRT_DRIVER_PATCH_ADDRESS &&
        dispatch->patches[i].offset_bytes == offset_bytes)
      return &dispatch->patches[i];
  }
  return NULL;
}

static void oracle_fill_params(const accrt_driver_dispatch_t* dispatch,
                               const accrt_driver_submission_t* submission, unsigned char* params) {
  memset(params, 0, ACCRT_KERNEL_MAX_PARAMS_BYTES);
  if (dispatch->params_size_bytes != 0)
    memcpy(params, dispatch->params, dispatch->params_size_bytes);
  for (uint32_t i = 0; i < dispatch->patch_count; ++i) {
    const accrt_driver_patch_t* patch = &dispatch->patches[i];
    uint64_t bits;
    if (patch->kind == ACCRT_DRIVER_PATCH_VALUE) {
      bits = (uint64_t)oracle_value(&patch->value, submission);
    } else {
      const uint64_t address = submission->bindings[patch->range.binding].address;
      bits = address == 0 ? 0 : address + (uint64_t)oracle_value(&patch->range.offset, submission);
    }
    ORACLE_REQUIRE(patch->offset_bytes <= dispatch->params_size_bytes &&
                       patch->size_bytes <= dispatch->params_size_bytes - patch->offset_bytes,
                   "a patch outside of the block");
    memcpy(params + patch->offset_bytes, &bits, patch->size_bytes);
  }
}

static void oracle_dispatch(const accrt_driver_dispatch_t* dispatch,
                            const accrt_driver_submission_t* submission) {
  for (int i = 0; i < 3; ++i) {
    const int64_t count = oracle_value(&dispatch->grid[i], submission);
    ORACLE_REQUIRE(count >= 0 && count <= (int64_t)UINT32_MAX, "grid %d is %" PRId64, i, count);
  }
  _Alignas(16) unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  oracle_fill_params(dispatch, submission, params);
  const accrt_kernel_def_t* kernel = dispatch->kernel->definition;
  for (uint32_t i = 0; i < kernel->param_count; ++i) {
    const accrt_kernel_param_t* param = &kernel->params[i];
    const bool has_range = param->kind == ACCRT_KERNEL_PARAM_BUFFER ||
                           param->kind == ACCRT_KERNEL_PARAM_TENSOR ||
                           param->kind == ACCRT_KERNEL_PARAM_WORKSPACE;
    if (!has_range)
      continue;
    const accrt_driver_patch_t* patch = oracle_address_at(dispatch, param->offset_bytes);
    uint64_t address;
    memcpy(&address, params + param->offset_bytes, sizeof address);
    if (patch == NULL) {
      ORACLE_REQUIRE(address == 0 && (param->flags & ACCRT_KERNEL_PARAM_FLAG_OPTIONAL) != 0,
                     "parameter '%s' has no range", param->name);
      continue;
    }
    if (submission->bindings[patch->range.binding].address == 0 &&
        oracle_object_of(patch->range.binding).size_bytes == 0 &&
        oracle_value(&patch->range.size_bytes, submission) == 0)
      continue;
    ORACLE_REQUIRE((param->access & ~patch->range.access) == 0,
                   "parameter '%s' has more access than its range", param->name);
    oracle_range(&patch->range, submission, param->name);
    if (param->kind == ACCRT_KERNEL_PARAM_TENSOR) {
      accrt_kernel_tensor_t tensor;
      memcpy(&tensor, params + param->offset_bytes, sizeof tensor);
      oracle_tensor(&tensor, &patch->range, submission, param->name);
    }
  }
}

/* Begin and end of what a copy touches at one side, from its first row. */
static void oracle_copy_side(const accrt_driver_copy_t* copy, const accrt_driver_range_t* range,
                             const accrt_driver_value_t strides[2],
                             const accrt_driver_submission_t* submission, oracle_wide_t* out_begin,
                             oracle_wide_t* out_end) {
  oracle_wide_t extent[3];
  for (int i = 0; i < 3; ++i)
    extent[i] = oracle_value(&copy->extent[i], submission);
  ORACLE_REQUIRE(extent[0] >= 0 && extent[1] >= 0 && extent[2] >= 0, "an extent below 0");
  *out_begin = *out_end = oracle_value(&range->offset, submission);
  oracle_range(range, submission, "copy");
  if (extent[0] == 0 || extent[1] == 0 || extent[2] == 0)
    return;
  /* The corners: strides are of either sign as far as the oracle knows. */
  for (int corner = 0; corner < 4; ++corner) {
    const oracle_wide_t row = (corner & 1) != 0 ? extent[1] - 1 : 0;
    const oracle_wide_t plane = (corner & 2) != 0 ? extent[2] - 1 : 0;
    const oracle_wide_t begin = oracle_value(&range->offset, submission) +
                                row * oracle_value(&strides[0], submission) +
                                plane * oracle_value(&strides[1], submission);
    oracle_check(range->binding, submission, begin, begin + extent[0], range->access, "copy");
    *out_begin = begin < *out_begin ? begin : *out_begin;
    *out_end = begin + extent[0] > *out_end ? begin + extent[0] : *out_end;
  }
}

static void oracle_copy(const accrt_driver_copy_t* copy,
                        const accrt_driver_submission_t* submission) {
  oracle_wide_t source_begin, source_end, target_begin, target_end;
  oracle_copy_side(copy, &copy->source, copy->source_stride_bytes, submission, &source_begin,
                   &source_end);
  oracle_copy_side(copy, &copy->target, copy->target_stride_bytes, submission, &target_begin,
                   &target_end);
  ORACLE_REQUIRE(copy->source.access == ACCRT_KERNEL_ACCESS_READ &&
                     copy->target.access == ACCRT_KERNEL_ACCESS_WRITE,
                 "a copy's accesses");
  ORACLE_REQUIRE(copy->source.binding != copy->target.binding || source_begin == source_end ||
                     target_begin == target_end || source_end <= target_begin ||
                     target_end <= source_begin,
                 "a copy overlaps itself");
}

static void oracle_fill(const accrt_driver_fill_t* fill,
                        const accrt_driver_submission_t* submission) {
  oracle_range(&fill->target, submission, "fill");
  ORACLE_REQUIRE(fill->target.access == ACCRT_KERNEL_ACCESS_WRITE, "a fill that does not write");
  ORACLE_REQUIRE(oracle_value(&fill->target.size_bytes, submission) % fill->pattern_bytes == 0,
                 "a fill of %" PRId64 " bytes with a pattern of %u",
                 oracle_value(&fill->target.size_bytes, submission), fill->pattern_bytes);
}

static void oracle_command(const accrt_driver_command_t* command,
                           const accrt_driver_submission_t* submission) {
  ++oracle_commands;
  if (command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH)
    oracle_dispatch(&command->as.dispatch, submission);
  else if (command->opcode == ACCRT_DRIVER_COMMAND_COPY)
    oracle_copy(&command->as.copy, submission);
  else if (command->opcode == ACCRT_DRIVER_COMMAND_FILL)
    oracle_fill(&command->as.fill, submission);
  else
    ORACLE_REQUIRE(command->opcode == ACCRT_DRIVER_COMMAND_BARRIER ||
                       command->opcode == ACCRT_DRIVER_COMMAND_MARKER,
                   "opcode %u", command->opcode);
}

/* ---- The driver: the least that the runtime needs ---- */

struct accrt_driver {
  const accrt_driver_environment_t* environment;
};
struct accrt_driver_device {
  accrt_driver_t* driver;
};
struct accrt_driver_queue {
  accrt_driver_device_t* device;
};
struct accrt_driver_list {
  const accrt_driver_command_t* commands;
  uint32_t command_count;
};

#define ORACLE_ALIGN 4096u
#define ORACLE_MOST_BYTES (UINT64_C(1) << 46) /* of one allocation */
static uint64_t oracle_next_address = UINT64_C(1) << 40;
static uint64_t oracle_allocations; /* that are not freed */

static accrt_status_t oracle_open(const accrt_driver_environment_t* environment,
                                  accrt_driver_t** out_driver) {
  static accrt_driver_t driver;
  driver.environment = environment;
  *out_driver = &driver;
  return ACCRT_OK;
}
static void oracle_close(accrt_driver_t* driver) {
  (void)driver;
}
static uint32_t oracle_device_count(accrt_driver_t* driver) {
  (void)driver;
  return 1;
}
static accrt_status_t oracle_device_open(accrt_driver_t* driver, uint32_t index,
                                         accrt_driver_device_t** out_device) {
  static accrt_driver_device_t device;
  (void)index;
  device.driver = driver;
  *out_device = &device;
  return ACCRT_OK;
}
static void oracle_device_close(accrt_driver_device_t* device) {
  (void)device;
}
static void oracle_device_info(accrt_driver_device_t* device, accrt_device_info_t* out_info) {
  (void)device;
  out_info->flags = ACCRT_DEVICE_FLAG_HOST_MEMORY | ACCRT_DEVICE_FLAG_TIMESTAMPS;
  (void)snprintf(out_info->description, sizeof out_info->description, "checks and runs nothing");
  (void)snprintf(out_info->arch, sizeof out_info->arch, "oracle");
  out_info->concurrency = 1;
  out_info->min_alignment_bytes = ORACLE_ALIGN;
  out_info->dlpack_device_type = 1;
}
static void oracle_memory_info(accrt_driver_device_t* device, uint32_t kind,
                               accrt_driver_memory_info_t* out_info) {
  (void)device;
  out_info->supported = kind == ACCRT_MEMORY_DEVICE;
  out_info->granularity_bytes = ORACLE_ALIGN;
  out_info->default_grow_bytes = ORACLE_ALIGN;
  out_info->alignment_bytes = ORACLE_ALIGN;
}
static accrt_status_t oracle_memory_allocate(accrt_driver_device_t* device, uint32_t kind,
                                             uint64_t size_bytes,
                                             accrt_driver_memory_t* out_memory) {
  (void)kind;
  memset(out_memory, 0, sizeof *out_memory);
  const accrt_driver_environment_t* environment = device->driver->environment;
  if (oracle_allocations == 0)
    oracle_next_address = UINT64_C(1) << 40;
  if (size_bytes > ORACLE_MOST_BYTES || oracle_next_address > UINT64_C(1) << 62)
    return (environment->fail)(environment, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, 0, NULL, "allocate",
                               "that much there is not");
  ++oracle_allocations;
  out_memory->handle = device;
  out_memory->device_address = oracle_next_address;
  out_memory->size_bytes = size_bytes;
  oracle_next_address += size_bytes + ORACLE_ALIGN;
  return ACCRT_OK;
}
static void oracle_memory_free(accrt_driver_device_t* device, const accrt_driver_memory_t* memory) {
  (void)device;
  (void)memory;
  --oracle_allocations;
}
static accrt_status_t oracle_module_load(accrt_driver_device_t* device,
                                         const accrt_driver_image_t* image,
                                         accrt_driver_module_t** out_module) {
  (void)image;
  *out_module = (accrt_driver_module_t*)(void*)device;
  return ACCRT_OK;
}
static void oracle_module_unload(accrt_driver_module_t* module) {
  (void)module;
}
static accrt_status_t oracle_module_find(accrt_driver_module_t* module, const char* entry,
                                         const accrt_kernel_def_t* declared,
                                         void** out_module_kernel) {
  (void)entry;
  (void)declared;
  *out_module_kernel = module;
  return ACCRT_OK;
}
static accrt_status_t oracle_queue_create(accrt_driver_device_t* device, int32_t priority,
                                          accrt_driver_queue_t** out_queue) {
  (void)priority;
  accrt_driver_queue_t* queue = calloc(1, sizeof *queue);
  if (queue == NULL)
    abort();
  queue->device = device;
  *out_queue = queue;
  return ACCRT_OK;
}
static void oracle_queue_destroy(accrt_driver_queue_t* queue) {
  free(queue);
}
static void oracle_complete(accrt_driver_completion_t completion) {
  if (completion.done != NULL)
    completion.done(completion.user, ACCRT_OK, NULL, 1);
}
static accrt_status_t oracle_enqueue(accrt_driver_queue_t* queue,
                                     const accrt_driver_command_t* command,
                                     const accrt_driver_submission_t* submission) {
  (void)queue; /* the runtime's own: states are filled */
  (void)command;
  oracle_complete(submission->completion);
  return ACCRT_OK;
}
static void oracle_check_list(const accrt_driver_list_t* list,
                              const accrt_driver_submission_t* submission) {
  ++oracle_lists;
  ORACLE_REQUIRE(oracle.call != NULL, "a list without a call");
  for (uint32_t i = 0; i < list->command_count; ++i)
    oracle_command(&list->commands[i], submission);
}
static accrt_status_t oracle_execute(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                     const accrt_driver_submission_t* submission) {
  (void)queue;
  oracle_check_list(list, submission);
  oracle_complete(submission->completion);
  return ACCRT_OK;
}
static accrt_status_t oracle_run(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                 const accrt_driver_submission_t* submission) {
  (void)queue;
  oracle_check_list(list, submission);
  return ACCRT_OK;
}
static accrt_status_t oracle_notify(accrt_driver_queue_t* queue,
                                    accrt_driver_completion_t completion) {
  (void)queue;
  oracle_complete(completion);
  return ACCRT_OK;
}
static accrt_status_t oracle_reset(accrt_driver_queue_t* queue) {
  (void)queue;
  return ACCRT_OK;
}
static accrt_status_t oracle_list_create(accrt_driver_device_t* device,
                                         const accrt_driver_list_info_t* info,
                                         accrt_driver_list_t** out_list) {
  (void)device;
  accrt_driver_list_t* list = calloc(1, sizeof *list);
  if (list == NULL)
    abort();
  list->commands = info->commands;
  list->command_count = info->command_count;
  *out_list = list;
  return ACCRT_OK;
}
static void oracle_list_destroy(accrt_driver_list_t* list) {
  free(list);
}

static const accrt_driver_table_t oracle_table = {
    .struct_size = (uint32_t)sizeof oracle_table,
    .abi_version = ACCRT_DRIVER_ABI_VERSION,
    .name = "oracle",
    .open = oracle_open,
    .close = oracle_close,
    .device_count = oracle_device_count,
    .device_open = oracle_device_open,
    .device_close = oracle_device_close,
    .device_info = oracle_device_info,
    .memory_info = oracle_memory_info,
    .memory_allocate = oracle_memory_allocate,
    .memory_free = oracle_memory_free,
    .module_load = oracle_module_load,
    .module_unload = oracle_module_unload,
    .module_find = oracle_module_find,
    .queue_create = oracle_queue_create,
    .queue_destroy = oracle_queue_destroy,
    .queue_enqueue = oracle_enqueue,
    .queue_execute = oracle_execute,
    .queue_run = oracle_run,
    .queue_notify = oracle_notify,
    .queue_reset = oracle_reset,
    .list_create = oracle_list_create,
    .list_destroy = oracle_list_destroy,
};
static const void* oracle_query(uint32_t max_abi) {
  return max_abi >> 16 == ACCRT_DRIVER_ABI_MAJOR ? &oracle_table : NULL;
}

/* The device; one for the process. */
static inline accrt_device_t* oracle_device(accrt_instance_t** out_instance) {
  static accrt_instance_t* instance;
  static accrt_device_t* device;
  if (device == NULL) {
    accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
    options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
    fuzz_require(accrt_instance_create(&options, &instance) == ACCRT_OK);
    fuzz_require(accrt_instance_register_driver(instance, oracle_query) == ACCRT_OK);
    fuzz_require(accrt_instance_device_by_name(instance, "oracle", &device) == ACCRT_OK);
  }
  *out_instance = instance;
  return device;
}

#endif /* ACCRT_TESTS_FUZZ_ORACLE_DRIVER_H_ */
