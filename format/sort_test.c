/* format/sort_test.c - accx_sort beside qsort: every size up to a hundred, few and many different
 * values, orders that are there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "format/sort.h"

#define MOST 1000u

static uint64_t state = UINT64_C(0x9E3779B97F4A7C15);

static uint32_t random_below(uint32_t limit) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(state >> 33) % limit;
}

static bool less(const void* context, uint32_t a, uint32_t b) {
  const uint32_t* values = context;
  return values[a] < values[b];
}

static int compare(const void* a, const void* b) {
  const uint32_t x = *(const uint32_t*)a, y = *(const uint32_t*)b;
  return (x > y) - (x < y);
}

/* The indices are those that there were, and what they stand for ascends. */
static void check(const uint32_t* values, uint32_t count) {
  static uint32_t order[MOST], sorted[MOST];
  bool seen[MOST] = {false};
  for (uint32_t i = 0; i < count; ++i) {
    order[i] = count - 1 - i;
    sorted[i] = values[i];
  }
  accx_sort(order, count, less, values);
  qsort(sorted, count, sizeof *sorted, compare);
  for (uint32_t i = 0; i < count; ++i) {
    assert_true(order[i] < count && !seen[order[i]]);
    seen[order[i]] = true;
    assert_int_equal(values[order[i]], sorted[i]);
  }
}

static void random_values(void** unused) {
  (void)unused;
  static uint32_t values[MOST];
  for (uint32_t count = 0; count <= MOST; count += count < 100 ? 1 : 300) {
    for (uint32_t kinds = 1; kinds <= MOST; kinds *= 10) {
      for (uint32_t i = 0; i < count; ++i)
        values[i] = random_below(kinds);
      check(values, count);
    }
  }
}

static void orders_that_are_there(void** unused) {
  (void)unused;
  static uint32_t values[MOST];
  for (uint32_t i = 0; i < MOST; ++i)
    values[i] = i;
  check(values, MOST);
  for (uint32_t i = 0; i < MOST; ++i)
    values[i] = MOST - i;
  check(values, MOST);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_values),
      cmocka_unit_test(orders_that_are_there),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
