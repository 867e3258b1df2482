/* abi/api_test.c - the API table: full, smaller and larger callers, wrong versions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "accrt/api.h"

static void test_full_table(void** state) {
  (void)state;
  accrt_api_t table;
  assert_int_equal(accrt_get_api(ACCRT_VERSION, &table, sizeof table), ACCRT_OK);
  assert_int_equal(table.struct_size, sizeof table);
  assert_int_equal(table.library_version, accrt_version());
  /* Every slot of the table has a function. */
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
  /* Below 1.0 every other minor version, older or newer, is another interface. */
  const uint32_t others[] = {ACCRT_MAKE_VERSION(0, ACCRT_VERSION_MINOR - 1, 0),
                             ACCRT_MAKE_VERSION(0, ACCRT_VERSION_MINOR + 1, 9)};
  for (int i = 0; ACCRT_VERSION_MAJOR == 0 && i < 2; ++i) {
    char own[16], other[16];
    (void)snprintf(own, sizeof own, "%d.%d", ACCRT_VERSION_MAJOR, ACCRT_VERSION_MINOR);
    (void)snprintf(other, sizeof other, "0.%u", (unsigned)(others[i] >> 12 & 0xFFF));
    memset(&table, 0xA5, sizeof table);
    assert_int_equal(accrt_get_api(others[i], &table, sizeof table), ACCRT_ERROR_VERSION_MISMATCH);
    assert_int_equal(table.struct_size, 0);
    assert_int_equal(accrt_last_error(&error), ACCRT_OK);
    assert_non_null(strstr(error.message, own));
    assert_non_null(strstr(error.message, other));
  }
  /* A patch version does not change the interface. */
  assert_int_equal(accrt_get_api(ACCRT_VERSION + 1, &table, sizeof table), ACCRT_OK);
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
