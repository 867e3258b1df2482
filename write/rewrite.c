/* write/rewrite.c - see write/rewrite.h. It writes one new file and renames it. It changes no file
 * in place. */
#define _GNU_SOURCE
#include "write/rewrite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/digest.h"
#include "runtime/core/crypto.h"
#include "runtime/core/error.h"
#include "runtime/core/file_io.h"
#include "runtime/core/memory.h"
#include "runtime/core/put_file.h"
#include "write/below.h"

typedef struct output {
  const accx_rewrite_t* rewrite;
  const char* path;
  int fd;
  accx_header_t header;
  accx_section_t table[ACCX_MAX_SECTIONS];
  uint32_t count;
  unsigned char* piece; /* ACCX_CHUNK_BYTES */
} output_t;

/* ---- The table ---- */

static const accx_change_t* change_of(const accx_rewrite_t* rewrite, uint32_t type) {
  for (uint32_t i = 0; i < rewrite->change_count; ++i) {
    if (rewrite->changes[i].type == type)
      return &rewrite->changes[i];
  }
  return NULL;
}

static accx_section_t changed_section(const accx_change_t* change) {
  const accx_section_kind_t* kind = accx_section_kind(change->type);
  accx_section_t section = {.type = change->type,
                            .flags = kind->required ? ACCX_SECTION_FLAG_REQUIRED : 0,
                            .size_bytes = change->size_bytes,
                            .record_bytes = change->record_bytes,
                            .record_count = (uint32_t)(change->size_bytes / change->record_bytes)};
  memcpy(section.name, kind->name, strlen(kind->name));
  return section;
}

static void insert(output_t* output, const accx_section_t* section) {
  uint32_t at = output->count++;
  for (; at > 0 && output->table[at - 1].type > section->type; --at)
    output->table[at] = output->table[at - 1];
  output->table[at] = *section;
}

static accrt_status_t make_table(output_t* output) {
  const accx_rewrite_t* rewrite = output->rewrite;
  const accx_old_t* old = rewrite->old;
  if (old->info.section_count + rewrite->change_count > ACCX_MAX_SECTIONS) {
    return ACCRT_FAIL(UNSUPPORTED, "%s: %" PRIu32 " sections leave no room for more",
                      old->info.name, old->info.section_count);
  }
  for (uint32_t i = 0; i < old->info.section_count; ++i) {
    if (change_of(rewrite, old->sections[i].type) == NULL)
      insert(output, &old->sections[i]);
  }
  for (uint32_t i = 0; i < rewrite->change_count; ++i) {
    const accx_section_t section = changed_section(&rewrite->changes[i]);
    if (section.size_bytes > 0)
      insert(output, &section);
  }
  uint64_t end = sizeof(accx_header_t) + output->count * sizeof(accx_section_t);
  for (uint32_t i = 0; i < output->count; ++i) {
    accx_section_t* section = &output->table[i];
    const accx_section_kind_t* kind = accx_section_kind(section->type);
    const uint64_t alignment = kind != NULL ? kind->alignment : 8;
    section->offset = (end + alignment - 1) & ~(alignment - 1);
    end = section->offset + section->size_bytes;
  }
  output->header.file_size_bytes = end;
  return ACCRT_OK;
}

/* ---- Bytes ---- */

static accrt_status_t put(const output_t* output, uint64_t offset, const void* bytes,
                          uint64_t size_bytes) {
  const int error = accrt_file_write(output->fd, (int64_t)offset, bytes, size_bytes);
  if (error == 0)
    return ACCRT_OK;
  return ACCRT_FAIL_ERRNO(IO, error, "%s: could not be written: %s", output->path, strerror(error));
}

static accrt_status_t copy_data(output_t* output, const accx_section_t* section) {
  const accx_rewrite_t* rewrite = output->rewrite;
  const accx_old_t* old = rewrite->old;
  for (uint32_t i = 0; i < old->chunk_count; ++i) {
    const size_t size = accx_old_chunk_bytes(old, i);
    ACCRT_TRY(accx_below(old->operation, accrt_bundle_chunk(old->bundle, i, rewrite->chunk_flags,
                                                            output->piece, size)));
    ACCRT_TRY(rewrite->chunk(rewrite->user, i, output->piece, size));
    ACCRT_TRY(put(output, section->offset + (uint64_t)i * ACCX_CHUNK_BYTES, output->piece, size));
  }
  return ACCRT_OK;
}

static accrt_status_t copy_section(output_t* output, const accx_section_t* section) {
  const accx_old_t* old = output->rewrite->old;
  for (uint64_t at = 0; at < section->size_bytes;) {
    const uint64_t left = section->size_bytes - at;
    const uint64_t size = left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
    ACCRT_TRY(accx_old_read(old, accx_old_section(old, section->type), at, output->piece, size));
    ACCRT_TRY(put(output, section->offset + at, output->piece, size));
    at += size;
  }
  return ACCRT_OK;
}

static accrt_status_t put_changes(output_t* output) {
  const accx_section_t* chunks = NULL;
  for (uint32_t i = 0; i < output->count; ++i) {
    accx_section_t* section = &output->table[i];
    const accx_change_t* change = change_of(output->rewrite, section->type);
    if (section->type == ACCX_SECTION_DATA && chunks != NULL)
      section->digest = chunks->digest; /* DATA's digest is the digest of its chunks' digests */
    if (change == NULL)
      continue;
    section->digest = accx_digest_of(change->bytes, (size_t)change->size_bytes);
    ACCRT_TRY(put(output, section->offset, change->bytes, change->size_bytes));
    if (section->type == ACCX_SECTION_CHUNK_DIGESTS)
      chunks = section;
  }
  return ACCRT_OK;
}

/* ---- The header ---- */

static accx_version_t version(uint16_t major, uint16_t minor) {
  return (accx_version_t){major, minor};
}

/* Keeps a version that is newer than this library knows. Other versions are computed, as by the
 * verifier. */
static accx_version_t choose(accx_version_t said, accx_version_t computed, uint16_t known_minor) {
  return said.minor > known_minor ? said : computed;
}

static accrt_status_t put_header(output_t* output, const accrt_bundle_info_t* computed) {
  const accrt_bundle_info_t* said = &output->rewrite->old->info;
  accx_header_t* header = &output->header;
  header->container =
      choose(version(said->container_major, said->container_minor),
             version(ACCX_CONTAINER_MAJOR, computed->container_minor), ACCX_CONTAINER_MINOR);
  header->commands =
      choose(version(said->commands_major, said->commands_minor),
             version(ACCX_COMMANDS_MAJOR, computed->commands_minor), ACCX_COMMANDS_MINOR);
  header->kernel_abi =
      choose(version(said->kernel_abi_major, said->kernel_abi_minor),
             version(ACCRT_KERNEL_ABI_MAJOR, computed->kernel_abi_minor), ACCRT_KERNEL_ABI_MINOR);
  header->layouts =
      choose(version(said->layouts_major, said->layouts_minor),
             version(ACCX_LAYOUTS_MAJOR, computed->layouts_minor), ACCX_LAYOUTS_MINOR);
  memset(&header->digest, 0, sizeof header->digest);
  header->digest = accx_header_digest(header, output->table);
  ACCRT_TRY(put(output, 0, header, sizeof *header));
  return put(output, sizeof *header, output->table, output->count * sizeof *output->table);
}

static int32_t read_output(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  const output_t* output = self;
  uint64_t done;
  const int error = accrt_file_read(output->fd, -1, offset, target, size_bytes, &done);
  return error != 0 ? error : done == size_bytes ? 0 : EIO;
}

/* The verifier reads the written file, and computes the versions that it requires. */
static accrt_status_t make_header(output_t* output) {
  const accx_old_t* old = output->rewrite->old;
  accx_header_t* header = &output->header;
  memcpy(header->magic, ACCX_MAGIC, sizeof header->magic);
  header->required_features = output->rewrite->required_features;
  header->optional_features = old->info.optional_features;
  header->section_count = output->count;
  header->section_record_bytes = sizeof(accx_section_t);
  header->section_table_offset = sizeof(accx_header_t);
  accrt_bundle_info_t minimum = {.container_minor = ACCX_CONTAINER_MINOR,
                                 .commands_minor = ACCX_COMMANDS_MINOR,
                                 .kernel_abi_minor = ACCRT_KERNEL_ABI_MINOR,
                                 .layouts_minor = ACCX_LAYOUTS_MINOR};
  ACCRT_TRY(put_header(output, &minimum));
  const accrt_reader_t reader = {output, header->file_size_bytes, read_output, NULL};
  minimum = (accrt_bundle_info_t)ACCRT_BUNDLE_INFO_INIT;
  ACCRT_TRY(accx_below(old->operation, accrt_bundle_check(old->allocator, &reader, &minimum)));
  return put_header(output, &minimum);
}

static int resize(int fd, uint64_t size_bytes) {
  if (accrt_file_passes_limit(fd, 0, size_bytes))
    return EFBIG;
  return ftruncate(fd, (off_t)size_bytes) == 0 ? 0 : errno;
}

static accrt_status_t write_all(output_t* output) {
  const uint64_t size_bytes = output->header.file_size_bytes;
  const int error = resize(output->fd, size_bytes);
  if (error != 0) {
    return ACCRT_FAIL_ERRNO(IO, error, "%s: could not be made %" PRIu64 " bytes long: %s",
                            output->path, size_bytes, strerror(error));
  }
  for (uint32_t i = 0; i < output->count; ++i) {
    const accx_section_t* section = &output->table[i];
    if (section->type == ACCX_SECTION_DATA)
      ACCRT_TRY(copy_data(output, section));
    else if (change_of(output->rewrite, section->type) == NULL)
      ACCRT_TRY(copy_section(output, section));
  }
  ACCRT_TRY(output->rewrite->finish(output->rewrite->user));
  ACCRT_TRY(put_changes(output));
  return make_header(output);
}

/* ---- The file ---- */

/* A file that replaces another one gets its mode. */
static void keep_mode(int fd, const char* path) {
  struct stat facts;
  if (stat(path, &facts) == 0 && S_ISREG(facts.st_mode))
    (void)fchmod(fd, facts.st_mode & 0777);
}

static accrt_status_t fail_file(const char* path, int error) {
  return ACCRT_FAIL_ERRNO(IO, error, "%.400s: could not be written: %s", path,
                          accrt_put_text(error));
}

accrt_status_t accx_rewrite(const accx_rewrite_t* rewrite, const char* path) {
  const accrt_allocator_t* allocator = rewrite->old->allocator;
  accrt_put_t put = ACCRT_PUT_INIT;
  void *memory = NULL, *piece = NULL;
  int error = 0;
  ACCRT_TRY(accrt_alloc(allocator, sizeof(output_t), &memory));
  output_t* output = memory;
  output->rewrite = rewrite;
  output->path = path;
  accrt_status_t status = make_table(output);
  if (status == ACCRT_OK)
    status = accrt_alloc(allocator, ACCX_CHUNK_BYTES, &piece);
  if (status != ACCRT_OK)
    goto out;
  error = accrt_put_begin(&put, path, "", 0666, ACCRT_PUT_OF_NAME);
  if (error != 0)
    goto out;
  output->piece = piece;
  output->fd = put.fd;
  keep_mode(put.fd, path);
  status = write_all(output);
  if (status == ACCRT_OK)
    error = accrt_put_end(&put, false);
  accrt_put_drop(&put);
out:
  if (error != 0)
    status = fail_file(path, error);
  /* It may contain plaintext. */
  if (piece != NULL)
    accrt_wipe(piece, ACCX_CHUNK_BYTES);
  accrt_free(allocator, piece, ACCX_CHUNK_BYTES);
  accrt_free(allocator, output, sizeof *output);
  return status;
}
