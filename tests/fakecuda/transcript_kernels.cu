// tests/fakecuda/transcript_kernels.cu - kernels for the transcript, as PTX in transcript_kernels.ptx. Their twins are in twins.c.
#include <cstdint>

struct tx_block {
  uint64_t a;
  uint32_t b;
  uint16_t c;
  uint8_t d[5];
};

extern "C" __global__ void tx_add(uint32_t* target, uint32_t value, uint32_t count) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count)
    target[i] += value;
}

extern "C" __global__ void tx_scale_add(float* out, const float* a, const float* b, float scale, int count) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count)
    out[i] = a[i] * scale + b[i];
}

// Order shows in the result.
extern "C" __global__ void tx_mix(uint32_t* cell, const uint32_t* source, uint32_t number) {
  *cell = *cell * 31u + *source + number;
}

extern "C" __global__ void tx_params(uint8_t first, tx_block block, uint16_t third, uint64_t* out) {
  out[0] = first + third + block.a + block.b + block.c + block.d[4];
}

extern "C" __global__ void tx_late(uint64_t nanoseconds) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

extern "C" __global__ void __launch_bounds__(64) tx_bounded(uint32_t* target) {
  target[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void tx_shared(uint32_t* target, uint32_t count) {
  extern __shared__ uint32_t words[];
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
    words[i] = i;
  __syncthreads();
  if (threadIdx.x == 0)
    target[blockIdx.x] = words[count - 1];
}

extern "C" __global__ void tx_nothing() {}

extern "C" __global__ void tx_store(uint32_t* where) {
  *where = 1;
}

extern "C" __global__ void tx_trap() {
  asm volatile("trap;");
}
