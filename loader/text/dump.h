/* loader/text/dump.h - what the files that write text share. Private to loader/text. */
#ifndef ACCRT_LOADER_TEXT_DUMP_H_
#define ACCRT_LOADER_TEXT_DUMP_H_

#include "loader/text/expression.h"
#include "loader/text/file.h"
#include "loader/text/names.h"
#include "loader/text/out.h"

typedef struct accx_dumper {
  const accx_text_dump_t* job;
  accx_bundle_file_t file;
  accx_yaml_out_t out;
  accx_text_error_t* error;
  bool failed;              /* *error is set */
  unsigned char* mentioned; /* by offset in STRINGS: the text has it somewhere */
  bool copied[64];          /* by section type: it lies in the folder */
  bool made_folder;
  /* The scope that expressions are of. */
  accx_scope_text_t scope;
  const accx_function_t* function; /* NULL: states */
} accx_dumper_t;

/* A string of the file. */
const char* accx_dump_string(accx_dumper_t* dumper, uint32_t offset);
void accx_dump_key_string(accx_dumper_t* dumper, const char* key, uint32_t offset);
/* A word of a table, or the number. */
void accx_dump_key_word(accx_dumper_t* dumper, const char* key, const accx_words_t* words,
                        uint64_t value);
/* A list of the words of the bits, and the number of those without; nothing when there are none. */
void accx_dump_key_bits(accx_dumper_t* dumper, const char* key, const accx_words_t* words,
                        uint64_t bits);
/* The list of a section's records, where it has some; what there are. */
uint32_t accx_dump_begin_list(accx_dumper_t* dumper, const char* key, uint32_t section);
void accx_dump_end_list(accx_dumper_t* dumper, uint32_t count);
void accx_dump_expression(accx_dumper_t* dumper, uint32_t node);
void accx_dump_key_expression(accx_dumper_t* dumper, const char* key, uint32_t node);
/* dtype, encoding, group and shape, as keys of the map that is open. */
void accx_dump_type(accx_dumper_t* dumper, const accx_type_t* type);
/* Bytes of a section: digits, a part of a file in the folder, or a digest. `key` may be NULL. */
void accx_dump_bytes(accx_dumper_t* dumper, const char* key, uint32_t section, uint64_t offset,
                     uint64_t size_bytes);
/* The scope's names, and the scope itself. */
bool accx_dump_scope_begin(accx_dumper_t* dumper, const accx_function_t* function, uint32_t first,
                           uint32_t count);
void accx_dump_scope_end(accx_dumper_t* dumper);
void accx_dump_fail_memory(accx_dumper_t* dumper);

/* dump_functions.c */
void accx_dump_functions(accx_dumper_t* dumper);
void accx_dump_kernels(accx_dumper_t* dumper);

#endif /* ACCRT_LOADER_TEXT_DUMP_H_ */
