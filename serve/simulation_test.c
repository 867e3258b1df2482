/* serve/simulation_test.c - many requests in virtual time, with all that requests may ask for.
 * Every one ends, none waits for ever, and nothing is left behind, also where steps fail.
 * ACCRT_SERVE_REQUESTS says how many (100,000), ACCRT_TEST_SEED the seed, which is printed.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "accrt/serve.h"
#include "serve/engine.h"
#include "tests/random.h"

#define SHARED 1024 /* tokens that prompts of an application begin with */

static uint64_t random_state;

static uint64_t next_random(void) {
  return test_random(&random_state);
}
static double uniform(void) {
  return ((double)(next_random() >> 11) + 0.5) * 0x1p-53;
}
/* Lengths of public traces: many short ones, and a long tail. */
static uint32_t length(double median, double most) {
  const double normal = sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
  const double value = median * exp(normal);
  return (uint32_t)(value < 1 ? 1 : value > most ? most : value);
}

static uint64_t read_time(void* self) {
  return *(uint64_t*)self;
}

typedef struct counts {
  uint64_t submitted, refused, ended, failed, scored, stopped, late, constrained, adapted, swaps;
} counts_t;

/* ---- What requests ask for ---- */

#define BANNED 66
#define STOP_TOKEN 77
#define MOST_EVEN 60u /* tokens of a constrained sequence */
#define ADAPTERS 4u

enum { /* of `user_data` */
       IS_EVEN = 1,
       HAS_BAN = 2,
       HAS_STOP = 4,
};

/* Even tokens alone; after each fourth the sequence may end. */
typedef struct even {
  uint64_t started, stopped;
  accrt_serve_constraint_t* constraint;
} even_t;

static even_t even;

static accrt_status_t even_start(void* self, void** out_state) {
  ++((even_t*)self)->started;
  uint32_t* count = calloc(1, sizeof *count);
  assert_non_null(count);
  *out_state = count;
  return ACCRT_OK;
}
static accrt_status_t even_mask(void* state, uint32_t* mask, uint32_t words,
                                uint32_t* out_may_end) {
  const uint32_t count = *(const uint32_t*)state;
  memset(mask, 0x55, words * sizeof *mask);
  *out_may_end = count > 0 && count % 4 == 0;
  return ACCRT_OK;
}
static accrt_status_t even_advance(void* state, int32_t token, uint32_t* out_ended) {
  assert_int_equal(token % 2, 0);
  *out_ended = ++*(uint32_t*)state == MOST_EVEN;
  return ACCRT_OK;
}
static void even_stop(void* state) {
  ++even.stopped;
  free(state);
}
static void make_even(void) {
  accrt_serve_constraint_functions_t functions = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  functions.self = &even;
  functions.start = even_start;
  functions.mask = even_mask;
  functions.advance = even_advance;
  functions.stop = even_stop;
  assert_int_equal(accrt_serve_constraint_create(&functions, &even.constraint), ACCRT_OK);
}

static const char* adapter_name(uint64_t number) {
  static const char* const names[] = {"first", "second", "third", "fourth"};
  return names[number % ADAPTERS];
}
static accrt_status_t load_adapter(accrt_serve_engine_t* engine, uint64_t number) {
  const uint64_t content = next_random();
  const accrt_serve_adapter_tensor_t tensor = {"any", &content, sizeof content};
  return accrt_serve_engine_load_adapter(engine, adapter_name(number), &tensor, 1, sizeof tensor);
}
/* Another takes the place of one that nobody uses just now. */
static void swap_adapter(accrt_serve_engine_t* engine, counts_t* counts) {
  const uint64_t number = next_random() % 2 == 0 ? ADAPTERS - 1 : next_random();
  const accrt_status_t status = accrt_serve_engine_unload_adapter(engine, adapter_name(number), 0);
  if (status == ACCRT_ERROR_NOT_READY)
    return;
  assert_int_equal(status, ACCRT_OK);
  assert_int_equal(load_adapter(engine, number), ACCRT_OK);
  ++counts->swaps;
}

static void ask_for_more(accrt_serve_request_t* request, uint64_t number, uint64_t now_ns) {
  static const accrt_serve_bias_t biases[] = {{BANNED, -INFINITY}, {3, 2.5f}};
  static const int32_t stop_tokens[] = {STOP_TOKEN};
  static const char* const stops[] = {"q~q", "no such text"};
  uintptr_t asked = 0;
  if (number % 11 == 3) {
    request->constraint = even.constraint;
    asked |= IS_EVEN;
  }
  if (number % 7 == 2) {
    request->biases = biases;
    request->bias_count = 2;
    const uint32_t most = request->max_new_tokens;
    request->min_new_tokens = (uint32_t)(number % 5) < most ? (uint32_t)(number % 5) : most;
    asked |= HAS_BAN;
  }
  if (number % 9 == 4) {
    request->stop_tokens = stop_tokens;
    request->stop_token_count = 1;
    request->stop_strings = stops;
    request->stop_string_count = 2;
    request->min_new_tokens = 0;
    asked |= HAS_STOP;
  }
  if (number % 19 == 5)
    request->deadline_ns = now_ns + UINT64_C(100000000) * (1 + next_random() % 100);
  if (number % 6 == 1)
    request->adapter =
        adapter_name(next_random() % 50 == 0 ? ADAPTERS - 1 : next_random() % (ADAPTERS - 1));
  if (number % 23 == 0)
    request->cache_salt = "salt";
  request->user_data = (void*)asked;
}

static void check_tokens(const accrt_serve_event_t* event) {
  const uintptr_t asked = (uintptr_t)event->user_data;
  for (uint32_t i = 0; i < event->token_count; ++i) {
    const int32_t token = event->tokens[i];
    assert_true((asked & IS_EVEN) == 0 || token % 2 == 0 || token == event->stop_token);
    assert_true((asked & HAS_BAN) == 0 || token != BANNED);
    assert_true((asked & HAS_STOP) == 0 || token != STOP_TOKEN ||
                event->finish_reason == ACCRT_SERVE_FINISH_STOP);
  }
}

static void submit_one(accrt_serve_engine_t* engine, uint64_t number, uint64_t now_ns,
                       counts_t* counts) {
  static int32_t prompt[4096];
  const int32_t application = (int32_t)(next_random() % 5);
  const uint32_t shared = application < 3 ? length(100, SHARED) : 0;
  uint32_t size = shared + length(60, 1000);
  for (uint32_t i = 0; i < size; ++i)
    prompt[i] = (int32_t)(i < shared ? (i * 7 + (uint32_t)application) % 256 : next_random() % 256);
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = prompt;
  request.prompt_count = size;
  request.max_new_tokens = length(40, 500);
  request.tenant = number % 17 == 0 ? 1 : number % 5;
  request.priority = number % 50 == 0 ? -1 : 0;
  request.n = number % 100 == 0 ? 3 : 1;
  request.temperature = number % 3 == 0 ? 1.0f : 0.0f;
  request.frequency_penalty = number % 40 == 0 ? 0.5f : 0.0f;
  request.num_speculative_tokens = number % 4 == 0 ? 5 : 0;
  if (number % 13 == 0) {
    request.flags |= ACCRT_SERVE_PROMPT_LOGPROBS;
    request.prompt_top_logprobs = 1;
  }
  ask_for_more(&request, number, now_ns);
  uint64_t id;
  const accrt_status_t status = accrt_serve_engine_submit(engine, &request, &id);
  if (status == ACCRT_ERROR_NOT_READY) {
    ++counts->refused;
    return;
  }
  assert_int_equal(status, ACCRT_OK);
  ++counts->submitted;
  counts->constrained += request.constraint != NULL;
  counts->adapted += request.adapter != NULL;
  if (number % 30 == 0)
    (void)accrt_serve_engine_cancel(engine, id - next_random() % 20);
}

static void take_events(accrt_serve_engine_t* engine, counts_t* counts) {
  accrt_serve_event_t events[64];
  uint32_t count;
  while (accrt_serve_engine_poll(engine, events, sizeof *events, 64, &count) == ACCRT_OK) {
    for (uint32_t i = 0; i < count; ++i) {
      counts->failed += events[i].kind == ACCRT_SERVE_EVENT_FAILED;
      counts->ended += events[i].last;
      counts->scored += events[i].kind == ACCRT_SERVE_EVENT_PROMPT;
      counts->stopped += events[i].stop_token == STOP_TOKEN;
      counts->late += events[i].finish_reason == ACCRT_SERVE_FINISH_DEADLINE;
      if (events[i].kind != ACCRT_SERVE_EVENT_PROMPT)
        check_tokens(&events[i]);
    }
  }
}

/* `fail_every`: of so many steps one fails; 0: none. */
static void run_traffic(uint64_t requests, double load, uint32_t flags, uint32_t fail_every) {
  uint64_t now_ns = 1000, next_ns = 1000, number = 0;
  const accrt_serve_clock_t clock = {&now_ns, read_time};
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.flags = flags;
  simulation.eos = 0;
  simulation.page_count = 800; /* 12,800 tokens: less than 128 sequences want */
  simulation.max_rows = 128;
  simulation.max_tokens = 512;
  simulation.step_ns = 5000000;
  simulation.token_ns = 20000;
  simulation.time_ns = &now_ns;
  simulation.repeat = 20;
  simulation.min_copy_tokens = 1;
  simulation.fail_every = fail_every;
  simulation.adapter_count = ADAPTERS;
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(&simulation, &model), ACCRT_OK);
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.clock = &clock;
  options.max_queued = 300;
  even = (even_t){0};
  make_even();
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_engine_create(model, &options, &engine), ACCRT_OK);
  counts_t counts = {0};
  for (uint64_t i = 0; i < ADAPTERS; ++i)
    assert_int_equal(load_adapter(engine, i), ACCRT_OK);
  const uint64_t begin_ns = accrt_serve_now_ns();
  for (;;) {
    for (; number < requests && next_ns <= now_ns; ++number) {
      if (number % 50 == 0)
        swap_adapter(engine, &counts);
      submit_one(engine, number, now_ns, &counts);
      next_ns += (uint64_t)(-log(uniform()) * 1e9 / load);
    }
    const accrt_status_t status = accrt_serve_engine_step(engine);
    take_events(engine, &counts);
    if (engine->step % 1000 == 0)
      assert_null(accsv_scheduler_check(&engine->scheduler));
    if (status == ACCRT_OK)
      continue;
    assert_int_equal(status, ACCRT_ERROR_NOT_READY);
    if (number == requests)
      break;
    now_ns = next_ns;
  }
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  assert_int_equal(accrt_serve_engine_stats(engine, &stats), ACCRT_OK);
  assert_int_equal(counts.submitted + counts.refused, requests);
  assert_int_equal(counts.ended, counts.submitted);
  /* A request survives one failed step. */
  assert_true(fail_every != 0 ? counts.failed <= requests / 50 : counts.failed == 0);
  assert_true(fail_every != 0 || stats.step_failures == 0);
  assert_true(fail_every == 0 || stats.step_failures > 0 || stats.steps < 2 * fail_every);
  const uint32_t has_few = requests < 5000; /* of which perhaps none does what is counted below */
  assert_true(has_few || counts.late > 0);
  /* About one request of 700 stops, and adapters change where none waits: of few, perhaps none. */
  assert_true(counts.submitted < 50000 || (counts.stopped > 0 && counts.swaps > 0));
  assert_true(has_few || counts.constrained > counts.submitted / 20);
  assert_true(has_few || counts.adapted > counts.submitted / 20);
  assert_true(has_few || (counts.scored > requests / 100 && stats.accepted_tokens > 0));
  assert_true(has_few || stats.partial_hits > requests / 100);
  assert_true(stats.copied_tokens >= stats.partial_hits);
  assert_int_equal(stats.pages_free + stats.pages_cached, stats.pages);
  assert_int_equal(stats.running + stats.waiting + stats.preempted, 0);
  /* Nobody starves: the queue holds 300 requests, which is a minute of work at most. */
  uint64_t in_time = 0;
  for (uint32_t i = 0; i < 21; ++i) /* up to 65 s */
    in_time += stats.queue_time.buckets[i];
  assert_int_equal(in_time, stats.queue_time.count);
  print_message("%llu requests at %g/s in %.1f s: %llu steps, %llu tokens, %llu preemptions, "
                "%.0f%% of prompts cached, %llu refused, %.1f s queued in the mean\n",
                (unsigned long long)requests, load, (double)(accrt_serve_now_ns() - begin_ns) / 1e9,
                (unsigned long long)stats.steps, (unsigned long long)stats.output_tokens,
                (unsigned long long)stats.preemptions,
                100.0 * (double)stats.cached_tokens / (double)stats.prompt_tokens,
                (unsigned long long)counts.refused,
                (double)stats.queue_time.sum_ns / (double)stats.queue_time.count / 1e9);
  print_message(
      "%llu failed in %llu failed steps, %llu late, %llu stopped, %llu adapters swapped\n",
      (unsigned long long)counts.failed, (unsigned long long)stats.step_failures,
      (unsigned long long)counts.late, (unsigned long long)counts.stopped,
      (unsigned long long)counts.swaps);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
  accrt_serve_constraint_release(even.constraint);
  assert_true(even.started >= counts.constrained && even.started == even.stopped);
}

/* ---- Time between tokens ---- */

typedef struct paced {
  uint64_t now_ns;
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine;
} paced_t;

static void make_paced(paced_t* paced, accrt_serve_simulation_t* simulation,
                       accrt_serve_options_t* options, accrt_serve_clock_t* clock) {
  paced->now_ns = 1000;
  *clock = (accrt_serve_clock_t){&paced->now_ns, read_time};
  simulation->time_ns = &paced->now_ns;
  options->clock = clock;
  assert_int_equal(accrt_serve_model_create_simulated(simulation, &paced->model), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_create(paced->model, options, &paced->engine), ACCRT_OK);
}
static void free_paced(paced_t* paced) {
  assert_null(accsv_scheduler_check(&paced->engine->scheduler));
  accrt_serve_engine_release(paced->engine);
  accrt_serve_model_release(paced->model);
}

static accrt_status_t submit_sized(accrt_serve_engine_t* engine, uint32_t prompt_tokens,
                                   uint32_t new_tokens, uint64_t deadline_ns, void* user_data) {
  static int32_t prompt[4096];
  for (uint32_t i = 0; i < prompt_tokens; ++i)
    prompt[i] = (int32_t)(next_random() % 256);
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = prompt;
  request.prompt_count = prompt_tokens;
  request.max_new_tokens = new_tokens;
  request.deadline_ns = deadline_ns;
  request.user_data = user_data;
  return accrt_serve_engine_submit(engine, &request, NULL);
}

/* Sixteen sequences draw tokens while long prompts come. Returns the longest step in which they
 * did, but for the first ones. */
static uint64_t longest_step(uint64_t max_step_ns, uint32_t flags, uint64_t* out_total_ns) {
  paced_t paced;
  accrt_serve_clock_t clock;
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.flags = flags;
  simulation.eos = -1;
  simulation.step_ns = 5000000;
  simulation.token_ns = 20000;
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.max_step_ns = max_step_ns;
  make_paced(&paced, &simulation, &options, &clock);
  for (uint32_t i = 0; i < 16; ++i)
    assert_int_equal(submit_sized(paced.engine, 8, 1500, 0, NULL), ACCRT_OK);
  uint64_t longest_ns = 0, steps = 0;
  counts_t counts = {0};
  for (;;) {
    if (steps % 25 == 10 && steps < 600)
      assert_int_equal(submit_sized(paced.engine, 2000, 4, 0, NULL), ACCRT_OK);
    const uint64_t begin_ns = paced.now_ns;
    if (accrt_serve_engine_step(paced.engine) != ACCRT_OK)
      break;
    take_events(paced.engine, &counts);
    if (++steps > 60 && steps < 1200 && paced.now_ns - begin_ns > longest_ns)
      longest_ns = paced.now_ns - begin_ns;
  }
  assert_int_equal(counts.ended, 16 + 24);
  *out_total_ns = paced.now_ns;
  free_paced(&paced);
  return longest_ns;
}

static void test_step_time(void** state) {
  (void)state;
  uint64_t free_ns, held_ns;
  for (uint32_t flags = 0; flags <= ACCRT_SERVE_MODEL_OVERLAP; ++flags) {
    assert_true(longest_step(0, flags, &free_ns) > 40000000);
    const uint64_t longest_ns = longest_step(10000000, flags, &held_ns);
    print_message("steps of 10 ms wanted: %.2f ms at most\n", (double)longest_ns / 1e6);
    assert_true(longest_ns <= 10500000);
    assert_true(held_ns <= free_ns + free_ns / 20);
  }
}

/* A target that no step can hold: prompts still advance. */
static void test_step_time_too_short(void** state) {
  (void)state;
  uint64_t total_ns;
  assert_true(longest_step(1, 0, &total_ns) <= 5000000 + 20000 * (16 + 16 + 1));
}

/* ---- Overload ---- */

/* Requests come at `rate` times what the engine can do (0: always one more than it can take), with
 * a deadline after 3 s. Returns the tokens of those that ended in time, prompt and answer, in each
 * second: what the engine computed of use. */
static double goodput(double rate, uint32_t flags, double* out_rate) {
  paced_t paced;
  accrt_serve_clock_t clock;
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.flags = flags;
  simulation.eos = 0;
  simulation.max_rows = 128;
  simulation.max_tokens = 512;
  simulation.step_ns = 5000000;
  simulation.token_ns = 20000;
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  make_paced(&paced, &simulation, &options, &clock);
  const uint64_t warm_ns = UINT64_C(10000000000), end_ns = UINT64_C(70000000000);
  uint64_t next_ns = paced.now_ns, good = 0, tokens = 0, refused = 0;
  while (paced.now_ns < end_ns) {
    while (rate > 0 ? next_ns <= paced.now_ns : paced.engine->waiting < 64) {
      const uint64_t deadline_ns = rate > 0 ? next_ns + UINT64_C(3000000000) : 0;
      next_ns += rate > 0 ? (uint64_t)(-log(uniform()) * 1e9 / rate) : 0;
      if (deadline_ns != 0 && deadline_ns <= paced.now_ns)
        continue;
      refused += submit_sized(paced.engine, length(150, 1000), length(60, 300), deadline_ns,
                              NULL) != ACCRT_OK;
    }
    if (accrt_serve_engine_step(paced.engine) != ACCRT_OK)
      paced.now_ns = next_ns;
    accrt_serve_event_t events[64];
    uint32_t count;
    while (accrt_serve_engine_poll(paced.engine, events, sizeof *events, 64, &count) == ACCRT_OK) {
      for (uint32_t i = 0; i < count; ++i) {
        if (paced.now_ns < warm_ns || (events[i].finish_reason != ACCRT_SERVE_FINISH_STOP &&
                                       events[i].finish_reason != ACCRT_SERVE_FINISH_LENGTH))
          continue;
        ++good;
        tokens += events[i].prompt_tokens + events[i].output_tokens;
      }
    }
  }
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  assert_int_equal(accrt_serve_engine_stats(paced.engine, &stats), ACCRT_OK);
  const double seconds = (double)(paced.now_ns - warm_ns) / 1e9;
  print_message(
      "%g/s came: %.1f/s ended in time, %llu refused, %llu late of which %llu never began, "
      "the queue takes %.2f s\n",
      rate, (double)good / seconds, (unsigned long long)refused,
      (unsigned long long)stats.finished_deadline, (unsigned long long)stats.hopeless,
      (double)stats.queue_ns / 1e9);
  if (rate > 0)
    assert_true(stats.queue_ns > 100000000 && stats.queue_ns < UINT64_C(20000000000));
  free_paced(&paced);
  *out_rate = (double)good / seconds;
  return (double)tokens / seconds;
}

static void test_goodput(void** state) {
  (void)state;
  for (uint32_t flags = 0; flags <= ACCRT_SERVE_MODEL_OVERLAP; ++flags) {
    double rate;
    const double capacity = goodput(0, flags, &rate);
    const double kept = goodput(10 * rate, flags, &rate) / capacity;
    print_message("10 times the load: %.1f%% of the goodput\n", 100 * kept);
    assert_true(kept >= 0.95);
  }
}

static uint64_t requests_wanted(void) {
  const char* text = getenv("ACCRT_SERVE_REQUESTS");
  return text != NULL ? strtoull(text, NULL, 10) : 100000;
}

static void test_traffic(void** state) {
  (void)state;
  run_traffic(requests_wanted() * 9 / 10, 120, ACCRT_SERVE_MODEL_OVERLAP, 997);
}

static void test_overload(void** state) {
  (void)state;
  run_traffic(requests_wanted() / 10, 400, 0, 0);
}

int main(void) {
  random_state = test_seed();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_traffic),   cmocka_unit_test(test_overload),
      cmocka_unit_test(test_step_time), cmocka_unit_test(test_step_time_too_short),
      cmocka_unit_test(test_goodput),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
