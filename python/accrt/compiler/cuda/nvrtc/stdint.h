/* compiler/cuda/nvrtc/stdint.h - the C library's <stdint.h>, as far as the kernels use it, for
 * NVRTC, which reads no headers of the system. */
#ifndef ACCRT_CUDA_NVRTC_STDINT_H_
#define ACCRT_CUDA_NVRTC_STDINT_H_

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;

static_assert(sizeof(int64_t) == 8 && sizeof(uintptr_t) == sizeof(void*), "sizes of GPUs");

#endif /* ACCRT_CUDA_NVRTC_STDINT_H_ */
