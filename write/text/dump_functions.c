/* write/text/dump_functions.c - kernels, functions and commands, written as text. See dump.h. */

#include "write/text/dump.h"

/* ---- Kernels ---- */

static void dump_images(accx_dumper_t* dumper) {
  const uint32_t count = accx_dump_begin_list(dumper, "images", ACCX_SECTION_IMAGES);
  for (uint32_t i = 0; i < count && !dumper->failed; ++i) {
    const accx_image_t* image = accx_file_record(&dumper->file, ACCX_SECTION_IMAGES, i);
    accx_out_map(&dumper->out, true);
    accx_dump_key_string(dumper, "name", image->name);
    accx_dump_key_word(dumper, "kind", &accx_words_image, image->kind);
    if (image->kind != ACCX_IMAGE_PACK)
      accx_dump_bytes(dumper, "data", ACCX_SECTION_CODE, image->offset_bytes, image->size_bytes);
    accx_out_map_end(&dumper->out);
  }
  accx_dump_end_list(dumper, count);
}

static void dump_parameter(accx_dumper_t* dumper, const accx_parameter_t* parameter) {
  accx_out_map(&dumper->out, true);
  accx_dump_key_string(dumper, "name", parameter->name);
  accx_dump_key_word(dumper, "kind", &accx_words_parameter, parameter->kind);
  if (parameter->access != 0)
    accx_dump_key_word(dumper, "access", &accx_words_access, parameter->access);
  if (parameter->flags != 0)
    accx_out_key_flag(&dumper->out, "optional");
  if (parameter->kind == ACCRT_KERNEL_PARAM_SCALAR)
    accx_out_key_u64(&dumper->out, "size", parameter->size_bytes);
  accx_out_key_u64(&dumper->out, "offset", parameter->offset_bytes);
  accx_out_key_u64(&dumper->out, "align", UINT64_C(1) << parameter->align_log2);
  accx_out_map_end(&dumper->out);
}

static const accx_launch_t* launch_of(const accx_dumper_t* dumper, uint32_t variant) {
  const uint32_t count = accx_file_count(&dumper->file, ACCX_SECTION_LAUNCHES);
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const accx_launch_t* launch = accx_file_record(&dumper->file, ACCX_SECTION_LAUNCHES, middle);
    if (launch->variant == variant)
      return launch;
    if (launch->variant < variant)
      low = middle + 1;
    else
      high = middle;
  }
  return NULL;
}

static void dump_three(accx_dumper_t* dumper, const char* key, const uint32_t numbers[3]) {
  accx_out_text(&dumper->out, key);
  accx_out_list(&dumper->out, true);
  for (int i = 0; i < 3; ++i)
    accx_out_u64(&dumper->out, numbers[i]);
  accx_out_list_end(&dumper->out);
}

static void dump_launch(accx_dumper_t* dumper, const accx_launch_t* launch) {
  dump_three(dumper, "block", launch->block);
  if (launch->cluster[0] != 0)
    dump_three(dumper, "cluster", launch->cluster);
  if (launch->dynamic_shared_bytes != 0)
    accx_out_key_u64(&dumper->out, "dynamic_shared_bytes", launch->dynamic_shared_bytes);
  accx_dump_key_bits(dumper, "launch_traits", &accx_words_traits, launch->traits);
}

static void dump_predicates(accx_dumper_t* dumper, const accx_kernel_t* kernel,
                            const accx_variant_t* variant) {
  if (variant->predicate_count == 0)
    return;
  accx_out_text(&dumper->out, "when");
  accx_out_list(&dumper->out, true);
  for (uint32_t i = 0; i < variant->predicate_count; ++i) {
    const accx_predicate_t* predicate =
        accx_file_record(&dumper->file, ACCX_SECTION_PREDICATES, variant->predicate_first + i);
    const accx_parameter_t* parameter = accx_file_record(
        &dumper->file, ACCX_SECTION_PARAMETERS, kernel->parameter_first + predicate->parameter);
    accx_out_map(&dumper->out, true);
    accx_dump_key_string(dumper, "parameter", parameter->name);
    accx_out_key_i64(&dumper->out, accx_word_of(&accx_words_predicate, predicate->kind),
                     predicate->value);
    accx_out_map_end(&dumper->out);
  }
  accx_out_list_end(&dumper->out);
}

static void dump_variant(accx_dumper_t* dumper, const accx_kernel_t* kernel, uint32_t index) {
  const accx_variant_t* variant = accx_file_record(&dumper->file, ACCX_SECTION_VARIANTS, index);
  const accx_image_t* image = accx_file_record(&dumper->file, ACCX_SECTION_IMAGES, variant->image);
  accx_out_map(&dumper->out, false);
  accx_dump_key_string(dumper, "driver", variant->driver);
  accx_dump_key_word(dumper, "arch_kind", &accx_words_arch_kind, variant->arch_kind);
  if (variant->arch != 0)
    accx_dump_key_string(dumper, "arch", variant->arch);
  if (variant->priority != 0)
    accx_out_key_i64(&dumper->out, "priority", variant->priority);
  accx_dump_key_bits(dumper, "cpu_features", &accx_words_cpu, variant->cpu_features);
  if (variant->required_features != 0)
    accx_out_key_hex(&dumper->out, "required_features", variant->required_features);
  accx_dump_key_string(dumper, "image", image->name);
  if (variant->entry != kernel->name)
    accx_dump_key_string(dumper, "entry", variant->entry);
  dump_predicates(dumper, kernel, variant);
  const accx_launch_t* launch = launch_of(dumper, index);
  if (launch != NULL)
    dump_launch(dumper, launch);
  else if (accx_image_is_device(image->kind))
    accx_out_key_flag(&dumper->out, "no_launch");
  accx_out_map_end(&dumper->out);
}

static void dump_kernel(accx_dumper_t* dumper, const accx_kernel_t* kernel) {
  accx_out_map(&dumper->out, false);
  accx_dump_key_string(dumper, "name", kernel->name);
  accx_dump_key_bits(dumper, "traits", &accx_words_traits, kernel->traits);
  if (kernel->local_memory_size_bytes != 0)
    accx_out_key_u64(&dumper->out, "local_memory_bytes", kernel->local_memory_size_bytes);
  if (kernel->params_size_bytes != 0)
    accx_out_key_u64(&dumper->out, "block_bytes", kernel->params_size_bytes);
  if (kernel->parameter_count > 0) {
    accx_out_text(&dumper->out, "parameters");
    accx_out_list(&dumper->out, false);
    for (uint32_t i = 0; i < kernel->parameter_count; ++i) {
      dump_parameter(dumper, accx_file_record(&dumper->file, ACCX_SECTION_PARAMETERS,
                                              kernel->parameter_first + i));
    }
    accx_out_list_end(&dumper->out);
  }
  accx_out_text(&dumper->out, "variants");
  accx_out_list(&dumper->out, false);
  for (uint32_t i = 0; i < kernel->variant_count; ++i)
    dump_variant(dumper, kernel, kernel->variant_first + i);
  accx_out_list_end(&dumper->out);
  accx_out_map_end(&dumper->out);
}

void accx_dump_kernels(accx_dumper_t* dumper) {
  dump_images(dumper);
  const uint32_t count = accx_dump_begin_list(dumper, "kernels", ACCX_SECTION_KERNELS);
  for (uint32_t i = 0; i < count; ++i)
    dump_kernel(dumper, accx_file_record(&dumper->file, ACCX_SECTION_KERNELS, i));
  accx_dump_end_list(dumper, count);
}

/* ---- Signatures ---- */

static const accx_argument_t* argument_of(const accx_dumper_t* dumper,
                                          const accx_function_t* function, uint32_t index) {
  return accx_file_record(&dumper->file, ACCX_SECTION_ARGUMENTS, function->argument_first + index);
}

static uint32_t constant_name(const accx_dumper_t* dumper, uint32_t index) {
  return accx_file_constant(&dumper->file, index).name;
}

static void dump_argument_type(accx_dumper_t* dumper, const accx_argument_t* argument) {
  if (argument->kind == ACCX_ARGUMENT_SCALAR) {
    const accx_symbol_t* symbol =
        accx_file_record(&dumper->file, ACCX_SECTION_SYMBOLS, argument->symbol);
    accx_dump_key_string(dumper, "symbol", symbol->name);
  } else if (argument->constant != ACCX_NONE) {
    accx_dump_key_string(dumper, "constant", constant_name(dumper, argument->constant));
  } else {
    accx_type_t type = argument->type;
    accx_dump_type(dumper, &type);
  }
}

static void dump_argument(accx_dumper_t* dumper, const accx_argument_t* argument) {
  accx_out_map(&dumper->out, true);
  accx_dump_key_string(dumper, "name", argument->name);
  if (argument->kind != ACCX_ARGUMENT_RESULT && argument->kind != ACCX_ARGUMENT_READ)
    accx_dump_key_word(dumper, "kind", &accx_words_argument, argument->kind);
  dump_argument_type(dumper, argument);
  if ((argument->flags & ACCX_ARGUMENT_FLAG_OPTIONAL) != 0)
    accx_out_key_flag(&dumper->out, "optional");
  if (argument->alias_kind != ACCX_ALIAS_NONE) {
    accx_dump_key_string(dumper,
                         argument->alias_kind == ACCX_ALIAS_MUST ? "must_alias" : "may_alias",
                         argument_of(dumper, dumper->function, argument->alias_input)->name);
  }
  if (argument->doc != 0)
    accx_dump_key_string(dumper, "doc", argument->doc);
  accx_out_map_end(&dumper->out);
}

static void dump_arguments(accx_dumper_t* dumper, const char* key, uint32_t first, uint32_t count) {
  if (count == 0)
    return;
  accx_out_text(&dumper->out, key);
  accx_out_list(&dumper->out, false);
  for (uint32_t i = first; i < first + count; ++i)
    dump_argument(dumper, argument_of(dumper, dumper->function, i));
  accx_out_list_end(&dumper->out);
}

/* ---- Ranges and operands ---- */

static void dump_slot(accx_dumper_t* dumper, uint32_t index) {
  const accx_function_t* function = dumper->function;
  const accx_slot_t* slot =
      accx_file_record(&dumper->file, ACCX_SECTION_SLOTS, function->slot_first + index);
  switch (slot->kind) {
  case ACCX_SLOT_ARGUMENT:
    accx_dump_key_string(dumper, slot->index < function->input_count ? "input" : "result",
                         argument_of(dumper, function, slot->index)->name);
    break;
  case ACCX_SLOT_CONSTANT: {
    const accx_constant_t constant = accx_file_constant(&dumper->file, slot->index);
    accx_dump_key_string(dumper, "constant", constant.name);
    if (slot->component > 0) {
      const accx_component_t* component = accx_file_record(
          &dumper->file, ACCX_SECTION_COMPONENTS, constant.component_first + slot->component);
      accx_dump_key_word(dumper, "component", &accx_words_role, component->role);
    }
    break;
  }
  case ACCX_SLOT_STATE: {
    const accx_state_t* state = accx_file_record(&dumper->file, ACCX_SECTION_STATES, slot->index);
    accx_dump_key_string(dumper, "state", state->name);
    break;
  }
  default:
    accx_out_key_flag(&dumper->out, "arena");
    break;
  }
}

static bool is_zero(const accx_dumper_t* dumper, uint32_t node) {
  const accx_expression_t* expression = &dumper->scope.nodes[node];
  return expression->op == ACCX_EXPR_CONSTANT && expression->immediate == 0;
}

static void dump_range_keys(accx_dumper_t* dumper, const accx_range_t* range) {
  dump_slot(dumper, range->slot);
  if (!is_zero(dumper, range->offset))
    accx_dump_key_expression(dumper, "offset", range->offset);
  if (range->size != ACCX_NONE)
    accx_dump_key_expression(dumper, "size", range->size);
}

static void dump_key_range(accx_dumper_t* dumper, const char* key, const accx_range_t* range) {
  accx_out_text(&dumper->out, key);
  accx_out_map(&dumper->out, true);
  dump_range_keys(dumper, range);
  accx_out_map_end(&dumper->out);
}

static void dump_key_list(accx_dumper_t* dumper, const char* key, const uint32_t* nodes,
                          uint32_t count) {
  accx_out_text(&dumper->out, key);
  accx_out_list(&dumper->out, true);
  for (uint32_t i = 0; i < count; ++i)
    accx_dump_expression(dumper, nodes[i]);
  accx_out_list_end(&dumper->out);
}

static void dump_operand(accx_dumper_t* dumper, const accx_operand_t* operand) {
  accx_out_map(&dumper->out, true);
  switch (operand->kind) {
  case ACCX_OPERAND_SCALAR:
    accx_out_key_hex(&dumper->out, "bits", operand->immediate);
    break;
  case ACCX_OPERAND_SYMBOL:
    accx_dump_key_expression(dumper, "value", operand->expression);
    break;
  default:
    dump_range_keys(dumper, &operand->range);
    break;
  }
  if (operand->kind == ACCX_OPERAND_TENSOR) {
    const accx_view_t* view = accx_file_record(&dumper->file, ACCX_SECTION_VIEWS, operand->view);
    accx_dump_key_word(dumper, "dtype", &accx_words_dtype, view->dtype);
    dump_key_list(dumper, "shape", view->shape, view->rank);
    dump_key_list(dumper, "strides", view->strides, view->rank);
  }
  accx_out_map_end(&dumper->out);
}

/* ---- Commands ---- */

static void dump_block(accx_dumper_t* dumper, const char* key, uint32_t index);

static void dump_dispatch(accx_dumper_t* dumper, const accx_dispatch_t* dispatch) {
  const accx_kernel_t* kernel =
      accx_file_record(&dumper->file, ACCX_SECTION_KERNELS, dispatch->kernel);
  const accx_operand_t* operands = (const accx_operand_t*)(dispatch + 1);
  accx_out_text(&dumper->out, "arguments");
  accx_out_map(&dumper->out, false);
  for (uint32_t i = 0; i < dispatch->operand_count; ++i) {
    const accx_parameter_t* parameter =
        accx_file_record(&dumper->file, ACCX_SECTION_PARAMETERS, kernel->parameter_first + i);
    if (operands[i].kind == ACCX_OPERAND_ABSENT)
      continue;
    accx_out_text(&dumper->out, accx_dump_string(dumper, parameter->name));
    dump_operand(dumper, &operands[i]);
  }
  accx_out_map_end(&dumper->out);
}

static void dump_call_arguments(accx_dumper_t* dumper, const char* key,
                                const accx_function_t* callee, const accx_operand_t* operands,
                                uint32_t first, uint32_t count) {
  if (count == 0)
    return;
  accx_out_text(&dumper->out, key);
  accx_out_map(&dumper->out, false);
  for (uint32_t i = first; i < first + count; ++i) {
    if (operands[i].kind == ACCX_OPERAND_ABSENT)
      continue;
    accx_out_text(&dumper->out, accx_dump_string(dumper, argument_of(dumper, callee, i)->name));
    dump_operand(dumper, &operands[i]);
  }
  accx_out_map_end(&dumper->out);
}

static void dump_call(accx_dumper_t* dumper, const accx_call_t* call) {
  const accx_function_t* callee =
      accx_file_record(&dumper->file, ACCX_SECTION_FUNCTIONS, call->function);
  const accx_operand_t* operands = (const accx_operand_t*)(call + 1);
  if (callee->target != 0)
    accx_dump_key_string(dumper, "target", callee->target);
  dump_call_arguments(dumper, "inputs", callee, operands, 0, callee->input_count);
  dump_call_arguments(dumper, "results", callee, operands, callee->input_count,
                      callee->result_count);
}

/* The writer's default name for a command without one. */
static uint32_t default_name(const accx_dumper_t* dumper, const accx_command_t* command) {
  const void* fields = command + 1;
  if (command->opcode == ACCX_COMMAND_DISPATCH) {
    const accx_dispatch_t* dispatch = fields;
    return ((const accx_kernel_t*)accx_file_record(&dumper->file, ACCX_SECTION_KERNELS,
                                                   dispatch->kernel))
        ->name;
  }
  if (command->opcode == ACCX_COMMAND_CALL) {
    const accx_call_t* call = fields;
    return ((const accx_function_t*)accx_file_record(&dumper->file, ACCX_SECTION_FUNCTIONS,
                                                     call->function))
        ->name;
  }
  return 0;
}

/* Writes the key that gives the opcode: `dispatch: kernel`, `repeat: count`, ..., `barrier:
 * true`. */
static void dump_head(accx_dumper_t* dumper, const accx_command_t* command) {
  const char* word = accx_word_of(&accx_words_opcode, command->opcode);
  if (word == NULL) {
    accx_out_key_u64(&dumper->out, "opcode", command->opcode);
    if ((command->flags & ACCX_COMMAND_FLAG_REQUIRED) != 0)
      accx_out_key_flag(&dumper->out, "required");
    return;
  }
  const accx_text_field_t* head = accx_text_head(command->opcode);
  const void* at = head != NULL ? (const char*)(command + 1) + head->offset : NULL;
  switch (head != NULL ? head->kind : ACCX_FIELD_ZERO) {
  case ACCX_FIELD_ITEM:
    accx_dump_key_string(dumper, word, default_name(dumper, command));
    break;
  case ACCX_FIELD_STRING:
    accx_dump_key_string(dumper, word, *(const uint32_t*)at);
    break;
  case ACCX_FIELD_PATTERN:
    accx_out_key_hex(&dumper->out, word, *(const uint64_t*)at);
    break;
  case ACCX_FIELD_ZERO:
    accx_out_key_flag(&dumper->out, word);
    break;
  default:
    accx_dump_key_expression(dumper, word, *(const uint32_t*)at);
    break;
  }
}

static uint64_t predecessors_bytes(const accx_command_t* command) {
  return ((uint64_t)command->predecessor_count * 4 + 7) & ~UINT64_C(7);
}

static void dump_field(accx_dumper_t* dumper, const accx_text_field_t* field, const void* at) {
  const uint32_t* number = at;
  if (accx_field_is_range(field->kind))
    dump_key_range(dumper, field->key, at);
  else if (field->kind == ACCX_FIELD_BLOCK || field->kind == ACCX_FIELD_MAYBE_BLOCK) {
    if (*number != ACCX_NONE)
      dump_block(dumper, field->key, *number);
  } else if (field->count > 1)
    dump_key_list(dumper, field->key, number, field->count);
  else
    accx_dump_key_expression(dumper, field->key, *number);
}

/* Writes a command's fields. Numbers come directly after the first key, the others after the keys
 * that all commands have. */
static void dump_fields(accx_dumper_t* dumper, const accx_command_t* command, bool numbers) {
  for (const accx_text_field_t* field = accx_text_fields; field->opcode != 0; ++field) {
    const void* at = (const char*)(command + 1) + field->offset;
    if (field->opcode != command->opcode || field->key == NULL ||
        (field->kind == ACCX_FIELD_COUNT) != numbers)
      continue;
    if (numbers)
      accx_out_key_u64(&dumper->out, field->key, *(const uint32_t*)at);
    else
      dump_field(dumper, field, at);
  }
}

static void dump_body(accx_dumper_t* dumper, const accx_command_t* command) {
  const void* fields = command + 1;
  dump_fields(dumper, command, false);
  if (command->opcode == ACCX_COMMAND_DISPATCH)
    dump_dispatch(dumper, fields);
  if (command->opcode == ACCX_COMMAND_CALL)
    dump_call(dumper, fields);
  if (accx_word_of(&accx_words_opcode, command->opcode) != NULL)
    return;
  accx_out_text(&dumper->out, "raw");
  accx_out_digits(&dumper->out, fields,
                  command->size_bytes - sizeof *command - predecessors_bytes(command));
}

static void dump_command(accx_dumper_t* dumper, const accx_command_t* command) {
  accx_out_map(&dumper->out, false);
  dump_head(dumper, command);
  dump_fields(dumper, command, true);
  if (command->name != default_name(dumper, command))
    accx_dump_key_string(dumper, "name", command->name);
  if (command->predecessor_count > 0) {
    const uint32_t* after =
        (const uint32_t*)(const void*)((const unsigned char*)command + command->size_bytes -
                                       predecessors_bytes(command));
    accx_out_text(&dumper->out, "after");
    accx_out_list(&dumper->out, true);
    for (uint32_t i = 0; i < command->predecessor_count; ++i)
      accx_out_u64(&dumper->out, after[i]);
    accx_out_list_end(&dumper->out);
  }
  if (command->location != ACCX_NONE)
    accx_out_key_u64(&dumper->out, "location", command->location);
  dump_body(dumper, command);
  accx_out_map_end(&dumper->out);
}

static void dump_block(accx_dumper_t* dumper, const char* key, uint32_t index) {
  const accx_block_t* block = accx_file_record(&dumper->file, ACCX_SECTION_BLOCKS, index);
  accx_out_text(&dumper->out, key);
  accx_out_list(&dumper->out, false);
  uint64_t at = block->offset_bytes;
  for (uint32_t i = 0; i < block->command_count && !dumper->failed; ++i) {
    const unsigned char* stream = accx_file_find(&dumper->file, ACCX_SECTION_COMMANDS)->bytes;
    const accx_command_t* command = (const accx_command_t*)(const void*)(stream + at);
    dump_command(dumper, command);
    at += command->size_bytes;
  }
  accx_out_list_end(&dumper->out);
}

/* ---- Functions ---- */

static void dump_arena(accx_dumper_t* dumper, const accx_function_t* function) {
  if (is_zero(dumper, function->transient_size) && function->transient_align <= 1)
    return;
  accx_out_text(&dumper->out, "arena");
  accx_out_map(&dumper->out, true);
  accx_dump_key_expression(dumper, "size", function->transient_size);
  accx_out_key_u64(&dumper->out, "align", function->transient_align);
  accx_out_map_end(&dumper->out);
}

static void dump_function(accx_dumper_t* dumper, const accx_function_t* function) {
  accx_out_map(&dumper->out, false);
  accx_dump_key_string(dumper, "name", function->name);
  if (function->target != 0)
    accx_dump_key_string(dumper, "target", function->target);
  if ((function->flags & ACCX_FUNCTION_PREPARE) != 0)
    accx_out_key_flag(&dumper->out, "prepare");
  if ((function->flags & ACCX_FUNCTION_INTERNAL) != 0)
    accx_out_key_flag(&dumper->out, "internal");
  const uint64_t features = function->required_features & ~(uint64_t)ACCX_FEATURE_FUNCTION_TARGET;
  if (features != 0)
    accx_out_key_hex(&dumper->out, "required_features", features);
  if (function->doc != 0)
    accx_dump_key_string(dumper, "doc", function->doc);
  if (accx_dump_scope_begin(dumper, function, function->expression_first,
                            function->expression_count)) {
    dump_arguments(dumper, "inputs", 0, function->input_count);
    dump_arguments(dumper, "results", function->input_count, function->result_count);
    dump_arena(dumper, function);
    dump_block(dumper, "commands", function->body);
    accx_dump_scope_end(dumper);
  }
  accx_out_map_end(&dumper->out);
}

void accx_dump_functions(accx_dumper_t* dumper) {
  const uint32_t count = accx_dump_begin_list(dumper, "functions", ACCX_SECTION_FUNCTIONS);
  for (uint32_t i = 0; i < count && !dumper->failed; ++i)
    dump_function(dumper, accx_file_record(&dumper->file, ACCX_SECTION_FUNCTIONS, i));
  accx_dump_end_list(dumper, count);
}
