/* runtime/drivers/cuda/memory.h - declarations for memory.c, pinned.c and export.c alone. */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_MEMORY_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_MEMORY_H_

#include "runtime/drivers/cuda/cuda.h"

/* Allocates the struct behind a memory handle. */
accrt_status_t accrt_cuda_memory_make(cuda_device_t* device, uint32_t kind, uint64_t size_bytes,
                                      cuda_memory_t** out_memory);
void accrt_cuda_memory_describe(cuda_memory_t* memory, void* host_pointer,
                                accrt_driver_memory_t* out_memory);
/* Allocates memory of a CUDA_MEMORY_* kind. */
accrt_status_t accrt_cuda_memory_create(cuda_device_t* device, uint32_t kind, bool exportable,
                                        uint64_t size_bytes, accrt_driver_memory_t* out_memory);
/* Maps memory->allocation and gives the device and its peers access. Returns NULL, or the name of
 * the failed call. Requires the current context. */
const char* accrt_cuda_memory_map(cuda_device_t* device, cuda_memory_t* memory,
                                  CUresult* out_result);
void accrt_cuda_memory_unmap(cuda_device_t* device, cuda_memory_t* memory);

/* pinned.c */
const char* accrt_cuda_pinned_create(cuda_device_t* device, cuda_memory_t* memory,
                                     CUresult* out_result);
void accrt_cuda_pinned_destroy(cuda_device_t* device, const cuda_memory_t* memory);
/* export.c: memory of another process */
void accrt_cuda_memory_close(cuda_device_t* device, cuda_memory_t* memory);

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_MEMORY_H_ */
