/* runtime/memory/stream_cache.c - memory that a stream has freed in its own order, found again by
 * size in constant time. It may not lock, allocate or account. pool.c does that and holds the
 * pool's lock. */
#include "runtime/memory/pool.h"

/* As in heap.c there are sixteen classes per power of two. One word of bins holds them all. */
#define CLASSES_LOG2 4
#define CLASSES (1u << CLASSES_LOG2)
/* A block may be up to twice as large as requested: the request's own class and as many above
 * it. */
#define CLASSES_SEARCHED (CLASSES + 1)
/* Maximum number of blocks to examine in a bin. They may be of another power of two, or
 * misaligned. */
#define STEPS_PER_BIN 4

static uint32_t bin_of(uint64_t size_bytes) {
  const uint64_t units = size_bytes / ACCRT_POOL_MIN_ALIGNMENT;
  if (units < CLASSES)
    return (uint32_t)units;
  const uint32_t log2 = 63u - (uint32_t)__builtin_clzll(units);
  const uint32_t second = (uint32_t)(units >> (log2 - CLASSES_LOG2)) & (CLASSES - 1);
  return ((log2 - CLASSES_LOG2 + 1) * CLASSES + second) % ACCRT_STREAM_CACHE_BINS;
}

static accrt_stream_cache_t** list_of(accrt_pool_t* pool, const accrt_fence_t* fence) {
  return &pool->stream_caches[fence->stream_id % ACCRT_STREAM_CACHE_LISTS];
}

accrt_stream_cache_t* accrt_stream_cache_find(accrt_pool_t* pool, const accrt_fence_t* fence) {
  ACCRT_ASSERT_HELD(&pool->lock);
  accrt_stream_cache_t* cache = *list_of(pool, fence);
  while (cache != NULL && cache->fence != fence)
    cache = cache->next;
  return cache;
}

void accrt_stream_cache_link(accrt_pool_t* pool, accrt_stream_cache_t* cache,
                             accrt_fence_t* fence) {
  ACCRT_ASSERT_HELD(&pool->lock);
  accrt_stream_cache_t** list = list_of(pool, fence);
  accrt_fence_retain(fence);
  cache->fence = fence;
  cache->next = *list;
  *list = cache;
}

static uint64_t submission_of(accrt_buffer_t* buffer) {
  return atomic_load_explicit(&buffer->uses[0].submission, memory_order_relaxed);
}

/* Inserts in the order of submissions, nearly always at the end. */
static void link_by_age(accrt_stream_cache_t* cache, accrt_buffer_t* buffer) {
  const uint64_t submission = submission_of(buffer);
  accrt_buffer_t* older = cache->newest;
  while (older != NULL && submission_of(older) > submission)
    older = older->previous;
  buffer->previous = older;
  buffer->next = older != NULL ? older->next : cache->oldest;
  if (buffer->next != NULL)
    buffer->next->previous = buffer;
  else
    cache->newest = buffer;
  if (older != NULL)
    older->next = buffer;
  else
    cache->oldest = buffer;
}

static void unlink_by_age(accrt_stream_cache_t* cache, accrt_buffer_t* buffer) {
  if (buffer->next != NULL)
    buffer->next->previous = buffer->previous;
  else
    cache->newest = buffer->previous;
  if (buffer->previous != NULL)
    buffer->previous->next = buffer->next;
  else
    cache->oldest = buffer->next;
}

void accrt_stream_cache_put(accrt_stream_cache_t* cache, accrt_buffer_t* buffer) {
  const uint32_t bin = bin_of(buffer->block->size_bytes);
  link_by_age(cache, buffer);
  buffer->previous_alike = NULL;
  buffer->next_alike = cache->bins[bin];
  if (buffer->next_alike != NULL)
    buffer->next_alike->previous_alike = buffer;
  cache->bins[bin] = buffer;
  cache->bitmap |= UINT64_C(1) << bin;
}

static void take_out(accrt_stream_cache_t* cache, accrt_buffer_t* buffer) {
  unlink_by_age(cache, buffer);
  if (buffer->next_alike != NULL)
    buffer->next_alike->previous_alike = buffer->previous_alike;
  if (buffer->previous_alike != NULL) {
    buffer->previous_alike->next_alike = buffer->next_alike;
    return;
  }
  const uint32_t bin = bin_of(buffer->block->size_bytes);
  cache->bins[bin] = buffer->next_alike;
  if (buffer->next_alike == NULL)
    cache->bitmap &= ~(UINT64_C(1) << bin);
}

static bool fits(const accrt_buffer_t* buffer, uint64_t size_bytes, uint64_t alignment_bytes) {
  const uint64_t block_bytes = buffer->block->size_bytes;
  return block_bytes >= size_bytes && block_bytes / 2 <= size_bytes &&
         (buffer->address & (alignment_bytes - 1)) == 0;
}

static uint64_t rotate_right(uint64_t value, uint32_t count) {
  return value >> count | value << (-count & 63u);
}

accrt_buffer_t* accrt_stream_cache_take(accrt_stream_cache_t* cache, uint64_t size_bytes,
                                        uint64_t alignment_bytes) {
  const uint32_t first = bin_of(size_bytes);
  uint64_t bins = rotate_right(cache->bitmap, first) & ((UINT64_C(1) << CLASSES_SEARCHED) - 1);
  for (; bins != 0; bins &= bins - 1) {
    const uint32_t bin = (first + (uint32_t)__builtin_ctzll(bins)) % ACCRT_STREAM_CACHE_BINS;
    accrt_buffer_t* buffer = cache->bins[bin];
    for (int i = 0; buffer != NULL && i < STEPS_PER_BIN; ++i, buffer = buffer->next_alike) {
      if (!fits(buffer, size_bytes, alignment_bytes))
        continue;
      take_out(cache, buffer);
      return buffer;
    }
  }
  return NULL;
}

accrt_buffer_t* accrt_stream_cache_take_passed(accrt_stream_cache_t* cache) {
  accrt_buffer_t* buffer = cache->oldest;
  if (buffer == NULL || !accrt_fence_passed(cache->fence, submission_of(buffer)))
    return NULL;
  take_out(cache, buffer);
  return buffer;
}
