/* write/text/file.c - a bundle with its records in memory. See file.h. */
#include "write/text/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MAX_SECTION_BYTES (UINT64_C(1) << 30) /* no section of metadata is larger */

static bool read_at(int fd, uint64_t offset, void* target, uint64_t size_bytes) {
  unsigned char* at = target;
  while (size_bytes > 0) {
    const ssize_t got = pread(fd, at, (size_t)size_bytes, (off_t)offset);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    at += got;
    offset += (uint64_t)got;
    size_bytes -= (uint64_t)got;
  }
  return true;
}

/* ---- The verified file: the file on disk with the private copies in place of its metadata ---- */

static void overlay(unsigned char* target, uint64_t offset, uint64_t size_bytes,
                    const unsigned char* bytes, uint64_t at, uint64_t count) {
  const uint64_t begin = offset > at ? offset : at;
  const uint64_t end = offset + size_bytes < at + count ? offset + size_bytes : at + count;
  if (bytes != NULL && begin < end)
    memcpy(target + (begin - offset), bytes + (begin - at), (size_t)(end - begin));
}

static int32_t read_overlaid(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  const accx_bundle_file_t* file = self;
  if (!read_at(file->fd, offset, target, size_bytes))
    return errno != 0 ? errno : EIO;
  overlay(target, offset, size_bytes, file->head, 0, file->head_bytes);
  for (uint32_t i = 0; i < file->section_count; ++i) {
    const accx_section_t* record = &file->sections[i].record;
    overlay(target, offset, size_bytes, file->sections[i].bytes, record->offset,
            record->size_bytes);
  }
  return 0;
}

static bool is_bulk(uint32_t type) {
  return type == ACCX_SECTION_CODE || type == ACCX_SECTION_DATA;
}

/* Reads bytes into newly allocated memory. */
static bool take_bytes(int fd, uint64_t offset, uint64_t size_bytes, unsigned char** out,
                       const char* path, accx_text_error_t* error) {
  *out = malloc(size_bytes > 0 ? (size_t)size_bytes : 1);
  if (*out == NULL)
    return accx_text_fail(error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory to read %s", path);
  errno = 0;
  return read_at(fd, offset, *out, size_bytes) ||
         accx_text_fail(error, ACCRT_ERROR_IO, "%s: %s", path,
                        errno != 0 ? strerror(errno) : "it ended while it was read");
}

/* Copies header, table and metadata by their apparent sizes. The library then verifies the
 * copies. */
static bool take_copies(accx_bundle_file_t* file, const char* path, accx_text_error_t* error) {
  file->head_bytes = sizeof file->header;
  if (file->size_bytes < file->head_bytes)
    return true;
  if (!take_bytes(file->fd, 0, file->head_bytes, &file->head, path, error))
    return false;
  memcpy(&file->header, file->head, sizeof file->header);
  const uint32_t count = file->header.section_count;
  if (count > 64 || file->size_bytes - file->head_bytes < count * sizeof(accx_section_t))
    return true;
  file->head_bytes += count * sizeof(accx_section_t);
  free(file->head);
  if (!take_bytes(file->fd, 0, file->head_bytes, &file->head, path, error))
    return false;
  memcpy(&file->header, file->head, sizeof file->header);
  file->section_count = count;
  for (uint32_t i = 0; i < count; ++i) {
    accx_file_section_t* section = &file->sections[i];
    memcpy(&section->record, file->head + sizeof file->header + i * sizeof section->record,
           sizeof section->record);
    const uint64_t offset = section->record.offset, size = section->record.size_bytes;
    if (is_bulk(section->record.type) || offset > file->size_bytes ||
        size > file->size_bytes - offset || size > MAX_SECTION_BYTES)
      continue;
    if (!take_bytes(file->fd, offset, size, &section->bytes, path, error))
      return false;
  }
  return true;
}

static bool verify(accx_bundle_file_t* file, accrt_instance_t* instance, const char* path,
                   accx_text_error_t* error) {
  const accrt_reader_t reader = {file, file->size_bytes, read_overlaid, NULL};
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.verify = ACCRT_VERIFY_NO_DATA;
  options.name = path;
  accrt_bundle_t* bundle;
  const accrt_status_t status = accrt_bundle_open_callbacks(instance, &reader, &options, &bundle);
  if (status != ACCRT_OK)
    return accx_text_fail_call(error, status, NULL);
  accrt_bundle_release(bundle);
  const accx_file_section_t* strings = accx_file_find(file, ACCX_SECTION_STRINGS);
  file->strings = (const char*)strings->bytes;
  file->strings_size_bytes = strings->record.size_bytes;
  return true;
}

bool accx_bundle_file_open(accx_bundle_file_t* file, accrt_instance_t* instance, const char* path,
                           accx_text_error_t* error) {
  memset(file, 0, sizeof *file);
  file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat info;
  if (file->fd < 0 || fstat(file->fd, &info) != 0)
    return accx_text_fail(error, errno == ENOENT ? ACCRT_ERROR_NOT_FOUND : ACCRT_ERROR_IO, "%s: %s",
                          path, strerror(errno));
  if (!S_ISREG(info.st_mode))
    return accx_text_fail(error, ACCRT_ERROR_INVALID_ARGUMENT, "%s: it is not a regular file",
                          path);
  file->size_bytes = (uint64_t)info.st_size;
  return take_copies(file, path, error) && verify(file, instance, path, error);
}

void accx_bundle_file_close(accx_bundle_file_t* file) {
  for (uint32_t i = 0; i < file->section_count; ++i)
    free(file->sections[i].bytes);
  free(file->head);
  free(file->chunk);
  if (file->fd >= 0)
    (void)close(file->fd);
  memset(file, 0, sizeof *file);
  file->fd = -1;
}

/* ---- Records ---- */

const accx_file_section_t* accx_file_find(const accx_bundle_file_t* file, uint32_t type) {
  for (uint32_t i = 0; i < file->section_count; ++i) {
    if (file->sections[i].record.type == type)
      return &file->sections[i];
  }
  return NULL;
}

uint32_t accx_file_count(const accx_bundle_file_t* file, uint32_t type) {
  const accx_file_section_t* section = accx_file_find(file, type);
  return section != NULL ? section->record.record_count : 0;
}

const void* accx_file_record(const accx_bundle_file_t* file, uint32_t type, uint32_t index) {
  const accx_file_section_t* section = accx_file_find(file, type);
  return section->bytes + (size_t)index * section->record.record_bytes;
}

/* Records of older forms are shorter. */
accx_constant_t accx_file_constant(const accx_bundle_file_t* file, uint32_t index) {
  const accx_file_section_t* section = accx_file_find(file, ACCX_SECTION_CONSTANTS);
  accx_constant_t constant = {.file = ACCX_NONE};
  memcpy(&constant, section->bytes + (size_t)index * section->record.record_bytes,
         section->record.record_bytes);
  return constant;
}

const char* accx_file_string(const accx_bundle_file_t* file, uint32_t offset) {
  return file->strings + offset;
}

static bool chunk_good(const accx_bundle_file_t* file, uint64_t index, const unsigned char* chunk,
                       uint64_t size_bytes) {
  const accx_digest_t* stored = accx_file_record(file, ACCX_SECTION_CHUNK_DIGESTS, (uint32_t)index);
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(chunk, (size_t)size_bytes));
  return memcmp(digest.digest, stored, sizeof digest.digest) == 0;
}

/* Reads a chunk of DATA and checks its digest. The chunk stays in memory until the next one,
 * because many weights are smaller than a chunk. */
static bool read_chunk(accx_bundle_file_t* file, const accx_section_t* data, uint64_t index,
                       accx_text_error_t* error) {
  const uint64_t begin = index * ACCX_CHUNK_BYTES, left = data->size_bytes - begin;
  const uint64_t bytes = left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
  if (file->chunk != NULL && file->chunk_index == index)
    return true;
  if (file->chunk == NULL)
    file->chunk = malloc(ACCX_CHUNK_BYTES);
  if (file->chunk == NULL)
    return accx_text_fail(error, ACCRT_ERROR_OUT_OF_MEMORY, "no memory for a chunk of weights");
  file->chunk_index = UINT64_MAX;
  if (!read_at(file->fd, data->offset + begin, file->chunk, bytes))
    return accx_text_fail(error, ACCRT_ERROR_IO, "reading weights: %s", strerror(errno));
  if (!chunk_good(file, index, file->chunk, bytes))
    return accx_text_fail(error, ACCRT_ERROR_DATA_CORRUPT,
                          "chunk %llu of the weights does not match its digest",
                          (unsigned long long)index);
  file->chunk_index = index;
  return true;
}

static bool read_checked(accx_bundle_file_t* file, const accx_section_t* data, uint64_t offset,
                         unsigned char* target, uint64_t size_bytes, accx_text_error_t* error) {
  const uint64_t end = offset + size_bytes;
  for (uint64_t at = offset; at < end;) {
    const uint64_t index = at / ACCX_CHUNK_BYTES, begin = index * ACCX_CHUNK_BYTES;
    const uint64_t stop = begin + ACCX_CHUNK_BYTES < end ? begin + ACCX_CHUNK_BYTES : end;
    if (!read_chunk(file, data, index, error))
      return false;
    memcpy(target + (at - offset), file->chunk + (at - begin), (size_t)(stop - at));
    at = stop;
  }
  return true;
}

bool accx_file_read(accx_bundle_file_t* file, uint32_t type, uint64_t offset, void* target,
                    uint64_t size_bytes, accx_text_error_t* error) {
  if (size_bytes == 0)
    return true;
  const accx_section_t* record = &accx_file_find(file, type)->record;
  if (type == ACCX_SECTION_DATA)
    return read_checked(file, record, offset, target, size_bytes, error);
  if (read_at(file->fd, record->offset + offset, target, size_bytes))
    return true;
  return accx_text_fail(error, ACCRT_ERROR_IO, "reading code: %s", strerror(errno));
}
