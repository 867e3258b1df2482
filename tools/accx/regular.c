/* tools/accx/regular.c - opens the files that a user names for the tool itself. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "accx.h"

int accx_open_regular(const char* path, int flags, FILE** out_file) {
  struct stat facts;
  *out_file = NULL;
  /* Without waiting for the other end of a FIFO. */
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
  if (fd < 0)
    return accx_fail(ACCX_FAILED, "cannot open %s: %s", path, strerror(errno));
  if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode))
    *out_file = fdopen(fd, "rb");
  if (*out_file)
    return ACCX_OK;
  close(fd);
  return accx_fail(ACCX_FAILED, "%s is not a regular file", path);
}
