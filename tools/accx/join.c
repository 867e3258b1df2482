/* tools/accx/join.c - finds the tensors of a checkpoint that form one weight, by the names and
 * types of their projects (format/conventions.def). It does not guess: where two projects store the
 * same form, the user has to choose. */
#include "join.h"

#include <stdlib.h>
#include <string.h>

#include "format/conventions.h"
#include "term.h"

#define NONE UINT32_MAX

typedef accrt_weights_tensor_t facts_t;

/* State of joining one source. */
typedef struct join {
  const char* path;
  accrt_weights_t* source;
  facts_t* facts;
  uint32_t* by_name;   /* indices of tensors, sorted by name */
  unsigned char* used; /* by tensor: 1 when it is part of a weight */
  uint32_t count;
  uint32_t gptq; /* layout; 0: not given */
  accx_weight_list_t* list;
  bool is_disabled;
  unsigned char* bytes;    /* of the last tensor that was read */
  uint64_t unjoined_count; /* number of weights that could not be joined */
  char first[400];         /* the first of them, with the reason */
  int code;
} join_t;

/* A weight during its assembly. `why` is set when it cannot be joined. */
typedef struct candidate {
  join_t* join;
  const char* name;
  accx_weight_t weight;
  uint32_t pieces[8]; /* all its tensors, also those that are not stored in it */
  uint32_t piece_count;
  const char* why;
} candidate_t;

/* ---- Tensors ---- */

static bool ends_with(const char* text, const char* end, size_t* out_stem) {
  const size_t length = strlen(text), end_length = strlen(end);
  if (length <= end_length || strcmp(text + length - end_length, end) != 0)
    return false;
  *out_stem = length - end_length;
  return true;
}

static uint32_t find(const join_t* join, const char* name, const char* suffix) {
  const size_t stem = strlen(name);
  uint32_t low = 0, end = join->count;
  while (low < end) {
    const uint32_t middle = low + (end - low) / 2;
    const char* other = join->facts[join->by_name[middle]].name;
    int order = strncmp(other, name, stem);
    if (order == 0)
      order = strcmp(other + stem, suffix);
    if (order == 0)
      return join->by_name[middle];
    if (order < 0)
      low = middle + 1;
    else
      end = middle;
  }
  return NONE;
}

static bool has(const join_t* join, const char* name, const char* suffix) {
  return find(join, name, suffix) != NONE;
}

static bool has_role(const join_t* join, const char* name, uint32_t convention, uint32_t role) {
  return has(join, name, accx_convention_suffix(convention, role));
}

/* Takes the tensor whose name is the weight's name with `suffix`. It then belongs to the weight. */
static const facts_t* take(candidate_t* candidate, const char* suffix, uint32_t* out_index) {
  const join_t* join = candidate->join;
  *out_index = find(join, candidate->name, suffix);
  if (*out_index == NONE || join->used[*out_index])
    return NULL;
  candidate->pieces[candidate->piece_count++] = *out_index;
  return &join->facts[*out_index];
}

/* The same for a role of a convention. */
static const facts_t* take_role(candidate_t* candidate, uint32_t convention, uint32_t role,
                                uint32_t* out_index) {
  return take(candidate, accx_convention_suffix(convention, role), out_index);
}

/* Reads all bytes of a component into new memory. The caller frees it. */
static accrt_status_t read_whole(accrt_weights_t* source, uint32_t tensor, uint32_t component,
                                 unsigned char** out_bytes) {
  accrt_weights_component_t place = ACCRT_WEIGHTS_COMPONENT_INIT;
  *out_bytes = NULL;
  const accrt_status_t status = accrt_weights_component(source, tensor, component, &place);
  if (status != ACCRT_OK)
    return status;
  *out_bytes = accx_alloc(place.size_bytes + 1, 1);
  return accrt_weights_read(source, tensor, component, 0, *out_bytes, place.size_bytes);
}

/* The bytes of a tensor, valid until the next call; NULL if they cannot be read. */
static const void* bytes_of(const candidate_t* candidate, uint32_t tensor) {
  join_t* join = candidate->join;
  free(join->bytes);
  const accrt_status_t status = read_whole(join->source, tensor, 0, &join->bytes);
  if (status != ACCRT_OK && join->code == ACCX_OK)
    join->code = accx_fail_status(status, "%s", join->path);
  return status == ACCRT_OK ? join->bytes : NULL;
}

static uint64_t elements(const facts_t* facts) {
  uint64_t count = 1;
  for (uint32_t i = 0; i < facts->rank; ++i)
    count *= (uint64_t)facts->shape[i];
  return count;
}

static bool is_plain(const facts_t* facts, accrt_dtype_t dtype) {
  return facts && facts->encoding == ACCRT_LAYOUT_PLAIN && facts->dtype == dtype;
}
static bool is_float(const facts_t* facts) {
  return is_plain(facts, ACCRT_DTYPE_F32) || is_plain(facts, ACCRT_DTYPE_F16) ||
         is_plain(facts, ACCRT_DTYPE_BF16);
}
static bool is_f8(const facts_t* facts) {
  return is_plain(facts, ACCRT_DTYPE_F8E4M3FN) || is_plain(facts, ACCRT_DTYPE_F8E5M2);
}
static bool is_byte(const facts_t* facts) {
  return is_plain(facts, ACCRT_DTYPE_U8) || is_plain(facts, ACCRT_DTYPE_F8E8M0);
}
/* True when the leading sizes of both are equal. */
static bool same_rows(const facts_t* facts, const int64_t* shape, uint32_t rank) {
  return facts->rank >= rank &&
         (rank == 0 || memcmp(facts->shape, shape, rank * sizeof *shape) == 0);
}

/* ---- Weights ---- */

static void set_layout(candidate_t* candidate, uint32_t layout, uint64_t group,
                       const facts_t* scales) {
  facts_t* facts = &candidate->weight.facts;
  facts->encoding = layout;
  facts->group_elements = (uint32_t)group;
  facts->dtype = is_float(scales) ? scales->dtype : ACCRT_DTYPE_F32;
}

/* The elements of a row of `size` words or bytes. Sizes that could overflow, which only an empty
 * tensor can have, make the candidate fail. */
static int64_t times(candidate_t* candidate, int64_t size, int64_t each) {
  if (size <= INT64_MAX / 64)
    return size * each;
  candidate->why = "its rows are too long";
  return 0;
}

static void set_shape(candidate_t* candidate, const int64_t* shape, uint32_t rank, int64_t last) {
  facts_t* facts = &candidate->weight.facts;
  if (rank > ACCRT_MAX_RANK) {
    candidate->why = "too many dimensions";
    return;
  }
  facts->rank = rank;
  memcpy(candidate->weight.shape, shape, rank * sizeof *shape);
  if (last >= 0)
    candidate->weight.shape[rank - 1] = last;
}

static void add_part(candidate_t* candidate, uint32_t role, uint32_t tensor, accrt_dtype_t dtype,
                     accx_part_kind_t kind) {
  accx_weight_part_t* part = &candidate->weight.parts[candidate->weight.facts.component_count++];
  *part =
      (accx_weight_part_t){role, tensor, 0, dtype, candidate->join->facts[tensor].size_bytes, kind};
}

/* Elements per group of a row; 0 when that is unclear. A shorter last group would be possible, but
 * no project writes one. */
static uint64_t group_of(candidate_t* candidate, uint64_t k, uint64_t groups) {
  const uint64_t group = groups ? k / groups : 0;
  if (group && group * groups == k && group % 8 == 0 && group <= 1u << 24)
    return group;
  candidate->why = "its columns are not so many whole groups";
  return 0;
}

/* True when columns are in the order of their groups (-1 means that too), so that no index is
 * needed. Otherwise each entry names a group. */
static bool in_order(candidate_t* candidate, uint32_t tensor, uint64_t k, uint64_t group) {
  const unsigned char* data = bytes_of(candidate, tensor);
  bool ordered = true, inside = true;
  for (uint64_t i = 0; data && i < k; ++i) {
    int32_t at;
    memcpy(&at, data + i * sizeof at, sizeof at);
    ordered = ordered && (at == -1 || (uint64_t)at == i / group);
    inside = inside && at >= 0 && (uint64_t)at < k / group;
  }
  if (!ordered && !inside)
    candidate->why = "its group index names groups that are not there";
  return ordered;
}

static void add_index(candidate_t* candidate, uint32_t convention, uint64_t k, uint64_t group) {
  uint32_t index;
  const facts_t* facts = take_role(candidate, convention, ACCRT_LAYOUT_ROLE_GROUP_INDEX, &index);
  if (!facts || candidate->why)
    return;
  if (!is_plain(facts, ACCRT_DTYPE_I32) || elements(facts) != k)
    candidate->why = "its group index is not one number for each column";
  else if (!in_order(candidate, index, k, group) && !candidate->why)
    add_part(candidate, ACCRT_LAYOUT_ROLE_GROUP_INDEX, index, ACCRT_DTYPE_I32, ACCX_PART_STORED);
}

/* ---- Conventions ---- */

/* AutoGPTQ, GPTQModel, AutoAWQ: X.qweight, X.qzeros, X.scales, X.g_idx. GPTQ packs words along K,
 * AWQ along N. */
static void join_gptq(candidate_t* candidate) {
  uint32_t q, z, s;
  const facts_t* data = take_role(candidate, ACCX_CONVENTION_GPTQ, ACCRT_LAYOUT_ROLE_DATA, &q);
  const facts_t* scales = take_role(candidate, ACCX_CONVENTION_GPTQ, ACCRT_LAYOUT_ROLE_SCALES, &s);
  const facts_t* zeros = take_role(candidate, ACCX_CONVENTION_GPTQ, ACCRT_LAYOUT_ROLE_ZEROS, &z);
  if (!is_plain(data, ACCRT_DTYPE_I32) || !is_plain(zeros, ACCRT_DTYPE_I32) || !is_float(scales) ||
      data->rank != 2 || zeros->rank != 2 || scales->rank != 2) {
    candidate->why = "it has not the tensors qweight, qzeros and scales of GPTQ or AWQ";
    return;
  }
  (void)times(candidate, data->shape[0], 8);
  (void)times(candidate, data->shape[1], 8);
  (void)times(candidate, zeros->shape[1], 8);
  if (candidate->why)
    return;
  const uint64_t groups = (uint64_t)scales->shape[0], n = (uint64_t)scales->shape[1];
  const bool awq = (uint64_t)data->shape[1] * 8 == n;
  const uint64_t k = (uint64_t)data->shape[0] * (awq ? 1 : 8);
  if ((uint64_t)zeros->shape[0] != groups || (uint64_t)zeros->shape[1] * 8 != n ||
      (!awq && (uint64_t)data->shape[1] != n)) {
    candidate->why = "it has not 4 bits";
    return;
  }
  const uint64_t group = group_of(candidate, k, groups);
  set_shape(candidate, (int64_t[]){(int64_t)n, (int64_t)k}, 2, -1);
  set_layout(candidate, awq ? ACCRT_LAYOUT_AWQ : candidate->join->gptq, group, scales);
  add_part(candidate, ACCRT_LAYOUT_ROLE_DATA, q, ACCRT_DTYPE_I32, ACCX_PART_STORED);
  add_part(candidate, ACCRT_LAYOUT_ROLE_SCALES, s, scales->dtype, ACCX_PART_STORED);
  add_part(candidate, ACCRT_LAYOUT_ROLE_ZEROS, z, ACCRT_DTYPE_I32, ACCX_PART_STORED);
  if (!awq)
    add_index(candidate, ACCX_CONVENTION_GPTQ, k, group);
  join_t* join = candidate->join;
  if (!awq && !join->gptq && !join->is_disabled && !candidate->why && join->code == ACCX_OK)
    join->code = accx_fail(
        ACCX_USAGE,
        "%s: '%s' is a weight of GPTQ, of which two versions look alike and differ by one in their "
        "zero points: --gptq v1 or --gptq v2 (config.json's checkpoint_format: gptq is v1), or "
        "--apart to leave its tensors as they are",
        join->path, accx_safe(candidate->name));
}

/* compressed-tensors' pack-quantized: eight INT4 per word along K; zero points along N.
 * X.weight_shape gives K. */
static void join_int4(candidate_t* candidate, uint32_t q, const facts_t* data, uint32_t s,
                      const facts_t* scales) {
  uint32_t w, z;
  const facts_t* shape = take(candidate, "_shape", &w);
  const facts_t* zeros =
      take_role(candidate, ACCX_CONVENTION_INT4_PACKED, ACCRT_LAYOUT_ROLE_ZEROS, &z);
  const int64_t k = times(candidate, data->shape[data->rank - 1], 8);
  if (shape) {
    int64_t last = -1;
    const unsigned char* bytes = bytes_of(candidate, w);
    if (bytes && is_plain(shape, ACCRT_DTYPE_I64) && shape->size_bytes >= sizeof last)
      memcpy(&last, bytes + shape->size_bytes - sizeof last, sizeof last);
    if (last != k)
      candidate->why = "it has not 4 bits, or rows that end within a word";
  }
  if (!candidate->why && (!is_float(scales) || scales->rank != data->rank ||
                          !same_rows(scales, data->shape, data->rank - 1)))
    candidate->why = "its scales are not those of groups of its rows";
  if (candidate->why)
    return;
  const uint64_t groups = (uint64_t)scales->shape[scales->rank - 1];
  const uint64_t group = group_of(candidate, (uint64_t)k, groups);
  if (candidate->why)
    return;
  set_shape(candidate, data->shape, data->rank, k);
  set_layout(candidate, zeros ? ACCRT_LAYOUT_I4_GROUP_ASYM : ACCRT_LAYOUT_I4_GROUP, group, scales);
  add_part(candidate, ACCRT_LAYOUT_ROLE_DATA, q, ACCRT_DTYPE_U4, ACCX_PART_STORED);
  add_part(candidate, ACCRT_LAYOUT_ROLE_SCALES, s, scales->dtype, ACCX_PART_STORED);
  if (zeros) {
    const uint64_t n = (uint64_t)data->shape[data->rank - 2];
    const uint64_t batches = elements(scales) / (n ? n : 1) / groups;
    if (!is_plain(zeros, ACCRT_DTYPE_I32) || elements(zeros) != batches * ((n + 7) / 8) * groups)
      candidate->why = "its zero points are not words of eight rows";
    add_part(candidate, ACCRT_LAYOUT_ROLE_ZEROS, z, ACCRT_DTYPE_U4, ACCX_PART_TURNED);
  }
  add_index(candidate, ACCX_CONVENTION_INT4_PACKED, (uint64_t)k, group);
}

/* FP4 codes, two per byte. The last size may be that of a block's bytes. */
static void join_fp4(candidate_t* candidate, uint32_t q, const facts_t* data, uint32_t s,
                     const facts_t* scales, bool blocks) {
  uint32_t g = NONE;
  const facts_t* divisor =
      take_role(candidate, ACCX_CONVENTION_NVFP4_PACKED, ACCRT_LAYOUT_ROLE_GLOBAL_SCALE, &g);
  const facts_t* factor =
      divisor ? NULL
              : take_role(candidate, ACCX_CONVENTION_NVFP4, ACCRT_LAYOUT_ROLE_GLOBAL_SCALE, &g);
  const facts_t* whole = divisor ? divisor : factor;
  const uint32_t rank = data->rank > blocks ? data->rank - blocks : 0;
  const bool nv = is_plain(scales, ACCRT_DTYPE_F8E4M3FN);
  if (rank < 1 || (blocks && data->shape[rank] != 16) || (!nv && !is_byte(scales)) ||
      nv != (whole != NULL) ||
      (nv && (!is_plain(whole, ACCRT_DTYPE_F32) || elements(whole) != 1))) {
    candidate->why = "its scales are not those of MXFP4 or NVFP4";
    return;
  }
  set_shape(candidate, data->shape, rank, times(candidate, data->shape[rank - 1], blocks ? 32 : 2));
  set_layout(candidate, nv ? ACCRT_LAYOUT_NVFP4 : ACCRT_LAYOUT_MXFP4, 0, NULL);
  add_part(candidate, ACCRT_LAYOUT_ROLE_DATA, q, ACCRT_DTYPE_F4E2M1, ACCX_PART_STORED);
  add_part(candidate, ACCRT_LAYOUT_ROLE_SCALES, s, nv ? ACCRT_DTYPE_F8E4M3FN : ACCRT_DTYPE_F8E8M0,
           ACCX_PART_STORED);
  if (nv)
    add_part(candidate, ACCRT_LAYOUT_ROLE_GLOBAL_SCALE, g, ACCRT_DTYPE_F32,
             divisor ? ACCX_PART_RECIPROCAL : ACCX_PART_STORED);
}

static void join_packed(candidate_t* candidate) {
  uint32_t q, s;
  const facts_t* data =
      take_role(candidate, ACCX_CONVENTION_INT4_PACKED, ACCRT_LAYOUT_ROLE_DATA, &q);
  const facts_t* scales =
      take_role(candidate, ACCX_CONVENTION_INT4_PACKED, ACCRT_LAYOUT_ROLE_SCALES, &s);
  if (!scales || data->rank < 2) /* the tensor alone is an ordinary weight */
    candidate->why = "it has no scales";
  else if (is_plain(data, ACCRT_DTYPE_I32))
    join_int4(candidate, q, data, s, scales);
  else
    join_fp4(candidate, q, data, s, scales, false);
}

/* gpt-oss: blocks of 16 bytes and their exponents. */
static void join_blocks(candidate_t* candidate, uint32_t convention) {
  uint32_t q, s;
  const facts_t* data = take_role(candidate, convention, ACCRT_LAYOUT_ROLE_DATA, &q);
  const facts_t* scales = take_role(candidate, convention, ACCRT_LAYOUT_ROLE_SCALES, &s);
  join_fp4(candidate, q, data, s, scales, true);
}

/* Chooses the layout of 8-bit codes by the shape of their scales. */
static void choose_scaled(candidate_t* candidate, const facts_t* data, const facts_t* scales,
                          bool inverse) {
  const int64_t n = data->rank > 1 ? data->shape[data->rank - 2] : 1;
  const int64_t k = data->shape[data->rank - 1];
  const bool alike = scales->rank == data->rank && same_rows(scales, data->shape, data->rank - 1);
  const bool rows = elements(scales) * (uint64_t)k == elements(data) && scales->rank >= 1 &&
                    scales->shape[0] == data->shape[0];
  const bool tiles = data->rank >= 2 && scales->rank == data->rank &&
                     same_rows(scales, data->shape, data->rank - 2) &&
                     scales->shape[data->rank - 2] == (n + 127) / 128 &&
                     scales->shape[data->rank - 1] == (k + 127) / 128;
  if (is_byte(scales) && is_f8(data) && alike)
    set_layout(candidate, ACCRT_LAYOUT_MXFP8, 0, NULL);
  else if (!is_float(scales))
    candidate->why = "its scales are of no type that its layout may have";
  else if (is_f8(data) && tiles && (inverse || elements(scales) > 1))
    set_layout(candidate, ACCRT_LAYOUT_F8_BLOCK128, 0, scales);
  else if (is_f8(data) && elements(scales) == 1)
    set_layout(candidate, ACCRT_LAYOUT_F8_TENSOR, 0, scales);
  else if (rows)
    set_layout(candidate, is_f8(data) ? ACCRT_LAYOUT_F8_CHANNEL : ACCRT_LAYOUT_I8_CHANNEL, 0,
               scales);
  else if (!is_f8(data) && alike)
    set_layout(candidate, ACCRT_LAYOUT_I8_GROUP,
               group_of(candidate, (uint64_t)k, (uint64_t)scales->shape[scales->rank - 1]), scales);
  else
    candidate->why = "no layout has scales of this shape";
}

/* True when all zero points are 0, which means that there are none. */
static bool all_zero(const candidate_t* candidate, uint32_t tensor, uint64_t size_bytes) {
  const unsigned char* data = bytes_of(candidate, tensor);
  for (uint64_t i = 0; data && i < size_bytes; ++i) {
    if (data[i])
      return false;
  }
  return true;
}

/* compressed-tensors, ModelOpt, DeepSeek: X is FP8 or INT8 (FP4: two per byte), with X_scale or
 * X_scale_inv. */
static void join_scaled(candidate_t* candidate, bool inverse) {
  uint32_t q, s, z;
  const facts_t* data = take_role(candidate, ACCX_CONVENTION_SCALED, ACCRT_LAYOUT_ROLE_DATA, &q);
  const facts_t* scales =
      take_role(candidate, inverse ? ACCX_CONVENTION_F8_TILES : ACCX_CONVENTION_SCALED,
                ACCRT_LAYOUT_ROLE_SCALES, &s);
  const facts_t* zeros = take_role(candidate, ACCX_CONVENTION_SCALED, ACCRT_LAYOUT_ROLE_ZEROS, &z);
  if (!scales || data->rank < 1) {
    candidate->why = "it has no scales, or no dimensions";
    return;
  }
  if (is_plain(data, ACCRT_DTYPE_U8)) {
    join_fp4(candidate, q, data, s, scales, false);
    return;
  }
  if (zeros && !all_zero(candidate, z, zeros->size_bytes)) {
    candidate->why = "no layout has its zero points";
    return;
  }
  set_shape(candidate, data->shape, data->rank, -1);
  choose_scaled(candidate, data, scales, inverse);
  add_part(candidate, ACCRT_LAYOUT_ROLE_DATA, q, data->dtype, ACCX_PART_STORED);
  add_part(candidate, ACCRT_LAYOUT_ROLE_SCALES, s,
           is_byte(scales) ? ACCRT_DTYPE_F8E8M0 : scales->dtype, ACCX_PART_STORED);
}

/* Tries all conventions. False when the tensor belongs to no weight of several tensors. */
static bool try_conventions(candidate_t* candidate, const facts_t* facts) {
  join_t* join = candidate->join;
  static const uint32_t blocks[] = {ACCX_CONVENTION_MXFP4_BLOCKS, ACCX_CONVENTION_MXFP4_MEMBERS};
  const char* name = facts->name;
  size_t stem;
  if (ends_with(name, accx_convention_suffix(ACCX_CONVENTION_GPTQ, ACCRT_LAYOUT_ROLE_DATA),
                &stem)) {
    candidate->name = accx_text("%.*s", (int)stem, name);
    if (!has_role(join, candidate->name, ACCX_CONVENTION_GPTQ, ACCRT_LAYOUT_ROLE_SCALES))
      return false;
    join_gptq(candidate);
    return true;
  }
  if (ends_with(name, accx_convention_suffix(ACCX_CONVENTION_INT4_PACKED, ACCRT_LAYOUT_ROLE_DATA),
                &stem)) {
    candidate->name = accx_text("%.*s", (int)stem, name);
    if (!has_role(join, candidate->name, ACCX_CONVENTION_INT4_PACKED, ACCRT_LAYOUT_ROLE_SCALES))
      return false;
    join_packed(candidate);
    return true;
  }
  for (size_t i = 0; i < 2; ++i) {
    if (!is_plain(facts, ACCRT_DTYPE_U8) ||
        !ends_with(name, accx_convention_suffix(blocks[i], ACCRT_LAYOUT_ROLE_DATA), &stem))
      continue;
    candidate->name = accx_text("%.*s", (int)stem, name);
    if (!has_role(join, candidate->name, blocks[i], ACCRT_LAYOUT_ROLE_SCALES))
      continue;
    join_blocks(candidate, blocks[i]);
    return true;
  }
  candidate->name = name;
  const bool codes = is_f8(facts) || is_plain(facts, ACCRT_DTYPE_I8) ||
                     (is_plain(facts, ACCRT_DTYPE_U8) &&
                      has_role(join, name, ACCX_CONVENTION_NVFP4, ACCRT_LAYOUT_ROLE_GLOBAL_SCALE));
  const bool inverse = has_role(join, name, ACCX_CONVENTION_F8_TILES, ACCRT_LAYOUT_ROLE_SCALES);
  if (!codes ||
      (!inverse && !has_role(join, name, ACCX_CONVENTION_SCALED, ACCRT_LAYOUT_ROLE_SCALES)))
    return false;
  join_scaled(candidate, inverse);
  return true;
}

/* Checks that each component has the size of its layout. Sets the size of those that are
 * computed. */
static void check_sizes(candidate_t* candidate) {
  accrt_layout_tensor_t tensor = ACCRT_LAYOUT_TENSOR_INIT;
  const facts_t* facts = &candidate->weight.facts;
  tensor.layout = facts->encoding;
  tensor.dtype = facts->dtype;
  tensor.group_elements = facts->group_elements;
  tensor.rank = facts->rank;
  tensor.shape = candidate->weight.shape;
  for (uint32_t i = 0; i < facts->component_count; ++i)
    tensor.components[candidate->weight.parts[i].role].dtype = candidate->weight.parts[i].dtype;
  for (uint32_t i = 0; i < facts->component_count && !candidate->why; ++i) {
    accx_weight_part_t* part = &candidate->weight.parts[i];
    uint64_t wanted = 0;
    if (accrt_layout_component_size(&tensor, part->role, &wanted) != ACCRT_OK ||
        (part->kind != ACCX_PART_TURNED && wanted != part->size_bytes))
      candidate->why = "its tensors have not the sizes of its layout";
    part->size_bytes = wanted;
  }
}

static void finish(candidate_t* candidate, accx_weight_t* out_weight) {
  join_t* join = candidate->join;
  facts_t* facts = &candidate->weight.facts;
  accrt_layout_info_t info = ACCRT_LAYOUT_INFO_INIT;
  facts->name = candidate->name;
  *out_weight = candidate->weight;
  out_weight->facts.size_bytes = 0;
  for (uint32_t i = 0; i < facts->component_count; ++i)
    out_weight->facts.size_bytes += out_weight->parts[i].size_bytes;
  if (accrt_layout_info(facts->encoding, &info) == ACCRT_OK)
    out_weight->facts.type_name = info.name;
  for (uint32_t i = 0; i < candidate->piece_count; ++i)
    join->used[candidate->pieces[i]] = 1;
}

/* Adds a tensor as a weight of its own. */
static void add_tensor(join_t* join, uint32_t index, bool apart) {
  accx_weight_t* weight = &join->list->weights[join->list->count++];
  weight->facts = join->facts[index];
  weight->apart = apart;
  for (uint32_t i = 0; i < weight->facts.component_count; ++i) {
    accrt_weights_component_t place = ACCRT_WEIGHTS_COMPONENT_INIT;
    const accrt_status_t status = accrt_weights_component(join->source, index, i, &place);
    if (status != ACCRT_OK && join->code == ACCX_OK)
      join->code = accx_fail_status(status, "%s", join->path);
    weight->parts[i] =
        (accx_weight_part_t){place.role, index, i, place.dtype, place.size_bytes, ACCX_PART_STORED};
  }
}

static void give_up(candidate_t* candidate) {
  join_t* join = candidate->join;
  if (!join->is_disabled && join->unjoined_count++ == 0)
    snprintf(join->first, sizeof join->first, "'%s': %s", accx_safe(candidate->name),
             candidate->why);
  for (uint32_t i = 0; i < candidate->piece_count; ++i) {
    join->used[candidate->pieces[i]] = 1;
    add_tensor(join, candidate->pieces[i], true);
  }
}

/* True when another tensor has the weight's name, or belongs to another weight of that name. */
static bool name_is_taken(const candidate_t* candidate) {
  for (uint32_t c = 0; c < ACCX_CONVENTION_COUNT; ++c) {
    const char* end = accx_convention_suffix(c, ACCRT_LAYOUT_ROLE_DATA);
    const uint32_t other = find(candidate->join, candidate->name, end);
    bool mine = other == NONE;
    for (uint32_t k = 0; k < candidate->piece_count; ++k)
      mine = mine || candidate->pieces[k] == other;
    if (!mine)
      return true;
  }
  return false;
}

static void join_all(join_t* join) {
  /* First the joined weights. The tensors that are left are weights by themselves. */
  for (uint32_t i = 0; i < join->count && join->code == ACCX_OK; ++i) {
    candidate_t candidate = {.join = join, .weight.facts = ACCRT_WEIGHTS_TENSOR_INIT};
    if (join->used[i] || join->facts[i].encoding != ACCRT_LAYOUT_PLAIN ||
        !try_conventions(&candidate, &join->facts[i]) || join->code)
      continue;
    if (!candidate.why && !join->is_disabled)
      check_sizes(&candidate);
    if (!candidate.why && name_is_taken(&candidate))
      candidate.why = "another tensor has its name, or would be joined to one of that name";
    if (candidate.why || join->is_disabled)
      give_up(&candidate);
    else
      finish(&candidate, &join->list->weights[join->list->count++]);
  }
}

static int read_gptq(const accx_args_t* args, uint32_t* out_layout) {
  const char* version = accx_args_value(args, "gptq");
  *out_layout = 0;
  if (!version)
    return ACCX_OK;
  *out_layout = strcmp(version, "v1") == 0   ? ACCRT_LAYOUT_GPTQ_V1
                : strcmp(version, "v2") == 0 ? ACCRT_LAYOUT_GPTQ_V2
                                             : 0;
  return *out_layout ? ACCX_OK : accx_fail(ACCX_USAGE, "--gptq is v1 or v2, not '%s'", version);
}

/* For qsort. The library is asked only for existing names, because it searches similar ones
 * otherwise. */
static join_t* sorting;
static int by_name(const void* a, const void* b) {
  return strcmp(sorting->facts[*(const uint32_t*)a].name, sorting->facts[*(const uint32_t*)b].name);
}
static int by_place(const void* a, const void* b) {
  const accx_weight_t *left = a, *right = b;
  return (left->parts[0].tensor > right->parts[0].tensor) -
         (left->parts[0].tensor < right->parts[0].tensor);
}

static accrt_status_t read_tensors(join_t* join) {
  accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
  accrt_status_t status = accrt_weights_info(join->source, &info);
  join->count = info.tensor_count;
  join->facts = accx_alloc((size_t)join->count + 1, sizeof *join->facts);
  join->by_name = accx_alloc((size_t)join->count + 1, sizeof *join->by_name);
  join->used = accx_alloc((size_t)join->count + 1, 1);
  join->list->weights = accx_alloc((size_t)join->count + 1, sizeof *join->list->weights);
  for (uint32_t i = 0; i < join->count && status == ACCRT_OK; ++i) {
    join->facts[i] = (facts_t)ACCRT_WEIGHTS_TENSOR_INIT;
    join->by_name[i] = i;
    status = accrt_weights_tensor(join->source, i, &join->facts[i]);
  }
  sorting = join;
  if (status == ACCRT_OK)
    qsort(join->by_name, join->count, sizeof *join->by_name, by_name);
  return status;
}

int accx_weight_list_make(const accx_args_t* args, const char* path, accrt_weights_t* source,
                          accx_weight_list_t* out_list) {
  join_t join = {.path = path, .source = source, .list = out_list};
  memset(out_list, 0, sizeof *out_list);
  out_list->source = source;
  join.is_disabled = accx_args_has(args, "apart");
  join.code = read_gptq(args, &join.gptq);
  if (join.code)
    return join.code;
  const accrt_status_t status = read_tensors(&join);
  if (status != ACCRT_OK)
    join.code = accx_fail_status(status, "%s", path);
  join_all(&join);
  for (uint32_t i = 0; i < join.count && !join.code; ++i) {
    if (!join.used[i])
      add_tensor(&join, i, false);
  }
  qsort(out_list->weights, out_list->count, sizeof *out_list->weights, by_place);
  for (uint32_t i = 0; i < out_list->count; ++i) {
    if (!out_list->weights[i].facts.shape)
      out_list->weights[i].facts.shape = out_list->weights[i].shape;
  }
  if (!join.code && join.unjoined_count)
    accx_note("%s: %llu quantized weights stay as the tensors that they are, for instance %s", path,
              (unsigned long long)join.unjoined_count, join.first);
  free(join.bytes);
  free(join.facts);
  free(join.by_name);
  free(join.used);
  return join.code;
}

void accx_weight_list_free(accx_weight_list_t* list) {
  free(list->weights);
  free(list->made);
  memset(list, 0, sizeof *list);
}

/* ---- Bytes ---- */

/* compressed-tensors packs zero points of eight rows into a word. Layouts have them by row, two
 * groups per byte. */
static void transpose(const accx_weight_t* weight, const unsigned char* words, unsigned char* out) {
  const facts_t* facts = &weight->facts;
  const uint64_t n = (uint64_t)facts->shape[facts->rank - 2];
  const uint64_t groups = (uint64_t)facts->shape[facts->rank - 1] / facts->group_elements;
  uint64_t rows = n;
  for (uint32_t i = 0; i + 2 < facts->rank; ++i)
    rows *= (uint64_t)facts->shape[i];
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t batch = row / n, in_batch = row % n;
    for (uint64_t g = 0; g < groups; ++g) {
      uint32_t word;
      memcpy(&word, words + ((batch * ((n + 7) / 8) + in_batch / 8) * groups + g) * sizeof word,
             sizeof word);
      out[row * ((groups + 1) / 2) + g / 2] |=
          (unsigned char)((word >> 4 * (in_batch % 8) & 15) << 4 * (g % 2));
    }
  }
}

/* Computes a component that is not stored as it is, unless it was the last one. */
static accrt_status_t make_part(accx_weight_list_t* list, const accx_weight_t* weight,
                                const accx_weight_part_t* part) {
  unsigned char* data;
  if (list->made_of == part)
    return ACCRT_OK;
  const accrt_status_t status = read_whole(list->source, part->tensor, part->component, &data);
  if (status != ACCRT_OK) {
    free(data);
    return status;
  }
  free(list->made);
  list->made = accx_alloc(part->size_bytes + 1, 1);
  list->made_of = part;
  memset(list->made, 0, part->size_bytes);
  if (part->kind == ACCX_PART_TURNED) {
    transpose(weight, data, list->made);
  } else {
    float scale;
    memcpy(&scale, data, sizeof scale);
    scale = 1 / scale;
    memcpy(list->made, &scale, sizeof scale);
  }
  free(data);
  return ACCRT_OK;
}

accrt_status_t accx_weight_read(accx_weight_list_t* list, const accx_weight_t* weight,
                                uint32_t index, uint64_t offset_bytes, void* target,
                                uint64_t size_bytes) {
  const accx_weight_part_t* part = &weight->parts[index];
  if (part->kind == ACCX_PART_STORED)
    return accrt_weights_read(list->source, part->tensor, part->component, offset_bytes, target,
                              size_bytes);
  const accrt_status_t status = make_part(list, weight, part);
  if (status == ACCRT_OK)
    memcpy(target, (const char*)list->made + offset_bytes, size_bytes);
  return status;
}
