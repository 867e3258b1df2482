/* bench/bench_serve.c - what a serving engine itself takes in a step with 256 sequences.
 *
 *   bench_serve [--seconds S] [--json FILE]
 *
 * The model is in this file: it returns at once, so all that is measured is the engine. A step has
 * two parts: from its begin until the model gets it (what came, the schedule, the arrays), and from
 * the model's answer until its end (tokens, text, events). Last, a prompt of 8192 tokens that the
 * prefix cache has is admitted again and again: its tokens are hashed and compared. Public headers
 * only. Text goes to the terminal, JSON to --json or to serve.json in $ACCRT_BENCH_RESULTS. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accrt/accrt.h"
#include "accrt/serve.h"

#define SEQUENCES 256u
#define PROMPT 200u
#define LONG_PROMPT 8192u
#define ROWS 4u
#define MOST_STEPS 200000u
#define VOCABULARY 1000u

static int32_t tokens[SEQUENCES];
static uint64_t got_ns, gave_ns; /* when the model got the step, and when it answered */
static uint32_t samples;
static const int32_t end_token = 0;

static accrt_status_t info(void* self, accrt_serve_model_info_t* out_info) {
  (void)self;
  out_info->flags = ACCRT_SERVE_MODEL_OVERLAP;
  out_info->name = "nothing";
  out_info->vocab_size = VOCABULARY;
  out_info->page_size = 16;
  out_info->page_count = 40000;
  out_info->max_rows = SEQUENCES;
  out_info->max_tokens = 8192;
  out_info->max_length = LONG_PROMPT + 16;
  out_info->row_pages = LONG_PROMPT / 16 + 1;
  out_info->eos = &end_token;
  out_info->eos_count = 1;
  out_info->min_copy_tokens = 1;
  return ACCRT_OK;
}
static accrt_status_t submit(void* self, const accrt_serve_step_t* step) {
  (void)self;
  got_ns = accrt_serve_now_ns();
  samples = step->sample_count;
  for (uint32_t i = 0; i < samples; ++i)
    tokens[i] = (int32_t)(1 + (step->number * 7 + i * 13) % (VOCABULARY - 1));
  return ACCRT_OK;
}
static accrt_status_t wait_step(void* self, uint64_t number, accrt_serve_results_t* out_results) {
  (void)self;
  (void)number;
  out_results->tokens = tokens;
  gave_ns = accrt_serve_now_ns();
  return ACCRT_OK;
}

static int fail(const char* what) {
  accrt_error_t error = ACCRT_ERROR_INIT;
  (void)accrt_last_error(&error);
  fprintf(stderr, "bench_serve: %s: %s\n", what, error.message);
  return 1;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

typedef struct row {
  const char* name;
  double* values;
  uint32_t count;
} row_t;

static double at(const row_t* row, double part) {
  return row->values[(uint32_t)((double)(row->count - 1) * part)];
}

/* Keeps 256 sequences running: a new request for each that ends. */
static int keep_running(accrt_serve_engine_t* engine, uint32_t* running, uint64_t* submitted) {
  int32_t prompt[PROMPT];
  for (; *running < SEQUENCES; ++*running) {
    ++*submitted;
    for (uint32_t i = 0; i < PROMPT; ++i)
      prompt[i] = (int32_t)(1 + (i * 31 + (i < 64 ? 0 : *submitted)) % (VOCABULARY - 1));
    accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
    request.prompt = prompt;
    request.prompt_count = PROMPT;
    request.max_new_tokens = 500 + (uint32_t)(*submitted * 37 % 500);
    request.tenant = *submitted % 7;
    request.deadline_ns = UINT64_MAX;
    if (accrt_serve_engine_submit(engine, &request, NULL) != ACCRT_OK)
      return fail("submit");
  }
  return 0;
}

static int take_events(accrt_serve_engine_t* engine, uint32_t* running) {
  accrt_serve_event_t events[SEQUENCES];
  uint32_t count;
  while (accrt_serve_engine_poll(engine, events, sizeof *events, SEQUENCES, &count) == ACCRT_OK) {
    for (uint32_t i = 0; i < count; ++i)
      *running -= events[i].last;
  }
  return 0;
}

static int measure(accrt_serve_engine_t* engine, double seconds, row_t* rows) {
  uint32_t running = 0;
  uint64_t submitted = 0, number = 0;
  const uint64_t end_ns = accrt_serve_now_ns() + (uint64_t)(seconds * 1e9);
  while (accrt_serve_now_ns() < end_ns && rows[0].count < MOST_STEPS) {
    if (keep_running(engine, &running, &submitted) != 0)
      return 1;
    const uint64_t begin_ns = accrt_serve_now_ns();
    if (accrt_serve_engine_step(engine) != ACCRT_OK)
      return fail("step");
    const uint64_t done_ns = accrt_serve_now_ns();
    const uint32_t sampled = samples;
    const uint64_t polled_ns = accrt_serve_now_ns();
    (void)take_events(engine, &running);
    const uint64_t taken_ns = accrt_serve_now_ns();
    if (++number < 50 || sampled < SEQUENCES)
      continue; /* the first ones compute prompts */
    const double values[] = {(double)(got_ns - begin_ns), (double)(done_ns - gave_ns),
                             (double)(taken_ns - polled_ns)};
    for (uint32_t i = 0; i < 3; ++i)
      rows[i].values[rows[i].count++] = values[i] / 1e3;
  }
  return 0;
}

/* What admitting a prompt takes whose pages are all in the cache. */
static int measure_cached(accrt_serve_engine_t* engine, row_t* row) {
  static int32_t prompt[LONG_PROMPT];
  for (uint32_t i = 0; i < LONG_PROMPT; ++i)
    prompt[i] = (int32_t)(i * 31 % VOCABULARY);
  for (uint32_t round = 0; round < 200; ++round) {
    accrt_serve_request_t request = ACCRT_SERVE_REQUEST_INIT;
    request.prompt = prompt;
    request.prompt_count = LONG_PROMPT;
    request.max_new_tokens = 1;
    if (accrt_serve_engine_submit(engine, &request, NULL) != ACCRT_OK)
      return fail("submit");
    const uint64_t begin_ns = accrt_serve_now_ns();
    if (accrt_serve_engine_step(engine) != ACCRT_OK)
      return fail("step");
    if (round > 0)
      row->values[row->count++] = (double)(got_ns - begin_ns) / 1e3;
    while (accrt_serve_engine_step(engine) == ACCRT_OK)
      ;
    uint32_t running = 1;
    (void)take_events(engine, &running);
  }
  return 0;
}

static int write_json(const char* path, const row_t* rows) {
  FILE* file = fopen(path, "w");
  if (file == NULL)
    return perror(path), 1;
  fprintf(file, "{\"benchmark\": \"serve\", \"sequences\": %u, \"rows\": [", SEQUENCES);
  for (uint32_t i = 0; i < ROWS; ++i)
    fprintf(file, "%s\n  {\"name\": \"%s\", \"median_us\": %.3f, \"p99_us\": %.3f}",
            i > 0 ? "," : "", rows[i].name, at(&rows[i], 0.5), at(&rows[i], 0.99));
  fprintf(file, "\n]}\n");
  return fclose(file) == 0 ? 0 : 1;
}

int main(int count, char** arguments) {
  double seconds = 3;
  char path[4096] = "";
  if (getenv("ACCRT_BENCH_RESULTS") != NULL)
    (void)snprintf(path, sizeof path, "%s/serve.json", getenv("ACCRT_BENCH_RESULTS"));
  for (int i = 1; i < count; ++i) {
    if (strcmp(arguments[i], "--seconds") == 0 && i + 1 < count) {
      seconds = atof(arguments[++i]);
    } else if (strcmp(arguments[i], "--json") == 0 && i + 1 < count) {
      (void)snprintf(path, sizeof path, "%s", arguments[++i]);
    } else {
      fprintf(stderr, "usage: bench_serve [--seconds S] [--json FILE]\n");
      return 2;
    }
  }
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  functions.info = info;
  functions.submit = submit;
  functions.wait = wait_step;
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine;
  if (accrt_serve_model_wrap(&functions, &model) != ACCRT_OK ||
      accrt_serve_engine_create(model, NULL, &engine) != ACCRT_OK)
    return fail("create");
  row_t rows[] = {{"schedule and lay out", NULL, 0},
                  {"tokens to events", NULL, 0},
                  {"take the events", NULL, 0},
                  {"admit 8192 cached tokens", NULL, 0}};
  for (uint32_t i = 0; i < ROWS; ++i)
    rows[i].values = calloc(MOST_STEPS, sizeof *rows[i].values);
  int failed = measure(engine, seconds, rows);
  if (failed == 0 && rows[0].count == 0)
    failed = fail("no step had all sequences");
  accrt_serve_engine_release(engine);
  engine = NULL;
  if (failed == 0 && accrt_serve_engine_create(model, NULL, &engine) != ACCRT_OK)
    failed = fail("create");
  if (failed == 0)
    failed = measure_cached(engine, &rows[3]);
  if (failed == 0) {
    printf("%u sequences, %u steps, us    middle    p99    wanted\n", SEQUENCES, rows[0].count);
    for (uint32_t i = 0; i < ROWS; ++i) {
      qsort(rows[i].values, rows[i].count, sizeof *rows[i].values, ascending);
      printf("  %-24s %9.2f %8.2f    %s\n", rows[i].name, at(&rows[i], 0.5), at(&rows[i], 0.99),
             i == 0   ? "5 and 20"
             : i == 3 ? "41: 5 ns a token"
                      : "");
    }
    if (path[0] != 0)
      failed = write_json(path, rows);
  }
  for (uint32_t i = 0; i < ROWS; ++i)
    free(rows[i].values);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
  return failed;
}
