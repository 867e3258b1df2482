/* bench/bench_overhead.c - what the runtime itself costs: calls with an empty kernel, chains of
 * them, launches, waking a waiter.
 *
 *   bench_overhead [--seconds S] [--json FILE]
 *
 * Public headers only. Every figure stands beside its floor, measured in the same run: the kernel
 * called directly, a word between two threads, with and without futexes. Samples of all rows are
 * interleaved. Text goes to the terminal, JSON to --json or to overhead.json in
 * $ACCRT_BENCH_RESULTS.
 */
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

#define CHAIN 1000u
#define MAX_SAMPLES 20000u
#define MAX_ROWS 32u

/* ---- The empty kernel ---- */

static int32_t do_nothing(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return 0;
}

typedef struct nothing_params {
  float* x;
  float* y;
  uint64_t n;
} nothing_params_t;

static const accrt_kernel_pack_table_t* query(uint32_t max_abi,
                                              const accrt_kernel_environment_t* environment) {
  (void)max_abi;
  (void)environment;
  static const accrt_kernel_param_t params[] = {
      ACCRT_KERNEL_PARAM(nothing_params_t, x, BUFFER, READ),
      ACCRT_KERNEL_PARAM(nothing_params_t, y, BUFFER, READ_WRITE),
      ACCRT_KERNEL_PARAM(nothing_params_t, n, SCALAR, NONE)};
  static const accrt_kernel_def_t kernels[] = {
      {.struct_size = sizeof(accrt_kernel_def_t), .name = "bare", .entry = do_nothing},
      {.struct_size = sizeof(accrt_kernel_def_t),
       .name = "with_parameters",
       .entry = do_nothing,
       .params = params,
       .param_count = 3,
       .params_size_bytes = sizeof(nothing_params_t)}};
  static const accrt_kernel_pack_table_t table = {.struct_size = sizeof table,
                                                  .abi_version = ACCRT_KERNEL_ABI_VERSION,
                                                  .name = "overhead",
                                                  .kernels = kernels,
                                                  .kernel_count = 2,
                                                  .kernel_size_bytes = sizeof(accrt_kernel_def_t)};
  return &table;
}

/* ---- Rows ---- */

typedef struct setup {
  const char* threads;
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_stream_t* stream;
  accrt_kernel_pack_t* pack;
  accrt_kernel_t* bare;
  accrt_commands_t* one;
  accrt_commands_t* chain;
  accrt_commands_t* bound;
  accrt_buffer_t* buffer;
  uint64_t offset; /* of the memory bound last */
} setup_t;

typedef struct row {
  const char* name;
  const char* target; /* what is asked for, or NULL */
  /* Nanoseconds of one operation. */
  double (*sample)(void* context);
  void* context;
  double* samples;
  uint32_t count;
} row_t;

static row_t rows[MAX_ROWS];
static uint32_t row_count;

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
  fprintf(stderr, "bench_overhead: %s: %s: %s\n", what, accrt_status_name(status), error.message);
  exit(1);
}

static void add(const char* name, const char* target, double (*sample)(void* context),
                void* context) {
  double* samples = malloc(MAX_SAMPLES * sizeof *samples);
  if (samples == NULL || row_count == MAX_ROWS)
    exit(1);
  rows[row_count++] = (row_t){name, target, sample, context, samples, 0};
}

/* ---- Set-up ---- */

static accrt_commands_t* record(const setup_t* setup, const char* kernel_name, uint32_t count,
                                uint32_t arguments_count,
                                const accrt_kernel_argument_t* arguments) {
  accrt_kernel_t* kernel;
  accrt_commands_t* commands;
  const uint32_t grid[3] = {1, 1, 1};
  check(accrt_kernel_pack_find(setup->pack, kernel_name, &kernel), "kernel_pack_find");
  check(accrt_commands_create(setup->device, arguments_count == 0 ? 0 : 2, &commands), "create");
  for (uint32_t i = 0; i < count; ++i) {
    check(accrt_commands_dispatch(commands, kernel, grid, arguments, arguments_count,
                                  (uint32_t)sizeof *arguments, NULL, NULL),
          "commands_dispatch");
  }
  check(accrt_commands_finalize(commands), "commands_finalize");
  return commands;
}

static void set_up(setup_t* setup, const char* threads) {
  const accrt_option_t option = {"host.threads", threads};
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  options.options = &option;
  options.option_count = 1;
  options.option_size_bytes = (uint32_t)sizeof option;
  setup->threads = threads;
  check(accrt_instance_create(&options, &setup->instance), "instance_create");
  check(accrt_instance_device_by_name(setup->instance, "host", &setup->device), "device");
  check(accrt_stream_create(setup->device, NULL, &setup->stream), "stream_create");
  check(accrt_kernel_pack_register(setup->instance, query, &setup->pack), "pack_register");
  check(accrt_kernel_pack_find(setup->pack, "bare", &setup->bare), "kernel_pack_find");
  accrt_pool_t* pool;
  check(accrt_device_pool(setup->device, ACCRT_MEMORY_DEVICE, &pool), "device_pool");
  check(accrt_buffer_create(pool, 4096, NULL, &setup->buffer), "buffer_create");
  const accrt_kernel_argument_t arguments[3] = {
      {.kind = ACCRT_KERNEL_PARAM_BUFFER, .binding = 0, .size_bytes = 1024},
      {.kind = ACCRT_KERNEL_PARAM_BUFFER, .binding = 1, .size_bytes = 1024},
      {.kind = ACCRT_KERNEL_PARAM_SCALAR, .binding = ACCRT_BINDING_NONE, .value = 256}};
  setup->one = record(setup, "bare", 1, 0, NULL);
  setup->chain = record(setup, "bare", CHAIN, 0, NULL);
  setup->bound = record(setup, "with_parameters", CHAIN, 3, arguments);
}

static void tear_down(setup_t* setup) {
  accrt_commands_release(setup->one);
  accrt_commands_release(setup->chain);
  accrt_commands_release(setup->bound);
  accrt_buffer_release(setup->buffer);
  accrt_kernel_pack_release(setup->pack);
  accrt_stream_release(setup->stream);
  accrt_instance_release(setup->instance);
}

/* ---- Calls ---- */

static double sample_direct_call(void* context) {
  (void)context;
  accrt_kernel_workgroup_fn_t volatile entry = do_nothing;
  const uint64_t begin = now_ns();
  for (uint32_t i = 0; i < CHAIN; ++i)
    entry(NULL, NULL, NULL);
  return (double)(now_ns() - begin) / CHAIN;
}

static void run(const setup_t* setup, accrt_commands_t* commands, const accrt_binding_t* bindings,
                uint32_t count) {
  check(accrt_stream_run(setup->stream, commands, bindings, count, (uint32_t)sizeof *bindings,
                         ACCRT_TIMEOUT_INFINITE),
        "stream_run");
}

static double sample_blocking_call(void* context) {
  const setup_t* setup = context;
  enum { REPEATS = 50 };
  const uint64_t begin = now_ns();
  for (int i = 0; i < REPEATS; ++i)
    run(setup, setup->one, NULL, 0);
  return (double)(now_ns() - begin) / REPEATS;
}

static double sample_chain(void* context) {
  const setup_t* setup = context;
  const uint64_t begin = now_ns();
  run(setup, setup->chain, NULL, 0);
  return (double)(now_ns() - begin) / CHAIN;
}

/* Other memory each time, so that every address is patched. */
static double sample_bound_chain(void* context) {
  setup_t* setup = context;
  setup->offset ^= 2048;
  const accrt_binding_t bindings[2] = {
      {.buffer = setup->buffer, .offset_bytes = setup->offset, .size_bytes = 1024},
      {.buffer = setup->buffer, .offset_bytes = setup->offset + 1024, .size_bytes = 1024}};
  const uint64_t begin = now_ns();
  run(setup, setup->bound, bindings, 2);
  return (double)(now_ns() - begin) / CHAIN;
}

/* Enqueuing alone: the stream is waited for outside of the measured time. */
static double sample_launch(void* context) {
  const setup_t* setup = context;
  const uint32_t grid[3] = {1, 1, 1};
  enum { REPEATS = 20 };
  const uint64_t begin = now_ns();
  for (int i = 0; i < REPEATS; ++i) {
    check(accrt_stream_launch(setup->stream, setup->bare, grid, NULL, 0,
                              (uint32_t)sizeof(accrt_kernel_argument_t)),
          "stream_launch");
  }
  const double elapsed = (double)(now_ns() - begin) / REPEATS;
  check(accrt_stream_synchronize(setup->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK), "sync");
  return elapsed;
}

static double sample_launch_and_wait(void* context) {
  const setup_t* setup = context;
  const uint32_t grid[3] = {1, 1, 1};
  const uint64_t begin = now_ns();
  check(accrt_stream_launch(setup->stream, setup->bare, grid, NULL, 0,
                            (uint32_t)sizeof(accrt_kernel_argument_t)),
        "stream_launch");
  check(accrt_stream_synchronize(setup->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN), "sync");
  return (double)(now_ns() - begin);
}

/* ---- Waking: a second thread answers; half of the round trip counts ---- */

typedef struct ping {
  accrt_semaphore_t* there;
  accrt_semaphore_t* back;
  uint64_t value;
  uint32_t policy;
  pthread_t thread;
  /* floor */
  atomic_uint word;
  atomic_uint stopping;
} ping_t;

static void* answer(void* argument) {
  ping_t* ping = argument;
  for (uint64_t value = 1;; ++value) {
    if (accrt_semaphore_wait(ping->there, value, ACCRT_TIMEOUT_INFINITE, ping->policy) !=
            ACCRT_OK ||
        accrt_semaphore_signal(ping->back, value) != ACCRT_OK)
      return NULL;
  }
}

static double sample_semaphore(void* context) {
  ping_t* ping = context;
  const uint64_t begin = now_ns();
  const uint64_t value = ++ping->value;
  check(accrt_semaphore_signal(ping->there, value), "semaphore_signal");
  check(accrt_semaphore_wait(ping->back, value, ACCRT_TIMEOUT_INFINITE, ping->policy), "wait");
  return (double)(now_ns() - begin) / 2;
}

static void ping_start(ping_t* ping, accrt_instance_t* instance, uint32_t policy) {
  ping->policy = policy;
  check(accrt_semaphore_create(instance, 0, &ping->there), "semaphore_create");
  check(accrt_semaphore_create(instance, 0, &ping->back), "semaphore_create");
  if (pthread_create(&ping->thread, NULL, answer, ping) != 0)
    exit(1);
}

static void ping_stop(ping_t* ping) {
  accrt_semaphore_fail(ping->there, ACCRT_ERROR_CANCELLED, NULL);
  pthread_join(ping->thread, NULL);
  accrt_semaphore_release(ping->there);
  accrt_semaphore_release(ping->back);
}

static void futex(atomic_uint* word, int operation, unsigned value) {
  syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

/* The word is odd when it is the other thread's turn. */
static void* answer_futex(void* argument) {
  ping_t* ping = argument;
  for (;;) {
    const unsigned seen = atomic_load(&ping->word);
    if (atomic_load(&ping->stopping) != 0)
      return NULL;
    if (seen % 2 == 0) {
      futex(&ping->word, FUTEX_WAIT_PRIVATE, seen);
      continue;
    }
    atomic_store(&ping->word, seen + 1);
    futex(&ping->word, FUTEX_WAKE_PRIVATE, 1);
  }
}

static double sample_futex(void* context) {
  ping_t* ping = context;
  const uint64_t begin = now_ns();
  const unsigned mine = atomic_load(&ping->word);
  atomic_store(&ping->word, mine + 1);
  futex(&ping->word, FUTEX_WAKE_PRIVATE, 1);
  while (atomic_load(&ping->word) == mine + 1)
    futex(&ping->word, FUTEX_WAIT_PRIVATE, mine + 1);
  return (double)(now_ns() - begin) / 2;
}

static void* answer_spinning(void* argument) {
  ping_t* ping = argument;
  while (atomic_load(&ping->stopping) == 0) {
    const unsigned seen = atomic_load(&ping->word);
    if (seen % 2 != 0)
      atomic_store(&ping->word, seen + 1);
  }
  return NULL;
}

static double sample_spinning(void* context) {
  ping_t* ping = context;
  const uint64_t begin = now_ns();
  const unsigned mine = atomic_load(&ping->word);
  atomic_store(&ping->word, mine + 1);
  while (atomic_load(&ping->word) == mine + 1) {
  }
  return (double)(now_ns() - begin) / 2;
}

/* ---- Measuring and telling ---- */

static void sample_all(uint32_t first, double seconds) {
  const uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
  for (uint32_t round = 0; round < MAX_SAMPLES && (round < 50 || now_ns() < end); ++round) {
    for (uint32_t i = first; i < row_count; ++i) {
      const double value = rows[i].sample(rows[i].context);
      if (round >= 5) /* warm */
        rows[i].samples[rows[i].count++] = value;
    }
  }
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static void print_text(void) {
  printf("%-52s %10s %10s %12s %8s  %s\n", "", "median", "min", "max", "samples", "asked for");
  for (uint32_t i = 0; i < row_count; ++i) {
    const row_t* row = &rows[i];
    printf("%-52s %8.1fns %8.1fns %10.1fns %8u  %s\n", row->name, row->samples[row->count / 2],
           row->samples[0], row->samples[row->count - 1], row->count,
           row->target == NULL ? "" : row->target);
  }
}

static int write_json(const char* path) {
  FILE* file = fopen(path, "w");
  if (file == NULL) {
    fprintf(stderr, "bench_overhead: cannot write %s\n", path);
    return 1;
  }
  fprintf(file, "{\"unit\": \"ns\", \"results\": [\n");
  for (uint32_t i = 0; i < row_count; ++i) {
    const row_t* row = &rows[i];
    fprintf(
        file,
        " {\"name\": \"%s\", \"median\": %.1f, \"min\": %.1f, \"max\": %.1f, \"samples\": %u}%s\n",
        row->name, row->samples[row->count / 2], row->samples[0], row->samples[row->count - 1],
        row->count, i + 1 < row_count ? "," : "");
  }
  fprintf(file, "]}\n");
  return fclose(file) != 0;
}

static void measure_calls(double seconds) {
  static setup_t setups[2];
  set_up(&setups[0], "1");
  set_up(&setups[1], "2");
  const uint32_t first = row_count;
  add("floor: the kernel, called directly", NULL, sample_direct_call, NULL);
  add("blocking call of one empty kernel, 1 thread", "<= 1000 ns", sample_blocking_call,
      &setups[0]);
  add("blocking call of one empty kernel, 2 threads", "<= 1000 ns", sample_blocking_call,
      &setups[1]);
  add("chain of 1,000 dispatches, each, 1 thread", "<= 100 ns", sample_chain, &setups[0]);
  add("chain of 1,000 dispatches, each, 2 threads", "<= 100 ns", sample_chain, &setups[1]);
  add("the same with 2 buffers rebound, each, 1 thread", "<= 100 ns", sample_bound_chain,
      &setups[0]);
  add("the same with 2 buffers rebound, each, 2 threads", "<= 100 ns", sample_bound_chain,
      &setups[1]);
  add("launch on a stream, enqueuing alone", NULL, sample_launch, &setups[1]);
  add("launch on a stream and wait, spinning", NULL, sample_launch_and_wait, &setups[1]);
  sample_all(first, seconds);
  tear_down(&setups[0]);
  tear_down(&setups[1]);
}

/* One pair of threads at a time: a spinning partner of another row would take its processor. */
static void measure_pair(const char* name, double (*sample)(void* context),
                         void* (*partner)(void* argument), double seconds) {
  static ping_t pings[MAX_ROWS];
  ping_t* ping = &pings[row_count];
  if (pthread_create(&ping->thread, NULL, partner, ping) != 0)
    exit(1);
  const uint32_t first = row_count;
  add(name, NULL, sample, ping);
  sample_all(first, seconds);
  atomic_store(&ping->stopping, 1);
  futex(&ping->word, FUTEX_WAKE_PRIVATE, 1);
  pthread_join(ping->thread, NULL);
}

static void measure_semaphore(const char* name, uint32_t policy, double seconds) {
  static ping_t pings[MAX_ROWS];
  ping_t* ping = &pings[row_count];
  accrt_instance_t* instance;
  check(accrt_instance_create(NULL, &instance), "instance_create");
  ping_start(ping, instance, policy);
  const uint32_t first = row_count;
  add(name, NULL, sample_semaphore, ping);
  sample_all(first, seconds);
  ping_stop(ping);
  accrt_instance_release(instance);
}

int main(int count, char** arguments) {
  double seconds = 4;
  char path[4096] = "";
  if (getenv("ACCRT_BENCH_RESULTS") != NULL) {
    snprintf(path, sizeof path, "%s/overhead.json", getenv("ACCRT_BENCH_RESULTS"));
  }
  for (int i = 1; i < count; ++i) {
    if (strcmp(arguments[i], "--seconds") == 0 && i + 1 < count) {
      seconds = strtod(arguments[++i], NULL);
    } else if (strcmp(arguments[i], "--json") == 0 && i + 1 < count) {
      snprintf(path, sizeof path, "%s", arguments[++i]);
    } else {
      fprintf(stderr, "usage: bench_overhead [--seconds S] [--json FILE]\n");
      return 2;
    }
  }
  measure_calls(seconds / 2);
  measure_pair("floor: signal to wake, futex", sample_futex, answer_futex, seconds / 8);
  measure_semaphore("semaphore: signal to wake, blocking", ACCRT_WAIT_BLOCK, seconds / 8);
  measure_pair("floor: signal to wake, spinning on a word", sample_spinning, answer_spinning,
               seconds / 8);
  measure_semaphore("semaphore: signal to wake, spinning", ACCRT_WAIT_SPIN, seconds / 8);
  for (uint32_t i = 0; i < row_count; ++i) {
    qsort(rows[i].samples, rows[i].count, sizeof(double), compare);
  }
  print_text();
  const int failed = path[0] != '\0' ? write_json(path) : 0;
  for (uint32_t i = 0; i < row_count; ++i)
    free(rows[i].samples);
  return failed;
}
