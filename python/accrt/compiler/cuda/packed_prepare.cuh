/* packed_prepare.cuh - brings packed weights into the order in which packed.cuh reads them: record
 * by record.
 *
 * A SOURCE gives the codes and scales of a layout by row and k; it is read slowly and once, when
 * weights are loaded. Codes beyond n and k are such that they add nothing to sums. */
#ifndef ACCRT_CUDA_PACKED_PREPARE_CUH_
#define ACCRT_CUDA_PACKED_PREPARE_CUH_

#include "packed.cuh"

namespace accrt_cuda {

/** A lane's codes of a unit. */
template <int CODES, int SCALES, class SOURCE>
static __device__ __forceinline__ packed_unit<CODES> packed_codes_at(const SOURCE& source, int64_t tile, int64_t unit, int lane, int64_t n, int64_t k) {
  typedef packed_form<CODES> form;
  const int g = lane / 4, t = lane % 4;
  packed_unit<CODES> made;
  made.clear();
#pragma unroll 1
  for (int row = 0; row < form::LANE_ROWS; row++) {
    const int64_t r = tile * form::ROWS + row * 8 + g;
#pragma unroll 1
    for (int e = 0; e < 8; e++) {
      const int64_t at = unit * 32 + packed_k(SCALES, t, e);
      const uint32_t nothing = CODES == PACKED_S8 ? 0x80u : 0u;
      uint32_t code = r < n && at < k ? source.code(r, at) : nothing;
      if constexpr (SCALES == SCALES_E8M0)
        /* NaN: infinity times zero */
        code = r < n && at < k && source.power(r, at / 32) == 255 ? 0u : code;
      if constexpr (form::BYTES)
        made.low[row * 2 + e / 4] |= code << e % 4 * 8;
      else if constexpr (CODES == PACKED_E2M1)
        made.low[row] |= ((code & 7u) << (9 - e / 2 * 3) | (code >> 3) << (0xdecfu >> e / 2 * 4 & 15u)) << e % 2 * 16;
      else
        made.put(row, e, code);
    }
  }
  return made;
}

/** What follows a record's codes, of row `row` of the lanes of `g`. */
template <int CODES, int SCALES, class ST, bool ZEROS, class SOURCE>
static __device__ __forceinline__ void packed_scales_at(const SOURCE& source, uint8_t* record, int64_t tile, int64_t step, int g, int row, int64_t n,
                                                        int64_t k, int64_t group) {
  typedef packed_record<CODES, SCALES, ST, ZEROS> record_t;
  const int64_t r = tile * packed_form<CODES>::ROWS + row * 8 + g;
  uint8_t* const own = record + record_t::SCALES_AT + g * record_t::WORDS * 4;
  if constexpr (SCALES == SCALES_Q4K) {
    for (int unit = 0; unit < 4; unit++) {
      const uint32_t two = r < n ? source.small_scales(r, step / 2, (int)(step % 2) * 4 + unit) : 0u;
      own[unit * 4 + row] = (uint8_t)two;
      record[record_t::MINIMA_AT + g * 16 + row * 4 + unit] = (uint8_t)(two >> 8);
    }
    *reinterpret_cast<uint32_t*>(record + record_t::FACTORS_AT + g * 16 + row * 4) = r < n ? source.factors(r, step / 2) : 0u;
  } else if constexpr (SCALES == SCALES_E4M3) {
    for (int part = 0; part < 8; part++) {
      const int64_t first = step * PACKED_STEP_K + part * 16;
      own[row * 8 + part] = r < n && first < k ? source.e4m3(r, first / 16) : 0;
    }
  } else if constexpr (packed_is_split(SCALES)) {
    constexpr bool IS_Q6K = SCALES == SCALES_Q6K;
    for (int part = 0; part < 8; part++)
      own[row * 8 + part] = (uint8_t)(r < n ? source.small_scale(r, step / 2, (int)(step % 2) * 8 + part) : IS_Q6K ? 128u : 0u);
    const uint32_t factors = r < n ? source.factors(r, step / 2) : 0u;
    if (IS_Q6K)
      *reinterpret_cast<uint16_t*>(record + record_t::FACTORS_AT + g * 8 + row * 2) = (uint16_t)factors;
    else
      *reinterpret_cast<uint32_t*>(record + record_t::FACTORS_AT + g * 16 + row * 4) = factors;
  } else if constexpr (SCALES == SCALES_E8M0) {
    for (int unit = 0; unit < 4; unit++) {
      const int64_t first = step * PACKED_STEP_K + unit * 32;
      own[row * 4 + unit] = r < n && first < k ? source.power(r, first / 32) : 127;
    }
  } else {
    for (int each = 0; each < record_t::EACH; each++) {
      constexpr int COUNT = PACKED_STEP_K / record_t::EACH;
      const int64_t first = step * PACKED_STEP_K + each * COUNT;
      const bool inside = r < n && first < k;
      const int place = row * record_t::EACH + each;
      reinterpret_cast<ST*>(own)[place] = inside ? source.scale(r, first, COUNT) : from_float<ST>(0.0f);
      if (ZEROS)
        record[record_t::ZEROS_AT + g * record_t::ZERO_WORDS * 4 + place] = inside ? source.zero(r, first / group) : 0;
      if (SCALES == SCALES_MINIMA)
        *reinterpret_cast<uint16_t*>(record + record_t::MINIMA_AT + g * 32 + place * 2) = inside ? source.minimum(r, first / 32) : 0;
    }
  }
}

/** Warps of the whole grid share the work, a record at a time; `block_tiles` are the tiles of a
 * block of the product. */
template <int CODES, int SCALES, class ST, bool ZEROS, class SOURCE>
static __device__ __forceinline__ void packed_prepare(const SOURCE& source, uint8_t* out, int64_t n, int64_t k, int64_t group, int64_t block_tiles) {
  typedef packed_form<CODES> form;
  typedef packed_record<CODES, SCALES, ST, ZEROS> record_t;
  const int64_t steps = (k + PACKED_STEP_K - 1) / PACKED_STEP_K, records = packed_tiles(n, form::ROWS, block_tiles) * steps;
  const int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
  const int lane = threadIdx.x % 32;
  for (int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; at < records; at += warps) {
    const int64_t tile = at / steps, step = at % steps;
    uint8_t* const record = out + packed_place(tile, step, steps, block_tiles) * record_t::BYTES;
    for (int unit = 0; unit < 4; unit++)
      packed_codes_at<CODES, SCALES>(source, tile, step * 4 + unit, lane, n, k).store(record, unit, lane);
    for (int i = lane; i < 8 * form::LANE_ROWS; i += 32)
      packed_scales_at<CODES, SCALES, ST, ZEROS>(source, record, tile, step, i / form::LANE_ROWS, i % form::LANE_ROWS, n, k, group);
  }
  if constexpr (SCALES == SCALES_E4M3) {
    float* const factors = reinterpret_cast<float*>(out + records * record_t::BYTES);
    for (int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; r < records / steps * form::ROWS; r += (int64_t)gridDim.x * blockDim.x)
      factors[r] = r < n ? source.factor(r) : 0.0f;
  }
}

} // namespace accrt_cuda
#endif
