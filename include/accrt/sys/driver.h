/* accrt/sys/driver.h - what a driver fills, and what it may use. For driver authors: a weaker promise than the public API
 * (a minor version may append to these tables; see docs/driver-guide.md).
 *
 * A driver supplies primitives: devices, memory, in-order queues, command lists. Timelines, deferral, pools, error
 * propagation, reference counts and argument checks are common code: what reaches a driver has been checked. A driver knows no
 * bundle and no program. Nothing here has the shape of one vendor's API.
 *
 * Rules. Slots may be called from any thread at the same time, except that calls on one queue are made one at a time. No slot
 * blocks on the device unless its comment says so. Functions that return a status leave outputs zero on failure and describe
 * the failure with environment->fail. Completions may be called from any thread, also before the call that was given them
 * returns; a driver holds no lock while it calls one. Memory comes from environment->allocator alone.
 */
#ifndef ACCRT_SYS_DRIVER_H_
#define ACCRT_SYS_DRIVER_H_

#include "accrt/base.h"
#include "accrt/instance.h"

ACCRT_BEGIN

/* Version of this interface: major << 16 | minor. */
#define ACCRT_DRIVER_ABI_MAJOR 0
#define ACCRT_DRIVER_ABI_MINOR 2
/* The oldest minor version whose drivers this runtime takes: list_create was another function before. */
#define ACCRT_DRIVER_ABI_MINOR_LEAST 2
#define ACCRT_DRIVER_ABI_VERSION                                                                   \
  ((uint32_t)((ACCRT_DRIVER_ABI_MAJOR << 16) | ACCRT_DRIVER_ABI_MINOR))
/** Name of the one symbol that a driver's shared object exports. */
#define ACCRT_DRIVER_SYMBOL "accrt_driver_query"

/* Objects of the driver: it defines what they are. */
typedef struct accrt_driver accrt_driver_t;
typedef struct accrt_driver_device accrt_driver_device_t;
typedef struct accrt_driver_queue accrt_driver_queue_t;
typedef struct accrt_driver_list accrt_driver_list_t;
typedef struct accrt_driver_module accrt_driver_module_t;
typedef struct accrt_driver_event accrt_driver_event_t;
typedef struct accrt_driver_launch accrt_driver_launch_t;

/** What the runtime lends a driver, valid until the driver is closed. Append-only. */
typedef struct accrt_driver_environment {
  uint32_t struct_size;
  uint32_t abi_version; /**< of the runtime */
  const accrt_allocator_t* allocator;
  const accrt_executor_t* executor; /**< an embedder's threads, or NULL */
  void* runtime;                    /**< opaque, for the functions below */
  /** Value of an option of this driver by its full key ("host.threads"), or NULL when it was not given. */
  const char* (*option)(const struct accrt_driver_environment* environment, const char* key);
  /** Writes a log line. */
  void (*log)(const struct accrt_driver_environment* environment, uint32_t level, const char* line);
  /** Records this thread's error and returns `status`. driver_name names driver_code and may be NULL. */
  accrt_status_t (*fail)(const struct accrt_driver_environment* environment, accrt_status_t status,
                         int32_t driver_code, const char* driver_name, const char* operation,
                         const char* message);
  /** Reports that one command of a submission ran; to be called only when `tracing` is not zero. */
  void (*trace)(const struct accrt_driver_environment* environment,
                const accrt_trace_event_t* event);
  uint32_t tracing;
  uint32_t reserved; /**< 0 */
} accrt_driver_environment_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_environment_t, reserved, 72);

/** Called once when what it was given to has ended. `error` is NULL when status is ACCRT_OK, else valid during the call.
 * `time_ns`: when the device reached that point, on the monotonic clock. Never blocks. */
typedef void (*accrt_driver_done_fn_t)(void* user, accrt_status_t status,
                                       const accrt_error_t* error, uint64_t time_ns);
typedef struct accrt_driver_completion {
  accrt_driver_done_fn_t done; /**< NULL: nobody wants to know */
  void* user;
} accrt_driver_completion_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_completion_t, user, 16);

/** Memory got from a driver. The driver fills all of it; the runtime hands it back unchanged. */
typedef struct accrt_driver_memory {
  void* handle;            /**< the driver's own */
  uint64_t device_address; /**< what kernels get; ranges are address arithmetic on it */
  void* host_pointer;      /**< NULL when the host cannot reach it */
  uint64_t size_bytes;
} accrt_driver_memory_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_memory_t, size_bytes, 32);

/** A kernel as a driver sees it. Made by common code; a driver reads it. */
typedef struct accrt_driver_kernel {
  const accrt_kernel_def_t*
      definition; /**< name, parameters, local memory, traits; host kernels: the entry */
  const accrt_kernel_environment_t* environment; /**< host kernels: to be passed to the entry */
  void* module_kernel; /**< what module_find gave; NULL for host kernels */
} accrt_driver_kernel_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_kernel_t, module_kernel, 24);

/** A host operator as a driver sees it. Made by common code; a driver reads it. The driver calls prepare when a list with it is
 * made, execute when the list runs (or is captured), destroy with the list. */
typedef struct accrt_driver_operator {
  const accrt_operator_def_t* definition;
  const accrt_kernel_environment_t* environment;
} accrt_driver_operator_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_operator_t, environment, 16);

/** Machine code for module_load. */
typedef struct accrt_driver_image {
  uint32_t
      kind; /**< 1 host ELF (loaded by common code, never seen by a driver), 2 cubin, 3 PTX, 4 fatbin */
  uint32_t reserved;
  const void* data;
  uint64_t size_bytes;
  const char* name;
} accrt_driver_image_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_image_t, name, 32);

/* ---- Commands ---- */

#define ACCRT_DRIVER_NONE 0xFFFFFFFFu

/** A number known when the list is made, or patched at each submission: constant + (scalar == NONE ? 0 : scalars[scalar]),
 * modulo 2^64. */
typedef struct accrt_driver_value {
  uint64_t constant;
  uint32_t scalar; /**< index into the submission's scalars, or ACCRT_DRIVER_NONE */
  uint32_t reserved;
} accrt_driver_value_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_value_t, reserved, 16);

/** A range of memory: base + offset, where base is bindings[binding].address, or 0 when binding is ACCRT_DRIVER_NONE. */
typedef struct accrt_driver_range {
  uint32_t binding;
  uint32_t access; /**< ACCRT_KERNEL_ACCESS_* */
  accrt_driver_value_t offset;
  accrt_driver_value_t size_bytes;
} accrt_driver_range_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_range_t, size_bytes, 40);

#define ACCRT_DRIVER_PATCH_ADDRESS                                                                 \
  1u /**< 8 bytes: the address of `range`, or 0 when its binding's address is 0 */
#define ACCRT_DRIVER_PATCH_VALUE 2u /**< low size_bytes of `value` */
/** A place in a dispatch's parameter block that is filled at submission. */
typedef struct accrt_driver_patch {
  uint32_t kind;
  uint32_t offset_bytes; /**< within the block */
  uint32_t size_bytes;   /**< 1, 2, 4 or 8 */
  uint32_t reserved;
  accrt_driver_range_t range; /**< ADDRESS */
  accrt_driver_value_t value; /**< VALUE */
} accrt_driver_patch_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_patch_t, value, 72);

#define ACCRT_DRIVER_COMMAND_DISPATCH 1u
#define ACCRT_DRIVER_COMMAND_COPY 2u
#define ACCRT_DRIVER_COMMAND_FILL 3u
#define ACCRT_DRIVER_COMMAND_BARRIER 4u
#define ACCRT_DRIVER_COMMAND_MARKER 5u
#define ACCRT_DRIVER_COMMAND_OPERATOR 6u /* in lists alone */

/** Runs nothing when a grid dimension is 0. Values of grid dimensions fit 32 bits (checked at submission by common code). */
typedef struct accrt_driver_dispatch {
  const accrt_driver_kernel_t* kernel;
  accrt_driver_value_t grid[3];
  const void* params; /**< template of the packed block */
  uint32_t params_size_bytes;
  uint32_t patch_count;
  const accrt_driver_patch_t* patches;
} accrt_driver_dispatch_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_dispatch_t, patches, 80);

/** Strided copy as accrt_copy_region_t; source and target do not overlap. */
typedef struct accrt_driver_copy {
  accrt_driver_range_t source;
  accrt_driver_range_t target;
  accrt_driver_value_t extent[3];
  accrt_driver_value_t source_stride_bytes[2];
  accrt_driver_value_t target_stride_bytes[2];
} accrt_driver_copy_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_copy_t, target_stride_bytes, 192);

typedef struct accrt_driver_fill {
  accrt_driver_range_t target;
  uint64_t pattern;
  uint32_t pattern_bytes; /**< 1, 2, 4 or 8 */
  uint32_t reserved;
} accrt_driver_fill_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_fill_t, reserved, 56);

/** A host operator. `workspace.binding` is ACCRT_DRIVER_NONE when it needs none. The patches of params are an operator's
 * whole knowledge of memory: see accrt/kernel.h for what may change between executions. */
typedef struct accrt_driver_invoke {
  const accrt_driver_operator_t* operation;
  const void* params; /**< template of the packed block */
  uint32_t params_size_bytes;
  uint32_t patch_count;
  const accrt_driver_patch_t* patches;
  accrt_driver_range_t workspace;
} accrt_driver_invoke_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_invoke_t, workspace, 72);

/** One command. Pointers are valid for the life of the list (list_create) or during the call (queue_enqueue). */
typedef struct accrt_driver_command {
  uint32_t opcode;
  uint32_t
      predecessor_count; /**< BARRIER: 0, it follows all before it, and all after it follow it */
  const uint32_t* predecessors; /**< indices of earlier commands */
  const char* name;             /**< for traces and errors; may be NULL */
  union {
    accrt_driver_dispatch_t dispatch;
    accrt_driver_copy_t copy;
    accrt_driver_fill_t fill;
    accrt_driver_invoke_t invoke;
  } as;
} accrt_driver_command_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_command_t, as, 216);

typedef struct accrt_driver_binding {
  uint64_t address;
  uint64_t size_bytes;
} accrt_driver_binding_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_binding_t, size_bytes, 16);

/** What one execution is given. Arrays are valid during the call only: a driver that runs later copies them. */
typedef struct accrt_driver_submission {
  uint32_t struct_size;
  uint32_t binding_count;
  const accrt_driver_binding_t* bindings;
  const uint64_t* scalars;
  uint32_t scalar_count;
  uint32_t reserved;
  uint64_t number;    /**< for error records and traces */
  uint64_t stream_id; /**< for traces */
  accrt_driver_completion_t completion;
} accrt_driver_submission_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_submission_t, completion, 64);

#define ACCRT_DRIVER_BINDING_STABLE                                                                \
  1u /**< seldom changes between submissions (arenas, weights, state): worth freezing into what the driver prepares */
/** What a list is made of. Append-only. Arrays are valid for the life of the list, binding_flags during the call only. */
typedef struct accrt_driver_list_info {
  uint32_t struct_size;
  uint32_t command_count;
  const accrt_driver_command_t* commands;
  uint32_t binding_count; /**< what submissions will give */
  uint32_t scalar_count;
  const uint32_t* binding_flags; /**< ACCRT_DRIVER_BINDING_* by binding; NULL: all 0 */
  const char* name;              /**< for messages; may be NULL */
} accrt_driver_list_info_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_list_info_t, name, 40);

/** How memory is handed to another process, or device. */
#define ACCRT_DRIVER_HANDLE_FD 1u  /**< a POSIX file descriptor, owned by who receives it */
#define ACCRT_DRIVER_HANDLE_IPC 2u /**< 64 opaque bytes that any process of this machine can open */
typedef struct accrt_driver_handle {
  uint32_t kind;
  int32_t fd; /**< FD; else -1 */
  uint64_t size_bytes;
  unsigned char bytes[64]; /**< IPC */
} accrt_driver_handle_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_handle_t, bytes, 80);

/** What a driver can do, by kind of memory. Append-only. */
typedef struct accrt_driver_memory_info {
  uint32_t struct_size;
  uint32_t supported;          /**< 1 or 0 */
  uint64_t granularity_bytes;  /**< sizes for memory_allocate are multiples of this */
  uint64_t default_grow_bytes; /**< what a pool asks for at least; 0: the granularity */
  uint64_t alignment_bytes;    /**< of every allocation */
} accrt_driver_memory_info_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_memory_info_t, alignment_bytes, 32);

/** The table. Append-only; `struct_size` is the driver's; slots marked optional may be NULL. */
typedef struct accrt_driver_table {
  uint32_t struct_size;
  uint32_t abi_version; /**< what the driver was built against */
  const char* name;     /**< "host": prefix of device names and option keys; letters, digits, '_' */
  const char* const* option_keys; /**< NULL-terminated list of the keys it knows; NULL: none */

  /** Starts the driver. May block. */
  accrt_status_t (*open)(const accrt_driver_environment_t* environment,
                         accrt_driver_t** out_driver);
  /** Stops it: all its devices are closed by then. May block. */
  void (*close)(accrt_driver_t* driver);
  /** Called once, after open. 0 when there are none; the reason, if it is worth telling, is recorded with environment->fail:
   * who asks for such a device then gets that status and message. May block. */
  uint32_t (*device_count)(accrt_driver_t* driver);
  /** Opens a device; called once for each index. May block. */
  accrt_status_t (*device_open)(accrt_driver_t* driver, uint32_t index,
                                accrt_driver_device_t** out_device);
  /** Its queues, lists, modules and memory are gone by then. May block. */
  void (*device_close)(accrt_driver_device_t* device);
  /** Fills all but struct_size, next, name, driver and index. */
  void (*device_info)(accrt_driver_device_t* device, accrt_device_info_t* out_info);
  /** Optional: ACCRT_ERROR_DEVICE_LOST once the device is gone. */
  accrt_status_t (*device_status)(accrt_driver_device_t* device);
  /** Optional, for devices with ACCRT_DEVICE_FLAG_CALLER_RUNS: runs what can be run on the calling thread; 1 when it ran
   * anything, 0 when there was nothing to run. */
  uint32_t (*device_progress)(accrt_driver_device_t* device);

  void (*memory_info)(accrt_driver_device_t* device, uint32_t kind,
                      accrt_driver_memory_info_t* out_info);
  /** ACCRT_ERROR_OUT_OF_DEVICE_MEMORY when there is none: the runtime trims its pools and tries again. May block. */
  accrt_status_t (*memory_allocate)(accrt_driver_device_t* device, uint32_t kind,
                                    uint64_t size_bytes, accrt_driver_memory_t* out_memory);
  void (*memory_free)(accrt_driver_device_t* device, const accrt_driver_memory_t* memory);
  /** Makes somebody else's host memory reachable. Optional. */
  accrt_status_t (*memory_import)(accrt_driver_device_t* device, void* pointer, uint64_t size_bytes,
                                  accrt_driver_memory_t* out_memory);
  void (*memory_unimport)(accrt_driver_device_t* device, const accrt_driver_memory_t* memory);

  /** Optional (absent: the device runs host packs only). May block. */
  accrt_status_t (*module_load)(accrt_driver_device_t* device, const accrt_driver_image_t* image,
                                accrt_driver_module_t** out_module);
  void (*module_unload)(accrt_driver_module_t* module);
  /** Finds a kernel. `declared` is what the bundle declares: the driver checks what it can of it against the image and
   * refuses with ACCRT_ERROR_INVALID_FORMAT. */
  accrt_status_t (*module_find)(accrt_driver_module_t* module, const char* entry,
                                const accrt_kernel_def_t* declared, void** out_module_kernel);

  /** An in-order queue. */
  accrt_status_t (*queue_create)(accrt_driver_device_t* device, int32_t priority,
                                 accrt_driver_queue_t** out_queue);
  /** The queue is idle by then. */
  void (*queue_destroy)(accrt_driver_queue_t* queue);
  /** Enqueues one command. After a failure that the driver finds later, everything behind it is skipped and completes with
   * ACCRT_ERROR_POISONED until queue_reset. */
  accrt_status_t (*queue_enqueue)(accrt_driver_queue_t* queue,
                                  const accrt_driver_command_t* command,
                                  const accrt_driver_submission_t* submission);
  /** Enqueues a list. The runtime keeps list and memory alive until it has ended. */
  accrt_status_t (*queue_execute)(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                  const accrt_driver_submission_t* submission);
  /** Optional: runs a list on the calling thread (with the device's other threads helping) and returns when it has ended:
   * ACCRT_OK or its failure, recorded with environment->fail; the queue is then not poisoned. ACCRT_ERROR_NOT_READY, with
   * nothing done, when the queue is not idle. The submission's completion is not called. */
  accrt_status_t (*queue_run)(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                              const accrt_driver_submission_t* submission);
  /** Calls `completion` when all enqueued before has ended: with the failure's record if the queue has failed. */
  accrt_status_t (*queue_notify)(accrt_driver_queue_t* queue, accrt_driver_completion_t completion);
  /** Clears a failure. The queue has nothing in flight. */
  accrt_status_t (*queue_reset)(accrt_driver_queue_t* queue);

  /** Makes an immutable list. May block (compiles, instantiates, prepares operators). */
  accrt_status_t (*list_create)(accrt_driver_device_t* device, const accrt_driver_list_info_t* info,
                                accrt_driver_list_t** out_list);
  /** No execution of it is in flight. */
  void (*list_destroy)(accrt_driver_list_t* list);

  /* ---- Since 0.2; all optional, a group at a time ---- */

  /* Progress by number. With these two a submission may come without a completion (done == NULL): it is over when queue_progress
   * says so. Failures of such work are returned by these, with their record; the runtime then treats the queue as failed from
   * the first number that is not complete. Both may be called by any thread at any time, also while another is in a call on the
   * queue, and again after they have returned a failure: they return it until queue_reset. Numbers of a queue only grow, and
   * may leave some out. */
  /** Number of the last submission up to which all have ended; a number that is no submission's may be given when all before it have
   * ended. With a failure: the last one that ended well (0 is always right). Never blocks. */
  accrt_status_t (*queue_progress)(accrt_driver_queue_t* queue, uint64_t* out_number);
  /** Waits on the calling thread until all submissions up to `number` have ended, of those that were enqueued when it was called.
   * ACCRT_ERROR_TIMEOUT (a timeout of ACCRT_TIMEOUT_INFINITE has none). @param policy ACCRT_WAIT_* of accrt/stream.h. Blocks. */
  accrt_status_t (*queue_wait)(accrt_driver_queue_t* queue, uint64_t number, uint64_t timeout_ns,
                               uint32_t policy);

  /* Events of the driver's own, for drivers with progress by number. Without them the runtime makes events of completions. Records
   * and waits are calls on a queue: one at a time per queue. An event may be waited for on queues of other devices of the driver.
   * A record behind a failure on its queue carries that failure: queries and waits on the host return it, and a queue that waits for
   * it fails. */
  accrt_status_t (*event_create)(accrt_driver_device_t* device,
                                 uint32_t flags, /* ACCRT_EVENT_FLAG_* */
                                 accrt_driver_event_t** out_event);
  /** Allowed while a record of it is in flight. */
  void (*event_destroy)(accrt_driver_event_t* event);
  accrt_status_t (*event_record)(accrt_driver_queue_t* queue, accrt_driver_event_t* event);
  /** What follows on the queue waits for the latest record at the time of this call; never recorded: for nothing. The event may be
   * recorded again or destroyed as soon as this has returned. */
  accrt_status_t (*event_wait)(accrt_driver_queue_t* queue, accrt_driver_event_t* event);
  /** ACCRT_OK (also when never recorded), ACCRT_ERROR_NOT_READY (without a record of the error: cheap), or the failure that the
   * record carries. Never blocks. */
  accrt_status_t (*event_query)(accrt_driver_event_t* event);
  /** As event_query, waiting on the calling thread: ACCRT_ERROR_TIMEOUT instead of ACCRT_ERROR_NOT_READY. Blocks. */
  accrt_status_t (*event_synchronize)(accrt_driver_event_t* event, uint64_t timeout_ns,
                                      uint32_t policy);
  /** Between two reached records of events with ACCRT_EVENT_FLAG_TIMING, of one device. */
  accrt_status_t (*event_elapsed)(accrt_driver_event_t* start, accrt_driver_event_t* end,
                                  int64_t* out_elapsed_ns);

  /* Prepared launches: one kernel, made ready once, launched with another block and grid each time. */
  accrt_status_t (*launch_create)(accrt_driver_device_t* device,
                                  const accrt_driver_kernel_t* kernel,
                                  accrt_driver_launch_t** out_launch);
  /** May be called while executions are in flight. */
  void (*launch_destroy)(accrt_driver_launch_t* launch);
  /** Enqueues it, as a submission without a completion. `params` is the packed block, 16-byte aligned, valid during the call. One
   * call at a time per launch, and per queue. The grid has no zero. */
  accrt_status_t (*queue_launch)(accrt_driver_queue_t* queue, accrt_driver_launch_t* launch,
                                 const uint32_t grid[3], const void* params, uint64_t number);

  /* Somebody else's queues. While a native queue is being captured, queue_enqueue, queue_execute, queue_launch, queue_notify, event_record
   * and event_wait return ACCRT_ERROR_INVALID_STATE and leave the capture as it is; queue_progress says what is known without
   * asking. */
  /** Wraps a native queue (CUDA: a CUstream) without owning it. ACCRT_ERROR_INVALID_ARGUMENT when it is of another device. */
  accrt_status_t (*queue_wrap)(accrt_driver_device_t* device, void* native,
                               accrt_driver_queue_t** out_queue);
  /** The native queue, borrowed. */
  void* (*queue_native)(accrt_driver_queue_t* queue);

  /* Memory that leaves the process or the device. */
  /** Like memory_allocate, for memory that can be exported: never shared with other allocations. */
  accrt_status_t (*memory_allocate_exportable)(accrt_driver_device_t* device, uint64_t size_bytes,
                                               uint32_t handle_kind,
                                               accrt_driver_memory_t* out_memory);
  accrt_status_t (*memory_export)(accrt_driver_device_t* device,
                                  const accrt_driver_memory_t* memory, uint32_t handle_kind,
                                  accrt_driver_handle_t* out_handle);
  /** Opens what another process exported. The handle's fd stays the caller's. memory_unimport ends it. */
  accrt_status_t (*memory_import_handle)(accrt_driver_device_t* device,
                                         const accrt_driver_handle_t* handle,
                                         accrt_driver_memory_t* out_memory);
  /** Lets kernels and copies of `device` reach memory of `peer`, a device of the same driver, what it has and will have. Repeating
   * it is fine. ACCRT_ERROR_UNSUPPORTED when there is no path. May block. */
  accrt_status_t (*device_enable_peer)(accrt_driver_device_t* device, accrt_driver_device_t* peer);

  /** How much workspace a host operator asks for, before a list with it is made: calls its query_workspace as accrt/kernel.h says,
   * with the device's context current. `params` has its addresses NULL. Optional: without it the runtime calls query_workspace
   * itself, which is right where there are no contexts. */
  accrt_status_t (*operator_workspace)(accrt_driver_device_t* device,
                                       const accrt_driver_operator_t* operation, const void* params,
                                       uint32_t params_size_bytes, uint64_t* out_size_bytes);
} accrt_driver_table_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_table_t, operator_workspace, 376);

/** Exported by a driver: its table, read-only, for a runtime that speaks versions up to max_abi; NULL to refuse. */
typedef const accrt_driver_table_t* (*accrt_driver_query_fn_t)(uint32_t max_abi);

ACCRT_END
#endif /* ACCRT_SYS_DRIVER_H_ */
