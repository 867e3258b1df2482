/* What a step program's model takes of a device where nobody says how much. */
#include "serve/step_program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static uint64_t enough(uint64_t weight_bytes, uint32_t row_pages, uint64_t page_bytes) {
  accrt_serve_memory_t memory = ACCRT_SERVE_MEMORY_INIT;
  memory.weight_bytes = weight_bytes;
  memory.row_pages = row_pages;
  memory.page_bytes = page_bytes;
  return accsv_enough_kv_bytes(&memory);
}

/* 100 MB of weights do not take a laptop's whole card; a large model may. */
static void test_a_small_model_takes_little(void** state) {
  (void)state;
  assert_int_equal(enough(100 * MIB, 128, 368640), 1 * GIB);
  assert_int_equal(enough(1 * GIB, 2048, 196608), 4 * GIB);
  assert_int_equal(enough(16 * GIB, 8192, 2097152), 64 * GIB);
  assert_int_equal(enough(1 * GIB, 65536, 196608), 12 * GIB); /* its longest sequence fits */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_small_model_takes_little)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
