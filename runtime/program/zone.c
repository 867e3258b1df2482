/* runtime/program/zone.c - memory that is freed all at once. It does not know its contents. */
#include "runtime/program/zone.h"

#include "runtime/core/error.h"
#include "runtime/core/memory.h"

#define ZONE_ALIGN ((size_t)16)
#define ZONE_BLOCK_BYTES ((size_t)16384)

struct accrt_zone_block {
  accrt_zone_block_t* next;
  size_t size_bytes; /* of the whole block with this header */
  size_t used_bytes;
};

static size_t header_bytes(void) {
  return (sizeof(accrt_zone_block_t) + ZONE_ALIGN - 1) & ~(ZONE_ALIGN - 1);
}

void accrt_zone_init(accrt_zone_t* zone, const accrt_allocator_t* allocator) {
  zone->allocator = allocator;
  zone->blocks = NULL;
}

void accrt_zone_deinit(accrt_zone_t* zone) {
  while (zone->blocks != NULL) {
    accrt_zone_block_t* block = zone->blocks;
    zone->blocks = block->next;
    accrt_free(zone->allocator, block, block->size_bytes);
  }
}

static accrt_status_t add_block(accrt_zone_t* zone, size_t payload_bytes) {
  const size_t size_bytes =
      header_bytes() + (payload_bytes > ZONE_BLOCK_BYTES ? payload_bytes : ZONE_BLOCK_BYTES);
  void* memory;
  ACCRT_TRY(accrt_alloc(zone->allocator, size_bytes, &memory));
  accrt_zone_block_t* block = memory;
  block->size_bytes = size_bytes;
  block->used_bytes = header_bytes();
  block->next = zone->blocks;
  zone->blocks = block;
  return ACCRT_OK;
}

accrt_status_t accrt_zone_take(accrt_zone_t* zone, size_t count, size_t element_bytes,
                               void** out_pointer) {
  *out_pointer = NULL;
  uint64_t bytes;
  uint64_t rounded;
  if (!accrt_mul_u64(count, element_bytes, &bytes) ||
      !accrt_align_u64(bytes, ZONE_ALIGN, &rounded) || rounded > SIZE_MAX / 2) {
    return ACCRT_FAIL(OVERFLOW, "%zu elements of %zu bytes", count, element_bytes);
  }
  if (rounded == 0)
    return ACCRT_OK;
  const accrt_zone_block_t* first = zone->blocks;
  if (first == NULL || first->size_bytes - first->used_bytes < rounded) {
    ACCRT_TRY(add_block(zone, (size_t)rounded));
  }
  *out_pointer = (char*)zone->blocks + zone->blocks->used_bytes;
  zone->blocks->used_bytes += (size_t)rounded;
  return ACCRT_OK;
}
