/* tools/accx/words.h - shell completion and the man page, from the tables of verbs and options. */
#ifndef ACCX_WORDS_H_
#define ACCX_WORDS_H_

#include "accx.h"

/* Every verb, in the order of the help. */
extern const accx_verb_t* const accx_verbs[];
extern const size_t accx_verb_count;
/* The text about exit codes: lines with a number, two spaces and its meaning. */
extern const char accx_exit_codes[];

#endif /* ACCX_WORDS_H_ */
