/* tools/accx/fail.c - errors, notes and small strings. Each error is one line with escaped control
 * characters, so that names in a hostile file cannot control a terminal. */
#include "accx.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/core/utf8.h"
#include "standard.h"
#include "write/text/show.h"
#include "term.h"

typedef struct text_node {
  struct text_node* next;
  char text[];
} text_node_t;
static text_node_t* kept_texts;
FILE* accx_failures;

static void* check_memory(void* pointer) {
  if (pointer)
    return pointer;
  fputs("accx: out of memory\n", stderr);
  exit(ACCX_FAILED);
}

void* accx_alloc(size_t count, size_t size_bytes) {
  return check_memory(calloc(count ? count : 1, size_bytes));
}

static char* keep_text(size_t size_bytes) {
  text_node_t* node = check_memory(malloc(sizeof *node + size_bytes));
  node->next = kept_texts;
  kept_texts = node;
  return node->text;
}

void accx_forget_texts(void) {
  while (kept_texts) {
    text_node_t* next = kept_texts->next;
    free(kept_texts);
    kept_texts = next;
  }
}

/* The text with `name` in place of each occurrence of a path, which may be NULL. */
static const char* replaced(const char* text, const char* path, const char* name) {
  const char* at = path ? strstr(text, path) : NULL;
  if (!at)
    return text;
  const char* rest = replaced(at + strlen(path), path, name);
  return accx_text("%.*s%s%s", (int)(at - text), text, name, rest);
}

static size_t character_bytes(const char* at) {
  const uint32_t length = accrt_utf8_length((const unsigned char*)at);
  return length > 0 ? length : 1;
}

/* Bytes of a character that has to be escaped: a control character, or what is no UTF-8. */
static size_t escaped_bytes(const char* at) {
  return accrt_utf8_length((const unsigned char*)at) == 0 ? 1 : accx_unsafe_bytes(at);
}

const char* accx_safe(const char* text) {
  if (!text)
    return "";
  text = replaced(text, accx_standard_path(), "standard input");
  text = replaced(text, accx_standard_output_path(), "standard output");
  size_t unsafe = 0;
  for (const char* p = text; *p; p += character_bytes(p))
    unsafe += escaped_bytes(p);
  if (unsafe == 0)
    return text;
  char* copy = keep_text(strlen(text) + 3 * unsafe + 1);
  char* to = copy;
  for (const char* p = text; *p;) {
    const size_t count = escaped_bytes(p), all = character_bytes(p);
    for (size_t i = 0; i < all; ++i, ++p) {
      if (count == 0)
        *to++ = *p;
      else
        to += sprintf(to, "\\x%02x", (unsigned)(unsigned char)*p);
    }
  }
  *to = '\0';
  return copy;
}

static const char* text_va(const char* format, va_list list) {
  va_list again;
  va_copy(again, list);
  const int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  if (length < 0)
    return "";
  char* text = keep_text((size_t)length + 1);
  vsnprintf(text, (size_t)length + 1, format, list);
  return text;
}

const char* accx_text(const char* format, ...) {
  va_list list;
  va_start(list, format);
  const char* text = text_va(format, list);
  va_end(list);
  return text;
}

static void print_line(const char* kind, const char* text) {
  accx_progress_clear();
  fprintf(accx_failures ? accx_failures : stderr, "%s%s%s\n", accx_failures ? "" : "accx: ", kind,
          accx_safe(text));
}

int accx_fail(int exit_code, const char* format, ...) {
  va_list list;
  va_start(list, format);
  print_line("", text_va(format, list));
  va_end(list);
  return exit_code;
}

void accx_note(const char* format, ...) {
  va_list list;
  va_start(list, format);
  print_line("note: ", text_va(format, list));
  va_end(list);
}

int accx_exit_code(accrt_status_t status) {
  switch (status) {
  case ACCRT_ERROR_INVALID_FORMAT:
  case ACCRT_ERROR_VERSION_MISMATCH:
  case ACCRT_ERROR_DATA_CORRUPT:
    return ACCX_BAD_BUNDLE;
  case ACCRT_ERROR_NO_VARIANT:
  case ACCRT_ERROR_UNTRUSTED:
    return ACCX_REFUSED;
  default:
    return ACCX_FAILED;
  }
}

const char* accx_last_message(void) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  return accx_text("%s", error.message);
}

int accx_fail_status(accrt_status_t status, const char* format, ...) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  const bool recorded = error.status == status && error.message[0] != '\0';
  va_list list;
  va_start(list, format);
  const char* context = text_va(format, list);
  va_end(list);
  const char* message = recorded ? error.message : accrt_status_text(status);
  const bool repeated =
      /* the library's message names the file too */
      strncmp(message, context, strlen(context)) == 0;
  return accx_fail(accx_exit_code(status), "%s%s%s (%s)", repeated ? "" : context,
                   repeated ? "" : ": ", message, accrt_status_name(status));
}
