/* tests/fakecuda/served_twins.c - the device kernels of tests/bundles/served.cu on the CPU. */
#include "fakecuda.h"

#include <math.h>

#include "bundles/served.h"

#define PARAM(type, index) (*(type const*)params[index])

FAKECUDA_KERNEL(served_update_kernel) {
  (void)block;
  return served_update_pages(PARAM(served_update_t, 0));
}

FAKECUDA_KERNEL(served_copy_kernel) {
  (void)block;
  return served_copy_rows(PARAM(served_copy_t, 0));
}

FAKECUDA_KERNEL(served_step_kernel) {
  (void)block;
  return served_forward(PARAM(served_step_t, 0));
}

FAKECUDA_KERNEL(served_greedy_kernel) {
  (void)block;
  return served_take_greedy(PARAM(served_greedy_t, 0));
}

FAKECUDA_KERNEL(served_sample_kernel) {
  (void)block;
  return served_take_sample(PARAM(served_sample_t, 0), expf, logf);
}
