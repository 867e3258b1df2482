/* compiler/cuda/nvrtc/math.h - the constants of the C library's <math.h>, for NVRTC, which has the
 * functions itself. nvcc's units get the C library's. */
#ifndef ACCRT_CUDA_NVRTC_MATH_H_
#define ACCRT_CUDA_NVRTC_MATH_H_

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)

#endif /* ACCRT_CUDA_NVRTC_MATH_H_ */
