/* tests/fuzz/mutate_bundle.h - mutations of bundles for libFuzzer: most change a field, a record or a section and leave a file whose
 * places, sizes and digests are right, so that the checks behind the frame are reached. What cannot be taken apart is mutated as
 * bytes. It knows the frame of the format and the size of records, and no more. */
#ifndef ACCRT_TESTS_FUZZ_MUTATE_BUNDLE_H_
#define ACCRT_TESTS_FUZZ_MUTATE_BUNDLE_H_

#include "loader/test_support.h"
#include "tests/fuzz/fuzz.h"

/* Takes apart what may be damaged: sections that do not lie in the file are empty. False when there is no frame at all. */
static inline bool take_any_apart(const uint8_t* data, size_t size, parts_t* out) {
  memset(out, 0, sizeof *out);
  if (size < sizeof out->header)
    return false;
  memcpy(&out->header, data, sizeof out->header);
  const uint32_t count = out->header.section_count;
  if (count == 0 || count > 63 || size - sizeof out->header < count * sizeof(accx_section_t))
    return false;
  out->count = count;
  for (uint32_t i = 0; i < count; ++i) {
    part_t* part = &out->parts[i];
    memcpy(&part->section, data + sizeof out->header + i * sizeof part->section,
           sizeof part->section);
    const uint64_t offset = part->section.offset, bytes = part->section.size_bytes;
    const bool inside = offset <= size && bytes <= size - offset;
    part->size_bytes = inside ? (size_t)bytes : 0;
    part->bytes = must_alloc(part->size_bytes);
    if (inside && bytes > 0)
      memcpy(part->bytes, data + offset, part->size_bytes);
  }
  return true;
}

/* Copies, swaps, adds or takes away a record. */
static inline void mutate_records(choices_t* choices, part_t* part) {
  const size_t step = part->section.record_bytes != 0 && part->section.record_bytes < 4096
                          ? part->section.record_bytes
                          : (size_t)8 << draw_below(choices, 3);
  const size_t count = part->size_bytes / step;
  if (count == 0)
    return;
  const size_t one = draw_below(choices, count) * step, two = draw_below(choices, count) * step;
  unsigned char saved[4096];
  memcpy(saved, part->bytes + one, step);
  switch (draw_below(choices, 4)) {
  case 0:
    memcpy(part->bytes + one, part->bytes + two, step);
    memcpy(part->bytes + two, saved, step);
    break;
  case 1:
    memcpy(part->bytes + two, saved, step);
    break;
  case 2: {
    const size_t tail = part->size_bytes - two;
    resize_part(part, part->size_bytes + step);
    memmove(part->bytes + two + step, part->bytes + two, tail);
    memcpy(part->bytes + two, saved, step);
    break;
  }
  default:
    memmove(part->bytes + one, part->bytes + one + step, part->size_bytes - one - step);
    resize_part(part, part->size_bytes - step);
    break;
  }
}

static inline void mutate_bytes(part_t* part) {
  const size_t room = part->size_bytes + 64;
  unsigned char* bytes = must_alloc(room);
  memcpy(bytes, part->bytes, part->size_bytes);
  const size_t size = LLVMFuzzerMutate(bytes, part->size_bytes, room);
  resize_part(part, size);
  memcpy(part->bytes, bytes, size);
  free(bytes);
}

static inline void mutate_section(choices_t* choices, parts_t* parts) {
  part_t* part = &parts->parts[draw_below(choices, parts->count)];
  switch (draw_below(choices, 6)) {
  case 0:
    if (parts->count > 1)
      remove_part(parts, part->section.type);
    break;
  case 1:
    if (parts->count < 62)
      (void)add_part(parts, 1 + draw_below(choices, 70), draw_below(choices, 3), "some.section", 0,
                     1 + draw_below(choices, 40));
    break;
  case 2:
    part->section.flags ^= 1u << draw_below(choices, 2);
    break;
  case 3:
    part->section.record_bytes = (uint32_t)draw_value(choices, part->bytes, part->size_bytes, 4);
    break;
  case 4:
    part->section.record_count += draw(choices) & 1 ? 1u : ~0u;
    break;
  default:
    resize_part(part, draw_below(choices, part->size_bytes + 1));
    break;
  }
}

static inline void mutate_header(choices_t* choices, parts_t* parts) {
  unsigned char* header = (unsigned char*)&parts->header;
  const uint32_t at = draw_below(choices, 2) == 0 ? 8 + draw_below(choices, 16)
                                                  : draw_below(choices, sizeof parts->header);
  header[at] = (unsigned char)draw_value(choices, header, sizeof parts->header, 1);
}

/* Records of programs have the most rules, strings and bulk bytes the fewest. */
static inline part_t* pick_part(choices_t* choices, parts_t* parts) {
  for (;;) {
    part_t* part = &parts->parts[draw_below(choices, parts->count)];
    const uint32_t type = part->section.type;
    const bool dull =
        type == ACCX_SECTION_STRINGS || type == ACCX_SECTION_CODE || type == ACCX_SECTION_DATA;
    if (!dull || draw_below(choices, 8) == 0)
      return part;
  }
}

static inline void mutate_parts(choices_t* choices, parts_t* parts) {
  const uint32_t which = draw_below(choices, 100);
  if (which < 45) {
    part_t* part = pick_part(choices, parts);
    draw_field(choices, part->bytes, part->size_bytes);
  } else if (which < 65)
    mutate_bytes(pick_part(choices, parts));
  else if (which < 82)
    mutate_records(choices, pick_part(choices, parts));
  else if (which < 92)
    mutate_section(choices, parts);
  else
    mutate_header(choices, parts);
}

static inline size_t put_into(parts_t* parts, uint8_t* data, size_t max_size) {
  bytes_t file = put_together(parts);
  const size_t size = file.size <= max_size ? file.size : 0;
  memcpy(data, file.data, size);
  free(file.data);
  free_parts(parts);
  return size;
}

#endif /* ACCRT_TESTS_FUZZ_MUTATE_BUNDLE_H_ */
