/* runtime/drivers/cuda/cuda.h - the structures of the CUDA driver.
 *
 * How it works. The driver uses only the CUDA Driver API, through a table of functions that it
 * resolves at run time (symbols.def). So one library serves machines with and without a GPU. Each
 * device retains its primary context, which it shares with all other code in the process. Every
 * call that needs the context makes it current and restores the previous one afterwards
 * (cuda_enter, cuda_leave).
 *
 * A queue is a CUstream. Submissions are counted, not recorded, so a launch costs no more than
 * CUDA's launch. A query of a queue's progress queries the stream, or records a *mark* behind the
 * submitted work: an event with the number of the last submission before it. Completions and
 * notifications wait for marks. The device's one *poller* thread checks those marks. CUDA's own
 * callbacks are not used, because they may not call CUDA.
 *
 * A failure of work on the device breaks the context for the whole process and for ever. The device
 * is then lost, and every queue returns the first error that was seen.
 *
 * This driver may not mention bundles, programs or public handles. Of the library it uses only
 * runtime/core.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_CUDA_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_CUDA_H_

#include <cuda.h>
#include <cudaTypedefs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/sys/driver.h"
#include "runtime/core/memory.h"
#include "runtime/core/sync.h"

#define CUDA_MAX_DEVICES 64u
/* The oldest driver version that has all functions of symbols.def: 12.4. */
#define CUDA_MIN_DRIVER_VERSION 12040
/* Dynamic shared memory that a kernel gets without an attribute. */
#define CUDA_DEFAULT_SHARED_BYTES 49152u
/* Every device with clusters supports clusters of up to this many workgroups. */
#define CUDA_PORTABLE_CLUSTER 8u
#define CUDA_LAUNCH_MAX_ATTRIBUTES 4u
/* cuMemAlloc hands out whole granules of this size. Used where there is no virtual memory. */
#define CUDA_PLAIN_GRANULARITY_BYTES (UINT64_C(2) << 20)

typedef struct cuda_driver cuda_driver_t;
typedef struct cuda_device cuda_device_t;
typedef struct cuda_queue cuda_queue_t;
typedef struct cuda_event cuda_event_t;
typedef struct cuda_module cuda_module_t;
typedef struct cuda_kernel cuda_kernel_t;
typedef struct cuda_memory cuda_memory_t;
typedef struct cuda_mark cuda_mark_t;
typedef struct cuda_poller cuda_poller_t;
/* Defined in graph.h and launch.h. */
typedef struct cuda_list cuda_list_t;
typedef struct cuda_launch cuda_launch_t;

/* ---- Entry points (symbols.c) ---- */

typedef struct cuda_api {
#define CUDA_SYMBOL(name, version) PFN_##name##_v##version name;
#include "runtime/drivers/cuda/symbols.def"
#undef CUDA_SYMBOL
} cuda_api_t;

/* Opens libcuda.so.1 and fills the table. An error names the missing function. Does not start
 * CUDA. */
accrt_status_t accrt_cuda_symbols_load(const accrt_driver_environment_t* environment,
                                       const char* library_path, cuda_api_t* out_api,
                                       int* out_version);

/* ---- Options (options.c) ---- */

/* Where PTX may come from: the driver's compiler in this process, the folder of compiled PTX alone,
 * or nowhere. */
#define CUDA_PTX_COMPILE 0u
#define CUDA_PTX_CACHED 1u
#define CUDA_PTX_OFF 2u

typedef struct cuda_options {
  const char* library_path;   /* "cuda.library"; default libcuda.so.1 */
  const char* cache_path;     /* "cuda.cache"; NULL: compiled PTX is not stored on disk */
  uint64_t cache_limit_bytes; /* "cuda.cache_mib" */
  bool virtual_memory;        /* "cuda.virtual_memory" */
  uint32_t ptx;               /* "cuda.ptx": CUDA_PTX_* */
  uint32_t max_graphs; /* "cuda.graphs": limit of instantiated graphs of lists and launches */
} cuda_options_t;

/* Reads and checks the driver's options. An error names key and value. */
accrt_status_t accrt_cuda_options_read(const accrt_driver_environment_t* environment,
                                       cuda_options_t* out_options);
extern const char* const accrt_cuda_option_keys[];

/* ---- The driver (driver.c) ---- */

struct cuda_driver {
  const accrt_driver_environment_t* environment;
  const accrt_allocator_t* allocator;
  cuda_api_t api;
  cuda_options_t options;
  int version; /* of the installed CUDA driver; 13000 is 13.0 */
  uint32_t device_count;
  accrt_mutex_t mutex;                      /* guards devices */
  cuda_device_t* devices[CUDA_MAX_DEVICES]; /* the open ones, by ordinal */
  bool started;                             /* libcuda is loaded and initialised */
  accrt_mutex_t detour_mutex;               /* guards the `detour` of all devices */
  accrt_mutex_t imports_mutex;              /* guards imports */
  struct cuda_import* imports;              /* host memory that this driver registered */
};

/* ---- Devices (device.c) ---- */

/* State that all lists of a device share (graph_cache.c, graph_operator.c). */
typedef struct cuda_graphs {
  accrt_mutex_t mutex; /* guards the fields below, except epoch */
  struct cuda_instance* instances;
  uint32_t count;
  CUstream spare_stream; /* for capturing operators and uploading graphs; NULL: none */
  atomic_uint epoch;     /* grows with each new instance; ages are counted in it */
} cuda_graphs_t;
/* Resources for copies between devices without a path (detour.c). The driver's detour_mutex guards
 * them. */
#define CUDA_DETOUR_CHUNKS 2
typedef struct cuda_detour {
  CUstream stream; /* for copies on other devices' queues that touch this device's memory */
  /* recorded on this device's queues or `stream`, since an event belongs to one context */
  CUevent begin;
  CUevent filled[CUDA_DETOUR_CHUNKS];
  /* [0]: recorded on this device's queues, for their own chunks. [1]: recorded on `stream`. Two
   * arrays are needed because recording an event again forgets its previous point. */
  CUevent emptied[2][CUDA_DETOUR_CHUNKS];
  void* chunks[CUDA_DETOUR_CHUNKS]; /* for copies on this device's queues */
  /* the event (of any device) after which a chunk can be filled again */
  CUevent last_emptied[CUDA_DETOUR_CHUNKS];
  uint32_t next;
} cuda_detour_t;

/* Call it after all lists are destroyed. */
void accrt_cuda_graphs_close(cuda_device_t* device);

struct cuda_device {
  cuda_driver_t* driver;
  const cuda_api_t* api; /* &driver->api */
  const accrt_driver_environment_t* environment;
  const accrt_allocator_t* allocator;
  CUdevice device;
  CUcontext context; /* the primary context, retained */
  uint32_t ordinal;
  uint32_t tracing;
  int compute_major;
  int compute_minor;
  int multiprocessor_count;
  int priority_least; /* ACCRT's scale: a larger value is more urgent */
  int priority_greatest;
  int max_shared_bytes; /* limit of dynamic shared memory per workgroup, with the attribute set */
  int max_pitch_bytes;
  bool has_virtual_memory;
  bool has_clusters;
  bool has_cooperative;
  uint64_t granularity_bytes; /* granularity of virtual memory */
  char arch[16];              /* "sm_90" */
  char name[96];

  /* Stored with release, after the failure record is complete. cuda_device_is_lost reads it with
   * acquire. */
  atomic_uint lost;
  accrt_mutex_t mutex; /* guards the fields below */
  accrt_error_t failure;
  cuda_memory_t* memories; /* virtual memory that peers must be able to access */
  uint64_t peer_mask;      /* devices, by ordinal, with access to this device's memory */
  CUdevice peer_devices[CUDA_MAX_DEVICES];
  cuda_poller_t* poller;
  cuda_graphs_t graphs;
  cuda_detour_t detour;
  atomic_uint_least64_t
      unreachable_peers; /* devices, by ordinal, to whose memory this device has no path */
  atomic_uint_least64_t kernels_made; /* number of kernels made so far; the source of their ids */
  accrt_mutex_t queues_mutex;         /* guards queues; held while waiting for the work on them */
  cuda_queue_t* queues;
  /* Number of threads that are launching a graph. Every launch writes it, so it has a cache line of
   * its own at the end. */
  _Alignas(64) atomic_uint launching;
  atomic_uint contended_launches; /* launches left until contention is assumed to be over */
};

static inline bool cuda_device_is_lost(cuda_device_t* device) {
  /* Acquire pairs with the release in accrt_cuda_device_lose. */
  return atomic_load_explicit(&device->lost, memory_order_acquire) != 0;
}
accrt_status_t accrt_cuda_device_open(accrt_driver_t* driver, uint32_t index,
                                      accrt_driver_device_t** out_device);
void accrt_cuda_device_close(accrt_driver_device_t* device);
void accrt_cuda_device_info(accrt_driver_device_t* device, accrt_device_info_t* out_info);
accrt_status_t accrt_cuda_device_status(accrt_driver_device_t* device);
/* Marks the device as lost. Only the first failure of the context is kept. */
void accrt_cuda_device_lose(cuda_device_t* device, CUresult result, const char* operation,
                            const char* message);
/* Records ACCRT_ERROR_DEVICE_LOST with the first failure, and returns it. */
accrt_status_t accrt_cuda_device_lost(cuda_device_t* device, const char* operation);

/* ---- The current context ---- */

/* The context to restore after a call. */
typedef struct cuda_scope {
  CUcontext previous;
  bool changed;
} cuda_scope_t;

/* Pops contexts until none is current. Setting NULL replaces only the top of the stack, and an
 * operator may have left contexts on it. */
void accrt_cuda_drop_contexts(const cuda_device_t* device);

/* cuda_enter makes the device's context current. This takes 6 ns when it is current already. It
 * does not fail for a retained context; if CUDA refuses, the next call of CUDA reports why.
 * cuda_leave restores the context that was current before.
 *
 * While this or another thread captures a stream in a strict mode, CUDA refuses unrelated calls
 * (allocation, queries, loading) and they break the capture. Between cuda_relax and cuda_unrelax
 * these calls are allowed.
 *
 * All are inline where a file is compiled for speed. What is compiled for size calls the functions
 * (queue.c). */
cuda_scope_t accrt_cuda_enter_called(const cuda_device_t* device);
void accrt_cuda_leave_called(const cuda_device_t* device, cuda_scope_t scope);
CUstreamCaptureMode accrt_cuda_relax_called(const cuda_device_t* device);
void accrt_cuda_unrelax_called(const cuda_device_t* device, CUstreamCaptureMode mode);
#if defined(__OPTIMIZE_SIZE__) && !defined(ACCRT_CUDA_INLINE)
#define cuda_enter accrt_cuda_enter_called
#define cuda_leave accrt_cuda_leave_called
#define cuda_relax accrt_cuda_relax_called
#define cuda_unrelax accrt_cuda_unrelax_called
#else
static inline cuda_scope_t cuda_enter(const cuda_device_t* device) {
  cuda_scope_t scope = {NULL, false};
  if (device->api->cuCtxGetCurrent(&scope.previous) == CUDA_SUCCESS &&
      scope.previous == device->context) {
    return scope;
  }
  scope.changed = device->api->cuCtxSetCurrent(device->context) == CUDA_SUCCESS;
  return scope;
}
static inline void cuda_leave(const cuda_device_t* device, cuda_scope_t scope) {
  if (!scope.changed)
    return;
  if (scope.previous == NULL)
    accrt_cuda_drop_contexts(device);
  else
    (void)device->api->cuCtxSetCurrent(scope.previous);
}
static inline CUstreamCaptureMode cuda_relax(const cuda_device_t* device) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)device->api->cuThreadExchangeStreamCaptureMode(&mode);
  return mode;
}
static inline void cuda_unrelax(const cuda_device_t* device, CUstreamCaptureMode mode) {
  (void)device->api->cuThreadExchangeStreamCaptureMode(&mode);
}
#endif

/* Makes the device's context current again after foreign code, which may have pushed or set another
 * one. */
static inline void cuda_stay(const cuda_device_t* device) {
  CUcontext current = NULL;
  if (device->api->cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != device->context)
    (void)device->api->cuCtxSetCurrent(device->context);
}

/* ---- Errors (errors.c) ---- */

/* The status for a result of CUDA. */
accrt_status_t accrt_cuda_status(CUresult result);
/* True for a result that means a broken context. */
bool accrt_cuda_is_fatal(CUresult result);
/* For example "CUDA_ERROR_OUT_OF_MEMORY". The text is static. */
const char* accrt_cuda_result_name(const cuda_api_t* api, CUresult result);
/* Records a failed call of CUDA and returns its status. `call` is the function's name, such as
 * "cuMemCreate"; the message says what the call was for. A fatal result marks the device as
 * lost. */
accrt_status_t accrt_cuda_fail(cuda_device_t* device, CUresult result, const char* call,
                               const char* format, ...) __attribute__((format(printf, 4, 5)));
/* The same before a device exists. */
accrt_status_t accrt_cuda_fail_at(const accrt_driver_environment_t* environment,
                                  const cuda_api_t* api, CUresult result, const char* call,
                                  const char* format, ...) __attribute__((format(printf, 5, 6)));
/* Records an error of this driver, without a result of CUDA. */
accrt_status_t accrt_cuda_refuse(const accrt_driver_environment_t* environment,
                                 accrt_status_t status, const char* operation, const char* format,
                                 ...) __attribute__((format(printf, 4, 5)));

/* ---- Memory (memory.c, pinned.c, export.c) ---- */

#define CUDA_MEMORY_VIRTUAL 1u /* cuMemCreate, cuMemAddressReserve, cuMemMap */
#define CUDA_MEMORY_PLAIN 2u   /* cuMemAlloc */
#define CUDA_MEMORY_PINNED 3u  /* cuMemHostAlloc */
#define CUDA_MEMORY_FOREIGN 4u /* device memory that other code allocated */
/* other code's host memory; this driver or other code registered it */
#define CUDA_MEMORY_REGISTERED 5u
#define CUDA_MEMORY_IPC 6u /* opened from another process */

/* The struct behind accrt_driver_memory_t.handle. */
struct cuda_memory {
  cuda_memory_t* previous; /* VIRTUAL: link of the device's list */
  cuda_memory_t* next;
  uint32_t kind;
  bool exportable;
  CUdeviceptr address;
  void* host_pointer; /* PINNED, REGISTERED */
  uint64_t size_bytes;
  CUmemGenericAllocationHandle allocation; /* VIRTUAL */
  struct cuda_import* import;              /* REGISTERED: set when this driver registered it */
};

/* Gives `device` access to all virtual memory of `owner`, present and future. */
accrt_status_t accrt_cuda_memory_open_to(cuda_device_t* owner, cuda_device_t* device);

/* ---- Code (module.c, image.c) ---- */

/* One kernel of a module, the result of module_find. It never changes and lives as long as the
 * module. */
struct cuda_kernel {
  cuda_kernel_t* next;
  uint64_t id; /* unique in the device for ever; never 0 */
  cuda_device_t* device;
  CUkernel kernel;
  CUfunction function; /* a function of the device's context */
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t params_size_bytes;
  /* launch attributes (cluster, cooperative, overlap); 0 for most kernels */
  uint32_t attribute_count;
  CUlaunchAttribute attributes[CUDA_LAUNCH_MAX_ATTRIBUTES];
  /* The arguments for launches that pass them one by one: their offsets in the parameter block. */
  uint32_t param_count;
  uint32_t param_offsets[ACCRT_KERNEL_MAX_PARAMS];
  char name[256];
};

/* The smallest grid of the kernel: one cluster, or one workgroup. */
static inline void cuda_least_grid(const cuda_kernel_t* kernel, unsigned out_grid[3]) {
  out_grid[0] = out_grid[1] = out_grid[2] = 1;
  for (uint32_t i = 0; i < kernel->attribute_count; ++i) {
    if (kernel->attributes[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      continue;
    out_grid[0] = kernel->attributes[i].value.clusterDim.x;
    out_grid[1] = kernel->attributes[i].value.clusterDim.y;
    out_grid[2] = kernel->attributes[i].value.clusterDim.z;
  }
}

struct cuda_module {
  cuda_device_t* device;
  CUlibrary library;
  accrt_mutex_t mutex; /* guards kernels */
  cuda_kernel_t* kernels;
};

/* ---- Queues (queue.c, event.c) ---- */

/* An event behind submission `number`. When CUDA has reached it, all submissions up to that number
 * have ended. */
struct cuda_mark {
  cuda_mark_t* next; /* towards newer marks; or the next spare one */
  CUevent event;
  uint64_t number;
  uint32_t users; /* waiting threads and tickets; 0 before it is reused */
  bool retired;   /* reached and removed from the list of marks in flight */
  bool blocking;  /* a thread can sleep on it (CU_EVENT_BLOCKING_SYNC) */
};

struct cuda_queue {
  cuda_device_t* device;
  cuda_queue_t* previous; /* link of the device's list */
  cuda_queue_t* next;
  CUstream stream;
  bool owned; /* false: the stream of a caller (wrapped) */
  /* One for the owner, and one for the poller while it watches the queue. */
  atomic_uint references;
  /* Number of the last submission that CUDA has. Stored with release after the launch. Code that
   * records or queries behind it loads it with acquire. */
  _Alignas(64) atomic_uint_least64_t submitted;
  /* All submissions up to this number have ended. It only grows: raised with release, read with
   * acquire. */
  atomic_uint_least64_t completed;
  /* The last submission that became part of a capture; relaxed: written and read by who submits. */
  atomic_uint_least64_t captured;
  /* Waits for events that CUDA has, and how many of them are known to be over: they have no
   * numbers. Relaxed: who uses the queue counts, the poller knows. */
  atomic_uint_least64_t event_waits;
  atomic_uint_least64_t event_waits_over;
  /* Set when this queue alone failed, such as by an operator in the middle of a list. Stored with
   * release after `failure`. */
  atomic_uint failed;
  accrt_mutex_t mutex; /* guards the fields below */
  accrt_error_t failure;
  cuda_mark_t* oldest; /* marks in flight, oldest first */
  cuda_mark_t* newest;
  cuda_mark_t* spare_marks[2]; /* free list, by `blocking` */
  struct cuda_ticket* first_ticket;
  struct cuda_ticket* last_ticket;
  struct cuda_ticket* spare_tickets;
  struct cuda_launch_cache*
      /* used by the submitting thread; NULL until a kernel is launched again (launch.c) */
      launches;
  bool watched;           /* the poller watches this queue */
  bool failure_reported;  /* a completion has reported the failure; later ones report POISONED */
  uint64_t failed_number; /* of the last failure, also after its reset; 0: none */
  uint64_t succeeded;     /* behind it nothing up to failed_number succeeded */
  /* Used by the poller's thread alone. */
  cuda_queue_t* poller_next;
  uint64_t head_number; /* number of the ticket that the poller waits for ... */
  uint64_t head_ns;     /* ... and the start of that wait */
};

/* State of one submission around its calls of CUDA. */
typedef struct cuda_submit {
  cuda_scope_t scope;
  struct cuda_ticket* ticket; /* NULL: no completion, no trace */
} cuda_submit_t;

/* Begins a submission and makes the context current. Refuses on a lost device, on a failed queue,
 * and on a wrapped stream that is being captured (ACCRT_ERROR_INVALID_STATE; the capture stays
 * valid). After a failure, do not call accrt_cuda_submit_end. `submission` may be NULL when there
 * is no trace and no completion (prepared launches). */
accrt_status_t accrt_cuda_submit_begin(cuda_queue_t* queue,
                                       const accrt_driver_submission_t* submission,
                                       cuda_submit_t* out_submit);
/* Ends a submission; always call it. With ACCRT_OK it publishes the number and registers the
 * completion. With another status, nothing was submitted and nothing is published. `name` is for
 * traces. Returns `status`, or the failure to register the completion. */
accrt_status_t accrt_cuda_submit_end(cuda_queue_t* queue,
                                     const accrt_driver_submission_t* submission,
                                     cuda_submit_t* submit, const char* name,
                                     accrt_status_t status);
/* Publishes a submission without completion and trace. Call it after the launch. */
static inline void cuda_publish(cuda_queue_t* queue, uint64_t number) {
  /* Release pairs with the acquire of code that records or queries behind the submission. */
  atomic_store_explicit(&queue->submitted, number, memory_order_release);
}
/* True when nothing prevents a launch on an owned queue. A fast form of the checks of
 * accrt_cuda_submit_begin. */
static inline bool cuda_queue_is_ready(cuda_queue_t* queue) {
  /* Acquire pairs with the release in accrt_cuda_queue_fail. */
  return queue->owned && !cuda_device_is_lost(queue->device) &&
         atomic_load_explicit(&queue->failed, memory_order_acquire) == 0;
}
/* Fails the queue from this submission on, because a part of the submission's work was submitted
 * and a later part failed (such as an operator in the middle of a list). End the submission with
 * accrt_cuda_submit_end(..., ACCRT_OK); its completion reports the failure. */
void accrt_cuda_queue_fail(cuda_queue_t* queue, uint64_t number, const accrt_error_t* error);
/* True when the stream is being captured. Then CUDA must not be called for it: work would become
 * part of the capture (which is meant for lists alone), and a query would break the capture. Only
 * wrapped streams can be captured. */
bool accrt_cuda_queue_is_capturing(const cuda_queue_t* queue);
/* Publishes a submission that became part of a capture. It is over when all before it is, since
 * nothing of it runs now. A wait for it is refused as long as the capture goes on. */
void accrt_cuda_queue_captured(cuda_queue_t* queue, uint64_t number);
/* Records that nothing is enqueued on a stream that is being captured. */
accrt_status_t accrt_cuda_refuse_capture(const cuda_queue_t* queue, const char* operation);
/* Updates the queue's progress. The context must be current and relaxed. CUDA_SUCCESS means that
 * all submitted work has ended. */
CUresult accrt_cuda_queue_advance(cuda_queue_t* queue);
void accrt_cuda_queue_unref(cuda_queue_t* queue);
/* Returns a ticket and its mark to the queue's free lists. */
void accrt_cuda_ticket_return(cuda_queue_t* queue, struct cuda_ticket* ticket);
/* Whether the first `waits` waits for events of the queue are known to be over. */
bool accrt_cuda_queue_waits_over(cuda_queue_t* queue, uint64_t waits);
/* Waits until all work that the device's queues have now has ended. */
void accrt_cuda_device_drain(cuda_device_t* device);
/* Sleeps for an eighth of the time already waited, at most 100 us. At first it does not sleep at
 * all. */
void accrt_cuda_back_off(uint64_t waited_ns);

/* The value of a command's field in one submission. */
static inline uint64_t cuda_value(const accrt_driver_value_t* value,
                                  const accrt_driver_submission_t* submission) {
  return value->scalar == ACCRT_DRIVER_NONE ? value->constant
                                            : value->constant + submission->scalars[value->scalar];
}
static inline uint64_t cuda_address(const accrt_driver_range_t* range,
                                    const accrt_driver_submission_t* submission) {
  const uint64_t base =
      range->binding == ACCRT_DRIVER_NONE ? 0 : submission->bindings[range->binding].address;
  return base + cuda_value(&range->offset, submission);
}
/* Makes a parameter block: the template with the patches written into it. `block` has room for
 * size_bytes. */
void accrt_cuda_block_fill(const void* params, uint32_t size_bytes,
                           const accrt_driver_patch_t* patches, uint32_t patch_count,
                           const accrt_driver_submission_t* submission, void* block);

/* Writes patches to a block that already contains the template. */
void accrt_cuda_block_patch(const accrt_driver_patch_t* patches, uint32_t patch_count,
                            const accrt_driver_submission_t* submission, void* block);
/* Submits a dispatch to a queue, by the fastest way that the queue has for the kernel. */
accrt_status_t accrt_cuda_dispatch_enqueue(cuda_queue_t* queue,
                                           const accrt_driver_dispatch_t* command,
                                           const accrt_driver_submission_t* submission);
/* Submits one command to a stream, which may be captured. The context is current. Operators are not
 * supported. */
accrt_status_t accrt_cuda_command_enqueue(cuda_device_t* device, CUstream stream,
                                          const accrt_driver_command_t* command,
                                          const accrt_driver_submission_t* submission);
/* Launches a kernel with a packed block. No grid dimension may be 0. */
CUresult accrt_cuda_kernel_launch(const cuda_kernel_t* kernel, CUstream stream,
                                  const uint32_t grid[3], const void* block);

/* The message for a grid that no device supports. */
static inline const char* cuda_grid_limit(const uint32_t grid[3]) {
  return grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535
             ? " (there are at most 2147483647 x 65535 x 65535)"
             : "";
}
/* Records a refused launch. */
accrt_status_t accrt_cuda_kernel_fail(const cuda_kernel_t* kernel, CUresult result,
                                      const uint32_t grid[3]);

/* ---- Copies (copy.c): strided copies as calls of CUDA ---- */

/* A copy with known values: extent[0] bytes, extent[1] rows, extent[2] planes. */
typedef struct cuda_copy {
  uint64_t source;
  uint64_t target;
  uint64_t extent[3];
  uint64_t source_stride[2];
  uint64_t target_stride[2];
} cuda_copy_t;
#define CUDA_COPY_NOTHING 0u
#define CUDA_COPY_LINEAR 1u /* extent[0] bytes */
#define CUDA_COPY_2D 2u     /* rows with a pitch on both sides */
#define CUDA_COPY_3D 3u     /* and planes of a whole number of pitches */
#define CUDA_COPY_PLANES 4u /* plane by plane, each LINEAR, 2D or ROWS */
#define CUDA_COPY_ROWS 5u   /* row by row, plane by plane */
/* Merges contiguous dimensions, removes those of size 1, and returns the form of the rest. */
uint32_t accrt_cuda_copy_shape(cuda_copy_t* copy, uint64_t max_pitch_bytes);
/* Computes the values of a copy command. */
void accrt_cuda_copy_values(const accrt_driver_copy_t* command,
                            const accrt_driver_submission_t* submission, cuda_copy_t* out_copy);
#define CUDA_COPY_DETOUR 6u /* between devices without a path; CUDA has no call for it */
/* On machines with several GPUs: gives this device access to the other devices' memory that a copy
 * uses. CUDA cannot copy virtual memory without access to it. False where there is no path. Then
 * out_far has the devices that own the source and the target; NULL for one that is accessible. */
bool accrt_cuda_copy_reach(cuda_device_t* device, uint64_t source, uint64_t target,
                           cuda_device_t* out_far[2]);
/* Copies through the host (detour.c). The copy must have a shape (accrt_cuda_copy_shape). */
CUresult accrt_cuda_detour_copy(cuda_device_t* device, CUstream stream, const cuda_copy_t* copy,
                                cuda_device_t* const far[2]);
/* Call it after all queues are destroyed. */
void accrt_cuda_detour_close(cuda_device_t* device);
/* CUDA's requests for 2D and 3D shapes. */
void accrt_cuda_copy_2d(const cuda_copy_t* copy, CUDA_MEMCPY2D* out_request);
void accrt_cuda_copy_3d(const cuda_copy_t* copy, CUDA_MEMCPY3D* out_request);
accrt_status_t accrt_cuda_copy_enqueue(cuda_device_t* device, CUstream stream, cuda_copy_t* copy);
/* True for memory that CUDA allocated or that is registered. False for pageable host memory and for
 * invalid addresses. */
bool accrt_cuda_is_known(const cuda_device_t* device, uint64_t address);
accrt_status_t accrt_cuda_fill_enqueue(cuda_device_t* device, CUstream stream, uint64_t target,
                                       uint64_t size_bytes, uint64_t pattern,
                                       uint32_t pattern_bytes);

/* ---- The poller (poller.c) ---- */

/* A completion or a trace that waits for a mark. Tickets are in a list of the queue, in the order
 * of submissions, and are reused. */
typedef struct cuda_ticket {
  struct cuda_ticket* next;
  cuda_mark_t* mark;
  accrt_driver_completion_t completion;
  uint64_t number;
  uint64_t event_waits; /* of a notification: how many waits for events are before it */
  bool is_notification; /* reports the queue's failure; a failure does not skip it */
  bool is_traced;
  uint64_t stream_id;
  char name[64];
  CUevent begin; /* for timing; NULL until the ticket is traced for the first time */
  CUevent end;
} cuda_ticket_t;

accrt_status_t accrt_cuda_poller_start(cuda_device_t* device);
/* Call it when no queue has tickets. Works too for a device whose opening failed half-way. */
void accrt_cuda_poller_stop(cuda_device_t* device);
/* Call it when a queue gets a ticket. The poller watches the queue until it has no tickets, and
 * holds a reference to it meanwhile. */
void accrt_cuda_poller_watch(cuda_queue_t* queue);

/* ---- Events (event.c) ---- */

struct cuda_event {
  cuda_device_t* device;
  CUevent event;
  uint32_t flags;
  atomic_uint recorded;
};

/* ---- Functions of the driver table, by file ---- */

/* memory.c, pinned.c, export.c */
void accrt_cuda_memory_info(accrt_driver_device_t* device, uint32_t kind,
                            accrt_driver_memory_info_t* out_info);
accrt_status_t accrt_cuda_memory_allocate(accrt_driver_device_t* device, uint32_t kind,
                                          uint64_t size_bytes, accrt_driver_memory_t* out_memory);
void accrt_cuda_memory_free(accrt_driver_device_t* device, const accrt_driver_memory_t* memory);
accrt_status_t accrt_cuda_memory_import(accrt_driver_device_t* device, void* pointer,
                                        uint64_t size_bytes, accrt_driver_memory_t* out_memory);
void accrt_cuda_memory_unimport(accrt_driver_device_t* device, const accrt_driver_memory_t* memory);
accrt_status_t accrt_cuda_memory_allocate_exportable(accrt_driver_device_t* device,
                                                     uint64_t size_bytes, uint32_t handle_kind,
                                                     accrt_driver_memory_t* out_memory);
accrt_status_t accrt_cuda_memory_export(accrt_driver_device_t* device,
                                        const accrt_driver_memory_t* memory, uint32_t handle_kind,
                                        accrt_driver_handle_t* out_handle);
accrt_status_t accrt_cuda_memory_import_handle(accrt_driver_device_t* device,
                                               const accrt_driver_handle_t* handle,
                                               accrt_driver_memory_t* out_memory);
accrt_status_t accrt_cuda_device_enable_peer(accrt_driver_device_t* device,
                                             accrt_driver_device_t* peer);
/* graph_operator.c */
accrt_status_t accrt_cuda_operator_workspace(accrt_driver_device_t* device,
                                             const accrt_driver_operator_t* operation,
                                             const void* params, uint32_t params_size_bytes,
                                             uint64_t* out_size_bytes);
/* module.c */
accrt_status_t accrt_cuda_module_load(accrt_driver_device_t* device,
                                      const accrt_driver_image_t* image,
                                      accrt_driver_module_t** out_module);
void accrt_cuda_module_unload(accrt_driver_module_t* module);
accrt_status_t accrt_cuda_module_find(accrt_driver_module_t* module, const char* entry,
                                      const accrt_kernel_def_t* declared, void** out_module_kernel);
/* queue.c */
accrt_status_t accrt_cuda_queue_create(accrt_driver_device_t* device, int32_t priority,
                                       accrt_driver_queue_t** out_queue);
void accrt_cuda_queue_destroy(accrt_driver_queue_t* queue);
accrt_status_t accrt_cuda_queue_enqueue(accrt_driver_queue_t* queue,
                                        const accrt_driver_command_t* command,
                                        const accrt_driver_submission_t* submission);
accrt_status_t accrt_cuda_queue_notify(accrt_driver_queue_t* queue,
                                       accrt_driver_completion_t completion);
accrt_status_t accrt_cuda_queue_reset(accrt_driver_queue_t* queue);
accrt_status_t accrt_cuda_queue_progress(accrt_driver_queue_t* queue, uint64_t* out_number);
accrt_status_t accrt_cuda_queue_wait(accrt_driver_queue_t* queue, uint64_t number,
                                     uint64_t timeout_ns, uint32_t policy);
accrt_status_t accrt_cuda_queue_wrap(accrt_driver_device_t* device, void* native,
                                     accrt_driver_queue_t** out_queue);
void* accrt_cuda_queue_native(accrt_driver_queue_t* queue);
/* event.c */
accrt_status_t accrt_cuda_event_create(accrt_driver_device_t* device, uint32_t flags,
                                       accrt_driver_event_t** out_event);
void accrt_cuda_event_destroy(accrt_driver_event_t* event);
accrt_status_t accrt_cuda_event_record(accrt_driver_queue_t* queue, accrt_driver_event_t* event);
accrt_status_t accrt_cuda_event_wait(accrt_driver_queue_t* queue, accrt_driver_event_t* event);
accrt_status_t accrt_cuda_event_query(accrt_driver_event_t* event);
accrt_status_t accrt_cuda_event_synchronize(accrt_driver_event_t* event, uint64_t timeout_ns,
                                            uint32_t policy);
accrt_status_t accrt_cuda_event_elapsed(accrt_driver_event_t* start, accrt_driver_event_t* end,
                                        int64_t* out_elapsed_ns);
/* graph.c: lists, with their host operators */
accrt_status_t accrt_cuda_list_create(accrt_driver_device_t* device,
                                      const accrt_driver_list_info_t* info,
                                      accrt_driver_list_t** out_list);
void accrt_cuda_list_destroy(accrt_driver_list_t* list);
accrt_status_t accrt_cuda_queue_execute(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                        const accrt_driver_submission_t* submission);
/* launch.c: prepared launches */
/* Launches a kernel without a prepared launch. After repeated launches on this queue, the kernel is
 * prepared automatically. */
CUresult accrt_cuda_queue_launch_kernel(cuda_queue_t* queue, const cuda_kernel_t* kernel,
                                        const uint32_t grid[3], const void* block);
void accrt_cuda_queue_forget_launches(cuda_queue_t* queue);
accrt_status_t accrt_cuda_launch_create(accrt_driver_device_t* device,
                                        const accrt_driver_kernel_t* kernel,
                                        accrt_driver_launch_t** out_launch);
void accrt_cuda_launch_destroy(accrt_driver_launch_t* launch);
accrt_status_t accrt_cuda_queue_launch(accrt_driver_queue_t* queue, accrt_driver_launch_t* launch,
                                       const uint32_t grid[3], const void* params, uint64_t number);

/** The table of the built-in driver. */
const accrt_driver_table_t* accrt_driver_cuda_query(uint32_t max_abi);

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_CUDA_H_ */
