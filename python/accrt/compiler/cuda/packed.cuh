/* packed.cuh - products of a few rows with a weight that stays packed: c = activation(x @ w^T + bias) + residual.
 *
 * x is [m, k] of f16 or bf16, w [n, k] in 4 or 8 bits, rearranged by packed_prepare.cuh. What it costs is reading w once, so all
 * is made for that: a lane's next 16 bytes of codes are on their way while it works, w is the a-operand of the tensor
 * core's product (its rows are the product's rows), and scales are multiplied into sums of f32, not into weights. Codes become 16-bit
 * floats without error; products accumulate in f32 over ascending k within a slice, slices are added in order.
 *
 * A *tile* is 32 rows of w for 4-bit codes and 16 for 8-bit ones. A *unit* is a tile's codes for 32 k: 512 bytes, 16 of each
 * lane. Lane 4 g + t holds k = 8 t .. 8 t + 7 of rows g, g + 8 (and g + 16, g + 24). A *step* is four units, a *pair* two steps. A block
 * has TILES x SLICES warps: each a tile, and a part of k. x lies in shared memory in the order in which lanes read it, a few pairs at a time,
 * and so do its sums over 32 k where minima need them. */
#ifndef ACCRT_CUDA_PACKED_CUH_
#define ACCRT_CUDA_PACKED_CUH_

#include "tensorcore.cuh"

namespace accrt_cuda {

/* U4: q - 8, or q - z where there are zeros; Q4K: q alone. E2M1: 2^-14 of the value in f16, the value in bf16. */
enum packed_codes { PACKED_U4, PACKED_Q4, PACKED_E2M1, PACKED_S8, PACKED_E4M3, PACKED_E5M2 };
/* GROUP: one scale for each row and group of whole steps; UNIT and PAIR: for each one or two units; Q4K: 8-bit scales and minima for each
 * unit, with f16 factors for eight of them; E8M0: powers of two for each unit. */
enum packed_scales { SCALES_GROUP, SCALES_UNIT, SCALES_PAIR, SCALES_Q4K, SCALES_E8M0 };

constexpr int PACKED_STEP_K = 128;
constexpr int PACKED_STEP_BYTES = 2048;

template <int CODES> struct packed_form {
  static constexpr bool BYTES = CODES == PACKED_S8 || CODES == PACKED_E4M3 || CODES == PACKED_E5M2;
  static constexpr int MATRICES = BYTES ? 1 : 2; /* of 16 rows in a tile */
  static constexpr int ROWS = 16 * MATRICES;
  static constexpr int LANE_ROWS = 2 * MATRICES;
};

/** Bytes of one record of scales: for SCALES_GROUP of a group, else of a step (of two for Q4K). */
template <int SCALES> __host__ __device__ constexpr int packed_record_bytes(int lane_rows, int scale_bytes) {
  return SCALES == SCALES_GROUP  ? 8 * lane_rows * scale_bytes
         : SCALES == SCALES_UNIT ? 8 * lane_rows * scale_bytes * 4
         : SCALES == SCALES_PAIR ? 8 * lane_rows * scale_bytes * 2
         : SCALES == SCALES_E8M0 ? 8 * lane_rows * 4
                                 : 8 * lane_rows * 20;
}

// ---- Codes to 16-bit floats ---------------------------------------------------------------------------------------------------

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

/** Eight 4-bit codes: nibble j and j + 4 of the word are elements 2 j and 2 j + 1. */
template <class T> static __device__ __forceinline__ void unpack_u4(uint32_t (&out)[4], uint32_t w, const packed_zero<T>& z);
template <> __device__ __forceinline__ void unpack_u4<f16>(uint32_t (&out)[4], uint32_t w, const packed_zero<f16>& z) {
  const uint32_t one = 0x64006400u, sixteenth = 0x2c002c00u;
  const uint32_t v = w >> 8;
  out[0] = add_two(and_or(w, 0x000f000fu, one), z.low);
  out[1] = multiply_add_two<f16>(and_or(w, 0x00f000f0u, one), sixteenth, z.high);
  out[2] = add_two(and_or(v, 0x000f000fu, one), z.low);
  out[3] = multiply_add_two<f16>(and_or(v, 0x00f000f0u, one), sixteenth, z.high);
}
template <> __device__ __forceinline__ void unpack_u4<bf16>(uint32_t (&out)[4], uint32_t w, const packed_zero<bf16>& z) {
#pragma unroll
  for (int j = 0; j < 4; j++)
    out[j] = multiply_add_two<bf16>(and_or(w >> 4 * j, 0x000f000fu, 0x43004300u), 0x3f803f80u, z.low);
}

static __device__ __forceinline__ uint32_t multiply_two(uint32_t a, uint32_t b) {
  uint32_t y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

/** Eight 4-bit codes times a 6-bit scale: 2^-24 of the products, exactly, as bits of a code alone are 2^-24 of it. */
static __device__ __forceinline__ void unpack_scaled(uint32_t (&out)[4], uint32_t w, uint32_t scale) {
  const uint32_t v = w >> 8, sixteenth = multiply_two(scale, 0x2c002c00u);
  out[0] = multiply_two(w & 0x000f000fu, scale);
  out[1] = multiply_two(w & 0x00f000f0u, sixteenth);
  out[2] = multiply_two(v & 0x000f000fu, scale);
  out[3] = multiply_two(v & 0x00f000f0u, sixteenth);
}

/** Eight e2m1 codes, their bits placed as packed_prepare.cuh has it: in f16 the first two pairs are one shift away. */
template <class T> static __device__ __forceinline__ void unpack_e2m1(uint32_t (&out)[4], uint32_t w);
template <> __device__ __forceinline__ void unpack_e2m1<f16>(uint32_t (&out)[4], uint32_t w) {
  out[0] = w & 0x8e008e00u;
  out[1] = (w << 3) & 0x8e008e00u;
  out[2] = and_or(w << 1, 0x80008000u, (w << 6) & 0x0e000e00u);
  out[3] = and_or(w << 2, 0x80008000u, (w << 9) & 0x0e000e00u);
}
template <> __device__ __forceinline__ void unpack_e2m1<bf16>(uint32_t (&out)[4], uint32_t w) {
  /* Exponents end at bit 7: 2^-126 of the value, which is too small for sums of f32. */
  out[0] = and_or(w >> 3, 0x01c001c0u, w & 0x80008000u);
  out[1] = and_or(w, 0x01c001c0u, (w << 3) & 0x80008000u);
  out[2] = and_or(w << 3, 0x01c001c0u, (w << 1) & 0x80008000u);
  out[3] = and_or(w << 6, 0x01c001c0u, (w << 2) & 0x80008000u);
#pragma unroll
  for (int j = 0; j < 4; j++)
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

/** Four floats of 8 bits to two pairs: in f16 2^-8 of e4m3 values; NaN is told by its row's scale. */
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

/** What the sums are to be multiplied by beside the scales. */
template <class T, int CODES> static __device__ __forceinline__ constexpr float packed_factor() {
  return is_bf16<T>::value ? 1.0f : CODES == PACKED_E2M1 ? 16384.0f : CODES == PACKED_E4M3 ? 256.0f : 1.0f;
}

// ---- Loads --------------------------------------------------------------------------------------------------------------------

/** Bytes that are read once. */
static __device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

/** COUNT words of scales. */
template <int COUNT> struct scale_words {
  uint32_t word[COUNT];
  __device__ __forceinline__ void load(const uint8_t* from) {
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
      for (int i = 0; i < COUNT; i += 4) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(from) + i / 4);
        word[i] = v.x, word[i + 1] = v.y, word[i + 2] = v.z, word[i + 3] = v.w;
      }
    } else if constexpr (COUNT == 2) {
      const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
      word[0] = v.x, word[1] = v.y;
    } else {
      word[0] = __ldg(reinterpret_cast<const uint32_t*>(from));
    }
  }
};

// ---- Scales -------------------------------------------------------------------------------------------------------------------

static __device__ __forceinline__ float byte_to_float(uint32_t word, int byte) {
  return __uint_as_float(permute(word, 0x4b000000u, 0x7440u | (uint32_t)byte)) - 8388608.0f;
}
/** 2^(e - 127); 0 for e = 0, and an infinity for NaN, whose codes are zeros. */
static __device__ __forceinline__ float power_of_two(uint32_t word, int byte) {
  return __uint_as_float((byte == 3 ? word >> 1 : word << (23 - 8 * byte)) & 0x7f800000u);
}

/** A lane's scales of one step, of type ST, and their zeros. */
template <int CODES, int SCALES, class ST, bool ZEROS> struct packed_step_scales {
  static constexpr int ROWS = packed_form<CODES>::LANE_ROWS;
  static constexpr int EACH = SCALES == SCALES_UNIT ? 4 : SCALES == SCALES_PAIR ? 2 : 1;
  static constexpr int WORDS = SCALES == SCALES_Q4K    ? 4
                               : SCALES == SCALES_E8M0 ? ROWS
                                                       : (ROWS * EACH * (int)sizeof(ST) + 3) / 4;
  scale_words<WORDS> words;
  scale_words<ZEROS ? (ROWS * EACH + 3) / 4 : 1> zeros;

  __device__ __forceinline__ void load(const uint8_t* scales, const uint8_t* zero, int record, int g) {
    if constexpr (SCALES == SCALES_Q4K) {
      words.load(scales + (record / 2) * 640 + (record % 2) * 128 + g * 16);
    } else {
      words.load(scales + (record * 8 + g) * WORDS * 4);
    }
    if (ZEROS)
      zeros.load(zero + (record * 8 + g) * ((ROWS * EACH + 3) / 4) * 4);
  }
  __device__ __forceinline__ float scale(int row, int unit) const {
    if constexpr (SCALES == SCALES_Q4K)
      return byte_to_float(words.word[unit], row);
    else if constexpr (SCALES == SCALES_E8M0)
      return power_of_two(words.word[row], unit);
    else {
      const int at = row * EACH + (EACH == 4 ? unit : EACH == 2 ? unit / 2 : 0);
      return sizeof(ST) == 4 ? __uint_as_float(words.word[at]) : half_of_word<ST>(words.word[at / 2], at % 2);
    }
  }
  /** Twice a row's 6-bit scale in a unit, in f16. */
  __device__ __forceinline__ uint32_t small_scale(int row, int unit) const {
    return add_two(permute(words.word[unit], 0x64646464u, 0x4040u | (uint32_t)row << 8 | (uint32_t)row), 0xe400e400u);
  }
  __device__ __forceinline__ uint32_t zero(int row, int unit) const {
    const int at = row * EACH + (EACH == 4 ? unit : EACH == 2 ? unit / 2 : 0);
    return zeros.word[at / 4] >> at % 4 * 8 & 255u;
  }
};

// ---- The product --------------------------------------------------------------------------------------------------------------

template <class T, class C, class BIAS> struct packed_arguments {
  const T* x;
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
  const BIAS* bias;
  const C* residual;
  C* c;
  int64_t m, n, k, ldx, ldc, ld_residual, steps, group_steps;
};

/** c[16 x 8] += a[16 x 8] b[8 x 8], of numbers cut to 11 bits. */
static __device__ __forceinline__ void multiply_add_short(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/** One warp's sums: a tile of w times COLUMNS * 8 rows of x. */
template <class T, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS> struct packed_warp {
  typedef packed_form<CODES> form;
  typedef packed_step_scales<CODES, SCALES, ST, ZEROS> step_scales;
  static constexpr int MATRICES = form::MATRICES;
  static constexpr bool HAS_MINIMA = SCALES == SCALES_Q4K;
  /* In f16 small scales are multiplied into codes, and sums of a whole pair are scaled at once. */
  static constexpr bool FOLDED = HAS_MINIMA && !is_bf16<T>::value;

  float sums[MATRICES][COLUMNS][4];

  __device__ __forceinline__ void unpack(uint32_t (&a)[2][4], const uint4& w, int matrix, const step_scales& s, int unit) const {
    const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t pair[4];
      if constexpr (form::BYTES) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          if constexpr (CODES == PACKED_S8)
            unpack_s8<T>(pair[2 * i], pair[2 * i + 1], word[half * 2 + i]);
          else
            unpack_f8<T, CODES>(pair[2 * i], pair[2 * i + 1], word[half * 2 + i]);
        }
      } else if constexpr (CODES == PACKED_E2M1) {
        unpack_e2m1<T>(pair, word[matrix * 2 + half]);
      } else if constexpr (FOLDED) {
        unpack_scaled(pair, word[matrix * 2 + half], s.small_scale(matrix * 2 + half, unit));
      } else {
        packed_zero<T> z;
        z.set(CODES == PACKED_Q4 ? 0u : ZEROS ? s.zero(matrix * 2 + half, unit) : 8u);
        unpack_u4<T>(pair, word[matrix * 2 + half], z);
      }
      a[0][half] = pair[0], a[0][2 + half] = pair[1], a[1][half] = pair[2], a[1][2 + half] = pair[3];
    }
  }

  static __device__ __forceinline__ void scale_in(float (&to)[MATRICES][COLUMNS][4], const float (&part)[MATRICES][COLUMNS][4],
                                                  const step_scales& s, int unit) {
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float scale = s.scale(i * 2 + half, unit);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          to[i][j][half * 2] = fmaf(part[i][j][half * 2], scale, to[i][j][half * 2]);
          to[i][j][half * 2 + 1] = fmaf(part[i][j][half * 2 + 1], scale, to[i][j][half * 2 + 1]);
        }
      }
    }
  }

  static __device__ __forceinline__ void clear(float (&part)[MATRICES][COLUMNS][4]) {
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
          part[i][j][e] = 0.0f;
      }
    }
  }

  /** One unit; what is to be summed before it is scaled stays in `part`. `whole` collects a superblock's where that is scaled later. */
  __device__ __forceinline__ void add_unit(float (&part)[MATRICES][COLUMNS][4], float (&whole)[MATRICES][COLUMNS][4], const uint4& w,
                                           const step_scales& s, int unit, const uint4* x) {
    if (!FOLDED && (SCALES == SCALES_GROUP ? unit == 0 : SCALES == SCALES_PAIR ? unit % 2 == 0 : true))
      clear(part);
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
      uint32_t a[2][4];
      unpack(a, w, i, s, unit);
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        const uint4 v = x[j * 32];
        const uint32_t b[2][2] = {{v.x, v.y}, {v.z, v.w}};
        multiply_add<T>(FOLDED ? whole[i][j] : part[i][j], a[0], b[0]);
        multiply_add<T>(FOLDED ? whole[i][j] : part[i][j], a[1], b[1]);
      }
    }
    if (HAS_MINIMA && !FOLDED)
      scale_in(whole, part, s, unit);
    else if (!HAS_MINIMA && (SCALES == SCALES_GROUP ? unit == 3 : SCALES == SCALES_PAIR ? unit % 2 == 1 : true))
      scale_in(sums, part, s, unit);
  }

  /** The end of a superblock: sums += d * whole - dmin * (minima times sums of x). */
  __device__ __forceinline__ void end_pair(const float (&whole)[MATRICES][COLUMNS][4], const uint2& minima, const uint4& factors, const float2* x_sums,
                                           int g, int t) {
    const uint32_t factor[4] = {factors.x, factors.y, factors.z, factors.w};
    float least[MATRICES][COLUMNS][4];
    clear(least);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const float2 two = x_sums[(j * 8 + g) * 4 + t];
      const uint32_t high0 = __float_as_uint(two.x) & 0xffffe000u, high1 = __float_as_uint(two.y) & 0xffffe000u;
      const uint32_t low0 = __float_as_uint(two.x - __uint_as_float(high0)), low1 = __float_as_uint(two.y - __uint_as_float(high1));
#pragma unroll
      for (int i = 0; i < MATRICES; i++) {
        const uint32_t a[4] = {__float_as_uint(byte_to_float(minima.x, i * 2)), __float_as_uint(byte_to_float(minima.x, i * 2 + 1)),
                               __float_as_uint(byte_to_float(minima.y, i * 2)), __float_as_uint(byte_to_float(minima.y, i * 2 + 1))};
        multiply_add_short(least[i][j], a, low0, low1);
        multiply_add_short(least[i][j], a, high0, high1);
      }
    }
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float d = half_of_word<f16>(factor[i * 2 + half], 0) * (FOLDED ? 16777216.0f : 1.0f);
        const float dmin = half_of_word<f16>(factor[i * 2 + half], 1);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; e++)
            sums[i][j][e] = fmaf(-least[i][j][e], dmin, fmaf(whole[i][j][e], d, sums[i][j][e]));
        }
      }
    }
  }
};

constexpr int PACKED_X_STAGES = 4; /* pairs of x: one in use, one that is summed up, two on their way */

__host__ __device__ constexpr int packed_x_bytes(int columns, int slices) {
  return PACKED_X_STAGES * slices * columns * 8 * 512; /* a unit of eight rows is 512 bytes */
}

/** Bytes of shared memory that a block needs. */
__host__ __device__ constexpr int packed_shared_bytes(int matrices, int columns, int tiles, int slices, bool minima) {
  const int sums = slices * columns * 8 * (tiles * matrices * 16 + 4) * 4;
  const int x = packed_x_bytes(columns, slices) + (minima ? PACKED_X_STAGES * slices * columns * 8 * 32 : 0);
  return sums > x ? sums : x;
}

/** Until all warps of a slice are here. */
template <int TILES> static __device__ __forceinline__ void meet(int slice) {
  asm volatile("bar.sync %0, %1;" ::"r"(slice + 1), "n"(TILES * 32) : "memory");
}

/** A slice's window on x: pairs of 256 k in fragments, brought by the warps of the slice. */
template <class T, int COLUMNS, int TILES, bool MINIMA> struct packed_window {
  static constexpr int VECTORS = 8 * COLUMNS * 32; /* of 16 bytes in a pair */
  static constexpr int ROWS = 8 * COLUMNS;
  uint4* x;     /* [stage][unit][column][lane] */
  float2* sums; /* [stage][row][t]: of units t and t + 4 */
  const T* from; /* of the slice's first pair */
  int64_t ldx;
  int rows, k, pairs; /* k: what is left from there on */
  bool wide;

  /** Begins to bring the i-th pair: a warp a row, a lane eight elements. */
  __device__ __forceinline__ void bring(int i) const {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % TILES, column = i * 256 + lane * 8;
    uint4* const to = x + i % PACKED_X_STAGES * VECTORS + lane / 4 * COLUMNS * 32 + lane % 4;
#pragma unroll 1
    for (int row = first; row < ROWS; row += TILES) {
      uint4* const place = to + (row / 8) * 32 + row % 8 * 4;
      const bool inside = row < rows && column < k && i < pairs;
      const T* const source = from + (inside ? row * ldx + column : 0);
      if (wide) {
        copy_async(place, source, inside);
      } else {
        uint32_t word[4] = {0, 0, 0, 0};
        const uint16_t* const bits = reinterpret_cast<const uint16_t*>(source);
        for (int e = 0; e < 8; e++) {
          if (inside && column + e < k)
            word[e / 2] |= (uint32_t)bits[e] << e % 2 * 16;
        }
        *place = {word[0], word[1], word[2], word[3]};
      }
    }
  }

  /** Sums of each 32 k of the i-th pair, which has arrived: four lanes a sum. */
  __device__ __forceinline__ void sum_up(int i) const {
    if (!MINIMA)
      return;
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % TILES;
    const uint4* const all = x + i % PACKED_X_STAGES * VECTORS + lane / 4 * COLUMNS * 32 + lane % 4;
    float* const out = reinterpret_cast<float*>(sums + i % PACKED_X_STAGES * ROWS * 4) + lane / 4 % 4 * 2 + lane / 16;
#pragma unroll 1
    for (int row = first; row < ROWS; row += TILES) {
      const uint4 v = all[(row / 8) * 32 + row % 8 * 4];
      const uint32_t word[4] = {v.x, v.y, v.z, v.w};
      float sum = 0.0f;
#pragma unroll
      for (int e = 0; e < 4; e++)
        sum += half_of_word<T>(word[e], 0) + half_of_word<T>(word[e], 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (lane % 4 == 0)
        out[row * 8] = sum;
    }
  }
};

template <class T, class C, class BIAS, int ACTIVATION, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS, int TILES, int SLICES>
static __device__ __forceinline__ void packed_product(const packed_arguments<T, C, BIAS>& p, unsigned char* shared) {
  typedef packed_warp<T, CODES, SCALES, ST, ZEROS, COLUMNS> warp_t;
  typedef typename warp_t::step_scales step_scales;
  typedef packed_window<T, COLUMNS, TILES, warp_t::HAS_MINIMA> window_t;
  constexpr int ROWS = packed_form<CODES>::ROWS, MATRICES = packed_form<CODES>::MATRICES;
  constexpr int LANE_ROWS = packed_form<CODES>::LANE_ROWS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tile_in_block = warp % TILES, slice = warp / TILES;
  const int64_t tiles = (p.n + ROWS - 1) / ROWS, tile = (int64_t)blockIdx.x * TILES + tile_in_block;
  const int64_t row0 = (int64_t)blockIdx.y * COLUMNS * 8;
  const int steps = (int)p.steps, group_steps = (int)p.group_steps, pairs = (steps + 1) / 2;
  const int first_pair = pairs * slice / SLICES, last_pair = pairs * (slice + 1) / SLICES;
  const int begin = first_pair * 2, last = last_pair * 2;
  const int end = tile < tiles ? (last < steps ? last : steps) : begin;

  warp_t work;
  warp_t::clear(work.sums);
  constexpr int RECORD = packed_record_bytes<SCALES>(LANE_ROWS, (int)sizeof(ST));
  const int records = SCALES == SCALES_GROUP ? (steps + group_steps - 1) / group_steps : steps;
  const uint8_t* codes = p.codes + ((tile * steps + begin) * 32 * 4 + lane) * 16;
  const uint8_t* const scales = p.scales + tile * (SCALES == SCALES_Q4K ? records / 2 : records) * RECORD;
  const uint8_t* const zeros = p.zeros + tile * records * 8 * ((step_scales::ROWS * step_scales::EACH + 3) / 4) * 4;
  int record = SCALES == SCALES_GROUP ? begin / group_steps : begin;
  int left = SCALES == SCALES_GROUP ? group_steps - begin % group_steps : 1;

  /* Weights are constants: they are asked for before what is ahead has ended. */
  uint4 next[4]; /* the next step's codes */
  step_scales next_scales;
  if (begin < end) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      next[i] = load_once(codes + i * 512);
    next_scales.load(scales, zeros, record, g);
  }
  wait_for_previous();
  allow_next();

  window_t window;
  window.x = reinterpret_cast<uint4*>(shared) + slice * PACKED_X_STAGES * window_t::VECTORS;
  window.sums = reinterpret_cast<float2*>(shared + packed_x_bytes(COLUMNS, SLICES)) + slice * PACKED_X_STAGES * window_t::ROWS * 4;
  window.from = p.x + row0 * p.ldx + first_pair * 256;
  window.ldx = p.ldx;
  window.rows = (int)(p.m - row0 < COLUMNS * 8 ? p.m - row0 : COLUMNS * 8);
  window.k = (int)p.k - first_pair * 256;
  window.pairs = last_pair - first_pair;
  window.wide = (p.ldx | p.k) % 8 == 0 && is_aligned(p.x, 16);
#pragma unroll
  for (int i = 0; i < PACKED_X_STAGES - 1; i++) {
    window.bring(i);
    copy_commit();
  }
  if (warp_t::HAS_MINIMA) {
    copy_wait<PACKED_X_STAGES - 2>();
    meet<TILES>(slice);
    window.sum_up(0);
  }
  int step = begin;
#pragma unroll 1
  for (int round = 0; round < window.pairs; round++) {
    copy_wait<PACKED_X_STAGES - 3>(); /* this pair and the next are there */
    meet<TILES>(slice);
    if (round + PACKED_X_STAGES - 1 < window.pairs)
      window.bring(round + PACKED_X_STAGES - 1);
    copy_commit();
    window.sum_up(round + 1);
    if (step >= end)
      continue;
    float whole[MATRICES][COLUMNS][4], part[MATRICES][COLUMNS][4];
    uint2 minima = {0, 0};
    uint4 factors = {0, 0, 0, 0};
    if (warp_t::HAS_MINIMA) {
      warp_t::clear(whole);
      const uint8_t* const superblock = scales + step / 2 * 640;
      minima = __ldg(reinterpret_cast<const uint2*>(superblock + 256) + lane);
      factors = __ldg(reinterpret_cast<const uint4*>(superblock + 512) + g);
    }
    const int slot = round % PACKED_X_STAGES;
    const uint4* const x = window.x + slot * window_t::VECTORS + lane;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (half == 1 && step >= end)
        continue;
      const step_scales s = next_scales;
      codes += PACKED_STEP_BYTES;
      step++;
      if (--left == 0) {
        record++;
        left = SCALES == SCALES_GROUP ? group_steps : 1;
        if (step < end)
          next_scales.load(scales, zeros, record, g);
      }
#pragma unroll
      for (int unit = 0; unit < 4; unit++) {
        const uint4 w = next[unit];
        if (step < end)
          next[unit] = load_once(codes + unit * 512);
        work.add_unit(part, whole, w, s, unit, x + (half * 4 + unit) * COLUMNS * 32);
      }
    }
    if (warp_t::HAS_MINIMA)
      work.end_pair(whole, minima, factors, window.sums + slot * window_t::ROWS * 4, g, t);
  }
  copy_wait<0>();
  __syncthreads();
  /* sums[slice][column of x][row of w] */
  constexpr int BLOCK_ROWS = TILES * ROWS, STEP = BLOCK_ROWS + 4;
  float* const out = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < MATRICES; i++) {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        out[(slice * COLUMNS * 8 + j * 8 + t * 2 + e % 2) * STEP + tile_in_block * ROWS + i * 16 + e / 2 * 8 + g] = work.sums[i][j][e];
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < BLOCK_ROWS * COLUMNS * 8; at += TILES * SLICES * 32) {
    const int row = at % BLOCK_ROWS, column = at / BLOCK_ROWS;
    const int64_t n = (int64_t)blockIdx.x * BLOCK_ROWS + row, m = row0 + column;
    if (n >= p.n || m >= p.m)
      continue;
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < SLICES; i++)
      value += out[(i * COLUMNS * 8 + column) * STEP + row];
    value = value * packed_factor<T, CODES>() + (p.bias ? to_float(p.bias[n]) : 0.0f);
    value = activate_as<C>(value, ACTIVATION);
    p.c[m * p.ldc + n] = from_float<C>(p.residual ? value + to_float(p.residual[m * p.ld_residual + n]) : value);
  }
}

// ---- The weight itself, for products of many rows --------------------------------------------------------------------------------

/** All of w as T, [n, k]: each warp a step of a tile at a time. */
template <class T, int CODES, int SCALES, class ST, bool ZEROS>
static __device__ __forceinline__ void packed_dequantize(const uint8_t* codes, const uint8_t* scales, const uint8_t* zeros, T* out, int64_t n,
                                                         int64_t k, int64_t steps, int64_t group_steps) {
  typedef packed_warp<T, CODES, SCALES, ST, ZEROS, 1> warp_t;
  typedef typename warp_t::step_scales step_scales;
  constexpr int ROWS = packed_form<CODES>::ROWS, MATRICES = packed_form<CODES>::MATRICES;
  constexpr int RECORD = packed_record_bytes<SCALES>(packed_form<CODES>::LANE_ROWS, (int)sizeof(ST));
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t tiles = (n + ROWS - 1) / ROWS, warps = (int64_t)gridDim.x * (blockDim.x / 32);
  const int64_t records = SCALES == SCALES_GROUP ? (steps + group_steps - 1) / group_steps : steps;
  const bool wide = k % 8 == 0 && is_aligned(out, 16);
  warp_t work;
#pragma unroll 1
  for (int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; at < tiles * steps; at += warps) {
    const int64_t tile = at / steps, step = at % steps;
    const uint8_t* const own = scales + tile * (SCALES == SCALES_Q4K ? records / 2 : records) * RECORD;
    step_scales s;
    s.load(own, zeros + tile * records * 8 * ((step_scales::ROWS * step_scales::EACH + 3) / 4) * 4,
           (int)(SCALES == SCALES_GROUP ? step / group_steps : step), g);
    const uint8_t* const superblock = own + step / 2 * 640;
#pragma unroll 1
    for (int unit = 0; unit < 4; unit++) {
      const uint4 w = load_once(codes + ((at * 4 + unit) * 32 + lane) * 16);
#pragma unroll
      for (int i = 0; i < MATRICES; i++) {
        uint32_t a[2][4];
        work.unpack(a, w, i, s, unit);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int row = i * 2 + half;
          float scale = s.scale(row, unit) * packed_factor<T, CODES>(), least = 0.0f;
          if constexpr (SCALES == SCALES_Q4K) {
            const uint32_t factor = reinterpret_cast<const uint32_t*>(superblock + 512)[g * 4 + row];
            const int block = (int)(step % 2) * 4 + unit;
            scale = half_of_word<f16>(factor, 0) * (warp_t::FOLDED ? 16777216.0f : scale);
            least = half_of_word<f16>(factor, 1) * (float)superblock[256 + (g * 4 + block % 4) * 8 + block / 4 * 4 + row];
          }
          const uint32_t pair[4] = {a[0][half], a[0][2 + half], a[1][half], a[1][2 + half]};
          const int64_t r = tile * ROWS + row * 8 + g, column = step * PACKED_STEP_K + unit * 32 + t * 8;
          uint32_t word[4];
#pragma unroll
          for (int e = 0; e < 4; e++)
            word[e] = pack_two<T>(half_of_word<T>(pair[e], 0) * scale - least, half_of_word<T>(pair[e], 1) * scale - least);
          if (r >= n || column >= k)
            continue;
          if (wide) {
            *reinterpret_cast<uint4*>(out + r * k + column) = {word[0], word[1], word[2], word[3]};
            continue;
          }
          for (int e = 0; e < 8; e++) {
            if (column + e < k)
              out[r * k + column + e] = from_float<T>(half_of_word<T>(word[e / 2], e % 2));
          }
        }
      }
    }
  }
}

/** Where the parts of a packed weight lie; `group`: elements of k for a scale (SCALES_GROUP: a multiple of 128, or at least k). */
struct packed_places {
  int64_t tiles, steps, records, record_bytes, zero_bytes, scales_at, zeros_at, group_steps;
};

template <int CODES, int SCALES, class ST, bool ZEROS>
static __host__ __device__ packed_places packed_places_of(int64_t n, int64_t k, int64_t group) {
  typedef packed_form<CODES> form;
  packed_places p = {};
  p.tiles = (n + form::ROWS - 1) / form::ROWS;
  p.steps = (k + PACKED_STEP_K - 1) / PACKED_STEP_K;
  p.group_steps = (group + PACKED_STEP_K - 1) / PACKED_STEP_K;
  p.records = SCALES == SCALES_GROUP  ? (p.steps + p.group_steps - 1) / p.group_steps
              : SCALES == SCALES_Q4K ? p.steps / 2
                                     : p.steps;
  p.record_bytes = packed_record_bytes<SCALES>(form::LANE_ROWS, (int)sizeof(ST));
  p.zero_bytes = ZEROS ? 8 * ((packed_step_scales<CODES, SCALES, ST, ZEROS>::EACH * form::LANE_ROWS + 3) / 4) * 4 : 0;
  p.scales_at = p.tiles * p.steps * PACKED_STEP_BYTES;
  p.zeros_at = (p.scales_at + p.tiles * p.records * p.record_bytes + 15) / 16 * 16;
  return p;
}

} // namespace accrt_cuda

/* Weights are constants: they may be asked for before what is ahead has ended, and nothing else is. */
#define ACCRT_CUDA_PACKED(ENTRY, T, C, BIAS, ACTIVATION, CODES, SCALES, ST, ZEROS, COLUMNS, TILES, SLICES)                         \
  extern "C" __global__ void __launch_bounds__((TILES) * (SLICES) * 32, 1)                                                      \
      ENTRY(const T* x, const uint8_t* w, const BIAS* bias, const C* residual, C* c, int64_t m, int64_t n, int64_t k, int64_t ldx, \
            int64_t ldc, int64_t ld_residual, int64_t group) {                                                                  \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                                              \
    const accrt_cuda::packed_places at =                                                                                        \
        accrt_cuda::packed_places_of<accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS>(n, k, group);                            \
    const accrt_cuda::packed_arguments<T, C, BIAS> p = {x, w, w + at.scales_at, w + at.zeros_at, bias, residual, c, m, n, k,     \
                                                        ldx, ldc, ld_residual, at.steps, at.group_steps};                       \
    accrt_cuda::packed_product<T, C, BIAS, accrt_cuda::ACTIVATION, accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS, COLUMNS,    \
                               TILES, SLICES>(p, accrt_shared);                                                                 \
  }

#define ACCRT_CUDA_PACKED_DEQUANTIZE(ENTRY, T, CODES, SCALES, ST, ZEROS)                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                                             \
      ENTRY(const uint8_t* w, T* out, int64_t n, int64_t k, int64_t group) {                                                    \
    accrt_cuda::wait_for_previous();                                                                                            \
    accrt_cuda::allow_next();                                                                                                   \
    const accrt_cuda::packed_places at =                                                                                        \
        accrt_cuda::packed_places_of<accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS>(n, k, group);                            \
    accrt_cuda::packed_dequantize<T, accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS>(                                         \
        w, w + at.scales_at, w + at.zeros_at, out, n, k, at.steps, at.group_steps);                                             \
  }
#endif
