/* serve/figures.c - what an engine counts, and how others see it. */
#include <stdarg.h>
#include <stdio.h>

#include "serve/engine.h"

#define FIRST_BUCKET_NS 62500u
#define STALLED_NS UINT64_C(30000000000)
#define THOUSAND 1000u

void accsv_histogram_add(accrt_serve_histogram_t* histogram, uint64_t ns) {
  uint32_t bucket = 0;
  if (ns > FIRST_BUCKET_NS)
    bucket = 64u - (uint32_t)__builtin_clzll((ns - 1) / FIRST_BUCKET_NS);
  if (bucket >= ACCRT_SERVE_HISTOGRAM_BUCKETS)
    bucket = ACCRT_SERVE_HISTOGRAM_BUCKETS - 1;
  ++histogram->buckets[bucket];
  ++histogram->count;
  histogram->sum_ns += ns;
}

void accsv_figures_update(accrt_serve_engine_t* engine) {
  const accsv_scheduler_t* scheduler = &engine->scheduler;
  accrt_serve_stats_t* figures = &engine->figures;
  figures->struct_size = sizeof *figures;
  figures->running = scheduler->running_count;
  figures->preempted = scheduler->queue.preempted;
  figures->max_running = engine->options.max_running;
  figures->pages = scheduler->pool.count;
  figures->pages_cached = scheduler->pool.cached;
  figures->pages_free = scheduler->pool.free.count - scheduler->pool.cached;
  figures->pages_pending = scheduler->pool.pending.count;
  figures->preemptions = scheduler->preemptions;
  figures->prompt_tokens = scheduler->prompt_tokens;
  figures->cached_tokens = scheduler->cached_tokens;
  figures->partial_hits = scheduler->partial_hits;
  figures->copied_tokens = scheduler->copied_tokens;
  figures->model_ns = engine->model_ns;
  figures->step_tokens = scheduler->mixed_tokens != UINT32_MAX ? scheduler->mixed_tokens : 0;
  figures->queue_ns = accsv_pace_queue(&engine->pace, THOUSAND); /* `collect` makes it right */
}

/* The figures as of now; the caller holds the lock. */
static accrt_serve_stats_t collect(const accrt_serve_engine_t* engine, uint64_t now_ns) {
  ACCRT_ASSERT_HELD(&engine->lock);
  accrt_serve_stats_t stats = engine->shown;
  stats.waiting = engine->waiting;
  stats.waiting_tokens = engine->waiting_tokens;
  stats.queue_ns = engine->shown.queue_ns / THOUSAND * engine->waiting;
  stats.submitted = engine->submitted;
  stats.refused = engine->refused;
  stats.adapters = engine->adapters.loaded;
  stats.adapter_places = engine->adapters.count;
  stats.adapter_loads = engine->adapters.loads;
  stats.failure = engine->dead;
  stats.healthy = engine->dead == ACCRT_OK &&
                  (engine->listed == 0 || now_ns < engine->shown_progress_ns + STALLED_NS);
  return stats;
}

accrt_status_t accrt_serve_engine_stats(accrt_serve_engine_t* engine,
                                        accrt_serve_stats_t* out_stats) {
  ACCSV_NOT_NULL(engine);
  ACCSV_NOT_NULL(out_stats);
  const uint64_t now_ns = accsv_now(engine);
  accsv_lock(&engine->lock);
  const accrt_serve_stats_t stats = collect(engine, now_ns);
  accsv_unlock(&engine->lock);
  return accsv_give_struct("accrt_serve_stats_t", &stats, sizeof stats, sizeof stats, out_stats);
}

/* ---- Snapshots ---- */

typedef struct writer {
  char* text;
  uint64_t capacity, size;
} writer_t;

static void add(writer_t* writer, const char* format, ...) __attribute__((format(printf, 2, 3)));
static void add(writer_t* writer, const char* format, ...) {
  const uint64_t used = writer->size < writer->capacity ? writer->size : writer->capacity;
  const size_t room = (size_t)(writer->capacity - used);
  va_list arguments;
  va_start(arguments, format);
  const int written = vsnprintf(room > 0 ? writer->text + used : NULL, room, format, arguments);
  va_end(arguments);
  writer->size += written > 0 ? (uint64_t)written : 0;
}

static void add_figures(writer_t* writer, const accrt_serve_engine_t* engine,
                        const accrt_serve_stats_t* stats) {
  ACCRT_ASSERT_HELD(&engine->lock);
  const accrt_serve_model_info_t* info = &engine->model->info;
  add(writer,
      "{\"healthy\": %s, \"draining\": %s,\n \"limits\": {\"page_size\": %" PRIu32
      ", \"pages\": %" PRIu32 ", \"length\": %" PRIu32 ", \"running\": %" PRIu32
      ", \"step_tokens\": %" PRIu32 ", \"queued\": %" PRIu32 ", \"kv_bytes_per_token\": %" PRIu64
      "},\n",
      stats->healthy ? "true" : "false", engine->draining ? "true" : "false", info->page_size,
      stats->pages, info->max_length, engine->options.max_running, engine->options.max_step_tokens,
      engine->options.max_queued, info->kv_bytes_per_token);
  add(writer,
      " \"pages\": {\"free\": %" PRIu32 ", \"cached\": %" PRIu32 ", \"pending\": %" PRIu32
      "},\n \"running\": %" PRIu32 ", \"waiting\": %" PRIu32 ", \"preempted\": %" PRIu32
      ", \"steps\": %" PRIu64 ", \"step_failures\": %" PRIu64 ", \"preemptions\": %" PRIu64
      ", \"prompt_tokens\": %" PRIu64 ", \"cached_tokens\": %" PRIu64 ", \"partial_hits\": %" PRIu64
      ", \"copied_tokens\": %" PRIu64 ", \"output_tokens\": %" PRIu64 ",\n \"requests\": [",
      stats->pages_free, stats->pages_cached, stats->pages_pending, stats->running, stats->waiting,
      stats->preempted, stats->steps, stats->step_failures, stats->preemptions,
      stats->prompt_tokens, stats->cached_tokens, stats->partial_hits, stats->copied_tokens,
      stats->output_tokens);
}

static void add_request(writer_t* writer, const accsv_request_t* request, uint64_t now_ns,
                        bool first) {
  const accrt_serve_request_t* parameters = &request->parameters;
  const uint64_t age_ns = now_ns > request->arrival_ns ? now_ns - request->arrival_ns : 0;
  add(writer,
      "%s\n  {\"id\": %" PRIu64 ", \"state\": \"%s\", \"tenant\": %" PRIu64
      ", \"priority\": %" PRId32 ", \"prompt_tokens\": %" PRIu32 ", \"max_new_tokens\": %" PRIu32
      ", \"n\": %" PRIu32 ", \"adapter\": %" PRId32 ", \"age_ns\": %" PRIu64 "}",
      first ? "" : ",", request->id,
      request->cancelled       ? "cancelled"
      : request->shown_started ? "running"
                               : "waiting",
      parameters->tenant, parameters->priority, parameters->prompt_count,
      parameters->max_new_tokens, request->count,
      request->adapter != NULL ? (int32_t)request->adapter->place : -1, age_ns);
}

accrt_status_t accrt_serve_engine_snapshot(accrt_serve_engine_t* engine, char* text,
                                           uint64_t capacity_bytes, uint64_t* out_size_bytes) {
  ACCSV_NOT_NULL(out_size_bytes);
  *out_size_bytes = 0;
  ACCSV_NOT_NULL(engine);
  if (capacity_bytes > 0)
    ACCSV_NOT_NULL(text);
  writer_t writer = {text, capacity_bytes, 0};
  const uint64_t now_ns = accsv_now(engine);
  accsv_lock(&engine->lock);
  const accrt_serve_stats_t stats = collect(engine, now_ns);
  add_figures(&writer, engine, &stats);
  bool first = true;
  for (uint32_t i = 0; i < engine->bucket_count; ++i) {
    for (const accsv_request_t* request = engine->registry[i]; request != NULL;
         request = request->other) {
      add_request(&writer, request, now_ns, first);
      first = false;
    }
  }
  accsv_unlock(&engine->lock);
  add(&writer, "%s]}\n", first ? "" : "\n ");
  *out_size_bytes = writer.size + 1;
  return ACCRT_OK;
}
