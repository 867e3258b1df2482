/* runtime/program/upload.c - which weights of a program are moved when, and what is checked of
 * those that are used where they lie. It may not know how bytes are moved (upload_move.c does).
 */
#include <string.h>

#include "loader/data.h"
#include "runtime/program/external.h"
#include "runtime/program/upload.h"

/* ---- In place ---- */

static void mark_chunks(const accx_component_t* place, uint8_t* chunks) {
  if (place->size_bytes == 0)
    return;
  const uint64_t first = place->offset_bytes / ACCX_CHUNK_BYTES;
  const uint64_t last = (place->offset_bytes + place->size_bytes - 1) / ACCX_CHUNK_BYTES;
  memset(chunks + first, 1, last - first + 1);
}

/* Chunks of one of the sources. */
static void check_chunks(const accrt_program_t* program, const accrt_weight_set_t* weights,
                         const accrt_weights_t* source, uint32_t first, uint32_t count) {
  const accrt_external_t* external = weights->external;
  accrt_bundle_t* bundle = source->files[0].bundle;
  const uint32_t threads = accrt_device_facts(program->device)->concurrency;
  void* memory;
  if (bundle == NULL || threads < 2 ||
      accrt_bundle_tables(bundle)->data_size_bytes < ACCRT_CHECK_AHEAD_BYTES ||
      accrt_alloc_array(program->allocator, accrt_bundle_tables(bundle)->chunk_count, 1, &memory) !=
          ACCRT_OK)
    return;
  for (uint32_t i = first; i < first + count; ++i) {
    if (external->parts[i].weights == source && !weights->components[i].ready &&
        (count == 1 || accrt_program_uses_component(program, i)) &&
        accrt_external_slice(program, external, i) == NULL)
      mark_chunks(accrt_external_stored(external, i), memory);
  }
  accrt_bundle_check_ahead(bundle, memory, threads);
  accrt_free_array(program->allocator, memory, accrt_bundle_tables(bundle)->chunk_count, 1);
}

void accrt_weight_set_check_ahead(const accrt_program_t* program, const accrt_weight_set_t* weights,
                                  uint32_t first, uint32_t count) {
  const accrt_external_t* external = weights->external;
  if (accrt_program_has_own_memory(program))
    return;
  check_chunks(program, weights, external->own, first, count);
  for (uint32_t i = 0; i < external->source_count; ++i)
    check_chunks(program, weights, external->sources[i], first, count);
}

/* Digests of what is used in place, a constant at a time. */
typedef struct checking {
  const accrt_program_t* program;
  accrt_external_t* external;
  const uint8_t* wanted;
  atomic_uint next;
} checking_t;

static uint64_t unchecked_bytes(const checking_t* checking, uint32_t constant) {
  const accrt_bundle_tables_t* tables = checking->program->tables;
  const accx_constant_t* record = &tables->constants[constant];
  uint64_t size_bytes = 0;
  bool any = false;
  for (uint32_t i = record->component_first; i < record->component_first + record->component_count;
       ++i) {
    any = any || checking->wanted[i] != 0;
    size_bytes += tables->components[i].size_bytes;
  }
  return any && accrt_external_unknown(checking->external, constant) ? size_bytes : 0;
}

static void* check_constants(void* user) {
  checking_t* checking = user;
  const uint32_t count = checking->program->tables->constant_count;
  for (;;) {
    const uint32_t constant = atomic_fetch_add_explicit(&checking->next, 1, memory_order_relaxed);
    if (constant >= count)
      return NULL;
    /* The code that places it finds the same, and says so. */
    if (unchecked_bytes(checking, constant) > 0 &&
        accrt_external_check(checking->program, checking->external, constant) != ACCRT_OK)
      atomic_store_explicit(&checking->next, count, memory_order_relaxed);
  }
}

static void check_in_place(const accrt_program_t* program, const accrt_weight_set_t* weights,
                           const uint8_t* wanted) {
  checking_t checking = {.program = program, .external = weights->external, .wanted = wanted};
  uint64_t size_bytes = 0;
  atomic_init(&checking.next, 0);
  for (uint32_t i = 0; i < program->tables->constant_count; ++i)
    size_bytes += unchecked_bytes(&checking, i);
  if (size_bytes >= ACCRT_CHECK_AHEAD_BYTES)
    accrt_upload_on_threads(program, size_bytes, check_constants, &checking);
}

/* ---- All that is used ---- */

accrt_status_t accrt_weight_set_upload_all(accrt_program_t* program, accrt_weight_set_t* weights) {
  const uint8_t* wanted = program->reach.components;
  accrt_status_t status = accrt_upload_move(program, weights, wanted, ACCX_NONE);
  if (status == ACCRT_OK && !accrt_program_has_own_memory(program))
    check_in_place(program, weights, wanted);
  return status;
}

/* ---- What only prepare functions read ---- */

/* Marks what a prepare function of this device reads: through its inputs, and through slots. */
static void mark_sources(const accrt_program_t* program, uint32_t function, uint8_t* sources) {
  const accrt_bundle_tables_t* tables = program->tables;
  const accx_function_t* record = &tables->functions[function];
  const accx_argument_t* arguments = accrt_function_arguments(program, function);
  for (uint32_t i = 0; i < record->input_count; ++i) {
    if (arguments[i].constant == ACCX_NONE)
      continue;
    const accx_constant_t* constant = &tables->constants[arguments[i].constant];
    memset(sources + constant->component_first, 1, constant->component_count);
  }
  for (uint32_t i = 0; i < record->slot_count; ++i) {
    const accx_slot_t* slot = &tables->slots[record->slot_first + i];
    if (slot->kind == ACCX_SLOT_CONSTANT)
      sources[tables->constants[slot->index].component_first + slot->component] = 1;
  }
}

void accrt_program_mark_sources(const accrt_program_t* program, uint8_t* sources) {
  for (uint32_t i = 0; i < program->tables->function_count; ++i) {
    if ((program->reach.functions[i] & ACCRT_REACH_PREPARE) != 0)
      mark_sources(program, i, sources);
  }
}

accrt_status_t accrt_weight_set_upload_sources(accrt_program_t* program,
                                               accrt_weight_set_t* weights) {
  if (!accrt_program_has_own_memory(program))
    return ACCRT_OK;
  void* memory;
  ACCRT_TRY(accrt_alloc_array(program->allocator, weights->count, 1, &memory));
  uint8_t* sources = memory;
  accrt_program_mark_sources(program, sources);
  for (uint32_t i = 0; i < weights->count; ++i)
    sources[i] = sources[i] && !accrt_program_uses_component(program, i);
  accrt_status_t status = accrt_upload_move(program, weights, sources, ACCX_NONE);
  accrt_free_array(program->allocator, memory, weights->count, 1);
  return status;
}

void accrt_weight_set_drop_sources(const accrt_program_t* program, accrt_weight_set_t* weights) {
  for (uint32_t i = 0; accrt_program_has_own_memory(program) && i < weights->count; ++i) {
    const uint32_t constant = accrt_program_constant_of(program, i);
    if (accrt_program_uses_component(program, i) ||
        program->tables->constants[constant].source == ACCX_CONSTANT_PREPARED)
      continue;
    accrt_weight_component_forget(&weights->components[i]);
  }
}
