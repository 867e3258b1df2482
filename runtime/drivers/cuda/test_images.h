/* runtime/drivers/cuda/test_images.h - for tests and fuzzing: a small handmade cubin, a fatbin of
 * it, and a reader that trusts an image as CUDA does. */
#ifndef ACCRT_RUNTIME_DRIVERS_CUDA_TEST_IMAGES_H_
#define ACCRT_RUNTIME_DRIVERS_CUDA_TEST_IMAGES_H_

#include <stdlib.h>
#include <string.h>

#include "runtime/drivers/cuda/image.h"

/* The sections: null, names, code, strings, symbols, and one without bytes in the file. */
enum { TEST_NAMES = 1, TEST_CODE, TEST_STRINGS, TEST_SYMBOLS, TEST_MEMORY, TEST_SECTIONS };

typedef struct test_cubin {
  Elf64_Ehdr header;
  Elf64_Phdr segment;
  Elf64_Sym symbols[2];
  char names[16];
  unsigned char code[32];
  Elf64_Shdr sections[TEST_SECTIONS];
} test_cubin_t;

static inline test_cubin_t test_cubin(uint32_t arch) {
  static const char names[16] = "\0.text.k\0k";
  test_cubin_t cubin;
  memset(&cubin, 0, sizeof cubin);
  memcpy(cubin.names, names, sizeof names);
  Elf64_Ehdr* header = &cubin.header;
  memcpy(header->e_ident, ELFMAG, SELFMAG);
  header->e_ident[EI_CLASS] = ELFCLASS64;
  header->e_ident[EI_DATA] = ELFDATA2LSB;
  header->e_ident[EI_VERSION] = EV_CURRENT;
  header->e_version = EV_CURRENT;
  header->e_ident[EI_OSABI] = 0x41;
  header->e_ident[EI_ABIVERSION] = 8;
  header->e_type = ET_EXEC;
  header->e_machine = 190;
  header->e_flags = arch << 8;
  header->e_ehsize = sizeof *header;
  header->e_phoff = offsetof(test_cubin_t, segment);
  header->e_phentsize = sizeof cubin.segment;
  header->e_phnum = 1;
  header->e_shoff = offsetof(test_cubin_t, sections);
  header->e_shentsize = sizeof cubin.sections[0];
  header->e_shnum = TEST_SECTIONS;
  header->e_shstrndx = TEST_NAMES;
  const Elf64_Shdr names_of = {.sh_type = SHT_STRTAB,
                               .sh_offset = offsetof(test_cubin_t, names),
                               .sh_size = sizeof cubin.names};
  cubin.sections[TEST_NAMES] = cubin.sections[TEST_STRINGS] = names_of;
  cubin.sections[TEST_CODE] = (Elf64_Shdr){.sh_name = 1,
                                           .sh_type = SHT_PROGBITS,
                                           .sh_offset = offsetof(test_cubin_t, code),
                                           .sh_size = sizeof cubin.code,
                                           .sh_link = TEST_SYMBOLS};
  cubin.sections[TEST_SYMBOLS] = (Elf64_Shdr){.sh_type = SHT_SYMTAB,
                                              .sh_offset = offsetof(test_cubin_t, symbols),
                                              .sh_size = sizeof cubin.symbols,
                                              .sh_link = TEST_STRINGS,
                                              .sh_entsize = sizeof cubin.symbols[0]};
  cubin.sections[TEST_MEMORY] =
      (Elf64_Shdr){.sh_type = SHT_NOBITS, .sh_offset = sizeof cubin, .sh_size = 1 << 20};
  cubin.symbols[1].st_name = 9;
  cubin.symbols[1].st_shndx = TEST_CODE;
  cubin.segment = (Elf64_Phdr){.p_type = PT_LOAD,
                               .p_offset = offsetof(test_cubin_t, code),
                               .p_filesz = sizeof cubin.code,
                               .p_memsz = 2 * sizeof cubin.code};
  return cubin;
}

/* Adds an entry to a fatbin that has room for it, and returns the new size. */
static inline size_t test_fatbin_add(unsigned char* fatbin, size_t size, uint16_t kind,
                                     uint32_t arch, uint64_t flags, const void* payload,
                                     size_t payload_bytes) {
  static const unsigned char begin[16] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0};
  const uint32_t header_bytes = 64;
  const uint64_t padded = (payload_bytes + 7) & ~(uint64_t)7;
  const uint32_t compressed = flags != 0 ? (uint32_t)payload_bytes : 0;
  if (size == 0) {
    memcpy(fatbin, begin, sizeof begin);
    size = sizeof begin;
  }
  unsigned char* entry = fatbin + size;
  memset(entry, 0, header_bytes + padded);
  memcpy(entry, &kind, sizeof kind);
  memcpy(entry + 4, &header_bytes, sizeof header_bytes);
  memcpy(entry + 8, &padded, sizeof padded);
  memcpy(entry + 16, &compressed, sizeof compressed);
  memcpy(entry + 28, &arch, sizeof arch);
  memcpy(entry + 40, &flags, sizeof flags);
  if (payload_bytes > 0)
    memcpy(entry + header_bytes, payload, payload_bytes);
  size += header_bytes + padded;
  const uint64_t entries_bytes = size - 16;
  memcpy(fatbin + 8, &entries_bytes, sizeof entries_bytes);
  return size;
}

/* ---- A reader that checks nothing ---- */

static inline uint64_t test_read_bytes(const volatile unsigned char* bytes, uint64_t size) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < size; ++i)
    sum += bytes[i];
  return sum;
}

static inline uint64_t test_read_names(const unsigned char* cubin, const Elf64_Shdr* sections,
                                       const Elf64_Shdr* symbols) {
  const char* strings = (const char*)cubin + sections[symbols->sh_link].sh_offset;
  uint64_t sum = 0;
  for (uint64_t at = 0; at < symbols->sh_size; at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    memcpy(&symbol, cubin + symbols->sh_offset + at, sizeof symbol);
    sum += strlen(strings + symbol.st_name);
  }
  return sum;
}

/* Reads every byte that the headers refer to. */
static inline uint64_t test_read_cubin(const unsigned char* cubin) {
  Elf64_Ehdr header;
  uint64_t sum = 0;
  memcpy(&header, cubin, sizeof header);
  Elf64_Shdr* sections = malloc((size_t)header.e_shnum * sizeof *sections);
  if (sections == NULL)
    abort();
  memcpy(sections, cubin + header.e_shoff, (size_t)header.e_shnum * sizeof *sections);
  const char* names = (const char*)cubin + sections[header.e_shstrndx].sh_offset;
  for (uint32_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr* section = &sections[i];
    if (section->sh_type == SHT_NULL)
      continue;
    sum += strlen(names + section->sh_name);
    if (section->sh_type != SHT_NOBITS && section->sh_size > 0)
      sum += test_read_bytes(cubin + section->sh_offset, 1) +
             test_read_bytes(cubin + section->sh_offset + section->sh_size - 1, 1);
    if (section->sh_type == SHT_SYMTAB)
      sum += test_read_names(cubin, sections, section);
  }
  for (uint32_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    memcpy(&segment, cubin + header.e_phoff + i * sizeof segment, sizeof segment);
    if (segment.p_filesz > 0)
      sum += test_read_bytes(cubin + segment.p_offset + segment.p_filesz - 1, 1);
  }
  free(sections);
  return sum;
}

static inline uint64_t test_read_fatbin(const unsigned char* fatbin) {
  uint64_t sum = 0, size, payload_bytes, flags;
  uint16_t header_bytes, kind;
  uint32_t entry_bytes;
  memcpy(&header_bytes, fatbin + 6, sizeof header_bytes);
  memcpy(&size, fatbin + 8, sizeof size);
  for (uint64_t at = 0; at < size; at += entry_bytes + payload_bytes) {
    const unsigned char* entry = fatbin + header_bytes + at;
    memcpy(&kind, entry, sizeof kind);
    memcpy(&entry_bytes, entry + 4, sizeof entry_bytes);
    memcpy(&payload_bytes, entry + 8, sizeof payload_bytes);
    memcpy(&flags, entry + 40, sizeof flags);
    const unsigned char* payload = entry + entry_bytes;
    sum += test_read_bytes(payload, payload_bytes);
    if ((flags & 0xA000) != 0)
      continue;
    if (kind == 1)
      sum += strlen((const char*)payload);
    if (kind == 2)
      sum += test_read_cubin(payload);
  }
  return sum;
}

/* Checks an image of either kind. If it is accepted, reads it like a reader that trusts it. */
static inline bool test_check_and_read(const unsigned char* image, size_t size, char* out_text) {
  accrt_image_fault_t fault = {""};
  char list[64];
  volatile uint64_t sink = 0;
  const bool fatbin = size >= 4 && memcmp(image, "\x50\xed\x55\xba", 4) == 0;
  const bool good = fatbin ? accrt_cuda_fatbin_check(image, size, &fault)
                           : accrt_cuda_cubin_check(image, size, &fault);
  if (good == (fault.text[0] != '\0'))
    abort();
  if (good && fatbin) {
    accrt_cuda_fatbin_list(image, size, list, sizeof list);
    (void)accrt_cuda_fatbin_fits(image, size, 9, 0);
    (void)accrt_cuda_fatbin_code(image, size, 9, 0);
    sink = test_read_fatbin(image);
  } else if (good) {
    sink = test_read_cubin(image) + accrt_cuda_cubin_arch(image);
  }
  (void)sink;
  if (out_text != NULL)
    memcpy(out_text, fault.text, sizeof fault.text);
  return good;
}

#endif /* ACCRT_RUNTIME_DRIVERS_CUDA_TEST_IMAGES_H_ */
