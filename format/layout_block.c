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

static uint32_t load_u32(const unsigned char* at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* 32 codes of five bits: fifth bits, then the low ones in halves. */
static void decode_five_bits(const unsigned char* block, float d, int base, float m, float* out) {
  const uint32_t high = load_u32(block);
  for (int i = 0; i < 16; ++i) {
    const int low = (block[4 + i] & 15) | (int)(high >> i & 1) << 4;
    const int up = block[4 + i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
    out[i] = d * (float)(low - base) + m;
    out[i + 16] = d * (float)(up - base) + m;
  }
}

static void decode_q5_0(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block);
  decode_five_bits(block + 2, d, 16, -0.0f, out); /* adding it changes nothing */
}

static void decode_q5_1(const unsigned char* block, float* out) {
  decode_five_bits(block + 4, accx_load_f16(block), 0, accx_load_f16(block + 2), out);
}

static void decode_q2_k(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block + 80), dmin = accx_load_f16(block + 82);
  for (int g = 0; g < 16; ++g) {
    const unsigned char* q = block + 16 + 32 * (g / 8) + 16 * (g & 1);
    const float scale = d * (float)(block[g] & 15), least = dmin * (float)(block[g] >> 4);
    for (int i = 0; i < 16; ++i)
      out[16 * g + i] = scale * (float)(q[i] >> 2 * (g / 2 % 4) & 3) - least;
  }
}

/* The six bits of a scale of Q3_K. */
static int q3_scale(const unsigned char* s, int g) {
  return (s[g % 8] >> 4 * (g / 8) & 15) | (s[8 + g % 4] >> 2 * (g / 4) & 3) << 4;
}

static void decode_q3_k(const unsigned char* block, float* out) {
  const float d = accx_load_f16(block + 108);
  for (int g = 0; g < 16; ++g) {
    const unsigned char *high = block + 16 * (g & 1),
                        *low = block + 32 + 32 * (g / 8) + 16 * (g & 1);
    const float scale = d * (float)(q3_scale(block + 96, g) - 32);
    for (int i = 0; i < 16; ++i) {
      const int value = (low[i] >> 2 * (g / 2 % 4) & 3) | (high[i] >> g / 2 & 1) << 2;
      out[16 * g + i] = scale * (float)(value - 4);
    }
  }
}

static void decode_iq4_nl(const unsigned char* block, float* out) {
  static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};
  const float d = accx_load_f16(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * (float)values[block[2 + i] & 15];
    out[i + 16] = d * (float)values[block[2 + i] >> 4];
  }
}

void accx_layout_decode_block(uint32_t layout, const unsigned char* block, float* out) {
  static void (*const decoders[])(const unsigned char*, float*) = {
      [ACCRT_LAYOUT_Q8_0] = decode_q8_0,
      [ACCRT_LAYOUT_Q4_0] = decode_q4_0,
      [ACCRT_LAYOUT_Q4_1] = decode_q4_1,
      [ACCRT_LAYOUT_Q4_K] = decode_q4_k,
      [ACCRT_LAYOUT_Q5_K] = decode_q5_k,
      [ACCRT_LAYOUT_Q6_K] = decode_q6_k,
      [ACCRT_LAYOUT_GGML_MXFP4] = decode_ggml_mxfp4,
      [ACCRT_LAYOUT_GGML_NVFP4] = decode_ggml_nvfp4,
      [ACCRT_LAYOUT_Q5_0] = decode_q5_0,
      [ACCRT_LAYOUT_Q5_1] = decode_q5_1,
      [ACCRT_LAYOUT_Q2_K] = decode_q2_k,
      [ACCRT_LAYOUT_Q3_K] = decode_q3_k,
      [ACCRT_LAYOUT_IQ4_NL] = decode_iq4_nl,
  };
  decoders[layout](block, out);
}
