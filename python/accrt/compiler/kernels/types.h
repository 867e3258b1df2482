/* types.h - conversions by type tag, for kernels that are instantiated with -D style defines:
 * TYPE(f32) is the storage type, LOAD(f32)(x) and STORE(f32)(x) convert to and from the type that
 * it is computed in (f32 for 16-bit floats). */
#ifndef ACCRT_KERNELS_TYPES_H_
#define ACCRT_KERNELS_TYPES_H_

#include "common.h"

#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
#define TYPE(tag) CONCAT(type_, tag)
#define WORK(tag) CONCAT(work_, tag)
#define LOAD(tag) CONCAT(load_, tag)
#define STORE(tag) CONCAT(store_, tag)

#define PLAIN_TYPE(tag, T)                                                                         \
  typedef T type_##tag;                                                                            \
  typedef T work_##tag;                                                                            \
  ALWAYS_INLINE T load_##tag(T x) {                                                                \
    return x;                                                                                      \
  }                                                                                                \
  ALWAYS_INLINE T store_##tag(T x) {                                                               \
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
ALWAYS_INLINE float load_f16(f16_t x) {
  return f32_from_f16(x);
}
ALWAYS_INLINE float load_bf16(bf16_t x) {
  return f32_from_bf16(x);
}
ALWAYS_INLINE f16_t store_f16(float x) {
  return f16_from_f32(x);
}
ALWAYS_INLINE bf16_t store_bf16(float x) {
  return bf16_from_f32(x);
}

#endif /* ACCRT_KERNELS_TYPES_H_ */
