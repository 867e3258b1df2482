/* serve/scheduler.c - see serve/scheduler.h. */
#include "serve/scheduler.h"

/* Sequences whose memory is fetched before it is needed. */
#define AHEAD 12u

/* What is known while one step is scheduled. */
typedef struct round {
  accsv_scheduler_t* scheduler;
  accsv_plan_t* plan;
  uint32_t budget;
  uint32_t samples;  /* that are left */
  uint32_t chunks;   /* prompts that have begun and get their chunks after this one */
  uint32_t promised; /* of the pending pages: sequences wait for them instead of preempting */
  uint32_t copies;
  uint32_t tokens;   /* of all parts */
  uint32_t drafting; /* sequences that may have drafts */
  bool preempted;
} round_t;

accrt_status_t accsv_scheduler_init(accsv_scheduler_t* scheduler,
                                    const accrt_allocator_t* allocator,
                                    const accsv_limits_t* limits) {
  *scheduler = (accsv_scheduler_t){.limits = *limits, .mixed_tokens = UINT32_MAX};
  scheduler->pool.allocator = scheduler->queue.allocator = allocator;
  scheduler->prefix.pool = &scheduler->pool;
  accrt_status_t status = accsv_pool_init(&scheduler->pool, allocator, limits->pages);
  if (status == ACCRT_OK)
    status = accsv_prefix_init(&scheduler->prefix, &scheduler->pool, limits->page_size,
                               limits->seed, limits->copy_tokens > 0);
  if (status == ACCRT_OK)
    status = accsv_queue_init(&scheduler->queue, allocator, limits->sequences, limits->quantum);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, limits->rows, &scheduler->running);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, limits->rows, &scheduler->chunks);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, limits->rows, &scheduler->drafting);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, limits->rows, &scheduler->filling);
  if (status == ACCRT_OK && limits->copy_tokens > 0)
    status = ACCSV_NEW(allocator, limits->rows, &scheduler->copies);
  if (status == ACCRT_OK)
    status = ACCSV_NEW(allocator, limits->rows, &scheduler->free_rows);
  if (status != ACCRT_OK) {
    accsv_scheduler_deinit(scheduler);
    return status;
  }
  for (uint32_t i = limits->rows; i-- > 0;)
    scheduler->free_rows[scheduler->free_row_count++] = (int32_t)i;
  return ACCRT_OK;
}

void accsv_scheduler_deinit(accsv_scheduler_t* scheduler) {
  const accrt_allocator_t* allocator = scheduler->pool.allocator;
  if (allocator == NULL) /* it was never made */
    return;
  const uint32_t rows = scheduler->limits.rows;
  ACCSV_FREE(allocator, scheduler->running, rows);
  ACCSV_FREE(allocator, scheduler->chunks, rows);
  ACCSV_FREE(allocator, scheduler->drafting, rows);
  ACCSV_FREE(allocator, scheduler->filling, rows);
  ACCSV_FREE(allocator, scheduler->copies, rows);
  ACCSV_FREE(allocator, scheduler->free_rows, rows);
  accsv_queue_deinit(&scheduler->queue);
  accsv_prefix_deinit(&scheduler->prefix);
  accsv_pool_deinit(&scheduler->pool);
  *scheduler = (accsv_scheduler_t){0};
}

/* ---- Entries of the cache ---- */

/* Full blocks of known tokens become entries of the cache, in the step that computes them: layers
 * write keys and values before they read any, so even sequences of the same step may share them.
 * `hash` is that of the first one, or 0. */
static void register_blocks(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence,
                            uint32_t hash) {
  const uint32_t page_size = scheduler->limits.page_size;
  uint32_t end = sequence->computed + sequence->n;
  if (end > sequence->known)
    end = sequence->known;
  while (!sequence->unshared && (sequence->registered + 1) * page_size <= end) {
    const uint32_t at = sequence->registered;
    const int32_t* tokens = sequence->tokens + (size_t)at * page_size;
    sequence->chain = accsv_prefix_insert(&scheduler->prefix, sequence->chain, sequence->salt,
                                          sequence->salt_text, tokens, hash, sequence->blocks[at]);
    hash = 0;
    if (sequence->chain.block == ACCSV_NO_BLOCK)
      sequence->unshared = true;
    else
      ++sequence->registered;
  }
}

/* Its next full block will become an entry of the cache, with the hash that is returned. */
static uint32_t fetch_entry(const accsv_scheduler_t* scheduler, const accsv_sequence_t* sequence) {
  const uint32_t at = sequence->registered, page_size = scheduler->limits.page_size;
  if (sequence->unshared || (at + 1) * page_size > sequence->known)
    return 0;
  return accsv_prefix_fetch(&scheduler->prefix, sequence->chain, sequence->salt,
                            sequence->tokens + (size_t)at * page_size, sequence->blocks[at]);
}

/* Those that fill a page, unless they were preempted. A look into the cache, and taking pages that
 * it may have, come after this; else it is done while the step runs. */
static void register_filled(accsv_scheduler_t* scheduler, bool scheduling) {
  const uint32_t count = scheduler->filling_count;
  for (uint32_t i = 0; i < count; ++i)
    scheduler->filling[i].hash = fetch_entry(scheduler, scheduler->filling[i].sequence);
  for (uint32_t i = 0; i < count; ++i) {
    const accsv_filling_t* filling = &scheduler->filling[i];
    if (!scheduling || filling->sequence->n > 0)
      register_blocks(scheduler, filling->sequence, filling->hash);
  }
  scheduler->filling_count = 0;
}

/* ---- Leaving ---- */

/* The last blocks first, so that a prompt's beginning stays in the cache for longest. */
static void drop_blocks(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence) {
  const uint64_t step = sequence->in_flight > 0 ? scheduler->planned : 0;
  while (sequence->blocks_held > 0)
    accsv_pool_drop(&scheduler->pool, sequence->blocks[--sequence->blocks_held], step);
  sequence->blocks_mapped = sequence->registered = 0;
  sequence->chain = ACCSV_CHAIN_EMPTY;
  sequence->unshared = sequence->unmapped = false;
}

static void leave_running(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence) {
  for (uint32_t i = sequence->place + 1; i < scheduler->running_count; ++i) {
    scheduler->running[i - 1] = scheduler->running[i];
    scheduler->running[i - 1]->place = i - 1;
  }
  --scheduler->running_count;
  scheduler->free_rows[scheduler->free_row_count++] = sequence->row;
  sequence->row = -1;
  drop_blocks(scheduler, sequence);
}

static void requeue(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence) {
  leave_running(scheduler, sequence);
  sequence->computed = 0;
  accsv_queue_push_preempted(&scheduler->queue, sequence, true);
}

void accsv_scheduler_end(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence) {
  register_filled(scheduler, false);
  if (sequence->state == ACCSV_RUNNING)
    leave_running(scheduler, sequence);
  else if (sequence->state == ACCSV_QUEUED || sequence->state == ACCSV_PREEMPTED)
    accsv_queue_remove(&scheduler->queue, sequence);
  sequence->state = ACCSV_ENDED;
  accsv_prefix_drop_salt(&scheduler->prefix, sequence->salt_text);
  sequence->salt_text = NULL;
  if (sequence->flow != NULL)
    accsv_queue_leave(&scheduler->queue, sequence);
}

/* The device's page table keeps what is beyond: nothing reads it. */
static void give_back(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence) {
  const uint32_t needed = accsv_pages(sequence->known, scheduler->limits.page_size);
  if (sequence->blocks_held <= needed)
    return;
  while (sequence->blocks_held > needed)
    accsv_pool_drop(&scheduler->pool, sequence->blocks[--sequence->blocks_held], 0);
  if (sequence->blocks_mapped > needed)
    sequence->blocks_mapped = needed;
  sequence->last_block = sequence->blocks[needed - 1];
}

void accsv_scheduler_settle(accsv_scheduler_t* scheduler, const accsv_part_t* part) {
  accsv_sequence_t* sequence = part->sequence;
  if (part->drafts == 0)
    return;
  sequence->drafts = 0;
  if (sequence->state != ACCSV_RUNNING)
    return;
  if (sequence->computed >= sequence->known)
    sequence->computed = sequence->known - 1;
  give_back(scheduler, sequence);
}

void accsv_part_forget(const accsv_part_t* part) {
  accsv_sequence_t* sequence = part->sequence;
  accsv_part_leave(part);
  sequence->drafts = 0;
  if (accsv_part_scores(part) == 0)
    return;
  if (sequence->asked > accsv_part_sampled(part))
    sequence->asked = accsv_part_sampled(part);
  sequence->scores = true;
}

void accsv_scheduler_planned(accsv_scheduler_t* scheduler) {
  register_filled(scheduler, false);
  accsv_prefix_tidy(&scheduler->prefix);
  const uint32_t running = scheduler->running_count;
  accsv_prefix_fetch_free(&scheduler->prefix, running < 64 ? running : 64);
}

void accsv_scheduler_end_step(accsv_scheduler_t* scheduler, uint64_t step) {
  accsv_pool_end_step(&scheduler->pool, step);
}

void accsv_scheduler_lose(accsv_scheduler_t* scheduler) {
  register_filled(scheduler, false);
  while (scheduler->running_count > 0)
    requeue(scheduler, scheduler->running[scheduler->running_count - 1]);
  accsv_prefix_clear(&scheduler->prefix);
}

/* ---- What there is to compute ---- */

static uint32_t remaining(const accsv_sequence_t* sequence) {
  return sequence->known + sequence->pending - sequence->computed;
}

/* Of the next `count` tokens: those whose logits are samples, or whose rows are part of an
 * embedding. */
static uint32_t samples_of(const accsv_sequence_t* sequence, uint32_t count) {
  if (sequence->embeds_all)
    return count;
  const uint32_t end = sequence->computed + count;
  uint32_t samples = count == remaining(sequence);
  if (sequence->scores) {
    const uint32_t begin =
        sequence->asked > sequence->computed ? sequence->asked : sequence->computed;
    const uint32_t last = end < sequence->to_score ? end : sequence->to_score;
    samples += last > begin ? last - begin : 0;
  }
  return samples;
}

/* ---- Preemption ---- */

/* Is `a` the better victim: less urgent, not spared by the cap, less computed, admitted later? */
static bool better_victim(const accsv_scheduler_t* scheduler, const accsv_sequence_t* a,
                          const accsv_sequence_t* b) {
  if (a->priority != b->priority)
    return a->priority > b->priority;
  const bool a_spared = a->preemptions >= scheduler->limits.max_preemptions;
  const bool b_spared = b->preemptions >= scheduler->limits.max_preemptions;
  if (a_spared != b_spared)
    return b_spared;
  if (a->computed != b->computed)
    return a->computed < b->computed;
  return a->order > b->order;
}

/* Among those that are not more urgent than `sequence`, which may be the victim itself. */
static accsv_sequence_t* find_victim(const accsv_scheduler_t* scheduler,
                                     accsv_sequence_t* sequence) {
  accsv_sequence_t* victim = sequence;
  for (uint32_t i = 0; i < scheduler->running_count; ++i) {
    if (better_victim(scheduler, scheduler->running[i], victim))
      victim = scheduler->running[i];
  }
  return victim;
}

static void preempt(round_t* round, accsv_sequence_t* victim) {
  round->budget += victim->n;
  round->tokens -= victim->n;
  if (victim->n > 0)
    round->samples += samples_of(victim, victim->n);
  victim->n = 0;
  ++victim->preemptions;
  ++round->scheduler->preemptions;
  round->preempted = true;
  requeue(round->scheduler, victim);
}

/* Are there `needed` pages now? If not, they may be coming, or others have to give theirs. */
static bool make_room(round_t* round, accsv_sequence_t* sequence, uint32_t needed) {
  accsv_pool_t* pool = &round->scheduler->pool;
  while (accsv_pool_available(pool) < needed) {
    const uint32_t coming = pool->pending.count;
    if (coming >= round->promised + needed) {
      round->promised += needed;
      return false;
    }
    accsv_sequence_t* victim = find_victim(round->scheduler, sequence);
    preempt(round, victim);
    if (victim == sequence)
      return false;
  }
  return true;
}

/* ---- Running ---- */

/* Nothing to compute: all tokens that it may have are known or sampled, or the last one has to be
 * known first. */
static bool rests(const accsv_sequence_t* sequence) {
  return sequence->known + sequence->pending >= sequence->limit ||
         (sequence->pending > 0 && sequence->history) || remaining(sequence) == 0;
}

static void take_blocks(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence, uint32_t count) {
  while (sequence->blocks_held < count) {
    ACCRT_ASSERT(sequence->blocks_held < sequence->block_capacity);
    sequence->last_block = accsv_pool_take(&scheduler->pool);
    sequence->blocks[sequence->blocks_held++] = sequence->last_block;
  }
  sequence->unmapped = true;
}

/* As many tokens as there are samples for. A prompt with a sample for each token leaves one for
 * each that comes after it, and for one that may be admitted. */
static uint32_t limit_samples(const round_t* round, const accsv_sequence_t* sequence,
                              uint32_t count) {
  const accsv_scheduler_t* scheduler = round->scheduler;
  const uint32_t others = round->chunks + (scheduler->free_row_count > 0);
  uint32_t most = round->samples;
  if (sequence->scores || sequence->embeds_all)
    most = most > others + 1 ? most - others : most > 0;
  const uint32_t samples = samples_of(sequence, count);
  return samples > most ? count - (samples - most) : count;
}

/* Without branches on what differs from one sequence to the next: nothing could foresee them. */
static inline accsv_part_t* add_part(round_t* round, accsv_sequence_t* sequence, uint32_t count) {
  accsv_scheduler_t* scheduler = round->scheduler;
  accsv_part_t* part = &round->plan->parts[round->plan->count++];
  part->sequence = sequence;
  part->decodes = false;
  sequence->n = count;
  round->budget -= count;
  round->tokens += count;
  scheduler->drafting[round->drafting] = sequence;
  round->drafting += (sequence->guesses > 0) & !sequence->no_guess;
  scheduler->filling[scheduler->filling_count].sequence = sequence;
  scheduler->filling_count +=
      (sequence->registered + 1) * scheduler->limits.page_size <= sequence->computed + count;
  return part;
}

static void schedule_running(round_t* round, accsv_sequence_t* sequence) {
  const accsv_limits_t* limits = &round->scheduler->limits;
  uint32_t count = remaining(sequence);
  if (count > limits->chunk_tokens)
    count = limits->chunk_tokens;
  if (count > round->budget)
    count = round->budget;
  count = limit_samples(round, sequence, count);
  if (count == 0)
    return;
  /* Most tokens need no new page: no division for them. */
  if (sequence->computed + count > sequence->blocks_held * limits->page_size) {
    const uint32_t pages = accsv_pages(sequence->computed + count, limits->page_size);
    if (!make_room(round, sequence, pages - sequence->blocks_held))
      return;
    take_blocks(round->scheduler, sequence, pages);
  }
  round->samples -= samples_of(sequence, count);
  (void)add_part(round, sequence, count);
}

/* One token of a sequence that decodes: such a part is complete at once, unless drafts join it. */
static inline void schedule_one(round_t* round, accsv_sequence_t* sequence) {
  accsv_scheduler_t* scheduler = round->scheduler;
  const bool needs_page = sequence->computed == sequence->blocks_held * scheduler->limits.page_size;
  if (round->budget == 0 || sequence->scores || sequence->embeds ||
      (needs_page && accsv_pool_available(&scheduler->pool) == 0)) {
    schedule_running(round, sequence);
    return;
  }
  if (needs_page)
    take_blocks(scheduler, sequence, sequence->blocks_held + 1);
  --round->samples;
  accsv_part_t* part = add_part(round, sequence, 1);
  part->start = sequence->computed;
  part->count = part->samples = 1;
  part->embeds = part->drafts = 0;
  part->draws = part->decodes = true;
}

/* Tokens that prompts get in a step whatever the limit of time is: pages may have 1,024. */
#define LEAST_CHUNK 16u

/* What is left of the step for prompts, now that those that decode have their tokens. */
static void limit_prompts(round_t* round) {
  const accsv_scheduler_t* scheduler = round->scheduler;
  if (round->plan->count == 0)
    return;
  uint32_t left = scheduler->mixed_tokens > round->plan->count
                      ? scheduler->mixed_tokens - round->plan->count
                      : 0;
  const uint32_t page_size = scheduler->limits.page_size;
  const uint32_t least = page_size < LEAST_CHUNK ? page_size : LEAST_CHUNK;
  if (left < least)
    left = least;
  if (round->budget > left)
    round->budget = left;
}

/* Rows that decode come first: a long prompt does not hold them up. A sequence that is preempted
 * leaves the list, and the one after it takes its place. */
static void schedule_all_running(round_t* round) {
  accsv_scheduler_t* scheduler = round->scheduler;
  uint32_t chunks = 0;
  for (uint32_t i = 0; i < scheduler->running_count;) {
    accsv_sequence_t* sequence = scheduler->running[i];
    if (i + AHEAD < scheduler->running_count)
      __builtin_prefetch(scheduler->running[i + AHEAD], 1);
    if (rests(sequence)) {
      ++i;
      continue;
    }
    if (remaining(sequence) == 1)
      schedule_one(round, sequence);
    else
      scheduler->chunks[chunks++] = sequence;
    /* Others before it may have left the list; if it left itself, the next one stands there now. */
    i = round->preempted ? sequence->place + (sequence->state == ACCSV_RUNNING) : i + 1;
  }
  limit_prompts(round);
  for (uint32_t i = 0; i < chunks; ++i) {
    round->chunks = chunks - i - 1;
    if (scheduler->chunks[i]->state == ACCSV_RUNNING)
      schedule_running(round, scheduler->chunks[i]);
  }
}

/* Drops the parts of those that were preempted after they had been scheduled. */
static void drop_parts(accsv_plan_t* plan) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < plan->count; ++i) {
    if (plan->parts[i].sequence->n > 0)
      plan->parts[kept++] = plan->parts[i];
  }
  plan->count = kept;
}

/* ---- Admission ---- */

/* Tokens that may come from the cache. The last one is always computed: its logits are wanted, as
 * those of all that are to be scored. */
static uint32_t most_cached(const accsv_sequence_t* sequence) {
  return sequence->scores ? sequence->asked : sequence->known - 1;
}

/* Writes the blocks that the cache has of its tokens into its list, without holding them. Counts
 * those that are in the free list. */
static uint32_t find_hits(const accsv_scheduler_t* scheduler, accsv_sequence_t* sequence,
                          uint32_t* out_free) {
  const uint32_t page_size = scheduler->limits.page_size;
  const uint32_t most = most_cached(sequence) / page_size;
  accsv_chain_t chain = ACCSV_CHAIN_EMPTY;
  uint32_t hits = 0, in_list = 0;
  while (hits < most) {
    const int32_t block = accsv_prefix_find(&scheduler->prefix, chain, sequence->salt,
                                            sequence->tokens + (size_t)hits * page_size);
    if (block == ACCSV_NO_BLOCK)
      break;
    if (scheduler->limits.states_of_pages &&
        scheduler->pool.blocks[block].written == scheduler->prefix.step)
      break;
    chain = accsv_prefix_chain(&scheduler->prefix, block);
    sequence->blocks[hits++] = block;
    in_list += scheduler->pool.blocks[block].list == ACCSV_LIST_FREE;
  }
  *out_free = in_list;
  return hits;
}

static void hold_hits(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence, uint32_t hits) {
  for (uint32_t i = 0; i < hits; ++i)
    accsv_pool_touch(&scheduler->pool, sequence->blocks[i]);
  sequence->blocks_held = sequence->registered = hits;
  sequence->unmapped = true;
  sequence->computed = hits * scheduler->limits.page_size;
  if (hits == 0)
    return;
  sequence->last_block = sequence->blocks[hits - 1];
  sequence->chain = accsv_prefix_chain(&scheduler->prefix, sequence->last_block);
}

/* The block behind the hits that has some of the tokens that come next, if that is worth a copy. */
static int32_t find_part(const accsv_scheduler_t* scheduler, const accsv_sequence_t* sequence,
                         uint32_t hits, uint32_t* out_shared) {
  const uint32_t page_size = scheduler->limits.page_size, least = scheduler->limits.copy_tokens;
  const uint32_t left = most_cached(sequence) - hits * page_size;
  if (least == 0 || left < least)
    return ACCSV_NO_BLOCK;
  const accsv_chain_t chain =
      hits > 0 ? accsv_prefix_chain(&scheduler->prefix, sequence->blocks[hits - 1])
               : ACCSV_CHAIN_EMPTY;
  const int32_t block = accsv_prefix_find_part(&scheduler->prefix, chain, sequence->salt,
                                               sequence->tokens + (size_t)hits * page_size,
                                               left < page_size ? left : page_size, out_shared);
  return block != ACCSV_NO_BLOCK && *out_shared >= least ? block : ACCSV_NO_BLOCK;
}

/* Its first block behind the hits begins with tokens of another, which is not taken before the step
 * has ended. */
static void copy_part(round_t* round, accsv_sequence_t* sequence, int32_t block, uint32_t shared) {
  accsv_scheduler_t* scheduler = round->scheduler;
  const int32_t page_size = (int32_t)scheduler->limits.page_size;
  scheduler->copies[round->copies++] =
      (accsv_copy_t){block * page_size, sequence->blocks[sequence->registered] * page_size, shared};
  sequence->computed += shared;
  ++scheduler->partial_hits;
  scheduler->copied_tokens += shared;
  accsv_pool_drop(&scheduler->pool, block, round->plan->step);
}

static void start(accsv_scheduler_t* scheduler, accsv_sequence_t* sequence) {
  accsv_queue_remove(&scheduler->queue, sequence);
  sequence->state = ACCSV_RUNNING;
  sequence->order = ++scheduler->admissions;
  sequence->row = scheduler->free_rows[--scheduler->free_row_count];
  sequence->place = scheduler->running_count;
  scheduler->running[scheduler->running_count++] = sequence;
  if (sequence->admitted)
    return;
  sequence->admitted = true;
  sequence->cached_tokens = sequence->computed;
  scheduler->prompt_tokens += sequence->prompt_count;
  scheduler->cached_tokens += sequence->cached_tokens;
}

/* A sequence gets the pages of all its known tokens at once, so that what has begun can go on; one
 * page more must be there if others run, which would have to be preempted soon otherwise. */
static bool admit(round_t* round, accsv_sequence_t* sequence) {
  accsv_scheduler_t* scheduler = round->scheduler;
  uint32_t hits_in_list;
  const uint32_t hits = find_hits(scheduler, sequence, &hits_in_list);
  const uint32_t pages = accsv_pages(sequence->known, scheduler->limits.page_size);
  const uint32_t spare = scheduler->running_count > 0 ? 1 : 0;
  const uint32_t needed = hits_in_list + pages - hits + spare;
  if (accsv_pool_available(&scheduler->pool) < needed)
    return false;
  uint32_t shared;
  int32_t part = find_part(scheduler, sequence, hits, &shared);
  if (part != ACCSV_NO_BLOCK && scheduler->pool.blocks[part].list == ACCSV_LIST_FREE &&
      accsv_pool_available(&scheduler->pool) == needed)
    part = ACCSV_NO_BLOCK; /* its page is needed itself */
  hold_hits(scheduler, sequence, hits);
  if (part != ACCSV_NO_BLOCK)
    accsv_pool_touch(&scheduler->pool, part);
  take_blocks(scheduler, sequence, pages);
  if (part != ACCSV_NO_BLOCK)
    copy_part(round, sequence, part, shared);
  start(scheduler, sequence);
  schedule_running(round, sequence);
  scheduler->filling_count = 0; /* it registers at once */
  register_blocks(scheduler, sequence, 0);
  return true;
}

static void admit_all(round_t* round) {
  accsv_scheduler_t* scheduler = round->scheduler;
  while (round->budget > 0 && round->samples > 0 &&
         scheduler->running_count < scheduler->limits.rows) {
    accsv_sequence_t* sequence = accsv_queue_peek(&scheduler->queue);
    if (sequence == NULL)
      return;
    register_filled(scheduler, true);
    if (scheduler->drop != NULL && scheduler->drop(scheduler->self, sequence))
      continue;
    if (!admit(round, sequence))
      return;
  }
}

/* ---- Drafts ---- */

/* Pages for drafts are those that no sequence waits for, and that the running ones will not need at
 * once. */
static uint32_t pages_for_drafts(const round_t* round) {
  const accsv_scheduler_t* scheduler = round->scheduler;
  const uint32_t available = accsv_pool_available(&scheduler->pool);
  const bool wanted = round->preempted || round->promised > 0 || scheduler->queue.queued > 0 ||
                      scheduler->queue.preempted > 0;
  return wanted || available <= scheduler->running_count ? 0 : available - scheduler->running_count;
}

static uint32_t least_of(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

/* Drafts behind a sequence's last token, if that is computed now. */
static void draft(round_t* round, accsv_sequence_t* sequence, uint32_t budget) {
  accsv_scheduler_t* scheduler = round->scheduler;
  const uint32_t page_size = scheduler->limits.page_size, known = sequence->known;
  if (sequence->no_guess || sequence->pending > 0 || sequence->computed + sequence->n != known)
    return;
  uint32_t most = least_of(sequence->guesses, sequence->limit - known - 1);
  most = least_of(most, least_of(budget, round->samples));
  const uint32_t pages = sequence->blocks_held + pages_for_drafts(round);
  most = least_of(most, pages * page_size - known);
  if (most == 0)
    return;
  most = accsv_guess(&sequence->lookback, sequence->tokens, known, most, sequence->tokens + known);
  const uint32_t needed = accsv_pages(known + most, page_size);
  if (needed > sequence->blocks_held) {
    register_filled(scheduler, true);
    take_blocks(scheduler, sequence, needed);
  }
  sequence->drafts = (uint8_t)most;
  sequence->n += most;
  round->budget -= most;
  round->samples -= most;
}

/* They get what the step has left when all others have their tokens. One that was preempted after
 * it had been scheduled has no part. */
static void draft_all(round_t* round) {
  accsv_scheduler_t* scheduler = round->scheduler;
  for (uint32_t i = 0; i < round->drafting; ++i)
    __builtin_prefetch(&scheduler->drafting[i]->lookback.from);
  uint32_t tokens = round->tokens;
  const uint32_t most = scheduler->mixed_tokens;
  for (uint32_t i = 0; i < round->drafting; ++i) {
    accsv_sequence_t* sequence = scheduler->drafting[i];
    const uint32_t before = sequence->n;
    if (before == 0)
      continue;
    draft(round, sequence, least_of(round->budget, most > tokens ? most - tokens : 0));
    tokens += sequence->n - before;
  }
}

/* ---- A step ---- */

static void close_part(accsv_part_t* part) {
  accsv_sequence_t* sequence = part->sequence;
  const uint32_t end = sequence->computed + sequence->n, drafts = sequence->drafts;
  part->start = sequence->computed;
  part->count = sequence->n;
  part->draws = !sequence->embeds && end - drafts == sequence->known + sequence->pending;
  part->decodes = part->draws && sequence->n == 1 && !sequence->scores;
  part->drafts = drafts;
  part->samples = drafts + part->draws;
  part->embeds = sequence->embeds ? samples_of(sequence, sequence->n) : 0;
  if (!sequence->scores)
    return;
  part->samples = samples_of(sequence, sequence->n - drafts) + drafts;
  sequence->asked += accsv_part_scores(part);
  sequence->scores = sequence->asked < sequence->to_score;
}

static void close_plan(accsv_scheduler_t* scheduler, accsv_plan_t* plan) {
  const uint32_t count = plan->count;
  uint32_t tokens = 0, samples = 0;
  bool fresh = false;
  for (uint32_t i = 0; i < count; ++i) {
    accsv_part_t* part = &plan->parts[i];
    accsv_sequence_t* sequence = part->sequence;
    if (!part->decodes || sequence->drafts > 0)
      close_part(part);
    sequence->flow->deficit -= part->count;
    sequence->computed += part->count;
    sequence->n = 0;
    ++sequence->in_flight;
    sequence->pending = (uint8_t)(sequence->pending + part->draws);
    tokens += part->count;
    samples += part->samples;
    fresh |= !sequence->noted;
  }
  plan->tokens = tokens;
  plan->samples = samples;
  plan->fresh = fresh;
  if (count > 0)
    scheduler->planned = plan->step;
}

void accsv_scheduler_plan(accsv_scheduler_t* scheduler, uint64_t step, accsv_plan_t* plan) {
  round_t round = {.scheduler = scheduler,
                   .plan = plan,
                   .budget = scheduler->limits.step_tokens,
                   .samples = scheduler->limits.samples};
  register_filled(scheduler, false);
  plan->step = scheduler->prefix.step = step;
  plan->count = 0;
  schedule_all_running(&round);

  if (round.preempted)
    drop_parts(plan);
  if (round.preempted)
    register_filled(scheduler, true);
  else
    admit_all(&round);
  draft_all(&round);

  plan->copies = scheduler->copies;
  plan->copy_count = round.copies;
  close_plan(scheduler, plan);
}

/* ---- Invariants ---- */

static const char* check_sequence(const accsv_scheduler_t* scheduler,
                                  const accsv_sequence_t* sequence) {
  const uint32_t page_size = scheduler->limits.page_size;
  if (sequence->state != ACCSV_RUNNING)
    return "a running sequence is in another state";
  if (sequence->computed > sequence->known + sequence->pending + sequence->drafts ||
      (sequence->drafts > 0 && sequence->pending == 0))
    return "more is computed than there is";
  if (sequence->blocks_held < accsv_pages(sequence->computed, page_size))
    return "a sequence has too few blocks";
  if (sequence->registered * page_size > sequence->known)
    return "tokens that are not known are in the cache";
  for (uint32_t i = 0; i < sequence->blocks_held; ++i) {
    if (scheduler->pool.blocks[sequence->blocks[i]].refs == 0)
      return "a sequence has a block that it does not hold";
  }
  return NULL;
}

const char* accsv_scheduler_check(const accsv_scheduler_t* scheduler) {
  const char* wrong = accsv_pool_check(&scheduler->pool);
  if (wrong == NULL)
    wrong = accsv_prefix_check(&scheduler->prefix);
  if (wrong == NULL)
    wrong = accsv_queue_check(&scheduler->queue);
  uint64_t held = 0, refs = 0;
  for (uint32_t i = 0; wrong == NULL && i < scheduler->running_count; ++i) {
    held += scheduler->running[i]->blocks_held;
    wrong = scheduler->running[i]->place != i ? "a running sequence is in another place"
                                              : check_sequence(scheduler, scheduler->running[i]);
  }
  for (uint32_t i = 0; i < scheduler->pool.count; ++i)
    refs += scheduler->pool.blocks[i].refs;
  if (wrong == NULL && held != refs)
    wrong = "holds and lists of blocks differ";
  if (wrong == NULL &&
      scheduler->running_count + scheduler->free_row_count != scheduler->limits.rows)
    wrong = "rows are lost";
  return wrong;
}
