/* scatter.c - rows of a state written at slots that a tensor gives: state[slots[i]] = x[i].
 *
 * Instantiated with INDEX_TAG (i32 or i64) and ENTRY; moves bytes. A slot of -1 is skipped. Any
 * other slot outside the state fails the dispatch with KERNEL_ERROR_INDEX, before anything is
 * written. Each workgroup goes over all slots, and writes those that are its own by the slot's
 * number: if a slot stands there twice, the last row stays, on any number of threads. */
#include "types.h"

typedef TYPE(INDEX_TAG) slot_t;
#include "slots.h"

typedef struct {
  const uint8_t* x;
  const slot_t* slots;
  uint8_t* state;
  int64_t count, rows, row_bytes, x_row_bytes, slot_step;
} scatter_params_t;

KERNEL_ENTRY(ENTRY) {
  (void)environment;
  const scatter_params_t* p = (const scatter_params_t*)dispatch->params;
  int64_t own = workgroup->workgroup_id[0], groups = dispatch->workgroup_count[0];
  int32_t wrong = check_slots(workgroup, p->slots, p->count, p->slot_step, p->rows);
  if (UNLIKELY(wrong))
    return wrong;
  for (int64_t i = 0; i < p->count; i++) {
    int64_t slot = (int64_t)p->slots[i * p->slot_step];
    if (slot < 0 || slot % groups != own)
      continue;
    __builtin_memcpy(p->state + slot * p->row_bytes, p->x + i * p->x_row_bytes,
                     (size_t)p->row_bytes);
  }
  return KERNEL_OK;
}
