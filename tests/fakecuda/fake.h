/* tests/fakecuda/fake.h - the inside of the stand-in: its objects, the lock, what each part offers the others.
 *
 * One lock guards everything; entry points hold it for as long as they run, the engine's thread gives it away while it runs a
 * task. Parts: core (start, devices, contexts, faults), memory, engine (tasks), stream (streams, events, copies), graph
 * (graphs), capture, image (what is in PTX and cubins), module (libraries, kernels, launches).
 */
#ifndef FAKECUDA_FAKE_H_
#define FAKECUDA_FAKE_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fakecuda.h"

#define EXPORT __attribute__((visibility("default")))
#define FAKE_MAX_DEVICES 8
#define MILLION UINT64_C(1000000)
#define BILLION UINT64_C(1000000000)

typedef struct task task_t;
typedef struct op op_t;
typedef struct capture capture_t;

/* ---- Settings and state ---- */

typedef struct settings {
  int device_count;
  int arch; /* 90: compute capability 9.0 */
  int driver_version;
  uint64_t memory_bytes; /* of one device */
  uint64_t seed;
  uint64_t delay_ns; /* the longest that a task may be held back */
  bool is_protected; /* device memory faults when the host touches it */
  bool is_traced;
  int64_t lose_after_launches; /* < 0: never */
  CUresult lose_with;
  int64_t fail_task_after; /* < 0: never */
  CUresult fail_task_with;
  CUresult init_result;
  int exclusive;  /* not 0: primary contexts cannot be made; 2: another process has the device */
  bool has_peers; /* devices reach one another */
} settings_t;

typedef struct fake {
  pthread_mutex_t mutex;
  pthread_cond_t done;   /* tasks ended */
  pthread_cond_t queued; /* the engine has something to look at */
  settings_t settings;
  bool is_initialized;
  bool is_child; /* of a fork */
  struct CUctx_st* primaries[FAKE_MAX_DEVICES];
  unsigned primary_flags[FAKE_MAX_DEVICES];
  CUresult lost[FAKE_MAX_DEVICES]; /* for the rest of the process */
  struct CUctx_st* contexts;
  uint64_t memory_used[FAKE_MAX_DEVICES];
  uint64_t random;
  uint64_t next_id;
  uint32_t waiter_count;
  int global_captures; /* in progress, of CU_STREAM_CAPTURE_MODE_GLOBAL */
  atomic_uint_fast64_t complaints;
} fake_t;
extern fake_t fake;

/* What a thread knows. */
typedef struct fake_thread {
  struct CUctx_st* stack[32];
  int depth;
  CUstreamCaptureMode capture_mode;
  bool in_callback;
  bool is_known;
} fake_thread_t;
extern _Thread_local fake_thread_t fake_thread;

/* ---- Entering ---- */

typedef struct fake_site {
  const char* name;
  struct fake_site* next;
  atomic_uint_fast64_t count;
  atomic_bool is_listed;
} fake_site_t;

typedef struct fake_guard {
  bool is_locked;
  struct CUctx_st* context; /* current */
} fake_guard_t;

#define NEED_INIT 1u
#define NEED_CONTEXT 2u
#define NOT_IN_CAPTURE 4u /* "potentially unsafe" while a capture is in progress */
#define NEED_HEALTH 8u    /* refused once the context is lost */
#define NORMAL (NEED_INIT | NEED_CONTEXT | NEED_HEALTH)
#define UNSAFE (NORMAL | NOT_IN_CAPTURE)

CUresult fake_enter(fake_site_t* site, const char* name, unsigned needs, fake_guard_t* guard);
void fake_leave(fake_guard_t* guard);
/* Begins every entry point: counts, fails on demand, takes the lock (given back on every return). */
#define ENTER(needs)                                                                               \
  static fake_site_t site;                                                                         \
  __attribute__((cleanup(fake_leave))) fake_guard_t guard = {false, NULL};                         \
  {                                                                                                \
    const CUresult entered = fake_enter(&site, __func__, (needs), &guard);                         \
    if (entered != CUDA_SUCCESS)                                                                   \
      return entered;                                                                              \
  }

/* Counts what is not a call, for fakecuda_count: README.md lists the names. */
void fake_count(const char* name);
void fake_complain(const char* format, ...) __attribute__((format(printf, 1, 2)));
uint64_t fake_now_ns(void);
uint64_t fake_random(void);             /* under the lock */
void* fake_allocate(size_t size_bytes); /* zeroed; ends the program when there is none */

/* ---- Objects ---- */

#define MAGIC_STREAM 0x5354524Du
#define MAGIC_EVENT 0x45564E54u
#define MAGIC_FUNCTION 0x46554E43u
#define MAGIC_KERNEL 0x4B45524Eu
#define MAGIC_MODULE 0x4D4F4455u
#define MAGIC_LIBRARY 0x4C494252u
#define MAGIC_GRAPH 0x47524150u
#define MAGIC_NODE 0x4E4F4445u
#define MAGIC_EXEC 0x45584543u
#define MAGIC_DEAD 0xDEADDEADu

struct CUctx_st {
  struct CUctx_st* next;
  int device;
  unsigned flags;
  bool is_primary;
  bool is_destroyed;
  uint32_t retain_count;
  CUresult lost; /* sticky */
  struct CUstream_st* streams;
  struct CUevent_st* events;
  struct CUstream_st* legacy;     /* the default streams */
  struct CUstream_st* per_thread; /* one is enough: nobody asks for two */
  task_t* orphaned;               /* ends after the work of streams that were destroyed */
  uint32_t peers;                 /* bit n: device n's memory is reachable */
  uint64_t id;
  int64_t launch_count;
};

typedef struct node_set {
  CUgraphNode* nodes;
  uint32_t count;
} node_set_t;

struct CUstream_st {
  uint32_t magic;
  unsigned flags;
  int priority;
  uint64_t id;
  CUcontext context;
  struct CUstream_st* next;
  task_t* last;
  capture_t* capture;
  node_set_t tips; /* while captured: what the next node follows */
};

struct CUevent_st {
  uint32_t magic;
  unsigned flags;
  CUcontext context;
  struct CUevent_st* next;
  task_t* task; /* of the latest record; NULL: never recorded */
  capture_t* capture;
  node_set_t tips;
};

/* ---- Memory (memory.c) ---- */

/* Where an address leads: the bytes, and how many follow. NULL: nowhere, the access faults. */
unsigned char* memory_resolve(CUcontext context, uint64_t address, uint64_t* out_available);
typedef enum memory_type {
  MEMORY_PAGEABLE,
  MEMORY_PINNED,
  MEMORY_DEVICE,
  MEMORY_NOWHERE
} memory_type_t;
memory_type_t memory_type(uint64_t address);
bool memory_is_unmapped(uint64_t address); /* not made with cuMemMap */
/* True when [address, address + size) is inside one allocation (or several that touch). */
bool memory_covers(CUcontext context, uint64_t address, uint64_t size_bytes);
/* Opens and closes device memory for a kernel. */
void memory_protect(bool is_open);
void memory_forget_context(CUcontext context);

/* ---- Tasks (engine.c) ---- */

typedef enum op_kind {
  OP_EMPTY,
  OP_KERNEL,
  OP_COPY,
  OP_FILL,
  OP_HOST,
  OP_WRITE_VALUE,
  OP_WAIT_VALUE,
  OP_CHILD,
  OP_RECORD,
  OP_WAIT_EVENT,
} op_kind_t;

typedef struct op_kernel {
  CUfunction function;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  unsigned char* params; /* packed */
  bool is_cooperative;
  uint32_t cluster[3]; /* of a node; zeros: none */
} op_kernel_t;

typedef struct op_copy {
  uint64_t target;
  uint64_t source;
  uint64_t extent[3]; /* bytes, rows, planes */
  uint64_t target_stride[2];
  uint64_t source_stride[2];
  unsigned char* staged; /* a pageable source as it was at the call, packed */
  bool is_devices_own;   /* pageable memory is out of reach */
  bool crosses;          /* a peer copy: reaches both devices' memory */
} op_copy_t;

typedef struct op_fill {
  uint64_t target;
  uint64_t pitch;
  uint32_t value;
  uint32_t element_bytes;
  uint64_t width; /* elements */
  uint64_t height;
} op_fill_t;

struct op {
  op_kind_t kind;
  union {
    op_kernel_t kernel;
    op_copy_t copy;
    op_fill_t fill;
    struct {
      CUhostFn function;
      void* user;
    } host;
    struct {
      uint64_t address;
      uint64_t value;
      unsigned flags;
      uint32_t size_bytes;
    } value;
    CUgraph child;
    CUevent event;
  } as;
};

void op_clone(op_t* target, const op_t* source);
void op_free(op_t* op);

task_t* task_create(CUcontext context, const op_t* op); /* takes the op over */
void task_retain(task_t* task);
void task_release(task_t* task);
bool task_is_done(const task_t* task);
uint64_t task_done_ns(const task_t* task);
CUcontext task_context(const task_t* task);
void task_follow(task_t* task, task_t* before); /* before submission; before may be NULL */
void task_submit(task_t* task);                 /* consumes the reference */
void task_wait(task_t* task);                   /* gives the lock away meanwhile */
void engine_start(void);
/* The work up to `last` goes on when its stream is destroyed, and whoever drains the context waits for it. */
void engine_orphan(CUcontext context, task_t* last);
void engine_drain(CUcontext context); /* waits until nothing of it is pending */

/* ---- Streams (stream.c) ---- */

CUresult stream_find(CUcontext current, CUstream handle, CUstream* out_stream);
/* Enqueues or captures; takes the op over in any case. */
CUresult stream_enqueue(CUstream stream, op_t* op);
/* The task becomes the stream's last, after all that the stream's rules say. */
void stream_order(CUstream stream, task_t* task);
void stream_submit(CUstream stream, task_t* task);
CUresult stream_wait_all(CUstream stream);
CUstream stream_create(CUcontext context, unsigned flags, int priority);
void stream_free(CUstream stream);
void event_free(CUevent event);
bool event_is_live(CUevent event);
CUresult copy_from_3d(const CUDA_MEMCPY3D* from, op_copy_t* out);
CUresult fill_from_params(const CUDA_MEMSET_NODE_PARAMS* from, op_fill_t* out);

/* ---- Graphs and capture (graph.c) ---- */

CUresult capture_add(CUstream stream, op_t* op);
void capture_leave(CUstream stream);
CUresult capture_unsafe(CUcontext context); /* for NOT_IN_CAPTURE */
void capture_invalidate(capture_t* capture);
CUresult capture_implicit(CUcontext context);
CUresult capture_any(CUcontext context); /* spoils every capture of the context */
void node_set_copy(node_set_t* target, const node_set_t* source);
void node_set_join(node_set_t* target, const node_set_t* source);
void node_set_free(node_set_t* set);
bool capture_is_active(const capture_t* capture); /* spoiled ones too */
bool capture_is_spoiled(const capture_t* capture);
void capture_enter(CUstream stream, capture_t* capture, const node_set_t* tips);
void capture_retain(capture_t* capture);
void capture_release(capture_t* capture);

/* ---- Images and kernels (image.c, module.c) ---- */

#define IMAGE_MAX_PARAMS 128
typedef struct image_kernel {
  char name[256];
  uint32_t param_count;
  uint32_t param_offset[IMAGE_MAX_PARAMS];
  uint32_t param_size[IMAGE_MAX_PARAMS];
  uint32_t params_size;
  uint32_t static_shared;
  uint32_t registers;
  uint32_t max_threads;
} image_kernel_t;

typedef struct image {
  int arch; /* 90 */
  bool is_ptx;
  image_kernel_t* kernels;
  uint32_t kernel_count;
} image_t;

/* Reads what the bytes are; for `arch`. */
CUresult image_parse(const void* data, int arch, image_t* out_image);
void image_free(image_t* image);

int kernel_run(const op_kernel_t* kernel); /* CUresult; without the lock */
int kernel_twin_missing(CUfunction function);
/* Counts an attribute under the name that is for its kind. */
void count_attribute(CUlaunchAttributeID id, const char* cluster, const char* cooperative,
                     const char* overlap);
CUresult kernel_prepare(CUcontext context, const CUlaunchConfig* config, CUfunction function,
                        void** params, void** extra, op_t* out_op);
const image_kernel_t* function_image(CUfunction function);

/* Runs `body`; a fault inside it gives CUDA_ERROR_ILLEGAL_ADDRESS. */
CUresult guarded(CUresult (*body)(void* argument), void* argument);

#endif /* FAKECUDA_FAKE_H_ */
