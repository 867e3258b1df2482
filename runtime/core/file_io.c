/* runtime/core/file_io.c - pread until all is there; what is in the page cache out of it, the rest past it if asked; write until
 * all is gone. It may not allocate or touch the error record. */
#define _GNU_SOURCE
#include "runtime/core/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#define DIRECT_ALIGNMENT UINT64_C(4096)
/* One call never asks for more: Linux moves at most 0x7ffff000 bytes. */
#define MAX_CALL_BYTES (UINT64_C(1) << 30)

int accrt_file_open_direct(int fd) {
  char path[32];
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
}

/* As many whole reads as it takes. */
static int read_all(int fd, uint64_t offset, unsigned char* target, uint64_t size_bytes,
                    uint64_t* out_done) {
  while (*out_done < size_bytes) {
    const uint64_t left = size_bytes - *out_done;
    const size_t wanted = (size_t)(left < MAX_CALL_BYTES ? left : MAX_CALL_BYTES);
    const ssize_t got = pread(fd, target + *out_done, wanted, (off_t)(offset + *out_done));
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return errno;
    if (got == 0)
      return 0;
    *out_done += (uint64_t)got;
  }
  return 0;
}

/* What of the beginning is in the page cache, in whole pages unless it is all. */
static uint64_t read_cached(int fd, uint64_t offset, unsigned char* target, uint64_t size_bytes) {
  const struct iovec part = {target,
                             (size_t)(size_bytes < MAX_CALL_BYTES ? size_bytes : MAX_CALL_BYTES)};
  const ssize_t got = preadv2(fd, &part, 1, (off_t)offset, RWF_NOWAIT);
  if (got <= 0)
    return 0;
  return (uint64_t)got == size_bytes ? size_bytes : (uint64_t)got & ~(DIRECT_ALIGNMENT - 1);
}

int accrt_file_read(int fd, int direct_fd, uint64_t offset, void* target, uint64_t size_bytes,
                    uint64_t* out_done) {
  unsigned char* bytes = target;
  *out_done = 0;
  if (direct_fd >= 0 && ((offset | (uint64_t)(uintptr_t)target) & (DIRECT_ALIGNMENT - 1)) == 0) {
    *out_done = read_cached(fd, offset, bytes, size_bytes);
    const uint64_t whole = size_bytes & ~(DIRECT_ALIGNMENT - 1);
    /* Whatever it cannot do is read as usual below. */
    if (*out_done < whole)
      (void)read_all(direct_fd, offset, bytes, whole, out_done);
    if (*out_done < size_bytes)
      *out_done &= ~(DIRECT_ALIGNMENT - 1);
  }
  return read_all(fd, offset, bytes, size_bytes, out_done);
}

int accrt_file_write(int fd, int64_t offset, const void* bytes, uint64_t size_bytes) {
  for (uint64_t done = 0; done < size_bytes;) {
    const void* at = (const unsigned char*)bytes + done;
    const uint64_t left = size_bytes - done;
    const size_t wanted = (size_t)(left < MAX_CALL_BYTES ? left : MAX_CALL_BYTES);
    const ssize_t put = offset < 0 ? write(fd, at, wanted)
                                   : pwrite(fd, at, wanted, (off_t)((uint64_t)offset + done));
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0)
      return put < 0 ? errno : EIO;
    done += (uint64_t)put;
  }
  return 0;
}
