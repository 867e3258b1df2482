/* serve/engine_test.c - engines over the simulated model: the same tokens alone and in company, in
 * each order of events, with little memory. */
#include "serve/engine_test.h"

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
 * row. Of the seeds 1 to 397, the last one alone finds that fault. */
static void test_a_row_that_comes_back_elsewhere(void** state) {
  (void)state;
  const uint64_t own = random_state;
  accrt_serve_stats_t sums = {0};
  random_state = 397;
  run_round(true, &sums);
  assert_true(sums.preemptions > 0);
  random_state = own;
}

/* ---- States of pages ---- */

/* Two requests of one prompt: the second takes no page that the first fills in the same step, and
 * a later one takes all full pages. */
static void test_states_of_pages(void** state) {
  (void)state;
  for (uint32_t round = 0; round < 4; ++round) {
    static output_t outputs[3];
    accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
    simulation.eos = -1;
    simulation.page_size = 4;
    simulation.max_tokens = 256;
    simulation.flags = (round & 1) != 0 ? ACCRT_SERVE_MODEL_STATES_OF_PAGES : 0;
    simulation.flags |= (round & 2) != 0 ? ACCRT_SERVE_MODEL_OVERLAP : 0;
    /* Parts of pages are not copied, although the model could: they have no state. */
    simulation.min_copy_tokens = round & 1;
    accrt_serve_engine_t* engine = make_engine(&simulation, NULL);
    memset(outputs, 0, sizeof outputs);
    for (uint32_t i = 0; i < 3; ++i) {
      int32_t prompt[43];
      for (int32_t k = 0; k < 43; ++k)
        prompt[k] = 7 + k;
      accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
      request.prompt = prompt;
      request.prompt_count = 43;
      request.max_new_tokens = 3;
      request.user_data = &outputs[i];
      (void)submit(engine, &request);
      if (i > 0)
        run(engine);
    }
    check_empty(engine);
    assert_int_equal(stats_of(engine).cached_tokens, (round & 1) != 0 ? 40 : 80);
    assert_memory_equal(outputs[0].tokens, outputs[1].tokens, sizeof outputs[0].tokens);
    assert_memory_equal(outputs[0].tokens, outputs[2].tokens, sizeof outputs[0].tokens);
    accrt_serve_engine_release(engine);
  }
}

static void test_no_drafts_where_tokens_cannot_be_taken_back(void** state) {
  (void)state;
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.flags = ACCRT_SERVE_MODEL_STATES_OF_PAGES;
  accrt_serve_engine_t* engine = make_engine(&simulation, NULL);
  const int32_t prompt[] = {1, 2};
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = prompt;
  request.prompt_count = 2;
  request.num_speculative_tokens = 3;
  uint64_t id;
  assert_int_equal(accrt_serve_engine_submit(engine, &request, &id), ACCRT_ERROR_UNSUPPORTED);
  accrt_serve_engine_release(engine);
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
  static const int32_t many[1025];
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
  REFUSED(OUT_OF_RANGE, bad.stop_tokens = many; bad.stop_token_count = 1025);
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
    if (overlap)
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_request),
      cmocka_unit_test(test_partial_hits),
      cmocka_unit_test(test_company),
      cmocka_unit_test(test_a_row_that_comes_back_elsewhere),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_cancel_in_each_state),
      cmocka_unit_test(test_cancel_frees),
      cmocka_unit_test(test_deadlines),
      cmocka_unit_test(test_shared_prompts),
      cmocka_unit_test(test_fairness),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_states_of_pages),
      cmocka_unit_test(test_no_drafts_where_tokens_cannot_be_taken_back),
  };
  return cmocka_run_group_tests(tests, begin_tests, end_tests);
}
