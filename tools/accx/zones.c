/* tools/accx/zones.c - red zones and untouchable pages around the arguments of a kernel.
 *
 *    guard | zone | pages of the argument, and one more | zone | guard
 *
 * All is reserved at once. Each layout makes the part accessible that it needs. */
#define _GNU_SOURCE
#include "zones.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page_bytes(void) {
  return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t whole_pages(size_t size_bytes) {
  const size_t page = page_bytes();
  return (size_bytes + page - 1) / page * page;
}

bool accx_zones_create(size_t size_bytes, accx_zones_t* out_zones) {
  const size_t around = 2 * (ACCX_GUARD_BYTES + ACCX_ZONE_BYTES) + page_bytes();
  *out_zones = (accx_zones_t){.size_bytes = size_bytes};
  if (size_bytes > PTRDIFF_MAX - around - page_bytes())
    return false;
  const size_t reserved = around + whole_pages(size_bytes);
  void* base = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return false;
  out_zones->base = out_zones->data = out_zones->readable = out_zones->end = base;
  out_zones->reserved_bytes = reserved;
  return true;
}

void accx_zones_free(accx_zones_t* zones) {
  if (zones->base)
    (void)munmap(zones->base, zones->reserved_bytes);
  *zones = (accx_zones_t){0};
}

/* Decides where the argument lies and what around it may be touched. */
static void place(accx_zones_t* zones, accx_edge_t edge) {
  char* first = zones->base + ACCX_GUARD_BYTES + ACCX_ZONE_BYTES; /* of the argument's pages */
  const size_t whole = whole_pages(zones->size_bytes);
  zones->data = edge == ACCX_EDGE_AFTER ? first + (whole - zones->size_bytes) : first;
  zones->readable = edge == ACCX_EDGE_NONE ? zones->base + ACCX_GUARD_BYTES : first;
  zones->end = edge == ACCX_EDGE_NONE ? zones->base + zones->reserved_bytes - ACCX_GUARD_BYTES
                                      : first + whole;
}

bool accx_zones_lay(accx_zones_t* zones, accx_edge_t edge, bool locked, unsigned char zone_byte,
                    const void* content) {
  if (mprotect(zones->base, zones->reserved_bytes, PROT_NONE) != 0)
    return false;
  place(zones, edge);
  zones->zone_byte = zone_byte;
  const size_t bytes = (size_t)(zones->end - zones->readable);
  if (bytes == 0)
    return true;
  if (mprotect(zones->readable, bytes, PROT_READ | PROT_WRITE) != 0)
    return false;
  memset(zones->readable, zone_byte, bytes);
  if (zones->size_bytes > 0)
    memcpy(zones->data, content, zones->size_bytes);
  return !locked || edge == ACCX_EDGE_NONE || mprotect(zones->readable, bytes, PROT_READ) == 0;
}

bool accx_zones_changed(const accx_zones_t* zones, int64_t* out_byte) {
  const char zone_byte = (char)zones->zone_byte;
  for (const char* at = zones->data + zones->size_bytes; at < zones->end; ++at) {
    if (*at != zone_byte)
      return *out_byte = at - zones->data, true;
  }
  for (const char* at = zones->data; at > zones->readable; --at) {
    if (at[-1] != zone_byte)
      return *out_byte = at - 1 - zones->data, true;
  }
  return false;
}

bool accx_zones_hold(const accx_zones_t* zones, const void* address, int64_t* out_byte) {
  const uintptr_t base = (uintptr_t)zones->base, at = (uintptr_t)address;
  if (base == 0 || at < base || at - base >= zones->reserved_bytes)
    return false;
  *out_byte = (int64_t)(at - base) - (zones->data - zones->base);
  return true;
}
