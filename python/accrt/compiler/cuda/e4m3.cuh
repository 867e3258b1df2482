/* e4m3.cuh - 8-bit floats e4m3 as a type of elements: rounded to nearest, ties to even; what is
 * beyond 448 becomes 448; bits 0x7F are NaN. The same bits as on hosts. */
#ifndef ACCRT_CUDA_E4M3_CUH_
#define ACCRT_CUDA_E4M3_CUH_

#include "numbers.cuh"

namespace accrt_cuda {

struct e4m3 {
  uint8_t bits;
};

static __device__ __forceinline__ float to_float(e4m3 x) {
  // as a float whose exponent is too small by 120
  const uint32_t magnitude = x.bits & 0x7Fu, sign = (uint32_t)(x.bits & 0x80u) << 24;
  const float value = __uint_as_float(magnitude << 20) * 0x1p120f;
  return __uint_as_float(sign | (magnitude == 0x7Fu ? 0x7FC00000u : __float_as_uint(value)));
}

static __device__ __forceinline__ e4m3 e4m3_from_float(float x) {
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu;
  uint32_t code;
  if (magnitude > 0x7F800000u) {
    code = 0x7Fu;
  } else if (magnitude >= 0x43E00000u) { // 448
    code = 0x7Eu;
  } else if (magnitude < 0x3C800000u) { // 2^-6: multiples of 2^-9
    code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0x1p14f)) - 0x46800000u;
  } else {
    const uint32_t moved = magnitude - (120u << 23);
    code = (moved + 0x7FFFFu + (moved >> 20 & 1u)) >> 20;
  }
  return e4m3{(uint8_t)(code | (bits >> 24 & 0x80u))};
}

template <> __device__ __forceinline__ e4m3 from_float<e4m3>(float x) {
  return e4m3_from_float(x);
}

template <> struct words<e4m3, 8> {
  uint32_t word[2];

  __device__ __forceinline__ void load(const e4m3* from) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    word[0] = v.x, word[1] = v.y;
  }
  __device__ __forceinline__ void fill(uint32_t bits) { word[0] = word[1] = bits; }
  __device__ __forceinline__ void keep() { asm volatile("" : "+r"(word[0]), "+r"(word[1])); }
  __device__ __forceinline__ float get(int i) const {
    return to_float(e4m3{(uint8_t)(word[i / 4] >> i % 4 * 8)});
  }
};

} // namespace accrt_cuda

#endif // ACCRT_CUDA_E4M3_CUH_
