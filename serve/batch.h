/* serve/batch.h - a plan as the arrays that a model takes. It allocates when it is made and never
 * again.
 */
#ifndef ACCRT_SERVE_BATCH_H_
#define ACCRT_SERVE_BATCH_H_

#include "serve/request.h"
#include "serve/scheduler.h"

/* Whose parameters a sample's arrays have: they stay from step to step. */
typedef struct accsv_laid {
  uint64_t key; /* the sequence's, whose next token it is; 0: laid anew each time */
  uint32_t prompt_count;
  uint16_t logprobs;
  bool masked, edited; /* `edited`: the next one may have other edits */
} accsv_laid_t;

typedef struct accsv_batch {
  const accrt_allocator_t* allocator;
  uint32_t tokens_most, rows_most, samples_most, changes_most;
  uint32_t page_size, row_pages;
  uint32_t staying;  /* rows of the last step whose token and sample have the row's place */
  int32_t* integers; /* all arrays of integers, one after the other */
  size_t integer_count;
  float* numbers;
  uint64_t* row_keys;
  int32_t *token_ids, *positions, *slots, *token_rows;
  int32_t *row_starts, *row_ids, *row_adapters, *kv_lengths, *change_slots, *change_pages;
  int32_t *embed_tokens, *copy_from, *copy_to, *copy_tokens;
  int32_t* changed; /* of a step that is laid: rows that stay whose samples are laid anew */
  int32_t *sample_tokens, *sample_rows, *sample_positions, *top_k;
  uint32_t* seeds;
  float *temperature, *top_p, *min_p;
  accrt_serve_edits_t* edits;
  accsv_laid_t* laid;
} accsv_batch_t;

accrt_status_t accsv_batch_init(accsv_batch_t* batch, const accrt_allocator_t* allocator,
                                const accsv_limits_t* limits, uint32_t row_pages);
void accsv_batch_deinit(accsv_batch_t* batch);
/* Lays out the plan. `step` points into the batch and into the plan's sequences, until the next
 * plan is laid out or a token of these is known. */
void accsv_batch_lay(accsv_batch_t* batch, const accsv_plan_t* plan, accrt_serve_step_t* step);

#endif /* ACCRT_SERVE_BATCH_H_ */
