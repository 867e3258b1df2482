/* runtime/program/functions.c - what is known of a program's functions before any call: which symbols their inputs bind, which
 * expressions their signatures need, which scalars change nothing but patched values.
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

/* A function that has versions, but none for this device. */
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
    return ACCRT_FAIL(
        PERMISSION_DENIED, "function '%s' is %s: it is not for calls from outside", name,
        (flags & ACCX_FUNCTION_PREPARE) != 0 ? "a prepare function" : "internal to its bundle");
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
    const uint32_t count = needed[i] ? accrt_expr_operand_count(scope[i].op) : 0;
    if (count > 0)
      needed[scope[i].a] = 1;
    if (count > 1)
      needed[scope[i].b] = 1;
    if (count > 2)
      needed[scope[i].c] = 1;
  }
}

static bool signature_uses(const accrt_program_t* program, uint32_t function, const uint8_t* needed,
                           uint32_t symbol) {
  const accx_expression_t* scope = accrt_function_scope(program, function);
  for (uint32_t i = 0; i < program->tables->functions[function].expression_count; ++i) {
    if (needed[i] && scope[i].op == ACCX_EXPR_SYMBOL && scope[i].immediate == (int64_t)symbol)
      return true;
  }
  return false;
}

static void add_symbol(accrt_program_function_t* info, uint32_t symbol) {
  for (uint32_t i = 0; i < info->symbol_count; ++i) {
    if (info->symbols[i] == symbol)
      return;
  }
  info->symbols[info->symbol_count++] = symbol;
}

/* Every bare dimension and every scalar may bind one symbol: that bounds their number. */
static accrt_status_t collect_symbols(accrt_program_t* program, uint32_t function) {
  accrt_program_function_t* info = &program->functions[function];
  const accx_argument_t* arguments = accrt_function_arguments(program, function);
  const accx_expression_t* scope = accrt_function_scope(program, function);
  size_t most = 0;
  for (uint32_t i = 0; i < info->input_count; ++i)
    most += arguments[i].type.rank + 1;
  if (most > program->tables->symbol_count)
    most = program->tables->symbol_count;
  void* memory;
  const accrt_status_t status =
      accrt_alloc_array(program->allocator, most, sizeof *info->symbols, &memory);
  if (status != ACCRT_OK)
    return status;
  info->symbols = memory;
  info->symbol_capacity = (uint32_t)most;
  for (uint32_t i = 0; i < info->input_count; ++i) {
    if (arguments[i].kind == ACCX_ARGUMENT_SCALAR)
      add_symbol(info, arguments[i].symbol);
    for (uint32_t d = 0; d < arguments[i].type.rank; ++d) {
      const accx_expression_t* node = &scope[arguments[i].type.dims[d]];
      if (node->op == ACCX_EXPR_SYMBOL)
        add_symbol(info, (uint32_t)node->immediate);
    }
  }
  return ACCRT_OK;
}

static uint32_t scalar_count_of(const accx_argument_t* arguments, uint32_t count, uint32_t symbol) {
  uint32_t result = 0;
  for (uint32_t i = 0; i < count; ++i) {
    result += arguments[i].kind == ACCX_ARGUMENT_SCALAR && arguments[i].symbol == symbol;
  }
  return result;
}

static accrt_status_t mark_quick_scalars(accrt_program_t* program, uint32_t function,
                                         const uint8_t* needed) {
  accrt_program_function_t* info = &program->functions[function];
  const accx_argument_t* arguments = accrt_function_arguments(program, function);
  void* memory;
  const accrt_status_t status =
      accrt_alloc_array(program->allocator, info->input_count, 1, &memory);
  if (status != ACCRT_OK)
    return status;
  info->quick_scalars = memory;
  for (uint32_t i = 0; i < info->input_count; ++i) {
    if (arguments[i].kind != ACCX_ARGUMENT_SCALAR)
      continue;
    const uint32_t symbol = arguments[i].symbol;
    const bool is_runtime = program->tables->symbols[symbol].symbol_class == ACCX_SYMBOL_RUNTIME;
    info->quick_scalars[i] = is_runtime &&
                             scalar_count_of(arguments, info->input_count, symbol) == 1 &&
                             !signature_uses(program, function, needed, symbol);
  }
  return ACCRT_OK;
}

static accrt_status_t collect_signature(accrt_program_t* program, uint32_t function,
                                        const uint8_t* needed) {
  accrt_program_function_t* info = &program->functions[function];
  const uint32_t node_count = program->tables->functions[function].expression_count;
  for (uint32_t i = 0; i < node_count; ++i)
    info->signature_node_capacity += needed[i];
  void* memory;
  const accrt_status_t status = accrt_alloc_array(program->allocator, info->signature_node_capacity,
                                                  sizeof *info->signature_nodes, &memory);
  if (status != ACCRT_OK)
    return status;
  info->signature_nodes = memory;
  for (uint32_t i = 0; i < node_count; ++i) {
    if (needed[i])
      info->signature_nodes[info->signature_node_count++] = i;
  }
  return ACCRT_OK;
}

static accrt_status_t create_function(accrt_program_t* program, uint32_t function) {
  const uint32_t node_count = program->tables->functions[function].expression_count;
  program->functions[function].input_count = program->tables->functions[function].input_count;
  void* needed;
  accrt_status_t status = accrt_alloc_array(program->allocator, node_count, 1, &needed);
  if (status != ACCRT_OK)
    return status;
  if (node_count != 0)
    mark_signature(program, function, needed);
  status = collect_symbols(program, function);
  if (status == ACCRT_OK)
    status = mark_quick_scalars(program, function, needed);
  if (status == ACCRT_OK)
    status = collect_signature(program, function, needed);
  accrt_free_array(program->allocator, needed, node_count, 1);
  return status;
}

accrt_status_t accrt_program_functions_create(accrt_program_t* program) {
  void* memory;
  accrt_status_t status = accrt_alloc_array(program->allocator, program->tables->function_count,
                                            sizeof *program->functions, &memory);
  program->functions = memory;
  for (uint32_t i = 0; i < program->tables->function_count && status == ACCRT_OK; ++i) {
    status = create_function(program, i);
  }
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
