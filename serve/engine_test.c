/* serve/engine_test.c - engines over the simulated model: the same tokens alone and in company, in
 * each order of events, with little memory, with failures.
 *
 * Prints the seed of its random values; ACCRT_TEST_SEED sets it.
 */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/serve.h"
#include "serve/engine.h"

#define MOST_TOKENS 4096
#define MOST_TEXT 16384

/* What came of a sequence. */
typedef struct output {
  int32_t tokens[MOST_TOKENS];
  char text[MOST_TEXT];
  uint32_t token_count, text_size, events, ends, reason, cached, last;
  int32_t stop_token, stop_string;
  accrt_status_t status;
  accrt_serve_logprob_t logprobs[64];
  uint32_t logprob_count;
} output_t;

static accrt_serve_model_t* make_model(const accrt_serve_simulation_t* options) {
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(options, &model), ACCRT_OK);
  return model;
}

static accrt_serve_engine_t* make_engine(const accrt_serve_simulation_t* simulation,
                                         const accrt_serve_options_t* options) {
  accrt_serve_model_t* model = make_model(simulation);
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_engine_create(model, options, &engine), ACCRT_OK);
  accrt_serve_model_release(model);
  return engine;
}

/* Outputs are found by the request's user_data, an array of n. */
static void take(const accrt_serve_event_t* event) {
  output_t* output = (output_t*)event->user_data + event->sequence;
  assert_int_equal(output->ends, 0);
  ++output->events;
  assert_true(output->token_count + event->token_count <= MOST_TOKENS);
  if (event->token_count > 0)
    memcpy(output->tokens + output->token_count, event->tokens, event->token_count * 4);
  output->token_count += event->token_count;
  assert_true(output->text_size + event->text_size_bytes <= MOST_TEXT);
  memcpy(output->text + output->text_size, event->text, event->text_size_bytes);
  output->text_size += event->text_size_bytes;
  for (uint32_t i = 0; event->logprobs != NULL && i < event->token_count * (1 + event->top_count);
       ++i) {
    if (output->logprob_count < 64)
      output->logprobs[output->logprob_count++] = event->logprobs[i];
  }
  if (event->kind == ACCRT_SERVE_EVENT_TOKENS)
    return;
  ++output->ends;
  output->reason = event->finish_reason;
  output->stop_token = event->stop_token;
  output->stop_string = event->stop_string;
  output->status = event->status;
  output->cached = event->cached_tokens;
  output->last = event->last;
  assert_int_equal(event->output_tokens, output->token_count);
}

static void take_all(accrt_serve_engine_t* engine) {
  accrt_serve_event_t events[7];
  uint32_t count;
  while (accrt_serve_engine_poll(engine, events, sizeof *events, 7, &count) == ACCRT_OK) {
    for (uint32_t i = 0; i < count; ++i)
      take(&events[i]);
  }
  assert_int_equal(count, 0);
}

static void check_scheduler(accrt_serve_engine_t* engine) {
  const char* wrong = accsv_scheduler_check(&engine->scheduler);
  if (wrong != NULL)
    fail_msg("%s", wrong);
}

static accrt_status_t step(accrt_serve_engine_t* engine) {
  const accrt_status_t status = accrt_serve_engine_step(engine);
  check_scheduler(engine);
  take_all(engine);
  return status;
}

static void run(accrt_serve_engine_t* engine) {
  while (step(engine) == ACCRT_OK)
    ;
}

static accrt_serve_stats_t stats_of(accrt_serve_engine_t* engine) {
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  assert_int_equal(accrt_serve_engine_stats(engine, &stats), ACCRT_OK);
  return stats;
}

/* Nothing is left: every page is free or cached. */
static void check_empty(accrt_serve_engine_t* engine) {
  const accrt_serve_stats_t stats = stats_of(engine);
  assert_int_equal(stats.running, 0);
  assert_int_equal(stats.waiting, 0);
  assert_int_equal(stats.preempted, 0);
  assert_int_equal(stats.waiting_tokens, 0);
  assert_int_equal(stats.pages_free + stats.pages_cached, stats.pages);
  assert_int_equal(stats.step_failures, 0);
  assert_int_equal(engine->live, 0);
  assert_int_equal(engine->listed, 0);
  assert_int_equal(engine->edits_reserved, 0);
}

static uint64_t submit(accrt_serve_engine_t* engine, const accrt_serve_request_t* request) {
  uint64_t id;
  const accrt_status_t status = accrt_serve_engine_submit(engine, request, &id);
  if (status != ACCRT_OK) {
    accrt_error_t error = ACCRT_ERROR_INIT;
    (void)accrt_last_error(&error);
    fail_msg("%s", error.message);
  }
  return id;
}

/* The output of a request alone, in an engine with room. */
static void run_alone(const accrt_serve_simulation_t* simulation,
                      const accrt_serve_request_t* request, output_t* out) {
  accrt_serve_simulation_t own = ACCRT_SERVE_SIMULATION_INIT;
  own.eos = simulation != NULL ? simulation->eos : -1;
  own.vocab_size = simulation != NULL ? simulation->vocab_size : 0;
  accrt_serve_engine_t* engine = make_engine(&own, NULL);
  accrt_serve_request_t copy = *request;
  memset(out, 0, sizeof *out * (request->n > 0 ? request->n : 1));
  copy.user_data = out;
  (void)submit(engine, &copy);
  run(engine);
  check_empty(engine);
  accrt_serve_engine_release(engine);
}

static const int32_t hello[] = {'H', 'e', 'l', 'l', 'o', ',', ' ', 'w', 'o', 'r', 'l', 'd', '!'};
#define HELLO 13

static accrt_serve_request_t hello_request(uint32_t new_tokens, void* output) {
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = hello;
  request.prompt_count = HELLO;
  request.max_new_tokens = new_tokens;
  request.user_data = output;
  return request;
}

static void test_one_request(void** state) {
  (void)state;
  static output_t output, other;
  memset(&output, 0, sizeof output);
  accrt_serve_engine_t* engine = make_engine(NULL, NULL);
  const accrt_serve_request_t request = hello_request(40, &output);
  assert_int_equal(accrt_serve_engine_step(engine), ACCRT_ERROR_NOT_READY);
  assert_int_equal(submit(engine, &request), 1);
  run(engine);
  assert_int_equal(output.token_count, 40);
  assert_int_equal(output.reason, ACCRT_SERVE_FINISH_LENGTH);
  assert_int_equal(output.last, 1);
  check_empty(engine);
  /* The second time the cache has the full page of the prompt's... which it has none of. */
  accrt_serve_request_t again = hello_request(40, &other);
  memset(&other, 0, sizeof other);
  (void)submit(engine, &again);
  run(engine);
  assert_memory_equal(output.tokens, other.tokens, 40 * 4);
  check_empty(engine);
  accrt_serve_engine_release(engine);
}

/* ---- Random requests ---- */

static uint64_t random_state;

static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}
static uint32_t below(uint32_t limit) {
  return (uint32_t)(next_random() >> 11) % limit;
}

#define MOST_PROMPT 120
#define MOST_N 3

/* A request with memory of its own. */
typedef struct trial {
  accrt_serve_request_t request;
  int32_t prompt[MOST_PROMPT];
  int32_t stop_tokens[2];
  const char* stop_strings[2];
  accrt_serve_bias_t biases[2];
  output_t outputs[MOST_N], alone[MOST_N];
} trial_t;

/* Prompts share beginnings, so that the cache is used. */
static void make_trial(trial_t* trial) {
  static const char* const strings[] = {"a", "zq", "\x41", "no such"};
  memset(trial, 0, sizeof *trial);
  accrt_serve_request_t* request = &trial->request;
  *request = (accrt_serve_request_t)ACCRT_SERVE_REQUEST_INIT;
  request->prompt_count = 1 + below(MOST_PROMPT);
  const int32_t family = (int32_t)below(3);
  for (uint32_t i = 0; i < request->prompt_count; ++i)
    trial->prompt[i] = (int32_t)((uint32_t)family * 31 + i * 7) % 256;
  if (below(2) == 0)
    trial->prompt[request->prompt_count - 1] = (int32_t)below(256);
  request->prompt = trial->prompt;
  request->max_new_tokens = 1 + below(60);
  request->n = 1 + (below(4) == 0 ? below(MOST_N) : 0);
  request->flags = ACCRT_SERVE_SEED;
  request->seed = next_random();
  request->temperature = below(2) == 0 ? 0.0f : 1.0f;
  if (below(3) == 0)
    request->flags |= ACCRT_SERVE_LOGPROBS;
  if (below(4) == 0)
    request->flags |= ACCRT_SERVE_NO_CACHE;
  if (below(4) == 0)
    request->flags |= ACCRT_SERVE_IGNORE_EOS;
  request->top_logprobs = below(6);
  request->min_new_tokens = below(3) == 0 ? below(request->max_new_tokens) : 0;
  request->frequency_penalty = below(3) == 0 ? 0.5f : 0.0f;
  request->repetition_penalty = below(4) == 0 ? 1.25f : 0.0f;
  request->priority = (int32_t)below(3) - 1;
  request->tenant = below(4);
  request->cache_salt = below(4) == 0 ? "salt" : NULL;
  trial->stop_tokens[0] = (int32_t)below(256);
  request->stop_tokens = trial->stop_tokens;
  request->stop_token_count = below(2);
  trial->stop_strings[0] = strings[below(4)];
  trial->stop_strings[1] = strings[below(4)];
  request->stop_strings = trial->stop_strings;
  request->stop_string_count = below(3);
  trial->biases[0] = (accrt_serve_bias_t){(int32_t)below(256), -INFINITY};
  request->biases = trial->biases;
  request->bias_count = below(2);
}

static void check_same(const output_t* a, const output_t* b) {
  assert_int_equal(a->ends, 1);
  assert_int_equal(a->status, ACCRT_OK);
  assert_int_equal(a->token_count, b->token_count);
  assert_memory_equal(a->tokens, b->tokens, a->token_count * 4);
  assert_int_equal(a->text_size, b->text_size);
  assert_memory_equal(a->text, b->text, a->text_size);
  assert_int_equal(a->reason, b->reason);
  assert_int_equal(a->stop_token, b->stop_token);
  assert_int_equal(a->stop_string, b->stop_string);
  assert_int_equal(a->logprob_count, b->logprob_count);
  assert_memory_equal(a->logprobs, b->logprobs, a->logprob_count * sizeof *a->logprobs);
}

#define TRIALS 40

/* All tokens and texts are those of each request alone, whatever the engine's shape; with little
 * memory sequences are preempted. */
static void run_company(const accrt_serve_simulation_t* simulation,
                        const accrt_serve_options_t* options, uint64_t* out_preemptions) {
  trial_t* trials = calloc(TRIALS, sizeof *trials);
  assert_non_null(trials);
  accrt_serve_engine_t* engine = make_engine(simulation, options);
  uint32_t submitted = 0;
  for (uint32_t i = 0; i < TRIALS; ++i) {
    make_trial(&trials[i]);
    run_alone(simulation, &trials[i].request, trials[i].alone);
    trials[i].request.user_data = trials[i].outputs;
  }
  while (submitted < TRIALS || step(engine) == ACCRT_OK) {
    for (uint32_t i = below(4); i > 0 && submitted < TRIALS; --i)
      (void)submit(engine, &trials[submitted++].request);
    if (submitted < TRIALS)
      (void)step(engine);
  }
  check_empty(engine);
  *out_preemptions += stats_of(engine).preemptions;
  for (uint32_t i = 0; i < TRIALS; ++i) {
    for (uint32_t k = 0; k < trials[i].request.n; ++k)
      check_same(&trials[i].outputs[k], &trials[i].alone[k]);
  }
  accrt_serve_engine_release(engine);
  free(trials);
}

static void test_company(void** state) {
  (void)state;
  uint64_t preemptions = 0;
  for (uint32_t round = 0; round < 24; ++round) {
    accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
    simulation.flags = round % 2 == 0 ? ACCRT_SERVE_MODEL_OVERLAP : 0;
    simulation.eos = (int32_t)below(256);
    simulation.page_size = 1u << below(5);
    simulation.page_count = 200 / simulation.page_size + 1 + below(600 / simulation.page_size);
    simulation.max_rows = 1 + below(16);
    simulation.max_tokens = simulation.max_rows + below(80);
    simulation.max_length = 256;
    accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
    options.max_chunk_tokens = below(2) == 0 ? 0 : 1 + below(32);
    options.max_preemptions = 1 + below(3);
    options.fair_tokens = 1 + below(200);
    if (below(4) == 0)
      options.flags |= ACCRT_SERVE_ENGINE_NO_CACHE;
    run_company(&simulation, &options, &preemptions);
  }
  assert_true(preemptions > 0);
}

int main(void) {
  const char* seed = getenv("ACCRT_TEST_SEED");
  random_state = seed != NULL ? strtoull(seed, NULL, 10) : accrt_serve_now_ns() | 1;
  print_message("seed %llu\n", (unsigned long long)random_state);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_request),
      cmocka_unit_test(test_company),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
