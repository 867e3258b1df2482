// epilogue.cuh - what follows the sums of a product: activation(x + bias) + residual. For units
// that have C_TAG, BIAS_TAG, ACTIVATION, c_t, bias_t and sum_t, included after elementwise.cuh.
// Activations are numbered as kernels/matmul.py numbers them.
#ifndef ACCRT_CUDA_EPILOGUE_CUH_
#define ACCRT_CUDA_EPILOGUE_CUH_

DEVICE float activate(float x) {
  switch (ACTIVATION) {
  case 1:
    return x < 0 ? 0 : x;
  case 2:
    return m_gelu(x);
  case 3:
    return m_gelu_tanh(x);
  case 4:
    return m_silu(x);
  case 5:
    return m_tanh(x);
  case 6:
    return m_sigmoid(x);
  default:
    return x;
  }
}
DEVICE double activate(double x) {
  switch (ACTIVATION) {
  case 1:
    return x < 0 ? 0 : x;
  case 2:
    return x < -40.0 ? 0.0 : 0.5 * x * (1 + erf(x * 0.70710678118654752440));
  case 3:
    return x < -1e30 ? 0.0 : x / (1 + exp(-1.5957691216057307 * (x + 0.044715 * x * x * x)));
  case 4:
    return (x < -1e300 ? -1e300 : x) / (1 + exp(-x));
  case 5:
    return tanh(x);
  case 6:
    return 1 / (1 + exp(-x));
  default:
    return x;
  }
}
DEVICE int64_t activate(int64_t x) {
  return x;
}

// The finished result of a sum in a column; `place` is where its residual lies.
DEVICE sum_t finished(sum_t value, const bias_t* bias, const c_t* residual, index_t column,
                      index_t place) {
  if (bias)
    value += (sum_t)LOAD(BIAS_TAG)(bias[column]);
  value = activate(value);
  return residual ? value + (sum_t)LOAD(C_TAG)(residual[place]) : value;
}

#endif // ACCRT_CUDA_EPILOGUE_CUH_
