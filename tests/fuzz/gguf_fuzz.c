/* tests/fuzz/gguf_fuzz.c - GGUF files: what is accepted is used, every key, tensor and byte. The magic is put right, so that no mutation
 * is lost on it. */
#include "tests/fuzz/weights_use.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) {
    fuzz_weights(data, size);
    return 0;
  }
  uint8_t* file = fuzz_copy(data, size, 16);
  memcpy(file, "GGUF", 4);
  fuzz_weights(file, size);
  free(file);
  return 0;
}
