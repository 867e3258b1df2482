/* runtime/drivers/common/staging.h - moving much between a device and what it cannot reach well:
 * plain host memory, files, bundles. Several threads fill pinned entries of a ring, check what is
 * in them while it is in the cache, and give the driver one copy after the other.
 *
 * One engine a device, made when it is first needed and kept until the instance ends. It knows the
 * driver's table and nothing of where bytes come from. It makes no calls under its lock.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_STAGING_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_STAGING_H_

#include <stdbool.h>

#include "runtime/drivers/common/internal.h"

/* What ring entries are made of, and what digests of bundles are made of: uploads with extents get
 * multiples of it but for the last piece. */
#define ACCRT_STAGING_CHUNK_BYTES (UINT64_C(1) << 20)
/* Copies of less go straight to the driver. */
#define ACCRT_STAGING_MIN_BYTES (UINT64_C(2) << 20)

typedef struct accrt_staging accrt_staging_t;
typedef struct accrt_staging_job accrt_staging_job_t;

/* Moves one piece of the host's side into `memory` (towards the device) or out of it, by its offset
 * from the beginning of the whole. Called by several threads at a time, for each piece once. A
 * failure is recorded with ACCRT_FAIL. */
typedef accrt_status_t (*accrt_staging_move_fn_t)(void* user, uint64_t offset_bytes, void* memory,
                                                  uint64_t size_bytes);

#define ACCRT_STAGING_TO_DEVICE 0u
#define ACCRT_STAGING_FROM_DEVICE 1u

/* One transfer. The caller owns the record until `done` is called. */
struct accrt_staging_job {
  /* set by the caller */
  uint32_t direction;
  bool direct; /* the address is host memory: pieces are moved there, without ring and device */
  const char* name; /* of the operation, for error records: static */
  accrt_staging_move_fn_t move;
  void* user;
  uint64_t address; /* of the device's side; direct: of the memory; with extents: unused */
  uint64_t size_bytes;
  const accrt_extent_t*
      extents; /* towards the device: the parts that are copied, and where to; NULL: all of it */
  uint32_t extent_count;
  /* Called once, when nothing of it runs any more, under no lock and on any thread. `error` is
   * valid when it failed. */
  void (*done)(accrt_staging_job_t* job);
  /* the engine's */
  accrt_staging_job_t* next;
  uint64_t piece_bytes;
  uint64_t claimed_bytes;
  uint64_t left_bytes; /* not moved yet, claimed or not */
  bool failed;
  uint64_t failed_offset; /* of the first piece that failed: its record is kept */
  accrt_error_t error;
};

/* The device's engine, made on the first call, with as many threads as size_bytes are worth.
 * ACCRT_ERROR_OUT_OF_MEMORY. */
accrt_status_t accrt_staging_get(accrt_device_t* device, uint64_t size_bytes,
                                 accrt_staging_t** out_staging);
/* Begins a transfer. When the engine was stopped the job ends at once, as cancelled. */
void accrt_staging_post(accrt_staging_t* staging, accrt_staging_job_t* job);
/* Begins a copy of it and waits for its end; its failure becomes this thread's error. */
accrt_status_t accrt_staging_run(accrt_staging_t* staging, const accrt_staging_job_t* job);
/* Cancels what has not been moved, waits for what is being moved, ends the threads and gives the
 * ring back; NULL is allowed. */
void accrt_staging_stop(accrt_staging_t* staging);
/* Behind accrt_staging_stop; NULL is allowed. */
void accrt_staging_destroy(accrt_staging_t* staging);

/* ---- In stream order ---- */

/* One transfer for a stream. */
typedef struct accrt_staged {
  uint32_t direction;
  bool direct;
  const char* name; /* of the public function: static */
  accrt_staging_move_fn_t move;
  /* called when `user` is not needed any more, also when the call fails; may be NULL */
  void (*release)(void* user);
  void* user;
  uint64_t address;
  uint64_t size_bytes;
  accrt_buffer_t* buffers[2]; /* kept until the end; may be NULL */
} accrt_staged_t;
/* Enqueues it: it begins when all before it on the stream is complete, and what follows waits for
 * it. `out_number` is complete with it. Never blocks on the device. */
accrt_status_t accrt_stream_enqueue_staged(accrt_stream_t* stream, const accrt_staged_t* staged,
                                           uint64_t* out_number);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_STAGING_H_ */
