/* serve/batch.c - see serve/batch.h. */
#include "serve/batch.h"

#include <string.h>

/* Parts whose memory is fetched before they are laid. */
#define AHEAD 8u
/* Rows next to one another whose sequences end in one step, at most, for the rest to move up. */
#define GAP 4u

/* An edit that gives a token the highest logit of all. */
static const float unchanged = 1.0f, surely = 1e30f;

/* Cuts `count` elements off the block of integers; NULL: it only counts. */
static int32_t* cut(int32_t* block, size_t* used, size_t count) {
  int32_t* place = block != NULL ? block + *used : NULL;
  *used += count;
  return place;
}

static size_t cut_all(accsv_batch_t* batch, int32_t* block) {
  const size_t tokens = batch->tokens_most, rows = batch->rows_most;
  const size_t samples = batch->samples_most;
  size_t used = 0;
  batch->token_ids = cut(block, &used, tokens);
  batch->positions = cut(block, &used, tokens);
  batch->slots = cut(block, &used, tokens);
  batch->token_rows = cut(block, &used, tokens);
  batch->row_starts = cut(block, &used, rows + 1);
  batch->row_ids = cut(block, &used, rows);
  batch->row_adapters = cut(block, &used, rows);
  batch->kv_lengths = cut(block, &used, rows);
  batch->copy_from = cut(block, &used, rows);
  batch->copy_to = cut(block, &used, rows);
  batch->copy_tokens = cut(block, &used, rows);
  batch->sample_tokens = cut(block, &used, samples);
  batch->sample_rows = cut(block, &used, samples);
  batch->sample_positions = cut(block, &used, samples);
  batch->top_k = cut(block, &used, samples);
  batch->embed_tokens = cut(block, &used, samples);
  batch->seeds = (uint32_t*)cut(block, &used, 2 * samples);
  batch->changed = cut(block, &used, rows);
  batch->change_slots = cut(block, &used, batch->changes_most);
  batch->change_pages = cut(block, &used, batch->changes_most);
  return used;
}

accrt_status_t accsv_batch_init(accsv_batch_t* batch, const accrt_allocator_t* allocator,
                                const accsv_limits_t* limits, uint32_t row_pages) {
  *batch = (accsv_batch_t){.allocator = allocator,
                           .tokens_most = limits->step_tokens,
                           .rows_most = limits->rows,
                           .samples_most = limits->samples,
                           .changes_most = limits->rows * row_pages,
                           .page_size = limits->page_size,
                           .row_pages = row_pages};
  batch->integer_count = cut_all(batch, NULL);
  accrt_status_t status = ACCSV_NEW_UNSET(allocator, batch->integer_count, &batch->integers);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, 3 * (size_t)limits->samples, &batch->numbers);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, limits->rows, &batch->row_keys);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, limits->samples, &batch->edits);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, limits->samples, &batch->laid);
  if (status != ACCRT_OK) {
    accsv_batch_deinit(batch);
    return status;
  }
  (void)cut_all(batch, batch->integers);
  batch->temperature = batch->numbers;
  batch->top_p = batch->numbers + limits->samples;
  batch->min_p = batch->numbers + 2 * (size_t)limits->samples;
  return ACCRT_OK;
}

void accsv_batch_deinit(accsv_batch_t* batch) {
  ACCSV_FREE(batch->allocator, batch->integers, batch->integer_count);
  ACCSV_FREE(batch->allocator, batch->numbers, 3 * (size_t)batch->samples_most);
  ACCSV_FREE(batch->allocator, batch->row_keys, batch->rows_most);
  ACCSV_FREE(batch->allocator, batch->edits, batch->samples_most);
  ACCSV_FREE(batch->allocator, batch->laid, batch->samples_most);
  *batch = (accsv_batch_t){0};
}

static uint32_t lay_changes(accsv_batch_t* batch, accsv_sequence_t* sequence, uint32_t changes) {
  const int32_t base = sequence->row * (int32_t)batch->row_pages;
  for (uint32_t i = sequence->blocks_mapped; i < sequence->blocks_held; ++i) {
    batch->change_slots[changes] = base + (int32_t)i;
    batch->change_pages[changes++] = sequence->blocks[i];
  }
  sequence->blocks_mapped = sequence->blocks_held;
  sequence->unmapped = false;
  return changes;
}

/* A sequence that decodes: its token is the last one, on its last page. */
static bool lay_last(accsv_batch_t* batch, const accsv_part_t* part, uint32_t row, uint32_t token) {
  const accsv_sequence_t* sequence = part->sequence;
  const uint32_t page_start = (sequence->blocks_held - 1) * batch->page_size;
  if (part->count != 1 || part->start + 1 < sequence->known || part->start < page_start)
    return false;
  batch->token_ids[token] = part->start < sequence->known ? sequence->last_token : -1;
  batch->positions[token] = (int32_t)part->start;
  batch->slots[token] =
      sequence->last_block * (int32_t)batch->page_size + (int32_t)(part->start - page_start);
  batch->token_rows[token] = (int32_t)row;
  return true;
}

static void lay_tokens(accsv_batch_t* batch, const accsv_part_t* part, uint32_t row,
                       uint32_t token) {
  const accsv_sequence_t* sequence = part->sequence;
  const uint32_t page_size = batch->page_size;
  const uint32_t end = sequence->known + part->drafts;
  uint32_t page = part->start / page_size;
  for (uint32_t i = 0; i < part->count; ++i, ++token) {
    const uint32_t position = part->start + i;
    if (position == (page + 1) * page_size)
      ++page;
    batch->token_ids[token] = position < end ? sequence->tokens[position] : -1;
    batch->positions[token] = (int32_t)position;
    batch->slots[token] =
        sequence->blocks[page] * (int32_t)page_size + (int32_t)(position - page * page_size);
    batch->token_rows[token] = (int32_t)row;
  }
}

/* The token that the prompt has at `position` is drawn, whatever its logit: so the results have its
 * log probability, which is that of the logits before edits. */
static void lay_score(accsv_batch_t* batch, const accsv_sequence_t* sequence, uint32_t position,
                      uint32_t sample) {
  batch->sample_positions[sample] = (int32_t)position;
  batch->temperature[sample] = batch->min_p[sample] = 0.0f;
  batch->top_p[sample] = 1.0f;
  batch->top_k[sample] = 0;
  batch->seeds[2 * (size_t)sample] = batch->seeds[2 * (size_t)sample + 1] = 0;
  batch->edits[sample] = (accrt_serve_edits_t){
      .tokens = sequence->tokens + position, .multiply = &unchanged, .add = &surely, .count = 1};
}

static void lay_parameters(accsv_batch_t* batch, const accsv_sequence_t* sequence,
                           uint32_t position, uint32_t sample) {
  const accsv_sampler_t* sampler = &accsv_generation_of(sequence)->sampler;
  batch->sample_positions[sample] = (int32_t)position;
  batch->temperature[sample] = sampler->temperature;
  batch->top_k[sample] = sampler->top_k;
  batch->top_p[sample] = sampler->top_p;
  batch->min_p[sample] = sampler->min_p;
  batch->seeds[2 * (size_t)sample] = (uint32_t)sampler->seed;
  batch->seeds[2 * (size_t)sample + 1] = (uint32_t)(sampler->seed >> 32);
  accsv_sampler_edits(sampler, position - sequence->prompt_count, &batch->edits[sample]);
}

/* `logprobs`: entries for each token, 0 if they are not wanted. */
static void want_logprobs(accrt_serve_step_t* step, uint32_t logprobs) {
  if (logprobs == 0)
    return;
  step->flags |= ACCRT_SERVE_STEP_LOGPROBS;
  if (logprobs - 1 > step->top_count)
    step->top_count = logprobs - 1;
}

static void lay_part_samples(accsv_batch_t* batch, const accsv_part_t* part, uint32_t sample,
                             accsv_laid_t* laid) {
  const accsv_sequence_t* sequence = part->sequence;
  const accsv_generation_t* generation = accsv_generation_of(sequence);
  const uint32_t scores = accsv_part_scores(part), first = accsv_part_sampled(part) + 1;
  *laid = (accsv_laid_t){0};
  for (uint32_t s = 0; s < part->samples; ++s) {
    batch->laid[sample + s].key = 0;
    if (s < scores)
      lay_score(batch, sequence, first + s, sample + s);
    else
      lay_parameters(batch, sequence, first + s, sample + s);
  }
  if (sequence->plain)
    return;
  laid->masked = part->draws && generation->constraint_state != NULL;
  if (part->draws)
    laid->logprobs = (uint16_t)accsv_request_logprobs(generation->request);
  if (scores > 0 && accsv_request_prompt_logprobs(generation->request) > laid->logprobs)
    laid->logprobs = (uint16_t)accsv_request_prompt_logprobs(generation->request);
}

/* Of a sequence that had the same sample in the last step, only places and edits change; edits only
 * while they depend on what was drawn. */
static const accsv_laid_t* lay_next(accsv_batch_t* batch, const accsv_part_t* part,
                                    uint32_t sample) {
  accsv_laid_t* same = &batch->laid[sample];
  const accsv_sequence_t* sequence = part->sequence;
  const uint32_t position = part->start + part->count;
  if (same->key != sequence->key) {
    lay_part_samples(batch, part, sample, same);
    same->key = sequence->key;
    same->prompt_count = sequence->prompt_count;
    same->edited = true;
  }
  batch->sample_positions[sample] = (int32_t)position;
  if (same->edited) {
    const accsv_sampler_t* sampler = &accsv_generation_of(sequence)->sampler;
    const uint32_t drawn = position - same->prompt_count;
    accsv_sampler_edits(sampler, drawn, &batch->edits[sample]);
    if (!sampler->history && drawn >= sampler->min_new_tokens)
      same->edited = false;
  }
  return same;
}

/* Fetches what the edits of a part's sample are made of. */
static void fetch_edits(const accsv_batch_t* batch, const accsv_part_t* part, uint32_t sample) {
  const accsv_sampler_t* sampler = &accsv_generation_of(part->sequence)->sampler;
  if (sample >= batch->samples_most || !batch->laid[sample].edited)
    return;
  __builtin_prefetch(sampler);
}

/* What the model draws, and what a step says of all its samples. */
static void note_laid(const accsv_laid_t* laid, accrt_serve_step_t* step) {
  if (laid->masked)
    step->flags |= ACCRT_SERVE_STEP_MASKS;
  want_logprobs(step, laid->logprobs);
}

/* Lays the listed ones anew, or their edits. */
static void lay_changed(accsv_batch_t* batch, const accsv_plan_t* plan, uint32_t changed,
                        accrt_serve_step_t* step) {
  for (uint32_t c = 0; c < changed; ++c) {
    if (c + AHEAD < changed) {
      const accsv_part_t* ahead = &plan->parts[batch->changed[c + AHEAD]];
      __builtin_prefetch(&accsv_generation_of(ahead->sequence)->sampler);
    }
    const uint32_t i = (uint32_t)batch->changed[c];
    note_laid(lay_next(batch, &plan->parts[i], i), step);
    step->edit_count += batch->edits[i].count;
  }
}

/* Rows that stay: their samples have the same places as they, and most have the same parameters.
 * The others, and those whose edits may change, are listed first: no branch could foresee which. */
static void lay_staying_samples(accsv_batch_t* batch, const accsv_plan_t* plan, uint32_t count,
                                accrt_serve_step_t* step) {
  uint32_t changed = 0;
  accsv_laid_t all = {0};
  for (uint32_t i = 0; i < count; ++i) {
    const accsv_laid_t* laid = &batch->laid[i];
    const bool same = laid->key == batch->row_keys[i] && !laid->edited;
    const uint32_t logprobs = same ? laid->logprobs : 0u;
    batch->sample_positions[i] = batch->kv_lengths[i];
    batch->changed[changed] = (int32_t)i;
    changed += !same;
    step->edit_count += same ? batch->edits[i].count : 0;
    all.masked |= same & laid->masked;
    all.logprobs = (uint16_t)(logprobs > all.logprobs ? logprobs : all.logprobs);
  }
  note_laid(&all, step);
  lay_changed(batch, plan, changed, step);
}

/* What a step needs beside rows of tokens, unless all of it is plain. The first `staying` parts are
 * rows that stay. */
static void lay_sampling(accsv_batch_t* batch, const accsv_plan_t* plan, uint32_t staying,
                         accrt_serve_step_t* step) {
  lay_staying_samples(batch, plan, staying, step);
  for (uint32_t i = staying, sample = staying; i < plan->count; ++i) {
    const accsv_part_t* part = &plan->parts[i];
    accsv_laid_t own;
    const accsv_laid_t* laid = &own;
    if (i + AHEAD < plan->count)
      fetch_edits(batch, part + AHEAD, sample + AHEAD);
    if (part->samples == 1 && part->draws)
      laid = lay_next(batch, part, sample);
    else
      lay_part_samples(batch, part, sample, &own);
    for (uint32_t end = sample + part->samples; sample < end; ++sample)
      step->edit_count += batch->edits[sample].count;
    note_laid(laid, step);
  }
}

/* The part's samples are its last tokens; only the token that is the sequence's next one is kept
 * for its row, and with drafts none: which one it is, is not known. */
static uint32_t lay_samples(accsv_batch_t* batch, const accsv_part_t* part, uint32_t end,
                            uint32_t sample) {
  for (uint32_t i = part->samples; i > 0; --i) {
    batch->sample_tokens[sample] = (int32_t)(end - i);
    batch->sample_rows[sample++] = -1;
  }
  if (part->draws && part->drafts == 0)
    batch->sample_rows[sample - 1] = part->sequence->row;
  return sample;
}

static void lay_copies(accsv_batch_t* batch, const accsv_plan_t* plan) {
  for (uint32_t i = 0; i < plan->copy_count; ++i) {
    batch->copy_from[i] = plan->copies[i].from;
    batch->copy_to[i] = plan->copies[i].to;
    batch->copy_tokens[i] = (int32_t)plan->copies[i].count;
  }
}

static void point_at(const accsv_batch_t* batch, accrt_serve_step_t* step) {
  step->token_ids = batch->token_ids;
  step->positions = batch->positions;
  step->slots = batch->slots;
  step->token_rows = batch->token_rows;
  step->row_starts = batch->row_starts;
  step->row_ids = batch->row_ids;
  step->kv_lengths = batch->kv_lengths;
  step->row_keys = batch->row_keys;
  step->change_slots = batch->change_slots;
  step->change_pages = batch->change_pages;
  step->sample_tokens = batch->sample_tokens;
  step->sample_rows = batch->sample_rows;
  step->embed_tokens = batch->embed_tokens;
  step->copy_from = batch->copy_from;
  step->copy_to = batch->copy_to;
  step->copy_tokens = batch->copy_tokens;
  step->temperature = batch->temperature;
  step->top_k = batch->top_k;
  step->top_p = batch->top_p;
  step->min_p = batch->min_p;
  step->seeds = batch->seeds;
  step->sample_positions = batch->sample_positions;
  step->edits = batch->edits;
}

/* What has been laid so far. */
typedef struct laid {
  uint32_t row, token, sample, embeds, changes;
  bool plain, adapted;
} laid_t;

static void lay_part(accsv_batch_t* batch, const accsv_part_t* part, laid_t* laid) {
  accsv_sequence_t* sequence = part->sequence;
  const uint32_t row = laid->row++;
  if (sequence->unmapped)
    laid->changes = lay_changes(batch, sequence, laid->changes);
  if (!lay_last(batch, part, row, laid->token))
    lay_tokens(batch, part, row, laid->token);
  laid->token += part->count;
  batch->row_starts[row + 1] = (int32_t)laid->token;
  batch->row_ids[row] = sequence->row;
  batch->row_adapters[row] = sequence->adapted ? sequence->adapter : -1;
  laid->adapted |= sequence->adapted;
  batch->kv_lengths[row] = (int32_t)(part->start + part->count);
  batch->row_keys[row] = sequence->key;
  for (uint32_t i = part->embeds; i > 0; --i)
    batch->embed_tokens[laid->embeds++] = (int32_t)(laid->token - i);
  if (part->samples == 0)
    return;
  laid->sample = lay_samples(batch, part, laid->token, laid->sample);
  laid->plain &= sequence->plain;
}

/* A row of a sequence that decodes stays where it was in the step before, if those before it stay:
 * then its token and its sample stand at its own place, and only four numbers change. */
static bool lay_staying(accsv_batch_t* batch, const accsv_part_t* part, uint32_t row) {
  const accsv_sequence_t* sequence = part->sequence;
  const uint32_t start = part->start;
  const uint32_t page_start = (sequence->blocks_held - 1) * batch->page_size;
  if (!part->decodes || batch->row_keys[row] != sequence->key ||
      batch->row_ids[row] != sequence->row || start < page_start)
    return false;
  batch->token_ids[row] = start < sequence->known ? sequence->last_token : -1;
  batch->positions[row] = (int32_t)start;
  batch->slots[row] =
      sequence->last_block * (int32_t)batch->page_size + (int32_t)(start - page_start);
  batch->kv_lengths[row] = (int32_t)(start + 1);
  return true;
}

/* Moves `count` elements of `size` bytes at `row` + `gap` to `row`. */
static void move_up(void* array, size_t size, uint32_t row, uint32_t gap, uint32_t count) {
  char* place = (char*)array + row * size;
  memmove(place, place + gap * size, count * size);
}

/* Rows that stayed have ended: those behind them take their places, with what they are drawn with.
 */
static void close_gap(accsv_batch_t* batch, const accsv_part_t* part, uint32_t row) {
  const uint64_t key = part->sequence->key;
  uint32_t from = row + 1;
  while (from < batch->staying && from <= row + GAP && batch->row_keys[from] != key)
    ++from;
  if (from >= batch->staying || from > row + GAP)
    return;
  const uint32_t gap = from - row, count = batch->staying - from;
  move_up(batch->row_keys, sizeof *batch->row_keys, row, gap, count);
  move_up(batch->row_ids, sizeof *batch->row_ids, row, gap, count);
  move_up(batch->row_adapters, sizeof *batch->row_adapters, row, gap, count);
  move_up(batch->sample_rows, sizeof *batch->sample_rows, row, gap, count);
  move_up(batch->laid, sizeof *batch->laid, row, gap, count);
  move_up(batch->edits, sizeof *batch->edits, row, gap, count);
  move_up(batch->temperature, sizeof *batch->temperature, row, gap, count);
  move_up(batch->top_k, sizeof *batch->top_k, row, gap, count);
  move_up(batch->top_p, sizeof *batch->top_p, row, gap, count);
  move_up(batch->min_p, sizeof *batch->min_p, row, gap, count);
  move_up(batch->seeds, 2 * sizeof *batch->seeds, row, gap, count);
  batch->staying -= gap;
}

/* Lays rows, the first ones in short as long as each is at its place. Returns how many of them. */
static uint32_t lay_decoding(accsv_batch_t* batch, const accsv_plan_t* plan, laid_t* laid) {
  uint32_t row = 0;
  for (; row < plan->count; ++row) {
    const accsv_part_t* part = &plan->parts[row];
    accsv_sequence_t* sequence = part->sequence;
    if (row < batch->staying && batch->row_keys[row] != sequence->key)
      close_gap(batch, part, row);
    if (row >= batch->staying || !lay_staying(batch, part, row)) {
      if (!part->decodes)
        break;
      laid->row = laid->token = laid->sample = row;
      lay_part(batch, part, laid);
    } else if (sequence->unmapped) {
      laid->changes = lay_changes(batch, sequence, laid->changes);
    }
    laid->plain &= sequence->plain;
    laid->adapted |= sequence->adapted;
  }
  laid->row = laid->token = laid->sample = batch->staying = row;
  return row;
}

void accsv_batch_lay(accsv_batch_t* batch, const accsv_plan_t* plan, accrt_serve_step_t* step) {
  *step = (accrt_serve_step_t){.struct_size = sizeof *step,
                               .number = plan->step,
                               .token_count = plan->tokens,
                               .row_count = plan->count,
                               .sample_count = plan->samples,
                               .copy_count = plan->copy_count};
  laid_t laid = {.plain = true};
  lay_copies(batch, plan);
  batch->row_starts[0] = 0;
  const uint32_t decoding = lay_decoding(batch, plan, &laid);
  for (uint32_t i = decoding; i < plan->count; ++i) {
    if (!plan->parts[i].sequence->embeds)
      lay_part(batch, &plan->parts[i], &laid);
  }
  step->embed_row_count = plan->count - laid.row;
  for (uint32_t i = 0; laid.row < plan->count; ++i) { /* those that are embedded come last */
    if (plan->parts[i].sequence->embeds)
      lay_part(batch, &plan->parts[i], &laid);
  }
  if (laid.plain)
    step->flags |= ACCRT_SERVE_STEP_GREEDY;
  else
    lay_sampling(batch, plan, decoding, step);
  step->change_count = laid.changes;
  step->embed_count = laid.embeds;
  point_at(batch, step);
  step->row_adapters = laid.adapted ? batch->row_adapters : NULL;
}
