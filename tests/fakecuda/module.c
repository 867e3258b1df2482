/* tests/fakecuda/module.c - libraries and modules, kernels and functions, launches; linking; where twins come from. */
#include "fake.h"

#include <dlfcn.h>

#define MAX_TWIN_FILES 16
#define PARAMS_MAX_BYTES 4096

struct CUkern_st {
  uint32_t magic;
  CUlibrary library;
  uint32_t index;
};

struct CUfunc_st {
  uint32_t magic;
  struct CUfunc_st* next; /* of its module */
  CUmodule module;
  uint32_t index;
  uint32_t max_dynamic_shared;
  bool allows_large_clusters;
  fakecuda_kernel_fn_t twin;
};

struct CUmod_st {
  uint32_t magic;
  CUmodule next;
  CUcontext context;
  const image_t* image;
  image_t own;
  CUfunction functions;
  CUlibrary library; /* it is a part of, or NULL */
};

struct CUlib_st {
  uint32_t magic;
  CUlibrary next;
  image_t image;
  CUresult problem; /* with the image */
  struct CUkern_st* kernels;
  CUmodule modules;
};

struct CUlinkState_st {
  CUlinkState next;
  char* ptx;
  size_t size_bytes;
  CUresult result;
};

static CUlinkState links;
static CUmodule modules;
static CUlibrary libraries;
static void* twin_files[MAX_TWIN_FILES];
static uint32_t twin_file_count;
static bool twins_are_open;

/* ---- Twins ---- */

static void open_twins(void) {
  twins_are_open = true;
  const char* list = getenv("FAKECUDA_KERNELS");
  char* copy = strdup(list == NULL ? "" : list);
  char* rest = copy;
  for (char* path; (path = strsep(&rest, ":")) != NULL;) {
    if (path[0] == '\0' || twin_file_count == MAX_TWIN_FILES)
      continue;
    void* file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL)
      fake_complain("FAKECUDA_KERNELS: %s", dlerror());
    else
      twin_files[twin_file_count++] = file;
  }
  free(copy);
}

static fakecuda_kernel_fn_t find_twin(const char* name) {
  char symbol[300];
  fakecuda_kernel_fn_t twin = NULL;
  if (!twins_are_open)
    open_twins();
  snprintf(symbol, sizeof symbol, "fakecuda_%s", name);
  for (uint32_t i = 0; i < twin_file_count && twin == NULL; ++i) {
    void* address = dlsym(twin_files[i], symbol);
    memcpy(&twin, &address, sizeof twin);
  }
  if (twin == NULL) { /* one that is linked into the program */
    void* address = dlsym(RTLD_DEFAULT, symbol);
    memcpy(&twin, &address, sizeof twin);
  }
  return twin;
}

/* ---- Running ---- */

const image_kernel_t* function_image(CUfunction function) {
  return &function->module->image->kernels[function->index];
}

static void shuffle(uint32_t* order, uint32_t count, uint64_t seed) {
  for (uint32_t i = 0; i < count; ++i)
    order[i] = i;
  for (uint32_t i = count; i > 1; --i) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const uint32_t k = (uint32_t)((seed >> 33) % i);
    const uint32_t kept = order[i - 1];
    order[i - 1] = order[k];
    order[k] = kept;
  }
}

#define MAX_SHUFFLED 65536u

static CUresult run_blocks(const op_kernel_t* kernel, const void* const* params,
                           const uint32_t* order, uint32_t count, void* shared) {
  const uint64_t total = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
  fakecuda_block_t block = {.shared_bytes = kernel->shared_bytes, .shared = shared};
  memcpy(block.grid, kernel->grid, sizeof block.grid);
  memcpy(block.block, kernel->block, sizeof block.block);
  for (uint64_t i = 0; i < total; ++i) {
    const uint64_t linear = i < count ? order[i] : i;
    block.index[0] = (uint32_t)(linear % kernel->grid[0]);
    block.index[1] = (uint32_t)(linear / kernel->grid[0] % kernel->grid[1]);
    block.index[2] = (uint32_t)(linear / kernel->grid[0] / kernel->grid[1]);
    if (shared != NULL)
      memset(shared, 0xC3, kernel->shared_bytes);
    if (kernel->function->twin(params, &block) != 0)
      return CUDA_ERROR_LAUNCH_FAILED;
  }
  return CUDA_SUCCESS;
}

/* What it allocates is lost when the twin faults: a fault ends the context anyway. */
int kernel_run(const op_kernel_t* kernel) {
  static uint64_t seed;
  static uint32_t order[MAX_SHUFFLED];
  const image_kernel_t* image = function_image(kernel->function);
  const void* params[IMAGE_MAX_PARAMS];
  for (uint32_t i = 0; i < image->param_count; ++i)
    params[i] = kernel->params + image->param_offset[i];
  const uint64_t total = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
  const uint32_t count = total < MAX_SHUFFLED ? (uint32_t)total : MAX_SHUFFLED;
  seed += fake.settings.seed + 1;
  shuffle(order, count, seed);
  void* shared = kernel->shared_bytes == 0
                     ? NULL
                     : aligned_alloc(1024, (kernel->shared_bytes + 1023u) & ~1023u);
  const CUresult result = run_blocks(kernel, params, order, count, shared);
  free(shared);
  return (int)result;
}

/* ---- Launch ---- */

static bool function_is_live(CUfunction function) {
  for (CUmodule module = modules; module != NULL; module = module->next) {
    for (CUfunction at = module->functions; at != NULL; at = at->next) {
      if (at == function)
        return true;
    }
  }
  return false;
}

static CUfunction module_function(CUmodule module, uint32_t index) {
  for (CUfunction at = module->functions; at != NULL; at = at->next) {
    if (at->index == index)
      return at;
  }
  CUfunction function = fake_allocate(sizeof *function);
  function->magic = MAGIC_FUNCTION;
  function->module = module;
  function->index = index;
  function->max_dynamic_shared = 49152 - module->image->kernels[index].static_shared;
  function->twin = find_twin(module->image->kernels[index].name);
  function->next = module->functions;
  module->functions = function;
  return function;
}

static bool kernel_is_live(CUkernel kernel) {
  for (CUlibrary library = libraries; library != NULL; library = library->next) {
    if (kernel >= library->kernels && kernel < library->kernels + library->image.kernel_count)
      return true;
  }
  return false;
}

static CUmodule library_module(CUlibrary library, CUcontext context) {
  for (CUmodule at = modules; at != NULL; at = at->next) {
    if (at->library == library && at->context == context)
      return at;
  }
  CUmodule module = fake_allocate(sizeof *module);
  module->magic = MAGIC_MODULE;
  module->context = context;
  module->image = &library->image;
  module->library = library;
  module->next = modules;
  modules = module;
  return module;
}

/* A CUkernel is taken where a CUfunction is, as the real one does. */
static CUfunction resolve_function(CUcontext context, CUfunction handle) {
  if (function_is_live(handle))
    return handle;
  CUkernel kernel = (CUkernel)(void*)handle;
  if (handle != NULL && kernel_is_live(kernel))
    return module_function(library_module(kernel->library, context), kernel->index);
  if (handle != NULL)
    fake_complain("%p is no function, or of a module that was unloaded", (void*)handle);
  return NULL;
}

/* Parameters come one by one, or as a block. */
static CUresult pack_params(const image_kernel_t* image, void** params, void** extra,
                            unsigned char* out) {
  if (params != NULL && extra != NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (params != NULL) {
    for (uint32_t i = 0; i < image->param_count; ++i) {
      if (params[i] == NULL)
        return CUDA_ERROR_INVALID_VALUE;
      memcpy(out + image->param_offset[i], params[i], image->param_size[i]);
    }
    return CUDA_SUCCESS;
  }
  const void* block = NULL;
  size_t size_bytes = 0;
  for (void** at = extra; at != NULL && at[0] != CU_LAUNCH_PARAM_END; at += 2) {
    if (at[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      block = at[1];
    else if (at[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      size_bytes = *(const size_t*)at[1];
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (image->params_size != 0 && block == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (size_bytes > image->params_size)
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (size_bytes < image->params_size) {
    fake_complain("kernel %s was given %zu bytes of its %u of parameters", image->name, size_bytes,
                  image->params_size);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (image->params_size != 0)
    memcpy(out, block, image->params_size);
  return CUDA_SUCCESS;
}

static CUresult check_shape(CUfunction function, const CUlaunchConfig* config) {
  const image_kernel_t* image = function_image(function);
  const uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
  if (config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0 || threads == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (config->gridDimX > 0x7FFFFFFFu || config->gridDimY > 65535 || config->gridDimZ > 65535 ||
      config->blockDimX > 1024 || config->blockDimY > 1024 || config->blockDimZ > 64 ||
      threads > 1024)
    return CUDA_ERROR_INVALID_VALUE;
  if (threads > image->max_threads)
    return CUDA_ERROR_INVALID_VALUE;
  if (config->sharedMemBytes > function->max_dynamic_shared)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

void count_attribute(CUlaunchAttributeID id, const char* cluster, const char* cooperative,
                     const char* overlap) {
  if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    fake_count(cluster);
  if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
    fake_count(cooperative);
  if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    fake_count(overlap);
}

static CUresult check_attributes(const CUlaunchConfig* config, CUfunction function,
                                 op_kernel_t* kernel) {
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute* attribute = &config->attrs[i];
    count_attribute(attribute->id, "launch.cluster", "launch.cooperative", "launch.overlap");
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      kernel->is_cooperative = attribute->value.cooperative != 0;
    if (attribute->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      continue;
    const uint32_t x = attribute->value.clusterDim.x;
    const uint32_t y = attribute->value.clusterDim.y;
    const uint32_t z = attribute->value.clusterDim.z;
    if (x * y * z == 0 || x * y * z > (function->allows_large_clusters ? 16u : 8u) ||
        config->gridDimX % x != 0 || config->gridDimY % y != 0 || config->gridDimZ % z != 0)
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  const uint64_t blocks = (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ;
  if (kernel->is_cooperative && blocks > 4 * 32)
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  return CUDA_SUCCESS;
}

CUresult kernel_prepare(CUcontext context, const CUlaunchConfig* config, CUfunction handle,
                        void** params, void** extra, op_t* out_op) {
  CUfunction function = resolve_function(context, handle);
  if (function == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  *out_op = (op_t){.kind = OP_KERNEL,
                   .as.kernel = {.function = function,
                                 .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                                 .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                                 .shared_bytes = config->sharedMemBytes}};
  CUresult result = check_shape(function, config);
  if (result == CUDA_SUCCESS)
    result = check_attributes(config, function, &out_op->as.kernel);
  const image_kernel_t* image = function_image(function);
  if (result == CUDA_SUCCESS && function->twin == NULL) {
    fake_complain("kernel %s has no twin: name its shared object in FAKECUDA_KERNELS", image->name);
    result = CUDA_ERROR_NOT_SUPPORTED;
  }
  if (result != CUDA_SUCCESS)
    return result;
  out_op->as.kernel.params = fake_allocate(image->params_size);
  result = pack_params(image, params, extra, out_op->as.kernel.params);
  if (result != CUDA_SUCCESS)
    op_free(out_op);
  return result;
}

static CUresult launch(CUcontext current, const CUlaunchConfig* config, CUfunction f, void** params,
                       void** extra) {
  CUstream stream = NULL;
  CUresult result = stream_find(current, config->hStream, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  op_t op;
  result = kernel_prepare(stream->context, config, f, params, extra, &op);
  if (result != CUDA_SUCCESS)
    return result;
  if (op.as.kernel.function->module->context != stream->context) {
    op_free(&op);
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return stream_enqueue(stream, &op);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                 void** extra) {
  ENTER(NORMAL);
  return config == NULL ? CUDA_ERROR_INVALID_VALUE
                        : launch(guard.context, config, f, kernelParams, extra);
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                               unsigned int gridDimZ, unsigned int blockDimX,
                               unsigned int blockDimY, unsigned int blockDimZ,
                               unsigned int sharedMemBytes, CUstream hStream, void** kernelParams,
                               void** extra) {
  ENTER(NORMAL);
  const CUlaunchConfig config = {.gridDimX = gridDimX,
                                 .gridDimY = gridDimY,
                                 .gridDimZ = gridDimZ,
                                 .blockDimX = blockDimX,
                                 .blockDimY = blockDimY,
                                 .blockDimZ = blockDimZ,
                                 .sharedMemBytes = sharedMemBytes,
                                 .hStream = hStream};
  return launch(guard.context, &config, f, kernelParams, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX,
                                          unsigned int gridDimY, unsigned int gridDimZ,
                                          unsigned int blockDimX, unsigned int blockDimY,
                                          unsigned int blockDimZ, unsigned int sharedMemBytes,
                                          CUstream hStream, void** kernelParams) {
  ENTER(NORMAL);
  CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
  const CUlaunchConfig config = {.gridDimX = gridDimX,
                                 .gridDimY = gridDimY,
                                 .gridDimZ = gridDimZ,
                                 .blockDimX = blockDimX,
                                 .blockDimY = blockDimY,
                                 .blockDimZ = blockDimZ,
                                 .sharedMemBytes = sharedMemBytes,
                                 .hStream = hStream,
                                 .attrs = &attribute,
                                 .numAttrs = 1};
  return launch(guard.context, &config, f, kernelParams, NULL);
}

/* ---- Modules ---- */

static CUresult find_kernel(const image_t* image, const char* name, uint32_t* out_index) {
  for (uint32_t i = 0; i < image->kernel_count; ++i) {
    if (strcmp(image->kernels[i].name, name) == 0) {
      *out_index = i;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                                   CUjit_option* options, void** optionValues) {
  ENTER(NORMAL);
  (void)numOptions;
  (void)options;
  (void)optionValues;
  if (module == NULL || image == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUmodule made = fake_allocate(sizeof *made);
  const CUresult result = image_parse(image, fake.settings.arch, &made->own);
  if (result != CUDA_SUCCESS) {
    free(made);
    return result;
  }
  made->magic = MAGIC_MODULE;
  made->context = guard.context;
  made->image = &made->own;
  made->next = modules;
  modules = made;
  *module = made;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

static bool module_is_live(CUmodule module) {
  for (CUmodule at = modules; at != NULL; at = at->next) {
    if (at == module)
      return true;
  }
  return false;
}

static void module_free(CUmodule module) {
  for (CUmodule* at = &modules; *at != NULL; at = &(*at)->next) {
    if (*at == module) {
      *at = module->next;
      break;
    }
  }
  while (module->functions != NULL) {
    CUfunction function = module->functions;
    module->functions = function->next;
    free(function);
  }
  image_free(&module->own);
  free(module);
}

EXPORT CUresult cuModuleUnload(CUmodule hmod) {
  ENTER(UNSAFE);
  if (!module_is_live(hmod) || hmod->library != NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  engine_drain(hmod->context); /* as the real one does */
  module_free(hmod);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  ENTER(NORMAL);
  if (hfunc == NULL || name == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!module_is_live(hmod))
    return CUDA_ERROR_INVALID_HANDLE;
  uint32_t index = 0;
  const CUresult result = find_kernel(hmod->image, name, &index);
  if (result == CUDA_SUCCESS)
    *hfunc = module_function(hmod, index);
  return result;
}

/* ---- Libraries ---- */

EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                                  void** jitOptionsValues, unsigned int numJitOptions,
                                  CUlibraryOption* libraryOptions, void** libraryOptionValues,
                                  unsigned int numLibraryOptions) {
  ENTER(NEED_INIT);
  (void)jitOptions;
  (void)jitOptionsValues;
  (void)numJitOptions;
  (void)libraryOptions;
  (void)libraryOptionValues;
  (void)numLibraryOptions;
  if (library == NULL || code == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUlibrary made = fake_allocate(sizeof *made);
  made->problem = image_parse(code, fake.settings.arch, &made->image); /* said when it is needed */
  made->magic = MAGIC_LIBRARY;
  made->kernels = fake_allocate(made->image.kernel_count * sizeof(struct CUkern_st));
  for (uint32_t i = 0; i < made->image.kernel_count; ++i)
    made->kernels[i] = (struct CUkern_st){MAGIC_KERNEL, made, i};
  made->next = libraries;
  libraries = made;
  *library = made;
  return CUDA_SUCCESS;
}

static bool library_is_live(CUlibrary library) {
  for (CUlibrary at = libraries; at != NULL; at = at->next) {
    if (at == library)
      return true;
  }
  return false;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library) {
  ENTER(NEED_INIT);
  if (!library_is_live(library))
    return CUDA_ERROR_INVALID_HANDLE;
  for (CUcontext context = fake.contexts; context != NULL; context = context->next)
    engine_drain(context);
  for (CUmodule at = modules; at != NULL;) {
    CUmodule next = at->next;
    if (at->library == library)
      module_free(at);
    at = next;
  }
  for (CUlibrary* at = &libraries; *at != NULL; at = &(*at)->next) {
    if (*at == library) {
      *at = library->next;
      break;
    }
  }
  image_free(&library->image);
  free(library->kernels);
  free(library);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
  ENTER(NEED_INIT);
  if (pKernel == NULL || name == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!library_is_live(library))
    return CUDA_ERROR_INVALID_HANDLE;
  if (library->problem != CUDA_SUCCESS)
    return library->problem;
  uint32_t index = 0;
  const CUresult result = find_kernel(&library->image, name, &index);
  if (result == CUDA_SUCCESS)
    *pKernel = &library->kernels[index];
  return result;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  ENTER(NEED_INIT);
  if (count == NULL || !library_is_live(lib))
    return CUDA_ERROR_INVALID_VALUE;
  *count = lib->image.kernel_count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels,
                                          CUlibrary lib) {
  ENTER(NEED_INIT);
  if (kernels == NULL || numKernels == 0 || !library_is_live(lib))
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < numKernels && i < lib->image.kernel_count; ++i)
    kernels[i] = &lib->kernels[i];
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
  ENTER(NORMAL);
  if (pMod == NULL || !library_is_live(library))
    return CUDA_ERROR_INVALID_VALUE;
  if (library->problem != CUDA_SUCCESS)
    return library->problem;
  *pMod = library_module(library, guard.context);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  ENTER(NORMAL);
  if (pFunc == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!kernel_is_live(kernel))
    return CUDA_ERROR_INVALID_HANDLE;
  *pFunc = module_function(library_module(kernel->library, guard.context), kernel->index);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetName(const char** name, CUkernel hfunc) {
  ENTER(NEED_INIT);
  if (name == NULL || !kernel_is_live(hfunc))
    return CUDA_ERROR_INVALID_VALUE;
  *name = hfunc->library->image.kernels[hfunc->index].name;
  return CUDA_SUCCESS;
}

static CUresult param_info(const image_kernel_t* image, size_t index, size_t* out_offset,
                           size_t* out_size) {
  if (out_offset == NULL || index >= image->param_count)
    return CUDA_ERROR_INVALID_VALUE;
  *out_offset = image->param_offset[index];
  if (out_size != NULL)
    *out_size = image->param_size[index];
  return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                                     size_t* paramSize) {
  ENTER(NEED_INIT);
  if (!kernel_is_live(kernel))
    return CUDA_ERROR_INVALID_VALUE;
  return param_info(&kernel->library->image.kernels[kernel->index], paramIndex, paramOffset,
                    paramSize);
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                                   size_t* paramSize) {
  ENTER(NORMAL);
  CUfunction function = resolve_function(guard.context, func);
  if (function == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  return param_info(function_image(function), paramIndex, paramOffset, paramSize);
}

/* ---- Attributes ---- */

static CUresult get_attribute(CUfunction function, CUfunction_attribute attribute, int* out_value) {
  const image_kernel_t* image = function_image(function);
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *out_value = (int)image->max_threads;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
    *out_value = (int)image->static_shared;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
  case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    *out_value = 0;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_NUM_REGS:
    *out_value = (int)image->registers;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION:
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
    *out_value =
        function->module->image->is_ptx ? fake.settings.arch : function->module->image->arch;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    *out_value = (int)function->max_dynamic_shared;
    return CUDA_SUCCESS;
  case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    *out_value = function->allows_large_clusters;
    return CUDA_SUCCESS;
  default:
    *out_value = 0;
    return attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
}

static CUresult set_attribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value < 0 || (uint32_t)value > 232448u - function_image(function)->static_shared)
      return CUDA_ERROR_INVALID_VALUE;
    function->max_dynamic_shared = (uint32_t)value;
    return CUDA_SUCCESS;
  }
  if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
    function->allows_large_clusters = value != 0;
    return CUDA_SUCCESS;
  }
  return attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  ENTER(NORMAL);
  CUfunction function = resolve_function(guard.context, hfunc);
  if (function == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  return pi == NULL ? CUDA_ERROR_INVALID_VALUE : get_attribute(function, attrib, pi);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  ENTER(NORMAL);
  CUfunction function = resolve_function(guard.context, hfunc);
  if (function == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  return set_attribute(function, attrib, value);
}

/* The device's context, whichever it is: the attribute is the kernel's there. */
static CUfunction kernel_on(CUkernel kernel, CUdevice device) {
  if (!kernel_is_live(kernel) || device < 0 || device >= fake.settings.device_count ||
      fake.primaries[device] == NULL)
    return NULL;
  return module_function(library_module(kernel->library, fake.primaries[device]), kernel->index);
}

EXPORT CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel,
                                     CUdevice dev) {
  ENTER(NEED_INIT);
  CUfunction function = kernel_on(kernel, dev);
  if (function == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  return pi == NULL ? CUDA_ERROR_INVALID_VALUE : get_attribute(function, attrib, pi);
}

EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                     CUdevice dev) {
  ENTER(NEED_INIT);
  CUfunction function = kernel_on(kernel, dev);
  return function == NULL ? CUDA_ERROR_INVALID_HANDLE : set_attribute(function, attrib, val);
}

EXPORT CUresult cuFuncGetName(const char** name, CUfunction hfunc) {
  ENTER(NEED_INIT);
  if (name == NULL || !function_is_live(hfunc))
    return CUDA_ERROR_INVALID_VALUE;
  *name = function_image(hfunc)->name;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  ENTER(NEED_INIT);
  if (hmod == NULL || !function_is_live(hfunc))
    return CUDA_ERROR_INVALID_VALUE;
  *hmod = hfunc->module;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncLoad(CUfunction function) {
  ENTER(NORMAL);
  return resolve_function(guard.context, function) == NULL ? CUDA_ERROR_INVALID_HANDLE
                                                           : CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func,
                                                            int blockSize, size_t dynamicSMemSize) {
  ENTER(NORMAL);
  CUfunction function = resolve_function(guard.context, func);
  if (function == NULL || numBlocks == NULL || blockSize <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int by_threads = 2048 / ((blockSize + 31) / 32 * 32);
  const size_t shared = dynamicSMemSize + function_image(function)->static_shared + 1024;
  const int by_shared = (int)(233472 / shared);
  *numBlocks = by_threads < by_shared ? by_threads : by_shared;
  if (*numBlocks > 32)
    *numBlocks = 32;
  if (blockSize > 1024)
    *numBlocks = 0;
  return CUDA_SUCCESS;
}

/* ---- Linking: PTX stays what it is ---- */

EXPORT CUresult cuLinkCreate(unsigned int numOptions, CUjit_option* options, void** optionValues,
                             CUlinkState* stateOut) {
  ENTER(UNSAFE);
  (void)numOptions;
  (void)options;
  (void)optionValues;
  if (stateOut == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *stateOut = fake_allocate(sizeof **stateOut);
  (*stateOut)->next = links;
  links = *stateOut;
  return CUDA_SUCCESS;
}

static bool link_is_live(CUlinkState state) {
  for (CUlinkState at = links; at != NULL; at = at->next) {
    if (at == state)
      return true;
  }
  return false;
}

EXPORT CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size,
                              const char* name, unsigned int numOptions, CUjit_option* options,
                              void** optionValues) {
  ENTER(NEED_INIT | NEED_CONTEXT);
  (void)name;
  (void)numOptions;
  (void)options;
  (void)optionValues;
  if (!link_is_live(state) || data == NULL || size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_JIT_INPUT_PTX)
    return CUDA_ERROR_NOT_SUPPORTED;
  image_t image;
  char* text = strndup(data, size);
  const CUresult result =
      text == NULL ? CUDA_ERROR_OUT_OF_MEMORY : image_parse(text, fake.settings.arch, &image);
  if (result != CUDA_SUCCESS) {
    free(text);
    return result;
  }
  image_free(&image);
  free(state->ptx);
  state->ptx = text;
  state->size_bytes = strlen(text) + 1;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
  ENTER(NEED_INIT | NEED_CONTEXT);
  if (!link_is_live(state) || cubinOut == NULL || sizeOut == NULL || state->ptx == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *cubinOut = state->ptx;
  *sizeOut = state->size_bytes;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkDestroy(CUlinkState state) {
  ENTER(NEED_INIT);
  if (!link_is_live(state))
    return CUDA_ERROR_INVALID_VALUE;
  for (CUlinkState* at = &links; *at != NULL; at = &(*at)->next) {
    if (*at == state) {
      *at = state->next;
      break;
    }
  }
  free(state->ptx);
  free(state);
  return CUDA_SUCCESS;
}
