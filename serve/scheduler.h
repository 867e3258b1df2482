/* serve/scheduler.h - what the next step computes. docs/serving.md explains it with a picture.
 *
 * There is no phase of prompts and none of decoding: each sequence's computed tokens chase its
 * known ones, within one budget of tokens a step. It knows no model, no time and no events.
 *
 * It allocates when it is made and never again. Externally synchronized.
 */
#ifndef ACCRT_SERVE_SCHEDULER_H_
#define ACCRT_SERVE_SCHEDULER_H_

#include "serve/queue.h"

typedef struct accsv_limits {
  uint32_t pages, page_size;
  uint32_t rows;        /* sequences at once */
  uint32_t samples;     /* of a step; at least `rows` */
  uint32_t step_tokens; /* at least `rows` */
  uint32_t chunk_tokens;
  uint32_t max_preemptions;
  uint32_t sequences; /* that there are at once, with those that wait */
  uint32_t quantum;
  uint64_t seed;
  accsv_lookup_t lookup; /* of drafts */
  /* Least tokens of a page of the cache that are worth a copy; 0: none is made. */
  uint32_t copy_tokens;
  bool states_of_pages; /* what a step fills, only later ones read */
} accsv_limits_t;

/* A sequence's part in a step: tokens [start, start + count). The logits of the last ones are its
 * samples: those of a prompt that is scored, of the last token that is known, and of drafts behind
 * it. A sequence that becomes an embedding has none. */
typedef struct accsv_part {
  accsv_sequence_t* sequence;
  uint32_t start, count;
  uint32_t samples;
  uint32_t embeds; /* of the last tokens: those whose rows are part of an embedding */
  uint32_t drafts; /* of `count`; then it draws */
  bool draws;      /* a sample is the sequence's next token; those of drafts come after it */
  bool decodes;    /* it draws, and computes one token for that alone */
} accsv_part_t;

/* The first of its tokens whose logits are a sample. */
static inline uint32_t accsv_part_sampled(const accsv_part_t* part) {
  return part->start + part->count - part->samples;
}
/* Of its samples: those that score a token of the prompt. They come first. */
static inline uint32_t accsv_part_scores(const accsv_part_t* part) {
  return part->samples - part->draws - part->drafts;
}

/* What is copied before a step computes anything: `count` slots, of one page to another. */
typedef struct accsv_copy {
  int32_t from, to; /* the first slots */
  uint32_t count;
} accsv_copy_t;

typedef struct accsv_plan {
  uint64_t step;
  uint32_t count, tokens, samples;
  bool fresh;                 /* some of its sequences are not noted */
  accsv_part_t* parts;        /* of `rows` */
  const accsv_copy_t* copies; /* until the next plan */
  uint32_t copy_count;
  uint64_t begun_ns; /* the engine's */
} accsv_plan_t;

typedef struct accsv_filling {
  accsv_sequence_t* sequence;
  uint32_t hash; /* of the block as an entry of the cache; 0: not known */
} accsv_filling_t;

typedef struct accsv_scheduler {
  accsv_limits_t limits;
  accsv_pool_t pool;
  accsv_prefix_t prefix;
  accsv_queue_t queue;
  accsv_sequence_t** running;  /* in the order of their admission */
  accsv_sequence_t** chunks;   /* of the step being scheduled: those with prompts to compute */
  accsv_sequence_t** drafting; /* the same: those that may have drafts */
  accsv_filling_t* filling;    /* of the last step: those that fill a page, until that is known */
  accsv_copy_t* copies;        /* the same: of those that are admitted; NULL: none is made */
  int32_t* free_rows;
  uint32_t running_count, free_row_count, filling_count;
  uint64_t planned; /* the last step */
  /* Most tokens of a step in which a sequence decodes; prompts have a page of it in any case. */
  uint32_t mixed_tokens;
  /* Ends the sequence that would be admitted next if that is of no use; NULL: it always is. */
  bool (*drop)(void* self, accsv_sequence_t* sequence);
  void* self;
  uint64_t admissions;
  uint64_t preemptions;
  uint64_t prompt_tokens, cached_tokens; /* of first admissions */
  uint64_t partial_hits, copied_tokens;  /* admissions with a copy, and tokens of these copies */
} accsv_scheduler_t;

accrt_status_t accsv_scheduler_init(accsv_scheduler_t* scheduler,
                                    const accrt_allocator_t* allocator,
                                    const accsv_limits_t* limits);
/* All sequences must have ended. */
void accsv_scheduler_deinit(accsv_scheduler_t* scheduler);

/* Fills `plan` (its parts' memory is the caller's) with step number `step`, which must be higher
 * than all before. Sequences in it are taken as computed from now on. No part: there is nothing
 * that can be computed before a step in flight ends. */
void accsv_scheduler_plan(accsv_scheduler_t* scheduler, uint64_t step, accsv_plan_t* plan);
/* While the step that was planned runs, and before its results are taken: the pages that it fills
 * become entries of the cache, and the memory that the next one will need first is fetched. */
void accsv_scheduler_planned(accsv_scheduler_t* scheduler);
/* The results of a part, whose step is in flight no more, are taken. */
static inline void accsv_part_leave(const accsv_part_t* part) {
  --part->sequence->in_flight;
  part->sequence->pending = (uint8_t)(part->sequence->pending - part->draws);
}
/* After that, and after what came of the drafts is known: forgets those that were wrong, and gives
 * back the pages that they alone had. */
void accsv_scheduler_settle(accsv_scheduler_t* scheduler, const accsv_part_t* part);
/* Instead of both: there are no results. */
void accsv_part_forget(const accsv_part_t* part);
/* Steps up to `step` have ended. */
void accsv_scheduler_end_step(accsv_scheduler_t* scheduler, uint64_t step);
/* All keys and values are lost, and no step is in flight: everything that runs starts anew. */
void accsv_scheduler_lose(accsv_scheduler_t* scheduler);
/* Ends a sequence in any state; its pages are free when its last step has ended. */
void accsv_scheduler_end(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence);
/* NULL, or which invariant does not hold. O(pages + sequences). */
const char* accsv_scheduler_check(const accsv_scheduler_t* scheduler);

#endif /* ACCRT_SERVE_SCHEDULER_H_ */
