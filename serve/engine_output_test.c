/* serve/engine_output_test.c - what requests ask of their outputs: constraints, stops, parameters,
 * embeddings. */
#include "serve/engine_test.h"

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
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stops),
      cmocka_unit_test(test_parameters),
      cmocka_unit_test(test_constraint),
      cmocka_unit_test(test_constraint_and_ends),
      cmocka_unit_test(test_constraint_that_fails),
      cmocka_unit_test(test_embedding),
      cmocka_unit_test(test_embedding_refusals),
      cmocka_unit_test(test_embeddings_in_company),
  };
  return cmocka_run_group_tests(tests, begin_tests, end_tests);
}
