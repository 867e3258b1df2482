/* tests/fakecuda/transcript.c - a fixed series of driver calls, one line for each: what it was, what it
 * gave, what could be seen afterwards. The same program runs against the stand-in and against the
 * real driver, and prints the same. Memory and copies are in transcript_memory.c, graphs and captures
 * in transcript_graphs.c.
 *
 * Usage: transcript PTX [SECTION]. Without a section each runs in a process of its own, because some
 * lose their context. */
#include "transcript.h"

char* ptx;
CUcontext primary;
CUmodule module;

/* ---- One line a call ---- */

CUresult say(const char* expression, CUresult result) {
  const char* name = NULL;
  cuGetErrorName(result, &name);
  printf("%s = %s\n", expression, name == NULL ? "?" : name + (result == CUDA_SUCCESS ? 5 : 11));
  return result;
}
void value(const char* name, uint64_t number) {
  printf("  %s: %" PRIu64 "\n", name, number);
}

void begin(void) {
  CUdevice device;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS ||
      cuCtxSetCurrent(primary) != CUDA_SUCCESS) {
    puts("no device");
    exit(77);
  }
}

CUfunction function(const char* name) {
  CUfunction found = NULL;
  if (module == NULL && cuModuleLoadData(&module, ptx) != CUDA_SUCCESS)
    puts("the PTX does not load");
  if (cuModuleGetFunction(&found, module, name) != CUDA_SUCCESS)
    printf("no kernel %s\n", name);
  return found;
}

CUresult launch(CUfunction f, unsigned grid, unsigned block, CUstream stream, void** params) {
  return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, stream, params, NULL);
}

void be_late(CUstream stream) {
  uint64_t nanoseconds = 400000000;
  void* params[] = {&nanoseconds};
  launch(function("tx_late"), 1, 1, stream, params);
}

uint32_t read_word(CUdeviceptr at) {
  uint32_t word = 0;
  cuMemcpyDtoH(&word, at, 4);
  return word;
}

/* ---- Sections ---- */

static void section_start(void) {
  int number = 0;
  int version = 0;
  CUdevice device;
  CUcontext context = NULL;
  CUdeviceptr memory;
  size_t size;
  char name[100];
  T(cuDeviceGetCount(&number));
  T(cuCtxGetCurrent(&context));
  T(cuMemAlloc(&memory, 100));
  T(cuDriverGetVersion(&version));
  T(cuDriverGetVersion(NULL));
  T(cuInit(1));
  T(cuInit(0));
  T(cuInit(0));
  T(cuDeviceGetCount(NULL));
  T(cuDeviceGet(&device, 100));
  T(cuDeviceGet(&device, -1));
  T(cuDeviceGet(NULL, 0));
  T(cuDeviceGet(&device, 0));
  T(cuDeviceGetName(NULL, 10, device));
  T(cuDeviceGetName(name, sizeof name, 100));
  T(cuDeviceTotalMem(&size, 100));
  T(cuDeviceTotalMem(NULL, device));
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
  V(number);
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  V(number);
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
  V(number);
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device));
  V(number);
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
  V(number);
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                         device));
  V(number);
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device));
  V(number);
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, device));
  V(number);
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device));
  V(number);
  T(cuDeviceGetAttribute(NULL, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
  T(cuDeviceGetAttribute(&number, (CUdevice_attribute)0, device));
  T(cuDeviceGetAttribute(&number, (CUdevice_attribute)100000, device));
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 100));
  T(cuDeviceCanAccessPeer(&number, device, device));
  V(number);
  T(cuMemAlloc(&memory, 100));
  T(cuStreamSynchronize(NULL));
  T(cuCtxSynchronize());
  T(cuCtxGetDevice(&device));
  T(cuModuleLoadData(&module, ptx));
  const char* text = NULL;
  T(cuGetErrorName((CUresult)12345, &text));
  V(text == NULL);
  T(cuGetErrorString((CUresult)12345, &text));
  void* address = NULL;
  CUdriverProcAddressQueryResult status;
  T(cuGetProcAddress("cuNoSuchFunction", &address, 12000, 0, &status));
  V(status);
  V(address == NULL);
  T(cuGetProcAddress("cuKernelGetParamInfo", &address, 11000, 0, &status));
  V(status);
  T(cuGetProcAddress("cuKernelGetParamInfo", &address, 12040, 0, &status));
  V(status);
  V(address != NULL);
  T(cuGetProcAddress("cuNoSuchFunction", &address, 12000, 0, NULL));
  T(cuGetProcAddress("cuKernelGetParamInfo", &address, 11000, 0, NULL));
}

static void section_context(void) {
  CUcontext context = NULL;
  CUcontext other = NULL;
  CUdevice device = 0;
  CUdeviceptr memory = 0;
  unsigned flags = 99;
  int active = 99;
  cuInit(0);
  T(cuDevicePrimaryCtxGetState(device, &flags, &active));
  V(flags);
  V(active);
  T(cuDevicePrimaryCtxRelease(device));
  T(cuDevicePrimaryCtxRetain(NULL, device));
  T(cuDevicePrimaryCtxRetain(&context, 100));
  T(cuDevicePrimaryCtxRetain(&context, device));
  T(cuDevicePrimaryCtxGetState(device, &flags, &active));
  V(flags);
  V(active);
  T(cuCtxGetCurrent(&other));
  V(other == NULL);
  T(cuCtxPopCurrent(&other));
  T(cuCtxSetCurrent(context));
  T(cuCtxGetCurrent(&other));
  V(other == context);
  T(cuCtxPushCurrent(context));
  T(cuCtxPushCurrent(NULL));
  T(cuCtxPopCurrent(&other));
  V(other == context);
  T(cuCtxGetCurrent(&other));
  V(other == context);
  T(cuCtxGetDevice(&device));
  V(device);
  T(cuCtxSetCurrent(NULL));
  T(cuCtxGetCurrent(&other));
  V(other == NULL);
  T(cuCtxSetCurrent(NULL));
  T(cuCtxSetCurrent(context));
  T(cuCtxDestroy(context));
  T(cuCtxEnablePeerAccess(context, 0));
  T(cuCtxEnablePeerAccess(NULL, 0));
  int least = 99;
  int greatest = 99;
  T(cuCtxGetStreamPriorityRange(&least, &greatest));
  V(least);
  V(-greatest);
  T(cuCtxGetStreamPriorityRange(NULL, NULL));
  T(cuDevicePrimaryCtxRetain(&other, device));
  V(other == context);
  T(cuDevicePrimaryCtxRelease(device));
  T(cuDevicePrimaryCtxRelease(device));
  T(cuDevicePrimaryCtxGetState(device, &flags, &active));
  V(active);
  T(cuDevicePrimaryCtxRelease(device));
  /* The context is still this thread's, but no more than that. */
  T(cuCtxGetCurrent(&other));
  V(other == context);
  T(cuMemAlloc(&memory, 100));
  T(cuStreamSynchronize(NULL));
  T(cuCtxGetDevice(&device));
  T(cuCtxSynchronize());
  T(cuCtxSetCurrent(context));
  T(cuDevicePrimaryCtxRetain(&context, device));
  T(cuCtxSetCurrent(context));
  T(cuMemAlloc(&memory, 100));
}

static void section_stream(void) {
  begin();
  function("tx_late");
  CUstream stream = NULL;
  CUstream blocking = NULL;
  CUevent event = NULL;
  CUevent timed = NULL;
  CUevent second = NULL;
  float milliseconds = -1;
  int priority = 99;
  unsigned flags = 99;
  T(cuStreamCreate(NULL, 0));
  T(cuStreamCreate(&stream, 77));
  T(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -100));
  T(cuStreamGetPriority(stream, &priority));
  V(-priority);
  T(cuStreamDestroy(stream));
  T(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 100));
  T(cuStreamGetPriority(stream, &priority));
  V(priority);
  T(cuStreamGetFlags(stream, &flags));
  V(flags);
  T(cuStreamGetFlags(NULL, &flags));
  V(flags);
  T(cuStreamGetPriority(NULL, &priority));
  V(priority);
  CUcontext of = NULL;
  T(cuStreamGetCtx(stream, &of));
  V(of == primary);
  T(cuStreamGetCtx(NULL, &of));
  V(of == primary);
  T(cuStreamGetCtx(stream, NULL));
  T(cuStreamQuery(stream));
  T(cuStreamQuery(NULL));
  T(cuStreamSynchronize(stream));
  T(cuEventCreate(NULL, 0));
  T(cuEventCreate(&event, 0x1000));
  T(cuEventCreate(&event, CU_EVENT_INTERPROCESS));
  T(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  T(cuEventCreate(&timed, CU_EVENT_DEFAULT));
  T(cuEventCreate(&second, CU_EVENT_BLOCKING_SYNC));
  T(cuEventQuery(event));
  T(cuEventSynchronize(event));
  T(cuEventElapsedTime(&milliseconds, timed, second));
  T(cuStreamWaitEvent(stream, event, 0));
  T(cuStreamWaitEvent(stream, event, 77));
  T(cuStreamWaitEvent(stream, NULL, 0));
  T(cuEventRecord(NULL, stream));
  T(cuEventQuery(NULL));
  T(cuEventDestroy(NULL));
  T(cuEventRecord(timed, stream));
  be_late(stream);
  T(cuEventRecord(event, stream));
  T(cuEventRecord(second, stream));
  T(cuEventQuery(event));
  T(cuStreamQuery(stream));
  T(cuEventElapsedTime(&milliseconds, timed, second));
  T(cuEventElapsedTime(NULL, timed, second));
  T(cuStreamSynchronize(stream));
  T(cuEventQuery(event));
  T(cuStreamQuery(stream));
  T(cuEventElapsedTime(&milliseconds, timed, second));
  V(milliseconds >= 350 && milliseconds < 60000);
  T(cuEventElapsedTime(&milliseconds, second, timed));
  V(milliseconds < 0);
  T(cuEventElapsedTime(&milliseconds, timed, event));
  /* The default stream waits for blocking streams, and they for it; a non-blocking one stays apart. */
  T(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  be_late(blocking);
  T(cuStreamQuery(stream));
  T(cuStreamQuery(blocking));
  T(cuStreamQuery(NULL));
  T(cuEventRecord(event, NULL));
  T(cuEventQuery(event));
  T(cuStreamSynchronize(NULL));
  T(cuStreamQuery(blocking));
  T(cuEventQuery(event));
  be_late(NULL);
  T(cuEventRecord(event, blocking));
  T(cuEventQuery(event));
  T(cuEventRecord(second, stream));
  T(cuEventSynchronize(second));
  T(cuEventSynchronize(event));
  be_late(stream);
  T(cuEventRecord(event, stream));
  T(cuStreamWaitEvent(blocking, event, 0));
  T(cuEventRecord(second, blocking));
  T(cuEventDestroy(event));
  T(cuEventQuery(second));
  T(cuStreamSynchronize(stream));
  T(cuEventSynchronize(second));
  be_late(stream);
  T(cuStreamDestroy(stream));
  T(cuCtxSynchronize());
  T(cuStreamDestroy(NULL));
  T(cuEventQuery(second));
  T(cuEventDestroy(second));
  T(cuEventDestroy(timed));
}

static void about_params(CUlibrary library, const char* name) {
  CUkernel kernel = NULL;
  printf("%s:\n", name);
  T(cuLibraryGetKernel(&kernel, library, name));
  for (size_t i = 0; i < 6; ++i) {
    size_t offset = 0;
    size_t size = 0;
    if (T(cuKernelGetParamInfo(kernel, i, &offset, &size)) != CUDA_SUCCESS)
      break;
    V(offset);
    V(size);
  }
}

static void section_module(void) {
  begin();
  CUlibrary library = NULL;
  CUkernel kernel = NULL;
  CUfunction found = NULL;
  CUfunction again = NULL;
  size_t offset = 0;
  size_t size = 0;
  int number = 99;
  T(cuLibraryLoadData(&library, NULL, NULL, NULL, 0, NULL, NULL, 0));
  T(cuLibraryLoadData(NULL, ptx, NULL, NULL, 0, NULL, NULL, 0));
  N("no image",
    cuLibraryLoadData(&library, "\x01\x02\x03\x04 nothing known at all, but long enough to be read",
                      NULL, NULL, 0, NULL, NULL, 0));
  T(cuLibraryGetKernel(&kernel, library, "tx_add"));
  unsigned kernel_count = 99;
  T(cuLibraryGetKernelCount(&kernel_count, library));
  V(kernel_count);
  T(cuLibraryUnload(library));
  N("no PTX",
    cuLibraryLoadData(&library, "this is a text, and no PTX at all", NULL, NULL, 0, NULL, NULL, 0));
  T(cuLibraryGetKernel(&kernel, library, "tx_add"));
  T(cuLibraryGetModule(&module, library));
  T(cuLibraryUnload(library));
  N("PTX of later machines",
    cuLibraryLoadData(
        &library, ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k() { ret; }",
        NULL, NULL, 0, NULL, NULL, 0));
  T(cuLibraryGetKernel(&kernel, library, "k"));
  T(cuLibraryUnload(library));
  static unsigned char elf[4096] = {0x7F, 'E', 'L', 'F', 2, 1, 1};
  N("an ELF of nothing", cuLibraryLoadData(&library, elf, NULL, NULL, 0, NULL, NULL, 0));
  T(cuLibraryGetKernel(&kernel, library, "k"));
  T(cuLibraryUnload(library));
  N("an ELF of nothing", cuModuleLoadData(&module, elf));
  N("PTX cut short",
    cuModuleLoadData(&module, ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k("));
  N("PTX of later machines",
    cuModuleLoadData(
        &module, ".version 9.0\n.target sm_120\n.address_size 64\n.visible .entry k() { ret; }"));
  N("PTX of later versions",
    cuModuleLoadData(
        &module, ".version 99.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }"));
  T(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
  about_params(library, "tx_add");
  about_params(library, "tx_scale_add");
  about_params(library, "tx_params");
  about_params(library, "tx_nothing");
  T(cuLibraryGetKernel(&kernel, library, "no_such_kernel"));
  T(cuLibraryGetKernel(&kernel, library, NULL));
  T(cuLibraryGetKernel(NULL, library, "tx_add"));
  T(cuLibraryGetKernel(&kernel, library, "tx_bounded"));
  T(cuKernelGetParamInfo(kernel, 0, NULL, &size));
  T(cuKernelGetParamInfo(kernel, 0, &offset, NULL));
  T(cuKernelGetParamInfo(NULL, 0, &offset, &size));
  T(cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
  V(number);
  T(cuKernelGetFunction(&found, kernel));
  T(cuKernelGetFunction(&again, kernel));
  V(found == again);
  T(cuKernelGetFunction(NULL, kernel));
  T(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, found));
  V(number);
  T(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, found));
  V(number);
  T(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, found));
  V(number);
  T(cuFuncGetAttribute(&number, (CUfunction_attribute)100, found));
  T(cuFuncGetAttribute(NULL, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, found));
  T(cuFuncSetAttribute(found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20));
  T(cuFuncSetAttribute(found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1));
  T(cuFuncSetAttribute(found, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 100));
  T(cuFuncSetAttribute(found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  T(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, found));
  V(number);
  T(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, found, 64, 100000));
  V(number);
  T(cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, found, 64, 0));
  V(number);
  T(cuLibraryUnload(library));
  T(cuModuleLoadData(&module, ptx));
  T(cuModuleGetFunction(&found, module, "no_such_kernel"));
  T(cuModuleGetFunction(NULL, module, "tx_add"));
  T(cuModuleGetFunction(&found, module, "tx_add"));
  T(cuModuleUnload(module));
  T(cuModuleUnload(NULL));
  CUlinkState link = NULL;
  void* cubin = NULL;
  T(cuLinkCreate(0, NULL, NULL, NULL));
  T(cuLinkCreate(0, NULL, NULL, &link));
  T(cuLinkAddData(link, CU_JIT_INPUT_PTX, NULL, 10, "x", 0, NULL, NULL));
  T(cuLinkAddData(link, CU_JIT_INPUT_PTX, ptx, strlen(ptx) + 1, "kernels", 0, NULL, NULL));
  T(cuLinkComplete(link, &cubin, &size));
  V(cubin != NULL && size > 100);
  T(cuModuleLoadData(&module, cubin));
  T(cuModuleGetFunction(&found, module, "tx_params"));
  T(cuFuncGetParamInfo(found, 1, &offset, &size));
  V(offset);
  V(size);
  T(cuLinkDestroy(link));
}

static void section_launch(void) {
  begin();
  CUstream stream = NULL;
  CUdeviceptr cells = 0;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&cells, 65536);
  cuMemsetD32(cells, 0, 16384);
  cuCtxSynchronize();
  uint32_t number = 5;
  uint32_t count = 100;
  void* params[] = {&cells, &number, &count};
  CUfunction add = function("tx_add");
  T(launch(add, 1, 128, stream, params));
  number = 1000; /* the call took it */
  T(cuStreamSynchronize(stream));
  V(read_word(cells + 396));
  V(read_word(cells + 400));
  T(launch(NULL, 1, 1, stream, params));
  T(launch(add, 0, 1, stream, params));
  T(launch(add, 1, 0, stream, params));
  T(launch(add, 1, 1025, stream, params));
  T(launch(add, 0x80000000u, 1, stream, params));
  T(cuLaunchKernel(add, 1, 65536, 1, 1, 1, 1, 0, stream, params, NULL));
  T(cuLaunchKernel(add, 1, 1, 1, 1, 1, 65, 0, stream, params, NULL));
  T(cuLaunchKernel(add, 1, 1, 1, 32, 33, 1, 0, stream, params, NULL));
  T(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 49153, stream, params, NULL));
  T(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 1 << 20, stream, params, NULL));
  T(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
  struct {
    CUdeviceptr target;
    uint32_t value;
    uint32_t count;
  } block = {cells, 7, 10};
  size_t size = sizeof block;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  T(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, NULL, extra));
  T(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, params, extra));
  size = 24;
  N("block too large", cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, NULL, extra));
  T(cuStreamSynchronize(stream));
  V(read_word(cells));
  CUfunction bounded = function("tx_bounded");
  T(launch(bounded, 1, 64, stream, params));
  T(launch(bounded, 1, 65, stream, params));
  T(launch(function("tx_nothing"), 1, 1, stream, NULL));
  T(launch(function("tx_nothing"), 1, 1, NULL, NULL));
  CUfunction shared = function("tx_shared");
  count = 25000;
  void* shared_params[] = {&cells, &count};
  T(cuLaunchKernel(shared, 3, 1, 1, 32, 1, 1, 100000, stream, shared_params, NULL));
  T(cuFuncSetAttribute(shared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  T(cuLaunchKernel(shared, 3, 1, 1, 32, 1, 1, 100000, stream, shared_params, NULL));
  T(cuStreamSynchronize(stream));
  V(read_word(cells + 8));
  struct {
    uint64_t a;
    uint32_t b;
    uint16_t c;
    uint8_t d[5];
  } tx_block = {1000, 200, 30, {0, 0, 0, 0, 4}};
  uint8_t first = 5;
  uint16_t third = 60;
  void* all[] = {&first, &tx_block, &third, &cells};
  T(launch(function("tx_params"), 1, 1, stream, all));
  T(cuStreamSynchronize(stream));
  V(read_word(cells));
  CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                                 .value = {.cooperative = 1}};
  CUlaunchConfig config = {.gridDimX = 2,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 32,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = stream,
                           .attrs = &attribute,
                           .numAttrs = 1};
  CUfunction nothing = function("tx_nothing");
  T(cuLaunchKernelEx(NULL, nothing, NULL, NULL));
  T(cuLaunchKernelEx(&config, nothing, NULL, NULL));
  config.gridDimX = 1000000;
  N("cooperative, too many", cuLaunchKernelEx(&config, nothing, NULL, NULL));
  attribute = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                  .value = {.clusterDim = {2, 1, 1}}};
  config.gridDimX = 4;
  N("cluster of 2", cuLaunchKernelEx(&config, nothing, NULL, NULL));
  config.gridDimX = 5;
  N("cluster of 2, grid of 5", cuLaunchKernelEx(&config, nothing, NULL, NULL));
  attribute.value.clusterDim.x = 16;
  config.gridDimX = 32;
  N("cluster of 16", cuLaunchKernelEx(&config, nothing, NULL, NULL));
  attribute.value.clusterDim.x = 0;
  N("cluster of 0", cuLaunchKernelEx(&config, nothing, NULL, NULL));
  attribute = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                  .value = {.programmaticStreamSerializationAllowed = 1}};
  N("programmatic", cuLaunchKernelEx(&config, nothing, NULL, NULL));
  T(cuStreamSynchronize(stream));
}

/* ---- What the driver uses and no section above has ---- */

static uint32_t seen_words[4];
static CUresult seen_inside = CUDA_SUCCESS;

static void note_word(void* user) {
  for (int i = 0; i < 4; ++i) {
    if (seen_words[i] == 0) {
      seen_words[i] = *(const uint32_t*)user;
      return;
    }
  }
}

static void call_from_inside(void* user) {
  CUdeviceptr memory = 0;
  (void)user;
  seen_inside = cuMemAlloc(&memory, 100);
}

static void section_uuid(void) {
  CUuuid first;
  CUuuid second;
  CUdevice device;
  memset(&first, 0, sizeof first);
  memset(&second, 1, sizeof second);
  N("before cuInit", cuDeviceGetUuid(&first, 0));
  begin();
  cuDeviceGet(&device, 0);
  T(cuDeviceGetUuid(&first, device));
  T(cuDeviceGetUuid(&second, device));
  V(memcmp(&first, &second, sizeof first) == 0);
  T(cuDeviceGetUuid(NULL, device));
  T(cuDeviceGetUuid(&first, 100));
  T(cuDeviceGetUuid(&first, -1));
  T(cuCtxSetCurrent(NULL));
  N("no context", cuDeviceGetUuid(&first, device));
}

static void section_host_function(void) {
  begin();
  CUstream stream = NULL;
  CUevent event = NULL;
  uint32_t* pinned = NULL;
  static uint32_t two = 2;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  cuMemHostAlloc((void**)&pinned, 64, CU_MEMHOSTALLOC_PORTABLE);
  *pinned = 77;
  function("tx_late");
  T(cuLaunchHostFunc(stream, NULL, NULL));
  be_late(stream);
  T(cuMemsetD32Async((CUdeviceptr)(uintptr_t)pinned, 5, 1, stream));
  T(cuLaunchHostFunc(stream, note_word, pinned));
  T(cuMemsetD32Async((CUdeviceptr)(uintptr_t)pinned, 6, 1, stream));
  T(cuLaunchHostFunc(stream, note_word, &two));
  T(cuLaunchHostFunc(stream, note_word, pinned));
  T(cuEventRecord(event, stream));
  T(cuEventQuery(event));
  V(seen_words[0]);
  T(cuStreamSynchronize(stream));
  V(seen_words[0]);
  V(seen_words[1]);
  V(seen_words[2]);
  N("calls the driver", cuLaunchHostFunc(stream, call_from_inside, NULL));
  T(cuStreamSynchronize(stream));
  value("what the call inside gave", seen_inside);
  N("legacy stream", cuLaunchHostFunc(NULL, note_word, &two));
  T(cuStreamSynchronize(NULL));
  V(seen_words[3]);
  T(cuCtxSetCurrent(NULL));
  N("no context", cuLaunchHostFunc(stream, note_word, &two));
}

/* After the context is lost. */
static void after_loss(CUstream stream, CUevent event, CUdeviceptr memory, void* pinned,
                       CUfunction nothing) {
  CUdeviceptr made = 0;
  CUstream fresh = NULL;
  CUevent other = NULL;
  void* host = NULL;
  int number = 0;
  size_t size = 0;
  size_t total = 0;
  CUcontext context = NULL;
  unsigned type = 0;
  CUmodule loaded = NULL;
  CUgraph graph = NULL;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  T(cuStreamSynchronize(stream));
  T(cuStreamQuery(stream));
  T(cuStreamQuery(NULL));
  T(cuEventQuery(event));
  T(cuEventSynchronize(event));
  T(cuEventRecord(event, stream));
  T(cuStreamWaitEvent(stream, event, 0));
  T(cuCtxSynchronize());
  T(cuMemsetD8Async(memory, 0, 4, stream));
  T(cuMemcpyAsync(memory, memory + 8, 4, stream));
  T(cuMemcpyDtoH(&number, memory, 4));
  T(launch(nothing, 1, 1, stream, NULL));
  T(cuMemAlloc(&made, 100));
  T(cuMemHostAlloc(&host, 100, 0));
  T(cuMemGetInfo(&size, &total));
  T(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
  T(cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING));
  T(cuEventCreate(&other, 0));
  T(cuModuleLoadData(&loaded, ptx));
  T(cuGraphCreate(&graph, 0));
  T(cuMemCreate(&handle, GRAIN, &prop, 0));
  T(cuMemAddressReserve(&range, GRAIN, 0, 0, 0));
  const CUmemAccessDesc access = {.location = prop.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  T(cuMemMap(range, GRAIN, 0, handle, 0));
  T(cuMemSetAccess(range, GRAIN, &access, 1));
  T(cuMemUnmap(range, GRAIN));
  T(cuMemRelease(handle));
  T(cuMemAddressFree(range, GRAIN));
  CUlibrary library = NULL;
  CUkernel kernel = NULL;
  CUstreamCaptureStatus status;
  CUgraphExec exec = NULL;
  T(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
  T(cuLibraryGetKernel(&kernel, library, "tx_add"));
  T(cuLibraryUnload(library));
  T(cuStreamIsCapturing(stream, &status));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphDestroy(graph));
  T(cuStreamGetCtx(stream, &context));
  T(cuCtxGetCurrent(&context));
  T(cuCtxSetCurrent(primary));
  T(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  T(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, nothing));
  if (T(cuDevicePrimaryCtxRetain(&context, 0)) == CUDA_SUCCESS)
    T(cuDevicePrimaryCtxRelease(0));
  T(cuEventDestroy(event));
  T(cuStreamDestroy(stream));
  T(cuMemFreeHost(pinned));
  T(cuMemFree(memory));
  T(cuModuleUnload(module));
  module = NULL;
  T(cuDevicePrimaryCtxRelease(0));
  T(cuCtxGetCurrent(&context));
  T(cuDevicePrimaryCtxRetain(&context, 0));
  T(cuCtxSetCurrent(context));
  T(cuMemAlloc(&made, 100));
}

static void lose(const char* kernel_name) {
  begin();
  CUstream stream = NULL;
  CUevent event = NULL;
  CUevent behind = NULL;
  CUdeviceptr memory = 0;
  CUdeviceptr nowhere = 0x1000000;
  void* pinned = NULL;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, 0);
  cuEventCreate(&behind, 0);
  cuMemAlloc(&memory, 4096);
  cuMemHostAlloc(&pinned, 64, 0);
  CUfunction nothing = function("tx_nothing");
  void* params[] = {&nowhere};
  T(cuEventRecord(event, stream));
  T(cuEventSynchronize(event));
  T(launch(function(kernel_name), 1, 1, stream, params));
  usleep(200000);
  T(cuEventQuery(event));
  T(cuEventDestroy(behind));
  after_loss(stream, event, memory, pinned, nothing);
}

static void section_lost_address(void) {
  lose("tx_store");
}

/* A copy that was made for device memory, given memory that the device cannot reach. */
static void section_lost_copy(void) {
  begin();
  static uint32_t plain[64];
  CUdeviceptr memory = 0;
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUgraphNode node = NULL;
  CUgraphExec exec = NULL;
  cuMemAlloc(&memory, 4096);
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                        .srcDevice = memory,
                        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                        .dstDevice = memory + 1024,
                        .WidthInBytes = 64,
                        .Height = 1,
                        .Depth = 1};
  T(cuGraphCreate(&graph, 0));
  T(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, primary));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  copy.srcDevice = (CUdeviceptr)(uintptr_t)plain;
  T(cuGraphExecMemcpyNodeSetParams(exec, node, &copy, primary));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  T(cuGraphExecDestroy(exec));
  T(cuGraphDestroy(graph));
}

static void section_lost_trap(void) {
  lose("tx_trap");
}

/* ---- */

static const struct {
  const char* name;
  void (*run)(void);
} sections[] = {
    {"start", section_start},
    {"context", section_context},
    {"memory", section_memory},
    {"virtual", section_virtual},
    {"stream", section_stream},
    {"copy", section_copy},
    {"module", section_module},
    {"launch", section_launch},
    {"graph", section_graph},
    {"capture", section_capture},
    {"capture_global", section_capture_global},
    {"capture_blocking", section_capture_blocking},
    {"capture_relaxed", section_capture_relaxed},
    {"random", section_random},
    {"lost_address", section_lost_address},
    {"lost_trap", section_lost_trap},
    {"lost_copy", section_lost_copy},
    {"uuid", section_uuid},
    {"host_function", section_host_function},
    {"node_attribute", section_node_attribute},
    {"child", section_child},
};
#define SECTION_COUNT (sizeof sections / sizeof sections[0])

static int run_in_process(const char* program, const char* path, const char* name) {
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", program, path, name, (char*)NULL);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    printf("section %s died of signal %d\n", name, WTERMSIG(status));
    return 1;
  }
  return WEXITSTATUS(status);
}

static char* read_all(const char* path) {
  FILE* file = fopen(path, "rb");
  char* text = calloc(1, 1 << 20);
  if (file == NULL || text == NULL || fread(text, 1, (1 << 20) - 1, file) == 0) {
    fprintf(stderr, "transcript: cannot read %s\n", path);
    exit(2);
  }
  fclose(file);
  return text;
}

int main(int count, char** arguments) {
  if (count < 2) {
    fputs("usage: transcript PTX [SECTION]\n", stderr);
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (count == 2) {
    int failed = 0;
    for (size_t i = 0; i < SECTION_COUNT; ++i) {
      printf("== %s\n", sections[i].name);
      fflush(stdout);
      failed |= run_in_process(arguments[0], arguments[1], sections[i].name);
    }
    return failed;
  }
  ptx = read_all(arguments[1]);
  for (size_t i = 0; i < SECTION_COUNT; ++i) {
    if (strcmp(sections[i].name, arguments[2]) == 0) {
      sections[i].run();
      return 0;
    }
  }
  fprintf(stderr, "transcript: no section %s\n", arguments[2]);
  return 2;
}
