/* tests/fakecuda/transcript.c - a fixed series of driver calls, one line for each: what it was, what it gave, what could be
 * seen afterwards. The same program runs against the stand-in and against the real driver, and prints the same.
 *
 * Usage: transcript PTX [SECTION]. Without a section each runs in a process of its own, because some lose their context.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GRAIN (2 * MIB)

static char* ptx;
static CUcontext primary;
static CUmodule module;

/* ---- One line a call ---- */

static CUresult say(const char* expression, CUresult result) {
  const char* name = NULL;
  cuGetErrorName(result, &name);
  printf("%s = %s\n", expression, name == NULL ? "?" : name + (result == CUDA_SUCCESS ? 5 : 11));
  return result;
}
#define T(call) say(#call, call)
/* The call with a note of what it is about. */
#define N(note, call) say(#call "  [" note "]", call)
static void value(const char* name, uint64_t number) {
  printf("  %s: %" PRIu64 "\n", name, number);
}
#define V(expression) value(#expression, (uint64_t)(expression))

static void begin(void) {
  CUdevice device;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS ||
      cuCtxSetCurrent(primary) != CUDA_SUCCESS) {
    puts("no device");
    exit(77);
  }
}

static CUfunction function(const char* name) {
  CUfunction found = NULL;
  if (module == NULL && cuModuleLoadData(&module, ptx) != CUDA_SUCCESS)
    puts("the PTX does not load");
  if (cuModuleGetFunction(&found, module, name) != CUDA_SUCCESS)
    printf("no kernel %s\n", name);
  return found;
}

static CUresult launch(CUfunction f, unsigned grid, unsigned block, CUstream stream,
                       void** params) {
  return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, stream, params, NULL);
}

/* Keeps a stream busy for a while. */
static void be_late(CUstream stream, uint64_t milliseconds) {
  uint64_t nanoseconds = milliseconds * 1000000;
  void* params[] = {&nanoseconds};
  launch(function("tx_late"), 1, 1, stream, params);
}

static uint32_t read_word(CUdeviceptr at) {
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

static void about(CUdeviceptr pointer) {
  unsigned type = 99;
  int ordinal = 99;
  CUdeviceptr start = 0;
  size_t size = 99;
  void* host = NULL;
  CUcontext context = NULL;
  int mapped = 99;
  CUpointer_attribute which[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_HOST_POINTER,     CU_POINTER_ATTRIBUTE_CONTEXT};
  void* data[] = {&type, &ordinal, &start, &size, &host, &context};
  T(cuPointerGetAttributes(6, which, data, pointer));
  V(type);
  V(ordinal);
  V(start == pointer);
  V(size);
  V(host != NULL);
  V(context == NULL);
  T(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer));
  T(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer));
  T(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, pointer));
  V(mapped);
}

static void section_memory(void) {
  begin();
  CUdeviceptr memory = 0;
  CUdeviceptr base = 0;
  size_t size = 0;
  size_t total = 0;
  void* pinned = NULL;
  static unsigned char plain[3 * 4096];
  T(cuMemAlloc(&memory, 0));
  T(cuMemAlloc(NULL, 10));
  T(cuMemAlloc(&memory, (size_t)1 << 50));
  T(cuMemAlloc(&memory, 1000));
  V(memory % 256);
  about(memory);
  T(cuMemGetAddressRange(&base, &size, memory + 500));
  V(base == memory);
  V(size);
  T(cuMemGetAddressRange(&base, &size, 64));
  T(cuMemFree(memory + 16));
  T(cuMemFree(0));
  T(cuMemFree(memory));
  T(cuMemFree(memory));
  T(cuMemFree(12345));
  T(cuMemGetInfo(&size, &total));
  V(size <= total);
  T(cuMemGetInfo(NULL, &total));
  T(cuMemHostAlloc(&pinned, 0, 0));
  V(pinned == NULL);
  T(cuMemHostAlloc(&pinned, 5000, 0x100));
  T(cuMemHostAlloc(NULL, 5000, 0));
  T(cuMemHostAlloc(&pinned, 5000, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  about((CUdeviceptr)(uintptr_t)pinned);
  T(cuMemHostGetDevicePointer(&memory, pinned, 0));
  V(memory == (CUdeviceptr)(uintptr_t)pinned);
  T(cuMemHostGetDevicePointer(&memory, plain, 0));
  T(cuMemFree((CUdeviceptr)(uintptr_t)pinned));
  T(cuMemHostUnregister(pinned));
  T(cuMemFreeHost(pinned));
  T(cuMemFreeHost(plain));
  T(cuMemFreeHost(NULL));
  about((CUdeviceptr)(uintptr_t)plain);
  T(cuMemHostRegister(plain, sizeof plain, CU_MEMHOSTREGISTER_PORTABLE));
  T(cuMemHostRegister(plain, sizeof plain, CU_MEMHOSTREGISTER_PORTABLE));
  T(cuMemHostRegister(plain + 4096, 100, CU_MEMHOSTREGISTER_PORTABLE));
  T(cuMemHostRegister(NULL, 100, 0));
  T(cuMemHostRegister(plain, 0, 0));
  about((CUdeviceptr)(uintptr_t)plain);
  T(cuMemHostUnregister(plain + 1));
  T(cuMemFreeHost(plain));
  T(cuMemHostUnregister(plain));
  T(cuMemHostUnregister(plain));
  T(cuMemHostUnregister(NULL));
  CUipcMemHandle handle;
  T(cuMemAlloc(&memory, 1000));
  T(cuIpcGetMemHandle(&handle, memory));
  T(cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  T(cuIpcOpenMemHandle(&base, handle, 0));
  T(cuIpcGetMemHandle(NULL, memory));
  T(cuIpcGetMemHandle(&handle, (CUdeviceptr)(uintptr_t)plain));
  T(cuIpcCloseMemHandle(memory));
  memset(&handle, 0, sizeof handle);
  T(cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  T(cuMemFree(memory));
}

static void section_virtual(void) {
  begin();
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  CUmemAllocationProp bad = prop;
  CUmemAllocationProp shared = prop;
  shared.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle first = 0;
  CUmemGenericAllocationHandle second = 0;
  CUmemGenericAllocationHandle third = 0;
  CUdeviceptr range = 0;
  CUdeviceptr other = 0;
  size_t granularity = 0;
  int fd = -1;
  T(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  V(granularity);
  T(cuMemGetAllocationGranularity(NULL, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  T(cuMemCreate(&first, 1000, &prop, 0));
  T(cuMemCreate(&first, 0, &prop, 0));
  T(cuMemCreate(&first, GRAIN, NULL, 0));
  T(cuMemCreate(&first, GRAIN, &prop, 1));
  bad.location.id = 100;
  N("device 100", cuMemCreate(&first, GRAIN, &bad, 0));
  bad.location = prop.location;
  bad.type = (CUmemAllocationType)0;
  N("no type", cuMemCreate(&first, GRAIN, &bad, 0));
  N("too large", cuMemCreate(&first, (size_t)1 << 50, &prop, 0));
  T(cuMemCreate(&first, 2 * GRAIN, &prop, 0));
  T(cuMemCreate(&second, GRAIN, &shared, 0));
  T(cuMemAddressReserve(&range, 1000, 0, 0, 0));
  T(cuMemAddressReserve(&range, 0, 0, 0, 0));
  T(cuMemAddressReserve(&range, 8 * GRAIN, 3, 0, 0));
  T(cuMemAddressReserve(&range, 8 * GRAIN, 0, 0, 1));
  T(cuMemAddressReserve(&range, 8 * GRAIN, 0, 0, 0));
  V(range % GRAIN);
  about(range);
  T(cuMemSetAccess(range, 2 * GRAIN, &access, 1));
  T(cuMemMap(range, GRAIN, 0, first, 0));
  T(cuMemMap(range, 2 * GRAIN, 0, first, 1));
  T(cuMemMap(range + 4096, 2 * GRAIN, 0, first, 0));
  T(cuMemMap(range, 2 * GRAIN, GRAIN, first, 0));
  T(cuMemMap(range, 2 * GRAIN, 0, 0, 0));
  T(cuMemMap(range, 2 * GRAIN, 0, first, 0));
  T(cuMemMap(range, GRAIN, 0, second, 0));
  T(cuMemMap(range + GRAIN, GRAIN, 0, second, 0));
  N("no access yet", cuMemsetD8(range, 1, 100));
  T(cuMemSetAccess(range, GRAIN, &access, 1));
  T(cuMemSetAccess(range, 4 * GRAIN, &access, 1));
  T(cuMemSetAccess(range, 2 * GRAIN, NULL, 1));
  T(cuMemSetAccess(range, 2 * GRAIN, &access, 0));
  T(cuMemSetAccess(range, 2 * GRAIN, &access, 1));
  T(cuMemMap(range + 2 * GRAIN, GRAIN, 0, second, 0));
  T(cuMemSetAccess(range + 2 * GRAIN, GRAIN, &access, 1));
  N("over two mappings", cuMemsetD8(range + 2 * GRAIN - 50, 7, 100));
  T(cuCtxSynchronize());
  V(read_word(range + 2 * GRAIN + 40));
  about(range + 64);
  about(range + 4 * GRAIN);
  unsigned long long flags = 99;
  CUmemLocation here = prop.location;
  T(cuMemGetAccess(&flags, &here, range));
  V(flags);
  T(cuMemRetainAllocationHandle(&third, (void*)(uintptr_t)(range + 64)));
  V(third == first);
  T(cuMemRelease(third));
  T(cuMemExportToShareableHandle(&fd, first, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  T(cuMemExportToShareableHandle(&fd, second, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
  T(cuMemExportToShareableHandle(&fd, second, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  V(fd >= 0);
  T(cuMemImportFromShareableHandle(&third, (void*)(intptr_t)fd,
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  N("bad fd", cuMemImportFromShareableHandle(&first, (void*)(intptr_t)999,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  N("fd of a file", cuMemImportFromShareableHandle(&first, (void*)(intptr_t)0,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  V(close(fd));
  CUmemAllocationProp found;
  memset(&found, 0, sizeof found);
  T(cuMemGetAllocationPropertiesFromHandle(&found, third));
  V(found.location.id);
  V(found.requestedHandleTypes);
  T(cuMemAddressReserve(&other, GRAIN, 0, 0, 0));
  T(cuMemMap(other, GRAIN, 0, third, 0));
  T(cuMemSetAccess(other, GRAIN, &access, 1));
  N("the same memory twice", cuMemsetD32(other, 4711, 1));
  T(cuCtxSynchronize());
  V(read_word(range + 2 * GRAIN));
  T(cuMemRelease(third));
  T(cuMemUnmap(other, GRAIN));
  T(cuMemUnmap(other, GRAIN));
  T(cuMemAddressFree(other, GRAIN));
  T(cuMemAddressFree(other, GRAIN));
  T(cuMemUnmap(range, GRAIN));
  T(cuMemUnmap(range + GRAIN, GRAIN));
  T(cuMemUnmap(range, 0));
  T(cuMemAddressFree(range, 8 * GRAIN));
  T(cuMemFree(range));
  T(cuMemRelease(second));
  N("mapped and released", cuMemsetD8(range + 2 * GRAIN, 9, 4));
  T(cuCtxSynchronize());
  V(read_word(range + 2 * GRAIN) == 0x09090909);
  N("beyond the mappings", cuMemUnmap(range, 6 * GRAIN));
  T(cuMemUnmap(range, 3 * GRAIN));
  T(cuMemRelease(first));
  T(cuMemRelease(first));
  T(cuMemAddressFree(range, 4 * GRAIN));
  T(cuMemAddressFree(range, 8 * GRAIN));
  about(range);
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
  be_late(stream, 50);
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
  V(milliseconds >= 45 && milliseconds < 1000);
  T(cuEventElapsedTime(&milliseconds, second, timed));
  V(milliseconds < 0);
  T(cuEventElapsedTime(&milliseconds, timed, event));
  /* The default stream waits for blocking streams, and they for it; a non-blocking one stays apart. */
  T(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  be_late(blocking, 50);
  T(cuStreamQuery(stream));
  T(cuStreamQuery(blocking));
  T(cuStreamQuery(NULL));
  T(cuEventRecord(event, NULL));
  T(cuEventQuery(event));
  T(cuStreamSynchronize(NULL));
  T(cuStreamQuery(blocking));
  T(cuEventQuery(event));
  be_late(NULL, 50);
  T(cuEventRecord(event, blocking));
  T(cuEventQuery(event));
  T(cuEventRecord(second, stream));
  T(cuEventSynchronize(second));
  T(cuEventSynchronize(event));
  be_late(stream, 50);
  T(cuEventRecord(event, stream));
  T(cuStreamWaitEvent(blocking, event, 0));
  T(cuEventRecord(second, blocking));
  T(cuEventDestroy(event));
  T(cuEventQuery(second));
  T(cuStreamSynchronize(stream));
  T(cuEventSynchronize(second));
  be_late(stream, 20);
  T(cuStreamDestroy(stream));
  T(cuCtxSynchronize());
  T(cuStreamDestroy(NULL));
  T(cuEventQuery(second));
  T(cuEventDestroy(second));
  T(cuEventDestroy(timed));
}

static void section_copy(void) {
  begin();
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  CUstream stream = NULL;
  static unsigned char plain[8192];
  unsigned char* pinned = NULL;
  cuMemAlloc(&a, 4096);
  cuMemAlloc(&b, 4096);
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemHostAlloc((void**)&pinned, 8192, CU_MEMHOSTALLOC_PORTABLE);
  for (unsigned i = 0; i < sizeof plain; ++i)
    plain[i] = (unsigned char)(i * 7);
  CUdeviceptr host = (CUdeviceptr)(uintptr_t)plain;
  T(cuMemcpyHtoD(a, plain, 0));
  T(cuMemcpyHtoD(0, plain, 4));
  T(cuMemcpyHtoD(a, NULL, 4));
  T(cuMemcpyHtoD(host, plain, 4));
  T(cuMemcpyDtoH(plain, host + 4096, 4));
  T(cuMemcpyDtoD(a, host, 4));
  T(cuMemcpyAsync(0, a, 4, stream));
  T(cuMemcpyAsync(a, 0, 4, stream));
  T(cuMemcpyAsync(a, b, 0, stream));
  T(cuMemcpyAsync(host, host + 4096, 100, stream));
  T(cuMemcpyAsync(a, host, 4096, stream));
  T(cuMemcpyAsync(b, a, 4096, stream));
  memset(pinned, 0, 8192);
  T(cuMemcpyAsync((CUdeviceptr)(uintptr_t)pinned, b, 4096, stream));
  T(cuStreamSynchronize(stream));
  V(memcmp(pinned, plain, 4096) == 0);
  N("past the end", cuMemcpyHtoD(a, plain, 4097));
  N("past the end", cuMemcpyDtoH(plain, a + 4000, 97));
  N("past the end", cuMemcpyAsync(a + 4000, b, 97, stream));
  N("past the end", cuMemsetD8(a + 4000, 0, 97));
  N("past the end", cuMemsetD8Async(a + 4000, 0, 97, stream));
  T(cuMemsetD32(a + 2, 0, 1));
  T(cuMemsetD16(a + 1, 0, 1));
  T(cuMemsetD32(a, 0, 0));
  T(cuMemsetD8(host, 0, 4));
  T(cuMemsetD8(0, 0, 4));
  N("pinned", cuMemsetD8((CUdeviceptr)(uintptr_t)pinned, 5, 4));
  T(cuCtxSynchronize());
  V(pinned[3]);
  T(cuMemsetD32Async(a, 0x01020304, 1024, stream));
  T(cuMemsetD16Async(a + 8, 0xABCD, 2, stream));
  T(cuMemsetD2D8Async(a + 16, 32, 9, 4, 3, stream));
  T(cuMemsetD2D32Async(a + 256, 8, 0x55667788, 1, 4, stream));
  T(cuMemsetD2D32Async(a, 6, 1, 1, 4, stream));
  T(cuMemsetD2D32Async(a, 2, 1, 1, 4, stream));
  T(cuMemcpyAsync((CUdeviceptr)(uintptr_t)pinned, a, 4096, stream));
  T(cuStreamSynchronize(stream));
  uint64_t sum = 0;
  for (unsigned i = 0; i < 4096; ++i)
    sum = sum * 31 + pinned[i];
  V(sum);
  CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                        .srcDevice = a,
                        .srcPitch = 64,
                        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                        .dstDevice = b,
                        .dstPitch = 16,
                        .WidthInBytes = 16,
                        .Height = 10};
  T(cuMemcpy2DAsync(&flat, stream));
  T(cuMemcpy2DAsync(NULL, stream));
  flat.dstPitch = 15;
  N("pitch below width", cuMemcpy2DAsync(&flat, stream));
  flat.dstPitch = 16;
  flat.Height = 0;
  N("no height", cuMemcpy2DAsync(&flat, stream));
  flat.Height = 10;
  flat.WidthInBytes = 0;
  N("no width", cuMemcpy2DAsync(&flat, stream));
  flat.WidthInBytes = 16;
  flat.Height = 1000;
  N("past the end", cuMemcpy2DAsync(&flat, stream));
  flat.Height = 10;
  flat.srcMemoryType = CU_MEMORYTYPE_HOST;
  flat.srcHost = plain;
  N("from the host", cuMemcpy2DAsync(&flat, stream));
  flat.srcMemoryType = (CUmemorytype)9;
  N("no such type", cuMemcpy2DAsync(&flat, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(b + 16));
  CUDA_MEMCPY3D solid = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .srcDevice = a,
                         .srcPitch = 32,
                         .srcHeight = 8,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = plain,
                         .dstPitch = 4,
                         .dstHeight = 3,
                         .WidthInBytes = 4,
                         .Height = 3,
                         .Depth = 5};
  T(cuMemcpy3DAsync(&solid, stream));
  T(cuStreamSynchronize(stream));
  sum = 0;
  for (unsigned i = 0; i < 60; ++i)
    sum = sum * 31 + plain[i];
  V(sum);
  solid.dstHeight = 2;
  N("height below", cuMemcpy3DAsync(&solid, stream));
  solid.dstHeight = 3;
  solid.Depth = 0;
  N("no depth", cuMemcpy3DAsync(&solid, stream));
  /* A pageable source may be used again at once; a pageable target is there on return. */
  cuMemsetD32(b, 0, 1024);
  cuCtxSynchronize();
  be_late(stream, 50);
  memset(plain, 1, 4096);
  T(cuMemcpyAsync(b, host, 4096, stream));
  memset(plain, 2, 4096);
  T(cuMemcpyAsync(host + 4096, b, 4, stream));
  V(plain[4096]);
  V(cuStreamQuery(stream) == CUDA_SUCCESS);
  T(cuMemcpyPeerAsync(a, primary, b, primary, 64, stream));
  T(cuMemcpyPeerAsync(a, NULL, b, primary, 64, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(a));
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

static CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction f, void** params) {
  return (CUDA_KERNEL_NODE_PARAMS){.func = f,
                                   .gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 1,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .kernelParams = params};
}

static void section_graph(void) {
  begin();
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUgraph other = NULL;
  CUgraphExec exec = NULL;
  CUgraphNode nodes[8];
  CUgraphNode foreign = NULL;
  CUdeviceptr cells = 0;
  CUdeviceptr source = 0;
  uint32_t* pinned = NULL;
  static uint32_t plain[64];
  size_t count = 0;
  memset(nodes, 0, sizeof nodes);
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&cells, 4096);
  cuMemAlloc(&source, 4096);
  cuMemHostAlloc((void**)&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE);
  cuMemsetD32(cells, 0, 1024);
  cuMemsetD32(source, 1, 1024);
  cuCtxSynchronize();
  uint32_t number = 3;
  void* params[] = {&cells, &source, &number};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(function("tx_mix"), params);
  CUDA_MEMSET_NODE_PARAMS fill = {
      .dst = cells + 64, .value = 9, .elementSize = 4, .width = 4, .height = 1};
  CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = cells,
                        .dstMemoryType = CU_MEMORYTYPE_HOST,
                        .dstHost = pinned,
                        .WidthInBytes = 256,
                        .Height = 1,
                        .Depth = 1};
  T(cuGraphCreate(NULL, 0));
  T(cuGraphCreate(&graph, 1));
  T(cuGraphCreate(&graph, 0));
  T(cuGraphCreate(&other, 0));
  T(cuGraphAddEmptyNode(&foreign, other, NULL, 0));
  T(cuGraphAddEmptyNode(NULL, graph, NULL, 0));
  T(cuGraphAddEmptyNode(&nodes[0], NULL, NULL, 0));
  T(cuGraphAddEmptyNode(&nodes[0], graph, NULL, 1));
  N("another graph's", cuGraphAddEmptyNode(&nodes[0], graph, &foreign, 1));
  T(cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, NULL));
  kernel.gridDimX = 0;
  N("no grid", cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, &kernel));
  kernel.gridDimX = 1;
  kernel.func = NULL;
  N("no function", cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, &kernel));
  kernel.func = function("tx_mix");
  T(cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, &kernel));
  T(cuGraphAddMemsetNode(&nodes[1], graph, &nodes[0], 1, NULL, primary));
  fill.elementSize = 3;
  N("3 bytes", cuGraphAddMemsetNode(&nodes[1], graph, &nodes[0], 1, &fill, primary));
  fill.elementSize = 4;
  T(cuGraphAddMemsetNode(&nodes[1], graph, &nodes[0], 1, &fill, primary));
  T(cuGraphAddMemcpyNode(&nodes[2], graph, &nodes[1], 1, &copy, primary));
  CUgraphNode twice[] = {nodes[0], nodes[0]};
  N("one twice", cuGraphAddEmptyNode(&nodes[3], graph, twice, 2));
  T(cuGraphAddEmptyNode(&nodes[3], graph, nodes, 3));
  T(cuGraphAddDependencies(graph, &nodes[3], &nodes[3], NULL, 1));
  T(cuGraphAddDependencies(graph, &nodes[0], &nodes[1], NULL, 1));
  T(cuGraphAddDependencies(graph, NULL, NULL, NULL, 0));
  T(cuGraphGetNodes(graph, NULL, &count));
  V(count);
  CUgraphNode listed[10];
  count = 10;
  T(cuGraphGetNodes(graph, listed, &count));
  V(count);
  V(listed[0] == nodes[0]);
  T(cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
  V(count);
  CUgraphNodeType type;
  T(cuGraphNodeGetType(nodes[2], &type));
  V(type);
  T(cuGraphNodeGetType(NULL, &type));
  CUDA_KERNEL_NODE_PARAMS got;
  memset(&got, 0, sizeof got);
  T(cuGraphKernelNodeGetParams(nodes[0], &got));
  V(got.func == kernel.func);
  V(got.kernelParams != NULL);
  V(got.kernelParams != NULL ? *(uint32_t*)got.kernelParams[2] : 0);
  T(cuGraphKernelNodeGetParams(nodes[1], &got));
  T(cuGraphInstantiateWithFlags(NULL, graph, 0));
  T(cuGraphInstantiateWithFlags(&exec, NULL, 0));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0x1000));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphUpload(exec, stream));
  T(cuGraphUpload(NULL, stream));
  T(cuGraphLaunch(NULL, stream));
  T(cuGraphLaunch(exec, stream));
  /* What is changed afterwards is for later launches. */
  number = 50;
  T(cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(pinned[0]);
  V(pinned[16]);
  T(cuGraphExecKernelNodeSetParams(exec, nodes[1], &kernel));
  T(cuGraphExecKernelNodeSetParams(exec, foreign, &kernel));
  T(cuGraphExecKernelNodeSetParams(exec, nodes[0], NULL));
  kernel.func = function("tx_nothing");
  N("another function", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.func = function("tx_mix");
  kernel.gridDimX = 0;
  N("no grid", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.gridDimX = 1;
  kernel.blockDimX = 2000;
  N("too many threads", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.blockDimX = 1;
  kernel.gridDimX = 3;
  kernel.gridDimY = 2;
  N("another grid", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.gridDimX = 1;
  kernel.gridDimY = 1;
  struct {
    CUdeviceptr target;
    CUdeviceptr source;
    uint32_t number;
  } block = {cells, source, 60};
  size_t size = 20;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  kernel.kernelParams = NULL;
  N("neither", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.extra = extra;
  N("a block", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  size = 24;
  N("a block with its tail", cuGraphExecKernelNodeSetParams(exec, nodes[0], &kernel));
  kernel.extra = NULL;
  kernel.kernelParams = params;
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(pinned[0]);
  fill.value = 11;
  fill.width = 2;
  N("value, width", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.elementSize = 1;
  N("element size", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.elementSize = 4;
  fill.height = 2;
  fill.pitch = 16;
  N("height", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.height = 1;
  fill.dst = source + 64;
  N("other memory", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.dst = (CUdeviceptr)(uintptr_t)(pinned + 512);
  N("pinned memory", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.dst = cells + 64;
  fill.width = 0;
  N("nothing", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, primary));
  fill.width = 4;
  N("no context", cuGraphExecMemsetNodeSetParams(exec, nodes[1], &fill, NULL));
  T(cuGraphExecMemsetNodeSetParams(exec, nodes[1], NULL, primary));
  T(cuGraphExecMemsetNodeSetParams(exec, nodes[0], &fill, primary));
  copy.WidthInBytes = 128;
  N("size", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.Height = 2;
  copy.srcPitch = copy.dstPitch = 128;
  N("rows", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.Height = 1;
  copy.srcPitch = copy.dstPitch = 0;
  copy.WidthInBytes = 0;
  N("nothing", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.WidthInBytes = 128;
  copy.dstHost = plain;
  N("to pageable memory", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = source;
  N("to the device", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.srcDevice = 64;
  N("from nowhere", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.srcDevice = cells;
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = (CUdeviceptr)(uintptr_t)pinned;
  N("unified", cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = pinned + 128;
  T(cuGraphExecMemcpyNodeSetParams(exec, nodes[2], &copy, primary));
  T(cuGraphExecMemcpyNodeSetParams(exec, nodes[2], NULL, primary));
  T(cuGraphNodeSetEnabled(exec, nodes[0], 0));
  T(cuGraphNodeSetEnabled(exec, nodes[3], 0));
  T(cuGraphNodeSetEnabled(exec, nodes[2], 1));
  T(cuGraphNodeSetEnabled(exec, foreign, 1));
  unsigned enabled = 99;
  T(cuGraphNodeGetEnabled(exec, nodes[0], &enabled));
  V(enabled);
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(pinned[128]);
  V(pinned[128 + 16]);
  T(cuGraphNodeSetEnabled(exec, nodes[0], 1));
  /* Update from another graph. */
  CUgraphExecUpdateResultInfo info;
  memset(&info, 0, sizeof info);
  CUgraph clone = NULL;
  T(cuGraphClone(&clone, graph));
  T(cuGraphExecUpdate(exec, clone, &info));
  V(info.result);
  CUgraphNode added = NULL;
  T(cuGraphAddEmptyNode(&added, clone, NULL, 0));
  T(cuGraphExecUpdate(exec, clone, &info));
  V(info.result);
  T(cuGraphExecUpdate(exec, NULL, &info));
  T(cuGraphExecUpdate(exec, other, &info));
  V(info.result);
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(pinned[0]);
  /* A child graph. */
  T(cuGraphAddChildGraphNode(&nodes[4], graph, &nodes[3], 1, NULL));
  T(cuGraphAddChildGraphNode(&nodes[4], graph, &nodes[3], 1, clone));
  T(cuGraphAddKernelNode(&nodes[5], graph, &nodes[4], 1, &kernel));
  T(cuGraphExecDestroy(exec));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  T(cuGraphLaunch(exec, stream));
  T(cuGraphExecDestroy(exec));
  T(cuStreamSynchronize(stream));
  V(read_word(cells));
  T(cuGraphAddDependencies(graph, &nodes[5], &nodes[0], NULL, 1));
  N("a circle", cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphDestroy(clone));
  T(cuGraphDestroy(other));
  T(cuGraphDestroy(graph));
  T(cuGraphDestroy(NULL));
  T(cuGraphExecDestroy(NULL));
  /* Copies that do not say where memory is; copies and fills of several rows. */
  memset(nodes, 0, sizeof nodes);
  T(cuGraphCreate(&graph, 0));
  copy = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .srcDevice = cells,
                         .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                         .dstDevice = source,
                         .WidthInBytes = 64,
                         .Height = 1,
                         .Depth = 1};
  CUDA_MEMCPY3D rows = copy;
  rows.Height = 4;
  rows.srcPitch = rows.dstPitch = 128;
  CUDA_MEMSET_NODE_PARAMS flat = {
      .dst = cells, .value = 9, .elementSize = 4, .width = 4, .height = 3, .pitch = 64};
  T(cuGraphAddMemcpyNode(&nodes[0], graph, NULL, 0, &copy, primary));
  T(cuGraphAddMemcpyNode(&nodes[1], graph, &nodes[0], 1, &rows, primary));
  T(cuGraphAddMemsetNode(&nodes[2], graph, &nodes[1], 1, &flat, primary));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  copy.srcDevice = source + 512;
  copy.dstDevice = cells + 512;
  N("device to device", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  copy.dstDevice = (CUdeviceptr)(uintptr_t)pinned;
  N("device to pinned", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  copy.dstDevice = (CUdeviceptr)(uintptr_t)plain;
  N("device to pageable", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  copy.srcDevice = (CUdeviceptr)(uintptr_t)plain;
  copy.dstDevice = source;
  N("pageable to device", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  N("one row of several", cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &copy, primary));
  rows.Height = 3;
  N("fewer rows", cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &rows, primary));
  rows.srcDevice = cells + 1024;
  N("rows elsewhere", cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &rows, primary));
  flat.value = 10;
  N("another value", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.dst = cells + 1024;
  N("elsewhere", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.height = 1;
  N("one row of several", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.height = 2;
  N("fewer rows", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.pitch = 32;
  N("another pitch", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  flat.width = 3;
  N("another width", cuGraphExecMemsetNodeSetParams(exec, nodes[2], &flat, primary));
  copy.srcDevice = cells;
  copy.dstDevice = source;
  N("device to device", cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, primary));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  T(cuGraphExecDestroy(exec));
  T(cuGraphDestroy(graph));
  /* Independent nodes, and an empty graph. */
  T(cuGraphCreate(&graph, 0));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  T(cuGraphExecDestroy(exec));
  CUevent event = NULL;
  cuEventCreate(&event, 0);
  T(cuGraphAddEventRecordNode(&nodes[0], graph, NULL, 0, event));
  T(cuGraphAddEventRecordNode(&nodes[1], graph, NULL, 0, NULL));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  be_late(stream, 50);
  T(cuGraphLaunch(exec, stream));
  T(cuEventQuery(event));
  T(cuEventSynchronize(event));
  T(cuEventQuery(event));
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
  be_late(stream, 50);
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

static void section_node_attribute(void) {
  begin();
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUgraphNode node = NULL;
  CUgraphNode empty = NULL;
  CUdeviceptr cell = 0;
  CUdeviceptr source = 0;
  uint32_t number = 3;
  void* params[] = {&cell, &source, &number};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(function("tx_mix"), params);
  CUlaunchAttributeValue attribute;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&cell, 256);
  cuMemAlloc(&source, 256);
  cuMemsetD32(cell, 0, 64);
  cuMemsetD32(source, 1, 64);
  cuCtxSynchronize();
  cuGraphCreate(&graph, 0);
  T(cuGraphAddKernelNode(&node, graph, NULL, 0, &kernel));
  T(cuGraphAddEmptyNode(&empty, graph, &node, 1));
  memset(&attribute, 0, sizeof attribute);
  attribute.cooperative = 1;
  T(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
  T(cuGraphKernelNodeSetAttribute(empty, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
  T(cuGraphKernelNodeSetAttribute(NULL, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  number = 4;
  N("of a cooperative kernel", cuGraphExecKernelNodeSetParams(exec, node, &kernel));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  T(cuGraphExecDestroy(exec));
  memset(&attribute, 0, sizeof attribute);
  T(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &attribute));
  attribute.clusterDim.x = 1;
  attribute.clusterDim.y = 1;
  attribute.clusterDim.z = 1;
  T(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &attribute));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  T(cuGraphExecDestroy(exec));
  T(cuGraphDestroy(graph));
}

static CUgraph two_mixes(CUdeviceptr cell, CUdeviceptr source, uint32_t number) {
  void* params[] = {&cell, &source, &number};
  CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(function("tx_mix"), params);
  CUgraph graph = NULL;
  CUgraphNode nodes[2];
  cuGraphCreate(&graph, 0);
  cuGraphAddKernelNode(&nodes[0], graph, NULL, 0, &kernel);
  number += 1;
  cuGraphAddKernelNode(&nodes[1], graph, &nodes[0], 1, &kernel);
  return graph;
}

static void section_child(void) {
  begin();
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUgraph empty = NULL;
  CUgraphExec exec = NULL;
  CUgraphNode child = NULL;
  CUgraphNode after = NULL;
  CUdeviceptr cell = 0;
  CUdeviceptr source = 0;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&cell, 256);
  cuMemAlloc(&source, 256);
  cuMemsetD32(cell, 0, 64);
  cuMemsetD32(source, 1, 64);
  cuCtxSynchronize();
  cuGraphCreate(&graph, 0);
  cuGraphCreate(&empty, 0);
  CUgraph first = two_mixes(cell, source, 3);
  CUgraph second = two_mixes(cell, source, 10);
  CUgraph elsewhere = two_mixes(cell + 64, source, 10);
  T(cuGraphAddChildGraphNode(&child, graph, NULL, 0, first));
  T(cuGraphAddEmptyNode(&after, graph, &child, 1));
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  N("other values", cuGraphExecChildGraphNodeSetParams(exec, child, second));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  N("other memory", cuGraphExecChildGraphNodeSetParams(exec, child, elsewhere));
  T(cuGraphLaunch(exec, stream));
  T(cuStreamSynchronize(stream));
  V(read_word(cell));
  V(read_word(cell + 64));
  N("not a child", cuGraphExecChildGraphNodeSetParams(exec, after, second));
  N("no graph", cuGraphExecChildGraphNodeSetParams(exec, child, NULL));
  N("another shape", cuGraphExecChildGraphNodeSetParams(exec, child, empty));
  T(cuGraphExecDestroy(exec));
  T(cuGraphDestroy(graph));
}

/* What is tried while another stream is being captured. */
static CUresult try_call(int which, CUstream captured, CUstream apart, CUevent event,
                         CUdeviceptr memory, void* pinned, const char** out_name) {
  static unsigned char plain[64];
  CUdeviceptr made = 0;
  CUstream stream = NULL;
  CUevent fresh = NULL;
  CUmodule loaded = NULL;
  CUlibrary library = NULL;
  void* host = NULL;
  size_t free_bytes = 0;
  size_t total = 0;
  unsigned type = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  CUstreamCaptureStatus status;
  CUcontext context = NULL;
  static CUgraph graph;
  CUgraphExec exec = NULL;
#define CASE(number, call)                                                                         \
  case number:                                                                                     \
    *out_name = #call;                                                                             \
    return call
  switch (which) {
    CASE(0, cuMemAlloc(&made, 100));
    CASE(1, cuMemFree(0));
    CASE(2, cuMemHostAlloc(&host, 100, 0));
    CASE(3, cuMemHostRegister(plain, 64, 0));
    CASE(4, cuMemGetInfo(&free_bytes, &total));
    CASE(5, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
    CASE(6, cuMemCreate(&handle, GRAIN, &prop, 0));
    CASE(7, cuMemAddressReserve(&made, GRAIN, 0, 0, 0));
    CASE(8, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CASE(9, cuStreamQuery(apart));
    CASE(10, cuStreamSynchronize(apart));
    CASE(11, cuStreamQuery(captured));
    CASE(12, cuStreamSynchronize(captured));
    CASE(13, cuEventCreate(&fresh, 0));
    CASE(14, cuEventRecord(event, apart));
    CASE(15, cuEventQuery(event));
    CASE(16, cuEventSynchronize(event));
    CASE(17, cuStreamWaitEvent(apart, event, 0));
    CASE(18, cuStreamWaitEvent(captured, event, 0));
    CASE(19, cuMemsetD8Async(memory, 1, 4, apart));
    CASE(20, cuMemsetD8(memory, 1, 4));
    CASE(21, cuMemcpyHtoD(memory, pinned, 4));
    CASE(22, cuMemcpyAsync(memory, (CUdeviceptr)(uintptr_t)pinned, 4, captured));
    CASE(23, cuMemcpyAsync(memory, (CUdeviceptr)(uintptr_t)plain, 4, captured));
    CASE(24, cuMemcpyAsync((CUdeviceptr)(uintptr_t)plain, memory, 4, captured));
    CASE(25, cuModuleLoadData(&loaded, ptx));
    CASE(26, cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    CASE(27, cuCtxSynchronize());
    CASE(28, cuStreamIsCapturing(captured, &status));
    CASE(29, cuStreamIsCapturing(NULL, &status));
    CASE(30, cuStreamGetCtx(captured, &context));
    CASE(31, cuStreamQuery(NULL));
    CASE(32, cuEventRecord(event, NULL));
    CASE(33, cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CASE(34, cuGraphCreate(&graph, 0));
    CASE(35, cuGraphInstantiateWithFlags(&exec, graph, 0));
    CASE(36, launch(function("tx_nothing"), 1, 1, captured, NULL));
    CASE(37, launch(function("tx_nothing"), 1, 1, apart, NULL));
    CASE(38, launch(function("tx_nothing"), 1, 1, NULL, NULL));
    CASE(39, cuMemHostUnregister(plain));
    CASE(40, cuMemRelease(handle));
    CASE(41, cuStreamDestroy(captured));
  default:
    return CUDA_ERROR_UNKNOWN;
  }
}

static void capture_around(CUstreamCaptureMode mode, unsigned stream_flags, int first, int last) {
  CUevent event = NULL;
  CUstream apart = NULL;
  CUdeviceptr memory = 0;
  void* pinned = NULL;
  cuEventCreate(&event, 0);
  cuStreamCreate(&apart, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&memory, 64);
  cuMemHostAlloc(&pinned, 64, 0);
  function("tx_nothing");
  cuEventRecord(event, apart);
  cuStreamSynchronize(apart);
  for (int which = first; which <= last; ++which) {
    CUstream captured = NULL;
    CUgraph graph = NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const char* name = "";
    size_t count = 99;
    cuStreamCreate(&captured, stream_flags);
    cuStreamBeginCapture(captured, mode);
    const CUresult result = try_call(which, captured, apart, event, memory, pinned, &name);
    say(name, result);
    if (which == 41)
      continue;
    cuStreamIsCapturing(captured, &status);
    const CUresult ended = cuStreamEndCapture(captured, &graph);
    if (graph != NULL)
      cuGraphGetNodes(graph, NULL, &count);
    printf("  status %d, end %d, nodes %d\n", (int)status, (int)ended,
           graph == NULL ? -1 : (int)count);
    cuEventRecord(event, apart); /* whatever the event was, it is a plain one again */
    cuStreamSynchronize(apart);
    if (graph != NULL)
      cuGraphDestroy(graph);
    cuStreamDestroy(captured);
  }
}

static void section_capture_global(void) {
  begin();
  capture_around(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_NON_BLOCKING, 0, 40);
}

static void section_capture_blocking(void) {
  begin();
  capture_around(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_DEFAULT, 19, 40);
}

static void section_capture_relaxed(void) {
  begin();
  capture_around(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_NON_BLOCKING, 0, 40);
}

static void section_capture(void) {
  begin();
  CUstream a = NULL;
  CUstream b = NULL;
  CUevent event = NULL;
  CUgraph graph = NULL;
  CUdeviceptr memory = 0;
  size_t count = 0;
  CUstreamCaptureMode mode;
  CUstreamCaptureStatus status;
  cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
  cuStreamCreate(&b, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  cuMemAlloc(&memory, 4096);
  function("tx_mix");
  T(cuStreamEndCapture(a, &graph));
  T(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuStreamBeginCapture(a, (CUstreamCaptureMode)9));
  mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  T(cuThreadExchangeStreamCaptureMode(&mode));
  V(mode);
  /* A relaxed thread may do what it likes beside somebody's capture. */
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr made = 0;
  T(cuMemAlloc(&made, 100));
  T(cuStreamSynchronize(b));
  T(cuStreamSynchronize(a));
  T(cuStreamEndCapture(a, &graph));
  V(graph == NULL);
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuMemAlloc(&made, 100));
  T(cuStreamEndCapture(a, &graph));
  V(graph == NULL);
  T(cuThreadExchangeStreamCaptureMode(&mode));
  V(mode);
  /* Fork and join. */
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuEventRecord(event, a));
  T(cuEventQuery(event));
  T(cuStreamIsCapturing(a, &status));
  V(status);
  T(cuStreamEndCapture(a, &graph));
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuEventRecord(event, a));
  T(cuStreamWaitEvent(b, event, 0));
  T(cuStreamIsCapturing(b, &status));
  V(status);
  T(cuMemsetD32Async(memory + 64, 1, 16, b));
  T(cuStreamEndCapture(b, &graph));
  T(cuStreamIsCapturing(a, &status));
  V(status);
  T(cuStreamEndCapture(a, &graph));
  V(graph == NULL);
  T(cuStreamIsCapturing(b, &status));
  V(status);
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuEventRecord(event, a));
  T(cuStreamWaitEvent(b, event, 0));
  T(cuMemsetD32Async(memory + 64, 1, 16, b));
  T(cuEventRecord(event, b));
  T(cuStreamWaitEvent(a, event, 0));
  T(cuMemsetD32Async(memory + 128, 1, 16, a));
  T(cuStreamEndCapture(a, &graph));
  T(cuGraphGetNodes(graph, NULL, &count));
  V(count);
  T(cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
  V(count);
  CUgraphExec exec = NULL;
  T(cuGraphInstantiateWithFlags(&exec, graph, 0));
  T(cuGraphDestroy(graph));
  T(cuGraphLaunch(exec, b));
  T(cuStreamSynchronize(b));
  V(read_word(memory + 128));
  /* An event of an ended capture. */
  T(cuEventQuery(event));
  T(cuEventSynchronize(event));
  T(cuStreamWaitEvent(b, event, 0));
  T(cuStreamSynchronize(b));
  T(cuEventRecord(event, b));
  T(cuEventSynchronize(event));
  T(cuEventQuery(event));
  /* A capture that was spoiled says so until it is ended. */
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuStreamSynchronize(a));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuEventRecord(event, a));
  T(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  T(cuStreamEndCapture(a, &graph));
  T(cuMemsetD32Async(memory, 1, 16, a));
  T(cuStreamSynchronize(a));
}

/* Random work on streams, in any order that events allow; the result tells the order. */
static void section_random(void) {
  begin();
  enum { STREAMS = 5, CELLS = 16, STEPS = 600 };
  CUstream streams[STREAMS];
  CUevent written[CELLS];
  CUevent used[CELLS];
  CUdeviceptr cells = 0;
  uint64_t seed = 20261120;
  cuMemAlloc(&cells, CELLS * 64);
  cuMemsetD8(cells, 0, CELLS * 64);
  cuCtxSynchronize();
  for (int i = 0; i < STREAMS; ++i)
    cuStreamCreateWithPriority(&streams[i], CU_STREAM_NON_BLOCKING, -i);
  for (int i = 0; i < CELLS; ++i) {
    cuEventCreate(&written[i], CU_EVENT_DISABLE_TIMING);
    cuEventCreate(&used[i], CU_EVENT_DISABLE_TIMING);
  }
  CUfunction mix = function("tx_mix");
  int failures = 0;
  for (uint32_t step = 0; step < STEPS; ++step) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const uint32_t random = (uint32_t)(seed >> 33);
    CUstream stream = streams[random % STREAMS];
    const uint32_t to = random / 8 % CELLS;
    const uint32_t from = (to + 1 + random / 256 % (CELLS - 1)) % CELLS;
    CUdeviceptr target = cells + to * 64;
    CUdeviceptr source = cells + from * 64;
    void* params[] = {&target, &source, &step};
    failures += cuStreamWaitEvent(stream, written[to], 0) != CUDA_SUCCESS;
    failures += cuStreamWaitEvent(stream, used[to], 0) != CUDA_SUCCESS;
    failures += cuStreamWaitEvent(stream, written[from], 0) != CUDA_SUCCESS;
    failures += cuStreamWaitEvent(stream, used[from], 0) != CUDA_SUCCESS;
    if (random % 7 == 0)
      failures += cuMemcpyAsync(target, source, 4, stream) != CUDA_SUCCESS;
    else if (random % 11 == 0)
      failures += cuMemsetD32Async(target, step, 1, stream) != CUDA_SUCCESS;
    else
      failures += launch(mix, 1, 1, stream, params) != CUDA_SUCCESS;
    failures += cuEventRecord(written[to], stream) != CUDA_SUCCESS;
    failures += cuEventRecord(used[from], stream) != CUDA_SUCCESS;
  }
  V(failures);
  T(cuCtxSynchronize());
  for (uint32_t i = 0; i < CELLS; ++i)
    printf("  cell %u: %u\n", i, read_word(cells + i * 64));
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
