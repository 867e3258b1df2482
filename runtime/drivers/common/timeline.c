/* runtime/drivers/common/timeline.c - timelines and waiting for them. It may not allocate or touch
 * the error record. */
#include "runtime/drivers/common/timeline.h"

#include <sched.h>
#include <stddef.h>

#include "accrt/stream.h"

/* A short spin before sleeping: a wake-up through the kernel costs some microseconds. Where
 * spinning has not helped the last waits for a timeline, it keeps a processor from the thread that
 * would signal: then few, and many again only now and then, to see. */
#define SPINS_BEFORE_SLEEP 200
#define FEW_SPINS_BEFORE_SLEEP 4
#define MISSES_BEFORE_FEW 4
#define MISSES_BETWEEN_MANY 32
/* Polls between two looks at the clock. */
#define POLLS_PER_CLOCK 64
/* How long a waiter that keeps devices going sleeps when there is nothing to run: others may bring
 * work meanwhile. */
#define PROGRESS_SLEEP_NS UINT64_C(200000)

void accrt_timeline_init(accrt_timeline_t* timeline, uint64_t value) {
  accrt_mutex_init(&timeline->lock, ACCRT_LOCK_TIMELINE);
  atomic_init(&timeline->failed, 0);
  atomic_init(&timeline->value, value);
  atomic_init(&timeline->misses, 0);
  atomic_init(&timeline->watches, NULL);
}

static accrt_watch_t* first_watch(const accrt_timeline_t* timeline) {
  return atomic_load_explicit(&timeline->watches, memory_order_relaxed);
}

accrt_reach_t accrt_timeline_reach(accrt_timeline_t* timeline, uint64_t value) {
  if (accrt_timeline_value(timeline) >= value)
    return ACCRT_REACH_REACHED;
  if (!accrt_timeline_failed(timeline))
    return ACCRT_REACH_PENDING;
  /* It may have been reached just before it failed. */
  return accrt_timeline_value(timeline) >= value ? ACCRT_REACH_REACHED : ACCRT_REACH_FAILED;
}

static void unlink_watch(accrt_timeline_t* timeline, accrt_watch_t* watch) {
  if (watch->next != NULL)
    watch->next->previous = watch->previous;
  if (watch->previous != NULL) {
    watch->previous->next = watch->next;
  } else {
    atomic_store_explicit(&timeline->watches, watch->next, memory_order_relaxed);
  }
  watch->linked = false;
}

accrt_reach_t accrt_timeline_watch(accrt_timeline_t* timeline, accrt_watch_t* watch) {
  accrt_mutex_lock(&timeline->lock);
  accrt_reach_t reach = accrt_timeline_reach(timeline, watch->value);
  if (reach == ACCRT_REACH_PENDING) {
    watch->failed = false;
    watch->linked = true;
    watch->previous = NULL;
    watch->next = first_watch(timeline);
    if (watch->next != NULL)
      watch->next->previous = watch;
    atomic_store_explicit(&timeline->watches, watch, memory_order_seq_cst);
    /* A thread that raises it without the lock may not have seen the watch. Seq_cst pairs with
     * accrt_timeline_advance_alone. */
    if (atomic_load_explicit(&timeline->value, memory_order_seq_cst) >= watch->value) {
      unlink_watch(timeline, watch);
      reach = ACCRT_REACH_REACHED;
    }
  }
  accrt_mutex_unlock(&timeline->lock);
  return reach;
}

bool accrt_timeline_unwatch(accrt_timeline_t* timeline, accrt_watch_t* watch) {
  accrt_mutex_lock(&timeline->lock);
  const bool linked = watch->linked;
  if (linked)
    unlink_watch(timeline, watch);
  accrt_mutex_unlock(&timeline->lock);
  return linked;
}

/* Takes the watches up to `value` off the list, in the order they came. Under the lock. */
static accrt_watch_t* detach(accrt_timeline_t* timeline, uint64_t value, bool failed) {
  ACCRT_ASSERT_HELD(&timeline->lock);
  accrt_watch_t* detached = NULL;
  accrt_watch_t* watch = first_watch(timeline);
  while (watch != NULL) {
    accrt_watch_t* next = watch->next;
    if (watch->value <= value) {
      unlink_watch(timeline, watch);
      watch->failed = failed;
      watch->next = detached;
      detached = watch;
    }
    watch = next;
  }
  return detached;
}

static void fire(accrt_watch_t* watch) {
  while (watch != NULL) {
    accrt_watch_t* next = watch->next;
    watch->fire(watch);
    watch = next;
  }
}

void accrt_timeline_advance(accrt_timeline_t* timeline, uint64_t value) {
  accrt_watch_t* detached = NULL;
  accrt_mutex_lock(&timeline->lock);
  if (value > atomic_load_explicit(&timeline->value, memory_order_relaxed)) {
    /* Release pairs with the acquire in accrt_timeline_value. */
    atomic_store_explicit(&timeline->value, value, memory_order_release);
    if (first_watch(timeline) != NULL)
      detached = detach(timeline, value, false);
  }
  accrt_mutex_unlock(&timeline->lock);
  fire(detached);
}

void accrt_timeline_fire(accrt_timeline_t* timeline) {
  accrt_mutex_lock(&timeline->lock);
  accrt_watch_t* detached =
      detach(timeline, atomic_load_explicit(&timeline->value, memory_order_relaxed), false);
  accrt_mutex_unlock(&timeline->lock);
  fire(detached);
}

accrt_status_t accrt_timeline_signal(accrt_timeline_t* timeline, uint64_t value,
                                     uint64_t* out_present) {
  accrt_status_t status = ACCRT_OK;
  accrt_watch_t* detached = NULL;
  accrt_mutex_lock(&timeline->lock);
  *out_present = atomic_load_explicit(&timeline->value, memory_order_relaxed);
  if (atomic_load_explicit(&timeline->failed, memory_order_relaxed) != 0) {
    status = ACCRT_ERROR_POISONED;
  } else if (value <= *out_present) {
    status = ACCRT_ERROR_OUT_OF_RANGE;
  } else {
    /* Release pairs with the acquire in accrt_timeline_value. */
    atomic_store_explicit(&timeline->value, value, memory_order_release);
    if (first_watch(timeline) != NULL)
      detached = detach(timeline, value, false);
  }
  accrt_mutex_unlock(&timeline->lock);
  fire(detached);
  return status;
}

bool accrt_timeline_fail(accrt_timeline_t* timeline, void (*store)(void* user), void* user) {
  accrt_watch_t* detached = NULL;
  accrt_mutex_lock(&timeline->lock);
  const bool first = atomic_load_explicit(&timeline->failed, memory_order_relaxed) == 0;
  if (first) {
    if (store != NULL)
      store(user);
    /* Release pairs with the acquire in accrt_timeline_failed. */
    atomic_store_explicit(&timeline->failed, 1, memory_order_release);
    detached = detach(timeline, UINT64_MAX, true);
  }
  accrt_mutex_unlock(&timeline->lock);
  fire(detached);
  return first;
}

/* ---- Waiting ---- */

static accrt_reach_t check(const accrt_wait_t* wait, uint32_t* out_index) {
  uint32_t pending = 0, failed = 0;
  if (wait->look != NULL)
    wait->look(wait->look_user);
  for (uint32_t i = 0; i < wait->count; ++i) {
    const accrt_reach_t reach = accrt_timeline_reach(wait->items[i].timeline, wait->items[i].value);
    if (reach == ACCRT_REACH_REACHED) {
      if (!wait->any)
        continue;
      *out_index = i;
      return ACCRT_REACH_REACHED;
    }
    if (reach == ACCRT_REACH_PENDING) {
      pending += 1;
    } else if (failed++ == 0) {
      *out_index = i;
    }
  }
  if (failed > 0)
    return ACCRT_REACH_FAILED;
  return pending > 0 || wait->any ? ACCRT_REACH_PENDING : ACCRT_REACH_REACHED;
}

static uint32_t progress(const accrt_wait_t* wait) {
  return wait->progress != NULL ? wait->progress(wait->progress_user) : 0;
}

/* Polls until the deadline; at most `limit` times when that is not 0. */
static accrt_reach_t poll(const accrt_wait_t* wait, uint64_t deadline_ns, uint32_t limit,
                          uint32_t* out_index) {
  for (uint32_t i = 1;; ++i) {
    const accrt_reach_t reach = check(wait, out_index);
    if (reach != ACCRT_REACH_PENDING || i == limit)
      return reach;
    if (progress(wait) == 0) {
      if (wait->policy == ACCRT_WAIT_YIELD) {
        (void)sched_yield();
      } else {
        accrt_pause();
      }
    }
    /* On a busy machine a yield may take long. */
    if ((wait->policy == ACCRT_WAIT_YIELD || i % POLLS_PER_CLOCK == 0) &&
        accrt_deadline_left_ns(deadline_ns) == 0)
      return check(wait, out_index);
  }
}

static void fire_waiter(accrt_watch_t* watch) {
  accrt_waiter_watch_t* waiter = (accrt_waiter_watch_t*)watch;
  atomic_uint* wake = waiter->wake;
  /* Release pairs with the acquire load in sleep_until. */
  atomic_store_explicit(wake, 1, memory_order_release);
  /* The last touch: release pairs with the acquire in stop_watching, after which the waiter's
   * memory is gone. Before the call to the kernel, so that the waiter, once awake, need not wait
   * for that call's end; the call takes the address alone. */
  atomic_store_explicit(&waiter->fired, 1, memory_order_release);
  accrt_futex_wake(wake, 1);
}

/* Watches all items; false when one answered at once. *out_count: how many are watched. */
static bool start_watching(const accrt_wait_t* wait, atomic_uint* wake, uint32_t* out_count) {
  for (uint32_t i = 0; i < wait->count; ++i) {
    accrt_waiter_watch_t* waiter = &wait->watches[i];
    atomic_init(&waiter->fired, 0);
    waiter->wake = wake;
    waiter->watch.value = wait->items[i].value;
    waiter->watch.fire = fire_waiter;
    waiter->watch.linked = false;
    if (accrt_timeline_watch(wait->items[i].timeline, &waiter->watch) != ACCRT_REACH_PENDING) {
      /* Nothing will fire it. */
      atomic_store_explicit(&waiter->fired, 1, memory_order_relaxed);
      if (wait->any) {
        *out_count = i + 1;
        return false;
      }
    }
  }
  *out_count = wait->count;
  return true;
}

static void stop_watching(const accrt_wait_t* wait, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    accrt_waiter_watch_t* waiter = &wait->watches[i];
    if (accrt_timeline_unwatch(wait->items[i].timeline, &waiter->watch))
      continue;
    /* On its way on another thread, for an instant. Acquire pairs with the release in
     * fire_waiter. */
    while (atomic_load_explicit(&waiter->fired, memory_order_acquire) == 0)
      (void)sched_yield();
  }
}

static void sleep_until(const accrt_wait_t* wait, atomic_uint* wake, uint64_t deadline_ns) {
  uint64_t left_ns = accrt_deadline_left_ns(deadline_ns);
  if (wait->progress != NULL) {
    if (progress(wait) != 0)
      return;
    if (left_ns > PROGRESS_SLEEP_NS)
      left_ns = PROGRESS_SLEEP_NS;
  }
  /* Acquire pairs with the release in fire_waiter. */
  if (atomic_load_explicit(wake, memory_order_acquire) == 0)
    accrt_futex_wait(wake, 0, left_ns);
}

static accrt_reach_t block(const accrt_wait_t* wait, uint64_t deadline_ns, uint32_t* out_index) {
  atomic_uint wake;
  atomic_init(&wake, 0);
  uint32_t watched = 0;
  accrt_reach_t reach;
  (void)start_watching(wait, &wake, &watched);
  if (wait->watched != NULL)
    wait->watched(wait->look_user);
  for (;;) {
    /* Cleared before the check: what comes later sets it again. Acquire pairs with the release in
     * fire_waiter: what came before is seen. */
    (void)atomic_exchange_explicit(&wake, 0, memory_order_acquire);
    reach = check(wait, out_index);
    if (reach != ACCRT_REACH_PENDING || accrt_deadline_left_ns(deadline_ns) == 0)
      break;
    sleep_until(wait, &wake, deadline_ns);
  }
  stop_watching(wait, watched);
  return reach;
}

/* Spins as long as pays, going by how it went for the first timeline before. A hint alone:
 * relaxed. */
static accrt_reach_t spin(const accrt_wait_t* wait, uint64_t deadline_ns, uint32_t* out_index) {
  atomic_uint* misses = &wait->items[0].timeline->misses;
  const unsigned missed = atomic_load_explicit(misses, memory_order_relaxed);
  const bool few = missed >= MISSES_BEFORE_FEW && missed % MISSES_BETWEEN_MANY != 0;
  const accrt_reach_t reach =
      poll(wait, deadline_ns, few ? FEW_SPINS_BEFORE_SLEEP : SPINS_BEFORE_SLEEP, out_index);
  atomic_store_explicit(misses, reach == ACCRT_REACH_PENDING ? missed + 1 : 0,
                        memory_order_relaxed);
  return reach;
}

accrt_reach_t accrt_wait(const accrt_wait_t* wait, uint32_t* out_index) {
  accrt_reach_t reach = check(wait, out_index);
  if (reach != ACCRT_REACH_PENDING)
    return reach;
  if (wait->timeout_ns == 0) {
    return progress(wait) != 0 ? check(wait, out_index) : ACCRT_REACH_PENDING;
  }
  const uint64_t deadline_ns = accrt_deadline_ns(wait->timeout_ns);
  if (wait->policy != ACCRT_WAIT_BLOCK || wait->watches == NULL)
    return poll(wait, deadline_ns, 0, out_index);
  reach = spin(wait, deadline_ns, out_index);
  return reach != ACCRT_REACH_PENDING ? reach : block(wait, deadline_ns, out_index);
}
