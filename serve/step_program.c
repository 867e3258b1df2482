/* serve/step_program.c - see serve/step_program.h. */
#include "serve/step_program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_KV_BYTES (UINT64_C(1) << 30)
/* Of a card, so many times what the weights take. */
#define USUAL_KV_WEIGHTS 4
#define USEFUL_SAMPLES 64u

static const char* const size_names[ACCSV_SIZE_COUNT] = {"token", "row", "sample", "change",
                                                         "edit"};

/* ---- What the bundle says ---- */

/* NULL: there is none. */
static accrt_status_t look_up(accrt_bundle_t* bundle, const char* key, const char** out_value) {
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  ACCRT_TRY(accrt_bundle_info(bundle, &info));
  for (uint32_t i = 0; i < info.metadata_count; ++i) {
    const char* name;
    ACCRT_TRY(accrt_bundle_metadata(bundle, i, &name, out_value));
    if (strcmp(name, key) == 0)
      return ACCRT_OK;
  }
  *out_value = NULL;
  return ACCRT_OK;
}

static accrt_status_t find_value(accrt_bundle_t* bundle, const char* key, const char** out_value) {
  ACCRT_TRY(look_up(bundle, key, out_value));
  if (*out_value != NULL)
    return ACCRT_OK;
  return ACCSV_FAIL(NOT_FOUND, "the bundle has no metadata '%s': it is not a step program", key);
}

/* Numbers divided by commas; an empty text has none. */
static accrt_status_t read_numbers(accrt_bundle_t* bundle, const char* key, uint64_t most,
                                   uint32_t capacity, uint64_t* out_numbers, uint32_t* out_count) {
  const char* text;
  *out_count = 0;
  ACCRT_TRY(find_value(bundle, key, &text));
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
  ACCRT_TRY(read_numbers(bundle, key, most, 1, out_number, &count));
  if (count == 0 || *out_number == 0)
    return ACCSV_FAIL(INVALID_FORMAT, "metadata %s is not a number above 0", key);
  return ACCRT_OK;
}

static accrt_status_t read_size(accrt_bundle_t* bundle, const char* key, uint32_t* out_size) {
  uint64_t number;
  ACCRT_TRY(read_number(bundle, key, INT32_MAX, &number));
  *out_size = (uint32_t)number;
  return ACCRT_OK;
}

/* 0 where the bundle says nothing of it. */
static accrt_status_t read_if_there(accrt_bundle_t* bundle, const char* key, uint32_t* out_size) {
  const char* value;
  *out_size = 0;
  ACCRT_TRY(look_up(bundle, key, &value));
  return value != NULL ? read_size(bundle, key, out_size) : ACCRT_OK;
}

static accrt_status_t read_invariance(accrt_bundle_t* bundle, accsv_description_t* out) {
  const char* value;
  ACCRT_TRY(look_up(bundle, "serve.batch_invariant", &value));
  out->invariant = value != NULL && strcmp(value, "all") == 0;
  out->host_invariant = out->invariant || (value != NULL && strcmp(value, "host") == 0);
  return ACCRT_OK;
}

static accrt_status_t read_buckets(accrt_bundle_t* bundle, uint32_t size, accsv_buckets_t* out) {
  char key[64];
  uint64_t numbers[ACCSV_MOST_BUCKETS];
  (void)snprintf(key, sizeof key, "serve.%s_buckets", size_names[size]);
  ACCRT_TRY(read_numbers(bundle, key, INT32_MAX, ACCSV_MOST_BUCKETS, numbers, &out->count));
  for (uint32_t i = 0; i < out->count; ++i) {
    out->sizes[i] = (uint32_t)numbers[i];
    if (numbers[i] == 0 || (i > 0 && numbers[i] <= numbers[i - 1]))
      return ACCSV_FAIL(INVALID_FORMAT, "metadata %s does not ascend", key);
  }
  return out->count > 0 ? ACCRT_OK : ACCSV_FAIL(INVALID_FORMAT, "metadata %s is empty", key);
}

static accrt_status_t read_table(accrt_bundle_t* bundle, accsv_description_t* out) {
  uint32_t index;
  if (accrt_bundle_find_asset(bundle, "serve.token_bytes", &index) != ACCRT_OK)
    return ACCRT_OK; /* no text, then */
  accrt_asset_info_t asset = ACCRT_ASSET_INFO_INIT;
  ACCRT_TRY(accrt_bundle_asset(bundle, index, &asset));
  out->token_bytes = asset.data;
  out->token_bytes_size_bytes = asset.size_bytes;
  return ACCRT_OK;
}

accrt_status_t accsv_description_read(accrt_bundle_t* bundle, accsv_description_t* out) {
  *out = (accsv_description_t){0};
  uint64_t version, eos[ACCSV_MOST_EOS];
  uint32_t states_of_pages;
  ACCRT_TRY(read_number(bundle, "serve.version", UINT32_MAX, &version));
  if (version > 2)
    return ACCSV_FAIL(VERSION_MISMATCH,
                      "a step program of version %" PRIu64 "; this library runs versions 1 and 2",
                      version);
  ACCRT_TRY(read_if_there(bundle, "serve.states_of_pages", &states_of_pages));
  out->states_of_pages = states_of_pages != 0;
  ACCRT_TRY(find_value(bundle, "serve.name", &out->name));
  ACCRT_TRY(read_size(bundle, "serve.vocab_size", &out->vocab_size));
  ACCRT_TRY(read_size(bundle, "serve.page_size", &out->page_size));
  ACCRT_TRY(read_size(bundle, "serve.max_position", &out->max_position));
  ACCRT_TRY(
      read_number(bundle, "serve.kv_bytes_per_token", UINT64_C(1) << 40, &out->kv_bytes_per_token));
  ACCRT_TRY(read_numbers(bundle, "serve.eos", INT32_MAX, ACCSV_MOST_EOS, eos, &out->eos_count));
  for (uint32_t i = 0; i < out->eos_count; ++i)
    out->eos[i] = (int32_t)eos[i];
  for (uint32_t size = 0; size < ACCSV_SIZE_COUNT; ++size)
    ACCRT_TRY(read_buckets(bundle, size, &out->buckets[size]));
  ACCRT_TRY(read_if_there(bundle, "serve.adapters", &out->adapters));
  ACCRT_TRY(read_if_there(bundle, "serve.hidden_size", &out->hidden_size));
  uint32_t index;
  if (accrt_bundle_find_function(bundle, "embed", &index) != ACCRT_OK)
    out->hidden_size = 0;
  out->copies_rows = accrt_bundle_find_function(bundle, "copy_rows", &index) == ACCRT_OK;
  out->has_plain =
      out->adapters > 0 && accrt_bundle_find_function(bundle, "step_plain", &index) == ACCRT_OK;
  ACCRT_TRY(read_invariance(bundle, out));
  return read_table(bundle, out);
}

uint32_t accsv_bucket(const accsv_buckets_t* buckets, uint32_t needed) {
  uint32_t i = 0;
  while (buckets->sizes[i] < needed && i + 1 < buckets->count)
    ++i;
  return i;
}

uint32_t accsv_round_up(const accsv_description_t* description, uint32_t size, uint32_t needed) {
  const accsv_buckets_t* buckets = &description->buckets[size];
  return buckets->sizes[accsv_bucket(buckets, needed)];
}

uint32_t accsv_largest(const accsv_description_t* description, uint32_t size) {
  const accsv_buckets_t* buckets = &description->buckets[size];
  return buckets->sizes[buckets->count - 1];
}

/* ---- Memory ---- */

accrt_status_t accsv_is_host(accrt_device_t* device, bool* out_is_host) {
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  ACCRT_TRY(accrt_device_info(device, &info));
  *out_is_host = (info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) != 0;
  return ACCRT_OK;
}

static accrt_status_t take_limit(const char* name, uint32_t given, uint32_t most, uint32_t* out) {
  if (given > most)
    return ACCSV_FAIL(OUT_OF_RANGE, "%s is %" PRIu32 ", and the bundle has %" PRIu32, name, given,
                      most);
  *out = given != 0 ? given : most;
  return ACCRT_OK;
}

/* Prompts that are scored have many: enough for chunks that are worth a step. */
static uint32_t most_samples(const accsv_description_t* description, uint32_t max_rows) {
  return accsv_round_up(description, ACCSV_SAMPLES,
                        max_rows > USEFUL_SAMPLES ? max_rows : USEFUL_SAMPLES);
}

static accrt_status_t plan_sizes(const accrt_serve_program_options_t* options,
                                 const accsv_description_t* description,
                                 accrt_serve_memory_t* memory) {
  uint32_t rows = accsv_largest(description, ACCSV_ROWS);
  if (rows > accsv_largest(description, ACCSV_SAMPLES))
    rows = accsv_largest(description, ACCSV_SAMPLES);
  const uint32_t tokens = accsv_largest(description, ACCSV_TOKENS);
  ACCRT_TRY(
      take_limit("max_rows", options->max_rows, rows < tokens ? rows : tokens, &memory->max_rows));
  ACCRT_TRY(take_limit("max_tokens", options->max_tokens, tokens, &memory->max_tokens));
  ACCRT_TRY(take_limit("max_length", options->max_length, description->max_position,
                       &memory->max_length));
  memory->max_samples = most_samples(description, memory->max_rows);
  memory->row_pages = (memory->max_length + description->page_size - 1) / description->page_size;
  memory->page_bytes = description->kv_bytes_per_token * description->page_size;
  return ACCRT_OK;
}

/* What the largest step takes beside its pages; `state_bytes` is that of one page and the table. */
static accrt_status_t estimate(accrt_program_t* program, const accsv_description_t* description,
                               accrt_serve_memory_t* memory) {
  const accrt_symbol_value_t symbols[] = {
      {"tokens", accsv_round_up(description, ACCSV_TOKENS, memory->max_tokens)},
      {"rows", accsv_round_up(description, ACCSV_ROWS, memory->max_rows)},
      {"samples", memory->max_samples},
      {"changes", accsv_largest(description, ACCSV_CHANGES)},
      {"edits", description->buckets[ACCSV_EDITS].sizes[0]},
      {"pages", 1},
      {"table_rows", memory->max_rows},
      {"table_pages", memory->row_pages}};
  const uint32_t count = sizeof symbols / sizeof *symbols;
  accrt_memory_estimate_t step = ACCRT_MEMORY_ESTIMATE_INIT;
  accrt_memory_estimate_t sample = ACCRT_MEMORY_ESTIMATE_INIT;
  ACCRT_TRY(accrt_program_estimate(program, "step", symbols, count, sizeof *symbols, &step));
  ACCRT_TRY(accrt_program_estimate(program, "sample", symbols, count, sizeof *symbols, &sample));
  memory->state_bytes = step.state_bytes;
  memory->transient_bytes =
      step.transient_bytes > sample.transient_bytes ? step.transient_bytes : sample.transient_bytes;
  memory->result_bytes = step.result_bytes + sample.result_bytes;
  memory->weight_bytes = step.weight_bytes;
  return ACCRT_OK;
}

uint64_t accsv_enough_kv_bytes(const accrt_serve_memory_t* memory) {
  const uint64_t longest = (uint64_t)memory->row_pages * memory->page_bytes;
  uint64_t enough = USUAL_KV_WEIGHTS * memory->weight_bytes;
  enough = enough > DEFAULT_KV_BYTES ? enough : DEFAULT_KV_BYTES;
  return enough > longest ? enough : longest;
}

/* What is enough, and no more than nine tenths of the device, less what the process has of it and
 * what a step takes: the rest is for code, graphs and other libraries. */
static accrt_status_t own_memory_budget(accrt_device_t* device, uint64_t device_bytes,
                                        const accrt_serve_memory_t* memory, uint64_t* out_bytes) {
  accrt_pool_t* pool;
  accrt_pool_statistics_t statistics = ACCRT_POOL_STATISTICS_INIT;
  ACCRT_TRY(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  ACCRT_TRY(accrt_pool_statistics(pool, &statistics));
  const uint64_t taken =
      statistics.used_bytes + memory->transient_bytes + memory->result_bytes + memory->state_bytes;
  const uint64_t most = device_bytes / 10 * 9;
  const uint64_t left = most > taken ? most - taken : 0, enough = accsv_enough_kv_bytes(memory);
  *out_bytes = left < enough ? left : enough;
  return ACCRT_OK;
}

static accrt_status_t default_kv_bytes(accrt_device_t* device, const accrt_serve_memory_t* memory,
                                       uint64_t* out_bytes) {
  accrt_device_info_t info = ACCRT_DEVICE_INFO_INIT;
  ACCRT_TRY(accrt_device_info(device, &info));
  const uint64_t total = info.memory_total_bytes;
  if ((info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) == 0 && total != 0)
    return own_memory_budget(device, total, memory, out_bytes);
  *out_bytes = total != 0 && total / 4 < DEFAULT_KV_BYTES ? total / 4 : DEFAULT_KV_BYTES;
  return ACCRT_OK;
}

/* At least one page; no more than all rows can use. */
static accrt_status_t plan_pages(accrt_device_t* device,
                                 const accrt_serve_program_options_t* options,
                                 const accsv_description_t* description,
                                 accrt_serve_memory_t* memory) {
  uint64_t kv_bytes = options->kv_bytes;
  if (kv_bytes == 0)
    ACCRT_TRY(default_kv_bytes(device, memory, &kv_bytes));
  uint64_t pages = options->pages != 0 ? options->pages : kv_bytes / memory->page_bytes;
  const uint64_t useful = (uint64_t)memory->max_rows * memory->row_pages;
  if (pages > useful)
    pages = useful;
  if (pages > INT32_MAX / description->page_size)
    pages = INT32_MAX / description->page_size;
  if (pages == 0)
    return ACCSV_FAIL(OUT_OF_DEVICE_MEMORY,
                      "%" PRIu64 " bytes for keys and values hold no page: one takes %" PRIu64
                      " bytes",
                      kv_bytes, memory->page_bytes);
  memory->pages = (uint32_t)pages;
  memory->kv_bytes = pages * memory->page_bytes;
  memory->state_bytes += memory->kv_bytes - memory->page_bytes;
  return ACCRT_OK;
}

/* What a session has is asked, the smallest one: a program does not say where it is. */
static accrt_status_t check_device(accrt_device_t* device, accrt_program_t* program,
                                   const accrt_serve_memory_t* memory) {
  const accrt_symbol_value_t symbols[] = {
      {"pages", 1}, {"table_rows", memory->max_rows}, {"table_pages", memory->row_pages}};
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.symbols = symbols;
  options.symbol_count = sizeof symbols / sizeof *symbols;
  options.symbol_size_bytes = sizeof *symbols;
  accrt_session_t* session;
  ACCRT_TRY(accrt_session_create(program, &options, &session));
  accrt_device_t* own = accrt_stream_device(accrt_session_stream(session));
  accrt_device_info_t its = ACCRT_DEVICE_INFO_INIT, given = ACCRT_DEVICE_INFO_INIT;
  accrt_status_t status = ACCRT_OK;
  if (own != device) {
    (void)accrt_device_info(own, &its);
    (void)accrt_device_info(device, &given);
    status = ACCSV_FAIL(INVALID_ARGUMENT, "the device is %s%s, the program's is %s", given.name,
                        strcmp(given.name, its.name) == 0 ? " of another instance" : "", its.name);
  }
  accrt_session_release(session);
  return status;
}

accrt_status_t accsv_plan_memory(accrt_device_t* device, accrt_program_t* program,
                                 const accrt_serve_program_options_t* options,
                                 const accsv_description_t* description,
                                 accrt_serve_memory_t* out_memory) {
  *out_memory = (accrt_serve_memory_t)ACCRT_SERVE_MEMORY_INIT;
  ACCRT_TRY(plan_sizes(options, description, out_memory));
  ACCRT_TRY(check_device(device, program, out_memory));
  ACCRT_TRY(estimate(program, description, out_memory));
  return plan_pages(device, options, description, out_memory);
}
