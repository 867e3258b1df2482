/* tests/fuzz/bundle_fuzz.c - the reader and verifier on any bytes.
 *
 * The entry is libFuzzer's; loader/hostile_test.c calls it too, so that it stays alive. Input whose
 * first byte is odd gets right digests where its section table allows, so that the checks behind
 * them are reached.
 */
#include "loader/test_support.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static accrt_instance_t* fuzz_instance(void) {
  static accrt_instance_t* instance;
  if (instance != NULL)
    return instance;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  if (accrt_instance_create(&options, &instance) != ACCRT_OK)
    abort();
  return instance;
}

/* Writes the digests that the file's own table asks for, as far as it makes sense. */
static void repair(bytes_t* file) {
  accx_header_t header;
  if (file->size < sizeof header)
    return;
  memcpy(&header, file->data, sizeof header);
  if (header.section_count > ACCX_MAX_SECTIONS)
    return;
  if (file->size < sizeof header + header.section_count * sizeof(accx_section_t))
    return;
  accx_digest_t chunks = {{0}};
  for (uint32_t i = 0; i < header.section_count; ++i) {
    unsigned char* place = file->data + sizeof header + i * sizeof(accx_section_t);
    accx_section_t section;
    memcpy(&section, place, sizeof section);
    if (section.offset > file->size || section.size_bytes > file->size - section.offset)
      continue;
    section.digest = accx_digest_of(file->data + section.offset, (size_t)section.size_bytes);
    if (section.type == ACCX_SECTION_CHUNK_DIGESTS)
      chunks = section.digest;
    if (section.type == ACCX_SECTION_DATA)
      section.digest = chunks;
    memcpy(place, &section, sizeof section);
  }
  header.file_size_bytes = file->size;
  memcpy(file->data, &header, sizeof header);
  redo_header_digest(file);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  /* A copy of its own size: a read past its end is seen by the sanitizers. */
  bytes_t file = {must_alloc(size - 1), size - 1};
  memcpy(file.data, data + 1, size - 1);
  if ((data[0] & 1) != 0)
    repair(&file);
  accrt_bundle_t* bundle;
  if (accrt_bundle_open_memory(fuzz_instance(), file.data, file.size, NULL, NULL, NULL, &bundle) ==
      ACCRT_OK) {
    use_bundle(bundle);
    accrt_bundle_release(bundle);
  }
  free(file.data);
  return 0;
}
