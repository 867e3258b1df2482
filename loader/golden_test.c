/* loader/golden_test.c - the corpus of files that old and future writers make (tests/golden): the
 * library makes of each what manifest.txt says, and an old file's tables are those that the same
 * content has when it is written now.
 *
 * Runs from the root of the source tree.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "loader/internal.h"
#include "loader/test_support.h"
#include "loader/upgrade.h"

#define FOLDER "tests/golden/"

static accrt_instance_t* instance;

static int setup(void** state) {
  (void)state;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  return accrt_instance_create(&options, &instance) == ACCRT_OK ? 0 : 1;
}

static int teardown(void** state) {
  (void)state;
  accrt_instance_release(instance);
  return 0;
}

static accrt_bundle_t* must_open(const bytes_t* file, const char* what) {
  accrt_bundle_t* bundle;
  const accrt_status_t status =
      accrt_bundle_open_memory(instance, file->data, file->size, NULL, NULL, NULL, &bundle);
  if (status != ACCRT_OK)
    fail_msg("%s: %s: %s", what, accrt_status_name(status), accrt_error_current()->message);
  return bundle;
}

/* ---- The manifest ---- */

static void check_line(const char* name, const char* expected, unsigned rule) {
  char path[256];
  (void)snprintf(path, sizeof path, FOLDER "%s", name);
  accrt_bundle_t* bundle;
  accrt_clear_error();
  const accrt_status_t status = accrt_bundle_open_path(instance, path, NULL, &bundle);
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  char found[64] = "OK";
  unsigned found_rule = 0;
  if (status != ACCRT_OK) {
    (void)snprintf(found, sizeof found, "%s", accrt_status_name(status) + strlen("ACCRT_ERROR_"));
    const char* text = strstr(error.message, "(rule ");
    found_rule = text != NULL ? (unsigned)strtoul(text + 6, NULL, 10) : 0;
  }
  if (strcmp(found, expected) != 0 || found_rule != rule)
    fail_msg("%s: expected %s by rule %u, got %s: %s", name, expected, rule, found, error.message);
  if (status != ACCRT_OK)
    return;
  use_bundle(bundle);
  assert_int_equal(accrt_bundle_verify(bundle), ACCRT_OK);
  accrt_bundle_release(bundle);
}

static void manifest(void** state) {
  (void)state;
  FILE* file = fopen(FOLDER "manifest.txt", "r");
  assert_non_null(file);
  char line[512], name[128], expected[64];
  unsigned rule, count = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    if (line[0] == '#')
      continue;
    assert_int_equal(sscanf(line, "%127s %63s %u", name, expected, &rule), 3);
    check_line(name, expected, rule);
    ++count;
  }
  fclose(file);
  assert_true(count >= 40);
}

/* ---- Upgrade ---- */

/* The same content, written now with one more constant, which is EXTERNAL: all constants then have
 * the form of 0.3. Its name is a string that exists already and sorts behind the others. */
static bytes_t written_now(const bytes_t* old) {
  parts_t parts = take_apart(old);
  part_t* constants = find_part(&parts, ACCX_SECTION_CONSTANTS);
  part_t* components = find_part(&parts, ACCX_SECTION_COMPONENTS);
  const part_t* strings = find_part(&parts, ACCX_SECTION_STRINGS);
  const uint32_t count = constants->section.record_count;
  const accx_constant_t* last = record_of(&parts, ACCX_SECTION_CONSTANTS, 0, count - 1);
  const uint32_t name = last->name + (uint32_t)strlen((const char*)strings->bytes + last->name) + 1;
  assert_true(name < strings->size_bytes);

  const accx_section_kind_t* kind = accx_section_kind(ACCX_SECTION_CONSTANTS);
  unsigned char* wide = must_alloc((count + 1) * sizeof(accx_constant_t));
  accx_form_widen(kind, constants->bytes, count, constants->section.record_bytes, wide);
  const accx_constant_t extra = {.name = name,
                                 .source = ACCX_CONSTANT_EXTERNAL,
                                 .dtype = ACCRT_DTYPE_F32,
                                 .component_first = components->section.record_count,
                                 .component_count = 1,
                                 .file = ACCX_NONE,
                                 .binding_flags = ACCX_BINDING_BY_NAME};
  memcpy(wide + count * sizeof extra, &extra, sizeof extra);
  free(constants->bytes);
  constants->bytes = wide;
  constants->size_bytes = (count + 1) * sizeof extra;
  constants->section.record_bytes = sizeof extra;
  constants->section.record_count = count + 1;
  resize_part(components, components->size_bytes + sizeof(accx_component_t));
  accx_component_t* component =
      record_of(&parts, ACCX_SECTION_COMPONENTS, 0, components->section.record_count - 1);
  *component = (accx_component_t){ACCX_ROLE_DATA, ACCRT_DTYPE_F32, 0, 4};
  parts.header.container.minor = 3;
  bytes_t file = put_together(&parts);
  free_parts(&parts);
  return file;
}

#define SAME(field, count_field)                                                                   \
  do {                                                                                             \
    assert_int_equal(a->count_field, b->count_field);                                              \
    if (a->count_field != 0)                                                                       \
      assert_memory_equal(a->field, b->field, a->count_field * sizeof *a->field);                  \
  } while (0)

static void expect_same_tables(const accrt_bundle_tables_t* a, const accrt_bundle_tables_t* b) {
  assert_int_equal(a->constant_count + 1, b->constant_count);
  assert_memory_equal(a->constants, b->constants, a->constant_count * sizeof *a->constants);
  assert_memory_equal(a->components, b->components, a->component_count * sizeof *a->components);
  SAME(strings, strings_size_bytes);
  SAME(metadata, metadata_count);
  SAME(symbols, symbol_count);
  SAME(buckets, bucket_count);
  SAME(expressions, expression_count);
  SAME(states, state_count);
  SAME(functions, function_count);
  SAME(arguments, argument_count);
  SAME(slots, slot_count);
  SAME(views, view_count);
  SAME(blocks, block_count);
  SAME(kernels, kernel_count);
  SAME(parameters, parameter_count);
  SAME(variants, variant_count);
  SAME(predicates, predicate_count);
  SAME(images, image_count);
  SAME(launches, launch_count);
  SAME(chunk_digests, chunk_count);
  assert_int_equal(a->command_count, b->command_count);
  for (uint32_t i = 0; i < a->block_count; ++i) {
    const accx_command_t* const* left = accrt_bundle_block_commands(a, i);
    const accx_command_t* const* right = accrt_bundle_block_commands(b, i);
    for (uint32_t k = 0; k < a->blocks[i].command_count; ++k)
      assert_memory_equal(left[k], right[k], left[k]->size_bytes);
  }
}

static void old_tables_are_those_of_now(void** state) {
  (void)state;
  static const char* const names[] = {FOLDER "0.2/everything.accx"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    bytes_t old = read_file(names[i]);
    bytes_t now = written_now(&old);
    accrt_bundle_t* left = must_open(&old, names[i]);
    accrt_bundle_t* right = must_open(&now, names[i]);
    assert_int_equal(accrt_bundle_tables(right)->header.container.minor, 3);
    expect_same_tables(accrt_bundle_tables(left), accrt_bundle_tables(right));
    accrt_bundle_release(left);
    accrt_bundle_release(right);
    free(old.data);
    free(now.data);
  }
}

/* ---- Reflection of what 0.3 brought ---- */

/* A function that takes an index, with one that there is, one that there is not, and no bundle. */
#define CHECK_INDEX_OF(type, INIT, call, count)                                                    \
  do {                                                                                             \
    type info = INIT;                                                                              \
    uint32_t index = 0;                                                                            \
    accrt_bundle_t* of = bundle;                                                                   \
    assert_int_equal(call, ACCRT_OK);                                                              \
    index = (count);                                                                               \
    assert_int_equal(call, ACCRT_ERROR_OUT_OF_RANGE);                                              \
    of = NULL;                                                                                     \
    assert_int_equal(call, ACCRT_ERROR_INVALID_ARGUMENT);                                          \
  } while (0)

static void reflection(void** state) {
  (void)state;
  accrt_bundle_t* bundle;
  assert_int_equal(accrt_bundle_open_path(instance, FOLDER "0.3/everything.accx", NULL, &bundle),
                   ACCRT_OK);
  accrt_bundle_info_t all = ACCRT_BUNDLE_INFO_INIT;
  assert_int_equal(accrt_bundle_info(bundle, &all), ACCRT_OK);
  CHECK_INDEX_OF(accrt_file_info_t, ACCRT_FILE_INFO_INIT, accrt_bundle_file(of, index, &info),
                 all.file_count);
  CHECK_INDEX_OF(accrt_shard_info_t, ACCRT_SHARD_INFO_INIT, accrt_bundle_shard(of, index, &info),
                 all.shard_count);
  CHECK_INDEX_OF(accrt_adapter_info_t, ACCRT_ADAPTER_INFO_INIT,
                 accrt_bundle_adapter(of, index, &info), all.adapter_count);
  CHECK_INDEX_OF(accrt_asset_info_t, ACCRT_ASSET_INFO_INIT, accrt_bundle_asset(of, index, &info),
                 all.asset_count);
  CHECK_INDEX_OF(accrt_location_info_t, ACCRT_LOCATION_INFO_INIT,
                 accrt_bundle_location(of, index, &info), all.location_count);
  CHECK_INDEX_OF(accrt_component_info_t, ACCRT_COMPONENT_INFO_INIT,
                 accrt_bundle_component(of, index, 0, &info), all.constant_count);
  CHECK_INDEX_OF(accrt_component_info_t, ACCRT_COMPONENT_INFO_INIT,
                 accrt_bundle_component(of, 0, index, &info), 1);
  const void* data;
  uint64_t size;
  CHECK_INDEX_OF(accrt_component_info_t, ACCRT_COMPONENT_INFO_INIT,
                 ((void)info, accrt_bundle_component_data(of, index, 0, &data, &size)),
                 all.constant_count);
  assert_int_equal(accrt_bundle_component_data(bundle, 0, 9, &data, &size),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_component_data(bundle, 0, 0, NULL, &size),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_component_data(bundle, 0, 0, &data, NULL),
                   ACCRT_ERROR_INVALID_ARGUMENT);
  uint32_t found;
  assert_int_equal(accrt_bundle_find_asset(bundle, "tokenizer.jsn", &found), ACCRT_ERROR_NOT_FOUND);
  assert_non_null(strstr(accrt_error_current()->message, "tokenizer.json"));
  assert_int_equal(accrt_bundle_find_asset(NULL, "a", &found), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_find_asset(bundle, NULL, &found), ACCRT_ERROR_INVALID_ARGUMENT);
  assert_int_equal(accrt_bundle_find_asset(bundle, "a", NULL), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_bundle_release(bundle);
}

/* Bytes of sections are those of the file, whether they were copied at open or not. */
static void sections_are_read(void** state) {
  (void)state;
  bytes_t file = read_file(FOLDER "0.3/everything.accx");
  accrt_bundle_t* bundle = must_open(&file, "0.3/everything.accx");
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
  for (uint32_t i = 0; i < tables->section_count; ++i) {
    const accx_section_t* section = &tables->sections[i];
    unsigned char* bytes = must_alloc((size_t)section->size_bytes);
    assert_int_equal(accrt_bundle_section_read(bundle, i, 0, bytes, section->size_bytes), ACCRT_OK);
    assert_memory_equal(bytes, file.data + section->offset, section->size_bytes);
    assert_int_equal(accrt_bundle_section_read(bundle, i, 1, bytes, section->size_bytes),
                     ACCRT_ERROR_OUT_OF_RANGE);
    assert_int_equal(accrt_bundle_section_read(bundle, i, UINT64_MAX, bytes, 2),
                     ACCRT_ERROR_OUT_OF_RANGE);
    assert_int_equal(accrt_bundle_section_read(bundle, i, 0, NULL, 1),
                     ACCRT_ERROR_INVALID_ARGUMENT);
    assert_int_equal(accrt_bundle_section_read(bundle, i, 0, NULL, 0), ACCRT_OK);
    free(bytes);
  }
  assert_int_equal(accrt_bundle_section_read(bundle, tables->section_count, 0, NULL, 0),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_section_read(NULL, 0, 0, NULL, 0), ACCRT_ERROR_INVALID_ARGUMENT);
  accrt_bundle_release(bundle);
  free(file.data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(manifest),
      cmocka_unit_test(old_tables_are_those_of_now),
      cmocka_unit_test(reflection),
      cmocka_unit_test(sections_are_read),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
