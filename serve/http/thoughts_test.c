/* serve/http/thoughts_test.c - reasoning: what is told apart in each text, wherever it is cut.
 *
 * Prints the seed of its random values; ACCRT_TEST_SEED sets it.
 */
#include "serve/http/thoughts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "accrt/http.h"
#include "tests/random.h"

enum { THINK = ACCRT_HTTP_REASONING_THINK, BRACKETS = ACCRT_HTTP_REASONING_BRACKETS };
enum { SEED = ACCRT_HTTP_REASONING_SEED, OPENED = ACCRT_HTTP_REASONING_OPEN };
enum { BEGUN = OPENED | ACCRT_HTTP_REASONING_BEGUN };

typedef struct trial {
  uint32_t form;
  const char* text;
  const char* reasoning;
  const char* answer;
} trial_t;

static const trial_t trials[] = {
    {THINK, "", "", ""},
    {THINK, "Hello, world. \n", "", "Hello, world. \n"},
    {THINK, " \n Hello", "", " \n Hello"},
    {THINK, " \n", "", " \n"},
    {THINK, "<thin", "", "<thin"},
    {THINK, "\n<thing>", "", "\n<thing>"},
    {THINK, "Hm <think>x</think>y", "", "Hm <think>x</think>y"},
    {THINK, "<think>\nOne.\n\nTwo \n</think>\n\nYes.\n", "One.\n\nTwo", "Yes.\n"},
    {THINK, "\n<think>a</think>b", "a", "b"},
    {THINK, "<think>\n\n</think>\n\nb", "", "b"},
    {THINK, "<think>a < b, </ think> </thinks></think>b", "a < b, </ think> </thinks>", "b"},
    {THINK, "<think>a</think></think>", "a", "</think>"},
    {THINK, "<think>a</think><think>b</think>", "a", "<think>b</think>"},
    {THINK, "<think>\xC3\xA9 \xE2\x82\xAC</think>\xC3\xA9", "\xC3\xA9 \xE2\x82\xAC", "\xC3\xA9"},
    {THINK, "<think> <</think>b", "<", "b"},
    /* Texts that end too soon. */
    {THINK, "<think>a \n", "a", ""},
    {THINK, "<think>a </thi", "a </thi", ""},
    {THINK, "<think>a</think> \n", "a", ""},
    /* The prompt has the first mark. */
    {THINK | OPENED, "\nOne.\n</think>\n\nYes.", "One.", "Yes."},
    {THINK | OPENED, "</think>Yes.", "", "Yes."},
    {THINK | OPENED, "<think>a</think>b", "<think>a", "b"},
    {THINK | OPENED, "a", "a", ""},
    /* The prompt has some of the reasoning. */
    {THINK | BEGUN, " so\n</think>\n\nYes.", " so", "Yes."},
    {THINK | BEGUN, "\n\n One. ", "\n\n One.", ""},
    {THINK | BEGUN, " </think>Yes.", "", "Yes."},
    {BRACKETS, "[THINK]a [b] [/b]</think>[/THINK]c", "a [b] [/b]</think>", "c"},
    {SEED | OPENED, "a</seed:think>\n<think>", "a", "<think>"},
    {SEED, "<seed:think>a</think></seed:think>b", "a</think>", "b"},
};

static uint64_t random_state;
static uint64_t next_random(void) {
  return test_random(&random_state);
}

typedef struct reading {
  http_text_t reasoning, answer;
  http_thoughts_t thoughts;
} reading_t;

static void start(reading_t* r, uint32_t form, uint32_t is_left_out) {
  accrt_http_text_init(&r->reasoning, &accrt_http_allocator_system);
  accrt_http_text_init(&r->answer, &accrt_http_allocator_system);
  accrt_http_thoughts_init(&r->thoughts, &accrt_http_allocator_system, form,
                           is_left_out ? NULL : &r->reasoning);
}
static void stop(reading_t* r) {
  accrt_http_thoughts_deinit(&r->thoughts);
  accrt_http_text_deinit(&r->reasoning);
  accrt_http_text_deinit(&r->answer);
}

static void take_held(reading_t* r) {
  if (r->thoughts.state != THOUGHTS_OVER)
    return;
  accrt_http_put(&r->answer, r->thoughts.held.data, r->thoughts.held.size);
  accrt_http_text_clear(&r->thoughts.held);
}

/* The last piece and the end of the text come together: `held` is taken after both. */
static void push(reading_t* r, const char* bytes, size_t size, uint32_t last) {
  const size_t used = accrt_http_thoughts_push(&r->thoughts, bytes, size);
  assert_true(used <= size && (used == size || r->thoughts.state == THOUGHTS_OVER));
  if (last != 0)
    accrt_http_thoughts_end(&r->thoughts);
  take_held(r);
  accrt_http_put(&r->answer, bytes + used, size - used);
}

static void push_in_pieces(reading_t* r, const char* text, size_t size, uint32_t round) {
  for (size_t at = 0; at < size;) {
    size_t piece = round == 0 ? size : 1 + (round == 1 ? 0 : next_random() % (round % 23 + 1));
    piece = piece < size - at ? piece : size - at;
    push(r, text + at, piece, at + piece == size && round % 2 == 0);
    at += piece;
  }
  push(r, "", 0, 1);
}

static void check_text(http_text_t* text, const char* expected) {
  accrt_http_put(text, "", 1);
  assert_string_equal(text->data, expected);
}

static void test_texts_in_all_pieces(void** state) {
  (void)state;
  for (size_t i = 0; i < sizeof trials / sizeof *trials; ++i) {
    for (uint32_t round = 0; round < 200; ++round) {
      reading_t r;
      const uint32_t is_left_out = round % 5 == 4;
      start(&r, trials[i].form, is_left_out);
      push_in_pieces(&r, trials[i].text, strlen(trials[i].text), round);
      check_text(&r.reasoning, is_left_out ? "" : trials[i].reasoning);
      check_text(&r.answer, trials[i].answer);
      stop(&r);
    }
  }
}

/* Allocates nothing. */
static void* allocate_none(void* self, size_t size, size_t alignment) {
  (void)self, (void)size, (void)alignment;
  return NULL;
}
static void deallocate_none(void* self, void* pointer, size_t size, size_t alignment) {
  (void)self, (void)pointer, (void)size, (void)alignment;
}

/* Text that no memory was left for is said to be lost, by the answer or by the reasoning. */
static void test_no_memory(void** state) {
  (void)state;
  static const accrt_allocator_t none = {.allocate = allocate_none, .deallocate = deallocate_none};
  static const struct {
    uint32_t form;
    const char* text;
  } texts[] = {{THINK, "<b>"},
               {THINK, " Hello"},
               {THINK, "<"},
               {THINK | OPENED, "a b"},
               {THINK | OPENED, "</thi"}};
  for (size_t i = 0; i < 3 * sizeof texts / sizeof *texts; ++i) {
    const char* text = texts[i / 3].text;
    reading_t r;
    start(&r, texts[i / 3].form, 0);
    r.thoughts.held.allocator = &none;
    http_tools_t tools;
    http_text_t entries;
    accrt_http_text_init(&entries, &accrt_http_allocator_system);
    accrt_http_tools_init(&tools, &accrt_http_allocator_system, ACCRT_HTTP_TOOLS_HERMES, &r.answer,
                          &entries);
    const size_t size = strlen(text), cut = i % 3 == 2 ? 1 : 0;
    http_tools_t* const taker = i % 3 == 0 ? NULL : &tools;
    accrt_http_thoughts_take(&r.thoughts, text, cut, 0, taker, &r.answer);
    accrt_http_thoughts_take(&r.thoughts, text + cut, size - cut, 1, taker, &r.answer);
    accrt_http_tools_end(&tools);
    assert_int_equal(r.answer.failed | r.reasoning.failed, 1);
    accrt_http_tools_deinit(&tools);
    accrt_http_text_deinit(&entries);
    stop(&r);
  }
}

static void append_random(char* text, size_t* size, const char* const* words, uint32_t count) {
  const char* word = words[next_random() % count];
  memcpy(text + *size, word, strlen(word));
  *size += strlen(word);
}

/* As `accrt_http_calls_push` gives it: the text's end is said with its last piece. */
static void push_calls(accrt_http_calls_t* calls, reading_t* r, const char* bytes, size_t size,
                       uint32_t last) {
  accrt_http_call_news_t news;
  assert_int_equal(accrt_http_calls_push(calls, bytes, size, last, &news), ACCRT_OK);
  accrt_http_put(&r->reasoning, news.reasoning, (size_t)news.reasoning_bytes);
  accrt_http_put(&r->answer, news.content, (size_t)news.content_bytes);
}

/* The text in up to three pieces, cut at `a` and `b`. */
static void check_cut(const trial_t* trial, size_t a, size_t b) {
  const size_t size = strlen(trial->text);
  reading_t r;
  start(&r, trial->form, 0);
  accrt_http_calls_t* calls;
  assert_int_equal(accrt_http_calls_create(0, 0, NULL, trial->form, &calls), ACCRT_OK);
  if (a > 0)
    push_calls(calls, &r, trial->text, a, 0);
  if (b > a)
    push_calls(calls, &r, trial->text + a, b - a, 0);
  push_calls(calls, &r, trial->text + b, size - b, 1);
  check_text(&r.reasoning, trial->reasoning);
  check_text(&r.answer, trial->answer);
  accrt_http_calls_release(calls);
  stop(&r);
}

static void test_the_last_piece_may_hold_the_beginning(void** state) {
  (void)state;
  static const trial_t more[] = {
      {THINK, "<b>bold</b>", "", "<b>bold</b>"},
      {BRACKETS, "[1, 2, 3]", "", "[1, 2, 3]"},
      {BRACKETS, "[TOOL_CALLS]f{}", "", "[TOOL_CALLS]f{}"},
      {THINK, "<tool_call>{}</tool_call>", "", "<tool_call>{}</tool_call>"},
  };
  for (size_t i = 0; i < sizeof trials / sizeof *trials + sizeof more / sizeof *more; ++i) {
    const size_t known = sizeof trials / sizeof *trials;
    const trial_t* trial = i < known ? &trials[i] : &more[i - known];
    const size_t size = strlen(trial->text);
    for (size_t a = 0; a <= size; ++a)
      for (size_t b = a; b <= size; ++b)
        check_cut(trial, a, b);
  }
}

/* Calls behind white space or reasoning, wherever the text is cut. */
static void test_calls_at_the_beginning(void** state) {
  (void)state;
  static const struct {
    uint32_t tools, form;
    const char* text;
  } texts[] = {
      {ACCRT_HTTP_TOOLS_HERMES, THINK,
       "\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"},
      {ACCRT_HTTP_TOOLS_HERMES, THINK,
       "<think>a</think>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"},
      {ACCRT_HTTP_TOOLS_MISTRAL, BRACKETS, "[TOOL_CALLS]f{}"},
      {ACCRT_HTTP_TOOLS_MISTRAL, BRACKETS, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}]"},
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
    const size_t size = strlen(texts[i].text);
    for (size_t cut = 0; cut <= size; ++cut) {
      reading_t r;
      start(&r, texts[i].form, 0);
      accrt_http_calls_t* calls;
      assert_int_equal(accrt_http_calls_create(texts[i].tools, 0, NULL, texts[i].form, &calls),
                       ACCRT_OK);
      push_calls(calls, &r, texts[i].text, cut, 0);
      accrt_http_call_news_t news;
      assert_int_equal(accrt_http_calls_push(calls, texts[i].text + cut, size - cut, 1, &news),
                       ACCRT_OK);
      assert_int_equal(news.call_count, 1);
      assert_int_equal(news.content_bytes + r.answer.size, 0);
      accrt_http_calls_release(calls);
      stop(&r);
    }
  }
}

/* Of texts of marks and pieces of them, all bytes but white space and two marks are kept. */
static void test_random_texts_lose_nothing(void** state) {
  (void)state;
  static const char* const words[] = {"<think>",  "</think>", "<",  "</", "think>", "a",
                                      "\xC3\xA9", " ",        "\n", ">",  "\t",     "</think"};
  for (uint32_t round = 0; round < 20000; ++round) {
    char text[256];
    size_t size = 0;
    for (uint64_t left = next_random() % 16; left > 0; --left)
      append_random(text, &size, words, sizeof words / sizeof *words);
    reading_t r;
    start(&r, THINK | (round % 2 != 0 ? OPENED : 0u), 0);
    push_in_pieces(&r, text, size, 2 + round % 20);
    size_t kept[2] = {0, 0};
    for (size_t i = 0; i < size; ++i)
      kept[0] += strchr(" \n\t", text[i]) == NULL;
    http_text_t* const parts[] = {&r.reasoning, &r.answer};
    for (uint32_t part = 0; part < 2; ++part)
      for (size_t i = 0; i < parts[part]->size; ++i)
        kept[1] += strchr(" \n\t", parts[part]->data[i]) == NULL;
    const size_t lost = kept[0] - kept[1];
    assert_true(lost == 0 || lost == 7 || lost == 8 || lost == 15);
    stop(&r);
  }
}

static void test_forms_that_are_known(void** state) {
  (void)state;
  assert_true(accrt_http_thoughts_known(THINK) && accrt_http_thoughts_known(SEED | OPENED) &&
              accrt_http_thoughts_known(SEED | BEGUN));
  assert_false(accrt_http_thoughts_known(0) || accrt_http_thoughts_known(OPENED) ||
               accrt_http_thoughts_known(99) || accrt_http_thoughts_known(512) ||
               accrt_http_thoughts_known(BEGUN) ||
               accrt_http_thoughts_known(THINK | ACCRT_HTTP_REASONING_BEGUN) ||
               accrt_http_thoughts_known(THINK | 1024));
}

int main(void) {
  random_state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts_in_all_pieces),
      cmocka_unit_test(test_the_last_piece_may_hold_the_beginning),
      cmocka_unit_test(test_calls_at_the_beginning),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_random_texts_lose_nothing),
      cmocka_unit_test(test_forms_that_are_known),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
