/* loader/weights.c - sources of weights: their files, opening and closing. safetensors.c and gguf.c
 * read the headers of foreign files, weights_set.c sets of files, weights_read.c the bytes of an
 * open source, weights_tables.c its records.
 */
#define _GNU_SOURCE
#include "loader/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "loader/bundle.h"
#include "runtime/core/fork.h"
#include "runtime/core/instance.h"
#include "runtime/core/struct.h"
#include "runtime/core/trust.h"
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

static void close_files(accrt_weights_t* weights, bool notify) {
  for (uint32_t i = 0; i < weights->file_count; ++i)
    close_file(weights, &weights->files[i], notify);
  weights->file_count = 0;
  weights->entry_count = 0;
  weights->size_count = 0;
  weights->value_count = 0;
}

void accx_weights_forget_files(accrt_weights_t* weights) {
  close_files(weights, true);
}

static void destroy(accrt_weights_t* weights, bool notify) {
  const accrt_allocator_t* allocator = weights->allocator;
  accrt_free_array(allocator, weights->ready, weights->entry_count, sizeof *weights->ready);
  close_files(weights, notify);
  accrt_free_array(allocator, weights->files, weights->file_capacity, sizeof *weights->files);
  accrt_free_array(allocator, weights->entries, weights->entry_capacity, sizeof *weights->entries);
  accrt_free_array(allocator, weights->sizes, weights->size_capacity, sizeof *weights->sizes);
  accrt_free_array(allocator, weights->values, weights->value_capacity, sizeof *weights->values);
  accrt_free_array(allocator, weights->table, weights->table_capacity, sizeof *weights->table);
  accrt_free(allocator, weights->index, weights->index_bytes);
  accrt_free_string(allocator, weights->name);
  accrt_free(allocator, weights, sizeof *weights);
}

/* Provides the bytes of a file: mapped, the caller's, or memory that is filled tensor by tensor. */
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

/* The kind of a file by its first bytes; 0: an index, or unknown. */
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
  ACCRT_TRY(accx_bundle_open_source(weights->instance, source, &options, &file->bundle));
  /* Make the reference internal, because objects that end with the instance may retain the bundle.
   * The bundle owns the source now. */
  accrt_bundle_ref(file->bundle);
  accrt_bundle_release(file->bundle);
  const uint64_t size_bytes = source->size_bytes;
  accx_source_close(source, false);
  source->size_bytes = size_bytes;
  return ACCRT_OK;
}

/* The constants that a bundle stores, in its order. */
static accrt_status_t list_constants(accrt_weights_t* weights, uint32_t index) {
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(weights->files[index].bundle);
  ACCRT_TRY(ACCRT_GROW(weights->allocator, (size_t)weights->entry_count + tables->constant_count,
                       &weights->entries, &weights->entry_capacity));
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    const accx_constant_t* constant = &tables->constants[i];
    ACCRT_TRY(accrt_charge_record(i));
    if (constant->source != ACCX_CONSTANT_INLINE)
      continue;
    accx_weights_entry_t* entry;
    ACCRT_TRY(accx_weights_add_entry(weights, &entry));
    memset(entry, 0, sizeof *entry);
    entry->name = accrt_bundle_string(tables, constant->name);
    entry->name_bytes = (uint32_t)strlen(entry->name);
    entry->offset_bytes = i;
    entry->file = index;
    entry->rank = (uint8_t)constant->rank;
    for (uint32_t k = 0; k < constant->component_count; ++k)
      entry->size_bytes += tables->components[constant->component_first + k].size_bytes;
  }
  return ACCRT_OK;
}

/* What it says of itself; a set has what its first file says. */
static accrt_status_t list_metadata(accrt_weights_t* weights, uint32_t index) {
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(weights->files[index].bundle);
  for (uint32_t i = 0; index == 0 && i < tables->metadata_count; ++i) {
    const char* text = accrt_bundle_string(tables, tables->metadata[i].value);
    accx_weights_value_t* value;
    ACCRT_TRY(accx_weights_add_value(weights, &value));
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
    return ACCRT_FAIL(UNTRUSTED,
                      "%s: trust.weights is 'signed', and files of this format have no "
                      "signatures: `accx pack` and `accx sign --scope weights` make one "
                      "that has",
                      record->name);
  if (accrt_instance_trust_store(weights->instance)->encrypted_weights != 0)
    return ACCRT_FAIL(UNTRUSTED,
                      "%s: trust.encryption asks for encrypted weights, and files of this "
                      "format have none: `accx pack` and `accx encrypt` make one that has",
                      record->name);
  if (record->source.size_bytes > INT64_MAX || record->source.size_bytes > SIZE_MAX)
    return ACCRT_FAIL(UNSUPPORTED, "%s: a file of %" PRIu64 " bytes", record->name,
                      record->source.size_bytes);
  ACCRT_TRY(record->kind == ACCRT_WEIGHTS_KIND_GGUF ? accx_gguf_load(weights, file)
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
      status = list_constants(weights, index);
    if (status == ACCRT_OK)
      status = list_metadata(weights, index);
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

/* One GGUF file is a set of one, or of none once its parts were merged: it has all tensors. */
static accrt_status_t check_alone(const accrt_weights_t* weights) {
  const accx_weights_file_t* file = &weights->files[0];
  if (file->split_number != 0)
    return ACCX_REFUSE(file->name, gguf_SPLIT, "it says it is part %" PRIu32 " of %" PRIu32,
                       file->split_number, file->split_count);
  if (file->split_tensors <= weights->entry_count)
    return ACCRT_OK;
  return ACCX_REFUSE(file->name, gguf_SPLIT_TENSORS,
                     "it has %" PRIu32 " tensors; it says there are %" PRIu64, weights->entry_count,
                     file->split_tensors);
}

/* Opens the further files that the first one needs. */
static accrt_status_t complete(accrt_weights_t* weights, const char* path) {
  const accx_weights_file_t* first = &weights->files[0];
  const bool one_file = (weights->flags & ACCRT_WEIGHTS_FLAG_ONE_FILE) != 0;
  if (first->kind == 0)
    ACCRT_TRY(accx_weights_load_index(weights, one_file ? NULL : path));
  else if (first->split_count > 1 && !one_file)
    ACCRT_TRY(accx_weights_load_parts(weights, path));
  else if (!one_file)
    ACCRT_TRY(check_alone(weights));
  weights->kind = weights->files[0].kind;
  uint32_t duplicate;
  ACCRT_TRY(accx_weights_make_table(weights, false, &duplicate));
  if (duplicate != ACCX_WEIGHTS_NONE)
    return refuse_duplicate(weights, duplicate);
  if (!weights->files[0].on_demand)
    return ACCRT_OK;
  ACCRT_TRY(ACCRT_NEW_ARRAY(weights->allocator, weights->entry_count, &weights->ready));
  return ACCRT_OK;
}

static const accrt_budget_t no_budget = ACCRT_BUDGET_INIT;

static accrt_status_t read_options(const accrt_weights_options_t* options,
                                   accrt_weights_options_t* out_options) {
  ACCRT_TRY(
      accrt_struct_read("accrt_weights_options_t", options, out_options, sizeof *out_options));
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
                             const accrt_budget_t* budget, const char* name,
                             accrt_weights_t** out_weights) {
  const accrt_allocator_t* allocator = accrt_instance_allocator(instance);
  accrt_weights_t* weights;
  ACCRT_TRY(ACCRT_NEW(allocator, &weights));
  accrt_object_init(&weights->object);
  weights->allocator = allocator;
  weights->instance = instance;
  weights->flags = options->flags;
  weights->verify = options->verify;
  weights->budget = *budget;
  accx_weights_file_t* file;
  accrt_status_t status = accx_copy_name(allocator, options->name, name, &weights->name);
  if (status == ACCRT_OK)
    status = accx_weights_add_file(weights, weights->name, &file);
  if (status != ACCRT_OK) {
    destroy(weights, false);
    return status;
  }
  *out_weights = weights;
  return ACCRT_OK;
}

/* Takes ownership of `weights`. Its first file has a source unless `source_status` is a failure. */
static accrt_status_t finish_open(accrt_weights_t* weights, accrt_status_t source_status,
                                  const char* path, accrt_weights_t** out_weights) {
  accrt_meter_t meter;
  accrt_status_t status = source_status;
  if (status == ACCRT_OK && accrt_instance_direct_reads(weights->instance))
    accx_source_bypass_cache(&weights->files[0].source);
  accrt_meter_begin(&meter, &weights->budget, "opening", weights->name, ACCRT_METER_BASE_STEPS,
                    ACCRT_METER_BASE_BYTES);
  if (status == ACCRT_OK)
    status = accx_weights_load_file(weights, 0);
  if (status == ACCRT_OK)
    status = complete(weights, path);
  accrt_meter_end(&meter);
  memset(&weights->budget, 0, sizeof weights->budget);
  if (status != ACCRT_OK) {
    destroy(weights, false);
    return status;
  }
  (void)accrt_instance_retain(weights->instance);
  *out_weights = weights;
  return ACCRT_OK;
}

static accrt_status_t begin_open(const char* operation, accrt_instance_t* instance,
                                 const accrt_weights_options_t* options, const char* path,
                                 accrt_weights_t** out_weights, accrt_weights_t** weights) {
  if (out_weights != NULL)
    *out_weights = NULL;
  ACCRT_ENTER_AS(operation, out_weights, instance, path);
  accrt_weights_options_t local;
  accrt_budget_t budget;
  ACCRT_TRY(read_options(options, &local));
  ACCRT_TRY(accrt_budget_read(local.budget, &budget));
  return create(instance, &local, &budget, path, weights);
}

/* Finds the first file to open in a folder. The others are searched in the same folder. */
static accrt_status_t find_in_folder(accrt_weights_t* weights, const char* path) {
  static const char names[][29] = {"model.safetensors.index.json", "model.safetensors",
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
    return ACCRT_FAIL(NOT_FOUND, "%s: a folder with none of %s, %s and %s", path, names[0],
                      names[1], names[2]);
  return status != ACCRT_OK ? status : accx_source_take_fd(fd, path, &weights->files[0].source);
}

static bool is_folder(const char* path) {
  struct stat facts;
  return fstatat(AT_FDCWD, path, &facts, 0) == 0 && S_ISDIR(facts.st_mode);
}

accrt_status_t accrt_weights_open_path(accrt_instance_t* instance, const char* path,
                                       const accrt_weights_options_t* options,
                                       accrt_weights_t** out_weights) {
  accrt_weights_t* weights;
  ACCRT_TRY(begin_open(ACCRT_THIS_FUNCTION, instance, options, path, out_weights, &weights));
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
  ACCRT_TRY(begin_open(ACCRT_THIS_FUNCTION, instance, options, "weights", out_weights, &weights));
  return finish_open(weights, accx_source_open_fd(fd, &weights->files[0].source), NULL,
                     out_weights);
}

accrt_status_t accrt_weights_open_memory(accrt_instance_t* instance, const void* data,
                                         uint64_t size_bytes, void (*release)(void* user),
                                         void* user, const accrt_weights_options_t* options,
                                         accrt_weights_t** out_weights) {
  accrt_weights_t* weights;
  ACCRT_TRY(begin_open(ACCRT_THIS_FUNCTION, instance, options, "weights", out_weights, &weights));
  return finish_open(
      weights, accx_source_open_memory(data, size_bytes, release, user, &weights->files[0].source),
      NULL, out_weights);
}

accrt_status_t accrt_weights_open_callbacks(accrt_instance_t* instance,
                                            const accrt_reader_t* reader,
                                            const accrt_weights_options_t* options,
                                            accrt_weights_t** out_weights) {
  accrt_weights_t* weights;
  ACCRT_TRY(begin_open(ACCRT_THIS_FUNCTION, instance, options, "weights", out_weights, &weights));
  return finish_open(weights, accx_source_open_callbacks(reader, &weights->files[0].source), NULL,
                     out_weights);
}

accrt_status_t accx_weights_open_taken(accrt_instance_t* instance, int fd, const char* name,
                                       uint32_t verify, accrt_weights_t** out_weights) {
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  options.flags = ACCRT_WEIGHTS_FLAG_ONE_FILE;
  options.verify = verify;
  accrt_weights_t* weights;
  ACCRT_TRY(create(instance, &options, &no_budget, name, &weights));
  const accrt_status_t status = finish_open(
      weights, accx_source_take_fd(fd, name, &weights->files[0].source), NULL, out_weights);
  if (status == ACCRT_OK)
    accrt_instance_release(instance); /* makes the caller's reference an internal one */
  return status;
}

accrt_status_t accx_weights_of_bundle(accrt_bundle_t* bundle, accrt_weights_t** out_weights) {
  accrt_weights_options_t options = ACCRT_WEIGHTS_OPTIONS_INIT;
  accrt_weights_t* weights;
  ACCRT_TRY(create(accrt_bundle_instance(bundle), &options, &no_budget, accrt_bundle_name(bundle),
                   &weights));
  accx_weights_file_t* file = &weights->files[0];
  file->kind = ACCRT_WEIGHTS_KIND_ACCX;
  accrt_bundle_ref(bundle);
  file->bundle = bundle;
  file->source.size_bytes = accrt_bundle_tables(bundle)->header.file_size_bytes;
  const accrt_status_t status = list_constants(weights, 0);
  if (status == ACCRT_OK)
    *out_weights = weights;
  else
    destroy(weights, true);
  return status;
}

accrt_status_t accrt_weights_open_bundle(accrt_bundle_t* bundle, accrt_weights_t** out_weights) {
  if (out_weights != NULL)
    *out_weights = NULL;
  ACCRT_ENTER(out_weights, bundle);
  accrt_weights_t* weights;
  ACCRT_TRY(accx_weights_of_bundle(bundle, &weights));
  accrt_status_t status = list_metadata(weights, 0);
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
  accrt_instance_release(instance); /* last, because the allocator is in it */
}
