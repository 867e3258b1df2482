/* loader/files.c - the files that a bundle names. It opens them in the bundle's folder, and checks
 * them against the bundle's record. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/internal.h"
#include "loader/weights.h"
#include "runtime/core/crypto.h"
#include "runtime/core/sha256.h"

/* Of metadata: before the digits of a digest. */
#define SHA256_KEY "sha256/"

int accrt_bundle_skips_digests(const accrt_bundle_t* bundle) {
  return bundle->verify == ACCRT_VERIFY_NO_DATA;
}

const char* accrt_bundle_sha256_of(const accrt_bundle_tables_t* tables,
                                   const accx_digest_t* digest) {
  char key[sizeof SHA256_KEY - 1 + ACCX_DIGEST_TEXT_BYTES] = SHA256_KEY;
  (void)accx_digest_text(digest, key + sizeof SHA256_KEY - 1);
  uint32_t first = 0, end = tables->metadata_count;
  while (first < end) { /* keys ascend */
    const uint32_t middle = first + (end - first) / 2;
    const accx_metadata_t* entry = &tables->metadata[middle];
    const int order = strcmp(key, accrt_bundle_string(tables, entry->key));
    if (order == 0)
      return accrt_bundle_string(tables, entry->value);
    if (order < 0)
      end = middle;
    else
      first = middle + 1;
  }
  return NULL;
}

int accx_weights_fd(const accrt_weights_t* weights, uint32_t tensor) {
  const accx_weights_file_t* file = &weights->files[weights->entries[tensor].file];
  const accx_source_t* source = file->bundle != NULL ? &file->bundle->source : &file->source;
  return source->kind == ACCX_SOURCE_FILE ? source->fd : -1;
}

static accrt_status_t sha256_of(const accrt_bundle_t* bundle, accx_source_t* source, void* piece,
                                char* out_text) {
  accrt_sha256_t hash;
  unsigned char digest[ACCRT_SHA256_BYTES];
  accrt_status_t status = ACCRT_OK;
  accrt_sha256_init(&hash, accrt_instance_crypto_if(bundle->instance));
  for (uint64_t at = 0; at < source->size_bytes && status == ACCRT_OK; at += ACCX_CHUNK_BYTES) {
    const uint64_t left = source->size_bytes - at;
    const uint64_t size = left < ACCX_CHUNK_BYTES ? left : ACCX_CHUNK_BYTES;
    status = accx_source_read(source, at, piece, size);
    if (status == ACCRT_OK)
      accrt_sha256_update(&hash, piece, (size_t)size);
  }
  accrt_sha256_finish(&hash, digest);
  (void)accrt_hex(digest, sizeof digest, out_text);
  return status;
}

/* In hexadecimal digits: the fast digest, or SHA-256. */
static accrt_status_t digest_of(const accrt_bundle_t* bundle, accx_source_t* source, bool is_fast,
                                char* out_text) {
  void* piece;
  accx_digest_t digest;
  ACCRT_TRY(accrt_alloc(bundle->allocator, ACCX_CHUNK_BYTES, &piece));
  accrt_status_t status = is_fast
                              ? accx_source_digest(source, 0, source->size_bytes, piece, &digest)
                              : sha256_of(bundle, source, piece, out_text);
  if (is_fast && status == ACCRT_OK)
    (void)accx_digest_text(&digest, out_text);
  accrt_free(bundle->allocator, piece, ACCX_CHUNK_BYTES);
  return status;
}

/* True when only the file's digest protects a constant. Constants with digests of their own are
 * checked when they are placed. */
static bool needs_digest(const accrt_bundle_t* bundle, uint32_t file) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  if (bundle->verify != ACCRT_VERIFY_DEFAULT)
    return bundle->verify == ACCRT_VERIFY_FULL;
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    const accx_constant_t* constant = &tables->constants[i];
    if (constant->source == ACCX_CONSTANT_EXTERNAL && constant->file == file &&
        (constant->binding_flags & ACCX_BINDING_BY_NAME) != 0)
      return true;
  }
  return false;
}

/* `check_digest` gets true for a file whose digest must always be compared. */
static accrt_status_t check_file(const accrt_bundle_t* bundle, uint32_t index, const char* name,
                                 int fd, bool has_digest, bool* check_digest) {
  const accx_file_t* file = &bundle->tables.files[index];
  struct stat facts;
  if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode))
    return ACCRT_FAIL(IO, "file '%s' of %s is not a regular file", name, bundle->name);
  /* A file with a second name (a hard link) may belong to another user, outside this folder. So the
   * record must have a digest, which is compared. */
  *check_digest = facts.st_nlink > 1;
  if (facts.st_nlink > 1 && !has_digest) {
    return ACCRT_FAIL(PERMISSION_DENIED,
                      "file '%s' of %s has %ju hard links, and the bundle has no digest of it",
                      name, bundle->name, (uintmax_t)facts.st_nlink);
  }
  if (file->size_bytes != 0 && (uint64_t)facts.st_size != file->size_bytes) {
    return ACCRT_FAIL(DATA_CORRUPT, "file '%s' of %s has %jd bytes, not %" PRIu64, name,
                      bundle->name, (intmax_t)facts.st_size, file->size_bytes);
  }
  return ACCRT_OK;
}

static accrt_status_t check_content(const accrt_bundle_t* bundle, uint32_t index, const char* name,
                                    bool check_digest, accrt_weights_t* weights) {
  const accx_file_t* file = &bundle->tables.files[index];
  if (weights->kind != file->kind) {
    return ACCRT_FAIL(INVALID_FORMAT, "file '%s' of %s is of kind %" PRIu32 ", not %" PRIu32, name,
                      bundle->name, weights->kind, file->kind);
  }
  if (!check_digest)
    return ACCRT_OK;
  char fast[ACCX_DIGEST_TEXT_BYTES], found[2 * ACCRT_SHA256_BYTES + 1];
  accx_source_t source;
  const accrt_bundle_t* inner = weights->files[0].bundle;
  const char* strong = accrt_bundle_sha256_of(&bundle->tables, &file->digest);
  const char* wanted = strong != NULL ? strong : accx_digest_text(&file->digest, fast);
  ACCRT_TRY(
      accx_source_open_fd(inner != NULL ? inner->source.fd : weights->files[0].source.fd, &source));
  const accrt_status_t status = digest_of(bundle, &source, strong == NULL, found);
  accx_source_close(&source, false);
  if (status != ACCRT_OK || strcmp(found, wanted) == 0)
    return status;
  return ACCRT_FAIL(DATA_CORRUPT, "file '%s' of %s has the digest %s, not %.64s", name,
                    bundle->name, found, wanted);
}

accrt_status_t accrt_bundle_open_file(accrt_bundle_t* bundle, uint32_t file,
                                      accrt_weights_t** out_weights) {
  static const accx_digest_t zero;
  const accx_file_t* record = &bundle->tables.files[file];
  const char* name = accrt_bundle_string(&bundle->tables, record->name);
  const bool has_digest = !accx_digest_equal(&record->digest, &zero);
  *out_weights = NULL;
  if (bundle->folder_fd < 0) {
    return ACCRT_FAIL(NOT_FOUND,
                      "file '%s' must be beside the bundle, but %s was not opened by path: "
                      "pass the weights as a source",
                      name, bundle->name);
  }
  int fd;
  ACCRT_TRY(accx_open_in(bundle->folder_fd, "", name, false, &fd));
  bool check_digest = false;
  accrt_status_t status = check_file(bundle, file, name, fd, has_digest, &check_digest);
  if (status != ACCRT_OK) {
    close(fd);
    return status;
  }
  accrt_weights_t* weights;
  ACCRT_TRY(accx_weights_open_taken(bundle->instance, fd, name, bundle->verify, &weights));
  check_digest = has_digest && (check_digest || needs_digest(bundle, file));
  status = check_content(bundle, file, name, check_digest, weights);
  if (status != ACCRT_OK) {
    accx_weights_unref(weights);
    return status;
  }
  *out_weights = weights;
  return ACCRT_OK;
}
