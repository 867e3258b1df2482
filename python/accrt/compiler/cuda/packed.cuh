/* packed.cuh - products of a few rows with a weight that stays packed: c = activation(x @ w^T + bias) + residual.
 *
 * x is [m, k] of f16 or bf16, w [n, k] in 4 or 8 bits, rearranged by packed_prepare.cuh. What it costs is reading w once, so all
 * is made for that: a lane's next 16 bytes of codes are on their way while it works, w is the a-operand of the tensor
 * core's product (its rows are the product's rows), and scales are multiplied into sums of f32, not into weights. Codes become 16-bit
 * floats without error; products accumulate in f32 over ascending k within a slice, slices are added in order.
 *
 * A *tile* is 32 rows of w for 4-bit codes and 16 for 8-bit ones. A *unit* is a tile's codes for 32 k: 512 bytes, 16 of each
 * lane. Lane 4 g + t holds k = 8 t .. 8 t + 7 of rows g, g + 8 (and g + 16, g + 24), so that x is read 16 bytes a lane too. A
 * *step* is four units. A block has TILES x SLICES warps: each a tile, and a part of k. */
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

/** Eight elements of x, zeros where there are none. */
template <class T, bool WIDE>
static __device__ __forceinline__ uint4 load_x(const T* row, int at, int k, bool inside) {
  uint4 v = {0, 0, 0, 0};
  if (!inside || at >= k)
    return v;
  if (WIDE)
    return __ldg(reinterpret_cast<const uint4*>(row + at));
  uint32_t word[4] = {0, 0, 0, 0};
  const uint16_t* const bits = reinterpret_cast<const uint16_t*>(row);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (at + i < k)
      word[i / 2] |= (uint32_t)bits[at + i] << i % 2 * 16;
  }
  v.x = word[0], v.y = word[1], v.z = word[2], v.w = word[3];
  return v;
}

// ---- Scales -------------------------------------------------------------------------------------------------------------------

static __device__ __forceinline__ float byte_to_float(uint32_t word, int byte) {
  return __uint_as_float(permute(word, 0x4b000000u, 0x7440u | (uint32_t)byte)) - 8388608.0f;
}
static __device__ __forceinline__ float power_of_two(uint32_t e) {
  return __uint_as_float(e == 0 ? 0x00400000u : e == 255 ? 0x7fc00000u : e << 23);
}

/** A lane's scales of one step, of type ST, and their zeros. */
template <int CODES, int SCALES, class ST, bool ZEROS> struct packed_step_scales {
  static constexpr int ROWS = packed_form<CODES>::LANE_ROWS;
  static constexpr int EACH = SCALES == SCALES_UNIT ? 4 : SCALES == SCALES_PAIR ? 2 : 1;
  static constexpr int WORDS = SCALES == SCALES_Q4K    ? 12
                               : SCALES == SCALES_E8M0 ? ROWS
                                                       : (ROWS * EACH * (int)sizeof(ST) + 3) / 4;
  scale_words<WORDS> words;
  scale_words<ZEROS ? (ROWS * EACH + 3) / 4 : 1> zeros;

  __device__ __forceinline__ void load(const uint8_t* scales, const uint8_t* zero, int record, int g) {
    if constexpr (SCALES == SCALES_Q4K) {
      const uint8_t* const at = scales + (record / 2) * 640;
      scale_words<4> part[3];
      part[0].load(at + (record % 2) * 256 + g * 16);
      part[1].load(at + (record % 2) * 256 + 128 + g * 16);
      part[2].load(at + 512 + g * 16);
#pragma unroll
      for (int i = 0; i < 12; i++)
        words.word[i] = part[i / 4].word[i % 4];
    } else {
      words.load(scales + (record * 8 + g) * WORDS * 4);
    }
    if (ZEROS)
      zeros.load(zero + (record * 8 + g) * ((ROWS * EACH + 3) / 4) * 4);
  }
  __device__ __forceinline__ float scale(int row, int unit) const {
    if constexpr (SCALES == SCALES_Q4K)
      return byte_to_float(words.word[row], unit);
    else if constexpr (SCALES == SCALES_E8M0)
      return power_of_two(words.word[row] >> 8 * unit & 255u);
    else {
      const int at = row * EACH + (EACH == 4 ? unit : EACH == 2 ? unit / 2 : 0);
      return sizeof(ST) == 4 ? __uint_as_float(words.word[at]) : half_of_word<ST>(words.word[at / 2], at % 2);
    }
  }
  __device__ __forceinline__ float minimum(int row, int unit) const {
    return byte_to_float(words.word[4 + row], unit);
  }
  __device__ __forceinline__ float factor(int row, int which) const {
    return half_of_word<f16>(words.word[8 + row], which);
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

/** One warp's sums: a tile of w times COLUMNS * 8 rows of x, over steps [begin, end). */
template <class T, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS> struct packed_warp {
  typedef packed_form<CODES> form;
  typedef packed_step_scales<CODES, SCALES, ST, ZEROS> step_scales;
  static constexpr int MATRICES = form::MATRICES;
  static constexpr bool HAS_MINIMA = SCALES == SCALES_Q4K;

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
      } else {
        packed_zero<T> z;
        z.set(CODES == PACKED_Q4 ? 0u : ZEROS ? s.zero(matrix * 2 + half, unit) : 8u);
        unpack_u4<T>(pair, word[matrix * 2 + half], z);
      }
      a[0][half] = pair[0], a[0][2 + half] = pair[1], a[1][half] = pair[2], a[1][2 + half] = pair[3];
    }
  }

  __device__ __forceinline__ void scale_in(const float (&part)[MATRICES][COLUMNS][4], const step_scales& s, int unit) {
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float scale = s.scale(i * 2 + half, unit);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          sums[i][j][half * 2] = fmaf(part[i][j][half * 2], scale, sums[i][j][half * 2]);
          sums[i][j][half * 2 + 1] = fmaf(part[i][j][half * 2 + 1], scale, sums[i][j][half * 2 + 1]);
        }
      }
    }
  }

  /** The same with the minima of superblocks; `ones` has the sums of x. */
  __device__ __forceinline__ void scale_k(const float (&part)[MATRICES][COLUMNS][4], const float (&ones)[COLUMNS][4], const step_scales& s,
                                          int unit) {
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = i * 2 + half;
        const float scale = s.scale(row, unit) * s.factor(row, 0), least = s.minimum(row, unit) * s.factor(row, 1);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
          for (int e = 0; e < 2; e++)
            sums[i][j][half * 2 + e] =
                fmaf(ones[j][e], -least, fmaf(part[i][j][half * 2 + e], scale, sums[i][j][half * 2 + e]));
        }
      }
    }
  }

  /** One unit; what is to be summed before it is scaled stays in `part`. */
  __device__ __forceinline__ void add_unit(float (&part)[MATRICES][COLUMNS][4], const uint4& w, const step_scales& s, int unit,
                                           const uint4 (&x)[COLUMNS]) {
    if (SCALES == SCALES_GROUP ? unit == 0 : SCALES == SCALES_PAIR ? unit % 2 == 0 : true) {
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
    float ones[COLUMNS][4] = {};
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
      uint32_t a[2][4];
      unpack(a, w, i, s, unit);
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        const uint32_t b[2][2] = {{x[j].x, x[j].y}, {x[j].z, x[j].w}};
        multiply_add<T>(part[i][j], a[0], b[0]);
        multiply_add<T>(part[i][j], a[1], b[1]);
        if (HAS_MINIMA && i == 0) {
          const uint32_t one = is_bf16<T>::value ? 0x3f803f80u : 0x3c003c00u;
          const uint32_t row[4] = {one, one, one, one};
          multiply_add<T>(ones[j], row, b[0]);
          multiply_add<T>(ones[j], row, b[1]);
        }
      }
    }
    if constexpr (HAS_MINIMA)
      scale_k(part, ones, s, unit);
    else if (SCALES == SCALES_GROUP ? unit == 3 : SCALES == SCALES_PAIR ? unit % 2 == 1 : true)
      scale_in(part, s, unit);
  }
};

/** Bytes of shared memory that a block needs. */
__host__ __device__ constexpr int packed_shared_bytes(int matrices, int columns, int tiles, int slices, int stages) {
  const int sums = slices * columns * 8 * (tiles * matrices * 16 + 4) * 4;
  const int ring = tiles * slices * (stages > 0 ? stages : 0) * PACKED_STEP_BYTES;
  return sums > ring ? sums : ring;
}

template <class T, class C, class BIAS, int ACTIVATION, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS, int TILES, int SLICES,
          int STAGES, bool WIDE>
static __device__ __forceinline__ void packed_product_of(const packed_arguments<T, C, BIAS>& p, unsigned char* shared) {
  typedef packed_warp<T, CODES, SCALES, ST, ZEROS, COLUMNS> warp_t;
  typedef typename warp_t::step_scales step_scales;
  constexpr int ROWS = packed_form<CODES>::ROWS, MATRICES = packed_form<CODES>::MATRICES;
  constexpr int LANE_ROWS = packed_form<CODES>::LANE_ROWS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tile_in_block = warp % TILES, slice = warp / TILES;
  const int64_t tiles = (p.n + ROWS - 1) / ROWS, tile = (int64_t)blockIdx.x * TILES + tile_in_block;
  const int64_t row0 = (int64_t)blockIdx.y * COLUMNS * 8;
  /* Slices begin at even steps: superblocks are two. */
  const int steps = (int)p.steps, group_steps = (int)p.group_steps, pairs = (steps + 1) / 2;
  const int begin = pairs * slice / SLICES * 2, last = pairs * (slice + 1) / SLICES * 2;
  const int end = tile < tiles ? (last < steps ? last : steps) : 0;

  warp_t work;
#pragma unroll
  for (int i = 0; i < MATRICES; i++) {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        work.sums[i][j][e] = 0.0f;
    }
  }
  const uint8_t* codes = p.codes + ((tile * steps + begin) * 32 * 4 + lane) * 16;
  constexpr int RECORD = packed_record_bytes<SCALES>(LANE_ROWS, (int)sizeof(ST));
  const int records = SCALES == SCALES_GROUP ? (steps + group_steps - 1) / group_steps : steps;
  const uint8_t* const scales = p.scales + tile * (SCALES == SCALES_Q4K ? records / 2 : records) * RECORD;
  const uint8_t* const zeros = p.zeros + tile * records * 8 * ((step_scales::ROWS * step_scales::EACH + 3) / 4) * 4;
  int record = SCALES == SCALES_GROUP ? begin / group_steps : begin;
  int left = SCALES == SCALES_GROUP ? group_steps - begin % group_steps : 1;

  uint4 next[4];
  step_scales next_scales;
  unsigned char* const ring = shared + (warp * STAGES * 32 * 4 + lane) * 16;
  if (begin < end) {
    if constexpr (STAGES <= 0) {
#pragma unroll
      for (int i = 0; i < 4; i++)
        next[i] = load_once(codes + i * 512);
    } else {
#pragma unroll
      for (int s = 0; s < STAGES - 1; s++) {
        if (begin + s < end) {
#pragma unroll
          for (int i = 0; i < 4; i++)
            copy_async(ring + s * 2048 + i * 512, codes + s * 2048 + i * 512, true);
        }
        copy_commit();
      }
    }
    next_scales.load(scales, zeros, record, g);
  }
  wait_for_previous();
  allow_next();
  const T* x_row[COLUMNS];
  bool x_inside[COLUMNS];
  uint4 next_x[COLUMNS];
#pragma unroll
  for (int j = 0; j < COLUMNS; j++) {
    const int64_t m = row0 + j * 8 + g;
    x_inside[j] = m < p.m;
    x_row[j] = p.x + (x_inside[j] ? m : 0) * p.ldx + t * 8;
    next_x[j] = load_x<T, WIDE>(x_row[j], begin * PACKED_STEP_K, (int)p.k - t * 8, x_inside[j] && begin < end);
  }
  int stage = 0;
#pragma unroll 1
  for (int step = begin; step < end; step++) {
    uint4 w[4];
    const step_scales s = next_scales;
    if constexpr (STAGES <= 0) {
#pragma unroll
      for (int i = 0; i < 4; i++)
        w[i] = next[i];
      codes += PACKED_STEP_BYTES;
      if (step + 1 < end) {
#pragma unroll
        for (int i = 0; i < 4; i++)
          next[i] = load_once(codes + i * 512);
      }
      if (STAGES < 0 && lane < 16 && step - STAGES < end)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(codes - lane * 16 - (STAGES + 1) * PACKED_STEP_BYTES + lane * 128));
    } else {
      copy_wait<STAGES - 2>();
#pragma unroll
      for (int i = 0; i < 4; i++)
        w[i] = *reinterpret_cast<const uint4*>(ring + stage * 2048 + i * 512);
      const int free_stage = stage == 0 ? STAGES - 1 : stage - 1;
      if (step + STAGES - 1 < end) {
#pragma unroll
        for (int i = 0; i < 4; i++)
          copy_async(ring + free_stage * 2048 + i * 512, codes + (STAGES - 1) * 2048 + i * 512, true);
      }
      copy_commit();
      codes += PACKED_STEP_BYTES;
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    if (--left == 0) {
      record++;
      left = SCALES == SCALES_GROUP ? group_steps : 1;
      if (step + 1 < end)
        next_scales.load(scales, zeros, record, g);
    }
    float part[MATRICES][COLUMNS][4];
#pragma unroll
    for (int unit = 0; unit < 4; unit++) {
      uint4 x[COLUMNS];
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        x[j] = next_x[j];
        next_x[j] = load_x<T, WIDE>(x_row[j], step * PACKED_STEP_K + unit * 32 + 32, (int)p.k - t * 8, x_inside[j]);
      }
      work.add_unit(part, w[unit], s, unit, x);
    }
  }
  if constexpr (STAGES > 0) {
    copy_wait<0>();
    __syncthreads();
  }
  /* sums[slice][tile][column of x][row of w] */
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

template <class T, class C, class BIAS, int ACTIVATION, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS, int TILES, int SLICES,
          int STAGES>
static __device__ __forceinline__ void packed_product(const packed_arguments<T, C, BIAS>& p, unsigned char* shared) {
  if ((p.ldx | p.k) % 8 == 0 && is_aligned(p.x, 16))
    packed_product_of<T, C, BIAS, ACTIVATION, CODES, SCALES, ST, ZEROS, COLUMNS, TILES, SLICES, STAGES, true>(p, shared);
  else
    packed_product_of<T, C, BIAS, ACTIVATION, CODES, SCALES, ST, ZEROS, COLUMNS, TILES, SLICES, 0, false>(p, shared);
}

} // namespace accrt_cuda
#endif
