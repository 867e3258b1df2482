/* format/layout_block.c - one block of each layout that is one run of blocks, to f32, exactly: in
 * the order of f32 operations of docs/layouts.md. It is built without contraction (a * b + c is two
 * operations), and may not allocate. */
#include "format/layout.h"
#include "format/layout_number.h"

static void decode_q8_0(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block);
  for (int i = 0; i < 32; ++i)
    out[i] = d * (float)(int8_t)block[2 + i];
}

static void decode_q4_0(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * (float)((block[2 + i] & 15) - 8);
    out[i + 16] = d * (float)((block[2 + i] >> 4) - 8);
  }
}

static void decode_q4_1(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block), m = accx_load_f16(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * (float)(block[4 + i] & 15) + m;
    out[i + 16] = d * (float)(block[4 + i] >> 4) + m;
  }
}

/* The eight scales and minima of Q4_K and Q5_K: six bits each. */
static void unpack_scales(const unsigned char* s, float d, float dmin, float* scales,
                          float* minima) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = d * (float)(s[j] & 63);
    minima[j] = dmin * (float)(s[j + 4] & 63);
    scales[j + 4] = d * (float)((s[j + 8] & 15) | s[j] >> 6 << 4);
    minima[j + 4] = dmin * (float)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
  }
}

static void decode_q4_k(const unsigned char* block, float* out) {
  float scales[8], minima[8];
  unpack_scales(block + 4, accx_load_f16(block), accx_load_f16(block + 2), scales, minima);
  for (int j = 0; j < 8; ++j) {
    const unsigned char* q = block + 16 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i)
      out[32 * j + i] = scales[j] * (float)(q[i] >> 4 * (j & 1) & 15) - minima[j];
  }
}

static void decode_q5_k(const unsigned char* block, float* out) {
  float scales[8], minima[8];
  unpack_scales(block + 4, accx_load_f16(block), accx_load_f16(block + 2), scales, minima);
  for (int j = 0; j < 8; ++j) {
    const unsigned char *high = block + 16, *q = block + 48 + 32 * (j / 2);
    for (int i = 0; i < 32; ++i) {
      const int value = (q[i] >> 4 * (j & 1) & 15) | (high[i] >> j & 1) << 4;
      out[32 * j + i] = scales[j] * (float)value - minima[j];
    }
  }
}

static void decode_q6_k(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block + 208);
  for (int g = 0; g < 8; ++g) { /* 32 elements of two scales */
    const unsigned char* low = block + 64 * (g / 4) + 32 * (g & 1);
    const unsigned char* high = block + 128 + 32 * (g / 4);
    const int low_shift = 4 * (g >> 1 & 1), high_shift = 2 * (g & 3);
    const float scales[2] = {d * (float)(int8_t)block[192 + 2 * g],
                             d * (float)(int8_t)block[193 + 2 * g]};
    for (int i = 0; i < 32; ++i) {
      const int value = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
      out[32 * g + i] = scales[i / 16] * (float)(value - 32);
    }
  }
}

/* 2 * count elements in halves; GGML has no negative zero. */
static void decode_fp4_halves(const unsigned char* q, int count, float d, float* out) {
  static const int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int i = 0; i < count; ++i) {
    out[i] = d * (float)values[q[i] & 15];
    out[i + count] = d * (float)values[q[i] >> 4];
  }
}

static void decode_ggml_mxfp4(const unsigned char* block, float* out) {
  decode_fp4_halves(block + 1, 16, accx_f8e8m0_half(block[0]), out);
}

static void decode_ggml_nvfp4(const unsigned char* block, float* out) {
  for (int g = 0; g < 4; ++g)
    decode_fp4_halves(block + 4 + 8 * g, 8, accx_ue4m3_half(block[g]), out + 16 * g);
}

void accx_layout_decode_block(uint32_t layout, const unsigned char* block, float* out) {
  static void (*const decoders[])(const unsigned char*, float*) = {
      decode_q8_0, decode_q4_0, decode_q4_1,       decode_q4_k,
      decode_q5_k, decode_q6_k, decode_ggml_mxfp4, decode_ggml_nvfp4};
  decoders[layout - ACCRT_LAYOUT_Q8_0](block, out);
}
