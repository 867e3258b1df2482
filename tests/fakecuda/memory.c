/* tests/fakecuda/memory.c - device memory, pinned host memory, IPC.
 *
 * Device addresses come from a range of their own and are not used twice while it lasts, so that what is used after it was freed
 * is found. Behind an address lie two mappings of the same pages: the one at the address itself, closed to the host except while a
 * kernel runs, and an open one that copies use.
 */
#include "memory_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARENA_MOST_BYTES (UINT64_C(1) << 42)
#define ARENA_LEAST_BYTES (UINT64_C(1) << 36) /* what thread sanitizers leave */
#define POISON 0xC3
#define POISON_MAX_BYTES (UINT64_C(16) << 20)
#define PAGE UINT64_C(4096)

area_t* areas;
uint32_t area_count;
static uint32_t area_capacity;
reservation_t* reservations;
static uint64_t arena;
static uint64_t arena_next;
static uint64_t arena_bytes;

/* ---- Addresses ---- */

uint32_t area_index(uint64_t address) { /* the first whose base is above */
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

area_t* area_find(uint64_t address) {
  const uint32_t index = area_index(address);
  if (index == 0)
    return NULL;
  area_t* area = &areas[index - 1];
  return address - area->base < area->size_bytes ? area : NULL;
}

area_t* area_add(const area_t* area) {
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
uint64_t arena_take(uint64_t size_bytes, uint64_t alignment) {
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

int pages_create(int device, uint64_t size_bytes) {
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
int pages_device(int fd, uint64_t* out_size_bytes) {
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

unsigned char* pages_view(int fd, uint64_t size_bytes) {
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

void poison(unsigned char* view, uint64_t size_bytes) {
  memset(view, POISON, size_bytes < POISON_MAX_BYTES ? size_bytes : POISON_MAX_BYTES);
}

bool charge(int device, uint64_t size_bytes) {
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

void area_free(area_t* area) {
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
  const area_t* present = mapped_within(base, bytesize);
  if (present != NULL) {
    return present->kind == AREA_PINNED ? CUDA_ERROR_INVALID_VALUE
                                        : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
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
