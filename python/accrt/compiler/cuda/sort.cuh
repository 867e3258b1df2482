// sort.cuh - what the kernels that sort lines share: keys whose unsigned order is that of elements,
// and where lines lie. X_TAG, KEY and KEY_T as sort.cu and sort_parts.cu say.
#ifndef ACCRT_CUDA_SORT_CUH_
#define ACCRT_CUDA_SORT_CUH_

#include "common.cuh"

typedef TYPE(X_TAG) x_t;
typedef KEY_T sort_key_t;

struct sort_t {
  const x_t* x;
  x_t* values;
  int64_t* places;
  index_t outer, n, inner, descending;
  index_t x_outer, x_n, x_inner, values_outer, values_n, values_inner, places_outer, places_n,
      places_inner;
};

// Where a line begins.
struct line_t {
  const x_t* x;
  x_t* values;
  int64_t* places;
};

DEVICE line_t find_line(const sort_t& p, index_t line) {
  const index_t o = line / p.inner, i = line % p.inner;
  return {p.x + o * p.x_outer + i * p.x_inner, p.values + o * p.values_outer + i * p.values_inner,
          p.places + o * p.places_outer + i * p.places_inner};
}

#define KEY_FLOAT32(x) float32_key(LOAD(X_TAG)(x))
#define KEY_FLOAT64(x) float64_key(LOAD(X_TAG)(x))
#define KEY_SIGNED32(x) ((uint32_t)(int32_t)(x) ^ 0x80000000u)
#define KEY_SIGNED64(x) ((uint64_t)(int64_t)(x) ^ 0x8000000000000000ull)
#define KEY_SIGNED8(x) ((uint32_t)(uint8_t)(x) ^ 0x80u)
#define KEY_SIGNED16(x) ((uint32_t)(uint16_t)(x) ^ 0x8000u)
#define KEY_UNSIGNED(x) ((uint32_t)(x))
#define KEY_UNSIGNED64(x) ((uint64_t)(x))
#define KEY_F16(x) short_key((x).bits, 0x7c00)
#define KEY_BF16(x) short_key((x).bits, 0x7f80)

DEVICE uint32_t float32_key(float x) {
  const uint32_t bits = __float_as_uint(x == 0.0f ? 0.0f : x);
  return x != x ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Of 16 bits, which have no number beyond `infinity`.
DEVICE uint32_t short_key(uint32_t bits, uint32_t infinity) {
  const uint32_t size = bits & 0x7fff;
  const uint32_t plain = size == 0 ? 0 : bits;
  return size > infinity ? 0xffff : plain >> 15 ? ~plain & 0xffff : plain | 0x8000;
}

DEVICE uint64_t float64_key(double x) {
  const uint64_t bits = (uint64_t)__double_as_longlong(x == 0.0 ? 0.0 : x);
  return x != x ? ~0ull : bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}

DEVICE sort_key_t key_of(const sort_t& p, const x_t* x) {
  const sort_key_t key = (sort_key_t)CONCAT(KEY_, KEY)(*x);
  return p.descending ? (sort_key_t)~key : key;
}

DEVICE void put(const sort_t& p, const line_t& line, index_t to, index_t place) {
  line.values[to * p.values_n] = line.x[place * p.x_n];
  line.places[to * p.places_n] = (int64_t)place;
}

#endif // ACCRT_CUDA_SORT_CUH_
