/* slots.h - the check of slots that comes before a scatter writes anything. The file that includes
 * it has slot_t. */
#ifndef ACCRT_KERNELS_SLOTS_H_
#define ACCRT_KERNELS_SLOTS_H_

#include "common.h"

/* A slot is the number of a state's row, or -1: skipped. Any other fails the dispatch. */
static int32_t check_slots(const accrt_kernel_workgroup_t* workgroup, const slot_t* slots,
                           int64_t count, int64_t step, int64_t rows) {
  for (int64_t i = 0; i < count; i++) {
    int64_t slot = (int64_t)slots[i * step];
    if (UNLIKELY(slot < -1 || slot >= rows)) {
      fail_message(workgroup, "slot % is outside a state of % rows", slot, rows);
      return KERNEL_ERROR_INDEX;
    }
  }
  return KERNEL_OK;
}

#endif /* ACCRT_KERNELS_SLOTS_H_ */
