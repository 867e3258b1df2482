/* serve/engine_failures_test.c - engines whose model or memory fails: what is not at fault
 * goes on as if nothing had been. */
#include "serve/engine_test.h"

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
  WRONG_NO_LOGPROBS,
  WRONG_NO_ALTERNATIVES,
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
  out_results->logprobs = wrong == WRONG_NO_LOGPROBS ? NULL : logprobs;
  out_results->top_count = wrong >= WRONG_NO_TOP_TOKENS && wrong != WRONG_NO_ALTERNATIVES ? 1 : 0;
  out_results->top_tokens = wrong == WRONG_NO_TOP_TOKENS ? NULL : tokens;
  out_results->top_logprobs = wrong == WRONG_NO_TOP_LOGPROBS ? NULL : logprobs;
  return ACCRT_OK;
}
static accrt_status_t wrong_reset(void* self) {
  (void)self;
  return ACCRT_OK;
}

/* An engine over a model whose results are wrong. It keeps the model. */
static accrt_serve_engine_t* make_wrong_engine(void) {
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.info = dead_info;
  functions.submit = wrong_submit;
  functions.wait = wrong_wait;
  functions.reset = wrong_reset;
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine;
  assert_int_equal(accrt_serve_model_wrap(&functions, &model), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_create(model, NULL, &engine), ACCRT_OK);
  accrt_serve_model_release(model);
  return engine;
}

/* Such a request fails with a status that does not blame the library, and the engine goes on. */
static void test_results_that_are_none(void** state) {
  (void)state;
  static output_t outputs[2];
  inner_model = make_model(NULL);
  for (wrong = 0; wrong < WRONG_COUNT; ++wrong) {
    memset(outputs, 0, sizeof outputs);
    accrt_serve_engine_t* engine = make_wrong_engine();
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
  }
  accrt_serve_model_release(inner_model);
}

/* Of a model without log probabilities the request that wants them fails, and no other. */
static void test_logprobs_that_others_want(void** state) {
  (void)state;
  static output_t outputs[4];
  const uint32_t flags[4] = {0, ACCRT_SERVE_LOGPROBS, 0, ACCRT_SERVE_PROMPT_LOGPROBS};
  inner_model = make_model(NULL);
  for (wrong = WRONG_NO_TOP_TOKENS; wrong < WRONG_COUNT; ++wrong) {
    memset(outputs, 0, sizeof outputs);
    accrt_serve_engine_t* engine = make_wrong_engine();
    for (uint32_t i = 0; i < 4; ++i) {
      accrt_serve_request_t request = hello_request(5, &outputs[i]);
      request.flags |= flags[i];
      request.top_logprobs = flags[i] == ACCRT_SERVE_LOGPROBS;
      request.prompt_top_logprobs = flags[i] == ACCRT_SERVE_PROMPT_LOGPROBS;
      (void)submit(engine, &request);
    }
    while (step(engine) == ACCRT_OK)
      take_all(engine);
    take_all(engine);
    for (uint32_t i = 0; i < 4; ++i) {
      assert_int_equal(outputs[i].ends, 1);
      assert_int_equal(outputs[i].status, flags[i] == 0 ? ACCRT_OK : ACCRT_ERROR_KERNEL);
      assert_int_equal(outputs[i].token_count, flags[i] == 0 ? 5 : 0);
    }
    assert_int_equal(stats_of(engine).step_failures, 0);
    accrt_serve_engine_release(engine);
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
  uint32_t left = 9;
  assert_int_equal(accrt_serve_model_prepare(model, &left), ACCRT_OK); /* nothing to prepare */
  assert_int_equal(accrt_serve_engine_create(model, NULL, &engine), ACCRT_OK);
  assert_int_equal(accrt_serve_model_prepare(model, &left), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(left, 0);
  accrt_serve_request_t request = hello_request(4, NULL);
  request.constraint = rhyming;
  assert_int_equal(accrt_serve_engine_submit(engine, &request, NULL), ACCRT_ERROR_UNSUPPORTED);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
  accrt_serve_model_release(inner_model);
  accrt_serve_constraint_functions_t none = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  accrt_serve_constraint_t* constraint;
  assert_int_equal(accrt_serve_constraint_create(&none, &constraint), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_string_equal(error.message, "functions->start is NULL");
}

static accrt_serve_model_info_t bad_info;
static accrt_status_t info_status;
static accrt_status_t give_info(void* self, accrt_serve_model_info_t* out_info) {
  (void)self;
  *out_info = bad_info;
  return info_status;
}

/* Each is refused with the values that do not fit, and nothing is read behind a NULL. */
static void test_infos_that_do_not_fit(void** state) {
  (void)state;
  inner_model = make_model(NULL);
  accrt_serve_model_info_t good = ACCRT_SERVE_MODEL_INFO_INIT;
  assert_int_equal(accrt_serve_model_info(inner_model, &good), ACCRT_OK);
  static const int32_t far[] = {1, 256};
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.info = give_info;
  functions.submit = wrong_submit;
  functions.wait = wrong_wait;
  accrt_serve_model_t* model;
  accrt_error_t error = ACCRT_ERROR_INIT;
#define REFUSED(wanted, words, ...)                                                                \
  do {                                                                                             \
    bad_info = good;                                                                               \
    info_status = ACCRT_OK;                                                                        \
    __VA_ARGS__;                                                                                   \
    accrt_clear_error();                                                                           \
    assert_int_equal(accrt_serve_model_wrap(&functions, &model), wanted);                          \
    assert_null(model);                                                                            \
    assert_int_equal(accrt_last_error(&error), ACCRT_OK);                                          \
    if (strstr(error.message, words) == NULL)                                                      \
      fail_msg("'%s' is not in '%s'", words, error.message);                                       \
  } while (0)
  REFUSED(ACCRT_ERROR_INVALID_ARGUMENT, "page_size 0", bad_info.page_size = 0);
  REFUSED(ACCRT_ERROR_INVALID_ARGUMENT, "row_pages 1", bad_info.row_pages = 1);
  REFUSED(ACCRT_ERROR_INVALID_ARGUMENT, "eos is NULL with an eos_count of 2",
          bad_info.eos_count = 2, bad_info.eos = NULL);
  REFUSED(ACCRT_ERROR_INVALID_ARGUMENT, "eos[1] is 256, not in 0 to 255", bad_info.eos_count = 2,
          bad_info.eos = far);
  REFUSED(ACCRT_ERROR_IO, "info returned 13 (ACCRT_ERROR_IO)", info_status = ACCRT_ERROR_IO);
#undef REFUSED
  /* An earlier failure of the same status is not the reason, and stays where info succeeds. */
  (void)snprintf(error.message, sizeof error.message, "an earlier failure");
  assert_int_equal(accrt_set_error(&error), ACCRT_OK);
  assert_int_equal(accrt_serve_model_wrap(&functions, &model), ACCRT_ERROR_IO);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_non_null(strstr(error.message, "info returned 13"));
  (void)snprintf(error.message, sizeof error.message, "an earlier failure");
  assert_int_equal(accrt_set_error(&error), ACCRT_OK);
  bad_info = good;
  info_status = ACCRT_OK;
  assert_int_equal(accrt_serve_model_wrap(&functions, &model), ACCRT_OK);
  accrt_serve_model_release(model);
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  assert_string_equal(error.message, "an earlier failure");
  accrt_serve_model_release(inner_model);
}

static accrt_serve_engine_t* stepping_engine;
static accrt_status_t inside_submit(void* self, const accrt_serve_step_t* one) {
  (void)self;
  (void)one;
  assert_int_equal(accrt_serve_engine_step(stepping_engine), ACCRT_ERROR_INVALID_STATE);
  assert_int_equal(accrt_serve_engine_drain(stepping_engine, 0), ACCRT_ERROR_INVALID_STATE);
  return ACCRT_OK;
}

/* What a model's functions may not call is refused, and changes nothing: the engine takes requests
 * as before. */
static void test_calls_from_inside_a_step(void** state) {
  (void)state;
  inner_model = make_model(NULL);
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.info = dead_info;
  functions.submit = inside_submit;
  functions.wait = wrong_wait;
  wrong = WRONG_NO_ALTERNATIVES;
  accrt_serve_model_t* model;
  assert_int_equal(accrt_serve_model_wrap(&functions, &model), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_create(model, NULL, &stepping_engine), ACCRT_OK);
  accrt_serve_model_release(model);
  static output_t output;
  const accrt_serve_request_t request = hello_request(2, &output);
  (void)submit(stepping_engine, &request);
  assert_int_equal(step(stepping_engine), ACCRT_OK);
  (void)submit(stepping_engine, &request);
  assert_int_equal(accrt_serve_engine_drain(stepping_engine, ACCRT_TIMEOUT_INFINITE), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_submit(stepping_engine, &request, NULL),
                   ACCRT_ERROR_INVALID_STATE);
  accrt_serve_engine_release(stepping_engine);
  accrt_serve_model_release(inner_model);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_failing_steps),
      cmocka_unit_test(test_infos_that_do_not_fit),
      cmocka_unit_test(test_calls_from_inside_a_step),
      cmocka_unit_test(test_dead_model),
      cmocka_unit_test(test_without_memory),
      cmocka_unit_test(test_results_that_are_none),
      cmocka_unit_test(test_logprobs_that_others_want),
      cmocka_unit_test(test_model_without_masks),
  };
  return cmocka_run_group_tests(tests, begin_tests, end_tests);
}
