/* runtime/core/elf_image.c - validates, maps, relocates and protects freestanding ELF images
 * (docs/kernel-abi.md lists the rules; docs/decisions/0001-executable-memory.md says why the
 * mapping is anonymous). */
#define _GNU_SOURCE
#include "runtime/core/elf_image.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/core/elf_check.h"
#include "runtime/core/error.h"
#include "runtime/core/memory.h"

#define MAX_PROGRAM_HEADERS 32u
#define MAX_SEGMENTS 16u
#define MAX_DYNAMIC_ENTRIES 256u
#define MAX_SYMBOLS (1u << 20)
#define MAX_ALIGNMENT (UINT64_C(1) << 21)

#if defined(__x86_64__)
#define OWN_RELATIVE R_X86_64_RELATIVE
#define OWN_ABSOLUTE R_X86_64_64
#define OWN_GLOB_DAT R_X86_64_GLOB_DAT
#define OWN_JUMP_SLOT R_X86_64_JUMP_SLOT
#elif defined(__aarch64__)
#define OWN_RELATIVE R_AARCH64_RELATIVE
#define OWN_ABSOLUTE R_AARCH64_ABS64
#define OWN_GLOB_DAT R_AARCH64_GLOB_DAT
#define OWN_JUMP_SLOT R_AARCH64_JUMP_SLOT
#else
#error "freestanding images: the machine's relocations are not known here"
#endif

/* The tables that a dynamic linker would use; addresses within the image. */
typedef struct dynamic {
  uint64_t symbols, strings, strings_size, hash, gnu_hash;
  uint64_t rela, rela_size, jump_rela, jump_rela_size;
  bool has_symbols, has_strings, has_hash, has_gnu_hash;
} dynamic_t;

typedef struct loader {
  const unsigned char* bytes;
  size_t size_bytes;
  const char* name;
  Elf64_Ehdr header;
  Elf64_Phdr segments[MAX_SEGMENTS]; /* PT_LOAD, ascending */
  uint32_t segment_count;
  Elf64_Phdr dynamic_segment;
  Elf64_Phdr relro;
  bool has_dynamic;
  bool has_relro;
  uint64_t alignment;
  size_t page;
  accrt_elf_image_t image;
  dynamic_t dynamic;
} loader_t;

#define REJECT(loader, ...) reject((loader), __LINE__, __VA_ARGS__)
static accrt_status_t reject(const loader_t* loader, int line, const char* format, ...)
    ACCRT_PRINTF(3, 4);
static accrt_status_t reject(const loader_t* loader, int line, const char* format, ...) {
  char detail[300];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(detail, sizeof detail, format, arguments);
  va_end(arguments);
  return accrt_error_record(ACCRT_ERROR_INVALID_FORMAT, accrt_error_operation(), __FILE__,
                            (uint32_t)line, "image '%.80s': %s", loader->name, detail);
}

/* ---- Headers ---- */

static accrt_status_t read_header(loader_t* loader) {
  const Elf64_Ehdr* header = &loader->header;
  accrt_image_fault_t fault;
  if (!accrt_elf_read_header(loader->bytes, loader->size_bytes, &loader->header, &fault))
    return REJECT(loader, "%s", fault.text);
  if (header->e_machine != ACCRT_ELF_OWN_MACHINE) {
    return ACCRT_FAIL(UNSUPPORTED, "image '%.80s': it is for ELF machine %u, this machine is %u",
                      loader->name, header->e_machine, ACCRT_ELF_OWN_MACHINE);
  }
  if (header->e_type != ET_DYN)
    return REJECT(loader, "its type is %u, not ET_DYN (link it with -shared)", header->e_type);
  if (header->e_version != EV_CURRENT || header->e_phnum == 0 ||
      header->e_phnum > MAX_PROGRAM_HEADERS) {
    return REJECT(loader, "version %" PRIu32 ", %u program headers: there are 1 to %u",
                  header->e_version, header->e_phnum, MAX_PROGRAM_HEADERS);
  }
  return ACCRT_OK;
}

static accrt_status_t add_segment(loader_t* loader, const Elf64_Phdr* segment) {
  if (loader->segment_count == MAX_SEGMENTS)
    return REJECT(loader, "more than %u segments to load", MAX_SEGMENTS);
  if (!accrt_range_fits(segment->p_offset, segment->p_filesz, loader->size_bytes) ||
      segment->p_filesz > segment->p_memsz) {
    return REJECT(loader,
                  "a segment takes %" PRIu64 " bytes at %" PRIu64 " of %zu for %" PRIu64
                  " bytes of memory",
                  (uint64_t)segment->p_filesz, (uint64_t)segment->p_offset, loader->size_bytes,
                  (uint64_t)segment->p_memsz);
  }
  if (!accrt_range_fits(segment->p_vaddr, segment->p_memsz, ACCRT_ELF_MAX_SPAN_BYTES)) {
    return REJECT(loader,
                  "a segment of %" PRIu64 " bytes at address 0x%" PRIx64 "; the limit is %" PRIu64,
                  (uint64_t)segment->p_memsz, (uint64_t)segment->p_vaddr, ACCRT_ELF_MAX_SPAN_BYTES);
  }
  if ((segment->p_flags & (PF_W | PF_X)) == (PF_W | PF_X)) {
    return REJECT(loader, "the segment at 0x%" PRIx64 " is writable and executable",
                  (uint64_t)segment->p_vaddr);
  }
  if (segment->p_align > 1 &&
      (!accrt_is_power_of_two(segment->p_align) || segment->p_align > MAX_ALIGNMENT)) {
    return REJECT(loader, "the segment at 0x%" PRIx64 " is aligned to %" PRIu64,
                  (uint64_t)segment->p_vaddr, (uint64_t)segment->p_align);
  }
  if (segment->p_memsz == 0)
    return ACCRT_OK;
  if ((segment->p_flags & PF_R) == 0) {
    return REJECT(loader, "the segment at 0x%" PRIx64 " is not readable",
                  (uint64_t)segment->p_vaddr);
  }
  if (loader->segment_count > 0) {
    const Elf64_Phdr* before = &loader->segments[loader->segment_count - 1];
    const uint64_t end = before->p_vaddr + before->p_memsz + loader->page - 1;
    if (segment->p_vaddr / loader->page < end / loader->page) {
      return REJECT(loader,
                    "the segment at 0x%" PRIx64
                    " shares a page with the one before it, or comes before it",
                    (uint64_t)segment->p_vaddr);
    }
  }
  if (segment->p_align > loader->alignment)
    loader->alignment = segment->p_align;
  loader->segments[loader->segment_count++] = *segment;
  return ACCRT_OK;
}

static accrt_status_t read_program_header(loader_t* loader, const Elf64_Phdr* segment) {
  switch (segment->p_type) {
  case PT_LOAD:
    return add_segment(loader, segment);
  case PT_INTERP:
    return REJECT(loader, "it names a program interpreter");
  case PT_TLS:
    return REJECT(loader, "it has thread-local storage");
  case PT_GNU_STACK:
    return (segment->p_flags & PF_X) == 0 ? ACCRT_OK
                                          : REJECT(loader, "it asks for an executable stack");
  case PT_DYNAMIC:
    if (loader->has_dynamic)
      return REJECT(loader, "it has two dynamic segments");
    loader->has_dynamic = true;
    loader->dynamic_segment = *segment;
    return ACCRT_OK;
  case PT_GNU_RELRO:
    loader->has_relro = true;
    loader->relro = *segment;
    return ACCRT_OK;
  default:
    return ACCRT_OK;
  }
}

static accrt_status_t read_program_headers(loader_t* loader) {
  for (uint32_t i = 0; i < loader->header.e_phnum; ++i) {
    Elf64_Phdr segment;
    memcpy(&segment, loader->bytes + loader->header.e_phoff + i * sizeof segment, sizeof segment);
    ACCRT_TRY(read_program_header(loader, &segment));
  }
  if (loader->segment_count == 0)
    return REJECT(loader, "it has nothing to load");
  if (!loader->has_dynamic)
    return REJECT(loader, "it has no dynamic segment");
  return ACCRT_OK;
}

/* ---- Reading the image by its own addresses, from the file ---- */

/* The segment that contains [address, address + size), or NULL. */
static const Elf64_Phdr* segment_of(const loader_t* loader, uint64_t address, uint64_t size_bytes) {
  for (uint32_t i = 0; i < loader->segment_count; ++i) {
    const Elf64_Phdr* segment = &loader->segments[i];
    if (address >= segment->p_vaddr &&
        accrt_range_fits(address - segment->p_vaddr, size_bytes, segment->p_memsz)) {
      return segment;
    }
  }
  return NULL;
}

/* The bytes of the file for an address, or NULL. */
static const unsigned char* file_bytes(const loader_t* loader, uint64_t address,
                                       uint64_t size_bytes) {
  const Elf64_Phdr* segment = segment_of(loader, address, size_bytes);
  if (segment == NULL ||
      !accrt_range_fits(address - segment->p_vaddr, size_bytes, segment->p_filesz))
    return NULL;
  return loader->bytes + segment->p_offset + (address - segment->p_vaddr);
}

static bool read_u32(const loader_t* loader, uint64_t address, uint32_t* out) {
  const unsigned char* bytes = file_bytes(loader, address, sizeof *out);
  if (bytes != NULL)
    memcpy(out, bytes, sizeof *out);
  return bytes != NULL;
}

/* ---- Dynamic section ---- */

static const char* forbidden_tag(int64_t tag) {
  switch (tag) {
  case DT_NEEDED:
    return "it needs another library";
  case DT_INIT:
  case DT_INIT_ARRAY:
  case DT_PREINIT_ARRAY:
    return "it has constructors";
  case DT_FINI:
  case DT_FINI_ARRAY:
    return "it has destructors";
  case DT_TEXTREL:
    return "it has text relocations";
  case DT_RPATH:
  case DT_RUNPATH:
  case DT_FILTER:
  case DT_AUXILIARY:
    return "it names places of other libraries";
  case DT_REL:
  case DT_RELSZ:
  case 36: /* DT_RELR */
    return "it has relocations of a kind other than RELA";
  default:
    return NULL;
  }
}

static accrt_status_t read_tag(loader_t* loader, const Elf64_Dyn* entry) {
  dynamic_t* dynamic = &loader->dynamic;
  const uint64_t value = entry->d_un.d_val;
  const char* why = forbidden_tag(entry->d_tag);
  if (why != NULL)
    return REJECT(loader, "%s (dynamic tag %" PRId64 ")", why, (int64_t)entry->d_tag);
  switch (entry->d_tag) {
  case DT_SYMTAB:
    dynamic->symbols = value;
    dynamic->has_symbols = true;
    break;
  case DT_STRTAB:
    dynamic->strings = value;
    dynamic->has_strings = true;
    break;
  case DT_STRSZ:
    dynamic->strings_size = value;
    break;
  case DT_HASH:
    dynamic->hash = value;
    dynamic->has_hash = true;
    break;
  case DT_GNU_HASH:
    dynamic->gnu_hash = value;
    dynamic->has_gnu_hash = true;
    break;
  case DT_RELA:
    dynamic->rela = value;
    break;
  case DT_RELASZ:
    dynamic->rela_size = value;
    break;
  case DT_JMPREL:
    dynamic->jump_rela = value;
    break;
  case DT_PLTRELSZ:
    dynamic->jump_rela_size = value;
    break;
  case DT_SYMENT:
    return value == sizeof(Elf64_Sym) ? ACCRT_OK
                                      : REJECT(loader, "its symbols have %" PRIu64 " bytes", value);
  case DT_RELAENT:
    return value == sizeof(Elf64_Rela)
               ? ACCRT_OK
               : REJECT(loader, "its relocations have %" PRIu64 " bytes", value);
  case DT_PLTREL:
    return value == DT_RELA ? ACCRT_OK
                            : REJECT(loader, "its jump relocations are of kind %" PRIu64, value);
  case DT_FLAGS:
    if ((value & (DF_TEXTREL | DF_STATIC_TLS)) == 0)
      return ACCRT_OK;
    return REJECT(loader, "it has text relocations or thread-local storage (flags 0x%" PRIx64 ")",
                  value);
  default:
    break;
  }
  return ACCRT_OK;
}

static accrt_status_t read_dynamic(loader_t* loader) {
  const Elf64_Phdr* segment = &loader->dynamic_segment;
  const uint64_t count = segment->p_filesz / sizeof(Elf64_Dyn);
  const unsigned char* bytes = file_bytes(loader, segment->p_vaddr, segment->p_filesz);
  if (bytes == NULL || count == 0 || count > MAX_DYNAMIC_ENTRIES) {
    return REJECT(loader,
                  "its dynamic segment of %" PRIu64 " bytes at 0x%" PRIx64
                  " is not part of what is loaded",
                  (uint64_t)segment->p_filesz, (uint64_t)segment->p_vaddr);
  }
  for (uint64_t i = 0; i < count; ++i) {
    Elf64_Dyn entry;
    memcpy(&entry, bytes + i * sizeof entry, sizeof entry);
    if (entry.d_tag == DT_NULL)
      break;
    ACCRT_TRY(read_tag(loader, &entry));
  }
  if (loader->dynamic.has_symbols && loader->dynamic.has_strings)
    return ACCRT_OK;
  return REJECT(loader, "it has no dynamic symbols");
}

/* ---- Symbols ---- */

/* The highest index in the GNU hash table, plus one. Its chains end with an odd word. */
static bool count_gnu_symbols(const loader_t* loader, uint32_t* out_count) {
  const uint64_t table = loader->dynamic.gnu_hash;
  uint32_t buckets, first, bloom_words;
  if (!read_u32(loader, table, &buckets) || !read_u32(loader, table + 4, &first) ||
      !read_u32(loader, table + 8, &bloom_words) || buckets > MAX_SYMBOLS ||
      bloom_words > MAX_SYMBOLS) {
    return false;
  }
  const uint64_t bucket_table = table + 16 + (uint64_t)bloom_words * 8;
  const uint64_t chains = bucket_table + (uint64_t)buckets * 4;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; ++i) {
    uint32_t start;
    if (!read_u32(loader, bucket_table + (uint64_t)i * 4, &start))
      return false;
    if (start > last)
      last = start;
  }
  *out_count = first;
  if (last < first)
    return first <= MAX_SYMBOLS; /* no symbol is hashed */
  for (uint32_t word = 0; (word & 1) == 0; ++last) {
    if (last >= MAX_SYMBOLS || !read_u32(loader, chains + (uint64_t)(last - first) * 4, &word))
      return false;
  }
  *out_count = last;
  return true;
}

static accrt_status_t check_symbol(const loader_t* loader, const unsigned char* strings,
                                   const Elf64_Sym* symbol, uint32_t index) {
  const dynamic_t* dynamic = &loader->dynamic;
  if (symbol->st_name >= dynamic->strings_size)
    return REJECT(loader, "dynamic symbol %" PRIu32 " has no name", index);
  const char* name = (const char*)strings + symbol->st_name;
  const uint32_t type = ELF64_ST_TYPE(symbol->st_info);
  if (symbol->st_shndx == SHN_UNDEF)
    return REJECT(loader, "symbol '%.100s' is undefined", name);
  if (type == STT_TLS)
    return REJECT(loader, "symbol '%.100s' is thread-local", name);
  if (type == STT_GNU_IFUNC)
    return REJECT(loader, "symbol '%.100s' is an indirect function", name);
  if (symbol->st_shndx == SHN_ABS || segment_of(loader, symbol->st_value, symbol->st_size) != NULL)
    return ACCRT_OK;
  /* Linkers define marks at the very end of a segment (_end, __bss_start). */
  const Elf64_Phdr* last = &loader->segments[loader->segment_count - 1];
  if (symbol->st_size == 0 && symbol->st_value <= last->p_vaddr + last->p_memsz)
    return ACCRT_OK;
  return REJECT(loader, "symbol '%.100s' of %" PRIu64 " bytes at 0x%" PRIx64 " lies outside it",
                name, (uint64_t)symbol->st_size, (uint64_t)symbol->st_value);
}

static accrt_status_t read_symbols(loader_t* loader) {
  const dynamic_t* dynamic = &loader->dynamic;
  uint32_t count = 0;
  bool counted = false;
  if (dynamic->has_hash) {
    counted = read_u32(loader, dynamic->hash + 4, &count);
  } else if (dynamic->has_gnu_hash) {
    counted = count_gnu_symbols(loader, &count);
  }
  const unsigned char* symbols =
      counted && count > 0 && count <= MAX_SYMBOLS
          ? file_bytes(loader, dynamic->symbols, (uint64_t)count * sizeof(Elf64_Sym))
          : NULL;
  const unsigned char* strings = file_bytes(loader, dynamic->strings, dynamic->strings_size);
  if (symbols == NULL || strings == NULL || dynamic->strings_size == 0 ||
      strings[dynamic->strings_size - 1] != '\0') {
    return REJECT(loader, "its dynamic symbols, their names or their hash table lie outside it");
  }
  /* These tables are read again later, so relocations may not change them. */
  if (((segment_of(loader, dynamic->symbols, 1)->p_flags |
        segment_of(loader, dynamic->strings, 1)->p_flags) &
       PF_W) != 0) {
    return REJECT(loader, "its dynamic symbols are in a writable segment");
  }
  for (uint32_t i = 1; i < count; ++i) {
    Elf64_Sym symbol;
    memcpy(&symbol, symbols + i * sizeof symbol, sizeof symbol);
    ACCRT_TRY(check_symbol(loader, strings, &symbol, i));
  }
  loader->image.symbols = dynamic->symbols;
  loader->image.strings = dynamic->strings;
  loader->image.strings_size_bytes = dynamic->strings_size;
  loader->image.symbol_count = count;
  return ACCRT_OK;
}

/* ---- Relocations ---- */

/* Computes the value to store, as an address of the image. */
static accrt_status_t resolve(const loader_t* loader, const Elf64_Rela* relocation,
                              uint64_t* out_value) {
  const uint32_t type = (uint32_t)ELF64_R_TYPE(relocation->r_info);
  const uint32_t index = (uint32_t)ELF64_R_SYM(relocation->r_info);
  if (type == OWN_RELATIVE) {
    *out_value = (uint64_t)relocation->r_addend;
    return ACCRT_OK;
  }
  if (type != OWN_ABSOLUTE && type != OWN_GLOB_DAT && type != OWN_JUMP_SLOT) {
    return REJECT(loader, "relocation type %" PRIu32 " at 0x%" PRIx64 " is not allowed", type,
                  (uint64_t)relocation->r_offset);
  }
  if (index == 0 || index >= loader->image.symbol_count) {
    return REJECT(loader, "the relocation at 0x%" PRIx64 " names symbol %" PRIu32 " of %" PRIu32,
                  (uint64_t)relocation->r_offset, index, loader->image.symbol_count);
  }
  Elf64_Sym symbol;
  /* read_symbols() has checked that the table exists. */
  memcpy(&symbol,
         file_bytes(loader, loader->dynamic.symbols, (uint64_t)(index + 1) * sizeof symbol) +
             index * sizeof symbol,
         sizeof symbol);
  if (symbol.st_shndx == SHN_ABS) {
    return REJECT(loader, "the relocation at 0x%" PRIx64 " names an absolute symbol",
                  (uint64_t)relocation->r_offset);
  }
#if defined(__x86_64__)
  const uint64_t addend = type == OWN_ABSOLUTE ? (uint64_t)relocation->r_addend : 0;
#else
  const uint64_t addend = (uint64_t)relocation->r_addend;
#endif
  *out_value = symbol.st_value + addend;
  return ACCRT_OK;
}

static accrt_status_t apply(loader_t* loader, const Elf64_Rela* relocation) {
  if (ELF64_R_TYPE(relocation->r_info) == 0)
    return ACCRT_OK; /* R_*_NONE */
  const Elf64_Phdr* segment = segment_of(loader, relocation->r_offset, 8);
  if (segment == NULL) {
    return REJECT(loader, "a relocation at 0x%" PRIx64 " lies outside it",
                  (uint64_t)relocation->r_offset);
  }
  if ((segment->p_flags & PF_W) == 0) {
    return REJECT(loader, "a relocation at 0x%" PRIx64 " is in a segment that is not writable",
                  (uint64_t)relocation->r_offset);
  }
  uint64_t value = 0;
  ACCRT_TRY(resolve(loader, relocation, &value));
  if (value > loader->image.span_bytes) {
    return REJECT(
        loader, "the relocation at 0x%" PRIx64 " points to 0x%" PRIx64 ", outside its 0x%zx bytes",
        (uint64_t)relocation->r_offset, value, loader->image.span_bytes);
  }
  const uint64_t address = (uint64_t)(uintptr_t)loader->image.base + value;
  memcpy(loader->image.base + relocation->r_offset, &address, sizeof address);
  return ACCRT_OK;
}

static accrt_status_t apply_table(loader_t* loader, uint64_t table, uint64_t size_bytes) {
  if (size_bytes == 0)
    return ACCRT_OK;
  const unsigned char* bytes = file_bytes(loader, table, size_bytes);
  if (bytes == NULL || size_bytes % sizeof(Elf64_Rela) != 0) {
    return REJECT(loader, "%" PRIu64 " bytes of relocations at 0x%" PRIx64 " are not part of it",
                  size_bytes, table);
  }
  for (uint64_t at = 0; at < size_bytes; at += sizeof(Elf64_Rela)) {
    Elf64_Rela relocation;
    memcpy(&relocation, bytes + at, sizeof relocation);
    ACCRT_TRY(apply(loader, &relocation));
  }
  return ACCRT_OK;
}

/* ---- Memory ---- */

/* Notes the range of the code: from the first executable segment to the end of the last. */
static void note_code(loader_t* loader) {
  accrt_elf_image_t* image = &loader->image;
  for (uint32_t i = 0; i < loader->segment_count; ++i) {
    const Elf64_Phdr* segment = &loader->segments[i];
    if ((segment->p_flags & PF_X) == 0)
      continue;
    if (image->code_end == 0)
      image->code_begin = segment->p_vaddr;
    image->code_end = segment->p_vaddr + segment->p_memsz;
  }
}

static accrt_status_t map(loader_t* loader) {
  const Elf64_Phdr* last = &loader->segments[loader->segment_count - 1];
  const uint64_t alignment = loader->alignment > loader->page ? loader->alignment : loader->page;
  const uint64_t span =
      (last->p_vaddr + last->p_memsz + loader->page - 1) & ~(uint64_t)(loader->page - 1);
  const uint64_t size = span + alignment - loader->page;
  void* mapping = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return ACCRT_FAIL_ERRNO(OUT_OF_MEMORY, errno, "image '%.80s': could not map %" PRIu64 " bytes",
                            loader->name, size);
  }
  loader->image.mapping = mapping;
  loader->image.mapping_size_bytes = size;
  loader->image.base =
      (unsigned char*)(((uintptr_t)mapping + alignment - 1) & ~(uintptr_t)(alignment - 1));
  loader->image.span_bytes = span;
  for (uint32_t i = 0; i < loader->segment_count; ++i) {
    const Elf64_Phdr* segment = &loader->segments[i];
    if (segment->p_filesz == 0)
      continue;
    memcpy(loader->image.base + segment->p_vaddr, loader->bytes + segment->p_offset,
           segment->p_filesz);
  }
  return ACCRT_OK;
}

static accrt_status_t protect_range(const loader_t* loader, uint64_t begin, uint64_t end,
                                    int protection) {
  if (begin >= end)
    return ACCRT_OK;
  if (mprotect(loader->image.base + begin, end - begin, protection) == 0)
    return ACCRT_OK;
  const int error = errno;
  if (error == ENOMEM)
    return ACCRT_FAIL_ERRNO(OUT_OF_MEMORY, error, "image '%.80s': mprotect failed", loader->name);
  return ACCRT_FAIL_ERRNO(PERMISSION_DENIED, error,
                          "image '%.80s': the system does not allow memory with protection %d: %s",
                          loader->name, protection, strerror(error));
}

static accrt_status_t protect(const loader_t* loader) {
  const uint64_t mask = ~(uint64_t)(loader->page - 1);
  uint64_t end = 0;
  for (uint32_t i = 0; i < loader->segment_count; ++i) {
    const Elf64_Phdr* segment = &loader->segments[i];
    const uint64_t begin = segment->p_vaddr & mask;
    ACCRT_TRY(protect_range(loader, end, begin, PROT_NONE)); /* a hole between segments */
    end = (segment->p_vaddr + segment->p_memsz + loader->page - 1) & mask;
    int protection = PROT_READ;
    if ((segment->p_flags & PF_W) != 0)
      protection |= PROT_WRITE;
    if ((segment->p_flags & PF_X) != 0) {
      protection |= PROT_EXEC;
      __builtin___clear_cache((char*)loader->image.base + begin, (char*)loader->image.base + end);
    }
    ACCRT_TRY(protect_range(loader, begin, end, protection));
  }
  if (!loader->has_relro ||
      segment_of(loader, loader->relro.p_vaddr, loader->relro.p_memsz) == NULL)
    return ACCRT_OK;
  /* Whole pages only: the last one may hold data that stays writable. */
  return protect_range(loader, loader->relro.p_vaddr & mask,
                       (loader->relro.p_vaddr + loader->relro.p_memsz) & mask, PROT_READ);
}

/* ---- The whole ---- */

static accrt_status_t load(loader_t* loader) {
  ACCRT_TRY(read_header(loader));
  ACCRT_TRY(read_program_headers(loader));
  ACCRT_TRY(read_dynamic(loader));
  ACCRT_TRY(read_symbols(loader));
  note_code(loader);
  ACCRT_TRY(map(loader));
  ACCRT_TRY(apply_table(loader, loader->dynamic.rela, loader->dynamic.rela_size));
  ACCRT_TRY(apply_table(loader, loader->dynamic.jump_rela, loader->dynamic.jump_rela_size));
  return protect(loader);
}

accrt_status_t accrt_elf_image_load(const void* bytes, size_t size_bytes, const char* name,
                                    accrt_elf_image_t* out_image) {
  const long page = sysconf(_SC_PAGESIZE);
  loader_t loader = {.bytes = bytes,
                     .size_bytes = size_bytes,
                     .name = name,
                     .page = page > 0 ? (size_t)page : 4096,
                     .alignment = 1};
  memset(out_image, 0, sizeof *out_image);
  const accrt_status_t status = load(&loader);
  if (status != ACCRT_OK) {
    accrt_elf_image_unload(&loader.image);
    return status;
  }
  *out_image = loader.image;
  return ACCRT_OK;
}

void accrt_elf_image_unload(accrt_elf_image_t* image) {
  if (image->mapping != NULL)
    munmap(image->mapping, image->mapping_size_bytes);
  memset(image, 0, sizeof *image);
}

void* accrt_elf_image_find(const accrt_elf_image_t* image, const char* symbol) {
  for (uint32_t i = 1; i < image->symbol_count; ++i) {
    Elf64_Sym entry;
    memcpy(&entry, image->base + image->symbols + i * sizeof entry, sizeof entry);
    if (ELF64_ST_BIND(entry.st_info) == STB_LOCAL || ELF64_ST_TYPE(entry.st_info) != STT_FUNC)
      continue;
    if (strcmp((const char*)image->base + image->strings + entry.st_name, symbol) == 0) {
      void* address = image->base + entry.st_value;
      return accrt_elf_image_is_code(image, address) ? address : NULL;
    }
  }
  return NULL;
}

bool accrt_elf_image_contains(const accrt_elf_image_t* image, const void* pointer,
                              uint64_t size_bytes) {
  const uintptr_t address = (uintptr_t)pointer, base = (uintptr_t)image->base;
  return address >= base && accrt_range_fits(address - base, size_bytes, image->span_bytes);
}

bool accrt_elf_image_is_code(const accrt_elf_image_t* image, const void* pointer) {
  const uintptr_t address = (uintptr_t)pointer, base = (uintptr_t)image->base;
  return address >= base + image->code_begin && address < base + image->code_end;
}
