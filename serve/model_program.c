/* serve/model_program.c - a bundle's step program as a model (docs/serving-model.md).
 *
 * Each function has a call for each combination of sizes that steps have had. Its arguments lie at
 * fixed places and are bound once, so a step makes no plan and patches no graph. The inputs of a
 * step are laid into one range of memory, and its results are taken from another.
 *
 * On a device with memory of its own both ranges exist on the device and, for each step in flight,
 * in pinned host memory: a step is a copy, `step`, `sample` or `sample_greedy`, and a copy back,
 * all on the session's stream, and only `wait` waits. On hosts there is one range, and
 * `submit` runs the step. This file schedules nothing.
 */
#include <string.h>

#include "serve/model.h"
#include "serve/program_calls.h"

/* ---- Sizes ---- */

/* Tokens of prompts are many for each row: few sizes of rows will do for them. */
static const uint32_t coarse_rows[] = {1, 8, 64, UINT32_MAX};
#define COARSE_COUNT (sizeof coarse_rows / sizeof *coarse_rows)

/* A copy on a card is two kernels for each state, which a few tokens of a prompt are not worth. */
#define CARD_COPY_TOKENS 8u

static uint32_t round_rows(const accsv_program_model_t* model, uint32_t rows) {
  uint32_t i = 0;
  while (coarse_rows[i] < rows)
    ++i;
  return accsv_round_up(&model->description, ROWS, coarse_rows[i]);
}

static uint32_t smaller(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* Each combination of sizes that a step may have on a card has a graph, so they are few. */
static void choose_few(const accsv_program_model_t* model, uint32_t tokens, uint32_t rows,
                       uint32_t* sizes) {
  const accsv_description_t* description = &model->description;
  const bool decodes = tokens <= rows;
  uint32_t most[SIZE_COUNT];
  accsv_program_largest_sizes(model, most);
  const uint32_t some = decodes ? accsv_round_up(description, ROWS, rows) : round_rows(model, rows);
  sizes[ROWS] = smaller(some, most[ROWS]);
  sizes[TOKENS] =
      smaller(accsv_round_up(description, TOKENS, decodes ? sizes[ROWS] : tokens), most[TOKENS]);
  sizes[SAMPLES] = smaller(accsv_round_up(description, SAMPLES, sizes[ROWS]), most[SAMPLES]);
  /* A row that decodes gets a page now and then. */
  sizes[CHANGES] = accsv_round_up(description, CHANGES, decodes ? sizes[ROWS] / 4 : UINT32_MAX);
}

static void choose_sizes(const accsv_program_model_t* model, const accrt_serve_step_t* step,
                         uint32_t* sizes) {
  const accsv_description_t* description = &model->description;
  if (!model->is_host) {
    choose_few(model, step->token_count, step->row_count, sizes);
    if (step->sample_count > sizes[SAMPLES]) /* rows with several are not foreseen */
      sizes[SAMPLES] = accsv_round_up(description, SAMPLES, step->sample_count);
  } else {
    sizes[TOKENS] = accsv_round_up(description, TOKENS, step->token_count);
    sizes[ROWS] = accsv_round_up(description, ROWS, step->row_count);
    sizes[SAMPLES] = accsv_round_up(description, SAMPLES, step->sample_count);
    sizes[CHANGES] = accsv_round_up(description, CHANGES, step->change_count);
  }
  sizes[EDITS] = accsv_round_up(description, EDITS, step->edit_count);
}

/* ---- A step ---- */

static uint32_t slot_of(const accsv_program_model_t* model, uint64_t number) {
  return (uint32_t)(number % model->slots);
}

static void* place(const accsv_program_model_t* model, uint32_t area, uint32_t slot,
                   uint64_t offset) {
  return model->areas[area].at[slot] + offset;
}

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

static accrt_status_t reserve(accsv_program_model_t* model, uint32_t index, uint64_t size_bytes) {
  accsv_area_t* area = &model->areas[index];
  if (size_bytes <= area->size_bytes)
    return ACCRT_OK;
  accsv_area_t larger;
  ACCRT_TRY(accsv_program_make_area(model, 2 * size_bytes, true, &larger));
  accsv_program_release_area(area); /* steps in flight keep it */
  *area = larger;
  return ACCRT_OK;
}

/* Calls a function of two columns of integers, in parts of `most` rows that lie in `area`. */
static accrt_status_t go_parts(accsv_program_model_t* model, accsv_function_t* function,
                               accsv_bound_t* bound, uint32_t area, uint32_t slot, uint32_t most,
                               uint32_t parts) {
  const uint32_t sizes[SIZE_COUNT] = {[CHANGES] = most};
  ACCRT_TRY(accsv_program_copy(model, area, slot, 0, parts * bound->end, true));
  for (uint32_t i = 0; i < parts; ++i) {
    for (uint32_t k = 0; k < function->count; ++k)
      ACCRT_TRY(accsv_program_bind_argument(model, function, bound, k, sizes, i * bound->end));
    ACCRT_TRY(accsv_program_go(model, bound));
  }
  return ACCRT_OK;
}

/* Changes that the step has no room for come before it. */
static accrt_status_t change_pages(accsv_program_model_t* model, const accrt_serve_step_t* step,
                                   uint32_t slot, uint32_t count) {
  if (count == 0)
    return ACCRT_OK;
  const uint32_t most = accsv_largest(&model->description, CHANGES);
  const uint32_t parts = (count + most - 1) / most;
  const uint32_t sizes[SIZE_COUNT] = {[CHANGES] = most};
  accsv_bound_t* update;
  ACCRT_TRY(accsv_program_find_bound(model, &model->update, sizes, &update));
  const uint64_t part_bytes = update->end;
  ACCRT_TRY(reserve(model, UPDATES, parts * part_bytes));
  for (uint32_t i = 0; i < parts; ++i) {
    const uint32_t first = i * most, some = count - first < most ? count - first : most;
    fill(place(model, UPDATES, slot, i * part_bytes + update->offsets[0]),
         step->change_slots + first, some, most, -1);
    fill(place(model, UPDATES, slot, i * part_bytes + update->offsets[1]),
         step->change_pages + first, some, most, 0);
  }
  return go_parts(model, &model->update, update, UPDATES, slot, most, parts);
}

/* Lays the slots of copies, one after the other; behind the last one, copies to nowhere. */
static void fill_copies(const accsv_program_model_t* model, const accrt_serve_step_t* step,
                        const accsv_bound_t* bound, uint32_t slot, uint32_t most, uint32_t parts) {
  uint32_t at = 0;
  int32_t *from = NULL, *to = NULL;
  for (uint32_t i = 0; i < step->copy_count; ++i) {
    for (int32_t k = 0; k < step->copy_tokens[i]; ++k, ++at) {
      if (at % most == 0) {
        from = place(model, COPIES, slot, at / most * bound->end + bound->offsets[0]);
        to = place(model, COPIES, slot, at / most * bound->end + bound->offsets[1]);
      }
      from[at % most] = step->copy_from[i] + k;
      to[at % most] = step->copy_to[i] + k;
    }
  }
  const uint32_t used = at - (parts - 1) * most;
  fill(from + used, NULL, 0, most - used, 0);
  fill(to + used, NULL, 0, most - used, -1);
}

/* Parts of pages that others have computed, before anything reads them. */
static accrt_status_t copy_rows(accsv_program_model_t* model, const accrt_serve_step_t* step) {
  const uint32_t slot = slot_of(model, step->number);
  uint32_t count = 0;
  for (uint32_t i = 0; i < step->copy_count; ++i)
    count += (uint32_t)step->copy_tokens[i];
  if (count == 0)
    return ACCRT_OK;
  const uint32_t most = accsv_round_up(&model->description, CHANGES, count);
  const uint32_t parts = (count + most - 1) / most;
  const uint32_t sizes[SIZE_COUNT] = {[CHANGES] = most};
  accsv_bound_t* bound;
  ACCRT_TRY(accsv_program_find_bound(model, &model->copy, sizes, &bound));
  ACCRT_TRY(reserve(model, COPIES, parts * bound->end));
  fill_copies(model, step, bound, slot, most, parts);
  return go_parts(model, &model->copy, bound, COPIES, slot, most, parts);
}

/* The adapter of each token is that of its row. */
static void fill_adapters(int32_t* to, const accrt_serve_step_t* step, uint32_t size) {
  const uint32_t tokens = step->row_adapters != NULL ? step->token_count : 0;
  for (uint32_t i = 0; i < tokens; ++i)
    to[i] = step->row_adapters[step->token_rows[i]];
  fill(to + tokens, NULL, 0, size - tokens, -1);
}

/* The step's changes but for the `first` ones. */
static void fill_step(const accrt_serve_step_t* step, const accsv_bound_t* bound,
                      const uint32_t* sizes, unsigned char* base, uint32_t first,
                      bool has_adapters) {
  const uint64_t* at = bound->offsets;
  const uint32_t tokens = step->token_count, rows = step->row_count;
  const uint32_t changes = step->change_count - first;
#define AT(index) (int32_t*)(void*)(base + at[index])
  fill(AT(TOKEN_IDS), step->token_ids, tokens, sizes[TOKENS], 0);
  fill(AT(POSITIONS), step->positions, tokens, sizes[TOKENS], 0);
  fill(AT(SLOT_IDS), step->slots, tokens, sizes[TOKENS], -1);
  fill(AT(TOKEN_ROWS), step->token_rows, tokens, sizes[TOKENS], 0);
  fill(AT(ROW_STARTS), step->row_starts, rows + 1, sizes[ROWS] + 1, (int32_t)tokens);
  fill(AT(ROW_IDS), step->row_ids, rows, sizes[ROWS], 0);
  fill(AT(KV_LENGTHS), step->kv_lengths, rows, sizes[ROWS], 0);
  fill(AT(CHANGE_SLOTS), changes > 0 ? step->change_slots + first : NULL, changes, sizes[CHANGES],
       -1);
  fill(AT(CHANGE_PAGES), changes > 0 ? step->change_pages + first : NULL, changes, sizes[CHANGES],
       0);
  fill(AT(SAMPLE_TOKENS), step->sample_tokens, step->sample_count, sizes[SAMPLES], 0);
  if (has_adapters)
    fill_adapters(AT(TOKEN_ADAPTERS), step, sizes[TOKENS]);
#undef AT
}

/* What a call of a sampler is about: samples [first, end) alone leave their tokens, and have their
 * edits and masks. */
typedef struct part {
  uint32_t slot, first, end;
  const accrt_serve_masks_t* masks; /* NULL: none */
} part_t;

/* The masks of a part, one after the other. Returns how many there are. */
static uint32_t fill_masks(const accsv_program_model_t* model, const part_t* part, int32_t* rows) {
  const accrt_serve_masks_t* masks = part->masks;
  uint32_t used = 0;
  for (uint32_t i = part->first; masks != NULL && i < part->end; ++i) {
    if (masks->rows[i] < 0)
      continue;
    const size_t mask_bytes = masks->words * sizeof *masks->bits;
    memcpy(place(model, MASKS, part->slot, used * mask_bytes),
           masks->bits + (size_t)masks->rows[i] * masks->words, mask_bytes);
    rows[i] = (int32_t)used++;
  }
  return used;
}

static uint32_t edits_of(const accrt_serve_step_t* step, uint32_t first, uint32_t end) {
  uint32_t count = 0;
  for (uint32_t i = first; i < end; ++i)
    count += step->edits[i].count;
  return count;
}

/* Where the inputs of edits lie. */
typedef struct edits {
  int32_t *starts, *tokens;
  float *multiply, *add;
} edits_t;

/* The edits of a part's samples, one after the other. */
static void fill_edits(const accrt_serve_step_t* step, const part_t* part, const uint32_t* sizes,
                       const edits_t* to) {
  uint32_t used = 0;
  for (uint32_t i = 0; i <= sizes[SAMPLES]; ++i) {
    to->starts[i] = (int32_t)used;
    if (i < part->first || i >= part->end || step->edits[i].count == 0)
      continue;
    const accrt_serve_edits_t* edits = &step->edits[i];
    memcpy(to->tokens + used, edits->tokens, edits->count * sizeof *edits->tokens);
    memcpy(to->multiply + used, edits->multiply, edits->count * sizeof *edits->multiply);
    memcpy(to->add + used, edits->add, edits->count * sizeof *edits->add);
    used += edits->count;
  }
  fill(to->tokens + used, NULL, 0, sizes[EDITS] - used, 0);
  fill_numbers(to->multiply + used, NULL, 0, sizes[EDITS] - used, 1.0f);
  fill_numbers(to->add + used, NULL, 0, sizes[EDITS] - used, 0.0f);
}

/* Lays the part's inputs, and copies its masks. The other inputs may go with those of the step. */
static accrt_status_t fill_sample(accsv_program_model_t* model, const accrt_serve_step_t* step,
                                  const accsv_bound_t* bound, const uint32_t* sizes,
                                  const part_t* part) {
  const uint32_t slot = part->slot, first = part->first, end = part->end;
  unsigned char* base = model->areas[INPUTS].at[slot];
  const uint64_t* at = bound->offsets;
  const uint32_t size = sizes[SAMPLES], count = step->sample_count;
#define INTEGERS(index) (int32_t*)(void*)(base + at[index])
#define NUMBERS(index) (float*)(void*)(base + at[index])
  int32_t* rows = INTEGERS(SAMPLE_ROWS);
  fill(rows, NULL, 0, first, -1);
  fill(rows + first, step->sample_rows + first, end - first, size - first, -1);
  fill_numbers(NUMBERS(TEMPERATURE), step->temperature, count, size, 0.0f);
  fill(INTEGERS(TOP_K), step->top_k, count, size, 0);
  fill_numbers(NUMBERS(TOP_P), step->top_p, count, size, 1.0f);
  fill_numbers(NUMBERS(MIN_P), step->min_p, count, size, 0.0f);
  fill(INTEGERS(SEED), (const int32_t*)step->seeds, 2 * count, 2 * size, 0);
  fill(INTEGERS(SAMPLE_POSITIONS), step->sample_positions, count, size, 0);
  fill(INTEGERS(MASK_ROWS), NULL, 0, size, -1);
  const uint32_t masks = fill_masks(model, part, INTEGERS(MASK_ROWS));
  const edits_t edits = {INTEGERS(EDIT_STARTS), INTEGERS(EDIT_TOKENS), NUMBERS(EDIT_MULTIPLY),
                         NUMBERS(EDIT_ADD)};
  fill_edits(step, part, sizes, &edits);
#undef INTEGERS
#undef NUMBERS
  const uint64_t words = (model->description.vocab_size + 31) / 32;
  return masks == 0
             ? ACCRT_OK
             : accsv_program_copy(model, MASKS, slot, 0, masks * words * ELEMENT_BYTES, true);
}

/* Notes where results lie, and copies those that are wanted to the host. */
static accrt_status_t take_back(accsv_program_model_t* model, const accrt_serve_step_t* step,
                                uint32_t slot, const accsv_bound_t* bound, bool greedy,
                                uint64_t base) {
  accsv_pending_t* pending = &model->pending[slot];
  *pending = (accsv_pending_t){0};
  if (greedy) {
    pending->offsets[TOKEN] = base + bound->offsets[GREEDY_TOKEN];
    return accsv_program_copy(model, RESULTS, slot, base,
                              base + step->sample_count * sizeof(int32_t), false);
  }
  for (uint32_t i = TOKEN; i <= TOP_LOGPROBS; ++i)
    pending->offsets[i] = base + bound->offsets[i];
  pending->has_logprobs = (step->flags & ACCRT_SERVE_STEP_LOGPROBS) != 0;
  pending->has_top = pending->has_logprobs && step->top_count > 0;
  uint64_t end = base + step->sample_count * sizeof(int32_t);
  if (pending->has_top)
    end = base + bound->results_end;
  else if (pending->has_logprobs)
    end = base + bound->offsets[TOP_IDS];
  return accsv_program_copy(model, RESULTS, slot, base, end, false);
}

/* Keeps the results of samples [first, end), which the next part would write over. */
static accrt_status_t gather(accsv_program_model_t* model, const accsv_bound_t* bound,
                             uint32_t first, uint32_t end) {
  accrt_buffer_t* results = model->areas[RESULTS].device;
  for (uint32_t i = TOKEN; i <= TOP_LOGPROBS; ++i) {
    const uint32_t columns = model->sample.arguments[i].columns;
    const uint64_t row_bytes = (columns != 0 ? columns : 1) * ELEMENT_BYTES;
    const uint64_t offset = bound->offsets[i] + first * row_bytes;
    const accrt_place_t from = {.buffer = results, .offset_bytes = offset};
    const accrt_place_t to = {.buffer = results, .offset_bytes = model->gathered + offset};
    ACCRT_TRY(accrt_stream_copy(model->stream, &from, &to, (end - first) * row_bytes));
  }
  return ACCRT_OK;
}

/* The part's inputs lie where those of the part before did, so the host waits. */
static accrt_status_t run_part(accsv_program_model_t* model, const accrt_serve_step_t* step,
                               const uint32_t* step_sizes, const part_t* part) {
  uint32_t sizes[SIZE_COUNT];
  accsv_bound_t* bound;
  memcpy(sizes, step_sizes, sizeof sizes);
  sizes[EDITS] = accsv_round_up(&model->description, EDITS, edits_of(step, part->first, part->end));
  ACCRT_TRY(accsv_program_find_bound(model, &model->sample, sizes, &bound));
  ACCRT_TRY(fill_sample(model, step, bound, sizes, part));
  ACCRT_TRY(accsv_program_copy(model, INPUTS, part->slot, bound->begin, bound->end, true));
  ACCRT_TRY(accsv_program_go(model, bound));
  ACCRT_TRY(gather(model, bound, part->first, part->end));
  return accrt_stream_synchronize(model->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
}

/* In parts, where there are more edits than one call takes. */
static accrt_status_t run_parts(accsv_program_model_t* model, const accrt_serve_step_t* step,
                                const accrt_serve_masks_t* masks, const uint32_t* sizes) {
  const uint32_t most = accsv_largest(&model->description, EDITS);
  part_t part = {.slot = slot_of(model, step->number), .masks = masks};
  for (; part.first < step->sample_count; part.first = part.end) {
    uint32_t count = step->edits[part.first].count;
    if (count > most)
      return ACCSV_FAIL(OUT_OF_RANGE, "a sample has %" PRIu32 " edits of logits, at most %" PRIu32,
                        count, most);
    part.end = part.first + 1;
    while (part.end < step->sample_count && step->edits[part.end].count <= most - count)
      count += step->edits[part.end++].count;
    ACCRT_TRY(run_part(model, step, sizes, &part));
  }
  accsv_bound_t whole;
  accsv_program_lay(model, &model->sample, sizes, &whole);
  return take_back(model, step, part.slot, &whole, false, model->gathered);
}

static bool is_in_parts(const accrt_serve_step_t* step, const uint32_t* sizes) {
  return (step->flags & ACCRT_SERVE_STEP_GREEDY) == 0 && step->edit_count > sizes[EDITS];
}

/* The sampler of a step, with its inputs laid. */
static accrt_status_t lay_sampler(accsv_program_model_t* model, const accrt_serve_step_t* step,
                                  const accrt_serve_masks_t* masks, const uint32_t* sizes,
                                  accsv_bound_t** out_sampler) {
  const bool greedy = (step->flags & ACCRT_SERVE_STEP_GREEDY) != 0;
  const part_t all = {slot_of(model, step->number), 0, step->sample_count, masks};
  ACCRT_TRY(accsv_program_find_bound(model, greedy ? &model->greedy : &model->sample, sizes,
                                     out_sampler));
  const accsv_bound_t* sampler = *out_sampler;
  if (!greedy)
    return fill_sample(model, step, sampler, sizes, &all);
  fill(place(model, INPUTS, all.slot, sampler->offsets[SAMPLE_ROWS]), step->sample_rows,
       step->sample_count, sizes[SAMPLES], -1);
  return ACCRT_OK;
}

/* The sampler whose inputs are on their way, and what it gives. */
static accrt_status_t draw(accsv_program_model_t* model, const accrt_serve_step_t* step,
                           const accsv_bound_t* sampler) {
  ACCRT_TRY(accsv_program_go(model, sampler));
  return take_back(model, step, slot_of(model, step->number), sampler,
                   (step->flags & ACCRT_SERVE_STEP_GREEDY) != 0, 0);
}

/* What computes the step: without adapters where no row has one. */
static accsv_function_t* forward_of(accsv_program_model_t* model, const accrt_serve_step_t* step) {
  return model->description.has_plain && step->row_adapters == NULL ? &model->plain : &model->step;
}

static bool takes_adapters(const accsv_program_model_t* model, const accsv_function_t* function) {
  return model->description.adapters > 0 && function != &model->plain;
}

/* The step, and the sampler behind it unless that waits for masks. */
static accrt_status_t run_step(accsv_program_model_t* model, const accrt_serve_step_t* step,
                               const uint32_t* sizes) {
  const uint32_t slot = slot_of(model, step->number);
  const bool draws = step->sample_count > 0 && (step->flags & ACCRT_SERVE_STEP_MASKS) == 0;
  const uint32_t early =
      step->change_count > sizes[CHANGES] ? step->change_count - sizes[CHANGES] : 0;
  accsv_bound_t *forward, *sampler = NULL;
  ACCRT_TRY(change_pages(model, step, slot, early));
  accsv_function_t* function = forward_of(model, step);
  ACCRT_TRY(accsv_program_find_bound(model, function, sizes, &forward));
  fill_step(step, forward, sizes, model->areas[INPUTS].at[slot], early,
            takes_adapters(model, function));
  if (draws && !is_in_parts(step, sizes))
    ACCRT_TRY(lay_sampler(model, step, NULL, sizes, &sampler));
  const uint64_t end = sampler != NULL ? sampler->end : forward->end;
  ACCRT_TRY(accsv_program_copy(model, INPUTS, slot, forward->begin, end, true));
  ACCRT_TRY(accsv_program_go(model, forward));
  if (sampler != NULL)
    return draw(model, step, sampler);
  return draws ? run_parts(model, step, NULL, sizes) : ACCRT_OK;
}

/* `wait` waits for all that the step has until now. */
static accrt_status_t mark(accsv_program_model_t* model, uint64_t number) {
  return model->is_host ? ACCRT_OK
                        : accrt_stream_record(model->stream, model->events[slot_of(model, number)]);
}

/* ---- Embeddings: the last rows of a step ---- */

/* The step without the rows that are embedded. */
static accrt_serve_step_t without_embeds(const accrt_serve_step_t* step) {
  accrt_serve_step_t rest = *step;
  rest.row_count -= step->embed_row_count;
  rest.token_count = (uint32_t)step->row_starts[rest.row_count];
  return rest;
}

/* These rows alone; their tokens and rows are still counted from the step's beginning. */
static accrt_serve_step_t embeds_alone(const accrt_serve_step_t* step) {
  const uint32_t row = step->row_count - step->embed_row_count;
  const uint32_t token = (uint32_t)step->row_starts[row];
  accrt_serve_step_t alone = *step;
  alone.row_count = step->embed_row_count;
  alone.token_count -= token;
  alone.token_ids += token;
  alone.positions += token;
  alone.slots += token;
  alone.token_rows += token;
  alone.row_starts += row;
  alone.row_ids += row;
  alone.kv_lengths += row;
  alone.sample_tokens = step->embed_tokens;
  alone.sample_count = step->embed_count;
  if (row > 0) /* `step` has made them */
    alone.change_count = 0;
  return alone;
}

static void count_from(int32_t* numbers, uint32_t count, int32_t first) {
  for (uint32_t i = 0; i < count; ++i)
    numbers[i] -= first;
}

static accrt_status_t run_embed(accsv_program_model_t* model, const accrt_serve_step_t* step) {
  const uint32_t slot = slot_of(model, step->number);
  const accrt_serve_step_t alone = embeds_alone(step);
  const int32_t row = (int32_t)(step->row_count - alone.row_count), token = alone.row_starts[0];
  uint32_t sizes[SIZE_COUNT];
  accsv_bound_t* bound;
  choose_sizes(model, &alone, sizes);
  if (sizes[SAMPLES] < alone.sample_count)
    sizes[SAMPLES] = accsv_round_up(&model->description, SAMPLES, alone.sample_count);
  const uint32_t early =
      alone.change_count > sizes[CHANGES] ? alone.change_count - sizes[CHANGES] : 0;
  ACCRT_TRY(change_pages(model, &alone, slot, early));
  ACCRT_TRY(accsv_program_find_bound(model, &model->embed, sizes, &bound));
  unsigned char* base = model->areas[EMBED_INPUTS].at[slot];
  const uint64_t* at = bound->offsets;
  fill_step(&alone, bound, sizes, base, early, model->description.adapters > 0);
  count_from((int32_t*)(void*)(base + at[TOKEN_ROWS]), alone.token_count, row);
  count_from((int32_t*)(void*)(base + at[ROW_STARTS]), alone.row_count + 1, token);
  count_from((int32_t*)(void*)(base + at[SAMPLE_TOKENS]), alone.sample_count, token);
  ACCRT_TRY(accsv_program_copy(model, EMBED_INPUTS, slot, 0, bound->end, true));
  ACCRT_TRY(accsv_program_go(model, bound));
  const uint64_t row_bytes = (uint64_t)model->description.hidden_size * ELEMENT_BYTES;
  return alone.sample_count == 0
             ? ACCRT_OK
             : accsv_program_copy(model, HIDDEN, slot, 0, alone.sample_count * row_bytes, false);
}

static accrt_status_t submit(void* self, const accrt_serve_step_t* step) {
  accsv_program_model_t* model = self;
  const accrt_serve_step_t rest = without_embeds(step);
  uint32_t sizes[SIZE_COUNT];
  choose_sizes(model, &rest, sizes);
  ACCRT_TRY(copy_rows(model, step));
  if (rest.row_count > 0)
    ACCRT_TRY(run_step(model, &rest, sizes));
  if (step->embed_row_count > 0)
    ACCRT_TRY(run_embed(model, step));
  return mark(model, step->number);
}

static accrt_status_t sample_step(void* self, const accrt_serve_step_t* whole,
                                  const accrt_serve_masks_t* masks) {
  accsv_program_model_t* model = self;
  const accrt_serve_step_t rest = without_embeds(whole), *step = &rest;
  uint32_t sizes[SIZE_COUNT];
  accsv_bound_t* sampler;
  choose_sizes(model, step, sizes);
  if (is_in_parts(step, sizes)) {
    ACCRT_TRY(run_parts(model, step, masks, sizes));
    return mark(model, step->number);
  }
  ACCRT_TRY(lay_sampler(model, step, masks, sizes, &sampler));
  ACCRT_TRY(accsv_program_copy(model, INPUTS, slot_of(model, step->number), sampler->begin,
                               sampler->end, true));
  ACCRT_TRY(draw(model, step, sampler));
  return mark(model, step->number);
}

static accrt_status_t wait_step(void* self, uint64_t number, accrt_serve_results_t* out_results) {
  const accsv_program_model_t* model = self;
  const uint32_t slot = slot_of(model, number);
  const accsv_pending_t* pending = &model->pending[slot];
  if (!model->is_host) /* else submit has run it */
    ACCRT_TRY(
        accrt_event_synchronize(model->events[slot], ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  out_results->tokens = place(model, RESULTS, slot, pending->offsets[TOKEN]);
  if (model->description.hidden_size > 0)
    out_results->embeddings = place(model, HIDDEN, slot, 0);
  if (!pending->has_logprobs)
    return ACCRT_OK;
  out_results->logprobs = place(model, RESULTS, slot, pending->offsets[LOGPROB]);
  out_results->ranks = place(model, RESULTS, slot, pending->offsets[RANK]);
  if (!pending->has_top)
    return ACCRT_OK;
  out_results->top_count = TOP;
  out_results->top_tokens = place(model, RESULTS, slot, pending->offsets[TOP_IDS]);
  out_results->top_logprobs = place(model, RESULTS, slot, pending->offsets[TOP_LOGPROBS]);
  return ACCRT_OK;
}

static accrt_status_t reset(void* self) {
  accsv_program_model_t* model = self;
  return accsv_program_adapters_reset(&model->adapters, model->device, model->session);
}

static accrt_status_t set_adapter(void* self, uint32_t place,
                                  const accrt_serve_adapter_tensor_t* tensors,
                                  uint32_t tensor_count) {
  accsv_program_model_t* model = self;
  return accsv_program_adapters_set(&model->adapters, model->stream, place, tensors, tensor_count);
}

static accrt_status_t info(void* self, accrt_serve_model_info_t* out_info) {
  const accsv_program_model_t* model = self;
  const accsv_description_t* description = &model->description;
  out_info->flags = model->is_host ? 0 : ACCRT_SERVE_MODEL_OVERLAP;
  if (model->is_host ? description->host_invariant : description->invariant)
    out_info->flags |= ACCRT_SERVE_MODEL_BATCH_INVARIANT;
  if (description->states_of_pages)
    out_info->flags |= ACCRT_SERVE_MODEL_STATES_OF_PAGES;
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
  out_info->adapter_count = description->adapters;
  out_info->max_samples = model->memory.max_samples;
  out_info->embedding_size = description->hidden_size;
  if (description->copies_rows)
    out_info->min_copy_tokens = model->is_host ? 1 : CARD_COPY_TOKENS;
  return ACCRT_OK;
}

/* ---- Preparation: the plans and graphs of the sizes that steps have ---- */

/* A combination of sizes, unless it is listed. */
static accrt_status_t list_shape(accsv_program_model_t* model, uint32_t tokens, uint32_t rows) {
  accsv_shape_t shape = {{0}};
  choose_few(model, tokens, rows, shape.sizes);
  shape.sizes[EDITS] = model->description.buckets[EDITS].sizes[0];
  for (uint32_t i = 0; i < model->shape_count; ++i) {
    if (memcmp(&model->shapes[i], &shape, sizeof shape) == 0)
      return ACCRT_OK;
  }
  if (model->shape_count == model->shapes_most)
    return ACCSV_FAIL(OUT_OF_RANGE, "more than %" PRIu32 " sizes of steps", model->shapes_most);
  model->shapes[model->shape_count++] = shape;
  return ACCRT_OK;
}

/* Steps that decode first: they are most of all. */
static accrt_status_t list_shapes(accsv_program_model_t* model) {
  const accsv_buckets_t* rows = &model->description.buckets[ROWS];
  const accsv_buckets_t* tokens = &model->description.buckets[TOKENS];
  const uint32_t most_rows = model->memory.max_rows, most_tokens = model->memory.max_tokens;
  model->shapes_most = rows->count + tokens->count * (uint32_t)COARSE_COUNT;
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, model->shapes_most, &model->shapes));
  for (uint32_t i = 0; i < rows->count && (i == 0 || rows->sizes[i - 1] < most_rows); ++i)
    ACCRT_TRY(list_shape(model, rows->sizes[i], rows->sizes[i]));
  for (uint32_t i = 0; i < tokens->count && (i == 0 || tokens->sizes[i - 1] < most_tokens); ++i) {
    /* The fewest rows of each coarse size; each has a token, and one has several. */
    for (uint32_t k = 0, fewest = 1;
         k < COARSE_COUNT && fewest <= most_rows && fewest < tokens->sizes[i];
         fewest = coarse_rows[k++] + 1)
      ACCRT_TRY(list_shape(model, tokens->sizes[i], fewest));
  }
  return ACCRT_OK;
}

/* Runs a step of padding alone, with each sampler: it writes nothing but logits and results. */
static accrt_status_t run_padding(accsv_program_model_t* model, accsv_function_t* function,
                                  const uint32_t* sizes) {
  static const int32_t zero[1];
  static const float number[1];
  accrt_serve_step_t step = {.struct_size = sizeof step};
  accsv_bound_t *forward, *greedy, *sample;
  step.row_starts = step.change_slots = zero;
  step.sample_rows = step.top_k = step.sample_positions = zero;
  step.seeds = (const uint32_t*)zero;
  step.temperature = step.top_p = step.min_p = number;
  ACCRT_TRY(accsv_program_find_bound(model, function, sizes, &forward));
  ACCRT_TRY(accsv_program_find_bound(model, &model->greedy, sizes, &greedy));
  ACCRT_TRY(accsv_program_find_bound(model, &model->sample, sizes, &sample));
  fill_step(&step, forward, sizes, model->areas[INPUTS].at[0], 0, takes_adapters(model, function));
  const part_t none = {0};
  ACCRT_TRY(fill_sample(model, &step, sample, sizes, &none)); /* its rows are those of `greedy` */
  ACCRT_TRY(accsv_program_copy(model, INPUTS, 0, forward->begin, sample->end, true));
  ACCRT_TRY(accsv_program_go(model, forward));
  ACCRT_TRY(accsv_program_go(model, greedy));
  ACCRT_TRY(accsv_program_go(model, sample));
  return accrt_stream_synchronize(model->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
}

static accrt_status_t prepare(void* self, uint32_t* out_left) {
  accsv_program_model_t* model = self;
  if (model->prepared < model->shape_count) {
    const uint32_t* sizes = model->shapes[model->prepared++].sizes;
    ACCRT_TRY(run_padding(model, &model->step, sizes));
    if (model->description.has_plain)
      ACCRT_TRY(run_padding(model, &model->plain, sizes));
  }
  *out_left = model->shape_count - model->prepared;
  return ACCRT_OK;
}

/* ---- Making ---- */

static void destroy_function(accsv_function_t* function) {
  accsv_program_release_calls(function);
  ACCSV_FREE(&accsv_allocator_system, function->bound, function->bound_count);
}

static void destroy(void* self) {
  accsv_program_model_t* model = self;
  destroy_function(&model->step);
  destroy_function(&model->plain);
  destroy_function(&model->update);
  destroy_function(&model->copy);
  destroy_function(&model->sample);
  destroy_function(&model->greedy);
  destroy_function(&model->embed);
  accsv_program_adapters_deinit(&model->adapters);
  accrt_session_release(model->session);
  for (uint32_t i = 0; i < AREA_COUNT; ++i)
    accsv_program_release_area(&model->areas[i]);
  for (uint32_t i = 0; i < SLOTS; ++i)
    accrt_event_release(model->events[i]);
  ACCSV_FREE(&accsv_allocator_system, model->shapes, model->shapes_most);
  accrt_program_release(model->program);
  accrt_device_release(model->device);
  ACCSV_FREE(&accsv_allocator_system, model, 1);
}

static accrt_status_t make_session(accsv_program_model_t* model) {
  const accrt_symbol_value_t symbols[] = {{"pages", model->memory.pages},
                                          {"table_rows", model->memory.max_rows},
                                          {"table_pages", model->memory.row_pages}};
  accrt_session_options_t options = ACCRT_SESSION_OPTIONS_INIT;
  options.symbols = symbols;
  options.symbol_count = sizeof symbols / sizeof *symbols;
  options.symbol_size_bytes = sizeof *symbols;
  options.max_plans = PLANS;
  options.label = "serve";
  ACCRT_TRY(accrt_session_create(model->program, &options, &model->session));
  model->stream = accrt_session_stream(model->session);
  return ACCRT_OK;
}

static accrt_status_t make_functions(accsv_program_model_t* model) {
  ACCRT_TRY(accsv_program_make_function(model, &model->step));
  if (model->description.has_plain)
    ACCRT_TRY(accsv_program_make_function(model, &model->plain));
  ACCRT_TRY(accsv_program_make_function(model, &model->update));
  ACCRT_TRY(accsv_program_make_function(model, &model->sample));
  if (model->description.copies_rows)
    ACCRT_TRY(accsv_program_make_function(model, &model->copy));
  if (model->description.hidden_size > 0)
    ACCRT_TRY(accsv_program_make_function(model, &model->embed));
  return accsv_program_make_function(model, &model->greedy);
}

/* The largest plans have the largest arena, which later ones find in its place. */
static accrt_status_t make_card(accsv_program_model_t* model) {
  uint32_t sizes[SIZE_COUNT];
  accsv_program_largest_sizes(model, sizes);
  const accrt_symbol_value_t symbols[] = {{"tokens", sizes[TOKENS]},
                                          {"rows", sizes[ROWS]},
                                          {"samples", sizes[SAMPLES]},
                                          {"changes", sizes[CHANGES]},
                                          {"edits", sizes[EDITS]}};
  const uint32_t count = sizeof symbols / sizeof *symbols;
  ACCRT_TRY(accrt_session_warmup(model->session, "step", symbols, count, sizeof *symbols));
  ACCRT_TRY(accrt_session_warmup(model->session, "sample", symbols, count, sizeof *symbols));
  for (uint32_t i = 0; i < model->slots; ++i)
    ACCRT_TRY(accrt_event_create(model->device, 0, &model->events[i]));
  return list_shapes(model);
}

static accrt_status_t make_model(accsv_program_model_t* model,
                                 const accrt_serve_program_options_t* options) {
  ACCRT_TRY(accsv_description_read(accrt_program_bundle(model->program), &model->description));
  ACCRT_TRY(accsv_is_host(model->device, &model->is_host));
  model->slots = model->is_host ? 1 : SLOTS;
  ACCRT_TRY(accsv_plan_memory(model->device, model->program, options, &model->description,
                              &model->memory));
  accsv_program_list_arguments(model);
  ACCRT_TRY(accsv_program_make_areas(model));
  ACCRT_TRY(make_session(model));
  ACCRT_TRY(accsv_program_adapters_init(&model->adapters, model->session,
                                        accrt_program_bundle(model->program),
                                        model->description.adapters));
  ACCRT_TRY(make_functions(model));
  return model->is_host ? ACCRT_OK : make_card(model);
}

static accrt_status_t take_options(const accrt_serve_program_options_t* options,
                                   accrt_serve_program_options_t* own) {
  *own = (accrt_serve_program_options_t)ACCRT_SERVE_PROGRAM_OPTIONS_INIT;
  if (options == NULL)
    return ACCRT_OK;
  ACCRT_TRY(
      accsv_take_struct("accrt_serve_program_options_t", options, sizeof *own, own, sizeof *own));
  if ((own->flags & ~ACCRT_SERVE_VALIDATE) != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", own->flags);
  return ACCRT_OK;
}

/* Handles that libaccrt refuses, whose record then says why. */
static accrt_status_t check_handles(accrt_device_t* device, accrt_program_t* program) {
  if (accrt_program_bundle(program) == NULL)
    return ACCRT_ERROR_INVALID_ARGUMENT;
  return accrt_device_status(device);
}

static accrt_status_t program_memory(accrt_device_t* device, accrt_program_t* program,
                                     const accrt_serve_program_options_t* options,
                                     accrt_serve_memory_t* out_memory) {
  ACCSV_NOT_NULL(device);
  ACCSV_NOT_NULL(program);
  ACCSV_NOT_NULL(out_memory);
  accrt_serve_program_options_t own;
  accsv_description_t description;
  accrt_serve_memory_t memory;
  ACCRT_TRY(take_options(options, &own));
  ACCRT_TRY(check_handles(device, program));
  ACCRT_TRY(accsv_description_read(accrt_program_bundle(program), &description));
  ACCRT_TRY(accsv_plan_memory(device, program, &own, &description, &memory));
  return accsv_give_struct("accrt_serve_memory_t", &memory, sizeof memory, sizeof memory,
                           out_memory);
}

/* It takes no handle of this library, so it has no generated entry point. */
accrt_status_t accrt_serve_program_memory(accrt_device_t* device, accrt_program_t* program,
                                          const accrt_serve_program_options_t* options,
                                          accrt_serve_memory_t* out_memory) {
  return accsv_named(__func__, program_memory(device, program, options, out_memory));
}

accrt_status_t accrt_serve_model_open_program(accrt_device_t* device, accrt_program_t* program,
                                              const accrt_serve_program_options_t* options,
                                              accrt_serve_model_t** out_model) {
  ACCSV_NOT_NULL(out_model);
  *out_model = NULL;
  ACCSV_NOT_NULL(device);
  ACCSV_NOT_NULL(program);
  accrt_serve_program_options_t own;
  ACCRT_TRY(take_options(options, &own));
  ACCRT_TRY(check_handles(device, program));
  accsv_program_model_t* model;
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, 1, &model));
  model->device = accrt_device_retain(device);
  model->program = accrt_program_retain(program);
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.self = model;
  functions.info = info;
  functions.submit = submit;
  functions.wait = wait_step;
  functions.reset = reset;
  functions.destroy = destroy;
  functions.sample = sample_step;
  functions.prepare = prepare;
  functions.set_adapter = set_adapter;
  accrt_status_t status = make_model(model, &own);
  if (status == ACCRT_OK)
    status = accrt_serve_model_wrap(&functions, out_model);
  if (status == ACCRT_OK)
    (*out_model)->instance = accrt_device_instance(device);
  else
    destroy(model);
  return status;
}
