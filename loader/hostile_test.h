/* loader/hostile_test.h - what the tests of bad bundles share: golden bundles and the rule that
 * refuses a file. After each test the same instance opens a good bundle again.
 *
 * Runs from the root of the source tree (tests/golden). */
#ifndef ACCRT_LOADER_HOSTILE_TEST_H_
#define ACCRT_LOADER_HOSTILE_TEST_H_

#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "loader/hostile_support.h"

#define GOLDEN "tests/golden/0.1/everything.accx"
#define GOLDEN_0_2 "tests/golden/0.2/everything.accx"

static accrt_instance_t* instance;
static bytes_t golden;
static bytes_t golden_0_2;

/* ---- Opening ---- */

static inline accrt_status_t open_file(const bytes_t* file, const accrt_bundle_options_t* options,
                                       accrt_bundle_t** out_bundle) {
  return accrt_bundle_open_memory(instance, file->data, file->size, NULL, NULL, options,
                                  out_bundle);
}

static inline void expect_rule(const bytes_t* file, uint32_t rule, const char* what) {
  accrt_bundle_t* bundle = (accrt_bundle_t*)(uintptr_t)1;
  accrt_clear_error();
  const accrt_status_t status = open_file(file, NULL, &bundle);
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (status != accx_rule_status(rule) || rule_of_record() != rule || bundle != NULL) {
    fail_msg("%s: expected rule %u, got %s: %s", what, rule, accrt_status_name(status),
             error.message);
  }
}

static inline void expect_good(const bytes_t* file, const char* what) {
  accrt_bundle_t* bundle;
  const accrt_status_t status = open_file(file, NULL, &bundle);
  if (status != ACCRT_OK)
    fail_msg("%s: %s: %s", what, accrt_status_name(status), accrt_error_current()->message);
  use_bundle(bundle);
  accrt_bundle_release(bundle);
}

static inline int setup(void** state) {
  (void)state;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  if (accrt_instance_create(&options, &instance) != ACCRT_OK)
    return 1;
  golden = read_file(GOLDEN);
  golden_0_2 = read_file(GOLDEN_0_2);
  return 0;
}

static inline int teardown(void** state) {
  (void)state;
  expect_good(&golden, "the golden bundle at the end");
  expect_good(&golden_0_2, "the golden bundle of 0.2 at the end");
  free(golden.data);
  free(golden_0_2.data);
  accrt_instance_release(instance);
  return 0;
}

static inline accx_section_t* table_entry(bytes_t* file, uint32_t index) {
  return (accx_section_t*)(void*)(file->data + sizeof(accx_header_t) +
                                  index * sizeof(accx_section_t));
}

#endif /* ACCRT_LOADER_HOSTILE_TEST_H_ */
