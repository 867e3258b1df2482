// packed_prepare.cu - a weight in a layout of the registry, in the order of packed.cuh.
//
// Instantiated with LAYOUT (an id), W_CODES, W_SCALES, W_TYPE and W_ZEROS (as packed.cuh has them),
// W_BYTES (of a record), S_TAG (type of scales in their component) and ENTRY. Floats of 8 bits that
// are no numbers become zeros, and the scale of their row and group NaN. Blocks of 256 threads.
#include "common.cuh"

#include "packed_prepare.cuh"

#define INLINE DEVICE
#define SCALE_AT(p, i) LOAD(S_TAG)(((const TYPE(S_TAG)*)(p))[i])
#include "../kernels/layouts.h"

static_assert(accrt_cuda::packed_record<accrt_cuda::W_CODES, accrt_cuda::W_SCALES, W_TYPE,
                                        W_ZEROS>::BYTES == W_BYTES,
              "the compiler counts other bytes");

struct source_t {
  static constexpr bool IS_F8 = accrt_cuda::W_CODES == accrt_cuda::PACKED_E4M3 ||
                                accrt_cuda::W_CODES == accrt_cuda::PACKED_E5M2;
  // Of blocks of 32 that begin with a scale of f16, and of blocks of 256.
  static constexpr int BLOCK_BYTES = LAYOUT == Q8_0                         ? 34
                                     : LAYOUT == Q4_0 || LAYOUT == IQ4_NL ? 18
                                     : LAYOUT == Q4_1                       ? 20
                                     : LAYOUT == Q5_0                       ? 22
                                     : LAYOUT == Q5_1                       ? 24
                                                                            : 0;
  static constexpr int SUPERBLOCK_BYTES = LAYOUT == Q2_K   ? 84
                                          : LAYOUT == Q3_K ? 110
                                          : LAYOUT == Q4_K ? 144
                                          : LAYOUT == Q5_K ? 176
                                                           : 210;
  weight_t w;

  __device__ const uint8_t* superblock_at(int64_t row, int64_t superblock) const {
    return w.data + (row * w.k / 256 + superblock) * SUPERBLOCK_BYTES;
  }
  __device__ bool is_number(int64_t row, int64_t k) const {
    const uint32_t low = w.data[row * w.k + k] & 0x7fu;
    return accrt_cuda::W_CODES == accrt_cuda::PACKED_E5M2 ? low < 0x7cu : low != 0x7fu;
  }
  __device__ uint32_t code(int64_t row, int64_t k) const {
    if (accrt_cuda::W_CODES == accrt_cuda::PACKED_S8)
      return LAYOUT == Q8_0 ? w.data[(row * w.k + k) / 32 * 34 + 2 + k % 32] ^ 0x80u
                            : biased_byte_at(&w, row, k);
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
    if (BLOCK_BYTES != 0)
      scale = f16_at(w.data + (row * w.k / 32 + group) * BLOCK_BYTES);
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
  __device__ uint8_t e4m3(int64_t row, int64_t sixteen) const {
    return (uint8_t)e4m3_scale_at(&w, row, sixteen);
  }
  __device__ float factor(int64_t row) const {
    return row_factor(&w, row);
  }
  // Beside the scale of a block of 32.
  __device__ uint16_t minimum(int64_t row, int64_t block) const {
    return (uint16_t)u16_at(w.data + (row * w.k / 32 + block) * BLOCK_BYTES + 2);
  }
  __device__ uint32_t small_scales(int64_t row, int64_t superblock, int block) const {
    return ::small_scales(superblock_at(row, superblock) + 4, block);
  }
  // Of 16 elements: signed and plus 128, or a scale and a minimum of 4 bits.
  __device__ uint32_t small_scale(int64_t row, int64_t superblock, int part) const {
    const uint8_t* const b = superblock_at(row, superblock);
    if (LAYOUT == Q2_K)
      return b[part];
    return (uint32_t)((LAYOUT == Q3_K ? q3_scale(b + 96, part) : (int8_t)b[192 + part]) + 128);
  }
  // Of f16, and in the upper half that of minima.
  __device__ uint32_t factors(int64_t row, int64_t superblock) const {
    const uint8_t* const b = superblock_at(row, superblock);
    if (LAYOUT == Q6_K || LAYOUT == Q3_K)
      return u16_at(b + SUPERBLOCK_BYTES - 2);
    return u32_at(LAYOUT == Q2_K ? b + 80 : b);
  }
};

extern "C" __global__ void __launch_bounds__(256)
    ENTRY(const uint8_t* data, const uint8_t* scales, const uint8_t* zeros,
          const uint8_t* global_scale, uint8_t* out, int64_t n, int64_t k, int64_t group,
          int64_t groups, int64_t is_e5m2, int64_t tiles) {
  begin_kernel();
  const source_t source = {
      {data, scales, zeros, nullptr, global_scale, n, k, group, groups, is_e5m2}};
  accrt_cuda::packed_prepare<accrt_cuda::W_CODES, accrt_cuda::W_SCALES, W_TYPE, W_ZEROS>(
      source, out, n, k, group, tiles);
}
