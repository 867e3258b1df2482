/* tests/python/full.c - loaded before a process (LD_PRELOAD): the disk below the folder FULL_FOLDER
 * is full from the call with the number FULL_AT on. Calls that need space are counted: new files,
 * folders and names, writes, syncs. The first write that does not fit writes half. The count goes to
 * the file that FULL_LOG names, when the process ends.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_int calls;
static atomic_bool half_written;
static int at = INT_MAX;
static const char* place;

__attribute__((constructor)) static void begin(void) {
  const char* text = getenv("FULL_AT");
  place = getenv("FULL_FOLDER");
  if (text != NULL)
    at = atoi(text);
}

#define NEXT(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

__attribute__((destructor)) static void end(void) {
  const char* path = getenv("FULL_LOG");
  FILE* log = path != NULL ? fopen(path, "we") : NULL;
  if (log == NULL)
    return;
  fprintf(log, "%d\n", atomic_load(&calls));
  fclose(log);
}

static bool is_below(const char* path) {
  return place != NULL && strncmp(path, place, strlen(place)) == 0;
}

static bool is_there(int folder, const char* path) {
  if (path != NULL && path[0] == '/')
    return is_below(path);
  char link[64], found[PATH_MAX];
  if (folder == AT_FDCWD) {
    return getcwd(found, sizeof found) != NULL && is_below(found);
  }
  snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  const ssize_t length = readlink(link, found, sizeof found - 1);
  found[length > 0 ? length : 0] = '\0';
  return is_below(found);
}

/* True: there is no space for this call. */
static bool is_full(int folder, const char* path) {
  const int before = errno;
  const bool ours = is_there(folder, path);
  errno = before;
  return ours && atomic_fetch_add(&calls, 1) >= at;
}

static int fail(void) {
  errno = ENOSPC;
  return -1;
}

ssize_t write(int fd, const void* bytes, size_t size) {
  if (!is_full(fd, NULL))
    return NEXT(write)(fd, bytes, size);
  if (size > 1 && !atomic_exchange(&half_written, true))
    return NEXT(write)(fd, bytes, size / 2);
  return fail();
}

#define SIMPLE(type, name, parameters, folder, path, ...)                                          \
  type name parameters {                                                                           \
    return is_full(folder, path) ? fail() : NEXT(name)(__VA_ARGS__);                               \
  }

SIMPLE(ssize_t, pwrite, (int fd, const void* bytes, size_t size, off_t offset), fd, NULL, fd, bytes,
       size, offset)
SIMPLE(ssize_t, pwrite64, (int fd, const void* bytes, size_t size, off64_t offset), fd, NULL, fd,
       bytes, size, offset)
SIMPLE(int, fsync, (int fd), fd, NULL, fd)
SIMPLE(int, ftruncate, (int fd, off_t size), fd, NULL, fd, size)
SIMPLE(int, ftruncate64, (int fd, off64_t size), fd, NULL, fd, size)
SIMPLE(int, mkdir, (const char* path, mode_t mode), AT_FDCWD, path, path, mode)
SIMPLE(int, mkdirat, (int folder, const char* path, mode_t mode), folder, path, folder, path, mode)
SIMPLE(int, renameat, (int from, const char* old, int to, const char* name), to, name, from, old,
       to, name)

#define OPEN(name, parameters, folder, ...)                                                        \
  int name parameters {                                                                            \
    va_list list;                                                                                  \
    va_start(list, flags);                                                                         \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;           \
    va_end(list);                                                                                  \
    if ((flags & O_CREAT) != 0 && faccessat(folder, path, F_OK, 0) != 0 && is_full(folder, path))  \
      return fail();                                                                               \
    return NEXT(name)(__VA_ARGS__, mode);                                                          \
  }
OPEN(open, (const char* path, int flags, ...), AT_FDCWD, path, flags)
OPEN(open64, (const char* path, int flags, ...), AT_FDCWD, path, flags)
OPEN(openat, (int folder, const char* path, int flags, ...), folder, folder, path, flags)
OPEN(openat64, (int folder, const char* path, int flags, ...), folder, folder, path, flags)
