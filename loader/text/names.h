/* loader/text/names.h - words for the numbers of the format. It knows neither YAML nor bundles. */
#ifndef ACCRT_LOADER_TEXT_NAMES_H_
#define ACCRT_LOADER_TEXT_NAMES_H_

#include <stdbool.h>
#include <stdint.h>

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

/* NULL when the number has no word. */
const char* accx_word_of(const accx_words_t* words, uint64_t value);
bool accx_word_find(const accx_words_t* words, const char* word, uint64_t* out_value);

#endif /* ACCRT_LOADER_TEXT_NAMES_H_ */
