/* serve/http/connection.c - one client: reading its requests, sending their answers, and noticing
 * when it leaves, stalls or dawdles. What is said to it is made elsewhere. */
#include "serve/http/server.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { INPUT_BYTES = 64 * 1024, READS_AT_ONCE = 4, WRITES_AT_ONCE = 4 };
typedef struct accrt_http_job http_job_t;
static const uint64_t linger_ns = 2 * HTTP_SECOND_NS;

static void set(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof value);
}

/* A client whose machine is gone sends no end: the kernel asks for it, and gives up on what is not
 * acknowledged. */
static void set_up(const http_server_t* server, int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(server->stall_timeout_ns / 1000000));
}

void accrt_http_connection_open(http_server_t* server, const char* peer) {
  http_connection_t* c = accrt_http_new(&server->allocator, sizeof *c);
  if (c == NULL) {
    accrt_http_forks_close(&server->incoming);
    return;
  }
  c->server = server;
  snprintf(c->peer, sizeof c->peer, "%s", peer);
  accrt_http_text_init(&c->target, &server->allocator);
  accrt_http_text_init(&c->body, &server->allocator);
  accrt_http_text_init(&c->early, &server->allocator);
  accrt_http_text_init(&c->out, &server->allocator);
  for (uint32_t i = 0; i < HEADER_COUNT; ++i)
    accrt_http_text_init(&c->values[i], &server->allocator);
  set_up(server, server->incoming);
  accrt_http_request_init(c);
  c->next = server->connections;
  accrt_http_forks_hold();
  c->fd = server->incoming;
  server->incoming = -1;
  server->connections = c;
  accrt_http_forks_let();
  if (c->next != NULL)
    c->next->previous = c;
  ++server->connection_count;
  accrt_http_watch(c, EPOLLIN | EPOLLRDHUP);
  accrt_http_deadline(c, server->now_ns + server->idle_timeout_ns);
}

void accrt_http_connection_free(http_connection_t* c) {
  const accrt_allocator_t* allocator = &c->server->allocator;
  accrt_http_request_deinit(c);
  accrt_http_text_deinit(&c->early);
  accrt_http_text_deinit(&c->out);
  accrt_http_free(allocator, c, sizeof *c);
}

/* What its answer takes: what waits to be sent, and what is not written yet. */
static void count_answer(http_connection_t* c) {
  const uint64_t bytes = c->fd < 0 ? 0 : c->out.size + (c->job != NULL ? c->job->unsent_bytes : 0);
  c->server->counted_bytes += bytes - c->answer_bytes;
  c->answer_bytes = bytes;
}

/* For accrt_http_server_counts, which other threads call. An answer that would become too large is
 * ended before its bytes are published: it never holds them. */
static void publish_answers(http_server_t* server) {
  atomic_store(&server->answer_bytes, server->counted_bytes);
}

void accrt_http_connection_close(http_connection_t* c) {
  http_server_t* server = c->server;
  if (c->fd < 0)
    return;
  if (c->job != NULL) {
    ++server->metrics.left;
    /* Whatever its head said. 499: as servers before this one note it. */
    c->status = atomic_load(&server->cutting) != 0 ? 503 : 499;
    accrt_http_log(c);
    accrt_http_job_leave(c->job);
    c->job = NULL;
  }
  /* A process that was made past fork() may have a copy: epoll would go on to report it. */
  if (c->interest != 0)
    (void)epoll_ctl(server->epoll, EPOLL_CTL_DEL, c->fd, NULL);
  accrt_http_forks_hold();
  close(c->fd);
  c->fd = -1;
  if (c->previous != NULL)
    c->previous->next = c->next;
  else
    server->connections = c->next;
  accrt_http_forks_let();
  if (c->next != NULL)
    c->next->previous = c->previous;
  count_answer(c);
  publish_answers(server);
  --server->connection_count;
  c->next = server->dead;
  server->dead = c;
}

void accrt_http_connection_abort(http_connection_t* c) {
  if (c->fd < 0)
    return;
  const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
  (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  accrt_http_connection_close(c);
}

static http_connection_t* largest_answer(const http_server_t* server) {
  http_connection_t* found = NULL;
  for (http_connection_t* c = server->connections; c != NULL; c = c->next)
    if (found == NULL || c->answer_bytes > found->answer_bytes)
      found = c;
  return found;
}

/* A client that has the head of its answer can only be cut off. */
static void end_large(http_connection_t* c) {
  http_server_t* server = c->server;
  http_job_t* job = c->job;
  if (job == NULL || job->head_sent != 0) {
    ++server->metrics.stalled;
    accrt_http_connection_abort(c);
    return;
  }
  char message[160];
  const uint32_t alone = c->answer_bytes > server->max_held_bytes / 2;
  snprintf(message, sizeof message,
           alone
               ? "The answer has more than %llu bytes: ask for fewer choices or log probabilities "
                 "in one request, or for a stream."
               : "The server holds more than %llu bytes of answers.",
           (unsigned long long)(alone ? server->max_held_bytes / 2 : server->max_held_bytes));
  const http_failure_t failure = {.status = alone ? 400 : 503,
                                  .code = alone ? "answer_too_large" : "overloaded",
                                  .message = message};
  ++server->metrics.ended[HTTP_ENDED_ABORT];
  accrt_http_answer_failure(c, &failure);
  if (c->job == job) /* an aborted connection has left it already */
    accrt_http_job_finish(job);
  count_answer(c);
}

void accrt_http_connection_grew(http_connection_t* c) {
  http_server_t* server = c->server;
  count_answer(c);
  while (server->counted_bytes > server->max_held_bytes) {
    http_connection_t* largest = largest_answer(server);
    if (largest == NULL)
      break;
    const uint64_t before = largest->answer_bytes;
    end_large(largest);
    if (largest->fd >= 0 && largest->answer_bytes >= before) /* no answer can be smaller */
      break;
  }
  publish_answers(server);
}

void accrt_http_connection_touch(http_connection_t* c) {
  if (c->dirty != 0)
    return;
  c->dirty = 1;
  c->next_dirty = c->server->dirty;
  c->server->dirty = c;
}

/* ---- Reading ---- */

static void take(http_connection_t* c, const char* bytes, size_t size) {
  const uint32_t begun = c->begun;
  accrt_http_request_feed(c, bytes, size);
  if (c->complete != 0 || c->refusal.status != 0) {
    c->phase = HTTP_WAITING;
    accrt_http_deadline(c, UINT64_MAX);
    accrt_http_connection_touch(c);
    accrt_http_dispatch(c);
  } else if (begun == 0) {
    accrt_http_deadline(c, c->server->now_ns + c->server->request_timeout_ns);
  }
}

/* Bytes read; 0: none for now; -1: there will be none. */
static ssize_t receive(http_connection_t* c) {
  ssize_t got = 0;
  do
    got = recv(c->fd, c->server->input, INPUT_BYTES, MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  if (got > 0)
    return got;
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
}

static void read_request(http_connection_t* c) {
  for (uint32_t i = 0; i < READS_AT_ONCE && c->phase == HTTP_READING; ++i) {
    const ssize_t got = receive(c);
    if (got < 0)
      accrt_http_connection_close(c);
    if (got <= 0)
      return;
    take(c, c->server->input, (size_t)got);
    if (got < INPUT_BYTES)
      return;
  }
}

static void read_nothing(http_connection_t* c) {
  for (uint32_t i = 0; i < READS_AT_ONCE; ++i) {
    const ssize_t got = receive(c);
    if (got < 0)
      accrt_http_connection_close(c);
    if (got <= 0)
      return;
  }
}

void accrt_http_connection_ready(http_connection_t* c, uint32_t events) {
  if (c->fd < 0)
    return;
  if ((events & EPOLLIN) != 0 && c->phase == HTTP_READING) {
    read_request(c);
    return;
  }
  if ((events & EPOLLIN) != 0 && c->phase == HTTP_LINGERING) {
    read_nothing(c);
    return;
  }
  const uint32_t ends =
      c->phase == HTTP_WAITING ? EPOLLRDHUP | EPOLLHUP | EPOLLERR : EPOLLHUP | EPOLLERR;
  if ((events & ends) != 0)
    accrt_http_connection_close(c);
  else
    accrt_http_connection_touch(c);
}

/* ---- Sending ---- */

/* Sends what the socket takes. 0 if the connection is closed now. */
static uint32_t send_some(http_connection_t* c) {
  while (accrt_http_backlog(c) > 0) {
    const ssize_t done =
        send(c->fd, c->out.data + c->sent, accrt_http_backlog(c), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done < 0 && errno == EINTR)
      continue;
    if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      break;
    if (done <= 0) {
      accrt_http_connection_close(c);
      return 0;
    }
    c->sent += (size_t)done;
    c->stalled_ns = 0;
  }
  if (accrt_http_backlog(c) == 0) {
    accrt_http_text_clear(&c->out);
    c->sent = 0;
    c->stalled_ns = 0;
  } else if (c->sent > c->out.size / 2) {
    accrt_http_text_drop(&c->out, c->sent);
    c->sent = 0;
  }
  return 1;
}

/* The request is answered: the next one, or the end. */
static void next_request(http_connection_t* c) {
  http_server_t* server = c->server;
  count_answer(c);
  publish_answers(server);
  if (c->keep == 0) {
    if (c->complete != 0 && c->early.size == 0) {
      accrt_http_connection_close(c);
      return;
    }
    (void)shutdown(c->fd, SHUT_WR);
    c->phase = HTTP_LINGERING;
    accrt_http_watch(c, EPOLLIN);
    accrt_http_deadline(c, server->now_ns + linger_ns);
    return;
  }
  accrt_http_request_init(c);
  c->phase = HTTP_READING;
  accrt_http_watch(c, EPOLLIN | EPOLLRDHUP);
  accrt_http_deadline(c, server->now_ns + server->idle_timeout_ns);
  if (c->early.size == 0) {
    if (server->draining != 0)
      accrt_http_connection_close(c);
    return;
  }
  http_text_t early;
  accrt_http_text_init(&early, &server->allocator);
  accrt_http_text_move(&early, &c->early);
  take(c, early.data, early.size);
  accrt_http_text_deinit(&early);
}

/* What a client leaves unread is bounded in size and in time. */
static void watch_slow(http_connection_t* c) {
  http_server_t* server = c->server;
  const uint32_t is_stream = c->phase == HTTP_WAITING && c->job != NULL && c->job->head_sent != 0;
  /* Some of it comes all at once, however fast the client reads. */
  if (is_stream && accrt_http_backlog(c) + c->job->unsent_bytes >
                       server->max_output_bytes + c->job->burst_bytes) {
    ++server->metrics.stalled;
    accrt_http_connection_abort(c);
    return;
  }
  if (c->stalled_ns == 0)
    c->stalled_ns = server->now_ns;
  accrt_http_deadline(c, c->stalled_ns + server->stall_timeout_ns);
  accrt_http_watch(c, EPOLLOUT | (c->phase == HTTP_WAITING ? EPOLLRDHUP : 0));
}

/* Writes and sends what a stream has held back, as far as the client takes it; some of it, so that
 * others have their turn. 1: there may be more. */
static uint32_t resume(http_connection_t* c) {
  for (uint32_t i = 0; i < WRITES_AT_ONCE; ++i) {
    if (accrt_http_backlog(c) >= HTTP_RESUME_BYTES || c->phase != HTTP_WAITING || c->job == NULL ||
        accrt_http_stream_resume(c->job) == 0)
      return 0;
    if (c->out.failed != 0)
      accrt_http_connection_abort(c);
    if (c->fd < 0 || !send_some(c))
      return 0;
  }
  return 1;
}

/* Sends, and goes on with what can be. */
static void settle(http_connection_t* c) {
  if (!send_some(c) || c->phase == HTTP_READING || c->phase == HTTP_LINGERING)
    return;
  const uint32_t more = resume(c);
  if (c->fd < 0)
    return;
  if (accrt_http_backlog(c) > 0) {
    watch_slow(c);
    return;
  }
  if (c->phase == HTTP_SENDING) {
    next_request(c);
  } else if (c->phase == HTTP_WAITING) {
    accrt_http_watch(c, EPOLLRDHUP | (more != 0 ? EPOLLOUT : 0));
    accrt_http_deadline(c, UINT64_MAX);
  }
}

void accrt_http_connection_settle(http_connection_t* c) {
  if (c->fd < 0)
    return;
  if (c->out.failed != 0) {
    accrt_http_connection_abort(c);
    return;
  }
  settle(c);
  if (c->job == NULL || c->job->settled != 0) /* else a worker may count there */
    accrt_http_connection_grew(c);
}

void accrt_http_connection_late(http_connection_t* c) {
  if (c->phase == HTTP_READING && c->begun != 0) {
    c->keep = 0;
    accrt_http_refuse(c, 408, "request_timeout", "The request did not arrive in time.");
    c->phase = HTTP_WAITING;
    accrt_http_deadline(c, UINT64_MAX);
    accrt_http_connection_touch(c);
    accrt_http_dispatch(c);
    return;
  }
  if (c->stalled_ns != 0 && accrt_http_backlog(c) > 0) {
    ++c->server->metrics.stalled;
    accrt_http_connection_abort(c);
    return;
  }
  accrt_http_connection_close(c);
}
