/* serve/sampling_test.c - parameters become edits: the right tokens, factors
 * and sums, and none where there is nothing to do. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "serve/sampling.h"
#include "tests/random.h"

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

static accrt_serve_edits_t edits;

static uint32_t edits_of(const accsv_sampler_t* sampler, uint32_t drawn) {
  accsv_sampler_edits(sampler, drawn, &edits);
  return edits.count;
}

static void check(int32_t token, float factor, float add) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < edits.count; ++i) {
    if (edits.tokens[i] != token)
      continue;
    ++found;
    assert_true(edits.multiply[i] == factor);
    assert_true(edits.add[i] == add);
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

/* A bias of one token that may end the sequence leaves the others without an edit when it may. */
static void test_an_end_with_a_bias(void** state) {
  (void)state;
  const int32_t stops[] = {40, 41, 42};
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.stop_tokens = stops;
  request.stop_token_count = 3;
  request.min_new_tokens = 2;
  for (uint32_t i = 0; i < 4; ++i) {
    const accrt_serve_bias_t bias = {i == 3 ? eos : stops[i], 2};
    request.biases = &bias;
    request.bias_count = 1;
    accsv_sampler_t sampler = make(&request);
    assert_int_equal(edits_of(&sampler, 1), 4);
    check(eos, 1, -INFINITY);
    for (uint32_t k = 0; k < 3; ++k)
      check(stops[k], 1, -INFINITY);
    assert_int_equal(edits_of(&sampler, 2), 1);
    check(bias.token, 1, 2);
    accsv_sampler_deinit(&sampler, &accsv_allocator_system);
  }
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

/* What the edits must be, made anew from all that came. */
typedef struct plain {
  accrt_serve_request_t request;
  int32_t output[400];
  uint32_t drawn;
} plain_t;

static bool has(const int32_t* all, uint32_t count, int32_t token) {
  for (uint32_t i = 0; i < count; ++i) {
    if (all[i] == token)
      return true;
  }
  return false;
}

static float bias_of(const accrt_serve_request_t* request, int32_t token) {
  for (uint32_t i = 0; i < request->bias_count; ++i) {
    if (request->biases[i].token == token)
      return request->biases[i].bias;
  }
  return 0;
}

static void expected_edit(const plain_t* plain, uint32_t drawn, int32_t token, float* out_multiply,
                          float* out_add) {
  const accrt_serve_request_t* request = &plain->request;
  uint32_t times = 0;
  for (uint32_t i = 0; i < plain->drawn; ++i)
    times += plain->output[i] == token;
  const bool seen = times > 0 || has(prompt, 3, token);
  *out_multiply = seen && request->repetition_penalty != 0.0f ? request->repetition_penalty : 1.0f;
  *out_add = bias_of(request, token) - request->frequency_penalty * (float)times;
  if (times > 0)
    *out_add -= request->presence_penalty;
  if (drawn < request->min_new_tokens &&
      (token == eos || has(request->stop_tokens, request->stop_token_count, token)))
    *out_add = -INFINITY;
}

/* No token has two edits, and each has the one that it should. `after`: of a draft behind. */
static void compare(const accsv_sampler_t* sampler, const plain_t* plain, uint32_t after) {
  const uint32_t drawn = plain->drawn + after;
  uint32_t wanted = 0, real = 0;
  (void)edits_of(sampler, drawn);
  for (uint32_t i = 0; i < edits.count; ++i)
    real += edits.multiply[i] != 1.0f || edits.add[i] != 0.0f;
  for (int32_t token = 0; token < 100; ++token) {
    float multiply, add;
    expected_edit(plain, drawn, token, &multiply, &add);
    if (multiply == 1.0f && add == 0.0f)
      continue;
    ++wanted;
    check(token, multiply, add);
  }
  assert_int_equal(real, wanted);
  if (!sampler->history)
    assert_int_equal(edits.count, wanted);
}

static uint64_t random_state;

static uint32_t below(uint32_t limit) {
  return (uint32_t)test_below(&random_state, limit);
}

/* Edits that are kept up to date are those that are made anew, whatever is asked for. */
static void test_kept(void** state) {
  (void)state;
  static const int32_t stops[] = {40, 9, 5};
  for (uint32_t round = 0; round < 300; ++round) {
    accrt_serve_bias_t biases[20];
    plain_t plain = {.request = ACCRT_SERVE_REQUEST_INIT};
    accrt_serve_request_t* request = &plain.request;
    const uint32_t first = below(90);
    request->bias_count = below(3) == 0 ? 0 : below(20);
    for (uint32_t i = 0; i < request->bias_count; ++i)
      biases[i] = (accrt_serve_bias_t){(int32_t)((first + i * 7) % 100),
                                       i % 5 == 4 ? -INFINITY : (float)below(5) - 2};
    request->biases = biases;
    request->stop_tokens = stops;
    request->stop_token_count = below(4);
    request->min_new_tokens = below(2) * below(200);
    request->repetition_penalty = below(2) != 0 ? 1.5f : 0.0f;
    request->presence_penalty = below(2) != 0 ? 0.25f : 0.0f;
    request->frequency_penalty = below(2) != 0 ? 0.5f : 0.0f;
    accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
    info.vocab_size = 100;
    info.eos = &eos;
    info.eos_count = 1;
    request->prompt = prompt;
    request->prompt_count = 3;
    accsv_sampler_t sampler;
    assert_int_equal(accsv_sampler_init(&sampler, &accsv_allocator_system, request, &info, 403, 1),
                     ACCRT_OK);
    for (; plain.drawn < 400;) {
      if (below(40) == 0)
        compare(&sampler, &plain, sampler.history ? 0 : below(6));
      const int32_t token = (int32_t)below(1 + below(100));
      plain.output[plain.drawn] = token;
      /* Without penalties nothing counts but how many there are. */
      if (sampler.history)
        ++plain.drawn;
      else
        plain.output[plain.drawn++] = -1;
      accsv_sampler_note(&sampler, token);
    }
    compare(&sampler, &plain, 0);
    accsv_sampler_deinit(&sampler, &accsv_allocator_system);
  }
}

int main(void) {
  random_state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nothing),         cmocka_unit_test(test_penalties),
      cmocka_unit_test(test_biases_and_ends), cmocka_unit_test(test_an_end_with_a_bias),
      cmocka_unit_test(test_all_tokens),      cmocka_unit_test(test_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
