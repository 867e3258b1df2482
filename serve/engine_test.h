/* serve/engine_test.h - what the tests of engines over the simulated model share: engines,
 * requests and their outputs, a constraint, random requests.
 *
 * Prints the seed of its random values; ACCRT_TEST_SEED sets it. */
#ifndef ACCRT_SERVE_ENGINE_TEST_H_
#define ACCRT_SERVE_ENGINE_TEST_H_

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
#include "tests/random.h"

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

static inline accrt_serve_model_t* make_model(const accrt_serve_simulation_t* options) {
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(options, &model), ACCRT_OK);
  return model;
}

/* Names and contents of those that models with places for adapters get. */
static const char* const adapters[] = {"poet", "clerk", "judge"};

static inline accrt_serve_engine_t* make_engine(const accrt_serve_simulation_t* simulation,
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
static inline void take_prompt(output_t* output, const accrt_serve_event_t* event) {
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
static inline void take(const accrt_serve_event_t* event) {
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

static inline void take_all(accrt_serve_engine_t* engine) {
  accrt_serve_event_t events[7];
  uint32_t count;
  while (accrt_serve_engine_poll(engine, events, sizeof *events, 7, &count) == ACCRT_OK) {
    for (uint32_t i = 0; i < count; ++i)
      take(&events[i]);
  }
  assert_int_equal(count, 0);
}

static inline void check_scheduler(accrt_serve_engine_t* engine) {
  const char* wrong = accsv_scheduler_check(&engine->scheduler);
  if (wrong != NULL)
    fail_msg("%s", wrong);
}

static inline accrt_status_t step(accrt_serve_engine_t* engine) {
  const accrt_status_t status = accrt_serve_engine_step(engine);
  check_scheduler(engine);
  take_all(engine);
  return status;
}

static inline void run(accrt_serve_engine_t* engine) {
  while (step(engine) == ACCRT_OK)
    ;
}

static inline accrt_serve_stats_t stats_of(accrt_serve_engine_t* engine) {
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  assert_int_equal(accrt_serve_engine_stats(engine, &stats), ACCRT_OK);
  return stats;
}

/* Nothing is left: every page is free or cached. */
static inline void check_empty(accrt_serve_engine_t* engine) {
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

static inline uint64_t submit(accrt_serve_engine_t* engine, const accrt_serve_request_t* request) {
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
static inline void run_alone(const accrt_serve_simulation_t* simulation,
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

static inline accrt_serve_request_t hello_request(uint32_t new_tokens, void* output) {
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = hello;
  request.prompt_count = HELLO;
  request.max_new_tokens = new_tokens;
  request.user_data = output;
  return request;
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

static inline accrt_status_t rhyme_start(void* self, void** out_state) {
  rhyme_t* rhyme = self;
  verse_t* verse = calloc(1, sizeof *verse);
  assert_non_null(verse);
  *verse = (verse_t){.rhyme = rhyme, .last = -1};
  (void)atomic_fetch_add(&rhyme->started, 1);
  *out_state = verse;
  return ACCRT_OK;
}
static inline accrt_status_t rhyme_mask(void* state, uint32_t* mask, uint32_t words,
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
static inline accrt_status_t rhyme_advance(void* state, int32_t token, uint32_t* out_ended) {
  verse_t* verse = state;
  assert_int_equal(verse->mask[token / 32] >> (token % 32) & 1, 1);
  verse->last = token;
  *out_ended = ++verse->count == verse->rhyme->most && verse->rhyme->failure == ACCRT_OK;
  return ACCRT_OK;
}
static inline void rhyme_stop(void* state) {
  (void)atomic_fetch_add(&((verse_t*)state)->rhyme->stopped, 1);
  free(state);
}

static inline accrt_serve_constraint_t* make_rhyme(rhyme_t* rhyme) {
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

static inline void check_rhymes(const output_t* output) {
  for (uint32_t i = 1; i < output->token_count; ++i)
    assert_int_not_equal(output->tokens[i] % 3, output->tokens[i - 1] % 3);
}

/* ---- Random requests ---- */

static uint64_t random_state;

static inline uint64_t next_random(void) {
  return test_random(&random_state);
}
static inline uint32_t below(uint32_t limit) {
  return (uint32_t)test_below(&random_state, limit);
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
static inline void make_trial(trial_t* trial) {
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

static inline void check_same(const output_t* a, const output_t* b) {
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

/* ---- A test program ---- */

static inline int begin_tests(void** state) {
  (void)state;
  random_state = test_seed();
  rhyming = make_rhyme(&rhyme);
  return 0;
}

/* Every state of a constraint that was begun has ended. */
static inline int end_tests(void** state) {
  (void)state;
  accrt_serve_constraint_release(rhyming);
  return rhyme.started != rhyme.stopped;
}

#endif /* ACCRT_SERVE_ENGINE_TEST_H_ */
