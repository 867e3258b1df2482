/* tools/accx/whole.c - writes files that appear whole. The signal handler only removes temporary
 * files, and raises the signal again. It only reads data that is complete before it can run. */
#include "whole.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/core/put_file.h"
#include "term.h"

/* Newest first. A file is in the list before it is created. */
typedef struct whole {
  struct whole* next;
  const char* path;
  accrt_put_t put;
} whole_t;

static _Atomic(whole_t*) wholes;

static void take_away(void) {
  for (whole_t* whole = atomic_load(&wholes); whole; whole = whole->next)
    accrt_put_drop(&whole->put);
}

static void interrupted(int number) {
  static const char line[] = "\r\x1b[K";
  take_away();
  if (isatty(STDERR_FILENO))
    (void)!write(STDERR_FILENO, line, sizeof line - 1);
  /* The handler was for one signal. Now the signal ends the program, as the parent process
   * expects. */
  (void)raise(number);
}

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

static void watch_signals(void) {
  struct sigaction old, action;
  memset(&action, 0, sizeof action);
  action.sa_handler = interrupted;
  action.sa_flags = (int)(SA_RESETHAND | SA_NODEFER);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
      (void)sigaction(numbers[i], &action, NULL);
  }
  (void)signal(SIGXFSZ, SIG_IGN); /* exceeding a size limit becomes a failed write */
}

/* A signal between the creation of the file and its entry in `put` would leave the file: it waits.
 */
static int begin(whole_t* whole) {
  sigset_t all, before;
  (void)sigemptyset(&all);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    (void)sigaddset(&all, numbers[i]);
  (void)sigprocmask(SIG_BLOCK, &all, &before);
  const int error = accrt_put_begin(&whole->put, whole->path, "", 0666, ACCRT_PUT_OF_NAME);
  (void)sigprocmask(SIG_SETMASK, &before, NULL);
  return error;
}

static int fail(const whole_t* whole, int error) {
  return accx_fail(ACCX_FAILED, "%s: %s", accx_safe(whole->path), accrt_put_text(error));
}

int accx_whole_write(accrt_bundle_writer_t* writer, const char* path, const int* reported_code) {
  whole_t* whole = accx_alloc(1, sizeof *whole);
  whole->path = accx_text("%s", path);
  whole->put = (accrt_put_t)ACCRT_PUT_INIT;
  whole->next = atomic_load(&wholes);
  atomic_store(&wholes, whole);
  watch_signals();
  const int error = begin(whole);
  if (error)
    return fail(whole, error);
  const accrt_status_t status = accrt_bundle_writer_write_fd(writer, whole->put.fd);
  accx_progress_clear();
  if (status != ACCRT_OK && *reported_code)
    return *reported_code;
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", accx_safe(path));
  return ACCX_OK;
}

int accx_whole_finish(int code) {
  for (whole_t* whole = atomic_load(&wholes); whole && !code; whole = whole->next) {
    const int error = accrt_put_end(&whole->put, false);
    if (error)
      code = fail(whole, error);
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
