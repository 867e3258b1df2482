/* serve/http/loop.c - the thread that serves: what it waits for, deadlines, new clients, the log,
 * and how it ends. At rest it is not woken. */
#include "serve/http/server.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { READY = 128, ACCEPTS_AT_ONCE = 64 };
static const uint64_t accept_pause_ns = HTTP_SECOND_NS / 10;
/* How long the end waits for last events of an engine that gives none. */
static const uint64_t end_limit_ns = 10 * HTTP_SECOND_NS;

void accrt_http_wake(http_server_t* server) {
  const uint64_t one = 1;
  ssize_t done = 0;
  do
    done = write(server->wake, &one, sizeof one);
  while (done < 0 && errno == EINTR);
}

void accrt_http_watch(http_connection_t* c, uint32_t interest) {
  if (c->fd < 0 || c->interest == interest)
    return;
  struct epoll_event event = {.events = interest, .data.ptr = c};
  const int how = c->interest == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (epoll_ctl(c->server->epoll, how, c->fd, &event) != 0) {
    accrt_http_connection_abort(c);
    return;
  }
  c->interest = interest;
}

void accrt_http_deadline(http_connection_t* c, uint64_t deadline_ns) {
  c->deadline_ns = deadline_ns;
  if (deadline_ns < c->server->next_deadline_ns)
    c->server->next_deadline_ns = deadline_ns;
}

/* ---- The log ---- */

static void put_time(http_text_t* text) {
  const time_t now = time(NULL);
  struct tm parts;
  if (gmtime_r(&now, &parts) != NULL)
    accrt_http_put_format(text, "%04d-%02d-%02dT%02d:%02d:%02dZ ", parts.tm_year + 1900,
                          parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min,
                          parts.tm_sec);
}

static void put_job(http_text_t* text, const http_connection_t* c) {
  const struct accrt_http_job* job = c->job;
  if (job == NULL || job->first_ns == 0)
    return;
  accrt_http_put_format(
      text, " prompt=%llu cached=%llu output=%llu first=%.1fms",
      (unsigned long long)job->given_tokens, (unsigned long long)job->cached_tokens,
      (unsigned long long)job->output_tokens, (double)(job->first_ns - job->arrived_ns) * 1e-6);
}

void accrt_http_log(http_connection_t* c) {
  http_server_t* server = c->server;
  if (c->status >= 200 && c->status < 600)
    ++server->metrics.answers[c->status / 100];
  if (server->log_fd < 0)
    return;
  http_text_t* text = &server->scratch;
  accrt_http_text_clear(text);
  put_time(text);
  const size_t shown = c->target.size < 200 ? c->target.size : 200;
  accrt_http_put_format(text, "%s \"%s ", c->peer,
                        c->complete != 0 ? llhttp_method_name(c->parser.method) : "?");
  accrt_http_put_escaped(text, c->target.data == NULL ? "" : c->target.data, shown);
  accrt_http_put_format(text, "\" %u %.1fms", c->status,
                        (double)(server->now_ns - c->arrived_ns) * 1e-6);
  put_job(text, c);
  accrt_http_put(text, "\n", 1);
  if (text->failed == 0 && write(server->log_fd, text->data, text->size) < 0)
    return; /* the log has no reader: serving goes on */
}

void accrt_http_show_metrics(http_server_t* server) {
  /* No other thread writes `shown`, so this one reads it without the lock. */
  if (memcmp(&server->shown, &server->metrics, sizeof server->shown) == 0)
    return;
  accsv_lock(&server->lock);
  server->shown = server->metrics;
  accsv_unlock(&server->lock);
}

/* ---- Health ---- */

/* 1: requests wait, and for a long time no worker has taken one. */
static uint32_t workers_stuck(http_server_t* server) {
  accsv_lock(&server->lock);
  const struct accrt_http_job* first = server->queue_first;
  const uint64_t taken_ns = server->taken_ns;
  const uint64_t arrived_ns = first == NULL ? UINT64_MAX : first->arrived_ns;
  accsv_unlock(&server->lock);
  const uint64_t since_ns = arrived_ns > taken_ns ? arrived_ns : taken_ns;
  return arrived_ns != UINT64_MAX && server->now_ns > since_ns &&
         server->now_ns - since_ns > server->health_timeout_ns;
}

http_health_t accrt_http_health(http_server_t* server, accrt_serve_stats_t* stats) {
  *stats = (accrt_serve_stats_t)ACCRT_SERVE_STATS_INIT;
  if (accrt_serve_engine_stats(server->engine, stats) != ACCRT_OK || stats->failure != ACCRT_OK)
    return HTTP_ENGINE_FAILED;
  /* The engine's figures are those of the end of its last step, which may never come. */
  const uint32_t busy =
      stats->running + stats->waiting + stats->preempted > 0 || atomic_load(&server->flights) > 0;
  if (server->seen_busy == 0 || stats->steps != server->seen_steps)
    server->seen_steps_ns = server->now_ns;
  server->seen_busy = busy;
  server->seen_steps = stats->steps;
  const uint32_t stuck = server->now_ns - server->seen_steps_ns > server->health_timeout_ns;
  if (stats->healthy == 0 || (busy && stuck))
    return HTTP_ENGINE_STUCK;
  return workers_stuck(server) ? HTTP_WORKERS_STUCK : HTTP_HEALTHY;
}

/* ---- New clients ---- */

static void name_peer(const struct sockaddr* address, socklen_t size, char* out, size_t capacity) {
  char host[48], port[8];
  if (getnameinfo(address, size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    snprintf(out, capacity, "?");
  else
    snprintf(out, capacity, "%s:%s", host, port);
}

static void watch_listener(http_server_t* server, uint32_t interest) {
  struct epoll_event event = {.events = interest, .data.ptr = &server->listener};
  if (server->listener >= 0)
    (void)epoll_ctl(server->epoll, EPOLL_CTL_MOD, server->listener, &event);
}

/* Takes the next client as `incoming`. Returns 0, or an errno. */
static int take_client(http_server_t* server, struct sockaddr* address, socklen_t* size) {
  accrt_http_forks_hold();
  server->incoming = accept4(server->listener, address, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  const int error = server->incoming < 0 ? errno : 0;
  accrt_http_forks_let();
  return error;
}

static void refuse_client(http_server_t* server) {
  char answer[256];
  const int size = snprintf(answer, sizeof answer,
                            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: %u\r\n"
                            "Content-Length: 0\r\nConnection: close\r\n\r\n",
                            server->retry_after_s);
  (void)send(server->incoming, answer, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT);
  ++server->metrics.refused;
  ++server->metrics.answers[5];
  accrt_http_forks_close(&server->incoming);
}

void accrt_http_keep_spare(http_server_t* server) {
  accrt_http_forks_hold();
  if (server->spare < 0)
    server->spare = fcntl(server->wake, F_DUPFD_CLOEXEC, 0);
  accrt_http_forks_let();
}

/* No descriptor is left for a client: it gets the spare one, and 503. Returns 0, or an errno:
 * EAGAIN where none waits, which Linux does not say without a descriptor. */
static int refuse_with_spare(http_server_t* server) {
  if (server->spare < 0)
    return EMFILE;
  accrt_http_forks_close(&server->spare);
  const int error = take_client(server, NULL, NULL);
  if (error == 0)
    refuse_client(server);
  accrt_http_keep_spare(server);
  return error;
}

static void accept_clients(http_server_t* server) {
  accrt_http_keep_spare(server);
  for (uint32_t i = 0; i < ACCEPTS_AT_ONCE; ++i) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    int error = take_client(server, (struct sockaddr*)&address, &size);
    if (error == EMFILE || error == ENFILE)
      error = refuse_with_spare(server);
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
      server->accept_again_ns = server->now_ns + accept_pause_ns;
      watch_listener(server, 0);
    }
    if (error != 0 && error != EINTR && error != ECONNABORTED)
      return;
    if (server->incoming < 0)
      continue;
    if (server->connection_count >= server->max_connections) {
      refuse_client(server);
      continue;
    }
    char peer[64];
    name_peer((struct sockaddr*)&address, size, peer, sizeof peer);
    accrt_http_connection_open(server, peer);
  }
}

/* ---- Turns ---- */

/* Each connection once: one that has sent many requests at once gets its next answer in the next
 * turn, after the others. */
static void settle_dirty(http_server_t* server) {
  http_connection_t* list = server->dirty;
  server->dirty = NULL;
  while (list != NULL) {
    http_connection_t* c = list;
    list = c->next_dirty;
    c->next_dirty = NULL;
    c->dirty = 0;
    accrt_http_connection_settle(c);
  }
}

/* Those that are still in the list of the next turn stay for it. */
static void free_dead(http_server_t* server) {
  http_connection_t* list = server->dead;
  server->dead = NULL;
  while (list != NULL) {
    http_connection_t* c = list;
    list = c->next;
    if (c->dirty != 0) {
      c->next = server->dead;
      server->dead = c;
    } else {
      accrt_http_connection_free(c);
    }
  }
}

static void expire(http_server_t* server) {
  if (server->accept_again_ns != 0 && server->now_ns >= server->accept_again_ns) {
    server->accept_again_ns = 0;
    accrt_http_keep_spare(server);
    watch_listener(server, EPOLLIN);
  }
  if (server->now_ns < server->next_deadline_ns)
    return;
  server->next_deadline_ns = UINT64_MAX;
  for (http_connection_t *c = server->connections, *next = NULL; c != NULL; c = next) {
    next = c->next;
    if (server->now_ns >= c->deadline_ns)
      accrt_http_connection_late(c);
    else if (c->deadline_ns < server->next_deadline_ns)
      server->next_deadline_ns = c->deadline_ns;
  }
}

/* No new clients, and none that have asked for nothing. */
static void stop_listening(http_server_t* server) {
  if (server->listener < 0)
    return;
  (void)epoll_ctl(server->epoll, EPOLL_CTL_DEL, server->listener, NULL);
  accrt_http_forks_close(&server->listener);
  server->accept_again_ns = 0;
  for (http_connection_t *c = server->connections, *next = NULL; c != NULL; c = next) {
    next = c->next;
    if (c->phase == HTTP_READING && c->begun == 0)
      accrt_http_connection_close(c);
  }
}

static void cut(http_server_t* server) {
  for (http_connection_t *c = server->connections, *next = NULL; c != NULL; c = next) {
    next = c->next;
    accrt_http_connection_abort(c);
  }
}

static void say_ended(http_server_t* server) {
  accrt_http_show_metrics(server); /* with what was cut off */
  accsv_lock(&server->lock);
  server->ended = 1;
  pthread_cond_broadcast(&server->changed);
  accsv_unlock(&server->lock);
}

/* 1: the thread may end. */
static uint32_t wind_down(http_server_t* server) {
  if (atomic_load(&server->draining) == 0)
    return 0;
  stop_listening(server);
  if (atomic_load(&server->cutting) != 0)
    cut(server);
  free_dead(server);
  if (server->connection_count > 0 || server->dirty != NULL)
    return 0;
  say_ended(server);
  if (atomic_load(&server->stopping) == 0)
    return 0;
  if (server->end_by_ns == 0)
    server->end_by_ns = server->now_ns + end_limit_ns;
  accsv_lock(&server->lock);
  const uint32_t alive = server->jobs_alive;
  accsv_unlock(&server->lock);
  return (alive == 0 && atomic_load(&server->flights) == 0) || server->now_ns >= server->end_by_ns;
}

static int wait_ms(const http_server_t* server) {
  if (server->dirty != NULL)
    return 0;
  uint64_t until = server->next_deadline_ns;
  if (server->accept_again_ns != 0 && server->accept_again_ns < until)
    until = server->accept_again_ns;
  if (server->end_by_ns != 0 && server->end_by_ns < until)
    until = server->end_by_ns;
  if (until == UINT64_MAX)
    return -1;
  if (until <= server->now_ns)
    return 0;
  const uint64_t milliseconds = (until - server->now_ns) / 1000000 + 1;
  return milliseconds > 3600000 ? 3600000 : (int)milliseconds;
}

static void take_ready(http_server_t* server, const struct epoll_event* event) {
  if (event->data.ptr == &server->listener) {
    accept_clients(server);
  } else if (event->data.ptr == &server->wake) {
    uint64_t count = 0;
    (void)!read(server->wake, &count, sizeof count);
    accrt_http_inbox(server);
  } else if (event->data.ptr == &server->engine) {
    accrt_http_events(server);
  } else {
    accrt_http_connection_ready(event->data.ptr, event->events);
  }
}

void* accrt_http_loop(void* pointer) {
  http_server_t* server = pointer;
  struct epoll_event ready[READY];
  for (;;) {
    const int count = epoll_wait(server->epoll, ready, READY, wait_ms(server));
    server->now_ns = accrt_serve_now_ns();
    for (int i = 0; i < count; ++i)
      take_ready(server, &ready[i]);
    settle_dirty(server);
    expire(server);
    settle_dirty(server);
    accrt_http_show_metrics(server);
    if (wind_down(server))
      break;
    free_dead(server);
  }
  return NULL;
}
