/* runtime/memory/buffer.c - buffers: lifetime, last uses, mapping. It knows fences, not streams. */
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/fork.h"
#include "runtime/core/struct.h"
#include "runtime/core/watched.h"
#include "runtime/memory/pool.h"

#define MAX_ALIGNMENT (UINT64_C(1) << 30)
/* First capacity of the overflow array, for streams without an entry in the buffer itself. */
#define FIRST_OVERFLOW 4u
#define EXPORT_FLAGS (ACCRT_BUFFER_FLAG_EXPORT_FD | ACCRT_BUFFER_FLAG_EXPORT_IPC)

/* ---- Uses ---- */

static accrt_fence_t* fence_of(const accrt_buffer_use_t* use) {
  /* Acquire pairs with the release in claim(): the entry's number is at least the one of the
   * claim. */
  return atomic_load_explicit(&use->fence, memory_order_acquire);
}

static uint64_t submission_of(const accrt_buffer_use_t* use) {
  return atomic_load_explicit(&use->submission, memory_order_relaxed);
}

/* Raises the entry's number. Relaxed is enough: only a thread with the last reference reads the
 * numbers, and the reference count orders that. */
static void raise(accrt_buffer_use_t* use, uint64_t submission) {
  uint_least64_t seen = submission_of(use);
  while (seen < submission &&
         !atomic_compare_exchange_weak_explicit(&use->submission, &seen, submission,
                                                memory_order_relaxed, memory_order_relaxed)) {
  }
}

bool accrt_buffer_is_idle(accrt_buffer_t* buffer) {
  bool idle = true;
  for (uint32_t i = 0; i < ACCRT_BUFFER_INLINE_USES && idle; ++i) {
    const accrt_fence_t* fence = fence_of(&buffer->uses[i]);
    idle = fence == NULL || accrt_fence_passed(fence, submission_of(&buffer->uses[i]));
  }
  if (!idle || buffer->more_uses == NULL)
    return idle;
  accrt_mutex_lock(&buffer->use_lock);
  for (size_t i = 0; i < buffer->more_count && idle; ++i)
    idle = accrt_fence_passed(buffer->more_uses[i].fence, buffer->more_uses[i].submission);
  accrt_mutex_unlock(&buffer->use_lock);
  return idle;
}

accrt_fence_t* accrt_buffer_only_user(accrt_buffer_t* buffer) {
  accrt_fence_t* only = NULL;
  if (buffer->more_uses != NULL)
    return NULL;
  for (uint32_t i = 0; i < ACCRT_BUFFER_INLINE_USES; ++i) {
    accrt_fence_t* fence = fence_of(&buffer->uses[i]);
    if (fence == NULL || accrt_fence_passed(fence, submission_of(&buffer->uses[i])))
      continue;
    if (only != NULL)
      return NULL;
    only = fence;
  }
  return only;
}

void accrt_buffer_set_use(accrt_buffer_t* buffer, accrt_fence_t* fence, uint64_t submission) {
  accrt_buffer_use_t* uses = buffer->uses;
  if (fence_of(&uses[0]) != fence || fence_of(&uses[1]) != NULL || buffer->more_uses != NULL) {
    accrt_fence_retain(fence);
    for (uint32_t i = 0; i < ACCRT_BUFFER_INLINE_USES; ++i) {
      if (fence_of(&uses[i]) == fence && submission_of(&uses[i]) > submission)
        submission = submission_of(&uses[i]);
    }
    accrt_buffer_clear_uses(buffer);
    atomic_store_explicit(&uses[0].fence, fence, memory_order_relaxed);
  }
  if (submission_of(&uses[0]) < submission)
    atomic_store_explicit(&uses[0].submission, submission, memory_order_relaxed);
}

bool accrt_buffer_is_unshared(accrt_buffer_t* buffer) {
  /* Acquire pairs with the release of other threads' references, so that their noted uses are
   * visible. */
  if (atomic_load_explicit(&buffer->object.references, memory_order_acquire) != 1)
    return false;
  if (accrt_buffer_is_idle(buffer))
    return true;
  buffer->pool->device->above->refresh_fences(buffer->pool->device);
  return accrt_buffer_is_idle(buffer);
}

void accrt_buffer_clear_uses(accrt_buffer_t* buffer) {
  for (uint32_t i = 0; i < ACCRT_BUFFER_INLINE_USES; ++i) {
    accrt_fence_release(fence_of(&buffer->uses[i]));
    atomic_store_explicit(&buffer->uses[i].fence, NULL, memory_order_relaxed);
    atomic_store_explicit(&buffer->uses[i].submission, 0, memory_order_relaxed);
  }
  for (size_t i = 0; i < buffer->more_count; ++i)
    accrt_fence_release(buffer->more_uses[i].fence);
  accrt_free_array(accrt_instance_allocator(buffer->pool->instance), buffer->more_uses,
                   buffer->more_capacity, sizeof *buffer->more_uses);
  buffer->more_uses = NULL;
  buffer->more_count = 0;
  buffer->more_capacity = 0;
}

static accrt_buffer_use_t* find_use(accrt_buffer_t* buffer, const accrt_fence_t* fence) {
  for (uint32_t i = 0; i < ACCRT_BUFFER_INLINE_USES; ++i) {
    if (fence_of(&buffer->uses[i]) == fence)
      return &buffer->uses[i];
  }
  return NULL;
}

/* Claims an entry that is free or whose stream is gone, because no other thread writes to such an
 * entry. Requires the use lock. */
static accrt_buffer_use_t* claim(accrt_buffer_t* buffer, accrt_fence_t* fence, uint64_t submission,
                                 accrt_fence_t** out_replaced) {
  ACCRT_ASSERT_HELD(&buffer->use_lock);
  for (uint32_t i = 0; i < ACCRT_BUFFER_INLINE_USES; ++i) {
    accrt_buffer_use_t* use = &buffer->uses[i];
    accrt_fence_t* old = fence_of(use);
    if (old != NULL && !accrt_fence_is_gone(old))
      continue;
    accrt_fence_retain(fence);
    *out_replaced = old;
    atomic_store_explicit(&use->submission, submission, memory_order_relaxed);
    /* Release pairs with the acquire in fence_of. */
    atomic_store_explicit(&use->fence, fence, memory_order_release);
    return use;
  }
  return NULL;
}

/* Returns the overflow's entry of this stream, or one whose stream has passed, or a new one if
 * there is room. Requires the use lock. */
static accrt_buffer_overflow_t* find_overflow(accrt_buffer_t* buffer, const accrt_fence_t* fence) {
  ACCRT_ASSERT_HELD(&buffer->use_lock);
  accrt_buffer_overflow_t* uses = buffer->more_uses;
  accrt_buffer_overflow_t* passed = NULL;
  for (size_t i = 0; i < buffer->more_count; ++i) {
    if (uses[i].fence == fence)
      return &uses[i];
    if (passed == NULL && accrt_fence_passed(uses[i].fence, uses[i].submission))
      passed = &uses[i];
  }
  if (passed != NULL || buffer->more_count == buffer->more_capacity)
    return passed;
  uses[buffer->more_count] = (accrt_buffer_overflow_t){NULL, 0};
  return &uses[buffer->more_count++];
}

static bool note_overflow(accrt_buffer_t* buffer, accrt_fence_t* fence, uint64_t submission,
                          accrt_fence_t** out_replaced) {
  ACCRT_ASSERT_HELD(&buffer->use_lock);
  accrt_buffer_overflow_t* use = find_overflow(buffer, fence);
  if (use == NULL)
    return false;
  if (use->fence != fence) {
    *out_replaced = use->fence;
    accrt_fence_retain(fence);
    *use = (accrt_buffer_overflow_t){fence, submission};
  } else if (use->submission < submission) {
    use->submission = submission;
  }
  return true;
}

/* Enlarges the overflow. The allocation happens outside the lock. */
static accrt_status_t grow_uses(accrt_buffer_t* buffer, size_t seen_capacity) {
  const accrt_allocator_t* allocator = accrt_instance_allocator(buffer->pool->instance);
  size_t capacity = seen_capacity == 0 ? FIRST_OVERFLOW : seen_capacity * 2;
  void* memory;
  ACCRT_TRY(accrt_alloc_array(allocator, capacity, sizeof(accrt_buffer_overflow_t), &memory));
  accrt_mutex_lock(&buffer->use_lock);
  if (buffer->more_capacity < capacity) {
    accrt_buffer_overflow_t* old = buffer->more_uses;
    const size_t old_capacity = buffer->more_capacity;
    if (buffer->more_count > 0)
      memcpy(memory, old, buffer->more_count * sizeof *old);
    buffer->more_uses = memory;
    buffer->more_capacity = capacity;
    memory = old;
    capacity = old_capacity;
  }
  accrt_mutex_unlock(&buffer->use_lock);
  accrt_free_array(allocator, memory, capacity, sizeof(accrt_buffer_overflow_t));
  return ACCRT_OK;
}

static accrt_status_t note_new(accrt_buffer_t* buffer, accrt_fence_t* fence, uint64_t submission) {
  for (;;) {
    accrt_fence_t* replaced = NULL;
    accrt_mutex_lock(&buffer->use_lock);
    accrt_buffer_use_t* use = find_use(buffer, fence);
    if (use != NULL)
      raise(use, submission);
    const bool noted = use != NULL || claim(buffer, fence, submission, &replaced) != NULL ||
                       note_overflow(buffer, fence, submission, &replaced);
    const size_t capacity = buffer->more_capacity;
    accrt_mutex_unlock(&buffer->use_lock);
    accrt_fence_release(replaced);
    if (noted)
      return ACCRT_OK;
    ACCRT_TRY(grow_uses(buffer, capacity));
  }
}

accrt_status_t accrt_buffer_note_fence(accrt_buffer_t* buffer, accrt_fence_t* fence,
                                       uint64_t submission) {
  accrt_buffer_use_t* use = find_use(buffer, fence);
  if (use == NULL)
    return note_new(buffer, fence, submission);
  raise(use, submission);
  return ACCRT_OK;
}

/* ---- Creation ---- */

static void set_label(accrt_buffer_t* buffer, const char* label) {
  size_t length = 0;
  if (label != NULL) {
    length = strnlen(label, sizeof buffer->label - 1);
    memcpy(buffer->label, label, length);
  }
  buffer->label[length] = '\0';
}

static accrt_status_t read_options(const accrt_buffer_options_t* options,
                                   accrt_buffer_options_t* out_local) {
  /* Nearly all callers pass these options; they need no negotiation. */
  if (options == NULL || options->struct_size != sizeof *options || options->next != NULL) {
    return accrt_struct_read("accrt_buffer_options_t", options, out_local, sizeof *out_local);
  }
  *out_local = *options;
  return ACCRT_OK;
}

/* `*out_fence` gets the fence of the stream that the options name, if any. */
static accrt_status_t check_options(accrt_pool_t* pool, const accrt_buffer_options_t* options,
                                    accrt_buffer_options_t* out_local, accrt_fence_t** out_fence) {
  ACCRT_TRY(read_options(options, out_local));
  if ((out_local->flags & ~EXPORT_FLAGS) != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", out_local->flags);
  if (out_local->flags == EXPORT_FLAGS)
    return ACCRT_FAIL(INVALID_ARGUMENT, "a buffer is exported by one kind of handle, not by both");
  uint64_t* alignment = &out_local->alignment_bytes;
  if (*alignment != 0 && (!accrt_is_power_of_two(*alignment) || *alignment > MAX_ALIGNMENT)) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "alignment_bytes %" PRIu64 " is not a power of two up to %" PRIu64,
                      *alignment, MAX_ALIGNMENT);
  }
  if (*alignment < pool->min_alignment_bytes)
    *alignment = pool->min_alignment_bytes;
  if (out_local->stream == NULL)
    return ACCRT_OK;
  accrt_device_t* device;
  *out_fence = pool->device->above->fence_of(out_local->stream, &device);
  if (device == pool->device)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "stream %" PRIu64 " is of another device than the pool",
                    (*out_fence)->stream_id);
}

/* Checks what an export flag requires of the pool and its driver. */
static accrt_status_t check_export(const accrt_pool_t* pool, uint32_t flags) {
  if (flags == 0)
    return ACCRT_OK;
  if (pool->kind == ACCRT_MEMORY_DEVICE &&
      accrt_device_driver_table(pool->device)->memory_allocate_exportable != NULL)
    return ACCRT_OK;
  return ACCRT_FAIL(UNSUPPORTED, "%s has no memory of kind %" PRIu32 " that can be exported",
                    accrt_device_facts(pool->device)->name, pool->kind);
}

/* Makes a buffer with memory that no stream uses. */
static accrt_status_t make_buffer(accrt_pool_t* pool, uint64_t size_bytes,
                                  const accrt_buffer_options_t* options,
                                  accrt_buffer_t** out_buffer) {
  accrt_buffer_t* buffer;
  ACCRT_TRY(accrt_pool_buffer_record(pool, &buffer));
  buffer->size_bytes = size_bytes;
  buffer->alignment_bytes = options->alignment_bytes;
  buffer->id = accrt_instance_next_id(pool->instance);
  set_label(buffer, options->label);
  if (options->flags != 0)
    buffer->handle_kind =
        (options->flags & ACCRT_BUFFER_FLAG_EXPORT_FD) != 0 ? ACCRT_HANDLE_FD : ACCRT_HANDLE_IPC;
  accrt_status_t status =
      options->flags != 0 ? accrt_pool_take_apart(pool, buffer) : accrt_pool_take(pool, buffer);
  if (status != ACCRT_OK) {
    accrt_pool_drop_record(pool, buffer);
    return status;
  }
  *out_buffer = buffer;
  return ACCRT_OK;
}

accrt_status_t accrt_inner_buffer_create(accrt_pool_t* pool, uint64_t size_bytes,
                                         const accrt_buffer_options_t* options,
                                         accrt_buffer_t** out_buffer) {
  if (out_buffer != NULL)
    *out_buffer = NULL;
  ACCRT_CHECK(out_buffer, pool);
  if (pool->imports)
    return ACCRT_FAIL(UNSUPPORTED, "nothing can be allocated from the pool of imports");
  accrt_buffer_options_t local;
  accrt_fence_t* fence = NULL;
  ACCRT_TRY(check_options(pool, options, &local, &fence));
  ACCRT_TRY(check_export(pool, local.flags));
  ACCRT_TRY(accrt_device_check(pool->device));
  accrt_buffer_t* buffer = NULL;
  if (fence != NULL && local.flags == 0 && !accrt_watched())
    buffer = accrt_pool_take_freed(pool, fence, size_bytes, local.alignment_bytes);
  if (buffer != NULL) {
    set_label(buffer, local.label);
  } else {
    ACCRT_TRY(make_buffer(pool, size_bytes, &local, &buffer));
  }
  (void)accrt_instance_retain(pool->instance);
  *out_buffer = buffer;
  return ACCRT_OK;
}

accrt_status_t accrt_buffer_create(accrt_pool_t* pool, uint64_t size_bytes,
                                   const accrt_buffer_options_t* options,
                                   accrt_buffer_t** out_buffer) {
  ACCRT_ENTER_INNER(accrt_inner_buffer_create(pool, size_bytes, options, out_buffer));
}

/* ---- Lifetime ---- */

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

/* True when every use is complete except that on `fence`. The caller has the only reference. */
static bool only_used_by(accrt_buffer_t* buffer, const accrt_fence_t* fence) {
  bool only = true;
  for (uint32_t i = 0; i < ACCRT_BUFFER_INLINE_USES && only; ++i) {
    const accrt_fence_t* other = fence_of(&buffer->uses[i]);
    only = other == NULL || other == fence ||
           accrt_fence_passed(other, submission_of(&buffer->uses[i]));
  }
  for (size_t i = 0; i < buffer->more_count && only; ++i) {
    const accrt_buffer_overflow_t* use = &buffer->more_uses[i];
    only = use->fence == fence || accrt_fence_passed(use->fence, use->submission);
  }
  return only;
}

accrt_status_t accrt_buffer_free_in_order(accrt_buffer_t* buffer, accrt_fence_t* fence,
                                          uint64_t submission) {
  /* Acquire pairs with the release of other threads' references. */
  const uint32_t references =
      atomic_load_explicit(&buffer->object.references, memory_order_acquire);
  if (references != 1) {
    return ACCRT_FAIL(INVALID_STATE, "buffer %" PRIu64 " has %" PRIu32 " references", buffer->id,
                      references);
  }
  bool only = only_used_by(buffer, fence);
  if (!only) {
    buffer->pool->device->above->refresh_fences(buffer->pool->device);
    only = only_used_by(buffer, fence);
  }
  if (!only) {
    return ACCRT_FAIL(INVALID_STATE, "buffer %" PRIu64 " is in use on another stream than %" PRIu64,
                      buffer->id, fence->stream_id);
  }
  accrt_instance_t* instance = buffer->pool->instance;
  accrt_buffer_set_use(buffer, fence, submission);
  /* Relaxed is enough: it was the last reference, and the pool's lock publishes the rest. */
  atomic_store_explicit(&buffer->object.references, 0, memory_order_relaxed);
  if (!accrt_pool_free_in_order(buffer->pool, buffer, fence))
    accrt_pool_retire(buffer->pool, buffer);
  accrt_instance_release(instance);
  return ACCRT_OK;
}

/* ---- Properties and mapping ---- */

void accrt_buffer_range(const accrt_buffer_t* buffer, uint64_t* out_address,
                        uint64_t* out_size_bytes) {
  *out_address = buffer->address;
  *out_size_bytes = buffer->size_bytes;
}

void* accrt_buffer_host_pointer(const accrt_buffer_t* buffer) {
  return buffer->host_pointer;
}

void* accrt_buffer_plain_pointer(const accrt_buffer_t* buffer) {
  return buffer->pool->system_memory ? buffer->host_pointer : NULL;
}

bool accrt_buffer_began_zeroed(const accrt_buffer_t* buffer) {
  return buffer->zeroed;
}

accrt_device_t* accrt_buffer_device(const accrt_buffer_t* buffer) {
  return buffer->pool->device;
}

accrt_status_t accrt_inner_buffer_info(accrt_buffer_t* buffer, accrt_buffer_info_t* out_info) {
  ACCRT_CHECK(buffer);
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  info.kind = buffer->pool->kind;
  info.id = buffer->id;
  info.size_bytes = buffer->size_bytes;
  info.device_address = buffer->address;
  info.host_pointer = buffer->host_pointer;
  info.alignment_bytes = buffer->alignment_bytes;
  return accrt_struct_write("accrt_buffer_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_buffer_info(accrt_buffer_t* buffer, accrt_buffer_info_t* out_info) {
  ACCRT_ENTER_INNER(accrt_inner_buffer_info(buffer, out_info));
}

accrt_status_t accrt_buffer_map(accrt_buffer_t* buffer, uint64_t offset_bytes, uint64_t size_bytes,
                                void** out_pointer) {
  if (out_pointer != NULL)
    *out_pointer = NULL;
  ACCRT_ENTER(out_pointer, buffer);
  if (size_bytes == ACCRT_TO_END && offset_bytes <= buffer->size_bytes)
    size_bytes = buffer->size_bytes - offset_bytes;
  if (!accrt_range_fits(offset_bytes, size_bytes, buffer->size_bytes)) {
    return ACCRT_FAIL(
        OUT_OF_RANGE,
        "offset %" PRIu64 " + size %" PRIu64 " is past the buffer's %" PRIu64 " bytes",
        offset_bytes, size_bytes != ACCRT_TO_END ? size_bytes : 0, buffer->size_bytes);
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
  ACCRT_ENTER(buffer);
  unsigned count = atomic_load_explicit(&buffer->map_count, memory_order_relaxed);
  do {
    if (count == 0)
      return ACCRT_FAIL(INVALID_STATE, "buffer %" PRIu64 " is not mapped", buffer->id);
  } while (!atomic_compare_exchange_weak_explicit(&buffer->map_count, &count, count - 1,
                                                  memory_order_relaxed, memory_order_relaxed));
  return ACCRT_OK;
}
