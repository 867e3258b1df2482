/* loader/test_support.h - for tests and fuzzing. It takes bundles apart and puts them together with
 * correct digests, so that a mutation reaches the checks behind the digests. It also uses
 * everything of an opened bundle.
 *
 * It trusts the file that it takes apart (a golden one), and aborts if that is broken.
 */
#ifndef ACCRT_LOADER_TEST_SUPPORT_H_
#define ACCRT_LOADER_TEST_SUPPORT_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"
#include "loader/bundle.h"
#include "format/digest.h"

typedef struct part {
  accx_section_t section; /* type, flags, record size and count, name; the rest is computed */
  unsigned char* bytes;
  size_t size_bytes;
} part_t;

/* A bundle in pieces. */
typedef struct parts {
  accx_header_t header;
  part_t parts[64];
  uint32_t count;
} parts_t;

typedef struct bytes {
  unsigned char* data;
  size_t size;
} bytes_t;

static inline void* must_alloc(size_t size) {
  void* memory = calloc(1, size > 0 ? size : 1);
  if (memory == NULL)
    abort();
  return memory;
}

/* For whole files: aligned, so that weights are used in place and need no mapping. */
static inline void* must_alloc_file(size_t size) {
  void* memory = NULL;
  if (posix_memalign(&memory, 4096, size > 0 ? size : 1) != 0)
    abort();
  memset(memory, 0, size);
  return memory;
}

static inline bytes_t read_file(const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) {
    fprintf(stderr, "%s is missing (run from the root of the source tree)\n", path);
    abort();
  }
  if (fseek(file, 0, SEEK_END) != 0)
    abort();
  bytes_t bytes = {NULL, (size_t)ftell(file)};
  rewind(file);
  bytes.data = must_alloc_file(bytes.size);
  if (fread(bytes.data, 1, bytes.size, file) != bytes.size)
    abort();
  fclose(file);
  return bytes;
}

static inline bytes_t copy_bytes(const bytes_t* bytes) {
  bytes_t copy = {must_alloc_file(bytes->size), bytes->size};
  memcpy(copy.data, bytes->data, bytes->size);
  return copy;
}

static inline parts_t take_apart(const bytes_t* file) {
  parts_t parts = {.count = 0};
  memcpy(&parts.header, file->data, sizeof parts.header);
  parts.count = parts.header.section_count;
  for (uint32_t i = 0; i < parts.count; ++i) {
    part_t* part = &parts.parts[i];
    memcpy(&part->section, file->data + sizeof(accx_header_t) + i * sizeof part->section,
           sizeof part->section);
    part->size_bytes = (size_t)part->section.size_bytes;
    part->bytes = must_alloc(part->size_bytes);
    memcpy(part->bytes, file->data + part->section.offset, part->size_bytes);
  }
  return parts;
}

static inline void free_parts(parts_t* parts) {
  for (uint32_t i = 0; i < parts->count; ++i)
    free(parts->parts[i].bytes);
  parts->count = 0;
}

static inline part_t* find_part(parts_t* parts, uint32_t type) {
  for (uint32_t i = 0; i < parts->count; ++i) {
    if (parts->parts[i].section.type == type)
      return &parts->parts[i];
  }
  return NULL;
}

/* Returns record `index` of a section, whatever the form of its records; aborts if there is none.
 * `record_bytes` is for sections whose records have no fixed size. */
static inline void* record_of(parts_t* parts, uint32_t type, size_t record_bytes, uint32_t index) {
  part_t* part = find_part(parts, type);
  if (part != NULL && part->section.record_bytes != 0)
    record_bytes = part->section.record_bytes;
  if (part == NULL || (index + 1) * record_bytes > part->size_bytes)
    abort();
  return part->bytes + index * record_bytes;
}

static inline void resize_part(part_t* part, size_t size_bytes) {
  unsigned char* bytes = must_alloc(size_bytes);
  memcpy(bytes, part->bytes, size_bytes < part->size_bytes ? size_bytes : part->size_bytes);
  free(part->bytes);
  part->bytes = bytes;
  part->size_bytes = size_bytes;
  if (part->section.record_bytes != 0) {
    part->section.record_count = (uint32_t)(size_bytes / part->section.record_bytes);
  }
}

/* Inserts a section at its place in the order. */
static inline part_t* add_part(parts_t* parts, uint32_t type, uint32_t flags, const char* name,
                               uint32_t record_bytes, size_t size_bytes) {
  if (parts->count == 64)
    abort();
  uint32_t at = parts->count++;
  for (; at > 0 && parts->parts[at - 1].section.type > type; --at)
    parts->parts[at] = parts->parts[at - 1];
  part_t* part = &parts->parts[at];
  memset(part, 0, sizeof *part);
  part->section.type = type;
  part->section.flags = flags;
  part->section.record_bytes = record_bytes;
  part->section.record_count = record_bytes > 0 ? (uint32_t)(size_bytes / record_bytes) : 0;
  memcpy(part->section.name, name, strnlen(name, sizeof part->section.name));
  part->bytes = must_alloc(size_bytes);
  part->size_bytes = size_bytes;
  return part;
}

static inline void remove_part(parts_t* parts, uint32_t type) {
  part_t* part = find_part(parts, type);
  if (part == NULL)
    return;
  free(part->bytes);
  const size_t after = (size_t)(parts->parts + parts->count - (part + 1));
  memmove(part, part + 1, after * sizeof *part);
  --parts->count;
}

static inline void redo_header_digest(bytes_t* file) {
  accx_header_t header;
  memcpy(&header, file->data, sizeof header);
  memset(&header.digest, 0, sizeof header.digest);
  memcpy(file->data, &header, sizeof header);
  header.digest =
      accx_digest_of(file->data, sizeof header + header.section_count * sizeof(accx_section_t));
  memcpy(file->data, &header, sizeof header);
}

/* Computes the chunk digests of DATA again, in CHUNK_DIGESTS. */
static inline void redo_chunk_digests(parts_t* parts) {
  const part_t* data = find_part(parts, ACCX_SECTION_DATA);
  part_t* digests = find_part(parts, ACCX_SECTION_CHUNK_DIGESTS);
  if (data == NULL || digests == NULL)
    return;
  for (size_t i = 0; i < digests->size_bytes / sizeof(accx_digest_t); ++i) {
    const size_t begin = i * ACCX_CHUNK_BYTES;
    if (begin >= data->size_bytes)
      break;
    const size_t left = data->size_bytes - begin;
    const accx_digest_t digest =
        accx_digest_of(data->bytes + begin, left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES);
    memcpy(digests->bytes + i * sizeof digest, &digest, sizeof digest);
  }
}

/* Builds the file with computed offsets, sizes and digests. Sections are in the order of
 * `parts`. */
static inline bytes_t put_together(parts_t* parts) {
  redo_chunk_digests(parts);
  uint64_t end = sizeof(accx_header_t) + parts->count * sizeof(accx_section_t);
  for (uint32_t i = 0; i < parts->count; ++i) {
    part_t* part = &parts->parts[i];
    const bool big =
        part->section.type == ACCX_SECTION_CODE || part->section.type == ACCX_SECTION_DATA;
    const uint64_t alignment = big ? ACCX_DATA_ALIGN : 8;
    part->section.offset = (end + alignment - 1) & ~(alignment - 1);
    part->section.size_bytes = part->size_bytes;
    part->section.digest = accx_digest_of(part->bytes, part->size_bytes);
    end = part->section.offset + part->size_bytes;
  }
  part_t* data = find_part(parts, ACCX_SECTION_DATA);
  const part_t* digests = find_part(parts, ACCX_SECTION_CHUNK_DIGESTS);
  if (data != NULL && digests != NULL)
    data->section.digest = digests->section.digest;
  parts->header.section_count = parts->count;
  parts->header.file_size_bytes = end;
  bytes_t file = {must_alloc_file((size_t)end), (size_t)end};
  memcpy(file.data, &parts->header, sizeof parts->header);
  for (uint32_t i = 0; i < parts->count; ++i) {
    const part_t* part = &parts->parts[i];
    memcpy(file.data + sizeof parts->header + i * sizeof part->section, &part->section,
           sizeof part->section);
    memcpy(file.data + part->section.offset, part->bytes, part->size_bytes);
  }
  redo_header_digest(&file);
  return file;
}

/* ---- Using everything of a bundle ---- */

static inline void use_function(accrt_bundle_t* bundle, uint32_t index) {
  accrt_function_info_t info = ACCRT_FUNCTION_INFO_INIT;
  if (accrt_bundle_function(bundle, index, &info) != ACCRT_OK)
    abort();
  uint32_t found;
  if (accrt_bundle_find_function(bundle, info.name, &found) != ACCRT_OK || found != index)
    abort();
  for (uint32_t i = 0; i < info.input_count + info.result_count; ++i) {
    accrt_argument_info_t argument = ACCRT_ARGUMENT_INFO_INIT;
    if (accrt_bundle_argument(bundle, index, i, &argument) != ACCRT_OK)
      abort();
    uint64_t size = 0;
    if (accrt_bundle_argument_type_text(bundle, index, i, NULL, 0, &size) != ACCRT_OK)
      abort();
    char* text = must_alloc((size_t)size);
    if (accrt_bundle_argument_type_text(bundle, index, i, text, size, NULL) != ACCRT_OK ||
        strlen(text) + 1 != size)
      abort();
    free(text);
  }
}

/* Reads every section, and the records that are not part of the program. */
static inline void use_extras(accrt_bundle_t* bundle, const accrt_bundle_info_t* info) {
  volatile unsigned char sum = 0;
  for (uint32_t i = 0; i < info->section_count; ++i) {
    accrt_section_info_t section = ACCRT_SECTION_INFO_INIT;
    unsigned char bytes[64];
    if (accrt_bundle_section(bundle, i, &section) != ACCRT_OK)
      abort();
    const uint64_t size = section.size_bytes < sizeof bytes ? section.size_bytes : sizeof bytes;
    if (accrt_bundle_section_read(bundle, i, section.size_bytes - size, bytes, size) != ACCRT_OK ||
        accrt_bundle_section_read(bundle, i, section.size_bytes, bytes, 1) !=
            ACCRT_ERROR_OUT_OF_RANGE)
      abort();
    sum = (unsigned char)(sum + bytes[0]);
  }
  for (uint32_t i = 0; i < info->file_count; ++i) {
    accrt_file_info_t file = ACCRT_FILE_INFO_INIT;
    if (accrt_bundle_file(bundle, i, &file) != ACCRT_OK || strlen(file.name) == 0)
      abort();
  }
  for (uint32_t i = 0; i < info->shard_count; ++i) {
    accrt_shard_info_t shard = ACCRT_SHARD_INFO_INIT;
    accrt_constant_info_t constant = ACCRT_CONSTANT_INFO_INIT;
    if (accrt_bundle_shard(bundle, i, &shard) != ACCRT_OK ||
        accrt_bundle_constant(bundle, shard.constant, &constant) != ACCRT_OK || constant.shard != i)
      abort();
    for (uint32_t k = 0; k < shard.segment_count; ++k)
      sum = (unsigned char)(sum + shard.segments[k].replicas);
  }
  for (uint32_t i = 0; i < info->adapter_count; ++i) {
    accrt_adapter_info_t adapter = ACCRT_ADAPTER_INFO_INIT;
    if (accrt_bundle_adapter(bundle, i, &adapter) != ACCRT_OK || strlen(adapter.input) == 0)
      abort();
  }
  for (uint32_t i = 0; i < info->asset_count; ++i) {
    accrt_asset_info_t asset = ACCRT_ASSET_INFO_INIT;
    uint32_t found;
    if (accrt_bundle_asset(bundle, i, &asset) != ACCRT_OK ||
        accrt_bundle_find_asset(bundle, asset.name, &found) != ACCRT_OK || found != i)
      abort();
    for (uint64_t k = 0; k < asset.size_bytes; ++k)
      sum = (unsigned char)(sum + ((const unsigned char*)asset.data)[k]);
  }
  for (uint32_t i = 0; i < info->location_count; ++i) {
    accrt_location_info_t location = ACCRT_LOCATION_INFO_INIT;
    if (accrt_bundle_location(bundle, i, &location) != ACCRT_OK)
      abort();
  }
}

static inline void use_constant(accrt_bundle_t* bundle, uint32_t index) {
  accrt_constant_info_t info = ACCRT_CONSTANT_INFO_INIT;
  if (accrt_bundle_constant(bundle, index, &info) != ACCRT_OK)
    abort();
  volatile unsigned char sum = 0;
  uint64_t total = 0;
  for (uint32_t k = 0; k < info.component_count; ++k) {
    accrt_component_info_t component = ACCRT_COMPONENT_INFO_INIT;
    if (accrt_bundle_component(bundle, index, k, &component) != ACCRT_OK)
      abort();
    const void* data;
    uint64_t size;
    if (accrt_bundle_component_data(bundle, index, k, &data, &size) != ACCRT_OK)
      return; /* prepared, external, or corrupt */
    if (size != component.size_bytes)
      abort();
    total += size;
    for (uint64_t i = 0; i < size; ++i)
      sum = (unsigned char)(sum + ((const unsigned char*)data)[i]);
  }
  if (total != info.size_bytes)
    abort();
}

/* Reads every command, predecessor and operand as the program layer does. */
static inline uint64_t use_commands(const accrt_bundle_tables_t* tables) {
  uint64_t sum = 0;
  for (uint32_t b = 0; b < tables->block_count; ++b) {
    const accx_command_t* const* commands = accrt_bundle_block_commands(tables, b);
    for (uint32_t i = 0; i < tables->blocks[b].command_count; ++i) {
      const uint32_t* predecessors = accx_command_predecessors(commands[i]);
      for (uint32_t k = 0; k < commands[i]->predecessor_count; ++k)
        sum += predecessors[k];
      if (commands[i]->opcode == ACCX_COMMAND_DISPATCH) {
        const accx_dispatch_t* dispatch = accx_command_fields(commands[i]);
        for (uint32_t k = 0; k < dispatch->operand_count; ++k)
          sum += accx_dispatch_operands(dispatch)[k].immediate;
      }
    }
  }
  return sum;
}

static inline void use_kernels(accrt_bundle_t* bundle, const accrt_bundle_tables_t* tables) {
  for (uint32_t i = 0; i < tables->kernel_count; ++i) {
    accrt_bundle_kernel_info_t info = ACCRT_BUNDLE_KERNEL_INFO_INIT;
    if (accrt_bundle_kernel(bundle, i, &info) != ACCRT_OK)
      abort();
    if (accrt_bundle_lookup_kernel(bundle, info.name) != i)
      abort();
    for (uint32_t k = 0; k < info.variant_count; ++k) {
      accrt_variant_info_t variant = ACCRT_VARIANT_INFO_INIT;
      if (accrt_bundle_variant(bundle, i, k, &variant) != ACCRT_OK || strlen(variant.entry) == 0)
        abort();
    }
  }
  for (uint32_t i = 0; i < tables->image_count; ++i) {
    void* image = must_alloc((size_t)tables->images[i].size_bytes);
    if (accrt_bundle_image_copy(bundle, i, image) != ACCRT_OK)
      abort();
    free(image);
  }
}

/* Calls every public function and reads every table of an opened bundle. Aborts where they
 * contradict each other. */
static inline void use_bundle(accrt_bundle_t* bundle) {
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  if (accrt_bundle_info(bundle, &info) != ACCRT_OK)
    abort();
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
  for (uint32_t i = 0; i < info.section_count; ++i) {
    accrt_section_info_t section = ACCRT_SECTION_INFO_INIT;
    if (accrt_bundle_section(bundle, i, &section) != ACCRT_OK || strlen(section.name) == 0)
      abort();
  }
  for (uint32_t i = 0; i < info.metadata_count; ++i) {
    const char *key, *value;
    if (accrt_bundle_metadata(bundle, i, &key, &value) != ACCRT_OK || strlen(key) == 0)
      abort();
  }
  for (uint32_t i = 0; i < info.symbol_count; ++i) {
    accrt_symbol_info_t symbol = ACCRT_SYMBOL_INFO_INIT;
    if (accrt_bundle_symbol(bundle, i, &symbol) != ACCRT_OK)
      abort();
    if (accrt_bundle_lookup_symbol(bundle, symbol.name) != i)
      abort();
  }
  for (uint32_t i = 0; i < info.state_count; ++i) {
    accrt_state_info_t state = ACCRT_STATE_INFO_INIT;
    if (accrt_bundle_state(bundle, i, &state) != ACCRT_OK)
      abort();
    if (accrt_bundle_lookup_state(bundle, state.name) != i)
      abort();
  }
  use_extras(bundle, &info);
  for (uint32_t i = 0; i < info.constant_count; ++i)
    use_constant(bundle, i);
  for (uint32_t i = 0; i < info.function_count; ++i)
    use_function(bundle, i);
  use_kernels(bundle, tables);
  volatile uint64_t sum = use_commands(tables);
  (void)sum;
  (void)accrt_bundle_verify(bundle);
}

#endif /* ACCRT_LOADER_TEST_SUPPORT_H_ */
