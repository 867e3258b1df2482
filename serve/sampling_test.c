/* serve/sampling_test.c - parameters become edits: the right tokens, factors
 * and sums, and none where there is nothing to do. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/sampling.h"

static const int32_t prompt[] = {5, 6, 5};
static const int32_t eos = 9;

static accsv_sampler_t make(const accrt_serve_request_t* changes) {
  accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
  info.vocab_size = 100;
  info.eos = &eos;
  info.eos_count = 1;
  accrt_serve_request_t request = *changes;
  request.prompt = prompt;
  request.prompt_count = 3;
  accsv_sampler_t sampler;
  assert_int_equal(accsv_sampler_init(&sampler, &accsv_allocator_system, &request, &info, 20, 1),
                   ACCRT_OK);
  return sampler;
}

static int32_t tokens[100];
static float multiply[100], sum[100];

static uint32_t edits_of(const accsv_sampler_t* sampler, uint32_t drawn) {
  accsv_edits_t edits = {tokens, multiply, sum, 0, 100};
  accsv_sampler_edits(sampler, drawn, &edits);
  return edits.count;
}

static void check(int32_t token, float factor, float add) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    if (tokens[i] != token)
      continue;
    ++found;
    assert_true(multiply[i] == factor);
    assert_true(sum[i] == add);
  }
  assert_int_equal(found, 1);
}

static void test_nothing(void** state) {
  (void)state;
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  accsv_sampler_t sampler = make(&request);
  assert_true(accsv_sampler_is_greedy(&sampler));
  assert_false(sampler.history);
  assert_true(sampler.top_p == 1.0f);
  assert_int_equal(edits_of(&sampler, 0), 0);
  request.temperature = 0.5f;
  request.repetition_penalty = 1.0f;
  request.top_p = 0.9f;
  sampler = make(&request);
  assert_false(accsv_sampler_is_greedy(&sampler));
  assert_int_equal(edits_of(&sampler, 0), 0);
}

static void test_penalties(void** state) {
  (void)state;
  memset(tokens, 0xFF, sizeof tokens);
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.repetition_penalty = 1.5f;
  request.presence_penalty = 0.25f;
  request.frequency_penalty = 0.5f;
  accsv_sampler_t sampler = make(&request);
  assert_true(sampler.history);
  assert_int_equal(edits_of(&sampler, 0), 2); /* the tokens of the prompt */
  check(5, 1.5f, 0);
  check(6, 1.5f, 0);
  accsv_sampler_note(&sampler, 6);
  accsv_sampler_note(&sampler, 7);
  accsv_sampler_note(&sampler, 7);
  assert_int_equal(edits_of(&sampler, 3), 3);
  check(5, 1.5f, 0);
  check(6, 1.5f, -0.75f);
  check(7, 1.5f, -1.25f);
  accsv_sampler_deinit(&sampler, &accsv_allocator_system);
}

static void test_biases_and_ends(void** state) {
  (void)state;
  memset(tokens, 0xFF, sizeof tokens);
  const accrt_serve_bias_t biases[] = {{5, 2}, {30, -INFINITY}, {31, 0}};
  const int32_t stops[] = {40, 9};
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.biases = biases;
  request.bias_count = 3;
  request.stop_tokens = stops;
  request.stop_token_count = 2;
  request.min_new_tokens = 2;
  accsv_sampler_t sampler = make(&request);
  assert_false(accsv_sampler_is_greedy(&sampler));
  assert_false(sampler.history); /* how many tokens there are is known without them */
  assert_int_equal(edits_of(&sampler, 1), 4);
  check(5, 1, 2);
  check(30, 1, -INFINITY);
  check(9, 1, -INFINITY);
  check(40, 1, -INFINITY);
  assert_int_equal(edits_of(&sampler, 2), 2);
  accsv_sampler_deinit(&sampler, &accsv_allocator_system);
}

/* Every token of the vocabulary is drawn: there is room for each. */
static void test_all_tokens(void** state) {
  (void)state;
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.frequency_penalty = 1;
  accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
  info.vocab_size = 100;
  request.prompt = prompt;
  request.prompt_count = 3;
  accsv_sampler_t sampler;
  assert_int_equal(accsv_sampler_init(&sampler, &accsv_allocator_system, &request, &info, 1000, 1),
                   ACCRT_OK);
  for (int32_t i = 0; i < 900; ++i)
    accsv_sampler_note(&sampler, i * 7 % 100);
  assert_int_equal(edits_of(&sampler, 900), 100);
  for (int32_t i = 0; i < 100; ++i)
    check(i, 1, -9);
  accsv_sampler_deinit(&sampler, &accsv_allocator_system);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nothing),
      cmocka_unit_test(test_penalties),
      cmocka_unit_test(test_biases_and_ends),
      cmocka_unit_test(test_all_tokens),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
