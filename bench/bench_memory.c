/* bench/bench_memory.c - what taking memory from a warm pool costs.
 *
 *   bench_memory [--device NAME] [--seconds S] [--json FILE]
 *
 * Public headers only. Each row is one pair of allocate and free, asked for in stream order or
 * without a stream, at several sizes; one row keeps several buffers alive, as programs do. The C
 * library's malloc and free stand beside them. Samples of all rows are interleaved; a sample is the
 * mean of PAIRS pairs. Text goes to the terminal, JSON to --json or to memory.json in
 * $ACCRT_BENCH_RESULTS. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "accrt/accrt.h"

#define PAIRS 256u
#define MAX_ROWS 32u
#define MAX_SAMPLES 4096u
#define HELD 8u

typedef struct row {
  char name[80];
  const char* target;
  double (*sample)(const struct row* row);
  uint64_t size_bytes;
  uint32_t count;
  double samples[MAX_SAMPLES];
} row_t;

static row_t rows[MAX_ROWS];
static uint32_t row_count;
static accrt_pool_t* pool;
static accrt_stream_t* stream;
static accrt_buffer_options_t in_order = ACCRT_BUFFER_OPTIONS_INIT;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void check(accrt_status_t status, const char* what) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "bench_memory: %s: %s: %s\n", what, accrt_status_name(status), error.message);
  exit(1);
}

static double sample_stream(const row_t* row) {
  const uint64_t begin = now_ns();
  for (uint32_t i = 0; i < PAIRS; ++i) {
    accrt_buffer_t* buffer;
    check(accrt_buffer_create(pool, row->size_bytes, &in_order, &buffer), "buffer_create");
    check(accrt_stream_free(stream, buffer), "stream_free");
  }
  return (double)(now_ns() - begin) / PAIRS;
}

/* Sizes that differ, several alive at a time. */
static double sample_mixed(const row_t* row) {
  accrt_buffer_t* held[HELD] = {NULL};
  uint64_t random = 88172645463325252u;
  const uint64_t begin = now_ns();
  for (uint32_t i = 0; i < PAIRS; ++i) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    accrt_buffer_t** entry = &held[random % HELD];
    if (*entry != NULL)
      check(accrt_stream_free(stream, *entry), "stream_free");
    check(accrt_buffer_create(pool, 256u << (random >> 40) % 12, &in_order, entry),
          "buffer_create");
  }
  const uint64_t end = now_ns();
  for (uint32_t i = 0; i < HELD; ++i) {
    if (held[i] != NULL)
      check(accrt_stream_free(stream, held[i]), "stream_free");
  }
  (void)row;
  return (double)(end - begin) / PAIRS;
}

static double sample_plain(const row_t* row) {
  const uint64_t begin = now_ns();
  for (uint32_t i = 0; i < PAIRS; ++i) {
    accrt_buffer_t* buffer;
    check(accrt_buffer_create(pool, row->size_bytes, NULL, &buffer), "buffer_create");
    accrt_buffer_release(buffer);
  }
  return (double)(now_ns() - begin) / PAIRS;
}

static double sample_malloc(const row_t* row) {
  const uint64_t begin = now_ns();
  for (uint32_t i = 0; i < PAIRS; ++i) {
    void* volatile memory = malloc(row->size_bytes);
    if (memory == NULL)
      exit(1);
    free(memory);
  }
  return (double)(now_ns() - begin) / PAIRS;
}

static void add(const char* name, const char* target, double (*sample)(const row_t* row),
                uint64_t size_bytes) {
  row_t* row = &rows[row_count++];
  row->target = target;
  row->sample = sample;
  row->size_bytes = size_bytes;
  if (size_bytes == 0)
    snprintf(row->name, sizeof row->name, "%s", name);
  else if (size_bytes < 1u << 20)
    snprintf(row->name, sizeof row->name, "%s, %llu B", name, (unsigned long long)size_bytes);
  else
    snprintf(row->name, sizeof row->name, "%s, %llu MiB", name,
             (unsigned long long)(size_bytes >> 20));
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static int report(const char* path) {
  printf("%-52s %9s %9s %9s  %s\n", "", "median", "p10", "p90", "asked for");
  for (uint32_t i = 0; i < row_count; ++i) {
    row_t* row = &rows[i];
    qsort(row->samples, row->count, sizeof(double), compare);
    printf("%-52s %7.1fns %7.1fns %7.1fns  %s\n", row->name, row->samples[row->count / 2],
           row->samples[row->count / 10], row->samples[row->count * 9 / 10],
           row->target == NULL ? "" : row->target);
  }
  if (path[0] == '\0')
    return 0;
  FILE* file = fopen(path, "w");
  if (file == NULL) {
    fprintf(stderr, "bench_memory: cannot write %s\n", path);
    return 1;
  }
  fprintf(file, "{\"unit\": \"ns\", \"results\": [\n");
  for (uint32_t i = 0; i < row_count; ++i) {
    const row_t* row = &rows[i];
    fprintf(file,
            " {\"name\": \"%s\", \"median\": %.1f, \"p10\": %.1f, \"p90\": %.1f, \"samples\": "
            "%u}%s\n",
            row->name, row->samples[row->count / 2], row->samples[row->count / 10],
            row->samples[row->count * 9 / 10], row->count, i + 1 < row_count ? "," : "");
  }
  fprintf(file, "]}\n");
  return fclose(file) != 0;
}

static void measure(double seconds) {
  const char* target = "<= 100 ns";
  static const uint64_t sizes[] = {256, 4096, 65536, 1u << 20, 4u << 20, 16u << 20, 64u << 20};
  for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i)
    add("allocate and free in stream order", target, sample_stream, sizes[i]);
  add("the same, 8 alive, 256 B to 512 KiB", target, sample_mixed, 0);
  add("allocate and release, no stream", NULL, sample_plain, 4096);
  add("malloc and free", NULL, sample_malloc, 4096);
  const uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
  for (uint32_t round = 0; round < MAX_SAMPLES && (round < 50 || now_ns() < end); ++round) {
    for (uint32_t i = 0; i < row_count; ++i) {
      const double value = rows[i].sample(&rows[i]);
      if (round >= 5) /* warm */
        rows[i].samples[rows[i].count++] = value;
    }
  }
}

int main(int count, char** arguments) {
  double seconds = 2;
  const char* name = "host:0";
  char path[4096] = "";
  if (getenv("ACCRT_BENCH_RESULTS") != NULL)
    snprintf(path, sizeof path, "%s/memory.json", getenv("ACCRT_BENCH_RESULTS"));
  for (int i = 1; i < count; ++i) {
    if (strcmp(arguments[i], "--seconds") == 0 && i + 1 < count) {
      seconds = strtod(arguments[++i], NULL);
    } else if (strcmp(arguments[i], "--device") == 0 && i + 1 < count) {
      name = arguments[++i];
    } else if (strcmp(arguments[i], "--json") == 0 && i + 1 < count) {
      snprintf(path, sizeof path, "%s", arguments[++i]);
    } else {
      fprintf(stderr, "usage: bench_memory [--device NAME] [--seconds S] [--json FILE]\n");
      return 2;
    }
  }
  accrt_instance_t* instance;
  accrt_device_t* device;
  check(accrt_instance_create(NULL, &instance), "instance_create");
  check(accrt_instance_device_by_name(instance, name, &device), name);
  check(accrt_pool_create(device, NULL, &pool), "pool_create");
  check(accrt_stream_create(device, NULL, &stream), "stream_create");
  in_order.stream = stream;
  measure(seconds);
  accrt_stream_release(stream);
  accrt_pool_release(pool);
  accrt_instance_release(instance);
  return report(path);
}
