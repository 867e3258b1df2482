/* runtime/core/counters.h - an instance's registry of counters: the list of its groups. For
 * counters.c and the instance alone. */
#ifndef ACCRT_RUNTIME_CORE_COUNTERS_H_
#define ACCRT_RUNTIME_CORE_COUNTERS_H_

#include "accrt/counters.h"
#include "runtime/core/sync.h"

typedef struct accrt_counters_entry accrt_counters_entry_t;

typedef struct accrt_counters {
  accrt_mutex_t lock;
  accrt_counters_entry_t* first; /* in the order of their ids */
} accrt_counters_t;

static inline void accrt_counters_init(accrt_counters_t* counters) {
  accrt_mutex_init(&counters->lock, ACCRT_LOCK_COUNTERS);
}
/* Removes what is left, once no thread reads any more. */
void accrt_counters_deinit(accrt_instance_t* instance);
/* accrt_counters_add for the library's own groups. */
accrt_status_t accrt_inner_counters_add(accrt_instance_t* instance,
                                        const accrt_counter_group_t* group, uint64_t* out_id);

#endif /* ACCRT_RUNTIME_CORE_COUNTERS_H_ */
