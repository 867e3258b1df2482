/* scatter_e4m3.c - rows of numbers written as e4m3 into a state of bytes, at slots that a tensor
 * gives: state[slots[i]] = e4m3(x[i] * factor).
 *
 * Instantiated with X_TAG (f32, f16, bf16), INDEX_TAG (i32 or i64) and ENTRY. Slots are as
 * scatter.c has them. */
#include "e4m3.h"
#include "types.h"

typedef TYPE(X_TAG) x_t;
typedef TYPE(INDEX_TAG) slot_t;
#include "slots.h"

typedef struct {
  const x_t* x;
  const slot_t* slots;
  type_e4m3* state;
  int64_t count, rows, row_size, x_row, slot_step;
  float factor;
} scatter_e4m3_params_t;

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const scatter_e4m3_params_t* p = (const scatter_e4m3_params_t*)dispatch->params;
  int64_t own = workgroup->workgroup_id[0], groups = dispatch->workgroup_count[0];
  int32_t wrong = check_slots(workgroup, p->slots, p->count, p->slot_step, p->rows);
  if (UNLIKELY(wrong))
    return wrong;
  for (int64_t i = 0; i < p->count; i++) {
    int64_t slot = (int64_t)p->slots[i * p->slot_step];
    if (slot < 0 || slot % groups != own)
      continue;
    const x_t* from = p->x + i * p->x_row;
    type_e4m3* to = p->state + slot * p->row_size;
    INDEPENDENT for (int64_t j = 0; j < p->row_size; j++) to[j] =
        store_e4m3(LOAD(X_TAG)(from[j]) * p->factor);
  }
  return KERNEL_OK;
}
