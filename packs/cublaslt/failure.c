/* failure.c - the functions of error.h that safe_open.c calls, for the pack. It may not allocate.
 */
#include "failure.h"

#include <stdio.h>

#include "runtime/core/error.h"

static _Thread_local char message[256];

const char* failure_message(void) {
  return message;
}

static accrt_status_t record(accrt_error_place_t place, const char* format, va_list arguments) {
  (void)vsnprintf(message, sizeof message, format, arguments);
  return (accrt_status_t)accrt_place_status(place);
}

accrt_status_t accrt_error_fail(accrt_error_place_t place, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t status = record(place, format, arguments);
  va_end(arguments);
  return status;
}

/* Without optimization, every place of ACCRT_FAIL has a call of this one too. */
accrt_status_t accrt_error_fail_in(accrt_error_place_t place, const char* function,
                                   const char* format, ...) {
  (void)function;
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t status = record(place, format, arguments);
  va_end(arguments);
  return status;
}

accrt_status_t accrt_error_fail_errno(accrt_error_place_t place, int error_number,
                                      const char* function, const char* format, ...) {
  (void)error_number;
  (void)function;
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t status = record(place, format, arguments);
  va_end(arguments);
  return status;
}
