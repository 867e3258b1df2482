/* packed_codes.cuh - codes of packed weights (packed.cuh) as 16-bit floats, without error.
 *
 * Codes are cut into planes of four bits, two and one, the lower ones first. Element e of a lane's
 * row r is, of four bits, at bit 4 (e / 2) of a half of word r, the half e % 2; of two bits, at bit
 * 8 (r % 2) + 2 (e / 2) of a half of word r / 2; of one bit, at bit 4 r + e / 2 of a half of the
 * one word. */
#ifndef ACCRT_CUDA_PACKED_CODES_CUH_
#define ACCRT_CUDA_PACKED_CODES_CUH_

#include "tensorcore.cuh"

namespace accrt_cuda {

/* U4, U5, U6, U3: q - 8, 16, 32, 4, or q - z where there are zeros; Q4, Q5, Q2: q alone. IQ4: by a
 * table. E2M1: 2^-14 of the value in f16, the value in bf16. */
enum packed_codes {
  PACKED_U4,
  PACKED_Q4,
  PACKED_E2M1,
  PACKED_S8,
  PACKED_E4M3,
  PACKED_E5M2,
  PACKED_U5,
  PACKED_Q5,
  PACKED_U6,
  PACKED_U3,
  PACKED_Q2,
  PACKED_IQ4
};

template <int CODES> struct packed_form {
  static constexpr bool BYTES = CODES == PACKED_S8 || CODES == PACKED_E4M3 || CODES == PACKED_E5M2;
  static constexpr int MATRICES = BYTES ? 1 : 2; /* of 16 rows in a tile */
  static constexpr int ROWS = 16 * MATRICES;
  static constexpr int LANE_ROWS = 2 * MATRICES;
  /* planes of bits, and which bit of a code theirs begin with */
  static constexpr bool HAS_FOUR = CODES != PACKED_U3 && CODES != PACKED_Q2;
  static constexpr bool HAS_TWO = CODES == PACKED_U6 || !HAS_FOUR;
  static constexpr bool HAS_ONE = CODES == PACKED_U5 || CODES == PACKED_Q5 || CODES == PACKED_U3;
  static constexpr int TWO_BIT = HAS_FOUR ? 4 : 0, ONE_BIT = HAS_FOUR ? 4 : 2;
  static constexpr int ZERO = CODES == PACKED_U4 ? 8 : CODES == PACKED_U5 ? 16 : CODES == PACKED_U6 ? 32 : CODES == PACKED_U3 ? 4 : 0;
  /* where they lie in a record */
  static constexpr int TWO_AT = HAS_FOUR ? 2048 : 0, ONE_AT = TWO_AT + (HAS_TWO ? 1024 : 0), CODE_BYTES = ONE_AT + (HAS_ONE ? 512 : 0);
};

static __device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t more) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(more));
  return y;
}
static __device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
  return y;
}
template <class T> static __device__ __forceinline__ uint32_t multiply_add_two(uint32_t a, uint32_t b, uint32_t c);
template <> __device__ __forceinline__ uint32_t multiply_add_two<f16>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}
template <> __device__ __forceinline__ uint32_t multiply_add_two<bf16>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}
static __device__ __forceinline__ uint32_t add_two(uint32_t a, uint32_t b) {
  uint32_t y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

/** Two 16-bit floats in a word. */
static __device__ __forceinline__ constexpr uint32_t twice(uint32_t bits) { return bits << 16 | bits; }

/** What a lane subtracts from its codes: the same for all rows, or a zero of each row. */
template <class T> struct packed_zero;
template <> struct packed_zero<f16> {
  uint32_t low, high; /* -(1024 + z), -(64 + z) */
  __device__ __forceinline__ void set(uint32_t z) {
    low = twice(0xe400u + z);
    high = twice(0xd400u + (z << 4));
  }
};
template <> struct packed_zero<bf16> {
  uint32_t low; /* -(128 + z) */
  __device__ __forceinline__ void set(uint32_t z) { low = twice(0xc300u + z); }
};

/** A lane's codes of a unit, in planes. */
template <int CODES> struct packed_unit {
  typedef packed_form<CODES> form;
  uint32_t low[form::HAS_FOUR ? 4 : 1], two[2], one;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < (form::HAS_FOUR ? 4 : 1); i++)
      low[i] = 0;
    two[0] = two[1] = one = 0;
  }
  __device__ __forceinline__ void load(const uint8_t* record, int unit, int lane) {
    if constexpr (form::HAS_FOUR) {
      const uint4 v = reinterpret_cast<const uint4*>(record)[unit * 32 + lane];
      low[0] = v.x, low[1] = v.y, low[2] = v.z, low[3] = v.w;
    }
    if constexpr (form::HAS_TWO) {
      const uint2 v = reinterpret_cast<const uint2*>(record + form::TWO_AT)[unit * 32 + lane];
      two[0] = v.x, two[1] = v.y;
    }
    if constexpr (form::HAS_ONE)
      one = reinterpret_cast<const uint32_t*>(record + form::ONE_AT)[unit * 32 + lane];
  }
  __device__ __forceinline__ void store(uint8_t* record, int unit, int lane) const {
    if constexpr (form::HAS_FOUR)
      reinterpret_cast<uint4*>(record)[unit * 32 + lane] = {low[0], low[1], low[2], low[3]};
    if constexpr (form::HAS_TWO)
      reinterpret_cast<uint2*>(record + form::TWO_AT)[unit * 32 + lane] = {two[0], two[1]};
    if constexpr (form::HAS_ONE)
      reinterpret_cast<uint32_t*>(record + form::ONE_AT)[unit * 32 + lane] = one;
  }
  /** Where the bits of element e of a row are, in the planes of two bits and one. */
  static __device__ __forceinline__ int place_of_two(int row, int e) { return row % 2 * 8 + e / 2 * 2 + e % 2 * 16; }
  static __device__ __forceinline__ int place_of_one(int row, int e) { return row * 4 + e / 2 + e % 2 * 16; }
  /** Element e of a row becomes `code`, if it was 0. */
  __device__ __forceinline__ void put(int row, int e, uint32_t code) {
    if constexpr (form::HAS_FOUR)
      low[row] |= (code & 15u) << (e / 2 * 4 + e % 2 * 16);
    if constexpr (form::HAS_TWO)
      two[row / 2] |= (code >> form::TWO_BIT & 3u) << place_of_two(row, e);
    if constexpr (form::HAS_ONE)
      one |= (code >> form::ONE_BIT & 1u) << place_of_one(row, e);
  }
  /** Element e of a row as an integer, before what is subtracted from it. */
  __device__ __forceinline__ int integer(int row, int e) const {
    if constexpr (CODES == PACKED_S8)
      return (int)(low[row * 2 + e / 4] >> e % 4 * 8 & 255u) - 128;
    uint32_t code = 0;
    if constexpr (form::HAS_FOUR)
      code = low[row] >> (e / 2 * 4 + e % 2 * 16) & 15u;
    if constexpr (CODES == PACKED_IQ4)
      return (int)((code < 8 ? 0x766a5d4f3f2d1801ull : 0xf1d9c5b5a6998d81ull) >> 8 * (code & 7u) & 255u) - 128;
    if constexpr (form::HAS_TWO)
      code |= (two[row / 2] >> place_of_two(row, e) & 3u) << form::TWO_BIT;
    if constexpr (form::HAS_ONE)
      code |= (one >> place_of_one(row, e) & 1u) << form::ONE_BIT;
    return (int)code;
  }

  static __device__ __forceinline__ uint32_t moved(uint32_t word, int from, int to) { return from > to ? word >> (from - to) : word << (to - from); }
  /** `more`, and pair j of a row, whose codes begin at bit 0 of both halves (ODD: at bit 4). */
  template <int ODD> __device__ __forceinline__ uint32_t pair(uint32_t more, int row, int j) const {
    constexpr int AT = ODD ? 4 : 0, TWO = AT + form::TWO_BIT, ONE = AT + form::ONE_BIT;
    uint32_t x = more;
    if constexpr (form::HAS_FOUR)
      x = and_or(ODD ? low[row] >> (4 * j - 4) : low[row] >> 4 * j, 0x000f000fu << AT, x);
    if constexpr (form::HAS_TWO)
      x = and_or(moved(two[row / 2], place_of_two(row, 2 * j), TWO), 0x00030003u << TWO, x);
    if constexpr (form::HAS_ONE)
      x = and_or(moved(one, place_of_one(row, 2 * j), ONE), 0x00010001u << ONE, x);
    return x;
  }
};

/** Eight codes of a row, less z: nibble j and j + 4 of its word are elements 2 j and 2 j + 1. */
template <class T> struct packed_integers;
template <> struct packed_integers<f16> {
  template <int CODES>
  static __device__ __forceinline__ void unpack(uint32_t (&out)[4], const packed_unit<CODES>& codes, int row, const packed_zero<f16>& z) {
    const uint32_t one = 0x64006400u, sixteenth = 0x2c002c00u;
    out[0] = add_two(codes.template pair<0>(one, row, 0), z.low);
    out[1] = multiply_add_two<f16>(codes.template pair<1>(one, row, 1), sixteenth, z.high);
    out[2] = add_two(codes.template pair<0>(one, row, 2), z.low);
    out[3] = multiply_add_two<f16>(codes.template pair<1>(one, row, 3), sixteenth, z.high);
  }
};
template <> struct packed_integers<bf16> {
  template <int CODES>
  static __device__ __forceinline__ void unpack(uint32_t (&out)[4], const packed_unit<CODES>& codes, int row, const packed_zero<bf16>& z) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      out[j] = multiply_add_two<bf16>(codes.template pair<0>(0x43004300u, row, j), 0x3f803f80u, z.low);
  }
};

/** Eight codes of IQ4_NL: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
 */
template <class T> static __device__ __forceinline__ void unpack_iq4(uint32_t (&out)[4], uint32_t w) {
  uint32_t value[2]; /* plus 128: of even and odd elements */
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t half = i ? w >> 16 : w, which = half & 0x7777u;
    value[i] = permute(permute(0x3f2d1801u, 0x766a5d4fu, which), permute(0xa6998d81u, 0xf1d9c5b5u, which), and_or(half >> 1, 0x4444u, 0x3210u));
  }
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const uint32_t b = permute(value[0], value[1], (uint32_t)(j | (4 + j) << 8));
    if (is_bf16<T>::value)
      out[j] = multiply_add_two<bf16>(and_or(b, 0x007f007fu, 0x43004300u), 0x3f803f80u, and_or(~b, 0x00800080u, 0xc300c300u));
    else
      out[j] = add_two(and_or(b, 0x00ff00ffu, 0x64006400u), 0xe480e480u);
  }
}

static __device__ __forceinline__ uint32_t multiply_two(uint32_t a, uint32_t b) {
  uint32_t y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

/** One of two 16-bit floats, twice. */
static __device__ __forceinline__ uint32_t one_of(uint32_t two, int which) {
  uint32_t y;
  if (which)
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; mov.b32 %0, {b, b}; }" : "=r"(y) : "r"(two));
  else
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; mov.b32 %0, {a, a}; }" : "=r"(y) : "r"(two));
  return y;
}

/** Eight codes of up to 5 bits times one of two 6-bit scales: 2^-24 of the products, exactly, as
 * bits of a code alone are 2^-24 of it. */
template <int CODES>
static __device__ __forceinline__ void unpack_scaled(uint32_t (&out)[4], const packed_unit<CODES>& codes, int row, uint32_t scales, int which) {
  const uint32_t scale = one_of(scales, which), sixteenth = one_of(multiply_two(scales, 0x2c002c00u), which);
  out[0] = multiply_two(codes.template pair<0>(0u, row, 0), scale);
  out[1] = multiply_two(codes.template pair<1>(0u, row, 1), sixteenth);
  out[2] = multiply_two(codes.template pair<0>(0u, row, 2), scale);
  out[3] = multiply_two(codes.template pair<1>(0u, row, 3), sixteenth);
}

/** Eight e2m1 codes, their bits placed as packed_prepare.cuh has it: in f16 the first two pairs are
 * one shift away. 2^-14 of the values in f16, 2^-126 in bf16. */
template <class T> static __device__ __forceinline__ void place_e2m1(uint32_t (&out)[4], uint32_t w);
template <> __device__ __forceinline__ void place_e2m1<f16>(uint32_t (&out)[4], uint32_t w) {
  out[0] = w & 0x8e008e00u;
  out[1] = (w << 3) & 0x8e008e00u;
  /* 66: six bits on for exponents, one for signs */
  out[2] = ((w & 0x40384038u) * 66u) & 0x8e008e00u;
  out[3] = ((w & 0x20072007u) * 516u) & 0x8e008e00u;
}
template <> __device__ __forceinline__ void place_e2m1<bf16>(uint32_t (&out)[4], uint32_t w) {
  /* exponents end at bit 7 */
  out[0] = and_or(w >> 3, 0x01c001c0u, w & 0x80008000u);
  out[1] = and_or(w, 0x01c001c0u, (w << 3) & 0x80008000u);
  out[2] = and_or(w << 3, 0x01c001c0u, (w << 1) & 0x80008000u);
  out[3] = and_or(w << 6, 0x01c001c0u, (w << 2) & 0x80008000u);
}

/** The same, in bf16 the values: 2^-126 of them is too small for sums of f32. */
template <class T> static __device__ __forceinline__ void unpack_e2m1(uint32_t (&out)[4], uint32_t w) {
  place_e2m1<T>(out, w);
#pragma unroll
  for (int j = 0; j < 4 && is_bf16<T>::value; j++)
    out[j] = multiply_add_two<bf16>(out[j], 0x7e807e80u, 0x80008000u);
}

/** Four bytes, biased by 128, to two pairs. */
template <class T> static __device__ __forceinline__ void unpack_s8(uint32_t& first, uint32_t& second, uint32_t w);
template <> __device__ __forceinline__ void unpack_s8<f16>(uint32_t& first, uint32_t& second, uint32_t w) {
  first = add_two(permute(w, 0x64646464u, 0x4140u), 0xe480e480u);
  second = add_two(permute(w, 0x64646464u, 0x4342u), 0xe480e480u);
}
template <> __device__ __forceinline__ void unpack_s8<bf16>(uint32_t& first, uint32_t& second, uint32_t w) {
  /* 128 + low seven bits, less 256 or (for the upper half) 128. */
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t b = permute(w, 0, i ? 0x4342u : 0x4140u);
    const uint32_t low = and_or(b, 0x007f007fu, 0x43004300u);
    const uint32_t top = and_or(~b, 0x00800080u, 0xc300c300u);
    (i ? second : first) = multiply_add_two<bf16>(low, 0x3f803f80u, top);
  }
}

/** Four bytes less a zero, which are whole numbers of at most 255, to two pairs. */
template <class T> static __device__ __forceinline__ void unpack_u8(uint32_t& first, uint32_t& second, uint32_t w, uint32_t zero) {
  if (is_bf16<T>::value) {
    unpack_s8<T>(first, second, w); /* less 128 */
    const uint32_t more = pack_two<bf16>(128.0f - (float)zero, 128.0f - (float)zero);
    first = multiply_add_two<bf16>(first, 0x3f803f80u, more);
    second = multiply_add_two<bf16>(second, 0x3f803f80u, more);
  } else {
    const uint32_t less = twice(0xe400u + zero);
    first = add_two(permute(w, 0x64646464u, 0x4140u), less);
    second = add_two(permute(w, 0x64646464u, 0x4342u), less);
  }
}

/** Four floats of 8 bits to two pairs: in f16 2^-8 of e4m3 values; NaN shows in its row's scale.
 */
template <class T, int CODES>
static __device__ __forceinline__ void unpack_f8(uint32_t& first, uint32_t& second, uint32_t w) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t b = permute(w, 0, i ? 0x3424u : 0x1404u);
    uint32_t y;
    if (CODES == PACKED_E5M2 && !is_bf16<T>::value)
      y = b;
    else if (!is_bf16<T>::value)
      y = and_or(b, 0x80008000u, (b >> 1) & 0x3f803f80u);
    else if (CODES == PACKED_E4M3)
      y = multiply_add_two<bf16>(and_or(b, 0x80008000u, (b >> 4) & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
    else
      y = multiply_add_two<bf16>(and_or(b, 0x80008000u, (b >> 3) & 0x0fe00fe0u), 0x77807780u, 0x80008000u);
    (i ? second : first) = y;
  }
}

/** Eight e2m1 codes times two scales of e4m3 (the lower half of `scales`, or the upper: four codes
 * each), which are in f16 the scales and in bf16 2^118 of them: 2^-14 of the products in f16, 2^-8
 * in bf16. A product has six bits, and is never below what f16 can be: all are exact. */
template <class T> static __device__ __forceinline__ void unpack_e2m1_scaled(uint32_t (&out)[4], uint32_t w, uint32_t scales) {
  place_e2m1<T>(out, w);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (is_bf16<T>::value)
      out[j] = multiply_add_two<bf16>(out[j], one_of(scales, j / 2), 0x80008000u);
    else
      out[j] = multiply_two(out[j], one_of(scales, j / 2));
  }
}

} // namespace accrt_cuda
#endif
