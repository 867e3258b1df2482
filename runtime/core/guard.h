/* runtime/core/guard.h - detects threads that use an externally synchronized object at the same
 * time.
 *
 * A guard belongs to an object. It stores the function that is inside, and refuses a second one. It
 * is not a lock and orders nothing else. It may not allocate or wait.
 */
#ifndef ACCRT_RUNTIME_CORE_GUARD_H_
#define ACCRT_RUNTIME_CORE_GUARD_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/core/error.h"

typedef struct accrt_guard {
  _Atomic(const char*) inside; /* the function that is inside, or NULL */
} accrt_guard_t;

static inline bool accrt_guard_enter(accrt_guard_t* guard, const char* function) {
  const char* none = NULL;
  /* Acquire pairs with the release in accrt_guard_leave: each caller sees the writes of the callers
   * before it. */
  return atomic_compare_exchange_strong_explicit(&guard->inside, &none, function,
                                                 memory_order_acquire, memory_order_relaxed);
}
/* The same for paths where an exchange costs too much. It misses two threads that enter within a
 * few nanoseconds. */
static inline bool accrt_guard_enter_light(accrt_guard_t* guard, const char* function) {
  if (atomic_load_explicit(&guard->inside, memory_order_relaxed) != NULL)
    return false;
  atomic_store_explicit(&guard->inside, function, memory_order_relaxed);
  return true;
}
/* For __attribute__((cleanup)). */
static inline void accrt_guard_leave(accrt_guard_t* const* guard) {
  atomic_store_explicit(&(*guard)->inside, NULL, memory_order_release);
}
/* Records ACCRT_ERROR_INVALID_STATE: `what` is the object in words. */
accrt_status_t accrt_guard_refuse(accrt_guard_t* guard, const char* what);

/* Use it after ACCRT_ENTER of a public function, or in a helper of several: a second thread learns
 * the name that was noted there. The guard covers the rest of the function that has it, and ends at
 * every return. */
#define ACCRT_GUARD(guard, what) ACCRT_GUARD_WITH(accrt_guard_enter, guard, what)
#define ACCRT_GUARD_LIGHT(guard, what) ACCRT_GUARD_WITH(accrt_guard_enter_light, guard, what)
#define ACCRT_GUARD_WITH(enter, guard, what)                                                       \
  if (__builtin_expect(!enter(guard, accrt_error_function), 0))                                    \
    return accrt_guard_refuse(guard, what);                                                        \
  accrt_guard_t* const inside_ __attribute__((cleanup(accrt_guard_leave), unused)) = guard

#endif /* ACCRT_RUNTIME_CORE_GUARD_H_ */
