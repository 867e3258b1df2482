/* tests/fuzz/counts.c - the counts of fuzz.h, and a line about them when the process ends. */
#include <inttypes.h>

#include "tests/fuzz/fuzz.h"

uint64_t fuzz_inputs, fuzz_accepted;
uint64_t fuzz_index = UINT64_MAX;

static void print_counts(void) {
  fprintf(stderr, "fuzz: %" PRIu64 " inputs, %" PRIu64 " accepted (%.1f %%)\n", fuzz_inputs,
          fuzz_accepted,
          fuzz_inputs > 0 ? 100.0 * (double)fuzz_accepted / (double)fuzz_inputs : 0.0);
}

__attribute__((constructor)) static void count_to_the_end(void) {
  (void)atexit(print_counts);
}
