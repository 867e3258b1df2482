/* write/text/file.h - a bundle with its records in memory. Metadata is in private memory, and the
 * library verifies that same memory. Weights and code stay in the file. */
#ifndef ACCRT_WRITE_TEXT_FILE_H_
#define ACCRT_WRITE_TEXT_FILE_H_

#include "format/known.h"
#include "write/text/text.h"

typedef struct accx_file_section {
  accx_section_t record;
  unsigned char* bytes; /* NULL for CODE and DATA */
} accx_file_section_t;

typedef struct accx_bundle_file {
  int fd;
  uint64_t size_bytes;
  unsigned char* head; /* header and section table */
  uint64_t head_bytes;
  accx_header_t header;
  accx_file_section_t sections[64];
  uint32_t section_count;
  const char* strings;
  uint64_t strings_size_bytes;
  unsigned char* chunk; /* the last chunk of DATA that was read; NULL: none */
  uint64_t chunk_index;
} accx_bundle_file_t;

/* Opens and verifies. The caller closes the file, even after a failure. */
bool accx_bundle_file_open(accx_bundle_file_t* file, accrt_instance_t* instance, const char* path,
                           accx_text_error_t* error);
void accx_bundle_file_close(accx_bundle_file_t* file);

/* NULL when the file has no section of that type. */
const accx_file_section_t* accx_file_find(const accx_bundle_file_t* file, uint32_t type);
/* Number of records of a section; 0 when there is none. */
uint32_t accx_file_count(const accx_bundle_file_t* file, uint32_t type);
/* Record `index` of a section, which must exist. (For CONSTANTS use accx_file_constant.) */
const void* accx_file_record(const accx_bundle_file_t* file, uint32_t type, uint32_t index);
accx_constant_t accx_file_constant(const accx_bundle_file_t* file, uint32_t index);
const char* accx_file_string(const accx_bundle_file_t* file, uint32_t offset);
/* Reads bytes of CODE or DATA (`type`). For DATA, checks the chunks of these bytes. */
bool accx_file_read(accx_bundle_file_t* file, uint32_t type, uint64_t offset, void* target,
                    uint64_t size_bytes, accx_text_error_t* error);

#endif /* ACCRT_WRITE_TEXT_FILE_H_ */
