/* write/old.h - an open bundle for code that writes it again. It uses the public functions of
 * libaccrt. */
#ifndef ACCRT_WRITE_OLD_H_
#define ACCRT_WRITE_OLD_H_

#include "accrt/trust.h"
#include "format/common.h"

typedef struct accx_old {
  const char* operation; /* the public function to which failures belong */
  accrt_bundle_t* bundle;
  accrt_instance_t* instance;
  const accrt_allocator_t* allocator;
  accrt_bundle_info_t info;
  accx_section_t sections[ACCX_MAX_SECTIONS]; /* as in the file; info.section_count of them */
  uint32_t chunk_count;
} accx_old_t;

/* Does not retain `bundle`. */
accrt_status_t accx_old_open(const char* operation, accrt_bundle_t* bundle, accx_old_t* out_old);
/* NULL when there is no section of this type. */
const accx_section_t* accx_old_section(const accx_old_t* old, uint32_t type);
/* Reads bytes of a section; `offset` counts from the section's start. */
accrt_status_t accx_old_read(const accx_old_t* old, const accx_section_t* section, uint64_t offset,
                             void* target, uint64_t size_bytes);
/* Reads a whole section into memory of `allocator` (free it with accrt_free and *out_size_bytes);
 * NULL when there is no such section. */
accrt_status_t accx_old_load(const accx_old_t* old, uint32_t type, void** out_bytes,
                             size_t* out_size_bytes);
/* The number of bytes of chunk `index`. */
size_t accx_old_chunk_bytes(const accx_old_t* old, uint32_t index);

#endif /* ACCRT_WRITE_OLD_H_ */
