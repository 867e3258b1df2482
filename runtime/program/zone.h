/* runtime/program/zone.h - memory that is freed all at once. A plan lies in one zone.
 *
 * It does not know its contents. Not thread-safe.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_ZONE_H_
#define ACCRT_RUNTIME_PROGRAM_ZONE_H_

#include <stddef.h>

#include "accrt/instance.h"

typedef struct accrt_zone_block accrt_zone_block_t;

typedef struct accrt_zone {
  const accrt_allocator_t* allocator;
  accrt_zone_block_t* blocks; /* allocations come from the first one */
} accrt_zone_t;

void accrt_zone_init(accrt_zone_t* zone, const accrt_allocator_t* allocator);
void accrt_zone_deinit(accrt_zone_t* zone);
/* Returns zeroed, 16-aligned memory. A count of 0 gives NULL and ACCRT_OK. */
accrt_status_t accrt_zone_take(accrt_zone_t* zone, size_t count, size_t element_bytes,
                               void** out_pointer);

#endif /* ACCRT_RUNTIME_PROGRAM_ZONE_H_ */
