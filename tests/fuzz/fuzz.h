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
#include "tests/random.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

/* Inputs so far, and those that were taken for good. Read by whoever runs the target. */
extern uint64_t fuzz_inputs, fuzz_accepted;
/* Which input of a run it is (soak.c); UINT64_MAX: not counted. */
extern uint64_t fuzz_index;

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

static inline void fuzz_require(int good) {
  if (!good)
    abort();
}

/* What an input of so many bytes may cost: half of the default for each, and little besides. An input that costs more is a finding. */
static inline const accrt_budget_t* fuzz_budget(size_t size) {
  static accrt_budget_t budget = ACCRT_BUDGET_INIT;
  budget.max_steps = (UINT64_C(1) << 16) + 8 * (uint64_t)size;
  budget.max_memory_bytes = (UINT64_C(1) << 22) + 16 * (uint64_t)size;
  return &budget;
}

/* Whether it was opened; ends the run where that was too dear. */
static inline int fuzz_opened(accrt_status_t status) {
  fuzz_require(status != ACCRT_ERROR_BUDGET);
  return status == ACCRT_OK;
}

/* ---- An input that is read from the front; zeros when it has ended ---- */

typedef struct fuzz_input {
  const uint8_t* at;
  size_t left;
} fuzz_input_t;

static inline uint64_t fuzz_take(fuzz_input_t* input, size_t width) {
  uint64_t value = 0;
  const size_t taken = width < input->left ? width : input->left;
  memcpy(&value, input->at, taken);
  input->at += taken;
  input->left -= taken;
  return value;
}

/* ---- Choices of mutators ---- */

/* libFuzzer's own mutations; replay.c has none. */
__attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t* one, size_t one_size, const uint8_t* two,
                                 size_t two_size, uint8_t* out, size_t max_size, unsigned int seed);

typedef struct choices {
  uint64_t state;
} choices_t;

static inline uint64_t draw(choices_t* choices) {
  return test_random(&choices->state);
}

static inline uint32_t draw_below(choices_t* choices, uint64_t limit) {
  return (uint32_t)(draw(choices) % limit);
}

/* A value for a field of `width` bytes: one at an edge, another field's, a small one, any. */
static inline uint64_t draw_value(choices_t* choices, const uint8_t* fields, size_t size,
                                  size_t width) {
  static const uint64_t values[] = {0,          1,          2,          3,          4,
                                    5,          7,          8,          15,         16,
                                    17,         63,         64,         255,        256,
                                    4096,       65535,      0xFFFFFF,   0x1000000,  0x7FFFFFFF,
                                    0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 1ull << 32, 1ull << 48,
                                    1ull << 61, ~0ull >> 1, 1ull << 63, ~0ull - 7,  ~0ull};
  uint64_t value = 0;
  switch (draw_below(choices, 4)) {
  case 0:
    return values[draw_below(choices, sizeof values / sizeof values[0])];
  case 1:
    if (size >= width)
      memcpy(&value, fields + draw_below(choices, size / width) * width, width);
    return value;
  case 2:
    return draw_below(choices, 24);
  default:
    return draw(choices);
  }
}

/* Changes a field somewhere in [0, size): by one, by a bit, or to another value. */
static inline void draw_field(choices_t* choices, uint8_t* fields, size_t size) {
  static const size_t widths[] = {1, 2, 4, 4, 4, 4, 8, 8};
  const size_t width = widths[draw_below(choices, 8)];
  if (size < width)
    return;
  uint8_t* at = fields + draw_below(choices, size / width) * width;
  uint64_t value = 0;
  memcpy(&value, at, width);
  switch (draw_below(choices, 4)) {
  case 0:
    value += (draw(choices) & 1) != 0 ? 1u : ~UINT64_C(0);
    break;
  case 1:
    value ^= UINT64_C(1) << draw_below(choices, 8 * width);
    break;
  default:
    value = draw_value(choices, fields, size, width);
    break;
  }
  memcpy(at, &value, width);
}

#endif /* ACCRT_TESTS_FUZZ_FUZZ_H_ */
