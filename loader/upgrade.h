/* loader/upgrade.h - converts records of older minor versions to the newest form.
 *
 * A minor version may make a record longer at its end. The size in the section table says which
 * form a file has. The private copy of a section always has the newest form, so code after the
 * verifier does not know older ones. (The loader also keeps the bytes of the file, because
 * signatures cover those.) It may include only loader/internal.h.
 */
#ifndef ACCRT_LOADER_UPGRADE_H_
#define ACCRT_LOADER_UPGRADE_H_

#include "loader/internal.h"

/* Number of earlier majors that a reader supports. */
#define ACCX_OLDER_MAJORS 2u

/* The container minor that introduced records of this size; 0 when none did. */
uint32_t accx_form_minor(const accx_section_kind_t* kind, uint32_t record_bytes);

/* Writes `count` records of the newest form to `target`, from records of `record_bytes`. */
void accx_form_widen(const accx_section_kind_t* kind, const unsigned char* records, uint32_t count,
                     uint32_t record_bytes, unsigned char* target);

/* False when the form before `record_bytes` can hold the same: a writer uses the shortest. */
bool accx_form_needed(const accx_section_kind_t* kind, const unsigned char* records, uint32_t count,
                      uint32_t record_bytes);

/* Converts a file of an older major version: reads its sections into the bundle's private copy.
 * NULL for a major that is not supported. */
typedef accrt_status_t (*accx_upgrade_major_t)(accx_verifier_t* verifier);
accx_upgrade_major_t accx_upgrade_of_major(uint32_t major);

#endif /* ACCRT_LOADER_UPGRADE_H_ */
