/* runtime/core/error.h - making and passing on error records.
 *
 * For all of the library. It may not allocate: a record is made in thread-local storage of fixed size, whose first touch does
 * not allocate either (initial-exec model). A failing function says `return ACCRT_FAIL(TIMEOUT, "waited %" PRIu64 " ns", n);`.
 */
#ifndef ACCRT_RUNTIME_CORE_ERROR_H_
#define ACCRT_RUNTIME_CORE_ERROR_H_

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>

#include "accrt/instance.h"

#define ACCRT_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))

/* Records a failure of this thread and returns its status. */
accrt_status_t accrt_error_record(accrt_status_t status, const char* operation, const char* file,
                                  uint32_t line, const char* format, ...) ACCRT_PRINTF(5, 6);
/* The same with a driver's, a kernel's or the system's own code. `driver_name` may be NULL. */
accrt_status_t accrt_error_record_driver(accrt_status_t status, int32_t driver_code,
                                         const char* driver_name, const char* operation,
                                         const char* file, uint32_t line, const char* format, ...)
    ACCRT_PRINTF(7, 8);

/* Notes the public function that this thread has entered (a static string); accrt_check_fork does it. */
void accrt_error_enter(const char* function);
/* The operation that a record made in `function` names. Public functions have the prefix and say their own name; their helpers
 * (NULL) get the name of the public function that this thread is in, "" where there is none. */
const char* accrt_error_operation(const char* function);

/* Records a failure in `function` (NULL: a helper), of the operation that accrt_error_operation says. */
accrt_status_t accrt_error_fail(accrt_status_t status, const char* function, const char* file,
                                uint32_t line, const char* format, ...) ACCRT_PRINTF(5, 6);
/* The same for a failed system call. */
accrt_status_t accrt_error_fail_errno(accrt_status_t status, int error_number, const char* function,
                                      const char* file, uint32_t line, const char* format, ...)
    ACCRT_PRINTF(6, 7);

/* A public function's own name, and NULL in helpers: the compiler knows which, so helpers' names are not in the library. */
#define ACCRT_PUBLIC_NAME                                                                          \
  (__func__[0] == 'a' && __func__[1] == 'c' && __func__[2] == 'c' && __func__[3] == 'r' &&         \
           __func__[4] == 't' && __func__[5] == '_'                                                \
       ? __func__                                                                                  \
       : NULL)
#define ACCRT_FAIL(name, ...) ACCRT_FAIL_STATUS(ACCRT_ERROR_##name, __VA_ARGS__)
/* For internal functions that have the prefix, but are not what the caller called. */
#define ACCRT_FAIL_INNER(name, ...)                                                                \
  accrt_error_fail(ACCRT_ERROR_##name, NULL, __FILE__, (uint32_t)__LINE__, __VA_ARGS__)
/* For a status held in a variable. */
#define ACCRT_FAIL_STATUS(status, ...)                                                             \
  accrt_error_fail((status), ACCRT_PUBLIC_NAME, __FILE__, (uint32_t)__LINE__, __VA_ARGS__)
/* For a failed system call: `error_number` goes into driver_code, its name into driver_name. */
#define ACCRT_FAIL_ERRNO(name, error_number, ...)                                                  \
  accrt_error_fail_errno(ACCRT_ERROR_##name, (error_number), ACCRT_PUBLIC_NAME, __FILE__,          \
                         (uint32_t)__LINE__, __VA_ARGS__)

/* "ENOENT" for ENOENT; "errno" for numbers without a name. Static string. */
const char* accrt_errno_name(int error_number);

/* This thread's record, to be read or (by those who pass records on) written. */
accrt_error_t* accrt_error_current(void);
/* Makes `error` this thread's record and returns its status. */
accrt_status_t accrt_error_restore(const accrt_error_t* error);
/* Control characters of the record's texts become spaces, and the texts end: for records that others have filled. Those that
 * are made here are clean. */
void accrt_error_clean(accrt_error_t* error);
/* Control characters of a text (line ends, ESC, ...) become spaces. */
void accrt_text_one_line(char* text);
/* Puts `prefix: ` before the message of this thread's record, keeping as much of the message as fits. */
void accrt_error_prefix(const char* format, ...) ACCRT_PRINTF(1, 2);

#endif /* ACCRT_RUNTIME_CORE_ERROR_H_ */
