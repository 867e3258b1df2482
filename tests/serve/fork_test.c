/* tests/serve/fork_test.c - handles of libaccrt_serve and libaccrt_http in a forked child:
 * every function returns ACCRT_ERROR_FORKED at once, release functions do nothing, and the
 * parent's work goes on.
 *
 * It is linked twice, as handles_test.c is: statically, and to the shared libraries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include <sys/wait.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "accrt/http.h"
#include "accrt/serve.h"

#define SECOND_NS UINT64_C(1000000000)

typedef struct world {
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine;
  accrt_serve_constraint_t* constraint;
  accrt_http_server_t* server;
  accrt_http_calls_t* calls;
  uint64_t request;
} world_t;

static accrt_status_t start(void* self, void** out_state) {
  (void)self;
  *out_state = NULL;
  return ACCRT_OK;
}
static accrt_status_t mask(void* state, uint32_t* bits, uint32_t words, uint32_t* out_may_end) {
  (void)state;
  memset(bits, 0xFF, words * sizeof *bits);
  *out_may_end = 0;
  return ACCRT_OK;
}
static accrt_status_t advance(void* state, int32_t token, uint32_t* out_ended) {
  (void)state, (void)token;
  *out_ended = 0;
  return ACCRT_OK;
}
static void stop(void* state) {
  (void)state;
}

static accrt_status_t make_model(accrt_serve_model_t** out_model) {
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.eos = -1;
  simulation.step_ns = 1000000;
  return accrt_serve_model_create_simulated(&simulation, out_model);
}

static accrt_status_t make_constraint(accrt_serve_constraint_t** out_constraint) {
  accrt_serve_constraint_functions_t functions = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  functions.start = start;
  functions.mask = mask;
  functions.advance = advance;
  functions.stop = stop;
  return accrt_serve_constraint_create(&functions, out_constraint);
}

static accrt_status_t make_engine(accrt_serve_model_t* model, accrt_serve_engine_t** out_engine) {
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.flags = ACCRT_SERVE_ENGINE_THREAD;
  return accrt_serve_engine_create(model, &options, out_engine);
}

static accrt_status_t make_server(accrt_serve_engine_t* engine, accrt_http_server_t** out_server) {
  accrt_http_options_t options = ACCRT_HTTP_OPTIONS_INIT;
  options.model = "simulated";
  return accrt_http_server_create(engine, &options, out_server);
}

static accrt_status_t submit(accrt_serve_engine_t* engine, uint64_t* out_id) {
  static const int32_t prompt[3] = {1, 2, 3};
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = prompt;
  request.prompt_count = 3;
  request.max_new_tokens = 200;
  return accrt_serve_engine_submit(engine, &request, out_id);
}

static void make(world_t* world) {
  memset(world, 0, sizeof *world);
  assert_int_equal(make_model(&world->model), ACCRT_OK);
  assert_int_equal(make_constraint(&world->constraint), ACCRT_OK);
  assert_int_equal(make_engine(world->model, &world->engine), ACCRT_OK);
  assert_int_equal(accrt_http_calls_create(ACCRT_HTTP_TOOLS_HERMES, 1, NULL, 0, &world->calls),
                   ACCRT_OK);
}

static void drop(world_t* world) {
  accrt_http_calls_release(world->calls);
  accrt_http_server_release(world->server);
  accrt_serve_engine_release(world->engine);
  accrt_serve_constraint_release(world->constraint);
  accrt_serve_model_release(world->model);
}

/* ---- In the child. What fails there is told on standard error: CMocka's state is the parent's. ---- */

static int faults;

static void expect(int good, const char* what, int got) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  if (good)
    return;
  ++faults;
  (void)fprintf(stderr, "in the child: %s gives %d (%s)\n", what, got, error.message);
}
#define FORKED(call)                                                                               \
  do {                                                                                             \
    const accrt_status_t got_ = (call);                                                            \
    expect(got_ == ACCRT_ERROR_FORKED, #call, (int)got_);                                          \
  } while (0)

static void call_serve(const world_t* world) {
  accrt_serve_engine_t* engine = world->engine;
  accrt_serve_model_t* model = NULL;
  accrt_serve_engine_t* other = NULL;
  accrt_serve_constraint_t* constraint = NULL;
  accrt_serve_grammars_t* grammars = NULL;
  accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  accrt_serve_event_t event = {.struct_size = sizeof event};
  uint32_t count = 0;
  uint64_t number = 0;
  FORKED(make_model(&model));
  FORKED(make_constraint(&constraint));
  FORKED(make_engine(world->model, &other));
  FORKED(accrt_serve_grammars_open(world->model, "/none", &grammars));
  FORKED(accrt_serve_model_info(world->model, &info));
  FORKED(accrt_serve_model_prepare(world->model, &count));
  FORKED(submit(engine, &number));
  FORKED(accrt_serve_engine_cancel(engine, world->request));
  FORKED(accrt_serve_engine_poll(engine, &event, sizeof event, 1, &count));
  FORKED(accrt_serve_engine_wait(engine, SECOND_NS));
  FORKED(accrt_serve_engine_step(engine));
  FORKED(accrt_serve_engine_drain(engine, SECOND_NS));
  FORKED(accrt_serve_engine_stats(engine, &stats));
  FORKED(accrt_serve_engine_snapshot(engine, NULL, 0, &number));
  FORKED(
      accrt_serve_engine_load_adapter(engine, "a", NULL, 0, sizeof(accrt_serve_adapter_tensor_t)));
  FORKED(accrt_serve_engine_unload_adapter(engine, "a", 0));
  FORKED(accrt_serve_engine_adapters(engine, NULL, 0, &number, &count));
  expect(accrt_serve_engine_event_fd(engine) == -1, "the descriptor", 0);
  expect(accrt_serve_engine_model(engine) == NULL, "the engine's model", 0);
  expect(accrt_serve_engine_instance(engine) == NULL, "the engine's instance", 0);
  expect(accrt_serve_engine_retain(engine) == engine, "retain", 0);
  accrt_serve_engine_release(engine);
  accrt_serve_engine_release(engine);
  accrt_serve_constraint_release(world->constraint);
  accrt_serve_model_release(world->model);
}

static void call_http(const world_t* world) {
  accrt_http_server_t* server = NULL;
  accrt_http_calls_t* calls = NULL;
  accrt_http_call_news_t news;
  memset(&news, 0, sizeof news);
  FORKED(make_server(world->engine, &server));
  FORKED(accrt_http_calls_create(ACCRT_HTTP_TOOLS_HERMES, 1, NULL, 0, &calls));
  FORKED(accrt_http_calls_push(world->calls, "x", 1, 0, &news));
  accrt_http_calls_release(world->calls);
  if (world->server == NULL)
    return;
  accrt_http_counts_t counts;
  accrt_http_job_t* job = NULL;
  FORKED(accrt_http_server_counts(world->server, &counts));
  FORKED(accrt_http_next(world->server, SECOND_NS, &job));
  FORKED(accrt_http_server_drain(world->server, SECOND_NS));
  expect(accrt_http_server_port(world->server) == 0, "the port", 0);
  accrt_http_server_release(world->server);
}

/* What the child's exit says: 0 if nothing was wrong. A child that hangs is ended. */
static int in_child(void (*call)(const world_t*), const world_t* world) {
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(60);
    call(world);
    _exit(faults == 0 ? 0 : 1);
  }
  assert_true(child > 0);
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

static void call_all(const world_t* world) {
  call_serve(world);
  call_http(world);
}

static void make_new(const world_t* unused) {
  (void)unused;
  world_t own;
  make(&own);
  expect(submit(own.engine, NULL) == ACCRT_OK, "a new engine", 0);
  drop(&own);
}

/* ---- Tests ---- */

static void test_an_engine_while_it_works(void** state) {
  (void)state;
  world_t world;
  make(&world);
  assert_int_equal(submit(world.engine, &world.request), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_wait(world.engine, 30 * SECOND_NS), ACCRT_OK);
  for (int i = 0; i < 5; ++i)
    assert_int_equal(in_child(call_all, &world), 0);
  assert_int_equal(accrt_serve_engine_drain(world.engine, 60 * SECOND_NS), ACCRT_OK);
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  assert_int_equal(accrt_serve_engine_stats(world.engine, &stats), ACCRT_OK);
  assert_int_equal(stats.finished_length, 1);
  assert_int_equal(stats.finished_cancelled, 0);
  drop(&world);
}

static void test_a_server(void** state) {
  (void)state;
  world_t world;
  make(&world);
  assert_int_equal(make_server(world.engine, &world.server), ACCRT_OK);
  assert_int_equal(in_child(call_all, &world), 0);
  assert_int_not_equal(accrt_http_server_port(world.server), 0);
  assert_int_equal(accrt_http_server_drain(world.server, 30 * SECOND_NS), ACCRT_OK);
  drop(&world);
}

/* A parent that has no handles at the fork leaves its child free. */
static void test_nothing_is_held(void** state) {
  (void)state;
  assert_int_equal(in_child(make_new, NULL), 0);
  make_new(NULL);
  assert_int_equal(in_child(make_new, NULL), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nothing_is_held),
      cmocka_unit_test(test_an_engine_while_it_works),
      cmocka_unit_test(test_a_server),
      cmocka_unit_test(test_nothing_is_held),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
