/* tests/fakecuda/transcript_memory.c - the sections on memory and copies. See transcript.c. */
#include "transcript.h"

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

void section_memory(void) {
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
  T(cuMemHostRegister(pinned, 5000, CU_MEMHOSTREGISTER_PORTABLE));
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

void section_virtual(void) {
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

void section_copy(void) {
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
  be_late(stream);
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
