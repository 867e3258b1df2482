/* runtime/drivers/cuda/graph.h - command lists as CUDA graphs: what graph*.c share.
 *
 * A list is planned once (graph_plan.c): each command becomes a node of a graph or, when no graph can hold it, is enqueued by
 * itself between two graphs. Runs of nodes are *segments*. A stream runs segments in order, so only the order within a segment
 * needs edges.
 *
 * An *instance* is the plan with addresses and scalars in it: one instantiated graph for each segment of nodes (graph_build.c).
 * Every submission compares its *inputs* (the bindings' addresses, then the scalars) with those that the instance has, and
 * patches the nodes that depend on one that changed (graph_patch.c): CUDA lets a graph be patched while an earlier launch of it
 * is in flight. What cannot be patched is built again. One graph runs at a time with itself, whatever the stream: so each queue
 * has instances of its own, and all instances of a device are bounded and destroyed by age (graph_cache.c).
 *
 * It may not mention bundles, programs or public handles.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_GRAPH_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_GRAPH_H_

#include "runtime/drivers/cuda/cuda.h"

/* ---- The plan (graph_plan.c): knows no CUDA ---- */

#define CUDA_NODE_NOTHING                                                                          \
  0u /* a barrier or marker without a node: who follows it follows what it follows */
#define CUDA_NODE_KERNEL 1u   /* can be patched in all that a command can change */
#define CUDA_NODE_COPY 2u     /* linear ones can be patched, others are built again */
#define CUDA_NODE_FILL 3u     /* can be patched */
#define CUDA_NODE_OPERATOR 4u /* captured; captured again when an input changes */
#define CUDA_NODE_DIRECT 5u   /* no node: enqueued by itself */
#define CUDA_NODE_JOIN 6u     /* a barrier or marker behind several: an empty node */

/* At most so many commands of one level run side by side: as many as help kernels that do next to nothing. Each root of a
 * graph costs its submission, so there are fewer of them. */
#define CUDA_PLAN_LANES 8u
#define CUDA_PLAN_ROOTS 4u
/* Longer segments run as a chain: the sets that edges are found with grow with the square (8 MiB here). */
#define CUDA_PLAN_MAX_BRANCHED 8192u

/* A place in a kernel's block that is filled at submission: a patch of the list in a third of its size, since many are read for
 * each submission. An address when `binding` is one, else a value. */
typedef struct cuda_patch {
  uint64_t constant;
  uint32_t binding; /* or ACCRT_DRIVER_NONE */
  uint32_t scalar;  /* or ACCRT_DRIVER_NONE */
  uint32_t offset_bytes;
  uint32_t size_bytes;
} cuda_patch_t;

/* What one command is in a list. */
typedef struct cuda_planned {
  const accrt_driver_command_t* command;
  uint32_t kind;          /* CUDA_NODE_* */
  uint32_t level;         /* commands of one segment and level do not depend on one another */
  uint32_t segment;       /* index; NOTHING has the segment of its neighbours */
  uint32_t params_offset; /* KERNEL, OPERATOR: of the block among an instance's blocks */
  uint32_t fields_offset; /* KERNEL: of its field pointers among an instance's */
  uint32_t first_patch;   /* KERNEL: in the plan's patches */
  uint32_t patch_count;
  bool fixed_grid;                  /* KERNEL: no dimension changes, none is 0 */
  struct cuda_operation* operation; /* OPERATOR, and DIRECT ones of operators */
} cuda_planned_t;

/* Commands first .. first + count - 1. */
typedef struct cuda_segment {
  uint32_t first;
  uint32_t count;
  bool direct; /* one command without a node */
} cuda_segment_t;

typedef struct cuda_plan {
  const accrt_allocator_t* allocator;
  uint64_t max_pitch_bytes; /* of the device's strided copies */
  uint32_t command_count;
  uint32_t binding_count;
  uint32_t scalar_count;
  cuda_planned_t* commands;
  uint32_t segment_count;
  cuda_segment_t* segments; /* room for command_count */
  uint32_t blocks_bytes;    /* of all parameter blocks of an instance */
  uint32_t field_count;     /* of all field pointers of an instance */
  cuda_patch_t* patches;    /* of all kernels */
  uint32_t patch_count;
  /* What command i follows in its graph: edges[first_edge[i]] .. edges[first_edge[i + 1] - 1]. No edge follows from others. */
  uint32_t* first_edge; /* command_count + 1 */
  uint32_t* edges;
  size_t edge_capacity;
  uint32_t edge_count;
  /* Commands that depend on input i: dependents[first_dependent[i]] .. dependents[first_dependent[i + 1] - 1]. */
  uint32_t* first_dependent; /* input_count + 1 */
  uint32_t* dependents;
  uint32_t dependent_count;
} cuda_plan_t;

static inline uint32_t cuda_plan_inputs(const cuda_plan_t* plan) {
  return plan->binding_count + plan->scalar_count;
}

/* Plans a list. On failure nothing is left to be freed. */
accrt_status_t accrt_cuda_plan_make(const accrt_allocator_t* allocator,
                                    const accrt_driver_list_info_t* info, uint64_t max_pitch_bytes,
                                    cuda_plan_t* out_plan);
void accrt_cuda_plan_free(cuda_plan_t* plan);

static inline const cuda_kernel_t* cuda_dispatch_kernel(const accrt_driver_dispatch_t* dispatch) {
  return dispatch->kernel->module_kernel;
}

/* ---- Host operators (graph_operator.c) ---- */

/* A state of an operator, made with the list. */
typedef struct cuda_operation {
  const accrt_driver_invoke_t* invoke;
  void* state;
  bool prepared;
  accrt_mutex_t mutex; /* one thread at a time per state, as the operator is promised */
} cuda_operation_t;

/* A stream of the device's own: its spare one, or a new one. */
accrt_status_t accrt_cuda_stream_take(cuda_device_t* device, CUstream* out_stream);
/* Gives it back; a broken one is destroyed. */
void accrt_cuda_stream_return(cuda_device_t* device, CUstream stream, bool broken);

accrt_status_t accrt_cuda_operation_prepare(cuda_device_t* device, cuda_operation_t* operation);
/* The device's context is current. */
void accrt_cuda_operation_destroy(cuda_device_t* device, cuda_operation_t* operation);
/* Calls execute with the submission's values on a stream. `block` has room for the parameter block. The context is current. */
accrt_status_t accrt_cuda_operation_execute(cuda_device_t* device, cuda_operation_t* operation,
                                            CUstream stream,
                                            const accrt_driver_submission_t* submission,
                                            void* block);
/* The same into a graph of its own. */
accrt_status_t accrt_cuda_operation_capture(cuda_device_t* device, cuda_operation_t* operation,
                                            const accrt_driver_submission_t* submission,
                                            void* block, CUgraph* out_graph);

/* ---- Instances (graph_build.c, graph_patch.c) ---- */

#define CUDA_SLOT_ABSENT 0u /* the node is an empty one: there was nothing to copy, fill or run */
#define CUDA_SLOT_ENABLED 1u
#define CUDA_SLOT_DISABLED 2u

/* One command in an instance. */
typedef struct cuda_slot {
  CUgraphNode node;
  uint32_t state;                 /* CUDA_SLOT_* */
  uint32_t stamp;                 /* of the update that patched it last */
  CUDA_KERNEL_NODE_PARAMS kernel; /* KERNEL: kernelParams are field pointers into its block */
} cuda_slot_t;

typedef struct cuda_instance {
  struct cuda_instance* previous; /* in the device's list, guarded by its graph mutex */
  struct cuda_instance* next;
  cuda_device_t* device;
  const cuda_plan_t* plan;
  const char* name;    /* of the list, for messages */
  accrt_mutex_t mutex; /* guards what follows; held while it is patched and launched */
  bool ready;          /* graphs are instantiated with `inputs` */
  bool counted;        /* among the device's instances */
  uint32_t stamp;
  atomic_uint last_use; /* the device's epoch, relaxed: only ages are compared */
  /* The queue that uses it, an identity alone. Relaxed: checked again under the mutex. */
  _Atomic(const cuda_queue_t*) queue;
  uint64_t* inputs;
  cuda_slot_t* slots;    /* by command */
  CUgraph* graphs;       /* by segment; nodes that are patched must outlive the instantiation */
  CUgraphExec* execs;    /* by segment; NULL for direct ones */
  unsigned char* blocks; /* parameter blocks */
  void** fields;         /* pointers into them */
} cuda_instance_t;

accrt_status_t accrt_cuda_instance_create(cuda_device_t* device, const cuda_plan_t* plan,
                                          const char* name, cuda_instance_t** out_instance);
void accrt_cuda_instance_free(cuda_instance_t* instance);
/* Builds and instantiates all graphs with the submission's inputs. The mutex is held, the context current. On failure the
 * instance is not ready. */
accrt_status_t accrt_cuda_instance_build(cuda_instance_t* instance,
                                         const accrt_driver_submission_t* submission);
/* Sends what was built to the device ahead of the first launch, which would else wait for it. The same rules. */
void accrt_cuda_instance_upload(cuda_instance_t* instance);
/* Destroys what build made; it may be in flight. The same rules. */
void accrt_cuda_instance_clear(cuda_instance_t* instance);

/* The inputs are those that the instance has. */
bool accrt_cuda_inputs_equal(const uint64_t* inputs, const accrt_driver_submission_t* submission);
void accrt_cuda_inputs_copy(uint64_t* inputs, const accrt_driver_submission_t* submission);
/* A digest of a submission's inputs. */
uint64_t accrt_cuda_inputs_digest(const accrt_driver_submission_t* submission);
/* How many commands depend on an input that differs: what a patch costs. Stops counting above CUDA_LIST_CHEAP_PATCHES. */
uint32_t accrt_cuda_plan_changed(const cuda_plan_t* plan, const uint64_t* inputs,
                                 const accrt_driver_submission_t* submission);
/* Makes the graphs have the submission's inputs: patches, or builds again what cannot be patched. The mutex is held, the context
 * current. On failure the instance is not ready. */
accrt_status_t accrt_cuda_instance_update(cuda_instance_t* instance,
                                          const accrt_driver_submission_t* submission);

/* Records a failed call for one command. */
accrt_status_t accrt_cuda_command_fail(const cuda_instance_t* instance, uint32_t index,
                                       CUresult result, const char* call);

/* Writes a dispatch's values of this submission into its slot. False: a grid dimension is 0, nothing runs. */
bool accrt_cuda_slot_dispatch(cuda_instance_t* instance, uint32_t index,
                              const accrt_driver_submission_t* submission);
/* What a copy is to a memcpy node. Returns its CUDA_COPY_* shape: NOTHING, LINEAR, 2D or 3D, as it was planned, or DETOUR. */
uint32_t accrt_cuda_node_copy(cuda_device_t* device, const accrt_driver_copy_t* command,
                              const accrt_driver_submission_t* submission, CUDA_MEMCPY3D* out_copy);
/* What a fill is to a memset node; false when there is nothing to fill. */
bool accrt_cuda_node_fill(const accrt_driver_fill_t* command,
                          const accrt_driver_submission_t* submission,
                          CUDA_MEMSET_NODE_PARAMS* out_fill);

/* ---- Lists (graph.c, graph_cache.c) ---- */

#define CUDA_LIST_INSTANCES 8u /* of one list: several queues, or argument sets that come in turn */
#define CUDA_LIST_HISTORY 8u
/* Patching so few nodes is cheaper than looking for an instance that needs none. */
#define CUDA_LIST_CHEAP_PATCHES 4u

struct cuda_list {
  cuda_device_t* device;
  char* name; /* NULL: none */
  cuda_plan_t plan;
  cuda_operation_t* operations;
  uint32_t operation_count;
  atomic_bool plain;   /* command by command: see becomes_plain */
  accrt_mutex_t mutex; /* guards what follows, except that instances are read without it */
  /* Release when one is set pairs with the acquire of who looks for one. Never cleared before the list goes. */
  _Atomic(cuda_instance_t*) instances[CUDA_LIST_INSTANCES];
  /* Digests of inputs that were patched in: those that come again are worth an instance of their own. */
  uint64_t history[CUDA_LIST_HISTORY];
  uint32_t history_next;
};

/* Gives an instance for this queue, its mutex held: one that has the submission's inputs, one to be updated, or a new one. */
accrt_status_t accrt_cuda_list_acquire(cuda_list_t* list, const cuda_queue_t* queue,
                                       const accrt_driver_submission_t* submission,
                                       cuda_instance_t** out_instance);
/* Counts an instance that is about to be built, destroying the oldest idle one when there are too many. */
void accrt_cuda_graphs_admit(cuda_device_t* device, cuda_instance_t* instance);
/* Takes it out of the device's list. */
void accrt_cuda_graphs_forget(cuda_device_t* device, cuda_instance_t* instance);

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_GRAPH_H_ */
