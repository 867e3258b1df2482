/* tests/api_fuzz/random.h - what both fuzzers of the interfaces have in common: numbers that follow
 * from a seed, and which statuses are faults of the library. */
#ifndef ACCRT_TESTS_API_FUZZ_RANDOM_H_
#define ACCRT_TESTS_API_FUZZ_RANDOM_H_

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "accrt/instance.h"

static inline uint64_t random_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

static inline uint64_t random_next(uint64_t* state) {
  return random_mix(*state += UINT64_C(0x9E3779B97F4A7C15));
}

/* No argument may lead to these. */
static inline bool is_fault(accrt_status_t status) {
  return status == ACCRT_ERROR_INTERNAL ||
         strcmp(accrt_status_name(status), "ACCRT_ERROR_UNKNOWN") == 0;
}

#endif /* ACCRT_TESTS_API_FUZZ_RANDOM_H_ */
