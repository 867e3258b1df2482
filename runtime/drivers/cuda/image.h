/* runtime/drivers/cuda/image.h - checks and reads images of machine code. It does not call CUDA. */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_IMAGE_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_IMAGE_H_

#include <stddef.h>

#include "runtime/core/elf_check.h"

/* True when CUDA can load the cubin safely, although CUDA gets no size: every section, segment,
 * name and symbol's name is inside. If false, out_fault has the reason. */
bool accrt_cuda_cubin_check(const void* data, uint64_t size_bytes, accrt_image_fault_t* out_fault);
/* The same for a fatbin. Its entries follow one another inside it. An uncompressed entry is a valid
 * cubin, or PTX with a NUL. The record with a pointer, which fatbins inside programs have, is
 * refused. */
bool accrt_cuda_fatbin_check(const void* data, uint64_t size_bytes, accrt_image_fault_t* out_fault);
/* The architecture of a checked cubin: 90 for sm_90, 0 when it names none. */
uint32_t accrt_cuda_cubin_arch(const void* data);
/* True when a cubin of `arch` can run on compute capability major.minor: it has the same major
 * version and is not newer. */
bool accrt_cuda_arch_fits(uint32_t arch, int major, int minor);
/* The `.target` of PTX source: 90 for "sm_90" and "sm_90a". False when there is none. */
bool accrt_cuda_ptx_arch(const char* text, uint64_t size_bytes, uint32_t* out_arch);
/* True when a checked fatbin has anything for compute capability major.minor: machine code that
 * fits, PTX that CUDA can compile, or an entry of an unknown kind. */
bool accrt_cuda_fatbin_fits(const void* data, uint64_t size_bytes, int major, int minor);
/* What of a checked fatbin may be loaded where CUDA must compile nothing: all of it if it has
 * machine code alone, some of which fits; else the newest cubin in it that fits and is not
 * compressed. NULL: neither. CUDA is not given PTX beside a cubin: it may find that the cubin does
 * not run, and compile. */
const void* accrt_cuda_fatbin_code(const void* data, uint64_t size_bytes, int major, int minor);
/* Lists the readable entries of a fatbin as "sm_80, sm_90, compute_90"; "" when it has none. */
void accrt_cuda_fatbin_list(const void* data, uint64_t size_bytes, char* out_text, size_t capacity);

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_IMAGE_H_ */
