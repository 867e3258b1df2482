/* runtime/drivers/common/stream_wait.c - streams: how far they are. Asking the driver, waiting,
 * failures that come to light, resetting.
 *
 * Operations are waited for with the stream's timeline, numbers without one in the driver, on the
 * calling thread.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/struct.h"
#include "runtime/drivers/common/stream_internal.h"

#define IDLE_PAUSE_NS UINT64_C(20000)

/* ---- Asking the driver ---- */

ACCRT_RARE void accrt_stream_found_failure(accrt_stream_t* stream, uint64_t ended) {
  const accrt_error_t error = *accrt_error_current();
  accrt_device_note_status(stream->device, error.status);
  /* What has failed is known; a driver may also say how far all went well. */
  if (ended == 0)
    (void)stream->table->queue_progress(stream->queue, &ended);
  (void)accrt_error_restore(&error);
  accrt_context_enter();
  accrt_fence_advance(stream->fence, ended);
  accrt_stream_fail_now(stream, &error);
  accrt_context_leave();
}

ACCRT_RARE void accrt_stream_fail_now(accrt_stream_t* stream, const accrt_error_t* error) {
  accrt_mutex_lock(&stream->lock);
  if (!stream->failed)
    accrt_stream_fail(stream, accrt_stream_first_failed(stream, error, 0), error);
  accrt_stream_settle(stream);
}

/* The driver could not say, which is no failure of any work: no memory, or a queue that is being
 * captured. */
static bool is_refusal(accrt_status_t status) {
  return status == ACCRT_ERROR_OUT_OF_MEMORY || status == ACCRT_ERROR_INVALID_STATE;
}

void accrt_stream_refresh(accrt_stream_t* stream) {
  if (atomic_load_explicit(&stream->left, memory_order_relaxed))
    return;
  const uint64_t issued = accrt_stream_issued(stream);
  if (accrt_fence_passed(stream->fence, issued))
    return;
  if (!accrt_stream_is_behind(stream)) {
    accrt_fence_advance(stream->fence, issued); /* what came since needed no driver */
    return;
  }
  if (stream->table->queue_progress == NULL)
    return; /* listeners report */
  uint64_t ended = 0;
  const accrt_error_t saved = *accrt_error_current();
  const accrt_status_t status = stream->table->queue_progress(stream->queue, &ended);
  if (status == ACCRT_OK) {
    accrt_fence_advance(stream->fence, accrt_stream_complete(stream, issued, ended));
    return;
  }
  if (!is_refusal(status))
    accrt_stream_found_failure(stream, ended);
  (void)accrt_error_restore(&saved);
}

accrt_stream_t* accrt_fence_stream(accrt_fence_t* fence) {
  accrt_mutex_lock(&fence->owner_lock);
  accrt_stream_t* stream = fence->owner;
  if (stream != NULL && !accrt_object_try_retain(&stream->object))
    stream = NULL;
  accrt_mutex_unlock(&fence->owner_lock);
  return stream;
}

void accrt_fence_refresh(accrt_fence_t* fence) {
  accrt_stream_t* stream = accrt_fence_stream(fence);
  if (stream == NULL)
    return;
  accrt_stream_refresh(stream);
  accrt_stream_unref(stream);
}

/* ---- Waiting ---- */

/* The last range with one of these numbers, or NULL. Under the lock. */
ACCRT_RARE static const accrt_dropped_t* find_dropped(const accrt_stream_t* stream, uint64_t first,
                                                      uint64_t last) {
  ACCRT_ASSERT_HELD(&stream->lock);
  for (uint32_t i = stream->dropped_count; i-- > 0;) {
    if (last >= stream->dropped[i].first && first <= stream->dropped[i].last)
      return &stream->dropped[i];
  }
  return NULL;
}

static bool is_failed(accrt_stream_t* stream, uint64_t number) {
  /* Of one that never failed nothing was dropped either. */
  if (accrt_stream_failures(stream) == 0)
    return false;
  accrt_mutex_lock(&stream->lock);
  const bool failed = stream->failed && number >= stream->failed_number;
  const bool dropped = number != 0 && find_dropped(stream, number, number) != NULL;
  accrt_mutex_unlock(&stream->lock);
  return failed || dropped;
}

static accrt_reach_t wait_settled(accrt_stream_t* stream, uint64_t number, uint64_t timeout_ns,
                                  uint32_t policy) {
  const accrt_wait_item_t item = {&stream->timeline, number};
  accrt_waiter_watch_t watch;
  const accrt_wait_t wait = {.items = &item,
                             .count = 1,
                             .timeout_ns = timeout_ns,
                             .policy = policy,
                             .watches = &watch,
                             .progress = accrt_instance_progress(stream->instance, timeout_ns),
                             .progress_user = stream->instance};
  uint32_t index;
  return accrt_wait(&wait, &index);
}

/* The last operation up to `number` that is not settled, or 0. Marks that share the number of what
 * is before them do not count. `*out_marking`: the stream has failed, and what runs still has not
 * been seen to end. */
static uint64_t last_operation(accrt_stream_t* stream, uint64_t number, bool* out_marking) {
  uint64_t last = 0;
  *out_marking = false;
  /* Acquire pairs with the release in accrt_stream_activate: this thread's own operations are seen
   * in any case. */
  if (!atomic_load_explicit(&stream->active, memory_order_acquire))
    return 0;
  accrt_mutex_lock(&stream->lock);
  const uint64_t settled = accrt_timeline_value(&stream->timeline);
  if (stream->settling && stream->settling_number <= number && stream->settling_number > settled)
    last = stream->settling_number;
  for (const accrt_op_t* op = stream->in_flight.head; op != NULL; op = op->next) {
    if (op->number <= number && op->number > settled)
      last = op->number;
    *out_marking |= op->kind == ACCRT_OP_MARK;
  }
  for (const accrt_op_t* op = stream->deferred.head; op != NULL && op->number <= number;
       op = op->next)
    last = op->number;
  *out_marking |= stream->mark_wanted || stream->settling;
  *out_marking &= stream->failed;
  accrt_mutex_unlock(&stream->lock);
  return last;
}

ACCRT_RARE static void sleep_a_little(uint64_t limit_ns) {
  atomic_uint unshared;
  atomic_init(&unshared, 0);
  accrt_futex_wait(&unshared, 0, limit_ns < IDLE_PAUSE_NS ? limit_ns : IDLE_PAUSE_NS);
}

/* Keeps devices without threads going, or sleeps for a moment. */
static void pause_a_little(accrt_stream_t* stream, uint64_t limit_ns) {
  const accrt_wait_progress_fn_t progress = accrt_instance_progress(stream->instance, limit_ns);
  if (progress == NULL || progress(stream->instance) == 0)
    sleep_a_little(limit_ns);
}

void accrt_stream_wait_queue(accrt_stream_t* stream) {
  if (stream->table->queue_wait == NULL)
    return;
  const uint64_t number = atomic_load_explicit(&stream->issued_work, memory_order_relaxed);
  const bool caller_runs = accrt_upper_device(stream->device)->caller_runs;
  accrt_status_t status;
  do {
    status = stream->table->queue_wait(stream->queue, number,
                                       caller_runs ? 0 : ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
    if (status == ACCRT_ERROR_TIMEOUT)
      pause_a_little(stream, ACCRT_TIMEOUT_INFINITE);
  } while (status == ACCRT_ERROR_TIMEOUT);
}

/* One step of waiting where the driver is not to be waited in: it runs the work on its callers, or
 * reports no numbers, and then the number is on its way on another thread. */
static accrt_reach_t wait_outside(accrt_stream_t* stream, uint64_t number, uint64_t timeout_ns,
                                  uint32_t policy) {
  accrt_stream_refresh(stream);
  if (accrt_fence_passed(stream->fence, number))
    return ACCRT_REACH_REACHED;
  const accrt_wait_progress_fn_t progress = accrt_instance_progress(stream->instance, timeout_ns);
  if (progress != NULL && progress(stream->instance) != 0) {
    accrt_stream_refresh(stream);
    return accrt_fence_passed(stream->fence, number) ? ACCRT_REACH_REACHED : ACCRT_REACH_PENDING;
  }
  if (policy == ACCRT_WAIT_BLOCK && timeout_ns != 0) {
    sleep_a_little(timeout_ns);
  } else {
    (void)sched_yield();
  }
  return ACCRT_REACH_PENDING;
}

/* One step of waiting for numbers without listeners. `*out_refused`: the driver cannot wait, and
 * has said why. */
static accrt_reach_t wait_driver(accrt_stream_t* stream, uint64_t number, uint64_t timeout_ns,
                                 uint32_t policy, accrt_status_t* out_refused) {
  if (stream->outside)
    return wait_outside(stream, number, timeout_ns, policy);
  const uint64_t issued = accrt_stream_issued(stream);
  const accrt_status_t status =
      stream->table->queue_wait(stream->queue, number, timeout_ns, policy);
  if (status == ACCRT_OK) {
    /* All that was enqueued by then; a number may be on its way to the driver on another thread. */
    accrt_fence_advance(stream->fence, issued < number ? issued : number);
    if (issued < number)
      (void)sched_yield();
    return issued < number ? ACCRT_REACH_PENDING : ACCRT_REACH_REACHED;
  }
  if (status == ACCRT_ERROR_TIMEOUT || status == ACCRT_ERROR_NOT_READY)
    return ACCRT_REACH_PENDING;
  if (is_refusal(status)) {
    *out_refused = status;
    return ACCRT_REACH_FAILED;
  }
  accrt_stream_found_failure(stream, 0);
  return ACCRT_REACH_FAILED;
}

static bool is_poisoned(const accrt_stream_t* stream) {
  /* Acquire pairs with the release where a stream fails. */
  return atomic_load_explicit(&stream->poisoned, memory_order_acquire) != 0;
}

static accrt_reach_t wait_reached(accrt_stream_t* stream, uint64_t number, uint64_t timeout_ns,
                                  uint32_t policy, accrt_status_t* out_refused) {
  const uint64_t deadline_ns = accrt_deadline_ns(timeout_ns);
  uint64_t left_ns = timeout_ns;
  for (;;) {
    bool marking;
    accrt_reach_t reach;
    const uint64_t operation = last_operation(stream, number, &marking);
    if (operation != 0) {
      reach = wait_settled(stream, operation, left_ns, policy);
    } else if (is_poisoned(stream)) {
      /* The failure is known. Until nothing runs any more memory may not go. */
      if (!marking && accrt_fence_passed(stream->fence, number))
        return ACCRT_REACH_REACHED;
      reach = ACCRT_REACH_PENDING;
      if (left_ns > 0)
        pause_a_little(stream, left_ns);
    } else if (accrt_fence_passed(stream->fence, number)) {
      return ACCRT_REACH_REACHED;
    } else {
      reach = wait_driver(stream, number, left_ns, policy, out_refused);
      if (*out_refused != ACCRT_OK)
        return reach;
    }
    left_ns = accrt_deadline_left_ns(deadline_ns);
    if (reach == ACCRT_REACH_PENDING && left_ns == 0)
      return ACCRT_REACH_PENDING;
  }
}

static accrt_status_t fail_not_done(const accrt_stream_t* stream, uint64_t number,
                                    uint64_t timeout_ns) {
  const uint64_t value = atomic_load_explicit(&stream->fence->completed, memory_order_relaxed);
  if (timeout_ns == 0) {
    return ACCRT_FAIL(NOT_READY,
                      "stream %" PRIu64 " has completed %" PRIu64 " of %" PRIu64 " submissions",
                      stream->id, value, number);
  }
  return ACCRT_FAIL(TIMEOUT,
                    "waited %" PRIu64 " ns; stream %" PRIu64 " has completed %" PRIu64
                    " of %" PRIu64 " submissions",
                    timeout_ns, stream->id, value, number);
}

/* `asked_ns`: the caller's own limit, of which `timeout_ns` is left. `over`: what has failed is not
 * over before it has ended. */
static accrt_status_t wait_number(accrt_stream_t* stream, uint64_t number, uint64_t timeout_ns,
                                  uint64_t asked_ns, uint32_t policy, bool over) {
  accrt_status_t refused = ACCRT_OK;
  const accrt_reach_t reach = wait_reached(stream, number, timeout_ns, policy, &refused);
  if (refused != ACCRT_OK)
    return refused;
  accrt_instance_reap_zombies(stream->instance);
  if (atomic_load_explicit(&stream->retained_count, memory_order_relaxed) >=
      ACCRT_STREAM_INLINE_RETAINED)
    accrt_stream_trim_retained(stream, false);
  if ((reach != ACCRT_REACH_PENDING || !over) && is_failed(stream, number))
    return accrt_stream_poisoned(stream);
  if (reach == ACCRT_REACH_REACHED)
    return ACCRT_OK;
  return fail_not_done(stream, number, asked_ns);
}

accrt_status_t accrt_stream_wait_number(accrt_stream_t* stream, uint64_t number,
                                        uint64_t timeout_ns, uint64_t asked_ns, uint32_t policy) {
  return wait_number(stream, number, timeout_ns, asked_ns, policy, false);
}

accrt_status_t accrt_stream_wait_over(accrt_stream_t* stream, uint64_t number,
                                      uint64_t timeout_ns) {
  return wait_number(stream, number, timeout_ns, timeout_ns, ACCRT_WAIT_BLOCK, true);
}

/* ---- Records and waits behind the last number ---- */

/* As an operation, which has one: where the stream defers. */
static accrt_status_t enqueue_mark(accrt_stream_t* stream) {
  const accrt_request_t request = {.kind = ACCRT_OP_MARK, .name = "accrt_stream_synchronize"};
  return accrt_stream_enqueue(stream, &request, NULL);
}

/* The event that was recorded behind all of them, when nothing came since. */
static accrt_point_t* find_sync_point(accrt_stream_t* stream, uint64_t* out_issued,
                                      uint32_t* out_count) {
  accrt_point_t* point = NULL;
  accrt_mutex_lock(&stream->lock);
  const uint64_t word = atomic_load_explicit(&stream->submit_lock, memory_order_relaxed);
  if (stream->sync_point != NULL && word == stream->sync_word &&
      atomic_load_explicit(&stream->event_count, memory_order_relaxed) == stream->sync_count) {
    point = stream->sync_point;
    accrt_object_retain(&point->object);
    *out_issued = stream->sync_issued;
    *out_count = stream->sync_count;
  }
  accrt_mutex_unlock(&stream->lock);
  return point;
}

/* That, or a new one; `*out_point` NULL: the stream defers. */
static accrt_status_t take_sync_point(accrt_stream_t* stream, accrt_point_t** out_point,
                                      uint64_t* out_issued, uint32_t* out_count) {
  *out_point = find_sync_point(stream, out_issued, out_count);
  if (*out_point != NULL)
    return ACCRT_OK;
  accrt_point_t* point;
  accrt_submit_held_t held;
  ACCRT_TRY(accrt_point_take(stream->device, &point));
  if (!accrt_submit_try_lock(stream, 0, &held)) {
    accrt_point_unref(point);
    return ACCRT_OK;
  }
  *out_issued = accrt_stream_issued(stream);
  *out_count = atomic_load_explicit(&stream->event_count, memory_order_relaxed);
  accrt_status_t status = stream->table->event_record(stream->queue, point->event);
  accrt_submit_unlock(stream, &held, 0);
  if (status != ACCRT_OK) {
    accrt_device_note_status(stream->device, status);
    accrt_point_unref(point);
    return status;
  }
  accrt_object_retain(&point->object);
  accrt_mutex_lock(&stream->lock);
  accrt_point_t* old = stream->sync_point;
  stream->sync_point = point;
  stream->sync_word = held.word & ~ACCRT_SUBMIT_OWNED;
  stream->sync_issued = *out_issued;
  stream->sync_count = *out_count;
  accrt_mutex_unlock(&stream->lock);
  accrt_point_unref(old);
  *out_point = point;
  return ACCRT_OK;
}

/* All that the queue had is over. The flags go if nothing came since. */
static void pass_sync_point(accrt_stream_t* stream, uint64_t issued, uint32_t count) {
  accrt_submit_held_t held;
  accrt_fence_advance(stream->fence, issued);
  if (!accrt_submit_try_lock(stream, 0, &held))
    return;
  if (atomic_load_explicit(&stream->event_count, memory_order_relaxed) == count) {
    (void)atomic_fetch_and_explicit(&stream->submit_lock, ~ACCRT_SUBMIT_EVENT_MASK,
                                    memory_order_relaxed);
    held.word &= ~ACCRT_SUBMIT_EVENT_MASK;
  }
  accrt_submit_unlock(stream, &held, 0);
}

/* Waits until they are over too. ACCRT_ERROR_TIMEOUT without a record; a failure fails the stream
 * and is ACCRT_OK here. */
static accrt_status_t wait_events(accrt_stream_t* stream, uint64_t timeout_ns, uint32_t policy) {
  accrt_point_t* point;
  uint64_t issued;
  uint32_t count;
  if (!accrt_stream_has_events(stream) || is_poisoned(stream))
    return ACCRT_OK;
  ACCRT_TRY(take_sync_point(stream, &point, &issued, &count));
  if (point == NULL)
    return is_poisoned(stream) ? ACCRT_OK : enqueue_mark(stream);
  accrt_status_t status = timeout_ns == 0
                              ? stream->table->event_query(point->event)
                              : stream->table->event_synchronize(point->event, timeout_ns, policy);
  accrt_point_unref(point);
  if (status == ACCRT_OK) {
    pass_sync_point(stream, issued, count);
  } else if (status == ACCRT_ERROR_NOT_READY || status == ACCRT_ERROR_TIMEOUT) {
    status = ACCRT_ERROR_TIMEOUT;
  } else if (!is_refusal(status)) {
    accrt_stream_found_failure(stream, 0);
    status = ACCRT_OK;
  }
  return status;
}

/* What a call found may be gone when another thread resets the stream before the call returns. The
 * work up to `before` was there when it began. */
static accrt_status_t end_wait(accrt_stream_t* stream, uint64_t before, accrt_status_t status) {
  const bool is_answer =
      status == ACCRT_OK || status == ACCRT_ERROR_NOT_READY || status == ACCRT_ERROR_TIMEOUT;
  return is_answer && is_failed(stream, before) ? accrt_stream_poisoned(stream) : status;
}

static accrt_status_t synchronize(accrt_stream_t* stream, uint64_t timeout_ns, uint32_t policy) {
  const uint64_t deadline_ns = accrt_deadline_ns(timeout_ns);
  accrt_status_t status = wait_events(stream, timeout_ns, policy);
  const uint64_t last = accrt_stream_last_submission(stream);
  if (status == ACCRT_ERROR_TIMEOUT)
    return fail_not_done(stream, last, timeout_ns);
  if (status != ACCRT_OK)
    return status;
  status = wait_number(stream, last, accrt_limit_left_ns(timeout_ns, deadline_ns), timeout_ns,
                       policy, false);
  accrt_stream_trim_retained(stream, false);
  return status;
}

accrt_status_t accrt_inner_stream_synchronize(accrt_stream_t* stream, uint64_t timeout_ns,
                                              uint32_t policy) {
  ACCRT_CHECK(stream);
  if (policy > ACCRT_WAIT_SPIN)
    return ACCRT_FAIL(INVALID_ARGUMENT, "policy %" PRIu32 " is not known", policy);
  const uint64_t before = accrt_stream_last_submission(stream);
  return end_wait(stream, before, synchronize(stream, timeout_ns, policy));
}

accrt_status_t accrt_stream_synchronize(accrt_stream_t* stream, uint64_t timeout_ns,
                                        uint32_t policy) {
  ACCRT_ENTER_INNER(accrt_inner_stream_synchronize(stream, timeout_ns, policy));
}

static void store(uint64_t* out, uint64_t value) {
  if (out != NULL)
    *out = value;
}

accrt_status_t accrt_stream_progress(accrt_stream_t* stream, uint64_t* out_submitted,
                                     uint64_t* out_issued, uint64_t* out_completed) {
  store(out_submitted, 0);
  store(out_issued, 0);
  store(out_completed, 0);
  ACCRT_ENTER(stream);
  store(out_submitted, accrt_stream_last_submission(stream));
  store(out_issued, accrt_stream_issued(stream));
  accrt_stream_refresh(stream);
  /* Acquire pairs with the release in accrt_fence_advance: what the device did is seen. */
  store(out_completed, atomic_load_explicit(&stream->fence->completed, memory_order_acquire));
  return ACCRT_OK;
}

static accrt_status_t query(accrt_stream_t* stream) {
  accrt_status_t status = wait_events(stream, 0, ACCRT_WAIT_SPIN);
  const uint64_t last = accrt_stream_last_submission(stream);
  if (status == ACCRT_ERROR_TIMEOUT)
    return fail_not_done(stream, last, 0);
  if (status != ACCRT_OK)
    return status;
  accrt_stream_refresh(stream);
  if (is_poisoned(stream))
    return accrt_stream_poisoned(stream);
  bool marking;
  if (last_operation(stream, last, &marking) == 0 && accrt_fence_passed(stream->fence, last))
    return ACCRT_OK;
  return fail_not_done(stream, last, 0);
}

accrt_status_t accrt_stream_query(accrt_stream_t* stream) {
  ACCRT_ENTER(stream);
  const uint64_t before = accrt_stream_last_submission(stream);
  return end_wait(stream, before, query(stream));
}

ACCRT_RARE accrt_status_t accrt_inner_stream_error(accrt_stream_t* stream,
                                                   accrt_error_t* out_error) {
  ACCRT_CHECK(stream);
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_stream_refresh(stream);
  accrt_mutex_lock(&stream->lock);
  if (stream->failed)
    error = stream->error;
  accrt_mutex_unlock(&stream->lock);
  return accrt_struct_write("accrt_error_t", out_error, &error, sizeof error);
}

ACCRT_RARE accrt_status_t accrt_stream_error(accrt_stream_t* stream, accrt_error_t* out_error) {
  ACCRT_ENTER_INNER(accrt_inner_stream_error(stream, out_error));
}

/* ---- For sessions ---- */

bool accrt_stream_divides(const accrt_stream_t* stream) {
  return stream->commands_per_piece != 0;
}

bool accrt_stream_traces(const accrt_stream_t* stream) {
  return stream->traces;
}

uint32_t accrt_stream_failures(const accrt_stream_t* stream) {
  /* Pairs with the addition in accrt_stream_fail. Sequentially consistent: see is_held. */
  return atomic_load_explicit(&stream->failures, memory_order_seq_cst);
}

accrt_status_t accrt_stream_outcome(accrt_stream_t* stream, uint64_t first, uint64_t last,
                                    accrt_error_t* out_error) {
  accrt_stream_refresh(stream);
  accrt_mutex_lock(&stream->lock);
  const bool failed = stream->failed && last >= stream->failed_number;
  const accrt_dropped_t* dropped = find_dropped(stream, first, last);
  if (failed) {
    *out_error = stream->error;
  } else if (dropped != NULL && dropped + 1 == stream->dropped + stream->dropped_count) {
    *out_error = stream->dropped_error;
  } else if (dropped != NULL) { /* of that one the status alone is left */
    accrt_error_make(out_error, dropped->status, "accrt_stream_reset", "dropped before a reset");
    out_error->submission = dropped->first;
  }
  accrt_mutex_unlock(&stream->lock);
  if (failed || dropped != NULL)
    return ACCRT_ERROR_POISONED;
  return accrt_fence_passed(stream->fence, last) ? ACCRT_OK : ACCRT_ERROR_NOT_READY;
}

/* ---- Cancelling ---- */

/* The first submission that is not complete, and the name of what it is where that is known; 0:
 * there is none. Under the lock. */
ACCRT_RARE static uint64_t first_incomplete(accrt_stream_t* stream, const char** out_name) {
  ACCRT_ASSERT_HELD(&stream->lock);
  if (stream->inline_number != 0)
    return stream->inline_number;
  uint64_t unreported = 0;
  if (accrt_stream_is_behind(stream))
    unreported = atomic_load_explicit(&stream->fence->completed, memory_order_relaxed) + 1;
  const accrt_op_t* op = stream->in_flight.head;
  while (op != NULL && (op->done || op->kind == ACCRT_OP_MARK))
    op = op->next;
  if (op == NULL)
    op = stream->deferred.head;
  if (op == NULL || (unreported != 0 && unreported < op->number))
    return unreported;
  *out_name = op->name;
  return op->number;
}

/* True when something was under way. */
ACCRT_RARE static bool fail_cancelled(accrt_stream_t* stream) {
  const char* name = "accrt_stream_cancel";
  const uint64_t first = first_incomplete(stream, &name);
  if (first == 0)
    return false;
  char message[160];
  accrt_error_t error;
  (void)snprintf(message, sizeof message,
                 "cancelled: submissions %" PRIu64 " to %" PRIu64 " of stream %" PRIu64
                 " were not complete",
                 first, accrt_stream_submitted(stream), stream->id);
  accrt_error_make(&error, ACCRT_ERROR_CANCELLED, name, message);
  accrt_stream_fail(stream, first, &error);
  return true;
}

/* A thread that waits for what is cancelled may release the stream before this function returns. */
ACCRT_RARE accrt_status_t accrt_inner_stream_cancel(accrt_stream_t* stream) {
  ACCRT_CHECK(stream);
  accrt_stream_hold(stream);
  accrt_stream_refresh(stream);
  accrt_context_enter();
  accrt_mutex_lock(&stream->lock);
  if (fail_cancelled(stream) && stream->table->queue_cancel != NULL) {
    /* The stream is not reset meanwhile: what is enqueued after a reset is not cancelled. */
    stream->cancelling += 1;
    accrt_mutex_unlock(&stream->lock);
    stream->table->queue_cancel(stream->queue);
    accrt_mutex_lock(&stream->lock);
    stream->cancelling -= 1;
  }
  accrt_stream_settle(stream);
  accrt_context_leave();
  accrt_stream_let_go(stream);
  return ACCRT_OK;
}

ACCRT_RARE accrt_status_t accrt_stream_cancel(accrt_stream_t* stream) {
  ACCRT_ENTER_INNER(accrt_inner_stream_cancel(stream));
}

/* ---- Resetting ---- */

/* Fails what is deferred, if anything is. */
ACCRT_RARE static void drop_deferred(accrt_stream_t* stream, const char* operation,
                                     const char* message) {
  accrt_error_t error;
  accrt_error_make(&error, ACCRT_ERROR_CANCELLED, operation, message);
  accrt_context_enter();
  accrt_mutex_lock(&stream->lock);
  if (stream->deferred.head != NULL)
    accrt_stream_fail(stream, stream->deferred.head->number, &error);
  accrt_stream_settle(stream);
  accrt_context_leave();
}

ACCRT_RARE static bool is_idle(accrt_stream_t* stream) {
  accrt_stream_refresh(stream);
  accrt_mutex_lock(&stream->lock);
  const bool idle = !stream->busy && !accrt_stream_is_owned(stream) && !stream->settling &&
                    !stream->mark_wanted && stream->cancelling == 0 &&
                    stream->in_flight.head == NULL && !accrt_stream_is_behind(stream) &&
                    /* Acquire pairs with the release where a transfer ends (staging_stream.c). */
                    atomic_load_explicit(&stream->staged, memory_order_acquire) == 0;
  accrt_mutex_unlock(&stream->lock);
  return idle;
}

ACCRT_RARE void accrt_stream_wait_idle(accrt_stream_t* stream) {
  while (!is_idle(stream)) {
    if (accrt_stream_is_behind(stream) && !is_poisoned(stream) &&
        stream->table->queue_wait != NULL) {
      const accrt_error_t saved = *accrt_error_current();
      accrt_status_t refused = ACCRT_OK;
      (void)wait_driver(stream, atomic_load_explicit(&stream->issued_work, memory_order_relaxed),
                        ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK, &refused);
      if (refused != ACCRT_OK)
        pause_a_little(stream, ACCRT_TIMEOUT_INFINITE);
      (void)accrt_error_restore(&saved);
    } else {
      pause_a_little(stream, ACCRT_TIMEOUT_INFINITE);
    }
  }
}

/* Whether the runtime holds work back for `ahead` alone: that work goes on by itself. A wait of the
 * caller's may never end. */
ACCRT_RARE static bool goes_on(accrt_stream_t* stream) {
  accrt_mutex_lock(&stream->lock);
  const accrt_op_t* head = stream->deferred.head;
  const bool on = stream->ahead_semaphore != NULL && !stream->failed && head != NULL &&
                  (head->kind != ACCRT_OP_WAIT || head->semaphore == stream->ahead_semaphore);
  accrt_mutex_unlock(&stream->lock);
  return on;
}

ACCRT_RARE void accrt_stream_abandon(accrt_stream_t* stream) {
  while (goes_on(stream)) {
    accrt_stream_refresh(stream);
    pause_a_little(stream, ACCRT_TIMEOUT_INFINITE);
  }
  drop_deferred(stream, "accrt_instance_release",
                "dropped: the instance ended before the semaphore was signalled");
  accrt_stream_wait_idle(stream);
}

ACCRT_RARE static accrt_status_t reset_queue(accrt_stream_t* stream) {
  if (accrt_device_is_lost(stream->device))
    return accrt_device_fail_lost(stream->device);
  const accrt_status_t status = stream->table->queue_reset(stream->queue);
  accrt_device_note_status(stream->device, status);
  return status;
}

void accrt_stream_hold_reset(accrt_stream_t* stream) {
  /* Sequentially consistent: see is_held. */
  atomic_fetch_add_explicit(&stream->reset_holds, 1, memory_order_seq_cst);
}

void accrt_stream_let_reset(accrt_stream_t* stream) {
  /* Release pairs with the acquire in is_held. */
  const unsigned before = atomic_fetch_sub_explicit(&stream->reset_holds, 1, memory_order_release);
  ACCRT_ASSERT(before != 0);
}

/* A thread enqueues what belongs together. Under the lock, of a stream that has failed: what such a
 * thread enqueues from now on is refused. */
ACCRT_RARE static bool is_held(accrt_stream_t* stream) {
  ACCRT_ASSERT_HELD(&stream->lock);
  /* Acquire, in here, pairs with the release of the submission lock by a thread that has enqueued
   * something: then its hold is seen. */
  (void)accrt_stream_submitted(stream);
  /* Sequentially consistent, as is the addition in accrt_stream_hold_reset: a thread that holds the
   * stream and then sees no failure (accrt_stream_failures) is seen too. Pairs with the release in
   * accrt_stream_let_reset. */
  return atomic_load_explicit(&stream->reset_holds, memory_order_seq_cst) != 0;
}

/* Notes what the failure has dropped. Where there is no room left, the two oldest ranges become
 * one: what ended well between them counts as dropped then, and never the other way round. Under
 * the lock. */
ACCRT_RARE static void note_dropped(accrt_stream_t* stream, uint64_t last) {
  ACCRT_ASSERT_HELD(&stream->lock);
  accrt_dropped_t* dropped = stream->dropped;
  if (stream->dropped_count == ACCRT_STREAM_DROPPED) {
    dropped[1].first = dropped[0].first;
    stream->dropped_count -= 1;
    memmove(dropped, dropped + 1, stream->dropped_count * sizeof *dropped);
  }
  dropped[stream->dropped_count++] =
      (accrt_dropped_t){stream->failed_number, last, stream->error.status};
  stream->dropped_error = stream->error;
}

/* The stream is sound again. Under the lock. */
ACCRT_RARE static void clear_failure(accrt_stream_t* stream) {
  ACCRT_ASSERT_HELD(&stream->lock);
  stream->failed = false;
  atomic_store_explicit(&stream->poisoned, 0, memory_order_relaxed);
  /* A thread that still waits for an earlier number gets its failure. Waits from now on are for
   * later numbers. */
  const uint64_t last = accrt_stream_submitted(stream);
  note_dropped(stream, last);
  atomic_store_explicit(&stream->issued, last + 1, memory_order_release);
  accrt_fence_advance(stream->fence, last + 1);
  accrt_timeline_advance(&stream->timeline, last + 1);
  /* BLOCKED was set, so no other thread changes the word. Release pairs with the acquire of the
   * next owner. */
  atomic_store_explicit(&stream->submit_lock, (last + 1) << ACCRT_SUBMIT_SHIFT,
                        memory_order_release);
}

ACCRT_RARE accrt_status_t accrt_inner_stream_reset(accrt_stream_t* stream) {
  ACCRT_CHECK(stream);
  drop_deferred(stream, "accrt_stream_reset", "dropped: the stream was reset");
  /* One thread resets; the others find nothing to do when it is over. */
  bool ours = false, failed = true;
  while (!ours && failed) {
    accrt_stream_wait_idle(stream);
    accrt_mutex_lock(&stream->lock);
    failed = stream->failed;
    ours = failed && !stream->resetting && stream->in_flight.head == NULL &&
           !accrt_stream_is_owned(stream) && !is_held(stream);
    if (ours)
      stream->resetting = true;
    accrt_mutex_unlock(&stream->lock);
    if (!ours && failed)
      pause_a_little(stream, ACCRT_TIMEOUT_INFINITE);
  }
  if (!failed)
    return accrt_device_is_lost(stream->device) ? accrt_device_fail_lost(stream->device) : ACCRT_OK;
  accrt_status_t status = reset_queue(stream);
  accrt_mutex_lock(&stream->lock);
  stream->resetting = false;
  if (status == ACCRT_OK)
    clear_failure(stream);
  accrt_mutex_unlock(&stream->lock);
  accrt_stream_trim_retained(stream, false);
  return status;
}

ACCRT_RARE accrt_status_t accrt_stream_reset(accrt_stream_t* stream) {
  ACCRT_ENTER_INNER(accrt_inner_stream_reset(stream));
}
