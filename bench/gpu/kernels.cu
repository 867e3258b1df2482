/* bench/gpu/kernels.cu - the kernels of the GPU benchmarks. kernels.h is made of it by nvcc (see
 * its head). */
#define STEP(name)                                                                                 \
  extern "C" __global__ void name(float* out, const float* x, const float* y, float scale, int n) { \
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);                                    \
    if (i < n)                                                                                     \
      out[i] = x[i] * scale + y[i];                                                                \
  }
STEP(step0)
STEP(step1)
STEP(step2)
STEP(step3)
STEP(step4)
STEP(step5)
STEP(step6)
STEP(step7)
