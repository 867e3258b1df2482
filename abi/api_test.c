/* abi/api_test.c - the API table: full, smaller and larger callers, wrong versions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include "accrt/api.h"

static void test_full_table(void** state) {
  (void)state;
  accrt_api_t table;
  assert_int_equal(accrt_get_api(ACCRT_VERSION, &table, sizeof table), ACCRT_OK);
  assert_int_equal(table.struct_size, sizeof table);
  assert_int_equal(table.library_version, accrt_version());
  /* Every slot is a function: none was forgotten. */
  const unsigned char* bytes = (const unsigned char*)&table;
  for (size_t i = offsetof(accrt_api_t, last_error); i < sizeof table; i += sizeof(void*)) {
    void* slot;
    memcpy(&slot, bytes + i, sizeof slot);
    assert_non_null(slot);
  }
  assert_true(table.version == accrt_version);
}

static void test_older_caller_gets_its_part(void** state) {
  (void)state;
  accrt_api_t table;
  memset(&table, 0xA5, sizeof table);
  const size_t half = offsetof(accrt_api_t, status_name);
  assert_int_equal(accrt_get_api(ACCRT_VERSION, &table, half), ACCRT_OK);
  assert_int_equal(table.struct_size, half);
  assert_true(table.last_error == accrt_last_error);
  const unsigned char* bytes = (const unsigned char*)&table;
  for (size_t i = half; i < sizeof table; ++i)
    assert_int_equal(bytes[i], 0xA5);
}

static void test_newer_caller_gets_zeros_behind(void** state) {
  (void)state;
  struct {
    accrt_api_t table;
    void* future[4];
  } caller;
  memset(&caller, 0xA5, sizeof caller);
  assert_int_equal(accrt_get_api(ACCRT_VERSION, &caller.table, sizeof caller), ACCRT_OK);
  assert_int_equal(caller.table.struct_size, sizeof caller.table);
  for (size_t i = 0; i < 4; ++i)
    assert_null(caller.future[i]);
}

static void test_wrong_version_and_arguments(void** state) {
  (void)state;
  accrt_api_t table;
  memset(&table, 0xA5, sizeof table);
  assert_int_equal(accrt_get_api(ACCRT_MAKE_VERSION(7, 3, 0), &table, sizeof table),
                   ACCRT_ERROR_VERSION_MISMATCH);
  assert_int_equal(table.struct_size, 0);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "7.3"));
  assert_int_equal(accrt_get_api(ACCRT_VERSION, NULL, sizeof table), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_get_api(ACCRT_VERSION, &table, 4), ACCRT_ERROR_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_full_table),
      cmocka_unit_test(test_older_caller_gets_its_part),
      cmocka_unit_test(test_newer_caller_gets_zeros_behind),
      cmocka_unit_test(test_wrong_version_and_arguments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
