/* runtime/core/struct.h - struct_size negotiation, both ways. It may not allocate.
 *
 * In structs: accrt_struct_read copies the caller's struct of any version to the library's own, and
 * zeroes the rest. Out structs: accrt_struct_fill writes the smaller of both sizes.
 */
#ifndef ACCRT_RUNTIME_CORE_STRUCT_H_
#define ACCRT_RUNTIME_CORE_STRUCT_H_

#include <stdbool.h>

#include "accrt/base.h"

/* Largest struct_size that is accepted. */
#define ACCRT_STRUCT_MAX_BYTES 4096u
/* Every extensible struct has at least: struct_size, 4 bytes, next. */
#define ACCRT_STRUCT_MIN_BYTES 16u

/* Reads `source` (NULL: all defaults) into `target` of `target_size` bytes. `name` is the struct's
 * name for messages. Version 0.1 knows no chain members: any that is not marked ignorable is
 * refused. Records an error on failure. */
accrt_status_t accrt_struct_read(const char* name, const void* source, void* target,
                                 size_t target_size);

/* True when no version of the struct has this size: it ends within a field, or in front of padding.
 * Sizes of all versions are multiples of 8. */
bool accrt_struct_is_cut(const char* name, uint32_t size);

/* Copies the library's struct to the caller's: the smaller of both sizes. It keeps `next`, sets
 * struct_size to the copied size, and zeroes fields that the library does not know. If `target` is
 * NULL or its struct_size is implausible or cuts a field, it returns false and writes nothing. */
bool accrt_struct_fill(const char* name, void* target, const void* source, size_t source_size);

/* The same, but failures record ACCRT_ERROR_INVALID_ARGUMENT with the struct's name. A chain with a
 * member that is neither known nor ignorable is a failure too. */
accrt_status_t accrt_struct_write(const char* name, void* target, const void* source,
                                  size_t source_size);

/* Checks `element_size_bytes` of an array of frozen structs: it must be equal to `expected`. */
accrt_status_t accrt_struct_check_element(const char* name, uint32_t element_size_bytes,
                                          size_t expected);

#endif /* ACCRT_RUNTIME_CORE_STRUCT_H_ */
