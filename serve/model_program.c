/* serve/model_program.c - a bundle's step program as a model (docs/serving-model.md).
 *
 * Inputs lie in host memory that the calls are bound to once for each size: a step copies its
 * arrays there, fills them up to sizes that the bundle lists, and runs `step` and then `sample` or
 * `sample_greedy`. It is for devices that use host memory. It schedules nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"
#include "accrt/serve.h"
#include "serve/base.h"

#define MOST_BUCKETS 64u
#define MOST_EOS 64u
#define MOST_ARGUMENTS 20u
#define TOP ACCRT_SERVE_MAX_LOGPROBS
#define DEFAULT_KV_BYTES (UINT64_C(1) << 30)
#define PLANS 1024u

enum { TOKENS, ROWS, SAMPLES, CHANGES, EDITS, SIZE_COUNT };
static const char* const size_names[SIZE_COUNT] = {"token", "row", "sample", "change", "edit"};

typedef struct buckets {
  uint32_t sizes[MOST_BUCKETS]; /* ascending */
  uint32_t count;
} buckets_t;

/* What the bundle says of itself. */
typedef struct description {
  const char* name;
  uint32_t vocab_size, page_size, max_position;
  uint64_t kv_bytes_per_token;
  int32_t eos[MOST_EOS];
  uint32_t eos_count;
  buckets_t buckets[SIZE_COUNT];
  const void* token_bytes;
  uint64_t token_bytes_size_bytes;
} description_t;

/* An argument of a function: where it lies, and which size is its first dimension. */
typedef struct argument {
  const char* name;
  accrt_dtype_t dtype;
  uint32_t size, plus; /* index of the size; elements beyond it */
  uint32_t columns;    /* 0: one dimension */
  void* data;
} argument_t;

typedef struct bound {
  accrt_call_t* call;
  argument_t arguments[MOST_ARGUMENTS];
  uint32_t indices[MOST_ARGUMENTS];
  uint32_t count;
  uint32_t sizes[SIZE_COUNT]; /* that it is bound for; 0: not bound */
} bound_t;

typedef struct program_model {
  accrt_program_t* program;
  accrt_session_t* session;
  description_t description;
  accrt_serve_memory_t memory;
  bound_t step, update, sample, greedy;
  unsigned char* block; /* all arrays */
  uint64_t block_bytes;
  int32_t *token_ids, *positions, *slots, *token_rows, *row_starts, *row_ids, *kv_lengths;
  int32_t *change_slots, *change_pages, *sample_tokens;
  int32_t *sample_rows, *top_k, *sample_positions, *edit_starts, *edit_tokens, *mask_rows;
  uint32_t *seeds, *mask_bits;
  float *temperature, *top_p, *min_p, *edit_multiply, *edit_add, *logits;
  /* Of one call of `sample`, and of all of a step. */
  int32_t *part_tokens, *part_ranks, *part_top_tokens;
  float *part_logprobs, *part_top_logprobs;
  int32_t *tokens, *ranks, *top_tokens;
  float *logprobs, *top_logprobs;
  bool has_logprobs; /* of the last step */
} program_model_t;

/* ---- What the bundle says ---- */

static accrt_status_t find_value(accrt_bundle_t* bundle, const char* key, const char** out_value) {
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  ACCSV_TRY(accrt_bundle_info(bundle, &info));
  for (uint32_t i = 0; i < info.metadata_count; ++i) {
    const char* name;
    ACCSV_TRY(accrt_bundle_metadata(bundle, i, &name, out_value));
    if (strcmp(name, key) == 0)
      return ACCRT_OK;
  }
  return ACCSV_FAIL(NOT_FOUND, "the bundle has no metadata '%s': it is not a step program", key);
}

/* Numbers divided by commas; an empty text has none. */
static accrt_status_t read_numbers(accrt_bundle_t* bundle, const char* key, uint64_t most,
                                   uint32_t capacity, uint64_t* out_numbers, uint32_t* out_count) {
  const char* text;
  *out_count = 0;
  ACCSV_TRY(find_value(bundle, key, &text));
  for (const char* at = text; *at != 0;) {
    char* end;
    errno = 0;
    const uint64_t number = strtoull(at, &end, 10);
    if (end == at || *at == '-' || errno != 0 || number > most || (*end != 0 && *end != ',') ||
        *out_count == capacity)
      return ACCSV_FAIL(INVALID_FORMAT, "metadata %s is '%.100s'", key, text);
    out_numbers[(*out_count)++] = number;
    at = *end == ',' ? end + 1 : end;
  }
  return ACCRT_OK;
}

static accrt_status_t read_number(accrt_bundle_t* bundle, const char* key, uint64_t most,
                                  uint64_t* out_number) {
  uint32_t count;
  ACCSV_TRY(read_numbers(bundle, key, most, 1, out_number, &count));
  if (count == 0 || *out_number == 0)
    return ACCSV_FAIL(INVALID_FORMAT, "metadata %s is not a number above 0", key);
  return ACCRT_OK;
}

static accrt_status_t read_size(accrt_bundle_t* bundle, const char* key, uint32_t* out_size) {
  uint64_t number;
  ACCSV_TRY(read_number(bundle, key, INT32_MAX, &number));
  *out_size = (uint32_t)number;
  return ACCRT_OK;
}

static accrt_status_t read_buckets(accrt_bundle_t* bundle, uint32_t size, buckets_t* out) {
  char key[64];
  uint64_t numbers[MOST_BUCKETS];
  (void)snprintf(key, sizeof key, "serve.%s_buckets", size_names[size]);
  ACCSV_TRY(read_numbers(bundle, key, INT32_MAX, MOST_BUCKETS, numbers, &out->count));
  for (uint32_t i = 0; i < out->count; ++i) {
    out->sizes[i] = (uint32_t)numbers[i];
    if (numbers[i] == 0 || (i > 0 && numbers[i] <= numbers[i - 1]))
      return ACCSV_FAIL(INVALID_FORMAT, "metadata %s does not ascend", key);
  }
  return out->count > 0 ? ACCRT_OK : ACCSV_FAIL(INVALID_FORMAT, "metadata %s is empty", key);
}

static accrt_status_t read_table(accrt_bundle_t* bundle, description_t* out) {
  uint32_t index;
  if (accrt_bundle_find_asset(bundle, "serve.token_bytes", &index) != ACCRT_OK)
    return ACCRT_OK; /* no text, then */
  accrt_asset_info_t asset = ACCRT_ASSET_INFO_INIT;
  ACCSV_TRY(accrt_bundle_asset(bundle, index, &asset));
  out->token_bytes = asset.data;
  out->token_bytes_size_bytes = asset.size_bytes;
  return ACCRT_OK;
}

static accrt_status_t read_description(accrt_bundle_t* bundle, description_t* out) {
  *out = (description_t){0};
  uint64_t version, eos[MOST_EOS];
  ACCSV_TRY(read_number(bundle, "serve.version", UINT32_MAX, &version));
  if (version != 1)
    return ACCSV_FAIL(VERSION_MISMATCH,
                      "a step program of version %" PRIu64 "; this library runs version 1",
                      version);
  ACCSV_TRY(find_value(bundle, "serve.name", &out->name));
  ACCSV_TRY(read_size(bundle, "serve.vocab_size", &out->vocab_size));
  ACCSV_TRY(read_size(bundle, "serve.page_size", &out->page_size));
  ACCSV_TRY(read_size(bundle, "serve.max_position", &out->max_position));
  ACCSV_TRY(
      read_number(bundle, "serve.kv_bytes_per_token", UINT64_C(1) << 40, &out->kv_bytes_per_token));
  ACCSV_TRY(read_numbers(bundle, "serve.eos", INT32_MAX, MOST_EOS, eos, &out->eos_count));
  for (uint32_t i = 0; i < out->eos_count; ++i)
    out->eos[i] = (int32_t)eos[i];
  for (uint32_t size = 0; size < SIZE_COUNT; ++size)
    ACCSV_TRY(read_buckets(bundle, size, &out->buckets[size]));
  return read_table(bundle, out);
}

static uint32_t largest(const description_t* description, uint32_t size) {
  const buckets_t* buckets = &description->buckets[size];
  return buckets->sizes[buckets->count - 1];
}

/* The smallest size that the bundle lists and that is at least `needed`. */
static uint32_t round_up(const program_model_t* model, uint32_t size, uint32_t needed) {
  const buckets_t* buckets = &model->description.buckets[size];
  uint32_t i = 0;
  while (buckets->sizes[i] < needed && i + 1 < buckets->count)
    ++i;
  return buckets->sizes[i];
}

/* ---- Memory ---- */

static accrt_status_t take_limit(const char* name, uint32_t given, uint32_t most, uint32_t* out) {
  if (given > most)
    return ACCSV_FAIL(OUT_OF_RANGE, "%s is %" PRIu32 ", and the bundle has %" PRIu32, name, given,
                      most);
  *out = given != 0 ? given : most;
  return ACCRT_OK;
}

/* At least one page; no more than all rows can use. */
static accrt_status_t plan_pages(const accrt_serve_program_options_t* options,
                                 const description_t* description, uint64_t device_bytes,
                                 accrt_serve_memory_t* memory) {
  uint64_t kv_bytes = options->kv_bytes;
  if (kv_bytes == 0)
    kv_bytes = device_bytes != 0 && device_bytes / 4 < DEFAULT_KV_BYTES ? device_bytes / 4
                                                                        : DEFAULT_KV_BYTES;
  uint64_t pages = options->pages != 0 ? options->pages : kv_bytes / memory->page_bytes;
  const uint64_t useful = (uint64_t)memory->max_rows * memory->row_pages;
  if (pages > useful)
    pages = useful;
  if (pages > INT32_MAX / description->page_size)
    pages = INT32_MAX / description->page_size;
  if (pages == 0)
    return ACCSV_FAIL(OUT_OF_DEVICE_MEMORY,
                      "%" PRIu64 " bytes for keys and values hold no page of %" PRIu64, kv_bytes,
                      memory->page_bytes);
  memory->pages = (uint32_t)pages;
  memory->kv_bytes = pages * memory->page_bytes;
  return ACCRT_OK;
}

static accrt_status_t estimate(accrt_program_t* program, const description_t* description,
                               accrt_serve_memory_t* memory) {
  const accrt_symbol_value_t symbols[] = {
      {"tokens", memory->max_tokens},    {"rows", memory->max_rows},
      {"samples", memory->max_rows},     {"changes", largest(description, CHANGES)},
      {"pages", memory->pages},          {"table_rows", memory->max_rows},
      {"table_pages", memory->row_pages}};
  accrt_memory_estimate_t needed = ACCRT_MEMORY_ESTIMATE_INIT;
  ACCSV_TRY(accrt_program_estimate(program, "step", symbols, sizeof symbols / sizeof *symbols,
                                   sizeof *symbols, &needed));
  memory->state_bytes = needed.state_bytes;
  memory->transient_bytes = needed.transient_bytes;
  memory->result_bytes = needed.result_bytes;
  memory->weight_bytes = needed.weight_bytes;
  return ACCRT_OK;
}

static accrt_status_t plan_memory(accrt_device_t* device, accrt_program_t* program,
                                  const accrt_serve_program_options_t* options,
                                  const description_t* description, accrt_serve_memory_t* memory) {
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  ACCSV_TRY(accrt_device_info(device, &info));
  if ((info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) == 0)
    return ACCSV_FAIL(UNSUPPORTED, "device %s has memory of its own: only hosts serve yet",
                      info.name);
  *memory = (accrt_serve_memory_t)ACCRT_SERVE_MEMORY_INIT;
  uint32_t rows = largest(description, ROWS);
  if (rows > largest(description, SAMPLES))
    rows = largest(description, SAMPLES);
  const uint32_t tokens = largest(description, TOKENS);
  ACCSV_TRY(
      take_limit("max_rows", options->max_rows, rows < tokens ? rows : tokens, &memory->max_rows));
  ACCSV_TRY(take_limit("max_tokens", options->max_tokens, tokens, &memory->max_tokens));
  ACCSV_TRY(take_limit("max_length", options->max_length, description->max_position,
                       &memory->max_length));
  memory->row_pages = (memory->max_length + description->page_size - 1) / description->page_size;
  memory->page_bytes = description->kv_bytes_per_token * description->page_size;
  ACCSV_TRY(plan_pages(options, description, info.memory_total_bytes, memory));
  return estimate(program, description, memory);
}

static accrt_status_t take_options(const accrt_serve_program_options_t* options,
                                   accrt_serve_program_options_t* own) {
  *own = (accrt_serve_program_options_t)ACCRT_SERVE_PROGRAM_OPTIONS_INIT;
  if (options == NULL)
    return ACCRT_OK;
  ACCSV_TRY(
      accsv_take_struct("accrt_serve_program_options_t", options, sizeof *own, own, sizeof *own));
  return own->flags == 0 ? ACCRT_OK : ACCSV_FAIL(INVALID_ARGUMENT, "flags are not 0");
}

accrt_status_t accrt_serve_program_memory(accrt_device_t* device, accrt_program_t* program,
                                          const accrt_serve_program_options_t* options,
                                          accrt_serve_memory_t* out_memory) {
  ACCSV_NOT_NULL(device);
  ACCSV_NOT_NULL(program);
  ACCSV_NOT_NULL(out_memory);
  accrt_serve_program_options_t own;
  description_t description;
  accrt_serve_memory_t memory;
  ACCSV_TRY(take_options(options, &own));
  ACCSV_TRY(read_description(accrt_program_bundle(program), &description));
  ACCSV_TRY(plan_memory(device, program, &own, &description, &memory));
  return accsv_give_struct("accrt_serve_memory_t", &memory, sizeof memory, sizeof memory,
                           out_memory);
}

/* ---- Arrays ---- */

/* Cuts an array off the block; with `base` NULL it only counts. */
static void* cut(unsigned char* base, uint64_t* used, uint64_t count, uint64_t element_bytes) {
  void* place = base != NULL ? base + *used : NULL;
  *used += (count * element_bytes + 63) & ~UINT64_C(63);
  return place;
}

static uint64_t cut_all(program_model_t* model, unsigned char* base) {
  const description_t* description = &model->description;
  const uint64_t tokens = largest(description, TOKENS), rows = largest(description, ROWS);
  const uint64_t samples = largest(description, SAMPLES), changes = largest(description, CHANGES);
  const uint64_t edits = largest(description, EDITS), vocab = description->vocab_size;
  uint64_t used = 0;
  model->token_ids = cut(base, &used, tokens, 4);
  model->positions = cut(base, &used, tokens, 4);
  model->slots = cut(base, &used, tokens, 4);
  model->token_rows = cut(base, &used, tokens, 4);
  model->row_starts = cut(base, &used, rows + 1, 4);
  model->row_ids = cut(base, &used, rows, 4);
  model->kv_lengths = cut(base, &used, rows, 4);
  model->change_slots = cut(base, &used, changes, 4);
  model->change_pages = cut(base, &used, changes, 4);
  model->sample_tokens = cut(base, &used, samples, 4);
  model->sample_rows = cut(base, &used, samples, 4);
  model->temperature = cut(base, &used, samples, 4);
  model->top_k = cut(base, &used, samples, 4);
  model->top_p = cut(base, &used, samples, 4);
  model->min_p = cut(base, &used, samples, 4);
  model->seeds = cut(base, &used, 2 * samples, 4);
  model->sample_positions = cut(base, &used, samples, 4);
  model->edit_starts = cut(base, &used, samples + 1, 4);
  model->edit_tokens = cut(base, &used, edits, 4);
  model->edit_multiply = cut(base, &used, edits, 4);
  model->edit_add = cut(base, &used, edits, 4);
  model->mask_rows = cut(base, &used, samples, 4);
  model->mask_bits = cut(base, &used, samples * ((vocab + 31) / 32), 4);
  model->part_tokens = cut(base, &used, samples, 4);
  model->part_ranks = cut(base, &used, samples, 4);
  model->part_logprobs = cut(base, &used, samples, 4);
  model->part_top_tokens = cut(base, &used, samples * TOP, 4);
  model->part_top_logprobs = cut(base, &used, samples * TOP, 4);
  model->tokens = cut(base, &used, samples, 4);
  model->ranks = cut(base, &used, samples, 4);
  model->logprobs = cut(base, &used, samples, 4);
  model->top_tokens = cut(base, &used, samples * TOP, 4);
  model->top_logprobs = cut(base, &used, samples * TOP, 4);
  model->logits = cut(base, &used, samples * vocab, 4);
  return used;
}

static accrt_status_t make_arrays(program_model_t* model) {
  model->block_bytes = cut_all(model, NULL);
  ACCSV_TRY(ACCSV_NEW_UNSET(&accsv_allocator_system, model->block_bytes, &model->block));
  /* Logits are written before they are read. */
  (void)cut_all(model, model->block);
  memset(model->block, 0, (size_t)((unsigned char*)model->logits - model->block));
  return ACCRT_OK;
}

/* ---- Calls ---- */

static void add(bound_t* bound, const char* name, accrt_dtype_t dtype, uint32_t size, uint32_t plus,
                uint32_t columns, void* data) {
  bound->arguments[bound->count++] = (argument_t){name, dtype, size, plus, columns, data};
}
#define I32 ACCRT_DTYPE_I32
#define U32 ACCRT_DTYPE_U32
#define F32 ACCRT_DTYPE_F32

static void list_arguments(program_model_t* m) {
  const uint32_t vocab = m->description.vocab_size;
  bound_t* step = &m->step;
  add(step, "token_ids", I32, TOKENS, 0, 0, m->token_ids);
  add(step, "positions", I32, TOKENS, 0, 0, m->positions);
  add(step, "slots", I32, TOKENS, 0, 0, m->slots);
  add(step, "token_rows", I32, TOKENS, 0, 0, m->token_rows);
  add(step, "row_starts", I32, ROWS, 1, 0, m->row_starts);
  add(step, "row_ids", I32, ROWS, 0, 0, m->row_ids);
  add(step, "kv_lengths", I32, ROWS, 0, 0, m->kv_lengths);
  add(step, "change_slots", I32, CHANGES, 0, 0, m->change_slots);
  add(step, "change_pages", I32, CHANGES, 0, 0, m->change_pages);
  add(step, "sample_tokens", I32, SAMPLES, 0, 0, m->sample_tokens);
  add(step, "logits", F32, SAMPLES, 0, vocab, m->logits);
  add(&m->update, "change_slots", I32, CHANGES, 0, 0, m->change_slots);
  add(&m->update, "change_pages", I32, CHANGES, 0, 0, m->change_pages);
  add(&m->greedy, "logits", F32, SAMPLES, 0, vocab, m->logits);
  add(&m->greedy, "sample_rows", I32, SAMPLES, 0, 0, m->sample_rows);
  add(&m->greedy, "token", I32, SAMPLES, 0, 0, m->part_tokens);
  bound_t* sample = &m->sample;
  add(sample, "logits", F32, SAMPLES, 0, vocab, m->logits);
  add(sample, "sample_rows", I32, SAMPLES, 0, 0, m->sample_rows);
  add(sample, "temperature", F32, SAMPLES, 0, 0, m->temperature);
  add(sample, "top_k", I32, SAMPLES, 0, 0, m->top_k);
  add(sample, "top_p", F32, SAMPLES, 0, 0, m->top_p);
  add(sample, "min_p", F32, SAMPLES, 0, 0, m->min_p);
  add(sample, "seed", U32, SAMPLES, 0, 2, m->seeds);
  add(sample, "position", I32, SAMPLES, 0, 0, m->sample_positions);
  add(sample, "edit_starts", I32, SAMPLES, 1, 0, m->edit_starts);
  add(sample, "edit_tokens", I32, EDITS, 0, 0, m->edit_tokens);
  add(sample, "edit_multiply", F32, EDITS, 0, 0, m->edit_multiply);
  add(sample, "edit_add", F32, EDITS, 0, 0, m->edit_add);
  add(sample, "mask_rows", I32, SAMPLES, 0, 0, m->mask_rows);
  add(sample, "mask_bits", U32, SAMPLES, 0, (vocab + 31) / 32, m->mask_bits);
  add(sample, "token", I32, SAMPLES, 0, 0, m->part_tokens);
  add(sample, "logprob", F32, SAMPLES, 0, 0, m->part_logprobs);
  add(sample, "top_ids", I32, SAMPLES, 0, TOP, m->part_top_tokens);
  add(sample, "top_logprobs", F32, SAMPLES, 0, TOP, m->part_top_logprobs);
  add(sample, "rank", I32, SAMPLES, 0, 0, m->part_ranks);
}

static accrt_status_t make_call(const program_model_t* model, const char* function,
                                bound_t* bound) {
  ACCSV_TRY(accrt_call_create(model->session, function, &bound->call));
  for (uint32_t i = 0; i < bound->count; ++i)
    ACCSV_TRY(accrt_call_find(bound->call, bound->arguments[i].name, &bound->indices[i]));
  return ACCRT_OK;
}

/* Binds what has another size than in the run before. */
static accrt_status_t bind(bound_t* bound, const uint32_t* sizes) {
  for (uint32_t i = 0; i < bound->count; ++i) {
    const argument_t* argument = &bound->arguments[i];
    if (bound->sizes[argument->size] == sizes[argument->size])
      continue;
    const int64_t shape[] = {(int64_t)sizes[argument->size] + argument->plus, argument->columns};
    const accrt_tensor_t tensor = {.data = argument->data,
                                   .dtype = argument->dtype,
                                   .rank = argument->columns != 0 ? 2 : 1,
                                   .shape = shape};
    ACCSV_TRY(accrt_call_set_tensor(bound->call, bound->indices[i], &tensor));
  }
  memcpy(bound->sizes, sizes, sizeof bound->sizes);
  return ACCRT_OK;
}

static accrt_status_t run(bound_t* bound, const uint32_t* sizes) {
  ACCSV_TRY(bind(bound, sizes));
  return accrt_call_run(bound->call, ACCRT_TIMEOUT_INFINITE);
}

/* ---- A step ---- */

/* Copies `count` elements and fills up to `size` with `padding`. */
static void fill(int32_t* to, const int32_t* from, uint32_t count, uint32_t size, int32_t padding) {
  if (count > 0)
    memcpy(to, from, count * sizeof *to);
  for (uint32_t i = count; i < size; ++i)
    to[i] = padding;
}
static void fill_numbers(float* to, const float* from, uint32_t count, uint32_t size,
                         float padding) {
  if (count > 0)
    memcpy(to, from, count * sizeof *to);
  for (uint32_t i = count; i < size; ++i)
    to[i] = padding;
}

/* Changes of the page table that the step has no room for come before it. */
static accrt_status_t change_pages(program_model_t* model, const accrt_serve_step_t* step,
                                   uint32_t* out_size) {
  const uint32_t most = largest(&model->description, CHANGES);
  uint32_t at = 0;
  for (; step->change_count - at > most; at += most) {
    fill(model->change_slots, step->change_slots + at, most, most, -1);
    fill(model->change_pages, step->change_pages + at, most, most, 0);
    const uint32_t sizes[SIZE_COUNT] = {[CHANGES] = most};
    ACCSV_TRY(run(&model->update, sizes));
  }
  const uint32_t count = step->change_count - at;
  const uint32_t size = round_up(model, CHANGES, count);
  fill(model->change_slots, step->change_slots + at, count, size, -1);
  fill(model->change_pages, step->change_pages + at, count, size, 0);
  *out_size = size;
  return ACCRT_OK;
}

static accrt_status_t run_step(program_model_t* model, const accrt_serve_step_t* step) {
  uint32_t sizes[SIZE_COUNT] = {
      [TOKENS] = round_up(model, TOKENS, step->token_count),
      [ROWS] = round_up(model, ROWS, step->row_count),
      [SAMPLES] = round_up(model, SAMPLES, step->sample_count),
  };
  ACCSV_TRY(change_pages(model, step, &sizes[CHANGES]));
  fill(model->token_ids, step->token_ids, step->token_count, sizes[TOKENS], 0);
  fill(model->positions, step->positions, step->token_count, sizes[TOKENS], 0);
  fill(model->slots, step->slots, step->token_count, sizes[TOKENS], -1);
  fill(model->token_rows, step->token_rows, step->token_count, sizes[TOKENS], 0);
  fill(model->row_starts, step->row_starts, step->row_count + 1, sizes[ROWS] + 1,
       (int32_t)step->token_count);
  fill(model->row_ids, step->row_ids, step->row_count, sizes[ROWS], 0);
  fill(model->kv_lengths, step->kv_lengths, step->row_count, sizes[ROWS], 0);
  fill(model->sample_tokens, step->sample_tokens, step->sample_count, sizes[SAMPLES], 0);
  return run(&model->step, sizes);
}

static accrt_status_t run_greedy(program_model_t* model, const accrt_serve_step_t* step) {
  const uint32_t sizes[SIZE_COUNT] = {[SAMPLES] = round_up(model, SAMPLES, step->sample_count)};
  fill(model->sample_rows, step->sample_rows, step->sample_count, sizes[SAMPLES], -1);
  ACCSV_TRY(run(&model->greedy, sizes));
  memcpy(model->tokens, model->part_tokens, step->sample_count * sizeof *model->tokens);
  return ACCRT_OK;
}

/* The masks of some samples, one after the other. */
static void fill_masks(program_model_t* model, const accrt_serve_masks_t* masks, uint32_t first,
                       uint32_t count) {
  int32_t used = 0;
  for (uint32_t i = 0; masks != NULL && i < count; ++i) {
    const int32_t row = masks->rows[first + i];
    if (row < 0)
      continue;
    memcpy(model->mask_bits + (size_t)used * masks->words, masks->bits + (size_t)row * masks->words,
           masks->words * sizeof *masks->bits);
    model->mask_rows[i] = used++;
  }
}

/* Samples [first, first + count), whose logits lie at the beginning. */
static accrt_status_t run_sample(program_model_t* model, const accrt_serve_step_t* step,
                                 const accrt_serve_masks_t* masks, uint32_t first, uint32_t count) {
  const int32_t edits = step->edit_starts[first];
  const uint32_t edit_count = (uint32_t)(step->edit_starts[first + count] - edits);
  const uint32_t sizes[SIZE_COUNT] = {
      [SAMPLES] = round_up(model, SAMPLES, count), [EDITS] = round_up(model, EDITS, edit_count)};
  const uint32_t size = sizes[SAMPLES];
  fill(model->sample_rows, step->sample_rows + first, count, size, -1);
  fill_numbers(model->temperature, step->temperature + first, count, size, 0.0f);
  fill(model->top_k, step->top_k + first, count, size, 0);
  fill_numbers(model->top_p, step->top_p + first, count, size, 1.0f);
  fill_numbers(model->min_p, step->min_p + first, count, size, 0.0f);
  fill(model->sample_positions, step->sample_positions + first, count, size, 0);
  memset(model->seeds, 0, 2 * (size_t)size * sizeof *model->seeds);
  memcpy(model->seeds, step->seeds + 2 * (size_t)first, 2 * count * sizeof *model->seeds);
  for (uint32_t i = 0; i <= size; ++i)
    model->edit_starts[i] = step->edit_starts[first + (i < count ? i : count)] - edits;
  fill(model->edit_tokens, step->edit_tokens + edits, edit_count, sizes[EDITS], 0);
  fill_numbers(model->edit_multiply, step->edit_multiply + edits, edit_count, sizes[EDITS], 1.0f);
  fill_numbers(model->edit_add, step->edit_add + edits, edit_count, sizes[EDITS], 0.0f);
  fill(model->mask_rows, NULL, 0, size, -1);
  fill_masks(model, masks, first, count);
  ACCSV_TRY(run(&model->sample, sizes));
  memcpy(model->tokens + first, model->part_tokens, count * 4);
  memcpy(model->ranks + first, model->part_ranks, count * 4);
  memcpy(model->logprobs + first, model->part_logprobs, count * 4);
  memcpy(model->top_tokens + (size_t)first * TOP, model->part_top_tokens, count * 4 * TOP);
  memcpy(model->top_logprobs + (size_t)first * TOP, model->part_top_logprobs, count * 4 * TOP);
  return ACCRT_OK;
}

/* In parts, if there are more edits than one call takes. */
static accrt_status_t run_samples(program_model_t* model, const accrt_serve_step_t* step,
                                  const accrt_serve_masks_t* masks) {
  const int32_t most = (int32_t)largest(&model->description, EDITS);
  const size_t vocab = model->description.vocab_size;
  for (uint32_t first = 0; first < step->sample_count;) {
    uint32_t end = first + 1;
    while (end < step->sample_count &&
           step->edit_starts[end + 1] - step->edit_starts[first] <= most)
      ++end;
    if (step->edit_starts[end] - step->edit_starts[first] > most)
      return ACCSV_FAIL(OUT_OF_RANGE, "a sample has %" PRId32 " edits of logits, at most %" PRId32,
                        step->edit_starts[end] - step->edit_starts[first], most);
    ACCSV_TRY(run_sample(model, step, masks, first, end - first));
    if (end < step->sample_count)
      memmove(model->logits, model->logits + (end - first) * vocab,
              (step->sample_count - end) * vocab * sizeof *model->logits);
    first = end;
  }
  return ACCRT_OK;
}

static accrt_status_t submit(void* self, const accrt_serve_step_t* step) {
  program_model_t* model = self;
  ACCSV_TRY(run_step(model, step));
  const bool greedy = (step->flags & ACCRT_SERVE_STEP_GREEDY) != 0;
  model->has_logprobs = !greedy;
  if (step->sample_count == 0 || (step->flags & ACCRT_SERVE_STEP_MASKS) != 0)
    return ACCRT_OK;
  return greedy ? run_greedy(model, step) : run_samples(model, step, NULL);
}

static accrt_status_t sample_step(void* self, const accrt_serve_step_t* step,
                                  const accrt_serve_masks_t* masks) {
  return run_samples(self, step, masks);
}

static accrt_status_t wait_step(void* self, uint64_t number, accrt_serve_results_t* out_results) {
  const program_model_t* model = self;
  (void)number; /* submit has run it */
  out_results->tokens = model->tokens;
  if (!model->has_logprobs)
    return ACCRT_OK;
  out_results->logprobs = model->logprobs;
  out_results->ranks = model->ranks;
  out_results->top_count = TOP;
  out_results->top_tokens = model->top_tokens;
  out_results->top_logprobs = model->top_logprobs;
  return ACCRT_OK;
}

static accrt_status_t reset(void* self) {
  return accrt_session_reset(((program_model_t*)self)->session);
}

static accrt_status_t info(void* self, accrt_serve_model_info_t* out_info) {
  const program_model_t* model = self;
  const description_t* description = &model->description;
  out_info->name = description->name;
  out_info->vocab_size = description->vocab_size;
  out_info->page_size = description->page_size;
  out_info->page_count = model->memory.pages;
  out_info->max_rows = model->memory.max_rows;
  out_info->max_tokens = model->memory.max_tokens;
  out_info->max_length = model->memory.max_length;
  out_info->row_pages = model->memory.row_pages;
  out_info->eos_count = description->eos_count;
  out_info->eos = description->eos;
  out_info->token_bytes = description->token_bytes;
  out_info->token_bytes_size_bytes = description->token_bytes_size_bytes;
  out_info->kv_bytes_per_token = description->kv_bytes_per_token;
  return ACCRT_OK;
}

/* ---- Making ---- */

static void destroy(void* self) {
  program_model_t* model = self;
  accrt_call_release(model->step.call);
  accrt_call_release(model->update.call);
  accrt_call_release(model->sample.call);
  accrt_call_release(model->greedy.call);
  accrt_session_release(model->session);
  accrt_program_release(model->program);
  ACCSV_FREE(&accsv_allocator_system, model->block, model->block_bytes);
  ACCSV_FREE(&accsv_allocator_system, model, 1);
}

static accrt_status_t make_session(program_model_t* model) {
  const accrt_symbol_value_t symbols[] = {{"pages", model->memory.pages},
                                          {"table_rows", model->memory.max_rows},
                                          {"table_pages", model->memory.row_pages}};
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.symbols = symbols;
  options.symbol_count = sizeof symbols / sizeof *symbols;
  options.symbol_size_bytes = sizeof *symbols;
  options.max_plans = PLANS;
  options.label = "serve";
  return accrt_session_create(model->program, &options, &model->session);
}

static accrt_status_t make_calls(program_model_t* model) {
  list_arguments(model);
  ACCSV_TRY(make_call(model, "step", &model->step));
  ACCSV_TRY(make_call(model, "update_pages", &model->update));
  ACCSV_TRY(make_call(model, "sample", &model->sample));
  return make_call(model, "sample_greedy", &model->greedy);
}

accrt_status_t accrt_serve_model_open_program(accrt_device_t* device, accrt_program_t* program,
                                              const accrt_serve_program_options_t* options,
                                              accrt_serve_model_t** out_model) {
  ACCSV_NOT_NULL(out_model);
  *out_model = NULL;
  ACCSV_NOT_NULL(device);
  ACCSV_NOT_NULL(program);
  accrt_serve_program_options_t own;
  ACCSV_TRY(take_options(options, &own));
  program_model_t* model;
  ACCSV_TRY(ACCSV_NEW(&accsv_allocator_system, 1, &model));
  model->program = accrt_program_retain(program);
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.self = model;
  functions.info = info;
  functions.submit = submit;
  functions.wait = wait_step;
  functions.reset = reset;
  functions.destroy = destroy;
  functions.sample = sample_step;
  accrt_status_t status = read_description(accrt_program_bundle(program), &model->description);
  if (status == ACCRT_OK)
    status = plan_memory(device, program, &own, &model->description, &model->memory);
  if (status == ACCRT_OK)
    status = make_arrays(model);
  if (status == ACCRT_OK)
    status = make_session(model);
  if (status == ACCRT_OK)
    status = make_calls(model);
  if (status == ACCRT_OK)
    status = accrt_serve_model_wrap(&functions, out_model);
  if (status != ACCRT_OK)
    destroy(model);
  return status;
}
