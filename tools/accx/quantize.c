/* tools/accx/quantize.c - `accx quantize`: writes the same weights in another layout, and reports
 * the error. Tensors are quantized one at a time, while the file is written. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json_out.h"
#include "names.h"
#include "npy.h"
#include "open.h"
#include "quantize.h"
#include "term.h"
#include "whole.h"
#include "standard.h"

/* The usual value of checkpoints; also the default of the compiler and of Python. */
#define DEFAULT_GROUP 128u
#define NOT_CHOSEN "not chosen"

/* ---- What is quantized ---- */

static int find_dtype(const accx_args_t* args, const char* option, uint32_t allowed,
                      accrt_dtype_t* out_dtype) {
  const char* wanted = accx_args_value(args, option);
  *out_dtype = (allowed >> ACCRT_DTYPE_F32 & 1) ? ACCRT_DTYPE_F32
                                                : (accrt_dtype_t)__builtin_ctz(allowed | 1u << 31);
  if (!wanted)
    return ACCX_OK;
  for (accrt_dtype_t dtype = 1; accrt_dtype_bits(dtype) != 0; ++dtype) {
    if ((allowed >> dtype & 1) && strcmp(accrt_dtype_name(dtype), wanted) == 0) {
      *out_dtype = dtype;
      return ACCX_OK;
    }
  }
  return accx_fail(ACCX_USAGE, "--%s is '%s', which this layout does not have", option, wanted);
}

static bool has_numbers(const accrt_weights_tensor_t* tensor) {
  if (tensor->encoding != ACCRT_LAYOUT_PLAIN)
    return tensor->encoding != ACCRT_LAYOUT_OPAQUE;
  const accrt_dtype_t dtype = tensor->dtype;
  return dtype == ACCRT_DTYPE_F32 || dtype == ACCRT_DTYPE_F16 || dtype == ACCRT_DTYPE_BF16 ||
         dtype == ACCRT_DTYPE_F8E4M3FN || dtype == ACCRT_DTYPE_F8E5M2;
}

/* Sets the sizes of the target's components. False when the weight does not fit the layout. */
static bool size_components(accrt_layout_tensor_t* target) {
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    if (accrt_layout_component_size(target, role, &target->components[role].size_bytes) != ACCRT_OK)
      return false;
  }
  return true;
}

static void choose(const accx_args_t* args, const accrt_layout_tensor_t* like,
                   accx_quantize_item_t* item) {
  const accrt_weights_tensor_t* from = &item->from;
  const bool keep = accx_args_match(args, "keep", from->name);
  if (accx_args_has(args, "only") && !accx_args_match(args, "only", from->name))
    item->why = NOT_CHOSEN;
  else if (keep)
    item->why = "kept";
  else if (item->weight->apart)
    item->why = "a piece of a weight";
  else if (from->rank < 2)
    item->why = "a vector";
  else if (!has_numbers(from))
    item->why = "no numbers that can be quantized";
  if (item->why)
    return;
  item->target = *like;
  item->target.rank = from->rank;
  item->target.shape = from->shape;
  item->target.dtype = ACCRT_DTYPE_F32;
  if (from->dtype == ACCRT_DTYPE_F16 || from->dtype == ACCRT_DTYPE_BF16)
    item->target.dtype = from->dtype;
  item->chosen = size_components(&item->target);
  if (!item->chosen)
    item->why = accx_last_message();
}

static int read_layout(const accx_args_t* args, accrt_layout_tensor_t* out_like) {
  *out_like = (accrt_layout_tensor_t)ACCRT_LAYOUT_TENSOR_INIT;
  const char* name = accx_args_value(args, "layout");
  if (!name)
    return accx_fail(ACCX_USAGE, "--layout is needed, for instance --layout q4_k");
  accrt_status_t status = accrt_layout_find(name, &out_like->layout);
  accrt_layout_info_t info = ACCRT_LAYOUT_INFO_INIT;
  if (status != ACCRT_OK || accrt_layout_info(out_like->layout, &info) != ACCRT_OK)
    return accx_fail(ACCX_USAGE, "--layout: %s", accx_last_message());
  if (!(info.flags & ACCRT_LAYOUT_FLAG_WRITABLE) || out_like->layout == ACCRT_LAYOUT_PLAIN)
    return accx_fail(ACCX_USAGE, "--layout is '%s', which is read and not made", name);
  int64_t group = 0;
  const bool free_group = info.flags & ACCRT_LAYOUT_FLAG_FREE_GROUP;
  int code = accx_args_integer(args, "group", 8, 1 << 24, &group);
  if (!code && !free_group && group != 0)
    code = accx_fail(ACCX_USAGE, "--group: layout %s has no group size of its own", name);
  if (!code && group % 8 != 0)
    code = accx_fail(ACCX_USAGE, "--group is %" PRId64 "; it must be a multiple of 8", group);
  out_like->group_elements = free_group && group == 0 ? DEFAULT_GROUP : (uint32_t)group;
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT && !code; ++role) {
    static const char* const options[] = {"data", "scales"};
    accrt_dtype_t dtype = (accrt_dtype_t)__builtin_ctz(info.dtypes[role] | 1u << 31);
    if (role < 2 && info.dtypes[role])
      code = find_dtype(args, options[role], info.dtypes[role], &dtype);
    if (info.required_roles >> role & 1)
      out_like->components[role].dtype = dtype;
  }
  return code;
}

/* ---- Importance ---- */

static int check_importance(accx_quantize_item_t* item, uint64_t count, float* values,
                            const char* path) {
  const int64_t k = item->from.shape[item->from.rank - 1];
  item->importance = values;
  if (count == (uint64_t)k)
    return ACCX_OK;
  return accx_fail(ACCX_FAILED, "%s: %s has %llu values, the weight has %lld inputs", path,
                   accx_safe(item->from.name), (unsigned long long)count, (long long)k);
}

static int importance_from_npz(accx_quantize_job_t* job, const char* path) {
  accx_npz_t* npz = NULL;
  int code = accx_npz_open(path, &npz);
  for (size_t i = 0; !code && i < accx_npz_count(npz); ++i) {
    const char* name = accx_npz_name(npz, i);
    for (uint32_t k = 0; name && !code && k < job->count; ++k) {
      accx_quantize_item_t* item = &job->items[k];
      if (!item->chosen || strcmp(item->from.name, name) != 0)
        continue;
      accx_array_t array = {0};
      code = accx_npz_read(npz, name, &array);
      if (code)
        break;
      float* values = accx_alloc(array.element_count, sizeof *values);
      for (uint64_t e = 0; e < array.element_count; ++e)
        values[e] = (float)accx_value_real(accx_array_value(&array, e));
      code = check_importance(item, array.element_count, values, path);
      accx_array_free(&array);
    }
  }
  accx_npz_close(npz);
  return code;
}

static int importance_of_item(accrt_weights_t* weights, accx_quantize_item_t* item,
                              const char* path) {
  uint32_t index;
  if (accrt_weights_find(weights, item->from.name, &index) != ACCRT_OK)
    return ACCX_OK;
  accrt_weights_tensor_t tensor = ACCRT_WEIGHTS_TENSOR_INIT;
  accrt_layout_tensor_t from = ACCRT_LAYOUT_TENSOR_INIT;
  accrt_weights_component_t place = ACCRT_WEIGHTS_COMPONENT_INIT;
  accrt_status_t status = accrt_weights_tensor(weights, index, &tensor);
  if (status == ACCRT_OK)
    status = accrt_weights_component(weights, index, 0, &place);
  if (status != ACCRT_OK)
    return accx_fail_status(status, "%s", path);
  unsigned char* data = accx_alloc(place.size_bytes + 1, 1);
  status = accrt_weights_read(weights, index, 0, 0, data, place.size_bytes);
  from.dtype = from.components[0].dtype = tensor.dtype;
  from.components[0].data = data;
  from.components[0].size_bytes = place.size_bytes;
  from.rank = 1;
  int64_t count = 1;
  for (uint32_t i = 0; i < tensor.rank; ++i)
    count *= tensor.shape[i];
  from.shape = &count;
  float* values = accx_alloc((size_t)count, sizeof *values);
  const int code = check_importance(item, (uint64_t)count, values, path);
  if (!code && status == ACCRT_OK)
    status = accrt_layout_dequantize(&from, 0, 1, values);
  free(data);
  return code || status == ACCRT_OK ? code : accx_fail_status(status, "%s", path);
}

static int read_importance(const accx_args_t* args, accrt_instance_t* instance,
                           accx_quantize_job_t* job) {
  const char* path = accx_args_value(args, "importance");
  if (!path)
    return ACCX_OK;
  const size_t length = strlen(path);
  int code = ACCX_OK;
  if ((length > 4 && strcmp(path + length - 4, ".npz") == 0) || accx_standard_is_zip(path)) {
    code = importance_from_npz(job, path);
  } else {
    accrt_weights_t* weights = NULL;
    const accrt_status_t status = accx_open_weights(instance, path, &weights);
    if (status != ACCRT_OK)
      return accx_fail_status(status, "%s", path);
    for (uint32_t i = 0; i < job->count && !code; ++i) {
      if (job->items[i].chosen)
        code = importance_of_item(weights, &job->items[i], path);
    }
    accrt_weights_release(weights);
  }
  uint32_t without = 0;
  for (uint32_t i = 0; i < job->count && !code; ++i)
    without += job->items[i].chosen && !job->items[i].importance;
  if (without)
    accx_note("%s has nothing for %u of the weights that are quantized", path, without);
  return code;
}

/* ---- Writing ---- */

/* The writer's source of bytes for one component. */
typedef struct pull {
  accx_quantize_job_t* job;
  accx_quantize_item_t* item;
  uint32_t which; /* the role for a quantized weight, the component for a copied one */
} pull_t;

static int32_t pull_bytes(void* self, uint64_t offset, void* target, uint64_t size_bytes) {
  pull_t* pull = self;
  accx_quantize_job_t* job = pull->job;
  if (pull->item->chosen) {
    if (job->current != pull->item)
      job->code = accx_quantize_tensor(job, pull->item);
    if (!job->code)
      memcpy(target, job->memory[pull->which] + offset, size_bytes);
  } else {
    const accrt_status_t status =
        accx_weight_read(&job->list, pull->item->weight, pull->which, offset, target, size_bytes);
    if (status != ACCRT_OK)
      job->code = accx_fail_status(status, "%s", accx_safe(pull->item->from.name));
  }
  job->done_bytes += size_bytes;
  accx_progress("%s (%d%%)", accx_safe(pull->item->from.name),
                (int)(100 * job->done_bytes / (job->total_bytes + 1)));
  return job->code ? EIO : 0;
}

static accrt_status_t add_item(accrt_bundle_writer_t* writer, accx_quantize_job_t* job,
                               accx_quantize_item_t* item, pull_t* pulls) {
  accrt_writer_component_t components[ACCRT_LAYOUT_ROLE_COUNT];
  accrt_writer_constant_t constant = ACCRT_WRITER_CONSTANT_INIT;
  memset(components, 0, sizeof components);
  constant.name = item->from.name;
  constant.rank = item->from.rank;
  memcpy(constant.shape, item->from.shape, item->from.rank * sizeof *constant.shape);
  constant.dtype = item->chosen ? item->target.dtype : item->from.dtype;
  constant.encoding = item->chosen ? item->target.layout : item->from.encoding;
  constant.group_elements = item->chosen ? item->target.group_elements : item->from.group_elements;
  if (constant.encoding == ACCRT_LAYOUT_OPAQUE)
    constant.dtype = ACCRT_DTYPE_U8;
  else if (constant.dtype == ACCRT_DTYPE_NONE)
    constant.dtype = ACCRT_DTYPE_F32;
  constant.components = components;
  const uint32_t most = item->chosen ? ACCRT_LAYOUT_ROLE_COUNT : item->from.component_count;
  for (uint32_t i = 0; i < most; ++i) {
    accrt_writer_component_t* component = &components[constant.component_count];
    accrt_weights_component_t from = ACCRT_WEIGHTS_COMPONENT_INIT;
    if (item->chosen) {
      if (item->target.components[i].dtype == ACCRT_DTYPE_NONE)
        continue;
      from.role = i;
      from.dtype = item->target.components[i].dtype;
      from.size_bytes = item->target.components[i].size_bytes;
    } else {
      from.role = item->weight->parts[i].role;
      from.dtype = item->weight->parts[i].dtype;
      from.size_bytes = item->weight->parts[i].size_bytes;
    }
    pulls[i] = (pull_t){job, item, i};
    component->role = from.role;
    component->dtype = constant.encoding == ACCRT_LAYOUT_OPAQUE ? ACCRT_DTYPE_U8 : from.dtype;
    component->bytes.size_bytes = from.size_bytes;
    component->bytes.kind = ACCRT_WRITER_BYTES_READER;
    component->bytes.read = pull_bytes;
    component->bytes.self = &pulls[i];
    job->total_bytes += from.size_bytes;
    ++constant.component_count;
  }
  accrt_writer_id_t id;
  return accrt_bundle_writer_add_constant(writer, &constant, &id);
}

/* Copies the source's metadata that is text. */
static accrt_status_t copy_metadata(accrt_bundle_writer_t* writer, accrt_weights_t* source,
                                    const char* layout) {
  accrt_weights_info_t info = ACCRT_WEIGHTS_INFO_INIT;
  accrt_status_t status = accrt_weights_info(source, &info);
  for (uint32_t i = 0; i < info.metadata_count && status == ACCRT_OK; ++i) {
    accrt_weights_metadata_t entry = ACCRT_WEIGHTS_METADATA_INIT;
    status = accrt_weights_metadata(source, i, &entry);
    if (status == ACCRT_OK && entry.type == ACCRT_METADATA_STRING && entry.text && entry.key[0] &&
        strlen(entry.text) <= 65535 && strcmp(entry.key, "accx.quantize") != 0)
      status = accrt_bundle_writer_add_metadata(writer, entry.key, entry.text);
  }
  if (status == ACCRT_OK)
    status = accrt_bundle_writer_add_metadata(writer, "accx.quantize", layout);
  return status;
}

static int write_pack(accx_quantize_job_t* job, const char* layout, const char* path) {
  accrt_bundle_writer_t* writer = NULL;
  pull_t* pulls = accx_alloc((size_t)job->count * ACCRT_LAYOUT_ROLE_COUNT, sizeof *pulls);
  accrt_status_t status = accrt_bundle_writer_create(NULL, &writer);
  if (status == ACCRT_OK)
    status = copy_metadata(writer, job->source, layout);
  for (uint32_t i = 0; i < job->count && status == ACCRT_OK; ++i)
    status = add_item(writer, job, &job->items[i], pulls + (size_t)i * ACCRT_LAYOUT_ROLE_COUNT);
  int code = status != ACCRT_OK ? accx_fail_status(status, "%s", path)
                                : accx_whole_write(writer, path, &job->code);
  code = accx_whole_finish(code);
  accrt_bundle_writer_release(writer);
  free(pulls);
  return code;
}

/* ---- The report ---- */

static double decibels(double signal, double noise) {
  return noise > 0 ? 10 * log10(signal / noise) : INFINITY;
}
static double relative_rms(const accrt_quantize_report_t* report) {
  return report->weight_squares > 0 ? sqrt(report->error_squares / report->weight_squares) : 0;
}
static double relative_max(const accrt_quantize_report_t* report) {
  return report->amax > 0 ? report->max_error / report->amax : 0;
}
static uint64_t target_bytes(const accx_quantize_item_t* item) {
  uint64_t sum = 0;
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role)
    sum += item->target.components[role].size_bytes;
  return item->chosen ? sum : item->from.size_bytes;
}

static void print_row(accx_table_t* table, const accx_quantize_item_t* item) {
  const accrt_quantize_report_t* report = &item->report;
  accx_table_cell(table, ACCX_NAME, "%s", accx_safe(item->from.name));
  accx_table_cell(table, ACCX_TYPE, "%s", item->from.type_name);
  if (!item->chosen) {
    accx_table_cell(table, ACCX_PLAIN, "%s", "-");
    for (int i = 0; i < 4; ++i)
      accx_table_cell(table, ACCX_PLAIN, "%s", "");
    accx_table_cell(table, ACCX_DIM, "%s", item->why);
    return;
  }
  const double bits =
      report->elements ? 8 * (double)target_bytes(item) / (double)report->elements : 0;
  accx_table_cell(table, ACCX_PLAIN, "%.2f", bits);
  accx_table_cell(table, ACCX_PLAIN, "%.5f", relative_rms(report));
  accx_table_cell(table, ACCX_PLAIN, "%.5f", relative_max(report));
  accx_table_cell(table, ACCX_PLAIN, "%.2f",
                  decibels(report->weight_squares, report->error_squares));
  accx_table_cell(table, ACCX_PLAIN, "%.2f",
                  decibels(report->weighted_squares, report->weighted_error_squares));
  accx_table_cell(table, ACCX_DIM, "%s", item->importance ? "weighted" : "");
}

static void print_human(const accx_quantize_job_t* job, const char* layout, const char* path) {
  accx_heading("%s -> %s", layout, path);
  static const char* const names[] = {"tensor", "from",    "bits",        "rms",
                                      "max",    "SQNR dB", "weighted dB", ""};
  accx_table_t* table = accx_table_create(8);
  for (size_t i = 0; i < 8; ++i)
    accx_table_cell(table, ACCX_DIM, "%s", names[i]);
  for (size_t i = 2; i < 7; ++i)
    accx_table_align_right(table, i);
  uint64_t before = 0, after = 0;
  for (uint32_t i = 0; i < job->count; ++i) {
    print_row(table, &job->items[i]);
    before += job->items[i].from.size_bytes;
    after += target_bytes(&job->items[i]);
  }
  accx_table_print(table);
  fprintf(accx_out,
          "%s -> %s; rms of errors over rms of weights, largest error over largest weight\n",
          accx_bytes(before).text, accx_bytes(after).text);
}

static void print_json(const accx_quantize_job_t* job, const char* layout) {
  struct json_object* root = accx_json_object(NULL, NULL);
  accx_json_text(root, "layout", layout);
  struct json_object* tensors = accx_json_array(root, "tensors");
  for (uint32_t i = 0; i < job->count; ++i) {
    const accx_quantize_item_t* item = &job->items[i];
    const accrt_quantize_report_t* report = &item->report;
    struct json_object* object = accx_json_append(tensors);
    accx_json_text(object, "name", item->from.name);
    accx_json_text(object, "from", item->from.type_name);
    accx_json_shape(object, "shape", item->from.rank, item->from.shape);
    accx_json_bool(object, "quantized", item->chosen);
    accx_json_text(object, "why", item->why);
    accx_json_u64(object, "size_bytes", target_bytes(item));
    if (!item->chosen)
      continue;
    const double count = report->elements ? (double)report->elements : 1;
    const struct {
      const char* key;
      double value;
    } numbers[] = {
        {"rms_error", sqrt(report->error_squares / count)},
        {"max_error", report->max_error},
        {"amax", report->amax},
        {"relative_rms", relative_rms(report)},
        {"relative_max", relative_max(report)},
        {"sqnr_db", decibels(report->weight_squares, report->error_squares)},
        {"weighted_sqnr_db", decibels(report->weighted_squares, report->weighted_error_squares)}};
    accx_json_u64(object, "elements", report->elements);
    accx_json_bool(object, "weighted", item->importance != NULL);
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; ++n)
      json_object_object_add(object, numbers[n].key, accx_json_real(numbers[n].value, 9));
  }
  accx_json_print(root);
}

/* ---- The verb ---- */

static int read_items(const accx_args_t* args, const accrt_layout_tensor_t* like,
                      accx_quantize_job_t* job) {
  int code = accx_check_output(args->operands[1], job->source);
  if (!code)
    code = accx_weight_list_make(args, args->operands[0], job->source, &job->list);
  if (code)
    return code;
  job->count = job->list.count;
  job->items = accx_alloc((size_t)job->count + 1, sizeof *job->items);
  uint32_t chosen = 0;
  for (uint32_t i = 0; i < job->count; ++i) {
    accx_quantize_item_t* item = &job->items[i];
    item->weight = &job->list.weights[i];
    item->from = item->weight->facts;
    choose(args, like, item);
    chosen += item->chosen;
  }
  if (chosen)
    return ACCX_OK;
  /* a weight that --only chose but the layout does not support */
  const accx_quantize_item_t* best = NULL;
  for (uint32_t i = 0; i < job->count && !best; ++i) {
    if (strcmp(job->items[i].why, NOT_CHOSEN) != 0)
      best = &job->items[i];
  }
  if (!best)
    return accx_fail(ACCX_FAILED, "%s has no weight%s", args->operands[0],
                     job->count ? " whose name fits --only" : "");
  return accx_fail(
      ACCX_FAILED, "%s has no weight that fits layout %s and was chosen (for instance '%s': %s)",
      args->operands[0], accx_args_value(args, "layout"), accx_safe(best->from.name), best->why);
}

static int run_quantize(const accx_args_t* args) {
  accrt_instance_t* instance = NULL;
  accx_quantize_job_t job = {0};
  accrt_layout_tensor_t like;
  const char* layout = accx_args_value(args, "layout");
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  int64_t threads = processors > 0 ? processors : 1;
  int code = read_layout(args, &like);
  if (!code)
    code = accx_args_integer(args, "threads", 1, 64, &threads);
  if (code)
    return code;
  job.threads = (uint32_t)(threads > 64 ? 64 : threads);
  const bool search = accx_args_has(args, "search") || accx_args_has(args, "importance");
  job.method = search ? ACCRT_QUANTIZE_SEARCH : ACCRT_QUANTIZE_NEAREST;
  accrt_status_t status = accrt_instance_create(NULL, &instance);
  if (status == ACCRT_OK)
    status = accx_open_weights(instance, args->operands[0], &job.source);
  if (status != ACCRT_OK) {
    code = accx_fail_status(status, "%s", args->operands[0]);
    goto out;
  }
  code = read_items(args, &like, &job);
  if (!code)
    code = read_importance(args, instance, &job);
  if (!code)
    code = write_pack(&job, layout, args->operands[1]);
  if (!code) {
    accx_args_note_unused(args, "only");
    accx_args_note_unused(args, "keep");
  }
  if (!code && accx_args_has(args, "json"))
    print_json(&job, layout);
  else if (!code)
    print_human(&job, layout, args->operands[1]);
out:
  accx_quantize_forget(&job);
  for (uint32_t i = 0; i < job.count; ++i)
    free((void*)(uintptr_t)job.items[i].importance);
  free(job.items);
  accx_weight_list_free(&job.list);
  accrt_weights_release(job.source);
  accrt_instance_release(instance);
  return code;
}

static const accx_option_t options[] = {
    {"layout", "NAME", false, "the layout: q4_k, q8_0, i4_group, f8_channel, mxfp4, ..."},
    {"group", "N", false,
     "elements that share a scale, for i8_group, i4_group, i4_group_asym (128)"},
    {"data", "f8e4m3fn|f8e5m2", false, "type of the codes, for the f8 layouts and mxfp8"},
    {"scales", "f32|f16|bf16", false, "type of the scales, for layouts that leave it open"},
    {"only", "GLOB", true, "quantize only weights with such names"},
    {"keep", "GLOB", true, "copy weights with such names as they are"},
    {"search", NULL, false, "search for the scales with the least squared error"},
    {"importance", "FILE", false,
     "npz, safetensors or GGUF: for a weight's name, how much each input counts (implies "
     "--search)"},
    {"threads", "N", false, "threads (all processors)"},
    ACCX_JOIN_OPTIONS,
    {"json", NULL, false, "print the report as JSON"},
    {NULL, NULL, false, NULL},
};

const accx_verb_t accx_verb_quantize = {
    .name = "quantize",
    .operands = "IN OUT.accx",
    .min_operands = 2,
    .max_operands = 2,
    .summary = "quantizes weights into a weight pack, and says what was lost",
    .details = "IN is a safetensors, GGUF or .accx file, or the index of several. OUT has its "
               "weights as constants and\n"
               "nothing else. Matrices are quantized; what is chosen by --only but does not fit "
               "the layout, and\n"
               "everything else, is copied as it is. Weights are worked on one at a time.\n\n"
               "The importance of an input is usually the mean square of its activations over some "
               "text.\n\n"
               "Examples:\n"
               "  accx quantize model.safetensors model-q4.accx --layout q4_k --keep 'lm_head*'\n"
               "  accx quantize model.gguf out.accx --layout i4_group --group 128 --scales f16 "
               "--importance acts.npz\n",
    .options = options,
    .run = run_quantize,
    .operand_kind = ACCX_READS_THEN_WRITES,
};
