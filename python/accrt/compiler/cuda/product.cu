// product.cu - matrix products of any types and strides, the ones that tensor cores do not take:
// activation(scale * (a @ b) + bias) + residual.
//
// Instantiated with A_TAG, B_TAG, C_TAG, BIAS_TAG, ACTIVATION, ENTRY and LIKE_OPERATOR (1: the
// parameters of the cuBLASLt operator, for matrices with contiguous rows; 0: any strides; 2: rows
// in groups, each with a matrix of its own, whose ends are of INDEX_TAG; x of the grid walks tiles
// of rows then, as in grouped.cuh, y columns). Adds up in f32 for 16-bit floats and f32, in f64 for
// f64, in 64 bits for integers, which wrap. The residual may be the result's memory. Tiles of 64 x
// 64 results, 16 deep; blocks of 256 threads, 4 x 4 results each; x of the grid walks columns, y
// rows, z batches.
#include "elementwise.cuh"

typedef TYPE(A_TAG) a_t;
typedef TYPE(B_TAG) b_t;
typedef TYPE(C_TAG) c_t;
typedef TYPE(BIAS_TAG) bias_t;

template <class T> struct sum_of { typedef int64_t type; };
template <> struct sum_of<float> { typedef float type; };
template <> struct sum_of<double> { typedef double type; };
typedef sum_of<WORK(C_TAG)>::type sum_t;

#include "epilogue.cuh"

DEVICE float add_product(float a, float b, float sum) {
  return fmaf(a, b, sum);
}
DEVICE double add_product(double a, double b, double sum) {
  return fma(a, b, sum);
}
DEVICE int64_t add_product(int64_t a, int64_t b, int64_t sum) {
  return (int64_t)((uint64_t)a * (uint64_t)b + (uint64_t)sum);
}

#define TILE 64
#define DEEP 16

struct product_t {
  const a_t* a;
  const b_t* b;
  const bias_t* bias;
  const c_t* residual;
  c_t* c;
  index_t m, n, k, a_row, a_column, b_row, b_column, c_row, residual_row;
  double scale;
};

struct alignas(16) tiles_t {
  sum_t a[DEEP][TILE + 16 / sizeof(sum_t)], b[DEEP][TILE + 16 / sizeof(sum_t)];
};

// Rows [row, row + 64) of a and columns [column, column + 64) of b, from `deep` on, zeros outside.
// Lanes walk what is contiguous.
DEVICE void load_tiles(const product_t& p, tiles_t& tiles, index_t row, index_t column,
                       index_t deep) {
#pragma unroll
  for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
    const int r = p.a_column == 1 ? i / DEEP : i % TILE, d = p.a_column == 1 ? i % DEEP : i / TILE;
    const bool inside = row + r < p.m && deep + d < p.k;
    tiles.a[d][r] =
        inside ? (sum_t)LOAD(A_TAG)(p.a[(row + r) * p.a_row + (deep + d) * p.a_column]) : (sum_t)0;
  }
#pragma unroll
  for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
    const int s = p.b_row == 1 ? i / DEEP : i % TILE, d = p.b_row == 1 ? i % DEEP : i / TILE;
    const bool inside = column + s < p.n && deep + d < p.k;
    tiles.b[d][s] = inside
                        ? (sum_t)LOAD(B_TAG)(p.b[(deep + d) * p.b_row + (column + s) * p.b_column])
                        : (sum_t)0;
  }
}

DEVICE void product_tile(const product_t& p, tiles_t& tiles, index_t row, index_t column) {
  const int x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;
  sum_t sums[4][4] = {};
#pragma unroll 1
  for (index_t deep = 0; deep < p.k; deep += DEEP) {
    load_tiles(p, tiles, row, column, deep);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < DEEP; d++) {
      const vector_t<sum_t, 4> a = *(const vector_t<sum_t, 4>*)&tiles.a[d][y],
                               b = *(const vector_t<sum_t, 4>*)&tiles.b[d][x];
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
          sums[i][j] = add_product(a.at[i], b.at[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const index_t r = row + y + i, s = column + x + j;
      if (r >= p.m || s >= p.n)
        continue;
      sum_t value = p.scale == 1.0 ? sums[i][j] : (sum_t)(sums[i][j] * (sum_t)p.scale);
      value = finished(value, p.bias, p.residual, s, r * p.residual_row + s);
      p.c[r * p.c_row + s] = STORE(C_TAG)((WORK(C_TAG))value);
    }
  }
}

DEVICE void product_rows(const product_t& p, tiles_t& tiles) {
#pragma unroll 1
  for (index_t row = (index_t)blockIdx.y * TILE; row < p.m; row += (index_t)gridDim.y * TILE)
    product_tile(p, tiles, row, (index_t)blockIdx.x * TILE);
}

#if LIKE_OPERATOR == 1
extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const a_t* a, const b_t* b, const bias_t* bias, const c_t* residual, c_t* c, index_t m,
          index_t n, index_t k, index_t lda, index_t ldb, index_t ldc, index_t ld_residual,
          index_t batch0, index_t batch1, index_t a0, index_t a1, index_t b0, index_t b1,
          index_t c0, index_t c1, index_t form, float scale) {
  begin_kernel();
  __shared__ tiles_t tiles;
  const bool is_nk = form >> 32 & 1;
#pragma unroll 1
  for (index_t batch = blockIdx.z; batch < batch0 * batch1; batch += gridDim.z) {
    const index_t i0 = batch / batch1, i1 = batch % batch1;
    const product_t p = {a + i0 * a0 + i1 * a1,
                         b + i0 * b0 + i1 * b1,
                         bias,
                         residual,
                         c + i0 * c0 + i1 * c1,
                         m,
                         n,
                         k,
                         lda,
                         1,
                         is_nk ? 1 : ldb,
                         is_nk ? ldb : 1,
                         ldc,
                         ld_residual,
                         (double)scale};
    product_rows(p, tiles);
  }
}
#elif LIKE_OPERATOR == 2
#include "groups.cuh"

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const a_t* x, const b_t* w, const TYPE(INDEX_TAG) * ends, c_t* out, index_t rows,
          index_t n, index_t k, index_t matrices, index_t x_row, index_t out_row,
          index_t ends_step, index_t w_matrix, index_t w_row, index_t w_column) {
  begin_kernel();
  __shared__ tiles_t tiles;
  const group_t g = find_group(ends, ends_step, matrices, rows, blockIdx.x, TILE);
  if (g.begin >= g.end)
    return;
  const bool is_behind = g.matrix == matrices;
  const product_t p = {x + g.begin * x_row,
                       w + (is_behind ? 0 : g.matrix * w_matrix),
                       nullptr,
                       nullptr,
                       out + g.begin * out_row,
                       g.end - g.begin,
                       n,
                       is_behind ? 0 : k,
                       x_row,
                       1,
                       w_row,
                       w_column,
                       out_row,
                       0,
                       1.0};
  product_tile(p, tiles, 0, (index_t)blockIdx.y * TILE);
}
#else
extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const a_t* a, const b_t* b, const bias_t* bias, const c_t* residual, c_t* c, index_t m,
          index_t n, index_t k, index_t a_row, index_t a_column, index_t b_row, index_t b_column,
          index_t c_row, index_t residual_row, index_t batch0, index_t batch1, index_t batch2,
          index_t a0, index_t a1, index_t a2, index_t b0, index_t b1, index_t b2, index_t c0,
          index_t c1, index_t c2, double scale) {
  begin_kernel();
  __shared__ tiles_t tiles;
#pragma unroll 1
  for (index_t batch = blockIdx.z; batch < batch0 * batch1 * batch2; batch += gridDim.z) {
    const index_t i2 = batch % batch2, i1 = batch / batch2 % batch1, i0 = batch / batch2 / batch1;
    const product_t p = {a + i0 * a0 + i1 * a1 + i2 * a2,
                         b + i0 * b0 + i1 * b1 + i2 * b2,
                         bias,
                         residual,
                         c + i0 * c0 + i1 * c1 + i2 * c2,
                         m,
                         n,
                         k,
                         a_row,
                         a_column,
                         b_row,
                         b_column,
                         c_row,
                         residual_row,
                         scale};
    product_rows(p, tiles);
  }
}
#endif
