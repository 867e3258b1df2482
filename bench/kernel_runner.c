/* kernel_runner.c - runs the workgroups of kernels on one or two threads, for benchmarks of kernels
 * alone: no runtime, no queue. bench_gemm.py compiles it as a shared object. Threads spin, so that
 * what is measured is the kernel. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "accrt/kernel.h"

typedef struct {
  accrt_kernel_workgroup_fn_t entry;
  const void* params;
  uint32_t params_size_bytes, local_memory_size_bytes, grid[3];
} runner_launch_t;

typedef struct {
  const accrt_kernel_environment_t* environment;
  const runner_launch_t* launches;
  uint32_t launch_count, thread_count;
  void* local[2];
  atomic_uint ready; /* the second thread, and then the first one's word to begin */
  atomic_uint next[4096];
  atomic_uint arrived[4096];
} run_t;

/* Both threads are there before the clock starts: making one takes as long as a small kernel. */
static void begin_second(atomic_uint* ready) {
  atomic_fetch_add_explicit(ready, 1, memory_order_release);
  while (atomic_load_explicit(ready, memory_order_acquire) < 2) {
  }
}

static void begin_first(atomic_uint* ready, struct timespec* out_begin) {
  while (atomic_load_explicit(ready, memory_order_acquire) < 1) {
  }
  clock_gettime(CLOCK_MONOTONIC, out_begin);
  atomic_fetch_add_explicit(ready, 1, memory_order_release);
}

static void run_share(run_t* run, uint32_t worker) {
  for (uint32_t l = 0; l < run->launch_count; l++) {
    const runner_launch_t* launch = &run->launches[l];
    accrt_kernel_dispatch_t dispatch = {
        .struct_size = sizeof dispatch,
        .workgroup_count = {launch->grid[0], launch->grid[1], launch->grid[2]},
        .params = launch->params,
        .params_size_bytes = launch->params_size_bytes,
        .worker_count = run->thread_count};
    uint32_t total = launch->grid[0] * launch->grid[1] * launch->grid[2];
    for (;;) {
      uint32_t i = atomic_fetch_add_explicit(&run->next[l], 1, memory_order_relaxed);
      if (i >= total)
        break;
      accrt_kernel_workgroup_t group = {.struct_size = sizeof group,
                                        .workgroup_id = {i % launch->grid[0],
                                                         i / launch->grid[0] % launch->grid[1],
                                                         i / launch->grid[0] / launch->grid[1]},
                                        .worker_id = worker,
                                        .local_memory_size_bytes = launch->local_memory_size_bytes,
                                        .local_memory = run->local[worker]};
      launch->entry(run->environment, &dispatch, &group);
    }
    /* Release what this thread wrote; the acquire below pairs with the other thread's release. */
    atomic_fetch_add_explicit(&run->arrived[l], 1, memory_order_release);
    while (atomic_load_explicit(&run->arrived[l], memory_order_acquire) < run->thread_count) {
    }
  }
}

static void* second_thread(void* argument) {
  run_t* run = argument;
  begin_second(&run->ready);
  run_share(run, 1);
  return NULL;
}

/* Runs all launches one after the other; returns nanoseconds, or -1 without memory. At most 4096
 * launches. */
int64_t runner_run(const accrt_kernel_environment_t* environment, const runner_launch_t* launches,
                   uint32_t launch_count, uint32_t thread_count) {
  static void* local[2];
  for (int i = 0; i < 2; i++) {
    if (!local[i])
      local[i] = aligned_alloc(64, 1 << 20);
  }
  run_t* run = calloc(1, sizeof *run);
  if (!run || launch_count > 4096 || !local[0] || !local[1]) {
    free(run);
    return -1;
  }
  *run = (run_t){.environment = environment,
                 .launches = launches,
                 .launch_count = launch_count,
                 .thread_count = thread_count,
                 .local = {local[0], local[1]}};
  struct timespec begin, end;
  pthread_t thread;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  int second = thread_count > 1 && pthread_create(&thread, NULL, second_thread, run) == 0;
  if (second)
    begin_first(&run->ready, &begin);
  else
    run->thread_count = 1;
  run_share(run, 0);
  if (second)
    pthread_join(thread, NULL);
  clock_gettime(CLOCK_MONOTONIC, &end);
  free(run);
  return (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec);
}

/* ---- Reading memory, and rows by a function of another library, by one or two threads ---- */

typedef struct {
  void (*run)(const void* what, uint64_t first, uint64_t end);
  const void* what;
  uint64_t first, end;
  atomic_uint ready;
} part_t;

static void* run_part(void* argument) {
  part_t* part = argument;
  begin_second(&part->ready);
  part->run(part->what, part->first, part->end);
  return NULL;
}

static int64_t run_parts(void (*run)(const void*, uint64_t, uint64_t), const void* what,
                         uint64_t count, uint32_t thread_count) {
  struct timespec begin, end;
  pthread_t thread;
  const uint64_t middle = thread_count > 1 ? count / 2 : 0;
  part_t first = {.run = run, .what = what, .end = middle};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  const int second = middle > 0 && pthread_create(&thread, NULL, run_part, &first) == 0;
  if (second)
    begin_first(&first.ready, &begin);
  run(what, second ? middle : 0, count);
  if (second)
    pthread_join(thread, NULL);
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec);
}

typedef uint64_t eight_t __attribute__((vector_size(64)));
static volatile uint64_t sink;

/* Lines [first, end) of 64 bytes. */
static void read_lines(const void* memory, uint64_t first, uint64_t end) {
  const eight_t* lines = memory;
  eight_t sum[4] = {{0}, {0}, {0}, {0}};
  uint64_t i = first;
  for (; i + 4 <= end; i += 4) {
    for (int j = 0; j < 4; j++)
      sum[j] += lines[i + (uint64_t)j];
    __builtin_prefetch((const char*)&lines[i] + 2048, 0, 2);
    __builtin_prefetch((const char*)&lines[i] + 2048 + 64, 0, 2);
    __builtin_prefetch((const char*)&lines[i] + 2048 + 128, 0, 2);
    __builtin_prefetch((const char*)&lines[i] + 2048 + 192, 0, 2);
  }
  const eight_t all = sum[0] + sum[1] + sum[2] + sum[3];
  sink = all[0] + all[1] + all[2] + all[3] + all[4] + all[5] + all[6] + all[7];
}

/* Nanoseconds for reading `size` bytes, which begin at a multiple of 64. */
int64_t runner_read(const void* memory, uint64_t size, uint32_t thread_count);
int64_t runner_read(const void* memory, uint64_t size, uint32_t thread_count) {
  return run_parts(read_lines, memory, size / 64, thread_count);
}

/* ggml's vec_dot: a row of codes by a row of x. */
typedef void (*dot_t)(int n, float* out, size_t out_step, const void* row, size_t row_step,
                      const void* x, size_t x_step, int count);

typedef struct {
  dot_t dot;
  float* out;
  const char* rows;
  const void* x;
  uint64_t k, row_bytes;
} dots_t;

static void run_dots(const void* what, uint64_t first, uint64_t end) {
  const dots_t* d = what;
  for (uint64_t i = first; i < end; i++)
    d->dot((int)d->k, d->out + i, 0, d->rows + i * d->row_bytes, 0, d->x, 0, 1);
}

int64_t runner_dots(dot_t dot, float* out, const void* rows, const void* x, uint64_t n, uint64_t k,
                    uint64_t row_bytes, uint32_t thread_count);
int64_t runner_dots(dot_t dot, float* out, const void* rows, const void* x, uint64_t n, uint64_t k,
                    uint64_t row_bytes, uint32_t thread_count) {
  const dots_t d = {dot, out, rows, x, k, row_bytes};
  return run_parts(run_dots, &d, n, thread_count);
}
