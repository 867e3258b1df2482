/* runtime/drivers/cuda/image.h - reading what an image of machine code says of itself. Nothing of CUDA is called. */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_IMAGE_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_IMAGE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The architecture of a cubin: 90 for sm_90. False when it is no ELF file of CUDA machine code, or says nothing known. */
bool accrt_cuda_cubin_arch(const void* data, uint64_t size_bytes, uint32_t* out_arch);
/* Whether a cubin of `arch` can run on a device of compute capability major.minor: the same major, and not newer. */
bool accrt_cuda_arch_fits(uint32_t arch, int major, int minor);
/* The `.target` of PTX source: 90 for "sm_90" and "sm_90a". False when there is none. */
bool accrt_cuda_ptx_arch(const char* text, uint64_t size_bytes, uint32_t* out_arch);
/* Whether a fatbin has anything for compute capability major.minor: machine code that fits, or PTX that can be compiled. True also
 * when it cannot be read: CUDA then says what it thinks. */
bool accrt_cuda_fatbin_fits(const void* data, uint64_t size_bytes, int major, int minor);
/* Lists what a fatbin holds, "sm_80, sm_90, compute_90", as far as it can be read; "" when it is none. */
void accrt_cuda_fatbin_list(const void* data, uint64_t size_bytes, char* out_text, size_t capacity);

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_IMAGE_H_ */
