/* runtime/drivers/common/pieces.h - the pieces of a command list, for streams of
 * `commands_per_piece`: driver lists of a few commands each, which the stream enqueues one after
 * another. They are made when such a stream first gets the list, and freed with the list. */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_PIECES_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_PIECES_H_

#include <stdatomic.h>

#include "runtime/drivers/common/internal.h"

typedef struct accrt_pieces accrt_pieces_t;

/* The pieces of one list, for each size that was asked for. Zeros: none. */
typedef struct accrt_divided {
  _Atomic(accrt_pieces_t*) first;
} accrt_divided_t;

/* Adds the pieces of its list to `work` if it has more commands than a piece, for a stream that
 * divides lists. What `info` points to, but for the binding flags, lives as long as `divided`.
 * Thread-safe. ACCRT_ERROR_OUT_OF_MEMORY; the driver's statuses. */
accrt_status_t accrt_pieces_add(accrt_stream_t* stream, const accrt_driver_list_info_t* info,
                                accrt_divided_t* divided, accrt_stream_work_t* work);
/* Frees all pieces. No submission of them may run. */
void accrt_pieces_free(accrt_device_t* device, accrt_divided_t* divided);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_PIECES_H_ */
