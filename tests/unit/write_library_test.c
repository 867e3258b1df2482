/* tests/unit/write_library_test.c - libaccrt_write beside libaccrt: its API table and version,
 * and what it asks of the library below through public functions: records of failures, and the
 * check of bytes that are to become a bundle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include "accrt/accrt.h"
#include "accrt/write/api.h"

static void test_table(void** state) {
  (void)state;
  accrt_write_api_t table;
  assert_int_equal(accrt_write_get_api(ACCRT_VERSION, &table, sizeof table), ACCRT_OK);
  assert_int_equal(table.struct_size, sizeof table);
  assert_int_equal(table.library_version, accrt_version());
  assert_int_equal(accrt_write_version(), accrt_version());
  const unsigned char* bytes = (const unsigned char*)&table;
  for (size_t i = offsetof(accrt_write_api_t, write_version); i < sizeof table;
       i += sizeof(void*)) {
    void* slot;
    memcpy(&slot, bytes + i, sizeof slot);
    assert_non_null(slot);
  }
  assert_int_equal(accrt_write_get_api(ACCRT_MAKE_VERSION(7, 3, 0), &table, sizeof table),
                   ACCRT_ERROR_VERSION_MISMATCH);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_string_equal(error.operation, "accrt_write_get_api");
  assert_non_null(strstr(error.message, "7.3"));
}

static void test_records_of_libraries_above(void** state) {
  (void)state;
  accrt_error_t error = ACCRT_ERROR_INIT, found = ACCRT_ERROR_INIT;
  error.status = ACCRT_ERROR_IO;
  error.driver_code = 5;
  error.source_line = 7;
  strcpy(error.driver_name, "EIO");
  strcpy(error.operation, "someone_else");
  strcpy(error.message, "two\nlines");
  assert_int_equal(accrt_set_error(&error), ACCRT_OK);
  assert_int_equal(accrt_last_error(&found), ACCRT_OK);
  assert_int_equal(found.status, ACCRT_ERROR_IO);
  assert_int_equal(found.driver_code, 5);
  assert_int_equal(found.source_line, 7);
  assert_string_equal(found.driver_name, "EIO");
  assert_string_equal(found.operation, "someone_else");
  assert_string_equal(found.message, "two lines");
  /* Text that does not end. */
  memset(error.message, 'x', sizeof error.message);
  assert_int_equal(accrt_set_error(&error), ACCRT_OK);
  assert_int_equal(accrt_last_error(&found), ACCRT_OK);
  assert_int_equal(strlen(found.message), sizeof found.message - 1);
  /* A bad argument leaves the record alone. */
  error.struct_size = 8;
  error.status = ACCRT_ERROR_TIMEOUT;
  assert_int_equal(accrt_set_error(NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_set_error(&error), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_last_error(&found), ACCRT_OK);
  assert_int_equal(found.status, ACCRT_ERROR_IO);
}

/* A failure of a writer is in the record that accrt_last_error gives, under the name of the function that was called, also when it was
 * found by a function of the library below. */
static void test_failures_of_writers(void** state) {
  (void)state;
  accrt_bundle_writer_t* writer;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_writer_function_t function = ACCRT_WRITER_FUNCTION_INIT;
  accrt_writer_id_t id, body, symbol;
  accrt_writer_symbol_t n = ACCRT_WRITER_SYMBOL_INIT;
  assert_int_equal(accrt_bundle_writer_create(NULL, &writer), ACCRT_OK);
  assert_int_equal(accrt_bundle_writer_add_metadata(writer, "", "x"), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_INVALID_ARGUMENT);
  assert_string_equal(error.operation, "accrt_bundle_writer_add_metadata");
  assert_non_null(strstr(error.source_file, "write/"));
  assert_int_not_equal(error.source_file[0], '/'); /* of the project, not of who built it */
  assert_true(error.source_line > 0);
  /* Nothing binds the symbol: the verifier says so. */
  n.name = "n";
  n.maximum = 8;
  n.divisor = 1;
  assert_int_equal(accrt_bundle_writer_add_symbol(writer, &n, &symbol), ACCRT_OK);
  function.name = "f";
  assert_int_equal(accrt_bundle_writer_add_function(writer, &function, &id, &body), ACCRT_OK);
  accrt_writer_id_t arena;
  assert_int_equal(accrt_bundle_writer_arena(writer, id, symbol, 64, &arena), ACCRT_OK);
  assert_int_equal(accrt_bundle_writer_check(writer, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_int_equal(error.status, ACCRT_ERROR_INVALID_ARGUMENT);
  assert_string_equal(error.operation, "accrt_bundle_writer_check");
  assert_non_null(strstr(error.message, "rule"));
  accrt_bundle_writer_release(writer);
}

/* Callbacks that use the libraries, as they may, and fail: the record names the outer call. */
static void use_another_writer(void) {
  accrt_bundle_writer_t* another;
  assert_int_equal(accrt_bundle_writer_create(NULL, &another), ACCRT_OK);
  accrt_bundle_writer_release(another);
}
static int32_t nosy_read(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  (void)offset;
  use_another_writer();
  memset(target, 0, size_bytes);
  return *(const int32_t*)self;
}
static int32_t nosy_write(void* self, uint64_t offset, const void* data, uint64_t size_bytes) {
  (void)offset;
  (void)data;
  (void)size_bytes;
  use_another_writer();
  return *(const int32_t*)self;
}
static void test_callbacks_keep_the_name(void** state) {
  (void)state;
  accrt_bundle_writer_t* writer;
  int32_t read_code = 5, write_code = 0;
  const accrt_writer_bytes_t bytes = {
      .size_bytes = 100, .kind = ACCRT_WRITER_BYTES_READER, .read = nosy_read, .self = &read_code};
  const accrt_writer_output_t output = {.self = &write_code, .write = nosy_write};
  assert_int_equal(accrt_bundle_writer_create(NULL, &writer), ACCRT_OK);
  assert_int_equal(accrt_bundle_writer_add_asset(writer, "a", "text/plain", &bytes), ACCRT_OK);
  for (int turn = 0; turn < 2; ++turn) {
    accrt_error_t error = ACCRT_ERROR_INIT;
    assert_int_equal(accrt_bundle_writer_write_callback(writer, &output), ACCRT_ERROR_IO);
    assert_int_equal(accrt_last_error(&error), ACCRT_OK);
    assert_string_equal(error.operation, "accrt_bundle_writer_write_callback");
    assert_int_equal(error.driver_code, turn == 0 ? 5 : 7);
    read_code = 0;
    write_code = 7;
  }
  accrt_bundle_writer_release(writer);
}

static int32_t read_nothing(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  (void)offset;
  memset(target, 0, size_bytes);
  return *(const int32_t*)self;
}

static void test_check_of_bytes(void** state) {
  (void)state;
  int32_t result = 0;
  const accrt_reader_t reader = {&result, 4096, read_nothing, NULL};
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  accrt_error_t error = ACCRT_ERROR_INIT;
  info.section_count = 77;
  assert_int_equal(accrt_bundle_check(NULL, NULL, &info), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_check(NULL, &reader, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_check(NULL, &reader, &info), ACCRT_ERROR_INVALID_FORMAT);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_string_equal(error.operation, "accrt_bundle_check");
  result = 5;
  assert_int_equal(accrt_bundle_check(NULL, &reader, &info), ACCRT_ERROR_IO);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_int_equal(error.driver_code, 5);
  assert_int_equal(info.section_count, 77);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_records_of_libraries_above),
      cmocka_unit_test(test_failures_of_writers),
      cmocka_unit_test(test_callbacks_keep_the_name),
      cmocka_unit_test(test_check_of_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
