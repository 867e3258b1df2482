/* tests/aborts.h - runs code that must abort, in a child, for tests of assertions. It may not
 * include anything of the library. Include cmocka.h before it. */
#ifndef ACCRT_TESTS_ABORTS_H_
#define ACCRT_TESTS_ABORTS_H_

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `body` in a child. `text` gets its output. True when it aborted. */
static inline bool aborts(void (*body)(void), char* text, size_t capacity) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  (void)fflush(NULL);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    (void)signal(SIGABRT, SIG_DFL);
    (void)dup2(ends[1], STDERR_FILENO);
    body();
    _exit(0);
  }
  (void)close(ends[1]);
  size_t length = 0;
  for (ssize_t got; length + 1 < capacity; length += (size_t)got) {
    got = read(ends[0], text + length, capacity - 1 - length);
    if (got <= 0)
      break;
  }
  text[length] = '\0';
  (void)close(ends[0]);
  int how;
  assert_int_equal(waitpid(child, &how, 0), child);
  return WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT;
}

#endif /* ACCRT_TESTS_ABORTS_H_ */
