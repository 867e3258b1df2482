/* bench/gpu/floor_kernels.cu - the kernels of the floor benchmarks, for any architecture.
 * floor_kernels.h is made of it and of floor_kernels_90.cu by make_kernels.sh. */
#include <stdint.h>

/* Five arguments; block x of the grid handles 32 elements. */
extern "C" __global__ void axpb(const float* a, const float* b, float* out, int n, float s) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = a[i] * s + b[i];
}

/* Five arguments, and nothing to wait for: the shortest kernel that uses them all. */
extern "C" __global__ void set5(const float* a, const float* b, float* out, int n, float s) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    out[i] = a != b ? s : 0;
}

/* Order-sensitive: applied in another order, another result. Thread 0 of block 0 does it. */
extern "C" __global__ void fold(uint32_t* state, uint32_t multiplier, uint32_t increment) {
  if (blockIdx.x == 0 && threadIdx.x == 0)
    *state = *state * multiplier + increment;
}

/* Runs for about `nanoseconds`, then writes `value` to *out. */
extern "C" __global__ void spin(uint32_t* out, uint32_t value, uint32_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
  if (threadIdx.x == 0 && blockIdx.x == 0)
    *out = value;
}

/* Runs for about `cycles` of the SM clock: finer than the global timer. */
extern "C" __global__ void work(uint32_t* out, uint32_t cycles) {
  uint32_t start = (uint32_t)clock(), sum = 0;
  while ((uint32_t)clock() - start < cycles) /* the counter may wrap */
    sum += 1;
  if (sum == 0xFFFFFFFFu)
    *out = sum;
}
