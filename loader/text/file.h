/* loader/text/file.h - a bundle whose records are at hand: metadata in private memory, verified by the library from that same
 * memory, so that what is read here is what was checked; weights and code stay in the file. */
#ifndef ACCRT_LOADER_TEXT_FILE_H_
#define ACCRT_LOADER_TEXT_FILE_H_

#include "loader/format.h"
#include "loader/text/text.h"

typedef struct accx_file_section {
  accx_section_t record;
  unsigned char* bytes; /* NULL: CODE and DATA */
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
  unsigned char* chunk; /* of DATA, read last; NULL: none yet */
  uint64_t chunk_index;
} accx_bundle_file_t;

/* Opens and verifies. The caller closes it, on failure too. */
bool accx_bundle_file_open(accx_bundle_file_t* file, accrt_instance_t* instance, const char* path,
                           accx_text_error_t* error);
void accx_bundle_file_close(accx_bundle_file_t* file);

/* NULL when the file has none of that type. */
const accx_file_section_t* accx_file_find(const accx_bundle_file_t* file, uint32_t type);
/* Number of records of a section; 0 when there is none. */
uint32_t accx_file_count(const accx_bundle_file_t* file, uint32_t type);
/* Record `index` of a section, which has it. (Of CONSTANTS: see accx_file_constant.) */
const void* accx_file_record(const accx_bundle_file_t* file, uint32_t type, uint32_t index);
accx_constant_t accx_file_constant(const accx_bundle_file_t* file, uint32_t index);
const char* accx_file_string(const accx_bundle_file_t* file, uint32_t offset);
/* Reads bytes of CODE or DATA (`type`), and of DATA checks the chunks that they touch. */
bool accx_file_read(accx_bundle_file_t* file, uint32_t type, uint64_t offset, void* target,
                    uint64_t size_bytes, accx_text_error_t* error);

#endif /* ACCRT_LOADER_TEXT_FILE_H_ */
