/* write/layout_encode_k.c - quantization to GGML's superblocks, whose group scales are themselves
 * quantized. As usual for them, scales are searched with larger weights for larger values, even
 * when nothing is known about activations. */
#include "write/layout_encode.h"
#include "format/layout_number.h"

#include <math.h>

#define GROUP 32
#define STEPS 20
/* Below this, a quotient by a range is not finite. No scale in f16 is that small. */
#define TINY 0x1p-100f

static float clamp(float value, float low, float high) {
  return value < low ? low : value > high ? high : value;
}

/* For fixed elements of one scale, the best scale and minimum are those of a weighted linear
 * fit. */
typedef struct line {
  float scale;
  float least;
  double error; /* without a constant term */
} line_t;

static line_t fit_line(const float* values, const float* weights, uint32_t count, float inverse,
                       float least, float most) {
  double sw = 0, sl = 0, sll = 0, sx = 0, sxl = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const float level = clamp(accx_round(inverse * (values[i] - least)), 0, most);
    const double w = (double)weights[i], l = (double)level, x = (double)values[i];
    sw += w;
    sl += w * l;
    sll += w * l * l;
    sx += w * x;
    sxl += w * x * l;
  }
  line_t line = {0, 0, 0};
  const double determinant = sw * sll - sl * sl;
  double scale = 0, offset = 0;
  if (determinant > 0) {
    scale = (sw * sxl - sx * sl) / determinant;
    offset = (sll * sx - sl * sxl) / determinant;
  }
  if (determinant <= 0 || offset > 0) { /* a minimum above 0 cannot be stored */
    offset = 0;
    scale = sll > 0 ? sxl / sll : 0;
  }
  line.scale = (float)scale;
  line.least = (float)offset;
  line.error = scale * scale * sll + 2 * scale * offset * sl + offset * offset * sw -
               2 * scale * sxl - 2 * offset * sx;
  return line;
}

void accx_layout_fit_affine(const float* values, const float* weights, uint32_t count, float most,
                            float* out_scale, float* out_least) {
  float least = 0, largest = values[0];
  for (uint32_t i = 0; i < count; ++i) {
    least = values[i] < least ? values[i] : least;
    largest = values[i] > largest ? values[i] : largest;
  }
  *out_scale = 0;
  *out_least = least;
  const float range = largest - least;
  if (range < TINY)
    return;
  line_t best = fit_line(values, weights, count, most / range, least, most);
  for (int step = 0; step <= STEPS; ++step) {
    const float inverse = (most - 1.0f + 0.1f * (float)step) / range;
    line_t line = fit_line(values, weights, count, inverse, least, most);
    if (line.scale > 0) /* again, from the result */
      line = fit_line(values, weights, count, 1.0f / line.scale, line.least, most);
    if (line.scale > 0 && line.error < best.error)
      best = line;
  }
  *out_scale = best.scale > 0 ? best.scale : 0;
  *out_least = best.least;
}

/* The scale for which scale * (low..-low - 1) is closest to the values. The extreme value becomes
 * `low` or a neighbour. */
static float fit_symmetric(const float* values, const float* weights, uint32_t count, float low) {
  float extreme = 0;
  for (uint32_t i = 0; i < count; ++i)
    extreme = fabsf(values[i]) > fabsf(extreme) ? values[i] : extreme;
  float scale = 0;
  double best = -1;
  for (int step = -9; step <= 9 && fabsf(extreme) >= TINY; ++step) {
    const float inverse = (low - 0.1f * (float)step) / extreme;
    double sxl = 0, sll = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const double level = (double)clamp(accx_round(inverse * values[i]), low, -low - 1);
      sxl += (double)weights[i] * (double)values[i] * level;
      sll += (double)weights[i] * level * level;
    }
    if (sll > 0 && sxl * sxl > best * sll) {
      best = sxl * sxl / sll;
      scale = (float)(sxl / sll);
    }
  }
  return scale;
}

/* The weights of squared errors in a group. */
static void fill_weights(const float* values, const float* importance, bool search, uint32_t count,
                         bool squares, float* out) {
  float mean = 0;
  for (uint32_t i = 0; i < count; ++i)
    mean += values[i] * values[i];
  mean = sqrtf(mean / (float)count);
  for (uint32_t i = 0; i < count; ++i) {
    if (search)
      out[i] = importance != NULL ? importance[i] : 1.0f;
    else
      out[i] = squares ? values[i] * values[i] : mean + fabsf(values[i]);
  }
}

static float largest_of(const float* values, uint32_t count) {
  float largest = values[0];
  for (uint32_t i = 1; i < count; ++i)
    largest = fabsf(values[i]) > fabsf(largest) ? values[i] : largest;
  return largest;
}

/* Packs the six-bit scales and minima of eight groups. */
static void pack_scales(const uint8_t* scales, const uint8_t* minima, unsigned char* s) {
  for (int j = 0; j < 4; ++j) {
    s[j] = (unsigned char)(scales[j] | scales[j + 4] >> 4 << 6);
    s[j + 4] = (unsigned char)(minima[j] | minima[j + 4] >> 4 << 6);
    s[j + 8] = (unsigned char)((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
  }
}

/* Quantizes eight numbers to six bits, in units of the largest. Returns that unit as f16. */
static float quantize_sixbit(const float* values, uint8_t* out, unsigned char* block) {
  const float largest = largest_of(values, 8);
  accx_store_u16(block, accx_code_f16(largest / 63.0f));
  const float unit = accx_load_f16(block);
  for (int j = 0; j < 8; ++j)
    out[j] = (uint8_t)(unit > 0 ? clamp(accx_round(values[j] / unit), 0, 63) : 0);
  return unit;
}

static void encode_q45(const float* values, const float* importance, bool search, bool five,
                       unsigned char* block) {
  const float most = five ? 31 : 15;
  float scales[8], minima[8], weights[GROUP];
  uint8_t scale_codes[8], minimum_codes[8];
  for (int j = 0; j < 8; ++j) {
    const float* group = values + GROUP * j;
    fill_weights(group, importance != NULL ? importance + GROUP * j : NULL, search, GROUP, false,
                 weights);
    accx_layout_fit_affine(group, weights, GROUP, most, &scales[j], &minima[j]);
    minima[j] = -minima[j];
  }
  const float d = quantize_sixbit(scales, scale_codes, block);
  const float dmin = quantize_sixbit(minima, minimum_codes, block + 2);
  pack_scales(scale_codes, minimum_codes, block + 4);
  unsigned char *high = block + 16, *low = block + (five ? 48 : 16);
  memset(high, 0, five ? 32 + 128 : 128);
  for (int j = 0; j < 8; ++j) {
    const float scale = d * (float)scale_codes[j], minimum = dmin * (float)minimum_codes[j];
    for (int i = 0; i < GROUP; ++i) {
      const float level =
          scale > 0 ? clamp(accx_round((values[GROUP * j + i] + minimum) / scale), 0, most) : 0;
      const unsigned code = (unsigned)level;
      low[32 * (j / 2) + i] |= (unsigned char)((code & 15) << 4 * (j & 1));
      if (five)
        high[i] |= (unsigned char)(code >> 4 << j);
    }
  }
}

static void encode_q6(const float* values, const float* importance, bool search,
                      unsigned char* block) {
  float scales[16], weights[16];
  for (int j = 0; j < 16; ++j) {
    fill_weights(values + 16 * j, importance != NULL ? importance + 16 * j : NULL, search, 16, true,
                 weights);
    scales[j] = fit_symmetric(values + 16 * j, weights, 16, -32);
  }
  memset(block, 0, 192);
  accx_store_u16(block + 208, accx_code_f16(largest_of(scales, 16) / -128.0f));
  const float d = accx_load_f16(block + 208);
  for (int j = 0; j < 16; ++j) {
    const float code = d != 0 ? clamp(accx_round(scales[j] / d), -128, 127) : 0;
    const float scale = d * code;
    block[192 + j] = (unsigned char)(int8_t)code;
    for (int i = 0; i < 16; ++i) {
      const float level = scale != 0 ? clamp(accx_round(values[16 * j + i] / scale), -32, 31) : 0;
      const unsigned q = (unsigned)((int)level + 32);
      const int group = j / 2, at = 16 * (j & 1) + i; /* among 32 elements */
      block[64 * (group / 4) + 32 * (group & 1) + at] |=
          (unsigned char)((q & 15) << 4 * (group >> 1 & 1));
      block[128 + 32 * (group / 4) + at] |= (unsigned char)(q >> 4 << 2 * (group & 3));
    }
  }
}

void accx_layout_encode_k(uint32_t layout, const float* values, const float* importance,
                          bool search, unsigned char* block) {
  if (layout == ACCRT_LAYOUT_Q6_K)
    encode_q6(values, importance, search, block);
  else
    encode_q45(values, importance, search, layout == ACCRT_LAYOUT_Q5_K, block);
}
