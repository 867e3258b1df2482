/* tests/fuzz/container_fuzz.c - the reader and the verifier on whole files. What is accepted is used: every public function, every
 * table. Mutations (mutate_bundle.h) know sections and records, and make the frame right again. */
#include "loader/test_support.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate_file.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint8_t* file = fuzz_copy(data, size, 4096);
  accrt_bundle_t* bundle;
  ++fuzz_inputs;
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  options.budget = fuzz_budget(size);
  if (fuzz_opened(
          accrt_bundle_open_memory(fuzz_instance(), file, size, NULL, NULL, &options, &bundle))) {
    ++fuzz_accepted;
    use_bundle(bundle);
    accrt_bundle_release(bundle);
  }
  free(file);
  return 0;
}
