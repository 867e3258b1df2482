/* runtime/drivers/common/stream_ahead.c - streams that give the device little work at a time
 * (`ahead`), and lists in pieces. It may not know how work is issued: stream_feed.c.
 */
#include "runtime/drivers/common/stream_internal.h"

static accrt_status_t enqueue_timepoint(accrt_stream_t* stream, uint32_t kind, uint64_t value) {
  const accrt_request_t request = {
      .kind = kind, .name = "ahead", .semaphore = stream->ahead_semaphore, .value = value};
  return accrt_stream_enqueue(stream, &request, NULL);
}

/* On a stream with `ahead`, work waits in the runtime until enough of the work before it has ended.
 * Threads that submit at the same time may count as one; the device then gets a little more. */
static accrt_status_t enqueue_held(accrt_stream_t* stream, const accrt_driver_command_t* command,
                                   const accrt_stream_work_t* work, uint64_t* out_number) {
  const uint64_t count = atomic_load_explicit(&stream->ahead_count, memory_order_relaxed) + 1;
  if (count > stream->ahead && accrt_timeline_reach(&stream->ahead_semaphore->timeline,
                                                    count - stream->ahead) != ACCRT_REACH_REACHED)
    ACCRT_TRY(enqueue_timepoint(stream, ACCRT_OP_WAIT, count - stream->ahead));
  ACCRT_TRY(accrt_stream_enqueue_now(stream, command, work, out_number));
  if (enqueue_timepoint(stream, ACCRT_OP_SIGNAL, count) == ACCRT_OK)
    accrt_stream_raise(&stream->ahead_count, count);
  return ACCRT_OK;
}

/* Pieces of a list were enqueued, and another one could not be: the stream fails from the first. */
static accrt_status_t fail_divided(accrt_stream_t* stream, uint64_t first) {
  accrt_error_t error = *accrt_error_current();
  error.submission = first;
  accrt_context_enter();
  accrt_stream_fail_now(stream, &error);
  accrt_context_leave();
  return accrt_error_restore(&error);
}

/* If this fails, `*out_number` is the last piece that was enqueued, which may still run; 0: none
 * was. */
static accrt_status_t enqueue_held_pieces(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                          uint64_t* out_number) {
  const uint32_t failures = accrt_stream_failures(stream);
  accrt_stream_work_t piece = *work;
  uint64_t first = 0, number = 0;
  accrt_status_t status = ACCRT_OK;
  bool is_failed = false;
  piece.completion = (accrt_driver_completion_t){NULL, NULL};
  *out_number = 0;
  for (uint32_t i = 0; i < work->piece_count && !is_failed; ++i) {
    piece.list = work->pieces[i];
    if (i + 1 == work->piece_count)
      piece.completion = work->completion;
    status = enqueue_held(stream, NULL, &piece, &number);
    if (status != ACCRT_OK && i == 0)
      return status;
    if (status != ACCRT_OK && status != ACCRT_ERROR_POISONED)
      return fail_divided(stream, first);
    if (status == ACCRT_OK)
      *out_number = number;
    first = i == 0 ? number : first;
    /* A listener of the last piece is called with its outcome. */
    is_failed = status != ACCRT_OK ||
                (accrt_stream_failures(stream) != failures && piece.completion.done == NULL);
  }
  if (work->out_first != NULL)
    *work->out_first = first;
  /* Without a listener, the list is one that fails after it was submitted. */
  return is_failed && work->completion.done != NULL ? accrt_stream_check(stream) : ACCRT_OK;
}

/* All pieces of a list belong to one life of the stream: none runs behind one that was dropped. */
static accrt_status_t enqueue_pieces(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                     uint64_t* out_number) {
  accrt_stream_hold_reset(stream);
  const accrt_status_t status = enqueue_held_pieces(stream, work, out_number);
  accrt_stream_let_reset(stream);
  return status;
}

accrt_status_t accrt_stream_enqueue_ahead(accrt_stream_t* stream,
                                          const accrt_driver_command_t* command,
                                          const accrt_stream_work_t* work, uint64_t* out_number) {
  return work->piece_count != 0 ? enqueue_pieces(stream, work, out_number)
                                : enqueue_held(stream, command, work, out_number);
}
