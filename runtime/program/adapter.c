/* runtime/program/adapter.c - adapters (LoRA): tensors for the optional inputs that a bundle's
 * ADAPTERS section names, on the device once, bound by every call of a session that has the
 * adapter. It checks and scales; calls bind and keep what is in flight.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/layout.h"
#include "format/layout_number.h"
#include "loader/weights.h"
#include "runtime/core/struct.h"
#include "runtime/program/internal.h"

/* What one adapter tensor of the bundle gets; `rank` 0 and `dtype` 0: nothing. */
typedef struct filling {
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK];
  uint32_t source; /* tensor of the weights, or ACCX_WEIGHTS_NONE */
  uint64_t size_bytes;
} filling_t;

struct accrt_adapter {
  accrt_object_t object;
  accrt_program_t* program; /* an internal reference */
  accrt_buffer_t* buffer;
  filling_t* fillings; /* by record of ADAPTERS */
};

/* ---- Life ---- */

static void destroy(accrt_adapter_t* adapter) {
  accrt_program_t* program = adapter->program;
  accrt_buffer_unref(adapter->buffer);
  accrt_free_array(program->allocator, adapter->fillings, program->tables->adapter_count,
                   sizeof *adapter->fillings);
  accrt_free(program->allocator, adapter, sizeof *adapter);
  accrt_program_unref(program);
}

void accrt_adapter_unref(accrt_adapter_t* adapter) {
  if (adapter != NULL && accrt_object_release(&adapter->object))
    destroy(adapter);
}

accrt_adapter_t* accrt_adapter_retain(accrt_adapter_t* adapter) {
  if (adapter == NULL || accrt_forked())
    return adapter;
  accrt_object_retain(&adapter->object);
  (void)accrt_instance_retain(adapter->program->instance);
  return adapter;
}

void accrt_adapter_release(accrt_adapter_t* adapter) {
  if (adapter == NULL || accrt_forked())
    return;
  accrt_instance_t* instance = adapter->program->instance;
  accrt_adapter_unref(adapter);
  accrt_instance_release(instance);
}

/* ---- Which tensor of the file is for which of the bundle ---- */

typedef struct loader {
  accrt_adapter_t* adapter;
  const accrt_program_t* program;
  const accx_adapter_t* records;
  accrt_weights_t* weights;
  accrt_adapter_options_t options;
  uint64_t size_bytes; /* of the buffer */
} loader_t;

static const char* name_of(const loader_t* loader, uint32_t index) {
  return accrt_program_string(loader->program, loader->records[index].slot);
}

/* PEFT's files put this before the names of the model that they adapt. */
#define PREFIX "base_model.model."

static uint32_t find_tensor(const loader_t* loader, const char* name) {
  char full[sizeof PREFIX + ACCX_MAX_NAME_BYTES] = PREFIX;
  const size_t size_bytes = strlen(name);
  const uint32_t found = accx_weights_lookup(loader->weights, name, size_bytes, ACCX_WEIGHTS_NONE);
  if (found != ACCX_WEIGHTS_NONE || size_bytes > ACCX_MAX_NAME_BYTES)
    return found;
  memcpy(full + sizeof PREFIX - 1, name, size_bytes);
  return accx_weights_lookup(loader->weights, full, sizeof PREFIX - 1 + size_bytes,
                             ACCX_WEIGHTS_NONE);
}

/* The adapter tensor with B in the place of A, or the other way round; NONE when the name says of
 * no pair. */
static uint32_t other_of_pair(const loader_t* loader, uint32_t index) {
  char name[ACCX_MAX_NAME_BYTES + 1];
  const char* own = name_of(loader, index);
  const size_t size_bytes = strlen(own);
  if (size_bytes > ACCX_MAX_NAME_BYTES)
    return ACCX_NONE;
  memcpy(name, own, size_bytes + 1);
  char* last = NULL;
  for (char* at = name; (at = strstr(at, "lora_")) != NULL; ++at)
    last = at + 5;
  if (last == NULL || strchr("ABab", *last) == NULL || *last == '\0')
    return ACCX_NONE;
  *last ^= 'A' ^ 'B';
  for (uint32_t i = 0; i < loader->program->tables->adapter_count; ++i) {
    if (strcmp(name_of(loader, i), name) == 0)
      return i;
  }
  return ACCX_NONE;
}

static accrt_status_t match(const loader_t* loader) {
  filling_t* const fillings = loader->adapter->fillings;
  const uint32_t count = loader->program->tables->adapter_count;
  uint32_t used = 0;
  for (uint32_t i = 0; i < count; ++i) {
    fillings[i].source = find_tensor(loader, name_of(loader, i));
    used += fillings[i].source != ACCX_WEIGHTS_NONE;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t other =
        fillings[i].source != ACCX_WEIGHTS_NONE ? other_of_pair(loader, i) : ACCX_NONE;
    if (other != ACCX_NONE && fillings[other].source == ACCX_WEIGHTS_NONE) {
      return ACCRT_FAIL(NOT_FOUND, "%s has '%s' and not the other of the pair, '%s'",
                        accx_weights_name(loader->weights), name_of(loader, i),
                        name_of(loader, other));
    }
  }
  const char* const name = accx_weights_name(loader->weights);
  const char* const bundle = accrt_bundle_name(loader->program->bundle);
  if (used == 0)
    return ACCRT_FAIL(NOT_FOUND, "%s has no adapter tensor of '%s'", name, bundle);
  if ((loader->options.flags & ACCRT_ADAPTER_PARTIAL) != 0)
    return ACCRT_OK;
  for (uint32_t t = 0; t < loader->weights->entry_count; ++t) {
    uint32_t i = 0;
    while (i < count && fillings[i].source != t)
      ++i;
    if (i == count)
      return ACCRT_FAIL(NOT_FOUND, "%s: '%.200s' is no adapter tensor of '%s'", name,
                        loader->weights->entries[t].name, bundle);
  }
  return ACCRT_OK;
}

/* ---- Types ---- */

static accrt_status_t fail_shape(const loader_t* loader, uint32_t index, uint32_t dimension,
                                 const char* what, int64_t expected) {
  return ACCRT_FAIL(SHAPE_MISMATCH, "%s: '%s', dimension %" PRIu32 ": got %" PRId64 ", %s %" PRId64,
                    accx_weights_name(loader->weights), name_of(loader, index), dimension,
                    loader->adapter->fillings[index].shape[dimension], what, expected);
}

/* One dimension: a number, or a symbol that all of the function's have alike. Others are seen at
 * calls. */
static accrt_status_t check_dimension(const loader_t* loader, uint32_t index, uint32_t dimension,
                                      const accx_expression_t* node, accrt_expr_value_t* symbols) {
  const int64_t got = loader->adapter->fillings[index].shape[dimension];
  if (node->op == ACCX_EXPR_CONSTANT && node->immediate != got)
    return fail_shape(loader, index, dimension, "the input has", node->immediate);
  if (node->op != ACCX_EXPR_SYMBOL)
    return ACCRT_OK;
  const uint32_t symbol = (uint32_t)node->immediate;
  const accx_symbol_t* record = &loader->program->tables->symbols[symbol];
  char range[96];
  if (!accrt_symbol_allows(record, got)) {
    return ACCRT_FAIL(SHAPE_MISMATCH, "%s: '%s', symbol '%s': got %" PRId64 ", allowed: %s",
                      accx_weights_name(loader->weights), name_of(loader, index),
                      accrt_program_string(loader->program, record->name), got,
                      accrt_symbol_range_text(record, range, sizeof range));
  }
  if (symbols[symbol].fault == ACCRT_EXPR_OK && symbols[symbol].value != got)
    return fail_shape(loader, index, dimension, "another adapter tensor says",
                      symbols[symbol].value);
  symbols[symbol] = accrt_expr_known(got);
  return ACCRT_OK;
}

static accrt_status_t check_input(const loader_t* loader, uint32_t index, uint32_t function,
                                  const accx_argument_t* input, accrt_expr_value_t* symbols) {
  const filling_t* filling = &loader->adapter->fillings[index];
  accrt_weights_tensor_t info;
  ACCRT_TRY(accx_weights_describe(loader->weights, filling->source, &info));
  if (info.encoding != ACCRT_LAYOUT_PLAIN || info.dtype != input->type.dtype ||
      info.rank != input->type.rank) {
    return ACCRT_FAIL(TYPE_MISMATCH,
                      "%s: '%s' is %s of rank %" PRIu32
                      ", but input '%s' of function '%s' is %s of rank %" PRIu32,
                      accx_weights_name(loader->weights), name_of(loader, index), info.type_name,
                      info.rank, accrt_program_string(loader->program, input->name),
                      accrt_function_name(loader->program, function),
                      accrt_dtype_name(input->type.dtype), input->type.rank);
  }
  const accx_expression_t* scope = accrt_function_scope(loader->program, function);
  accrt_status_t status = ACCRT_OK;
  for (uint32_t d = 0; d < info.rank && status == ACCRT_OK; ++d)
    status = check_dimension(loader, index, d, &scope[input->type.dims[d]], symbols);
  return status;
}

/* The index of the adapter tensor that fills an input and is filled; NONE. */
static uint32_t find_for(const accrt_adapter_t* adapter, uint32_t input_name) {
  const accrt_bundle_tables_t* tables = adapter->program->tables;
  for (uint32_t i = 0; i < tables->adapter_count; ++i) {
    if (tables->adapters[i].input == input_name && adapter->fillings[i].source != ACCX_WEIGHTS_NONE)
      return i;
  }
  return ACCX_NONE;
}

static accrt_status_t check_function(const loader_t* loader, uint32_t function,
                                     accrt_expr_value_t* symbols) {
  const accrt_bundle_tables_t* tables = loader->program->tables;
  const accx_argument_t* arguments = accrt_function_arguments(loader->program, function);
  for (uint32_t i = 0; i < tables->symbol_count; ++i)
    symbols[i] = accrt_expr_unknown(i);
  for (uint32_t i = 0; i < tables->functions[function].input_count; ++i) {
    const uint32_t index = find_for(loader->adapter, arguments[i].name);
    if (index == ACCX_NONE)
      continue;
    ACCRT_TRY(check_input(loader, index, function, &arguments[i], symbols));
  }
  return ACCRT_OK;
}

/* Shapes and places, then every function that has such inputs. */
static accrt_status_t check(loader_t* loader) {
  const accrt_bundle_tables_t* tables = loader->program->tables;
  const accrt_allocator_t* allocator = loader->program->allocator;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < tables->adapter_count && status == ACCRT_OK; ++i) {
    filling_t* filling = &loader->adapter->fillings[i];
    accrt_weights_tensor_t info;
    if (filling->source == ACCX_WEIGHTS_NONE)
      continue;
    ACCRT_TRY(accx_weights_describe(loader->weights, filling->source, &info));
    memcpy(filling->shape, info.shape, info.rank * sizeof *info.shape);
    filling->tensor.dtype = info.dtype;
    filling->tensor.rank = info.rank;
    filling->tensor.shape = filling->shape;
    filling->size_bytes = info.size_bytes;
    if (!accrt_align_u64(loader->size_bytes, ACCRT_STORAGE_ALIGN, &filling->tensor.offset_bytes) ||
        !accrt_add_u64(filling->tensor.offset_bytes, info.size_bytes, &loader->size_bytes))
      return ACCRT_FAIL(OVERFLOW, "the adapter does not fit 64 bits");
  }
  void* symbols;
  status = accrt_alloc_array(allocator, tables->symbol_count, sizeof(accrt_expr_value_t), &symbols);
  for (uint32_t i = 0; i < tables->function_count && status == ACCRT_OK; ++i)
    status = check_function(loader, i, symbols);
  accrt_free_array(allocator, symbols, tables->symbol_count, sizeof(accrt_expr_value_t));
  return status;
}

/* ---- Bytes ---- */

/* The rank is the symbol in the input's type: the first function that has the input says which
 * dimension that is. */
static int64_t rank_of(const loader_t* loader, uint32_t index) {
  const accrt_bundle_tables_t* tables = loader->program->tables;
  for (uint32_t f = 0; f < tables->function_count; ++f) {
    const accx_argument_t* arguments = accrt_function_arguments(loader->program, f);
    const accx_expression_t* scope = accrt_function_scope(loader->program, f);
    for (uint32_t i = 0; i < tables->functions[f].input_count; ++i) {
      for (uint32_t d = 0;
           arguments[i].name == loader->records[index].input && d < arguments[i].type.rank; ++d) {
        if (scope[arguments[i].type.dims[d]].op == ACCX_EXPR_SYMBOL)
          return loader->adapter->fillings[index].shape[d];
      }
    }
  }
  return 0;
}

/* alpha, of the options or of the file's metadata; 0: not given. */
static double alpha_of(const loader_t* loader) {
  static const char keys[][20] = {"adapter.lora.alpha", "lora_alpha", "alpha"};
  if (loader->options.alpha != 0)
    return loader->options.alpha;
  for (uint32_t i = 0; i < loader->weights->value_count; ++i) {
    accrt_weights_metadata_t value;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; ++k) {
      if (strcmp(loader->weights->values[i].key, keys[k]) != 0)
        continue;
      accx_weights_value(loader->weights, i, &value);
      return value.text != NULL ? strtod(value.text, NULL) : value.real + (double)value.integer;
    }
  }
  return 0;
}

/* Each element by a factor, in f32, rounded to nearest even where its type is narrower. */
static accrt_status_t scale(const loader_t* loader, uint32_t index, unsigned char* bytes) {
  const filling_t* filling = &loader->adapter->fillings[index];
  const int64_t rank = rank_of(loader, index);
  const uint32_t dtype = filling->tensor.dtype;
  const double alpha = alpha_of(loader);
  const uint32_t width = accrt_dtype_bits(dtype) / 8;
  const bool is_given = loader->options.scale != 0;
  const float factor = (float)(is_given ? loader->options.scale : alpha / (double)rank);
  if ((alpha == 0 && !is_given) || rank <= 0 || !isfinite(factor) ||
      (dtype != ACCRT_DTYPE_F32 && dtype != ACCRT_DTYPE_F16 && dtype != ACCRT_DTYPE_BF16)) {
    return ACCRT_FAIL(
        INVALID_ARGUMENT,
        "%s: '%s' (%s, rank %" PRId64 ") is to be scaled by alpha / rank, and %s is %g",
        accx_weights_name(loader->weights), name_of(loader, index), accrt_dtype_name(dtype), rank,
        is_given ? "scale" : "alpha", is_given ? loader->options.scale : alpha);
  }
  for (uint64_t i = 0; i < filling->size_bytes / width; ++i) {
    const float value = accx_load(bytes, dtype, i) * factor;
    const uint32_t bits = dtype == ACCRT_DTYPE_F32   ? accx_bits_of_float(value)
                          : dtype == ACCRT_DTYPE_F16 ? accx_code_f16(value)
                                                     : accx_code_bf16(value);
    memcpy(bytes + i * width, &bits, width);
  }
  return ACCRT_OK;
}

static accrt_status_t read_all(const loader_t* loader, unsigned char* bytes) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < loader->program->tables->adapter_count && status == ACCRT_OK; ++i) {
    const filling_t* filling = &loader->adapter->fillings[i];
    if (filling->source == ACCX_WEIGHTS_NONE)
      continue;
    unsigned char* const target = bytes + filling->tensor.offset_bytes;
    status = accx_weights_copy(loader->weights, filling->source, 0, 0, target, filling->size_bytes);
    if (status == ACCRT_OK && (loader->records[i].flags & ACCX_ADAPTER_SCALED) != 0)
      status = scale(loader, i, target);
  }
  return status;
}

static accrt_status_t upload(const loader_t* loader) {
  accrt_adapter_t* const adapter = loader->adapter;
  accrt_weight_component_t place = {0};
  void* memory;
  ACCRT_TRY(accrt_alloc(loader->program->allocator, (size_t)loader->size_bytes, &memory));
  accrt_status_t status = read_all(loader, memory);
  if (status == ACCRT_OK) {
    const accrt_place_t source = {NULL, memory, 0};
    status = accrt_weight_component_upload(adapter->program, "adapter", &place, &source,
                                           loader->size_bytes);
    adapter->buffer = place.buffer;
  }
  accrt_free(loader->program->allocator, memory, (size_t)loader->size_bytes);
  for (uint32_t i = 0; i < loader->program->tables->adapter_count; ++i)
    adapter->fillings[i].tensor.buffer = adapter->buffer;
  return status;
}

/* ---- Loading ---- */

static accrt_status_t create(accrt_program_t* program, loader_t* loader) {
  void* memory;
  ACCRT_TRY(accrt_alloc(program->allocator, sizeof(accrt_adapter_t), &memory));
  loader->adapter = memory;
  accrt_object_init(&loader->adapter->object);
  accrt_object_retain(&program->object);
  loader->adapter->program = program;
  accrt_status_t status = accrt_alloc_array(program->allocator, program->tables->adapter_count,
                                            sizeof(filling_t), &memory);
  loader->adapter->fillings = memory;
  if (status == ACCRT_OK)
    status = match(loader);
  if (status == ACCRT_OK)
    status = check(loader);
  return status != ACCRT_OK ? status : upload(loader);
}

accrt_status_t accrt_adapter_load(accrt_program_t* program, accrt_weights_t* weights,
                                  const accrt_adapter_options_t* options,
                                  accrt_adapter_t** out_adapter) {
  if (out_adapter != NULL)
    *out_adapter = NULL;
  ACCRT_ENTER(out_adapter, program);
  loader_t loader;
  memset(&loader, 0, sizeof loader);
  ACCRT_TRY(accrt_struct_read("accrt_adapter_options_t", options, &loader.options,
                              sizeof loader.options));
  ACCRT_TRY(accrt_program_check_weights(program->instance, &weights, 1));
  if ((loader.options.flags & ~ACCRT_ADAPTER_PARTIAL) != 0)
    ACCRT_TRY(ACCRT_FAIL(INVALID_ARGUMENT, "flags are 0x%" PRIx32, loader.options.flags));
  loader.program = program;
  loader.records = program->tables->adapters;
  loader.weights = weights;
  accrt_status_t status = create(program, &loader);
  if (status != ACCRT_OK) {
    accrt_adapter_unref(loader.adapter);
    return status;
  }
  (void)accrt_instance_retain(program->instance);
  *out_adapter = loader.adapter;
  return ACCRT_OK;
}

/* ---- Sessions and calls ---- */

accrt_status_t accrt_session_take_adapter(accrt_session_t* session, accrt_adapter_t* adapter) {
  ACCRT_USE_SESSION(session);
  if (adapter != NULL && adapter->program != session->program)
    return ACCRT_FAIL(
        INVALID_ARGUMENT,
        "the adapter was loaded for another program than the session's, of bundle '%s'",
        accrt_bundle_name(session->program->bundle));
  if (adapter != NULL)
    accrt_object_retain(&adapter->object);
  accrt_adapter_unref(session->adapter);
  session->adapter = adapter;
  ++session->adapter_version;
  return ACCRT_OK;
}

accrt_status_t accrt_session_set_adapter(accrt_session_t* session, accrt_adapter_t* adapter) {
  ACCRT_ENTER(session);
  return accrt_session_take_adapter(session, adapter);
}

accrt_status_t accrt_call_adapt(accrt_call_t* call) {
  const accrt_adapter_t* adapter = call->session->adapter;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < call->input_count && status == ACCRT_OK; ++i) {
    accrt_call_argument_t* argument = &call->arguments[i];
    if (argument->bound && !argument->adapted)
      continue;
    const uint32_t index = adapter != NULL ? find_for(adapter, call->signature[i].name) : ACCX_NONE;
    if (index == ACCX_NONE && !argument->bound)
      continue;
    status = accrt_call_put_tensor(call, i,
                                   index != ACCX_NONE ? &adapter->fillings[index].tensor : NULL);
    argument->adapted = status == ACCRT_OK && index != ACCX_NONE;
  }
  if (status == ACCRT_OK)
    call->adapter_version = call->session->adapter_version;
  return status;
}
