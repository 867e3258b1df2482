/* serve/shared.c - what runtime/core/safe_open.c, which is inside libaccrt_serve.so, needs from
 * files that are not inside: its error records go to libaccrt.so. It keeps no state.
 *
 * libaccrt_serve.a has no such file: in a static link both libraries share one
 * runtime/core/error.c.
 */
#include <stdarg.h>
#include <stdio.h>

#include "accrt/instance.h"
#include "runtime/core/error.h"

static accrt_status_t fail(accrt_error_place_t place, int error_number, const char* format,
                           va_list arguments) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  error.status = (accrt_status_t)accrt_place_status(place);
  error.driver_code = error_number;
  (void)vsnprintf(error.message, sizeof error.message, format, arguments);
  (void)accrt_set_error(&error);
  return error.status;
}

/* The body of a function with arguments after `format`: records the failure and returns. */
#define FAIL_WITH_ARGUMENTS(place, error_number, format)                                           \
  va_list arguments;                                                                               \
  va_start(arguments, format);                                                                     \
  const accrt_status_t status = fail(place, error_number, format, arguments);                      \
  va_end(arguments);                                                                               \
  return status

accrt_status_t accrt_error_fail(accrt_error_place_t place, const char* format, ...) {
  FAIL_WITH_ARGUMENTS(place, 0, format);
}

accrt_status_t accrt_error_fail_errno(accrt_error_place_t place, int error_number,
                                      const char* format, ...) {
  FAIL_WITH_ARGUMENTS(place, error_number, format);
}
