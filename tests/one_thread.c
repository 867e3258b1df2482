/* one_thread.c - linked into tests that start no second thread (tests/one_thread.txt). It takes the
 * place of what starts one, or another program, in the test and in the libraries that it uses. So a
 * test that begins to use threads fails wherever it runs, until its name is off the list. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>
#include <unistd.h>

static _Noreturn void refuse(const char* what) {
  (void)fprintf(stderr,
                "%s: this test stands in tests/one_thread.txt, which `./dev check tsan` leaves "
                "out: take it off that list\n",
                what);
  abort();
}

int pthread_create(pthread_t* restrict thread, const pthread_attr_t* restrict attributes,
                   void* (*run)(void*), void* restrict user) {
  (void)thread, (void)attributes, (void)run, (void)user;
  refuse("pthread_create");
}

int thrd_create(thrd_t* thread, thrd_start_t run, void* user) {
  (void)thread, (void)run, (void)user;
  refuse("thrd_create");
}

int clone(int (*run)(void* user), void* stack, int flags, void* user, ...) {
  (void)run, (void)stack, (void)flags, (void)user;
  refuse("clone");
}

int execve(const char* path, char* const arguments[], char* const environment[]) {
  (void)path, (void)arguments, (void)environment;
  refuse("execve");
}

int execl(const char* path, const char* argument, ...) {
  (void)path, (void)argument;
  refuse("execl");
}

int execlp(const char* file, const char* argument, ...) {
  (void)file, (void)argument;
  refuse("execlp");
}

int execle(const char* path, const char* argument, ...) {
  (void)path, (void)argument;
  refuse("execle");
}

int execv(const char* path, char* const arguments[]) {
  (void)path, (void)arguments;
  refuse("execv");
}

int execvp(const char* file, char* const arguments[]) {
  (void)file, (void)arguments;
  refuse("execvp");
}

int execvpe(const char* file, char* const arguments[], char* const environment[]) {
  (void)file, (void)arguments, (void)environment;
  refuse("execvpe");
}

int fexecve(int fd, char* const arguments[], char* const environment[]) {
  (void)fd, (void)arguments, (void)environment;
  refuse("fexecve");
}

int posix_spawn(pid_t* restrict pid, const char* restrict path,
                const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* restrict attributes, char* const arguments[restrict],
                char* const environment[restrict]) {
  (void)pid, (void)path, (void)actions, (void)attributes, (void)arguments, (void)environment;
  refuse("posix_spawn");
}

int posix_spawnp(pid_t* restrict pid, const char* restrict file,
                 const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* restrict attributes, char* const arguments[restrict],
                 char* const environment[restrict]) {
  (void)pid, (void)file, (void)actions, (void)attributes, (void)arguments, (void)environment;
  refuse("posix_spawnp");
}

int system(const char* command) {
  (void)command;
  refuse("system");
}

FILE* popen(const char* command, const char* mode) {
  (void)command, (void)mode;
  refuse("popen");
}
