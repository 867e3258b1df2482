/* runtime/core/memory.h - host allocation through the instance's allocator, with overflow-checked
 * sizes.
 *
 * Every allocation of the library goes through here. Memory is zeroed. accrt_allocator_t needs the
 * size at free too, so containers store their capacity.
 */
#ifndef ACCRT_RUNTIME_CORE_MEMORY_H_
#define ACCRT_RUNTIME_CORE_MEMORY_H_

#include <stdbool.h>

#include "accrt/instance.h"
#include "runtime/core/try.h"

/* The allocator of the C library. Only its functions call malloc. */
extern const accrt_allocator_t accrt_allocator_system;

/* The one place that calls an allocator's allocate. NULL: it failed. Records nothing. */
void* accrt_allocate(const accrt_allocator_t* allocator, size_t size_bytes, size_t alignment);
/* Zeroed memory, 16-aligned. A size of 0 returns ACCRT_OK with *out = NULL. Records
 * ACCRT_ERROR_OUT_OF_MEMORY with the size. */
accrt_status_t accrt_alloc(const accrt_allocator_t* allocator, size_t size_bytes,
                           void** out_pointer);
/* count elements of element_bytes each; ACCRT_ERROR_OVERFLOW when the product does not fit. */
accrt_status_t accrt_alloc_array(const accrt_allocator_t* allocator, size_t count,
                                 size_t element_bytes, void** out_pointer);
/* The same with an alignment of at least 16. */
accrt_status_t accrt_alloc_aligned(const accrt_allocator_t* allocator, size_t size_bytes,
                                   size_t alignment, void** out_pointer);
/* Not zeroed: for memory that the caller writes completely at once. */
accrt_status_t accrt_alloc_unset(const accrt_allocator_t* allocator, size_t size_bytes,
                                 size_t alignment, void** out_pointer);
/* NULL is allowed. The size must be that of the allocation. */
void accrt_free(const accrt_allocator_t* allocator, void* pointer, size_t size_bytes);
void accrt_free_array(const accrt_allocator_t* allocator, void* pointer, size_t count,
                      size_t element_bytes);
void accrt_free_aligned(const accrt_allocator_t* allocator, void* pointer, size_t size_bytes,
                        size_t alignment);
/* Grows *pointer from *capacity to at least `needed` elements (doubling). It keeps the contents and
 * zeroes the rest. */
accrt_status_t accrt_grow_array(const accrt_allocator_t* allocator, size_t needed,
                                size_t element_bytes, size_t* capacity, void** pointer);

/* The typed forms. The element's size follows from the type of the pointer at `place`. The pointer
 * is written as bytes, since T** is not void**. After a failed ACCRT_NEW it is NULL; after a failed
 * ACCRT_GROW it is unchanged. */
#define ACCRT_NEW(allocator, place) accrt_new_at((allocator), 1, sizeof **(place), (place))
#define ACCRT_NEW_ARRAY(allocator, count, place)                                                   \
  accrt_new_at((allocator), (count), sizeof **(place), (place))
#define ACCRT_GROW(allocator, needed, place, capacity)                                             \
  accrt_grow_at((allocator), (needed), sizeof **(place), (capacity), (place))
accrt_status_t accrt_new_at(const accrt_allocator_t* allocator, size_t count, size_t element_bytes,
                            void* place);
accrt_status_t accrt_grow_at(const accrt_allocator_t* allocator, size_t needed,
                             size_t element_bytes, size_t* capacity, void* place);
/* Copies a string (NULL gives NULL). Free it with accrt_free_string. */
accrt_status_t accrt_copy_string(const accrt_allocator_t* allocator, const char* text,
                                 char** out_text);
void accrt_free_string(const accrt_allocator_t* allocator, char* text);

/* Checked arithmetic: true when the result fits. */
static inline bool accrt_add_u64(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}
static inline bool accrt_mul_u64(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}
/* Rounds up to a power of two; false on overflow. */
static inline bool accrt_align_u64(uint64_t value, uint64_t alignment, uint64_t* out) {
  uint64_t sum;
  if (!accrt_add_u64(value, alignment - 1, &sum))
    return false;
  *out = sum & ~(alignment - 1);
  return true;
}
/* True when offset + size is at most limit, without overflow. */
static inline bool accrt_range_fits(uint64_t offset, uint64_t size, uint64_t limit) {
  return offset <= limit && size <= limit - offset;
}
static inline bool accrt_is_power_of_two(uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

#endif /* ACCRT_RUNTIME_CORE_MEMORY_H_ */
