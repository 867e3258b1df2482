/* bench/bench_call.c - what a blocking call of a bundle's function costs: accrt_call_run on an idle
 * stream.
 *
 *   bench_call [--seconds S] [--json FILE] [BUNDLE]
 *
 * Public headers only. BUNDLE must have the functions `empty`, `nothing` and `affine` of
 * tests/bundles/make.py; that bundle of the build is used when none is given. Samples of all rows
 * are interleaved. Text goes to the terminal, JSON to --json or to call.json in
 * $ACCRT_BENCH_RESULTS. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "accrt/accrt.h"

#ifndef ACCRT_BENCH_BUNDLE
#define ACCRT_BENCH_BUNDLE ""
#endif
#define REPEATS 100u
#define MAX_SAMPLES 20000u
#define ELEMENTS 64
#define ROWS 10u

/* One call of a session of its own. */
typedef struct row {
  const char* name;
  const char* target; /* what is asked for, or NULL */
  accrt_instance_t* instance;
  accrt_session_t* session;
  accrt_call_t* call;
  void (*before)(struct row* row); /* before each run, measured with it; or NULL */
  uint32_t turn;
  uint32_t count;
  double samples[MAX_SAMPLES]; /* nanoseconds of one call */
} row_t;

static row_t rows[ROWS];
static uint32_t row_count;
static float input[2][ELEMENTS];
static float output[ELEMENTS];

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void check(accrt_status_t status, const char* what) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "bench_call: %s: %s: %s\n", what, accrt_status_name(status), error.message);
  exit(1);
}

/* ---- Set-up ---- */

static void set_argument(accrt_call_t* call, uint32_t argument, float* data) {
  const int64_t shape[1] = {ELEMENTS};
  const accrt_tensor_t tensor = {
      .data = data, .dtype = ACCRT_DTYPE_F32, .rank = 1, .shape = shape, .strides = NULL};
  check(accrt_call_set_tensor(call, argument, &tensor), "call_set_tensor");
}

static void rebind(row_t* row) {
  set_argument(row->call, 0, input[++row->turn % 2]);
}

static row_t* add(const char* name, const char* target, const char* bundle_path,
                  const char* threads, const char* function) {
  row_t* row = &rows[row_count++];
  const accrt_option_t option = {"host.threads", threads};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  row->name = name;
  row->target = target;
  check(accrt_instance_create(&options, &row->instance), "instance_create");
  check(accrt_instance_device_by_name(row->instance, "host", &device), "device");
  check(accrt_bundle_open_path(row->instance, bundle_path, NULL, &bundle), "bundle_open");
  check(accrt_program_create(device, bundle, NULL, &program), "program_create");
  check(accrt_session_create(program, NULL, &row->session), "session_create");
  check(accrt_call_create(row->session, function, &row->call), "call_create");
  accrt_program_release(program);
  accrt_bundle_release(bundle);
  return row;
}

static void add_all(const char* bundle) {
  add("function without commands, 1 thread", NULL, bundle, "1", "nothing");
  add("function with one empty kernel, 1 thread", "<= 1000 ns", bundle, "1", "empty");
  add("function with one empty kernel, 2 threads", "<= 1000 ns", bundle, "2", "empty");
  row_t* row = add("y = 2 x + 1 of 64 f32, bound, 1 thread", NULL, bundle, "1", "affine");
  set_argument(row->call, 0, input[0]);
  set_argument(row->call, 1, output);
  row = add("the same, x bound anew each time", NULL, bundle, "1", "affine");
  set_argument(row->call, 1, output);
  row->before = rebind;
  row = add("the same, y allocated by the runtime", NULL, bundle, "1", "affine");
  set_argument(row->call, 0, input[0]);
}

static void remove_all(void) {
  for (uint32_t i = 0; i < row_count; ++i) {
    accrt_call_release(rows[i].call);
    accrt_session_release(rows[i].session);
    accrt_instance_release(rows[i].instance);
  }
}

/* ---- Measuring and telling ---- */

static double sample(row_t* row) {
  const uint64_t begin = now_ns();
  for (uint32_t i = 0; i < REPEATS; ++i) {
    if (row->before != NULL)
      row->before(row);
    if (accrt_call_run(row->call, ACCRT_TIMEOUT_INFINITE) != ACCRT_OK)
      check(ACCRT_ERROR_INTERNAL, row->name);
  }
  return (double)(now_ns() - begin) / REPEATS;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static void measure(double seconds) {
  const uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
  for (uint32_t round = 0; round < MAX_SAMPLES && (round < 50 || now_ns() < end); ++round) {
    for (uint32_t i = 0; i < row_count; ++i) {
      const double value = sample(&rows[i]);
      if (round >= 5) /* warm */
        rows[i].samples[rows[i].count++] = value;
    }
  }
  for (uint32_t i = 0; i < row_count; ++i)
    qsort(rows[i].samples, rows[i].count, sizeof(double), compare);
}

static void print_text(void) {
  printf("%-44s %10s %10s %10s %8s  %s\n", "a blocking call of", "median", "min", "p75", "samples",
         "asked for");
  for (uint32_t i = 0; i < row_count; ++i) {
    const row_t* row = &rows[i];
    printf("%-44s %8.1fns %8.1fns %8.1fns %8u  %s\n", row->name, row->samples[row->count / 2],
           row->samples[0], row->samples[row->count * 3 / 4], row->count,
           row->target == NULL ? "" : row->target);
  }
}

static int write_json(const char* path) {
  FILE* file = fopen(path, "w");
  if (file == NULL) {
    fprintf(stderr, "bench_call: cannot write %s\n", path);
    return 1;
  }
  fprintf(file, "{\"unit\": \"ns\", \"results\": [\n");
  for (uint32_t i = 0; i < row_count; ++i) {
    const row_t* row = &rows[i];
    fprintf(file, " {\"name\": \"%s\", \"median\": %.1f, \"min\": %.1f, \"p75\": %.1f}%s\n",
            row->name, row->samples[row->count / 2], row->samples[0],
            row->samples[row->count * 3 / 4], i + 1 < row_count ? "," : "");
  }
  fprintf(file, "]}\n");
  return fclose(file) != 0;
}

int main(int count, char** arguments) {
  double seconds = 3;
  const char* bundle = ACCRT_BENCH_BUNDLE;
  char path[4096] = "";
  if (getenv("ACCRT_BENCH_RESULTS") != NULL)
    snprintf(path, sizeof path, "%s/call.json", getenv("ACCRT_BENCH_RESULTS"));
  for (int i = 1; i < count; ++i) {
    if (strcmp(arguments[i], "--seconds") == 0 && i + 1 < count) {
      seconds = strtod(arguments[++i], NULL);
    } else if (strcmp(arguments[i], "--json") == 0 && i + 1 < count) {
      snprintf(path, sizeof path, "%s", arguments[++i]);
    } else if (arguments[i][0] != '-') {
      bundle = arguments[i];
    } else {
      fprintf(stderr, "usage: bench_call [--seconds S] [--json FILE] [BUNDLE]\n");
      return 2;
    }
  }
  if (bundle[0] == '\0') {
    fprintf(stderr,
            "bench_call: the build made no test bundles (no Python with xxhash): give one\n");
    return 1;
  }
  add_all(bundle);
  measure(seconds);
  print_text();
  remove_all();
  return path[0] != '\0' ? write_json(path) : 0;
}
