/* tests/fuzz/commands_fuzz.c - the verifier of command programs: the input stands for the expressions, slots, views, blocks and
 * commands of a bundle whose other sections are good, so that no mutation is spent on the frame.
 *
 * Input: for each of the five sections u16 size in bytes, u16 number of records (COMMANDS: of commands), bytes. The bundle is
 * tests/fuzz/corpus/container/kernels.accx, from the root of the source tree. */
#include "loader/test_support.h"
#include "tests/fuzz/mutate_bundle.h"

static const uint32_t types[] = {ACCX_SECTION_EXPRESSIONS, ACCX_SECTION_SLOTS, ACCX_SECTION_VIEWS,
                                 ACCX_SECTION_BLOCKS, ACCX_SECTION_COMMANDS};

static const bytes_t* base(void) {
  static bytes_t file;
  if (file.data == NULL)
    file = read_file("tests/fuzz/corpus/container/kernels.accx");
  return &file;
}

/* Takes the next section from the input; false when it has ended. */
static bool take_section(parts_t* parts, uint32_t type, const uint8_t** data, size_t* size) {
  uint16_t bytes, count;
  part_t* part = find_part(parts, type);
  if (part == NULL || *size < sizeof bytes + sizeof count)
    return false;
  memcpy(&bytes, *data, sizeof bytes);
  memcpy(&count, *data + sizeof bytes, sizeof count);
  *data += sizeof bytes + sizeof count;
  *size -= sizeof bytes + sizeof count;
  const size_t taken = bytes < *size ? bytes : *size;
  const size_t step = part->section.record_bytes != 0 ? part->section.record_bytes : 8;
  resize_part(part, taken / step * step);
  memcpy(part->bytes, *data, part->size_bytes);
  if (part->section.record_bytes == 0)
    part->section.record_count = count;
  *data += taken;
  *size -= taken;
  if (part->size_bytes == 0)
    remove_part(parts, type);
  return true;
}

/* Takes the sections of an input apart, mutates one or two of them as records, and puts them together again. */
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  choices_t choices = {seed};
  if (draw_below(&choices, 16) == 0)
    return LLVMFuzzerMutate(data, size, max_size);
  parts_t parts = take_apart(base());
  const uint8_t* at = data;
  size_t left = size, made = 0;
  for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
    if (!take_section(&parts, types[i], &at, &left))
      break;
  }
  for (uint32_t i = 0; i < 1 + draw_below(&choices, 2); ++i) {
    part_t* part = find_part(&parts, types[draw_below(&choices, 5)]);
    const uint32_t which = draw_below(&choices, 8);
    if (part == NULL)
      continue;
    if (which < 5)
      draw_field(&choices, part->bytes, part->size_bytes);
    else if (which < 7)
      mutate_records(&choices, part);
    else
      mutate_bytes(part);
  }
  for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
    const part_t* part = find_part(&parts, types[i]);
    const uint16_t head[2] = {part != NULL ? (uint16_t)part->size_bytes : 0,
                              part != NULL ? (uint16_t)part->section.record_count : 0};
    if (made + sizeof head + head[0] > max_size)
      break;
    memcpy(data + made, head, sizeof head);
    made += sizeof head;
    if (head[0] > 0)
      memcpy(data + made, part->bytes, head[0]);
    made += head[0];
  }
  free_parts(&parts);
  return made;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  parts_t parts = take_apart(base());
  for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
    if (!take_section(&parts, types[i], &data, &size))
      break;
  }
  bytes_t file = put_together(&parts);
  accrt_bundle_t* bundle;
  ++fuzz_inputs;
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.budget = fuzz_budget(file.size);
  if (fuzz_opened(accrt_bundle_open_memory(fuzz_instance(), file.data, file.size, NULL, NULL,
                                           &options, &bundle))) {
    ++fuzz_accepted;
    use_bundle(bundle);
    accrt_bundle_release(bundle);
  }
  free(file.data);
  free_parts(&parts);
  return 0;
}
