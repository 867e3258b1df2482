/* write/text/build_kernels.c - images and kernels of a text. See build.h. */
#include <inttypes.h>
#include <string.h>

#include "accrt/kernel.h"
#include "write/text/build.h"

/* ---- Images ---- */

static bool build_image(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {"name", "kind", "data", NULL};
  const char* text = NULL;
  uint32_t kind = 0;
  accrt_writer_bytes_t bytes;
  memset(&bytes, 0, sizeof bytes);
  if (!accx_want(builder, map, ACCX_NODE_MAP, "an image") ||
      !accx_key_text(builder, map, "name", "an image", &text) ||
      !accx_key_word(builder, map, "kind", "an image", &accx_words_image, &kind))
    return false;
  const bool is_pack = kind == ACCRT_IMAGE_PACK;
  if ((!is_pack && !accx_read_bytes(builder, map, &bytes)) ||
      !accx_node_all_used(map, "an image", keys, builder->error))
    return false;
  /* PTX ends with NUL, which a text cannot contain. The copy of the text has one. */
  if (kind == ACCRT_IMAGE_PTX && accx_node_peek(accx_node_peek(map, "data"), "text") != NULL)
    ++bytes.size_bytes;
  accx_name_t* name = accx_name_add(builder, ACCX_NAME_IMAGE, text, map);
  if (name == NULL)
    return false;
  const accrt_status_t status = accrt_bundle_writer_add_image(builder->writer, text, kind,
                                                              is_pack ? NULL : &bytes, &name->id);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

bool accx_build_images(accx_builder_t* builder, accx_node_t* list) {
  for (accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (!build_image(builder, node))
      return false;
  }
  return true;
}

/* ---- Parameters ---- */

static bool read_parameter(accx_builder_t* builder, accx_node_t* map,
                           accrt_writer_parameter_t* out) {
  static const char* const keys[] = {"name", "kind",   "access", "optional",
                                     "size", "offset", "align",  NULL};
  bool optional = false;
  if (!accx_want(builder, map, ACCX_NODE_MAP, "a parameter") ||
      !accx_key_text(builder, map, "name", "a parameter", &out->name) ||
      !accx_key_word(builder, map, "kind", "a parameter", &accx_words_parameter, &out->kind) ||
      !accx_key_word(builder, map, "access", NULL, &accx_words_access, &out->access) ||
      !accx_key_flag(builder, map, "optional", &optional) ||
      !accx_key_u32(builder, map, "size", NULL, &out->size_bytes) ||
      !accx_key_u32(builder, map, "offset", NULL, &out->offset_bytes) ||
      !accx_key_u32(builder, map, "align", NULL, &out->align_bytes))
    return false;
  out->flags = optional ? ACCRT_KERNEL_PARAM_FLAG_OPTIONAL : 0;
  return accx_node_all_used(map, "a parameter", keys, builder->error);
}

static bool read_parameters(accx_builder_t* builder, accx_node_t* map, accx_name_t* name,
                            accrt_writer_kernel_t* kernel) {
  accx_node_t* list = accx_node_get(map, "parameters");
  if (list == NULL)
    return true;
  if (!accx_want(builder, list, ACCX_NODE_LIST, "parameters"))
    return false;
  if (list->count > ACCRT_KERNEL_MAX_PARAMS)
    return accx_node_fail(list, builder->error, "%" PRIu32 " parameters; %d are possible",
                          list->count, ACCRT_KERNEL_MAX_PARAMS);
  accrt_writer_parameter_t* parameters =
      accx_build_memory(builder, list->count * sizeof *parameters);
  name->formals = accx_build_memory(builder, list->count * sizeof *name->formals);
  if (parameters == NULL || name->formals == NULL)
    return false;
  for (accx_node_t* node = list->first; node != NULL; node = node->next) {
    accrt_writer_parameter_t* parameter = &parameters[kernel->parameter_count++];
    if (!read_parameter(builder, node, parameter))
      return false;
    /* Operand kinds have the same numbers as parameter kinds. */
    name->formals[name->formal_count++] = (accx_formal_t){parameter->name, parameter->kind};
  }
  kernel->parameters = parameters;
  return true;
}

/* ---- Variants ---- */

static bool read_three(accx_builder_t* builder, accx_node_t* map, const char* key,
                       uint32_t out[3]) {
  const accx_node_t* list = accx_node_get(map, key);
  if (list == NULL)
    return true;
  if (!accx_want(builder, list, ACCX_NODE_LIST, key))
    return false;
  if (list->count < 1 || list->count > 3)
    return accx_node_fail(list, builder->error, "'%s' has 1 to 3 numbers", key);
  uint32_t* at = out;
  for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (!accx_word_u32(builder, node, at++))
      return false;
  }
  while (at < out + 3)
    *at++ = 1;
  return true;
}

/* Reads {parameter: n, divisible: 4}. */
static bool read_predicate(accx_builder_t* builder, accx_node_t* map,
                           accrt_writer_predicate_t* out) {
  if (!accx_want(builder, map, ACCX_NODE_MAP, "a condition") ||
      !accx_key_text(builder, map, "parameter", "a condition", &out->parameter))
    return false;
  if (map->count != 2)
    return accx_node_fail(map, builder->error,
                          "a condition is a parameter and one of divisible, aligned, equal, "
                          "at_most, at_least");
  for (accx_node_t* key = map->first; key != NULL; key = key->next->next) {
    uint64_t kind;
    if (key->used)
      continue;
    if (!accx_word_named(builder, key, &accx_words_predicate, &kind) ||
        !accx_want(builder, key->next, ACCX_NODE_WORD, "a condition's value") ||
        !accx_word_i64(builder, key->next, &out->value))
      return false;
    out->kind = (uint32_t)kind;
  }
  return true;
}

static bool read_predicates(accx_builder_t* builder, accx_node_t* map,
                            accrt_writer_variant_t* variant) {
  accx_node_t* list = accx_node_get(map, "when");
  if (list == NULL)
    return true;
  if (!accx_want(builder, list, ACCX_NODE_LIST, "when"))
    return false;
  accrt_writer_predicate_t* predicates =
      accx_build_memory(builder, list->count * sizeof *predicates);
  if (predicates == NULL)
    return false;
  for (accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (!read_predicate(builder, node, &predicates[variant->predicate_count++]))
      return false;
  }
  variant->predicates = predicates;
  return true;
}

static bool read_launch(accx_builder_t* builder, accx_node_t* map,
                        accrt_writer_variant_t* variant) {
  bool no_launch = false;
  uint64_t traits = 0;
  if (!read_three(builder, map, "block", variant->block) ||
      !read_three(builder, map, "cluster", variant->cluster) ||
      !accx_key_u32(builder, map, "dynamic_shared_bytes", NULL, &variant->dynamic_shared_bytes) ||
      !accx_key_bits(builder, map, "launch_traits", &accx_words_traits, &traits) ||
      !accx_key_flag(builder, map, "no_launch", &no_launch))
    return false;
  variant->launch_traits = (uint32_t)traits;
  variant->flags = no_launch ? ACCRT_WRITER_VARIANT_NO_LAUNCH : 0;
  return traits <= UINT32_MAX || accx_node_fail(map, builder->error, "launch traits are 32 bits");
}

static bool build_variant(accx_builder_t* builder, accx_node_t* map, accrt_writer_id_t kernel) {
  static const char* const keys[] = {"driver",
                                     "arch_kind",
                                     "arch",
                                     "priority",
                                     "cpu_features",
                                     "image",
                                     "entry",
                                     "when",
                                     "block",
                                     "cluster",
                                     "dynamic_shared_bytes",
                                     "launch_traits",
                                     "no_launch",
                                     "required_features",
                                     NULL};
  accrt_writer_variant_t variant = ACCRT_WRITER_VARIANT_INIT;
  int64_t priority = 0;
  variant.arch_kind = ACCRT_ARCH_FAMILY;
  if (!accx_want(builder, map, ACCX_NODE_MAP, "a variant"))
    return false;
  const accx_node_t* image = accx_node_get(map, "image");
  accx_name_t* name;
  if (image == NULL)
    return accx_node_fail(map, builder->error, "a variant needs 'image'");
  if (!accx_name_of(builder, image, ACCX_NAME_IMAGE, "image", &name) ||
      !accx_key_text(builder, map, "driver", NULL, &variant.driver) ||
      !accx_key_word(builder, map, "arch_kind", NULL, &accx_words_arch_kind, &variant.arch_kind) ||
      !accx_key_text(builder, map, "arch", NULL, &variant.arch) ||
      !accx_key_text(builder, map, "entry", NULL, &variant.entry) ||
      !accx_key_i64(builder, map, "priority", NULL, &priority) ||
      !accx_key_bits(builder, map, "cpu_features", &accx_words_cpu, &variant.cpu_features) ||
      !accx_key_u64(builder, map, "required_features", NULL, &variant.required_features) ||
      !read_predicates(builder, map, &variant) || !read_launch(builder, map, &variant) ||
      !accx_node_all_used(map, "a variant", keys, builder->error))
    return false;
  if (priority < INT32_MIN || priority > INT32_MAX)
    return accx_node_fail(map, builder->error, "priority %" PRId64 " does not fit 32 bits",
                          priority);
  variant.priority = (int32_t)priority;
  variant.image = name->id;
  const accrt_status_t status = accrt_bundle_writer_add_variant(builder->writer, kernel, &variant);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

static bool build_kernel(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {
      "name", "traits", "local_memory_bytes", "block_bytes", "parameters", "variants", NULL};
  accrt_writer_kernel_t kernel = ACCRT_WRITER_KERNEL_INIT;
  uint64_t traits = 0;
  if (!accx_want(builder, map, ACCX_NODE_MAP, "a kernel") ||
      !accx_key_text(builder, map, "name", "a kernel", &kernel.name) ||
      !accx_key_bits(builder, map, "traits", &accx_words_traits, &traits) ||
      !accx_key_u32(builder, map, "local_memory_bytes", NULL, &kernel.local_memory_bytes) ||
      !accx_key_u32(builder, map, "block_bytes", NULL, &kernel.params_size_bytes))
    return false;
  if (traits > UINT32_MAX)
    return accx_node_fail(map, builder->error, "traits are 32 bits");
  kernel.traits = (uint32_t)traits;
  accx_name_t* name = accx_name_add(builder, ACCX_NAME_KERNEL, kernel.name, map);
  if (name == NULL || !read_parameters(builder, map, name, &kernel))
    return false;
  accx_node_t* variants = accx_node_get(map, "variants");
  if (!accx_node_all_used(map, "a kernel", keys, builder->error))
    return false;
  const accrt_status_t status = accrt_bundle_writer_add_kernel(builder->writer, &kernel, &name->id);
  if (status != ACCRT_OK)
    return accx_node_fail_part(builder, map, "parameter", accx_node_peek(map, "parameters"),
                               status);
  if (variants == NULL)
    return accx_node_fail(map, builder->error, "a kernel needs 'variants'");
  if (!accx_want(builder, variants, ACCX_NODE_LIST, "variants"))
    return false;
  for (accx_node_t* node = variants->first; node != NULL; node = node->next) {
    if (!build_variant(builder, node, name->id))
      return false;
  }
  return true;
}

bool accx_build_kernels(accx_builder_t* builder, accx_node_t* list) {
  for (accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (!build_kernel(builder, node))
      return false;
  }
  return true;
}
