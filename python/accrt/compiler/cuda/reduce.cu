// reduce.cu - sum, mean, maximum and minimum over up to two (collapsed) axes, keeping up to three.
//
// Instantiated with X_TAG, OUT_TAG, OP (SUM, MEAN, MAX or MIN), ACROSS (1: results lie side by side
// in memory, as the elements of one do not), LANES (where they do: threads of one result, a power
// of two) and ENTRY. Accumulates in the result's type, 16-bit floats in f32; integers wrap. Nothing
// reduced gives 0, NaN, the lowest and the highest value. NaN propagates. The order of additions
// depends on shapes alone. Blocks of 256 threads; x of the grid walks results, y pieces of the last
// reduced axis, whose results are apart; a mean is the sum by `divisor`.
#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef TYPE(OUT_TAG) out_t;
typedef WORK(OUT_TAG) acc_t;

#define SUM 0
#define MEAN 1
#define MAX 3
#define MIN 4

#define LOWEST_f32 __int_as_float(0xff800000)
#define LOWEST_f16 LOWEST_f32
#define LOWEST_bf16 LOWEST_f32
#define LOWEST_f64 __longlong_as_double(0xfff0000000000000ull)
#define LOWEST_i8 INT8_MIN
#define LOWEST_u8 0
#define LOWEST_i16 INT16_MIN
#define LOWEST_u16 0
#define LOWEST_i32 INT32_MIN
#define LOWEST_u32 0
#define LOWEST_i64 INT64_MIN
#define LOWEST_u64 0
#define HIGHEST_f32 __int_as_float(0x7f800000)
#define HIGHEST_f16 HIGHEST_f32
#define HIGHEST_bf16 HIGHEST_f32
#define HIGHEST_f64 __longlong_as_double(0x7ff0000000000000ull)
#define HIGHEST_i8 INT8_MAX
#define HIGHEST_u8 UINT8_MAX
#define HIGHEST_i16 INT16_MAX
#define HIGHEST_u16 UINT16_MAX
#define HIGHEST_i32 INT32_MAX
#define HIGHEST_u32 UINT32_MAX
#define HIGHEST_i64 INT64_MAX
#define HIGHEST_u64 UINT64_MAX

#define FLOAT_f32 1
#define FLOAT_f16 1
#define FLOAT_bf16 1
#define FLOAT_f64 1
#define FLOAT_i8 0
#define FLOAT_u8 0
#define FLOAT_i16 0
#define FLOAT_u16 0
#define FLOAT_i32 0
#define FLOAT_u32 0
#define FLOAT_i64 0
#define FLOAT_u64 0

#if OP == SUM || OP == MEAN
#define START ((acc_t)0)
#if CONCAT(FLOAT_, OUT_TAG)
#define COMBINE(a, b) ((a) + (b))
#else
#define COMBINE(a, b) ((acc_t)((uint64_t)(a) + (uint64_t)(b)))
#endif
#elif OP == MAX
#define START ((acc_t)CONCAT(LOWEST_, OUT_TAG))
#define COMBINE(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#else
#define START ((acc_t)CONCAT(HIGHEST_, OUT_TAG))
#define COMBINE(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#endif

#define THREADS 256
// So many elements are joined on their own: rounding errors grow with their number alone.
#define BLOCK 64
#define WIDE (16 / (int)sizeof(x_t) < 8 ? 16 / (int)sizeof(x_t) : 8)

struct places_t {
  index_t k0, k1, k2, r0, r1, x_k0, x_k1, x_k2, x_r0, x_r1, out_k0, out_k1, out_k2, divisor;
};

DEVICE acc_t combined(acc_t a, acc_t b) {
  return COMBINE(a, b);
}

DEVICE void store_result(out_t* out, const places_t& p, index_t i0, index_t i1, index_t i2,
                         acc_t value) {
#if OP == MEAN
  value = value / (acc_t)p.divisor;
#endif
  out[i0 * p.out_k0 + i1 * p.out_k1 + i2 * p.out_k2] = STORE(OUT_TAG)(value);
}

// Elements lane * N ... of a line, and those that follow in steps of all lanes; N neighbours are
// added up as N sums.
template <int N> DEVICE acc_t reduce_line(const x_t* x, int lane, index_t count, index_t step) {
  acc_t total[N];
#pragma unroll
  for (int j = 0; j < N; j++)
    total[j] = START;
#pragma unroll 1
  for (index_t begin = (index_t)lane * N; begin < count; begin += (index_t)BLOCK * LANES * N) {
    const index_t stop = min_index(count, begin + (index_t)BLOCK * LANES * N);
    acc_t part[N];
#pragma unroll
    for (int j = 0; j < N; j++)
      part[j] = START;
#pragma unroll 4
    for (index_t i = begin; i < stop; i += LANES * N) {
      if (N == 1) {
        part[0] = combined(part[0], (acc_t)LOAD(X_TAG)(x[i * step]));
      } else {
        const vector_t<x_t, N> values = *(const vector_t<x_t, N>*)(x + i);
#pragma unroll
        for (int j = 0; j < N; j++)
          part[j] = combined(part[j], (acc_t)LOAD(X_TAG)(values.at[j]));
      }
    }
#pragma unroll
    for (int j = 0; j < N; j++)
      total[j] = combined(total[j], part[j]);
  }
#pragma unroll
  for (int j = 1; j < N; j++)
    total[0] = combined(total[0], total[j]);
  return total[0];
}

// LANES threads side by side for each result.
DEVICE void reduce_rows(const x_t* x, out_t* out, const places_t& p, acc_t* parts) {
  const int lane = threadIdx.x % LANES;
  const index_t at = (index_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES,
                count = p.k0 * p.k1 * p.k2;
  const bool wide = p.x_r1 == 1 && is_aligned<x_t, WIDE>(x) && p.r1 % WIDE == 0 &&
                    p.x_r0 % WIDE == 0 && p.x_k0 % WIDE == 0 && p.x_k1 % WIDE == 0 &&
                    p.x_k2 % WIDE == 0;
  acc_t value = START;
  index_t i0 = 0, i1 = 0, i2 = 0;
  if (at < count) {
    i2 = at % p.k2;
    i1 = at / p.k2 % p.k1;
    i0 = at / p.k2 / p.k1;
    const x_t* from = x + i0 * p.x_k0 + i1 * p.x_k1 + i2 * p.x_k2;
#pragma unroll 1
    for (index_t a = 0; a < p.r0; a++, from += p.x_r0)
      value = combined(value, wide ? reduce_line<WIDE>(from, lane, p.r1, 1)
                                   : reduce_line<1>(from, lane, p.r1, p.x_r1));
  }
  parts[threadIdx.x] = value;
#pragma unroll
  for (int half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half)
      parts[threadIdx.x] = value = combined(value, parts[threadIdx.x + half]);
  }
  if (lane == 0 && at < count)
    store_result(out, p, i0, i1, i2, value);
}

// Results lie side by side: COLUMNS threads have N of them each, the others share the lines. A
// block has at least 32 results.
template <int N, int COLUMNS>
DEVICE void reduce_columns(const x_t* x, out_t* out, const places_t& p, acc_t (*parts)[THREADS]) {
  const int lanes = THREADS / COLUMNS, lane = threadIdx.x / COLUMNS;
  const index_t at = ((index_t)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS) * N,
                count = p.k0 * p.k1 * p.k2;
  if ((index_t)blockIdx.x * COLUMNS * N >= count)
    return;
  acc_t value[N];
#pragma unroll
  for (int j = 0; j < N; j++)
    value[j] = START;
  index_t i0 = 0, i1 = 0, i2 = 0;
  if (at < count) {
    i2 = at % p.k2;
    i1 = at / p.k2 % p.k1;
    i0 = at / p.k2 / p.k1;
    const x_t* from = x + i0 * p.x_k0 + i1 * p.x_k1 + i2 * p.x_k2;
#pragma unroll 1
    for (index_t a = 0; a < p.r0; a++, from += p.x_r0) {
#pragma unroll 1
      for (index_t begin = lane; begin < p.r1; begin += BLOCK * lanes) {
        const index_t stop = min_index(p.r1, begin + BLOCK * lanes);
        acc_t part[N];
#pragma unroll
        for (int j = 0; j < N; j++)
          part[j] = START;
#pragma unroll 4
        for (index_t i = begin; i < stop; i += lanes) {
          const vector_t<x_t, N> values = *(const vector_t<x_t, N>*)(from + i * p.x_r1);
#pragma unroll
          for (int j = 0; j < N; j++)
            part[j] = combined(part[j], (acc_t)LOAD(X_TAG)(values.at[j]));
        }
#pragma unroll
        for (int j = 0; j < N; j++)
          value[j] = combined(value[j], part[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < N; j++)
    parts[j][threadIdx.x] = value[j];
  for (int half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) {
#pragma unroll
      for (int j = 0; j < N; j++)
        parts[j][threadIdx.x] = value[j] =
            combined(value[j], parts[j][threadIdx.x + half * COLUMNS]);
    }
  }
  if (lane == 0 && at < count) {
#pragma unroll
    for (int j = 0; j < N; j++)
      store_result(out, p, i0, i1, i2 + j, value[j]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* x, out_t* out, index_t k0, index_t k1, index_t k2, index_t r0, index_t r1,
          index_t x_k0, index_t x_k1, index_t x_k2, index_t x_r0, index_t x_r1, index_t out_k0,
          index_t out_k1, index_t out_k2, index_t divisor, index_t piece, index_t out_piece) {
  begin_kernel();
  const index_t first = (index_t)blockIdx.y * piece, left = r1 > first ? r1 - first : 0;
  const places_t p = {k0,     k1,     k2,     r0,     min_index(left, piece),
                      x_k0,   x_k1,   x_k2,   x_r0,   x_r1,
                      out_k0, out_k1, out_k2, divisor};
  x += left > 0 ? first * x_r1 : 0;
  out += blockIdx.y * out_piece;
#if ACROSS
  __shared__ acc_t parts[WIDE][THREADS];
  const bool wide = is_aligned<x_t, WIDE>(x) && k2 % WIDE == 0 && x_k0 % WIDE == 0 &&
                    x_k1 % WIDE == 0 && x_r0 % WIDE == 0 && x_r1 % WIDE == 0;
  if (wide)
    reduce_columns<WIDE, (32 / WIDE < 8 ? 8 : 32 / WIDE)>(x, out, p, parts);
  else
    reduce_columns<1, 32>(x, out, p, parts);
#else
  __shared__ acc_t parts[THREADS];
  reduce_rows(x, out, p, parts);
#endif
}
