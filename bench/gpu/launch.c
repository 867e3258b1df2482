/* bench/gpu/launch.c - what a launch costs: cuLaunchKernel, accrt_stream_launch, a prepared launch;
 * submitted, sustained to completion, one kernel and eight in turn, with a wait after each, from
 * four threads.
 *
 *   gpu_launch [--device N] [--rounds R]
 *
 * Every launch of a batch has pointers and a scalar of its own, and every result is checked after
 * the batch. Text to the terminal, JSON to gpu_launch.json in $ACCRT_BENCH_RESULTS. Public headers
 * and the raw driver alone. */
#include "gpu.h"
#include "kernels.h"

#include <pthread.h>

#define BATCH 1000
#define KERNELS 8
#define ELEMENTS 32
#define VECTOR_BYTES (ELEMENTS * sizeof(float))
#define WAITS 200
#define MAX_THREADS 4

/* The parameter block of step0 .. step7. */
typedef struct step_params {
  uint64_t out, x, y;
  float scale;
  int32_t n;
} step_params_t;

static const accrt_kernel_param_t step_layout[5] = {
    ACCRT_KERNEL_PARAM(step_params_t, out, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(step_params_t, x, BUFFER, READ),
    ACCRT_KERNEL_PARAM(step_params_t, y, BUFFER, READ),
    ACCRT_KERNEL_PARAM(step_params_t, scale, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(step_params_t, n, SCALAR, NONE)};
static const char* const step_names[KERNELS] = {"step0", "step1", "step2", "step3",
                                                "step4", "step5", "step6", "step7"};

/* Everything that one thread launches with. */
typedef struct launcher {
  CUstream raw_stream;
  accrt_stream_t* stream;
  CUdeviceptr memory; /* BATCH results, then the same of x and of y */
  accrt_buffer_t* buffer;
  accrt_launch_t* launches[KERNELS];
} launcher_t;

static CUfunction raw_kernels[KERNELS];
static accrt_kernel_t* kernels[KERNELS];
static accrt_device_t* device;
static launcher_t launchers[MAX_THREADS];
static float host_out[BATCH * ELEMENTS], host_x[BATCH * ELEMENTS], host_y[BATCH * ELEMENTS];
static int round_number;

static uint64_t out_at(const launcher_t* launcher, int i) {
  return launcher->memory + (uint64_t)i * VECTOR_BYTES;
}
static uint64_t x_at(const launcher_t* launcher, int i) {
  return launcher->memory + (uint64_t)(BATCH + i) * VECTOR_BYTES;
}
static uint64_t y_at(const launcher_t* launcher, int i) {
  return launcher->memory + (uint64_t)(2 * BATCH + (i * 7) % BATCH) * VECTOR_BYTES;
}
static float scale_at(int i) {
  return (float)(round_number % 97) + (float)i * 0.25f;
}

/* ---- Set-up ---- */

static void load_kernels(void) {
  CUmodule module;
  RAW_CALL(cuModuleLoadData, &module, bench_ptx);
  accrt_kernel_def_t definitions[KERNELS];
  memset(definitions, 0, sizeof definitions);
  for (int i = 0; i < KERNELS; ++i) {
    RAW_CALL(cuModuleGetFunction, &raw_kernels[i], module, step_names[i]);
    definitions[i].struct_size = (uint32_t)sizeof definitions[i];
    definitions[i].name = step_names[i];
    definitions[i].params = step_layout;
    definitions[i].param_count = 5;
    definitions[i].params_size_bytes = (uint32_t)sizeof(step_params_t);
    definitions[i].block[0] = ELEMENTS;
    definitions[i].block[1] = definitions[i].block[2] = 1;
  }
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  options.kind = ACCRT_MODULE_PTX;
  options.image = bench_ptx;
  options.size_bytes = sizeof bench_ptx;
  options.name = "bench";
  options.kernels = definitions;
  options.kernel_count = KERNELS;
  options.kernel_size_bytes = (uint32_t)sizeof definitions[0];
  accrt_kernel_pack_t* pack;
  CHECK(accrt_kernel_module_load(device, &options, &pack));
  for (int i = 0; i < KERNELS; ++i)
    CHECK(accrt_kernel_pack_find(pack, step_names[i], &kernels[i]));
}

static void fill_inputs(launcher_t* launcher) {
  for (int i = 0; i < BATCH * ELEMENTS; ++i) {
    host_x[i] = (float)(i % 101) - 50.0f;
    host_y[i] = (float)(i % 89) * 0.5f;
  }
  RAW_CALL(cuMemcpyHtoD, launcher->memory + sizeof host_out, host_x, sizeof host_x);
  RAW_CALL(cuMemcpyHtoD, launcher->memory + 2 * sizeof host_out, host_y, sizeof host_y);
}

static void open_launcher(launcher_t* launcher) {
  accrt_pool_t* pool;
  RAW_CALL(cuStreamCreate, &launcher->raw_stream, CU_STREAM_NON_BLOCKING);
  CHECK(accrt_stream_create(device, NULL, &launcher->stream));
  CHECK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  CHECK(accrt_buffer_create(pool, 3 * sizeof host_out, NULL, &launcher->buffer));
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  CHECK(accrt_buffer_info(launcher->buffer, &info));
  launcher->memory = info.device_address;
  for (int i = 0; i < KERNELS; ++i)
    CHECK(accrt_launch_create(device, kernels[i], &launcher->launches[i]));
  fill_inputs(launcher);
}

/* ---- One launch, by each way ---- */

typedef void (*launch_fn_t)(launcher_t* launcher, int kernel, int i);

static void launch_raw(launcher_t* launcher, int kernel, int i) {
  CUdeviceptr out = out_at(launcher, i), x = x_at(launcher, i), y = y_at(launcher, i);
  float scale = scale_at(i);
  int n = ELEMENTS;
  void* arguments[5] = {&out, &x, &y, &scale, &n};
  RAW_CALL(cuLaunchKernel, raw_kernels[kernel], 1, 1, 1, ELEMENTS, 1, 1, 0, launcher->raw_stream,
           arguments, NULL);
}

static const uint32_t one[3] = {1, 1, 1};

static void memory_argument(accrt_kernel_argument_t* argument, const launcher_t* launcher,
                            uint64_t address) {
  argument->kind = ACCRT_KERNEL_PARAM_BUFFER;
  argument->binding = ACCRT_BINDING_NONE;
  argument->buffer = launcher->buffer;
  argument->offset_bytes = address - launcher->memory;
  argument->size_bytes = VECTOR_BYTES;
}

static void scalar_argument(accrt_kernel_argument_t* argument, uint32_t bits) {
  argument->kind = ACCRT_KERNEL_PARAM_SCALAR;
  argument->binding = ACCRT_BINDING_NONE;
  argument->value = bits;
}

static void fill_arguments(accrt_kernel_argument_t arguments[5], const launcher_t* launcher,
                           int i) {
  const float scale = scale_at(i);
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  memset(arguments, 0, 5 * sizeof *arguments);
  memory_argument(&arguments[0], launcher, out_at(launcher, i));
  memory_argument(&arguments[1], launcher, x_at(launcher, i));
  memory_argument(&arguments[2], launcher, y_at(launcher, i));
  scalar_argument(&arguments[3], bits);
  scalar_argument(&arguments[4], ELEMENTS);
}

static void launch_unprepared(launcher_t* launcher, int kernel, int i) {
  accrt_kernel_argument_t arguments[5];
  fill_arguments(arguments, launcher, i);
  CHECK(accrt_stream_launch(launcher->stream, kernels[kernel], one, arguments, 5,
                            sizeof arguments[0]));
}

/* The block is written as a careful caller writes it: addresses directly. */
static void launch_block(launcher_t* launcher, int kernel, int i) {
  step_params_t* params = accrt_launch_params(launcher->launches[kernel]);
  *params = (step_params_t){out_at(launcher, i), x_at(launcher, i), y_at(launcher, i), scale_at(i),
                            ELEMENTS};
  CHECK(accrt_stream_launch_prepared(launcher->stream, launcher->launches[kernel], one));
}

static void launch_set(launcher_t* launcher, int kernel, int i) {
  accrt_kernel_argument_t arguments[5];
  fill_arguments(arguments, launcher, i);
  for (uint32_t a = 0; a < 5; ++a)
    CHECK(accrt_launch_set(launcher->launches[kernel], a, &arguments[a], sizeof arguments[0]));
  CHECK(accrt_stream_launch_prepared(launcher->stream, launcher->launches[kernel], one));
}

/* ---- Batches ---- */

static void finish(launcher_t* launcher) {
  CHECK(accrt_stream_synchronize(launcher->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN));
  RAW_CALL(cuStreamSynchronize, launcher->raw_stream);
}

static void verify(launcher_t* launcher, const char* name) {
  RAW_CALL(cuMemcpyDtoH, host_out, launcher->memory, sizeof host_out);
  for (int i = 0; i < BATCH; ++i) {
    for (int e = 0; e < ELEMENTS; ++e) {
      const float x = host_x[i * ELEMENTS + e], y = host_y[((i * 7) % BATCH) * ELEMENTS + e];
      const float expected = fmaf(x, scale_at(i), y), plain = x * scale_at(i) + y;
      const float got = host_out[i * ELEMENTS + e];
      if (got != expected && got != plain) {
        fprintf(stderr, "%s: launch %d, element %d: got %g, expected %g\n", name, i, e, got,
                expected);
        exit(1);
      }
    }
  }
}

typedef struct batch {
  const char* name;
  launch_fn_t launch;
  int kernel_count;
  int submit_row;
  int sustained_row;
} batch_t;

static void run_batch(table_t* table, const batch_t* batch) {
  launcher_t* launcher = &launchers[0];
  ++round_number;
  finish(launcher);
  const double begin = now_ns();
  for (int i = 0; i < BATCH; ++i)
    batch->launch(launcher, i % batch->kernel_count, i);
  const double submitted = now_ns();
  finish(launcher);
  const double end = now_ns();
  add_sample(table, batch->submit_row, (submitted - begin) / BATCH);
  add_sample(table, batch->sustained_row, (end - begin) / BATCH);
  verify(launcher, batch->name);
}

/* ---- A wait after each launch ---- */

typedef void (*wait_fn_t)(launcher_t* launcher);
static CUevent spin_event, blocking_event;

static void wait_raw_synchronize(launcher_t* launcher) {
  RAW_CALL(cuStreamSynchronize, launcher->raw_stream);
}
static void wait_raw_spin(launcher_t* launcher) {
  RAW_CALL(cuEventRecord, spin_event, launcher->raw_stream);
  while (RAW(cuEventQuery)(spin_event) == CUDA_ERROR_NOT_READY)
    ;
}
static void wait_raw_block(launcher_t* launcher) {
  RAW_CALL(cuEventRecord, blocking_event, launcher->raw_stream);
  RAW_CALL(cuEventSynchronize, blocking_event);
}
static void wait_spin(launcher_t* launcher) {
  CHECK(accrt_stream_synchronize(launcher->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN));
}
static void wait_block(launcher_t* launcher) {
  CHECK(accrt_stream_synchronize(launcher->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK));
}

static void run_waits(table_t* table, int row, launch_fn_t launch, wait_fn_t wait) {
  ++round_number;
  const double begin = now_ns();
  for (int i = 0; i < WAITS; ++i) {
    launch(&launchers[0], 0, i);
    wait(&launchers[0]);
  }
  add_sample(table, row, (now_ns() - begin) / WAITS);
}

/* ---- Threads ---- */

typedef struct worker {
  launcher_t* launcher;
  launch_fn_t launch;
  pthread_barrier_t* start;
} worker_t;

static void* work(void* argument) {
  worker_t* worker = argument;
  RAW_CALL(cuCtxSetCurrent, raw.context);
  pthread_barrier_wait(worker->start);
  for (int i = 0; i < BATCH; ++i)
    worker->launch(worker->launcher, 0, i);
  finish(worker->launcher);
  return NULL;
}

/* Launches a second, all threads together, in thousands. */
static void run_threads(table_t* table, int row, launch_fn_t launch, int count) {
  pthread_t threads[MAX_THREADS];
  worker_t workers[MAX_THREADS];
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, (unsigned)count + 1);
  ++round_number;
  for (int i = 0; i < count; ++i) {
    workers[i] = (worker_t){&launchers[i], launch, &start};
    pthread_create(&threads[i], NULL, work, &workers[i]);
  }
  pthread_barrier_wait(&start);
  const double begin = now_ns();
  for (int i = 0; i < count; ++i)
    pthread_join(threads[i], NULL);
  add_sample(table, row, (double)count * BATCH / ((now_ns() - begin) * 1e-9) / 1000.0);
  pthread_barrier_destroy(&start);
  for (int i = 0; i < count; ++i)
    verify(&launchers[i], "threads");
}

/* ---- Tables ---- */

static table_t table = {.title = "Launches of a kernel with 5 arguments"};

static void add_batches(batch_t* batches, int count) {
  for (int i = 0; i < count; ++i) {
    char name[96];
    const int first = batches[i].kernel_count == 1 ? 0 : 4;
    const int against = i == first ? -1 : batches[first].submit_row;
    const int against_end = i == first ? -1 : batches[first].sustained_row;
    const double limits[8][2] = {{0, 0}, {1.05, 0}, {0.62, 0.62}, {0, 0},
                                 {0, 0}, {0, 0},    {0.66, 0.74}, {0, 0}};
    snprintf(name, sizeof name, "%s, %s: submit", batches[i].name,
             batches[i].kernel_count == 1 ? "one kernel" : "8 in turn");
    batches[i].submit_row = add_row(&table, name, "ns", against, limits[i][0]);
    snprintf(name, sizeof name, "%s, %s: to completion", batches[i].name,
             batches[i].kernel_count == 1 ? "one kernel" : "8 in turn");
    batches[i].sustained_row = add_row(&table, name, "ns", against_end, limits[i][1]);
  }
}

int main(int argc, char** argv) {
  int index = 0, rounds = 21;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--device") == 0)
      index = atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--rounds") == 0)
      rounds = atoi(argv[i + 1]);
    else
      die(argv[i], "not known: --device N --rounds R");
  }
  raw_open(index);
  accrt_instance_t* instance;
  char name[32];
  snprintf(name, sizeof name, "cuda:%d", index);
  CHECK(accrt_instance_create(NULL, &instance));
  CHECK(accrt_instance_device_by_name(instance, name, &device));
  load_kernels();
  for (int i = 0; i < MAX_THREADS; ++i)
    open_launcher(&launchers[i]);
  RAW_CALL(cuEventCreate, &spin_event, CU_EVENT_DISABLE_TIMING);
  RAW_CALL(cuEventCreate, &blocking_event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);

  batch_t batches[8] = {{"cuLaunchKernel", launch_raw, 1, 0, 0},
                        {"accrt_stream_launch", launch_unprepared, 1, 0, 0},
                        {"prepared, block written", launch_block, 1, 0, 0},
                        {"prepared, accrt_launch_set", launch_set, 1, 0, 0},
                        {"cuLaunchKernel", launch_raw, KERNELS, 0, 0},
                        {"accrt_stream_launch", launch_unprepared, KERNELS, 0, 0},
                        {"prepared, block written", launch_block, KERNELS, 0, 0},
                        {"prepared, accrt_launch_set", launch_set, KERNELS, 0, 0}};
  add_batches(batches, 8);
  const int sync = add_row(&table, "cuLaunchKernel + cuStreamSynchronize", "ns", -1, 0);
  const int raw_spin =
      add_row(&table, "cuLaunchKernel + cuEventRecord + cuEventQuery in a loop", "ns", -1, 0);
  const int spin =
      add_row(&table, "prepared + accrt_stream_synchronize, spin (against cuStreamSynchronize)",
              "ns", sync, 0.80);
  const int spin2 = add_row(&table, "the same, against the event loop", "ns", raw_spin, 0.80);
  const int raw_block =
      add_row(&table, "cuLaunchKernel + cuEventSynchronize, blocking", "ns", -1, 0);
  const int block =
      add_row(&table, "prepared + accrt_stream_synchronize, block", "ns", raw_block, 1.0);
  const int raw_threads =
      add_row(&table, "4 threads, cuLaunchKernel, thousands a second", "k/s", -1, 0);
  const int threads =
      add_row(&table, "4 threads, prepared, thousands a second", "k/s", raw_threads, 1.0);
  table.rows[threads].more_is_better = 1;

  for (int i = 0; i < rounds + 2; ++i) {
    for (int b = 0; b < 8; ++b)
      run_batch(&table, &batches[i % 2 == 0 ? b : 7 - b]);
    run_waits(&table, sync, launch_raw, wait_raw_synchronize);
    run_waits(&table, raw_spin, launch_raw, wait_raw_spin);
    run_waits(&table, spin, launch_block, wait_spin);
    run_waits(&table, spin2, launch_block, wait_spin);
    run_waits(&table, raw_block, launch_raw, wait_raw_block);
    run_waits(&table, block, launch_block, wait_block);
    run_threads(&table, raw_threads, launch_raw, MAX_THREADS);
    run_threads(&table, threads, launch_block, MAX_THREADS);
    /* The first two rounds warm up. */
    for (int r = 0; i < 2 && r < table.count; ++r)
      table.rows[r].count = 0;
  }
  show_table(&table);
  save_table(&table, "gpu_launch");
  return 0;
}
