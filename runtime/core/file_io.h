/* runtime/core/file_io.h - reading a part of a file, through the page cache or past it, and writing one. It may not allocate or
 * touch the error record: what a failure means is the caller's to say.
 */
#ifndef ACCRT_RUNTIME_CORE_FILE_IO_H_
#define ACCRT_RUNTIME_CORE_FILE_IO_H_

#include <stdint.h>

/* A descriptor of the same file for reads that leave the page cache as it is; -1 when the file has none. The caller closes it. */
int accrt_file_open_direct(int fd);
/* Reads size_bytes at `offset` into `target`. With direct_fd (-1: none) what is not in the page cache is read past it, where offset and
 * target are multiples of 4096. Returns 0 or errno; `out_done`: how much was read, less than size_bytes with 0 where the file
 * ended. Blocks. Thread-safe. */
int accrt_file_read(int fd, int direct_fd, uint64_t offset, void* target, uint64_t size_bytes,
                    uint64_t* out_done);
/* Writes all of it at `offset`; -1: where the file stands, which moves. Returns 0 or errno, EIO where the file took nothing: a part may
 * be written then. Blocks. */
int accrt_file_write(int fd, int64_t offset, const void* bytes, uint64_t size_bytes);

#endif /* ACCRT_RUNTIME_CORE_FILE_IO_H_ */
