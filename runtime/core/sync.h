/* runtime/core/sync.h - a small mutex, futexes, the monotonic clock, deadlines.
 *
 * It may not allocate. The mutex is one word, needs no destruction and may be freed right after its last unlock. Orderings are
 * on the operations: there are no bare fences in the library.
 */
#ifndef ACCRT_RUNTIME_CORE_SYNC_H_
#define ACCRT_RUNTIME_CORE_SYNC_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* 0 free, 1 held, 2 held and somebody may sleep on it. */
typedef struct accrt_mutex {
  atomic_uint state;
} accrt_mutex_t;

void accrt_mutex_lock_slow(accrt_mutex_t* mutex);
/* Wakes up to `count` sleepers on `word`. The word may be gone already: its address is only a name for the kernel. */
void accrt_futex_wake(atomic_uint* word, int count);
/* Sleeps while *word == expected, at most timeout_ns (UINT64_MAX: no limit). May return early. */
void accrt_futex_wait(atomic_uint* word, unsigned expected, uint64_t timeout_ns);

static inline void accrt_mutex_init(accrt_mutex_t* mutex) {
  atomic_init(&mutex->state, 0);
}

static inline void accrt_mutex_lock(accrt_mutex_t* mutex) {
  unsigned expected = 0;
  /* Acquire pairs with the release in accrt_mutex_unlock. */
  if (!atomic_compare_exchange_strong_explicit(&mutex->state, &expected, 1, memory_order_acquire,
                                               memory_order_relaxed)) {
    accrt_mutex_lock_slow(mutex);
  }
}

static inline void accrt_mutex_unlock(accrt_mutex_t* mutex) {
  /* Release pairs with the acquire of the next accrt_mutex_lock. */
  if (atomic_exchange_explicit(&mutex->state, 0, memory_order_release) == 2) {
    accrt_futex_wake(&mutex->state, 1);
  }
}

/* Tells the processor that this is a spin loop. */
static inline void accrt_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* CLOCK_MONOTONIC. */
uint64_t accrt_clock_ns(void);
/* The moment `timeout_ns` from now; UINT64_MAX stays UINT64_MAX. */
uint64_t accrt_deadline_ns(uint64_t timeout_ns);
/* What is left of a deadline; 0 when it has passed. */
uint64_t accrt_deadline_left_ns(uint64_t deadline_ns);

#endif /* ACCRT_RUNTIME_CORE_SYNC_H_ */
