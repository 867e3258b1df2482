/* runtime/core/error.c - thread-local error records, status names. It may not allocate or take a
 * lock. */
#include "runtime/core/error.h"

#include <stdio.h>
#include <string.h>

#include "runtime/core/struct.h"

/* Initial-exec: the block is part of every thread's static TLS, so that recording never calls into
 * the allocator. */
static _Thread_local accrt_error_t current_error __attribute__((tls_model("initial-exec")));
_Thread_local const char* accrt_error_function __attribute__((tls_model("initial-exec")));

accrt_error_t* accrt_error_current(void) {
  return &current_error;
}

const char* accrt_error_operation(void) {
  return accrt_error_function != NULL ? accrt_error_function : "";
}

static accrt_status_t record(accrt_status_t status, int32_t driver_code, const char* driver_name,
                             const char* operation, const char* file, uint32_t line,
                             const char* format, va_list arguments) {
  const accrt_error_origin_t origin = {status, driver_code, driver_name, operation, file, line};
  accrt_error_fill(&current_error, &origin, format, arguments);
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

void accrt_error_put(const accrt_error_origin_t* origin, const char* format, va_list arguments) {
  accrt_error_fill(&current_error, origin, format, arguments);
}

accrt_status_t accrt_error_fail_status(accrt_status_t status, accrt_error_place_t place,
                                       const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)accrt_error_fail_at(place, 0, format, arguments);
  va_end(arguments);
  current_error.status = status;
  return status;
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
  (void)snprintf(text + length, sizeof text - length, "%.*s", (int)(sizeof text - length - 1),
                 error->message);
  accrt_text_one_line(text);
  memcpy(error->message, text, sizeof text);
}

accrt_status_t accrt_last_error(accrt_error_t* out_error) {
  /* Not through ACCRT_FAIL: a failed query must not replace the record that the caller asks for. */
  return accrt_struct_fill("accrt_error_t", out_error, &current_error, sizeof current_error)
             ? ACCRT_OK
             : ACCRT_ERROR_INVALID_ARGUMENT;
}

accrt_status_t accrt_set_error(const accrt_error_t* error) {
  accrt_error_t own;
  /* Not through ACCRT_FAIL either: a bad argument must not become the record. */
  if (error == NULL || error->struct_size < sizeof own)
    return ACCRT_ERROR_INVALID_ARGUMENT;
  memcpy(&own, error, sizeof own);
  own.struct_size = (uint32_t)sizeof own;
  own.next = NULL;
  accrt_error_clean(&own);
  (void)accrt_error_restore(&own);
  return ACCRT_OK;
}

void accrt_clear_error(void) {
  memset(&current_error, 0, sizeof current_error);
}

/* The list counts from 1 without a gap: a status is the index of its name and text. */
#define AT(name, number, text) AT_##name,
enum { AT_OK, ACCRT_STATUS_LIST(AT) STATUS_COUNT };
#undef AT
#define CHECK(name, number, text) _Static_assert(AT_##name == (number), #name " is out of order");
ACCRT_STATUS_LIST(CHECK)
#undef CHECK

static uint32_t index_of(accrt_status_t status) {
  return status >= 0 && status < STATUS_COUNT ? (uint32_t)status : STATUS_COUNT;
}

const char* accrt_status_name(accrt_status_t status) {
#define NAME(name, number, text) "ACCRT_ERROR_" #name "\0"
  return accrt_nth_text("ACCRT_OK\0" ACCRT_STATUS_LIST(NAME) "ACCRT_ERROR_UNKNOWN",
                        index_of(status));
#undef NAME
}

const char* accrt_status_text(accrt_status_t status) {
#define TEXT(name, number, text) text "\0"
  return accrt_nth_text(
      "success\0" ACCRT_STATUS_LIST(TEXT) "a status that this library does not know",
      index_of(status));
#undef TEXT
}
