/* runtime/core/safe_open.h - opening files, folders and libraries that another user may have
 * replaced: by a FIFO, by a link, or through a folder that others may write to.
 *
 * For all of the library: no other part of it calls open, openat or dlopen
 * (tests/python/test_open_paths.py, whose table is in docs/hostile-input.md). It knows no format
 * and no policy.
 */
#ifndef ACCRT_RUNTIME_CORE_SAFE_OPEN_H_
#define ACCRT_RUNTIME_CORE_SAFE_OPEN_H_

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "accrt/base.h"

#define ACCRT_PATH_BYTES 4096u

/* As openat (AT_FDCWD: the current folder), with O_CLOEXEC, O_NONBLOCK and O_NOCTTY: it neither
 * waits for the other end of a FIFO nor gets a terminal. Returns -1 and sets errno on failure. */
int accrt_open_at(int folder, const char* path, int flags, mode_t mode);
/* Opens a regular file for reading, with additional `flags` (O_NOFOLLOW when the name came from a
 * file). Anything else is -1 with EISDIR or EINVAL. `out_facts` may be NULL. */
int accrt_open_file(int folder, const char* path, int flags, struct stat* out_facts);

typedef enum accrt_strict_kind {
  ACCRT_STRICT_FILE,  /* it may be in a sticky folder such as /tmp */
  ACCRT_STRICT_FOLDER /* other users may not create names in it, sticky or not */
} accrt_strict_kind_t;
/* OpenSSH's StrictModes. The file or folder, the target of `path`, and each folder above either
 * must belong to root, to this user or to the owner of this library's file, and no other user may
 * be able to write to them; a folder above may be sticky instead. `out_resolved` (ACCRT_PATH_BYTES,
 * may be NULL) gets the target's path without links. ACCRT_ERROR_PERMISSION_DENIED names the file
 * or folder at fault and its mode. Other errors: ACCRT_ERROR_NOT_FOUND, ACCRT_ERROR_IO. */
accrt_status_t accrt_strict_path(const char* path, accrt_strict_kind_t kind, char* out_resolved);
/* The same check for an open file or folder, without the folders above. True when it passes. */
bool accrt_strict_facts(const struct stat* facts);

typedef enum accrt_library_name {
  ACCRT_LIBRARY_PATH, /* an absolute path */
  /* or a name without slashes, which the system looks for as for any other library */
  ACCRT_LIBRARY_PATH_OR_SONAME
} accrt_library_name_t;
/* Opens a shared library; never by a relative path, and by an absolute one only if
 * accrt_strict_path allows it; by a name never where LD_LIBRARY_PATH has a folder with that library
 * that is no absolute path, or that others may write to. The library is never closed.
 * ACCRT_ERROR_NOT_FOUND, also when the loader refuses the library; ACCRT_ERROR_INVALID_FORMAT for a
 * file that is no shared object of this machine, or is cut; ACCRT_ERROR_INVALID_ARGUMENT for a
 * relative path; ACCRT_ERROR_PERMISSION_DENIED. */
accrt_status_t accrt_library_open(const char* name, accrt_library_name_t names, void** out_library);
/* Whether the system's search for that name is believed: the rule of accrt_library_open, for
 * callers that only ask if a library is there. */
accrt_status_t accrt_library_search(const char* name);
/* The absolute path of the file from which this library (or the program that it is linked into) was
 * loaded. False when the path is relative or unknown. The name with which a program was started is
 * not used, because its caller chooses it. */
bool accrt_own_path(char path[ACCRT_PATH_BYTES]);

#endif /* ACCRT_RUNTIME_CORE_SAFE_OPEN_H_ */
