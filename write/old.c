/* write/old.c - see write/old.h. */
#include "write/old.h"

#include <string.h>

#include "runtime/core/memory.h"
#include "write/below.h"

static accrt_status_t read_table(accx_old_t* old) {
  for (uint32_t i = 0; i < old->info.section_count; ++i) {
    accrt_section_info_t info = ACCRT_SECTION_INFO_INIT;
    ACCRT_TRY(accx_below(old->operation, accrt_bundle_section(old->bundle, i, &info)));
    accx_section_t* section = &old->sections[i];
    *section = (accx_section_t){.type = info.type,
                                .flags = info.required ? ACCX_SECTION_FLAG_REQUIRED : 0,
                                .offset = info.offset,
                                .size_bytes = info.size_bytes,
                                .record_bytes = info.record_bytes,
                                .record_count = info.record_count};
    memcpy(section->name, info.name, strnlen(info.name, sizeof section->name));
    memcpy(section->digest.bytes, info.digest, sizeof section->digest.bytes);
  }
  return ACCRT_OK;
}

accrt_status_t accx_old_open(const char* operation, accrt_bundle_t* bundle, accx_old_t* out_old) {
  *out_old = (accx_old_t){.operation = operation, .bundle = bundle};
  out_old->info = (accrt_bundle_info_t)ACCRT_BUNDLE_INFO_INIT;
  ACCRT_TRY(accx_below(operation, accrt_bundle_info(bundle, &out_old->info)));
  out_old->instance = accrt_bundle_instance(bundle);
  out_old->allocator = accrt_instance_allocator(out_old->instance);
  out_old->chunk_count =
      (uint32_t)((out_old->info.data_size_bytes + ACCX_CHUNK_BYTES - 1) / ACCX_CHUNK_BYTES);
  return read_table(out_old);
}

const accx_section_t* accx_old_section(const accx_old_t* old, uint32_t type) {
  for (uint32_t i = 0; i < old->info.section_count; ++i) {
    if (old->sections[i].type == type)
      return &old->sections[i];
  }
  return NULL;
}

accrt_status_t accx_old_read(const accx_old_t* old, const accx_section_t* section, uint64_t offset,
                             void* target, uint64_t size_bytes) {
  const uint32_t index = (uint32_t)(section - old->sections);
  return accx_below(old->operation,
                    accrt_bundle_section_read(old->bundle, index, offset, target, size_bytes));
}

accrt_status_t accx_old_load(const accx_old_t* old, uint32_t type, void** out_bytes,
                             size_t* out_size_bytes) {
  const accx_section_t* section = accx_old_section(old, type);
  *out_bytes = NULL;
  *out_size_bytes = 0;
  if (section == NULL)
    return ACCRT_OK;
  void* bytes;
  const size_t size = (size_t)section->size_bytes;
  ACCRT_TRY(accrt_alloc(old->allocator, size, &bytes));
  const accrt_status_t status = accx_old_read(old, section, 0, bytes, size);
  if (status != ACCRT_OK) {
    accrt_free(old->allocator, bytes, size);
    return status;
  }
  *out_bytes = bytes;
  *out_size_bytes = size;
  return ACCRT_OK;
}

size_t accx_old_chunk_bytes(const accx_old_t* old, uint32_t index) {
  const uint64_t left = old->info.data_size_bytes - (uint64_t)index * ACCX_CHUNK_BYTES;
  return left < ACCX_CHUNK_BYTES ? (size_t)left : ACCX_CHUNK_BYTES;
}
