/* serve/adapters_test.c - adapters of an engine over the simulated model: names, places, the prefix
 * cache, and loads while others generate.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/serve.h"
#include "serve/engine.h"

#define PLACES 3
#define PROMPT 50
#define NEW_TOKENS 20

typedef struct output {
  int32_t tokens[NEW_TOKENS];
  uint32_t count, ends, reason, cached;
} output_t;

static accrt_serve_engine_t* make_engine(uint32_t places, uint32_t model_flags,
                                         uint32_t engine_flags, uint32_t fail_every) {
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.eos = -1;
  simulation.flags = model_flags;
  simulation.adapter_count = places;
  simulation.max_rows = 8;
  simulation.max_tokens = 64;
  simulation.fail_every = fail_every;
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(&simulation, &model), ACCRT_OK);
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.flags = engine_flags;
  options.max_failures = 100;
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_engine_create(model, &options, &engine), ACCRT_OK);
  accrt_serve_model_release(model);
  return engine;
}

static accrt_status_t load(accrt_serve_engine_t* engine, const char* name, const char* content) {
  const accrt_serve_adapter_tensor_t tensor = {"any", content, strlen(content)};
  return accrt_serve_engine_load_adapter(engine, name, &tensor, 1, sizeof tensor);
}

static accrt_status_t submit(accrt_serve_engine_t* engine, const char* adapter, const char* salt,
                             output_t* output) {
  int32_t prompt[PROMPT];
  for (int32_t i = 0; i < PROMPT; ++i)
    prompt[i] = i * 5 % 256;
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = prompt;
  request.prompt_count = PROMPT;
  request.max_new_tokens = NEW_TOKENS;
  request.adapter = adapter;
  request.cache_salt = salt;
  request.user_data = output;
  return accrt_serve_engine_submit(engine, &request, NULL);
}

static void take_all(accrt_serve_engine_t* engine) {
  accrt_serve_event_t events[8];
  uint32_t count;
  while (accrt_serve_engine_poll(engine, events, sizeof *events, 8, &count) == ACCRT_OK) {
    for (uint32_t i = 0; i < count; ++i) {
      output_t* output = events[i].user_data;
      assert_true(output->count + events[i].token_count <= NEW_TOKENS);
      if (events[i].token_count > 0)
        memcpy(output->tokens + output->count, events[i].tokens, events[i].token_count * 4);
      output->count += events[i].token_count;
      output->ends += events[i].last;
      output->reason = events[i].finish_reason;
      output->cached = events[i].cached_tokens;
    }
  }
}

static output_t run(accrt_serve_engine_t* engine, const char* adapter, const char* salt) {
  output_t output = {0};
  assert_int_equal(submit(engine, adapter, salt, &output), ACCRT_OK);
  while (accrt_serve_engine_step(engine) == ACCRT_OK)
    take_all(engine);
  assert_int_equal(output.ends, 1);
  assert_int_equal(output.count, NEW_TOKENS);
  return output;
}

static bool is_same(const output_t* a, const output_t* b) {
  return memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0;
}

static void test_each_has_its_own_tokens_and_pages(void** state) {
  (void)state;
  accrt_serve_engine_t* engine = make_engine(PLACES, ACCRT_SERVE_MODEL_OVERLAP, 0, 0);
  assert_int_equal(load(engine, "a", "first"), ACCRT_OK);
  assert_int_equal(load(engine, "b", "second"), ACCRT_OK);
  const output_t none = run(engine, NULL, NULL), a = run(engine, "a", NULL);
  const output_t b = run(engine, "b", NULL);
  assert_false(is_same(&none, &a) || is_same(&none, &b) || is_same(&a, &b));
  assert_int_equal(none.cached + a.cached + b.cached, 0);
  /* The second time each finds its own pages; a salt divides them once more. */
  static const char* const names[] = {NULL, "a", "b"};
  const output_t* const first[] = {&none, &a, &b};
  for (uint32_t i = 0; i < 3; ++i) {
    output_t again = run(engine, names[i], NULL);
    assert_true(is_same(&again, first[i]));
    assert_int_equal(again.cached, 48);
    again = run(engine, names[i], "salt");
    assert_true(is_same(&again, first[i]));
    assert_int_equal(again.cached, 0);
    assert_int_equal(run(engine, names[i], "salt").cached, 48);
  }
  /* Another of the same name shares no page with the one before; one of the same contents under
   * another name has the same tokens. */
  assert_int_equal(accrt_serve_engine_unload_adapter(engine, "a", 0), ACCRT_OK);
  assert_int_equal(load(engine, "a", "third"), ACCRT_OK);
  assert_int_equal(load(engine, "c", "first"), ACCRT_OK);
  const output_t third = run(engine, "a", NULL), c = run(engine, "c", NULL);
  assert_int_equal(third.cached + c.cached, 0);
  assert_false(is_same(&third, &a));
  assert_true(is_same(&c, &a));
  char all[16] = {0};
  uint64_t size;
  uint32_t count;
  assert_int_equal(accrt_serve_engine_adapters(engine, all, sizeof all, &size, &count), ACCRT_OK);
  assert_int_equal(size, 6);
  assert_int_equal(count, 3);
  assert_memory_equal(all, "a\0b\0c", 6);
  memset(all, 7, sizeof all);
  assert_int_equal(accrt_serve_engine_adapters(engine, all, 3, &size, &count), ACCRT_OK);
  assert_int_equal(size, 6);
  assert_memory_equal(all, "a\0b\7", 4);
  assert_int_equal(accrt_serve_engine_adapters(engine, NULL, 0, &size, &count), ACCRT_OK);
  assert_int_equal(size, 6);
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  assert_int_equal(accrt_serve_engine_stats(engine, &stats), ACCRT_OK);
  assert_int_equal(stats.adapters, 3);
  assert_int_equal(stats.adapter_places, PLACES);
  assert_int_equal(stats.adapter_loads, 4);
  accrt_serve_engine_release(engine);
}

static void test_refusals(void** state) {
  (void)state;
  accrt_serve_engine_t* engine = make_engine(2, 0, 0, 0);
  output_t output = {0}, other = {0};
  const accrt_serve_adapter_tensor_t bad = {"fails", "x", 1}, nameless = {NULL, "x", 1};
  assert_int_equal(submit(engine, "a", NULL, &output), ACCRT_ERROR_NOT_FOUND);
  assert_int_equal(load(engine, "", "x"), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(load(engine, NULL, "x"), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_serve_engine_load_adapter(engine, "a", NULL, 1, sizeof bad),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_serve_engine_load_adapter(engine, "a", &bad, 1, 16),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_serve_engine_load_adapter(engine, "a", &nameless, 1, sizeof bad),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  /* What the model refuses gives its place back. */
  for (uint32_t i = 0; i < 5; ++i) {
    assert_int_equal(accrt_serve_engine_load_adapter(engine, "a", &bad, 1, sizeof bad),
                     ACCRT_ERROR_NOT_FOUND);
    accrt_error_t error = ACCRT_ERROR_INIT;
    assert_int_equal(accrt_last_error(&error), ACCRT_OK);
    assert_non_null(strstr(error.message, "there is no place for 'fails'"));
  }
  assert_int_equal(load(engine, "a", "x"), ACCRT_OK);
  assert_int_equal(load(engine, "a", "y"), ACCRT_ERROR_ALREADY_EXISTS);
  assert_int_equal(load(engine, "b", "y"), ACCRT_OK);
  assert_int_equal(load(engine, "c", "z"), ACCRT_ERROR_NOT_READY);
  assert_int_equal(accrt_serve_engine_unload_adapter(engine, "c", 0), ACCRT_ERROR_NOT_FOUND);
  /* One that is used stays: while its request waits, runs, and has a step in flight. */
  assert_int_equal(submit(engine, "a", NULL, &output), ACCRT_OK);
  assert_int_equal(submit(engine, "b", NULL, &other), ACCRT_OK);
  for (uint32_t i = 0; i < 5; ++i) {
    assert_int_equal(accrt_serve_engine_unload_adapter(engine, "a", 0), ACCRT_ERROR_NOT_READY);
    assert_int_equal(accrt_serve_engine_step(engine), ACCRT_OK);
  }
  while (accrt_serve_engine_step(engine) == ACCRT_OK)
    take_all(engine);
  assert_int_equal(output.ends + other.ends, 2);
  assert_int_equal(accrt_serve_engine_unload_adapter(engine, "a", 0), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_unload_adapter(engine, "a", 0), ACCRT_ERROR_NOT_FOUND);
  assert_int_equal(submit(engine, "a", NULL, &output), ACCRT_ERROR_NOT_FOUND);
  assert_int_equal(load(engine, "c", "z"), ACCRT_OK);
  accrt_serve_engine_release(engine);
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.adapter_count = 65537;
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(&simulation, &model),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  engine = make_engine(0, 0, 0, 0);
  assert_int_equal(load(engine, "a", "x"), ACCRT_ERROR_UNSUPPORTED);
  assert_int_equal(submit(engine, "a", NULL, &output), ACCRT_ERROR_NOT_FOUND);
  accrt_serve_engine_release(engine);
}

/* Steps that fail cost time: adapters are there after the model's reset. */
static void test_failing_steps(void** state) {
  (void)state;
  accrt_serve_engine_t* engine = make_engine(1, ACCRT_SERVE_MODEL_OVERLAP, 0, 0);
  assert_int_equal(load(engine, "a", "x"), ACCRT_OK);
  const output_t right = run(engine, "a", NULL);
  accrt_serve_engine_release(engine);
  engine = make_engine(1, ACCRT_SERVE_MODEL_OVERLAP, 0, 7);
  assert_int_equal(load(engine, "a", "x"), ACCRT_OK);
  const output_t output = run(engine, "a", NULL);
  assert_true(is_same(&output, &right));
  assert_int_equal(accrt_serve_engine_unload_adapter(engine, "a", 0), ACCRT_OK);
  accrt_serve_engine_release(engine);
}

/* ---- Threads ---- */

#define CONTENTS 5
#define ROUNDS 150

typedef struct visitor {
  accrt_serve_engine_t* engine;
  const char* name;
  uint32_t number;
  output_t outputs[ROUNDS];
  uint32_t contents[ROUNDS];
} visitor_t;

static const char* const contents[CONTENTS] = {"one", "two", "three", "four", "five"};

/* Its adapter has other contents in every round, and goes when the round's request has ended. */
static void* visit(void* argument) {
  visitor_t* visitor = argument;
  for (uint32_t i = 0; i < ROUNDS; ++i) {
    visitor->contents[i] = (i * 3 + visitor->number) % CONTENTS;
    assert_int_equal(load(visitor->engine, visitor->name, contents[visitor->contents[i]]),
                     ACCRT_OK);
    assert_int_equal(submit(visitor->engine, visitor->name, NULL, &visitor->outputs[i]), ACCRT_OK);
    if (i % 3 == 0) { /* too early, mostly; then it is there still */
      const accrt_status_t status =
          accrt_serve_engine_unload_adapter(visitor->engine, visitor->name, 0);
      if (status == ACCRT_OK)
        continue;
      assert_int_equal(status, ACCRT_ERROR_NOT_READY);
    }
    assert_int_equal(
        accrt_serve_engine_unload_adapter(visitor->engine, visitor->name, ACCRT_TIMEOUT_INFINITE),
        ACCRT_OK);
  }
  return NULL;
}

static void test_adapters_come_and_go(void** state) {
  (void)state;
  static visitor_t visitors[PLACES];
  static output_t right[CONTENTS], stream;
  accrt_serve_engine_t* engine = make_engine(1, 0, 0, 0);
  for (uint32_t i = 0; i < CONTENTS; ++i) {
    assert_int_equal(load(engine, "a", contents[i]), ACCRT_OK);
    right[i] = run(engine, "a", NULL);
    assert_int_equal(accrt_serve_engine_unload_adapter(engine, "a", 0), ACCRT_OK);
  }
  const output_t plain = run(engine, NULL, NULL);
  accrt_serve_engine_release(engine);
  engine = make_engine(PLACES, ACCRT_SERVE_MODEL_OVERLAP, ACCRT_SERVE_ENGINE_THREAD, 0);
  static const char* const names[PLACES] = {"x", "y", "z"};
  pthread_t threads[PLACES];
  for (uint32_t i = 0; i < PLACES; ++i) {
    visitors[i].engine = engine;
    visitors[i].name = names[i];
    visitors[i].number = i;
    assert_int_equal(pthread_create(&threads[i], NULL, visit, &visitors[i]), 0);
  }
  /* Others generate without an adapter all the while. */
  uint32_t ended = 0;
  assert_int_equal(submit(engine, NULL, NULL, &stream), ACCRT_OK);
  while (ended < PLACES * ROUNDS) {
    (void)accrt_serve_engine_wait(engine, UINT64_C(10000000));
    take_all(engine);
    ended = 0;
    for (uint32_t i = 0; i < PLACES; ++i)
      for (uint32_t k = 0; k < ROUNDS; ++k)
        ended += visitors[i].outputs[k].ends;
    if (stream.ends != 0) {
      assert_true(is_same(&stream, &plain));
      stream = (output_t){0};
      assert_int_equal(submit(engine, NULL, NULL, &stream), ACCRT_OK);
    }
  }
  for (uint32_t i = 0; i < PLACES; ++i)
    (void)pthread_join(threads[i], NULL);
  for (uint32_t i = 0; i < PLACES; ++i) {
    for (uint32_t k = 0; k < ROUNDS; ++k)
      assert_true(is_same(&visitors[i].outputs[k], &right[visitors[i].contents[k]]));
  }
  accrt_serve_engine_release(engine);
}

/* Who waits for an adapter to be free is told that time ran out; it may be used again then. */
static void test_a_wait_ends(void** state) {
  (void)state;
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.eos = -1;
  simulation.adapter_count = 1;
  simulation.step_ns = UINT64_C(5000000);
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(&simulation, &model), ACCRT_OK);
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.flags = ACCRT_SERVE_ENGINE_THREAD;
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_engine_create(model, &options, &engine), ACCRT_OK);
  accrt_serve_model_release(model);
  static output_t output, second;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t turn = 0; turn < 100 && status == ACCRT_OK; ++turn) { /* it may end before */
    take_all(engine);
    output = (output_t){0};
    assert_int_equal(load(engine, "a", "x"), ACCRT_OK);
    assert_int_equal(submit(engine, "a", NULL, &output), ACCRT_OK);
    status = accrt_serve_engine_unload_adapter(engine, "a", 1000);
  }
  assert_int_equal(status, ACCRT_ERROR_NOT_READY);
  assert_int_equal(submit(engine, "a", NULL, &second), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_unload_adapter(engine, "a", ACCRT_TIMEOUT_INFINITE),
                   ACCRT_OK);
  take_all(engine);
  assert_int_equal(output.ends + second.ends, 2);
  accrt_serve_engine_release(engine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_has_its_own_tokens_and_pages),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_failing_steps),
      cmocka_unit_test(test_adapters_come_and_go),
      cmocka_unit_test(test_a_wait_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
