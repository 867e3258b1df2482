/* tools/accx/kernel_device.c - cubins, fatbins and PTX for accx kernel check. */
#include "kernel_device.h"

#include <stdlib.h>
#include <string.h>

int accx_kernel_read_file(const char* path, char** out_bytes, uint64_t* out_size_bytes) {
  FILE* file = NULL;
  int code = accx_open_regular(path, 0, &file);
  *out_bytes = NULL;
  *out_size_bytes = 0;
  if (code)
    return code;
  (void)fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  char* bytes = accx_alloc(size > 0 ? (size_t)size + 1 : 1, 1);
  rewind(file);
  if (size < 0 || fread(bytes, 1, (size_t)size, file) != (size_t)size)
    code = accx_fail(ACCX_FAILED, "%s: cannot be read", path);
  (void)fclose(file);
  *out_bytes = bytes;
  *out_size_bytes = size > 0 ? (uint64_t)size : 0;
  return code;
}

/* ---- Declarations ---- */

static int bad_param(const char* text) {
  return accx_fail(ACCX_USAGE,
                   "--param is '%s'; it must be NAME=ACCESS TYPE[SIZES] or NAME=TYPE, for instance "
                   "'x=read f32[n]', 'y=write f32[n]', 'n=i64'",
                   text);
}

/* Declares one parameter from "x=read f32[n]" or "n=i64", behind the others. */
static int read_param(const char* text, accrt_kernel_def_t* kernel, accrt_kernel_param_t* param) {
  const char* equals = strchr(text, '=');
  uint32_t access = 0;
  if (!equals || equals == text)
    return bad_param(text);
  const char* type = accx_kernel_declared_type(equals + 1, &access);
  uint32_t size = 8;
  if (access == ACCRT_KERNEL_ACCESS_NONE) {
    const accrt_dtype_t dtype = accx_kernel_dtype(type, strlen(type));
    size = accrt_dtype_bits(dtype) / 8;
    if (dtype == ACCRT_DTYPE_NONE || size == 0)
      return bad_param(text);
  }
  *param = (accrt_kernel_param_t){.name = accx_text("%.*s", (int)(equals - text), text)};
  param->kind = access ? ACCRT_KERNEL_PARAM_BUFFER : ACCRT_KERNEL_PARAM_SCALAR;
  param->access = (uint8_t)access;
  while (1u << param->align_log2 < size)
    ++param->align_log2;
  param->offset_bytes = (kernel->params_size_bytes + size - 1) / size * size;
  param->size_bytes = size;
  kernel->params_size_bytes = param->offset_bytes + size;
  return ACCX_OK;
}

/* Reads "256" or "16,16,1". */
static int read_block(const accx_args_t* args, uint32_t* block) {
  const char* text = accx_args_value(args, "block");
  block[0] = block[1] = block[2] = 1;
  for (uint32_t d = 0; text && d < 3; ++d) {
    int64_t size = 0;
    const size_t length = strcspn(text, ",");
    if (!accx_parse_i64(accx_text("%.*s", (int)length, text), &size) || size < 1 || size > 1024)
      break;
    block[d] = (uint32_t)size;
    if (text[length] == '\0')
      return ACCX_OK;
    text += length + 1;
  }
  return accx_fail(ACCX_USAGE,
                   "--block is '%s'; it must be one to three numbers, for instance 256 "
                   "or 16,16",
                   accx_args_value(args, "block"));
}

static int declare(const accx_args_t* args, accrt_kernel_def_t* kernel,
                   accrt_kernel_param_t* params) {
  const char* name = accx_args_value(args, "kernel");
  int64_t shared = 0;
  size_t cursor = 0;
  if (!name || !accx_args_has(args, "block") || !accx_args_has(args, "param"))
    return accx_fail(ACCX_USAGE,
                     "machine code of a device has no table of its kernels: give --kernel NAME, "
                     "--block THREADS, and each parameter in order, for instance --param 'x=read "
                     "f32[n]' --param 'y=write f32[n]' --param n=i64");
  *kernel = (accrt_kernel_def_t){.struct_size = sizeof *kernel, .name = name, .params = params};
  kernel->traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC;
  int code = read_block(args, kernel->block);
  if (!code)
    code = accx_args_integer(args, "shared", 0, INT32_MAX, &shared);
  kernel->local_memory_size_bytes = (uint32_t)shared;
  for (const char* text; !code && (text = accx_args_next(args, "param", &cursor));) {
    if (kernel->param_count == ACCRT_KERNEL_MAX_PARAMS)
      return accx_fail(ACCX_USAGE, "a kernel has at most %u parameters", ACCRT_KERNEL_MAX_PARAMS);
    code = read_param(text, kernel, &params[kernel->param_count]);
    ++kernel->param_count;
  }
  kernel->params_size_bytes = (kernel->params_size_bytes + 7) / 8 * 8;
  return code;
}

int accx_kernel_load_module(const accx_args_t* args, const char* path, accrt_device_t* device,
                            accrt_kernel_pack_t** out_pack) {
  accrt_kernel_param_t params[ACCRT_KERNEL_MAX_PARAMS];
  accrt_kernel_def_t kernel;
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  char* image = NULL;
  int code = declare(args, &kernel, params);
  if (!code)
    code = accx_kernel_read_file(path, &image, &options.size_bytes);
  options.image = image;
  /* PTX is text, which ends with a NUL. */
  if (!code && (options.size_bytes < 4 || memchr(image, '\0', (size_t)options.size_bytes) == NULL))
    ++options.size_bytes;
  options.kernels = &kernel;
  options.kernel_count = 1;
  options.kernel_size_bytes = (uint32_t)sizeof kernel;
  const accrt_status_t status =
      code ? ACCRT_OK : accrt_kernel_module_load(device, &options, out_pack);
  free(image);
  return status == ACCRT_OK ? code : accx_fail_status(status, "%s", path);
}
