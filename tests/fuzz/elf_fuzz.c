/* tests/fuzz/elf_fuzz.c - images of machine code: validated, mapped, relocated, searched, and never run. */
#include "runtime/core/elf_image.h"
#include "tests/fuzz/mutate_image.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint8_t* bytes = fuzz_copy(data, size, 16);
  accrt_elf_image_t image;
  ++fuzz_inputs;
  if (accrt_elf_image_load(bytes, size, "fuzzed", &image) == ACCRT_OK) {
    ++fuzz_accepted;
    const void* query = accrt_elf_image_find(&image, "accrt_kernel_pack_query");
    if (query != NULL && !accrt_elf_image_is_code(&image, query))
      abort();
    if (!accrt_elf_image_contains(&image, image.base, 1) ||
        accrt_elf_image_contains(&image, image.base, (uint64_t)image.span_bytes + 1))
      abort();
    (void)accrt_elf_image_find(&image, "");
    accrt_elf_image_unload(&image);
  }
  free(bytes);
  return 0;
}
