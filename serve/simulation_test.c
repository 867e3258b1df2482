/* serve/simulation_test.c - many requests in virtual time: every one ends, none waits for ever, and
 * nothing is left behind. ACCRT_SERVE_REQUESTS says how many (100,000), ACCRT_TEST_SEED the seed,
 * which is printed.
 */
#include <math.h>
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

#define SHARED 1024 /* tokens that prompts of an application begin with */

static uint64_t random_state;

static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
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
  uint64_t submitted, refused, ended, failed, stopped, cancelled;
} counts_t;

static void submit_one(accrt_serve_engine_t* engine, uint64_t number, counts_t* counts) {
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
  uint64_t id;
  const accrt_status_t status = accrt_serve_engine_submit(engine, &request, &id);
  if (status == ACCRT_ERROR_NOT_READY) {
    ++counts->refused;
    return;
  }
  assert_int_equal(status, ACCRT_OK);
  ++counts->submitted;
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
    }
  }
}

static void run_traffic(uint64_t requests, double load, uint32_t flags) {
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
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_create_simulated(&simulation, &model), ACCRT_OK);
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.clock = &clock;
  options.max_queued = 300;
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_engine_create(model, &options, &engine), ACCRT_OK);
  counts_t counts = {0};
  const uint64_t begin_ns = accrt_serve_now_ns();
  for (;;) {
    for (; number < requests && next_ns <= now_ns; ++number) {
      submit_one(engine, number, &counts);
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
  assert_int_equal(counts.failed, 0);
  assert_int_equal(stats.step_failures, 0);
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
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
}

static uint64_t requests_wanted(void) {
  const char* text = getenv("ACCRT_SERVE_REQUESTS");
  return text != NULL ? strtoull(text, NULL, 10) : 100000;
}

static void test_traffic(void** state) {
  (void)state;
  run_traffic(requests_wanted() * 9 / 10, 120, ACCRT_SERVE_MODEL_OVERLAP);
}

static void test_overload(void** state) {
  (void)state;
  run_traffic(requests_wanted() / 10, 400, 0);
}

int main(void) {
  const char* seed = getenv("ACCRT_TEST_SEED");
  random_state = seed != NULL ? strtoull(seed, NULL, 10) : accrt_serve_now_ns() | 1;
  print_message("seed %llu\n", (unsigned long long)random_state);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_traffic),
      cmocka_unit_test(test_overload),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
