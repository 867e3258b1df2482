/* runtime/core/watched.h - the flag that is set while handles are validated (abi/watch.h).
 *
 * It lies here for those below abi/ that would reuse the memory of a released handle.
 */
#ifndef ACCRT_RUNTIME_CORE_WATCHED_H_
#define ACCRT_RUNTIME_CORE_WATCHED_H_

#include <stdatomic.h>
#include <stdbool.h>

/* Not 0 while handles are validated. Relaxed is enough: a thread that got a handle of a validating
 * instance is ordered after the store. */
extern atomic_uint accrt_watch_flag __attribute__((visibility("hidden")));
static inline __attribute__((always_inline)) bool accrt_watched(void) {
  return __builtin_expect(atomic_load_explicit(&accrt_watch_flag, memory_order_relaxed) != 0, 0);
}

#endif /* ACCRT_RUNTIME_CORE_WATCHED_H_ */
