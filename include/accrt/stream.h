/* accrt/stream.h - streams, events, timeline semaphores, copies and fills.
 *
 * Nothing here depends on programs or bundles.
 *
 * An enqueue function never blocks on the device. Its work runs in stream order. If it finds an
 * error, it returns the error and enqueues nothing. If the error is found later, the stream fails:
 * every later enqueue returns ACCRT_ERROR_POISONED, and the semaphores that the stream would have
 * signalled fail with the same record. accrt_stream_reset clears the failure.
 */
#ifndef ACCRT_STREAM_H_
#define ACCRT_STREAM_H_

#include "accrt/base.h"
#include "accrt/instance.h"

ACCRT_BEGIN

/* ---- Semaphores: 64-bit timelines between streams, devices and hosts ---- */

#define ACCRT_WAIT_BLOCK 0u /**< sleep in the kernel, after a short spin */
#define ACCRT_WAIT_YIELD 1u /**< poll, and yield the processor in between */
#define ACCRT_WAIT_SPIN 2u  /**< poll without a pause: lowest latency, one core busy */

/** A semaphore and a value of it, to wait for or to signal. Frozen. */
typedef struct accrt_timepoint {
  accrt_semaphore_t* semaphore;
  uint64_t value;
} accrt_timepoint_t;
ACCRT_ASSERT_LAYOUT(accrt_timepoint_t, value, 16);

/** Makes a timeline semaphore. Its value only grows; UINT64_MAX is no value.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_create(accrt_instance_t* instance, uint64_t initial_value,
                                                accrt_semaphore_t** out_semaphore);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_semaphore_t* accrt_semaphore_retain(accrt_semaphore_t* semaphore);
/** Drops a reference; NULL is allowed. A signal that a stream still has to make counts as a
 * reference, and so does a value that a device will reach. When the last reference is gone, nothing
 * can raise the value any more: streams that wait for a higher value fail with
 * ACCRT_ERROR_CANCELLED (since 0.4). Since: 0.1 */
ACCRT_API void accrt_semaphore_release(accrt_semaphore_t* semaphore);
/** The value that the semaphore has reached.
 * @return ACCRT_OK; ACCRT_ERROR_POISONED (it failed; `*out_value` is the last value reached). Never
 *   blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_query(accrt_semaphore_t* semaphore, uint64_t* out_value);
/** Raises the value, from the host.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (not above the present value; the message has both);
 *   ACCRT_ERROR_POISONED. Never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_signal(accrt_semaphore_t* semaphore, uint64_t value);
/** Waits on the host until `value` is reached.
 * @param policy ACCRT_WAIT_*.
 * @return ACCRT_OK; ACCRT_ERROR_TIMEOUT (ACCRT_ERROR_NOT_READY when timeout_ns is 0);
 *   ACCRT_ERROR_POISONED. Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_wait(accrt_semaphore_t* semaphore, uint64_t value,
                                              uint64_t timeout_ns, uint32_t policy);
/** Waits on the host for all of `count` timepoints, or for any of them.
 * @param wait_any 0: all; 1: any.
 * @param out_index with wait_any: one that is reached; may be NULL.
 * @return as accrt_semaphore_wait; ACCRT_ERROR_POISONED when one of the semaphores failed. Blocks.
 *   Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_wait_many(const accrt_timepoint_t* timepoints,
                                                   uint32_t count, uint32_t wait_any,
                                                   uint64_t timeout_ns, uint32_t policy,
                                                   uint32_t* out_index);
/** Fails the semaphore for ever. Every wait for a value that was not reached, past and future, ends
 * with ACCRT_ERROR_POISONED and the record {status, message}. Use it to cancel work that waits for
 * the semaphore. If it failed before, the first record stays.
 * @param status not ACCRT_OK.
 * @param message may be NULL. Never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_fail(accrt_semaphore_t* semaphore, accrt_status_t status,
                                              const char* message);
/** Copies the record of the failure (its status is ACCRT_OK if there is none). Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_error(accrt_semaphore_t* semaphore,
                                               accrt_error_t* out_error);
/** Makes an eventfd that becomes readable when `value` is reached or the semaphore fails. The
 * caller owns it and closes it.
 * @return ACCRT_OK; ACCRT_ERROR_IO (errno in driver_code); ACCRT_ERROR_OUT_OF_MEMORY;
 *   ACCRT_ERROR_UNSUPPORTED (a device that runs on the calling thread makes no progress while that
 *   thread polls). `*out_fd` is -1 on failure. Since: 0.1 */
ACCRT_API accrt_status_t accrt_semaphore_export_eventfd(accrt_semaphore_t* semaphore,
                                                        uint64_t value, int32_t* out_fd);

/* ---- Streams ---- */

/** Options of accrt_stream_create. */
typedef struct accrt_stream_options {
  uint32_t struct_size;
  int32_t priority; /**< higher is more urgent; 0 is normal; clamped to the device's range */
  const accrt_chain_t* next;
  const char* label; /**< copied, up to 63 bytes; may be NULL */
  /** 0: the device gets all work at once. N: the device has at most N pieces of work at a time. The
   * runtime holds the others, so that accrt_stream_cancel and accrt_stream_reset drop them. A piece
   * is a copy, a fill, a launch, a submission of commands or a segment of a call; it takes up to
   * three submission numbers, two of which traces call "ahead". With 1 the device is idle between
   * pieces. Large copies of plain host memory do not count: a cancel ends them anyway.
   * Since: 0.4 */
  uint64_t ahead;
  /** 0: a submission of commands, and a segment of a call, is one piece. N: it is divided into
   * pieces of at most N commands, which run one after the other, so that a cancel ends it between
   * two pieces. This needs `ahead`. The first submission of a list makes its pieces, which then
   * take as much memory as the list. Work that another thread enqueues at the same time may come
   * between two pieces. If pieces were enqueued and another one cannot be, the stream fails and the
   * submission returns why. Since: 0.4 */
  uint64_t commands_per_piece;
} accrt_stream_options_t;
ACCRT_ASSERT_LAYOUT(accrt_stream_options_t, commands_per_piece, 40);
#define ACCRT_STREAM_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_stream_options_t)

/** Makes a stream: a queue whose work runs in order.
 * @param options NULL for the defaults.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_DEVICE_LOST; the driver's statuses.
 *   Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_create(accrt_device_t* device,
                                             const accrt_stream_options_t* options,
                                             accrt_stream_t** out_stream);
/** Wraps a queue of another library (CUDA: a CUstream, such as torch's or CuPy's) as a stream,
 * without owning it. The caller keeps the queue alive until the stream's last release has returned;
 * that release waits for the stream's work. The caller may go on using the queue directly. The
 * native queue orders the work of both. So the stream cannot hold work back: a wait for a value
 * that no one has signalled yet gets ACCRT_ERROR_NOT_READY. While the native queue is being
 * captured, accrt_call_submit and accrt_stream_submit add their work to the owner's graph (since
 * 0.4). The code that launches it has to keep the session, the program and all memory of the work
 * alive. Other functions get ACCRT_ERROR_INVALID_STATE. A wait for captured work gets it too,
 * and so does work that is traced or has an operator that cannot be captured. The capture stays
 * valid.
 * @param native a queue of this device. CUDA: NULL is the legacy default stream.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (the driver has no native queues);
 *   ACCRT_ERROR_INVALID_ARGUMENT (a queue of another device); ACCRT_ERROR_OUT_OF_MEMORY.
 *   Since: 0.2 */
ACCRT_API accrt_status_t accrt_stream_wrap(accrt_device_t* device, void* native,
                                           accrt_stream_t** out_stream);
/** The native queue under a stream (CUDA: its CUstream), lent, for other libraries. What they
 * enqueue runs after all work that the stream has submitted to the device.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED; ACCRT_ERROR_NOT_READY (the stream holds work back:
 *   it waits for a semaphore, or for `ahead` of accrt_stream_options_t). Since: 0.2 */
ACCRT_API accrt_status_t accrt_stream_native(accrt_stream_t* stream, void** out_native);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_stream_t* accrt_stream_retain(accrt_stream_t* stream);
/** Drops a reference; NULL is allowed. Work in flight still runs. Work that waits for a semaphore
 * that is never signalled is dropped with the instance. Blocks in one case alone: your last release
 * of a stream of accrt_stream_wrap waits for its work. Since: 0.1 */
ACCRT_API void accrt_stream_release(accrt_stream_t* stream);
/** The stream's id: unique in the instance, never reused. 0 only for NULL. Since: 0.1 */
ACCRT_API uint64_t accrt_stream_id(accrt_stream_t* stream);
/** The stream's device, lent. Since: 0.1 */
ACCRT_API accrt_device_t* accrt_stream_device(accrt_stream_t* stream);
/** Says whether all work of the stream is complete. It does not wait.
 * @return ACCRT_OK (all work is complete); ACCRT_ERROR_NOT_READY; ACCRT_ERROR_POISONED;
 *   ACCRT_ERROR_DEVICE_LOST. Never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_query(accrt_stream_t* stream);
/** Says how far a stream has come. Submissions have numbers, which begin at 1 and only grow. Use it
 * to know when memory is free again: enqueue the work, read `*out_submitted`, and look later. When
 * `*out_completed` has reached that number, the stream no longer uses the memory, whether the work
 * ran, failed or was dropped. (With accrt_buffer_import you need not look: its release callback
 * comes at that time.) A stream whose device runs on the calling thread moves only inside waits.
 * @param out_submitted the last number; may be NULL.
 * @param out_issued the last number that the stream has issued to the device; work with a higher
 *   number still waits for a semaphore or for `ahead`, or stands behind work that waits; may be
 *   NULL.
 * @param out_completed the last number up to which all work has ended; may be NULL.
 * @return ACCRT_OK, also for a stream that has failed; ACCRT_ERROR_INVALID_ARGUMENT (stream is
 *   NULL), ACCRT_ERROR_FORKED. If this function fails, the numbers are 0. Thread-safe. Never
 *   blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_stream_progress(accrt_stream_t* stream, uint64_t* out_submitted,
                                               uint64_t* out_issued, uint64_t* out_completed);
/** Waits until all work enqueued before is complete. If the stream has failed, a wait without a
 * limit still returns only when none of its work runs any more, so that memory may be freed.
 * @param policy ACCRT_WAIT_*.
 * @return ACCRT_OK; ACCRT_ERROR_TIMEOUT; ACCRT_ERROR_NOT_READY (timeout 0); ACCRT_ERROR_POISONED
 *   (accrt_stream_error has the record); ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_synchronize(accrt_stream_t* stream, uint64_t timeout_ns,
                                                  uint32_t policy);
/** Copies the record of the stream's failure (its status is ACCRT_OK if there is none).
 * Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_error(accrt_stream_t* stream, accrt_error_t* out_error);
/** Cancels all submitted work that is not complete. The work ends with ACCRT_ERROR_CANCELLED, and
 * the stream is poisoned with that record until accrt_stream_reset. Work that has not begun, or
 * that waits for a semaphore, is dropped; later signals and notifications fail with the record.
 * Running work stops before its next command, on the host before its next workgroup, if the driver
 * can do that (docs/driver-guide.md: queue_cancel). CUDA cannot: work that the device has runs to
 * its end. `ahead` and `commands_per_piece` of accrt_stream_options_t limit how much that is. The
 * record has the number of the first submission that was not complete and, if the device was
 * stopped, how far it came. Keep the memory of the work until a wait without a limit, or
 * accrt_stream_reset, has returned. Any thread may call this.
 * @return ACCRT_OK (also without work in flight, or after an earlier failure; nothing happens
 *   then). Never blocks. Since: 0.4 */
ACCRT_API accrt_status_t accrt_stream_cancel(accrt_stream_t* stream);
/** Clears a failure: waits for work that still runs, and drops the rest. If another thread is
 * submitting a list in pieces (`commands_per_piece`) or a call of a program, this first waits until
 * all of it is submitted. So nothing of a list or a call runs after the reset if an earlier part
 * was dropped.
 * @return ACCRT_OK; ACCRT_ERROR_DEVICE_LOST. Blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_reset(accrt_stream_t* stream);

/** Later work on the stream waits until `value` is reached. You may wait before the signal exists:
 * the stream then holds its work in host memory. The wait keeps no handle of the semaphore alive:
 * see accrt_semaphore_release.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED (the stream or the semaphore
 *   has failed). Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_wait(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                           uint64_t value);
/** Raises the semaphore to `value` when all earlier work is complete. If the stream fails first,
 * the semaphore fails. If the semaphore has reached `value` by then, the stream fails with
 * ACCRT_ERROR_OUT_OF_RANGE.
 * @return as accrt_stream_wait. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_signal(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                             uint64_t value);
/** Calls `notify(user, status)` once, on a thread of the runtime, when all earlier work is complete
 * (ACCRT_OK) or the stream has failed (its status). The stream does not wait for it. `notify` may
 * call the library but should not block. If this function fails, `notify` is not called.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_notify(accrt_stream_t* stream,
                                             void (*notify)(void* user, accrt_status_t status),
                                             void* user);

/** One end of a copy: a buffer and an offset, or plain host memory. Frozen. */
typedef struct accrt_place {
  accrt_buffer_t* buffer; /**< NULL: `pointer` is host memory, valid until the copy is complete */
  void* pointer;          /**< used when buffer is NULL */
  uint64_t offset_bytes;  /**< into the buffer, or from the pointer */
} accrt_place_t;
ACCRT_ASSERT_LAYOUT(accrt_place_t, offset_bytes, 24);

/** A strided copy: extent[0] contiguous bytes, extent[1] rows, extent[2] planes. Frozen. Strides
 * are bytes between rows and between planes; a stride whose extent is 1 or less is ignored. An
 * extent of 0 copies nothing. If there is one row in one plane, extent[0] may be ACCRT_TO_END, as
 * in accrt_stream_copy; with several rows or planes, that is ACCRT_ERROR_OUT_OF_RANGE. Rows of the
 * target may not overlap: rows are at least one row apart, and planes at least the span of a plane
 * (or the same with rows and planes exchanged). Rows of the source may overlap: a stride of 0
 * repeats a row. */
typedef struct accrt_copy_region {
  uint64_t extent[3];
  uint64_t source_stride_bytes[2];
  uint64_t target_stride_bytes[2];
} accrt_copy_region_t;
ACCRT_ASSERT_LAYOUT(accrt_copy_region_t, target_stride_bytes, 56);

/** Copies size_bytes. ACCRT_TO_END: to the end of the source, or of the target if the source is
 * host memory. Source and target may not overlap.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE (the message has the offset, the size and the buffer's
 *   size); ACCRT_ERROR_ALIASED; ACCRT_ERROR_UNSUPPORTED (a buffer of another driver, which the host
 *   does not reach: use a stream of the buffer's device); ACCRT_ERROR_INVALID_STATE (a wrapped
 *   stream that is being captured); ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_POISONED;
 *   ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_copy(accrt_stream_t* stream, const accrt_place_t* source,
                                           const accrt_place_t* target, uint64_t size_bytes);
/** Copies a strided region. To test whether source and target overlap, the library compares the
 * whole range from the first to the last byte of each.
 * @return as accrt_stream_copy; ACCRT_ERROR_OVERFLOW; ACCRT_ERROR_INVALID_ARGUMENT (the target's
 *   rows overlap). Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_copy_strided(accrt_stream_t* stream,
                                                   const accrt_place_t* source,
                                                   const accrt_place_t* target,
                                                   const accrt_copy_region_t* region);
/** Fills size_bytes (ACCRT_TO_END: to the buffer's end) with a repeated pattern of 1, 2, 4 or 8
 * bytes: the low bytes of `pattern`. Offset and size must be multiples of pattern_bytes.
 * @return as accrt_stream_copy; ACCRT_ERROR_INVALID_ARGUMENT (pattern_bytes, or an address that is
 *   no multiple of it); ACCRT_ERROR_UNSUPPORTED (another GPU's memory without
 *   accrt_device_enable_peer). Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_fill(accrt_stream_t* stream, const accrt_place_t* target,
                                           uint64_t size_bytes, uint64_t pattern,
                                           uint32_t pattern_bytes);

/** Copies size_bytes of a file to a place (ACCRT_TO_END: to the end of the target buffer). Threads
 * of the runtime read the file, through pinned memory if the device needs it. Later work on the
 * stream waits for the copy. You may close the file descriptor at once. Keep the target's memory.
 * @param flags 0.
 * @return as accrt_stream_copy; ACCRT_ERROR_IO (not a regular file, or the descriptor cannot be
 *   duplicated: errno); ACCRT_ERROR_NOT_READY (a stream of accrt_stream_wrap). A read that fails
 *   later or ends early fails the stream with ACCRT_ERROR_IO. Since: 0.2 */
ACCRT_API accrt_status_t accrt_stream_read_file(accrt_stream_t* stream, int32_t fd,
                                                uint64_t file_offset, const accrt_place_t* target,
                                                uint64_t size_bytes, uint32_t flags);

/* ---- Events: order and time on one device, or on the GPUs of one driver ---- */

#define ACCRT_EVENT_FLAG_TIMING 1u

/** Makes an event.
 * @param flags ACCRT_EVENT_FLAG_*.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_UNSUPPORTED (timing on a device that has
 *   none). Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_create(accrt_device_t* device, uint32_t flags,
                                            accrt_event_t** out_event);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_event_t* accrt_event_retain(accrt_event_t* event);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_event_release(accrt_event_t* event);
/** Records the event at this point of the stream. A later record replaces it.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (the event is of another device);
 *   ACCRT_ERROR_INVALID_STATE (a wrapped stream that is being captured); ACCRT_ERROR_POISONED;
 *   ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_record(accrt_stream_t* stream, accrt_event_t* event);
/** Later work on the stream waits for the event's latest record. If the event was never recorded,
 * the stream does not wait. The event may be of another device of the same driver, if the driver
 * has events of its own (GPUs). For other pairs of devices, use a semaphore.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (an event of another driver, or of a driver
 *   without events of its own: both names in the message); ACCRT_ERROR_INVALID_STATE (a wrapped
 *   stream that is being captured); ACCRT_ERROR_POISONED; ACCRT_ERROR_OUT_OF_MEMORY;
 *   ACCRT_ERROR_DEVICE_LOST. Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_wait_event(accrt_stream_t* stream, accrt_event_t* event);
/** Asks whether the latest record was reached.
 * @return ACCRT_OK (reached, or there is no record); ACCRT_ERROR_NOT_READY; ACCRT_ERROR_POISONED.
 *   Never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_query(accrt_event_t* event);
/** Waits for the latest record.
 * @return ACCRT_OK; ACCRT_ERROR_TIMEOUT; ACCRT_ERROR_NOT_READY; ACCRT_ERROR_POISONED. Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_synchronize(accrt_event_t* event, uint64_t timeout_ns,
                                                 uint32_t policy);
/** Nanoseconds from one event to another. Both must have timing and must have been reached.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_READY; ACCRT_ERROR_INVALID_STATE (an event without timing, or
 *   never recorded); ACCRT_ERROR_POISONED. Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_elapsed(accrt_event_t* start, accrt_event_t* end,
                                             int64_t* out_elapsed_ns);
/** Copies the record of the event's failure (its status is ACCRT_OK if there is none).
 * Since: 0.1 */
ACCRT_API accrt_status_t accrt_event_error(accrt_event_t* event, accrt_error_t* out_error);

ACCRT_END
#endif /* ACCRT_STREAM_H_ */
