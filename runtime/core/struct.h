/* runtime/core/struct.h - struct_size negotiation, both ways. It may not allocate.
 *
 * In structs: `accrt_X_t local; ACCRT_STRUCT_READ(options, &local, chain types...)` copies the caller's struct, whatever its
 * version, into the library's own, zero-extended. Out structs: accrt_struct_fill writes the smaller of both sizes.
 */
#ifndef ACCRT_RUNTIME_CORE_STRUCT_H_
#define ACCRT_RUNTIME_CORE_STRUCT_H_

#include <stdbool.h>

#include "accrt/base.h"

/* Largest struct_size that is believed. */
#define ACCRT_STRUCT_MAX_BYTES 4096u
/* Every extensible struct has at least: struct_size, 4 bytes, next. */
#define ACCRT_STRUCT_MIN_BYTES 16u

/* Reads `source` (NULL: all defaults) into `target` of `target_size` bytes. `name` is the struct's for messages. No chain
 * member is known in 0.1: any that is not marked ignorable is refused. Records an error on failure. */
accrt_status_t accrt_struct_read(const char* name, const void* source, void* target,
                                 size_t target_size);

/* Fills the caller's struct with the library's: the smaller of both sizes, keeping `next`, and sets struct_size to what was
 * filled (zeroing an unknown tail). False when `target` is NULL or its struct_size is not believable: nothing is written. */
bool accrt_struct_fill(void* target, const void* source, size_t source_size);

/* The same, recording ACCRT_ERROR_INVALID_ARGUMENT with the struct's name; that too when its chain has a member that is not
 * known and not ignorable. */
accrt_status_t accrt_struct_write(const char* name, void* target, const void* source,
                                  size_t source_size);

/* Checks `element_size_bytes` of an array of frozen structs: it must be exactly `expected`. */
accrt_status_t accrt_struct_check_element(const char* name, uint32_t element_size_bytes,
                                          size_t expected);

#endif /* ACCRT_RUNTIME_CORE_STRUCT_H_ */
