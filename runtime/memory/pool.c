/* runtime/memory/pool.c - the memory of one pool: mapping, allocation, retirement, trimming,
 * accounting. It knows fences, not streams. pool_life.c creates and finds pools.
 */
#include "runtime/core/context.h"
#include "runtime/memory/pool.h"

#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/watched.h"

#define MAX_SPARE_BUFFERS 64u
/* A pool grows by its current size, so that there are few mappings, but by at most this much at a
 * time. */
#define MOST_GROW_BYTES (UINT64_C(128) << 20)
#define MOST_HELD_BYTES (UINT64_C(32) << 20)

static const accrt_allocator_t* allocator_of(const accrt_pool_t* pool) {
  return accrt_instance_allocator(pool->instance);
}

/* ---- Mappings: memory of the driver or of the instance's allocator ---- */

static accrt_status_t map_memory(accrt_pool_t* pool, uint64_t size_bytes, uint32_t handle_kind,
                                 accrt_driver_memory_t* out_memory) {
  memset(out_memory, 0, sizeof *out_memory);
  if (handle_kind != 0) {
    return accrt_device_driver_table(pool->device)
        ->memory_allocate_exportable(accrt_device_driver_device(pool->device), size_bytes,
                                     handle_kind, out_memory);
  }
  if (!pool->system_memory) {
    const accrt_driver_table_t* table = accrt_device_driver_table(pool->device);
    return table->memory_allocate(accrt_device_driver_device(pool->device), pool->kind, size_bytes,
                                  out_memory);
  }
  void* memory =
      accrt_allocate(allocator_of(pool), (size_t)size_bytes, ACCRT_POOL_SYSTEM_GRANULARITY);
  if (memory == NULL)
    return ACCRT_FAIL(OUT_OF_DEVICE_MEMORY, "could not allocate %" PRIu64 " bytes of host memory",
                      size_bytes);
  *out_memory = (accrt_driver_memory_t){.device_address = (uint64_t)(uintptr_t)memory,
                                        .host_pointer = memory,
                                        .size_bytes = size_bytes};
  return ACCRT_OK;
}

static void unmap_memory(accrt_pool_t* pool, const accrt_driver_memory_t* memory) {
  if (!pool->system_memory) {
    accrt_device_driver_table(pool->device)
        ->memory_free(accrt_device_driver_device(pool->device), memory);
    return;
  }
  accrt_free_aligned(allocator_of(pool), memory->host_pointer, (size_t)memory->size_bytes,
                     ACCRT_POOL_SYSTEM_GRANULARITY);
}

/* Frees segments that are already out of the heap; linked by next. */
static void free_segments(accrt_pool_t* pool, accrt_segment_t* segments) {
  while (segments != NULL) {
    accrt_segment_t* segment = segments;
    segments = segment->next;
    unmap_memory(pool, &segment->memory);
    accrt_free(allocator_of(pool), segment, sizeof *segment);
  }
}

/* ---- Accounting: the functions with a pool are called under its lock ---- */

static void raise(uint64_t* mark, uint64_t value) {
  if (value > *mark)
    *mark = value;
}

/* Accounts for a buffer with a block that becomes live. */
static void account_use(accrt_pool_t* pool, const accrt_buffer_t* buffer) {
  ACCRT_ASSERT_HELD(&pool->lock);
  pool->statistics.used_bytes += buffer->block->size_bytes;
  pool->statistics.requested_bytes += buffer->size_bytes;
  pool->statistics.allocation_count += 1;
  raise(&pool->statistics.high_water_used_bytes, pool->statistics.used_bytes);
}

/* Accounts for a buffer that is not live any more. */
static void account_end(accrt_pool_t* pool, const accrt_buffer_t* buffer) {
  ACCRT_ASSERT_HELD(&pool->lock);
  ACCRT_ASSERT(pool->statistics.live_count > 0);
  pool->statistics.live_count -= 1;
  if (buffer->block == NULL)
    return;
  ACCRT_ASSERT(pool->statistics.used_bytes >= buffer->block->size_bytes);
  pool->statistics.used_bytes -= buffer->block->size_bytes;
  pool->statistics.requested_bytes -= buffer->size_bytes;
}

/* Accounts for a buffer that moves to the list of those that streams still use. */
static void account_retiring(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  ACCRT_ASSERT_HELD(&pool->lock);
  buffer->retiring = 1;
  pool->dead_count += 1;
  if (buffer->block != NULL)
    pool->statistics.retiring_bytes += buffer->block->size_bytes;
}

/* Accounts for a buffer that leaves that list. */
static void account_retired(accrt_pool_t* pool, const accrt_buffer_t* buffer) {
  ACCRT_ASSERT_HELD(&pool->lock);
  ACCRT_ASSERT(buffer->retiring && pool->dead_count > 0);
  pool->dead_count -= 1;
  if (buffer->block != NULL)
    pool->statistics.retiring_bytes -= buffer->block->size_bytes;
}

static void link_buffer(accrt_buffer_t** head, accrt_buffer_t* buffer) {
  buffer->previous = NULL;
  buffer->next = *head;
  if (*head != NULL)
    (*head)->previous = buffer;
  *head = buffer;
}

static void unlink_buffer(accrt_buffer_t** head, accrt_buffer_t* buffer) {
  if (buffer->next != NULL)
    buffer->next->previous = buffer->previous;
  if (buffer->previous != NULL) {
    buffer->previous->next = buffer->next;
  } else {
    *head = buffer->next;
  }
  buffer->previous = NULL;
  buffer->next = NULL;
}

static void link_live(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  ACCRT_ASSERT_HELD(&pool->lock);
  buffer->retiring = 0;
  link_buffer(&pool->live, buffer);
  pool->statistics.live_count += 1;
}

/* Takes out the segments that wait for their return to the driver, then completely free segments
 * until at most keep_bytes are reserved. */
static accrt_segment_t* detach_free_segments(accrt_pool_t* pool, uint64_t keep_bytes) {
  accrt_segment_t* detached = pool->detached;
  pool->detached = NULL;
  accrt_segment_t* segment = pool->heap.segments;
  while (segment != NULL && pool->statistics.reserved_bytes > keep_bytes) {
    accrt_segment_t* next = segment->next;
    if (accrt_heap_segment_is_free(segment)) {
      accrt_heap_remove_segment(&pool->heap, segment);
      ACCRT_ASSERT(pool->statistics.reserved_bytes >= segment->memory.size_bytes);
      pool->statistics.reserved_bytes -= segment->memory.size_bytes;
      segment->next = detached;
      detached = segment;
    }
    segment = next;
  }
  return detached;
}

/* ---- Buffer records ---- */

accrt_status_t accrt_pool_buffer_record(accrt_pool_t* pool, accrt_buffer_t** out_buffer) {
  accrt_mutex_lock(&pool->lock);
  accrt_buffer_t* buffer = pool->spare_buffers;
  if (buffer != NULL) {
    pool->spare_buffers = buffer->next;
    pool->spare_buffer_count -= 1;
  }
  accrt_mutex_unlock(&pool->lock);
  if (buffer == NULL) {
    void* memory;
    const accrt_status_t status = accrt_alloc(allocator_of(pool), sizeof *buffer, &memory);
    *out_buffer = memory;
    if (status != ACCRT_OK)
      return status;
    buffer = memory;
  }
  memset(buffer, 0, sizeof *buffer);
  accrt_object_init(&buffer->object);
  accrt_mutex_init(&buffer->use_lock, ACCRT_LOCK_BUFFER_USES);
  accrt_object_retain(&pool->object);
  buffer->pool = pool;
  *out_buffer = buffer;
  return ACCRT_OK;
}

void accrt_pool_drop_record(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  accrt_mutex_lock(&pool->lock);
  const bool keep = !accrt_watched() && pool->spare_buffer_count < MAX_SPARE_BUFFERS;
  if (keep) {
    buffer->next = pool->spare_buffers;
    pool->spare_buffers = buffer;
    pool->spare_buffer_count += 1;
  }
  accrt_mutex_unlock(&pool->lock);
  if (!keep)
    accrt_free(allocator_of(pool), buffer, sizeof *buffer);
  accrt_pool_unref(pool);
}

/* ---- Retirement ---- */

/* Frees the buffer's block. A segment for one buffer leaves the pool, because another process may
 * still have its memory open and no other buffer may get it. */
static void give_block(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  ACCRT_ASSERT_HELD(&pool->lock);
  if (buffer->block == NULL)
    return;
  accrt_segment_t* segment = buffer->block->segment;
  accrt_heap_give(&pool->heap, buffer->block);
  buffer->block = NULL;
  if (!segment->apart)
    return;
  accrt_heap_remove_segment(&pool->heap, segment);
  pool->statistics.reserved_bytes -= segment->memory.size_bytes;
  segment->next = pool->detached;
  pool->detached = segment;
}

static void collect_buffer(accrt_pool_t* pool, accrt_buffer_t* buffer, accrt_buffer_t** collected) {
  account_retired(pool, buffer);
  give_block(pool, buffer);
  buffer->next = *collected;
  *collected = buffer;
}

/* Collects the buffers of all stream caches that their streams have passed. */
static void collect_stream_caches(accrt_pool_t* pool, accrt_buffer_t** collected) {
  for (uint32_t i = 0; i < ACCRT_STREAM_CACHE_LISTS; ++i) {
    for (accrt_stream_cache_t* cache = pool->stream_caches[i]; cache != NULL; cache = cache->next) {
      accrt_buffer_t* buffer;
      while ((buffer = accrt_stream_cache_take_passed(cache)) != NULL)
        collect_buffer(pool, buffer, collected);
    }
  }
}

/* Frees the memory of retiring buffers that all streams have passed, and returns these buffers as a
 * list. Requires the lock. */
static accrt_buffer_t* collect(accrt_pool_t* pool) {
  ACCRT_ASSERT_HELD(&pool->lock);
  accrt_buffer_t* collected = NULL;
  if (pool->dead_count == 0)
    return NULL;
  accrt_buffer_t* buffer = pool->retiring;
  while (buffer != NULL) {
    accrt_buffer_t* next = buffer->next;
    if (accrt_buffer_is_idle(buffer)) {
      unlink_buffer(&pool->retiring, buffer);
      collect_buffer(pool, buffer, &collected);
    }
    buffer = next;
  }
  collect_stream_caches(pool, &collected);
  return collected;
}

/* Removes empty stream caches whose streams are gone. Requires the lock. */
static accrt_stream_cache_t* detach_dead_stream_caches(accrt_pool_t* pool) {
  ACCRT_ASSERT_HELD(&pool->lock);
  accrt_stream_cache_t* detached = NULL;
  for (uint32_t i = 0; i < ACCRT_STREAM_CACHE_LISTS; ++i) {
    accrt_stream_cache_t** link = &pool->stream_caches[i];
    while (*link != NULL) {
      accrt_stream_cache_t* cache = *link;
      if (cache->oldest != NULL || !accrt_fence_is_gone(cache->fence)) {
        link = &cache->next;
        continue;
      }
      *link = cache->next;
      cache->next = detached;
      detached = cache;
    }
  }
  return detached;
}

static void free_stream_caches(accrt_pool_t* pool, accrt_stream_cache_t* caches) {
  while (caches != NULL) {
    accrt_stream_cache_t* cache = caches;
    caches = cache->next;
    accrt_fence_release(cache->fence);
    accrt_free(allocator_of(pool), cache, sizeof *cache);
  }
}

/* Finishes buffers whose memory is freed, and releases their references to the pool. The caller
 * holds no lock. */
static void dispose(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  while (buffer != NULL) {
    accrt_buffer_t* next = buffer->next;
    accrt_buffer_clear_uses(buffer);
    if (buffer->driver_import) {
      const accrt_driver_table_t* table = accrt_device_driver_table(pool->device);
      if (table->memory_unimport != NULL) {
        table->memory_unimport(accrt_device_driver_device(pool->device), &buffer->import);
      }
    }
    if (buffer->watched)
      pool->device->above->unwatch(pool->instance);
    if (buffer->release != NULL)
      ACCRT_CALL_USER(buffer->release(buffer->release_user));
    accrt_pool_drop_record(pool, buffer);
    buffer = next;
  }
}

/* Queries the device's progress if any buffer of the pool waits for it. The caller holds no
 * lock. */
static void refresh(accrt_pool_t* pool) {
  accrt_mutex_lock(&pool->lock);
  const bool waits = pool->dead_count > 0;
  accrt_mutex_unlock(&pool->lock);
  if (waits)
    pool->device->above->refresh_fences(pool->device);
}

void accrt_pool_reap(accrt_pool_t* pool) {
  accrt_object_retain(&pool->object);
  refresh(pool);
  accrt_mutex_lock(&pool->lock);
  accrt_buffer_t* collected = collect(pool);
  accrt_stream_cache_t* caches = detach_dead_stream_caches(pool);
  accrt_segment_t* segments = detach_free_segments(pool, pool->one_mapping ? 0 : UINT64_MAX);
  accrt_mutex_unlock(&pool->lock);
  free_stream_caches(pool, caches);
  free_segments(pool, segments);
  dispose(pool, collected);
  accrt_pool_unref(pool);
}

/* ---- Frees in stream order ---- */

/* Moves a live buffer to a cache. Requires the lock. */
static void move_to_stream_cache(accrt_pool_t* pool, accrt_stream_cache_t* cache,
                                 accrt_buffer_t* buffer) {
  ACCRT_ASSERT_HELD(&pool->lock);
  unlink_buffer(&pool->live, buffer);
  account_end(pool, buffer);
  account_retiring(pool, buffer);
  accrt_stream_cache_put(cache, buffer);
}

/* Returns the cache of a stream, and makes it if necessary. On success the lock is held. NULL when
 * the allocation fails. */
static accrt_stream_cache_t* lock_with_stream_cache(accrt_pool_t* pool, accrt_fence_t* fence) {
  accrt_mutex_lock(&pool->lock);
  accrt_stream_cache_t* cache = accrt_stream_cache_find(pool, fence);
  if (cache != NULL)
    return cache;
  accrt_mutex_unlock(&pool->lock);
  const accrt_error_t saved = *accrt_error_current();
  void* record;
  if (accrt_alloc(allocator_of(pool), sizeof *cache, &record) != ACCRT_OK) {
    (void)accrt_error_restore(&saved);
    return NULL;
  }
  accrt_mutex_lock(&pool->lock);
  cache = accrt_stream_cache_find(pool, fence);
  if (cache == NULL) {
    cache = record;
    record = NULL;
    accrt_stream_cache_link(pool, cache, fence);
  }
  if (record == NULL)
    return cache;
  /* Another thread was first. Stream caches live as long as their stream. */
  accrt_mutex_unlock(&pool->lock);
  accrt_free(allocator_of(pool), record, sizeof *cache);
  accrt_mutex_lock(&pool->lock);
  return cache;
}

/* True when the stream may reuse the memory before it has passed. False where every buffer has its
 * own mapping. */
static bool stays_in_stream_cache(const accrt_pool_t* pool, const accrt_buffer_t* buffer) {
  return !pool->one_mapping && buffer->block != NULL && buffer->handle_kind == 0;
}

bool accrt_pool_free_in_order(accrt_pool_t* pool, accrt_buffer_t* buffer, accrt_fence_t* fence) {
  if (!stays_in_stream_cache(pool, buffer))
    return false;
  accrt_stream_cache_t* cache = lock_with_stream_cache(pool, fence);
  if (cache == NULL)
    return false;
  move_to_stream_cache(pool, cache, buffer);
  /* Every buffer has a reference to its pool. If there are only as many references as dead buffers,
   * no thread can allocate from the pool any more. */
  const bool abandoned =
      atomic_load_explicit(&pool->object.references, memory_order_relaxed) == pool->dead_count;
  if (abandoned)
    accrt_object_retain(&pool->object);
  accrt_mutex_unlock(&pool->lock);
  if (abandoned) {
    accrt_pool_reap(pool);
    accrt_pool_unref(pool);
  }
  return true;
}

/* Frees a released buffer in the order of the only stream that still uses it, if that stream
 * allocates in order. */
static bool release_in_order(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  accrt_fence_t* fence = accrt_buffer_only_user(buffer);
  if (fence == NULL || !stays_in_stream_cache(pool, buffer))
    return false;
  accrt_buffer_set_use(buffer, fence, 0);
  accrt_mutex_lock(&pool->lock);
  accrt_stream_cache_t* cache = accrt_stream_cache_find(pool, fence);
  if (cache != NULL)
    move_to_stream_cache(pool, cache, buffer);
  accrt_mutex_unlock(&pool->lock);
  return cache != NULL;
}

accrt_buffer_t* accrt_pool_take_freed(accrt_pool_t* pool, accrt_fence_t* fence, uint64_t size_bytes,
                                      uint64_t alignment_bytes) {
  uint64_t block_bytes;
  if (!accrt_align_u64(size_bytes == 0 ? 1 : size_bytes, ACCRT_POOL_MIN_ALIGNMENT, &block_bytes))
    return NULL;
  accrt_mutex_lock(&pool->lock);
  accrt_stream_cache_t* cache = accrt_stream_cache_find(pool, fence);
  accrt_buffer_t* buffer =
      cache != NULL ? accrt_stream_cache_take(cache, block_bytes, alignment_bytes) : NULL;
  if (buffer != NULL) {
    account_retired(pool, buffer);
    buffer->size_bytes = size_bytes;
    buffer->zeroed = false;
    account_use(pool, buffer);
    link_live(pool, buffer);
  }
  accrt_mutex_unlock(&pool->lock);
  if (buffer == NULL)
    return NULL;
  accrt_object_init(&buffer->object);
  buffer->alignment_bytes = alignment_bytes;
  buffer->id = accrt_instance_next_id(pool->instance);
  atomic_store_explicit(&buffer->map_count, 0, memory_order_relaxed);
  return buffer;
}

void accrt_pool_retire(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  /* A completion may have dropped the last reference. Then a driver function that may block has to
   * wait. */
  const bool apart = buffer->handle_kind != 0;
  const bool later =
      accrt_context_inside() && (pool->one_mapping || buffer->driver_import || apart);
  const bool idle = accrt_buffer_is_idle(buffer);
  if (!idle && release_in_order(pool, buffer))
    return;
  accrt_segment_t* segments = NULL;
  if (pool->imports && (later || !idle)) {
    buffer->watched = 1;
    pool->device->above->watch(pool->instance);
  }
  accrt_mutex_lock(&pool->lock);
  unlink_buffer(&pool->live, buffer);
  account_end(pool, buffer);
  if (idle && !later) {
    give_block(pool, buffer);
    if (pool->one_mapping || apart)
      segments = detach_free_segments(pool, pool->one_mapping ? 0 : UINT64_MAX);
  } else {
    account_retiring(pool, buffer);
    link_buffer(&pool->retiring, buffer);
    /* The last use may have ended before the buffer was in the list, so that the wake-up missed it.
     * Check under the lock, because the pool may be gone afterwards. */
    if (buffer->watched && (later || accrt_buffer_is_idle(buffer)))
      pool->device->above->kick(pool->instance);
  }
  accrt_mutex_unlock(&pool->lock);
  if (!idle || later)
    return;
  free_segments(pool, segments);
  buffer->next = NULL;
  dispose(pool, buffer);
}

/* ---- Allocation ---- */

/* Provides block records, which it allocates outside the lock. On success the lock is held. */
static accrt_status_t lock_with_spares(accrt_pool_t* pool, uint32_t count) {
  for (;;) {
    accrt_mutex_lock(&pool->lock);
    if (pool->heap.spare_count >= count)
      return ACCRT_OK;
    accrt_mutex_unlock(&pool->lock);
    void* record;
    ACCRT_TRY(accrt_alloc(allocator_of(pool), sizeof(accrt_block_t), &record));
    accrt_mutex_lock(&pool->lock);
    accrt_heap_add_spare(&pool->heap, record);
    accrt_mutex_unlock(&pool->lock);
  }
}

static void adopt(accrt_pool_t* pool, accrt_buffer_t* buffer, accrt_block_t* block) {
  ACCRT_ASSERT_HELD(&pool->lock);
  accrt_segment_t* const segment = block->segment;
  const accrt_driver_memory_t* memory = &segment->memory;
  buffer->zeroed = block->offset_bytes >= segment->zero_from;
  raise(&segment->zero_from, block->offset_bytes + block->size_bytes);
  buffer->block = block;
  buffer->address = memory->device_address + block->offset_bytes;
  buffer->host_pointer =
      memory->host_pointer != NULL ? (char*)memory->host_pointer + block->offset_bytes : NULL;
  account_use(pool, buffer);
  link_live(pool, buffer);
}

/* True when stream caches hold much memory. A small amount is fine, because streams request the
 * same sizes again. */
static bool holds_much(const accrt_pool_t* pool) {
  return pool->statistics.retiring_bytes > pool->statistics.used_bytes / 4 + MOST_HELD_BYTES;
}

static accrt_block_t* take_block(accrt_pool_t* pool, const accrt_buffer_t* buffer,
                                 uint64_t size_bytes) {
  return pool->one_mapping ? NULL
                           : accrt_heap_take(&pool->heap, size_bytes, buffer->alignment_bytes);
}

/* Allocates free memory. `out_waiting` is true if there is more memory whose streams may have
 * passed it in the meantime. */
static accrt_status_t try_take(accrt_pool_t* pool, accrt_buffer_t* buffer, uint64_t size_bytes,
                               bool* out_taken, bool* out_waiting) {
  *out_taken = false;
  ACCRT_TRY(lock_with_spares(pool, ACCRT_HEAP_SPARES_PER_TAKE));
  accrt_buffer_t* done = holds_much(pool) ? collect(pool) : NULL;
  accrt_block_t* block = take_block(pool, buffer, size_bytes);
  if (block == NULL && done == NULL) {
    done = collect(pool);
    block = take_block(pool, buffer, size_bytes);
  }
  if (block != NULL)
    adopt(pool, buffer, block);
  *out_taken = block != NULL;
  *out_waiting = pool->dead_count > 0 && !pool->one_mapping;
  accrt_mutex_unlock(&pool->lock);
  dispose(pool, done);
  return ACCRT_OK;
}

/* Reserves `size_bytes` of the pool's limit. */
static bool reserve_quota(accrt_pool_t* pool, uint64_t size_bytes) {
  uint64_t total;
  accrt_mutex_lock(&pool->lock);
  const bool fits = accrt_add_u64(pool->statistics.reserved_bytes, size_bytes, &total) &&
                    (pool->limit_bytes == 0 || total <= pool->limit_bytes);
  if (fits)
    pool->statistics.reserved_bytes = total;
  accrt_mutex_unlock(&pool->lock);
  return fits;
}

static void return_quota(accrt_pool_t* pool, uint64_t size_bytes) {
  accrt_mutex_lock(&pool->lock);
  pool->statistics.reserved_bytes -= size_bytes;
  accrt_mutex_unlock(&pool->lock);
}

/* Maps a segment and takes the buffer's block from it. `mapped_bytes` is a multiple of the
 * granularity and counts towards the quota; after a failure it does not. */
static accrt_status_t grow_and_take(accrt_pool_t* pool, accrt_buffer_t* buffer, uint64_t size_bytes,
                                    uint64_t mapped_bytes) {
  void* record = NULL;
  accrt_status_t status = accrt_alloc(allocator_of(pool), sizeof(accrt_segment_t), &record);
  if (status != ACCRT_OK)
    goto out;
  accrt_segment_t* segment = record;
  status = map_memory(pool, mapped_bytes, buffer->handle_kind, &segment->memory);
  if (status != ACCRT_OK)
    goto out;
  status = segment->memory.size_bytes < mapped_bytes
               ? ACCRT_FAIL(DRIVER, "the driver gave %" PRIu64 " bytes instead of %" PRIu64,
                            segment->memory.size_bytes, mapped_bytes)
               : lock_with_spares(pool, ACCRT_HEAP_SPARES_PER_TAKE + 1);
  if (status != ACCRT_OK) {
    unmap_memory(pool, &segment->memory);
    goto out;
  }
  /* A driver may map more than requested. */
  pool->statistics.reserved_bytes += segment->memory.size_bytes - mapped_bytes;
  raise(&pool->statistics.high_water_reserved_bytes, pool->statistics.reserved_bytes);
  accrt_heap_add_segment(&pool->heap, segment);
  segment->apart = buffer->handle_kind != 0;
  segment->zero_from = pool->zeroed && !segment->apart ? 0 : UINT64_MAX;
  accrt_block_t* block = segment->apart
                             ? accrt_heap_take_segment(&pool->heap, segment)
                             : accrt_heap_take(&pool->heap, size_bytes, buffer->alignment_bytes);
  if (block != NULL)
    adopt(pool, buffer, block);
  accrt_mutex_unlock(&pool->lock);
  if (block != NULL)
    return ACCRT_OK;
  /* Only a driver that breaks its promise of alignment gets here. The segment stays for other
   * buffers. */
  return ACCRT_FAIL(INTERNAL, "a new mapping of %" PRIu64 " bytes did not hold %" PRIu64,
                    mapped_bytes, size_bytes);

out:
  accrt_free(allocator_of(pool), record, sizeof(accrt_segment_t));
  return_quota(pool, mapped_bytes);
  return status;
}

/* ---- The whole allocation ---- */

static void trim(accrt_pool_t* pool, uint64_t keep_bytes) {
  accrt_pool_reap(pool);
  accrt_mutex_lock(&pool->lock);
  accrt_segment_t* segments = detach_free_segments(pool, keep_bytes);
  accrt_mutex_unlock(&pool->lock);
  free_segments(pool, segments);
}

static void visit_trim(accrt_pool_t* pool, void* user) {
  (void)user;
  trim(pool, 0);
}

static accrt_status_t attempt(accrt_pool_t* pool, accrt_buffer_t* buffer, uint64_t size_bytes,
                              uint64_t mapped_bytes) {
  if (!reserve_quota(pool, mapped_bytes)) {
    accrt_clear_error(); /* the driver did not fail */
    return ACCRT_ERROR_OUT_OF_DEVICE_MEMORY;
  }
  return grow_and_take(pool, buffer, size_bytes, mapped_bytes);
}

/* The size of the mapping for a request of `needed_bytes`. A large request gets its own mapping.
 * Others share mappings that grow with the pool. */
static uint64_t mapping_bytes(accrt_pool_t* pool, const accrt_buffer_t* buffer,
                              uint64_t needed_bytes) {
  if (pool->one_mapping || buffer->handle_kind != 0)
    return needed_bytes;
  accrt_mutex_lock(&pool->lock);
  uint64_t bytes = pool->statistics.reserved_bytes;
  accrt_mutex_unlock(&pool->lock);
  if (bytes > MOST_GROW_BYTES)
    bytes = MOST_GROW_BYTES;
  if (pool->grow_bytes != 0)
    bytes -= bytes % pool->grow_bytes;
  if (bytes < pool->grow_bytes)
    bytes = pool->grow_bytes;
  return needed_bytes > bytes ? needed_bytes : bytes;
}

/* Grows the pool: first by a large mapping, then by the needed size, then again after all free
 * memory of the device was returned to the driver. */
static accrt_status_t grow(accrt_pool_t* pool, accrt_buffer_t* buffer, uint64_t size_bytes) {
  uint64_t needed;
  if (!accrt_add_u64(size_bytes, buffer->alignment_bytes - pool->heap.granule_bytes, &needed) ||
      !accrt_align_u64(needed, pool->granularity_bytes, &needed)) {
    return ACCRT_FAIL(OVERFLOW,
                      "a buffer of %" PRIu64 " bytes does not fit 64 bits with its alignment",
                      buffer->size_bytes);
  }
  const uint64_t generous = mapping_bytes(pool, buffer, needed);
  accrt_status_t status = attempt(pool, buffer, size_bytes, generous);
  if (status == ACCRT_ERROR_OUT_OF_DEVICE_MEMORY && generous > needed)
    status = attempt(pool, buffer, size_bytes, needed);
  if (status == ACCRT_ERROR_OUT_OF_DEVICE_MEMORY) {
    accrt_pools_visit(pool->device, visit_trim, NULL);
    status = attempt(pool, buffer, size_bytes, needed);
  }
  return status == ACCRT_ERROR_OUT_OF_DEVICE_MEMORY
             ? accrt_pool_fail_out_of_memory(pool, buffer, needed)
             : status;
}

/* Whole granules, at least one. */
static accrt_status_t size_of_block(const accrt_pool_t* pool, const accrt_buffer_t* buffer,
                                    uint64_t* out_size_bytes) {
  if (accrt_align_u64(buffer->size_bytes == 0 ? 1 : buffer->size_bytes, pool->heap.granule_bytes,
                      out_size_bytes))
    return ACCRT_OK;
  return ACCRT_FAIL(OVERFLOW,
                    "a buffer of %" PRIu64 " bytes does not fit 64 bits with its alignment",
                    buffer->size_bytes);
}

accrt_status_t accrt_pool_take(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  uint64_t size_bytes;
  ACCRT_TRY(size_of_block(pool, buffer, &size_bytes));
  bool taken, waiting;
  accrt_status_t status = try_take(pool, buffer, size_bytes, &taken, &waiting);
  if (status == ACCRT_OK && !taken && waiting) {
    pool->device->above->refresh_fences(pool->device);
    status = try_take(pool, buffer, size_bytes, &taken, &waiting);
  }
  if (status != ACCRT_OK || taken)
    return status;
  return grow(pool, buffer, size_bytes);
}

accrt_status_t accrt_pool_take_apart(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  uint64_t size_bytes;
  ACCRT_TRY(size_of_block(pool, buffer, &size_bytes));
  return grow(pool, buffer, size_bytes);
}

void accrt_pool_add_live(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  accrt_mutex_lock(&pool->lock);
  pool->statistics.allocation_count += 1;
  link_live(pool, buffer);
  accrt_mutex_unlock(&pool->lock);
}

accrt_status_t accrt_pool_trim(accrt_pool_t* pool, uint64_t keep_bytes) {
  ACCRT_ENTER(pool);
  trim(pool, keep_bytes);
  return ACCRT_OK;
}

/* ---- The end of a pool ---- */

static void free_records(accrt_pool_t* pool) {
  const accrt_allocator_t* allocator = allocator_of(pool);
  accrt_block_t* block;
  while ((block = accrt_heap_take_spare(&pool->heap)) != NULL)
    accrt_free(allocator, block, sizeof *block);
  while (pool->spare_buffers != NULL) {
    accrt_buffer_t* buffer = pool->spare_buffers;
    pool->spare_buffers = buffer->next;
    accrt_free(allocator, buffer, sizeof *buffer);
  }
}

void accrt_pool_clear(accrt_pool_t* pool) {
  for (uint32_t i = 0; i < ACCRT_STREAM_CACHE_LISTS; ++i)
    free_stream_caches(pool, pool->stream_caches[i]);
  accrt_segment_t* segments = detach_free_segments(pool, 0);
  free_segments(pool, segments);
  free_records(pool);
}
