// few_rows.cu - products of few rows with a weight [n, k], as decoding makes them: activation(a @
// b^T + bias) + residual, bound by reading the weight.
//
// Instantiated with A_TAG, B_TAG, C_TAG, BIAS_TAG (floats, not f64), ACTIVATION and ENTRY. Adds up
// in f32. A warp makes one column of four rows, its lanes share k. The residual may be the result's
// memory. Blocks of 256 threads; x of the grid walks columns by eight, y rows by four.
#include "elementwise.cuh"

typedef TYPE(A_TAG) a_t;
typedef TYPE(B_TAG) b_t;
typedef TYPE(C_TAG) c_t;
typedef TYPE(BIAS_TAG) bias_t;
typedef float sum_t;

#include "epilogue.cuh"

#define ROWS 4
#define WIDE (16 / (int)sizeof(b_t))

template <int N>
DEVICE void add_products(const a_t* a, const b_t* b, index_t lda, int rows, index_t k, int lane,
                         float (&sums)[ROWS]) {
#pragma unroll 2
  for (index_t at = (index_t)lane * N; at < k; at += 32 * N) {
    const vector_t<b_t, N> weights = *(const vector_t<b_t, N>*)(b + at);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      if (row < rows) {
        const vector_t<a_t, N> values = *(const vector_t<a_t, N>*)(a + row * lda + at);
#pragma unroll
        for (int i = 0; i < N; i++)
          sums[row] = fmaf(LOAD(A_TAG)(values.at[i]), LOAD(B_TAG)(weights.at[i]), sums[row]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const a_t* a, const b_t* b, const bias_t* bias, const c_t* residual, c_t* c, index_t m,
          index_t n, index_t k, index_t lda, index_t ldb, index_t ldc, index_t ld_residual) {
  begin_kernel();
  const int lane = threadIdx.x % 32;
  const index_t column = (index_t)blockIdx.x * 8 + threadIdx.x / 32,
                row = (index_t)blockIdx.y * ROWS;
  if (column >= n)
    return;
  const int rows = (int)min_index(ROWS, m - row);
  const bool wide = is_aligned<a_t, WIDE>(a) && is_aligned<b_t, WIDE>(b) && lda % WIDE == 0 &&
                    ldb % WIDE == 0 && k % WIDE == 0;
  float sums[ROWS] = {};
  if (wide)
    add_products<WIDE>(a + row * lda, b + column * ldb, lda, rows, k, lane, sums);
  else
    add_products<1>(a + row * lda, b + column * ldb, lda, rows, k, lane, sums);
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], half);
    if (lane == i && i < rows) {
      const index_t place = (row + i) * ld_residual + column;
      const float value = finished(sums[i], bias, residual, column, place);
      c[(row + i) * ldc + column] = STORE(C_TAG)(value);
    }
  }
}
