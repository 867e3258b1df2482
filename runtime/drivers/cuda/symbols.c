/* runtime/drivers/cuda/symbols.c - opens libcuda.so.1 and finds its entry points. It calls only
 * those that return versions and addresses. The library is never closed, because CUDA has threads
 * of its own.
 */
#include <dlfcn.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/core/safe_open.h"
#include "runtime/drivers/cuda/cuda.h"

#define OPERATION "cuda.open"

/* In the order of cuda_api_t. One string has all names, because each pointer in a table of names
 * would need a relocation when the library is loaded. */
static const char names[] =
#define CUDA_SYMBOL(name, version) #name "\0"
#include "runtime/drivers/cuda/symbols.def"
#undef CUDA_SYMBOL
    ;
static const uint16_t versions[] = {
#define CUDA_SYMBOL(name, version) version,
#include "runtime/drivers/cuda/symbols.def"
#undef CUDA_SYMBOL
};
#define SYMBOL_COUNT (sizeof versions / sizeof *versions)
_Static_assert(sizeof(cuda_api_t) == SYMBOL_COUNT * sizeof(void*), "one pointer a name");

/* Object and function pointers have the same size on systems with dlsym. */
static void find(void* library, const char* name, void* out_function) {
  void* address = dlsym(library, name);
  memcpy(out_function, &address, sizeof address);
}

static accrt_status_t refuse_old(const accrt_driver_environment_t* environment, int version,
                                 const char* missing) {
  return accrt_cuda_refuse(environment, ACCRT_ERROR_VERSION_MISMATCH, OPERATION,
                           "the installed CUDA driver speaks CUDA %d.%d%s%s; this library needs "
                           "a driver for CUDA %d.%d or later",
                           version / 1000, version % 1000 / 10,
                           missing != NULL ? " and lacks " : "", missing != NULL ? missing : "",
                           CUDA_MIN_DRIVER_VERSION / 1000, CUDA_MIN_DRIVER_VERSION % 1000 / 10);
}

accrt_status_t accrt_cuda_symbols_load(const accrt_driver_environment_t* environment,
                                       const char* library_path, cuda_api_t* out_api,
                                       int* out_version) {
  memset(out_api, 0, sizeof *out_api);
  *out_version = 0;
  void* library;
  const accrt_status_t status =
      accrt_library_open(library_path, ACCRT_LIBRARY_PATH_OR_SONAME, &library);
  if (status != ACCRT_OK) {
    return accrt_cuda_refuse(environment, status, OPERATION,
                             "no CUDA driver: %s could not be opened (%s)", library_path,
                             accrt_error_current()->message);
  }
  PFN_cuDriverGetVersion_v2020 get_version;
  find(library, "cuDriverGetVersion", &get_version);
  if (get_version == NULL || get_version(out_version) != CUDA_SUCCESS) {
    return accrt_cuda_refuse(environment, ACCRT_ERROR_NOT_FOUND, OPERATION,
                             "%s does not report its version: it is not a CUDA driver",
                             library_path);
  }
  if (*out_version < CUDA_MIN_DRIVER_VERSION)
    return refuse_old(environment, *out_version, NULL);
  PFN_cuGetProcAddress_v12000 get_address;
  find(library, "cuGetProcAddress_v2", &get_address);
  if (get_address == NULL)
    return refuse_old(environment, *out_version, "cuGetProcAddress_v2");
  const char* name = names;
  for (size_t i = 0; i < SYMBOL_COUNT; ++i, name += strlen(name) + 1) {
    void* address = NULL;
    const CUresult result =
        get_address(name, &address, versions[i], CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL);
    if (result != CUDA_SUCCESS || address == NULL)
      return refuse_old(environment, *out_version, name);
    memcpy((char*)out_api + i * sizeof address, &address, sizeof address);
  }
  return ACCRT_OK;
}
