/* runtime/memory/pool.h - what is behind accrt_pool_t and accrt_buffer_t. Private to runtime/memory and its tests.
 *
 * Locks: one per pool, held for short; no driver, allocator or user code is called under it. Order: a pool set's lock, then a
 * pool's lock, then a buffer's use lock.
 */
#ifndef ACCRT_RUNTIME_MEMORY_POOL_H_
#define ACCRT_RUNTIME_MEMORY_POOL_H_

#include "runtime/memory/buffer.h"
#include "runtime/memory/heap.h"
#include "runtime/memory/upcalls.h"

#define ACCRT_LABEL_BYTES 64
#define ACCRT_BUFFER_INLINE_USES 4
#define ACCRT_POOL_MIN_ALIGNMENT 256u

/* The last use of a buffer on one stream. */
typedef struct accrt_buffer_use {
  accrt_fence_t* fence; /* one reference */
  uint64_t submission;
} accrt_buffer_use_t;

struct accrt_buffer {
  accrt_object_t object;
  accrt_pool_t* pool;       /* one reference; imports: the device's pool of imports */
  accrt_buffer_t* previous; /* in the pool's list of live or of retiring buffers */
  accrt_buffer_t* next;
  accrt_block_t* block; /* NULL for imports */
  uint64_t id;
  uint64_t size_bytes;
  uint64_t address;
  void* host_pointer;
  uint64_t alignment_bytes;
  atomic_uint map_count;
  uint32_t retiring;
  accrt_mutex_t use_lock;
  uint32_t use_count;
  size_t use_capacity; /* of more_uses */
  accrt_buffer_use_t uses[ACCRT_BUFFER_INLINE_USES];
  accrt_buffer_use_t* more_uses; /* holds all of them once it is there */
  accrt_driver_memory_t import;  /* imports that the driver made */
  uint32_t driver_import;
  uint32_t watched;
  void (*release)(void* user);
  void* release_user;
  char label[ACCRT_LABEL_BYTES];
};

struct accrt_pool {
  accrt_object_t object;
  accrt_device_t* device;
  accrt_instance_t* instance;
  accrt_pool_t* previous; /* in the device's set */
  accrt_pool_t* next;
  uint32_t kind;
  uint32_t one_mapping; /* every allocation has its own mapping */
  uint32_t
      system_memory; /* host memory from the instance's allocator: the driver has none of this kind */
  uint32_t imports; /* the device's pool of imports: no memory of its own */
  uint64_t limit_bytes;
  uint64_t granularity_bytes; /* driver mappings are multiples of this */
  uint64_t grow_bytes;
  char label[ACCRT_LABEL_BYTES];
  accrt_mutex_t lock;
  /* under the lock */
  accrt_heap_t heap;
  accrt_buffer_t* live;
  accrt_buffer_t* retiring;
  accrt_buffer_t* spare_buffers; /* linked by next */
  uint32_t spare_buffer_count;
  accrt_pool_statistics_t statistics; /* reserved, used, retiring, requested, high water, counts */
};

/* Options beyond the public ones. */
typedef struct accrt_pool_traits {
  uint32_t one_mapping;
  uint32_t imports;
} accrt_pool_traits_t;

/* As accrt_pool_create, for an instance that the caller keeps alive: the reference holds the pool alone. */
accrt_status_t accrt_pool_make(accrt_device_t* device, const accrt_pool_options_t* options,
                               const accrt_pool_traits_t* traits, accrt_pool_t** out_pool);
/* The device's own pool of a kind, imports included. */
accrt_status_t accrt_pool_default(accrt_device_t* device, uint32_t kind, accrt_pool_t** out_pool);

/* Memory for a buffer: fills block, address and host_pointer, and puts the buffer into the live list. */
accrt_status_t accrt_pool_take(accrt_pool_t* pool, accrt_buffer_t* buffer,
                               accrt_fence_t* stream_order);
/* A zeroed buffer record, and back. */
accrt_status_t accrt_pool_buffer_record(accrt_pool_t* pool, accrt_buffer_t** out_buffer);
/* Puts a record without users back. */
void accrt_pool_drop_record(accrt_pool_t* pool, accrt_buffer_t* buffer);
void accrt_pool_add_live(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* The last reference of a live buffer is gone: gives its memory back now or when its streams have passed. */
void accrt_pool_retire(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* Takes back what streams have passed. */
void accrt_pool_reap(accrt_pool_t* pool);
/* All uses of a buffer are over. */
bool accrt_buffer_is_idle(accrt_buffer_t* buffer);
/* Drops the records of uses. */
void accrt_buffer_clear_uses(accrt_buffer_t* buffer);
/* As accrt_buffer_note_use for a fence. */
accrt_status_t accrt_buffer_note_fence(accrt_buffer_t* buffer, accrt_fence_t* fence,
                                       uint64_t submission);

/* ---- For runtime/drivers/common ---- */
void accrt_pool_set_init(accrt_pool_set_t* set);
/* Before the device is closed: no stream runs, no buffer or pool is held by anybody. */
void accrt_pool_set_deinit(accrt_pool_set_t* set);
/* Takes back what streams have passed, in all pools of the device. */
void accrt_device_reap_pools(accrt_device_t* device);

#endif /* ACCRT_RUNTIME_MEMORY_POOL_H_ */
