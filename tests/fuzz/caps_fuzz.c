/* tests/fuzz/caps_fuzz.c - what `accx caps --json` prints, as a target to write for: any text; what is accepted is given to a writer. */
#include "tests/fuzz/mutate_text.h"

#include "accrt/write.h"

static int32_t take(void* self, uint64_t offset, const void* data, uint64_t size_bytes) {
  (void)self, (void)offset, (void)data, (void)size_bytes;
  return 0;
}

/* A bundle of nothing, for whatever the text says; it may be too new for it. */
static void write_for(const accrt_caps_t* caps) {
  accrt_bundle_writer_options_t options = ACCRT_BUNDLE_WRITER_OPTIONS_INIT;
  options.target = caps;
  accrt_bundle_writer_t* writer = NULL;
  if (accrt_bundle_writer_create(&options, &writer) != ACCRT_OK)
    return;
  const accrt_writer_output_t target = {NULL, take, 0, 0};
  (void)accrt_bundle_writer_write_callback(writer, &target);
  accrt_bundle_writer_release(writer);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  char* text = (char*)fuzz_copy(data, size, 16);
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  ++fuzz_inputs;
  if (accrt_caps_parse(text, size, NULL, &caps) == ACCRT_OK) {
    ++fuzz_accepted;
    write_for(&caps);
  }
  free(text);
  return 0;
}
