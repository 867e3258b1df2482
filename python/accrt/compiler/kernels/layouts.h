/* layouts.h - weights in the layouts of the registry (docs/layouts.md), element by element: codes,
 * scales and values.
 *
 * For C and for CUDA. Before it is included: INLINE, the declaration of an inline function, and
 * LAYOUT, an id of accrt/layout.h; SCALE_AT(p, i), which gives the i-th scale of a component as a
 * float. Sizes are not checked: the compiler did. Groups of columns are, for they are
 * data, which may be hostile: an element of a group that is not there is NaN. */
#ifndef ACCRT_KERNELS_LAYOUTS_H_
#define ACCRT_KERNELS_LAYOUTS_H_

/* layouts: made of format/format.def */
enum {
  F8_TENSOR = 2,
  F8_CHANNEL = 3,
  F8_BLOCK128 = 4,
  I8_CHANNEL = 5,
  I8_GROUP = 6,
  I4_GROUP = 7,
  I4_GROUP_ASYM = 8,
  GPTQ_V1 = 9,
  GPTQ_V2 = 10,
  AWQ = 11,
  Q8_0 = 16,
  Q4_0 = 17,
  Q4_1 = 18,
  Q4_K = 19,
  Q5_K = 20,
  Q6_K = 21,
  GGML_MXFP4 = 22,
  GGML_NVFP4 = 23,
  MXFP4 = 24,
  MXFP8 = 25,
  NVFP4 = 26,
  Q5_0 = 27,
  Q5_1 = 28,
  Q2_K = 29,
  Q3_K = 30,
  IQ4_NL = 31,
};
/* layouts: end */
/* Of checkpoints of compressed-tensors alone (encodings.APART): zero points packed along rows, INT8
 * in words (plus 128) or with zero points, NVFP4 with a global scale that divides. */
enum { CT_I4_ASYM = 128, CT_I8 = 129, CT_I8_ASYM = 130, I8_ASYM = 131, CT_NVFP4 = 132 };

/* A weight [..., n, k] with the components that its layout has; rows are those of all matrices.
 * `is_e5m2`: of 8-bit floats. */
typedef struct {
  const uint8_t *data, *scales, *zeros, *group_index, *global_scale;
  int64_t n, k, group, groups, is_e5m2;
} weight_t;

INLINE uint32_t u16_at(const uint8_t* p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}
INLINE uint32_t u32_at(const uint8_t* p) {
  return u16_at(p) | u16_at(p + 2) << 16;
}
INLINE float float_of(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
#endif
}
INLINE uint32_t bits_of(float x) {
#ifdef __CUDACC__
  return __float_as_uint(x);
#else
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return u;
#endif
}
/* A float of 16 bits or less whose exponent field ends where that of f32 would, so many binary
 * orders too small. */
INLINE float f16_at(const uint8_t* p) {
  uint32_t h = u16_at(p), magnitude = (h & 0x7FFFu) << 13, sign = (h & 0x8000u) << 16;
  uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
  return float_of(sign | ((h & 0x7C00u) == 0x7C00u ? magnitude | 0x7F800000u : finite));
}
INLINE float f8_value(uint32_t b, int64_t is_e5m2) {
  uint32_t sign = (b & 0x80u) << 24, low = b & 0x7Fu;
  if (is_e5m2) {
    uint32_t finite = bits_of(float_of(low << 21) * 0x1p112f);
    return float_of(sign | (low >= 0x7Cu ? low << 21 | 0x7F800000u : finite));
  }
  return float_of(sign | (low == 0x7Fu ? 0x7FC00000u : bits_of(float_of(low << 20) * 0x1p120f)));
}
INLINE float e2m1_value(uint32_t code) {
  return float_of((code & 8u) << 28 | bits_of(float_of((code & 7u) << 22) * 0x1p126f));
}
/* 2^(e - 127); 255 is NaN. */
INLINE float e8m0_value(uint32_t e) {
  return float_of(e == 0 ? 0x00400000u : e == 255 ? 0x7FC00000u : e << 23);
}
/* 2^(e - 128). */
INLINE float e8m0_half(uint32_t e) {
  return float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}
/* Unsigned e4m3, halved; 0x7F is zero. */
INLINE float ue4m3_half(uint32_t b) {
  return b == 0x7Fu ? 0.0f : float_of((b & 0x7Fu) << 20) * 0x1p119f;
}

INLINE uint32_t nibble_at(const uint8_t* p, int64_t i) {
  return (uint32_t)p[i / 2] >> (i & 1) * 4 & 15u;
}
INLINE uint32_t word_nibble(const uint8_t* words, int64_t word, int64_t i) {
  return u32_at(words + 4 * word) >> 4 * i & 15u;
}
INLINE int64_t group_of(const weight_t* w, int64_t k) {
  return w->group_index ? (int64_t)(int32_t)u32_at(w->group_index + 4 * k) : k / w->group;
}

/* The first column whose group is none of the weight's; k where there is no such. */
INLINE int64_t group_index_fault(const weight_t* w) {
  int64_t k = 0;
  while (k < w->k && (!w->group_index || (uint64_t)group_of(w, k) < (uint64_t)w->groups))
    k++;
  return k;
}

/* Element e of 32 codes of five bits: fifth bits, then the low ones in halves. */
INLINE uint32_t five_bits_at(const uint8_t* b, int64_t e) {
  return ((uint32_t)b[4 + e % 16] >> (e / 16 * 4) & 15u) | ((uint32_t)b[e / 8] >> e % 8 & 1u) << 4;
}

/* The code of a layout whose codes have up to six bits, as it is stored. */
INLINE uint32_t code_bits_at(const weight_t* w, int64_t row, int64_t k) {
  int64_t e = k % 32;
  switch (LAYOUT) {
  case Q4_0:
    return (uint32_t)w->data[(row * w->k + k) / 32 * 18 + 2 + e % 16] >> (e / 16 * 4) & 15u;
  case IQ4_NL:
    return (uint32_t)w->data[(row * w->k + k) / 32 * 18 + 2 + e % 16] >> (e / 16 * 4) & 15u;
  case Q4_1:
    return (uint32_t)w->data[(row * w->k + k) / 32 * 20 + 4 + e % 16] >> (e / 16 * 4) & 15u;
  case Q5_0:
    return five_bits_at(w->data + (row * w->k + k) / 32 * 22 + 2, e);
  case Q5_1:
    return five_bits_at(w->data + (row * w->k + k) / 32 * 24 + 4, e);
  case Q2_K: {
    const uint8_t* b = w->data + (row * w->k + k) / 256 * 84;
    return (uint32_t)b[16 + k % 256 / 128 * 32 + e] >> 2 * (k / 32 & 3) & 3u;
  }
  case Q3_K: {
    const uint8_t* b = w->data + (row * w->k + k) / 256 * 110;
    return ((uint32_t)b[32 + k % 256 / 128 * 32 + e] >> 2 * (k / 32 & 3) & 3u) |
           ((uint32_t)b[e] >> k % 256 / 32 & 1u) << 2;
  }
  case Q6_K: {
    const uint8_t* b = w->data + (row * w->k + k) / 256 * 210;
    int64_t h = k % 256 / 128, g = k % 128 / 32;
    return ((uint32_t)b[64 * h + e + 32 * (g & 1)] >> 4 * (g >> 1) & 15u) |
           ((uint32_t)b[128 + 32 * h + e] >> 2 * g & 3u) << 4;
  }
  case GGML_MXFP4:
    return (uint32_t)w->data[(row * w->k + k) / 32 * 17 + 1 + e % 16] >> (e / 16 * 4) & 15u;
  case Q4_K:
    return (uint32_t)w->data[(row * w->k + k) / 256 * 144 + 16 + k % 256 / 64 * 32 + e] >>
               (k / 32 & 1) * 4 &
           15u;
  case Q5_K: {
    const uint8_t* b = w->data + (row * w->k + k) / 256 * 176;
    return ((uint32_t)b[48 + k % 256 / 64 * 32 + e] >> (k / 32 & 1) * 4 & 15u) +
           ((uint32_t)b[16 + e] >> k % 256 / 32 & 1u) * 16;
  }
  case GGML_NVFP4:
    return (uint32_t)w->data[(row * w->k + k) / 64 * 36 + 4 + k % 64 / 16 * 8 + k % 8] >>
               (k % 16 / 8 * 4) &
           15u;
  case GPTQ_V1:
  case GPTQ_V2:
    return word_nibble(w->data, k / 8 * w->n + row, k % 8);
  case AWQ:
    return word_nibble(w->data, k * (w->n / 8) + row / 8, 0x73625140 >> row % 8 * 4 & 15);
  default: /* the row's elements, the even one in the low nibble */
    return nibble_at(w->data, row * w->k + k);
  }
}

/* Q4_K and Q5_K: the scale of a block of 32, and its minimum eight bits higher. */
INLINE uint32_t small_scales(const uint8_t* s, int64_t j) {
  if (j < 4)
    return (s[j] & 63u) | (uint32_t)(s[j + 4] & 63u) << 8;
  return ((s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4) |
         ((uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4) << 8;
}

/* Q3_K: the scale of a group of 16. */
INLINE int32_t q3_scale(const uint8_t* s, int64_t g) {
  return (int32_t)(((uint32_t)s[g % 8] >> g / 8 * 4 & 15u) |
                   ((uint32_t)s[8 + g % 4] >> 2 * (g / 4) & 3u) << 4) -
         32;
}

/* IQ4_NL: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113. */
INLINE int32_t iq4_value(uint32_t code) {
  uint64_t four = code < 8 ? 0x766A5D4F3F2D1801ull : 0xF1D9C5B5A6998D81ull;
  return (int32_t)(four >> 8 * (code & 7u) & 255u) - 128;
}

/* Where the scale of an element is, in a component of scales. */
INLINE int64_t scale_index(const weight_t* w, int64_t row, int64_t group) {
  switch (LAYOUT) {
  case F8_TENSOR:
    return 0;
  case F8_CHANNEL:
  case I8_CHANNEL:
    return row;
  case F8_BLOCK128:
    return (row / w->n * ((w->n + 127) / 128) + row % w->n / 128) * w->groups + group;
  case GPTQ_V1:
  case GPTQ_V2:
  case AWQ:
    return group * w->n + row;
  default:
    return row * w->groups + group;
  }
}

/* A code of 8 bits, plus 128. */
INLINE uint32_t biased_byte_at(const weight_t* w, int64_t row, int64_t k) {
  return w->data[row * w->k + k] ^ (LAYOUT == CT_I8 || LAYOUT == CT_I8_ASYM ? 0u : 0x80u);
}

INLINE uint32_t zero_at(const weight_t* w, int64_t row, int64_t group) {
  switch (LAYOUT) {
  case CT_I4_ASYM:
    return word_nibble(w->zeros, row / 8 * w->groups + group, row % 8);
  case CT_I8:
    return 128;
  case CT_I8_ASYM:
    return w->zeros[(row / 4 * w->groups + group) * 4 + row % 4];
  case I8_ASYM:
    return w->zeros[row * w->groups + group] ^ 0x80u;
  case I4_GROUP:
    return 8;
  case GPTQ_V1:
    return word_nibble(w->zeros, group * (w->n / 8) + row / 8, row % 8) + 1;
  case GPTQ_V2:
    return word_nibble(w->zeros, group * (w->n / 8) + row / 8, row % 8);
  case AWQ:
    return word_nibble(w->zeros, group * (w->n / 8) + row / 8, 0x73625140 >> row % 8 * 4 & 15);
  default:
    return nibble_at(w->zeros, row * ((w->groups + 1) / 2 * 2) + group);
  }
}

/* NVFP4: what all scales are multiplied by. */
INLINE float global_factor(const weight_t* w) {
  if (LAYOUT == GGML_NVFP4)
    return 1.0f;
  float whole = float_of(u32_at(w->global_scale));
  return LAYOUT == CT_NVFP4 ? 1.0f / whole : whole;
}
/* The scale of sixteen elements as a byte of e4m3. */
INLINE uint32_t e4m3_scale_at(const weight_t* w, int64_t row, int64_t group) {
  if (LAYOUT != GGML_NVFP4)
    return w->scales[row * w->groups + group];
  uint32_t b = w->data[(row * w->groups + group) / 4 * 36 + group % 4];
  return b == 0x7Fu ? 0u : b & 0x7Fu;
}
/* The same for a whole row, NaN where one of its scales is: readers of packed forms take a scale of
 * 0x7F for 480, as ggml does, and every product with such a row is NaN. */
INLINE float row_factor(const weight_t* w, int64_t row) {
  int found = 0;
  for (int64_t g = 0; g < w->groups; g++)
    found |= (e4m3_scale_at(w, row, g) & 0x7Fu) == 0x7Fu;
  return found && LAYOUT != GGML_NVFP4 ? float_of(0x7FC00000u) : global_factor(w);
}

/* The element itself, in f32, in the order of operations that the registry says. */
INLINE float value_at(const weight_t* w, int64_t row, int64_t k) {
  int64_t at = row * w->k + k;
  switch (LAYOUT) {
  case F8_TENSOR:
  case F8_CHANNEL:
  case F8_BLOCK128:
    return f8_value(w->data[at], w->is_e5m2) *
           SCALE_AT(w->scales, scale_index(w, row, k / w->group));
  case I8_CHANNEL:
  case I8_GROUP:
    return (float)(int8_t)w->data[at] * SCALE_AT(w->scales, scale_index(w, row, k / w->group));
  case CT_I8:
  case CT_I8_ASYM:
  case I8_ASYM: {
    int32_t zero = (int32_t)zero_at(w, row, k / w->group);
    return (float)((int32_t)biased_byte_at(w, row, k) - zero) *
           SCALE_AT(w->scales, scale_index(w, row, k / w->group));
  }
  case CT_I4_ASYM:
  case I4_GROUP:
  case I4_GROUP_ASYM:
  case GPTQ_V1:
  case GPTQ_V2:
  case AWQ: {
    int64_t g = group_of(w, k);
    if (w->group_index && (uint64_t)g >= (uint64_t)w->groups)
      return float_of(0x7FC00000u); /* who can fail looks before: group_index_fault */
    return (float)((int32_t)code_bits_at(w, row, k) - (int32_t)zero_at(w, row, g)) *
           SCALE_AT(w->scales, scale_index(w, row, g));
  }
  case Q8_0:
    return f16_at(w->data + at / 32 * 34) * (float)(int8_t)w->data[at / 32 * 34 + 2 + k % 32];
  case Q4_0:
    return f16_at(w->data + at / 32 * 18) * (float)((int32_t)code_bits_at(w, row, k) - 8);
  case Q4_1:
    return f16_at(w->data + at / 32 * 20) * (float)code_bits_at(w, row, k) +
           f16_at(w->data + at / 32 * 20 + 2);
  case Q4_K:
  case Q5_K: {
    const uint8_t* b = w->data + at / 256 * (LAYOUT == Q4_K ? 144 : 176);
    uint32_t two = small_scales(b + 4, k % 256 / 32);
    float scale = f16_at(b) * (float)(two & 255u), least = f16_at(b + 2) * (float)(two >> 8);
    return scale * (float)code_bits_at(w, row, k) - least;
  }
  case Q5_0:
    return f16_at(w->data + at / 32 * 22) * (float)((int32_t)code_bits_at(w, row, k) - 16);
  case Q5_1:
    return f16_at(w->data + at / 32 * 24) * (float)code_bits_at(w, row, k) +
           f16_at(w->data + at / 32 * 24 + 2);
  case IQ4_NL:
    return f16_at(w->data + at / 32 * 18) * (float)iq4_value(code_bits_at(w, row, k));
  case Q2_K: {
    const uint8_t* b = w->data + at / 256 * 84;
    uint32_t two = b[k % 256 / 16];
    float scale = f16_at(b + 80) * (float)(two & 15u), least = f16_at(b + 82) * (float)(two >> 4);
    return scale * (float)code_bits_at(w, row, k) - least;
  }
  case Q3_K: {
    const uint8_t* b = w->data + at / 256 * 110;
    float scale = f16_at(b + 108) * (float)q3_scale(b + 96, k % 256 / 16);
    return scale * (float)((int32_t)code_bits_at(w, row, k) - 4);
  }
  case Q6_K: {
    const uint8_t* b = w->data + at / 256 * 210;
    float scale = f16_at(b + 208) * (float)(int8_t)b[192 + k % 256 / 16];
    return scale * (float)((int32_t)code_bits_at(w, row, k) - 32);
  }
  case GGML_MXFP4:
    return e8m0_half(w->data[at / 32 * 17]) * (e2m1_value(code_bits_at(w, row, k)) * 2.0f);
  case GGML_NVFP4:
    return ue4m3_half(w->data[at / 64 * 36 + k % 64 / 16]) *
           (e2m1_value(code_bits_at(w, row, k)) * 2.0f);
  case MXFP4:
    return e8m0_value(w->scales[at / 32]) * e2m1_value(nibble_at(w->data, at));
  case MXFP8:
    return e8m0_value(w->scales[at / 32]) * f8_value(w->data[at], w->is_e5m2);
  case CT_NVFP4:
  case NVFP4: {
    float scale = f8_value(w->scales[at / 16], 0) * global_factor(w);
    return scale * e2m1_value(nibble_at(w->data, at));
  }
  default:
    return 0.0f;
  }
}

#endif /* ACCRT_KERNELS_LAYOUTS_H_ */
