/* runtime/drivers/common/event.c - events: a record is a value of a semaphore that nobody else sees, with a time.
 *
 * Each record gets the next value of the event's semaphore as long as the records come from one stream, which reaches them in
 * order; otherwise, and after a failure, a fresh semaphore. A driver's own events can take this place later. It may not know
 * how streams work.
 */
#include "runtime/core/struct.h"
#include "runtime/drivers/common/objects.h"

accrt_status_t accrt_event_create(accrt_device_t* device, uint32_t flags,
                                  accrt_event_t** out_event) {
  if (out_event == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_event is NULL");
  *out_event = NULL;
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (device == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "device is NULL");
  if ((flags & ~ACCRT_EVENT_FLAG_TIMING) != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", flags);
  if ((flags & ACCRT_EVENT_FLAG_TIMING) != 0 &&
      (device->info.flags & ACCRT_DEVICE_FLAG_TIMESTAMPS) == 0) {
    return ACCRT_FAIL(UNSUPPORTED, "%s has no timestamps", device->info.name);
  }
  void* memory;
  status = accrt_alloc(&device->instance->allocator, sizeof(accrt_event_t), &memory);
  if (status != ACCRT_OK)
    return status;
  accrt_event_t* event = memory;
  accrt_object_init(&event->object);
  accrt_mutex_init(&event->lock);
  event->device = accrt_device_retain(device);
  event->flags = flags;
  *out_event = event;
  return ACCRT_OK;
}

void accrt_event_unref(accrt_event_t* event) {
  if (event == NULL || !accrt_object_release(&event->object))
    return;
  accrt_semaphore_unref(event->semaphore);
  accrt_free(&event->device->instance->allocator, event, sizeof *event);
}

accrt_event_t* accrt_event_retain(accrt_event_t* event) {
  if (event == NULL || accrt_forked())
    return event;
  accrt_object_retain(&event->object);
  (void)accrt_device_retain(event->device);
  return event;
}

void accrt_event_release(accrt_event_t* event) {
  if (event == NULL || accrt_forked())
    return;
  accrt_device_t* device = event->device;
  accrt_event_unref(event);
  accrt_device_release(device);
}

void accrt_event_reached(accrt_event_t* event, uint64_t generation, uint64_t time_ns) {
  accrt_mutex_lock(&event->lock);
  if (event->generation == generation) {
    event->reached = true;
    event->time_ns = time_ns;
  }
  accrt_mutex_unlock(&event->lock);
}

/* ---- Recording ---- */

/* What a record changes, so that one that is refused can be undone. */
typedef struct latest {
  accrt_semaphore_t* semaphore;
  uint64_t value;
  uint64_t generation;
  uint64_t stream_id;
  uint64_t time_ns;
  bool reached;
} latest_t;

static latest_t get_latest(const accrt_event_t* event) {
  return (latest_t){event->semaphore, event->value,   event->generation,
                    event->stream_id, event->time_ns, event->reached};
}

static void set_latest(accrt_event_t* event, const latest_t* latest) {
  event->semaphore = latest->semaphore;
  event->value = latest->value;
  event->generation = latest->generation;
  event->stream_id = latest->stream_id;
  event->time_ns = latest->time_ns;
  event->reached = latest->reached;
}

static bool can_continue(accrt_event_t* event, const accrt_stream_t* stream) {
  if (event->semaphore == NULL || accrt_timeline_failed(&event->semaphore->timeline))
    return false;
  return event->stream_id == stream->id ||
         accrt_timeline_value(&event->semaphore->timeline) >= event->value;
}

/* Makes `stream` the event's latest recorder. The old state, with its reference on the semaphore, goes to `out_old`; the new
 * semaphore is retained once more for the caller. */
static accrt_status_t begin_record(accrt_event_t* event, const accrt_stream_t* stream,
                                   latest_t* out_old, latest_t* out_new) {
  accrt_semaphore_t* fresh = NULL;
  for (;;) {
    accrt_mutex_lock(&event->lock);
    const bool same = can_continue(event, stream);
    if (same || fresh != NULL) {
      *out_old = get_latest(event);
      *out_new = (latest_t){.semaphore = same ? event->semaphore : fresh,
                            .value = same ? event->value + 1 : 1,
                            .generation = event->generation + 1,
                            .stream_id = stream->id};
      /* One reference for the event, one for the caller; the old state keeps its own. */
      accrt_object_retain(&out_new->semaphore->object);
      if (same)
        accrt_object_retain(&out_new->semaphore->object);
      set_latest(event, out_new);
      accrt_mutex_unlock(&event->lock);
      if (same)
        accrt_semaphore_unref(fresh);
      return ACCRT_OK;
    }
    accrt_mutex_unlock(&event->lock);
    const accrt_status_t status = accrt_semaphore_make(stream->instance, 0, &fresh);
    if (status != ACCRT_OK)
      return status;
  }
}

/* Takes a refused record back, unless another came meanwhile. */
static void undo_record(accrt_event_t* event, const latest_t* old, const latest_t* new) {
  accrt_mutex_lock(&event->lock);
  const bool undone = event->generation == new->generation;
  if (undone)
    set_latest(event, old);
  accrt_mutex_unlock(&event->lock);
  accrt_semaphore_unref(undone ? new->semaphore : old->semaphore);
}

static accrt_status_t check_event(accrt_stream_t* stream, accrt_event_t* event,
                                  const char* operation) {
  const accrt_status_t status = accrt_check_fork_in(operation);
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL || event == NULL) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s: %s is NULL", operation,
                      stream == NULL ? "stream" : "event");
  }
  if (stream->device == event->device)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "%s: the event is of %s, the stream of %s", operation,
                    event->device->info.name, stream->device->info.name);
}

accrt_status_t accrt_stream_record(accrt_stream_t* stream, accrt_event_t* event) {
  accrt_status_t status = check_event(stream, event, __func__);
  if (status != ACCRT_OK)
    return status;
  latest_t old, new;
  status = begin_record(event, stream, &old, &new);
  if (status != ACCRT_OK)
    return status;
  const accrt_request_t request = {.kind = ACCRT_OP_RECORD,
                                   .name = __func__,
                                   .semaphore = new.semaphore,
                                   .value = new.value,
                                   .event = event,
                                   .generation = new.generation};
  status = accrt_stream_enqueue(stream, &request, NULL);
  if (status == ACCRT_OK) {
    accrt_semaphore_unref(old.semaphore);
  } else {
    undo_record(event, &old, &new);
  }
  accrt_semaphore_unref(new.semaphore); /* the caller's */
  return status;
}

/* The latest record, its semaphore retained; NULL when there is none. */
static accrt_semaphore_t* hold_latest(accrt_event_t* event, uint64_t* out_value) {
  accrt_mutex_lock(&event->lock);
  accrt_semaphore_t* semaphore = event->semaphore;
  *out_value = event->value;
  if (semaphore != NULL)
    accrt_object_retain(&semaphore->object);
  accrt_mutex_unlock(&event->lock);
  return semaphore;
}

accrt_status_t accrt_stream_wait_event(accrt_stream_t* stream, accrt_event_t* event) {
  accrt_status_t status = check_event(stream, event, __func__);
  if (status != ACCRT_OK)
    return status;
  uint64_t value;
  accrt_semaphore_t* semaphore = hold_latest(event, &value);
  if (semaphore != NULL) {
    status = accrt_stream_wait(stream, semaphore, value);
  } else {
    status = accrt_stream_check(stream, __func__);
  }
  accrt_semaphore_unref(semaphore);
  return status;
}

/* ---- Asking ---- */

accrt_status_t accrt_event_query(accrt_event_t* event) {
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (event == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "event is NULL");
  uint64_t value;
  accrt_semaphore_t* semaphore = hold_latest(event, &value);
  if (semaphore == NULL)
    return ACCRT_OK;
  const accrt_reach_t reach = accrt_timeline_reach(&semaphore->timeline, value);
  if (reach == ACCRT_REACH_FAILED) {
    status = accrt_semaphore_poisoned(semaphore, __func__);
  } else if (reach == ACCRT_REACH_PENDING) {
    status = ACCRT_FAIL(NOT_READY, "record %" PRIu64 " of the event is not reached", value);
  }
  accrt_semaphore_unref(semaphore);
  return status;
}

accrt_status_t accrt_event_synchronize(accrt_event_t* event, uint64_t timeout_ns, uint32_t policy) {
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (event == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "event is NULL");
  if (policy > ACCRT_WAIT_SPIN)
    return ACCRT_FAIL(INVALID_ARGUMENT, "policy %" PRIu32 " is not known", policy);
  uint64_t value;
  accrt_semaphore_t* semaphore = hold_latest(event, &value);
  if (semaphore == NULL)
    return ACCRT_OK;
  const accrt_timepoint_t timepoint = {semaphore, value};
  status = accrt_semaphores_wait(&timepoint, 1, 0, timeout_ns, policy, NULL);
  accrt_semaphore_unref(semaphore);
  return status;
}

/* Time of the latest record. */
static accrt_status_t get_time(accrt_event_t* event, const char* what, uint64_t* out_time_ns) {
  if ((event->flags & ACCRT_EVENT_FLAG_TIMING) == 0)
    return ACCRT_FAIL(INVALID_STATE, "the %s event was made without timing", what);
  const accrt_status_t status = accrt_event_query(event);
  if (status != ACCRT_OK)
    return status;
  accrt_mutex_lock(&event->lock);
  const bool recorded = event->semaphore != NULL, reached = event->reached;
  *out_time_ns = event->time_ns;
  accrt_mutex_unlock(&event->lock);
  if (!recorded)
    return ACCRT_FAIL(INVALID_STATE, "the %s event was never recorded", what);
  return reached
             ? ACCRT_OK
             : ACCRT_FAIL(NOT_READY, "the %s event was recorded again and is not reached", what);
}

accrt_status_t accrt_event_elapsed(accrt_event_t* start, accrt_event_t* end,
                                   int64_t* out_elapsed_ns) {
  if (out_elapsed_ns == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_elapsed_ns is NULL");
  *out_elapsed_ns = 0;
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (start == NULL || end == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", start == NULL ? "start" : "end");
  if (start->device != end->device) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "the events are of %s and %s", start->device->info.name,
                      end->device->info.name);
  }
  uint64_t start_ns, end_ns;
  status = get_time(start, "start", &start_ns);
  if (status == ACCRT_OK)
    status = get_time(end, "end", &end_ns);
  if (status == ACCRT_OK)
    *out_elapsed_ns = (int64_t)(end_ns - start_ns);
  return status;
}

accrt_status_t accrt_event_error(accrt_event_t* event, accrt_error_t* out_error) {
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (event == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "event is NULL");
  uint64_t value;
  accrt_semaphore_t* semaphore = hold_latest(event, &value);
  if (semaphore != NULL) {
    const accrt_status_t result = accrt_semaphore_error(semaphore, out_error);
    accrt_semaphore_unref(semaphore);
    return result;
  }
  const accrt_error_t none = ACCRT_ERROR_INIT;
  return accrt_struct_write("accrt_error_t", out_error, &none, sizeof none);
}
