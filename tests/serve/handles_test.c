/* tests/serve/handles_test.c - libaccrt_serve and libaccrt_http validate their handles as
 * libaccrt does (tests/unit/handles_test.c): released, of another type, released twice,
 * borrowed, answered already, left over.
 *
 * It is linked twice: statically, where both libraries have one register, and to the shared
 * libraries, where each has its own. Each fault is told with the function that made the
 * handle, in the error record and on standard error. */
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
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accrt/accrt.h"
#include "accrt/http.h"
#include "accrt/serve.h"

#define SECOND_NS UINT64_C(1000000000)
#define INVALID ACCRT_ERROR_INVALID_ARGUMENT

typedef struct world {
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine;
  accrt_http_server_t* server;
} world_t;

static const char* program; /* this one's path */

/* ---- What is told ---- */

static int log_fd = -1, real_stderr = -1;

/* Standard error goes to memory from here on. */
static void begin_log(void) {
  log_fd = memfd_create("log", MFD_CLOEXEC);
  assert_true(log_fd >= 0);
  real_stderr = dup(2);
  assert_int_equal(dup2(log_fd, 2), 2);
}

static const char* log_text(void) {
  static char text[65536];
  const ssize_t size = pread(log_fd, text, sizeof text - 1, 0);
  text[size > 0 ? size : 0] = '\0';
  return text;
}

static void clear_log(void) {
  assert_int_equal(ftruncate(log_fd, 0), 0);
  (void)lseek(log_fd, 0, SEEK_SET);
}

static void end_log(void) {
  (void)dup2(real_stderr, 2);
  (void)close(real_stderr);
  (void)close(log_fd);
}

static accrt_error_t last_error(void) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  return error;
}

/* The record and standard error both have these words. */
static void assert_told(const char* a, const char* b) {
  const accrt_error_t error = last_error();
  if (strstr(error.message, a) == NULL || strstr(error.message, b) == NULL ||
      strstr(log_text(), error.message) == NULL)
    fail_msg("expected '%s' and '%s' in '%s'; standard error has:\n%s", a, b, error.message,
             log_text());
}

/* ---- Kinds of handles ---- */

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

static void* make_model(world_t* world) {
  (void)world;
  accrt_serve_model_t* model = NULL;
  assert_int_equal(accrt_serve_model_create_simulated(NULL, &model), ACCRT_OK);
  return model;
}
static void* make_engine(world_t* world) {
  (void)world;
  accrt_serve_model_t* model = make_model(world);
  accrt_serve_engine_t* engine = NULL;
  assert_int_equal(accrt_serve_engine_create(model, NULL, &engine), ACCRT_OK);
  accrt_serve_model_release(model);
  return engine;
}
static void* make_constraint(world_t* world) {
  (void)world;
  accrt_serve_constraint_functions_t functions = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  functions.start = start;
  functions.mask = mask;
  functions.advance = advance;
  functions.stop = stop;
  accrt_serve_constraint_t* constraint = NULL;
  assert_int_equal(accrt_serve_constraint_create(&functions, &constraint), ACCRT_OK);
  return constraint;
}
static void* make_grammars(world_t* world) {
  accrt_serve_grammars_t* grammars = NULL;
  assert_int_equal(accrt_serve_grammars_open(world->model, ACCRT_TEST_GRAMMARS, &grammars),
                   ACCRT_OK);
  return grammars;
}
static void* make_grammar(world_t* world) {
  accrt_serve_grammars_t* grammars = make_grammars(world);
  accrt_serve_constraint_t* constraint = NULL;
  assert_int_equal(
      accrt_serve_grammars_constraint(grammars, ACCRT_SERVE_GRAMMAR_REGEX, ".*", &constraint),
      ACCRT_OK);
  accrt_serve_grammars_release(grammars); /* the constraint has a reference */
  return constraint;
}
static void* make_server(world_t* world) {
  accrt_http_options_t options = ACCRT_HTTP_OPTIONS_INIT;
  options.model = "m";
  accrt_http_server_t* server = NULL;
  assert_int_equal(accrt_http_server_create(world->engine, &options, &server), ACCRT_OK);
  return server;
}
static void* make_calls(world_t* world) {
  (void)world;
  accrt_http_calls_t* calls = NULL;
  assert_int_equal(accrt_http_calls_create(ACCRT_HTTP_TOOLS_HERMES, 0, NULL, 0, &calls), ACCRT_OK);
  return calls;
}

/* Every function with the handle is called; each has to refuse it. Returns how many there were. */
static int refuse_model(world_t* world, void* handle) {
  (void)world;
  accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
  accrt_serve_engine_t* engine = (void*)world;
  accrt_serve_grammars_t* grammars = (void*)world;
  uint32_t left = 7;
  assert_int_equal(accrt_serve_model_prepare(handle, &left), INVALID);
  assert_int_equal(left, 0);
  assert_int_equal(accrt_serve_engine_create(handle, NULL, &engine), INVALID);
  assert_null(engine);
  assert_int_equal(accrt_serve_grammars_open(handle, ACCRT_TEST_GRAMMARS, &grammars), INVALID);
  assert_null(grammars);
  assert_ptr_equal(accrt_serve_model_retain(handle), handle);
  assert_int_equal(accrt_serve_model_info(handle, &info), INVALID);
  return 5;
}
static int refuse_engine(world_t* world, void* handle) {
  (void)world;
  static const int32_t prompt[] = {1};
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = prompt;
  request.prompt_count = 1;
  accrt_serve_event_t events[1];
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  uint64_t id = 7;
  uint32_t count = 7;
  assert_int_equal(accrt_serve_engine_submit(handle, &request, &id), INVALID);
  assert_int_equal(id, 0);
  assert_int_equal(accrt_serve_engine_cancel(handle, 1), INVALID);
  assert_int_equal(accrt_serve_engine_poll(handle, events, sizeof events[0], 1, &count), INVALID);
  assert_int_equal(count, 0);
  assert_int_equal(accrt_serve_engine_event_fd(handle), -1);
  assert_int_equal(accrt_serve_engine_wait(handle, 0), INVALID);
  assert_int_equal(accrt_serve_engine_step(handle), INVALID);
  assert_int_equal(accrt_serve_engine_drain(handle, 0), INVALID);
  assert_int_equal(accrt_serve_engine_stats(handle, &stats), INVALID);
  assert_int_equal(accrt_serve_engine_snapshot(handle, NULL, 0, &id), INVALID);
  assert_int_equal(
      accrt_serve_engine_load_adapter(handle, "a", NULL, 0, sizeof(accrt_serve_adapter_tensor_t)),
      INVALID);
  assert_int_equal(accrt_serve_engine_unload_adapter(handle, "a", 0), INVALID);
  assert_int_equal(accrt_serve_engine_adapters(handle, NULL, 0, &id, &count), INVALID);
  assert_null(accrt_serve_engine_model(handle));
  assert_null(accrt_serve_engine_instance(handle));
  assert_ptr_equal(accrt_serve_engine_retain(handle), handle);
  return 15;
}
static int refuse_constraint(world_t* world, void* handle) {
  static const int32_t prompt[] = {1};
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  request.prompt = prompt;
  request.prompt_count = 1;
  request.constraint = handle;
  assert_ptr_equal(accrt_serve_constraint_retain(handle), handle);
  assert_int_equal(accrt_serve_engine_submit(world->engine, &request, NULL), INVALID);
  return 2;
}
static int refuse_grammars(world_t* world, void* handle) {
  accrt_serve_constraint_t* constraint = (void*)world;
  assert_ptr_equal(accrt_serve_grammars_retain(handle), handle);
  assert_int_equal(
      accrt_serve_grammars_constraint(handle, ACCRT_SERVE_GRAMMAR_REGEX, ".*", &constraint),
      INVALID);
  assert_null(constraint);
  return 2;
}
static int refuse_server(world_t* world, void* handle) {
  accrt_http_counts_t counts;
  accrt_http_job_t* job = (void*)world;
  assert_int_equal(accrt_http_server_port(handle), 0);
  assert_int_equal(accrt_http_server_drain(handle, 0), INVALID);
  assert_int_equal(accrt_http_next(handle, 0, &job), INVALID);
  assert_null(job);
  assert_ptr_equal(accrt_http_server_retain(handle), handle);
  assert_int_equal(accrt_http_server_counts(handle, &counts), INVALID);
  return 5;
}
static int refuse_calls(world_t* world, void* handle) {
  (void)world;
  accrt_http_call_news_t news;
  assert_ptr_equal(accrt_http_calls_retain(handle), handle);
  assert_int_equal(accrt_http_calls_push(handle, "a", 1, 0, &news), INVALID);
  return 2;
}

/* CMocka's own types of functions are not these. */
static void* retain_model(void* h) {
  return accrt_serve_model_retain(h);
}
static void release_model(void* h) {
  accrt_serve_model_release(h);
}
static void* retain_engine(void* h) {
  return accrt_serve_engine_retain(h);
}
static void release_engine(void* h) {
  accrt_serve_engine_release(h);
}
static void* retain_constraint(void* h) {
  return accrt_serve_constraint_retain(h);
}
static void release_constraint(void* h) {
  accrt_serve_constraint_release(h);
}
static void* retain_grammars(void* h) {
  return accrt_serve_grammars_retain(h);
}
static void release_grammars(void* h) {
  accrt_serve_grammars_release(h);
}
static void* retain_server(void* h) {
  return accrt_http_server_retain(h);
}
static void release_server(void* h) {
  accrt_http_server_release(h);
}
static void* retain_calls(void* h) {
  return accrt_http_calls_retain(h);
}
static void release_calls(void* h) {
  accrt_http_calls_release(h);
}

static const struct kind {
  const char *type, *article, *made_by, *parameter, *refused_by, *dropped_by;
  void* (*make)(world_t* world);
  int (*refuse)(world_t* world, void* handle);
  void* (*retain)(void* handle);
  void (*release)(void* handle);
  int library; /* each of the shared ones has a register of its own */
} kinds[] = {
    {"model", "a ", "accrt_serve_model_create_simulated", "model", "accrt_serve_model_info",
     "accrt_serve_model_release", make_model, refuse_model, retain_model, release_model, 0},
    {"engine", "an ", "accrt_serve_engine_create", "engine", "accrt_serve_engine_retain",
     "accrt_serve_engine_release", make_engine, refuse_engine, retain_engine, release_engine, 0},
    {"constraint", "a ", "accrt_serve_constraint_create", "request.constraint",
     "accrt_serve_engine_submit", "accrt_serve_constraint_release", make_constraint,
     refuse_constraint, retain_constraint, release_constraint, 0},
    {"constraint", "a ", "accrt_serve_grammars_constraint", "request.constraint",
     "accrt_serve_engine_submit", "accrt_serve_constraint_release", make_grammar, refuse_constraint,
     retain_constraint, release_constraint, 0},
    {"grammars", "", "accrt_serve_grammars_open", "grammars", "accrt_serve_grammars_constraint",
     "accrt_serve_grammars_release", make_grammars, refuse_grammars, retain_grammars,
     release_grammars, 0},
    {"server", "a ", "accrt_http_server_create", "server", "accrt_http_server_counts",
     "accrt_http_server_release", make_server, refuse_server, retain_server, release_server, 1},
    {"calls", "", "accrt_http_calls_create", "calls", "accrt_http_calls_push",
     "accrt_http_calls_release", make_calls, refuse_calls, retain_calls, release_calls, 1},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* ---- Tests ---- */

static int set_up(void** state) {
  world_t* world = calloc(1, sizeof *world);
  assert_non_null(world);
  world->model = make_model(world);
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.flags = ACCRT_SERVE_ENGINE_THREAD;
  assert_int_equal(accrt_serve_engine_create(world->model, &options, &world->engine), ACCRT_OK);
  world->server = make_server(world);
  begin_log();
  *state = world;
  return 0;
}

static int tear_down(void** state) {
  world_t* world = *state;
  clear_log();
  accrt_http_server_release(world->server);
  accrt_serve_engine_release(world->engine);
  accrt_serve_model_release(world->model);
  const int told = log_text()[0] != '\0';
  end_log();
  free(world);
  return told;
}

static size_t lines_of(const char* text) {
  size_t lines = 0;
  for (; *text != '\0'; ++text)
    lines += *text == '\n';
  return lines;
}

static void test_released(void** state) {
  world_t* world = *state;
  for (size_t i = 0; i < KINDS; ++i) {
    const struct kind* kind = &kinds[i];
    char made[96], released[64], operation[128];
    void* handle = kind->make(world);
    kind->release(handle);
    for (int n = 0; n < 20; ++n) { /* none gets its address */
      void* other = kind->make(world);
      assert_ptr_not_equal(other, handle);
      kind->release(other);
    }
    assert_string_equal(log_text(), "");
    const int calls = kind->refuse(world, handle);
    (void)snprintf(made, sizeof made, "made by %s, and %s dropped", kind->made_by,
                   kind->dropped_by);
    (void)snprintf(released, sizeof released, "`%s` is released: it is %s ", kind->parameter,
                   kind->type);
    assert_told(released, made);
    (void)snprintf(operation, sizeof operation, "%s", last_error().operation);
    assert_string_equal(operation, kind->refused_by);
    assert_int_equal(lines_of(log_text()), calls);
    clear_log();
  }
}

static void test_released_twice(void** state) {
  world_t* world = *state;
  for (size_t i = 0; i < KINDS; ++i) {
    const struct kind* kind = &kinds[i];
    char made[96], what[96];
    void* handle = kind->make(world);
    assert_ptr_equal(kind->retain(handle), handle);
    kind->release(handle);
    kind->release(handle);
    assert_string_equal(log_text(), "");
    kind->release(handle);
    (void)snprintf(what, sizeof what, "` is released twice: it is %s ", kind->type);
    (void)snprintf(made, sizeof made, "made by %s, and %s dropped its last reference",
                   kind->made_by, kind->dropped_by);
    assert_told(what, made);
    clear_log();
    kind->release(NULL);
    assert_string_equal(log_text(), "");
  }
}

/* Each kind in the place of each other, and what was never a handle. */
static void test_another_type(void** state) {
  world_t* world = *state;
  void* handles[KINDS];
  for (size_t i = 0; i < KINDS; ++i)
    handles[i] = kinds[i].make(world);
  for (size_t i = 0; i < KINDS; ++i) {
    for (size_t j = 0; j < KINDS; ++j) {
      const struct kind *wanted = &kinds[i], *given = &kinds[j];
      if (strcmp(wanted->type, given->type) == 0)
        continue;
      char must[96], is[96];
      (void)snprintf(must, sizeof must, "`%s` must be %s%s; ", wanted->parameter, wanted->article,
                     wanted->type);
      (void)snprintf(is, sizeof is, "made by %s", given->made_by);
      if (ACCRT_TEST_SHARED && wanted->library != given->library) {
        (void)snprintf(must, sizeof must, "`%s` (", wanted->parameter);
        (void)snprintf(is, sizeof is, "is not a handle of this library");
      }
      (void)wanted->refuse(world, handles[j]);
      assert_told(must, is);
      clear_log();
      wanted->release(handles[j]); /* does nothing */
      assert_told(strchr(must, ';') != NULL ? strstr(must, "must") : "(", is);
      clear_log();
    }
    int nothing = 0;
    (void)kinds[i].refuse(world, &nothing);
    assert_told(kinds[i].parameter, "is not a handle of this library");
    clear_log();
  }
  for (size_t i = 0; i < KINDS; ++i)
    kinds[i].release(handles[i]);
  assert_string_equal(log_text(), "");
}

/* A server's engine is a handle of the library below. */
static void test_the_engine_of_a_server(void** state) {
  world_t* world = *state;
  accrt_http_options_t options = ACCRT_HTTP_OPTIONS_INIT;
  options.model = "m";
  accrt_http_server_t* server = (void*)world;
  accrt_serve_engine_t* engine = make_engine(world);
  accrt_serve_engine_release(engine);
  assert_int_equal(accrt_http_server_create(engine, &options, &server), INVALID);
  assert_null(server);
  assert_told("`engine` is released", "made by accrt_serve_engine_create");
  assert_string_equal(last_error().operation, "accrt_http_server_create");
  void* wrong = world->model;
  assert_int_equal(accrt_http_server_create(wrong, &options, &server), INVALID);
  assert_told("`engine` must be an engine", "made by accrt_serve_model_create_simulated");
}

/* Handles of libaccrt, and others in their places. */
static void test_handles_of_the_library_below(void** state) {
  world_t* world = *state;
  accrt_instance_t* instance = NULL;
  assert_int_equal(accrt_instance_create(NULL, &instance), ACCRT_OK);
  void *wrong = instance, *model = world->model;
  assert_int_equal(accrt_serve_engine_step(wrong), INVALID);
  assert_told("`engine` (", "is not a handle of this library");
  accrt_serve_memory_t memory = ACCRT_SERVE_MEMORY_INIT;
  assert_int_equal(accrt_serve_program_memory(model, model, NULL, &memory), INVALID);
  /* An instance of an engine that has ended may have been at the model's address. */
  const accrt_error_t error = last_error();
  assert_non_null(strstr(error.message, "`program` "));
  if (strstr(error.message, "is not a handle of this library") == NULL &&
      strstr(error.message, "must be a program; it is instance") == NULL)
    fail_msg("'%s' does not say what is wrong", error.message);
  accrt_serve_model_t* other = (void*)world;
  assert_int_equal(accrt_serve_model_open_program(wrong, wrong, NULL, &other), INVALID);
  assert_null(other);
  assert_non_null(strstr(last_error().message, "`program` must be a program; it is instance"));
  accrt_instance_release(instance);
}

static void test_lent(void** state) {
  world_t* world = *state;
  accrt_serve_engine_t* engine = make_engine(world); /* it has the only reference to its model */
  accrt_serve_model_t* model = accrt_serve_engine_model(engine);
  accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
  assert_int_equal(accrt_serve_model_info(model, &info), ACCRT_OK);
  assert_string_equal(log_text(), "");
  accrt_serve_model_release(model); /* borrowed: the caller's reference is gone */
  assert_told("`model` is released twice: it is model", "accrt_serve_model_create_simulated");
  assert_int_equal(accrt_serve_model_info(model, &info), ACCRT_OK);
  assert_ptr_equal(accrt_serve_model_retain(model), model); /* then it is the caller's */
  clear_log();
  accrt_serve_engine_release(engine);
  assert_int_equal(accrt_serve_model_info(model, &info), ACCRT_OK);
  accrt_serve_model_release(model);
  assert_string_equal(log_text(), "");
  engine = make_engine(world);
  model = accrt_serve_engine_model(engine);
  accrt_serve_engine_release(engine); /* its lender */
  assert_int_equal(accrt_serve_model_info(model, &info), INVALID);
  assert_told("`model` is released", "accrt_serve_model_create_simulated");
}

/* ---- Jobs ---- */

static int ask(const world_t* world) {
  static const char text[] = "POST /tokenize HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                             "Content-Length: 2\r\n\r\n{}";
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port =
                                          htons((uint16_t)accrt_http_server_port(world->server)),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  assert_int_equal(connect(fd, (const struct sockaddr*)&address, sizeof address), 0);
  assert_int_equal(send(fd, text, sizeof text - 1, 0), sizeof text - 1);
  return fd;
}

static accrt_http_job_t* take_job(const world_t* world) {
  accrt_http_job_t* job = NULL;
  assert_int_equal(accrt_http_next(world->server, 60 * SECOND_NS, &job), ACCRT_OK);
  return job;
}

/* The whole answer has come, so the server has freed the job. */
static void read_answer(int fd) {
  char bytes[512];
  while (read(fd, bytes, sizeof bytes) > 0)
    continue;
  (void)close(fd);
}

static accrt_status_t answer(void* job) {
  return accrt_http_answer(job, 200, "text/plain", "a", 1);
}

static void assert_answered(accrt_http_job_t* job, const char* by) {
  char words[96];
  accrt_http_job_info_t info;
  accrt_http_failure_t failure = ACCRT_HTTP_FAILURE_INIT;
  failure.status = 400;
  const accrt_http_format_t format = ACCRT_HTTP_FORMAT_INIT;
  (void)snprintf(words, sizeof words, "lent by accrt_http_next, and %s answered it", by);
  assert_int_equal(accrt_http_job_info(job, &info), INVALID);
  assert_told("`job` is answered already: it is job", words);
  assert_int_equal(answer(job), INVALID);
  assert_told("`job` is answered already: it is job", words);
  assert_int_equal(accrt_http_fail(job, &failure), INVALID);
  assert_told("`job` is answered already: it is job", words);
  assert_int_equal(accrt_http_start(job, NULL, 0, &format), INVALID);
  assert_told("`job` is answered already: it is job", words);
  clear_log();
}

static void test_jobs(void** state) {
  world_t* world = *state;
  int fd = ask(world);
  accrt_http_job_t* job = take_job(world);
  accrt_http_job_info_t info;
  assert_int_equal(accrt_http_answer(job, 999, "text/plain", "a", 1), INVALID);
  assert_int_equal(accrt_http_job_info(job, &info), ACCRT_OK); /* it is not answered by that */
  assert_string_equal(log_text(), "");
  assert_int_equal(answer(job), ACCRT_OK);
  assert_answered(job, "accrt_http_answer");
  read_answer(fd);
  assert_answered(job, "accrt_http_answer");
  fd = ask(world);
  job = take_job(world);
  accrt_http_failure_t failure = ACCRT_HTTP_FAILURE_INIT;
  failure.status = 400;
  assert_int_equal(accrt_http_fail(job, &failure), ACCRT_OK);
  assert_answered(job, "accrt_http_fail");
  read_answer(fd);
  void* wrong = world->server;
  assert_int_equal(answer(wrong), INVALID);
  assert_told("`job` must be a job; it is server", "made by accrt_http_server_create");
  fd = ask(world);
  wrong = take_job(world);
  accrt_http_counts_t counts;
  assert_int_equal(accrt_http_server_counts(wrong, &counts), INVALID);
  assert_told("`server` must be a server; it is job", "lent by accrt_http_next");
  accrt_http_server_release(wrong);
  assert_told("`server` must be a server; it is job", "lent by accrt_http_next");
  assert_int_equal(answer(wrong), ACCRT_OK);
  read_answer(fd);
}

static void* release_it(void* server) {
  accrt_http_server_release(server);
  return NULL;
}

static void test_a_job_that_is_not_answered(void** state) {
  world_t* world = *state;
  const int fd = ask(world);
  accrt_http_job_t* job = take_job(world);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, release_it, world->server), 0);
  /* The release waits for the job, a while. */
  for (int i = 0; i < 6000 && strstr(log_text(), "not answered") == NULL; ++i)
    (void)usleep(10000);
  assert_non_null(strstr(log_text(), "not answered when its server was released: job "));
  assert_int_equal(answer(job), ACCRT_OK);
  (void)pthread_join(thread, NULL);
  (void)close(fd);
  world->server = make_server(world);
}

/* ---- What is left, and the environment ---- */

/* In a process of its own. */
static int leave(void) {
  world_t world = {0};
  world.model = make_model(&world);
  assert_int_equal(accrt_serve_engine_create(world.model, NULL, &world.engine), ACCRT_OK);
  for (size_t i = 2; i < KINDS; ++i) {
    void* handle = kinds[i].make(&world);
    if (strcmp(kinds[i].type, "server") == 0)
      kinds[i].release(handle);
    else
      (void)kinds[i].retain(handle);
    void* gone = kinds[i].make(&world);
    kinds[i].release(gone);
  }
  if (fork() == 0)
    exit(0); /* the child tells nothing */
  (void)wait(NULL);
  return 0;
}

static void test_what_is_left_over(void** state) {
  (void)state;
  char command[1024], text[8192] = "", line[160];
  (void)snprintf(command, sizeof command, "ASAN_OPTIONS=detect_leaks=0 '%s' leave 2>&1", program);
  FILE* pipe = popen(command, "r");
  assert_non_null(pipe);
  const size_t size = fread(text, 1, sizeof text - 1, pipe);
  text[size] = '\0';
  assert_int_equal(pclose(pipe), 0);
  for (size_t i = 0; i < KINDS; ++i) {
    (void)snprintf(line, sizeof line, "made by %s (%s)\n", kinds[i].made_by,
                   i < 2 ? "1 reference" : "2 references");
    const bool told = strstr(text, line) != NULL;
    if (told == (strcmp(kinds[i].type, "server") == 0))
      fail_msg("'%s' of:\n%s", line, text);
  }
  if (lines_of(text) != KINDS - 1 ||
      strstr(text, "accrt: handles: not released at the end: engine ") == NULL)
    fail_msg("not %zu lines:\n%s", KINDS - 1, text);
}

static void test_another_word_in_the_environment(void** state) {
  (void)state;
  assert_int_equal(setenv("ACCRT_VALIDATE", "handels", 1), 0);
  accrt_serve_model_t* model = (void*)state;
  accrt_http_calls_t* calls = (void*)state;
  accrt_serve_constraint_t* constraint = (void*)state;
  const accrt_serve_constraint_functions_t functions = ACCRT_SERVE_CONSTRAINT_FUNCTIONS_INIT;
  assert_int_equal(accrt_serve_model_create_simulated(NULL, &model), INVALID);
  assert_null(model);
  assert_string_equal(last_error().message,
                      "ACCRT_VALIDATE is 'handels': expected 'handles' or nothing");
  assert_int_equal(accrt_serve_constraint_create(&functions, &constraint), INVALID);
  assert_null(constraint);
  assert_int_equal(accrt_http_calls_create(ACCRT_HTTP_TOOLS_HERMES, 0, NULL, 0, &calls), INVALID);
  assert_null(calls);
  assert_int_equal(setenv("ACCRT_VALIDATE", "handles", 1), 0);
}

/* Last: from here on there are handles that nobody writes down, and validated ones beside them still are. */
static void test_beside_handles_that_are_not_validated(void** state) {
  world_t* world = *state;
  assert_int_equal(unsetenv("ACCRT_VALIDATE"), 0);
  accrt_serve_model_t* model = make_model(world);
  accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
  assert_int_equal(accrt_serve_model_info(model, &info), ACCRT_OK);
  accrt_serve_engine_t* engine = NULL;
  assert_int_equal(accrt_serve_engine_create(model, NULL, &engine), ACCRT_OK);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
  assert_string_equal(log_text(), "");
  assert_int_equal(setenv("ACCRT_VALIDATE", "handles", 1), 0);
  model = make_model(world);
  accrt_serve_model_release(model);
  assert_int_equal(accrt_serve_model_info(model, &info), INVALID);
  assert_told("`model` is released", "accrt_serve_model_create_simulated");
}

int main(int argc, char** argv) {
  program = argv[0];
  (void)setenv("ACCRT_VALIDATE", "handles", 1);
  if (argc > 1)
    return leave();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_released, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_released_twice, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_another_type, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_the_engine_of_a_server, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_handles_of_the_library_below, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_lent, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_jobs, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_a_job_that_is_not_answered, set_up, tear_down),
      cmocka_unit_test(test_what_is_left_over),
      cmocka_unit_test_setup_teardown(test_another_word_in_the_environment, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_beside_handles_that_are_not_validated, set_up,
                                      tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
