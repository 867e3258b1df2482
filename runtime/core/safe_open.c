/* runtime/core/safe_open.c - opens files and libraries that an attacker may have replaced. It may
 * not allocate. */
#define _GNU_SOURCE
#include "runtime/core/safe_open.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/core/elf_check.h"
#include "runtime/core/error.h"

/* For internal functions with the public prefix: the record names the public function. */
#define FAIL_INNER_ERRNO(name, error, ...)                                                         \
  accrt_error_fail_errno(ACCRT_PLACE(ACCRT_ERROR_##name), (error), __VA_ARGS__)

_Static_assert(ACCRT_PATH_BYTES >= PATH_MAX, "realpath needs it");

/* ---- Files ---- */

int accrt_open_at(int folder, const char* path, int flags, mode_t mode) {
  int fd;
  do {
    fd = openat(folder, path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

int accrt_open_file(int folder, const char* path, int flags, struct stat* out_facts) {
  struct stat facts;
  const int fd = accrt_open_at(folder, path, O_RDONLY | flags, 0);
  if (fd < 0)
    return -1;
  int error = fstat(fd, &facts) != 0 ? errno : 0;
  if (error == 0 && !S_ISREG(facts.st_mode))
    error = S_ISDIR(facts.st_mode) ? EISDIR : EINVAL;
  if (error != 0) {
    close(fd);
    errno = error;
    return -1;
  }
  if (out_facts != NULL)
    *out_facts = facts;
  return fd;
}

/* ---- This library's own file ---- */

bool accrt_own_path(char path[ACCRT_PATH_BYTES]) {
  Dl_info self;
  struct link_map* map = NULL;
  if (dladdr1((const void*)(uintptr_t)&accrt_own_path, &self, (void**)&map, RTLD_DL_LINKMAP) != 0 &&
      map != NULL && map->l_name != NULL && map->l_name[0] != '\0') {
    const size_t length = strlen(map->l_name);
    if (map->l_name[0] != '/' || length >= ACCRT_PATH_BYTES)
      return false;
    memcpy(path, map->l_name, length + 1);
    return true;
  }
  /* The library is part of the program. Its caller can choose the program's name, so ask the system
   * for the path. */
  const ssize_t length = readlinkat(AT_FDCWD, "/proc/self/exe", path, ACCRT_PATH_BYTES - 1);
  if (length <= 0 || path[0] != '/')
    return false;
  path[length] = '\0';
  return true;
}

/* ---- Checks of owner and mode ---- */

/* A user who can change this library's file already controls this process. */
static bool owns_library(uid_t owner) {
  char path[ACCRT_PATH_BYTES];
  struct stat facts;
  return accrt_own_path(path) && fstatat(AT_FDCWD, path, &facts, 0) == 0 && facts.st_uid == owner;
}

static bool is_trusted(uid_t owner) {
  return owner == 0 || owner == geteuid() || owns_library(owner);
}

bool accrt_strict_facts(const struct stat* facts) {
  return (facts->st_mode & 022) == 0 && is_trusted(facts->st_uid);
}

/* `path`: the caller's path; `part`: the part of it to check. */
static accrt_status_t check_part(const char* path, const char* part, bool sticky_is_good) {
  struct stat facts;
  if (fstatat(AT_FDCWD, part, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT || errno == ENOTDIR
               ? ACCRT_FAIL_ERRNO(NOT_FOUND, errno, "%s: no such file", path)
               : ACCRT_FAIL_ERRNO(IO, errno, "%s: %s", path, strerror(errno));
  }
  if (!is_trusted(facts.st_uid)) {
    return ACCRT_FAIL(PERMISSION_DENIED,
                      "%s: %s belongs to user %u, who is neither root nor you (%u)", path, part,
                      (unsigned)facts.st_uid, (unsigned)geteuid());
  }
  /* A link's own mode has no meaning. In a sticky folder only the owner of a file, who was checked
   * above, can rename it. */
  if (S_ISLNK(facts.st_mode) || (facts.st_mode & 022) == 0 ||
      (sticky_is_good && S_ISDIR(facts.st_mode) && (facts.st_mode & S_ISVTX) != 0))
    return ACCRT_OK;
  return ACCRT_FAIL(PERMISSION_DENIED,
                    "%s: others may write to %s (mode %04o); chmod go-w it first", path, part,
                    (unsigned)(facts.st_mode & 07777));
}

/* Checks an absolute path and every folder above it. */
static accrt_status_t check_upwards(const char* path, const char* absolute,
                                    accrt_strict_kind_t kind) {
  char part[ACCRT_PATH_BYTES];
  size_t length = strlen(absolute);
  if (length >= sizeof part)
    return ACCRT_FAIL_ERRNO(IO, ENAMETOOLONG, "%.80s...: the path is too long", path);
  memcpy(part, absolute, length + 1);
  while (length > 1 && part[length - 1] == '/')
    part[--length] = '\0';
  for (bool leaf = true;; leaf = false) {
    const accrt_status_t status = check_part(path, part, !leaf || kind == ACCRT_STRICT_FILE);
    if (status != ACCRT_OK || length <= 1)
      return status;
    while (length > 1 && part[length - 1] != '/')
      --length;
    while (length > 1 && part[length - 1] == '/')
      --length;
    part[length] = '\0';
  }
}

accrt_status_t accrt_strict_path(const char* path, accrt_strict_kind_t kind, char* out_resolved) {
  char resolved[ACCRT_PATH_BYTES];
  if (realpath(path, resolved) == NULL) {
    return errno == ENOENT || errno == ENOTDIR
               ? FAIL_INNER_ERRNO(NOT_FOUND, errno, "%.4000s: no such file", path)
               : FAIL_INNER_ERRNO(IO, errno, "%.4000s: %s", path, strerror(errno));
  }
  /* Check the folders that contain the path's links, and the folders of the links' targets. */
  accrt_status_t status = path[0] == '/' ? check_upwards(path, path, kind) : ACCRT_OK;
  if (status == ACCRT_OK)
    status = check_upwards(path, resolved, kind);
  if (status == ACCRT_OK && out_resolved != NULL)
    memcpy(out_resolved, resolved, strlen(resolved) + 1);
  return status;
}

/* ---- Libraries ---- */

/* The loader would look here for the library: `below` is its name, or a folder of variants. */
static bool is_below(const char* folder, int length, const char* below) {
  char path[ACCRT_PATH_BYTES];
  const int written =
      snprintf(path, sizeof path, "%.*s%s%s", length, folder, length > 0 ? "/" : "", below);
  return written >= (int)sizeof path || access(path, F_OK) == 0;
}

/* The loader believes LD_LIBRARY_PATH, also where it leads to the current folder, or to one that
 * others may write to. A constructor would run before the library could be checked. */
accrt_status_t accrt_library_search(const char* name) {
  const char* at = getenv("LD_LIBRARY_PATH");
  if (at == NULL || at[0] == '\0')
    return ACCRT_OK;
  for (;; ++at) {
    const int length = (int)strcspn(at, ":;");
    if (is_below(at, length, name) || is_below(at, length, "glibc-hwcaps") ||
        is_below(at, length, "tls")) {
      char folder[ACCRT_PATH_BYTES];
      if (at[0] != '/' || length >= (int)sizeof folder) {
        return ACCRT_FAIL(PERMISSION_DENIED,
                          "%s: LD_LIBRARY_PATH has the folder '%.*s', which is no absolute "
                          "path, and the library would be opened there",
                          name, length, at);
      }
      memcpy(folder, at, (size_t)length);
      folder[length] = '\0';
      ACCRT_TRY(accrt_strict_path(folder, ACCRT_STRICT_FOLDER, NULL));
    }
    at += length;
    if (*at == '\0')
      return ACCRT_OK;
  }
}

/* What dlopen cannot be asked about: it would wait for a FIFO, and end the process for a file that
 * is cut. */
static accrt_status_t check_object(const char* name, const char* resolved) {
  struct stat facts;
  accrt_image_fault_t fault;
  const int fd = accrt_open_file(AT_FDCWD, resolved, 0, &facts);
  if (fd < 0)
    return ACCRT_FAIL(NOT_FOUND, "%s: not a regular file, or not readable", name);
  const bool good = accrt_elf_check_file(fd, (uint64_t)facts.st_size, &fault);
  close(fd);
  return good ? ACCRT_OK : ACCRT_FAIL(INVALID_FORMAT, "%s: %s", name, fault.text);
}

accrt_status_t accrt_library_open(const char* name, accrt_library_name_t names,
                                  void** out_library) {
  char resolved[ACCRT_PATH_BYTES];
  const bool soname =
      names == ACCRT_LIBRARY_PATH_OR_SONAME && name[0] != '\0' && strchr(name, '/') == NULL;
  *out_library = NULL;
  if (!soname) {
    if (name[0] != '/') {
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "%.4000s: a library is opened by an absolute path%s, and this is none",
                        name, names == ACCRT_LIBRARY_PATH ? "" : " or a name without slashes");
    }
    ACCRT_TRY(accrt_strict_path(name, ACCRT_STRICT_FILE, resolved));
    ACCRT_TRY(check_object(name, resolved));
  }
  const char* found = soname ? name : resolved;
  if (soname)
    *out_library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (*out_library != NULL)
    return ACCRT_OK;
  if (soname)
    ACCRT_TRY(accrt_library_search(name));
  *out_library = dlopen(found, RTLD_NOW | RTLD_LOCAL);
  if (*out_library != NULL)
    return ACCRT_OK;
  const char* why = dlerror(); /* the loader's message often contains the path already */
  const bool says_path = why != NULL && strncmp(why, found, strlen(found)) == 0;
  return ACCRT_FAIL(NOT_FOUND, "%s%s%s", says_path ? "" : name, says_path ? "" : ": ",
                    why != NULL ? why : "could not be opened");
}
