/* runtime/drivers/cuda/graph.h - command lists as CUDA graphs: declarations for graph*.c.
 *
 * A list is planned once (graph_plan.c). Each command becomes a node of a graph. A command that no
 * graph supports is submitted alone between two graphs. Runs of nodes are *segments*. A stream runs
 * segments in order, so edges are needed only within a segment.
 *
 * An *instance* is the plan with addresses and scalars in it: one instantiated graph for each
 * segment of nodes (graph_build.c). Every submission compares its *inputs* (the bindings'
 * addresses, then the scalars) with those of the instance. It patches the nodes that depend on a
 * changed input (graph_patch.c); CUDA allows that while an earlier launch of the graph is in
 * flight. What cannot be patched is built again. A graph never runs at the same time as itself, on
 * any stream. So each queue has its own instances. The device limits their number and destroys the
 * least recently used ones (graph_cache.c).
 *
 * It may not mention bundles, programs or public handles.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_GRAPH_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_GRAPH_H_

#include "runtime/drivers/cuda/cuda.h"

/* ---- The plan (graph_plan.c): does not call CUDA ---- */

#define CUDA_NODE_NOTHING                                                                          \
  0u /* a barrier or marker without a node: its successors follow its predecessors */
#define CUDA_NODE_KERNEL 1u   /* everything that a command can change can be patched */
#define CUDA_NODE_COPY 2u     /* linear copies can be patched, others are built again */
#define CUDA_NODE_FILL 3u     /* can be patched */
#define CUDA_NODE_OPERATOR 4u /* captured, and captured again when an input changes */
#define CUDA_NODE_DIRECT 5u   /* no node: submitted alone */
#define CUDA_NODE_JOIN 6u     /* a barrier or marker behind several commands: an empty node */

/* Maximum number of commands of one level that run in parallel. More do not help even kernels
 * that do almost nothing. Each root of a graph makes its launch slower, so the limit for roots
 * is lower. */
#define CUDA_PLAN_BRANCHES 8u
#define CUDA_PLAN_ROOTS 4u
/* Longer segments run as a chain, because the sets for finding edges grow with the square (8 MiB
 * here). */
#define CUDA_PLAN_MAX_BRANCHED 8192u

/* A position in a kernel's block that each submission fills: with an address when `binding` is set,
 * otherwise with a value. It has a third of the size of a list's patch, because each submission
 * reads many. */
typedef struct cuda_patch {
  uint64_t constant;
  uint32_t binding; /* or ACCRT_DRIVER_NONE */
  uint32_t scalar;  /* or ACCRT_DRIVER_NONE */
  uint32_t offset_bytes;
  uint32_t size_bytes;
} cuda_patch_t;

/* One command in the plan. */
typedef struct cuda_planned {
  const accrt_driver_command_t* command;
  uint32_t kind;          /* CUDA_NODE_* */
  uint32_t level;         /* commands of one segment and level do not depend on one another */
  uint32_t segment;       /* index; NOTHING has the segment of its neighbours */
  uint32_t params_offset; /* KERNEL, OPERATOR: offset of the block in an instance's blocks */
  uint32_t fields_offset; /* KERNEL: offset of its field pointers in an instance's fields */
  uint32_t first_patch;   /* KERNEL: index in the plan's patches */
  uint32_t patch_count;
  bool fixed_grid;                  /* KERNEL: all grid dimensions are constant and none is 0 */
  struct cuda_operation* operation; /* OPERATOR, and DIRECT commands that are operators */
} cuda_planned_t;

/* The commands first .. first + count - 1. */
typedef struct cuda_segment {
  uint32_t first;
  uint32_t count;
  bool direct; /* one command without a node */
} cuda_segment_t;

typedef struct cuda_plan {
  const accrt_allocator_t* allocator;
  uint64_t max_pitch_bytes; /* limit of the device's strided copies */
  uint32_t command_count;
  uint32_t binding_count;
  uint32_t scalar_count;
  cuda_planned_t* commands;
  uint32_t segment_count;
  cuda_segment_t* segments; /* has room for command_count */
  uint32_t blocks_bytes;    /* of all parameter blocks of an instance */
  uint32_t field_count;     /* of all field pointers of an instance */
  cuda_patch_t* patches;    /* of all kernels */
  uint32_t patch_count;
  /* Predecessors of command i in its graph: edges[first_edge[i]] .. edges[first_edge[i + 1] - 1].
   * No edge is implied by others. */
  uint32_t* first_edge; /* command_count + 1 */
  uint32_t* edges;
  size_t edge_capacity;
  uint32_t edge_count;
  /* Commands that depend on input i: dependents[first_dependent[i]] .. dependents[first_dependent[i
   * + 1] - 1]. */
  uint32_t* first_dependent; /* input_count + 1 */
  uint32_t* dependents;
  uint32_t dependent_count;
} cuda_plan_t;

static inline uint32_t cuda_plan_inputs(const cuda_plan_t* plan) {
  return plan->binding_count + plan->scalar_count;
}

/* Plans a list. After a failure there is nothing to free. */
accrt_status_t accrt_cuda_plan_make(const accrt_allocator_t* allocator,
                                    const accrt_driver_list_info_t* info, uint64_t max_pitch_bytes,
                                    cuda_plan_t* out_plan);
void accrt_cuda_plan_free(cuda_plan_t* plan);

static inline const cuda_kernel_t* cuda_dispatch_kernel(const accrt_driver_dispatch_t* dispatch) {
  return dispatch->kernel->module_kernel;
}

/* ---- Host operators (graph_operator.c) ---- */

/* The state of an operator. It lives as long as the list. */
typedef struct cuda_operation {
  const accrt_driver_invoke_t* invoke;
  void* state;
  bool prepared;
  accrt_mutex_t mutex; /* an operator's state is used by one thread at a time */
} cuda_operation_t;

/* Returns a stream for the caller's own use: the device's spare one, or a new one. */
accrt_status_t accrt_cuda_stream_take(cuda_device_t* device, CUstream* out_stream);
/* Takes the stream back as the spare one. A broken one is destroyed. */
void accrt_cuda_stream_return(cuda_device_t* device, CUstream stream, bool broken);

accrt_status_t accrt_cuda_operation_prepare(cuda_device_t* device, cuda_operation_t* operation);
/* Requires the device's current context. */
void accrt_cuda_operation_destroy(cuda_device_t* device, cuda_operation_t* operation);
/* Calls the operator's execute function with the submission's values on a stream. `block` has room
 * for the parameter block. Requires the current context. */
accrt_status_t accrt_cuda_operation_execute(cuda_device_t* device, cuda_operation_t* operation,
                                            CUstream stream,
                                            const accrt_driver_submission_t* submission,
                                            void* block);
/* The same, captured into a new graph. */
accrt_status_t accrt_cuda_operation_capture(cuda_device_t* device, cuda_operation_t* operation,
                                            const accrt_driver_submission_t* submission,
                                            void* block, CUgraph* out_graph);

/* ---- Instances (graph_build.c, graph_patch.c) ---- */

#define CUDA_STATE_EMPTY 0u /* an empty node: there is nothing to copy, fill or run */
#define CUDA_STATE_ENABLED 1u
#define CUDA_STATE_DISABLED 2u

/* The node of one command in an instance. */
typedef struct cuda_exec_node {
  CUgraphNode graph_node;
  uint32_t state;                 /* CUDA_STATE_* */
  uint32_t stamp;                 /* number of the last update that patched it */
  CUDA_KERNEL_NODE_PARAMS kernel; /* KERNEL: kernelParams has pointers to fields of its block */
} cuda_exec_node_t;

typedef struct cuda_instance {
  struct cuda_instance* previous; /* in the device's list, which its graph mutex guards */
  struct cuda_instance* next;
  cuda_device_t* device;
  const cuda_plan_t* plan;
  const char* name; /* the list's name, for messages */
  /* guards the fields below; held while the instance is patched and launched */
  accrt_mutex_t mutex;
  bool ready;   /* the graphs are instantiated with `inputs` */
  bool counted; /* is in the device's list */
  uint32_t stamp;
  atomic_uint last_use; /* the device's epoch, relaxed: only ages are compared */
  /* The queue that uses the instance; compared, never dereferenced. Relaxed: checked again under
   * the mutex. */
  _Atomic(const cuda_queue_t*) queue;
  uint64_t* inputs;
  cuda_exec_node_t* nodes; /* by command */
  CUgraph* graphs; /* by segment; a graph must outlive its instantiation, which patches refer to */
  CUgraphExec* execs;    /* by segment; NULL for direct ones */
  unsigned char* blocks; /* parameter blocks of all commands */
  void** fields;         /* pointers to the fields of the blocks */
} cuda_instance_t;

accrt_status_t accrt_cuda_instance_create(cuda_device_t* device, const cuda_plan_t* plan,
                                          const char* name, cuda_instance_t** out_instance);
void accrt_cuda_instance_free(cuda_instance_t* instance);
/* Builds and instantiates all graphs with the submission's inputs. The caller holds the instance's
 * mutex and has made the context current. After a failure the instance is not ready. */
accrt_status_t accrt_cuda_instance_build(cuda_instance_t* instance,
                                         const accrt_driver_submission_t* submission);
/* Uploads the built graphs to the device. Otherwise the first launch would do it. The caller holds
 * the mutex and has made the context current. */
void accrt_cuda_instance_upload(cuda_instance_t* instance);
/* Destroys the graphs, which may be in flight. The caller holds the mutex and has made the context
 * current. */
void accrt_cuda_instance_clear(cuda_instance_t* instance);

/* True when these inputs are those of the submission. */
bool accrt_cuda_inputs_equal(const uint64_t* inputs, const accrt_driver_submission_t* submission);
void accrt_cuda_inputs_copy(uint64_t* inputs, const accrt_driver_submission_t* submission);
/* A digest of a submission's inputs. */
uint64_t accrt_cuda_inputs_digest(const accrt_driver_submission_t* submission);
/* The cost of a patch: the number of commands that depend on a changed input. Counting stops above
 * CUDA_LIST_CHEAP_PATCHES. */
uint32_t accrt_cuda_plan_changed(const cuda_plan_t* plan, const uint64_t* inputs,
                                 const accrt_driver_submission_t* submission);
/* Updates the graphs to the submission's inputs: patches them, or builds again what cannot be
 * patched. The caller holds the mutex and has made the context current. After a failure the
 * instance is not ready. */
accrt_status_t accrt_cuda_instance_update(cuda_instance_t* instance,
                                          const accrt_driver_submission_t* submission);

/* Records a failed call for one command. */
accrt_status_t accrt_cuda_command_fail(const cuda_instance_t* instance, uint32_t index,
                                       CUresult result, const char* call);

/* Writes a dispatch's values for this submission to its node. False when a grid dimension is 0, so
 * nothing runs. */
bool accrt_cuda_node_dispatch(cuda_instance_t* instance, uint32_t index,
                              const accrt_driver_submission_t* submission);
/* Makes the memcpy node's parameters for a copy. Returns its CUDA_COPY_* shape: NOTHING, DETOUR, or
 * the planned LINEAR, 2D or 3D. */
uint32_t accrt_cuda_node_copy(cuda_device_t* device, const accrt_driver_copy_t* command,
                              const accrt_driver_submission_t* submission, CUDA_MEMCPY3D* out_copy);
/* Makes the memset node's parameters for a fill; false when there is nothing to fill. */
bool accrt_cuda_node_fill(const accrt_driver_fill_t* command,
                          const accrt_driver_submission_t* submission,
                          CUDA_MEMSET_NODE_PARAMS* out_fill);

/* ---- Lists (graph.c, graph_cache.c) ---- */

/* per list: for several queues, or for alternating sets of arguments */
#define CUDA_LIST_INSTANCES 8u
#define CUDA_LIST_HISTORY 8u
/* Patching so few nodes costs less than a search for a better instance. */
#define CUDA_LIST_CHEAP_PATCHES 4u

struct cuda_list {
  cuda_device_t* device;
  char* name; /* NULL: none */
  cuda_plan_t plan;
  cuda_operation_t* operations;
  uint32_t operation_count;
  atomic_bool plain;   /* runs command by command: see fall_back_to_commands in graph.c */
  accrt_mutex_t mutex; /* guards the fields below; `instances` is also read without it */
  /* Set with release, read with acquire. Never cleared before the list is destroyed. */
  _Atomic(cuda_instance_t*) instances[CUDA_LIST_INSTANCES];
  /* Digests of inputs that were patched in. Inputs that appear again get an instance of their
   * own. */
  uint64_t history[CUDA_LIST_HISTORY];
  uint32_t history_next;
};

/* Returns an instance for this queue with its mutex held. It has the submission's inputs, or the
 * caller has to update it, or it is new. */
accrt_status_t accrt_cuda_list_acquire(cuda_list_t* list, const cuda_queue_t* queue,
                                       const accrt_driver_submission_t* submission,
                                       cuda_instance_t** out_instance);
/* Adds an instance that is about to be built to the device's list. If there are too many, the least
 * recently used idle one is destroyed. */
void accrt_cuda_graphs_admit(cuda_device_t* device, cuda_instance_t* instance);
/* Removes it from the device's list. */
void accrt_cuda_graphs_forget(cuda_device_t* device, cuda_instance_t* instance);

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_GRAPH_H_ */
