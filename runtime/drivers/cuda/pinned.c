/* runtime/drivers/cuda/pinned.c - pinned host memory, allocated here or registered for other code;
 * and device memory that other code allocated, used unchanged.
 *
 * A process can register a range of host memory once, by any of its code. The driver counts the
 * imports of each range that it registered. It does not unregister ranges that other code
 * registered.
 */
#include <string.h>

#include "runtime/drivers/cuda/memory.h"

const char* accrt_cuda_pinned_create(cuda_device_t* device, cuda_memory_t* memory,
                                     CUresult* out_result) {
  const cuda_api_t* api = device->api;
  *out_result = api->cuMemHostAlloc(&memory->host_pointer, memory->size_bytes,
                                    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (*out_result != CUDA_SUCCESS)
    return "cuMemHostAlloc";
  *out_result = api->cuMemHostGetDevicePointer(&memory->address, memory->host_pointer, 0);
  if (*out_result == CUDA_SUCCESS)
    return NULL;
  (void)api->cuMemFreeHost(memory->host_pointer);
  return "cuMemHostGetDevicePointer";
}

void accrt_cuda_pinned_destroy(cuda_device_t* device, const cuda_memory_t* memory) {
  (void)device->api->cuMemFreeHost(memory->host_pointer);
}

/* ---- Registered ranges ---- */

/* A range of host memory that this driver registered. */
typedef struct cuda_import {
  struct cuda_import* next;
  uintptr_t begin;
  uintptr_t end;
  uint32_t users;
} cuda_import_t;

/* Requires imports_mutex. */
static cuda_import_t* find_import(const cuda_driver_t* driver, uintptr_t begin, uintptr_t end) {
  ACCRT_ASSERT_HELD(&driver->imports_mutex);
  cuda_import_t* import = driver->imports;
  while (import != NULL && (begin < import->begin || end > import->end))
    import = import->next;
  return import;
}

static cuda_import_t* join_import(cuda_driver_t* driver, uintptr_t begin, uintptr_t end) {
  accrt_mutex_lock(&driver->imports_mutex);
  cuda_import_t* import = find_import(driver, begin, end);
  if (import != NULL)
    ++import->users;
  accrt_mutex_unlock(&driver->imports_mutex);
  return import;
}

static void leave_import(cuda_device_t* device, cuda_import_t* import) {
  cuda_driver_t* driver = device->driver;
  accrt_mutex_lock(&driver->imports_mutex);
  const bool last = --import->users == 0;
  if (last) {
    cuda_import_t** link = &driver->imports;
    while (*link != import)
      link = &(*link)->next;
    *link = import->next;
    /* Unregister under the lock, so that another thread that registers the same memory cannot come
     * first. */
    (void)device->api->cuMemHostUnregister((void*)import->begin);
  }
  accrt_mutex_unlock(&driver->imports_mutex);
  if (last)
    accrt_free(driver->allocator, import, sizeof *import);
}

/* Registers read-only memory as read-only. */
static CUresult register_range(const cuda_device_t* device, void* pointer, uint64_t size_bytes) {
  const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const CUresult result = device->api->cuMemHostRegister(pointer, size_bytes, flags);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ||
      result == CUDA_ERROR_OUT_OF_MEMORY) {
    return result;
  }
  return device->api->cuMemHostRegister(pointer, size_bytes, flags | CU_MEMHOSTREGISTER_READ_ONLY);
}

/* `*out_import` stays NULL when other code has registered the range. */
static CUresult add_import(cuda_device_t* device, void* pointer, uint64_t size_bytes,
                           cuda_import_t* fresh, cuda_import_t** out_import) {
  cuda_driver_t* driver = device->driver;
  *out_import = NULL;
  accrt_mutex_lock(&driver->imports_mutex);
  const CUresult result = register_range(device, pointer, size_bytes);
  if (result == CUDA_SUCCESS) {
    *fresh =
        (cuda_import_t){driver->imports, (uintptr_t)pointer, (uintptr_t)pointer + size_bytes, 1};
    driver->imports = fresh;
    *out_import = fresh;
  }
  accrt_mutex_unlock(&driver->imports_mutex);
  /* CUDA calls memory that other code allocated as pinned an invalid value. Check both ends. If
   * only a part is registered, the device cannot access the rest. */
  if ((result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED || result == CUDA_ERROR_INVALID_VALUE) &&
      accrt_cuda_is_known(device, (uint64_t)(uintptr_t)pointer) &&
      accrt_cuda_is_known(device, (uint64_t)(uintptr_t)pointer + size_bytes - 1)) {
    return CUDA_SUCCESS;
  }
  return result;
}

/* CUDA's attributes of an address. */
typedef struct pointer_facts {
  CUmemorytype type; /* 0: CUDA does not know the address */
  int ordinal;
  unsigned is_managed;
  CUdeviceptr device_pointer;
} pointer_facts_t;

static pointer_facts_t query_pointer(const cuda_device_t* device, const void* pointer) {
  pointer_facts_t facts;
  memset(&facts, 0, sizeof facts);
  CUpointer_attribute which[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  void* where[] = {&facts.type, &facts.ordinal, &facts.is_managed, &facts.device_pointer};
  if (device->api->cuPointerGetAttributes(4, which, where, (CUdeviceptr)(uintptr_t)pointer) !=
      CUDA_SUCCESS) {
    memset(&facts, 0, sizeof facts);
  }
  return facts;
}

/* Imports device memory of other code, possibly of another device. Access between the devices is
 * enabled separately. */
static accrt_status_t import_device(cuda_device_t* device, const void* pointer,
                                    cuda_memory_t* memory) {
  (void)device;
  memory->kind = CUDA_MEMORY_FOREIGN;
  memory->address = (CUdeviceptr)(uintptr_t)pointer;
  return ACCRT_OK;
}

static accrt_status_t import_host(cuda_device_t* device, void* pointer, cuda_memory_t* memory) {
  const uintptr_t begin = (uintptr_t)pointer;
  memory->kind = CUDA_MEMORY_REGISTERED;
  memory->host_pointer = pointer;
  memory->import = join_import(device->driver, begin, begin + memory->size_bytes);
  CUresult result = CUDA_SUCCESS;
  if (memory->import == NULL) {
    void* fresh;
    ACCRT_TRY(accrt_alloc(device->allocator, sizeof(cuda_import_t), &fresh));
    result = add_import(device, pointer, memory->size_bytes, fresh, &memory->import);
    if (memory->import == NULL)
      accrt_free(device->allocator, fresh, sizeof(cuda_import_t));
  }
  const char* call = "cuMemHostRegister";
  if (result == CUDA_SUCCESS) {
    call = "cuMemHostGetDevicePointer";
    result = device->api->cuMemHostGetDevicePointer(&memory->address, pointer, 0);
    if (result == CUDA_SUCCESS)
      return ACCRT_OK;
    if (memory->import != NULL)
      leave_import(device, memory->import);
  }
  return accrt_cuda_fail(device, result, call, "%llu bytes of host memory at %p for cuda:%u",
                         (unsigned long long)memory->size_bytes, pointer, device->ordinal);
}

accrt_status_t accrt_cuda_memory_import(accrt_driver_device_t* opaque, void* pointer,
                                        uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  memset(out_memory, 0, sizeof *out_memory);
  if (cuda_device_is_lost(device))
    return accrt_cuda_device_lost(device, "memory_import");
  cuda_memory_t* memory;
  ACCRT_TRY(accrt_cuda_memory_make(device, CUDA_MEMORY_REGISTERED, size_bytes, &memory));
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const pointer_facts_t facts = query_pointer(device, pointer);
  accrt_status_t status = ACCRT_OK;
  if (facts.type == CU_MEMORYTYPE_DEVICE || facts.is_managed != 0) {
    status = import_device(device, pointer, memory);
  } else {
    status = import_host(device, pointer, memory);
  }
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (status != ACCRT_OK) {
    accrt_free(device->allocator, memory, sizeof *memory);
    return status;
  }
  /* Both the host and the device can access managed memory. */
  void* host_pointer = facts.is_managed != 0 ? pointer : memory->host_pointer;
  accrt_cuda_memory_describe(memory, host_pointer, out_memory);
  return ACCRT_OK;
}

void accrt_cuda_memory_unimport(accrt_driver_device_t* opaque,
                                const accrt_driver_memory_t* described) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  cuda_memory_t* memory = described->handle;
  if (memory == NULL)
    return;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  if (memory->import != NULL)
    leave_import(device, memory->import);
  if (memory->kind == CUDA_MEMORY_VIRTUAL || memory->kind == CUDA_MEMORY_IPC)
    accrt_cuda_memory_close(device, memory);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  accrt_free(device->allocator, memory, sizeof *memory);
}
