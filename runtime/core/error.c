/* runtime/core/error.c - thread-local error records, status names. It may not allocate or take a lock. */
#include "runtime/core/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/struct.h"

/* Initial-exec: the block is part of every thread's static TLS, so that recording never calls into the allocator. */
static _Thread_local accrt_error_t current_error __attribute__((tls_model("initial-exec")));
static _Thread_local const char* current_function __attribute__((tls_model("initial-exec")));

accrt_error_t* accrt_error_current(void) {
  return &current_error;
}

static bool has_prefix(const char* function) {
  return strncmp(function, "accrt_", 6) == 0;
}

void accrt_error_enter(const char* function) {
  current_function = has_prefix(function) ? function : NULL;
}

const char* accrt_error_operation(const char* function) {
  if (function == NULL)
    return current_function != NULL ? current_function : "";
  return has_prefix(function) || current_function == NULL ? function : current_function;
}

/* Copies at most capacity-1 bytes and terminates. */
static void copy_text(char* target, size_t capacity, const char* text) {
  if (text == NULL)
    text = "";
  const size_t length = strnlen(text, capacity - 1);
  memcpy(target, text, length);
  target[length] = '\0';
}

static bool is_control(unsigned char byte) {
  return byte < 0x20 || byte == 0x7F;
}

/* The control characters above ASCII, as UTF-8 has them: terminals take some for what ESC begins. */
static bool is_high_control(const unsigned char* text) {
  return text[0] == 0xC2 && text[1] >= 0x80 && text[1] < 0xA0;
}

void accrt_text_one_line(char* text) {
  for (unsigned char* c = (unsigned char*)text; *c != '\0'; ++c) {
    if (is_high_control(c))
      *c++ = ' ';
    else if (!is_control(*c))
      continue;
    *c = ' ';
  }
}

static void clean_text(char* text, size_t capacity) {
  text[capacity - 1] = '\0';
  accrt_text_one_line(text);
}

void accrt_error_clean(accrt_error_t* error) {
  clean_text(error->driver_name, sizeof error->driver_name);
  clean_text(error->operation, sizeof error->operation);
  clean_text(error->source_file, sizeof error->source_file);
  clean_text(error->message, sizeof error->message);
}

static accrt_status_t record(accrt_status_t status, int32_t driver_code, const char* driver_name,
                             const char* operation, const char* file, uint32_t line,
                             const char* format, va_list arguments) {
  accrt_error_t* error = &current_error;
  /* The message first: its arguments may point into the record that is being replaced. */
  char message[sizeof error->message];
  if (vsnprintf(message, sizeof message, format, arguments) < 0)
    message[0] = '\0';
  memset(error, 0, offsetof(accrt_error_t, message));
  error->struct_size = (uint32_t)sizeof *error;
  error->status = status;
  error->driver_code = driver_code;
  error->source_line = line;
  copy_text(error->driver_name, sizeof error->driver_name, driver_name);
  copy_text(error->operation, sizeof error->operation, operation);
  const size_t file_length = file != NULL ? strlen(file) : 0;
  const size_t keep = sizeof error->source_file - 1;
  copy_text(error->source_file, sizeof error->source_file,
            file_length > keep ? file + (file_length - keep) : file);
  memcpy(error->message, message, sizeof message);
  accrt_error_clean(error);
  return status;
}

accrt_status_t accrt_error_record(accrt_status_t status, const char* operation, const char* file,
                                  uint32_t line, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t result = record(status, 0, NULL, operation, file, line, format, arguments);
  va_end(arguments);
  return result;
}

accrt_status_t accrt_error_record_driver(accrt_status_t status, int32_t driver_code,
                                         const char* driver_name, const char* operation,
                                         const char* file, uint32_t line, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t result =
      record(status, driver_code, driver_name, operation, file, line, format, arguments);
  va_end(arguments);
  return result;
}

accrt_status_t accrt_error_fail(accrt_status_t status, const char* function, const char* file,
                                uint32_t line, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t result =
      record(status, 0, NULL, accrt_error_operation(function), file, line, format, arguments);
  va_end(arguments);
  return result;
}

accrt_status_t accrt_error_fail_errno(accrt_status_t status, int error_number, const char* function,
                                      const char* file, uint32_t line, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t result =
      record(status, error_number, accrt_errno_name(error_number), accrt_error_operation(function),
             file, line, format, arguments);
  va_end(arguments);
  return result;
}

accrt_status_t accrt_error_restore(const accrt_error_t* error) {
  memmove(&current_error, error, sizeof current_error);
  return current_error.status;
}

void accrt_error_prefix(const char* format, ...) {
  accrt_error_t* error = &current_error;
  char text[sizeof error->message];
  va_list arguments;
  va_start(arguments, format);
  const int written = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (written < 0)
    return;
  size_t length = strlen(text);
  if (length + 2 >= sizeof text)
    return;
  memcpy(text + length, ": ", 3);
  length += 2;
  copy_text(text + length, sizeof text - length, error->message);
  accrt_text_one_line(text);
  memcpy(error->message, text, sizeof text);
}

const char* accrt_errno_name(int error_number) {
  const char* name = strerrorname_np(error_number);
  return name != NULL ? name : "errno";
}

accrt_status_t accrt_last_error(accrt_error_t* out_error) {
  /* Not through ACCRT_FAIL: a failed look-up may not replace the record that was asked for. */
  return accrt_struct_fill(out_error, &current_error, sizeof current_error)
             ? ACCRT_OK
             : ACCRT_ERROR_INVALID_ARGUMENT;
}

void accrt_clear_error(void) {
  memset(&current_error, 0, sizeof current_error);
}

const char* accrt_status_name(accrt_status_t status) {
  switch (status) {
  case ACCRT_OK:
    return "ACCRT_OK";
#define NAME(name, number, text)                                                                   \
  case number:                                                                                     \
    return "ACCRT_ERROR_" #name;
    ACCRT_STATUS_LIST(NAME)
#undef NAME
  default:
    return "ACCRT_ERROR_UNKNOWN";
  }
}

const char* accrt_status_text(accrt_status_t status) {
  switch (status) {
  case ACCRT_OK:
    return "success";
#define TEXT(name, number, text)                                                                   \
  case number:                                                                                     \
    return text;
    ACCRT_STATUS_LIST(TEXT)
#undef TEXT
  default:
    return "a status that this library does not know";
  }
}
