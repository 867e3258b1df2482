/* tests/fakecuda/fakecuda.h - what tests see of the stand-in for libcuda.so.1: how a kernel's CPU twin looks, and the
 * control functions that it exports beside the driver's own. It may not be included by the library.
 */
#ifndef FAKECUDA_H_
#define FAKECUDA_H_

#include <stdint.h>

/** What a twin is told. The twin runs all threads of one block. */
typedef struct fakecuda_block {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t index[3]; /**< of this block in the grid */
  uint32_t shared_bytes;
  void* shared; /**< dynamic shared memory of this block, poisoned; NULL when there is none */
} fakecuda_block_t;

/** A twin of the kernel NAME is exported by a shared object that FAKECUDA_KERNELS lists, as fakecuda_NAME.
 * `params` points to each parameter, as cuLaunchKernel's kernelParams. Blocks run in a random order. A return value that is
 * not 0 is a trap: CUDA_ERROR_LAUNCH_FAILED. */
typedef int (*fakecuda_kernel_fn_t)(const void* const* params, const fakecuda_block_t* block);
#define FAKECUDA_KERNEL(name)                                                                      \
  __attribute__((visibility("default"))) int fakecuda_##name(const void* const* params,            \
                                                             const fakecuda_block_t* block)

/** Changes a setting: the same text as an environment variable's name without FAKECUDA_, and its value, as in
 * "fail=cuMemCreate:3=2". Returns 0, or -1 when it is not understood. README.md lists them. */
int fakecuda_control(const char* setting);
typedef int (*fakecuda_control_fn_t)(const char* setting);
/** How often an entry point was called, by its name without a version suffix. */
uint64_t fakecuda_count(const char* entry_point);
typedef uint64_t (*fakecuda_count_fn_t)(const char* entry_point);
/** How many misuses were seen that the real driver would have let pass, or crashed on; each is also a line on stderr. */
uint64_t fakecuda_complaints(void);
typedef uint64_t (*fakecuda_complaints_fn_t)(void);

#endif /* FAKECUDA_H_ */
