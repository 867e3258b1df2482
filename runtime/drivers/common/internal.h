/* runtime/drivers/common/internal.h - what the program layer and abi/ may use of instances,
 * devices, buffers and streams.
 *
 * Everything here is implemented in runtime/core, runtime/memory and runtime/drivers/common. It may
 * not mention bundles or programs. The structs behind the handles are private to those folders;
 * others use them through this header alone.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_INTERNAL_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_INTERNAL_H_

#include <stdbool.h>

#include "accrt/commands.h"
#include "accrt/instance.h"
#include "accrt/memory.h"
#include "accrt/stream.h"
#include "accrt/sys/driver.h"
#include "accrt/tensor.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/pack.h"
#include "runtime/drivers/common/inner.h"
#include "runtime/memory/buffer.h"
#include "runtime/memory/device.h"

/* ---- Streams ---- */

/* How an object that work on a stream uses is retained until that work has ended. The functions are
 * called without a lock of the library; `drop` where a driver may be called. */
typedef struct accrt_retained_class {
  void (*ref)(void* object);
  void (*drop)(void* object);
} accrt_retained_class_t;

/* A driver list to be executed in stream order. Arrays are copied when the stream must defer. */
typedef struct accrt_stream_work {
  accrt_driver_list_t* list;
  const accrt_driver_binding_t* bindings;
  const uint64_t* scalars;
  uint32_t binding_count;
  uint32_t scalar_count;
  const char* name; /* for traces; static or outliving the work */
  /* called exactly once when execute succeeds, however the work ends (run, failed, dropped); `done`
   * NULL: no listener, see accrt_stream_outcome */
  accrt_driver_completion_t completion;
  const accrt_retained_class_t*
      retained_class; /* of `retained`, until the work has ended; NULL: nothing */
  void* retained;
  /* The list in pieces, which are enqueued in its place (pieces.h); 0: it is not divided. */
  accrt_driver_list_t* const* pieces;
  uint32_t piece_count;
  uint64_t* out_first; /* gets the number of the first piece; may be NULL */
} accrt_stream_work_t;

/* Internal references hold the object and not the instance, for what ends with it. */
void accrt_stream_ref(accrt_stream_t* stream);
/* For functions that tell other threads something: keeps the stream and its instance until they
 * return. The second may end both. */
void accrt_stream_hold(accrt_stream_t* stream);
void accrt_stream_let_go(accrt_stream_t* stream);
void accrt_stream_unref(accrt_stream_t* stream);
/* Around requests that belong together: the stream is not reset meanwhile. If it fails, what comes
 * behind is refused, and nothing runs that stands on what was dropped. A thread that holds it may
 * not reset it, nor wait for work that another thread has to start. */
void accrt_stream_hold_reset(accrt_stream_t* stream);
void accrt_stream_let_reset(accrt_stream_t* stream);
accrt_fence_t* accrt_stream_fence(accrt_stream_t* stream);
/* Number of the last submission that the stream took. */
uint64_t accrt_stream_last_submission(accrt_stream_t* stream);
/* What accrt_memory_above_t's refresh_fences does for the stream of one fence. Cheap when there is
 * nothing to ask (the stream is gone, or all that it took has passed). */
void accrt_fence_refresh(accrt_fence_t* fence);
/* Notes that work up to `submission` of the stream uses the buffer; ACCRT_ERROR_OUT_OF_MEMORY. */
static inline accrt_status_t accrt_buffer_note_use(accrt_buffer_t* buffer, accrt_stream_t* stream,
                                                   uint64_t submission) {
  return accrt_buffer_note_fence(buffer, accrt_stream_fence(stream), submission);
}

/* The end of every submission is traced. */
bool accrt_stream_traces(const accrt_stream_t* stream);
/* Lists are enqueued in pieces (pieces.h). */
bool accrt_stream_divides(const accrt_stream_t* stream);
/* What became of the submissions `first` to `last`, as far as is known: ACCRT_OK when all have
 * ended well, ACCRT_ERROR_NOT_READY, or ACCRT_ERROR_POISONED with the failure's own record in
 * `out_error`. Makes no record. */
accrt_status_t accrt_stream_outcome(accrt_stream_t* stream, uint64_t first, uint64_t last,
                                    accrt_error_t* out_error);
/* Changes whenever the stream fails: a failure need not be looked for while it is as it was. */
uint32_t accrt_stream_failures(const accrt_stream_t* stream);
/* Waits for a submission, as accrt_stream_synchronize does for all. Messages show `asked_ns`, of
 * which `timeout_ns` is left. */
accrt_status_t accrt_stream_wait_number(accrt_stream_t* stream, uint64_t number,
                                        uint64_t timeout_ns, uint64_t asked_ns, uint32_t policy);

/* Enqueues. On success `*out_submission` is its number (from 1, per stream) and the completion will
 * be called. If work in pieces fails, `*out_submission` is the last piece that was enqueued, which
 * may still run; 0: none was. */
accrt_status_t accrt_stream_execute(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                    uint64_t* out_submission);
/* Runs on the calling thread when the stream is idle and the driver can; the completion is not
 * called and nothing is allocated. ACCRT_ERROR_NOT_READY without a record when it cannot be done
 * so: use accrt_stream_execute. Any other status is the work's own; the stream is not poisoned. */
accrt_status_t accrt_stream_execute_inline(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                           uint64_t* out_submission);
/* Around the enqueuing of work that is waited for with a limit: where enqueuing may run it, it is
 * held back, and a thread of the instance's own gives it to the driver from accrt_stream_go on,
 * which follows whatever else fails. */
accrt_status_t accrt_stream_hand_over(accrt_stream_t* stream);
void accrt_stream_go(accrt_stream_t* stream);
/* As accrt_stream_wait_number; but what has failed and still runs is ACCRT_ERROR_TIMEOUT at the
 * limit. */
accrt_status_t accrt_stream_wait_over(accrt_stream_t* stream, uint64_t number, uint64_t timeout_ns);
/* Where a part of what is moved goes. */
typedef struct accrt_extent {
  uint64_t offset_bytes;
  uint64_t size_bytes;
  uint64_t address;
} accrt_extent_t;
/* The first of ascending extents that ends behind an offset, or `count`. */
uint32_t accrt_extent_find(const accrt_extent_t* extents, uint32_t count, uint64_t offset_bytes);
/* Something to be moved to a device: `size_bytes` that `fill` supplies in pieces, of which the
 * extents go somewhere. */
typedef struct accrt_upload {
  const char* name; /* of the operation, for error records; static */
  uint64_t size_bytes;
  const accrt_extent_t* extents; /* ascending, apart */
  uint32_t extent_count;
  /* Fills a piece by its offset from the beginning, of which all but the last begin and end at
   * multiples of 1 MiB. Called by several threads at a time, once for each piece that an extent
   * lies in. */
  accrt_status_t (*fill)(void* user, uint64_t offset_bytes, void* memory, uint64_t size_bytes);
  void* user;
} accrt_upload_t;
/* Moves it through the staging ring to memory that is not used yet, and returns when all of it is
 * there; when a piece cannot be filled, with the error of the first such piece. Not for devices
 * that reach host memory. Blocks. */
accrt_status_t accrt_device_upload(accrt_device_t* device, const accrt_upload_t* upload);
/* Checks a binding's place: resolves buffer or pointer to an address range on `device`. */
accrt_status_t accrt_binding_resolve(accrt_device_t* device, const accrt_binding_t* binding,
                                     const char* what, accrt_driver_binding_t* out_binding);

/* Checks that the device's kernels and operators, or only its fills, reach the buffer's memory: it
 * is its own, shared by all devices of the driver, of a peer that was enabled, or the host's
 * (pinned by the driver, or the device reaches all of it; fills: any). */
accrt_status_t accrt_buffer_check_reach(const accrt_device_t* device, const accrt_buffer_t* buffer,
                                        bool by_kernel, const char* what);

/* ---- What belongs together ---- */

/* Two things are of one device, or ACCRT_ERROR_INVALID_ARGUMENT with both names: "the pool is of
 * host:1, the program of host:0". */
accrt_status_t accrt_device_check_same(const char* what, const accrt_device_t* device,
                                       const char* other_what, const accrt_device_t* other);
const accrt_instance_t* accrt_semaphore_instance(const accrt_semaphore_t* semaphore);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_INTERNAL_H_ */
