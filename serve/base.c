/* serve/base.c - see serve/base.h. The only file of serve/ that calls malloc and free. */
#include "serve/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_ALIGNMENT 16u
#define LINE_BYTES 64u /* of the processor's cache */
#define MAX_STRUCT_BYTES 65536u
#define MAX_CHAIN 32

accrt_status_t accsv_fail(accrt_status_t status, const char* operation, const char* file,
                          uint32_t line, const char* format, ...) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  error.status = status;
  error.source_line = line;
  (void)snprintf(error.operation, sizeof error.operation, "%s", operation);
  (void)snprintf(error.source_file, sizeof error.source_file, "%s", file);
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(error.message, sizeof error.message, format, arguments);
  va_end(arguments);
  (void)accrt_set_error(&error);
  return status;
}

accrt_status_t accsv_named(const char* function, accrt_status_t status) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  if (status == ACCRT_OK || accrt_last_error(&error) != ACCRT_OK || error.status != status)
    return status;
  (void)snprintf(error.operation, sizeof error.operation, "%s", function);
  (void)accrt_set_error(&error);
  return status;
}

static void* system_allocate(void* self, size_t size_bytes, size_t alignment) {
  (void)self;
  return alignment <= DEFAULT_ALIGNMENT ? malloc(size_bytes) : aligned_alloc(alignment, size_bytes);
}
static void system_deallocate(void* self, void* pointer, size_t size_bytes, size_t alignment) {
  (void)self;
  (void)size_bytes;
  (void)alignment;
  free(pointer);
}
const accrt_allocator_t accsv_allocator_system = {NULL, system_allocate, system_deallocate};

/* Elements of whole lines begin with one. */
static size_t alignment_of(size_t element_bytes) {
  return element_bytes % LINE_BYTES == 0 ? LINE_BYTES : DEFAULT_ALIGNMENT;
}

accrt_status_t accsv_new_unset_at(const accrt_allocator_t* allocator, size_t count,
                                  size_t element_bytes, void* place) {
  ACCSV_ASSERT_CALLS_OUT();
  void* pointer = NULL;
  memcpy(place, &pointer, sizeof pointer);
  size_t size_bytes;
  if (__builtin_mul_overflow(count, element_bytes, &size_bytes))
    return ACCSV_FAIL(OUT_OF_MEMORY, "%zu elements of %zu bytes", count, element_bytes);
  if (size_bytes == 0)
    return ACCRT_OK;
  pointer = allocator->allocate(allocator->self, size_bytes, alignment_of(element_bytes));
  if (pointer == NULL)
    return ACCSV_FAIL(OUT_OF_MEMORY, "could not allocate %zu bytes of host memory", size_bytes);
  memcpy(place, &pointer, sizeof pointer);
  return ACCRT_OK;
}

accrt_status_t accsv_new_at(const accrt_allocator_t* allocator, size_t count, size_t element_bytes,
                            void* place) {
  ACCRT_TRY(accsv_new_unset_at(allocator, count, element_bytes, place));
  void* pointer;
  memcpy(&pointer, place, sizeof pointer);
  if (pointer != NULL)
    memset(pointer, 0, count * element_bytes);
  return ACCRT_OK;
}

void accsv_free(const accrt_allocator_t* allocator, void* pointer, size_t count,
                size_t element_bytes) {
  ACCSV_ASSERT_CALLS_OUT();
  if (pointer != NULL)
    allocator->deallocate(allocator->self, pointer, count * element_bytes,
                          alignment_of(element_bytes));
}

static uint32_t size_of(const void* object) {
  uint32_t struct_size;
  memcpy(&struct_size, object, sizeof struct_size);
  return struct_size;
}

static accrt_status_t check_size(const char* name, uint32_t size, size_t first_bytes) {
  if (size < first_bytes || size > MAX_STRUCT_BYTES || size % 8 != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "%s: struct_size is %" PRIu32 ", not %zu or more", name,
                      size, first_bytes);
  return ACCRT_OK;
}

static accrt_status_t check_chain(const char* name, const accrt_chain_t* member) {
  for (int i = 0; member != NULL; ++i, member = member->next) {
    if (i == MAX_CHAIN || (member->struct_type & ACCRT_STRUCT_IGNORABLE) == 0)
      return ACCSV_FAIL(INVALID_ARGUMENT, "%s: member %d of the next chain is not known", name, i);
  }
  return ACCRT_OK;
}

accrt_status_t accsv_take_struct(const char* name, const void* given, size_t first_bytes,
                                 void* copy, size_t own_bytes) {
  const uint32_t size = size_of(given);
  ACCRT_TRY(check_size(name, size, first_bytes));
  const unsigned char* bytes = given;
  for (size_t i = own_bytes; i < size; ++i) {
    if (bytes[i] != 0)
      return ACCSV_FAIL(INVALID_ARGUMENT, "%s: byte %zu is not zero, and not known here", name, i);
  }
  const accrt_chain_t* next;
  memcpy(&next, bytes + offsetof(accrt_chain_t, next), sizeof next);
  ACCRT_TRY(check_chain(name, next));
  memset(copy, 0, own_bytes);
  memcpy(copy, given, size < own_bytes ? size : own_bytes);
  return ACCRT_OK;
}

accrt_status_t accsv_give_struct(const char* name, const void* own, size_t own_bytes,
                                 size_t first_bytes, void* out) {
  const uint32_t size = size_of(out);
  ACCRT_TRY(check_size(name, size, first_bytes));
  const size_t filled = size < own_bytes ? size : own_bytes;
  memset(out, 0, size);
  memcpy(out, own, filled);
  const uint32_t struct_size = (uint32_t)filled;
  memcpy(out, &struct_size, sizeof struct_size);
  return ACCRT_OK;
}
