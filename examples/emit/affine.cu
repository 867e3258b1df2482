/* examples/emit/affine.cu - the same kernel for GPUs: nvcc -ptx -arch=compute_80 affine.cu -o
 * affine.ptx */
extern "C" __global__ void affine(const float* x, float* y, long long n, float a, float b) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = a * x[i] + b;
}
