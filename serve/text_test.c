/* serve/text_test.c - bytes become text the same way however they are cut, stop
 * strings are found over cuts, and tables of token bytes that do not fit
 * together are refused.
 *
 * Prints the seed of its random values; ACCRT_TEST_SEED sets it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/serve.h"
#include "serve/text.h"
#include "tests/random.h"

static uint64_t random_state;

static uint32_t below(uint32_t limit) {
  return (uint32_t)test_below(&random_state, limit);
}

static void push(accsv_text_t* text, const void* bytes, size_t size) {
  assert_int_equal(accsv_text_push(text, &accsv_allocator_system, bytes, (uint32_t)size), ACCRT_OK);
}

/* What Python's bytes.decode("utf-8", "replace") gives. */
static void test_decoding(void** state) {
  (void)state;
  static const struct {
    const char *bytes, *text;
  } cases[] = {
      {"plain", "plain"},
      {"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"},
      {"\x80", "\xEF\xBF\xBD"},
      {"\xC3", "\xEF\xBF\xBD"},
      {"\xC3(", "\xEF\xBF\xBD("},
      {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xE2\x82", "\xEF\xBF\xBD"},
      {"\xE2\x82z", "\xEF\xBF\xBDz"},
      {"\xE0\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xF0\x9F\x98", "\xEF\xBF\xBD"},
      {"\xF0\x9F\xC3\xA4", "\xEF\xBF\xBD\xC3\xA4"},
      {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xF5", "\xEF\xBF\xBD"},
      {"\xE2\xE2\x82\xAC", "\xEF\xBF\xBD\xE2\x82\xAC"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    accsv_text_t text = {0};
    for (const char* byte = cases[i].bytes; *byte != 0; ++byte)
      push(&text, byte, 1);
    assert_int_equal(accsv_text_end(&text, &accsv_allocator_system), ACCRT_OK);
    assert_int_equal(text.tail_size, strlen(cases[i].text));
    assert_memory_equal(text.tail, cases[i].text, text.tail_size);
    accsv_text_deinit(&text, &accsv_allocator_system);
  }
}

/* Whatever the cuts, what was given is the beginning of what there is in the
 * end; a stop string is found where it is first; and no part of it was given
 * before. */
static void test_cuts(void** state) {
  (void)state;
  static const char* const strings[] = {"ab", "aab", "bbbb", "\xC3\xA4"};
  static const uint32_t sizes[] = {2, 3, 4, 2};
  for (uint32_t round = 0; round < 20000; ++round) {
    const accsv_stops_t stops = {below(5), strings, sizes};
    unsigned char bytes[24];
    const uint32_t size = 1 + below(sizeof bytes);
    for (uint32_t i = 0; i < size; ++i)
      bytes[i] = (unsigned char)"aabbbc\xC3\xA4\xE2"[below(9)];
    accsv_text_t whole = {0}, text = {0};
    push(&whole, bytes, size);
    uint32_t first = 0;
    const int32_t found = accsv_text_find_stop(&whole, &stops, &first);
    char given[128];
    uint32_t given_size = 0, at = 0;
    int32_t stop = -1;
    while (at < size && stop < 0) {
      const uint32_t part = 1 + below(size - at);
      push(&text, bytes + at, part);
      at += part;
      uint32_t end = 0;
      stop = accsv_text_find_stop(&text, &stops, &end);
      if (stop < 0)
        end = accsv_text_certain(&text, &stops);
      memcpy(given + given_size, text.tail, end);
      given_size += end;
      accsv_text_drop(&text, end);
    }
    assert_int_equal(stop >= 0, found >= 0);
    if (stop >= 0) {
      /* A cut may show a longer one's end before a shorter one that begins
       * later; never after. */
      assert_true(given_size <= whole.tail_size);
      if (at == size)
        assert_int_equal(given_size, first);
    } else {
      memcpy(given + given_size, text.tail, text.tail_size);
      given_size += text.tail_size;
      assert_int_equal(given_size, whole.tail_size);
    }
    assert_memory_equal(given, whole.tail, given_size);
    accsv_text_deinit(&whole, &accsv_allocator_system);
    accsv_text_deinit(&text, &accsv_allocator_system);
  }
}

/* Two tokens, "a" and a special one; then each thing wrong with it. */
static void test_tables(void** state) {
  (void)state;
  const unsigned char good[] = {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,   0,
                                1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 'a', 'b'};
  accsv_vocabulary_t vocabulary;
  assert_int_equal(accsv_vocabulary_read(&vocabulary, good, sizeof good, 2), ACCRT_OK);
  uint32_t size;
  assert_memory_equal(accsv_vocabulary_bytes(&vocabulary, 0, false, &size), "a", 1);
  assert_int_equal(size, 1);
  assert_null(accsv_vocabulary_bytes(&vocabulary, 1, false, &size)); /* special */
  assert_int_equal(size, 0);
  assert_non_null(accsv_vocabulary_bytes(&vocabulary, 1, true, &size));
  assert_null(accsv_vocabulary_bytes(&vocabulary, 2, false, &size));
  assert_null(accsv_vocabulary_bytes(&vocabulary, -1, false, &size));
  assert_int_equal(accsv_vocabulary_read(&vocabulary, good, sizeof good, 3),
                   ACCRT_ERROR_INVALID_FORMAT);
  for (size_t cut = 0; cut < sizeof good; ++cut)
    assert_int_equal(accsv_vocabulary_read(&vocabulary, good, cut, 2), ACCRT_ERROR_INVALID_FORMAT);
  for (size_t at = 0; at < 20; ++at) {
    unsigned char bad[sizeof good];
    memcpy(bad, good, sizeof good);
    bad[at] = 0xFF;
    assert_int_equal(accsv_vocabulary_read(&vocabulary, bad, sizeof bad, 2),
                     ACCRT_ERROR_INVALID_FORMAT);
  }
  assert_int_equal(accsv_vocabulary_read(&vocabulary, NULL, 0, 2), ACCRT_OK);
  assert_int_equal(vocabulary.count, 0);
}

int main(void) {
  random_state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_decoding),
      cmocka_unit_test(test_cuts),
      cmocka_unit_test(test_tables),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
