/* tests/python/killed.c - loaded before a process (LD_PRELOAD) that is to be killed in the middle
 * of writing a file: at the call with the number KILLED_AT, counted from the first new file
 * (O_EXCL) on, before it (even) or after it (odd) is made. The calls that were counted are written
 * to the file that KILLED_LOG names, if the process comes to its end.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

atomic_int moments = -1; /* so far; -1: no file is being made */
static int at = -1;

__attribute__((constructor)) static void begin(void) {
  const char* text = getenv("KILLED_AT");
  if (text != NULL)
    at = atoi(text);
}

/* For processes that are forked: their own moment. */
void killed_at(int moment) {
  at = moment;
  atomic_store(&moments, -1);
}

static void moment(void) {
  if (atomic_load(&moments) >= 0 && atomic_fetch_add(&moments, 1) == at)
    (void)kill(getpid(), SIGKILL);
}

__attribute__((destructor)) static void end(void) {
  const char* path = getenv("KILLED_LOG");
  FILE* log = path != NULL ? fopen(path, "we") : NULL;
  if (log != NULL)
    fprintf(log, "%d\n", atomic_load(&moments));
  if (log != NULL)
    fclose(log);
}

#define NEXT(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))
#define AROUND(type, name, parameters, ...)                                                        \
  type name parameters {                                                                           \
    moment();                                                                                      \
    const type result = NEXT(name)(__VA_ARGS__);                                                   \
    moment();                                                                                      \
    return result;                                                                                 \
  }

AROUND(ssize_t, write, (int fd, const void* bytes, size_t size), fd, bytes, size)
AROUND(ssize_t, pwrite, (int fd, const void* bytes, size_t size, off_t offset), fd, bytes, size,
       offset)
AROUND(ssize_t, pwrite64, (int fd, const void* bytes, size_t size, off64_t offset), fd, bytes, size,
       offset)
AROUND(int, fsync, (int fd), fd)
AROUND(int, ftruncate, (int fd, off_t size), fd, size)
AROUND(int, ftruncate64, (int fd, off64_t size), fd, size)
AROUND(int, fchmod, (int fd, mode_t mode), fd, mode)
AROUND(int, flock, (int fd, int operation), fd, operation)
AROUND(int, close, (int fd), fd)
AROUND(int, unlinkat, (int folder, const char* name, int flags), folder, name, flags)
AROUND(int, renameat, (int from, const char* old, int to, const char* name), from, old, to, name)

#define OPEN_AT(name)                                                                              \
  int name(int folder, const char* path, int flags, ...) {                                         \
    va_list list;                                                                                  \
    va_start(list, flags);                                                                         \
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;                         \
    va_end(list);                                                                                  \
    int none = -1;                                                                                 \
    if ((flags & O_EXCL) != 0)                                                                     \
      (void)atomic_compare_exchange_strong(&moments, &none, 0);                                    \
    moment();                                                                                      \
    const int fd = NEXT(name)(folder, path, flags, mode);                                          \
    moment();                                                                                      \
    return fd;                                                                                     \
  }
OPEN_AT(openat)
OPEN_AT(openat64)
