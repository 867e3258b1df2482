/* runtime/drivers/common/stream.c - streams as callers see them: waits, signals, notifications,
 * execution of lists. It may not know how they are done: see stream_internal.h.
 */
#include <stddef.h>

#include "runtime/drivers/common/objects.h"

/* ---- Work of programs ---- */

accrt_status_t accrt_stream_execute(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                    uint64_t* out_submission) {
  *out_submission = 0;
  return accrt_stream_enqueue_work(stream, NULL, work, out_submission);
}

/* ---- Work for limited waits ---- */

/* On the runner: this thread issues what waits for `way`. */
static void open_way(accrt_job_t* job) {
  accrt_stream_t* stream = (accrt_stream_t*)((char*)job - offsetof(accrt_stream_t, way_job));
  accrt_mutex_lock(&stream->lock);
  const uint64_t value = stream->way_open;
  stream->way_asked = false;
  accrt_mutex_unlock(&stream->lock);
  accrt_context_enter();
  accrt_timeline_advance(&stream->way->timeline, value);
  accrt_context_leave();
  accrt_stream_unref(stream);
}

static accrt_status_t make_way(accrt_stream_t* stream) {
  accrt_semaphore_t* semaphore;
  ACCRT_TRY(accrt_worker_start(&accrt_upper(stream->instance)->runner));
  ACCRT_TRY(accrt_semaphore_make(stream->instance, 0, &semaphore));
  accrt_mutex_lock(&stream->lock);
  const bool first = stream->way == NULL;
  if (first)
    stream->way = semaphore;
  accrt_mutex_unlock(&stream->lock);
  if (!first)
    accrt_semaphore_unref(semaphore);
  return ACCRT_OK;
}

accrt_status_t accrt_stream_hand_over(accrt_stream_t* stream) {
  if (!accrt_upper_device(stream->device)->enqueue_runs)
    return ACCRT_OK;
  accrt_mutex_lock(&stream->lock);
  const bool have_way = stream->way != NULL;
  const uint64_t value = ++stream->way_next;
  accrt_mutex_unlock(&stream->lock);
  ACCRT_TRY(have_way ? ACCRT_OK : make_way(stream));
  const accrt_request_t request = {
      .kind = ACCRT_OP_WAIT, .name = ACCRT_THIS_FUNCTION, .semaphore = stream->way, .value = value};
  return accrt_stream_enqueue(stream, &request, NULL);
}

void accrt_stream_go(accrt_stream_t* stream) {
  if (!accrt_upper_device(stream->device)->enqueue_runs)
    return;
  accrt_mutex_lock(&stream->lock);
  const bool post = stream->way != NULL && !stream->way_asked;
  stream->way_open = stream->way_next;
  stream->way_asked |= post;
  if (post) {
    stream->way_job.run = open_way;
    accrt_object_retain(&stream->object);
  }
  accrt_mutex_unlock(&stream->lock);
  if (post)
    accrt_worker_post(&accrt_upper(stream->instance)->runner, &stream->way_job);
}

/* ---- Waits, signals, notifications ---- */

static accrt_status_t check_semaphore(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                      uint64_t value) {
  if (value == UINT64_MAX)
    return ACCRT_FAIL(INVALID_ARGUMENT, "UINT64_MAX is not a value");
  if (semaphore->instance != stream->instance) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "semaphore %" PRIu64 " is of another instance than the stream",
                      semaphore->id);
  }
  return ACCRT_OK;
}

/* ---- What tells other threads ----
 *
 * A thread that waits for what is enqueued here, and a notification, may release the stream, the
 * semaphore and the instance before the enqueue returns. */

void accrt_stream_hold(accrt_stream_t* stream) {
  (void)accrt_instance_retain(stream->instance);
  accrt_stream_ref(stream);
}

void accrt_stream_let_go(accrt_stream_t* stream) {
  accrt_instance_t* instance = stream->instance;
  accrt_stream_unref(stream);
  accrt_instance_release(instance);
}

accrt_status_t accrt_inner_stream_wait(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                       uint64_t value) {
  ACCRT_CHECK(stream, semaphore);
  ACCRT_TRY(check_semaphore(stream, semaphore, value));
  const accrt_reach_t reach = accrt_timeline_reach(&semaphore->timeline, value);
  if (reach == ACCRT_REACH_FAILED)
    return accrt_semaphore_poisoned(semaphore);
  if (reach == ACCRT_REACH_REACHED)
    return accrt_stream_check(stream);
  accrt_status_t status = ACCRT_OK;
  if (accrt_semaphore_has_points(semaphore) &&
      accrt_stream_wait_native(stream, semaphore, value, &status))
    return status;
  const accrt_request_t request = {
      .kind = ACCRT_OP_WAIT, .name = "accrt_stream_wait", .semaphore = semaphore, .value = value};
  return accrt_stream_enqueue(stream, &request, NULL);
}

accrt_status_t accrt_stream_wait(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                 uint64_t value) {
  ACCRT_ENTER_INNER(accrt_inner_stream_wait(stream, semaphore, value));
}

accrt_status_t accrt_inner_stream_signal(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                         uint64_t value) {
  ACCRT_CHECK(stream, semaphore);
  ACCRT_TRY(check_semaphore(stream, semaphore, value));
  if (accrt_timeline_failed(&semaphore->timeline))
    return accrt_semaphore_poisoned(semaphore);
  if (accrt_upper_device(stream->device)->caller_runs)
    atomic_store_explicit(&semaphore->on_caller, 1, memory_order_relaxed);
  const accrt_request_t request = {.kind = ACCRT_OP_SIGNAL,
                                   .name = "accrt_stream_signal",
                                   .semaphore = semaphore,
                                   .value = value};
  accrt_status_t status = ACCRT_OK;
  accrt_stream_hold(stream);
  accrt_object_retain(&semaphore->object);
  if (!stream->native || !accrt_stream_signal_native(stream, semaphore, value, &status))
    status = accrt_stream_enqueue(stream, &request, NULL);
  accrt_semaphore_unref(semaphore);
  accrt_stream_let_go(stream);
  return status;
}

accrt_status_t accrt_stream_signal(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                   uint64_t value) {
  ACCRT_ENTER_INNER(accrt_inner_stream_signal(stream, semaphore, value));
}

accrt_status_t accrt_inner_stream_notify(accrt_stream_t* stream,
                                         void (*notify)(void* user, accrt_status_t status),
                                         void* user) {
  ACCRT_CHECK(stream);
  if (notify == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "notify is NULL");
  ACCRT_TRY(accrt_worker_start(&accrt_upper(stream->instance)->worker));
  const accrt_request_t request = {.kind = ACCRT_OP_NOTIFY,
                                   .name = "accrt_stream_notify",
                                   .notify = notify,
                                   .notify_user = user};
  accrt_stream_hold(stream);
  const accrt_status_t status = accrt_stream_enqueue(stream, &request, NULL);
  accrt_stream_let_go(stream);
  return status;
}

accrt_status_t accrt_stream_notify(accrt_stream_t* stream,
                                   void (*notify)(void* user, accrt_status_t status), void* user) {
  ACCRT_ENTER_INNER(accrt_inner_stream_notify(stream, notify, user));
}
