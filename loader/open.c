/* loader/open.c - opening, sharing and closing bundles. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "loader/encryption.h"
#include "loader/internal.h"
#include "loader/trust.h"

#include "loader/weights.h"
#include "runtime/core/fork.h"
#include "runtime/core/struct.h"
#include "runtime/core/instance.h"

/* ---- Life ---- */

static void bundle_free(accrt_bundle_t* bundle, bool notify) {
  const accrt_allocator_t* allocator = bundle->allocator;
  const accrt_bundle_tables_t* tables = &bundle->tables;
  if (bundle->folder_fd >= 0)
    close(bundle->folder_fd);
  accx_data_close(bundle);
  accx_encryption_close(bundle);
  accx_trust_close(bundle);
  accx_source_close(&bundle->source, notify);
  accrt_free_array(allocator, bundle->commands, tables->command_count, sizeof(accx_command_t*));
  accrt_free_array(allocator, bundle->block_first, tables->block_count, sizeof(uint32_t));
  accrt_free_array(allocator, bundle->function_command_count, tables->function_count,
                   sizeof(uint32_t));
  accrt_free_array(allocator, bundle->function_first, tables->function_count, sizeof(uint32_t));
  accrt_free_array(allocator, bundle->function_next, tables->function_count, sizeof(uint32_t));
  accrt_free_array(allocator, bundle->named_functions, tables->function_count, sizeof(uint32_t));
  accrt_free_array(allocator, bundle->image_digests, tables->image_count, sizeof(accx_digest_t));
  accrt_free_array(allocator, bundle->section_table, tables->section_count, sizeof(accx_section_t));
  accrt_free_array(allocator, bundle->section_names, tables->section_count,
                   sizeof *bundle->section_names);
  accrt_free(allocator, bundle->metadata, bundle->metadata_size_bytes);
  accrt_free_string(allocator, bundle->name);
  accrt_free(allocator, bundle, sizeof *bundle);
}

static accrt_status_t read_options(const accrt_bundle_options_t* options,
                                   accrt_bundle_options_t* out_options) {
  ACCX_TRY(accrt_struct_read("accrt_bundle_options_t", options, out_options, sizeof *out_options));
  if (out_options->verify <= ACCRT_VERIFY_NO_DATA)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "accrt_bundle_options_t: verify is %" PRIu32
                    ", not ACCRT_VERIFY_DEFAULT, _FULL or _NO_DATA",
                    out_options->verify);
}

/* A bundle without a source. */
static accrt_status_t bundle_create(const accrt_allocator_t* allocator,
                                    const accrt_bundle_options_t* options, const char* name,
                                    accrt_bundle_t** out_bundle) {
  void* memory;
  ACCX_TRY(accrt_alloc(allocator, sizeof(accrt_bundle_t), &memory));
  accrt_bundle_t* bundle = memory;
  accrt_object_init(&bundle->object);
  bundle->folder_fd = -1;
  bundle->allocator = allocator;
  bundle->verify = options->verify;
  accrt_mutex_init(&bundle->trust_lock);
  for (uint32_t i = 0; i < ACCX_CHUNK_LOCKS; ++i)
    accrt_mutex_init(&bundle->chunk_locks[i]);
  const accrt_status_t status =
      accrt_copy_string(allocator, options->name != NULL ? options->name : name, &bundle->name);
  if (status != ACCRT_OK) {
    bundle_free(bundle, false);
    return status;
  }
  *out_bundle = bundle;
  return ACCRT_OK;
}

/* Takes `bundle`. */
static accrt_status_t finish_open(accrt_bundle_t* bundle, const accrt_bundle_options_t* options,
                                  accrt_status_t source_status, accrt_bundle_t** out_bundle) {
  accrt_status_t status = source_status;
  if (status != ACCRT_OK)
    goto out;
  if (accrt_instance_direct_reads(bundle->instance))
    accx_source_bypass_cache(&bundle->source);
  accx_source_begin(&bundle->source);
  status = accx_verify(bundle);
  accx_source_end(&bundle->source);
  if (status == ACCRT_OK)
    status = accx_encryption_open(bundle, options);
  if (status == ACCRT_OK)
    status = accx_trust_open(bundle);
  if (status == ACCRT_OK)
    status = accx_data_open(bundle);
  if (status == ACCRT_OK && bundle->verify == ACCRT_VERIFY_FULL)
    status = accrt_bundle_verify(bundle);
out:
  if (status != ACCRT_OK) {
    bundle_free(bundle, false);
    return status;
  }
  (void)accrt_instance_retain(bundle->instance);
  *out_bundle = bundle;
  return ACCRT_OK;
}

accrt_status_t accx_check_bytes(const accrt_allocator_t* allocator, const accrt_reader_t* reader,
                                accx_header_t* out_minimum) {
  static const accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  accrt_bundle_t* bundle;
  ACCX_TRY(bundle_create(allocator, &options, "bundle", &bundle));
  bundle->out_minimum = out_minimum;
  accrt_status_t status = accx_source_open_callbacks(reader, &bundle->source);
  if (status == ACCRT_OK) {
    accx_source_begin(&bundle->source);
    status = accx_verify(bundle);
    accx_source_end(&bundle->source);
  }
  bundle_free(bundle, false);
  return status;
}

/* What all four functions begin with. `operation` is the one that was called. */
static accrt_status_t begin_open(const char* operation, accrt_instance_t* instance,
                                 const accrt_bundle_options_t* options, const char* name,
                                 accrt_bundle_t** out_bundle, accrt_bundle_options_t* out_options,
                                 accrt_bundle_t** bundle) {
  accrt_error_enter(operation);
  if (out_bundle == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_bundle is NULL");
  *out_bundle = NULL;
  ACCX_TRY(accrt_check_fork_in(operation));
  if (instance == NULL || name == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "instance or path is NULL");
  ACCX_TRY(read_options(options, out_options));
  ACCX_TRY(bundle_create(accrt_instance_allocator(instance), out_options, name, bundle));
  (*bundle)->instance = instance;
  return ACCRT_OK;
}

/* Of a file that was opened just now. -1 when it cannot be opened: who needs it says so. */
static int open_folder(const char* path) {
  char folder[4096];
  const size_t size_bytes = accx_folder_bytes(path);
  if (size_bytes >= sizeof folder)
    return -1;
  memcpy(folder, path, size_bytes);
  folder[size_bytes] = '\0';
  return open(size_bytes > 0 ? folder : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

accrt_status_t accrt_bundle_open_path(accrt_instance_t* instance, const char* path,
                                      const accrt_bundle_options_t* options,
                                      accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  accrt_bundle_options_t local;
  ACCX_TRY(begin_open(__func__, instance, options, path, out_bundle, &local, &bundle));
  ACCX_TRY(finish_open(bundle, &local, accx_source_open_path(path, &bundle->source), out_bundle));
  if (bundle->tables.file_count > 0)
    bundle->folder_fd = open_folder(path);
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_open_fd(accrt_instance_t* instance, int32_t fd,
                                    const accrt_bundle_options_t* options,
                                    accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  accrt_bundle_options_t local;
  ACCX_TRY(begin_open(__func__, instance, options, "bundle", out_bundle, &local, &bundle));
  return finish_open(bundle, &local, accx_source_open_fd(fd, &bundle->source), out_bundle);
}

accrt_status_t accrt_bundle_open_memory(accrt_instance_t* instance, const void* data,
                                        uint64_t size_bytes, void (*release)(void* user),
                                        void* user, const accrt_bundle_options_t* options,
                                        accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  accrt_bundle_options_t local;
  ACCX_TRY(begin_open(__func__, instance, options, "bundle", out_bundle, &local, &bundle));
  return finish_open(bundle, &local,
                     accx_source_open_memory(data, size_bytes, release, user, &bundle->source),
                     out_bundle);
}

accrt_status_t accrt_bundle_open_callbacks(accrt_instance_t* instance, const accrt_reader_t* reader,
                                           const accrt_bundle_options_t* options,
                                           accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  accrt_bundle_options_t local;
  ACCX_TRY(begin_open(__func__, instance, options, "bundle", out_bundle, &local, &bundle));
  return finish_open(bundle, &local, accx_source_open_callbacks(reader, &bundle->source),
                     out_bundle);
}

void accrt_bundle_ref(accrt_bundle_t* bundle) {
  accrt_object_retain(&bundle->object);
}

void accrt_bundle_unref(accrt_bundle_t* bundle) {
  if (accrt_object_release(&bundle->object))
    bundle_free(bundle, true);
}

accrt_bundle_t* accrt_bundle_retain(accrt_bundle_t* bundle) {
  if (bundle == NULL || accrt_forked())
    return bundle;
  accrt_bundle_ref(bundle);
  (void)accrt_instance_retain(bundle->instance);
  return bundle;
}

void accrt_bundle_release(accrt_bundle_t* bundle) {
  if (bundle == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = bundle->instance;
  accrt_bundle_unref(bundle);
  /* Last: the allocator lives in it. */
  accrt_instance_release(instance);
}

/* ---- Verification of everything ---- */

/* Sections that open did not read: those this library does not know. */
static accrt_status_t verify_unknown_section(accrt_bundle_t* bundle, const accx_section_t* section,
                                             unsigned char* piece) {
  accx_digest_t found;
  ACCX_TRY(
      accx_source_digest(&bundle->source, section->offset, section->size_bytes, piece, &found));
  if (accx_digest_equal(&found, &section->digest))
    return ACCRT_OK;
  return ACCRT_FAIL(DATA_CORRUPT, "%s: %.16s: the digest does not match (rule %d)", bundle->name,
                    section->name, ACCX_RULE_SECTION_DIGEST);
}

static accrt_status_t verify_unknown_sections(accrt_bundle_t* bundle) {
  void* piece = NULL;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < bundle->tables.section_count && status == ACCRT_OK; ++i) {
    if (accx_section_kind(bundle->tables.sections[i].type) != NULL)
      continue;
    if (piece == NULL)
      status = accrt_alloc(bundle->allocator, ACCX_CHUNK_BYTES, &piece);
    if (status == ACCRT_OK)
      status = verify_unknown_section(bundle, &bundle->tables.sections[i], piece);
  }
  accrt_free(bundle->allocator, piece, ACCX_CHUNK_BYTES);
  return status;
}

accrt_status_t accrt_bundle_verify(accrt_bundle_t* bundle) {
  ACCX_TRY(accrt_check_fork());
  if (bundle == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "bundle is NULL");
  accx_source_begin(&bundle->source);
  const accrt_status_t status = verify_unknown_sections(bundle);
  accx_source_end(&bundle->source);
  ACCX_TRY(status);
  ACCX_TRY(accx_data_verify_all(bundle));
  return accx_trust_verify(bundle);
}
