/* tests/cts/operation.h - whether an error record names the function that the caller called. */
#ifndef ACCRT_CTS_OPERATION_H_
#define ACCRT_CTS_OPERATION_H_

#include <stdbool.h>
#include <string.h>

/* `expression` is a failed call as it stands in the test. A public function's record names that
 * function, or an operation of the driver ("cuMemAlloc"): never another public function. */
static inline bool operation_fits(const char* expression, const char* operation) {
  const size_t length = strcspn(expression, "(");
  if (strncmp(expression, "accrt_", 6) != 0 || strncmp(operation, "accrt_", 6) != 0)
    return true;
  return strlen(operation) == length && memcmp(expression, operation, length) == 0;
}

#endif /* ACCRT_CTS_OPERATION_H_ */
