/* failure.c - where runtime/core/error_fill.c puts records in the pack: this thread's message. It
 * may not allocate. */
#include "failure.h"

#include <stdio.h>

#include "runtime/core/error.h"

static _Thread_local char message[256];

const char* failure_message(void) {
  return message;
}

const char* accrt_error_operation(void) {
  return "";
}

void accrt_error_put(const accrt_error_origin_t* origin, const char* format, va_list arguments) {
  (void)origin;
  (void)vsnprintf(message, sizeof message, format, arguments);
}
