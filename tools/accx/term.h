/* tools/accx/term.h - colours, progress, and sizes and times for people. */
#ifndef ACCX_TERM_H_
#define ACCX_TERM_H_

#include <stdint.h>
#include <stdio.h>

#include "accx.h"

/* Escape sequences if standard output is a terminal and NO_COLOR is not set; otherwise "". */
typedef enum accx_style { ACCX_BOLD, ACCX_DIM, ACCX_NAME, ACCX_TYPE, ACCX_PLAIN } accx_style_t;
const char* accx_style(accx_style_t style);
/* A heading on its own line, with an empty line before all except the first. */
void accx_heading(const char* format, ...) ACCX_PRINTF(1, 2);

/* A line on standard error that the next one overwrites. It prints nothing if standard error is not
 * a terminal. */
void accx_progress(const char* format, ...) ACCX_PRINTF(1, 2);
void accx_progress_clear(void);

/* Short texts by value, for use in one expression: accx_bytes(n).text. */
typedef struct accx_short_text {
  char text[40];
} accx_short_text_t;
accx_short_text_t accx_bytes(uint64_t size_bytes); /* "1.50 MiB", "512 B" */
accx_short_text_t accx_time(double time_ns);       /* "12.3 us" */

/* Monotonic clock. */
uint64_t accx_now_ns(void);

/* A table. It collects cells, and pads columns by visible width (without colours and UTF-8
 * continuation bytes). */
typedef struct accx_table accx_table_t;
accx_table_t* accx_table_create(size_t columns);
/* Adds the next cell in reading order. The table's column decides the alignment. */
void accx_table_cell(accx_table_t* table, accx_style_t style, const char* format, ...)
    ACCX_PRINTF(3, 4);
void accx_table_align_right(accx_table_t* table, size_t column);
/* Prints to accx_out with two spaces of indent, and frees the table. */
void accx_table_print(accx_table_t* table);

#endif /* ACCX_TERM_H_ */
