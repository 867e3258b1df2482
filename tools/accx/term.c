/* tools/accx/term.c - colours, progress, sizes, times, tables. It may not use the library. */
#include "term.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Colours ---- */

static bool plain_wanted(void) {
  const char* no_colour = getenv("NO_COLOR");
  const char* terminal = getenv("TERM");
  return (no_colour && no_colour[0]) || !terminal || strcmp(terminal, "dumb") == 0;
}

const char* accx_style(accx_style_t style) {
  static const char* const codes[] = {
      [ACCX_BOLD] = "\x1b[1m",  [ACCX_DIM] = "\x1b[2m",   [ACCX_NAME] = "\x1b[36m",
      [ACCX_TYPE] = "\x1b[32m", [ACCX_PLAIN] = "\x1b[0m",
  };
  static int coloured = -1;
  if (coloured < 0)
    coloured = isatty(STDOUT_FILENO) && !plain_wanted();
  return coloured ? codes[style] : "";
}

void accx_heading(const char* format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(accx_out, "%s%s", ftell(accx_out) > 0 ? "\n" : "", accx_style(ACCX_BOLD));
  vfprintf(accx_out, format, list);
  fprintf(accx_out, "%s\n", accx_style(ACCX_PLAIN));
  va_end(list);
}

/* ---- Progress ---- */

static bool progress_shown;

static bool progress_wanted(void) {
  static int wanted = -1;
  if (wanted < 0)
    wanted = isatty(STDERR_FILENO) ? 1 : 0;
  return wanted == 1;
}

void accx_progress(const char* format, ...) {
  if (!progress_wanted())
    return;
  va_list list;
  va_start(list, format);
  char line[160];
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  fprintf(stderr, "\r\x1b[K%.78s", accx_safe(line));
  fflush(stderr);
  progress_shown = true;
}

void accx_progress_clear(void) {
  if (!progress_shown)
    return;
  fputs("\r\x1b[K", stderr);
  fflush(stderr);
  progress_shown = false;
}

/* ---- Sizes and times ---- */

accx_short_text_t accx_bytes(uint64_t size_bytes) {
  static const char* const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  accx_short_text_t out;
  if (size_bytes < 1024) {
    snprintf(out.text, sizeof out.text, "%u B", (unsigned)size_bytes);
    return out;
  }
  double value = (double)size_bytes / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < sizeof units / sizeof *units) {
    value /= 1024;
    ++unit;
  }
  snprintf(out.text, sizeof out.text, value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
  return out;
}

accx_short_text_t accx_time(double time_ns) {
  static const struct {
    double unit_ns;
    const char* name;
  } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}};
  accx_short_text_t out;
  for (size_t i = 0; i < sizeof units / sizeof *units; ++i) {
    if (time_ns < units[i].unit_ns)
      continue;
    const double value = time_ns / units[i].unit_ns;
    snprintf(out.text, sizeof out.text, "%.*f %s",
             value < 10    ? 2
             : value < 100 ? 1
                           : 0,
             value, units[i].name);
    return out;
  }
  snprintf(out.text, sizeof out.text, "%.0f ns", time_ns);
  return out;
}

uint64_t accx_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* ---- Tables ---- */

typedef struct cell {
  const char* text;
  accx_style_t style;
} cell_t;

struct accx_table {
  size_t columns;
  size_t count;
  size_t capacity;
  cell_t* cells;
  bool* right;
};

accx_table_t* accx_table_create(size_t columns) {
  accx_table_t* table = accx_alloc(1, sizeof *table);
  table->columns = columns;
  table->right = accx_alloc(columns, sizeof *table->right);
  return table;
}

void accx_table_align_right(accx_table_t* table, size_t column) {
  table->right[column] = true;
}

void accx_table_cell(accx_table_t* table, accx_style_t style, const char* format, ...) {
  if (table->count == table->capacity) {
    table->capacity = table->capacity ? 2 * table->capacity : 64;
    cell_t* cells = accx_alloc(table->capacity, sizeof *cells);
    if (table->count)
      memcpy(cells, table->cells, table->count * sizeof *cells);
    free(table->cells);
    table->cells = cells;
  }
  va_list list;
  va_start(list, format);
  char text[2048];
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  table->cells[table->count].text = accx_safe(accx_text("%s", text));
  table->cells[table->count++].style = style;
}

static size_t shown_width(const char* text) {
  size_t width = 0;
  for (; *text; ++text)
    width += ((unsigned char)*text & 0xC0) != 0x80;
  return width;
}

/* The row's length without trailing empty cells, so that no line ends with spaces. */
static size_t row_length(const accx_table_t* table, size_t first) {
  size_t length = table->count - first < table->columns ? table->count - first : table->columns;
  while (length > 0 && table->cells[first + length - 1].text[0] == '\0')
    --length;
  return length;
}

static void print_cell(const accx_table_t* table, size_t index, size_t width, bool last) {
  const cell_t* cell = &table->cells[index];
  const bool right = table->right[index % table->columns];
  const int padding = (int)(width - shown_width(cell->text));
  const bool plain = cell->style == ACCX_PLAIN;
  fprintf(accx_out, "%*s%s%s%s", right ? padding : 0, "", plain ? "" : accx_style(cell->style),
          cell->text, plain ? "" : accx_style(ACCX_PLAIN));
  if (!last)
    fprintf(accx_out, "%*s", (right ? 0 : padding) + 2, "");
}

void accx_table_print(accx_table_t* table) {
  size_t* widths = accx_alloc(table->columns, sizeof *widths);
  for (size_t i = 0; i < table->count; ++i) {
    const size_t width = shown_width(table->cells[i].text);
    if (width > widths[i % table->columns])
      widths[i % table->columns] = width;
  }
  for (size_t row = 0; row < table->count; row += table->columns) {
    const size_t length = row_length(table, row);
    fputs("  ", accx_out);
    for (size_t i = 0; i < length; ++i)
      print_cell(table, row + i, widths[i], i + 1 == length);
    fputc('\n', accx_out);
  }
  free(widths);
  free(table->cells);
  free(table->right);
  free(table);
}
