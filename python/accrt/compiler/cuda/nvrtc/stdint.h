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

#define INT8_MIN (-128)
#define INT16_MIN (-32768)
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807l - 1)
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT64_MAX 9223372036854775807l
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295u
#define UINT64_MAX 18446744073709551615ul
#define UINT64_C(x) x##ul

static_assert(sizeof(int64_t) == 8 && sizeof(uintptr_t) == sizeof(void*), "sizes of GPUs");

#endif /* ACCRT_CUDA_NVRTC_STDINT_H_ */
