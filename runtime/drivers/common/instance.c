/* runtime/drivers/common/instance.c - the upper half of an instance: its drivers, devices, streams
 * and threads, and its end. It may not know any driver's name. */
#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/staging.h"

#define TEARDOWN_PAUSE_NS UINT64_C(50000)

/* ---- Streams with work without a listener ---- */

/* The next stream (of the device, or of any when that is NULL) below an id, retained; NULL when
 * there is none. New streams have greater ids than old ones. */
static accrt_stream_t* stream_below(accrt_instance_t* instance, const accrt_device_t* device,
                                    uint64_t id) {
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  accrt_stream_t* stream = accrt_upper(instance)->streams;
  while (stream != NULL && (stream->id >= id || (device != NULL && stream->device != device) ||
                            !accrt_object_try_retain(&stream->object)))
    stream = stream->next;
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
  return stream;
}

static void for_streams(accrt_instance_t* instance, const accrt_device_t* device,
                        void (*visit)(accrt_stream_t* stream)) {
  accrt_stream_t* stream = stream_below(instance, device, UINT64_MAX);
  while (stream != NULL) {
    const uint64_t id = stream->id;
    visit(stream);
    accrt_stream_unref(stream);
    stream = stream_below(instance, device, id);
  }
}

static void refresh_fences(accrt_device_t* device) {
  for_streams(device->instance, device, accrt_stream_refresh);
}

/* The driver reports when memory falls idle that a thread waits for, where work has no listener. */
static void ask_if_behind(accrt_stream_t* stream) {
  accrt_stream_refresh(stream);
  if (!accrt_fence_passed(stream->fence,
                          atomic_load_explicit(&stream->issued_work, memory_order_relaxed)))
    accrt_stream_ask(stream);
}

/* Acq_rel pairs with accrt_kick_watchers. */
static void watch(accrt_instance_t* instance) {
  atomic_fetch_add_explicit(&accrt_upper(instance)->watched, 1, memory_order_acq_rel);
  /* Without the thread the memory goes back with a later call. */
  const accrt_error_t saved = *accrt_error_current();
  if (accrt_worker_start(&accrt_upper(instance)->worker) != ACCRT_OK)
    (void)accrt_error_restore(&saved);
  for_streams(instance, NULL, ask_if_behind);
}

static void unwatch(accrt_instance_t* instance) {
  atomic_fetch_sub_explicit(&accrt_upper(instance)->watched, 1, memory_order_relaxed);
}

static void kick(accrt_instance_t* instance) {
  accrt_worker_kick(&accrt_upper(instance)->worker);
}

static accrt_fence_t* fence_of(accrt_stream_t* stream, accrt_device_t** out_device) {
  *out_device = stream->device;
  return stream->fence;
}

const accrt_memory_above_t accrt_memory_above = {
    .fail_lost = accrt_device_fail_lost,
    .refresh_fences = refresh_fences,
    .watch = watch,
    .unwatch = unwatch,
    .kick = kick,
    .fence_of = fence_of,
};

/* ---- Zombies ---- */

void accrt_dispose(accrt_instance_t* instance, accrt_zombie_t* zombie) {
  if (!accrt_context_inside()) {
    zombie->destroy(zombie);
    return;
  }
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  zombie->next = accrt_upper(instance)->zombies;
  accrt_upper(instance)->zombies = zombie;
  /* Relaxed: a hint; the list itself is under the lock. */
  atomic_store_explicit(&accrt_upper(instance)->has_zombies, 1, memory_order_relaxed);
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
}

void accrt_instance_reap_zombies(accrt_instance_t* instance) {
  if (atomic_load_explicit(&accrt_upper(instance)->has_zombies, memory_order_relaxed) == 0 ||
      accrt_context_inside())
    return;
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  accrt_zombie_t* zombie = accrt_upper(instance)->zombies;
  accrt_upper(instance)->zombies = NULL;
  atomic_store_explicit(&accrt_upper(instance)->has_zombies, 0, memory_order_relaxed);
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
  while (zombie != NULL) {
    accrt_zombie_t* next = zombie->next;
    zombie->destroy(zombie);
    zombie = next;
  }
}

accrt_device_t* accrt_instance_device_at(accrt_instance_t* instance, uint32_t index) {
  accrt_device_t* device = NULL;
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  if (index < accrt_upper(instance)->device_count)
    device = accrt_upper(instance)->devices[index];
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
  return device;
}

void accrt_instance_reap(accrt_instance_t* instance) {
  accrt_instance_reap_zombies(instance);
  for (uint32_t i = 0;; ++i) {
    accrt_device_t* device = accrt_instance_device_at(instance, i);
    if (device == NULL)
      return;
    if (accrt_device_is_open(device))
      accrt_device_reap_pools(device);
  }
}

/* ---- Devices that run on the caller ---- */

static uint32_t run_devices(void* user) {
  accrt_instance_t* instance = user;
  uint32_t ran = 0;
  for (uint32_t i = 0;; ++i) {
    accrt_device_t* device = accrt_instance_device_at(instance, i);
    if (device == NULL)
      return ran;
    if (!accrt_device_is_open(device) || !accrt_upper_device(device)->caller_runs)
      continue;
    accrt_context_enter();
    ran |= device->table->device_progress(device->driver_device);
    accrt_context_leave();
  }
}

static void progress_job(accrt_job_t* job) {
  accrt_instance_t* instance =
      (accrt_instance_t*)((char*)job - offsetof(accrt_upper_t, progress_job));
  /* Before the work is looked for: a request from here on is served. Acq_rel pairs with the
   * exchange in ask_devices. */
  (void)atomic_exchange_explicit(&accrt_upper(instance)->progress_asked, 0, memory_order_acq_rel);
  while (run_devices(instance) != 0)
    continue;
}

/* The runner does it; this thread, when there can be no runner. */
static uint32_t ask_devices(void* user) {
  accrt_instance_t* instance = user;
  if (atomic_load_explicit(&accrt_upper(instance)->progress_asked, memory_order_relaxed) != 0)
    return 0;
  const accrt_error_t saved = *accrt_error_current();
  if (accrt_worker_start(&accrt_upper(instance)->runner) != ACCRT_OK) {
    (void)accrt_error_restore(&saved);
    return run_devices(instance);
  }
  /* Acq_rel pairs with the exchange in progress_job: the job is in the list once at most. */
  if (atomic_exchange_explicit(&accrt_upper(instance)->progress_asked, 1, memory_order_acq_rel) ==
      0)
    accrt_worker_post(&accrt_upper(instance)->runner, &accrt_upper(instance)->progress_job);
  return 0;
}

accrt_wait_progress_fn_t accrt_instance_progress(accrt_instance_t* instance, uint64_t timeout_ns) {
  if (atomic_load_explicit(&accrt_upper(instance)->caller_runs, memory_order_relaxed) == 0)
    return NULL;
  return timeout_ns == ACCRT_TIMEOUT_INFINITE ? run_devices : ask_devices;
}

/* ---- Making ---- */

/* A bad option is the caller's mistake, not a driver that is not there: the instance is refused. */
static accrt_status_t note_built_in(accrt_instance_t* instance, accrt_status_t status,
                                    const char* where) {
  if (status == ACCRT_OK || status == ACCRT_ERROR_INVALID_ARGUMENT ||
      status == ACCRT_ERROR_NOT_FOUND || status == ACCRT_ERROR_OUT_OF_MEMORY) {
    return status;
  }
  accrt_instance_log(instance, ACCRT_LOG_WARNING, "instance", "%s: %s", where,
                     accrt_error_current()->message);
  return ACCRT_OK;
}

static accrt_status_t open_drivers(accrt_instance_t* instance, const accrt_built_in_t* built_in,
                                   uint32_t built_in_count) {
  if (instance->flags & ACCRT_INSTANCE_FLAG_NO_DRIVERS)
    return ACCRT_OK;
  const accrt_error_t saved = *accrt_error_current();
  accrt_clear_error();
  for (uint32_t i = 0; i < built_in_count; ++i) {
    const accrt_built_in_t* driver = &built_in[i];
    ACCRT_TRY(note_built_in(instance,
                            accrt_driver_add(instance, driver->query, driver->where, driver->lazy),
                            driver->where));
  }
  (void)accrt_error_restore(&saved);
  return accrt_options_check(instance);
}

static void end_of_life(accrt_instance_t* instance);

accrt_status_t accrt_instance_make(const accrt_instance_options_t* options,
                                   const accrt_built_in_t* built_in, uint32_t built_in_count,
                                   accrt_instance_t** out_instance) {
  accrt_instance_options_t local;
  ACCRT_TRY(accrt_instance_options_take(options, &local));
  const accrt_allocator_t allocator =
      local.allocator != NULL ? *local.allocator : accrt_allocator_system;
  accrt_upper_t* upper;
  ACCRT_TRY(ACCRT_NEW(&allocator, &upper));
  accrt_instance_t* instance = &upper->instance;
  accrt_instance_init(instance, &local);
  instance->end = end_of_life;
  accrt_mutex_init(&upper->lock, ACCRT_LOCK_INSTANCE);
  accrt_worker_init(&upper->worker, instance, "accrt-notify");
  accrt_worker_init(&upper->runner, instance, "accrt-run");
  upper->progress_job.run = progress_job;
  accrt_status_t status = accrt_fork_instance_born();
  if (status != ACCRT_OK) {
    accrt_free(&allocator, upper, sizeof *upper);
    return status;
  }
  status = accrt_instance_configure(instance, &local);
  if (status == ACCRT_OK)
    status = open_drivers(instance, built_in, built_in_count);
  if (status == ACCRT_OK)
    status = accrt_instance_count(instance);
  if (status != ACCRT_OK) {
    const accrt_error_t error = *accrt_error_current();
    accrt_instance_destroy(instance);
    return accrt_error_restore(&error);
  }
  *out_instance = instance;
  return ACCRT_OK;
}

/* ---- End of life ---- */

/* A stream that is not going away by itself, retained; `*out_left`: whether there is any stream at
 * all. */
static accrt_stream_t* any_stream(accrt_instance_t* instance, bool* out_left) {
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  accrt_stream_t* stream = accrt_upper(instance)->streams;
  *out_left = stream != NULL;
  while (stream != NULL && !accrt_object_try_retain(&stream->object))
    stream = stream->next;
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
  return stream;
}

/* Streams that only their own operations keep alive: what waits is dropped, what runs is waited
 * for. A thread of a driver may be about to drop the last reference of one. */
static void end_streams(accrt_instance_t* instance) {
  for (;;) {
    accrt_worker_help(&accrt_upper(instance)->worker);
    accrt_instance_reap_zombies(instance);
    bool left;
    accrt_stream_t* stream = any_stream(instance, &left);
    if (!left)
      return;
    if (stream != NULL) {
      accrt_stream_abandon(stream);
      accrt_stream_unref(stream);
    }
    atomic_uint unshared;
    atomic_init(&unshared, 0);
    accrt_futex_wait(&unshared, 0, TEARDOWN_PAUSE_NS);
  }
}

/* Transfers end before the streams that wait for them. */
static void end_staging(accrt_instance_t* instance) {
  for (uint32_t i = 0; i < accrt_upper(instance)->device_count; ++i)
    accrt_staging_stop(atomic_load_explicit(
        &accrt_upper_device(accrt_upper(instance)->devices[i])->staging, memory_order_acquire));
}

void accrt_instance_destroy(accrt_instance_t* instance) {
  end_staging(instance);
  end_streams(instance);
  accrt_worker_stop(&accrt_upper(instance)->runner);
  accrt_worker_stop(&accrt_upper(instance)->worker);
  accrt_instance_reap(instance);
  accrt_instance_close_drivers(instance);
  accrt_instance_deinit(instance);
  accrt_fork_instance_gone();
  const accrt_allocator_t allocator = instance->allocator;
  accrt_free(&allocator, accrt_upper(instance), sizeof(accrt_upper_t));
}

/* The last reference is gone. */
static void end_of_life(accrt_instance_t* instance) {
  if (!accrt_context_inside() && !accrt_context_is_runtime_thread()) {
    accrt_instance_destroy(instance);
    return;
  }
  if (accrt_worker_hand_over(&accrt_upper(instance)->worker))
    return;
  accrt_instance_log(instance, ACCRT_LOG_ERROR, "instance",
                     "could not be freed: no thread to do it on");
}
