/* runtime/drivers/cuda/image.h - reading what an image of machine code says of itself. Nothing of CUDA is called. */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_IMAGE_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_IMAGE_H_

#include <stddef.h>

#include "runtime/core/elf_check.h"

/* Whether CUDA may be given a cubin, although it is not told the size: every section, segment, name and symbol's name lies inside.
 * False: out_fault says why not. */
bool accrt_cuda_cubin_check(const void* data, uint64_t size_bytes, accrt_image_fault_t* out_fault);
/* The same for a fatbin: its entries follow one another inside it, and what is not compressed in them is a good cubin, or PTX with
 * a NUL. The record with a pointer in it that programs have instead is refused. */
bool accrt_cuda_fatbin_check(const void* data, uint64_t size_bytes, accrt_image_fault_t* out_fault);
/* The architecture of a cubin that was checked: 90 for sm_90, 0 when it says none. */
uint32_t accrt_cuda_cubin_arch(const void* data);
/* Whether a cubin of `arch` can run on a device of compute capability major.minor: the same major, and not newer. */
bool accrt_cuda_arch_fits(uint32_t arch, int major, int minor);
/* The `.target` of PTX source: 90 for "sm_90" and "sm_90a". False when there is none. */
bool accrt_cuda_ptx_arch(const char* text, uint64_t size_bytes, uint32_t* out_arch);
/* Whether a fatbin that was checked has anything for compute capability major.minor: machine code that fits, PTX that can be
 * compiled, or what is not known here. */
bool accrt_cuda_fatbin_fits(const void* data, uint64_t size_bytes, int major, int minor);
/* Lists what a fatbin holds, "sm_80, sm_90, compute_90", as far as it can be read; "" when it is none. */
void accrt_cuda_fatbin_list(const void* data, uint64_t size_bytes, char* out_text, size_t capacity);

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_IMAGE_H_ */
