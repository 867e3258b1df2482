/* runtime/drivers/cuda/image.c - checks and reads images of machine code, without calling CUDA.
 * Images come from files. CUDA gets no length and trusts all offsets, so every offset is checked
 * here.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/drivers/cuda/image.h"

#define EM_CUDA_MACHINE 190
/* The architecture's position in e_flags: the low byte up to CUDA 12, the second byte from ABI
 * version 8 on. */
#define SECOND_BYTE_ABI 8

/* ---- Cubins ---- */

typedef struct cubin_reader {
  const unsigned char* bytes;
  uint64_t size_bytes;
  Elf64_Ehdr header;
  uint64_t name_bytes; /* of the table of section names */
  bool has_symbols;
  accrt_image_fault_t* fault;
} cubin_reader_t;

static Elf64_Shdr section_at(const cubin_reader_t* cubin, uint32_t index) {
  Elf64_Shdr section;
  memcpy(&section, cubin->bytes + cubin->header.e_shoff + (uint64_t)index * sizeof section,
         sizeof section);
  return section;
}

static bool check_place(const cubin_reader_t* cubin, const char* what, uint32_t index,
                        uint64_t offset, uint64_t size) {
  return accrt_range_fits(offset, size, cubin->size_bytes) ||
         accrt_image_fault(cubin->fault,
                           "%s %" PRIu32 ": %" PRIu64 " bytes at %" PRIu64 " do not fit %" PRIu64
                           " bytes",
                           what, index, size, offset, cubin->size_bytes);
}

/* True for a section with bytes in the file; SHT_NOBITS has none. */
static bool has_bytes(const Elf64_Shdr* section) {
  return section->sh_type != SHT_NULL && section->sh_type != SHT_NOBITS;
}

/* A reader reads names up to their NUL, so the table must end with one. */
static bool check_strings(const cubin_reader_t* cubin, uint32_t index, const Elf64_Shdr* section) {
  return (section->sh_size > 0 &&
          cubin->bytes[section->sh_offset + section->sh_size - 1] == '\0') ||
         accrt_image_fault(cubin->fault,
                           "section %" PRIu32 ": %" PRIu64 " bytes of names without NUL at the end",
                           index, (uint64_t)section->sh_size);
}

/* Only one symbol table is allowed, so that the time is linear in the size. */
static bool check_symbols(cubin_reader_t* cubin, uint32_t index, const Elf64_Shdr* section) {
  const Elf64_Shdr names = section_at(cubin, section->sh_link);
  if (cubin->has_symbols || section->sh_entsize != sizeof(Elf64_Sym) ||
      section->sh_size % sizeof(Elf64_Sym) != 0 || names.sh_type != SHT_STRTAB) {
    return accrt_image_fault(cubin->fault,
                             "section %" PRIu32 ": %" PRIu64 " bytes of symbols of %" PRIu64
                             " bytes with names in section %" PRIu32 " of type %" PRIu32 "%s",
                             index, (uint64_t)section->sh_size, (uint64_t)section->sh_entsize,
                             section->sh_link, names.sh_type,
                             cubin->has_symbols ? ", a second table" : "");
  }
  cubin->has_symbols = true;
  for (uint64_t at = 0; at < section->sh_size; at += sizeof(Elf64_Sym)) {
    uint32_t name;
    memcpy(&name, cubin->bytes + section->sh_offset + at + offsetof(Elf64_Sym, st_name),
           sizeof name);
    if (name >= names.sh_size) {
      return accrt_image_fault(cubin->fault,
                               "symbol %" PRIu64 ": its name at %" PRIu32 " of %" PRIu64 " bytes",
                               at / sizeof(Elf64_Sym), name, (uint64_t)names.sh_size);
    }
  }
  return true;
}

static bool check_section(cubin_reader_t* cubin, uint32_t index) {
  const Elf64_Shdr section = section_at(cubin, index);
  if (section.sh_type == SHT_NULL)
    return true;
  if (section.sh_name >= cubin->name_bytes || section.sh_link >= cubin->header.e_shnum) {
    return accrt_image_fault(cubin->fault,
                             "section %" PRIu32 ": its name at %" PRIu32 " of %" PRIu64
                             " bytes, linked to section %" PRIu32 " of %u",
                             index, section.sh_name, cubin->name_bytes, section.sh_link,
                             cubin->header.e_shnum);
  }
  if (!has_bytes(&section))
    return true;
  if (!check_place(cubin, "section", index, section.sh_offset, section.sh_size))
    return false;
  if (section.sh_type == SHT_STRTAB)
    return check_strings(cubin, index, &section);
  return section.sh_type != SHT_SYMTAB || check_symbols(cubin, index, &section);
}

static bool check_segment(const cubin_reader_t* cubin, uint32_t index) {
  Elf64_Phdr segment;
  memcpy(&segment, cubin->bytes + cubin->header.e_phoff + (uint64_t)index * sizeof segment,
         sizeof segment);
  if (segment.p_filesz > segment.p_memsz) {
    return accrt_image_fault(cubin->fault,
                             "segment %" PRIu32 ": %" PRIu64 " bytes for %" PRIu64 " of memory",
                             index, (uint64_t)segment.p_filesz, (uint64_t)segment.p_memsz);
  }
  return check_place(cubin, "segment", index, segment.p_offset, segment.p_filesz);
}

static bool check_names(cubin_reader_t* cubin) {
  const Elf64_Ehdr* header = &cubin->header;
  if (header->e_shstrndx < header->e_shnum) {
    const Elf64_Shdr names = section_at(cubin, header->e_shstrndx);
    cubin->name_bytes = names.sh_size;
    if (names.sh_type == SHT_STRTAB)
      return true;
  }
  return accrt_image_fault(cubin->fault, "section %u of %u is no table of names",
                           header->e_shstrndx, header->e_shnum);
}

bool accrt_cuda_cubin_check(const void* data, uint64_t size_bytes, accrt_image_fault_t* out_fault) {
  cubin_reader_t cubin = {.bytes = data, .size_bytes = size_bytes, .fault = out_fault};
  if (!accrt_elf_read_header(data, size_bytes, &cubin.header, out_fault))
    return false;
  /* e_version is the compiler's version up to CUDA 12, and 1 from CUDA 13 on. */
  if (cubin.header.e_machine != EM_CUDA_MACHINE) {
    return accrt_image_fault(out_fault, "ELF machine %u: not a cubin (%u)", cubin.header.e_machine,
                             EM_CUDA_MACHINE);
  }
  bool good = check_names(&cubin);
  for (uint32_t i = 0; good && i < cubin.header.e_shnum; ++i)
    good = check_section(&cubin, i);
  for (uint32_t i = 0; good && i < cubin.header.e_phnum; ++i)
    good = check_segment(&cubin, i);
  return good;
}

uint32_t accrt_cuda_cubin_arch(const void* data) {
  Elf64_Ehdr header;
  memcpy(&header, data, sizeof header);
  const uint32_t flags = header.e_flags;
  return header.e_ident[EI_ABIVERSION] >= SECOND_BYTE_ABI ? flags >> 8 & 0xFFu : flags & 0xFFu;
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

/* ---- Fatbins: a header, then entries, each with its own header and its own size ----
 *
 * NVIDIA documents none of it; these are the fields that nvcc's and fatbinary's files have, from
 * CUDA 11 to 13. */

#define FATBIN_MAGIC 0xBA55ED50u
#define FATBIN_VERSION 1u
#define FATBIN_HEADER_BYTES 16u
#define ENTRY_PTX 1u
#define ENTRY_ELF 2u
#define ENTRY_BYTES 64u
#define ENTRY_COMPRESSED 0xA000u /* LZ4, zstd */
/* Limit of an entry's decompressed size. */
#define MAX_DECOMPRESSED_BYTES (UINT64_C(1) << 32)

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

/* Reads the entries from `at` to `end`, which is inside the image. */
typedef struct fatbin_reader {
  const unsigned char* bytes;
  uint64_t at;
  uint64_t end;
} fatbin_reader_t;

typedef struct fatbin_entry {
  uint32_t kind;
  uint32_t arch;
  bool is_compressed;
  uint64_t at; /* offset in the image */
  const unsigned char* header;
  const unsigned char* payload;
  uint64_t payload_bytes;
} fatbin_entry_t;

static bool open_fatbin(const void* data, uint64_t size_bytes, fatbin_reader_t* out_reader,
                        accrt_image_fault_t* out_fault) {
  const unsigned char* bytes = data;
  if (size_bytes < FATBIN_HEADER_BYTES || read_u32(bytes) != FATBIN_MAGIC) {
    return accrt_image_fault(out_fault,
                             "%" PRIu64 " bytes that do not begin with 0x%08x: not a fatbin",
                             size_bytes, FATBIN_MAGIC);
  }
  const uint64_t header_bytes = read_u16(bytes + 6), entry_bytes = read_u64(bytes + 8);
  if (read_u16(bytes + 4) != FATBIN_VERSION || header_bytes < FATBIN_HEADER_BYTES ||
      header_bytes > size_bytes || entry_bytes == 0 ||
      !accrt_range_fits(header_bytes, entry_bytes, size_bytes)) {
    return accrt_image_fault(out_fault,
                             "fatbin of version %u: a header of %" PRIu64 " and entries of %" PRIu64
                             " bytes do not fit %" PRIu64 " bytes",
                             read_u16(bytes + 4), header_bytes, entry_bytes, size_bytes);
  }
  *out_reader = (fatbin_reader_t){bytes, header_bytes, header_bytes + entry_bytes};
  return true;
}

/* Reads the entry at reader->at and advances to the next one. */
static bool next_entry(fatbin_reader_t* reader, fatbin_entry_t* out_entry,
                       accrt_image_fault_t* out_fault) {
  const uint64_t left = reader->end - reader->at;
  if (left < ENTRY_BYTES)
    return accrt_image_fault(out_fault, "fatbin entry at %" PRIu64 ": %" PRIu64 " bytes are left",
                             reader->at, left);
  const unsigned char* header = reader->bytes + reader->at;
  const uint64_t header_bytes = read_u32(header + 4), payload_bytes = read_u64(header + 8);
  if (header_bytes < ENTRY_BYTES || !accrt_range_fits(header_bytes, payload_bytes, left)) {
    return accrt_image_fault(out_fault,
                             "fatbin entry at %" PRIu64 ": a header of %" PRIu64 " and %" PRIu64
                             " bytes do not fit %" PRIu64 " bytes",
                             reader->at, header_bytes, payload_bytes, left);
  }
  *out_entry = (fatbin_entry_t){.kind = read_u16(header),
                                .arch = read_u32(header + 28),
                                .is_compressed = (read_u64(header + 40) & ENTRY_COMPRESSED) != 0,
                                .at = reader->at,
                                .header = header,
                                .payload = header + header_bytes,
                                .payload_bytes = payload_bytes};
  reader->at += header_bytes + payload_bytes;
  return true;
}

/* Checks the parts that CUDA reads: names, options, and uncompressed contents. */
static bool check_entry(const fatbin_entry_t* entry, accrt_image_fault_t* out_fault) {
  const unsigned char* header = entry->header;
  const uint64_t size = (uint64_t)(entry->payload - header) + entry->payload_bytes;
  const uint32_t options = read_u32(header + 20), name = read_u32(header + 32),
                 name_bytes = read_u32(header + 36);
  if (options >= size || !accrt_range_fits(name, name_bytes, size)) {
    return accrt_image_fault(out_fault,
                             "fatbin entry at %" PRIu64 ": options at %" PRIu32 ", %" PRIu32
                             " bytes of a name at %" PRIu32 ", of %" PRIu64 " bytes",
                             entry->at, options, name_bytes, name, size);
  }
  if (entry->is_compressed) {
    const uint32_t compressed = read_u32(header + 16);
    const uint64_t whole = read_u64(header + 56);
    return (compressed <= entry->payload_bytes && whole <= MAX_DECOMPRESSED_BYTES) ||
           accrt_image_fault(out_fault,
                             "fatbin entry at %" PRIu64 ": %" PRIu32 " of %" PRIu64
                             " bytes, decompressed %" PRIu64,
                             entry->at, compressed, entry->payload_bytes, whole);
  }
  if (entry->kind == ENTRY_PTX) {
    return (entry->payload_bytes > 0 && memchr(entry->payload, 0, entry->payload_bytes) != NULL) ||
           accrt_image_fault(out_fault,
                             "fatbin entry at %" PRIu64 ": %" PRIu64 " bytes of PTX without NUL",
                             entry->at, entry->payload_bytes);
  }
  accrt_image_fault_t inner;
  return entry->kind != ENTRY_ELF ||
         accrt_cuda_cubin_check(entry->payload, entry->payload_bytes, &inner) ||
         accrt_image_fault(out_fault, "fatbin entry at %" PRIu64 ": %.150s", entry->at, inner.text);
}

bool accrt_cuda_fatbin_check(const void* data, uint64_t size_bytes,
                             accrt_image_fault_t* out_fault) {
  fatbin_reader_t reader;
  fatbin_entry_t entry;
  if (!open_fatbin(data, size_bytes, &reader, out_fault))
    return false;
  while (reader.at < reader.end) {
    if (!next_entry(&reader, &entry, out_fault) || !check_entry(&entry, out_fault))
      return false;
  }
  return true;
}

bool accrt_cuda_fatbin_fits(const void* data, uint64_t size_bytes, int major, int minor) {
  fatbin_reader_t reader;
  fatbin_entry_t entry;
  accrt_image_fault_t fault;
  if (!open_fatbin(data, size_bytes, &reader, &fault))
    return false;
  while (reader.at < reader.end && next_entry(&reader, &entry, &fault)) {
    if (entry.kind == ENTRY_ELF ? accrt_cuda_arch_fits(entry.arch, major, minor)
                                : entry.kind != ENTRY_PTX || /* of an unknown kind */
                                      (int)entry.arch <= major * 10 + minor) {
      return true;
    }
  }
  return false;
}

const void* accrt_cuda_fatbin_code(const void* data, uint64_t size_bytes, int major, int minor) {
  fatbin_reader_t reader;
  fatbin_entry_t entry;
  accrt_image_fault_t fault;
  const void* best = NULL;
  uint32_t best_arch = 0;
  bool is_code = true, fits = false;
  if (!open_fatbin(data, size_bytes, &reader, &fault))
    return NULL;
  while (reader.at < reader.end && next_entry(&reader, &entry, &fault)) {
    if (entry.kind != ENTRY_ELF) {
      is_code = false;
    } else if (accrt_cuda_arch_fits(entry.arch, major, minor)) {
      fits = true;
      if (!entry.is_compressed && entry.arch >= best_arch) {
        best = entry.payload;
        best_arch = entry.arch;
      }
    }
  }
  return is_code && fits ? data : best;
}

static size_t append(char* text, size_t capacity, size_t length, const char* kind, uint32_t arch) {
  const int written =
      snprintf(text + length, capacity - length, "%s%s_%u", length > 0 ? ", " : "", kind, arch);
  const size_t longer = length + (written > 0 ? (size_t)written : 0);
  return longer < capacity ? longer : capacity - 1;
}

void accrt_cuda_fatbin_list(const void* data, uint64_t size_bytes, char* out_text,
                            size_t capacity) {
  fatbin_reader_t reader;
  fatbin_entry_t entry;
  accrt_image_fault_t fault;
  size_t length = 0;
  out_text[0] = '\0';
  if (!open_fatbin(data, size_bytes, &reader, &fault))
    return;
  while (length + 1 < capacity && reader.at < reader.end && next_entry(&reader, &entry, &fault)) {
    if (entry.kind == ENTRY_PTX || entry.kind == ENTRY_ELF) {
      length = append(out_text, capacity, length, entry.kind == ENTRY_PTX ? "compute" : "sm",
                      entry.arch);
    }
  }
}
