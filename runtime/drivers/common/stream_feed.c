/* runtime/drivers/common/stream_feed.c - streams: taking requests and issuing them to the driver.
 * It may not know what an operation's work is.
 *
 * A thread takes the submission lock together with a number, calls the driver, and unlocks; see
 * accrt_submit_try_lock. Work whose end must be reported (a completion, a trace, a driver that
 * reports no numbers) gets a listener: an operation in the list in flight. What is no work, and
 * what cannot go to the driver yet, is an operation too. It gets its number when it is taken. It
 * goes to the driver at once if all before it has been issued; otherwise it is deferred. One thread
 * at a time owns the submission lock and calls the driver's queue: it holds no mutex meanwhile, and
 * issues what others have deferred before it unlocks. What needs no driver (a signal, a
 * notification, with nothing running before) just takes its place in the list in flight, already
 * done.
 */
#include "runtime/drivers/common/stream_internal.h"

/* How long a thread waits for another's call of the driver before it defers: such a call takes
 * microseconds. */
#define SPINS_FOR_LOCK 200

static void wait_task(accrt_task_t* task);

/* ---- What an operation needs ---- */

/* Needs no driver of itself: it is done when all before it has been settled. */
static bool is_marker(const accrt_op_t* op) {
  return op->kind == ACCRT_OP_SIGNAL || op->kind == ACCRT_OP_NOTIFY || op->kind == ACCRT_OP_RECORD;
}

/* The driver has work whose end it will not report. Foreign queues may have more than we know. */
static bool has_unreported_work(const accrt_stream_t* stream) {
  if (stream->foreign || (atomic_load_explicit(&stream->submit_lock, memory_order_relaxed) &
                          ACCRT_SUBMIT_EVENT_WAIT) != 0)
    return true;
  const uint64_t issued = atomic_load_explicit(&stream->issued_work, memory_order_relaxed);
  return issued > atomic_load_explicit(&stream->reported_number, memory_order_relaxed) &&
         !accrt_fence_passed(stream->fence, issued);
}

/* A marker behind work without a listener asks the driver, and so does a timing record behind
 * running work: when did the device get there? */
static bool asks_driver(const accrt_stream_t* stream, const accrt_op_t* op) {
  const bool timed =
      op->kind == ACCRT_OP_RECORD && (op->event->flags & ACCRT_EVENT_FLAG_TIMING) != 0;
  return (timed && stream->in_flight.head != NULL) || op->after_unreported;
}

/* The driver gets it. Notes what is before it. Under the lock. */
static bool needs_driver(const accrt_stream_t* stream, accrt_op_t* op) {
  ACCRT_ASSERT_HELD(&stream->lock);
  op->after_unreported = has_unreported_work(stream);
  return !is_marker(op) || asks_driver(stream, op) ||
         (op->kind == ACCRT_OP_RECORD && op->event->native != NULL && stream->native);
}

/* Puts an operation that is ready into flight. Under the lock. */
static void launch_op(accrt_stream_t* stream, accrt_op_t* op, bool driver) {
  ACCRT_ASSERT_HELD(&stream->lock);
  if (!driver) {
    op->done = true;
    if (stream->in_flight.head == NULL)
      op->time_ns = accrt_clock_ns();
    accrt_stream_raise(&stream->issued, op->number);
  }
  op->reported = driver;
  accrt_op_append(&stream->in_flight, op);
}

/* ---- The submission lock ---- */

bool accrt_submit_try_lock_slow(accrt_stream_t* stream, uint64_t add,
                                accrt_submit_held_t* out_held) {
  for (int i = 0; i < SPINS_FOR_LOCK; ++i) {
    uint_least64_t seen = atomic_load_explicit(&stream->submit_lock, memory_order_relaxed);
    if ((seen & ACCRT_SUBMIT_BLOCKED) != 0)
      return false;
    if ((seen & ACCRT_SUBMIT_OWNED) != 0) {
      accrt_pause();
      continue;
    }
    out_held->events = seen & ACCRT_SUBMIT_EVENT_MASK;
    out_held->word =
        ((seen + add) | ACCRT_SUBMIT_OWNED) & ~(add != 0 ? ACCRT_SUBMIT_EVENT_MASK : UINT64_C(0));
    /* Acquire pairs with the release of the owner before. */
    if (atomic_compare_exchange_weak_explicit(&stream->submit_lock, &seen, out_held->word,
                                              memory_order_acquire, memory_order_relaxed))
      return true;
  }
  return false;
}

/* Others have deferred work, or the stream has failed: all of that is done before the lock is
 * released. */
void accrt_submit_unlock_slow(accrt_stream_t* stream, uint64_t events) {
  accrt_context_enter();
  accrt_mutex_lock(&stream->lock);
  stream->busy = true;
  if (events != 0)
    (void)atomic_fetch_or_explicit(&stream->submit_lock, events, memory_order_relaxed);
  accrt_mutex_unlock(&stream->lock);
  accrt_stream_drain(stream);
  accrt_context_leave();
}

/* A number for an operation that is done, or goes to the driver at once (`own`), with the
 * submission lock still as it was `seen`. False: it is not, or a thread owns it. Under the lock. */
static bool claim_direct(accrt_stream_t* stream, uint64_t seen, bool own, uint64_t* out_number) {
  ACCRT_ASSERT_HELD(&stream->lock);
  if ((seen & (ACCRT_SUBMIT_OWNED | ACCRT_SUBMIT_BLOCKED)) != 0)
    return false;
  const uint64_t next = (seen + ACCRT_SUBMIT_ONE) | (own ? ACCRT_SUBMIT_OWNED : 0);
  *out_number = next >> ACCRT_SUBMIT_SHIFT;
  uint_least64_t expected = seen;
  /* Acquire pairs with the release of the owner before. */
  return atomic_compare_exchange_strong_explicit(&stream->submit_lock, &expected, next,
                                                 memory_order_acquire, memory_order_relaxed);
}

/* A number for an operation that is deferred. True: the submission lock was free, and the caller
 * owns it now. Under the lock. */
static bool claim_deferred(accrt_stream_t* stream, uint64_t* out_number) {
  ACCRT_ASSERT_HELD(&stream->lock);
  const bool may_own = stream->deferred.head == NULL;
  uint_least64_t seen = atomic_load_explicit(&stream->submit_lock, memory_order_relaxed);
  uint64_t next;
  bool own;
  do {
    own = may_own && (seen & ACCRT_SUBMIT_OWNED) == 0;
    next = (seen + ACCRT_SUBMIT_ONE) | ACCRT_SUBMIT_BLOCKED | (own ? ACCRT_SUBMIT_OWNED : 0);
    /* Acquire pairs with the release of the owner before. */
  } while (!atomic_compare_exchange_weak_explicit(&stream->submit_lock, &seen, next,
                                                  memory_order_acquire, memory_order_relaxed));
  *out_number = next >> ACCRT_SUBMIT_SHIFT;
  return own;
}

bool accrt_stream_claim(accrt_stream_t* stream) {
  ACCRT_ASSERT_HELD(&stream->lock);
  /* Acquire pairs with the release of the owner before. */
  const uint64_t seen = atomic_fetch_or_explicit(
      &stream->submit_lock, ACCRT_SUBMIT_OWNED | ACCRT_SUBMIT_BLOCKED, memory_order_acquire);
  if ((seen & ACCRT_SUBMIT_OWNED) != 0)
    return false;
  stream->busy = true;
  return true;
}

/* Releases the submission lock. Under the lock, by its owner. */
static void release_submit_lock(accrt_stream_t* stream) {
  ACCRT_ASSERT_HELD(&stream->lock);
  const bool blocked = stream->failed || stream->deferred.head != NULL || stream->resetting;
  const uint64_t clear = ACCRT_SUBMIT_OWNED | (blocked ? 0 : ACCRT_SUBMIT_BLOCKED);
  const uint64_t word = atomic_load_explicit(&stream->submit_lock, memory_order_relaxed);
  ACCRT_ASSERT((word & ACCRT_SUBMIT_OWNED) != 0);
  stream->busy = false;
  /* While it is owned, others change it under the lock alone. Release pairs with the acquire of the
   * next owner. */
  atomic_store_explicit(&stream->submit_lock, word & ~clear, memory_order_release);
}

/* The driver has an operation's work now, or something that stands for it. By the owner of the
 * submission lock. */
static void note_issued(accrt_stream_t* stream, const accrt_op_t* op, uint64_t number,
                        accrt_status_t status) {
  const bool numbered = op->kind == ACCRT_OP_COMMAND || op->kind == ACCRT_OP_LIST;
  if (status == ACCRT_OK) {
    atomic_store_explicit(&stream->reported_number, number, memory_order_relaxed);
    if (numbered)
      atomic_store_explicit(&stream->issued_work, number, memory_order_relaxed);
    (void)atomic_fetch_and_explicit(&stream->submit_lock, ~ACCRT_SUBMIT_EVENT_MASK,
                                    memory_order_relaxed);
  }
  accrt_stream_raise(&stream->issued, number);
}

/* ---- Feeding the driver ---- */

static accrt_driver_submission_t make_submission(const accrt_stream_t* stream, accrt_op_t* op) {
  return (accrt_driver_submission_t){.struct_size = (uint32_t)sizeof(accrt_driver_submission_t),
                                     .number = op->number,
                                     .stream_id = stream->id,
                                     .completion = {accrt_op_done, op}};
}

/* From the caller's own arrays. `op`: the listener, or NULL without one. */
static accrt_driver_submission_t submission_of(const accrt_stream_t* stream,
                                               const accrt_stream_work_t* work, uint64_t number,
                                               accrt_op_t* op) {
  return (accrt_driver_submission_t){.struct_size = (uint32_t)sizeof(accrt_driver_submission_t),
                                     .binding_count = work->binding_count,
                                     .bindings = work->bindings,
                                     .scalars = work->scalars,
                                     .scalar_count = work->scalar_count,
                                     .number = number,
                                     .stream_id = stream->id,
                                     .completion = {op != NULL ? accrt_op_done : NULL, op}};
}

/* The driver reports when all before is over. */
static accrt_status_t submit_marker(accrt_stream_t* stream, accrt_op_t* op) {
  if (op->kind == ACCRT_OP_RECORD)
    accrt_event_record_late(op->event, op->generation, stream);
  const accrt_driver_completion_t completion = {accrt_op_done, op};
  return stream->table->queue_notify(stream->queue, completion);
}

/* Issues a deferred operation, from its own copies. */
static accrt_status_t submit_deferred(accrt_stream_t* stream, accrt_op_t* op) {
  if (is_marker(op) || op->kind == ACCRT_OP_MARK)
    return submit_marker(stream, op);
  accrt_driver_submission_t submission = make_submission(stream, op);
  if (op->kind == ACCRT_OP_COMMAND)
    return stream->table->queue_enqueue(stream->queue, &op->command, &submission);
  submission.binding_count = op->binding_count;
  submission.bindings = op->storage;
  submission.scalar_count = op->scalar_count;
  submission.scalars = (const uint64_t*)(void*)((char*)op->storage +
                                                op->binding_count * sizeof(accrt_driver_binding_t));
  return stream->table->queue_execute(stream->queue, op->list, &submission);
}

/* Whether the wait at the head of the deferred list is over; starts to watch its semaphore. Under
 * the lock. */
static bool wait_is_over(accrt_op_t* op, bool* out_watch) {
  ACCRT_ASSERT_HELD(&op->stream->lock);
  *out_watch = op->waiting == ACCRT_WAITING_NEW;
  return op->waiting == ACCRT_WAITING_FIRED;
}

/* Starts to watch, without the lock: what a device will reach has to be asked for. The caller owns
 * the submission lock, so the operation stays at the head of the list; only a failure of the stream
 * takes it away, and that leaves it to the watch. */
static void start_watch(accrt_stream_t* stream, accrt_op_t* op) {
  accrt_semaphore_t* semaphore = op->semaphore;
  op->watch.value = op->value;
  op->task.run = wait_task;
  accrt_semaphore_ref_wait(semaphore);
  const accrt_reach_t reach = accrt_timeline_watch(&semaphore->timeline, &op->watch);
  op->waiting = reach == ACCRT_REACH_PENDING ? ACCRT_WAITING_WATCHED : ACCRT_WAITING_FIRED;
  if (reach != ACCRT_REACH_PENDING)
    op->watch.failed = reach == ACCRT_REACH_FAILED;
  const uint64_t value = op->value;
  accrt_mutex_unlock(&stream->lock);
  if (reach == ACCRT_REACH_PENDING && accrt_semaphore_has_points(semaphore))
    accrt_semaphore_arm(semaphore, value);
  accrt_semaphore_unref_wait(semaphore);
  accrt_mutex_lock(&stream->lock);
}

/* The mark stands behind all that the driver has, and needs no number of its own. Under the lock,
 * by the owner of the submission lock. */
static accrt_op_t* take_mark(accrt_stream_t* stream) {
  ACCRT_ASSERT_HELD(&stream->lock);
  accrt_op_t* op = stream->mark;
  if (!stream->mark_wanted || op == NULL)
    return NULL;
  const accrt_request_t request = {.kind = ACCRT_OP_MARK, .name = "progress"};
  stream->mark_wanted = false;
  stream->mark = NULL;
  accrt_op_fill(stream, op, &request);
  /* What was deferred when the stream failed will not come any more. */
  if (stream->failed)
    accrt_stream_raise(&stream->issued, accrt_stream_submitted(stream));
  op->number = accrt_stream_issued(stream);
  return op;
}

/* The next operation that the driver is to get, already in flight; NULL when there is none: then
 * the submission lock is released. */
static accrt_op_t* next_for_driver(accrt_stream_t* stream) {
  accrt_mutex_lock(&stream->lock);
  accrt_op_t* found = take_mark(stream);
  if (found != NULL)
    launch_op(stream, found, true);
  while (stream->deferred.head != NULL && found == NULL) {
    accrt_op_t* op = stream->deferred.head;
    if (op->kind != ACCRT_OP_WAIT) {
      (void)accrt_op_pop(&stream->deferred);
      const bool driver = needs_driver(stream, op);
      launch_op(stream, op, driver);
      if (driver)
        found = op;
      continue;
    }
    bool watch;
    if (!wait_is_over(op, &watch)) {
      if (!watch)
        break;
      start_watch(stream, op);
      continue;
    }
    (void)accrt_op_pop(&stream->deferred);
    op->after_unreported = has_unreported_work(stream);
    launch_op(stream, op, false);
    if (op->watch.failed)
      accrt_stream_fail(stream, op->number, &op->semaphore->error);
  }
  if (found == NULL && stream->mark_wanted && stream->mark != NULL) {
    found = take_mark(stream); /* a failure came in between */
    launch_op(stream, found, true);
  }
  if (found == NULL)
    release_submit_lock(stream);
  accrt_mutex_unlock(&stream->lock);
  return found;
}

/* The driver cannot report when it is over, for want of memory: this thread waits for it. A queue
 * that is being captured has nothing to be waited for, and one of a device that is gone runs
 * nothing. */
static void wait_instead(accrt_stream_t* stream, accrt_status_t status) {
  if (status != ACCRT_ERROR_INVALID_STATE && !accrt_device_is_lost(stream->device))
    accrt_stream_wait_queue(stream);
}

void accrt_stream_drain(accrt_stream_t* stream) {
  accrt_op_t* op = next_for_driver(stream);
  if (op != NULL) {
    /* What fails here is not the fault of the call that this thread is in. */
    const accrt_error_t saved = *accrt_error_current();
    do {
      /* The operation may be over, and used again, before the driver's call returns. */
      const accrt_op_t shown = {.kind = op->kind};
      const uint64_t number = op->number;
      const accrt_status_t status = submit_deferred(stream, op);
      note_issued(stream, &shown, number, status);
      if (status == ACCRT_OK)
        continue;
      accrt_device_note_status(stream->device, status);
      if (op->kind == ACCRT_OP_MARK)
        wait_instead(stream, status);
      accrt_mutex_lock(&stream->lock);
      op->done = true;
      op->reported = op->kind == ACCRT_OP_MARK && status != ACCRT_ERROR_INVALID_STATE;
      /* A record takes its place in order all the same where that is known, only less exact in
       * time. */
      if (op->kind != ACCRT_OP_MARK && (op->kind != ACCRT_OP_RECORD || op->after_unreported))
        accrt_stream_fail(stream, op->number, accrt_error_current());
      accrt_mutex_unlock(&stream->lock);
    } while ((op = next_for_driver(stream)) != NULL);
    (void)accrt_error_restore(&saved);
  }
  accrt_mutex_lock(&stream->lock);
  accrt_stream_settle(stream);
}

static void wait_fired(accrt_watch_t* watch) {
  accrt_op_t* op = (accrt_op_t*)((char*)watch - offsetof(accrt_op_t, watch));
  accrt_context_post(&op->task);
}

/* The semaphore was reached or has failed: the stream goes on. */
static void wait_task(accrt_task_t* task) {
  accrt_op_t* op = (accrt_op_t*)((char*)task - offsetof(accrt_op_t, task));
  accrt_stream_t* stream = op->stream;
  accrt_mutex_lock(&stream->lock);
  if (op->abandoned) {
    accrt_mutex_unlock(&stream->lock);
    const accrt_op_references_t references = accrt_op_take_references(op);
    accrt_op_drop_references(&references);
    accrt_op_free(stream, op);
    accrt_stream_unref(stream);
    return;
  }
  op->waiting = ACCRT_WAITING_FIRED;
  const bool ours = stream->deferred.head == op && accrt_stream_claim(stream);
  if (ours)
    accrt_stream_ref(stream); /* another thread may settle the rest, and drop the last reference */
  accrt_mutex_unlock(&stream->lock);
  if (!ours)
    return;
  accrt_stream_drain(stream);
  accrt_stream_unref(stream);
}

void accrt_stream_ask(accrt_stream_t* stream) {
  accrt_context_enter();
  accrt_mutex_lock(&stream->lock);
  if (!has_unreported_work(stream) && !accrt_stream_has_events(stream)) {
    accrt_mutex_unlock(&stream->lock);
    accrt_context_leave();
    return;
  }
  stream->mark_wanted = true;
  accrt_stream_activate(stream);
  const bool ours = accrt_stream_claim(stream);
  accrt_mutex_unlock(&stream->lock);
  if (ours)
    accrt_stream_drain(stream);
  accrt_context_leave();
}

/* ---- Work ---- */

/* Behind what has smaller numbers, which is nearly always all: only a failure puts greater numbers
 * there early. Under the lock. */
static void insert_listener(accrt_stream_t* stream, accrt_op_t* op) {
  ACCRT_ASSERT_HELD(&stream->lock);
  accrt_op_t** link = &stream->in_flight.head;
  if (stream->failed) {
    while (*link != NULL && (*link)->number < op->number)
      link = &(*link)->next;
  }
  if (!stream->failed || *link == NULL) {
    accrt_op_append(&stream->in_flight, op);
    return;
  }
  op->next = *link;
  *link = op;
}

/* Attaches a listener to a number: the driver reports the end to it. */
static accrt_status_t add_listener(accrt_stream_t* stream, const accrt_request_t* request,
                                   uint64_t number, accrt_op_t** out_op) {
  accrt_mutex_lock(&stream->lock);
  accrt_op_t* op = accrt_op_take_spare(stream);
  if (op == NULL) {
    accrt_mutex_unlock(&stream->lock);
    ACCRT_TRY(accrt_op_make(stream, &op));
    accrt_mutex_lock(&stream->lock);
  }
  accrt_op_fill(stream, op, request);
  op->number = number;
  op->reported = true;
  op->after_unreported = has_unreported_work(stream);
  insert_listener(stream, op);
  accrt_stream_activate(stream);
  accrt_mutex_unlock(&stream->lock);
  *out_op = op;
  return ACCRT_OK;
}

/* The driver has refused the work: the listener is settled in its place, and does nothing. */
static void refuse_listener(accrt_stream_t* stream, accrt_op_t* op) {
  accrt_mutex_lock(&stream->lock);
  op->done = true;
  op->reported = false;
  op->kind = ACCRT_OP_NONE;
  accrt_stream_settle(stream);
}

static void trace_submit(accrt_stream_t* stream, uint64_t number, const char* name) {
  if (accrt_instance_tracing(stream->instance))
    accrt_stream_trace(stream, ACCRT_TRACE_SUBMIT, number, name, ACCRT_OK, accrt_clock_ns());
}

static accrt_status_t submit(accrt_stream_t* stream, const accrt_driver_command_t* command,
                             const accrt_stream_work_t* work, uint64_t number, accrt_op_t* op) {
  const accrt_driver_submission_t submission = submission_of(stream, work, number, op);
  return command == NULL ? stream->table->queue_execute(stream->queue, work->list, &submission)
                         : stream->table->queue_enqueue(stream->queue, command, &submission);
}

static accrt_request_t request_of(const accrt_driver_command_t* command,
                                  const accrt_stream_work_t* work) {
  return (accrt_request_t){.kind = command != NULL ? ACCRT_OP_COMMAND : ACCRT_OP_LIST,
                           .name = work->name,
                           .command = command,
                           .list = work->list,
                           .bindings = work->bindings,
                           .scalars = work->scalars,
                           .binding_count = work->binding_count,
                           .scalar_count = work->scalar_count,
                           .completion = work->completion,
                           .retained_class = work->retained_class,
                           .retained = work->retained};
}

/* By the owner of the submission lock. The listener may be over, and used again, before the
 * driver's call returns. */
static accrt_status_t submit_with_listener(accrt_stream_t* stream,
                                           const accrt_driver_command_t* command,
                                           const accrt_stream_work_t* work,
                                           const accrt_submit_held_t* held) {
  const uint64_t number = accrt_submit_number(held);
  const accrt_request_t request = request_of(command, work);
  accrt_op_t* op = NULL;
  accrt_status_t status = add_listener(stream, &request, number, &op);
  if (status == ACCRT_OK) {
    trace_submit(stream, number, work->name);
    status = submit(stream, command, work, number, op);
  }
  if (status == ACCRT_OK)
    atomic_store_explicit(&stream->reported_number, number, memory_order_relaxed);
  accrt_submit_unlock_number(stream, held, status);
  if (status != ACCRT_OK && op != NULL)
    refuse_listener(stream, op);
  return status;
}

static accrt_status_t submit_without_listener(accrt_stream_t* stream,
                                              const accrt_driver_command_t* command,
                                              const accrt_stream_work_t* work,
                                              const accrt_submit_held_t* held) {
  const uint64_t number = accrt_submit_number(held);
  accrt_status_t status = ACCRT_OK;
  if (work->retained_class != NULL &&
      !accrt_stream_retain_object(stream, work->retained_class, work->retained, number))
    status = ACCRT_ERROR_OUT_OF_MEMORY;
  if (status == ACCRT_OK)
    status = submit(stream, command, work, number, NULL);
  accrt_submit_unlock_number(stream, held, status);
  return status;
}

/* Takes the submission lock with a number and issues the work. False: it has to be deferred. */
static bool pass(accrt_stream_t* stream, const accrt_driver_command_t* command,
                 const accrt_stream_work_t* work, uint64_t* out_number,
                 accrt_status_t* out_status) {
  accrt_submit_held_t held;
  if (!accrt_submit_try_lock(stream, ACCRT_SUBMIT_ONE, &held))
    return false;
  accrt_status_t status;
  if (stream->listens || work->completion.done != NULL) {
    accrt_context_enter();
    status = submit_with_listener(stream, command, work, &held);
    accrt_context_leave();
  } else {
    status = submit_without_listener(stream, command, work, &held);
  }
  if (status != ACCRT_OK)
    accrt_device_note_status(stream->device, status);
  if (out_number != NULL)
    *out_number = accrt_submit_number(&held);
  *out_status = status;
  return true;
}

/* ---- Taking requests ---- */

typedef struct taken {
  /* only for the thread that feeds it to the driver: with another it may be gone once the lock is
   * released */
  accrt_op_t* op;
  uint64_t number;
  bool direct; /* a marker that this call issues */
  bool drain;  /* this call became the one that feeds the driver */
  bool again;  /* nothing is in the way of work any more: it need not be deferred */
} taken_t;

/* Frees an operation that was not taken. */
static void give_up(accrt_stream_t* stream, accrt_op_t* op, bool filled) {
  if (filled) {
    const accrt_op_references_t references = accrt_op_take_references(op);
    accrt_op_drop_references(&references);
  }
  accrt_op_free(stream, op);
}

/* The driver may get it now, as far as others are concerned. */
static bool can_be_direct(const accrt_stream_t* stream, const accrt_request_t* request) {
  return !accrt_stream_is_owned(stream) && stream->deferred.head == NULL &&
         request->kind != ACCRT_OP_WAIT;
}

/* Puts a filled operation into its list, with a number. False: another thread has taken the
 * submission lock meanwhile. Under the lock. */
static bool place_op(accrt_stream_t* stream, accrt_op_t* op, bool direct, taken_t* out_taken) {
  ACCRT_ASSERT_HELD(&stream->lock);
  if (direct) {
    /* What is judged here holds as long as the lock word is the same. Acquire: with what others
     * have noted in it. */
    const uint64_t seen = atomic_load_explicit(&stream->submit_lock, memory_order_acquire);
    const bool driver = needs_driver(stream, op);
    if (!claim_direct(stream, seen, driver, &op->number))
      return false;
    *out_taken = (taken_t){.op = op, .number = op->number, .direct = driver};
    stream->busy = driver;
    launch_op(stream, op, driver);
  } else {
    *out_taken = (taken_t){.op = op};
    out_taken->drain = claim_deferred(stream, &op->number);
    out_taken->number = op->number;
    stream->busy |= out_taken->drain;
    accrt_op_append(&stream->deferred, op);
  }
  accrt_stream_activate(stream);
  return true;
}

/* Numbers the request and puts it into its list. Allocates outside of the lock, and only when there
 * is nothing to reuse. */
static accrt_status_t take(accrt_stream_t* stream, const accrt_request_t* request,
                           taken_t* out_taken) {
  accrt_op_t* op = NULL;
  bool copied = !accrt_is_work(request), filled = false;
  for (;;) {
    accrt_mutex_lock(&stream->lock);
    if (stream->failed)
      break;
    const bool direct = can_be_direct(stream, request);
    out_taken->again = direct && accrt_is_work(request);
    if (out_taken->again) {
      accrt_mutex_unlock(&stream->lock);
      give_up(stream, op, filled);
      return ACCRT_OK;
    }
    if (op == NULL)
      op = accrt_op_take_spare(stream);
    if (op != NULL && copied) {
      if (!filled) {
        accrt_op_fill(stream, op, request);
        op->watch.fire = wait_fired;
        filled = true;
      }
      const bool placed = place_op(stream, op, direct, out_taken);
      accrt_mutex_unlock(&stream->lock);
      if (placed)
        return ACCRT_OK;
      continue;
    }
    accrt_mutex_unlock(&stream->lock);
    accrt_status_t status = op == NULL ? accrt_op_make(stream, &op) : ACCRT_OK;
    if (status == ACCRT_OK && !copied) {
      status = accrt_op_copy_arrays(stream, op, request);
      copied = true;
    }
    if (status != ACCRT_OK) {
      give_up(stream, op, filled);
      return status;
    }
  }
  accrt_mutex_unlock(&stream->lock);
  give_up(stream, op, filled);
  return accrt_stream_poisoned(stream);
}

/* Issues a marker, then what others have deferred meanwhile. */
static accrt_status_t feed_direct(accrt_stream_t* stream, const taken_t* taken,
                                  const accrt_request_t* request) {
  accrt_op_t* op = taken->op;
  const accrt_op_t shown = {.kind = request->kind};
  accrt_status_t status = submit_marker(stream, op);
  note_issued(stream, &shown, taken->number, status);
  accrt_mutex_lock(&stream->lock);
  if (status != ACCRT_OK) {
    accrt_device_note_status(stream->device, status);
    op->done = true;
    op->reported = false;
    if (op->kind == ACCRT_OP_RECORD && !op->after_unreported) {
      status = ACCRT_OK; /* in order all the same, only less exact in time */
    } else {
      op->kind = ACCRT_OP_NONE;
    }
  }
  const bool more = stream->deferred.head != NULL || stream->mark_wanted;
  if (!more) {
    release_submit_lock(stream);
    accrt_stream_settle(stream);
    return status;
  }
  accrt_mutex_unlock(&stream->lock);
  accrt_stream_drain(stream);
  return status;
}

/* What the owner of the queue enqueues would overtake it. */
static accrt_status_t refuse_deferral(accrt_stream_t* stream, const accrt_request_t* request) {
  ACCRT_TRY(accrt_stream_check(stream));
  return ACCRT_FAIL(NOT_READY,
                    "semaphore %" PRIu64 " has not reached %" PRIu64 ", and stream %" PRIu64
                    " is wrapped: it cannot hold work back",
                    request->semaphore->id, request->value, stream->id);
}

/* As an operation. `*out_again`: it was not taken, since the driver may get it at once. */
static accrt_status_t enqueue_operation(accrt_stream_t* stream, const accrt_request_t* request,
                                        uint64_t* out_number, bool* out_again) {
  taken_t taken = {.op = NULL};
  ACCRT_TRY(take(stream, request, &taken));
  *out_again = taken.again;
  if (taken.again)
    return ACCRT_OK;
  trace_submit(stream, taken.number, request->name);
  accrt_context_enter();
  accrt_status_t status = ACCRT_OK;
  if (taken.direct) {
    status = feed_direct(stream, &taken, request);
  } else if (taken.drain) {
    accrt_stream_drain(stream);
  } else {
    accrt_mutex_lock(&stream->lock);
    accrt_stream_settle(stream);
  }
  accrt_context_leave();
  if (out_number != NULL)
    *out_number = taken.number;
  return status;
}

accrt_status_t accrt_stream_enqueue_now(accrt_stream_t* stream,
                                        const accrt_driver_command_t* command,
                                        const accrt_stream_work_t* work, uint64_t* out_number) {
  accrt_status_t status;
  if (accrt_device_is_lost(stream->device))
    return accrt_device_fail_lost(stream->device);
  bool again = true;
  while (again) {
    if (pass(stream, command, work, out_number, &status))
      break;
    const accrt_request_t request = request_of(command, work);
    status = enqueue_operation(stream, &request, out_number, &again);
    again = again && status == ACCRT_OK;
  }
  return status;
}

accrt_status_t accrt_stream_enqueue_work(accrt_stream_t* stream,
                                         const accrt_driver_command_t* command,
                                         const accrt_stream_work_t* work, uint64_t* out_number) {
  return stream->ahead_semaphore == NULL
             ? accrt_stream_enqueue_now(stream, command, work, out_number)
             : accrt_stream_enqueue_ahead(stream, command, work, out_number);
}

accrt_status_t accrt_stream_enqueue(accrt_stream_t* stream, const accrt_request_t* request,
                                    uint64_t* out_number) {
  ACCRT_ASSERT(!accrt_is_work(request));
  if (accrt_device_is_lost(stream->device))
    return accrt_device_fail_lost(stream->device);
  const accrt_status_t status = stream->foreign && request->kind == ACCRT_OP_WAIT
                                    ? refuse_deferral(stream, request)
                                    : ACCRT_OK;
  bool again;
  return status == ACCRT_OK ? enqueue_operation(stream, request, out_number, &again) : status;
}

/* ---- On the calling thread ---- */

/* Takes an idle stream for this thread. */
static accrt_status_t take_idle(accrt_stream_t* stream, uint64_t* out_number) {
  accrt_status_t status = ACCRT_ERROR_NOT_READY;
  accrt_mutex_lock(&stream->lock);
  if (stream->failed) {
    status = ACCRT_ERROR_POISONED;
  } else if (!stream->settling && stream->in_flight.head == NULL && stream->deferred.head == NULL &&
             claim_direct(stream, atomic_load_explicit(&stream->submit_lock, memory_order_acquire),
                          true, out_number)) {
    stream->busy = true;
    stream->inline_number = *out_number;
    status = ACCRT_OK;
  }
  accrt_mutex_unlock(&stream->lock);
  return status;
}

/* Gives it back: the number has ended, all before it has too and well (`sound`), and what others
 * have enqueued meanwhile goes to the driver. The submission lock was taken under the mutex
 * with nothing in flight, and no thread settles meanwhile: only this thread writes `issued` and the
 * timeline, and no other advances the fence as far. */
static void give_idle(accrt_stream_t* stream, uint64_t number, bool sound) {
  /* Release pairs with the acquire in accrt_stream_issued. */
  atomic_store_explicit(&stream->issued, number, memory_order_release);
  if (sound)
    accrt_fence_advance_alone(stream->fence, number);
  if (accrt_timeline_advance_alone(&stream->timeline, number)) {
    accrt_context_enter();
    accrt_timeline_fire(&stream->timeline);
    accrt_context_leave();
  }
  accrt_mutex_lock(&stream->lock);
  stream->inline_number = 0;
  if (stream->deferred.head == NULL && !stream->mark_wanted) {
    release_submit_lock(stream);
    if (stream->in_flight.head == NULL &&
        !atomic_load_explicit(&stream->active, memory_order_relaxed)) {
      /* Nothing was enqueued meanwhile, so there is nothing to settle. */
      accrt_mutex_unlock(&stream->lock);
      return;
    }
    accrt_context_enter();
    accrt_stream_settle(stream);
  } else {
    accrt_mutex_unlock(&stream->lock);
    accrt_context_enter();
    accrt_stream_drain(stream);
  }
  accrt_context_leave();
}

static void trace_inline(accrt_stream_t* stream, const accrt_stream_work_t* work, uint64_t number,
                         accrt_status_t status, uint64_t begin_ns) {
  accrt_stream_trace(stream, ACCRT_TRACE_SUBMIT, number, work->name, ACCRT_OK, begin_ns);
  accrt_stream_trace(stream, ACCRT_TRACE_COMPLETE, number, work->name, status, accrt_clock_ns());
}

accrt_status_t accrt_stream_execute_inline(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                           uint64_t* out_submission) {
  uint64_t number;
  *out_submission = 0;
  if (stream->table->queue_run == NULL)
    return ACCRT_ERROR_NOT_READY;
  if (accrt_device_is_lost(stream->device))
    return accrt_device_fail_lost(stream->device);
  accrt_status_t status = take_idle(stream, &number);
  if (status == ACCRT_ERROR_POISONED)
    return accrt_stream_poisoned(stream);
  if (status != ACCRT_OK)
    return status;
  const bool tracing = accrt_instance_tracing(stream->instance) != 0;
  const uint64_t begin_ns = tracing ? accrt_clock_ns() : 0;
  const accrt_driver_submission_t submission = submission_of(stream, work, number, NULL);
  status = stream->table->queue_run(stream->queue, work->list, &submission);
  if (status != ACCRT_OK && status != ACCRT_ERROR_NOT_READY) {
    accrt_device_note_status(stream->device, status);
    accrt_error_current()->submission = number;
  }
  if (status == ACCRT_ERROR_CANCELLED) {
    accrt_mutex_lock(&stream->lock);
    accrt_stream_add_detail(stream, number, accrt_error_current());
    accrt_mutex_unlock(&stream->lock);
  }
  give_idle(stream, number,
            status != ACCRT_ERROR_NOT_READY && status != ACCRT_ERROR_POISONED &&
                status != ACCRT_ERROR_CANCELLED);
  if (tracing && status != ACCRT_ERROR_NOT_READY)
    trace_inline(stream, work, number, status, begin_ns);
  *out_submission = number;
  if (status != ACCRT_ERROR_POISONED)
    return status;
  accrt_stream_refresh(stream); /* finds what failed before */
  ACCRT_TRY(accrt_stream_check(stream));
  return status;
}
