/* loader/upgrade.h - records of older minors, read as those of this one.
 *
 * A record may grow at its end with a minor version; its size in the section table says which form
 * a file has. The private copy of a section always has the newest form, so nothing behind the
 * verifier knows of older ones. (The bytes as they are in the file are kept too: signatures are of
 * those.) It may include loader/internal.h alone.
 */
#ifndef ACCRT_LOADER_UPGRADE_H_
#define ACCRT_LOADER_UPGRADE_H_

#include "loader/internal.h"

/* Majors before this one that a reader still reads. */
#define ACCX_OLDER_MAJORS 2u

/* The container minor that brought records of this size; 0 when none did. */
uint32_t accx_form_minor(const accx_section_kind_t* kind, uint32_t record_bytes);

/* Writes `count` records of the newest form to `target`, from ones of `record_bytes`. */
void accx_form_widen(const accx_section_kind_t* kind, const unsigned char* records, uint32_t count,
                     uint32_t record_bytes, unsigned char* target);

/* False where the form before `record_bytes` would hold the same: a writer takes the shortest. */
bool accx_form_needed(const accx_section_kind_t* kind, const unsigned char* records, uint32_t count,
                      uint32_t record_bytes);

/* Makes a file of an older major one of this: reads its sections into the bundle's private copy.
 * NULL when that major is not read. */
typedef accrt_status_t (*accx_upgrade_major_t)(accx_verifier_t* verifier);
accx_upgrade_major_t accx_upgrade_of_major(uint32_t major);

#endif /* ACCRT_LOADER_UPGRADE_H_ */
