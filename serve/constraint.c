/* serve/constraint.c - see serve/constraint.h. */
#include "serve/constraint.h"

#include <string.h>
#include <unistd.h>

#include "serve/handles.h"

/* ---- Constraints ---- */

accrt_status_t accrt_serve_constraint_create(const accrt_serve_constraint_functions_t* functions,
                                             accrt_serve_constraint_t** out_constraint) {
  ACCSV_NOT_NULL(out_constraint);
  *out_constraint = NULL;
  ACCSV_NOT_NULL(functions);
  accrt_serve_constraint_functions_t own;
  ACCRT_TRY(accsv_take_struct("accrt_serve_constraint_functions_t", functions, sizeof own, &own,
                              sizeof own));
  if ((own.flags & ~ACCRT_SERVE_VALIDATE) != 0)
    return ACCSV_FAIL(INVALID_ARGUMENT, "flags 0x%" PRIx32 " are not known", own.flags);
  ACCSV_NOT_NULL(functions->start);
  ACCSV_NOT_NULL(functions->mask);
  ACCSV_NOT_NULL(functions->advance);
  ACCSV_NOT_NULL(functions->stop);
  accrt_serve_constraint_t* constraint;
  ACCRT_TRY(ACCSV_HANDLE_NEW(&accsv_allocator_system, &constraint));
  atomic_init(&constraint->refs, 1);
  constraint->functions = own;
  *out_constraint = constraint;
  return ACCRT_OK;
}

accrt_serve_constraint_t* accrt_serve_constraint_retain(accrt_serve_constraint_t* constraint) {
  if (constraint != NULL)
    (void)atomic_fetch_add_explicit(&constraint->refs, 1, memory_order_relaxed);
  return constraint;
}

void accrt_serve_constraint_release(accrt_serve_constraint_t* constraint) {
  /* Pairs with itself: the last one sees what all others did before. */
  if (constraint == NULL ||
      atomic_fetch_sub_explicit(&constraint->refs, 1, memory_order_acq_rel) != 1)
    return;
  if (constraint->functions.destroy != NULL)
    constraint->functions.destroy(constraint->functions.self);
  ACCSV_HANDLE_FREE(&accsv_allocator_system, constraint);
}

/* ---- A mask ---- */

static void allow(uint32_t* bits, const int32_t* tokens, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    bits[(uint32_t)tokens[i] / 32] |= UINT32_C(1) << ((uint32_t)tokens[i] % 32);
}

static void forbid(uint32_t* bits, const int32_t* tokens, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    bits[(uint32_t)tokens[i] / 32] &= ~(UINT32_C(1) << ((uint32_t)tokens[i] % 32));
}

static bool is_empty(const uint32_t* bits, uint32_t words) {
  for (uint32_t i = 0; i < words; ++i) {
    if (bits[i] != 0)
      return false;
  }
  return true;
}

/* What the constraint allows, and the tokens that end the sequence where it may end: also before
 * its least length, and although it ignores end tokens, if there is nothing else. */
static accrt_status_t compute(const accsv_masks_t* masks, const accsv_mask_job_t* job) {
  ACCSV_ASSERT_CALLS_OUT();
  const accsv_request_t* request = job->generation->request;
  const accrt_serve_request_t* parameters = &request->parameters;
  const accrt_serve_model_info_t* info = masks->info;
  uint32_t may_end = 0;
  memset(job->bits, 0, masks->words * sizeof *job->bits);
  ACCRT_TRY(parameters->constraint->functions.mask(job->generation->constraint_state, job->bits,
                                                   masks->words, &may_end));
  if (info->vocab_size % 32 != 0) /* what is beyond the vocabulary may not come */
    job->bits[masks->words - 1] &= (UINT32_C(1) << (info->vocab_size % 32)) - 1;
  forbid(job->bits, info->eos, info->eos_count);
  const bool alone = is_empty(job->bits, masks->words);
  if (may_end != 0 && (alone || job->drawn >= parameters->min_new_tokens)) {
    if (alone || (parameters->flags & ACCRT_SERVE_IGNORE_EOS) == 0)
      allow(job->bits, info->eos, info->eos_count);
    allow(job->bits, parameters->stop_tokens, parameters->stop_token_count);
  }
  if (alone && is_empty(job->bits, masks->words))
    return ACCSV_FAIL(OUT_OF_RANGE, "the constraint leaves no token");
  return ACCRT_OK;
}

/* Computes masks until all have been begun. The lock is held, but not meanwhile. */
static void work_off(accsv_masks_t* masks) {
  ACCRT_ASSERT_HELD(&masks->lock);
  while (masks->next < masks->count) {
    const accsv_mask_job_t* job = &masks->jobs[masks->next++];
    accsv_unlock(&masks->lock);
    const accrt_status_t status = compute(masks, job);
    if (status != ACCRT_OK) {
      job->generation->constraint_status = status;
      memset(job->bits, 0xFF, masks->words * sizeof *job->bits); /* its token is dropped */
    }
    accsv_lock(&masks->lock);
    if (++masks->completed == masks->count)
      (void)pthread_cond_signal(&masks->done);
  }
}

static void* help(void* self) {
  accsv_masks_t* masks = self;
  accsv_lock(&masks->lock);
  while (!masks->stopping) {
    work_off(masks);
    if (!masks->stopping)
      accsv_wait(&masks->work, &masks->lock);
  }
  accsv_unlock(&masks->lock);
  return NULL;
}

/* ---- The masks of a step ---- */

accrt_status_t accsv_masks_init(accsv_masks_t* masks, const accrt_allocator_t* allocator,
                                const accrt_serve_model_info_t* info,
                                const accsv_limits_t* limits) {
  *masks = (accsv_masks_t){.info = info, .most = limits->rows, .most_samples = limits->samples};
  masks->words = (info->vocab_size + 31) / 32;
  const int failed = accsv_lock_init(&masks->lock, ACCRT_LOCK_SERVE_MASKS) +
                     pthread_cond_init(&masks->work, NULL) + pthread_cond_init(&masks->done, NULL);
  if (failed != 0)
    return ACCSV_FAIL(OUT_OF_MEMORY, "no condition variable");
  masks->allocator = allocator;
  return ACCRT_OK;
}

void accsv_masks_deinit(accsv_masks_t* masks) {
  if (masks->allocator == NULL) /* it was never made */
    return;
  accsv_lock(&masks->lock);
  masks->stopping = true;
  (void)pthread_cond_broadcast(&masks->work);
  accsv_unlock(&masks->lock);
  for (uint32_t i = 0; i < masks->thread_count; ++i)
    (void)pthread_join(masks->threads[i], NULL);
  (void)pthread_cond_destroy(&masks->done);
  (void)pthread_cond_destroy(&masks->work);
  accsv_lock_deinit(&masks->lock);
  ACCSV_FREE(masks->allocator, masks->rows, masks->most_samples);
  ACCSV_FREE(masks->allocator, masks->jobs, masks->most);
  ACCSV_FREE(masks->allocator, masks->bits, (size_t)masks->most * masks->words);
  *masks = (accsv_masks_t){0};
}

/* Without helpers the stepping thread computes all masks. */
static void start_helpers(accsv_masks_t* masks) {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  while (masks->thread_count < ACCSV_MASK_THREADS && masks->thread_count + 1 < processors &&
         pthread_create(&masks->threads[masks->thread_count], NULL, help, masks) == 0)
    ++masks->thread_count;
}

accrt_status_t accsv_masks_prepare(accsv_masks_t* masks) {
  if (masks->ready)
    return ACCRT_OK;
  if (masks->rows == NULL)
    ACCRT_TRY(ACCSV_NEW(masks->allocator, masks->most_samples, &masks->rows));
  if (masks->jobs == NULL)
    ACCRT_TRY(ACCSV_NEW(masks->allocator, masks->most, &masks->jobs));
  ACCRT_TRY(ACCSV_NEW_UNSET(masks->allocator, (size_t)masks->most * masks->words, &masks->bits));
  masks->ready = true;
  start_helpers(masks);
  return ACCRT_OK;
}

void accsv_masks_begin(accsv_masks_t* masks, const accsv_plan_t* plan) {
  uint32_t sample = 0, count = 0;
  accsv_lock(&masks->lock);
  for (uint32_t i = 0; i < plan->count; ++i) {
    const accsv_part_t* part = &plan->parts[i];
    accsv_sequence_t* sequence = part->sequence;
    accsv_generation_t* generation = accsv_generation_of(sequence);
    for (uint32_t s = 0; s < part->samples; ++s)
      masks->rows[sample++] = -1;
    if (part->draws && generation->constraint_state != NULL && sequence->state != ACCSV_ENDED) {
      masks->rows[sample - 1] = (int32_t)count;
      masks->jobs[count] =
          (accsv_mask_job_t){generation, masks->bits + (size_t)count * masks->words,
                             sequence->known - sequence->prompt_count};
      ++count;
    }
  }
  masks->next = masks->completed = 0;
  masks->count = count;
  if (count > 0)
    (void)pthread_cond_broadcast(&masks->work);
  accsv_unlock(&masks->lock);
}

void accsv_masks_finish(accsv_masks_t* masks, accrt_serve_masks_t* out_masks) {
  accsv_lock(&masks->lock);
  work_off(masks);
  while (masks->completed < masks->count)
    accsv_wait(&masks->done, &masks->lock);
  accsv_unlock(&masks->lock);
  *out_masks = (accrt_serve_masks_t){.struct_size = sizeof *out_masks,
                                     .count = masks->count,
                                     .rows = masks->rows,
                                     .bits = masks->bits,
                                     .words = masks->words};
}
