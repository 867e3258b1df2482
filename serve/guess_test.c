/* serve/guess_test.c - drafts are what a plain search of the whole text finds: texts of few and of
 * many tokens, with every range of sizes, looked at after each token or now and then. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "serve/guess.h"
#include "tests/random.h"

#define MOST 600u

static uint64_t random_state;

static uint32_t below(uint32_t limit) {
  return (uint32_t)test_below(&random_state, limit);
}

static uint32_t search(const int32_t* tokens, uint32_t count, const accsv_lookup_t* lookup,
                       uint32_t wanted, int32_t* out) {
  for (uint32_t size = lookup->most; size >= lookup->least; --size) {
    for (uint32_t end = count > 0 ? count - 1 : 0; end >= size; --end) {
      if (memcmp(tokens + end - size, tokens + count - size, size * sizeof *tokens) != 0)
        continue;
      for (uint32_t i = 0; i < wanted; ++i)
        out[i] = end + i < count ? tokens[end + i] : out[end + i - count];
      return wanted;
    }
  }
  return 0;
}

static void one_text(uint32_t* found) {
  int32_t tokens[MOST], expected[8], got[8];
  const uint32_t limit = 1 + below(MOST), kinds = 1 + below(below(2) != 0 ? 3 : 5000);
  accsv_lookup_t lookup = {.least = 1 + below(4), .seed = random_state};
  lookup.most = lookup.least + below(5);
  accsv_lookback_t lookback;
  assert_int_equal(accsv_lookback_init(&lookback, &accsv_allocator_system, &lookup, limit),
                   ACCRT_OK);
  const uint32_t each = 1 + below(3);
  for (uint32_t count = 1; count <= limit; ++count) {
    tokens[count - 1] = count > 40 && below(3) != 0 ? tokens[count - 38] : (int32_t)below(kinds);
    if (count % 5 == 0)
      accsv_lookback_fetch(&lookback, tokens, count);
    if (below(each) != 0)
      continue; /* the next look finds several that are new */
    const uint32_t wanted = 1 + below(8);
    const uint32_t there = search(tokens, count, &lookup, wanted, expected);
    assert_int_equal(accsv_guess(&lookback, tokens, count, wanted, got), there);
    assert_memory_equal(got, expected, there * sizeof *got);
    *found += there > 0;
  }
  accsv_lookback_deinit(&lookback, &accsv_allocator_system);
}

static void test_texts(void** state) {
  (void)state;
  uint32_t found = 0;
  for (uint32_t i = 0; i < 200; ++i)
    one_text(&found);
  assert_true(found > 1000);
}

int main(void) {
  random_state = test_seed();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
