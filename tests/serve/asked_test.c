/* tests/serve/asked_test.c - libaccrt_serve and libaccrt_http validate handles without the
 * environment: by the flag ACCRT_SERVE_VALIDATE, or as the object that a handle was made of does.
 *
 * Each case runs in a forked child, because the registers are the process's and never forget that
 * something was not in them. Linked twice, as handles_test.c. tests/python/test_serve_program.py
 * has the instance's option.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* CMocka wants the headers above first. */
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "accrt/http.h"
#include "accrt/serve.h"

#define INVALID ACCRT_ERROR_INVALID_ARGUMENT

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      (void)fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                \
      _exit(1);                                                                                    \
    }                                                                                              \
  } while (0)

/* The last call was refused with a record that has these words. */
static void check_told(const char* words, int line) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  if (error.status == INVALID && strstr(error.message, words) != NULL)
    return;
  (void)fprintf(stderr, "line %d: expected '%s' in '%s'\n", line, words, error.message);
  _exit(1);
}
#define TOLD(words) check_told(words, __LINE__)

/* ---- Handles ---- */

static accrt_status_t info(void* self, accrt_serve_model_info_t* out_info) {
  (void)self;
  accrt_serve_model_info_t known = {.vocab_size = 8,
                                    .page_size = 4,
                                    .page_count = 8,
                                    .max_rows = 2,
                                    .max_tokens = 8,
                                    .max_length = 8,
                                    .row_pages = 2};
  known.struct_size = out_info->struct_size;
  known.name = "own";
  *out_info = known;
  return ACCRT_OK;
}
static accrt_status_t submit(void* self, const accrt_serve_step_t* step) {
  (void)self, (void)step;
  return ACCRT_OK;
}
static accrt_status_t wait_step(void* self, uint64_t number, accrt_serve_results_t* out_results) {
  (void)self, (void)number, (void)out_results;
  return ACCRT_ERROR_UNSUPPORTED;
}
static accrt_status_t start(void* self, void** out_state) {
  (void)self;
  *out_state = NULL;
  return ACCRT_OK;
}
static accrt_status_t mask(void* state, uint32_t* bits, uint32_t words, uint32_t* out_may_end) {
  (void)state, (void)bits, (void)words;
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

static accrt_status_t wrap(uint32_t flags, accrt_serve_model_t** out_model) {
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.flags = flags;
  functions.info = info;
  functions.submit = submit;
  functions.wait = wait_step;
  return accrt_serve_model_wrap(&functions, out_model);
}
static accrt_status_t simulate(uint32_t flags, accrt_serve_model_t** out_model) {
  accrt_serve_simulation_t options = ACCRT_SERVE_SIMULATION_INIT;
  options.flags = flags;
  options.eos = -1;
  return accrt_serve_model_create_simulated(&options, out_model);
}
static accrt_status_t constrain(uint32_t flags, accrt_serve_constraint_t** out_constraint) {
  accrt_serve_constraint_functions_t functions = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  functions.flags = flags;
  functions.start = start;
  functions.mask = mask;
  functions.advance = advance;
  functions.stop = stop;
  return accrt_serve_constraint_create(&functions, out_constraint);
}
static accrt_status_t make_engine(accrt_serve_model_t* model, uint32_t flags,
                                  accrt_serve_engine_t** out_engine) {
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.flags = ACCRT_SERVE_ENGINE_THREAD | flags;
  return accrt_serve_engine_create(model, &options, out_engine);
}
static accrt_status_t serve(accrt_serve_engine_t* engine, uint32_t flags,
                            accrt_http_server_t** out_server) {
  accrt_http_options_t options = ACCRT_HTTP_OPTIONS_INIT;
  options.model = "m";
  options.flags = flags;
  return accrt_http_server_create(engine, &options, out_server);
}

/* ---- Cases ---- */

static void nothing_asks(void) {
  accrt_serve_model_t* model = NULL;
  accrt_serve_engine_t* engine = NULL;
  CHECK(simulate(0, &model) == ACCRT_OK);
  CHECK(make_engine(model, ACCRT_SERVE_ENGINE_NO_CACHE, &engine) == ACCRT_OK);
  CHECK(accrt_serve_engine_flags(engine) ==
        (ACCRT_SERVE_ENGINE_THREAD | ACCRT_SERVE_ENGINE_NO_CACHE));
  CHECK(accrt_serve_engine_flags(NULL) == 0);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
}

static void model_asks(accrt_status_t (*make)(uint32_t flags, accrt_serve_model_t** out_model)) {
  accrt_serve_model_t* model = NULL;
  accrt_serve_engine_t* engine = NULL;
  accrt_serve_model_info_t found = ACCRT_SERVE_MODEL_INFO_INIT;
  CHECK(make(ACCRT_SERVE_VALIDATE, &model) == ACCRT_OK);
  CHECK(accrt_serve_model_info(model, &found) == ACCRT_OK);
  CHECK((found.flags & ACCRT_SERVE_VALIDATE) == 0); /* says nothing of the model */
  CHECK(make_engine(model, 0, &engine) == ACCRT_OK);
  CHECK(accrt_serve_engine_flags(engine) == (ACCRT_SERVE_ENGINE_THREAD | ACCRT_SERVE_VALIDATE));
  accrt_serve_model_release(model);
  CHECK(accrt_serve_engine_model(engine) == model); /* lent again */
  CHECK(accrt_serve_model_info(model, &found) == ACCRT_OK);
  accrt_serve_engine_release(engine);
  CHECK(accrt_serve_engine_step(engine) == INVALID);
  TOLD("`engine` is released: it is engine ");
  CHECK(accrt_serve_engine_flags(engine) == 0);
  CHECK(accrt_serve_model_info(model, &found) == INVALID);
  TOLD("`model` is released: it is model ");
}
static void simulated_model_asks(void) {
  model_asks(simulate);
}
static void wrapped_model_asks(void) {
  model_asks(wrap);
}

static void constraint_asks(void) {
  accrt_serve_constraint_t* constraint = NULL;
  CHECK(constrain(ACCRT_SERVE_VALIDATE, &constraint) == ACCRT_OK);
  accrt_serve_constraint_release(constraint);
  accrt_serve_constraint_release(constraint);
  TOLD("`constraint` is released twice: it is constraint ");
}

/* The model beside it is not validated, and is not refused. */
static void engine_asks(void) {
  accrt_serve_model_t* model = NULL;
  accrt_serve_engine_t* engine = NULL;
  accrt_serve_model_info_t found = ACCRT_SERVE_MODEL_INFO_INIT;
  CHECK(simulate(0, &model) == ACCRT_OK);
  CHECK(make_engine(model, ACCRT_SERVE_VALIDATE, &engine) == ACCRT_OK);
  CHECK((accrt_serve_engine_flags(engine) & ACCRT_SERVE_VALIDATE) != 0);
  CHECK(accrt_serve_model_info(model, &found) == ACCRT_OK);
  CHECK(accrt_serve_engine_model(engine) == model);
  CHECK(accrt_serve_model_info((void*)engine, &found) == INVALID);
  TOLD("`model` must be a model; it is engine ");
  accrt_serve_engine_release(engine);
  CHECK(accrt_serve_engine_wait(engine, 0) == INVALID);
  TOLD("`engine` is released: it is engine ");
  CHECK(make_engine(model, 0, &engine) == ACCRT_OK); /* one beside it is not */
  CHECK((accrt_serve_engine_flags(engine) & ACCRT_SERVE_VALIDATE) == 0);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
}

static int ask(accrt_http_server_t* server) {
  static const char text[] = "POST /tokenize HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                             "Content-Length: 2\r\n\r\n{}";
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)accrt_http_server_port(server)),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  CHECK(connect(fd, (const struct sockaddr*)&address, sizeof address) == 0);
  CHECK(send(fd, text, sizeof text - 1, MSG_NOSIGNAL) == sizeof text - 1);
  return fd;
}

static void server_is_validated(uint32_t models, uint32_t engines, uint32_t servers) {
  accrt_serve_model_t* model = NULL;
  accrt_serve_engine_t* engine = NULL;
  accrt_http_server_t* server = NULL;
  accrt_http_job_t* job = NULL;
  accrt_http_counts_t counts;
  CHECK(simulate(models, &model) == ACCRT_OK);
  CHECK(make_engine(model, engines, &engine) == ACCRT_OK);
  CHECK(serve(engine, servers, &server) == ACCRT_OK);
  const int fd = ask(server);
  CHECK(accrt_http_next(server, UINT64_C(60000000000), &job) == ACCRT_OK);
  CHECK(accrt_http_answer(job, 200, "text/plain", "a", 1) == ACCRT_OK);
  CHECK(accrt_http_answer(job, 200, "text/plain", "a", 1) == INVALID);
  TOLD("`job` is answered already: it is job ");
  (void)close(fd);
  accrt_http_server_release(server);
  CHECK(accrt_http_server_counts(server, &counts) == INVALID);
  TOLD("`server` is released: it is server ");
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
}
static void server_asks(void) {
  server_is_validated(0, 0, ACCRT_SERVE_VALIDATE);
}
static void engine_asks_for_its_server(void) {
  server_is_validated(0, ACCRT_SERVE_VALIDATE, 0);
}
static void model_asks_for_the_server(void) {
  server_is_validated(ACCRT_SERVE_VALIDATE, 0, 0);
}

/* What asks by itself is not asked for by the environment, whose word may then be wrong. */
static void another_word_in_the_environment(void) {
  accrt_serve_model_t* model = NULL;
  CHECK(setenv("ACCRT_VALIDATE", "handels", 1) == 0);
  CHECK(simulate(ACCRT_SERVE_VALIDATE, &model) == ACCRT_OK);
  accrt_serve_model_release(model);
  CHECK(simulate(0, &model) == INVALID);
  TOLD("ACCRT_VALIDATE is 'handels'");
}

static void other_flags_are_refused(void) {
  accrt_serve_model_t *model = NULL, *none = NULL;
  accrt_serve_engine_t* engine = NULL;
  accrt_serve_constraint_t* constraint = NULL;
  accrt_http_server_t* server = NULL;
  CHECK(simulate(0, &model) == ACCRT_OK);
  CHECK(make_engine(model, 0, &engine) == ACCRT_OK);
  for (uint32_t bit = 5; bit < 31; ++bit) {
    const uint32_t flags = UINT32_C(1) << bit | (bit % 2 != 0 ? ACCRT_SERVE_VALIDATE : 0);
    CHECK(wrap(flags, &none) == INVALID && none == NULL);
    TOLD("are not known");
    CHECK(simulate(flags, &none) == INVALID && none == NULL);
    CHECK(constrain(flags, &constraint) == INVALID && constraint == NULL);
    CHECK(serve(engine, flags, &server) == INVALID && server == NULL);
    TOLD("are not known");
    accrt_serve_engine_t* other = NULL;
    CHECK(make_engine(model, flags, &other) == INVALID && other == NULL);
  }
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
}

/* A struct that ends before its flags does not ask. */
static void structs_that_are_cut_are_refused(void) {
  uint32_t* cut = malloc(sizeof *cut); /* a sanitizer sees what is read behind it */
  CHECK(cut != NULL);
  *cut = sizeof *cut;
  void* options = cut;
  accrt_serve_model_t* model = NULL;
  accrt_serve_engine_t* engine = NULL;
  accrt_serve_constraint_t* constraint = NULL;
  accrt_http_server_t* server = NULL;
  CHECK(accrt_serve_model_wrap(options, &model) != ACCRT_OK);
  CHECK(accrt_serve_model_create_simulated(options, &model) != ACCRT_OK);
  CHECK(accrt_serve_constraint_create(options, &constraint) != ACCRT_OK);
  CHECK(simulate(0, &model) == ACCRT_OK);
  CHECK(accrt_serve_engine_create(model, options, &engine) != ACCRT_OK);
  CHECK(make_engine(model, 0, &engine) == ACCRT_OK);
  CHECK(accrt_http_server_create(engine, options, &server) != ACCRT_OK);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
  free(cut);
}

static void (*const cases[])(void) = {
    nothing_asks,
    simulated_model_asks,
    wrapped_model_asks,
    constraint_asks,
    engine_asks,
    server_asks,
    engine_asks_for_its_server,
    model_asks_for_the_server,
    another_word_in_the_environment,
    other_flags_are_refused,
    structs_that_are_cut_are_refused,
};

static void test_case(void** state) {
  void (*body)(void) = NULL;
  memcpy(&body, *state, sizeof body);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    body();
    exit(0); /* a leak checker looks, and what is left is told */
  }
  int how = 0;
  assert_int_equal(waitpid(child, &how, 0), child);
  assert_int_equal(how, 0);
}

#define CASE(index, name)                                                                          \
  { name, test_case, NULL, NULL, (void*)(uintptr_t)&cases[index] }

int main(void) {
  (void)unsetenv("ACCRT_VALIDATE");
  const struct CMUnitTest tests[] = {
      CASE(0, "nothing asks"),
      CASE(1, "a simulated model asks"),
      CASE(2, "a wrapped model asks"),
      CASE(3, "a constraint asks"),
      CASE(4, "an engine asks"),
      CASE(5, "a server asks"),
      CASE(6, "an engine asks for its server"),
      CASE(7, "a model asks for the server"),
      CASE(8, "another word in the environment"),
      CASE(9, "other flags are refused"),
      CASE(10, "structs that are cut are refused"),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
