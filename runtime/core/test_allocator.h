/* runtime/core/test_allocator.h - test fixture: an allocator that counts, checks sizes, and fails
 * on request.
 *
 * For tests alone. Thread-safe. Every block stores its size and alignment, so that a wrong one is
 * detected when it is freed.
 */
#ifndef ACCRT_RUNTIME_CORE_TEST_ALLOCATOR_H_
#define ACCRT_RUNTIME_CORE_TEST_ALLOCATOR_H_

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/instance.h"

typedef struct test_allocator {
  atomic_long live_count;
  atomic_long live_bytes;
  atomic_long total_count;
  atomic_long wrong_count; /* deallocations whose size or alignment did not match */
  atomic_long fail_at; /* number of the allocation that fails, from now (1: the next); 0: none */
  atomic_int fail_for_ever; /* all later ones fail too */
  atomic_long failed_count;
} test_allocator_t;

typedef struct test_block {
  size_t size_bytes;
  size_t alignment;
  void* raw;
} test_block_t;

static inline void* test_allocate(void* self, size_t size_bytes, size_t alignment) {
  test_allocator_t* allocator = self;
  atomic_fetch_add(&allocator->total_count, 1);
  const long left = atomic_load(&allocator->fail_at);
  if (left > 0) {
    if (atomic_fetch_sub(&allocator->fail_at, 1) == 1) {
      if (atomic_load(&allocator->fail_for_ever))
        atomic_store(&allocator->fail_at, 1);
      atomic_fetch_add(&allocator->failed_count, 1);
      return NULL;
    }
  }
  if (alignment < sizeof(test_block_t))
    alignment = 32;
  const size_t head = (sizeof(test_block_t) + alignment - 1) / alignment * alignment;
  void* raw = NULL;
  if (posix_memalign(&raw, alignment, head + size_bytes) != 0)
    return NULL;
  char* pointer = (char*)raw + head;
  memset(pointer, 0xA5, size_bytes);
  const test_block_t block = {size_bytes, alignment, raw};
  memcpy(pointer - sizeof block, &block, sizeof block);
  atomic_fetch_add(&allocator->live_count, 1);
  atomic_fetch_add(&allocator->live_bytes, (long)size_bytes);
  return pointer;
}

static inline void test_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  test_allocator_t* allocator = self;
  test_block_t block;
  memcpy(&block, (char*)pointer - sizeof block, sizeof block);
  if (alignment < sizeof(test_block_t))
    alignment = 32;
  if (block.size_bytes != size_bytes || block.alignment != alignment) {
    (void)fprintf(stderr, "freed %zu bytes (alignment %zu), allocated %zu (%zu)\n", size_bytes,
                  alignment, block.size_bytes, block.alignment);
    atomic_fetch_add(&allocator->wrong_count, 1);
  }
  atomic_fetch_sub(&allocator->live_count, 1);
  atomic_fetch_sub(&allocator->live_bytes, (long)block.size_bytes);
  memset(pointer, 0x5A, block.size_bytes);
  free(block.raw);
}

static inline accrt_allocator_t test_allocator_interface(test_allocator_t* allocator) {
  const accrt_allocator_t interface = {allocator, test_allocate, test_deallocate};
  return interface;
}

/* Makes the n-th allocation from now fail and, with `for_ever`, all after it. 0: none. */
static inline void test_allocator_fail(test_allocator_t* allocator, long n, int for_ever) {
  atomic_store(&allocator->fail_for_ever, for_ever);
  atomic_store(&allocator->fail_at, n);
}

#endif /* ACCRT_RUNTIME_CORE_TEST_ALLOCATOR_H_ */
