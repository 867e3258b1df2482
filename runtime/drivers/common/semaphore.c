/* runtime/drivers/common/semaphore.c - timeline semaphores. It may not know streams: they watch the
 * timeline inside. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/core/struct.h"
#include "runtime/drivers/common/objects.h"

/* Timepoints of one wait that need no allocation. */
#define INLINE_WATCHES 8u

/* ---- Making and failing, also for events and streams ---- */

accrt_status_t accrt_semaphore_make(accrt_instance_t* instance, uint64_t initial_value,
                                    accrt_semaphore_t** out_semaphore) {
  *out_semaphore = NULL;
  accrt_semaphore_t* semaphore;
  ACCRT_TRY(ACCRT_NEW(&instance->allocator, &semaphore));
  accrt_object_init(&semaphore->object);
  atomic_init(&semaphore->waits, 1);
  semaphore->instance = instance;
  semaphore->id = accrt_instance_next_id(instance);
  accrt_timeline_init(&semaphore->timeline, initial_value);
  accrt_mutex_init(&semaphore->point_lock, ACCRT_LOCK_POINT);
  *out_semaphore = semaphore;
  return ACCRT_OK;
}

void accrt_semaphore_ref_wait(accrt_semaphore_t* semaphore) {
  /* Relaxed: the caller holds a reference already. */
  const unsigned before = atomic_fetch_add_explicit(&semaphore->waits, 1, memory_order_relaxed);
  ACCRT_ASSERT(before != 0);
}

void accrt_semaphore_unref_wait(accrt_semaphore_t* semaphore) {
  /* Acq_rel pairs with itself: every user's writes happen before the free. */
  if (atomic_fetch_sub_explicit(&semaphore->waits, 1, memory_order_acq_rel) != 1)
    return;
  accrt_semaphore_drop_points(semaphore);
  accrt_free(&semaphore->instance->allocator, semaphore, sizeof *semaphore);
}

typedef struct store {
  accrt_semaphore_t* semaphore;
  const accrt_error_t* error;
} store_t;

static void store_error(void* user) {
  const store_t* store = user;
  store->semaphore->error = *store->error;
}

void accrt_semaphore_fail_with(accrt_semaphore_t* semaphore, const accrt_error_t* error) {
  store_t store = {semaphore, error};
  (void)accrt_timeline_fail(&semaphore->timeline, store_error, &store);
}

/* Nothing can raise it any more, and streams wait for it: their record says why. */
static void fail_left(accrt_semaphore_t* semaphore) {
  const accrt_error_t saved = *accrt_error_current();
  (void)ACCRT_FAIL(CANCELLED,
                   "semaphore %" PRIu64 " is at %" PRIu64
                   ", and nothing can raise it any more: its last handle and all signals of "
                   "streams are gone",
                   semaphore->id, accrt_timeline_value(&semaphore->timeline));
  const accrt_error_t error = *accrt_error_current();
  (void)accrt_error_restore(&saved);
  accrt_semaphore_fail_with(semaphore, &error);
}

void accrt_semaphore_unref(accrt_semaphore_t* semaphore) {
  if (semaphore == NULL || !accrt_object_release(&semaphore->object))
    return;
  accrt_context_enter();
  /* Relaxed: a wait that is gone by now, or goes meanwhile, needs no notice, and no
   * thread is left that could begin one. */
  const bool waited = atomic_load_explicit(&semaphore->waits, memory_order_relaxed) > 1;
  if (waited && accrt_semaphore_arm_last(semaphore)) {
    accrt_context_leave();
    return;
  }
  /* Exported descriptors may still watch it: they become readable and are let go. */
  if (waited)
    fail_left(semaphore);
  else
    (void)accrt_timeline_fail(&semaphore->timeline, NULL, NULL);
  accrt_context_leave();
  accrt_semaphore_unref_wait(semaphore);
}

/* The record of another thread's failure as this one's: what failed here is in front, what failed
 * first behind. */
accrt_status_t accrt_record_poison(const char* what, uint64_t id, const accrt_error_t* origin) {
  const accrt_error_t cause = *origin;
  char who[64];
  if (id != 0) {
    (void)snprintf(who, sizeof who, "%s %" PRIu64, what, id);
  } else {
    (void)snprintf(who, sizeof who, "%s", what);
  }
  (void)accrt_error_record_driver(ACCRT_ERROR_POISONED, cause.driver_code, cause.driver_name,
                                  accrt_error_operation(), cause.source_file, cause.source_line,
                                  "%s failed: %s in %s: %s", who, accrt_status_name(cause.status),
                                  cause.operation, cause.message);
  accrt_error_current()->submission = cause.submission;
  return ACCRT_ERROR_POISONED;
}

accrt_status_t accrt_semaphore_poisoned(accrt_semaphore_t* semaphore) {
  return accrt_record_poison("semaphore", semaphore->id, &semaphore->error);
}

accrt_status_t accrt_stream_poisoned(accrt_stream_t* stream) {
  accrt_mutex_lock(&stream->lock);
  const accrt_error_t cause = stream->error;
  accrt_mutex_unlock(&stream->lock);
  (void)accrt_record_poison("stream", stream->id, &cause);
  if (!accrt_device_is_lost(stream->device))
    return ACCRT_ERROR_POISONED;
  accrt_error_current()->status = ACCRT_ERROR_DEVICE_LOST;
  return ACCRT_ERROR_DEVICE_LOST;
}

/* ---- Public ---- */

accrt_status_t accrt_semaphore_create(accrt_instance_t* instance, uint64_t initial_value,
                                      accrt_semaphore_t** out_semaphore) {
  if (out_semaphore != NULL)
    *out_semaphore = NULL;
  ACCRT_ENTER(out_semaphore, instance);
  if (initial_value == UINT64_MAX)
    return ACCRT_FAIL(INVALID_ARGUMENT, "UINT64_MAX is not a value");
  accrt_status_t status = accrt_semaphore_make(instance, initial_value, out_semaphore);
  if (status == ACCRT_OK)
    (void)accrt_instance_retain(instance);
  return status;
}

const accrt_instance_t* accrt_semaphore_instance(const accrt_semaphore_t* semaphore) {
  return semaphore->instance;
}

accrt_semaphore_t* accrt_semaphore_retain(accrt_semaphore_t* semaphore) {
  if (semaphore == NULL || accrt_forked())
    return semaphore;
  accrt_object_retain(&semaphore->object);
  (void)accrt_instance_retain(semaphore->instance);
  return semaphore;
}

void accrt_semaphore_release(accrt_semaphore_t* semaphore) {
  if (semaphore == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = semaphore->instance;
  accrt_semaphore_unref(semaphore);
  accrt_instance_release(instance);
}

accrt_status_t accrt_inner_semaphore_query(accrt_semaphore_t* semaphore, uint64_t* out_value) {
  if (out_value != NULL)
    *out_value = 0;
  ACCRT_CHECK(out_value, semaphore);
  accrt_semaphore_resolve(semaphore);
  const bool failed = accrt_timeline_failed(&semaphore->timeline);
  *out_value = accrt_timeline_value(&semaphore->timeline);
  return failed ? accrt_semaphore_poisoned(semaphore) : ACCRT_OK;
}

accrt_status_t accrt_semaphore_query(accrt_semaphore_t* semaphore, uint64_t* out_value) {
  ACCRT_ENTER_INNER(accrt_inner_semaphore_query(semaphore, out_value));
}

accrt_status_t accrt_semaphore_signal(accrt_semaphore_t* semaphore, uint64_t value) {
  ACCRT_ENTER(semaphore);
  if (value == UINT64_MAX)
    return ACCRT_FAIL(INVALID_ARGUMENT, "UINT64_MAX is not a value");
  uint64_t present;
  accrt_semaphore_resolve(semaphore); /* what devices have reached by now counts */
  accrt_context_enter();
  accrt_status_t status = accrt_timeline_signal(&semaphore->timeline, value, &present);
  accrt_context_leave();
  if (status == ACCRT_ERROR_POISONED)
    return accrt_semaphore_poisoned(semaphore);
  if (status == ACCRT_ERROR_OUT_OF_RANGE) {
    return ACCRT_FAIL(OUT_OF_RANGE, "value %" PRIu64 " is not above the present %" PRIu64, value,
                      present);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_inner_semaphore_fail(accrt_semaphore_t* semaphore, accrt_status_t status,
                                          const char* message) {
  ACCRT_CHECK(semaphore);
  if (status == ACCRT_OK)
    return ACCRT_FAIL(INVALID_ARGUMENT, "ACCRT_OK is no failure");
  /* A successful call leaves the thread's record alone. */
  const accrt_error_t saved = *accrt_error_current();
  (void)ACCRT_FAIL_STATUS(status, "%s", message != NULL ? message : accrt_status_text(status));
  const accrt_error_t error = *accrt_error_current();
  (void)accrt_error_restore(&saved);
  accrt_context_enter();
  accrt_semaphore_fail_with(semaphore, &error);
  accrt_context_leave();
  return ACCRT_OK;
}

accrt_status_t accrt_semaphore_fail(accrt_semaphore_t* semaphore, accrt_status_t status,
                                    const char* message) {
  ACCRT_ENTER_INNER(accrt_inner_semaphore_fail(semaphore, status, message));
}

accrt_status_t accrt_inner_semaphore_error(accrt_semaphore_t* semaphore, accrt_error_t* out_error) {
  ACCRT_CHECK(semaphore);
  const accrt_error_t none = ACCRT_ERROR_INIT;
  accrt_semaphore_resolve(semaphore);
  const bool failed = accrt_timeline_failed(&semaphore->timeline);
  return accrt_struct_write("accrt_error_t", out_error, failed ? &semaphore->error : &none,
                            sizeof none);
}

accrt_status_t accrt_semaphore_error(accrt_semaphore_t* semaphore, accrt_error_t* out_error) {
  ACCRT_ENTER_INNER(accrt_inner_semaphore_error(semaphore, out_error));
}

/* ---- Waiting ---- */

static accrt_status_t conclude(const accrt_timepoint_t* timepoints, uint32_t count,
                               accrt_reach_t reach, uint32_t index, uint64_t timeout_ns) {
  if (reach == ACCRT_REACH_REACHED)
    return ACCRT_OK;
  if (reach == ACCRT_REACH_FAILED)
    return accrt_semaphore_poisoned(timepoints[index].semaphore);
  const accrt_semaphore_t* semaphore = timepoints[0].semaphore;
  const uint64_t value = atomic_load_explicit(&semaphore->timeline.value, memory_order_relaxed);
  const accrt_status_t status =
      ACCRT_FAIL_STATUS(timeout_ns == 0 ? ACCRT_ERROR_NOT_READY : ACCRT_ERROR_TIMEOUT,
                        "semaphore %" PRIu64 " is at %" PRIu64 " of %" PRIu64, semaphore->id, value,
                        timepoints[0].value);
  if (count > 1)
    accrt_error_prefix("%" PRIu32 " timepoints, the first", count);
  if (timeout_ns != 0)
    accrt_error_prefix("waited %" PRIu64 " ns", timeout_ns);
  return status;
}

static accrt_status_t check_timepoints(const accrt_timepoint_t* timepoints, uint32_t count,
                                       uint32_t policy) {
  if (policy > ACCRT_WAIT_SPIN)
    return ACCRT_FAIL(INVALID_ARGUMENT, "policy %" PRIu32 " is not known", policy);
  if (count > 0 && timepoints == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "timepoints is NULL");
  for (uint32_t i = 0; i < count; ++i) {
    if (timepoints[i].semaphore == NULL)
      return ACCRT_FAIL(INVALID_ARGUMENT, "timepoints[%" PRIu32 "].semaphore is NULL", i);
    if (timepoints[i].value == UINT64_MAX)
      return ACCRT_FAIL(INVALID_ARGUMENT, "timepoint %" PRIu32 ": UINT64_MAX is not a value", i);
    if (timepoints[i].semaphore->instance != timepoints[0].semaphore->instance) {
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "timepoint %" PRIu32 " is of another instance than the first", i);
    }
  }
  return ACCRT_OK;
}

/* What a wait has to look after where devices signal without telling. */
typedef struct watched {
  const accrt_timepoint_t* timepoints;
  uint32_t count;
} watched_t;

static void look(void* user) {
  const watched_t* watched = user;
  for (uint32_t i = 0; i < watched->count; ++i)
    accrt_semaphore_resolve(watched->timepoints[i].semaphore);
}

static void arm(void* user) {
  const watched_t* watched = user;
  for (uint32_t i = 0; i < watched->count; ++i) {
    if (accrt_semaphore_has_points(watched->timepoints[i].semaphore))
      accrt_semaphore_arm(watched->timepoints[i].semaphore, watched->timepoints[i].value);
  }
}

/* One timepoint that a device will reach: this thread waits for the device itself. Returns when
 * none covers it any more, or the time is over. */
static void wait_for_device(const accrt_timepoint_t* timepoint, uint64_t deadline_ns,
                            uint32_t policy) {
  accrt_timeline_t* timeline = &timepoint->semaphore->timeline;
  while (accrt_semaphore_has_points(timepoint->semaphore) &&
         accrt_timeline_reach(timeline, timepoint->value) == ACCRT_REACH_PENDING) {
    if (!accrt_semaphore_wait_point(timepoint->semaphore, timepoint->value, deadline_ns, policy) ||
        accrt_deadline_left_ns(deadline_ns) == 0)
      return;
  }
}

accrt_status_t accrt_semaphores_wait(const accrt_timepoint_t* timepoints, uint32_t count,
                                     uint32_t wait_any, uint64_t timeout_ns, uint32_t policy,
                                     uint32_t* out_index) {
  accrt_status_t status = ACCRT_OK;
  if (count == 0)
    return wait_any ? ACCRT_FAIL(INVALID_ARGUMENT, "any of no timepoints") : ACCRT_OK;
  accrt_instance_t* instance = timepoints[0].semaphore->instance;
  accrt_wait_item_t few_items[INLINE_WATCHES];
  accrt_waiter_watch_t few_watches[INLINE_WATCHES];
  accrt_wait_item_t* items = few_items;
  accrt_waiter_watch_t* watches = few_watches;
  void *many_items = NULL, *many_watches = NULL;
  uint32_t index = 0;
  if (count > INLINE_WATCHES) {
    status = accrt_alloc_array(&instance->allocator, count, sizeof *items, &many_items);
    if (status == ACCRT_OK)
      status = accrt_alloc_array(&instance->allocator, count, sizeof *watches, &many_watches);
    if (status != ACCRT_OK)
      goto out;
    items = many_items;
    watches = many_watches;
  }
  for (uint32_t i = 0; i < count; ++i)
    items[i] = (accrt_wait_item_t){&timepoints[i].semaphore->timeline, timepoints[i].value};
  uint64_t left_ns = timeout_ns;
  if (count == 1 && accrt_semaphore_has_points(timepoints[0].semaphore)) {
    const uint64_t deadline_ns = accrt_deadline_ns(timeout_ns);
    wait_for_device(&timepoints[0], deadline_ns, policy);
    left_ns = accrt_deadline_left_ns(deadline_ns);
  }
  watched_t watched = {timepoints, count};
  const accrt_wait_t wait = {.items = items,
                             .count = count,
                             .any = wait_any != 0,
                             .timeout_ns = left_ns,
                             .policy = policy,
                             .watches = watches,
                             .progress = accrt_instance_progress(instance, timeout_ns),
                             .progress_user = instance,
                             .look = look,
                             .watched = arm,
                             .look_user = &watched};
  const accrt_reach_t reach = accrt_wait(&wait, &index);
  status = conclude(timepoints, count, reach, index, timeout_ns);
  if (status == ACCRT_OK && out_index != NULL)
    *out_index = index;
out:
  accrt_free_array(&instance->allocator, many_watches, count, sizeof *watches);
  accrt_free_array(&instance->allocator, many_items, count, sizeof *items);
  accrt_instance_reap_zombies(instance);
  return status;
}

accrt_status_t accrt_semaphore_wait_many(const accrt_timepoint_t* timepoints, uint32_t count,
                                         uint32_t wait_any, uint64_t timeout_ns, uint32_t policy,
                                         uint32_t* out_index) {
  if (out_index != NULL)
    *out_index = 0;
  ACCRT_TRY(accrt_check_fork());
  ACCRT_TRY(check_timepoints(timepoints, count, policy));
  return accrt_semaphores_wait(timepoints, count, wait_any, timeout_ns, policy, out_index);
}

accrt_status_t accrt_semaphore_wait(accrt_semaphore_t* semaphore, uint64_t value,
                                    uint64_t timeout_ns, uint32_t policy) {
  ACCRT_ENTER(semaphore);
  const accrt_timepoint_t timepoint = {semaphore, value};
  ACCRT_TRY(check_timepoints(&timepoint, 1, policy));
  return accrt_semaphores_wait(&timepoint, 1, 0, timeout_ns, policy, NULL);
}

/* ---- eventfd ---- */

/* Writes to an eventfd once. Owns a duplicate of the caller's descriptor, and itself. */
typedef struct exported {
  accrt_watch_t watch;
  accrt_task_t task;
  accrt_instance_t* instance;
  int fd;
} exported_t;

static void write_once(int fd) {
  const uint64_t one = 1;
  ssize_t written;
  do {
    written = write(fd, &one, sizeof one);
  } while (written < 0 && errno == EINTR);
}

static void export_task(accrt_task_t* task) {
  exported_t* exported = (exported_t*)((char*)task - offsetof(exported_t, task));
  write_once(exported->fd);
  (void)close(exported->fd);
  accrt_free(&exported->instance->allocator, exported, sizeof *exported);
}

static void export_fire(accrt_watch_t* watch) {
  /* As a task: the allocator is the caller's code, and the thread that advances the timeline may
   * still be busy with it. */
  accrt_context_post(&((exported_t*)watch)->task);
}

/* A semaphore that only devices without threads signal would never make the descriptor readable. */
static bool needs_caller(const accrt_semaphore_t* semaphore) {
  const accrt_instance_t* instance = semaphore->instance;
  const unsigned opened =
      atomic_load_explicit(&accrt_upper(instance)->opened, memory_order_relaxed);
  const unsigned caller_runs =
      atomic_load_explicit(&accrt_upper(instance)->caller_runs, memory_order_relaxed);
  return (opened > 0 && opened == caller_runs) ||
         atomic_load_explicit(&semaphore->on_caller, memory_order_relaxed) != 0;
}

static accrt_status_t export_watch(accrt_semaphore_t* semaphore, uint64_t value, int fd) {
  exported_t* exported;
  ACCRT_TRY(ACCRT_NEW(&semaphore->instance->allocator, &exported));
  exported->instance = semaphore->instance;
  exported->watch.value = value;
  exported->watch.fire = export_fire;
  exported->task.run = export_task;
  exported->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (exported->fd < 0) {
    const int error = errno;
    accrt_free(&semaphore->instance->allocator, exported, sizeof *exported);
    return ACCRT_FAIL_ERRNO(IO, error, "could not duplicate an eventfd");
  }
  accrt_context_enter();
  if (accrt_semaphore_watch(semaphore, &exported->watch) != ACCRT_REACH_PENDING)
    export_fire(&exported->watch);
  accrt_context_leave();
  return ACCRT_OK;
}

accrt_status_t accrt_semaphore_export_eventfd(accrt_semaphore_t* semaphore, uint64_t value,
                                              int32_t* out_fd) {
  if (out_fd != NULL)
    *out_fd = -1;
  ACCRT_ENTER(out_fd, semaphore);
  if (value == UINT64_MAX)
    return ACCRT_FAIL(INVALID_ARGUMENT, "UINT64_MAX is not a value");
  if (needs_caller(semaphore)) {
    return ACCRT_FAIL(UNSUPPORTED,
                      "semaphore %" PRIu64
                      " is signalled by a device without threads: nothing would progress while "
                      "the caller polls",
                      semaphore->id);
  }
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0)
    return ACCRT_FAIL_ERRNO(IO, errno, "eventfd failed");
  accrt_status_t status = export_watch(semaphore, value, fd);
  if (status != ACCRT_OK) {
    (void)close(fd);
    return status;
  }
  *out_fd = fd;
  return ACCRT_OK;
}
