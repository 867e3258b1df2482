/* tools/accx/pack.c - `accx pack`: weights from safetensors, GGUF, .npz and .accx files to weight
 * packs. At most a piece of one tensor is in memory (of .npz files: one array). Bytes are converted
 * and written when the writer asks for them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "join.h"
#include "json_out.h"
#include "npy.h"
#include "open.h"
#include "size_text.h"
#include "term.h"
#include "whole.h"

#include "accrt/write.h"
#include "accrt/weights.h"
#include "standard.h"

#define PIECE_BYTES (1u << 20)
#define MAX_COMPONENTS 5u

typedef struct input {
  const char* path;
  accrt_weights_t* weights;
  accx_weight_list_t list; /* of a file of weights; otherwise: */
  accx_npz_t* npz;
} input_t;

typedef struct pack pack_t;
typedef struct item item_t;

/* One component, as a source of bytes for the writer. */
typedef struct part {
  item_t* item;
  uint32_t component;
  uint32_t role;
  accrt_dtype_t dtype;
  uint64_t size_bytes; /* in the pack */
} part_t;

struct item {
  pack_t* pack;
  input_t* input;
  const char* name;            /* name in the pack */
  const char* source;          /* name in the input */
  const accx_weight_t* weight; /* entry of the input's list */
  accrt_dtype_t from; /* type of the input's elements; differs from `dtype` if they are converted */
  accrt_dtype_t dtype;
  uint32_t encoding;
  uint32_t group_elements;
  uint32_t rank;
  int64_t shape[ACCRT_MAX_RANK];
  part_t parts[MAX_COMPONENTS];
  uint32_t part_count;
  uint64_t size_bytes;
};

struct pack {
  input_t* inputs;
  size_t input_count;
  item_t* items;
  size_t item_count;
  size_t item_capacity;
  accx_array_t array; /* the .npz entry that is being written */
  const item_t* array_of;
  unsigned char* piece;
  uint64_t done_bytes;
  uint64_t total_bytes;
  uint64_t lost;
  uint64_t opaque;
  int code; /* of an input whose read failed and was reported */
};

/* ---- What goes in ---- */

/* Applies --rename OLD=NEW: a whole name, or its beginning if both end with `*`. The first match
 * counts. */
static const char* renamed(const accx_args_t* args, const char* name) {
  size_t cursor = 0;
  for (const char* rule; (rule = accx_args_next(args, "rename", &cursor));) {
    const char* equals = strchr(rule, '=');
    const size_t old = (size_t)(equals - rule);
    if (old > 0 && rule[old - 1] == '*') {
      const size_t kept = strlen(equals + 1) - 1;
      if (strncmp(name, rule, old - 1) == 0)
        return accx_text("%.*s%s", (int)kept, equals + 1, name + old - 1);
    } else if (strlen(name) == old && strncmp(name, rule, old) == 0) {
      return equals + 1;
    }
  }
  return name;
}

static int check_renames(const accx_args_t* args) {
  size_t cursor = 0;
  for (const char* rule; (rule = accx_args_next(args, "rename", &cursor));) {
    const char* equals = strchr(rule, '=');
    const size_t length = strlen(rule);
    if (!equals || equals == rule || equals[1] == '\0' ||
        (equals[-1] == '*') != (rule[length - 1] == '*'))
      return accx_fail(ACCX_USAGE, "--rename is 'OLD=NEW', or 'OLD*=NEW*' for beginnings: not '%s'",
                       rule);
  }
  return ACCX_OK;
}

static item_t* add_item(pack_t* pack) {
  if (pack->item_count == pack->item_capacity) {
    const size_t capacity = pack->item_capacity ? 2 * pack->item_capacity : 256;
    item_t* grown = accx_alloc(capacity, sizeof *grown);
    if (pack->item_count)
      memcpy(grown, pack->items, pack->item_count * sizeof *grown);
    free(pack->items);
    pack->items = grown;
    pack->item_capacity = capacity;
  }
  item_t* item = &pack->items[pack->item_count++];
  memset(item, 0, sizeof *item);
  item->pack = pack;
  return item;
}

static bool is_chosen(const accx_args_t* args, const char* name) {
  const bool excluded = accx_args_match(args, "exclude", name);
  return !excluded && (!accx_args_has(args, "only") || accx_args_match(args, "only", name));
}

static void set_type(item_t* item, accrt_dtype_t wanted) {
  /* The bytes of a quantized weight do not depend on the type of its values. */
  if (item->encoding > ACCRT_LAYOUT_OPAQUE && wanted && wanted != ACCRT_DTYPE_F64)
    item->from = wanted;
  item->dtype = item->from;
  if (item->encoding == ACCRT_LAYOUT_PLAIN && wanted && accx_converts(item->from))
    item->dtype = wanted;
  const uint64_t from_bits = accrt_dtype_bits(item->from);
  if (item->dtype != item->from) {
    item->parts[0].size_bytes =
        item->parts[0].size_bytes / (from_bits / 8) * (accrt_dtype_bits(item->dtype) / 8);
    item->parts[0].dtype = item->dtype;
  }
  for (uint32_t i = 0; i < item->part_count; ++i)
    item->size_bytes += item->parts[i].size_bytes;
}

static void add_weight(const accx_args_t* args, pack_t* pack, input_t* input,
                       const accx_weight_t* weight, accrt_dtype_t wanted) {
  const accrt_weights_tensor_t* facts = &weight->facts;
  if (!is_chosen(args, facts->name))
    return;
  item_t* item = add_item(pack);
  item->input = input;
  item->source = facts->name;
  item->name = renamed(args, facts->name);
  item->weight = weight;
  item->encoding = facts->encoding;
  item->group_elements = facts->group_elements;
  item->rank = facts->rank;
  item->part_count = facts->component_count;
  /* Quantized blocks do not name the type of their values. Bytes without a layout are bytes. */
  item->from = facts->dtype                             ? facts->dtype
               : facts->encoding == ACCRT_LAYOUT_OPAQUE ? ACCRT_DTYPE_U8
                                                        : ACCRT_DTYPE_F32;
  pack->opaque += facts->encoding == ACCRT_LAYOUT_OPAQUE;
  if (facts->rank)
    memcpy(item->shape, facts->shape, facts->rank * sizeof *item->shape);
  for (uint32_t i = 0; i < item->part_count; ++i) {
    const accx_weight_part_t* part = &weight->parts[i];
    item->parts[i] = (part_t){NULL, i, part->role, part->dtype, part->size_bytes};
  }
  set_type(item, wanted);
}

static int add_array(const accx_args_t* args, pack_t* pack, input_t* input, const char* name,
                     accrt_dtype_t wanted) {
  accx_array_t array;
  if (!is_chosen(args, name))
    return ACCX_OK;
  const int code = accx_npz_read(input->npz, name, &array);
  if (code)
    return code;
  item_t* item = add_item(pack);
  item->input = input;
  item->source = name;
  item->name = renamed(args, name);
  item->from = array.dtype;
  item->rank = array.rank;
  memcpy(item->shape, array.shape, sizeof item->shape);
  item->part_count = 1;
  item->parts[0] = (part_t){NULL, 0, ACCRT_LAYOUT_ROLE_DATA, array.dtype, array.size_bytes};
  set_type(item, wanted);
  accx_array_free(&array);
  return ACCX_OK;
}

static bool ends_with(const char* text, const char* end) {
  const size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static int open_input(const accx_args_t* args, accrt_instance_t* instance, pack_t* pack,
                      input_t* input, accrt_dtype_t wanted) {
  int code = ACCX_OK;
  if (ends_with(input->path, ".npz") || accx_standard_is_zip(input->path)) {
    code = accx_npz_open(input->path, &input->npz);
    for (size_t i = 0; !code && i < accx_npz_count(input->npz); ++i) {
      const char* name = accx_npz_name(input->npz, i);
      if (name)
        code = add_array(args, pack, input, name, wanted);
    }
    return code;
  }
  const accrt_status_t status = accx_open_weights(instance, input->path, &input->weights);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", input->path);
  code = accx_check_output(args->operands[args->operand_count - 1], input->weights);
  if (code)
    return code;
  code = accx_weight_list_make(args, input->path, input->weights, &input->list);
  for (uint32_t i = 0; !code && i < input->list.count; ++i)
    add_weight(args, pack, input, &input->list.weights[i], wanted);
  return code;
}

static int by_name(const void* a, const void* b) {
  return strcmp(((const item_t*)a)->name, ((const item_t*)b)->name);
}

static int order_items(pack_t* pack) {
  if (pack->item_count)
    qsort(pack->items, pack->item_count, sizeof *pack->items, by_name);
  for (size_t i = 0; i < pack->item_count; ++i) {
    item_t* item = &pack->items[i];
    if (i > 0 && strcmp(item[-1].name, item->name) == 0)
      return accx_fail(ACCX_FAILED, "'%s' is in %s and in %s", item->name, item[-1].input->path,
                       item->input->path);
    for (uint32_t k = 0; k < item->part_count; ++k)
      item->parts[k].item = item;
    pack->total_bytes += item->size_bytes;
  }
  return ACCX_OK;
}

/* ---- Bytes ---- */

/* Reads elements in pieces, as they are in the input. */
static int32_t read_input(const part_t* part, uint64_t offset, void* target, uint64_t size_bytes) {
  const item_t* item = part->item;
  pack_t* pack = item->pack;
  if (item->input->weights) {
    const accrt_status_t status = accx_weight_read(&item->input->list, item->weight,
                                                   part->component, offset, target, size_bytes);
    if (status == ACCRT_OK)
      return 0;
    accx_progress_clear();
    pack->code = accx_fail_status(status, "%s", accx_safe(item->source));
    return EIO;
  }
  if (pack->array_of != item) {
    accx_array_free(&pack->array);
    pack->array_of = NULL;
    pack->code = accx_npz_read(item->input->npz, item->source, &pack->array);
    if (pack->code)
      return EIO;
    pack->array_of = item;
  }
  memcpy(target, (const char*)pack->array.data + offset, size_bytes);
  return 0;
}

static int32_t convert_input(const part_t* part, uint64_t offset, unsigned char* target,
                             uint64_t size_bytes) {
  const item_t* item = part->item;
  pack_t* pack = item->pack;
  const uint64_t to_bytes = accrt_dtype_bits(item->dtype) / 8;
  const uint64_t from_bytes = accrt_dtype_bits(item->from) / 8;
  unsigned char edge[8];
  while (size_bytes > 0) {
    /* The writer may ask for a part of an element. Then convert the whole element and copy the
     * part. */
    const uint64_t first = offset / to_bytes, skip = offset % to_bytes;
    const bool whole = skip == 0 && size_bytes >= to_bytes;
    uint64_t count = whole ? size_bytes / to_bytes : 1;
    if (count > PIECE_BYTES / from_bytes)
      count = PIECE_BYTES / from_bytes;
    const int32_t error = read_input(part, first * from_bytes, pack->piece, count * from_bytes);
    if (error)
      return error;
    pack->lost += accx_convert(item->dtype, whole ? target : edge, item->from, pack->piece, count);
    uint64_t given = count * to_bytes;
    if (!whole) {
      given = to_bytes - skip < size_bytes ? to_bytes - skip : size_bytes;
      memcpy(target, edge + skip, given);
    }
    target += given;
    offset += given;
    size_bytes -= given;
  }
  return 0;
}

static int32_t pull(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  const part_t* part = self;
  pack_t* pack = part->item->pack;
  pack->done_bytes += size_bytes;
  accx_progress("%s of %s: %s", accx_bytes(pack->done_bytes).text,
                accx_bytes(pack->total_bytes).text, accx_safe(part->item->name));
  return part->item->dtype == part->item->from ? read_input(part, offset, target, size_bytes)
                                               : convert_input(part, offset, target, size_bytes);
}

/* ---- What comes out ---- */

static accrt_status_t add_constant(accrt_bundle_writer_t* writer, item_t* item) {
  accrt_writer_component_t components[MAX_COMPONENTS];
  memset(components, 0, sizeof components);
  for (uint32_t i = 0; i < item->part_count; ++i) {
    components[i].role = item->parts[i].role;
    components[i].dtype = item->parts[i].dtype;
    components[i].bytes.kind = ACCRT_WRITER_BYTES_READER;
    components[i].bytes.size_bytes = item->parts[i].size_bytes;
    components[i].bytes.read = pull;
    components[i].bytes.self = &item->parts[i];
  }
  accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
  constant.source = ACCRT_CONSTANT_INLINE;
  constant.name = item->name;
  constant.dtype = item->dtype;
  constant.encoding = item->encoding;
  constant.group_elements = item->group_elements;
  constant.rank = item->rank;
  memcpy(constant.shape, item->shape, sizeof item->shape);
  constant.components = components;
  constant.component_count = item->part_count;
  accrt_writer_id_t id;
  return accrt_bundle_writer_add_constant(writer, &constant, &id);
}

/* Copies texts and numbers of the first input; lists are left out. */
static accrt_status_t add_metadata(accrt_bundle_writer_t* writer, const pack_t* pack) {
  accrt_weights_t* weights = pack->inputs[0].weights;
  accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
  accrt_status_t status = weights ? accrt_weights_info(weights, &info) : ACCRT_OK;
  for (uint32_t i = 0; i < info.metadata_count && status == ACCRT_OK; ++i) {
    accrt_weights_metadata_t value = ACCRT_WEIGHTS_METADATA_INIT;
    status = accrt_weights_metadata(weights, i, &value);
    if (status != ACCRT_OK || value.type == ACCRT_METADATA_ARRAY || value.key[0] == '\0' ||
        strlen(value.key) > 1023 || value.size_bytes > 65535)
      continue;
    const char* text = value.text;
    if (value.type == ACCRT_METADATA_F32 || value.type == ACCRT_METADATA_F64)
      text = accx_text("%.*g", value.type == ACCRT_METADATA_F32 ? 9 : 17, value.real);
    else if (value.type == ACCRT_METADATA_U64)
      text = accx_text("%llu", (unsigned long long)value.integer);
    else if (!text)
      text = accx_text("%lld", (long long)value.integer);
    status = accrt_bundle_writer_add_metadata(writer, value.key, text);
  }
  return status;
}

static int write_pack(pack_t* pack, size_t first, size_t end, const char* path) {
  accrt_bundle_writer_t* writer = NULL;
  accrt_status_t status = accrt_bundle_writer_create(NULL, &writer);
  if (status == ACCRT_OK)
    status = add_metadata(writer, pack);
  const char* what = path;
  for (size_t i = first; i < end && status == ACCRT_OK; ++i) {
    what = pack->items[i].name;
    status = add_constant(writer, &pack->items[i]);
  }
  const int code = status != ACCRT_OK ? accx_fail_status(status, "%s", accx_safe(what))
                                      : accx_whole_write(writer, path, &pack->code);
  accrt_bundle_writer_release(writer);
  return code;
}

/* The end of a run of tensors from `first` on with at most `most` bytes, but at least one
 * tensor. */
static size_t end_of_part(const pack_t* pack, size_t first, uint64_t most) {
  uint64_t bytes = pack->items[first].size_bytes;
  size_t end = first + 1;
  while (end < pack->item_count && pack->items[end].size_bytes <= most &&
         bytes <= most - pack->items[end].size_bytes)
    bytes += pack->items[end++].size_bytes;
  return end;
}

static const char* part_path(const char* path, size_t number, size_t count) {
  const size_t stem = strlen(path) - (ends_with(path, ".accx") ? 5 : 0);
  return count == 1 ? path
                    : accx_text("%.*s-%05zu-of-%05zu.accx", (int)stem, path, number + 1, count);
}

static void report(const accx_args_t* args, const pack_t* pack, const char* path, size_t count) {
  if (accx_args_has(args, "json")) {
    struct json_object* root = accx_json_object(NULL, NULL);
    accx_json_u64(root, "tensors", pack->item_count);
    accx_json_u64(root, "data_size_bytes", pack->total_bytes);
    struct json_object* files = accx_json_array(root, "files");
    for (size_t i = 0; i < count; ++i)
      accx_json_text(accx_json_append(files), "file", part_path(path, i, count));
    accx_json_print(root);
    return;
  }
  fprintf(accx_out, "%zu tensors, %s, in %s%s\n", pack->item_count,
          accx_bytes(pack->total_bytes).text, accx_safe(part_path(path, 0, count)),
          count > 1 ? accx_text(" to %05zu", count) : "");
}

static int write_all(const accx_args_t* args, pack_t* pack, const char* path, uint64_t most) {
  size_t count = 0;
  for (size_t i = 0; i < pack->item_count; i = end_of_part(pack, i, most))
    ++count;
  int code = ACCX_OK;
  size_t first = 0;
  for (size_t i = 0; i < count && !code; ++i) {
    const size_t end = end_of_part(pack, first, most);
    code = write_pack(pack, first, end, part_path(path, i, count));
    first = end;
  }
  code = accx_whole_finish(code);
  if (code)
    return code;
  if (pack->lost)
    accx_note("%llu finite values are infinite as %s", (unsigned long long)pack->lost,
              accx_args_value(args, "dtype"));
  if (pack->opaque)
    accx_note("%llu tensors have types that no layout describes: they are packed as opaque bytes",
              (unsigned long long)pack->opaque);
  report(args, pack, path, count);
  return ACCX_OK;
}

/* ---- The verb ---- */

static int read_options(const accx_args_t* args, accrt_dtype_t* out_dtype, uint64_t* out_most) {
  static const accrt_dtype_t dtypes[] = {ACCRT_DTYPE_F16, ACCRT_DTYPE_BF16, ACCRT_DTYPE_F32,
                                         ACCRT_DTYPE_F64};
  const char* dtype = accx_args_value(args, "dtype");
  *out_dtype = 0;
  for (size_t i = 0; dtype && i < 4; ++i) {
    if (strcmp(accrt_dtype_name(dtypes[i]), dtype) == 0)
      *out_dtype = dtypes[i];
  }
  if (dtype && !*out_dtype)
    return accx_fail(ACCX_USAGE, "--dtype is f16, bf16, f32 or f64, not '%s'", dtype);
  *out_most = UINT64_MAX;
  const char* split = accx_args_value(args, "split");
  if (split) {
    char* end;
    errno = 0;
    const unsigned long long number = strtoull(split, &end, 10);
    const char* unit = strchr("KMGT", *end);
    const unsigned shift = *end ? (unit ? 10 * (unsigned)(unit - "KMGT" + 1) : 64) : 0;
    if (split[0] < '0' || split[0] > '9' || errno || number == 0 || shift == 64 ||
        (*end && end[1]) || number > UINT64_MAX >> shift)
      return accx_fail(ACCX_USAGE, "--split is a size such as 2G or 500M, not '%s'", split);
    *out_most = (uint64_t)number << shift;
  }
  return check_renames(args);
}

/* The filter that left nothing is named: it may be a typo. */
static int nothing_to_pack(const accx_args_t* args) {
  const char* unused = accx_args_first_unused(args, "only");
  if (unused)
    return accx_fail(ACCX_FAILED, "there is nothing to pack: --only '%s' fits no name",
                     accx_safe(unused));
  return accx_fail(ACCX_FAILED, "there is nothing to pack");
}

static int run_pack(const accx_args_t* args) {
  pack_t pack;
  memset(&pack, 0, sizeof pack);
  accrt_instance_t* instance = NULL;
  accrt_dtype_t dtype = 0;
  uint64_t most = UINT64_MAX;
  const size_t count = args->operand_count - 1;
  pack.inputs = accx_alloc(count, sizeof *pack.inputs);
  pack.piece = accx_alloc(1, PIECE_BYTES);
  pack.input_count = count;
  int code = read_options(args, &dtype, &most);
  if (!code)
    code = accx_open_instance(args, &instance);
  for (size_t i = 0; i < count && !code; ++i) {
    pack.inputs[i].path = args->operands[i];
    code = open_input(args, instance, &pack, &pack.inputs[i], dtype);
  }
  if (!code)
    code = order_items(&pack);
  if (!code && pack.item_count == 0)
    code = nothing_to_pack(args);
  if (!code)
    code = write_all(args, &pack, args->operands[count], most);
  if (!code) {
    accx_args_note_unused(args, "only");
    accx_args_note_unused(args, "exclude");
  }
  for (size_t i = 0; i < count; ++i) {
    accx_weight_list_free(&pack.inputs[i].list);
    accrt_weights_release(pack.inputs[i].weights);
    accx_npz_close(pack.inputs[i].npz);
  }
  accx_array_free(&pack.array);
  free(pack.items);
  free(pack.piece);
  free(pack.inputs);
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t options[] = {
    {"dtype", "f16|bf16|f32|f64", false,
     "convert plain floats to f16, bf16, f32 or f64 (nearest, ties to even); what quantized "
     "weights "
     "are read as"},
    {"only", "GLOB", true, "pack only tensors whose name fits"},
    {"exclude", "GLOB", true, "leave out tensors whose name fits"},
    {"rename", "OLD=NEW", true, "give a tensor another name; 'OLD*=NEW*' for beginnings"},
    {"split", "SIZE", false,
     "write several files, each with at most SIZE bytes of weights: 2G, 500M"},
    ACCX_JOIN_OPTIONS,
    {"json", NULL, false, "print what was written as JSON"},
    {0}};

const accx_verb_t accx_verb_pack = {
    "pack",
    "IN... OUT.accx",
    2,
    SIZE_MAX,
    "puts weights of safetensors, GGUF, .npz and .accx files into weight packs",
    "Inputs are safetensors files, their indices or folders, GGUF files (of a split set any part), "
    ".npz\n"
    "archives and .accx files; quantized tensors stay as they are. Codes, scales, zero points and "
    "group\n"
    "indices that checkpoints keep apart become one weight of their layout. With --split the files "
    "are\n"
    "OUT-00001-of-0000N.accx. In a pack every tensor is aligned, and checked by digests when it is "
    "used.\n"
    "\n"
    "Examples:\n"
    "  accx pack model.safetensors weights.accx --dtype f16\n"
    "  accx pack model-00001-of-00003.gguf weights.accx --exclude 'blk.*.attn_q.*'\n",
    options,
    run_pack,
    ACCX_READS_THEN_WRITES,
    NULL};
