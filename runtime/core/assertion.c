/* runtime/core/assertion.c - failed assertions, and the locks that each thread holds. Empty in
 * builds without ACCRT_ASSERTIONS. It may not allocate or take a lock. */
#include "runtime/core/assertion.h"

#if defined(ACCRT_ASSERTIONS) && ACCRT_ASSERTIONS

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_HELD 6u

static const char* const names[] = {"never initialised",
#define NAME(name, what) what,
                                    ACCRT_LOCK_ORDER(NAME)
#undef NAME
};

/* In the order of locking. Initial-exec: the first access may not allocate. The array is short,
 * because two copies of the library in one process share the small space for such storage. */
static _Thread_local struct {
  const void* lock[MOST_HELD];
  uint8_t lock_class[MOST_HELD];
  uint32_t count;
} held __attribute__((tls_model("initial-exec")));

void accrt_assert_failed(const char* condition, const char* file, int line) {
  (void)fprintf(stderr, "accrt: %s:%d: assertion failed: %s\n", file, line, condition);
  abort();
}

void accrt_lock_enter_tried(const void* lock, accrt_lock_class_t lock_class) {
  ACCRT_ASSERT(lock_class != ACCRT_LOCK_NONE);
  ACCRT_ASSERT(held.count < MOST_HELD);
  held.lock[held.count] = lock;
  held.lock_class[held.count++] = (uint8_t)lock_class;
}

void accrt_lock_enter(const void* lock, accrt_lock_class_t lock_class) {
  for (uint32_t i = 0; i < held.count; ++i) {
    if (held.lock_class[i] < (uint32_t)lock_class)
      continue;
    (void)fprintf(stderr, "accrt: lock order: '%s' (%u) is taken while '%s' (%u) is held\n",
                  names[lock_class], (unsigned)lock_class, names[held.lock_class[i]],
                  (unsigned)held.lock_class[i]);
    abort();
  }
  accrt_lock_enter_tried(lock, lock_class);
}

void accrt_lock_leave(const void* lock) {
  uint32_t at = held.count;
  while (at > 0 && held.lock[at - 1] != lock)
    --at;
  ACCRT_ASSERT(at > 0 && "a lock is given back by the thread that holds it");
  for (held.count -= 1; at <= held.count; ++at) {
    held.lock[at - 1] = held.lock[at];
    held.lock_class[at - 1] = held.lock_class[at];
  }
}

bool accrt_lock_is_held_below(accrt_lock_class_t lock_class) {
  for (uint32_t i = 0; i < held.count; ++i) {
    if (held.lock_class[i] > (uint32_t)lock_class)
      return true;
  }
  return false;
}

bool accrt_lock_is_held(const void* lock) {
  for (uint32_t i = 0; i < held.count; ++i) {
    if (held.lock[i] == lock)
      return true;
  }
  return false;
}

#endif
