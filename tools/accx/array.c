/* tools/accx/array.c - arrays in memory: sizes, elements, statistics. */
#include "array.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of `count` elements; types under 8 bits are packed. False on overflow. */
static bool size_of(accrt_dtype_t dtype, uint64_t count, uint64_t* out_size_bytes) {
  const uint64_t bits = accrt_dtype_bits(dtype);
  uint64_t total_bits = 0;
  if (bits == 0 || __builtin_mul_overflow(count, bits, &total_bits) || total_bits > UINT64_MAX - 7)
    return false;
  *out_size_bytes = (total_bits + 7) / 8;
  return *out_size_bytes <= PTRDIFF_MAX - 64;
}

/* Multiplies the sizes. A zero makes the product zero, whatever the other sizes are. */
static bool count_of(uint32_t rank, const int64_t* shape, uint64_t* out_count) {
  uint64_t count = 1;
  bool empty = false, fits = true;
  for (uint32_t i = 0; i < rank; ++i) {
    if (shape[i] < 0)
      return false;
    empty = empty || shape[i] == 0;
    fits = fits && !__builtin_mul_overflow(count, (uint64_t)shape[i], &count);
  }
  *out_count = empty ? 0 : count;
  return empty || fits;
}

int accx_array_create(accrt_dtype_t dtype, uint32_t rank, const int64_t* shape, const char* what,
                      accx_array_t* out_array) {
  accx_array_t array = {.dtype = dtype, .rank = rank};
  memset(out_array, 0, sizeof *out_array);
  if (rank > ACCRT_MAX_RANK)
    return accx_fail(ACCX_FAILED, "%s has %u dimensions; at most %d are possible", what, rank,
                     ACCRT_MAX_RANK);
  if (!count_of(rank, shape, &array.element_count) ||
      !size_of(dtype, array.element_count, &array.size_bytes))
    return accx_fail(ACCX_FAILED, "%s is too large: its size does not fit 63 bits", what);
  if (rank)
    memcpy(array.shape, shape, rank * sizeof *shape);
  if (posix_memalign(&array.data, 64, array.size_bytes ? (size_t)array.size_bytes : 1) != 0)
    return accx_fail(ACCX_FAILED, "%s needs %" PRIu64 " bytes of memory, which cannot be had", what,
                     array.size_bytes);
  *out_array = array;
  return ACCX_OK;
}

void accx_array_free(accx_array_t* array) {
  free(array->data);
  memset(array, 0, sizeof *array);
}

/* ---- Elements ---- */

/* Decodes a small float with 1 sign bit and the given exponent and mantissa bits, like IEEE.
 * `finite` types have no infinities: with the highest exponent, only all-ones is NaN (f8e4m3fn), or
 * nothing is (f4e2m1). */
static double small_float(uint32_t bits, unsigned exponent_bits, unsigned mantissa_bits,
                          bool finite) {
  const uint32_t mantissa_mask = (1u << mantissa_bits) - 1,
                 exponent_mask = (1u << exponent_bits) - 1;
  const uint32_t mantissa = bits & mantissa_mask, exponent = bits >> mantissa_bits & exponent_mask;
  const int bias = (int)(exponent_mask >> 1);
  const double sign = bits >> (mantissa_bits + exponent_bits) & 1 ? -1.0 : 1.0;
  if (exponent == exponent_mask && !finite)
    return mantissa ? NAN : sign * INFINITY;
  if (exponent == exponent_mask && exponent_bits == 4 && mantissa == mantissa_mask)
    return NAN;
  if (exponent == 0)
    return sign * ldexp(mantissa, 1 - bias - (int)mantissa_bits);
  return sign * ldexp(mantissa + mantissa_mask + 1, (int)exponent - bias - (int)mantissa_bits);
}

static double scale_float(uint8_t bits) {
  return bits == 0xFF ? NAN : ldexp(1.0, (int)bits - 127);
}

static accx_value_t real_value(double real) {
  return (accx_value_t){.kind = ACCX_REAL, .real = real};
}
static accx_value_t signed_value(int64_t whole) {
  return (accx_value_t){.kind = ACCX_SIGNED, .whole = whole};
}
static accx_value_t unsigned_value(uint64_t natural) {
  return (accx_value_t){.kind = ACCX_UNSIGNED, .natural = natural};
}

/* Unaligned reads by memcpy: arrays that the tool gets from a bundle may have any alignment. */
#define READ(type, name)                                                                           \
  type name;                                                                                       \
  memcpy(&name, (const char*)array->data + index * sizeof(type), sizeof(type))

static accx_value_t real_element(const accx_array_t* array, uint64_t index) {
  if (array->dtype == ACCRT_DTYPE_F64) {
    READ(double, f64);
    return real_value(f64);
  }
  if (array->dtype == ACCRT_DTYPE_F32) {
    READ(float, f32);
    return real_value((double)f32);
  }
  READ(uint16_t, bits);
  if (array->dtype == ACCRT_DTYPE_F16)
    return real_value(small_float(bits, 5, 10, false));
  const uint32_t wide = (uint32_t)bits << 16;
  float f32;
  memcpy(&f32, &wide, sizeof f32);
  return real_value((double)f32);
}

static accx_value_t byte_element(const accx_array_t* array, uint64_t index) {
  const bool nibbles = accrt_dtype_bits(array->dtype) == 4;
  const uint8_t byte = ((const uint8_t*)array->data)[nibbles ? index / 2 : index];
  const uint8_t nibble = (uint8_t)(index & 1 ? byte >> 4 : byte & 15);
  switch (array->dtype) {
  case ACCRT_DTYPE_I8:
    return signed_value((int8_t)byte);
  case ACCRT_DTYPE_F8E4M3FN:
    return real_value(small_float(byte, 4, 3, true));
  case ACCRT_DTYPE_F8E5M2:
    return real_value(small_float(byte, 5, 2, false));
  case ACCRT_DTYPE_F8E8M0:
    return real_value(scale_float(byte));
  case ACCRT_DTYPE_F4E2M1:
    return real_value(small_float(nibble, 2, 1, true));
  case ACCRT_DTYPE_I4:
    return signed_value(nibble < 8 ? nibble : nibble - 16);
  case ACCRT_DTYPE_U4:
    return unsigned_value(nibble);
  default:
    return unsigned_value(byte);
  }
}

accx_value_t accx_array_value(const accx_array_t* array, uint64_t index) {
  switch (array->dtype) {
  case ACCRT_DTYPE_F64:
  case ACCRT_DTYPE_F32:
  case ACCRT_DTYPE_F16:
  case ACCRT_DTYPE_BF16:
    return real_element(array, index);
  case ACCRT_DTYPE_I16: {
    READ(int16_t, i16);
    return signed_value(i16);
  }
  case ACCRT_DTYPE_I32: {
    READ(int32_t, i32);
    return signed_value(i32);
  }
  case ACCRT_DTYPE_I64: {
    READ(int64_t, i64);
    return signed_value(i64);
  }
  case ACCRT_DTYPE_U16: {
    READ(uint16_t, u16);
    return unsigned_value(u16);
  }
  case ACCRT_DTYPE_U32: {
    READ(uint32_t, u32);
    return unsigned_value(u32);
  }
  case ACCRT_DTYPE_U64: {
    READ(uint64_t, u64);
    return unsigned_value(u64);
  }
  default:
    return byte_element(array, index);
  }
}

double accx_value_real(accx_value_t value) {
  return value.kind == ACCX_REAL     ? value.real
         : value.kind == ACCX_SIGNED ? (double)value.whole
                                     : (double)value.natural;
}

int accx_dtype_digits(accrt_dtype_t dtype) {
  return dtype == ACCRT_DTYPE_F64 ? 17 : 9;
}

const char* accx_value_text(const accx_array_t* array, accx_value_t value) {
  if (array->dtype == ACCRT_DTYPE_BOOL)
    return value.natural ? "true" : "false";
  if (value.kind == ACCX_SIGNED)
    return accx_text("%" PRId64, value.whole);
  if (value.kind == ACCX_UNSIGNED)
    return accx_text("%" PRIu64, value.natural);
  return accx_text("%.6g", value.real);
}

/* ---- Statistics ---- */

static bool less(accx_value_t a, accx_value_t b) {
  return a.kind == ACCX_REAL     ? a.real < b.real
         : a.kind == ACCX_SIGNED ? a.whole < b.whole
                                 : a.natural < b.natural;
}

accx_statistics_t accx_array_statistics(const accx_array_t* array) {
  accx_statistics_t out = {.mean = 0};
  for (uint64_t i = 0; i < array->element_count; ++i) {
    const accx_value_t value = accx_array_value(array, i);
    if (value.kind == ACCX_REAL && isnan(value.real)) {
      ++out.nan_count;
      continue;
    }
    if (out.counted == 0 || less(value, out.minimum))
      out.minimum = value;
    if (out.counted == 0 || less(out.maximum, value))
      out.maximum = value;
    out.mean += accx_value_real(value);
    ++out.counted;
  }
  if (out.counted)
    out.mean /= (double)out.counted;
  return out;
}
