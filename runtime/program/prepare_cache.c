/* runtime/program/prepare_cache.c - what prepare functions made is kept on disk (option prepare.cache) and found again by the digest of
 * all that it depends on.
 *
 * Nothing here fails: what cannot be found is made, and what cannot be kept is made again the next time.
 */
#include <string.h>

#include "accrt/kernel.h"
#include "runtime/core/disk_cache.h"
#include "runtime/core/instance.h"
#include "runtime/program/external.h"
#include "runtime/program/prepare_cache.h"

#define PIECE_BYTES (UINT64_C(1) << 16)

static const accx_argument_t* results_of(const accrt_program_t* program, uint32_t function) {
  return accrt_function_arguments(program, function) +
         program->tables->functions[function].input_count;
}

/* ---- The key ---- */

/* The variant that a command runs; NULL for copies, fills and barriers, which the driver does itself. */
static const accrt_program_variant_t* variant_of(const accrt_program_t* program,
                                                 const accrt_driver_command_t* command) {
  for (uint32_t i = 0; i < program->tables->kernel_count; ++i) {
    const accrt_program_kernel_t* kernel = &program->kernels[i];
    for (uint32_t v = 0; v < kernel->variant_count; ++v) {
      const accrt_program_variant_t* variant = &kernel->variants[v];
      if (command->opcode == ACCRT_DRIVER_COMMAND_DISPATCH
              ? variant->kernel == command->as.dispatch.kernel
              : variant->operation == command->as.invoke.operation)
        return variant;
    }
  }
  return NULL;
}

/* The code that runs: false when it is not in the bundle, since a pack's name does not say what is in it. */
static bool add_code(const accrt_program_t* program, const accrt_plan_t* plan,
                     accx_hasher_t* hasher) {
  for (uint32_t i = 0; i < plan->command_count; ++i) {
    const accrt_driver_command_t* command = &plan->commands[i];
    if (command->opcode != ACCRT_DRIVER_COMMAND_DISPATCH &&
        command->opcode != ACCRT_DRIVER_COMMAND_OPERATOR)
      continue;
    const accrt_program_variant_t* variant = variant_of(program, command);
    if (variant == NULL ||
        program->tables->images[program->tables->variants[variant->index].image].kind ==
            ACCX_IMAGE_PACK)
      return false;
    accx_hasher_update(hasher, &variant->index, sizeof variant->index);
  }
  return true;
}

static bool add_external_bytes(const accrt_program_t* program, const accrt_external_t* external,
                               uint32_t component, accx_hasher_t* hasher) {
  void* piece;
  if (accrt_alloc(program->allocator, PIECE_BYTES, &piece) != ACCRT_OK)
    return false;
  uint64_t left_bytes = program->tables->components[component].size_bytes;
  accrt_status_t status = ACCRT_OK;
  for (uint64_t at = 0; left_bytes > 0 && status == ACCRT_OK;) {
    const uint64_t bytes = left_bytes < PIECE_BYTES ? left_bytes : PIECE_BYTES;
    status = accrt_external_read(program, external, component, at, piece, bytes);
    if (status == ACCRT_OK)
      accx_hasher_update(hasher, piece, (size_t)bytes);
    at += bytes;
    left_bytes -= bytes;
  }
  accrt_free(program->allocator, piece, PIECE_BYTES);
  return status == ACCRT_OK;
}

/* What is read: the bundle's digest speaks for what lies in it, and for what has a digest there; the rest is read here. */
static bool add_sources(const accrt_program_t* program, accrt_external_t* external,
                        uint32_t function, const accrt_plan_t* plan, accx_hasher_t* hasher) {
  const accrt_bundle_tables_t* tables = program->tables;
  const accx_argument_t* arguments = accrt_function_arguments(program, function);
  for (uint32_t i = 0; i < plan->binding_count; ++i) {
    uint32_t component = plan->bindings[i].index;
    if (plan->bindings[i].kind == ACCRT_PLAN_ARGUMENT) {
      component = tables->constants[arguments[component].constant].component_first;
    } else if (plan->bindings[i].kind != ACCRT_PLAN_COMPONENT) {
      continue;
    }
    if (accrt_external_part(external, component) == NULL)
      continue;
    const uint32_t constant = accrt_program_constant_of(program, component);
    if (accrt_external_check(program, external, constant) != ACCRT_OK)
      return false;
    accx_hasher_update(hasher, &component, sizeof component);
    if (atomic_load_explicit(&external->checked[constant], memory_order_relaxed) !=
            ACCRT_EXTERNAL_GOOD &&
        !add_external_bytes(program, external, component, hasher))
      return false;
  }
  return true;
}

/* All but code and sources. */
static void add_rest(const accrt_program_t* program, uint32_t function, accx_hasher_t* hasher) {
  const accrt_device_info_t* device = accrt_device_facts(program->device);
  const uint32_t versions[] = {ACCRT_VERSION, ACCRT_KERNEL_ABI_VERSION, function};
  accx_hasher_update(hasher, versions, sizeof versions);
  accx_hasher_update(hasher, &program->tables->header.digest, sizeof(accx_digest_t));
  /* With the zero at each end, so that no two pairs are the same bytes. */
  accx_hasher_update(hasher, device->driver, strlen(device->driver) + 1);
  accx_hasher_update(hasher, device->arch, strlen(device->arch) + 1);
  accx_hasher_update(hasher, device->description, strlen(device->description) + 1);
  accx_hasher_update(hasher, &device->cpu_features, sizeof device->cpu_features);
}

/* Weights that are encrypted in the file are not to lie beside it in the open; bytes that nobody compares with the bundle's digests are
 * not known by them; a rank's part is not the whole. */
static bool may_be_kept(const accrt_program_t* program) {
  return program->tables->encryption == NULL && program->slices == NULL &&
         !accrt_bundle_skips_digests(program->bundle);
}

static bool make_key(const accrt_program_t* program, const accrt_weight_set_t* weights,
                     uint32_t function, const accrt_plan_t* plan, accrt_cache_key_t* out_key) {
  accx_hasher_t hasher;
  accx_hasher_init(&hasher);
  add_rest(program, function, &hasher);
  if (!may_be_kept(program) || !add_code(program, plan, &hasher) ||
      !add_sources(program, weights->external, function, plan, &hasher))
    return false;
  const accx_digest_t digest = accx_hasher_finish(&hasher);
  memcpy(out_key->bytes, digest.bytes, sizeof out_key->bytes);
  return true;
}

/* ---- Entries: the results' bytes, one after another ---- */

static uint64_t entry_bytes(const accrt_program_t* program, uint32_t function) {
  uint64_t size_bytes = 0;
  for (uint32_t i = 0; i < program->tables->functions[function].result_count; ++i) {
    const uint32_t constant = results_of(program, function)[i].constant;
    const uint64_t result_bytes =
        program->tables->components[program->tables->constants[constant].component_first]
            .size_bytes;
    size_bytes = result_bytes <= SIZE_MAX - size_bytes ? size_bytes + result_bytes : SIZE_MAX;
  }
  return size_bytes;
}

static accrt_status_t place(accrt_program_t* program, accrt_weight_set_t* weights,
                            uint32_t function, char* data) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < program->tables->functions[function].result_count && status == ACCRT_OK;
       ++i) {
    const accx_constant_t* constant =
        &program->tables->constants[results_of(program, function)[i].constant];
    const uint64_t bytes = program->tables->components[constant->component_first].size_bytes;
    const accrt_place_t source = {NULL, data, 0};
    status = accrt_weight_component_upload(program, accrt_program_string(program, constant->name),
                                           &weights->components[constant->component_first], &source,
                                           bytes);
    data += bytes;
  }
  return status;
}

/* Whatever of it is there when it fails: the function then writes into that. */
static bool restore(accrt_program_t* program, accrt_weight_set_t* weights, uint32_t function,
                    const accrt_prepare_entry_t* entry) {
  void* data;
  size_t size_bytes;
  if (!accrt_disk_cache_get(program->allocator, entry->folder, &entry->key, &data, &size_bytes))
    return false;
  const bool good = size_bytes == entry_bytes(program, function) &&
                    place(program, weights, function, data) == ACCRT_OK;
  accrt_free(program->allocator, data, size_bytes);
  return good;
}

bool accrt_prepare_find(accrt_program_t* program, accrt_weight_set_t* weights, uint32_t function,
                        const accrt_plan_t* plan, accrt_prepare_entry_t* entry) {
  entry->folder = accrt_instance_option(program->instance, "prepare.cache");
  if (entry->folder == NULL || entry->folder[0] == '\0') {
    entry->folder = NULL;
    return false;
  }
  const accrt_error_t saved = *accrt_error_current();
  if (!make_key(program, weights, function, plan, &entry->key))
    entry->folder = NULL;
  const bool found = entry->folder != NULL && restore(program, weights, function, entry);
  (void)accrt_error_restore(&saved);
  return found;
}

static accrt_status_t fetch(const accrt_program_t* program, const accrt_weight_set_t* weights,
                            uint32_t function, accrt_stream_t* stream, char* data) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < program->tables->functions[function].result_count && status == ACCRT_OK;
       ++i) {
    const uint32_t constant = results_of(program, function)[i].constant;
    const accrt_weight_component_t* made =
        &weights->components[program->tables->constants[constant].component_first];
    const accrt_place_t source = {made->buffer, NULL, 0};
    const accrt_place_t target = {NULL, data, 0};
    if (made->size_bytes != 0)
      status = accrt_stream_copy(stream, &source, &target, made->size_bytes);
    data += made->size_bytes;
  }
  /* Also after a failure: copies before it may be on their way into `data`. */
  const accrt_status_t finished = accrt_finish_stream(stream);
  return status != ACCRT_OK ? status : finished;
}

void accrt_prepare_keep(accrt_program_t* program, const accrt_weight_set_t* weights,
                        uint32_t function, const accrt_prepare_entry_t* entry,
                        accrt_stream_t* stream) {
  const uint64_t size_bytes = entry_bytes(program, function);
  if (entry->folder == NULL || size_bytes == 0 || size_bytes == SIZE_MAX)
    return;
  const accrt_error_t saved = *accrt_error_current();
  void* data;
  bool kept = false;
  if (accrt_alloc(program->allocator, (size_t)size_bytes, &data) == ACCRT_OK) {
    kept = fetch(program, weights, function, stream, data) == ACCRT_OK &&
           accrt_disk_cache_put(entry->folder, &entry->key, data, (size_t)size_bytes,
                                accrt_instance_prepare_cache_bytes(program->instance));
    accrt_free(program->allocator, data, (size_t)size_bytes);
  }
  if (!kept) {
    accrt_instance_log(program->instance, ACCRT_LOG_WARNING, "prepare",
                       "what function '%s' made could not be kept in %s",
                       accrt_function_name(program, function), entry->folder);
  }
  (void)accrt_error_restore(&saved);
}
