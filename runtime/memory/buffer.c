/* runtime/memory/buffer.c - buffers: life, last uses, mapping, imports. It may not know streams, only fences. */
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/struct.h"
#include "runtime/memory/pool.h"

#define MAX_ALIGNMENT (UINT64_C(1) << 30)

/* ---- Uses ---- */

static accrt_buffer_use_t* uses_of(accrt_buffer_t* buffer) {
  return buffer->more_uses != NULL ? buffer->more_uses : buffer->uses;
}

bool accrt_buffer_is_idle(accrt_buffer_t* buffer) {
  bool idle = true;
  accrt_mutex_lock(&buffer->use_lock);
  const accrt_buffer_use_t* uses = uses_of(buffer);
  for (uint32_t i = 0; i < buffer->use_count && idle; ++i) {
    idle = accrt_fence_passed(uses[i].fence, uses[i].submission);
  }
  accrt_mutex_unlock(&buffer->use_lock);
  return idle;
}

bool accrt_buffer_is_unshared(accrt_buffer_t* buffer) {
  /* Acquire pairs with the releases of references that others gave up: the uses they noted are seen. */
  return atomic_load_explicit(&buffer->object.references, memory_order_acquire) == 1 &&
         accrt_buffer_is_idle(buffer);
}

void accrt_buffer_clear_uses(accrt_buffer_t* buffer) {
  accrt_buffer_use_t* uses = uses_of(buffer);
  for (uint32_t i = 0; i < buffer->use_count; ++i)
    accrt_fence_release(uses[i].fence);
  buffer->use_count = 0;
  accrt_free_array(accrt_instance_allocator(buffer->pool->instance), buffer->more_uses,
                   buffer->use_capacity, sizeof *buffer->more_uses);
  buffer->more_uses = NULL;
  buffer->use_capacity = 0;
}

/* The entry of this stream, or one whose stream has passed, or a new one if there is room. Under the use lock. */
static accrt_buffer_use_t* find_use(accrt_buffer_t* buffer, const accrt_fence_t* fence) {
  accrt_buffer_use_t* uses = uses_of(buffer);
  accrt_buffer_use_t* passed = NULL;
  for (uint32_t i = 0; i < buffer->use_count; ++i) {
    if (uses[i].fence == fence)
      return &uses[i];
    if (passed == NULL && accrt_fence_passed(uses[i].fence, uses[i].submission))
      passed = &uses[i];
  }
  if (passed != NULL)
    return passed;
  const size_t capacity =
      buffer->more_uses != NULL ? buffer->use_capacity : ACCRT_BUFFER_INLINE_USES;
  if (buffer->use_count == capacity)
    return NULL;
  uses[buffer->use_count] = (accrt_buffer_use_t){NULL, 0};
  return &uses[buffer->use_count++];
}

/* Twice the room, allocated outside of the lock. */
static accrt_status_t grow_uses(accrt_buffer_t* buffer, uint32_t seen_count) {
  const accrt_allocator_t* allocator = accrt_instance_allocator(buffer->pool->instance);
  size_t capacity = (size_t)seen_count * 2;
  void* memory;
  const accrt_status_t status =
      accrt_alloc_array(allocator, capacity, sizeof(accrt_buffer_use_t), &memory);
  if (status != ACCRT_OK)
    return status;
  accrt_mutex_lock(&buffer->use_lock);
  if (buffer->use_count < capacity) {
    accrt_buffer_use_t* old = buffer->more_uses;
    const size_t old_capacity = buffer->use_capacity;
    memcpy(memory, uses_of(buffer), buffer->use_count * sizeof(accrt_buffer_use_t));
    buffer->more_uses = memory;
    buffer->use_capacity = capacity;
    memory = old;
    capacity = old_capacity;
  }
  accrt_mutex_unlock(&buffer->use_lock);
  accrt_free_array(allocator, memory, capacity, sizeof(accrt_buffer_use_t));
  return ACCRT_OK;
}

accrt_status_t accrt_buffer_note_fence(accrt_buffer_t* buffer, accrt_fence_t* fence,
                                       uint64_t submission) {
  for (;;) {
    accrt_mutex_lock(&buffer->use_lock);
    accrt_buffer_use_t* use = find_use(buffer, fence);
    const uint32_t count = buffer->use_count;
    accrt_fence_t* replaced = NULL;
    if (use != NULL) {
      if (use->fence != fence) {
        replaced = use->fence;
        accrt_fence_retain(fence);
        *use = (accrt_buffer_use_t){fence, submission};
      } else if (use->submission < submission) {
        use->submission = submission;
      }
    }
    accrt_mutex_unlock(&buffer->use_lock);
    accrt_fence_release(replaced);
    if (use != NULL)
      return ACCRT_OK;
    const accrt_status_t status = grow_uses(buffer, count);
    if (status != ACCRT_OK)
      return status;
  }
}

accrt_status_t accrt_buffer_note_use(accrt_buffer_t* buffer, accrt_stream_t* stream,
                                     uint64_t submission) {
  return accrt_buffer_note_fence(buffer, accrt_stream_fence(stream), submission);
}

/* ---- Making ---- */

static void set_label(accrt_buffer_t* buffer, const char* label) {
  if (label == NULL)
    return;
  const size_t length = strnlen(label, sizeof buffer->label - 1);
  memcpy(buffer->label, label, length);
}

static accrt_status_t check_options(accrt_pool_t* pool, const accrt_buffer_options_t* options,
                                    accrt_buffer_options_t* out_local) {
  const accrt_status_t status =
      accrt_struct_read("accrt_buffer_options_t", options, out_local, sizeof *out_local);
  if (status != ACCRT_OK)
    return status;
  if (out_local->flags != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", out_local->flags);
  uint64_t* alignment = &out_local->alignment_bytes;
  if (*alignment != 0 && (!accrt_is_power_of_two(*alignment) || *alignment > MAX_ALIGNMENT)) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "alignment_bytes %" PRIu64 " is no power of two up to %" PRIu64, *alignment,
                      MAX_ALIGNMENT);
  }
  const uint32_t least = accrt_device_facts(pool->device)->min_alignment_bytes;
  if (*alignment < least)
    *alignment = least;
  if (*alignment < ACCRT_POOL_MIN_ALIGNMENT)
    *alignment = ACCRT_POOL_MIN_ALIGNMENT;
  if (out_local->stream != NULL && accrt_stream_device(out_local->stream) != pool->device) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "stream %" PRIu64 " is of another device than the pool",
                      accrt_stream_id(out_local->stream));
  }
  return ACCRT_OK;
}

accrt_status_t accrt_buffer_create(accrt_pool_t* pool, uint64_t size_bytes,
                                   const accrt_buffer_options_t* options,
                                   accrt_buffer_t** out_buffer) {
  if (out_buffer == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_buffer is NULL");
  *out_buffer = NULL;
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (pool == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "pool is NULL");
  if (pool->imports)
    return ACCRT_FAIL(UNSUPPORTED, "nothing can be allocated from the pool of imports");
  accrt_buffer_options_t local;
  status = check_options(pool, options, &local);
  if (status != ACCRT_OK)
    return status;
  accrt_buffer_t* buffer;
  status = accrt_pool_buffer_record(pool, &buffer);
  if (status != ACCRT_OK)
    return status;
  buffer->size_bytes = size_bytes;
  buffer->alignment_bytes = local.alignment_bytes;
  buffer->id = accrt_instance_next_id(pool->instance);
  set_label(buffer, local.label);
  status =
      accrt_pool_take(pool, buffer, local.stream != NULL ? accrt_stream_fence(local.stream) : NULL);
  if (status != ACCRT_OK) {
    accrt_pool_drop_record(pool, buffer);
    return status;
  }
  (void)accrt_instance_retain(pool->instance);
  *out_buffer = buffer;
  return ACCRT_OK;
}

/* Makes the memory known to the driver, where it wants to know. */
static accrt_status_t import_memory(accrt_buffer_t* buffer, void* pointer) {
  accrt_device_t* device = buffer->pool->device;
  const accrt_driver_table_t* table = accrt_device_driver_table(device);
  const bool host_memory = (accrt_device_facts(device)->flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0;
  buffer->address = (uint64_t)(uintptr_t)pointer;
  buffer->host_pointer = pointer;
  if (table->memory_import == NULL) {
    if (host_memory)
      return ACCRT_OK;
    return ACCRT_FAIL(UNSUPPORTED, "%s cannot reach somebody else's host memory",
                      accrt_device_facts(device)->name);
  }
  /* Nothing to reach: drivers need not know of empty ranges. */
  if (buffer->size_bytes == 0)
    return ACCRT_OK;
  const accrt_status_t status = table->memory_import(accrt_device_driver_device(device), pointer,
                                                     buffer->size_bytes, &buffer->import);
  if (status != ACCRT_OK)
    return status;
  buffer->driver_import = 1;
  buffer->address = buffer->import.device_address;
  buffer->host_pointer =
      buffer->import.host_pointer != NULL ? buffer->import.host_pointer : pointer;
  return ACCRT_OK;
}

static uint64_t natural_alignment(uint64_t address) {
  return address == 0 ? 1 : address & (~address + 1);
}

accrt_status_t accrt_buffer_import(accrt_device_t* device, void* pointer, uint64_t size_bytes,
                                   void (*release)(void* user), void* user,
                                   accrt_buffer_t** out_buffer) {
  if (out_buffer == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_buffer is NULL");
  *out_buffer = NULL;
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (device == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "device is NULL");
  if (pointer == NULL && size_bytes != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "pointer is NULL for %" PRIu64 " bytes", size_bytes);
  if (!accrt_range_fits((uint64_t)(uintptr_t)pointer, size_bytes, UINT64_MAX)) {
    return ACCRT_FAIL(OVERFLOW, "%" PRIu64 " bytes at %p wrap around", size_bytes, pointer);
  }
  accrt_pool_t* pool;
  status = accrt_pool_default(device, ACCRT_MEMORY_IMPORTED, &pool);
  if (status != ACCRT_OK)
    return status;
  accrt_buffer_t* buffer;
  status = accrt_pool_buffer_record(pool, &buffer);
  if (status != ACCRT_OK)
    return status;
  buffer->size_bytes = size_bytes;
  status = import_memory(buffer, pointer);
  if (status != ACCRT_OK) {
    accrt_pool_drop_record(pool, buffer);
    return status;
  }
  buffer->id = accrt_instance_next_id(pool->instance);
  buffer->alignment_bytes = natural_alignment(buffer->address);
  buffer->release = release;
  buffer->release_user = user;
  accrt_pool_add_live(pool, buffer);
  (void)accrt_instance_retain(pool->instance);
  *out_buffer = buffer;
  return ACCRT_OK;
}

/* ---- Life ---- */

void accrt_buffer_ref(accrt_buffer_t* buffer) {
  accrt_object_retain(&buffer->object);
}

void accrt_buffer_unref(accrt_buffer_t* buffer) {
  if (buffer != NULL && accrt_object_release(&buffer->object))
    accrt_pool_retire(buffer->pool, buffer);
}

accrt_buffer_t* accrt_buffer_retain(accrt_buffer_t* buffer) {
  if (buffer == NULL || accrt_forked())
    return buffer;
  accrt_buffer_ref(buffer);
  (void)accrt_instance_retain(buffer->pool->instance);
  return buffer;
}

void accrt_buffer_release(accrt_buffer_t* buffer) {
  if (buffer == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = buffer->pool->instance;
  accrt_buffer_unref(buffer);
  accrt_instance_release(instance);
}

/* No unfinished use but on `fence`. */
static bool only_used_by(accrt_buffer_t* buffer, const accrt_fence_t* fence) {
  bool only = true;
  accrt_mutex_lock(&buffer->use_lock);
  const accrt_buffer_use_t* uses = uses_of(buffer);
  for (uint32_t i = 0; i < buffer->use_count && only; ++i) {
    only = uses[i].fence == fence || accrt_fence_passed(uses[i].fence, uses[i].submission);
  }
  accrt_mutex_unlock(&buffer->use_lock);
  return only;
}

accrt_status_t accrt_stream_free(accrt_stream_t* stream, accrt_buffer_t* buffer) {
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (stream == NULL || buffer == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", stream == NULL ? "stream" : "buffer");
  /* Acquire pairs with the releases of references given up by other threads. */
  const uint32_t references =
      atomic_load_explicit(&buffer->object.references, memory_order_acquire);
  if (references != 1) {
    return ACCRT_FAIL(INVALID_STATE, "buffer %" PRIu64 " has %" PRIu32 " references", buffer->id,
                      references);
  }
  accrt_fence_t* fence = accrt_stream_fence(stream);
  if (!only_used_by(buffer, fence)) {
    return ACCRT_FAIL(INVALID_STATE, "buffer %" PRIu64 " is in use on another stream than %" PRIu64,
                      buffer->id, accrt_stream_id(stream));
  }
  status = accrt_buffer_note_fence(buffer, fence, accrt_stream_last_submission(stream));
  if (status != ACCRT_OK)
    return status;
  accrt_buffer_release(buffer);
  return ACCRT_OK;
}

/* ---- Facts and mapping ---- */

void accrt_buffer_range(const accrt_buffer_t* buffer, uint64_t* out_address,
                        uint64_t* out_size_bytes) {
  *out_address = buffer->address;
  *out_size_bytes = buffer->size_bytes;
}

accrt_device_t* accrt_buffer_device(const accrt_buffer_t* buffer) {
  return buffer->pool->device;
}

accrt_status_t accrt_buffer_info(accrt_buffer_t* buffer, accrt_buffer_info_t* out_info) {
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (buffer == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "buffer is NULL");
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  info.kind = buffer->pool->kind;
  info.id = buffer->id;
  info.size_bytes = buffer->size_bytes;
  info.device_address = buffer->address;
  info.host_pointer = buffer->host_pointer;
  info.alignment_bytes = buffer->alignment_bytes;
  return accrt_struct_write("accrt_buffer_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_buffer_map(accrt_buffer_t* buffer, uint64_t offset_bytes, uint64_t size_bytes,
                                void** out_pointer) {
  if (out_pointer == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_pointer is NULL");
  *out_pointer = NULL;
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (buffer == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "buffer is NULL");
  if (!accrt_range_fits(offset_bytes, size_bytes, buffer->size_bytes)) {
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "offset %" PRIu64 " + size %" PRIu64 " is past the buffer's %" PRIu64
                      " bytes",
                      offset_bytes, size_bytes, buffer->size_bytes);
  }
  if (buffer->host_pointer == NULL && buffer->size_bytes != 0) {
    return ACCRT_FAIL(UNSUPPORTED, "buffer %" PRIu64 " of %s is not reachable from the host",
                      buffer->id, accrt_device_facts(buffer->pool->device)->name);
  }
  atomic_fetch_add_explicit(&buffer->map_count, 1, memory_order_relaxed);
  *out_pointer = buffer->host_pointer != NULL ? (char*)buffer->host_pointer + offset_bytes : NULL;
  return ACCRT_OK;
}

accrt_status_t accrt_buffer_unmap(accrt_buffer_t* buffer) {
  const accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (buffer == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "buffer is NULL");
  unsigned count = atomic_load_explicit(&buffer->map_count, memory_order_relaxed);
  do {
    if (count == 0)
      return ACCRT_FAIL(INVALID_STATE, "buffer %" PRIu64 " is not mapped", buffer->id);
  } while (!atomic_compare_exchange_weak_explicit(&buffer->map_count, &count, count - 1,
                                                  memory_order_relaxed, memory_order_relaxed));
  return ACCRT_OK;
}
