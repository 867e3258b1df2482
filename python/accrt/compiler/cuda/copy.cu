// copy.cu - strided copies whose input and output are contiguous along different axes: tiles of 32
// x 32 through shared memory, so that both sides use whole sectors.
//
// Instantiated with BYTES (1, 2, 4 or 8: the element) and ENTRY. d7 is the axis that is contiguous
// in the output, d6 the one that is contiguous in the input. Blocks of 32 x 8 threads; x of the
// grid walks tiles, then all other axes.
#include "common.cuh"

#if BYTES == 1
typedef uint8_t element_t;
#elif BYTES == 2
typedef uint16_t element_t;
#elif BYTES == 4
typedef uint32_t element_t;
#else
typedef uint64_t element_t;
#endif

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const element_t* x, element_t* out, index_t d0, index_t d1, index_t d2, index_t d3,
          index_t d4, index_t d5, index_t d6, index_t d7, index_t x0, index_t x1, index_t x2,
          index_t x3, index_t x4, index_t x5, index_t x6, index_t x7, index_t y0, index_t y1,
          index_t y2, index_t y3, index_t y4, index_t y5, index_t y6, index_t y7) {
  begin_kernel();
  __shared__ element_t tile[32][33];
  const index_t wide = (d7 + 31) / 32, high = (d6 + 31) / 32;
  index_t rest = blockIdx.x;
  if (rest >= wide * high * d0 * d1 * d2 * d3 * d4 * d5)
    return;
  const index_t column = rest % wide * 32;
  rest /= wide;
  const index_t row = rest % high * 32;
  rest /= high;
#define WALK(AXIS)                                                                                 \
  if (d##AXIS != 1) {                                                                              \
    const index_t i = rest % d##AXIS;                                                              \
    rest /= d##AXIS;                                                                               \
    x += i * x##AXIS;                                                                              \
    out += i * y##AXIS;                                                                            \
  }
  WALK(5)
  WALK(4) WALK(3) WALK(2) WALK(1)
      WALK(0) for (int i = threadIdx.y; i < 32; i += 8) { // i along d7, lanes along d6
    const index_t c = column + i, r = row + threadIdx.x;
    if (c < d7 && r < d6)
      tile[i][threadIdx.x] = x[r * x6 + c * x7];
  }
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += 8) { // i along d6, lanes along d7
    const index_t r = row + i, c = column + threadIdx.x;
    if (r < d6 && c < d7)
      out[r * y6 + c * y7] = tile[threadIdx.x][i];
  }
}
