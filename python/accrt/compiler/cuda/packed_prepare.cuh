/* packed_prepare.cuh - brings packed weights into the order in which packed.cuh reads them: codes tile by tile and unit by unit, then records
 * of scales, then of zeros.
 *
 * A SOURCE tells the codes and scales of a layout by row and k; it is read slowly and once, when weights are loaded. Codes
 * beyond n and k are such that they add nothing to sums. */
#ifndef ACCRT_CUDA_PACKED_PREPARE_CUH_
#define ACCRT_CUDA_PACKED_PREPARE_CUH_

#include "packed.cuh"

namespace accrt_cuda {

/** The 16 bytes of a lane: `vector` counts lanes, then units, then tiles. */
template <int CODES, int SCALES, class SOURCE>
static __device__ __forceinline__ uint4 packed_codes_at(const SOURCE& source, int64_t vector, const packed_places& p, int64_t n, int64_t k) {
  typedef packed_form<CODES> form;
  const int64_t unit = vector / 32 % (p.steps * 4), tile = vector / 32 / (p.steps * 4);
  const int lane = (int)(vector % 32), g = lane / 4, t = lane % 4;
  uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (int row = 0; row < form::LANE_ROWS; row++) {
    const int64_t r = tile * form::ROWS + row * 8 + g;
#pragma unroll 1
    for (int e = 0; e < 8; e++) {
      const int64_t at = unit * 32 + t * 8 + e;
      const uint32_t nothing = CODES == PACKED_S8 ? 0x80u : 0u;
      uint32_t code = r < n && at < k ? source.code(r, at) : nothing;
      if constexpr (SCALES == SCALES_E8M0)
        code = r < n && at < k && source.power(r, at / 32) == 255 ? 0u : code; /* NaN: infinity times zero */
      if (form::BYTES)
        word[row * 2 + e / 4] |= code << e % 4 * 8;
      else if (CODES == PACKED_E2M1)
        word[row] |= ((code & 7u) << (9 - e / 2 * 3) | (code >> 3) << (0xdecfu >> e / 2 * 4 & 15u)) << e % 2 * 16;
      else
        word[row] |= code << (e / 2 * 4 + e % 2 * 16);
    }
  }
  return {word[0], word[1], word[2], word[3]};
}

/** One record of scales (and zeros); 32 threads of a warp share it. */
template <int CODES, int SCALES, class ST, bool ZEROS, class SOURCE>
static __device__ __forceinline__ void packed_record(const SOURCE& source, int64_t index, const packed_places& p, uint8_t* out, int64_t n, int64_t k,
                                                     int64_t group) {
  typedef packed_form<CODES> form;
  constexpr int LANE_ROWS = form::LANE_ROWS, EACH = packed_step_scales<CODES, SCALES, ST, ZEROS>::EACH;
  const int64_t tile = index / p.records, record = index % p.records;
  uint8_t* const at = out + p.scales_at + index * p.record_bytes;
  for (int i = threadIdx.x % 32; i < 8 * LANE_ROWS; i += 32) {
    const int g = i / LANE_ROWS, row = i % LANE_ROWS;
    const int64_t r = tile * form::ROWS + row * 8 + g;
    if constexpr (SCALES == SCALES_Q4K) {
      /* Scales [step][g][unit][row], minima [g][t][unit t or t + 4][row], factors [g][row]. */
      for (int block = 0; block < 8; block++) {
        const uint32_t two = r < n ? source.small_scales(r, record, block) : 0u;
        at[block / 4 * 128 + g * 16 + block % 4 * 4 + row] = (uint8_t)two;
        at[256 + (g * 4 + block % 4) * 8 + block / 4 * 4 + row] = (uint8_t)(two >> 8);
      }
      *reinterpret_cast<uint32_t*>(at + 512 + g * 16 + row * 4) = r < n ? source.factors(r, record) : 0u;
    } else if constexpr (SCALES == SCALES_E8M0) {
      for (int unit = 0; unit < 4; unit++) {
        const int64_t first = record * PACKED_STEP_K + unit * 32;
        at[(g * LANE_ROWS + row) * 4 + unit] = r < n && first < k ? source.power(r, first / 32) : 127;
      }
    } else {
      for (int each = 0; each < EACH; each++) {
        const int64_t first = SCALES == SCALES_GROUP ? record * ((group + 127) / 128 * 128) : record * PACKED_STEP_K + each * (PACKED_STEP_K / EACH);
        const bool inside = r < n && first < k;
        reinterpret_cast<ST*>(at)[(g * LANE_ROWS + row) * EACH + each] = inside ? source.scale(r, first / group) : from_float<ST>(0.0f);
        if (ZEROS)
          out[p.zeros_at + index * p.zero_bytes + (g * LANE_ROWS + row) * EACH + each] = inside ? source.zero(r, first / group) : 0;
      }
    }
  }
}

/** Threads of the whole grid share the work. */
template <int CODES, int SCALES, class ST, bool ZEROS, class SOURCE>
static __device__ __forceinline__ void packed_prepare(const SOURCE& source, uint8_t* out, int64_t n, int64_t k, int64_t group) {
  const packed_places p = packed_places_of<CODES, SCALES, ST, ZEROS>(n, k, group);
  const int64_t threads = (int64_t)gridDim.x * blockDim.x, thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (int64_t i = thread; i < p.tiles * p.steps * 128; i += threads)
    reinterpret_cast<uint4*>(out)[i] = packed_codes_at<CODES, SCALES>(source, i, p, n, k);
  for (int64_t i = thread / 32; i < p.tiles * p.records; i += threads / 32)
    packed_record<CODES, SCALES, ST, ZEROS>(source, i, p, out, n, k, group);
}

} // namespace accrt_cuda
#endif
