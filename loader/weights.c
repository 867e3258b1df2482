/* loader/weights.c - sources of weights: opening, names, bytes, and the public functions of accrt/weights.h. What a foreign file's header
 * says is for safetensors.c and gguf.c; what belongs together, for weights_set.c.
 */
#define _GNU_SOURCE
#include "loader/weights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "accrt/tensor.h"
#include "loader/bundle.h"
#include "loader/layout.h"
#include "loader/sort.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/near_name.h"
#include "runtime/core/struct.h"
#include "runtime/core/trust.h"

/* ---- Refusals ---- */

static const struct {
  const char* format;
  accrt_status_t status;
  uint32_t number;
} rules[] = {
#define RULE(format, name, number, status, text) {#format, ACCRT_ERROR_##status, number},
    ACCX_WEIGHTS_RULE_LIST(RULE)
#undef RULE
};

accrt_status_t accx_weights_refuse(const char* name, uint32_t rule, const char* source_file,
                                   uint32_t line, const char* format, ...) {
  char what[512];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  return accrt_error_fail(rules[rule].status, NULL, source_file, line,
                          "%s: %s (%s rule %" PRIu32 ")", name, what, rules[rule].format,
                          rules[rule].number);
}

/* ---- Lists ---- */

accrt_status_t accx_weights_add_file(accrt_weights_t* weights, const char* name,
                                     accx_weights_file_t** out_file) {
  void* memory = weights->files;
  const accrt_status_t status =
      accrt_grow_array(weights->allocator, (size_t)weights->file_count + 1, sizeof *weights->files,
                       &weights->file_capacity, &memory);
  weights->files = memory;
  if (status != ACCRT_OK)
    return status;
  accx_weights_file_t* file = &weights->files[weights->file_count];
  memset(file, 0, sizeof *file);
  ACCX_TRY(accrt_copy_string(weights->allocator, name, &file->name));
  weights->file_count += 1;
  *out_file = file;
  return ACCRT_OK;
}

accrt_status_t accx_weights_add_entry(accrt_weights_t* weights, accx_weights_entry_t** out_entry) {
  if (weights->entry_count == ACCX_WEIGHTS_MAX_TENSORS)
    return ACCRT_FAIL_INNER(UNSUPPORTED, "%s: more than %u tensors", weights->name,
                            ACCX_WEIGHTS_MAX_TENSORS);
  void* memory = weights->entries;
  const accrt_status_t status =
      accrt_grow_array(weights->allocator, (size_t)weights->entry_count + 1,
                       sizeof *weights->entries, &weights->entry_capacity, &memory);
  weights->entries = memory;
  if (status == ACCRT_OK)
    *out_entry = &weights->entries[weights->entry_count++];
  return status;
}

accrt_status_t accx_weights_add_value(accrt_weights_t* weights, accx_weights_value_t** out_value) {
  void* memory = weights->values;
  const accrt_status_t status =
      accrt_grow_array(weights->allocator, (size_t)weights->value_count + 1,
                       sizeof *weights->values, &weights->value_capacity, &memory);
  weights->values = memory;
  if (status == ACCRT_OK)
    *out_value = &weights->values[weights->value_count++];
  return status;
}

accrt_status_t accx_weights_add_sizes(accrt_weights_t* weights, uint32_t count,
                                      int64_t** out_sizes) {
  void* memory = weights->sizes;
  const accrt_status_t status =
      accrt_grow_array(weights->allocator, (size_t)weights->size_count + count,
                       sizeof *weights->sizes, &weights->size_capacity, &memory);
  weights->sizes = memory;
  if (status != ACCRT_OK)
    return status;
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
  ACCX_TRY(accrt_alloc_array(weights->allocator, count, sizeof(uint32_t), &memory));
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

/* 16 bytes that the kernel gives each process: names cannot be made to collide. */
static uint64_t random_seed(void) {
  uint64_t seed = 0;
  const void* bytes = (const void*)(uintptr_t)getauxval(AT_RANDOM);
  if (bytes != NULL)
    memcpy(&seed, bytes, sizeof seed);
  return seed;
}

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

/* Where a name is in the table, or the free place where it would be. Names are only looked at where hashes are the same. */
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
  void* memory;
  ACCX_TRY(accrt_alloc_array(weights->allocator, capacity, sizeof *weights->table, &memory));
  weights->table = memory;
  weights->table_capacity = capacity;
  weights->seed = random_seed();
  *out_duplicate = ACCX_WEIGHTS_NONE;
  for (uint32_t i = 0; i < weights->entry_count && *out_duplicate == ACCX_WEIGHTS_NONE; ++i) {
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

/* ---- Files ---- */

static void close_file(const accrt_weights_t* weights, accx_weights_file_t* file, bool notify) {
  if (file->mapping != NULL)
    munmap(file->mapping, (size_t)file->source.size_bytes);
  accx_source_close(&file->source, notify);
  if (file->bundle != NULL)
    accrt_bundle_unref(file->bundle);
  accrt_free(weights->allocator, file->header, file->header_bytes);
  accrt_free_string(weights->allocator, file->name);
}

static void forget_files(accrt_weights_t* weights, bool notify) {
  for (uint32_t i = 0; i < weights->file_count; ++i)
    close_file(weights, &weights->files[i], notify);
  weights->file_count = 0;
  weights->entry_count = 0;
  weights->size_count = 0;
  weights->value_count = 0;
}

void accx_weights_forget_files(accrt_weights_t* weights) {
  forget_files(weights, true);
}

static void destroy(accrt_weights_t* weights, bool notify) {
  const accrt_allocator_t* allocator = weights->allocator;
  accrt_free_array(allocator, weights->ready, weights->entry_count, sizeof *weights->ready);
  forget_files(weights, notify);
  accrt_free_array(allocator, weights->files, weights->file_capacity, sizeof *weights->files);
  accrt_free_array(allocator, weights->entries, weights->entry_capacity, sizeof *weights->entries);
  accrt_free_array(allocator, weights->sizes, weights->size_capacity, sizeof *weights->sizes);
  accrt_free_array(allocator, weights->values, weights->value_capacity, sizeof *weights->values);
  accrt_free_array(allocator, weights->table, weights->table_capacity, sizeof *weights->table);
  accrt_free(allocator, weights->index, weights->index_bytes);
  accrt_free_string(allocator, weights->name);
  accrt_free(allocator, weights, sizeof *weights);
}

/* The bytes of a file: mapped, the caller's, or memory to be filled tensor by tensor. */
static accrt_status_t map_file(accrt_weights_t* weights, accx_weights_file_t* file) {
  if (file->source.kind == ACCX_SOURCE_MEMORY) {
    file->bytes = file->source.memory;
    return ACCRT_OK;
  }
  file->on_demand = file->source.kind == ACCX_SOURCE_CALLBACKS;
  const size_t size_bytes = (size_t)file->source.size_bytes;
  void* mapping = file->on_demand
                      ? mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                      : mmap(NULL, size_bytes, PROT_READ, MAP_PRIVATE, file->source.fd, 0);
  if (mapping == MAP_FAILED) {
    return ACCRT_FAIL_ERRNO(OUT_OF_MEMORY, errno, "%s: could not map %zu bytes: %s", weights->name,
                            size_bytes, strerror(errno));
  }
  if (!file->on_demand)
    (void)madvise(mapping, size_bytes, MADV_HUGEPAGE);
  file->mapping = mapping;
  file->bytes = mapping;
  return ACCRT_OK;
}

/* What a file is, by what it begins with; 0: an index, or nothing that is known. */
static uint32_t kind_of(const unsigned char* bytes, size_t size_bytes) {
  if (size_bytes >= 8 && memcmp(bytes, ACCX_MAGIC, 8) == 0)
    return ACCRT_WEIGHTS_KIND_ACCX;
  if (size_bytes >= 4 && memcmp(bytes, "GGUF", 4) == 0)
    return ACCRT_WEIGHTS_KIND_GGUF;
  return size_bytes >= 9 && bytes[8] == '{' ? ACCRT_WEIGHTS_KIND_SAFETENSORS : 0;
}

static accrt_status_t load_bundle(accrt_weights_t* weights, uint32_t index) {
  accx_weights_file_t* file = &weights->files[index];
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.verify = weights->verify;
  options.name = file->name;
  accx_source_t* source = &file->source;
  accrt_instance_t* instance = weights->instance;
  if (source->kind == ACCX_SOURCE_FILE)
    ACCX_TRY(accrt_bundle_open_fd(instance, source->fd, &options, &file->bundle));
  else if (source->kind == ACCX_SOURCE_MEMORY)
    ACCX_TRY(accrt_bundle_open_memory(instance, source->memory, source->size_bytes, source->release,
                                      source->user, &options, &file->bundle));
  else
    ACCX_TRY(accrt_bundle_open_callbacks(instance, &source->reader, &options, &file->bundle));
  /* An internal reference: whoever ends with the instance may hold this. The bundle has the source now. */
  accrt_bundle_ref(file->bundle);
  accrt_bundle_release(file->bundle);
  const uint64_t size_bytes = source->size_bytes;
  accx_source_close(source, false);
  source->size_bytes = size_bytes;
  return ACCRT_OK;
}

/* The constants that a bundle stores. */
static accrt_status_t list_bundle(accrt_weights_t* weights, uint32_t index) {
  const accx_weights_file_t* file = &weights->files[index];
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(file->bundle);
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    const accx_constant_t* constant = &tables->constants[i];
    if (constant->source != ACCX_CONSTANT_INLINE)
      continue;
    accx_weights_entry_t* entry;
    ACCX_TRY(accx_weights_add_entry(weights, &entry));
    memset(entry, 0, sizeof *entry);
    entry->name = accrt_bundle_string(tables, constant->name);
    entry->name_bytes = (uint32_t)strlen(entry->name);
    entry->offset_bytes = i;
    entry->file = index;
    entry->rank = (uint8_t)constant->rank;
    for (uint32_t k = 0; k < constant->component_count; ++k)
      entry->size_bytes += tables->components[constant->component_first + k].size_bytes;
  }
  for (uint32_t i = 0; index == 0 && i < tables->metadata_count; ++i) {
    const char* text = accrt_bundle_string(tables, tables->metadata[i].value);
    accx_weights_value_t* value;
    ACCX_TRY(accx_weights_add_value(weights, &value));
    *value = (accx_weights_value_t){.key = accrt_bundle_string(tables, tables->metadata[i].key),
                                    .data = (const unsigned char*)text,
                                    .size_bytes = strlen(text),
                                    .count = 1,
                                    .type = ACCRT_METADATA_STRING,
                                    .element_type = ACCRT_METADATA_STRING};
    value->key_bytes = (uint32_t)strlen(value->key);
  }
  return ACCRT_OK;
}

static accrt_status_t load_foreign(accrt_weights_t* weights, uint32_t file) {
  accx_weights_file_t* const record = &weights->files[file];
  if (accrt_instance_trust_store(weights->instance)->signed_weights != 0)
    return ACCRT_FAIL_INNER(UNTRUSTED,
                            "%s: trust.weights is 'signed', and files of this format have no "
                            "signatures: `accx pack` and `accx sign --scope weights` make one "
                            "that has",
                            record->name);
  if (record->source.size_bytes > INT64_MAX || record->source.size_bytes > SIZE_MAX)
    return ACCRT_FAIL_INNER(UNSUPPORTED, "%s: a file of %" PRIu64 " bytes", record->name,
                            record->source.size_bytes);
  ACCX_TRY(record->kind == ACCRT_WEIGHTS_KIND_GGUF ? accx_gguf_load(weights, file)
                                                   : accx_safetensors_load(weights, file));
  return map_file(weights, record);
}

accrt_status_t accx_weights_load_file(accrt_weights_t* weights, uint32_t index) {
  accx_weights_file_t* file = &weights->files[index];
  unsigned char bytes[16] = {0};
  const size_t size_bytes =
      file->source.size_bytes < sizeof bytes ? (size_t)file->source.size_bytes : sizeof bytes;
  file->entry_first = weights->entry_count;
  accx_source_begin(&file->source);
  accrt_status_t status = accx_source_read(&file->source, 0, bytes, size_bytes);
  if (status == ACCRT_OK) {
    file->kind = kind_of(bytes, size_bytes);
    if (file->kind == ACCRT_WEIGHTS_KIND_GGUF || file->kind == ACCRT_WEIGHTS_KIND_SAFETENSORS)
      status = load_foreign(weights, index);
  }
  accx_source_end(&file->source);
  if (status == ACCRT_OK && file->kind == ACCRT_WEIGHTS_KIND_ACCX) {
    status = load_bundle(weights, index);
    if (status == ACCRT_OK)
      status = list_bundle(weights, index);
  }
  file->entry_count = weights->entry_count - file->entry_first;
  return status;
}

/* ---- Opening ---- */

static accrt_status_t refuse_duplicate(const accrt_weights_t* weights, uint32_t duplicate) {
  const accx_weights_entry_t* entry = &weights->entries[duplicate];
  const char* file = weights->files[entry->file].name;
  if (weights->file_count > 1 && weights->kind == ACCRT_WEIGHTS_KIND_GGUF)
    return ACCX_REFUSE(file, gguf_SPLIT_TENSORS, "tensor '%.200s' is in an earlier part too",
                       entry->name);
  if (weights->kind == ACCRT_WEIGHTS_KIND_GGUF)
    return ACCX_REFUSE(file, gguf_TENSOR_NAME, "tensor '%.200s' is there twice", entry->name);
  return ACCX_REFUSE(file, safetensors_TENSOR_NAME, "tensor '%.200s' is there twice", entry->name);
}

/* What is needed beside the one file that was opened. */
static accrt_status_t complete(accrt_weights_t* weights, const char* path) {
  const accx_weights_file_t* first = &weights->files[0];
  const bool one_file = (weights->flags & ACCRT_WEIGHTS_FLAG_ONE_FILE) != 0;
  if (first->kind == 0)
    ACCX_TRY(accx_weights_load_index(weights, one_file ? NULL : path));
  else if (first->kind == ACCRT_WEIGHTS_KIND_GGUF && first->split_count > 1 && !one_file)
    ACCX_TRY(accx_weights_load_parts(weights, path));
  weights->kind = weights->files[0].kind;
  uint32_t duplicate;
  ACCX_TRY(accx_weights_make_table(weights, false, &duplicate));
  if (duplicate != ACCX_WEIGHTS_NONE)
    return refuse_duplicate(weights, duplicate);
  if (!weights->files[0].on_demand)
    return ACCRT_OK;
  void* memory;
  ACCX_TRY(
      accrt_alloc_array(weights->allocator, weights->entry_count, sizeof *weights->ready, &memory));
  weights->ready = memory;
  return ACCRT_OK;
}

static accrt_status_t read_options(const accrt_weights_options_t* options,
                                   accrt_weights_options_t* out_options) {
  ACCX_TRY(accrt_struct_read("accrt_weights_options_t", options, out_options, sizeof *out_options));
  if ((out_options->flags & ~(ACCRT_WEIGHTS_FLAG_ONE_FILE | ACCRT_WEIGHTS_FLAG_FOLLOW_LINKS)) ==
          0 &&
      out_options->verify <= ACCRT_VERIFY_NO_DATA && out_options->reserved == 0)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "accrt_weights_options_t: flags 0x%" PRIx32 ", verify %" PRIu32
                    ", reserved %" PRIu32,
                    out_options->flags, out_options->verify, out_options->reserved);
}

static accrt_status_t create(accrt_instance_t* instance, const accrt_weights_options_t* options,
                             const char* name, accrt_weights_t** out_weights) {
  const accrt_allocator_t* allocator = accrt_instance_allocator(instance);
  void* memory;
  ACCX_TRY(accrt_alloc(allocator, sizeof(accrt_weights_t), &memory));
  accrt_weights_t* weights = memory;
  accrt_object_init(&weights->object);
  weights->allocator = allocator;
  weights->instance = instance;
  weights->flags = options->flags;
  weights->verify = options->verify;
  accx_weights_file_t* file;
  accrt_status_t status =
      accrt_copy_string(allocator, options->name != NULL ? options->name : name, &weights->name);
  if (status == ACCRT_OK)
    status = accx_weights_add_file(weights, weights->name, &file);
  if (status != ACCRT_OK) {
    destroy(weights, false);
    return status;
  }
  *out_weights = weights;
  return ACCRT_OK;
}

/* Takes `weights`, whose first file has a source unless `source_status` says that there is none. */
static accrt_status_t finish_open(accrt_weights_t* weights, accrt_status_t source_status,
                                  const char* path, accrt_weights_t** out_weights) {
  accrt_status_t status = source_status;
  if (status == ACCRT_OK && accrt_instance_direct_reads(weights->instance))
    accx_source_bypass_cache(&weights->files[0].source);
  if (status == ACCRT_OK)
    status = accx_weights_load_file(weights, 0);
  if (status == ACCRT_OK)
    status = complete(weights, path);
  if (status != ACCRT_OK) {
    destroy(weights, false);
    return status;
  }
  (void)accrt_instance_retain(weights->instance);
  *out_weights = weights;
  return ACCRT_OK;
}

static accrt_status_t begin_open(const char* operation, accrt_instance_t* instance,
                                 const accrt_weights_options_t* options, const char* name,
                                 accrt_weights_t** out_weights, accrt_weights_t** weights) {
  accrt_error_enter(operation);
  if (out_weights == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_weights is NULL");
  *out_weights = NULL;
  ACCX_TRY(accrt_check_fork_in(operation));
  if (instance == NULL || name == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "instance or path is NULL");
  accrt_weights_options_t local;
  ACCX_TRY(read_options(options, &local));
  return create(instance, &local, name, weights);
}

/* The file that a folder stands for; the folder itself stays the place where others are looked for. */
static accrt_status_t find_in_folder(accrt_weights_t* weights, const char* path) {
  static const char* const names[] = {"model.safetensors.index.json", "model.safetensors",
                                      "adapter_model.safetensors"};
  const bool follow = (weights->flags & ACCRT_WEIGHTS_FLAG_FOLLOW_LINKS) != 0;
  int fd = -1;
  accrt_status_t status = ACCRT_OK;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    status = accx_open_beneath(path, names[i], follow, &fd);
    if (status != ACCRT_ERROR_NOT_FOUND)
      break;
  }
  if (status == ACCRT_ERROR_NOT_FOUND)
    return ACCRT_FAIL_INNER(NOT_FOUND, "%s: a folder with none of %s, %s and %s", path, names[0],
                            names[1], names[2]);
  return status != ACCRT_OK ? status : accx_source_take_fd(fd, path, &weights->files[0].source);
}

static bool is_folder(const char* path) {
  struct stat facts;
  return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

accrt_status_t accrt_weights_open_path(accrt_instance_t* instance, const char* path,
                                       const accrt_weights_options_t* options,
                                       accrt_weights_t** out_weights) {
  accrt_weights_t* weights;
  ACCX_TRY(begin_open(__func__, instance, options, path, out_weights, &weights));
  if (!is_folder(path))
    return finish_open(weights, accx_source_open_path(path, &weights->files[0].source), path,
                       out_weights);
  char folder[4096];
  if (snprintf(folder, sizeof folder, "%s/", path) >= (int)sizeof folder) {
    destroy(weights, false);
    return ACCRT_FAIL_ERRNO(IO, ENAMETOOLONG, "the path has more than %zu bytes", sizeof folder);
  }
  return finish_open(weights, find_in_folder(weights, folder), folder, out_weights);
}

accrt_status_t accrt_weights_open_fd(accrt_instance_t* instance, int32_t fd,
                                     const accrt_weights_options_t* options,
                                     accrt_weights_t** out_weights) {
  accrt_weights_t* weights;
  ACCX_TRY(begin_open(__func__, instance, options, "weights", out_weights, &weights));
  return finish_open(weights, accx_source_open_fd(fd, &weights->files[0].source), NULL,
                     out_weights);
}

accrt_status_t accrt_weights_open_memory(accrt_instance_t* instance, const void* data,
                                         uint64_t size_bytes, void (*release)(void* user),
                                         void* user, const accrt_weights_options_t* options,
                                         accrt_weights_t** out_weights) {
  accrt_weights_t* weights;
  ACCX_TRY(begin_open(__func__, instance, options, "weights", out_weights, &weights));
  return finish_open(
      weights, accx_source_open_memory(data, size_bytes, release, user, &weights->files[0].source),
      NULL, out_weights);
}

accrt_status_t accrt_weights_open_callbacks(accrt_instance_t* instance,
                                            const accrt_reader_t* reader,
                                            const accrt_weights_options_t* options,
                                            accrt_weights_t** out_weights) {
  accrt_weights_t* weights;
  ACCX_TRY(begin_open(__func__, instance, options, "weights", out_weights, &weights));
  return finish_open(weights, accx_source_open_callbacks(reader, &weights->files[0].source), NULL,
                     out_weights);
}

accrt_status_t accx_weights_open_taken(accrt_instance_t* instance, int fd, const char* name,
                                       uint32_t verify, accrt_weights_t** out_weights) {
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  options.flags = ACCRT_WEIGHTS_FLAG_ONE_FILE;
  options.verify = verify;
  accrt_weights_t* weights;
  ACCX_TRY(create(instance, &options, name, &weights));
  const accrt_status_t status = finish_open(
      weights, accx_source_take_fd(fd, name, &weights->files[0].source), NULL, out_weights);
  if (status == ACCRT_OK)
    accrt_instance_release(instance); /* the caller's reference is an internal one */
  return status;
}

accrt_status_t accrt_weights_open_bundle(accrt_bundle_t* bundle, accrt_weights_t** out_weights) {
  if (out_weights == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_weights is NULL");
  *out_weights = NULL;
  ACCX_TRY(accrt_check_fork());
  if (bundle == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "bundle is NULL");
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  accrt_weights_t* weights;
  ACCX_TRY(create(accrt_bundle_instance(bundle), &options, accrt_bundle_name(bundle), &weights));
  accx_weights_file_t* file = &weights->files[0];
  file->kind = ACCRT_WEIGHTS_KIND_ACCX;
  accrt_bundle_ref(bundle);
  file->bundle = bundle;
  file->source.size_bytes = accrt_bundle_tables(bundle)->header.file_size_bytes;
  accrt_status_t status = list_bundle(weights, 0);
  if (status == ACCRT_OK)
    status = complete(weights, NULL);
  if (status != ACCRT_OK) {
    destroy(weights, true);
    return status;
  }
  (void)accrt_instance_retain(weights->instance);
  *out_weights = weights;
  return ACCRT_OK;
}

void accx_weights_ref(accrt_weights_t* weights) {
  accrt_object_retain(&weights->object);
}

void accx_weights_unref(accrt_weights_t* weights) {
  if (accrt_object_release(&weights->object))
    destroy(weights, true);
}

accrt_weights_t* accrt_weights_retain(accrt_weights_t* weights) {
  if (weights == NULL || accrt_forked())
    return weights;
  accx_weights_ref(weights);
  (void)accrt_instance_retain(weights->instance);
  return weights;
}

void accrt_weights_release(accrt_weights_t* weights) {
  if (weights == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = weights->instance;
  accx_weights_unref(weights);
  accrt_instance_release(instance); /* last: the allocator lives in it */
}

/* ---- What is in it ---- */

const char* accx_weights_name(const accrt_weights_t* weights) {
  return weights->name;
}

static const accx_weights_type_t* type_of(const accrt_weights_t* weights,
                                          const accx_weights_entry_t* entry) {
  return weights->files[entry->file].kind == ACCRT_WEIGHTS_KIND_GGUF
             ? &accx_gguf_types[entry->type]
             : &accx_safetensors_types[entry->type];
}

static const accx_constant_t* constant_of(const accrt_weights_t* weights,
                                          const accx_weights_entry_t* entry) {
  const accrt_bundle_t* bundle = weights->files[entry->file].bundle;
  return bundle != NULL ? &accrt_bundle_tables(bundle)->constants[entry->offset_bytes] : NULL;
}

static accrt_status_t check_index(const accrt_weights_t* weights, const char* what, uint32_t index,
                                  uint32_t count) {
  if (index < count)
    return ACCRT_OK;
  return ACCRT_FAIL_INNER(OUT_OF_RANGE, "%s: %s %" PRIu32 " of %" PRIu32, weights->name, what,
                          index, count);
}

accrt_status_t accx_weights_describe(const accrt_weights_t* weights, uint32_t index,
                                     accrt_weights_tensor_t* out_tensor) {
  ACCX_TRY(check_index(weights, "tensor", index, weights->entry_count));
  const accx_weights_entry_t* entry = &weights->entries[index];
  const accx_constant_t* constant = constant_of(weights, entry);
  *out_tensor = (accrt_weights_tensor_t)ACCRT_WEIGHTS_TENSOR_INIT;
  out_tensor->file = entry->file;
  out_tensor->name = entry->name;
  out_tensor->rank = entry->rank;
  out_tensor->component_count = 1;
  out_tensor->size_bytes = entry->size_bytes;
  if (constant != NULL) {
    out_tensor->dtype = constant->dtype;
    out_tensor->encoding = constant->encoding;
    out_tensor->group_elements = constant->group_elements;
    out_tensor->shape = constant->shape;
    out_tensor->component_count = constant->component_count;
    const accx_layout_t* layout =
        constant->encoding > 1 ? accx_layout_find(constant->encoding) : NULL;
    out_tensor->type_name = layout != NULL ? layout->name : accrt_dtype_name(constant->dtype);
    return ACCRT_OK;
  }
  const accx_weights_type_t* type = type_of(weights, entry);
  out_tensor->dtype = type->dtype;
  out_tensor->encoding = type->encoding;
  out_tensor->type_name = type->name;
  out_tensor->shape = accx_weights_shape(weights, entry);
  return ACCRT_OK;
}

accrt_status_t accx_weights_place(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  accrt_weights_component_t* out_component) {
  ACCX_TRY(check_index(weights, "tensor", tensor, weights->entry_count));
  const accx_weights_entry_t* entry = &weights->entries[tensor];
  const accx_constant_t* constant = constant_of(weights, entry);
  ACCX_TRY(check_index(weights, "component", component, constant ? constant->component_count : 1));
  *out_component = (accrt_weights_component_t)ACCRT_WEIGHTS_COMPONENT_INIT;
  if (constant != NULL) {
    const accrt_bundle_t* bundle = weights->files[entry->file].bundle;
    const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
    const accx_component_t* place = &tables->components[constant->component_first + component];
    out_component->role = place->role;
    out_component->dtype = place->dtype;
    out_component->offset_bytes = accrt_bundle_data_offset(bundle) + place->offset_bytes;
    out_component->size_bytes = place->size_bytes;
    return ACCRT_OK;
  }
  const accx_weights_type_t* type = type_of(weights, entry);
  out_component->dtype = type->dtype != 0 ? type->dtype : ACCRT_DTYPE_U8;
  out_component->offset_bytes = entry->offset_bytes;
  out_component->size_bytes = entry->size_bytes;
  return ACCRT_OK;
}

/* Reads a tensor of a source of callbacks into its place, once. */
static accrt_status_t make_ready(accrt_weights_t* weights, uint32_t index) {
  const accx_weights_entry_t* entry = &weights->entries[index];
  accx_weights_file_t* file = &weights->files[entry->file];
  if (!file->on_demand || atomic_load_explicit(&weights->ready[index], memory_order_acquire) != 0)
    return ACCRT_OK;
  accx_source_begin(&file->source);
  accrt_status_t status = ACCRT_OK;
  if (atomic_load_explicit(&weights->ready[index], memory_order_relaxed) == 0) {
    status =
        accx_source_read(&file->source, entry->offset_bytes,
                         (unsigned char*)file->mapping + entry->offset_bytes, entry->size_bytes);
    /* Release pairs with the acquire above: whoever sees it sees the bytes. */
    if (status == ACCRT_OK)
      atomic_store_explicit(&weights->ready[index], 1, memory_order_release);
  }
  accx_source_end(&file->source);
  return status;
}

accrt_status_t accx_weights_bytes(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  const void** out_data, uint64_t* out_size_bytes) {
  accrt_weights_component_t place;
  *out_data = NULL;
  *out_size_bytes = 0;
  ACCX_TRY(accx_weights_place(weights, tensor, component, &place));
  const accx_weights_entry_t* entry = &weights->entries[tensor];
  accx_weights_file_t* file = &weights->files[entry->file];
  if (file->bundle != NULL)
    return accrt_bundle_constant_component(file->bundle, (uint32_t)entry->offset_bytes, component,
                                           out_data, out_size_bytes);
  accrt_status_t status = accx_source_check_size(&file->source);
  if (status == ACCRT_OK)
    status = make_ready(weights, tensor);
  if (status != ACCRT_OK) {
    accrt_error_prefix("%s: tensor '%.200s'", file->name, entry->name);
    return status;
  }
  *out_data = file->bytes + place.offset_bytes;
  *out_size_bytes = place.size_bytes;
  return ACCRT_OK;
}

accrt_status_t accx_weights_copy(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                 uint64_t offset_bytes, void* target, uint64_t size_bytes) {
  accrt_weights_component_t place;
  ACCX_TRY(accx_weights_place(weights, tensor, component, &place));
  const accx_weights_entry_t* entry = &weights->entries[tensor];
  accx_weights_file_t* file = &weights->files[entry->file];
  if (!accrt_range_fits(offset_bytes, size_bytes, place.size_bytes)) {
    return ACCRT_FAIL_INNER(OUT_OF_RANGE,
                            "%s: tensor '%.200s' has %" PRIu64 " bytes; %" PRIu64 " at %" PRIu64
                            " were asked for",
                            file->name, entry->name, place.size_bytes, size_bytes, offset_bytes);
  }
  if (size_bytes == 0)
    return ACCRT_OK;
  if (file->bundle != NULL)
    return accrt_bundle_constant_read(file->bundle, (uint32_t)entry->offset_bytes, component,
                                      offset_bytes, target, size_bytes);
  if (file->on_demand)
    accx_source_begin(&file->source);
  const accrt_status_t status =
      accx_source_read(&file->source, place.offset_bytes + offset_bytes, target, size_bytes);
  if (file->on_demand)
    accx_source_end(&file->source);
  if (status != ACCRT_OK)
    accrt_error_prefix("%s: tensor '%.200s'", file->name, entry->name);
  return status;
}

/* ---- The public functions ---- */

static accrt_status_t check_weights_in(const char* operation, const accrt_weights_t* weights) {
  ACCX_TRY(accrt_check_fork_in(operation));
  return weights != NULL ? ACCRT_OK : ACCRT_FAIL(INVALID_ARGUMENT, "weights is NULL");
}
#define CHECK(weights) ACCX_TRY(check_weights_in(__func__, (weights)))

accrt_status_t accrt_weights_info(accrt_weights_t* weights, accrt_weights_info_t* out_info) {
  CHECK(weights);
  accrt_weights_info_t info = {.kind = weights->kind,
                               .name = weights->name,
                               .tensor_count = weights->entry_count,
                               .metadata_count = weights->value_count,
                               .file_count = weights->file_count,
                               .version = weights->files[0].version};
  for (uint32_t i = 0; i < weights->file_count; ++i)
    info.size_bytes += weights->files[i].source.size_bytes;
  for (uint32_t i = 0; i < weights->entry_count; ++i)
    info.data_size_bytes += weights->entries[i].size_bytes;
  return accrt_struct_write("accrt_weights_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_weights_file(accrt_weights_t* weights, uint32_t index, const char** out_name) {
  CHECK(weights);
  if (out_name == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_name is NULL");
  *out_name = NULL;
  ACCX_TRY(check_index(weights, "file", index, weights->file_count));
  *out_name = weights->files[index].name;
  return ACCRT_OK;
}

accrt_status_t accrt_weights_tensor(accrt_weights_t* weights, uint32_t index,
                                    accrt_weights_tensor_t* out_tensor) {
  CHECK(weights);
  accrt_weights_tensor_t tensor;
  ACCX_TRY(accx_weights_describe(weights, index, &tensor));
  return accrt_struct_write("accrt_weights_tensor_t", out_tensor, &tensor, sizeof tensor);
}

/* Near names, among not more than can be looked at quickly. */
#define MAX_NEAR_CANDIDATES 4096u

accrt_status_t accrt_weights_find(accrt_weights_t* weights, const char* name, uint32_t* out_index) {
  CHECK(weights);
  if (name == NULL || out_index == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", name == NULL ? "name" : "out_index");
  *out_index = 0;
  const uint32_t found = accx_weights_lookup(weights, name, strlen(name), ACCX_WEIGHTS_NONE);
  if (found != ACCX_WEIGHTS_NONE) {
    *out_index = found;
    return ACCRT_OK;
  }
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < weights->entry_count && i < MAX_NEAR_CANDIDATES; ++i)
    accrt_near_add(&near, weights->entries[i].name);
  return ACCRT_FAIL(NOT_FOUND, "%s has no tensor '%.200s'%s", weights->name, name,
                    accrt_near_text(&near));
}

accrt_status_t accrt_weights_component(accrt_weights_t* weights, uint32_t tensor,
                                       uint32_t component,
                                       accrt_weights_component_t* out_component) {
  CHECK(weights);
  accrt_weights_component_t place;
  ACCX_TRY(accx_weights_place(weights, tensor, component, &place));
  return accrt_struct_write("accrt_weights_component_t", out_component, &place, sizeof place);
}

accrt_status_t accrt_weights_data(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  const void** out_data, uint64_t* out_size_bytes) {
  CHECK(weights);
  if (out_data == NULL || out_size_bytes == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_data or out_size_bytes is NULL");
  return accx_weights_bytes(weights, tensor, component, out_data, out_size_bytes);
}

accrt_status_t accrt_weights_read(accrt_weights_t* weights, uint32_t tensor, uint32_t component,
                                  uint64_t offset_bytes, void* target, uint64_t size_bytes) {
  CHECK(weights);
  if (target == NULL && size_bytes != 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "target is NULL");
  return accx_weights_copy(weights, tensor, component, offset_bytes, target, size_bytes);
}

/* A scalar's value, as it is wanted. */
static void decode(const accx_weights_value_t* value, accrt_weights_metadata_t* out) {
  float narrow;
  if (value->type == ACCRT_METADATA_STRING || value->type == ACCRT_METADATA_ARRAY)
    return;
  const uint64_t bits = accx_weights_number(value->data, (size_t)value->size_bytes);
  const uint32_t low = (uint32_t)bits;
  switch (value->type) {
  case ACCRT_METADATA_F32:
    memcpy(&narrow, &low, sizeof narrow);
    out->real = (double)narrow;
    return;
  case ACCRT_METADATA_F64:
    memcpy(&out->real, &bits, sizeof out->real);
    return;
  case ACCRT_METADATA_I8:
  case ACCRT_METADATA_I16:
  case ACCRT_METADATA_I32: {
    const uint32_t unused = 64 - 8 * (uint32_t)value->size_bytes;
    out->integer = (int64_t)(bits << unused) >> unused;
    return;
  }
  default:
    out->integer = (int64_t)bits;
  }
}

void accx_weights_value(const accrt_weights_t* weights, uint32_t index,
                        accrt_weights_metadata_t* out_value) {
  const accx_weights_value_t* value = &weights->values[index];
  *out_value = (accrt_weights_metadata_t){.type = value->type,
                                          .key = value->key,
                                          .element_type = value->element_type,
                                          .count = value->count,
                                          .data = value->data,
                                          .size_bytes = value->size_bytes};
  if (value->type == ACCRT_METADATA_STRING)
    out_value->text = (const char*)value->data;
  decode(value, out_value);
}

accrt_status_t accrt_weights_metadata(accrt_weights_t* weights, uint32_t index,
                                      accrt_weights_metadata_t* out_metadata) {
  CHECK(weights);
  ACCX_TRY(check_index(weights, "metadata", index, weights->value_count));
  accrt_weights_metadata_t info;
  accx_weights_value(weights, index, &info);
  return accrt_struct_write("accrt_weights_metadata_t", out_metadata, &info, sizeof info);
}

accrt_status_t accrt_weights_find_metadata(accrt_weights_t* weights, const char* key,
                                           uint32_t* out_index) {
  CHECK(weights);
  if (key == NULL || out_index == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", key == NULL ? "key" : "out_index");
  *out_index = 0;
  accrt_near_t near;
  accrt_near_init(&near, key);
  for (uint32_t i = 0; i < weights->value_count; ++i) {
    if (strcmp(weights->values[i].key, key) == 0) {
      *out_index = i;
      return ACCRT_OK;
    }
    accrt_near_add(&near, weights->values[i].key);
  }
  return ACCRT_FAIL(NOT_FOUND, "%s has no metadata '%.200s'%s", weights->name, key,
                    accrt_near_text(&near));
}
