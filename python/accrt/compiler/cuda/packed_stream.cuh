/* packed_stream.cuh - what warps of a product with a packed weight (packed.cuh) read, on its way to
 * shared memory: each warp's records, and the x that the warps of a slice share. */
#ifndef ACCRT_CUDA_PACKED_STREAM_CUH_
#define ACCRT_CUDA_PACKED_STREAM_CUH_

#include "tensorcore.cuh"

namespace accrt_cuda {

constexpr int PACKED_STEP_K = 128;

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

/** Until a barrier has been through the phase. */
static __device__ __forceinline__ void wait_for_barrier(uint32_t barrier, uint32_t phase) {
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
}

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
    wait_for_barrier(barrier, phase);
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
template <class T, int COLUMNS, int GROUPS, bool IS_SPLIT> struct packed_window {
  static constexpr int STEP_BYTES = 4 * COLUMNS * 32 * 16; /* [unit][column][lane] */
  static constexpr int ROWS_AT_ONCE = 2 * GROUPS, TIMES = COLUMNS * 8 / ROWS_AT_ONCE;
  uint32_t place;  /* of this thread's first elements in shared memory */
  int times;       /* rows that this thread copies; where x has none, what lies there is of no
                    * matter: columns know not of each other */
  int left, whole; /* elements of a row from this thread's first on; steps copied by 16 bytes */
  const T* from;   /* what this thread copies first */
  int64_t further; /* from one of its rows to the next */

  __device__ __forceinline__ void begin(uint32_t shared, int thread, const T* first, int64_t ld, int64_t m, int64_t k) {
    const int row = thread / 16, column = thread % 16 * 8;
    const int piece = column / 8 % 4; /* of a unit */
    place = shared + (column / 32 * COLUMNS * 32 + row * 4 + (IS_SPLIT ? piece % 2 * 2 : piece)) * 16 + (IS_SPLIT ? piece / 2 * 8 : 0);
    const int rows = (int)(m < COLUMNS * 8 ? m : COLUMNS * 8);
    times = (rows - row + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    left = (int)k - column;
    whole = (ld | k) % 8 == 0 && is_aligned(first, 16) ? (int)k / PACKED_STEP_K : 0;
    from = first + row * ld + column, further = ROWS_AT_ONCE * ld;
    keep(from), keep(place);
  }

  static __device__ __forceinline__ constexpr int offset(int i) { return (i * ROWS_AT_ONCE / 8 * 32 + i * ROWS_AT_ONCE % 8 * 4) * 16; }

  /** Begins to bring a step. */
  __device__ __forceinline__ void bring(int step) const {
    const uint32_t to = place + step % PACKED_X_STEPS * STEP_BYTES;
    if (step < whole) {
#pragma unroll
      for (int i = 0; i < TIMES; i++) {
        if (i >= times)
          continue;
        const T* const eight = from + i * further + step * PACKED_STEP_K;
        if (IS_SPLIT) {
          asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + offset(i)), "l"(eight) : "memory");
          asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + offset(i) + 16), "l"(eight + 4) : "memory");
        } else {
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + offset(i)), "l"(eight) : "memory");
        }
      }
    } else {
      bring_some(to, from, further, times, step * PACKED_STEP_K, left);
    }
  }

  /** The same element by element, with zeros beyond k. */
  static __device__ __noinline__ void bring_some(uint32_t to, const T* from, int64_t further, int times, int at, int left) {
#pragma unroll 1
    for (int i = 0; i < TIMES && i < times; i++) {
      const uint16_t* const bits = reinterpret_cast<const uint16_t*>(from + i * further + at);
      uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
      for (int e = 0; e < 8; e++)
        word[e / 2] |= at + e < left ? (uint32_t)bits[e] << e % 2 * 16 : 0u;
      *static_cast<uint2*>(at_shared(to + offset(i))) = {word[0], word[1]};
      *static_cast<uint2*>(at_shared(to + offset(i) + (IS_SPLIT ? 16 : 8))) = {word[2], word[3]};
    }
  }
};

} // namespace accrt_cuda
#endif
