/* write/text/build_commands.c - commands of a text. See build.h. */
#include <inttypes.h>
#include <string.h>

#include "write/text/build.h"

#define MAX_DEPTH 32u

/* The block to which commands are added. */
typedef struct block {
  accx_builder_t* builder;
  const accx_name_t* function;
  accrt_writer_id_t id;
  accrt_writer_id_t* commands; /* by index */
  uint32_t count;
  uint32_t depth;
} block_t;

static bool build_commands(block_t* outer, accx_node_t* list, accrt_writer_id_t id, uint32_t depth);

/* ---- Ranges ---- */

static bool slot_of(block_t* block, accrt_writer_id_t target, uint32_t component,
                    const accx_node_t* node, accrt_writer_id_t* out) {
  accx_builder_t* builder = block->builder;
  const accrt_status_t status =
      accrt_bundle_writer_slot(builder->writer, block->function->id, target, component, out);
  return status == ACCRT_OK || accx_node_fail_call(builder, node, status);
}

static bool constant_slot(block_t* block, accx_node_t* map, const accx_node_t* node,
                          accrt_writer_id_t* out) {
  accx_builder_t* builder = block->builder;
  accx_name_t* name;
  uint32_t role = 0;
  if (!accx_name_of(builder, node, ACCX_NAME_CONSTANT, "constant", &name) ||
      !accx_key_word(builder, map, "component", NULL, &accx_words_role, &role))
    return false;
  if (role > 4 || name->roles[role] == ACCX_NONE)
    return accx_node_fail(node, builder->error, "constant %s has no such component",
                          ACCX_SHOW(node->text));
  return slot_of(block, name->id, name->roles[role], node, out);
}

/* Reads one of input, result, constant, state, arena. */
static bool read_slot(block_t* block, accx_node_t* map, accrt_writer_id_t* out) {
  accx_builder_t* builder = block->builder;
  const accx_node_t* node;
  accx_name_t* name;
  bool arena = false;
  if ((node = accx_node_get(map, "input")) != NULL) {
    if (!accx_name_of(builder, node, ACCX_NAME_INPUT, "input", &name))
      return false;
    *out = name->id;
    return true;
  }
  if ((node = accx_node_get(map, "result")) != NULL) {
    if (!accx_name_of(builder, node, ACCX_NAME_RESULT, "result", &name))
      return false;
    *out = name->id;
    return true;
  }
  if ((node = accx_node_get(map, "constant")) != NULL)
    return constant_slot(block, map, node, out);
  if ((node = accx_node_get(map, "state")) != NULL)
    return accx_name_of(builder, node, ACCX_NAME_STATE, "state", &name) &&
           slot_of(block, name->id, 0, node, out);
  if (!accx_key_flag(builder, map, "arena", &arena))
    return false;
  if (!arena) {
    static const char* const words[] = {"input", "result", "constant", "state", "arena", NULL};
    accx_near_t near;
    const accx_node_t* meant = accx_node_meant(map, words, &near);
    return accx_node_fail(meant != NULL ? meant : map, builder->error,
                          "one of input, result, constant, state and arena (true) is needed%s",
                          ACCX_NEAR_TEXT(&near));
  }
  const accrt_status_t status =
      accrt_bundle_writer_arena(builder->writer, block->function->id, 0, 0, out);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

static bool key_expression(block_t* block, accx_node_t* map, const char* key,
                           accrt_writer_id_t* out) {
  const accx_node_t* node = accx_node_get(map, key);
  return node == NULL || accx_read_expression(block->builder, node, out);
}

static bool read_range(block_t* block, accx_node_t* map, accrt_writer_range_t* out) {
  return read_slot(block, map, &out->slot) && key_expression(block, map, "offset", &out->offset) &&
         key_expression(block, map, "size", &out->size);
}

static bool key_range(block_t* block, accx_node_t* map, const char* key,
                      accrt_writer_range_t* out) {
  static const char* const keys[] = {"input", "result", "constant", "component", "state",
                                     "arena", "offset", "size",     NULL};
  accx_node_t* range = accx_node_get(map, key);
  if (range == NULL)
    return accx_node_fail_missing(map, block->builder->error, "a command", key);
  return accx_want(block->builder, range, ACCX_NODE_MAP, key) && read_range(block, range, out) &&
         accx_node_all_used(range, "a range", keys, block->builder->error);
}

/* Reads up to `count` expressions. Missing ones leave their values unchanged. */
static bool key_list(block_t* block, accx_node_t* map, const char* key, uint32_t count,
                     accrt_writer_id_t* out, uint32_t* out_count) {
  accx_builder_t* builder = block->builder;
  const accx_node_t* list = accx_node_get(map, key);
  uint32_t found = 0;
  if (list != NULL && list->kind == ACCX_NODE_WORD) {
    found = 1;
    if (!accx_read_expression(builder, list, out))
      return false;
  } else if (list != NULL) {
    if (!accx_want(builder, list, ACCX_NODE_LIST, key))
      return false;
    if (list->count > count)
      return accx_node_fail(list, builder->error, "'%s' has at most %" PRIu32 " entries", key,
                            count);
    for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
      if (!accx_read_expression(builder, node, &out[found++]))
        return false;
    }
  }
  if (out_count != NULL)
    *out_count = found;
  return true;
}

/* ---- Operands ---- */

/* By kind: its name, and its form in the text. */
static const char* const operand_forms[][2] = {
    [ACCRT_OPERAND_BUFFER] = {"a buffer", "{input: NAME}, or result, constant, state, arena"},
    [ACCRT_OPERAND_TENSOR] = {"a tensor", "{input: NAME, dtype: f32, shape: [...]}"},
    [ACCRT_OPERAND_SCALAR] = {"a scalar", "{bits: 0x...}, {f32: 1.5} or {f64: 1.5}"},
    [ACCRT_OPERAND_SYMBOL] = {"a symbol", "an expression"},
    [ACCRT_OPERAND_WORKSPACE] = {"a workspace", "{arena: true, size: ...}"}};

static bool fail_form(accx_builder_t* builder, const accx_node_t* node, uint32_t kind) {
  return accx_node_fail(node, builder->error, "%s is given as %s", operand_forms[kind][0],
                        operand_forms[kind][1]);
}

static bool read_scalar(accx_builder_t* builder, accx_node_t* map, accrt_writer_operand_t* out) {
  accx_node_t* f32 = accx_node_get(map, "f32");
  accx_node_t* f64 = accx_node_get(map, "f64");
  const accx_node_t* given = f32 != NULL ? f32 : f64;
  if (given == NULL && accx_node_peek(map, "bits") == NULL)
    return fail_form(builder, map, ACCRT_OPERAND_SCALAR);
  if (given == NULL)
    return accx_key_u64(builder, map, "bits", NULL, &out->bits);
  return accx_word_float(builder, given, f32 != NULL ? ACCRT_DTYPE_F32 : ACCRT_DTYPE_F64,
                         &out->bits);
}

static bool read_tensor(block_t* block, accx_node_t* map, accrt_writer_operand_t* out) {
  uint32_t dtype = 0, strides = 0;
  if (!accx_key_word(block->builder, map, "dtype", "a tensor", &accx_words_dtype, &dtype) ||
      !key_list(block, map, "shape", 8, out->shape, &out->rank) ||
      !key_list(block, map, "strides", 8, out->strides, &strides))
    return false;
  out->dtype = (accrt_dtype_t)dtype;
  return strides == 0 || strides == out->rank ||
         accx_node_fail(map, block->builder->error, "%" PRIu32 " strides of %" PRIu32 " dimensions",
                        strides, out->rank);
}

static bool read_operand(block_t* block, accx_node_t* node, uint32_t kind,
                         accrt_writer_operand_t* out) {
  static const char* const keys[] = {"input",  "result", "constant", "component", "state", "arena",
                                     "offset", "size",   "bits",     "f32",       "f64",   "value",
                                     "dtype",  "shape",  "strides",  NULL};
  accx_builder_t* builder = block->builder;
  out->kind = kind;
  if (kind == ACCRT_OPERAND_SYMBOL && node->kind == ACCX_NODE_WORD)
    return accx_read_expression(builder, node, &out->value);
  if (kind >= sizeof operand_forms / sizeof operand_forms[0] || operand_forms[kind][0] == NULL)
    return accx_node_fail(node, builder->error, "parameters of kind %" PRIu32 " take nothing",
                          kind);
  if (node->kind != ACCX_NODE_MAP)
    return fail_form(builder, node, kind);
  bool good;
  if (kind == ACCRT_OPERAND_SYMBOL)
    good = key_expression(block, node, "value", &out->value);
  else if (kind == ACCRT_OPERAND_SCALAR)
    good = read_scalar(builder, node, out);
  else
    good = read_range(block, node, &out->range) &&
           (kind != ACCRT_OPERAND_TENSOR || read_tensor(block, node, out));
  return good && accx_node_all_used(node, operand_forms[kind][0], keys, builder->error);
}

/* Reads operands [first, first + count) by the names in a map. Missing ones are absent. */
static bool read_operands(block_t* block, accx_node_t* map, const accx_name_t* callee,
                          uint32_t first, uint32_t count, accrt_writer_operand_t* operands) {
  accx_builder_t* builder = block->builder;
  for (uint32_t i = first; i < first + count; ++i) {
    accx_node_t* node = accx_node_get(map, callee->formals[i].name);
    operands[i].kind = ACCRT_OPERAND_ABSENT;
    if (node != NULL && !read_operand(block, node, callee->formals[i].kind, &operands[i]))
      return false;
  }
  for (const accx_node_t* key = map != NULL ? map->first : NULL; key != NULL;
       key = key->next->next) {
    accx_near_t near = {.wrong = key->text};
    if (key->used)
      continue;
    for (uint32_t i = first; i < first + count; ++i)
      accx_near_try(&near, callee->formals[i].name);
    return accx_node_fail(key, builder->error, "%s takes no %s%s", ACCX_SHOW(callee->name),
                          ACCX_SHOW(key->text), ACCX_NEAR_TEXT(&near));
  }
  return true;
}

static bool take_map(block_t* block, accx_node_t* map, const char* key, accx_node_t** out) {
  *out = accx_node_get(map, key);
  return *out == NULL || accx_want(block->builder, *out, ACCX_NODE_MAP, key);
}

/* ---- By opcode ---- */

static bool read_dispatch(block_t* block, accx_node_t* map, const accx_node_t* head,
                          accrt_writer_command_t* command) {
  accx_builder_t* builder = block->builder;
  accx_name_t* kernel;
  accx_node_t* arguments;
  if (!accx_name_of(builder, head, ACCX_NAME_KERNEL, "kernel", &kernel) ||
      !take_map(block, map, "arguments", &arguments))
    return false;
  accrt_writer_operand_t* operands =
      accx_build_memory(builder, kernel->formal_count * sizeof *operands);
  if (operands == NULL ||
      !read_operands(block, arguments, kernel, 0, kernel->formal_count, operands))
    return false;
  command->target = kernel->id;
  command->operands = operands;
  command->operand_count = kernel->formal_count;
  return true;
}

static bool find_function(accx_builder_t* builder, accx_node_t* map, const accx_node_t* head,
                          accx_name_t** out) {
  const char* target = "";
  if (!accx_want(builder, head, ACCX_NODE_WORD, "a function") ||
      !accx_key_text(builder, map, "target", NULL, &target))
    return false;
  *out = accx_name_find_target(builder, ACCX_NAME_FUNCTION, head->text, target);
  if (*out != NULL)
    return true;
  accx_near_t near = {.wrong = head->text};
  accx_name_near(builder, ACCX_NAME_FUNCTION, &near);
  return accx_node_fail(head, builder->error, "no function %s%s%s%s", ACCX_SHOW(head->text),
                        target[0] != '\0' ? " for " : "",
                        target[0] != '\0' ? ACCX_SHOW(target) : "", ACCX_NEAR_TEXT(&near));
}

static bool read_call(block_t* block, accx_node_t* map, const accx_node_t* head,
                      accrt_writer_command_t* command) {
  accx_builder_t* builder = block->builder;
  accx_name_t* callee;
  accx_node_t *inputs, *results;
  if (!find_function(builder, map, head, &callee) || !take_map(block, map, "inputs", &inputs) ||
      !take_map(block, map, "results", &results))
    return false;
  accrt_writer_operand_t* operands =
      accx_build_memory(builder, callee->formal_count * sizeof *operands);
  if (operands == NULL || !read_operands(block, inputs, callee, 0, callee->input_count, operands) ||
      !read_operands(block, results, callee, callee->input_count,
                     callee->formal_count - callee->input_count, operands))
    return false;
  command->target = callee->id;
  command->operands = operands;
  command->operand_count = callee->formal_count;
  return true;
}

/* `copy: true`, `barrier: true`: such a key has no other value. */
static bool want_true(accx_builder_t* builder, const accx_node_t* head, const char* key) {
  return (head->kind == ACCX_NODE_WORD && strcmp(head->text, "true") == 0) ||
         accx_node_fail(head, builder->error, "'%s' must be true: other keys say what it does",
                        key);
}

static bool read_raw(block_t* block, accx_node_t* map, const accx_node_t* head,
                     accrt_writer_command_t* command) {
  accx_builder_t* builder = block->builder;
  const accx_node_t* raw = accx_node_get(map, "raw");
  uint64_t opcode, size_bytes = 0;
  unsigned char* bytes = NULL;
  bool required = false;
  if (!accx_word_u64(builder, head, &opcode) ||
      !accx_key_flag(builder, map, "required", &required) ||
      (raw != NULL && !accx_word_digits(builder, raw, &bytes, &size_bytes)))
    return false;
  if (opcode > UINT16_MAX || size_bytes > UINT32_MAX)
    return accx_node_fail(head, builder->error, "opcode %" PRIu64 " has 16 bits", opcode);
  command->opcode = (uint32_t)opcode;
  command->raw = bytes;
  command->raw_size_bytes = (uint32_t)size_bytes;
  command->flags = required ? ACCRT_WRITER_COMMAND_REQUIRED : 0;
  return true;
}

/* Reads `head`, the value of the key that gives the opcode. */
static bool read_head_value(block_t* block, accx_node_t* map, const accx_node_t* head,
                            accrt_writer_command_t* command) {
  accx_builder_t* builder = block->builder;
  const accx_text_field_t* field = accx_text_head(command->opcode);
  const char* word = accx_word_of(&accx_words_opcode, command->opcode);
  if (field == NULL)
    return want_true(builder, head, word);
  void* member = (char*)command + field->member;
  switch (field->kind) {
  case ACCX_FIELD_ITEM:
    return command->opcode == ACCRT_OPCODE_CALL ? read_call(block, map, head, command)
                                                : read_dispatch(block, map, head, command);
  case ACCX_FIELD_STRING:
    memcpy(member, &head->text, sizeof head->text);
    return accx_want(builder, head, ACCX_NODE_WORD, word);
  case ACCX_FIELD_PATTERN:
    return accx_word_u64(builder, head, member);
  default:
    return accx_read_expression(builder, head, member);
  }
}

static bool read_field(block_t* block, accx_node_t* map, const accx_text_field_t* field,
                       accrt_writer_command_t* command) {
  void* member = (char*)command + field->member;
  if (accx_field_is_range(field->kind))
    return key_range(block, map, field->key, member);
  if (field->kind == ACCX_FIELD_COUNT)
    return accx_key_u32(block->builder, map, field->key, NULL, member);
  return key_list(block, map, field->key, field->count, member, NULL);
}

static bool read_fields(block_t* block, accx_node_t* map, uint64_t opcode, const accx_node_t* head,
                        accrt_writer_command_t* command) {
  if (opcode == 0)
    return read_raw(block, map, head, command);
  command->opcode = (uint32_t)opcode;
  if (!read_head_value(block, map, head, command))
    return false;
  for (const accx_text_field_t* field = accx_text_fields; field->opcode != 0; ++field) {
    if (field->opcode == opcode && field->key != NULL && field->member != 0 &&
        !read_field(block, map, field, command))
      return false;
  }
  return true;
}

/* ---- Commands ---- */

/* "dispatch, copy, ...": a comma follows each word. */
static const char opcode_words[] =
#define DEF_COMMAND(number, name, word, ...) word ", "
#include "format/format.def"
    ;

static bool read_head(accx_builder_t* builder, accx_node_t* map, uint64_t* out_opcode,
                      accx_node_t** out_head) {
  *out_head = NULL;
  for (uint32_t i = 0; i < accx_words_opcode.count; ++i) {
    /* Only one command has the key `call`, and one `repeat`, so at most one of them exists. */
    accx_node_t* head = accx_node_get(map, accx_words_opcode.words[i].word);
    if (head == NULL)
      continue;
    if (*out_head != NULL)
      return accx_node_fail(head, builder->error, "a command is one thing, not two");
    *out_head = head;
    *out_opcode = accx_words_opcode.words[i].value;
  }
  if (*out_head != NULL)
    return true;
  *out_head = accx_node_get(map, "opcode");
  *out_opcode = 0;
  if (*out_head != NULL)
    return true;
  static const char* const words[] = {
#define DEF_COMMAND(number, name, word, ...) word,
#include "format/format.def"
      NULL};
  accx_near_t near;
  const accx_node_t* meant = accx_node_meant(map, words, &near);
  return accx_node_fail(meant != NULL ? meant : map, builder->error, "a command has one of %.*s%s",
                        (int)sizeof opcode_words - 3, opcode_words, ACCX_NEAR_TEXT(&near));
}

static bool read_after(block_t* block, accx_node_t* map, accrt_writer_command_t* command) {
  accx_builder_t* builder = block->builder;
  const accx_node_t* list = accx_node_get(map, "after");
  if (list == NULL)
    return true;
  if (!accx_want(builder, list, ACCX_NODE_LIST, "after"))
    return false;
  accrt_writer_id_t* after = accx_build_memory(builder, list->count * sizeof *after);
  if (after == NULL)
    return false;
  for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
    uint64_t index;
    if (!accx_word_u64(builder, node, &index))
      return false;
    if (index >= block->count)
      return accx_node_fail(node, builder->error,
                            "%" PRIu64 " is not an earlier command of this block; this is command "
                            "%" PRIu32,
                            index, block->count);
    after[command->after_count++] = block->commands[index];
  }
  command->after = after;
  return true;
}

static bool read_location(block_t* block, accx_node_t* map, accrt_writer_command_t* command) {
  accx_builder_t* builder = block->builder;
  uint64_t location;
  if (accx_node_peek(map, "location") == NULL)
    return true;
  if (!accx_key_u64(builder, map, "location", NULL, &location))
    return false;
  if (location >= builder->location_count)
    return accx_node_fail(accx_node_peek(map, "location"), builder->error,
                          "location %" PRIu64 " of %" PRIu32, location, builder->location_count);
  command->location = builder->locations[location];
  return true;
}

static bool build_inner(block_t* block, accx_node_t* map, const char* key, uint32_t index,
                        accrt_writer_id_t command) {
  accx_builder_t* builder = block->builder;
  accx_node_t* list = accx_node_get(map, key);
  accrt_writer_id_t inner;
  if (list == NULL)
    return true;
  const accrt_status_t status = accrt_bundle_writer_block(builder->writer, command, index, &inner);
  if (status != ACCRT_OK)
    return accx_node_fail_call(builder, list, status);
  return build_commands(block, list, inner, block->depth + 1);
}

/* Reports a failure at the operand that the message names, or else at the command. */
static bool fail_command(accx_builder_t* builder, const accx_node_t* map, uint64_t opcode,
                         accrt_status_t status) {
  if (opcode == ACCRT_OPCODE_DISPATCH)
    return accx_node_fail_part(builder, map, "parameter", accx_node_peek(map, "arguments"), status);
  const accx_node_t* inputs = accx_node_peek(map, "inputs");
  (void)accx_node_fail_part(builder, map, "argument", inputs, status);
  if (opcode == ACCRT_OPCODE_CALL && builder->error->line == map->line)
    (void)accx_node_fail_part(builder, map, "argument", accx_node_peek(map, "results"), status);
  return false;
}

/* Marks the keys of the blocks within a command as used. The blocks are read later, when the
 * command is added. */
static bool take_blocks(accx_builder_t* builder, accx_node_t* map, uint64_t opcode) {
  static const char* const keys[] = {
#define DEF_COMMAND(number, name, word, ...) word,
#define DEF_KEYED(command, struct, field, count, kind, member, key, ...) key,
#include "format/format.def"
      "name",   "after",  "location", "arguments", "inputs", "results",
      "target", "opcode", "raw",      "required",  NULL};
  const char* word = accx_word_of(&accx_words_opcode, opcode);
  if (opcode == ACCRT_OPCODE_REPEAT)
    (void)accx_node_get(map, "commands");
  if (opcode == ACCRT_OPCODE_BRANCH) {
    (void)accx_node_get(map, "then");
    (void)accx_node_get(map, "else");
  }
  return accx_node_all_used(map, word != NULL ? word : "a command", keys, builder->error);
}

static bool build_command(block_t* block, accx_node_t* map) {
  accx_builder_t* builder = block->builder;
  accrt_writer_command_t command = ACCRT_WRITER_COMMAND_INIT;
  accx_node_t* head;
  uint64_t opcode;
  if (!accx_want(builder, map, ACCX_NODE_MAP, "a command") ||
      !read_head(builder, map, &opcode, &head) ||
      !accx_key_text(builder, map, "name", NULL, &command.name) ||
      !read_after(block, map, &command) || !read_location(block, map, &command) ||
      !read_fields(block, map, opcode, head, &command) || !take_blocks(builder, map, opcode))
    return false;
  accrt_writer_id_t* id = &block->commands[block->count++];
  const accrt_status_t status =
      accrt_bundle_writer_add_command(builder->writer, block->id, &command, id);
  if (status != ACCRT_OK)
    return fail_command(builder, map, opcode, status);
  if (opcode == ACCRT_OPCODE_REPEAT && !build_inner(block, map, "commands", 0, *id))
    return false;
  return opcode != ACCRT_OPCODE_BRANCH ||
         (build_inner(block, map, "then", 0, *id) && build_inner(block, map, "else", 1, *id));
}

static bool build_commands(block_t* outer, accx_node_t* list, accrt_writer_id_t id,
                           uint32_t depth) {
  accx_builder_t* builder = outer->builder;
  block_t block = {builder, outer->function, id, NULL, 0, depth};
  if (!accx_want(builder, list, ACCX_NODE_LIST, "commands"))
    return false;
  if (depth > MAX_DEPTH)
    return accx_node_fail(list, builder->error, "blocks nest too deep");
  block.commands = accx_build_memory(builder, list->count * sizeof *block.commands);
  if (block.commands == NULL)
    return false;
  for (accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (!build_command(&block, node))
      return false;
  }
  return true;
}

bool accx_build_block(accx_builder_t* builder, const accx_name_t* function, accx_node_t* list,
                      accrt_writer_id_t block) {
  block_t outer = {builder, function, 0, NULL, 0, 0};
  return build_commands(&outer, list, block, 1);
}
