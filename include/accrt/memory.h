/* accrt/memory.h - pools and buffers. Nothing here depends on programs or bundles. */
#ifndef ACCRT_MEMORY_H_
#define ACCRT_MEMORY_H_

#include "accrt/base.h"

ACCRT_BEGIN

/** fastest for the device; the host reaches it only with ACCRT_DEVICE_FLAG_HOST_MEMORY */
#define ACCRT_MEMORY_DEVICE 1u
#define ACCRT_MEMORY_PINNED 2u   /**< page-locked host memory, for fast copies */
#define ACCRT_MEMORY_HOST 3u     /**< plain host memory */
#define ACCRT_MEMORY_IMPORTED 4u /**< memory of another owner, wrapped */
#define ACCRT_MEMORY_MAPPED 5u   /**< a file's pages */

/** Options of accrt_pool_create. */
typedef struct accrt_pool_options {
  uint32_t struct_size;
  uint32_t kind; /**< ACCRT_MEMORY_DEVICE (also for 0), _PINNED or _HOST */
  const accrt_chain_t* next;
  uint64_t limit_bytes;       /**< most bytes reserved from the driver; 0: no limit */
  uint64_t granularity_bytes; /**< the pool grows by multiples of this; 0: the driver decides */
  /** copied, up to 63 bytes; names the pool in errors and snapshots; may be NULL */
  const char* label;
} accrt_pool_options_t;
ACCRT_ASSERT_LAYOUT(accrt_pool_options_t, label, 40);
#define ACCRT_POOL_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_pool_options_t)

/** Makes a pool on a device. The pool takes memory from the driver as it grows, and keeps it until
 * accrt_pool_trim. A buffer retains its pool; when the last reference to the pool is released, all
 * its memory goes back to the driver. Thread-safe.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_UNSUPPORTED (the device has no memory of
 *   that kind). Since: 0.1 */
ACCRT_API accrt_status_t accrt_pool_create(accrt_device_t* device,
                                           const accrt_pool_options_t* options,
                                           accrt_pool_t** out_pool);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_pool_t* accrt_pool_retain(accrt_pool_t* pool);
/** Drops a reference; NULL is allowed. Since: 0.1 */
ACCRT_API void accrt_pool_release(accrt_pool_t* pool);
/** The device's own pool of a kind, made on first use and lent by the device.
 * @param kind 0: ACCRT_MEMORY_DEVICE.
 * @return as accrt_pool_create. Since: 0.1 */
ACCRT_API accrt_status_t accrt_device_pool(accrt_device_t* device, uint32_t kind,
                                           accrt_pool_t** out_pool);

/** What a pool holds. Every byte is used, retiring or free. */
typedef struct accrt_pool_statistics {
  uint32_t struct_size;
  uint32_t reserved;        /**< 0 */
  void* next;               /**< NULL */
  uint64_t reserved_bytes;  /**< taken from the driver */
  uint64_t used_bytes;      /**< in live buffers, rounded up to the pool's alignment */
  uint64_t retiring_bytes;  /**< released, but streams still use it */
  uint64_t free_bytes;      /**< kept for the next allocation */
  uint64_t requested_bytes; /**< of used_bytes: what callers asked for */
  uint64_t high_water_used_bytes;
  uint64_t high_water_reserved_bytes;
  uint64_t largest_free_bytes; /**< largest single free block */
  uint64_t allocation_count;   /**< since the pool was made */
  uint64_t live_count;         /**< live buffers */
  uint64_t mapping_count;      /**< blocks taken from the driver and kept */
} accrt_pool_statistics_t;
ACCRT_ASSERT_LAYOUT(accrt_pool_statistics_t, mapping_count, 104);
#define ACCRT_POOL_STATISTICS_INIT ACCRT_STRUCT_INIT(accrt_pool_statistics_t)
/** Fills `out_statistics`. Thread-safe. Takes the pool's lock for a short time. Since: 0.1 */
ACCRT_API accrt_status_t accrt_pool_statistics(accrt_pool_t* pool,
                                               accrt_pool_statistics_t* out_statistics);

/** One live or retiring buffer in a snapshot. Frozen. */
typedef struct accrt_pool_entry {
  uint64_t buffer_id;
  uint64_t address;
  uint64_t size_bytes;
  uint32_t retiring; /**< 1: released, but streams still use it */
  uint32_t reserved;
  char label[64]; /**< of the buffer */
} accrt_pool_entry_t;
ACCRT_ASSERT_LAYOUT(accrt_pool_entry_t, label, 96);
/** Lists the pool's buffers. `entries` may be NULL if `capacity` is 0. `out_count` gets the full
 * number in any case. Thread-safe.
 * @param entry_size_bytes sizeof(accrt_pool_entry_t). Since: 0.1 */
ACCRT_API accrt_status_t accrt_pool_snapshot(accrt_pool_t* pool, accrt_pool_entry_t* entries,
                                             uint32_t capacity, uint32_t entry_size_bytes,
                                             uint32_t* out_count);
/** Returns free blocks to the driver, until at most keep_bytes are reserved or no block is entirely
 * free. Thread-safe; may block in the driver. Since: 0.1 */
ACCRT_API accrt_status_t accrt_pool_trim(accrt_pool_t* pool, uint64_t keep_bytes);

/* ---- Buffers ---- */

/* Memory that other processes can open. It is allocated separately, in whole mappings of the
 * driver. */
#define ACCRT_BUFFER_FLAG_EXPORT_FD 1u  /**< as ACCRT_HANDLE_FD */
#define ACCRT_BUFFER_FLAG_EXPORT_IPC 2u /**< as ACCRT_HANDLE_IPC; not both flags */

/** Options of accrt_buffer_create. */
typedef struct accrt_buffer_options {
  uint32_t struct_size;
  uint32_t flags; /**< ACCRT_BUFFER_FLAG_*; since 0.2 */
  const accrt_chain_t* next;
  uint64_t alignment_bytes; /**< power of two; 0: the device's minimum (at least 256) */
  /** allocate in the order of this stream: memory freed on it may be reused at once; may be NULL */
  accrt_stream_t* stream;
  const char* label; /**< copied, up to 63 bytes; may be NULL */
} accrt_buffer_options_t;
ACCRT_ASSERT_LAYOUT(accrt_buffer_options_t, label, 40);
#define ACCRT_BUFFER_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_buffer_options_t)

/** Allocates a buffer from a pool. Its contents are undefined. A size of 0 gives a valid buffer of
 * 0 bytes.
 * @param options NULL for the defaults.
 * @param out_buffer Owned by the caller.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_DEVICE_MEMORY (even after all free memory was trimmed; the
 *   message lists who holds what); ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_OVERFLOW;
 *   ACCRT_ERROR_UNSUPPORTED (a pool of kind ACCRT_MEMORY_IMPORTED, which holds imports only).
 *   Thread-safe. Since: 0.1 */
ACCRT_API accrt_status_t accrt_buffer_create(accrt_pool_t* pool, uint64_t size_bytes,
                                             const accrt_buffer_options_t* options,
                                             accrt_buffer_t** out_buffer);
/** Wraps memory that the caller owns, without a copy: host memory, or memory of this device (CUDA:
 * a device pointer).
 * @param release called once with `user`, on any thread, under no lock, when the last reference and
 *   the last use on any stream are gone. It may come after accrt_stream_synchronize has returned.
 *   NULL: the memory must outlive the buffer and all its uses.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_MEMORY; ACCRT_ERROR_UNSUPPORTED (the device cannot reach
 *   it); ACCRT_ERROR_OVERFLOW (the range goes beyond the last address). On failure `release` is not
 *   called. Since: 0.1 */
ACCRT_API accrt_status_t accrt_buffer_import(accrt_device_t* device, void* pointer,
                                             uint64_t size_bytes, void (*release)(void* user),
                                             void* user, accrt_buffer_t** out_buffer);
/** Adds a reference; returns its argument. Since: 0.1 */
ACCRT_API accrt_buffer_t* accrt_buffer_retain(accrt_buffer_t* buffer);
/** Drops a reference; NULL is allowed. The memory returns to its pool when every stream that used
 * it has completed that use. Never blocks. Since: 0.1 */
ACCRT_API void accrt_buffer_release(accrt_buffer_t* buffer);

/** Facts about a buffer. */
typedef struct accrt_buffer_info {
  uint32_t struct_size;
  uint32_t kind; /**< ACCRT_MEMORY_* */
  void* next;    /**< NULL */
  uint64_t id;
  uint64_t size_bytes;
  uint64_t device_address;
  void* host_pointer; /**< NULL: accrt_buffer_map gives one, if the host can reach the memory */
  uint64_t alignment_bytes;
} accrt_buffer_info_t;
ACCRT_ASSERT_LAYOUT(accrt_buffer_info_t, alignment_bytes, 56);
#define ACCRT_BUFFER_INFO_INIT ACCRT_STRUCT_INIT(accrt_buffer_info_t)
/** Fills `out_info`. Thread-safe, never blocks. Since: 0.1 */
ACCRT_API accrt_status_t accrt_buffer_info(accrt_buffer_t* buffer, accrt_buffer_info_t* out_info);

/** The host address of a range, to read and write. The caller must order its accesses with the work
 * of streams. Mappings nest; end each with accrt_buffer_unmap.
 * @param size_bytes ACCRT_TO_END: to the buffer's end.
 * @return ACCRT_OK; ACCRT_ERROR_OUT_OF_RANGE; ACCRT_ERROR_UNSUPPORTED (the host cannot reach it).
 *   Since: 0.1 */
ACCRT_API accrt_status_t accrt_buffer_map(accrt_buffer_t* buffer, uint64_t offset_bytes,
                                          uint64_t size_bytes, void** out_pointer);
/** Ends one mapping. @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (not mapped). Since: 0.1 */
ACCRT_API accrt_status_t accrt_buffer_unmap(accrt_buffer_t* buffer);

#define ACCRT_HANDLE_FD 1u /**< a POSIX file descriptor, sent over a socket */
/** bytes that any process of this machine can open while the exporter lives */
#define ACCRT_HANDLE_IPC 2u
/** A handle that takes memory to another process. */
typedef struct accrt_memory_handle {
  uint32_t struct_size;
  uint32_t kind; /**< ACCRT_HANDLE_* */
  void* next;    /**< NULL */
  int32_t fd;    /**< FD: owned by the holder of this struct; else -1 */
  uint32_t reserved;
  uint64_t size_bytes;
  unsigned char bytes[64]; /**< IPC */
} accrt_memory_handle_t;
ACCRT_ASSERT_LAYOUT(accrt_memory_handle_t, bytes, 96);
#define ACCRT_MEMORY_HANDLE_INIT ACCRT_STRUCT_INIT(accrt_memory_handle_t)
/** Exports a buffer that was made with an ACCRT_BUFFER_FLAG_EXPORT_* flag. `kind` must be the
 * flag's kind. Thread-safe.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (made without a flag, or with the other one);
 *   ACCRT_ERROR_UNSUPPORTED; the driver's statuses. Since: 0.2 */
ACCRT_API accrt_status_t accrt_buffer_export(accrt_buffer_t* buffer, uint32_t kind,
                                             accrt_memory_handle_t* out_handle);
/** Opens memory that another process exported. The handle's file descriptor stays the caller's, to
 * be closed by the caller. Thread-safe, may block.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_ARGUMENT (kind); ACCRT_ERROR_UNSUPPORTED;
 *   ACCRT_ERROR_OUT_OF_MEMORY; the driver's statuses. Since: 0.2 */
ACCRT_API accrt_status_t accrt_buffer_import_handle(accrt_device_t* device,
                                                    const accrt_memory_handle_t* handle,
                                                    accrt_buffer_t** out_buffer);

/** Releases the caller's reference in stream order: this stream's next allocation may use the
 * memory without a wait. No other stream may be using the buffer. On failure the reference stays
 * the caller's.
 * @return ACCRT_OK; ACCRT_ERROR_INVALID_STATE (other references, or used on another stream).
 *   Since: 0.1 */
ACCRT_API accrt_status_t accrt_stream_free(accrt_stream_t* stream, accrt_buffer_t* buffer);

ACCRT_END
#endif /* ACCRT_MEMORY_H_ */
