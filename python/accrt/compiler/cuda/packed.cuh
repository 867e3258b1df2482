/* packed.cuh - products of a few rows with a weight that stays packed: c = activation(x @ w^T +
 * bias) + residual.
 *
 * x is [m, k] of f16 or bf16, w [n, k] in 4 or 8 bits, rearranged by packed_prepare.cuh. What it
 * costs is reading w once, so all is made for that: each warp has records of w on their way through
 * a ring of its own in shared memory, w is the a-operand of the tensor core's product (its rows are
 * the product's rows), and scales are multiplied into sums of f32, not into weights. Codes become
 * 16-bit floats without error; products accumulate in f32 over ascending k within a slice, slices
 * are added in order.
 *
 * A *tile* is 32 rows of w for 4-bit codes and 16 for 8-bit ones, a *step* 128 of k. A *record* is
 * what belongs to both: codes, their scales, their zeros. Its codes are four *units* of 32 k: 512
 * bytes, 16 of each lane; lane 4 g + t holds k = 8 t .. 8 t + 7 of rows g, g + 8 (and g + 16, g +
 * 24).
 *
 * A block has SLICES x GROUPS warps: each a slice of k and a group of the block's tiles. The
 * scheduler that a warp belongs to is its number modulo 4, its slice is its number modulo SLICES:
 * schedulers have even shares, though groups have not. Records lie as [block][group][step] [tile]:
 * what a warp reads is one stream. Warps of a slice share its x, in shared memory in the order in
 * which lanes read it. */
#ifndef ACCRT_CUDA_PACKED_CUH_
#define ACCRT_CUDA_PACKED_CUH_

#include "tensorcore.cuh"

namespace accrt_cuda {

/* U4: q - 8, or q - z where there are zeros; Q4K: q alone. E2M1: 2^-14 of the value in f16, the
 * value in bf16. */
enum packed_codes { PACKED_U4, PACKED_Q4, PACKED_E2M1, PACKED_S8, PACKED_E4M3, PACKED_E5M2 };
/* STEP, PAIR, UNIT: a scale for each row and step, two units, one; Q4K: 8-bit scales and minima for
 * each unit, with f16 factors; E8M0: powers of two for each unit. */
enum packed_scales { SCALES_STEP, SCALES_PAIR, SCALES_UNIT, SCALES_Q4K, SCALES_E8M0 };

constexpr int PACKED_STEP_K = 128;
constexpr int PACKED_CODE_BYTES = 2048; /* of a record */

template <int CODES> struct packed_form {
  static constexpr bool BYTES = CODES == PACKED_S8 || CODES == PACKED_E4M3 || CODES == PACKED_E5M2;
  static constexpr int MATRICES = BYTES ? 1 : 2; /* of 16 rows in a tile */
  static constexpr int ROWS = 16 * MATRICES;
  static constexpr int LANE_ROWS = 2 * MATRICES;
};

// ---- Codes to 16-bit floats ---------------------------------------------------------------------

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

/** One of two 16-bit floats, twice. */
static __device__ __forceinline__ uint32_t one_of(uint32_t two, int which) {
  uint32_t y;
  if (which)
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; mov.b32 %0, {b, b}; }" : "=r"(y) : "r"(two));
  else
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %1; mov.b32 %0, {a, a}; }" : "=r"(y) : "r"(two));
  return y;
}

/** Eight 4-bit codes times one of two 6-bit scales: 2^-24 of the products, exactly, as bits of a
 * code alone are 2^-24 of it. */
static __device__ __forceinline__ void unpack_scaled(uint32_t (&out)[4], uint32_t w, uint32_t scales, int which) {
  const uint32_t v = w >> 8, scale = one_of(scales, which), sixteenth = one_of(multiply_two(scales, 0x2c002c00u), which);
  out[0] = multiply_two(w & 0x000f000fu, scale);
  out[1] = multiply_two(w & 0x00f000f0u, sixteenth);
  out[2] = multiply_two(v & 0x000f000fu, scale);
  out[3] = multiply_two(v & 0x00f000f0u, sixteenth);
}

/** Eight e2m1 codes, their bits placed as packed_prepare.cuh has it: in f16 the first two pairs are
 * one shift away. */
template <class T> static __device__ __forceinline__ void unpack_e2m1(uint32_t (&out)[4], uint32_t w);
template <> __device__ __forceinline__ void unpack_e2m1<f16>(uint32_t (&out)[4], uint32_t w) {
  out[0] = w & 0x8e008e00u;
  out[1] = (w << 3) & 0x8e008e00u;
  /* 66: six bits on for exponents, one for signs */
  out[2] = ((w & 0x40384038u) * 66u) & 0x8e008e00u;
  out[3] = ((w & 0x20072007u) * 516u) & 0x8e008e00u;
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

/** What the sums are to be multiplied by beside the scales. */
template <class T, int CODES> static __device__ __forceinline__ constexpr float packed_factor() {
  return is_bf16<T>::value ? 1.0f : CODES == PACKED_E2M1 ? 16384.0f : CODES == PACKED_E4M3 ? 256.0f : CODES == PACKED_Q4 ? 16777216.0f : 1.0f;
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

static __device__ __forceinline__ float byte_to_float(uint32_t word, int byte) {
  return __uint_as_float(permute(word, 0x4b000000u, 0x7440u | (uint32_t)byte)) - 8388608.0f;
}
/** 2^(e - 127); 0 for e = 0, and an infinity for NaN, whose codes are zeros. */
static __device__ __forceinline__ float power_of_two(uint32_t word, int byte) {
  return __uint_as_float((byte == 3 ? word >> 1 : word << (23 - 8 * byte)) & 0x7f800000u);
}

/** Where the parts of a record lie, and a lane's scales, of type ST, and zeros. For each g = lane /
 * 4: scales [row][each], Q4K [unit][row], E8M0 [row][unit]; then Q4K's minima [row][unit] and
 * factors [row]; zeros [row][each]. */
template <int CODES, int SCALES, class ST, bool ZEROS> struct packed_record {
  static constexpr int ROWS = packed_form<CODES>::LANE_ROWS;
  static constexpr int EACH = SCALES == SCALES_UNIT ? 4 : SCALES == SCALES_PAIR ? 2 : 1;
  static constexpr int WORDS = SCALES == SCALES_Q4K    ? 4
                               : SCALES == SCALES_E8M0 ? ROWS
                                                       : (ROWS * EACH * (int)sizeof(ST) + 3) / 4;
  static constexpr int ZERO_WORDS = ZEROS ? (ROWS * EACH + 3) / 4 : 1;
  static constexpr int SCALES_AT = PACKED_CODE_BYTES, MINIMA_AT = SCALES_AT + 32 * WORDS, FACTORS_AT = MINIMA_AT + 128, ZEROS_AT = MINIMA_AT;
  static constexpr int BYTES = MINIMA_AT + (SCALES == SCALES_Q4K ? 256 : ZEROS ? 32 * ZERO_WORDS : 0);

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
  __device__ __forceinline__ uint32_t zero(int row, int unit) const {
    return zeros.word[place(row, unit) / 4] >> place(row, unit) % 4 * 8 & 255u;
  }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PACKED_WAIT "mbarrier.try_wait.parity"
#define PACKED_ARRIVALS 1
#else
#define PACKED_WAIT "mbarrier.test_wait.parity"
#define PACKED_ARRIVALS 32
#endif

/** Lets the compiler forget where a number comes from, so that it keeps it instead of finding it
 * again and again. */
static __device__ __forceinline__ void keep(uint32_t& number) { asm("" : "+r"(number)); }
template <class P> static __device__ __forceinline__ void keep(P*& pointer) { asm("" : "+l"(pointer)); }
static __device__ __forceinline__ void* at_shared(uint32_t address) { return __cvta_shared_to_generic(address); }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/** Whether this is the one lane of the warp. */
static __device__ __forceinline__ bool elected() {
  uint32_t is;
  asm volatile("{\n"
               ".reg .pred p;\n"
               "elect.sync _|p, 0xffffffff;\n"
               "selp.u32 %0, 1, 0, p;\n"
               "}"
               : "=r"(is));
  return is != 0;
}
#endif

/** One warp's records on their way through its ring. From sm_90 on one lane asks for a record,
 * before that each lane for its part. */
template <int BYTES> struct packed_ring {
  const uint8_t* next;        /* the record to be asked for next */
  uint32_t left, lane;        /* records to ask for */
  uint32_t slot, barrier;     /* where the record in use lies, and what shows that it has arrived */
  uint32_t end, depth, phase; /* behind the last slot; how often all slots were used, modulo 2 */

  /** Asks for the first record. */
  __device__ __forceinline__ void begin(uint32_t slots, uint32_t barriers, uint32_t count) {
    slot = slots, barrier = barriers, depth = count, end = slots + count * BYTES, phase = 0;
    if (lane == 0) {
#pragma unroll 1
      for (uint32_t i = 0; i < depth; i++)
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barriers + i * 8), "n"(PACKED_ARRIVALS) : "memory");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncwarp();
    ask(slot, barrier);
  }

  /** Asks for as many more as fit. */
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (uint32_t i = 1; i < depth; i++)
      ask(slot + i * BYTES, barrier + i * 8);
    keep(next), keep(lane), keep(end), keep(slot), keep(barrier);
  }

  /** The next record into a slot that nothing reads any more. */
  __device__ __forceinline__ void ask(uint32_t into, uint32_t arrival) {
    if (left == 0)
      return;
    left--;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (elected()) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(arrival), "n"(BYTES) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(into), "l"(next), "n"(BYTES),
                   "r"(arrival)
                   : "memory");
    }
#else
    for (uint32_t at = lane * 16; at < BYTES; at += 512)
      copy_async(at_shared(into + at), next + at, true);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(arrival) : "memory");
#endif
    next += BYTES;
  }

  /** The record that is next to be used, when it is there. */
  __device__ __forceinline__ const uint8_t* wait() const {
    uint32_t there;
    do {
      asm volatile("{\n"
                   ".reg .pred p;\n" PACKED_WAIT ".shared.b64 p, [%1], %2;\n"
                   "selp.u32 %0, 1, 0, p;\n"
                   "}"
                   : "=r"(there)
                   : "r"(barrier), "r"(phase)
                   : "memory");
    } while (!there);
    return static_cast<const uint8_t*>(at_shared(slot));
  }

  /** It has been read. */
  __device__ __forceinline__ void release() {
    __syncwarp();
    ask(slot, barrier);
    slot += BYTES;
    barrier += 8;
    if (slot == end) {
      slot -= depth * BYTES;
      barrier -= depth * 8;
      phase ^= 1;
    }
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

// ---- The product --------------------------------------------------------------------------------

template <class T, class C, class BIAS> struct packed_arguments {
  const T* x;
  const uint8_t* w;
  const BIAS* bias;
  const C* residual;
  C* c;
  int64_t m, n, k, ldx, ldc, ld_residual;
};

/** A tile's part in a product with COLUMNS * 8 rows of x. */
template <class T, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS> struct packed_tile {
  typedef packed_form<CODES> form;
  typedef packed_record<CODES, SCALES, ST, ZEROS> record_t;
  static constexpr int MATRICES = form::MATRICES;
  static constexpr bool HAS_MINIMA = SCALES == SCALES_Q4K;
  /* In f16 small scales are multiplied into codes, and sums of a whole step are scaled at once. */
  static constexpr bool FOLDED = HAS_MINIMA && !is_bf16<T>::value;
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

  static __device__ __forceinline__ void unpack(uint32_t (&a)[2][4], const uint4& w, int matrix, const record_t& s, int unit) {
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
        unpack_scaled(pair, word[matrix * 2 + half], s.small_scales(matrix, unit), half);
      } else {
        packed_zero<T> z;
        z.set(CODES == PACKED_Q4 ? 0u : ZEROS ? s.zero(matrix * 2 + half, unit) : 8u);
        unpack_u4<T>(pair, word[matrix * 2 + half], z);
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

  /** For minima: sums of x over each unit of a step, each as three bf16 that it is the sum of: rows
   * 4 p + u of a b-operand have part p of unit u. x as a-operands, of which it does not matter
   * what is which k, times ones in unit u's columns give them. */
  static __device__ __forceinline__ void sum_up(uint32_t (&out)[COLUMNS][2], const uint4* x, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      float sum[4];
#pragma unroll
      for (int unit = 0; unit < 4; unit++) {
        const uint4 v = x[(unit * COLUMNS + j) * 32];
        const uint32_t a[4] = {v.x, v.y, v.z, v.w};
        const uint32_t one = g % 4 == unit ? (is_bf16<T>::value ? 0x3f803f80u : 0x3c003c00u) : 0u, b[2] = {one, one};
        if (unit == 0)
          multiply<T>(sum, a, b);
        else
          multiply_add<T>(sum, a, b);
      }
      uint32_t part[3] = {0, 0, 0};
#pragma unroll
      for (int e = 0; e < 2; e++) {
        /* a power of two */
        float rest = (sum[e] + sum[e + 2]) * (1.0f / (FOLDED ? packed_factor<T, CODES>() : 1.0f));
#pragma unroll
        for (int i = 0; i < 3; i++) {
          const uint32_t upper = __float_as_uint(rest) & 0xffff0000u;
          rest -= __uint_as_float(upper);
          part[i] |= e ? upper : upper >> 16;
        }
      }
      out[j][0] = t < 2 ? part[0] : part[1];
      out[j][1] = t < 2 ? part[2] : 0u;
    }
  }

  /** to += d * part - dmin * (minima times sums of x). */
  static __device__ __forceinline__ void end_minima(sums& to, const sums& part, const uint8_t* record, const uint32_t (&x_sums)[COLUMNS][2],
                                                    int lane) {
    const int g = lane / 4, t = lane % 4;
    scale_words<4> minima, factors;
    minima.load(record + record_t::MINIMA_AT + g * 16);
    factors.load(record + record_t::FACTORS_AT + g * 16);
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
      uint32_t a[4];
#pragma unroll
      for (int half = 0; half < 2; half++)
        a[half] = a[half + 2] = multiply_add_two<bf16>(permute(minima.word[i * 2 + half], 0x43434343u, t % 2 ? 0x4342u : 0x4140u), 0x3f803f80u,
                                                       0xc300c300u); /* 128 + minimum, less 128 */
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        float least[4];
        multiply<bf16>(least, a, x_sums[j]);
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float d = half_of_word<f16>(factors.word[i * 2 + e / 2], 0);
          const float dmin = half_of_word<f16>(factors.word[i * 2 + e / 2], 1);
          to.at[i][j][e] = fmaf(-least[e], dmin, fmaf(part.at[i][j][e], d, to.at[i][j][e]));
        }
      }
    }
  }

  /** to += record times a step of x, which lies as [unit][column][lane]. */
  static __device__ __forceinline__ void add(sums& to, const uint8_t* record, const uint4* x, const uint32_t (&x_sums)[COLUMNS][2], int lane) {
    record_t s;
    s.load(record, lane / 4);
    sums part, whole;
    whole.clear();
#pragma unroll
    for (int unit = 0; unit < 4; unit++) {
      const uint4 w = reinterpret_cast<const uint4*>(record)[unit * 32 + lane];
      uint32_t b[COLUMNS][2][2];
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        const uint4 v = x[(unit * COLUMNS + j) * 32];
        b[j][0][0] = v.x, b[j][0][1] = v.y, b[j][1][0] = v.z, b[j][1][1] = v.w;
      }
#pragma unroll
      for (int i = 0; i < MATRICES; i++) {
        uint32_t a[2][4];
        unpack(a, w, i, s, unit);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          if (unit % TOGETHER == 0)
            multiply<T>(part.at[i][j], a[0], b[j][0]);
          else
            multiply_add<T>(part.at[i][j], a[0], b[j][0]);
          multiply_add<T>(part.at[i][j], a[1], b[j][1]);
        }
      }
      if (!FOLDED && unit % TOGETHER == TOGETHER - 1)
        scale_in(HAS_MINIMA ? whole : to, part, s, unit);
    }
    if (HAS_MINIMA)
      end_minima(to, FOLDED ? part : whole, record, x_sums, lane);
  }
};

constexpr int PACKED_BARRIER_BYTES = 1024;

/** Until all warps of a slice are here. */
template <int WARPS> static __device__ __forceinline__ void meet(int slice) {
  if (WARPS == 1)
    __syncwarp();
  else
    asm volatile("bar.sync %0, %1;" ::"r"(slice + 1), "n"(WARPS * 32) : "memory");
}

/* of a slice: one in use, three on their way, as weights are ahead of them in queues */
constexpr int PACKED_X_STEPS = 4;

/** A slice's x: steps of COLUMNS * 8 rows, brought by the slice's warps: sixteen lanes a row, a
 * lane eight elements. */
template <class T, int COLUMNS, int GROUPS> struct packed_window {
  static constexpr int STEP_BYTES = 4 * COLUMNS * 32 * 16; /* [unit][column][lane] */
  static constexpr int ROWS_AT_ONCE = 2 * GROUPS, TIMES = COLUMNS * 8 / ROWS_AT_ONCE;
  uint32_t place;       /* of this thread's first elements in shared memory */
  int row, column;      /* of x */
  int rows, k, whole;   /* of x; steps that are copied by 16 bytes */
  /* the rows that this thread copies; where x has none, what lies there is of no matter: columns
   * know not of each other */
  const T* from[TIMES];
  const T* x;
  int64_t ldx;

  __device__ __forceinline__ void begin(uint32_t shared, int thread, const T* first, int64_t ld, int64_t m, int64_t all_k) {
    row = thread / 16, column = thread % 16 * 8;
    place = shared + (column / 32 * COLUMNS * 32 + row * 4 + column / 8 % 4) * 16;
    rows = (int)(m < COLUMNS * 8 ? m : COLUMNS * 8), k = (int)all_k;
    whole = (ld | all_k) % 8 == 0 && is_aligned(first, 16) ? k / PACKED_STEP_K : 0;
    x = first, ldx = ld;
#pragma unroll
    for (int i = 0; i < TIMES; i++) {
      from[i] = x + (row + i * ROWS_AT_ONCE) * ldx + column;
      keep(from[i]);
    }
    keep(place);
  }

  static __device__ __forceinline__ constexpr int offset(int i) { return (i * ROWS_AT_ONCE / 8 * 32 + i * ROWS_AT_ONCE % 8 * 4) * 16; }

  /** Begins to bring a step. */
  __device__ __forceinline__ void bring(int step) const {
    const uint32_t to = place + step % PACKED_X_STEPS * STEP_BYTES;
    if (step < whole) {
#pragma unroll
      for (int i = 0; i < TIMES; i++) {
        if (row + i * ROWS_AT_ONCE < rows)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + offset(i)), "l"(from[i] + step * PACKED_STEP_K) : "memory");
      }
    } else {
      bring_some(to, x + column, ldx, row, rows, step * PACKED_STEP_K, k - column);
    }
  }

  /** The same element by element, with zeros beyond k. */
  static __device__ __noinline__ void bring_some(uint32_t to, const T* x, int64_t ldx, int row, int rows, int at, int k) {
#pragma unroll 1
    for (int i = 0; i < TIMES && row + i * ROWS_AT_ONCE < rows; i++) {
      const uint16_t* const bits = reinterpret_cast<const uint16_t*>(x + (row + i * ROWS_AT_ONCE) * ldx + at);
      uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
      for (int e = 0; e < 8; e++)
        word[e / 2] |= at + e < k ? (uint32_t)bits[e] << e % 2 * 16 : 0u;
      *static_cast<uint4*>(at_shared(to + offset(i))) = {word[0], word[1], word[2], word[3]};
    }
  }
};

template <class T, class C, class BIAS, int ACTIVATION, int CODES, int SCALES, class ST, bool ZEROS, int COLUMNS, int TILES, int SLICES, int GROUPS>
static __device__ __forceinline__ void packed_product(const packed_arguments<T, C, BIAS>& p, unsigned char* shared) {
  typedef packed_tile<T, CODES, SCALES, ST, ZEROS, COLUMNS> tile_t;
  typedef packed_window<T, COLUMNS, GROUPS> window_t;
  constexpr int ROWS = packed_form<CODES>::ROWS, RECORD = tile_t::record_t::BYTES, WARPS = SLICES * GROUPS, MOST = (TILES + GROUPS - 1) / GROUPS;
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, shared_bytes;
  keep(warp), keep(lane);
  const int slice = warp % SLICES, group = warp / SLICES;
  const int first_tile = TILES * group / GROUPS, tiles = TILES * (group + 1) / GROUPS - first_tile;
  const int steps = (int)((p.k + PACKED_STEP_K - 1) / PACKED_STEP_K), begin = steps * slice / SLICES, end = steps * (slice + 1) / SLICES;
  const int64_t row0 = (int64_t)blockIdx.y * COLUMNS * 8;

  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared_bytes));
  constexpr int X_AT = PACKED_BARRIER_BYTES, RING_AT = X_AT + PACKED_X_STEPS * SLICES * window_t::STEP_BYTES;
  const int fit = (int)(shared_bytes - RING_AT) / (WARPS * RECORD), most = PACKED_BARRIER_BYTES / 8 / WARPS, depth = fit < most ? fit : most;
  packed_ring<RECORD> ring;
  ring.lane = lane;
  ring.next = p.w + (((int64_t)blockIdx.x * TILES + first_tile) * steps + begin * tiles) * RECORD;
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

  typename tile_t::sums sums[MOST];
#pragma unroll
  for (int i = 0; i < MOST; i++)
    sums[i].clear();
#pragma unroll 1
  for (int step = begin; step < end; step++) {
    copy_wait<PACKED_X_STEPS - 2>();
    meet<GROUPS>(slice);
    if (step + PACKED_X_STEPS - 1 < end)
      window.bring(step + PACKED_X_STEPS - 1);
    copy_commit();
    const uint4* const x = static_cast<const uint4*>(at_shared(lane_x + step % PACKED_X_STEPS * window_t::STEP_BYTES));
    uint32_t x_sums[COLUMNS][2];
    if (tile_t::HAS_MINIMA)
      tile_t::sum_up(x_sums, x, lane);
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
      const uint4 codes = reinterpret_cast<const uint4*>(record)[unit * 32 + lane];
#pragma unroll
      for (int i = 0; i < MATRICES; i++) {
        uint32_t a[2][4];
        tile_t::unpack(a, codes, i, s, unit);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int row = i * 2 + half;
          float scale = s.scale(row, unit) * packed_factor<T, CODES>(), least = 0.0f;
          if constexpr (SCALES == SCALES_Q4K) {
            const uint32_t factor = reinterpret_cast<const uint32_t*>(record + record_t::FACTORS_AT)[g * 4 + row];
            scale = half_of_word<f16>(factor, 0) * (tile_t::FOLDED ? packed_factor<T, CODES>() : scale);
            least = half_of_word<f16>(factor, 1) * (float)record[record_t::MINIMA_AT + g * 16 + row * 4 + unit];
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

} // namespace accrt_cuda

#define ACCRT_CUDA_PACKED(ENTRY, T, C, BIAS, ACTIVATION, CODES, SCALES, ST, ZEROS, COLUMNS, TILES, SLICES, GROUPS)                 \
  extern "C" __global__ void __launch_bounds__((SLICES) * (GROUPS) * 32, 1)                                                     \
      ENTRY(const T* x, const uint8_t* w, const BIAS* bias, const C* residual, C* c, int64_t m, int64_t n, int64_t k, int64_t ldx, \
            int64_t ldc, int64_t ld_residual) {                                                                                 \
    extern __shared__ __align__(128) unsigned char accrt_shared[];                                                              \
    const accrt_cuda::packed_arguments<T, C, BIAS> p = {x, w, bias, residual, c, m, n, k, ldx, ldc, ld_residual};                \
    accrt_cuda::packed_product<T, C, BIAS, accrt_cuda::ACTIVATION, accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS, COLUMNS,    \
                               TILES, SLICES, GROUPS>(p, accrt_shared);                                                         \
  }

#define ACCRT_CUDA_PACKED_DEQUANTIZE(ENTRY, T, CODES, SCALES, ST, ZEROS)                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                                             \
      ENTRY(const uint8_t* w, T* out, int64_t n, int64_t k, int64_t tiles) {                                                    \
    accrt_cuda::wait_for_previous();                                                                                            \
    accrt_cuda::allow_next();                                                                                                   \
    accrt_cuda::packed_dequantize<T, accrt_cuda::CODES, accrt_cuda::SCALES, ST, ZEROS>(w, out, n, k, tiles);                     \
  }
#endif
