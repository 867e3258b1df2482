/* runtime/drivers/cuda/memory.c - device memory for pools: physical memory mapped to reserved
 * addresses, or cuMemAlloc where the device has no virtual memory. It does not sub-allocate, which
 * is the pools' task. pinned.c has pinned memory and imports, export.c sharing between processes.
 */
#include <stdio.h>
#include <string.h>

#include "accrt/memory.h"
#include "runtime/drivers/cuda/memory.h"

/* Minimum size of a pool's request. Each mapping takes 0.2 ms, and smaller blocks mean more
 * mappings. */
#define GROW_BYTES (UINT64_C(64) << 20)
#define PINNED_GRANULARITY_BYTES (UINT64_C(64) << 10)
#define PINNED_GROW_BYTES (UINT64_C(16) << 20)
#define PAGE_BYTES UINT64_C(4096)
#define MIN_ALIGNMENT_BYTES UINT64_C(256)

#ifdef ACCRT_POOL_ONE_MAPPING_PER_ALLOCATION
/* Exact sizes, for tools that look for overruns. */
#define EXACT_SIZES 1
#else
#define EXACT_SIZES 0
#endif

void accrt_cuda_memory_info(accrt_driver_device_t* opaque, uint32_t kind,
                            accrt_driver_memory_info_t* out_info) {
  const cuda_device_t* device = (const cuda_device_t*)opaque;
  out_info->supported = kind == ACCRT_MEMORY_DEVICE || kind == ACCRT_MEMORY_PINNED;
  out_info->granularity_bytes = 1;
  out_info->default_grow_bytes = 0;
  out_info->alignment_bytes = MIN_ALIGNMENT_BYTES;
  if (EXACT_SIZES)
    return;
  if (kind == ACCRT_MEMORY_DEVICE) {
    out_info->granularity_bytes = device->granularity_bytes;
    out_info->default_grow_bytes = GROW_BYTES;
    out_info->alignment_bytes =
        device->has_virtual_memory ? device->granularity_bytes : MIN_ALIGNMENT_BYTES;
  } else {
    out_info->granularity_bytes = PINNED_GRANULARITY_BYTES;
    out_info->default_grow_bytes = PINNED_GROW_BYTES;
    out_info->alignment_bytes = PAGE_BYTES;
  }
}

accrt_status_t accrt_cuda_memory_make(cuda_device_t* device, uint32_t kind, uint64_t size_bytes,
                                      cuda_memory_t** out_memory) {
  void* pointer;
  ACCRT_TRY(accrt_alloc(device->allocator, sizeof(cuda_memory_t), &pointer));
  *out_memory = pointer;
  (*out_memory)->kind = kind;
  (*out_memory)->size_bytes = size_bytes;
  return ACCRT_OK;
}

void accrt_cuda_memory_describe(cuda_memory_t* memory, void* host_pointer,
                                accrt_driver_memory_t* out_memory) {
  out_memory->handle = memory;
  out_memory->device_address = memory->address;
  out_memory->host_pointer = host_pointer;
  out_memory->size_bytes = memory->size_bytes;
}

/* ---- Virtual memory ---- */

/* Gives one device access to the mapping. */
static CUresult grant(cuda_device_t* owner, const cuda_memory_t* memory, CUdevice device) {
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return owner->api->cuMemSetAccess(memory->address, memory->size_bytes, &access, 1);
}

/* Gives all peers access. The device's mutex is held, so a new peer either is seen here or finds
 * the memory in the list. */
static CUresult grant_all(cuda_device_t* owner, const cuda_memory_t* memory) {
  ACCRT_ASSERT_HELD(&owner->mutex);
  CUresult result = grant(owner, memory, owner->device);
  for (uint32_t i = 0; i < CUDA_MAX_DEVICES && result == CUDA_SUCCESS; ++i) {
    if ((owner->peer_mask >> i & 1) != 0)
      result = grant(owner, memory, owner->peer_devices[i]);
  }
  return result;
}

static void link_memory(cuda_device_t* device, cuda_memory_t* memory) {
  memory->previous = NULL;
  memory->next = device->memories;
  if (memory->next != NULL)
    memory->next->previous = memory;
  device->memories = memory;
}

static void unlink_memory(cuda_device_t* device, cuda_memory_t* memory) {
  if (memory->previous != NULL) {
    memory->previous->next = memory->next;
  } else {
    device->memories = memory->next;
  }
  if (memory->next != NULL)
    memory->next->previous = memory->previous;
}

accrt_status_t accrt_cuda_memory_open_to(cuda_device_t* owner, cuda_device_t* device) {
  CUresult result = CUDA_SUCCESS;
  const cuda_scope_t scope = cuda_enter(owner);
  const CUstreamCaptureMode mode = cuda_relax(owner);
  accrt_mutex_lock(&owner->mutex);
  owner->peer_mask |= UINT64_C(1) << device->ordinal;
  owner->peer_devices[device->ordinal] = device->device;
  for (const cuda_memory_t* memory = owner->memories; memory != NULL && result == CUDA_SUCCESS;
       memory = memory->next) {
    result = grant(owner, memory, device->device);
  }
  accrt_mutex_unlock(&owner->mutex);
  cuda_unrelax(owner, mode);
  cuda_leave(owner, scope);
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  return accrt_cuda_fail(owner, result, "cuMemSetAccess", "its memory could not be opened");
}

const char* accrt_cuda_memory_map(cuda_device_t* device, cuda_memory_t* memory,
                                  CUresult* out_result) {
  const cuda_api_t* api = device->api;
  const size_t size_bytes = memory->size_bytes;
  *out_result = api->cuMemAddressReserve(&memory->address, size_bytes, 0, 0, 0);
  if (*out_result != CUDA_SUCCESS)
    return "cuMemAddressReserve";
  *out_result = api->cuMemMap(memory->address, size_bytes, 0, memory->allocation, 0);
  if (*out_result != CUDA_SUCCESS) {
    (void)api->cuMemAddressFree(memory->address, size_bytes);
    return "cuMemMap";
  }
  accrt_mutex_lock(&device->mutex);
  *out_result = grant_all(device, memory);
  if (*out_result == CUDA_SUCCESS)
    link_memory(device, memory);
  accrt_mutex_unlock(&device->mutex);
  if (*out_result == CUDA_SUCCESS)
    return NULL;
  (void)api->cuMemUnmap(memory->address, size_bytes);
  (void)api->cuMemAddressFree(memory->address, size_bytes);
  return "cuMemSetAccess";
}

void accrt_cuda_memory_unmap(cuda_device_t* device, cuda_memory_t* memory) {
  const cuda_api_t* api = device->api;
  accrt_mutex_lock(&device->mutex);
  unlink_memory(device, memory);
  accrt_mutex_unlock(&device->mutex);
  (void)api->cuMemUnmap(memory->address, memory->size_bytes);
  (void)api->cuMemAddressFree(memory->address, memory->size_bytes);
  (void)api->cuMemRelease(memory->allocation);
}

/* Requires the current context. */
static const char* create_virtual(cuda_device_t* device, cuda_memory_t* memory,
                                  CUresult* out_result) {
  const CUmemAllocationProp properties = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .requestedHandleTypes =
          memory->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->device}};
  *out_result = device->api->cuMemCreate(&memory->allocation, memory->size_bytes, &properties, 0);
  if (*out_result != CUDA_SUCCESS)
    return "cuMemCreate";
  const char* failed = accrt_cuda_memory_map(device, memory, out_result);
  if (failed != NULL)
    (void)device->api->cuMemRelease(memory->allocation);
  return failed;
}

/* ---- Functions of the driver table ---- */

static const char* create(cuda_device_t* device, cuda_memory_t* memory, CUresult* out_result) {
  switch (memory->kind) {
  case CUDA_MEMORY_VIRTUAL:
    return create_virtual(device, memory, out_result);
  case CUDA_MEMORY_PINNED:
    return accrt_cuda_pinned_create(device, memory, out_result);
  default:
    *out_result = device->api->cuMemAlloc(&memory->address, memory->size_bytes);
    return *out_result == CUDA_SUCCESS ? NULL : "cuMemAlloc";
  }
}

/* Describes the memory that this process, its other libraries and other processes have left free.
 * Requires the current context. */
static void describe_left(const cuda_device_t* device, char* text, size_t capacity) {
  size_t free_bytes = 0, total_bytes = 0;
  if (device->api->cuMemGetInfo(&free_bytes, &total_bytes) == CUDA_SUCCESS)
    snprintf(text, capacity, ", where %zu of %zu bytes are free", free_bytes, total_bytes);
}

accrt_status_t accrt_cuda_memory_create(cuda_device_t* device, uint32_t kind, bool exportable,
                                        uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  if (cuda_device_is_lost(device))
    return accrt_cuda_device_lost(device, "memory_allocate");
  cuda_memory_t* memory;
  ACCRT_TRY(accrt_cuda_memory_make(device, kind, size_bytes, &memory));
  memory->exportable = exportable;
  CUresult result;
  char left[96] = "";
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const char* failed = create(device, memory, &result);
  if (failed != NULL && kind != CUDA_MEMORY_PINNED)
    describe_left(device, left, sizeof left);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (failed != NULL) {
    accrt_free(device->allocator, memory, sizeof *memory);
    return accrt_cuda_fail(device, result, failed, "%llu bytes of %s memory on cuda:%u%s",
                           (unsigned long long)size_bytes,
                           kind == CUDA_MEMORY_PINNED ? "pinned host" : "device", device->ordinal,
                           left);
  }
  accrt_cuda_memory_describe(
      memory, kind == CUDA_MEMORY_PINNED ? (void*)memory->host_pointer : NULL, out_memory);
  return ACCRT_OK;
}

accrt_status_t accrt_cuda_memory_allocate(accrt_driver_device_t* opaque, uint32_t kind,
                                          uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  memset(out_memory, 0, sizeof *out_memory);
  if (kind != ACCRT_MEMORY_DEVICE && kind != ACCRT_MEMORY_PINNED) {
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_UNSUPPORTED, "memory_allocate",
                             "memory of kind %u cannot be allocated on cuda:%u", kind,
                             device->ordinal);
  }
  if (kind == ACCRT_MEMORY_PINNED)
    return accrt_cuda_memory_create(device, CUDA_MEMORY_PINNED, false, size_bytes, out_memory);
  const bool virtual = device->has_virtual_memory && !EXACT_SIZES;
  return accrt_cuda_memory_create(device, virtual ? CUDA_MEMORY_VIRTUAL : CUDA_MEMORY_PLAIN, false,
                                  size_bytes, out_memory);
}

/* The runtime has finished with this memory. Foreign work that was ordered behind the runtime's
 * work may still use it. cuMemFree waits for that work, but unmapping does not, so this function
 * waits. */
void accrt_cuda_memory_free(accrt_driver_device_t* opaque, const accrt_driver_memory_t* described) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  cuda_memory_t* memory = described->handle;
  if (memory == NULL)
    return;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  accrt_cuda_device_drain(device);
  switch (memory->kind) {
  case CUDA_MEMORY_VIRTUAL:
    accrt_cuda_memory_unmap(device, memory);
    break;
  case CUDA_MEMORY_PINNED:
    accrt_cuda_pinned_destroy(device, memory);
    break;
  default:
    (void)device->api->cuMemFree(memory->address);
    break;
  }
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  accrt_free(device->allocator, memory, sizeof *memory);
}
