/* runtime/core/file_io.h - reading a part of a file, through the page cache or past it, and writing
 * one. It may not allocate or touch the error record: the caller decides what a failure means.
 */
#ifndef ACCRT_RUNTIME_CORE_FILE_IO_H_
#define ACCRT_RUNTIME_CORE_FILE_IO_H_

#include <stdbool.h>
#include <stdint.h>

/* Returns a descriptor of the same file for reads that bypass the page cache; -1 if the file does
 * not support them. The caller closes it. */
int accrt_file_open_direct(int fd);
/* Reads size_bytes at `offset` into `target`. With a direct_fd (-1: none), and with offset and
 * target multiples of 4096, bytes outside the page cache are read without filling it. Returns 0 or
 * errno. `out_done` gets the number of bytes read; fewer than size_bytes with result 0 mean the end
 * of the file. Blocks. Thread-safe. */
int accrt_file_read(int fd, int direct_fd, uint64_t offset, void* target, uint64_t size_bytes,
                    uint64_t* out_done);
/* Writes all bytes at `offset`, or with -1 at the file's position, which advances. Returns 0 or
 * errno: EIO if the file accepts nothing, EFBIG before anything is written if the file would become
 * larger than the system's limit (RLIMIT_FSIZE). After another failure some bytes may be written.
 * Blocks. */
int accrt_file_write(int fd, int64_t offset, const void* bytes, uint64_t size_bytes);

/* True if so many bytes at `offset` (-1: at the file's position) would make the file larger than
 * the system's limit (RLIMIT_FSIZE). The system sends SIGXFSZ then, which ends the process. */
bool accrt_file_passes_limit(int fd, int64_t offset, uint64_t size_bytes);

#endif /* ACCRT_RUNTIME_CORE_FILE_IO_H_ */
