/* runtime/memory/pool.h - the structs behind accrt_pool_t and accrt_buffer_t. For runtime/memory
 * and its tests alone.
 *
 * Locks: a pool has one, which is held for short times. No driver, allocator or user code is called
 * under it. runtime/core/lock_order.h has the order.
 */
#ifndef ACCRT_RUNTIME_MEMORY_POOL_H_
#define ACCRT_RUNTIME_MEMORY_POOL_H_

#include "runtime/memory/buffer.h"
#include "runtime/memory/device.h"
#include "runtime/memory/heap.h"
#include "runtime/memory/inner.h"

#define ACCRT_LABEL_BYTES 64
#define ACCRT_BUFFER_INLINE_USES 4
#define ACCRT_POOL_MIN_ALIGNMENT 256u
/* Granularity and alignment of host memory from the instance's allocator. */
#define ACCRT_POOL_SYSTEM_GRANULARITY 4096u

/* The last use of a buffer on one stream, in the buffer itself. An entry belongs to its stream
 * until the stream is gone, so that the next use on the same stream is a store without a lock. All
 * other writes are under the use lock. */
typedef struct accrt_buffer_use {
  _Atomic(accrt_fence_t*) fence; /* one reference; NULL: free */
  atomic_uint_least64_t submission;
} accrt_buffer_use_t;
/* The same for further streams, guarded by the use lock. An entry is reused when its stream has
 * passed. */
typedef struct accrt_buffer_overflow {
  accrt_fence_t* fence; /* one reference */
  uint64_t submission;
} accrt_buffer_overflow_t;

struct accrt_buffer {
  accrt_object_t object;
  uint32_t retiring;
  accrt_pool_t* pool; /* one reference; for imports: the device's pool of imports */
  accrt_buffer_t*
      previous; /* in the pool's list of live or retiring buffers, or in a stream cache */
  accrt_buffer_t* next;
  accrt_buffer_t* previous_alike; /* in a stream cache: buffers of a similar size */
  accrt_buffer_t* next_alike;
  accrt_block_t* block; /* NULL for imports */
  uint64_t id;
  uint64_t size_bytes;
  uint64_t address;
  void* host_pointer;
  uint64_t alignment_bytes;
  accrt_buffer_use_t uses[ACCRT_BUFFER_INLINE_USES];
  accrt_buffer_overflow_t* more_uses;
  size_t more_count;
  size_t more_capacity;
  accrt_mutex_t use_lock;
  atomic_uint map_count;
  accrt_driver_memory_t import; /* set when the driver made the import */
  uint32_t driver_import;
  uint32_t watched;
  uint32_t handle_kind; /* ACCRT_HANDLE_* if made for export; 0: not */
  bool zeroed;          /* its memory was zeros when it was allocated */
  void (*release)(void* user);
  void* release_user;
  char label[ACCRT_LABEL_BYTES];
};

#define ACCRT_STREAM_CACHE_BINS 64u
/* Memory that one stream has freed in its order but not passed yet, for that stream's next
 * allocations. It consists of buffer records with their memory. The stream is their only user. */
typedef struct accrt_stream_cache {
  struct accrt_stream_cache* next; /* in the pool's list for this hash */
  accrt_fence_t* fence;            /* one reference */
  accrt_buffer_t* oldest;          /* by submission; linked by previous and next */
  accrt_buffer_t* newest;
  uint64_t bitmap; /* the bins that are not empty */
  accrt_buffer_t* bins[ACCRT_STREAM_CACHE_BINS];
} accrt_stream_cache_t;
#define ACCRT_STREAM_CACHE_LISTS 16u

struct accrt_pool {
  accrt_object_t object;
  accrt_device_t* device;
  accrt_instance_t* instance;
  accrt_pool_t* previous; /* in the device's set */
  accrt_pool_t* next;
  uint32_t kind;
  uint32_t one_mapping; /* every allocation has its own mapping */
  /* Uses the instance's allocator, because the driver has no memory of this kind. */
  uint32_t system_memory;
  uint32_t imports; /* the device's pool of imports; it has no memory of its own */
  uint64_t limit_bytes;
  uint64_t granularity_bytes; /* driver mappings are multiples of this */
  uint64_t
      /* size of the first mapping; later ones have the size of the pool, up to a limit */
      grow_bytes;
  uint64_t min_alignment_bytes; /* of buffers */
  bool zeroed;                  /* the driver's mappings begin as zeros */
  char label[ACCRT_LABEL_BYTES];
  accrt_mutex_t lock;
  /* Guarded by the lock: */
  accrt_heap_t heap;
  accrt_buffer_t* live;
  accrt_buffer_t* retiring;
  accrt_stream_cache_t* stream_caches[ACCRT_STREAM_CACHE_LISTS]; /* hash table by the stream's id */
  uint32_t dead_count; /* buffers in `retiring` and in stream caches */
  /* Not in the heap and the accounts any more; to be returned to the driver. Linked by next. */
  accrt_segment_t* detached;
  accrt_buffer_t* spare_buffers; /* linked by next */
  uint32_t spare_buffer_count;
  accrt_pool_statistics_t statistics; /* reserved, used, retiring, requested, high water, counts */
};

/* Options beyond the public ones. */
typedef struct accrt_pool_traits {
  uint32_t one_mapping;
  uint32_t imports;
} accrt_pool_traits_t;

/* As accrt_pool_create, for a caller that retains the instance. The reference retains only the
 * pool. */
accrt_status_t accrt_pool_make(accrt_device_t* device, const accrt_pool_options_t* options,
                               const accrt_pool_traits_t* traits, accrt_pool_t** out_pool);

/* Allocates memory for a buffer: sets block, address and host_pointer, and puts the buffer in the
 * live list. */
accrt_status_t accrt_pool_take(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* The same with a mapping of its own that buffer->handle_kind can export. */
accrt_status_t accrt_pool_take_apart(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* Returns a live buffer, without its label, with memory that the stream has freed before; NULL when
 * none fits. */
accrt_buffer_t* accrt_pool_take_freed(accrt_pool_t* pool, accrt_fence_t* fence, uint64_t size_bytes,
                                      uint64_t alignment_bytes);
/* Drops the last reference to a live buffer in the order of its only user, the stream in uses[0].
 * False, and nothing is done, when the pool does not hold such memory for its stream. */
bool accrt_pool_free_in_order(accrt_pool_t* pool, accrt_buffer_t* buffer, accrt_fence_t* fence);
/* Returns a zeroed buffer record. */
accrt_status_t accrt_pool_buffer_record(accrt_pool_t* pool, accrt_buffer_t** out_buffer);
/* Takes back a record without references. */
void accrt_pool_drop_record(accrt_pool_t* pool, accrt_buffer_t* buffer);
void accrt_pool_add_live(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* Call it when the last reference to a live buffer is gone. Frees the memory now, or when all its
 * streams have passed. */
void accrt_pool_retire(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* Frees memory that streams have passed. */
void accrt_pool_reap(accrt_pool_t* pool);
/* Frees all that an unreferenced pool holds: stream caches, mappings, records. pool_life.c calls it
 * last. */
void accrt_pool_clear(accrt_pool_t* pool);
/* Calls `visit` for each pool of a device, without a lock. */
void accrt_pools_visit(accrt_device_t* device, void (*visit)(accrt_pool_t* pool, void* user),
                       void* user);
/* Records that a mapping of mapped_bytes for `buffer` failed. The message lists the pools of the
 * device and the memory that each holds. */
accrt_status_t accrt_pool_fail_out_of_memory(accrt_pool_t* pool, const accrt_buffer_t* buffer,
                                             uint64_t mapped_bytes);
/* True when all uses of a buffer have ended. */
bool accrt_buffer_is_idle(accrt_buffer_t* buffer);
/* The fence of the only unfinished use; NULL when there are none or several. */
accrt_fence_t* accrt_buffer_only_user(accrt_buffer_t* buffer);
/* Makes `fence` the only use, in uses[0]. All other uses have ended, and no other thread has the
 * buffer. */
void accrt_buffer_set_use(accrt_buffer_t* buffer, accrt_fence_t* fence, uint64_t submission);
/* Removes all noted uses. */
void accrt_buffer_clear_uses(accrt_buffer_t* buffer);

/* ---- Stream caches: stream_cache.c. Each function requires the pool's lock. ---- */
accrt_stream_cache_t* accrt_stream_cache_find(accrt_pool_t* pool, const accrt_fence_t* fence);
/* Makes a zeroed record the cache of `fence`. */
void accrt_stream_cache_link(accrt_pool_t* pool, accrt_stream_cache_t* cache, accrt_fence_t* fence);
void accrt_stream_cache_put(accrt_stream_cache_t* cache, accrt_buffer_t* buffer);
/* Takes out a buffer whose block has size_bytes at that alignment and is not much larger; NULL when
 * there is none. */
accrt_buffer_t* accrt_stream_cache_take(accrt_stream_cache_t* cache, uint64_t size_bytes,
                                        uint64_t alignment_bytes);
/* Takes out the oldest buffer if the stream has passed it; otherwise NULL. */
accrt_buffer_t* accrt_stream_cache_take_passed(accrt_stream_cache_t* cache);

/* ---- For runtime/drivers/common ---- */
void accrt_pool_set_init(accrt_pool_set_t* set);
/* Call it before the device is closed: no stream runs, and nothing references a buffer or pool. */
void accrt_pool_set_deinit(accrt_pool_set_t* set);
/* Frees the memory that streams have passed, in all pools of the device. */
void accrt_device_reap_pools(accrt_device_t* device);

#endif /* ACCRT_RUNTIME_MEMORY_POOL_H_ */
