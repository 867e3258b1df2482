/* serve/counters.c - what an engine counts, by name: the fields of accrt_serve_stats_t as a group
 * of counters. It counts nothing. Names are vLLM's where it has one. */
#include "serve/counters.h"

#include <pthread.h>
#include <string.h>

#include "serve/engine.h"

#define FIRST_BOUND_S 62.5e-6 /* of histograms; each next one is twice the one before */
enum { BOUNDS = ACCRT_SERVE_HISTOGRAM_BUCKETS - 1 };

/* How a value follows from the statistics: a count of 4 or 8 bytes, nanoseconds or a histogram of
 * them, which become seconds, and what is made of several fields. */
enum { COUNT, SECONDS, TIMES, WAITING, USAGE };

/* X(kind, how, field, name, help). Rows of one name follow each other. The table is made of two,
 * texts without pointers and numbers: a pointer in a constant table takes 32 bytes. */
#define TOTAL ACCRT_COUNTER_TOTAL
#define GAUGE ACCRT_COUNTER_GAUGE
#define HISTOGRAM ACCRT_COUNTER_HISTOGRAM
#define FIGURES(X)                                                                                 \
  X(GAUGE, COUNT, running, "vllm:num_requests_running", "Sequences that have pages.")              \
  X(GAUGE, WAITING, waiting, "vllm:num_requests_waiting",                                          \
    "Requests in the queue, and sequences that were preempted.")                                   \
  X(GAUGE, USAGE, pages, "vllm:kv_cache_usage_perc", "Pages in use, 0 to 1.")                      \
  X(TOTAL, COUNT, preemptions, "vllm:num_preemptions_total",                                       \
    "Sequences that lost their pages to others.")                                                  \
  X(TOTAL, COUNT, prompt_tokens, "vllm:prompt_tokens_total",                                       \
    "Prompt tokens of sequences that were admitted.")                                              \
  X(TOTAL, COUNT, output_tokens, "vllm:generation_tokens_total", "Tokens generated.")              \
  X(TOTAL, COUNT, prompt_tokens, "vllm:prefix_cache_queries_total",                                \
    "Prompt tokens looked up in the prefix cache.")                                                \
  X(TOTAL, COUNT, cached_tokens, "vllm:prefix_cache_hits_total",                                   \
    "Prompt tokens that the prefix cache had.")                                                    \
  X(TOTAL, COUNT, partial_hits, "accrt:prefix_cache_partial_hits_total",                           \
    "Times that a sequence began with a copy of a part of a page.")                                \
  X(TOTAL, COUNT, copied_tokens, "accrt:prefix_cache_copied_tokens_total",                         \
    "Tokens of these copies.")                                                                     \
  X(TOTAL, COUNT, drafts, "vllm:spec_decode_num_drafts_total",                                     \
    "Times that a sequence had tokens guessed from its text.")                                     \
  X(TOTAL, COUNT, draft_tokens, "vllm:spec_decode_num_draft_tokens_total",                         \
    "Tokens that were guessed.")                                                                   \
  X(TOTAL, COUNT, accepted_tokens, "vllm:spec_decode_num_accepted_tokens_total",                   \
    "Of these: those that were drawn.")                                                            \
  X(HISTOGRAM, TIMES, queue_time, "vllm:request_queue_time_seconds",                               \
    "From a request's submission to its first step.")                                              \
  X(HISTOGRAM, TIMES, first_token, "vllm:time_to_first_token_seconds",                             \
    "From a request's submission to its first token.")                                             \
  X(HISTOGRAM, TIMES, next_token, "vllm:inter_token_latency_seconds",                              \
    "Between tokens of one sequence.")                                                             \
  X(HISTOGRAM, TIMES, total_time, "vllm:e2e_request_latency_seconds",                              \
    "From a request's submission to the end of a sequence.")                                       \
  X(GAUGE, COUNT, healthy, "accrt:healthy", "1, unless the model has failed or no step ends.")     \
  X(GAUGE, COUNT, preempted, "accrt:sequences_preempted", "Sequences that wait for pages again.")  \
  X(GAUGE, COUNT, max_running, "accrt:max_running", "Sequences that may have pages at once.")      \
  X(GAUGE, COUNT, pages, "accrt:kv_pages", "Pages of the KV cache.")                               \
  X(GAUGE, COUNT, pages_free, "accrt:kv_pages_free", "Pages without contents.")                    \
  X(GAUGE, COUNT, pages_cached, "accrt:kv_pages_cached",                                           \
    "Pages whose contents a prompt may share.")                                                    \
  X(GAUGE, COUNT, pages_pending, "accrt:kv_pages_pending",                                         \
    "Pages given back that a step in flight still uses.")                                          \
  X(TOTAL, COUNT, submitted, "accrt:requests_total", "Requests that the engine took.")             \
  X(TOTAL, COUNT, refused, "accrt:requests_refused_total", "Requests that found the queue full.")  \
  ENDED(X, stop)                                                                                   \
  ENDED(X, length)                                                                                 \
  ENDED(X, cancelled)                                                                              \
  ENDED(X, deadline)                                                                               \
  ENDED(X, failed)                                                                                 \
  X(GAUGE, COUNT, waiting, "accrt:queued_requests", "Requests in the queue.")                      \
  X(GAUGE, COUNT, waiting_tokens, "accrt:queued_tokens",                                           \
    "Prompt tokens of requests in the queue.")                                                     \
  X(GAUGE, COUNT, adapters, "accrt:adapters", "LoRA adapters that are loaded.")                    \
  X(GAUGE, COUNT, adapter_places, "accrt:adapter_places", "Places for LoRA adapters.")             \
  X(TOTAL, COUNT, adapter_loads, "accrt:adapter_loads_total", "LoRA adapters that were loaded.")   \
  X(TOTAL, COUNT, steps, "accrt:steps_total", "Steps of the engine.")                              \
  X(TOTAL, COUNT, step_failures, "accrt:step_failures_total", "Steps that failed.")                \
  X(TOTAL, COUNT, computed_tokens, "accrt:computed_tokens_total", "Tokens of all steps.")          \
  X(TOTAL, COUNT, wasted_tokens, "accrt:wasted_tokens_total",                                      \
    "Tokens sampled after an end, or lost to failures.")                                           \
  X(TOTAL, SECONDS, schedule_ns, "accrt:schedule_seconds_total",                                   \
    "Time of the engine itself in all steps.")                                                     \
  X(TOTAL, SECONDS, model_ns, "accrt:model_seconds_total", "Time in the model's functions.")       \
  X(GAUGE, SECONDS, queue_ns, "accrt:queue_seconds",                                               \
    "Until all that waits has begun, at the pace of late.")                                        \
  X(GAUGE, COUNT, step_tokens, "accrt:step_token_limit",                                           \
    "Tokens of a step in which a sequence draws one, by max_step_ns; 0: any.")                     \
  X(TOTAL, COUNT, hopeless, "accrt:requests_never_begun_total",                                    \
    "Requests that could no longer end before their deadlines.")
/* A help text that begins with '=' is the value of the label `reason`, and the text of the row
 * before follows. */
#define ENDED(X, reason)                                                                           \
  X(TOTAL, COUNT, finished_##reason, "accrt:sequences_ended_total", "=" #reason)

typedef struct figure {
  uint8_t kind, how;
  uint16_t offset, size_bytes; /* in accrt_serve_stats_t */
} figure_t;
#define FIGURE(kind, how, field, name, help)                                                       \
  {kind, how, (uint16_t)offsetof(accrt_serve_stats_t, field),                                      \
   (uint16_t)sizeof(((accrt_serve_stats_t*)0)->field)},
static const figure_t figures[] = {FIGURES(FIGURE)};
#define TEXT(kind, how, field, name, help) name "\0" help "\0"
static const char texts[] = FIGURES(TEXT);
enum { ROWS = sizeof figures / sizeof *figures };
#define VALUES(kind, how, field, name, help) +((kind) == HISTOGRAM ? BOUNDS + 2 : 1)
_Static_assert(0 FIGURES(VALUES) == ACCSV_COUNTER_VALUES, "all values");

/* Of all engines. It stays when an engine ends, which a reader's visitor may bring about. */
static accrt_counter_t rows[ROWS];
static double bounds[BOUNDS];
static pthread_once_t rows_filled = PTHREAD_ONCE_INIT;

static uint64_t count_at(const figure_t* figure, const void* at) {
  uint64_t number = 0;
  uint32_t word = 0;
  if (figure->size_bytes == sizeof number)
    memcpy(&number, at, sizeof number);
  else
    memcpy(&word, at, sizeof word);
  return number + word;
}

static double value_of(const figure_t* figure, const accrt_serve_stats_t* stats) {
  const uint32_t idle = stats->pages_free + stats->pages_cached;
  const double count = (double)count_at(figure, (const char*)stats + figure->offset);
  switch (figure->how) {
  case SECONDS:
    return count * 1e-9;
  case WAITING:
    return count + stats->preempted;
  case USAGE:
    return stats->pages > idle ? (double)(stats->pages - idle) / stats->pages : 0;
  default:
    return count;
  }
}

static double* put_times(double* values, const accrt_serve_histogram_t* times) {
  for (uint32_t i = 0; i < ACCRT_SERVE_HISTOGRAM_BUCKETS; ++i)
    *values++ = (double)times->buckets[i];
  *values++ = (double)times->sum_ns * 1e-9;
  return values;
}

void accsv_counters_values(const accrt_serve_stats_t* stats, double* values) {
  for (uint32_t i = 0; i < ROWS; ++i) {
    if (figures[i].how == TIMES)
      values = put_times(values, (const void*)((const char*)stats + figures[i].offset));
    else
      *values++ = value_of(&figures[i], stats);
  }
}

static void read_figures(void* self, double* values) {
  accrt_serve_stats_t stats = ACCRT_SERVE_STATS_INIT;
  if (accrt_serve_engine_stats(self, &stats) == ACCRT_OK)
    accsv_counters_values(&stats, values);
}

static void fill_rows(void) {
  double bound = FIRST_BOUND_S;
  for (uint32_t i = 0; i < BOUNDS; ++i, bound *= 2)
    bounds[i] = bound;
  const char* text = texts;
  for (uint32_t i = 0; i < ROWS; ++i) {
    accrt_counter_t* row = &rows[i];
    row->kind = figures[i].kind;
    row->name = text;
    row->help = text + strlen(text) + 1;
    text = row->help + strlen(row->help) + 1;
    if (row->help[0] == '=') {
      row->label = "reason";
      row->label_value = row->help + 1;
      row->help = "Sequences that ended, by reason.";
    }
    if (figures[i].how == TIMES) {
      row->bounds = bounds;
      row->bound_count = BOUNDS;
    }
  }
}

accrt_status_t accsv_counters_add(accrt_serve_engine_t* engine) {
  (void)pthread_once(&rows_filled, fill_rows);
  accrt_counter_group_t group = ACCRT_COUNTER_GROUP_INIT;
  group.name = "accrt_serve_engine";
  group.self = engine;
  group.counters = rows;
  group.counter_count = ROWS;
  group.counter_size_bytes = (uint32_t)sizeof(accrt_counter_t);
  group.read = read_figures;
  return accrt_counters_add(engine->instance, &group, &engine->counters_id);
}

void accsv_counters_remove(accrt_serve_engine_t* engine) {
  if (engine->counters_id != 0)
    (void)accrt_counters_remove(engine->instance, engine->counters_id);
}
