/* What images say of themselves, also when they are cut, invented or made by the CUDA compiler that
 * is here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/drivers/cuda/test_images.h"
#include "tests/random.h"

static char why[sizeof(accrt_image_fault_t)];

/* Checks bytes in memory of just their size. */
static bool check(const void* image, size_t size) {
  unsigned char* copy = malloc(size > 0 ? size : 1);
  assert_non_null(copy);
  memcpy(copy, image, size);
  const bool good = test_check_and_read(copy, size, why);
  free(copy);
  return good;
}

static void assert_refused(const void* image, size_t size, const char* text) {
  if (check(image, size))
    fail_msg("accepted, expected '%s'", text);
  if (strstr(why, text) == NULL)
    fail_msg("'%s' lacks '%s'", why, text);
}

/* ---- Cubins ---- */

static void test_cubin_arch(void** state) {
  (void)state;
  test_cubin_t cubin = test_cubin(90);
  cubin.header.e_ident[EI_ABIVERSION] = 7;
  cubin.header.e_flags = 0x5a055a; /* CUDA 12, sm_90 */
  assert_int_equal(accrt_cuda_cubin_arch(&cubin), 90);
  cubin.header.e_ident[EI_ABIVERSION] = 8;
  cubin.header.e_flags = 0x6005a04; /* CUDA 13, sm_90 */
  assert_int_equal(accrt_cuda_cubin_arch(&cubin), 90);
  cubin.header.e_flags = 0x6006402; /* CUDA 13, sm_100 */
  assert_int_equal(accrt_cuda_cubin_arch(&cubin), 100);
}

/* Each image has one fault, with its message. */
#define LIES(X)                                                                                    \
  X("it is not an ELF file", header->e_ident[0] = 0)                                               \
  X("class 1", header->e_ident[EI_CLASS] = ELFCLASS32)                                             \
  X("data encoding 2", header->e_ident[EI_DATA] = ELFDATA2MSB)                                     \
  X("version 0", header->e_ident[EI_VERSION] = 0)                                                  \
  X("header of 52 bytes", header->e_ehsize = 52)                                                   \
  X("ELF machine 62", header->e_machine = EM_X86_64)                                               \
  X("6 section headers of 40 bytes", header->e_shentsize = 40)                                     \
  X("7 section headers", header->e_shnum = TEST_SECTIONS + 1)                                      \
  X("at 18446744073709551608", header->e_shoff = UINT64_MAX - 7)                                   \
  X("65535 section headers", header->e_shnum = 0xFFFF)                                             \
  X("section 1 of 0", header->e_shnum = 0)                                                         \
  X("section 6 of 6", header->e_shstrndx = TEST_SECTIONS)                                          \
  X("is no table of names", header->e_shstrndx = TEST_CODE)                                        \
  X("1 program headers of 32 bytes", header->e_phentsize = 32)                                     \
  X("program headers", header->e_phnum = 0xFFFF)                                                   \
  X("at 18446744073709551615", header->e_phoff = UINT64_MAX)                                       \
  X("section 2: 32 bytes at 18446744073709551615", sections[TEST_CODE].sh_offset = UINT64_MAX)     \
  X("section 2: 18446744073709551615 bytes", sections[TEST_CODE].sh_size = UINT64_MAX)             \
  X("do not fit", sections[TEST_CODE].sh_offset = sizeof cubin - 31)                               \
  X("section 2: its name at 16 of 16 bytes", sections[TEST_CODE].sh_name = 16)                     \
  X("linked to section 6 of 6", sections[TEST_CODE].sh_link = TEST_SECTIONS)                       \
  X("its name at 4294967295", sections[TEST_MEMORY].sh_name = UINT32_MAX)                          \
  X("section 1: its name at 0 of 0 bytes", sections[TEST_NAMES].sh_size = 0)                       \
  X("section 3: 0 bytes of names without NUL", sections[TEST_STRINGS].sh_size = 0)                 \
  X("section 3: 9 bytes of names without NUL", sections[TEST_STRINGS].sh_size = 9;                 \
    sections[TEST_STRINGS].sh_offset += 1)                                                         \
  X("section 1: 18446744073709551615 bytes", sections[TEST_NAMES].sh_size = UINT64_MAX)            \
  X("symbols of 16 bytes", sections[TEST_SYMBOLS].sh_entsize = 16)                                 \
  X("47 bytes of symbols", sections[TEST_SYMBOLS].sh_size = 47)                                    \
  X("names in section 2 of type 1", sections[TEST_SYMBOLS].sh_link = TEST_CODE)                    \
  X("a second table", sections[TEST_CODE] = sections[TEST_SYMBOLS])                                \
  X("symbol 1: its name at 16 of 16 bytes", cubin.symbols[1].st_name = 16)                         \
  X("symbol 0: its name at 4294967295", cubin.symbols[0].st_name = UINT32_MAX)                     \
  X("segment 0: 32 bytes for 8 of memory", cubin.segment.p_memsz = 8)                              \
  X("segment 0: 32 bytes at 18446744073709551600", cubin.segment.p_offset = UINT64_MAX - 15)

static void test_cubins_that_lie(void** state) {
  (void)state;
  test_cubin_t good = test_cubin(90);
  assert_true(check(&good, sizeof good));
  good.header.e_version = 0x7c; /* CUDA 12.4 */
  good.header.e_ident[EI_OSABI] = 0x33;
  good.header.e_ident[EI_ABIVERSION] = 7;
  assert_true(check(&good, sizeof good));
#define TRY_ONE(text, change)                                                                      \
  {                                                                                                \
    test_cubin_t cubin = good;                                                                     \
    Elf64_Ehdr* header = &cubin.header;                                                            \
    Elf64_Shdr* sections = cubin.sections;                                                         \
    (void)header, (void)sections;                                                                  \
    change;                                                                                        \
    assert_refused(&cubin, sizeof cubin, text);                                                    \
  }
  LIES(TRY_ONE)
#undef TRY_ONE
  for (size_t size = 0; size < sizeof good; ++size)
    assert_false(check(&good, size));
}

static void test_arch_fits(void** state) {
  (void)state;
  assert_true(accrt_cuda_arch_fits(90, 9, 0));
  assert_true(accrt_cuda_arch_fits(80, 8, 6));
  assert_false(accrt_cuda_arch_fits(86, 8, 0));
  assert_false(accrt_cuda_arch_fits(80, 9, 0));
  assert_false(accrt_cuda_arch_fits(100, 9, 0));
  assert_true(accrt_cuda_arch_fits(100, 10, 0));
}

static bool ptx_arch(const char* text, uint32_t* out_arch) {
  return accrt_cuda_ptx_arch(text, strlen(text), out_arch);
}

static void test_ptx_arch(void** state) {
  (void)state;
  uint32_t arch;
  assert_true(ptx_arch(".version 8.0\n.target sm_90a\n.address_size 64\n", &arch));
  assert_int_equal(arch, 90);
  assert_true(ptx_arch(".target\tsm_100, debug", &arch));
  assert_int_equal(arch, 100);
  assert_false(ptx_arch("", &arch));
  assert_false(ptx_arch(".target", &arch));
  assert_false(ptx_arch(".target ", &arch));
  assert_false(ptx_arch(".target sm_", &arch));
  assert_false(ptx_arch("nothing of the kind", &arch));
  assert_int_equal(arch, 0);
}

/* ---- Fatbins ---- */

static void put(unsigned char* at, uint64_t value, size_t width) {
  memcpy(at, &value, width);
}

/* The cubin's entry is at 16, that of PTX behind it. */
typedef struct fatbin {
  unsigned char bytes[2048];
  size_t size;
  size_t ptx;
} fatbin_t;

static fatbin_t make_fatbin(void) {
  const test_cubin_t cubin = test_cubin(80);
  fatbin_t fatbin = {.size = 0};
  fatbin.ptx = test_fatbin_add(fatbin.bytes, 0, 2, 80, 0, &cubin, sizeof cubin);
  fatbin.size = test_fatbin_add(fatbin.bytes, fatbin.ptx, 1, 90, 0, ".version 8.0", 13);
  return fatbin;
}

static void test_fatbins_that_lie(void** state) {
  (void)state;
  const fatbin_t good = make_fatbin();
  assert_true(check(good.bytes, good.size));
  static const struct {
    size_t at, width;
    uint64_t value;
    const char* text;
    bool of_ptx; /* `at` in the second entry */
  } lies[] = {
      {4, 2, 2, "fatbin of version 2", false},
      {6, 2, 8, "a header of 8", false},
      {6, 2, 0xFFFF, "a header of 65535", false},
      {8, 8, 0, "entries of 0 bytes", false},
      {8, 8, UINT64_MAX, "entries of 18446744073709551615 bytes", false},
      {20, 4, 63, "fatbin entry at 16: a header of 63", false},
      {20, 4, UINT32_MAX, "fatbin entry at 16: a header of 4294967295", false},
      {24, 8, UINT64_MAX - 63, "and 18446744073709551552 bytes do not fit", false},
      {24, 8, 40, "fatbin entry at 16: 40 bytes are too few", false},
      {16 + 20, 4, UINT32_MAX, "options at 4294967295", false},
      {16 + 32, 4, UINT32_MAX, "0 bytes of a name at 4294967295", false},
      {16 + 36, 4, UINT32_MAX, "4294967295 bytes of a name at 0", false},
      {80 + EI_CLASS, 1, 1, "fatbin entry at 16: class 1", false},
      {80 + offsetof(Elf64_Ehdr, e_shoff), 8, UINT64_MAX, "fatbin entry at 16: 6 section headers",
       false},
      {64, 8, UINT64_C(0x4141414141414141), "16 bytes of PTX without NUL", true},
  };
  for (size_t i = 0; i < sizeof lies / sizeof lies[0]; ++i) {
    fatbin_t fatbin = good;
    unsigned char* entry = fatbin.bytes + (lies[i].of_ptx ? fatbin.ptx : 0);
    put(entry + lies[i].at, lies[i].value, lies[i].width);
    if (lies[i].at == 64)
      put(entry + 72, lies[i].value, 8);
    assert_refused(fatbin.bytes, fatbin.size, lies[i].text);
  }
  for (size_t size = 0; size < good.size; ++size)
    assert_false(check(good.bytes, size));
  /* The record with a pointer that programs have: CUDA would follow it. */
  static const uint32_t wrapper[6] = {0x466243B1, 1, 0x41414141, 0x41414141, 0, 0};
  accrt_image_fault_t fault;
  assert_false(accrt_cuda_fatbin_check(wrapper, sizeof wrapper, &fault));
  assert_string_equal(fault.text, "24 bytes that do not begin with 0xba55ed50: not a fatbin");
}

static void test_compressed_entries(void** state) {
  (void)state;
  unsigned char bytes[256];
  for (uint64_t flag = 0x2000; flag <= 0x8000; flag *= 4) { /* LZ4, zstd */
    const size_t size = test_fatbin_add(bytes, 0, 2, 90, flag | 0x11, "compressed", 10);
    put(bytes + 16 + 56, 4096, 8);
    assert_true(check(bytes, size));
    put(bytes + 16 + 16, 17, 4);
    assert_refused(bytes, size, "17 of 16 bytes");
    put(bytes + 16 + 16, 10, 4);
    put(bytes + 16 + 56, UINT64_C(1) << 40, 8);
    assert_refused(bytes, size, "decompressed 1099511627776");
  }
}

static void test_fatbin_list(void** state) {
  (void)state;
  fatbin_t fatbin = make_fatbin();
  char text[64];
  accrt_cuda_fatbin_list(fatbin.bytes, fatbin.size, text, sizeof text);
  assert_string_equal(text, "sm_80, compute_90");
  accrt_cuda_fatbin_list(fatbin.bytes, fatbin.size, text, 8);
  assert_string_equal(text, "sm_80, ");
}

static void test_fatbin_fits(void** state) {
  (void)state;
  unsigned char bytes[2048];
  const test_cubin_t cubin = test_cubin(80);
  size_t size = test_fatbin_add(bytes, 0, 2, 80, 0, &cubin, sizeof cubin);
  assert_true(accrt_cuda_fatbin_fits(bytes, size, 8, 6));
  assert_false(accrt_cuda_fatbin_fits(bytes, size, 9, 0));
  size = test_fatbin_add(bytes, size, 1, 90, 0, "", 1);
  assert_true(accrt_cuda_fatbin_fits(bytes, size, 9, 0));
  assert_true(accrt_cuda_fatbin_fits(bytes, size, 10, 0));
  assert_false(accrt_cuda_fatbin_fits(bytes, size, 7, 5));
  size = test_fatbin_add(bytes, size, 77, 0, 0, "", 1);
  assert_true(check(bytes, size));
  assert_true(accrt_cuda_fatbin_fits(bytes, size, 7, 5));
}

/* Where CUDA must compile nothing, it is not given PTX, not even beside a cubin that fits. */
static void test_fatbin_code(void** state) {
  (void)state;
  unsigned char bytes[4096];
  const test_cubin_t older = test_cubin(80), newer = test_cubin(86);
  const size_t one = test_fatbin_add(bytes, 0, 2, 80, 0, &older, sizeof older);
  assert_ptr_equal(accrt_cuda_fatbin_code(bytes, one, 8, 6), bytes); /* code alone: all of it */
  assert_null(accrt_cuda_fatbin_code(bytes, one, 9, 0));
  const size_t two = test_fatbin_add(bytes, one, 2, 86, 0, &newer, sizeof newer);
  const size_t size = test_fatbin_add(bytes, two, 1, 80, 0, "", 1);
  assert_true(check(bytes, size));
  const void* code = accrt_cuda_fatbin_code(bytes, size, 8, 6);
  assert_memory_equal(code, &newer, sizeof newer);
  assert_ptr_equal(code, bytes + two - sizeof newer);
  code = accrt_cuda_fatbin_code(bytes, size, 8, 0);
  assert_memory_equal(code, &older, sizeof older);
  assert_null(accrt_cuda_fatbin_code(bytes, size, 9, 0)); /* PTX fits, and is not for this */
  const size_t packed = test_fatbin_add(bytes, 0, 2, 80, 0x2000, "compressed", 10);
  assert_ptr_equal(accrt_cuda_fatbin_code(bytes, packed, 8, 0), bytes);
  const size_t both = test_fatbin_add(bytes, packed, 1, 80, 0, "", 1);
  assert_null(accrt_cuda_fatbin_code(bytes, both, 8, 0)); /* cannot be taken apart */
}

/* ---- Real ones ---- */

static const char source[] =
    "__device__ float table[40];\n__constant__ int scale[3];\n"
    "extern \"C\" __global__ void add(float* a, const float* b, int n) {\n"
    "  __shared__ float s[64];\n  extern __shared__ float d[];\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  s[threadIdx.x & 63] = d[i & 7] = b[i];\n  __syncthreads();\n"
    "  if (i < n) a[i] += s[63 - (threadIdx.x & 63)] * scale[i % 3] + table[i % 40];\n}\n"
    "template <int N> __global__ void many(double* x) { double y[N];\n"
    "  for (int i = 0; i < N; ++i) y[i] = x[i * x[0] > 1 ? 0 : i] / 3;\n"
    "  for (int i = 0; i < N; ++i) x[i] = y[(int)x[i] % N]; }\n"
    "template __global__ void many<3>(double*);\ntemplate __global__ void many<300>(double*);\n";

/* Images by nvcc, with its flags. Each is also cut and changed. */
static const struct {
  const char* name;
  const char* flags;
} compiled[] = {
    {"sm_80", "-cubin -arch=sm_80"},
    {"sm_90", "-cubin -arch=sm_90"},
    {"sm_90a", "-cubin -arch=sm_90a"},
    {"sm_100", "-cubin -arch=sm_100"},
    {"lines", "-cubin -arch=sm_90 -lineinfo"},
    {"debug", "-cubin -arch=sm_90 -G"},
    {"relocatable", "-cubin -arch=sm_90 -rdc=true"},
    {"fatbin", "-fatbin -gencode arch=compute_80,code=sm_80 -gencode "
               "arch=compute_90,code=[sm_90,compute_90]"},
    {"compressed",
     "-fatbin -Xfatbin -compress-all -gencode arch=compute_90,code=[sm_90,compute_90]"},
    {"plain",
     "-fatbin --no-compress -lineinfo -gencode arch=compute_100,code=[sm_100,compute_100]"},
};

/* After any change, an accepted image can be read by a reader that trusts it. */
static void change_and_check(const unsigned char* image, size_t size) {
  static const uint64_t values[] = {0,          1,          64,         0xFFFF,
                                    0x7FFFFFFF, UINT32_MAX, UINT64_MAX, UINT64_MAX - 63};
  const uint64_t begin = 20261120;
  uint64_t seed = begin;
  unsigned char* copy = malloc(size);
  assert_non_null(copy);
  uint32_t accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    memcpy(copy, image, size);
    for (uint64_t n = 1 + test_random(&seed) % 2; n > 0; --n) {
      const size_t width = (size_t)1 << test_random(&seed) % 4;
      const uint64_t value = test_random(&seed) % 2 == 0 ? values[test_random(&seed) % 8]
                                                         : test_random(&seed) % (2 * size);
      /* Headers are at the start and at the end. */
      const size_t place =
          test_random(&seed) % 2 == 0 ? test_random(&seed) % 128 : test_random(&seed) % size;
      if (place + width <= size)
        memcpy(copy + place, &value, width);
    }
    accepted += test_check_and_read(copy, size, why);
  }
  if (accepted == 0 || accepted == 3000)
    fail_msg("%u of 3000 changed images accepted (seed %llu)", accepted, (unsigned long long)begin);
  for (size_t cut = 0; cut < size; cut += 1 + size / 500)
    assert_false(check(image, cut));
  free(copy);
}

static size_t read_image(const char* path, unsigned char** out_image) {
  FILE* file = fopen(path, "rb");
  if (file == NULL)
    return 0;
  *out_image = malloc(1 << 20);
  assert_non_null(*out_image);
  const size_t size = fread(*out_image, 1, 1 << 20, file);
  (void)fclose(file);
  return size;
}

static void check_real(const char* path) {
  unsigned char* image = NULL;
  const size_t size = read_image(path, &image);
  if (size == 0)
    fail_msg("%s is missing", path);
  if (!check(image, size))
    fail_msg("%s: %s", path, why);
  change_and_check(image, size);
  free(image);
}

/* Made by nvcc 13.0 for sm_90: a cubin, and a fatbin of it compressed with PTX; and one of ptxas
 * 12.4. */
static void test_kept_images(void** state) {
  (void)state;
  check_real("tests/fuzz/corpus/device_image/sm_90.cubin");
  check_real("tests/fuzz/corpus/device_image/both.fatbin");
  check_real("tests/fuzz/corpus/device_image/sm_90-12.4.cubin");
}

static void test_compiled_images(void** state) {
  (void)state;
  char folder[] = "/tmp/accrt-image-XXXXXX", command[512], path[64];
  if (system("nvcc --version >/dev/null 2>&1") != 0)
    skip();
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/k.cu", folder);
  FILE* file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(source, file) >= 0 && fclose(file) == 0);
  for (size_t i = 0; i < sizeof compiled / sizeof compiled[0]; ++i) {
    snprintf(command, sizeof command, "cd %s && nvcc %s -o %s k.cu", folder, compiled[i].flags,
             compiled[i].name);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/%s", folder, compiled[i].name);
    check_real(path);
  }
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cubin_arch),       cmocka_unit_test(test_cubins_that_lie),
      cmocka_unit_test(test_arch_fits),        cmocka_unit_test(test_ptx_arch),
      cmocka_unit_test(test_fatbins_that_lie), cmocka_unit_test(test_compressed_entries),
      cmocka_unit_test(test_fatbin_list),      cmocka_unit_test(test_fatbin_fits),
      cmocka_unit_test(test_fatbin_code),      cmocka_unit_test(test_kept_images),
      cmocka_unit_test(test_compiled_images),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
