/* runtime/core/put_file.c - writes files so that they appear whole. See put_file.h. */
#define _GNU_SOURCE
#include "runtime/core/put_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PART ".part"
#define MAX_TRIES 100u

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1u
#endif

/* ---- Leftovers ---- */

/* True for the rest of a temporary file's name behind "NAME": ".PID.NUMBER.part", perhaps with
 * `end`. */
static bool is_part_suffix(const char* at) {
  for (int i = 0; i < 2; ++i) {
    const size_t digits = *at == '.' ? strspn(at + 1, "0123456789") : 0;
    if (digits == 0)
      return false;
    at += 1 + digits;
  }
  return strncmp(at, PART, sizeof PART - 1) == 0;
}

static bool is_part(const char* entry, const char* name, accrt_put_leftovers_t leftovers) {
  const size_t length = strlen(name);
  if (leftovers == ACCRT_PUT_OF_NAME)
    return strncmp(entry, name, length) == 0 && is_part_suffix(entry + length);
  for (const char* at = strchr(entry, '.'); at != NULL; at = strchr(at + 1, '.')) {
    if (is_part_suffix(at))
      return true;
  }
  return false;
}

/* Removes a temporary file if it is a regular file of this user and not locked. Then the process
 * that made it is gone, even if another process has the same id now. */
static void remove_leftover(int folder, const char* entry) {
  struct stat facts;
  const int fd = openat(folder, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0)
    return;
  if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == geteuid() &&
      flock(fd, LOCK_EX | LOCK_NB) == 0)
    (void)unlinkat(folder, entry, 0);
  (void)close(fd);
}

static void remove_leftovers(const accrt_put_t* put, accrt_put_leftovers_t leftovers) {
  const int fd = openat(put->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* entries = fd >= 0 ? fdopendir(fd) : NULL;
  if (entries == NULL) {
    if (fd >= 0)
      (void)close(fd);
    return;
  }
  for (const struct dirent* entry; (entry = readdir(entries)) != NULL;) {
    if (is_part(entry->d_name, put->name, leftovers))
      remove_leftover(put->folder, entry->d_name);
  }
  (void)closedir(entries);
}

/* ---- Creating the temporary file ---- */

/* Opens the folder. Both names are used relative to this descriptor, so a later rename of the
 * folder does no harm. */
static int open_folder(accrt_put_t* put, const char* path) {
  char folder[4096];
  const char* slash = strrchr(path, '/');
  const char* name = slash != NULL ? slash + 1 : path;
  const size_t length = slash != NULL ? (size_t)(slash - path) + (slash == path) : 1;
  if (strlen(name) >= sizeof put->name || length >= sizeof folder)
    return ENAMETOOLONG;
  if (*name == '\0')
    return *path == '\0' ? ENOENT : EISDIR;
  memcpy(put->name, name, strlen(name) + 1);
  memcpy(folder, slash != NULL ? path : ".", length);
  folder[length] = '\0';
  /* In a folder that can be written but not read, leftovers cannot be found. */
  put->folder = openat(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (put->folder < 0 && errno == EACCES)
    put->folder = openat(AT_FDCWD, folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  return put->folder >= 0 ? 0 : errno;
}

/* /dev/stdout, say: a link that says where an open file is, in all processes. */
static bool is_link_to_open_file(const accrt_put_t* put) {
  static const char proc[] = "/proc/";
  char text[sizeof proc];
  return readlinkat(put->folder, put->name, text, sizeof text) == (ssize_t)sizeof text &&
         memcmp(text, proc, sizeof proc - 1) == 0;
}

/* Root who writes to /dev/null means the device, and the machine needs it there. */
static int check_name(const accrt_put_t* put) {
  struct stat facts;
  if (is_link_to_open_file(put))
    return EEXIST;
  if (fstatat(put->folder, put->name, &facts, 0) != 0 || S_ISREG(facts.st_mode))
    return 0;
  return S_ISDIR(facts.st_mode) ? EISDIR : EEXIST;
}

const char* accrt_put_text(int error) {
  return error == EEXIST
             ? "it is a device, a pipe, a socket or an open file, and is not replaced by a file"
             : strerror(error);
}

/* Locks a new file. False when another process took it for a leftover before this lock, and removes
 * it. */
static bool lock_part(const accrt_put_t* put) {
  struct stat facts;
  if (flock(put->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return false;
  return fstat(put->fd, &facts) != 0 || facts.st_nlink > 0;
}

static int make_part(accrt_put_t* put, const char* end, mode_t mode) {
  static atomic_uint counter; /* relaxed: the names only have to differ */
  for (unsigned tries = 0; tries < MAX_TRIES; ++tries) {
    const unsigned number = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
    const int length = snprintf(put->part, sizeof put->part, "%s.%ld.%u" PART "%s", put->name,
                                (long)getpid(), number, end);
    if (length < 0 || (size_t)length >= sizeof put->part)
      return ENAMETOOLONG;
    put->fd =
        openat(put->folder, put->part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (put->fd >= 0 && lock_part(put))
      return 0;
    if (put->fd < 0 && errno != EEXIST)
      return errno;
    if (put->fd >= 0)
      (void)close(put->fd);
    put->fd = -1;
  }
  return EBUSY;
}

static void close_all(accrt_put_t* put) {
  if (put->fd >= 0)
    (void)close(put->fd);
  if (put->folder >= 0)
    (void)close(put->folder);
  put->fd = put->folder = -1;
}

int accrt_put_begin(accrt_put_t* put, const char* path, const char* end, mode_t mode,
                    accrt_put_leftovers_t leftovers) {
  put->folder = put->fd = -1;
  int error = open_folder(put, path);
  if (error == 0 && leftovers == ACCRT_PUT_OF_NAME)
    error = check_name(put);
  if (error == 0) {
    if (leftovers != ACCRT_PUT_OF_NONE)
      remove_leftovers(put, leftovers);
    error = make_part(put, end, mode);
  }
  if (error != 0)
    close_all(put);
  return error;
}

void accrt_put_drop(accrt_put_t* put) {
  const int error = errno;
  if (put->fd >= 0)
    (void)unlinkat(put->folder, put->part, 0);
  close_all(put);
  errno = error;
}

/* ---- Giving it its name ---- */

/* Some file systems cannot rename without replacing. There, an empty file reserves the name
 * first. */
static int rename_new(const accrt_put_t* put) {
  if (syscall(SYS_renameat2, put->folder, put->part, put->folder, put->name, RENAME_NOREPLACE) == 0)
    return 0;
  if (errno != EINVAL && errno != ENOSYS)
    return errno;
  const int fd = openat(put->folder, put->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0)
    return errno;
  (void)close(fd);
  if (renameat(put->folder, put->part, put->folder, put->name) == 0)
    return 0;
  const int error = errno;
  (void)unlinkat(put->folder, put->name, 0);
  return error;
}

int accrt_put_end(accrt_put_t* put, bool new_only) {
  /* only a file whose bytes are on the disk gets the name */
  int error = fsync(put->fd) == 0 ? 0 : errno;
  if (error == 0 && new_only)
    error = rename_new(put);
  else if (error == 0 && renameat(put->folder, put->part, put->folder, put->name) != 0)
    error = errno;
  if (error != 0)
    (void)unlinkat(put->folder, put->part, 0);
  else
    (void)fsync(put->folder); /* a file system without this is no failure: the file exists */
  close_all(put);             /* unlocks last: the temporary name is gone by now */
  return error;
}
