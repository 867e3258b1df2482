/* tests/serve/scheduler_soak.c - random operations on the scheduler with its pool and its cache,
 * and what must hold looked at after each, as far as the operation touched it:
 *
 *   - a step has at most its budget of tokens, and a row once;
 *   - each token is computed behind the one before it: pages have stamps of all tokens up to each
 *     place, and a sequence finds its own on every page that it holds, shared or not;
 *   - a page that others hold is written only with what it has already;
 *   - a page is given to another sequence only when the last step that used it has ended;
 *   - a step has at most its samples, and each token of a prompt that is scored is one once;
 *   - drafts are written where nobody else reads;
 *   - what is copied was written by an earlier step, and goes to a page that nobody shares;
 *   - while there are sequences and no step is in flight, there is something to compute.
 *
 * All that the library itself can check is checked after every 256th operation, and at the end of a
 * world everything must be free. Worlds are small, so that pages are scarce, and many.
 *
 *   serve.scheduler_soak [--operations N] [--seed N]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/scheduler.h"

#define MOST_SEQUENCES 48u
#define MOST_LENGTH 64u
#define MOST_PAGES 64u
#define MOST_PAGE_SIZE 8u
#define MOST_ROWS 12u
#define DEPTH 3u
#define OPERATIONS_OF_A_WORLD 20000u

typedef struct shadow {
  uint32_t generation; /* when a step used it last */
  uint64_t step;
} shadow_t;

typedef struct stamped {
  accsv_sequence_t sequence; /* first: the scheduler's pointer is this one's */
  int32_t tokens[MOST_LENGTH];
  int32_t truth[MOST_LENGTH]; /* what all tokens are, also those that will be sampled */
  int32_t blocks[MOST_LENGTH];
  uint64_t hashes[MOST_LENGTH]; /* of all tokens up to each, also of those that will be sampled */
  uint32_t scores;              /* of its prompt, that came */
  bool is_there;
} stamped_t;

static accsv_scheduler_t scheduler;
static stamped_t sequences[MOST_SEQUENCES];
static uint64_t stamps[MOST_PAGES * MOST_PAGE_SIZE];
static shadow_t shadows[MOST_PAGES];
static uint64_t row_steps[MOST_ROWS];
static accsv_part_t parts[DEPTH][MOST_ROWS];
static accsv_plan_t plans[DEPTH];
static uint32_t in_flight, live;
static uint64_t step, keys, random_state, seed, done;
static uint64_t tokens_done, preemptions_done, admissions_done, ended_done;
static uint64_t drafts_done, accepted_done, copies_done;

static _Noreturn void stop(const char* what) {
  fprintf(stderr, "scheduler_soak: seed %llu, operation %llu: %s\n", (unsigned long long)seed,
          (unsigned long long)done, what);
  exit(1);
}

static uint32_t below(uint32_t limit) {
  random_state += UINT64_C(0x9E3779B97F4A7C15);
  return (uint32_t)((accsv_mix(random_state) >> 32) * limit >> 32);
}

/* ---- Sequences ---- */

static void begin_world(void) {
  const uint32_t rows = 1 + below(MOST_ROWS);
  const accsv_limits_t limits = {.pages = 8 + below(MOST_PAGES - 8),
                                 .page_size = 1 + below(MOST_PAGE_SIZE),
                                 .rows = rows,
                                 .samples = rows + (below(2) == 0 ? below(30) : 0),
                                 .step_tokens = rows + below(40),
                                 .chunk_tokens = below(3) == 0 ? 1 + below(8) : UINT32_MAX,
                                 .max_preemptions = 1 + below(4),
                                 .sequences = MOST_SEQUENCES,
                                 .quantum = 1 + below(64),
                                 .lookup = {.least = 1 + below(2), .most = 2 + below(3)},
                                 .copy_tokens = below(4),
                                 .seed = accsv_mix(random_state)};
  if (accsv_scheduler_init(&scheduler, &accsv_allocator_system, &limits) != ACCRT_OK)
    stop("no memory");
  memset(stamps, 0, sizeof stamps);
  memset(shadows, 0, sizeof shadows);
  memset(row_steps, 0, sizeof row_steps);
  in_flight = 0;
  step = 0;
  for (uint32_t i = 0; i < DEPTH; ++i)
    plans[i].parts = parts[i];
}

static uint64_t hash_after(uint64_t hash, int32_t token) {
  return accsv_mix(hash ^ ((uint64_t)(uint32_t)token + 2) * 0x9E3779B97F4A7C15u);
}

static void fill(stamped_t* stamped) {
  accsv_sequence_t* sequence = &stamped->sequence;
  uint64_t hash = sequence->salt + 1;
  for (uint32_t i = 0; i < sequence->limit; ++i) {
    /* Prompts begin alike in many ways, and what is sampled may be another's prompt. */
    stamped->tokens[i] = stamped->truth[i] = below(8) > 0 ? (int32_t)(i % 2) : (int32_t)below(2);
    stamped->hashes[i] = hash = hash_after(hash, stamped->tokens[i]);
  }
}

static void add(void) {
  uint32_t at = 0;
  while (at < MOST_SEQUENCES && sequences[at].is_there)
    ++at;
  if (at == MOST_SEQUENCES)
    return;
  stamped_t* stamped = &sequences[at];
  accsv_sequence_t* sequence = &stamped->sequence;
  const uint32_t held = scheduler.limits.pages * scheduler.limits.page_size;
  const uint32_t longest = held < MOST_LENGTH ? held : MOST_LENGTH;
  memset(sequence, 0, sizeof *sequence);
  sequence->tokens = stamped->tokens;
  sequence->blocks = stamped->blocks;
  sequence->limit = 2 + below(longest - 1);
  sequence->known = sequence->prompt_count = 1 + below(sequence->limit - 1);
  sequence->block_capacity = accsv_pages(sequence->limit, scheduler.limits.page_size);
  sequence->row = -1;
  sequence->chain = ACCSV_CHAIN_EMPTY;
  sequence->key = ++keys;
  sequence->priority = (int8_t)(below(4) == 0 ? (int32_t)below(16) - 8 : 0);
  sequence->salt = below(4) == 0 ? 1 + below(2) : 0;
  sequence->history = below(8) == 0;
  if (below(4) == 0) {
    sequence->guesses = (uint8_t)(1 + below(6));
    sequence->history = true;
    if (accsv_lookback_init(&sequence->lookback, &accsv_allocator_system, &scheduler.limits.lookup,
                            sequence->limit) != ACCRT_OK)
      stop("memory");
  }
  if (below(4) == 0 && sequence->known > 1) {
    sequence->to_score = sequence->known - 1;
    sequence->scores = true;
  }
  stamped->scores = 0;
  fill(stamped);
  stamped->is_there = true;
  ++live;
  accsv_queue_join(&scheduler.queue, sequence, below(4));
  if (below(16) == 0)
    accsv_queue_push_preempted(&scheduler.queue, sequence, below(2) == 0);
  else
    accsv_queue_push(&scheduler.queue, sequence);
}

/* Each token of a prompt is scored once, in order, and all before the first one is drawn. */
static void take_scores(const accsv_part_t* part) {
  stamped_t* stamped = (stamped_t*)(void*)part->sequence;
  const uint32_t scores = accsv_part_scores(part);
  if (scores > 0 && accsv_part_sampled(part) != stamped->scores)
    stop("a score twice, or none");
  stamped->scores += scores;
  if (part->draws && stamped->scores != part->sequence->to_score)
    stop("a token before all scores of its prompt");
}

static void forget(accsv_sequence_t* sequence) {
  accsv_lookback_deinit(&sequence->lookback, &accsv_allocator_system);
  ((stamped_t*)(void*)sequence)->is_there = false;
}

static void end(accsv_sequence_t* sequence) {
  accsv_scheduler_end(&scheduler, sequence);
  --live;
  ++ended_done;
  if (sequence->in_flight == 0)
    forget(sequence);
}

static void cancel(void) {
  stamped_t* stamped = &sequences[below(MOST_SEQUENCES)];
  if (stamped->is_there && stamped->sequence.state != ACCSV_ENDED)
    end(&stamped->sequence);
}

/* ---- What must hold of a step ---- */

static void use_pages(const accsv_sequence_t* sequence) {
  const uint32_t used = accsv_pages(sequence->computed, scheduler.limits.page_size);
  if (used > sequence->blocks_held)
    stop("a sequence has too few pages");
  for (uint32_t i = 0; i < used; ++i) {
    const int32_t number = sequence->blocks[i];
    const accsv_block_t* block = &scheduler.pool.blocks[number];
    shadow_t* shadow = &shadows[number];
    if (block->refs == 0 || block->list != ACCSV_LIST_NONE)
      stop("a sequence uses a page that it does not hold");
    if (shadow->generation != block->generation && shadow->step > scheduler.pool.ended)
      stop("a page has a new owner before the last step that used it has ended");
    *shadow = (shadow_t){block->generation, step};
  }
}

/* Whoever shares the page wants there what is written: a page is found by others in the step that
 * computes it. */
static void check_sharers(const stamped_t* writer, uint32_t at) {
  const uint32_t index = at / scheduler.limits.page_size;
  const int32_t block = writer->blocks[index];
  for (uint32_t i = 0; i < scheduler.running_count; ++i) {
    const stamped_t* other = (const stamped_t*)(const void*)scheduler.running[i];
    if (other->sequence.blocks_held > index && other->blocks[index] == block &&
        (at >= other->sequence.limit || other->hashes[at] != writer->hashes[at]))
      stop("a shared page is written");
  }
}

/* The page that is copied stays what it is until the step has ended, and is marked so: use_pages
 * sees if another takes it before. Stamps tell whether it was the right one. */
static void copy_stamps(const accsv_copy_t* copy) {
  const int32_t page_size = (int32_t)scheduler.limits.page_size;
  const int32_t from = copy->from / page_size, to = copy->to / page_size;
  const accsv_block_t* source = &scheduler.pool.blocks[from];
  if (copy->count == 0 || copy->count >= scheduler.limits.page_size ||
      copy->count < scheduler.limits.copy_tokens || copy->from % page_size != 0 ||
      copy->to % page_size != 0 || from == to)
    stop("a copy of no part of a page");
  if (source->list == ACCSV_LIST_FREE)
    stop("a page that is copied may be taken");
  if (!source->keyed || source->written >= step)
    stop("a copy of what no earlier step has written");
  if (scheduler.pool.blocks[to].refs < 1 || scheduler.pool.blocks[to].generation == 0)
    stop("a copy to a page that nobody has");
  shadows[from] = (shadow_t){source->generation, step};
  memcpy(&stamps[copy->to], &stamps[copy->from], copy->count * sizeof *stamps);
  ++copies_done;
}

static void write_tokens(const accsv_part_t* part) {
  const uint32_t page_size = scheduler.limits.page_size;
  const stamped_t* stamped = (const stamped_t*)(const void*)part->sequence;
  const uint32_t end = part->start + part->count;
  uint64_t before = part->start > 0 ? stamped->hashes[part->start - 1] : 0;
  for (uint32_t at = part->start; at < end; ++at) {
    const bool guessed = at >= end - part->drafts;
    const uint64_t hash = guessed ? hash_after(before, stamped->tokens[at]) : stamped->hashes[at];
    const uint32_t slot =
        (uint32_t)part->sequence->blocks[at / page_size] * page_size + at % page_size;
    if (at > 0) {
      const uint32_t last =
          (uint32_t)part->sequence->blocks[(at - 1) / page_size] * page_size + (at - 1) % page_size;
      if (stamps[last] != before)
        stop("a page is another's");
    }
    if (guessed && scheduler.pool.blocks[part->sequence->blocks[at / page_size]].refs > 1)
      stop("a draft is written into a shared page");
    if (stamps[slot] != hash &&
        scheduler.pool.blocks[part->sequence->blocks[at / page_size]].refs > 1)
      check_sharers(stamped, at);
    stamps[slot] = before = hash;
  }
}

static void check_part(const accsv_part_t* part) {
  const accsv_sequence_t* sequence = part->sequence;
  if (sequence->state != ACCSV_RUNNING || sequence->row < 0 ||
      (uint32_t)sequence->row >= scheduler.limits.rows || row_steps[sequence->row] == step)
    stop("a row twice, or none");
  row_steps[sequence->row] = step;
  if (part->count == 0 || part->start + part->count != sequence->computed ||
      part->draws != (sequence->computed ==
                      sequence->known + sequence->pending - part->draws + part->drafts) ||
      part->drafts > sequence->guesses || (part->drafts > 0 && !part->draws) ||
      part->samples > part->count || part->samples < part->draws ||
      sequence->known + sequence->pending > sequence->limit)
    stop("a part of a step does not fit its sequence");
  if (sequence->history && sequence->pending > part->draws)
    stop("a sequence with a history is ahead of it");
}

static void plan(void) {
  if (in_flight == DEPTH)
    return;
  accsv_plan_t* one = &plans[in_flight];
  ++step;
  accsv_scheduler_plan(&scheduler, step, one);
  accsv_scheduler_planned(&scheduler);
  if (one->count == 0) {
    --step;
    if (live > 0 && in_flight == 0)
      stop("there is nothing to compute, and sequences wait");
    return;
  }
  if (one->count > scheduler.limits.rows || one->tokens > scheduler.limits.step_tokens ||
      one->samples > scheduler.limits.samples)
    stop("a step beyond its limits");
  uint32_t tokens = 0, samples = 0;
  for (uint32_t i = 0; i < one->copy_count; ++i)
    copy_stamps(&one->copies[i]);
  for (uint32_t i = 0; i < one->count; ++i) {
    check_part(&one->parts[i]);
    use_pages(one->parts[i].sequence);
    write_tokens(&one->parts[i]);
    tokens += one->parts[i].count;
    samples += one->parts[i].samples;
  }
  if (tokens != one->tokens || samples != one->samples)
    stop("a step's sums are wrong");
  tokens_done += tokens;
  ++in_flight;
}

/* The next token, and those after drafts that are right. */
static void take_tokens(const accsv_part_t* part) {
  accsv_sequence_t* sequence = part->sequence;
  const int32_t* truth = ((const stamped_t*)(const void*)sequence)->truth;
  for (uint32_t i = 0; i <= part->drafts; ++i) {
    const uint32_t at = sequence->known;
    const bool goes_on = i < part->drafts && sequence->tokens[at] == truth[at];
    sequence->tokens[at] = truth[at];
    if (++sequence->known == sequence->limit) {
      end(sequence);
      return;
    }
    if (!goes_on)
      break;
    ++accepted_done;
  }
  drafts_done += part->drafts;
  accsv_scheduler_settle(&scheduler, part);
}

static void retire(void) {
  if (in_flight == 0)
    return;
  const accsv_plan_t one = plans[0];
  --in_flight;
  for (uint32_t i = 0; i < in_flight; ++i)
    plans[i] = plans[i + 1];
  plans[in_flight] = one;
  accsv_scheduler_end_step(&scheduler, one.step);
  for (uint32_t i = 0; i < one.count; ++i) {
    accsv_sequence_t* sequence = one.parts[i].sequence;
    accsv_part_leave(&one.parts[i]);
    take_scores(&one.parts[i]);
    if (sequence->state == ACCSV_ENDED) {
      if (sequence->in_flight == 0)
        forget(sequence);
      continue;
    }
    if (one.parts[i].draws)
      take_tokens(&one.parts[i]);
  }
}

static void lose(void) {
  accsv_scheduler_end_step(&scheduler, step);
  accsv_scheduler_lose(&scheduler);
  memset(stamps, 0, sizeof stamps);
  for (uint32_t f = 0; f < in_flight; ++f) {
    for (uint32_t i = 0; i < plans[f].count; ++i) {
      accsv_sequence_t* sequence = plans[f].parts[i].sequence;
      accsv_part_forget(&plans[f].parts[i]);
      if (sequence->state == ACCSV_ENDED && sequence->in_flight == 0)
        forget(sequence);
    }
  }
  in_flight = 0;
}

static void check_all(void) {
  const char* wrong = accsv_scheduler_check(&scheduler);
  if (wrong != NULL)
    stop(wrong);
}

static void end_world(void) {
  for (uint32_t i = 0; i < MOST_SEQUENCES; ++i) {
    if (sequences[i].is_there && sequences[i].sequence.state != ACCSV_ENDED)
      end(&sequences[i].sequence);
  }
  while (in_flight > 0)
    retire();
  check_all();
  for (uint32_t i = 0; i < MOST_SEQUENCES; ++i) {
    if (sequences[i].is_there)
      stop("a sequence is left");
  }
  if (live != 0 || scheduler.pool.free.count != scheduler.limits.pages ||
      scheduler.running_count != 0)
    stop("pages or sequences are left");
  preemptions_done += scheduler.preemptions;
  admissions_done += scheduler.admissions;
  accsv_scheduler_deinit(&scheduler);
}

static void operate(void) {
  const uint32_t chance = below(1000);
  if (chance < 130)
    add();
  else if (chance < 550)
    plan();
  else if (chance < 970)
    retire();
  else if (chance < 999)
    cancel();
  else
    lose();
}

int main(int argc, char** argv) {
  uint64_t operations = 1000000;
  seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--operations") == 0)
      operations = strtoull(argv[i + 1], NULL, 10);
    else if (strcmp(argv[i], "--seed") == 0)
      seed = strtoull(argv[i + 1], NULL, 10);
  }
  printf("seed %llu\n", (unsigned long long)seed);
  fflush(stdout);
  random_state = accsv_mix(seed);
  while (done < operations) {
    begin_world();
    for (uint32_t i = 0; i < OPERATIONS_OF_A_WORLD; ++i, ++done) {
      operate();
      if (done % 256 == 0)
        check_all();
    }
    end_world();
  }
  printf("%llu operations: %llu tokens, %llu admissions, %llu preemptions, %llu ends, %llu of %llu "
         "drafts, %llu copies\n",
         (unsigned long long)done, (unsigned long long)tokens_done,
         (unsigned long long)admissions_done, (unsigned long long)preemptions_done,
         (unsigned long long)ended_done, (unsigned long long)accepted_done,
         (unsigned long long)drafts_done, (unsigned long long)copies_done);
  return 0;
}
