/* tests/fuzz/mutate_file.h - libFuzzer's entries for targets that take whole bundles: see mutate_bundle.h. */
#ifndef ACCRT_TESTS_FUZZ_MUTATE_FILE_H_
#define ACCRT_TESTS_FUZZ_MUTATE_FILE_H_

#include "tests/fuzz/mutate_bundle.h"

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  choices_t choices = {seed};
  parts_t parts;
  if (draw_below(&choices, 32) == 0 || !take_any_apart(data, size, &parts))
    return LLVMFuzzerMutate(data, size, max_size);
  for (uint32_t i = 0; i < 1 + draw_below(&choices, 3); ++i)
    mutate_parts(&choices, &parts);
  const size_t made = put_into(&parts, data, max_size);
  return made != 0 ? made : LLVMFuzzerMutate(data, size, max_size);
}

/* One file with sections of another. */
size_t LLVMFuzzerCustomCrossOver(const uint8_t* one, size_t one_size, const uint8_t* two,
                                 size_t two_size, uint8_t* out, size_t max_size,
                                 unsigned int seed) {
  choices_t choices = {seed};
  parts_t parts, others;
  if (!take_any_apart(one, one_size, &parts))
    return 0;
  if (!take_any_apart(two, two_size, &others)) {
    free_parts(&parts);
    return 0;
  }
  for (uint32_t i = 0; i < others.count; ++i) {
    part_t* part = find_part(&parts, others.parts[i].section.type);
    if (part == NULL || draw_below(&choices, 4) != 0)
      continue;
    resize_part(part, others.parts[i].size_bytes);
    memcpy(part->bytes, others.parts[i].bytes, part->size_bytes);
    part->section.record_count = others.parts[i].section.record_count;
  }
  free_parts(&others);
  return put_into(&parts, out, max_size);
}

#endif /* ACCRT_TESTS_FUZZ_MUTATE_FILE_H_ */
