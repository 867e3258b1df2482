/* serve/http/metrics.c - the front's counters as a group, and the Prometheus text of all groups. It
 * knows no connection. */
#include "serve/http/metrics.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- The front's own group ---- */

/* vLLM's buckets, so that its dashboards fit. */
static const double token_bounds[] = {1,   2,    5,    10,    20,    50,    100,    200,
                                      500, 1000, 2000, 5000., 10000, 20000, 50000., 100000};
enum { TOKEN_BOUNDS = sizeof token_bounds / sizeof *token_bounds };
_Static_assert(TOKEN_BOUNDS + 1 == HTTP_BUCKETS, "a bucket has no bound");

#define TOKENS(name_, help_)                                                                       \
  {                                                                                                \
    .name = name_, .help = help_, .kind = ACCRT_COUNTER_HISTOGRAM, .bounds = token_bounds,         \
    .bound_count = TOKEN_BOUNDS                                                                    \
  }
#define TOTAL(name_, help_)                                                                        \
  { .name = name_, .help = help_, .kind = ACCRT_COUNTER_TOTAL }
#define LABELED(name_, label_, value_, help_)                                                      \
  {                                                                                                \
    .name = name_, .help = help_, .kind = ACCRT_COUNTER_TOTAL, .label = label_,                    \
    .label_value = value_                                                                          \
  }
#define ENDED(reason)                                                                              \
  LABELED("vllm:request_success_total", "finished_reason", reason, "Choices that ended, by reason.")
#define ANSWERS(digit)                                                                             \
  LABELED("accrt:http_answers_total", "status", digit,                                             \
          "Answers, by the first digit of their status.")

static const accrt_counter_t counters[] = {
    TOKENS("vllm:request_prompt_tokens", "Tokens of a request's prompt."),
    TOKENS("vllm:request_generation_tokens", "Tokens generated for a choice."),
    ENDED("stop"),
    ENDED("length"),
    ENDED("abort"),
    ENDED("error"),
    ANSWERS("2xx"),
    ANSWERS("3xx"),
    ANSWERS("4xx"),
    ANSWERS("5xx"),
    TOTAL("accrt:http_refused_total", "Requests refused because the server was full or ending."),
    TOTAL("accrt:http_clients_left_total", "Clients that left before their answer was whole."),
    TOTAL("accrt:http_clients_stalled_total",
          "Of those, clients that took too little of their answer."),
};

void accrt_http_metrics_group(accrt_counter_group_t* out_group) {
  *out_group = (accrt_counter_group_t)ACCRT_COUNTER_GROUP_INIT;
  out_group->name = HTTP_GROUP_NAME;
  out_group->counters = counters;
  out_group->counter_count = sizeof counters / sizeof *counters;
  out_group->counter_size_bytes = (uint32_t)sizeof *counters;
}

static double* put_counts(double* values, const uint64_t* counts, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    *values++ = (double)counts[i];
  return values;
}

static double* put_histogram(double* values, const http_histogram_t* histogram) {
  values = put_counts(values, histogram->counts, HTTP_BUCKETS);
  *values++ = histogram->sum;
  return values;
}

void accrt_http_metrics_values(const http_metrics_t* metrics, double* values) {
  values = put_histogram(values, &metrics->prompt_tokens);
  values = put_histogram(values, &metrics->output_tokens);
  values = put_counts(values, metrics->ended, HTTP_ENDED_COUNT);
  values = put_counts(values, metrics->answers + 2, HTTP_STATUSES - 2);
  values = put_counts(values, &metrics->refused, 1);
  values = put_counts(values, &metrics->left, 1);
  (void)put_counts(values, &metrics->stalled, 1);
}

void accrt_http_observe(http_histogram_t* histogram, double value) {
  uint32_t bucket = 0;
  while (bucket < TOKEN_BOUNDS && value > token_bounds[bucket])
    ++bucket;
  ++histogram->counts[bucket];
  histogram->sum += value;
}

/* ---- The text ---- */

enum { DIGITS = 40 };

/* A number as Prometheus reads it, whatever the process' locale. Returns `digits`. */
static const char* write_number(char digits[DIGITS], double value) {
  snprintf(digits, DIGITS, "%.15g", value);
  char* comma = strchr(digits, ',');
  if (comma != NULL)
    *comma = '.';
  return digits;
}

/* How many bytes there are as they stand, although JSON escapes them: Prometheus escapes a
 * backslash, a line feed and, in labels, a quote alone. */
static size_t bare(const char* at, bool is_label) {
  static const char ends[][4] = {"\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"}; /* of lines */
  for (size_t i = 0; i < sizeof ends / sizeof *ends; ++i)
    if (strncmp(at, ends[i], strlen(ends[i])) == 0)
      return strlen(ends[i]);
  return ((unsigned char)*at < ' ' && *at != '\n') || (*at == '"' && !is_label);
}

static void put_words(http_text_t* text, const char* words, bool is_label) {
  while (*words != 0) {
    size_t size = bare(words, is_label);
    if (size != 0) {
      accrt_http_put(text, words, size);
    } else {
      while (words[size] != 0 && bare(words + size, is_label) == 0)
        ++size;
      accrt_http_put_escaped(text, words, size);
    }
    words += size;
  }
}

static void put_head(http_text_t* text, const accrt_counter_t* counter) {
  static const char kinds[][10] = {"", "counter", "gauge", "histogram"};
  accrt_http_put_format(text, "# HELP %s ", counter->name);
  put_words(text, counter->help, false);
  accrt_http_put_format(text, "\n# TYPE %s %s\n", counter->name, kinds[counter->kind]);
}

/* One of the labels of a sample: `separator`, then label="value. */
static void put_label(http_text_t* text, const char* separator, const char* label,
                      const char* value) {
  accrt_http_put_format(text, "%s%s=\"", separator, label);
  put_words(text, value, true);
}

/* A line: name and suffix, {model_name="m",label="value"} as far as there are any, and a value. */
static void put_sample(const http_page_t* page, const char* name, const char* suffix,
                       const char* label, const char* label_value, double value) {
  http_text_t* text = page->text;
  char digits[DIGITS];
  const char* separator = "{";
  accrt_http_put_text(text, name);
  accrt_http_put_text(text, suffix);
  if (page->model != NULL) {
    put_label(text, separator, "model_name", page->model);
    separator = "\",";
  }
  if (label != NULL)
    put_label(text, separator, label, label_value);
  accrt_http_put_text(text, page->model != NULL || label != NULL ? "\"} " : " ");
  accrt_http_put_text(text, write_number(digits, value));
  accrt_http_put(text, "\n", 1);
}

static void put_buckets(const http_page_t* page, const accrt_counter_t* counter,
                        const double* values) {
  char digits[DIGITS];
  double below = 0;
  for (uint32_t i = 0; i < counter->bound_count; ++i) {
    below += values[i];
    put_sample(page, counter->name, "_bucket", "le", write_number(digits, counter->bounds[i]),
               below);
  }
  below += values[counter->bound_count];
  put_sample(page, counter->name, "_bucket", "le", "+Inf", below);
  put_sample(page, counter->name, "_sum", NULL, NULL, values[counter->bound_count + 1]);
  put_sample(page, counter->name, "_count", NULL, NULL, below);
}

/* Whether the group is to be shown: it is not that of another engine or server. `out_page` then has
 * the model's name, if the group is of one. */
static bool is_shown(const http_page_t* page, const accrt_counter_group_t* group,
                     http_page_t* out_page) {
  *out_page = *page;
  if (strcmp(group->name, "accrt_serve_engine") == 0)
    return group->self == page->engine;
  if (strcmp(group->name, HTTP_GROUP_NAME) == 0)
    return group->self == page->server;
  out_page->model = NULL;
  return true;
}

static void put_group(void* user, const accrt_counter_group_t* group, const double* values) {
  http_page_t page;
  if (!is_shown(user, group, &page))
    return;
  const char* before = "";
  for (uint32_t i = 0; i < group->counter_count; ++i) {
    const accrt_counter_t* counter = &group->counters[i];
    if (strcmp(counter->name, before) != 0)
      put_head(page.text, counter);
    before = counter->name;
    if (counter->kind == ACCRT_COUNTER_HISTOGRAM)
      put_buckets(&page, counter, values);
    else
      put_sample(&page, counter->name, "", counter->label, counter->label_value, *values);
    values += ACCRT_COUNTER_VALUES(counter);
  }
}

void accrt_http_put_metrics(const http_page_t* page, accrt_instance_t* instance) {
  http_page_t own = *page;
  if (accrt_counters_read(instance, put_group, &own) != ACCRT_OK)
    page->text->failed = 1;
}
