/* runtime/core/elf_check.c - checks the headers of an ELF file against the file's size. */
#define _GNU_SOURCE
#include "runtime/core/elf_check.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/core/memory.h"

bool accrt_image_fault(accrt_image_fault_t* out_fault, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(out_fault->text, sizeof out_fault->text, format, arguments);
  va_end(arguments);
  return false;
}

/* Checks a table of `count` records at `offset`. A count of 0 means no table. */
static bool check_table(const char* what, uint64_t offset, uint32_t count, uint32_t record_bytes,
                        uint32_t expected_bytes, uint64_t size_bytes,
                        accrt_image_fault_t* out_fault) {
  if (count == 0 || (record_bytes == expected_bytes &&
                     accrt_range_fits(offset, (uint64_t)count * expected_bytes, size_bytes))) {
    return true;
  }
  return accrt_image_fault(out_fault,
                           "%" PRIu32 " %s headers of %" PRIu32 " bytes at %" PRIu64
                           " do not fit %" PRIu64 " bytes",
                           count, what, record_bytes, offset, size_bytes);
}

/* The header, and that its program headers lie inside the file. */
static bool read_header(const void* bytes, uint64_t size_bytes, Elf64_Ehdr* out_header,
                        accrt_image_fault_t* out_fault) {
  if (size_bytes < sizeof *out_header) {
    return accrt_image_fault(out_fault, "%" PRIu64 " bytes are too few for an ELF header",
                             size_bytes);
  }
  memmove(out_header, bytes, sizeof *out_header);
  const unsigned char* ident = out_header->e_ident;
  if (memcmp(ident, ELFMAG, SELFMAG) != 0)
    return accrt_image_fault(out_fault, "it is not an ELF file");
  if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB ||
      ident[EI_VERSION] != EV_CURRENT || out_header->e_ehsize != sizeof *out_header) {
    return accrt_image_fault(out_fault,
                             "class %u, data encoding %u, version %u, header of %u bytes: not a "
                             "64-bit little-endian ELF file",
                             ident[EI_CLASS], ident[EI_DATA], ident[EI_VERSION],
                             out_header->e_ehsize);
  }
  return check_table("program", out_header->e_phoff, out_header->e_phnum, out_header->e_phentsize,
                     sizeof(Elf64_Phdr), size_bytes, out_fault);
}

bool accrt_elf_read_header(const void* bytes, uint64_t size_bytes, Elf64_Ehdr* out_header,
                           accrt_image_fault_t* out_fault) {
  return read_header(bytes, size_bytes, out_header, out_fault) &&
         check_table("section", out_header->e_shoff, out_header->e_shnum, out_header->e_shentsize,
                     sizeof(Elf64_Shdr), size_bytes, out_fault);
}

bool accrt_elf_check_file(int fd, uint64_t size_bytes, accrt_image_fault_t* out_fault) {
  Elf64_Ehdr header = {0};
  Elf64_Phdr segment;
  const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
  (void)!pread(fd, &header, sizeof header, 0); /* what cannot be read stays zero: no ELF file */
  /* The system's loader does not read section headers. */
  if (!read_header(&header, size_bytes, &header, out_fault))
    return false;
  if (header.e_type != ET_DYN)
    return accrt_image_fault(out_fault, "ELF type %u is no shared object", header.e_type);
  if (header.e_machine != ACCRT_ELF_OWN_MACHINE) {
    return accrt_image_fault(out_fault, "it is for ELF machine %u, this machine is %u",
                             header.e_machine, ACCRT_ELF_OWN_MACHINE);
  }
  for (uint32_t i = 0; i < header.e_phnum; ++i) {
    const uint64_t offset = header.e_phoff + i * sizeof segment; /* inside the file: see above */
    if (pread(fd, &segment, sizeof segment, (off_t)offset) != (ssize_t)sizeof segment)
      return accrt_image_fault(out_fault, "its program headers cannot be read");
    /* Of a segment without bytes, linkers may give an offset behind the end; at the start of a page
     * the loader does not read there. */
    const bool is_empty = segment.p_filesz == 0 && segment.p_vaddr % page_bytes == 0;
    if (segment.p_type == PT_LOAD && !is_empty &&
        !accrt_range_fits(segment.p_offset, segment.p_filesz, size_bytes)) {
      return accrt_image_fault(out_fault,
                               "a segment of %" PRIu64 " bytes at %" PRIu64
                               " does not fit its %" PRIu64 " bytes: the file is cut",
                               segment.p_filesz, segment.p_offset, size_bytes);
    }
  }
  return true;
}
