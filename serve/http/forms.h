/* serve/http/forms.h - the marks with which families of models write calls of tools: a row of a
 * table for each form (ACCRT_HTTP_TOOLS_*). Its reader is serve/http/tools.c.
 */
#ifndef ACCRT_SERVE_HTTP_FORMS_H_
#define ACCRT_SERVE_HTTP_FORMS_H_

#include <stdint.h>

/* No mark has its first byte a second time: what fails to match one is looked at once more. */
typedef struct http_marks {
  char open[32];
  char close[28]; /* "": none */
} http_marks_t;
/* 0 is a form without marks. */
const http_marks_t* accrt_http_marks_of(uint32_t form);

/* Of some forms a call has marks of its own, within a section between the form's marks. */
typedef struct http_section {
  char call[28];
  char arguments[32]; /* behind an id or a name; "": there is markup */
  char end[28];       /* "": none */
} http_section_t;
/* NULL: the form has none. */
const http_section_t* accrt_http_section_of(uint32_t form);

/* How a call is written as markup: head, name, name_end, then for each argument key_open, key,
 * key_close, value_open, value, value_close, and last `end`. */
typedef struct http_markup {
  char head[16];
  char name_end[4];
  char key_open[20];
  char key_close[12];
  char value_open[12]; /* "": right behind the key */
  char value_close[16];
  char end[16];   /* the mark that closes the call may follow, or is the same */
  uint32_t lines; /* a line that begins with key_open or end ends a value, too */
} http_markup_t;
/* NULL: the form has none. */
const http_markup_t* accrt_http_markup_of(uint32_t form);

#endif
