// common.cuh - what CUDA kernels of the reference compiler share: element types by tag,
// conversions, vectors of 16 bytes, reductions of a warp. TYPE(f32) is the type in memory,
// WORK(f32) the one that is calculated in, LOAD(f32)(x) and STORE(f32)(x) convert. It needs no
// header of the toolkit beside what nvcc includes by itself.
#ifndef ACCRT_CUDA_COMMON_CUH_
#define ACCRT_CUDA_COMMON_CUH_

#include <stdint.h>

#define DEVICE static __device__ __forceinline__

#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
#define TYPE(tag) CONCAT(type_, tag)
#define WORK(tag) CONCAT(work_, tag)
#define LOAD(tag) CONCAT(load_, tag)
#define STORE(tag) CONCAT(store_, tag)

typedef long long index_t; // SYMBOL parameters

// 16-bit floats travel as their bits.
struct f16_t {
  uint16_t bits;
};
struct bf16_t {
  uint16_t bits;
};

DEVICE float f32_from_f16(f16_t h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
  return x;
}
DEVICE float f32_from_bf16(bf16_t h) {
  return __uint_as_float((uint32_t)h.bits << 16);
}
DEVICE f16_t f16_from_f32(float x) {
  f16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}
DEVICE bf16_t bf16_from_f32(float x) {
  bf16_t h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}

// f64 to f32 by rounding to odd: a second rounding to 16 bits then gives what one rounding would.
DEVICE float f32_from_f64_odd(double x) {
  float r = (float)x;
  uint32_t u = __float_as_uint(r);
  uint32_t inexact = (double)r != x;
  uint32_t beyond = fabs((double)r) > fabs(x);
  return __uint_as_float(x != x ? u : ((u - beyond) | inexact));
}

#define PLAIN_TYPE(tag, T)                                                                         \
  typedef T type_##tag;                                                                            \
  typedef T work_##tag;                                                                            \
  DEVICE T load_##tag(T x) {                                                                       \
    return x;                                                                                      \
  }                                                                                                \
  DEVICE T store_##tag(T x) {                                                                      \
    return x;                                                                                      \
  }
PLAIN_TYPE(f32, float)
PLAIN_TYPE(f64, double)
PLAIN_TYPE(i8, int8_t)
PLAIN_TYPE(u8, uint8_t)
PLAIN_TYPE(i16, int16_t)
PLAIN_TYPE(u16, uint16_t)
PLAIN_TYPE(i32, int32_t)
PLAIN_TYPE(u32, uint32_t)
PLAIN_TYPE(i64, int64_t)
PLAIN_TYPE(u64, uint64_t)
PLAIN_TYPE(bool, uint8_t)

typedef f16_t type_f16;
typedef float work_f16;
typedef bf16_t type_bf16;
typedef float work_bf16;
DEVICE float load_f16(f16_t x) {
  return f32_from_f16(x);
}
DEVICE float load_bf16(bf16_t x) {
  return f32_from_bf16(x);
}
DEVICE f16_t store_f16(float x) {
  return f16_from_f32(x);
}
DEVICE bf16_t store_bf16(float x) {
  return bf16_from_f32(x);
}

// The first statement of every kernel: what is ahead has ended and is visible from here on, and the
// kernel behind may be put on the machine (TRAIT_OVERLAPS_PREVIOUS). It does nothing in a launch
// without that attribute.
DEVICE void begin_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// N elements side by side, moved in pieces of up to 16 bytes.
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) vector_t {
  T at[N];
};

template <class T, int N> DEVICE bool is_aligned(const T* p) {
  return ((uintptr_t)p & (alignof(vector_t<T, N>) - 1)) == 0;
}

DEVICE index_t min_index(index_t a, index_t b) {
  return a < b ? a : b;
}

#endif // ACCRT_CUDA_COMMON_CUH_
