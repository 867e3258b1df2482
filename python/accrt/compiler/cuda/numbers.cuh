/* numbers.cuh - element types, 16-byte vectors of them, and sums over warps and blocks, for all
 * device code of the compiler.
 *
 * Everything is in namespace accrt_cuda and static: any number of these headers go into one
 * translation unit. Arithmetic on 16-bit types is done in float. */
#ifndef ACCRT_CUDA_NUMBERS_CUH_
#define ACCRT_CUDA_NUMBERS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace accrt_cuda {

typedef __half f16;
typedef __nv_bfloat16 bf16;
typedef float f32;

template <class T> struct is_f32 {
  static constexpr bool value = false;
};
template <> struct is_f32<float> {
  static constexpr bool value = true;
};

template <class T> struct is_bf16 {
  static constexpr bool value = false;
};
template <> struct is_bf16<bf16> {
  static constexpr bool value = true;
};

static __device__ __forceinline__ float to_float(float x) { return x; }
static __device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }
static __device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }

template <class T> static __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ f16 from_float<f16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

/** Two floats as two 16-bit numbers in one register, the first in the low half. */
template <class T> static __device__ __forceinline__ uint32_t pack_two(float low, float high);
template <> __device__ __forceinline__ uint32_t pack_two<f16>(float low, float high) {
  const __half2 two = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&two);
}
template <> __device__ __forceinline__ uint32_t pack_two<bf16>(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&two);
}

/** COUNT elements that are loaded and stored at once. */
template <class T, int COUNT> struct alignas(sizeof(T) * COUNT) vector {
  T item[COUNT];
};

template <class T, int COUNT>
static __device__ __forceinline__ vector<T, COUNT> load_vector(const T* from) {
  return *reinterpret_cast<const vector<T, COUNT>*>(from);
}

template <class T, int COUNT>
static __device__ __forceinline__ void store_vector(T* to, const vector<T, COUNT>& value) {
  *reinterpret_cast<vector<T, COUNT>*>(to) = value;
}

/** The same as words of registers: compilers give each 16-bit element of a vector a register of its
 * own. */
template <class T, int COUNT> struct words {
  static constexpr int WORDS = COUNT * (int)sizeof(T) / 4;
  uint32_t word[WORDS];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
      const uint4 v = reinterpret_cast<const uint4*>(from)[i / 4];
      word[i] = v.x, word[i + 1] = v.y, word[i + 2] = v.z, word[i + 3] = v.w;
    }
  }
  __device__ __forceinline__ void fill(uint32_t bits) {
#pragma unroll
    for (int i = 0; i < WORDS; i++)
      word[i] = bits;
  }
  /** Keeps the compiler from unpacking them before they are needed. */
  __device__ __forceinline__ void keep() {
#pragma unroll
    for (int i = 0; i < WORDS; i++)
      asm volatile("" : "+r"(word[i]));
  }
  __device__ __forceinline__ float get(int i) const;
};

template <class T> static __device__ __forceinline__ float half_of_word(uint32_t word, int high);
template <> __device__ __forceinline__ float half_of_word<bf16>(uint32_t word, int high) {
  return __uint_as_float(high ? word & 0xffff0000u : word << 16);
}
template <> __device__ __forceinline__ float half_of_word<f16>(uint32_t word, int high) {
  return __half2float(__ushort_as_half((unsigned short)(high ? word >> 16 : word)));
}
template <> __device__ __forceinline__ float half_of_word<float>(uint32_t word, int) {
  return __uint_as_float(word);
}

template <class T, int COUNT>
__device__ __forceinline__ float words<T, COUNT>::get(int i) const {
  return sizeof(T) == 4 ? __uint_as_float(word[i]) : half_of_word<T>(word[i / 2], i % 2);
}

static __device__ __forceinline__ bool is_aligned(const void* address, uint32_t bytes) {
  return (reinterpret_cast<uintptr_t>(address) & (bytes - 1)) == 0;
}

struct join_sum {
  static __device__ __forceinline__ float neutral() { return 0.0f; }
  static __device__ __forceinline__ float join(float a, float b) { return a + b; }
};
/** NaN wins. */
struct join_max {
  static __device__ __forceinline__ float neutral() { return -INFINITY; }
  static __device__ __forceinline__ float join(float a, float b) {
    return a > b || a != a ? a : b;
  }
};

/** Joins in pairs: the chain of dependent operations is short. */
template <class JOIN, int COUNT>
static __device__ __forceinline__ float join_tree(const float (&x)[COUNT]) {
  float part[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    part[i] = x[i];
#pragma unroll
  for (int width = COUNT; width > 1; width = (width + 1) / 2) {
#pragma unroll
    for (int i = 0; i < width / 2; i++)
      part[i] = JOIN::join(part[i], part[(width + 1) / 2 + i]);
  }
  return part[0];
}

template <class JOIN, int LANES = 32> static __device__ __forceinline__ float warp_join(float x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2)
    x = JOIN::join(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

/** Over the whole block, in all threads and in the same order everywhere. `scratch` has one float a
 * warp; it may be used again after the next barrier. */
template <class JOIN, int THREADS>
static __device__ __forceinline__ float block_join(float x, float* scratch) {
  x = warp_join<JOIN>(x);
  if (THREADS <= 32)
    return x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0)
    scratch[warp] = x;
  __syncthreads();
  x = lane < THREADS / 32 ? scratch[lane] : JOIN::neutral();
  return warp_join<JOIN>(x);
}

/** Over the `lanes` threads of a row, in all of them: THREADS where that is known, else as many of
 * the WARPS warps of the block, a power of two, as the row has, and every thread of the block comes
 * here. `scratch` may be used again after the next barrier. */
template <class JOIN, int THREADS, int WARPS>
static __device__ __forceinline__ float row_join(float x, int lanes, float* scratch) {
  if (THREADS > 0)
    return block_join<JOIN, THREADS>(x, scratch);
  x = warp_join<JOIN>(x);
  if (lanes == 32)
    return x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % WARPS, warps = lanes / 32;
  if (threadIdx.x % 32 == 0)
    scratch[warp] = x;
  __syncthreads();
  x = lane < warps ? scratch[warp / warps * warps + lane] : JOIN::neutral();
  return warp_join<JOIN, WARPS>(x);
}

/** Threads of a row of n elements, of which each may have EACH: as few warps of the THREADS threads
 * of a block as that takes, a power of two. */
template <int EACH, int THREADS> static __device__ __forceinline__ int row_lanes(int64_t n) {
  int lanes = 32;
  while (lanes < THREADS && lanes * EACH < n)
    lanes *= 2;
  return lanes;
}

/** 2^x to 2 ulp; results below 2^-126 are zero. */
static __device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Programmatic dependent launch: wait for the kernels ahead before reading or writing what they
 * touch; allow the next one to be put on the machine. Both do nothing in a launch without the
 * attribute. */
static __device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void allow_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

enum activation { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3, SILU = 4, TANH = 5, SIGMOID = 6 };

/** GELU is the exact one, with erf; GELU_TANH its approximation by tanh. */
static __device__ __forceinline__ float activate(float x, int kind) {
  switch (kind) {
  case RELU:
    return x < 0.0f ? 0.0f : x;
  case GELU:
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  case GELU_TANH:
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  case SILU:
    return x / (1.0f + __expf(-x));
  case TANH:
    return tanhf(x);
  case SIGMOID:
    return 1.0f / (1.0f + __expf(-x));
  default:
    return x;
  }
}

/** GELU with erf for results of 16 bits: erfc by Abramowitz and Stegun 7.1.26, whose error is
 * 1.5e-7. */
static __device__ __forceinline__ float short_gelu(float x) {
  const float z = fabsf(x) * 0.70710678118654752f;
  const float t = __fdividef(1.0f, fmaf(0.3275911f, z, 1.0f));
  float p = fmaf(1.061405429f, t, -1.453152027f);
  p = fmaf(p, t, 1.421413741f);
  p = fmaf(p, t, -0.284496736f);
  p = fmaf(p, t, 0.254829592f);
  const float e = fast_exp2(z * z * -1.4426950408889634f);
  const float half = 0.5f * x * (p * t * e);
  /* infinity times zero is NaN at -inf, as in ATen, and not at +inf */
  return x < 0.0f ? half : e == 0.0f ? x : x - half;
}

/** activate, as exactly as a result of type C can show. */
template <class C> static __device__ __forceinline__ float activate_as(float x, int kind) {
  return kind == GELU && !is_f32<C>::value ? short_gelu(x) : activate(x, kind);
}

} // namespace accrt_cuda
#endif
