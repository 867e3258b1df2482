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
#include "runtime/core/safe_open.h"

/* ---- Lifetime ---- */

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
  ACCRT_TRY(accrt_struct_read("accrt_bundle_options_t", options, out_options, sizeof *out_options));
  if (out_options->verify <= ACCRT_VERIFY_NO_DATA)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "accrt_bundle_options_t: verify is %" PRIu32
                    ", not ACCRT_VERIFY_DEFAULT, _FULL or _NO_DATA",
                    out_options->verify);
}

/* Creates a bundle without a source. */
static accrt_status_t bundle_create(const accrt_allocator_t* allocator,
                                    const accrt_bundle_options_t* options, const char* name,
                                    accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  ACCRT_TRY(ACCRT_NEW(allocator, &bundle));
  accrt_object_init(&bundle->object);
  bundle->folder_fd = -1;
  bundle->allocator = allocator;
  bundle->verify = options->verify;
  accrt_mutex_init(&bundle->trust_lock, ACCRT_LOCK_BUNDLE_TRUST);
  for (uint32_t i = 0; i < ACCX_CHUNK_LOCKS; ++i)
    accrt_mutex_init(&bundle->chunk_locks[i], ACCRT_LOCK_CHUNK);
  const accrt_status_t status = accx_copy_name(allocator, options->name, name, &bundle->name);
  if (status != ACCRT_OK) {
    bundle_free(bundle, false);
    return status;
  }
  *out_bundle = bundle;
  return ACCRT_OK;
}

static accrt_status_t verify_bundle(accrt_bundle_t* bundle, const accrt_budget_t* budget);

/* Opens everything except the source, within the budget. */
static accrt_status_t open_within(accrt_bundle_t* bundle, const accrt_bundle_options_t* options,
                                  const accrt_budget_t* budget) {
  accrt_meter_t meter;
  accrt_meter_begin(&meter, budget, "opening", bundle->name, ACCRT_METER_BASE_STEPS,
                    ACCRT_METER_BASE_BYTES);
  accx_source_begin(&bundle->source);
  accrt_status_t status = accx_verify(bundle);
  accx_source_end(&bundle->source);
  if (status == ACCRT_OK)
    status = accx_encryption_open(bundle, options);
  if (status == ACCRT_OK)
    status = accx_trust_open(bundle);
  if (status == ACCRT_OK)
    status = accx_data_open(bundle);
  if (status == ACCRT_OK && bundle->verify == ACCRT_VERIFY_FULL)
    status = verify_bundle(bundle, NULL);
  accrt_meter_end(&meter);
  return status;
}

/* Takes ownership of `bundle`. */
static accrt_status_t finish_open(accrt_bundle_t* bundle, const accrt_bundle_options_t* options,
                                  accrt_status_t source_status, accrt_bundle_t** out_bundle) {
  accrt_budget_t budget;
  accrt_status_t status = source_status;
  if (status == ACCRT_OK && accrt_instance_direct_reads(bundle->instance))
    accx_source_bypass_cache(&bundle->source);
  if (status == ACCRT_OK)
    status = accrt_budget_read(options->budget, &budget);
  if (status == ACCRT_OK)
    status = open_within(bundle, options, &budget);
  if (status != ACCRT_OK) {
    bundle_free(bundle, false);
    return status;
  }
  (void)accrt_instance_retain(bundle->instance);
  *out_bundle = bundle;
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_check(const accrt_allocator_t* allocator, const accrt_reader_t* reader,
                                  accrt_bundle_info_t* out_info) {
  static const accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  accrt_bundle_t* bundle;
  accrt_error_enter(ACCRT_THIS_FUNCTION);
  if (reader == NULL || reader->read == NULL || out_info == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL",
                      reader == NULL         ? "reader"
                      : reader->read == NULL ? "reader->read"
                                             : "out_info");
  if (allocator == NULL)
    allocator = &accrt_allocator_system;
  ACCRT_TRY(bundle_create(allocator, &options, "bundle", &bundle));
  accx_header_t minimum;
  bundle->out_minimum = &minimum;
  accrt_status_t status = accx_source_open_callbacks(reader, &bundle->source);
  if (status == ACCRT_OK) {
    accx_source_begin(&bundle->source);
    status = accx_verify(bundle);
    accx_source_end(&bundle->source);
  }
  if (status == ACCRT_OK) {
    accx_header_t* header = &bundle->tables.header;
    header->container = minimum.container;
    header->commands = minimum.commands;
    header->kernel_abi = minimum.kernel_abi;
    header->layouts = minimum.layouts;
    accrt_bundle_info_t info;
    accx_bundle_info(bundle, &info);
    info.name = NULL;
    status = accrt_struct_write("accrt_bundle_info_t", out_info, &info, sizeof info);
  }
  bundle_free(bundle, false);
  return status;
}

static accrt_status_t begin(accrt_instance_t* instance, const accrt_bundle_options_t* options,
                            const char* path, accrt_bundle_options_t* out_options,
                            accrt_bundle_t** bundle) {
  ACCRT_TRY(read_options(options, out_options));
  ACCRT_TRY(bundle_create(accrt_instance_allocator(instance), out_options, path, bundle));
  (*bundle)->instance = instance;
  return ACCRT_OK;
}

/* The first checks of all four functions that open. `operation` is the function's name. */
static accrt_status_t begin_open(const char* operation, accrt_instance_t* instance,
                                 const accrt_bundle_options_t* options, const char* path,
                                 accrt_bundle_t** out_bundle, accrt_bundle_options_t* out_options,
                                 accrt_bundle_t** bundle) {
  if (out_bundle != NULL)
    *out_bundle = NULL;
  ACCRT_ENTER_AS(operation, out_bundle, instance, path);
  return begin(instance, options, path, out_options, bundle);
}

/* Opens the folder of a file that was just opened. Returns -1 on failure; code that needs the
 * folder reports it. */
static int open_folder(const char* path) {
  char folder[4096];
  const size_t size_bytes = accx_folder_bytes(path);
  if (size_bytes >= sizeof folder)
    return -1;
  memcpy(folder, path, size_bytes);
  folder[size_bytes] = '\0';
  return accrt_open_at(AT_FDCWD, size_bytes > 0 ? folder : ".", O_PATH | O_DIRECTORY, 0);
}

accrt_status_t accrt_bundle_open_path(accrt_instance_t* instance, const char* path,
                                      const accrt_bundle_options_t* options,
                                      accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  accrt_bundle_options_t local;
  ACCRT_TRY(begin_open(ACCRT_THIS_FUNCTION, instance, options, path, out_bundle, &local, &bundle));
  ACCRT_TRY(finish_open(bundle, &local, accx_source_open_path(path, &bundle->source), out_bundle));
  if (bundle->tables.file_count > 0)
    bundle->folder_fd = open_folder(path);
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_open_fd(accrt_instance_t* instance, int32_t fd,
                                    const accrt_bundle_options_t* options,
                                    accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  accrt_bundle_options_t local;
  ACCRT_TRY(
      begin_open(ACCRT_THIS_FUNCTION, instance, options, "bundle", out_bundle, &local, &bundle));
  return finish_open(bundle, &local, accx_source_open_fd(fd, &bundle->source), out_bundle);
}

accrt_status_t accrt_bundle_open_memory(accrt_instance_t* instance, const void* data,
                                        uint64_t size_bytes, void (*release)(void* user),
                                        void* user, const accrt_bundle_options_t* options,
                                        accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  accrt_bundle_options_t local;
  ACCRT_TRY(
      begin_open(ACCRT_THIS_FUNCTION, instance, options, "bundle", out_bundle, &local, &bundle));
  return finish_open(bundle, &local,
                     accx_source_open_memory(data, size_bytes, release, user, &bundle->source),
                     out_bundle);
}

accrt_status_t accrt_bundle_open_callbacks(accrt_instance_t* instance, const accrt_reader_t* reader,
                                           const accrt_bundle_options_t* options,
                                           accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  accrt_bundle_options_t local;
  ACCRT_TRY(
      begin_open(ACCRT_THIS_FUNCTION, instance, options, "bundle", out_bundle, &local, &bundle));
  return finish_open(bundle, &local, accx_source_open_callbacks(reader, &bundle->source),
                     out_bundle);
}

accrt_status_t accx_bundle_open_source(accrt_instance_t* instance, const accx_source_t* source,
                                       const accrt_bundle_options_t* options,
                                       accrt_bundle_t** out_bundle) {
  accrt_bundle_t* bundle;
  accrt_bundle_options_t local;
  accrt_status_t status;
  *out_bundle = NULL;
  ACCRT_TRY(begin(instance, options, "weights", &local, &bundle));
  if (source->kind == ACCX_SOURCE_FILE)
    status = accx_source_open_fd(source->fd, &bundle->source);
  else if (source->kind == ACCX_SOURCE_MEMORY)
    status = accx_source_open_memory(source->memory, source->size_bytes, source->release,
                                     source->user, &bundle->source);
  else
    status = accx_source_open_callbacks(&source->reader, &bundle->source);
  return finish_open(bundle, &local, status, out_bundle);
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
  /* Release it last, because the allocator is in it. */
  accrt_instance_release(instance);
}

/* ---- Verifying everything ---- */

/* Checks a section of a kind that this library does not know. Open did not read it. */
static accrt_status_t verify_unknown_section(accrt_bundle_t* bundle, const accx_section_t* section,
                                             unsigned char* piece) {
  accx_digest_t found;
  ACCRT_TRY(
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

static accrt_status_t verify_all(accrt_bundle_t* bundle) {
  accrt_meter_at("sections");
  accx_source_begin(&bundle->source);
  const accrt_status_t status = verify_unknown_sections(bundle);
  accx_source_end(&bundle->source);
  ACCRT_TRY(status);
  accrt_meter_at("data");
  ACCRT_TRY(accx_data_verify_all(bundle));
  accrt_meter_at("signatures");
  return accx_trust_verify(bundle);
}

static accrt_status_t verify_bundle(accrt_bundle_t* bundle, const accrt_budget_t* budget) {
  accrt_budget_t own;
  ACCRT_TRY(accrt_budget_read(budget, &own));
  accrt_meter_t meter;
  accrt_meter_begin(&meter, &own, "verifying", bundle->name, ACCRT_METER_BASE_STEPS,
                    ACCRT_METER_BASE_BYTES);
  accrt_meter_allow(bundle->metadata_size_bytes);
  const accrt_status_t status = verify_all(bundle);
  accrt_meter_end(&meter);
  return status;
}

accrt_status_t accrt_bundle_verify(accrt_bundle_t* bundle) {
  ACCRT_ENTER(bundle);
  return verify_bundle(bundle, NULL);
}

accrt_status_t accrt_bundle_verify_within(accrt_bundle_t* bundle, const accrt_budget_t* budget) {
  ACCRT_ENTER(bundle);
  return verify_bundle(bundle, budget);
}
