/* groups.cuh - which rows a tile of a grouped product has. */
#ifndef ACCRT_CUDA_GROUPS_CUH_
#define ACCRT_CUDA_GROUPS_CUH_

/** Rows [begin, end) of `matrix`; none where there is no such tile. */
struct group_t {
  long long matrix, begin, end;
};

/** Tile `tile` of at most `size` rows of one matrix: the rows of matrix e end at ends[e], and those
 * behind the last end are of matrix `matrices`. Ends that fall leave no rows. */
template <class INDEX>
static __device__ __forceinline__ group_t find_group(const INDEX* ends, long long step,
                                                     long long matrices, long long rows,
                                                     long long tile, int size) {
  long long begin = 0;
#pragma unroll 4
  for (long long e = 0; e <= matrices; e++) {
    const long long given = e < matrices ? (long long)ends[e * step] : rows;
    const long long end = given < rows ? given : rows;
    const long long tiles = end > begin ? (end - begin + size - 1) / size : 0;
    if (tile < tiles) {
      const long long first = begin + tile * size;
      return {e, first, first + size < end ? first + size : end};
    }
    tile -= tiles;
    begin = end > begin ? end : begin;
  }
  return {matrices, 0, 0};
}
#endif
