/* runtime/program/unnumbered_host.h - test fixture: the host driver without progress by number and
 * without work on the caller, so that programs run on streams whose every number has a listener.
 * For tests alone.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_UNNUMBERED_HOST_H_
#define ACCRT_RUNTIME_PROGRAM_UNNUMBERED_HOST_H_

#include "runtime/program/internal.h"

extern const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi);

static inline const void* unnumbered_host_query(uint32_t max_abi) {
  static accrt_driver_table_t table;
  table = *accrt_driver_host_query(max_abi);
  table.queue_run = NULL;
  table.queue_progress = NULL;
  table.queue_wait = NULL;
  return &table;
}

#endif /* ACCRT_RUNTIME_PROGRAM_UNNUMBERED_HOST_H_ */
