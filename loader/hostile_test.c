/* loader/hostile_test.c - bad bundles: every rule of the verifier provoked, truncation at every
 * length, flipped bits with and without right digests, random damage, allocations that fail. After
 * each the same instance opens a good bundle again.
 *
 * Runs from the root of the source tree (tests/golden).
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "loader/hostile_support.h"

/* One thread only: what ThreadSanitizer could find is in open_test.c, and here it is slow. */
#if defined(__SANITIZE_THREAD__)
#define STRIDE 31u
#else
#define STRIDE 1u
#endif

#define GOLDEN "tests/golden/0.1/everything.accx"
#define GOLDEN_0_2 "tests/golden/0.2/everything.accx"

static accrt_instance_t* instance;
static bytes_t golden;
static bytes_t golden_0_2;

/* ---- Opening ---- */

static accrt_status_t open_file(const bytes_t* file, const accrt_bundle_options_t* options,
                                accrt_bundle_t** out_bundle) {
  return accrt_bundle_open_memory(instance, file->data, file->size, NULL, NULL, options,
                                  out_bundle);
}

static void expect_rule(const bytes_t* file, uint32_t rule, const char* what) {
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

static void expect_good(const bytes_t* file, const char* what) {
  accrt_bundle_t* bundle;
  const accrt_status_t status = open_file(file, NULL, &bundle);
  if (status != ACCRT_OK)
    fail_msg("%s: %s: %s", what, accrt_status_name(status), accrt_error_current()->message);
  use_bundle(bundle);
  accrt_bundle_release(bundle);
}

static int setup(void** state) {
  (void)state;
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  if (accrt_instance_create(&options, &instance) != ACCRT_OK)
    return 1;
  golden = read_file(GOLDEN);
  golden_0_2 = read_file(GOLDEN_0_2);
  return 0;
}

static int teardown(void** state) {
  (void)state;
  expect_good(&golden, "the golden bundle at the end");
  expect_good(&golden_0_2, "the golden bundle of 0.2 at the end");
  free(golden.data);
  free(golden_0_2.data);
  accrt_instance_release(instance);
  return 0;
}

/* ---- Mutations of fields, with right digests ---- */

typedef struct field_case {
  uint32_t rule, section, index;
  size_t record_bytes, offset, size;
  uint64_t value;
  int line;
} field_case_t;
#define FIELD(rule, section, type, index, field, value)                                            \
  {                                                                                                \
    ACCX_RULE_##rule, ACCX_SECTION_##section, (index), sizeof(type), offsetof(type, field),        \
        sizeof(((type*)0)->field), (uint64_t)(value), __LINE__                                     \
  }
/* Indices in the golden bundle. Records are sorted by name. */
enum { SYMBOL_LENGTH, SYMBOL_N, SYMBOL_POSITION, SYMBOL_ROWS, SYMBOL_STEPS };
enum { CONSTANT_EMPTY, CONSTANT_NIBBLES, CONSTANT_PACKED, CONSTANT_TABLE, CONSTANT_WEIGHT };
enum { FUNCTION_HELPER, FUNCTION_PACK, FUNCTION_MAIN };
enum { KERNEL_AXPB, KERNEL_REVERSE, KERNEL_ROWS };
enum { IMAGE_ARM, IMAGE_PTX, IMAGE_X86 };
enum { ARGUMENT_HELPER = 0, ARGUMENT_PACK = 4, ARGUMENT_MAIN = 6 }; /* the functions' first */

static const field_case_t field_cases[] = {
    FIELD(STRING_REFERENCE, METADATA, accx_metadata_t, 0, value, 0xFFFFFFFF),
    FIELD(NAME, METADATA, accx_metadata_t, 0, key, 0),
    FIELD(NAME, SYMBOLS, accx_symbol_t, SYMBOL_LENGTH, name, 0),
    FIELD(SYMBOL_CLASS, SYMBOLS, accx_symbol_t, SYMBOL_N, symbol_class, 4),
    FIELD(SYMBOL_RANGE, SYMBOLS, accx_symbol_t, SYMBOL_N, minimum, -1),
    FIELD(SYMBOL_RANGE, SYMBOLS, accx_symbol_t, SYMBOL_N, minimum, 5000),
    FIELD(SYMBOL_RANGE, SYMBOLS, accx_symbol_t, SYMBOL_N, maximum, (INT64_C(1) << 48) + 1),
    FIELD(SYMBOL_RANGE, SYMBOLS, accx_symbol_t, SYMBOL_N, divisor, 0),
    FIELD(SYMBOL_RANGE, SYMBOLS, accx_symbol_t, SYMBOL_N, divisor, 5000),
    FIELD(SYMBOL_BUCKETS, SYMBOLS, accx_symbol_t, SYMBOL_N, bucket_count, 1),
    FIELD(SYMBOL_BUCKETS, SYMBOLS, accx_symbol_t, SYMBOL_N, bucket_first, 1),
    FIELD(SYMBOL_BUCKETS, SYMBOLS, accx_symbol_t, SYMBOL_ROWS, bucket_count, 0),
    FIELD(SYMBOL_BUCKETS, SYMBOLS, accx_symbol_t, SYMBOL_ROWS, bucket_count, 0xFFFFFFFF),
    FIELD(SYMBOL_BUCKETS, SYMBOLS, accx_symbol_t, SYMBOL_ROWS, bucket_count,
          2), /* the last is below the maximum */
    FIELD(SYMBOL_BUCKETS, SYMBOLS, accx_symbol_t, SYMBOL_ROWS, bucket_first, 1),
    FIELD(EXPRESSION_SCOPE, FUNCTIONS, accx_function_t, FUNCTION_PACK, expression_first, 0),
    FIELD(EXPRESSION_SCOPE, FUNCTIONS, accx_function_t, FUNCTION_MAIN, expression_count, 1),
    FIELD(EXPRESSION_SCOPE, FUNCTIONS, accx_function_t, FUNCTION_MAIN, expression_count,
          0xFFFFFFFF),
    FIELD(EXPRESSION_OP, EXPRESSIONS, accx_expression_t, 0, op, 20),
    FIELD(EXPRESSION_OPERANDS, EXPRESSIONS, accx_expression_t, 0, a, 0),
    FIELD(EXPRESSION_OPERANDS, EXPRESSIONS, accx_expression_t, 0, op, ACCX_EXPR_ADD),
    FIELD(EXPRESSION_LEAF, EXPRESSIONS, accx_expression_t, 0, immediate, 5),
    FIELD(EXPRESSION_LEAF, EXPRESSIONS, accx_expression_t, 0, immediate, -1),
    FIELD(EXPRESSION_LEAF, EXPRESSIONS, accx_expression_t, 0, op, ACCX_EXPR_INDUCTION),
    FIELD(EXPRESSION_LEAF, EXPRESSIONS, accx_expression_t, 0, op, ACCX_EXPR_PRESENT),
    FIELD(EXPRESSION_USE, EXPRESSIONS, accx_expression_t, 0, immediate,
          SYMBOL_N), /* a state sized by a call's symbol */
    FIELD(EXPRESSION_USE, FUNCTIONS, accx_function_t, FUNCTION_MAIN, transient_size, 0xFFFFFFFF),
    FIELD(EXPRESSION_USE, FUNCTIONS, accx_function_t, FUNCTION_MAIN, transient_size, 100000),
    FIELD(EXPRESSION_USE, STATES, accx_state_t, 0, type.dims[0], 99),
    FIELD(TYPE, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, type.dtype, 0),
    FIELD(TYPE, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, type.dtype, 20),
    FIELD(TYPE, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, type.encoding, 12),
    FIELD(TYPE, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, type.rank, 9),
    FIELD(TYPE, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, type.rank, 1),
    FIELD(LAYOUT_TYPE, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, type.group_elements, 1),
    FIELD(TYPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, dtype, 77),
    FIELD(TYPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, encoding, 32),
    FIELD(TYPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, rank, 9),
    FIELD(LAYOUT_TYPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, group_elements, 1),
    FIELD(CONSTANT_SOURCE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, source,
          ACCX_CONSTANT_OPTIONAL),
    FIELD(CONSTANT_SOURCE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, source, 4),
    FIELD(CONSTANT_SHAPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, shape[0], -1),
    FIELD(CONSTANT_SHAPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, shape[0], INT64_MAX),
    FIELD(CONSTANT_SHAPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, shape[0],
          INT64_C(1) << 62), /* times 4 is 2^64 */
    FIELD(CONSTANT_SHAPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, shape[7], 1),
    FIELD(CONSTANT_SHAPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, rank, 1),
    FIELD(LAYOUT_SHAPE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, shape[0],
          INT64_C(1) << 60), /* bits overflow */
    FIELD(COMPONENT_SIZE, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, shape[0], 3),
    FIELD(COMPONENT_SIZE, COMPONENTS, accx_component_t, CONSTANT_WEIGHT, size_bytes, 33),
    FIELD(COMPONENT_SIZE, COMPONENTS, accx_component_t, CONSTANT_NIBBLES, size_bytes, 5),
    FIELD(COMPONENTS, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, component_count, 2),
    FIELD(COMPONENTS, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, component_count, 0),
    FIELD(COMPONENTS, CONSTANTS, accx_constant_t, CONSTANT_WEIGHT, component_first, 0),
    FIELD(COMPONENTS, COMPONENTS, accx_component_t, CONSTANT_WEIGHT, role, ACCX_ROLE_SCALES),
    FIELD(COMPONENTS, COMPONENTS, accx_component_t, CONSTANT_WEIGHT, dtype, ACCRT_DTYPE_I32),
    FIELD(COMPONENT_PLACE, COMPONENTS, accx_component_t, CONSTANT_WEIGHT, offset_bytes, 0),
    FIELD(COMPONENT_PLACE, COMPONENTS, accx_component_t, CONSTANT_WEIGHT, offset_bytes, UINT64_MAX),
    FIELD(COMPONENT_PLACE, COMPONENTS, accx_component_t, CONSTANT_PACKED, offset_bytes, 256),
    FIELD(COMPONENT_PLACE, COMPONENTS, accx_component_t, CONSTANT_TABLE, size_bytes, 1000000),
    FIELD(COMPONENT_PLACE, COMPONENTS, accx_component_t, CONSTANT_TABLE, size_bytes, UINT64_MAX),
    FIELD(COMPONENT_PLACE, COMPONENTS, accx_component_t, CONSTANT_PACKED, size_bytes, UINT64_MAX),
    FIELD(STATE, STATES, accx_state_t, 0, flags, 1),
    FIELD(STATE, STATES, accx_state_t, 0, fill_pattern, UINT64_C(1) << 32),
    FIELD(STATE, STATES, accx_state_t, 0, type.encoding, ACCX_ENCODING_OPAQUE),
    FIELD(FUNCTION_FIELDS, FUNCTIONS, accx_function_t, FUNCTION_MAIN, flags, 4),
    FIELD(FUNCTION_FIELDS, FUNCTIONS, accx_function_t, FUNCTION_MAIN, flags, 3),
    FIELD(FUNCTION_FIELDS, FUNCTIONS, accx_function_t, FUNCTION_MAIN, transient_align, 0),
    FIELD(FUNCTION_FIELDS, FUNCTIONS, accx_function_t, FUNCTION_MAIN, transient_align, 24),
    FIELD(FUNCTION_FIELDS, FUNCTIONS, accx_function_t, FUNCTION_MAIN, transient_align, 8192),
    FIELD(STRING_REFERENCE, FUNCTIONS, accx_function_t, FUNCTION_MAIN, target, 1000000),
    FIELD(FUNCTION_TARGET, FUNCTIONS, accx_function_t, FUNCTION_MAIN, required_features, 1),
    FIELD(STRING_REFERENCE, FUNCTIONS, accx_function_t, FUNCTION_MAIN, doc, 1000000),
    FIELD(FUNCTION_TILING, FUNCTIONS, accx_function_t, FUNCTION_PACK, argument_first, 0),
    FIELD(FUNCTION_TILING, FUNCTIONS, accx_function_t, FUNCTION_PACK, slot_first, 0),
    FIELD(FUNCTION_TILING, FUNCTIONS, accx_function_t, FUNCTION_MAIN, input_count, 0xFFFFFFFF),
    FIELD(FUNCTION_TILING, FUNCTIONS, accx_function_t, FUNCTION_MAIN, result_count, 1),
    FIELD(FUNCTION_TILING, FUNCTIONS, accx_function_t, FUNCTION_MAIN, slot_count, 0xFFFFFFFF),
    FIELD(ARGUMENT_KIND, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, kind, ACCX_ARGUMENT_RESULT),
    FIELD(ARGUMENT_KIND, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, kind, 5),
    FIELD(ARGUMENT_KIND, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, flags, 2),
    FIELD(ARGUMENT_KIND, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 5, kind, ACCX_ARGUMENT_READ),
    FIELD(ARGUMENT_KIND, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 5, flags,
          ACCX_ARGUMENT_FLAG_OPTIONAL),
    FIELD(ARGUMENT_SCALAR, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, symbol, 0),
    FIELD(ARGUMENT_SCALAR, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 4, symbol, 99),
    FIELD(ARGUMENT_SCALAR, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 4, symbol, ACCX_NONE),
    FIELD(ARGUMENT_SCALAR, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 4, type.dtype,
          ACCRT_DTYPE_F32),
    FIELD(ARGUMENT_ALIAS, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 7, alias_kind, 3),
    FIELD(ARGUMENT_ALIAS, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 7, alias_kind,
          ACCX_ALIAS_NONE),
    FIELD(ARGUMENT_ALIAS, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 7, alias_input,
          0), /* a READ input */
    FIELD(ARGUMENT_ALIAS, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 7, alias_input,
          5), /* no input */
    FIELD(ARGUMENT_ALIAS, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN + 7, alias_input,
          3), /* taken by the next result */
    FIELD(ARGUMENT_ALIAS, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, alias_kind, ACCX_ALIAS_MAY),
    FIELD(PREPARE, ARGUMENTS, accx_argument_t, ARGUMENT_MAIN, constant, 0),
    FIELD(PREPARE, ARGUMENTS, accx_argument_t, ARGUMENT_PACK, constant, 99),
    FIELD(PREPARE, ARGUMENTS, accx_argument_t, ARGUMENT_PACK, constant,
          CONSTANT_TABLE), /* another type */
    FIELD(PREPARE, ARGUMENTS, accx_argument_t, ARGUMENT_PACK, constant,
          CONSTANT_PACKED), /* not stored */
    FIELD(PREPARE, ARGUMENTS, accx_argument_t, ARGUMENT_PACK + 1, constant, CONSTANT_WEIGHT),
    FIELD(PREPARE, FUNCTIONS, accx_function_t, FUNCTION_PACK, flags, 0),
    FIELD(PREPARE, FUNCTIONS, accx_function_t, FUNCTION_HELPER, flags, ACCX_FUNCTION_PREPARE),
    FIELD(PREPARE_ONCE, CONSTANTS, accx_constant_t, CONSTANT_EMPTY, source, ACCX_CONSTANT_PREPARED),
    FIELD(SLOT, SLOTS, accx_slot_t, 0, kind, ACCX_SLOT_STATE),
    FIELD(SLOT, SLOTS, accx_slot_t, 0, kind, 4),
    FIELD(SLOT, SLOTS, accx_slot_t, 0, index, 1),
    FIELD(SLOT, SLOTS, accx_slot_t, 0, component, 1),
    FIELD(SLOT, SLOTS, accx_slot_t, 0, reserved, 1),
    FIELD(BLOCK_TILING, BLOCKS, accx_block_t, 0, offset_bytes, 8),
    FIELD(BLOCK_TILING, BLOCKS, accx_block_t, 1, offset_bytes, UINT64_MAX),
    FIELD(BLOCK_TILING, BLOCKS, accx_block_t, 0, size_bytes, 0xFFFFFFFF),
    FIELD(BLOCK_TILING, BLOCKS, accx_block_t, 0, command_count, 0xFFFFFFFF),
    FIELD(BLOCK_TILING, BLOCKS, accx_block_t, 0, command_count, 0),
    FIELD(COMMAND_SIZE, BLOCKS, accx_block_t, 0, command_count, 2),
    FIELD(BLOCK_USE, FUNCTIONS, accx_function_t, FUNCTION_PACK, body, 0),
    FIELD(BLOCK_USE, FUNCTIONS, accx_function_t, FUNCTION_PACK, body, 0xFFFFFFFF),
    FIELD(VIEW, VIEWS, accx_view_t, 0, rank, 9),
    FIELD(VIEW, VIEWS, accx_view_t, 0, rank, 1),
    FIELD(EXPRESSION_USE, VIEWS, accx_view_t, 0, rank, 3),
    FIELD(EXPRESSION_USE, VIEWS, accx_view_t, 0, strides[0], 100000),
    FIELD(TYPE, VIEWS, accx_view_t, 0, dtype, 0),
    FIELD(KERNEL_TRAITS, KERNELS, accx_kernel_t, KERNEL_AXPB, traits, 1u << 9),
    FIELD(KERNEL_TRAITS, KERNELS, accx_kernel_t, KERNEL_AXPB, local_memory_size_bytes, 0xFFFFFFFF),
    FIELD(KERNEL_TILING, KERNELS, accx_kernel_t, KERNEL_AXPB, parameter_first, 1),
    FIELD(KERNEL_TILING, KERNELS, accx_kernel_t, KERNEL_AXPB, parameter_count, 65),
    FIELD(KERNEL_TILING, KERNELS, accx_kernel_t, KERNEL_ROWS, parameter_count, 5),
    FIELD(KERNEL_TILING, KERNELS, accx_kernel_t, KERNEL_ROWS, parameter_count, 0),
    FIELD(KERNEL_TILING, KERNELS, accx_kernel_t, KERNEL_AXPB, variant_first, 1),
    FIELD(KERNEL_TILING, KERNELS, accx_kernel_t, KERNEL_AXPB, variant_count, 0xFFFFFFFF),
    FIELD(KERNEL_TILING, KERNELS, accx_kernel_t, KERNEL_ROWS, variant_count, 2),
    FIELD(VARIANT, KERNELS, accx_kernel_t, KERNEL_AXPB, variant_count, 0),
    FIELD(PARAMETERS, KERNELS, accx_kernel_t, KERNEL_AXPB, params_size_bytes, 39),
    FIELD(PARAMETERS, KERNELS, accx_kernel_t, KERNEL_AXPB, params_size_bytes, 4104),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 0, kind, 0),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 0, kind, ACCRT_KERNEL_PARAM_HIDDEN),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 0, access, 0),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 0, access, 4),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 0, flags, 2),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 0, align_log2, 31),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 1, offset_bytes, 0),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 1, offset_bytes, 12),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 1, offset_bytes, 0xFFFFFFF8),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 0, size_bytes, 16),
    FIELD(PARAMETERS, PARAMETERS, accx_parameter_t, 3, size_bytes, 3),
    FIELD(NAME, PARAMETERS, accx_parameter_t, 0, name, 0),
    FIELD(NAME, VARIANTS, accx_variant_t, 0, driver, 0),
    FIELD(NAME, VARIANTS, accx_variant_t, 0, entry, 0),
    FIELD(VARIANT, VARIANTS, accx_variant_t, 0, arch_kind, 3),
    FIELD(VARIANT, VARIANTS, accx_variant_t, 0, arch, 0),
    FIELD(VARIANT, VARIANTS, accx_variant_t, 0, image, 3),
    FIELD(IMAGE_KIND, VARIANTS, accx_variant_t, 0, image, IMAGE_PTX),
    FIELD(KERNEL_TILING, VARIANTS, accx_variant_t, 0, predicate_first, 1),
    FIELD(KERNEL_TILING, VARIANTS, accx_variant_t, 0, predicate_count, 6),
    FIELD(KERNEL_TILING, VARIANTS, accx_variant_t, 0, predicate_count, 0),
    FIELD(PREDICATE, PREDICATES, accx_predicate_t, 0, kind, 0),
    FIELD(PREDICATE, PREDICATES, accx_predicate_t, 0, kind, 6),
    FIELD(PREDICATE, PREDICATES, accx_predicate_t, 0, kind,
          ACCX_PREDICATE_ALIGNED), /* of a symbol */
    FIELD(PREDICATE, PREDICATES, accx_predicate_t, 0, parameter, 99),
    FIELD(PREDICATE, PREDICATES, accx_predicate_t, 0, parameter, 0), /* DIVISIBLE of a buffer */
    FIELD(PREDICATE, PREDICATES, accx_predicate_t, 0, value, 0),
    FIELD(PREDICATE, PREDICATES, accx_predicate_t, 1, value, 48),
    FIELD(PREDICATE, PREDICATES, accx_predicate_t, 1, value, 8192),
    FIELD(PREDICATE, PREDICATES, accx_predicate_t, 4, kind,
          ACCX_PREDICATE_DIVISIBLE), /* out of order */
    FIELD(IMAGE_PLACE, IMAGES, accx_image_t, 0, offset_bytes, 4096),
    FIELD(IMAGE_PLACE, IMAGES, accx_image_t, 1, offset_bytes, 0),
    FIELD(IMAGE_PLACE, IMAGES, accx_image_t, 1, size_bytes, 0),
    FIELD(IMAGE_PLACE, IMAGES, accx_image_t, 2, size_bytes, UINT64_MAX),
    FIELD(IMAGE_PLACE, IMAGES, accx_image_t, 2, size_bytes, 8),
    FIELD(IMAGE_KIND, IMAGES, accx_image_t, 0, kind, 0),
    FIELD(IMAGE_KIND, IMAGES, accx_image_t, IMAGE_PTX, kind, 6),
    FIELD(IMAGE_PLACE, IMAGES, accx_image_t, IMAGE_PTX, kind, ACCX_IMAGE_PACK),
    FIELD(MINIMUM, VARIANTS, accx_variant_t, 0, arch_kind, ACCX_ARCH_PORTABLE), /* that names one */
    FIELD(IMAGE_HEADER, IMAGES, accx_image_t, IMAGE_PTX, kind,
          ACCX_IMAGE_HOST_ELF), /* too short for ELF */
};

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

/* ---- Mutations of commands ---- */

/* The nth command of an opcode in the stream. */
static accx_command_t* command_of(parts_t* parts, uint32_t opcode, uint32_t nth) {
  part_t* part = find_part(parts, ACCX_SECTION_COMMANDS);
  for (size_t at = 0; at < part->size_bytes;) {
    accx_command_t* command = (accx_command_t*)(void*)(part->bytes + at);
    if (command->opcode == opcode && nth-- == 0)
      return command;
    at += command->size_bytes;
  }
  abort();
}

#define FIELDS(type, opcode, nth)                                                                  \
  ((type*)(uintptr_t)accx_command_fields(command_of(parts, ACCX_COMMAND_##opcode, (nth))))
static accx_dispatch_t* dispatch_of(parts_t* parts, uint32_t nth) {
  return FIELDS(accx_dispatch_t, DISPATCH, nth);
}
static accx_operand_t* operand_of(parts_t* parts, uint32_t nth, uint32_t operand) {
  return (accx_operand_t*)(uintptr_t)accx_dispatch_operands(dispatch_of(parts, nth)) + operand;
}
static accx_operand_t* call_operand_of(parts_t* parts, uint32_t operand) {
  return (accx_operand_t*)(uintptr_t)accx_call_operands(FIELDS(accx_call_t, CALL, 0)) + operand;
}
static uint32_t* predecessors_of(parts_t* parts, uint32_t opcode) {
  return (uint32_t*)(uintptr_t)accx_command_predecessors(command_of(parts, opcode, 0));
}
/* Dispatches: 0 and 1 in helper, 2 in pack, 3 is "row sums" in main (x TENSOR, sum, scratch
 * WORKSPACE, square SCALAR). */
enum { ROWS = 3 };

/* A node of main's scope with an op. */
static uint32_t main_node(parts_t* parts, uint32_t op) {
  const accx_function_t* function =
      record_of(parts, ACCX_SECTION_FUNCTIONS, sizeof *function, FUNCTION_MAIN);
  for (uint32_t i = 0; i < function->expression_count; ++i) {
    const accx_expression_t* node =
        record_of(parts, ACCX_SECTION_EXPRESSIONS, sizeof *node, function->expression_first + i);
    if (node->op == op)
      return i;
  }
  abort();
}
static accx_expression_t* node_record(parts_t* parts, uint32_t node) {
  const accx_function_t* function =
      record_of(parts, ACCX_SECTION_FUNCTIONS, sizeof *function, FUNCTION_MAIN);
  return record_of(parts, ACCX_SECTION_EXPRESSIONS, sizeof(accx_expression_t),
                   function->expression_first + node);
}
static uint32_t main_symbol(parts_t* parts, int64_t symbol) {
  const accx_function_t* function =
      record_of(parts, ACCX_SECTION_FUNCTIONS, sizeof *function, FUNCTION_MAIN);
  for (uint32_t i = 0; i < function->expression_count; ++i) {
    const accx_expression_t* node = node_record(parts, i);
    if (node->op == ACCX_EXPR_SYMBOL && node->immediate == symbol)
      return i;
  }
  abort();
}

#define MUTATION(rule, name, code)                                                                 \
  static void mutate_##name(parts_t* parts) {                                                      \
    code;                                                                                          \
  }
#define MUTATION_LIST(X)                                                                           \
  X(COMMAND_SIZE, size_zero, command_of(parts, ACCX_COMMAND_FILL, 0)->size_bytes = 0)              \
  X(COMMAND_SIZE, size_odd, command_of(parts, ACCX_COMMAND_FILL, 0)->size_bytes += 4)              \
  X(COMMAND_SIZE, size_long, command_of(parts, ACCX_COMMAND_FILL, 0)->size_bytes += 8)             \
  X(COMMAND_SIZE, size_huge, command_of(parts, ACCX_COMMAND_FILL, 0)->size_bytes = 0xFFFFFFF8)     \
  X(COMMAND_SIZE, predecessors_huge,                                                               \
    command_of(parts, ACCX_COMMAND_FILL, 0)->predecessor_count = 0xFFFFFFFF)                       \
  X(COMMAND_SIZE, operands_huge, dispatch_of(parts, ROWS)->operand_count = 0xFFFFFFFF)             \
  X(COMMAND_SIZE, call_operands, FIELDS(accx_call_t, CALL, 0)->operand_count = 0)                  \
  X(COMMAND_FLAGS, flags_unknown, command_of(parts, ACCX_COMMAND_FILL, 0)->flags = 3)              \
  X(COMMAND_FLAGS, flags_not_required, command_of(parts, ACCX_COMMAND_DISPATCH, 0)->flags = 0)     \
  X(COMMAND_FLAGS, marker_required, command_of(parts, ACCX_COMMAND_MARKER, 0)->flags = 1)          \
  X(COMMAND_UNKNOWN, unknown_required, command_of(parts, ACCX_COMMAND_FILL, 0)->opcode = 100)      \
  X(COMMAND_UNKNOWN, vendor_required, command_of(parts, ACCX_COMMAND_FILL, 0)->opcode = 0x8001)    \
  X(COMMAND_UNKNOWN, opcode_zero, command_of(parts, ACCX_COMMAND_FILL, 0)->opcode = 0)             \
  X(STRING_REFERENCE, command_name, command_of(parts, ACCX_COMMAND_FILL, 0)->name = 1 << 30)       \
  X(STRING_REFERENCE, marker_text, FIELDS(accx_marker_t, MARKER, 0)->text = 0xFFFFFFFF)            \
  X(COMMAND_FIELDS, command_reserved, command_of(parts, ACCX_COMMAND_FILL, 0)->reserved = 1)       \
  X(COMMAND_FIELDS, command_location, command_of(parts, ACCX_COMMAND_FILL, 0)->location = 0)       \
  X(COMMAND_FIELDS, dispatch_reserved, dispatch_of(parts, ROWS)->reserved = 1)                     \
  X(COMMAND_FIELDS, copy_reserved, FIELDS(accx_copy_t, COPY, 0)->reserved = 1)                     \
  X(COMMAND_FIELDS, copy_size, FIELDS(accx_copy_t, COPY, 0)->source.size = 0)                      \
  X(COMMAND_FIELDS, fill_reserved, FIELDS(accx_fill_t, FILL, 0)->reserved = 1)                     \
  X(COMMAND_FIELDS, branch_reserved, FIELDS(accx_branch_t, BRANCH, 0)->reserved = 1)               \
  X(COMMAND_FIELDS, marker_reserved, FIELDS(accx_marker_t, MARKER, 0)->reserved = 1)               \
  X(COMMAND_FIELDS, operand_reserved, operand_of(parts, ROWS, 0)->reserved = 1)                    \
  X(COMMAND_FIELDS, operand_expression, operand_of(parts, ROWS, 1)->expression = 0)                \
  X(COMMAND_FIELDS, operand_view, operand_of(parts, ROWS, 1)->view = 0)                            \
  X(COMMAND_FIELDS, operand_immediate, operand_of(parts, ROWS, 1)->immediate = 1)                  \
  X(COMMAND_FIELDS, operand_range, operand_of(parts, ROWS, 3)->range.slot = 0)                     \
  X(COMMAND_FIELDS, padding, predecessors_of(parts, ACCX_COMMAND_MARKER)[1] = 7)                   \
  X(COMMAND_PREDECESSORS, predecessor_self, predecessors_of(parts, ACCX_COMMAND_MARKER)[0] = 3)    \
  X(COMMAND_PREDECESSORS, predecessor_far,                                                         \
    predecessors_of(parts, ACCX_COMMAND_MARKER)[0] = 0xFFFFFFFF)                                   \
  X(COMMAND_PREDECESSORS, predecessor_twice, predecessors_of(parts, ACCX_COMMAND_CALL)[1] = 0)     \
  X(RANGE_SLOT, slot_far, operand_of(parts, ROWS, 1)->range.slot = 0xFFFFFFFF)                     \
  X(RANGE_SLOT, slot_scalar, operand_of(parts, ROWS, 1)->range.slot = 4)                           \
  X(RANGE_ACCESS, access_other, operand_of(parts, ROWS, 1)->range.access = 3)                      \
  X(RANGE_ACCESS, write_input, operand_of(parts, ROWS, 1)->range.slot = 0)                         \
  X(RANGE_ACCESS, copy_access, FIELDS(accx_copy_t, COPY, 0)->source.access = 2)                    \
  X(RANGE_ACCESS, copy_to_constant,                                                                \
    FIELDS(accx_copy_t, COPY, 0)->target.slot = FIELDS(accx_copy_t, COPY, 0)->source.slot)         \
  X(RANGE_ACCESS, fill_access, FIELDS(accx_fill_t, FILL, 0)->target.access = 1)                    \
  X(DISPATCH_KERNEL, kernel_far, dispatch_of(parts, ROWS)->kernel = 99)                            \
  X(DISPATCH_KERNEL, kernel_other, dispatch_of(parts, ROWS)->kernel = KERNEL_REVERSE)              \
  X(OPERAND, operand_kind, operand_of(parts, ROWS, 1)->kind = ACCX_OPERAND_SYMBOL)                 \
  X(OPERAND, operand_absent, operand_of(parts, ROWS, 1)->kind = ACCX_OPERAND_ABSENT)               \
  X(OPERAND, scalar_large, operand_of(parts, ROWS, 3)->immediate = 256)                            \
  X(OPERAND, workspace_elsewhere, operand_of(parts, ROWS, 2)->range.slot = 2)                      \
  X(OPERAND, call_operand_kind, call_operand_of(parts, 2)->kind = ACCX_OPERAND_BUFFER)             \
  X(OPERAND, call_operand_absent, call_operand_of(parts, 0)->kind = ACCX_OPERAND_ABSENT)           \
  X(RANGE_ACCESS, call_access, call_operand_of(parts, 0)->range.access = 2)                        \
  X(VIEW, view_far, operand_of(parts, ROWS, 0)->view = 1)                                          \
  X(VIEW, view_none, operand_of(parts, ROWS, 0)->view = ACCX_NONE)                                 \
  X(FILL, fill_bytes, FIELDS(accx_fill_t, FILL, 0)->pattern_bytes = 3)                             \
  X(FILL, fill_large, FIELDS(accx_fill_t, FILL, 0)->pattern = UINT64_C(1) << 32)                   \
  X(CALL, call_self, FIELDS(accx_call_t, CALL, 0)->function = FUNCTION_MAIN)                       \
  X(CALL, call_prepare, FIELDS(accx_call_t, CALL, 0)->function = FUNCTION_PACK)                    \
  X(CALL, call_far, FIELDS(accx_call_t, CALL, 0)->function = 0xFFFFFFFF)                           \
  X(BLOCK_USE, repeat_block, FIELDS(accx_repeat_t, REPEAT, 0)->block = 0)                          \
  X(BLOCK_USE, repeat_block_far, FIELDS(accx_repeat_t, REPEAT, 0)->block = 0xFFFFFFFE)             \
  X(BLOCK_USE, branch_block, FIELDS(accx_branch_t, BRANCH, 0)->then_block = 2)                     \
  X(EXPRESSION_USE, grid_far, dispatch_of(parts, ROWS)->grid[2] = 100000)                          \
  X(EXPRESSION_USE, grid_induction,                                                                \
    dispatch_of(parts, ROWS)->grid[0] = main_node(parts, ACCX_EXPR_INDUCTION))                     \
  X(EXPRESSION_USE, repeat_runtime,                                                                \
    FIELDS(accx_repeat_t, REPEAT, 0)->count = main_symbol(parts, SYMBOL_POSITION))                 \
  X(EXPRESSION_USE, repeat_bucket,                                                                 \
    FIELDS(accx_repeat_t, REPEAT, 0)->count = main_symbol(parts, SYMBOL_ROWS))                     \
  X(EXPRESSION_USE, branch_runtime,                                                                \
    FIELDS(accx_branch_t, BRANCH, 1)->condition = main_symbol(parts, SYMBOL_POSITION))             \
  X(EXPRESSION_USE, negative,                                                                      \
    node_record(parts, main_node(parts, ACCX_EXPR_CONSTANT))->immediate = -1)                      \
  X(EXPRESSION_OPERANDS, operand_later,                                                            \
    node_record(parts, main_node(parts, ACCX_EXPR_MUL))->a = main_node(parts, ACCX_EXPR_MUL))      \
  X(EXPRESSION_OPERANDS, immediate,                                                                \
    node_record(parts, main_node(parts, ACCX_EXPR_MUL))->immediate = 1)                            \
  X(EXPRESSION_LEAF, induction_deep,                                                               \
    node_record(parts, main_node(parts, ACCX_EXPR_INDUCTION))->immediate = 16)                     \
  X(STRING_TABLE, strings_begin, find_part(parts, ACCX_SECTION_STRINGS)->bytes[0] = 'x')           \
  X(STRING_TABLE, strings_count, ++find_part(parts, ACCX_SECTION_STRINGS)->section.record_count)   \
  X(STRING_ORDER, strings_order, find_part(parts, ACCX_SECTION_STRINGS)->bytes[1] = '~')           \
  X(STRING_ORDER, strings_twice, find_part(parts, ACCX_SECTION_STRINGS)->bytes[1] = '\0')          \
  X(SECTION_NEEDED, no_strings, remove_part(parts, ACCX_SECTION_STRINGS))                          \
  X(SECTION_NEEDED, no_chunk_digests, remove_part(parts, ACCX_SECTION_CHUNK_DIGESTS))              \
  X(SECTION_NEEDED, no_data, remove_part(parts, ACCX_SECTION_DATA))                                \
  X(COMPONENT_PLACE, data_long, resize_part(find_part(parts, ACCX_SECTION_DATA), 1000))            \
  X(COMPONENT_PLACE, data_short, resize_part(find_part(parts, ACCX_SECTION_DATA), 512))            \
  X(COMPONENTS, component_more,                                                                    \
    resize_part(find_part(parts, ACCX_SECTION_COMPONENTS), 6 * sizeof(accx_component_t)))          \
  X(COMPONENTS, component_none, remove_part(parts, ACCX_SECTION_COMPONENTS))                       \
  X(SYMBOL_BUCKETS, bucket_more, resize_part(find_part(parts, ACCX_SECTION_BUCKETS), 32))          \
  X(SYMBOL_BUCKETS, bucket_negative,                                                               \
    *(int64_t*)(void*)find_part(parts, ACCX_SECTION_BUCKETS)->bytes = -4)                          \
  X(SYMBOL_BUCKETS, bucket_equal,                                                                  \
    *(int64_t*)(void*)find_part(parts, ACCX_SECTION_BUCKETS)->bytes = 16)                          \
  X(EXPRESSION_OP, expression_wrong,                                                               \
    ((accx_expression_t*)record_of(parts, ACCX_SECTION_EXPRESSIONS, sizeof(accx_expression_t), 1)) \
        ->op = UINT32_MAX)                                                                         \
  X(EXPRESSION_SCOPE, expression_more,                                                             \
    resize_part(find_part(parts, ACCX_SECTION_EXPRESSIONS),                                        \
                find_part(parts, ACCX_SECTION_EXPRESSIONS)->size_bytes +                           \
                    sizeof(accx_expression_t)))                                                    \
  X(FUNCTION_TILING, argument_more,                                                                \
    resize_part(find_part(parts, ACCX_SECTION_ARGUMENTS),                                          \
                find_part(parts, ACCX_SECTION_ARGUMENTS)->size_bytes + sizeof(accx_argument_t)))   \
  X(FUNCTION_TILING, slots_none, remove_part(parts, ACCX_SECTION_SLOTS))                           \
  X(VIEW, view_more, resize_part(find_part(parts, ACCX_SECTION_VIEWS), 2 * sizeof(accx_view_t)))   \
  X(BLOCK_TILING, stream_more,                                                                     \
    resize_part(find_part(parts, ACCX_SECTION_COMMANDS),                                           \
                find_part(parts, ACCX_SECTION_COMMANDS)->size_bytes + 8))                          \
  X(BLOCK_TILING, command_count, ++find_part(parts, ACCX_SECTION_COMMANDS)->section.record_count)  \
  X(IMAGE_PLACE, code_more,                                                                        \
    resize_part(find_part(parts, ACCX_SECTION_CODE),                                               \
                find_part(parts, ACCX_SECTION_CODE)->size_bytes + 1))                              \
  X(IMAGE_PLACE, code_gap,                                                                         \
    find_part(parts, ACCX_SECTION_CODE)                                                            \
        ->bytes[((accx_image_t*)record_of(parts, ACCX_SECTION_IMAGES, sizeof(accx_image_t), 1))    \
                    ->offset_bytes -                                                               \
                1] = 1)                                                                            \
  X(IMAGE_HEADER, elf_magic, find_part(parts, ACCX_SECTION_CODE)->bytes[0] = 0)                    \
  X(IMAGE_HEADER, elf_class, find_part(parts, ACCX_SECTION_CODE)->bytes[4] = 1)                    \
  X(IMAGE_HEADER, elf_type, find_part(parts, ACCX_SECTION_CODE)->bytes[16] = 2)                    \
  X(IMAGE_HEADER, elf_phoff, find_part(parts, ACCX_SECTION_CODE)->bytes[39] = 0xFF)                \
  X(IMAGE_HEADER, elf_shoff, find_part(parts, ACCX_SECTION_CODE)->bytes[47] = 0x7F)                \
  X(IMAGE_HEADER, ptx_nul,                                                                         \
    find_part(parts, ACCX_SECTION_CODE)                                                            \
        ->bytes[((accx_image_t*)record_of(parts, ACCX_SECTION_IMAGES, sizeof(accx_image_t), 1))    \
                    ->offset_bytes +                                                               \
                ((accx_image_t*)record_of(parts, ACCX_SECTION_IMAGES, sizeof(accx_image_t), 1))    \
                    ->size_bytes -                                                                 \
                1] = 'x')                                                                          \
  X(SECTION_UNKNOWN, section_required,                                                             \
    add_part(parts, 60, ACCX_SECTION_FLAG_REQUIRED, "future", 0, 16))                              \
  X(SECTION_UNKNOWN, section_reserved,                                                             \
    add_part(parts, ACCX_SECTION_COLLECTIVES, ACCX_SECTION_FLAG_REQUIRED, "collectives", 0, 16))   \
  X(SECTION_UNKNOWN, section_vendor,                                                               \
    add_part(parts, 0x10001, ACCX_SECTION_FLAG_REQUIRED, "vendor.thing", 0, 16))                   \
  X(SECTION_LIMITS, many_commands,                                                                 \
    find_part(parts, ACCX_SECTION_COMMANDS)->section.record_count = (1u << 24) + 1)                \
  X(SECTION_RECORDS, record_count, ++find_part(parts, ACCX_SECTION_SYMBOLS)->section.record_count) \
  X(SECTION_RECORDS, record_bytes,                                                                 \
    find_part(parts, ACCX_SECTION_SYMBOLS)->section.record_bytes = 48)                             \
  X(SECTION_RECORDS, unknown_records,                                                              \
    add_part(parts, 70, 0, "new.thing", 8, 16)->section.record_count = 3)                          \
  X(SECTION_RECORDS, data_records, find_part(parts, ACCX_SECTION_DATA)->section.record_count = 1)  \
  X(SECTION_FLAGS, section_flags, find_part(parts, ACCX_SECTION_SYMBOLS)->section.flags = 3)       \
  X(SECTION_FLAGS, section_optional, find_part(parts, ACCX_SECTION_SYMBOLS)->section.flags = 0)    \
  X(SECTION_FLAGS, metadata_required, find_part(parts, ACCX_SECTION_METADATA)->section.flags = 1)  \
  X(SECTION_NAME, section_name, find_part(parts, ACCX_SECTION_SYMBOLS)->section.name[0] = 'S')     \
  X(SECTION_NAME, section_name_tail,                                                               \
    find_part(parts, ACCX_SECTION_SYMBOLS)->section.name[15] = 'x')                                \
  X(SECTION_NAME, section_name_empty, add_part(parts, 60, 0, "", 0, 16))                           \
  X(SECTION_ORDER, section_zero, parts->parts[0].section.type = 0)                                 \
  X(SECTION_ORDER, section_twice, parts->parts[1].section.type = parts->parts[0].section.type)     \
  X(SECTION_BOUNDS, section_empty, resize_part(find_part(parts, ACCX_SECTION_STRINGS), 0))         \
  X(VERSION, container_major, parts->header.container.major = 1)                                   \
  X(VERSION, commands_major, parts->header.commands.major = 1)                                     \
  X(VERSION, kernel_abi_major, parts->header.kernel_abi.major = 0xFFFF)                            \
  X(VERSION, layouts_major, parts->header.layouts.major = 2)                                       \
  X(MINIMUM, container_minor, parts->header.container.minor = 0)                                   \
  X(MINIMUM, commands_minor, parts->header.commands.minor = 0)                                     \
  X(MINIMUM, kernel_abi_minor, parts->header.kernel_abi.minor = 0)                                 \
  X(MINIMUM, layouts_minor, parts->header.layouts.minor = 0)                                       \
  X(FILE_FEATURES, features, parts->header.required_features = UINT64_C(1) << 63)                  \
  X(HEADER_FIELDS, header_flags, parts->header.flags = 1)                                          \
  X(HEADER_FIELDS, header_reserved, parts->header.reserved[39] = 1)                                \
  X(HEADER_FIELDS, header_record, parts->header.section_record_bytes = 72)                         \
  X(HEADER_FIELDS, header_table, parts->header.section_table_offset = 136)                         \
  X(MAGIC, magic, parts->header.magic[7] = 0)
#define DEFINE(rule, name, code) MUTATION(rule, name, code)
MUTATION_LIST(DEFINE)
#undef DEFINE

/* Names that must be equal to another record's. */
static void copy_field(parts_t* parts, uint32_t type, size_t record_bytes, size_t offset,
                       uint32_t from, uint32_t to) {
  const unsigned char* source = record_of(parts, type, record_bytes, from);
  unsigned char* target = record_of(parts, type, record_bytes, to);
  memcpy(target + offset, source + offset, 4);
}
#define SAME_NAME_LIST(X)                                                                          \
  X(NAME_ORDER, METADATA, accx_metadata_t, key, 0, 1)                                              \
  X(NAME_ORDER, SYMBOLS, accx_symbol_t, name, 0, 1)                                                \
  X(NAME_ORDER, CONSTANTS, accx_constant_t, name, 1, 2)                                            \
  X(NAME_ORDER, KERNELS, accx_kernel_t, name, 0, 1)                                                \
  X(NAME_ORDER, IMAGES, accx_image_t, name, 0, 1)                                                  \
  X(FUNCTION_NAME, FUNCTIONS, accx_function_t, name, FUNCTION_HELPER, FUNCTION_MAIN)               \
  X(ARGUMENT_NAME, ARGUMENTS, accx_argument_t, name, ARGUMENT_MAIN, ARGUMENT_MAIN + 1)             \
  X(ARGUMENT_NAME, ARGUMENTS, accx_argument_t, name, ARGUMENT_MAIN + 5, ARGUMENT_MAIN + 6)         \
  X(PARAMETER_NAME, PARAMETERS, accx_parameter_t, name, 0, 1)

static void expect_mutation(const mutation_case_t* test) {
  parts_t parts = take_apart(&golden);
  test->mutate(&parts);
  bytes_t file = put_together(&parts);
  expect_rule(&file, test->rule, test->name);
  free(file.data);
  free_parts(&parts);
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

/* ---- Mutations that need more than one place ---- */

/* "helper" under a name that sorts behind "pack". */
static void mutate_function_order(parts_t* parts) {
  accx_function_t* helper =
      record_of(parts, ACCX_SECTION_FUNCTIONS, sizeof *helper, FUNCTION_HELPER);
  const accx_argument_t* x = record_of(parts, ACCX_SECTION_ARGUMENTS, sizeof *x, ARGUMENT_HELPER);
  helper->name = x->name;
}

/* `rows` is then bound by nothing. */
static void mutate_symbol_unbound(parts_t* parts) {
  accx_argument_t* x = record_of(parts, ACCX_SECTION_ARGUMENTS, sizeof *x, ARGUMENT_MAIN);
  x->type.dims[0] = x->type.dims[1];
}

/* The arena's slot before the states'. */
static void mutate_slot_order(parts_t* parts) {
  part_t* part = find_part(parts, ACCX_SECTION_SLOTS);
  accx_slot_t* last = (accx_slot_t*)(void*)(part->bytes + part->size_bytes) - 1;
  const accx_slot_t swap = last[0];
  last[0] = last[-1];
  last[-1] = swap;
}

/* A constant that does not exist. */
static void mutate_slot_target(parts_t* parts) {
  part_t* part = find_part(parts, ACCX_SECTION_SLOTS);
  accx_slot_t* slot = (accx_slot_t*)(void*)(part->bytes + part->size_bytes) - 3;
  assert_int_equal(slot->kind, ACCX_SLOT_CONSTANT);
  slot->index = 5;
}

static void mutate_block_more(parts_t* parts) {
  part_t* part = find_part(parts, ACCX_SECTION_BLOCKS);
  resize_part(part, part->size_bytes + sizeof(accx_block_t));
  accx_block_t* block = (accx_block_t*)(void*)(part->bytes + part->size_bytes) - 1;
  block->offset_bytes = find_part(parts, ACCX_SECTION_COMMANDS)->size_bytes;
}

static void append_string(parts_t* parts, const char* text) {
  part_t* part = find_part(parts, ACCX_SECTION_STRINGS);
  const size_t before = part->size_bytes;
  resize_part(part, before + strlen(text) + 1);
  memcpy(part->bytes + before, text, strlen(text) + 1);
  ++part->section.record_count;
}

static void mutate_string_long(parts_t* parts) {
  char* text = must_alloc(70000);
  memset(text, '~', 69999);
  append_string(parts, text);
  free(text);
}

static void mutate_name_long(parts_t* parts) {
  char text[1100];
  memset(text, '~', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  const uint32_t offset = (uint32_t)find_part(parts, ACCX_SECTION_STRINGS)->size_bytes;
  append_string(parts, text);
  accx_image_t* image = record_of(parts, ACCX_SECTION_IMAGES, sizeof *image, IMAGE_X86);
  image->name = offset;
}

/* Code, and nothing that names it. */
static void mutate_only_code(parts_t* parts) {
  for (uint32_t i = parts->count; i-- > 0;) {
    const uint32_t type = parts->parts[i].section.type;
    if (type != ACCX_SECTION_STRINGS && type != ACCX_SECTION_CODE)
      remove_part(parts, type);
  }
}

static void mutate_strings_end(parts_t* parts) {
  part_t* part = find_part(parts, ACCX_SECTION_STRINGS);
  part->bytes[part->size_bytes - 1] = 'x';
}

/* A prepare function that reads the session: its slot becomes a state's. */
static void mutate_prepare_impure(parts_t* parts) {
  accx_function_t* main_function =
      record_of(parts, ACCX_SECTION_FUNCTIONS, sizeof *main_function, FUNCTION_MAIN);
  accx_function_t* pack = record_of(parts, ACCX_SECTION_FUNCTIONS, sizeof *pack, FUNCTION_PACK);
  part_t* slots = find_part(parts, ACCX_SECTION_SLOTS);
  const size_t place = (pack->slot_first + pack->slot_count) * sizeof(accx_slot_t);
  resize_part(slots, slots->size_bytes + sizeof(accx_slot_t));
  memmove(slots->bytes + place + sizeof(accx_slot_t), slots->bytes + place,
          slots->size_bytes - sizeof(accx_slot_t) - place);
  const accx_slot_t slot = {ACCX_SLOT_STATE, 0, 0, 0};
  memcpy(slots->bytes + place, &slot, sizeof slot);
  ++pack->slot_count;
  ++main_function->slot_first;
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

static accx_section_t* table_entry(bytes_t* file, uint32_t index) {
  return (accx_section_t*)(void*)(file->data + sizeof(accx_header_t) +
                                  index * sizeof(accx_section_t));
}

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

/* Memory that ends where a page begins that may not be touched: reading past a file's end is a
 * crash. */
typedef struct guarded {
  unsigned char* mapping;
  size_t size; /* without the guard */
} guarded_t;

static guarded_t make_guarded(size_t size) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  guarded_t guarded = {NULL, (size + page - 1) / page * page};
  void* mapping =
      mmap(NULL, guarded.size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(mapping, MAP_FAILED);
  guarded.mapping = mapping;
  assert_int_equal(mprotect(guarded.mapping + guarded.size, page, PROT_NONE), 0);
  return guarded;
}

static void free_guarded(guarded_t* guarded) {
  munmap(guarded->mapping, guarded->size + (size_t)sysconf(_SC_PAGESIZE));
}

static void truncation(void** state) {
  (void)state;
  guarded_t guarded = make_guarded(golden.size);
  for (size_t size = 0; size < golden.size; size += STRIDE) {
    bytes_t file = {guarded.mapping + guarded.size - size, size};
    memcpy(file.data, golden.data, size);
    accrt_bundle_t* bundle;
    assert_int_equal(open_file(&file, NULL, &bundle), ACCRT_ERROR_INVALID_FORMAT);
    assert_int_equal(rule_of_record(), ACCX_RULE_FILE_SIZE);
    /* With the size and the header's digest made right. */
    if (size >= sizeof(accx_header_t) + 22 * sizeof(accx_section_t)) {
      accx_header_t header;
      memcpy(&header, file.data, sizeof header);
      header.file_size_bytes = size;
      memcpy(file.data, &header, sizeof header);
      redo_header_digest(&file);
      assert_int_not_equal(open_file(&file, NULL, &bundle), ACCRT_OK);
    }
  }
  free_guarded(&guarded);
}

/* True when the byte lies in DATA, which is not read at open. */
static bool is_data(size_t at) {
  const accx_section_t* data =
      table_entry(&golden, ((const accx_header_t*)(const void*)golden.data)->section_count - 1);
  return at >= data->offset;
}

static void flipped_bits(void** state) {
  (void)state;
  bytes_t file = copy_bytes(&golden);
  const size_t table_end = sizeof(accx_header_t) + 22 * sizeof(accx_section_t);
  for (size_t at = 0; at < file.size; at += STRIDE) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      /* Every bit of header and table, and one of every other byte. */
      if (at >= table_end && bit != at % 8)
        continue;
      file.data[at] = (unsigned char)(file.data[at] ^ (1u << bit));
      accrt_bundle_t* bundle;
      const accrt_status_t status = open_file(&file, NULL, &bundle);
      if (!is_data(at)) {
        assert_int_not_equal(status, ACCRT_OK);
      } else {
        assert_int_equal(status, ACCRT_OK);
        assert_int_equal(accrt_bundle_verify(bundle), ACCRT_ERROR_DATA_CORRUPT);
        assert_int_equal(rule_of_record(), ACCX_RULE_DATA_DIGEST);
        accrt_bundle_release(bundle);
      }
      file.data[at] = golden.data[at];
    }
  }
  free(file.data);
}

/* Damage that no digest catches: either refused by a rule, or a bundle that can be used. */
static void try_damaged(const bytes_t* file) {
  accrt_bundle_t* bundle;
  if (open_file(file, NULL, &bundle) == ACCRT_OK) {
    use_bundle(bundle);
    accrt_bundle_release(bundle);
  } else {
    assert_int_not_equal(rule_of_record(), 0);
  }
}

static void flip_bits_of(const bytes_t* good) {
  bytes_t file = copy_bytes(good);
  const uint32_t count = ((const accx_header_t*)(const void*)good->data)->section_count;
  for (uint32_t i = 0; i < count; ++i) {
    accx_section_t* section = table_entry(&file, i);
    const accx_section_t saved_section = *section;
    if (section->type == ACCX_SECTION_CHUNK_DIGESTS || section->type >= ACCX_SECTION_CODE)
      continue;
    for (size_t at = section->offset; at < section->offset + section->size_bytes; at += STRIDE) {
      const unsigned char saved = file.data[at];
      const unsigned char values[] = {(unsigned char)(saved ^ (1u << at % 8)), 0xFF};
      for (size_t k = 0; k < sizeof values; ++k) {
        file.data[at] = values[k];
        section->digest = accx_digest_of(file.data + section->offset, (size_t)section->size_bytes);
        redo_header_digest(&file);
        try_damaged(&file);
      }
      file.data[at] = saved;
    }
    *section = saved_section;
  }
  free(file.data);
}

static void flipped_bits_with_right_digests(void** state) {
  (void)state;
  flip_bits_of(&golden);
  flip_bits_of(&golden_0_2);
}

static void random_damage(void** state) {
  (void)state;
  const unsigned seed = (unsigned)time(NULL) ^ (unsigned)getpid();
  print_message("seed %u\n", seed);
  srand(seed);
  static const uint32_t interesting[] = {
      0, 1, 2, 3, 7, 8, 16, 255, 256, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF};
  for (int round = 0; round < (int)(6000 / STRIDE); ++round) {
    parts_t parts = take_apart(rand() % 2 == 0 ? &golden : &golden_0_2);
    for (int k = rand() % 4; k >= 0; --k) {
      part_t* part = &parts.parts[(uint32_t)rand() % parts.count];
      const size_t at = (size_t)rand() % part->size_bytes;
      uint32_t value = interesting[(size_t)rand() % (sizeof interesting / sizeof interesting[0])];
      if (rand() % 3 == 0)
        value = (uint32_t)rand() % 64;
      if (rand() % 8 == 0)
        resize_part(part, 1 + (size_t)rand() % (2 * part->size_bytes));
      if ((at & ~(size_t)3) + 4 <= part->size_bytes)
        memcpy(part->bytes + (at & ~(size_t)3), &value, 4);
    }
    bytes_t file = put_together(&parts);
    try_damaged(&file);
    free(file.data);
    free_parts(&parts);
  }
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
      cmocka_unit_test(truncation),
      cmocka_unit_test(flipped_bits),
      cmocka_unit_test(flipped_bits_with_right_digests),
      cmocka_unit_test(random_damage),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
