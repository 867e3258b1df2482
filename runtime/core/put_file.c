/* runtime/core/put_file.c - writes files so that they appear whole. See put_file.h. */
#define _GNU_SOURCE
#include "runtime/core/put_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PART ".part"
#define MAX_TRIES 100u
#define MAX_LINKS 40 /* as Linux has it */
#define PATH_BYTES 4096u

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

/* Opens the folder of a path that begins at `base`. Both names are used relative to this
 * descriptor, so a later rename of the folder does no harm. */
static int open_folder(accrt_put_t* put, int base, const char* path) {
  char folder[PATH_BYTES];
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
  put->folder = openat(base, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (put->folder < 0 && errno == EACCES)
    put->folder = openat(base, folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  return put->folder >= 0 ? 0 : errno;
}

/* The number that names a descriptor in a folder of procfs, as in /proc/self/fd. -1: it is none. */
static int descriptor_of(const accrt_put_t* put) {
  struct statfs facts;
  int number = 0;
  for (const char* at = put->name; *at != '\0'; ++at) {
    if (*at < '0' || *at > '9' || number > INT_MAX / 10 - 1)
      return -1;
    number = 10 * number + (*at - '0');
  }
  return fstatfs(put->folder, &facts) == 0 && facts.f_type == PROC_SUPER_MAGIC ? number : -1;
}

/* Follows links one at a time: the last one tells whether the file is an open one, and it may lead
 * nowhere, where the descriptor is closed. */
static int descriptor_behind(const accrt_put_t* put) {
  char text[PATH_BYTES];
  accrt_put_t at = *put;
  int number = descriptor_of(&at);
  for (int links = 0; links < MAX_LINKS && number < 0; ++links) {
    const int base = at.folder;
    const ssize_t length = readlinkat(base, at.name, text, sizeof text - 1);
    if (length < 0)
      break;
    text[length] = '\0';
    at.folder = -1;
    const int error = open_folder(&at, base, text);
    if (base != put->folder)
      (void)close(base);
    if (error != 0)
      return -1;
    number = descriptor_of(&at);
  }
  if (at.folder != put->folder)
    (void)close(at.folder);
  return number;
}

int accrt_put_descriptor(const char* path) {
  accrt_put_t put;
  if (open_folder(&put, AT_FDCWD, path) != 0)
    return -1;
  const int number = descriptor_behind(&put);
  (void)close(put.folder);
  return number;
}

/* Root who writes to /dev/null means the device, and the machine needs it there. */
static int check_name(const accrt_put_t* put) {
  struct stat facts;
  if (descriptor_behind(put) >= 0)
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
  int error = open_folder(put, AT_FDCWD, path);
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
