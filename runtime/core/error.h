/* runtime/core/error.h - creating and passing on error records.
 *
 * For all of the library. It may not allocate: a record is in thread-local storage of fixed size,
 * whose first access does not allocate either (initial-exec model). A failing function says `return
 * ACCRT_FAIL(TIMEOUT, "waited %" PRIu64 " ns", n);`.
 */
#ifndef ACCRT_RUNTIME_CORE_ERROR_H_
#define ACCRT_RUNTIME_CORE_ERROR_H_

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>

#include "accrt/instance.h"
#include "runtime/core/try.h"

/* Also cold: what leads to a failure is compiled for size, and out of the way. */
#define ACCRT_PRINTF(format_index, first) __attribute__((format(printf, format_index, first), cold))

/* Records a failure of this thread and returns its status. */
accrt_status_t accrt_error_record(accrt_status_t status, const char* operation, const char* file,
                                  uint32_t line, const char* format, ...) ACCRT_PRINTF(5, 6);
/* The same with an error code of a driver, a kernel or the system. `driver_name` may be NULL. */
accrt_status_t accrt_error_record_driver(accrt_status_t status, int32_t driver_code,
                                         const char* driver_name, const char* operation,
                                         const char* file, uint32_t line, const char* format, ...)
    ACCRT_PRINTF(7, 8);

/* The origin of a record. Texts may be NULL. */
typedef struct accrt_error_origin {
  accrt_status_t status;
  int32_t driver_code;
  const char* driver_name;
  const char* operation;
  const char* file;
  uint32_t line;
} accrt_error_origin_t;
/* Makes `error` the record of a failure. The arguments may point to its old texts. */
void accrt_error_fill(accrt_error_t* error, const accrt_error_origin_t* origin, const char* format,
                      va_list arguments) ACCRT_PRINTF(3, 0);

/* The public function that the user called in this thread (a static string). ACCRT_ENTER sets it,
 * and a failure reads it: no other function names itself. So the library calls no function of its
 * own that sets it: it calls accrt_inner_... instead (runtime/core/fork.h). Initial-exec, as the
 * record: the first access does not allocate. */
extern _Thread_local const char* accrt_error_function __attribute__((tls_model("initial-exec")));
static inline void accrt_error_enter(const char* function) {
  accrt_error_function = function;
}
/* Calls code of the caller (allocator, sink, reader, release), which may call the library: the
 * outer call keeps its name. */
#define ACCRT_CALL_USER(call)                                                                      \
  do {                                                                                             \
    const char* const outer_function_ = accrt_error_function;                                      \
    call;                                                                                          \
    accrt_error_function = outer_function_;                                                        \
  } while (0)
/* The operation that a record names: that function, or "". */
const char* accrt_error_operation(void);

/* Where a failure is and what it is, in one constant: a status (or a rule, which becomes one), the
 * source file's number and the line. The build numbers the files; 0 is a file without a name. */
typedef uint32_t accrt_error_place_t;
#ifndef ACCRT_FILE_NUMBER
#define ACCRT_FILE_NUMBER 0
#endif
#define ACCRT_PLACE(status)                                                                        \
  ((accrt_error_place_t)(uint32_t)(status) << 22 | (uint32_t)(ACCRT_FILE_NUMBER) << 12 |           \
   ((uint32_t)__LINE__ & 0xFFFu))
static inline uint32_t accrt_place_status(accrt_error_place_t place) {
  return place >> 22;
}
/* The same place with a status that was found out. */
static inline accrt_error_place_t accrt_place_with(accrt_error_place_t place,
                                                   accrt_status_t status) {
  return (place & 0x3FFFFFu) | (uint32_t)status << 22;
}
/* The names of the files in the order of their numbers, each with an end, without ".c". A name that
 * ends with a slash is the folder of those after it. Written by the build
 * (cmake/AccrtPlaces.cmake). */
extern const char accrt_error_files[];
/* Fills in what the place says. `file` has room for a record's source_file. */
void accrt_error_origin_at(accrt_error_place_t place, accrt_error_origin_t* out_origin, char* file);

/* Where records go. Each library has its own: libaccrt.so fills this thread's record, and
 * libaccrt_write.so gives a record to libaccrt.so. */
void accrt_error_put(const accrt_error_origin_t* origin, const char* format, va_list arguments)
    ACCRT_PRINTF(2, 0);
/* What the functions below have in common. `error_number`: of a failed system call, or 0. */
accrt_status_t accrt_error_fail_at(accrt_error_place_t place, int error_number, const char* format,
                                   va_list arguments) ACCRT_PRINTF(3, 0);
/* Records a failure. */
accrt_status_t accrt_error_fail(accrt_error_place_t place, const char* format, ...)
    ACCRT_PRINTF(2, 3);
/* The same with another status than the place's. */
accrt_status_t accrt_error_fail_status(accrt_status_t status, accrt_error_place_t place,
                                       const char* format, ...) ACCRT_PRINTF(3, 4);
/* The same for a failed system call. */
accrt_status_t accrt_error_fail_errno(accrt_error_place_t place, int error_number,
                                      const char* format, ...) ACCRT_PRINTF(3, 4);

#define ACCRT_FAIL(name, ...) accrt_error_fail(ACCRT_PLACE(ACCRT_ERROR_##name), __VA_ARGS__)
/* For a status of a user or a driver, which may be any number. */
#define ACCRT_FAIL_STATUS(status, ...)                                                             \
  accrt_error_fail_status((status), ACCRT_PLACE(0), __VA_ARGS__)
/* For a failed system call: `error_number` goes into driver_code, its name into driver_name. */
#define ACCRT_FAIL_ERRNO(name, error_number, ...)                                                  \
  accrt_error_fail_errno(ACCRT_PLACE(ACCRT_ERROR_##name), (error_number), __VA_ARGS__)

/* Names the first of these arguments that is NULL: "out_index is NULL". */
#define ACCRT_FAIL_NULL(...)                                                                       \
  accrt_error_fail_null(ACCRT_PLACE(ACCRT_ERROR_INVALID_ARGUMENT), #__VA_ARGS__,                   \
                        (const void* const[]){__VA_ARGS__})
accrt_status_t accrt_error_fail_null(accrt_error_place_t place, const char* names,
                                     const void* const* arguments);

/* A number's name, or "99 (no data type of this version)" in `text` where it has none (`name` is
 * NULL). */
#define ACCRT_NUMBER_TEXT_BYTES 64
const char* accrt_number_text(const char* name, uint64_t number, const char* what, char* text);
#define ACCRT_DTYPE_TEXT(dtype)                                                                    \
  accrt_number_text(accrt_dtype_bits(dtype) != 0 ? accrt_dtype_name(dtype) : NULL, (dtype),        \
                    "data type", (char[ACCRT_NUMBER_TEXT_BYTES]){0})

/* The text of that index among texts that follow one another, each with its NUL. A pointer to each
 * would be relocated when the library is loaded. */
const char* accrt_nth_text(const char* texts, uint32_t index);

/* "ENOENT" for ENOENT; "errno" for numbers without a name. Static string. */
const char* accrt_errno_name(int error_number);

/* This thread's record. The caller may read it, or write it to pass on another record. */
accrt_error_t* accrt_error_current(void);
/* Makes `error` this thread's record and returns its status. */
accrt_status_t accrt_error_restore(const accrt_error_t* error);
/* Replaces control characters of the record's texts by spaces, and terminates the texts. For
 * records that other code filled. Records of this library are clean. */
void accrt_error_clean(accrt_error_t* error);
/* Replaces the control characters of a text (line ends, ESC, ...) by spaces. */
void accrt_text_one_line(char* text);
/* Puts `prefix: ` before the message of this thread's record. The message is cut at its end if
 * necessary. */
void accrt_error_prefix(const char* format, ...) ACCRT_PRINTF(1, 2);

#endif /* ACCRT_RUNTIME_CORE_ERROR_H_ */
