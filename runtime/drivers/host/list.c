/* runtime/drivers/host/list.c - compiles command lists and hands out instances of them.
 *
 * Commands are sorted by level (1 + the deepest predecessor), so independent commands share a wave
 * and a chain has one command per wave. An instance is one block of memory; new ones are copies of
 * the template with pointers moved:
 *
 *   host_instance_t | commands | waves | bindings | scalars | parameter blocks, each 16-aligned
 */
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"

#define PARAMS_ALIGNMENT 16u

void accrt_host_levels(const accrt_driver_command_t* commands, uint32_t command_count,
                       uint32_t* out_levels) {
  uint32_t floor = 0;   /* lowest level after the last barrier */
  uint32_t ceiling = 0; /* one above the deepest level so far */
  for (uint32_t i = 0; i < command_count; ++i) {
    const accrt_driver_command_t* command = &commands[i];
    if (command->opcode == ACCRT_DRIVER_COMMAND_BARRIER) {
      out_levels[i] = UINT32_MAX;
      floor = ceiling;
      continue;
    }
    uint32_t level = floor;
    for (uint32_t k = 0; k < command->predecessor_count; ++k) {
      const uint32_t before = out_levels[command->predecessors[k]];
      if (before != UINT32_MAX && before >= level)
        level = before + 1;
    }
    out_levels[i] = level;
    if (level >= ceiling)
      ceiling = level + 1;
  }
}

/* ---- Layout of an instance ---- */

typedef struct instance_layout {
  uint64_t commands;
  uint64_t waves;
  uint64_t bindings;
  uint64_t scalars;
  uint64_t params;
  uint64_t end;
} instance_layout_t;

/* Appends count elements; false on overflow. */
static bool place(uint64_t* end, uint64_t count, uint64_t element_bytes, uint64_t* out_begin) {
  uint64_t size_bytes;
  *out_begin = *end;
  return accrt_mul_u64(count, element_bytes, &size_bytes) && accrt_add_u64(*end, size_bytes, end) &&
         accrt_align_u64(*end, PARAMS_ALIGNMENT, end);
}

static bool plan_layout(const host_list_t* list, uint64_t params_bytes, instance_layout_t* layout) {
  layout->end =
      (sizeof(host_instance_t) + PARAMS_ALIGNMENT - 1) & ~(uint64_t)(PARAMS_ALIGNMENT - 1);
  return place(&layout->end, list->command_count, sizeof(host_command_t), &layout->commands) &&
         place(&layout->end, list->wave_count, sizeof(host_wave_t), &layout->waves) &&
         place(&layout->end, list->binding_count, sizeof(accrt_driver_binding_t),
               &layout->bindings) &&
         place(&layout->end, list->scalar_count, sizeof(uint64_t), &layout->scalars) &&
         place(&layout->end, params_bytes, 1, &layout->params);
}

static accrt_status_t allocate_instance(const host_list_t* list, host_instance_t** out_instance) {
  return accrt_alloc_aligned(list->device->allocator, list->instance_bytes, HOST_CACHE_LINE,
                             (void**)out_instance);
}

static void free_instance(const host_list_t* list, host_instance_t* instance) {
  accrt_free_aligned(list->device->allocator, instance, list->instance_bytes, HOST_CACHE_LINE);
}

/* The same place in another instance. */
static void* moved(const void* pointer, const host_instance_t* from, host_instance_t* to) {
  return (char*)to + ((const char*)pointer - (const char*)from);
}

static accrt_status_t clone_template(const host_list_t* list, host_instance_t** out_instance) {
  const host_instance_t* source = list->template_instance;
  host_instance_t* copy;
  ACCRT_TRY(allocate_instance(list, &copy));
  memcpy(copy, source, list->instance_bytes);
  copy->commands = moved(source->commands, source, copy);
  copy->waves = moved(source->waves, source, copy);
  copy->bindings = moved(source->bindings, source, copy);
  copy->scalars = moved(source->scalars, source, copy);
  for (uint32_t i = 0; i < list->command_count; ++i) {
    if (copy->commands[i].kind != ACCRT_DRIVER_COMMAND_DISPATCH)
      continue;
    accrt_kernel_dispatch_t* view = &copy->commands[i].as.dispatch.view;
    view->params = moved(view->params, source, copy);
  }
  *out_instance = copy;
  return ACCRT_OK;
}

/* ---- What changes at submission ---- */

static bool depends(const accrt_driver_value_t* value) {
  return value->scalar != ACCRT_DRIVER_NONE;
}

static bool any_depends(const accrt_driver_value_t* values, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (depends(&values[i]))
      return true;
  }
  return false;
}

static bool range_moves(const accrt_driver_range_t* range) {
  return range->binding != ACCRT_DRIVER_NONE || depends(&range->offset);
}

/* Its extent is not known yet. */
static bool is_dynamic(const accrt_driver_command_t* command) {
  static const host_command_t none;
  host_moving_t moving;
  accrt_host_moving(command, &none, &moving);
  for (uint32_t i = 0; i < sizeof moving.values / sizeof *moving.values; ++i) {
    if (any_depends(moving.values[i].values, moving.values[i].count))
      return true;
  }
  return false;
}

static void add_range_patch(host_list_t* list, const accrt_driver_range_t* range,
                            const void* place_at, bool null_base) {
  if (!range_moves(range))
    return;
  host_patch_t* patch = &list->patches[list->patch_count++];
  patch->target = (size_t)((const char*)place_at - (const char*)list->template_instance);
  patch->size_bytes = 8;
  patch->null_base = null_base;
  patch->binding = range->binding;
  patch->scalar = range->offset.scalar;
  patch->constant = range->offset.constant;
}

static void add_value_patch(host_list_t* list, const accrt_driver_value_t* value,
                            uint32_t size_bytes, const void* place_at) {
  if (!depends(value))
    return;
  host_patch_t* patch = &list->patches[list->patch_count++];
  patch->target = (size_t)((const char*)place_at - (const char*)list->template_instance);
  patch->size_bytes = size_bytes;
  patch->binding = ACCRT_DRIVER_NONE;
  patch->scalar = value->scalar;
  patch->constant = value->constant;
}

static void add_patches(host_list_t* list, const accrt_driver_command_t* source,
                        const host_command_t* command) {
  host_moving_t moving;
  accrt_host_moving(source, command, &moving);
  for (uint32_t i = 0; i < 2 && moving.ranges[i].range != NULL; ++i)
    add_range_patch(list, moving.ranges[i].range, moving.ranges[i].place, false);
  if (source->opcode == ACCRT_DRIVER_COMMAND_DISPATCH) {
    const accrt_driver_dispatch_t* dispatch = &source->as.dispatch;
    const char* params = command->as.dispatch.view.params;
    for (uint32_t i = 0; i < dispatch->patch_count; ++i) {
      const accrt_driver_patch_t* patch = &dispatch->patches[i];
      const void* place_at = params + patch->offset_bytes;
      if (patch->kind == ACCRT_DRIVER_PATCH_ADDRESS) {
        add_range_patch(list, &patch->range, place_at, true);
      } else {
        add_value_patch(list, &patch->value, patch->size_bytes, place_at);
      }
    }
  }
}

/* ---- Compiling ---- */

static uint64_t params_bytes_of(const accrt_driver_command_t* command) {
  if (command->opcode != ACCRT_DRIVER_COMMAND_DISPATCH)
    return 0;
  return ((uint64_t)command->as.dispatch.params_size_bytes + PARAMS_ALIGNMENT - 1) &
         ~(uint64_t)(PARAMS_ALIGNMENT - 1);
}

static size_t patches_of(const accrt_driver_command_t* command) {
  if (command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH)
    return command->as.dispatch.patch_count;
  return 2;
}

/* What the compiler needs beside the list. */
typedef struct compile_state {
  uint32_t* levels; /* per source command */
  uint32_t* order;  /* source commands by level, barriers left out */
  size_t patch_capacity;
  size_t dynamic_capacity;
  uint64_t params_bytes;
} compile_state_t;

/* Stable counting sort by level. `starts` has room for command_count + 1. */
static void sort_by_level(const uint32_t* levels, uint32_t count, uint32_t* starts,
                          uint32_t* out_order) {
  for (uint32_t i = 0; i < count; ++i) {
    if (levels[i] != UINT32_MAX)
      ++starts[levels[i] + 1];
  }
  for (uint32_t level = 0; level < count; ++level)
    starts[level + 1] += starts[level];
  for (uint32_t i = 0; i < count; ++i) {
    if (levels[i] != UINT32_MAX)
      out_order[starts[levels[i]]++] = i;
  }
}

static bool begins_wave(const compile_state_t* state, uint32_t position, uint32_t wave_size) {
  return position == 0 || wave_size == HOST_MAX_WAVE_COMMANDS ||
         state->levels[state->order[position]] != state->levels[state->order[position - 1]];
}

static void count_all(host_list_t* list, const accrt_driver_command_t* commands,
                      compile_state_t* state) {
  uint32_t wave_size = 0;
  for (uint32_t i = 0; i < list->command_count; ++i) {
    const accrt_driver_command_t* command = &commands[state->order[i]];
    if (begins_wave(state, i, wave_size)) {
      ++list->wave_count;
      wave_size = 0;
    }
    ++wave_size;
    state->params_bytes += params_bytes_of(command);
    state->dynamic_capacity += is_dynamic(command);
    state->patch_capacity += patches_of(command);
    if (command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH) {
      const size_t local = command->as.dispatch.kernel->definition->local_memory_size_bytes;
      if (local > list->local_bytes)
        list->local_bytes = local;
    }
  }
}

static accrt_status_t allocate_all(host_list_t* list, const compile_state_t* state) {
  const accrt_allocator_t* allocator = list->device->allocator;
  instance_layout_t layout;
  if (!plan_layout(list, state->params_bytes, &layout)) {
    return accrt_host_fail(list->device->environment, ACCRT_ERROR_OVERFLOW, 0, NULL, "list_create",
                           "a list of %u commands does not fit", list->command_count);
  }
  list->instance_bytes = layout.end;
  list->patch_capacity = state->patch_capacity;
  list->dynamic_capacity = state->dynamic_capacity;
  ACCRT_TRY(allocate_instance(list, &list->template_instance));
  ACCRT_TRY(accrt_alloc_array(allocator, state->patch_capacity, sizeof *list->patches,
                              (void**)&list->patches));
  ACCRT_TRY(accrt_alloc_array(allocator, state->dynamic_capacity, sizeof *list->dynamics,
                              (void**)&list->dynamics));
  ACCRT_TRY(
      accrt_alloc_array(allocator, list->wave_count, sizeof *list->costs, (void**)&list->costs));
  host_instance_t* instance = list->template_instance;
  instance->commands = (host_command_t*)((char*)instance + layout.commands);
  instance->waves = (host_wave_t*)((char*)instance + layout.waves);
  instance->bindings = (accrt_driver_binding_t*)((char*)instance + layout.bindings);
  instance->scalars = (uint64_t*)((char*)instance + layout.scalars);
  instance->params = (unsigned char*)instance + layout.params;
  return ACCRT_OK;
}

/* Numbers the units of a wave's commands. */
static void number_units(const host_instance_t* instance, host_wave_t* wave) {
  wave->unit_count = 0;
  for (uint32_t i = 0; i < wave->command_count; ++i) {
    host_command_t* command = &instance->commands[wave->first_command + i];
    command->unit_begin = wave->unit_count;
    wave->unit_count += command->unit_count;
  }
}

static accrt_status_t fill_template(host_list_t* list, const accrt_driver_command_t* commands,
                                    const compile_state_t* state) {
  host_instance_t* instance = list->template_instance;
  unsigned char* params = instance->params;
  host_wave_t* wave = NULL;
  uint32_t wave_index = 0;
  for (uint32_t i = 0; i < list->command_count; ++i) {
    if (begins_wave(state, i, wave == NULL ? 0 : wave->command_count)) {
      wave = &instance->waves[wave_index++];
      wave->first_command = i;
    }
    ++wave->command_count;
    const accrt_driver_command_t* source = &commands[state->order[i]];
    host_command_t* command = &instance->commands[i];
    accrt_host_prepare(list->device, source, NULL, params, command);
    params += params_bytes_of(source);
    if (is_dynamic(source)) {
      host_dynamic_t* dynamic = &list->dynamics[list->dynamic_count++];
      dynamic->source = *source;
      dynamic->command = i;
      dynamic->wave = wave_index - 1;
      continue;
    }
    ACCRT_TRY(accrt_host_measure(list->device, command));
    add_patches(list, source, command);
  }
  for (uint32_t i = 0; i < list->wave_count; ++i)
    number_units(instance, &instance->waves[i]);
  return ACCRT_OK;
}

static accrt_status_t compile(host_list_t* list, const accrt_driver_command_t* commands,
                              uint32_t command_count) {
  const accrt_allocator_t* allocator = list->device->allocator;
  compile_state_t state = {0};
  uint32_t* starts = NULL;
  const size_t start_count = (size_t)command_count + 1;
  accrt_status_t status =
      accrt_alloc_array(allocator, command_count, sizeof *state.levels, (void**)&state.levels);
  if (status != ACCRT_OK)
    goto out;
  status = accrt_alloc_array(allocator, command_count, sizeof *state.order, (void**)&state.order);
  if (status != ACCRT_OK)
    goto out;
  status = accrt_alloc_array(allocator, start_count, sizeof *starts, (void**)&starts);
  if (status != ACCRT_OK)
    goto out;
  accrt_host_levels(commands, command_count, state.levels);
  sort_by_level(state.levels, command_count, starts, state.order);
  for (uint32_t i = 0; i < command_count; ++i)
    list->command_count += state.levels[i] != UINT32_MAX;
  count_all(list, commands, &state);
  status = allocate_all(list, &state);
  if (status != ACCRT_OK)
    goto out;
  status = fill_template(list, commands, &state);
  if (status != ACCRT_OK)
    goto out;
  status = accrt_host_scratch_reserve(list->device, list->local_bytes);
out:
  accrt_free_array(allocator, state.levels, command_count, sizeof *state.levels);
  accrt_free_array(allocator, state.order, command_count, sizeof *state.order);
  accrt_free_array(allocator, starts, start_count, sizeof *starts);
  return status;
}

ACCRT_RARE accrt_status_t accrt_host_list_create(host_device_t* device,
                                                 const accrt_driver_command_t* commands,
                                                 uint32_t command_count, uint32_t binding_count,
                                                 uint32_t scalar_count, host_list_t** out_list) {
  *out_list = NULL;
  host_list_t* list;
  ACCRT_TRY(accrt_alloc(device->allocator, sizeof *list, (void**)&list));
  list->device = device;
  list->binding_count = binding_count;
  list->scalar_count = scalar_count;
  accrt_mutex_init(&list->mutex, ACCRT_LOCK_HOST_LIST);
  accrt_status_t status =
      accrt_host_operators_create(device, commands, command_count, &list->operators);
  if (list->operators.commands != NULL)
    commands = list->operators.commands;
  if (status == ACCRT_OK)
    status = compile(list, commands, command_count);
  host_instance_t* first = NULL; /* so that the first submission allocates nothing either */
  if (status == ACCRT_OK)
    status = clone_template(list, &first);
  if (status != ACCRT_OK) {
    accrt_host_list_destroy(list);
    return status;
  }
  atomic_init(&list->cached, first);
  *out_list = list;
  return ACCRT_OK;
}

ACCRT_RARE void accrt_host_list_destroy(host_list_t* list) {
  const accrt_allocator_t* allocator = list->device->allocator;
  /* Acquire pairs with the release in accrt_host_list_return. */
  free_instance(list, atomic_load_explicit(&list->cached, memory_order_acquire));
  while (list->free_instances != NULL) {
    host_instance_t* instance = list->free_instances;
    list->free_instances = instance->next;
    free_instance(list, instance);
  }
  free_instance(list, list->template_instance);
  accrt_free_array(allocator, list->patches, list->patch_capacity, sizeof *list->patches);
  accrt_free_array(allocator, list->dynamics, list->dynamic_capacity, sizeof *list->dynamics);
  accrt_free_array(allocator, list->costs, list->wave_count, sizeof *list->costs);
  accrt_host_operators_destroy(list->device, &list->operators);
  accrt_free(allocator, list, sizeof *list);
}

/* ---- Instances ---- */

static void apply_patch(const host_patch_t* patch, const accrt_driver_submission_t* submission,
                        host_instance_t* instance) {
  uint64_t bits = patch->constant;
  if (patch->scalar != ACCRT_DRIVER_NONE)
    bits += submission->scalars[patch->scalar];
  if (patch->binding != ACCRT_DRIVER_NONE) {
    const uint64_t base = submission->bindings[patch->binding].address;
    bits = patch->null_base && base == 0 ? 0 : bits + base;
  }
  char* target = (char*)instance + patch->target;
  if (patch->size_bytes == 8) {
    memcpy(target, &bits, 8);
  } else {
    memcpy(target, &bits, patch->size_bytes); /* low bytes: little-endian */
  }
}

static accrt_status_t prepare_dynamics(const host_list_t* list,
                                       const accrt_driver_submission_t* submission,
                                       host_instance_t* instance) {
  for (uint32_t i = 0; i < list->dynamic_count; ++i) {
    const host_dynamic_t* dynamic = &list->dynamics[i];
    host_command_t* command = &instance->commands[dynamic->command];
    void* params = command->kind == ACCRT_DRIVER_COMMAND_DISPATCH
                       ? (void*)(uintptr_t)command->as.dispatch.view.params
                       : NULL;
    accrt_host_prepare(list->device, &dynamic->source, submission, params, command);
    ACCRT_TRY(accrt_host_measure(list->device, command));
  }
  for (uint32_t i = 0; i < list->dynamic_count; ++i) {
    number_units(instance, &instance->waves[list->dynamics[i].wave]);
  }
  return ACCRT_OK;
}

static bool same_bytes(const void* a, const void* b, size_t size_bytes) {
  return size_bytes == 0 || memcmp(a, b, size_bytes) == 0;
}

static accrt_status_t patch_instance(const host_list_t* list,
                                     const accrt_driver_submission_t* submission,
                                     host_instance_t* instance) {
  const size_t bindings_bytes = list->binding_count * sizeof *instance->bindings;
  const size_t scalars_bytes = list->scalar_count * sizeof *instance->scalars;
  if (instance->patched && same_bytes(instance->bindings, submission->bindings, bindings_bytes) &&
      same_bytes(instance->scalars, submission->scalars, scalars_bytes)) {
    return ACCRT_OK;
  }
  instance->patched = 0;
  for (uint32_t i = 0; i < list->patch_count; ++i) {
    apply_patch(&list->patches[i], submission, instance);
  }
  ACCRT_TRY(prepare_dynamics(list, submission, instance));
  if (bindings_bytes != 0)
    memcpy(instance->bindings, submission->bindings, bindings_bytes);
  if (scalars_bytes != 0)
    memcpy(instance->scalars, submission->scalars, scalars_bytes);
  instance->patched = 1;
  return ACCRT_OK;
}

static accrt_status_t take_instance(host_list_t* list, host_instance_t** out_instance) {
  /* Acquire pairs with the release in accrt_host_list_return: its last user's writes are seen. */
  *out_instance = atomic_exchange_explicit(&list->cached, NULL, memory_order_acquire);
  if (*out_instance != NULL)
    return ACCRT_OK;
  accrt_mutex_lock(&list->mutex);
  *out_instance = list->free_instances;
  if (*out_instance != NULL)
    list->free_instances = (*out_instance)->next;
  accrt_mutex_unlock(&list->mutex);
  return *out_instance != NULL ? ACCRT_OK : clone_template(list, out_instance);
}

accrt_status_t accrt_host_list_acquire(host_list_t* list,
                                       const accrt_driver_submission_t* submission,
                                       host_instance_t** out_instance) {
  host_instance_t* instance;
  ACCRT_TRY(take_instance(list, &instance));
  accrt_status_t status = patch_instance(list, submission, instance);
  if (status != ACCRT_OK) {
    accrt_host_list_return(list, instance);
    return status;
  }
  *out_instance = instance;
  return ACCRT_OK;
}

void accrt_host_list_return(host_list_t* list, host_instance_t* instance) {
  /* Acq_rel: release pairs with the acquire in take_instance; acquire for the one that comes back
   * here. */
  host_instance_t* displaced =
      atomic_exchange_explicit(&list->cached, instance, memory_order_acq_rel);
  if (displaced == NULL)
    return;
  accrt_mutex_lock(&list->mutex);
  displaced->next = list->free_instances;
  list->free_instances = displaced;
  accrt_mutex_unlock(&list->mutex);
}
