/* runtime/program/external.c - binding constants to tensors of sources: the bundle itself, those
 * that the caller gives, and the files that the bundle names. It places nothing and knows no
 * device.
 */
#include "runtime/program/external.h"

#include <stdio.h>
#include <string.h>

#include "format/conventions.h"
#include "format/layout.h"
#include "runtime/core/near_name.h"
#include "runtime/program/upload.h"

/* ---- Life ---- */

/* What the bundle stores is its own, whatever the names are. */
static accrt_status_t bind_own(const accrt_program_t* program, accrt_external_t* external) {
  uint32_t tensor = 0;
  ACCRT_TRY(accx_weights_of_bundle(program->bundle, &external->own));
  for (uint32_t i = 0; i < external->constant_count; ++i) {
    const accx_constant_t* constant = &program->tables->constants[i];
    if (constant->source != ACCX_CONSTANT_INLINE)
      continue;
    for (uint32_t k = 0; k < constant->component_count; ++k)
      external->parts[constant->component_first + k] =
          (accrt_external_part_t){external->own, tensor, k};
    ++tensor;
  }
  return ACCRT_OK;
}

static accrt_status_t bind_base(const accrt_external_t* base, accrt_external_t* external) {
  accx_weights_ref(base->own);
  external->own = base->own;
  memcpy(external->parts, base->parts, external->component_count * sizeof *external->parts);
  for (uint32_t i = 0; i < external->constant_count; ++i) {
    atomic_store_explicit(&external->checked[i],
                          atomic_load_explicit(&base->checked[i], memory_order_relaxed),
                          memory_order_relaxed);
  }
  return ACCRT_OK;
}

static accrt_status_t create(const accrt_program_t* program, const accrt_external_t* base,
                             accrt_external_t** out_external) {
  accrt_external_t* external;
  ACCRT_TRY(ACCRT_NEW(program->allocator, &external));
  accrt_object_init(&external->object);
  external->allocator = program->allocator;
  external->component_count = program->tables->component_count;
  external->constant_count = program->tables->constant_count;
  *out_external = external;
  ACCRT_TRY(ACCRT_NEW_ARRAY(program->allocator, external->component_count, &external->parts));
  ACCRT_TRY(ACCRT_NEW_ARRAY(program->allocator, external->constant_count, &external->checked));
  return base != NULL ? bind_base(base, external) : bind_own(program, external);
}

void accrt_external_release(accrt_external_t* external) {
  if (external == NULL || !accrt_object_release(&external->object))
    return;
  const accrt_allocator_t* allocator = external->allocator;
  for (uint32_t i = 0; i < external->source_count; ++i)
    accx_weights_unref(external->sources[i]);
  if (external->own != NULL)
    accx_weights_unref(external->own);
  accrt_free_array(allocator, external->sources, external->source_capacity,
                   sizeof *external->sources);
  accrt_free_array(allocator, external->parts, external->component_count, sizeof *external->parts);
  accrt_free_array(allocator, external->checked, external->constant_count,
                   sizeof *external->checked);
  accrt_free(allocator, external, sizeof *external);
}

/* Keeps a source that a part names. */
static accrt_status_t keep_source(accrt_external_t* external, accrt_weights_t* weights) {
  for (uint32_t i = external->source_count; i-- > 0;) {
    if (external->sources[i] == weights)
      return ACCRT_OK;
  }
  ACCRT_TRY(ACCRT_GROW(external->allocator, (size_t)external->source_count + 1, &external->sources,
                       &external->source_capacity));
  accx_weights_ref(weights);
  external->sources[external->source_count++] = weights;
  return ACCRT_OK;
}

/* ---- One binding in the making ---- */

typedef struct binder {
  accrt_program_t* program;
  const accrt_external_request_t* request;
  accrt_external_t* external;
  accrt_weights_t** files;         /* by file of the bundle; opened when first needed */
  const char* name;                /* of the constant */
  const accx_constant_t* constant; /* with the full tensor's shape: that is what sources have */
  uint32_t index;
  accx_constant_t full;
  accx_component_t components[ACCRT_LAYOUT_ROLE_COUNT]; /* of the full tensor */
} binder_t;

typedef struct type_text {
  char text[160];
} type_text_t;

/* "bf16[2, 3]", "Q4_K[256, 512]". */
static type_text_t text_of(const char* kind, uint32_t rank, const int64_t* shape) {
  type_text_t out;
  accrt_text_t text = {out.text, sizeof out.text, 0};
  accrt_text_add(&text, "%s[", kind);
  for (uint32_t i = 0; i < rank; ++i)
    accrt_text_add(&text, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
  accrt_text_add(&text, "]");
  return out;
}

static const char* kind_text(uint32_t dtype, uint32_t encoding) {
  const accx_layout_t* layout = encoding > ACCRT_LAYOUT_OPAQUE ? accx_layout_find(encoding) : NULL;
  return layout != NULL                    ? layout->name
         : encoding == ACCRT_LAYOUT_OPAQUE ? "opaque"
                                           : accrt_dtype_name(dtype);
}

static type_text_t wanted_text(const binder_t* binder) {
  const accx_constant_t* constant = binder->constant;
  return text_of(kind_text(constant->dtype, constant->encoding), constant->rank, constant->shape);
}

/* What `accx pack` converts. */
static bool is_float(uint32_t dtype) {
  return dtype >= ACCRT_DTYPE_F16 && dtype <= ACCRT_DTYPE_F64;
}

static accrt_status_t mismatch(const binder_t* binder, accrt_weights_t* weights,
                               const accrt_weights_tensor_t* tensor, bool convertible) {
  const bool same_shape =
      tensor->rank == binder->constant->rank &&
      memcmp(tensor->shape, binder->constant->shape, tensor->rank * sizeof(int64_t)) == 0;
  const accrt_status_t status = same_shape ? ACCRT_ERROR_TYPE_MISMATCH : ACCRT_ERROR_SHAPE_MISMATCH;
  if (same_shape && tensor->encoding == binder->constant->encoding &&
      tensor->encoding > ACCRT_LAYOUT_OPAQUE)
    return ACCRT_FAIL(TYPE_MISMATCH,
                      "constant '%s' is %s of %s with groups of %" PRIu32 " and %" PRIu32
                      " components, but '%.200s' in %s of %s with %" PRIu32 " and %" PRIu32,
                      binder->name, wanted_text(binder).text,
                      accrt_dtype_name(binder->constant->dtype), binder->constant->group_elements,
                      binder->constant->component_count, tensor->name, accx_weights_name(weights),
                      accrt_dtype_name(tensor->dtype), tensor->group_elements,
                      tensor->component_count);
  const char* kind =
      tensor->encoding == ACCRT_LAYOUT_PLAIN ? accrt_dtype_name(tensor->dtype) : tensor->type_name;
  return accrt_error_fail(
      ACCRT_PLACE(status), "constant '%s' is %s, but '%.200s' in %s is %s%s%s", binder->name,
      wanted_text(binder).text, tensor->name, accx_weights_name(weights),
      text_of(kind, tensor->rank, tensor->shape).text,
      convertible && same_shape ? "; nothing is converted here, `accx pack --dtype` does that: "
                                : "",
      convertible && same_shape ? accrt_dtype_name(binder->constant->dtype) : "");
}

static uint64_t groups_of(const accx_constant_t* constant) {
  const uint64_t k = (uint64_t)constant->shape[constant->rank - 1];
  return (k + constant->group_elements - 1) / constant->group_elements;
}

/* A part that is looked through. */
typedef struct looking {
  const binder_t* binder;
  accrt_weights_t* weights;
  uint32_t tensor, role;
  bool trivial; /* so far */
} looking_t;

static accrt_status_t check_groups(void* user, uint64_t offset_bytes, const unsigned char* bytes,
                                   size_t size_bytes) {
  const looking_t* looking = user;
  const uint64_t count = groups_of(looking->binder->constant);
  for (size_t i = 0; i < size_bytes / sizeof(int32_t); ++i) {
    int32_t group;
    memcpy(&group, bytes + i * sizeof group, sizeof group);
    if (group < 0 || (uint64_t)group >= count)
      return ACCRT_FAIL(DATA_CORRUPT,
                        "constant '%s': '%.200s' in %s puts column %" PRIu64 " into group %" PRId32
                        " of %" PRIu64,
                        looking->binder->name, looking->weights->entries[looking->tensor].name,
                        accx_weights_name(looking->weights), offset_bytes / sizeof group + i, group,
                        count);
  }
  return ACCRT_OK;
}

/* Kernels look groups up by it. A file may change later: that is for kernels to see. */
static accrt_status_t check_index(const binder_t* binder, accrt_weights_t* weights, uint32_t tensor,
                                  uint32_t of_tensor, uint32_t role) {
  looking_t looking = {.binder = binder, .weights = weights, .tensor = tensor};
  return role == ACCRT_LAYOUT_ROLE_GROUP_INDEX
             ? accx_weights_visit(weights, tensor, of_tensor, check_groups, &looking)
             : ACCRT_OK;
}

static void set_part(const binder_t* binder, uint32_t component, accrt_weights_t* weights,
                     uint32_t tensor, uint32_t of_tensor) {
  binder->external->parts[binder->constant->component_first + component] =
      (accrt_external_part_t){weights, tensor, of_tensor};
}

static const accx_component_t* component_of(const binder_t* binder, uint32_t component) {
  return &binder->components[component];
}

/* What sources must have: all of the tensor of which a rank has a part. */
static const accx_shard_t* want(binder_t* binder, uint32_t constant) {
  const accrt_program_t* program = binder->program;
  const accx_shard_t* shard = accrt_program_shard(program, constant);
  binder->index = constant;
  binder->full = program->tables->constants[constant];
  binder->constant = &binder->full;
  binder->name = accrt_program_string(program, binder->full.name);
  if (accrt_shard_is_split(shard))
    binder->full.shape[shard->axis] = shard->extent;
  for (uint32_t i = 0; i < binder->full.component_count; ++i) {
    const uint32_t component = binder->full.component_first + i;
    const accrt_slice_t* slice = accrt_program_slice(program, component);
    binder->components[i] = program->tables->components[component];
    if (slice != NULL)
      binder->components[i].size_bytes = slice->rows * slice->row_bytes;
  }
  return shard;
}

static accrt_status_t say_rank(const binder_t* binder, const accx_shard_t* shard,
                               accrt_status_t status) {
  if (status != ACCRT_OK && accrt_shard_is_split(shard)) {
    const accx_constant_t* local = &binder->program->tables->constants[binder->index];
    accrt_error_prefix("rank %" PRIu32 " of %" PRIu32 " (which has %" PRId64 " of %" PRId64
                       " along axis %" PRIu32 ")",
                       binder->program->rank, shard->degree, local->shape[shard->axis],
                       shard->extent, shard->axis);
  }
  return status;
}

/* ---- A tensor that has all components itself ---- */

/* Quantized blocks of a foreign file say nothing of the logical type. */
static bool same_type(const accx_constant_t* constant, const accrt_weights_tensor_t* tensor) {
  return tensor->encoding == constant->encoding &&
         (tensor->dtype == constant->dtype ||
          (tensor->dtype == 0 && tensor->encoding > ACCRT_LAYOUT_OPAQUE)) &&
         tensor->group_elements == constant->group_elements && tensor->rank == constant->rank &&
         memcmp(tensor->shape, constant->shape, tensor->rank * sizeof(int64_t)) == 0 &&
         tensor->component_count == constant->component_count;
}

static accrt_status_t bind_whole(const binder_t* binder, accrt_weights_t* weights,
                                 uint32_t tensor) {
  accrt_weights_tensor_t info;
  ACCRT_TRY(accx_weights_describe(weights, tensor, &info));
  if (!same_type(binder->constant, &info))
    return mismatch(binder, weights, &info,
                    info.encoding == ACCRT_LAYOUT_PLAIN &&
                        binder->constant->encoding == ACCRT_LAYOUT_PLAIN && is_float(info.dtype) &&
                        is_float(binder->constant->dtype));
  for (uint32_t i = 0; i < info.component_count; ++i) {
    const accx_component_t* wanted = component_of(binder, i);
    accrt_weights_component_t found;
    ACCRT_TRY(accx_weights_place(weights, tensor, i, &found));
    if (found.role != wanted->role || found.size_bytes != wanted->size_bytes ||
        found.dtype != wanted->dtype) {
      return ACCRT_FAIL(TYPE_MISMATCH,
                        "constant '%s': component %" PRIu32 " (role %" PRIu32 ") is %s of %" PRIu64
                        " bytes; in %s it is %s of %" PRIu64 " (role %" PRIu32 ")",
                        binder->name, i, wanted->role, accrt_dtype_name(wanted->dtype),
                        wanted->size_bytes, accx_weights_name(weights),
                        accrt_dtype_name(found.dtype), found.size_bytes, found.role);
    }
    ACCRT_TRY(check_index(binder, weights, tensor, i, found.role));
    set_part(binder, i, weights, tensor, i);
  }
  return ACCRT_OK;
}

/* ---- Components that are tensors of their own ---- */

static uint32_t find_part(accrt_weights_t* weights, const char* name, const char* suffix) {
  char full[ACCX_MAX_NAME_BYTES + 16];
  const int bytes = snprintf(full, sizeof full, "%s%s", name, suffix + (suffix[0] == '!'));
  return bytes < (int)sizeof full
             ? accx_weights_lookup(weights, full, (size_t)bytes, ACCX_WEIGHTS_NONE)
             : ACCX_WEIGHTS_NONE;
}

/* The first size of a component's tensor. Bytes alone do not tell GPTQ's rows of words from AWQ's,
 * or a transposed tensor. */
static uint64_t first_size(const accx_constant_t* constant, uint32_t role) {
  const uint64_t k = (uint64_t)constant->shape[constant->rank - 1];
  const uint64_t n = (uint64_t)constant->shape[0];
  const bool data = role == ACCRT_LAYOUT_ROLE_DATA;
  if (role == ACCRT_LAYOUT_ROLE_GROUP_INDEX)
    return k;
  if (constant->encoding >= ACCRT_LAYOUT_GPTQ_V1 && constant->encoding <= ACCRT_LAYOUT_AWQ)
    return !data ? groups_of(constant) : constant->encoding == ACCRT_LAYOUT_AWQ ? k : k / 8;
  return !data && constant->encoding == ACCRT_LAYOUT_F8_BLOCK128 && constant->rank == 2
             ? (n + 127) / 128
             : n;
}

/* Types that files do not have are stored as bytes, or eight of four bits in a word. */
static bool stores(const accx_constant_t* constant, const accrt_weights_tensor_t* tensor,
                   const accx_component_t* wanted) {
  const uint32_t bits = accrt_dtype_bits(wanted->dtype);
  const bool packed = (bits < 8 || wanted->dtype == ACCRT_DTYPE_F8E8M0) &&
                      (tensor->dtype == ACCRT_DTYPE_U8 || tensor->dtype == ACCRT_DTYPE_I8 ||
                       (bits < 8 && tensor->dtype == ACCRT_DTYPE_I32));
  const bool bytes = tensor->encoding == ACCRT_LAYOUT_OPAQUE && wanted->dtype == ACCRT_DTYPE_U8;
  /* One size alone is that of a blob; one element has whatever sizes. */
  const bool alike = constant->encoding <= ACCRT_LAYOUT_OPAQUE || tensor->rank < 2 ||
                     tensor->size_bytes * 8 == bits ||
                     (uint64_t)tensor->shape[0] == first_size(constant, wanted->role);
  return tensor->size_bytes == wanted->size_bytes && alike &&
         (packed || bytes ||
          (tensor->encoding == ACCRT_LAYOUT_PLAIN && tensor->dtype == wanted->dtype));
}

static accrt_status_t bind_part(const binder_t* binder, accrt_weights_t* weights, const char* name,
                                const accx_suffix_t* suffixes, uint32_t component) {
  const accx_component_t* wanted = component_of(binder, component);
  const char* const suffix = suffixes[wanted->role];
  const uint32_t tensor = find_part(weights, name, suffix);
  if (tensor == ACCX_WEIGHTS_NONE) {
    return ACCRT_FAIL(
        NOT_FOUND,
        "constant '%s' (%s): %s has '%s%s' and no '%s%s' for its component of role %" PRIu32,
        binder->name, wanted_text(binder).text, accx_weights_name(weights), name, suffixes[0], name,
        suffix, wanted->role);
  }
  accrt_weights_tensor_t info;
  ACCRT_TRY(accx_weights_describe(weights, tensor, &info));
  if (suffix[0] == '!' || !stores(binder->constant, &info, wanted)) {
    return ACCRT_FAIL(
        TYPE_MISMATCH,
        "constant '%s' (%s): its component of role %" PRIu32 " is %s of %" PRIu64
        " bytes, but '%.200s' in %s is %s of %" PRIu64 "%s",
        binder->name, wanted_text(binder).text, wanted->role, accrt_dtype_name(wanted->dtype),
        wanted->size_bytes, info.name, accx_weights_name(weights),
        text_of(info.type_name, info.rank, info.shape).text, info.size_bytes,
        suffix[0] == '!' ? ", which means something else: `accx pack` makes a file that fits" : "");
  }
  set_part(binder, component, weights, tensor, 0);
  return check_index(binder, weights, tensor, 0, wanted->role);
}

/* Whether a part of a checkpoint changes no value: groups in order (or -1 for that), zero points of
 * 0. */
static accrt_status_t look_for_values(void* user, uint64_t offset_bytes, const unsigned char* bytes,
                                      size_t size_bytes) {
  looking_t* looking = user;
  const accx_constant_t* constant = looking->binder->constant;
  const bool is_index = looking->role == ACCRT_LAYOUT_ROLE_GROUP_INDEX;
  if (looking->role > ACCRT_LAYOUT_ROLE_GROUP_INDEX || (is_index && constant->group_elements == 0))
    looking->trivial = false;
  const unsigned char zero = constant->encoding == ACCRT_LAYOUT_I4_GROUP ? 0x88 : 0;
  const size_t width = is_index ? sizeof(int32_t) : 1;
  for (size_t i = 0; i < size_bytes / width && looking->trivial; ++i) {
    int32_t group = 0;
    if (is_index)
      memcpy(&group, bytes + i * width, sizeof group);
    const uint64_t column = offset_bytes / width + i;
    looking->trivial = is_index
                           ? group == -1 || (uint64_t)group == column / constant->group_elements
                           : bytes[i] == zero;
  }
  return ACCRT_OK;
}

/* What a checkpoint has for the name and the constant has not would be left out without a word. */
static accrt_status_t check_left(const binder_t* binder, accrt_weights_t* weights, const char* name,
                                 const accx_suffix_t* suffixes) {
  uint32_t roles = 0;
  for (uint32_t i = 0; i < binder->constant->component_count; ++i)
    roles |= 1u << component_of(binder, i)->role;
  for (uint32_t role = ACCRT_LAYOUT_ROLE_ZEROS;
       binder->constant->encoding > ACCRT_LAYOUT_OPAQUE && role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    const uint32_t tensor = suffixes[role][0] != '\0' && (roles >> role & 1) == 0
                                ? find_part(weights, name, suffixes[role])
                                : ACCX_WEIGHTS_NONE;
    if (tensor == ACCX_WEIGHTS_NONE)
      continue;
    looking_t looking = {.binder = binder, .role = role, .trivial = true};
    ACCRT_TRY(accx_weights_visit(weights, tensor, 0, look_for_values, &looking));
    if (looking.trivial)
      continue;
    return ACCRT_FAIL(TYPE_MISMATCH,
                      "constant '%s' (%s) has no component of role %" PRIu32
                      ", but %s has '%.200s', without which values are wrong%s",
                      binder->name, wanted_text(binder).text, role, accx_weights_name(weights),
                      weights->entries[tensor].name,
                      role == ACCRT_LAYOUT_ROLE_GROUP_INDEX
                          ? ": its columns are not in the order of their groups"
                          : "");
  }
  return ACCRT_OK;
}

/* True when the source has tensors for it by some convention; then `*out_status` is how it went. */
static bool bind_parts(const binder_t* binder, accrt_weights_t* weights, const char* name,
                       accrt_status_t* out_status) {
  const accx_constant_t* constant = binder->constant;
  const uint32_t last = ACCX_CONVENTION_COUNT - 1;
  for (uint32_t c = 0; c <= last; ++c) {
    const accx_suffix_t* suffixes = accx_conventions[c].suffixes;
    const bool fits = c == last || (constant->encoding >= accx_conventions[c].first_layout &&
                                    constant->encoding <= accx_conventions[c].last_layout &&
                                    find_part(weights, name, suffixes[1]) != ACCX_WEIGHTS_NONE);
    if (!fits || find_part(weights, name, suffixes[0]) == ACCX_WEIGHTS_NONE)
      continue;
    *out_status = check_left(binder, weights, name, suffixes);
    for (uint32_t i = 0; i < constant->component_count && *out_status == ACCRT_OK; ++i)
      *out_status = bind_part(binder, weights, name, suffixes, i);
    return true;
  }
  return false;
}

/* ---- Where to look ---- */

/* False when the source has nothing of that name. */
static bool bind_named(const binder_t* binder, accrt_weights_t* weights, const char* name,
                       accrt_status_t* out_status) {
  const uint32_t tensor = accx_weights_lookup(weights, name, strlen(name), ACCX_WEIGHTS_NONE);
  const bool is_split =
      binder->constant->component_count > 1 || binder->constant->encoding != ACCRT_LAYOUT_PLAIN;
  accrt_weights_tensor_t info;
  if (tensor != ACCX_WEIGHTS_NONE && accx_weights_describe(weights, tensor, &info) == ACCRT_OK &&
      (!is_split || info.encoding > ACCRT_LAYOUT_OPAQUE || info.component_count > 1 ||
       info.encoding == binder->constant->encoding)) {
    *out_status = bind_whole(binder, weights, tensor);
    return true;
  }
  return is_split && bind_parts(binder, weights, name, out_status);
}

static const char* tensor_name(const binder_t* binder) {
  const char* name = binder->constant->source == ACCX_CONSTANT_EXTERNAL
                         ? accrt_program_string(binder->program, binder->constant->tensor)
                         : "";
  return name[0] != '\0' ? name : binder->name;
}

static bool bind_from(const binder_t* binder, accrt_weights_t* weights,
                      accrt_status_t* out_status) {
  const char* name = tensor_name(binder);
  return bind_named(binder, weights, name, out_status) ||
         (name != binder->name && bind_named(binder, weights, binder->name, out_status));
}

/* Names that are looked at for near ones: all would be slow where there are very many. */
#define MAX_NEAR_CANDIDATES 8192u

static void add_near(accrt_near_t* near, const accrt_weights_t* weights) {
  for (uint32_t i = 0; i < weights->entry_count && i < MAX_NEAR_CANDIDATES; ++i)
    accrt_near_add(near, weights->entries[i].name);
}

static accrt_status_t not_found(const binder_t* binder) {
  const accrt_external_request_t* request = binder->request;
  const uint32_t file =
      binder->constant->source == ACCX_CONSTANT_EXTERNAL ? binder->constant->file : ACCX_NONE;
  accrt_near_t near;
  accrt_near_init(&near, tensor_name(binder));
  char places[200];
  accrt_text_t text = {places, sizeof places, 0};
  accrt_text_add(&text, "%s", "");
  for (uint32_t i = 0; i < request->weight_count; ++i) {
    add_near(&near, request->weights[i]);
    accrt_text_add(&text, "%s%s", i > 0 ? ", " : "", accx_weights_name(request->weights[i]));
  }
  if (file != ACCX_NONE && binder->files != NULL && binder->files[file] != NULL) {
    add_near(&near, binder->files[file]);
    accrt_text_add(&text, "%s%s", request->weight_count > 0 ? ", " : "",
                   accx_weights_name(binder->files[file]));
  }
  if (places[0] == '\0') {
    return ACCRT_FAIL(NOT_FOUND,
                      "constant '%s' (%s) is not stored in the bundle, and no weights were given",
                      binder->name, wanted_text(binder).text);
  }
  return ACCRT_FAIL(NOT_FOUND, "constant '%s' (%s): no tensor '%s' in %s%s", binder->name,
                    wanted_text(binder).text, tensor_name(binder), places, accrt_near_text(&near));
}

/* The file that the bundle names, opened when first needed. */
static accrt_status_t bind_from_file(binder_t* binder, bool* out_found) {
  const uint32_t file = binder->constant->file;
  accrt_status_t status = ACCRT_OK;
  *out_found = false;
  if (binder->files == NULL) {
    status = ACCRT_NEW_ARRAY(binder->program->allocator, binder->program->tables->file_count,
                             &binder->files);
  }
  if (status == ACCRT_OK && binder->files[file] == NULL)
    status = accrt_bundle_open_file(binder->program->bundle, file, &binder->files[file]);
  if (status != ACCRT_OK) {
    accrt_error_prefix("constant '%s'", binder->name);
    return status;
  }
  *out_found = bind_from(binder, binder->files[file], &status);
  return status;
}

static accrt_status_t bind_constant(binder_t* binder, uint32_t constant) {
  const accrt_external_request_t* request = binder->request;
  const accx_shard_t* shard = want(binder, constant);
  ACCRT_TRY(accrt_program_check_shard(binder->program, shard));
  const bool external = binder->constant->source == ACCX_CONSTANT_EXTERNAL;
  bool found = false;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < request->weight_count && !found; ++i)
    found = bind_from(binder, request->weights[i], &status);
  if (!found && external && binder->constant->file != ACCX_NONE && !request->is_load)
    status = bind_from_file(binder, &found);
  if (status != ACCRT_OK)
    return say_rank(binder, shard, status);
  if (!found)
    return not_found(binder);
  const bool by_name = !external || request->by_name ||
                       (binder->constant->binding_flags & ACCX_BINDING_BY_NAME) != 0 ||
                       accrt_bundle_skips_digests(binder->program->bundle);
  const unsigned char state = by_name ? ACCRT_EXTERNAL_FREE : ACCRT_EXTERNAL_UNKNOWN;
  atomic_store_explicit(&binder->external->checked[constant], state, memory_order_relaxed);
  return ACCRT_OK;
}

/* ---- What is bound ---- */

/* By constant: 1 for what is to be bound. */
static accrt_status_t choose_named(const accrt_program_t* program,
                                   const accrt_external_request_t* request, uint8_t* wanted) {
  for (uint32_t i = 0; i < request->name_count; ++i) {
    uint32_t constant = 0;
    ACCRT_TRY(accrt_program_find_stored(program, request->names[i], &constant));
    wanted[constant] = 1;
  }
  return ACCRT_OK;
}

static accrt_status_t choose_used(const accrt_program_t* program, uint8_t* wanted) {
  const accrt_bundle_tables_t* tables = program->tables;
  void* memory;
  ACCRT_TRY(accrt_alloc_array(program->allocator, tables->component_count, 1, &memory));
  uint8_t* used = memory;
  accrt_program_mark_sources(program, used);
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    const accx_constant_t* constant = &tables->constants[i];
    for (uint32_t k = 0; k < constant->component_count; ++k) {
      const uint32_t component = constant->component_first + k;
      if (constant->source == ACCX_CONSTANT_EXTERNAL &&
          (used[component] || accrt_program_uses_component(program, component)))
        wanted[i] = 1;
    }
  }
  accrt_free_array(program->allocator, memory, tables->component_count, 1);
  return ACCRT_OK;
}

static bool any(const uint8_t* wanted, uint32_t count) {
  return count != 0 && memchr(wanted, 1, count) != NULL;
}

static accrt_status_t keep_sources(accrt_external_t* external) {
  accrt_status_t status = ACCRT_OK;
  accrt_weights_t* last = NULL;
  for (uint32_t i = 0; i < external->component_count && status == ACCRT_OK; ++i) {
    accrt_weights_t* weights = external->parts[i].weights;
    if (weights != NULL && weights != last && weights != external->own)
      status = keep_source(external, weights);
    last = weights != NULL ? weights : last;
  }
  return status;
}

static accrt_status_t bind_all(accrt_program_t* program, const accrt_external_request_t* request,
                               const uint8_t* wanted, accrt_external_t* external) {
  binder_t binder;
  memset(&binder, 0, sizeof binder);
  binder.program = program;
  binder.request = request;
  binder.external = external;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < external->constant_count && status == ACCRT_OK; ++i) {
    if (wanted[i])
      status = bind_constant(&binder, i);
  }
  if (status == ACCRT_OK)
    status = keep_sources(external);
  for (uint32_t i = 0; binder.files != NULL && i < program->tables->file_count; ++i) {
    if (binder.files[i] != NULL)
      accx_weights_unref(binder.files[i]);
  }
  accrt_free_array(program->allocator, binder.files, program->tables->file_count,
                   sizeof *binder.files);
  return status;
}

accrt_status_t accrt_external_create(accrt_program_t* program,
                                     const accrt_external_request_t* request, uint8_t* changed,
                                     accrt_external_t** out_external) {
  *out_external = NULL;
  accrt_status_t status = request->names != NULL ? choose_named(program, request, changed)
                                                 : choose_used(program, changed);
  if (status != ACCRT_OK ||
      (request->base != NULL && !any(changed, program->tables->constant_count)))
    return status;
  accrt_external_t* external = NULL;
  status = create(program, request->base, &external);
  if (status == ACCRT_OK)
    status = bind_all(program, request, changed, external);
  if (status == ACCRT_OK)
    status = accrt_external_check_roots(program, external, changed);
  if (status != ACCRT_OK) {
    accrt_external_release(external);
    return status;
  }
  *out_external = external;
  return ACCRT_OK;
}

/* ---- Bytes ---- */

accrt_status_t accrt_external_accept(const accrt_program_t* program, accrt_external_t* external,
                                     uint32_t constant, const accx_digest_t* found) {
  const accx_constant_t* record = &program->tables->constants[constant];
  if (accx_digest_equal(found, &record->digest)) {
    atomic_store_explicit(&external->checked[constant], ACCRT_EXTERNAL_GOOD, memory_order_relaxed);
    return ACCRT_OK;
  }
  char has[ACCX_DIGEST_TEXT_BYTES], wants[ACCX_DIGEST_TEXT_BYTES];
  const accrt_external_part_t* part = &external->parts[record->component_first];
  return ACCRT_FAIL(DATA_CORRUPT,
                    "constant '%s': '%.200s' in %s has the digest %s, not %s; weights that are "
                    "meant to differ are bound by name alone",
                    accrt_program_string(program, record->name),
                    part->weights->entries[part->tensor].name, accx_weights_name(part->weights),
                    accx_digest_text(found, has), accx_digest_text(&record->digest, wants));
}

static accrt_status_t add_to_digest(void* user, uint64_t offset_bytes, const unsigned char* bytes,
                                    size_t size_bytes) {
  (void)offset_bytes;
  accx_hasher_update(user, bytes, size_bytes);
  return ACCRT_OK;
}

accrt_status_t accrt_external_check(const accrt_program_t* program, accrt_external_t* external,
                                    uint32_t constant) {
  if (!accrt_external_unknown(external, constant))
    return ACCRT_OK;
  const accx_constant_t* record = &program->tables->constants[constant];
  accx_hasher_t hasher;
  accx_hasher_init(&hasher);
  for (uint32_t i = 0; i < record->component_count; ++i) {
    const accrt_external_part_t* part = &external->parts[record->component_first + i];
    ACCRT_TRY(
        accx_weights_visit(part->weights, part->tensor, part->component, add_to_digest, &hasher));
  }
  const accx_digest_t found = accx_hasher_finish(&hasher);
  return accrt_external_accept(program, external, constant, &found);
}

const accx_component_t* accrt_external_stored(const accrt_external_t* external,
                                              uint32_t component) {
  const accrt_external_part_t* part = &external->parts[component];
  const accx_weights_entry_t* entry = &part->weights->entries[part->tensor];
  const accrt_bundle_tables_t* tables =
      accrt_bundle_tables(part->weights->files[entry->file].bundle);
  return &tables->components[tables->constants[entry->offset_bytes].component_first +
                             part->component];
}

bool accrt_external_lies_well(const accrt_program_t* program, const accrt_external_t* external,
                              uint32_t component) {
  const accrt_external_part_t* part = &external->parts[component];
  const accx_weights_entry_t* entry = &part->weights->entries[part->tensor];
  const accx_weights_file_t* file = &part->weights->files[entry->file];
  const accrt_slice_t* slice = accrt_external_slice(program, external, component);
  uint64_t offset_bytes = 0;
  if (slice == NULL && file->bundle != NULL)
    return true;
  if (slice != NULL &&
      (!accrt_slice_is_run(slice, &offset_bytes) || file->bundle != NULL || file->on_demand))
    return false;
  const accx_constant_t* constant =
      &program->tables->constants[accrt_program_constant_of(program, component)];
  return ((uintptr_t)file->bytes + entry->offset_bytes + offset_bytes) %
             accrt_constant_align(constant) ==
         0;
}

accrt_status_t accrt_external_bytes(accrt_program_t* program, accrt_external_t* external,
                                    uint32_t component, const void** out_data,
                                    uint64_t* out_size_bytes) {
  const accrt_external_part_t* part = &external->parts[component];
  const accrt_slice_t* slice = accrt_external_slice(program, external, component);
  if (!accrt_external_is_own(external, component))
    ACCRT_TRY(
        accrt_external_check(program, external, accrt_program_constant_of(program, component)));
  ACCRT_TRY(
      accx_weights_bytes(part->weights, part->tensor, part->component, out_data, out_size_bytes));
  uint64_t offset_bytes = 0;
  if (slice != NULL && accrt_slice_is_run(slice, &offset_bytes)) {
    *out_data = (const unsigned char*)*out_data + offset_bytes;
    *out_size_bytes = slice->local_row_bytes;
  }
  return ACCRT_OK;
}

accrt_status_t accrt_external_read(const accrt_program_t* program, const accrt_external_t* external,
                                   uint32_t component, uint64_t offset_bytes, void* target,
                                   uint64_t size_bytes) {
  const accrt_external_part_t* part = &external->parts[component];
  const accrt_slice_t* slice = accrt_external_slice(program, external, component);
  return slice != NULL ? accrt_slice_read(slice, part->weights, part->tensor, part->component,
                                          offset_bytes, target, size_bytes)
                       : accx_weights_copy(part->weights, part->tensor, part->component,
                                           offset_bytes, target, size_bytes);
}
