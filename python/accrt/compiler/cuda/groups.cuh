/* groups.cuh - which rows a tile of a grouped product has. */
#ifndef ACCRT_CUDA_GROUPS_CUH_
#define ACCRT_CUDA_GROUPS_CUH_

/** Rows [begin, end) of `matrix`; none where there is no such tile. */
struct group_t {
  long long matrix, begin, end;
};

/** Tile `tile` of at most `size` rows of one matrix: the rows of matrix e end at ends[e], and those
 * behind the last end are of matrix `matrices`. Ends that fall leave no rows. All lanes of a warp
 * call it together, with the same arguments: each looks at every 32nd matrix. */
template <class INDEX>
static __device__ __forceinline__ group_t find_group(const INDEX* ends, long long step,
                                                     long long matrices, long long rows,
                                                     long long tile, int size) {
  const unsigned all = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  long long behind = 0; /* where the groups of the lanes before end */
#pragma unroll 1
  for (long long first = 0; first <= matrices; first += 32) {
    const long long e = first + lane, given = e < matrices ? (long long)ends[e * step] : rows;
    long long end = given < rows ? given : rows;
    end = end > behind ? end : behind;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const long long other = __shfl_up_sync(all, end, by);
      end = lane >= by && other > end ? other : end;
    }
    const long long before = __shfl_up_sync(all, end, 1), begin = lane == 0 ? behind : before;
    const long long tiles = (end - begin + size - 1) / size;
    long long sum = tiles; /* of the lanes up to this one */
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const long long other = __shfl_up_sync(all, sum, by);
      sum += lane >= by ? other : 0;
    }
    const unsigned found = __ballot_sync(all, tile < sum);
    if (found != 0) {
      const int which = __ffs((int)found) - 1;
      const long long at = __shfl_sync(all, begin + (tile - sum + tiles) * size, which);
      const long long last = __shfl_sync(all, end, which);
      return {first + which, at, at + size < last ? at + size : last};
    }
    tile -= __shfl_sync(all, sum, 31);
    behind = __shfl_sync(all, end, 31);
  }
  return {matrices, 0, 0};
}
#endif
