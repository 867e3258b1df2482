/* runtime/memory/pool.c - pools: growing, keeping, trimming, retiring, accounting. It may not know streams, only fences. */
#include "runtime/memory/pool.h"

#include <stdio.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/struct.h"

#define MAX_SPARE_BUFFERS 64u
/* A pool grows by as much as it has, so that mappings stay few, and by no more than this at a time. */
#define MOST_GROW_BYTES (UINT64_C(128) << 20)
#define MOST_HELD_BYTES (UINT64_C(32) << 20)
#define SYSTEM_GRANULARITY 4096u
#define SYSTEM_GROW (UINT64_C(1) << 20)

static const accrt_allocator_t* allocator_of(const accrt_pool_t* pool) {
  return accrt_instance_allocator(pool->instance);
}

/* ---- Mappings: the driver's memory, or the instance allocator's ---- */

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
  const accrt_allocator_t* allocator = allocator_of(pool);
  void* memory = allocator->allocate(allocator->self, (size_t)size_bytes, SYSTEM_GRANULARITY);
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
                     SYSTEM_GRANULARITY);
}

/* Frees segments that were taken out of the heap; linked by next. */
static void free_segments(accrt_pool_t* pool, accrt_segment_t* segments) {
  while (segments != NULL) {
    accrt_segment_t* segment = segments;
    segments = segment->next;
    unmap_memory(pool, &segment->memory);
    accrt_free(allocator_of(pool), segment, sizeof *segment);
  }
}

/* ---- Accounting, under the pool's lock ---- */

static void raise(uint64_t* mark, uint64_t value) {
  if (value > *mark)
    *mark = value;
}

/* A buffer with a block becomes live. */
static void account_use(accrt_pool_t* pool, const accrt_buffer_t* buffer) {
  pool->statistics.used_bytes += buffer->block->size_bytes;
  pool->statistics.requested_bytes += buffer->size_bytes;
  pool->statistics.allocation_count += 1;
  raise(&pool->statistics.high_water_used_bytes, pool->statistics.used_bytes);
}

/* A live buffer is none any more. */
static void account_end(accrt_pool_t* pool, const accrt_buffer_t* buffer) {
  pool->statistics.live_count -= 1;
  if (buffer->block == NULL)
    return;
  pool->statistics.used_bytes -= buffer->block->size_bytes;
  pool->statistics.requested_bytes -= buffer->size_bytes;
}

/* It goes into a list of what streams still use. */
static void account_retiring(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  buffer->retiring = 1;
  pool->dead_count += 1;
  if (buffer->block != NULL)
    pool->statistics.retiring_bytes += buffer->block->size_bytes;
}

/* And out of it. */
static void account_retired(accrt_pool_t* pool, const accrt_buffer_t* buffer) {
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
  buffer->retiring = 0;
  link_buffer(&pool->live, buffer);
  pool->statistics.live_count += 1;
}

/* What waits for the driver already, and wholly free segments until at most keep_bytes stay reserved. */
static accrt_segment_t* detach_free_segments(accrt_pool_t* pool, uint64_t keep_bytes) {
  accrt_segment_t* detached = pool->detached;
  pool->detached = NULL;
  accrt_segment_t* segment = pool->heap.segments;
  while (segment != NULL && pool->statistics.reserved_bytes > keep_bytes) {
    accrt_segment_t* next = segment->next;
    if (accrt_heap_segment_is_free(segment)) {
      accrt_heap_remove_segment(&pool->heap, segment);
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
  accrt_mutex_init(&buffer->use_lock);
  accrt_object_retain(&pool->object);
  buffer->pool = pool;
  *out_buffer = buffer;
  return ACCRT_OK;
}

void accrt_pool_drop_record(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  accrt_mutex_lock(&pool->lock);
  const bool keep = pool->spare_buffer_count < MAX_SPARE_BUFFERS;
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

/* ---- Retiring ---- */

/* What is one buffer's alone leaves the pool with it: nobody else is to get memory that another process may have open. */
static void give_block(accrt_pool_t* pool, accrt_buffer_t* buffer) {
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

/* What streams have passed of their lanes. */
static void collect_lanes(accrt_pool_t* pool, accrt_buffer_t** collected) {
  for (uint32_t i = 0; i < ACCRT_POOL_LANE_LISTS; ++i) {
    for (accrt_lane_t* lane = pool->lanes[i]; lane != NULL; lane = lane->next) {
      accrt_buffer_t* buffer;
      while ((buffer = accrt_lane_take_passed(lane)) != NULL)
        collect_buffer(pool, buffer, collected);
    }
  }
}

/* Moves retiring buffers whose streams have passed to a list of their own; their memory is free again. Under the lock. */
static accrt_buffer_t* collect(accrt_pool_t* pool) {
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
  collect_lanes(pool, &collected);
  return collected;
}

/* Takes lanes out that nothing is in and whose streams are gone. Under the lock. */
static accrt_lane_t* detach_dead_lanes(accrt_pool_t* pool) {
  accrt_lane_t* detached = NULL;
  for (uint32_t i = 0; i < ACCRT_POOL_LANE_LISTS; ++i) {
    accrt_lane_t** link = &pool->lanes[i];
    while (*link != NULL) {
      accrt_lane_t* lane = *link;
      if (lane->oldest != NULL || !accrt_fence_is_gone(lane->fence)) {
        link = &lane->next;
        continue;
      }
      *link = lane->next;
      lane->next = detached;
      detached = lane;
    }
  }
  return detached;
}

static void free_lanes(accrt_pool_t* pool, accrt_lane_t* lanes) {
  while (lanes != NULL) {
    accrt_lane_t* lane = lanes;
    lanes = lane->next;
    accrt_fence_release(lane->fence);
    accrt_free(allocator_of(pool), lane, sizeof *lane);
  }
}

/* What is left to do for buffers without memory; no lock is held. Their references on the pool go here. */
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
      accrt_instance_unwatch(pool->instance);
    if (buffer->release != NULL)
      buffer->release(buffer->release_user);
    accrt_pool_drop_record(pool, buffer);
    buffer = next;
  }
}

/* Asks the device how far it is, if anything here waits for it. No lock is held. */
static void refresh(accrt_pool_t* pool) {
  accrt_mutex_lock(&pool->lock);
  const bool waits = pool->dead_count > 0;
  accrt_mutex_unlock(&pool->lock);
  if (waits)
    accrt_device_refresh_fences(pool->device);
}

void accrt_pool_reap(accrt_pool_t* pool) {
  accrt_object_retain(&pool->object);
  refresh(pool);
  accrt_mutex_lock(&pool->lock);
  accrt_buffer_t* collected = collect(pool);
  accrt_lane_t* lanes = detach_dead_lanes(pool);
  accrt_segment_t* segments = detach_free_segments(pool, pool->one_mapping ? 0 : UINT64_MAX);
  accrt_mutex_unlock(&pool->lock);
  free_lanes(pool, lanes);
  free_segments(pool, segments);
  dispose(pool, collected);
  accrt_pool_unref(pool);
}

/* ---- In stream order ---- */

/* Moves a live buffer to a lane. Under the lock. */
static void move_to_lane(accrt_pool_t* pool, accrt_lane_t* lane, accrt_buffer_t* buffer) {
  unlink_buffer(&pool->live, buffer);
  account_end(pool, buffer);
  account_retiring(pool, buffer);
  accrt_lane_put(lane, buffer);
}

/* The lane of a stream, made when it is not there. Returns with the lock held on success; NULL when there is no memory for it. */
static accrt_lane_t* lock_with_lane(accrt_pool_t* pool, accrt_fence_t* fence) {
  accrt_mutex_lock(&pool->lock);
  accrt_lane_t* lane = accrt_lane_find(pool, fence);
  if (lane != NULL)
    return lane;
  accrt_mutex_unlock(&pool->lock);
  const accrt_error_t saved = *accrt_error_current();
  void* record;
  if (accrt_alloc(allocator_of(pool), sizeof *lane, &record) != ACCRT_OK) {
    (void)accrt_error_restore(&saved);
    return NULL;
  }
  accrt_mutex_lock(&pool->lock);
  lane = accrt_lane_find(pool, fence);
  if (lane == NULL) {
    lane = record;
    record = NULL;
    accrt_lane_link(pool, lane, fence);
  }
  if (record == NULL)
    return lane;
  /* Another thread came first. Lanes stay as long as their stream. */
  accrt_mutex_unlock(&pool->lock);
  accrt_free(allocator_of(pool), record, sizeof *lane);
  accrt_mutex_lock(&pool->lock);
  return lane;
}

/* Memory that its stream may use again before it has passed: not where every buffer has its own. */
static bool stays_in_lane(const accrt_pool_t* pool, const accrt_buffer_t* buffer) {
  return !pool->one_mapping && buffer->block != NULL && buffer->handle_kind == 0;
}

bool accrt_pool_free_in_order(accrt_pool_t* pool, accrt_buffer_t* buffer, accrt_fence_t* fence) {
  if (!stays_in_lane(pool, buffer))
    return false;
  accrt_lane_t* lane = lock_with_lane(pool, fence);
  if (lane == NULL)
    return false;
  move_to_lane(pool, lane, buffer);
  /* Each buffer holds its pool: only dead ones are left when their number is that of the references. Nobody can allocate then. */
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

/* A released buffer that one stream alone still uses is free in that stream's order, if it allocates in order at all. */
static bool release_in_order(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  accrt_fence_t* fence = accrt_buffer_only_user(buffer);
  if (fence == NULL || !stays_in_lane(pool, buffer))
    return false;
  accrt_buffer_keep_use(buffer, fence, 0);
  accrt_mutex_lock(&pool->lock);
  accrt_lane_t* lane = accrt_lane_find(pool, fence);
  if (lane != NULL)
    move_to_lane(pool, lane, buffer);
  accrt_mutex_unlock(&pool->lock);
  return lane != NULL;
}

accrt_buffer_t* accrt_pool_take_freed(accrt_pool_t* pool, accrt_fence_t* fence, uint64_t size_bytes,
                                      uint64_t alignment_bytes) {
  uint64_t block_bytes;
  if (!accrt_align_u64(size_bytes == 0 ? 1 : size_bytes, ACCRT_POOL_MIN_ALIGNMENT, &block_bytes))
    return NULL;
  accrt_mutex_lock(&pool->lock);
  accrt_lane_t* lane = accrt_lane_find(pool, fence);
  accrt_buffer_t* buffer =
      lane != NULL ? accrt_lane_take(lane, block_bytes, alignment_bytes) : NULL;
  if (buffer != NULL) {
    account_retired(pool, buffer);
    buffer->size_bytes = size_bytes;
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
  /* A driver function that may block is for later when a completion dropped the last reference. */
  const bool apart = buffer->handle_kind != 0;
  const bool later =
      accrt_context_inside() && (pool->one_mapping || buffer->driver_import || apart);
  const bool idle = accrt_buffer_is_idle(buffer);
  if (!idle && release_in_order(pool, buffer))
    return;
  accrt_segment_t* segments = NULL;
  if (pool->imports && (later || !idle)) {
    buffer->watched = 1;
    accrt_instance_watch(pool->instance);
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
    /* The last use may have ended before the buffer was in the list: that kick found nothing. Under the lock: behind it the
     * pool may be gone. */
    if (buffer->watched && (later || accrt_buffer_is_idle(buffer)))
      accrt_instance_kick(pool->instance);
  }
  accrt_mutex_unlock(&pool->lock);
  if (!idle || later)
    return;
  free_segments(pool, segments);
  buffer->next = NULL;
  dispose(pool, buffer);
}

/* ---- Taking memory ---- */

/* Makes sure that block records are there, allocating outside of the lock. Returns with the lock held on success. */
static accrt_status_t lock_with_spares(accrt_pool_t* pool, uint32_t count) {
  for (;;) {
    accrt_mutex_lock(&pool->lock);
    if (pool->heap.spare_count >= count)
      return ACCRT_OK;
    accrt_mutex_unlock(&pool->lock);
    void* record;
    const accrt_status_t status = accrt_alloc(allocator_of(pool), sizeof(accrt_block_t), &record);
    if (status != ACCRT_OK)
      return status;
    accrt_mutex_lock(&pool->lock);
    accrt_heap_add_spare(&pool->heap, record);
    accrt_mutex_unlock(&pool->lock);
  }
}

static void adopt(accrt_pool_t* pool, accrt_buffer_t* buffer, accrt_block_t* block) {
  const accrt_driver_memory_t* memory = &block->segment->memory;
  buffer->block = block;
  buffer->address = memory->device_address + block->offset_bytes;
  buffer->host_pointer =
      memory->host_pointer != NULL ? (char*)memory->host_pointer + block->offset_bytes : NULL;
  account_use(pool, buffer);
  link_live(pool, buffer);
}

/* What streams have freed stays with them as long as it is little: the same sizes are asked for again. */
static bool holds_much(const accrt_pool_t* pool) {
  return pool->statistics.retiring_bytes > pool->statistics.used_bytes / 4 + MOST_HELD_BYTES;
}

static accrt_block_t* take_block(accrt_pool_t* pool, const accrt_buffer_t* buffer,
                                 uint64_t size_bytes) {
  return pool->one_mapping ? NULL
                           : accrt_heap_take(&pool->heap, size_bytes, buffer->alignment_bytes);
}

/* Takes from what is free by all that is known. `out_waiting`: there is more that streams may have passed meanwhile. */
static accrt_status_t try_take(accrt_pool_t* pool, accrt_buffer_t* buffer, uint64_t size_bytes,
                               bool* out_taken, bool* out_waiting) {
  *out_taken = false;
  const accrt_status_t status = lock_with_spares(pool, ACCRT_HEAP_SPARES_PER_TAKE);
  if (status != ACCRT_OK)
    return status;
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

/* Maps a segment and takes the buffer's block from it. `mapped_bytes` is a multiple of the granularity and within the quota,
 * which it gives back on failure. */
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
  /* A driver may give more than it was asked for. */
  pool->statistics.reserved_bytes += segment->memory.size_bytes - mapped_bytes;
  raise(&pool->statistics.high_water_reserved_bytes, pool->statistics.reserved_bytes);
  accrt_heap_add_segment(&pool->heap, segment);
  segment->apart = buffer->handle_kind != 0;
  accrt_block_t* block = segment->apart
                             ? accrt_heap_take_segment(&pool->heap, segment)
                             : accrt_heap_take(&pool->heap, size_bytes, buffer->alignment_bytes);
  if (block != NULL)
    adopt(pool, buffer, block);
  accrt_mutex_unlock(&pool->lock);
  if (block != NULL)
    return ACCRT_OK;
  /* Only a driver that breaks its promise of alignment comes here; the segment stays for others. */
  return ACCRT_FAIL(INTERNAL, "a new mapping of %" PRIu64 " bytes did not hold %" PRIu64,
                    mapped_bytes, size_bytes);

out:
  accrt_free(allocator_of(pool), record, sizeof(accrt_segment_t));
  return_quota(pool, mapped_bytes);
  return status;
}

/* ---- All pools of a device ---- */

/* The first pool from `pool` on that is not going away, retained. Under the set's lock: one that goes waits for it. */
static accrt_pool_t* retain_from(accrt_pool_t* pool) {
  while (pool != NULL && !accrt_object_try_retain(&pool->object))
    pool = pool->next;
  return pool;
}

void accrt_pools_visit(accrt_device_t* device, void (*visit)(accrt_pool_t* pool, void* user),
                       void* user) {
  accrt_pool_set_t* set = accrt_device_pool_set(device);
  accrt_mutex_lock(&set->lock);
  accrt_pool_t* pool = retain_from(set->head);
  accrt_mutex_unlock(&set->lock);
  while (pool != NULL) {
    visit(pool, user);
    /* `pool` is in the list as long as it is held. */
    accrt_mutex_lock(&set->lock);
    accrt_pool_t* next = retain_from(pool->next);
    accrt_mutex_unlock(&set->lock);
    accrt_pool_unref(pool);
    pool = next;
  }
}

/* ---- The whole path ---- */

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
    accrt_clear_error(); /* no driver's failure */
    return ACCRT_ERROR_OUT_OF_DEVICE_MEMORY;
  }
  return grow_and_take(pool, buffer, size_bytes, mapped_bytes);
}

/* How much to map for a request that needs `needed_bytes`: large ones get their own, others share mappings that grow with the
 * pool. */
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

/* Grows: generously first, then by just what is needed, then after everything free on the device was given back. */
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

accrt_status_t accrt_pool_take(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  uint64_t size_bytes;
  if (!accrt_align_u64(buffer->size_bytes == 0 ? 1 : buffer->size_bytes, pool->heap.granule_bytes,
                       &size_bytes)) {
    return ACCRT_FAIL_INNER(OVERFLOW,
                            "a buffer of %" PRIu64 " bytes does not fit 64 bits with its alignment",
                            buffer->size_bytes);
  }
  bool taken, waiting;
  accrt_status_t status = try_take(pool, buffer, size_bytes, &taken, &waiting);
  if (status == ACCRT_OK && !taken && waiting) {
    accrt_device_refresh_fences(pool->device);
    status = try_take(pool, buffer, size_bytes, &taken, &waiting);
  }
  if (status != ACCRT_OK || taken)
    return status;
  return grow(pool, buffer, size_bytes);
}

accrt_status_t accrt_pool_take_apart(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  uint64_t size_bytes;
  if (!accrt_align_u64(buffer->size_bytes == 0 ? 1 : buffer->size_bytes, pool->heap.granule_bytes,
                       &size_bytes)) {
    return ACCRT_FAIL_INNER(OVERFLOW,
                            "a buffer of %" PRIu64 " bytes does not fit 64 bits with its alignment",
                            buffer->size_bytes);
  }
  return grow(pool, buffer, size_bytes);
}

void accrt_pool_add_live(accrt_pool_t* pool, accrt_buffer_t* buffer) {
  accrt_mutex_lock(&pool->lock);
  pool->statistics.allocation_count += 1;
  link_live(pool, buffer);
  accrt_mutex_unlock(&pool->lock);
}

/* ---- Pools ---- */

static uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static accrt_status_t configure(accrt_pool_t* pool, const accrt_pool_options_t* options) {
  accrt_driver_memory_info_t info = {.struct_size = (uint32_t)sizeof info};
  if (!pool->imports) {
    accrt_device_driver_table(pool->device)
        ->memory_info(accrt_device_driver_device(pool->device), pool->kind, &info);
  }
  if (!pool->imports && !info.supported) {
    if (pool->kind != ACCRT_MEMORY_HOST) {
      return ACCRT_FAIL(UNSUPPORTED, "%s has no memory of kind %" PRIu32,
                        accrt_device_facts(pool->device)->name, pool->kind);
    }
    pool->system_memory = 1;
    info.granularity_bytes = SYSTEM_GRANULARITY;
    info.default_grow_bytes = SYSTEM_GROW;
    info.alignment_bytes = SYSTEM_GRANULARITY;
  }
  const uint64_t driver_granularity = info.granularity_bytes == 0 ? 1 : info.granularity_bytes;
  uint64_t granularity = larger(driver_granularity, ACCRT_POOL_MIN_ALIGNMENT);
  if (!accrt_is_power_of_two(granularity)) {
    return ACCRT_FAIL(DRIVER, "the driver's granularity of %" PRIu64 " bytes is no power of two",
                      granularity);
  }
  pool->granularity_bytes = granularity;
  const uint64_t wanted =
      options->granularity_bytes != 0 ? options->granularity_bytes : info.default_grow_bytes;
  if (!accrt_align_u64(wanted, granularity, &pool->grow_bytes)) {
    return ACCRT_FAIL(OVERFLOW, "granularity_bytes %" PRIu64 " does not fit 64 bits rounded up",
                      wanted);
  }
  pool->min_alignment_bytes =
      larger(accrt_device_facts(pool->device)->min_alignment_bytes, ACCRT_POOL_MIN_ALIGNMENT);
  accrt_heap_init(&pool->heap, ACCRT_POOL_MIN_ALIGNMENT);
  return ACCRT_OK;
}

accrt_status_t accrt_pool_make(accrt_device_t* device, const accrt_pool_options_t* options,
                               const accrt_pool_traits_t* traits, accrt_pool_t** out_pool) {
  *out_pool = NULL;
  accrt_instance_t* instance = accrt_device_instance(device);
  void* memory;
  accrt_status_t status =
      accrt_alloc(accrt_instance_allocator(instance), sizeof(accrt_pool_t), &memory);
  if (status != ACCRT_OK)
    return status;
  accrt_pool_t* pool = memory;
  accrt_object_init(&pool->object);
  pool->device = device;
  pool->instance = instance;
  pool->kind = options->kind;
  pool->one_mapping = traits->one_mapping;
  pool->imports = traits->imports;
  pool->limit_bytes = options->limit_bytes;
  (void)snprintf(pool->label, sizeof pool->label, "%s",
                 options->label != NULL ? options->label : "");
  accrt_mutex_init(&pool->lock);
  status = configure(pool, options);
  if (status != ACCRT_OK) {
    accrt_free(accrt_instance_allocator(instance), pool, sizeof *pool);
    return status;
  }
  accrt_pool_set_t* set = accrt_device_pool_set(device);
  accrt_mutex_lock(&set->lock);
  pool->next = set->head;
  if (set->head != NULL)
    set->head->previous = pool;
  set->head = pool;
  accrt_mutex_unlock(&set->lock);
  *out_pool = pool;
  return ACCRT_OK;
}

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

void accrt_pool_unref(accrt_pool_t* pool) {
  if (pool == NULL || !accrt_object_release(&pool->object))
    return;
  accrt_pool_set_t* set = accrt_device_pool_set(pool->device);
  accrt_mutex_lock(&set->lock);
  if (pool->next != NULL)
    pool->next->previous = pool->previous;
  if (pool->previous != NULL) {
    pool->previous->next = pool->next;
  } else {
    set->head = pool->next;
  }
  accrt_mutex_unlock(&set->lock);
  for (uint32_t i = 0; i < ACCRT_POOL_LANE_LISTS; ++i)
    free_lanes(pool, pool->lanes[i]);
  accrt_segment_t* segments = detach_free_segments(pool, 0);
  free_segments(pool, segments);
  free_records(pool);
  accrt_free(allocator_of(pool), pool, sizeof *pool);
}

static accrt_status_t check_options(const accrt_pool_options_t* options,
                                    accrt_pool_options_t* out_local) {
  const accrt_status_t status =
      accrt_struct_read("accrt_pool_options_t", options, out_local, sizeof *out_local);
  if (status != ACCRT_OK)
    return status;
  if (out_local->kind == 0)
    out_local->kind = ACCRT_MEMORY_DEVICE;
  if (out_local->kind <= ACCRT_MEMORY_HOST)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "kind %" PRIu32 " is not DEVICE, PINNED or HOST",
                    out_local->kind);
}

accrt_status_t accrt_pool_create(accrt_device_t* device, const accrt_pool_options_t* options,
                                 accrt_pool_t** out_pool) {
  if (out_pool == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_pool is NULL");
  *out_pool = NULL;
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (device == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "device is NULL");
  accrt_pool_options_t local;
  status = check_options(options, &local);
  if (status != ACCRT_OK)
    return status;
  const accrt_pool_traits_t traits = {
      .one_mapping = accrt_instance_one_mapping(accrt_device_instance(device))};
  status = accrt_pool_make(device, &local, &traits, out_pool);
  if (status == ACCRT_OK)
    (void)accrt_instance_retain((*out_pool)->instance);
  return status;
}

accrt_pool_t* accrt_pool_retain(accrt_pool_t* pool) {
  if (pool == NULL || accrt_forked())
    return pool;
  accrt_object_retain(&pool->object);
  (void)accrt_instance_retain(pool->instance);
  return pool;
}

void accrt_pool_release(accrt_pool_t* pool) {
  if (pool == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = pool->instance;
  /* What streams have freed in it would keep it for nobody. */
  accrt_pool_reap(pool);
  accrt_pool_unref(pool);
  accrt_instance_release(instance);
}

/* The set's own pool of a kind; imports have one too. */
accrt_status_t accrt_pool_default(accrt_device_t* device, uint32_t kind, accrt_pool_t** out_pool) {
  accrt_pool_set_t* set = accrt_device_pool_set(device);
  accrt_mutex_lock(&set->lock);
  *out_pool = set->defaults[kind];
  accrt_mutex_unlock(&set->lock);
  if (*out_pool != NULL)
    return ACCRT_OK;
  static const char* const labels[] = {"", "device", "pinned", "host", "imported", "mapped"};
  accrt_pool_options_t options = ACCRT_POOL_OPTIONS_INIT;
  options.kind = kind;
  options.label = labels[kind];
  const accrt_pool_traits_t traits = {.one_mapping =
                                          accrt_instance_one_mapping(accrt_device_instance(device)),
                                      .imports = kind == ACCRT_MEMORY_IMPORTED};
  accrt_pool_t* made;
  const accrt_status_t status = accrt_pool_make(device, &options, &traits, &made);
  if (status != ACCRT_OK)
    return status;
  accrt_mutex_lock(&set->lock);
  if (set->defaults[kind] == NULL) {
    set->defaults[kind] = made;
    made = NULL;
  }
  *out_pool = set->defaults[kind];
  accrt_mutex_unlock(&set->lock);
  accrt_pool_unref(made);
  return ACCRT_OK;
}

accrt_status_t accrt_device_pool(accrt_device_t* device, uint32_t kind, accrt_pool_t** out_pool) {
  if (out_pool == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_pool is NULL");
  *out_pool = NULL;
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (device == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "device is NULL");
  if (kind == 0)
    kind = ACCRT_MEMORY_DEVICE; /* as in accrt_pool_create */
  if (kind > ACCRT_MEMORY_IMPORTED)
    return ACCRT_FAIL(INVALID_ARGUMENT, "kind %" PRIu32 " is not DEVICE, PINNED or HOST", kind);
  return accrt_pool_default(device, kind, out_pool);
}

accrt_status_t accrt_pool_trim(accrt_pool_t* pool, uint64_t keep_bytes) {
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (pool == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "pool is NULL");
  trim(pool, keep_bytes);
  return ACCRT_OK;
}

/* ---- A device's pools ---- */

void accrt_pool_set_init(accrt_pool_set_t* set) {
  memset(set, 0, sizeof *set);
  accrt_mutex_init(&set->lock);
}

void accrt_pool_set_deinit(accrt_pool_set_t* set) {
  while (set->head != NULL) {
    accrt_pool_t* pool = set->head;
    accrt_object_retain(&pool->object);
    accrt_pool_reap(pool);
    for (uint32_t kind = 0; kind <= ACCRT_MEMORY_MAPPED; ++kind) {
      if (set->defaults[kind] != pool)
        continue;
      set->defaults[kind] = NULL;
      accrt_pool_unref(pool);
    }
    accrt_pool_unref(pool);
    /* Still there: somebody broke the rules of references. Nothing more can be done without harm. */
    if (set->head == pool)
      return;
  }
}

static void visit_reap(accrt_pool_t* pool, void* user) {
  (void)user;
  accrt_pool_reap(pool);
}

void accrt_device_reap_pools(accrt_device_t* device) {
  accrt_pools_visit(device, visit_reap, NULL);
}
