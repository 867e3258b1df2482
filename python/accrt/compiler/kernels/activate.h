/* activate.h - the activation at the end of a product, over a tile of floats. Its numbers are those
 * of ACTIVATIONS in matmul.py and of numbers.cuh. */
#ifndef ACCRT_KERNELS_ACTIVATE_H_
#define ACCRT_KERNELS_ACTIVATE_H_

#include "vmath.h"

enum { NONE, RELU, GELU, GELU_TANH, SILU, TANH, SIGMOID };

#define ACTIVATE(F)                                                                                \
  do {                                                                                             \
    INDEPENDENT for (int64_t i = 0; i < count; i++) x[i] = F(x[i]);                                \
  } while (0)

static void activate(float* x, int64_t count, int64_t activation) {
  switch (activation) {
  case RELU: {
    INDEPENDENT for (int64_t i = 0; i < count; i++) x[i] = x[i] < 0.0f ? 0.0f : x[i];
    break;
  }
  case GELU:
    ACTIVATE(m_gelu);
    break;
  case GELU_TANH:
    ACTIVATE(m_gelu_tanh);
    break;
  case SILU:
    ACTIVATE(m_silu);
    break;
  case TANH:
    ACTIVATE(m_tanh);
    break;
  case SIGMOID:
    ACTIVATE(m_sigmoid);
    break;
  default:
    break;
  }
}

#endif
