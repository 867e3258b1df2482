/* runtime/core/sync.c - futex calls, the slow path of the mutex, and threads. It may not allocate
 * or touch the error record. */
#define _GNU_SOURCE
#define ACCRT_MUTEX_INLINE 1
#include "runtime/core/sync.h"

#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS_BEFORE_SLEEP 64
#define NS_PER_S UINT64_C(1000000000)

_Static_assert(sizeof(atomic_uint) == 4, "a futex is 32 bits");

void accrt_futex_wake(atomic_uint* word, int count) {
  (void)syscall(SYS_futex, (void*)word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

void accrt_futex_wait(atomic_uint* word, unsigned expected, uint64_t timeout_ns) {
  struct timespec limit = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
                           .tv_nsec = (long)(timeout_ns % NS_PER_S)};
  (void)syscall(SYS_futex, (void*)word, FUTEX_WAIT_PRIVATE, expected,
                timeout_ns == UINT64_MAX ? NULL : &limit, NULL, 0);
}

void accrt_mutex_lock_called(accrt_mutex_t* mutex) {
  accrt_mutex_lock(mutex);
}

void accrt_mutex_unlock_called(accrt_mutex_t* mutex) {
  accrt_mutex_unlock(mutex);
}

void accrt_mutex_lock_slow(accrt_mutex_t* mutex) {
  for (int i = 0; i < SPINS_BEFORE_SLEEP; ++i) {
    unsigned expected = 0;
    /* Acquire pairs with the release in accrt_mutex_unlock. */
    if (atomic_load_explicit(&mutex->state, memory_order_relaxed) == 0 &&
        atomic_compare_exchange_weak_explicit(&mutex->state, &expected, 1, memory_order_acquire,
                                              memory_order_relaxed)) {
      return;
    }
    accrt_pause();
  }
  /* State 2 makes the unlocking thread wake the next one; acquire as above. */
  while (atomic_exchange_explicit(&mutex->state, 2, memory_order_acquire) != 0) {
    accrt_futex_wait(&mutex->state, 2, UINT64_MAX);
  }
}

void accrt_mutex_wake(accrt_mutex_t* mutex) {
  accrt_futex_wake(&mutex->state, 1);
}

void accrt_monitor_make(pthread_mutex_t* mutex, pthread_cond_t* changed) {
  *mutex = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
  *changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

void accrt_monitor_deinit(accrt_monitor_t* monitor) {
  (void)pthread_cond_destroy(&monitor->changed);
  (void)pthread_mutex_destroy(&monitor->mutex);
}

uint64_t accrt_clock_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t accrt_clock_coarse_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t accrt_deadline_ns(uint64_t timeout_ns) {
  if (timeout_ns == UINT64_MAX)
    return UINT64_MAX;
  uint64_t deadline_ns;
  return __builtin_add_overflow(accrt_clock_ns(), timeout_ns, &deadline_ns) ? UINT64_MAX
                                                                            : deadline_ns;
}

uint64_t accrt_deadline_left_ns(uint64_t deadline_ns) {
  if (deadline_ns == UINT64_MAX)
    return UINT64_MAX;
  const uint64_t now_ns = accrt_clock_ns();
  return now_ns < deadline_ns ? deadline_ns - now_ns : 0;
}

/* ---- Threads ---- */

int accrt_thread_start(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                       void* user) {
  sigset_t all, old;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &old);
  const int error = pthread_create(thread, attributes, work, user);
  (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
  return error;
}

void accrt_threads_run(uint64_t count, void* (*work)(void*), void* user) {
  pthread_t threads[15];
  uint32_t started = 0;
  while (started < sizeof threads / sizeof *threads && started + 1 < count &&
         accrt_thread_start(&threads[started], NULL, work, user) == 0)
    ++started;
  (void)work(user);
  while (started > 0)
    (void)pthread_join(threads[--started], NULL);
}
