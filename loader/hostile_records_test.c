/* loader/hostile_records_test.c - bad records of what came with container 0.3: every rule from 114
 * on provoked in a bundle that uses all of it, older forms widened, newer ones refused.
 *
 * Runs from the root of the source tree (tests/golden).
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "loader/hostile_support.h"
#include "format/layout.h"
#include "loader/upgrade.h"

#define GOLDEN "tests/golden/0.2/everything.accx"

/* Indices in the golden bundle. */
enum { CONSTANT_EMPTY, CONSTANT_NIBBLES, CONSTANT_PACKED, CONSTANT_TABLE, CONSTANT_WEIGHT };

static accrt_instance_t* instance;
static bytes_t golden;

/* ---- A bundle that uses everything ---- */

static uint32_t nth_string(parts_t* parts, uint32_t n) {
  const part_t* part = find_part(parts, ACCX_SECTION_STRINGS);
  uint32_t at = 0;
  while (n-- > 0)
    at += (uint32_t)strlen((const char*)part->bytes + at) + 1;
  assert_true(at < part->size_bytes);
  return at;
}

static void* add_records(parts_t* parts, uint32_t type, uint32_t count) {
  const accx_section_kind_t* kind = accx_section_kind(type);
  return add_part(parts, type, kind->required ? ACCX_SECTION_FLAG_REQUIRED : 0, kind->name,
                  kind->record_bytes, (size_t)count * kind->record_bytes)
      ->bytes;
}

/* Constants in the newest form. */
static void widen_constants(parts_t* parts) {
  part_t* part = find_part(parts, ACCX_SECTION_CONSTANTS);
  const accx_section_kind_t* kind = accx_section_kind(ACCX_SECTION_CONSTANTS);
  const uint32_t count = part->section.record_count;
  unsigned char* wide = must_alloc((size_t)count * kind->record_bytes);
  accx_form_widen(kind, part->bytes, count, part->section.record_bytes, wide);
  free(part->bytes);
  part->bytes = wide;
  part->size_bytes = (size_t)count * kind->record_bytes;
  part->section.record_bytes = kind->record_bytes;
}

static void add_binding(parts_t* parts) {
  accx_file_t* files = add_records(parts, ACCX_SECTION_FILES, 2);
  for (uint32_t i = 0; i < 2; ++i)
    files[i] = (accx_file_t){.name = nth_string(parts, i + 1), .kind = ACCX_FILE_SAFETENSORS};
  accx_constant_t* empty = record_of(parts, ACCX_SECTION_CONSTANTS, sizeof *empty, CONSTANT_EMPTY);
  empty->source = ACCX_CONSTANT_EXTERNAL;
  empty->file = 1;
  empty->tensor = nth_string(parts, 3);
  empty->digest.bytes[0] = 1;
}

/* The first constant replicated, the last one split: all but its last row once, the last one in
 * both of two ranks. */
static void add_shards(parts_t* parts) {
  const accx_constant_t* weight =
      record_of(parts, ACCX_SECTION_CONSTANTS, sizeof *weight, CONSTANT_WEIGHT);
  const int64_t rows = weight->shape[0];
  assert_true(rows >= 2);
  accx_shard_t* shards = add_records(parts, ACCX_SECTION_SHARDS, 2);
  shards[0] = (accx_shard_t){.constant = CONSTANT_EMPTY, .degree = 2};
  shards[1] = (accx_shard_t){.constant = CONSTANT_WEIGHT,
                             .kind = ACCX_SHARD_SPLIT,
                             .degree = 2,
                             .extent = 2 * (rows - 1) + 1,
                             .segment_count = 2};
  accx_segment_t* segments = add_records(parts, ACCX_SECTION_SEGMENTS, 2);
  segments[0] = (accx_segment_t){0, 2 * (rows - 1), 1, 0};
  segments[1] = (accx_segment_t){2 * (rows - 1), 2 * (rows - 1) + 1, 2, 0};
}

static void add_adapters(parts_t* parts) {
  const part_t* part = find_part(parts, ACCX_SECTION_ARGUMENTS);
  uint32_t optional = 0;
  for (uint32_t i = 0; i < part->section.record_count; ++i) {
    const accx_argument_t* argument = record_of(parts, ACCX_SECTION_ARGUMENTS, sizeof *argument, i);
    if ((argument->flags & ACCX_ARGUMENT_FLAG_OPTIONAL) != 0)
      optional = argument->name;
  }
  assert_int_not_equal(optional, 0);
  accx_adapter_t* adapters = add_records(parts, ACCX_SECTION_ADAPTERS, 2);
  for (uint32_t i = 0; i < 2; ++i)
    adapters[i] = (accx_adapter_t){nth_string(parts, i + 1), optional, ACCX_ADAPTER_SCALED * i, 0};
}

static void add_extras(parts_t* parts) {
  accx_asset_t* assets = add_records(parts, ACCX_SECTION_ASSETS, 2);
  assets[0] = (accx_asset_t){nth_string(parts, 1), nth_string(parts, 2), 0, 5, 0};
  assets[1] = (accx_asset_t){nth_string(parts, 3), 0, 8, 3, 0};
  part_t* data = add_part(parts, ACCX_SECTION_ASSET_DATA, 0, "asset_data", 0, 11);
  memcpy(data->bytes, "hello\0\0\0abc", 11);
  accx_location_t* locations = add_records(parts, ACCX_SECTION_LOCATIONS, 2);
  locations[0] = (accx_location_t){nth_string(parts, 1), 7, 1, nth_string(parts, 4)};
  locations[1] = (accx_location_t){nth_string(parts, 1), 7, 2, nth_string(parts, 3)};
  accx_command_t* command = (accx_command_t*)(void*)find_part(parts, ACCX_SECTION_COMMANDS)->bytes;
  command->location = 1;
}

static void add_trust(parts_t* parts) {
  accx_tree_t* tree = add_records(parts, ACCX_SECTION_TREE, 1);
  tree->algorithm = ACCX_TREE_SHA256;
  tree->chunk_log2 = ACCX_TREE_CHUNK_LOG2;
  (void)add_records(parts, ACCX_SECTION_LEAVES,
                    find_part(parts, ACCX_SECTION_CHUNK_DIGESTS)->section.record_count);
  accx_signature_t* signatures = add_records(parts, ACCX_SECTION_SIGNATURES, 3);
  for (uint32_t i = 0; i < 3; ++i) {
    signatures[i].scope = i < 2 ? ACCX_SCOPE_CODE : ACCX_SCOPE_WEIGHTS;
    signatures[i].algorithm = ACCX_SIGNATURE_ED25519;
    signatures[i].key[0] = (uint8_t)(i % 2);
  }
}

static parts_t everything(void) {
  parts_t parts = take_apart(&golden);
  parts.header.container.minor = 3;
  widen_constants(&parts);
  add_binding(&parts);
  add_shards(&parts);
  add_adapters(&parts);
  add_extras(&parts);
  add_trust(&parts);
  return parts;
}

/* ---- Opening ---- */

static accrt_status_t open_parts(parts_t* parts, bytes_t* file, accrt_bundle_t** out_bundle) {
  *file = put_together(parts);
  accrt_clear_error();
  return accrt_bundle_open_memory(instance, file->data, file->size, NULL, NULL, NULL, out_bundle);
}

static void expect(parts_t* parts, accrt_status_t status, uint32_t rule, const char* what) {
  bytes_t file;
  accrt_bundle_t* bundle;
  const accrt_status_t found = open_parts(parts, &file, &bundle);
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  if (found != status || (rule != 0 && rule_of_record() != rule)) {
    fail_msg("%s: expected rule %u, got %s: %s", what, rule, accrt_status_name(found),
             error.message);
  }
  if (found == ACCRT_OK) {
    use_bundle(bundle);
    accrt_bundle_release(bundle);
  }
  free(file.data);
}

static int setup(void** state) {
  (void)state;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  if (accrt_instance_create(&options, &instance) != ACCRT_OK)
    return 1;
  golden = read_file(GOLDEN);
  return 0;
}

static int teardown(void** state) {
  (void)state;
  free(golden.data);
  accrt_instance_release(instance);
  return 0;
}

/* ---- Tests ---- */

static void everything_opens(void** state) {
  (void)state;
  parts_t parts = everything();
  expect(&parts, ACCRT_OK, 0, "everything");
  free_parts(&parts);
}

/* An old file's constants equal those in the newest form. */
static void check_widened(const bytes_t* golden_file) {
  parts_t old = take_apart(golden_file), wide = take_apart(golden_file);
  widen_constants(&wide);
  bytes_t file;
  accrt_bundle_t* bundle;
  assert_int_equal(open_parts(&old, &file, &bundle), ACCRT_OK);
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
  const part_t* expected = find_part(&wide, ACCX_SECTION_CONSTANTS);
  assert_int_equal(tables->constant_count * sizeof(accx_constant_t), expected->size_bytes);
  assert_memory_equal(tables->constants, expected->bytes, expected->size_bytes);
  assert_int_equal(tables->constants[0].file, ACCX_NONE);
  /* A signature covers the bytes in the file. */
  for (uint32_t i = 0; i < tables->section_count; ++i) {
    const unsigned char* bytes = accx_section_bytes(bundle, i);
    if (bytes != NULL)
      assert_memory_equal(bytes, old.parts[i].bytes, old.parts[i].size_bytes);
  }
  accrt_bundle_release(bundle);
  free(file.data);
  free_parts(&old);
  free_parts(&wide);
}

static void older_forms_are_widened(void** state) {
  (void)state;
  bytes_t first = read_file("tests/golden/0.1/everything.accx");
  check_widened(&first);
  check_widened(&golden);
  free(first.data);
}

static void newer_forms_are_refused(void** state) {
  (void)state;
  parts_t parts = everything();
  part_t* part = find_part(&parts, ACCX_SECTION_CONSTANTS);
  const uint32_t count = part->section.record_count;
  part->section.record_bytes += 8;
  resize_part(part, count * (size_t)part->section.record_bytes);
  expect(&parts, ACCRT_ERROR_INVALID_FORMAT, ACCX_RULE_SECTION_RECORDS, "a form that nothing has");
  parts.header.container.minor = 4;
  expect(&parts, ACCRT_ERROR_VERSION_MISMATCH, ACCX_RULE_SECTION_RECORDS, "a form of 0.4");
  free_parts(&parts);
}

static void majors(void** state) {
  (void)state;
  assert_null(accx_upgrade_of_major(ACCX_CONTAINER_MAJOR));
  assert_null(accx_upgrade_of_major(ACCX_CONTAINER_MAJOR + 1));
  parts_t parts = everything();
  parts.header.container.major = 1;
  expect(&parts, ACCRT_ERROR_VERSION_MISMATCH, ACCX_RULE_VERSION, "the next major");
  free_parts(&parts);
}

/* What accrt_query_caps says is what the verifier takes. */
static void caps_are_what_is_read(void** state) {
  (void)state;
  accrt_caps_t caps = ACCRT_CAPS_INIT;
  assert_int_equal(accrt_query_caps(&caps), ACCRT_OK);
  for (uint32_t i = 0; i < 64; ++i) {
    assert_int_equal(caps.section_mask >> i & 1, accx_section_kind(i) != NULL);
    assert_int_equal(caps.encoding_mask >> i & 1, accx_layout_find(i) != NULL);
  }
}

#define RECORD(type, section, index)                                                               \
  ((type*)record_of(parts, ACCX_SECTION_##section, sizeof(type), (index)))
#define EMPTY_CONSTANT RECORD(accx_constant_t, CONSTANTS, CONSTANT_EMPTY)

/* X(rule, name, change of `parts`) */
#define MUTATION_LIST(X)                                                                           \
  X(RECORD_FORM, form_not_needed, EMPTY_CONSTANT->source = ACCX_CONSTANT_INLINE;                   \
    EMPTY_CONSTANT->file = ACCX_NONE; EMPTY_CONSTANT->tensor = 0;                                  \
    EMPTY_CONSTANT->digest.bytes[0] = 0)                                                           \
  X(SECTION_PAIRS, segments_alone, remove_part(parts, ACCX_SECTION_SHARDS))                        \
  X(SECTION_PAIRS, signatures_alone, remove_part(parts, ACCX_SECTION_LEAVES);                      \
    remove_part(parts, ACCX_SECTION_TREE))                                                         \
  X(SECTION_PAIRS, leaves_alone, remove_part(parts, ACCX_SECTION_SIGNATURES);                      \
    remove_part(parts, ACCX_SECTION_TREE))                                                         \
  X(SECTION_PAIRS, leaves_short, resize_part(find_part(parts, ACCX_SECTION_LEAVES), 64))           \
  X(SECTION_PAIRS, two_trees, resize_part(find_part(parts, ACCX_SECTION_TREE), 160))               \
  X(SECTION_PAIRS, asset_data_alone, remove_part(parts, ACCX_SECTION_ASSETS))                      \
  X(SECTION_PAIRS, encryption_alone, add_records(parts, ACCX_SECTION_ENCRYPTION, 1))               \
  X(SECTION_PAIRS, tags_alone, add_records(parts, ACCX_SECTION_TAGS, 1))                           \
  X(NAME_ORDER, file_order, RECORD(accx_file_t, FILES, 1)->name = nth_string(parts, 1))            \
  X(NAME, file_without_name, RECORD(accx_file_t, FILES, 0)->name = 0)                              \
  X(FILE, file_kind, RECORD(accx_file_t, FILES, 0)->kind = 4)                                      \
  X(FILE, file_kind_0, RECORD(accx_file_t, FILES, 0)->kind = 0)                                    \
  X(FILE, file_flags, RECORD(accx_file_t, FILES, 0)->flags = 1)                                    \
  X(FILE, file_reserved, RECORD(accx_file_t, FILES, 0)->reserved = 1)                              \
  X(EXTERNAL, external_file, EMPTY_CONSTANT->file = 2)                                             \
  X(EXTERNAL, external_flags, EMPTY_CONSTANT->binding_flags = 2)                                   \
  X(EXTERNAL, external_both, EMPTY_CONSTANT->binding_flags = ACCX_BINDING_BY_NAME)                 \
  X(EXTERNAL, external_neither, EMPTY_CONSTANT->digest.bytes[0] = 0)                               \
  X(EXTERNAL, external_reserved, EMPTY_CONSTANT->reserved = 1)                                     \
  X(STRING_REFERENCE, external_tensor, EMPTY_CONSTANT->tensor = 0xFFFFFFFF)                        \
  X(EXTERNAL, inline_file, RECORD(accx_constant_t, CONSTANTS, CONSTANT_TABLE)->file = 0)           \
  X(EXTERNAL, inline_tensor, RECORD(accx_constant_t, CONSTANTS, CONSTANT_TABLE)->tensor = 1)       \
  X(EXTERNAL, inline_flags, RECORD(accx_constant_t, CONSTANTS, CONSTANT_TABLE)->binding_flags = 1) \
  X(EXTERNAL, inline_digest,                                                                       \
    RECORD(accx_constant_t, CONSTANTS, CONSTANT_TABLE)->digest.bytes[15] = 1)                      \
  X(COMPONENT_PLACE, external_place,                                                               \
    RECORD(accx_component_t, COMPONENTS, CONSTANT_EMPTY)->offset_bytes = 256)                      \
  X(SHARD, shard_constant, RECORD(accx_shard_t, SHARDS, 1)->constant = 99)                         \
  X(SHARD, shard_order, RECORD(accx_shard_t, SHARDS, 1)->constant = 0)                             \
  X(SHARD, shard_kind, RECORD(accx_shard_t, SHARDS, 1)->kind = 2)                                  \
  X(SHARD, shard_axis, RECORD(accx_shard_t, SHARDS, 1)->axis = 8)                                  \
  X(SHARD, shard_degree, RECORD(accx_shard_t, SHARDS, 1)->degree = 4)                              \
  X(SHARD, shard_degree_0, RECORD(accx_shard_t, SHARDS, 0)->degree = 0)                            \
  X(SHARD, shard_extent, RECORD(accx_shard_t, SHARDS, 1)->extent = -1)                             \
  X(SHARD, shard_replicated_extent, RECORD(accx_shard_t, SHARDS, 0)->extent = 1)                   \
  X(SHARD, shard_no_segments, RECORD(accx_shard_t, SHARDS, 1)->segment_count = 0)                  \
  X(SHARD, shard_missing, RECORD(accx_shard_t, SHARDS, 0)->constant = CONSTANT_NIBBLES)            \
  X(SEGMENT, segment_first, RECORD(accx_shard_t, SHARDS, 1)->segment_first = 1)                    \
  X(SEGMENT, segment_count, RECORD(accx_shard_t, SHARDS, 1)->segment_count = 0xFFFFFFFF)           \
  X(SEGMENT, segment_unused, RECORD(accx_shard_t, SHARDS, 1)->segment_count = 1;                   \
    RECORD(accx_shard_t, SHARDS, 1)->extent = RECORD(accx_segment_t, SEGMENTS, 0)->end)            \
  X(SEGMENT, segment_extent, ++RECORD(accx_shard_t, SHARDS, 1)->extent)                            \
  X(SEGMENT, segment_begin, RECORD(accx_segment_t, SEGMENTS, 0)->begin = 1)                        \
  X(SEGMENT, segment_overlap, --RECORD(accx_segment_t, SEGMENTS, 1)->begin)                        \
  X(SEGMENT, segment_backwards, RECORD(accx_segment_t, SEGMENTS, 0)->end = INT64_MIN)              \
  X(SEGMENT, segment_far, RECORD(accx_segment_t, SEGMENTS, 1)->end = INT64_MAX)                    \
  X(SEGMENT, segment_replicas, RECORD(accx_segment_t, SEGMENTS, 1)->replicas = 0)                  \
  X(SEGMENT, segment_replicas_3, RECORD(accx_segment_t, SEGMENTS, 1)->replicas = 3)                \
  X(SEGMENT, segment_uneven, RECORD(accx_segment_t, SEGMENTS, 1)->replicas = 1)                    \
  X(SEGMENT, segment_local, RECORD(accx_segment_t, SEGMENTS, 0)->replicas = 2)                     \
  X(SEGMENT, segment_reserved, RECORD(accx_segment_t, SEGMENTS, 1)->reserved = 1)                  \
  X(NAME_ORDER, adapter_order, RECORD(accx_adapter_t, ADAPTERS, 1)->slot = nth_string(parts, 1))   \
  X(NAME, adapter_no_input, RECORD(accx_adapter_t, ADAPTERS, 1)->input = 0)                        \
  X(ADAPTER, adapter_input, RECORD(accx_adapter_t, ADAPTERS, 1)->input = nth_string(parts, 1))     \
  X(ADAPTER, adapter_plain_input,                                                                  \
    RECORD(accx_adapter_t, ADAPTERS, 1)->input = RECORD(accx_argument_t, ARGUMENTS, 0)->name)      \
  X(ADAPTER, adapter_flags, RECORD(accx_adapter_t, ADAPTERS, 1)->flags = 2)                        \
  X(ADAPTER, adapter_reserved, RECORD(accx_adapter_t, ADAPTERS, 1)->reserved = 1)                  \
  X(TREE, tree_algorithm, RECORD(accx_tree_t, TREE, 0)->algorithm = 2)                             \
  X(TREE, tree_chunk, RECORD(accx_tree_t, TREE, 0)->chunk_log2 = 21)                               \
  X(TREE, tree_reserved, RECORD(accx_tree_t, TREE, 0)->reserved = 1)                               \
  X(TREE, tree_without_leaves, remove_part(parts, ACCX_SECTION_LEAVES))                            \
  X(SIGNATURE, signature_scope, RECORD(accx_signature_t, SIGNATURES, 2)->scope = 3)                \
  X(SIGNATURE, signature_algorithm, RECORD(accx_signature_t, SIGNATURES, 2)->algorithm = 2)        \
  X(SIGNATURE, signature_reserved, RECORD(accx_signature_t, SIGNATURES, 2)->reserved = 1)          \
  X(SIGNATURE, signature_twice, RECORD(accx_signature_t, SIGNATURES, 1)->key[0] = 0)               \
  X(SIGNATURE, signature_order,                                                                    \
    RECORD(accx_signature_t, SIGNATURES, 0)->scope = ACCX_SCOPE_WEIGHTS)                           \
  X(ENCRYPTION, encryption_without_feature, add_records(parts, ACCX_SECTION_TAGS, 1);              \
    add_records(parts, ACCX_SECTION_ENCRYPTION, 1))                                                \
  X(NAME_ORDER, asset_order, RECORD(accx_asset_t, ASSETS, 1)->name = nth_string(parts, 1))         \
  X(STRING_REFERENCE, asset_type, RECORD(accx_asset_t, ASSETS, 1)->media_type = 0xFFFFFFFF)        \
  X(ASSET, asset_reserved, RECORD(accx_asset_t, ASSETS, 1)->reserved = 1)                          \
  X(ASSET_PLACE, asset_place, RECORD(accx_asset_t, ASSETS, 1)->offset_bytes = 5)                   \
  X(ASSET_PLACE, asset_size, RECORD(accx_asset_t, ASSETS, 1)->size_bytes = 4)                      \
  X(ASSET_PLACE, asset_huge, RECORD(accx_asset_t, ASSETS, 1)->size_bytes = UINT64_MAX)             \
  X(ASSET_PLACE, asset_short, RECORD(accx_asset_t, ASSETS, 1)->size_bytes = 2)                     \
  X(ASSET_PLACE, asset_gap, find_part(parts, ACCX_SECTION_ASSET_DATA)->bytes[6] = 1)               \
  X(ASSET_PLACE, asset_no_data, remove_part(parts, ACCX_SECTION_ASSET_DATA))                       \
  X(LOCATION, location_order, RECORD(accx_location_t, LOCATIONS, 0)->line = 8)                     \
  X(LOCATION, location_twice,                                                                      \
    *RECORD(accx_location_t, LOCATIONS, 1) = *RECORD(accx_location_t, LOCATIONS, 0))               \
  X(STRING_REFERENCE, location_file, RECORD(accx_location_t, LOCATIONS, 1)->file = 0xFFFFFFFF)     \
  X(COMMAND_FIELDS, command_location,                                                              \
    ((accx_command_t*)(void*)find_part(parts, ACCX_SECTION_COMMANDS)->bytes)->location = 2)        \
  X(MINIMUM, minimum, parts->header.container.minor = 2)                                           \
  X(ENCRYPTION, encrypted_data, parts->header.required_features = ACCX_FEATURE_ENCRYPTED_DATA)

#define MUTATION(rule, name, ...)                                                                  \
  static void mutate_##name(parts_t* parts) {                                                      \
    __VA_ARGS__;                                                                                   \
  }
MUTATION_LIST(MUTATION)

#define CASE(rule, name, ...) {ACCX_RULE_##rule, mutate_##name, #name},

static void expect_mutation(parts_t parts, const mutation_case_t* test) {
  test->mutate(&parts);
  expect(&parts, accx_rule_status(test->rule), test->rule, test->name);
  free_parts(&parts);
}

static void mutations(void** state) {
  (void)state;
  static const mutation_case_t cases[] = {MUTATION_LIST(CASE)};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    expect_mutation(everything(), &cases[i]);
}

/* ---- Quantized constants, in the golden bundle of 0.3 ---- */

/* Constants and components by their place. */
enum { BLOCKS, EMPTY, INT4, INT4_SCALES, NIBBLES, NVFP4, PACKED, TABLE, WEIGHT, WK, WQ, WV };
enum { BLOCKS_DATA, EMPTY_DATA, INT4_DATA, INT4_SCALE, INT4_INDEX, SCALES_DATA, NIBBLES_DATA };
enum { NVFP4_DATA = NIBBLES_DATA + 1, NVFP4_SCALE, NVFP4_GLOBAL };

#define CONSTANT(which) RECORD(accx_constant_t, CONSTANTS, which)
#define COMPONENT(which) RECORD(accx_component_t, COMPONENTS, which)
/* wv's columns, in groups of 32, in parts of 48 and 16. */
static void cut_group_of_wv(parts_t* parts) {
  accx_shard_t* shards = RECORD(accx_shard_t, SHARDS, 0);
  accx_segment_t* segments = RECORD(accx_segment_t, SEGMENTS, 0);
  shards[1] = (accx_shard_t){.constant = WQ, .degree = 4};
  shards[2].segment_first = 0;
  shards[2].segment_count = 2;
  segments[0] = (accx_segment_t){0, 192, 1, 0};
  segments[1] = (accx_segment_t){192, 256, 1, 0};
  resize_part(find_part(parts, ACCX_SECTION_SEGMENTS), 2 * sizeof *segments);
}

#define QUANTIZED_LIST(X)                                                                          \
  X(TYPE, unknown_layout, CONSTANT(BLOCKS)->encoding = 12)                                         \
  X(LAYOUT_TYPE, group_where_none_is, CONSTANT(BLOCKS)->group_elements = 32)                       \
  X(LAYOUT_TYPE, no_group, CONSTANT(INT4)->group_elements = 0)                                     \
  X(LAYOUT_TYPE, group_of_7, CONSTANT(INT4)->group_elements = 7)                                   \
  X(LAYOUT_TYPE, huge_group, CONSTANT(INT4)->group_elements = (1u << 24) + 8)                      \
  X(LAYOUT_TYPE, quantized_integers, CONSTANT(BLOCKS)->dtype = ACCRT_DTYPE_I32)                    \
  X(LAYOUT_TYPE, scalar_in_blocks, CONSTANT(BLOCKS)->rank = 0;                                     \
    CONSTANT(BLOCKS)->shape[0] = CONSTANT(BLOCKS)->shape[1] = 0)                                   \
  X(LAYOUT_SHAPE, columns_not_in_blocks, CONSTANT(BLOCKS)->shape[1] = 65)                          \
  X(LAYOUT_SHAPE, odd_nibbles, CONSTANT(INT4)->shape[1] = 63)                                      \
  X(COMPONENT_SIZE, more_rows, CONSTANT(BLOCKS)->shape[0] = 3)                                     \
  X(COMPONENT_SIZE, other_group, CONSTANT(INT4)->group_elements = 64)                              \
  X(COMPONENT_SIZE, short_scales, COMPONENT(INT4_SCALE)->size_bytes = 15)                          \
  X(COMPONENT_SIZE, long_external, COMPONENT(NVFP4_GLOBAL)->size_bytes = 8)                        \
  X(COMPONENTS, missing_component, CONSTANT(INT4)->component_count = 1)                            \
  X(COMPONENTS, borrowed_component, CONSTANT(BLOCKS)->component_count = 2)                         \
  X(COMPONENTS, same_role_twice, COMPONENT(INT4_INDEX)->role = ACCX_ROLE_SCALES)                   \
  X(COMPONENTS, roles_out_of_order, COMPONENT(NVFP4_SCALE)->role = ACCX_ROLE_GLOBAL_SCALE;         \
    COMPONENT(NVFP4_GLOBAL)->role = ACCX_ROLE_SCALES)                                              \
  X(COMPONENTS, role_of_another_layout, COMPONENT(INT4_INDEX)->role = ACCX_ROLE_GLOBAL_SCALE)      \
  X(COMPONENTS, role_of_none, COMPONENT(INT4_INDEX)->role = 0xFFFFFFFF)                            \
  X(COMPONENTS, scales_of_integers, COMPONENT(INT4_SCALE)->dtype = ACCRT_DTYPE_I32)                \
  X(COMPONENTS, unknown_dtype, COMPONENT(INT4_DATA)->dtype = 99)                                   \
  X(COMPONENTS, count_overflows, CONSTANT(INT4)->component_count = 0xFFFFFFFF)                     \
  X(COMPONENT_PLACE, component_elsewhere, COMPONENT(INT4_SCALE)->offset_bytes += 256)              \
  X(SEGMENT, cut_group, cut_group_of_wv(parts))                                                    \
  X(COMPONENTS, prepared_in_parts, CONSTANT(INT4)->source = ACCX_CONSTANT_PREPARED)

QUANTIZED_LIST(MUTATION)

static void quantized(void** state) {
  (void)state;
  bytes_t file = read_file("tests/golden/0.3/everything.accx");
  static const mutation_case_t cases[] = {QUANTIZED_LIST(CASE)};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    expect_mutation(take_apart(&file), &cases[i]);
  free(file.data);
}

/* Names that would lead out of the bundle's folder, as the metadata's last string, so that no other
 * string moves. */
static void bare_names(void** state) {
  (void)state;
  static const char* const names[] = {"~a/b", "~/", "~a\\b", "~a\nb", "~\x7F"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    parts_t parts = everything();
    part_t* strings = find_part(&parts, ACCX_SECTION_STRINGS);
    const size_t before = strings->size_bytes;
    resize_part(strings, before + strlen(names[i]) + 1);
    memcpy(strings->bytes + before, names[i], strlen(names[i]) + 1);
    ++strings->section.record_count;
    accx_file_t* file = record_of(&parts, ACCX_SECTION_FILES, sizeof *file, 1);
    file->name = (uint32_t)before;
    expect(&parts, ACCRT_ERROR_INVALID_FORMAT, ACCX_RULE_FILE, names[i]);
    free_parts(&parts);
  }
}

/* Rules that open does not check. loader/trust_test.c and encryption_test.c provoke those. */
static bool is_of_trust_test(uint32_t rule) {
  return (rule >= ACCX_RULE_CODE_ROOT && rule <= ACCX_RULE_ENCRYPTED) ||
         rule == ACCX_RULE_ENCRYPTION_KEY || rule == ACCX_RULE_TAG;
}

/* "." and ".." are no files; "..." is one. */
static void dotted_names(void** state) {
  (void)state;
  static const struct {
    const char* name;
    accrt_status_t status;
  } cases[] = {
      {".", ACCRT_ERROR_INVALID_FORMAT}, {"..", ACCRT_ERROR_INVALID_FORMAT}, {"...", ACCRT_OK}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    parts_t parts = {.header = {.section_record_bytes = sizeof(accx_section_t),
                                .section_table_offset = sizeof(accx_header_t)}};
    memcpy(parts.header.magic, ACCX_MAGIC, 8);
    parts.header.container = (accx_version_t){0, 3};
    parts.header.commands = parts.header.kernel_abi = parts.header.layouts = (accx_version_t){0, 1};
    const size_t length = strlen(cases[i].name) + 1;
    part_t* strings = add_part(&parts, ACCX_SECTION_STRINGS, 1, "strings", 0, 1 + length);
    strings->section.record_count = 2;
    memcpy(strings->bytes + 1, cases[i].name, length);
    accx_file_t* file = add_records(&parts, ACCX_SECTION_FILES, 1);
    *file = (accx_file_t){.name = 1, .kind = ACCX_FILE_GGUF};
    expect(&parts, cases[i].status, cases[i].status == ACCRT_OK ? 0 : ACCX_RULE_FILE,
           cases[i].name);
    free_parts(&parts);
  }
}

/* ---- Encryption, in the encrypted golden bundle ---- */

#define ENCRYPTION RECORD(accx_encryption_t, ENCRYPTION, 0)
#define ENCRYPTED_LIST(X)                                                                          \
  X(ENCRYPTION, unknown_cipher, ENCRYPTION->algorithm = 3)                                         \
  X(ENCRYPTION, encryption_reserved, ENCRYPTION->reserved = 1)                                     \
  X(ENCRYPTION, encryption_reserved_2, ENCRYPTION->reserved_2 = 1)                                 \
  X(ENCRYPTION, feature_not_told, parts->header.required_features = 0)                             \
  X(ENCRYPTION, feature_alone, remove_part(parts, ACCX_SECTION_ENCRYPTION);                        \
    remove_part(parts, ACCX_SECTION_TAGS))                                                         \
  X(SECTION_PAIRS, tag_missing, resize_part(find_part(parts, ACCX_SECTION_TAGS), 0);               \
    resize_part(find_part(parts, ACCX_SECTION_TAGS), 32))                                          \
  X(SECTION_PAIRS, two_ciphers, resize_part(find_part(parts, ACCX_SECTION_ENCRYPTION), 128))

ENCRYPTED_LIST(MUTATION)

static void encrypted(void** state) {
  (void)state;
  bytes_t file = read_file("tests/golden/0.3/encrypted.accx");
  static const mutation_case_t cases[] = {ENCRYPTED_LIST(CASE)};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    expect_mutation(take_apart(&file), &cases[i]);
  free(file.data);
}

static void every_rule_was_provoked(void** state) {
  (void)state;
#define CHECK(name, number, status, text)                                                          \
  if ((number) >= ACCX_RULE_RECORD_FORM && !seen_rules[number] && !is_of_trust_test(number))       \
    fail_msg("rule %d (%s) was provoked by no test", number, #name);
  ACCX_RULE_LIST(CHECK)
#undef CHECK
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(everything_opens),
      cmocka_unit_test(older_forms_are_widened),
      cmocka_unit_test(newer_forms_are_refused),
      cmocka_unit_test(majors),
      cmocka_unit_test(caps_are_what_is_read),
      cmocka_unit_test(mutations),
      cmocka_unit_test(quantized),
      cmocka_unit_test(bare_names),
      cmocka_unit_test(dotted_names),
      cmocka_unit_test(encrypted),
      cmocka_unit_test(every_rule_was_provoked),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
