/* runtime/memory/fence.h - the progress of a stream, for memory.
 *
 * A stream owns one fence and stores into it. Buffers hold references, so that they can query it
 * after the stream has ended. The end of work without a listener is seen only by a query: then the
 * floor above advances the fences (refresh_fences in device.h). This file does not know streams.
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
  atomic_bool tainted; /* the stream has failed once, so ended work may have failed too */
  accrt_mutex_t owner_lock;
  void* owner; /* under owner_lock: the stream while it lives; only accrt_fence_refresh uses it */
} accrt_fence_t;

static inline accrt_status_t accrt_fence_create(const accrt_allocator_t* allocator,
                                                uint64_t stream_id, accrt_fence_t** out_fence) {
  void* memory;
  *out_fence = NULL;
  ACCRT_TRY(accrt_alloc(allocator, sizeof(accrt_fence_t), &memory));
  accrt_fence_t* fence = memory;
  accrt_object_init(&fence->object);
  fence->allocator = allocator;
  fence->stream_id = stream_id;
  atomic_init(&fence->completed, 0);
  accrt_mutex_init(&fence->owner_lock, ACCRT_LOCK_FENCE_OWNER);
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

/* Never lowers the number, since several threads may have queried the device. Release pairs with
 * the acquire in accrt_fence_passed: a thread that reuses the memory sees what the device did
 * before. */
static inline void accrt_fence_advance(accrt_fence_t* fence, uint64_t submission) {
  uint_least64_t present = atomic_load_explicit(&fence->completed, memory_order_relaxed);
  while (present < submission &&
         !atomic_compare_exchange_weak_explicit(&fence->completed, &present, submission,
                                                memory_order_release, memory_order_relaxed))
    continue;
}

/* The same when no other thread advances the fence. */
static inline void accrt_fence_advance_alone(accrt_fence_t* fence, uint64_t submission) {
  if (atomic_load_explicit(&fence->completed, memory_order_relaxed) < submission)
    atomic_store_explicit(&fence->completed, submission, memory_order_release);
}

static inline bool accrt_fence_passed(const accrt_fence_t* fence, uint64_t submission) {
  /* Acquire pairs with the release in accrt_fence_advance. */
  return atomic_load_explicit(&fence->completed, memory_order_acquire) >= submission;
}

/* Call it before the fence passes the failed submission. Release pairs with the acquire below. */
static inline void accrt_fence_taint(accrt_fence_t* fence) {
  atomic_store_explicit(&fence->tainted, true, memory_order_release);
}
static inline bool accrt_fence_is_tainted(const accrt_fence_t* fence) {
  return atomic_load_explicit(&fence->tainted, memory_order_acquire);
}

/* True when the stream is gone: none of its work runs, and no thread can note a use on it any
 * more. */
static inline bool accrt_fence_is_gone(const accrt_fence_t* fence) {
  return accrt_fence_passed(fence, UINT64_MAX);
}

#endif /* ACCRT_RUNTIME_MEMORY_FENCE_H_ */
