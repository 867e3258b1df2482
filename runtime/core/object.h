/* runtime/core/object.h - reference counts. For every opaque handle: `accrt_object_t object` is its first field.
 *
 * It may not allocate or know what it counts.
 */
#ifndef ACCRT_RUNTIME_CORE_OBJECT_H_
#define ACCRT_RUNTIME_CORE_OBJECT_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct accrt_object {
  atomic_uint_least32_t references;
} accrt_object_t;

static inline void accrt_object_init(accrt_object_t* object) {
  atomic_init(&object->references, 1);
}
/* Relaxed: whoever retains holds a reference already, so nothing is published by it. */
static inline void accrt_object_retain(accrt_object_t* object) {
  atomic_fetch_add_explicit(&object->references, 1, memory_order_relaxed);
}
/* Retains what is found in a list and may be going away: false when its last reference is gone already. The list's lock keeps the
 * memory; relaxed for the same reason as above. */
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
/* True for the last reference: the caller frees. Acq_rel pairs with itself: every user's writes happen before the free. */
static inline bool accrt_object_release(accrt_object_t* object) {
  return atomic_fetch_sub_explicit(&object->references, 1, memory_order_acq_rel) == 1;
}

#endif /* ACCRT_RUNTIME_CORE_OBJECT_H_ */
