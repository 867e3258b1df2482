/* runtime/memory/heap.h - sub-allocation: the free parts of mapped segments.
 *
 * Segregated lists by size with two bitmaps (two-level segregated fit). Allocation, free and the
 * merge of neighbours take constant time. It may not lock, allocate, or touch the memory that it
 * divides; its owner holds a lock and supplies block records.
 */
#ifndef ACCRT_RUNTIME_MEMORY_HEAP_H_
#define ACCRT_RUNTIME_MEMORY_HEAP_H_

#include <stdbool.h>

#include "accrt/sys/driver.h"

#define ACCRT_HEAP_FIRST_LEVELS 40
#define ACCRT_HEAP_SECOND_LOG2 4
#define ACCRT_HEAP_SECOND_LEVELS (1 << ACCRT_HEAP_SECOND_LOG2)
/* Maximum number of block records that one accrt_heap_take uses. */
#define ACCRT_HEAP_SPARES_PER_TAKE 2u

typedef struct accrt_block {
  struct accrt_block* previous; /* neighbours by address, within the segment */
  struct accrt_block* next;
  struct accrt_block* previous_free; /* in the list of its size; unused among spares */
  struct accrt_block* next_free;
  struct accrt_segment* segment;
  uint64_t offset_bytes; /* within the segment */
  uint64_t size_bytes;
  bool free;
} accrt_block_t;

/* One mapping of a driver. */
typedef struct accrt_segment {
  struct accrt_segment* previous;
  struct accrt_segment* next;
  accrt_driver_memory_t memory;
  accrt_block_t* first;
  bool apart;         /* for one buffer only; it ends with that buffer */
  uint64_t zero_from; /* from this offset on it was never handed out, and reads as zeros */
} accrt_segment_t;

typedef struct accrt_heap {
  uint64_t granule_bytes; /* power of two; all sizes and offsets are multiples of it */
  uint64_t first_bitmap;
  uint32_t second_bitmap[ACCRT_HEAP_FIRST_LEVELS];
  accrt_block_t* lists[ACCRT_HEAP_FIRST_LEVELS][ACCRT_HEAP_SECOND_LEVELS];
  accrt_segment_t* segments;
  uint64_t segment_count;
  uint64_t free_bytes;
  accrt_block_t* spares;
  uint32_t spare_count;
} accrt_heap_t;

void accrt_heap_init(accrt_heap_t* heap, uint64_t granule_bytes);
/* Adds a spare block record, or takes one out. */
void accrt_heap_add_spare(accrt_heap_t* heap, accrt_block_t* block);
accrt_block_t* accrt_heap_take_spare(accrt_heap_t* heap);
/* Adds a segment that is completely free. Uses one spare block record, which must exist. */
void accrt_heap_add_segment(accrt_heap_t* heap, accrt_segment_t* segment);
/* Removes a segment that is completely free. Its block record becomes a spare. */
void accrt_heap_remove_segment(accrt_heap_t* heap, accrt_segment_t* segment);
bool accrt_heap_segment_is_free(const accrt_segment_t* segment);
/* Allocates size_bytes (a multiple of the granule, not 0) at an address that is a multiple of
 * alignment_bytes (a power of two); NULL when no free block fits. Needs ACCRT_HEAP_SPARES_PER_TAKE
 * spares. */
accrt_block_t* accrt_heap_take(accrt_heap_t* heap, uint64_t size_bytes, uint64_t alignment_bytes);
/* Allocates all of a segment that is completely free. */
accrt_block_t* accrt_heap_take_segment(accrt_heap_t* heap, accrt_segment_t* segment);
/* Frees a block and merges free neighbours. */
void accrt_heap_give(accrt_heap_t* heap, accrt_block_t* block);
uint64_t accrt_heap_largest_free(const accrt_heap_t* heap);
/* Checks every invariant; for tests. Returns a text that names a broken one, or NULL. */
const char* accrt_heap_check(const accrt_heap_t* heap);

#endif /* ACCRT_RUNTIME_MEMORY_HEAP_H_ */
