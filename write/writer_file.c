/* write/writer_file.c - writes a bundle: layout, digests, the check of the whole file, and the
 * outputs. Weights and code are read in pieces of a few MiB and never stored. */
#define _GNU_SOURCE
#include "write/writer.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "format/tree.h"
#include "runtime/core/file_io.h"
#include "runtime/core/put_file.h"
#include "runtime/core/struct.h"

#define HEAD_BYTES(encoder)                                                                        \
  (sizeof(accx_header_t) + (uint64_t)(encoder)->part_count * sizeof(accx_section_t))

/* ---- Reading sources ---- */

static accrt_status_t pull(const writer_encoder_t* encoder, const writer_piece_t* piece,
                           uint64_t offset, unsigned char* target, uint64_t size_bytes) {
  const accrt_writer_bytes_t* bytes = piece->bytes;
  uint64_t done = size_bytes;
  int error = 0;
  if (bytes->kind == ACCRT_WRITER_BYTES_MEMORY)
    memcpy(target, (const unsigned char*)bytes->data + offset, size_bytes);
  else if (bytes->kind == ACCRT_WRITER_BYTES_READER)
    ACCRT_CALL_USER(error = bytes->read(bytes->self, offset, target, size_bytes));
  else
    error = accrt_file_read(bytes->fd, -1, bytes->offset + offset, target, size_bytes, &done);
  if (error == 0 && done == size_bytes)
    return ACCRT_OK;
  return ACCRT_FAIL_ERRNO(IO, error, "%s '%.64s': %s", accx_writer_kind_name(piece->kind),
                          accx_writer_text(encoder->writer, piece->name),
                          error == 0 ? "the file ends before its bytes do" : strerror(error));
}

/* The last piece that begins at or before the offset. */
static uint32_t find_piece(const writer_part_t* part, uint64_t offset) {
  uint32_t low = 0, high = part->piece_count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (part->pieces[middle].offset_bytes <= offset)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Fills `target` with bytes of a section that comes from sources. */
static accrt_status_t pull_part(const writer_encoder_t* encoder, const writer_part_t* part,
                                uint64_t offset, unsigned char* target, uint64_t size_bytes) {
  uint32_t low = find_piece(part, offset);
  const uint64_t end = offset + size_bytes;
  for (uint64_t at = offset; at < end;) {
    const writer_piece_t* piece = &part->pieces[low];
    const uint64_t piece_end = piece->offset_bytes + piece->bytes->size_bytes;
    uint64_t stop = at < piece_end                ? piece_end
                    : low + 1 < part->piece_count ? piece[1].offset_bytes
                                                  : end;
    stop = stop < end ? stop : end;
    if (at < piece_end)
      ACCRT_TRY(pull(encoder, piece, at - piece->offset_bytes, target + (at - offset), stop - at));
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

/* Adds the sections that the user gave as bytes, up to a type. */
static accrt_status_t add_raw(writer_encoder_t* encoder, uint32_t* next, uint64_t end_type) {
  const accrt_bundle_writer_t* writer = encoder->writer;
  for (; *next < encoder->order_count[WRITER_SECTION]; ++*next) {
    const uint32_t index = encoder->order[WRITER_SECTION][*next];
    const writer_section_t* raw = WRITER_ITEM(writer, section, WRITER_SECTION, index);
    if (raw->type >= end_type)
      return ACCRT_OK;
    accx_section_t section = {.type = raw->type,
                              .flags = accx_section_kind(raw->type) != NULL ? raw->flags : 0,
                              .size_bytes = raw->bytes.size_bytes,
                              .record_bytes = raw->record_bytes,
                              .record_count = raw->record_count};
    memcpy(section.name, raw->name, sizeof section.name);
    writer_piece_t* piece = &encoder->raw_pieces[*next];
    *piece = (writer_piece_t){0, &raw->bytes, WRITER_SECTION, 0};
    const writer_part_t content = {.pieces = piece, .piece_count = 1};
    ACCRT_TRY(add_part(encoder, &section, &content));
  }
  return ACCRT_OK;
}

/* Fills in the content of a section of the specification. */
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

accrt_status_t accx_writer_make_records(writer_encoder_t* encoder, uint32_t type, uint64_t count) {
  writer_items_t* items = &encoder->sections[type];
  void* data = items->data;
  ACCRT_TRY(accrt_grow_array(&encoder->writer->allocator, (size_t)count, items->item_bytes,
                             &items->capacity, &data));
  items->data = data;
  items->count = (uint32_t)count;
  if (count != 0)
    memset(data, 0, (size_t)count * items->item_bytes);
  return ACCRT_OK;
}

/* Reserves one digest for each MiB of DATA. They are zero until they are computed. */
static accrt_status_t make_chunk_digests(writer_encoder_t* encoder) {
  const uint64_t chunks =
      (encoder->pulled_bytes[WRITER_PULLED_DATA] + ACCX_CHUNK_BYTES - 1) / ACCX_CHUNK_BYTES;
  if (chunks >= ACCX_MAX_RECORDS)
    return WRITER_FAIL(encoder->writer, OUT_OF_RANGE,
                       "%" PRIu64 " MiB of weights; at most %u are "
                       "possible",
                       chunks, ACCX_MAX_RECORDS - 1);
  return accx_writer_make_records(encoder, ACCX_SECTION_CHUNK_DIGESTS, chunks);
}

writer_part_t* accx_writer_part(writer_encoder_t* encoder, uint32_t type) {
  for (uint32_t i = 0; i < encoder->part_count; ++i) {
    if (encoder->parts[i].section.type == type)
      return &encoder->parts[i];
  }
  return NULL;
}

/* Adds DATA that the user gave as bytes. It is encrypted, and so are the gaps between constants. */
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
      accx_writer_part(encoder, ACCX_SECTION_ENCRYPTION) == NULL)
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
  ACCRT_TRY(make_chunk_digests(encoder));
  ACCRT_TRY(accx_writer_place_signatures(encoder));
  ACCRT_TRY(accrt_alloc_array(&encoder->writer->allocator, encoder->order_count[WRITER_SECTION],
                              sizeof(writer_piece_t), &memory));
  encoder->raw_pieces = memory;
  for (uint32_t type = 1; type < ACCX_MAX_SECTIONS; ++type) {
    const accx_section_kind_t* kind = accx_section_kind(type);
    if (kind == NULL)
      continue;
    accx_section_t section;
    writer_part_t content;
    ACCRT_TRY(add_raw(encoder, &next_raw, type));
    describe(encoder, kind, &section, &content);
    if (type == ACCX_SECTION_DATA)
      ACCRT_TRY(given_data(encoder, &next_raw, &section, &content));
    ACCRT_TRY(add_part(encoder, &section, &content));
  }
  ACCRT_TRY(add_raw(encoder, &next_raw, UINT64_MAX));
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

/* Returns the address of a section's bytes if they are contiguous in memory, so that no copy is
 * needed; otherwise NULL. */
static const unsigned char* in_memory(const writer_part_t* part, uint64_t offset,
                                      uint64_t size_bytes) {
  if (part->content != NULL)
    return part->content + offset;
  const writer_piece_t* piece = &part->pieces[find_piece(part, offset)];
  const accrt_writer_bytes_t* bytes = piece->bytes;
  if (bytes->kind != ACCRT_WRITER_BYTES_MEMORY || piece->offset_bytes > offset ||
      !accrt_range_fits(offset - piece->offset_bytes, size_bytes, bytes->size_bytes))
    return NULL;
  return (const unsigned char*)bytes->data + (offset - piece->offset_bytes);
}

/* Passes all bytes of a section to `take`, in order. */
static accrt_status_t stream_part(const writer_encoder_t* encoder, const writer_part_t* part,
                                  accrt_status_t (*take)(void*, uint64_t, const unsigned char*,
                                                         uint64_t),
                                  void* context) {
  const uint64_t size = part->section.size_bytes;
  for (uint64_t at = 0; at < size;) {
    const uint64_t left = size - at;
    const uint64_t piece = left < WRITER_BUFFER_BYTES ? left : WRITER_BUFFER_BYTES;
    const unsigned char* bytes = in_memory(part, at, piece);
    if (bytes == NULL) {
      ACCRT_TRY(pull_part(encoder, part, at, encoder->buffer, piece));
      bytes = encoder->buffer;
    }
    ACCRT_TRY(take(context, at, bytes, piece));
    at += piece;
  }
  return ACCRT_OK;
}

/* The digests of one section. */
typedef struct digests {
  accx_hasher_t fast;
  accrt_sha256_t slow;
  bool for_root; /* `slow` (for the code root) is needed */
} digests_t;

static accrt_status_t take_digest(void* context, uint64_t at, const unsigned char* bytes,
                                  uint64_t size_bytes) {
  (void)at;
  digests_t* digests = context;
  accx_hasher_update(&digests->fast, bytes, (size_t)size_bytes);
  if (digests->for_root)
    accrt_sha256_update(&digests->slow, bytes, (size_t)size_bytes);
  return ACCRT_OK;
}

/* Computes the digests of all sections except DATA, whose bytes are not available yet. */
static accrt_status_t digest_parts(writer_encoder_t* encoder) {
  const struct accrt_crypto* crypto;
  const bool root = accx_writer_makes_root(encoder->writer, &crypto);
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < encoder->part_count && status == ACCRT_OK; ++i) {
    writer_part_t* part = &encoder->parts[i];
    if (part->section.type == ACCX_SECTION_DATA)
      continue;
    digests_t digests = {.for_root = root && accx_tree_covers(part->section.type)};
    accx_hasher_init(&digests.fast);
    if (digests.for_root)
      accrt_sha256_init(&digests.slow, crypto);
    status = stream_part(encoder, part, take_digest, &digests);
    part->section.digest = accx_hasher_finish(&digests.fast);
    if (digests.for_root)
      accrt_sha256_finish(&digests.slow, part->sha256);
  }
  return status;
}

/* Computes the final header. DATA's digest is the digest of the chunks' digests. */
static void finish_head(writer_encoder_t* encoder) {
  static const uint8_t late[] = {ACCX_SECTION_TREE, ACCX_SECTION_SIGNATURES, ACCX_SECTION_LEAVES};
  for (uint32_t i = 0; i < sizeof late; ++i) { /* their bytes were made after their first digest */
    writer_part_t* part = accx_writer_part(encoder, late[i]);
    if (part != NULL && part->content != NULL)
      part->section.digest = accx_digest_of(part->content, (size_t)part->section.size_bytes);
  }
  writer_part_t* chunks = accx_writer_part(encoder, ACCX_SECTION_CHUNK_DIGESTS);
  if (chunks != NULL) {
    chunks->section.digest = accx_digest_of(chunks->content, (size_t)chunks->section.size_bytes);
    accx_writer_part(encoder, ACCX_SECTION_DATA)->section.digest = chunks->section.digest;
  }
  for (uint32_t i = 0; i < encoder->part_count; ++i)
    encoder->table[i] = encoder->parts[i].section;
  encoder->header.digest = accx_header_digest(&encoder->header, encoder->table);
}
_Static_assert(offsetof(writer_encoder_t, table) ==
                   offsetof(writer_encoder_t, header) + sizeof(accx_header_t),
               "the head is one run of bytes");

/* ---- The check of the whole file ---- */

/* Reads the future file, without its weights, for the verifier. */
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

/* The verifier reads what will be written, and computes the versions that it requires. What it
 * accepts can be opened. */
static accrt_status_t check_whole(writer_encoder_t* encoder) {
  const bool first_minor = lacks_launches(encoder->writer);
  accx_header_t* header = &encoder->header;
  header->container =
      (accx_version_t){ACCX_CONTAINER_MAJOR, first_minor ? 1 : ACCX_CONTAINER_MINOR};
  header->commands = (accx_version_t){ACCX_COMMANDS_MAJOR, ACCX_COMMANDS_MINOR};
  header->kernel_abi = (accx_version_t){ACCRT_KERNEL_ABI_MAJOR, ACCRT_KERNEL_ABI_MINOR};
  header->layouts = (accx_version_t){ACCX_LAYOUTS_MAJOR, ACCX_LAYOUTS_MINOR};
  if (accx_writer_part(encoder, ACCX_SECTION_ENCRYPTION) != NULL)
    header->required_features |= ACCX_FEATURE_ENCRYPTED_DATA;
  finish_head(encoder);
  const accrt_reader_t reader = {encoder, header->file_size_bytes, read_virtual, NULL};
  accrt_bundle_info_t minimum = ACCRT_BUNDLE_INFO_INIT;
  const accrt_status_t status = accrt_bundle_check(&encoder->writer->allocator, &reader, &minimum);
  if (status == ACCRT_ERROR_INVALID_FORMAT || status == ACCRT_ERROR_VERSION_MISMATCH)
    return accx_below(encoder->writer->operation, ACCRT_ERROR_INVALID_ARGUMENT);
  ACCRT_TRY(accx_below(encoder->writer->operation, status));
  header->container = (accx_version_t){minimum.container_major, minimum.container_minor};
  header->commands = (accx_version_t){minimum.commands_major, minimum.commands_minor};
  header->kernel_abi = (accx_version_t){minimum.kernel_abi_major, minimum.kernel_abi_minor};
  header->layouts = (accx_version_t){minimum.layouts_major, minimum.layouts_minor};
  if (first_minor && minimum.container_minor > 1)
    return WRITER_FAIL(encoder->writer, INVALID_ARGUMENT,
                       "device code without a launch, in a bundle that needs container %u.%u",
                       minimum.container_major, minimum.container_minor);
  return ACCRT_OK;
}

/* Marks unknown sections as required. It happens after the verifier's check, because the verifier
 * would refuse the file. */
static void mark_required(writer_encoder_t* encoder) {
  for (uint32_t i = 0; i < encoder->order_count[WRITER_SECTION]; ++i) {
    const writer_section_t* raw =
        WRITER_ITEM(encoder->writer, section, WRITER_SECTION, encoder->order[WRITER_SECTION][i]);
    accx_writer_part(encoder, raw->type)->section.flags = raw->flags;
  }
}

/* Encodes and checks. Afterwards the encoder has everything to write. */
static accrt_status_t prepare(accrt_bundle_writer_t* writer, writer_encoder_t* encoder) {
  memset(encoder, 0, sizeof *encoder);
  encoder->writer = writer;
  ACCRT_TRY(accx_writer_encode(encoder));
  ACCRT_TRY(lay_out(encoder));
  void* memory;
  ACCRT_TRY(accrt_alloc_aligned(&writer->allocator, WRITER_BUFFER_BYTES, ACCX_DATA_ALIGN, &memory));
  encoder->buffer = memory;
  ACCRT_TRY(digest_parts(encoder));
  ACCRT_TRY(check_whole(encoder));
  mark_required(encoder);
  accx_writer_make_root(encoder);
  return accx_writer_check_target(encoder);
}

/* ---- Writing ---- */

typedef struct writing {
  writer_encoder_t* encoder;
  const accrt_writer_output_t* output;
  uint64_t offset;      /* offset of the section */
  accx_hasher_t hasher; /* of a section that comes from sources */
  bool store;           /* DATA: store the chunks' digests instead of comparing them */
  bool silent;          /* DATA: compute only; write later */
} writing_t;

static accrt_status_t emit(const writing_t* writing, uint64_t offset, const void* bytes,
                           uint64_t size_bytes) {
  const accrt_writer_output_t* output = writing->output;
  int error = 0;
  if (size_bytes != 0)
    ACCRT_CALL_USER(error = output->write(output->self, offset, bytes, size_bytes));
  if (error == 0)
    return ACCRT_OK;
  return ACCRT_FAIL_ERRNO(IO, error, "writing %" PRIu64 " bytes at %" PRIu64 ": %s", size_bytes,
                          offset, strerror(error));
}

static accrt_status_t emit_zeros(const writing_t* writing, uint64_t from, uint64_t to) {
  static unsigned char
      zeros[ACCX_DATA_ALIGN]; /* not const: then it takes no space in the library's file */
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
    if (writing->store) {
      *known = digest;
      accx_writer_leaf(writing->encoder, (at + done) / ACCX_CHUNK_BYTES, bytes + done,
                       (size_t)(left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES));
    } else if (!accx_digest_equal(known, &digest))
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
  ACCRT_TRY(stream_part(writing->encoder, part, take_bytes, writing));
  const accx_digest_t digest = accx_hasher_finish(&writing->hasher);
  return accx_digest_equal(&digest, &part->section.digest) ? ACCRT_OK
                                                           : changed(writing, part->section.name);
}

/* Writes DATA first if the output supports positions, because its digests come before it in the
 * file. */
static accrt_status_t write_all(writer_encoder_t* encoder, const accrt_writer_output_t* output) {
  const bool in_order = (output->flags & ACCRT_WRITER_OUTPUT_IN_ORDER) != 0;
  const writer_part_t* data = accx_writer_part(encoder, ACCX_SECTION_DATA);
  writing_t writing = {.encoder = encoder, .output = output, .store = true, .silent = in_order};
  if (data != NULL)
    ACCRT_TRY(write_part(&writing, data));
  writing.store = false;
  writing.silent = false;
  ACCRT_TRY(accx_writer_sign(encoder));
  finish_head(encoder);
  uint64_t end = HEAD_BYTES(encoder);
  ACCRT_TRY(emit(&writing, 0, &encoder->header, end));
  for (uint32_t i = 0; i < encoder->part_count; ++i) {
    const writer_part_t* part = &encoder->parts[i];
    ACCRT_TRY(emit_zeros(&writing, end, part->section.offset));
    if (part != data || in_order)
      ACCRT_TRY(write_part(&writing, part));
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
  WRITER_ENTER(writer, NULL, NULL);
  uint64_t size;
  if (output == NULL || output->write == NULL || output->flags > ACCRT_WRITER_OUTPUT_IN_ORDER)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "output has no function, or unknown flags");
  ACCRT_TRY(accx_writer_reserved(writer, output->reserved));
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
  WRITER_ENTER(writer, NULL, NULL);
  file_output_t file = {fd, lseek(fd, 0, SEEK_CUR)};
  uint64_t size;
  if (file.start < 0 && errno != ESPIPE)
    return ACCRT_FAIL_ERRNO(IO, errno, "file descriptor %" PRId32 ": %s", fd, strerror(errno));
  const accrt_writer_output_t output = {&file, write_file,
                                        file.start < 0 ? ACCRT_WRITER_OUTPUT_IN_ORDER : 0, 0};
  ACCRT_TRY(write_to(writer, &output, &size));
  if (file.start >= 0 && lseek(fd, (off_t)((uint64_t)file.start + size), SEEK_SET) < 0)
    return ACCRT_FAIL_ERRNO(IO, errno, "file descriptor %" PRId32 ": %s", fd, strerror(errno));
  return ACCRT_OK;
}

static accrt_status_t fail_file(const char* path, int error) {
  return ACCRT_FAIL_ERRNO(IO, error, "%.400s cannot be written: %s", path, accrt_put_text(error));
}

accrt_status_t accrt_bundle_writer_write_path(accrt_bundle_writer_t* writer, const char* path) {
  WRITER_ENTER(writer, NULL, NULL);
  if (path == NULL)
    return WRITER_FAIL(writer, INVALID_ARGUMENT, "path is NULL");
  accrt_put_t put;
  int error = accrt_put_begin(&put, path, "", 0666, ACCRT_PUT_OF_NAME);
  if (error != 0)
    return fail_file(path, error);
  file_output_t file = {put.fd, 0};
  uint64_t size;
  const accrt_writer_output_t output = {&file, write_file, 0, 0};
  const accrt_status_t status = write_to(writer, &output, &size);
  if (status != ACCRT_OK) {
    accrt_put_drop(&put);
    return status;
  }
  error = accrt_put_end(&put, false);
  return error == 0 ? ACCRT_OK : fail_file(path, error);
}

/* ---- Check without output ---- */

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
  WRITER_ENTER(writer, NULL, NULL);
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
