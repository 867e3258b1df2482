/* common.h - what every kernel of the reference compiler shares: element access for all types,
 * hints for vectorizers, failure messages. Freestanding: accrt/kernel.h alone. */
#ifndef ACCRT_KERNELS_COMMON_H_
#define ACCRT_KERNELS_COMMON_H_

#include "accrt/kernel.h"

#define KERNEL_ENTRY(name)                                                                         \
  int32_t name(const accrt_kernel_environment_t* environment,                                      \
               const accrt_kernel_dispatch_t* dispatch,                                            \
               const accrt_kernel_workgroup_t* workgroup);                                         \
  int32_t name(const accrt_kernel_environment_t* environment,                                      \
               const accrt_kernel_dispatch_t* dispatch, const accrt_kernel_workgroup_t* workgroup)

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* INDEPENDENT before a loop: its iterations may run side by side. Outputs may still be the very
 * memory of an input at the same index (in-place), which `restrict` would forbid. UNROLL_FULLY: the
 * trip count is a constant. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNROLL_FULLY _Pragma("clang loop unroll(full)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#define UNROLL_FULLY _Pragma("GCC unroll 64")
#endif

ALWAYS_INLINE int64_t min_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
ALWAYS_INLINE int64_t max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}
ALWAYS_INLINE int64_t ceildiv_i64(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/* Part `index` of `count` nearly equal parts of [0, total): the parts differ by at most one. */
ALWAYS_INLINE int64_t part_begin(int64_t total, int64_t index, int64_t count) {
  return total / count * index + min_i64(index, total % count);
}

ALWAYS_INLINE uint32_t bits_f32(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}
ALWAYS_INLINE float f32_bits(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}
ALWAYS_INLINE uint64_t bits_f64(double x) {
  uint64_t u;
  __builtin_memcpy(&u, &x, 8);
  return u;
}
ALWAYS_INLINE double f64_bits(uint64_t u) {
  double x;
  __builtin_memcpy(&x, &u, 8);
  return x;
}

/* 16-bit floats travel as their bits. Branch-free, so that loops over them vectorize on any target.
 */
typedef struct {
  uint16_t bits;
} f16_t;
typedef struct {
  uint16_t bits;
} bf16_t;

ALWAYS_INLINE float f32_from_bf16(bf16_t h) {
  return f32_bits((uint32_t)h.bits << 16);
}

ALWAYS_INLINE bf16_t bf16_from_f32(float x) {
  uint32_t u = bits_f32(x);
  uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16; /* to nearest, ties to even */
  uint32_t quiet = (u >> 16) | 0x40u;
  bf16_t h = {(uint16_t)(x != x ? quiet : rounded)};
  return h;
}

/* No subnormal is an operand of float arithmetic, which takes processors a hundred times as long:
 * those of f16 are the fraction of a number from 2^-14 on, of which that is subtracted. */
ALWAYS_INLINE float f32_from_f16(f16_t h) {
  uint32_t magnitude = (uint32_t)(h.bits & 0x7FFFu) << 13;
  uint32_t sign = (uint32_t)(h.bits & 0x8000u) << 16;
  uint32_t subnormal = bits_f32(f32_bits(magnitude + 0x38800000u) - 0x1p-14f);
  uint32_t rebias = magnitude >= 0x0F800000u ? 0x70000000u : 0x38000000u; /* infinity and NaN */
  return f32_bits(sign | (magnitude < 0x00800000u ? subnormal : magnitude + rebias));
}

/* Round to nearest even: normals by integer arithmetic, subnormals by the rounding of a float
 * addition. */
ALWAYS_INLINE f16_t f16_from_f32(float x) {
  uint32_t u = bits_f32(x), sign = (u >> 16) & 0x8000u, m = u & 0x7FFFFFFFu;
  uint32_t normal = (m - 0x38000000u + 0xFFFu + ((m >> 13) & 1u)) >> 13;
  uint32_t subnormal = bits_f32(f32_bits(m) + 0.5f) - 0x3F000000u;
  uint32_t finite = m < 0x38800000u ? subnormal : normal;
  uint32_t nan = 0x7E00u | ((m >> 13) & 0x3FFu);
  uint32_t magnitude = m >= 0x47800000u ? 0x7C00u : finite;
  f16_t h = {(uint16_t)(sign | (m > 0x7F800000u ? nan : magnitude))};
  return h;
}

/* f64 to f32 by rounding to odd: a second rounding to 16 bits then gives what one rounding would.
 */
ALWAYS_INLINE float f32_from_f64_odd(double x) {
  float r = (float)x;
  uint32_t u = bits_f32(r);
  uint32_t inexact = (double)r != x;
  uint32_t beyond = __builtin_fabs((double)r) > __builtin_fabs(x);
  return f32_bits(x != x ? u : ((u - beyond) | inexact));
}

/* Message for a failed kernel: each % of `text` becomes the next of the two numbers; cut to the
 * caller's room. */
static __attribute__((unused)) void fail_message(const accrt_kernel_workgroup_t* workgroup,
                                                 const char* text, int64_t a, int64_t b) {
  char* out = workgroup->message;
  uint32_t room = workgroup->message_capacity_bytes, at = 0;
  if (!out || room == 0)
    return;
  int64_t numbers[2] = {a, b};
  for (uint32_t i = 0; text[i]; i++) {
    if (text[i] != '%') {
      if (at + 1 < room)
        out[at++] = text[i];
      continue;
    }
    int64_t value = numbers[0];
    numbers[0] = numbers[1];
    char digits[24];
    uint32_t count = 0;
    uint64_t rest = value < 0 ? 0u - (uint64_t)value : (uint64_t)value;
    do
      digits[count++] = (char)('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (value < 0)
      digits[count++] = '-';
    while (count > 0 && at + 1 < room)
      out[at++] = digits[--count];
  }
  out[at] = 0;
}

/* Codes that kernels return; they reach the error record as the driver's code. */
#define KERNEL_OK 0
#define KERNEL_ERROR_INDEX 1 /* an index is out of range */

#endif /* ACCRT_KERNELS_COMMON_H_ */
