/* tools/accx/kernel_device.h - kernels of a device that has its own memory: machine code without a
 * table, so that --param and --block declare them. */
#ifndef ACCX_KERNEL_DEVICE_H_
#define ACCX_KERNEL_DEVICE_H_

#include "kernel.h"

/* Loads a cubin, fatbin or PTX with the kernel of --kernel, as --param, --block and --shared
 * declare it. The image's own parameters are compared with that. */
int accx_kernel_load_module(const accx_args_t* args, const char* path, accrt_device_t* device,
                            accrt_kernel_pack_t** out_pack);
/* Reads a whole file, and appends a NUL. The caller frees it. */
int accx_kernel_read_file(const char* path, char** out_bytes, uint64_t* out_size_bytes);

#endif /* ACCX_KERNEL_DEVICE_H_ */
