/* loader/hostile_test.c - bad bundles: every rule of the verifier provoked, by single changes
 * of good bundles and by files made from nothing. */
#include "loader/hostile_test_mutations.h"

static void fields(void** state) {
  (void)state;
  for (size_t i = 0; i < sizeof field_cases / sizeof field_cases[0]; ++i) {
    const field_case_t* test = &field_cases[i];
    parts_t parts = take_apart(&golden);
    unsigned char* record = record_of(&parts, test->section, test->record_bytes, test->index);
    memcpy(record + test->offset, &test->value, test->size);
    bytes_t file = put_together(&parts);
    char what[64];
    snprintf(what, sizeof what, "field case in line %d", test->line);
    expect_rule(&file, test->rule, what);
    free(file.data);
    free_parts(&parts);
  }
}
static void mutations(void** state) {
  (void)state;
#define CASE(rule, name, code) {ACCX_RULE_##rule, mutate_##name, #name},
  static const mutation_case_t cases[] = {MUTATION_LIST(CASE)};
#undef CASE
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    expect_mutation(&cases[i]);
}

static void equal_names(void** state) {
  (void)state;
#define CASE(rule, section, type, field, from, to)                                                 \
  do {                                                                                             \
    parts_t parts = take_apart(&golden);                                                           \
    copy_field(&parts, ACCX_SECTION_##section, sizeof(type), offsetof(type, field), (from), (to)); \
    bytes_t file = put_together(&parts);                                                           \
    expect_rule(&file, ACCX_RULE_##rule, #section);                                                \
    free(file.data);                                                                               \
    free_parts(&parts);                                                                            \
  } while (0);
  SAME_NAME_LIST(CASE)
#undef CASE
}

static void several_places(void** state) {
  (void)state;
  static const mutation_case_t cases[] = {
      {ACCX_RULE_FUNCTION_ORDER, mutate_function_order, "function_order"},
      {ACCX_RULE_SYMBOL_BOUND, mutate_symbol_unbound, "symbol_unbound"},
      {ACCX_RULE_SLOT, mutate_slot_order, "slot_order"},
      {ACCX_RULE_SLOT, mutate_slot_target, "slot_target"},
      {ACCX_RULE_BLOCK_USE, mutate_block_more, "block_more"},
      {ACCX_RULE_STRING_UTF8, mutate_string_long, "string_long"},
      {ACCX_RULE_NAME, mutate_name_long, "name_long"},
      {ACCX_RULE_STRING_TABLE, mutate_strings_end, "strings_end"},
      {ACCX_RULE_PREPARE, mutate_prepare_impure, "prepare_impure"},
      {ACCX_RULE_IMAGE_PLACE, mutate_only_code, "only_code"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    expect_mutation(&cases[i]);
}

/* ---- UTF-8 ---- */

static void utf8(void** state) {
  (void)state;
  static const char* const bad[] = {
      "~\x80",
      "~\xC0\x80",
      "~\xC1\xBF",
      "~\xC2",
      "~\xE0\x9F\xBF",
      "~\xED\xA0\x80",
      "~\xEF\xBF",
      "~\xF0\x8F\xBF\xBF",
      "~\xF4\x90\x80\x80",
      "~\xF5\x80",
      "~\xFF",
      "~\xE2\x28\xA1",
      "~\xF0\x90\x28z",
      "~\xF0\x90\x80z",
  };
  static const char* const good[] = {"~\x7F",         "~\xC2\x80",         "~\xDF\xBF",
                                     "~\xE0\xA0\x80", "~\xED\x9F\xBF",     "~\xEE\x80\x80",
                                     "~\xEF\xBF\xBF", "~\xF0\x90\x80\x80", "~\xF4\x8F\xBF\xBF"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0] + sizeof good / sizeof good[0]; ++i) {
    const size_t bad_count = sizeof bad / sizeof bad[0];
    parts_t parts = take_apart(&golden);
    append_string(&parts, i < bad_count ? bad[i] : good[i - bad_count]);
    bytes_t file = put_together(&parts);
    if (i < bad_count) {
      expect_rule(&file, ACCX_RULE_STRING_UTF8, bad[i]);
    } else {
      expect_good(&file, good[i - bad_count]);
    }
    free(file.data);
    free_parts(&parts);
  }
}

/* ---- Bundles made from nothing ---- */

/* One function per level, each with `width` commands: CALL of the previous one (calls), or a REPEAT
 * of the next block. */
static bytes_t make_levels(uint32_t levels, uint32_t width, bool calls) {
  parts_t parts = {.count = 0};
  memcpy(parts.header.magic, ACCX_MAGIC, 8);
  parts.header.container = parts.header.commands = parts.header.kernel_abi = parts.header.layouts =
      (accx_version_t){0, 1};
  parts.header.section_record_bytes = sizeof(accx_section_t);
  parts.header.section_table_offset = sizeof(accx_header_t);
  const uint32_t functions = calls ? levels : 1;
  part_t* strings = add_part(&parts, ACCX_SECTION_STRINGS, 1, "strings", 0, 1 + 4 * functions);
  strings->section.record_count = 1 + functions;
  for (uint32_t i = 0; i < functions; ++i) {
    char name[5];
    snprintf(name, sizeof name, "f%02u", i % 100);
    memcpy(strings->bytes + 1 + 4 * i, name, 4);
  }
  part_t* nodes = add_part(&parts, ACCX_SECTION_EXPRESSIONS, 1, "expressions",
                           sizeof(accx_expression_t), functions * sizeof(accx_expression_t));
  part_t* records = add_part(&parts, ACCX_SECTION_FUNCTIONS, 1, "functions",
                             sizeof(accx_function_t), functions * sizeof(accx_function_t));
  part_t* blocks = add_part(&parts, ACCX_SECTION_BLOCKS, 1, "blocks", sizeof(accx_block_t),
                            levels * sizeof(accx_block_t));
  const uint32_t command_bytes = sizeof(accx_command_t) + 8;
  part_t* commands = add_part(&parts, ACCX_SECTION_COMMANDS, 1, "commands", 0,
                              (levels - 1) * width * command_bytes);
  /* add_part moves nothing that came before: types ascend. */
  nodes = find_part(&parts, ACCX_SECTION_EXPRESSIONS);
  for (uint32_t i = 0; i < functions; ++i) {
    const accx_expression_t node = {ACCX_EXPR_CONSTANT, ACCX_NONE, ACCX_NONE, ACCX_NONE, 1};
    memcpy(nodes->bytes + i * sizeof node, &node, sizeof node);
    const accx_function_t function = {.name = 1 + 4 * i,
                                      .flags = ACCX_FUNCTION_INTERNAL,
                                      .expression_first = i,
                                      .expression_count = 1,
                                      .body = i,
                                      .transient_align = 1};
    memcpy(records->bytes + i * sizeof function, &function, sizeof function);
  }
  uint32_t at = 0;
  for (uint32_t i = 0; i < levels; ++i) {
    /* The last block of repeats, and the first function of calls, do nothing. */
    const bool empty = calls ? i == 0 : i + 1 == levels;
    const accx_block_t block = {at, empty ? 0 : width * command_bytes, empty ? 0 : width};
    memcpy(blocks->bytes + i * sizeof block, &block, sizeof block);
    for (uint32_t k = 0; k < block.command_count; ++k) {
      const accx_command_t command = {
          calls ? ACCX_COMMAND_CALL : ACCX_COMMAND_REPEAT, 1, command_bytes, 0, ACCX_NONE, 0, 0};
      const uint32_t own[2] = {calls ? i - 1 : 0, calls ? 0 : i + 1};
      memcpy(commands->bytes + at, &command, sizeof command);
      memcpy(commands->bytes + at + sizeof command, own, sizeof own);
      at += command_bytes;
    }
  }
  commands->section.record_count = (levels - 1) * width;
  if (levels == 1)
    remove_part(&parts, ACCX_SECTION_COMMANDS);
  bytes_t file = put_together(&parts);
  free_parts(&parts);
  return file;
}

static void depth_limits(void** state) {
  (void)state;
  const struct {
    uint32_t levels, width;
    bool calls;
    uint32_t rule; /* 0: good */
  } cases[] = {
      {1, 1, false, 0},
      {ACCX_MAX_BLOCK_DEPTH, 1, false, 0},
      {ACCX_MAX_BLOCK_DEPTH + 1, 1, false, ACCX_RULE_BLOCK_DEPTH},
      {60, 1, false, ACCX_RULE_BLOCK_DEPTH},
      {ACCX_MAX_CALL_DEPTH, 1, true, 0},
      {ACCX_MAX_CALL_DEPTH + 1, 1, true, ACCX_RULE_CALL_LIMITS},
      {8, 10, true, 0},
      {10, 10, true, ACCX_RULE_CALL_LIMITS},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    bytes_t file = make_levels(cases[i].levels, cases[i].width, cases[i].calls);
    char what[64];
    snprintf(what, sizeof what, "%u levels of %u (%s)", cases[i].levels, cases[i].width,
             cases[i].calls ? "calls" : "blocks");
    if (cases[i].rule == 0) {
      expect_good(&file, what);
    } else {
      expect_rule(&file, cases[i].rule, what);
    }
    free(file.data);
  }
}

/* ---- The file itself ---- */

static void container(void** state) {
  (void)state;
  bytes_t file = copy_bytes(&golden);
  accx_header_t* header = (accx_header_t*)(void*)file.data;
  const accx_header_t saved = *header;
#define EXPECT_HEADER(field, value, rule)                                                          \
  header->field = (value);                                                                         \
  redo_header_digest(&file);                                                                       \
  expect_rule(&file, ACCX_RULE_##rule, #field);                                                    \
  *header = saved
  EXPECT_HEADER(file_size_bytes, saved.file_size_bytes + 1, FILE_SIZE);
  EXPECT_HEADER(file_size_bytes, 0, FILE_SIZE);
  header->section_count = 0;
  expect_rule(&file, ACCX_RULE_SECTION_COUNT, "no sections");
  header->section_count = 65;
  expect_rule(&file, ACCX_RULE_SECTION_COUNT, "65 sections");
  header->section_count = 0xFFFFFFFF;
  expect_rule(&file, ACCX_RULE_SECTION_COUNT, "2^32 - 1 sections");
  *header = saved;
  header->optional_features = 1; /* allowed, but not what the digest covers */
  expect_rule(&file, ACCX_RULE_HEADER_DIGEST, "header digest");
  redo_header_digest(&file);
  expect_good(&file, "optional features");
  *header = saved;

  accx_section_t* section = table_entry(&file, 1);
  const accx_section_t saved_section = *section;
#define EXPECT_SECTION(field, value, rule)                                                         \
  section->field = (value);                                                                        \
  redo_header_digest(&file);                                                                       \
  expect_rule(&file, ACCX_RULE_##rule, #field);                                                    \
  *section = saved_section
  EXPECT_SECTION(offset, saved_section.offset + 8, SECTION_PLACE);
  EXPECT_SECTION(offset, 0, SECTION_PLACE);
  EXPECT_SECTION(offset, UINT64_MAX, SECTION_PLACE);
  EXPECT_SECTION(size_bytes, UINT64_MAX, SECTION_BOUNDS);
  EXPECT_SECTION(size_bytes, 0, SECTION_BOUNDS);
  EXPECT_SECTION(digest.bytes[0], (unsigned char)(saved_section.digest.bytes[0] ^ 1),
                 SECTION_DIGEST);
  section = table_entry(&file, saved.section_count - 1);
  section->digest.bytes[0] ^= 1;
  redo_header_digest(&file);
  expect_rule(&file, ACCX_RULE_SECTION_DIGEST, "digest of data");
  section->digest.bytes[0] ^= 1;
  section = table_entry(&file, saved.section_count - 2);
  file.data[section->offset - 1] = 1;
  redo_header_digest(&file);
  expect_rule(&file, ACCX_RULE_SECTION_GAPS, "gap before code");
  file.data[section->offset - 1] = 0;
  file.data[section->offset + 0x1000] ^= 1;
  expect_rule(&file, ACCX_RULE_SECTION_DIGEST, "code");
  free(file.data);
}

static void last_section_ends_the_file(void** state) {
  (void)state;
  bytes_t longer = {must_alloc(golden.size + 8), golden.size + 8};
  memcpy(longer.data, golden.data, golden.size);
  ((accx_header_t*)(void*)longer.data)->file_size_bytes = longer.size;
  redo_header_digest(&longer);
  expect_rule(&longer, ACCX_RULE_SECTION_BOUNDS, "bytes behind the last section");
  free(longer.data);
}

/* ---- What later versions may bring ---- */

static void newer_versions(void** state) {
  (void)state;
  parts_t parts = take_apart(&golden_0_2);
  parts.header.container.minor = 7;
  parts.header.commands.minor = 3;
  part_t* devices = add_part(&parts, ACCX_SECTION_DEVICES, 0, "devices", 0, 13);
  memcpy(devices->bytes, "anything goes", 13);
  accx_command_t* marker = command_of(&parts, ACCX_COMMAND_MARKER, 0);
  marker->opcode = 77;
  bytes_t file = put_together(&parts);
  accrt_bundle_t* bundle;
  assert_int_equal(open_file(&file, NULL, &bundle), ACCRT_OK);
  use_bundle(bundle);
  accrt_section_info_t info = ACCRT_SECTION_INFO_INIT;
  uint32_t unknown = 0;
  for (uint32_t i = 0; i < parts.count; ++i) {
    assert_int_equal(accrt_bundle_section(bundle, i, &info), ACCRT_OK);
    if (info.known)
      continue;
    assert_string_equal(info.name, "devices");
    ++unknown;
  }
  assert_int_equal(unknown, 1);
  accrt_bundle_release(bundle);

  /* Unknown sections are checked when everything is. */
  const accx_section_t* section = &find_part(&parts, ACCX_SECTION_DEVICES)->section;
  file.data[section->offset] ^= 1;
  assert_int_equal(open_file(&file, NULL, &bundle), ACCRT_OK);
  assert_int_equal(accrt_bundle_verify(bundle), ACCRT_ERROR_DATA_CORRUPT);
  accrt_bundle_release(bundle);
  free(file.data);

  /* Unknown content of a newer file is a version mismatch, not an error in the file. */
  accx_symbol_t* symbol = record_of(&parts, ACCX_SECTION_SYMBOLS, sizeof *symbol, 0);
  symbol->symbol_class = 9;
  file = put_together(&parts);
  assert_int_equal(open_file(&file, NULL, &bundle), ACCRT_ERROR_VERSION_MISMATCH);
  assert_int_equal(rule_of_record(), ACCX_RULE_SYMBOL_CLASS);
  free(file.data);
  free_parts(&parts);
}

/* A function that needs what this library lacks does not spoil the others. */
static void features_of_one_function(void** state) {
  (void)state;
  parts_t parts = take_apart(&golden);
  accx_function_t* function =
      record_of(&parts, ACCX_SECTION_FUNCTIONS, sizeof *function, FUNCTION_MAIN);
  function->required_features = 4;
  command_of(&parts, ACCX_COMMAND_FILL, 0)->opcode = 99;
  bytes_t file = put_together(&parts);
  expect_good(&file, "an unknown command in a function with unknown features");
  free(file.data);
  accx_variant_t* variant = record_of(&parts, ACCX_SECTION_VARIANTS, sizeof *variant, 0);
  variant->required_features = 1;
  variant->cpu_features = UINT64_C(1) << 63;
  file = put_together(&parts);
  expect_good(&file, "a variant with unknown features");
  free(file.data);
  free_parts(&parts);
}

/* ---- What 0.2 brought: targets, launches, packs ---- */

/* Indices in the golden bundle of 0.2. */
enum { PACK_ANY = 1, PACK_CUDA, PART_ANY, PART_CUDA, MAIN_0_2, WHOLE_ANY, WHOLE_CUDA };
enum { IMAGE_0_2_CUBIN = 1, IMAGE_0_2_PACK, IMAGE_0_2_PTX };
enum { VARIANT_0_2_X86 = 0, VARIANT_0_2_PTX = 3 };

static accx_function_t* function_of(parts_t* parts, uint32_t index) {
  return record_of(parts, ACCX_SECTION_FUNCTIONS, sizeof(accx_function_t), index);
}
static accx_launch_t* launch_of(parts_t* parts, uint32_t index) {
  return record_of(parts, ACCX_SECTION_LAUNCHES, sizeof(accx_launch_t), index);
}
static accx_argument_t* argument_of(parts_t* parts, uint32_t function, uint32_t index) {
  return record_of(parts, ACCX_SECTION_ARGUMENTS, sizeof(accx_argument_t),
                   function_of(parts, function)->argument_first + index);
}
static accx_expression_t* expression_of(parts_t* parts, uint32_t function, uint32_t node) {
  return record_of(parts, ACCX_SECTION_EXPRESSIONS, sizeof(accx_expression_t),
                   function_of(parts, function)->expression_first + node);
}
static accx_call_t* call_of(parts_t* parts, uint32_t nth) {
  return FIELDS(accx_call_t, CALL, nth);
}
static accx_image_t* image_of(parts_t* parts, uint32_t index) {
  return record_of(parts, ACCX_SECTION_IMAGES, sizeof(accx_image_t), index);
}
/* Gives a target to a function without one. */
static void set_target(parts_t* parts, uint32_t function, uint32_t like) {
  function_of(parts, function)->target = function_of(parts, like)->target;
  function_of(parts, function)->required_features = ACCX_FEATURE_FUNCTION_TARGET;
}
static void clear_target(parts_t* parts, uint32_t function) {
  function_of(parts, function)->target = 0;
  function_of(parts, function)->required_features = 0;
}
/* The name of a pack's image, in a string that nothing else uses. */
static void name_pack(parts_t* parts, char first) {
  find_part(parts, ACCX_SECTION_STRINGS)->bytes[image_of(parts, IMAGE_0_2_PACK)->name + 8] =
      (unsigned char)first;
}

/* Calls in the golden bundle: helper by main, part by whole, part for cuda by whole for cuda. */
#define NEWER_LIST(X)                                                                              \
  X(FUNCTION_NAME, two_for_one_target, set_target(parts, WHOLE_ANY, WHOLE_CUDA))                   \
  X(FUNCTION_NAME, two_for_any, clear_target(parts, PART_CUDA))                                    \
  X(FUNCTION_TARGET, target_without_feature, function_of(parts, PART_CUDA)->required_features = 0) \
  X(FUNCTION_TARGET, feature_without_target,                                                       \
    function_of(parts, PART_ANY)->required_features = ACCX_FEATURE_FUNCTION_TARGET)                \
  X(STRING_REFERENCE, target_no_string, ++function_of(parts, PART_CUDA)->target)                   \
  X(FUNCTION_VERSIONS, other_access,                                                               \
    argument_of(parts, PART_CUDA, 0)->kind = ACCX_ARGUMENT_DONATED)                                \
  X(FUNCTION_VERSIONS, other_name,                                                                 \
    argument_of(parts, PART_CUDA, 0)->name = function_of(parts, MAIN_0_2)->name)                   \
  X(FUNCTION_VERSIONS, other_type, argument_of(parts, PART_CUDA, 0)->type.dtype = 6)               \
  X(FUNCTION_VERSIONS, other_constant, argument_of(parts, PACK_CUDA, 0)->constant = 0)             \
  X(FUNCTION_VERSIONS, other_dimension, ++expression_of(parts, PACK_CUDA, 0)->immediate)           \
  X(FUNCTION_VERSIONS, other_flags, function_of(parts, PART_CUDA)->flags = 0)                      \
  X(FUNCTION_VERSIONS, other_count, {                                                              \
    --function_of(parts, WHOLE_CUDA)->result_count;                                                \
    ++function_of(parts, WHOLE_CUDA)->input_count;                                                 \
  })                                                                                               \
  X(CALL_TARGET, target_from_any, call_of(parts, 1)->function = PART_CUDA)                         \
  X(LAUNCH, launch_of_nothing, ++launch_of(parts, 0)->variant)                                     \
  X(LAUNCH, launch_twice, launch_of(parts, 1)->variant = launch_of(parts, 0)->variant)             \
  X(LAUNCH, launch_far, launch_of(parts, 3)->variant = 0xFFFFFFFF)                                 \
  X(LAUNCH, launch_less,                                                                           \
    resize_part(find_part(parts, ACCX_SECTION_LAUNCHES), 3 * sizeof(accx_launch_t)))               \
  X(LAUNCH, launch_more,                                                                           \
    resize_part(find_part(parts, ACCX_SECTION_LAUNCHES), 5 * sizeof(accx_launch_t)))               \
  X(LAUNCH, launch_none, remove_part(parts, ACCX_SECTION_LAUNCHES))                                \
  X(LAUNCH, launch_traits, launch_of(parts, 0)->traits = ACCRT_KERNEL_TRAIT_SERIAL)                \
  X(LAUNCH, launch_reserved, launch_of(parts, 0)->reserved = 1)                                    \
  X(LAUNCH, block_zero, launch_of(parts, 0)->block[2] = 0)                                         \
  X(LAUNCH, block_large, launch_of(parts, 0)->block[1] = 64)                                       \
  X(LAUNCH, block_huge, launch_of(parts, 0)->block[1] = 0x08000000)                                \
  X(LAUNCH, cluster_part, launch_of(parts, 1)->cluster[1] = 0)                                     \
  X(LAUNCH, cluster_large, launch_of(parts, 1)->cluster[1] = 33)                                   \
  X(LAUNCH, shared_large, launch_of(parts, 0)->dynamic_shared_bytes = (256u << 20) + 1)            \
  X(KERNEL_TRAITS, launch_trait_of_kernel,                                                         \
    ((accx_kernel_t*)record_of(parts, ACCX_SECTION_KERNELS, sizeof(accx_kernel_t), 0))->traits |=  \
    ACCRT_KERNEL_TRAIT_COOPERATIVE)                                                                \
  X(IMAGE_PLACE, pack_has_bytes, image_of(parts, IMAGE_0_2_PACK)->size_bytes = 1)                  \
  X(IMAGE_PLACE, pack_has_place, image_of(parts, IMAGE_0_2_PACK)->offset_bytes = 4096)             \
  X(IMAGE_KIND, pack_with_a_path, name_pack(parts, '/'))                                           \
  X(IMAGE_KIND, host_variant_of_cubin,                                                             \
    ((accx_variant_t*)record_of(parts, ACCX_SECTION_VARIANTS, sizeof(accx_variant_t),              \
                                VARIANT_0_2_X86))                                                  \
        ->image = IMAGE_0_2_CUBIN)                                                                 \
  X(MINIMUM, container_too_new, parts->header.container.minor = 1)                                 \
  X(MINIMUM, kernel_abi_too_old, parts->header.kernel_abi.minor = 1)
NEWER_LIST(MUTATION)

static void targets_launches_packs(void** state) {
  (void)state;
#define CASE(rule, name, code) {ACCX_RULE_##rule, mutate_##name, #name},
  static const mutation_case_t cases[] = {NEWER_LIST(CASE)};
#undef CASE
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    parts_t parts = take_apart(&golden_0_2);
    cases[i].mutate(&parts);
    bytes_t file = put_together(&parts);
    expect_rule(&file, cases[i].rule, cases[i].name);
    free(file.data);
    free_parts(&parts);
  }
}

/* Reflection shows one function of a name, and for which drivers there is one. */
static void versions_are_one_function(void** state) {
  (void)state;
  accrt_bundle_t* bundle;
  assert_int_equal(open_file(&golden_0_2, NULL, &bundle), ACCRT_OK);
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  assert_int_equal(accrt_bundle_info(bundle, &info), ACCRT_OK);
  assert_int_equal(info.function_count, 5);
  assert_int_equal(info.container_minor, 2);
  uint32_t index;
  assert_int_equal(accrt_bundle_find_function(bundle, "whole", &index), ACCRT_OK);
  accrt_function_info_t function = ACCRT_FUNCTION_INFO_INIT;
  assert_int_equal(accrt_bundle_function(bundle, index, &function), ACCRT_OK);
  assert_string_equal(function.doc, "for any device");
  assert_int_equal(function.version_count, 2);
  assert_int_equal(function.command_count, 1);
  const char* target;
  assert_int_equal(accrt_bundle_function_target(bundle, index, 0, &target), ACCRT_OK);
  assert_string_equal(target, "");
  assert_int_equal(accrt_bundle_function_target(bundle, index, 1, &target), ACCRT_OK);
  assert_string_equal(target, "cuda");
  assert_int_equal(accrt_bundle_function_target(bundle, index, 2, &target),
                   ACCRT_ERROR_OUT_OF_RANGE);
  assert_null(target);
  assert_int_equal(accrt_bundle_function_target(bundle, 5, 0, &target), ACCRT_ERROR_OUT_OF_RANGE);
  assert_int_equal(accrt_bundle_function_target(bundle, 0, 0, NULL), ACCRT_ERROR_INVALID_ARGUMENT);

  const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
  const uint32_t first = accrt_bundle_lookup_function(bundle, "whole");
  assert_int_equal(accrt_bundle_function_for(tables, first, "cuda"), WHOLE_CUDA);
  assert_int_equal(accrt_bundle_function_for(tables, first, "host"), WHOLE_ANY);

  accrt_variant_info_t variant = ACCRT_VARIANT_INFO_INIT;
  assert_int_equal(accrt_bundle_variant(bundle, KERNEL_AXPB, 4, &variant), ACCRT_OK);
  assert_int_equal(variant.block[0], 256);
  assert_int_equal(variant.cluster[0], 2);
  assert_int_equal(variant.launch_traits,
                   ACCRT_KERNEL_TRAIT_COOPERATIVE | ACCRT_KERNEL_TRAIT_OVERLAPS_PREVIOUS);
  assert_int_equal(accrt_bundle_variant(bundle, KERNEL_AXPB, VARIANT_0_2_PTX, &variant), ACCRT_OK);
  assert_int_equal(variant.block[1], 4);
  assert_int_equal(variant.dynamic_shared_bytes, 4096);
  assert_int_equal(accrt_bundle_variant(bundle, KERNEL_AXPB, 0, &variant), ACCRT_OK);
  assert_int_equal(variant.block[0], 0);
  accrt_bundle_release(bundle);
}

/* ---- Weights and code after opening ---- */

static void damaged_weights(void** state) {
  (void)state;
  bytes_t file = copy_bytes(&golden);
  const accx_section_t* data =
      table_entry(&file, ((accx_header_t*)(void*)file.data)->section_count - 1);
  file.data[data->offset] ^= 1;
  accrt_bundle_t* bundle;
  accrt_bundle_options_t options = ACCRT_BUNDLE_OPTIONS_INIT;
  const void* bytes;
  uint64_t size;
  assert_int_equal(open_file(&file, &options, &bundle), ACCRT_OK);
  for (int i = 0; i < 2; ++i) { /* the verdict is remembered */
    assert_int_equal(accrt_bundle_constant_data(bundle, CONSTANT_WEIGHT, &bytes, &size),
                     ACCRT_ERROR_DATA_CORRUPT);
    assert_int_equal(rule_of_record(), ACCX_RULE_DATA_DIGEST);
    assert_null(bytes);
  }
  accrt_bundle_release(bundle);
  options.verify = ACCRT_VERIFY_FULL;
  assert_int_equal(open_file(&file, &options, &bundle), ACCRT_ERROR_DATA_CORRUPT);
  options.verify = ACCRT_VERIFY_NO_DATA;
  assert_int_equal(open_file(&file, &options, &bundle), ACCRT_OK);
  assert_int_equal(accrt_bundle_constant_data(bundle, CONSTANT_WEIGHT, &bytes, &size), ACCRT_OK);
  accrt_bundle_release(bundle);
  options.verify = 3;
  assert_int_equal(open_file(&file, &options, &bundle), ACCRT_ERROR_INVALID_ARGUMENT);
  free(file.data);

  /* Right digests, but bytes where nothing belongs. */
  parts_t parts = take_apart(&golden);
  find_part(&parts, ACCX_SECTION_DATA)->bytes[255] = 1; /* behind `nibbles` */
  file = put_together(&parts);
  assert_int_equal(open_file(&file, NULL, &bundle), ACCRT_OK);
  assert_int_equal(accrt_bundle_verify(bundle), ACCRT_ERROR_INVALID_FORMAT);
  assert_int_equal(rule_of_record(), ACCX_RULE_DATA_GAPS);
  accrt_bundle_release(bundle);
  free(file.data);
  free_parts(&parts);
}

static void changed_code(void** state) {
  (void)state;
  bytes_t file = copy_bytes(&golden);
  accrt_bundle_t* bundle;
  assert_int_equal(open_file(&file, NULL, &bundle), ACCRT_OK);
  const accrt_bundle_tables_t* tables = accrt_bundle_tables(bundle);
  void* image = must_alloc((size_t)tables->images[IMAGE_X86].size_bytes);
  assert_int_equal(accrt_bundle_image_copy(bundle, IMAGE_X86, image), ACCRT_OK);
  const accx_section_t* code = table_entry(&file, tables->section_count - 2);
  file.data[code->offset + tables->images[IMAGE_X86].offset_bytes + 100] ^= 1;
  assert_int_equal(accrt_bundle_image_copy(bundle, IMAGE_X86, image), ACCRT_ERROR_DATA_CORRUPT);
  assert_int_equal(rule_of_record(), ACCX_RULE_CODE_CHANGED);
  assert_int_equal(accrt_bundle_image_copy(bundle, IMAGE_ARM, image), ACCRT_OK);
  free(image);
  accrt_bundle_release(bundle);
  free(file.data);
}

/* ---- The list of rules itself ---- */

/* From RECORD_FORM on rules are those of hostile_records_test.c. */
static void every_rule_was_provoked(void** state) {
  (void)state;
#define CHECK(name, number, status, text)                                                          \
  if ((number) < ACCX_RULE_RECORD_FORM && !seen_rules[number])                                     \
    fail_msg("rule %d (%s) was provoked by no test", number, #name);
  ACCX_RULE_LIST(CHECK)
#undef CHECK
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fields),
      cmocka_unit_test(mutations),
      cmocka_unit_test(equal_names),
      cmocka_unit_test(several_places),
      cmocka_unit_test(utf8),
      cmocka_unit_test(depth_limits),
      cmocka_unit_test(container),
      cmocka_unit_test(last_section_ends_the_file),
      cmocka_unit_test(newer_versions),
      cmocka_unit_test(features_of_one_function),
      cmocka_unit_test(targets_launches_packs),
      cmocka_unit_test(versions_are_one_function),
      cmocka_unit_test(damaged_weights),
      cmocka_unit_test(changed_code),
      cmocka_unit_test(every_rule_was_provoked),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
