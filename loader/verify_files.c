/* loader/verify_files.c - the files beside a bundle (rule 120). Whether they are there, and hold what
 * the constants say, is seen when weights are bound. Reads private memory only. */
#include "loader/internal.h"

#define MAX_FILE_NAME_BYTES 255u

/* One component of a path, and neither this folder nor the one above. */
bool accx_file_name_good(const char* name) {
  const size_t length = strlen(name);
  if (length > MAX_FILE_NAME_BYTES || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
    return false;
  for (size_t i = 0; i < length; ++i) {
    if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < 0x20 || name[i] == 0x7F)
      return false;
  }
  return true;
}

accrt_status_t accx_verify_files(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t previous = 0;
  for (uint32_t i = 0; i < tables->file_count; ++i) {
    const accx_file_t* file = &tables->files[i];
    ACCX_TRY(accx_check_ordered_name(verifier, file->name, previous, "files", i, "name"));
    previous = file->name;
    const bool known = file->kind >= ACCX_FILE_ACCX && file->kind <= ACCX_FILE_GGUF;
    if (known && file->flags == 0 && file->reserved == 0 &&
        accx_file_name_good(accx_text(verifier, file->name)))
      continue;
    return ACCX_REJECT(verifier, FILE, "files", i, NULL,
                       "'%.64s' of kind %" PRIu32 ", flags 0x%" PRIx32 ", reserved %" PRIu32,
                       accx_text(verifier, file->name), file->kind, file->flags, file->reserved);
  }
  return ACCRT_OK;
}
