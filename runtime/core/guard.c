/* runtime/core/guard.c - the error that a second thread gets. */
#include "runtime/core/guard.h"

#include "runtime/core/error.h"

accrt_status_t accrt_guard_refuse(accrt_guard_t* guard, const char* what) {
  const char* inside = atomic_load_explicit(&guard->inside, memory_order_relaxed);
  return ACCRT_FAIL(INVALID_STATE,
                    "the %s is in use: %s is inside, on another thread or below this call; it "
                    "is for one thread at a time",
                    what, inside != NULL ? inside : "a function that has just returned");
}
