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
/* Of the option pool.one_mapping. */
#ifdef ACCRT_POOL_ONE_MAPPING_PER_ALLOCATION
#define ACCRT_POOL_ONE_MAPPING_DEFAULT 1u
#else
#define ACCRT_POOL_ONE_MAPPING_DEFAULT 0u
#endif

/* The last use of a buffer on one stream, in the buffer itself. An entry keeps its stream until that is gone, so that the next use
 * on the same stream is a store without a lock. Written under the use lock but for that. */
typedef struct accrt_buffer_use {
  _Atomic(accrt_fence_t*) fence; /* one reference; NULL: free */
  atomic_uint_least64_t submission;
} accrt_buffer_use_t;
/* The same for streams that found no room there, under the use lock. An entry whose stream has passed is used again. */
typedef struct accrt_buffer_overflow {
  accrt_fence_t* fence; /* one reference */
  uint64_t submission;
} accrt_buffer_overflow_t;

struct accrt_buffer {
  accrt_object_t object;
  uint32_t retiring;
  accrt_pool_t* pool;       /* one reference; imports: the device's pool of imports */
  accrt_buffer_t* previous; /* in the pool's list of live or of retiring buffers, or in a lane */
  accrt_buffer_t* next;
  accrt_buffer_t* previous_alike; /* in a lane: of a similar size */
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
  accrt_driver_memory_t import; /* imports that the driver made */
  uint32_t driver_import;
  uint32_t watched;
  uint32_t handle_kind; /* ACCRT_HANDLE_*: made to be exported; 0: not */
  void (*release)(void* user);
  void* release_user;
  char label[ACCRT_LABEL_BYTES];
};

#define ACCRT_LANE_BINS 64u
/* What one stream has freed in its order and not passed yet, for its own next allocations: buffer records with their memory, the
 * stream as their only use. */
typedef struct accrt_lane {
  struct accrt_lane* next; /* in the pool's list for this hash */
  accrt_fence_t* fence;    /* one reference */
  accrt_buffer_t* oldest;  /* by submission; linked by previous and next */
  accrt_buffer_t* newest;
  uint64_t bitmap; /* of the bins that are not empty */
  accrt_buffer_t* bins[ACCRT_LANE_BINS];
} accrt_lane_t;
#define ACCRT_POOL_LANE_LISTS 16u

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
  uint64_t
      grow_bytes; /* the first mapping; later ones are as large as what there is, up to a limit */
  uint64_t min_alignment_bytes; /* of buffers */
  char label[ACCRT_LABEL_BYTES];
  accrt_mutex_t lock;
  /* under the lock */
  accrt_heap_t heap;
  accrt_buffer_t* live;
  accrt_buffer_t* retiring;
  accrt_lane_t* lanes[ACCRT_POOL_LANE_LISTS]; /* by the stream's id */
  uint32_t dead_count;                        /* buffers in `retiring` and in lanes */
  accrt_segment_t*
      detached; /* out of the heap and out of the accounts, to be given to the driver; linked by next */
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
accrt_status_t accrt_pool_take(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* The same in a mapping of its own that can be exported by buffer->handle_kind. */
accrt_status_t accrt_pool_take_apart(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* A live buffer, all but its label ready, with memory that the stream has freed before; NULL when there is none that fits. */
accrt_buffer_t* accrt_pool_take_freed(accrt_pool_t* pool, accrt_fence_t* fence, uint64_t size_bytes,
                                      uint64_t alignment_bytes);
/* The last reference of a live buffer goes in the order of the stream that is its only use, in uses[0]. False, with nothing done,
 * when the pool does not keep such memory apart. */
bool accrt_pool_free_in_order(accrt_pool_t* pool, accrt_buffer_t* buffer, accrt_fence_t* fence);
/* A zeroed buffer record, and back. */
accrt_status_t accrt_pool_buffer_record(accrt_pool_t* pool, accrt_buffer_t** out_buffer);
/* Puts a record without users back. */
void accrt_pool_drop_record(accrt_pool_t* pool, accrt_buffer_t* buffer);
void accrt_pool_add_live(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* The last reference of a live buffer is gone: gives its memory back now or when its streams have passed. */
void accrt_pool_retire(accrt_pool_t* pool, accrt_buffer_t* buffer);
/* Takes back what streams have passed. */
void accrt_pool_reap(accrt_pool_t* pool);
/* Calls `visit` for each pool of a device, under no lock. */
void accrt_pools_visit(accrt_device_t* device, void (*visit)(accrt_pool_t* pool, void* user),
                       void* user);
/* Records that a mapping of mapped_bytes for `buffer` is not to be had, and who holds what on the device. */
accrt_status_t accrt_pool_fail_out_of_memory(accrt_pool_t* pool, const accrt_buffer_t* buffer,
                                             uint64_t mapped_bytes);
/* All uses of a buffer are over. */
bool accrt_buffer_is_idle(accrt_buffer_t* buffer);
/* The fence of the only use that is not over; NULL when all are, or when there are several. */
accrt_fence_t* accrt_buffer_only_user(accrt_buffer_t* buffer);
/* Makes `fence` the only entry, in uses[0]; the others are over, and nobody else knows the buffer. */
void accrt_buffer_keep_use(accrt_buffer_t* buffer, accrt_fence_t* fence, uint64_t submission);
/* Drops the records of uses. */
void accrt_buffer_clear_uses(accrt_buffer_t* buffer);
/* As accrt_buffer_note_use for a fence. */
accrt_status_t accrt_buffer_note_fence(accrt_buffer_t* buffer, accrt_fence_t* fence,
                                       uint64_t submission);

/* ---- Lanes: lane.c. Under the pool's lock. ---- */
accrt_lane_t* accrt_lane_find(accrt_pool_t* pool, const accrt_fence_t* fence);
/* Links a zeroed record as the lane of `fence`. */
void accrt_lane_link(accrt_pool_t* pool, accrt_lane_t* lane, accrt_fence_t* fence);
void accrt_lane_put(accrt_lane_t* lane, accrt_buffer_t* buffer);
/* A buffer whose block holds size_bytes at that alignment and is not much larger, taken out; NULL when there is none. */
accrt_buffer_t* accrt_lane_take(accrt_lane_t* lane, uint64_t size_bytes, uint64_t alignment_bytes);
/* The oldest buffer if the stream has passed it, taken out. */
accrt_buffer_t* accrt_lane_take_passed(accrt_lane_t* lane);

/* ---- For runtime/drivers/common ---- */
void accrt_pool_set_init(accrt_pool_set_t* set);
/* Before the device is closed: no stream runs, no buffer or pool is held by anybody. */
void accrt_pool_set_deinit(accrt_pool_set_t* set);
/* Takes back what streams have passed, in all pools of the device. */
void accrt_device_reap_pools(accrt_device_t* device);

#endif /* ACCRT_RUNTIME_MEMORY_POOL_H_ */
