/* kernel_runner_foreign.c - runs one launch of a kernel image for another machine, under an emulator: kernel_harness.py
 * cross-compiles it, writes a job file and reads the buffers back. No part of the library.
 *
 *     runner IMAGE JOB RESULT
 *
 * Job, all numbers uint64: size and bytes of the kernel's name; size and bytes of the parameter block; grid x, y, z; number
 * of blocks, then size and bytes of each; number of pointers, then for each: offset in the parameter block, block, offset in
 * the block. Result: the kernel's code, 200 bytes of message, then the bytes of each block. */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/kernel.h"

#define MAX_BLOCKS 64

typedef struct {
  uint8_t* data;
  uint64_t size;
} block_t;

static uint64_t read_number(FILE* in) {
  uint64_t value = 0;
  if (fread(&value, sizeof value, 1, in) != 1)
    exit(2);
  return value;
}

static block_t read_block(FILE* in) {
  block_t block = {.size = read_number(in)};
  block.data = aligned_alloc(64, (block.size + 128) / 64 * 64);
  if (!block.data || fread(block.data, 1, block.size, in) != block.size)
    exit(2);
  block.data[block.size] = 0;
  return block;
}

static const accrt_kernel_imports_t imports = {.struct_size = sizeof imports,
                                               .memcpy = memcpy,
                                               .memmove = memmove,
                                               .memset = memset,
                                               .memcmp = memcmp,
                                               .expf = expf,
                                               .exp2f = exp2f,
                                               .expm1f = expm1f,
                                               .logf = logf,
                                               .log2f = log2f,
                                               .log1pf = log1pf,
                                               .powf = powf,
                                               .sinf = sinf,
                                               .cosf = cosf,
                                               .tanhf = tanhf,
                                               .erff = erff,
                                               .fmodf = fmodf,
                                               .exp = exp,
                                               .expm1 = expm1,
                                               .log = log,
                                               .log1p = log1p,
                                               .pow = pow,
                                               .sin = sin,
                                               .cos = cos,
                                               .tanh = tanh,
                                               .erf = erf,
                                               .fmod = fmod};

static const accrt_kernel_def_t*
find_kernel(const char* path, const accrt_kernel_environment_t* environment, const char* name) {
  void* library = dlopen(path, RTLD_NOW);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
  accrt_kernel_pack_query_fn_t query;
  *(void**)&query = dlsym(library, ACCRT_KERNEL_PACK_SYMBOL);
  const accrt_kernel_pack_table_t* table = query(ACCRT_KERNEL_ABI_VERSION, environment);
  for (uint32_t i = 0; i < table->kernel_count; i++) {
    if (strcmp(table->kernels[i].name, name) == 0)
      return &table->kernels[i];
  }
  fprintf(stderr, "no kernel %s\n", name);
  exit(3);
}

int main(int argc, char** argv) {
  static const accrt_kernel_environment_t environment = {sizeof environment,
                                                         ACCRT_KERNEL_ABI_VERSION, 0, &imports};
  FILE* in = argc == 4 ? fopen(argv[2], "rb") : NULL;
  FILE* out = argc == 4 ? fopen(argv[3], "wb") : NULL;
  if (!in || !out)
    return 2;
  block_t name = read_block(in), params = read_block(in), blocks[MAX_BLOCKS];
  const accrt_kernel_def_t* kernel = find_kernel(argv[1], &environment, (const char*)name.data);
  uint32_t grid[3];
  for (int i = 0; i < 3; i++)
    grid[i] = (uint32_t)read_number(in);
  uint64_t block_count = read_number(in);
  if (block_count > MAX_BLOCKS)
    return 2;
  for (uint64_t i = 0; i < block_count; i++)
    blocks[i] = read_block(in);
  for (uint64_t left = read_number(in); left > 0; left--) {
    uint64_t at = read_number(in), block = read_number(in), offset = read_number(in);
    uint8_t* address = blocks[block].data + offset;
    memcpy(params.data + at, &address, sizeof address);
  }
  accrt_kernel_dispatch_t dispatch = {.struct_size = sizeof dispatch,
                                      .workgroup_count = {grid[0], grid[1], grid[2]},
                                      .params = params.data,
                                      .params_size_bytes = (uint32_t)params.size,
                                      .worker_count = 1};
  uint32_t local_size = kernel->local_memory_size_bytes;
  uint8_t* local = aligned_alloc(64, local_size / 64 * 64 + 128);
  char message[200] = {0};
  int64_t code = 0;
  for (uint64_t i = 0; i < (uint64_t)grid[0] * grid[1] * grid[2] && code == 0; i++) {
    memset(local, 0xFF, local_size);
    accrt_kernel_workgroup_t group = {.struct_size = sizeof group,
                                      .workgroup_id = {(uint32_t)(i % grid[0]),
                                                       (uint32_t)(i / grid[0] % grid[1]),
                                                       (uint32_t)(i / grid[0] / grid[1])},
                                      .local_memory_size_bytes = local_size,
                                      .local_memory = local_size ? local : NULL,
                                      .message = message,
                                      .message_capacity_bytes = sizeof message};
    code = kernel->entry(&environment, &dispatch, &group);
  }
  fwrite(&code, sizeof code, 1, out);
  fwrite(message, sizeof message, 1, out);
  for (uint64_t i = 0; i < block_count; i++)
    fwrite(blocks[i].data, 1, blocks[i].size, out);
  return fclose(out) == 0 ? 0 : 2;
}
