/* bench/gpu/floor_kernels_90.cu - those that need clusters and programmatic dependent launch. */
#include <stdint.h>
/* fold that may start early and waits itself. */
extern "C" __global__ void fold_early(uint32_t* state, uint32_t multiplier, uint32_t increment) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (blockIdx.x == 0 && threadIdx.x == 0)
    *state = *state * multiplier + increment;
}
/* Writes the rank in the cluster times 1000 plus the cluster's size. */
extern "C" __global__ void cluster_rank(uint32_t* out) {
  uint32_t rank, size;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0)
    out[blockIdx.x] = rank * 1000 + size;
}
