/* runtime/program/weights.c - sets of weights: placing them on a device, and swapping them between
 * calls.
 *
 * A set is immutable once published. It runs no prepare function itself (prepare.c does).
 */
#include <string.h>

#include "runtime/core/near_name.h"
#include "runtime/core/struct.h"
#include "runtime/program/external.h"
#include "runtime/program/upload.h"

/* ---- Sets ---- */

static size_t set_bytes(uint32_t count) {
  return sizeof(accrt_weight_set_t) + (size_t)count * sizeof(accrt_weight_component_t);
}

accrt_status_t accrt_weight_set_create(const accrt_allocator_t* allocator, uint32_t count,
                                       accrt_weight_set_t** out_weights) {
  *out_weights = NULL;
  void* memory;
  ACCRT_TRY(accrt_alloc(allocator, set_bytes(count), &memory));
  accrt_weight_set_t* weights = memory;
  accrt_object_init(&weights->object);
  weights->allocator = allocator;
  weights->count = count;
  *out_weights = weights;
  return ACCRT_OK;
}

void accrt_weight_set_release(accrt_weight_set_t* weights) {
  if (weights == NULL || !accrt_object_release(&weights->object))
    return;
  for (uint32_t i = 0; i < weights->count; ++i)
    accrt_buffer_unref(weights->components[i].buffer);
  accrt_external_release(weights->external);
  accrt_free(weights->allocator, weights, set_bytes(weights->count));
}

accrt_weight_set_t* accrt_program_weights(accrt_program_t* program, uint64_t* out_generation) {
  accrt_mutex_lock(&program->weights_lock);
  accrt_weight_set_t* weights = program->weights;
  accrt_weight_set_retain(weights);
  *out_generation = atomic_load_explicit(&program->weights_generation, memory_order_relaxed);
  accrt_mutex_unlock(&program->weights_lock);
  return weights;
}

/* A new set that shares every buffer of another. */
static accrt_status_t copy_set(const accrt_weight_set_t* from, accrt_weight_set_t** out_weights) {
  ACCRT_TRY(accrt_weight_set_create(from->allocator, from->count, out_weights));
  accrt_external_retain(from->external);
  (*out_weights)->external = from->external;
  for (uint32_t i = 0; i < from->count; ++i) {
    (*out_weights)->components[i] = from->components[i];
    if (from->components[i].buffer != NULL)
      accrt_buffer_ref(from->components[i].buffer);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_weight_allocate(accrt_program_t* program, const char* label,
                                     uint64_t size_bytes, accrt_buffer_t** out_buffer) {
  accrt_pool_t* pool;
  ACCRT_TRY(accrt_pool_default(program->device, ACCRT_MEMORY_DEVICE, &pool));
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.alignment_bytes = ACCRT_STORAGE_ALIGN;
  options.label = label;
  accrt_status_t status = accrt_inner_buffer_create(pool, size_bytes, &options, out_buffer);
  if (status == ACCRT_OK)
    accrt_program_internalize(program);
  return status;
}

accrt_status_t accrt_weight_set_allocate(accrt_program_t* program, const char* name,
                                         accrt_weight_component_t* component, uint64_t size_bytes) {
  ACCRT_TRY(accrt_weight_allocate(program, name, size_bytes, &component->buffer));
  uint64_t capacity_bytes;
  accrt_buffer_range(component->buffer, &component->address, &capacity_bytes);
  component->size_bytes = size_bytes;
  component->ready = true;
  return ACCRT_OK;
}

accrt_status_t accrt_finish_stream(accrt_stream_t* stream) {
  const accrt_status_t status =
      accrt_inner_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
  if (status != ACCRT_ERROR_POISONED)
    return status;
  accrt_error_t error = ACCRT_ERROR_INIT;
  if (accrt_inner_stream_error(stream, &error) != ACCRT_OK || error.status == ACCRT_OK)
    return status;
  return accrt_error_restore(&error);
}

/* ---- Placing ---- */

accrt_status_t accrt_weight_component_upload(accrt_program_t* program, const char* name,
                                             accrt_weight_component_t* component,
                                             const accrt_place_t* source, uint64_t size_bytes) {
  accrt_status_t status = accrt_weight_set_allocate(program, name, component, size_bytes);
  if (status != ACCRT_OK || size_bytes == 0)
    return status;
  accrt_stream_t* stream;
  ACCRT_TRY(accrt_inner_stream_create(program->device, NULL, &stream));
  const accrt_place_t target = {component->buffer, NULL, 0};
  status = accrt_inner_stream_copy(stream, source, &target, size_bytes);
  if (status == ACCRT_OK)
    status = accrt_finish_stream(stream);
  accrt_stream_release(stream);
  return status;
}

/* Components lie in the order of their constants. */
uint32_t accrt_program_constant_of(const accrt_program_t* program, uint32_t component) {
  const accrt_bundle_tables_t* tables = program->tables;
  uint32_t low = 0;
  uint32_t end = tables->constant_count;
  while (end - low > 1) {
    const uint32_t middle = low + (end - low) / 2;
    if (tables->constants[middle].component_first <= component) {
      low = middle;
    } else {
      end = middle;
    }
  }
  return low;
}

accrt_status_t accrt_weight_set_place(accrt_program_t* program, accrt_weight_set_t* weights,
                                      uint32_t component) {
  accrt_weight_component_t* placed = &weights->components[component];
  const void* data;
  if (placed->ready || !accrt_external_has(weights->external, component))
    return ACCRT_OK;
  if (accrt_program_has_own_memory(program) ||
      !accrt_external_lies_well(program, weights->external, component))
    return accrt_upload_move(program, weights, NULL, component);
  if (program->tables->components[component].size_bytes >= ACCRT_CHECK_AHEAD_BYTES)
    accrt_weight_set_check_ahead(program, weights, component, 1);
  ACCRT_TRY(
      accrt_external_bytes(program, weights->external, component, &data, &placed->size_bytes));
  placed->address = (uint64_t)(uintptr_t)data;
  placed->ready = true;
  return ACCRT_OK;
}

accrt_status_t accrt_weight_set_place_all(accrt_program_t* program, accrt_weight_set_t* weights) {
  accrt_status_t status = ACCRT_OK;
  accrt_weight_set_check_ahead(program, weights, 0, weights->count);
  for (uint32_t i = 0; i < weights->count && status == ACCRT_OK; ++i) {
    if (accrt_program_uses_component(program, i))
      status = accrt_weight_set_place(program, weights, i);
  }
  return status;
}

/* ---- Lending ---- */

/* Whether a prepare function of this device reads a component. */
static accrt_status_t is_prepared(const accrt_program_t* program, uint32_t component,
                                  bool* out_prepared) {
  const uint32_t count = program->tables->component_count;
  void* sources;
  ACCRT_TRY(accrt_alloc_array(program->allocator, count, 1, &sources));
  accrt_program_mark_sources(program, sources);
  *out_prepared = ((const uint8_t*)sources)[component] != 0;
  accrt_free_array(program->allocator, sources, count, 1);
  return ACCRT_OK;
}

accrt_status_t accrt_program_weight(accrt_program_t* program, const char* name,
                                    accrt_tensor_t* out_tensor) {
  ACCRT_ENTER(program, out_tensor);
  uint32_t index;
  ACCRT_TRY(accrt_program_find_stored(program, name, &index));
  const accx_constant_t* constant = &program->tables->constants[index];
  bool is_copied;
  ACCRT_TRY(is_prepared(program, constant->component_first, &is_copied));
  uint64_t generation, capacity_bytes, base;
  accrt_weight_set_t* weights = accrt_program_weights(program, &generation);
  const accrt_weight_component_t* placed = &weights->components[constant->component_first];
  accrt_status_t status = ACCRT_OK;
  if (is_copied || constant->encoding != ACCX_ENCODING_PLAIN || placed->buffer == NULL) {
    status = ACCRT_FAIL(UNSUPPORTED, "weight '%s' has no memory on the device that may be written",
                        name);
  } else {
    accrt_buffer_range(placed->buffer, &base, &capacity_bytes);
    *out_tensor = (accrt_tensor_t){
        placed->buffer,  NULL, placed->address - base, constant->dtype, constant->rank,
        constant->shape, NULL};
  }
  accrt_weight_set_release(weights);
  return status;
}

/* ---- Swapping ---- */

accrt_status_t accrt_program_find_stored(const accrt_program_t* program, const char* name,
                                         uint32_t* out_constant) {
  const accrt_bundle_tables_t* tables = program->tables;
  if (name == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "the name of a weight is NULL");
  *out_constant = accrt_bundle_lookup_constant(program->bundle, name);
  if (*out_constant != ACCX_NONE &&
      tables->constants[*out_constant].source != ACCX_CONSTANT_PREPARED)
    return ACCRT_OK;
  if (*out_constant != ACCX_NONE) {
    return ACCRT_FAIL(NOT_FOUND,
                      "constant '%s' is made by a prepare function: swap what that reads", name);
  }
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    if (tables->constants[i].source == ACCX_CONSTANT_PREPARED)
      continue;
    accrt_near_add(&near, accrt_program_string(program, tables->constants[i].name));
  }
  return ACCRT_FAIL(NOT_FOUND, "bundle '%s' has no constant '%s'%s",
                    accrt_bundle_name(program->bundle), name, accrt_near_text(&near));
}

static accrt_status_t check_weight(const accx_constant_t* constant, const accrt_weight_t* weight,
                                   uint64_t expected_bytes) {
  accx_type_t type;
  memset(&type, 0, sizeof type);
  type.dtype = constant->dtype;
  type.rank = constant->rank;
  uint64_t size_bytes;
  accrt_status_t status = accrt_tensor_check(&weight->tensor, &type, &size_bytes);
  for (uint32_t i = 0; i < constant->rank && status == ACCRT_OK; ++i) {
    if (weight->tensor.shape[i] == constant->shape[i])
      continue;
    status = ACCRT_FAIL(SHAPE_MISMATCH, "dimension %" PRIu32 ": got %" PRId64 ", expected %" PRId64,
                        i, weight->tensor.shape[i], constant->shape[i]);
  }
  if (status == ACCRT_OK && size_bytes != expected_bytes) {
    status = ACCRT_FAIL(SHAPE_MISMATCH, "got %" PRIu64 " bytes, expected %" PRIu64, size_bytes,
                        expected_bytes);
  }
  if (status != ACCRT_OK)
    accrt_error_prefix("weight '%s' (%s)", weight->name, accrt_dtype_name(constant->dtype));
  return status;
}

static accrt_status_t replace(accrt_program_t* program, const accrt_weight_t* weight,
                              accrt_weight_set_t* weights, uint8_t* changed) {
  uint32_t index = 0;
  ACCRT_TRY(accrt_checkpoint());
  ACCRT_TRY(accrt_program_find_stored(program, weight->name, &index));
  if (changed[index] != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "weight '%s' is given twice", weight->name);
  const accx_constant_t* constant = &program->tables->constants[index];
  if (constant->component_count != 1) {
    return ACCRT_FAIL(UNSUPPORTED, "weight '%s' has %" PRIu32 " components", weight->name,
                      constant->component_count);
  }
  const uint64_t size_bytes = program->tables->components[constant->component_first].size_bytes;
  ACCRT_TRY(check_weight(constant, weight, size_bytes));
  accrt_weight_component_t* component = &weights->components[constant->component_first];
  accrt_weight_component_forget(component);
  changed[index] = 1;
  const accrt_place_t source = {weight->tensor.buffer, weight->tensor.data,
                                weight->tensor.offset_bytes};
  return accrt_weight_component_upload(program, weight->name, component, &source, size_bytes);
}

/* Drops what prepare functions made from changed constants, and from what those made. */
static void drop_prepared(const accrt_program_t* program, accrt_weight_set_t* weights,
                          uint8_t* changed) {
  const accrt_bundle_tables_t* tables = program->tables;
  for (uint32_t f = 0; f < tables->function_count; ++f) {
    const accx_function_t* function = &tables->functions[f];
    if ((function->flags & ACCX_FUNCTION_PREPARE) == 0)
      continue;
    const accx_argument_t* arguments = accrt_function_arguments(program, f);
    bool is_changed = false;
    for (uint32_t i = 0; i < function->input_count; ++i) {
      is_changed =
          is_changed || (arguments[i].constant != ACCX_NONE && changed[arguments[i].constant]);
    }
    /* Constants may also be read through slots of their own. */
    for (uint32_t i = 0; i < function->slot_count; ++i) {
      const accx_slot_t* slot = &tables->slots[function->slot_first + i];
      is_changed = is_changed || (slot->kind == ACCX_SLOT_CONSTANT && changed[slot->index]);
    }
    if (!is_changed)
      continue;
    for (uint32_t i = 0; i < function->result_count; ++i) {
      const uint32_t constant = arguments[function->input_count + i].constant;
      changed[constant] = 1;
      accrt_weight_component_forget(
          &weights->components[tables->constants[constant].component_first]);
    }
  }
}

static accrt_status_t build_swapped(accrt_program_t* program, const accrt_weight_set_t* base,
                                    const accrt_weight_t* list, uint32_t count,
                                    accrt_weight_set_t** out_weights) {
  ACCRT_TRY(copy_set(base, out_weights));
  void* changed;
  accrt_status_t status =
      accrt_alloc_array(program->allocator, program->tables->constant_count, 1, &changed);
  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i)
    status = replace(program, &list[i], *out_weights, changed);
  if (status == ACCRT_OK)
    drop_prepared(program, *out_weights, changed);
  accrt_free_array(program->allocator, changed, program->tables->constant_count, 1);
  return status != ACCRT_OK ? status : accrt_prepare_run(program, *out_weights, false);
}

/* Publishes a set unless another was published since `generation`. The old set goes to
 * `*weights`. */
static bool publish(accrt_program_t* program, uint64_t generation, accrt_weight_set_t** weights) {
  accrt_mutex_lock(&program->weights_lock);
  const bool is_current =
      atomic_load_explicit(&program->weights_generation, memory_order_relaxed) == generation;
  if (is_current) {
    accrt_weight_set_t* old = program->weights;
    program->weights = *weights;
    *weights = old;
    /* Release pairs with the acquire in accrt_session_refresh_weights. */
    atomic_store_explicit(&program->weights_generation, generation + 1, memory_order_release);
  }
  accrt_mutex_unlock(&program->weights_lock);
  return is_current;
}

/* What one swap does. */
typedef struct swap {
  const accrt_weight_t* list; /* tensors; or NULL: a request */
  uint32_t count;
  accrt_external_request_t request;
} swap_t;

static void forget_changed(const accrt_program_t* program, accrt_weight_set_t* weights,
                           const uint8_t* changed) {
  for (uint32_t i = 0; i < program->tables->constant_count; ++i) {
    const accx_constant_t* constant = &program->tables->constants[i];
    for (uint32_t k = 0; changed[i] && k < constant->component_count; ++k)
      accrt_weight_component_forget(&weights->components[constant->component_first + k]);
  }
}

/* A set like `base` with what sources have in the place of some constants. */
static accrt_status_t build_loaded(accrt_program_t* program, const accrt_weight_set_t* base,
                                   const accrt_external_request_t* request,
                                   accrt_weight_set_t** out_weights) {
  ACCRT_TRY(copy_set(base, out_weights));
  accrt_weight_set_t* const made = *out_weights;
  const uint32_t count = program->tables->constant_count;
  accrt_external_request_t own = *request;
  own.base = base->external;
  accrt_external_t* external = NULL;
  void* changed;
  accrt_status_t status = accrt_alloc_array(program->allocator, count, 1, &changed);
  if (status == ACCRT_OK)
    status = accrt_external_create(program, &own, changed, &external);
  if (status == ACCRT_OK && external != NULL) {
    accrt_external_release(made->external);
    made->external = external;
    forget_changed(program, made, changed);
    drop_prepared(program, made, changed);
  }
  accrt_free_array(program->allocator, changed, count, 1);
  if (status == ACCRT_OK)
    status = accrt_weight_set_upload_all(program, made);
  if (status == ACCRT_OK)
    status = accrt_prepare_run(program, made, false);
  return status != ACCRT_OK ? status : accrt_weight_set_place_all(program, made);
}

/* The set is made without a lock; when another swap came first, it is made again on top of that. */
static accrt_status_t swap_and_publish(accrt_program_t* program, const swap_t* swap) {
  accrt_status_t status = ACCRT_OK;
  bool is_done = false;
  while (status == ACCRT_OK && !is_done) {
    uint64_t generation;
    accrt_weight_set_t* base = accrt_program_weights(program, &generation);
    accrt_weight_set_t* made = NULL;
    status = swap->list != NULL ? build_swapped(program, base, swap->list, swap->count, &made)
                                : build_loaded(program, base, &swap->request, &made);
    if (status == ACCRT_OK)
      is_done = publish(program, generation, &made);
    accrt_weight_set_release(made);
    accrt_weight_set_release(base);
  }
  return status;
}

static accrt_status_t run_swap(accrt_program_t* program, const swap_t* swap,
                               const accrt_budget_t* budget) {
  accrt_budget_t own;
  ACCRT_TRY(accrt_budget_read(budget, &own));
  accrt_meter_t meter;
  accrt_meter_begin(&meter, &own, "replacing weights of", accrt_bundle_name(program->bundle),
                    ACCRT_METER_PROGRAM_STEPS, ACCRT_METER_PROGRAM_BYTES);
  accrt_meter_allow(accrt_bundle_table_bytes(program->bundle));
  const accrt_status_t status = swap_and_publish(program, swap);
  accrt_meter_end(&meter);
  return status;
}

static accrt_status_t swap_tensors(const char* function, accrt_program_t* program,
                                   const accrt_weight_t* weights, uint32_t weight_count,
                                   uint32_t weight_size_bytes, const accrt_budget_t* budget) {
  ACCRT_ENTER_AS(function, program);
  if (weights == NULL && weight_count != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "weights is NULL");
  if (weight_count == 0)
    return ACCRT_OK;
  ACCRT_TRY(accrt_struct_check_element("accrt_weight_t", weight_size_bytes, sizeof *weights));
  swap_t swap;
  memset(&swap, 0, sizeof swap);
  swap.list = weights;
  swap.count = weight_count;
  return run_swap(program, &swap, budget);
}

static accrt_status_t load_sources(const char* function, accrt_program_t* program,
                                   accrt_weights_t* const* weights, uint32_t weight_count,
                                   const char* const* names, uint32_t name_count, uint32_t flags,
                                   const accrt_budget_t* budget) {
  ACCRT_ENTER_AS(function, program);
  if (weights == NULL || (names == NULL && name_count != 0))
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", weights == NULL ? "weights" : "names");
  if ((flags & ~ACCRT_BIND_BY_NAME) != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags are 0x%" PRIx32, flags);
  ACCRT_TRY(accrt_program_check_weights(program->instance, weights, weight_count));
  swap_t swap;
  memset(&swap, 0, sizeof swap);
  swap.request = (accrt_external_request_t){.weights = weights,
                                            .weight_count = weight_count,
                                            .names = names,
                                            .name_count = name_count,
                                            .by_name = (flags & ACCRT_BIND_BY_NAME) != 0,
                                            .is_load = true};
  return run_swap(program, &swap, budget);
}

accrt_status_t accrt_program_swap_weights_within(accrt_program_t* program,
                                                 const accrt_weight_t* weights,
                                                 uint32_t weight_count, uint32_t weight_size_bytes,
                                                 const accrt_budget_t* budget) {
  return swap_tensors(ACCRT_THIS_FUNCTION, program, weights, weight_count, weight_size_bytes,
                      budget);
}

accrt_status_t accrt_program_swap_weights(accrt_program_t* program, const accrt_weight_t* weights,
                                          uint32_t weight_count, uint32_t weight_size_bytes) {
  return swap_tensors(ACCRT_THIS_FUNCTION, program, weights, weight_count, weight_size_bytes, NULL);
}

accrt_status_t accrt_program_load_weights(accrt_program_t* program, accrt_weights_t* const* weights,
                                          uint32_t weight_count, const char* const* names,
                                          uint32_t name_count, uint32_t flags) {
  return load_sources(ACCRT_THIS_FUNCTION, program, weights, weight_count, names, name_count, flags,
                      NULL);
}

accrt_status_t accrt_program_load_weights_within(accrt_program_t* program,
                                                 accrt_weights_t* const* weights,
                                                 uint32_t weight_count, const char* const* names,
                                                 uint32_t name_count, uint32_t flags,
                                                 const accrt_budget_t* budget) {
  return load_sources(ACCRT_THIS_FUNCTION, program, weights, weight_count, names, name_count, flags,
                      budget);
}
