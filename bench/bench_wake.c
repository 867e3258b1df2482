/* bench/bench_wake.c - how long a thread that sleeps in accrt_semaphore_wait takes to wake, beside
 * a bare futex.
 *
 *   bench_wake [--seconds S] [--json FILE]
 *
 * Two ways of measuring, each for a futex and for semaphores, interleaved in one process:
 *   asleep     the waiter has slept for 300 us when the word is written: from before the write to
 *              the waiter's next instruction
 *   ping-pong  two threads answer each other without a pause: half of a round trip
 * and what a signal costs without a waiter. Medians with the 10th and 90th of 100 samples. Text
 * goes to the terminal, JSON to --json or to wake.json in $ACCRT_BENCH_RESULTS. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "accrt/accrt.h"

enum { MAX_SAMPLES = 20000, ASLEEP_US = 300, BATCH = 1000 };

/* A word that one thread waits for and another writes: a futex, or a semaphore. */
typedef struct word {
  accrt_semaphore_t* semaphore; /* NULL: the futex */
  atomic_uint value;
} word_t;

typedef struct pair {
  word_t there, back;
  unsigned turn;
  pthread_t thread;
  _Atomic uint64_t woke_ns;
} pair_t;

typedef struct row {
  const char* name;
  double (*sample)(void* context);
  void* context;
  double samples[MAX_SAMPLES];
  uint32_t count;
} row_t;

static row_t rows[8];
static uint32_t row_count;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static void check(accrt_status_t status) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "bench_wake: %s: %s\n", accrt_status_name(status), error.message);
  exit(1);
}

/* ---- A word ---- */

static void word_write(word_t* word, unsigned value) {
  if (word->semaphore) {
    check(accrt_semaphore_signal(word->semaphore, value));
    return;
  }
  atomic_store(&word->value, value);
  syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void word_wait(word_t* word, unsigned value) {
  if (word->semaphore) {
    check(accrt_semaphore_wait(word->semaphore, value, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
    return;
  }
  for (unsigned seen; (seen = atomic_load(&word->value)) < value;)
    syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

/* ---- Samples ---- */

static void* answer(void* context) {
  pair_t* pair = context;
  for (unsigned turn = 1;; ++turn) {
    word_wait(&pair->there, turn);
    atomic_store(&pair->woke_ns, now_ns());
    word_write(&pair->back, turn);
  }
  return NULL;
}

static double sample_asleep(void* context) {
  pair_t* pair = context;
  const struct timespec pause = {.tv_nsec = ASLEEP_US * 1000};
  nanosleep(&pause, NULL);
  const uint64_t begin = now_ns();
  word_write(&pair->there, ++pair->turn);
  word_wait(&pair->back, pair->turn);
  return (double)(atomic_load(&pair->woke_ns) - begin);
}

static double sample_ping_pong(void* context) {
  pair_t* pair = context;
  const uint64_t begin = now_ns();
  word_write(&pair->there, ++pair->turn);
  word_wait(&pair->back, pair->turn);
  return (double)(now_ns() - begin) / 2;
}

static double sample_alone(void* context) {
  word_t* word = context;
  const uint64_t begin = now_ns();
  for (unsigned i = 0; i < BATCH; ++i)
    word_write(word, ++word->value);
  return (double)(now_ns() - begin) / BATCH;
}

static void add(const char* name, double (*sample)(void* context), void* context) {
  rows[row_count++] = (row_t){.name = name, .sample = sample, .context = context};
}

static pair_t* start(accrt_instance_t* instance) {
  pair_t* pair = calloc(1, sizeof *pair);
  if (!pair)
    exit(1);
  if (instance) {
    check(accrt_semaphore_create(instance, 0, &pair->there.semaphore));
    check(accrt_semaphore_create(instance, 0, &pair->back.semaphore));
  }
  if (pthread_create(&pair->thread, NULL, answer, pair) != 0)
    exit(1);
  return pair;
}

/* ---- Telling ---- */

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double percentile(const row_t* row, uint32_t of_100) {
  return row->samples[(uint64_t)row->count * of_100 / 100];
}

static void print_text(void) {
  printf("%-44s %10s %10s %10s %10s %8s\n", "", "median", "p10", "p90", "x futex", "samples");
  for (uint32_t i = 0; i < row_count; ++i) {
    const row_t* row = &rows[i];
    printf("%-44s %8.0fns %8.0fns %8.0fns", row->name, percentile(row, 50), percentile(row, 10),
           percentile(row, 90));
    if (i % 2 == 1)
      printf(" %10.2f", percentile(row, 50) / percentile(&rows[i - 1], 50));
    else
      printf(" %10s", "");
    printf(" %8u\n", row->count);
  }
}

static int write_json(const char* path) {
  FILE* file = fopen(path, "w");
  if (!file) {
    fprintf(stderr, "bench_wake: cannot write %s\n", path);
    return 1;
  }
  fputs("{\"unit\": \"ns\", \"results\": [\n", file);
  for (uint32_t i = 0; i < row_count; ++i)
    fprintf(file,
            " {\"name\": \"%s\", \"median\": %.1f, \"p10\": %.1f, \"p90\": %.1f, \"samples\": "
            "%u}%s\n",
            rows[i].name, percentile(&rows[i], 50), percentile(&rows[i], 10),
            percentile(&rows[i], 90), rows[i].count, i + 1 < row_count ? "," : "");
  fputs("]}\n", file);
  return fclose(file) != 0;
}

int main(int argc, char** argv) {
  double seconds = 10;
  const char* folder = getenv("ACCRT_BENCH_RESULTS");
  const char* json = NULL;
  char path[4096];
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--seconds") == 0)
      seconds = strtod(argv[i + 1], NULL);
    else if (strcmp(argv[i], "--json") == 0)
      json = argv[i + 1];
  }
  if (!json && folder) {
    snprintf(path, sizeof path, "%s/wake.json", folder);
    json = path;
  }
  accrt_instance_t* instance = NULL;
  check(accrt_instance_create(NULL, &instance));
  word_t alone = {0};
  check(accrt_semaphore_create(instance, 0, &alone.semaphore));
  static word_t bare;
  add("asleep, futex", sample_asleep, start(NULL));
  add("asleep, semaphore", sample_asleep, start(instance));
  add("ping-pong, futex", sample_ping_pong, start(NULL));
  add("ping-pong, semaphore", sample_ping_pong, start(instance));
  add("signal, nobody waits: futex (with its call)", sample_alone, &bare);
  add("signal, nobody waits: semaphore", sample_alone, &alone);
  const uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
  for (uint32_t round = 0; round < MAX_SAMPLES && (round < 50 || now_ns() < end); ++round) {
    for (uint32_t i = 0; i < row_count; ++i) {
      const double value = rows[i].sample(rows[i].context);
      if (round >= 5) /* warm */
        rows[i].samples[rows[i].count++] = value;
    }
  }
  for (uint32_t i = 0; i < row_count; ++i)
    qsort(rows[i].samples, rows[i].count, sizeof rows[i].samples[0], compare);
  print_text();
  /* The other threads wait for ever: they end with the process. */
  return json ? write_json(json) : 0;
}
