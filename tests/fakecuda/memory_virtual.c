/* tests/fakecuda/memory_virtual.c - virtual memory management: what cuMemCreate makes, reserved
 * addresses, and mappings of the one at the other. */
#include "memory_inside.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static physical_t* physicals;

/* ---- Virtual memory management ---- */

static physical_t* physical_find(CUmemGenericAllocationHandle handle) {
  for (physical_t* at = physicals; at != NULL; at = at->next) {
    if (at->id == handle && at->owners != 0)
      return at;
  }
  return NULL;
}

static void physical_drop(physical_t* physical) {
  if (--physical->references != 0)
    return;
  for (physical_t** at = &physicals; *at != NULL; at = &(*at)->next) {
    if (*at == physical) {
      *at = physical->next;
      break;
    }
  }
  fake.memory_used[physical->device] -= physical->size_bytes;
  close(physical->fd);
  free(physical);
}

static CUresult check_properties(const CUmemAllocationProp* prop) {
  if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.id < 0 || prop->location.id >= fake.settings.device_count)
    return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                              CUmemAllocationGranularity_flags option) {
  ENTER(NEED_INIT);
  (void)option;
  if (granularity == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = check_properties(prop);
  if (result == CUDA_SUCCESS)
    *granularity = GRANULARITY;
  return result;
}

static physical_t* physical_add(uint64_t size_bytes, int device, int fd) {
  physical_t* physical = fake_allocate(sizeof *physical);
  physical->size_bytes = size_bytes;
  physical->device = device;
  physical->fd = fd;
  physical->references = 1;
  physical->owners = 1;
  physical->id = ++fake.next_id;
  physical->next = physicals;
  physicals = physical;
  return physical;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                            const CUmemAllocationProp* prop, unsigned long long flags) {
  ENTER(NEED_INIT);
  if (handle == NULL || flags != 0 || size == 0 || size % GRANULARITY != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = check_properties(prop);
  if (result != CUDA_SUCCESS)
    return result;
  if (!charge(prop->location.id, size))
    return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = pages_create(prop->location.id, size);
  if (fd < 0) {
    fake.memory_used[prop->location.id] -= size;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  physical_t* physical = physical_add(size, prop->location.id, fd);
  physical->properties = *prop;
  unsigned char* view = pages_view(fd, size);
  if (view != NULL) {
    poison(view, size);
    munmap(view, size);
  }
  *handle = physical->id;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER(NEED_INIT);
  physical_t* physical = physical_find(handle);
  if (physical == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  --physical->owners;
  physical_drop(physical);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  ENTER(NEED_INIT);
  const area_t* area = area_find((uint64_t)(uintptr_t)addr);
  if (handle == NULL || area == NULL || area->kind != AREA_MAPPED)
    return CUDA_ERROR_INVALID_VALUE;
  ++area->physical->owners;
  ++area->physical->references;
  *handle = area->physical->id;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                       CUmemGenericAllocationHandle handle) {
  ENTER(NEED_INIT);
  const physical_t* physical = physical_find(handle);
  if (prop == NULL || physical == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *prop = physical->properties;
  return CUDA_SUCCESS;
}

reservation_t* reservation_find(uint64_t address, uint64_t size_bytes) {
  for (reservation_t* at = reservations; at != NULL; at = at->next) {
    if (address >= at->base && address - at->base <= at->size_bytes &&
        size_bytes <= at->size_bytes - (address - at->base))
      return at;
  }
  return NULL;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment,
                                    CUdeviceptr addr, unsigned long long flags) {
  ENTER(NEED_INIT);
  (void)addr;
  if (ptr == NULL || size == 0 || flags != 0 || size % GRANULARITY != 0 ||
      (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t base = arena_take(size, alignment < GRANULARITY ? GRANULARITY : alignment);
  if (base == 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  reservation_t* reservation = fake_allocate(sizeof *reservation);
  *reservation = (reservation_t){reservations, base, size};
  reservations = reservation;
  *ptr = base;
  return CUDA_SUCCESS;
}

/* The first mapping that touches the range, or NULL. */
area_t* mapped_within(uint64_t address, uint64_t size_bytes) {
  const uint32_t index = area_index(address);
  if (index > 0 && area_find(address) != NULL)
    return &areas[index - 1];
  return index < area_count && areas[index].base - address < size_bytes ? &areas[index] : NULL;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  ENTER(NEED_INIT);
  for (reservation_t** at = &reservations; *at != NULL; at = &(*at)->next) {
    reservation_t* reservation = *at;
    if (reservation->base != ptr || reservation->size_bytes != size)
      continue;
    if (mapped_within(ptr, size) != NULL)
      return CUDA_ERROR_INVALID_VALUE;
    *at = reservation->next;
    free(reservation);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
  ENTER(NEED_INIT);
  physical_t* physical = physical_find(handle);
  if (physical == NULL || flags != 0 || size == 0 || ptr % GRANULARITY != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (offset != 0 || size != physical->size_bytes)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (reservation_find(ptr, size) == NULL || mapped_within(ptr, size) != NULL)
    return CUDA_ERROR_INVALID_VALUE;
  area_t area = {.kind = AREA_MAPPED,
                 .base = ptr,
                 .size_bytes = size,
                 .span_bytes = size,
                 .device = physical->device,
                 .fd = -1,
                 .physical = physical};
  area.view = pages_view(physical->fd, size);
  if (area.view == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (mmap((void*)(uintptr_t)ptr, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd, 0) ==
      MAP_FAILED) {
    munmap(area.view, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++physical->references;
  area_add(&area);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  ENTER(NEED_INIT);
  if (size == 0 || reservation_find(ptr, size) == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t at = ptr; at < ptr + size; at += GRANULARITY) { /* whole mappings, and holes */
    const area_t* area = area_find(at);
    if (area != NULL && (area->base < ptr || area->size_bytes > ptr + size - area->base))
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (uint64_t at = ptr; at < ptr + size; at += GRANULARITY) {
    area_t* area = area_find(at);
    if (area == NULL)
      continue;
    physical_t* physical = area->physical;
    area_free(area);
    physical_drop(physical);
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc,
                               size_t count) {
  ENTER(NEED_INIT);
  if (desc == NULL || count == 0 || size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t at = ptr; at < ptr + size;) {
    const area_t* area = area_find(at);
    if (area == NULL || area->kind != AREA_MAPPED || area->base != at ||
        area->size_bytes > ptr + size - at)
      return CUDA_ERROR_INVALID_VALUE;
    at += area->size_bytes;
  }
  for (size_t i = 0; i < count; ++i) {
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc[i].location.id < 0 ||
        desc[i].location.id >= fake.settings.device_count)
      return CUDA_ERROR_INVALID_DEVICE;
    if (!fake.settings.has_peers && desc[i].location.id != area_find(ptr)->device)
      return CUDA_ERROR_INVALID_DEVICE;
  }
  for (uint64_t at = ptr; at < ptr + size;) {
    area_t* area = area_find(at);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bit = 1u << desc[i].location.id;
      area->access =
          desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? area->access & ~bit : area->access | bit;
    }
    if (!fake.settings.is_protected)
      mprotect((void*)(uintptr_t)area->base, area->span_bytes,
               area->access != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
    at += area->size_bytes;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                               CUdeviceptr ptr) {
  ENTER(NEED_INIT);
  const area_t* area = area_find(ptr);
  if (flags == NULL || location == NULL || area == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = (area->access >> location->id & 1u) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                    : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void* shareableHandle,
                                             CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType handleType,
                                             unsigned long long flags) {
  ENTER(NEED_INIT);
  const physical_t* physical = physical_find(handle);
  if (shareableHandle == NULL || physical == NULL || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      !((unsigned)physical->properties.requestedHandleTypes &
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 3);
  if (fd < 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  *(int*)shareableHandle = fd;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                               CUmemAllocationHandleType shHandleType) {
  ENTER(NEED_INIT);
  if (handle == NULL || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t size_bytes = 0;
  const int given = (int)(intptr_t)osHandle;
  if (fcntl(given, F_GETFD) < 0)
    return CUDA_ERROR_UNKNOWN;
  const int device = pages_device(given, &size_bytes);
  if (device < 0 || device >= fake.settings.device_count)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(given, F_DUPFD_CLOEXEC, 3);
  if (fd < 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  fake.memory_used[device] += size_bytes;
  physical_t* physical = physical_add(size_bytes, device, fd);
  physical->properties = (CUmemAllocationProp){
      .type = CU_MEM_ALLOCATION_TYPE_PINNED, /* the importer asked for no handle */
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  *handle = physical->id;
  return CUDA_SUCCESS;
}
