/* Copies and fills: every shape against a plain loop, ranges, overlap, overflow, patterns. */
#include "runtime/drivers/common/test_driver.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define FOREVER ACCRT_TIMEOUT_INFINITE

static test_world_t world;
static accrt_stream_t* stream;
static accrt_pool_t* pool;

static int set_up(void** state) {
  (void)state;
  if (test_world_open(&world, TEST_DRIVER_SYNCHRONOUS) != ACCRT_OK)
    return 1;
  if (accrt_stream_create(world.device, NULL, &stream) != ACCRT_OK)
    return 1;
  return accrt_device_pool(world.device, ACCRT_MEMORY_DEVICE, &pool);
}

static int tear_down(void** state) {
  (void)state;
  accrt_stream_release(stream);
  return (int)test_world_close(&world);
}

static accrt_buffer_t* make_buffer(uint64_t size_bytes) {
  accrt_buffer_t* buffer;
  assert_int_equal(accrt_buffer_create(pool, size_bytes, NULL, &buffer), ACCRT_OK);
  return buffer;
}

static unsigned char* bytes_of(accrt_buffer_t* buffer) {
  void* pointer;
  assert_int_equal(accrt_buffer_map(buffer, 0, 0, &pointer), ACCRT_OK);
  assert_int_equal(accrt_buffer_unmap(buffer), ACCRT_OK);
  return pointer;
}

/* Records name what was called, not a helper inside. */
static void assert_operation(const char* operation) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_string_equal(error.operation, operation);
}

static const char* message(void) {
  static accrt_error_t error;
  error = (accrt_error_t)ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  return error.message;
}

static void test_between_any_two_places(void** state) {
  (void)state;
  accrt_buffer_t *a = make_buffer(64), *b = make_buffer(64);
  unsigned char host[64], back[64];
  for (int i = 0; i < 64; ++i)
    host[i] = (unsigned char)(i + 1);
  const accrt_place_t from_host = {NULL, host, 8}, in_a = {a, NULL, 16}, in_b = {b, NULL, 0},
                      to_host = {NULL, back, 4};
  memset(back, 0, sizeof back);
  assert_int_equal(accrt_stream_copy(stream, &from_host, &in_a, 40), ACCRT_OK);
  assert_int_equal(accrt_stream_copy(stream, &in_a, &in_b, 40), ACCRT_OK);
  assert_int_equal(accrt_stream_copy(stream, &in_b, &to_host, 40), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_memory_equal(back + 4, host + 8, 40);
  assert_int_equal(back[3], 0);
  assert_int_equal(back[44], 0);
  accrt_buffer_release(a);
  accrt_buffer_release(b);
}

static void test_ranges(void** state) {
  (void)state;
  accrt_buffer_t *a = make_buffer(64), *b = make_buffer(32);
  unsigned char host[64];
  const accrt_place_t in_a = {a, NULL, 60}, in_b = {b, NULL, 0}, nowhere = {NULL, NULL, 0},
                      wraps = {NULL, host, UINT64_MAX - 8};
  const accrt_place_t far = {a, NULL, UINT64_MAX};
  assert_int_equal(accrt_stream_copy(stream, &in_a, &in_b, 5), ACCRT_ERROR_OUT_OF_RANGE);
  assert_non_null(strstr(message(), "source: offset 60 + size 5 is past the buffer's 64 bytes"));
  assert_int_equal(accrt_stream_copy(stream, &in_b, &in_a, 5), ACCRT_ERROR_OUT_OF_RANGE);
  assert_non_null(strstr(message(), "target"));
  assert_operation("accrt_stream_copy");
  assert_int_equal(accrt_stream_copy(stream, &far, &in_b, 2), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_stream_copy(stream, &wraps, &in_b, 30), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_stream_copy(stream, &nowhere, &in_b, 1), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_copy(stream, &nowhere, &in_b, 0), ACCRT_OK);
  assert_int_equal(accrt_stream_copy(stream, NULL, &in_b, 0), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_copy(stream, &in_b, NULL, 0), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_copy(NULL, &in_a, &in_b, 0), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_copy_strided(stream, &in_a, &in_b, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_fill(stream, &in_a, 8, 0, 4), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_stream_fill(stream, &in_a, 4, 0, 3), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_fill(stream, &in_a, 4, 0, 8), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_fill(stream, NULL, 4, 0, 4), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_fill(stream, &(accrt_place_t){NULL, host + 1, 0}, 4, 0, 4),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_stream_query(stream), ACCRT_OK);
  accrt_buffer_release(a);
  accrt_buffer_release(b);
}

static void test_overlap(void** state) {
  (void)state;
  accrt_buffer_t* a = make_buffer(64);
  const accrt_place_t at_0 = {a, NULL, 0}, at_8 = {a, NULL, 8}, raw = {NULL, bytes_of(a) + 4, 0};
  assert_int_equal(accrt_stream_copy(stream, &at_0, &at_8, 9), ACCRT_ERROR_ALIASED);
  assert_int_equal(accrt_stream_copy(stream, &at_8, &at_0, 9), ACCRT_ERROR_ALIASED);
  assert_int_equal(accrt_stream_copy(stream, &at_0, &at_0, 1), ACCRT_ERROR_ALIASED);
  assert_int_equal(accrt_stream_copy(stream, &raw, &at_0, 8), ACCRT_ERROR_ALIASED);
  assert_int_equal(accrt_stream_copy(stream, &at_0, &at_8, 8), ACCRT_OK);
  assert_int_equal(accrt_stream_copy(stream, &at_0, &at_0, 0), ACCRT_OK);
  accrt_buffer_release(a);
}

static void test_overflow(void** state) {
  (void)state;
  accrt_buffer_t *a = make_buffer(64), *b = make_buffer(64);
  const accrt_place_t from = {a, NULL, 0}, to = {b, NULL, 0};
  accrt_copy_region_t region = {{16, 3, 1}, {UINT64_MAX / 2 + 1, 0}, {16, 0}};
  assert_int_equal(accrt_stream_copy_strided(stream, &from, &to, &region), ACCRT_ERROR_OVERFLOW);
  region = (accrt_copy_region_t){{16, 2, 2}, {UINT64_MAX - 20, UINT64_MAX - 20}, {16, 0}};
  assert_int_equal(accrt_stream_copy_strided(stream, &from, &to, &region), ACCRT_ERROR_OVERFLOW);
  region = (accrt_copy_region_t){{16, 2, 1}, {49, 0}, {16, 0}};
  assert_int_equal(accrt_stream_copy_strided(stream, &from, &to, &region),
                   ACCRT_ERROR_OUT_OF_RANGE);
  /* Strides of extents of one, or of nothing at all, do not matter. */
  region = (accrt_copy_region_t){{16, 1, 1}, {UINT64_MAX, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}};
  assert_int_equal(accrt_stream_copy_strided(stream, &from, &to, &region), ACCRT_OK);
  region = (accrt_copy_region_t){{16, 0, 5}, {UINT64_MAX, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}};
  assert_int_equal(accrt_stream_copy_strided(stream, &from, &to, &region), ACCRT_OK);
  accrt_buffer_release(a);
  accrt_buffer_release(b);
}

static void test_strided_against_a_loop(void** state) {
  (void)state;
  enum { SIZE = 4096 };
  accrt_buffer_t *a = make_buffer(SIZE), *b = make_buffer(SIZE);
  unsigned char *source = bytes_of(a), *target = bytes_of(b), expected[SIZE];
  for (uint64_t w = 0; w <= 5; ++w) {
    for (uint64_t h = 0; h <= 4; ++h) {
      for (uint64_t d = 0; d <= 3; ++d) {
        const accrt_copy_region_t region = {{w, h, d}, {w + 3, 101}, {2 * w + 1, 97}};
        for (int i = 0; i < SIZE; ++i)
          source[i] = (unsigned char)(i * 31 + (int)w);
        memset(target, 0xCC, SIZE);
        memset(expected, 0xCC, SIZE);
        for (uint64_t z = 0; z < d; ++z) {
          for (uint64_t y = 0; y < h; ++y)
            memcpy(expected + 7 + z * 97 + y * (2 * w + 1), source + 5 + z * 101 + y * (w + 3), w);
        }
        const accrt_place_t from = {a, NULL, 5}, to = {b, NULL, 7};
        assert_int_equal(accrt_stream_copy_strided(stream, &from, &to, &region), ACCRT_OK);
        assert_memory_equal(target, expected, SIZE);
      }
    }
  }
  accrt_buffer_release(a);
  accrt_buffer_release(b);
}

static void test_fill_patterns(void** state) {
  (void)state;
  accrt_buffer_t* a = make_buffer(64);
  unsigned char* bytes = bytes_of(a);
  const uint64_t pattern = UINT64_C(0x8877665544332211);
  for (uint32_t width = 1; width <= 8; width *= 2) {
    memset(bytes, 0xCC, 64);
    const accrt_place_t place = {a, NULL, 16};
    assert_int_equal(accrt_stream_fill(stream, &place, 24, pattern, width), ACCRT_OK);
    for (uint32_t i = 0; i < 64; ++i) {
      const unsigned char inside = (unsigned char)(pattern >> (8 * (i % width)));
      assert_int_equal(bytes[i], i >= 16 && i < 40 ? inside : 0xCC);
    }
    assert_int_equal(accrt_stream_fill(stream, &place, 0, pattern, width), ACCRT_OK);
  }
  accrt_buffer_release(a);
}

/* ACCRT_TO_END, in every function with the size of a range in a buffer: to its end; where there is
 * none it does not fit. */
static void test_to_the_end(void** state) {
  (void)state;
  accrt_buffer_t *a = make_buffer(64), *b = make_buffer(40);
  unsigned char *in_a = bytes_of(a), *in_b = bytes_of(b), host[64];
  const accrt_place_t at = {a, NULL, 40}, past = {a, NULL, 65}, end = {a, NULL, 64},
                      target = {b, NULL, 8}, memory = {NULL, host, 0};
  void* pointer;
  memset(in_a, 1, 64);
  memset(in_b, 2, 40);
  memset(host, 3, sizeof host);
  assert_int_equal(accrt_stream_fill(stream, &at, ACCRT_TO_END, 7, 1), ACCRT_OK);
  assert_true(in_a[39] == 1 && in_a[40] == 7 && in_a[63] == 7);
  assert_int_equal(accrt_stream_fill(stream, &end, ACCRT_TO_END, 9, 1), ACCRT_OK);
  assert_int_equal(accrt_stream_fill(stream, &past, ACCRT_TO_END, 9, 1), ACCRT_ERROR_OUT_OF_RANGE);
  assert_non_null(strstr(message(), "+ size 0 is past the buffer's"));
  assert_int_equal(accrt_stream_fill(stream, &memory, ACCRT_TO_END, 9, 1),
                   ACCRT_ERROR_OUT_OF_RANGE); /* in no buffer */
  for (uint32_t pattern_bytes = 1; pattern_bytes <= 8; pattern_bytes *= 2) {
    const accrt_place_t behind = {a, NULL, 72};
    assert_int_equal(accrt_stream_fill(stream, &behind, ACCRT_TO_END, 9, pattern_bytes),
                     ACCRT_ERROR_OUT_OF_RANGE);
    assert_int_equal(accrt_stream_fill(stream, &memory, ACCRT_TO_END, 9, pattern_bytes),
                     ACCRT_ERROR_OUT_OF_RANGE);
  }
  assert_int_equal(accrt_stream_copy(stream, &at, &target, ACCRT_TO_END), ACCRT_OK); /* 24 bytes */
  assert_true(in_b[7] == 2 && in_b[8] == 7 && in_b[31] == 7 && in_b[32] == 2);
  assert_int_equal(accrt_stream_copy(stream, &at, &memory, ACCRT_TO_END), ACCRT_OK);
  assert_true(host[23] == 7 && host[24] == 3);
  assert_int_equal(accrt_stream_copy(stream, &memory, &at, ACCRT_TO_END), ACCRT_OK);
  assert_memory_equal(in_a + 40, host, 24);
  assert_int_equal(accrt_stream_copy(stream, &memory, &memory, ACCRT_TO_END),
                   ACCRT_ERROR_OUT_OF_RANGE);
  /* One row of a strided copy is a copy; several have no end of their own. */
  assert_non_null(strstr(message(), "ACCRT_TO_END, and host memory has no known end"));
  accrt_copy_region_t row = {.extent = {ACCRT_TO_END, 1, 1}};
  memset(in_b, 2, 40);
  assert_int_equal(accrt_stream_copy_strided(stream, &at, &target, &row), ACCRT_OK);
  assert_true(in_b[7] == 2 && in_b[8] == 7 && in_b[31] == 7 && in_b[32] == 2);
  assert_int_equal(accrt_stream_copy_strided(stream, &memory, &target, &row), ACCRT_OK);
  assert_true(in_b[7] == 2 && in_b[8] == 7 && in_b[39] == 3);
  assert_int_equal(accrt_stream_copy_strided(stream, &memory, &memory, &row),
                   ACCRT_ERROR_OUT_OF_RANGE);
  row.extent[1] = 2;
  assert_int_equal(accrt_stream_copy_strided(stream, &at, &target, &row), ACCRT_ERROR_OUT_OF_RANGE);
  assert_non_null(strstr(message(), "ACCRT_TO_END, which is for one row, not for 2 x 1"));
  row.extent[1] = 0; /* nothing */
  assert_int_equal(accrt_stream_copy_strided(stream, &at, &target, &row), ACCRT_OK);
  const accrt_place_t long_source = {a, NULL, 0};
  assert_int_equal(accrt_stream_copy(stream, &long_source, &target, ACCRT_TO_END),
                   ACCRT_ERROR_OUT_OF_RANGE); /* 64 bytes do not fit the target */
  assert_int_equal(accrt_buffer_map(a, 40, ACCRT_TO_END, &pointer), ACCRT_OK);
  assert_ptr_equal(pointer, in_a + 40);
  assert_int_equal(accrt_buffer_unmap(a), ACCRT_OK);
  assert_int_equal(accrt_buffer_map(a, 65, ACCRT_TO_END, &pointer), ACCRT_ERROR_OUT_OF_RANGE);
  assert_non_null(strstr(message(), "offset 65 + size 0 is past the buffer's 64 bytes"));
  /* A file. */
  FILE* file = tmpfile();
  assert_non_null(file);
  assert_int_equal(fwrite(host, 1, sizeof host, file), sizeof host);
  assert_int_equal(fflush(file), 0);
  memset(in_a, 0, 64);
  assert_int_equal(accrt_stream_read_file(stream, fileno(file), 4, &at, ACCRT_TO_END, 0), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_memory_equal(in_a + 40, host + 4, 24);
  assert_int_equal(accrt_stream_read_file(stream, fileno(file), 0, &memory, ACCRT_TO_END, 0),
                   ACCRT_ERROR_OUT_OF_RANGE);
  (void)fclose(file);
  /* Recorded: a buffer has an end, a binding has none yet. */
  accrt_commands_t* commands;
  const accrt_binding_place_t named = {ACCRT_BINDING_NONE, 0, at}, bound = {0, 0, {NULL, NULL, 8}};
  assert_int_equal(accrt_commands_create(world.device, 1, &commands), ACCRT_OK);
  assert_int_equal(accrt_commands_fill(commands, &bound, ACCRT_TO_END, 5, 1, NULL, NULL),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_commands_fill(commands, &named, ACCRT_TO_END, 5, 1, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_fill(commands, &bound, 8, 6, 1, NULL, NULL), ACCRT_OK);
  const accrt_binding_place_t half = {ACCRT_BINDING_NONE, 0, {a, NULL, 32}};
  row.extent[1] = 1;
  assert_int_equal(accrt_commands_copy(commands, &bound, &half, &row, NULL, NULL),
                   ACCRT_ERROR_OUT_OF_RANGE); /* the source says where it ends, and has no end */
  assert_non_null(strstr(message(), "ACCRT_TO_END, and where a binding ends is not known"));
  row.extent[2] = 3;
  assert_int_equal(accrt_commands_copy(commands, &half, &bound, &row, NULL, NULL),
                   ACCRT_ERROR_OUT_OF_RANGE);
  row.extent[2] = 1;
  const accrt_binding_place_t last = {ACCRT_BINDING_NONE, 0, {a, NULL, 60}},
                              memory_place = {ACCRT_BINDING_NONE, 0, memory},
                              behind = {0, 0, {NULL, NULL, 20}};
  assert_int_equal(accrt_commands_copy(commands, &last, &behind, &row, NULL, NULL), ACCRT_OK);
  assert_int_equal(accrt_commands_copy(commands, &memory_place, &behind, &row, NULL, NULL),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_commands_finalize(commands), ACCRT_OK);
  const accrt_binding_t binding = {.buffer = b, .offset_bytes = 16, .size_bytes = ACCRT_TO_END};
  assert_int_equal(accrt_stream_submit(stream, commands, &binding, 1, sizeof binding), ACCRT_OK);
  assert_int_equal(accrt_stream_synchronize(stream, FOREVER, 0), ACCRT_OK);
  assert_true(in_a[39] == 0 && in_a[40] == 5 && in_a[63] == 5);
  assert_true(in_b[24] == 6 && in_b[31] == 6);
  assert_true(in_b[35] != 5 && in_b[36] == 5 && in_b[39] == 5); /* 4 bytes */
  accrt_commands_release(commands);
  accrt_buffer_release(a);
  accrt_buffer_release(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_to_the_end, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_between_any_two_places, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_ranges, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_overlap, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_overflow, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_strided_against_a_loop, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_fill_patterns, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
