/* tests/fuzz/safetensors_fuzz.c - safetensors files: what is accepted is used, every tensor and every byte. The input's header is the text
 * up to a NUL or its end, behind the size that belongs to it; so mutations reach what is in the header. An input that begins with
 * 0xFF is taken as it is, behind that byte. */
#include "tests/fuzz/mutate_text.h"
#include "tests/fuzz/weights_use.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0 && data[0] == 0xFF) {
    fuzz_weights(data + 1, size - 1);
    return 0;
  }
  const uint8_t* end = size > 0 ? memchr(data, 0, size) : NULL;
  const uint64_t header_bytes = end != NULL ? (uint64_t)(end - data) : size;
  const size_t data_bytes = end != NULL ? size - (size_t)header_bytes - 1 : 0;
  uint8_t* file = malloc(8 + (size_t)header_bytes + data_bytes + 1);
  fuzz_require(file != NULL);
  memcpy(file, &header_bytes, 8);
  if (header_bytes > 0)
    memcpy(file + 8, data, (size_t)header_bytes);
  if (data_bytes > 0)
    memcpy(file + 8 + header_bytes, end + 1, data_bytes);
  fuzz_weights(file, 8 + (size_t)header_bytes + data_bytes);
  free(file);
  return 0;
}
