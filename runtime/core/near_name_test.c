/* runtime/core/near_name_test.c - unit tests of near_name.c, the bounded distance against a plain
 * full table. */
#include "runtime/core/near_name.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static unsigned full_distance(const char* a, const char* b) {
  const size_t m = strlen(a), n = strlen(b);
  unsigned table[40][40];
  assert_true(m < 40 && n < 40);
  for (size_t i = 0; i <= m; ++i) {
    for (size_t j = 0; j <= n; ++j) {
      unsigned best =
          i == 0 || j == 0 ? (unsigned)(i + j) : table[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      if (i > 0 && table[i - 1][j] + 1 < best)
        best = table[i - 1][j] + 1;
      if (j > 0 && table[i][j - 1] + 1 < best)
        best = table[i][j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
          table[i - 2][j - 2] + 1 < best) {
        best = table[i - 2][j - 2] + 1;
      }
      table[i][j] = best;
    }
  }
  return table[m][n];
}

static void distance_matches_full_table(void** state) {
  (void)state;
  uint64_t random = test_seed();
  for (int round = 0; round < 20000; ++round) {
    char a[24] = "", b[24] = "";
    const size_t a_length = test_below(&random, 20), b_length = test_below(&random, 20);
    for (size_t i = 0; i < a_length; ++i)
      a[i] = (char)('a' + (int)test_below(&random, 3));
    for (size_t i = 0; i < b_length; ++i)
      b[i] = (char)('a' + (int)test_below(&random, 3));
    if (test_below(&random, 2) == 0) {
      strcpy(b, a);
      if (a_length > 0)
        b[test_below(&random, a_length)] = 'z';
    }
    const unsigned limit = (unsigned)test_below(&random, 9);
    const unsigned expected = full_distance(a, b);
    assert_int_equal(accrt_near_distance(a, b, limit), expected > limit ? limit + 1 : expected);
  }
}

static const char* text_of(accrt_near_t* near, const char* wanted, const char* const* names,
                           size_t count) {
  accrt_near_init(near, wanted);
  for (size_t i = 0; i < count; ++i)
    accrt_near_add(near, names[i]);
  return accrt_near_text(near);
}

static void sentences(void** state) {
  (void)state;
  accrt_near_t near;
  const char* names[] = {"prefill", "decode", "embed", "encode", "score", "reset"};
  assert_string_equal(text_of(&near, "prefil", names, 6), "; did you mean 'prefill'?");
  assert_string_equal(text_of(&near, "Decod", names, 6), "; did you mean 'decode'?");
  assert_string_equal(text_of(&near, "ecode", names, 4), "; did you mean 'decode' or 'encode'?");
  assert_string_equal(text_of(&near, "enocde", names, 6), "; did you mean 'encode'?");
  assert_string_equal(text_of(&near, "unrelated_name", names, 6), "");
  assert_string_equal(text_of(&near, "unrelated_name", names, 2), "; there is 'prefill', 'decode'");
  assert_string_equal(text_of(&near, "anything", names, 0), "; there is none");
  assert_string_equal(text_of(&near, "", names, 1), "; there is 'prefill'");
  assert_string_equal(text_of(&near, "emb", names, 6), "; did you mean 'embed'?");
}

static void long_names_are_cut(void** state) {
  (void)state;
  char name[600];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  accrt_near_t near;
  const char* names[] = {name, name};
  assert_string_equal(text_of(&near, name, names, 2), "");
  const char* mixed[] = {"nnnm", name};
  assert_string_equal(text_of(&near, "nnn", mixed, 2), "; did you mean 'nnnm'?");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(distance_matches_full_table),
      cmocka_unit_test(sentences),
      cmocka_unit_test(long_names_are_cut),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
