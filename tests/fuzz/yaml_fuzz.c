/* tests/fuzz/yaml_fuzz.c - the text form of bundles: any text, read into a writer; what is accepted is checked by it, written, and
 * must open. Files may not be named. */
#include "write/text/text.h"
#include "tests/fuzz/mutate_text.h"

typedef struct output {
  uint8_t* bytes;
  uint64_t size, capacity;
} output_t;

static int32_t take(void* self, uint64_t offset, const void* data, uint64_t size_bytes) {
  output_t* output = self;
  if (offset + size_bytes > output->capacity) {
    const uint64_t capacity = 2 * (offset + size_bytes);
    uint8_t* grown = realloc(output->bytes, capacity);
    if (grown == NULL)
      abort();
    memset(grown + output->capacity, 0, capacity - output->capacity);
    output->bytes = grown;
    output->capacity = capacity;
  }
  memcpy(output->bytes + offset, data, size_bytes);
  if (offset + size_bytes > output->size)
    output->size = offset + size_bytes;
  return 0;
}

/* What the writer has written, the reader takes. */
static void write_and_open(accrt_bundle_writer_t* writer) {
  output_t output = {NULL, 0, 0};
  const accrt_writer_output_t target = {&output, take, 0, 0};
  if (accrt_bundle_writer_write_callback(writer, &target) == ACCRT_OK) {
    uint8_t* file = fuzz_copy(output.bytes, output.size, 4096);
    accrt_bundle_t* bundle;
    ++fuzz_accepted;
    if (accrt_bundle_open_memory(fuzz_instance(), file, output.size, NULL, NULL, NULL, &bundle) !=
        ACCRT_OK)
      abort();
    accrt_bundle_release(bundle);
    free(file);
  }
  free(output.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint8_t* text = fuzz_copy(data, size, 16);
  accrt_bundle_writer_t* writer = NULL;
  accx_text_files_t* files = NULL;
  accx_text_error_t error;
  ++fuzz_inputs;
  if (accrt_bundle_writer_create(NULL, &writer) != ACCRT_OK)
    abort();
  if (accx_text_read((const char*)text, size, NULL, writer, &files, &error))
    write_and_open(writer);
  else if (error.message[0] == '\0' || error.status == ACCRT_OK)
    abort();
  accrt_bundle_writer_release(writer);
  accx_text_files_free(files);
  free(text);
  return 0;
}
