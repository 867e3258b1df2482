/* serve/http/server.c - making a server and ending it: options, the socket that listens, the
 * thread. */
#include "serve/http/server.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "serve/handles.h"

enum { INPUT_BYTES = 64 * 1024, EVENTS = 64, BACKLOG = 1024 };

uint32_t accrt_http_version(void) {
  return ACCRT_VERSION;
}

static char* copy(const http_server_t* server, const char* words) {
  if (words == NULL)
    return NULL;
  const size_t size = strlen(words) + 1;
  char* text = accrt_http_new(&server->allocator, size);
  if (text != NULL)
    memcpy(text, words, size);
  return text;
}
static void forget(const http_server_t* server, char* words) {
  if (words != NULL)
    accrt_http_free(&server->allocator, words, strlen(words) + 1);
}

static uint64_t either(uint64_t value, uint64_t otherwise) {
  return value != 0 ? value : otherwise;
}

/* What is written into headers as it is has no line ends. */
static accrt_status_t check(const accrt_http_options_t* given) {
  if (given->model == NULL || given->model[0] == 0)
    return HTTP_FAIL(INVALID_ARGUMENT, "the options name no model");
  if (given->port > 65535)
    return HTTP_FAIL(OUT_OF_RANGE, "port %u is above 65535", given->port);
  if (given->cors_origin != NULL && strpbrk(given->cors_origin, "\r\n") != NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "cors_origin has more than one line");
  if (given->page == NULL && given->page_bytes > 0)
    return HTTP_FAIL(INVALID_ARGUMENT, "page is NULL, page_bytes %llu",
                     (unsigned long long)given->page_bytes);
  if ((given->flags & ~ACCRT_SERVE_VALIDATE) != 0)
    return HTTP_FAIL(INVALID_ARGUMENT, "flags 0x%x are not known", given->flags);
  return ACCRT_OK;
}

/* A handle that libaccrt_serve refuses has no descriptor. */
static accrt_status_t check_engine(accrt_serve_engine_t* engine) {
  if (accrt_serve_engine_event_fd(engine) >= 0)
    return ACCRT_OK;
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  return accrt_http_failed("accrt_http_server_create", __FILE__, __LINE__,
                           ACCRT_ERROR_INVALID_ARGUMENT, 0, "%s", error.message);
}

static accrt_status_t take_options(http_server_t* server, const accrt_http_options_t* given) {
  server->log_fd = given->log_fd;
  server->max_model_tokens = given->max_model_tokens;
  server->max_connections = (uint32_t)either(given->max_connections, 1024);
  server->max_jobs = (uint32_t)either(given->max_jobs, 256);
  server->retry_after_s = (uint32_t)either(given->retry_after_s, 1);
  server->max_header_bytes = either(given->max_header_bytes, 64 << 10);
  server->max_body_bytes = either(given->max_body_bytes, 16 << 20);
  server->max_held_bytes = either(given->max_held_bytes, 256 << 20);
  server->max_output_bytes = either(given->max_output_bytes, 1 << 20);
  server->request_timeout_ns = either(given->request_timeout_ns, 30 * HTTP_SECOND_NS);
  server->idle_timeout_ns = either(given->idle_timeout_ns, 75 * HTTP_SECOND_NS);
  server->stall_timeout_ns = either(given->stall_timeout_ns, 30 * HTTP_SECOND_NS);
  server->health_timeout_ns = either(given->health_timeout_ns, 30 * HTTP_SECOND_NS);
  server->model = copy(server, given->model);
  server->api_key = copy(server, given->api_key);
  server->cors_origin = copy(server, given->cors_origin);
  if (given->page != NULL)
    server->page = accrt_http_new(&server->allocator, given->page_bytes + 1);
  if (server->page != NULL)
    memcpy(server->page, given->page, given->page_bytes);
  server->page_bytes = given->page_bytes;
  if (server->model == NULL || (server->api_key == NULL) != (given->api_key == NULL) ||
      (server->cors_origin == NULL) != (given->cors_origin == NULL) ||
      (server->page == NULL) != (given->page == NULL))
    return HTTP_FAIL(OUT_OF_MEMORY, "the options");
  return ACCRT_OK;
}

/* ---- The socket ---- */

/* Under the lock of forks.c. Returns 0, or an errno. */
static int listen_at(http_server_t* server, const struct addrinfo* address) {
  accrt_http_forks_assert_held();
  const int fd = socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                        address->ai_protocol);
  if (fd < 0)
    return errno;
  const int one = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
    server->listener = fd;
    return 0;
  }
  const int reason = errno;
  close(fd);
  return reason;
}

static accrt_status_t open_listener(http_server_t* server, const char* host, uint32_t port) {
  char service[12];
  snprintf(service, sizeof service, "%u", port);
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
  struct addrinfo* found = NULL;
  const int code = getaddrinfo(host, service, &hints, &found);
  if (code != 0)
    return HTTP_FAIL(IO, "host '%s': %s", host, gai_strerror(code));
  int reason = 0;
  for (const struct addrinfo* at = found; at != NULL && server->listener < 0; at = at->ai_next) {
    accrt_http_forks_hold();
    reason = listen_at(server, at);
    accrt_http_forks_let();
  }
  freeaddrinfo(found);
  if (server->listener < 0)
    return HTTP_FAIL_ERRNO(reason, "cannot listen at %s port %u: %s", host, port, strerror(reason));
  struct sockaddr_storage bound;
  socklen_t size = sizeof bound;
  char digits[8] = "0";
  if (getsockname(server->listener, (struct sockaddr*)&bound, &size) == 0)
    (void)getnameinfo((struct sockaddr*)&bound, size, NULL, 0, digits, sizeof digits,
                      NI_NUMERICSERV);
  server->port = (uint32_t)strtoul(digits, NULL, 10);
  return ACCRT_OK;
}

static int watch(const http_server_t* server, int fd, void* which) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = which};
  return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event);
}

static accrt_status_t open_loop(http_server_t* server) {
  accrt_http_forks_hold();
  server->epoll = epoll_create1(EPOLL_CLOEXEC);
  server->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  accrt_http_forks_let();
  if (server->epoll < 0 || server->wake < 0 || watch(server, server->wake, &server->wake) != 0 ||
      watch(server, server->listener, &server->listener) != 0 ||
      watch(server, accrt_serve_engine_event_fd(server->engine), &server->engine) != 0)
    return HTTP_FAIL_ERRNO(errno, "no descriptor to wait with: %s", strerror(errno));
  accrt_http_keep_spare(server);
  return ACCRT_OK;
}

/* ---- The model's tokens ---- */

/* The table's offsets are the engine's to check: it refuses models with others. */
static void find_tokens(http_server_t* server) {
  accrt_serve_model_info_t info = ACCRT_SERVE_MODEL_INFO_INIT;
  if (accrt_serve_model_info(accrt_serve_engine_model(server->engine), &info) != ACCRT_OK)
    return;
  if (info.token_bytes == NULL || info.token_bytes_size_bytes < 8)
    return;
  memcpy(&server->token_count, info.token_bytes, sizeof server->token_count);
  server->token_bytes = info.token_bytes;
}

/* ---- Life ---- */

static void read_metrics(void* self, double* values) {
  http_server_t* server = self;
  accsv_lock(&server->lock);
  const http_metrics_t metrics = server->shown;
  accsv_unlock(&server->lock);
  accrt_http_metrics_values(&metrics, values);
}

static accrt_status_t add_counters(http_server_t* server) {
  accrt_counter_group_t group;
  accrt_http_metrics_group(&group);
  group.self = server;
  group.read = read_metrics;
  return accrt_counters_add(accrt_serve_engine_instance(server->engine), &group,
                            &server->counters_id);
}

static void destroy(http_server_t* server) {
  if (server->counters_id != 0)
    (void)accrt_counters_remove(accrt_serve_engine_instance(server->engine), server->counters_id);
  int32_t* const descriptors[] = {&server->listener, &server->wake, &server->spare, &server->epoll};
  for (size_t i = 0; i < sizeof descriptors / sizeof descriptors[0]; ++i)
    accrt_http_forks_close(descriptors[i]);
  accrt_http_forks_leave(server); /* a child closes them until then */
  accrt_http_text_deinit(&server->scratch);
  accrt_http_free(&server->allocator, server->input, INPUT_BYTES);
  accrt_http_free(&server->allocator, server->events, EVENTS * sizeof *server->events);
  forget(server, server->model);
  forget(server, server->api_key);
  forget(server, server->cors_origin);
  accrt_http_free(&server->allocator, server->page, server->page_bytes + 1);
  accsv_lock_deinit(&server->lock);
  accsv_lock_deinit(&server->submitting);
  pthread_cond_destroy(&server->changed);
  accrt_serve_engine_release(server->engine);
  const accrt_allocator_t allocator = server->allocator;
  ACCSV_HANDLE_FREE(&allocator, server);
}

static void init_locks(http_server_t* server) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&server->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  (void)accsv_lock_init(&server->lock, ACCRT_LOCK_HTTP_SERVER);
  (void)accsv_lock_init(&server->submitting, ACCRT_LOCK_HTTP_SUBMITTING);
}

static accrt_status_t fill(http_server_t* server, const accrt_http_options_t* given) {
  accrt_status_t status = take_options(server, given);
  server->input = accrt_http_new(&server->allocator, INPUT_BYTES);
  server->events = accrt_http_new(&server->allocator, EVENTS * sizeof *server->events);
  if (status == ACCRT_OK && (server->input == NULL || server->events == NULL))
    status = HTTP_FAIL(OUT_OF_MEMORY, "the input's memory");
  if (status == ACCRT_OK)
    status = open_listener(server, given->host != NULL ? given->host : "127.0.0.1", given->port);
  if (status == ACCRT_OK)
    status = open_loop(server);
  if (status == ACCRT_OK)
    status = add_counters(server);
  if (status != ACCRT_OK)
    return status;
  find_tokens(server);
  const int code = pthread_create(&server->thread, NULL, accrt_http_loop, server);
  return code == 0 ? ACCRT_OK : HTTP_FAIL_ERRNO(code, "no thread: %s", strerror(code));
}

accrt_status_t accrt_http_server_create(accrt_serve_engine_t* engine,
                                        const accrt_http_options_t* options,
                                        http_server_t** out_server) {
  if (out_server == NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "out_server is NULL");
  *out_server = NULL;
  if (engine == NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "engine is NULL");
  accrt_http_options_t given;
  accrt_status_t status =
      accrt_http_take_struct(&given, sizeof given, options, "options", __func__);
  if (status == ACCRT_OK)
    status = check(&given);
  if (status == ACCRT_OK)
    status = check_engine(engine);
  if (status != ACCRT_OK)
    return status;
  const accrt_allocator_t* allocator =
      given.allocator != NULL ? given.allocator : &accrt_http_allocator_system;
  http_server_t* server;
  if (ACCSV_HANDLE_NEW(allocator, &server) != ACCRT_OK)
    return HTTP_FAIL(OUT_OF_MEMORY, "a server of %zu bytes", sizeof *server);
  server->allocator = *allocator;
  server->references = 1;
  server->process = getpid();
  server->engine = accrt_serve_engine_retain(engine);
  server->epoll = server->listener = server->wake = server->spare = server->incoming = -1;
  server->next_deadline_ns = UINT64_MAX;
  server->now_ns = accrt_serve_now_ns();
  server->started_at = (uint64_t)time(NULL);
  accrt_http_text_init(&server->scratch, &server->allocator);
  init_locks(server);
  accrt_http_forks_join(server);
  status = fill(server, &given);
  if (status != ACCRT_OK)
    destroy(server);
  else
    *out_server = server;
  return status;
}

accrt_http_server_t* accrt_http_server_retain(http_server_t* server) {
  if (server != NULL)
    atomic_fetch_add_explicit(&server->references, 1, memory_order_relaxed);
  return server;
}

void accrt_http_server_release(http_server_t* server) {
  if (server == NULL || server->process != getpid() ||
      atomic_fetch_sub(&server->references, 1) != 1)
    return;
  atomic_store(&server->draining, 1);
  atomic_store(&server->cutting, 1);
  atomic_store(&server->stopping, 1);
  accrt_http_wake(server);
  pthread_join(server->thread, NULL);
  destroy(server);
}

uint32_t accrt_http_server_port(const http_server_t* server) {
  return server == NULL ? 0 : server->port;
}

/* Waits until no connection is left. */
static uint32_t wait_for_end(http_server_t* server, uint64_t timeout_ns) {
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  const uint64_t year = UINT64_C(365) * 86400 * HTTP_SECOND_NS;
  const uint64_t total = (uint64_t)end.tv_nsec + (timeout_ns < year ? timeout_ns : year);
  end.tv_sec += (time_t)(total / HTTP_SECOND_NS);
  end.tv_nsec = (long)(total % HTTP_SECOND_NS);
  accsv_lock(&server->lock);
  int late = 0;
  while (server->ended == 0 && !late)
    late = accsv_wait_until(&server->changed, &server->lock, &end);
  const uint32_t ended = server->ended;
  accsv_unlock(&server->lock);
  return ended;
}

accrt_status_t accrt_http_server_drain(http_server_t* server, uint64_t timeout_ns) {
  HTTP_ENTER(server);
  atomic_store(&server->draining, 1);
  accrt_http_wake(server);
  if (wait_for_end(server, timeout_ns))
    return ACCRT_OK;
  atomic_store(&server->cutting, 1);
  accrt_http_wake(server);
  (void)wait_for_end(server, 5 * HTTP_SECOND_NS);
  return HTTP_FAIL(TIMEOUT, "answers were cut off after %llu ns", (unsigned long long)timeout_ns);
}

accrt_status_t accrt_http_server_counts(http_server_t* server, accrt_http_counts_t* out_counts) {
  HTTP_ENTER(server);
  if (out_counts == NULL)
    return HTTP_FAIL(INVALID_ARGUMENT, "out_counts is NULL");
  accsv_lock(&server->lock);
  *out_counts = (accrt_http_counts_t){.connections = server->connection_count,
                                      .queued = server->queued,
                                      .jobs = server->jobs_alive,
                                      .draining = server->draining,
                                      .held_bytes = server->held_bytes + server->answer_bytes};
  accsv_unlock(&server->lock);
  return ACCRT_OK;
}
