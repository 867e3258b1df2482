/* runtime/drivers/cuda/image.c - reading what an image of machine code says of itself. Nothing of CUDA is called; every offset is
 * checked, because images come from files.
 */
#include <elf.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/drivers/cuda/image.h"

#define EM_CUDA_MACHINE 190
/* Where e_flags has the architecture: up to CUDA 12 in the low byte, from ABI version 8 on in the second. */
#define SECOND_BYTE_ABI 8

bool accrt_cuda_cubin_arch(const void* data, uint64_t size_bytes, uint32_t* out_arch) {
  Elf64_Ehdr header;
  *out_arch = 0;
  if (size_bytes < sizeof header)
    return false;
  memcpy(&header, data, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_machine != EM_CUDA_MACHINE) {
    return false;
  }
  const uint32_t flags = header.e_flags;
  *out_arch = header.e_ident[EI_ABIVERSION] >= SECOND_BYTE_ABI ? flags >> 8 & 0xFFu : flags & 0xFFu;
  return *out_arch != 0;
}

bool accrt_cuda_arch_fits(uint32_t arch, int major, int minor) {
  return (int)(arch / 10) == major && (int)(arch % 10) <= minor;
}

bool accrt_cuda_ptx_arch(const char* text, uint64_t size_bytes, uint32_t* out_arch) {
  static const char directive[] = ".target";
  const size_t length = sizeof directive - 1;
  *out_arch = 0;
  uint64_t at = 0;
  while (at + length < size_bytes && memcmp(text + at, directive, length) != 0)
    ++at;
  at += length;
  while (at < size_bytes && (text[at] == ' ' || text[at] == '\t'))
    ++at;
  if (size_bytes < 4 || at > size_bytes - 4 || memcmp(text + at, "sm_", 3) != 0)
    return false;
  for (at += 3; at < size_bytes && text[at] >= '0' && text[at] <= '9' && *out_arch < 1000; ++at)
    *out_arch = *out_arch * 10 + (uint32_t)(text[at] - '0');
  return *out_arch != 0;
}

/* ---- Fatbins: a header, then entries, each with its own header and its own size ---- */

#define FATBIN_MAGIC 0xBA55ED50u
#define ENTRY_PTX 1u
#define ENTRY_ELF 2u
#define MIN_ENTRY_BYTES 32u

static uint16_t read_u16(const unsigned char* bytes) {
  uint16_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}
static uint32_t read_u32(const unsigned char* bytes) {
  uint32_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}
static uint64_t read_u64(const unsigned char* bytes) {
  uint64_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

/* One entry's header. */
typedef struct fatbin_entry {
  uint32_t kind;
  uint32_t arch;
} fatbin_entry_t;

static uint64_t first_entry(const unsigned char* bytes, uint64_t size_bytes) {
  return size_bytes < 16 || read_u32(bytes) != FATBIN_MAGIC ? size_bytes : read_u16(bytes + 6);
}

/* Reads the entry at *at and steps behind it; false at the end, or where sizes make no sense. */
static bool next_entry(const unsigned char* bytes, uint64_t size_bytes, uint64_t* at,
                       fatbin_entry_t* out_entry) {
  if (!accrt_range_fits(*at, MIN_ENTRY_BYTES, size_bytes))
    return false;
  const unsigned char* header = bytes + *at;
  const uint64_t header_bytes = read_u32(header + 4);
  const uint64_t payload_bytes = read_u64(header + 8);
  out_entry->kind = read_u16(header);
  out_entry->arch = read_u32(header + 28);
  uint64_t end;
  if (header_bytes < MIN_ENTRY_BYTES || !accrt_add_u64(*at, header_bytes, &end) ||
      !accrt_add_u64(end, payload_bytes, &end)) {
    end = size_bytes;
  }
  *at = end;
  return true;
}

bool accrt_cuda_fatbin_fits(const void* data, uint64_t size_bytes, int major, int minor) {
  fatbin_entry_t entry;
  uint64_t at = first_entry(data, size_bytes);
  bool any = false;
  while (next_entry(data, size_bytes, &at, &entry)) {
    if (entry.kind != ENTRY_PTX && entry.kind != ENTRY_ELF)
      return true; /* of a kind that is not known here */
    any = true;
    if (entry.kind == ENTRY_ELF ? accrt_cuda_arch_fits(entry.arch, major, minor)
                                : (int)entry.arch <= major * 10 + minor) {
      return true;
    }
  }
  return !any;
}

static size_t append(char* text, size_t capacity, size_t length, const char* kind, uint32_t arch) {
  const int written =
      snprintf(text + length, capacity - length, "%s%s_%u", length > 0 ? ", " : "", kind, arch);
  const size_t longer = length + (written > 0 ? (size_t)written : 0);
  return longer < capacity ? longer : capacity - 1;
}

void accrt_cuda_fatbin_list(const void* data, uint64_t size_bytes, char* out_text,
                            size_t capacity) {
  fatbin_entry_t entry;
  uint64_t at = first_entry(data, size_bytes);
  size_t length = 0;
  out_text[0] = '\0';
  while (length + 1 < capacity && next_entry(data, size_bytes, &at, &entry)) {
    if (entry.kind == ENTRY_PTX || entry.kind == ENTRY_ELF) {
      length = append(out_text, capacity, length, entry.kind == ENTRY_PTX ? "compute" : "sm",
                      entry.arch);
    }
  }
}
