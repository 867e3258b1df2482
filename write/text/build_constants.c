/* write/text/build_constants.c - constants of a text: components, bindings, shards. See build.h. */
#include <inttypes.h>
#include <string.h>

#include "accrt/layout.h"
#include "write/text/build.h"

#define MAX_SEGMENTS 4096u

/* ---- Values as numbers ---- */

static bool store_integer(accx_builder_t* builder, const accx_node_t* node, uint32_t dtype,
                          uint32_t bytes, unsigned char* target) {
  const bool is_signed = dtype >= ACCRT_DTYPE_I8 && dtype <= ACCRT_DTYPE_I64;
  uint64_t bits = 0;
  int64_t value = 0;
  if (dtype == ACCRT_DTYPE_BOOL &&
      (strcmp(node->text, "true") == 0 || strcmp(node->text, "false") == 0)) {
    *target = node->text[0] == 't';
    return true;
  }
  if (is_signed ? !accx_word_i64(builder, node, &value) : !accx_word_u64(builder, node, &bits))
    return false;
  bool fits = true;
  if (bytes < 8 && is_signed) {
    const int64_t limit = INT64_C(1) << (8 * bytes - 1);
    fits = value >= -limit && value < limit;
  } else if (bytes < 8) {
    fits = bits >> (8 * bytes) == 0 && (dtype != ACCRT_DTYPE_BOOL || bits <= 1);
  }
  if (!fits)
    return accx_node_fail(node, builder->error, "%s does not fit the data type",
                          ACCX_SHOW(node->text));
  if (is_signed)
    memcpy(&bits, &value, sizeof bits);
  memcpy(target, &bits, bytes);
  return true;
}

/* The place for the next value, and its type. */
typedef struct values {
  accx_builder_t* builder;
  const accrt_writer_constant_t* constant;
  uint32_t dtype, bytes;
  unsigned char* next;
} values_t;

static uint64_t count_values(const accx_node_t* node) {
  uint64_t count = node->kind == ACCX_NODE_LIST ? 0 : 1;
  for (const accx_node_t* at = node->kind == ACCX_NODE_LIST ? node->first : NULL; at != NULL;
       at = at->next)
    count += count_values(at);
  return count;
}

/* Stores the numbers of one list, or of lists nested like the dimensions. */
static bool store_values(values_t* values, const accx_node_t* list, uint32_t depth) {
  accx_builder_t* builder = values->builder;
  const accrt_writer_constant_t* constant = values->constant;
  const bool nested = depth > 0 || (list->first != NULL && list->first->kind == ACCX_NODE_LIST);
  if (nested && (constant->encoding != ACCRT_LAYOUT_PLAIN || depth >= constant->rank ||
                 constant->shape[depth] != list->count))
    return accx_node_fail(list, builder->error,
                          "a list of %" PRIu32
                          ": values are one list, or lists within lists as 'shape' has them",
                          list->count);
  for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
    const bool is_float = values->dtype == ACCRT_DTYPE_F32 || values->dtype == ACCRT_DTYPE_F64;
    if (nested && depth + 1 < constant->rank) {
      if (!accx_want(builder, node, ACCX_NODE_LIST, "a row of values") ||
          !store_values(values, node, depth + 1))
        return false;
      continue;
    }
    if (!accx_want(builder, node, ACCX_NODE_WORD, "a value") ||
        !(is_float ? accx_word_float(builder, node, values->dtype, values->next)
                   : store_integer(builder, node, values->dtype, values->bytes, values->next)))
      return false;
    values->next += values->bytes;
  }
  return true;
}

/* `values`: numbers. */
static bool read_values(accx_builder_t* builder, accx_node_t* list,
                        const accrt_writer_constant_t* constant, uint32_t dtype,
                        accrt_writer_bytes_t* out) {
  const bool is_float = dtype == ACCRT_DTYPE_F32 || dtype == ACCRT_DTYPE_F64;
  values_t values = {builder, constant, dtype, accrt_dtype_bits((accrt_dtype_t)dtype) / 8, NULL};
  if (!accx_want(builder, list, ACCX_NODE_LIST, "values"))
    return false;
  if (!is_float && (dtype < ACCRT_DTYPE_BOOL || dtype > ACCRT_DTYPE_U64))
    return accx_node_fail(list, builder->error,
                          "values of bool, whole numbers, f32 and f64 can be listed; others are "
                          "given as 'data'");
  const uint64_t size_bytes = count_values(list) * values.bytes;
  values.next = accx_build_memory(builder, size_bytes);
  *out = (accrt_writer_bytes_t){.size_bytes = size_bytes, .data = values.next};
  return values.next != NULL && store_values(&values, list, 0);
}

/* ---- Components ---- */

/* Reads a component's size. One outside the bundle has the size of its layout; OPAQUE gives its
 * own. */
static bool read_size(accx_builder_t* builder, accx_node_t* map,
                      const accrt_writer_constant_t* constant,
                      const accrt_writer_component_t* component, uint64_t* out) {
  if (accx_node_peek(map, "size") != NULL || constant->encoding == ACCRT_LAYOUT_OPAQUE)
    return accx_key_u64(builder, map, "size", "an opaque constant", out);
  accrt_layout_tensor_t tensor = ACCRT_LAYOUT_TENSOR_INIT;
  tensor.layout = constant->encoding;
  tensor.dtype = constant->dtype;
  tensor.group_elements = constant->group_elements;
  tensor.rank = constant->rank;
  tensor.shape = constant->shape;
  tensor.components[component->role].dtype = component->dtype;
  const accrt_status_t status = accrt_layout_component_size(&tensor, component->role, out);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

/* Requires that role and data type are set. */
static bool read_component(accx_builder_t* builder, accx_node_t* map,
                           const accrt_writer_constant_t* constant,
                           accrt_writer_component_t* component) {
  memset(&component->bytes, 0, sizeof component->bytes);
  if (constant->source != ACCRT_CONSTANT_INLINE)
    return read_size(builder, map, constant, component, &component->bytes.size_bytes);
  accx_node_t* values = accx_node_get(map, "values");
  return values != NULL
             ? read_values(builder, values, constant, component->dtype, &component->bytes)
             : accx_read_bytes(builder, map, &component->bytes);
}

static bool read_components(accx_builder_t* builder, accx_node_t* map,
                            accrt_writer_constant_t* constant,
                            accrt_writer_component_t components[5], uint32_t roles[5]) {
  static const char* const keys[] = {"dtype", "data", "values", "size", NULL};
  if (!accx_want(builder, map, ACCX_NODE_MAP, "components"))
    return false;
  for (accx_node_t* key = map->first; key != NULL; key = key->next->next) {
    uint64_t role;
    uint32_t dtype = 0;
    if (!accx_word_named(builder, key, &accx_words_role, &role))
      return false;
    if (constant->component_count == 5 || role > 4)
      return accx_node_fail(key, builder->error, "a constant has at most 5 components");
    accrt_writer_component_t* component = &components[constant->component_count];
    if (!accx_want(builder, key->next, ACCX_NODE_MAP, "a component") ||
        !accx_key_word(builder, key->next, "dtype", "a component", &accx_words_dtype, &dtype))
      return false;
    component->role = (uint32_t)role;
    component->dtype = (accrt_dtype_t)dtype;
    if (!read_component(builder, key->next, constant, component) ||
        !accx_node_all_used(key->next, "a component", keys, builder->error))
      return false;
    roles[role] = constant->component_count++;
  }
  return true;
}

/* ---- Bindings and shards ---- */

static bool read_binding(accx_builder_t* builder, accx_node_t* map,
                         accrt_writer_constant_t* constant) {
  const accx_node_t* file = accx_node_get(map, "file");
  const accx_node_t* digest = accx_node_get(map, "digest");
  if (file != NULL) {
    accx_name_t* name;
    if (!accx_name_of(builder, file, ACCX_NAME_FILE, "file", &name))
      return false;
    constant->file = name->id;
  }
  if (!accx_key_text(builder, map, "tensor", NULL, &constant->tensor))
    return false;
  if (digest != NULL) {
    unsigned char* bytes;
    uint64_t size_bytes;
    if (!accx_word_digits(builder, digest, &bytes, &size_bytes))
      return false;
    if (size_bytes != sizeof constant->digest)
      return accx_node_fail(digest, builder->error, "a digest has 16 bytes, not %" PRIu64,
                            size_bytes);
    memcpy(constant->digest, bytes, sizeof constant->digest);
  } else if (constant->source == ACCRT_CONSTANT_EXTERNAL) {
    constant->binding_flags = ACCRT_BINDING_BY_NAME;
  }
  return true;
}

static bool read_segment(accx_builder_t* builder, const accx_node_t* node,
                         accrt_writer_segment_t* out) {
  if (!accx_want(builder, node, ACCX_NODE_LIST, "a segment"))
    return false;
  if (node->count < 2 || node->count > 3)
    return accx_node_fail(node, builder->error,
                          "a segment is [begin, end] or [begin, end, "
                          "replicas]");
  out->replicas = 1;
  const accx_node_t* third = node->first->next->next;
  return accx_word_i64(builder, node->first, &out->begin) &&
         accx_word_i64(builder, node->first->next, &out->end) &&
         (third == NULL || accx_word_u32(builder, third, &out->replicas));
}

static bool build_shard(accx_builder_t* builder, accx_node_t* map, accrt_writer_id_t constant) {
  static const char* const keys[] = {"degree", "axis", "extent", "segments", NULL};
  uint32_t degree = 0, axis = 0, count = 0;
  int64_t extent = 0;
  accrt_writer_segment_t* segments = NULL;
  if (!accx_want(builder, map, ACCX_NODE_MAP, "shard") ||
      !accx_key_u32(builder, map, "degree", "a shard", &degree) ||
      !accx_key_u32(builder, map, "axis", NULL, &axis) ||
      !accx_key_i64(builder, map, "extent", NULL, &extent))
    return false;
  const accx_node_t* list = accx_node_get(map, "segments");
  if (list != NULL) {
    if (!accx_want(builder, list, ACCX_NODE_LIST, "segments"))
      return false;
    if (list->count > MAX_SEGMENTS * 256)
      return accx_node_fail(list, builder->error, "%" PRIu32 " segments", list->count);
    segments = accx_build_memory(builder, list->count * sizeof *segments);
    if (segments == NULL)
      return false;
    for (const accx_node_t* node = list->first; node != NULL; node = node->next) {
      if (!read_segment(builder, node, &segments[count++]))
        return false;
    }
  }
  if (!accx_node_all_used(map, "a shard", keys, builder->error))
    return false;
  const accrt_status_t status = accrt_bundle_writer_add_shard(
      builder->writer, constant, list != NULL ? ACCRT_SHARD_SPLIT : ACCRT_SHARD_REPLICATED, axis,
      degree, extent, segments, count);
  return status == ACCRT_OK || accx_node_fail_call(builder, map, status);
}

/* ---- Constants ---- */

static bool read_shape(accx_builder_t* builder, accx_node_t* map,
                       accrt_writer_constant_t* constant) {
  const accx_node_t* shape = accx_node_get(map, "shape");
  if (shape == NULL)
    return accx_node_fail(map, builder->error, "a constant needs 'shape'");
  if (!accx_want(builder, shape, ACCX_NODE_LIST, "shape"))
    return false;
  if (shape->count > 8)
    return accx_node_fail(shape, builder->error, "%" PRIu32 " dimensions; 8 are possible",
                          shape->count);
  for (const accx_node_t* node = shape->first; node != NULL; node = node->next) {
    if (!accx_word_i64(builder, node, &constant->shape[constant->rank++]))
      return false;
  }
  return true;
}

static bool build_constant(accx_builder_t* builder, accx_node_t* map) {
  static const char* const keys[] = {"name",  "source", "dtype",  "encoding", "group",
                                     "shape", "data",   "values", "size",     "components",
                                     "file",  "tensor", "digest", "shard",    NULL};
  accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
  accrt_writer_component_t components[5];
  uint32_t dtype = 0;
  memset(components, 0, sizeof components);
  if (!accx_key_text(builder, map, "name", "a constant", &constant.name) ||
      !accx_key_word(builder, map, "source", NULL, &accx_words_source, &constant.source) ||
      !accx_key_word(builder, map, "dtype", "a constant", &accx_words_dtype, &dtype) ||
      !accx_read_encoding(builder, map, &constant.encoding, &constant.group_elements) ||
      !read_shape(builder, map, &constant) || !read_binding(builder, map, &constant))
    return false;
  constant.dtype = (accrt_dtype_t)dtype;
  constant.components = components;
  accx_name_t* name = accx_name_add(builder, ACCX_NAME_CONSTANT, constant.name, map);
  if (name == NULL)
    return false;
  for (int i = 0; i < 5; ++i)
    name->roles[i] = ACCX_NONE;
  accx_node_t* parts = accx_node_get(map, "components");
  if (parts != NULL) {
    if (!read_components(builder, parts, &constant, components, name->roles))
      return false;
  } else {
    constant.component_count = 1;
    name->roles[0] = 0;
    components[0].dtype = constant.dtype;
    if (!read_component(builder, map, &constant, &components[0]))
      return false;
  }
  accx_node_t* shard = accx_node_get(map, "shard");
  if (!accx_node_all_used(map, "a constant", keys, builder->error))
    return false;
  const accrt_status_t status =
      accrt_bundle_writer_add_constant(builder->writer, &constant, &name->id);
  if (status != ACCRT_OK)
    return accx_node_fail_call(builder, map, status);
  return shard == NULL || build_shard(builder, shard, name->id);
}

bool accx_build_constants(accx_builder_t* builder, accx_node_t* list) {
  for (accx_node_t* node = list->first; node != NULL; node = node->next) {
    if (!accx_want(builder, node, ACCX_NODE_MAP, "a constant") || !build_constant(builder, node))
      return false;
  }
  return true;
}
