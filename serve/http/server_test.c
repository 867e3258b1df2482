/* The server with the simulated model: answers, clients that leave, memory that runs out, the end.
 * What is tested byte for byte is in tests/python/test_serve_http.py; this runs under
 * sanitizers. */
#include "accrt/http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "accrt/counters.h"

enum { ANSWER_BYTES = 1 << 20, WORKERS = 2 };

typedef struct served {
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine;
  accrt_http_server_t* server;
  pthread_t workers[WORKERS];
} served_t;

/* Requests that are refused leave the job as it was. */
static void ask_wrongly(accrt_http_job_t* job) {
  static const int32_t prompt[] = {1, 2, 3};
  accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
  const accrt_serve_request_t* const requests[] = {&request, &request};
  const char* const own_prompts[] = {NULL, NULL};
  accrt_http_format_t format = ACCRT_HTTP_FORMAT_INIT;
  format.prefixes = own_prompts;
  request.prompt_count = 3;
  assert_int_equal(accrt_http_start(job, requests, 2, &format), ACCRT_ERROR_INVALID_ARGUMENT);
  request.prompt = prompt;
  request.n = 65535;
  assert_int_equal(accrt_http_start(job, requests, 2, &format), ACCRT_ERROR_INVALID_ARGUMENT);
  request.n = 1;
  assert_int_equal(accrt_http_start(job, requests, 65537, &format), ACCRT_ERROR_INVALID_ARGUMENT);
}

/* Bodies are "STREAM N TOKENS", as a worker of this test reads them. */
static void serve_job(accrt_http_job_t* job) {
  static const int32_t prompt[] = {1, 2, 3};
  accrt_http_job_info_t info;
  assert_int_equal(accrt_http_job_info(job, &info), ACCRT_OK);
  char body[64] = "";
  if (info.body_bytes < sizeof body)
    memcpy(body, info.body, info.body_bytes);
  unsigned stream = 0, n = 0, tokens = 0;
  accrt_http_failure_t failure = ACCRT_HTTP_FAILURE_INIT;
  failure.status = 400;
  failure.message = "not three numbers";
  accrt_status_t status = ACCRT_ERROR_INVALID_FORMAT;
  ask_wrongly(job);
  if (sscanf(body, "%u %u %u", &stream, &n, &tokens) == 3) {
    accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
    request.prompt = prompt;
    request.prompt_count = 3;
    request.n = n;
    request.max_new_tokens = tokens;
    request.flags = ACCRT_SERVE_LOGPROBS;
    request.top_logprobs = 2;
    const accrt_serve_request_t* const requests[] = {&request, &request};
    accrt_http_format_t format = ACCRT_HTTP_FORMAT_INIT;
    format.flags = (stream ? ACCRT_HTTP_STREAM : 0) | ACCRT_HTTP_USAGE | ACCRT_HTTP_LOGPROBS;
    format.top_logprobs = 1;
    format.members = ",\"store\":false";
    status = accrt_http_start(job, requests, info.kind == ACCRT_HTTP_RESPONSE ? 1 : 2, &format);
    failure.status = status == ACCRT_ERROR_POISONED ? 500 : 429; /* between the two requests */
    failure.message = status == ACCRT_ERROR_POISONED ? "the engine has failed" : "full";
  }
  if (status != ACCRT_OK && status != ACCRT_ERROR_CANCELLED)
    assert_int_equal(accrt_http_fail(job, &failure), ACCRT_OK);
}

static void* work(void* server) {
  for (;;) {
    accrt_http_job_t* job = NULL;
    const accrt_status_t status = accrt_http_next(server, ACCRT_TIMEOUT_INFINITE, &job);
    if (status != ACCRT_OK) {
      assert_int_equal(status, ACCRT_ERROR_CANCELLED);
      return NULL;
    }
    serve_job(job);
  }
}

static accrt_http_options_t options_of(const accrt_allocator_t* allocator) {
  accrt_http_options_t options = ACCRT_HTTP_OPTIONS_INIT;
  options.model = "m";
  options.allocator = allocator;
  return options;
}

static void open_engine(served_t* served, uint64_t step_ns) {
  accrt_serve_simulation_t simulation = ACCRT_SERVE_SIMULATION_INIT;
  simulation.eos = -1;
  simulation.step_ns = step_ns;
  accrt_serve_options_t options = ACCRT_SERVE_OPTIONS_INIT;
  options.flags = ACCRT_SERVE_ENGINE_THREAD;
  assert_int_equal(accrt_serve_model_create_simulated(&simulation, &served->model), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_create(served->model, &options, &served->engine), ACCRT_OK);
}

static void start_workers(served_t* served) {
  for (int i = 0; i < WORKERS; ++i)
    assert_int_equal(pthread_create(&served->workers[i], NULL, work, served->server), 0);
}

static void end(served_t* served) {
  assert_int_equal(accrt_http_server_drain(served->server, UINT64_C(30000000000)), ACCRT_OK);
  for (int i = 0; i < WORKERS; ++i)
    pthread_join(served->workers[i], NULL);
  accrt_http_server_release(served->server);
  accrt_serve_engine_release(served->engine);
  accrt_serve_model_release(served->model);
}

static int client_of(const served_t* served) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port =
                                          htons((uint16_t)accrt_http_server_port(served->server)),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  assert_int_equal(connect(fd, (const struct sockaddr*)&address, sizeof address), 0);
  return fd;
}

static void ask_at(int fd, const char* path, const char* body) {
  char request[256];
  const int size = snprintf(request, sizeof request,
                            "POST %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                            "Content-Length: %zu\r\n\r\n%s",
                            path, strlen(body), body);
  (void)!send(fd, request, (size_t)size, MSG_NOSIGNAL);
}

#define CHATS "/v1/chat/completions"
#define RESPONSES "/v1/responses"

static void ask(int fd, const char* body) {
  ask_at(fd, CHATS, body);
}

/* Everything until the server closes; the text is NUL-terminated. */
static size_t read_all(int fd, char* text) {
  size_t size = 0;
  ssize_t got = 0;
  while (size < ANSWER_BYTES - 1 && (got = recv(fd, text + size, ANSWER_BYTES - 1 - size, 0)) > 0)
    size += (size_t)got;
  text[size] = 0;
  close(fd);
  return size;
}

static void test_answers(void** state) {
  (void)state;
  served_t served = {0};
  open_engine(&served, 0);
  const accrt_http_options_t options = options_of(NULL);
  assert_int_equal(accrt_http_server_create(served.engine, &options, &served.server), ACCRT_OK);
  start_workers(&served);
  char* text = malloc(ANSWER_BYTES);
  static const struct {
    const char *path, *body, *begins, *has;
  } cases[] = {{CHATS, "1 2 20", "HTTP/1.1 200 ", "data: [DONE]\n\n\r\n0\r\n\r\n"},
               {CHATS, "0 3 20", "HTTP/1.1 200 ", "\"completion_tokens\":120"},
               {CHATS, "nothing", "HTTP/1.1 400 ", "not three numbers"},
               {CHATS, "0 1 100000", "HTTP/1.1 429 ", "Retry-After: 1"},
               {RESPONSES, "1 1 20", "HTTP/1.1 200 ", "\"total_tokens\":23}}}\n\n\r\n0\r\n\r\n"},
               {RESPONSES, "0 1 20", "HTTP/1.1 200 ", ",\"store\":false,\"status\":\"incomplete\""},
               {RESPONSES, "0 2 20", "HTTP/1.1 429 ", "full"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    const int fd = client_of(&served);
    ask_at(fd, cases[i].path, cases[i].body);
    read_all(fd, text);
    assert_ptr_equal(strstr(text, cases[i].begins), text);
    assert_non_null(strstr(text, cases[i].has));
  }
  for (uint32_t round = 0; round < 20; ++round) { /* clients that leave at any moment */
    const int fd = client_of(&served);
    ask(fd, "1 4 2000");
    if (round % 2 != 0)
      (void)!recv(fd, text, 1 + round * 50, 0);
    close(fd);
  }
  free(text);
  end(&served);
}

/* What a slow client has not taken waits as numbers, and none of it is lost. */
static void test_a_slow_client_gets_all(void** state) {
  (void)state;
  served_t served = {0};
  open_engine(&served, 0);
  const accrt_http_options_t options = options_of(NULL);
  assert_int_equal(accrt_http_server_create(served.engine, &options, &served.server), ACCRT_OK);
  start_workers(&served);
  const int fd = client_of(&served);
  const int bytes = 65536;
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  ask(fd, "1 4 3500");
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  while (stats.output_tokens < UINT64_C(2) * 4 * 3500) {
    usleep(1000);
    assert_int_equal(accrt_serve_engine_stats(served.engine, &stats), ACCRT_OK);
  }
  char* text = malloc(ANSWER_BYTES);
  char last[32] = "";
  uint32_t tokens = 0;
  for (ssize_t got = 0; (got = recv(fd, text, ANSWER_BYTES, 0)) > 0;) {
    for (ssize_t i = 0; i < got; ++i)
      tokens += text[i] == 'p' && i + 1 < got && text[i + 1] == '_'; /* "top_logprobs" */
    if (got > 31)
      memcpy(last, text + got - 31, 31);
  }
  assert_true(tokens > 2 * 4 * 3500 - 100); /* some are cut by a read */
  assert_non_null(strstr(last, "data: [DONE]\n\n\r\n0\r\n\r\n"));
  free(text);
  close(fd);
  end(&served);
}

/* Adds up the answers that a server has counted, of any status. */
static void add_answers(void* user, const accrt_counter_group_t* group, const double* values) {
  double* answers = user;
  for (uint32_t i = 0; i < group->counter_count; ++i) {
    const accrt_counter_t* counter = &group->counters[i];
    if (strcmp(counter->name, "accrt:http_answers_total") == 0)
      *answers += *values;
    values += ACCRT_COUNTER_VALUES(counter);
  }
}

static void test_the_end_cuts_off(void** state) {
  (void)state;
  served_t served = {0};
  open_engine(&served, 1000000);
  const accrt_http_options_t options = options_of(NULL);
  assert_int_equal(accrt_http_server_create(served.engine, &options, &served.server), ACCRT_OK);
  start_workers(&served);
  const int fd = client_of(&served);
  ask(fd, "1 1 4000");
  char byte = 0;
  assert_int_equal(recv(fd, &byte, 1, 0), 1);
  assert_int_equal(accrt_http_server_drain(served.server, 50000000), ACCRT_ERROR_TIMEOUT);
  /* The answer that was cut off is counted by then. */
  double answers = 0;
  accrt_instance_t* instance = accrt_serve_engine_instance(served.engine);
  assert_int_equal(accrt_counters_read(instance, add_answers, &answers), ACCRT_OK);
  assert_true(answers == 1);
  end(&served);
  close(fd);
}

/* An allocator whose allocation number `fail_at` fails, and counts what is out. */
typedef struct failing {
  _Atomic uint64_t count, fail_at, out;
} failing_t;

static void* allocate(void* self, size_t size, size_t alignment) {
  failing_t* failing = self;
  (void)alignment;
  if (atomic_fetch_add(&failing->count, 1) + 1 == failing->fail_at)
    return NULL;
  atomic_fetch_add(&failing->out, 1);
  return malloc(size);
}
static void deallocate(void* self, void* pointer, size_t size, size_t alignment) {
  (void)size;
  (void)alignment;
  atomic_fetch_sub(&((failing_t*)self)->out, 1);
  free(pointer);
}

/* Every allocation of a stream and of a whole answer fails once: nothing is lost, and the next
 * request is served. */
static void without_memory(const char* path, const char* stream, const char* whole) {
  char* text = malloc(ANSWER_BYTES);
  for (uint64_t fail_at = 1, done = 0; !done; ++fail_at) {
    failing_t failing = {0};
    failing.fail_at = fail_at;
    const accrt_allocator_t allocator = {&failing, allocate, deallocate};
    served_t served = {0};
    open_engine(&served, 0);
    const accrt_http_options_t options = options_of(&allocator);
    const accrt_status_t status = accrt_http_server_create(served.engine, &options, &served.server);
    if (status != ACCRT_OK) {
      assert_int_equal(status, ACCRT_ERROR_OUT_OF_MEMORY);
      assert_null(served.server);
      accrt_serve_engine_release(served.engine);
      accrt_serve_model_release(served.model);
      assert_int_equal(failing.out, 0);
      continue;
    }
    start_workers(&served);
    int fd = client_of(&served);
    ask_at(fd, path, fail_at % 2 == 0 ? stream : whole);
    read_all(fd, text); /* whole, a failure, or cut off */
    done = failing.count < fail_at && fail_at % 2 == 0;
    failing.fail_at = 0;
    fd = client_of(&served);
    ask(fd, "0 1 4");
    read_all(fd, text);
    assert_non_null(strstr(text, "\"completion_tokens\":8"));
    end(&served);
    assert_int_equal(failing.out, 0);
  }
  free(text);
}

static void test_no_memory(void** state) {
  (void)state;
  without_memory(CHATS, "1 2 8", "0 2 8");
}

static void test_no_memory_for_a_response(void** state) {
  (void)state;
  without_memory(RESPONSES, "1 1 64", "0 1 64");
}

/* ---- What /health says ---- */

static uint32_t health_has(const served_t* served, const char* status, const char* words) {
  static const char request[] = "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
  char* text = malloc(ANSWER_BYTES);
  const int fd = client_of(served);
  (void)!send(fd, request, sizeof request - 1, MSG_NOSIGNAL);
  read_all(fd, text);
  const uint32_t found = strstr(text, status) == text && strstr(text, words) != NULL;
  free(text);
  return found;
}

/* Nobody takes requests: its workers are busy for ever, or have ended. */
static void test_health_without_workers(void** state) {
  (void)state;
  served_t served = {0};
  open_engine(&served, 0);
  accrt_http_options_t options = options_of(NULL);
  options.health_timeout_ns = 1000000;
  assert_int_equal(accrt_http_server_create(served.engine, &options, &served.server), ACCRT_OK);
  assert_true(health_has(&served, "HTTP/1.1 200 ", "\"ok\""));
  const int fd = client_of(&served);
  ask(fd, "0 1 4");
  while (!health_has(&served, "HTTP/1.1 503 ", "workers_stuck"))
    usleep(1000);
  start_workers(&served);
  char* text = malloc(ANSWER_BYTES);
  read_all(fd, text);
  assert_non_null(strstr(text, "\"completion_tokens\":8"));
  assert_true(health_has(&served, "HTTP/1.1 200 ", "\"ok\""));
  free(text);
  end(&served);
}

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

static void test_health_of_a_dead_engine(void** state) {
  (void)state;
  served_t served = {0};
  assert_int_equal(accrt_serve_model_create_simulated(NULL, &inner_model), ACCRT_OK);
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.info = dead_info;
  functions.submit = dead_submit;
  functions.wait = dead_wait;
  accrt_serve_options_t engine = ACCRT_SERVE_OPTIONS_INIT;
  engine.flags = ACCRT_SERVE_ENGINE_THREAD;
  assert_int_equal(accrt_serve_model_wrap(&functions, &served.model), ACCRT_OK);
  assert_int_equal(accrt_serve_engine_create(served.model, &engine, &served.engine), ACCRT_OK);
  const accrt_http_options_t options = options_of(NULL);
  assert_int_equal(accrt_http_server_create(served.engine, &options, &served.server), ACCRT_OK);
  start_workers(&served);
  char* text = malloc(ANSWER_BYTES);
  const int fd = client_of(&served);
  ask(fd, "0 1 4");
  read_all(fd, text);
  assert_ptr_equal(strstr(text, "HTTP/1.1 500 "), text);
  assert_true(health_has(&served, "HTTP/1.1 503 ", "engine_failed"));
  free(text);
  end(&served);
  accrt_serve_model_release(inner_model);
}

/* The status, and the argument or field that the record names. */
static void refused(accrt_status_t status, accrt_status_t wanted, const char* text) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  assert_int_equal(accrt_last_error(&error), ACCRT_OK);
  if (status != wanted || strncmp(error.message, text, strlen(text)) != 0)
    fail_msg("%s, expected %s with '%s': %s", accrt_status_name(status), accrt_status_name(wanted),
             text, error.message);
}

static void test_messages_name_the_argument(void** state) {
  (void)state;
  served_t served = {0};
  open_engine(&served, 0);
  const accrt_status_t invalid = ACCRT_ERROR_INVALID_ARGUMENT;
  accrt_http_options_t options = options_of(NULL);
  accrt_http_server_t* server;
  accrt_http_job_t* job;
  accrt_http_job_info_t info = {0};
  accrt_http_format_t format = ACCRT_HTTP_FORMAT_INIT;
  refused(accrt_http_server_create(NULL, &options, &server), invalid, "engine is NULL");
  refused(accrt_http_server_create(served.engine, &options, NULL), invalid, "out_server is NULL");
  refused(accrt_http_server_create(served.engine, NULL, &server), invalid, "options is NULL");
  options.struct_size -= 8;
  refused(accrt_http_server_create(served.engine, &options, &server), invalid,
          "options: struct_size is");
  options.struct_size += 8;
  struct {
    accrt_http_options_t options;
    uint64_t later;
  } newer = {options, 7};
  newer.options.struct_size = sizeof newer;
  refused(accrt_http_server_create(served.engine, &newer.options, &server), invalid,
          "options: byte ");
  refused(accrt_http_server_drain(NULL, 0), invalid, "server is NULL");
  refused(accrt_http_next(NULL, 0, &job), invalid, "server is NULL");
  refused(accrt_http_job_info(NULL, &info), invalid, "job is NULL");
  refused(accrt_http_start(NULL, NULL, 0, &format), invalid, "job is NULL");
  refused(accrt_http_fail(NULL, NULL), invalid, "job is NULL");
  refused(accrt_http_answer(NULL, 200, "text/plain", NULL, 0), invalid, "job is NULL");
  accrt_serve_engine_release(served.engine);
  accrt_serve_model_release(served.model);
}

static void test_bad_arguments(void** state) {
  (void)state;
  served_t served = {0};
  open_engine(&served, 0);
  accrt_http_options_t options = options_of(NULL);
  assert_int_equal(accrt_http_server_create(NULL, &options, &served.server),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_http_server_create(served.engine, NULL, &served.server),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  options.port = 70000;
  assert_int_equal(accrt_http_server_create(served.engine, &options, &served.server),
                   ACCRT_ERROR_OUT_OF_RANGE);
  options.port = 0;
  options.host = "no such host.invalid";
  assert_int_equal(accrt_http_server_create(served.engine, &options, &served.server),
                   ACCRT_ERROR_IO);
  options.host = NULL;
  options.model = NULL;
  assert_int_equal(accrt_http_server_create(served.engine, &options, &served.server),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  options.model = "m";
  assert_int_equal(accrt_http_server_create(served.engine, &options, &served.server), ACCRT_OK);
  accrt_http_job_t* job = NULL;
  assert_int_equal(accrt_http_next(served.server, 0, &job), ACCRT_ERROR_TIMEOUT);
  assert_int_equal(accrt_http_next(NULL, 0, &job), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_http_fail(NULL, NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_http_server_port(NULL), 0);
  assert_ptr_equal(accrt_http_server_retain(served.server), served.server);
  accrt_http_server_release(served.server);
  accrt_http_server_release(served.server);
  accrt_http_server_release(NULL);
  accrt_serve_engine_release(served.engine);
  accrt_serve_model_release(served.model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_answers),
      cmocka_unit_test(test_a_slow_client_gets_all),
      cmocka_unit_test(test_the_end_cuts_off),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_no_memory_for_a_response),
      cmocka_unit_test(test_bad_arguments),
      cmocka_unit_test(test_messages_name_the_argument),
      cmocka_unit_test(test_health_without_workers),
      cmocka_unit_test(test_health_of_a_dead_engine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
