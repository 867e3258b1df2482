/* Host allocation: zeroed, sized, overflow-checked, through the given allocator alone. */
#include "runtime/core/test_allocator.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "runtime/core/memory.h"

static test_allocator_t counter;
static accrt_allocator_t allocator;

static int set_up(void** state) {
  (void)state;
  memset(&counter, 0, sizeof counter);
  allocator = test_allocator_interface(&counter);
  return 0;
}

static int tear_down(void** state) {
  (void)state;
  return (int)(atomic_load(&counter.live_count) + atomic_load(&counter.wrong_count));
}

static void test_alloc(void** state) {
  (void)state;
  void *a, *b;
  assert_int_equal(accrt_alloc(&allocator, 0, &a), ACCRT_OK);
  assert_null(a);
  assert_int_equal(accrt_alloc(&allocator, 100, &a), ACCRT_OK);
  for (int i = 0; i < 100; ++i)
    assert_int_equal(((unsigned char*)a)[i], 0);
  assert_int_equal(accrt_alloc_aligned(&allocator, 10, 4096, &b), ACCRT_OK);
  assert_int_equal((uintptr_t)b % 4096, 0);
  accrt_free(&allocator, a, 100);
  accrt_free_aligned(&allocator, b, 10, 4096);
  accrt_free(&allocator, NULL, 5);
  test_allocator_fail(&counter, 1, 0);
  assert_int_equal(accrt_alloc(&allocator, 123, &a), ACCRT_ERROR_OUT_OF_MEMORY);
  assert_null(a);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "123 bytes"));
}

static void test_arrays(void** state) {
  (void)state;
  void* array;
  assert_int_equal(accrt_alloc_array(&allocator, SIZE_MAX / 2, 3, &array), ACCRT_ERROR_OVERFLOW);
  assert_null(array);
  size_t capacity = 0;
  array = NULL;
  for (size_t needed = 1; needed < 100; ++needed) {
    assert_int_equal(accrt_grow_array(&allocator, needed, sizeof(uint32_t), &capacity, &array),
                     ACCRT_OK);
    assert_true(capacity >= needed);
    assert_int_equal(((uint32_t*)array)[needed - 1], 0);
    ((uint32_t*)array)[needed - 1] = (uint32_t)needed;
  }
  for (uint32_t i = 0; i < 99; ++i)
    assert_int_equal(((uint32_t*)array)[i], i + 1);
  const size_t before = capacity;
  test_allocator_fail(&counter, 1, 0);
  assert_int_equal(accrt_grow_array(&allocator, 5000, sizeof(uint32_t), &capacity, &array),
                   ACCRT_ERROR_OUT_OF_MEMORY);
  assert_int_equal(capacity, before); /* unchanged */
  assert_int_equal(accrt_grow_array(&allocator, SIZE_MAX, 8, &capacity, &array),
                   ACCRT_ERROR_OVERFLOW);
  accrt_free_array(&allocator, array, capacity, sizeof(uint32_t));
}

static void test_strings(void** state) {
  (void)state;
  char* text;
  assert_int_equal(accrt_copy_string(&allocator, NULL, &text), ACCRT_OK);
  assert_null(text);
  assert_int_equal(accrt_copy_string(&allocator, "copied", &text), ACCRT_OK);
  assert_string_equal(text, "copied");
  accrt_free_string(&allocator, text);
  accrt_free_string(&allocator, NULL);
}

static void test_arithmetic(void** state) {
  (void)state;
  uint64_t value;
  assert_true(accrt_add_u64(UINT64_MAX - 1, 1, &value));
  assert_false(accrt_add_u64(UINT64_MAX, 1, &value));
  assert_true(accrt_mul_u64(UINT32_MAX, UINT32_MAX, &value));
  assert_false(accrt_mul_u64(UINT64_MAX, 2, &value));
  assert_true(accrt_align_u64(1, 256, &value));
  assert_int_equal(value, 256);
  assert_true(accrt_align_u64(0, 256, &value));
  assert_int_equal(value, 0);
  assert_false(accrt_align_u64(UINT64_MAX - 10, 256, &value));
  assert_true(accrt_range_fits(10, 0, 10));
  assert_true(accrt_range_fits(4, 6, 10));
  assert_false(accrt_range_fits(4, 7, 10));
  assert_false(accrt_range_fits(11, 0, 10));
  assert_false(accrt_range_fits(UINT64_MAX, UINT64_MAX, 10));
  assert_true(accrt_is_power_of_two(1));
  assert_false(accrt_is_power_of_two(0));
  assert_false(accrt_is_power_of_two(12));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_alloc, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_arrays, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_strings, set_up, tear_down),
      cmocka_unit_test(test_arithmetic),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
