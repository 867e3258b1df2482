/* tests/api_fuzz/faults.h - which statuses are faults of the library: for both fuzzers of the
 * interfaces. */
#ifndef ACCRT_TESTS_API_FUZZ_FAULTS_H_
#define ACCRT_TESTS_API_FUZZ_FAULTS_H_

#include <stdbool.h>
#include <string.h>

#include "accrt/instance.h"

/* No argument may lead to these. */
static inline bool is_fault(accrt_status_t status) {
  return status == ACCRT_ERROR_INTERNAL ||
         strcmp(accrt_status_name(status), "ACCRT_ERROR_UNKNOWN") == 0;
}

#endif /* ACCRT_TESTS_API_FUZZ_FAULTS_H_ */
