/* runtime/drivers/common/event.c - events: the driver's own, or a value of a semaphore of their
 * own, with a time.
 *
 * Where a driver has events, a record goes to it directly. A record that the stream defers, and
 * every record without such a driver, is emulated: it gets the next value of the event's semaphore
 * as long as the records come from one stream, which reaches them in order; otherwise, and after a
 * failure, a fresh semaphore. A deferred record goes to the driver's event when all before it has
 * been issued; who waited for it before that waits for the semaphore. It may not know how streams
 * work.
 */
#include <sched.h>

#include "runtime/core/struct.h"
#include "runtime/drivers/common/objects.h"

ACCRT_RARE accrt_status_t accrt_event_create(accrt_device_t* device, uint32_t flags,
                                             accrt_event_t** out_event) {
  if (out_event != NULL)
    *out_event = NULL;
  ACCRT_ENTER(out_event, device);
  if ((flags & ~ACCRT_EVENT_FLAG_TIMING) != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", flags);
  if ((flags & ACCRT_EVENT_FLAG_TIMING) != 0 &&
      (device->info.flags & ACCRT_DEVICE_FLAG_TIMESTAMPS) == 0) {
    return ACCRT_FAIL(UNSUPPORTED, "%s has no timestamps", device->info.name);
  }
  accrt_event_t* event;
  ACCRT_TRY(ACCRT_NEW(&device->instance->allocator, &event));
  if (accrt_upper_device(device)->native_events) {
    const accrt_status_t status =
        device->table->event_create(device->driver_device, flags, &event->native);
    if (status != ACCRT_OK) {
      accrt_device_note_status(device, status);
      accrt_free(&device->instance->allocator, event, sizeof *event);
      return status;
    }
  }
  accrt_object_init(&event->object);
  accrt_mutex_init(&event->record_lock, ACCRT_LOCK_EVENT_RECORD);
  accrt_mutex_init(&event->lock, ACCRT_LOCK_EVENT);
  event->device = accrt_device_ref(device);
  event->flags = flags;
  *out_event = event;
  return ACCRT_OK;
}

ACCRT_RARE static void destroy(accrt_zombie_t* zombie) {
  accrt_event_t* event = (accrt_event_t*)zombie;
  if (event->native != NULL)
    event->device->table->event_destroy(event->native);
  accrt_free(&event->device->instance->allocator, event, sizeof *event);
}

void accrt_event_unref(accrt_event_t* event) {
  if (event == NULL || !accrt_object_release(&event->object))
    return;
  accrt_semaphore_unref(event->semaphore);
  event->zombie.destroy = destroy;
  accrt_dispose(event->device->instance, &event->zombie);
}

accrt_event_t* accrt_event_retain(accrt_event_t* event) {
  if (event == NULL || accrt_forked())
    return event;
  accrt_object_retain(&event->object);
  (void)accrt_device_ref(event->device);
  return event;
}

void accrt_event_release(accrt_event_t* event) {
  if (event == NULL || accrt_forked())
    return;
  accrt_device_t* device = event->device;
  accrt_event_unref(event);
  accrt_device_unref(device);
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
  uint32_t mode;
  bool reached;
} latest_t;

static uint32_t mode_of(const accrt_event_t* event) {
  /* Acquire pairs with the release in set_mode: what was recorded before is seen. */
  return atomic_load_explicit(&event->mode, memory_order_acquire);
}

static void set_mode(accrt_event_t* event, uint32_t mode) {
  atomic_store_explicit(&event->mode, mode, memory_order_release);
}

static latest_t get_latest(const accrt_event_t* event) {
  return (latest_t){event->semaphore, event->value,   event->generation, event->stream_id,
                    event->time_ns,   mode_of(event), event->reached};
}

static void set_latest(accrt_event_t* event, const latest_t* latest) {
  event->semaphore = latest->semaphore;
  event->value = latest->value;
  event->generation = latest->generation;
  event->stream_id = latest->stream_id;
  event->time_ns = latest->time_ns;
  event->reached = latest->reached;
  set_mode(event, latest->mode);
}

static bool can_continue(accrt_event_t* event, const accrt_stream_t* stream) {
  if (event->semaphore == NULL || accrt_timeline_failed(&event->semaphore->timeline))
    return false;
  return event->stream_id == stream->id ||
         accrt_timeline_value(&event->semaphore->timeline) >= event->value;
}

/* Makes `stream` the event's latest recorder. The old state, with its reference on the semaphore,
 * goes to `out_old`; the new semaphore is retained once more for the caller. */
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
                            .stream_id = stream->id,
                            .mode = ACCRT_EVENT_EMULATED};
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
    ACCRT_TRY(accrt_semaphore_make(stream->instance, 0, &fresh));
  }
}

/* Takes a refused record back, unless another came meanwhile. */
ACCRT_RARE static void undo_record(accrt_event_t* event, const latest_t* old, const latest_t* new) {
  accrt_mutex_lock(&event->lock);
  const bool undone = event->generation == new->generation;
  if (undone)
    set_latest(event, old);
  accrt_mutex_unlock(&event->lock);
  accrt_semaphore_unref(undone ? new->semaphore : old->semaphore);
}

/* Gives the record to the driver. False: the stream defers, or the driver has no events. */
static bool record_native(accrt_stream_t* stream, accrt_event_t* event,
                          accrt_status_t* out_status) {
  accrt_submit_held_t held;
  if (event->native == NULL || !stream->native || !accrt_submit_try_lock(stream, 0, &held))
    return false;
  accrt_semaphore_t* old = NULL;
  accrt_mutex_lock(&event->record_lock);
  *out_status = stream->table->event_record(stream->queue, event->native);
  if (*out_status == ACCRT_OK) {
    accrt_mutex_lock(&event->lock);
    old = event->semaphore;
    event->semaphore = NULL;
    event->generation += 1;
    event->reached = false;
    event->error.status = ACCRT_OK;
    set_mode(event, ACCRT_EVENT_NATIVE);
    accrt_mutex_unlock(&event->lock);
  }
  accrt_mutex_unlock(&event->record_lock);
  accrt_submit_unlock_event(stream, &held, *out_status, ACCRT_SUBMIT_EVENT);
  accrt_device_note_status(stream->device, *out_status);
  accrt_semaphore_unref(old);
  return true;
}

/* The driver gets the record if it is still the latest one. Under the record lock. */
static bool give_late(accrt_event_t* event, uint64_t generation, accrt_stream_t* stream) {
  ACCRT_ASSERT_HELD(&event->record_lock);
  accrt_mutex_lock(&event->lock);
  const bool latest = event->generation == generation;
  accrt_mutex_unlock(&event->lock);
  return latest && stream->table->event_record(stream->queue, event->native) == ACCRT_OK;
}

void accrt_event_record_late(accrt_event_t* event, uint64_t generation, accrt_stream_t* stream) {
  if (event->native == NULL || !stream->native)
    return;
  const accrt_error_t saved = *accrt_error_current();
  accrt_mutex_lock(&event->record_lock);
  const bool given = give_late(event, generation, stream);
  accrt_mutex_lock(&event->lock);
  if (given && event->generation == generation) {
    event->error.status = ACCRT_OK;
    set_mode(event, ACCRT_EVENT_NATIVE);
  }
  accrt_mutex_unlock(&event->lock);
  accrt_mutex_unlock(&event->record_lock);
  if (!given)
    (void)accrt_error_restore(&saved); /* the semaphore has it */
}

/* `across`: an event of another device of the driver will do. */
static accrt_status_t check_event(accrt_stream_t* stream, accrt_event_t* event, bool across) {
  if (stream->device == event->device ||
      (across && event->native != NULL &&
       accrt_upper_device(stream->device)->driver == accrt_upper_device(event->device)->driver))
    return ACCRT_OK;
  return accrt_device_check_same("event", event->device, "stream", stream->device);
}

static accrt_status_t record(accrt_stream_t* stream, accrt_event_t* event) {
  accrt_status_t status = check_event(stream, event, false);
  if (status != ACCRT_OK || record_native(stream, event, &status))
    return status;
  latest_t old, new;
  ACCRT_TRY(begin_record(event, stream, &old, &new));
  const accrt_request_t request = {.kind = ACCRT_OP_RECORD,
                                   .name = "accrt_stream_record",
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

/* A thread that waits for the event may release both before this function returns. */
accrt_status_t accrt_stream_record(accrt_stream_t* stream, accrt_event_t* event) {
  ACCRT_ENTER(stream, event);
  accrt_stream_hold(stream);
  accrt_object_retain(&event->object);
  const accrt_status_t status = record(stream, event);
  accrt_event_unref(event);
  accrt_stream_let_go(stream);
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

/* Lets the driver's queue wait. False: the stream defers, or is of a device that cannot. */
static bool wait_native(accrt_stream_t* stream, accrt_event_t* event, accrt_status_t* out_status) {
  accrt_submit_held_t held;
  if (!stream->native)
    return false;
  while (!accrt_submit_try_lock(stream, 0, &held)) {
    if (!stream->foreign)
      return false;
    /* Nothing is deferred there: another thread owns the submission lock, or the stream has
     * failed. */
    *out_status = accrt_stream_check(stream);
    if (*out_status != ACCRT_OK)
      return true;
    (void)sched_yield();
  }
  *out_status = stream->table->event_wait(stream->queue, event->native);
  accrt_submit_unlock_event(stream, &held, *out_status, ACCRT_SUBMIT_EVENT_MASK);
  accrt_device_note_status(stream->device, *out_status);
  return true;
}

/* Behind work that is deferred: for the record as it is now, whatever comes later. */
static accrt_status_t wait_for_snapshot(accrt_stream_t* stream, accrt_event_t* event) {
  accrt_semaphore_t* semaphore;
  ACCRT_TRY(accrt_stream_check(stream));
  ACCRT_TRY(accrt_event_snapshot(event->device, event->native, &semaphore));
  accrt_status_t status = accrt_inner_stream_wait(stream, semaphore, 1);
  accrt_semaphore_unref(semaphore);
  return status;
}

accrt_status_t accrt_stream_wait_event(accrt_stream_t* stream, accrt_event_t* event) {
  ACCRT_ENTER(stream, event);
  ACCRT_TRY(check_event(stream, event, true));
  accrt_status_t status = ACCRT_OK;
  if (mode_of(event) == ACCRT_EVENT_NATIVE)
    return wait_native(stream, event, &status) ? status : wait_for_snapshot(stream, event);
  uint64_t value;
  accrt_semaphore_t* semaphore = hold_latest(event, &value);
  if (semaphore != NULL) {
    status = accrt_inner_stream_wait(stream, semaphore, value);
  } else {
    status = accrt_stream_check(stream);
  }
  accrt_semaphore_unref(semaphore);
  return status;
}

/* ---- Asking ---- */

static const accrt_driver_table_t* table_of(const accrt_event_t* event) {
  return event->device->table;
}

static accrt_status_t not_reached(accrt_status_t status, uint64_t timeout_ns) {
  (void)ACCRT_FAIL_STATUS(status, "the latest record of the event is not reached");
  if (status == ACCRT_ERROR_TIMEOUT)
    accrt_error_prefix("waited %" PRIu64 " ns", timeout_ns);
  return status;
}

/* What the driver says of the latest record, for this event's callers. */
static accrt_status_t conclude(accrt_event_t* event, accrt_status_t status, uint64_t timeout_ns) {
  if (status == ACCRT_OK || status == ACCRT_ERROR_OUT_OF_MEMORY)
    return status;
  if (status == ACCRT_ERROR_NOT_READY || timeout_ns == 0)
    return not_reached(ACCRT_ERROR_NOT_READY, 0);
  if (status == ACCRT_ERROR_TIMEOUT)
    return not_reached(status, timeout_ns);
  const accrt_error_t cause = *accrt_error_current();
  accrt_device_note_status(event->device, status);
  accrt_mutex_lock(&event->lock);
  event->error = cause;
  accrt_mutex_unlock(&event->lock);
  return accrt_record_poison("the event", 0, &cause);
}

/* A record that was deferred is reached when its stream says so; the driver's event may be an
 * instant behind. */
static accrt_status_t ask_native(accrt_event_t* event) {
  accrt_mutex_lock(&event->lock);
  const bool reached = event->reached;
  accrt_mutex_unlock(&event->lock);
  const accrt_status_t status = table_of(event)->event_query(event->native);
  if (status != ACCRT_ERROR_NOT_READY || !reached)
    return status;
  return table_of(event)->event_synchronize(event->native, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN);
}

static accrt_status_t query_native(accrt_event_t* event) {
  return conclude(event, ask_native(event), ACCRT_TIMEOUT_INFINITE);
}

static accrt_status_t query(accrt_event_t* event) {
  if (mode_of(event) == ACCRT_EVENT_NATIVE)
    return query_native(event);
  uint64_t value;
  accrt_semaphore_t* semaphore = hold_latest(event, &value);
  if (semaphore == NULL)
    return ACCRT_OK;
  const accrt_reach_t reach = accrt_timeline_reach(&semaphore->timeline, value);
  accrt_status_t status = ACCRT_OK;
  if (reach == ACCRT_REACH_FAILED) {
    status = accrt_record_poison("the event", 0, &semaphore->error);
  } else if (reach == ACCRT_REACH_PENDING) {
    status = not_reached(ACCRT_ERROR_NOT_READY, 0);
  }
  accrt_semaphore_unref(semaphore);
  return status;
}

accrt_status_t accrt_event_query(accrt_event_t* event) {
  ACCRT_ENTER(event);
  return query(event);
}

accrt_status_t accrt_event_synchronize(accrt_event_t* event, uint64_t timeout_ns, uint32_t policy) {
  ACCRT_ENTER(event);
  if (policy > ACCRT_WAIT_SPIN)
    return ACCRT_FAIL(INVALID_ARGUMENT, "policy %" PRIu32 " is not known", policy);
  if (mode_of(event) == ACCRT_EVENT_NATIVE) {
    const accrt_status_t status =
        table_of(event)->event_synchronize(event->native, timeout_ns, policy);
    return conclude(event, status, timeout_ns);
  }
  uint64_t value;
  accrt_semaphore_t* semaphore = hold_latest(event, &value);
  if (semaphore == NULL)
    return ACCRT_OK;
  const accrt_timepoint_t timepoint = {semaphore, value};
  accrt_status_t status = accrt_semaphores_wait(&timepoint, 1, 0, timeout_ns, policy, NULL);
  /* The semaphore is the event's own: callers do not know it. */
  if (status == ACCRT_ERROR_POISONED)
    status = accrt_record_poison("the event", 0, &semaphore->error);
  if (status == ACCRT_ERROR_TIMEOUT || status == ACCRT_ERROR_NOT_READY)
    status = not_reached(status, timeout_ns);
  accrt_semaphore_unref(semaphore);
  return status;
}

/* Time of the latest record. */
ACCRT_RARE static accrt_status_t get_time(accrt_event_t* event, const char* what,
                                          uint64_t* out_time_ns) {
  if ((event->flags & ACCRT_EVENT_FLAG_TIMING) == 0)
    return ACCRT_FAIL(INVALID_STATE, "the %s event was made without timing", what);
  ACCRT_TRY(query(event));
  accrt_mutex_lock(&event->lock);
  const bool recorded = mode_of(event) != ACCRT_EVENT_NEVER, reached = event->reached;
  *out_time_ns = event->time_ns;
  accrt_mutex_unlock(&event->lock);
  if (!recorded)
    return ACCRT_FAIL(INVALID_STATE, "the %s event was never recorded", what);
  return reached
             ? ACCRT_OK
             : ACCRT_FAIL(NOT_READY, "the %s event was recorded again and is not reached", what);
}

static accrt_status_t elapsed_native(accrt_event_t* start, accrt_event_t* end,
                                     int64_t* out_elapsed_ns) {
  if (((start->flags & end->flags) & ACCRT_EVENT_FLAG_TIMING) == 0)
    return ACCRT_FAIL(INVALID_STATE, "the %s event was made without timing",
                      (start->flags & ACCRT_EVENT_FLAG_TIMING) == 0 ? "start" : "end");
  ACCRT_TRY(query_native(start));
  ACCRT_TRY(query_native(end));
  return table_of(start)->event_elapsed(start->native, end->native, out_elapsed_ns);
}

ACCRT_RARE accrt_status_t accrt_event_elapsed(accrt_event_t* start, accrt_event_t* end,
                                              int64_t* out_elapsed_ns) {
  if (out_elapsed_ns != NULL)
    *out_elapsed_ns = 0;
  ACCRT_ENTER(out_elapsed_ns, start, end);
  if (start->device != end->device) {
    return accrt_device_check_same("start", start->device, "end", end->device);
  }
  if (mode_of(start) == ACCRT_EVENT_NATIVE && mode_of(end) == ACCRT_EVENT_NATIVE)
    return elapsed_native(start, end, out_elapsed_ns);
  uint64_t start_ns, end_ns;
  accrt_status_t status = get_time(start, "start", &start_ns);
  if (status == ACCRT_OK)
    status = get_time(end, "end", &end_ns);
  if (status == ACCRT_OK)
    *out_elapsed_ns = (int64_t)(end_ns - start_ns);
  return status;
}

ACCRT_RARE static accrt_status_t error_of_native(accrt_event_t* event, accrt_error_t* out_error) {
  const accrt_error_t saved = *accrt_error_current();
  (void)query_native(event);
  (void)accrt_error_restore(&saved);
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_mutex_lock(&event->lock);
  if (event->error.status != ACCRT_OK)
    error = event->error;
  accrt_mutex_unlock(&event->lock);
  return accrt_struct_write("accrt_error_t", out_error, &error, sizeof error);
}

ACCRT_RARE accrt_status_t accrt_event_error(accrt_event_t* event, accrt_error_t* out_error) {
  ACCRT_ENTER(event);
  if (mode_of(event) == ACCRT_EVENT_NATIVE)
    return error_of_native(event, out_error);
  uint64_t value;
  accrt_semaphore_t* semaphore = hold_latest(event, &value);
  if (semaphore != NULL) {
    const accrt_status_t result = accrt_inner_semaphore_error(semaphore, out_error);
    accrt_semaphore_unref(semaphore);
    return result;
  }
  const accrt_error_t none = ACCRT_ERROR_INIT;
  return accrt_struct_write("accrt_error_t", out_error, &none, sizeof none);
}
