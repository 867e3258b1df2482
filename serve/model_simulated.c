/* serve/model_simulated.c - a model that computes nothing: for tests and for virtual time.
 *
 * A slot of its KV cache holds what attention would need: the position, and a hash of all tokens up
 * to it. A token's hash is made of that of the token before it, which is found through the page
 * table; the next token is a hash of that. So the output depends on every page of a sequence, and a
 * step fails when a page is not what the sequence has written or shares.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "accrt/serve.h"
#include "serve/base.h"

#define BEGINNING UINT64_C(0x5EED)
#define DEPTH 2u
#define MOST_TOKENS (1u << 18) /* whose texts are made */
#define MOST_SLOTS (1u << 22)
#define MOST_ROWS (1u << 12)
#define MOST_SAMPLES (1u << 16)
#define SAMPLES 512u
#define MOST_STEP_TOKENS (1u << 20)
#define MOST_LENGTHS (1u << 26) /* of all rows: the page table has a number for each page of them */
#define MOST_ADAPTERS (1u << 16) /* as any model */
#define MOST_PLACES (1u << 24)   /* of tokens, in the page table */
#define MOST_EMBEDDING 4096u

typedef struct stamp {
  uint64_t hash;    /* of all tokens up to this one */
  uint64_t before;  /* of those before it */
  int32_t position; /* -1: nothing was written */
  int32_t token;
} stamp_t;

typedef struct results {
  uint64_t number;
  uint64_t duration_ns, submitted_ns;
  uint64_t places; /* of adapters that the step uses, a bit for each of 64 */
  accrt_status_t status;
  uint32_t top_count;
  int32_t *tokens, *ranks, *top_tokens;
  float *logprobs, *top_logprobs, *embeddings;
} results_t;

typedef struct simulated {
  accrt_serve_simulation_t options;
  stamp_t* stamps;
  int32_t* page_table;
  int32_t* last_tokens;
  unsigned char* table; /* token bytes */
  size_t table_bytes;
  uint64_t* adapters; /* hashes of what is in each place; 0: nothing */
  uint32_t row_pages;
  results_t results[DEPTH]; /* of steps in flight, the oldest first */
  uint32_t in_flight;
  uint64_t ended_ns; /* when the last step that was waited for had been computed */
} simulated_t;

/* ---- Token bytes ---- */

static uint32_t token_text(uint32_t token, unsigned char* out) {
  if (token < 256) {
    out[0] = (unsigned char)token;
    return 1;
  }
  return (uint32_t)snprintf((char*)out, 16, "<%" PRIu32 ">", token);
}

static void put_u32(unsigned char* place, uint32_t value) {
  for (int i = 0; i < 4; ++i)
    place[i] = (unsigned char)(value >> (8 * i));
}

static accrt_status_t make_table(simulated_t* model) {
  const uint32_t count = model->options.vocab_size;
  unsigned char text[16];
  size_t bytes = 0;
  for (uint32_t token = 0; token < count; ++token)
    bytes += token_text(token, text);
  const size_t head = 8 + 4 * ((size_t)count + 1) + count;
  model->table_bytes = head + bytes;
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, model->table_bytes, &model->table));
  put_u32(model->table, count);
  uint32_t offset = 0;
  for (uint32_t token = 0; token < count; ++token) {
    const uint32_t size = token_text(token, text);
    put_u32(model->table + 8 + 4 * (size_t)token, offset);
    memcpy(model->table + head + offset, text, size);
    offset += size;
    if (model->options.eos == (int32_t)token)
      model->table[8 + 4 * ((size_t)count + 1) + token] = 1;
  }
  put_u32(model->table + 8 + 4 * (size_t)count, offset);
  return ACCRT_OK;
}

/* ---- A step ---- */

static accrt_status_t write_token(simulated_t* model, const accrt_serve_step_t* step, uint32_t row,
                                  uint32_t at) {
  const int32_t page_size = (int32_t)model->options.page_size;
  const int32_t* pages = model->page_table + (size_t)step->row_ids[row] * model->row_pages;
  const int32_t position = step->positions[at];
  const int32_t slot = pages[position / page_size] * page_size + position % page_size;
  if (slot != step->slots[at])
    return ACCSV_FAIL(DATA_CORRUPT, "slot %" PRId32 " of position %" PRId32 " is not %" PRId32,
                      step->slots[at], position, slot);
  uint64_t before = BEGINNING;
  if (position > 0) {
    const int32_t last = position - 1;
    const stamp_t* stamp = &model->stamps[pages[last / page_size] * page_size + last % page_size];
    if (stamp->position != last)
      return ACCSV_FAIL(DATA_CORRUPT, "position %" PRId32 " of sequence %" PRIu64 " has %" PRId32,
                        last, step->row_keys[row], stamp->position);
    before = stamp->hash;
  }
  int32_t token = step->token_ids[at];
  if (token < 0)
    token = model->last_tokens[step->row_ids[row]];
  const int32_t adapter = step->row_adapters != NULL ? step->row_adapters[row] : -1;
  const uint64_t changed = adapter >= 0 ? model->adapters[adapter] : 0;
  model->stamps[slot] = (stamp_t){
      accsv_mix(before ^ changed ^ ((uint64_t)(uint32_t)token + 1) * UINT64_C(0x9E3779B97F4A7C15)),
      before, position, token};
  return ACCRT_OK;
}

/* Follows the row's pages from its end to its beginning: each page begins where the one before it
 * ended. */
static accrt_status_t read_row(simulated_t* model, const accrt_serve_step_t* step, uint32_t row) {
  const int32_t page_size = (int32_t)model->options.page_size;
  const int32_t* pages = model->page_table + (size_t)step->row_ids[row] * model->row_pages;
  const int32_t length = step->kv_lengths[row];
  for (int32_t page = 0; page * page_size < length; ++page) {
    const stamp_t* stamps = model->stamps + (size_t)pages[page] * model->options.page_size;
    const int32_t end =
        length - page * page_size < page_size ? length - page * page_size : page_size;
    const uint64_t before = page == 0
                                ? BEGINNING
                                : model
                                      ->stamps[(size_t)pages[page - 1] * model->options.page_size +
                                               model->options.page_size - 1]
                                      .hash;
    if (stamps[0].before != before || stamps[end - 1].position != page * page_size + end - 1)
      return ACCSV_FAIL(DATA_CORRUPT, "page %" PRId32 " of sequence %" PRIu64 " is another's", page,
                        step->row_keys[row]);
  }
  return ACCRT_OK;
}

/* What is copied was written, and belongs where it goes. */
static accrt_status_t copy_stamps(simulated_t* model, const accrt_serve_step_t* step) {
  const int32_t page_size = (int32_t)model->options.page_size;
  for (uint32_t i = 0; i < step->copy_count; ++i) {
    const int32_t from = step->copy_from[i], to = step->copy_to[i], count = step->copy_tokens[i];
    if (count < 1 || from / page_size == to / page_size ||
        from / page_size != (from + count - 1) / page_size)
      return ACCSV_FAIL(DATA_CORRUPT, "a copy of %" PRId32 " slots from %" PRId32 " to %" PRId32,
                        count, from, to);
    for (int32_t k = 0; k < count; ++k) {
      const stamp_t stamp = model->stamps[from + k];
      if (stamp.position < 0 || stamp.position % page_size != (to + k) % page_size)
        return ACCSV_FAIL(DATA_CORRUPT, "slot %" PRId32 " has position %" PRId32, from + k,
                          stamp.position);
      model->stamps[to + k] = stamp;
    }
  }
  return ACCRT_OK;
}

static bool is_banned(const accrt_serve_step_t* step, uint32_t sample, int32_t token) {
  const accrt_serve_edits_t* edits = &step->edits[sample];
  for (uint32_t e = 0; e < edits->count; ++e) {
    if (edits->tokens[e] == token && edits->add[e] == -INFINITY)
      return true;
  }
  return false;
}

static bool is_allowed(const accrt_serve_masks_t* masks, uint32_t sample, int32_t token) {
  if (masks == NULL || masks->rows[sample] < 0)
    return true;
  const uint32_t* bits = masks->bits + (size_t)masks->rows[sample] * masks->words;
  return (bits[token / 32] >> (token % 32) & 1) != 0;
}

/* The first token of [token, end) that its mask lets through; `end` or more: none. A word of the
 * mask without any is passed at once. */
static uint32_t next_allowed(const accrt_serve_masks_t* masks, uint32_t sample, uint32_t token,
                             uint32_t end) {
  if (masks == NULL || masks->rows[sample] < 0)
    return token;
  const uint32_t* bits = masks->bits + (size_t)masks->rows[sample] * masks->words;
  while (token < end && (bits[token / 32] >> token % 32 & 1) == 0)
    token = bits[token / 32] >> token % 32 == 0 ? (token / 32 + 1) * 32 : token + 1;
  return token;
}

/* A bias of 100 or more decides; a ban gives the next token. */
static int32_t choose(const simulated_t* model, const accrt_serve_step_t* step,
                      const accrt_serve_masks_t* masks, uint32_t sample, uint64_t hash,
                      bool repeats) {
  if ((step->flags & ACCRT_SERVE_STEP_GREEDY) != 0)
    return (int32_t)(accsv_mix(hash) % model->options.vocab_size);
  const accrt_serve_edits_t* edits = &step->edits[sample];
  for (uint32_t e = 0; e < edits->count; ++e) {
    if (edits->add[e] >= 100.0f && is_allowed(masks, sample, edits->tokens[e]))
      return edits->tokens[e];
  }
  if (step->temperature[sample] > 0.0f && !repeats)
    hash = accsv_mix(hash + step->seeds[2 * (size_t)sample] +
                     ((uint64_t)step->seeds[2 * (size_t)sample + 1] << 32) +
                     (uint64_t)step->sample_positions[sample]);
  const uint32_t count = model->options.vocab_size;
  const uint32_t first = (uint32_t)(accsv_mix(hash) % count);
  const uint32_t ranges[2][2] = {{first, count}, {0, first}};
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t end = ranges[i][1];
    uint32_t token = next_allowed(masks, sample, ranges[i][0], end);
    for (; token < end; token = next_allowed(masks, sample, token + 1, end)) {
      if (!is_banned(step, sample, (int32_t)token))
        return (int32_t)token;
    }
  }
  return (int32_t)first;
}

/* Tokens are the less likely the further they are behind the one that comes without edits. */
static void fill_sample(const simulated_t* model, results_t* results, uint32_t sample,
                        int32_t token, uint64_t hash) {
  const uint32_t count = model->options.vocab_size;
  const uint32_t likeliest = (uint32_t)(accsv_mix(hash) % count);
  const uint32_t behind = ((uint32_t)token + count - likeliest) % count;
  results->tokens[sample] = token;
  results->logprobs[sample] = -0.25f - (float)behind;
  results->ranks[sample] = 1 + (int32_t)behind;
  for (uint32_t i = 0; i < ACCRT_SERVE_MAX_LOGPROBS; ++i) {
    const size_t at = (size_t)sample * ACCRT_SERVE_MAX_LOGPROBS + i;
    results->top_tokens[at] = (int32_t)((likeliest + i) % count);
    results->top_logprobs[at] = -0.25f - (float)i;
  }
}

static void draw(simulated_t* model, const accrt_serve_step_t* step,
                 const accrt_serve_masks_t* masks, results_t* results) {
  for (uint32_t sample = 0; sample < step->sample_count; ++sample) {
    const int32_t slot = step->slots[step->sample_tokens[sample]];
    const stamp_t* stamp = &model->stamps[slot];
    const uint32_t repeat = model->options.repeat;
    const bool repeats = repeat > 0 && accsv_mix(stamp->hash + 1) % repeat != 0;
    const uint64_t hash = repeats ? accsv_mix((uint32_t)stamp->token + 1) : stamp->hash;
    const int32_t token = choose(model, step, masks, sample, hash, repeats);
    if (step->sample_rows[sample] >= 0)
      model->last_tokens[step->sample_rows[sample]] = token;
    fill_sample(model, results, sample, token, hash);
  }
}

/* A token's row is made of what its slot holds: all tokens up to it. */
static void embed(const simulated_t* model, const accrt_serve_step_t* step, results_t* results) {
  const uint32_t size = model->options.embedding_size;
  for (uint32_t i = 0; i < step->embed_count; ++i) {
    const uint64_t hash = model->stamps[step->slots[step->embed_tokens[i]]].hash;
    for (uint32_t k = 0; k < size; ++k)
      results->embeddings[(size_t)i * size + k] =
          (float)(accsv_mix(hash + k) % 2001) / 1000.0f - 1.0f;
  }
}

static accrt_status_t compute(simulated_t* model, const accrt_serve_step_t* step,
                              results_t* results) {
  for (uint32_t i = 0; i < step->change_count; ++i)
    model->page_table[step->change_slots[i]] = step->change_pages[i];
  ACCRT_TRY(copy_stamps(model, step));
  for (uint32_t row = 0; row < step->row_count; ++row) {
    for (int32_t at = step->row_starts[row]; at < step->row_starts[row + 1]; ++at)
      ACCRT_TRY(write_token(model, step, row, (uint32_t)at));
  }
  for (uint32_t row = 0; row < step->row_count; ++row)
    ACCRT_TRY(read_row(model, step, row));
  embed(model, step, results);
  if ((step->flags & ACCRT_SERVE_STEP_MASKS) == 0)
    draw(model, step, NULL, results);
  return ACCRT_OK;
}

/* A place that is empty is used by no row. */
static accrt_status_t find_places(const simulated_t* model, const accrt_serve_step_t* step,
                                  uint64_t* out_places) {
  *out_places = 0;
  for (uint32_t row = 0; step->row_adapters != NULL && row < step->row_count; ++row) {
    const int32_t place = step->row_adapters[row];
    if (place < -1 || place >= (int32_t)model->options.adapter_count ||
        (place >= 0 && model->adapters[place] == 0))
      return ACCSV_FAIL(DATA_CORRUPT, "sequence %" PRIu64 " has place %" PRId32 " for its adapter",
                        step->row_keys[row], place);
    if (place >= 0)
      *out_places |= UINT64_C(1) << (place % 64);
  }
  return ACCRT_OK;
}

static accrt_status_t set_adapter(void* self, uint32_t place,
                                  const accrt_serve_adapter_tensor_t* tensors,
                                  uint32_t tensor_count) {
  simulated_t* model = self;
  for (uint32_t i = 0; i < model->in_flight; ++i) {
    if ((model->results[i].places & UINT64_C(1) << (place % 64)) != 0)
      return ACCSV_FAIL(INVALID_STATE, "a step in flight uses place %" PRIu32, place);
  }
  uint64_t hash = 1;
  for (uint32_t i = 0; i < tensor_count; ++i) {
    if (strcmp(tensors[i].name, "fails") == 0)
      return ACCSV_FAIL(NOT_FOUND, "there is no place for 'fails'");
    const unsigned char* bytes = tensors[i].data;
    for (uint64_t b = 0; b < tensors[i].size_bytes; ++b)
      hash = accsv_mix(hash + bytes[b]) | 1;
  }
  model->adapters[place] = tensor_count > 0 ? hash : 0;
  return ACCRT_OK;
}

static accrt_status_t submit(void* self, const accrt_serve_step_t* step) {
  simulated_t* model = self;
  const uint32_t most = (model->options.flags & ACCRT_SERVE_MODEL_OVERLAP) != 0 ? DEPTH : 1;
  if (model->in_flight == most)
    return ACCSV_FAIL(INVALID_STATE, "%" PRIu32 " steps are in flight", most);
  results_t* results = &model->results[model->in_flight];
  ACCRT_TRY(find_places(model, step, &results->places));
  ACCRT_TRY(compute(model, step, results));
  results->number = step->number;
  results->duration_ns = model->options.step_ns + step->token_count * model->options.token_ns;
  results->submitted_ns = accrt_serve_now_ns();
  const uint32_t every = model->options.fail_every;
  results->status = every != 0 && step->number % every == 0 ? ACCRT_ERROR_KERNEL : ACCRT_OK;
  ++model->in_flight;
  return ACCRT_OK;
}

static accrt_status_t sample_step(void* self, const accrt_serve_step_t* step,
                                  const accrt_serve_masks_t* masks) {
  simulated_t* model = self;
  if (model->in_flight == 0 || model->results[model->in_flight - 1].number != step->number)
    return ACCSV_FAIL(INVALID_STATE, "step %" PRIu64 " is not the newest", step->number);
  draw(model, step, masks, &model->results[model->in_flight - 1]);
  return ACCRT_OK;
}

/* In real time a step computes from when it was submitted, or the step before it had ended: what
 * the engine does meanwhile takes none. */
static void pass_time(simulated_t* model, const results_t* results) {
  if (model->options.time_ns != NULL) {
    *model->options.time_ns += results->duration_ns;
    return;
  }
  if (results->duration_ns == 0)
    return;
  const uint64_t begin_ns =
      results->submitted_ns > model->ended_ns ? results->submitted_ns : model->ended_ns;
  model->ended_ns = begin_ns + results->duration_ns;
  const struct timespec end = {.tv_sec = (time_t)(model->ended_ns / UINT64_C(1000000000)),
                               .tv_nsec = (long)(model->ended_ns % UINT64_C(1000000000))};
  (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL);
}

static accrt_status_t wait_step(void* self, uint64_t number, accrt_serve_results_t* out_results) {
  simulated_t* model = self;
  if (model->in_flight == 0 || model->results[0].number != number)
    return ACCSV_FAIL(INVALID_STATE, "step %" PRIu64 " is not the oldest in flight", number);
  const results_t results = model->results[0];
  for (uint32_t i = 1; i < DEPTH; ++i)
    model->results[i - 1] = model->results[i];
  model->results[DEPTH - 1] = results; /* its memory is used again, after the next wait */
  --model->in_flight;
  pass_time(model, &results);
  if (results.status != ACCRT_OK)
    return ACCSV_FAIL(KERNEL, "step %" PRIu64 " was to fail", number);
  out_results->tokens = results.tokens;
  out_results->logprobs = results.logprobs;
  out_results->ranks = results.ranks;
  out_results->top_count = ACCRT_SERVE_MAX_LOGPROBS;
  out_results->top_tokens = results.top_tokens;
  out_results->top_logprobs = results.top_logprobs;
  out_results->embeddings = results.embeddings;
  return ACCRT_OK;
}

static accrt_status_t reset(void* self) {
  simulated_t* model = self;
  const size_t slots = (size_t)model->options.page_count * model->options.page_size;
  for (size_t i = 0; i < slots; ++i)
    model->stamps[i].position = -1;
  memset(model->page_table, 0,
         (size_t)model->options.max_rows * model->row_pages * sizeof *model->page_table);
  model->in_flight = 0;
  return ACCRT_OK;
}

static accrt_status_t info(void* self, accrt_serve_model_info_t* out_info) {
  const simulated_t* model = self;
  out_info->flags = model->options.flags & ~ACCRT_SERVE_VALIDATE;
  out_info->name = "simulated";
  out_info->vocab_size = model->options.vocab_size;
  out_info->page_size = model->options.page_size;
  out_info->page_count = model->options.page_count;
  out_info->max_rows = model->options.max_rows;
  out_info->max_tokens = model->options.max_tokens;
  out_info->max_length = model->options.max_length;
  out_info->row_pages = model->row_pages;
  out_info->eos_count = model->options.eos >= 0;
  out_info->eos = &model->options.eos;
  out_info->token_bytes = model->table;
  out_info->token_bytes_size_bytes = model->table_bytes;
  out_info->adapter_count = model->options.adapter_count;
  out_info->max_samples = model->options.max_samples;
  out_info->embedding_size = model->options.embedding_size;
  out_info->min_copy_tokens = model->options.min_copy_tokens;
  return ACCRT_OK;
}

/* ---- Making ---- */

static void destroy(void* self) {
  simulated_t* model = self;
  const accrt_allocator_t* allocator = &accsv_allocator_system;
  const accrt_serve_simulation_t* options = &model->options;
  const size_t rows = options->max_rows, samples = options->max_samples;
  ACCSV_FREE(allocator, model->stamps, (size_t)options->page_count * options->page_size);
  ACCSV_FREE(allocator, model->page_table, rows * model->row_pages);
  ACCSV_FREE(allocator, model->last_tokens, rows);
  ACCSV_FREE(allocator, model->adapters, options->adapter_count);
  ACCSV_FREE(allocator, model->table, model->table_bytes);
  for (uint32_t i = 0; i < DEPTH; ++i) {
    results_t* results = &model->results[i];
    ACCSV_FREE(allocator, results->tokens, samples);
    ACCSV_FREE(allocator, results->ranks, samples);
    ACCSV_FREE(allocator, results->logprobs, samples);
    ACCSV_FREE(allocator, results->top_tokens, samples * ACCRT_SERVE_MAX_LOGPROBS);
    ACCSV_FREE(allocator, results->top_logprobs, samples * ACCRT_SERVE_MAX_LOGPROBS);
    ACCSV_FREE(allocator, results->embeddings, samples * options->embedding_size);
  }
  ACCSV_FREE(allocator, model, 1);
}

static accrt_status_t make_memory(simulated_t* model) {
  const accrt_allocator_t* allocator = &accsv_allocator_system;
  const accrt_serve_simulation_t* options = &model->options;
  const size_t rows = options->max_rows, samples = options->max_samples;
  ACCRT_TRY(ACCSV_NEW(allocator, (size_t)options->page_count * options->page_size, &model->stamps));
  ACCRT_TRY(ACCSV_NEW(allocator, rows * model->row_pages, &model->page_table));
  ACCRT_TRY(ACCSV_NEW(allocator, rows, &model->last_tokens));
  ACCRT_TRY(ACCSV_NEW(allocator, options->adapter_count, &model->adapters));
  for (uint32_t i = 0; i < DEPTH; ++i) {
    results_t* results = &model->results[i];
    ACCRT_TRY(ACCSV_NEW(allocator, samples, &results->tokens));
    ACCRT_TRY(ACCSV_NEW(allocator, samples, &results->ranks));
    ACCRT_TRY(ACCSV_NEW(allocator, samples, &results->logprobs));
    ACCRT_TRY(ACCSV_NEW(allocator, samples * ACCRT_SERVE_MAX_LOGPROBS, &results->top_tokens));
    ACCRT_TRY(ACCSV_NEW(allocator, samples * ACCRT_SERVE_MAX_LOGPROBS, &results->top_logprobs));
    ACCRT_TRY(ACCSV_NEW(allocator, samples * options->embedding_size, &results->embeddings));
  }
  ACCRT_TRY(make_table(model));
  return reset(model);
}

static void set_default(uint32_t* option, uint32_t value) {
  if (*option == 0)
    *option = value;
}

static void set_default_samples(accrt_serve_simulation_t* options) {
  set_default(&options->max_samples, options->max_tokens < SAMPLES ? options->max_tokens : SAMPLES);
  if (options->max_samples < options->max_rows)
    options->max_samples = options->max_rows;
}

static accrt_status_t check_limit(const char* name, uint64_t value, uint64_t most) {
  if (value <= most)
    return ACCRT_OK;
  return ACCSV_FAIL(OUT_OF_RANGE, "%s: %" PRIu64 ", at most %" PRIu64, name, value, most);
}

/* What is a slip, or would take the machine's memory. */
static accrt_status_t check_limits(const accrt_serve_simulation_t* options) {
  const uint32_t known = ACCRT_SERVE_MODEL_OVERLAP | ACCRT_SERVE_MODEL_BATCH_INVARIANT |
                         ACCRT_SERVE_MODEL_STATES_OF_PAGES | ACCRT_SERVE_VALIDATE;
  if ((options->flags & ~known) != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", options->flags);
  ACCRT_TRY(check_limit("vocab_size", options->vocab_size, MOST_TOKENS));
  ACCRT_TRY(check_limit("slots of all pages", (uint64_t)options->page_count * options->page_size,
                        MOST_SLOTS));
  ACCRT_TRY(check_limit("max_rows", options->max_rows, MOST_ROWS));
  ACCRT_TRY(check_limit("embedding_size", options->embedding_size, MOST_EMBEDDING));
  if (options->adapter_count > MOST_ADAPTERS)
    return ACCSV_FAIL(INVALID_ARGUMENT, "%" PRIu32 " adapters, at most %u", options->adapter_count,
                      MOST_ADAPTERS);
  ACCRT_TRY(check_limit("max_tokens", options->max_tokens, MOST_STEP_TOKENS));
  ACCRT_TRY(check_limit("max_samples", options->max_samples, MOST_SAMPLES));
  return check_limit("max_rows times max_length", (uint64_t)options->max_rows * options->max_length,
                     MOST_LENGTHS);
}

accrt_status_t accrt_serve_model_create_simulated(const accrt_serve_simulation_t* options,
                                                  accrt_serve_model_t** out_model) {
  ACCSV_NOT_NULL(out_model);
  *out_model = NULL;
  accrt_serve_simulation_t own = ACCRT_SERVE_SIMULATION_INIT;
  own.eos = -1;
  if (options != NULL)
    ACCRT_TRY(accsv_take_struct("accrt_serve_simulation_t", options, sizeof own, &own, sizeof own));
  set_default(&own.vocab_size, 256);
  set_default(&own.page_size, 16);
  set_default(&own.page_count, 4096);
  set_default(&own.max_rows, 256);
  set_default(&own.max_tokens, 2048);
  set_default(&own.max_length, 4096);
  set_default_samples(&own);
  ACCRT_TRY(check_limits(&own));
  simulated_t* model;
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, 1, &model));
  model->options = own;
  model->row_pages = own.max_length / own.page_size + (own.max_length % own.page_size != 0);
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.self = model;
  functions.info = info;
  functions.submit = submit;
  functions.wait = wait_step;
  functions.reset = reset;
  functions.set_adapter = set_adapter;
  functions.destroy = destroy;
  functions.sample = sample_step;
  accrt_status_t status = make_memory(model);
  if (status == ACCRT_OK)
    status = accrt_serve_model_wrap(&functions, out_model);
  if (status != ACCRT_OK)
    destroy(model);
  return status;
}
