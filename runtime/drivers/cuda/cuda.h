/* runtime/drivers/cuda/cuda.h - the CUDA driver's own structures.
 *
 * How it works. The driver speaks the CUDA Driver API alone, through a table of functions that it resolves at run time
 * (symbols.def), so that one library serves machines with and without a GPU. Each device retains its primary context, shared
 * with everybody else in the process; every call that needs it makes it current and puts back what was current (cuda_enter,
 * cuda_leave).
 *
 * A queue is a CUstream. Submissions are counted, not recorded: a launch costs a launch. When somebody asks how far a queue is,
 * the stream is queried, or a *mark* (an event with the number of the last submission before it) is recorded behind what is
 * there. Completions and notifications ride on marks that the device's one *poller* thread looks at. CUDA's own callbacks are not
 * used: nothing of CUDA may be called in them.
 *
 * What fails on the device later breaks the context, for everybody in the process and for good: the device is then lost, and the
 * first error that was seen is what every queue tells.
 *
 * It may not mention bundles, programs or public handles, and uses of the library only runtime/core.
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
/* The oldest driver that has all of symbols.def: 12.4. */
#define CUDA_MIN_DRIVER_VERSION 12040
/* Dynamic shared memory that every kernel may have without asking. */
#define CUDA_DEFAULT_SHARED_BYTES 49152u
/* Clusters up to this many workgroups run on every device that has clusters. */
#define CUDA_PORTABLE_CLUSTER 8u
#define CUDA_LAUNCH_MAX_ATTRIBUTES 4u
/* Where device memory comes from cuMemAlloc: it hands out whole pieces of this size. */
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
/* The lists' and prepared launches' own: graph.c, launch.c. */
typedef struct cuda_list cuda_list_t;
typedef struct cuda_launch cuda_launch_t;

/* ---- Entry points (symbols.c) ---- */

typedef struct cuda_api {
#define CUDA_SYMBOL(name, version) PFN_##name##_v##version name;
#include "runtime/drivers/cuda/symbols.def"
#undef CUDA_SYMBOL
} cuda_api_t;

/* Opens libcuda.so.1 and fills the table. Fails naming what is missing. Does not start CUDA. */
accrt_status_t accrt_cuda_symbols_load(const accrt_driver_environment_t* environment,
                                       const char* library_path, cuda_api_t* out_api,
                                       int* out_version);

/* ---- Options (options.c) ---- */

typedef struct cuda_options {
  const char* library_path;   /* "cuda.library"; default libcuda.so.1 */
  const char* cache_path;     /* "cuda.cache"; NULL: PTX is not kept on disk */
  uint64_t cache_limit_bytes; /* "cuda.cache_mib" */
  bool virtual_memory;        /* "cuda.virtual_memory" */
  uint32_t max_graphs; /* "cuda.graphs": instantiated graphs that lists and launches may keep */
} cuda_options_t;

/* Reads and checks the driver's options; fails naming key and value. */
accrt_status_t accrt_cuda_options_read(const accrt_driver_environment_t* environment,
                                       cuda_options_t* out_options);
extern const char* const accrt_cuda_option_keys[];

/* ---- The driver (driver.c) ---- */

struct cuda_driver {
  const accrt_driver_environment_t* environment;
  const accrt_allocator_t* allocator;
  cuda_api_t api;
  cuda_options_t options;
  int version; /* of the installed CUDA driver, 13000 is 13.0 */
  uint32_t device_count;
  accrt_mutex_t mutex;                      /* guards devices */
  cuda_device_t* devices[CUDA_MAX_DEVICES]; /* the open ones, by ordinal */
  bool started;                             /* libcuda is open and initialised */
  accrt_mutex_t detour_mutex;               /* guards the devices' detours */
  accrt_mutex_t imports_mutex;              /* guards imports */
  struct cuda_import* imports;              /* host memory registered by us */
};

/* ---- Devices (device.c) ---- */

/* What lists share (graph_cache.c, graph_operator.c). */
typedef struct cuda_graphs {
  accrt_mutex_t mutex; /* guards what follows, except epoch */
  struct cuda_instance* instances;
  uint32_t count;
  CUstream spare_stream; /* to capture operators and upload graphs on; NULL: none */
  atomic_uint epoch;     /* counts up when an instance is made: what ages are told in */
} cuda_graphs_t;
/* What copies between devices without a path use (detour.c). Guarded by the driver's detour_mutex. */
#define CUDA_DETOUR_CHUNKS 2
typedef struct cuda_detour {
  CUstream stream; /* for others' queues that copy this device's memory */
  CUevent begin;   /* recorded on this device's queues, or its stream: events are of one context */
  CUevent filled[CUDA_DETOUR_CHUNKS];
  /* By this device's queues, whose copies use its own chunks, and by its stream, in the order of that: one event for both would
   * forget the one when it is recorded for the other. */
  CUevent emptied[2][CUDA_DETOUR_CHUNKS];
  void* chunks[CUDA_DETOUR_CHUNKS];         /* of copies on this device's queues */
  CUevent last_emptied[CUDA_DETOUR_CHUNKS]; /* when a chunk can be filled again; whosever */
  uint32_t next;
} cuda_detour_t;

/* The lists are gone. */
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
  int priority_least; /* as ACCRT counts: larger is more urgent */
  int priority_greatest;
  int max_shared_bytes; /* dynamic shared memory of one workgroup, asked for */
  int max_pitch_bytes;
  bool has_virtual_memory;
  bool has_clusters;
  bool has_cooperative;
  uint64_t granularity_bytes; /* of virtual memory */
  char arch[16];              /* "sm_90" */
  char name[96];

  /* Release when it is set pairs with the acquire in cuda_device_is_lost: the record is complete. */
  atomic_uint lost;
  accrt_mutex_t mutex; /* guards what follows */
  accrt_error_t failure;
  cuda_memory_t* memories; /* what peers must be able to reach */
  uint64_t peer_mask;      /* devices, by ordinal, that may reach this one's memory */
  CUdevice peer_devices[CUDA_MAX_DEVICES];
  cuda_poller_t* poller;
  cuda_graphs_t graphs;
  cuda_detour_t detour;
  atomic_uint_least64_t
      pathless; /* devices, by ordinal, whose memory this one is known not to reach */
  atomic_uint_least64_t kernels_made; /* source of kernels' ids */
  accrt_mutex_t queues_mutex;         /* guards queues; held while what they have is waited for */
  cuda_queue_t* queues;
  /* Launches that are being made: written by all who launch, so in a cache line of its own, at the end. */
  _Alignas(64) atomic_uint launching;
  atomic_uint crowd; /* launches to go until it is forgotten that there were many at once */
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
/* The first failure of the context. Later ones are not kept. */
void accrt_cuda_device_lose(cuda_device_t* device, CUresult result, const char* operation,
                            const char* message);
/* Records ACCRT_ERROR_DEVICE_LOST with what was seen first, and returns it. */
accrt_status_t accrt_cuda_device_lost(cuda_device_t* device, const char* operation);

/* ---- The current context ---- */

/* What a call must put back. */
typedef struct cuda_scope {
  CUcontext previous;
  bool changed;
} cuda_scope_t;

/* Makes the device's context current. 6 ns when it is already. Never fails for a context that is retained: should CUDA say no
 * all the same, the call that follows says why. */
static inline cuda_scope_t cuda_enter(const cuda_device_t* device) {
  cuda_scope_t scope = {NULL, false};
  if (device->api->cuCtxGetCurrent(&scope.previous) == CUDA_SUCCESS &&
      scope.previous == device->context) {
    return scope;
  }
  scope.changed = device->api->cuCtxSetCurrent(device->context) == CUDA_SUCCESS;
  return scope;
}
/* A thread that had none has none again, whatever an operator has left pushed: setting NULL takes off the top alone. */
void accrt_cuda_drop_contexts(const cuda_device_t* device);
static inline void cuda_leave(const cuda_device_t* device, cuda_scope_t scope) {
  if (!scope.changed)
    return;
  if (scope.previous == NULL)
    accrt_cuda_drop_contexts(device);
  else
    (void)device->api->cuCtxSetCurrent(scope.previous);
}

/* After a call of somebody else's code: what it left current, pushed or set, is not for what follows, nor for the caller. */
static inline void cuda_stay(const cuda_device_t* device) {
  CUcontext current = NULL;
  if (device->api->cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != device->context)
    (void)device->api->cuCtxSetCurrent(device->context);
}

/* Some calls (allocation, queries, loading) are refused to a thread, and break the capture, while it or another thread captures
 * a stream in a strict mode, though they have nothing to do with it. Between these two they are let through. */
static inline CUstreamCaptureMode cuda_relax(const cuda_device_t* device) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)device->api->cuThreadExchangeStreamCaptureMode(&mode);
  return mode;
}
static inline void cuda_unrelax(const cuda_device_t* device, CUstreamCaptureMode mode) {
  (void)device->api->cuThreadExchangeStreamCaptureMode(&mode);
}

/* ---- Errors (errors.c) ---- */

/* The status that a result of CUDA is to the caller. */
accrt_status_t accrt_cuda_status(CUresult result);
/* The context is broken for good. */
bool accrt_cuda_is_fatal(CUresult result);
/* "CUDA_ERROR_OUT_OF_MEMORY". Static. */
const char* accrt_cuda_result_name(const cuda_api_t* api, CUresult result);
/* Records a failed call of CUDA: `call` is its name ("cuMemCreate"), the message says what it was for. A fatal result loses the
 * device. Returns the status. */
accrt_status_t accrt_cuda_fail(cuda_device_t* device, CUresult result, const char* call,
                               const char* format, ...) __attribute__((format(printf, 4, 5)));
/* The same before there is a device. */
accrt_status_t accrt_cuda_fail_at(const accrt_driver_environment_t* environment,
                                  const cuda_api_t* api, CUresult result, const char* call,
                                  const char* format, ...) __attribute__((format(printf, 5, 6)));
/* What this thread's last failed call of this driver recorded, for accrt_cuda_queue_fail. */
void accrt_cuda_last_failure(accrt_error_t* out_error);
/* Records a failure of this driver's own. */
accrt_status_t accrt_cuda_refuse(const accrt_driver_environment_t* environment,
                                 accrt_status_t status, const char* operation, const char* format,
                                 ...) __attribute__((format(printf, 4, 5)));

/* ---- Memory (memory.c, pinned.c, export.c) ---- */

#define CUDA_MEMORY_VIRTUAL 1u    /* create, reserve, map */
#define CUDA_MEMORY_PLAIN 2u      /* cuMemAlloc */
#define CUDA_MEMORY_PINNED 3u     /* cuMemHostAlloc */
#define CUDA_MEMORY_FOREIGN 4u    /* somebody else's device memory */
#define CUDA_MEMORY_REGISTERED 5u /* somebody else's host memory, registered by us or by others */
#define CUDA_MEMORY_IPC 6u        /* opened from another process */

/* Behind accrt_driver_memory_t.handle. */
struct cuda_memory {
  cuda_memory_t* previous; /* VIRTUAL: in the device's list */
  cuda_memory_t* next;
  uint32_t kind;
  bool exportable;
  CUdeviceptr address;
  void* host_pointer; /* PINNED, REGISTERED */
  uint64_t size_bytes;
  CUmemGenericAllocationHandle allocation; /* VIRTUAL */
  struct cuda_import* import;              /* REGISTERED by us */
};

/* Lets `device` reach all virtual memory of `owner`, what it has and will have. */
accrt_status_t accrt_cuda_memory_open_to(cuda_device_t* owner, cuda_device_t* device);

/* ---- Code (module.c, image.c) ---- */

/* One kernel of a module: what module_find gives. Read-only once made, lives as long as the module. */
struct cuda_kernel {
  cuda_kernel_t* next;
  uint64_t id; /* of this device, never used again; not 0 */
  cuda_device_t* device;
  CUkernel kernel;
  CUfunction function; /* of the device's context */
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t params_size_bytes;
  uint32_t attribute_count; /* cluster, cooperative, overlap: 0 for plain kernels */
  CUlaunchAttribute attributes[CUDA_LAUNCH_MAX_ATTRIBUTES];
  /* Where CUDA takes its arguments from when they are given one by one: offsets within the block. */
  uint32_t param_count;
  uint32_t param_offsets[ACCRT_KERNEL_MAX_PARAMS];
  char name[256];
};

/* The smallest grid that the kernel takes: one cluster, or one workgroup. */
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

/* ---- Queues (queue.c, mark.c) ---- */

/* An event behind submission `number`: when it is reached, all up to that number have ended. */
struct cuda_mark {
  cuda_mark_t* next; /* older first; or in the queue's spares */
  CUevent event;
  uint64_t number;
  uint32_t users; /* waiting threads and tickets: not recycled before */
  bool retired;   /* reached, and out of the chain */
  bool blocking;  /* a thread can sleep on it */
};

struct cuda_queue {
  cuda_device_t* device;
  cuda_queue_t* previous; /* in the device's list */
  cuda_queue_t* next;
  CUstream stream;
  bool owned; /* false: wrapped */
  /* The queue's owner, and the poller while it looks at it. */
  atomic_uint references;
  /* Number of the last submission given to CUDA. Release when it is set (after the launch) pairs with the acquire of who
   * records or queries behind it. */
  _Alignas(64) atomic_uint_least64_t submitted;
  /* All up to this have ended. Only grows. Release when it is raised pairs with the acquire of who reads it. */
  atomic_uint_least64_t completed;
  /* A failure of this queue alone (an operator's, in the middle of a list). Set with release after `failure` is written. */
  atomic_uint failed;
  accrt_mutex_t mutex; /* guards what follows */
  accrt_error_t failure;
  cuda_mark_t* oldest; /* marks in flight */
  cuda_mark_t* newest;
  cuda_mark_t* spare_marks[2]; /* by `blocking` */
  struct cuda_ticket* first_ticket;
  struct cuda_ticket* last_ticket;
  struct cuda_ticket* spare_tickets;
  struct cuda_launch_cache*
      launches;      /* of who enqueues; NULL until a kernel comes again (launch.c) */
  bool watched;      /* the poller looks at it */
  bool told;         /* a completion has told the failure: those behind it are poisoned */
  uint64_t reported; /* what queue_progress said last */
  /* The poller's own. */
  cuda_queue_t* poller_next;
  uint64_t head_number; /* of the ticket that it waits for ... */
  uint64_t head_ns;     /* ... and since when */
};

/* What one submission needs around the calls of CUDA that it makes. */
typedef struct cuda_submit {
  cuda_scope_t scope;
  struct cuda_ticket* ticket; /* NULL: no completion, no trace */
} cuda_submit_t;

/* Begins a submission: refuses on a lost device, a failed queue, or a wrapped stream that is being captured
 * (ACCRT_ERROR_INVALID_STATE, the capture stays valid); makes the context current. On failure nothing is to be ended.
 * `submission` may be NULL when nothing is traced or completed (prepared launches). */
accrt_status_t accrt_cuda_submit_begin(cuda_queue_t* queue,
                                       const accrt_driver_submission_t* submission,
                                       cuda_submit_t* out_submit);
/* Ends it, whatever became of it. ACCRT_OK: publishes the number and arranges for the completion. Else: nothing was enqueued,
 * nothing is published. `name` is for traces. Returns `status`, or the failure to arrange for the completion. */
accrt_status_t accrt_cuda_submit_end(cuda_queue_t* queue,
                                     const accrt_driver_submission_t* submission,
                                     cuda_submit_t* submit, const char* name,
                                     accrt_status_t status);
/* The same without completion and trace, for the shortest path: after the launch. */
static inline void cuda_publish(cuda_queue_t* queue, uint64_t number) {
  /* Release pairs with the acquire of who records or queries behind it. */
  atomic_store_explicit(&queue->submitted, number, memory_order_release);
}
/* True when nothing stands in the way of a launch: the short form of accrt_cuda_submit_begin's checks for owned queues. */
static inline bool cuda_queue_is_ready(cuda_queue_t* queue) {
  /* Acquire pairs with the release of who fails the queue. */
  return queue->owned && !cuda_device_is_lost(queue->device) &&
         atomic_load_explicit(&queue->failed, memory_order_acquire) == 0;
}
/* Fails the queue from this submission on, because its work ended half-way (an operator's failure in the middle of a list). The
 * submission then ends with accrt_cuda_submit_end(..., ACCRT_OK), and its completion tells the failure. */
void accrt_cuda_queue_fail(cuda_queue_t* queue, uint64_t number, const accrt_error_t* error);
/* Nothing may be enqueued on, recorded on or asked of a stream that is being captured: that would be recorded, or break the
 * capture. Only wrapped streams can be. */
bool accrt_cuda_queue_is_capturing(const cuda_queue_t* queue);
/* Looks how far the queue is, with the context current and relaxed. CUDA_SUCCESS: all that was given to it has ended. */
CUresult accrt_cuda_queue_advance(cuda_queue_t* queue);
void accrt_cuda_queue_unref(cuda_queue_t* queue);
/* Gives a ticket and its mark back to the queue. */
void accrt_cuda_ticket_return(cuda_queue_t* queue, struct cuda_ticket* ticket);
/* Waits until all that was given to the device's queues so far has ended. */
void accrt_cuda_device_drain(cuda_device_t* device);
/* Sleeps a little, by how long something is being waited for already: an eighth of it, at most 100 us, at first not at all. */
void accrt_cuda_back_off(uint64_t waited_ns);

/* Values and addresses of a command, for one submission. */
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
/* A parameter block: the template, with its patches written in. `block` has room for size_bytes. */
void accrt_cuda_block_fill(const void* params, uint32_t size_bytes,
                           const accrt_driver_patch_t* patches, uint32_t patch_count,
                           const accrt_driver_submission_t* submission, void* block);

/* Writes patches into a block that has the template's bytes. */
void accrt_cuda_block_patch(const accrt_driver_patch_t* patches, uint32_t patch_count,
                            const accrt_driver_submission_t* submission, void* block);
/* Enqueues a dispatch onto a queue, by the fastest way that it has for the kernel. */
accrt_status_t accrt_cuda_dispatch_enqueue(cuda_queue_t* queue,
                                           const accrt_driver_dispatch_t* command,
                                           const accrt_driver_submission_t* submission);
/* Enqueues one command onto a stream whose context is current (also one that is being captured). Not operators. */
accrt_status_t accrt_cuda_command_enqueue(cuda_device_t* device, CUstream stream,
                                          const accrt_driver_command_t* command,
                                          const accrt_driver_submission_t* submission);
/* Launches a kernel with a packed block. The grid has no zero. */
CUresult accrt_cuda_kernel_launch(const cuda_kernel_t* kernel, CUstream stream,
                                  const uint32_t grid[3], const void* block);

/* What to say of a grid that no device takes. */
static inline const char* cuda_grid_limit(const uint32_t grid[3]) {
  return grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535
             ? " (there are at most 2147483647 x 65535 x 65535)"
             : "";
}
/* Records that a launch was refused. */
accrt_status_t accrt_cuda_kernel_fail(const cuda_kernel_t* kernel, CUresult result,
                                      const uint32_t grid[3]);

/* ---- Copies (copy.c): how a strided copy is said to CUDA ---- */

/* A copy with its values known: extent[0] bytes, extent[1] rows, extent[2] planes. */
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
/* Merges what is contiguous, drops what is one, and says which form the rest has. */
uint32_t accrt_cuda_copy_shape(cuda_copy_t* copy, uint64_t max_pitch_bytes);
/* The values of a command's copy. */
void accrt_cuda_copy_values(const accrt_driver_copy_t* command,
                            const accrt_driver_submission_t* submission, cuda_copy_t* out_copy);
#define CUDA_COPY_DETOUR 6u /* between devices without a path: no call of CUDA's does it */
/* On machines with several GPUs: lets this device reach memory of the driver's other devices that a copy is about. Virtual memory
 * cannot be copied by who has no access to it. False where there is no path: out_far has who has the source, then the target, NULL for
 * what is within reach. */
bool accrt_cuda_copy_reach(cuda_device_t* device, uint64_t source, uint64_t target,
                           cuda_device_t* out_far[2]);
/* Through the host (detour.c). The copy has a shape (accrt_cuda_copy_shape). */
CUresult accrt_cuda_detour_copy(cuda_device_t* device, CUstream stream, const cuda_copy_t* copy,
                                cuda_device_t* const far[2]);
/* The queues are gone. */
void accrt_cuda_detour_close(cuda_device_t* device);
/* The requests that 2D and 3D shapes are. */
void accrt_cuda_copy_2d(const cuda_copy_t* copy, CUDA_MEMCPY2D* out_request);
void accrt_cuda_copy_3d(const cuda_copy_t* copy, CUDA_MEMCPY3D* out_request);
accrt_status_t accrt_cuda_copy_enqueue(cuda_device_t* device, CUstream stream, cuda_copy_t* copy);
/* CUDA knows the memory: its own, or registered. Else it is pageable memory of the host, or nothing. */
bool accrt_cuda_is_known(const cuda_device_t* device, uint64_t address);
accrt_status_t accrt_cuda_fill_enqueue(cuda_device_t* device, CUstream stream, uint64_t target,
                                       uint64_t size_bytes, uint64_t pattern,
                                       uint32_t pattern_bytes);

/* ---- The poller (poller.c) ---- */

/* A completion, or a trace, that waits for a mark. In the queue's chain in the order of submissions; kept for reuse. */
typedef struct cuda_ticket {
  struct cuda_ticket* next;
  cuda_mark_t* mark;
  accrt_driver_completion_t completion;
  uint64_t number;
  bool is_notification; /* tells the queue's failure, is not skipped by it */
  bool is_traced;
  uint64_t stream_id;
  char name[64];
  CUevent begin; /* with timing; NULL until the ticket is first traced */
  CUevent end;
} cuda_ticket_t;

accrt_status_t accrt_cuda_poller_start(cuda_device_t* device);
/* No queue has tickets. NULL-safe in its parts: also for a device that could not be opened. */
void accrt_cuda_poller_stop(cuda_device_t* device);
/* The queue has tickets: the poller looks at it until it has none. Keeps a reference of the queue meanwhile. */
void accrt_cuda_poller_watch(cuda_queue_t* queue);

/* ---- Events (event.c) ---- */

struct cuda_event {
  cuda_device_t* device;
  CUevent event;
  uint32_t flags;
  atomic_uint recorded;
};

/* ---- The table's groups, each with its file ---- */

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
/* queue.c, mark.c */
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
/* Launches a kernel that nobody prepared: one that comes again and again on this queue is prepared here. */
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
