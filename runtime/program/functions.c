/* runtime/program/functions.c - facts about a program's functions that no call changes: the symbols
 * that their inputs bind, the expressions that their signatures need, and the scalars that change
 * only patched values.
 */
#include <string.h>

#include "runtime/core/near_name.h"
#include "runtime/program/internal.h"

static accrt_status_t fail_function_name(const accrt_program_t* program, const char* name) {
  const uint32_t hidden = ACCX_FUNCTION_PREPARE | ACCX_FUNCTION_INTERNAL;
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < program->tables->function_count; ++i) {
    if ((program->tables->functions[i].flags & hidden) == 0 && program->reach.functions[i] != 0)
      accrt_near_add(&near, accrt_function_name(program, i));
  }
  return ACCRT_FAIL(NOT_FOUND, "bundle '%s' has no function '%s'%s",
                    accrt_bundle_name(program->bundle), name, accrt_near_text(&near));
}

/* Records that a function has versions, but none for this device. */
static accrt_status_t fail_function_target(const accrt_program_t* program, uint32_t first) {
  char bytes[160] = "";
  accrt_text_t text = {bytes, sizeof bytes, 0};
  for (uint32_t i = first; i != ACCX_NONE; i = program->tables->function_next[i]) {
    accrt_text_add(&text, "%s%s", i == first ? "" : ", ",
                   accrt_program_string(program, program->tables->functions[i].target));
  }
  return ACCRT_FAIL(NO_VARIANT, "function '%s' is for devices of %s, this is %s",
                    accrt_function_name(program, first), bytes,
                    accrt_device_facts(program->device)->name);
}

accrt_status_t accrt_function_check_features(const accrt_program_t* program, uint32_t function) {
  const uint64_t unknown =
      program->tables->functions[function].required_features & ~ACCX_FUNCTION_FEATURES_KNOWN;
  if (unknown == 0)
    return ACCRT_OK;
  return ACCRT_FAIL(VERSION_MISMATCH,
                    "function '%s' requires feature bit %d (of 0x%" PRIx64
                    "), which this library does not know",
                    accrt_function_name(program, function), __builtin_ctzll(unknown), unknown);
}

accrt_status_t accrt_program_find_function(const accrt_program_t* program, const char* name,
                                           uint32_t* out_function) {
  if (name == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "the function's name is NULL");
  const uint32_t first = accrt_bundle_lookup_function(program->bundle, name);
  if (first == ACCX_NONE)
    return fail_function_name(program, name);
  const uint32_t index = accrt_bundle_function_for(program->tables, first,
                                                   accrt_device_facts(program->device)->driver);
  if (index == ACCX_NONE)
    return fail_function_target(program, first);
  const uint32_t flags = program->tables->functions[index].flags;
  if ((flags & (ACCX_FUNCTION_PREPARE | ACCX_FUNCTION_INTERNAL)) != 0) {
    return ACCRT_FAIL(PERMISSION_DENIED, "function '%s' is %s: a program cannot call it", name,
                      (flags & ACCX_FUNCTION_PREPARE) != 0 ? "a prepare function"
                                                           : "internal to its bundle");
  }
  const accrt_status_t status = accrt_function_check_features(program, index);
  if (status == ACCRT_OK)
    *out_function = index;
  return status;
}

/* ---- Signatures ---- */

/* Marks in `needed` the nodes that the types of all arguments are made of. */
static void mark_signature(const accrt_program_t* program, uint32_t function, uint8_t* needed) {
  const accx_argument_t* arguments = accrt_function_arguments(program, function);
  const accx_expression_t* scope = accrt_function_scope(program, function);
  for (uint32_t i = 0; i < accrt_function_argument_count(program, function); ++i) {
    for (uint32_t d = 0; d < arguments[i].type.rank; ++d)
      needed[arguments[i].type.dims[d]] = 1;
  }
  for (uint32_t i = program->tables->functions[function].expression_count; i-- > 0;) {
    const uint32_t count = needed[i] ? accx_expression_operands(scope[i].op) : 0;
    if (count > 0)
      needed[scope[i].a] = 1;
    if (count > 1)
      needed[scope[i].b] = 1;
    if (count > 2)
      needed[scope[i].c] = 1;
  }
}

/* Marks by symbol of the module. Each mark is a function's index + 1, so that no array has to be
 * cleared or searched between functions. */
typedef struct symbol_marks {
  uint32_t* listed;  /* the last function that lists the symbol */
  uint32_t* used;    /* the last function whose signature uses it outside of scalars */
  uint32_t* scalars; /* the last function with a scalar for it */
  uint32_t* counts;  /* the number of scalars for it in that function */
} symbol_marks_t;

static void mark_used(const accrt_program_t* program, uint32_t function, const uint8_t* needed,
                      const symbol_marks_t* marks) {
  const accx_expression_t* scope = accrt_function_scope(program, function);
  for (uint32_t i = 0; i < program->tables->functions[function].expression_count; ++i) {
    if (needed[i] && scope[i].op == ACCX_EXPR_SYMBOL)
      marks->used[scope[i].immediate] = function + 1;
  }
}

static void mark_scalar(uint32_t function, uint32_t symbol, const symbol_marks_t* marks) {
  if (marks->scalars[symbol] != function + 1)
    marks->counts[symbol] = 0;
  marks->scalars[symbol] = function + 1;
  ++marks->counts[symbol];
}

static void add_symbol(accrt_program_function_t* info, uint32_t function, uint32_t symbol,
                       const symbol_marks_t* marks) {
  if (marks->listed[symbol] == function + 1)
    return;
  marks->listed[symbol] = function + 1;
  info->symbols[info->symbol_count++] = symbol;
}

/* Each bare dimension and each scalar binds at most one symbol, which limits their number. */
static accrt_status_t collect_symbols(accrt_program_t* program, uint32_t function,
                                      const symbol_marks_t* marks) {
  accrt_program_function_t* info = &program->functions[function];
  const accx_argument_t* arguments = accrt_function_arguments(program, function);
  const accx_expression_t* scope = accrt_function_scope(program, function);
  size_t most = 0;
  for (uint32_t i = 0; i < info->input_count; ++i)
    most += arguments[i].type.rank + 1;
  if (most > program->tables->symbol_count)
    most = program->tables->symbol_count;
  ACCRT_TRY(ACCRT_NEW_ARRAY(program->allocator, most, &info->symbols));
  info->symbol_capacity = (uint32_t)most;
  for (uint32_t i = 0; i < info->input_count; ++i) {
    if (arguments[i].kind == ACCX_ARGUMENT_SCALAR) {
      add_symbol(info, function, arguments[i].symbol, marks);
      mark_scalar(function, arguments[i].symbol, marks);
    }
    for (uint32_t d = 0; d < arguments[i].type.rank; ++d) {
      const accx_expression_t* node = &scope[arguments[i].type.dims[d]];
      if (node->op == ACCX_EXPR_SYMBOL)
        add_symbol(info, function, (uint32_t)node->immediate, marks);
    }
  }
  return ACCRT_OK;
}

static accrt_status_t mark_quick_scalars(accrt_program_t* program, uint32_t function,
                                         const symbol_marks_t* marks) {
  accrt_program_function_t* info = &program->functions[function];
  const accx_argument_t* arguments = accrt_function_arguments(program, function);
  void* memory;
  ACCRT_TRY(accrt_alloc_array(program->allocator, info->input_count, 1, &memory));
  info->quick_scalars = memory;
  for (uint32_t i = 0; i < info->input_count; ++i) {
    if (arguments[i].kind != ACCX_ARGUMENT_SCALAR)
      continue;
    const uint32_t symbol = arguments[i].symbol;
    const bool is_runtime = program->tables->symbols[symbol].symbol_class == ACCX_SYMBOL_RUNTIME;
    info->quick_scalars[i] =
        is_runtime && marks->counts[symbol] == 1 && marks->used[symbol] != function + 1;
  }
  return ACCRT_OK;
}

static accrt_status_t collect_signature(accrt_program_t* program, uint32_t function,
                                        const uint8_t* needed) {
  accrt_program_function_t* info = &program->functions[function];
  const uint32_t node_count = program->tables->functions[function].expression_count;
  for (uint32_t i = 0; i < node_count; ++i)
    info->signature_node_capacity += needed[i];
  ACCRT_TRY(
      ACCRT_NEW_ARRAY(program->allocator, info->signature_node_capacity, &info->signature_nodes));
  for (uint32_t i = 0; i < node_count; ++i) {
    if (needed[i])
      info->signature_nodes[info->signature_node_count++] = i;
  }
  return ACCRT_OK;
}

static accrt_status_t create_function(accrt_program_t* program, uint32_t function,
                                      const symbol_marks_t* marks) {
  const uint32_t node_count = program->tables->functions[function].expression_count;
  program->functions[function].input_count = program->tables->functions[function].input_count;
  void* needed;
  ACCRT_TRY(accrt_alloc_array(program->allocator, node_count, 1, &needed));
  if (node_count != 0) {
    mark_signature(program, function, needed);
    mark_used(program, function, needed, marks);
  }
  accrt_status_t status = collect_symbols(program, function, marks);
  if (status == ACCRT_OK)
    status = mark_quick_scalars(program, function, marks);
  if (status == ACCRT_OK)
    status = collect_signature(program, function, needed);
  accrt_free_array(program->allocator, needed, node_count, 1);
  return status;
}

accrt_status_t accrt_program_functions_create(accrt_program_t* program) {
  accrt_status_t status =
      ACCRT_NEW_ARRAY(program->allocator, program->tables->function_count, &program->functions);
  const size_t symbol_count = program->tables->symbol_count;
  void* marks_memory = NULL;
  if (status == ACCRT_OK)
    status =
        accrt_alloc_array(program->allocator, symbol_count, 4 * sizeof(uint32_t), &marks_memory);
  uint32_t* const words = marks_memory;
  symbol_marks_t marks = {NULL, NULL, NULL, NULL};
  if (words != NULL) {
    marks = (symbol_marks_t){words, words + symbol_count, words + 2 * symbol_count,
                             words + 3 * symbol_count};
  }
  for (uint32_t i = 0; i < program->tables->function_count && status == ACCRT_OK; ++i) {
    status = accrt_charge((uint64_t)program->tables->functions[i].expression_count + 1);
    if (status == ACCRT_OK)
      status = create_function(program, i, &marks);
  }
  accrt_free_array(program->allocator, marks_memory, symbol_count, 4 * sizeof(uint32_t));
  return status;
}

void accrt_program_functions_destroy(accrt_program_t* program) {
  if (program->functions == NULL)
    return;
  for (uint32_t i = 0; i < program->tables->function_count; ++i) {
    accrt_program_function_t* info = &program->functions[i];
    accrt_free_array(program->allocator, info->symbols, info->symbol_capacity,
                     sizeof *info->symbols);
    accrt_free_array(program->allocator, info->quick_scalars, info->input_count, 1);
    accrt_free_array(program->allocator, info->signature_nodes, info->signature_node_capacity,
                     sizeof *info->signature_nodes);
  }
  accrt_free_array(program->allocator, program->functions, program->tables->function_count,
                   sizeof *program->functions);
}
