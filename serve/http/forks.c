/* serve/http/forks.c - a forked child lets go of the sockets of its parent's servers.
 *
 * The child has copies of all descriptors. With them the port would stay taken when the parent has
 * ended, a client would not learn that its answer is whole, and epoll would go on to report a
 * connection that was closed. The child closes them before fork() returns there. So that it finds
 * them, the parent opens, lists and closes them under `lock`, which fork() takes.
 */
#include "serve/http/server.h"

#include <unistd.h>

static accsv_lock_t lock = ACCSV_LOCK_STATIC(ACCRT_LOCK_HTTP_FORKS);
static http_server_t* servers;

static void close_in_child(int32_t* fd) {
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
}

static void before_fork(void) {
  accsv_lock(&lock);
}

static void after_fork(void) {
  accsv_unlock(&lock);
}

static void after_fork_in_child(void) {
  for (http_server_t* server = servers; server != NULL; server = server->next_server) {
    close_in_child(&server->listener);
    close_in_child(&server->incoming);
    close_in_child(&server->epoll);
    close_in_child(&server->spare);
    close_in_child(&server->wake);
    for (http_connection_t* c = server->connections; c != NULL; c = c->next)
      close_in_child(&c->fd);
  }
  servers = NULL;
  accsv_unlock(&lock);
}

/* When the library is loaded, so that this lock is taken after that of serve/handles.c. */
__attribute__((constructor)) static void watch_forks(void) {
  (void)pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

void accrt_http_forks_hold(void) {
  accsv_lock(&lock);
}

void accrt_http_forks_let(void) {
  accsv_unlock(&lock);
}

void accrt_http_forks_assert_held(void) {
  ACCRT_ASSERT_HELD(&lock);
}

void accrt_http_forks_join(http_server_t* server) {
  accsv_lock(&lock);
  server->next_server = servers;
  servers = server;
  accsv_unlock(&lock);
}

void accrt_http_forks_leave(http_server_t* server) {
  accsv_lock(&lock);
  for (http_server_t** at = &servers; *at != NULL; at = &(*at)->next_server) {
    if (*at == server) {
      *at = server->next_server;
      break;
    }
  }
  accsv_unlock(&lock);
}

void accrt_http_forks_close(int32_t* fd) {
  accsv_lock(&lock);
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
  accsv_unlock(&lock);
}
