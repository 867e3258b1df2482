/* tools/accx/quantize_tensor.c - converts one weight to f32 and to its layout, on several
 * threads. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

#define PIECE_ELEMENTS (1u << 20)

/* Rows of a weight that one thread converts, in pieces. */
typedef struct rows {
  const accrt_layout_tensor_t* from;
  const accrt_layout_tensor_t* target; /* NULL: compute only the largest magnitude */
  const accrt_quantize_options_t* options;
  uint64_t first, count, step; /* step: rows per piece */
  uint64_t columns;
  accrt_quantize_report_t report;
  accrt_status_t status;
  accrt_error_t error;
} rows_t;

static void add_report(accrt_quantize_report_t* sum, const accrt_quantize_report_t* part) {
  sum->elements += part->elements;
  sum->amax = part->amax > sum->amax ? part->amax : sum->amax;
  sum->max_error = part->max_error > sum->max_error ? part->max_error : sum->max_error;
  sum->weight_squares += part->weight_squares;
  sum->error_squares += part->error_squares;
  sum->weighted_squares += part->weighted_squares;
  sum->weighted_error_squares += part->weighted_error_squares;
}

static accrt_status_t work_on_piece(rows_t* rows, uint64_t first, uint64_t count, float* values) {
  accrt_quantize_report_t report = ACCRT_QUANTIZE_REPORT_INIT;
  accrt_status_t status = accrt_layout_dequantize(rows->from, first, count, values);
  if (status == ACCRT_OK && rows->target)
    status = accrt_layout_quantize(rows->target, values, first, count, rows->options, &report);
  for (uint64_t i = 0; !rows->target && i < count * rows->columns; ++i) {
    const double magnitude = fabs((double)values[i]);
    report.amax = magnitude > report.amax ? magnitude : report.amax;
  }
  if (status == ACCRT_OK)
    add_report(&rows->report, &report);
  return status;
}

static void* work(void* self) {
  rows_t* rows = self;
  float* values = malloc(rows->step * rows->columns * sizeof *values);
  if (!values) {
    rows->status = ACCRT_ERROR_OUT_OF_MEMORY;
    return NULL;
  }
  for (uint64_t at = 0; at < rows->count && rows->status == ACCRT_OK; at += rows->step) {
    const uint64_t left = rows->count - at;
    rows->status =
        work_on_piece(rows, rows->first + at, left < rows->step ? left : rows->step, values);
  }
  free(values);
  if (rows->status != ACCRT_OK) {
    rows->error = (accrt_error_t)ACCRT_ERROR_INIT;
    (void)accrt_last_error(&rows->error);
  }
  return NULL;
}

/* Runs `like` for all rows of a weight. Each thread's part begins at a multiple of `tile`. */
static int run_rows(const accx_quantize_job_t* job, const accx_quantize_item_t* item, rows_t like,
                    uint64_t row_count, uint64_t tile, bool whole) {
  enum { MOST = 64 };
  rows_t parts[MOST];
  pthread_t threads[MOST];
  uint64_t wanted = whole ? 1 : job->threads;
  wanted = wanted > MOST ? MOST : wanted;
  const uint64_t tiles = (row_count + tile - 1) / tile;
  wanted = wanted > tiles ? tiles : wanted;
  uint32_t used = 0, started = 0;
  const uint64_t share = wanted ? (tiles + wanted - 1) / wanted * tile : 0;
  for (uint64_t first = 0; first < row_count; first += share, ++used) {
    parts[used] = like;
    parts[used].first = first;
    parts[used].count = row_count - first < share ? row_count - first : share;
    const uint64_t rows = PIECE_ELEMENTS / (like.columns ? like.columns : 1) / tile * tile;
    parts[used].step = whole ? row_count : rows ? rows : tile;
  }
  /* This thread runs the last part, and the parts for which no thread could be created. */
  for (; started + 1 < used; ++started) {
    if (pthread_create(&threads[started], NULL, work, &parts[started]) != 0)
      break;
  }
  for (uint32_t i = started; i < used; ++i)
    (void)work(&parts[i]);
  for (uint32_t i = 0; i < started; ++i)
    (void)pthread_join(threads[i], NULL);
  accrt_quantize_report_t* report = (accrt_quantize_report_t*)&item->report;
  for (uint32_t i = 0; i < used; ++i) {
    if (parts[i].status != ACCRT_OK)
      return accx_fail(ACCX_FAILED, "%s: %s", accx_safe(item->from.name),
                       parts[i].error.message[0] ? accx_safe(parts[i].error.message)
                                                 : accrt_status_text(parts[i].status));
    add_report(report, &parts[i].report);
  }
  return ACCX_OK;
}

/* Describes the source's weight for the library's layout functions. */
static int read_source(accx_quantize_job_t* job, const accx_quantize_item_t* item,
                       accrt_layout_tensor_t* out_tensor) {
  *out_tensor = (accrt_layout_tensor_t)ACCRT_LAYOUT_TENSOR_INIT;
  out_tensor->layout = item->from.encoding;
  out_tensor->dtype = item->from.dtype;
  if (item->from.encoding != ACCRT_LAYOUT_PLAIN && item->from.dtype == ACCRT_DTYPE_NONE)
    out_tensor->dtype = ACCRT_DTYPE_F32;
  out_tensor->group_elements = item->from.group_elements;
  out_tensor->rank = item->from.rank;
  out_tensor->shape = item->from.shape;
  for (uint32_t i = 0; i < item->from.component_count; ++i) {
    const accx_weight_part_t* part = &item->weight->parts[i];
    unsigned char* data = accx_alloc(part->size_bytes + 1, 1);
    job->given[part->role] = data;
    const accrt_status_t status =
        accx_weight_read(&job->list, item->weight, i, 0, data, part->size_bytes);
    if (status != ACCRT_OK)
      return accx_fail_status(status, "%s", accx_safe(item->from.name));
    accrt_layout_component_t* slot = &out_tensor->components[part->role];
    slot->data = data;
    slot->size_bytes = part->size_bytes;
    slot->dtype = part->dtype;
  }
  return ACCX_OK;
}

static int make_memory(accx_quantize_job_t* job, accx_quantize_item_t* item) {
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    accrt_layout_component_t* component = &item->target.components[role];
    if (component->dtype == ACCRT_DTYPE_NONE)
      continue;
    job->memory[role] = calloc(1, component->size_bytes ? component->size_bytes : 1);
    if (!job->memory[role])
      return accx_fail(ACCX_FAILED, "out of memory for %s", accx_safe(item->from.name));
    component->data = job->memory[role];
  }
  return ACCX_OK;
}

void accx_quantize_forget(accx_quantize_job_t* job) {
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    free(job->memory[role]);
    job->memory[role] = NULL;
    if (job->current)
      job->current->target.components[role].data = NULL;
  }
  job->current = NULL;
}

int accx_quantize_tensor(accx_quantize_job_t* job, accx_quantize_item_t* item) {
  accx_quantize_forget(job);
  accrt_layout_tensor_t from;
  accrt_layout_info_t info = ACCRT_LAYOUT_INFO_INIT;
  (void)accrt_layout_info(item->target.layout, &info); /* cannot fail: it was checked before */
  accrt_quantize_options_t options = ACCRT_QUANTIZE_OPTIONS_INIT;
  options.method = job->method;
  options.importance = item->importance;
  job->current = item;
  int code = read_source(job, item, &from);
  if (!code)
    code = make_memory(job, item);
  uint64_t row_count = 1;
  for (uint32_t i = 0; i + 1 < item->from.rank; ++i)
    row_count *= (uint64_t)item->from.shape[i];
  rows_t like = {.from = &from, .options = &options};
  like.columns = (uint64_t)item->from.shape[item->from.rank - 1];
  /* A search for the scale of a whole tensor needs the whole tensor in memory. Other tiles may not
   * be divided. */
  const bool tensor = item->target.layout == ACCRT_LAYOUT_F8_TENSOR;
  const bool whole = tensor && job->method == ACCRT_QUANTIZE_SEARCH;
  const bool batched = info.tile_rows > 1 && item->from.rank > 2;
  const uint64_t tile = batched ? (uint64_t)item->from.shape[item->from.rank - 2] : info.tile_rows;
  memset(&item->report, 0, sizeof item->report);
  if (!code && !whole && (tensor || item->target.layout == ACCRT_LAYOUT_NVFP4)) {
    code = run_rows(job, item, like, row_count, 1, false);
    options.amax = (float)item->report.amax;
  }
  like.target = &item->target;
  if (!code)
    code = run_rows(job, item, like, row_count, tile ? tile : 1, whole);
  for (uint32_t role = 0; role < ACCRT_LAYOUT_ROLE_COUNT; ++role) {
    free(job->given[role]);
    job->given[role] = NULL;
  }
  return code;
}
