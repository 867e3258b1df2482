/* loader/source.c - reads bytes from a file, memory or callbacks. Metadata is always read, never
 * mapped: if another process truncates the file, a read returns an error, but a mapping raises
 * SIGBUS. */
#define _GNU_SOURCE
#include "loader/source.h"

#include "format/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/error.h"
#include "runtime/core/file_io.h"
#include "runtime/core/memory.h"
#include "runtime/core/safe_open.h"

static void source_init(accx_source_t* source, accx_source_kind_t kind, uint64_t size_bytes) {
  memset(source, 0, sizeof *source);
  source->kind = kind;
  source->fd = -1;
  source->direct_fd = -1;
  source->size_bytes = size_bytes;
  accrt_monitor_init(&source->monitor, ACCRT_LOCK_SOURCE);
}

accrt_status_t accx_copy_name(const accrt_allocator_t* allocator, const char* name,
                              const char* other, char** out_name) {
  return accrt_copy_string(allocator, name != NULL && *name != '\0' ? name : other, out_name);
}

accrt_status_t accx_source_take_fd(int fd, const char* what, accx_source_t* out_source) {
  struct stat facts;
  if (fstat(fd, &facts) != 0) {
    const int error = errno;
    close(fd);
    return ACCRT_FAIL_ERRNO(IO, error, "%s: fstat failed: %s", what, strerror(error));
  }
  if (!S_ISREG(facts.st_mode)) {
    close(fd);
    return ACCRT_FAIL_ERRNO(IO, EINVAL, "%s: not a regular file (mode %o)", what,
                            (unsigned)facts.st_mode);
  }
  source_init(out_source, ACCX_SOURCE_FILE, (uint64_t)facts.st_size);
  out_source->fd = fd;
  return ACCRT_OK;
}

accrt_status_t accx_source_open_path(const char* path, accx_source_t* out_source) {
  /* Non-blocking: the path may be a FIFO, which accx_source_take_fd then refuses. */
  const int fd = accrt_open_at(AT_FDCWD, path, O_RDONLY, 0);
  if (fd >= 0)
    return accx_source_take_fd(fd, path, out_source);
  const int error = errno;
  if (error == ENOENT || error == ENOTDIR)
    return ACCRT_FAIL_ERRNO(NOT_FOUND, error, "%s: no such file",
                            path[0] != '\0' ? path : "an empty path");
  return ACCRT_FAIL_ERRNO(IO, error, "%s: could not be opened: %s", path, strerror(error));
}

accrt_status_t accx_source_open_fd(int fd, accx_source_t* out_source) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy >= 0)
    return accx_source_take_fd(copy, "file descriptor", out_source);
  const int error = errno;
  return ACCRT_FAIL_ERRNO(IO, error, "file descriptor %d could not be duplicated: %s", fd,
                          strerror(error));
}

accrt_status_t accx_source_open_memory(const void* data, uint64_t size_bytes,
                                       void (*release)(void*), void* user,
                                       accx_source_t* out_source) {
  if (data == NULL || size_bytes > SIZE_MAX / 2) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "memory of %" PRIu64 " bytes at %p", size_bytes, data);
  }
  source_init(out_source, ACCX_SOURCE_MEMORY, size_bytes);
  out_source->memory = data;
  out_source->release = release;
  out_source->user = user;
  return ACCRT_OK;
}

accrt_status_t accx_source_open_callbacks(const accrt_reader_t* reader, accx_source_t* out_source) {
  if (reader == NULL || reader->read == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", reader == NULL ? "reader" : "reader->read");
  source_init(out_source, ACCX_SOURCE_CALLBACKS, reader->size_bytes);
  out_source->reader = *reader;
  return ACCRT_OK;
}

void accx_source_bypass_cache(accx_source_t* source) {
  if (source->kind == ACCX_SOURCE_FILE)
    source->direct_fd = accrt_file_open_direct(source->fd);
}

void accx_source_close(accx_source_t* source, bool notify) {
  if (source->kind == ACCX_SOURCE_NONE)
    return;
  if (source->fd >= 0)
    close(source->fd);
  if (source->direct_fd >= 0)
    close(source->direct_fd);
  if (notify && source->release != NULL)
    ACCRT_CALL_USER(source->release(source->user));
  if (notify && source->reader.close != NULL)
    ACCRT_CALL_USER(source->reader.close(source->reader.self));
  accrt_monitor_deinit(&source->monitor);
  source->kind = ACCX_SOURCE_NONE;
}

void accx_source_begin(accx_source_t* source) {
  accrt_monitor_lock(&source->monitor);
  while (source->busy)
    accrt_monitor_wait(&source->monitor);
  source->busy = true;
  accrt_monitor_unlock(&source->monitor);
}

void accx_source_end(accx_source_t* source) {
  accrt_monitor_lock(&source->monitor);
  source->busy = false;
  accrt_monitor_wake_one(&source->monitor);
  accrt_monitor_unlock(&source->monitor);
}

static accrt_status_t was_truncated(const accx_source_t* source, uint64_t end) {
  return ACCRT_FAIL_ERRNO(IO, 0,
                          "the file ended at offset %" PRIu64 " of %" PRIu64 ": it was truncated",
                          end, source->size_bytes);
}

accrt_status_t accx_source_check_size(const accx_source_t* source) {
  struct stat facts;
  if (source->kind != ACCX_SOURCE_FILE || fstat(source->fd, &facts) != 0 ||
      (uint64_t)facts.st_size >= source->size_bytes)
    return ACCRT_OK;
  return was_truncated(source, (uint64_t)facts.st_size);
}

static accrt_status_t read_file(const accx_source_t* source, uint64_t offset, unsigned char* target,
                                uint64_t size_bytes) {
  uint64_t done;
  const int error =
      accrt_file_read(source->fd, source->direct_fd, offset, target, size_bytes, &done);
  if (error != 0) {
    return ACCRT_FAIL_ERRNO(IO, error, "reading %" PRIu64 " bytes at offset %" PRIu64 " failed: %s",
                            size_bytes - done, offset + done, strerror(error));
  }
  return done < size_bytes ? was_truncated(source, offset + done) : ACCRT_OK;
}

accrt_status_t accx_source_read(accx_source_t* source, uint64_t offset, void* target,
                                uint64_t size_bytes) {
  if (size_bytes == 0)
    return ACCRT_OK;
  if (source->kind == ACCX_SOURCE_FILE)
    return read_file(source, offset, target, size_bytes);
  if (source->kind == ACCX_SOURCE_MEMORY) {
    memcpy(target, source->memory + offset, (size_t)size_bytes);
    return ACCRT_OK;
  }
  int32_t error;
  ACCRT_CALL_USER(error = source->reader.read(source->reader.self, offset, target, size_bytes));
  if (error == 0)
    return ACCRT_OK;
  return ACCRT_FAIL_ERRNO(
      IO, error, "the reader returned %" PRId32 " for %" PRIu64 " bytes at offset %" PRIu64, error,
      size_bytes, offset);
}

accrt_status_t accx_source_read_alone(accx_source_t* source, uint64_t offset, void* target,
                                      uint64_t size_bytes) {
  accx_source_begin(source);
  const accrt_status_t status = accx_source_read(source, offset, target, size_bytes);
  accx_source_end(source);
  return status;
}

/* ---- Digests ---- */

accrt_status_t accx_source_digest(accx_source_t* source, uint64_t offset, uint64_t size_bytes,
                                  void* piece, accx_digest_t* out_digest) {
  accx_hasher_t hasher;
  accx_hasher_init(&hasher);
  for (uint64_t at = 0; at < size_bytes; at += ACCX_CHUNK_BYTES) {
    const uint64_t left = size_bytes - at;
    const uint64_t size = left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
    ACCRT_TRY(accx_source_read(source, offset + at, piece, size));
    accx_hasher_update(&hasher, piece, (size_t)size);
  }
  *out_digest = accx_hasher_finish(&hasher);
  return ACCRT_OK;
}
