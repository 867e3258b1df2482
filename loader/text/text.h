/* loader/text/text.h - the text form of bundles: YAML that a person can write, and from which the same bytes are built.
 * docs/text-form.md specifies it.
 *
 * It stands beside the library, not in it: it needs libyaml, and is linked into the tool alone. It uses the library's public
 * functions, and of loader/ the records of the format (format.h) and nothing else.
 */
#ifndef ACCRT_LOADER_TEXT_TEXT_H_
#define ACCRT_LOADER_TEXT_TEXT_H_

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "accrt/accrt.h"
#include "accrt/bundle_writer.h"

/* What went wrong: one line. */
typedef struct accx_text_error {
  accrt_status_t status;
  uint32_t line; /* of the text, from 1; 0: not about a place in it */
  uint32_t column;
  char message[600];
} accx_text_error_t;

/* What is to be written as text. */
typedef struct accx_text_dump {
  accrt_instance_t* instance;
  const char* path; /* of the bundle */
  FILE* out;        /* the text */
  const char*
      folder; /* where bytes go that are too large for the text; made when it is needed. NULL: bytes are shown by digest */
  const char* folder_name; /* what the text calls it: relative to the text's own folder */
  uint64_t inline_bytes;   /* bytes up to this many stand in the text, as hexadecimal digits */
} accx_text_dump_t;
/* False with *error set; what was written until then stays. */
bool accx_text_write(const accx_text_dump_t* dump, accx_text_error_t* error);

/* Adds everything that a text says to a writer, and has it check the whole, so that mistakes are told with their place. Files that it names are sought in `folder`, beneath it only; they stay open in
 * *out_files, which the caller frees when the writer will not write any more. */
typedef struct accx_text_files accx_text_files_t;
bool accx_text_read(const char* text, size_t size_bytes, const char* folder,
                    accrt_bundle_writer_t* writer, accx_text_files_t** out_files,
                    accx_text_error_t* error);
void accx_text_files_free(accx_text_files_t* files);

/* Says in words how two bundles differ, a line each, to `out`; *out_count gets how many lines. */
bool accx_text_compare(accrt_instance_t* instance, const char* path_a, const char* path_b,
                       FILE* out, uint64_t* out_count, accx_text_error_t* error);

/* Sets *error and is false. */
bool accx_text_fail(accx_text_error_t* error, accrt_status_t status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with this thread's record of the library's last failed call. `what` may be NULL. */
bool accx_text_fail_call(accx_text_error_t* error, accrt_status_t status, const char* what);

#endif /* ACCRT_LOADER_TEXT_TEXT_H_ */
