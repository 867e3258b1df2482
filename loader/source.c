/* loader/source.c - reading bytes from a file, memory or callbacks. Metadata is always read, never
 * mapped: a file that is truncated under a reader gives an error here, where a mapping would give
 * SIGBUS. */
#define _GNU_SOURCE
#include "loader/source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/error.h"
#include "runtime/core/file_io.h"

static void source_init(accx_source_t* source, accx_source_kind_t kind, uint64_t size_bytes) {
  memset(source, 0, sizeof *source);
  source->kind = kind;
  source->fd = -1;
  source->direct_fd = -1;
  source->size_bytes = size_bytes;
  /* Default attributes cannot fail. */
  (void)pthread_mutex_init(&source->mutex, NULL);
  (void)pthread_cond_init(&source->changed, NULL);
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
  /* Not blocking: the path may be a FIFO, which accx_source_take_fd then refuses. */
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd >= 0)
    return accx_source_take_fd(fd, path, out_source);
  const int error = errno;
  if (error == ENOENT || error == ENOTDIR)
    return ACCRT_FAIL_ERRNO(NOT_FOUND, error, "%s: no such file", path);
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
    return ACCRT_FAIL(INVALID_ARGUMENT, "the reader or its read is NULL");
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
    source->release(source->user);
  if (notify && source->reader.close != NULL)
    source->reader.close(source->reader.self);
  (void)pthread_cond_destroy(&source->changed);
  (void)pthread_mutex_destroy(&source->mutex);
  source->kind = ACCX_SOURCE_NONE;
}

void accx_source_begin(accx_source_t* source) {
  pthread_mutex_lock(&source->mutex);
  while (source->busy)
    pthread_cond_wait(&source->changed, &source->mutex);
  source->busy = true;
  pthread_mutex_unlock(&source->mutex);
}

void accx_source_end(accx_source_t* source) {
  pthread_mutex_lock(&source->mutex);
  source->busy = false;
  pthread_cond_signal(&source->changed);
  pthread_mutex_unlock(&source->mutex);
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
  const int32_t error = source->reader.read(source->reader.self, offset, target, size_bytes);
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
