/* runtime/core/object.h - reference counts. The first field of every opaque handle's struct is
 * `accrt_object_t object`.
 *
 * It may not allocate. It does not know what it counts.
 */
#ifndef ACCRT_RUNTIME_CORE_OBJECT_H_
#define ACCRT_RUNTIME_CORE_OBJECT_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/core/assertion.h"

typedef struct accrt_object {
  atomic_uint_least32_t references;
} accrt_object_t;

static inline void accrt_object_init(accrt_object_t* object) {
  atomic_init(&object->references, 1);
}
/* Relaxed is enough: the caller has a reference already, so this publishes nothing. */
static inline void accrt_object_retain(accrt_object_t* object) {
  const uint_least32_t before =
      atomic_fetch_add_explicit(&object->references, 1, memory_order_relaxed);
  ACCRT_ASSERT(before != 0);
}
/* False when the last reference is gone. The caller keeps the memory valid. Relaxed: what is found
 * may be old at once. */
static inline bool accrt_object_is_alive(const accrt_object_t* object) {
  return atomic_load_explicit(&object->references, memory_order_relaxed) != 0;
}
/* Retains an object from a list, which may be ending. Returns false when its last reference is gone
 * already. The list's lock keeps the memory valid. Relaxed for the same reason as above. */
static inline bool accrt_object_try_retain(accrt_object_t* object) {
  uint_least32_t references = atomic_load_explicit(&object->references, memory_order_relaxed);
  while (references != 0) {
    if (atomic_compare_exchange_weak_explicit(&object->references, &references, references + 1,
                                              memory_order_relaxed, memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}
/* True when this was the last reference: the caller frees the object. Acquire and release: the
 * writes of every user happen before the free. */
static inline bool accrt_object_release(accrt_object_t* object) {
  const uint_least32_t before =
      atomic_fetch_sub_explicit(&object->references, 1, memory_order_acq_rel);
  ACCRT_ASSERT(before != 0);
  return before == 1;
}

#endif /* ACCRT_RUNTIME_CORE_OBJECT_H_ */
