/* runtime/program/external_roots.c - SHA-256 of constants outside the bundle: fast digests can be
 * forged. The bundle's metadata says which SHA-256 belongs to a digest. A file that was found to
 * match is remembered in the user's cache, by its identity.
 */
#include <string.h>
#include <sys/stat.h>

#include "loader/bundle.h"
#include "runtime/core/crypto.h"
#include "runtime/core/disk_cache.h"
#include "runtime/core/instance.h"
#include "runtime/core/safe_open.h"
#include "runtime/core/sha256.h"
#include "runtime/program/external.h"
#include "runtime/program/upload.h"

/* A constant at a time, by several threads. */
typedef struct sweep {
  const accrt_program_t* program;
  accrt_external_t* external;
  const uint8_t* bound; /* by constant */
  const char* function; /* the public one, for the workers' records */
  /* Relaxed is enough for a ticket. The join makes the record visible. */
  atomic_uint next;
  atomic_flag failed;
  accrt_error_t error; /* the first failure's */
} sweep_t;

/* NULL: none is known, or none is wanted. */
static const char* wanted_of(const sweep_t* sweep, uint32_t constant) {
  return sweep->bound[constant] && accrt_external_unknown(sweep->external, constant)
             ? accrt_bundle_sha256_of(sweep->program->tables,
                                      &sweep->program->tables->constants[constant].digest)
             : NULL;
}

static accrt_status_t add_bytes(void* user, uint64_t offset_bytes, const unsigned char* bytes,
                                size_t size_bytes) {
  (void)offset_bytes;
  accrt_sha256_update(user, bytes, size_bytes);
  return ACCRT_OK;
}

static accrt_status_t check(const sweep_t* sweep, uint32_t constant, const char* wanted) {
  const accx_constant_t* record = &sweep->program->tables->constants[constant];
  const accrt_external_part_t* part = &sweep->external->parts[record->component_first];
  accrt_sha256_t hash;
  unsigned char digest[ACCRT_SHA256_BYTES];
  char found[2 * ACCRT_SHA256_BYTES + 1];
  accrt_status_t status = ACCRT_OK;
  accrt_sha256_init(&hash, accrt_instance_crypto_if(sweep->program->instance));
  for (uint32_t i = 0; i < record->component_count && status == ACCRT_OK; ++i)
    status =
        accx_weights_visit(part[i].weights, part[i].tensor, part[i].component, add_bytes, &hash);
  accrt_sha256_finish(&hash, digest);
  if (status != ACCRT_OK || strcmp(accrt_hex(digest, sizeof digest, found), wanted) == 0)
    return status;
  return ACCRT_FAIL(DATA_CORRUPT,
                    "constant '%s': '%.200s' in %s has the SHA-256 %s, not %.64s: its fast digest "
                    "may be right, but these are other weights",
                    accrt_program_string(sweep->program, record->name),
                    part->weights->entries[part->tensor].name, accx_weights_name(part->weights),
                    found, wanted);
}

static void* run(void* user) {
  sweep_t* sweep = user;
  const uint32_t count = sweep->program->tables->constant_count;
  accrt_error_enter(sweep->function);
  for (;;) {
    const uint32_t constant = atomic_fetch_add_explicit(&sweep->next, 1, memory_order_relaxed);
    if (constant >= count)
      return NULL;
    const char* wanted = wanted_of(sweep, constant);
    if (wanted == NULL || check(sweep, constant, wanted) == ACCRT_OK)
      continue;
    if (!atomic_flag_test_and_set(&sweep->failed))
      sweep->error = *accrt_error_current();
    atomic_store_explicit(&sweep->next, count, memory_order_relaxed);
  }
}

/* Adds which bytes of which file they are, as of which change. False where that is not known: no
 * file, or one that others may change. */
static bool add_identity(const accrt_external_part_t* part, accrt_sha256_t* hash) {
  struct stat facts;
  accrt_weights_component_t place;
  const int fd = accx_weights_fd(part->weights, part->tensor);
  if (fd < 0 || fstat(fd, &facts) != 0 || !accrt_strict_facts(&facts) ||
      accx_weights_place(part->weights, part->tensor, part->component, &place) != ACCRT_OK)
    return false;
  accrt_sha256_update(hash, &facts.st_dev, sizeof facts.st_dev);
  accrt_sha256_update(hash, &facts.st_ino, sizeof facts.st_ino);
  accrt_sha256_update(hash, &facts.st_size, sizeof facts.st_size);
  accrt_sha256_update(hash, &facts.st_mtim, sizeof facts.st_mtim);
  accrt_sha256_update(hash, &facts.st_ctim, sizeof facts.st_ctim);
  accrt_sha256_update_u64(hash, place.offset_bytes);
  accrt_sha256_update_u64(hash, place.size_bytes);
  return true;
}

static uint64_t bytes_of(const sweep_t* sweep) {
  const accrt_bundle_tables_t* tables = sweep->program->tables;
  uint64_t size_bytes = 0;
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    const accx_constant_t* constant = &tables->constants[i];
    for (uint32_t k = 0; k < constant->component_count && wanted_of(sweep, i) != NULL; ++k)
      size_bytes += tables->components[constant->component_first + k].size_bytes;
  }
  return size_bytes;
}

/* The name of the fact that all of them match. False: it is not to be remembered. */
static bool make_key(const sweep_t* sweep, accrt_cache_key_t* out_key) {
  static const char what[] = "accrt matches 1";
  const accrt_bundle_tables_t* tables = sweep->program->tables;
  accrt_sha256_t hash;
  bool known = true;
  accrt_sha256_init(&hash, accrt_instance_crypto_if(sweep->program->instance));
  accrt_sha256_update(&hash, what, sizeof what);
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    const char* wanted = wanted_of(sweep, i);
    if (wanted == NULL)
      continue;
    const accx_constant_t* constant = &tables->constants[i];
    accrt_sha256_update_u32(&hash, constant->component_count);
    accrt_sha256_update(&hash, wanted, strlen(wanted) + 1);
    for (uint32_t k = 0; k < constant->component_count && known; ++k)
      known = add_identity(&sweep->external->parts[constant->component_first + k], &hash);
  }
  accrt_sha256_finish(&hash, out_key->bytes);
  return known;
}

accrt_status_t accrt_external_check_roots(const accrt_program_t* program,
                                          accrt_external_t* external, const uint8_t* bound) {
  accrt_cache_key_t key;
  void* entry;
  size_t entry_bytes;
  sweep_t sweep = {.program = program,
                   .external = external,
                   .bound = bound,
                   .function = accrt_error_function,
                   .failed = ATOMIC_FLAG_INIT};
  const char* folder = accrt_instance_option(program->instance, "prepare.cache");
  const uint64_t size_bytes = bytes_of(&sweep);
  if (size_bytes == 0)
    return ACCRT_OK;
  if (folder == NULL || folder[0] == '\0' || !make_key(&sweep, &key))
    folder = NULL;
  if (folder != NULL &&
      accrt_disk_cache_get(program->allocator, folder, &key, &entry, &entry_bytes)) {
    accrt_free(program->allocator, entry, entry_bytes);
    return ACCRT_OK;
  }
  atomic_init(&sweep.next, 0);
  accrt_upload_on_threads(program, size_bytes, run, &sweep);
  if (sweep.error.status != ACCRT_OK)
    return accrt_error_restore(&sweep.error);
  if (folder != NULL)
    (void)accrt_disk_cache_put(folder, &key, "", 1,
                               accrt_instance_prepare_cache_bytes(program->instance));
  return ACCRT_OK;
}
