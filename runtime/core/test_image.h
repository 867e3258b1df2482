/* runtime/core/test_image.h - for tests: the freestanding image of this machine from the golden
 * bundle. It aborts when the file does not exist (tests run from the root of the source tree) and
 * returns NULL when the bundle has no image for this machine. */
#ifndef ACCRT_RUNTIME_CORE_TEST_IMAGE_H_
#define ACCRT_RUNTIME_CORE_TEST_IMAGE_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"
#include "loader/bundle.h"

#if defined(__x86_64__)
#define TEST_IMAGE_OWN "golden.x86-64"
#define TEST_IMAGE_OTHER "golden.aarch64"
#else
#define TEST_IMAGE_OWN "golden.aarch64"
#define TEST_IMAGE_OTHER "golden.x86-64"
#endif

/* The caller frees the result. */
static inline unsigned char* test_image(accrt_instance_t* instance, const char* name,
                                        size_t* out_size) {
  accrt_bundle_t* bundle;
  if (accrt_bundle_open_path(instance, "tests/golden/0.1/everything.accx", NULL, &bundle) !=
      ACCRT_OK) {
    fprintf(stderr, "tests/golden/0.1/everything.accx does not open\n");
    abort();
  }
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
  unsigned char* image = NULL;
  *out_size = 0;
  for (uint32_t i = 0; i < tables->image_count; ++i) {
    if (strcmp(accrt_bundle_string(tables, tables->images[i].name), name) != 0)
      continue;
    *out_size = (size_t)tables->images[i].size_bytes;
    image = malloc(*out_size);
    if (image == NULL || accrt_bundle_image_copy(bundle, i, image) != ACCRT_OK)
      abort();
  }
  accrt_bundle_release(bundle);
  return image;
}

#endif /* ACCRT_RUNTIME_CORE_TEST_IMAGE_H_ */
