/* runtime/drivers/common/point.c - values of semaphores that devices will reach: signals and waits
 * between streams of one driver without the host in between.
 *
 * A signal on a stream with native events records an event and leaves a point {value, event} with
 * the semaphore. Another stream of the driver waits for that event on the device; the host waits
 * for it on the calling thread. Nothing reports when it is reached: the semaphore is advanced when
 * a thread looks (accrt_semaphore_resolve), unless a watch needs to know: then the point is armed,
 * and a completion of the driver reports.
 *
 * The points of a semaphore are a chain: each is certain to be reached after the one before,
 * because the same stream signals both, or because the later stream waits for the earlier point. A
 * signal that does not fit the chain is done as an operation.
 *
 * Events are kept with their points and used again. It may not know how streams feed drivers beyond
 * the submission lock.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/drivers/common/objects.h"

/* Points of one semaphore before the oldest are queried. */
#define FIRST_LIMIT 64u
/* How long a thread waits for a device at a time, before it looks whether the semaphore has failed
 * meanwhile. */
#define POLLING_SLICE_NS UINT64_C(100000)
#define BLOCKING_SLICE_NS UINT64_C(10000000)
#define PAUSE_NS UINT64_C(20000)

static const accrt_driver_table_t* table_of(const accrt_device_t* device) {
  return device->table;
}

/* ---- Points and their events ---- */

static accrt_point_t* take_spare(accrt_device_t* device) {
  accrt_mutex_lock(&accrt_upper_device(device)->point_lock);
  accrt_point_t* point = accrt_upper_device(device)->spare_points;
  if (point != NULL)
    accrt_upper_device(device)->spare_points = point->next;
  accrt_mutex_unlock(&accrt_upper_device(device)->point_lock);
  return point;
}

ACCRT_RARE static accrt_status_t make_point(accrt_device_t* device, accrt_point_t** out_point) {
  accrt_point_t* point;
  ACCRT_TRY(ACCRT_NEW(&device->instance->allocator, &point));
  accrt_status_t status = table_of(device)->event_create(device->driver_device, 0, &point->event);
  if (status != ACCRT_OK) {
    accrt_device_note_status(device, status);
    accrt_free(&device->instance->allocator, point, sizeof *point);
    return status;
  }
  point->device = device;
  *out_point = point;
  return ACCRT_OK;
}

static void prepare(accrt_point_t* point) {
  accrt_object_init(&point->object);
  point->next = NULL;
  point->fence = NULL;
  point->waiter_id = 0;
  point->semaphore = NULL;
  point->armed = false;
}

accrt_status_t accrt_point_take(accrt_device_t* device, accrt_point_t** out_point) {
  accrt_point_t* point = take_spare(device);
  if (point == NULL) {
    ACCRT_TRY(make_point(device, &point));
  }
  prepare(point);
  *out_point = point;
  return ACCRT_OK;
}

/* NULL, without a record, when there is none to be had. */
static accrt_point_t* take_or_make(accrt_device_t* device) {
  accrt_point_t* point = take_spare(device);
  if (point == NULL) {
    const accrt_error_t saved = *accrt_error_current();
    if (make_point(device, &point) != ACCRT_OK)
      (void)accrt_error_restore(&saved);
  }
  if (point != NULL)
    prepare(point);
  return point;
}

void accrt_point_unref(accrt_point_t* point) {
  if (point == NULL || !accrt_object_release(&point->object))
    return;
  accrt_device_t* device = point->device;
  accrt_fence_release(point->fence);
  accrt_mutex_lock(&accrt_upper_device(device)->point_lock);
  point->next = accrt_upper_device(device)->spare_points;
  accrt_upper_device(device)->spare_points = point;
  accrt_mutex_unlock(&accrt_upper_device(device)->point_lock);
}

static void pause_a_little(void) {
  atomic_uint unshared;
  atomic_init(&unshared, 0);
  accrt_futex_wait(&unshared, 0, PAUSE_NS);
}

ACCRT_RARE void accrt_device_close_points(accrt_device_t* device) {
  /* Acquire pairs with the release in point_done. What a device has ends without the
   * host. */
  while (atomic_load_explicit(&accrt_upper_device(device)->armed, memory_order_acquire) != 0)
    pause_a_little();
  accrt_point_t* point = accrt_upper_device(device)->spare_points;
  while (point != NULL) {
    accrt_point_t* next = point->next;
    table_of(device)->event_destroy(point->event);
    accrt_free(&device->instance->allocator, point, sizeof *point);
    point = next;
  }
  accrt_upper_device(device)->spare_points = NULL;
  if (accrt_upper_device(device)->observer != NULL)
    table_of(device)->queue_destroy(accrt_upper_device(device)->observer);
  accrt_upper_device(device)->observer = NULL;
}

/* ---- The chain of a semaphore ---- */

/* Takes the first points off, up to `last` (NULL: all); linked by next. Under the lock. */
static accrt_point_t* cut(accrt_semaphore_t* semaphore, accrt_point_t* last) {
  ACCRT_ASSERT_HELD(&semaphore->point_lock);
  accrt_point_t* first = semaphore->first_point;
  uint32_t count = 0;
  accrt_point_t* rest = first;
  while (rest != NULL) {
    accrt_point_t* point = rest;
    rest = rest->next;
    count += 1;
    if (point == last) {
      point->next = NULL;
      break;
    }
  }
  semaphore->first_point = rest;
  semaphore->point_count -= count;
  if (rest == NULL) {
    semaphore->last_point = NULL;
    /* Relaxed: only a hint when it goes down. */
    atomic_store_explicit(&semaphore->has_points, 0, memory_order_relaxed);
  }
  return first;
}

ACCRT_RARE static void drop_chain(accrt_point_t* point) {
  while (point != NULL) {
    accrt_point_t* next = point->next;
    point->next = NULL;
    accrt_point_unref(point);
    point = next;
  }
}

ACCRT_RARE void accrt_semaphore_drop_points(accrt_semaphore_t* semaphore) {
  accrt_mutex_lock(&semaphore->point_lock);
  accrt_point_t* chain = cut(semaphore, NULL);
  accrt_mutex_unlock(&semaphore->point_lock);
  drop_chain(chain);
}

/* Whether `point` is still in the chain. Under the lock. */
static bool is_linked(const accrt_semaphore_t* semaphore, const accrt_point_t* point) {
  ACCRT_ASSERT_HELD(&semaphore->point_lock);
  const accrt_point_t* at = semaphore->first_point;
  while (at != NULL && at != point)
    at = at->next;
  return at != NULL;
}

accrt_point_t* accrt_semaphore_point(accrt_semaphore_t* semaphore, uint64_t value) {
  accrt_mutex_lock(&semaphore->point_lock);
  accrt_point_t* point = semaphore->first_point;
  while (point != NULL && point->value < value)
    point = point->next;
  if (point != NULL)
    accrt_object_retain(&point->object);
  accrt_mutex_unlock(&semaphore->point_lock);
  return point;
}

/* The semaphore was raised from elsewhere, and the stream's signal came too late. */
ACCRT_RARE static void fail_late(const accrt_semaphore_t* semaphore, accrt_point_t* point,
                                 uint64_t present) {
  accrt_stream_t* stream = accrt_fence_stream(point->fence);
  if (stream == NULL)
    return;
  const accrt_error_t saved = *accrt_error_current();
  (void)ACCRT_FAIL(OUT_OF_RANGE,
                   "semaphore %" PRIu64 " is at %" PRIu64
                   " already, and was to be raised to %" PRIu64,
                   semaphore->id, present, point->value);
  const accrt_error_t error = *accrt_error_current();
  (void)accrt_error_restore(&saved);
  accrt_stream_fail_now(stream, &error);
  accrt_stream_unref(stream);
}

/* The device has reached the point, and so all before it. Inside a context. */
static void reached(accrt_semaphore_t* semaphore, accrt_point_t* point) {
  accrt_mutex_lock(&semaphore->point_lock);
  if (!is_linked(semaphore, point)) {
    accrt_mutex_unlock(&semaphore->point_lock);
    return; /* another thread has seen it */
  }
  /* While a later point is in the chain, no other thread has signalled for it: what is above the
   * point now was raised from elsewhere. */
  const uint64_t present = accrt_timeline_value(&semaphore->timeline);
  accrt_point_t* chain = cut(semaphore, point);
  accrt_mutex_unlock(&semaphore->point_lock);
  if (chain->value <= present && !accrt_timeline_failed(&semaphore->timeline))
    fail_late(semaphore, chain, present);
  uint64_t before;
  (void)accrt_timeline_signal(&semaphore->timeline, point->value, &before);
  drop_chain(chain);
}

/* What stands before the point on its stream has failed; `error` says how. Inside a context. */
ACCRT_RARE static void failed(accrt_semaphore_t* semaphore, accrt_point_t* point,
                              const accrt_error_t* error) {
  accrt_mutex_lock(&semaphore->point_lock);
  const bool linked = is_linked(semaphore, point);
  accrt_mutex_unlock(&semaphore->point_lock);
  if (!linked)
    return;
  accrt_device_note_status(point->device, error->status);
  accrt_semaphore_fail_with(semaphore, error);
  accrt_semaphore_drop_points(semaphore);
  /* The stream learns it from the driver itself. */
  accrt_fence_refresh(point->fence);
}

/* Asks whether a point is reached; acts on the answer. */
static accrt_reach_t look(accrt_semaphore_t* semaphore, accrt_point_t* point) {
  accrt_status_t status = ACCRT_OK;
  const accrt_error_t saved = *accrt_error_current();
  if (!accrt_fence_passed(point->fence, point->number) || accrt_fence_is_tainted(point->fence))
    status = table_of(point->device)->event_query(point->event);
  if (status == ACCRT_ERROR_NOT_READY || status == ACCRT_ERROR_OUT_OF_MEMORY)
    return ACCRT_REACH_PENDING;
  accrt_context_enter();
  if (status == ACCRT_OK) {
    reached(semaphore, point);
  } else {
    const accrt_error_t error = *accrt_error_current();
    (void)accrt_error_restore(&saved);
    failed(semaphore, point, &error);
  }
  accrt_context_leave();
  return status == ACCRT_OK ? ACCRT_REACH_REACHED : ACCRT_REACH_FAILED;
}

static accrt_point_t* end_of_chain(accrt_semaphore_t* semaphore, bool last) {
  accrt_mutex_lock(&semaphore->point_lock);
  accrt_point_t* point = last ? semaphore->last_point : semaphore->first_point;
  if (point != NULL)
    accrt_object_retain(&point->object);
  accrt_mutex_unlock(&semaphore->point_lock);
  return point;
}

void accrt_semaphore_resolve_slow(accrt_semaphore_t* semaphore) {
  bool last = true; /* often all of them are reached */
  for (;;) {
    if (accrt_timeline_failed(&semaphore->timeline)) {
      accrt_semaphore_drop_points(semaphore);
      return;
    }
    accrt_point_t* point = end_of_chain(semaphore, last);
    if (point == NULL)
      return;
    const accrt_reach_t reach = look(semaphore, point);
    accrt_point_unref(point);
    if (reach == ACCRT_REACH_PENDING && !last)
      return;
    last = false;
  }
}

/* ---- Reporting ---- */

static void drop_armed(accrt_semaphore_t* semaphore, accrt_point_t* point) {
  accrt_device_t* device = point->device;
  accrt_semaphore_unref(semaphore);
  accrt_point_unref(point);
  /* The last touch. Release pairs with the acquire in accrt_device_close_points. */
  atomic_fetch_sub_explicit(&accrt_upper_device(device)->armed, 1, memory_order_release);
}

static void done_task(accrt_task_t* task) {
  accrt_point_t* point = (accrt_point_t*)((char*)task - offsetof(accrt_point_t, task));
  accrt_semaphore_t* semaphore = point->semaphore;
  if (point->error.status == ACCRT_OK) {
    reached(semaphore, point);
  } else {
    failed(semaphore, point, &point->error);
  }
  drop_armed(semaphore, point);
}

/* As a task: the thread may be in the middle of a call of the driver, with the observer's lock or
 * by the owner of the submission lock. */
static void point_done(void* user, accrt_status_t status, const accrt_error_t* error,
                       uint64_t time_ns) {
  (void)time_ns;
  accrt_point_t* point = user;
  if (status != ACCRT_OK && error != NULL) {
    point->error = *error;
  } else {
    point->error = (accrt_error_t)ACCRT_ERROR_INIT;
    point->error.status = status;
  }
  point->task.run = done_task;
  accrt_context_enter();
  accrt_context_post(&point->task);
  accrt_context_leave();
}

/* References for a completion; the semaphore's is taken. Under its point_lock. */
static void hold_armed(accrt_semaphore_t* semaphore, accrt_point_t* point) {
  ACCRT_ASSERT_HELD(&semaphore->point_lock);
  point->armed = true;
  point->semaphore = semaphore;
  accrt_object_retain(&point->object);
  atomic_fetch_add_explicit(&accrt_upper_device(point->device)->armed, 1, memory_order_relaxed);
}

/* The driver could not be asked: this thread waits instead. What a device has ends
 * without the host. */
static void wait_here(accrt_semaphore_t* semaphore, accrt_point_t* point) {
  const accrt_error_t saved = *accrt_error_current();
  (void)table_of(point->device)
      ->event_synchronize(point->event, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
  (void)accrt_error_restore(&saved);
  (void)look(semaphore, point);
}

/* With the device's own queue for such things: a stream may have much to do behind the point. */
static accrt_status_t observe(accrt_point_t* point) {
  accrt_device_t* device = point->device;
  const accrt_driver_completion_t completion = {point_done, point};
  accrt_status_t status = ACCRT_OK;
  accrt_mutex_lock(&accrt_upper_device(device)->observer_lock);
  if (accrt_upper_device(device)->observer == NULL)
    status = table_of(device)->queue_create(device->driver_device, 0,
                                            &accrt_upper_device(device)->observer);
  if (status == ACCRT_OK)
    status = table_of(device)->event_wait(accrt_upper_device(device)->observer, point->event);
  if (status == ACCRT_OK)
    status = table_of(device)->queue_notify(accrt_upper_device(device)->observer, completion);
  accrt_mutex_unlock(&accrt_upper_device(device)->observer_lock);
  return status;
}

/* With the references that hold_armed has taken. */
static void observe_or_wait(accrt_semaphore_t* semaphore, accrt_point_t* point) {
  const accrt_error_t saved = *accrt_error_current();
  accrt_context_enter();
  if (observe(point) != ACCRT_OK) {
    (void)accrt_error_restore(&saved);
    wait_here(semaphore, point);
    drop_armed(semaphore, point);
  }
  accrt_context_leave();
}

void accrt_semaphore_arm(accrt_semaphore_t* semaphore, uint64_t value) {
  accrt_point_t* point = accrt_semaphore_point(semaphore, value);
  if (point == NULL)
    return;
  accrt_mutex_lock(&semaphore->point_lock);
  /* Where the last reference has just gone, its owner arms the last point. */
  const bool ours =
      !point->armed && is_linked(semaphore, point) && accrt_object_try_retain(&semaphore->object);
  if (ours)
    hold_armed(semaphore, point);
  accrt_mutex_unlock(&semaphore->point_lock);
  if (ours)
    observe_or_wait(semaphore, point);
  accrt_point_unref(point);
}

bool accrt_semaphore_arm_last(accrt_semaphore_t* semaphore) {
  accrt_mutex_lock(&semaphore->point_lock);
  accrt_point_t* point = semaphore->last_point;
  const bool ours = point != NULL && !point->armed;
  if (ours) {
    accrt_object_init(&semaphore->object); /* it has none, and no other thread can give it one */
    hold_armed(semaphore, point);
    accrt_object_retain(&point->object);
  }
  accrt_mutex_unlock(&semaphore->point_lock);
  if (!ours)
    return false;
  observe_or_wait(semaphore, point);
  accrt_point_unref(point);
  return true;
}

accrt_reach_t accrt_semaphore_watch(accrt_semaphore_t* semaphore, accrt_watch_t* watch) {
  const uint64_t value = watch->value; /* the watch may be gone once it is linked */
  const accrt_reach_t reach = accrt_timeline_watch(&semaphore->timeline, watch);
  if (reach == ACCRT_REACH_PENDING && accrt_semaphore_has_points(semaphore))
    accrt_semaphore_arm(semaphore, value);
  return reach;
}

/* ---- Signals ---- */

/* Whether a signal of this stream comes certainly after all that the chain has. Under the lock. */
static bool fits(const accrt_semaphore_t* semaphore, const accrt_stream_t* stream, uint64_t value) {
  ACCRT_ASSERT_HELD(&semaphore->point_lock);
  const accrt_point_t* last = semaphore->last_point;
  if (last == NULL)
    return true;
  return value > last->value && (last->fence == stream->fence || last->waiter_id == stream->id);
}

static void append(accrt_semaphore_t* semaphore, accrt_point_t* point) {
  if (semaphore->last_point == NULL) {
    semaphore->first_point = point;
  } else {
    semaphore->last_point->next = point;
  }
  semaphore->last_point = point;
  semaphore->point_count += 1;
  /* Release pairs with the acquire in accrt_semaphore_has_points. */
  atomic_store_explicit(&semaphore->has_points, 1, memory_order_release);
}

static bool is_watched(accrt_semaphore_t* semaphore, uint64_t value) {
  bool watched = false;
  accrt_mutex_lock(&semaphore->timeline.lock);
  for (const accrt_watch_t* watch =
           atomic_load_explicit(&semaphore->timeline.watches, memory_order_relaxed);
       watch != NULL && !watched; watch = watch->next)
    watched = watch->value <= value;
  accrt_mutex_unlock(&semaphore->timeline.lock);
  return watched;
}

/* Adds the point that the stream has just recorded. `*out_armed`: it is watched, and references
 * for a completion are held. False: it does not fit. */
static bool add_point(accrt_semaphore_t* semaphore, const accrt_stream_t* stream,
                      accrt_point_t* point, bool* out_armed) {
  *out_armed = false;
  accrt_mutex_lock(&semaphore->point_lock);
  const bool added = fits(semaphore, stream, point->value) &&
                     point->value > accrt_timeline_value(&semaphore->timeline);
  if (added) {
    append(semaphore, point);
    accrt_object_retain(&point->object);
    /* A watcher from now on sees the point; one from before is seen here. */
    if (is_watched(semaphore, point->value)) {
      accrt_object_retain(&semaphore->object);
      hold_armed(semaphore, point);
      *out_armed = true;
    }
  }
  accrt_mutex_unlock(&semaphore->point_lock);
  return added;
}

/* A semaphore that is never queried would collect points without end. */
static void look_at_oldest(accrt_semaphore_t* semaphore) {
  accrt_mutex_lock(&semaphore->point_lock);
  if (semaphore->point_limit == 0)
    semaphore->point_limit = FIRST_LIMIT;
  const bool many = semaphore->point_count > semaphore->point_limit;
  accrt_mutex_unlock(&semaphore->point_lock);
  if (!many)
    return;
  accrt_semaphore_resolve(semaphore);
  accrt_mutex_lock(&semaphore->point_lock);
  semaphore->point_limit =
      semaphore->point_count * 2 > FIRST_LIMIT ? semaphore->point_count * 2 : FIRST_LIMIT;
  accrt_mutex_unlock(&semaphore->point_lock);
}

/* By the owner of the submission lock: records the point and adds it. */
static bool record_point(accrt_stream_t* stream, const accrt_submit_held_t* held,
                         accrt_semaphore_t* semaphore, accrt_point_t* point,
                         accrt_status_t* out_status) {
  const accrt_driver_table_t* table = stream->table;
  *out_status = table->event_record(stream->queue, point->event);
  if (*out_status != ACCRT_OK) {
    accrt_device_note_status(stream->device, *out_status);
    return true;
  }
  /* Behind a wait for an event, and on a queue of the caller, the stream's numbers do not say. */
  const bool unknown = stream->foreign || (held->word & ACCRT_SUBMIT_EVENT_WAIT) != 0;
  point->number = unknown ? UINT64_MAX - 1 : accrt_submit_number(held);
  accrt_fence_retain(stream->fence);
  point->fence = stream->fence;
  bool armed;
  if (!add_point(semaphore, stream, point, &armed))
    return false;
  if (!armed)
    return true;
  const accrt_driver_completion_t completion = {point_done, point};
  const accrt_error_t saved = *accrt_error_current();
  if (table->queue_notify(stream->queue, completion) != ACCRT_OK) {
    (void)accrt_error_restore(&saved);
    wait_here(semaphore, point);
    drop_armed(semaphore, point);
  }
  return true;
}

bool accrt_stream_signal_native(accrt_stream_t* stream, accrt_semaphore_t* semaphore,
                                uint64_t value, accrt_status_t* out_status) {
  accrt_mutex_lock(&semaphore->point_lock);
  const bool may = fits(semaphore, stream, value);
  accrt_mutex_unlock(&semaphore->point_lock);
  /* Behind an operation that signals it too, the device could be seen there before that one is
   * settled. */
  if (!may || value <= accrt_timeline_value(&semaphore->timeline) ||
      accrt_device_is_lost(stream->device) || accrt_stream_may_have_signal(stream, semaphore))
    return false;
  accrt_point_t* point = take_or_make(stream->device);
  if (point == NULL)
    return false;
  point->value = value;
  accrt_submit_held_t held;
  bool done = false;
  /* Completions may come from within the driver's call: what they lead to waits until the lock is
   * over. */
  accrt_context_enter();
  if (accrt_submit_try_lock(stream, 0, &held)) {
    done = record_point(stream, &held, semaphore, point, out_status);
    accrt_submit_unlock_event(stream, &held, done ? *out_status : ACCRT_OK, ACCRT_SUBMIT_EVENT);
  }
  accrt_context_leave();
  accrt_point_unref(point);
  if (done)
    look_at_oldest(semaphore);
  return done;
}

/* ---- Waits ---- */

static void note_waiter(accrt_semaphore_t* semaphore, accrt_point_t* point, uint64_t stream_id) {
  accrt_mutex_lock(&semaphore->point_lock);
  point->waiter_id = stream_id;
  accrt_mutex_unlock(&semaphore->point_lock);
}

bool accrt_stream_wait_native(accrt_stream_t* stream, accrt_semaphore_t* semaphore, uint64_t value,
                              accrt_status_t* out_status) {
  accrt_point_t* point = accrt_semaphore_point(semaphore, value);
  if (point == NULL)
    return false;
  bool done = false;
  accrt_submit_held_t held;
  if (point->fence == stream->fence && !stream->foreign) {
    /* Its own signal is before anything that follows. */
    *out_status = accrt_stream_check(stream);
    done = true;
  } else if (stream->native &&
             accrt_upper_device(stream->device)->driver ==
                 accrt_upper_device(point->device)->driver &&
             accrt_submit_try_lock(stream, 0, &held)) {
    *out_status = stream->table->event_wait(stream->queue, point->event);
    accrt_submit_unlock_event(stream, &held, *out_status, ACCRT_SUBMIT_EVENT_MASK);
    accrt_device_note_status(stream->device, *out_status);
    if (*out_status == ACCRT_OK)
      note_waiter(semaphore, point, stream->id);
    done = true;
  }
  accrt_point_unref(point);
  return done;
}

bool accrt_semaphore_wait_point(accrt_semaphore_t* semaphore, uint64_t value, uint64_t deadline_ns,
                                uint32_t policy) {
  accrt_point_t* point = accrt_semaphore_point(semaphore, value);
  if (point == NULL)
    return false;
  uint64_t slice_ns = policy == ACCRT_WAIT_BLOCK ? BLOCKING_SLICE_NS : POLLING_SLICE_NS;
  const uint64_t left_ns = accrt_deadline_left_ns(deadline_ns);
  if (slice_ns > left_ns)
    slice_ns = left_ns;
  if (slice_ns > 0) {
    const accrt_error_t saved = *accrt_error_current();
    (void)table_of(point->device)->event_synchronize(point->event, slice_ns, policy);
    (void)accrt_error_restore(&saved);
  }
  (void)look(semaphore, point);
  accrt_point_unref(point);
  return true;
}

/* ---- Events as semaphores ---- */

accrt_status_t accrt_event_snapshot(accrt_device_t* device, accrt_driver_event_t* event,
                                    accrt_semaphore_t** out_semaphore) {
  accrt_point_t* point;
  ACCRT_TRY(accrt_semaphore_make(device->instance, 0, out_semaphore));
  accrt_status_t status = accrt_point_take(device, &point);
  if (status == ACCRT_OK) {
    const accrt_driver_table_t* table = table_of(device);
    accrt_mutex_lock(&accrt_upper_device(device)->observer_lock);
    if (accrt_upper_device(device)->observer == NULL)
      status = table->queue_create(device->driver_device, 0, &accrt_upper_device(device)->observer);
    if (status == ACCRT_OK)
      status = table->event_wait(accrt_upper_device(device)->observer, event);
    if (status == ACCRT_OK)
      status = table->event_record(accrt_upper_device(device)->observer, point->event);
    accrt_mutex_unlock(&accrt_upper_device(device)->observer_lock);
    if (status == ACCRT_OK)
      status = accrt_fence_create(&device->instance->allocator, 0, &point->fence);
    if (status == ACCRT_OK) {
      point->number = UINT64_MAX; /* only the event says */
      point->value = 1;
      accrt_mutex_lock(&(*out_semaphore)->point_lock);
      append(*out_semaphore, point);
      accrt_mutex_unlock(&(*out_semaphore)->point_lock);
      return ACCRT_OK;
    }
    accrt_point_unref(point);
  }
  accrt_semaphore_unref(*out_semaphore);
  *out_semaphore = NULL;
  return status;
}
