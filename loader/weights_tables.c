/* loader/weights_tables.c - the records of a source of weights while it is opened: refusals by
 * rule, growing lists, keys and names. It may not read files.
 */
#include "loader/weights.h"

#include <stdio.h>
#include <string.h>

#include "format/sort.h"
/* ---- Refusals ---- */

static const struct {
  char format[12];
  uint8_t status;
  uint8_t number;
} rules[] = {
#define RULE(format, name, number, status, text) {#format, ACCRT_ERROR_##status, number},
    ACCX_WEIGHTS_RULE_LIST(RULE)
#undef RULE
};

accrt_status_t accx_weights_refuse(const char* name, accrt_error_place_t place, const char* format,
                                   ...) {
  const uint32_t rule = accrt_place_status(place);
  char what[512];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  return accrt_error_fail(accrt_place_with(place, rules[rule].status), "%s: %s (%s rule %u)", name,
                          what, rules[rule].format, rules[rule].number);
}

/* ---- Lists ---- */

accrt_status_t accx_weights_add_file(accrt_weights_t* weights, const char* name,
                                     accx_weights_file_t** out_file) {
  ACCRT_TRY(ACCRT_GROW(weights->allocator, (size_t)weights->file_count + 1, &weights->files,
                       &weights->file_capacity));
  accx_weights_file_t* file = &weights->files[weights->file_count];
  memset(file, 0, sizeof *file);
  ACCRT_TRY(accrt_copy_string(weights->allocator, name, &file->name));
  weights->file_count += 1;
  *out_file = file;
  return ACCRT_OK;
}

accrt_status_t accx_weights_add_entry(accrt_weights_t* weights, accx_weights_entry_t** out_entry) {
  if (weights->entry_count == ACCX_WEIGHTS_MAX_TENSORS)
    return ACCRT_FAIL(UNSUPPORTED, "%s: more than %u tensors", weights->name,
                      ACCX_WEIGHTS_MAX_TENSORS);
  const accrt_status_t status = ACCRT_GROW(weights->allocator, (size_t)weights->entry_count + 1,
                                           &weights->entries, &weights->entry_capacity);
  if (status == ACCRT_OK)
    *out_entry = &weights->entries[weights->entry_count++];
  return status;
}

accrt_status_t accx_weights_add_value(accrt_weights_t* weights, accx_weights_value_t** out_value) {
  const accrt_status_t status = ACCRT_GROW(weights->allocator, (size_t)weights->value_count + 1,
                                           &weights->values, &weights->value_capacity);
  if (status == ACCRT_OK)
    *out_value = &weights->values[weights->value_count++];
  return status;
}

accrt_status_t accx_weights_add_sizes(accrt_weights_t* weights, uint32_t count,
                                      int64_t** out_sizes) {
  ACCRT_TRY(ACCRT_GROW(weights->allocator, (size_t)weights->size_count + count, &weights->sizes,
                       &weights->size_capacity));
  *out_sizes = count > 0 ? weights->sizes + weights->size_count : NULL;
  weights->size_count += count;
  return ACCRT_OK;
}

bool accx_weights_blocks(const int64_t* sizes, uint32_t rank, const accx_weights_type_t* type,
                         uint64_t* out_elements, uint64_t* out_size_bytes) {
  uint64_t product = 1, bytes;
  bool empty = false;
  for (uint32_t i = 0; i < rank; ++i) {
    empty = empty || sizes[i] == 0;
    if (sizes[i] != 0 && !accrt_mul_u64(product, (uint64_t)sizes[i], &product))
      return false;
  }
  if (product > INT64_MAX ||
      !accrt_mul_u64(product / type->block_elements + 1, type->block_bytes, &bytes) ||
      bytes > INT64_MAX)
    return false;
  *out_elements = empty ? 0 : product;
  *out_size_bytes = *out_elements / type->block_elements * type->block_bytes;
  return true;
}

/* ---- Numbers and keys ---- */

uint64_t accx_weights_number(const unsigned char* bytes, size_t size_bytes) {
  uint64_t value = 0;
  while (size_bytes-- > 0)
    value = value << 8 | bytes[size_bytes];
  return value;
}

static int compare_keys(const accx_weights_value_t* a, const accx_weights_value_t* b) {
  const uint32_t shorter = a->key_bytes < b->key_bytes ? a->key_bytes : b->key_bytes;
  const int order = memcmp(a->key, b->key, shorter);
  return order != 0 ? order : (a->key_bytes > b->key_bytes) - (a->key_bytes < b->key_bytes);
}

static bool key_less(const void* context, uint32_t a, uint32_t b) {
  const accx_weights_value_t* values = context;
  return compare_keys(&values[a], &values[b]) < 0;
}

accrt_status_t accx_weights_find_twice(const accrt_weights_t* weights, uint32_t first,
                                       const accx_weights_value_t** out_value) {
  const uint32_t count = weights->value_count - first;
  *out_value = NULL;
  void* memory;
  ACCRT_TRY(accrt_alloc_array(weights->allocator, count, sizeof(uint32_t), &memory));
  uint32_t* order = memory;
  for (uint32_t i = 0; i < count; ++i)
    order[i] = i;
  const accx_weights_value_t* values = count > 0 ? weights->values + first : NULL;
  accx_sort(order, count, key_less, values);
  for (uint32_t i = 1; i < count && *out_value == NULL; ++i) {
    if (compare_keys(&values[order[i - 1]], &values[order[i]]) == 0)
      *out_value = &values[order[i]];
  }
  accrt_free_array(weights->allocator, memory, count, sizeof(uint32_t));
  return ACCRT_OK;
}

/* ---- Names ---- */

static uint64_t mix(uint64_t a, uint64_t b) {
  __extension__ typedef unsigned __int128 wide_t;
  const wide_t product = (wide_t)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t accx_hash_name(const char* name, size_t name_bytes, uint64_t seed) {
  uint64_t hash = seed ^ UINT64_C(0x9E3779B97F4A7C15);
  for (size_t at = 0; at < name_bytes; at += sizeof hash) {
    uint64_t word = 0;
    const size_t left = name_bytes - at;
    memcpy(&word, name + at, left < sizeof word ? left : sizeof word);
    hash = mix(hash ^ word, UINT64_C(0xD6E8FEB86659FD93) ^ (seed << 1));
  }
  return mix(hash ^ name_bytes, UINT64_C(0xA0761D6478BD642F));
}

static uint32_t hash_of(const accrt_weights_t* weights, const char* name, size_t name_bytes,
                        uint32_t file) {
  const uint64_t hash = accx_hash_name(name, name_bytes, weights->seed + file);
  return (uint32_t)(hash ^ hash >> 32);
}

static bool is_named(const accx_weights_entry_t* entry, const char* name, size_t name_bytes,
                     uint32_t file) {
  return entry->name_bytes == name_bytes && (file == ACCX_WEIGHTS_NONE || entry->file == file) &&
         memcmp(entry->name, name, name_bytes) == 0;
}

/* Returns a name's entry in the table, or the free one where it belongs. Names are compared only if
 * their hashes are equal. */
static uint32_t find_place(const accrt_weights_t* weights, const char* name, size_t name_bytes,
                           uint32_t file, uint32_t hash) {
  const uint32_t mask = weights->table_capacity - 1;
  for (uint32_t at = hash & mask;; at = (at + 1) & mask) {
    const uint64_t slot = weights->table[at];
    if (slot == 0 || (slot >> 32 == hash &&
                      is_named(&weights->entries[(uint32_t)slot - 1], name, name_bytes, file)))
      return at;
  }
}

accrt_status_t accx_weights_make_table(accrt_weights_t* weights, bool file_too,
                                       uint32_t* out_duplicate) {
  accrt_free_array(weights->allocator, weights->table, weights->table_capacity,
                   sizeof *weights->table);
  weights->table = NULL;
  uint32_t capacity = 16;
  while (capacity < 2 * weights->entry_count)
    capacity *= 2;
  weights->table_capacity = 0;
  ACCRT_TRY(ACCRT_NEW_ARRAY(weights->allocator, capacity, &weights->table));
  weights->table_capacity = capacity;
  weights->seed = accrt_hash_seed();
  *out_duplicate = ACCX_WEIGHTS_NONE;
  accrt_meter_at("names");
  for (uint32_t i = 0; i < weights->entry_count && *out_duplicate == ACCX_WEIGHTS_NONE; ++i) {
    ACCRT_TRY(accrt_charge_record(i));
    const accx_weights_entry_t* entry = &weights->entries[i];
    const uint32_t file = file_too ? entry->file : ACCX_WEIGHTS_NONE;
    const uint32_t hash = hash_of(weights, entry->name, entry->name_bytes, file);
    const uint32_t at = find_place(weights, entry->name, entry->name_bytes, file, hash);
    if (weights->table[at] != 0)
      *out_duplicate = i;
    weights->table[at] = (uint64_t)hash << 32 | (i + 1);
  }
  return ACCRT_OK;
}

uint32_t accx_weights_lookup(const accrt_weights_t* weights, const char* name, size_t name_bytes,
                             uint32_t file) {
  const uint32_t hash = hash_of(weights, name, name_bytes, file);
  const uint64_t slot = weights->table[find_place(weights, name, name_bytes, file, hash)];
  return slot != 0 ? (uint32_t)slot - 1 : ACCX_WEIGHTS_NONE;
}
