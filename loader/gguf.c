/* loader/gguf.c - reads the header of a GGUF file: keys and values, then records of tensors; the
 * tensors' bytes follow. The header is checked here, in a private copy, before any use. Sizes are
 * compared with the rest of the file by subtraction, because a sum could overflow.
 */
#include <string.h>

#include "runtime/core/utf8.h"
#include "loader/weights.h"

#define FIRST_READ_BYTES (UINT64_C(1) << 20)
#define FIXED_BYTES 24u      /* magic number, version, counts */
#define MIN_VALUE_BYTES 14u  /* key of one byte, type, value of one byte */
#define MIN_RECORD_BYTES 25u /* name of one byte, no dimension, type, offset */
#define DEFAULT_ALIGNMENT 32u
#define MAX_ALIGNMENT 65536u
#define MAX_DIMENSIONS 4u

#define NONE_TYPE                                                                                  \
  { "", 0, 0, 0, 0 }
#define PLAIN(name, dtype, bytes)                                                                  \
  { name, ACCRT_DTYPE_##dtype, 0, 1, bytes }
#define BLOCKS(name, encoding, elements, bytes)                                                    \
  { name, 0, encoding, elements, bytes }
/* By GGML's number. The second value is the layout in docs/layouts.md; 1 means that no layout
 * describes the type, but its bytes can be read. */
const accx_weights_type_t accx_gguf_types[] = {
    /* 0 */ PLAIN("F32", F32, 4),
    PLAIN("F16", F16, 2),
    /* 2 */ BLOCKS("Q4_0", 17, 32, 18),
    BLOCKS("Q4_1", 18, 32, 20),
    /* 4 */ NONE_TYPE,
    NONE_TYPE,
    /* 6 */ BLOCKS("Q5_0", 27, 32, 22),
    BLOCKS("Q5_1", 28, 32, 24),
    /* 8 */ BLOCKS("Q8_0", 16, 32, 34),
    NONE_TYPE,
    /* 10 */ BLOCKS("Q2_K", 29, 256, 84),
    BLOCKS("Q3_K", 30, 256, 110),
    /* 12 */ BLOCKS("Q4_K", 19, 256, 144),
    BLOCKS("Q5_K", 20, 256, 176),
    /* 14 */ BLOCKS("Q6_K", 21, 256, 210),
    BLOCKS("Q8_K", 1, 256, 292),
    /* 16 */ BLOCKS("IQ2_XXS", 1, 256, 66),
    BLOCKS("IQ2_XS", 1, 256, 74),
    /* 18 */ BLOCKS("IQ3_XXS", 1, 256, 98),
    BLOCKS("IQ1_S", 1, 256, 50),
    /* 20 */ BLOCKS("IQ4_NL", 31, 32, 18),
    BLOCKS("IQ3_S", 1, 256, 110),
    /* 22 */ BLOCKS("IQ2_S", 1, 256, 82),
    BLOCKS("IQ4_XS", 1, 256, 136),
    /* 24 */ PLAIN("I8", I8, 1),
    PLAIN("I16", I16, 2),
    /* 26 */ PLAIN("I32", I32, 4),
    PLAIN("I64", I64, 8),
    /* 28 */ PLAIN("F64", F64, 8),
    BLOCKS("IQ1_M", 1, 256, 56),
    /* 30 */ PLAIN("BF16", BF16, 2),
    NONE_TYPE,
    /* 32 */ NONE_TYPE,
    NONE_TYPE,
    /* 34 */ BLOCKS("TQ1_0", 1, 256, 54),
    BLOCKS("TQ2_0", 1, 256, 66),
    /* 36 */ NONE_TYPE,
    NONE_TYPE,
    /* 38 */ NONE_TYPE,
    BLOCKS("MXFP4", 22, 32, 17),
    /* 40 */ BLOCKS("NVFP4", 23, 64, 36),
    BLOCKS("Q1_0", 1, 128, 18)};
const uint32_t accx_gguf_type_count = sizeof accx_gguf_types / sizeof accx_gguf_types[0];

/* Bytes of a value by type; 0: the size depends on the value. */
static const uint8_t value_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct header {
  accrt_weights_t* weights;
  const char* name; /* the file's name */
  const unsigned char* bytes;
  uint64_t at;
  uint64_t size_bytes; /* number of bytes that were read from the file */
  uint64_t file_bytes;
  uint32_t file;
  uint32_t alignment;
  uint64_t data_bytes; /* sum so far */
  bool is_short;       /* more bytes must be read; not an error */
} header_t;

/* ---- Reading ---- */

/* Checks that `size_bytes` bytes are left. If they are in the file but not read yet, the caller
 * reads more and starts again. */
static accrt_status_t need(header_t* header, uint64_t size_bytes, uint32_t rule, const char* what) {
  if (size_bytes <= header->size_bytes - header->at)
    return ACCRT_OK;
  header->is_short = size_bytes <= header->file_bytes - header->at &&
                     header->size_bytes < ACCX_WEIGHTS_MAX_GGUF_HEADER_BYTES;
  return accx_weights_refuse(
      header->name, ACCRT_PLACE(rule),
      "%s of %" PRIu64 " bytes at %" PRIu64 " passes the end of the %s at %" PRIu64, what,
      size_bytes, header->at, header->size_bytes < header->file_bytes ? "header" : "file",
      header->size_bytes);
}
#define NEED(header, size_bytes, rule, what)                                                       \
  ACCRT_TRY(need((header), (size_bytes), ACCX_RULE_gguf_##rule, (what)))

static accrt_status_t take_number(header_t* header, uint32_t size_bytes, uint64_t* out_value) {
  NEED(header, size_bytes, HEADER_SIZE, "a field");
  *out_value = accx_weights_number(header->bytes + header->at, size_bytes);
  header->at += size_bytes;
  return ACCRT_OK;
}

static bool is_text(const unsigned char* bytes, uint64_t size_bytes) {
  const unsigned char* const end = bytes + size_bytes;
  while (bytes < end) {
    const uint32_t length = *bytes != 0 && *bytes < 0x80 ? 1 : accrt_utf8_length(bytes);
    if (*bytes == 0 || length == 0 || length > (uint64_t)(end - bytes))
      return false;
    bytes += length;
  }
  return true;
}

/* Reads a string's bytes. end_strings() terminates it after everything has been read. */
static accrt_status_t take_string(header_t* header, bool is_text_too, const char** out_text,
                                  uint64_t* out_size_bytes) {
  ACCRT_TRY(take_number(header, 8, out_size_bytes));
  NEED(header, *out_size_bytes, STRING, "a string");
  const unsigned char* bytes = header->bytes + header->at;
  if (is_text_too && !is_text(bytes, *out_size_bytes)) {
    return ACCX_REFUSE(header->name, gguf_STRING,
                       "the string at %" PRIu64 " is not UTF-8, or has a NUL", header->at);
  }
  *out_text = (const char*)bytes;
  header->at += *out_size_bytes;
  return ACCRT_OK;
}

/* ---- Keys and values ---- */

static accrt_status_t check_bools(const header_t* header, const accx_weights_value_t* value) {
  for (uint64_t i = 0; i < value->size_bytes; ++i) {
    if (value->data[i] > 1)
      return ACCX_REFUSE(header->name, gguf_VALUE_RANGE, "key '%.*s': a boolean of %u",
                         (int)(value->key_bytes < 100 ? value->key_bytes : 100), value->key,
                         value->data[i]);
  }
  return ACCRT_OK;
}

static accrt_status_t bad_type(const header_t* header, const accx_weights_value_t* value,
                               uint64_t type) {
  return ACCX_REFUSE(header->name, gguf_VALUE_TYPE, "key '%.*s': %s %" PRIu64,
                     (int)(value->key_bytes < 100 ? value->key_bytes : 100), value->key,
                     type == ACCRT_METADATA_ARRAY ? "an array of arrays, type" : "unknown type",
                     type);
}

static accrt_status_t take_strings(header_t* header, uint64_t count) {
  const char* text;
  uint64_t size_bytes;
  for (uint64_t i = 0; i < count; ++i) {
    ACCRT_TRY(accrt_charge_record((uint32_t)i));
    ACCRT_TRY(take_string(header, false, &text, &size_bytes));
  }
  return ACCRT_OK;
}

static accrt_status_t take_elements(header_t* header, accx_weights_value_t* value) {
  if (value->type == ACCRT_METADATA_STRING) {
    const char* text;
    ACCRT_TRY(take_string(header, true, &text, &value->size_bytes));
    value->data = (const unsigned char*)text;
    return ACCRT_OK;
  }
  const uint64_t begin = header->at;
  value->data = header->bytes + begin;
  if (value->element_type == ACCRT_METADATA_STRING) {
    ACCRT_TRY(take_strings(header, value->count));
    value->size_bytes = header->at - begin;
    return ACCRT_OK;
  }
  if (!accrt_mul_u64(value->count, value_bytes[value->element_type], &value->size_bytes))
    value->size_bytes = UINT64_MAX;
  NEED(header, value->size_bytes, VALUE_RANGE, "an array");
  header->at += value->size_bytes;
  return value->element_type == ACCRT_METADATA_BOOL ? check_bools(header, value) : ACCRT_OK;
}

static accrt_status_t take_value(header_t* header, accx_weights_value_t* value) {
  uint64_t type;
  ACCRT_TRY(take_number(header, 4, &type));
  if (type >= sizeof value_bytes)
    return bad_type(header, value, type);
  value->type = (uint32_t)type;
  value->count = 1;
  if (type == ACCRT_METADATA_ARRAY) {
    ACCRT_TRY(take_number(header, 4, &type));
    if (type >= sizeof value_bytes || type == ACCRT_METADATA_ARRAY)
      return bad_type(header, value, type);
    ACCRT_TRY(take_number(header, 8, &value->count));
  }
  value->element_type = (uint32_t)type;
  return take_elements(header, value);
}

static bool has_key(const accx_weights_value_t* value, const char* key) {
  return value->key_bytes == strlen(key) && memcmp(value->key, key, value->key_bytes) == 0;
}

/* Handles the keys that change how the file is read. */
static accrt_status_t apply_value(header_t* header, const accx_weights_value_t* value) {
  const uint32_t bytes = value_bytes[value->type];
  const uint64_t number =
      value->type != ACCRT_METADATA_ARRAY ? accx_weights_number(value->data, bytes) : 0;
  accx_weights_file_t* file = &header->weights->files[header->file];
  if (has_key(value, "general.alignment")) {
    if (value->type != ACCRT_METADATA_U32 || number < 8 || number > MAX_ALIGNMENT ||
        !accrt_is_power_of_two(number)) {
      return ACCX_REFUSE(header->name, gguf_ALIGNMENT,
                         "general.alignment is %" PRIu64 " (type %" PRIu32 ")", number,
                         value->type);
    }
    header->alignment = (uint32_t)number;
  }
  const bool is_number = has_key(value, "split.no"), is_count = has_key(value, "split.count");
  const bool is_total = has_key(value, "split.tensors.count");
  if ((is_number || is_count) && value->type != ACCRT_METADATA_U16)
    return ACCX_REFUSE(header->name, gguf_SPLIT, "%s is not a u16",
                       is_number ? "split.no" : "split.count");
  if (is_total && (value->type != ACCRT_METADATA_I32 || number > INT32_MAX))
    return ACCX_REFUSE(header->name, gguf_SPLIT, "split.tensors.count is not an i32 of 0 or more");
  if (is_number)
    file->split_number = (uint32_t)number;
  if (is_count)
    file->split_count = (uint32_t)number;
  if (is_total)
    file->split_tensors = number;
  return ACCRT_OK;
}

static accrt_status_t take_pair(header_t* header) {
  accx_weights_value_t value;
  memset(&value, 0, sizeof value);
  uint64_t key_bytes;
  ACCRT_TRY(take_string(header, true, &value.key, &key_bytes));
  if (key_bytes == 0 || key_bytes > ACCX_WEIGHTS_MAX_NAME_BYTES)
    return ACCX_REFUSE(header->name, gguf_KEY, "a key of %" PRIu64 " bytes", key_bytes);
  value.key_bytes = (uint32_t)key_bytes;
  ACCRT_TRY(take_value(header, &value));
  ACCRT_TRY(apply_value(header, &value));
  accx_weights_value_t* place;
  ACCRT_TRY(accx_weights_add_value(header->weights, &place));
  *place = value;
  return ACCRT_OK;
}

static accrt_status_t check_keys(const header_t* header, uint32_t first) {
  const accx_weights_value_t* twice;
  ACCRT_TRY(accx_weights_find_twice(header->weights, first, &twice));
  if (twice == NULL)
    return ACCRT_OK;
  return ACCX_REFUSE(header->name, gguf_KEY, "key '%.*s' is there twice",
                     (int)(twice->key_bytes < 100 ? twice->key_bytes : 100), twice->key);
}

/* ---- Tensors ---- */

#define NAME_OF(entry) (int)((entry)->name_bytes < 200 ? (entry)->name_bytes : 200), (entry)->name

static accrt_status_t take_shape(header_t* header, accx_weights_entry_t* entry) {
  uint64_t rank;
  ACCRT_TRY(take_number(header, 4, &rank));
  if (rank > MAX_DIMENSIONS) {
    return ACCX_REFUSE(header->name, gguf_DIMENSIONS, "tensor '%.*s' has %" PRIu64 " dimensions",
                       NAME_OF(entry), rank);
  }
  int64_t* sizes;
  ACCRT_TRY(accx_weights_add_sizes(header->weights, (uint32_t)rank, &sizes));
  entry->rank = (uint8_t)rank;
  entry->shape_first = header->weights->size_count - (uint32_t)rank;
  for (uint64_t i = rank; i-- > 0;) {
    uint64_t size;
    ACCRT_TRY(take_number(header, 8, &size));
    if (size > INT64_MAX) {
      return ACCX_REFUSE(header->name, gguf_DIMENSIONS,
                         "tensor '%.*s': dimension %" PRIu64 " is %" PRIu64, NAME_OF(entry),
                         rank - 1 - i, size);
    }
    sizes[i] = (int64_t)size; /* the file has the innermost dimension first */
  }
  return ACCRT_OK;
}

static accrt_status_t take_type(header_t* header, accx_weights_entry_t* entry) {
  uint64_t number;
  ACCRT_TRY(take_number(header, 4, &number));
  if (number >= accx_gguf_type_count || accx_gguf_types[number].name[0] == '\0') {
    return ACCX_REFUSE(header->name, gguf_TYPE,
                       "tensor '%.*s': its type %" PRIu64 " is not known to this library",
                       NAME_OF(entry), number);
  }
  entry->type = (uint16_t)number;
  const accx_weights_type_t* type = &accx_gguf_types[number];
  const int64_t* sizes = accx_weights_shape(header->weights, entry);
  uint64_t elements;
  if (!accx_weights_blocks(sizes, entry->rank, type, &elements, &entry->size_bytes)) {
    return ACCX_REFUSE(header->name, gguf_DIMENSIONS,
                       "tensor '%.*s': the product of its dimensions does not fit", NAME_OF(entry));
  }
  const int64_t inner = entry->rank > 0 ? sizes[entry->rank - 1] : 1;
  if (inner % type->block_elements == 0)
    return ACCRT_OK;
  return ACCX_REFUSE(header->name, gguf_BLOCKS,
                     "tensor '%.*s': dimension 0 is %" PRId64
                     ", not a multiple of %s's block of %u",
                     NAME_OF(entry), inner, type->name, type->block_elements);
}

static accrt_status_t take_place(header_t* header, accx_weights_entry_t* entry) {
  ACCRT_TRY(take_number(header, 8, &entry->offset_bytes));
  if (entry->offset_bytes != header->data_bytes) {
    return ACCX_REFUSE(header->name, gguf_PLACE,
                       "tensor '%.*s' begins at %" PRIu64 " of the data; it should at %" PRIu64,
                       NAME_OF(entry), entry->offset_bytes, header->data_bytes);
  }
  /* Cannot overflow: sizes are below 2^63, and nothing is added after the end of the file is
   * passed. */
  if (header->data_bytes > header->file_bytes ||
      !accrt_align_u64(header->data_bytes + entry->size_bytes, header->alignment,
                       &header->data_bytes) ||
      entry->size_bytes > header->file_bytes - entry->offset_bytes) {
    return ACCX_REFUSE(header->name, gguf_RANGE,
                       "tensor '%.*s': %" PRIu64 " bytes at %" PRIu64
                       " of the data in a file of %" PRIu64,
                       NAME_OF(entry), entry->size_bytes, entry->offset_bytes, header->file_bytes);
  }
  return ACCRT_OK;
}

static accrt_status_t take_record(header_t* header) {
  accx_weights_entry_t entry;
  memset(&entry, 0, sizeof entry);
  entry.file = header->file;
  uint64_t name_bytes;
  ACCRT_TRY(take_string(header, true, &entry.name, &name_bytes));
  if (name_bytes == 0 || name_bytes > ACCX_WEIGHTS_MAX_NAME_BYTES)
    return ACCX_REFUSE(header->name, gguf_TENSOR_NAME, "a tensor's name of %" PRIu64 " bytes",
                       name_bytes);
  entry.name_bytes = (uint32_t)name_bytes;
  ACCRT_TRY(take_shape(header, &entry));
  ACCRT_TRY(take_type(header, &entry));
  ACCRT_TRY(take_place(header, &entry));
  accx_weights_entry_t* place;
  ACCRT_TRY(accx_weights_add_entry(header->weights, &place));
  *place = entry;
  return ACCRT_OK;
}

/* Turns offsets within the data into offsets in the file. */
static accrt_status_t place_data(header_t* header, uint32_t first) {
  accrt_weights_t* weights = header->weights;
  const uint64_t begin = (header->at + header->alignment - 1) & ~(uint64_t)(header->alignment - 1);
  for (uint32_t i = first; i < weights->entry_count; ++i) {
    accx_weights_entry_t* entry = &weights->entries[i];
    uint64_t offset;
    if (entry->size_bytes > 0 &&
        (!accrt_add_u64(begin, entry->offset_bytes, &offset) ||
         !accrt_range_fits(offset, entry->size_bytes, header->file_bytes))) {
      return ACCX_REFUSE(header->name, gguf_RANGE,
                         "tensor '%.*s': %" PRIu64 " bytes at %" PRIu64
                         " of the data, which begins at %" PRIu64 " in a file of %" PRIu64,
                         NAME_OF(entry), entry->size_bytes, entry->offset_bytes, begin,
                         header->file_bytes);
    }
    entry->offset_bytes = entry->size_bytes > 0 ? begin + entry->offset_bytes : 0;
  }
  return ACCRT_OK;
}

/* ---- The file ---- */

static accrt_status_t take_counts(header_t* header, uint64_t* out_tensors, uint64_t* out_values) {
  uint64_t version;
  header->at = 4; /* skip the magic number, which selected this format */
  NEED(header, FIXED_BYTES - 4, HEADER_SIZE, "the header");
  ACCRT_TRY(take_number(header, 4, &version));
  if (version != 2 && version != 3) {
    return ACCX_REFUSE(header->name, gguf_VERSION,
                       "GGUF version %" PRIu64 "%s; this library reads 2 and 3", version,
                       (version & 0xFFFF) == 0 ? " (the file is big-endian)" : "");
  }
  header->weights->files[header->file].version = (uint32_t)version;
  ACCRT_TRY(take_number(header, 8, out_tensors));
  ACCRT_TRY(take_number(header, 8, out_values));
  const uint64_t left = header->file_bytes - FIXED_BYTES;
  if (*out_values <= left / MIN_VALUE_BYTES && *out_values < ACCX_WEIGHTS_MAX_TENSORS &&
      *out_tensors <= (left - *out_values * MIN_VALUE_BYTES) / MIN_RECORD_BYTES &&
      *out_tensors < ACCX_WEIGHTS_MAX_TENSORS)
    return ACCRT_OK;
  return ACCX_REFUSE(header->name, gguf_COUNTS,
                     "%" PRIu64 " keys and %" PRIu64 " tensors in a file of %" PRIu64 " bytes",
                     *out_values, *out_tensors, header->file_bytes);
}

static accrt_status_t walk(header_t* header) {
  accrt_weights_t* weights = header->weights;
  const uint32_t first_value = weights->value_count, first_entry = weights->entry_count;
  uint64_t tensors, values;
  accrt_meter_at("header");
  ACCRT_TRY(take_counts(header, &tensors, &values));
  for (uint64_t i = 0; i < values; ++i) {
    ACCRT_TRY(accrt_charge_record((uint32_t)i));
    ACCRT_TRY(take_pair(header));
  }
  ACCRT_TRY(check_keys(header, first_value));
  for (uint64_t i = 0; i < tensors; ++i) {
    ACCRT_TRY(accrt_charge_record((uint32_t)i));
    ACCRT_TRY(take_record(header));
  }
  return place_data(header, first_entry);
}

/* Terminates strings by a NUL in place of the next field's first byte, which has been read
 * already. */
static void end_strings(accrt_weights_t* weights, uint32_t first_entry, uint32_t first_value) {
  for (uint32_t i = first_entry; i < weights->entry_count; ++i) {
    const accx_weights_entry_t* entry = &weights->entries[i];
    ((char*)(uintptr_t)entry->name)[entry->name_bytes] = '\0';
  }
  for (uint32_t i = first_value; i < weights->value_count; ++i) {
    const accx_weights_value_t* value = &weights->values[i];
    ((char*)(uintptr_t)value->key)[value->key_bytes] = '\0';
    if (value->type == ACCRT_METADATA_STRING)
      ((char*)(uintptr_t)value->data)[value->size_bytes] = '\0';
  }
}

/* Reads a longer beginning of the file in place of the previous one. */
static accrt_status_t read_beginning(accrt_weights_t* weights, uint32_t index,
                                     uint64_t size_bytes) {
  accx_weights_file_t* file = &weights->files[index];
  accrt_free(weights->allocator, file->header, file->header_bytes);
  file->header = NULL;
  file->header_bytes = 0;
  void* memory;
  ACCRT_TRY(accrt_alloc(weights->allocator, (size_t)size_bytes + 1, &memory));
  file->header = memory;
  file->header_bytes = (size_t)size_bytes + 1;
  return accx_source_read(&file->source, 0, memory, size_bytes);
}

accrt_status_t accx_gguf_load(accrt_weights_t* weights, uint32_t file) {
  const uint64_t file_bytes = weights->files[file].source.size_bytes;
  const uint64_t most = file_bytes < ACCX_WEIGHTS_MAX_GGUF_HEADER_BYTES
                            ? file_bytes
                            : ACCX_WEIGHTS_MAX_GGUF_HEADER_BYTES;
  const uint32_t entries = weights->entry_count, values = weights->value_count,
                 sizes = weights->size_count;
  uint64_t read_bytes = most < FIRST_READ_BYTES ? most : FIRST_READ_BYTES, allowed = 0;
  for (;;) {
    accrt_meter_allow(read_bytes - allowed);
    allowed = read_bytes;
    ACCRT_TRY(read_beginning(weights, file, read_bytes));
    header_t header;
    memset(&header, 0, sizeof header);
    header.weights = weights;
    header.name = weights->files[file].name;
    header.bytes = (const unsigned char*)weights->files[file].header;
    header.size_bytes = read_bytes;
    header.file_bytes = file_bytes;
    header.file = file;
    header.alignment = DEFAULT_ALIGNMENT;
    const accrt_status_t status = walk(&header);
    if (status == ACCRT_OK)
      break;
    if (!header.is_short || read_bytes == most)
      return status;
    weights->entry_count = entries;
    weights->value_count = values;
    weights->size_count = sizes;
    read_bytes = read_bytes > most / 4 ? most : read_bytes * 4;
  }
  end_strings(weights, entries, values);
  if (file != 0)
    weights->value_count = values; /* the first file's values count for the whole set */
  return ACCRT_OK;
}
