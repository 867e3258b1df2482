/* runtime/program/prepare_cache.c - results of prepare functions on disk (option prepare.cache). An
 * entry's name is the SHA-256 of everything that its results depend on. An attacker could make a
 * fast digest match, and a bundle would then get the results of another bundle's functions.
 *
 * Nothing here fails a program. A result that is not found is computed. A result that cannot be
 * stored is computed again the next time.
 */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "accrt/kernel.h"
#include "loader/trust.h"
#include "runtime/core/crypto.h"
#include "runtime/core/disk_cache.h"
#include "runtime/core/instance.h"
#include "runtime/core/sha256.h"
#include "runtime/program/external.h"
#include "runtime/program/prepare_cache.h"

#define PIECE_BYTES ACCX_CHUNK_BYTES
#define PIECES_OF_A_THREAD 8u /* fewer pieces are not worth another thread */

static const accx_argument_t* results_of(const accrt_program_t* program, uint32_t function) {
  return accrt_function_arguments(program, function) +
         program->tables->functions[function].input_count;
}

/* ---- The key ---- */

/* The variant that a command runs. NULL for copies, fills and barriers, which need no kernel. */
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

/* Adds the code that runs. False when it is not in the bundle: the name of a pack does not identify
 * its contents. */
static bool add_code(const accrt_program_t* program, const accrt_plan_t* plan,
                     accrt_sha256_t* hash) {
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
    accrt_sha256_update_u32(hash, variant->index);
  }
  return true;
}

/* Bytes that no SHA-256 of the bundle covers. Several threads read and hash them in pieces. */
typedef struct piece {
  uint32_t component;
  uint64_t offset_bytes;
  uint64_t size_bytes;
  unsigned char digest[ACCRT_SHA256_BYTES];
} piece_t;

typedef struct reading {
  const accrt_program_t* program;
  const accrt_external_t* external;
  piece_t* pieces;
  size_t count;
  size_t capacity;
  /* Relaxed is enough for a ticket and a flag. The join makes the digests visible. */
  atomic_size_t next;
  atomic_bool failed;
} reading_t;

static bool add_pieces(reading_t* reading, uint32_t component) {
  const uint64_t size_bytes = reading->program->tables->components[component].size_bytes;
  for (uint64_t at = 0; at < size_bytes; at += PIECE_BYTES) {
    const accrt_status_t status = ACCRT_GROW(reading->program->allocator, reading->count + 1,
                                             &reading->pieces, &reading->capacity);
    if (status != ACCRT_OK)
      return false;
    const uint64_t left = size_bytes - at;
    reading->pieces[reading->count++] =
        (piece_t){.component = component,
                  .offset_bytes = at,
                  .size_bytes = left < PIECE_BYTES ? left : PIECE_BYTES};
  }
  return true;
}

static void* run_reading(void* user) {
  reading_t* reading = user;
  const accrt_crypto_t* crypto = accrt_instance_crypto_if(reading->program->instance);
  void* bytes;
  if (accrt_alloc_unset(reading->program->allocator, PIECE_BYTES, 16, &bytes) != ACCRT_OK) {
    atomic_store_explicit(&reading->failed, true, memory_order_relaxed);
    return NULL;
  }
  for (;;) {
    const size_t index = atomic_fetch_add_explicit(&reading->next, 1, memory_order_relaxed);
    if (index >= reading->count || atomic_load_explicit(&reading->failed, memory_order_relaxed))
      break;
    piece_t* piece = &reading->pieces[index];
    if (accrt_external_read(reading->program, reading->external, piece->component,
                            piece->offset_bytes, bytes, piece->size_bytes) != ACCRT_OK) {
      atomic_store_explicit(&reading->failed, true, memory_order_relaxed);
      break;
    }
    accrt_sha256_t hash;
    accrt_sha256_init(&hash, crypto);
    accrt_sha256_update(&hash, bytes, (size_t)piece->size_bytes);
    accrt_sha256_finish(&hash, piece->digest);
  }
  accrt_free(reading->program->allocator, bytes, PIECE_BYTES);
  return NULL;
}

static bool read_pieces(reading_t* reading) {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  const size_t useful = reading->count / PIECES_OF_A_THREAD + 1;
  const size_t most = processors > 1 ? (size_t)processors : 1;
  accrt_threads_run(useful < most ? useful : most, run_reading, reading);
  return !atomic_load_explicit(&reading->failed, memory_order_relaxed);
}

/* Collects the bytes to hash. With leaves, the weight root in the key covers the bundle's own
 * weights, so only other bytes are hashed. A result of another prepare function is covered by the
 * bundle too, but only if no source outside the bundle was used. */
static bool collect_sources(reading_t* reading, uint32_t function, const accrt_plan_t* plan,
                            bool has_leaves) {
  const accrt_program_t* program = reading->program;
  const accrt_bundle_tables_t* tables = program->tables;
  const accx_argument_t* arguments = accrt_function_arguments(program, function);
  for (uint32_t i = 0; i < plan->binding_count; ++i) {
    uint32_t component = plan->bindings[i].index;
    if (plan->bindings[i].kind == ACCRT_PLAN_ARGUMENT) {
      component = tables->constants[arguments[component].constant].component_first;
    } else if (plan->bindings[i].kind != ACCRT_PLAN_COMPONENT) {
      continue;
    }
    if (!accrt_external_has(reading->external, component)) {
      const bool is_result = plan->bindings[i].kind == ACCRT_PLAN_ARGUMENT &&
                             plan->bindings[i].index >= tables->functions[function].input_count;
      if (!is_result && (!has_leaves || reading->external->source_count != 0))
        return false;
    } else if ((!has_leaves || !accrt_external_is_own(reading->external, component)) &&
               !add_pieces(reading, component)) {
      return false;
    }
  }
  return true;
}

static bool add_sources(const accrt_program_t* program, const accrt_external_t* external,
                        uint32_t function, const accrt_plan_t* plan, bool has_leaves,
                        accrt_sha256_t* hash) {
  reading_t reading = {.program = program, .external = external};
  atomic_init(&reading.next, 0);
  atomic_init(&reading.failed, false);
  const bool good = collect_sources(&reading, function, plan, has_leaves) && read_pieces(&reading);
  for (size_t i = 0; good && i < reading.count; ++i) {
    accrt_sha256_update_u32(hash, reading.pieces[i].component);
    accrt_sha256_update_u64(hash, reading.pieces[i].size_bytes);
    accrt_sha256_update(hash, reading.pieces[i].digest, sizeof reading.pieces[i].digest);
  }
  accrt_free_array(program->allocator, reading.pieces, reading.capacity, sizeof *reading.pieces);
  return good;
}

/* Checks that the bytes match the bundle's leaves. A new entry is stored under the name of the
 * leaves, so its sources must be the bytes that the leaves stand for. */
static bool leaves_match(const accrt_program_t* program, const accrt_external_t* external,
                         uint32_t function, const accrt_plan_t* plan) {
  const accx_argument_t* arguments = accrt_function_arguments(program, function);
  void* scratch;
  if (accrt_alloc_unset(program->allocator, PIECE_BYTES, 16, &scratch) != ACCRT_OK)
    return false;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < plan->binding_count && status == ACCRT_OK; ++i) {
    uint32_t component = plan->bindings[i].index;
    if (plan->bindings[i].kind == ACCRT_PLAN_ARGUMENT)
      component = program->tables->constants[arguments[component].constant].component_first;
    else if (plan->bindings[i].kind != ACCRT_PLAN_COMPONENT)
      continue;
    if (accrt_external_is_own(external, component))
      status = accrt_bundle_check_leaves(program->bundle, component, scratch);
  }
  accrt_free(program->allocator, scratch, PIECE_BYTES);
  return status == ACCRT_OK;
}

/* Includes the NUL, so that two lists of texts never give the same bytes. */
static void add_text(accrt_sha256_t* hash, const char* text) {
  accrt_sha256_update(hash, text, strlen(text) + 1);
}

/* Adds everything except code and sources. */
static void add_rest(const accrt_program_t* program, uint32_t function, accrt_sha256_t* hash) {
  const accrt_device_info_t* device = accrt_device_facts(program->device);
  add_text(hash, "accrt prepared 2");
  accrt_sha256_update_u32(hash, ACCRT_VERSION);
  accrt_sha256_update_u32(hash, ACCRT_KERNEL_ABI_VERSION);
  accrt_sha256_update_u32(hash, function);
  add_text(hash, device->driver);
  add_text(hash, device->arch);
  add_text(hash, device->description);
  accrt_sha256_update_u64(hash, device->cpu_features);
}

/* Results of encrypted weights must not be stored in plain text. Without checked digests the bytes
 * may differ from the bundle's. A rank has only a part of its weights. In these cases nothing is
 * stored. */
static bool may_store(const accrt_program_t* program) {
  return program->tables->encryption == NULL && program->slices == NULL &&
         !accrt_bundle_skips_digests(program->bundle);
}

static bool make_key(const accrt_program_t* program, const accrt_weight_set_t* weights,
                     uint32_t function, const accrt_plan_t* plan, bool* out_has_leaves,
                     accrt_cache_key_t* out_key) {
  accrt_key_t code, root;
  if (!may_store(program) ||
      accrt_bundle_roots(program->bundle, &code, &root, out_has_leaves) != ACCRT_OK)
    return false;
  accrt_sha256_t hash;
  accrt_sha256_init(&hash, accrt_instance_crypto_if(program->instance));
  add_rest(program, function, &hash);
  accrt_sha256_update(&hash, code.bytes, sizeof code.bytes);
  accrt_sha256_update(&hash, root.bytes, sizeof root.bytes);
  const bool good = add_code(program, plan, &hash) &&
                    add_sources(program, weights->external, function, plan, *out_has_leaves, &hash);
  accrt_sha256_finish(&hash, out_key->bytes);
  return good;
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

/* A failure may leave a result partly written. The prepare function then overwrites it. */
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
  bool has_leaves = false;
  if (!make_key(program, weights, function, plan, &has_leaves, &entry->key))
    entry->folder = NULL;
  const bool found = entry->folder != NULL && restore(program, weights, function, entry);
  if (!found && has_leaves && !leaves_match(program, weights->external, function, plan))
    entry->folder = NULL;
  (void)accrt_error_restore(&saved);
  return found;
}

/* The results lie in the host's memory, and are complete. */
static void fetch(const accrt_program_t* program, const accrt_weight_set_t* weights,
                  uint32_t function, char* data) {
  for (uint32_t i = 0; i < program->tables->functions[function].result_count; ++i) {
    const uint32_t constant = results_of(program, function)[i].constant;
    const accrt_weight_component_t* made =
        &weights->components[program->tables->constants[constant].component_first];
    memcpy(data, (const void*)(uintptr_t)made->address, made->size_bytes);
    data += made->size_bytes;
  }
}

void accrt_prepare_store(accrt_program_t* program, const accrt_weight_set_t* weights,
                         uint32_t function, const accrt_prepare_entry_t* entry) {
  const uint64_t size_bytes = entry_bytes(program, function);
  if (entry->folder == NULL || size_bytes == 0 || size_bytes == SIZE_MAX)
    return;
  const accrt_error_t saved = *accrt_error_current();
  void* data;
  bool kept = false;
  if (accrt_alloc_unset(program->allocator, (size_t)size_bytes, 16, &data) == ACCRT_OK) {
    fetch(program, weights, function, data);
    kept = accrt_disk_cache_put(entry->folder, &entry->key, data, (size_t)size_bytes,
                                accrt_instance_prepare_cache_bytes(program->instance));
    accrt_free(program->allocator, data, (size_t)size_bytes);
  }
  if (!kept) {
    accrt_instance_log(program->instance, ACCRT_LOG_WARNING, "prepare",
                       "the results of function '%s' could not be stored in %s",
                       accrt_function_name(program, function), entry->folder);
  }
  (void)accrt_error_restore(&saved);
}
