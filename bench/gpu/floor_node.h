/* bench/gpu/floor_node.h - a kernel as a node of a graph, for floor_graph.c and floor_chains.c. */
#ifndef ACCRT_BENCH_GPU_FLOOR_NODE_H_
#define ACCRT_BENCH_GPU_FLOOR_NODE_H_

#include "floor.h"

static inline CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction function, unsigned grid,
                                                  unsigned block, void** params) {
  CUDA_KERNEL_NODE_PARAMS p;
  memset(&p, 0, sizeof p);
  p.func = function;
  p.gridDimX = grid;
  p.gridDimY = p.gridDimZ = 1;
  p.blockDimX = block;
  p.blockDimY = p.blockDimZ = 1;
  p.kernelParams = params;
  return p;
}

#endif /* ACCRT_BENCH_GPU_FLOOR_NODE_H_ */
