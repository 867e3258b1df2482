/* runtime/drivers/common/stream_life.c - streams: making, wrapping, objects retained for work
 * without listeners, the end. It may not know what work is. */
#include <stdio.h>
#include <string.h>

#include "runtime/core/struct.h"
#include "runtime/drivers/common/stream_internal.h"

/* How many references are dropped at a time. */
#define TRIM_BATCH 32u

/* ---- Retained objects: a hash table with open addresses, for the submission lock's owner ---- */

static uint32_t retained_count(const accrt_stream_t* stream) {
  return atomic_load_explicit(&stream->retained_count, memory_order_relaxed);
}

static accrt_retained_t* find_retained(accrt_retained_t* table, uint32_t capacity,
                                       const void* object) {
  uint32_t i = accrt_retained_index(object, capacity);
  while (table[i].object != NULL && table[i].object != object)
    i = (i + 1) & (capacity - 1);
  return &table[i];
}

static void free_retained(accrt_stream_t* stream, accrt_retained_t* table, uint32_t capacity) {
  if (table != stream->inline_retained)
    accrt_free_array(&stream->instance->allocator, table, capacity, sizeof *table);
}

static bool grow_retained(accrt_stream_t* stream) {
  const uint32_t capacity = stream->retained_capacity * 2;
  void* memory;
  if (accrt_alloc_array(&stream->instance->allocator, capacity, sizeof(accrt_retained_t),
                        &memory) != ACCRT_OK)
    return false;
  for (uint32_t i = 0; i < stream->retained_capacity; ++i) {
    if (stream->retained[i].object != NULL)
      *find_retained(memory, capacity, stream->retained[i].object) = stream->retained[i];
  }
  free_retained(stream, stream->retained, stream->retained_capacity);
  stream->retained = memory;
  stream->retained_capacity = capacity;
  return true;
}

bool accrt_stream_retain_new(accrt_stream_t* stream, const accrt_retained_class_t* retained_class,
                             void* object, uint64_t number) {
  accrt_retained_t* entry = find_retained(stream->retained, stream->retained_capacity, object);
  if (entry->object == NULL) {
    if ((retained_count(stream) + 1) * 4 > stream->retained_capacity * 3) {
      if (!grow_retained(stream))
        return false;
      entry = find_retained(stream->retained, stream->retained_capacity, object);
    }
    retained_class->ref(object);
    entry->object = object;
    entry->retained_class = retained_class;
    atomic_store_explicit(&stream->retained_count, retained_count(stream) + 1,
                          memory_order_relaxed);
  }
  entry->number = number;
  return true;
}

/* Closes holes: every entry is found again from where it belongs. */
static void close_holes(accrt_stream_t* stream) {
  bool moved;
  do {
    moved = false;
    for (uint32_t i = 0; i < stream->retained_capacity; ++i) {
      const accrt_retained_t entry = stream->retained[i];
      if (entry.object == NULL)
        continue;
      stream->retained[i].object = NULL;
      accrt_retained_t* place =
          find_retained(stream->retained, stream->retained_capacity, entry.object);
      *place = entry;
      moved |= place != &stream->retained[i];
    }
  } while (moved);
}

/* Moves what may go out of the table. */
static uint32_t take_out(accrt_stream_t* stream, bool all, accrt_retained_t* taken) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < stream->retained_capacity && count < TRIM_BATCH; ++i) {
    accrt_retained_t* entry = &stream->retained[i];
    if (entry->object == NULL || (!all && !accrt_fence_passed(stream->fence, entry->number)))
      continue;
    taken[count++] = *entry;
    entry->object = NULL;
  }
  const uint32_t left = retained_count(stream) - count;
  atomic_store_explicit(&stream->retained_count, left, memory_order_relaxed);
  if (count > 0 && left > 0)
    close_holes(stream);
  return count;
}

void accrt_stream_trim_retained(accrt_stream_t* stream, bool all) {
  accrt_retained_t taken[TRIM_BATCH];
  uint32_t count;
  do {
    accrt_submit_held_t held;
    if (atomic_load_explicit(&stream->retained_count, memory_order_relaxed) == 0 ||
        (!all && !accrt_submit_try_lock(stream, 0, &held)))
      return;
    count = take_out(stream, all, taken);
    if (!all)
      accrt_submit_unlock(stream, &held, 0);
    for (uint32_t i = 0; i < count; ++i)
      taken[i].retained_class->drop(taken[i].object);
  } while (count == TRIM_BATCH);
}

/* ---- Classes of retained objects ---- */

static void ref_pack(void* object) {
  accrt_kernel_pack_ref(object);
}
static void drop_pack(void* object) {
  accrt_kernel_pack_unref(object);
}
const accrt_retained_class_t accrt_retained_pack = {ref_pack, drop_pack};

static void ref_commands(void* object) {
  accrt_commands_ref(object);
}
static void drop_commands(void* object) {
  accrt_commands_unref(object);
}
const accrt_retained_class_t accrt_retained_commands = {ref_commands, drop_commands};

/* ---- The end ---- */

static void unlink_stream(accrt_stream_t* stream) {
  accrt_instance_t* instance = stream->instance;
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  if (stream->next != NULL)
    stream->next->previous = stream->previous;
  if (stream->previous != NULL) {
    stream->previous->next = stream->next;
  } else {
    accrt_upper(instance)->streams = stream->next;
  }
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
}

ACCRT_RARE static void free_stream(accrt_stream_t* stream) {
  const accrt_allocator_t* allocator = &stream->instance->allocator;
  accrt_fence_release(stream->fence);
  accrt_point_unref(stream->sync_point);
  accrt_semaphore_unref(stream->way);
  accrt_semaphore_unref(stream->ahead_semaphore);
  free_retained(stream, stream->retained, stream->retained_capacity);
  accrt_op_free(stream, stream->mark);
  while (stream->spares != NULL)
    accrt_op_free(stream, accrt_op_take_spare(stream));
  accrt_free_aligned(allocator, stream, sizeof *stream, _Alignof(accrt_stream_t));
}

ACCRT_RARE static void destroy(accrt_zombie_t* zombie) {
  accrt_stream_t* stream = (accrt_stream_t*)zombie;
  accrt_stream_wait_idle(stream); /* it is: only a thread that unlocks may still use it */
  unlink_stream(stream);
  if (stream->queue != NULL)
    stream->table->queue_destroy(stream->queue);
  accrt_fence_advance(stream->fence, UINT64_MAX);
  accrt_stream_trim_retained(stream, true);
  accrt_kick_watchers(stream->instance);
  free_stream(stream);
}

/* The last reference is gone: the fence must not find the stream any more. */
static void disown(accrt_stream_t* stream) {
  accrt_mutex_lock(&stream->fence->owner_lock);
  stream->fence->owner = NULL;
  accrt_mutex_unlock(&stream->fence->owner_lock);
}

/* Its owner may end the queue as soon as the stream is released: what it has is over then. */
static void finish_foreign(accrt_stream_t* stream) {
  const accrt_error_t saved = *accrt_error_current();
  accrt_stream_wait_queue(stream);
  (void)accrt_error_restore(&saved);
}

void accrt_stream_ref(accrt_stream_t* stream) {
  accrt_object_retain(&stream->object);
}

void accrt_stream_unref(accrt_stream_t* stream) {
  if (!accrt_object_release(&stream->object))
    return;
  if (accrt_stream_is_behind(stream) || accrt_stream_has_events(stream)) {
    /* Work without a listener may still run: then the stream lives until the driver reports its
     * end. */
    accrt_object_init(&stream->object);
    if (stream->foreign)
      finish_foreign(stream);
    accrt_stream_refresh(stream);
    if (accrt_stream_is_behind(stream) || accrt_stream_has_events(stream))
      accrt_stream_ask(stream);
    atomic_store_explicit(&stream->left, stream->foreign, memory_order_relaxed);
    if (!accrt_object_release(&stream->object))
      return;
  }
  disown(stream);
  stream->zombie.destroy = destroy;
  accrt_dispose(stream->instance, &stream->zombie);
}

/* ---- Making ---- */

static void link_stream(accrt_stream_t* stream) {
  accrt_instance_t* instance = stream->instance;
  accrt_mutex_lock(&accrt_upper(instance)->lock);
  stream->next = accrt_upper(instance)->streams;
  if (stream->next != NULL)
    stream->next->previous = stream;
  accrt_upper(instance)->streams = stream;
  accrt_mutex_unlock(&accrt_upper(instance)->lock);
}

static int32_t clamp_priority(const accrt_device_t* device, int32_t priority) {
  const accrt_device_info_t* info = &device->info;
  if (info->priority_least == info->priority_greatest)
    return priority; /* it has none, or does not say: the driver's own affair */
  if (priority < info->priority_least)
    return info->priority_least;
  return priority > info->priority_greatest ? info->priority_greatest : priority;
}

/* `native`: the caller's queue to be wrapped, or NULL for one of the stream's own. */
static accrt_status_t open_queue(accrt_stream_t* stream, int32_t priority, void* const* native) {
  accrt_driver_device_t* device = stream->device->driver_device;
  stream->foreign = native != NULL;
  return native != NULL ? stream->table->queue_wrap(device, *native, &stream->queue)
                        : stream->table->queue_create(
                              device, clamp_priority(stream->device, priority), &stream->queue);
}

static void fill_stream(accrt_stream_t* stream, accrt_device_t* device, const char* label) {
  accrt_object_init(&stream->object);
  accrt_mutex_init(&stream->lock, ACCRT_LOCK_STREAM);
  accrt_timeline_init(&stream->timeline, 0);
  stream->device = device;
  stream->instance = device->instance;
  stream->table = device->table;
  stream->traces = accrt_instance_tracing(device->instance) != 0;
  stream->listens = stream->traces || stream->table->queue_progress == NULL;
  stream->outside = stream->table->queue_wait == NULL || accrt_upper_device(device)->caller_runs;
  stream->native = !stream->traces && accrt_upper_device(device)->native_events != 0;
  stream->retained = stream->inline_retained;
  stream->retained_capacity = ACCRT_STREAM_INLINE_RETAINED;
  stream->id = accrt_instance_next_id(device->instance);
  (void)snprintf(stream->label, sizeof stream->label, "%s", label != NULL ? label : "");
}

static accrt_status_t make_stream(accrt_device_t* device, const accrt_stream_options_t* options,
                                  void* const* native, accrt_stream_t** out_stream) {
  const accrt_allocator_t* allocator = &device->instance->allocator;
  void* memory;
  ACCRT_TRY(
      accrt_alloc_aligned(allocator, sizeof(accrt_stream_t), _Alignof(accrt_stream_t), &memory));
  accrt_stream_t* stream = memory;
  fill_stream(stream, device, options->label);
  stream->ahead = options->ahead;
  stream->commands_per_piece =
      options->commands_per_piece < UINT32_MAX ? (uint32_t)options->commands_per_piece : UINT32_MAX;
  stream->listens |= options->ahead != 0;
  accrt_status_t status = accrt_fence_create(allocator, stream->id, &stream->fence);
  if (status == ACCRT_OK)
    status = accrt_op_make(stream, &stream->mark);
  if (status == ACCRT_OK && options->ahead != 0)
    status = accrt_semaphore_make(device->instance, 0, &stream->ahead_semaphore);
  if (status == ACCRT_OK)
    status = open_queue(stream, options->priority, native);
  if (status != ACCRT_OK) {
    accrt_device_note_status(device, status);
    free_stream(stream);
    return status;
  }
  stream->fence->owner = stream;
  link_stream(stream);
  *out_stream = stream;
  return ACCRT_OK;
}

/* What making and wrapping have in common. `operation` is the public function that was called. */
ACCRT_RARE static accrt_status_t open_stream(accrt_device_t* device,
                                             const accrt_stream_options_t* options,
                                             void* const* native, accrt_stream_t** out_stream) {
  if (accrt_device_is_lost(device))
    return accrt_device_fail_lost(device);
  accrt_stream_options_t local;
  ACCRT_TRY(accrt_struct_read("accrt_stream_options_t", options, &local, sizeof local));
  if (local.commands_per_piece != 0 && local.ahead == 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "commands_per_piece is %" PRIu64 " and `ahead` is 0",
                      local.commands_per_piece);
  if (native != NULL && device->table->queue_wrap == NULL)
    return ACCRT_FAIL(UNSUPPORTED, "%s has no native queues", device->info.name);
  accrt_instance_reap_zombies(device->instance);
  accrt_status_t status = make_stream(device, &local, native, out_stream);
  if (status == ACCRT_OK)
    (void)accrt_instance_retain(device->instance);
  return status;
}

accrt_status_t accrt_inner_stream_create(accrt_device_t* device,
                                         const accrt_stream_options_t* options,
                                         accrt_stream_t** out_stream) {
  if (out_stream != NULL)
    *out_stream = NULL;
  ACCRT_CHECK(out_stream, device);
  return open_stream(device, options, NULL, out_stream);
}

accrt_status_t accrt_stream_create(accrt_device_t* device, const accrt_stream_options_t* options,
                                   accrt_stream_t** out_stream) {
  ACCRT_ENTER_INNER(accrt_inner_stream_create(device, options, out_stream));
}

accrt_status_t accrt_stream_wrap(accrt_device_t* device, void* native,
                                 accrt_stream_t** out_stream) {
  if (out_stream != NULL)
    *out_stream = NULL;
  ACCRT_ENTER(out_stream, device);
  return open_stream(device, NULL, &native, out_stream);
}

ACCRT_RARE accrt_status_t accrt_stream_native(accrt_stream_t* stream, void** out_native) {
  if (out_native != NULL)
    *out_native = NULL;
  ACCRT_ENTER(out_native, stream);
  if (stream->table->queue_native == NULL)
    return ACCRT_FAIL(UNSUPPORTED, "%s has no native queues", stream->device->info.name);
  accrt_mutex_lock(&stream->lock);
  const bool defers = stream->deferred.head != NULL;
  accrt_mutex_unlock(&stream->lock);
  if (defers) {
    return ACCRT_FAIL(NOT_READY, "stream %" PRIu64 " holds work that waits for a semaphore",
                      stream->id);
  }
  *out_native = stream->table->queue_native(stream->queue);
  return ACCRT_OK;
}

accrt_stream_t* accrt_stream_retain(accrt_stream_t* stream) {
  if (stream == NULL || accrt_forked())
    return stream;
  atomic_fetch_add_explicit(&stream->handles, 1, memory_order_relaxed);
  accrt_object_retain(&stream->object);
  (void)accrt_instance_retain(stream->instance);
  return stream;
}

void accrt_stream_release(accrt_stream_t* stream) {
  if (stream == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = stream->instance;
  /* Acq_rel pairs with the other releases: the last one sees all work of the others. Operations
   * with a listener have references too, so the object's count cannot say which one is the last. */
  if (atomic_fetch_sub_explicit(&stream->handles, 1, memory_order_acq_rel) == 0 &&
      stream->foreign && accrt_stream_is_behind(stream) && !accrt_context_inside())
    finish_foreign(stream);
  accrt_stream_unref(stream);
  accrt_instance_release(instance);
}

uint64_t accrt_stream_id(accrt_stream_t* stream) {
  return stream != NULL ? stream->id : 0;
}

accrt_device_t* accrt_stream_device(accrt_stream_t* stream) {
  return stream != NULL ? stream->device : NULL;
}

/* ---- Memory in stream order ---- */

accrt_status_t accrt_stream_free(accrt_stream_t* stream, accrt_buffer_t* buffer) {
  ACCRT_ENTER(stream, buffer);
  if (stream->instance != buffer->pool->instance) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "buffer %" PRIu64 " is of another instance than stream %" PRIu64, buffer->id,
                      stream->id);
  }
  return accrt_buffer_free_in_order(buffer, stream->fence, accrt_stream_submitted(stream));
}

accrt_fence_t* accrt_stream_fence(accrt_stream_t* stream) {
  return stream->fence;
}

uint64_t accrt_stream_last_submission(accrt_stream_t* stream) {
  return accrt_stream_submitted(stream);
}
