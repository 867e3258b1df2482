/* loader/verify_files.c - records of files beside a bundle (rule 120). Whether the files exist and
 * fit is checked when weights are bound. Reads private memory only. */
#include "loader/internal.h"

accrt_status_t accx_verify_files(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t previous = 0;
  for (uint32_t i = 0; i < tables->file_count; ++i) {
    const accx_file_t* file = &tables->files[i];
    ACCRT_TRY(accx_check_ordered_name(verifier, file->name, previous, "files", i, "name"));
    previous = file->name;
    const bool known = file->kind >= ACCX_FILE_ACCX && file->kind < ACCX_FILE_END;
    if (known && file->flags == 0 && file->reserved == 0 &&
        accx_file_name_good(accx_verifier_text(verifier, file->name)))
      continue;
    return ACCX_REJECT(verifier, FILE, "files", i, NULL,
                       "'%.64s' of kind %" PRIu32 ", flags 0x%" PRIx32 ", reserved %" PRIu32,
                       accx_verifier_text(verifier, file->name), file->kind, file->flags,
                       file->reserved);
  }
  return ACCRT_OK;
}
