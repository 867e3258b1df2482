/* runtime/core/put_file.h - writes files so that they appear whole: created beside their final
 * name, synced, renamed, and the folder synced. After a crash there is the old file or the new one.
 * The next write of that name removes the temporary files of killed processes.
 *
 * For all code that writes files: no other code renames files or makes temporary ones
 * (tests/python/test_whole_files.py). python/accrt/_files.py does the same in Python. It needs only
 * libc, allocates nothing, and does not change the error record.
 */
#ifndef ACCRT_RUNTIME_CORE_PUT_FILE_H_
#define ACCRT_RUNTIME_CORE_PUT_FILE_H_

#include <stdbool.h>
#include <sys/types.h>

#define ACCRT_PUT_NAME_BYTES 256u

/* A file during its creation. Its name is "NAME.PID.NUMBER.part", plus `end`. It is locked (flock),
 * so that other processes see that it is in use. */
typedef struct accrt_put {
  int folder;
  int fd; /* the caller writes to it and may change its mode; -1: no file is open */
  char name[ACCRT_PUT_NAME_BYTES];
  char part[ACCRT_PUT_NAME_BYTES];
} accrt_put_t;
#define ACCRT_PUT_INIT                                                                             \
  { .folder = -1, .fd = -1 }

typedef enum accrt_put_leftovers {
  ACCRT_PUT_OF_NAME, /* remove unlocked temporary files of this name */
  ACCRT_PUT_OF_ALL,  /* of any name: the folder belongs to the caller */
  ACCRT_PUT_OF_NONE  /* leave them: the caller has them removed another time */
} accrt_put_leftovers_t;

/* Creates an empty file beside `path`, open for writing and reading, with `mode` less the umask.
 * `end` is appended to its temporary name ("" for none). Removes leftovers first. Returns 0 or
 * errno (EEXIST: `path` is, or leads to, a device, a pipe, a socket or an open file, in whose place
 * no file is put, unless the folder belongs to the caller); after a failure do not call
 * accrt_put_end. */
int accrt_put_begin(accrt_put_t* put, const char* path, const char* end, mode_t mode,
                    accrt_put_leftovers_t leftovers);
/* Syncs the file and renames it to its final name, replacing an existing file. With `new_only` an
 * existing file is EEXIST. Returns 0 or errno; after a failure the temporary file is removed. */
int accrt_put_end(accrt_put_t* put, bool new_only);
/* The number of the descriptor that `path` leads to through links, as /dev/stdout does; it may be
 * one of another process, and closed. -1: it leads to none. */
int accrt_put_descriptor(const char* path);
/* What such an error says. */
const char* accrt_put_text(int error);
/* Removes the temporary file, if one is open. Async-signal-safe; keeps errno. */
void accrt_put_drop(accrt_put_t* put);

#endif /* ACCRT_RUNTIME_CORE_PUT_FILE_H_ */
