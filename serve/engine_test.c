/* serve/engine_test.c - engines over the simulated model: the same tokens alone and in company, in
 * each order of events, with little memory, with failures.
 *
 * Prints the seed of its random values; ACCRT_TEST_SEED sets it.
 */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
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
#define MOST_EMBEDDING 64

/* What came of a sequence. */
typedef struct output {
  int32_t tokens[MOST_TOKENS];
  char text[MOST_TEXT];
  uint32_t token_count, text_size, events, ends, reason, cached, last;
  int32_t stop_token, stop_string;
  accrt_status_t status;
  accrt_serve_logprob_t logprobs[64];
  uint32_t logprob_count;
  uint32_t prompt_count; /* tokens of the prompt with log probabilities */
  uint64_t prompt_hash;  /* of those */
  float embedding[MOST_EMBEDDING];
  uint32_t embedding_size;
} output_t;

static accrt_serve_model_t* make_model(const accrt_serve_simulation_t* options) {
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(options, &model), ACCRT_OK);
  return model;
}

/* Names and contents of those that models with places for adapters get. */
static const char* const adapters[] = {"poet", "clerk", "judge"};

static accrt_serve_engine_t* make_engine(const accrt_serve_simulation_t* simulation,
                                         const accrt_serve_options_t* options) {
  accrt_serve_model_t* model = make_model(simulation);
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_engine_create(model, options, &engine), ACCRT_OK);
  accrt_serve_model_release(model);
  for (uint32_t i = 0; simulation != NULL && i < simulation->adapter_count; ++i) {
    const char* name = adapters[i];
    const accrt_serve_adapter_tensor_t tensor = {"any", name, strlen(name)};
    assert_int_equal(accrt_serve_engine_load_adapter(engine, name, &tensor, 1, sizeof tensor),
                     ACCRT_OK);
  }
  return engine;
}

/* They come once, before all tokens of all sequences. */
static void take_prompt(output_t* output, const accrt_serve_event_t* event) {
  assert_int_equal(output->prompt_count, 0);
  assert_int_equal(output->events, 0);
  assert_int_equal(event->finish_reason, 0);
  output->prompt_count = event->token_count;
  for (uint32_t i = 0; i < event->token_count; ++i) {
    const accrt_serve_logprob_t* entries = event->logprobs + i * (1 + event->top_count);
    assert_int_equal(entries[0].token, event->tokens[i]);
    assert_true(i == 0 || (entries[0].logprob <= -0.25f && entries[0].logprob > -256));
    for (uint32_t k = 0; k <= event->top_count; ++k)
      output->prompt_hash = accsv_mix(output->prompt_hash + (uint32_t)entries[k].token + 1);
  }
}

/* Outputs are found by the request's user_data, an array of n. */
static void take(const accrt_serve_event_t* event) {
  output_t* output = (output_t*)event->user_data + event->sequence;
  assert_int_equal(output->ends, 0);
  if (event->kind == ACCRT_SERVE_EVENT_PROMPT) {
    take_prompt(output, event);
    return;
  }
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
  output->embedding_size = event->embedding_size;
  assert_true(event->embedding_size <= MOST_EMBEDDING);
  if (event->embedding_size > 0)
    memcpy(output->embedding, event->embedding, event->embedding_size * sizeof(float));
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
  own.adapter_count = simulation != NULL ? simulation->adapter_count : 0;
  own.repeat = simulation != NULL ? simulation->repeat : 0;
  own.embedding_size = simulation != NULL ? simulation->embedding_size : 0;
  accrt_serve_engine_t* engine = make_engine(&own, NULL);
  accrt_serve_request_t copy = *request;
  memset(out, 0, sizeof *out * (request->n > 0 ? request->n : 1));
  copy.user_data = out;
  copy.flags |= ACCRT_SERVE_NO_SPECULATION;
  (void)submit(engine, &copy);
  run(engine);
  assert_int_equal(stats_of(engine).drafts, 0);
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

/* ---- A constraint ---- */

/* Of consecutive tokens the second has another remainder by 3. After every `round` tokens the
 * sequence may end; after `most` it ends. It checks that each token was in the mask before it. */
typedef struct rhyme {
  uint32_t round, most;
  atomic_uint started, stopped;
  accrt_status_t failure; /* of the mask after `most` tokens */
} rhyme_t;
typedef struct verse {
  rhyme_t* rhyme;
  uint32_t count;
  int32_t last;
  uint32_t mask[8];
} verse_t;

static accrt_status_t rhyme_start(void* self, void** out_state) {
  rhyme_t* rhyme = self;
  verse_t* verse = calloc(1, sizeof *verse);
  assert_non_null(verse);
  *verse = (verse_t){.rhyme = rhyme, .last = -1};
  (void)atomic_fetch_add(&rhyme->started, 1);
  *out_state = verse;
  return ACCRT_OK;
}
static accrt_status_t rhyme_mask(void* state, uint32_t* mask, uint32_t words,
                                 uint32_t* out_may_end) {
  verse_t* verse = state;
  assert_int_equal(words, 8);
  if (verse->rhyme->failure != ACCRT_OK && verse->count == verse->rhyme->most)
    return verse->rhyme->failure;
  for (int32_t token = 0; token < 256; ++token) {
    assert_int_equal(mask[token / 32] >> (token % 32) & 1, 0);
    if (verse->last < 0 || token % 3 != verse->last % 3)
      mask[token / 32] |= UINT32_C(1) << (token % 32);
  }
  *out_may_end = verse->count > 0 && verse->count % verse->rhyme->round == 0;
  memcpy(verse->mask, mask, sizeof verse->mask);
  return ACCRT_OK;
}
static accrt_status_t rhyme_advance(void* state, int32_t token, uint32_t* out_ended) {
  verse_t* verse = state;
  assert_int_equal(verse->mask[token / 32] >> (token % 32) & 1, 1);
  verse->last = token;
  *out_ended = ++verse->count == verse->rhyme->most && verse->rhyme->failure == ACCRT_OK;
  return ACCRT_OK;
}
static void rhyme_stop(void* state) {
  (void)atomic_fetch_add(&((verse_t*)state)->rhyme->stopped, 1);
  free(state);
}

static accrt_serve_constraint_t* make_rhyme(rhyme_t* rhyme) {
  accrt_serve_constraint_functions_t functions = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  functions.self = rhyme;
  functions.start = rhyme_start;
  functions.mask = rhyme_mask;
  functions.advance = rhyme_advance;
  functions.stop = rhyme_stop;
  accrt_serve_constraint_t* constraint;
  assert_int_equal(accrt_serve_constraint_create(&functions, &constraint), ACCRT_OK);
  return constraint;
}

static rhyme_t rhyme = {.round = 5, .most = 37};
static accrt_serve_constraint_t* rhyming;

static void check_rhymes(const output_t* output) {
  for (uint32_t i = 1; i < output->token_count; ++i)
    assert_int_not_equal(output->tokens[i] % 3, output->tokens[i - 1] % 3);
}

static void test_constraint(void** state) {
  (void)state;
  for (uint32_t overlap = 0; overlap < 2; ++overlap) {
    static output_t output[2];
    memset(output, 0, sizeof output);
    rhyme_t own = {.round = 5, .most = 12};
    accrt_serve_constraint_t* constraint = make_rhyme(&own);
    accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
    simulation.eos = -1;
    simulation.flags = overlap != 0 ? ACCRT_SERVE_MODEL_OVERLAP : 0;
    accrt_serve_engine_t* engine = make_engine(&simulation, NULL);
    accrt_serve_request_t request = hello_request(40, output);
    request.constraint = constraint;
    request.n = 2;
    request.temperature = 1.0f;
    (void)submit(engine, &request);
    accrt_serve_constraint_release(constraint);
    run(engine);
    for (uint32_t i = 0; i < 2; ++i) {
      check_rhymes(&output[i]);
      assert_int_equal(output[i].token_count, 12);
      assert_int_equal(output[i].reason, ACCRT_SERVE_FINISH_STOP);
      assert_int_equal(output[i].stop_token, -1);
      assert_true(output[i].text_size >= 12); /* the last token is part of the text */
    }
    assert_int_equal(own.started, 2);
    assert_int_equal(own.stopped, 2);
    check_empty(engine);
    accrt_serve_engine_release(engine);
  }
}

/* An end token comes only where the constraint lets it. */
static void test_constraint_and_ends(void** state) {
  (void)state;
  static output_t output;
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.vocab_size = 256;
  simulation.eos = 255;
  accrt_serve_engine_t* engine = make_engine(&simulation, NULL);
  const accrt_serve_bias_t to_the_end = {255, 100.0f};
  static const uint32_t least[] = {0, 6, 0};
  static const uint32_t counts[] = {6, 11, 37};
  for (uint32_t i = 0; i < 3; ++i) {
    memset(&output, 0, sizeof output);
    accrt_serve_request_t request = hello_request(40, &output);
    rhyme_t own = {.round = 5, .most = 37};
    request.constraint = make_rhyme(&own);
    request.biases = &to_the_end;
    request.bias_count = 1;
    request.min_new_tokens = least[i];
    request.flags = i == 2 ? ACCRT_SERVE_IGNORE_EOS : 0;
    (void)submit(engine, &request);
    accrt_serve_constraint_release(request.constraint);
    run(engine);
    assert_int_equal(own.stopped, 1);
    assert_int_equal(output.token_count, counts[i]);
    assert_int_equal(output.reason, ACCRT_SERVE_FINISH_STOP);
    assert_int_equal(output.stop_token, i == 2 ? -1 : 255);
  }
  accrt_serve_engine_release(engine);
}

/* A mask that cannot be made ends its request alone. */
static void test_constraint_that_fails(void** state) {
  (void)state;
  static output_t output, other;
  memset(&output, 0, sizeof output);
  memset(&other, 0, sizeof other);
  rhyme_t own = {.round = 100, .most = 7, .failure = ACCRT_ERROR_OUT_OF_RANGE};
  accrt_serve_engine_t* engine = make_engine(NULL, NULL);
  accrt_serve_request_t request = hello_request(40, &output);
  request.constraint = make_rhyme(&own);
  const accrt_serve_request_t plain = hello_request(40, &other);
  (void)submit(engine, &request);
  (void)submit(engine, &plain);
  accrt_serve_constraint_release(request.constraint);
  run(engine);
  assert_int_equal(output.reason, ACCRT_SERVE_FINISH_FAILED);
  assert_int_equal(output.status, ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(output.token_count, 7);
  assert_int_equal(other.reason, ACCRT_SERVE_FINISH_LENGTH);
  assert_int_equal(own.stopped, 1);
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
  request->constraint = below(3) == 0 ? rhyming : NULL;
  request->num_speculative_tokens = below(3) == 0 ? 1 + below(9) : 0;
  if (below(8) == 0)
    request->flags |= ACCRT_SERVE_NO_SPECULATION;
  if (below(4) != 0)
    return;
  request->flags |= ACCRT_SERVE_PROMPT_LOGPROBS;
  request->prompt_top_logprobs = below(6);
  if (below(3) != 0)
    return;
  request->flags |= ACCRT_SERVE_SCORE_ONLY;
  request->max_new_tokens = request->min_new_tokens = 0;
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
  assert_int_equal(a->prompt_count, b->prompt_count);
  assert_int_equal(a->prompt_hash, b->prompt_hash);
}

#define TRIALS 40

/* All tokens and texts are those of each request alone, whatever the engine's shape; with little
 * memory sequences are preempted. */
static void run_company(const accrt_serve_simulation_t* simulation,
                        const accrt_serve_options_t* options, accrt_serve_stats_t* sums) {
  trial_t* trials = calloc(TRIALS, sizeof *trials);
  assert_non_null(trials);
  accrt_serve_engine_t* engine = make_engine(simulation, options);
  uint32_t submitted = 0;
  for (uint32_t i = 0; i < TRIALS; ++i) {
    make_trial(&trials[i]);
    trials[i].request.adapter = below(3) == 0 ? NULL : adapters[below(3)];
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
  const accrt_serve_stats_t stats = stats_of(engine);
  sums->preemptions += stats.preemptions;
  sums->drafts += stats.drafts;
  sums->draft_tokens += stats.draft_tokens;
  sums->accepted_tokens += stats.accepted_tokens;
  for (uint32_t i = 0; i < TRIALS; ++i) {
    const bool scored = (trials[i].request.flags & ACCRT_SERVE_PROMPT_LOGPROBS) != 0;
    for (uint32_t k = 0; k < trials[i].request.n; ++k) {
      const uint32_t wanted = scored && k == 0 ? trials[i].request.prompt_count : 0;
      check_same(&trials[i].outputs[k], &trials[i].alone[k]);
      assert_int_equal(trials[i].outputs[k].prompt_count, wanted);
    }
  }
  accrt_serve_engine_release(engine);
  free(trials);
}

static void run_round(bool overlaps, accrt_serve_stats_t* sums) {
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.flags = overlaps ? ACCRT_SERVE_MODEL_OVERLAP : 0;
  simulation.eos = (int32_t)below(256);
  simulation.page_size = 1u << below(5);
  simulation.page_count = 200 / simulation.page_size + 1 + below(600 / simulation.page_size);
  simulation.max_rows = 1 + below(16);
  simulation.max_tokens = simulation.max_rows + below(80);
  simulation.max_length = 256;
  simulation.adapter_count = 3;
  simulation.max_samples = below(2) == 0 ? 0 : simulation.max_rows + below(20);
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.max_chunk_tokens = below(2) == 0 ? 0 : 1 + below(32);
  simulation.repeat = below(3) == 0 ? 0 : 2 + below(30);
  simulation.min_copy_tokens = below(4);
  options.num_speculative_tokens = below(2) == 0 ? 0 : 1 + below(6);
  options.prompt_lookup_max = below(4);
  options.prompt_lookup_min = options.prompt_lookup_max > 0 ? below(2) : 0;
  options.max_preemptions = 1 + below(3);
  options.fair_tokens = 1 + below(200);
  if (below(4) == 0)
    options.flags |= ACCRT_SERVE_ENGINE_NO_CACHE;
  run_company(&simulation, &options, sums);
}

static void test_company(void** state) {
  (void)state;
  accrt_serve_stats_t sums = {0};
  for (uint32_t round = 0; round < 24; ++round) {
    run_round(round % 2 == 0, &sums);
  }
  assert_true(sums.preemptions > 0);
  assert_true(sums.drafts > 0 && sums.accepted_tokens > 0);
  assert_true(sums.draft_tokens > sums.accepted_tokens);
}

/* A sequence that was preempted came back at once, from the cache, in another row of the page
 * table: in the step it stood where it had stood, and its tokens went to the pages of its old
 * row. */
static void test_a_row_that_comes_back_elsewhere(void** state) {
  (void)state;
  const uint64_t own = random_state;
  accrt_serve_stats_t sums = {0};
  random_state = UINT64_C(8718498472214072290);
  run_round(true, &sums);
  assert_true(sums.preemptions > 0);
  random_state = own;
}

/* ---- Pages that fit in part ---- */

/* Runs a prompt of hello's first tokens and 40 others, and returns how many of it the cache had. */
static uint32_t run_part(accrt_serve_engine_t* engine, uint32_t alike,
                         const accrt_serve_request_t* like) {
  static output_t output, alone;
  int32_t prompt[HELLO + 40];
  for (uint32_t i = 0; i < HELLO + 40; ++i)
    prompt[i] = i < alike ? hello[i % HELLO] : 128 + (int32_t)below(100);
  accrt_serve_request_t request = *like;
  request.prompt = prompt;
  request.prompt_count = HELLO + 40;
  request.max_new_tokens = 3;
  request.user_data = &output;
  memset(&output, 0, sizeof output);
  const uint64_t cached = stats_of(engine).cached_tokens;
  (void)submit(engine, &request);
  run(engine);
  check_empty(engine);
  run_alone(NULL, &request, &alone);
  assert_memory_equal(output.tokens, alone.tokens, sizeof alone.tokens);
  return (uint32_t)(stats_of(engine).cached_tokens - cached);
}

static void test_partial_hits(void** state) {
  (void)state;
  for (uint32_t least = 0; least < 8; least += 4) {
    accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
    simulation.eos = -1;
    simulation.min_copy_tokens = least;
    simulation.flags = least != 0 ? ACCRT_SERVE_MODEL_OVERLAP : 0;
    accrt_serve_engine_t* engine = make_engine(&simulation, NULL);
    accrt_serve_request_t plain = ACCRT_SERVE_REQUEST_INIT;
    accrt_serve_request_t salted = ACCRT_SERVE_REQUEST_INIT, apart = ACCRT_SERVE_REQUEST_INIT;
    salted.cache_salt = "another";
    apart.flags = ACCRT_SERVE_NO_CACHE;
    assert_int_equal(run_part(engine, 53, &plain), 0);
    assert_int_equal(run_part(engine, 32 + 7, &plain), least != 0 ? 39 : 32);
    assert_int_equal(run_part(engine, 32 + 3, &plain), 32); /* too few for a copy */
    assert_int_equal(run_part(engine, 5, &plain), least != 0 ? 5 : 0);
    assert_int_equal(run_part(engine, 9, &salted), 0);
    assert_int_equal(run_part(engine, 7, &salted), least != 0 ? 7 : 0);
    assert_int_equal(run_part(engine, 12, &apart), 0);
    /* All but the last token may be cached, though a page has that one too. */
    accrt_serve_request_t whole = hello_request(1, NULL);
    static output_t output;
    memset(&output, 0, sizeof output);
    whole.user_data = &output;
    whole.prompt_count = 11;
    (void)submit(engine, &whole);
    run(engine);
    const accrt_serve_stats_t stats = stats_of(engine);
    assert_int_equal(stats.partial_hits, least != 0 ? 4 : 0);
    assert_int_equal(stats.copied_tokens, least != 0 ? 7 + 5 + 7 + 10 : 0);
    check_empty(engine);
    accrt_serve_engine_release(engine);
  }
}

/* ---- Ends ---- */

static void test_refusals(void** state) {
  (void)state;
  static output_t output;
  memset(&output, 0, sizeof output);
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.page_count = 4;
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.max_queued = 3;
  options.max_queued_tokens = 30;
  accrt_serve_engine_t* engine = make_engine(&simulation, &options);
  const accrt_serve_request_t good = hello_request(4, &output);
  uint64_t id = 7;
#define REFUSED(status, ...)                                                                       \
  do {                                                                                             \
    accrt_serve_request_t bad = good;                                                              \
    __VA_ARGS__;                                                                                   \
    assert_int_equal(accrt_serve_engine_submit(engine, &bad, &id), ACCRT_ERROR_##status);          \
    assert_int_equal(id, 0);                                                                       \
    accrt_error_t record = ACCRT_ERROR_INIT;                                                       \
    assert_int_equal(accrt_last_error(&record), ACCRT_OK);                                         \
    assert_string_equal(record.operation, "accrt_serve_engine_submit");                            \
  } while (0)
  const int32_t outside[] = {1, 256}, negative[] = {-1};
  const accrt_serve_bias_t bias = {3, NAN}, far_bias = {999, 1};
  const char* const empty[] = {""};
  REFUSED(INVALID_ARGUMENT, bad.struct_size = 8);
  REFUSED(INVALID_ARGUMENT, bad.flags = 1u << 20);
  REFUSED(INVALID_ARGUMENT, bad.prompt = NULL);
  REFUSED(OUT_OF_RANGE, bad.prompt_count = 0);
  REFUSED(OUT_OF_RANGE, bad.prompt = outside; bad.prompt_count = 2);
  REFUSED(OUT_OF_RANGE, bad.prompt = negative; bad.prompt_count = 1);
  REFUSED(OUT_OF_RANGE, bad.max_new_tokens = 64 - HELLO + 1);
  REFUSED(OUT_OF_RANGE, bad.min_new_tokens = 5);
  REFUSED(OUT_OF_RANGE, bad.n = 1000000);
  REFUSED(OUT_OF_RANGE, bad.temperature = -1.0f);
  REFUSED(OUT_OF_RANGE, bad.temperature = NAN);
  REFUSED(OUT_OF_RANGE, bad.top_p = 1.5f);
  REFUSED(OUT_OF_RANGE, bad.min_p = -0.5f);
  REFUSED(OUT_OF_RANGE, bad.top_k = -1);
  REFUSED(OUT_OF_RANGE, bad.priority = 8);
  REFUSED(OUT_OF_RANGE, bad.top_logprobs = 21);
  REFUSED(OUT_OF_RANGE, bad.prompt_top_logprobs = 21);
  REFUSED(OUT_OF_RANGE, bad.num_speculative_tokens = 33);
  REFUSED(INVALID_ARGUMENT, bad.flags = ACCRT_SERVE_SCORE_ONLY);
  REFUSED(INVALID_ARGUMENT, bad.flags = ACCRT_SERVE_SCORE_ONLY | ACCRT_SERVE_PROMPT_LOGPROBS);
  REFUSED(OUT_OF_RANGE, bad.biases = &bias; bad.bias_count = 1);
  REFUSED(OUT_OF_RANGE, bad.biases = &far_bias; bad.bias_count = 1);
  REFUSED(OUT_OF_RANGE, bad.stop_tokens = outside; bad.stop_token_count = 2);
  REFUSED(OUT_OF_RANGE, bad.stop_strings = empty; bad.stop_string_count = 1);
  REFUSED(TIMEOUT, bad.deadline_ns = 1);
  (void)submit(engine, &good);
  (void)submit(engine, &good);
  REFUSED(NOT_READY, (void)0); /* 30 tokens */
  REFUSED(NOT_READY, bad.prompt_count = 5);
  accrt_serve_request_t small = good;
  small.prompt_count = 4;
  (void)submit(engine, &small);
  REFUSED(NOT_READY, bad.prompt_count = 1); /* three requests */
  assert_int_equal(stats_of(engine).refused, 3);
  assert_int_equal(stats_of(engine).waiting, 3);
  assert_int_equal(accrt_serve_engine_cancel(engine, 99), ACCRT_ERROR_NOT_FOUND);
  assert_int_equal(accrt_serve_engine_drain(engine, ACCRT_TIMEOUT_INFINITE), ACCRT_OK);
  REFUSED(INVALID_STATE, (void)0);
#undef REFUSED
  accrt_serve_engine_release(engine); /* with events that nobody took */
}

/* Cancels after each number of steps: in the queue, in the prompt, while it decodes, preempted, in
 * flight, ended. The others go on as if it had never been. */
static void test_cancel_in_each_state(void** state) {
  (void)state;
  static trial_t trials[4];
  bool all_ended = false;
  for (uint32_t at = 0; !all_ended; ++at) {
    accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
    simulation.flags = at % 2 != 0 ? ACCRT_SERVE_MODEL_OVERLAP : 0;
    simulation.eos = -1;
    simulation.page_size = 8;
    simulation.page_count = 24;
    simulation.max_rows = 3;
    simulation.max_tokens = 24;
    accrt_serve_engine_t* engine = make_engine(&simulation, NULL);
    uint64_t ids[4];
    for (uint32_t i = 0; i < 4; ++i) {
      memset(&trials[i], 0, sizeof trials[i]);
      trials[i].request = hello_request(60 + i, trials[i].outputs);
      for (uint32_t k = 0; k < 50; ++k)
        trials[i].prompt[k] = (int32_t)(k < 20 ? k : k * (i + 1));
      trials[i].request.prompt = trials[i].prompt;
      trials[i].request.prompt_count = 50;
      trials[i].request.n = i == 1 ? 2 : 1;
      run_alone(&simulation, &trials[i].request, trials[i].alone);
      ids[i] = submit(engine, &trials[i].request);
    }
    for (uint32_t i = 0; i < at / 2; ++i)
      (void)step(engine);
    const bool ended = trials[1].outputs[0].ends + trials[1].outputs[1].ends == 2;
    all_ended = ended && at % 2 != 0;
    assert_int_equal(accrt_serve_engine_cancel(engine, ids[1]),
                     ended ? ACCRT_ERROR_NOT_FOUND : ACCRT_OK);
    if (!ended)
      assert_int_equal(accrt_serve_engine_cancel(engine, ids[1]), ACCRT_OK);
    run(engine);
    check_empty(engine);
    for (uint32_t i = 0; i < 4; ++i) {
      if (i != 1)
        check_same(&trials[i].outputs[0], &trials[i].alone[0]);
    }
    assert_int_equal(trials[1].outputs[0].ends, 1);
    assert_int_equal(trials[1].outputs[1].ends, 1);
    assert_int_equal(trials[1].outputs[0].last + trials[1].outputs[1].last, 1);
    accrt_serve_engine_release(engine);
  }
}

/* The pages of a cancelled request are free after the next step; with overlap, one later. */
static void test_cancel_frees(void** state) {
  (void)state;
  for (uint32_t overlap = 0; overlap < 2; ++overlap) {
    static output_t output;
    memset(&output, 0, sizeof output);
    accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
    simulation.flags = overlap ? ACCRT_SERVE_MODEL_OVERLAP : 0;
    simulation.eos = -1;
    accrt_serve_engine_t* engine = make_engine(&simulation, NULL);
    const accrt_serve_request_t request = hello_request(100, &output);
    const uint64_t id = submit(engine, &request);
    for (uint32_t i = 0; i < 10; ++i)
      assert_int_equal(step(engine), ACCRT_OK);
    assert_int_equal(accrt_serve_engine_cancel(engine, id), ACCRT_OK);
    assert_int_equal(step(engine), ACCRT_OK);
    (void)step(engine);
    check_empty(engine);
    assert_int_equal(output.reason, ACCRT_SERVE_FINISH_CANCELLED);
    accrt_serve_engine_release(engine);
  }
}

static uint64_t read_time(void* self) {
  return *(uint64_t*)self;
}

static void test_deadlines(void** state) {
  (void)state;
  static output_t outputs[40];
  memset(outputs, 0, sizeof outputs);
  uint64_t now_ns = 1000;
  const accrt_serve_clock_t clock = {&now_ns, read_time};
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.eos = -1;
  simulation.time_ns = &now_ns;
  simulation.step_ns = 1000;
  simulation.max_rows = 4;
  simulation.max_tokens = 64;
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.clock = &clock;
  accrt_serve_engine_t* engine = make_engine(&simulation, &options);
  for (uint32_t i = 0; i < 40; ++i) {
    accrt_serve_request_t request = hello_request(30, &outputs[i]);
    request.deadline_ns = i % 3 == 0 ? 0 : 1001 + below(300000);
    (void)submit(engine, &request);
  }
  run(engine);
  check_empty(engine);
  uint32_t late = 0;
  for (uint32_t i = 0; i < 40; ++i) {
    assert_int_equal(outputs[i].ends, 1);
    late += outputs[i].reason == ACCRT_SERVE_FINISH_DEADLINE;
    if (i % 3 == 0)
      assert_int_equal(outputs[i].reason, ACCRT_SERVE_FINISH_LENGTH);
  }
  assert_true(late > 0);
  assert_int_equal(stats_of(engine).finished_deadline, late);
  accrt_serve_engine_release(engine);
}

/* ---- Text ---- */

static void test_stops(void** state) {
  (void)state;
  static output_t whole, cut, kept, token;
  const accrt_serve_request_t plain = hello_request(60, NULL);
  run_alone(NULL, &plain, &whole);
  /* A stop string over two tokens' texts, in the middle of the output. */
  char stop[8];
  uint32_t at = whole.text_size / 2;
  while (((unsigned char)whole.text[at] & 0xC0) == 0x80)
    ++at;
  memcpy(stop, whole.text + at, 6);
  stop[6] = 0;
  const char* const strings[] = {"not in it", stop};
  accrt_serve_request_t request = plain;
  request.stop_strings = strings;
  request.stop_string_count = 2;
  run_alone(NULL, &request, &cut);
  const char* first = memmem(whole.text, whole.text_size, stop, 6);
  assert_non_null(first);
  const uint32_t before = (uint32_t)(first - whole.text);
  assert_int_equal(cut.text_size, before);
  assert_memory_equal(cut.text, whole.text, before);
  assert_int_equal(cut.reason, ACCRT_SERVE_FINISH_STOP);
  assert_int_equal(cut.stop_string, 1);
  assert_int_equal(cut.stop_token, -1);
  request.flags |= ACCRT_SERVE_KEEP_STOP;
  run_alone(NULL, &request, &kept);
  assert_int_equal(kept.text_size, before + 6);
  /* A stop token is a token of the output, and no text. */
  request = plain;
  request.stop_tokens = &whole.tokens[20];
  request.stop_token_count = 1;
  run_alone(NULL, &request, &token);
  assert_int_equal(token.stop_token, whole.tokens[20]);
  assert_int_equal(token.tokens[token.token_count - 1], whole.tokens[20]);
  assert_true(token.token_count <= 21);
}

static void test_parameters(void** state) {
  (void)state;
  static output_t plain, biased, seeded[2], other;
  accrt_serve_request_t request = hello_request(8, NULL);
  run_alone(NULL, &request, &plain);
  const accrt_serve_bias_t bias = {77, 100};
  request.biases = &bias;
  request.bias_count = 1;
  run_alone(NULL, &request, &biased);
  for (uint32_t i = 0; i < 8; ++i)
    assert_int_equal(biased.tokens[i], 77);
  request = hello_request(8, NULL);
  request.temperature = 1;
  request.flags = ACCRT_SERVE_SEED;
  request.seed = 5;
  run_alone(NULL, &request, &other);
  request.n = 2; /* changes nothing for the first */
  run_alone(NULL, &request, seeded);
  assert_memory_equal(seeded[0].tokens, other.tokens, 8 * 4);
  assert_memory_not_equal(seeded[1].tokens, other.tokens, 8 * 4);
}

/* ---- Sharing ---- */

static void test_shared_prompts(void** state) {
  (void)state;
  static output_t outputs[3];
  static int32_t prompt[200];
  memset(outputs, 0, sizeof outputs);
  for (int32_t i = 0; i < 200; ++i)
    prompt[i] = i % 50;
  accrt_serve_engine_t* engine = make_engine(NULL, NULL);
  accrt_serve_request_t request = hello_request(5, &outputs[0]);
  request.prompt = prompt;
  request.prompt_count = 200;
  (void)submit(engine, &request);
  run(engine);
  assert_int_equal(outputs[0].cached, 0);
  request.user_data = &outputs[1];
  (void)submit(engine, &request);
  run(engine);
  assert_int_equal(outputs[1].cached, 192);
  request.user_data = &outputs[2];
  request.cache_salt = "mine";
  (void)submit(engine, &request);
  run(engine);
  assert_int_equal(outputs[2].cached, 0);
  assert_memory_equal(outputs[0].tokens, outputs[1].tokens, 5 * 4);
  assert_memory_equal(outputs[0].tokens, outputs[2].tokens, 5 * 4);
  check_empty(engine);
  accrt_serve_engine_release(engine);
  /* Four sequences of a prompt hold its full pages once. */
  static output_t four[4];
  memset(four, 0, sizeof four);
  engine = make_engine(NULL, NULL);
  request = hello_request(50, four);
  request.prompt = prompt;
  request.prompt_count = 200;
  request.n = 4;
  request.flags = ACCRT_SERVE_NO_CACHE;
  (void)submit(engine, &request);
  for (uint32_t i = 0; i < 5; ++i)
    (void)step(engine);
  const accrt_serve_stats_t stats = stats_of(engine);
  assert_int_equal(stats.running, 4);
  assert_int_equal(stats.pages - stats.pages_free - stats.pages_cached, 12 + 4);
  run(engine);
  check_empty(engine);
  accrt_serve_engine_release(engine);
}

/* A tenant with a thousand requests does not keep another one waiting. */
static void test_fairness(void** state) {
  (void)state;
  static output_t greedy, modest;
  uint64_t steps = 0;
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.eos = -1;
  simulation.max_rows = 4;
  simulation.max_tokens = 64;
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.fair_tokens = 50;
  accrt_serve_engine_t* engine = make_engine(&simulation, &options);
  static output_t many[500];
  memset(many, 0, sizeof many);
  memset(&modest, 0, sizeof modest);
  memset(&greedy, 0, sizeof greedy);
  for (uint32_t i = 0; i < 500; ++i) {
    const accrt_serve_request_t request = hello_request(20, &many[i]);
    (void)submit(engine, &request);
  }
  accrt_serve_request_t request = hello_request(20, &modest);
  request.tenant = 2;
  (void)submit(engine, &request);
  while (modest.ends == 0 && step(engine) == ACCRT_OK)
    ++steps;
  assert_true(steps < 100);
  request = hello_request(20, &greedy);
  request.priority = -1; /* before all others */
  (void)submit(engine, &request);
  for (steps = 0; greedy.ends == 0 && step(engine) == ACCRT_OK;)
    ++steps;
  assert_true(steps < 60);
  run(engine);
  check_empty(engine);
  accrt_serve_engine_release(engine);
}

/* ---- Failures ---- */

/* Every few steps one fails: what is not at fault too often ends with the tokens it has alone. */
static void test_failing_steps(void** state) {
  (void)state;
  static trial_t trials[12];
  for (uint32_t round = 0; round < 6; ++round) {
    accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
    simulation.flags = round % 2 != 0 ? ACCRT_SERVE_MODEL_OVERLAP : 0;
    simulation.eos = -1;
    simulation.fail_every = 7 + round;
    simulation.min_copy_tokens = 1;
    simulation.max_rows = 4;
    simulation.max_tokens = 40;
    accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
    options.max_failures = round < 2 ? 1 : 1000;
    accrt_serve_engine_t* engine = make_engine(&simulation, &options);
    uint32_t failed = 0;
    for (uint32_t i = 0; i < 12; ++i) {
      make_trial(&trials[i]);
      run_alone(&(accrt_serve_simulation_t){.eos = -1}, &trials[i].request, trials[i].alone);
      trials[i].request.user_data = trials[i].outputs;
      (void)submit(engine, &trials[i].request);
    }
    run(engine);
    const accrt_serve_stats_t stats = stats_of(engine);
    assert_true(stats.step_failures > 0);
    assert_int_equal(stats.pages_free + stats.pages_cached, stats.pages);
    for (uint32_t i = 0; i < 12; ++i) {
      for (uint32_t k = 0; k < trials[i].request.n; ++k) {
        assert_int_equal(trials[i].outputs[k].ends, 1);
        if (trials[i].outputs[k].reason == ACCRT_SERVE_FINISH_FAILED) {
          assert_int_equal(trials[i].outputs[k].status, ACCRT_ERROR_KERNEL);
          ++failed;
        } else {
          check_same(&trials[i].outputs[k], &trials[i].alone[k]);
        }
      }
    }
    assert_int_equal(failed > 0, round < 2);
    assert_int_equal(stats.finished_failed, failed);
    accrt_serve_engine_release(engine);
  }
}

/* A model that fails for good: everything ends, and nothing hangs. */
static accrt_serve_model_t* inner_model;
static accrt_status_t dead_info(void* self, accrt_serve_model_info_t* out_info) {
  (void)self;
  return accrt_serve_model_info(inner_model, out_info);
}
static accrt_status_t dead_submit(void* self, const accrt_serve_step_t* one) {
  (void)self;
  (void)one;
  return ACCRT_ERROR_DEVICE_LOST;
}
static accrt_status_t dead_wait(void* self, uint64_t number, accrt_serve_results_t* out_results) {
  (void)self;
  (void)number;
  (void)out_results;
  return ACCRT_ERROR_DEVICE_LOST;
}

/* What a model gives that is no result. */
typedef enum wrong {
  WRONG_NEGATIVE,
  WRONG_ABOVE,
  WRONG_NO_TOKENS,
  WRONG_NO_TOP_TOKENS,
  WRONG_NO_TOP_LOGPROBS,
  WRONG_COUNT
} wrong_t;
static wrong_t wrong;
static accrt_status_t wrong_submit(void* self, const accrt_serve_step_t* one) {
  (void)self;
  (void)one;
  return ACCRT_OK;
}
static accrt_status_t wrong_wait(void* self, uint64_t number, accrt_serve_results_t* out_results) {
  (void)self;
  (void)number;
  static int32_t tokens[4096];
  static float logprobs[4096];
  for (uint32_t i = 0; i < 4096; ++i)
    tokens[i] = wrong == WRONG_NEGATIVE ? -1 : wrong == WRONG_ABOVE ? 256 : 65;
  out_results->tokens = wrong == WRONG_NO_TOKENS ? NULL : tokens;
  out_results->logprobs = logprobs;
  out_results->top_count = wrong >= WRONG_NO_TOP_TOKENS ? 1 : 0;
  out_results->top_tokens = wrong == WRONG_NO_TOP_TOKENS ? NULL : tokens;
  out_results->top_logprobs = wrong == WRONG_NO_TOP_LOGPROBS ? NULL : logprobs;
  return ACCRT_OK;
}
static accrt_status_t wrong_reset(void* self) {
  (void)self;
  return ACCRT_OK;
}

/* Such a request fails with a status that does not blame the library, and the engine goes on. */
static void test_results_that_are_none(void** state) {
  (void)state;
  static output_t outputs[2];
  inner_model = make_model(NULL);
  for (wrong = 0; wrong < WRONG_COUNT; ++wrong) {
    memset(outputs, 0, sizeof outputs);
    accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
    functions.info = dead_info;
    functions.submit = wrong_submit;
    functions.wait = wrong_wait;
    functions.reset = wrong_reset;
    accrt_serve_model_t* model;
    assert_int_equal(accrt_serve_model_wrap(&functions, &model), ACCRT_OK);
    accrt_serve_engine_t* engine;
    assert_int_equal(accrt_serve_engine_create(model, NULL, &engine), ACCRT_OK);
    for (uint32_t i = 0; i < 2; ++i) {
      accrt_serve_request_t request = hello_request(5, &outputs[i]);
      request.flags |= ACCRT_SERVE_LOGPROBS;
      request.top_logprobs = 1;
      (void)submit(engine, &request);
    }
    while (step(engine) == ACCRT_OK)
      take_all(engine);
    take_all(engine);
    for (uint32_t i = 0; i < 2; ++i) {
      assert_int_equal(outputs[i].ends, 1);
      assert_int_equal(outputs[i].status, ACCRT_ERROR_KERNEL);
    }
    assert_int_equal(stats_of(engine).healthy, 1);
    accrt_serve_engine_release(engine);
    accrt_serve_model_release(model);
  }
  accrt_serve_model_release(inner_model);
}

static void test_model_without_masks(void** state) {
  (void)state;
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.info = dead_info;
  functions.submit = dead_submit;
  functions.wait = dead_wait;
  inner_model = make_model(NULL);
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_wrap(&functions, &model), ACCRT_OK);
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_engine_create(model, NULL, &engine), ACCRT_OK);
  accrt_serve_request_t request = hello_request(4, NULL);
  request.constraint = rhyming;
  assert_int_equal(accrt_serve_engine_submit(engine, &request, NULL), ACCRT_ERROR_UNSUPPORTED);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
  accrt_serve_model_release(inner_model);
  accrt_serve_constraint_functions_t none = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  accrt_serve_constraint_t* constraint;
  assert_int_equal(accrt_serve_constraint_create(&none, &constraint), ACCRT_ERROR_INVALID_ARGUMENT);
}

static void test_dead_model(void** state) {
  (void)state;
  static output_t outputs[3];
  for (uint32_t thread = 0; thread < 2; ++thread) {
    memset(outputs, 0, sizeof outputs);
    inner_model = make_model(NULL);
    accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
    functions.info = dead_info;
    functions.submit = dead_submit;
    functions.wait = dead_wait;
    accrt_serve_model_t* model;
    assert_int_equal(accrt_serve_model_wrap(&functions, &model), ACCRT_OK);
    accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
    options.flags = thread ? ACCRT_SERVE_ENGINE_THREAD : 0;
    accrt_serve_engine_t *engine, *second;
    assert_int_equal(accrt_serve_engine_create(model, &options, &engine), ACCRT_OK);
    assert_int_equal(accrt_serve_engine_create(model, &options, &second),
                     ACCRT_ERROR_INVALID_STATE);
    assert_null(second);
    const accrt_serve_request_t request = hello_request(5, &outputs[0]);
    (void)submit(engine, &request);
    if (thread) {
      while (outputs[0].ends == 0) {
        assert_int_equal(accrt_serve_engine_wait(engine, ACCRT_TIMEOUT_INFINITE), ACCRT_OK);
        take_all(engine);
      }
      assert_int_equal(accrt_serve_engine_drain(engine, 1000), ACCRT_ERROR_POISONED);
      assert_int_equal(accrt_serve_engine_wait(engine, 1000), ACCRT_ERROR_POISONED);
    } else {
      assert_int_equal(step(engine), ACCRT_ERROR_POISONED);
      assert_int_equal(step(engine), ACCRT_ERROR_POISONED);
    }
    assert_int_equal(outputs[0].ends, 1);
    assert_int_equal(outputs[0].status, ACCRT_ERROR_DEVICE_LOST);
    assert_int_equal(accrt_serve_engine_submit(engine, &request, NULL), ACCRT_ERROR_POISONED);
    assert_int_equal(stats_of(engine).healthy, 0);
    assert_int_equal(stats_of(engine).failure, ACCRT_ERROR_DEVICE_LOST);
    accrt_serve_engine_release(engine);
    accrt_serve_model_release(model);
    accrt_serve_model_release(inner_model);
  }
}

/* Each allocation fails once, then all after it: the engine is not made, the request is refused or
 * fails alone, and nothing is lost. */
typedef struct failing {
  int64_t left; /* allocations until the failure */
  bool for_ever;
  int64_t live_bytes;
} failing_t;

static void* failing_allocate(void* self, size_t size_bytes, size_t alignment) {
  failing_t* failing = self;
  (void)alignment;
  const bool fails = failing->for_ever ? failing->left <= 0 : failing->left == 0;
  --failing->left;
  if (fails)
    return NULL;
  failing->live_bytes += (int64_t)size_bytes;
  return malloc(size_bytes);
}
static void failing_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  failing_t* failing = self;
  (void)alignment;
  failing->live_bytes -= (int64_t)size_bytes;
  free(pointer);
}

static void run_without_memory(failing_t* failing) {
  static trial_t trials[5];
  const accrt_allocator_t allocator = {failing, failing_allocate, failing_deallocate};
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.eos = -1;
  simulation.page_count = 32;
  simulation.min_copy_tokens = 1;
  simulation.max_rows = 3;
  simulation.max_tokens = 64;
  simulation.max_length = 256;
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.allocator = &allocator;
  options.max_queued = 16;
  accrt_serve_model_t* model = make_model(&simulation);
  accrt_serve_engine_t* engine;
  const accrt_status_t status = accrt_serve_engine_create(model, &options, &engine);
  accrt_serve_model_release(model);
  if (status != ACCRT_OK) {
    assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
    assert_null(engine);
    return;
  }
  uint32_t expected = 0, ended = 0;
  for (uint32_t i = 0; i < 5; ++i) {
    make_trial(&trials[i]);
    trials[i].request.user_data = trials[i].outputs;
    const accrt_status_t refused = accrt_serve_engine_submit(engine, &trials[i].request, NULL);
    assert_true(refused == ACCRT_OK || refused == ACCRT_ERROR_OUT_OF_MEMORY);
    expected += refused == ACCRT_OK ? trials[i].request.n : 0;
  }
  run(engine);
  check_empty(engine);
  for (uint32_t i = 0; i < 5; ++i) {
    for (uint32_t k = 0; k < MOST_N; ++k)
      ended += trials[i].outputs[k].ends;
  }
  assert_int_equal(ended, expected);
  accrt_serve_engine_release(engine);
}

static void test_without_memory(void** state) {
  (void)state;
  const uint64_t seed = random_state;
  for (uint32_t for_ever = 0; for_ever < 2; ++for_ever) {
    int64_t at = 0;
    for (;; ++at) {
      failing_t failing = {at, for_ever != 0, 0};
      random_state = seed;
      run_without_memory(&failing);
      assert_int_equal(failing.live_bytes, 0);
      if (failing.left > 0)
        break;
    }
    assert_true(at > 20);
  }
}

/* ---- Threads ---- */

#define CLIENTS 4
#define EACH 25

typedef struct client {
  accrt_serve_engine_t* engine;
  output_t outputs[EACH];
} client_t;

static void* run_client(void* argument) {
  client_t* client = argument;
  for (uint32_t i = 0; i < EACH; ++i) {
    accrt_serve_request_t request = hello_request(10 + i % 7, &client->outputs[i]);
    uint64_t id;
    accrt_status_t status;
    do
      status = accrt_serve_engine_submit(client->engine, &request, &id);
    while (status == ACCRT_ERROR_NOT_READY);
    assert_int_equal(status, ACCRT_OK);
    if (i % 5 == 0)
      (void)accrt_serve_engine_cancel(client->engine, id);
    accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
    assert_int_equal(accrt_serve_engine_stats(client->engine, &stats), ACCRT_OK);
    char text[4096];
    uint64_t size;
    assert_int_equal(accrt_serve_engine_snapshot(client->engine, text, sizeof text, &size),
                     ACCRT_OK);
    assert_true(size > 100 && text[0] == '{');
  }
  return NULL;
}

static void test_threads(void** state) {
  (void)state;
  static client_t clients[CLIENTS];
  memset(clients, 0, sizeof clients);
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.flags = ACCRT_SERVE_MODEL_OVERLAP;
  simulation.min_copy_tokens = 2;
  simulation.eos = -1;
  simulation.max_rows = 8;
  simulation.max_tokens = 64;
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.flags = ACCRT_SERVE_ENGINE_THREAD;
  options.max_queued = 20;
  accrt_serve_engine_t* engine = make_engine(&simulation, &options);
  assert_int_equal(accrt_serve_engine_step(engine), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_serve_engine_wait(engine, 1000), ACCRT_ERROR_TIMEOUT);
  pthread_t threads[CLIENTS];
  for (uint32_t i = 0; i < CLIENTS; ++i) {
    clients[i].engine = engine;
    assert_int_equal(pthread_create(&threads[i], NULL, run_client, &clients[i]), 0);
  }
  uint32_t ended = 0;
  while (ended < CLIENTS * EACH) {
    struct pollfd file = {.fd = accrt_serve_engine_event_fd(engine), .events = POLLIN};
    assert_int_equal(poll(&file, 1, -1), 1);
    accrt_serve_event_t events[16];
    uint32_t count;
    if (accrt_serve_engine_poll(engine, events, sizeof *events, 16, &count) != ACCRT_OK)
      continue;
    for (uint32_t i = 0; i < count; ++i) {
      take(&events[i]);
      ended += events[i].kind != ACCRT_SERVE_EVENT_TOKENS;
    }
  }
  for (uint32_t i = 0; i < CLIENTS; ++i)
    (void)pthread_join(threads[i], NULL);
  assert_int_equal(accrt_serve_engine_drain(engine, ACCRT_TIMEOUT_INFINITE), ACCRT_OK);
  struct pollfd file = {.fd = accrt_serve_engine_event_fd(engine), .events = POLLIN};
  assert_int_equal(poll(&file, 1, 0), 0);
  const accrt_serve_stats_t stats = stats_of(engine);
  assert_int_equal(stats.submitted, CLIENTS * EACH);
  assert_int_equal(stats.finished_length + stats.finished_cancelled, CLIENTS * EACH);
  assert_int_equal(stats.pages_free + stats.pages_cached, stats.pages);
  accrt_serve_engine_release(engine);
}

/* ---- Embeddings ---- */

#define EMBEDDED 96

static double norm_of(const float* numbers, uint32_t count) {
  double sum = 0;
  for (uint32_t i = 0; i < count; ++i)
    sum += (double)numbers[i] * (double)numbers[i];
  return sqrt(sum);
}

static void test_embedding(void** state) {
  (void)state;
  static output_t output, other;
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.eos = -1;
  simulation.embedding_size = 24;
  accrt_serve_engine_t* engine = make_engine(&simulation, NULL);
  accrt_serve_request_t request = hello_request(0, &output);
  request.embed = ACCRT_SERVE_EMBED_LAST;
  memset(&output, 0, sizeof output);
  (void)submit(engine, &request);
  run(engine);
  assert_int_equal(output.events, 1);
  assert_int_equal(output.reason, ACCRT_SERVE_FINISH_STOP);
  assert_int_equal(output.last, 1);
  assert_int_equal(output.embedding_size, 24);
  assert_true(fabs(norm_of(output.embedding, 24) - 1) < 1e-6);
  /* As it is: the same direction. */
  memset(&other, 0, sizeof other);
  request.user_data = &other;
  request.flags = ACCRT_SERVE_EMBED_RAW;
  (void)submit(engine, &request);
  run(engine);
  const double norm = norm_of(other.embedding, 24);
  for (uint32_t i = 0; i < 24; ++i)
    assert_true(fabs(other.embedding[i] / norm - output.embedding[i]) < 1e-6);
  /* Its first numbers alone. */
  memset(&other, 0, sizeof other);
  request.flags = 0;
  request.embed_dimensions = 5;
  (void)submit(engine, &request);
  run(engine);
  assert_int_equal(other.embedding_size, 5);
  assert_true(fabs(norm_of(other.embedding, 5) - 1) < 1e-6);
  for (uint32_t i = 1; i < 5; ++i)
    assert_true(fabs(other.embedding[i] / other.embedding[0] -
                     output.embedding[i] / output.embedding[0]) < 1e-4);
  check_empty(engine);
  accrt_serve_engine_release(engine);
}

static void check_no_embedding(accrt_serve_engine_t* engine, const accrt_serve_request_t* request,
                               accrt_status_t status) {
  assert_int_equal(accrt_serve_engine_submit(engine, request, NULL), status);
}

static void test_embedding_refusals(void** state) {
  (void)state;
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.eos = -1;
  accrt_serve_engine_t* engine = make_engine(&simulation, NULL);
  accrt_serve_request_t request = hello_request(0, NULL);
  request.embed = ACCRT_SERVE_EMBED_LAST;
  check_no_embedding(engine, &request, ACCRT_ERROR_UNSUPPORTED);
  accrt_serve_engine_release(engine);
  simulation.embedding_size = 8;
  simulation.max_length = HELLO;
  engine = make_engine(&simulation, NULL);
  check_no_embedding(engine, &request, ACCRT_OK); /* no room for a new token is needed */
  request.embed = 3;
  check_no_embedding(engine, &request, ACCRT_ERROR_INVALID_ARGUMENT);
  request.embed = ACCRT_SERVE_EMBED_MEAN;
  request.embed_dimensions = 9;
  check_no_embedding(engine, &request, ACCRT_ERROR_OUT_OF_RANGE);
  request.embed_dimensions = 0;
  request.n = 2;
  check_no_embedding(engine, &request, ACCRT_ERROR_INVALID_ARGUMENT);
  request.n = 1;
  request.flags = ACCRT_SERVE_LOGPROBS;
  check_no_embedding(engine, &request, ACCRT_ERROR_INVALID_ARGUMENT);
  request.flags = 0;
  request.constraint = rhyming;
  check_no_embedding(engine, &request, ACCRT_ERROR_INVALID_ARGUMENT);
  request.constraint = NULL;
  request.prompt_count = 0;
  check_no_embedding(engine, &request, ACCRT_ERROR_OUT_OF_RANGE);
  accrt_serve_engine_release(engine);
}

/* Prompts and generated texts of all lengths at once, with little memory, in chunks, some of them
 * cancelled, with steps that fail: each is the same as alone, bit for bit. */
static void embed_in_company(uint32_t flags, uint32_t fail_every) {
  static output_t outputs[EMBEDDED], alone;
  static int32_t prompts[EMBEDDED][160];
  memset(outputs, 0, sizeof outputs);
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.flags = flags;
  simulation.eos = -1;
  simulation.embedding_size = 8;
  simulation.fail_every = fail_every;
  simulation.min_copy_tokens = below(3);
  simulation.page_size = 4;
  simulation.page_count = 150;
  simulation.max_rows = 7;
  simulation.max_tokens = 50;
  simulation.adapter_count = 2;
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.max_chunk_tokens = 21;
  options.max_failures = 1000;
  accrt_serve_engine_t* engine = make_engine(&simulation, &options);
  accrt_serve_request_t requests[EMBEDDED];
  uint64_t ids[EMBEDDED];
  for (uint32_t i = 0; i < EMBEDDED; ++i) {
    requests[i] = (accrt_serve_request_t)ACCRT_SERVE_REQUEST_INIT;
    requests[i].prompt = prompts[i];
    requests[i].prompt_count = 1 + below(i % 4 == 0 ? 8 : 160);
    for (uint32_t k = 0; k < requests[i].prompt_count; ++k) /* many begin as others do */
      prompts[i][k] = (int32_t)(k < 40 ? k : below(256));
    requests[i].embed = below(3);
    if (requests[i].embed == 0)
      requests[i].max_new_tokens = 1 + below(40);
    if (below(4) == 0)
      requests[i].adapter = adapters[below(2)];
    requests[i].priority = (int32_t)below(3);
    requests[i].user_data = &outputs[i];
    ids[i] = submit(engine, &requests[i]);
    if (below(2) == 0)
      (void)step(engine);
    if (i > 4 && below(8) == 0)
      (void)accrt_serve_engine_cancel(engine, ids[below(i)]);
  }
  run(engine);
  const accrt_serve_stats_t stats = stats_of(engine);
  assert_int_equal(stats.pages_free + stats.pages_cached, stats.pages);
  assert_int_equal(engine->live, 0);
  accrt_serve_simulation_t own = simulation;
  own.fail_every = 0;
  for (uint32_t i = 0; i < EMBEDDED; ++i) {
    assert_int_equal(outputs[i].ends, 1);
    if (outputs[i].reason == ACCRT_SERVE_FINISH_CANCELLED)
      continue;
    run_alone(&own, &requests[i], &alone);
    assert_int_equal(outputs[i].reason, alone.reason);
    assert_int_equal(outputs[i].token_count, alone.token_count);
    assert_memory_equal(outputs[i].tokens, alone.tokens, alone.token_count * 4);
    assert_int_equal(outputs[i].embedding_size, requests[i].embed != 0 ? 8 : 0);
    assert_memory_equal(outputs[i].embedding, alone.embedding, sizeof alone.embedding);
  }
  accrt_serve_engine_release(engine);
}

static void test_embeddings_in_company(void** state) {
  (void)state;
  for (uint32_t i = 0; i < 10; ++i) {
    embed_in_company(0, 0);
    embed_in_company(ACCRT_SERVE_MODEL_OVERLAP, 0);
    embed_in_company(ACCRT_SERVE_MODEL_OVERLAP, 67);
  }
}

int main(void) {
  const char* seed = getenv("ACCRT_TEST_SEED");
  random_state = seed != NULL ? strtoull(seed, NULL, 10) : accrt_serve_now_ns() | 1;
  print_message("seed %llu\n", (unsigned long long)random_state);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_request),
      cmocka_unit_test(test_partial_hits),
      cmocka_unit_test(test_company),
      cmocka_unit_test(test_a_row_that_comes_back_elsewhere),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_cancel_in_each_state),
      cmocka_unit_test(test_cancel_frees),
      cmocka_unit_test(test_deadlines),
      cmocka_unit_test(test_stops),
      cmocka_unit_test(test_parameters),
      cmocka_unit_test(test_shared_prompts),
      cmocka_unit_test(test_fairness),
      cmocka_unit_test(test_failing_steps),
      cmocka_unit_test(test_dead_model),
      cmocka_unit_test(test_without_memory),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_constraint),
      cmocka_unit_test(test_constraint_and_ends),
      cmocka_unit_test(test_constraint_that_fails),
      cmocka_unit_test(test_results_that_are_none),
      cmocka_unit_test(test_model_without_masks),
      cmocka_unit_test(test_embedding),
      cmocka_unit_test(test_embedding_refusals),
      cmocka_unit_test(test_embeddings_in_company),
  };
  rhyming = make_rhyme(&rhyme);
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  accrt_serve_constraint_release(rhyming);
  return failed + (rhyme.started != rhyme.stopped);
}
