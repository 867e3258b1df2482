/* tests/fuzz/fuzz.h - what fuzz targets share: an instance without drivers, an input of its own size, counts of what was accepted.
 *
 * A target is a file NAME_fuzz.c with libFuzzer's entry, and nothing else: `./dev fuzz` links it with libFuzzer, the tests with
 * replay.c, which runs it over tests/fuzz/corpus/NAME.
 */
#ifndef ACCRT_TESTS_FUZZ_FUZZ_H_
#define ACCRT_TESTS_FUZZ_FUZZ_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

/* Inputs so far, and those that were taken for good. Read by whoever runs the target. */
extern uint64_t fuzz_inputs, fuzz_accepted;

static inline accrt_instance_t* fuzz_instance(void) {
  static accrt_instance_t* instance;
  if (instance != NULL)
    return instance;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  if (accrt_instance_create(&options, &instance) != ACCRT_OK)
    abort();
  return instance;
}

/* A copy that begins where `alignment` says and ends where its memory does: a read past the end is seen by the sanitizers. */
static inline uint8_t* fuzz_copy(const uint8_t* data, size_t size, size_t alignment) {
  void* copy = NULL;
  if (posix_memalign(&copy, alignment, size > 0 ? size : 1) != 0)
    abort();
  if (size > 0)
    memcpy(copy, data, size);
  return copy;
}

#endif /* ACCRT_TESTS_FUZZ_FUZZ_H_ */
