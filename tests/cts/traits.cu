// tests/cts/traits.cu - kernels that have to be launched in a special way: clusters, cooperative grids, overlap with the kernel ahead,
// much shared memory. Made into traits.ptx, which is committed.
// arch: sm_90
#include <cooperative_groups.h>
#include <cstdint>

namespace cg = cooperative_groups;

// The sum of what all workgroups of the cluster have in their shared memory, and the cluster's size.
extern "C" __global__ void in_cluster(uint32_t* out) {
  __shared__ uint32_t mine;
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0)
    mine = blockIdx.x + 1;
  cluster.sync();
  if (cluster.block_rank() == 0 && threadIdx.x == 0) {
    uint32_t sum = 0;
    for (uint32_t rank = 0; rank < cluster.num_blocks(); ++rank)
      sum += *cluster.map_shared_rank(&mine, rank);
    out[2 * (blockIdx.x / cluster.num_blocks())] = sum;
    out[2 * (blockIdx.x / cluster.num_blocks()) + 1] = cluster.num_blocks();
  }
  cluster.sync(); // nobody leaves while others read
}

// Every workgroup sums what all the others have written before the grid's barrier.
extern "C" __global__ void over_grid(uint32_t* cells, uint32_t* sums) {
  if (threadIdx.x == 0)
    cells[blockIdx.x] = blockIdx.x + 1;
  cg::this_grid().sync();
  if (threadIdx.x != 0)
    return;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < gridDim.x; ++i)
    sum += ((volatile uint32_t*)cells)[i];
  sums[blockIdx.x] = sum;
}

// Lets the next one start, waits for the one ahead, then appends to a log: order shows.
extern "C" __global__ void overlapping(uint32_t* log, uint32_t number) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  volatile uint32_t* at = log;
  at[1 + at[0]] = number;
  at[0] = at[0] + 1;
}

// Uses all of its dynamic shared memory, and says how much that was.
extern "C" __global__ void much_shared(uint32_t* out) {
  extern __shared__ uint32_t words[];
  uint32_t size_bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size_bytes));
  const uint32_t count = size_bytes / 4;
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
    words[i] = i * 2654435761u + blockIdx.x;
  __syncthreads();
  if (threadIdx.x != 0)
    return;
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < count; ++i)
    wrong += words[i] != i * 2654435761u + blockIdx.x;
  out[2 * blockIdx.x] = size_bytes;
  out[2 * blockIdx.x + 1] = wrong;
}
