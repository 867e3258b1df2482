/* runtime/core/reach_test.c - unit tests of the reach of strided tensors. */
#include "runtime/core/reach.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void assert_reach(uint32_t rank, const int64_t* shape, const int64_t* strides, uint32_t bits,
                         int64_t first_bytes, uint64_t size_bytes) {
  accrt_reach_bytes_t reach;
  assert_true(accrt_reach_measure(rank, shape, strides, bits, &reach));
  assert_true(reach.first_bytes == first_bytes);
  assert_true(reach.size_bytes == size_bytes);
}

static void forward(void** state) {
  (void)state;
  assert_reach(0, NULL, NULL, 32, 0, 4);
  assert_reach(2, (const int64_t[]){3, 4}, (const int64_t[]){4, 1}, 32, 0, 48);
  assert_reach(2, (const int64_t[]){3, 4}, (const int64_t[]){10, 1}, 8, 0, 24);
  assert_reach(1, (const int64_t[]){5}, (const int64_t[]){0}, 64, 0, 8);
  /* The stride of a dimension of one element means nothing. */
  assert_reach(1, (const int64_t[]){1}, (const int64_t[]){INT64_MAX}, 32, 0, 4);
}

static void nothing(void** state) {
  (void)state;
  assert_reach(2, (const int64_t[]){INT64_MAX, 0}, (const int64_t[]){INT64_MAX, INT64_MIN}, 64, 0,
               0);
}

static void backward(void** state) {
  (void)state;
  assert_reach(1, (const int64_t[]){4}, (const int64_t[]){-1}, 32, -12, 16);
  assert_reach(2, (const int64_t[]){2, 3}, (const int64_t[]){-5, 1}, 16, -10, 16);
}

static void under_a_byte(void** state) {
  (void)state;
  accrt_reach_bytes_t reach;
  assert_reach(1, (const int64_t[]){3}, (const int64_t[]){1}, 4, 0, 2);
  assert_false(accrt_reach_measure(1, (const int64_t[]){3}, (const int64_t[]){-1}, 4, &reach));
}

static void overflow(void** state) {
  (void)state;
  accrt_reach_bytes_t reach;
  const int64_t strides[] = {INT64_MAX, INT64_MAX};
  assert_false(accrt_reach_measure(1, (const int64_t[]){4}, strides, 32, &reach));
  assert_false(accrt_reach_measure(2, (const int64_t[]){2, 2}, strides, 8, &reach));
  assert_false(accrt_reach_measure(1, (const int64_t[]){2}, strides, 8, &reach));
  assert_false(
      accrt_reach_measure(1, (const int64_t[]){2}, (const int64_t[]){INT64_MIN}, 8, &reach));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(forward),      cmocka_unit_test(nothing),  cmocka_unit_test(backward),
      cmocka_unit_test(under_a_byte), cmocka_unit_test(overflow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
