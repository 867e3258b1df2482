/* runtime/drivers/common/stream_settle.c - streams: what the end of an operation means, and what a
 * failure does. It may not call a driver's queue.
 *
 * Ended operations are settled (signals sent, completions called) strictly in order by one thread
 * at a time (`settling`).
 *
 * Failure: the first operation that failed has `failed_number`; it and all behind it are settled as
 * failed. What was deferred moves to the list in flight, done, so that it is settled in order too.
 * The driver is asked to report when nothing runs any more.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/drivers/common/stream_internal.h"

/* ---- Failure ---- */

ACCRT_RARE void accrt_stream_fail(accrt_stream_t* stream, uint64_t number,
                                  const accrt_error_t* error) {
  ACCRT_ASSERT_HELD(&stream->lock);
  if (!stream->failed || number < stream->failed_number) {
    stream->failed_number = number;
    stream->error = *error;
    accrt_error_clean(&stream->error); /* a driver's, with a kernel's message */
    if (stream->error.submission == 0)
      stream->error.submission = number;
  }
  if (!stream->failed) {
    /* Pairs with the load in accrt_stream_failures. Sequentially consistent: see is_held. */
    atomic_fetch_add_explicit(&stream->failures, 1, memory_order_seq_cst);
    stream->mark_wanted = true;
    accrt_stream_activate(stream);
  }
  stream->failed = true;
  accrt_fence_taint(stream->fence);
  (void)atomic_fetch_or_explicit(&stream->submit_lock, ACCRT_SUBMIT_BLOCKED, memory_order_relaxed);
  while (stream->deferred.head != NULL) {
    accrt_op_t* op = accrt_op_pop(&stream->deferred);
    op->done = true;
    accrt_op_append(&stream->in_flight, op);
  }
  /* Release pairs with the acquire in accrt_stream_check. */
  atomic_store_explicit(&stream->poisoned, 1, memory_order_release);
}

ACCRT_RARE void accrt_stream_add_detail(accrt_stream_t* stream, uint64_t number,
                                        const accrt_error_t* error) {
  ACCRT_ASSERT_HELD(&stream->lock);
  if (error->status != ACCRT_ERROR_CANCELLED || !stream->failed ||
      stream->failed_number != number || stream->error.status != ACCRT_ERROR_CANCELLED)
    return;
  memcpy(stream->error.message, error->message, sizeof stream->error.message);
  accrt_error_clean(&stream->error);
}

void accrt_error_make(accrt_error_t* out_error, accrt_status_t status, const char* operation,
                      const char* message) {
  memset(out_error, 0, sizeof *out_error);
  out_error->struct_size = (uint32_t)sizeof *out_error;
  out_error->status = status;
  (void)snprintf(out_error->operation, sizeof out_error->operation, "%s",
                 operation != NULL ? operation : "");
  (void)snprintf(out_error->source_file, sizeof out_error->source_file, "%s",
                 "runtime/drivers/common/stream_settle.c");
  (void)snprintf(out_error->message, sizeof out_error->message, "%s", message);
}

/* ---- Settling: what happens when an operation has ended ---- */

void accrt_stream_trace(accrt_stream_t* stream, uint32_t kind, uint64_t number, const char* name,
                        accrt_status_t status, uint64_t time_ns) {
  if (!accrt_instance_tracing(stream->instance))
    return;
  const accrt_trace_event_t event = {.kind = kind,
                                     .status = status,
                                     .stream_id = stream->id,
                                     .submission = number,
                                     .begin_ns = time_ns,
                                     .end_ns = time_ns,
                                     .name = name != NULL ? name : ""};
  accrt_instance_trace(stream->instance, &event);
}

static void notify_job(accrt_job_t* job) {
  accrt_op_t* op = (accrt_op_t*)((char*)job - offsetof(accrt_op_t, job));
  accrt_stream_t* stream = op->stream;
  op->notify(op->notify_user, op->status);
  accrt_mutex_lock(&stream->lock);
  const bool unwanted = accrt_op_recycle(stream, op);
  accrt_mutex_unlock(&stream->lock);
  if (unwanted)
    accrt_op_free(stream, op);
  accrt_stream_unref(stream);
}

/* An operation that has ended: all that settling needs of it, so that the operation itself can be
 * used again at once. */
typedef struct ended {
  uint32_t kind;
  bool failed;
  bool first; /* the one that failed, not one behind it */
  bool over;  /* all up to its number has ended on the device */
  uint64_t number;
  const char* name;
  accrt_op_references_t references;
  uint64_t value;
  uint64_t generation;
  accrt_driver_completion_t completion;
  uint64_t time_ns;
  accrt_error_t error; /* when failed: the stream's record */
} ended_t;

static void settle_signal(accrt_stream_t* stream, const ended_t* ended) {
  accrt_semaphore_t* semaphore = ended->references.semaphore;
  uint64_t present;
  if (semaphore == stream->ahead_semaphore) { /* counts dropped work as well */
    accrt_timeline_advance(&semaphore->timeline, ended->value);
    return;
  }
  if (ended->failed) {
    accrt_semaphore_fail_with(semaphore, &ended->error);
    return;
  }
  accrt_semaphore_resolve(semaphore); /* what a device has reached before counts */
  if (accrt_timeline_signal(&semaphore->timeline, ended->value, &present) !=
      ACCRT_ERROR_OUT_OF_RANGE)
    return;
  char message[160];
  (void)snprintf(message, sizeof message,
                 "semaphore %" PRIu64 " is at %" PRIu64
                 " already, and was to be raised to %" PRIu64,
                 semaphore->id, present, ended->value);
  accrt_error_t record;
  accrt_error_make(&record, ACCRT_ERROR_OUT_OF_RANGE, "accrt_stream_signal", message);
  accrt_mutex_lock(&stream->lock);
  accrt_stream_fail(stream, ended->number, &record);
  accrt_mutex_unlock(&stream->lock);
}

static void settle_record(const ended_t* ended) {
  if (ended->failed) {
    accrt_semaphore_fail_with(ended->references.semaphore, &ended->error);
    return;
  }
  accrt_event_reached(ended->references.event, ended->generation, ended->time_ns);
  accrt_timeline_advance(&ended->references.semaphore->timeline, ended->value);
}

/* Lets a wait go; a watch that is firing on another thread still needs it, and frees it then. */
static void settle_wait(accrt_stream_t* stream, accrt_op_t* op) {
  accrt_op_references_t references = {NULL, NULL, NULL, NULL, false};
  bool unwanted = false;
  accrt_mutex_lock(&stream->lock);
  if (op->waiting == ACCRT_WAITING_WATCHED &&
      !accrt_timeline_unwatch(&op->semaphore->timeline, &op->watch)) {
    op->abandoned = true;
    accrt_object_retain(&stream->object);
  } else {
    references = accrt_op_take_references(op);
    unwanted = accrt_op_recycle(stream, op);
  }
  accrt_mutex_unlock(&stream->lock);
  if (unwanted)
    accrt_op_free(stream, op);
  accrt_op_drop_references(&references);
}

/* A read-modify-write, acq_rel, pairs with the one in watch (instance.c): either this sees the
 * watcher, or the watcher sees the fence. */
void accrt_kick_watchers(accrt_instance_t* instance) {
  if (atomic_fetch_add_explicit(&accrt_upper(instance)->watched, 0, memory_order_acq_rel) > 0)
    accrt_worker_kick(&accrt_upper(instance)->worker);
}

/* Hands a notification to the runtime's thread, which puts the operation back. */
static void settle_notify(accrt_stream_t* stream, accrt_op_t* op, const ended_t* ended) {
  op->status = ended->failed ? ended->error.status : ACCRT_OK;
  op->job.run = notify_job;
  accrt_object_retain(&stream->object);
  accrt_worker_post(&accrt_upper(stream->instance)->worker, &op->job);
}

/* Does what the end of an operation means, without the lock. */
static void settle_ended(accrt_stream_t* stream, const ended_t* ended) {
  const accrt_status_t status = !ended->failed ? ACCRT_OK
                                : ended->first ? ended->error.status
                                               : ACCRT_ERROR_POISONED;
  if (ended->kind != ACCRT_OP_MARK) {
    accrt_stream_trace(stream, ACCRT_TRACE_COMPLETE, ended->number, ended->name, status,
                       ended->time_ns);
  }
  if (ended->kind == ACCRT_OP_SIGNAL)
    settle_signal(stream, ended);
  if (ended->kind == ACCRT_OP_RECORD)
    settle_record(ended);
  if (ended->completion.done != NULL && ended->kind != ACCRT_OP_NONE)
    ended->completion.done(ended->completion.user, status, ended->failed ? &ended->error : NULL,
                           ended->time_ns);
  accrt_op_drop_references(&ended->references);
  if (ended->over) {
    accrt_fence_advance(stream->fence, ended->number);
    accrt_kick_watchers(stream->instance);
  }
  accrt_timeline_advance(&stream->timeline, ended->number);
}

static uint64_t later_of(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* Under the lock. A wait keeps its references: a watch may be firing. */
static void end_op(accrt_stream_t* stream, accrt_op_t* op, ended_t* out_ended) {
  ACCRT_ASSERT_HELD(&stream->lock);
  stream->last_time_ns = later_of(stream->last_time_ns, op->time_ns);
  out_ended->kind = op->kind;
  out_ended->failed = stream->failed && op->number >= stream->failed_number &&
                      op->kind != ACCRT_OP_NONE && op->kind != ACCRT_OP_MARK;
  out_ended->first = op->number == stream->failed_number;
  out_ended->over = op->reported || !op->after_unreported;
  out_ended->number = op->number;
  out_ended->name = op->name;
  out_ended->references = (accrt_op_references_t){NULL, NULL, NULL, NULL, false};
  if (op->kind != ACCRT_OP_WAIT)
    out_ended->references = accrt_op_take_references(op);
  out_ended->value = op->value;
  out_ended->generation = op->generation;
  out_ended->completion = op->completion;
  out_ended->time_ns = op->time_ns != 0 ? op->time_ns : stream->last_time_ns;
  if (out_ended->failed)
    out_ended->error = stream->error;
}

void accrt_stream_settle(accrt_stream_t* stream) {
  ACCRT_ASSERT_HELD(&stream->lock);
  /* What runs on its caller comes before all that there is, and its thread settles then. */
  if (stream->settling || stream->inline_number != 0) {
    accrt_mutex_unlock(&stream->lock);
    return;
  }
  stream->settling = true;
  while (stream->in_flight.head != NULL && stream->in_flight.head->done) {
    accrt_op_t* op = accrt_op_pop(&stream->in_flight);
    ended_t ended;
    end_op(stream, op, &ended);
    stream->settling_number = ended.number;
    /* Back before the end is reported: a thread that repeats what it waited for finds it. */
    const bool waits = ended.kind == ACCRT_OP_WAIT, notifies = ended.kind == ACCRT_OP_NOTIFY;
    const bool unwanted = !waits && !notifies && accrt_op_recycle(stream, op);
    accrt_mutex_unlock(&stream->lock);
    if (unwanted)
      accrt_op_free(stream, op);
    if (notifies)
      settle_notify(stream, op, &ended);
    if (waits)
      settle_wait(stream, op);
    settle_ended(stream, &ended);
    accrt_mutex_lock(&stream->lock);
  }
  stream->settling = false;
  /* Something settled has failed the stream: the driver has to be asked, by one thread. */
  const bool drain = stream->mark_wanted && stream->mark != NULL && accrt_stream_claim(stream);
  const bool idle = atomic_load_explicit(&stream->active, memory_order_relaxed) && !stream->busy &&
                    !stream->mark_wanted && stream->in_flight.head == NULL &&
                    stream->deferred.head == NULL;
  if (idle)
    atomic_store_explicit(&stream->active, false, memory_order_relaxed);
  accrt_mutex_unlock(&stream->lock);
  if (drain)
    accrt_stream_drain(stream);
  if (idle)
    accrt_stream_unref(stream);
}

/* So many operations are looked at: each signal looks. */
#define MOST_LOOKED_AT 64u

/* Also true if there are more operations than are looked at. */
static bool may_have_signal(const accrt_op_t* op, const accrt_semaphore_t* semaphore) {
  uint32_t left = MOST_LOOKED_AT;
  while (op != NULL && left > 0 && (op->kind != ACCRT_OP_SIGNAL || op->semaphore != semaphore)) {
    op = op->next;
    left -= 1;
  }
  return op != NULL;
}

bool accrt_stream_may_have_signal(accrt_stream_t* stream, const accrt_semaphore_t* semaphore) {
  /* Acquire pairs with the release in accrt_stream_activate: this thread's own operations are seen
   * in any case. */
  if (!atomic_load_explicit(&stream->active, memory_order_acquire))
    return false;
  accrt_mutex_lock(&stream->lock);
  /* What is being settled is in no list. */
  const bool found = stream->settling || stream->deferred.head != NULL ||
                     may_have_signal(stream->in_flight.head, semaphore);
  accrt_mutex_unlock(&stream->lock);
  return found;
}

static bool is_work(const accrt_op_t* op) {
  return op->kind == ACCRT_OP_COMMAND || op->kind == ACCRT_OP_LIST;
}

uint64_t accrt_stream_first_failed(const accrt_stream_t* stream, const accrt_error_t* error,
                                   uint64_t ended) {
  const uint64_t completed = atomic_load_explicit(&stream->fence->completed, memory_order_relaxed);
  if (ended < completed)
    ended = completed;
  /* A driver that knows says so. */
  if (error->submission > ended && error->submission <= accrt_stream_submitted(stream))
    return error->submission;
  return ended + 1;
}

/* The number that the driver's record is of. An operation behind work reports the first that was
 * cancelled, by what the record says. Under the lock. */
static uint64_t number_of_record(const accrt_stream_t* stream, const accrt_op_t* op,
                                 const accrt_error_t* error) {
  ACCRT_ASSERT_HELD(&stream->lock);
  if (is_work(op))
    return op->number;
  return error->submission >= stream->failed_number ? stream->failed_number : 0;
}

void accrt_op_done(void* user, accrt_status_t status, const accrt_error_t* error,
                   uint64_t time_ns) {
  accrt_op_t* op = user;
  accrt_stream_t* stream = op->stream;
  accrt_error_t made;
  if (status != ACCRT_OK && error == NULL) {
    accrt_error_make(&made, status, op->name, "the driver gave no record");
    error = &made;
  }
  accrt_context_enter();
  accrt_mutex_lock(&stream->lock);
  op->done = true;
  op->status = status;
  op->time_ns = time_ns;
  if (status != ACCRT_OK) {
    accrt_device_note_status(stream->device, status);
    /* The failure may be of work without a listener before it: then it is of the first number that
     * is not known to be over. */
    const bool own = !op->after_unreported || (is_work(op) && status != ACCRT_ERROR_POISONED);
    const uint64_t first = own ? op->number : accrt_stream_first_failed(stream, error, 0);
    /* A mark reports the first work that was cancelled, by the driver's own record. */
    accrt_stream_add_detail(stream, number_of_record(stream, op, error), error);
    if (op->kind != ACCRT_OP_MARK || !stream->failed)
      accrt_stream_fail(stream, first < op->number ? first : op->number, error);
  }
  accrt_stream_settle(stream);
  accrt_context_leave();
}
