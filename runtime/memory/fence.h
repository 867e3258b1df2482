/* runtime/memory/fence.h - how far a stream has come, seen from memory.
 *
 * A stream owns one fence and stores into it; buffers keep references, so that they can ask after the stream has gone. What a
 * device does without telling anybody is seen only when somebody asks: accrt_fence_refresh and accrt_device_refresh_fences of
 * upcalls.h ask the driver and advance fences. It may not know what a stream is.
 */
#ifndef ACCRT_RUNTIME_MEMORY_FENCE_H_
#define ACCRT_RUNTIME_MEMORY_FENCE_H_

#include "runtime/core/memory.h"
#include "runtime/core/object.h"
#include "runtime/core/sync.h"

typedef struct accrt_fence {
  accrt_object_t object;
  const accrt_allocator_t* allocator;
  uint64_t stream_id;
  atomic_uint_least64_t completed; /* every submission up to this number has ended */
  atomic_bool tainted; /* the stream has failed once: what has ended need not have ended well */
  accrt_mutex_t owner_lock;
  void* owner; /* under owner_lock: the stream while it lives, for accrt_fence_refresh alone */
} accrt_fence_t;

static inline accrt_status_t accrt_fence_create(const accrt_allocator_t* allocator,
                                                uint64_t stream_id, accrt_fence_t** out_fence) {
  void* memory;
  *out_fence = NULL;
  const accrt_status_t status = accrt_alloc(allocator, sizeof(accrt_fence_t), &memory);
  if (status != ACCRT_OK)
    return status;
  accrt_fence_t* fence = memory;
  accrt_object_init(&fence->object);
  fence->allocator = allocator;
  fence->stream_id = stream_id;
  atomic_init(&fence->completed, 0);
  accrt_mutex_init(&fence->owner_lock);
  *out_fence = fence;
  return ACCRT_OK;
}

static inline void accrt_fence_retain(accrt_fence_t* fence) {
  accrt_object_retain(&fence->object);
}

static inline void accrt_fence_release(accrt_fence_t* fence) {
  if (fence != NULL && accrt_object_release(&fence->object))
    accrt_free(fence->allocator, fence, sizeof *fence);
}

/* Never back: several threads may have asked how far the device is. Release pairs with the acquire in accrt_fence_passed: what the
 * device did before is seen by who reuses the memory. */
static inline void accrt_fence_advance(accrt_fence_t* fence, uint64_t submission) {
  uint_least64_t present = atomic_load_explicit(&fence->completed, memory_order_relaxed);
  while (present < submission &&
         !atomic_compare_exchange_weak_explicit(&fence->completed, &present, submission,
                                                memory_order_release, memory_order_relaxed))
    continue;
}

static inline bool accrt_fence_passed(const accrt_fence_t* fence, uint64_t submission) {
  /* Acquire pairs with the release in accrt_fence_advance. */
  return atomic_load_explicit(&fence->completed, memory_order_acquire) >= submission;
}

/* To be called before the fence passes what has failed. Release pairs with the acquire below. */
static inline void accrt_fence_taint(accrt_fence_t* fence) {
  atomic_store_explicit(&fence->tainted, true, memory_order_release);
}
static inline bool accrt_fence_is_tainted(const accrt_fence_t* fence) {
  return atomic_load_explicit(&fence->tainted, memory_order_acquire);
}

/* The stream is gone: nothing of it runs, and nobody can note a use on it any more. */
static inline bool accrt_fence_is_gone(const accrt_fence_t* fence) {
  return accrt_fence_passed(fence, UINT64_MAX);
}

#endif /* ACCRT_RUNTIME_MEMORY_FENCE_H_ */
