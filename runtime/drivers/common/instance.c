/* runtime/drivers/common/instance.c - instances: options, ids, logging, tracing, end of life. It may not know any driver's name but
 * those that are built in. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/struct.h"
#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/staging.h"

extern const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi);
#ifdef ACCRT_CUDA
extern const accrt_driver_table_t* accrt_driver_cuda_query(uint32_t max_abi);
#endif

#define MAX_OPTIONS 1024
#define TEARDOWN_PAUSE_NS UINT64_C(50000)

/* ---- The door ---- */

const accrt_allocator_t* accrt_instance_allocator(const accrt_instance_t* instance) {
  return &instance->allocator;
}

uint32_t accrt_instance_host_code_policy(const accrt_instance_t* instance) {
  return instance->trust.policy;
}
struct accrt_trust* accrt_instance_trust_store(accrt_instance_t* instance) {
  return &instance->trust;
}
struct accrt_crypto_slot* accrt_instance_crypto_slot(accrt_instance_t* instance) {
  return &instance->crypto;
}
uint32_t accrt_instance_flags(const accrt_instance_t* instance) {
  return instance->flags;
}
struct accrt_pack_set* accrt_instance_packs(accrt_instance_t* instance) {
  return &instance->packs;
}

uint64_t accrt_instance_next_id(accrt_instance_t* instance) {
  return atomic_fetch_add_explicit(&instance->next_id, 1, memory_order_relaxed) + 1;
}

void accrt_instance_log(accrt_instance_t* instance, uint32_t level, const char* component,
                        const char* format, ...) {
  if (instance->log_sink.write == NULL || level > instance->log_sink.level)
    return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  const int written = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (written < 0)
    return;
  accrt_text_one_line(line);
  instance->log_sink.write(instance->log_sink.self, level, component, line);
}

uint32_t accrt_instance_tracing(const accrt_instance_t* instance) {
  return instance->trace_sink.event != NULL;
}

void accrt_instance_trace(accrt_instance_t* instance, const accrt_trace_event_t* event) {
  if (instance->trace_sink.event != NULL)
    instance->trace_sink.event(instance->trace_sink.self, event);
}

/* ---- Streams with work that nobody hears of ---- */

/* The next stream (of the device, or of any when that is NULL) below an id, retained; NULL when there is none. New streams have greater
 * ids than old ones. */
static accrt_stream_t* stream_below(accrt_instance_t* instance, const accrt_device_t* device,
                                    uint64_t id) {
  accrt_mutex_lock(&instance->lock);
  accrt_stream_t* stream = instance->streams;
  while (stream != NULL &&
         (!stream->passive || stream->id >= id || (device != NULL && stream->device != device) ||
          !accrt_object_try_retain(&stream->object)))
    stream = stream->next;
  accrt_mutex_unlock(&instance->lock);
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

void accrt_device_refresh_fences(accrt_device_t* device) {
  for_streams(device->instance, device, accrt_stream_refresh);
}

/* Whoever waits for memory to fall idle is told by a driver, where work runs silently. */
static void ask_if_behind(accrt_stream_t* stream) {
  accrt_stream_refresh(stream);
  if (!accrt_fence_passed(stream->fence,
                          atomic_load_explicit(&stream->submitted, memory_order_relaxed)))
    accrt_stream_ask(stream);
}

/* Acq_rel pairs with accrt_kick_watchers. */
void accrt_instance_watch(accrt_instance_t* instance) {
  atomic_fetch_add_explicit(&instance->watched, 1, memory_order_acq_rel);
  /* Without the thread the memory goes back with a later call. */
  const accrt_error_t saved = *accrt_error_current();
  if (accrt_worker_start(&instance->worker) != ACCRT_OK)
    (void)accrt_error_restore(&saved);
  for_streams(instance, NULL, ask_if_behind);
}

void accrt_instance_unwatch(accrt_instance_t* instance) {
  atomic_fetch_sub_explicit(&instance->watched, 1, memory_order_relaxed);
}

void accrt_instance_kick(accrt_instance_t* instance) {
  accrt_worker_kick(&instance->worker);
}

/* ---- Zombies ---- */

void accrt_dispose(accrt_instance_t* instance, accrt_zombie_t* zombie) {
  if (!accrt_context_inside()) {
    zombie->destroy(zombie);
    return;
  }
  accrt_mutex_lock(&instance->lock);
  zombie->next = instance->zombies;
  instance->zombies = zombie;
  /* Relaxed: a hint; the list itself is under the lock. */
  atomic_store_explicit(&instance->has_zombies, 1, memory_order_relaxed);
  accrt_mutex_unlock(&instance->lock);
}

void accrt_instance_reap_zombies(accrt_instance_t* instance) {
  if (atomic_load_explicit(&instance->has_zombies, memory_order_relaxed) == 0 ||
      accrt_context_inside())
    return;
  accrt_mutex_lock(&instance->lock);
  accrt_zombie_t* zombie = instance->zombies;
  instance->zombies = NULL;
  atomic_store_explicit(&instance->has_zombies, 0, memory_order_relaxed);
  accrt_mutex_unlock(&instance->lock);
  while (zombie != NULL) {
    accrt_zombie_t* next = zombie->next;
    zombie->destroy(zombie);
    zombie = next;
  }
}

static accrt_device_t* device_at(accrt_instance_t* instance, uint32_t index) {
  accrt_device_t* device = NULL;
  accrt_mutex_lock(&instance->lock);
  if (index < instance->device_count)
    device = instance->devices[index];
  accrt_mutex_unlock(&instance->lock);
  return device;
}

static bool is_open(const accrt_device_t* device) {
  /* Acquire pairs with the release in accrt_instance_device's opening. */
  return atomic_load_explicit(&device->state, memory_order_acquire) == ACCRT_DEVICE_OPEN;
}

void accrt_instance_reap(accrt_instance_t* instance) {
  accrt_instance_reap_zombies(instance);
  for (uint32_t i = 0;; ++i) {
    accrt_device_t* device = device_at(instance, i);
    if (device == NULL)
      return;
    if (is_open(device))
      accrt_device_reap_pools(device);
  }
}

/* ---- Devices that run on the caller ---- */

static uint32_t run_devices(void* user) {
  accrt_instance_t* instance = user;
  uint32_t ran = 0;
  for (uint32_t i = 0;; ++i) {
    accrt_device_t* device = device_at(instance, i);
    if (device == NULL)
      return ran;
    if (!is_open(device) || !device->caller_runs)
      continue;
    accrt_context_enter();
    ran |= device->slot->table.device_progress(device->driver_device);
    accrt_context_leave();
  }
}

accrt_wait_progress_fn_t accrt_instance_progress(accrt_instance_t* instance) {
  return atomic_load_explicit(&instance->caller_runs, memory_order_relaxed) > 0 ? run_devices
                                                                                : NULL;
}

/* ---- Making ---- */

static accrt_status_t copy_options(accrt_instance_t* instance,
                                   const accrt_instance_options_t* options) {
  if (options->option_count == 0)
    return ACCRT_OK;
  if (options->options == NULL || options->option_count > MAX_OPTIONS) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "options is %p with a count of %" PRIu32 "; at most %d are taken",
                      (const void*)options->options, options->option_count, MAX_OPTIONS);
  }
  accrt_status_t status = accrt_struct_check_element("accrt_option_t", options->option_size_bytes,
                                                     sizeof(accrt_option_t));
  if (status != ACCRT_OK)
    return status;
  void* memory;
  status = accrt_alloc_array(&instance->allocator, options->option_count, sizeof(accrt_option_t),
                             &memory);
  if (status != ACCRT_OK)
    return status;
  instance->options = memory;
  instance->option_count = options->option_count;
  for (uint32_t i = 0; i < options->option_count; ++i) {
    const accrt_option_t* option = &options->options[i];
    if (option->key == NULL || option->value == NULL) {
      return ACCRT_FAIL(INVALID_ARGUMENT, "option %" PRIu32 " has no %s", i,
                        option->key == NULL ? "key" : "value");
    }
    char *key = NULL, *value = NULL;
    status = accrt_copy_string(&instance->allocator, option->key, &key);
    instance->options[i].key = key;
    if (status == ACCRT_OK)
      status = accrt_copy_string(&instance->allocator, option->value, &value);
    instance->options[i].value = value;
    if (status != ACCRT_OK)
      return status;
  }
  return ACCRT_OK;
}

static accrt_status_t check_options(const accrt_instance_options_t* options) {
  const uint32_t known = ACCRT_INSTANCE_FLAG_PERF_MAP | ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  if ((options->flags & ~known) != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", options->flags);
  if (options->host_code_policy > ACCRT_HOST_CODE_NONE) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "host_code_policy %" PRIu32 " is not known",
                      options->host_code_policy);
  }
  if (options->reserved != 0 || (options->log_sink != NULL && options->log_sink->reserved != 0) ||
      (options->executor != NULL && options->executor->reserved != 0)) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "a reserved field of the options is not 0");
  }
  const accrt_allocator_t* allocator = options->allocator;
  if (allocator != NULL && (allocator->allocate == NULL || allocator->deallocate == NULL)) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "the allocator lacks a function");
  }
  const accrt_executor_t* executor = options->executor;
  if (executor != NULL && (executor->submit == NULL || executor->concurrency == 0)) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "the executor has no submit function or a concurrency of 0");
  }
  return ACCRT_OK;
}

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

static accrt_status_t open_built_in(accrt_instance_t* instance) {
  static const char host[] = "built-in host driver";
  accrt_status_t status =
      note_built_in(instance, accrt_driver_add(instance, accrt_driver_host_query, host), host);
#ifdef ACCRT_CUDA
  static const char cuda[] = "built-in CUDA driver";
  if (status == ACCRT_OK) {
    status = note_built_in(instance, accrt_driver_add_lazy(instance, accrt_driver_cuda_query, cuda),
                           cuda);
  }
#endif
  return status;
}

static accrt_status_t open_drivers(accrt_instance_t* instance) {
  if (instance->flags & ACCRT_INSTANCE_FLAG_NO_DRIVERS)
    return ACCRT_OK;
  const accrt_error_t saved = *accrt_error_current();
  accrt_clear_error();
  const accrt_status_t status = open_built_in(instance);
  if (status != ACCRT_OK)
    return status;
  (void)accrt_error_restore(&saved);
  return accrt_options_check(instance);
}

static void free_options(accrt_instance_t* instance) {
  for (uint32_t i = 0; i < instance->option_count; ++i) {
    accrt_free_string(&instance->allocator, (char*)(uintptr_t)instance->options[i].key);
    accrt_free_string(&instance->allocator, (char*)(uintptr_t)instance->options[i].value);
  }
  accrt_free_array(&instance->allocator, instance->options, instance->option_count,
                   sizeof *instance->options);
}

accrt_status_t accrt_instance_create(const accrt_instance_options_t* options,
                                     accrt_instance_t** out_instance) {
  if (out_instance == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_instance is NULL");
  *out_instance = NULL;
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  accrt_instance_options_t local;
  status = accrt_struct_read("accrt_instance_options_t", options, &local, sizeof local);
  if (status == ACCRT_OK)
    status = check_options(&local);
  if (status != ACCRT_OK)
    return status;
  const accrt_allocator_t allocator =
      local.allocator != NULL ? *local.allocator : accrt_allocator_system;
  void* memory;
  status = accrt_alloc(&allocator, sizeof(accrt_instance_t), &memory);
  if (status != ACCRT_OK)
    return status;
  accrt_instance_t* instance = memory;
  accrt_object_init(&instance->object);
  accrt_mutex_init(&instance->lock);
  accrt_pack_set_init(&instance->packs);
  accrt_mutex_init(&instance->trust.lock);
  accrt_mutex_init(&instance->crypto.lock);
  instance->allocator = allocator;
  if (local.log_sink != NULL)
    instance->log_sink = *local.log_sink;
  if (local.trace_sink != NULL)
    instance->trace_sink = *local.trace_sink;
  if (local.executor != NULL)
    instance->executor = *local.executor;
  instance->flags = local.flags;
  accrt_worker_init(&instance->worker, instance);
  status = accrt_fork_instance_born();
  if (status != ACCRT_OK) {
    accrt_free(&allocator, instance, sizeof *instance);
    return status;
  }
  status = copy_options(instance, &local);
  if (status == ACCRT_OK)
    status = accrt_runtime_options_read(instance);
  if (status == ACCRT_OK)
    status = accrt_trust_read(instance, local.host_code_policy);
  if (status == ACCRT_OK)
    status = open_drivers(instance);
  if (status != ACCRT_OK) {
    const accrt_error_t error = *accrt_error_current();
    accrt_instance_destroy(instance);
    return accrt_error_restore(&error);
  }
  *out_instance = instance;
  return ACCRT_OK;
}

/* ---- End of life ---- */

/* A stream that is not going away by itself, retained; `*out_left`: whether there is any stream at all. */
static accrt_stream_t* any_stream(accrt_instance_t* instance, bool* out_left) {
  accrt_mutex_lock(&instance->lock);
  accrt_stream_t* stream = instance->streams;
  *out_left = stream != NULL;
  while (stream != NULL && !accrt_object_try_retain(&stream->object))
    stream = stream->next;
  accrt_mutex_unlock(&instance->lock);
  return stream;
}

/* Streams that only their own operations keep alive: what waits is dropped, what runs is waited for. A thread of a driver may
 * be about to drop the last reference of one. */
static void end_streams(accrt_instance_t* instance) {
  for (;;) {
    accrt_worker_help(&instance->worker);
    accrt_instance_reap_zombies(instance);
    bool left;
    accrt_stream_t* stream = any_stream(instance, &left);
    if (!left)
      return;
    if (stream != NULL) {
      accrt_stream_abandon(stream);
      accrt_stream_unref(stream);
    }
    atomic_uint nobody;
    atomic_init(&nobody, 0);
    accrt_futex_wait(&nobody, 0, TEARDOWN_PAUSE_NS);
  }
}

/* Transfers end before the streams that wait for them. */
static void end_staging(accrt_instance_t* instance) {
  for (uint32_t i = 0; i < instance->device_count; ++i)
    accrt_staging_stop(atomic_load_explicit(&instance->devices[i]->staging, memory_order_acquire));
}

void accrt_instance_destroy(accrt_instance_t* instance) {
  end_staging(instance);
  end_streams(instance);
  accrt_worker_stop(&instance->worker);
  accrt_instance_reap(instance);
  accrt_instance_close_drivers(instance);
  accrt_trust_free(instance);
  free_options(instance);
  accrt_fork_instance_gone();
  const accrt_allocator_t allocator = instance->allocator;
  accrt_free(&allocator, instance, sizeof *instance);
}

accrt_instance_t* accrt_instance_retain(accrt_instance_t* instance) {
  if (instance != NULL && !accrt_forked())
    accrt_object_retain(&instance->object);
  return instance;
}

void accrt_instance_release(accrt_instance_t* instance) {
  if (instance == NULL || accrt_forked() || !accrt_object_release(&instance->object))
    return;
  if (!accrt_context_inside() && !accrt_context_is_runtime_thread()) {
    accrt_instance_destroy(instance);
    return;
  }
  if (accrt_worker_hand_over(&instance->worker))
    return;
  accrt_instance_log(instance, ACCRT_LOG_ERROR, "instance",
                     "could not be freed: no thread to do it on");
}
