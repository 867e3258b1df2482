// lora_tiles.cuh - low-rank products of tokens of one adapter on tensor cores, for 16-bit types: 16
// tokens by 16 rows of factors, and 16 tokens by 64 columns. Nothing goes through shared memory but
// sums: rows are read in pieces of 16 bytes whose order among the threads of a tile is the same for
// both sides, and does not matter for a sum.
//
// A tile's thread is lane 4 g + q. What a token gets does not depend on the others of its tile.
#ifndef ACCRT_CUDA_LORA_TILES_CUH_
#define ACCRT_CUDA_LORA_TILES_CUH_

#include "common.cuh"
#include "tensorcore.cuh"

template <class T> struct tensor_type;
template <> struct tensor_type<bf16_t> { typedef accrt_cuda::bf16 type; };
template <> struct tensor_type<f16_t> { typedef accrt_cuda::f16 type; };

// c[16 x 8] += a[16 x 8] b[8 x 8], numbers of a and b with 11 bits.
DEVICE void multiply_add_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE uint4 load_piece(const void* at, bool inside) {
  return inside ? *(const uint4*)at : make_uint4(0, 0, 0, 0);
}

// Sums of MS x 16 tokens by 16 rows of factors over the pieces of 32 numbers that the warp has, one
// for each warp of `warps` in turn. x: rows g and g + 8 of each 16 tokens. factors: rows g and
// g + 8, NULL for none.
template <int MS, class T>
DEVICE void shrink_tiles(const T* const (&x)[2 * MS], const T* const (&factors)[2], index_t size,
                         int warp, int warps, int lane, float (&sums)[MS][2][4]) {
  typedef typename tensor_type<T>::type number;
#pragma unroll(MS == 1 ? 4 : 1)
  for (index_t first = 32 * (index_t)warp; first < size; first += 32 * (index_t)warps) {
    const index_t at = first + 8 * (lane % 4);
    const bool inside = at < size; // all lanes of a warp multiply
    uint4 f[2], own[2 * MS];
#pragma unroll
    for (int n = 0; n < 2; n++)
      f[n] = load_piece(factors[n] + at, inside && factors[n] != NULL);
#pragma unroll
    for (int m = 0; m < 2 * MS; m++)
      own[m] = load_piece(x[m] + at, inside);
#pragma unroll
    for (int m = 0; m < MS; m++) {
      const uint4 low = own[2 * m], high = own[2 * m + 1];
      const uint32_t first[4] = {low.x, high.x, low.y, high.y};
      const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const uint32_t b[2][2] = {{f[n].x, f[n].y}, {f[n].z, f[n].w}};
        accrt_cuda::multiply_add<number>(sums[m][n], first, b[0]);
        accrt_cuda::multiply_add<number>(sums[m][n], second, b[1]);
      }
    }
  }
}

// A number as two of 11 bits: enough for a sum of f32 whose other factor has 16 bits.
DEVICE void split_tf32(float x, uint32_t& high, uint32_t& low) {
  high = __float_as_uint(x) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// sums[j] (16 tokens by the columns 8 g + j) += shrunk (16 x rank) by factors (rank x 64). shrunk:
// rows g and g + 8. factors: the first row at the thread's own eight columns, NULL for none.
template <class T>
DEVICE void expand_tiles(const float* const (&shrunk)[2], const T* factors, index_t rank,
                         index_t size, int lane, float (&sums)[8][4]) {
  typedef typename tensor_type<T>::type number;
#pragma unroll 2
  for (index_t base = 0; base < rank; base += 8) {
    const index_t k[2] = {base + lane % 4, base + lane % 4 + 4};
    uint4 f[2];
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      f[i] = load_piece(factors + k[i] * size, factors != NULL && k[i] < rank);
#pragma unroll
      for (int row = 0; row < 2; row++)
        split_tf32(k[i] < rank ? shrunk[row][k[i]] : 0.0f, high[2 * i + row], low[2 * i + row]);
    }
    const uint32_t words[2][4] = {{f[0].x, f[0].y, f[0].z, f[0].w},
                                  {f[1].x, f[1].y, f[1].z, f[1].w}};
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const uint32_t b0 = __float_as_uint(accrt_cuda::half_of_word<number>(words[0][j / 2], j % 2));
      const uint32_t b1 = __float_as_uint(accrt_cuda::half_of_word<number>(words[1][j / 2], j % 2));
      multiply_add_tf32(sums[j], high, b0, b1);
      multiply_add_tf32(sums[j], low, b0, b1);
    }
  }
}

#endif // ACCRT_CUDA_LORA_TILES_CUH_
