// elementwise.cuh - the names that generated element-wise expressions use (kernels/elementwise.py
// writes them for hosts and for CUDA alike), on CUDA: elementary functions of float and double,
// integer powers, clamping.
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
  static __device__ __forceinline__ double name(double x) {                                        \
    return ::name(x);                                                                              \
  }
// Functions of double stand where host kernels find the runtime's imports.
struct imports_f64 {
  DEVICE_MEMBER(exp)
  DEVICE_MEMBER(expm1)
  DEVICE_MEMBER(log)
  DEVICE_MEMBER(log1p)
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
DEVICE float m_expm1(float x) {
  return expm1f(x);
}
DEVICE float m_log1p(float x) {
  return log1pf(x);
}
DEVICE float m_tanh(float x) {
  return tanhf(x);
}
DEVICE float m_erf(float x) {
  return erff(x);
}
DEVICE float m_erfc(float x) {
  return erfcf(x);
}
DEVICE float m_atan(float x) {
  return atanf(x);
}
DEVICE double d_atan(double x) {
  return atan(x);
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
// For 16-bit types (the names that end in _16) the exponential of the special function unit does: 2
// ulp and 1.2 |x| more.
template <bool LOW> DEVICE float exponential(float x) {
  return LOW ? __expf(x) : expf(x);
}
DEVICE float m_exp_16(float x) {
  return __expf(x);
}

template <bool LOW> DEVICE float sigmoid(float x) {
  return 1.0f / (1.0f + exponential<LOW>(-x));
}
DEVICE float m_sigmoid(float x) {
  return sigmoid<false>(x);
}
DEVICE float m_sigmoid_16(float x) {
  return sigmoid<true>(x);
}

// x * sigmoid(x); NaN at -inf, as in ATen.
template <bool LOW> DEVICE float silu(float x) {
  return x / (1.0f + exponential<LOW>(-x));
}
DEVICE float m_silu(float x) {
  return silu<false>(x);
}
DEVICE float m_silu_16(float x) {
  return silu<true>(x);
}

// erfc(t) for t >= 0.927 as exp of a polynomial, and erf(a) below as a polynomial: N. Juffa's
// minimax fits (stackoverflow.com/a/35148199, BSD-2), as on hosts. The negative side uses erfc
// itself, so that nothing cancels.
DEVICE float m_gelu(float x) {
  const float z = x * 0.70710678118654752f, size = fabsf(z), t = size > 10.0f ? 10.0f : size,
              s = t * t;
  float r = fmaf(-1.72853470e-5f, t, 3.83197126e-4f);
  r = fmaf(r, s, fmaf(-3.88396438e-3f, t, 2.42546219e-2f));
  r = fmaf(r, t, -1.06777877e-1f);
  r = fmaf(r, t, -6.34846687e-1f);
  r = fmaf(r, t, -1.28717512e-1f);
  const float c = expf(fmaf(r, t, -t));
  float n = fmaf(-5.96761703e-4f, s, 4.99119423e-3f);
  n = fmaf(n, s, -2.67681349e-2f);
  n = fmaf(n, s, 1.12819925e-1f);
  n = fmaf(n, s, -3.76125336e-1f);
  n = fmaf(n, s, 1.28379166e-1f);
  const float far = x < 0.0f ? (size > 10.0f ? 0.0f : c) : 2.0f - c;
  const float factor = size > 0.927734375f ? far : 1.0f + fmaf(n, z, z);
  return x != x ? x : 0.5f * x * factor; // NaN at -inf, as in ATen
}
// relu(x) - |x| P(-|x|), where P, the normal distribution, is 2 to the power of a polynomial: a
// minimax fit of its logarithm on [0, 8], good to 3.4e-5 of P. Beyond 8 nothing of it is left in 16
// bits.
DEVICE float m_gelu_16(float x) {
  const float a = fminf(fabsf(x), 8.0f);
  float r = fmaf(-1.2624609553e-6f, a, 4.8203393375e-5f);
  r = fmaf(r, a, -8.0724974396e-4f);
  r = fmaf(r, a, 7.9445894808e-3f);
  r = fmaf(r, a, -5.2635423839e-2f);
  r = fmaf(r, a, -4.5995676517e-1f);
  r = fmaf(r, a, -1.1506099701f);
  r = fmaf(r, a, -1.0000430346f);
  float p;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(r));
  return fmaf(-a, p, x < 0.0f ? x - x : x); // NaN at -inf, as in ATen
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3); NaN at -inf.
template <bool LOW> DEVICE float gelu_tanh(float x) {
  const float u = 0.79788456080286536f * fmaf(0.044715f * x * x, x, x);
  return x / (1.0f + exponential<LOW>(-2.0f * u));
}
DEVICE float m_gelu_tanh(float x) {
  return gelu_tanh<false>(x);
}
DEVICE float m_gelu_tanh_16(float x) {
  return gelu_tanh<true>(x);
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

DEVICE uint64_t pow_unsigned(uint64_t base, uint64_t power) {
  uint64_t result = 1;
  for (; power; power >>= 1, base *= base)
    if (power & 1)
      result *= base;
  return result;
}

#define CLAMP(T)                                                                                   \
  DEVICE T clamp_##T(T x, T high) {                                                                \
    return (x > high || high != high) ? high : x;                                                  \
  }
CLAMP(float)
CLAMP(double) CLAMP(int8_t) CLAMP(uint8_t) CLAMP(int32_t) CLAMP(uint32_t) CLAMP(int64_t)
CLAMP(int16_t) CLAMP(uint16_t) CLAMP(uint64_t)

#endif // ACCRT_CUDA_ELEMENTWISE_CUH_
