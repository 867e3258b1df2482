/* vmath.h - elementary functions of float for vectorized loops: no branches, no tables but one, no
 * calls.
 *
 * Each is written as scalar code that gcc and clang turn into vectors. FMA is asked for by name,
 * since the units are compiled without contraction. Infinities, NaN, signed zeros and subnormals
 * are right for every input; error bounds in units in the last place are measured by
 * tests/python/test_kernels_math.py, exhaustively or over all exponents. */
#ifndef ACCRT_KERNELS_VMATH_H_
#define ACCRT_KERNELS_VMATH_H_

#include "common.h"
#include "trig_table.h"

#define FMA __builtin_fmaf
#define FMAD __builtin_fma
#define ROUND_MAGIC                                                                                \
  0x1.8p23f /* adding it rounds a float below 2^22 to an integer in the low bits */
#define ROUND_MAGIC_D 0x1.8p52 /* the same for double below 2^51 */

ALWAYS_INLINE float select_f32(int condition, float a, float b) {
  return condition ? a : b;
}

/* 2^n as two factors, so that results in the subnormal range round once and those past the largest
 * overflow. */
ALWAYS_INLINE float scale_exp2(float x, int32_t n) {
  int32_t half = n >> 1;
  return x * f32_bits((uint32_t)(half + 127) << 23) * f32_bits((uint32_t)(n - half + 127) << 23);
}

/* exp(x) as 2^n * (1 + p): Cody-Waite reduction to |r| <= ln2/2 and the polynomial of Cephes expf
 * (S. Moshier). x is clamped: n has few digits. */
typedef struct {
  float p;
  uint32_t n; /* modulo 2^32 */
} exp_parts_t;
ALWAYS_INLINE exp_parts_t exp_parts(float x) {
  float t = FMA(x, 0x1.715476p0f, ROUND_MAGIC);
  float n = t - ROUND_MAGIC;
  float r = FMA(n, -0x1.62e400p-1f, x);
  r = FMA(n, -0x1.7f7d1cp-20f, r);
  float p = 1.9875691500e-4f;
  p = FMA(p, r, 1.3981999507e-3f);
  p = FMA(p, r, 8.3334519073e-3f);
  p = FMA(p, r, 4.1665795894e-2f);
  p = FMA(p, r, 1.6666665459e-1f);
  p = FMA(p, r, 5.0000001201e-1f);
  exp_parts_t parts = {FMA(p, r * r, r), bits_f32(t) - bits_f32(ROUND_MAGIC)};
  return parts;
}

/* exp. <= 1 ULP. */
ALWAYS_INLINE float m_exp(float x) {
  float clamped = x > 89.0f ? 89.0f : x;
  clamped = clamped < -105.0f ? -105.0f : clamped;
  exp_parts_t parts = exp_parts(clamped);
  return scale_exp2(parts.p + 1.0f, (int32_t)parts.n);
}

/* exp for x <= 0 alone, as a softmax needs it: one scaling factor, and 0 below -87.3 instead of
 * subnormals. */
ALWAYS_INLINE float m_exp_nonpositive(float x) {
  float clamped = x < -88.0f ? -88.0f : x;
  exp_parts_t parts = exp_parts(clamped);
  float value = (parts.p + 1.0f) * f32_bits((parts.n + 127u) << 23);
  return x < -87.3f ? 0.0f : value;
}

/* log: mantissa in [sqrt(1/2), sqrt(2)) and the polynomial of Cephes logf (S. Moshier). <= 1 ULP.
 */
ALWAYS_INLINE float m_log(float x) {
  int subnormal = x < 0x1p-126f;
  float scaled = subnormal ? x * 0x1p23f : x;
  uint32_t u = bits_f32(scaled) - 0x3F3504F3u;
  float e = (float)((int32_t)u >> 23) - (subnormal ? 23.0f : 0.0f);
  float f = f32_bits((u & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
  float p = 7.0376836292e-2f;
  p = FMA(p, f, -1.1514610310e-1f);
  p = FMA(p, f, 1.1676998740e-1f);
  p = FMA(p, f, -1.2420140846e-1f);
  p = FMA(p, f, 1.4249322787e-1f);
  p = FMA(p, f, -1.6668057665e-1f);
  p = FMA(p, f, 2.0000714765e-1f);
  p = FMA(p, f, -2.4999993993e-1f);
  p = FMA(p, f, 3.3333331174e-1f);
  float square = f * f;
  float y = FMA(e, -2.12194440e-4f, p * f * square);
  y = FMA(square, -0.5f, y);
  y = FMA(e, 0.693359375f, f + y);
  y = x == 0.0f ? -__builtin_inff() : y;
  y = x == __builtin_inff() ? x : y;
  return (x < 0.0f || x != x) ? __builtin_nanf("") : y;
}

/* log(1 + x): of the rounded sum, by how far the sum is from 1 in truth (W. Kahan). <= 3 ULP. */
ALWAYS_INLINE float m_log1p(float x) {
  float u = 1.0f + x, d = u - 1.0f;
  float y = m_log(u) * (x / (d == 0.0f ? 1.0f : d));
  y = d == 0.0f ? x : y;
  return x == __builtin_inff() ? x : y;
}

/* exp(x) - 1: as exp, where 1 is taken from the power of two and not from the sum. <= 2 ULP. */
ALWAYS_INLINE float m_expm1(float x) {
  float clamped = x > 80.0f ? 80.0f : x;
  clamped = clamped < -20.0f ? -20.0f : clamped;
  exp_parts_t parts = exp_parts(clamped);
  float scale = f32_bits((parts.n + 127u) << 23);
  float y = FMA(scale, parts.p, scale - 1.0f);
  y = x > 80.0f ? m_exp(x) : y;
  return x == 0.0f ? x : y; /* -0 stays -0 */
}

/* tanh: the polynomial of Cephes tanhf (S. Moshier) below 0.625, 1 - 2 / (exp(2x) + 1) above. <= 2
 * ULP. */
ALWAYS_INLINE float m_tanh(float x) {
  float a = __builtin_fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = FMA(p, z, 2.06390887954e-2f);
  p = FMA(p, z, -5.37397155531e-2f);
  p = FMA(p, z, 1.33314422036e-1f);
  p = FMA(p, z, -3.33332819422e-1f);
  float near = FMA(p * z, x, x);
  float far = 1.0f - 2.0f / (m_exp(a + a) + 1.0f);
  return __builtin_copysignf(a < 0.625f ? near : far, x); /* near of -0 is 0 */
}

/* erfc(t) for t >= 0.927 as exp of a polynomial, and erf(a) below as a polynomial: N. Juffa's
 * minimax fits (stackoverflow.com/a/35148199, BSD-2). erf: <= 1.2 ULP. */
ALWAYS_INLINE float erfc_far(float t) {
  float s = t * t;
  float r = FMA(-1.72853470e-5f, t, 3.83197126e-4f);
  float u = FMA(-3.88396438e-3f, t, 2.42546219e-2f);
  r = FMA(r, s, u);
  r = FMA(r, t, -1.06777877e-1f);
  r = FMA(r, t, -6.34846687e-1f);
  r = FMA(r, t, -1.28717512e-1f);
  r = FMA(r, t, -t);
  return m_exp_nonpositive(r);
}
ALWAYS_INLINE float erf_near(float a) {
  float s = a * a;
  float r = -5.96761703e-4f;
  r = FMA(r, s, 4.99119423e-3f);
  r = FMA(r, s, -2.67681349e-2f);
  r = FMA(r, s, 1.12819925e-1f);
  r = FMA(r, s, -3.76125336e-1f);
  r = FMA(r, s, 1.28379166e-1f);
  return FMA(r, a, a);
}
ALWAYS_INLINE float m_erf(float x) {
  float t = __builtin_fabsf(x);
  float clamped = t > 10.0f ? 10.0f : t; /* keeps the polynomial finite; erfc is 0 there */
  float far = __builtin_copysignf(1.0f - erfc_far(clamped), x);
  return t > 0.927734375f ? far : erf_near(x);
}

/* erfc: exp(-x^2), by a polynomial in (|x| - 2) / (|x| + 2) and 1 + 2 |x|: N. Juffa's fit
 * (stackoverflow.com/q/39777360, BSD-2). <= 4 ULP. */
ALWAYS_INLINE float m_erfc(float x) {
  float size = __builtin_fabsf(x), a = size > 11.0f ? 11.0f : size;
  float r = 1.0f / (a + 2.0f), q = (a - 2.0f) * r;
  q = FMA(r, FMA(q, -a, FMA(q + 1.0f, -2.0f, a)), q);
  float p = -0x1.a4a000p-12f;
  p = FMA(p, q, -0x1.42a260p-10f);
  p = FMA(p, q, 0x1.585714p-10f);
  p = FMA(p, q, 0x1.1adcc4p-07f);
  p = FMA(p, q, -0x1.081b82p-07f);
  p = FMA(p, q, -0x1.bc0b6ap-05f);
  p = FMA(p, q, 0x1.4ffc46p-03f);
  p = FMA(p, q, -0x1.540840p-03f);
  p = FMA(p, q, -0x1.7bf616p-04f);
  p = FMA(p, q, 0x1.1ba03ap-02f);
  r = 1.0f / FMA(2.0f, a, 1.0f);
  q = FMA(p, r, r);
  r = FMA(FMA(FMA(q, -a, 0.5f), 2.0f, p - q), r, q);
  float s = a * a, e = m_exp(-s);
  r = FMA(r, e, r * e * FMA(-a, a, s));
  r = size > 10.0546875f ? 0.0f : r;
  r = x < 0.0f ? 2.0f - r : r;
  return x != x ? x : r;
}

/* atan: three ranges and the rational function of Cephes atan (S. Moshier), in double for both. */
ALWAYS_INLINE double d_atan(double x) {
  double a = __builtin_fabs(x);
  int far = a > 2.41421356237309504880, middle = a > 0.66;
  double base = middle ? 0.78539816339744830962 : 0.0;
  double rest = middle ? 3.061616997868382943065e-17 : 0.0; /* what base has not */
  double numerator = middle ? a - 1.0 : a, denominator = middle ? a + 1.0 : 1.0;
  base = far ? 1.57079632679489661923 : base;
  rest = far ? 6.123233995736765886130e-17 : rest;
  numerator = far ? -1.0 : numerator;
  denominator = far ? a : denominator;
  double r = numerator / denominator, z = r * r;
  double p = -8.750608600031904122785e-1;
  p = FMAD(p, z, -1.615753718733365076637e1);
  p = FMAD(p, z, -7.500855792314704667340e1);
  p = FMAD(p, z, -1.228866684490136173410e2);
  p = FMAD(p, z, -6.485021904942025371773e1);
  double q = z + 2.485846490142306297962e1;
  q = FMAD(q, z, 1.650270098316988542046e2);
  q = FMAD(q, z, 4.328810604912902668951e2);
  q = FMAD(q, z, 4.853903996359136964868e2);
  q = FMAD(q, z, 1.945506571482613964425e2);
  double y = base + (FMAD(r, z * p / q, r) + rest);
  return __builtin_copysign(y, x);
}
ALWAYS_INLINE float m_atan(float x) {
  return (float)d_atan((double)x);
}

/* gelu with erf. The negative side uses erfc itself, so that nothing cancels. */
ALWAYS_INLINE float m_gelu(float x) {
  float z = x * 0.70710678118654752f, t = __builtin_fabsf(z);
  float c = erfc_far(t > 10.0f ? 10.0f : t);
  float far = x < 0.0f ? c : 2.0f - c;
  float factor = t > 0.927734375f ? far : 1.0f + erf_near(z);
  return 0.5f * x * factor; /* NaN at -inf, as in ATen */
}

ALWAYS_INLINE float m_sigmoid(float x) {
  return 1.0f / (1.0f + m_exp(-x));
}

/* x * sigmoid(x); NaN at -inf, as in ATen. */
ALWAYS_INLINE float m_silu(float x) {
  return x / (1.0f + m_exp(-x));
}

/* 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3); NaN at -inf. */
ALWAYS_INLINE float m_gelu_tanh(float x) {
  float u = 0.79788456080286536f * FMA(0.044715f * x * x, x, x);
  return x / (1.0f + m_exp(-2.0f * u));
}

/* Argument of sin and cos: quadrant in *quadrant, remainder in [-pi/4, pi/4] returned. x = M * 2^e
 * with M of 24 bits; the table holds 2^e * 2/pi mod 4 to 106 bits, so that the product mod 4 keeps
 * ~80 bits behind the point (Payne and Hanek's idea with whole exponents instead of words). Below
 * 2^24 the first entry, 2/pi, multiplies x itself. */
ALWAYS_INLINE float trig_reduce(float x, int32_t* quadrant) {
  uint32_t u = bits_f32(x);
  int32_t exponent = (int32_t)((u >> 23) & 0xFFu);
  int32_t entry = exponent - (127 + 23);
  entry = entry > 0 ? entry : 0;
  entry = entry < TRIG_TABLE_COUNT ? entry : TRIG_TABLE_COUNT - 1;
  float whole = f32_bits((u & 0x807FFFFFu) | (uint32_t)(127 + 23) << 23);
  double m = (double)(entry > 0 ? whole : x);
  double hi = trig_table_hi[entry], lo = trig_table_lo[entry];
  double p = m * hi;
  double t = p + ROUND_MAGIC_D;
  double n = t - ROUND_MAGIC_D;
  double r = (p - n) + (FMAD(m, hi, -p) + m * lo);
  *quadrant = (int32_t)(uint32_t)bits_f64(t);
  double remainder = exponent == 0xFF ? (double)__builtin_nanf("") : r * 1.5707963267948966;
  return (float)remainder;
}

/* Polynomials of Cephes sinf and cosf (S. Moshier) on [-pi/4, pi/4]. <= 1.6 ULP after the reduction
 * above. */
ALWAYS_INLINE float sin_poly(float r) {
  float z = r * r;
  float p = FMA(-1.9515295891e-4f, z, 8.3321608736e-3f);
  p = FMA(p, z, -1.6666654611e-1f);
  return FMA(p * z, r, r);
}
ALWAYS_INLINE float cos_poly(float r) {
  float z = r * r;
  float p = FMA(2.443315711809948e-5f, z, -1.388731625493765e-3f);
  p = FMA(p, z, 4.166664568298827e-2f);
  return FMA(p * z, z, FMA(z, -0.5f, 1.0f));
}
ALWAYS_INLINE float trig_quadrant(float r, int32_t quadrant) {
  float value = (quadrant & 1) ? cos_poly(r) : sin_poly(r);
  return f32_bits(bits_f32(value) ^ ((uint32_t)(quadrant & 2) << 30));
}
ALWAYS_INLINE float m_sin(float x) {
  int32_t quadrant;
  float r = trig_reduce(x, &quadrant);
  float value = trig_quadrant(r, quadrant);
  return x == 0.0f ? x : value;
}
ALWAYS_INLINE float m_cos(float x) {
  int32_t quadrant;
  float r = trig_reduce(x, &quadrant);
  return trig_quadrant(r, quadrant + 1);
}

/* log2 of a positive float in double, to about 2^-43: atanh series in s = (m-1)/(m+1). */
ALWAYS_INLINE double log2_wide(float x) {
  double d = (double)x; /* every float is a normal double */
  uint64_t u = bits_f64(d) - 0x3FE6A09E667F3BCDull;
  double e = (double)(int32_t)((int64_t)u >> 52);
  double m = f64_bits((u & 0x000FFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull);
  double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 17.0;
  p = FMAD(p, z, 1.0 / 15.0);
  p = FMAD(p, z, 1.0 / 13.0);
  p = FMAD(p, z, 1.0 / 11.0);
  p = FMAD(p, z, 1.0 / 9.0);
  p = FMAD(p, z, 1.0 / 7.0);
  p = FMAD(p, z, 1.0 / 5.0);
  p = FMAD(p, z, 1.0 / 3.0);
  p = FMAD(p, z, 1.0);
  return FMAD(p * s, 2.8853900817779268, e);
}

/* 2^x of a double, rounded to float: Taylor series of exp on |r| <= ln2/2. */
ALWAYS_INLINE float exp2_narrow(double x) {
  double clamped = x > 200.0 ? 200.0 : x;
  clamped = clamped < -200.0 ? -200.0 : clamped;
  double t = clamped + ROUND_MAGIC_D;
  double r = (clamped - (t - ROUND_MAGIC_D)) * 0.6931471805599453;
  double p = 1.0 / 3628800.0;
  p = FMAD(p, r, 1.0 / 362880.0);
  p = FMAD(p, r, 1.0 / 40320.0);
  p = FMAD(p, r, 1.0 / 5040.0);
  p = FMAD(p, r, 1.0 / 720.0);
  p = FMAD(p, r, 1.0 / 120.0);
  p = FMAD(p, r, 1.0 / 24.0);
  p = FMAD(p, r, 1.0 / 6.0);
  p = FMAD(p, r, 0.5);
  p = FMAD(p, r, 1.0);
  p = FMAD(p, r, 1.0);
  uint64_t exponent = bits_f64(t) - bits_f64(ROUND_MAGIC_D) + 1023u;
  return (float)(p * f64_bits(exponent << 52));
}

/* pow with the special cases of IEEE 754 (C11 annex F): through log2 and exp2 in double. <= 1 ULP.
 */
ALWAYS_INLINE float m_pow(float x, float y) {
  float a = __builtin_fabsf(x), magnitude_y = __builtin_fabsf(y);
  double wide = log2_wide(a);
  wide = a == 0.0f ? -__builtin_inf() : wide;
  wide = a == __builtin_inff() ? __builtin_inf() : wide;
  float value = exp2_narrow(wide * (double)y);
  value = (a == 1.0f && magnitude_y == __builtin_inff()) ? 1.0f : value;
  /* Parity of y: floats of 2^24 and above are even integers. */
  float small = magnitude_y < 0x1p24f ? magnitude_y : 0.0f;
  int32_t truncated = (int32_t)small;
  int integral = (float)truncated == small;
  int odd = integral && (truncated & 1);
  uint32_t sign = (odd && (bits_f32(x) >> 31)) ? 0x80000000u : 0u;
  value = f32_bits(bits_f32(value) ^ sign);
  value = (x < 0.0f && a != __builtin_inff() && !integral) ? __builtin_nanf("") : value;
  value = (x != x || y != y) ? x + y : value;
  return (y == 0.0f || x == 1.0f) ? 1.0f : value;
}

#endif /* ACCRT_KERNELS_VMATH_H_ */
