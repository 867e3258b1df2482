/* write/text/text.h - the text form of bundles: YAML that a person can write, from which the same
 * bytes are built. docs/text-form.md specifies it.
 *
 * It is not a part of the library: it needs libyaml, and only the tool links it. It uses the
 * library's public functions, and of loader/ only the records of the format (format.h).
 */
#ifndef ACCRT_WRITE_TEXT_TEXT_H_
#define ACCRT_WRITE_TEXT_TEXT_H_

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "accrt/accrt.h"
#include "accrt/write.h"

/* A failure, in one line. */
typedef struct accx_text_error {
  accrt_status_t status;
  uint32_t line; /* line in the text, from 1; 0: none */
  uint32_t column;
  char message[600];
} accx_text_error_t;

/* The arguments of accx_text_write. */
typedef struct accx_text_dump {
  accrt_instance_t* instance;
  const char* path; /* the bundle */
  FILE* out;        /* receives the text */
  /* The folder for bytes that are too large for the text; created when needed. NULL: show digests
   * of bytes instead. */
  const char* folder;
  const char* folder_name; /* its name in the text, relative to the text's own folder */
  uint64_t inline_bytes;   /* up to this many bytes are in the text as hexadecimal digits */
} accx_text_dump_t;
/* False with *error set. What was written before the failure stays. */
bool accx_text_write(const accx_text_dump_t* dump, accx_text_error_t* error);

/* Adds all parts of a text to a writer, which then checks the whole, so that errors have a place in
 * the text. Files that the text names must be within `folder`. They stay open in *out_files, which
 * the caller frees after the last write. */
typedef struct accx_text_files accx_text_files_t;
bool accx_text_read(const char* text, size_t size_bytes, const char* folder,
                    accrt_bundle_writer_t* writer, accx_text_files_t** out_files,
                    accx_text_error_t* error);
void accx_text_files_free(accx_text_files_t* files);

/* Writes the differences of two bundles to `out`, one per line; *out_count gets the number of
 * lines. */
bool accx_text_compare(accrt_instance_t* instance, const char* path_a, const char* path_b,
                       FILE* out, uint64_t* out_count, accx_text_error_t* error);

/* Sets *error and returns false. */
bool accx_text_fail(accx_text_error_t* error, accrt_status_t status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with this thread's error record of the library's last failed call. `what` may be
 * NULL. */
bool accx_text_fail_call(accx_text_error_t* error, accrt_status_t status, const char* what);

#endif /* ACCRT_WRITE_TEXT_TEXT_H_ */
