/* runtime/drivers/common/stream.c - streams as callers see them: waits, signals, notifications, execution of lists. It may not know how
 * they are done: see stream_internal.h.
 */
#include "runtime/drivers/common/objects.h"

/* ---- The door ---- */

accrt_status_t accrt_stream_execute(accrt_stream_t* stream, const accrt_stream_work_t* work,
                                    uint64_t* out_submission) {
  *out_submission = 0;
  const accrt_request_t request = {.kind = ACCRT_OP_LIST,
                                   .name = work->name,
                                   .list = work->list,
                                   .bindings = work->bindings,
                                   .scalars = work->scalars,
                                   .binding_count = work->binding_count,
                                   .scalar_count = work->scalar_count,
                                   .completion = work->completion,
                                   .kept_class = work->kept_class,
                                   .kept = work->kept};
  return accrt_stream_enqueue(stream, &request, out_submission);
}

/* ---- Waits, signals, notifications ---- */

static accrt_status_t check_semaphore(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                      uint64_t value, const char* operation) {
  const accrt_status_t status = accrt_check_fork_in(operation);
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL || semaphore == NULL) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: %s is NULL", operation,
                      stream == NULL ? "stream" : "semaphore");
  }
  if (value == UINT64_MAX)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: UINT64_MAX is not a value", operation);
  if (semaphore->instance != stream->instance) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "%s: semaphore %" PRIu64 " is of another instance than the stream", operation,
                      semaphore->id);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_stream_wait(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                 uint64_t value) {
  accrt_status_t status = check_semaphore(stream, semaphore, value, __func__);
  if (status != ACCRT_OK)
    return status;
  const accrt_reach_t reach = accrt_timeline_reach(&semaphore->timeline, value);
  if (reach == ACCRT_REACH_FAILED)
    return accrt_semaphore_poisoned(semaphore, __func__);
  if (reach == ACCRT_REACH_REACHED)
    return accrt_stream_check(stream, __func__);
  if (accrt_semaphore_has_points(semaphore) &&
      accrt_stream_wait_native(stream, semaphore, value, &status))
    return status;
  const accrt_request_t request = {
      .kind = ACCRT_OP_WAIT, .name = __func__, .semaphore = semaphore, .value = value};
  return accrt_stream_enqueue(stream, &request, NULL);
}

accrt_status_t accrt_stream_signal(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                   uint64_t value) {
  accrt_status_t status = check_semaphore(stream, semaphore, value, __func__);
  if (status != ACCRT_OK)
    return status;
  if (accrt_timeline_failed(&semaphore->timeline))
    return accrt_semaphore_poisoned(semaphore, __func__);
  if (stream->device->caller_runs)
    atomic_store_explicit(&semaphore->on_caller, 1, memory_order_relaxed);
  if (stream->native && accrt_stream_signal_native(stream, semaphore, value, &status))
    return status;
  const accrt_request_t request = {
      .kind = ACCRT_OP_SIGNAL, .name = __func__, .semaphore = semaphore, .value = value};
  return accrt_stream_enqueue(stream, &request, NULL);
}

accrt_status_t accrt_stream_notify(accrt_stream_t* stream,
                                   void (*notify)(void* user, accrt_status_t status), void* user) {
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL || notify == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", stream == NULL ? "stream" : "notify");
  status = accrt_worker_start(&stream->instance->worker);
  if (status != ACCRT_OK)
    return status;
  const accrt_request_t request = {
      .kind = ACCRT_OP_NOTIFY, .name = __func__, .notify = notify, .notify_user = user};
  return accrt_stream_enqueue(stream, &request, NULL);
}
