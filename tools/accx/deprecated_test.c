/* tools/accx/deprecated_test.c - the notes of `accx verify` about deprecated content. Since nothing
 * is deprecated, the test uses a list of things that are not.
 *
 * Runs from the root of the source tree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "deprecated.h"

#define GOLDEN "tests/golden/0.3/"

static const accx_deprecated_t some[] = {
    {ACCX_DEPRECATED_SECTION, 3, "symbols", "container 0.9", "nothing"},
    {ACCX_DEPRECATED_OPCODE, 7, "branch", "command set 0.9", "select"},
    {ACCX_DEPRECATED_OPCODE, 2, "copy", "command set 0.9", "move"},
    {ACCX_DEPRECATED_LAYOUT, 0, "plain", "layouts 0.9", "plainer"},
    {ACCX_DEPRECATED_LAYOUT, 19, "q4_k", "layouts 0.9", "nvfp4"},
    {ACCX_DEPRECATED_SECTION, 45, "tags", "container 0.9", "seals"},
};
#define COUNT (sizeof some / sizeof *some)

static void check(const char* path, const accx_deprecated_t* list, size_t count,
                  const bool* expected) {
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  accrt_instance_t* instance;
  accrt_bundle_t* bundle;
  bool held[COUNT] = {true, true, true, true, true, true};
  assert_int_equal(accrt_instance_create(&options, &instance), ACCRT_OK);
  assert_int_equal(accrt_bundle_open_path(instance, path, NULL, &bundle), ACCRT_OK);
  assert_int_equal(accx_deprecated_find(bundle, list, count, held), ACCRT_OK);
  for (size_t i = 0; i < count; ++i)
    assert_int_equal(held[i], expected[i]);
  accrt_bundle_release(bundle);
  accrt_instance_release(instance);
}

static void test_found(void** state) {
  (void)state;
  check(GOLDEN "minimal.accx", some, COUNT, (const bool[COUNT]){false});
  check(GOLDEN "plain-0.1.accx", some, COUNT,
        (const bool[COUNT]){true, false, true, true, false, false});
  check(GOLDEN "everything.accx", some, COUNT,
        (const bool[COUNT]){true, true, true, true, true, false});
  check(GOLDEN "encrypted.accx", some, COUNT,
        (const bool[COUNT]){true, false, true, true, false, true});
}

static void test_nothing_is_deprecated(void** state) {
  (void)state;
  assert_int_equal(accx_deprecated_count, 0);
  assert_null(accx_deprecated[accx_deprecated_count].name);
  assert_string_equal(accx_deprecated_kind(&some[1]), "opcode");
  assert_string_equal(accx_deprecated_kind(&some[3]), "layout");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_found),
                                     cmocka_unit_test(test_nothing_is_deprecated)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
