/* loader/verify_container.c - header, section table, digests and forms of records (rules 1 to 20,
 * 114, 115). It reads from the source. Later checks use only private memory. */
#include "loader/internal.h"
#include "loader/upgrade.h"

#define HEADER_BYTES ((uint64_t)sizeof(accx_header_t))
#define BLOB_ALIGN 16u

/* ---- Header ---- */

static const char container_name[] = "container";

static accrt_status_t check_version(accx_verifier_t* verifier, const char* what,
                                    accx_version_t found, uint16_t major, uint16_t minor) {
  if (found.major != major &&
      (what != container_name || accx_upgrade_of_major(found.major) == NULL)) {
    return ACCX_REJECT(verifier, VERSION, "header", ACCX_NONE, what,
                       "the file needs %u.%u, this library reads %u.0 to %u.%u", found.major,
                       found.minor, major, major, minor);
  }
  if (found.minor > minor)
    verifier->newer = true;
  return ACCRT_OK;
}

static accrt_status_t check_versions(accx_verifier_t* verifier, const accx_header_t* header) {
  ACCRT_TRY(check_version(verifier, container_name, header->container, ACCX_CONTAINER_MAJOR,
                          ACCX_CONTAINER_MINOR));
  ACCRT_TRY(check_version(verifier, "commands", header->commands, ACCX_COMMANDS_MAJOR,
                          ACCX_COMMANDS_MINOR));
  ACCRT_TRY(check_version(verifier, "kernel_abi", header->kernel_abi, ACCRT_KERNEL_ABI_MAJOR,
                          ACCRT_KERNEL_ABI_MINOR));
  return check_version(verifier, "layouts", header->layouts, ACCX_LAYOUTS_MAJOR,
                       ACCX_LAYOUTS_MINOR);
}

static accrt_status_t check_header_fields(const accx_verifier_t* verifier,
                                          const accx_header_t* header) {
  const char* section = "header";
  if (header->section_record_bytes != sizeof(accx_section_t)) {
    return ACCX_REJECT(verifier, HEADER_FIELDS, section, ACCX_NONE, "section_record_bytes",
                       "%" PRIu32 " is not %zu", header->section_record_bytes,
                       sizeof(accx_section_t));
  }
  if (header->section_table_offset != HEADER_BYTES) {
    return ACCX_REJECT(verifier, HEADER_FIELDS, section, ACCX_NONE, "section_table_offset",
                       "%" PRIu64 " is not %" PRIu64, header->section_table_offset, HEADER_BYTES);
  }
  if (header->flags != 0) {
    return ACCX_REJECT(verifier, HEADER_FIELDS, section, ACCX_NONE, "flags",
                       "0x%" PRIx64 " is not 0", header->flags);
  }
  for (uint32_t i = 0; i < sizeof header->reserved; ++i) {
    if (header->reserved[i] == 0)
      continue;
    return ACCX_REJECT(verifier, HEADER_FIELDS, section, ACCX_NONE, "reserved",
                       "byte %" PRIu32 " is %u, not 0", i, header->reserved[i]);
  }
  return ACCRT_OK;
}

static accrt_status_t read_header(accx_verifier_t* verifier, accx_header_t* header) {
  accx_source_t* source = &verifier->bundle->source;
  if (source->size_bytes < HEADER_BYTES || source->size_bytes > INT64_MAX) {
    return ACCX_REJECT(verifier, FILE_SIZE, "header", ACCX_NONE, NULL,
                       "the file has %" PRIu64 " bytes; %" PRIu64 " to 2^63 - 1 are possible",
                       source->size_bytes, HEADER_BYTES);
  }
  ACCRT_TRY(accx_source_read(source, 0, header, HEADER_BYTES));
  if (memcmp(header->magic, ACCX_MAGIC, sizeof header->magic) != 0) {
    return ACCX_REJECT(verifier, MAGIC, "header", ACCX_NONE, "magic",
                       "this is not an .accx bundle");
  }
  ACCRT_TRY(check_versions(verifier, header));
  ACCRT_TRY(check_header_fields(verifier, header));
  if (header->file_size_bytes != source->size_bytes) {
    return ACCX_REJECT(verifier, FILE_SIZE, "header", ACCX_NONE, "file_size_bytes",
                       "%" PRIu64 ", but the file has %" PRIu64 " bytes", header->file_size_bytes,
                       source->size_bytes);
  }
  if (header->section_count == 0 || header->section_count > ACCX_MAX_SECTIONS ||
      !accrt_range_fits(HEADER_BYTES, header->section_count * sizeof(accx_section_t),
                        source->size_bytes)) {
    return ACCX_REJECT(
        verifier, SECTION_COUNT, "header", ACCX_NONE, "section_count",
        "%" PRIu32 " is not between 1 and %u, or the table ends past the file's %" PRIu64 " bytes",
        header->section_count, ACCX_MAX_SECTIONS, source->size_bytes);
  }
  return ACCRT_OK;
}

static accrt_status_t check_header_digest(const accx_verifier_t* verifier,
                                          const accx_header_t* header,
                                          const accx_section_t* table) {
  const accx_digest_t found = accx_header_digest(header, table);
  if (accx_digest_equal(&found, &header->digest))
    return ACCRT_OK;
  char stored_text[ACCX_DIGEST_TEXT_BYTES], found_text[ACCX_DIGEST_TEXT_BYTES];
  return ACCX_REJECT(verifier, HEADER_DIGEST, "header", ACCX_NONE, "digest",
                     "stored %s, computed %s", accx_digest_text(&header->digest, stored_text),
                     accx_digest_text(&found, found_text));
}

static accrt_status_t check_file_features(const accx_verifier_t* verifier,
                                          const accx_header_t* header) {
  const uint64_t unknown = header->required_features & ~ACCX_FILE_FEATURES_KNOWN;
  if (unknown == 0)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, FILE_FEATURES, "header", ACCX_NONE, "required_features",
                     "the file requires feature bit %d (of 0x%" PRIx64
                     "), which this library does not know",
                     __builtin_ctzll(unknown), header->required_features);
}

/* ---- Section table ---- */

static bool name_is_ascii(const char name[16]) {
  size_t length = 0;
  while (length < 16 && name[length] >= 0x21 && name[length] <= 0x7E)
    ++length;
  if (length == 0)
    return false;
  for (size_t i = length; i < 16; ++i) {
    if (name[i] != '\0')
      return false;
  }
  return true;
}

static accrt_status_t check_section_identity(const accx_verifier_t* verifier,
                                             const accx_section_t* section, uint32_t index,
                                             uint32_t previous_type) {
  if (section->type <= previous_type) {
    return ACCX_REJECT(verifier, SECTION_ORDER, "sections", index, "type",
                       "%" PRIu32 " does not come after %" PRIu32 ": types must ascend from 1",
                       section->type, previous_type);
  }
  if (!name_is_ascii(section->name)) {
    return ACCX_REJECT(verifier, SECTION_NAME, "sections", index, "name",
                       "section type %" PRIu32
                       " has a name that is not zero-padded printable ASCII",
                       section->type);
  }
  const accx_section_kind_t* kind = accx_section_kind(section->type);
  if (kind != NULL && strncmp(kind->name, section->name, sizeof section->name) != 0) {
    return ACCX_REJECT(verifier, SECTION_NAME, "sections", index, "name",
                       "section type %" PRIu32 " is '%.16s', not '%s'", section->type,
                       section->name, kind->name);
  }
  const uint32_t wanted = kind != NULL && kind->required ? ACCX_SECTION_FLAG_REQUIRED : 0;
  if ((section->flags & ~ACCX_SECTION_FLAG_REQUIRED) != 0 ||
      (kind != NULL && section->flags != wanted)) {
    return ACCX_REJECT(verifier, SECTION_FLAGS, "sections", index, "flags",
                       "0x%" PRIx32 " of section '%.16s'", section->flags, section->name);
  }
  if (kind == NULL && (section->flags & ACCX_SECTION_FLAG_REQUIRED) != 0) {
    return ACCX_REJECT(verifier, SECTION_UNKNOWN, "sections", index, NULL,
                       "the file requires section '%.16s' (type %" PRIu32
                       "), which this library does not know",
                       section->name, section->type);
  }
  return ACCRT_OK;
}

static accrt_status_t check_section_place(const accx_verifier_t* verifier,
                                          const accx_section_t* section, uint32_t index,
                                          uint64_t previous_end) {
  const accx_section_kind_t* kind = accx_section_kind(section->type);
  const uint64_t alignment = kind != NULL ? kind->alignment : 8;
  const uint64_t file_size = verifier->bundle->source.size_bytes;
  /* previous_end <= file_size < 2^63, so this cannot overflow. */
  const uint64_t expected = (previous_end + alignment - 1) & ~(alignment - 1);
  if (section->offset != expected) {
    return ACCX_REJECT(verifier, SECTION_PLACE, "sections", index, "offset",
                       "'%.16s' is at %" PRIu64 ", not at %" PRIu64 " (after %" PRIu64
                       ", aligned to %" PRIu64 ")",
                       section->name, section->offset, expected, previous_end, alignment);
  }
  if (section->size_bytes == 0 ||
      !accrt_range_fits(section->offset, section->size_bytes, file_size)) {
    return ACCX_REJECT(verifier, SECTION_BOUNDS, "sections", index, "size_bytes",
                       "'%.16s' has %" PRIu64 " bytes at %" PRIu64 ", the file has %" PRIu64,
                       section->name, section->size_bytes, section->offset, file_size);
  }
  return ACCRT_OK;
}

static accrt_status_t check_section_records(const accx_verifier_t* verifier,
                                            const accx_section_t* section, uint32_t index) {
  const accx_section_kind_t* kind = accx_section_kind(section->type);
  const bool bytes = section->type == ACCX_SECTION_CODE || section->type == ACCX_SECTION_DATA ||
                     section->type == ACCX_SECTION_ASSET_DATA;
  const bool records_fit =
      section->record_bytes == 0 ||
      (uint64_t)section->record_bytes * section->record_count == section->size_bytes;
  if (kind == NULL) {
    return records_fit ? ACCRT_OK
                       : ACCX_REJECT(verifier, SECTION_RECORDS, "sections", index, "record_count",
                                     "'%.16s' has %" PRIu32 " records of %" PRIu32
                                     " bytes in %" PRIu64 " bytes",
                                     section->name, section->record_count, section->record_bytes,
                                     section->size_bytes);
  }
  if (accx_form_minor(kind, section->record_bytes) == 0 || !records_fit ||
      (bytes && section->record_count != 0)) {
    return ACCX_REJECT(verifier, SECTION_RECORDS, "sections", index, "record_count",
                       "'%s' has %" PRIu32 " records of %" PRIu32 " bytes in %" PRIu64
                       " bytes; its records have %" PRIu32,
                       kind->name, section->record_count, section->record_bytes,
                       section->size_bytes, kind->record_bytes);
  }
  uint64_t limit = ACCX_MAX_METADATA_BYTES;
  if (section->type == ACCX_SECTION_CODE)
    limit = ACCX_MAX_CODE_BYTES;
  if (section->type == ACCX_SECTION_DATA)
    limit = UINT64_MAX;
  if (section->size_bytes > limit || section->record_count > ACCX_MAX_RECORDS) {
    return ACCX_REJECT(
        verifier, SECTION_LIMITS, "sections", index, "size_bytes",
        "'%s' has %" PRIu64 " bytes and %" PRIu32 " records; limits %" PRIu64 " and %u", kind->name,
        section->size_bytes, section->record_count, limit, ACCX_MAX_RECORDS);
  }
  return ACCRT_OK;
}

static accrt_status_t check_gap(const accx_verifier_t* verifier, uint64_t begin, uint64_t end) {
  unsigned char bytes[ACCX_DATA_ALIGN];
  ACCRT_TRY(accx_source_read(&verifier->bundle->source, begin, bytes, end - begin));
  for (uint64_t i = 0; i < end - begin; ++i) {
    if (bytes[i] == 0)
      continue;
    return ACCX_REJECT(verifier, SECTION_GAPS, "file", ACCX_NONE, NULL,
                       "byte %" PRIu64 " between two sections is %u, not 0", begin + i, bytes[i]);
  }
  return ACCRT_OK;
}

static accrt_status_t check_needed_sections(const accx_verifier_t* verifier) {
  if (verifier->sections[ACCX_SECTION_STRINGS] == NULL) {
    return ACCX_REJECT(verifier, SECTION_NEEDED, "sections", ACCX_NONE, NULL,
                       "there is no section 'strings'");
  }
  const accx_section_t* data = verifier->sections[ACCX_SECTION_DATA];
  const accx_section_t* digests = verifier->sections[ACCX_SECTION_CHUNK_DIGESTS];
  const uint64_t data_bytes = data != NULL ? data->size_bytes : 0;
  const uint64_t chunks = data_bytes / ACCX_CHUNK_BYTES + (data_bytes % ACCX_CHUNK_BYTES != 0);
  const uint64_t found = digests != NULL ? digests->record_count : 0;
  if (chunks == found)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, SECTION_NEEDED, "sections", ACCX_NONE, NULL,
                     "%" PRIu64 " chunk digests for %" PRIu64 " bytes of data, which need %" PRIu64,
                     found, data_bytes, chunks);
}

static accrt_status_t check_section_table(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t previous_type = 0;
  for (uint32_t i = 0; i < tables->section_count; ++i) {
    ACCRT_TRY(check_section_identity(verifier, &tables->sections[i], i, previous_type));
    previous_type = tables->sections[i].type;
  }
  uint64_t end = HEADER_BYTES + tables->section_count * sizeof(accx_section_t);
  for (uint32_t i = 0; i < tables->section_count; ++i) {
    const accx_section_t* section = &tables->sections[i];
    ACCRT_TRY(check_section_place(verifier, section, i, end));
    ACCRT_TRY(check_section_records(verifier, section, i));
    if (accx_section_kind(section->type) != NULL)
      verifier->sections[section->type] = section;
    end = section->offset + section->size_bytes;
  }
  if (end != verifier->bundle->source.size_bytes) {
    return ACCX_REJECT(verifier, SECTION_BOUNDS, "sections", tables->section_count - 1,
                       "size_bytes", "the last section ends at %" PRIu64 ", the file at %" PRIu64,
                       end, verifier->bundle->source.size_bytes);
  }
  return check_needed_sections(verifier);
}

static accrt_status_t check_gaps(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint64_t end = HEADER_BYTES + tables->section_count * sizeof(accx_section_t);
  for (uint32_t i = 0; i < tables->section_count; ++i) {
    ACCRT_TRY(check_gap(verifier, end, tables->sections[i].offset));
    end = tables->sections[i].offset + tables->sections[i].size_bytes;
  }
  return ACCRT_OK;
}

/* ---- Private copy ---- */

/* accx_verify_images reads CODE; DATA is read at its use. */
static bool is_copied(const accx_section_t* section) {
  return section->type != ACCX_SECTION_CODE && section->type != ACCX_SECTION_DATA &&
         accx_section_kind(section->type) != NULL;
}

static uint64_t align_blob(uint64_t size_bytes) {
  return (size_bytes + BLOB_ALIGN - 1) & ~(uint64_t)(BLOB_ALIGN - 1);
}

/* Bytes for records in their newest form, beside the copy; 0 when they have it already. */
static uint64_t wide_size(const accx_section_t* section) {
  const uint32_t wide = accx_section_kind(section->type)->record_bytes;
  return section->record_bytes != wide ? (uint64_t)wide * section->record_count : 0;
}

const unsigned char* accx_section_bytes(const accrt_bundle_t* bundle, uint32_t index) {
  const accx_section_t* sections = bundle->tables.sections;
  uint64_t at = 0;
  for (uint32_t i = 0; i < index; ++i)
    at += is_copied(&sections[i]) ? align_blob(sections[i].size_bytes) : 0;
  return is_copied(&sections[index]) ? bundle->metadata + at : NULL;
}

/* Where most sections' tables are stored. */
#define TABLE(type, field, count)                                                                  \
  {                                                                                                \
    ACCX_SECTION_##type, offsetof(accrt_bundle_tables_t, field),                                   \
        offsetof(accrt_bundle_tables_t, count)                                                     \
  }
static const struct {
  uint16_t type, field, count;
} places[] = {
    TABLE(STRINGS, strings, string_count),
    TABLE(METADATA, metadata, metadata_count),
    TABLE(SYMBOLS, symbols, symbol_count),
    TABLE(BUCKETS, buckets, bucket_count),
    TABLE(EXPRESSIONS, expressions, expression_count),
    TABLE(CONSTANTS, constants, constant_count),
    TABLE(COMPONENTS, components, component_count),
    TABLE(STATES, states, state_count),
    TABLE(FUNCTIONS, functions, function_count),
    TABLE(ARGUMENTS, arguments, argument_count),
    TABLE(SLOTS, slots, slot_count),
    TABLE(VIEWS, views, view_count),
    TABLE(BLOCKS, blocks, block_count),
    TABLE(KERNELS, kernels, kernel_count),
    TABLE(PARAMETERS, parameters, parameter_count),
    TABLE(VARIANTS, variants, variant_count),
    TABLE(PREDICATES, predicates, predicate_count),
    TABLE(IMAGES, images, image_count),
    TABLE(CHUNK_DIGESTS, chunk_digests, chunk_count),
    TABLE(LAUNCHES, launches, launch_count),
    TABLE(ASSETS, assets, asset_count),
    TABLE(LOCATIONS, locations, location_count),
    TABLE(FILES, files, file_count),
    TABLE(SHARDS, shards, shard_count),
    TABLE(ADAPTERS, adapters, adapter_count),
    TABLE(TREE, tree, tree_count),
    TABLE(SIGNATURES, signatures, signature_count),
    TABLE(SEGMENTS, segments, segment_count),
    TABLE(LEAVES, leaves, leaf_count),
    TABLE(ENCRYPTION, encryption, encryption_count),
    TABLE(TAGS, tags, tag_count),
};
#undef TABLE

static void set_table(accrt_bundle_tables_t* tables, const accx_section_t* section,
                      const unsigned char* bytes) {
  unsigned char* const into = (unsigned char*)tables;
  for (size_t i = 0; i < sizeof places / sizeof places[0]; ++i) {
    if (places[i].type != section->type)
      continue;
    /* all pointers to objects have the same representation */
    memcpy(into + places[i].field, &bytes, sizeof bytes);
    memcpy(into + places[i].count, &section->record_count, sizeof section->record_count);
  }
  if (section->type == ACCX_SECTION_STRINGS)
    tables->strings_size_bytes = section->size_bytes;
  if (section->type == ACCX_SECTION_COMMANDS)
    tables->command_count = section->record_count; /* the blocks refer to the stream */
  if (section->type == ACCX_SECTION_ASSET_DATA) {
    tables->asset_data = bytes;
    tables->asset_data_size_bytes = section->size_bytes;
  }
}

accrt_status_t accx_check_digest(const accx_verifier_t* verifier, const accx_section_t* section,
                                 const accx_digest_t* found) {
  if (accx_digest_equal(found, &section->digest))
    return ACCRT_OK;
  char stored_text[ACCX_DIGEST_TEXT_BYTES], found_text[ACCX_DIGEST_TEXT_BYTES];
  return ACCX_REJECT(verifier, SECTION_DIGEST, accx_section_kind(section->type)->name, ACCX_NONE,
                     NULL, "digest stored %s, computed %s",
                     accx_digest_text(&section->digest, stored_text),
                     accx_digest_text(found, found_text));
}

static accrt_status_t check_form(const accx_verifier_t* verifier, const accx_section_t* section,
                                 const unsigned char* records) {
  const accx_section_kind_t* kind = accx_section_kind(section->type);
  if (accx_form_needed(kind, records, section->record_count, section->record_bytes))
    return ACCRT_OK;
  return ACCX_REJECT(verifier, RECORD_FORM, kind->name, ACCX_NONE, NULL,
                     "records of %" PRIu32 " bytes, whose last fields no record uses",
                     section->record_bytes);
}

/* Copies to `target`. `*wide` has room for the converted records of an older form. */
static accrt_status_t copy_section(accx_verifier_t* verifier, const accx_section_t* section,
                                   unsigned char* target, unsigned char** wide) {
  accrt_bundle_t* bundle = verifier->bundle;
  const unsigned char* records = target;
  ACCRT_TRY(accx_source_read(&bundle->source, section->offset, target, section->size_bytes));
  const accx_digest_t found = accx_digest_of(target, (size_t)section->size_bytes);
  ACCRT_TRY(accx_check_digest(verifier, section, &found));
  if (section->type == ACCX_SECTION_CHUNK_DIGESTS)
    ACCRT_TRY(accx_check_digest(verifier, verifier->sections[ACCX_SECTION_DATA], &found));
  if (wide_size(section) != 0) {
    accx_form_widen(accx_section_kind(section->type), target, section->record_count,
                    section->record_bytes, *wide);
    records = *wide;
    *wide += align_blob(wide_size(section));
  }
  ACCRT_TRY(check_form(verifier, section, records));
  set_table(verifier->tables, section, records);
  if (section->type == ACCX_SECTION_COMMANDS) {
    bundle->command_stream = target;
    bundle->command_stream_size_bytes = section->size_bytes;
  }
  return ACCRT_OK;
}

static accrt_status_t copy_sections(accx_verifier_t* verifier) {
  accrt_bundle_t* bundle = verifier->bundle;
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint64_t copied = 0, widened = 0;
  for (uint32_t i = 0; i < tables->section_count; ++i) {
    if (!is_copied(&tables->sections[i]))
      continue;
    copied += align_blob(tables->sections[i].size_bytes);
    widened += align_blob(wide_size(&tables->sections[i]));
  }
  if (copied + widened > ACCX_MAX_METADATA_BYTES) {
    return ACCX_REJECT(verifier, SECTION_LIMITS, "sections", ACCX_NONE, NULL,
                       "%" PRIu64 " bytes of metadata; the limit is %" PRIu64, copied + widened,
                       ACCX_MAX_METADATA_BYTES);
  }
  accrt_meter_allow(copied + widened);
  void* blob;
  ACCRT_TRY(accrt_alloc_unset(bundle->allocator, (size_t)(copied + widened), BLOB_ALIGN, &blob));
  bundle->metadata = blob;
  bundle->metadata_size_bytes = (size_t)(copied + widened);
  unsigned char* at = bundle->metadata;
  unsigned char* wide = bundle->metadata + copied;
  for (uint32_t i = 0; i < tables->section_count; ++i) {
    const accx_section_t* section = &tables->sections[i];
    if (!is_copied(section))
      continue;
    ACCRT_TRY(accrt_checkpoint());
    ACCRT_TRY(copy_section(verifier, section, at, &wide));
    at += align_blob(section->size_bytes);
  }
  return ACCRT_OK;
}

/* ---- Sections that need each other ---- */

/* A section that has no meaning without another one. `count` is the required number of records. */
enum { COUNT_ANY, COUNT_ONE, COUNT_CHUNKS };
static const struct {
  uint32_t type;
  uint32_t needs;
  uint32_t count;
} pairs[] = {
    {ACCX_SECTION_TREE, ACCX_SECTION_STRINGS, COUNT_ONE},
    {ACCX_SECTION_SIGNATURES, ACCX_SECTION_TREE, COUNT_ANY},
    {ACCX_SECTION_SEGMENTS, ACCX_SECTION_SHARDS, COUNT_ANY},
    {ACCX_SECTION_LEAVES, ACCX_SECTION_TREE, COUNT_CHUNKS},
    {ACCX_SECTION_ENCRYPTION, ACCX_SECTION_TAGS, COUNT_ONE},
    {ACCX_SECTION_TAGS, ACCX_SECTION_ENCRYPTION, COUNT_CHUNKS},
    {ACCX_SECTION_ASSET_DATA, ACCX_SECTION_ASSETS, COUNT_ANY},
};

static accrt_status_t check_pairs(const accx_verifier_t* verifier) {
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
    const accx_section_t* section = verifier->sections[pairs[i].type];
    if (section == NULL)
      continue;
    const accx_section_kind_t* needed = accx_section_kind(pairs[i].needs);
    if (verifier->sections[pairs[i].needs] == NULL) {
      return ACCX_REJECT(verifier, SECTION_PAIRS, "sections", ACCX_NONE, NULL,
                         "there is '%.16s', but no '%s'", section->name, needed->name);
    }
    const uint32_t expected = pairs[i].count == COUNT_ONE      ? 1
                              : pairs[i].count == COUNT_CHUNKS ? verifier->tables->chunk_count
                                                               : section->record_count;
    if (section->record_count != expected) {
      return ACCX_REJECT(verifier, SECTION_PAIRS, "sections", ACCX_NONE, NULL,
                         "'%.16s' has %" PRIu32 " records, expected %" PRIu32, section->name,
                         section->record_count, expected);
    }
  }
  return ACCRT_OK;
}

accrt_status_t accx_verify_container(accx_verifier_t* verifier) {
  accrt_bundle_t* bundle = verifier->bundle;
  accrt_bundle_tables_t* tables = verifier->tables;
  ACCRT_TRY(read_header(verifier, &tables->header));
  const uint32_t count = tables->header.section_count;
  void *table, *names;
  ACCRT_TRY(accrt_alloc_array(bundle->allocator, count, sizeof(accx_section_t), &table));
  bundle->section_table = table;
  tables->sections = table;
  tables->section_count = count;
  ACCRT_TRY(accx_source_read(&bundle->source, HEADER_BYTES, table, count * sizeof(accx_section_t)));
  ACCRT_TRY(accrt_alloc_array(bundle->allocator, count, sizeof *bundle->section_names, &names));
  bundle->section_names = names;
  for (uint32_t i = 0; i < count; ++i)
    memcpy(bundle->section_names[i], tables->sections[i].name, 16);
  ACCRT_TRY(check_header_digest(verifier, &tables->header, tables->sections));
  ACCRT_TRY(check_file_features(verifier, &tables->header));
  ACCRT_TRY(check_section_table(verifier));
  ACCRT_TRY(check_gaps(verifier));
  ACCRT_TRY(copy_sections(verifier));
  ACCRT_TRY(check_pairs(verifier));
  const accx_section_t* code = verifier->sections[ACCX_SECTION_CODE];
  const accx_section_t* data = verifier->sections[ACCX_SECTION_DATA];
  if (code != NULL)
    bundle->code_offset = code->offset, tables->code_size_bytes = code->size_bytes;
  if (data != NULL)
    bundle->data_offset = data->offset, tables->data_size_bytes = data->size_bytes;
  return ACCRT_OK;
}
