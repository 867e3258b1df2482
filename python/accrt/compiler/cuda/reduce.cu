// reduce.cu - sum, mean, maximum and minimum over up to two (collapsed) axes, keeping up to three.
//
// Instantiated with X_TAG, OUT_TAG, OP (SUM, MEAN, MAX or MIN), LANES (threads of one result, a power of two), ACROSS (1: results
// lie side by side along threads, as reduced elements are not) and ENTRY. Accumulates in the result's type, 16-bit floats in
// f32; integers wrap. Nothing reduced gives 0, NaN, the lowest and the highest value. NaN propagates. The order of additions
// depends on shapes alone. Blocks of 256 threads; x of the grid walks results.
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
#define LOWEST_i32 INT32_MIN
#define LOWEST_u32 0
#define LOWEST_i64 INT64_MIN
#define HIGHEST_f32 __int_as_float(0x7f800000)
#define HIGHEST_f16 HIGHEST_f32
#define HIGHEST_bf16 HIGHEST_f32
#define HIGHEST_f64 __longlong_as_double(0x7ff0000000000000ull)
#define HIGHEST_i8 INT8_MAX
#define HIGHEST_u8 UINT8_MAX
#define HIGHEST_i32 INT32_MAX
#define HIGHEST_u32 UINT32_MAX
#define HIGHEST_i64 INT64_MAX

#define FLOAT_f32 1
#define FLOAT_f16 1
#define FLOAT_bf16 1
#define FLOAT_f64 1
#define FLOAT_i8 0
#define FLOAT_u8 0
#define FLOAT_i32 0
#define FLOAT_u32 0
#define FLOAT_i64 0

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
#define RESULTS (THREADS / LANES)
#define BLOCK 64 // so many elements are joined on their own, so that rounding errors grow with their number alone

DEVICE acc_t reduce_line(const x_t* x, index_t first, index_t end, index_t step) {
  acc_t total = START;
  for (index_t begin = first; begin < end; begin += (index_t)BLOCK * LANES) {
    const index_t stop = min_index(end, begin + (index_t)BLOCK * LANES);
    acc_t part = START;
#pragma unroll 4
    for (index_t i = begin; i < stop; i += LANES) {
      const acc_t value = (acc_t)LOAD(X_TAG)(x[i * step]);
      part = COMBINE(part, value);
    }
    total = COMBINE(total, part);
  }
  return total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ENTRY(const x_t* x, out_t* out, index_t k0, index_t k1, index_t k2, index_t r0, index_t r1, index_t x_k0, index_t x_k1,
          index_t x_k2, index_t x_r0, index_t x_r1, index_t out_k0, index_t out_k1, index_t out_k2) {
  begin_kernel();
  __shared__ acc_t parts[THREADS];
  const int lane = ACROSS ? threadIdx.x / RESULTS : threadIdx.x % LANES;
  const int result = ACROSS ? threadIdx.x % RESULTS : threadIdx.x / LANES;
  const index_t at = (index_t)blockIdx.x * RESULTS + result, count = k0 * k1 * k2;
  acc_t value = START;
  const index_t i2 = at < count ? at % k2 : 0, rest = at < count ? at / k2 : 0, i1 = at < count ? rest % k1 : 0,
                i0 = at < count ? rest / k1 : 0;
  if (at < count) {
    const x_t* from = x + i0 * x_k0 + i1 * x_k1 + i2 * x_k2;
    for (index_t a = 0; a < r0; a++) {
      const acc_t part = reduce_line(from + a * x_r0, lane, r1, x_r1);
      value = COMBINE(value, part);
    }
  }
  parts[threadIdx.x] = value;
#pragma unroll
  for (int half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) {
      const acc_t other = parts[threadIdx.x + half * (ACROSS ? RESULTS : 1)];
      value = COMBINE(value, other);
      parts[threadIdx.x] = value;
    }
  }
  if (lane == 0 && at < count) {
#if OP == MEAN
    value = value / (acc_t)(r0 * r1);
#endif
    out[i0 * out_k0 + i1 * out_k1 + i2 * out_k2] = STORE(OUT_TAG)(value);
  }
}
