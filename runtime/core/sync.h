/* runtime/core/sync.h - a small mutex, a mutex with a condition, futexes, the monotonic clock,
 * deadlines.
 *
 * A lock is initialised with its class, which is its place in the order of all locks
 * (lock_order.h). It may not allocate. The mutex is one word, needs no destruction and may be freed
 * right after its last unlock. Memory orders are given with each operation; the library has no
 * separate fences.
 */
#ifndef ACCRT_RUNTIME_CORE_SYNC_H_
#define ACCRT_RUNTIME_CORE_SYNC_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/core/assertion.h"

/* 0: free; 1: held; 2: held, and a thread may sleep on it. */
typedef struct accrt_mutex {
  atomic_uint state;
  ACCRT_LOCK_CLASS_FIELD
} accrt_mutex_t;

void accrt_mutex_lock_slow(accrt_mutex_t* mutex);
/* Wakes one sleeper. */
void accrt_mutex_wake(accrt_mutex_t* mutex);
/* Wakes up to `count` sleepers on `word`. The word may be freed already: the kernel uses only its
 * address. */
void accrt_futex_wake(atomic_uint* word, int count);
/* Sleeps while *word == expected, at most timeout_ns (UINT64_MAX: no limit). May return early. */
void accrt_futex_wait(atomic_uint* word, unsigned expected, uint64_t timeout_ns);

static inline void accrt_mutex_init(accrt_mutex_t* mutex, accrt_lock_class_t lock_class) {
  atomic_init(&mutex->state, 0);
  ACCRT_LOCK_CLASS_SET(mutex, lock_class);
}
/* Initialises a static mutex. */
#if defined(ACCRT_ASSERTIONS) && ACCRT_ASSERTIONS
#define ACCRT_MUTEX_STATIC(name)                                                                   \
  { .lock_class = (name) }
#else
#define ACCRT_MUTEX_STATIC(name)                                                                   \
  { 0 }
#endif

/* Inline where a file is compiled for speed. What is compiled for size calls the functions. */
void accrt_mutex_lock_called(accrt_mutex_t* mutex);
void accrt_mutex_unlock_called(accrt_mutex_t* mutex);
#if defined(__OPTIMIZE_SIZE__) && !defined(ACCRT_MUTEX_INLINE)
#define accrt_mutex_lock accrt_mutex_lock_called
#define accrt_mutex_unlock accrt_mutex_unlock_called
#else
static inline void accrt_mutex_lock(accrt_mutex_t* mutex) {
  unsigned expected = 0;
  ACCRT_LOCK_ENTER(mutex);
  /* Acquire pairs with the release in accrt_mutex_unlock. */
  if (!atomic_compare_exchange_strong_explicit(&mutex->state, &expected, 1, memory_order_acquire,
                                               memory_order_relaxed)) {
    accrt_mutex_lock_slow(mutex);
  }
}

static inline void accrt_mutex_unlock(accrt_mutex_t* mutex) {
  ACCRT_LOCK_LEAVE(mutex);
  /* Release pairs with the acquire of the next accrt_mutex_lock. */
  if (atomic_exchange_explicit(&mutex->state, 0, memory_order_release) == 2) {
    accrt_mutex_wake(mutex);
  }
}
#endif

/* Takes the mutex if it is free. The order of locks does not apply, because it cannot wait. */
static inline bool accrt_mutex_try_lock(accrt_mutex_t* mutex) {
  unsigned expected = 0;
  /* Acquire pairs with the release in accrt_mutex_unlock. */
  const bool taken = atomic_compare_exchange_strong_explicit(
      &mutex->state, &expected, 1, memory_order_acquire, memory_order_relaxed);
  if (taken)
    ACCRT_LOCK_ENTER_TRIED(mutex);
  return taken;
}

/* A mutex with a condition to wait for. */
typedef struct accrt_monitor {
  pthread_mutex_t mutex; /* adaptive: it is held for less time than a sleep takes */
  pthread_cond_t changed;
  ACCRT_LOCK_CLASS_FIELD
} accrt_monitor_t;

/* The system's part of accrt_monitor_init. */
void accrt_monitor_make(pthread_mutex_t* mutex, pthread_cond_t* changed);
static inline void accrt_monitor_init(accrt_monitor_t* monitor, accrt_lock_class_t lock_class) {
  accrt_monitor_make(&monitor->mutex, &monitor->changed);
  ACCRT_LOCK_CLASS_SET(monitor, lock_class);
}
void accrt_monitor_deinit(accrt_monitor_t* monitor);
static inline void accrt_monitor_lock(accrt_monitor_t* monitor) {
  ACCRT_LOCK_ENTER(monitor);
  (void)pthread_mutex_lock(&monitor->mutex);
}
static inline void accrt_monitor_unlock(accrt_monitor_t* monitor) {
  ACCRT_LOCK_LEAVE(monitor);
  (void)pthread_mutex_unlock(&monitor->mutex);
}
/* Releases the lock, sleeps until a wake-up, takes the lock again. It may return without a
 * wake-up. */
static inline void accrt_monitor_wait(accrt_monitor_t* monitor) {
  ACCRT_ASSERT_HELD(monitor);
  (void)pthread_cond_wait(&monitor->changed, &monitor->mutex);
}
static inline void accrt_monitor_wake_one(accrt_monitor_t* monitor) {
  (void)pthread_cond_signal(&monitor->changed);
}
static inline void accrt_monitor_wake_all(accrt_monitor_t* monitor) {
  (void)pthread_cond_broadcast(&monitor->changed);
}

/* Marks a spin loop for the processor. */
static inline void accrt_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* CLOCK_MONOTONIC. */
uint64_t accrt_clock_ns(void);
/* The time `timeout_ns` from now; UINT64_MAX stays UINT64_MAX. */
uint64_t accrt_deadline_ns(uint64_t timeout_ns);
/* The time left until a deadline; 0 when it has passed. */
uint64_t accrt_deadline_left_ns(uint64_t deadline_ns);
/* The same for a caller's limit. 0 (polling) stays 0, and no other limit becomes 0. */
static inline uint64_t accrt_limit_left_ns(uint64_t timeout_ns, uint64_t deadline_ns) {
  if (timeout_ns == 0)
    return 0;
  const uint64_t left_ns = accrt_deadline_left_ns(deadline_ns);
  return left_ns != 0 ? left_ns : 1;
}
/* CLOCK_MONOTONIC_COARSE: a few nanoseconds to read, and milliseconds late. */
uint64_t accrt_clock_coarse_ns(void);

/* ---- Threads ---- */

/* Starts a thread that blocks all signals, which are for the user's threads. `attributes` may be
 * NULL. Returns what pthread_create returns. */
int accrt_thread_start(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                       void* user);
/* Runs `work` on the caller's thread and on further threads, `count` in all but at most 16, and
 * returns when all have returned. If a thread cannot be created, the others do its work. */
void accrt_threads_run(uint64_t count, void* (*work)(void*), void* user);

#endif /* ACCRT_RUNTIME_CORE_SYNC_H_ */
