/* tests/serve/scheduler_drive.c - runs operations of standard input on the scheduler and prints its
 * state after each, for tests/python/serve_reference.py to compare.
 *
 *   i PAGES PAGE_SIZE ROWS STEP_TOKENS CHUNK PREEMPTIONS QUANTUM SAMPLES LEAST MOST COPY   begins
 *                   anew; LEAST and MOST are sizes of n-grams, COPY is the least that is copied
 *   a KEY PRIORITY TENANT SALT HISTORY SCORED GUESSES LIMIT TOKEN...   a sequence comes
 *   p                                                              plans a step
 *   r                                                              the oldest step ends
 *   c KEY                                                          a sequence is cancelled
 *   l                                                              all keys and values are lost
 *   t TOKENS                                                       the limit of mixed steps
 *
 * The token sampled for a sequence of an even key is (key + position) % 3; of others it follows no
 * rule.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/scheduler.h"

#define MOST 4096
#define DEPTH 8

static accsv_scheduler_t scheduler;
static accsv_sequence_t* sequences[MOST]; /* by key; NULL: there is none */
static accsv_plan_t plans[DEPTH];
static uint32_t in_flight;
static uint64_t step;
static uint32_t rows;

static void stop(const char* why) {
  printf("WRONG %s\n", why);
  exit(1);
}

static void free_sequence(accsv_sequence_t* sequence) {
  sequences[sequence->key] = NULL;
  accsv_lookback_deinit(&sequence->lookback, &accsv_allocator_system);
  free(sequence->tokens);
  free(sequence->blocks);
  free(sequence);
}

static void end_sequence(accsv_sequence_t* sequence) {
  accsv_scheduler_end(&scheduler, sequence);
  if (sequence->in_flight == 0)
    free_sequence(sequence);
}

static void begin(char* line) {
  unsigned n[11];
  if (sscanf(line, "%u %u %u %u %u %u %u %u %u %u %u", &n[0], &n[1], &n[2], &n[3], &n[4], &n[5],
             &n[6], &n[7], &n[8], &n[9], &n[10]) != 11)
    stop("a line");
  for (uint32_t key = 0; key < MOST; ++key) {
    if (sequences[key] == NULL)
      continue;
    sequences[key]->in_flight = 0;
    if (sequences[key]->state == ACCSV_ENDED)
      free_sequence(sequences[key]);
    else
      end_sequence(sequences[key]);
  }
  accsv_scheduler_deinit(&scheduler);
  const accsv_limits_t limits = {.pages = n[0],
                                 .page_size = n[1],
                                 .rows = n[2],
                                 .step_tokens = n[3],
                                 .chunk_tokens = n[4],
                                 .max_preemptions = n[5],
                                 .quantum = n[6],
                                 .samples = n[7],
                                 .lookup = {.least = n[8], .most = n[9]},
                                 .copy_tokens = n[10],
                                 .sequences = MOST,
                                 .seed = 12345};
  if (accsv_scheduler_init(&scheduler, &accsv_allocator_system, &limits) != ACCRT_OK)
    stop("memory");
  rows = n[2];
  for (uint32_t i = 0; i < DEPTH; ++i) {
    free(plans[i].parts);
    plans[i].parts = calloc(rows, sizeof *plans[i].parts);
  }
  in_flight = 0;
  step = 0;
}

static void add(char* line) {
  char* at = line;
  accsv_sequence_t* sequence = calloc(1, sizeof *sequence);
  sequence->key = strtoull(at, &at, 10);
  sequence->priority = (int8_t)strtol(at, &at, 10);
  const uint64_t tenant = strtoull(at, &at, 10);
  sequence->salt = strtoull(at, &at, 10);
  sequence->history = strtoul(at, &at, 10) != 0;
  sequence->scores = strtoul(at, &at, 10) != 0;
  sequence->guesses = (uint8_t)strtoul(at, &at, 10);
  sequence->history |= sequence->guesses > 0;
  sequence->limit = (uint32_t)strtoul(at, &at, 10);
  sequence->tokens = calloc(sequence->limit, sizeof *sequence->tokens);
  sequence->block_capacity = accsv_pages(sequence->limit, scheduler.limits.page_size);
  sequence->blocks = calloc(sequence->block_capacity, sizeof *sequence->blocks);
  if (sequence->guesses > 0 &&
      accsv_lookback_init(&sequence->lookback, &accsv_allocator_system, &scheduler.limits.lookup,
                          sequence->limit) != ACCRT_OK)
    stop("memory");
  sequence->row = -1;
  sequence->chain = ACCSV_CHAIN_EMPTY;
  for (;;) {
    char* end;
    const long token = strtol(at, &end, 10);
    if (end == at)
      break;
    sequence->tokens[sequence->known++] = (int32_t)token;
    at = end;
  }
  sequence->prompt_count = sequence->known;
  sequence->scores &= sequence->known > 1;
  sequence->to_score = sequence->scores ? sequence->known - 1 : 0;
  sequences[sequence->key] = sequence;
  accsv_queue_join(&scheduler.queue, sequence, tenant);
  accsv_queue_push(&scheduler.queue, sequence);
}

static void plan(void) {
  accsv_plan_t* one = &plans[in_flight];
  accsv_scheduler_plan(&scheduler, step + 1, one);
  accsv_scheduler_planned(&scheduler);
  for (uint32_t i = 0; i < one->count; ++i) {
    const accsv_part_t* part = &one->parts[i];
    printf("%d:%u+%u%s%u ", (int)part->sequence->key, part->start, part->count,
           part->draws ? "*" : "-", part->samples);
  }
  for (uint32_t i = 0; i < one->copy_count; ++i)
    printf("%d>%d:%u ", one->copies[i].from, one->copies[i].to, one->copies[i].count);
  if (one->tokens > scheduler.limits.step_tokens)
    stop("a step has more tokens than its budget");
  if (one->samples > scheduler.limits.samples)
    stop("a step has more samples than it may");
  if (one->count > 0) {
    ++step;
    ++in_flight;
  }
}

static int32_t token_at(const accsv_sequence_t* sequence) {
  const uint32_t key = (uint32_t)sequence->key, at = sequence->known;
  return (int32_t)(key % 2 == 0 ? (key + at) % 3 : (at * 2654435761u + key) >> 9 & 1);
}

/* The next token, and those after drafts that are right. */
static void take_tokens(const accsv_part_t* part) {
  accsv_sequence_t* sequence = part->sequence;
  for (uint32_t i = 0; i <= part->drafts; ++i) {
    const int32_t token = token_at(sequence);
    const bool goes_on = i < part->drafts && sequence->tokens[sequence->known] == token;
    sequence->tokens[sequence->known] = token;
    if (++sequence->known == sequence->limit) {
      end_sequence(sequence);
      return;
    }
    if (!goes_on)
      break;
  }
  accsv_scheduler_settle(&scheduler, part);
}

static void retire(void) {
  accsv_plan_t one = plans[0];
  --in_flight;
  for (uint32_t i = 0; i < in_flight; ++i)
    plans[i] = plans[i + 1];
  plans[in_flight] = one;
  accsv_scheduler_end_step(&scheduler, one.step);
  for (uint32_t i = 0; i < one.count; ++i) {
    accsv_sequence_t* sequence = one.parts[i].sequence;
    accsv_part_leave(&one.parts[i]);
    if (sequence->state == ACCSV_ENDED) {
      if (sequence->in_flight == 0)
        free_sequence(sequence);
      continue;
    }
    if (one.parts[i].draws)
      take_tokens(&one.parts[i]);
  }
}

static void lose(void) {
  accsv_scheduler_end_step(&scheduler, step);
  accsv_scheduler_lose(&scheduler);
  for (uint32_t f = 0; f < in_flight; ++f) {
    for (uint32_t i = 0; i < plans[f].count; ++i) {
      accsv_sequence_t* sequence = plans[f].parts[i].sequence;
      accsv_part_forget(&plans[f].parts[i]);
      if (sequence->state == ACCSV_ENDED && sequence->in_flight == 0)
        free_sequence(sequence);
    }
  }
  in_flight = 0;
}

static void print_drafts(const accsv_sequence_t* sequence) {
  for (uint32_t i = 0; i < sequence->drafts; ++i)
    printf("%s%d", i == 0 ? "?" : "", (int)sequence->tokens[sequence->known + i]);
}

static void print_state(void) {
  const accsv_pool_t* pool = &scheduler.pool;
  printf("| %u %u %u | %u %u |", pool->free.count, pool->cached, pool->pending.count,
         scheduler.queue.queued, scheduler.queue.preempted);
  for (uint32_t i = 0; i < scheduler.running_count; ++i) {
    const accsv_sequence_t* sequence = scheduler.running[i];
    printf(" %d=%u/%u+%u~%u@%d[", (int)sequence->key, sequence->computed, sequence->known,
           sequence->pending, sequence->asked, sequence->row);
    for (uint32_t b = 0; b < sequence->blocks_held; ++b)
      printf("%s%d", b > 0 ? "," : "", sequence->blocks[b]);
    printf("]");
    print_drafts(sequence);
  }
  printf("\n");
}

int main(void) {
  static char line[65536];
  while (fgets(line, sizeof line, stdin) != NULL) {
    switch (line[0]) {
    case 'i':
      begin(line + 1);
      break;
    case 'a':
      add(line + 1);
      break;
    case 'p':
      plan();
      break;
    case 'r':
      retire();
      break;
    case 'c':
      end_sequence(sequences[strtoul(line + 1, NULL, 10)]);
      break;
    case 'l':
      lose();
      break;
    case 't':
      scheduler.mixed_tokens = (uint32_t)strtoul(line + 1, NULL, 10);
      break;
    default:
      stop("an operation");
    }
    const char* wrong = accsv_scheduler_check(&scheduler);
    if (wrong != NULL)
      stop(wrong);
    print_state();
  }
  begin((char[]){"1 1 1 1 1 1 1 1 1 1 1"});
  for (uint32_t i = 0; i < DEPTH; ++i)
    free(plans[i].parts);
  accsv_scheduler_deinit(&scheduler);
  return 0;
}
