/* runtime/drivers/common/staging_stream.c - large transfers in the order of a stream: plain host
 * memory, files. It may not know how the engine moves bytes.
 *
 * A transfer has a semaphore of its own. The stream raises it to 1 when all before is complete:
 * then the engine begins. The stream waits for 2, which the engine signals at the end, or for its
 * failure, which carries the record. In between the stream defers what it is given, as for any
 * wait.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/file_io.h"
#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/staging.h"

#define MAY_BEGIN 1u
#define IS_OVER 2u

/* All references are internal ones. */
typedef struct transfer {
  accrt_staging_job_t job; /* first: see transfer_done */
  accrt_watch_t watch;
  accrt_staging_t* staging;
  accrt_stream_t* stream;
  accrt_semaphore_t* semaphore;
  accrt_buffer_t* buffers[2];
  void (*release)(void* user);
} transfer_t;

/* ---- The end ---- */

static void free_transfer(transfer_t* transfer) {
  accrt_stream_t* stream = transfer->stream;
  const accrt_allocator_t* allocator = &stream->instance->allocator;
  if (transfer->release != NULL)
    transfer->release(transfer->job.user);
  accrt_buffer_unref(transfer->buffers[0]);
  accrt_buffer_unref(transfer->buffers[1]);
  if (transfer->semaphore != NULL)
    accrt_semaphore_unref(transfer->semaphore);
  accrt_free(allocator, transfer, sizeof *transfer);
  accrt_stream_unref(stream);
}

/* Nothing of it runs any more: the stream goes on. */
static void transfer_done(accrt_staging_job_t* job) {
  transfer_t* transfer = (transfer_t*)job;
  accrt_context_enter();
  /* Release pairs with the acquire in accrt_stream_wait_idle: what was moved is seen. */
  atomic_fetch_sub_explicit(&transfer->stream->staged, 1, memory_order_release);
  if (job->failed)
    accrt_semaphore_fail_with(transfer->semaphore, &job->error);
  else
    accrt_timeline_advance(&transfer->semaphore->timeline, IS_OVER);
  free_transfer(transfer);
  accrt_context_leave();
}

/* ---- The beginning ---- */

/* The stream has come this far, or has failed before: then nothing is moved. */
static void begin(transfer_t* transfer, bool failed) {
  if (!failed) {
    accrt_staging_post(transfer->staging, &transfer->job);
    return;
  }
  atomic_fetch_sub_explicit(&transfer->stream->staged, 1, memory_order_release);
  free_transfer(transfer);
}

static void may_begin(accrt_watch_t* watch) {
  transfer_t* transfer = (transfer_t*)(void*)((char*)watch - offsetof(transfer_t, watch));
  begin(transfer, watch->failed);
}

static accrt_status_t make_transfer(accrt_stream_t* stream, const accrt_staged_t* staged,
                                    transfer_t** out_transfer) {
  accrt_staging_t* staging;
  ACCRT_TRY(accrt_staging_get(stream->device, staged->size_bytes, &staging));
  transfer_t* transfer;
  ACCRT_TRY(ACCRT_NEW(&stream->instance->allocator, &transfer));
  accrt_status_t status = accrt_semaphore_make(stream->instance, 0, &transfer->semaphore);
  if (status != ACCRT_OK) {
    accrt_free(&stream->instance->allocator, transfer, sizeof *transfer);
    return status;
  }
  transfer->staging = staging;
  transfer->stream = stream;
  accrt_object_retain(&stream->object);
  transfer->release = staged->release;
  transfer->job = (accrt_staging_job_t){.direction = staged->direction,
                                        .direct = staged->direct,
                                        .name = staged->name,
                                        .move = staged->move,
                                        .user = staged->user,
                                        .address = staged->address,
                                        .size_bytes = staged->size_bytes,
                                        .done = transfer_done};
  for (int i = 0; i < 2; ++i) {
    transfer->buffers[i] = staged->buffers[i];
    if (transfer->buffers[i] != NULL)
      accrt_buffer_ref(transfer->buffers[i]);
  }
  *out_transfer = transfer;
  return ACCRT_OK;
}

static accrt_status_t enqueue_both(transfer_t* transfer, uint64_t* out_number) {
  const accrt_request_t signal = {.kind = ACCRT_OP_SIGNAL,
                                  .name = transfer->job.name,
                                  .semaphore = transfer->semaphore,
                                  .value = MAY_BEGIN};
  const accrt_request_t wait = {.kind = ACCRT_OP_WAIT,
                                .name = transfer->job.name,
                                .semaphore = transfer->semaphore,
                                .value = IS_OVER};
  const accrt_status_t status = accrt_stream_enqueue(transfer->stream, &signal, NULL);
  /* A signal alone does nothing: it has no watcher yet. */
  return status == ACCRT_OK ? accrt_stream_enqueue(transfer->stream, &wait, out_number) : status;
}

accrt_status_t accrt_stream_enqueue_staged(accrt_stream_t* stream, const accrt_staged_t* staged,
                                           uint64_t* out_number) {
  transfer_t* transfer;
  accrt_status_t status = make_transfer(stream, staged, &transfer);
  if (status != ACCRT_OK) {
    if (staged->release != NULL)
      staged->release(staged->user);
    return status;
  }
  atomic_fetch_add_explicit(&stream->staged, 1, memory_order_relaxed);
  status = enqueue_both(transfer, out_number);
  if (status != ACCRT_OK) {
    begin(transfer, true);
    return status;
  }
  transfer->watch.value = MAY_BEGIN;
  transfer->watch.fire = may_begin;
  const accrt_reach_t reach = accrt_semaphore_watch(transfer->semaphore, &transfer->watch);
  if (reach == ACCRT_REACH_PENDING)
    return ACCRT_OK;
  accrt_context_enter();
  begin(transfer, reach == ACCRT_REACH_FAILED);
  accrt_context_leave();
  return ACCRT_OK;
}

/* ---- Files ---- */

typedef struct reading {
  const accrt_allocator_t* allocator;
  int fd;
  int direct_fd; /* past the page cache; -1: none */
  uint64_t file_offset;
} reading_t;

static void release_reading(void* user) {
  reading_t* reading = user;
  if (reading->fd >= 0)
    (void)close(reading->fd);
  if (reading->direct_fd >= 0)
    (void)close(reading->direct_fd);
  accrt_free(reading->allocator, reading, sizeof *reading);
}

static accrt_status_t read_piece(void* user, uint64_t offset_bytes, void* memory,
                                 uint64_t size_bytes) {
  const reading_t* reading = user;
  const uint64_t at = reading->file_offset + offset_bytes;
  uint64_t done;
  const int error = accrt_file_read(reading->fd, reading->direct_fd, at, memory, size_bytes, &done);
  if (error != 0) {
    return ACCRT_FAIL_ERRNO(IO, error, "reading %" PRIu64 " bytes at offset %" PRIu64 " failed: %s",
                            size_bytes - done, at + done, strerror(error));
  }
  if (done < size_bytes) {
    return ACCRT_FAIL_ERRNO(
        IO, 0, "the file ended at offset %" PRIu64 ": %" PRIu64 " more bytes were asked for",
        at + done, size_bytes - done);
  }
  return ACCRT_OK;
}

static accrt_status_t check_file(int32_t fd, uint64_t file_offset, uint64_t size_bytes) {
  struct stat facts;
  if (fstat(fd, &facts) != 0) {
    const int error = errno;
    return ACCRT_FAIL_ERRNO(IO, error, "file descriptor %" PRId32 ": %s", fd, strerror(error));
  }
  if (!S_ISREG(facts.st_mode)) {
    return ACCRT_FAIL_ERRNO(IO, EINVAL,
                            "file descriptor %" PRId32 " is not of a regular file (mode %o)", fd,
                            (unsigned)facts.st_mode);
  }
  if (!accrt_range_fits(file_offset, size_bytes, INT64_MAX)) {
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "offset %" PRIu64 " + size %" PRIu64 " is past what a file can hold",
                      file_offset, size_bytes);
  }
  return ACCRT_OK;
}

static accrt_status_t open_reading(accrt_stream_t* stream, int32_t fd, uint64_t file_offset,
                                   reading_t** out_reading) {
  reading_t* reading;
  ACCRT_TRY(ACCRT_NEW(&stream->instance->allocator, &reading));
  *reading =
      (reading_t){&stream->instance->allocator, fcntl(fd, F_DUPFD_CLOEXEC, 0), -1, file_offset};
  if (reading->fd >= 0) {
    if (accrt_instance_direct_reads(stream->instance))
      reading->direct_fd = accrt_file_open_direct(reading->fd);
    *out_reading = reading;
    return ACCRT_OK;
  }
  const int error = errno;
  release_reading(reading);
  return ACCRT_FAIL_ERRNO(IO, error, "file descriptor %" PRId32 " could not be duplicated: %s", fd,
                          strerror(error));
}

/* Whether the host writes to the place as it is; else what is there goes through the ring. */
static bool is_host_place(const accrt_stream_t* stream, const accrt_place_t* place,
                          uint64_t* address) {
  if (place->buffer == NULL)
    return true;
  void* memory = accrt_buffer_host_pointer(place->buffer);
  if (memory != NULL)
    *address = (uint64_t)(uintptr_t)memory + place->offset_bytes;
  return memory != NULL || (stream->device->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0;
}

accrt_status_t accrt_stream_read_file(accrt_stream_t* stream, int32_t fd, uint64_t file_offset,
                                      const accrt_place_t* target, uint64_t size_bytes,
                                      uint32_t flags) {
  ACCRT_ENTER(stream, target);
  if (flags != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", flags);
  size_bytes = accrt_place_size(target, size_bytes);
  accrt_status_t status = check_file(fd, file_offset, size_bytes);
  uint64_t address = 0, number;
  if (status == ACCRT_OK)
    status = accrt_place_resolve(stream->device, target, size_bytes, "target", &address);
  if (status == ACCRT_OK)
    status = accrt_stream_check(stream);
  if (status != ACCRT_OK || size_bytes == 0)
    return status;
  if (stream->foreign) {
    return ACCRT_FAIL(NOT_READY, "stream %" PRIu64 " is wrapped: it cannot wait for a file",
                      stream->id);
  }
  /* Room for the note, while a lack of memory is still a plain error. */
  if (target->buffer != NULL)
    status = accrt_buffer_note_use(target->buffer, stream, 0);
  reading_t* reading = NULL;
  if (status == ACCRT_OK)
    status = open_reading(stream, fd, file_offset, &reading);
  if (status != ACCRT_OK)
    return status;
  const bool direct = is_host_place(stream, target, &address);
  const accrt_staged_t staged = {.direction = ACCRT_STAGING_TO_DEVICE,
                                 .direct = direct,
                                 .name = ACCRT_THIS_FUNCTION,
                                 .move = read_piece,
                                 .release = release_reading,
                                 .user = reading,
                                 .address = address,
                                 .size_bytes = size_bytes,
                                 .buffers = {target->buffer, NULL}};
  status = accrt_stream_enqueue_staged(stream, &staged, &number);
  if (status == ACCRT_OK && target->buffer != NULL)
    accrt_buffer_note_or_wait(target->buffer, stream, number);
  return status;
}
