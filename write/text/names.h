/* write/text/names.h - words for the numbers of the format, keys for the fields of commands. It
 * knows neither YAML nor bundles. */
#ifndef ACCRT_WRITE_TEXT_NAMES_H_
#define ACCRT_WRITE_TEXT_NAMES_H_

#include <stdbool.h>
#include <stdint.h>

#include "format/commands.h"

/* Words by number; the numbers ascend. */
typedef struct accx_word {
  uint64_t value;
  const char* word;
} accx_word_t;
typedef struct accx_words {
  const char* what; /* for messages */
  const accx_word_t* words;
  uint32_t count;
} accx_words_t;

extern const accx_words_t accx_words_symbol_class, accx_words_source, accx_words_argument,
    accx_words_access, accx_words_parameter, accx_words_arch_kind, accx_words_image,
    accx_words_file, accx_words_role, accx_words_predicate, accx_words_dtype, accx_words_opcode;
/* Bits: `value` is a mask. */
extern const accx_words_t accx_words_traits, accx_words_cpu;

/* The own fields of commands, in order; the last entry has opcode 0. `offset`: behind the command's
 * header. `member`: offset in accrt_writer_command_t, 0 for none. `key`: NULL when the field is the
 * value of the command's own word, or is not in the text. */
typedef struct accx_text_field {
  uint8_t opcode;
  uint8_t kind; /* ACCX_FIELD_* */
  uint8_t offset;
  uint8_t count;
  uint8_t member;
  const char* key;
} accx_text_field_t;
extern const accx_text_field_t accx_text_fields[];
/* The field that is the value of the command's own word; NULL for `barrier: true`. */
const accx_text_field_t* accx_text_head(uint64_t opcode);

/* NULL when the number has no word. */
const char* accx_word_of(const accx_words_t* words, uint64_t value);
bool accx_word_find(const accx_words_t* words, const char* word, uint64_t* out_value);

#endif /* ACCRT_WRITE_TEXT_NAMES_H_ */
