/* write/shared.c - the functions that files of runtime/core inside libaccrt_write.so need from
 * files that are not inside: error records. They go to libaccrt.so, where accrt_last_error finds
 * them. This file stores only the name of the running function.
 *
 * libaccrt_write.a has no such file: in a static link both libraries share one
 * runtime/core/error.c.
 */
#include "runtime/core/error.h"

/* Initial-exec, as in runtime/core/error.c. */
_Thread_local const char* accrt_error_function __attribute__((tls_model("initial-exec")));

const char* accrt_error_operation(void) {
  return accrt_error_function != NULL ? accrt_error_function : "";
}

void accrt_error_put(const accrt_error_origin_t* origin, const char* format, va_list arguments) {
  accrt_error_t error;
  accrt_error_fill(&error, origin, format, arguments);
  (void)accrt_set_error(&error);
}
