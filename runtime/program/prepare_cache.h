/* runtime/program/prepare_cache.h - results of prepare functions on disk. Private to runtime/program. */
#ifndef ACCRT_RUNTIME_PROGRAM_PREPARE_CACHE_H_
#define ACCRT_RUNTIME_PROGRAM_PREPARE_CACHE_H_

#include "runtime/core/disk_cache.h"
#include "runtime/program/internal.h"

typedef struct accrt_prepare_entry {
  const char* folder; /* NULL: not to be kept */
  accrt_cache_key_t key;
} accrt_prepare_entry_t;

/* Puts the results of a function into their places: false when they are to be made, and then `entry` is for accrt_prepare_keep. The set
 * of weights is as the program was created with: nothing was swapped. Leaves the error record alone; may block on files. */
bool accrt_prepare_find(accrt_program_t* program, accrt_weight_set_t* weights, uint32_t function,
                        const accrt_plan_t* plan, accrt_prepare_entry_t* entry);
/* Keeps what the function made. */
void accrt_prepare_keep(accrt_program_t* program, const accrt_weight_set_t* weights,
                        uint32_t function, const accrt_prepare_entry_t* entry,
                        accrt_stream_t* stream);

#endif /* ACCRT_RUNTIME_PROGRAM_PREPARE_CACHE_H_ */
