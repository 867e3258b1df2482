/* loader/rewrite.c - see loader/rewrite.h. It writes one new file and renames it; it changes no file in place. */
#define _GNU_SOURCE
#include "loader/rewrite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/core/crypto.h"
#include "runtime/core/file_io.h"

#define MAX_PATH_BYTES 4096u

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

static const accx_section_t* old_section(const accrt_bundle_t* bundle, uint32_t type) {
  for (uint32_t i = 0; i < bundle->tables.section_count; ++i) {
    if (bundle->tables.sections[i].type == type)
      return &bundle->tables.sections[i];
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
  const accrt_bundle_tables_t* tables = &rewrite->bundle->tables;
  if (tables->section_count + rewrite->change_count > ACCX_MAX_SECTIONS) {
    return ACCRT_FAIL(UNSUPPORTED, "%s: %" PRIu32 " sections leave no room for more",
                      rewrite->bundle->name, tables->section_count);
  }
  for (uint32_t i = 0; i < tables->section_count; ++i) {
    if (change_of(rewrite, tables->sections[i].type) == NULL)
      insert(output, &tables->sections[i]);
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

/* What a newer file says of itself stays; all else is computed, as the verifier does. */
static void choose(accx_version_t* version, accx_version_t computed, uint16_t known_minor) {
  if (version->minor <= known_minor)
    *version = computed;
}

static void make_header(output_t* output) {
  accrt_bundle_tables_t tables = output->rewrite->bundle->tables;
  accx_header_t computed;
  tables.sections = output->table;
  tables.section_count = output->count;
  accx_verify_minimum(&tables, &computed);
  accx_header_t* header = &output->header;
  const uint64_t size = header->file_size_bytes;
  *header = tables.header;
  header->file_size_bytes = size;
  header->section_count = output->count;
  header->required_features = output->rewrite->required_features;
  choose(&header->container, computed.container, ACCX_CONTAINER_MINOR);
  choose(&header->commands, computed.commands, ACCX_COMMANDS_MINOR);
  choose(&header->kernel_abi, computed.kernel_abi, ACCRT_KERNEL_ABI_MINOR);
  choose(&header->layouts, computed.layouts, ACCX_LAYOUTS_MINOR);
  header->digest = accx_header_digest(header, output->table);
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
  for (uint32_t i = 0; i < rewrite->bundle->tables.chunk_count; ++i) {
    const uint64_t offset = (uint64_t)i * ACCX_CHUNK_BYTES;
    const uint64_t left = section->size_bytes - offset;
    const size_t size = left < ACCX_CHUNK_BYTES ? (size_t)left : ACCX_CHUNK_BYTES;
    ACCX_TRY(accx_data_file_chunk(rewrite->bundle, i, output->piece));
    ACCX_TRY(rewrite->chunk(rewrite->user, i, output->piece, size));
    ACCX_TRY(put(output, section->offset + offset, output->piece, size));
  }
  return ACCRT_OK;
}

static accrt_status_t copy_section(output_t* output, const accx_section_t* section) {
  accrt_bundle_t* bundle = output->rewrite->bundle;
  const accx_section_t* old = old_section(bundle, section->type);
  for (uint64_t at = 0; at < section->size_bytes;) {
    const uint64_t left = section->size_bytes - at;
    const uint64_t size = left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
    ACCX_TRY(accx_source_read_alone(&bundle->source, old->offset + at, output->piece, size));
    ACCX_TRY(put(output, section->offset + at, output->piece, size));
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
      section->digest = chunks->digest; /* DATA's digest is that of its digests */
    if (change == NULL)
      continue;
    section->digest = accx_digest_of(change->bytes, (size_t)change->size_bytes);
    ACCX_TRY(put(output, section->offset, change->bytes, change->size_bytes));
    if (section->type == ACCX_SECTION_CHUNK_DIGESTS)
      chunks = section;
  }
  return ACCRT_OK;
}

static accrt_status_t write_all(output_t* output) {
  if (ftruncate(output->fd, (off_t)output->header.file_size_bytes) != 0) {
    return ACCRT_FAIL_ERRNO(IO, errno, "%s: could not be made %" PRIu64 " bytes long: %s",
                            output->path, output->header.file_size_bytes, strerror(errno));
  }
  for (uint32_t i = 0; i < output->count; ++i) {
    const accx_section_t* section = &output->table[i];
    if (section->type == ACCX_SECTION_DATA)
      ACCX_TRY(copy_data(output, section));
    else if (change_of(output->rewrite, section->type) == NULL)
      ACCX_TRY(copy_section(output, section));
  }
  ACCX_TRY(output->rewrite->finish(output->rewrite->user));
  ACCX_TRY(put_changes(output));
  make_header(output);
  ACCX_TRY(put(output, 0, &output->header, sizeof output->header));
  ACCX_TRY(
      put(output, sizeof output->header, output->table, output->count * sizeof *output->table));
  return fsync(output->fd) == 0
             ? ACCRT_OK
             : ACCRT_FAIL_ERRNO(IO, errno, "%s: %s", output->path, strerror(errno));
}

/* ---- The file ---- */

/* A name beside `path` that nobody has. */
static accrt_status_t open_part(const char* path, char* part, int* out_fd) {
  uint64_t number;
  ACCX_TRY(accrt_random(&number, sizeof number));
  if ((size_t)snprintf(part, MAX_PATH_BYTES, "%s.%016" PRIx64 ".part", path, number) >=
      MAX_PATH_BYTES)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%.80s...: the path is too long", path);
  *out_fd = open(part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (*out_fd >= 0)
    return ACCRT_OK;
  return ACCRT_FAIL_ERRNO(IO, errno, "%s: could not be made: %s", part, strerror(errno));
}

/* One that replaces another is for whom that was. */
static void keep_mode(int fd, const char* path) {
  struct stat facts;
  if (stat(path, &facts) == 0 && S_ISREG(facts.st_mode))
    (void)fchmod(fd, facts.st_mode & 0777);
}

accrt_status_t accx_rewrite(const accx_rewrite_t* rewrite, const char* path) {
  const accrt_allocator_t* allocator = rewrite->bundle->allocator;
  char part[MAX_PATH_BYTES];
  void *memory = NULL, *piece = NULL;
  int fd = -1;
  ACCX_TRY(accrt_alloc(allocator, sizeof(output_t), &memory));
  output_t* output = memory;
  output->rewrite = rewrite;
  output->path = path;
  accrt_status_t status = make_table(output);
  if (status == ACCRT_OK)
    status = accrt_alloc(allocator, ACCX_CHUNK_BYTES, &piece);
  if (status == ACCRT_OK)
    status = open_part(path, part, &fd);
  if (status != ACCRT_OK)
    goto out;
  output->piece = piece;
  output->fd = fd;
  keep_mode(fd, path);
  status = write_all(output);
  if (close(fd) != 0 && status == ACCRT_OK)
    status = ACCRT_FAIL_ERRNO(IO, errno, "%s: %s", path, strerror(errno));
  if (status == ACCRT_OK && rename(part, path) != 0)
    status = ACCRT_FAIL_ERRNO(IO, errno, "%s: could not be renamed to: %s", path, strerror(errno));
  if (status != ACCRT_OK)
    (void)unlink(part);
out:
  /* It may have held plaintext. */
  if (piece != NULL)
    accrt_wipe(piece, ACCX_CHUNK_BYTES);
  accrt_free(allocator, piece, ACCX_CHUNK_BYTES);
  accrt_free(allocator, output, sizeof *output);
  return status;
}
