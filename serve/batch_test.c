/* serve/batch_test.c - the arrays of every step against what the requests say: random requests of
 * all kinds come, end, are cancelled and preempted, and the model compares each row and each sample
 * with the request that it belongs to.
 * Prints the seed of its random values; ACCRT_TEST_SEED sets it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/serve.h"
#include "tests/random.h"

#define ROWS 24u
#define DRAFTS 3u
#define SAMPLES (ROWS * (1 + DRAFTS))
#define PAGE 8u
#define LENGTH 96u
#define ROW_PAGES (LENGTH / PAGE)
#define VOCABULARY 50
#define REQUESTS 400u
#define FLIGHT 4u /* steps whose results are kept */

typedef struct wanted {
  accrt_serve_request_t request;
  int32_t prompt[LENGTH];
  accrt_serve_bias_t biases[2];
  bool history, plain, fails;
  uint32_t got; /* tokens */
} wanted_t;

static wanted_t wanted[REQUESTS + 1]; /* by key */
static int32_t table[ROWS * ROW_PAGES];
static int32_t drawn[FLIGHT][SAMPLES];
static bool overlaps, some_fail;
static uint64_t steps, samples, full_steps;
static const int32_t eos = 0;
static uint64_t random_state;

static uint32_t below(uint32_t limit) {
  return (uint32_t)test_below(&random_state, limit);
}

/* The token of a sequence at a position. Half of the texts repeat themselves. */
static int32_t token_at(uint64_t key, uint32_t position) {
  const wanted_t* one = &wanted[key];
  if (position < one->request.prompt_count)
    return one->prompt[position];
  const uint64_t value = key * 1000003 + (key % 2 == 0 ? position % 5 : position);
  return 1 + (int32_t)(value * UINT64_C(0x9E3779B97F4A7C15) >> 33) % (VOCABULARY - 1);
}

/* What the model says it is: of some requests a number that is no token. */
static int32_t answer_at(uint64_t key, uint32_t position) {
  static const int32_t bad[] = {-1, -5, VOCABULARY, INT32_MIN, INT32_MAX};
  const wanted_t* one = &wanted[key];
  return one->fails && position > one->request.prompt_count ? bad[key % 5]
                                                            : token_at(key, position);
}

static accrt_status_t info(void* self, accrt_serve_model_info_t* out_info) {
  (void)self;
  out_info->flags = overlaps ? ACCRT_SERVE_MODEL_OVERLAP : 0;
  out_info->name = "compares";
  out_info->vocab_size = VOCABULARY;
  out_info->page_size = PAGE;
  out_info->page_count = ROWS * 5; /* too few for all: some are preempted */
  out_info->max_rows = ROWS;
  out_info->max_samples = SAMPLES;
  out_info->max_tokens = 160;
  out_info->max_length = LENGTH;
  out_info->row_pages = ROW_PAGES;
  out_info->eos = &eos;
  out_info->eos_count = 1;
  return ACCRT_OK;
}

/* ---- What a sample must have ---- */

/* The number that is added to a token's logit, and what it is multiplied with. */
static void edit_of(const wanted_t* one, uint64_t key, uint32_t position, int32_t token,
                    float* out_multiply, float* out_add) {
  const accrt_serve_request_t* request = &one->request;
  uint32_t times = 0;
  bool seen = false;
  for (uint32_t i = 0; i < position; ++i) {
    const bool same = token_at(key, i) == token;
    seen |= same;
    times += same && i >= request->prompt_count;
  }
  *out_add = -request->frequency_penalty * (float)times;
  for (uint32_t i = 0; i < request->bias_count; ++i)
    *out_add += request->biases[i].token == token ? request->biases[i].bias : 0.0f;
  if (times > 0)
    *out_add -= request->presence_penalty;
  if (token == eos && position - request->prompt_count < request->min_new_tokens)
    *out_add = -INFINITY;
  *out_multiply = seen && request->repetition_penalty != 0.0f ? request->repetition_penalty : 1.0f;
}

static bool is_near(float a, float b) {
  return a == b || fabsf(a - b) < 1e-4f;
}

static void check_edits(const accrt_serve_edits_t* edits, uint64_t key, uint32_t position) {
  float multiply[VOCABULARY], add[VOCABULARY];
  bool has[VOCABULARY] = {false};
  for (uint32_t i = 0; i < edits->count; ++i) {
    const int32_t token = edits->tokens[i];
    assert_in_range(token, 0, VOCABULARY - 1);
    assert_false(has[token]);
    has[token] = true;
    multiply[token] = edits->multiply[i];
    add[token] = edits->add[i];
  }
  for (int32_t token = 0; token < VOCABULARY; ++token) {
    float right_multiply, right_add;
    edit_of(&wanted[key], key, position, token, &right_multiply, &right_add);
    assert_true(is_near(has[token] ? multiply[token] : 1.0f, right_multiply));
    assert_true(is_near(has[token] ? add[token] : 0.0f, right_add));
  }
}

static void check_sample(const accrt_serve_step_t* step, uint32_t sample, uint32_t row,
                         bool draws_one) {
  const uint64_t key = step->row_keys[row];
  const accrt_serve_request_t* request = &wanted[key].request;
  const uint32_t position = (uint32_t)step->positions[step->sample_tokens[sample]] + 1;
  assert_int_equal(step->sample_rows[sample], draws_one ? step->row_ids[row] : -1);
  if ((step->flags & ACCRT_SERVE_STEP_GREEDY) != 0) {
    assert_true(wanted[key].plain);
    return;
  }
  assert_int_equal(step->sample_positions[sample], position);
  assert_true(step->temperature[sample] == request->temperature);
  assert_int_equal(step->top_k[sample], request->top_k);
  assert_true(step->top_p[sample] == (request->top_p == 0.0f ? 1.0f : request->top_p));
  assert_true(step->min_p[sample] == request->min_p);
  if ((request->flags & ACCRT_SERVE_SEED) != 0) {
    const size_t at = 2 * (size_t)sample;
    assert_int_equal(step->seeds[at] | (uint64_t)step->seeds[at + 1] << 32, request->seed);
  }
  check_edits(&step->edits[sample], key, position);
}

/* ---- What a row must have ---- */

static void check_token(const accrt_serve_step_t* step, uint32_t token, uint32_t row,
                        uint32_t position) {
  const uint64_t key = step->row_keys[row];
  const int32_t id = step->token_ids[token];
  assert_int_equal(step->token_rows[token], row);
  assert_int_equal(step->positions[token], position);
  const int32_t page = table[(uint32_t)step->row_ids[row] * ROW_PAGES + position / PAGE];
  assert_int_equal(step->slots[token], page * (int32_t)PAGE + (int32_t)(position % PAGE));
  if (id != token_at(key, position)) /* it is not known yet, or a guess */
    assert_true((overlaps && id == -1) || wanted[key].request.num_speculative_tokens > 0);
}

/* Returns its samples. */
static uint32_t check_row(const accrt_serve_step_t* step, uint32_t row, uint32_t sample) {
  const uint32_t first = (uint32_t)step->row_starts[row];
  const uint32_t end = (uint32_t)step->row_starts[row + 1];
  const uint32_t length = (uint32_t)step->kv_lengths[row];
  assert_true(first < end && end <= step->token_count);
  assert_in_range(step->row_keys[row], 1, REQUESTS);
  for (uint32_t i = 0; i < row; ++i)
    assert_int_not_equal(step->row_ids[i], step->row_ids[row]);
  for (uint32_t token = first; token < end; ++token)
    check_token(step, token, row, length - (end - token));
  uint32_t count = 0;
  while (sample + count < step->sample_count && (uint32_t)step->sample_tokens[sample + count] < end)
    ++count;
  for (uint32_t i = 0; i < count; ++i) {
    assert_int_equal(step->sample_tokens[sample + i], end - count + i);
    check_sample(step, sample + i, row, count == 1);
  }
  return count;
}

static accrt_status_t submit(void* self, const accrt_serve_step_t* step) {
  (void)self;
  uint32_t sample = 0, edits = 0, top = 0;
  bool plain = true, logprobs = false;
  for (uint32_t i = 0; i < step->change_count; ++i)
    table[step->change_slots[i]] = step->change_pages[i];
  for (uint32_t row = 0; row < step->row_count; ++row) {
    const uint32_t count = check_row(step, row, sample);
    const wanted_t* one = &wanted[step->row_keys[row]];
    plain &= count == 0 || one->plain;
    if (count > 0 && (one->request.flags & ACCRT_SERVE_LOGPROBS) != 0) {
      logprobs = true;
      top = one->request.top_logprobs > top ? one->request.top_logprobs : top;
    }
    for (uint32_t end = sample + count; sample < end; ++sample) {
      const int32_t token = step->sample_tokens[sample];
      drawn[step->number % FLIGHT][sample] =
          answer_at(step->row_keys[row], (uint32_t)step->positions[token] + 1);
      edits += (step->flags & ACCRT_SERVE_STEP_GREEDY) != 0 ? 0 : step->edits[sample].count;
    }
  }
  assert_int_equal(sample, step->sample_count);
  assert_int_equal(step->row_starts[step->row_count], step->token_count);
  assert_int_equal((step->flags & ACCRT_SERVE_STEP_GREEDY) != 0, plain);
  assert_int_equal((step->flags & ACCRT_SERVE_STEP_LOGPROBS) != 0, logprobs);
  assert_int_equal(step->top_count, top);
  assert_int_equal(step->edit_count, edits);
  ++steps;
  samples += sample;
  full_steps += step->row_count == ROWS;
  return ACCRT_OK;
}

static accrt_status_t wait_step(void* self, uint64_t number, accrt_serve_results_t* out_results) {
  static float logprobs[SAMPLES], top_logprobs[SAMPLES * 4];
  static int32_t ranks[SAMPLES], top_tokens[SAMPLES * 4];
  (void)self;
  out_results->tokens = drawn[number % FLIGHT];
  out_results->logprobs = logprobs;
  out_results->ranks = ranks;
  out_results->top_tokens = top_tokens;
  out_results->top_logprobs = top_logprobs;
  out_results->top_count = 4;
  return ACCRT_OK;
}

/* ---- Requests ---- */

static void choose_sampling(wanted_t* one, uint64_t key) {
  accrt_serve_request_t* request = &one->request;
  request->temperature = 0.1f + 0.01f * (float)below(90);
  request->top_k = (int32_t)below(40);
  request->top_p = 0.5f + 0.01f * (float)below(50);
  request->min_p = 0.01f * (float)below(20);
  request->flags |= ACCRT_SERVE_SEED;
  request->seed = key * UINT64_C(0x123456789ABCDEF);
}

static void choose(wanted_t* one, uint64_t key, bool all_plain) {
  accrt_serve_request_t* request = &one->request;
  *request = (accrt_serve_request_t)ACCRT_SERVE_REQUEST_INIT;
  request->prompt = one->prompt;
  request->prompt_count = 1 + below(40);
  for (uint32_t i = 0; i < request->prompt_count; ++i)
    one->prompt[i] = 1 + (int32_t)below(VOCABULARY - 1);
  request->max_new_tokens = 1 + below(50);
  request->flags = ACCRT_SERVE_IGNORE_EOS;
  one->plain = true;
  if (all_plain)
    return;
  if (below(2) == 0)
    choose_sampling(one, key);
  if (below(3) == 0) {
    one->biases[0] = (accrt_serve_bias_t){(int32_t)(key % VOCABULARY), 2.0f};
    one->biases[1] = (accrt_serve_bias_t){(int32_t)((key + 7) % VOCABULARY), -1.0f};
    request->biases = one->biases;
    request->bias_count = 2;
  }
  if (below(4) == 0)
    request->min_new_tokens = 1 + below(request->max_new_tokens);
  if (below(3) == 0) {
    request->flags |= ACCRT_SERVE_LOGPROBS;
    request->top_logprobs = below(4);
  }
  if (below(3) == 0) {
    request->frequency_penalty = 0.25f;
    request->presence_penalty = below(2) == 0 ? 0.5f : 0.0f;
    request->repetition_penalty = below(2) == 0 ? 1.5f : 0.0f;
  } else if (below(3) == 0) {
    request->num_speculative_tokens = 1 + below(DRAFTS);
  }
  one->history = request->frequency_penalty != 0.0f;
  one->plain = request->temperature == 0.0f && request->bias_count == 0 && !one->history &&
               request->min_new_tokens == 0 && (request->flags & ACCRT_SERVE_LOGPROBS) == 0;
}

/* All tokens are those of the text, and only what has a bad one fails, at that one. */
static void check_event(const accrt_serve_event_t* event) {
  wanted_t* one = event->user_data;
  const uint64_t key = (uint64_t)(one - wanted);
  for (uint32_t i = 0; i < event->token_count; ++i)
    assert_int_equal(event->tokens[i], token_at(key, one->request.prompt_count + one->got++));
  if (!event->last || event->finish_reason == ACCRT_SERVE_FINISH_CANCELLED)
    return;
  const bool failed = one->fails && one->request.max_new_tokens > 1;
  assert_int_equal(event->finish_reason,
                   failed ? ACCRT_SERVE_FINISH_FAILED : ACCRT_SERVE_FINISH_LENGTH);
  assert_int_equal(event->status, failed ? ACCRT_ERROR_KERNEL : ACCRT_OK);
  assert_int_equal(one->got, failed ? 1 : one->request.max_new_tokens);
}

static void take_all(accrt_serve_engine_t* engine, uint32_t* live) {
  accrt_serve_event_t events[16];
  uint32_t count;
  while (accrt_serve_engine_poll(engine, events, sizeof *events, 16, &count) == ACCRT_OK) {
    for (uint32_t i = 0; i < count; ++i) {
      check_event(&events[i]);
      *live -= events[i].last;
    }
  }
}

/* A request with a number that is no token is refused, and is none of those that run. */
static void submit_refused(accrt_serve_engine_t* engine) {
  const int32_t prompt[] = {1, below(2) == 0 ? VOCABULARY : -1 - (int32_t)below(9), 2};
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = prompt;
  request.prompt_count = 3;
  request.max_new_tokens = 1;
  assert_int_equal(accrt_serve_engine_submit(engine, &request, NULL), ACCRT_ERROR_OUT_OF_RANGE);
}

static void run(bool overlapped, bool bad) {
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.info = info;
  functions.submit = submit;
  functions.wait = wait_step;
  overlaps = overlapped;
  some_fail = bad;
  steps = samples = full_steps = 0;
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_model_wrap(&functions, &model), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_create(model, NULL, &engine), ACCRT_OK);
  uint32_t live = 0;
  uint64_t last_id = 0;
  for (uint64_t key = 1; key <= REQUESTS || live > 0;) {
    /* Some stretches have plain requests alone, so that steps change their kind. */
    while (key <= REQUESTS && live < ROWS + 4 && below(12) != 0) {
      choose(&wanted[key], key, key / 40 % 3 == 0);
      wanted[key].fails = some_fail && below(6) == 0;
      wanted[key].got = 0;
      wanted[key].request.user_data = &wanted[key];
      assert_int_equal(accrt_serve_engine_submit(engine, &wanted[key].request, &last_id), ACCRT_OK);
      ++key;
      ++live;
    }
    if (some_fail && below(8) == 0)
      submit_refused(engine);
    if (last_id > 0 && below(40) == 0)
      (void)accrt_serve_engine_cancel(engine, last_id);
    (void)accrt_serve_engine_step(engine);
    take_all(engine, &live);
  }
  assert_true(steps > REQUESTS / 4 && samples > steps && full_steps > 0);
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  assert_int_equal(accrt_serve_engine_stats(engine, &stats), ACCRT_OK);
  assert_true(stats.preemptions > 0);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
}

static void test_arrays_are_those_of_the_requests(void** state) {
  (void)state;
  run(false, false);
}
static void test_arrays_of_steps_that_overlap(void** state) {
  (void)state;
  run(true, false);
}
static void test_a_bad_token_id_fails_its_request_alone(void** state) {
  (void)state;
  run(false, true);
  run(true, true);
}

int main(void) {
  random_state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_arrays_are_those_of_the_requests),
      cmocka_unit_test(test_arrays_of_steps_that_overlap),
      cmocka_unit_test(test_a_bad_token_id_fails_its_request_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
