/* serve/http/literals_test.c - which arguments are Python's, and what JSON they become. */
#include "serve/http/literals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "serve/http/values.h"

static void test_what_arguments_become(void** state) {
  (void)state;
  static const struct {
    const char* given;
    const char* made; /* NULL: the bytes are something else */
  } trials[] = {
      {"", "{}"},
      {" \n", "{}"},
      {"a=1", "{\"a\": 1}"},
      {" a = -1.5e+3 , b=0,\n", "{\"a\": -1.5e+3, \"b\": 0}"},
      {"a='x', b_2=\"y\"", "{\"a\": \"x\", \"b_2\": \"y\"}"},
      {"a='say \"no\"', b=\"it's\"", "{\"a\": \"say \\\"no\\\"\", \"b\": \"it's\"}"},
      {"a='it\\'s\\n\\t\\\\ \\\"'", "{\"a\": \"it's\\n\\t\\\\ \\\"\"}"},
      {"a='\\x41\\u00e9\\U0001F600\\d\\\nz'", "{\"a\": \"\\u0041\\u00e9\\ud83d\\ude00\\\\dz\"}"},
      {"a='\xC3\xA9, b=(]'", "{\"a\": \"\xC3\xA9, b=(]\"}"},
      {"a=True, b=False, c=None, d=true, e=false, f=null",
       "{\"a\": true, \"b\": false, \"c\": null, \"d\": true, \"e\": false, \"f\": null}"},
      {"a=[1, 'x', [ ], {}]", "{\"a\": [1, \"x\", [], {}]}"},
      {"a=(1, 2), b=(3,)", "{\"a\": [1, 2], \"b\": [3]}"},
      {"a={'b': {\"c\" : None}, 'd':[1],}", "{\"a\": {\"b\": {\"c\": null}, \"d\": [1]}}"},
      /* a single value in brackets is no tuple */
      {"a=(1), b=( 'x' ), c=((2),), d=(), e=([3])",
       "{\"a\":  1, \"b\":  \"x\", \"c\": [ 2], \"d\": [], \"e\":  [3]}"},
      {"a='\\a\\v\\0\\101\\1019\\58\\377'",
       "{\"a\": \"\\u0007\\u000b\\u0000\\u0041\\u00419\\u00058\\u00ff\"}"},
      {"a='x\ny'", "{\"a\": \"x\\ny\"}"},
      {"1", NULL},
      {"a", NULL},
      {"a=", NULL},
      {"=1", NULL},
      {"a=1 b=2", NULL},
      {",a=1", NULL},
      {"a=1,,", NULL},
      {"a='x", NULL},
      {"a='x\\", NULL},
      {"a='\\u12'", NULL},
      {"a='\\U00110000'", NULL},
      {"a=01", NULL},
      {"a=1.", NULL},
      {"a=1e", NULL},
      {"a=1x", NULL},
      {"a=-", NULL},
      {"a=Tru", NULL},
      {"a=Trues", NULL},
      {"a=b", NULL},
      {"a=f()", NULL},
      {"a=[1 2]", NULL},
      {"a=[1", NULL},
      {"a=[1)", NULL},
      {"a=(1 2)", NULL},
      {"a=(,)", NULL},
      {"a=(1", NULL},
      {"a=[,]", NULL},
      {"a={1: 2}", NULL},
      {"a={'b'}", NULL},
      {"a={'b': }", NULL},
      {"a=1+2", NULL},
      {"a.b=1", NULL},
  };
  for (size_t i = 0; i < sizeof trials / sizeof *trials; ++i) {
    http_text_t text;
    accrt_http_text_init(&text, &accrt_http_allocator_system);
    const uint32_t found = accrt_http_put_keywords(&text, trials[i].given, strlen(trials[i].given));
    assert_int_equal(found, trials[i].made != NULL);
    if (found != 0) {
      assert_true(accrt_http_is_json(text.data, text.size));
      accrt_http_put(&text, "", 1);
      assert_string_equal(text.data, trials[i].made);
    }
    accrt_http_text_deinit(&text);
  }
}

/* As a text has them in which nothing was put yet. */
static void test_no_bytes(void** state) {
  (void)state;
  http_text_t text;
  accrt_http_text_init(&text, &accrt_http_allocator_system);
  assert_int_equal(accrt_http_put_keywords(&text, NULL, 0), 1);
  assert_memory_equal(text.data, "{}", 2);
  accrt_http_text_deinit(&text);
}

static void test_how_deep_they_are_nested(void** state) {
  (void)state;
  char deep[256] = "a=";
  for (size_t depth = 1; depth <= 100; ++depth) {
    memset(deep + 2, '[', depth);
    memset(deep + 2 + depth, ']', depth);
    http_text_t text;
    accrt_http_text_init(&text, &accrt_http_allocator_system);
    assert_int_equal(accrt_http_put_keywords(&text, deep, 2 + 2 * depth), depth <= 64);
    accrt_http_text_deinit(&text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_arguments_become),
      cmocka_unit_test(test_no_bytes),
      cmocka_unit_test(test_how_deep_they_are_nested),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
