/* stream_row.cuh - stream.cuh for one row, as decoding for one request makes it: what counts is
 * that memory always has something to send, also between one kernel and the next.
 *
 * ACCRT_CUDA_STREAM_ROW(ENTRY, T, C, BIAS, ACTIVATION, WARPS, COLUMNS, GATED, NORM, K, RING,
 * FIRST, THREADS): a block of WARPS warps makes COLUMNS columns, 8 or 16 (8 where GATED), and then
 * others, as many as the grid leaves it. K is the length of the row. Sums have the order of
 * stream.cuh, so a row has the same bits alone and among others.
 *
 * Elements of the weight come by asynchronous copies into a ring of RING steps in shared memory. A
 * thread's places are its own: what it reads there it has asked for itself, so no thread waits for
 * another. Where bit 34 of `form` says that b, bias and the norm's weights are constants, FIRST
 * steps are asked for before the kernel ahead has ended, and the others behind the row. The next
 * kernel is allowed when the last step has been asked for: its weights then come while the last of
 * these are multiplied. THREADS, of which those behind WARPS end at once, and shared memory that is
 * not used keep a second block of the same kernel off a multiprocessor (stream.py).
 *
 * ACCRT_CUDA_STREAM_ROW_TURNED(ENTRY, T, BIAS, WARPS, NORM, K, RING, FIRST, THREADS): columns
 * are queries, keys and values of one token. Queries and keys are turned by the token's position,
 * and keys and values written to states, as rope_scatter.cu does it. A block makes 8 columns: those
 * of 4 pairs, or of values. Where bit 36 of `form` says that frequencies are constants, too, what
 * its first tiles are turned by is calculated before the kernel ahead has ended: the position may
 * be written at this time, so it is a guess that is looked at again.
 *
 * All shared memory is dynamic: the ring, the row (normed where NORM), sums of two tiles. */
#ifndef ACCRT_CUDA_STREAM_ROW_CUH_
#define ACCRT_CUDA_STREAM_ROW_CUH_

#include "stream.cuh"

namespace accrt_cuda {

/** Eight elements of a row of the weight, or zeros, to a thread's place in shared memory. */
template <class T>
static __device__ __forceinline__ void stream_put(uint4* to, const T* row, int at, int left,
                                                  bool valid, bool wide) {
  if (!wide) {
    *to = stream_load<T, false>(row, at, left, valid, false);
    return;
  }
  const int bytes = valid && at < left ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(bytes ? row + at : row), "r"(bytes)
               : "memory");
}

/** Of the turned: where the token stands, and where keys and values go. */
template <class T> struct stream_turn {
  const int32_t *positions, *slots;
  const float* frequencies;
  T *keys, *values;
  int heads, kv_heads, size, value_size, out_head;
  int64_t rows;
  bool interleaved;
  float scale;
  bool is_constant; // frequencies, and all that the product reads but its row

  /** Column g of the eight that a block makes from `first` on. */
  __device__ __forceinline__ int64_t column(int64_t first, int g) const {
    if (interleaved || first >= (int64_t)(heads + kv_heads) * size)
      return first + g;
    const int head = (int)first / size, at = (int)first % size / 2;
    return (int64_t)head * size + at + g % 4 + g / 4 * (size / 2);
  }
  /** Of a column of queries or keys, the pair that it is of. */
  __device__ __forceinline__ int pair(int64_t n) const {
    const int at = (int)n % size;
    return interleaved ? at / 2 : at % (size / 2);
  }
};

/** Sine and cosine of position * frequency. */
static __device__ __forceinline__ void stream_angle(int position, float frequency, float* sine,
                                                    float* cosine) {
  const double angle = (double)position * (double)frequency;
  const double turns = rint(angle * 0.15915494309189533577);
  double r = fma(turns, -6.283185307179586, angle);
  r = fma(turns, -2.4492935982947064e-16, r);
  sincosf((float)r, sine, cosine);
}

/** What the columns of a block's first tiles are turned by, in one warp: lane 8 * i + g has column
 * g of tile i, and of tile i + 4. */
template <class T> struct stream_turns {
  static constexpr int TILES = 8;
  float frequency[2], sine[2], cosine[2];
  int position;

  /** Reads what they are made of. */
  __device__ __forceinline__ void find(const stream_turn<T>& turn, int64_t begin, int64_t across,
                                       int tiles) {
    position = __ldcg(turn.positions);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int tile = 4 * i + (int)threadIdx.x % 32 / 8;
      frequency[i] = 0.0f;
      if (tile >= tiles)
        continue;
      const int64_t n = turn.column(begin + tile * across, threadIdx.x % 8);
      if (n < (int64_t)(turn.heads + turn.kv_heads) * turn.size)
        frequency[i] = __ldcg(turn.frequencies + turn.pair(n));
    }
  }
  __device__ __forceinline__ void make(int tiles) {
    stream_angle(position, frequency[0], &sine[0], &cosine[0]);
    if (tiles > 4)
      stream_angle(position, frequency[1], &sine[1], &cosine[1]);
  }
  /** Of tile `tile`, to lanes 0 to 7; by the whole warp. */
  __device__ __forceinline__ void take(int tile, float* to_sine, float* to_cosine) const {
    const int from = tile % 4 * 8 + (int)threadIdx.x % 8;
    *to_sine = __shfl_sync(0xffffffffu, tile < 4 ? sine[0] : sine[1], from);
    *to_cosine = __shfl_sync(0xffffffffu, tile < 4 ? cosine[0] : cosine[1], from);
  }
};

template <int WARPS, int COLUMNS, bool GATED, int K, int RING> struct stream_row_block {
  static constexpr int PIECES = COLUMNS == 16 || GATED ? 2 : 1;
  uint4 ring[RING][PIECES][WARPS * 32];
  uint4 row[stream_row(K) / 8];
  float sums[2][WARPS][8 * PIECES];
};

/** A column of queries, keys or values to where it goes; by the first eight threads together. */
template <class T, class C, class BIAS>
static __device__ __forceinline__ void
stream_turned(const stream_arguments<T, C, BIAS>& p, const stream_turn<T>& turn, int n,
              int64_t slot, float made, float sine, float cosine) {
  const T own = from_float<T>(made);
  const int step = turn.interleaved ? 1 : 4;
  const float x = to_float(own), other = __shfl_xor_sync(0xffu, x, step);
  const bool has_slot = slot >= 0 && slot < turn.rows;
  const int queries = turn.heads * turn.size, keys = turn.kv_heads * turn.size;
  if (n >= queries + keys) {
    if (has_slot)
      turn.values[slot * turn.kv_heads * turn.value_size + n - queries - keys] = own;
    return;
  }
  const float s = __fmul_rn(other, __fmul_rn(sine, turn.scale));
  const float c = __fmul_rn(x, __fmul_rn(cosine, turn.scale));
  const T turned = from_float<T>(threadIdx.x & step ? __fadd_rn(c, s) : __fsub_rn(c, s));
  if (n < queries)
    p.c[n / turn.size * turn.out_head + n % turn.size] = turned;
  else if (has_slot)
    turn.keys[slot * keys + n - queries] = turned;
}

template <class T, class C, class BIAS, int ACTIVATION, int WARPS, int COLUMNS, bool GATED,
          bool NORM, int K, int RING, int FIRST, bool TURNED>
static __device__ __forceinline__ void
stream_one(const stream_arguments<T, C, BIAS>& p, const stream_turn<T>& turn, bool constant,
           stream_row_block<WARPS, COLUMNS, GATED, K, RING>& shared) {
  constexpr int THREADS = WARPS * 32, PIECES = COLUMNS == 16 || GATED ? 2 : 1;
  if (threadIdx.x >= THREADS)
    return; /* it was there to take room */
  constexpr int STEPS = (K + 64 * WARPS - 1) / (64 * WARPS) * 2;
  constexpr int BATCH = STEPS % 4 == 0 && RING >= 8 && PIECES == 1 ? 4 : RING < 2 ? 1 : 2;
  constexpr int PADDED = (K + 63) / 64 * 64;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool a_wide = (p.lda | K) % 8 == 0 && is_aligned(p.a, 16);
  const bool b_wide = (p.ldb | K) % 8 == 0 && is_aligned(p.b, 16);
  T* const row = reinterpret_cast<T*>(shared.row);
  /* Step i of this warp: 32 elements, of which a thread has eight; two steps are neighbours. */
  const auto place = [&](int i) { return i / 2 * WARPS * 64 + i % 2 * 32; };
  const int own = warp * 64 + t * 8;
  const int64_t across = (int64_t)gridDim.x * COLUMNS, begin = (int64_t)blockIdx.x * COLUMNS;
  const int tiles = begin < p.n ? (int)((p.n - begin + across - 1) / across) : 0;
  /* Where the step that is asked for next stands. */
  int64_t column = begin;
  int at_step = 0, left = tiles * STEPS;
  const T *low = nullptr, *high = nullptr;
  bool has_low = false, has_high = false;
  const auto find = [&]() {
    const int64_t first = TURNED ? turn.column(column, g) : column + g;
    const int64_t second = GATED ? p.n + first : first + 8;
    has_low = first < p.n, has_high = GATED ? has_low : second < p.n;
    low = p.b + (has_low ? first : 0) * p.ldb + own;
    high = p.b + (has_high ? second : 0) * p.ldb + own;
  };
  const auto ask = [&](int slot) {
    if (left > 0) {
      const int at = place(at_step);
      stream_put(&shared.ring[slot][0][threadIdx.x], low, at, K - own, has_low, b_wide);
      if (PIECES == 2)
        stream_put(&shared.ring[slot][PIECES - 1][threadIdx.x], high, at, K - own, has_high,
                   b_wide);
      if (--left == 0)
        allow_next();
      if (++at_step == STEPS) {
        at_step = 0, column += across;
        find();
      }
    }
    copy_commit();
  };
  find();
  if (!constant)
    wait_for_previous();
#pragma unroll 1
  for (int i = 0; i < FIRST; i++)
    ask(i);
  float own_norm[8] = {};
#pragma unroll
  for (int i = 0; NORM && i < 8; i++) {
    const int at = (int)threadIdx.x * 8 + i;
    if (at < K)
      own_norm[i] = p.norm[at];
  }
  const bool turns = TURNED && threadIdx.x < 32,
             guesses = turns && turn.is_constant && p.m > 0; /* of no rows nothing is there */
  stream_turns<T> angles = {};
  if (guesses) {
    angles.find(turn, begin, across, tiles);
    angles.make(tiles);
  }
  if (constant)
    wait_for_previous();
  if (p.m < 1)
    return;
  const int position = turns ? __ldcg(turn.positions) : 0;
  const int64_t to_row = turns ? __ldcg(turn.slots) : 0;
  if (NORM) {
    stream_norm_row<WARPS, true>(p, p.a, row, own_norm, &shared.sums[1][0][0], a_wide);
  } else {
#pragma unroll 4
    for (int at = threadIdx.x * 8; at < PADDED; at += THREADS * 8)
      *reinterpret_cast<uint4*>(row + at) = stream_load<T, true>(p.a, at, K, true, a_wide);
  }
#pragma unroll 1
  for (int i = FIRST; i < RING; i++)
    ask(i);
  __syncthreads();
  if (turns && (!guesses || position != angles.position)) {
    angles.find(turn, begin, across, tiles);
    angles.make(tiles);
  }
  int slot = 0, parity = 0, tile = 0;
#pragma unroll 1
  for (int64_t column0 = begin; column0 < p.n; column0 += across, parity ^= 1, tile++) {
    const int64_t n = TURNED ? turn.column(column0, threadIdx.x % 8) : column0 + threadIdx.x;
    const bool is_mine = threadIdx.x < COLUMNS && n < p.n;
    const float bias = is_mine && p.bias ? to_float(p.bias[n]) : 0.0f;
    const float residual = is_mine && p.residual ? to_float(p.residual[n]) : 0.0f;
    float sine = 0.0f, cosine = 1.0f;
    if (turns && tile < stream_turns<T>::TILES)
      angles.take(tile, &sine, &cosine);
    else if (turns && n < (int64_t)(turn.heads + turn.kv_heads) * turn.size)
      stream_angle(angles.position, turn.frequencies[turn.pair(n)], &sine, &cosine);
    float sum[4] = {};
#pragma unroll 1
    for (int i = 0; i < STEPS; i += BATCH) {
      copy_wait<RING - BATCH>();
      uint4 low_part[BATCH], high_part[BATCH], value[BATCH];
      int from = slot;
#pragma unroll
      for (int u = 0; u < BATCH; u++) {
        low_part[u] = shared.ring[from][0][threadIdx.x];
        high_part[u] = uint4{0, 0, 0, 0}, value[u] = uint4{0, 0, 0, 0};
        if (PIECES == 2)
          high_part[u] = shared.ring[from][PIECES - 1][threadIdx.x];
        const int at = place(i + u) + own;
        if (at < K)
          value[u] = *reinterpret_cast<const uint4*>(row + at);
        from = from + 1 == RING ? 0 : from + 1;
      }
#pragma unroll
      for (int u = 0; u < BATCH; u++) {
        const uint4 a = low_part[u], b = high_part[u];
        const uint32_t first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
        const uint32_t one[2] = {value[u].x, value[u].y}, two[2] = {value[u].z, value[u].w};
        multiply_add<T>(sum, first, one);
        multiply_add<T>(sum, second, two);
      }
#pragma unroll
      for (int u = 0; u < BATCH; u++) {
        ask(slot);
        slot = slot + 1 == RING ? 0 : slot + 1;
      }
    }
    /* All columns of the second operand are the row: a sum stands in each. */
    if (t == 0) {
      shared.sums[parity][warp][g] = sum[0];
      if (PIECES == 2)
        shared.sums[parity][warp][8 * PIECES - 8 + g] = sum[2];
    }
    __syncthreads();
    if (!is_mine)
      continue;
    float made = 0.0f, up = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      made += shared.sums[parity][w][threadIdx.x];
      if (GATED)
        up += shared.sums[parity][w][8 * PIECES - 8 + threadIdx.x];
    }
    made = activate_as<C>(made + bias, ACTIVATION);
    if (TURNED) {
      stream_turned(p, turn, (int)n, to_row, made, sine, cosine);
      continue;
    }
    made = GATED ? made * up : made;
    p.c[n] = from_float<C>(p.residual ? made + residual : made);
  }
}

} // namespace accrt_cuda

#define ACCRT_CUDA_STREAM_ROW(ENTRY, T, C, BIAS, ACTIVATION, WARPS, COLUMNS, GATED, NORM, K, RING, \
                              FIRST, THREADS)                                                      \
  extern "C" __global__ void __launch_bounds__(THREADS)                                            \
      ENTRY(const T* a, const T* b, const BIAS* bias, const C* residual, const float* norm, C* c,  \
            int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc,                \
            int64_t ld_residual, int64_t form, float epsilon) {                                    \
    extern __shared__ __align__(16) unsigned char accrt_shared[];                                  \
    accrt_cuda::stream_one<T, C, BIAS, accrt_cuda::ACTIVATION, WARPS, COLUMNS, GATED, NORM, K,     \
                           RING, FIRST, false>(                                                    \
        {a, b, bias, residual, norm, c, m, n, k, lda, ldb, ldc, ld_residual, epsilon}, {},         \
        form >> 34 & 1,                                                                            \
        *reinterpret_cast<accrt_cuda::stream_row_block<WARPS, COLUMNS, GATED, K, RING>*>(          \
            accrt_shared));                                                                        \
  }
#define ACCRT_CUDA_STREAM_ROW_TURNED(ENTRY, T, BIAS, WARPS, NORM, K, RING, FIRST, THREADS)         \
  extern "C" __global__ void __launch_bounds__(THREADS)                                            \
      ENTRY(const T* a, const T* b, const BIAS* bias, const float* norm, const int32_t* positions, \
            const float* frequencies, const int32_t* slots, T* keys, T* values, T* out, int64_t m, \
            int64_t n, int64_t lda, int64_t ldb, int64_t heads, int64_t kv_heads, int64_t size,    \
            int64_t value_size, int64_t rows, int64_t out_head, int64_t interleaved, int64_t form, \
            float epsilon, float scale) {                                                          \
    extern __shared__ __align__(16) unsigned char accrt_shared[];                                  \
    const accrt_cuda::stream_turn<T> turn = {positions,                                            \
                                             slots,                                                \
                                             frequencies,                                          \
                                             keys,                                                 \
                                             values,                                               \
                                             (int)heads,                                           \
                                             (int)kv_heads,                                        \
                                             (int)size,                                            \
                                             (int)value_size,                                      \
                                             (int)out_head,                                        \
                                             rows,                                                 \
                                             interleaved != 0,                                     \
                                             scale,                                                \
                                             (form >> 34 & 5) == 5};                               \
    accrt_cuda::stream_one<T, T, BIAS, accrt_cuda::NONE, WARPS, 8, false, NORM, K, RING, FIRST,    \
                           true>(                                                                  \
        {a, b, bias, nullptr, norm, out, m, n, K, lda, ldb, n, 0, epsilon}, turn, form >> 34 & 1,  \
        *reinterpret_cast<accrt_cuda::stream_row_block<WARPS, 8, false, K, RING>*>(accrt_shared)); \
  }
#endif
