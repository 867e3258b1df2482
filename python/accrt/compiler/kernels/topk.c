/* topk.c - the k largest elements of each row and their places, in descending order; of equal ones,
 * the lower place first. NaN is larger than all else, as in ATen.
 *
 * Instantiated with X_TAG (f32, f16, bf16), OUT_TAG (i32 or i64) and ENTRY. x of the grid walks
 * groups of rows; each group has a part of the workspace. */
#define NAN_BITS 0x7FC00000u
#include "largest.h"
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(OUT_TAG) out_t;

typedef struct {
  const x_t* x;
  x_t* values;
  out_t* indices;
  uint8_t* work;
  int64_t rows, n, k, x_row, values_row, indices_row;
} topk_params_t;

static void take(const topk_params_t* p, int64_t row, float* wide, uint32_t* maxima, uint64_t* keys,
                 double* mass) {
  const x_t* x = p->x + row * p->x_row;
  INDEPENDENT for (int64_t i = 0; i < p->n; i++) wide[i] = LOAD(X_TAG)(x[i]);
  block_maxima(wide, p->n, maxima);
  top_keys(wide, p->n, p->k, maxima, keys, mass);
  for (int64_t i = 0; i < p->k; i++) {
    int64_t id = id_of(keys[i]);
    p->values[row * p->values_row + i] = x[id];
    p->indices[row * p->indices_row + i] = (out_t)id;
  }
}

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const topk_params_t* p = (const topk_params_t*)dispatch->params;
  int64_t own = workgroup->workgroup_id[0], groups = dispatch->workgroup_count[0];
  int64_t first = part_begin(p->rows, own, groups), end = part_begin(p->rows, own + 1, groups);
  int64_t room = ceildiv_i64(p->n, BLOCK) * BLOCK;
  double mass[DIGIT_COUNT];
  uint64_t* keys = (uint64_t*)(p->work + own * room * 16);
  float* wide = (float*)(keys + room);
  uint32_t* maxima = (uint32_t*)(wide + room);
  if (UNLIKELY(first < end && p->k > p->n)) {
    fail_message(workgroup, "the % largest of % elements", p->k, p->n);
    return KERNEL_ERROR_INDEX;
  }
  for (int64_t row = first; row < end && p->k > 0; row++)
    take(p, row, wide, maxima, keys, mass);
  return KERNEL_OK;
}
