/* write/text/show.h - shows a text's words in messages, and finds similar words for hints. It knows
 * neither YAML nor bundles. */
#ifndef ACCRT_WRITE_TEXT_SHOW_H_
#define ACCRT_WRITE_TEXT_SHOW_H_

#include <stddef.h>

#define ACCX_SHOWN_BYTES 140u

/* The number of bytes of a character here that would affect a terminal: controls (C0, DEL, C1),
 * line separators, and changes of text direction. 0 for all other characters. */
size_t accx_unsafe_bytes(const char* text);

/* Quotes a word for one line of a terminal. Control characters, quotes and backslashes are escaped,
 * so that different words look different. Long words end in "...". */
const char* accx_show(char buffer[ACCX_SHOWN_BYTES], const char* word);
#define ACCX_SHOW(word) accx_show((char[ACCX_SHOWN_BYTES]){0}, (word))

/* The most similar of the candidates. */
typedef struct accx_near {
  const char* wrong;
  const char* best; /* NULL: none is similar */
  size_t distance;
} accx_near_t;
void accx_near_try(accx_near_t* near, const char* word);
/* ", did you mean 'word'?", or "". */
const char* accx_near_text(char buffer[ACCX_SHOWN_BYTES + 32], const accx_near_t* near);
#define ACCX_NEAR_TEXT(near) accx_near_text((char[ACCX_SHOWN_BYTES + 32]){0}, (near))

#endif /* ACCRT_WRITE_TEXT_SHOW_H_ */
