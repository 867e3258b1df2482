/* bench/bench_serve.c - what a serving engine itself takes in a step with 256 sequences.
 *
 *   bench_serve [--seconds S] [--json FILE] [--only NAME]
 *
 * The model is in this file: it returns at once, so all that is measured is the engine. A step has
 * two parts: from its begin until the model gets it (what came, the schedule, the arrays), and from
 * the model's answer until its end (tokens, text, events). Each feature of requests has a row, and
 * all of them together have one; --only shows those whose names have NAME. Last, a prompt of 8192
 * tokens that the prefix cache has is admitted again and again: its tokens are hashed and compared.
 * Of the first part there is the processor time of the thread too, in which other processes' turns
 * do not count; asking for it takes 0.2 us of it.
 * Public headers only. Text goes to the terminal, JSON to --json or to serve.json in
 * $ACCRT_BENCH_RESULTS. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "accrt/accrt.h"
#include "accrt/serve.h"

#define SEQUENCES 256u
#define PROMPT 200u
#define LONG_PROMPT 8192u
#define PARTS 3u
#define COLUMNS (PARTS + 1) /* the last one is processor time of the first part */
#define MOST_STEPS 200000u
#define VOCABULARY 1000u
#define DRAFTS 4u
#define SAMPLES (SEQUENCES * (1 + DRAFTS))
#define TOP 5u
#define TOKEN_BYTES 3u

enum { /* features of requests */
       DRAWN = 1,
       LOGPROBS = 2,
       STOPS = 4,
       BIASES = 8,
       SALTED = 16,
       PENALTIES = 32,
       DRAFTED = 64,
       REPEATS = 128, /* half of the texts repeat themselves, so that drafts are found and right */
};

static int32_t tokens[SAMPLES], ranks[SAMPLES], top_tokens[SAMPLES * TOP];
static float logprobs[SAMPLES], top_logprobs[SAMPLES * TOP];
static unsigned char token_table[8 + 4 * (VOCABULARY + 1) + VOCABULARY + VOCABULARY * TOKEN_BYTES];
static uint64_t got_ns, gave_ns; /* when the model got the step, and when it answered */
static uint64_t got_cpu_ns;      /* the first one, as processor time of the thread */
static uint32_t rows_in_step;
static bool overlaps, repeats;
static const int32_t end_token = 0;

static void put_u32(unsigned char* place, uint32_t value) {
  for (int i = 0; i < 4; ++i)
    place[i] = (unsigned char)(value >> (8 * i));
}
static void make_token_table(void) {
  put_u32(token_table, VOCABULARY);
  for (uint32_t i = 0; i <= VOCABULARY; ++i)
    put_u32(token_table + 8 + 4 * i, i * TOKEN_BYTES);
  for (uint32_t i = 0; i < VOCABULARY * TOKEN_BYTES; ++i)
    token_table[8 + 4 * (VOCABULARY + 1) + VOCABULARY + i] = (unsigned char)('a' + i % 23);
}

static accrt_status_t info(void* self, accrt_serve_model_info_t* out_info) {
  (void)self;
  out_info->flags = overlaps ? ACCRT_SERVE_MODEL_OVERLAP : 0;
  out_info->name = "nothing";
  out_info->vocab_size = VOCABULARY;
  out_info->page_size = 16;
  out_info->page_count = 40000;
  out_info->max_rows = SEQUENCES;
  out_info->max_samples = SAMPLES;
  out_info->max_tokens = 8192;
  out_info->max_length = LONG_PROMPT + 16;
  out_info->row_pages = LONG_PROMPT / 16 + 1;
  out_info->eos = &end_token;
  out_info->eos_count = 1;
  out_info->min_copy_tokens = 1;
  out_info->token_bytes = token_table;
  out_info->token_bytes_size_bytes = sizeof token_table;
  return ACCRT_OK;
}

static uint64_t cpu_now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t mix(uint64_t value) {
  value = (value ^ value >> 33) * UINT64_C(0xFF51AFD7ED558CCD);
  return value ^ value >> 33;
}

/* A row's text is a function of the place in it. */
static accrt_status_t submit(void* self, const accrt_serve_step_t* step) {
  (void)self;
  got_ns = accrt_serve_now_ns();
  got_cpu_ns = cpu_now_ns();
  rows_in_step = step->row_count;
  for (uint32_t i = 0; i < step->sample_count; ++i) {
    const int32_t token = step->sample_tokens[i];
    const int32_t row = step->row_ids[step->token_rows[token]];
    uint32_t position = (uint32_t)step->positions[token];
    if (repeats && row % 2 == 0)
      position %= 64;
    tokens[i] = (int32_t)(1 + mix((uint64_t)row << 32 | position) % (VOCABULARY - 1));
  }
  return ACCRT_OK;
}
static accrt_status_t wait_step(void* self, uint64_t number, accrt_serve_results_t* out_results) {
  (void)self;
  (void)number;
  out_results->tokens = tokens;
  out_results->logprobs = logprobs;
  out_results->ranks = ranks;
  out_results->top_tokens = top_tokens;
  out_results->top_logprobs = top_logprobs;
  out_results->top_count = TOP;
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

/* Microseconds, one for each step. */
typedef struct row {
  double* values;
  uint32_t count;
} row_t;

/* What requests have, and what their steps took. */
typedef struct measured {
  const char* name;
  uint32_t features;
  /* Until the model gets the step; its answer becomes events; these are taken. */
  row_t parts[COLUMNS];
} measured_t;

static double at(const row_t* row, double part) {
  return row->values[(uint32_t)((double)(row->count - 1) * part)];
}

static void add_features(accrt_serve_request_t* request, uint32_t features, uint64_t number) {
  static const char* const stops[] = {"zzzz", "qqqq"};
  static const int32_t stop_tokens[] = {0};
  static const accrt_serve_bias_t biases[] = {{5, 1}, {7, -1}};
  const bool both = (features & PENALTIES) != 0 && (features & DRAFTED) != 0;
  if ((features & DRAWN) != 0) {
    request->temperature = 0.8f;
    request->top_k = 40;
    request->top_p = 0.9f;
    request->min_p = 0.05f;
    request->flags |= ACCRT_SERVE_SEED;
    request->seed = number;
  }
  if ((features & LOGPROBS) != 0) {
    request->flags |= ACCRT_SERVE_LOGPROBS;
    request->top_logprobs = TOP;
  }
  if ((features & STOPS) != 0) {
    request->stop_strings = stops;
    request->stop_string_count = 2;
    request->stop_tokens = stop_tokens;
    request->stop_token_count = 1;
  }
  if ((features & BIASES) != 0) {
    request->biases = biases;
    request->bias_count = 2;
    request->min_new_tokens = 4;
  }
  if ((features & SALTED) != 0) {
    request->cache_salt = "salt";
    request->priority = (int32_t)(number % 3);
  }
  /* Requests with penalties have no drafts: with both, every second one has either. */
  if ((features & PENALTIES) != 0 && (!both || number % 2 == 0)) {
    request->frequency_penalty = 0.5f;
    request->presence_penalty = 0.2f;
    request->repetition_penalty = 1.1f;
  } else if ((features & DRAFTED) != 0) {
    request->num_speculative_tokens = DRAFTS;
  }
}

/* Keeps 256 sequences running: a new request for each that ends. */
static int keep_running(accrt_serve_engine_t* engine, uint32_t features, uint32_t* running,
                        uint64_t* submitted) {
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
    add_features(&request, features, *submitted);
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

static int measure_steps(accrt_serve_engine_t* engine, double seconds, measured_t* measured) {
  uint32_t running = 0;
  uint64_t submitted = 0, number = 0;
  row_t* parts = measured->parts;
  const uint64_t end_ns = accrt_serve_now_ns() + (uint64_t)(seconds * 1e9);
  while (accrt_serve_now_ns() < end_ns && parts[0].count < MOST_STEPS) {
    if (keep_running(engine, measured->features, &running, &submitted) != 0)
      return 1;
    const uint64_t begin_cpu_ns = cpu_now_ns();
    const uint64_t begin_ns = accrt_serve_now_ns();
    if (accrt_serve_engine_step(engine) != ACCRT_OK)
      return fail("step");
    const uint64_t done_ns = accrt_serve_now_ns();
    const uint32_t rows = rows_in_step;
    const uint64_t polled_ns = accrt_serve_now_ns();
    (void)take_events(engine, &running);
    const uint64_t taken_ns = accrt_serve_now_ns();
    if (++number < 50 || rows < SEQUENCES)
      continue; /* the first ones compute prompts */
    const double values[] = {(double)(got_ns - begin_ns), (double)(done_ns - gave_ns),
                             (double)(taken_ns - polled_ns), (double)(got_cpu_ns - begin_cpu_ns)};
    for (uint32_t i = 0; i < COLUMNS; ++i)
      parts[i].values[parts[i].count++] = values[i] / 1e3;
  }
  return parts[0].count > 0 ? 0 : fail("no step had all sequences");
}

static accrt_serve_engine_t* new_engine(bool overlapped, accrt_serve_model_t** out_model) {
  accrt_serve_model_functions_t functions = ACCRT_SERVE_MODEL_FUNCTIONS_INIT;
  accrt_serve_engine_t* engine;
  functions.info = info;
  functions.submit = submit;
  functions.wait = wait_step;
  overlaps = overlapped;
  if (accrt_serve_model_wrap(&functions, out_model) != ACCRT_OK)
    return NULL;
  if (accrt_serve_engine_create(*out_model, NULL, &engine) == ACCRT_OK)
    return engine;
  accrt_serve_model_release(*out_model);
  return NULL;
}

static void free_parts(measured_t* measured) {
  for (uint32_t i = 0; i < COLUMNS; ++i)
    free(measured->parts[i].values);
}

/* What needs its last token would be in every second step only, if steps overlapped. */
static int measure(double seconds, measured_t* measured) {
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine =
      new_engine((measured->features & (PENALTIES | DRAFTED)) == 0, &model);
  if (engine == NULL)
    return fail("create");
  repeats = (measured->features & REPEATS) != 0;
  for (uint32_t i = 0; i < COLUMNS; ++i)
    measured->parts[i].values = calloc(MOST_STEPS, sizeof(double));
  const int failed = measure_steps(engine, seconds, measured);
  for (uint32_t i = 0; i < COLUMNS; ++i)
    qsort(measured->parts[i].values, measured->parts[i].count, sizeof(double), ascending);
  accrt_serve_engine_release(engine);
  accrt_serve_model_release(model);
  return failed;
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
  qsort(row->values, row->count, sizeof *row->values, ascending);
  return 0;
}

static void print_one(const measured_t* measured) {
  printf("  %-34s", measured->name);
  for (uint32_t i = 0; i < COLUMNS; ++i)
    printf(" %8.2f %7.2f", at(&measured->parts[i], 0.5), at(&measured->parts[i], 0.99));
  printf("\n");
}

static int write_json(const char* path, const measured_t* all, uint32_t count,
                      const row_t* cached) {
  static const char* const names[COLUMNS] = {"schedule and lay out", "tokens to events",
                                             "take the events",
                                             "schedule and lay out, processor time"};
  FILE* file = fopen(path, "w");
  if (file == NULL)
    return perror(path), 1;
  fprintf(file, "{\"benchmark\": \"serve\", \"sequences\": %u, \"rows\": [", SEQUENCES);
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t p = 0; p < COLUMNS; ++p)
      fprintf(file, "\n  {\"name\": \"%s: %s\", \"median_us\": %.3f, \"p99_us\": %.3f},",
              all[i].name, names[p], at(&all[i].parts[p], 0.5), at(&all[i].parts[p], 0.99));
  }
  fprintf(file,
          "\n  {\"name\": \"admit 8192 cached tokens\", \"median_us\": %.3f, \"p99_us\": %.3f}",
          at(cached, 0.5), at(cached, 0.99));
  fprintf(file, "\n]}\n");
  return fclose(file) == 0 ? 0 : 1;
}

static int run(double seconds, const char* path, const char* only) {
  const uint32_t rest = DRAWN | LOGPROBS | STOPS | BIASES | SALTED;
  measured_t all[] = {
      {.name = "plain"},
      {"drawn: top-k, top-p, min-p, seed", DRAWN, {{0}}},
      {"log probabilities, five more", LOGPROBS, {{0}}},
      {"stop strings and tokens", STOPS, {{0}}},
      {"biases, a least length", BIASES, {{0}}},
      {"salts, three priorities", SALTED, {{0}}},
      {"penalties", PENALTIES, {{0}}},
      {"drafts, no text repeats itself", DRAFTED, {{0}}},
      {"drafts, every second one repeats", DRAFTED | REPEATS, {{0}}},
      {"all but penalties and drafts", rest, {{0}}},
      {"all", rest | PENALTIES | DRAFTED, {{0}}},
  };
  const uint32_t count = sizeof all / sizeof *all;
  double cached_values[200];
  row_t cached = {cached_values, 0};
  int failed = 0;
  printf("%u sequences, us: middle and p99   until the model    to events        taken   "
         "         processor, first\n",
         SEQUENCES);
  for (uint32_t i = 0; failed == 0 && i < count; ++i) {
    if (only != NULL && strstr(all[i].name, only) == NULL)
      continue;
    failed = measure(only != NULL ? seconds : seconds / count, &all[i]);
    if (failed == 0)
      print_one(&all[i]);
  }
  accrt_serve_model_t* model;
  accrt_serve_engine_t* engine = failed == 0 && only == NULL ? new_engine(true, &model) : NULL;
  if (failed == 0 && only == NULL)
    failed = engine == NULL ? fail("create") : measure_cached(engine, &cached);
  if (engine != NULL) {
    accrt_serve_engine_release(engine);
    accrt_serve_model_release(model);
  }
  if (failed == 0 && only == NULL) {
    printf("wanted of plain and of all: 5 and 20 until the model has the step\n");
    printf("8192 tokens from the cache: %.1f us, p99 %.1f; wanted: 41, 5 ns a token\n",
           at(&cached, 0.5), at(&cached, 0.99));
    if (path[0] != 0)
      failed = write_json(path, all, count, &cached);
  }
  for (uint32_t i = 0; i < count; ++i)
    free_parts(&all[i]);
  return failed;
}

int main(int count, char** arguments) {
  double seconds = 8;
  const char* only = NULL;
  char path[4096] = "";
  if (getenv("ACCRT_BENCH_RESULTS") != NULL)
    (void)snprintf(path, sizeof path, "%s/serve.json", getenv("ACCRT_BENCH_RESULTS"));
  for (int i = 1; i < count; ++i) {
    if (strcmp(arguments[i], "--seconds") == 0 && i + 1 < count) {
      seconds = atof(arguments[++i]);
    } else if (strcmp(arguments[i], "--only") == 0 && i + 1 < count) {
      only = arguments[++i];
    } else if (strcmp(arguments[i], "--json") == 0 && i + 1 < count) {
      (void)snprintf(path, sizeof path, "%s", arguments[++i]);
    } else {
      fprintf(stderr, "usage: bench_serve [--seconds S] [--json FILE] [--only NAME]\n");
      return 2;
    }
  }
  make_token_table();
  return run(seconds, path, only);
}
