// elementwise.cuh - the names that generated element-wise expressions use (kernels/elementwise.py writes them for hosts and for
// CUDA alike), on CUDA: elementary functions of float and double, integer powers, clamping.
#ifndef ACCRT_CUDA_ELEMENTWISE_CUH_
#define ACCRT_CUDA_ELEMENTWISE_CUH_

#include "common.cuh"

// What gcc and clang have built in.
#define __builtin_fabs(x) fabs(x)
#define __builtin_fabsf(x) fabsf(x)
#define __builtin_sqrt(x) __dsqrt_rn(x)
#define __builtin_sqrtf(x) __fsqrt_rn(x)
#define __builtin_floor(x) floor(x)
#define __builtin_floorf(x) floorf(x)
#define __builtin_ceil(x) ceil(x)
#define __builtin_ceilf(x) ceilf(x)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000ll)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)

#define DEVICE_MEMBER(name)                                                                        \
  static __device__ __forceinline__ double name(double x) { return ::name(x); }
// Functions of double stand where host kernels find the runtime's imports.
struct imports_f64 {
  DEVICE_MEMBER(exp)
  DEVICE_MEMBER(log)
  DEVICE_MEMBER(tanh)
  DEVICE_MEMBER(erf)
  DEVICE_MEMBER(sin)
  DEVICE_MEMBER(cos)
  static __device__ __forceinline__ double pow(double x, double y) { return ::pow(x, y); }
};
#undef DEVICE_MEMBER

DEVICE float m_exp(float x) {
  return expf(x);
}
DEVICE float m_log(float x) {
  return logf(x);
}
DEVICE float m_tanh(float x) {
  return tanhf(x);
}
DEVICE float m_erf(float x) {
  return erff(x);
}
DEVICE float m_sin(float x) {
  return sinf(x);
}
DEVICE float m_cos(float x) {
  return cosf(x);
}
DEVICE float m_pow(float x, float y) {
  return powf(x, y);
}
DEVICE float m_sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
// 0 at -inf, the limit.
DEVICE float m_silu(float x) {
  return (x < -1e30f ? -1e30f : x) / (1.0f + expf(-x));
}
// Through erfc, so that nothing cancels on the negative side; -inf * 0 would be NaN.
DEVICE float m_gelu(float x) {
  float factor = erfcf(x * -0.70710678118654752f);
  return 0.5f * (factor == 0.0f ? 0.0f : x) * factor;
}
// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3).
DEVICE float m_gelu_tanh(float x) {
  float bounded = x < -1e10f ? -1e10f : x;
  float u = 0.79788456080286536f * fmaf(0.044715f * bounded * bounded, bounded, bounded);
  return bounded / (1.0f + expf(-2.0f * u));
}

DEVICE int64_t pow_integer(int64_t base, int64_t power) {
  if (power < 0)
    return base == 1 ? 1 : base == -1 ? ((power & 1) ? -1 : 1) : 0;
  uint64_t result = 1, square = (uint64_t)base;
  for (uint64_t rest = (uint64_t)power; rest; rest >>= 1, square *= square)
    if (rest & 1)
      result *= square;
  return (int64_t)result;
}

#define CLAMP(T)                                                                                   \
  DEVICE T clamp_##T(T x, T high) { return (x > high || high != high) ? high : x; }
CLAMP(float) CLAMP(double) CLAMP(int8_t) CLAMP(uint8_t) CLAMP(int32_t) CLAMP(uint32_t) CLAMP(int64_t)

#endif // ACCRT_CUDA_ELEMENTWISE_CUH_
