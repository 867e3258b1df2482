/* serve/http/fail.c - failures of this library's functions, recorded where accrt_last_error finds
 * them, and the rules for arguments. */
#include "serve/http/server.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/base.h"

#define MAX_STRUCT_BYTES 65536u
#define MAX_CHAIN 32u

accrt_status_t accrt_http_failed(const char* operation, const char* file, uint32_t line,
                                 accrt_status_t status, int error_number, const char* format, ...) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  error.status = status;
  error.driver_code = error_number;
  error.source_line = line;
  snprintf(error.operation, sizeof error.operation, "%s", operation);
  snprintf(error.source_file, sizeof error.source_file, "%s", file);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error.message, sizeof error.message, format, arguments);
  va_end(arguments);
  (void)accrt_set_error(&error);
  return status;
}

accrt_status_t accrt_http_same_process(const http_server_t* server, const char* name,
                                       const char* operation) {
  if (server == NULL)
    return accrt_http_failed(operation, __FILE__, __LINE__, ACCRT_ERROR_INVALID_ARGUMENT, 0,
                             "%s is NULL", name);
  if (server->process != getpid())
    return accrt_http_failed(operation, __FILE__, __LINE__, ACCRT_ERROR_FORKED, 0,
                             "the process was forked after the server was made");
  return ACCRT_OK;
}

accrt_status_t accrt_http_take_struct(void* to, size_t size, const void* from, const char* name,
                                      const char* operation) {
  struct head {
    uint32_t struct_size;
    uint32_t reserved;
    const accrt_chain_t* next;
  } head;
  uint32_t given;
  if (from == NULL)
    return accrt_http_failed(operation, __FILE__, __LINE__, ACCRT_ERROR_INVALID_ARGUMENT, 0,
                             "%s is NULL", name);
  memcpy(&given, from, sizeof given);
  if (given < size || given > MAX_STRUCT_BYTES || given % 8 != 0)
    return accrt_http_failed(operation, __FILE__, __LINE__, ACCRT_ERROR_INVALID_ARGUMENT, 0,
                             "%s: struct_size is %u, not %zu or more", name, given, size);
  const unsigned char* bytes = from;
  for (size_t i = size; i < given; ++i)
    if (bytes[i] != 0)
      return accrt_http_failed(operation, __FILE__, __LINE__, ACCRT_ERROR_INVALID_ARGUMENT, 0,
                               "%s: byte %zu is not zero, and not known here", name, i);
  memcpy(&head, from, sizeof head);
  uint32_t members = 0;
  for (const accrt_chain_t* next = head.next; next != NULL; next = next->next)
    if (++members > MAX_CHAIN || (next->struct_type & ACCRT_STRUCT_IGNORABLE) == 0)
      return accrt_http_failed(operation, __FILE__, __LINE__, ACCRT_ERROR_INVALID_ARGUMENT, 0,
                               "%s: struct type %u, member %u of the chain, is not known", name,
                               next->struct_type, members - 1);
  memcpy(to, from, size);
  const uint32_t whole = (uint32_t)size;
  memcpy(to, &whole, sizeof whole);
  return ACCRT_OK;
}

void* accrt_http_new(const accrt_allocator_t* allocator, size_t size) {
  ACCSV_ASSERT_CALLS_OUT();
  void* pointer = allocator->allocate(allocator->self, size, 16);
  if (pointer != NULL)
    memset(pointer, 0, size);
  return pointer;
}

void accrt_http_free(const accrt_allocator_t* allocator, void* pointer, size_t size) {
  ACCSV_ASSERT_CALLS_OUT();
  if (pointer != NULL)
    allocator->deallocate(allocator->self, pointer, size, 16);
}
