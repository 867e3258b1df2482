// lora_tiles.cuh - low-rank products, an adapter for each token, on tensor cores, for 16-bit types.
//
// Tokens stand in any order; an index outside is no adapter. Once a step `token_groups` sorts them
// by adapter, into records of up to 32 tokens of one adapter. The first half of a product
// (lora_shrink) has a block for a record, an eighth of k and 16 rows of factors of each part; it
// writes its own sums. The second half (lora_expand) has a block for a record and 256 columns of a
// part. It adds up the eighths in their order, and may end with a gate.
//
// Tiles are 16 tokens by 16 rows of factors, and 16 tokens by 64 columns. Rows are read in pieces
// of 16 bytes whose order among the threads of a tile is the same for both sides, and does not
// matter for a sum. A tile's thread is lane 4 g + q. What a token gets does not depend on the
// others of its tile, nor on its place.
#ifndef ACCRT_CUDA_LORA_TILES_CUH_
#define ACCRT_CUDA_LORA_TILES_CUH_

#include "numbers.cuh"
#include "tensorcore.cuh"

namespace accrt_cuda {

// As lora.py has them.
#define LORA_TOKENS 32      // of a record
#define LORA_RECORD 36      // numbers of it: adapter (-1: none), count, two unused, tokens
#define LORA_ADAPTERS 1024  // at most
#define LORA_SPLITS 8       // of k
#define LORA_SHRINK_WARPS 8 // of a block of the first half
#define LORA_EXPAND_WARPS 4 // of one of the second, which has 64 columns for each
#define LORA_RANKS 256      // of a block of the second half at most, each part's rounded up to 16
#define LORA_SORT_THREADS 1024

// ---- Tokens sorted by adapter -------------------------------------------------------------------

/** The number that all threads' own add up to. */
static __device__ __forceinline__ int sum_of_block(int own, int* warps) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    own += __shfl_xor_sync(0xffffffffu, own, step);
  if (lane == 0)
    warps[threadIdx.x / 32] = own;
  __syncthreads();
  int sum = warps[lane];
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  __syncthreads();
  return sum;
}

static __device__ __forceinline__ int records_of(int tokens) {
  return (tokens + LORA_TOKENS - 1) / LORA_TOKENS;
}

/** The records of the block's adapter, behind those of the adapters before it; the last block has
 * the tokens without one, and ends the records that are left over. Tokens keep their order, and the
 * places of a last record that are left over have its last token. */
static __device__ __forceinline__ void token_groups(const int32_t* index, int32_t* out, int tokens,
                                                    int adapters, int64_t step, int records) {
  __shared__ int counts[LORA_ADAPTERS + 1], warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = blockIdx.x;
  const auto group_of = [&](int token) {
    if (token >= tokens)
      return -1;
    const int group = index[token * step];
    return group < 0 || group >= adapters ? adapters : group;
  };
  for (int i = threadIdx.x; i <= adapters; i += LORA_SORT_THREADS)
    counts[i] = 0;
  __syncthreads();
  for (int base = 0; base < tokens; base += LORA_SORT_THREADS) {
    const int group = group_of(base + threadIdx.x);
    const uint32_t same = __match_any_sync(0xffffffffu, group);
    if (group >= 0 && lane == __ffs(same) - 1)
      atomicAdd(&counts[group], __popc(same));
  }
  __syncthreads();
  int before = 0;
  for (int i = threadIdx.x; i < own; i += LORA_SORT_THREADS)
    before += records_of(counts[i]);
  before = sum_of_block(before, warps);
  const int count = counts[own];
  int32_t* const to = out + (int64_t)before * LORA_RECORD;
  int found = 0;
  for (int base = 0; base < tokens && count > 0; base += LORA_SORT_THREADS) {
    const int token = base + threadIdx.x;
    const bool mine = group_of(token) == own;
    const uint32_t votes = __ballot_sync(0xffffffffu, mine);
    if (lane == 0)
      warps[warp] = __popc(votes);
    __syncthreads();
    int at = found + __popc(votes & ((1u << lane) - 1));
    for (int i = 0; i < LORA_SORT_THREADS / 32; i++) {
      at += i < warp ? warps[i] : 0;
      found += warps[i];
    }
    __syncthreads(); // they have been read
    if (!mine)
      continue;
    int32_t* const record = to + (int64_t)(at / LORA_TOKENS) * LORA_RECORD;
    const int place = at % LORA_TOKENS, end = at == count - 1 ? LORA_TOKENS : place + 1;
    if (place == 0) {
      record[0] = own == adapters ? -1 : own;
      record[1] = min(count - at, LORA_TOKENS);
    }
    for (int i = place; i < end; i++)
      record[4 + i] = token;
  }
  if (own != adapters)
    return;
  for (int i = before + records_of(count) + threadIdx.x; i < records; i += LORA_SORT_THREADS)
    out[(int64_t)i * LORA_RECORD + 1] = 0;
}

// ---- Pieces of rows -----------------------------------------------------------------------------

static __device__ __noinline__ uint4 load_singly(const uint16_t* at, int count) {
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    word[i] = (2 * i < count ? at[2 * i] : 0) | (uint32_t)(2 * i + 1 < count ? at[2 * i + 1] : 0)
                                                    << 16;
  return make_uint4(word[0], word[1], word[2], word[3]);
}

static __device__ __noinline__ void store_singly(uint16_t* at, uint4 piece, int count) {
  const uint32_t word[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (i < count)
      at[i] = (uint16_t)(word[i / 2] >> i % 2 * 16);
}

/** Eight numbers, zeros from `count` on, past the L1 cache if they are WIDE: aligned, and all or
 * none there. */
template <bool WIDE, class T>
static __device__ __forceinline__ uint4 load_eight(const T* at, int count) {
  if constexpr (WIDE)
    return count > 0 ? __ldcg((const uint4*)at) : make_uint4(0, 0, 0, 0);
  else
    return load_singly((const uint16_t*)at, count);
}

template <bool WIDE, class T>
static __device__ __forceinline__ void store_eight(T* at, const uint4& piece, int count) {
  if constexpr (!WIDE)
    store_singly((uint16_t*)at, piece, count);
  else if (count > 0)
    *(uint4*)at = piece;
}

static __device__ __forceinline__ uint32_t word_of(const uint4& piece, int i) {
  return i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w;
}

static __device__ __forceinline__ void set_word(uint4& piece, int i, uint32_t word) {
  (i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w) = word;
}

static __device__ __forceinline__ int padded_rank(int rank) {
  return (rank + 15) / 16 * 16;
}

// ---- The first half -----------------------------------------------------------------------------

/** What a launch of the first half was given. `out` is [records][LORA_SPLITS][LORA_TOKENS][ranks],
 * the ranks of each part rounded up to 16. */
template <class T> struct lora_shrink_t {
  const T* x;
  const T* factors[3];
  const int32_t* groups;
  float* out;
  int rank, size;
  int64_t x_row;
};

/** Sums of MS x 16 tokens by 16 rows of factors of each of PARTS parts, over the pieces of 32
 * numbers that the warp has. x: rows g and g + 8 of each 16 tokens. factors: rows g and g + 8 of
 * each part, NULL for none. */
template <int MS, int PARTS, bool WIDE, class T>
static __device__ __forceinline__ void
shrink_tiles(const T* const (&x)[2 * MS], const T* const (&factors)[2 * PARTS], int size, int warp,
             int lane, float (&sums)[MS][2 * PARTS][4]) {
  constexpr int STEP = 32 * LORA_SPLITS * LORA_SHRINK_WARPS;
#pragma unroll(MS* PARTS < 3 ? 2 : 1)
  for (int first = 32 * warp; first < size; first += STEP) {
    const int at = first + 8 * (lane % 4), left = size - at;
    uint4 f[2 * PARTS], own[2 * MS];
#pragma unroll
    for (int n = 0; n < 2 * PARTS; n++)
      f[n] = load_eight<WIDE>(factors[n] + at, factors[n] != NULL ? left : 0);
#pragma unroll
    for (int m = 0; m < 2 * MS; m++)
      own[m] = load_eight<WIDE>(x[m] + at, left);
#pragma unroll
    for (int m = 0; m < MS; m++) {
      const uint4 low = own[2 * m], high = own[2 * m + 1];
      const uint32_t front[4] = {low.x, high.x, low.y, high.y};
      const uint32_t back[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int n = 0; n < 2 * PARTS; n++) {
        const uint32_t b[2][2] = {{f[n].x, f[n].y}, {f[n].z, f[n].w}};
        multiply_add<T>(sums[m][n], front, b[0]);
        multiply_add<T>(sums[m][n], back, b[1]);
      }
    }
  }
}

template <int PARTS> struct lora_shrink_memory { float sums[LORA_SHRINK_WARPS][PARTS][16 * 16]; };

template <int MS, int PARTS, bool WIDE, class T>
static __device__ __forceinline__ void shrink_record(const lora_shrink_t<T>& p,
                                                     lora_shrink_memory<PARTS>& memory,
                                                     const int32_t* record, int adapter) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, row = blockIdx.z * 16;
  const T *own[2 * MS], *rows[2 * PARTS];
  float sums[MS][2 * PARTS][4] = {};
#pragma unroll
  for (int m = 0; m < 2 * MS; m++)
    own[m] = p.x + record[4 + 8 * m + g] * p.x_row;
#pragma unroll
  for (int n = 0; n < 2 * PARTS; n++) {
    const int r = row + g + n % 2 * 8;
    rows[n] = r < p.rank ? p.factors[n / 2] + ((int64_t)adapter * p.rank + r) * p.size : NULL;
  }
  shrink_tiles<MS, PARTS, WIDE>(own, rows, p.size, blockIdx.y * LORA_SHRINK_WARPS + warp, lane,
                                sums);
  const int padded = padded_rank(p.rank), ranks = PARTS * padded;
  float* const out =
      p.out + ((int64_t)blockIdx.x * LORA_SPLITS + blockIdx.y) * LORA_TOKENS * ranks + row;
#pragma unroll
  for (int m = 0; m < MS; m++) {
    if (m > 0)
      __syncthreads(); // the sums before have been read
#pragma unroll
    for (int n = 0; n < 2 * PARTS; n++) {
      float* const to = memory.sums[warp][n / 2] + g * 16 + n % 2 * 8 + lane % 4 * 2;
      *(float2*)to = make_float2(sums[m][n][0], sums[m][n][1]);
      *(float2*)(to + 8 * 16) = make_float2(sums[m][n][2], sums[m][n][3]);
    }
    __syncthreads();
    const int t = 16 * m + (int)threadIdx.x / 16, r = threadIdx.x % 16;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < LORA_SHRINK_WARPS; i++)
        sum += memory.sums[i][part][threadIdx.x];
      out[t * ranks + part * padded + r] = sum;
    }
  }
}
static_assert(32 * LORA_SHRINK_WARPS == 16 * 16, "a thread has one number of a tile");

template <int PARTS, class T>
static __device__ __forceinline__ void lora_shrink(const lora_shrink_t<T>& p) {
  __shared__ lora_shrink_memory<PARTS> memory;
  const int32_t* const record = p.groups + (int64_t)blockIdx.x * LORA_RECORD;
  const int adapter = record[0], count = record[1];
  if (count == 0 || adapter < 0)
    return;
  bool wide = p.size % 8 == 0 && p.x_row % 8 == 0 && is_aligned(p.x, 16);
#pragma unroll
  for (int k = 0; k < PARTS; k++)
    wide = wide && is_aligned(p.factors[k], 16);
  if (!wide && count <= 16)
    shrink_record<1, PARTS, false>(p, memory, record, adapter);
  else if (!wide)
    shrink_record<2, PARTS, false>(p, memory, record, adapter);
  else if (count <= 16)
    shrink_record<1, PARTS, true>(p, memory, record, adapter);
  else
    shrink_record<2, PARTS, true>(p, memory, record, adapter);
}

// ---- The second half ----------------------------------------------------------------------------

/** What a launch of the second half was given. */
template <class T> struct lora_expand_t {
  const T* y;
  const float* shrunk; // as the first half writes it
  const T* factors[3];
  const int32_t* groups;
  T* out;
  int rank, sizes[3];
  int64_t y_row, out_row;

  __device__ __forceinline__ int size(int part) const {
    return part == 0 ? sizes[0] : part == 1 ? sizes[1] : sizes[2];
  }
  __device__ __forceinline__ int begin(int part) const {
    return part == 0 ? 0 : part == 1 ? sizes[0] : sizes[0] + sizes[1];
  }
  __device__ __forceinline__ const T* of(int part) const {
    return part == 0 ? factors[0] : part == 1 ? factors[1] : factors[2];
  }
  /** Whether rows and parts are whole pieces of eight numbers. */
  __device__ __forceinline__ bool is_wide() const {
    bool is = y_row % 8 == 0 && out_row % 8 == 0 && is_aligned(y, 16) && is_aligned(out, 16);
#pragma unroll
    for (int k = 0; k < 3; k++)
      is = is && sizes[k] % 8 == 0 && is_aligned(factors[k], 16);
    return is;
  }
};

/** 16 ranks of what is shrunk of the rows g and g + 8, each number as the two of 16 or 11 bits that
 * it is the sum of: of ranks 2 q, 2 q + 1, 2 q + 8 and 2 q + 9. */
template <class T> struct shrunk_piece;

template <> struct shrunk_piece<bf16> {
  uint32_t high[4], low[4];

  __device__ __forceinline__ void of(const float (&s)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float x = s[i % 2][i / 2 * 2], y = s[i % 2][i / 2 * 2 + 1];
      high[i] = pack_two<bf16>(x, y);
      low[i] =
          pack_two<bf16>(x - half_of_word<bf16>(high[i], 0), y - half_of_word<bf16>(high[i], 1));
    }
  }
  /** sums += these by number j of each lane's eight columns of those ranks of the factors. */
  __device__ __forceinline__ void add(float (&sums)[4], const uint4 (&f)[4], int j) const {
    const uint32_t halves = j % 2 ? 0x7632u : 0x5410u;
    const uint32_t b[2] = {__byte_perm(word_of(f[0], j / 2), word_of(f[1], j / 2), halves),
                           __byte_perm(word_of(f[2], j / 2), word_of(f[3], j / 2), halves)};
    multiply_add<bf16>(sums, high, b);
    multiply_add<bf16>(sums, low, b);
  }
};

/** f16 has numbers that end early, so these are of TF32. */
template <> struct shrunk_piece<f16> {
  uint32_t high[2][4], low[2][4];

  __device__ __forceinline__ void of(const float (&s)[2][4]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float x = s[i % 2][i / 2];
      const uint32_t upper = __float_as_uint(x) & 0xffffe000u;
      high[i / 4][i % 4] = upper;
      low[i / 4][i % 4] = __float_as_uint(x - __uint_as_float(upper));
    }
  }
  __device__ __forceinline__ void add(float (&sums)[4], const uint4 (&f)[4], int j) const {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t b0 = __float_as_uint(half_of_word<f16>(word_of(f[2 * i], j / 2), j % 2));
      const uint32_t b1 = __float_as_uint(half_of_word<f16>(word_of(f[2 * i + 1], j / 2), j % 2));
      multiply(sums, high[i], b0, b1);
      multiply(sums, low[i], b0, b1);
    }
  }
  static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

static __device__ __noinline__ float silu_alone(float x) {
  return activate(x, SILU);
}

/** activate_as of eight numbers, to the same bits. SILU's quotients are found as a division does,
 * but all at once: divisions are branches. */
template <class T, int ACTIVATION>
static __device__ __forceinline__ void activate_all(float (&x)[8]) {
  if constexpr (ACTIVATION != SILU) {
#pragma unroll
    for (int i = 0; i < 8; i++)
      x[i] = activate_as<T>(x[i], ACTIVATION);
  } else {
    float made[8];
    bool is_apart = false;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float divisor = 1.0f + __expf(-x[i]), magnitude = fabsf(x[i]);
      float inverse;
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
      inverse = fmaf(inverse, fmaf(-divisor, inverse, 1.0f), inverse);
      const float near = x[i] * inverse, nearer = fmaf(inverse, fmaf(-divisor, near, x[i]), near);
      made[i] = fmaf(inverse, fmaf(-divisor, nearer, x[i]), nearer);
      is_apart = is_apart || !(magnitude > 0x1p-100f && magnitude < 64.0f);
    }
    if (is_apart) {
#pragma unroll
      for (int i = 0; i < 8; i++)
        made[i] = silu_alone(x[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
      x[i] = made[i];
  }
}

struct alignas(16) lora_expand_memory {
  float shrunk[LORA_TOKENS * (LORA_RANKS + 8)];
};

/** A warp's 64 columns of a part, or of the same columns of both parts of a gate. */
template <bool WIDE, bool GATE, int ACTIVATION, class T> struct expand_tile {
  static constexpr int NP = GATE ? 2 : 1; // parts
  const lora_expand_t<T>& p;
  const int32_t* record;
  int adapter, count, part, column, lane;
  uint4 y[NP][4], f[NP][4]; // y: of row g or g + 8, the first or the second eight columns
  int tokens[2];            // of rows g and g + 8

  /** y of 16 tokens. WIDE: columns behind the last one are its last eight again, and go nowhere. */
  __device__ __forceinline__ void load(int m) {
    const int at = column + 16 * (lane % 4), size = p.size(part);
#pragma unroll
    for (int i = 0; i < 2; i++)
      tokens[i] = __ldcg(record + 4 + 16 * m + 8 * i + lane / 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int own = at + i % 2 * 8, near = WIDE ? min(own, size - 8) : own;
      const T* const from = p.y + tokens[i / 2] * p.y_row + near + p.begin(part);
#pragma unroll
      for (int k = 0; k < NP; k++)
        y[k][i] = load_eight<WIDE>(from + k * size, WIDE ? 8 : size - own);
    }
  }
  /** The factors' ranks that shrunk_piece has, of the lane's own eight columns. */
  __device__ __forceinline__ void load_factors(int rank) {
    const int own = column + lane / 4 * 8, size = p.size(part), first = rank + lane % 4 * 2;
    const int near = WIDE ? min(own, size - 8) : own;
#pragma unroll
    for (int k = 0; k < NP; k++) {
      const T* const from = p.of(part + k) + ((int64_t)adapter * p.rank + first) * size + near;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int r = i % 2 + i / 2 * 8;
        const bool inside = p.rank % 16 == 0 || first + r < p.rank;
        f[k][i] = load_eight<WIDE>(from + r * size, !inside ? 0 : WIDE ? 8 : size - own);
      }
    }
  }
  /** The tile's numbers, and their end. */
  __device__ __forceinline__ void finish(int m, const float* shrunk, int step) {
    const int padded = padded_rank(p.rank), at = column + 16 * (lane % 4), size = p.size(part);
    const float* const own = shrunk + (16 * m + lane / 4) * step + lane % 4 * 2;
    shrunk_piece<T> piece[NP];
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      float sums[NP][2][4] = {};
#pragma unroll 1
      for (int rank = 0; adapter >= 0 && rank < padded; rank += 16) {
        if (j == 0 || padded > 16) {
#pragma unroll
          for (int k = 0; k < NP; k++)
            read(piece[k], own + k * padded + rank, step);
          if (padded > 16)
            load_factors(rank);
        }
#pragma unroll
        for (int k = 0; k < NP; k++) {
          piece[k].add(sums[k][0], f[k], j);
          piece[k].add(sums[k][1], f[k], j + 1);
        }
      }
      float made[8];
#pragma unroll
      for (int i = 0; i < 8; i++)
        made[i] = half_of_word<T>(word_of(y[0][i / 2], j / 2), i % 2) + sums[0][i % 2][i / 2];
      if constexpr (GATE) {
        activate_all<T, ACTIVATION>(made);
#pragma unroll
        for (int i = 0; i < 8; i++)
          made[i] *= half_of_word<T>(word_of(y[1][i / 2], j / 2), i % 2) + sums[1][i % 2][i / 2];
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
        set_word(y[0][i], j / 2, pack_two<T>(made[2 * i], made[2 * i + 1]));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      T* const row = p.out + tokens[i / 2] * p.out_row + p.begin(part) + at + i % 2 * 8;
      if (16 * m + 8 * (i / 2) + lane / 4 < count)
        store_eight<WIDE>(row, y[0][i], size - at - i % 2 * 8);
    }
  }
  static __device__ __forceinline__ void read(shrunk_piece<T>& piece, const float* own, int step) {
    float s[2][4];
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float2 two = *(const float2*)(own + 8 * row * step + 8 * i);
        s[row][2 * i] = two.x, s[row][2 * i + 1] = two.y;
      }
    }
    piece.of(s);
  }
};

/** What is shrunk of a record's tokens and NP parts from `part` on, all eighths of k added up; rows
 * are `step` numbers apart. */
template <int NP, class T>
static __device__ __forceinline__ void add_up(const lora_expand_t<T>& p, float* memory, int tokens,
                                              int parts, int part, int step) {
  const int padded = padded_rank(p.rank), ranks = parts * padded, own = NP * padded / 4;
  const float* const from =
      p.shrunk + (int64_t)blockIdx.x * LORA_SPLITS * LORA_TOKENS * ranks + part * padded;
  for (int i = threadIdx.x; i < tokens * own; i += 32 * LORA_EXPAND_WARPS) {
    const int t = i / own, r = i % own * 4;
    float4 eighth[LORA_SPLITS];
#pragma unroll
    for (int k = 0; k < LORA_SPLITS; k++)
      eighth[k] = __ldcg((const float4*)(from + (k * LORA_TOKENS + t) * ranks + r));
    float4 sum = eighth[0];
#pragma unroll
    for (int k = 1; k < LORA_SPLITS; k++) {
      sum.x += eighth[k].x, sum.y += eighth[k].y;
      sum.z += eighth[k].z, sum.w += eighth[k].w;
    }
    *(float4*)(memory + t * step + r) = sum;
  }
}

template <bool WIDE, int PARTS, bool GATE, int ACTIVATION, class T>
static __device__ __forceinline__ void expand_record(const lora_expand_t<T>& p,
                                                     lora_expand_memory& memory, int adapter,
                                                     int count, int part, int column) {
  constexpr int NP = GATE ? 2 : 1;
  const int step = NP * padded_rank(p.rank) + 8;
  expand_tile<WIDE, GATE, ACTIVATION, T> tile = {p,
                                                 p.groups + (int64_t)blockIdx.x * LORA_RECORD,
                                                 adapter,
                                                 count,
                                                 part,
                                                 column,
                                                 (int)threadIdx.x % 32};
  if (WIDE) { // what a kernel before the one that is waited for has written
    if (adapter >= 0)
      tile.load_factors(0);
    tile.load(0);
  }
  wait_for_previous();
  allow_next();
  if (adapter >= 0)
    add_up<NP>(p, memory.shrunk, count <= 16 ? 16 : LORA_TOKENS, PARTS, part, step);
  __syncthreads();
  if (!WIDE && adapter >= 0)
    tile.load_factors(0);
#pragma unroll 1
  for (int m = 0; 16 * m < count; m++) {
    if (!WIDE || m > 0)
      tile.load(m);
    tile.finish(m, memory.shrunk, step);
  }
}

/** The first half is the kernel before, and waits for all that is before it: so what others than it
 * have written is there, while it still runs. */
template <int PARTS, bool GATE, int ACTIVATION, class T>
static __device__ __forceinline__ void lora_expand(const lora_expand_t<T>& p) {
  constexpr int COLUMNS = 64 * LORA_EXPAND_WARPS;
  __shared__ lora_expand_memory memory;
  const int32_t* const record = p.groups + (int64_t)blockIdx.x * LORA_RECORD;
  const int adapter = __ldcg(record), count = __ldcg(record + 1);
  int block = blockIdx.y, part = 0;
#pragma unroll
  for (int k = 0; k < PARTS - 1; k++) {
    const int blocks = (p.sizes[k] + COLUMNS - 1) / COLUMNS;
    if (!GATE && part == k && block >= blocks)
      part++, block -= blocks;
  }
  const int column = block * COLUMNS + (int)threadIdx.x / 32 * 64;
  const bool in_place = !GATE && p.y == p.out && p.y_row == p.out_row;
  if (count == 0 || (adapter < 0 && in_place)) {
    wait_for_previous();
    return;
  }
  if (p.is_wide())
    expand_record<true, PARTS, GATE, ACTIVATION>(p, memory, adapter, count, part, column);
  else
    expand_record<false, PARTS, GATE, ACTIVATION>(p, memory, adapter, count, part, column);
}

} // namespace accrt_cuda

#define ACCRT_CUDA_TOKEN_GROUPS(ENTRY)                                                             \
  extern "C" __global__ void __launch_bounds__(LORA_SORT_THREADS)                                  \
      ENTRY(const int32_t* index, int32_t* out, int64_t tokens, int64_t adapters, int64_t records, \
            int64_t index_step) {                                                                  \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    accrt_cuda::token_groups(index, out, (int)tokens, (int)adapters, index_step, (int)records);    \
  }

/* Of y nothing is read: this kernel stands behind the one that makes it, and not beside it. */
#define ACCRT_CUDA_LORA_SHRINK(ENTRY, T, PARTS)                                                    \
  extern "C" __global__ void __launch_bounds__(32 * LORA_SHRINK_WARPS, (PARTS) < 3 ? 3 : 2)        \
      ENTRY(const T* y, const T* x, const T* factors, const T* factors1, const T* factors2,        \
            const int32_t* groups, float* out, int64_t records, int64_t rank, int64_t size,        \
            int64_t x_row) {                                                                       \
    accrt_cuda::wait_for_previous();                                                               \
    accrt_cuda::allow_next();                                                                      \
    const accrt_cuda::lora_shrink_t<T> given = {                                                   \
        x, {factors, factors1, factors2}, groups, out, (int)rank, (int)size, x_row};               \
    accrt_cuda::lora_shrink<PARTS>(given);                                                         \
  }

#define ACCRT_CUDA_LORA_EXPAND(ENTRY, T, PARTS, GATE, ACTIVATION)                                  \
  extern "C" __global__ void __launch_bounds__(32 * LORA_EXPAND_WARPS, 4)                          \
      ENTRY(const T* y, const float* shrunk, const T* factors, const T* factors1,                  \
            const T* factors2, const int32_t* groups, T* out, int64_t records, int64_t rank,       \
            int64_t size, int64_t size1, int64_t size2, int64_t y_row, int64_t out_row) {          \
    const accrt_cuda::lora_expand_t<T> given = {                                                   \
        y,      shrunk,    {factors, factors1, factors2},       groups,                            \
        out,    (int)rank, {(int)size, (int)size1, (int)size2}, y_row,                             \
        out_row};                                                                                  \
    accrt_cuda::lora_expand<PARTS, GATE, accrt_cuda::ACTIVATION>(given);                           \
  }

#endif // ACCRT_CUDA_LORA_TILES_CUH_
