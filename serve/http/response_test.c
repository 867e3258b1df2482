/* serve/http/response_test.c - OpenAI's responses without a server: what a client gets when memory
 * runs out anywhere is all of the answer, or nothing that looks like one.
 */
#include "serve/http/server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>

typedef struct accrt_http_job http_job_t;

/* An allocator that gives memory so many times, and then once none. */
typedef struct giver {
  uint64_t left;
  bool has_failed;
} giver_t;

static void* allocate(void* self, size_t size_bytes, size_t alignment) {
  giver_t* giver = self;
  if (giver->left == 0 && !giver->has_failed) {
    giver->has_failed = true;
    return NULL;
  }
  giver->left -= giver->left > 0;
  return accrt_http_allocator_system.allocate(NULL, size_bytes, alignment);
}
static void deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)self;
  accrt_http_allocator_system.deallocate(NULL, pointer, size_bytes, alignment);
}

/* A job of one choice, with its connection and its server. All of it takes memory from `giver`. */
typedef struct answering {
  giver_t giver;
  http_server_t server;
  http_connection_t connection;
  http_job_t job;
  http_choice_t choice;
  http_tools_t tools;
  http_text_t body;
} answering_t;

static http_text_t* const* texts_of(answering_t* a) {
  static http_text_t* texts[16];
  http_choice_t* choice = &a->choice;
  size_t count = 0;
  texts[count++] = &choice->text;
  texts[count++] = &choice->reasoning;
  texts[count++] = &choice->calls;
  texts[count++] = &choice->prompt;
  texts[count++] = &choice->waiting;
  for (uint32_t list = 0; list < HTTP_LISTS; ++list)
    texts[count++] = &choice->lists[list];
  texts[count++] = &a->job.before;
  texts[count++] = &a->connection.out;
  texts[count++] = &a->server.scratch;
  texts[count++] = &a->body;
  texts[count] = NULL;
  return texts;
}

static void start(answering_t* a, uint32_t flags, uint64_t given) {
  *a = (answering_t){.giver = {.left = UINT64_MAX}};
  a->server.allocator =
      (accrt_allocator_t){.self = &a->giver, .allocate = allocate, .deallocate = deallocate};
  for (http_text_t* const* text = texts_of(a); *text != NULL; ++text)
    accrt_http_text_init(*text, &a->server.allocator);
  http_job_t* job = &a->job;
  job->server = a->connection.server = &a->server;
  job->connection = &a->connection;
  a->connection.job = job;
  job->kind = ACCRT_HTTP_RESPONSE;
  job->flags = flags;
  job->choices = &a->choice;
  job->tools = &a->tools;
  job->choice_count = 1;
  accrt_http_response_init(&job->response, &a->server.allocator);
  memset(job->response.id, '7', HTTP_ID_DIGITS);
  accrt_http_put_text(&job->before, "{\"id\":\"resp_1\"");
  accrt_http_tools_init(&a->tools, &a->server.allocator, ACCRT_HTTP_TOOLS_HERMES, &a->choice.text,
                        &a->choice.calls);
  a->tools.plain_calls = 1;
  a->giver.left = given;
}

static void stop(answering_t* a) {
  accrt_http_response_deinit(&a->job.response);
  accrt_http_tools_deinit(&a->tools);
  for (http_text_t* const* text = texts_of(a); *text != NULL; ++text)
    accrt_http_text_deinit(*text);
}

/* Long enough for texts to grow in the middle of each kind of item. */
#define WORDS_30 "thirty bytes of text, no more. "
#define WORDS WORDS_30 WORDS_30 WORDS_30 WORDS_30 WORDS_30
#define CALL "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"" WORDS WORDS "\"}}</tool_call>"

static const struct {
  const char *reasoning, *text, *logprobs;
} events[] = {{WORDS, "", ""},       {WORDS WORDS, "", ""}, {"", WORDS, "{\"a\":1}"},
              {"", WORDS, WORDS_30}, {"", CALL CALL, ""},   {WORDS, WORDS CALL WORDS, WORDS},
              {"", CALL, "{}"}};

/* As an event of the engine comes: see stream.c. */
static void add(answering_t* a, size_t i) {
  accrt_http_put_text(&a->choice.reasoning, events[i].reasoning);
  accrt_http_tools_push(&a->tools, events[i].text, strlen(events[i].text));
  accrt_http_put_text(&a->choice.lists[0], events[i].logprobs);
}

/* As stream.c judges. */
static bool is_lost(answering_t* a) {
  uint32_t failed = accrt_http_response_failed(&a->job.response) | a->choice.text.failed |
                    a->choice.reasoning.failed | a->choice.calls.failed | a->choice.waiting.failed |
                    a->choice.prompt.failed;
  for (uint32_t list = 0; list < HTTP_LISTS; ++list)
    failed |= a->choice.lists[list].failed;
  return failed != 0;
}

/* The bytes of the answer; NULL: the client is told that it has not got it. */
static const http_text_t* answer(answering_t* a) {
  const bool is_stream = (a->job.flags & ACCRT_HTTP_STREAM) != 0;
  for (size_t i = 0; i < sizeof events / sizeof *events; ++i) {
    add(a, i);
    if (!is_stream)
      accrt_http_response_take(&a->job);
    if (is_lost(a))
      return NULL;
    if (is_stream)
      accrt_http_response_put(&a->job);
  }
  a->choice.finish_reason = "stop";
  if (is_lost(a))
    return NULL;
  if (is_stream) {
    accrt_http_response_put(&a->job);
    accrt_http_response_end(&a->job);
  } else {
    accrt_http_response_whole(&a->job, &a->body);
  }
  const http_text_t* out = is_stream ? &a->connection.out : &a->body;
  return out->failed != 0 ? NULL : out;
}

/* `a` ids of calls are random: they are not compared. */
static void forget_ids(char* text, size_t size) {
  static const char name[] = "\"call_id\":\"";
  for (size_t at = 0; at + sizeof name < size; ++at) {
    if (memcmp(text + at, name, sizeof name - 1) != 0)
      continue;
    for (at += sizeof name - 1; at < size && text[at] != '"'; ++at)
      text[at] = '_';
  }
}

static void without_memory(uint32_t flags) {
  answering_t reference;
  start(&reference, flags, UINT64_MAX);
  const http_text_t* whole = answer(&reference);
  assert_non_null(whole);
  forget_ids(whole->data, whole->size);
  uint64_t given = 0;
  for (bool done = false; !done; ++given) {
    answering_t a;
    start(&a, flags, given);
    const http_text_t* out = answer(&a);
    done = !a.giver.has_failed;
    if (out != NULL) {
      forget_ids(out->data, out->size);
      assert_int_equal(out->size, whole->size);
      assert_memory_equal(out->data, whole->data, whole->size);
    }
    stop(&a);
  }
  assert_true(given > 20);
  stop(&reference);
}

static void test_no_memory_for_a_stream(void** state) {
  (void)state;
  without_memory(ACCRT_HTTP_STREAM);
}

static void test_no_memory_for_a_whole_answer(void** state) {
  (void)state;
  without_memory(0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_memory_for_a_stream),
      cmocka_unit_test(test_no_memory_for_a_whole_answer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
