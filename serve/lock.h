/* serve/lock.h - a mutex with its class in the order of all locks (runtime/core/lock_order.h), and
 * conditions that are waited for under it.
 *
 * It adds the checks of runtime/core/assertion.h to pthread's mutex, and nothing in builds without
 * assertions. A shared library checks the order of its own locks; linked statically, all libraries
 * check one order.
 */
#ifndef ACCRT_SERVE_LOCK_H_
#define ACCRT_SERVE_LOCK_H_

#include <errno.h>
#include <pthread.h>

#include "runtime/core/assertion.h"

typedef struct accsv_lock {
  pthread_mutex_t mutex;
  ACCRT_LOCK_CLASS_FIELD
} accsv_lock_t;

#if defined(ACCRT_ASSERTIONS) && ACCRT_ASSERTIONS
#define ACCSV_LOCK_STATIC(name)                                                                    \
  { PTHREAD_MUTEX_INITIALIZER, name }
#else
#define ACCSV_LOCK_STATIC(name)                                                                    \
  { PTHREAD_MUTEX_INITIALIZER }
#endif

/* Returns what pthread_mutex_init returns. */
static inline int accsv_lock_init(accsv_lock_t* lock, accrt_lock_class_t lock_class) {
  ACCRT_LOCK_CLASS_SET(lock, lock_class);
  return pthread_mutex_init(&lock->mutex, NULL);
}
static inline void accsv_lock_deinit(accsv_lock_t* lock) {
  (void)pthread_mutex_destroy(&lock->mutex);
}
static inline void accsv_lock(accsv_lock_t* lock) {
  ACCRT_LOCK_ENTER(lock);
  (void)pthread_mutex_lock(&lock->mutex);
}
static inline void accsv_unlock(accsv_lock_t* lock) {
  ACCRT_LOCK_LEAVE(lock);
  (void)pthread_mutex_unlock(&lock->mutex);
}
/* Releases the lock, sleeps until a wake-up, takes the lock again. It may return without a
 * wake-up. */
static inline void accsv_wait(pthread_cond_t* condition, accsv_lock_t* lock) {
  ACCRT_ASSERT_HELD(lock);
  (void)pthread_cond_wait(condition, &lock->mutex);
}
/* The same until a time on the condition's clock. True when that has passed. */
static inline bool accsv_wait_until(pthread_cond_t* condition, accsv_lock_t* lock,
                                    const struct timespec* end) {
  ACCRT_ASSERT_HELD(lock);
  return pthread_cond_timedwait(condition, &lock->mutex, end) == ETIMEDOUT;
}

#endif /* ACCRT_SERVE_LOCK_H_ */
