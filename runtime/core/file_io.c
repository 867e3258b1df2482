/* runtime/core/file_io.c - loops of pread and write that transfer all bytes. Reads can bypass the
 * page cache for data that is not in it. It may not allocate or touch the error record. */
#define _GNU_SOURCE
#include "runtime/core/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/core/safe_open.h"

#define DIRECT_ALIGNMENT UINT64_C(4096)
/* Limit of one call. Linux transfers at most 0x7ffff000 bytes. */
#define MAX_CALL_BYTES (UINT64_C(1) << 30)

int accrt_file_open_direct(int fd) {
  char path[32];
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return accrt_open_at(AT_FDCWD, path, O_RDONLY | O_DIRECT, 0);
}

/* Reads until all bytes are there or the file ends. */
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

/* Reads the leading part that is in the page cache: whole pages, or everything. */
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
    /* The normal read below does what this one cannot. */
    if (*out_done < whole)
      (void)read_all(direct_fd, offset, bytes, whole, out_done);
    if (*out_done < size_bytes)
      *out_done &= ~(DIRECT_ALIGNMENT - 1);
  }
  return read_all(fd, offset, bytes, size_bytes, out_done);
}

bool accrt_file_passes_limit(int fd, int64_t offset, uint64_t size_bytes) {
  struct rlimit limit;
  struct stat facts;
  if (size_bytes == 0 || getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode))
    return false;
  const int64_t begin = offset < 0 ? (int64_t)lseek(fd, 0, SEEK_CUR) : offset;
  return begin >= 0 &&
         (size_bytes > limit.rlim_cur || (uint64_t)begin > limit.rlim_cur - size_bytes);
}

int accrt_file_write(int fd, int64_t offset, const void* bytes, uint64_t size_bytes) {
  if (accrt_file_passes_limit(fd, offset, size_bytes))
    return EFBIG;
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
