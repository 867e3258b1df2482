/* runtime/core/elf_image_test.c - freestanding images: what loads, and everything that must not.
 * Nothing of a broken image is ever run here. Runs from the root of the source tree. */
#include "runtime/core/elf_image.h"

#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/core/error.h"
#include "runtime/core/jit_names.h"
#include "runtime/core/memory.h"
#include "runtime/core/test_image.h"
#include "tests/random.h"

static accrt_instance_t* instance;
static unsigned char* good;
static size_t good_size;

static int setup(void** state) {
  (void)state;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  if (accrt_instance_create(&options, &instance) != ACCRT_OK)
    return 1;
  good = test_image(instance, TEST_IMAGE_OWN, &good_size);
  return 0;
}

static int teardown(void** state) {
  (void)state;
  free(good);
  accrt_instance_release(instance);
  return 0;
}

static unsigned char* copy_good(void) {
  unsigned char* copy = malloc(good_size);
  assert_non_null(copy);
  memcpy(copy, good, good_size);
  return copy;
}

static Elf64_Ehdr* header_of(unsigned char* bytes) {
  return (Elf64_Ehdr*)(void*)bytes;
}
static Elf64_Phdr* segment_of_type(unsigned char* bytes, uint32_t type) {
  Elf64_Phdr* segments = (Elf64_Phdr*)(void*)(bytes + header_of(bytes)->e_phoff);
  for (uint32_t i = 0; i < header_of(bytes)->e_phnum; ++i) {
    if (segments[i].p_type == type)
      return &segments[i];
  }
  fail_msg("the golden image has no segment of type %u", type);
  return NULL;
}
static Elf64_Phdr* code_segment(unsigned char* bytes) {
  Elf64_Phdr* segment = segment_of_type(bytes, PT_LOAD);
  while (segment->p_type != PT_LOAD || (segment->p_flags & PF_X) == 0)
    ++segment;
  return segment;
}
static Elf64_Dyn* dynamic_of(unsigned char* bytes, int64_t tag) {
  Elf64_Dyn* entry = (Elf64_Dyn*)(void*)(bytes + segment_of_type(bytes, PT_DYNAMIC)->p_offset);
  for (; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == tag)
      return entry;
  }
  fail_msg("the golden image has no dynamic tag %lld", (long long)tag);
  return NULL;
}
/* File place of an address. */
static unsigned char* at_address(unsigned char* bytes, uint64_t address) {
  const Elf64_Phdr* segments = (const Elf64_Phdr*)(const void*)(bytes + header_of(bytes)->e_phoff);
  for (uint32_t i = 0; i < header_of(bytes)->e_phnum; ++i) {
    const Elf64_Phdr* segment = &segments[i];
    if (segment->p_type == PT_LOAD && address >= segment->p_vaddr &&
        address < segment->p_vaddr + segment->p_filesz) {
      return bytes + segment->p_offset + (address - segment->p_vaddr);
    }
  }
  fail_msg("address 0x%llx is not in the file", (unsigned long long)address);
  return NULL;
}
static Elf64_Sym* symbols_of(unsigned char* bytes) {
  return (Elf64_Sym*)(void*)at_address(bytes, dynamic_of(bytes, DT_SYMTAB)->d_un.d_ptr);
}
static Elf64_Rela* relocations_of(unsigned char* bytes) {
  return (Elf64_Rela*)(void*)at_address(bytes, dynamic_of(bytes, DT_RELA)->d_un.d_ptr);
}

/* ---- Good images ---- */

static void protections(const accrt_elf_image_t* image, char* out_code, char* out_all) {
  FILE* maps = fopen("/proc/self/maps", "r");
  assert_non_null(maps);
  char line[512];
  *out_all = '\0';
  while (fgets(line, sizeof line, maps) != NULL) {
    unsigned long long begin, end;
    char flags[8];
    if (sscanf(line, "%llx-%llx %7s", &begin, &end, flags) != 3)
      continue;
    const unsigned long long base = (unsigned long long)(uintptr_t)image->base;
    if (end <= base || begin >= base + image->span_bytes)
      continue;
    if (flags[1] == 'w' && flags[2] == 'x')
      *out_all = 'x';
    if (begin <= base + image->code_begin && end > base + image->code_begin)
      memcpy(out_code, flags, 3);
  }
  out_code[3] = '\0';
  fclose(maps);
}

static void good_image(void** state) {
  (void)state;
  accrt_elf_image_t image;
  assert_int_equal(accrt_elf_image_load(good, good_size, "good", &image), ACCRT_OK);
  void* query = accrt_elf_image_find(&image, ACCRT_KERNEL_PACK_SYMBOL);
  assert_non_null(query);
  assert_true(accrt_elf_image_is_code(&image, query));
  assert_true(accrt_elf_image_contains(&image, query, 1));
  assert_false(accrt_elf_image_contains(&image, query, image.span_bytes));
  assert_false(accrt_elf_image_contains(&image, query, UINT64_MAX));
  assert_false(accrt_elf_image_contains(&image, &image, 1));
  assert_null(accrt_elf_image_find(&image, "no_such_symbol"));
  char code[8] = "", both;
  protections(&image, code, &both);
  assert_string_equal(code, "r-x");
  assert_int_equal(both, '\0'); /* nothing is writable and executable */
  accrt_elf_image_unload(&image);
  assert_null(image.mapping);
  accrt_elf_image_unload(&image);
}

static void loads_many_times(void** state) {
  (void)state;
  accrt_elf_image_t images[20];
  for (int i = 0; i < 20; ++i)
    assert_int_equal(accrt_elf_image_load(good, good_size, "good", &images[i]), ACCRT_OK);
  for (int i = 1; i < 20; ++i)
    assert_ptr_not_equal(images[i].base, images[0].base);
  for (int i = 0; i < 20; ++i)
    accrt_elf_image_unload(&images[i]);
}

static void other_machine(void** state) {
  (void)state;
  size_t size;
  unsigned char* other = test_image(instance, TEST_IMAGE_OTHER, &size);
  accrt_elf_image_t image;
  assert_int_equal(accrt_elf_image_load(other, size, "other", &image), ACCRT_ERROR_UNSUPPORTED);
  free(other);
}

/* ---- Refusals ---- */

typedef void (*breaker_t)(unsigned char* bytes);
#define BREAKERS(X)                                                                                \
  X(magic, "not an ELF file", header_of(bytes)->e_ident[0] = 0)                                    \
  X(class32, "not a 64-bit", header_of(bytes)->e_ident[EI_CLASS] = ELFCLASS32)                     \
  X(big_endian, "not a 64-bit", header_of(bytes)->e_ident[EI_DATA] = ELFDATA2MSB)                  \
  X(executable, "not ET_DYN", header_of(bytes)->e_type = ET_EXEC)                                  \
  X(phentsize, "program headers", header_of(bytes)->e_phentsize = 55)                              \
  X(phnum, "program headers", header_of(bytes)->e_phnum = 0xFFFF)                                  \
  X(phoff, "program headers", header_of(bytes)->e_phoff = UINT64_MAX - 8)                          \
  X(interpreter, "program interpreter", segment_of_type(bytes, PT_GNU_STACK)->p_type = PT_INTERP)  \
  X(thread_local_storage, "thread-local storage",                                                  \
    segment_of_type(bytes, PT_GNU_STACK)->p_type = PT_TLS)                                         \
  X(executable_stack, "executable stack", segment_of_type(bytes, PT_GNU_STACK)->p_flags = 7)       \
  X(write_execute, "writable and executable", code_segment(bytes)->p_flags = 7)                    \
  X(unreadable, "not readable", code_segment(bytes)->p_flags = PF_X)                               \
  X(file_range, "a segment takes", code_segment(bytes)->p_offset = UINT64_MAX - 100)               \
  X(file_size, "a segment takes", code_segment(bytes)->p_filesz = UINT64_MAX)                      \
  X(memory_size, "the limit is", code_segment(bytes)->p_memsz = UINT64_MAX)                        \
  X(address, "the limit is", code_segment(bytes)->p_vaddr = UINT64_MAX - 4096)                     \
  X(alignment, "is aligned to", code_segment(bytes)->p_align = 3)                                  \
  X(alignment_huge, "is aligned to", code_segment(bytes)->p_align = UINT64_C(1) << 40)             \
  X(overlap, "shares a page", code_segment(bytes)->p_vaddr = 0)                                    \
  X(no_dynamic, "no dynamic segment", segment_of_type(bytes, PT_DYNAMIC)->p_type = PT_NOTE)        \
  X(two_dynamic, "two dynamic segments", segment_of_type(bytes, PT_GNU_STACK)->p_flags = 0;        \
    segment_of_type(bytes, PT_GNU_STACK)->p_type = PT_DYNAMIC)                                     \
  X(dynamic_outside, "dynamic segment",                                                            \
    segment_of_type(bytes, PT_DYNAMIC)->p_vaddr = UINT64_MAX - 64)                                 \
  X(needed, "needs another library", dynamic_of(bytes, DT_GNU_HASH)->d_tag = DT_NEEDED)            \
  X(initialiser, "constructors", dynamic_of(bytes, DT_GNU_HASH)->d_tag = DT_INIT)                  \
  X(constructors, "constructors", dynamic_of(bytes, DT_GNU_HASH)->d_tag = DT_INIT_ARRAY)           \
  X(destructors, "destructors", dynamic_of(bytes, DT_GNU_HASH)->d_tag = DT_FINI_ARRAY)             \
  X(text_relocations, "text relocations", dynamic_of(bytes, DT_GNU_HASH)->d_tag = DT_TEXTREL)      \
  X(text_flag, "text relocations", dynamic_of(bytes, DT_GNU_HASH)->d_un.d_val = DF_TEXTREL;        \
    dynamic_of(bytes, DT_GNU_HASH)->d_tag = DT_FLAGS)                                              \
  X(run_path, "places of other libraries", dynamic_of(bytes, DT_GNU_HASH)->d_tag = DT_RUNPATH)     \
  X(rel, "other than RELA", dynamic_of(bytes, DT_GNU_HASH)->d_tag = DT_REL)                        \
  X(relr, "other than RELA", dynamic_of(bytes, DT_GNU_HASH)->d_tag = 36)                           \
  X(symbol_size, "its symbols have", dynamic_of(bytes, DT_SYMENT)->d_un.d_val = 16)                \
  X(relocation_size, "its relocations have", dynamic_of(bytes, DT_RELAENT)->d_un.d_val = 8)        \
  X(no_symbols, "no dynamic symbols", dynamic_of(bytes, DT_SYMTAB)->d_tag = DT_DEBUG)              \
  X(symbols_outside, "lie outside", dynamic_of(bytes, DT_SYMTAB)->d_un.d_ptr = UINT64_MAX - 100)   \
  X(strings_outside, "lie outside", dynamic_of(bytes, DT_STRTAB)->d_un.d_ptr = 1 << 29)            \
  X(strings_size, "lie outside", dynamic_of(bytes, DT_STRSZ)->d_un.d_val = UINT64_MAX)             \
  X(strings_end, "lie outside", dynamic_of(bytes, DT_STRSZ)->d_un.d_val -= 1)                      \
  X(hash_outside, "lie outside", dynamic_of(bytes, DT_HASH)->d_un.d_ptr = 1 << 29)                 \
  X(hash_count, "lie outside",                                                                     \
    ((uint32_t*)(void*)at_address(bytes, dynamic_of(bytes, DT_HASH)->d_un.d_ptr))[1] = 0xFFFFFFFF) \
  X(undefined, "is undefined", symbols_of(bytes)[1].st_shndx = SHN_UNDEF)                          \
  X(thread_symbol, "is thread-local",                                                              \
    symbols_of(bytes)[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_TLS))                             \
  X(ifunc, "indirect function",                                                                    \
    symbols_of(bytes)[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_GNU_IFUNC))                       \
  X(symbol_name, "has no name", symbols_of(bytes)[1].st_name = 0xFFFFFFFF)                         \
  X(symbol_value, "lies outside", symbols_of(bytes)[1].st_value = UINT64_MAX)                      \
  X(symbol_length, "lies outside", symbols_of(bytes)[1].st_size = UINT64_MAX)                      \
  X(relocation_kind, "is not allowed", relocations_of(bytes)[0].r_info = ELF64_R_INFO(0, 37))      \
  X(relocation_place, "lies outside", relocations_of(bytes)[0].r_offset = UINT64_MAX - 4)          \
  X(relocation_text, "not writable",                                                               \
    relocations_of(bytes)[0].r_offset = code_segment(bytes)->p_vaddr)                              \
  X(relocation_value, "outside its", relocations_of(bytes)[0].r_addend = INT64_MAX)                \
  X(relocation_negative, "outside its", relocations_of(bytes)[0].r_addend = -8)                    \
  X(relocation_table, "are not part of it", dynamic_of(bytes, DT_RELASZ)->d_un.d_val = 1 << 28)    \
  X(relocation_odd, "are not part of it", dynamic_of(bytes, DT_RELASZ)->d_un.d_val -= 1)
#if defined(__x86_64__)
#define SYMBOL_RELOCATION R_X86_64_64
#else
#define SYMBOL_RELOCATION R_AARCH64_ABS64
#endif
#define DEFINE(name, text, code)                                                                   \
  static void break_##name(unsigned char* bytes) {                                                 \
    code;                                                                                          \
  }
BREAKERS(DEFINE)
#undef DEFINE
static void break_relocation_symbol(unsigned char* bytes) {
  relocations_of(bytes)[0].r_info = ELF64_R_INFO(UINT64_C(1000), (uint64_t)SYMBOL_RELOCATION);
}

static void refusals(void** state) {
  (void)state;
#define CASE(name, text, code) {#name, text, break_##name},
  static const struct {
    const char* name;
    const char* text;
    breaker_t break_it;
  } cases[] = {BREAKERS(CASE){"relocation_symbol", "names symbol", break_relocation_symbol}};
#undef CASE
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    unsigned char* bytes = copy_good();
    cases[i].break_it(bytes);
    accrt_elf_image_t image;
    const accrt_status_t status = accrt_elf_image_load(bytes, good_size, "broken", &image);
    const char* message = accrt_error_current()->message;
    if (status != ACCRT_ERROR_INVALID_FORMAT || strstr(message, cases[i].text) == NULL) {
      fail_msg("%s: %s: '%s' lacks '%s'", cases[i].name, accrt_status_name(status), message,
               cases[i].text);
    }
    assert_null(image.mapping);
    free(bytes);
  }
}

/* Only the GNU hash table, as linkers write it by default. */
static void gnu_hash_only(void** state) {
  (void)state;
  unsigned char* bytes = copy_good();
  dynamic_of(bytes, DT_HASH)->d_tag = DT_DEBUG;
  accrt_elf_image_t image;
  assert_int_equal(accrt_elf_image_load(bytes, good_size, "gnu hash", &image), ACCRT_OK);
  assert_non_null(accrt_elf_image_find(&image, ACCRT_KERNEL_PACK_SYMBOL));
  accrt_elf_image_unload(&image);
  uint32_t* table = (uint32_t*)(void*)at_address(bytes, dynamic_of(bytes, DT_GNU_HASH)->d_un.d_ptr);
  for (int i = 0; i < 4; ++i) {
    if (i == 3)
      break; /* the shift count is not used */
    const uint32_t saved = table[i];
    table[i] = 0x7FFFFFFF;
    assert_int_equal(accrt_elf_image_load(bytes, good_size, "gnu hash", &image),
                     ACCRT_ERROR_INVALID_FORMAT);
    table[i] = saved;
  }
  free(bytes);
}

static void truncation(void** state) {
  (void)state;
  accrt_elf_image_t image;
  for (size_t size = 0; size < good_size; size += size < 4096 ? 1 : 61) {
    unsigned char* bytes = malloc(size > 0 ? size : 1);
    memcpy(bytes, good, size);
    if (accrt_elf_image_load(bytes, size, "short", &image) == ACCRT_OK)
      accrt_elf_image_unload(&image);
    free(bytes);
  }
}

static void random_damage(void** state) {
  (void)state;
  uint64_t random = test_seed();
  for (int round = 0; round < 20000; ++round) {
    unsigned char* bytes = copy_good();
    for (uint64_t k = test_below(&random, 3) + 1; k > 0; --k) {
      /* Headers, and the sections in the last pages: dynamic, symbols, relocations. */
      const size_t at = test_below(&random, test_below(&random, 2) == 0 ? good_size : 1024);
      const uint64_t value = test_below(&random, 2) == 0
                                 ? bytes[at] ^ (1u << test_below(&random, 8))
                                 : test_random(&random);
      bytes[at] = (unsigned char)value;
    }
    accrt_elf_image_t image;
    if (accrt_elf_image_load(bytes, good_size, "damaged", &image) == ACCRT_OK) {
      (void)accrt_elf_image_find(&image, ACCRT_KERNEL_PACK_SYMBOL);
      (void)accrt_elf_image_find(&image, "x");
      /* What reads its sections for gdb and perf must bear the same. */
      accrt_jit_unregister(&accrt_allocator_system,
                           accrt_jit_register(&accrt_allocator_system, &image, bytes, good_size));
      if (round % 16 == 0)
        (void)accrt_perf_map_append(&image, bytes, good_size, "damaged");
      accrt_elf_image_unload(&image);
    }
    free(bytes);
  }
  char path[64];
  snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
  unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(good_image),    cmocka_unit_test(loads_many_times),
      cmocka_unit_test(other_machine), cmocka_unit_test(refusals),
      cmocka_unit_test(gnu_hash_only), cmocka_unit_test(truncation),
      cmocka_unit_test(random_damage),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
