/* serve/http/harmony_test.c - messages as GPT-OSS writes them: what is reasoning, what is text and
 * what are calls, wherever a text is cut.
 *
 * Prints the seed of its random values; ACCRT_TEST_SEED sets it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "accrt/http.h"
#include "serve/http/thoughts.h"
#include "tests/random.h"

enum { HARMONY = ACCRT_HTTP_TOOLS_HARMONY, HERMES = ACCRT_HTTP_TOOLS_HERMES };
enum { MOST_BYTES = 4096 };

#define ANALYSIS(text) "<|channel|>analysis<|message|>" text "<|end|>"
#define NEXT "<|start|>assistant"
#define FINAL(text) "<|channel|>final<|message|>" text
#define CALL(name, text)                                                                           \
  "<|channel|>commentary to=functions." name " <|constrain|>json<|message|>" text

typedef struct trial {
  uint32_t tools; /* the form of calls; 0: none */
  const char* text;
  const char* reasoning;
  const char* content;
  const char* calls; /* "name:arguments;" of each, as escaped in JSON */
} trial_t;

static const trial_t trials[] = {
    {0, "", "", "", ""},
    {0, ANALYSIS("Hm, \xC3\xA9.\n") NEXT FINAL("Yes.\n"), "Hm, \xC3\xA9.", "Yes.\n", ""},
    {0, ANALYSIS("Hm.") NEXT FINAL("Yes.<|return|>"), "Hm.", "Yes.", ""},
    {0, FINAL(" \n"), "", " \n", ""},
    {0, NEXT FINAL("Yes."), "", "Yes.", ""},
    {0, NEXT "<|message|>Yes.", "", "Yes.", ""},
    {0, ANALYSIS("a") NEXT ANALYSIS(" b ") NEXT FINAL("c"), "a\n b", "c", ""},
    {0, ANALYSIS("") NEXT FINAL("c"), "", "c", ""},
    /* JSON by its header. */
    {0, "<|channel|>final <|constrain|>json<|message|>{\"a\": 1}", "", "{\"a\": 1}", ""},
    /* What the model says before it calls. */
    {HARMONY, "<|channel|>commentary<|message|>I look.<|end|>" NEXT CALL("f", "{}"), "", "I look.",
     "f:{};"},
    {0, "<|channel|>commentary<|message|>I look.<|end|>" NEXT FINAL("Yes."), "", "I look.\nYes.",
     ""},
    /* Calls. */
    {HARMONY, ANALYSIS("Hm.") NEXT CALL("get_x", "{\"a\": [\"<|\", \"}\"]}<|call|>"), "Hm.", "",
     "get_x:{\\\"a\\\": [\\\"<|\\\", \\\"}\\\"]};"},
    {HARMONY, CALL("f", "\n{\"q\": \"\xE2\x82\xAC\"}\n"), "", "",
     "f:{\\\"q\\\": \\\"\xE2\x82\xAC\\\"};"},
    {HARMONY, CALL("f", "{}<|call|>") NEXT CALL("g", "{\"a\": 1}<|call|>"), "", "",
     "f:{};g:{\\\"a\\\": 1};"},
    {HARMONY, " to=functions.f<|channel|>commentary json<|message|>{}", "", "", "f:{};"},
    {HARMONY, NEXT " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}", "", "",
     "f:{};"},
    {HARMONY, "<|channel|>analysis to=functions.f code<|message|>{\"a\": 1}", "", "",
     "f:{\\\"a\\\": 1};"},
    {HARMONY, CALL("f", "{} and {}<|call|>"), "", "", "f:{};"},
    /* What is no call is text; what has another recipient is none. */
    {HARMONY, CALL("f", "[1]<|call|>") NEXT FINAL("x"), "", "[1]x", ""},
    {HARMONY, CALL("a<b", "{}"), "", "", "a:{};"},
    {HARMONY, CALL("f\xC3\xA9", "{}"), "", "{}", ""},
    {HARMONY, CALL("", "{}"), "", "{}", ""},
    {HARMONY, "<|channel|>analysis to=browser.search code<|message|>{}", "{}", "", ""},
    {HARMONY, "<|channel|>commentary to=python<|message|>1", "", "1", ""},
    {0, CALL("f", "{}<|call|>"), "", "{}", ""},
    {HERMES, ANALYSIS("<tool_call>") NEXT FINAL("<tool_call>{\"name\": \"f\"}</tool_call>"),
     "<tool_call>", "", "f:{};"},
    /* Texts that end too soon. */
    {0, "<|channel|>analysis<|message|>a \n", "a", "", ""},
    {0, "<|channel|>analysis<|message|>a <|en", "a <|en", "", ""},
    {0, "<|channel|>anal", "", "", ""},
    {0, "<|chan", "", "<|chan", ""},
    {0, ANALYSIS("a"), "a", "", ""},
    {0, ANALYSIS("a") NEXT "<|channel|>fin", "a", "", ""},
    {HARMONY, CALL("f", "{\"a"), "", "", "f:{\\\"a;"},
    {HARMONY, CALL("f", "{\"a\": 1<|call|>"), "", "", "f:{\\\"a\\\": 1;"},
    {HARMONY, CALL("f", ""), "", "", ""},
    {HARMONY, CALL("f", "  "), "", "  ", ""},
    {0, " to", "", " to", ""},
    /* A message that does not end before the next one. */
    {0, "<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "a", "b", ""},
    {0, "<|channel|>analysis<|message|>a" NEXT FINAL("b"), "a", "b", ""},
    /* A text without headers: the prompt may have one. */
    {0, "Yes.", "", "Yes.", ""},
    {0, " Yes <|end", "", " Yes <|end", ""},
    {0, "{\"a\": 1}<|return|>", "", "{\"a\": 1}", ""},
    {0, "t<|channel|>final<|message|>b", "", "t\nb", ""},
    {0, "<|message|>a", "", "<|message|>a", ""},
    {0, "a<|message|>b<|constrain|>c<|x|><<|end|>", "", "a<|message|>b<|constrain|>c<|x|><", ""},
    {0, ANALYSIS("a") "b", "a", "b", ""},
    {0, FINAL("a<|end|>") "b<|end|>" NEXT FINAL("c"), "", "a\nb\nc", ""},
    {0, FINAL("a<|end|>") "<|message|>b", "", "a\n<|message|>b", ""},
    {0, ANALYSIS("a") "\n" NEXT "\n", "a", "", ""},
    {0, ANALYSIS("a") " \n", "a", "", ""},
};

static uint64_t random_state;
static uint64_t next_random(void) {
  return test_random(&random_state);
}

typedef struct reading {
  accrt_http_calls_t* calls;
  char reasoning[MOST_BYTES], content[MOST_BYTES], joined[MOST_BYTES];
  uint32_t open; /* a call's arguments go on */
} reading_t;

static void append(char* to, const char* bytes, uint64_t size) {
  if (size == 0)
    return;
  const size_t at = strlen(to);
  assert_true(at + size < MOST_BYTES);
  memcpy(to + at, bytes, (size_t)size);
  to[at + size] = 0;
}

/* A string of JSON, up to its last quote. */
static const char* append_string(char* to, const char* at) {
  const char* end = at;
  while (*end != '"')
    end += *end == '\\' ? 2 : 1;
  append(to, at, (uint64_t)(end - at));
  return end;
}

static void join(reading_t* r, const accrt_http_call_news_t* news) {
  static const char name[] = "\"name\":\"", arguments[] = "\"arguments\":\"";
  char entries[MOST_BYTES] = "";
  append(entries, news->entries, news->entries_bytes);
  for (const char* at = entries; (at = strstr(at, "{\"index\":")) != NULL;) {
    if (strncmp(strchr(at, ','), ",\"id\"", 5) == 0) {
      append(r->joined, ";", r->open != 0);
      r->open = 1;
      append_string(r->joined, strstr(at, name) + sizeof name - 1);
      append(r->joined, ":", 1);
    }
    at = append_string(r->joined, strstr(at, arguments) + sizeof arguments - 1);
  }
}

static void push(reading_t* r, const char* bytes, size_t size, uint32_t last) {
  accrt_http_call_news_t news;
  assert_int_equal(accrt_http_calls_push(r->calls, bytes, size, last, &news), ACCRT_OK);
  append(r->reasoning, news.reasoning, news.reasoning_bytes);
  append(r->content, news.content, news.content_bytes);
  join(r, &news);
}

static void test_texts_in_all_pieces(void** state) {
  (void)state;
  for (size_t i = 0; i < sizeof trials / sizeof *trials; ++i) {
    const trial_t* trial = &trials[i];
    const size_t size = strlen(trial->text);
    for (uint32_t round = 0; round < 200; ++round) {
      reading_t r = {0};
      assert_int_equal(
          accrt_http_calls_create(trial->tools, 0, NULL, ACCRT_HTTP_REASONING_HARMONY, &r.calls),
          ACCRT_OK);
      for (size_t at = 0; at < size;) {
        size_t end =
            round == 0 ? size : at + 1 + (round == 1 ? 0 : next_random() % (round % 23 + 1));
        end = end < size ? end : size;
        while ((trial->text[end] & 0xC0) == 0x80)
          ++end;
        push(&r, trial->text + at, end - at, end == size && round % 2 == 0);
        at = end;
      }
      if (size == 0 || round % 2 != 0)
        push(&r, "", 0, 1);
      append(r.joined, ";", r.open != 0);
      assert_string_equal(r.reasoning, trial->reasoning);
      assert_string_equal(r.content, trial->content);
      assert_string_equal(r.joined, trial->calls);
      accrt_http_calls_release(r.calls);
    }
  }
}

static void test_one_call_at_most(void** state) {
  (void)state;
  static const char text[] = CALL("f", "{}<|call|>") NEXT CALL("g", "{}<|call|>");
  reading_t r = {0};
  assert_int_equal(
      accrt_http_calls_create(HARMONY, 1, NULL, ACCRT_HTTP_REASONING_HARMONY, &r.calls), ACCRT_OK);
  push(&r, text, sizeof text - 1, 1);
  assert_string_equal(r.joined, "f:{}");
  assert_string_equal(r.content, "");
  accrt_http_calls_release(r.calls);
}

static void test_forms_that_are_none(void** state) {
  (void)state;
  accrt_http_calls_t* calls;
  assert_int_equal(accrt_http_calls_create(HARMONY, 0, NULL, 0, &calls),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_http_calls_create(HARMONY, 0, NULL, ACCRT_HTTP_REASONING_THINK, &calls),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_http_calls_create(0, 0, NULL,
                                           ACCRT_HTTP_REASONING_HARMONY | ACCRT_HTTP_REASONING_OPEN,
                                           &calls),
                   ACCRT_ERROR_INVALID_ARGUMENT);
}

/* As the server counts tokens: where the text is, without a place for what it says. */
static void test_where_the_text_is(void** state) {
  (void)state;
  static const struct {
    const char* token;
    thoughts_state_t then;
  } tokens[] = {
      {"<|channel|>", THOUGHTS_AFTER},  {"analysis", THOUGHTS_AFTER},
      {"<|message|>", THOUGHTS_INSIDE}, {"Hm", THOUGHTS_INSIDE},
      {"<|end|>", THOUGHTS_AFTER},      {"<|start|>", THOUGHTS_AFTER},
      {"assistant", THOUGHTS_AFTER},    {"<|channel|>", THOUGHTS_AFTER},
      {"final", THOUGHTS_AFTER},        {"<|message|>", THOUGHTS_AFTER},
      {" Yes", THOUGHTS_OVER},          {"<|end|>", THOUGHTS_AFTER},
      {"<|start|>", THOUGHTS_AFTER},    {"assistant", THOUGHTS_AFTER},
      {"<|channel|>", THOUGHTS_AFTER},  {"commentary to=functions.f", THOUGHTS_AFTER},
      {"<|message|>", THOUGHTS_AFTER},  {"{}", THOUGHTS_OVER},
      {"<|call|>", THOUGHTS_AFTER},
  };
  http_thoughts_t thoughts;
  accrt_http_thoughts_init(&thoughts, &accrt_http_allocator_system, ACCRT_HTTP_REASONING_HARMONY,
                           NULL);
  assert_int_equal(thoughts.state, THOUGHTS_BEFORE);
  for (size_t i = 0; i < sizeof tokens / sizeof *tokens; ++i) {
    const size_t size = strlen(tokens[i].token);
    assert_int_equal(accrt_http_thoughts_push(&thoughts, tokens[i].token, size), size);
    assert_int_equal(thoughts.state, tokens[i].then);
  }
  accrt_http_thoughts_deinit(&thoughts);
}

/* A text of marks, of white space or of one header takes no more of memory than it has, and each
 * byte is looked at a few times: a text of a megabyte ends soon, or the test would not. */
static void test_hostile_texts(void** state) {
  (void)state;
  static const char* const pieces[] = {"<|start|>",
                                       "<|channel|>",
                                       "<|message|>",
                                       "<|end|>",
                                       "<",
                                       "<|",
                                       " ",
                                       "to=",
                                       "x",
                                       "{",
                                       "<|channel|>analysis<|message|>",
                                       "<|start|>assistant to=functions.f<|message|>"};
  enum { COUNT = 1 << 17 };
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; ++i) {
    accrt_http_calls_t* calls;
    accrt_http_call_news_t news;
    assert_int_equal(
        accrt_http_calls_create(HARMONY, 0, NULL, ACCRT_HTTP_REASONING_HARMONY, &calls), ACCRT_OK);
    const size_t size = strlen(pieces[i]);
    uint64_t given = 0;
    for (uint32_t k = 0; k <= COUNT; ++k) {
      assert_int_equal(
          accrt_http_calls_push(calls, pieces[i], k < COUNT ? size : 0, k == COUNT, &news),
          ACCRT_OK);
      given += news.content_bytes + news.reasoning_bytes;
    }
    assert_true(given <= (size + 1) * COUNT);
    accrt_http_calls_release(calls);
  }
}

static void test_random_texts(void** state) {
  (void)state;
  static const char* const pieces[] = {"<|start|>",
                                       "<|channel|>",
                                       "<|message|>",
                                       "<|end|>",
                                       "<|call|>",
                                       "<|return|>",
                                       "<|constrain|>",
                                       "assistant",
                                       "analysis",
                                       "commentary",
                                       "final",
                                       " to=functions.f",
                                       "json",
                                       "{",
                                       "}",
                                       "\"a\"",
                                       ":",
                                       "1",
                                       " ",
                                       "\n",
                                       "<",
                                       "<|",
                                       "|>",
                                       "\xC3\xA9"};
  for (uint32_t round = 0; round < 20000; ++round) {
    char text[1024] = "";
    reading_t whole = {0}, cut = {0};
    for (uint32_t i = 0; i < round % 32; ++i)
      strcat(text, pieces[next_random() % (sizeof pieces / sizeof *pieces)]);
    reading_t* const both[] = {&whole, &cut};
    for (uint32_t i = 0; i < 2; ++i)
      assert_int_equal(accrt_http_calls_create(round % 3 == 0 ? 0 : HARMONY, 0, NULL,
                                               ACCRT_HTTP_REASONING_HARMONY, &both[i]->calls),
                       ACCRT_OK);
    const size_t size = strlen(text);
    push(&whole, text, size, 1);
    for (size_t at = 0; at < size;) {
      size_t end = at + 1;
      while ((text[end] & 0xC0) == 0x80)
        ++end;
      push(&cut, text + at, end - at, 0);
      at = end;
    }
    push(&cut, "", 0, 1);
    assert_string_equal(cut.content, whole.content);
    assert_string_equal(cut.reasoning, whole.reasoning);
    assert_string_equal(cut.joined, whole.joined);
    accrt_http_calls_release(whole.calls);
    accrt_http_calls_release(cut.calls);
  }
}

int main(void) {
  random_state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts_in_all_pieces), cmocka_unit_test(test_one_call_at_most),
      cmocka_unit_test(test_forms_that_are_none), cmocka_unit_test(test_where_the_text_is),
      cmocka_unit_test(test_hostile_texts),       cmocka_unit_test(test_random_texts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
