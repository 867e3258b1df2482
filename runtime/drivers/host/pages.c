/* runtime/drivers/host/pages.c - memory for the pools: blocks of pages straight from the system,
 * large ones aligned so that huge pages can back them. It may not sub-allocate: that is the pools'
 * work.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "accrt/memory.h"
#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"

#define PAGE_BYTES UINT64_C(4096)
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

#ifdef ACCRT_POOL_ONE_MAPPING_PER_ALLOCATION
/* Sanitizer builds: exact sizes from the instance's allocator, so that an overrun by one byte is
 * seen. */
#define GRANULARITY_BYTES UINT64_C(1)
#define GROW_BYTES UINT64_C(0)
#define ALIGNMENT_BYTES UINT64_C(256)
#define ZEROED 0
#else
#define GRANULARITY_BYTES (UINT64_C(64) << 10)
/* Address space: pages are there when they are touched. Few large blocks waste fewer pages at their
 * ends than many small ones. */
#define GROW_BYTES (UINT64_C(32) << 20)
#define ALIGNMENT_BYTES PAGE_BYTES
#define ZEROED 1 /* pages of the system's are zeros, and cost nothing before they are touched */
#endif

void accrt_host_memory_info(accrt_driver_device_t* device, uint32_t kind,
                            accrt_driver_memory_info_t* out_info) {
  (void)device;
  out_info->supported =
      kind == ACCRT_MEMORY_DEVICE || kind == ACCRT_MEMORY_PINNED || kind == ACCRT_MEMORY_HOST;
  out_info->granularity_bytes = GRANULARITY_BYTES;
  out_info->default_grow_bytes = GROW_BYTES;
  out_info->alignment_bytes = ALIGNMENT_BYTES;
  if (out_info->struct_size > offsetof(accrt_driver_memory_info_t, zeroed))
    out_info->zeroed = ZEROED;
}

static void describe(void* pointer, uint64_t size_bytes, void* handle,
                     accrt_driver_memory_t* out_memory) {
  out_memory->handle = handle;
  out_memory->device_address = (uint64_t)(uintptr_t)pointer;
  out_memory->host_pointer = pointer;
  out_memory->size_bytes = size_bytes;
}

#ifdef ACCRT_POOL_ONE_MAPPING_PER_ALLOCATION
static int map_pages(const host_device_t* device, uint64_t size_bytes, void** out_pointer) {
  const accrt_allocator_t* allocator = device->allocator;
  *out_pointer = allocator->allocate(allocator->self, size_bytes, ALIGNMENT_BYTES);
  return *out_pointer == NULL ? ENOMEM : 0;
}
static void unmap_pages(const host_device_t* device, void* pointer, uint64_t size_bytes) {
  accrt_free_aligned(device->allocator, pointer, size_bytes, ALIGNMENT_BYTES);
}
#else
/* Maps a little more than asked and gives both ends back, so that the block begins on a huge
 * page. */
static int map_aligned(uint64_t size_bytes, void** out_pointer) {
  uint64_t padded;
  if (!accrt_add_u64(size_bytes, HUGE_PAGE_BYTES, &padded))
    return ENOMEM;
  char* raw = mmap(NULL, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED)
    return errno;
  const uint64_t head = (HUGE_PAGE_BYTES - (uintptr_t)raw % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
  if (head != 0)
    munmap(raw, head);
  munmap(raw + head + size_bytes, HUGE_PAGE_BYTES - head);
  madvise(raw + head, size_bytes, MADV_HUGEPAGE); /* a wish: kernels without huge pages say no */
  *out_pointer = raw + head;
  return 0;
}

static int map_pages(const host_device_t* device, uint64_t size_bytes, void** out_pointer) {
  (void)device;
  if (size_bytes >= HUGE_PAGE_BYTES)
    return map_aligned(size_bytes, out_pointer);
  void* pointer =
      mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pointer == MAP_FAILED)
    return errno;
  *out_pointer = pointer;
  return 0;
}
static void unmap_pages(const host_device_t* device, void* pointer, uint64_t size_bytes) {
  (void)device;
  munmap(pointer, size_bytes);
}
#endif

accrt_status_t accrt_host_memory_allocate(accrt_driver_device_t* driver_device, uint32_t kind,
                                          uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  const host_device_t* device = (const host_device_t*)driver_device;
  memset(out_memory, 0, sizeof *out_memory);
  if (kind != ACCRT_MEMORY_DEVICE && kind != ACCRT_MEMORY_PINNED && kind != ACCRT_MEMORY_HOST) {
    return accrt_host_fail(device->environment, ACCRT_ERROR_UNSUPPORTED, 0, NULL, "memory_allocate",
                           "memory of kind %u cannot be allocated on host:%u", kind, device->index);
  }
  void* pointer = NULL;
  const int error = map_pages(device, size_bytes, &pointer);
  if (error != 0) {
    return accrt_host_fail(device->environment, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, error,
                           error == ENOMEM ? "ENOMEM" : "errno", "memory_allocate",
                           "the system gave no %llu bytes", (unsigned long long)size_bytes);
  }
  describe(pointer, size_bytes, pointer, out_memory);
  return ACCRT_OK;
}

void accrt_host_memory_free(accrt_driver_device_t* driver_device,
                            const accrt_driver_memory_t* memory) {
  if (memory->handle != NULL) {
    unmap_pages((const host_device_t*)driver_device, memory->handle, memory->size_bytes);
  }
}

accrt_status_t accrt_host_memory_import(accrt_driver_device_t* device, void* pointer,
                                        uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  (void)device;
  describe(pointer, size_bytes, NULL, out_memory);
  return ACCRT_OK;
}

void accrt_host_memory_unimport(accrt_driver_device_t* device,
                                const accrt_driver_memory_t* memory) {
  (void)device;
  (void)memory;
}
