/* runtime/program/prepare.c - prepare functions: they make constants from constants when a program
 * is created or its weights change.
 *
 * They run on a stream of their own. accrt_prepare_run returns when they are complete.
 */
#include <string.h>

#include "runtime/program/prepare_cache.h"

/* How often a running function's limits are looked at. */
#define LOOK_NS UINT64_C(20000000)

/* One prepare function during its run. */
typedef struct preparation {
  accrt_program_t* program;
  accrt_weight_set_t* weights;
  accrt_stream_t* stream;
  uint32_t function;
  accrt_plan_t* plan;
  accrt_buffer_t* arena;
  uint64_t arena_address;
  accrt_driver_binding_t* bindings;
  bool uses_disk; /* results come from disk, and new ones are stored there */
  accrt_prepare_entry_t entry;
  uint8_t* temporary; /* by component: 1 if it was placed only for prepare functions */
} preparation_t;

static bool is_missing(const preparation_t* preparation, uint32_t function) {
  const accrt_bundle_tables_t* tables = preparation->program->tables;
  const accx_function_t* record = &tables->functions[function];
  if ((record->flags & ACCX_FUNCTION_PREPARE) == 0 ||
      (preparation->program->reach.functions[function] & ACCRT_REACH_PREPARE) == 0)
    return false;
  const accx_argument_t* results =
      accrt_function_arguments(preparation->program, function) + record->input_count;
  for (uint32_t i = 0; i < record->result_count; ++i) {
    const uint32_t component = tables->constants[results[i].constant].component_first;
    if (!preparation->weights->components[component].ready)
      return true;
  }
  return false;
}

static accrt_status_t allocate_results(preparation_t* preparation) {
  const accrt_bundle_tables_t* tables = preparation->program->tables;
  const accx_function_t* record = &tables->functions[preparation->function];
  const accx_argument_t* results =
      accrt_function_arguments(preparation->program, preparation->function) + record->input_count;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < record->result_count && status == ACCRT_OK; ++i) {
    const accx_constant_t* constant = &tables->constants[results[i].constant];
    accrt_weight_component_t* component =
        &preparation->weights->components[constant->component_first];
    if (component->ready)
      continue;
    status = accrt_weight_set_allocate(
        preparation->program, accrt_program_string(preparation->program, constant->name), component,
        tables->components[constant->component_first].size_bytes);
  }
  return status;
}

static accrt_status_t make_plan(preparation_t* preparation) {
  accrt_program_t* program = preparation->program;
  const uint32_t symbol_count = program->tables->symbol_count;
  const uint32_t argument_count = accrt_function_argument_count(program, preparation->function);
  accrt_zone_t zone;
  accrt_zone_init(&zone, program->allocator);
  void* symbols = NULL;
  void* present = NULL;
  void* state_bytes = NULL;
  accrt_status_t status =
      accrt_zone_take(&zone, symbol_count, sizeof(accrt_expr_value_t), &symbols);
  if (status == ACCRT_OK)
    status = accrt_zone_take(&zone, argument_count, 1, &present);
  if (status == ACCRT_OK)
    status = accrt_zone_take(&zone, program->tables->state_count, sizeof(uint64_t), &state_bytes);
  if (status == ACCRT_OK) {
    for (uint32_t i = 0; i < symbol_count; ++i)
      ((accrt_expr_value_t*)symbols)[i] = accrt_expr_unknown(i);
    if (argument_count != 0)
      memset(present, 1, argument_count);
    const accrt_plan_request_t request = {program, preparation->function, symbols,
                                          present, state_bytes,           false,
                                          NULL,    ACCRT_TIMEOUT_INFINITE};
    status = accrt_plan_create(&request, &preparation->plan);
  }
  accrt_zone_deinit(&zone);
  return status;
}

static accrt_status_t allocate_arena(preparation_t* preparation) {
  if (preparation->plan->arena_bytes == 0)
    return ACCRT_OK;
  accrt_pool_t* pool;
  ACCRT_TRY(accrt_pool_default(preparation->program->device, ACCRT_MEMORY_DEVICE, &pool));
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.alignment_bytes = ACCRT_ARENA_ALIGN;
  options.label = "prepare";
  accrt_status_t status = accrt_inner_buffer_create(pool, preparation->plan->arena_bytes, &options,
                                                    &preparation->arena);
  uint64_t size_bytes;
  if (status == ACCRT_OK)
    accrt_buffer_range(preparation->arena, &preparation->arena_address, &size_bytes);
  return status;
}

static accrt_status_t bind_weight(preparation_t* preparation, uint32_t component,
                                  accrt_driver_binding_t* out_binding) {
  const accrt_weight_component_t* weight = &preparation->weights->components[component];
  const bool was_ready = weight->ready;
  ACCRT_TRY(accrt_weight_set_place(preparation->program, preparation->weights, component));
  if (!was_ready && !accrt_program_uses_component(preparation->program, component))
    preparation->temporary[component] = 1;
  if (!weight->ready)
    return ACCRT_FAIL(INVALID_FORMAT, "it reads a constant that a later function makes");
  out_binding->address = weight->address;
  out_binding->size_bytes = weight->size_bytes;
  return ACCRT_OK;
}

static accrt_status_t bind(preparation_t* preparation) {
  const accrt_bundle_tables_t* tables = preparation->program->tables;
  const accrt_plan_t* plan = preparation->plan;
  const accx_argument_t* arguments =
      accrt_function_arguments(preparation->program, preparation->function);
  ACCRT_TRY(ACCRT_NEW_ARRAY(preparation->program->allocator, plan->binding_count,
                            &preparation->bindings));
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < plan->binding_count && status == ACCRT_OK; ++i) {
    uint32_t component = plan->bindings[i].index;
    if (plan->bindings[i].kind == ACCRT_PLAN_ARENA) {
      preparation->bindings[i].address = preparation->arena_address;
      preparation->bindings[i].size_bytes = plan->arena_bytes;
      continue;
    }
    if (plan->bindings[i].kind == ACCRT_PLAN_STATE) {
      return ACCRT_FAIL(INVALID_FORMAT, "a prepare function has no state");
    }
    if (plan->bindings[i].kind == ACCRT_PLAN_ARGUMENT) {
      component = tables->constants[arguments[component].constant].component_first;
    }
    status = bind_weight(preparation, component, &preparation->bindings[i]);
  }
  return status;
}

/* Ends the function when the time is over, or another thread cancels the making of the program.
 * What a device cannot stop is waited for, because the memory that it uses goes. */
static accrt_status_t wait_within_limits(accrt_stream_t* stream, uint64_t submission) {
  for (;;) {
    const accrt_status_t status = accrt_stream_wait_over(stream, submission, LOOK_NS);
    if (status != ACCRT_ERROR_TIMEOUT)
      return status == ACCRT_OK ? ACCRT_OK : accrt_finish_stream(stream);
    if (accrt_checkpoint() == ACCRT_OK)
      continue;
    const accrt_error_t error = *accrt_error_current();
    (void)accrt_inner_stream_cancel(stream);
    (void)accrt_stream_wait_over(stream, submission, ACCRT_TIMEOUT_INFINITE);
    return accrt_error_restore(&error);
  }
}

/* On other threads, while this one looks at the limits. */
static accrt_status_t execute_within_limits(accrt_stream_t* stream,
                                            const accrt_stream_work_t* work) {
  uint64_t submission;
  accrt_status_t status = accrt_stream_hand_over(stream);
  if (status == ACCRT_OK)
    status = accrt_stream_execute(stream, work, &submission);
  accrt_stream_go(stream);
  return status == ACCRT_OK ? wait_within_limits(stream, submission) : status;
}

static accrt_status_t execute(preparation_t* preparation) {
  const accrt_plan_t* plan = preparation->plan;
  if (plan->list == NULL)
    return ACCRT_OK;
  accrt_stream_work_t work;
  memset(&work, 0, sizeof work);
  work.list = plan->list;
  work.bindings = preparation->bindings;
  work.binding_count = plan->binding_count;
  work.name = accrt_function_name(preparation->program, preparation->function);
  if (accrt_meter_has_end())
    return execute_within_limits(preparation->stream, &work);
  uint64_t submission;
  accrt_status_t status = accrt_stream_execute_inline(preparation->stream, &work, &submission);
  if (status != ACCRT_ERROR_NOT_READY)
    return status;
  status = accrt_stream_execute(preparation->stream, &work, &submission);
  return status != ACCRT_OK ? status : accrt_finish_stream(preparation->stream);
}

static accrt_status_t make_results(preparation_t* preparation) {
  accrt_status_t status = allocate_results(preparation);
  if (status == ACCRT_OK)
    status = allocate_arena(preparation);
  if (status == ACCRT_OK)
    status = bind(preparation);
  if (status == ACCRT_OK)
    status = execute(preparation);
  if (status == ACCRT_OK && preparation->uses_disk) {
    accrt_prepare_store(preparation->program, preparation->weights, preparation->function,
                        &preparation->entry);
  }
  return status;
}

static bool find_results(preparation_t* preparation) {
  return preparation->uses_disk &&
         accrt_prepare_find(preparation->program, preparation->weights, preparation->function,
                            preparation->plan, &preparation->entry);
}

static accrt_status_t run_function(preparation_t* preparation) {
  accrt_program_t* program = preparation->program;
  accrt_status_t status = ACCRT_OK;
  if (preparation->stream == NULL)
    status = accrt_inner_stream_create(program->device, NULL, &preparation->stream);
  if (status == ACCRT_OK)
    status = make_plan(preparation);
  if (status == ACCRT_OK && !find_results(preparation))
    status = make_results(preparation);
  if (status != ACCRT_OK) {
    accrt_error_prefix("prepare function '%s'",
                       accrt_function_name(program, preparation->function));
  }
  if (preparation->plan != NULL) {
    accrt_free_array(program->allocator, preparation->bindings, preparation->plan->binding_count,
                     sizeof *preparation->bindings);
  }
  preparation->bindings = NULL;
  accrt_buffer_release(preparation->arena);
  preparation->arena = NULL;
  preparation->arena_address = 0;
  accrt_plan_release(preparation->plan);
  preparation->plan = NULL;
  return status;
}

/* Releases components that only prepare functions read. The bundle still has them. */
static void release_temporary(const preparation_t* preparation) {
  for (uint32_t i = 0; i < preparation->weights->count; ++i) {
    if (!preparation->temporary[i])
      continue;
    accrt_weight_component_t* component = &preparation->weights->components[i];
    accrt_buffer_unref(component->buffer);
    memset(component, 0, sizeof *component);
  }
}

accrt_status_t accrt_prepare_run(accrt_program_t* program, accrt_weight_set_t* weights,
                                 bool is_first) {
  preparation_t preparation;
  memset(&preparation, 0, sizeof preparation);
  preparation.program = program;
  preparation.weights = weights;
  /* A device with its own memory has the sources already, and reads them faster than a processor
   * makes the SHA-256 that an entry is found by. */
  preparation.uses_disk = is_first && !accrt_program_has_own_memory(program);
  void* temporary;
  ACCRT_TRY(accrt_alloc_array(program->allocator, weights->count, 1, &temporary));
  preparation.temporary = temporary;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < program->tables->function_count && status == ACCRT_OK; ++i) {
    preparation.function = i;
    status = accrt_charge_record(i);
    if (status != ACCRT_OK || !is_missing(&preparation, i))
      continue;
    status = accrt_checkpoint();
    if (status == ACCRT_OK)
      status = run_function(&preparation);
  }
  accrt_stream_release(preparation.stream);
  release_temporary(&preparation);
  accrt_free_array(program->allocator, temporary, weights->count, 1);
  return status;
}
