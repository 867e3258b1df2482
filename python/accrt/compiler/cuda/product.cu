// product.cu - matrix products of any types and strides, the ones that fast kernels do not take: activation(a @ b + bias) + residual.
//
// Instantiated with A_TAG, B_TAG, C_TAG, BIAS_TAG and ENTRY. Adds up in f32 for 16-bit floats and f32, in f64 for f64, in 64 bits for
// integers, which wrap. The residual has the result's strides and may be its memory. Tiles of 32 x 32 results, 16 deep; blocks of 256
// threads, four results each; x of the grid walks columns, y rows, z batches.
#include "elementwise.cuh"

typedef TYPE(A_TAG) a_t;
typedef TYPE(B_TAG) b_t;
typedef TYPE(C_TAG) c_t;
typedef TYPE(BIAS_TAG) bias_t;

template <class T>
struct sum_of {
  typedef int64_t type;
};
template <>
struct sum_of<float> {
  typedef float type;
};
template <>
struct sum_of<double> {
  typedef double type;
};
typedef sum_of<WORK(C_TAG)>::type sum_t;

DEVICE float add_product(float a, float b, float sum) {
  return fmaf(a, b, sum);
}
DEVICE double add_product(double a, double b, double sum) {
  return fma(a, b, sum);
}
DEVICE int64_t add_product(int64_t a, int64_t b, int64_t sum) {
  return (int64_t)((uint64_t)a * (uint64_t)b + (uint64_t)sum);
}

DEVICE float activate(float x, index_t activation) {
  switch (activation) {
  case 1: return x < 0 ? 0 : x;
  case 2: return m_gelu(x);
  case 3: return m_gelu_tanh(x);
  case 4: return m_silu(x);
  case 5: return m_tanh(x);
  case 6: return m_sigmoid(x);
  default: return x;
  }
}
DEVICE double activate(double x, index_t activation) {
  switch (activation) {
  case 1: return x < 0 ? 0 : x;
  case 2: return x < -40.0 ? 0.0 : 0.5 * x * (1 + erf(x * 0.70710678118654752440));
  case 3: return x < -1e30 ? 0.0 : x / (1 + exp(-1.5957691216057307 * (x + 0.044715 * x * x * x)));
  case 4: return (x < -1e300 ? -1e300 : x) / (1 + exp(-x));
  case 5: return tanh(x);
  case 6: return 1 / (1 + exp(-x));
  default: return x;
  }
}
DEVICE int64_t activate(int64_t x, index_t) {
  return x;
}

#define TILE 32
#define DEEP 16

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const a_t* a, const b_t* b, const bias_t* bias, const c_t* residual, c_t* c, index_t m, index_t n, index_t k, index_t a_row,
          index_t a_column, index_t b_row, index_t b_column, index_t c_row, index_t batch0, index_t batch1, index_t batch2,
          index_t a0, index_t a1, index_t a2, index_t b0, index_t b1, index_t b2, index_t c0, index_t c1, index_t c2,
          index_t activation, double scale) {
  begin_kernel();
  __shared__ sum_t a_tile[TILE][DEEP + 1], b_tile[DEEP][TILE + 1];
  const index_t batches = batch0 * batch1 * batch2;
  const int x = threadIdx.x % TILE, y = threadIdx.x / TILE; // results (y + 8 i, x)
  for (index_t batch = blockIdx.z; batch < batches; batch += gridDim.z) {
    const index_t i2 = batch % batch2, i1 = batch / batch2 % batch1, i0 = batch / batch2 / batch1;
    const a_t* from_a = a + i0 * a0 + i1 * a1 + i2 * a2;
    const b_t* from_b = b + i0 * b0 + i1 * b1 + i2 * b2;
    const index_t to_c = i0 * c0 + i1 * c1 + i2 * c2;
    for (index_t row = (index_t)blockIdx.y * TILE; row < m; row += (index_t)gridDim.y * TILE) {
      const index_t column = (index_t)blockIdx.x * TILE;
      sum_t sums[4] = {};
      for (index_t deep = 0; deep < k; deep += DEEP) {
        for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
          const index_t r = row + i / DEEP, at = deep + i % DEEP;
          a_tile[i / DEEP][i % DEEP] = r < m && at < k ? (sum_t)LOAD(A_TAG)(from_a[r * a_row + at * a_column]) : (sum_t)0;
        }
        for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
          // Lanes walk the axis of b that lies contiguous.
          const int wide = b_row == 1 ? i / DEEP : i % TILE, high = b_row == 1 ? i % DEEP : i / TILE;
          const index_t at = deep + high, s = column + wide;
          b_tile[high][wide] = s < n && at < k ? (sum_t)LOAD(B_TAG)(from_b[at * b_row + s * b_column]) : (sum_t)0;
        }
        __syncthreads();
#pragma unroll
        for (int at = 0; at < DEEP; at++) {
#pragma unroll
          for (int i = 0; i < 4; i++)
            sums[i] = add_product(a_tile[y + 8 * i][at], b_tile[at][x], sums[i]);
        }
        __syncthreads();
      }
      for (int i = 0; i < 4; i++) {
        const index_t r = row + y + 8 * i, s = column + x;
        if (r >= m || s >= n)
          continue;
        sum_t value = scale == 1.0 ? sums[i] : (sum_t)(sums[i] * (sum_t)scale);
        if (bias)
          value += (sum_t)LOAD(BIAS_TAG)(bias[s]);
        value = activate(value, activation);
        const index_t place = to_c + r * c_row + s;
        if (residual)
          value += (sum_t)LOAD(C_TAG)(residual[place]);
        c[place] = STORE(C_TAG)((WORK(C_TAG))value);
      }
    }
  }
}
