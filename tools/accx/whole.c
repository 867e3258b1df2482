/* tools/accx/whole.c - files that appear when they are whole. The signal handler only takes files away and lets the signal do its
 * work; it reads what is written before it can run. */
#include "whole.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "term.h"

/* Newest first; a file is in the list before it is made. */
typedef struct whole {
  struct whole* next;
  const char* path;
  const char* part;
} whole_t;

static _Atomic(whole_t*) wholes;

static void take_away(void) {
  for (const whole_t* whole = atomic_load(&wholes); whole; whole = whole->next)
    (void)unlink(whole->part);
}

static void interrupted(int number) {
  static const char line[] = "\r\x1b[K";
  take_away();
  if (isatty(STDERR_FILENO))
    (void)!write(STDERR_FILENO, line, sizeof line - 1);
  /* The handler was for once: now the signal ends the program, as whoever waits for it expects. */
  (void)raise(number);
}

static void watch_signals(void) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction old, action;
  memset(&action, 0, sizeof action);
  action.sa_handler = interrupted;
  action.sa_flags = (int)(SA_RESETHAND | SA_NODEFER);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
      (void)sigaction(numbers[i], &action, NULL);
  }
  (void)signal(SIGXFSZ, SIG_IGN); /* a limit of sizes is an error of writing */
}

static int fail(const whole_t* whole, int error) {
  return accx_fail(ACCX_FAILED, "%s: %s", accx_safe(whole->path), strerror(error));
}

int accx_whole_write(accrt_bundle_writer_t* writer, const char* path, const int* told) {
  whole_t* whole = accx_alloc(1, sizeof *whole);
  whole->path = accx_text("%s", path);
  whole->part = accx_text("%s.%ld.part", path, (long)getpid());
  whole->next = atomic_load(&wholes);
  atomic_store(&wholes, whole);
  watch_signals();
  const int fd = open(whole->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0)
    return fail(whole, errno);
  const accrt_status_t status = accrt_bundle_writer_write_fd(writer, fd);
  const int error = close(fd) != 0 ? errno : 0;
  accx_progress_clear();
  if (status != ACCRT_OK && *told)
    return *told;
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", accx_safe(path));
  return error ? fail(whole, error) : ACCX_OK;
}

int accx_whole_finish(int code) {
  for (const whole_t* whole = atomic_load(&wholes); whole && !code; whole = whole->next) {
    if (rename(whole->part, whole->path) != 0)
      code = fail(whole, errno);
  }
  if (code)
    take_away();
  while (wholes) {
    whole_t* whole = atomic_load(&wholes);
    atomic_store(&wholes, whole->next);
    free(whole);
  }
  return code;
}
