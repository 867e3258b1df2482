/* serve/http/metrics.c - counters, histograms, and their Prometheus text. It knows no
 * connection. */
#include "serve/http/metrics.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* vLLM's buckets, so that its dashboards fit. */
static const double token_bounds[] = {1,   2,    5,    10,    20,    50,    100,    200,
                                      500, 1000, 2000, 5000., 10000, 20000, 50000., 100000};

static const char* const ended_names[HTTP_ENDED_COUNT] = {"stop", "length", "abort", "error"};

#define HISTOGRAM(bounds_)                                                                         \
  (http_histogram_t) {                                                                             \
    .bounds = bounds_, .bound_count = sizeof bounds_ / sizeof bounds_[0]                           \
  }

void accrt_http_metrics_init(http_metrics_t* metrics) {
  *metrics = (http_metrics_t){0};
  metrics->prompt_tokens = HISTOGRAM(token_bounds);
  metrics->output_tokens = HISTOGRAM(token_bounds);
}

uint32_t accrt_http_ended(const char* finish_reason) {
  for (uint32_t i = 0; i < HTTP_ENDED_COUNT; ++i)
    if (finish_reason != NULL && strcmp(finish_reason, ended_names[i]) == 0)
      return i;
  return HTTP_ENDED_ERROR;
}

void accrt_http_observe(http_histogram_t* histogram, double value) {
  uint32_t bucket = 0;
  while (bucket < histogram->bound_count && value > histogram->bounds[bucket])
    ++bucket;
  ++histogram->counts[bucket];
  histogram->sum += value;
}

enum { DIGITS = 40 };

/* A number as Prometheus reads it, whatever the process' locale. Returns `digits`. */
static const char* write_number(char digits[DIGITS], double value) {
  snprintf(digits, DIGITS, "%.15g", value);
  char* comma = strchr(digits, ',');
  if (comma != NULL)
    *comma = '.';
  return digits;
}

/* What the samples of one text have in common. */
typedef struct page {
  http_text_t* text;
  http_text_t model; /* the name as Prometheus' labels have it */
} page_t;

static void put_head(const page_t* page, const char* name, const char* help, const char* kind) {
  accrt_http_put_format(page->text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

/* name{model_name="m",label="value"} up to the space before the value; `label` may be NULL. */
static void put_name(const page_t* page, const char* name, const char* suffix, const char* label,
                     const char* value) {
  accrt_http_put_text(page->text, name);
  accrt_http_put_text(page->text, suffix);
  accrt_http_put_text(page->text, "{model_name=\"");
  accrt_http_put(page->text, page->model.data, page->model.size);
  if (label != NULL)
    accrt_http_put_format(page->text, "\",%s=\"%s", label, value);
  accrt_http_put_text(page->text, "\"} ");
}

static void put_value(const page_t* page, double value) {
  char digits[DIGITS];
  accrt_http_put_text(page->text, write_number(digits, value));
  accrt_http_put(page->text, "\n", 1);
}

static void put_one(const page_t* page, const char* kind, const char* name, double value,
                    const char* help) {
  put_head(page, name, help, kind);
  put_name(page, name, "", NULL, NULL);
  put_value(page, value);
}

static void put_bucket(const page_t* page, const char* name, double bound, uint64_t below) {
  char digits[DIGITS];
  put_name(page, name, "_bucket", "le", bound < 0 ? "+Inf" : write_number(digits, bound));
  put_value(page, (double)below);
}

static void put_end(const page_t* page, const char* name, double sum, uint64_t count) {
  put_bucket(page, name, -1, count);
  put_name(page, name, "_sum", NULL, NULL);
  put_value(page, sum);
  put_name(page, name, "_count", NULL, NULL);
  put_value(page, (double)count);
}

static void put_histogram(const page_t* page, const char* name, const http_histogram_t* histogram,
                          const char* help) {
  put_head(page, name, help, "histogram");
  uint64_t below = 0;
  for (uint32_t i = 0; i < histogram->bound_count; ++i) {
    below += histogram->counts[i];
    put_bucket(page, name, histogram->bounds[i], below);
  }
  put_end(page, name, histogram->sum, below + histogram->counts[histogram->bound_count]);
}

/* One of the engine's, whose buckets end at 62.5 us times powers of two. */
static void put_times(const page_t* page, const char* name, const accrt_serve_histogram_t* times,
                      const char* help) {
  put_head(page, name, help, "histogram");
  uint64_t below = 0;
  double bound = 62.5e-6;
  for (uint32_t i = 0; i + 1 < ACCRT_SERVE_HISTOGRAM_BUCKETS; ++i, bound *= 2) {
    below += times->buckets[i];
    put_bucket(page, name, bound, below);
  }
  put_end(page, name, (double)times->sum_ns * 1e-9, below + times->buckets[23]);
}

/* ---- The engine's figures: one table of all that accrt_serve_stats_t has ---- */

/* A row of /metrics. Rows of one name with labels follow each other. */
typedef struct figure {
  const char *kind, *name, *reason, *help;
  uint32_t offset, size_bytes; /* in accrt_serve_stats_t: of 4 or 8 bytes, or a histogram */
  double scale;
  double (*made)(const accrt_serve_stats_t* stats); /* what is no member; else NULL */
} figure_t;

static double waiting_of(const accrt_serve_stats_t* stats) {
  return (double)stats->waiting + stats->preempted;
}

static double usage_of(const accrt_serve_stats_t* stats) {
  const uint32_t idle = stats->pages_free + stats->pages_cached;
  return stats->pages > idle ? (double)(stats->pages - idle) / stats->pages : 0;
}

#define MEMBER(member)                                                                             \
  .offset = offsetof(accrt_serve_stats_t, member),                                                 \
  .size_bytes = sizeof(((accrt_serve_stats_t*)0)->member)
#define GAUGE(name_, member, help_)                                                                \
  { .kind = "gauge", .name = name_, .help = help_, .scale = 1, MEMBER(member) }
#define COUNTER(name_, member, help_)                                                              \
  { .kind = "counter", .name = name_, .help = help_, .scale = 1, MEMBER(member) }
#define SECONDS(kind_, name_, member, help_)                                                       \
  { .kind = kind_, .name = name_, .help = help_, .scale = 1e-9, MEMBER(member) }
#define MADE(name_, made_, help_)                                                                  \
  { .kind = "gauge", .name = name_, .help = help_, .made = made_ }
#define ENDED(reason_)                                                                             \
  {                                                                                                \
    .kind = "counter", .name = "accrt:sequences_ended_total", .reason = #reason_,                  \
    .help = "Sequences that ended, by reason.", .scale = 1, MEMBER(finished_##reason_)             \
  }

static const figure_t figures[] = {
    GAUGE("vllm:num_requests_running", running, "Sequences that have pages."),
    MADE("vllm:num_requests_waiting", waiting_of,
         "Requests in the queue, and sequences that were preempted."),
    MADE("vllm:kv_cache_usage_perc", usage_of, "Pages in use, 0 to 1."),
    COUNTER("vllm:num_preemptions_total", preemptions,
            "Sequences that lost their pages to others."),
    COUNTER("vllm:prompt_tokens_total", prompt_tokens,
            "Prompt tokens of sequences that were admitted."),
    COUNTER("vllm:generation_tokens_total", output_tokens, "Tokens generated."),
    COUNTER("vllm:prefix_cache_queries_total", prompt_tokens,
            "Prompt tokens looked up in the prefix cache."),
    COUNTER("vllm:prefix_cache_hits_total", cached_tokens,
            "Prompt tokens that the prefix cache had."),
    COUNTER("accrt:prefix_cache_partial_hits_total", partial_hits,
            "Times that a sequence began with a copy of a part of a page."),
    COUNTER("accrt:prefix_cache_copied_tokens_total", copied_tokens, "Tokens of these copies."),
    COUNTER("vllm:spec_decode_num_drafts_total", drafts,
            "Times that a sequence had tokens guessed from its text."),
    COUNTER("vllm:spec_decode_num_draft_tokens_total", draft_tokens, "Tokens that were guessed."),
    COUNTER("vllm:spec_decode_num_accepted_tokens_total", accepted_tokens,
            "Of these: those that were drawn."),
    SECONDS("histogram", "vllm:request_queue_time_seconds", queue_time,
            "From a request's submission to its first step."),
    SECONDS("histogram", "vllm:time_to_first_token_seconds", first_token,
            "From a request's submission to its first token."),
    SECONDS("histogram", "vllm:inter_token_latency_seconds", next_token,
            "Between tokens of one sequence."),
    SECONDS("histogram", "vllm:e2e_request_latency_seconds", total_time,
            "From a request's submission to the end of a sequence."),
    GAUGE("accrt:healthy", healthy, "1, unless the model has failed or no step ends."),
    GAUGE("accrt:sequences_preempted", preempted, "Sequences that wait for pages again."),
    GAUGE("accrt:max_running", max_running, "Sequences that may have pages at once."),
    GAUGE("accrt:kv_pages", pages, "Pages of the KV cache."),
    GAUGE("accrt:kv_pages_free", pages_free, "Pages without contents."),
    GAUGE("accrt:kv_pages_cached", pages_cached, "Pages whose contents a prompt may share."),
    GAUGE("accrt:kv_pages_pending", pages_pending,
          "Pages given back that a step in flight still uses."),
    COUNTER("accrt:requests_total", submitted, "Requests that the engine took."),
    COUNTER("accrt:requests_refused_total", refused, "Requests that found the queue full."),
    ENDED(stop),
    ENDED(length),
    ENDED(cancelled),
    ENDED(deadline),
    ENDED(failed),
    GAUGE("accrt:queued_requests", waiting, "Requests in the queue."),
    GAUGE("accrt:queued_tokens", waiting_tokens, "Prompt tokens of requests in the queue."),
    GAUGE("accrt:adapters", adapters, "LoRA adapters that are loaded."),
    GAUGE("accrt:adapter_places", adapter_places, "Places for LoRA adapters."),
    COUNTER("accrt:adapter_loads_total", adapter_loads, "LoRA adapters that were loaded."),
    COUNTER("accrt:steps_total", steps, "Steps of the engine."),
    COUNTER("accrt:step_failures_total", step_failures, "Steps that failed."),
    COUNTER("accrt:computed_tokens_total", computed_tokens, "Tokens of all steps."),
    COUNTER("accrt:wasted_tokens_total", wasted_tokens,
            "Tokens sampled after an end, or lost to failures."),
    SECONDS("counter", "accrt:schedule_seconds_total", schedule_ns,
            "Time of the engine itself in all steps."),
    SECONDS("counter", "accrt:model_seconds_total", model_ns, "Time in the model's functions."),
    SECONDS("gauge", "accrt:queue_seconds", queue_ns,
            "Until all that waits has begun, at the pace of late."),
    GAUGE("accrt:step_token_limit", step_tokens,
          "Tokens of a step in which a sequence draws one, by max_step_ns; 0: any."),
    COUNTER("accrt:requests_never_begun_total", hopeless,
            "Requests that could no longer end before their deadlines."),
};

static double value_of(const figure_t* figure, const accrt_serve_stats_t* stats) {
  if (figure->made != NULL)
    return figure->made(stats);
  const char* at = (const char*)stats + figure->offset;
  uint64_t number = 0;
  uint32_t word = 0;
  if (figure->size_bytes == sizeof number)
    memcpy(&number, at, sizeof number);
  else
    memcpy(&word, at, sizeof word);
  return ((double)number + word) * figure->scale;
}

static void put_figure(const page_t* page, const figure_t* figure, const accrt_serve_stats_t* stats,
                       bool is_first) {
  if (is_first)
    put_head(page, figure->name, figure->help, figure->kind);
  put_name(page, figure->name, "", figure->reason != NULL ? "reason" : NULL, figure->reason);
  put_value(page, value_of(figure, stats));
}

static void put_engine(const page_t* page, const accrt_serve_stats_t* stats) {
  for (uint32_t i = 0; i < sizeof figures / sizeof *figures; ++i) {
    const figure_t* figure = &figures[i];
    const void* at = (const char*)stats + figure->offset;
    if (figure->size_bytes == sizeof(accrt_serve_histogram_t))
      put_times(page, figure->name, at, figure->help);
    else
      put_figure(page, figure, stats, i == 0 || strcmp(figure->name, figures[i - 1].name) != 0);
  }
}

static void put_ends(const page_t* page, const uint64_t counts[HTTP_ENDED_COUNT]) {
  static const char name[] = "vllm:request_success_total";
  put_head(page, name, "Choices that ended, by reason.", "counter");
  for (uint32_t i = 0; i < HTTP_ENDED_COUNT; ++i) {
    put_name(page, name, "", "finished_reason", ended_names[i]);
    put_value(page, (double)counts[i]);
  }
}

static void put_answers(const page_t* page, const uint64_t counts[6]) {
  static const char name[] = "accrt:http_answers_total";
  put_head(page, name, "Answers, by the first digit of their status.", "counter");
  for (uint32_t i = 2; i < 6; ++i) {
    const char digit[4] = {(char)('0' + i), 'x', 'x', 0};
    put_name(page, name, "", "status", digit);
    put_value(page, (double)counts[i]);
  }
}

void accrt_http_put_metrics(http_text_t* text, const http_metrics_t* metrics,
                            const accrt_serve_stats_t* stats, const char* model) {
  page_t page = {.text = text};
  accrt_http_text_init(&page.model, text->allocator);
  accrt_http_put_escaped(&page.model, model, strlen(model)); /* as labels want it, too */
  put_engine(&page, stats);
  put_histogram(&page, "vllm:request_prompt_tokens", &metrics->prompt_tokens,
                "Tokens of a request's prompt.");
  put_histogram(&page, "vllm:request_generation_tokens", &metrics->output_tokens,
                "Tokens generated for a choice.");
  put_ends(&page, metrics->ended);
  put_answers(&page, metrics->answers);
  put_one(&page, "counter", "accrt:http_refused_total", (double)metrics->refused,
          "Requests refused because the server was full or ending.");
  put_one(&page, "counter", "accrt:http_clients_left_total", (double)metrics->left,
          "Clients that left before their answer was whole.");
  put_one(&page, "counter", "accrt:http_clients_stalled_total", (double)metrics->stalled,
          "Of those, clients that took too little of their answer.");
  accrt_http_text_deinit(&page.model);
}
