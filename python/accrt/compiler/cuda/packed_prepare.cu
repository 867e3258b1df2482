// packed_prepare.cu - a weight in a layout of the registry, in the order of packed.cuh.
//
// Instantiated with LAYOUT (an id), W_CODES, W_SCALES, W_TYPE and W_ZEROS (as packed.cuh has them),
// S_TAG (type of scales in their component) and ENTRY. Floats of 8 bits that are no numbers become
// zeros, and the scale of their row and group NaN. Blocks of 256 threads.
#include "common.cuh"

#include "packed_prepare.cuh"

#define INLINE DEVICE
#define SCALE_AT(p, i) LOAD(S_TAG)(((const TYPE(S_TAG)*)(p))[i])
#include "../kernels/layouts.h"

struct source_t {
  static constexpr bool IS_F8 = accrt_cuda::W_CODES == accrt_cuda::PACKED_E4M3 ||
                                accrt_cuda::W_CODES == accrt_cuda::PACKED_E5M2;
  weight_t w;

  __device__ bool is_number(int64_t row, int64_t k) const {
    const uint32_t low = w.data[row * w.k + k] & 0x7fu;
    return accrt_cuda::W_CODES == accrt_cuda::PACKED_E5M2 ? low < 0x7cu : low != 0x7fu;
  }
  __device__ uint32_t code(int64_t row, int64_t k) const {
    if (accrt_cuda::W_CODES == accrt_cuda::PACKED_S8)
      return (LAYOUT == Q8_0 ? w.data[(row * w.k + k) / 32 * 34 + 2 + k % 32]
                             : w.data[row * w.k + k]) ^
             0x80u;
    if (accrt_cuda::packed_form<accrt_cuda::W_CODES>::BYTES)
      return is_number(row, k) ? w.data[row * w.k + k] : 0u;
    return code_bits_at(&w, row, k);
  }
  __device__ bool all_numbers(int64_t row, int64_t first, int64_t count) const {
    bool all = true;
    for (int64_t i = first; i < first + count && i < w.k; i++)
      all = all && is_number(row, i);
    return all;
  }
  // Of `count` elements, which have one in common.
  __device__ W_TYPE scale(int64_t row, int64_t first, int64_t count) const {
    const int64_t group = first / w.group;
    float scale;
    if (LAYOUT == Q8_0 || LAYOUT == Q4_0)
      scale = f16_at(w.data + (row * w.k / 32 + group) * (LAYOUT == Q8_0 ? 34 : 18));
    else
      scale = SCALE_AT(w.scales, scale_index(&w, row, group));
    if (IS_F8 && !all_numbers(row, first, count))
      scale = float_of(0x7fc00000u);
    return accrt_cuda::from_float<W_TYPE>(scale);
  }
  __device__ uint8_t zero(int64_t row, int64_t group) const {
    return (uint8_t)zero_at(&w, row, group);
  }
  __device__ uint8_t power(int64_t row, int64_t block) const {
    if (IS_F8 && !all_numbers(row, block * 32, 32))
      return 255;
    return LAYOUT == GGML_MXFP4 ? w.data[(row * w.k / 32 + block) * 17]
                                : w.scales[row * w.k / 32 + block];
  }
  __device__ uint32_t small_scales(int64_t row, int64_t superblock, int block) const {
    return ::small_scales(w.data + (row * w.k / 256 + superblock) * 144 + 4, block);
  }
  __device__ uint32_t factors(int64_t row, int64_t superblock) const {
    return u32_at(w.data + (row * w.k / 256 + superblock) * 144);
  }
};

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const uint8_t* data, const uint8_t* scales, const uint8_t* zeros, uint8_t* out, int64_t n,
          int64_t k, int64_t group, int64_t groups, int64_t is_e5m2, int64_t tiles) {
  begin_kernel();
  const source_t source = {{data, scales, zeros, nullptr, nullptr, n, k, group, groups, is_e5m2}};
  accrt_cuda::packed_prepare<accrt_cuda::W_CODES, accrt_cuda::W_SCALES, W_TYPE, W_ZEROS>(
      source, out, n, k, group, tiles);
}
