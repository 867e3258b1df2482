/* cluster.cuh - the instructions for blocks of a cluster. Before sm_90 a block is alone. */
#ifndef ACCRT_CUDA_CLUSTER_CUH_
#define ACCRT_CUDA_CLUSTER_CUH_

#include "tensorcore.cuh"

namespace accrt_cuda {

/** This block's place in its cluster; alone where there is none. */
static __device__ __forceinline__ uint2 cluster_place() {
  uint2 place = make_uint2(0, 1);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(place.x));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(place.y));
#endif
  return place;
}

/** Both halves of a barrier of the cluster's blocks: all threads come, and go on when all have. */
static __device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
static __device__ __forceinline__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

/** A float of the shared memory of block `rank` of the cluster. */
static __device__ __forceinline__ float cluster_read(const float* at, uint32_t rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t address;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(at)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
#else
  return *at;
#endif
}

} // namespace accrt_cuda
#endif
