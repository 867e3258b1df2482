/* Capabilities and processor features: consistent with one another and with what the compiler says
 * of this machine. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "accrt/instance.h"
#include "accrt/tensor.h"
#include "format/format.h"
#include "runtime/core/cpu.h"

static void test_caps(void** state) {
  (void)state;
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  assert_int_equal(accrt_query_caps(&caps), ACCRT_OK);
  assert_int_equal(caps.library_version, ACCRT_VERSION);
  assert_int_equal(caps.container_minor, ACCX_CONTAINER_MINOR);
  assert_int_equal(caps.max_rank, ACCRT_MAX_RANK);
  assert_int_equal(caps.cpu_features, accrt_cpu_features());
  assert_string_equal(caps.cpu_arch, accrt_cpu_arch());
  for (uint32_t dtype = 0; dtype < 64; ++dtype) {
    assert_int_equal(caps.dtype_mask >> dtype & 1, accrt_dtype_bits(dtype) != 0);
  }
  assert_int_equal(caps.command_mask & 1, 0);
  assert_true(caps.command_mask >> ACCX_COMMAND_MARKER & 1);
  assert_true(caps.encoding_mask >> ACCX_ENCODING_OPAQUE & 1);
}

static void test_processor(void** state) {
  (void)state;
  const uint64_t features = accrt_cpu_features();
  char name[64], small[4];
  accrt_cpu_name(name, sizeof name);
  assert_true(name[0] != '\0' && name[0] != ' ');
  accrt_cpu_name(small, sizeof small);
  assert_int_equal(strlen(small), 3);
#if defined(__x86_64__)
  /* Each level contains the one below. */
  if (features & ACCRT_CPU_X86_64_V4)
    assert_true(features & ACCRT_CPU_X86_64_V3);
  if (features & ACCRT_CPU_X86_64_V3)
    assert_true(features & ACCRT_CPU_X86_64_V2);
  assert_int_equal((features & ACCRT_CPU_X86_64_V3) != 0, __builtin_cpu_supports("avx2") &&
                                                              __builtin_cpu_supports("fma") &&
                                                              __builtin_cpu_supports("bmi2"));
  assert_int_equal((features & ACCRT_CPU_X86_64_V4) != 0, __builtin_cpu_supports("avx512f") &&
                                                              __builtin_cpu_supports("avx512bw") &&
                                                              __builtin_cpu_supports("avx512vl"));
  assert_int_equal((features & ACCRT_CPU_AVX512_VNNI) != 0,
                   __builtin_cpu_supports("avx512vnni") != 0);
#else
  assert_string_equal(accrt_cpu_arch(), "aarch64");
  assert_true(features & ACCRT_CPU_ARM_NEON);
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_caps), cmocka_unit_test(test_processor)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
