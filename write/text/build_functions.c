/* write/text/build_functions.c - functions of a text: first the signatures, so that a function may
 * call any other one, then the bodies. See build.h. */
#include <inttypes.h>
#include <string.h>

#include "write/text/build.h"

#define MAX_ARGUMENTS 4096u

/* ---- Names for expressions ---- */

static bool is_about_inputs(const char* text) {
  return strstr(text, "present(") != NULL;
}

/* Builds names for expressions. Names that depend on inputs, directly or through other names, are
 * built only after the inputs. */
static bool build_lets(accx_builder_t* builder, accx_node_t* lets, bool with_inputs) {
  if (lets == NULL)
    return true;
  if (!accx_want(builder, lets, ACCX_NODE_MAP, "let"))
    return false;
  for (accx_node_t* key = lets->first; key != NULL; key = key->next->next) {
    if (!accx_want(builder, key->next, ACCX_NODE_WORD, "an expression"))
      return false;
    accx_name_t* name = accx_name_find(builder, ACCX_NAME_LET, key->text);
    if (name == NULL)
      name = accx_name_add(builder, ACCX_NAME_LET, key->text, key);
    if (name == NULL)
      return false;
    if (name->id != 0 || (!with_inputs && is_about_inputs(key->next->text)))
      continue;
    accrt_writer_id_t id;
    if (accx_read_expression(builder, key->next, &id))
      name->id = id;
    else if (with_inputs)
      return false;
  }
  return true;
}

/* ---- Signatures ---- */

static bool read_alias(accx_builder_t* builder, accx_node_t* map,
                       accrt_writer_argument_t* argument) {
  static const char* const keys[] = {"may_alias", "must_alias"};
  for (uint32_t i = 0; i < 2; ++i) {
    const accx_node_t* node = accx_node_get(map, keys[i]);
    accx_name_t* input;
    if (node == NULL)
      continue;
    if (!accx_name_of(builder, node, ACCX_NAME_INPUT, "input", &input))
      return false;
    argument->alias_kind = i + 1;
    argument->alias_input = input->id;
  }
  return true;
}

static bool read_argument_type(accx_builder_t* builder, accx_node_t* map,
                               accrt_writer_argument_t* argument) {
  const accx_node_t* symbol = accx_node_get(map, "symbol");
  const accx_node_t* constant = accx_node_get(map, "constant");
  accx_name_t* name;
  if (symbol != NULL) {
    if (!accx_name_of(builder, symbol, ACCX_NAME_SYMBOL, "symbol", &name))
      return false;
    argument->symbol = name->id;
    argument->kind = ACCRT_ARGUMENT_SCALAR;
    return true;
  }
  if (constant != NULL) {
    if (!accx_name_of(builder, constant, ACCX_NAME_CONSTANT, "constant", &name))
      return false;
    argument->constant = name->id;
    return true;
  }
  return accx_read_type(builder, map, &argument->type);
}

static bool build_argument(accx_builder_t* builder, accx_node_t* map, accx_name_t* function,
                           bool is_result) {
  static const char* const keys[] = {"name",      "kind",       "dtype",  "encoding", "group",
                                     "shape",     "optional",   "symbol", "constant", "doc",
                                     "may_alias", "must_alias", NULL};
  accrt_writer_argument_t argument = ACCRT_WRITER_ARGUMENT_INIT;
  bool optional = false;
  argument.kind = is_result ? ACCRT_ARGUMENT_RESULT : ACCRT_ARGUMENT_READ;
  if (!accx_want(builder, map, ACCX_NODE_MAP, "an argument") ||
      !accx_key_text(builder, map, "name", "an argument", &argument.name) ||
      !accx_key_word(builder, map, "kind", NULL, &accx_words_argument, &argument.kind) ||
      !read_argument_type(builder, map, &argument) ||
      !accx_key_flag(builder, map, "optional", &optional) || !read_alias(builder, map, &argument) ||
      !accx_key_text(builder, map, "doc", NULL, &argument.doc) ||
      !accx_node_all_used(map, "an argument", keys, builder->error))
    return false;
  if (is_result != (argument.kind == ACCRT_ARGUMENT_RESULT))
    return accx_node_fail(map, builder->error, "%s is among the %s", ACCX_SHOW(argument.name),
                          is_result ? "results" : "inputs");
  argument.optional = optional;
  accx_name_t* name =
      accx_name_add(builder, is_result ? ACCX_NAME_RESULT : ACCX_NAME_INPUT, argument.name, map);
  if (name == NULL)
    return false;
  const accrt_status_t status =
      accrt_bundle_writer_add_argument(builder->writer, function->id, &argument, &name->id);
  if (status != ACCRT_OK)
    return accx_node_fail_call(builder, map, status);
  function->formals[function->formal_count++] =
      (accx_formal_t){argument.name, argument.kind == ACCRT_ARGUMENT_SCALAR ? ACCRT_OPERAND_SYMBOL
                                                                            : ACCRT_OPERAND_BUFFER};
  function->input_count += !is_result;
  return true;
}

static bool build_arguments(accx_builder_t* builder, accx_node_t* list, accx_name_t* function,
                            bool is_result) {
  for (accx_node_t* node = list != NULL ? list->first : NULL; node != NULL; node = node->next) {
    if (!build_argument(builder, node, function, is_result))
      return false;
  }
  return true;
}

static bool take_list(accx_builder_t* builder, accx_node_t* map, const char* key,
                      accx_node_t** out) {
  *out = accx_node_get(map, key);
  if (*out == NULL)
    return true;
  if (!accx_want(builder, *out, ACCX_NODE_LIST, key))
    return false;
  return (*out)->count <= MAX_ARGUMENTS ||
         accx_node_fail(*out, builder->error, "%" PRIu32 " arguments; %u are possible",
                        (*out)->count, MAX_ARGUMENTS);
}

static bool build_signature(accx_builder_t* builder, accx_node_t* map, accx_name_t** out) {
  accrt_writer_function_t function = ACCRT_WRITER_FUNCTION_INIT;
  bool prepare = false, internal = false;
  accx_node_t *inputs, *results;
  if (!accx_want(builder, map, ACCX_NODE_MAP, "a function") ||
      !accx_key_text(builder, map, "name", "a function", &function.name) ||
      !accx_key_text(builder, map, "target", NULL, &function.target) ||
      !accx_key_text(builder, map, "doc", NULL, &function.doc) ||
      !accx_key_flag(builder, map, "prepare", &prepare) ||
      !accx_key_flag(builder, map, "internal", &internal) ||
      !accx_key_u64(builder, map, "required_features", NULL, &function.required_features) ||
      !take_list(builder, map, "inputs", &inputs) || !take_list(builder, map, "results", &results))
    return false;
  function.flags =
      (prepare ? ACCRT_FUNCTION_PREPARE : 0) | (internal ? ACCRT_FUNCTION_INTERNAL : 0);
  accx_name_t* name = accx_name_add_target(builder, ACCX_NAME_FUNCTION, function.name,
                                           function.target != NULL ? function.target : "", map);
  if (name == NULL)
    return false;
  *out = name;
  name->formals = accx_build_memory(
      builder, ((inputs != NULL ? inputs->count : 0u) + (results != NULL ? results->count : 0u)) *
                   sizeof *name->formals);
  if (name->formals == NULL)
    return false;
  const accrt_status_t status =
      accrt_bundle_writer_add_function(builder->writer, &function, &name->id, &name->body);
  if (status != ACCRT_OK)
    return accx_node_fail_call(builder, map, status);
  accx_node_t* lets = accx_node_get(map, "let");
  return build_lets(builder, lets, false) && build_arguments(builder, inputs, name, false) &&
         build_arguments(builder, results, name, true) && build_lets(builder, lets, true);
}

/* ---- Bodies ---- */

static bool build_arena(accx_builder_t* builder, accx_node_t* map, const accx_name_t* function) {
  static const char* const keys[] = {"size", "align", NULL};
  accx_node_t* arena = accx_node_get(map, "arena");
  accrt_writer_id_t size, slot;
  uint32_t align = 0;
  if (arena == NULL)
    return true;
  if (!accx_want(builder, arena, ACCX_NODE_MAP, "arena"))
    return false;
  const accx_node_t* node = accx_node_get(arena, "size");
  if (node == NULL)
    return accx_node_fail(arena, builder->error, "an arena needs 'size'");
  if (!accx_read_expression(builder, node, &size) ||
      !accx_key_u32(builder, arena, "align", NULL, &align) ||
      !accx_node_all_used(arena, "an arena", keys, builder->error))
    return false;
  const accrt_status_t status =
      accrt_bundle_writer_arena(builder->writer, function->id, size, align, &slot);
  return status == ACCRT_OK || accx_node_fail_call(builder, arena, status);
}

static bool build_body(accx_builder_t* builder, accx_node_t* map, const accx_name_t* function) {
  static const char* const keys[] = {
      "name",    "target", "doc",      "prepare", "internal",          "inputs",
      "results", "let",    "commands", "arena",   "required_features", NULL};
  accx_node_t* commands = accx_node_get(map, "commands");
  if (!build_arena(builder, map, function) ||
      (commands != NULL && !accx_build_block(builder, function, commands, function->body)))
    return false;
  return accx_node_all_used(map, "a function", keys, builder->error);
}

bool accx_build_functions(accx_builder_t* builder, accx_node_t* list) {
  accx_name_t** functions = accx_build_memory(builder, list->count * sizeof(accx_name_t*));
  bool good = functions != NULL;
  uint32_t i = 0;
  for (accx_node_t* node = list->first; good && node != NULL; node = node->next) {
    builder->scope = ++i;
    good = build_signature(builder, node, &functions[i - 1]);
  }
  i = 0;
  for (accx_node_t* node = list->first; good && node != NULL; node = node->next) {
    builder->scope = ++i;
    good = build_body(builder, node, functions[i - 1]);
  }
  builder->scope = 0;
  return good;
}
