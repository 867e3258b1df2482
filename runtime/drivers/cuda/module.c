/* runtime/drivers/cuda/module.c - machine code (cubin, fatbin, PTX) and its kernels. It compares a
 * bundle's declaration of a kernel with the image.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/core/near_name.h"
#include "runtime/drivers/cuda/cuda.h"
#include "runtime/drivers/cuda/image.h"
#include "runtime/core/disk_cache.h"

#define IMAGE_CUBIN 2u
#define IMAGE_PTX 3u
#define IMAGE_FATBIN 4u
#define LOG_BYTES 4096u
/* Limit of an image's kernels that are searched for a similar name. */
#define MOST_NEAR 256u
/* Part of the cache's key. Change it when the options below change. */
#define COMPILE_OPTIONS "O4"

/* ---- Compiling PTX ---- */

/* Puts the compiler's messages on one line. */
static void tidy_log(char* log) {
  for (char* at = log; *at != '\0'; ++at) {
    if ((unsigned char)*at < ' ')
      *at = ' ';
  }
}

static accrt_status_t fail_compile(cuda_device_t* device, const accrt_driver_image_t* image,
                                   CUresult result, const char* call, char* log) {
  tidy_log(log);
  uint32_t arch = 0;
  const bool known = accrt_cuda_ptx_arch(image->data, image->size_bytes, &arch);
  if (known && (int)arch > device->compute_major * 10 + device->compute_minor) {
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_NO_VARIANT, "module_load",
                             "PTX '%s' is for sm_%u and later; cuda:%u is %s", image->name, arch,
                             device->ordinal, device->arch);
  }
  return accrt_cuda_fail(device, result, call, "PTX '%s' could not be compiled for %s%s%.300s",
                         image->name, device->arch, log[0] != '\0' ? ": " : "", log);
}

typedef struct cubin {
  void* data;
  size_t size_bytes;
} cubin_t;

/* Requires the current context. */
static accrt_status_t compile(cuda_device_t* device, const accrt_driver_image_t* image,
                              char* source, char* log, cubin_t* out_cubin) {
  const cuda_api_t* api = device->api;
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_OPTIMIZATION_LEVEL, CU_JIT_TARGET_FROM_CUCONTEXT};
  void* values[] = {log, (void*)(uintptr_t)LOG_BYTES, (void*)(uintptr_t)4, NULL};
  CUlinkState link;
  CUresult result = api->cuLinkCreate(4, options, values, &link);
  if (result != CUDA_SUCCESS)
    return fail_compile(device, image, result, "cuLinkCreate", log);
  const char* call = "cuLinkAddData";
  void* data = NULL;
  size_t size_bytes = 0;
  result = api->cuLinkAddData(link, CU_JIT_INPUT_PTX, source, image->size_bytes + 1, image->name, 0,
                              NULL, NULL);
  if (result == CUDA_SUCCESS) {
    call = "cuLinkComplete";
    result = api->cuLinkComplete(link, &data, &size_bytes);
  }
  accrt_status_t status = ACCRT_OK;
  if (result != CUDA_SUCCESS) {
    status = fail_compile(device, image, result, call, log);
  } else {
    status = accrt_alloc(device->allocator, size_bytes, &out_cubin->data);
    if (status == ACCRT_OK) {
      memcpy(out_cubin->data, data, size_bytes);
      out_cubin->size_bytes = size_bytes;
    }
  }
  (void)api->cuLinkDestroy(link);
  return status;
}

/* PTX for CUDA is text that ends with NUL. The text in an image may lack the NUL. */
static accrt_status_t compile_source(cuda_device_t* device, const accrt_driver_image_t* image,
                                     cubin_t* out_cubin) {
  uint64_t source_bytes;
  if (!accrt_add_u64(image->size_bytes, 1, &source_bytes)) {
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_OVERFLOW, "module_load",
                             "PTX '%s' of %llu bytes", image->name,
                             (unsigned long long)image->size_bytes);
  }
  void* source = NULL;
  void* log = NULL;
  accrt_status_t status = accrt_alloc(device->allocator, source_bytes, &source);
  if (status == ACCRT_OK)
    status = accrt_alloc(device->allocator, LOG_BYTES, &log);
  if (status == ACCRT_OK) {
    memcpy(source, image->data, image->size_bytes);
    status = compile(device, image, source, log, out_cubin);
  }
  accrt_free(device->allocator, log, LOG_BYTES);
  accrt_free(device->allocator, source, source_bytes);
  return status;
}

static void log_cache_failure(const cuda_device_t* device) {
  char line[512];
  snprintf(line, sizeof line, "compiled PTX could not be stored in %s",
           device->driver->options.cache_path);
  device->environment->log(device->environment, ACCRT_LOG_WARNING, line);
}

static accrt_status_t refuse_ptx(const cuda_device_t* device, const accrt_driver_image_t* image) {
  return accrt_cuda_refuse(device->environment, ACCRT_ERROR_UNTRUSTED, "module_load",
                           "PTX '%s' is not compiled here: cuda.ptx is %s", image->name,
                           device->driver->options.ptx == CUDA_PTX_OFF
                               ? "'off'"
                               : "'cached' and cuda.cache does not have the result");
}

static accrt_status_t get_compiled(cuda_device_t* device, const accrt_driver_image_t* image,
                                   cubin_t* out_cubin) {
  const cuda_options_t* options = &device->driver->options;
  const bool compiles = options->ptx == CUDA_PTX_COMPILE;
  if (options->cache_path == NULL || options->ptx == CUDA_PTX_OFF)
    return compiles ? compile_source(device, image, out_cubin) : refuse_ptx(device, image);
  const accrt_cache_key_t key = accrt_disk_cache_key(image->data, image->size_bytes, device->arch,
                                                     device->driver->version, COMPILE_OPTIONS);
  if (accrt_disk_cache_get(device->allocator, options->cache_path, &key, &out_cubin->data,
                           &out_cubin->size_bytes)) {
    return ACCRT_OK;
  }
  if (!compiles)
    return refuse_ptx(device, image);
  const accrt_status_t status = compile_source(device, image, out_cubin);
  if (status == ACCRT_OK &&
      !accrt_disk_cache_put(options->cache_path, &key, out_cubin->data, out_cubin->size_bytes,
                            options->cache_limit_bytes)) {
    log_cache_failure(device);
  }
  return status;
}

/* ---- Loading ---- */

static accrt_status_t refuse_image(const cuda_device_t* device, const accrt_driver_image_t* image,
                                   const accrt_image_fault_t* fault) {
  return accrt_cuda_refuse(device->environment, ACCRT_ERROR_INVALID_FORMAT, "module_load",
                           "image '%s': %s", image->name, fault->text);
}

static accrt_status_t check_cubin(const cuda_device_t* device, const accrt_driver_image_t* image) {
  accrt_image_fault_t fault;
  if (!accrt_cuda_cubin_check(image->data, image->size_bytes, &fault))
    return refuse_image(device, image, &fault);
  const uint32_t arch = accrt_cuda_cubin_arch(image->data);
  if (accrt_cuda_arch_fits(arch, device->compute_major, device->compute_minor))
    return ACCRT_OK;
  return accrt_cuda_refuse(device->environment, ACCRT_ERROR_NO_VARIANT, "module_load",
                           "image '%s' is for sm_%u; cuda:%u is %s", image->name, arch,
                           device->ordinal, device->arch);
}

/* What CUDA is given of a fatbin; NULL: it would have to compile, and may not. */
static const void* code_of_fatbin(const cuda_device_t* device, const accrt_driver_image_t* image) {
  return device->driver->options.ptx == CUDA_PTX_COMPILE
             ? image->data
             : accrt_cuda_fatbin_code(image->data, image->size_bytes, device->compute_major,
                                      device->compute_minor);
}

static accrt_status_t check_fatbin(const cuda_device_t* device, const accrt_driver_image_t* image) {
  char list[200];
  accrt_image_fault_t fault;
  if (!accrt_cuda_fatbin_check(image->data, image->size_bytes, &fault))
    return refuse_image(device, image, &fault);
  if (accrt_cuda_fatbin_fits(image->data, image->size_bytes, device->compute_major,
                             device->compute_minor)) {
    return code_of_fatbin(device, image) != NULL ? ACCRT_OK : refuse_ptx(device, image);
  }
  accrt_cuda_fatbin_list(image->data, image->size_bytes, list, sizeof list);
  return accrt_cuda_refuse(device->environment, ACCRT_ERROR_NO_VARIANT, "module_load",
                           "image '%s' is for %s; cuda:%u is %s", image->name, list,
                           device->ordinal, device->arch);
}

/* Finds what can be found before CUDA loads the image. CUDA's own error names no architecture, and
 * may come only with the first kernel. */
static accrt_status_t check_image(const cuda_device_t* device, const accrt_driver_image_t* image) {
  switch (image->kind) {
  case IMAGE_CUBIN:
    return check_cubin(device, image);
  case IMAGE_PTX:
    return ACCRT_OK;
  case IMAGE_FATBIN:
    return check_fatbin(device, image);
  default:
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_UNSUPPORTED, "module_load",
                             "image '%s' is of kind %u; cuda:%u loads cubin, PTX and fatbin",
                             image->name, image->kind, device->ordinal);
  }
}

static accrt_status_t fail_load(cuda_device_t* device, const accrt_driver_image_t* image,
                                CUresult result) {
  return accrt_cuda_fail(device, result, "cuLibraryLoadData", "image '%s' on cuda:%u (%s)",
                         image->name, device->ordinal, device->arch);
}

/* Requires the current context. */
static accrt_status_t load(cuda_device_t* device, const accrt_driver_image_t* image,
                           CUlibrary* out_library) {
  cubin_t cubin = {NULL, 0};
  const void* code = image->data;
  if (image->kind == IMAGE_PTX) {
    ACCRT_TRY(get_compiled(device, image, &cubin));
    code = cubin.data;
  } else if (image->kind == IMAGE_FATBIN) {
    code = code_of_fatbin(device, image);
  }
  const CUresult result =
      device->api->cuLibraryLoadData(out_library, code, NULL, NULL, 0, NULL, NULL, 0);
  accrt_free(device->allocator, cubin.data, cubin.size_bytes);
  return result == CUDA_SUCCESS ? ACCRT_OK : fail_load(device, image, result);
}

accrt_status_t accrt_cuda_module_load(accrt_driver_device_t* opaque,
                                      const accrt_driver_image_t* image,
                                      accrt_driver_module_t** out_module) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  *out_module = NULL;
  if (cuda_device_is_lost(device))
    return accrt_cuda_device_lost(device, "module_load");
  ACCRT_TRY(check_image(device, image));
  cuda_module_t* module;
  ACCRT_TRY(ACCRT_NEW(device->allocator, &module));
  module->device = device;
  accrt_mutex_init(&module->mutex, ACCRT_LOCK_CUDA_MODULE);
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  accrt_status_t status = load(device, image, &module->library);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (status != ACCRT_OK) {
    accrt_free(device->allocator, module, sizeof *module);
    return status;
  }
  *out_module = (accrt_driver_module_t*)module;
  return ACCRT_OK;
}

void accrt_cuda_module_unload(accrt_driver_module_t* opaque) {
  cuda_module_t* module = (cuda_module_t*)opaque;
  cuda_device_t* device = module->device;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  (void)device->api->cuLibraryUnload(module->library);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  while (module->kernels != NULL) {
    cuda_kernel_t* kernel = module->kernels;
    module->kernels = kernel->next;
    accrt_free(device->allocator, kernel, sizeof *kernel);
  }
  accrt_free(device->allocator, module, sizeof *module);
}

/* ---- Kernels: the declaration against the image ---- */

static accrt_status_t mismatch(const cuda_kernel_t* kernel, uint32_t index,
                               const accrt_kernel_param_t* declared, size_t offset, size_t size) {
  return accrt_cuda_refuse(
      kernel->device->environment, ACCRT_ERROR_INVALID_FORMAT, "module_find",
      "kernel '%s', parameter %u '%s': declared at offset %u with %u bytes, in the image at offset "
      "%zu with %zu bytes",
      kernel->name, index, declared->name, declared->offset_bytes, declared->size_bytes, offset,
      size);
}

/* Checks the parameters. The image has either the declared ones one by one, or one struct for the
 * whole block. */
static accrt_status_t check_params(cuda_kernel_t* kernel, const accrt_kernel_def_t* declared) {
  const cuda_api_t* api = kernel->device->api;
  size_t offset = 0;
  size_t size = 0;
  uint32_t count = 0;
  accrt_status_t status = ACCRT_OK;
  /* Take the size from the image: CUDA refuses a block with padding behind the last parameter. */
  kernel->params_size_bytes = 0;
  while (api->cuKernelGetParamInfo(kernel->kernel, count, &offset, &size) == CUDA_SUCCESS) {
    if (count == 0 && offset == 0 && size == declared->params_size_bytes &&
        declared->param_count > 1) {
      kernel->param_count = 1;
      kernel->param_offsets[0] = 0;
      kernel->params_size_bytes = (uint32_t)size;
      return ACCRT_OK;
    }
    if (count < declared->param_count && status == ACCRT_OK) {
      const accrt_kernel_param_t* param = &declared->params[count];
      if (param->offset_bytes != offset || param->size_bytes != size)
        status = mismatch(kernel, count, param, offset, size);
      kernel->param_offsets[count] = (uint32_t)offset;
      kernel->params_size_bytes = (uint32_t)(offset + size);
    }
    if (++count > ACCRT_KERNEL_MAX_PARAMS)
      break;
  }
  if (count != declared->param_count) {
    return accrt_cuda_refuse(kernel->device->environment, ACCRT_ERROR_INVALID_FORMAT, "module_find",
                             "kernel '%s': %u parameters are declared, the image has %u%s",
                             kernel->name, declared->param_count, count,
                             count > ACCRT_KERNEL_MAX_PARAMS ? " or more" : "");
  }
  kernel->param_count = count;
  return status;
}

static accrt_status_t refuse_kernel(const cuda_kernel_t* kernel, accrt_status_t status,
                                    const char* what, uint64_t wanted, uint64_t most) {
  return accrt_cuda_refuse(kernel->device->environment, status, "module_find",
                           "kernel '%s': %s is %llu, cuda:%u (%s) has at most %llu", kernel->name,
                           what, (unsigned long long)wanted, kernel->device->ordinal,
                           kernel->device->arch, (unsigned long long)most);
}

static accrt_status_t check_block(cuda_kernel_t* kernel, const accrt_kernel_def_t* declared) {
  const cuda_device_t* device = kernel->device;
  memcpy(kernel->block, declared->block, sizeof kernel->block);
  const uint64_t threads = (uint64_t)kernel->block[0] * kernel->block[1] * kernel->block[2];
  int most = 0;
  if (device->api->cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                      kernel->function) != CUDA_SUCCESS) {
    most = 1024;
  }
  if (kernel->block[0] == 0 || kernel->block[1] == 0 || kernel->block[2] == 0) {
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_INVALID_FORMAT, "module_find",
                             "kernel '%s' declares a workgroup of %u x %u x %u threads",
                             kernel->name, kernel->block[0], kernel->block[1], kernel->block[2]);
  }
  if (kernel->block[0] > 1024 || kernel->block[1] > 1024 || kernel->block[2] > 64 ||
      threads > (uint64_t)most) {
    return refuse_kernel(kernel, ACCRT_ERROR_UNSUPPORTED, "the number of threads of a workgroup",
                         threads, (uint64_t)most);
  }
  return ACCRT_OK;
}

static accrt_status_t set_attribute(cuda_kernel_t* kernel, CUfunction_attribute which, int value,
                                    const char* what) {
  const CUresult result = kernel->device->api->cuFuncSetAttribute(kernel->function, which, value);
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  return accrt_cuda_fail(kernel->device, result, "cuFuncSetAttribute", "kernel '%s' with %d %s",
                         kernel->name, value, what);
}

static accrt_status_t set_shared(cuda_kernel_t* kernel, const accrt_kernel_def_t* declared) {
  kernel->shared_bytes = declared->local_memory_size_bytes;
  if (kernel->shared_bytes <= CUDA_DEFAULT_SHARED_BYTES)
    return ACCRT_OK;
  if (kernel->shared_bytes > (uint32_t)kernel->device->max_shared_bytes) {
    return refuse_kernel(kernel, ACCRT_ERROR_UNSUPPORTED, "dynamic shared memory",
                         kernel->shared_bytes, (uint64_t)kernel->device->max_shared_bytes);
  }
  /* An earlier declaration with a larger limit may have set it for the same function. */
  int allowed = 0;
  if (kernel->device->api->cuFuncGetAttribute(&allowed,
                                              CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                              kernel->function) == CUDA_SUCCESS &&
      allowed >= 0 && (uint32_t)allowed >= kernel->shared_bytes) {
    return ACCRT_OK;
  }
  return set_attribute(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                       (int)kernel->shared_bytes, "bytes of dynamic shared memory");
}

static CUlaunchAttribute* add_attribute(cuda_kernel_t* kernel, CUlaunchAttributeID id) {
  CUlaunchAttribute* attribute = &kernel->attributes[kernel->attribute_count++];
  memset(attribute, 0, sizeof *attribute);
  attribute->id = id;
  return attribute;
}

static accrt_status_t set_cluster(cuda_kernel_t* kernel, const accrt_kernel_def_t* declared) {
  const uint64_t size =
      (uint64_t)declared->cluster[0] * declared->cluster[1] * declared->cluster[2];
  if (declared->cluster[0] == 0 && declared->cluster[1] == 0 && declared->cluster[2] == 0)
    return ACCRT_OK;
  const uint64_t most = kernel->device->has_clusters ? 2 * CUDA_PORTABLE_CLUSTER : 0;
  if (size == 0 || size > most)
    return refuse_kernel(kernel, ACCRT_ERROR_UNSUPPORTED, "the number of workgroups of a cluster",
                         size, most);
  CUlaunchAttribute* attribute = add_attribute(kernel, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  attribute->value.clusterDim.x = declared->cluster[0];
  attribute->value.clusterDim.y = declared->cluster[1];
  attribute->value.clusterDim.z = declared->cluster[2];
  return size <= CUDA_PORTABLE_CLUSTER
             ? ACCRT_OK
             : set_attribute(kernel, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1,
                             "for clusters of more than 8 workgroups");
}

static accrt_status_t set_traits(cuda_kernel_t* kernel, const accrt_kernel_def_t* declared) {
  if ((declared->traits & ACCRT_KERNEL_TRAIT_COOPERATIVE) != 0) {
    if (!kernel->device->has_cooperative) {
      return accrt_cuda_refuse(kernel->device->environment, ACCRT_ERROR_UNSUPPORTED, "module_find",
                               "kernel '%s' is cooperative, which cuda:%u cannot launch",
                               kernel->name, kernel->device->ordinal);
    }
    add_attribute(kernel, CU_LAUNCH_ATTRIBUTE_COOPERATIVE)->value.cooperative = 1;
  }
  if ((declared->traits & ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS) != 0 &&
      kernel->device->compute_major >= 9) {
    add_attribute(kernel, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        ->value.programmaticStreamSerializationAllowed = 1;
    /* A multiprocessor has to be idle before its memory is divided anew between L1 and shared
     * memory, so kernels overlap only where they ask for the same division. A hint. */
    if (kernel->shared_bytes > 0) {
      (void)kernel->device->api->cuFuncSetAttribute(
          kernel->function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
          CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    }
  }
  return ACCRT_OK;
}

static accrt_status_t fail_missing(const cuda_module_t* module, const char* entry) {
  const cuda_api_t* api = module->device->api;
  CUkernel kernels[MOST_NEAR] = {NULL};
  const char* name = NULL;
  accrt_near_t near;
  accrt_near_init(&near, entry);
  (void)api->cuLibraryEnumerateKernels(kernels, MOST_NEAR, module->library);
  for (uint32_t i = 0; i < MOST_NEAR && kernels[i] != NULL; ++i) {
    if (api->cuKernelGetName(&name, kernels[i]) == CUDA_SUCCESS)
      accrt_near_add(&near, name);
  }
  return accrt_cuda_refuse(module->device->environment, ACCRT_ERROR_NOT_FOUND, "module_find",
                           "the image has no kernel '%s'%s", entry, accrt_near_text(&near));
}

/* Requires the current context. */
static accrt_status_t make_kernel(cuda_module_t* module, const char* entry,
                                  const accrt_kernel_def_t* declared, cuda_kernel_t* kernel) {
  cuda_device_t* device = module->device;
  kernel->device = device;
  /* Relaxed is enough: the ids only have to differ. */
  kernel->id = 1 + atomic_fetch_add_explicit(&device->kernels_made, 1, memory_order_relaxed);
  snprintf(kernel->name, sizeof kernel->name, "%s", entry);
  CUresult result = device->api->cuLibraryGetKernel(&kernel->kernel, module->library, entry);
  if (result == CUDA_ERROR_NOT_FOUND)
    return fail_missing(module, entry);
  const char* call = "cuLibraryGetKernel";
  if (result == CUDA_SUCCESS) {
    call = "cuKernelGetFunction";
    result = device->api->cuKernelGetFunction(&kernel->function, kernel->kernel);
  }
  if (result != CUDA_SUCCESS)
    return accrt_cuda_fail(device, result, call, "kernel '%s' on cuda:%u", entry, device->ordinal);
  accrt_status_t status = check_params(kernel, declared);
  if (status == ACCRT_OK)
    status = check_block(kernel, declared);
  if (status == ACCRT_OK)
    status = set_shared(kernel, declared);
  if (status == ACCRT_OK)
    status = set_cluster(kernel, declared);
  return status == ACCRT_OK ? set_traits(kernel, declared) : status;
}

accrt_status_t accrt_cuda_module_find(accrt_driver_module_t* opaque, const char* entry,
                                      const accrt_kernel_def_t* declared,
                                      void** out_module_kernel) {
  cuda_module_t* module = (cuda_module_t*)opaque;
  cuda_device_t* device = module->device;
  *out_module_kernel = NULL;
  if (cuda_device_is_lost(device))
    return accrt_cuda_device_lost(device, "module_find");
  cuda_kernel_t* kernel;
  ACCRT_TRY(ACCRT_NEW(device->allocator, &kernel));
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  accrt_status_t status = make_kernel(module, entry, declared, kernel);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (status != ACCRT_OK) {
    accrt_free(device->allocator, kernel, sizeof *kernel);
    return status;
  }
  accrt_mutex_lock(&module->mutex);
  kernel->next = module->kernels;
  module->kernels = kernel;
  accrt_mutex_unlock(&module->mutex);
  *out_module_kernel = kernel;
  return ACCRT_OK;
}
