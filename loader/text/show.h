/* loader/text/show.h - words of a text as messages show them, and near words for hints. It knows neither YAML nor bundles. */
#ifndef ACCRT_LOADER_TEXT_SHOW_H_
#define ACCRT_LOADER_TEXT_SHOW_H_

#include <stddef.h>

#define ACCX_SHOWN_BYTES 140u

/* How many bytes of a character begin here that a terminal would act on: controls (C0, DEL, C1), line separators, and what turns the
 * direction of text. 0 for all others. */
size_t accx_unsafe_bytes(const char* text);

/* A word in quotes, fit for one line of a terminal: control characters, quotes and backslashes are escaped, so that different words
 * look different, and long ones end in "...". */
const char* accx_show(char buffer[ACCX_SHOWN_BYTES], const char* word);
#define ACCX_SHOW(word) accx_show((char[ACCX_SHOWN_BYTES]){0}, (word))

/* The nearest of the words that are tried. */
typedef struct accx_near {
  const char* wrong;
  const char* best; /* NULL: none is near */
  size_t distance;
} accx_near_t;
void accx_near_try(accx_near_t* near, const char* word);
/* ", did you mean 'word'?", or "". */
const char* accx_near_text(char buffer[ACCX_SHOWN_BYTES + 32], const accx_near_t* near);
#define ACCX_NEAR_TEXT(near) accx_near_text((char[ACCX_SHOWN_BYTES + 32]){0}, (near))

#endif /* ACCRT_LOADER_TEXT_SHOW_H_ */
