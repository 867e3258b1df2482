/* loader/reflect.c - public reflection of bundles (accrt/bundle.h), look-ups by name, types as
 * text. */
#include "accrt/tensor.h"
#include "loader/internal.h"
#include "runtime/core/fork.h"
#include "runtime/core/near_name.h"
#include "runtime/core/struct.h"

#include <stdio.h>

/* ---- For the program layer ---- */

const accrt_bundle_tables_t* accrt_bundle_tables(const accrt_bundle_t* bundle) {
  return &bundle->tables;
}
accrt_instance_t* accrt_bundle_instance(const accrt_bundle_t* bundle) {
  return bundle != NULL ? bundle->instance : NULL;
}
uint64_t accrt_bundle_table_bytes(const accrt_bundle_t* bundle) {
  return bundle->metadata_size_bytes;
}
const char* accrt_bundle_name(const accrt_bundle_t* bundle) {
  return bundle->name;
}

/* Binary search in records with ascending names. `names` points to the first record's name, and
 * `stride` is the size of a record. */
static uint32_t find_ordered(const accrt_bundle_tables_t* tables, const uint32_t* names,
                             size_t stride, uint32_t count, const char* name) {
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const uint32_t* offset =
        (const uint32_t*)(const void*)((const char*)(const void*)names + middle * stride);
    const int order = strcmp(accrt_bundle_string(tables, *offset), name);
    if (order == 0)
      return middle;
    if (order < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return ACCX_NONE;
}
#define FIND_ORDERED(tables, field, name)                                                          \
  ((tables)->field##_count == 0                                                                    \
       ? ACCX_NONE                                                                                 \
       : find_ordered((tables), &(tables)->field##s->name, sizeof *(tables)->field##s,             \
                      (tables)->field##_count, (name)))

uint32_t accrt_bundle_lookup_constant(const accrt_bundle_t* bundle, const char* name) {
  return FIND_ORDERED(&bundle->tables, constant, name);
}
uint32_t accrt_bundle_lookup_symbol(const accrt_bundle_t* bundle, const char* name) {
  return FIND_ORDERED(&bundle->tables, symbol, name);
}
uint32_t accrt_bundle_lookup_state(const accrt_bundle_t* bundle, const char* name) {
  return FIND_ORDERED(&bundle->tables, state, name);
}
uint32_t accrt_bundle_lookup_kernel(const accrt_bundle_t* bundle, const char* name) {
  return FIND_ORDERED(&bundle->tables, kernel, name);
}
/* Functions are sorted by call depth, then by name. */
uint32_t accrt_bundle_lookup_function(const accrt_bundle_t* bundle, const char* name) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  for (uint32_t depth = 0; depth < ACCX_MAX_CALL_DEPTH; ++depth) {
    const uint32_t end = tables->depth_first[depth + 1];
    uint32_t low = tables->depth_first[depth], high = end;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (strcmp(accrt_bundle_string(tables, tables->functions[middle].name), name) < 0) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low < end && strcmp(accrt_bundle_string(tables, tables->functions[low].name), name) == 0)
      return low;
  }
  return ACCX_NONE;
}
uint32_t accx_find_asset(const accrt_bundle_tables_t* tables, const char* name) {
  return FIND_ORDERED(tables, asset, name);
}

uint32_t accrt_bundle_function_for(const accrt_bundle_tables_t* tables, uint32_t first,
                                   const char* driver) {
  uint32_t any = ACCX_NONE;
  for (uint32_t i = first; i != ACCX_NONE; i = tables->function_next[i]) {
    const uint32_t target = tables->functions[i].target;
    if (target == 0) {
      any = i;
    } else if (strcmp(accrt_bundle_string(tables, target), driver) == 0) {
      return i;
    }
  }
  return any;
}

const accx_launch_t* accrt_bundle_launch(const accrt_bundle_tables_t* tables, uint32_t variant) {
  uint32_t low = 0, high = tables->launch_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (tables->launches[middle].variant == variant)
      return &tables->launches[middle];
    if (tables->launches[middle].variant < variant) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return NULL;
}

/* ---- First checks of the public functions ---- */

accrt_status_t accx_check_index(const accrt_bundle_t* bundle, const char* what, uint32_t index,
                                uint32_t count) {
  if (index < count)
    return ACCRT_OK;
  return ACCRT_FAIL(OUT_OF_RANGE, "%s: %s %" PRIu32 " of %" PRIu32, bundle->name, what, index,
                    count);
}

accrt_status_t accx_enter_index(const char* function, const accrt_bundle_t* bundle,
                                const char* what, uint32_t index, uint32_t count) {
  ACCRT_TRY(accrt_check_fork_in(function));
  return bundle != NULL ? accx_check_index(bundle, what, index, count)
                        : ACCRT_FAIL(INVALID_ARGUMENT, "bundle is NULL");
}

static const char* text_of(const accrt_bundle_t* bundle, uint32_t offset) {
  return accrt_bundle_string(&bundle->tables, offset);
}

/* ---- Bundle, sections, metadata ---- */

void accx_bundle_info(const accrt_bundle_t* bundle, accrt_bundle_info_t* out_info) {
  const accrt_bundle_tables_t* tables = &bundle->tables;
  const accx_header_t* header = &tables->header;
  *out_info = (accrt_bundle_info_t){
      .name = bundle->name,
      .size_bytes = header->file_size_bytes,
      .container_major = header->container.major,
      .container_minor = header->container.minor,
      .commands_major = header->commands.major,
      .commands_minor = header->commands.minor,
      .kernel_abi_major = header->kernel_abi.major,
      .kernel_abi_minor = header->kernel_abi.minor,
      .layouts_major = header->layouts.major,
      .layouts_minor = header->layouts.minor,
      .required_features = header->required_features,
      .section_count = tables->section_count,
      .metadata_count = tables->metadata_count,
      .symbol_count = tables->symbol_count,
      .constant_count = tables->constant_count,
      .state_count = tables->state_count,
      .function_count = tables->named_function_count,
      .kernel_count = tables->kernel_count,
      .image_count = tables->image_count,
      .data_size_bytes = tables->data_size_bytes,
      .optional_features = header->optional_features,
      .file_count = tables->file_count,
      .shard_count = tables->shard_count,
      .adapter_count = tables->adapter_count,
      .asset_count = tables->asset_count,
      .location_count = tables->location_count,
      .signature_count = tables->signature_count,
  };
}

accrt_status_t accrt_bundle_info(accrt_bundle_t* bundle, accrt_bundle_info_t* out_info) {
  ACCRT_ENTER(bundle);
  accrt_bundle_info_t info;
  accx_bundle_info(bundle, &info);
  return accrt_struct_write("accrt_bundle_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_bundle_section(accrt_bundle_t* bundle, uint32_t index,
                                    accrt_section_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "section", index, section_count);
  const accx_section_t* section = &bundle->tables.sections[index];
  accrt_section_info_t info = {
      .type = section->type,
      .name = bundle->section_names[index],
      .offset = section->offset,
      .size_bytes = section->size_bytes,
      .required = (section->flags & ACCX_SECTION_FLAG_REQUIRED) != 0,
      .known = accx_section_kind(section->type) != NULL,
      .record_count = section->record_count,
      .record_bytes = section->record_bytes,
  };
  memcpy(info.digest, section->digest.bytes, sizeof info.digest);
  return accrt_struct_write("accrt_section_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_bundle_metadata(accrt_bundle_t* bundle, uint32_t index, const char** out_key,
                                     const char** out_value) {
  if (out_key == NULL || out_value == NULL)
    return ACCRT_FAIL_NULL(out_key, out_value);
  *out_key = NULL;
  *out_value = NULL;
  ACCX_ENTER_INDEX(bundle, "metadata entry", index, metadata_count);
  *out_key = text_of(bundle, bundle->tables.metadata[index].key);
  *out_value = text_of(bundle, bundle->tables.metadata[index].value);
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_symbol(accrt_bundle_t* bundle, uint32_t index,
                                   accrt_symbol_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "symbol", index, symbol_count);
  const accx_symbol_t* symbol = &bundle->tables.symbols[index];
  const accrt_symbol_info_t info = {
      .symbol_class = symbol->symbol_class,
      .name = text_of(bundle, symbol->name),
      .minimum = symbol->minimum,
      .maximum = symbol->maximum,
      .divisor = symbol->divisor,
      .buckets = symbol->bucket_count > 0 ? bundle->tables.buckets + symbol->bucket_first : NULL,
      .bucket_count = symbol->bucket_count,
  };
  return accrt_struct_write("accrt_symbol_info_t", out_info, &info, sizeof info);
}

/* ---- Constants ---- */

accrt_status_t accrt_bundle_constant(accrt_bundle_t* bundle, uint32_t index,
                                     accrt_constant_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "constant", index, constant_count);
  const accx_constant_t* constant = &bundle->tables.constants[index];
  uint64_t size_bytes = 0;
  for (uint32_t i = 0; i < constant->component_count; ++i) {
    size_bytes += bundle->tables.components[constant->component_first + i].size_bytes;
  }
  accrt_constant_info_t info = {
      .source = constant->source,
      .name = text_of(bundle, constant->name),
      .dtype = constant->dtype,
      .encoding = constant->encoding,
      .rank = constant->rank,
      .component_count = constant->component_count,
      .shape = constant->shape,
      .size_bytes = size_bytes,
      .group_elements = constant->group_elements,
      .file = constant->file,
      .tensor = text_of(bundle, constant->tensor),
      .shard = accx_shard_of(&bundle->tables, index),
  };
  if (constant->source == ACCX_CONSTANT_EXTERNAL && constant->tensor == 0)
    info.tensor = info.name;
  memcpy(info.digest, constant->digest.bytes, sizeof info.digest);
  return accrt_struct_write("accrt_constant_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_bundle_find_constant(accrt_bundle_t* bundle, const char* name,
                                          uint32_t* out_index) {
  if (out_index != NULL)
    *out_index = 0;
  ACCRT_ENTER(out_index, bundle, name);
  const uint32_t found = accrt_bundle_lookup_constant(bundle, name);
  if (found != ACCX_NONE) {
    *out_index = found;
    return ACCRT_OK;
  }
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < bundle->tables.constant_count; ++i) {
    accrt_near_add(&near, text_of(bundle, bundle->tables.constants[i].name));
  }
  return ACCRT_FAIL(NOT_FOUND, "%s: no constant '%.128s'%s", bundle->name, name,
                    accrt_near_text(&near));
}

accrt_status_t accrt_bundle_constant_data(accrt_bundle_t* bundle, uint32_t index,
                                          const void** out_data, uint64_t* out_size_bytes) {
  if (out_data != NULL)
    *out_data = NULL;
  if (out_size_bytes != NULL)
    *out_size_bytes = 0;
  ACCRT_ENTER(out_data, out_size_bytes, bundle);
  return accrt_bundle_constant_component(bundle, index, 0, out_data, out_size_bytes);
}

/* ---- Functions: reflection shows one per name ---- */

static const accx_function_t* named_function(const accrt_bundle_t* bundle, uint32_t index) {
  return &bundle->tables.functions[bundle->tables.named_functions[index]];
}

static uint32_t version_count(const accrt_bundle_t* bundle, uint32_t record) {
  uint32_t count = 0;
  for (uint32_t i = bundle->tables.function_first[record]; i != ACCX_NONE;
       i = bundle->tables.function_next[i])
    ++count;
  return count;
}

accrt_status_t accrt_bundle_function_target(accrt_bundle_t* bundle, uint32_t function,
                                            uint32_t version, const char** out_target) {
  if (out_target == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "out_target is NULL");
  *out_target = NULL;
  ACCX_ENTER_INDEX(bundle, "function", function, named_function_count);
  const uint32_t record = bundle->tables.named_functions[function];
  ACCRT_TRY(accx_check_index(bundle, "version", version, version_count(bundle, record)));
  uint32_t at = bundle->tables.function_first[record];
  for (uint32_t i = 0; i < version; ++i)
    at = bundle->tables.function_next[at];
  *out_target = text_of(bundle, bundle->tables.functions[at].target);
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_function(accrt_bundle_t* bundle, uint32_t index,
                                     accrt_function_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "function", index, named_function_count);
  const uint32_t record = bundle->tables.named_functions[index];
  const accx_function_t* function = &bundle->tables.functions[record];
  const accrt_function_info_t info = {
      .flags = function->flags,
      .name = text_of(bundle, function->name),
      .doc = text_of(bundle, function->doc),
      .input_count = function->input_count,
      .result_count = function->result_count,
      .command_count = bundle->tables.function_command_count[record],
      .version_count = version_count(bundle, record),
      .required_features = function->required_features,
  };
  return accrt_struct_write("accrt_function_info_t", out_info, &info, sizeof info);
}

/* The index of a function's name. Names are in the order of their first function. */
static uint32_t place_of(const accrt_bundle_tables_t* tables, uint32_t first) {
  uint32_t low = 0, high = tables->named_function_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (tables->function_first[tables->named_functions[middle]] < first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

accrt_status_t accrt_bundle_find_function(accrt_bundle_t* bundle, const char* name,
                                          uint32_t* out_index) {
  if (out_index != NULL)
    *out_index = 0;
  ACCRT_ENTER(out_index, bundle, name);
  const uint32_t first = accrt_bundle_lookup_function(bundle, name);
  if (first != ACCX_NONE) {
    *out_index = place_of(&bundle->tables, first);
    return ACCRT_OK;
  }
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < bundle->tables.named_function_count; ++i) {
    if (named_function(bundle, i)->flags == 0) /* not PREPARE, not INTERNAL */
      accrt_near_add(&near, text_of(bundle, named_function(bundle, i)->name));
  }
  return ACCRT_FAIL(NOT_FOUND, "%s: no function '%.128s'%s", bundle->name, name,
                    accrt_near_text(&near));
}

/* The nodes of a scope. */
typedef struct node_scope {
  const accrt_bundle_t* bundle;
  uint32_t first;
} node_scope_t;

static const accx_expression_t* node_of(const node_scope_t* scope, uint32_t node) {
  return &scope->bundle->tables.expressions[scope->first + node];
}

static void fill_dims(const node_scope_t* scope, const accx_type_t* type, accrt_dim_t* dims) {
  for (uint32_t i = 0; i < type->rank; ++i) {
    const accx_expression_t* node = node_of(scope, type->dims[i]);
    if (node->op == ACCX_EXPR_CONSTANT) {
      dims[i] = (accrt_dim_t){ACCRT_DIM_CONSTANT, 0, node->immediate};
    } else if (node->op == ACCX_EXPR_SYMBOL) {
      dims[i] = (accrt_dim_t){ACCRT_DIM_SYMBOL, 0, node->immediate};
    } else {
      dims[i] = (accrt_dim_t){ACCRT_DIM_EXPRESSION, 0, type->dims[i]};
    }
  }
}

/* Returns the argument's record, or NULL with an error recorded. */
static accrt_status_t find_argument(const accrt_bundle_t* bundle, uint32_t function, uint32_t index,
                                    const accx_argument_t** out_argument) {
  const accx_function_t* owner = named_function(bundle, function);
  ACCRT_TRY(accx_check_index(bundle, "argument", index, owner->input_count + owner->result_count));
  *out_argument = &bundle->tables.arguments[owner->argument_first + index];
  return ACCRT_OK;
}

accrt_status_t accrt_bundle_argument(accrt_bundle_t* bundle, uint32_t function, uint32_t index,
                                     accrt_argument_info_t* out_info) {
  const accx_argument_t* argument;
  ACCX_ENTER_INDEX(bundle, "function", function, named_function_count);
  ACCRT_TRY(find_argument(bundle, function, index, &argument));
  accrt_argument_info_t info = {
      .kind = argument->kind,
      .name = text_of(bundle, argument->name),
      .doc = text_of(bundle, argument->doc),
      .dtype = argument->type.dtype,
      .rank = argument->type.rank,
      .optional = (argument->flags & ACCX_ARGUMENT_FLAG_OPTIONAL) != 0,
      .symbol = argument->symbol,
      .alias_kind = argument->alias_kind,
      .alias_input = argument->alias_input,
  };
  const node_scope_t scope = {bundle, named_function(bundle, function)->expression_first};
  fill_dims(&scope, &argument->type, info.dims);
  return accrt_struct_write("accrt_argument_info_t", out_info, &info, sizeof info);
}

/* ---- Types as text ---- */

/* Longer expressions are shown as "...". A file may share nodes such that the text would become
 * endless. */
#define MAX_NODES_SHOWN 200
#define MAX_DEPTH_SHOWN 24

typedef struct type_text {
  const node_scope_t* scope;
  char* text;
  uint64_t capacity_bytes;
  uint64_t size_bytes; /* of the whole text so far, without the NUL */
  uint32_t nodes_left;
} type_text_t;

static void add_text(type_text_t* out, const char* text) {
  for (; *text != '\0'; ++text, ++out->size_bytes) {
    if (out->size_bytes + 1 < out->capacity_bytes)
      out->text[out->size_bytes] = *text;
  }
}

static void add_number(type_text_t* out, int64_t value) {
  char digits[24];
  (void)snprintf(digits, sizeof digits, "%" PRId64, value);
  add_text(out, digits);
}

static void add_node(type_text_t* out, uint32_t node, uint32_t depth);

static void add_call(type_text_t* out, const char* name, const accx_expression_t* node,
                     uint32_t depth) {
  const uint32_t operands[3] = {node->a, node->b, node->c};
  add_text(out, name);
  for (uint32_t i = 0; i < 3 && operands[i] != ACCX_NONE; ++i) {
    add_text(out, i == 0 ? "(" : ", ");
    add_node(out, operands[i], depth + 1);
  }
  add_text(out, ")");
}

static void add_infix(type_text_t* out, const char* op, const accx_expression_t* node,
                      uint32_t depth) {
  if (depth > 0)
    add_text(out, "(");
  add_node(out, node->a, depth + 1);
  add_text(out, op);
  add_node(out, node->b, depth + 1);
  if (depth > 0)
    add_text(out, ")");
}

static void add_node(type_text_t* out, uint32_t index, uint32_t depth) {
  /* By op; "" for ops without an infix form. */
  static const char infix[][6] = {"",     "",      "",     " + ", " - ",  " * ",  " // ",
                                  "",     " % ",   "",     "",    " == ", " != ", " < ",
                                  " <= ", " and ", " or ", "",    "",     ""};
  static const char call[][8] = {"",    "", "", "", "", "", "", "ceildiv", "",       "min",
                                 "max", "", "", "", "", "", "", "not",     "select", ""};
  if (out->nodes_left == 0 || depth > MAX_DEPTH_SHOWN) {
    add_text(out, "...");
    return;
  }
  --out->nodes_left;
  const accx_expression_t* node = node_of(out->scope, index);
  const accrt_bundle_tables_t* tables = &out->scope->bundle->tables;
  if (node->op == ACCX_EXPR_CONSTANT) {
    add_number(out, node->immediate);
  } else if (node->op == ACCX_EXPR_SYMBOL) {
    add_text(out, accrt_bundle_string(tables, tables->symbols[node->immediate].name));
  } else if (node->op == ACCX_EXPR_PRESENT || node->op == ACCX_EXPR_INDUCTION) {
    add_text(out, node->op == ACCX_EXPR_PRESENT ? "present(" : "induction(");
    add_number(out, node->immediate);
    add_text(out, ")");
  } else if (infix[node->op][0] != '\0') {
    add_infix(out, infix[node->op], node, depth);
  } else {
    add_call(out, call[node->op], node, depth);
  }
}

/* Writes the type of an argument of a function's record as text. Returns the bytes of the whole
 * text with its NUL. */
static uint64_t type_text(const accrt_bundle_t* bundle, const accx_function_t* owner,
                          uint32_t index, char* text, uint64_t capacity_bytes) {
  const accx_argument_t* argument = &bundle->tables.arguments[owner->argument_first + index];
  const node_scope_t scope = {bundle, owner->expression_first};
  type_text_t out = {&scope, text, capacity_bytes, 0, MAX_NODES_SHOWN};
  add_text(&out, accrt_dtype_name(argument->type.dtype));
  if (argument->type.encoding == ACCX_ENCODING_OPAQUE)
    add_text(&out, " opaque");
  const bool scalar = argument->kind == ACCX_ARGUMENT_SCALAR;
  if (!scalar)
    add_text(&out, "[");
  for (uint32_t i = 0; i < argument->type.rank; ++i) {
    if (i > 0)
      add_text(&out, ", ");
    add_node(&out, argument->type.dims[i], 0);
  }
  if (!scalar)
    add_text(&out, "]");
  if (capacity_bytes > 0)
    text[out.size_bytes < capacity_bytes ? out.size_bytes : capacity_bytes - 1] = '\0';
  return out.size_bytes + 1;
}

bool accrt_bundle_record_type_text(const accrt_bundle_t* bundle, uint32_t record, uint32_t index,
                                   char* text, uint64_t capacity_bytes) {
  const accx_function_t* owner = &bundle->tables.functions[record];
  return type_text(bundle, owner, index, text, capacity_bytes) <= capacity_bytes;
}

accrt_status_t accrt_bundle_argument_type_text(accrt_bundle_t* bundle, uint32_t function,
                                               uint32_t index, char* text, uint64_t capacity_bytes,
                                               uint64_t* out_size_bytes) {
  if (out_size_bytes != NULL)
    *out_size_bytes = 0;
  if (text == NULL && capacity_bytes > 0)
    return ACCRT_FAIL(INVALID_ARGUMENT, "text is NULL");
  const accx_argument_t* argument;
  ACCX_ENTER_INDEX(bundle, "function", function, named_function_count);
  ACCRT_TRY(find_argument(bundle, function, index, &argument));
  const uint64_t size_bytes =
      type_text(bundle, named_function(bundle, function), index, text, capacity_bytes);
  if (out_size_bytes != NULL)
    *out_size_bytes = size_bytes;
  if (size_bytes <= capacity_bytes || capacity_bytes == 0)
    return ACCRT_OK;
  return ACCRT_FAIL(OUT_OF_RANGE,
                    "the text has %" PRIu64 " bytes with its NUL, the buffer %" PRIu64, size_bytes,
                    capacity_bytes);
}

/* ---- States, kernels, variants ---- */

accrt_status_t accrt_bundle_state(accrt_bundle_t* bundle, uint32_t index,
                                  accrt_state_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "state", index, state_count);
  const accx_state_t* state = &bundle->tables.states[index];
  accrt_state_info_t info = {
      .name = text_of(bundle, state->name),
      .dtype = state->type.dtype,
      .rank = state->type.rank,
  };
  const node_scope_t scope = {bundle, 0};
  fill_dims(&scope, &state->type, info.dims);
  return accrt_struct_write("accrt_state_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_bundle_kernel(accrt_bundle_t* bundle, uint32_t index,
                                   accrt_bundle_kernel_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "kernel", index, kernel_count);
  const accx_kernel_t* kernel = &bundle->tables.kernels[index];
  const accrt_bundle_kernel_info_t info = {
      .traits = kernel->traits,
      .name = text_of(bundle, kernel->name),
      .parameter_count = kernel->parameter_count,
      .variant_count = kernel->variant_count,
  };
  return accrt_struct_write("accrt_bundle_kernel_info_t", out_info, &info, sizeof info);
}

accrt_status_t accrt_bundle_variant(accrt_bundle_t* bundle, uint32_t kernel, uint32_t index,
                                    accrt_variant_info_t* out_info) {
  ACCX_ENTER_INDEX(bundle, "kernel", kernel, kernel_count);
  const accrt_bundle_tables_t* tables = &bundle->tables;
  ACCRT_TRY(accx_check_index(bundle, "variant", index, tables->kernels[kernel].variant_count));
  const accx_variant_t* variant = &tables->variants[tables->kernels[kernel].variant_first + index];
  const accx_image_t* image = &tables->images[variant->image];
  accrt_variant_info_t info = {
      .arch_kind = variant->arch_kind,
      .driver = text_of(bundle, variant->driver),
      .arch = text_of(bundle, variant->arch),
      .entry = text_of(bundle, variant->entry),
      .image = text_of(bundle, image->name),
      .cpu_features = variant->cpu_features,
      .priority = variant->priority,
      .image_kind = image->kind,
  };
  const accx_launch_t* launch =
      accrt_bundle_launch(tables, tables->kernels[kernel].variant_first + index);
  if (launch != NULL) {
    info.launch_traits = launch->traits;
    memcpy(info.block, launch->block, sizeof info.block);
    memcpy(info.cluster, launch->cluster, sizeof info.cluster);
    info.dynamic_shared_bytes = launch->dynamic_shared_bytes;
  }
  return accrt_struct_write("accrt_variant_info_t", out_info, &info, sizeof info);
}
