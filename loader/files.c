/* loader/files.c - the files that a bundle names. It opens them in the bundle's folder, and checks
 * them against the bundle's record. */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <unistd.h>

#include "loader/internal.h"
#include "loader/weights.h"

int accrt_bundle_skips_digests(const accrt_bundle_t* bundle) {
  return bundle->verify == ACCRT_VERIFY_NO_DATA;
}

static accrt_status_t digest_of(const accrt_bundle_t* bundle, accx_source_t* source,
                                accx_digest_t* out_digest) {
  void* piece;
  ACCRT_TRY(accrt_alloc(bundle->allocator, ACCX_CHUNK_BYTES, &piece));
  const accrt_status_t status =
      accx_source_digest(source, 0, source->size_bytes, piece, out_digest);
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
    return ACCRT_FAIL_INNER(IO, "file '%s' of %s is not a regular file", name, bundle->name);
  /* A file with a second name (a hard link) may belong to another user, outside this folder. So the
   * record must have a digest, which is compared. */
  *check_digest = facts.st_nlink > 1;
  if (facts.st_nlink > 1 && !has_digest) {
    return ACCRT_FAIL_INNER(
        PERMISSION_DENIED, "file '%s' of %s has %ju hard links, and the bundle has no digest of it",
        name, bundle->name, (uintmax_t)facts.st_nlink);
  }
  if (file->size_bytes != 0 && (uint64_t)facts.st_size != file->size_bytes) {
    return ACCRT_FAIL_INNER(DATA_CORRUPT, "file '%s' of %s has %jd bytes, not %" PRIu64, name,
                            bundle->name, (intmax_t)facts.st_size, file->size_bytes);
  }
  return ACCRT_OK;
}

static accrt_status_t check_content(const accrt_bundle_t* bundle, uint32_t index, const char* name,
                                    bool check_digest, accrt_weights_t* weights) {
  const accx_file_t* file = &bundle->tables.files[index];
  if (weights->kind != file->kind) {
    return ACCRT_FAIL_INNER(INVALID_FORMAT, "file '%s' of %s is of kind %" PRIu32 ", not %" PRIu32,
                            name, bundle->name, weights->kind, file->kind);
  }
  if (!check_digest)
    return ACCRT_OK;
  accx_digest_t found;
  accx_source_t source;
  const accrt_bundle_t* inner = weights->files[0].bundle;
  ACCRT_TRY(
      accx_source_open_fd(inner != NULL ? inner->source.fd : weights->files[0].source.fd, &source));
  const accrt_status_t status = digest_of(bundle, &source, &found);
  accx_source_close(&source, false);
  if (status != ACCRT_OK || accx_digest_equal(&found, &file->digest))
    return status;
  char has[ACCX_DIGEST_TEXT_BYTES], wants[ACCX_DIGEST_TEXT_BYTES];
  return ACCRT_FAIL_INNER(DATA_CORRUPT, "file '%s' of %s has the digest %s, not %s", name,
                          bundle->name, accx_digest_text(&found, has),
                          accx_digest_text(&file->digest, wants));
}

accrt_status_t accrt_bundle_open_file(accrt_bundle_t* bundle, uint32_t file,
                                      accrt_weights_t** out_weights) {
  static const accx_digest_t zero;
  const accx_file_t* record = &bundle->tables.files[file];
  const char* name = accrt_bundle_string(&bundle->tables, record->name);
  const bool has_digest = !accx_digest_equal(&record->digest, &zero);
  *out_weights = NULL;
  if (bundle->folder_fd < 0) {
    return ACCRT_FAIL_INNER(NOT_FOUND,
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
