/* loader/hostile_test_mutations.h - changes of one field, of one command and of several places
 * of the golden bundle, each with the rule that refuses it. A part of hostile_test.c. */
#ifndef ACCRT_LOADER_HOSTILE_TEST_MUTATIONS_H_
#define ACCRT_LOADER_HOSTILE_TEST_MUTATIONS_H_

#include "loader/hostile_test.h"

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
/* ---- Mutations of commands ---- */

/* The nth command of an opcode in the stream. */
static inline accx_command_t* command_of(parts_t* parts, uint32_t opcode, uint32_t nth) {
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
static inline accx_dispatch_t* dispatch_of(parts_t* parts, uint32_t nth) {
  return FIELDS(accx_dispatch_t, DISPATCH, nth);
}
static inline accx_operand_t* operand_of(parts_t* parts, uint32_t nth, uint32_t operand) {
  return (accx_operand_t*)(uintptr_t)accx_dispatch_operands(dispatch_of(parts, nth)) + operand;
}
static inline accx_operand_t* call_operand_of(parts_t* parts, uint32_t operand) {
  return (accx_operand_t*)(uintptr_t)accx_call_operands(FIELDS(accx_call_t, CALL, 0)) + operand;
}
static inline uint32_t* predecessors_of(parts_t* parts, uint32_t opcode) {
  return (uint32_t*)(uintptr_t)accx_command_predecessors(command_of(parts, opcode, 0));
}
/* Dispatches: 0 and 1 in helper, 2 in pack, 3 is "row sums" in main (x TENSOR, sum, scratch
 * WORKSPACE, square SCALAR). */
enum { ROWS = 3 };

/* A node of main's scope with an op. */
static inline uint32_t main_node(parts_t* parts, uint32_t op) {
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
static inline accx_expression_t* node_record(parts_t* parts, uint32_t node) {
  const accx_function_t* function =
      record_of(parts, ACCX_SECTION_FUNCTIONS, sizeof *function, FUNCTION_MAIN);
  return record_of(parts, ACCX_SECTION_EXPRESSIONS, sizeof(accx_expression_t),
                   function->expression_first + node);
}
static inline uint32_t main_symbol(parts_t* parts, int64_t symbol) {
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
static inline void copy_field(parts_t* parts, uint32_t type, size_t record_bytes, size_t offset,
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

static inline void expect_mutation(const mutation_case_t* test) {
  parts_t parts = take_apart(&golden);
  test->mutate(&parts);
  bytes_t file = put_together(&parts);
  expect_rule(&file, test->rule, test->name);
  free(file.data);
  free_parts(&parts);
}

/* ---- Mutations that need more than one place ---- */

/* "helper" under a name that sorts behind "pack". */
static inline void mutate_function_order(parts_t* parts) {
  accx_function_t* helper =
      record_of(parts, ACCX_SECTION_FUNCTIONS, sizeof *helper, FUNCTION_HELPER);
  const accx_argument_t* x = record_of(parts, ACCX_SECTION_ARGUMENTS, sizeof *x, ARGUMENT_HELPER);
  helper->name = x->name;
}

/* `rows` is then bound by nothing. */
static inline void mutate_symbol_unbound(parts_t* parts) {
  accx_argument_t* x = record_of(parts, ACCX_SECTION_ARGUMENTS, sizeof *x, ARGUMENT_MAIN);
  x->type.dims[0] = x->type.dims[1];
}

/* The arena's slot before the states'. */
static inline void mutate_slot_order(parts_t* parts) {
  part_t* part = find_part(parts, ACCX_SECTION_SLOTS);
  accx_slot_t* last = (accx_slot_t*)(void*)(part->bytes + part->size_bytes) - 1;
  const accx_slot_t swap = last[0];
  last[0] = last[-1];
  last[-1] = swap;
}

/* A constant that does not exist. */
static inline void mutate_slot_target(parts_t* parts) {
  part_t* part = find_part(parts, ACCX_SECTION_SLOTS);
  accx_slot_t* slot = (accx_slot_t*)(void*)(part->bytes + part->size_bytes) - 3;
  assert_int_equal(slot->kind, ACCX_SLOT_CONSTANT);
  slot->index = 5;
}

static inline void mutate_block_more(parts_t* parts) {
  part_t* part = find_part(parts, ACCX_SECTION_BLOCKS);
  resize_part(part, part->size_bytes + sizeof(accx_block_t));
  accx_block_t* block = (accx_block_t*)(void*)(part->bytes + part->size_bytes) - 1;
  block->offset_bytes = find_part(parts, ACCX_SECTION_COMMANDS)->size_bytes;
}

static inline void append_string(parts_t* parts, const char* text) {
  part_t* part = find_part(parts, ACCX_SECTION_STRINGS);
  const size_t before = part->size_bytes;
  resize_part(part, before + strlen(text) + 1);
  memcpy(part->bytes + before, text, strlen(text) + 1);
  ++part->section.record_count;
}

static inline void mutate_string_long(parts_t* parts) {
  char* text = must_alloc(70000);
  memset(text, '~', 69999);
  append_string(parts, text);
  free(text);
}

static inline void mutate_name_long(parts_t* parts) {
  char text[1100];
  memset(text, '~', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  const uint32_t offset = (uint32_t)find_part(parts, ACCX_SECTION_STRINGS)->size_bytes;
  append_string(parts, text);
  accx_image_t* image = record_of(parts, ACCX_SECTION_IMAGES, sizeof *image, IMAGE_X86);
  image->name = offset;
}

/* Code, and nothing that names it. */
static inline void mutate_only_code(parts_t* parts) {
  for (uint32_t i = parts->count; i-- > 0;) {
    const uint32_t type = parts->parts[i].section.type;
    if (type != ACCX_SECTION_STRINGS && type != ACCX_SECTION_CODE)
      remove_part(parts, type);
  }
}

static inline void mutate_strings_end(parts_t* parts) {
  part_t* part = find_part(parts, ACCX_SECTION_STRINGS);
  part->bytes[part->size_bytes - 1] = 'x';
}

/* A prepare function that reads the session: its slot becomes a state's. */
static inline void mutate_prepare_impure(parts_t* parts) {
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

#endif /* ACCRT_LOADER_HOSTILE_TEST_MUTATIONS_H_ */
