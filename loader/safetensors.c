/* loader/safetensors.c - reads the header of a safetensors file: a size and a JSON object of
 * tensors; the tensors' bytes follow. The header is checked here, in a private copy, before any
 * use.
 */
#include <string.h>

#include "loader/json.h"
#include "format/sort.h"
#include "loader/weights.h"

#define TYPE(name, dtype, elements, bytes)                                                         \
  { name, ACCRT_DTYPE_##dtype, 0, elements, bytes }
#define OTHER(name, elements, bytes)                                                               \
  { name, ACCRT_DTYPE_U8, 1, elements, bytes }
/* Types without a data type here are bytes that no layout describes. (fnuz has other values than
 * its name suggests.) */
const accx_weights_type_t accx_safetensors_types[] = {
    TYPE("F32", F32, 1, 4),        TYPE("F16", F16, 1, 2),
    TYPE("BF16", BF16, 1, 2),      TYPE("F64", F64, 1, 8),
    TYPE("I8", I8, 1, 1),          TYPE("I16", I16, 1, 2),
    TYPE("I32", I32, 1, 4),        TYPE("I64", I64, 1, 8),
    TYPE("U8", U8, 1, 1),          TYPE("U16", U16, 1, 2),
    TYPE("U32", U32, 1, 4),        TYPE("U64", U64, 1, 8),
    TYPE("BOOL", BOOL, 1, 1),      TYPE("F8_E4M3", F8E4M3FN, 1, 1),
    TYPE("F8_E5M2", F8E5M2, 1, 1), TYPE("F8_E8M0", F8E8M0, 1, 1),
    TYPE("F4", F4E2M1, 2, 1),      OTHER("F6_E2M3", 4, 3),
    OTHER("F6_E3M2", 4, 3),        OTHER("C64", 1, 8),
    OTHER("F8_E4M3FNUZ", 1, 1),    OTHER("F8_E5M2FNUZ", 1, 1)};
#undef TYPE
#undef OTHER
const uint32_t accx_safetensors_type_count =
    sizeof accx_safetensors_types / sizeof accx_safetensors_types[0];

typedef struct header {
  accrt_weights_t* weights;
  const char* name; /* the file's name */
  accx_json_t json;
  uint64_t data_begin;
  uint64_t data_bytes;
  uint32_t file;
} header_t;

static accrt_status_t bad_json(const header_t* header) {
  return ACCX_REFUSE(header->name, safetensors_HEADER_JSON, "header: %s at byte %zu",
                     header->json.error, accx_json_offset(&header->json));
}
#define NEED(expression)                                                                           \
  do {                                                                                             \
    if (!(expression))                                                                             \
      return bad_json(header);                                                                     \
  } while (0)
/* ---- __metadata__ ---- */

static accrt_status_t check_keys(const header_t* header, uint32_t first) {
  const accx_weights_value_t* twice;
  ACCRT_TRY(accx_weights_find_twice(header->weights, first, &twice));
  if (twice == NULL)
    return ACCRT_OK;
  return ACCX_REFUSE(header->name, safetensors_METADATA, "__metadata__ has '%.100s' twice",
                     twice->key);
}

/* Removes the metadata of later files of a set: the first file's count for the whole set. */
static accrt_status_t end_metadata(const header_t* header, uint32_t first) {
  const accrt_status_t status = check_keys(header, first);
  if (header->file != 0)
    header->weights->value_count = first;
  return status;
}

static accrt_status_t read_metadata(header_t* header) {
  accx_json_t* json = &header->json;
  bool first = true;
  const uint32_t first_value = header->weights->value_count;
  NEED(accx_json_take(json, '{', "__metadata__ is not an object"));
  for (;;) {
    const char *key, *text;
    size_t key_bytes, text_bytes;
    NEED(accx_json_member(json, &first, &key, &key_bytes));
    if (key == NULL)
      return end_metadata(header, first_value);
    NEED(accx_json_string(json, &text, &text_bytes));
    if (header->weights->value_count - first_value == ACCX_WEIGHTS_MAX_METADATA) {
      return ACCX_REFUSE(header->name, safetensors_METADATA, "__metadata__ has more than %u keys",
                         ACCX_WEIGHTS_MAX_METADATA);
    }
    accx_weights_value_t* value;
    ACCRT_TRY(accx_weights_add_value(header->weights, &value));
    *value = (accx_weights_value_t){.key = key,
                                    .data = (const unsigned char*)text,
                                    .size_bytes = text_bytes,
                                    .count = 1,
                                    .key_bytes = (uint32_t)key_bytes,
                                    .type = ACCRT_METADATA_STRING,
                                    .element_type = ACCRT_METADATA_STRING};
  }
}

/* ---- Tensors ---- */

static accrt_status_t read_dtype(header_t* header, accx_weights_entry_t* entry) {
  const char* text;
  size_t size_bytes;
  NEED(accx_json_string(&header->json, &text, &size_bytes));
  for (uint16_t i = 0; i < accx_safetensors_type_count; ++i) {
    if (strcmp(accx_safetensors_types[i].name, text) != 0)
      continue;
    entry->type = i;
    return ACCRT_OK;
  }
  return ACCX_REFUSE(header->name, safetensors_DTYPE,
                     "tensor '%.200s': its dtype '%.32s' is not known to this library", entry->name,
                     text);
}

static accrt_status_t read_shape(header_t* header, accx_weights_entry_t* entry) {
  accx_json_t* json = &header->json;
  bool first = true, more;
  entry->shape_first = header->weights->size_count;
  NEED(accx_json_take(json, '[', "a shape is not an array"));
  for (entry->rank = 0;; ++entry->rank) {
    uint64_t size;
    NEED(accx_json_next(json, ']', &first, &more));
    if (!more)
      return ACCRT_OK;
    NEED(accx_json_integer(json, &size));
    if (entry->rank == 8)
      return ACCX_REFUSE(header->name, safetensors_SHAPE,
                         "tensor '%.200s' has more than 8 dimensions", entry->name);
    int64_t* place;
    ACCRT_TRY(accx_weights_add_sizes(header->weights, 1, &place));
    *place = (int64_t)size;
  }
}

static accrt_status_t read_range(header_t* header, accx_weights_entry_t* entry) {
  accx_json_t* json = &header->json;
  uint64_t begin, end;
  NEED(accx_json_take(json, '[', "data_offsets are not an array") &&
       accx_json_integer(json, &begin) && accx_json_take(json, ',', "a comma is missing") &&
       accx_json_integer(json, &end) && accx_json_take(json, ']', "data_offsets are not two"));
  if (begin > end || end > header->data_bytes) {
    return ACCX_REFUSE(header->name, safetensors_RANGE,
                       "tensor '%.200s': data_offsets %" PRIu64 " to %" PRIu64 " of %" PRIu64
                       " bytes of data",
                       entry->name, begin, end, header->data_bytes);
  }
  entry->offset_bytes = header->data_begin + begin;
  entry->size_bytes = end - begin;
  return ACCRT_OK;
}

static accrt_status_t check_size(const header_t* header, const accx_weights_entry_t* entry) {
  const accx_weights_type_t* type = &accx_safetensors_types[entry->type];
  uint64_t elements, size_bytes;
  if (!accx_weights_blocks(accx_weights_shape(header->weights, entry), entry->rank, type, &elements,
                           &size_bytes)) {
    return ACCX_REFUSE(header->name, safetensors_SHAPE,
                       "tensor '%.200s': the product of its shape does not fit", entry->name);
  }
  if (elements % type->block_elements == 0 && size_bytes == entry->size_bytes)
    return ACCRT_OK;
  return ACCX_REFUSE(header->name, safetensors_SIZE,
                     "tensor '%.200s' has %" PRIu64 " bytes; %" PRIu64
                     " elements of %s need %s%" PRIu64,
                     entry->name, entry->size_bytes, elements, type->name,
                     elements % type->block_elements == 0 ? "" : "more than ", size_bytes);
}

static accrt_status_t read_fields(header_t* header, accx_weights_entry_t* entry) {
  static const char fields[][13] = {"dtype", "shape", "data_offsets"};
  accx_json_t* json = &header->json;
  bool first = true;
  uint32_t seen = 0;
  NEED(accx_json_take(json, '{', "a tensor is not an object"));
  for (;;) {
    const char* key;
    size_t key_bytes;
    NEED(accx_json_member(json, &first, &key, &key_bytes));
    if (key == NULL)
      break;
    uint32_t field = 0;
    while (field < 3 && strcmp(fields[field], key) != 0)
      ++field;
    if (field == 3 || (seen & 1u << field) != 0) {
      return ACCX_REFUSE(header->name, safetensors_TENSOR_FIELDS, "tensor '%.200s' has '%.40s'%s",
                         entry->name, key, field == 3 ? ", which is not defined" : " twice");
    }
    seen |= 1u << field;
    ACCRT_TRY(field == 0   ? read_dtype(header, entry)
              : field == 1 ? read_shape(header, entry)
                           : read_range(header, entry));
  }
  for (uint32_t i = 0; i < 3; ++i) {
    if ((seen & 1u << i) == 0)
      return ACCX_REFUSE(header->name, safetensors_TENSOR_FIELDS, "tensor '%.200s' has no '%s'",
                         entry->name, fields[i]);
  }
  return check_size(header, entry);
}

static accrt_status_t read_tensor(header_t* header, const char* name, size_t name_bytes) {
  accrt_weights_t* weights = header->weights;
  if (name_bytes == 0 || name_bytes > ACCX_WEIGHTS_MAX_NAME_BYTES) {
    return ACCX_REFUSE(header->name, safetensors_TENSOR_NAME,
                       "tensor %" PRIu32 " has a name of %zu bytes", weights->entry_count,
                       name_bytes);
  }
  accx_weights_entry_t* place;
  ACCRT_TRY(accrt_charge_record(weights->entry_count));
  ACCRT_TRY(accx_weights_add_entry(weights, &place));
  accx_weights_entry_t entry;
  memset(&entry, 0, sizeof entry);
  entry.name = name;
  entry.name_bytes = (uint32_t)name_bytes;
  entry.file = header->file;
  ACCRT_TRY(read_fields(header, &entry));
  *place = entry;
  return ACCRT_OK;
}

static accrt_status_t read_members(header_t* header) {
  accx_json_t* json = &header->json;
  bool first = true, had_metadata = false;
  NEED(accx_json_take(json, '{', "the header is not an object"));
  for (;;) {
    const char* key;
    size_t key_bytes;
    NEED(accx_json_member(json, &first, &key, &key_bytes));
    if (key == NULL)
      break;
    if (strcmp(key, "__metadata__") != 0) {
      ACCRT_TRY(read_tensor(header, key, key_bytes));
      continue;
    }
    if (had_metadata)
      return ACCX_REFUSE(header->name, safetensors_METADATA, "__metadata__ is there twice");
    had_metadata = true;
    ACCRT_TRY(read_metadata(header));
  }
  NEED(accx_json_finish(json));
  return ACCRT_OK;
}

/* ---- Coverage ---- */

static bool before(const void* context, uint32_t a, uint32_t b) {
  const accx_weights_entry_t* entries = context;
  return entries[a].offset_bytes != entries[b].offset_bytes
             ? entries[a].offset_bytes < entries[b].offset_bytes
             : entries[a].size_bytes < entries[b].size_bytes;
}

/* Checks the tensors in the order of their bytes, which is usually the header's order. */
static accrt_status_t check_cover(const header_t* header, const accx_weights_entry_t* entries,
                                  uint32_t count, const uint32_t* order) {
  uint64_t end = header->data_begin;
  for (uint32_t i = 0; i < count; ++i) {
    const accx_weights_entry_t* entry = &entries[order[i]];
    if (entry->offset_bytes != end) {
      return ACCX_REFUSE(header->name, safetensors_COVER,
                         "tensor '%.200s' begins at byte %" PRIu64
                         " of the data, the one before it ends at %" PRIu64,
                         entry->name, entry->offset_bytes - header->data_begin,
                         end - header->data_begin);
    }
    end += entry->size_bytes;
  }
  if (end - header->data_begin == header->data_bytes)
    return ACCRT_OK;
  return ACCX_REFUSE(header->name, safetensors_COVER,
                     "the tensors end at byte %" PRIu64 " of %" PRIu64 " bytes of data",
                     end - header->data_begin, header->data_bytes);
}

static accrt_status_t check_places(const header_t* header, uint32_t first) {
  const accrt_weights_t* weights = header->weights;
  const uint32_t count = weights->entry_count - first;
  const accx_weights_entry_t* entries = count > 0 ? weights->entries + first : NULL;
  void* memory;
  ACCRT_TRY(accrt_alloc_array(weights->allocator, count, sizeof(uint32_t), &memory));
  uint32_t* order = memory;
  bool sorted = true;
  for (uint32_t i = 0; i < count; ++i) {
    order[i] = i;
    sorted = sorted && (i == 0 || !before(entries, i, i - 1));
  }
  if (!sorted)
    accx_sort(order, count, before, entries);
  const accrt_status_t status = check_cover(header, entries, count, order);
  accrt_free_array(weights->allocator, memory, count, sizeof(uint32_t));
  return status;
}

/* ---- The file ---- */

static accrt_status_t read_header(accx_weights_file_t* file, header_t* header) {
  unsigned char bytes[8] = {0};
  const uint64_t size = file->source.size_bytes;
  if (size >= sizeof bytes)
    ACCRT_TRY(accx_source_read(&file->source, 0, bytes, sizeof bytes));
  const uint64_t header_bytes = accx_weights_number(bytes, sizeof bytes);
  if (size < sizeof bytes || header_bytes < 2 || header_bytes > ACCX_WEIGHTS_MAX_HEADER_BYTES ||
      header_bytes > size - sizeof bytes) {
    return ACCX_REFUSE(file->name, safetensors_HEADER_SIZE,
                       "a header of %" PRIu64 " bytes in a file of %" PRIu64, header_bytes, size);
  }
  void* memory;
  accrt_meter_at("header");
  accrt_meter_allow(header_bytes);
  const accrt_allocator_t* allocator = header->weights->allocator;
  ACCRT_TRY(accrt_alloc(allocator, (size_t)header_bytes + 1, &memory));
  file->header = memory;
  file->header_bytes = (size_t)header_bytes + 1;
  ACCRT_TRY(accx_source_read(&file->source, sizeof bytes, memory, header_bytes));
  accx_json_init(&header->json, memory, (size_t)header_bytes);
  header->data_begin = sizeof bytes + header_bytes;
  header->data_bytes = size - header->data_begin;
  return ACCRT_OK;
}

accrt_status_t accx_safetensors_load(accrt_weights_t* weights, uint32_t file) {
  header_t header;
  memset(&header, 0, sizeof header);
  header.weights = weights;
  header.file = file;
  header.name = weights->files[file].name;
  const uint32_t first = weights->entry_count;
  ACCRT_TRY(read_header(&weights->files[file], &header));
  ACCRT_TRY(read_members(&header));
  return check_places(&header, first);
}
