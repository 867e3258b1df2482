/* runtime/program/upload.c - the weights that a bundle stores, all at once, for devices with memory of their own: one buffer, one
 * pass over the file, each chunk checked on its way; for the others, each chunk checked where it lies. It may not know how bytes are moved.
 */
#include <stdio.h>
#include <string.h>

#include "loader/data.h"
#include "runtime/program/external.h"
#include "runtime/program/upload.h"

/* What goes where. */
typedef struct layout {
  accrt_extent_t* extents;
  uint32_t extent_count;
  uint64_t* offsets; /* of components in the buffer; UINT64_MAX: not there */
  uint64_t size_bytes;
} layout_t;

/* A component of a constant that the bundle stores. */
typedef struct component_at {
  const accx_constant_t* constant;
  const accx_component_t* place;
  uint32_t index;
} component_at_t;

/* The next one, beginning with the first when `at` is zero. */
static bool next_component(const accrt_bundle_tables_t* tables, uint32_t* constant,
                           component_at_t* at) {
  uint32_t index = at->place != NULL ? at->index + 1 : 0;
  for (; *constant < tables->constant_count; ++*constant) {
    const accx_constant_t* record = &tables->constants[*constant];
    if (index < record->component_first)
      index = record->component_first;
    if (record->source != ACCX_CONSTANT_INLINE ||
        index >= record->component_first + record->component_count)
      continue;
    *at = (component_at_t){record, &tables->components[index], index};
    return true;
  }
  return false;
}

/* Puts a component behind what is there, as one extent with its neighbour where both follow one another in the file too. */
static bool add_component(layout_t* layout, const component_at_t* at) {
  const uint64_t size_bytes = at->place->size_bytes;
  uint64_t offset;
  if (!accrt_align_u64(layout->size_bytes, ACCRT_STORAGE_ALIGN, &offset) ||
      !accrt_add_u64(offset, size_bytes, &layout->size_bytes))
    return false;
  layout->offsets[at->index] = offset;
  if (size_bytes == 0)
    return true;
  accrt_extent_t* last =
      layout->extent_count > 0 ? &layout->extents[layout->extent_count - 1] : NULL;
  if (last != NULL && at->place->offset_bytes - last->offset_bytes == offset - last->address) {
    last->size_bytes = offset + size_bytes - last->address;
    return true;
  }
  layout->extents[layout->extent_count++] =
      (accrt_extent_t){at->place->offset_bytes, size_bytes, offset};
  return true;
}

/* Lays out what is wanted, by component, and is not there. Addresses are offsets into the buffer still. */
static accrt_status_t make_layout(const accrt_program_t* program, const accrt_weight_set_t* weights,
                                  const uint8_t* wanted, layout_t* layout) {
  const uint32_t count = weights->count;
  void* memory;
  accrt_status_t status =
      accrt_alloc_array(program->allocator, count, sizeof *layout->extents, &memory);
  if (status != ACCRT_OK)
    return status;
  layout->extents = memory;
  status = accrt_alloc_array(program->allocator, count, sizeof *layout->offsets, &memory);
  if (status != ACCRT_OK)
    return status;
  layout->offsets = memory;
  for (uint32_t i = 0; i < count; ++i)
    layout->offsets[i] = UINT64_MAX;
  uint32_t constant = 0;
  component_at_t at = {NULL, NULL, 0};
  while (next_component(program->tables, &constant, &at)) {
    if (weights->components[at.index].ready || !wanted[at.index] ||
        accrt_external_part(weights->external, at.index) != NULL)
      continue;
    if (!add_component(layout, &at))
      return ACCRT_FAIL(OVERFLOW, "the weights do not fit 64 bits");
  }
  return ACCRT_OK;
}

static void free_layout(const accrt_program_t* program, uint32_t count, layout_t* layout) {
  accrt_free_array(program->allocator, layout->extents, count, sizeof *layout->extents);
  accrt_free_array(program->allocator, layout->offsets, count, sizeof *layout->offsets);
}

/* Names a constant that lies in a chunk, for a message. */
static const char* constant_in(const accrt_program_t* program, uint64_t begin, uint64_t end) {
  uint32_t constant = 0;
  component_at_t at = {NULL, NULL, 0};
  while (next_component(program->tables, &constant, &at)) {
    if (at.place->offset_bytes < end && at.place->offset_bytes + at.place->size_bytes > begin)
      return accrt_program_string(program, at.constant->name);
  }
  return NULL;
}

/* A chunk at a time: each is checked while it is in the processor's cache. */
static accrt_status_t fill(void* user, uint64_t offset_bytes, void* memory, uint64_t size_bytes) {
  const accrt_program_t* program = user;
  for (uint64_t done = 0; done < size_bytes; done += ACCX_CHUNK_BYTES) {
    const uint64_t at = offset_bytes + done;
    const uint64_t left = size_bytes - done;
    const uint64_t piece = left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
    const accrt_status_t status =
        accrt_bundle_data_read(program->bundle, at, (unsigned char*)memory + done, piece);
    if (status == ACCRT_OK)
      continue;
    const char* name = constant_in(program, at, at + piece);
    if (name != NULL)
      accrt_error_prefix("constant '%s'", name);
    return status;
  }
  return ACCRT_OK;
}

/* Labelled for those who look for who holds what. */
accrt_status_t accrt_upload_allocate(accrt_program_t* program, uint64_t size_bytes,
                                     accrt_buffer_t** out_buffer) {
  char label[64];
  const char* name = accrt_bundle_name(program->bundle);
  const char* slash = strrchr(name, '/');
  (void)snprintf(label, sizeof label, "weights of %s", slash != NULL ? slash + 1 : name);
  return accrt_weight_allocate(program, label, size_bytes, out_buffer);
}

static accrt_status_t move(accrt_program_t* program, layout_t* layout, uint64_t address) {
  for (uint32_t i = 0; i < layout->extent_count; ++i)
    layout->extents[i].address += address;
  const accrt_upload_t upload = {.name = "accrt_program_create",
                                 .size_bytes = program->tables->data_size_bytes,
                                 .extents = layout->extents,
                                 .extent_count = layout->extent_count,
                                 .fill = fill,
                                 .user = program};
  return accrt_device_upload(program->device, &upload);
}

static void share_out(accrt_weight_set_t* weights, const layout_t* layout,
                      const accrt_bundle_tables_t* tables, accrt_buffer_t* buffer) {
  uint64_t address, size_bytes;
  accrt_buffer_range(buffer, &address, &size_bytes);
  for (uint32_t i = 0; i < weights->count; ++i) {
    if (layout->offsets[i] == UINT64_MAX)
      continue;
    accrt_buffer_ref(buffer);
    weights->components[i] =
        (accrt_weight_component_t){.buffer = buffer,
                                   .address = address + layout->offsets[i],
                                   .size_bytes = tables->components[i].size_bytes,
                                   .ready = true};
  }
}

static accrt_status_t upload_stored(accrt_program_t* program, accrt_weight_set_t* weights,
                                    const uint8_t* wanted) {
  layout_t layout = {NULL, 0, NULL, 0};
  accrt_buffer_t* buffer = NULL;
  accrt_status_t status = make_layout(program, weights, wanted, &layout);
  if (status != ACCRT_OK || layout.extent_count == 0)
    goto out;
  status = accrt_upload_allocate(program, layout.size_bytes, &buffer);
  if (status != ACCRT_OK)
    goto out;
  uint64_t address, size_bytes;
  accrt_buffer_range(buffer, &address, &size_bytes);
  status = move(program, &layout, address);
  if (status == ACCRT_OK)
    share_out(weights, &layout, program->tables, buffer);

out:
  accrt_buffer_unref(buffer);
  free_layout(program, weights->count, &layout);
  return status;
}

static accrt_status_t upload(accrt_program_t* program, accrt_weight_set_t* weights,
                             const uint8_t* wanted) {
  const accrt_status_t status = upload_stored(program, weights, wanted);
  return status != ACCRT_OK || weights->external == NULL
             ? status
             : accrt_external_upload(program, weights, wanted);
}

accrt_status_t accrt_weight_set_upload_all(accrt_program_t* program, accrt_weight_set_t* weights) {
  const uint8_t* wanted = program->reach.components;
  if (accrt_program_has_own_memory(program))
    return upload(program, weights, wanted);
  return weights->external != NULL ? accrt_external_upload(program, weights, wanted) : ACCRT_OK;
}

/* ---- In place ---- */

static void mark_chunks(const accx_component_t* place, uint8_t* chunks) {
  if (place->size_bytes == 0)
    return;
  const uint64_t first = place->offset_bytes / ACCX_CHUNK_BYTES;
  const uint64_t last = (place->offset_bytes + place->size_bytes - 1) / ACCX_CHUNK_BYTES;
  memset(chunks + first, 1, last - first + 1);
}

void accrt_weight_set_check_ahead(const accrt_program_t* program, const accrt_weight_set_t* weights,
                                  uint32_t first, uint32_t count) {
  const accrt_bundle_tables_t* tables = program->tables;
  const uint32_t threads = accrt_device_facts(program->device)->concurrency;
  void* memory;
  if (accrt_program_has_own_memory(program) || threads < 2 ||
      tables->data_size_bytes < ACCRT_CHECK_AHEAD_BYTES ||
      accrt_alloc_array(program->allocator, tables->chunk_count, 1, &memory) != ACCRT_OK)
    return;
  for (uint32_t i = first; i < first + count; ++i) {
    if (!weights->components[i].ready && accrt_external_part(weights->external, i) == NULL &&
        (count == 1 || accrt_program_uses_component(program, i)) &&
        tables->constants[accrt_program_constant_of(program, i)].source == ACCX_CONSTANT_INLINE)
      mark_chunks(&tables->components[i], memory);
  }
  accrt_bundle_check_ahead(program->bundle, memory, threads);
  accrt_free_array(program->allocator, memory, tables->chunk_count, 1);
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
  accrt_status_t status = accrt_alloc_array(program->allocator, weights->count, 1, &memory);
  if (status != ACCRT_OK)
    return status;
  uint8_t* sources = memory;
  accrt_program_mark_sources(program, sources);
  for (uint32_t i = 0; i < weights->count; ++i)
    sources[i] = sources[i] && !accrt_program_uses_component(program, i);
  status = upload(program, weights, sources);
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
