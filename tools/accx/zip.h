/* tools/accx/zip.h - reads ZIP archives, as far as .npz files need it: stored and deflated entries,
 * ZIP64. */
#ifndef ACCX_ZIP_H_
#define ACCX_ZIP_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct accx_zip_entry {
  const char* name; /* ends with NUL; anything behind a NUL in the archive's name is cut off */
  uint16_t method;  /* 0: stored, 8: deflated; others are refused */
  bool encrypted;
  uint32_t crc;
  uint64_t size_bytes, packed_bytes;
  uint64_t header_offset; /* offset of the local header */
} accx_zip_entry_t;

typedef struct accx_zip {
  FILE* file;
  uint64_t file_bytes;
  char* names;
  accx_zip_entry_t* entries;
  size_t count;
} accx_zip_t;

/* Reads the directory of an archive. Returns NULL, or the reason for a failure; then nothing has to
 * be freed. In any case the archive takes ownership of the file. */
const char* accx_zip_open(FILE* file, accx_zip_t* out_zip);
void accx_zip_close(accx_zip_t* zip);

/* A reader of one entry, from its start to its end. An archive supports one at a time. */
typedef struct accx_zip_stream accx_zip_stream_t;
/* Returns NULL, or the reason for a failure. */
const char* accx_zip_stream_open(const accx_zip_t* zip, const accx_zip_entry_t* entry,
                                 accx_zip_stream_t** out_stream);
/* Reads exactly size_bytes. False when the entry is damaged or too short. */
bool accx_zip_stream_read(accx_zip_stream_t* stream, void* target, size_t size_bytes);
/* True when all bytes were read and the checksum matches the directory. */
bool accx_zip_stream_whole(accx_zip_stream_t* stream);
void accx_zip_stream_close(accx_zip_stream_t* stream);

#endif /* ACCX_ZIP_H_ */
