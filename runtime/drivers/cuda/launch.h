/* runtime/drivers/cuda/launch.h - prepared launches: a graph with one kernel node, patched and
 * launched each time. CUDA needs little more than half the time of cuLaunchKernel for that
 * (docs/decisions/cuda-launches.md). It may not use lists.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_LAUNCH_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_LAUNCH_H_

#include "runtime/drivers/cuda/cuda.h"

/* A graph never runs at the same time as itself, so each queue gets its own. When there are more
 * queues than this, the oldest graph is reused. */
#define CUDA_LAUNCH_QUEUES 4u

/* Number of kernels that a queue prepares automatically after repeated launches. Preparing one
 * costs as much as two launches. */
#define CUDA_LAUNCH_CACHE 16u
#define CUDA_LAUNCH_CACHE_USES 4u

/* Graph launches of up to two threads do not slow each other down. From the third thread on they
 * contend inside CUDA. After such contention, for this many launches, only a launch without others
 * at the same time uses a graph; the rest use cuLaunchKernel. */
#define CUDA_LAUNCH_AT_ONCE 2u
#define CUDA_LAUNCH_CONTENDED 256u

typedef struct cuda_launch_exec {
  const cuda_queue_t* queue; /* compared, never dereferenced */
  CUgraphExec exec;
} cuda_launch_exec_t;

struct cuda_launch {
  cuda_device_t* device;
  const cuda_kernel_t* kernel;
  CUgraph graph; /* NULL: launched by cuLaunchKernelEx */
  CUgraphNode node;
  cuda_launch_exec_t execs[CUDA_LAUNCH_QUEUES]; /* in the order of creation */
  uint32_t next_exec;
  const unsigned char* block; /* the block that the field pointers point into */
  CUDA_KERNEL_NODE_PARAMS params;
  void* fields[ACCRT_KERNEL_MAX_PARAMS];
};

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_LAUNCH_H_ */
