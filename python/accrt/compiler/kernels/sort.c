/* sort.c - the elements of each line along one axis in order, and their places. Equal ones keep
 * their order; NaN is larger than all else, and -0 equals 0, as in ATen.
 *
 * Instantiated with X_TAG, KEY (how an element becomes an unsigned key: FLOAT32, FLOAT64, SIGNED or
 * UNSIGNED) and ENTRY. x of the grid walks groups of lines; each group has a part of the workspace,
 * where keys with their places are merged. */
#include "types.h"

typedef TYPE(X_TAG) x_t;

typedef struct {
  uint64_t key;
  int64_t place;
} item_t;

typedef struct {
  const x_t* x;
  x_t* values;
  int64_t* places;
  uint8_t* work;
  int64_t outer, n, inner, descending;
  int64_t x_outer, x_n, x_inner, values_outer, values_n, values_inner, places_outer, places_n,
      places_inner;
} sort_params_t;

#define RUN 16

#define KEY_FLOAT32(x) float32_key(LOAD(X_TAG)(x))
#define KEY_FLOAT64(x) float64_key(LOAD(X_TAG)(x))
#define KEY_SIGNED(x) ((uint64_t)(int64_t)(x) ^ (UINT64_C(1) << 63))
#define KEY_UNSIGNED(x) ((uint64_t)(x))

static __attribute__((unused)) uint64_t float64_key(double x) {
  uint64_t bits = bits_f64(x == 0 ? 0.0 : x);
  if (x != x)
    return ~UINT64_C(0);
  return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

static __attribute__((unused)) uint64_t float32_key(float x) {
  return float64_key((double)x);
}

static void insert(item_t* items, int64_t count) {
  for (int64_t i = 1; i < count; i++) {
    item_t own = items[i];
    int64_t at = i;
    for (; at > 0 && items[at - 1].key > own.key; at--)
      items[at] = items[at - 1];
    items[at] = own;
  }
}

static void merge(const item_t* a, int64_t count, const item_t* b, int64_t rest, item_t* out) {
  while (count > 0 && rest > 0) {
    int later = b->key < a->key;
    *out++ = later ? *b : *a;
    b += later;
    rest -= later;
    a += !later;
    count -= !later;
  }
  __builtin_memcpy(out, a, (size_t)count * sizeof(item_t));
  __builtin_memcpy(out + count, b, (size_t)rest * sizeof(item_t));
}

/* Sorts by keys; the result is in the one place or the other. */
static const item_t* sorted(item_t* items, item_t* other, int64_t n) {
  for (int64_t at = 0; at < n; at += RUN)
    insert(items + at, min_i64(RUN, n - at));
  for (int64_t run = RUN; run < n; run *= 2) {
    for (int64_t at = 0; at < n; at += 2 * run) {
      int64_t first = min_i64(run, n - at), second = min_i64(run, n - at - first);
      merge(items + at, first, items + at + first, second, other + at);
    }
    item_t* kept = items;
    items = other;
    other = kept;
  }
  return items;
}

static void sort_line(const sort_params_t* p, int64_t line, item_t* items) {
  int64_t o = line / p->inner, i = line % p->inner;
  const x_t* x = p->x + o * p->x_outer + i * p->x_inner;
  x_t* values = p->values + o * p->values_outer + i * p->values_inner;
  int64_t* places = p->places + o * p->places_outer + i * p->places_inner;
  uint64_t turned = p->descending ? ~UINT64_C(0) : 0;
  for (int64_t j = 0; j < p->n; j++)
    items[j] = (item_t){CONCAT(KEY_, KEY)(x[j * p->x_n]) ^ turned, j};
  const item_t* found = sorted(items, items + p->n, p->n);
  for (int64_t j = 0; j < p->n; j++) {
    values[j * p->values_n] = x[found[j].place * p->x_n];
    places[j * p->places_n] = found[j].place;
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const sort_params_t* p = (const sort_params_t*)dispatch->params;
  int64_t own = workgroup->workgroup_id[0], groups = dispatch->workgroup_count[0];
  int64_t lines = p->outer * p->inner;
  int64_t first = part_begin(lines, own, groups), end = part_begin(lines, own + 1, groups);
  item_t* items = (item_t*)p->work + own * p->n * 2;
  for (int64_t line = first; line < end; line++)
    sort_line(p, line, items);
  return KERNEL_OK;
}
