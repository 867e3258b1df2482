/* serve/http/values_test.c - which texts are JSON, and what an argument becomes. */
#include "serve/http/values.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void test_what_is_json(void** state) {
  (void)state;
  static const char* const good[] = {"0",
                                     "-1.5e+3",
                                     " true ",
                                     "null",
                                     "\"a\\u00e9\\n\"",
                                     "[]",
                                     "[1, [2], {}]",
                                     "{\"a\": {\"b\": [false]}, \"c\": \"}\"}",
                                     "1E2",
                                     "\"\xC3\xA9\""};
  static const char* const bad[] = {
      "",      " ",        "01",      "-",           "1.",          "1e",   "+1",    "tru",
      "nulls", "\"a",      "\"\\x\"", "\"\n\"",      "\"\\u00g0\"", "[1,]", "[1 2]", "{a: 1}",
      "{",     "{'a': 1}", "{\"a\"}", "{\"a\": 1,}", "1 2",         "[",    "NaN",   "]"};
  for (size_t i = 0; i < sizeof good / sizeof *good; ++i)
    assert_true(accrt_http_is_json(good[i], strlen(good[i])));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i)
    assert_false(accrt_http_is_json(bad[i], strlen(bad[i])));
  char deep[200];
  for (size_t depth = 1; depth <= 100; ++depth) {
    memset(deep, '[', depth);
    memset(deep + depth, ']', depth);
    assert_int_equal(accrt_http_is_json(deep, 2 * depth), depth <= 64);
  }
}

static void test_what_a_value_becomes(void** state) {
  (void)state;
  static const struct {
    const char* given;
    uint32_t kind;
    const char* made;
  } trials[] = {{"12", HTTP_VALUE_ANY, "12"},
                {"12", HTTP_VALUE_TEXT, "\"12\""},
                {"True", HTTP_VALUE_ANY, "true"},
                {"None", HTTP_VALUE_ANY, "null"},
                {"False", HTTP_VALUE_ANY, "false"},
                {"True", HTTP_VALUE_TEXT, "\"True\""},
                {"null", HTTP_VALUE_TEXT, "\"null\""},
                {"null", HTTP_VALUE_TEXT_OR_NULL, "null"},
                {"None", HTTP_VALUE_TEXT_OR_NULL, "null"},
                {"nul", HTTP_VALUE_TEXT_OR_NULL, "\"nul\""},
                {" null", HTTP_VALUE_TEXT_OR_NULL, "\" null\""},
                {"12", HTTP_VALUE_TEXT_OR_NULL, "\"12\""},
                {"True", HTTP_VALUE_TEXT_OR_NULL, "\"True\""},
                {"", HTTP_VALUE_TEXT_OR_NULL, "\"\""},
                {"a \"b\"", HTTP_VALUE_ANY, "\"a \\\"b\\\"\""},
                {"", HTTP_VALUE_ANY, "\"\""},
                {"{'a': 1}", HTTP_VALUE_ANY, "\"{'a': 1}\""}};
  for (size_t i = 0; i < sizeof trials / sizeof *trials; ++i) {
    http_text_t text;
    accrt_http_text_init(&text, &accrt_http_allocator_system);
    accrt_http_put_value(&text, trials[i].given, strlen(trials[i].given), trials[i].kind);
    accrt_http_put(&text, "", 1);
    assert_string_equal(text.data, trials[i].made);
    accrt_http_text_deinit(&text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_json),
      cmocka_unit_test(test_what_a_value_becomes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
