/* serve/base.h - failures, host memory and struct sizes, on the public headers of libaccrt and the
 * macros of runtime/core.
 *
 * Every file of serve/ uses it. It keeps no state: error records go to libaccrt, where
 * accrt_last_error finds them.
 */
#ifndef ACCRT_SERVE_BASE_H_
#define ACCRT_SERVE_BASE_H_

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "accrt/instance.h"
#include "runtime/core/assertion.h"
#include "runtime/core/try.h"

/* Asserts that the user's code may be called (a model, an allocator, a clock, a constraint): no
 * lock is held but that under which a server gives requests to its engine. */
#define ACCSV_ASSERT_CALLS_OUT() ACCRT_ASSERT_NONE_BELOW(ACCRT_LOCK_HTTP_SUBMITTING)

/* Records a failure of this thread in libaccrt and returns its status. */
accrt_status_t accsv_fail(accrt_status_t status, const char* operation, const char* file,
                          uint32_t line, const char* format, ...)
    __attribute__((format(printf, 5, 6), cold));
/* For public functions, whose name is `function`: a failure gets that name, whatever function of
 * this library or of libaccrt found it. Returns the status. */
accrt_status_t accsv_named(const char* function, accrt_status_t status);
#define ACCSV_FAIL(name, ...)                                                                      \
  accsv_fail(ACCRT_ERROR_##name, ACCRT_THIS_FUNCTION, __FILE__, (uint32_t)__LINE__, __VA_ARGS__)
/* Names the argument that is NULL. */
#define ACCSV_NOT_NULL(argument)                                                                   \
  do {                                                                                             \
    if ((argument) == NULL)                                                                        \
      return ACCSV_FAIL(INVALID_ARGUMENT, #argument " is NULL");                                   \
  } while (0)

/* The allocator of the C library. */
extern const accrt_allocator_t accsv_allocator_system;
/* Zeroed memory of count * element_bytes, aligned to 16, or to 64 where elements are multiples
 * of 64 bytes; 0 bytes give NULL. Records ACCRT_ERROR_OUT_OF_MEMORY. */
accrt_status_t accsv_new_at(const accrt_allocator_t* allocator, size_t count, size_t element_bytes,
                            void* place);
/* The same, not zeroed. */
accrt_status_t accsv_new_unset_at(const accrt_allocator_t* allocator, size_t count,
                                  size_t element_bytes, void* place);
/* NULL is allowed. The sizes must be those of the allocation. */
void accsv_free(const accrt_allocator_t* allocator, void* pointer, size_t count,
                size_t element_bytes);
/* The type of `*place` says the size of an element. */
#define ACCSV_NEW(allocator, count, place)                                                         \
  accsv_new_at((allocator), (count), sizeof **(place), (place))
#define ACCSV_NEW_UNSET(allocator, count, place)                                                   \
  accsv_new_unset_at((allocator), (count), sizeof **(place), (place))
#define ACCSV_FREE(allocator, pointer, count)                                                      \
  accsv_free((allocator), (pointer), (count), sizeof *(pointer))

/* Copies a struct of the caller into `copy`, whose size is that of this library's version: the
 * tail that an older caller does not have is zero. Refuses a size below `first_bytes`, that of the
 * first version, and a tail that is not zero or a chain that this library does not know. */
accrt_status_t accsv_take_struct(const char* name, const void* given, size_t first_bytes,
                                 void* copy, size_t own_bytes);
/* Gives a struct to the caller, up to the smaller of both sizes. */
accrt_status_t accsv_give_struct(const char* name, const void* own, size_t own_bytes,
                                 size_t first_bytes, void* out);

/* A 64-bit mixture in which each bit depends on all of the value's (the finish of MurmurHash3). */
static inline uint64_t accsv_mix(uint64_t value) {
  value ^= value >> 33;
  value *= UINT64_C(0xFF51AFD7ED558CCD);
  value ^= value >> 33;
  value *= UINT64_C(0xC4CEB9FE1A85EC53);
  return value ^ (value >> 33);
}

#endif /* ACCRT_SERVE_BASE_H_ */
