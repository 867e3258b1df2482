/* write/text/dump.h - declarations for the files of write/text that write text. */
#ifndef ACCRT_WRITE_TEXT_DUMP_H_
#define ACCRT_WRITE_TEXT_DUMP_H_

#include "write/text/expression.h"
#include "write/text/file.h"
#include "write/text/names.h"
#include "write/text/out.h"

typedef struct accx_dumper {
  const accx_text_dump_t* job;
  accx_bundle_file_t file;
  accx_yaml_out_t out;
  accx_text_error_t* error;
  bool failed;              /* *error is set */
  unsigned char* mentioned; /* by offset in STRINGS: the text already has it */
  bool copied[64];          /* by section type: it was copied to the folder */
  bool made_folder;
  /* The scope of the current expressions. */
  accx_scope_text_t scope;
  const accx_function_t* function; /* NULL: the expressions of states */
} accx_dumper_t;

/* The string at an offset. */
const char* accx_dump_string(accx_dumper_t* dumper, uint32_t offset);
void accx_dump_key_string(accx_dumper_t* dumper, const char* key, uint32_t offset);
/* Writes a word of a table, or the number. */
void accx_dump_key_word(accx_dumper_t* dumper, const char* key, const accx_words_t* words,
                        uint64_t value);
/* Writes a list with the words of the set bits, and a number for bits without a word. Nothing if no
 * bit is set. */
void accx_dump_key_bits(accx_dumper_t* dumper, const char* key, const accx_words_t* words,
                        uint64_t bits);
/* Begins the list of a section's records, if there are any. Returns their number. */
uint32_t accx_dump_begin_list(accx_dumper_t* dumper, const char* key, uint32_t section);
void accx_dump_end_list(accx_dumper_t* dumper, uint32_t count);
void accx_dump_expression(accx_dumper_t* dumper, uint32_t node);
void accx_dump_key_expression(accx_dumper_t* dumper, const char* key, uint32_t node);
/* Writes dtype, encoding, group and shape as keys of the open map. */
void accx_dump_type(accx_dumper_t* dumper, const accx_type_t* type);
/* Writes bytes of a section: as digits, as part of a file in the folder, or as a digest. `key` may
 * be NULL. */
void accx_dump_bytes(accx_dumper_t* dumper, const char* key, uint32_t section, uint64_t offset,
                     uint64_t size_bytes);
/* Begins a scope, and writes its names. */
bool accx_dump_scope_begin(accx_dumper_t* dumper, const accx_function_t* function, uint32_t first,
                           uint32_t count);
void accx_dump_scope_end(accx_dumper_t* dumper);
void accx_dump_fail_memory(accx_dumper_t* dumper);

/* dump_functions.c */
void accx_dump_functions(accx_dumper_t* dumper);
void accx_dump_kernels(accx_dumper_t* dumper);

#endif /* ACCRT_WRITE_TEXT_DUMP_H_ */
