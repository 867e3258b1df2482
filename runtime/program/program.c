/* runtime/program/program.c - programs: a bundle's code and weights on a device. */
#include <string.h>

#include "loader/trust.h"
#include "runtime/core/struct.h"
#include "runtime/program/external.h"
#include "runtime/program/shard.h"
#include "runtime/program/upload.h"

static void destroy(accrt_program_t* program) {
  const accrt_allocator_t* allocator = program->allocator;
  accrt_weight_set_release(program->weights);
  accrt_program_functions_destroy(program);
  accrt_program_kernels_destroy(program);
  accrt_program_reach_destroy(program);
  accrt_program_shards_destroy(program);
  accrt_free_string(allocator, program->variant_override);
  accrt_bundle_unref(program->bundle);
  accrt_free(allocator, program, sizeof *program);
}

static accrt_status_t bind_external(accrt_program_t* program,
                                    const accrt_program_options_t* options) {
  void* bound;
  ACCRT_TRY(accrt_alloc_array(program->allocator, program->tables->constant_count, 1, &bound));
  const accrt_external_request_t request = {.weights = options->weights,
                                            .weight_count = options->weight_count,
                                            .by_name = (options->flags & ACCRT_BIND_BY_NAME) != 0};
  accrt_status_t status =
      accrt_external_create(program, &request, bound, &program->weights->external);
  accrt_free_array(program->allocator, bound, program->tables->constant_count, 1);
  return status;
}

/* On a device that uses host memory in place, a prepare function checks a component's digest right
 * before it reads the component, while the bytes are in the CPU's cache. So prepare functions run
 * first. A device with its own memory first gets all components in few large copies. */
static accrt_status_t make_weights(accrt_program_t* program,
                                   const accrt_program_options_t* options) {
  ACCRT_TRY(accrt_weight_set_create(program->allocator, program->tables->component_count,
                                    &program->weights));
  ACCRT_TRY(accrt_program_shards_create(program, options->rank, options->degree));
  ACCRT_TRY(bind_external(program, options));
  ACCRT_TRY(accrt_weight_set_upload_all(program, program->weights));
  ACCRT_TRY(accrt_weight_set_upload_sources(program, program->weights));
  ACCRT_TRY(accrt_prepare_run(program, program->weights, true));
  accrt_weight_set_drop_sources(program, program->weights);
  return accrt_weight_set_place_all(program, program->weights);
}

static accrt_status_t fill(accrt_program_t* program, const accrt_program_options_t* options) {
  accrt_status_t status =
      accrt_copy_string(program->allocator, options->variant_override, &program->variant_override);
  accrt_meter_at("functions");
  if (status == ACCRT_OK)
    status = accrt_program_functions_create(program);
  if (status == ACCRT_OK)
    status = accrt_program_reach_create(program);
  accrt_meter_at("kernels");
  if (status == ACCRT_OK)
    status = accrt_program_kernels_create(program);
  accrt_meter_at("weights");
  return status != ACCRT_OK ? status : make_weights(program, options);
}

static accrt_status_t check_arguments(accrt_device_t* device, accrt_bundle_t* bundle) {
  if (device == NULL || bundle == NULL) {
    return ACCRT_FAIL_NULL(device, bundle);
  }
  if (accrt_device_instance(device) != accrt_bundle_instance(bundle)) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "device '%s' and bundle '%s' belong to different instances",
                      accrt_device_facts(device)->name, accrt_bundle_name(bundle));
  }
  return accrt_inner_device_status(device);
}

accrt_status_t accrt_program_check_weights(const accrt_instance_t* instance,
                                           accrt_weights_t* const* weights, uint32_t count) {
  if (weights == NULL && count != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "weights is NULL");
  for (uint32_t i = 0; i < count; ++i) {
    if (weights[i] == NULL)
      return ACCRT_FAIL(INVALID_ARGUMENT, "weights %" PRIu32 " is NULL", i);
    if (weights[i]->instance != instance)
      return ACCRT_FAIL(INVALID_ARGUMENT, "weights '%s' belong to another instance",
                        accx_weights_name(weights[i]));
  }
  return ACCRT_OK;
}

accrt_status_t accrt_program_create(accrt_device_t* device, accrt_bundle_t* bundle,
                                    const accrt_program_options_t* options,
                                    accrt_program_t** out_program) {
  if (out_program != NULL)
    *out_program = NULL;
  ACCRT_ENTER(out_program);
  accrt_program_options_t own;
  accrt_status_t status = accrt_struct_read("accrt_program_options_t", options, &own, sizeof own);
  accrt_budget_t budget;
  if (status == ACCRT_OK)
    status = accrt_budget_read(own.budget, &budget);
  if (status == ACCRT_OK)
    status = check_arguments(device, bundle);
  if (status != ACCRT_OK)
    return status;
  if ((own.flags & ~ACCRT_BIND_BY_NAME) != 0 || own.reserved != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags are 0x%" PRIx32 ", reserved is %" PRIu32, own.flags,
                      own.reserved);
  ACCRT_TRY(
      accrt_program_check_weights(accrt_device_instance(device), own.weights, own.weight_count));
  ACCRT_TRY(accrt_bundle_allow_version(bundle));
  const accrt_allocator_t* allocator = accrt_instance_allocator(accrt_device_instance(device));
  accrt_program_t* program;
  ACCRT_TRY(ACCRT_NEW(allocator, &program));
  accrt_object_init(&program->object);
  accrt_mutex_init(&program->weights_lock, ACCRT_LOCK_WEIGHTS);
  atomic_init(&program->weights_generation, 1);
  program->allocator = allocator;
  program->device = device;
  program->instance = accrt_device_instance(device);
  accrt_bundle_ref(bundle);
  program->bundle = bundle;
  program->tables = accrt_bundle_tables(bundle);
  accrt_meter_t meter;
  accrt_meter_begin(&meter, &budget, "making a program of", accrt_bundle_name(bundle),
                    ACCRT_METER_PROGRAM_STEPS, ACCRT_METER_PROGRAM_BYTES);
  accrt_meter_allow(accrt_bundle_table_bytes(bundle));
  status = fill(program, &own);
  accrt_meter_end(&meter);
  if (status != ACCRT_OK) {
    destroy(program);
    return status;
  }
  (void)accrt_instance_retain(program->instance);
  *out_program = program;
  return ACCRT_OK;
}

void accrt_program_unref(accrt_program_t* program) {
  if (accrt_object_release(&program->object))
    destroy(program);
}

accrt_program_t* accrt_program_retain(accrt_program_t* program) {
  if (program == NULL || accrt_forked())
    return program;
  accrt_object_retain(&program->object);
  (void)accrt_instance_retain(program->instance);
  return program;
}

void accrt_program_release(accrt_program_t* program) {
  if (program == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = program->instance;
  accrt_program_unref(program);
  accrt_instance_release(instance);
}

accrt_bundle_t* accrt_program_bundle(accrt_program_t* program) {
  return program != NULL ? program->bundle : NULL;
}
