/* packed.cuh - products of a few rows with a weight that stays packed: c = activation(x @ w^T +
 * bias) + residual.
 *
 * x is [m, k] of f16 or bf16, w [n, k] in 2 to 8 bits, rearranged by packed_prepare.cuh. What it
 * costs is reading w once, so all is made for that: each warp has records of w on their way through
 * a ring of its own in shared memory, w is the a-operand of the tensor core's product (its rows are
 * the product's rows), and scales are multiplied into sums of f32, not into weights. Codes become
 * 16-bit floats without error; products accumulate in f32 over ascending k within a slice, slices
 * are added in order.
 *
 * A *tile* is 32 rows of w, and 16 for 8-bit codes, a *step* 128 of k. A *record* is what belongs
 * to both: codes, their scales, their zeros. Its codes are four *units* of 32 k; lane 4 g + t holds
 * k = 8 t .. 8 t + 7 of rows g, g + 8 (and g + 16, g + 24): 16 bytes of a unit, or bits in planes
 * (packed_codes.cuh).
 *
 * A block has SLICES x GROUPS warps: each a slice of k and a group of the block's tiles. The
 * scheduler that a warp belongs to is its number modulo 4, its slice is its number modulo SLICES:
 * schedulers have even shares, though groups have not. Records lie as [block][group][step] [tile]:
 * what a warp reads is one stream. Warps of a slice share its x, in shared memory in the order in
 * which lanes read it. */
#ifndef ACCRT_CUDA_PACKED_CUH_
#define ACCRT_CUDA_PACKED_CUH_

#include "groups.cuh"
#include "packed_codes.cuh"
#include "packed_stream.cuh"

namespace accrt_cuda {

/* STEP, PAIR, UNIT: a scale for each row and step, two units, one; Q4K: 8-bit scales and minima for
 * each unit, with f16 factors; Q6K: signed 8-bit scales for each 16 k, with f16 factors; Q2K: 4-bit
 * scales and minima for each 16 k, with f16 factors; MINIMA: UNIT, and a minimum beside each scale;
 * E8M0: powers of two for each unit; E4M3: 8-bit floats for each 16 k, of which none is NaN, and an
 * f32 of each row, behind all records, that these are multiplied by. */
enum packed_scales { SCALES_STEP, SCALES_PAIR, SCALES_UNIT, SCALES_Q4K, SCALES_E8M0, SCALES_Q6K, SCALES_Q2K, SCALES_MINIMA, SCALES_E4M3 };

/** Whether 16 k have a scale of their own: a lane then has k = 4 t .. 4 t + 3 of both halves of a
 * unit, so that each half is one product. */
static __host__ __device__ __forceinline__ constexpr bool packed_is_split(int scales) {
  return scales == SCALES_Q6K || scales == SCALES_Q2K || scales == SCALES_E4M3;
}
/** Which k of a unit is element e of lane 4 g + t. */
static __host__ __device__ __forceinline__ constexpr int packed_k(int scales, int t, int e) {
  return packed_is_split(scales) ? e / 4 * 16 + t * 4 + e % 4 : t * 8 + e;
}

/** What the sums are to be multiplied by beside the scales. */
template <class T, int CODES, int SCALES> static __device__ __forceinline__ constexpr float packed_factor() {
  if (is_bf16<T>::value)
    return SCALES == SCALES_E4M3 ? 256.0f : 1.0f;
  return CODES == PACKED_E2M1 ? 16384.0f : CODES == PACKED_E4M3 ? 256.0f : SCALES == SCALES_Q4K ? 16777216.0f : 1.0f;
}

// ---- Records ------------------------------------------------------------------------------------

/** COUNT words of scales. */
template <int COUNT> struct scale_words {
  uint32_t word[COUNT];
  __device__ __forceinline__ void load(const void* from) {
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
      for (int i = 0; i < COUNT; i += 4) {
        const uint4 v = static_cast<const uint4*>(from)[i / 4];
        word[i] = v.x, word[i + 1] = v.y, word[i + 2] = v.z, word[i + 3] = v.w;
      }
    } else if constexpr (COUNT == 2) {
      const uint2 v = *static_cast<const uint2*>(from);
      word[0] = v.x, word[1] = v.y;
    } else {
      word[0] = *static_cast<const uint32_t*>(from);
    }
  }
};

static __device__ __forceinline__ float byte_to_float(uint32_t word, int byte, float zero = 8388608.0f) {
  return __uint_as_float(permute(word, 0x4b000000u, 0x7440u | (uint32_t)byte)) - zero;
}
/** 2^(e - 127); 0 for e = 0, and an infinity for NaN, whose codes are zeros. */
static __device__ __forceinline__ float power_of_two(uint32_t word, int byte) {
  return __uint_as_float((byte == 3 ? word >> 1 : word << (23 - 8 * byte)) & 0x7f800000u);
}

/** Where the parts of a record lie, and a lane's scales, of type ST, and zeros. For each g = lane /
 * 4: scales [row][each], Q4K [unit][row], E8M0 [row][unit], Q6K, Q2K and E4M3 [row][half unit];
 * then Q4K's minima [row][unit] and factors [row]; Q6K's and Q2K's factors [row]; MINIMA's minima
 * [row][unit]; zeros [row][each]. */
template <int CODES, int SCALES, class ST, bool ZEROS> struct packed_record {
  static constexpr int ROWS = packed_form<CODES>::LANE_ROWS;
  static constexpr int EACH = SCALES == SCALES_UNIT || SCALES == SCALES_MINIMA ? 4 : SCALES == SCALES_PAIR ? 2 : 1;
  static constexpr int WORDS = SCALES == SCALES_Q4K        ? 4
                               : SCALES == SCALES_E8M0     ? ROWS
                               : packed_is_split(SCALES)   ? 2 * ROWS
                                                           : (ROWS * EACH * (int)sizeof(ST) + 3) / 4;
  static constexpr int ZERO_WORDS = ZEROS ? (ROWS * EACH + 3) / 4 : 1;
  static constexpr int SCALES_AT = packed_form<CODES>::CODE_BYTES, MINIMA_AT = SCALES_AT + 32 * WORDS, ZEROS_AT = MINIMA_AT;
  static constexpr int FACTORS_AT = MINIMA_AT + (SCALES == SCALES_Q4K ? 128 : 0);
  static constexpr int REST = SCALES == SCALES_Q4K || SCALES == SCALES_MINIMA ? 256
                              : SCALES == SCALES_Q6K                          ? 16 * ROWS
                              : SCALES == SCALES_Q2K                          ? 32 * ROWS
                              : ZEROS                                         ? 32 * ZERO_WORDS
                                                                              : 0;
  static constexpr int BYTES = MINIMA_AT + REST;

  scale_words<WORDS> words;
  scale_words<ZERO_WORDS> zeros;

  __device__ __forceinline__ void load(const uint8_t* record, int g) {
    words.load(record + SCALES_AT + g * WORDS * 4);
    if (ZEROS)
      zeros.load(record + ZEROS_AT + g * ZERO_WORDS * 4);
  }
  static __device__ __forceinline__ int place(int row, int unit) { return row * EACH + (EACH == 4 ? unit : EACH == 2 ? unit / 2 : 0); }
  __device__ __forceinline__ float scale(int row, int unit) const {
    if constexpr (SCALES == SCALES_Q4K)
      return byte_to_float(words.word[unit], row);
    else if constexpr (SCALES == SCALES_Q6K) /* `unit`: half a one */
      return byte_to_float(words.word[row * 2 + unit / 4], unit % 4, 8388608.0f + 128.0f);
    else if constexpr (SCALES == SCALES_Q2K)
      return byte_to_float(words.word[row * 2 + unit / 4] & 0x0f0f0f0fu, unit % 4);
    else if constexpr (SCALES == SCALES_E8M0)
      return power_of_two(words.word[row], unit);
    else if constexpr (sizeof(ST) == 4)
      return __uint_as_float(words.word[place(row, unit)]);
    else
      return half_of_word<ST>(words.word[place(row, unit) / 2], place(row, unit) % 2);
  }
  /** The 6-bit scales of a matrix's two rows in a unit, in f16. */
  __device__ __forceinline__ uint32_t small_scales(int matrix, int unit) const {
    return add_two(permute(words.word[unit], 0x64646464u, matrix ? 0x4342u : 0x4140u), 0xe400e400u);
  }
  /** The e4m3 scales of a row in both halves of a unit, as unpack_e2m1_scaled takes them; the code
   * of NaN is 480. */
  template <class T> __device__ __forceinline__ uint32_t two_scales(int row, int unit) const {
    uint32_t two, more;
    const uint32_t word = words.word[row * 2 + unit / 2];
    unpack_f8<T, PACKED_E4M3>(two, more, unit % 2 ? word >> 16 : word);
    return is_bf16<T>::value ? multiply_add_two<bf16>(two, 0x7a807a80u, 0x80008000u) : multiply_two(two, 0x5c005c00u);
  }
  __device__ __forceinline__ uint32_t zero(int row, int unit) const {
    return zeros.word[place(row, unit) / 4] >> place(row, unit) % 4 * 8 & 255u;
  }
};

/** Groups of a block's tiles; the first tile of one. */
static __host__ __device__ __forceinline__ constexpr int64_t packed_groups(int64_t tiles) { return tiles < 4 ? tiles : 4; }
static __host__ __device__ __forceinline__ constexpr int64_t packed_first_tile(int64_t group, int64_t tiles) { return tiles * group / packed_groups(tiles); }

/** A weight's tiles, filled up to whole blocks. */
static __host__ __device__ __forceinline__ int64_t packed_tiles(int64_t n, int rows, int64_t block_tiles) {
  return (n + rows * block_tiles - 1) / (rows * block_tiles) * block_tiles;
}

/** Which record belongs to a tile and step. */
static __host__ __device__ __forceinline__ int64_t packed_place(int64_t tile, int64_t step, int64_t steps, int64_t block_tiles) {
  const int64_t in_block = tile % block_tiles;
  int64_t group = 0;
  while (packed_first_tile(group + 1, block_tiles) <= in_block)
    group++;
  const int64_t first = packed_first_tile(group, block_tiles), tiles = packed_first_tile(group + 1, block_tiles) - first;
  return (tile - in_block + first) * steps + step * tiles + in_block - first;
}

/** E4M3: a float of each row, behind the records. */
static __device__ __forceinline__ const float* packed_factors(const uint8_t* w, int64_t tiles, int64_t steps, int record_bytes) {
  return reinterpret_cast<const float*>(w + tiles * steps * record_bytes);
}

// ---- The product --------------------------------------------------------------------------------

template <class T, class C, class BIAS> struct packed_arguments {
  const T* x;
  const uint8_t* w;
  const BIAS* bias;
  const C* residual;
  C* c;
  int64_t m, n, k, ldx, ldc, ld_residual;
};

/** An element is scale times its code's float, less the least. */
struct packed_line {
  float scale, least;
};

/** A tile's part in a product with COLUMNS * 8 rows of x. */
template <class T, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS> struct packed_tile {
  typedef packed_form<CODES> form;
  typedef packed_record<CODES, SCALES, ST, ZEROS> record_t;
  static constexpr int MATRICES = form::MATRICES;
  static constexpr bool HAS_MINIMA = SCALES == SCALES_Q4K || SCALES == SCALES_Q2K || SCALES == SCALES_MINIMA;
  static constexpr bool IS_SPLIT = packed_is_split(SCALES);
  /* Scales of a step are multiplied by a factor of it. */
  static constexpr bool HAS_FACTORS = SCALES == SCALES_Q4K || SCALES == SCALES_Q6K || SCALES == SCALES_Q2K;
  /* In f16 small scales are multiplied into codes, and sums of a whole step are scaled at once. */
  static constexpr bool FOLDED = SCALES == SCALES_Q4K && !is_bf16<T>::value;
  /* Scales are multiplied into codes, and nothing is scaled. */
  static constexpr bool DIRECT = SCALES == SCALES_E4M3;
  /* Operands that sums of x are. */
  static constexpr int SUMS = SCALES == SCALES_Q2K ? 2 : 1;
  /* Units whose sums have a scale in common. */
  static constexpr int TOGETHER = FOLDED || SCALES == SCALES_STEP ? 4 : SCALES == SCALES_PAIR ? 2 : 1;

  struct sums {
    float at[MATRICES][COLUMNS][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
      for (int i = 0; i < MATRICES * COLUMNS * 4; i++)
        at[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4] = 0.0f;
    }
  };

  static __device__ __forceinline__ void unpack(uint32_t (&a)[2][4], const packed_unit<CODES>& codes, int matrix, const record_t& s, int unit) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = matrix * 2 + half;
      uint32_t pair[4];
      if constexpr (form::BYTES) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          if constexpr (CODES == PACKED_S8 && ZEROS)
            unpack_u8<T>(pair[2 * i], pair[2 * i + 1], codes.low[half * 2 + i], s.zero(row, unit));
          else if constexpr (CODES == PACKED_S8)
            unpack_s8<T>(pair[2 * i], pair[2 * i + 1], codes.low[half * 2 + i]);
          else
            unpack_f8<T, CODES>(pair[2 * i], pair[2 * i + 1], codes.low[half * 2 + i]);
        }
      } else if constexpr (DIRECT) {
        unpack_e2m1_scaled<T>(pair, codes.low[row], s.template two_scales<T>(row, unit));
      } else if constexpr (CODES == PACKED_E2M1) {
        unpack_e2m1<T>(pair, codes.low[row]);
      } else if constexpr (CODES == PACKED_IQ4) {
        unpack_iq4<T>(pair, codes.low[row]);
      } else if constexpr (FOLDED) {
        unpack_scaled(pair, codes, row, s.small_scales(matrix, unit), half);
      } else {
        packed_zero<T> z;
        z.set(ZEROS ? s.zero(row, unit) : (uint32_t)form::ZERO);
        packed_integers<T>::unpack(pair, codes, row, z);
      }
      a[0][half] = pair[0], a[0][2 + half] = pair[1], a[1][half] = pair[2], a[1][2 + half] = pair[3];
    }
  }

  static __device__ __forceinline__ void scale_in(sums& to, const sums& part, const record_t& s, int unit) {
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float scale = s.scale(i * 2 + half, unit);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; e++)
            to.at[i][j][e] = fmaf(part.at[i][j][e], scale, to.at[i][j][e]);
        }
      }
    }
  }

  /* For minima: b-operands of a step that hold sums of x, as lanes read them: [column][n][lane]. */
  static constexpr int SUM_BYTES = HAS_MINIMA ? COLUMNS * SUMS * 32 * 8 : 0;

  /** For minima: sums of x over a unit of a step (of a half: one operand for the lower halves, one
   * for the upper), each as the three bf16 that it is the sum of: rows 4 p + u of a b-operand have
   * part p of unit u. x as an a-operand, of which it does not matter what is which k, times ones
   * gives a sum to each lane of its row; lane t stores part t. */
  static __device__ __forceinline__ void sum_up(unsigned char* out, const uint4* x, int unit, int lane) {
    const int g = lane / 4, t = lane % 4;
    const uint32_t one = is_bf16<T>::value ? 0x3f803f80u : 0x3c003c00u, b[2] = {one, one};
    unsigned char* const own = out + (g * 4 + t % 2 * 2 + unit / 2) * 8 + t / 2 * 4 + unit % 2 * 2;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const uint4 v = x[(unit * COLUMNS + j) * 32];
      /* of a unit that is split, rows g have the lower half, and g + 8 the upper one */
      const uint32_t a[4] = {v.x, IS_SPLIT ? v.z : v.y, IS_SPLIT ? v.y : v.z, v.w};
      float sum[4];
      multiply<T>(sum, a, b);
#pragma unroll
      for (int n = 0; n < SUMS; n++) {
        /* a power of two */
        float rest = (SUMS == 2 ? sum[2 * n] : sum[0] + sum[2]) * (1.0f / packed_factor<T, CODES, SCALES>());
        uint32_t part = 0;
#pragma unroll
        for (int i = 0; i < 3; i++) {
          const uint32_t upper = __float_as_uint(rest) & 0xffff0000u;
          rest -= __uint_as_float(upper);
          part = t == i ? upper : part;
        }
        *reinterpret_cast<uint16_t*>(own + (j * SUMS + n) * 256) = (uint16_t)(part >> 16);
      }
    }
  }

  /** Minima of two units of a row, as the product with sums of x takes them: 128 + minimum, less
   * 128. */
  static __device__ __forceinline__ uint32_t small_minima(uint32_t bytes, uint32_t which) {
    return multiply_add_two<bf16>(permute(bytes, 0x43434343u, which), 0x3f803f80u, 0xc300c300u);
  }

  static constexpr int MINIMA = SCALES == SCALES_Q4K ? 1 : 2; /* operands that minima are */

  /** Minima of a matrix as a-operands, which meet sums of x. */
  static __device__ __forceinline__ void minima_of(uint32_t (&a)[MINIMA][4], const scale_words<SCALES == SCALES_MINIMA ? 8 : 4>& minima, const record_t& s, int matrix, int t) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = matrix * 2 + half;
      if constexpr (SCALES == SCALES_Q4K) {
        a[0][half] = small_minima(minima.word[row], t % 2 ? 0x4342u : 0x4140u);
      } else if constexpr (SCALES == SCALES_Q2K) {
        /* halves of units 2 (t % 2) and the one after it */
        const uint32_t bytes = (t % 2 ? s.words.word[row * 2 + 1] : s.words.word[row * 2]) >> 4 & 0x0f0f0f0fu;
        a[0][half] = small_minima(bytes, 0x4240u), a[1][half] = small_minima(bytes, 0x4341u);
      } else {
        /* f16 as two bf16 that it is the sum of */
        const uint32_t two = t % 2 ? minima.word[row * 2 + 1] : minima.word[row * 2];
        const float first = half_of_word<f16>(two, 0), second = half_of_word<f16>(two, 1);
        const uint32_t upper[2] = {__float_as_uint(first) & 0xffff0000u, __float_as_uint(second) & 0xffff0000u};
        a[0][half] = upper[0] >> 16 | upper[1];
        a[1][half] = __float_as_uint(first - __uint_as_float(upper[0])) >> 16 | (__float_as_uint(second - __uint_as_float(upper[1])) & 0xffff0000u);
      }
#pragma unroll
      for (int i = 0; i < MINIMA; i++)
        a[i][half + 2] = a[i][half];
    }
  }

  /** to += d * part - dmin * (minima times sums of x), or part + these. */
  static __device__ __forceinline__ void end_step(sums& to, const sums& part, const uint8_t* record, const record_t& s, const uint2* x_sums, int lane) {
    const int g = lane / 4;
    constexpr int FACTOR_WORDS = SCALES == SCALES_Q6K ? record_t::ROWS / 2 : record_t::ROWS, MINIMA_WORDS = SCALES == SCALES_MINIMA ? 8 : 4;
    scale_words<FACTOR_WORDS> factors;
    if constexpr (HAS_FACTORS)
      factors.load(record + record_t::FACTORS_AT + g * FACTOR_WORDS * 4);
    scale_words<MINIMA_WORDS> minima;
    if constexpr (SCALES == SCALES_Q4K || SCALES == SCALES_MINIMA)
      minima.load(record + record_t::MINIMA_AT + g * MINIMA_WORDS * 4);
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
      uint32_t a[MINIMA][4];
      if constexpr (HAS_MINIMA)
        minima_of(a, minima, s, i, lane % 4);
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        float least[4];
        if constexpr (HAS_MINIMA) {
          const uint2 first = x_sums[j * SUMS * 32], last = x_sums[(j * SUMS + SUMS - 1) * 32];
          const uint32_t b[2][2] = {{first.x, first.y}, {last.x, last.y}};
          multiply<bf16>(least, a[0], b[0]);
          if constexpr (MINIMA == 2)
            multiply_add<bf16>(least, a[1], b[1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int row = i * 2 + e / 2;
          float& sum = to.at[i][j][e];
          if constexpr (SCALES == SCALES_MINIMA)
            sum += least[e];
          else if constexpr (SCALES == SCALES_Q6K)
            sum = fmaf(part.at[i][j][e], half_of_word<f16>(factors.word[row / 2], row % 2), sum);
          else if constexpr (HAS_FACTORS)
            sum = fmaf(-least[e], half_of_word<f16>(factors.word[row], 1), fmaf(part.at[i][j][e], half_of_word<f16>(factors.word[row], 0), sum));
        }
      }
    }
  }

  /** How the floats of unpack() become elements of a row: of the lower or upper four of a lane. */
  static __device__ __forceinline__ packed_line line_of(const uint8_t* record, const record_t& s, int g, int row, int unit, int part) {
    if constexpr (DIRECT)
      return {packed_factor<T, CODES, SCALES>(), 0.0f};
    const float scale = s.scale(row, IS_SPLIT ? unit * 2 + part : unit) * packed_factor<T, CODES, SCALES>();
    if constexpr (SCALES == SCALES_MINIMA)
      return {scale, -half_of_word<f16>(reinterpret_cast<const uint32_t*>(record + record_t::MINIMA_AT + g * 32)[row * 2 + unit / 2], unit % 2)};
    if constexpr (SCALES == SCALES_Q6K)
      return {scale * half_of_word<f16>(reinterpret_cast<const uint32_t*>(record + record_t::FACTORS_AT + g * 8)[row / 2], row % 2), 0.0f};
    if constexpr (SCALES == SCALES_Q4K || SCALES == SCALES_Q2K) {
      const uint32_t factor = reinterpret_cast<const uint32_t*>(record + record_t::FACTORS_AT + g * 16)[row];
      const uint32_t minimum = SCALES == SCALES_Q4K ? record[record_t::MINIMA_AT + g * 16 + row * 4 + unit] : record[record_t::SCALES_AT + g * 32 + row * 8 + unit * 2 + part] >> 4;
      return {half_of_word<f16>(factor, 0) * (FOLDED ? packed_factor<T, CODES, SCALES>() : scale), half_of_word<f16>(factor, 1) * (float)minimum};
    }
    return {scale, 0.0f};
  }

  /** to += record times a step of x, which lies as [unit][column][lane]; x and its sums from the
   * lane's place on. */
  static __device__ __forceinline__ void add(sums& to, const uint8_t* record, const uint4* x, const uint2* x_sums, int lane) {
    record_t s;
    s.load(record, lane / 4);
    sums part, upper, whole;
    whole.clear();
#pragma unroll
    for (int unit = 0; unit < 4; unit++) {
      packed_unit<CODES> codes;
      codes.load(record, unit, lane);
      uint32_t b[COLUMNS][2][2];
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        const uint4 v = x[(unit * COLUMNS + j) * 32];
        b[j][0][0] = v.x, b[j][0][1] = v.y, b[j][1][0] = v.z, b[j][1][1] = v.w;
      }
#pragma unroll
      for (int i = 0; i < MATRICES; i++) {
        uint32_t a[2][4];
        unpack(a, codes, i, s, unit);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          if constexpr (DIRECT) {
            multiply_add<T>(to.at[i][j], a[0], b[j][0]);
            multiply_add<T>(to.at[i][j], a[1], b[j][1]);
            continue;
          }
          if (unit % TOGETHER == 0)
            multiply<T>(part.at[i][j], a[0], b[j][0]);
          else
            multiply_add<T>(part.at[i][j], a[0], b[j][0]);
          if constexpr (IS_SPLIT)
            multiply<T>(upper.at[i][j], a[1], b[j][1]);
          else
            multiply_add<T>(part.at[i][j], a[1], b[j][1]);
        }
      }
      if constexpr (DIRECT) {
        continue;
      } else if constexpr (IS_SPLIT) {
        scale_in(HAS_FACTORS ? whole : to, part, s, unit * 2);
        scale_in(HAS_FACTORS ? whole : to, upper, s, unit * 2 + 1);
      } else if (!FOLDED && unit % TOGETHER == TOGETHER - 1) {
        scale_in(HAS_FACTORS ? whole : to, part, s, unit);
      }
    }
    if constexpr (HAS_FACTORS || HAS_MINIMA)
      end_step(to, FOLDED ? part : whole, record, s, x_sums, lane);
  }
};

/** Block `block` makes its tiles of the `all_tiles` of w, for rows of x from row0 on. With more
 * than two COLUMNS each group has one tile, and blocks may have more tiles than is left of w: these
 * are its last one again, and go nowhere. */
template <class T, class C, class BIAS, int ACTIVATION, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS, int TILES, int SLICES, int GROUPS>
static __device__ __forceinline__ void packed_product(const packed_arguments<T, C, BIAS>& p, unsigned char* shared, int64_t block, int64_t all_tiles, int64_t row0) {
  typedef packed_tile<T, CODES, SCALES, ST, ZEROS, COLUMNS> tile_t;
  typedef packed_window<T, COLUMNS, GROUPS, tile_t::IS_SPLIT> window_t;
  constexpr int ROWS = packed_form<CODES>::ROWS, RECORD = tile_t::record_t::BYTES, WARPS = SLICES * GROUPS, MOST = (TILES + GROUPS - 1) / GROUPS;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, shared_bytes;
  keep(warp), keep(lane);
  const int slice = warp % SLICES, group = warp / SLICES;
  const int first_tile = TILES * group / GROUPS, tiles = TILES * (group + 1) / GROUPS - first_tile;
  const int steps = (int)((p.k + PACKED_STEP_K - 1) / PACKED_STEP_K), begin = steps * slice / SLICES, end = steps * (slice + 1) / SLICES;

  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared_bytes));
  constexpr int X_AT = PACKED_BARRIER_BYTES, SUMS_AT = X_AT + PACKED_X_STEPS * SLICES * window_t::STEP_BYTES;
  constexpr int RING_AT = SUMS_AT + 2 * SLICES * tile_t::SUM_BYTES;
  const int fit = (int)(shared_bytes - RING_AT) / (WARPS * RECORD), most = PACKED_BARRIER_BYTES / 8 / WARPS, depth = fit < most ? fit : most;
  packed_ring<RECORD> ring;
  ring.lane = lane;
  static_assert(COLUMNS <= 2 || TILES == GROUPS, "tiles that are left out are whole streams");
  const int64_t stream = block * TILES + first_tile;
  ring.next = p.w + ((COLUMNS > 2 && stream >= all_tiles ? all_tiles - 1 : stream) * steps + begin * tiles) * RECORD;
  ring.left = (end - begin) * tiles;
  ring.begin(shared_address(shared) + RING_AT + warp * depth * RECORD, shared_address(shared) + warp * depth * 8, depth);
  wait_for_previous(); /* which may have made x */
  allow_next();

  window_t window;
  const uint32_t slice_x = shared_address(shared) + X_AT + slice * PACKED_X_STEPS * window_t::STEP_BYTES;
  window.begin(slice_x, group * 32 + lane, p.x + row0 * p.ldx, p.ldx, p.m - row0, p.k);
#pragma unroll 1
  for (int step = begin; step < begin + PACKED_X_STEPS - 1; step++) {
    if (step < end)
      window.bring(step);
    copy_commit();
  }
  ring.fill(); /* not before x, which would arrive behind all these */
  uint32_t lane_x = slice_x + lane * 16;
  keep(lane_x);
  unsigned char* const slice_sums = shared + SUMS_AT + 2 * slice * tile_t::SUM_BYTES;
  /* A slice's warps share the units of a step. */
  const auto sum_up = [&](int step) {
#pragma unroll
    for (int unit = group; unit < 4; unit += GROUPS)
      tile_t::sum_up(slice_sums + step % 2 * tile_t::SUM_BYTES, static_cast<const uint4*>(at_shared(lane_x + step % PACKED_X_STEPS * window_t::STEP_BYTES)), unit, lane);
  };
  if constexpr (tile_t::HAS_MINIMA) {
    copy_wait<PACKED_X_STEPS - 2>();
    meet<GROUPS>(slice);
    sum_up(begin);
  }

  typename tile_t::sums sums[MOST];
#pragma unroll
  for (int i = 0; i < MOST; i++)
    sums[i].clear();
#pragma unroll 1
  for (int step = begin; step < end; step++) {
    /* the next one, too, if it is summed up */
    copy_wait<PACKED_X_STEPS - (tile_t::HAS_MINIMA ? 3 : 2)>();
    meet<GROUPS>(slice);
    if (step + PACKED_X_STEPS - 1 < end)
      window.bring(step + PACKED_X_STEPS - 1);
    copy_commit();
    const uint4* const x = static_cast<const uint4*>(at_shared(lane_x + step % PACKED_X_STEPS * window_t::STEP_BYTES));
    if constexpr (tile_t::HAS_MINIMA) {
      if (step + 1 < end)
        sum_up(step + 1);
    }
    const uint2* const x_sums = reinterpret_cast<const uint2*>(slice_sums + step % 2 * tile_t::SUM_BYTES) + lane;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
      if (TILES % GROUPS != 0 && i == MOST - 1 && i >= tiles)
        break;
      tile_t::add(sums[i], ring.wait(), x, x_sums, lane);
      ring.release();
    }
  }
  __syncthreads();
  const int g = lane / 4, t = lane % 4;
  /* sums[slice][column of x][row of w] */
  constexpr int BLOCK_ROWS = TILES * ROWS, STEP = BLOCK_ROWS + 4;
  float* const out = reinterpret_cast<float*>(shared + PACKED_BARRIER_BYTES);
#pragma unroll
  for (int tile = 0; tile < MOST; tile++) {
    if (tile >= tiles)
      break;
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
          out[(slice * COLUMNS * 8 + j * 8 + t * 2 + e % 2) * STEP + (first_tile + tile) * ROWS + i * 16 + e / 2 * 8 + g] = sums[tile].at[i][j][e];
      }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < BLOCK_ROWS * COLUMNS * 8; at += WARPS * 32) {
    const int row = at % BLOCK_ROWS, column = at / BLOCK_ROWS;
    const int64_t n = block * BLOCK_ROWS + row, m = row0 + column;
    if (n >= p.n || m >= p.m)
      continue;
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < SLICES; i++)
      value += out[(i * COLUMNS * 8 + column) * STEP + row];
    if constexpr (SCALES == SCALES_E4M3)
      value *= packed_factors(p.w, all_tiles, steps, RECORD)[n];
    value = value * packed_factor<T, CODES, SCALES>() + (p.bias ? to_float(p.bias[n]) : 0.0f);
    value = activate_as<C>(value, ACTIVATION);
    p.c[m * p.ldc + n] = from_float<C>(p.residual ? value + to_float(p.residual[m * p.ld_residual + n]) : value);
  }
}

// ---- Products of groups of rows -----------------------------------------------------------------

/** Rows ends[e - 1] up to ends[e] of x by matrix e, as a mixture of experts takes them. x of the
 * grid walks tiles of COLUMNS * 8 rows, each of one matrix: rows / (COLUMNS * 8) + matrices + 1 of
 * them are enough; y blocks of w. A matrix is `matrix_bytes` behind the one before it, and is not
 * read if it has no rows. Rows behind the last end become zeros. */
template <class T, class C, class INDEX, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS, int TILES, int SLICES, int GROUPS>
static __device__ __forceinline__ void packed_groups_product(packed_arguments<T, C, C> p, unsigned char* shared, const INDEX* ends, int64_t ends_step,
                                                             int64_t matrices, int64_t matrix_bytes) {
  wait_for_previous();
  allow_next();
  const group_t g = find_group(ends, ends_step, matrices, p.m, blockIdx.x, COLUMNS * 8);
  if (g.begin >= g.end)
    return;
  p.x += g.begin * p.ldx, p.c += g.begin * p.ldc, p.m = g.end - g.begin;
  if (g.matrix < matrices) {
    typedef packed_record<CODES, SCALES, ST, ZEROS> record_t;
    const int64_t steps = (p.k + PACKED_STEP_K - 1) / PACKED_STEP_K;
    const int64_t tile_bytes = steps * record_t::BYTES + (SCALES == SCALES_E4M3 ? 4 * packed_form<CODES>::ROWS : 0);
    const int64_t all_tiles = COLUMNS > 2 ? matrix_bytes / tile_bytes : (int64_t)gridDim.y * TILES;
    p.w += g.matrix * matrix_bytes;
    packed_product<T, C, C, NONE, CODES, SCALES, ST, ZEROS, COLUMNS, TILES, SLICES, GROUPS>(p, shared, blockIdx.y, all_tiles, 0);
    return;
  }
  constexpr int BLOCK_ROWS = TILES * packed_form<CODES>::ROWS;
  for (int at = threadIdx.x; at < BLOCK_ROWS * p.m; at += SLICES * GROUPS * 32) {
    const int64_t n = (int64_t)blockIdx.y * BLOCK_ROWS + at % BLOCK_ROWS;
    if (n < p.n)
      p.c[at / BLOCK_ROWS * p.ldc + n] = from_float<C>(0.0f);
  }
}

// ---- The weight itself, for products of many rows -----------------------------------------------

/** All of w as T, [n, k]: each warp a record at a time. */
template <class T, int CODES, int SCALES, class ST, bool ZEROS>
static __device__ __forceinline__ void packed_dequantize(const uint8_t* w, T* out, int64_t n, int64_t k, int64_t block_tiles) {
  typedef packed_tile<T, CODES, SCALES, ST, ZEROS, 1> tile_t;
  typedef typename tile_t::record_t record_t;
  constexpr int ROWS = packed_form<CODES>::ROWS, MATRICES = packed_form<CODES>::MATRICES;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t steps = (k + PACKED_STEP_K - 1) / PACKED_STEP_K, tiles = packed_tiles(n, ROWS, block_tiles);
  const int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
  const bool wide = k % 8 == 0 && is_aligned(out, 16);
#pragma unroll 1
  for (int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; at < tiles * steps; at += warps) {
    const int64_t tile = at / steps, step = at % steps;
    const uint8_t* const record = w + packed_place(tile, step, steps, block_tiles) * record_t::BYTES;
    record_t s;
    s.load(record, g);
#pragma unroll 1
    for (int unit = 0; unit < 4; unit++) {
      packed_unit<CODES> codes;
      codes.load(record, unit, lane);
#pragma unroll
      for (int i = 0; i < MATRICES; i++) {
        uint32_t a[2][4];
        tile_t::unpack(a, codes, i, s, unit);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int row = i * 2 + half;
          const uint32_t pair[4] = {a[0][half], a[0][2 + half], a[1][half], a[1][2 + half]};
          const int64_t r = tile * ROWS + row * 8 + g, first = step * PACKED_STEP_K + unit * 32;
          if (r >= n)
            continue;
#pragma unroll
          for (int part = 0; part < 2; part++) { /* four elements side by side */
            packed_line line = tile_t::line_of(record, s, g, row, unit, part);
            if constexpr (SCALES == SCALES_E4M3)
              line.scale *= packed_factors(w, tiles, steps, record_t::BYTES)[r];
            const int64_t column = first + packed_k(SCALES, t, part * 4);
            uint32_t word[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
              const uint32_t two = pair[part * 2 + e];
              word[e] = pack_two<T>(half_of_word<T>(two, 0) * line.scale - line.least, half_of_word<T>(two, 1) * line.scale - line.least);
            }
            if (wide && column < k) {
              *reinterpret_cast<uint2*>(out + r * k + column) = {word[0], word[1]};
              continue;
            }
            for (int e = 0; e < 4; e++) {
              if (column + e < k)
                out[r * k + column + e] = from_float<T>(half_of_word<T>(word[e / 2], e % 2));
            }
          }
        }
      }
    }
  }
}

// ---- Rows as floats -----------------------------------------------------------------------------

/** Element k of a row, as the layout has it; not of codes that are floats. */
template <int CODES, int SCALES, class ST, bool ZEROS>
static __device__ __forceinline__ float packed_value(const uint8_t* w, int64_t row, int64_t k, int64_t steps, int64_t block_tiles) {
  typedef packed_tile<bf16, CODES, SCALES, ST, ZEROS, 1> tile_t;
  typedef typename tile_t::record_t record_t;
  const int in_tile = (int)(row % packed_form<CODES>::ROWS), own = in_tile / 8, g = in_tile % 8, at = (int)(k % PACKED_STEP_K), unit = at / 32, in_unit = at % 32;
  const int t = tile_t::IS_SPLIT ? in_unit % 16 / 4 : in_unit / 8, e = tile_t::IS_SPLIT ? in_unit / 16 * 4 + in_unit % 4 : in_unit % 8;
  const uint8_t* const record = w + packed_place(row / packed_form<CODES>::ROWS, k / PACKED_STEP_K, steps, block_tiles) * record_t::BYTES;
  record_t s;
  s.load(record, g);
  packed_unit<CODES> codes;
  codes.load(record, unit, g * 4 + t);
  const int zero = ZEROS ? (int)s.zero(own, unit) - (CODES == PACKED_S8 ? 128 : 0) : packed_form<CODES>::ZERO;
  const packed_line line = tile_t::line_of(record, s, g, own, unit, e / 4);
  return (float)(codes.integer(own, e) - zero) * line.scale - line.least;
}

/** Rows that an index picks; one that is none gives zeros. */
template <class OUT, class INDEX, int CODES, int SCALES, class ST, bool ZEROS>
static __device__ __forceinline__ void packed_rows(const uint8_t* w, const INDEX* index, OUT* out, int64_t n, int64_t k, int64_t rows, int64_t block_tiles) {
  const int64_t steps = (k + PACKED_STEP_K - 1) / PACKED_STEP_K, total = rows * k;
  for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += (int64_t)gridDim.x * blockDim.x) {
    const int64_t row = (int64_t)index[at / k];
    const bool is_there = row >= 0 && row < n;
    out[at] = from_float<OUT>(is_there ? packed_value<CODES, SCALES, ST, ZEROS>(w, row, at % k, steps, block_tiles) : 0.0f);
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_PACKED_ROWS(ENTRY, OUT, INDEX, CODES, SCALES, ST, ZEROS)                                                        \
  extern "C" __global__ void __launch_bounds__(256)                                                                             \
      ENTRY(const uint8_t* w, const INDEX* index, OUT* out, int64_t n, int64_t k, int64_t rows, int64_t tiles) {                \
    accrt_cuda::wait_for_previous();                                                                                            \
    accrt_cuda::allow_next();                                                                                                   \
    accrt_cuda::packed_rows<OUT, INDEX, accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS>(w, index, out, n, k, rows, tiles);     \
  }

#define ACCRT_CUDA_PACKED(ENTRY, T, C, BIAS, ACTIVATION, CODES, SCALES, ST, ZEROS, COLUMNS, TILES, SLICES, GROUPS)                 \
  extern "C" __global__ void __launch_bounds__((SLICES) * (GROUPS) * 32, 1)                                                     \
      ENTRY(const T* x, const uint8_t* w, const BIAS* bias, const C* residual, C* c, int64_t m, int64_t n, int64_t k, int64_t ldx, \
            int64_t ldc, int64_t ld_residual) {                                                                                 \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                                              \
    const accrt_cuda::packed_arguments<T, C, BIAS> p = {x, w, bias, residual, c, m, n, k, ldx, ldc, ld_residual};                \
    accrt_cuda::packed_product<T, C, BIAS, accrt_cuda::ACTIVATION, accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS, COLUMNS,    \
                               TILES, SLICES, GROUPS>(p, accrt_shared, blockIdx.x, (int64_t)gridDim.x * (TILES), (int64_t)blockIdx.y * (COLUMNS) * 8); \
  }

#define ACCRT_CUDA_PACKED_GROUPED(ENTRY, T, C, INDEX, CODES, SCALES, ST, ZEROS, COLUMNS, TILES, SLICES, GROUPS)                     \
  extern "C" __global__ void __launch_bounds__((SLICES) * (GROUPS) * 32, 1)                                                     \
      ENTRY(const T* x, const uint8_t* w, const INDEX* ends, C* out, int64_t rows, int64_t n, int64_t k, int64_t matrices,      \
            int64_t x_row, int64_t out_row, int64_t ends_step, int64_t matrix_bytes) {                                          \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                                              \
    const accrt_cuda::packed_arguments<T, C, C> p = {x, w, nullptr, nullptr, out, rows, n, k, x_row, out_row, 0};                \
    accrt_cuda::packed_groups_product<T, C, INDEX, accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS, COLUMNS, TILES, SLICES,     \
                                      GROUPS>(p, accrt_shared, ends, ends_step, matrices, matrix_bytes);                        \
  }

#define ACCRT_CUDA_PACKED_DEQUANTIZE(ENTRY, T, CODES, SCALES, ST, ZEROS)                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                                             \
      ENTRY(const uint8_t* w, T* out, int64_t n, int64_t k, int64_t tiles) {                                                    \
    accrt_cuda::wait_for_previous();                                                                                            \
    accrt_cuda::allow_next();                                                                                                   \
    accrt_cuda::packed_dequantize<T, accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS>(w, out, n, k, tiles);                     \
  }
#endif
