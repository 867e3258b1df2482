/* runtime/memory/heap.c - two-level segregated fit. It may not lock, allocate, or touch the memory
 * that it divides. */
#include "runtime/memory/heap.h"

#include <stddef.h>
#include <string.h>

#include "runtime/core/assertion.h"

typedef struct size_class {
  uint32_t first;
  uint32_t second;
} size_class_t;

static uint32_t floor_log2(uint64_t value) {
  return 63u - (uint32_t)__builtin_clzll(value);
}

/* The class that lists a free block of this size: the block is at least as large as the class's
 * lower bound. */
static size_class_t class_of(const accrt_heap_t* heap, uint64_t size_bytes) {
  const uint64_t units = size_bytes / heap->granule_bytes;
  if (units < ACCRT_HEAP_SECOND_LEVELS)
    return (size_class_t){0, (uint32_t)units};
  const uint32_t log2 = floor_log2(units);
  const uint32_t first = log2 - ACCRT_HEAP_SECOND_LOG2 + 1;
  if (first >= ACCRT_HEAP_FIRST_LEVELS) {
    return (size_class_t){ACCRT_HEAP_FIRST_LEVELS - 1, ACCRT_HEAP_SECOND_LEVELS - 1};
  }
  const uint32_t second =
      (uint32_t)(units >> (log2 - ACCRT_HEAP_SECOND_LOG2)) & (ACCRT_HEAP_SECOND_LEVELS - 1);
  return (size_class_t){first, second};
}

/* Rounds up to the lower bound of a class. Every block in that class is large enough. */
static uint64_t round_to_class(const accrt_heap_t* heap, uint64_t size_bytes) {
  const uint64_t units = size_bytes / heap->granule_bytes;
  if (units < ACCRT_HEAP_SECOND_LEVELS)
    return size_bytes;
  const uint64_t step =
      (UINT64_C(1) << (floor_log2(units) - ACCRT_HEAP_SECOND_LOG2)) * heap->granule_bytes;
  const uint64_t rounded = size_bytes + (step - 1);
  return rounded < size_bytes ? UINT64_MAX & ~(heap->granule_bytes - 1) : rounded;
}

static void list_free(accrt_heap_t* heap, accrt_block_t* block) {
  const size_class_t at = class_of(heap, block->size_bytes);
  accrt_block_t** head = &heap->lists[at.first][at.second];
  block->free = true;
  block->previous_free = NULL;
  block->next_free = *head;
  if (*head != NULL)
    (*head)->previous_free = block;
  *head = block;
  heap->second_bitmap[at.first] |= 1u << at.second;
  heap->first_bitmap |= UINT64_C(1) << at.first;
  heap->free_bytes += block->size_bytes;
}

static void unlist_free(accrt_heap_t* heap, accrt_block_t* block) {
  const size_class_t at = class_of(heap, block->size_bytes);
  if (block->next_free != NULL)
    block->next_free->previous_free = block->previous_free;
  if (block->previous_free != NULL) {
    block->previous_free->next_free = block->next_free;
  } else {
    heap->lists[at.first][at.second] = block->next_free;
    if (block->next_free == NULL)
      heap->second_bitmap[at.first] &= ~(1u << at.second);
    if (heap->second_bitmap[at.first] == 0)
      heap->first_bitmap &= ~(UINT64_C(1) << at.first);
  }
  block->free = false;
  block->previous_free = NULL;
  block->next_free = NULL;
  heap->free_bytes -= block->size_bytes;
}

void accrt_heap_init(accrt_heap_t* heap, uint64_t granule_bytes) {
  memset(heap, 0, sizeof *heap);
  heap->granule_bytes = granule_bytes;
}

void accrt_heap_add_spare(accrt_heap_t* heap, accrt_block_t* block) {
  memset(block, 0, sizeof *block);
  block->next_free = heap->spares;
  heap->spares = block;
  heap->spare_count += 1;
}

accrt_block_t* accrt_heap_take_spare(accrt_heap_t* heap) {
  accrt_block_t* block = heap->spares;
  if (block == NULL)
    return NULL;
  heap->spares = block->next_free;
  ACCRT_ASSERT(heap->spare_count > 0);
  heap->spare_count -= 1;
  block->next_free = NULL;
  return block;
}

void accrt_heap_add_segment(accrt_heap_t* heap, accrt_segment_t* segment) {
  accrt_block_t* block = accrt_heap_take_spare(heap);
  block->segment = segment;
  block->size_bytes = segment->memory.size_bytes & ~(heap->granule_bytes - 1);
  segment->first = block;
  segment->previous = NULL;
  segment->next = heap->segments;
  if (heap->segments != NULL)
    heap->segments->previous = segment;
  heap->segments = segment;
  heap->segment_count += 1;
  list_free(heap, block);
}

bool accrt_heap_segment_is_free(const accrt_segment_t* segment) {
  return segment->first->free && segment->first->next == NULL;
}

void accrt_heap_remove_segment(accrt_heap_t* heap, accrt_segment_t* segment) {
  unlist_free(heap, segment->first);
  accrt_heap_add_spare(heap, segment->first);
  segment->first = NULL;
  if (segment->next != NULL)
    segment->next->previous = segment->previous;
  if (segment->previous != NULL) {
    segment->previous->next = segment->next;
  } else {
    heap->segments = segment->next;
  }
  ACCRT_ASSERT(heap->segment_count > 0);
  heap->segment_count -= 1;
}

/* Bytes to skip so that the block's address is aligned. */
static uint64_t padding(const accrt_block_t* block, uint64_t alignment_bytes) {
  const uint64_t address = block->segment->memory.device_address + block->offset_bytes;
  return (alignment_bytes - (address & (alignment_bytes - 1))) & (alignment_bytes - 1);
}

static bool fits(const accrt_block_t* block, uint64_t size_bytes, uint64_t alignment_bytes) {
  const uint64_t skip = padding(block, alignment_bytes);
  return skip <= block->size_bytes && size_bytes <= block->size_bytes - skip;
}

/* Returns a block of the first non-empty class from `at` upwards. */
static accrt_block_t* first_from(const accrt_heap_t* heap, size_class_t at) {
  uint32_t seconds = heap->second_bitmap[at.first] & (UINT32_MAX << at.second);
  uint32_t first = at.first;
  if (seconds == 0) {
    if (first + 1 >= ACCRT_HEAP_FIRST_LEVELS)
      return NULL;
    const uint64_t firsts = heap->first_bitmap & (UINT64_MAX << (first + 1));
    if (firsts == 0)
      return NULL;
    first = (uint32_t)__builtin_ctzll(firsts);
    seconds = heap->second_bitmap[first];
  }
  return heap->lists[first][(uint32_t)__builtin_ctz(seconds)];
}

/* Searches the lists from the class of `size_bytes` up. It runs only when the constant-time search
 * finds nothing, so that a nearly full heap is used completely. */
static accrt_block_t* search(const accrt_heap_t* heap, uint64_t size_bytes,
                             uint64_t alignment_bytes) {
  const size_class_t at = class_of(heap, size_bytes);
  for (uint32_t first = at.first; first < ACCRT_HEAP_FIRST_LEVELS; ++first) {
    if ((heap->first_bitmap >> first & 1) == 0)
      continue;
    for (uint32_t second = first == at.first ? at.second : 0; second < ACCRT_HEAP_SECOND_LEVELS;
         ++second) {
      for (accrt_block_t* block = heap->lists[first][second]; block != NULL;
           block = block->next_free) {
        if (fits(block, size_bytes, alignment_bytes))
          return block;
      }
    }
  }
  return NULL;
}

static accrt_block_t* find(const accrt_heap_t* heap, uint64_t size_bytes,
                           uint64_t alignment_bytes) {
  uint64_t wanted;
  if (__builtin_add_overflow(size_bytes, alignment_bytes - heap->granule_bytes, &wanted))
    return NULL;
  accrt_block_t* block = first_from(heap, class_of(heap, round_to_class(heap, wanted)));
  /* The last class has no upper bound, so its blocks need a check. */
  if (block != NULL && fits(block, size_bytes, alignment_bytes))
    return block;
  return search(heap, size_bytes, alignment_bytes);
}

/* Cuts `block` (not listed) at `size_bytes`. The rest becomes a free block. */
static accrt_block_t* split(accrt_heap_t* heap, accrt_block_t* block, uint64_t size_bytes) {
  accrt_block_t* rest = accrt_heap_take_spare(heap);
  rest->segment = block->segment;
  rest->offset_bytes = block->offset_bytes + size_bytes;
  rest->size_bytes = block->size_bytes - size_bytes;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != NULL)
    rest->next->previous = rest;
  block->next = rest;
  block->size_bytes = size_bytes;
  return rest;
}

accrt_block_t* accrt_heap_take(accrt_heap_t* heap, uint64_t size_bytes, uint64_t alignment_bytes) {
  if (alignment_bytes < heap->granule_bytes)
    alignment_bytes = heap->granule_bytes;
  accrt_block_t* block = find(heap, size_bytes, alignment_bytes);
  if (block == NULL)
    return NULL;
  const uint64_t skip = padding(block, alignment_bytes);
  unlist_free(heap, block);
  if (skip != 0) {
    accrt_block_t* front = block;
    block = split(heap, front, skip);
    list_free(heap, front);
  }
  if (block->size_bytes > size_bytes)
    list_free(heap, split(heap, block, size_bytes));
  return block;
}

accrt_block_t* accrt_heap_take_segment(accrt_heap_t* heap, accrt_segment_t* segment) {
  unlist_free(heap, segment->first);
  return segment->first;
}

/* Joins `right` onto `left`, its neighbour; neither is listed. */
static void join(accrt_heap_t* heap, accrt_block_t* left, accrt_block_t* right) {
  left->size_bytes += right->size_bytes;
  left->next = right->next;
  if (left->next != NULL)
    left->next->previous = left;
  accrt_heap_add_spare(heap, right);
}

void accrt_heap_give(accrt_heap_t* heap, accrt_block_t* block) {
  accrt_block_t* next = block->next;
  accrt_block_t* previous = block->previous;
  if (next != NULL && next->free) {
    unlist_free(heap, next);
    join(heap, block, next);
  }
  if (previous != NULL && previous->free) {
    unlist_free(heap, previous);
    join(heap, previous, block);
    block = previous;
  }
  list_free(heap, block);
}

uint64_t accrt_heap_largest_free(const accrt_heap_t* heap) {
  if (heap->first_bitmap == 0)
    return 0;
  const uint32_t first = floor_log2(heap->first_bitmap);
  const uint32_t second = floor_log2(heap->second_bitmap[first]);
  uint64_t largest = 0;
  for (const accrt_block_t* block = heap->lists[first][second]; block != NULL;
       block = block->next_free) {
    if (block->size_bytes > largest)
      largest = block->size_bytes;
  }
  return largest;
}

static const char* check_segment(const accrt_heap_t* heap, const accrt_segment_t* segment,
                                 uint64_t* free_bytes) {
  uint64_t offset = 0;
  const accrt_block_t* previous = NULL;
  for (const accrt_block_t* block = segment->first; block != NULL;
       previous = block, block = block->next) {
    if (block->segment != segment)
      return "a block names another segment";
    if (block->previous != previous)
      return "a block's left neighbour is wrong";
    if (block->offset_bytes != offset)
      return "blocks leave a gap";
    if (block->size_bytes == 0 || block->size_bytes % heap->granule_bytes != 0)
      return "a size is no multiple";
    if (block->free && previous != NULL && previous->free)
      return "free neighbours were not joined";
    if (block->free)
      *free_bytes += block->size_bytes;
    offset += block->size_bytes;
  }
  return offset == (segment->memory.size_bytes & ~(heap->granule_bytes - 1))
             ? NULL
             : "a segment is not covered";
}

const char* accrt_heap_check(const accrt_heap_t* heap) {
  uint64_t by_address = 0, by_list = 0;
  for (const accrt_segment_t* segment = heap->segments; segment != NULL; segment = segment->next) {
    const char* broken = check_segment(heap, segment, &by_address);
    if (broken != NULL)
      return broken;
  }
  for (uint32_t first = 0; first < ACCRT_HEAP_FIRST_LEVELS; ++first) {
    for (uint32_t second = 0; second < ACCRT_HEAP_SECOND_LEVELS; ++second) {
      const accrt_block_t* head = heap->lists[first][second];
      if ((head != NULL) != ((heap->second_bitmap[first] >> second & 1) != 0))
        return "a bitmap lies";
      for (; head != NULL; head = head->next_free)
        by_list += head->size_bytes;
    }
    if ((heap->second_bitmap[first] != 0) != ((heap->first_bitmap >> first & 1) != 0))
      return "the first bitmap lies";
  }
  if (by_address != heap->free_bytes || by_list != heap->free_bytes)
    return "free bytes do not add up";
  return NULL;
}
