/* runtime/program/prepare_cache.h - results of prepare functions on disk, for devices that use
 * host memory. Private to runtime/program. */
#ifndef ACCRT_RUNTIME_PROGRAM_PREPARE_CACHE_H_
#define ACCRT_RUNTIME_PROGRAM_PREPARE_CACHE_H_

#include "runtime/core/disk_cache.h"
#include "runtime/program/internal.h"

typedef struct accrt_prepare_entry {
  const char* folder; /* NULL: do not store it */
  accrt_cache_key_t key;
} accrt_prepare_entry_t;

/* Places the results of a function from disk. False when the function has to run; pass `entry` to
 * accrt_prepare_store then. `weights` must be the set of the program's creation, without swaps.
 * Leaves the thread's error record unchanged. May block on files. */
bool accrt_prepare_find(accrt_program_t* program, accrt_weight_set_t* weights, uint32_t function,
                        const accrt_plan_t* plan, accrt_prepare_entry_t* entry);
/* Stores the results of the function, which has completed and made them in host memory. */
void accrt_prepare_store(accrt_program_t* program, const accrt_weight_set_t* weights,
                         uint32_t function, const accrt_prepare_entry_t* entry);

#endif /* ACCRT_RUNTIME_PROGRAM_PREPARE_CACHE_H_ */
