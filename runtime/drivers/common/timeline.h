/* runtime/drivers/common/timeline.h - a 64-bit value that grows, with watchers: the heart of
 * semaphores, events and streams.
 *
 * It may not allocate, and calls nothing under its lock. Its owner has its error record.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_TIMELINE_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_TIMELINE_H_

#include "accrt/base.h"
#include "runtime/core/sync.h"

/* Something that happens when a value is reached, or when the timeline fails before. Linked into
 * the timeline. */
typedef struct accrt_watch {
  struct accrt_watch* previous;
  struct accrt_watch* next;
  uint64_t value;
  bool linked;
  bool failed; /* set before fire: the timeline failed instead of reaching the value */
  void (*fire)(
      struct accrt_watch*
          watch); /* once, no lock held; the watch is off the list and may be gone afterwards */
} accrt_watch_t;

typedef struct accrt_timeline {
  accrt_mutex_t lock;
  atomic_uint failed;
  atomic_uint_least64_t value;
  /* Changed under the lock. Seq_cst where one is added and in accrt_timeline_advance_alone: of a
   * thread that adds one and a thread that raises the value at the same time, one sees the
   * other. */
  _Atomic(accrt_watch_t*) watches;
  atomic_uint misses; /* waits in a row for which spinning did not help; a hint */
} accrt_timeline_t;

typedef enum accrt_reach {
  ACCRT_REACH_PENDING = 0,
  ACCRT_REACH_REACHED = 1,
  ACCRT_REACH_FAILED = 2,
} accrt_reach_t;

void accrt_timeline_init(accrt_timeline_t* timeline, uint64_t value);
static inline uint64_t accrt_timeline_value(accrt_timeline_t* timeline) {
  /* Acquire pairs with the release of the value in accrt_timeline_advance: what was done before is
   * seen. */
  return atomic_load_explicit(&timeline->value, memory_order_acquire);
}
static inline bool accrt_timeline_failed(accrt_timeline_t* timeline) {
  /* Acquire pairs with the release in accrt_timeline_fail: the record is seen. */
  return atomic_load_explicit(&timeline->failed, memory_order_acquire) != 0;
}
/* Reached counts before failed. */
accrt_reach_t accrt_timeline_reach(accrt_timeline_t* timeline, uint64_t value);
/* Links the watch when the answer is PENDING; otherwise leaves it alone. */
accrt_reach_t accrt_timeline_watch(accrt_timeline_t* timeline, accrt_watch_t* watch);
/* True when the watch was linked and now is not; false when it fired or is about to on another
 * thread. */
bool accrt_timeline_unwatch(accrt_timeline_t* timeline, accrt_watch_t* watch);
/* Raises the value, failed or not; a value that is not above the present one changes nothing.
 * Inside a context. */
void accrt_timeline_advance(accrt_timeline_t* timeline, uint64_t value);
/* The same without the lock, where no other thread raises it at the same time. True: it is watched,
 * and accrt_timeline_fire is to follow. */
static inline bool accrt_timeline_advance_alone(accrt_timeline_t* timeline, uint64_t value) {
  if (value > atomic_load_explicit(&timeline->value, memory_order_relaxed))
    atomic_store_explicit(&timeline->value, value, memory_order_seq_cst);
  return atomic_load_explicit(&timeline->watches, memory_order_seq_cst) != NULL;
}
/* Fires the watches up to the present value. Inside a context. */
void accrt_timeline_fire(accrt_timeline_t* timeline);
/* Raises the value of a timeline that has not failed. ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE with the
 * present value; ACCRT_ERROR_POISONED. No record is made. Inside a context. */
accrt_status_t accrt_timeline_signal(accrt_timeline_t* timeline, uint64_t value,
                                     uint64_t* out_present);
/* Fails it: false when it has failed already. `store` (may be NULL) is called under the lock,
 * before another thread can see the failure, and may only copy. Inside a context. */
bool accrt_timeline_fail(accrt_timeline_t* timeline, void (*store)(void* user), void* user);
/* ---- Waiting on the host ---- */

typedef struct accrt_wait_item {
  accrt_timeline_t* timeline;
  uint64_t value;
} accrt_wait_item_t;

/* Keeps devices without threads going: 1 when it ran something. */
typedef uint32_t (*accrt_wait_progress_fn_t)(void* user);

typedef struct accrt_wait {
  const accrt_wait_item_t* items;
  uint32_t count;
  uint32_t any;
  uint64_t timeout_ns;
  uint32_t policy;
  uint32_t watch_capacity;
  struct accrt_waiter_watch* watches; /* storage for `count`, or NULL: then it polls */
  accrt_wait_progress_fn_t progress;  /* NULL: nothing needs the caller */
  void* progress_user;
  void (*look)(void* user);    /* before each check; NULL: nothing to look at */
  void (*watched)(void* user); /* once all items are watched, before sleeping; may be NULL */
  void* look_user;
} accrt_wait_t;

typedef struct accrt_waiter_watch {
  accrt_watch_t watch;
  atomic_uint* wake;
  atomic_uint fired;
} accrt_waiter_watch_t;

/* REACHED (all, or any with its index), FAILED (with the index of one that failed), or PENDING: the
 * time is over. */
accrt_reach_t accrt_wait(const accrt_wait_t* wait, uint32_t* out_index);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_TIMELINE_H_ */
