/* accrt/sys/driver.h - the functions that a driver implements, and those that it may use. It is for
 * authors of drivers, with a weaker promise than the public API: a minor version may append to
 * these tables (docs/driver-guide.md).
 *
 * A driver supplies primitives: devices, memory, in-order queues, command lists. Common code does
 * the rest: timelines, deferral, pools, error propagation, reference counts, checks of arguments.
 * So the arguments of a driver's functions have been checked. A driver knows no bundles and no
 * programs. Nothing here has the shape of one vendor's API.
 *
 * Rules. Any thread may call a driver's function at any time, except that calls on one queue are
 * made one at a time. No function blocks on the device unless its comment says so. A function that
 * returns a status leaves its outputs zero on failure and records the failure with
 * environment->fail. A driver may call a completion from any thread, even before the function that
 * received it returns, but not while it holds a lock. All memory comes from environment->allocator.
 */
#ifndef ACCRT_SYS_DRIVER_H_
#define ACCRT_SYS_DRIVER_H_

#include "accrt/base.h"
#include "accrt/instance.h"

ACCRT_BEGIN

/* Version of this interface: major << 16 | minor. */
#define ACCRT_DRIVER_ABI_MAJOR 0
#define ACCRT_DRIVER_ABI_MINOR 3
/* The oldest minor version whose drivers this runtime accepts. list_create had another signature
 * before it. */
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

/** What a driver may use of the runtime, valid until the driver is closed. Append-only. */
typedef struct accrt_driver_environment {
  uint32_t struct_size;
  uint32_t abi_version; /**< of the runtime */
  const accrt_allocator_t* allocator;
  const accrt_executor_t* executor; /**< the caller's thread pool, or NULL */
  void* runtime;                    /**< opaque, for the functions below */
  /** The value of an option of this driver by its full key ("host.threads"), or NULL if it is not
   * set. */
  const char* (*option)(const struct accrt_driver_environment* environment, const char* key);
  /** Writes a log line. */
  void (*log)(const struct accrt_driver_environment* environment, uint32_t level, const char* line);
  /** Records this thread's error and returns `status`. driver_name names driver_code and may be
   * NULL. */
  accrt_status_t (*fail)(const struct accrt_driver_environment* environment, accrt_status_t status,
                         int32_t driver_code, const char* driver_name, const char* operation,
                         const char* message);
  /** Reports that one command of a submission ran. Call it only if `tracing` is not zero. */
  void (*trace)(const struct accrt_driver_environment* environment,
                const accrt_trace_event_t* event);
  uint32_t tracing;
  uint32_t reserved; /**< 0 */
} accrt_driver_environment_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_environment_t, reserved, 72);

/** Called once when the work that it belongs to has ended. `error` is NULL if status is ACCRT_OK,
 * else valid during the call. `time_ns`: when the device reached that point, on the monotonic
 * clock. The function never blocks. */
typedef void (*accrt_driver_done_fn_t)(void* user, accrt_status_t status,
                                       const accrt_error_t* error, uint64_t time_ns);
typedef struct accrt_driver_completion {
  accrt_driver_done_fn_t done; /**< NULL: the work has no listener */
  void* user;
} accrt_driver_completion_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_completion_t, user, 16);

/** Memory of a driver. The driver fills all fields; the runtime passes them back unchanged. */
typedef struct accrt_driver_memory {
  void* handle; /**< the driver's own */
  /** The address for kernels; ranges are address arithmetic on it. It is host_pointer, or a number
   * that is no address of host memory (a handle in the high bits and an offset, say). */
  uint64_t device_address;
  void* host_pointer; /**< NULL: the host cannot reach it */
  uint64_t size_bytes;
} accrt_driver_memory_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_memory_t, size_bytes, 32);

/** A kernel, made by common code; a driver only reads it. */
typedef struct accrt_driver_kernel {
  /** name, parameters, local memory, traits; host kernels: the entry */
  const accrt_kernel_def_t* definition;
  const accrt_kernel_environment_t* environment; /**< host kernels: argument of the entry */
  void* module_kernel;                           /**< from module_find; NULL for host kernels */
} accrt_driver_kernel_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_kernel_t, module_kernel, 24);

/** A host operator, made by common code; a driver only reads it. The driver calls prepare when it
 * makes a list with the operator, execute when the list runs (or is captured), and destroy when the
 * list is destroyed. */
typedef struct accrt_driver_operator {
  const accrt_operator_def_t* definition;
  const accrt_kernel_environment_t* environment;
} accrt_driver_operator_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_operator_t, environment, 16);

/** Machine code for module_load. */
typedef struct accrt_driver_image {
  /** 1 host ELF (common code loads it; no driver sees it), 2 cubin, 3 PTX, 4 fatbin */
  uint32_t kind;
  uint32_t reserved;
  const void* data;
  uint64_t size_bytes;
  const char* name;
} accrt_driver_image_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_image_t, name, 32);

/* ---- Commands ---- */

#define ACCRT_DRIVER_NONE 0xFFFFFFFFu

/** A number that is known when the list is made, or that is patched at each submission: constant +
 * (scalar == NONE ? 0 : scalars[scalar]), modulo 2^64. */
typedef struct accrt_driver_value {
  uint64_t constant;
  uint32_t scalar; /**< index into the submission's scalars, or ACCRT_DRIVER_NONE */
  uint32_t reserved;
} accrt_driver_value_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_value_t, reserved, 16);

/** A range of memory: base + offset, where base is bindings[binding].address, or 0 when binding is
 * ACCRT_DRIVER_NONE. */
typedef struct accrt_driver_range {
  uint32_t binding;
  uint32_t access; /**< ACCRT_KERNEL_ACCESS_* */
  accrt_driver_value_t offset;
  accrt_driver_value_t size_bytes;
} accrt_driver_range_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_range_t, size_bytes, 40);

/** 8 bytes: the address of `range`, or 0 if its binding's address is 0 */
#define ACCRT_DRIVER_PATCH_ADDRESS 1u
#define ACCRT_DRIVER_PATCH_VALUE 2u /**< low size_bytes of `value` */
/** A place in a dispatch's parameter block that each submission fills. */
typedef struct accrt_driver_patch {
  uint32_t kind;
  uint32_t offset_bytes; /**< within the block */
  uint32_t size_bytes;   /**< 1, 2, 4 or 8 */
  uint32_t reserved;
  accrt_driver_range_t range; /**< ADDRESS */
  accrt_driver_value_t value; /**< VALUE */
} accrt_driver_patch_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_patch_t, value, 72);

/* The kinds of commands. A minor version may add some. list_create and queue_enqueue refuse kinds
 * that the driver does not know, with ACCRT_ERROR_UNSUPPORTED and a message that has the number of
 * the kind. queue_enqueue refuses OPERATOR in the same way. If a driver runs no operators, the
 * message of list_create has the name of the operator. Of a refused list or command, nothing has
 * run. A driver never skips a command. */
#define ACCRT_DRIVER_COMMAND_DISPATCH 1u
#define ACCRT_DRIVER_COMMAND_COPY 2u
#define ACCRT_DRIVER_COMMAND_FILL 3u
#define ACCRT_DRIVER_COMMAND_BARRIER 4u
#define ACCRT_DRIVER_COMMAND_MARKER 5u
#define ACCRT_DRIVER_COMMAND_OPERATOR 6u /* only in lists */

/** If a dimension of the grid is 0, nothing runs. Values of grid dimensions fit 32 bits (checked at
 * submission by common code). */
typedef struct accrt_driver_dispatch {
  const accrt_driver_kernel_t* kernel;
  accrt_driver_value_t grid[3];
  const void* params; /**< template of the packed block */
  uint32_t params_size_bytes;
  uint32_t patch_count;
  const accrt_driver_patch_t* patches;
} accrt_driver_dispatch_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_dispatch_t, patches, 80);

/** A strided copy, as accrt_copy_region_t. Source and target do not overlap. Each of them is memory
 * of the driver, or host memory by its plain address: the program's, or another driver's. */
typedef struct accrt_driver_copy {
  accrt_driver_range_t source;
  accrt_driver_range_t target;
  accrt_driver_value_t extent[3];
  accrt_driver_value_t source_stride_bytes[2];
  accrt_driver_value_t target_stride_bytes[2];
} accrt_driver_copy_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_copy_t, target_stride_bytes, 192);

/** The target may be host memory too, as in a copy. */
typedef struct accrt_driver_fill {
  accrt_driver_range_t target;
  uint64_t pattern;
  uint32_t pattern_bytes; /**< 1, 2, 4 or 8 */
  uint32_t reserved;
} accrt_driver_fill_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_fill_t, reserved, 56);

/** A host operator. `workspace.binding` is ACCRT_DRIVER_NONE if it needs no workspace. The operator
 * reaches memory only through the patches of `params`: accrt/kernel.h says what may change between
 * executions. */
typedef struct accrt_driver_invoke {
  const accrt_driver_operator_t* operation;
  const void* params; /**< template of the packed block */
  uint32_t params_size_bytes;
  uint32_t patch_count;
  const accrt_driver_patch_t* patches;
  accrt_driver_range_t workspace;
} accrt_driver_invoke_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_invoke_t, workspace, 72);

/** One command. Pointers are valid for the life of the list (list_create) or during the call
 * (queue_enqueue). */
typedef struct accrt_driver_command {
  uint32_t opcode;
  /** BARRIER: 0; it runs after all earlier commands, and before all later ones */
  uint32_t predecessor_count;
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

/** The arguments of one execution. Arrays are valid only during the call: a driver that runs it
 * later copies them. */
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

/** seldom changes between submissions (arenas, weights, state): the driver may prepare for it */
#define ACCRT_DRIVER_BINDING_STABLE 1u
/** What a list is made of. Append-only. Arrays are valid for the life of the list, but
 * binding_flags only during the call. */
typedef struct accrt_driver_list_info {
  uint32_t struct_size;
  uint32_t command_count;
  const accrt_driver_command_t* commands;
  uint32_t binding_count; /**< bindings of each submission */
  uint32_t scalar_count;
  const uint32_t* binding_flags; /**< ACCRT_DRIVER_BINDING_* by binding; NULL: all 0 */
  const char* name;              /**< for messages; may be NULL */
} accrt_driver_list_info_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_list_info_t, name, 40);

/** How memory is passed to another process or device. */
#define ACCRT_DRIVER_HANDLE_FD 1u  /**< a POSIX file descriptor, owned by the receiver */
#define ACCRT_DRIVER_HANDLE_IPC 2u /**< 64 opaque bytes that any process of this machine can open */
typedef struct accrt_driver_handle {
  uint32_t kind;
  int32_t fd; /**< FD; else -1 */
  uint64_t size_bytes;
  unsigned char bytes[64]; /**< IPC */
} accrt_driver_handle_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_handle_t, bytes, 80);

/** What a driver offers, for one kind of memory. Append-only. */
typedef struct accrt_driver_memory_info {
  uint32_t struct_size;
  uint32_t supported;          /**< 1 or 0 */
  uint64_t granularity_bytes;  /**< sizes for memory_allocate are multiples of this */
  uint64_t default_grow_bytes; /**< the least that a pool asks for; 0: the granularity */
  uint64_t alignment_bytes;    /**< of every allocation */
  uint32_t zeroed;             /**< 1: what memory_allocate gives reads as zeros. Since: 0.4 */
  uint32_t reserved;
} accrt_driver_memory_info_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_memory_info_t, reserved, 40);

/** The driver's functions. Append-only; `struct_size` is the driver's. Functions marked optional
 * may be NULL. */
typedef struct accrt_driver_table {
  uint32_t struct_size;
  uint32_t abi_version; /**< the version that the driver was built for */
  const char* name;     /**< "host": prefix of device names and option keys; letters, digits, '_' */
  const char* const* option_keys; /**< NULL-terminated list of the keys it knows; NULL: none */

  /** Starts the driver. May block. */
  accrt_status_t (*open)(const accrt_driver_environment_t* environment,
                         accrt_driver_t** out_driver);
  /** Stops the driver. All its devices are closed before. May block. */
  void (*close)(accrt_driver_t* driver);
  /** The number of devices. Called once, after open. If it is 0, the driver may record the reason
   * with environment->fail: a caller that asks for such a device gets that status and message. May
   * block. */
  uint32_t (*device_count)(accrt_driver_t* driver);
  /** Opens a device. Called once for each index. May block. */
  accrt_status_t (*device_open)(accrt_driver_t* driver, uint32_t index,
                                accrt_driver_device_t** out_device);
  /** Closes a device. Its queues, lists, modules and memory are destroyed before. May block. */
  void (*device_close)(accrt_driver_device_t* device);
  /** Fills all but struct_size, next, name, driver and index. */
  void (*device_info)(accrt_driver_device_t* device, accrt_device_info_t* out_info);
  /** Optional. ACCRT_OK, or ACCRT_ERROR_DEVICE_LOST once the device is lost. */
  accrt_status_t (*device_status)(accrt_driver_device_t* device);
  /** Optional, for devices with ACCRT_DEVICE_FLAG_CALLER_RUNS. Runs ready work on the calling
   * thread. It returns 1 if it ran any, 0 if there was none. */
  uint32_t (*device_progress)(accrt_driver_device_t* device);

  void (*memory_info)(accrt_driver_device_t* device, uint32_t kind,
                      accrt_driver_memory_info_t* out_info);
  /** Allocates memory. ACCRT_ERROR_OUT_OF_DEVICE_MEMORY: there is not enough memory, even if it is
   * the host's. After that the runtime trims its pools and tries again. May block. */
  accrt_status_t (*memory_allocate)(accrt_driver_device_t* device, uint32_t kind,
                                    uint64_t size_bytes, accrt_driver_memory_t* out_memory);
  void (*memory_free)(accrt_driver_device_t* device, const accrt_driver_memory_t* memory);
  /** Optional. Makes host memory of another owner reachable for the device. */
  accrt_status_t (*memory_import)(accrt_driver_device_t* device, void* pointer, uint64_t size_bytes,
                                  accrt_driver_memory_t* out_memory);
  /** Gives back all that the import took: the same memory may be imported again. */
  void (*memory_unimport)(accrt_driver_device_t* device, const accrt_driver_memory_t* memory);

  /** Optional: without it the device runs only kernels of host packs. May block. */
  accrt_status_t (*module_load)(accrt_driver_device_t* device, const accrt_driver_image_t* image,
                                accrt_driver_module_t** out_module);
  void (*module_unload)(accrt_driver_module_t* module);
  /** Finds a kernel. `declared` is the bundle's declaration: the driver checks it against the image
   * as far as it can, and returns ACCRT_ERROR_INVALID_FORMAT if they differ. */
  accrt_status_t (*module_find)(accrt_driver_module_t* module, const char* entry,
                                const accrt_kernel_def_t* declared, void** out_module_kernel);

  /** Makes an in-order queue. */
  accrt_status_t (*queue_create)(accrt_driver_device_t* device, int32_t priority,
                                 accrt_driver_queue_t** out_queue);
  /** Destroys a queue, which is idle. */
  void (*queue_destroy)(accrt_driver_queue_t* queue);
  /** Enqueues one command. If the driver finds a failure later, it skips all later work of the
   * queue, which completes with ACCRT_ERROR_POISONED until queue_reset, or is refused with it. */
  accrt_status_t (*queue_enqueue)(accrt_driver_queue_t* queue,
                                  const accrt_driver_command_t* command,
                                  const accrt_driver_submission_t* submission);
  /** Enqueues a list. The runtime keeps the list and the memory alive until the execution has
   * ended. */
  accrt_status_t (*queue_execute)(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                  const accrt_driver_submission_t* submission);
  /** Optional. Runs a list on the calling thread, with the help of the device's other threads, and
   * returns when it has ended: ACCRT_OK or its failure, recorded with environment->fail. Such a
   * failure does not poison the queue. If the queue is not idle, it does nothing and returns
   * ACCRT_ERROR_NOT_READY. It does not call the submission's completion. */
  accrt_status_t (*queue_run)(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                              const accrt_driver_submission_t* submission);
  /** Calls `completion` when all earlier work has ended, with the record of the failure if the
   * queue has failed. A wait for an event is work too. */
  accrt_status_t (*queue_notify)(accrt_driver_queue_t* queue, accrt_driver_completion_t completion);
  /** Clears a failure. The queue has no work in flight. */
  accrt_status_t (*queue_reset)(accrt_driver_queue_t* queue);

  /** Makes an immutable list. May block (compiles, instantiates, prepares operators). */
  accrt_status_t (*list_create)(accrt_driver_device_t* device, const accrt_driver_list_info_t* info,
                                accrt_driver_list_t** out_list);
  /** Destroys a list. No execution of it is in flight. */
  void (*list_destroy)(accrt_driver_list_t* list);

  /* ---- Since 0.2; all optional, a group at a time ---- */

  /* Progress by number. With these two functions a submission may have no completion (done ==
   * NULL): it has ended when queue_progress says so. They return the failure of such work, with its
   * record; the runtime then treats the queue as failed from the first number that is not complete.
   * Any thread may call both at any time, even while another thread is in a call on the queue.
   * After a failure they return it until queue_reset. The numbers of a queue only grow, and may
   * leave gaps. */
  /** The number of the last submission up to which all have ended. It may also be a number in a
   * gap, if all submissions before it have ended. After a failure, each call gives the number of
   * the last submission that succeeded, or 0. Work whose failure was cleared by a reset has not
   * succeeded. Never blocks. */
  accrt_status_t (*queue_progress)(accrt_driver_queue_t* queue, uint64_t* out_number);
  /** Waits on the calling thread until all submissions up to `number` have ended, of those that
   * were enqueued before the call. For a device without ACCRT_DEVICE_FLAG_HOST_KERNELS it may also
   * wait for some later submissions, but it ends even if more work comes all the time. So the
   * runtime enqueues no work there that waits for a later action of a thread: it holds such work
   * back. Returns ACCRT_ERROR_TIMEOUT at the limit in any case (never with ACCRT_TIMEOUT_INFINITE).
   * @param policy ACCRT_WAIT_* of accrt/stream.h. Blocks. */
  accrt_status_t (*queue_wait)(accrt_driver_queue_t* queue, uint64_t number, uint64_t timeout_ns,
                               uint32_t policy);

  /* Events of the driver, for drivers with progress by number. Without them the runtime makes
   * events from completions. Records and waits are calls on a queue: one at a time per queue.
   * Queues of other devices of the driver may wait for an event. A record after a failure on its
   * queue has that failure: queries and waits on the host return it, and a queue that waits for it
   * fails. */
  accrt_status_t (*event_create)(accrt_driver_device_t* device,
                                 uint32_t flags, /* ACCRT_EVENT_FLAG_* */
                                 accrt_driver_event_t** out_event);
  /** Destroys an event; a record of it may be in flight. */
  void (*event_destroy)(accrt_driver_event_t* event);
  accrt_status_t (*event_record)(accrt_driver_queue_t* queue, accrt_driver_event_t* event);
  /** Later work on the queue waits for the record that is the latest at this call, if there is one.
   * The event may be recorded again or destroyed as soon as this has returned. */
  accrt_status_t (*event_wait)(accrt_driver_queue_t* queue, accrt_driver_event_t* event);
  /** ACCRT_OK (also if it was never recorded), ACCRT_ERROR_NOT_READY (it writes no error record, to
   * be fast), or the failure of the record. Never blocks. */
  accrt_status_t (*event_query)(accrt_driver_event_t* event);
  /** As event_query, but it waits on the calling thread, and returns ACCRT_ERROR_TIMEOUT instead of
   * ACCRT_ERROR_NOT_READY. Blocks. */
  accrt_status_t (*event_synchronize)(accrt_driver_event_t* event, uint64_t timeout_ns,
                                      uint32_t policy);
  /** The time between two records that were reached, of events of one device with
   * ACCRT_EVENT_FLAG_TIMING. */
  accrt_status_t (*event_elapsed)(accrt_driver_event_t* start, accrt_driver_event_t* end,
                                  int64_t* out_elapsed_ns);

  /* Prepared launches: a kernel is prepared once, then launched with a new block and grid each
   * time. */
  /** The kernel struct is valid during the call. What it points to lives as long as the launch. */
  accrt_status_t (*launch_create)(accrt_driver_device_t* device,
                                  const accrt_driver_kernel_t* kernel,
                                  accrt_driver_launch_t** out_launch);
  /** Destroys a prepared launch; executions of it may be in flight. */
  void (*launch_destroy)(accrt_driver_launch_t* launch);
  /** Enqueues the launch, as a submission without a completion. `params` is the packed block,
   * 16-byte aligned, valid during the call. One call at a time per launch and per queue. No
   * dimension of the grid is 0. */
  accrt_status_t (*queue_launch)(accrt_driver_queue_t* queue, accrt_driver_launch_t* launch,
                                 const uint32_t grid[3], const void* params, uint64_t number);

  /* Queues of other libraries. While a native queue is being captured, queue_enqueue, queue_launch,
   * queue_notify, event_record and event_wait return ACCRT_ERROR_INVALID_STATE and do not change
   * the capture; queue_progress returns what it knows without asking the device. queue_execute adds
   * the list to the capture, or refuses in the same way. */
  /** Wraps a native queue (CUDA: a CUstream) without owning it. ACCRT_ERROR_INVALID_ARGUMENT: a
   * queue of another device. The owner may destroy the native queue once all work of the wrapping
   * queue has ended, even before queue_destroy is called: the driver then uses only what it knows
   * itself. */
  accrt_status_t (*queue_wrap)(accrt_driver_device_t* device, void* native,
                               accrt_driver_queue_t** out_queue);
  /** The native queue, lent. */
  void* (*queue_native)(accrt_driver_queue_t* queue);

  /* Memory for other processes or devices. */
  /** As memory_allocate, for memory that can be exported. No other allocation shares its
   * mapping. */
  accrt_status_t (*memory_allocate_exportable)(accrt_driver_device_t* device, uint64_t size_bytes,
                                               uint32_t handle_kind,
                                               accrt_driver_memory_t* out_memory);
  accrt_status_t (*memory_export)(accrt_driver_device_t* device,
                                  const accrt_driver_memory_t* memory, uint32_t handle_kind,
                                  accrt_driver_handle_t* out_handle);
  /** Opens memory that another process exported. The caller keeps the handle's fd. memory_unimport
   * closes the memory. */
  accrt_status_t (*memory_import_handle)(accrt_driver_device_t* device,
                                         const accrt_driver_handle_t* handle,
                                         accrt_driver_memory_t* out_memory);
  /** Lets kernels and copies of `device` reach all memory of `peer`, a device of the same driver,
   * also memory allocated later. A repeated call does no harm. ACCRT_ERROR_UNSUPPORTED: there is no
   * path. Without this function, each device of the driver reaches all memory of the others. May
   * block. */
  accrt_status_t (*device_enable_peer)(accrt_driver_device_t* device, accrt_driver_device_t* peer);

  /** Optional. Returns how much workspace a host operator needs, before a list with it is made: it
   * calls query_workspace as accrt/kernel.h says, with the device's context current. Addresses in
   * `params` are NULL. Without it the runtime calls query_workspace itself, which is right for
   * devices without contexts. */
  accrt_status_t (*operator_workspace)(accrt_driver_device_t* device,
                                       const accrt_driver_operator_t* operation, const void* params,
                                       uint32_t params_size_bytes, uint64_t* out_size_bytes);

  /* ---- Since 0.3; optional ---- */

  /** Cancels the work of the queue. Work that has not begun is dropped. Running work ends before
   * its next command, or sooner (host kernels: before the next workgroup). All of it completes with
   * ACCRT_ERROR_CANCELLED, also notifications and empty lists, and running work with a message that
   * says how far it came; queue_run returns the same. Work that ends in the meantime may succeed.
   * Until queue_reset, work that is enqueued is cancelled too. Any thread may call this at any
   * time, even while another thread is in a call on the queue. It does not wait. */
  void (*queue_cancel)(accrt_driver_queue_t* queue);
} accrt_driver_table_t;
ACCRT_ASSERT_LAYOUT(accrt_driver_table_t, queue_cancel, 384);

/** The function that a driver exports. It returns the driver's table, read-only, for a runtime that
 * speaks versions up to max_abi, or NULL to refuse. */
typedef const accrt_driver_table_t* (*accrt_driver_query_fn_t)(uint32_t max_abi);

ACCRT_END
#endif /* ACCRT_SYS_DRIVER_H_ */
