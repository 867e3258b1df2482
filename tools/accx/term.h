/* tools/accx/term.h - colours, progress, and sizes and times for people. */
#ifndef ACCX_TERM_H_
#define ACCX_TERM_H_

#include <stdint.h>
#include <stdio.h>

#include "accx.h"

/* Escape sequences while standard output is a terminal and NO_COLOR is not set; else "". */
typedef enum accx_style { ACCX_BOLD, ACCX_DIM, ACCX_NAME, ACCX_TYPE, ACCX_PLAIN } accx_style_t;
const char* accx_style(accx_style_t style);
/* A heading on a line of its own, with an empty line before all but the first. */
void accx_heading(const char* format, ...) ACCX_PRINTF(1, 2);

/* A line on standard error that is overwritten by the next one; nothing unless standard error is a terminal. */
void accx_progress(const char* format, ...) ACCX_PRINTF(1, 2);
void accx_progress_clear(void);

/* Short texts by value, to be used inside one expression: accx_bytes(n).text. */
typedef struct accx_short_text {
  char text[40];
} accx_short_text_t;
accx_short_text_t accx_bytes(uint64_t size_bytes); /* "1.50 MiB", "512 B" */
accx_short_text_t accx_time(double time_ns);       /* "12.3 us" */

/* Monotonic clock. */
uint64_t accx_now_ns(void);

/* A table: cells are collected, columns padded by what they show (colours and UTF-8 continuation bytes count nothing). */
typedef struct accx_table accx_table_t;
accx_table_t* accx_table_create(size_t columns);
/* The next cell in reading order; right-aligned when the table says so for its column. */
void accx_table_cell(accx_table_t* table, accx_style_t style, const char* format, ...)
    ACCX_PRINTF(3, 4);
void accx_table_align_right(accx_table_t* table, size_t column);
/* Prints with two spaces of indent to accx_out, and frees. */
void accx_table_print(accx_table_t* table);

#endif /* ACCX_TERM_H_ */
