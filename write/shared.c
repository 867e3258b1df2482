/* write/shared.c - the functions that files of runtime/core inside libaccrt_write.so need from
 * files that are not inside: error records. They go to libaccrt.so, where accrt_last_error finds
 * them. This file stores only the name of the running function.
 *
 * libaccrt_write.a has no such file: in a static link both libraries share one
 * runtime/core/error.c.
 */
#include "runtime/core/error.h"

#include <string.h>

/* Initial-exec, as in runtime/core/error.c. */
_Thread_local const char* accrt_error_function __attribute__((tls_model("initial-exec")));

const char* accrt_error_operation(const char* function) {
  const char* running = accrt_error_function != NULL ? accrt_error_function : "";
  return function != NULL && strncmp(function, "accrt_", 6) == 0 ? function : running;
}

static accrt_status_t record(accrt_error_place_t place, int error_number, const char* function,
                             const char* format, va_list arguments) {
  accrt_error_t error;
  char file[sizeof error.source_file];
  accrt_error_origin_t origin = {0};
  accrt_error_origin_at(place, &origin, file);
  origin.operation = accrt_error_operation(function);
  origin.driver_code = error_number;
  origin.driver_name = error_number != 0 ? accrt_errno_name(error_number) : NULL;
  accrt_error_fill(&error, &origin, format, arguments);
  (void)accrt_set_error(&error);
  return origin.status;
}

accrt_status_t accrt_error_fail(accrt_error_place_t place, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t status = record(place, 0, NULL, format, arguments);
  va_end(arguments);
  return status;
}

accrt_status_t accrt_error_fail_in(accrt_error_place_t place, const char* function,
                                   const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t status = record(place, 0, function, format, arguments);
  va_end(arguments);
  return status;
}

accrt_status_t accrt_error_fail_errno(accrt_error_place_t place, int error_number,
                                      const char* function, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const accrt_status_t status = record(place, error_number, function, format, arguments);
  va_end(arguments);
  return status;
}
