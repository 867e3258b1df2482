/* bench/gpu/cancel_parts.c - work that can be cancelled between its parts on a GPU: each part waits
 * for a gate that the host opens when an earlier part has ended (docs/programs.md, Cancelling).
 * What that costs beside the same parts without gates, and how soon a cancel ends them.
 *
 *   gpu_cancel_parts [PARTS [MIB]]
 *
 * Public headers alone. Fails if a part that was dropped has run, or one that was not has not.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "accrt/accrt.h"

#define MOST_PARTS 1000
#define RUNS 5

static accrt_instance_t* instance;
static accrt_device_t* device;
static accrt_stream_t* stream;
static accrt_semaphore_t* gate;
static accrt_commands_t* commands;
static accrt_buffer_t *large, *marks;
static uint64_t opened; /* the gate's values of earlier runs are not above it */
static atomic_uint ended;
static int parts = 200;
static uint64_t large_bytes = UINT64_C(1) << 30;

#define OK(call)                                                                                   \
  do {                                                                                             \
    if ((call) != ACCRT_OK) {                                                                      \
      accrt_error_t error_ = ACCRT_ERROR_INIT;                                                     \
      (void)accrt_last_error(&error_);                                                             \
      printf("FAILED: line %d: %s\n", __LINE__, error_.message);                                   \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* On a thread of the runtime. A later part may have opened the gate further. */
static void has_ended(void* number, accrt_status_t status) {
  if (status != ACCRT_OK)
    return;
  atomic_fetch_add(&ended, 1);
  (void)accrt_semaphore_signal(gate, (uint64_t)(uintptr_t)number);
}

/* A part: a fill that takes some time, and a mark. `ahead`: how many parts are enqueued at a time;
 * 0: all. */
static void enqueue(int part, int ahead, uint64_t bytes) {
  const accrt_binding_t bindings[2] = {
      {.buffer = large, .size_bytes = bytes},
      {.buffer = marks, .offset_bytes = (uint64_t)part * 256, .size_bytes = 4}};
  const uint64_t number = opened + (uint64_t)part + 1;
  if (ahead != 0 && part >= ahead)
    OK(accrt_stream_wait(stream, gate, number - (uint64_t)ahead));
  OK(accrt_stream_submit(stream, commands, bindings, 2, (uint32_t)sizeof bindings[0]));
  if (ahead != 0)
    OK(accrt_stream_notify(stream, has_ended, (void*)(uintptr_t)number));
}

static void record(uint64_t bytes) {
  const accrt_binding_place_t work = {.binding = 0}, mark = {.binding = 1};
  accrt_commands_release(commands);
  OK(accrt_commands_create(device, 2, &commands));
  OK(accrt_commands_fill(commands, &work, bytes, 1, 4, NULL, NULL));
  OK(accrt_commands_fill(commands, &mark, 4, 7, 4, NULL, NULL));
  OK(accrt_commands_finalize(commands));
}

/* Marks that have been set, which must be the first ones. */
static int ran(void) {
  static unsigned char bytes[MOST_PARTS * 256];
  const accrt_place_t source = {.buffer = marks}, target = {.pointer = bytes};
  OK(accrt_stream_copy(stream, &source, &target, sizeof bytes));
  OK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  int count = 0;
  for (int i = 0; i < parts; ++i) {
    const bool is_set = bytes[i * 256] == 7;
    if (is_set && count != i) {
      printf("FAILED: part %d has run, and part %d has not\n", i, count);
      exit(1);
    }
    count += is_set;
  }
  return count;
}

static void begin_run(void) {
  const accrt_place_t all = {.buffer = marks};
  OK(accrt_stream_fill(stream, &all, MOST_PARTS * 256, 0, 4));
  OK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
  opened += MOST_PARTS;
  atomic_store(&ended, 0);
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values) {
  qsort(values, RUNS, sizeof *values, compare);
  return values[RUNS / 2];
}

static double whole(int ahead, uint64_t bytes, double* out_submission) {
  double all[RUNS], submissions[RUNS];
  for (int i = 0; i < RUNS; ++i) {
    begin_run();
    const double begin = now_us();
    for (int part = 0; part < parts; ++part)
      enqueue(part, ahead, bytes);
    submissions[i] = now_us() - begin;
    OK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
    all[i] = now_us() - begin;
    if (ran() != parts) {
      printf("FAILED: %d of %d parts ran\n", ran(), parts);
      exit(1);
    }
  }
  *out_submission = median(submissions);
  return median(all);
}

/* How long a cancel in the middle takes until the stream can be used again. */
static void cancel(int ahead, uint64_t bytes, double all_us) {
  double took[RUNS];
  int most = 0;
  for (int i = 0; i < RUNS; ++i) {
    begin_run();
    for (int part = 0; part < parts; ++part)
      enqueue(part, ahead, bytes);
    usleep((useconds_t)(all_us / 4));
    const int before = (int)atomic_load(&ended);
    const double begin = now_us();
    OK(accrt_stream_cancel(stream));
    accrt_error_t error = ACCRT_ERROR_INIT;
    OK(accrt_stream_error(stream, &error));
    OK(accrt_stream_reset(stream));
    took[i] = now_us() - begin;
    const int found = ran();
    if (error.status != ACCRT_ERROR_CANCELLED && found < parts) {
      printf("FAILED: it was not told as cancelled, but as %d\n", error.status);
      exit(1);
    }
    if (found - before > most)
      most = found - before;
    if (i == RUNS - 1)
      printf("  cancelled: reset after %.0f us, %d of %d parts ran, at most %d after the cancel\n",
             median(took), found, parts, ahead != 0 ? most : found);
  }
}

int main(int argc, char** argv) {
  if (argc > 1)
    parts = atoi(argv[1]) < MOST_PARTS && atoi(argv[1]) > 0 ? atoi(argv[1]) : parts;
  if (argc > 2 && atoi(argv[2]) > 0)
    large_bytes = (uint64_t)atoi(argv[2]) << 20;
  const char* name = getenv("ACCRT_DEVICE") != NULL ? getenv("ACCRT_DEVICE") : "cuda:0";
  accrt_pool_t* pool;
  OK(accrt_instance_create(NULL, &instance));
  OK(accrt_instance_device_by_name(instance, name, &device));
  OK(accrt_stream_create(device, NULL, &stream));
  OK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  OK(accrt_buffer_create(pool, large_bytes, NULL, &large));
  OK(accrt_buffer_create(pool, MOST_PARTS * 256, NULL, &marks));
  OK(accrt_semaphore_create(instance, 0, &gate));
  printf("gpu_cancel_parts: %d parts on %s, medians of %d runs: submission / to completion\n",
         parts, name, RUNS);
  const uint64_t sizes[] = {4096, large_bytes >> 4, large_bytes};
  const int aheads[] = {0, 2, 4, 8};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
    record(sizes[s]);
    for (size_t a = 0; a < sizeof aheads / sizeof *aheads; ++a) {
      double submission;
      const double all = whole(aheads[a], sizes[s], &submission);
      printf("fills of %" PRIu64 " KiB, %d ahead: %.0f / %.0f us (%.1f us a part)\n",
             sizes[s] >> 10, aheads[a], submission, all, all / parts);
      if (s > 0)
        cancel(aheads[a], sizes[s], all);
    }
  }
  accrt_commands_release(commands);
  accrt_buffer_release(large);
  accrt_buffer_release(marks);
  accrt_semaphore_release(gate);
  accrt_stream_release(stream);
  accrt_instance_release(instance);
  printf("OK\n");
  return 0;
}
