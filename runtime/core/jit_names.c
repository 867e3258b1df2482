/* runtime/core/jit_names.c - gdb's JIT interface and perf's map file.
 *
 * gdb puts a breakpoint on __jit_debug_register_code and reads __jit_debug_descriptor; both names
 * and the layout are its own (GDB manual, "JIT Compilation Interface"). They are in the dynamic
 * symbol table, so that a stripped library works too, and protected, so that two copies of the
 * library, or another JIT compiler in the process, each keep their own list.
 *
 * The list is process-wide state that the interface forces; the lock below guards it.
 */
#define _GNU_SOURCE
#include "runtime/core/jit_names.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/file_io.h"
#include "runtime/core/memory.h"
#include "runtime/core/safe_open.h"
#include "runtime/core/sync.h"

#define MAX_SECTIONS 4096u

/* ---- The interface that gdb defines ---- */

typedef enum { JIT_NOACTION = 0, JIT_REGISTER_FN, JIT_UNREGISTER_FN } jit_actions_t;

struct jit_code_entry {
  struct jit_code_entry* next_entry;
  struct jit_code_entry* prev_entry;
  const char* symfile_addr;
  uint64_t symfile_size;
};

struct jit_descriptor {
  uint32_t version;
  uint32_t action_flag;
  struct jit_code_entry* relevant_entry;
  struct jit_code_entry* first_entry;
};

static struct jit_descriptor descriptor = {1, JIT_NOACTION, NULL, NULL};

/* gdb sets a breakpoint here. The compiler must neither inline it nor see it as empty. */
__attribute__((noinline, used)) static void register_code(void) {
  __asm__ volatile("" ::: "memory");
}

/* The names are weak aliases of the library's own symbols. A program that links the static library
 * may define them itself (LLVM does). Then gdb reads the program's list and not this one, which
 * only the library touches. */
#define GDB_NAME(target) __attribute__((weak, visibility("protected"), alias(target)))

extern GDB_NAME("descriptor") struct jit_descriptor __jit_debug_descriptor;
extern GDB_NAME("register_code") void __jit_debug_register_code(void);

static accrt_mutex_t list_mutex = ACCRT_MUTEX_STATIC(ACCRT_LOCK_JIT_NAMES);

struct accrt_jit_entry {
  struct jit_code_entry entry;
  size_t size_bytes;
  unsigned char* symfile;
};

/* ---- Reading an image's sections ---- */

typedef struct sections {
  const unsigned char* bytes;
  size_t size_bytes;
  Elf64_Ehdr header;
} sections_t;

static bool open_sections(const void* bytes, size_t size_bytes, sections_t* out) {
  out->bytes = bytes;
  out->size_bytes = size_bytes;
  /* elf_image.c has checked that the header exists */
  memcpy(&out->header, bytes, sizeof out->header);
  return out->header.e_shnum > 0 && out->header.e_shnum <= MAX_SECTIONS &&
         out->header.e_shentsize == sizeof(Elf64_Shdr) &&
         accrt_range_fits(out->header.e_shoff, (uint64_t)out->header.e_shnum * sizeof(Elf64_Shdr),
                          size_bytes);
}

static Elf64_Shdr section_at(const sections_t* sections, uint32_t index) {
  Elf64_Shdr section;
  memcpy(&section, sections->bytes + sections->header.e_shoff + index * sizeof section,
         sizeof section);
  return section;
}

static bool has_bytes(const sections_t* sections, const Elf64_Shdr* section) {
  return section->sh_type != SHT_NOBITS &&
         accrt_range_fits(section->sh_offset, section->sh_size, sections->size_bytes);
}

/* ---- gdb ---- */

/* gdb reads addresses in this file as absolute: adds the base to every section and symbol. */
static void relocate_symbols(const sections_t* sections, const Elf64_Shdr* table,
                             unsigned char* copy, uint64_t base) {
  for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    memcpy(&symbol, sections->bytes + table->sh_offset + at, sizeof symbol);
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx == SHN_ABS)
      continue;
    symbol.st_value += base;
    memcpy(copy + table->sh_offset + at, &symbol, sizeof symbol);
  }
}

static bool is_debug_section(const sections_t* sections, const Elf64_Shdr* section) {
  if (sections->header.e_shstrndx >= sections->header.e_shnum)
    return false;
  const Elf64_Shdr names = section_at(sections, sections->header.e_shstrndx);
  static const char prefix[] = ".debug";
  return has_bytes(sections, &names) &&
         accrt_range_fits(section->sh_name, sizeof prefix - 1, names.sh_size) &&
         memcmp(sections->bytes + names.sh_offset + section->sh_name, prefix, sizeof prefix - 1) ==
             0;
}

static void relocate_sections(const sections_t* sections, unsigned char* copy, uint64_t base) {
  for (uint32_t i = 0; i < sections->header.e_shnum; ++i) {
    Elf64_Shdr section = section_at(sections, i);
    const bool symbols = section.sh_type == SHT_SYMTAB || section.sh_type == SHT_DYNSYM;
    if (symbols && has_bytes(sections, &section))
      relocate_symbols(sections, &section, copy, base);
    if ((section.sh_flags & SHF_ALLOC) != 0)
      section.sh_addr += base;
    /* Debug information has addresses as linked, which would be wrong here. */
    if (is_debug_section(sections, &section))
      section.sh_type = SHT_NULL;
    memcpy(copy + sections->header.e_shoff + i * sizeof section, &section, sizeof section);
  }
  for (uint32_t i = 0; i < sections->header.e_phnum; ++i) {
    unsigned char* place = copy + sections->header.e_phoff + i * sizeof(Elf64_Phdr);
    Elf64_Phdr segment;
    memcpy(&segment, place, sizeof segment);
    segment.p_vaddr += base;
    segment.p_paddr += base;
    memcpy(place, &segment, sizeof segment);
  }
}

static void publish(struct jit_code_entry* entry) {
  accrt_mutex_lock(&list_mutex);
  entry->prev_entry = NULL;
  entry->next_entry = descriptor.first_entry;
  if (entry->next_entry != NULL)
    entry->next_entry->prev_entry = entry;
  descriptor.first_entry = entry;
  descriptor.relevant_entry = entry;
  descriptor.action_flag = JIT_REGISTER_FN;
  register_code();
  descriptor.action_flag = JIT_NOACTION;
  descriptor.relevant_entry = NULL;
  accrt_mutex_unlock(&list_mutex);
}

static void withdraw(struct jit_code_entry* entry) {
  accrt_mutex_lock(&list_mutex);
  if (entry->prev_entry != NULL)
    entry->prev_entry->next_entry = entry->next_entry;
  if (entry->next_entry != NULL)
    entry->next_entry->prev_entry = entry->prev_entry;
  if (descriptor.first_entry == entry)
    descriptor.first_entry = entry->next_entry;
  descriptor.relevant_entry = entry;
  descriptor.action_flag = JIT_UNREGISTER_FN;
  register_code();
  descriptor.action_flag = JIT_NOACTION;
  descriptor.relevant_entry = NULL;
  accrt_mutex_unlock(&list_mutex);
}

accrt_jit_entry_t* accrt_jit_register(const accrt_allocator_t* allocator,
                                      const accrt_elf_image_t* image, const void* bytes,
                                      size_t size_bytes) {
  sections_t sections;
  if (!open_sections(bytes, size_bytes, &sections))
    return NULL;
  void *memory, *symfile;
  if (accrt_alloc(allocator, sizeof(accrt_jit_entry_t), &memory) != ACCRT_OK)
    return NULL;
  accrt_jit_entry_t* entry = memory;
  if (accrt_alloc(allocator, size_bytes, &symfile) != ACCRT_OK) {
    accrt_free(allocator, entry, sizeof *entry);
    return NULL;
  }
  memcpy(symfile, bytes, size_bytes);
  relocate_sections(&sections, symfile, (uint64_t)(uintptr_t)image->base);
  entry->symfile = symfile;
  entry->size_bytes = size_bytes;
  entry->entry.symfile_addr = symfile;
  entry->entry.symfile_size = size_bytes;
  publish(&entry->entry);
  return entry;
}

void accrt_jit_unregister(const accrt_allocator_t* allocator, accrt_jit_entry_t* entry) {
  if (entry == NULL)
    return;
  withdraw(&entry->entry);
  accrt_free(allocator, entry->symfile, entry->size_bytes);
  accrt_free(allocator, entry, sizeof *entry);
}

/* ---- perf ---- */

/* Collects lines, so that there are few writes and no line is split between two. */
typedef struct map_writer {
  int fd;
  int error;
  size_t used;
  char text[8192];
} map_writer_t;

static void flush(map_writer_t* writer) {
  if (writer->error == 0)
    writer->error = accrt_file_write(writer->fd, -1, writer->text, writer->used);
  writer->used = 0;
}

/* Newlines must not be in a name, because perf reads the rest of the line as the name. */
static void add_line(map_writer_t* writer, const void* address, uint64_t size_bytes,
                     const char* image_name, const char* function) {
  char line[512];
  int length =
      snprintf(line, sizeof line, "%llx %llx %.150s:%.250s", (unsigned long long)(uintptr_t)address,
               (unsigned long long)size_bytes, image_name, function);
  if (length < 0)
    return;
  for (int i = 0; i < length; ++i) {
    if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F)
      line[i] = '_';
  }
  line[length++] = '\n';
  if (writer->used + (size_t)length > sizeof writer->text)
    flush(writer);
  memcpy(writer->text + writer->used, line, (size_t)length);
  writer->used += (size_t)length;
}

/* The string at `offset` of a table; NULL when it does not end inside the table. */
static const char* string_at(const sections_t* sections, const Elf64_Shdr* strings,
                             uint64_t offset) {
  if (!has_bytes(sections, strings) || offset >= strings->sh_size)
    return NULL;
  const char* text = (const char*)sections->bytes + strings->sh_offset + offset;
  return memchr(text, '\0', strings->sh_size - offset) != NULL ? text : NULL;
}

/* Adds lines for the functions of one symbol table; false when there are none. */
static bool add_symbols(map_writer_t* writer, const accrt_elf_image_t* image,
                        const sections_t* sections, const Elf64_Shdr* table, const char* name) {
  if (!has_bytes(sections, table) || table->sh_link >= sections->header.e_shnum)
    return false;
  const Elf64_Shdr strings = section_at(sections, table->sh_link);
  bool found = false;
  for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    memcpy(&symbol, sections->bytes + table->sh_offset + at, sizeof symbol);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size == 0 ||
        !accrt_range_fits(symbol.st_value, symbol.st_size, image->span_bytes)) {
      continue;
    }
    const char* function = string_at(sections, &strings, symbol.st_name);
    if (function == NULL)
      continue;
    add_line(writer, image->base + symbol.st_value, symbol.st_size, name, function);
    found = true;
  }
  return found;
}

static void add_functions(map_writer_t* writer, const accrt_elf_image_t* image, const void* bytes,
                          size_t size_bytes, const char* name) {
  sections_t sections;
  if (open_sections(bytes, size_bytes, &sections)) {
    for (uint32_t i = 0; i < sections.header.e_shnum; ++i) {
      const Elf64_Shdr section = section_at(&sections, i);
      if (section.sh_type == SHT_SYMTAB && add_symbols(writer, image, &sections, &section, name))
        return;
    }
  }
  /* The image is stripped: add one line with the name of the pack. */
  add_line(writer, image->base + image->code_begin, image->code_end - image->code_begin, name,
           "[code]");
}

/* All users can write to /tmp. So the file may not be a link, have other links, or be writable by
 * others. */
static int open_map(int* out_fd) {
  char path[64];
  (void)snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
  const int fd = accrt_open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
  if (fd < 0)
    return errno;
  struct stat facts;
  if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == geteuid() &&
      facts.st_nlink == 1 && (facts.st_mode & 022) == 0) {
    *out_fd = fd;
    return 0;
  }
  close(fd);
  return EPERM;
}

int accrt_perf_map_append(const accrt_elf_image_t* image, const void* bytes, size_t size_bytes,
                          const char* name) {
  map_writer_t writer = {.fd = -1};
  const int error = open_map(&writer.fd);
  if (error != 0)
    return error;
  add_functions(&writer, image, bytes, size_bytes, name);
  flush(&writer);
  close(writer.fd);
  return writer.error;
}
