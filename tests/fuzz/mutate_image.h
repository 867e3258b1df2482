/* tests/fuzz/mutate_image.h - mutations of ELF files and of fatbins with them: most change a field of a header, a table's record or an
 * entry, wherever the file says that these are. */
#ifndef ACCRT_TESTS_FUZZ_MUTATE_IMAGE_H_
#define ACCRT_TESTS_FUZZ_MUTATE_IMAGE_H_

#include <elf.h>

#include "tests/fuzz/fuzz.h"

/* A part of the file, cut to it. */
static inline void draw_in(choices_t* choices, uint8_t* data, size_t size, uint64_t offset,
                           uint64_t bytes) {
  if (offset >= size)
    return;
  draw_field(choices, data + offset, bytes < size - offset ? (size_t)bytes : size - (size_t)offset);
}

static inline void mutate_elf(choices_t* choices, uint8_t* data, size_t size) {
  Elf64_Ehdr header;
  if (size < sizeof header)
    return;
  memcpy(&header, data, sizeof header);
  const uint32_t sections = header.e_shnum != 0 ? header.e_shnum : 1,
                 segments = header.e_phnum != 0 ? header.e_phnum : 1;
  const uint64_t section = header.e_shoff + draw_below(choices, sections) * sizeof(Elf64_Shdr),
                 segment = header.e_phoff + draw_below(choices, segments) * sizeof(Elf64_Phdr);
  Elf64_Shdr place;
  switch (draw_below(choices, 8)) {
  case 0:
    draw_in(choices, data, size, 0, sizeof header);
    break;
  case 1:
  case 2:
    draw_in(choices, data, size, section, sizeof(Elf64_Shdr));
    break;
  case 3:
  case 4:
    draw_in(choices, data, size, segment, sizeof(Elf64_Phdr));
    break;
  case 5: /* what a section holds */
  case 6:
    if (section <= size && sizeof place <= size - section) {
      memcpy(&place, data + section, sizeof place);
      draw_in(choices, data, size, place.sh_offset, place.sh_size);
    }
    break;
  default:
    draw_in(choices, data, size, 0, size);
    break;
  }
}

static inline void mutate_fatbin(choices_t* choices, uint8_t* data, size_t size) {
  uint64_t at = 16, bytes;
  for (uint32_t steps = draw_below(choices, 4); steps > 0 && at + 64 <= size; --steps) {
    uint32_t header_bytes;
    memcpy(&header_bytes, data + at + 4, sizeof header_bytes);
    memcpy(&bytes, data + at + 8, sizeof bytes);
    if (bytes > size || header_bytes + bytes > size - at)
      break;
    at += header_bytes + bytes;
  }
  switch (draw_below(choices, 4)) {
  case 0:
    draw_in(choices, data, size, 0, 16);
    break;
  case 1:
  case 2:
    draw_in(choices, data, size, at, 80);
    break;
  default:
    if (at + 64 < size)
      mutate_elf(choices, data + at + 64, size - (size_t)at - 64);
    break;
  }
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  choices_t choices = {seed};
  if (size < 64 || draw_below(&choices, 8) == 0)
    return LLVMFuzzerMutate(data, size, max_size);
  for (uint32_t i = 0; i < 1 + draw_below(&choices, 3); ++i) {
    if (memcmp(data, "\x50\xed\x55\xba", 4) == 0)
      mutate_fatbin(&choices, data, size);
    else
      mutate_elf(&choices, data, size);
  }
  return size;
}

#endif /* ACCRT_TESTS_FUZZ_MUTATE_IMAGE_H_ */
