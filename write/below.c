/* write/below.c - see write/below.h. */
#include "write/below.h"

#include <stdio.h>

#include "runtime/core/error.h"

accrt_status_t accx_below(const char* operation, accrt_status_t status) {
  accrt_error_enter(operation);
  if (status == ACCRT_OK)
    return ACCRT_OK;
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  error.status = status;
  (void)snprintf(error.operation, sizeof error.operation, "%s", operation);
  (void)accrt_set_error(&error);
  return status;
}
