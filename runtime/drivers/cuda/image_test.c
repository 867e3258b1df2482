/* What images say of themselves, also when they are cut or invented. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <elf.h>
#include <stdio.h>
#include <string.h>

#include "runtime/drivers/cuda/image.h"

/* The header of a cubin as nvcc writes it. */
static Elf64_Ehdr header_of(unsigned char abi_version, uint32_t flags) {
  Elf64_Ehdr header;
  memset(&header, 0, sizeof header);
  memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_ABIVERSION] = abi_version;
  header.e_machine = 190;
  header.e_flags = flags;
  return header;
}

static void test_cubin_arch(void** state) {
  (void)state;
  uint32_t arch;
  Elf64_Ehdr header = header_of(7, 0x5a055a); /* CUDA 12, sm_90 */
  assert_true(accrt_cuda_cubin_arch(&header, sizeof header, &arch));
  assert_int_equal(arch, 90);
  header = header_of(8, 0x6005a04); /* CUDA 13, sm_90 */
  assert_true(accrt_cuda_cubin_arch(&header, sizeof header, &arch));
  assert_int_equal(arch, 90);
  header = header_of(8, 0x6006402); /* CUDA 13, sm_100 */
  assert_true(accrt_cuda_cubin_arch(&header, sizeof header, &arch));
  assert_int_equal(arch, 100);
}

static void test_no_cubin(void** state) {
  (void)state;
  uint32_t arch;
  Elf64_Ehdr header = header_of(8, 0x6005a04);
  assert_false(accrt_cuda_cubin_arch(&header, sizeof header - 1, &arch));
  assert_int_equal(arch, 0);
  assert_false(accrt_cuda_cubin_arch("", 0, &arch));
  header.e_machine = EM_X86_64;
  assert_false(accrt_cuda_cubin_arch(&header, sizeof header, &arch));
  header = header_of(8, 0);
  assert_false(accrt_cuda_cubin_arch(&header, sizeof header, &arch));
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

static size_t put_entry(unsigned char* bytes, size_t at, uint16_t kind, uint32_t arch,
                        uint64_t payload_bytes) {
  const uint32_t header_bytes = 64;
  memset(bytes + at, 0, header_bytes);
  memcpy(bytes + at, &kind, sizeof kind);
  memcpy(bytes + at + 4, &header_bytes, sizeof header_bytes);
  memcpy(bytes + at + 8, &payload_bytes, sizeof payload_bytes);
  memcpy(bytes + at + 28, &arch, sizeof arch);
  return at + header_bytes + (size_t)payload_bytes;
}

static void test_fatbin_list(void** state) {
  (void)state;
  unsigned char bytes[512] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0};
  char text[64];
  size_t end = put_entry(bytes, 16, 2, 80, 32);
  end = put_entry(bytes, end, 1, 90, 8);
  accrt_cuda_fatbin_list(bytes, end, text, sizeof text);
  assert_string_equal(text, "sm_80, compute_90");
  /* Cut anywhere: what is whole is listed, nothing beyond is read. */
  for (size_t size = 0; size < end; ++size)
    accrt_cuda_fatbin_list(bytes, size, text, sizeof text);
  accrt_cuda_fatbin_list(bytes, end, text, 8);
  assert_string_equal(text, "sm_80, ");
  /* Sizes that overflow end the list. */
  (void)put_entry(bytes, 16, 2, 80, 0);
  memset(bytes + 24, 0xFF, 8);
  accrt_cuda_fatbin_list(bytes, sizeof bytes, text, sizeof text);
  assert_string_equal(text, "sm_80");
  accrt_cuda_fatbin_list("not a fatbin at all", 19, text, sizeof text);
  assert_string_equal(text, "");
}

static void test_fatbin_fits(void** state) {
  (void)state;
  unsigned char bytes[512] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0};
  size_t end = put_entry(bytes, 16, 2, 80, 32);
  assert_true(accrt_cuda_fatbin_fits(bytes, end, 8, 6));
  assert_false(accrt_cuda_fatbin_fits(bytes, end, 9, 0));
  end = put_entry(bytes, end, 1, 90, 8);
  assert_true(accrt_cuda_fatbin_fits(bytes, end, 9, 0));
  assert_true(accrt_cuda_fatbin_fits(bytes, end, 10, 0));
  assert_false(accrt_cuda_fatbin_fits(bytes, end, 7, 5));
  end = put_entry(bytes, end, 77, 0, 8);
  assert_true(accrt_cuda_fatbin_fits(bytes, end, 7, 5));
  assert_true(accrt_cuda_fatbin_fits("not a fatbin at all", 19, 9, 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cubin_arch),  cmocka_unit_test(test_no_cubin),
      cmocka_unit_test(test_arch_fits),   cmocka_unit_test(test_ptx_arch),
      cmocka_unit_test(test_fatbin_list), cmocka_unit_test(test_fatbin_fits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
