/* tools/accx/inspect_json.c - `accx inspect --json`: everything from reflection, sizes in exact
 * bytes. */
#include "inspect.h"
#include "json_out.h"
#include "signature.h"

static void add_versions(const accx_inspection_t* in, struct json_object* root) {
  const accrt_bundle_info_t* info = &in->info;
  accx_json_text(root, "file", info->name);
  accx_json_u64(root, "size_bytes", info->size_bytes);
  accx_json_u64(root, "data_size_bytes", info->data_size_bytes);
  struct json_object* needs = accx_json_object(root, "needs");
  accx_json_version(needs, "container", info->container_major, info->container_minor);
  accx_json_version(needs, "commands", info->commands_major, info->commands_minor);
  accx_json_version(needs, "kernel_abi", info->kernel_abi_major, info->kernel_abi_minor);
  accx_json_version(needs, "layouts", info->layouts_major, info->layouts_minor);
  accx_json_bits(needs, "features", &accx_file_feature_bits, info->required_features);
}

static void add_metadata(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* object = accx_json_object(root, "metadata");
  for (uint32_t i = 0; i < in->info.metadata_count; ++i) {
    const char *key = NULL, *value = NULL;
    if (accrt_bundle_metadata(in->bundle, i, &key, &value) == ACCRT_OK)
      accx_json_text(object, key, value);
  }
}

static void add_sections(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* array = accx_json_array(root, "sections");
  for (uint32_t i = 0; i < in->info.section_count; ++i) {
    accrt_section_info_t section = ACCRT_SECTION_INFO_INIT;
    if (accrt_bundle_section(in->bundle, i, &section) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", section.name);
    accx_json_u64(object, "type", section.type);
    accx_json_u64(object, "offset", section.offset);
    accx_json_u64(object, "size_bytes", section.size_bytes);
    accx_json_u64(object, "record_count", section.record_count);
    accx_json_u64(object, "record_bytes", section.record_bytes);
    accx_json_bool(object, "required", section.required != 0);
    accx_json_bool(object, "known", section.known != 0);
  }
}

static void add_symbols(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* array = accx_json_array(root, "symbols");
  for (uint32_t i = 0; i < in->info.symbol_count; ++i) {
    accrt_symbol_info_t symbol = ACCRT_SYMBOL_INFO_INIT;
    if (accrt_bundle_symbol(in->bundle, i, &symbol) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", symbol.name);
    accx_json_text(object, "class", accx_symbol_class_name(symbol.symbol_class));
    accx_json_i64(object, "minimum", symbol.minimum);
    accx_json_i64(object, "maximum", symbol.maximum);
    accx_json_i64(object, "divisor", symbol.divisor);
    struct json_object* buckets = accx_json_array(object, "buckets");
    for (uint32_t b = 0; b < symbol.bucket_count; ++b)
      json_object_array_add(buckets, json_object_new_int64(symbol.buckets[b]));
  }
}

/* Each dimension is a number, a symbol's name, or null when only `type` shows it. */
static void add_dims(const accx_inspection_t* in, struct json_object* object, uint32_t rank,
                     const accrt_dim_t* dims) {
  struct json_object* array = accx_json_array(object, "dims");
  for (uint32_t i = 0; i < rank && i < ACCRT_MAX_RANK; ++i) {
    accrt_symbol_info_t symbol = ACCRT_SYMBOL_INFO_INIT;
    struct json_object* dim = NULL;
    if (dims[i].kind == ACCRT_DIM_CONSTANT)
      dim = json_object_new_int64(dims[i].value);
    else if (dims[i].kind == ACCRT_DIM_SYMBOL &&
             accrt_bundle_symbol(in->bundle, (uint32_t)dims[i].value, &symbol) == ACCRT_OK)
      dim = json_object_new_string(symbol.name);
    json_object_array_add(array, dim);
  }
}

static void add_symbol_name(const accx_inspection_t* in, struct json_object* object,
                            uint32_t index) {
  accrt_symbol_info_t symbol = ACCRT_SYMBOL_INFO_INIT;
  const bool found =
      index != UINT32_MAX && accrt_bundle_symbol(in->bundle, index, &symbol) == ACCRT_OK;
  accx_json_text(object, "symbol", found ? symbol.name : NULL);
}

static void add_alias(const accx_inspection_t* in, struct json_object* object, uint32_t function,
                      const accrt_argument_info_t* argument) {
  accrt_argument_info_t input = ACCRT_ARGUMENT_INFO_INIT;
  const bool found =
      argument->alias_kind != ACCRT_ALIAS_NONE &&
      accrt_bundle_argument(in->bundle, function, argument->alias_input, &input) == ACCRT_OK;
  accx_json_text(object, "alias", accx_alias_name(argument->alias_kind));
  accx_json_text(object, "alias_input", found ? input.name : NULL);
}

static void add_argument(const accx_inspection_t* in, struct json_object* array, uint32_t function,
                         uint32_t index) {
  accrt_argument_info_t argument = ACCRT_ARGUMENT_INFO_INIT;
  if (accrt_bundle_argument(in->bundle, function, index, &argument) != ACCRT_OK)
    return;
  struct json_object* object = accx_json_append(array);
  accx_json_text(object, "name", argument.name);
  accx_json_text(object, "doc", argument.doc);
  accx_json_text(object, "kind", accx_argument_kind_name(argument.kind));
  accx_json_text(object, "type", accx_type_text(in->bundle, function, index));
  accx_json_text(object, "dtype", accrt_dtype_name(argument.dtype));
  add_dims(in, object, argument.rank, argument.dims);
  accx_json_bool(object, "optional", argument.optional != 0);
  if (argument.kind == ACCRT_ARGUMENT_SCALAR)
    add_symbol_name(in, object, argument.symbol);
  if (argument.kind == ACCRT_ARGUMENT_RESULT)
    add_alias(in, object, function, &argument);
}

/* The drivers of a function's versions; null stands for any. */
static void add_targets(const accx_inspection_t* in, struct json_object* object, uint32_t function,
                        uint32_t version_count) {
  struct json_object* array = accx_json_array(object, "targets");
  for (uint32_t i = 0; i < version_count; ++i) {
    const char* target = NULL;
    if (accrt_bundle_function_target(in->bundle, function, i, &target) != ACCRT_OK)
      continue;
    json_object_array_add(array, target[0] != '\0' ? json_object_new_string(target) : NULL);
  }
}

static void add_functions(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* array = accx_json_array(root, "functions");
  for (uint32_t i = 0; i < in->info.function_count; ++i) {
    accrt_function_info_t function = ACCRT_FUNCTION_INFO_INIT;
    if (accrt_bundle_function(in->bundle, i, &function) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", function.name);
    accx_json_text(object, "doc", function.doc);
    accx_json_bits(object, "flags", &accx_function_bits, function.flags);
    accx_json_bits(object, "features", &accx_function_feature_bits, function.required_features);
    add_targets(in, object, i, function.version_count);
    accx_json_u64(object, "command_count", function.command_count);
    struct json_object* inputs = accx_json_array(object, "inputs");
    struct json_object* results = accx_json_array(object, "results");
    for (uint32_t a = 0; a < function.input_count + function.result_count; ++a)
      add_argument(in, a < function.input_count ? inputs : results, i, a);
  }
}

static void add_states(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* array = accx_json_array(root, "states");
  for (uint32_t i = 0; i < in->info.state_count; ++i) {
    accrt_state_info_t state = ACCRT_STATE_INFO_INIT;
    if (accrt_bundle_state(in->bundle, i, &state) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", state.name);
    accx_json_text(object, "type", accx_state_type_text(in->bundle, &state));
    accx_json_text(object, "dtype", accrt_dtype_name(state.dtype));
    add_dims(in, object, state.rank, state.dims);
  }
}

static void add_constants(const accx_inspection_t* in, struct json_object* root) {
  struct json_object* array = accx_json_array(root, "constants");
  for (uint32_t i = 0; i < in->info.constant_count; ++i) {
    accrt_constant_info_t constant = ACCRT_CONSTANT_INFO_INIT;
    if (accrt_bundle_constant(in->bundle, i, &constant) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", constant.name);
    accx_json_text(object, "dtype", accrt_dtype_name(constant.dtype));
    accx_json_shape(object, "shape", constant.rank, constant.shape);
    accx_json_u64(object, "size_bytes", constant.size_bytes);
    accx_json_text(object, "source", accx_constant_source_name(constant.source));
    accx_json_text(object, "encoding", accx_encoding_name(constant.encoding));
    accx_json_u64(object, "component_count", constant.component_count);
    accx_add_constant_extras(in, object, i, &constant);
  }
}

static void add_sizes(struct json_object* object, const char* name, const uint32_t sizes[3]) {
  const int64_t shape[3] = {sizes[0], sizes[1], sizes[2]};
  accx_json_shape(object, name, 3, shape);
}

static void add_variant(const accx_inspection_t* in, struct json_object* array, uint32_t kernel,
                        uint32_t index) {
  accrt_variant_info_t variant = ACCRT_VARIANT_INFO_INIT;
  if (accrt_bundle_variant(in->bundle, kernel, index, &variant) != ACCRT_OK)
    return;
  struct json_object* object = accx_json_append(array);
  accx_json_text(object, "driver", variant.driver);
  accx_json_text(object, "arch", variant.arch);
  accx_json_text(object, "arch_kind", accx_arch_kind_name(variant.arch_kind));
  accx_json_bits(object, "cpu_features", &accx_cpu_bits, variant.cpu_features);
  accx_json_i64(object, "priority", variant.priority);
  accx_json_text(object, "image", variant.image);
  accx_json_text(object, "image_kind", accx_image_kind_name(variant.image_kind));
  accx_json_text(object, "entry", variant.entry);
  if (variant.block[0] == 0)
    return;
  struct json_object* launch = accx_json_object(object, "launch");
  add_sizes(launch, "block", variant.block);
  if (variant.cluster[0] != 0)
    add_sizes(launch, "cluster", variant.cluster);
  accx_json_u64(launch, "dynamic_shared_bytes", variant.dynamic_shared_bytes);
  accx_json_bits(launch, "traits", &accx_trait_bits, variant.launch_traits);
}

static void add_kernels(const accx_inspection_t* in, struct json_object* root) {
  accx_json_u64(root, "image_count", in->info.image_count);
  struct json_object* array = accx_json_array(root, "kernels");
  for (uint32_t i = 0; i < in->info.kernel_count; ++i) {
    accrt_bundle_kernel_info_t kernel = ACCRT_BUNDLE_KERNEL_INFO_INIT;
    if (accrt_bundle_kernel(in->bundle, i, &kernel) != ACCRT_OK)
      continue;
    struct json_object* object = accx_json_append(array);
    accx_json_text(object, "name", kernel.name);
    accx_json_bits(object, "traits", &accx_trait_bits, kernel.traits);
    accx_json_u64(object, "parameter_count", kernel.parameter_count);
    struct json_object* variants = accx_json_array(object, "variants");
    for (uint32_t v = 0; v < kernel.variant_count; ++v)
      add_variant(in, variants, i, v);
  }
}

void accx_inspect_json(const accx_inspection_t* inspection) {
  static void (*const parts[])(const accx_inspection_t*, struct json_object*) = {
      add_versions,  add_metadata, add_sections,   add_symbols,       add_functions,   add_states,
      add_constants, add_kernels,  accx_add_files, accx_add_adapters, accx_add_assets,
  };
  struct json_object* root = accx_json_object(NULL, NULL);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    if (inspection->parts >> i & 1)
      parts[i](inspection, root);
  }
  accx_json_print(root);
}
