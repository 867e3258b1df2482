/* runtime/drivers/cuda/launch.h - prepared launches: one kernel as a graph of one node, patched and launched each time. CUDA takes
 * that in little more than half the time of cuLaunchKernel (docs/decisions/cuda-launches.md). It may not mention lists.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_LAUNCH_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_LAUNCH_H_

#include "runtime/drivers/cuda/cuda.h"

/* A graph never runs at the same time as itself, so each queue gets one of its own; of more queues than these the one that came
 * first loses its. */
#define CUDA_LAUNCH_QUEUES 4u

/* Kernels that a queue prepares by itself, at this many launches. Preparing costs as much as two launches. */
#define CUDA_LAUNCH_CACHE 16u
#define CUDA_LAUNCH_CACHE_USES 4u

/* Two threads launch by graph side by side. When a third is seen, launches of graphs get in each other's way inside CUDA: for so
 * many launches only those that are alone go by graph, the others by cuLaunchKernel. */
#define CUDA_LAUNCH_AT_ONCE 2u
#define CUDA_LAUNCH_CROWD_MEMORY 256u

typedef struct cuda_launch_exec {
  const cuda_queue_t* queue; /* an identity */
  CUgraphExec exec;
} cuda_launch_exec_t;

struct cuda_launch {
  cuda_device_t* device;
  const cuda_kernel_t* kernel;
  CUgraph graph; /* NULL: launched by cuLaunchKernelEx */
  CUgraphNode node;
  cuda_launch_exec_t execs[CUDA_LAUNCH_QUEUES]; /* in the order they were made */
  uint32_t next_exec;
  const unsigned char* block; /* what the fields point into */
  CUDA_KERNEL_NODE_PARAMS params;
  void* fields[ACCRT_KERNEL_MAX_PARAMS];
};

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_LAUNCH_H_ */
