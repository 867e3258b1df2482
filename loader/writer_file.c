/* loader/writer_file.c - writing a bundle: layout, digests, the check of the whole, and the outputs. Weights and code are pulled in
 * pieces of a few MiB and never kept. */
#define _GNU_SOURCE
#include "loader/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/core/file_io.h"
#include "runtime/core/struct.h"

#define HEAD_BYTES(encoder)                                                                        \
  (sizeof(accx_header_t) + (uint64_t)(encoder)->part_count * sizeof(accx_section_t))
#define MAX_PATH_BYTES 4096

/* ---- Pulling ---- */

static accrt_status_t pull(const writer_encoder_t* encoder, const writer_piece_t* piece,
                           uint64_t offset, unsigned char* target, uint64_t size_bytes) {
  const accrt_writer_bytes_t* bytes = piece->bytes;
  uint64_t done = size_bytes;
  int error = 0;
  if (bytes->kind == ACCRT_WRITER_BYTES_MEMORY)
    memcpy(target, (const unsigned char*)bytes->data + offset, size_bytes);
  else if (bytes->kind == ACCRT_WRITER_BYTES_READER)
    error = bytes->read(bytes->self, offset, target, size_bytes);
  else
    error = accrt_file_read(bytes->fd, -1, bytes->offset + offset, target, size_bytes, &done);
  if (error == 0 && done == size_bytes)
    return ACCRT_OK;
  return ACCRT_FAIL_ERRNO(IO, error, "%s '%.64s': %s", accx_writer_kind_name(piece->kind),
                          accx_writer_text(encoder->writer, piece->name),
                          error == 0 ? "the file ends before its bytes do" : strerror(error));
}

/* Fills `target` with bytes of a section that is pulled. */
static accrt_status_t pull_part(const writer_encoder_t* encoder, const writer_part_t* part,
                                uint64_t offset, unsigned char* target, uint64_t size_bytes) {
  uint32_t low = 0, high = part->piece_count;
  while (high - low > 1) { /* the last piece that begins at or before the offset */
    const uint32_t middle = low + (high - low) / 2;
    if (part->pieces[middle].offset_bytes <= offset)
      low = middle;
    else
      high = middle;
  }
  const uint64_t end = offset + size_bytes;
  for (uint64_t at = offset; at < end;) {
    const writer_piece_t* piece = &part->pieces[low];
    const uint64_t piece_end = piece->offset_bytes + piece->bytes->size_bytes;
    uint64_t stop = at < piece_end                ? piece_end
                    : low + 1 < part->piece_count ? piece[1].offset_bytes
                                                  : end;
    stop = stop < end ? stop : end;
    if (at < piece_end)
      ACCX_TRY(pull(encoder, piece, at - piece->offset_bytes, target + (at - offset), stop - at));
    else
      memset(target + (at - offset), 0, stop - at);
    at = stop;
    while (low + 1 < part->piece_count && part->pieces[low + 1].offset_bytes <= at)
      ++low;
  }
  return ACCRT_OK;
}

/* ---- Layout ---- */

static accrt_status_t add_part(writer_encoder_t* encoder, const accx_section_t* section,
                               const writer_part_t* content) {
  if (section->size_bytes == 0)
    return ACCRT_OK;
  if (encoder->part_count == ACCX_MAX_SECTIONS)
    return WRITER_FAIL(encoder->writer, OUT_OF_RANGE, "more than %u sections", ACCX_MAX_SECTIONS);
  writer_part_t* part = &encoder->parts[encoder->part_count++];
  *part = *content;
  part->section = *section;
  return ACCRT_OK;
}

/* Adds the sections that were given as bytes, up to a type. */
static accrt_status_t add_raw(writer_encoder_t* encoder, uint32_t* next, uint64_t end_type) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  for (; *next < encoder->order_count[WRITER_SECTION]; ++*next) {
    const uint32_t index = encoder->order[WRITER_SECTION][*next];
    const writer_section_t* raw = WRITER_ITEM(writer, section, WRITER_SECTION, index);
    if (raw->type >= end_type)
      return ACCRT_OK;
    accx_section_t section = {.type = raw->type,
                              .flags = raw->flags,
                              .size_bytes = raw->bytes.size_bytes,
                              .record_bytes = raw->record_bytes,
                              .record_count = raw->record_count};
    memcpy(section.name, raw->name, sizeof section.name);
    writer_piece_t* piece = &encoder->raw_pieces[*next];
    *piece = (writer_piece_t){0, &raw->bytes, WRITER_SECTION, 0};
    const writer_part_t content = {.pieces = piece, .piece_count = 1};
    ACCX_TRY(add_part(encoder, &section, &content));
  }
  return ACCRT_OK;
}

/* What a section of the specification has in it. */
static void describe(const writer_encoder_t* encoder, const accx_section_kind_t* kind,
                     accx_section_t* section, writer_part_t* content) {
  static const uint32_t pulled[] = {[WRITER_PULLED_ASSETS] = ACCX_SECTION_ASSET_DATA,
                                    [WRITER_PULLED_CODE] = ACCX_SECTION_CODE,
                                    [WRITER_PULLED_DATA] = ACCX_SECTION_DATA};
  const writer_items_t* items = &encoder->sections[kind->type];
  const bool stream = kind->record_bytes == 0;
  *section = (accx_section_t){.type = kind->type,
                              .flags = kind->required ? ACCX_SECTION_FLAG_REQUIRED : 0,
                              .size_bytes = (uint64_t)items->count * items->item_bytes,
                              .record_bytes = stream ? 0 : items->item_bytes,
                              .record_count = stream ? 0 : items->count};
  *content = (writer_part_t){.content = items->data};
  strncpy(section->name, kind->name, sizeof section->name);
  if (kind->type == ACCX_SECTION_STRINGS)
    section->record_count = encoder->string_count;
  if (kind->type == ACCX_SECTION_COMMANDS)
    section->record_count = encoder->command_count;
  for (uint32_t i = 0; i < 3; ++i) {
    if (pulled[i] != kind->type)
      continue;
    section->size_bytes = encoder->pulled_bytes[i];
    *content =
        (writer_part_t){.pieces = (const writer_piece_t*)(const void*)encoder->pieces[i].data,
                        .piece_count = encoder->pieces[i].count};
  }
}

/* One digest for each MiB of DATA, zero until it is known. */
static accrt_status_t make_chunk_digests(writer_encoder_t* encoder) {
  writer_items_t* items = &encoder->sections[ACCX_SECTION_CHUNK_DIGESTS];
  const uint64_t chunks =
      (encoder->pulled_bytes[WRITER_PULLED_DATA] + ACCX_CHUNK_BYTES - 1) / ACCX_CHUNK_BYTES;
  if (chunks >= ACCX_MAX_RECORDS)
    return WRITER_FAIL(encoder->writer, OUT_OF_RANGE,
                       "%" PRIu64 " MiB of weights; at most %u are "
                       "possible",
                       chunks, ACCX_MAX_RECORDS - 1);
  void* data = items->data;
  ACCX_TRY(accrt_grow_array(&encoder->writer->allocator, (size_t)chunks, items->item_bytes,
                            &items->capacity, &data));
  items->data = data;
  items->count = (uint32_t)chunks;
  return ACCRT_OK;
}

static writer_part_t* find_part(writer_encoder_t* encoder, uint32_t type) {
  for (uint32_t i = 0; i < encoder->part_count; ++i) {
    if (encoder->parts[i].section.type == type)
      return &encoder->parts[i];
  }
  return NULL;
}

/* DATA that was given as bytes: encrypted, also what is between the constants. */
static accrt_status_t given_data(writer_encoder_t* encoder, uint32_t* next,
                                 const accx_section_t* section, writer_part_t* content) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  if (*next == encoder->order_count[WRITER_SECTION])
    return ACCRT_OK;
  const uint32_t index = encoder->order[WRITER_SECTION][*next];
  const writer_section_t* raw = WRITER_ITEM(writer, section, WRITER_SECTION, index);
  if (raw->type != ACCX_SECTION_DATA)
    return ACCRT_OK;
  if (raw->bytes.size_bytes != section->size_bytes ||
      find_part(encoder, ACCX_SECTION_ENCRYPTION) == NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT,
                       "section data of %" PRIu64 " bytes is given, where constants have %" PRIu64
                       " (and only encrypted ones may be)",
                       raw->bytes.size_bytes, section->size_bytes);
  writer_piece_t* piece = &encoder->raw_pieces[(*next)++];
  *piece = (writer_piece_t){0, &raw->bytes, WRITER_SECTION, 0};
  *content = (writer_part_t){.pieces = piece, .piece_count = 1};
  return ACCRT_OK;
}

static accrt_status_t lay_out(writer_encoder_t* encoder) {
  void* memory;
  uint32_t next_raw = 0;
  ACCX_TRY(make_chunk_digests(encoder));
  ACCX_TRY(accrt_alloc_array(&encoder->writer->allocator, encoder->order_count[WRITER_SECTION],
                             sizeof(writer_piece_t), &memory));
  encoder->raw_pieces = memory;
  for (uint32_t type = 1; type < ACCX_MAX_SECTIONS; ++type) {
    const accx_section_kind_t* kind = accx_section_kind(type);
    if (kind == NULL)
      continue;
    accx_section_t section;
    writer_part_t content;
    ACCX_TRY(add_raw(encoder, &next_raw, type));
    describe(encoder, kind, &section, &content);
    if (type == ACCX_SECTION_DATA)
      ACCX_TRY(given_data(encoder, &next_raw, &section, &content));
    ACCX_TRY(add_part(encoder, &section, &content));
  }
  ACCX_TRY(add_raw(encoder, &next_raw, UINT64_MAX));
  uint64_t end = HEAD_BYTES(encoder);
  for (uint32_t i = 0; i < encoder->part_count; ++i) {
    accx_section_t* section = &encoder->parts[i].section;
    const accx_section_kind_t* kind = accx_section_kind(section->type);
    if (!accrt_align_u64(end, kind != NULL ? kind->alignment : 8, &section->offset) ||
        !accrt_add_u64(section->offset, section->size_bytes, &end) || end > INT64_MAX)
      return WRITER_FAIL(encoder->writer, OUT_OF_RANGE, "the file does not fit 2^63 bytes");
  }
  memcpy(encoder->header.magic, ACCX_MAGIC, sizeof encoder->header.magic);
  encoder->header.file_size_bytes = end;
  encoder->header.optional_features = encoder->writer->optional_features;
  encoder->header.section_count = encoder->part_count;
  encoder->header.section_record_bytes = sizeof(accx_section_t);
  encoder->header.section_table_offset = sizeof(accx_header_t);
  return ACCRT_OK;
}

/* ---- Digests ---- */

/* Gives `take` all bytes of a section, in order. */
static accrt_status_t stream_part(const writer_encoder_t* encoder, const writer_part_t* part,
                                  accrt_status_t (*take)(void*, uint64_t, const unsigned char*,
                                                         uint64_t),
                                  void* context) {
  const uint64_t size = part->section.size_bytes;
  for (uint64_t at = 0; at < size;) {
    const uint64_t left = size - at;
    const uint64_t piece = left < WRITER_BUFFER_BYTES ? left : WRITER_BUFFER_BYTES;
    const unsigned char* bytes = encoder->buffer;
    if (part->content != NULL)
      bytes = part->content + at;
    else
      ACCX_TRY(pull_part(encoder, part, at, encoder->buffer, piece));
    ACCX_TRY(take(context, at, bytes, piece));
    at += piece;
  }
  return ACCRT_OK;
}

static accrt_status_t take_digest(void* context, uint64_t at, const unsigned char* bytes,
                                  uint64_t size_bytes) {
  (void)at;
  accx_hasher_update(context, bytes, (size_t)size_bytes);
  return ACCRT_OK;
}

/* Digests of the sections whose bytes are there already: all but DATA. */
static accrt_status_t digest_parts(writer_encoder_t* encoder) {
  for (uint32_t i = 0; i < encoder->part_count; ++i) {
    writer_part_t* part = &encoder->parts[i];
    if (part->section.type == ACCX_SECTION_DATA)
      continue;
    accx_hasher_t hasher;
    accx_hasher_init(&hasher);
    ACCX_TRY(stream_part(encoder, part, take_digest, &hasher));
    part->section.digest = accx_hasher_finish(&hasher);
  }
  return ACCRT_OK;
}

/* The head as it is now: DATA's digest is that of the chunks' digests. */
static void finish_head(writer_encoder_t* encoder) {
  writer_part_t* chunks = find_part(encoder, ACCX_SECTION_CHUNK_DIGESTS);
  if (chunks != NULL) {
    chunks->section.digest = accx_digest_of(chunks->content, (size_t)chunks->section.size_bytes);
    find_part(encoder, ACCX_SECTION_DATA)->section.digest = chunks->section.digest;
  }
  for (uint32_t i = 0; i < encoder->part_count; ++i)
    encoder->table[i] = encoder->parts[i].section;
  encoder->header.digest = accx_header_digest(&encoder->header, encoder->table);
}
_Static_assert(offsetof(writer_encoder_t, table) ==
                   offsetof(writer_encoder_t, header) + sizeof(accx_header_t),
               "the head is one run of bytes");

/* ---- The check of the whole ---- */

/* The file as it will be, without its weights, for the verifier. */
static int32_t read_virtual(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  const writer_encoder_t* encoder = self;
  unsigned char* bytes = target;
  const uint64_t end = offset + size_bytes;
  memset(bytes, 0, size_bytes);
  for (uint32_t i = 0; i <= encoder->part_count; ++i) {
    const writer_part_t* part = &encoder->parts[i == 0 ? 0 : i - 1];
    const uint64_t first = i == 0 ? 0 : part->section.offset;
    const uint64_t size = i == 0 ? HEAD_BYTES(encoder) : part->section.size_bytes;
    const uint64_t from = offset > first ? offset : first;
    const uint64_t to = end < first + size ? end : first + size;
    if (from >= to || (i != 0 && part->section.type == ACCX_SECTION_DATA))
      continue;
    const unsigned char* content = i == 0 ? (const unsigned char*)&encoder->header : part->content;
    if (content != NULL)
      memcpy(bytes + (from - offset), content + (from - first), to - from);
    else if (pull_part(encoder, part, from - first, bytes + (from - offset), to - from) != ACCRT_OK)
      return EIO;
  }
  return 0;
}

static bool lacks_launches(const accrt_bundle_writer_t* writer) {
  for (uint32_t i = 0; i < writer->items[WRITER_VARIANT].count; ++i) {
    const writer_variant_t* item = WRITER_ITEM(writer, variant, WRITER_VARIANT, i);
    const uint32_t image = WRITER_INDEX(item->record.image);
    const uint32_t kind = WRITER_ITEM(writer, image, WRITER_IMAGE, image)->record.kind;
    if (!item->has_launch && kind != ACCX_IMAGE_HOST_ELF && kind != ACCX_IMAGE_PACK)
      return true;
  }
  return false;
}

/* The verifier reads what will be written, and computes the versions that it needs: what it accepts opens. */
static accrt_status_t check_whole(writer_encoder_t* encoder) {
  const bool first_minor = lacks_launches(encoder->writer);
  accx_header_t* header = &encoder->header;
  header->container =
      (accx_version_t){ACCX_CONTAINER_MAJOR, first_minor ? 1 : ACCX_CONTAINER_MINOR};
  header->commands = (accx_version_t){ACCX_COMMANDS_MAJOR, ACCX_COMMANDS_MINOR};
  header->kernel_abi = (accx_version_t){ACCRT_KERNEL_ABI_MAJOR, ACCRT_KERNEL_ABI_MINOR};
  header->layouts = (accx_version_t){ACCX_LAYOUTS_MAJOR, ACCX_LAYOUTS_MINOR};
  if (find_part(encoder, ACCX_SECTION_ENCRYPTION) != NULL)
    header->required_features |= ACCX_FEATURE_ENCRYPTED_DATA;
  finish_head(encoder);
  const accrt_reader_t reader = {encoder, header->file_size_bytes, read_virtual, NULL};
  accx_header_t minimum;
  accrt_status_t status = accx_check_bytes(&encoder->writer->allocator, &reader, &minimum);
  if (status == ACCRT_ERROR_INVALID_FORMAT || status == ACCRT_ERROR_VERSION_MISMATCH) {
    accrt_error_current()->status = ACCRT_ERROR_INVALID_ARGUMENT;
    return ACCRT_ERROR_INVALID_ARGUMENT;
  }
  if (status != ACCRT_OK)
    return status;
  header->container = minimum.container;
  header->commands = minimum.commands;
  header->kernel_abi = minimum.kernel_abi;
  header->layouts = minimum.layouts;
  if (first_minor && minimum.container.minor > 1)
    return WRITER_FAIL(encoder->writer, INVALID_ARGUMENT,
                       "device code without a launch, in a bundle that needs container %u.%u",
                       minimum.container.major, minimum.container.minor);
  return ACCRT_OK;
}

/* Encodes and checks; what is to be written is then in the encoder. */
static accrt_status_t prepare(accrt_bundle_writer_t* writer, writer_encoder_t* encoder) {
  memset(encoder, 0, sizeof *encoder);
  encoder->writer = writer;
  ACCX_TRY(accx_writer_encode(encoder));
  ACCX_TRY(lay_out(encoder));
  void* memory;
  ACCX_TRY(accrt_alloc_aligned(&writer->allocator, WRITER_BUFFER_BYTES, ACCX_DATA_ALIGN, &memory));
  encoder->buffer = memory;
  ACCX_TRY(digest_parts(encoder));
  ACCX_TRY(check_whole(encoder));
  return accx_writer_check_target(encoder);
}

/* ---- Writing ---- */

typedef struct writing {
  writer_encoder_t* encoder;
  const accrt_writer_output_t* output;
  uint64_t offset;      /* of the section */
  accx_hasher_t hasher; /* of a section that is pulled */
  bool store;           /* DATA: chunks' digests are made, not compared */
  bool silent;          /* DATA: nothing is written yet */
} writing_t;

static accrt_status_t emit(const writing_t* writing, uint64_t offset, const void* bytes,
                           uint64_t size_bytes) {
  const int error = size_bytes == 0
                        ? 0
                        : writing->output->write(writing->output->self, offset, bytes, size_bytes);
  if (error == 0)
    return ACCRT_OK;
  return ACCRT_FAIL_ERRNO(IO, error, "writing %" PRIu64 " bytes at %" PRIu64 ": %s", size_bytes,
                          offset, strerror(error));
}

static accrt_status_t emit_zeros(const writing_t* writing, uint64_t from, uint64_t to) {
  static unsigned char
      zeros[ACCX_DATA_ALIGN]; /* not const: it then takes no bytes of the library */
  return emit(writing, from, zeros, to - from);
}

static accrt_status_t changed(const writing_t* writing, const char* name) {
  return WRITER_FAIL(writing->encoder->writer, DATA_CORRUPT,
                     "%.16s: its bytes were others when they were pulled again", name);
}

static accrt_status_t take_bytes(void* context, uint64_t at, const unsigned char* bytes,
                                 uint64_t size_bytes) {
  writing_t* writing = context;
  accx_hasher_update(&writing->hasher, bytes, (size_t)size_bytes);
  return emit(writing, writing->offset + at, bytes, size_bytes);
}

static accrt_status_t take_data(void* context, uint64_t at, const unsigned char* bytes,
                                uint64_t size_bytes) {
  writing_t* writing = context;
  accx_digest_t* digests =
      (accx_digest_t*)(void*)writing->encoder->sections[ACCX_SECTION_CHUNK_DIGESTS].data;
  for (uint64_t done = 0; done < size_bytes; done += ACCX_CHUNK_BYTES) {
    const uint64_t left = size_bytes - done;
    const accx_digest_t digest =
        accx_digest_of(bytes + done, (size_t)(left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES));
    accx_digest_t* known = &digests[(at + done) / ACCX_CHUNK_BYTES];
    if (writing->store)
      *known = digest;
    else if (!accx_digest_equal(known, &digest))
      return changed(writing, "data");
  }
  return writing->silent ? ACCRT_OK : emit(writing, writing->offset + at, bytes, size_bytes);
}
_Static_assert(WRITER_BUFFER_BYTES % ACCX_CHUNK_BYTES == 0, "take_data gets whole chunks");

static accrt_status_t write_part(writing_t* writing, const writer_part_t* part) {
  writing->offset = part->section.offset;
  if (part->section.type == ACCX_SECTION_DATA)
    return stream_part(writing->encoder, part, take_data, writing);
  if (part->content != NULL)
    return emit(writing, writing->offset, part->content, part->section.size_bytes);
  accx_hasher_init(&writing->hasher);
  ACCX_TRY(stream_part(writing->encoder, part, take_bytes, writing));
  const accx_digest_t digest = accx_hasher_finish(&writing->hasher);
  return accx_digest_equal(&digest, &part->section.digest) ? ACCRT_OK
                                                           : changed(writing, part->section.name);
}

/* DATA first where the output can be positioned: its digests come before it in the file. */
static accrt_status_t write_all(writer_encoder_t* encoder, const accrt_writer_output_t* output) {
  const bool in_order = (output->flags & ACCRT_WRITER_OUTPUT_IN_ORDER) != 0;
  const writer_part_t* data = find_part(encoder, ACCX_SECTION_DATA);
  writing_t writing = {.encoder = encoder, .output = output, .store = true, .silent = in_order};
  if (data != NULL)
    ACCX_TRY(write_part(&writing, data));
  writing.store = false;
  writing.silent = false;
  finish_head(encoder);
  uint64_t end = HEAD_BYTES(encoder);
  ACCX_TRY(emit(&writing, 0, &encoder->header, end));
  for (uint32_t i = 0; i < encoder->part_count; ++i) {
    const writer_part_t* part = &encoder->parts[i];
    ACCX_TRY(emit_zeros(&writing, end, part->section.offset));
    if (part != data || in_order)
      ACCX_TRY(write_part(&writing, part));
    end = part->section.offset + part->section.size_bytes;
  }
  return ACCRT_OK;
}

static accrt_status_t write_to(accrt_bundle_writer_t* writer, const accrt_writer_output_t* output,
                               uint64_t* out_size_bytes) {
  writer_encoder_t encoder;
  accrt_status_t status = prepare(writer, &encoder);
  if (status == ACCRT_OK)
    status = write_all(&encoder, output);
  *out_size_bytes = encoder.header.file_size_bytes;
  accx_writer_encode_end(&encoder);
  return status;
}

accrt_status_t accrt_bundle_writer_write_callback(accrt_bundle_writer_t* writer,
                                                  const accrt_writer_output_t* output) {
  ACCX_TRY(accx_writer_begin(writer, __func__, NULL, NULL));
  uint64_t size;
  if (output == NULL || output->write == NULL || output->flags > ACCRT_WRITER_OUTPUT_IN_ORDER)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "output has no function, or unknown flags");
  ACCX_TRY(accx_writer_reserved(writer, output->reserved));
  return write_to(writer, output, &size);
}

/* ---- Files ---- */

typedef struct file_output {
  int fd;
  int64_t start; /* -1: write in order, without positions */
} file_output_t;

static int32_t write_file(void* self, uint64_t offset, const void* data, uint64_t size_bytes) {
  const file_output_t* file = self;
  const int64_t at = file->start < 0 ? -1 : (int64_t)((uint64_t)file->start + offset);
  return accrt_file_write(file->fd, at, data, size_bytes);
}

accrt_status_t accrt_bundle_writer_write_fd(accrt_bundle_writer_t* writer, int32_t fd) {
  ACCX_TRY(accx_writer_begin(writer, __func__, NULL, NULL));
  file_output_t file = {fd, lseek(fd, 0, SEEK_CUR)};
  uint64_t size;
  if (file.start < 0 && errno != ESPIPE)
    return ACCRT_FAIL_ERRNO(IO, errno, "file descriptor %" PRId32 ": %s", fd, strerror(errno));
  const accrt_writer_output_t output = {&file, write_file,
                                        file.start < 0 ? ACCRT_WRITER_OUTPUT_IN_ORDER : 0, 0};
  ACCX_TRY(write_to(writer, &output, &size));
  if (file.start >= 0 && lseek(fd, (off_t)((uint64_t)file.start + size), SEEK_SET) < 0)
    return ACCRT_FAIL_ERRNO(IO, errno, "file descriptor %" PRId32 ": %s", fd, strerror(errno));
  return ACCRT_OK;
}

/* A new file beside `path`. */
static accrt_status_t open_beside(const char* path, char temporary[MAX_PATH_BYTES], int* out_fd) {
  static atomic_uint counter; /* relaxed: names differ, nothing else follows from it */
  const unsigned number = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
  const int size =
      snprintf(temporary, MAX_PATH_BYTES, "%s.%ld.%u.part", path, (long)getpid(), number);
  if (size < 0 || size >= MAX_PATH_BYTES)
    return ACCRT_FAIL_ERRNO(IO, ENAMETOOLONG, "the path is too long");
  *out_fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (*out_fd >= 0)
    return ACCRT_OK;
  return ACCRT_FAIL_ERRNO(IO, errno, "%s cannot be made: %s", temporary, strerror(errno));
}

accrt_status_t accrt_bundle_writer_write_path(accrt_bundle_writer_t* writer, const char* path) {
  ACCX_TRY(accx_writer_begin(writer, __func__, NULL, NULL));
  if (path == NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "path is NULL");
  char temporary[MAX_PATH_BYTES];
  file_output_t file = {-1, 0};
  uint64_t size;
  ACCX_TRY(open_beside(path, temporary, &file.fd));
  const accrt_writer_output_t output = {&file, write_file, 0, 0};
  accrt_status_t status = write_to(writer, &output, &size);
  if (close(file.fd) != 0 && status == ACCRT_OK)
    status = ACCRT_FAIL_ERRNO(IO, errno, "%s: %s", temporary, strerror(errno));
  if (status == ACCRT_OK && rename(temporary, path) != 0)
    status = ACCRT_FAIL_ERRNO(IO, errno, "%s cannot be put in place: %s", path, strerror(errno));
  if (status != ACCRT_OK)
    (void)unlink(temporary);
  return status;
}

/* ---- Checking alone ---- */

static void summarize(const writer_encoder_t* encoder, accrt_writer_summary_t* summary) {
  const accx_header_t* header = &encoder->header;
  summary->section_count = header->section_count;
  summary->size_bytes = header->file_size_bytes;
  summary->data_size_bytes = encoder->pulled_bytes[WRITER_PULLED_DATA];
  summary->container_major = header->container.major;
  summary->container_minor = header->container.minor;
  summary->commands_major = header->commands.major;
  summary->commands_minor = header->commands.minor;
  summary->kernel_abi_major = header->kernel_abi.major;
  summary->kernel_abi_minor = header->kernel_abi.minor;
  summary->layouts_major = header->layouts.major;
  summary->layouts_minor = header->layouts.minor;
}

accrt_status_t accrt_bundle_writer_check(accrt_bundle_writer_t* writer,
                                         accrt_writer_summary_t* out_summary) {
  ACCX_TRY(accx_writer_begin(writer, __func__, NULL, NULL));
  accrt_writer_summary_t summary = ACCRT_WRITER_SUMMARY_INIT;
  writer_encoder_t encoder;
  accrt_status_t status = prepare(writer, &encoder);
  if (status == ACCRT_OK && out_summary != NULL) {
    summarize(&encoder, &summary);
    status = accrt_struct_write("accrt_writer_summary_t", out_summary, &summary, sizeof summary);
  }
  accx_writer_encode_end(&encoder);
  return status;
}
