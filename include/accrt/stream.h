/* accrt/stream.h - streams, events, timeline semaphores, copies and fills. It may not mention programs or bundles.
 *
 * Enqueue functions never block on the device. What they enqueue runs in stream order. An error found while enqueuing is
 * returned and nothing is enqueued; one found later lives in the stream: every later enqueue returns
 * ACCRT_ERROR_POISONED, what the stream would have signalled is failed with the same record, and accrt_stream_reset
 * clears it.
 */
#ifndef ACCRT_STREAM_H_
#define ACCRT_STREAM_H_

#include "accrt/base.h"
#include "accrt/instance.h"

ACCRT_BEGIN

/* ---- Semaphores: 64-bit timelines between streams, devices and hosts ---- */

#define ACCRT_WAIT_BLOCK 0u /**< sleep in the kernel (after a short spin) */
#define ACCRT_WAIT_YIELD 1u /**< poll, giving the processor away */
#define ACCRT_WAIT_SPIN 2u  /**< poll without giving it away: lowest latency, one core busy */

/** A value of a semaphore, to wait for or to signal. Frozen. */
typedef struct accrt_timepoint {
  accrt_semaphore_t* semaphore;
  uint64_t value;
} accrt_timepoint_t;
ACCRT_ASSERT_LAYOUT(accrt_timepoint_t, value, 16);

/** Makes a timeline semaphore. Values only grow; UINT64_MAX is not a value.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_create(accrt_instance_t* instance, uint64_t initial_value,
                                                accrt_semaphore_t** out_semaphore);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_semaphore_t* accrt_semaphore_retain(accrt_semaphore_t* semaphore);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_semaphore_release(accrt_semaphore_t* semaphore);
/** The value reached. @return ACCRT_OK; ACCRT_ERROR_POISONED (failed; out_value is the last value reached). Never blocks.
 * Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_query(accrt_semaphore_t* semaphore, uint64_t* out_value);
/** Raises the value from the host. @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (not above the present value, both in the
 * message); ACCRT_ERROR_POISONED. Never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_signal(accrt_semaphore_t* semaphore, uint64_t value);
/** Waits on the host until `value` is reached. @param policy ACCRT_WAIT_*.
 * @return ACCRT_OK; ACCRT_ERROR_TIMEOUT (ACCRT_ERROR_NOT_READY when timeout_ns is 0); ACCRT_ERROR_POISONED. Blocks.
 * Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_wait(accrt_semaphore_t* semaphore, uint64_t value,
                                              uint64_t timeout_ns, uint32_t policy);
/** Waits for all, or for any, of `count` timepoints. @param out_index for any: one that is reached; may be NULL.
 * @return as accrt_semaphore_wait; ACCRT_ERROR_POISONED when one that is waited for failed. Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_wait_many(const accrt_timepoint_t* timepoints,
                                                   uint32_t count, uint32_t wait_any,
                                                   uint64_t timeout_ns, uint32_t policy,
                                                   uint32_t* out_index);
/** Fails the semaphore for ever: every wait, past and future, for a value not reached ends with ACCRT_ERROR_POISONED and
 * the record {status, message}. This is how work is cancelled. Failing twice keeps the first record.
 * @param status not ACCRT_OK. @param message may be NULL. Never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_fail(accrt_semaphore_t* semaphore, accrt_status_t status,
                                              const char* message);
/** The record of the failure (status ACCRT_OK inside when there is none). Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_error(accrt_semaphore_t* semaphore,
                                               accrt_error_t* out_error);
/** A new eventfd, owned by the caller (close(2) it), that becomes readable once `value` is reached or the semaphore fails.
 * @return ACCRT_OK; ACCRT_ERROR_IO (errno in driver_code); ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_UNSUPPORTED (a device that
 *   runs on the caller: nothing would progress while the caller polls). `*out_fd` is -1 on failure. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_export_eventfd(accrt_semaphore_t* semaphore,
                                                        uint64_t value, int32_t* out_fd);

/* ---- Streams ---- */

/** Options of accrt_stream_create. */
typedef struct accrt_stream_options {
  uint32_t struct_size;
  int32_t priority; /**< higher is more urgent; 0 is normal; clamped to what the device has */
  const accrt_chain_t* next;
  const char* label; /**< copied, up to 63 bytes; may be NULL */
} accrt_stream_options_t;
ACCRT_ASSERT_LAYOUT(accrt_stream_options_t, label, 24);
#define ACCRT_STREAM_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_stream_options_t)

/** Makes an in-order queue. @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_DEVICE_LOST; what the driver returns. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_create(accrt_device_t* device,
                                             const accrt_stream_options_t* options,
                                             accrt_stream_t** out_stream);
/** Wraps somebody else's queue (CUDA: a CUstream; torch's, CuPy's) as a stream, without taking it over: the caller keeps it
 * alive until the stream's last release has returned, which waits for what the stream has given to it, and may go on enqueuing to it
 * directly. Order between both is the native queue's, so a stream with work in it that is not
 * on the device yet would break it: waits for what nobody has signalled are refused here with ACCRT_ERROR_NOT_READY.
 * While the native queue is being captured, everything that is enqueued is refused with ACCRT_ERROR_INVALID_STATE, and the
 * capture stays sound.
 * @param native of this device. CUDA: NULL is the legacy default stream.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (the device's driver has no native queues); ACCRT_ERROR_INVALID_ARGUMENT (of another
 *   device); ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.2 */
ACCRT_API accrt_status_t accrt_stream_wrap(accrt_device_t* device, void* native,
                                           accrt_stream_t** out_stream);
/** The native queue under a stream (CUDA: its CUstream), borrowed, for other libraries to enqueue to. What they enqueue comes after
 * everything that the stream has given to the device.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED; ACCRT_ERROR_NOT_READY (the stream defers work that waits for a semaphore).
 *   Since: 0.2 */
ACCRT_API accrt_status_t accrt_stream_native(accrt_stream_t* stream, void** out_native);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_stream_t* accrt_stream_retain(accrt_stream_t* stream);
/** Drops a reference; NULL is allowed. Work in flight still runs; work that waits for a semaphore nobody signals is dropped
 * when the instance goes. Never blocks. Since: 0.1 */
ACCRT_API void accrt_stream_release(accrt_stream_t* stream);
/** Id, unique in the instance, never reused; 0 only for NULL. Since: 0.1 */
ACCRT_API uint64_t accrt_stream_id(accrt_stream_t* stream);
/** The stream's device, borrowed. Since: 0.1 */
ACCRT_API accrt_device_t* accrt_stream_device(accrt_stream_t* stream);
/** ACCRT_OK when everything enqueued is complete; ACCRT_ERROR_NOT_READY; ACCRT_ERROR_POISONED; ACCRT_ERROR_DEVICE_LOST.
 * Never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_query(accrt_stream_t* stream);
/** Waits until everything enqueued before is complete. When the stream has failed, a wait without limit still ends only when
 * nothing of it runs any more: memory may go then. @param policy ACCRT_WAIT_*.
 * @return ACCRT_OK; ACCRT_ERROR_TIMEOUT; ACCRT_ERROR_NOT_READY (timeout 0); ACCRT_ERROR_POISONED (accrt_stream_error has the
 *   record); ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_synchronize(accrt_stream_t* stream, uint64_t timeout_ns,
                                                  uint32_t policy);
/** The failure that the stream carries (status ACCRT_OK inside when none). Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_error(accrt_stream_t* stream, accrt_error_t* out_error);
/** Clears a failure: waits for what still runs, drops the rest. @return ACCRT_OK; ACCRT_ERROR_DEVICE_LOST. Blocks.
 * Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_reset(accrt_stream_t* stream);

/** All that follows waits until `value` is reached. Waiting before anyone signals is allowed: the stream then defers in
 * host memory. @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED (the stream, or the semaphore already).
 * Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_wait(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                           uint64_t value);
/** Raises the semaphore to `value` when all before is complete; fails it if the stream fails first. A value that is not
 * above the one reached by then fails the stream with ACCRT_ERROR_OUT_OF_RANGE. @return as accrt_stream_wait. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_signal(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                             uint64_t value);
/** Calls `notify(user, status)` once on the runtime's own thread, when all before is complete (ACCRT_OK) or the stream has
 * failed (its status). The stream does not wait for it. It may call the library but should not block. Not called when this
 * function fails. @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_notify(accrt_stream_t* stream,
                                             void (*notify)(void* user, accrt_status_t status),
                                             void* user);

/** One end of a copy: a buffer and an offset, or plain host memory. Frozen. */
typedef struct accrt_place {
  accrt_buffer_t*
      buffer; /**< NULL: `pointer` is host memory, which must stay valid until the copy is complete */
  void* pointer;         /**< used when buffer is NULL */
  uint64_t offset_bytes; /**< into the buffer, or from the pointer */
} accrt_place_t;
ACCRT_ASSERT_LAYOUT(accrt_place_t, offset_bytes, 24);

/** A strided copy: extent[0] contiguous bytes, extent[1] rows, extent[2] planes. Frozen. Strides are in bytes, between rows
 * and between planes; ignored where the extent is 1 or less. Any extent of 0 copies nothing. The target's rows may not overlap:
 * rows are at least a row apart and planes at least what a plane spans, or so with rows and planes exchanged. The source's may
 * (a stride of 0 repeats a row). */
typedef struct accrt_copy_region {
  uint64_t extent[3];
  uint64_t source_stride_bytes[2];
  uint64_t target_stride_bytes[2];
} accrt_copy_region_t;
ACCRT_ASSERT_LAYOUT(accrt_copy_region_t, target_stride_bytes, 56);

/** Copies size_bytes. Source and target may not overlap.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (the message has offset, size and the buffer's size); ACCRT_ERROR_ALIASED;
 *   ACCRT_ERROR_INVALID_STATE (a wrapped stream that is being captured); ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED;
 *   ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_copy(accrt_stream_t* stream, const accrt_place_t* source,
                                           const accrt_place_t* target, uint64_t size_bytes);
/** Copies a strided region. Overlap of source and target is judged on the bounding ranges. @return as accrt_stream_copy;
 * ACCRT_ERROR_OVERFLOW; ACCRT_ERROR_INVALID_ARGUMENT (the target's rows overlap). Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_copy_strided(accrt_stream_t* stream,
                                                   const accrt_place_t* source,
                                                   const accrt_place_t* target,
                                                   const accrt_copy_region_t* region);
/** Fills size_bytes with a repeated pattern of 1, 2, 4 or 8 bytes (the low bytes of `pattern`); offset and size must be
 * multiples of it. @return as accrt_stream_copy; ACCRT_ERROR_INVALID_ARGUMENT (the pattern's size, an address that is no multiple
 * of it); ACCRT_ERROR_UNSUPPORTED (another GPU's memory without accrt_device_enable_peer). Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_fill(accrt_stream_t* stream, const accrt_place_t* target,
                                           uint64_t size_bytes, uint64_t pattern,
                                           uint32_t pattern_bytes);

/** Copies size_bytes of a file to a place, by threads of the runtime, through pinned memory where the device needs it. Later
 * work on the stream waits for it. The file descriptor may be closed at once; the target's memory must stay.
 * @param flags 0.
 * @return as accrt_stream_copy; ACCRT_ERROR_IO (the descriptor is no regular file or cannot be duplicated: errno). Reads that
 *   fail later, or end early, fail the stream with ACCRT_ERROR_IO. Since: 0.2 */
ACCRT_API accrt_status_t accrt_stream_read_file(accrt_stream_t* stream, int32_t fd,
                                                uint64_t file_offset, const accrt_place_t* target,
                                                uint64_t size_bytes, uint32_t flags);

/* ---- Events: order and time of one device; GPUs of one driver wait for one another's ---- */

#define ACCRT_EVENT_FLAG_TIMING 1u

/** Makes an event. @param flags ACCRT_EVENT_FLAG_*. @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY;
 * ACCRT_ERROR_UNSUPPORTED (timing, and the device has none). Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_create(accrt_device_t* device, uint32_t flags,
                                            accrt_event_t** out_event);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_event_t* accrt_event_retain(accrt_event_t* event);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_event_release(accrt_event_t* event);
/** Marks this point of the stream; a later record replaces it. @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (other
 * device); ACCRT_ERROR_INVALID_STATE (a wrapped stream that is being captured); ACCRT_ERROR_POISONED; ACCRT_ERROR_OUT_OF_MEMORY;
 * ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_record(accrt_stream_t* stream, accrt_event_t* event);
/** All that follows waits for the event's latest record; never recorded: nothing to wait for. The event may be of another device of
 * the same driver where that has events of its own (GPUs); of any other device it is refused: a semaphore orders those.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (another driver's device, or one without events of its own: both names in the
 *   message); ACCRT_ERROR_INVALID_STATE (a wrapped stream that is being captured); ACCRT_ERROR_POISONED; ACCRT_ERROR_OUT_OF_MEMORY;
 *   ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_wait_event(accrt_stream_t* stream, accrt_event_t* event);
/** ACCRT_OK when the latest record was reached (or there is none); ACCRT_ERROR_NOT_READY; ACCRT_ERROR_POISONED. Never blocks.
 * Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_query(accrt_event_t* event);
/** Waits for the latest record. @return ACCRT_OK; ACCRT_ERROR_TIMEOUT; ACCRT_ERROR_NOT_READY; ACCRT_ERROR_POISONED. Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_synchronize(accrt_event_t* event, uint64_t timeout_ns,
                                                 uint32_t policy);
/** Nanoseconds from one event to another, both with timing and reached. @return ACCRT_OK; ACCRT_ERROR_NOT_READY;
 * ACCRT_ERROR_INVALID_STATE (no timing, or never recorded); ACCRT_ERROR_POISONED. Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_elapsed(accrt_event_t* start, accrt_event_t* end,
                                             int64_t* out_elapsed_ns);
/** The failure that the event carries (status ACCRT_OK inside when none). Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_error(accrt_event_t* event, accrt_error_t* out_error);

ACCRT_END
#endif /* ACCRT_STREAM_H_ */
