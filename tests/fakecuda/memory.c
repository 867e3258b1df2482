/* tests/fakecuda/memory.c - device memory, virtual memory management, pinned host memory, IPC.
 *
 * Device addresses come from a range of their own and are not used twice while it lasts, so that what is used after it was freed
 * is found. Behind an address lie two mappings of the same pages: the one at the address itself, closed to the host except while a
 * kernel runs, and an open one that copies use.
 */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARENA_MOST_BYTES (UINT64_C(1) << 42)
#define ARENA_LEAST_BYTES (UINT64_C(1) << 36) /* what thread sanitizers leave */
#define GRANULARITY (UINT64_C(2) << 20)
#define POISON 0xC3
#define POISON_MAX_BYTES (UINT64_C(16) << 20)
#define PAGE UINT64_C(4096)

typedef enum area_kind {
  AREA_DEVICE,
  AREA_MAPPED,
  AREA_PINNED,
  AREA_REGISTERED,
  AREA_IPC
} area_kind_t;

/* A stretch of addresses that leads somewhere. */
typedef struct area {
  area_kind_t kind;
  uint64_t base;
  uint64_t size_bytes; /* as asked for */
  uint64_t span_bytes; /* mapped */
  unsigned char* view; /* where copies reach it; host memory: itself */
  int device;
  uint32_t access; /* bit n: device n may */
  CUcontext context;
  uint64_t id;
  unsigned flags;
  int fd; /* IPC-capable: what others open; else -1 */
  struct physical* physical;
} area_t;

/* What cuMemCreate makes. */
typedef struct physical {
  struct physical* next;
  uint64_t size_bytes;
  int device;
  int fd;
  uint32_t references; /* the handle's owners and the mappings */
  uint32_t owners;
  uint64_t id;
  CUmemAllocationProp properties;
} physical_t;

typedef struct reservation {
  struct reservation* next;
  uint64_t base;
  uint64_t size_bytes;
} reservation_t;

static reservation_t* reservation_find(uint64_t address, uint64_t size_bytes);

static area_t* areas; /* sorted by base */
static uint32_t area_count;
static uint32_t area_capacity;
static physical_t* physicals;
static reservation_t* reservations;
static uint64_t arena;
static uint64_t arena_next;
static uint64_t arena_bytes;

/* ---- Addresses ---- */

static uint32_t area_index(uint64_t address) { /* the first whose base is above */
  uint32_t low = 0;
  uint32_t high = area_count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (areas[middle].base <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static area_t* area_find(uint64_t address) {
  const uint32_t index = area_index(address);
  if (index == 0)
    return NULL;
  area_t* area = &areas[index - 1];
  return address - area->base < area->size_bytes ? area : NULL;
}

static area_t* area_add(const area_t* area) {
  if (area_count == area_capacity) {
    area_capacity = area_capacity == 0 ? 64 : area_capacity * 2;
    areas = realloc(areas, area_capacity * sizeof *areas);
    if (areas == NULL)
      abort();
  }
  const uint32_t index = area_index(area->base);
  memmove(&areas[index + 1], &areas[index], (area_count - index) * sizeof *areas);
  areas[index] = *area;
  areas[index].id = ++fake.next_id;
  ++area_count;
  return &areas[index];
}

static void area_remove(area_t* area) {
  const uint32_t index = (uint32_t)(area - areas);
  --area_count;
  memmove(area, area + 1, (area_count - index) * sizeof *areas);
}

static bool is_in_arena(uint64_t address) {
  return arena != 0 && address - arena < arena_bytes;
}

static void arena_open(void) {
  for (arena_bytes = ARENA_MOST_BYTES; arena_bytes >= ARENA_LEAST_BYTES; arena_bytes /= 2) {
    void* base =
        mmap(NULL, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
      continue;
    arena = (uint64_t)(uintptr_t)base;
    arena_next = arena;
    return;
  }
}

/* Where what is in the way of [base, base + size) ends; 0: nothing is. */
static uint64_t obstacle(uint64_t base, uint64_t size_bytes) {
  const uint32_t index = area_index(base);
  if (index > 0 && areas[index - 1].base + areas[index - 1].span_bytes > base)
    return areas[index - 1].base + areas[index - 1].span_bytes;
  if (index < area_count && areas[index].base - base < size_bytes)
    return areas[index].base + areas[index].span_bytes;
  for (const reservation_t* at = reservations; at != NULL; at = at->next) {
    if (at->base < base + size_bytes && base < at->base + at->size_bytes)
      return at->base + at->size_bytes;
  }
  return 0;
}

/* Addresses that nobody had before, as long as there are any; 0: used up. */
static uint64_t arena_take(uint64_t size_bytes, uint64_t alignment) {
  if (arena == 0)
    arena_open();
  if (arena == 0 || size_bytes > arena_bytes / 4)
    return 0;
  for (int round = 0; round < 2; ++round) {
    uint64_t base = (arena_next + alignment - 1) & ~(alignment - 1);
    for (uint64_t end; (end = obstacle(base, size_bytes)) != 0;)
      base = (end + PAGE + alignment - 1) & ~(alignment - 1);
    if (base + size_bytes + PAGE <= arena + arena_bytes) {
      arena_next = base + size_bytes + PAGE; /* a closed page behind each */
      return base;
    }
    arena_next = arena; /* from the start again */
  }
  return 0;
}

static bool may_reach(const area_t* area, CUcontext context) {
  if (context == NULL || area->kind == AREA_PINNED || area->kind == AREA_REGISTERED)
    return true;
  if (area->kind == AREA_MAPPED)
    return (area->access >> context->device & 1u) != 0;
  return area->device == context->device || (context->peers >> area->device & 1u) != 0;
}

unsigned char* memory_resolve(CUcontext context, uint64_t address, uint64_t* out_available) {
  *out_available = 0;
  area_t* area = area_find(address);
  if (area == NULL) {
    if (is_in_arena(address) || address < PAGE)
      return NULL;
    *out_available = UINT64_MAX; /* pageable host memory */
    const uint32_t next = area_index(address);
    if (next < area_count)
      *out_available = areas[next].base - address;
    return (unsigned char*)(uintptr_t)address;
  }
  if (!may_reach(area, context) || (area->kind == AREA_MAPPED && area->access == 0))
    return NULL;
  *out_available = area->size_bytes - (address - area->base);
  return area->view + (address - area->base);
}

bool memory_is_unmapped(uint64_t address) {
  const area_t* area = area_find(address);
  return area != NULL && area->kind != AREA_MAPPED;
}

memory_type_t memory_type(uint64_t address) {
  const area_t* area = area_find(address);
  if (area == NULL)
    return is_in_arena(address) || address < PAGE ? MEMORY_NOWHERE : MEMORY_PAGEABLE;
  return area->kind == AREA_PINNED || area->kind == AREA_REGISTERED ? MEMORY_PINNED : MEMORY_DEVICE;
}

bool memory_covers(CUcontext context, uint64_t address, uint64_t size_bytes) {
  while (size_bytes != 0) {
    uint64_t available = 0;
    if (memory_resolve(context, address, &available) == NULL)
      return false;
    const uint64_t piece = size_bytes < available ? size_bytes : available;
    address += piece;
    size_bytes -= piece;
  }
  return true;
}

static int closed_protection(void) {
  return fake.settings.is_protected ? PROT_NONE : PROT_READ | PROT_WRITE;
}

void memory_protect(bool is_open) {
  if (!fake.settings.is_protected)
    return;
  for (uint32_t i = 0; i < area_count; ++i) {
    const area_t* area = &areas[i];
    if (area->kind == AREA_PINNED || area->kind == AREA_REGISTERED)
      continue;
    const bool may_be = area->kind != AREA_MAPPED || area->access != 0;
    mprotect((void*)(uintptr_t)area->base, area->span_bytes,
             is_open && may_be ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

/* ---- Pages ---- */

static int pages_create(int device, uint64_t size_bytes) {
  char name[32];
  snprintf(name, sizeof name, "fakecuda:%d", device);
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, (off_t)size_bytes) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

/* Which device's pages these are, or -1: no pages of ours. */
static int pages_device(int fd, uint64_t* out_size_bytes) {
  char link[64];
  char text[128];
  struct stat facts;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, text, sizeof text - 1);
  if (length <= 0 || fstat(fd, &facts) != 0)
    return -1;
  text[length] = '\0';
  const char* name = strstr(text, "fakecuda:");
  *out_size_bytes = (uint64_t)facts.st_size;
  return name == NULL ? -1 : atoi(name + 9);
}

static unsigned char* pages_view(int fd, uint64_t size_bytes) {
  void* view = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return view == MAP_FAILED ? NULL : view;
}

static bool pages_map(int fd, uint64_t address, uint64_t size_bytes) {
  return mmap((void*)(uintptr_t)address, size_bytes, closed_protection(), MAP_SHARED | MAP_FIXED,
              fd, 0) != MAP_FAILED;
}

static void pages_unmap(uint64_t address, uint64_t size_bytes) {
  mmap((void*)(uintptr_t)address, size_bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void poison(unsigned char* view, uint64_t size_bytes) {
  memset(view, POISON, size_bytes < POISON_MAX_BYTES ? size_bytes : POISON_MAX_BYTES);
}

static bool charge(int device, uint64_t size_bytes) {
  const uint64_t used = fake.memory_used[device];
  if (used > fake.settings.memory_bytes || size_bytes > fake.settings.memory_bytes - used)
    return false;
  fake.memory_used[device] += size_bytes;
  return true;
}

/* ---- cuMemAlloc ---- */

static CUresult allocate_at(area_t* area, int fd) {
  area->base = arena_take(area->span_bytes, GRANULARITY);
  area->view = area->base == 0 ? NULL : pages_view(fd, area->span_bytes);
  if (area->view == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (!pages_map(fd, area->base, area->span_bytes)) {
    munmap(area->view, area->span_bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr* dptr, size_t bytesize) {
  ENTER(UNSAFE);
  if (dptr == NULL || bytesize == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytesize > fake.settings.memory_bytes)
    return CUDA_ERROR_OUT_OF_MEMORY;
  area_t area = {.kind = AREA_DEVICE,
                 .size_bytes = bytesize,
                 .span_bytes = (bytesize + PAGE - 1) & ~(PAGE - 1),
                 .device = guard.context->device,
                 .context = guard.context,
                 .fd = -1};
  if (!charge(area.device, area.span_bytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = pages_create(area.device, area.span_bytes);
  CUresult result = fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : allocate_at(&area, fd);
  if (fd >= 0)
    close(fd);
  if (result != CUDA_SUCCESS) {
    fake.memory_used[area.device] -= area.span_bytes;
    return result;
  }
  poison(area.view, area.span_bytes);
  area_add(&area);
  *dptr = area.base;
  return CUDA_SUCCESS;
}

static void check_slack(const area_t* area) {
  if (area->span_bytes > POISON_MAX_BYTES)
    return;
  for (uint64_t i = area->size_bytes; i < area->span_bytes; ++i) {
    if (area->view[i] != POISON) {
      fake_complain("byte %llu behind an allocation of %llu bytes at 0x%llx was written",
                    (unsigned long long)(i - area->size_bytes),
                    (unsigned long long)area->size_bytes, (unsigned long long)area->base);
      return;
    }
  }
}

static void area_free(area_t* area) {
  if (area->kind == AREA_DEVICE) {
    check_slack(area);
    fake.memory_used[area->device] -= area->span_bytes;
  }
  if (area->kind == AREA_DEVICE || area->kind == AREA_IPC || area->kind == AREA_MAPPED) {
    pages_unmap(area->base, area->span_bytes);
    munmap(area->view, area->span_bytes);
  }
  if (area->kind == AREA_PINNED)
    munmap(area->view, area->span_bytes);
  if (area->fd >= 0)
    close(area->fd);
  area_remove(area);
}

EXPORT CUresult cuMemFree(CUdeviceptr dptr) {
  ENTER(UNSAFE);
  if (dptr == 0)
    return CUDA_SUCCESS;
  area_t* area = area_find(dptr);
  if (area == NULL || area->base != dptr || area->kind != AREA_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  engine_drain(area->context); /* as the real one does */
  area = area_find(dptr);
  if (area != NULL)
    area_free(area);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo(size_t* free_bytes, size_t* total) {
  ENTER(NORMAL);
  if (total != NULL)
    *total = fake.settings.memory_bytes;
  if (free_bytes != NULL)
    *free_bytes = fake.settings.memory_bytes - fake.memory_used[guard.context->device];
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  ENTER(NORMAL);
  const area_t* area = area_find(dptr);
  if (area == NULL)
    return CUDA_ERROR_NOT_FOUND;
  if (pbase != NULL)
    *pbase = area->base;
  if (psize != NULL)
    *psize = area->size_bytes;
  return CUDA_SUCCESS;
}

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

static reservation_t* reservation_find(uint64_t address, uint64_t size_bytes) {
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
static area_t* mapped_within(uint64_t address, uint64_t size_bytes) {
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

/* ---- Host memory ---- */

EXPORT CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  ENTER(UNSAFE);
  if (pp == NULL || Flags > 7)
    return CUDA_ERROR_INVALID_VALUE;
  *pp = NULL;
  if (bytesize == 0)
    return CUDA_SUCCESS;
  area_t area = {.kind = AREA_PINNED,
                 .size_bytes = bytesize,
                 .span_bytes = (bytesize + PAGE - 1) & ~(PAGE - 1),
                 .device = guard.context->device,
                 .context = guard.context,
                 .flags = Flags,
                 .fd = -1};
  void* memory =
      mmap(NULL, area.span_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  area.view = memory;
  area.base = (uint64_t)(uintptr_t)memory;
  poison(area.view, area.span_bytes);
  area_add(&area);
  *pp = memory;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocHost(void** pp, size_t bytesize) {
  return cuMemHostAlloc(pp, bytesize, 0);
}

EXPORT CUresult cuMemFreeHost(void* p) {
  ENTER(UNSAFE);
  if (p == NULL)
    return CUDA_SUCCESS;
  area_t* area = area_find((uint64_t)(uintptr_t)p);
  if (area == NULL || area->view != p || area->kind != AREA_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  engine_drain(area->context);
  area = area_find((uint64_t)(uintptr_t)p);
  if (area != NULL)
    area_free(area);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister(void* p, size_t bytesize, unsigned int Flags) {
  ENTER(UNSAFE);
  const uint64_t base = (uint64_t)(uintptr_t)p;
  if (p == NULL || bytesize == 0 || Flags > 15)
    return CUDA_ERROR_INVALID_VALUE;
  if (mapped_within(base, bytesize) != NULL)
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const area_t area = {.kind = AREA_REGISTERED,
                       .base = base,
                       .size_bytes = bytesize,
                       .span_bytes = bytesize,
                       .view = p,
                       .device = guard.context->device,
                       .context = guard.context,
                       .flags = Flags,
                       .fd = -1};
  area_add(&area);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void* p) {
  ENTER(UNSAFE);
  area_t* area = area_find((uint64_t)(uintptr_t)p);
  if (p == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (area == NULL)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  if (area->view != p || area->kind != AREA_REGISTERED)
    return CUDA_ERROR_INVALID_VALUE;
  engine_drain(area->context);
  area = area_find((uint64_t)(uintptr_t)p);
  if (area != NULL)
    area_free(area);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  ENTER(NORMAL);
  const area_t* area = area_find((uint64_t)(uintptr_t)p);
  if (pdptr == NULL || p == NULL || Flags != 0 || area == NULL ||
      (area->kind != AREA_PINNED && area->kind != AREA_REGISTERED))
    return CUDA_ERROR_INVALID_VALUE;
  *pdptr = (CUdeviceptr)(uintptr_t)p;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  ENTER(NORMAL);
  const area_t* area = area_find((uint64_t)(uintptr_t)p);
  if (pFlags == NULL || area == NULL || area->kind != AREA_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  *pFlags = area->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

/* ---- Pointers ---- */

static CUcontext area_context(const area_t* area) {
  return area->context;
}

static CUresult pointer_attribute(void* data, CUpointer_attribute attribute, uint64_t address) {
  const area_t* area = area_find(address);
  const reservation_t* reservation = reservation_find(address, 1);
  if (area == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const bool is_host = area->kind == AREA_PINNED || area->kind == AREA_REGISTERED;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext*)data = area_context(area);
    return area->context == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned*)data = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *(CUdeviceptr*)data = address;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    if (!is_host)
      return CUDA_ERROR_INVALID_VALUE;
    *(void**)data = (void*)(uintptr_t)address;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(int*)data = 1;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    *(unsigned long long*)data = area->id;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(int*)data = 0;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int*)data = area->device;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(int*)data = area->kind == AREA_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr*)data = reservation != NULL ? reservation->base : area->base;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE: /* of mapped memory: the whole reservation */
    *(size_t*)data = reservation != NULL ? reservation->size_bytes : area->size_bytes;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    *(int*)data = 0;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  ENTER(NEED_INIT);
  if (data == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  return pointer_attribute(data, attribute, ptr);
}

EXPORT CUresult cuPointerGetAttributes(unsigned int numAttributes,
                                       CUpointer_attribute* attribute_list, void** data,
                                       CUdeviceptr ptr) {
  ENTER(NEED_INIT);
  if (numAttributes == 0 || attribute_list == NULL || data == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  const reservation_t* reservation = reservation_find(ptr, 1);
  for (unsigned i = 0; i < numAttributes; ++i) { /* what is not known is zero, and no failure */
    static const size_t sizes[] = {[CU_POINTER_ATTRIBUTE_CONTEXT] = 8,
                                   [CU_POINTER_ATTRIBUTE_MEMORY_TYPE] = 4,
                                   [CU_POINTER_ATTRIBUTE_DEVICE_POINTER] = 8,
                                   [CU_POINTER_ATTRIBUTE_BUFFER_ID] = 8,
                                   [CU_POINTER_ATTRIBUTE_IS_MANAGED] = 4,
                                   [CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL] = 4,
                                   [CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE] = 4,
                                   [CU_POINTER_ATTRIBUTE_MAPPED] = 4};
    const unsigned which = (unsigned)attribute_list[i];
    if (pointer_attribute(data[i], attribute_list[i], ptr) == CUDA_SUCCESS)
      continue;
    if (which < sizeof sizes / sizeof sizes[0])
      memset(data[i], which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? 0xFE : 0, sizes[which]);
    if (which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      *(int*)data[i] = -2;
    /* Memory that CUDA does not know is the host's; where nothing is mapped yet, the reservation counts. */
    if (which == CU_POINTER_ATTRIBUTE_HOST_POINTER)
      *(void**)data[i] = area_find(ptr) == NULL ? (void*)(uintptr_t)ptr : NULL;
    if (which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR && reservation != NULL)
      *(CUdeviceptr*)data[i] = reservation->base;
    if (which == CU_POINTER_ATTRIBUTE_RANGE_SIZE && reservation != NULL)
      *(size_t*)data[i] = reservation->size_bytes;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                      CUdeviceptr ptr) {
  ENTER(NEED_INIT);
  if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || area_find(ptr) == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

/* ---- IPC: the handle says whose descriptor to open ---- */

typedef struct ipc_bytes {
  char tag[8];
  uint64_t process;
  uint64_t offset_bytes;
  uint64_t size_bytes;
  uint64_t key;
  int32_t fd;
  int32_t device;
} ipc_bytes_t;

/* Memory of cuMemAlloc is moved to pages with a descriptor when it is first exported. */
static bool give_descriptor(area_t* area) {
  if (area->fd >= 0)
    return true;
  const int fd = pages_create(area->device, area->span_bytes);
  unsigned char* view = fd < 0 ? NULL : pages_view(fd, area->span_bytes);
  if (view == NULL) {
    if (fd >= 0)
      close(fd);
    return false;
  }
  memcpy(view, area->view, area->span_bytes);
  munmap(area->view, area->span_bytes);
  area->view = view;
  area->fd = fd;
  return pages_map(fd, area->base, area->span_bytes);
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  ENTER(UNSAFE);
  area_t* area = area_find(dptr);
  if (pHandle == NULL || area == NULL || area->kind != AREA_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  engine_drain(area->context);
  if (!give_descriptor(area))
    return CUDA_ERROR_OUT_OF_MEMORY;
  const ipc_bytes_t bytes = {.tag = "fakeipc",
                             .process = (uint64_t)getpid(),
                             .size_bytes = area->size_bytes,
                             .key = area->base,
                             .fd = area->fd,
                             .device = area->device};
  memset(pHandle, 0, sizeof *pHandle);
  memcpy(pHandle->reserved, &bytes, sizeof bytes);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  ENTER(UNSAFE);
  ipc_bytes_t bytes;
  memcpy(&bytes, handle.reserved, sizeof bytes);
  if (pdptr == NULL || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
      memcmp(bytes.tag, "fakeipc", 8) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (bytes.process == (uint64_t)getpid())
    return CUDA_ERROR_INVALID_CONTEXT; /* the exporter itself */
  char path[64];
  snprintf(path, sizeof path, "/proc/%llu/fd/%d", (unsigned long long)bytes.process, bytes.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return CUDA_ERROR_MAP_FAILED;
  area_t area = {.kind = AREA_IPC,
                 .size_bytes = bytes.size_bytes,
                 .span_bytes = (bytes.size_bytes + PAGE - 1) & ~(PAGE - 1),
                 .device = bytes.device,
                 .context = guard.context,
                 .fd = -1};
  const CUresult result = allocate_at(&area, fd);
  close(fd);
  if (result != CUDA_SUCCESS)
    return result;
  area_add(&area);
  *pdptr = area.base;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  ENTER(UNSAFE);
  area_t* area = area_find(dptr);
  if (area == NULL || area->base != dptr || area->kind != AREA_IPC)
    return CUDA_ERROR_INVALID_VALUE;
  engine_drain(area->context);
  area = area_find(dptr);
  if (area != NULL)
    area_free(area);
  return CUDA_SUCCESS;
}

void memory_forget_context(CUcontext context) {
  for (uint32_t i = area_count; i > 0; --i) {
    if (areas[i - 1].context == context)
      area_free(&areas[i - 1]);
  }
}
