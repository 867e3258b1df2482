/* tests/fuzz/device_image_fuzz.c - cubins and fatbins: what is accepted is read by one who believes every header, as CUDA does. It is built
 * where the CUDA driver is. */
#include "runtime/drivers/cuda/test_images.h"
#include "tests/fuzz/mutate_image.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint8_t* image = fuzz_copy(data, size, 16);
  ++fuzz_inputs;
  fuzz_accepted += test_check_and_read(image, size, NULL);
  free(image);
  return 0;
}
