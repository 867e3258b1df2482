/* bench/bench_stream.c - what streams add to a driver's own calls: everything over a driver whose
 * functions do nothing.
 *
 *   bench_stream [--seconds S] [--json FILE] [BUNDLE]
 *
 * The driver is in this file; it has the functions of 0.2, takes every submission and says at once
 * that it is over. What a row takes beyond the first one, the driver's function called directly, is
 * the library's. Public headers only. Each row is measured in batches, rows in turn; reported are
 * the median of the batches' medians, the smallest of them (another program on the machine makes
 * them larger, never smaller), and what is asked for. BUNDLE must have the function `affine` of
 * tests/bundles/make.py.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "accrt/accrt.h"
#include "accrt/sys/driver.h"

#ifndef ACCRT_BENCH_BUNDLE
#define ACCRT_BENCH_BUNDLE ""
#endif
#define REPEATS 200u
#define SAMPLES 25u
#define MAX_BATCHES 1000u
#define MAX_ROWS 16u
#define ELEMENTS 64

/* ---- A driver that does nothing ---- */

struct accrt_driver {
  int unused;
};
struct accrt_driver_device {
  int unused;
};
struct accrt_driver_queue {
  atomic_ullong last;
};
struct accrt_driver_list {
  int unused;
};
struct accrt_driver_module {
  int unused;
};
struct accrt_driver_event {
  int unused;
};
struct accrt_driver_launch {
  int unused;
};

static accrt_driver_t the_driver;
static accrt_driver_device_t the_device;
static accrt_driver_list_t the_list;
static accrt_driver_module_t the_module;
static accrt_driver_event_t the_event;
static accrt_driver_launch_t the_launch;

static accrt_status_t open_driver(const accrt_driver_environment_t* environment,
                                  accrt_driver_t** out_driver) {
  (void)environment;
  *out_driver = &the_driver;
  return ACCRT_OK;
}
static void close_driver(accrt_driver_t* driver) {
  (void)driver;
}
static uint32_t device_count(accrt_driver_t* driver) {
  (void)driver;
  return 1;
}
static accrt_status_t device_open(accrt_driver_t* driver, uint32_t index,
                                  accrt_driver_device_t** out_device) {
  (void)driver;
  (void)index;
  *out_device = &the_device;
  return ACCRT_OK;
}
static void device_close(accrt_driver_device_t* device) {
  (void)device;
}
static void device_info(accrt_driver_device_t* device, accrt_device_info_t* out_info) {
  (void)device;
  out_info->flags = ACCRT_DEVICE_FLAG_HOST_MEMORY | ACCRT_DEVICE_FLAG_HOST_KERNELS;
  (void)snprintf(out_info->description, sizeof out_info->description, "does nothing");
#if defined(__x86_64__)
  (void)snprintf(out_info->arch, sizeof out_info->arch, "x86-64-v3");
#else
  (void)snprintf(out_info->arch, sizeof out_info->arch, "aarch64");
#endif
  out_info->cpu_features = ~UINT64_C(0);
  out_info->min_alignment_bytes = 256;
}
static void memory_info(accrt_driver_device_t* device, uint32_t kind,
                        accrt_driver_memory_info_t* out_info) {
  (void)device;
  out_info->supported = kind == ACCRT_MEMORY_DEVICE;
  out_info->granularity_bytes = 4096;
  out_info->default_grow_bytes = 1 << 20;
  out_info->alignment_bytes = 4096;
}
static accrt_status_t memory_allocate(accrt_driver_device_t* device, uint32_t kind,
                                      uint64_t size_bytes, accrt_driver_memory_t* out_memory) {
  (void)device;
  (void)kind;
  void* memory = aligned_alloc(4096, size_bytes);
  *out_memory = (accrt_driver_memory_t){memory, (uint64_t)(uintptr_t)memory, memory, size_bytes};
  return memory != NULL ? ACCRT_OK : ACCRT_ERROR_OUT_OF_DEVICE_MEMORY;
}
static void memory_free(accrt_driver_device_t* device, const accrt_driver_memory_t* memory) {
  (void)device;
  free(memory->handle);
}
static accrt_status_t module_load(accrt_driver_device_t* device, const accrt_driver_image_t* image,
                                  accrt_driver_module_t** out_module) {
  (void)device;
  (void)image;
  *out_module = &the_module;
  return ACCRT_OK;
}
static void module_unload(accrt_driver_module_t* module) {
  (void)module;
}
static accrt_status_t module_find(accrt_driver_module_t* module, const char* entry,
                                  const accrt_kernel_def_t* declared, void** out_module_kernel) {
  (void)entry;
  (void)declared;
  *out_module_kernel = module;
  return ACCRT_OK;
}
static accrt_status_t queue_create(accrt_driver_device_t* device, int32_t priority,
                                   accrt_driver_queue_t** out_queue) {
  (void)device;
  (void)priority;
  *out_queue = calloc(1, sizeof **out_queue);
  return *out_queue != NULL ? ACCRT_OK : ACCRT_ERROR_OUT_OF_MEMORY;
}
static void queue_destroy(accrt_driver_queue_t* queue) {
  free(queue);
}
static accrt_status_t take(accrt_driver_queue_t* queue,
                           const accrt_driver_submission_t* submission) {
  atomic_store_explicit(&queue->last, submission->number, memory_order_relaxed);
  if (submission->completion.done != NULL)
    submission->completion.done(submission->completion.user, ACCRT_OK, NULL, 1);
  return ACCRT_OK;
}
static accrt_status_t queue_enqueue(accrt_driver_queue_t* queue,
                                    const accrt_driver_command_t* command,
                                    const accrt_driver_submission_t* submission) {
  (void)command;
  return take(queue, submission);
}
static accrt_status_t queue_execute(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                    const accrt_driver_submission_t* submission) {
  (void)list;
  return take(queue, submission);
}
static accrt_status_t queue_notify(accrt_driver_queue_t* queue,
                                   accrt_driver_completion_t completion) {
  (void)queue;
  completion.done(completion.user, ACCRT_OK, NULL, 1);
  return ACCRT_OK;
}
static accrt_status_t queue_reset(accrt_driver_queue_t* queue) {
  (void)queue;
  return ACCRT_OK;
}
static accrt_status_t list_create(accrt_driver_device_t* device,
                                  const accrt_driver_list_info_t* info,
                                  accrt_driver_list_t** out_list) {
  (void)device;
  (void)info;
  *out_list = &the_list;
  return ACCRT_OK;
}
static void list_destroy(accrt_driver_list_t* list) {
  (void)list;
}
static accrt_status_t queue_progress(accrt_driver_queue_t* queue, uint64_t* out_number) {
  *out_number = atomic_load_explicit(&queue->last, memory_order_relaxed);
  return ACCRT_OK;
}
static accrt_status_t queue_wait(accrt_driver_queue_t* queue, uint64_t number, uint64_t timeout_ns,
                                 uint32_t policy) {
  (void)queue;
  (void)number;
  (void)timeout_ns;
  (void)policy;
  return ACCRT_OK;
}
static accrt_status_t event_create(accrt_driver_device_t* device, uint32_t flags,
                                   accrt_driver_event_t** out_event) {
  (void)device;
  (void)flags;
  *out_event = &the_event;
  return ACCRT_OK;
}
static void event_destroy(accrt_driver_event_t* event) {
  (void)event;
}
static accrt_status_t event_on_queue(accrt_driver_queue_t* queue, accrt_driver_event_t* event) {
  (void)queue;
  (void)event;
  return ACCRT_OK;
}
static accrt_status_t event_query(accrt_driver_event_t* event) {
  (void)event;
  return ACCRT_OK;
}
static accrt_status_t event_synchronize(accrt_driver_event_t* event, uint64_t timeout_ns,
                                        uint32_t policy) {
  (void)event;
  (void)timeout_ns;
  (void)policy;
  return ACCRT_OK;
}
static accrt_status_t event_elapsed(accrt_driver_event_t* start, accrt_driver_event_t* end,
                                    int64_t* out_elapsed_ns) {
  (void)start;
  (void)end;
  *out_elapsed_ns = 0;
  return ACCRT_OK;
}
static accrt_status_t launch_create(accrt_driver_device_t* device,
                                    const accrt_driver_kernel_t* kernel,
                                    accrt_driver_launch_t** out_launch) {
  (void)device;
  (void)kernel;
  *out_launch = &the_launch;
  return ACCRT_OK;
}
static void launch_destroy(accrt_driver_launch_t* launch) {
  (void)launch;
}
static accrt_status_t queue_launch(accrt_driver_queue_t* queue, accrt_driver_launch_t* launch,
                                   const uint32_t grid[3], const void* params, uint64_t number) {
  (void)launch;
  (void)grid;
  (void)params;
  atomic_store_explicit(&queue->last, number, memory_order_relaxed);
  return ACCRT_OK;
}

static const accrt_driver_table_t table = {
    .struct_size = (uint32_t)sizeof table,
    .abi_version = ACCRT_DRIVER_ABI_VERSION,
    .name = "host", /* so that bundles find their kernels, which nobody runs */
    .open = open_driver,
    .close = close_driver,
    .device_count = device_count,
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .memory_info = memory_info,
    .memory_allocate = memory_allocate,
    .memory_free = memory_free,
    .module_load = module_load,
    .module_unload = module_unload,
    .module_find = module_find,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .queue_enqueue = queue_enqueue,
    .queue_execute = queue_execute,
    .queue_notify = queue_notify,
    .queue_reset = queue_reset,
    .list_create = list_create,
    .list_destroy = list_destroy,
    .queue_progress = queue_progress,
    .queue_wait = queue_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_on_queue,
    .event_wait = event_on_queue,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .launch_create = launch_create,
    .launch_destroy = launch_destroy,
    .queue_launch = queue_launch,
};

static const void* query(uint32_t max_abi) {
  (void)max_abi;
  return &table;
}

/* ---- What is measured ---- */

typedef struct row {
  const char* name;
  const char* target; /* what is asked for beyond the first row, or NULL */
  accrt_status_t (*step)(uint32_t turn);
  double medians[MAX_BATCHES];
  double best;
} row_t;

static row_t rows[MAX_ROWS];
static uint32_t row_count, batch_count;
static accrt_instance_t* instance;
static accrt_device_t* device;
static accrt_stream_t *stream, *other;
static accrt_buffer_t* buffers[4];
static accrt_kernel_t* kernel;
static accrt_launch_t* launch;
static accrt_commands_t* commands;
static accrt_event_t* event;
static accrt_semaphore_t* semaphore;
static accrt_call_t* call;
static accrt_driver_queue_t* raw_queue;
static const accrt_driver_table_t* volatile raw_table = &table;
static const uint32_t grid[3] = {4, 1, 1};
static accrt_kernel_argument_t arguments[5];
static float input[ELEMENTS], output[ELEMENTS];
static uint64_t value;

static void check(accrt_status_t status, const char* what) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "bench_stream: %s: %s: %s\n", what, accrt_status_name(status), error.message);
  exit(1);
}

static accrt_status_t step_raw(uint32_t turn) {
  return raw_table->queue_launch(raw_queue, &the_launch, grid, input, turn);
}
static accrt_status_t step_prepared(uint32_t turn) {
  (void)turn;
  return accrt_stream_launch_prepared(stream, launch, grid);
}
static accrt_status_t step_prepared_params(uint32_t turn) {
  uint64_t* block = accrt_launch_params(launch);
  block[0] = turn;
  block[3] = turn;
  return accrt_stream_launch_prepared(stream, launch, grid);
}
static accrt_status_t step_prepared_set(uint32_t turn) {
  arguments[0].buffer = buffers[turn % 2 * 3];
  (void)accrt_launch_set(launch, 0, &arguments[0], sizeof arguments[0]);
  return accrt_stream_launch_prepared(stream, launch, grid);
}
static accrt_status_t step_launch(uint32_t turn) {
  arguments[0].buffer = buffers[turn % 2 * 3];
  arguments[3].value = turn;
  return accrt_stream_launch(stream, kernel, grid, arguments, 5, sizeof *arguments);
}
static accrt_status_t step_submit(uint32_t turn) {
  (void)turn;
  const accrt_binding_t bindings[3] = {{buffers[0], NULL, 0, UINT64_MAX},
                                       {buffers[1], NULL, 0, UINT64_MAX},
                                       {buffers[2], NULL, 0, UINT64_MAX}};
  return accrt_stream_submit(stream, commands, bindings, 3, sizeof *bindings);
}
static accrt_status_t step_record(uint32_t turn) {
  (void)turn;
  return accrt_stream_record(stream, event);
}
static accrt_status_t step_wait_event(uint32_t turn) {
  (void)turn;
  return accrt_stream_wait_event(other, event);
}
static accrt_status_t step_signal_wait(uint32_t turn) {
  (void)turn;
  const accrt_status_t status = accrt_stream_signal(stream, semaphore, ++value);
  return status == ACCRT_OK ? accrt_stream_wait(other, semaphore, value) : status;
}
static accrt_status_t step_wait(uint32_t turn) {
  (void)turn;
  const accrt_status_t status = accrt_stream_launch_prepared(stream, launch, grid);
  return status == ACCRT_OK
             ? accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN)
             : status;
}
static accrt_status_t step_call(uint32_t turn) {
  (void)turn;
  return accrt_call_submit(call, NULL, 0, NULL, 0);
}

static void add(const char* name, const char* target, accrt_status_t (*step)(uint32_t turn)) {
  rows[row_count++] = (row_t){.name = name, .target = target, .step = step, .best = 1e30};
}

static void make_kernel(void) {
  static const accrt_kernel_param_t params[] = {
      {"a", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ, 0, 3, 0, 8, 0},
      {"b", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ, 0, 3, 8, 8, 0},
      {"c", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_WRITE, 0, 3, 16, 8, 0},
      {"n", ACCRT_KERNEL_PARAM_SCALAR, 0, 0, 3, 24, 8, 0},
      {"m", ACCRT_KERNEL_PARAM_SCALAR, 0, 0, 2, 32, 4, 0}};
  const accrt_kernel_def_t definition = {.struct_size = (uint32_t)sizeof definition,
                                         .name = "five",
                                         .params = params,
                                         .param_count = 5,
                                         .params_size_bytes = 40,
                                         .block = {128, 1, 1}};
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  accrt_kernel_pack_t* pack;
  options.image = "// nothing";
  options.size_bytes = 11;
  options.kind = ACCRT_MODULE_PTX;
  options.kernels = &definition;
  options.kernel_count = 1;
  options.kernel_size_bytes = (uint32_t)sizeof definition;
  check(accrt_kernel_module_load(device, &options, &pack), "module_load");
  check(accrt_kernel_pack_find(pack, "five", &kernel), "pack_find");
  check(accrt_launch_create(device, kernel, &launch), "launch_create");
  for (uint32_t i = 0; i < 5; ++i) {
    arguments[i] = (accrt_kernel_argument_t){.kind = i < 3 ? ACCRT_KERNEL_PARAM_BUFFER
                                                           : ACCRT_KERNEL_PARAM_SCALAR,
                                             .binding = ACCRT_BINDING_NONE,
                                             .buffer = i < 3 ? buffers[i] : NULL,
                                             .size_bytes = i < 3 ? 1024 : 0};
    check(accrt_launch_set(launch, i, &arguments[i], sizeof arguments[i]), "launch_set");
  }
}

static void make_commands(void) {
  check(accrt_commands_create(device, 3, &commands), "commands_create");
  accrt_kernel_argument_t bound[5];
  memcpy(bound, arguments, sizeof bound);
  for (uint32_t i = 0; i < 3; ++i) {
    bound[i].binding = i;
    bound[i].buffer = NULL;
  }
  check(accrt_commands_dispatch(commands, kernel, grid, bound, 5, sizeof *bound, NULL, NULL),
        "commands_dispatch");
  check(accrt_commands_finalize(commands), "commands_finalize");
}

static void set_argument(uint32_t argument, float* data) {
  const int64_t shape[1] = {ELEMENTS};
  const accrt_tensor_t tensor = {
      .data = data, .dtype = ACCRT_DTYPE_F32, .rank = 1, .shape = shape, .strides = NULL};
  check(accrt_call_set_tensor(call, argument, &tensor), "call_set_tensor");
}

static void make_call(const char* path) {
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
  check(accrt_bundle_open_path(instance, path, NULL, &bundle), "bundle_open");
  check(accrt_program_create(device, bundle, NULL, &program), "program_create");
  check(accrt_session_create(program, NULL, &session), "session_create");
  check(accrt_call_create(session, "affine", &call), "call_create");
  set_argument(0, input);
  set_argument(1, output);
}

static void make_all(const char* bundle) {
  accrt_instance_options_t options = ACCRT_INSTANCE_OPTIONS_INIT;
  accrt_pool_t* pool;
  options.flags = ACCRT_INSTANCE_FLAG_NO_DRIVERS;
  options.host_code_policy = ACCRT_HOST_CODE_ALL;
  check(accrt_instance_create(&options, &instance), "instance_create");
  check(accrt_instance_register_driver(instance, query), "register_driver");
  check(accrt_instance_device(instance, 0, &device), "device");
  check(accrt_stream_create(device, NULL, &stream), "stream_create");
  check(accrt_stream_create(device, NULL, &other), "stream_create");
  check(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool), "device_pool");
  for (uint32_t i = 0; i < 4; ++i)
    check(accrt_buffer_create(pool, 1024, NULL, &buffers[i]), "buffer_create");
  check(accrt_event_create(device, 0, &event), "event_create");
  check(accrt_semaphore_create(instance, 0, &semaphore), "semaphore_create");
  check(queue_create(&the_device, 0, &raw_queue), "queue_create");
  make_kernel();
  make_commands();
  add("the driver's function, called directly", NULL, step_raw);
  add("prepared launch", "+ 50 ns", step_prepared);
  add("prepared launch, block written each time", "+ 50 ns", step_prepared_params);
  add("prepared launch, a buffer set each time", NULL, step_prepared_set);
  add("launch of 5 arguments, 3 of them buffers", "+ 130 ns", step_launch);
  add("submit of a list, 3 bindings", "+ 75 ns", step_submit);
  add("record", "+ 50 ns", step_record);
  add("wait for an event", "+ 50 ns", step_wait_event);
  add("signal here, wait on another stream", NULL, step_signal_wait);
  add("prepared launch and synchronize", NULL, step_wait);
  if (bundle[0] != '\0') {
    make_call(bundle);
    add("call_submit, arguments unchanged", "+ 60 ns", step_call);
  }
}

/* ---- Measuring and telling ---- */

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median_of_batch(row_t* row) {
  double samples[SAMPLES];
  for (uint32_t i = 0; i < SAMPLES; ++i) {
    const uint64_t begin = now_ns();
    for (uint32_t k = 0; k < REPEATS; ++k) {
      if (row->step(k) != ACCRT_OK)
        check(ACCRT_ERROR_INTERNAL, row->name);
    }
    samples[i] = (double)(now_ns() - begin) / REPEATS;
  }
  qsort(samples, SAMPLES, sizeof *samples, compare);
  return samples[SAMPLES / 2];
}

static void measure(double seconds) {
  const uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
  for (uint32_t round = 0; round < MAX_BATCHES && (round < 10 || now_ns() < end); ++round) {
    for (uint32_t i = 0; i < row_count; ++i) {
      const double median = median_of_batch(&rows[i]);
      if (round < 2) /* warm */
        continue;
      rows[i].medians[round - 2] = median;
      if (median < rows[i].best)
        rows[i].best = median;
    }
    if (round >= 2)
      batch_count = round - 1;
  }
  for (uint32_t i = 0; i < row_count; ++i)
    qsort(rows[i].medians, batch_count, sizeof(double), compare);
}

static void print_text(void) {
  printf("%-44s %10s %10s %10s  %s\n", "over a driver that does nothing", "median", "least median",
         "beyond", "asked for");
  for (uint32_t i = 0; i < row_count; ++i) {
    const row_t* row = &rows[i];
    printf("%-44s %8.1fns %10.1fns %8.1fns  %s\n", row->name, row->medians[batch_count / 2],
           row->best, row->best - rows[0].best, row->target == NULL ? "" : row->target);
  }
}

static int write_json(const char* path) {
  FILE* file = fopen(path, "w");
  if (file == NULL) {
    fprintf(stderr, "bench_stream: cannot write %s\n", path);
    return 1;
  }
  fprintf(file, "{\"unit\": \"ns\", \"results\": [\n");
  for (uint32_t i = 0; i < row_count; ++i) {
    const row_t* row = &rows[i];
    fprintf(file, " {\"name\": \"%s\", \"median\": %.1f, \"min\": %.1f, \"beyond\": %.1f}%s\n",
            row->name, row->medians[batch_count / 2], row->best, row->best - rows[0].best,
            i + 1 < row_count ? "," : "");
  }
  fprintf(file, "]}\n");
  return fclose(file) != 0;
}

int main(int count, char** texts) {
  double seconds = 3;
  const char* bundle = ACCRT_BENCH_BUNDLE;
  char path[4096] = "";
  if (getenv("ACCRT_BENCH_RESULTS") != NULL)
    snprintf(path, sizeof path, "%s/stream.json", getenv("ACCRT_BENCH_RESULTS"));
  for (int i = 1; i < count; ++i) {
    if (strcmp(texts[i], "--seconds") == 0 && i + 1 < count) {
      seconds = strtod(texts[++i], NULL);
    } else if (strcmp(texts[i], "--json") == 0 && i + 1 < count) {
      snprintf(path, sizeof path, "%s", texts[++i]);
    } else if (texts[i][0] != '-') {
      bundle = texts[i];
    } else {
      fprintf(stderr, "usage: bench_stream [--seconds S] [--json FILE] [BUNDLE]\n");
      return 2;
    }
  }
  make_all(bundle);
  measure(seconds);
  print_text();
  return path[0] != '\0' ? write_json(path) : 0;
}
