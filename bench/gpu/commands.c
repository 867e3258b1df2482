/* bench/gpu/commands.c - what submitting recorded commands costs beside cuGraphLaunch of the same
 * kernels, with arguments unchanged, one changed, and all changed; and the time to completion.
 *
 *   gpu_commands [--device N] [--rounds R]
 *
 * Results are checked after every submission that changed something. Text to the terminal, JSON to
 * gpu_commands.json in $ACCRT_BENCH_RESULTS. Public headers and the raw driver alone. */
#include "gpu.h"
#include "kernels.h"

#define ELEMENTS 32
#define VECTOR_BYTES (ELEMENTS * sizeof(float))
#define MAX_NODES 1000
#define PLACES 24 /* where results may go: more than an implementation may keep ready */
#define REPEATS 50

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

static accrt_device_t* device;
static accrt_stream_t* stream;
static accrt_buffer_t* buffer;
static accrt_kernel_t* kernel;
static CUdeviceptr memory; /* PLACES x MAX_NODES results, then x, then y */
static CUfunction raw_kernel;
static CUstream raw_stream;
static float host[MAX_NODES * ELEMENTS];
#define RESULT_BYTES ((uint64_t)MAX_NODES * VECTOR_BYTES)

/* One size: a raw graph and two recorded lists, one with a binding for all results, one with a
 * binding for each. */
typedef struct size_case {
  int nodes;
  CUgraphExec exec;
  accrt_commands_t* shared;
  accrt_commands_t* apart;
  accrt_binding_t* apart_bindings;
  int rows[10];
} size_case_t;

/* ---- Set-up ---- */

static void load(void) {
  CUmodule module;
  RAW_CALL(cuModuleLoadData, &module, bench_ptx);
  RAW_CALL(cuModuleGetFunction, &raw_kernel, module, "step0");
  accrt_kernel_def_t definition;
  memset(&definition, 0, sizeof definition);
  definition.struct_size = (uint32_t)sizeof definition;
  definition.name = "step0";
  definition.params = step_layout;
  definition.param_count = 5;
  definition.params_size_bytes = (uint32_t)sizeof(step_params_t);
  definition.block[0] = ELEMENTS;
  definition.block[1] = definition.block[2] = 1;
  accrt_module_options_t options = ACCRT_MODULE_OPTIONS_INIT;
  options.kind = ACCRT_MODULE_PTX;
  options.image = bench_ptx;
  options.size_bytes = sizeof bench_ptx;
  options.kernels = &definition;
  options.kernel_count = 1;
  options.kernel_size_bytes = (uint32_t)sizeof definition;
  accrt_kernel_pack_t* pack;
  CHECK(accrt_kernel_module_load(device, &options, &pack));
  CHECK(accrt_kernel_pack_find(pack, "step0", &kernel));
}

static void open_memory(void) {
  accrt_pool_t* pool;
  CHECK(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  CHECK(accrt_buffer_create(pool, (PLACES + 2) * RESULT_BYTES, NULL, &buffer));
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  CHECK(accrt_buffer_info(buffer, &info));
  memory = info.device_address;
  for (int i = 0; i < MAX_NODES * ELEMENTS; ++i)
    host[i] = (float)(i % 1009);
  RAW_CALL(cuMemcpyHtoD, memory + PLACES * RESULT_BYTES, host, RESULT_BYTES);
  RAW_CALL(cuMemcpyHtoD, memory + (PLACES + 1) * RESULT_BYTES, host, RESULT_BYTES);
}

static CUgraphExec make_graph(int nodes) {
  CUgraph graph;
  CUgraphNode previous = NULL, node;
  CUgraphExec exec;
  RAW_CALL(cuGraphCreate, &graph, 0);
  for (int i = 0; i < nodes; ++i) {
    CUdeviceptr out = memory + (uint64_t)i * VECTOR_BYTES;
    CUdeviceptr x = memory + PLACES * RESULT_BYTES + (uint64_t)i * VECTOR_BYTES,
                y = x + RESULT_BYTES;
    float scale = 2.0f;
    int n = ELEMENTS;
    void* arguments[5] = {&out, &x, &y, &scale, &n};
    CUDA_KERNEL_NODE_PARAMS params = {.func = raw_kernel,
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = ELEMENTS,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = arguments};
    RAW_CALL(cuGraphAddKernelNode, &node, graph, i > 0 ? &previous : NULL, i > 0 ? 1 : 0, &params);
    previous = node;
  }
  RAW_CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
  RAW_CALL(cuGraphUpload, exec, raw_stream);
  return exec;
}

static void memory_argument(accrt_kernel_argument_t* argument, uint32_t binding, uint64_t offset) {
  argument->kind = ACCRT_KERNEL_PARAM_BUFFER;
  argument->binding = binding;
  argument->buffer = binding == ACCRT_BINDING_NONE ? buffer : NULL;
  argument->offset_bytes = offset;
  argument->size_bytes = VECTOR_BYTES;
}

static void scalar_argument(accrt_kernel_argument_t* argument, uint32_t bits) {
  argument->kind = ACCRT_KERNEL_PARAM_SCALAR;
  argument->binding = ACCRT_BINDING_NONE;
  argument->value = bits;
}

static accrt_commands_t* record(int nodes, int apart) {
  static const uint32_t grid[3] = {1, 1, 1};
  accrt_commands_t* commands;
  const float scale = 2.0f;
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  CHECK(accrt_commands_create(device, apart ? (uint32_t)nodes : 1u, &commands));
  for (int i = 0; i < nodes; ++i) {
    accrt_kernel_argument_t arguments[5];
    memset(arguments, 0, sizeof arguments);
    const uint64_t offset = (uint64_t)i * VECTOR_BYTES;
    memory_argument(&arguments[0], apart ? (uint32_t)i : 0u, apart ? 0 : offset);
    memory_argument(&arguments[1], ACCRT_BINDING_NONE, PLACES * RESULT_BYTES + offset);
    memory_argument(&arguments[2], ACCRT_BINDING_NONE, (PLACES + 1) * RESULT_BYTES + offset);
    scalar_argument(&arguments[3], bits);
    scalar_argument(&arguments[4], ELEMENTS);
    CHECK(accrt_commands_dispatch(commands, kernel, grid, arguments, 5, sizeof arguments[0], NULL,
                                  NULL));
  }
  CHECK(accrt_commands_finalize(commands));
  return commands;
}

/* ---- Submitting ---- */

static accrt_binding_t place(int place_index, uint64_t offset, uint64_t size_bytes) {
  return (accrt_binding_t){buffer, NULL, (uint64_t)place_index * RESULT_BYTES + offset, size_bytes};
}

static void finish(void) {
  CHECK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN));
  RAW_CALL(cuStreamSynchronize, raw_stream);
}

static void verify(int place_index, int first, int count, const char* what) {
  const uint64_t from =
      memory + (uint64_t)place_index * RESULT_BYTES + (uint64_t)first * VECTOR_BYTES;
  RAW_CALL(cuMemcpyDtoH, host, from, (size_t)count * VECTOR_BYTES);
  for (int i = 0; i < count * ELEMENTS; ++i) {
    const float x = (float)((first * ELEMENTS + i) % 1009);
    if (host[i] != 3.0f * x) {
      fprintf(stderr, "%s: element %d: got %g, expected %g\n", what, i, host[i], 3.0f * x);
      exit(1);
    }
  }
}

static void wipe(int place_index) {
  memset(host, 0xff, sizeof host);
  RAW_CALL(cuMemcpyHtoD, memory + (uint64_t)place_index * RESULT_BYTES, host, RESULT_BYTES);
}

/* Median of REPEATS submissions, each begun on an idle stream: submit and completion. */
static void run_raw(table_t* table, const size_case_t* test) {
  double submit = 0, done = 0;
  for (int i = 0; i < REPEATS; ++i) {
    const double begin = now_ns();
    RAW_CALL(cuGraphLaunch, test->exec, raw_stream);
    submit += now_ns() - begin;
    RAW_CALL(cuStreamSynchronize, raw_stream);
    done += now_ns() - begin;
  }
  add_sample(table, test->rows[0], submit / REPEATS);
  add_sample(table, test->rows[1], done / REPEATS);
}

static void run_unchanged(table_t* table, const size_case_t* test) {
  const accrt_binding_t binding = place(0, 0, (uint64_t)test->nodes * VECTOR_BYTES);
  double submit = 0, done = 0;
  wipe(0);
  CHECK(accrt_stream_submit(stream, test->shared, &binding, 1, sizeof binding));
  finish();
  for (int i = 0; i < REPEATS; ++i) {
    const double begin = now_ns();
    CHECK(accrt_stream_submit(stream, test->shared, &binding, 1, sizeof binding));
    submit += now_ns() - begin;
    CHECK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN));
    done += now_ns() - begin;
  }
  add_sample(table, test->rows[2], submit / REPEATS);
  add_sample(table, test->rows[3], done / REPEATS);
  verify(0, 0, test->nodes, "unchanged");
}

static void run_all_changed(table_t* table, const size_case_t* test) {
  double submit = 0;
  for (int p = 0; p < PLACES; ++p)
    wipe(p);
  for (int i = 0; i < REPEATS; ++i) {
    const accrt_binding_t binding = place(i % PLACES, 0, (uint64_t)test->nodes * VECTOR_BYTES);
    const double begin = now_ns();
    CHECK(accrt_stream_submit(stream, test->shared, &binding, 1, sizeof binding));
    submit += now_ns() - begin;
    CHECK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN));
  }
  add_sample(table, test->rows[4], submit / REPEATS);
  for (int p = 0; p < PLACES; ++p)
    verify(p, 0, test->nodes, "all changed");
}

static void run_one_changed(table_t* table, const size_case_t* test) {
  const int node = test->nodes / 2;
  double submit = 0;
  for (int p = 0; p < PLACES; ++p)
    wipe(p);
  for (int i = 0; i < REPEATS; ++i) {
    test->apart_bindings[node] = place(i % PLACES, (uint64_t)node * VECTOR_BYTES, VECTOR_BYTES);
    const double begin = now_ns();
    CHECK(accrt_stream_submit(stream, test->apart, test->apart_bindings, (uint32_t)test->nodes,
                              sizeof(accrt_binding_t)));
    submit += now_ns() - begin;
    CHECK(accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_SPIN));
  }
  add_sample(table, test->rows[5], submit / REPEATS);
  for (int p = 0; p < PLACES; ++p)
    verify(p, node, 1, "one changed");
}

/* ---- Tables ---- */

static table_t table = {.title = "Recorded commands beside cuGraphLaunch of the same kernels"};

static void open_case(size_case_t* test, int nodes) {
  char name[96];
  test->nodes = nodes;
  test->exec = make_graph(nodes);
  test->shared = record(nodes, 0);
  test->apart = record(nodes, 1);
  test->apart_bindings = calloc((size_t)nodes, sizeof(accrt_binding_t));
  if (test->apart_bindings == NULL)
    die("memory", "none left");
  for (int i = 0; i < nodes; ++i)
    test->apart_bindings[i] = place(0, (uint64_t)i * VECTOR_BYTES, VECTOR_BYTES);
  snprintf(name, sizeof name, "%d kernels: cuGraphLaunch, submit", nodes);
  test->rows[0] = add_row(&table, name, "ns", -1, 0);
  snprintf(name, sizeof name, "%d kernels: cuGraphLaunch + cuStreamSynchronize", nodes);
  test->rows[1] = add_row(&table, name, "ns", -1, 0);
  snprintf(name, sizeof name, "%d kernels: accrt_stream_submit, unchanged", nodes);
  test->rows[2] = add_row(&table, name, "ns", test->rows[0], 1.05);
  snprintf(name, sizeof name, "%d kernels: the same + accrt_stream_synchronize", nodes);
  test->rows[3] = add_row(&table, name, "ns", test->rows[1], 1.05);
  snprintf(name, sizeof name, "%d kernels: accrt_stream_submit, each kernel's output changed",
           nodes);
  test->rows[4] = add_row(&table, name, "ns", test->rows[0], 0);
  snprintf(name, sizeof name, "%d kernels, %d bindings: accrt_stream_submit, one changed", nodes,
           nodes);
  test->rows[5] = add_row(&table, name, "ns", test->rows[0], 0);
}

/* What the patched nodes may cost: 1.05 x the raw launch + 150 ns for each. */
static void report_patches(const size_case_t* test) {
  const double base = quantile(&table.rows[test->rows[0]], 0.5) * 1.05;
  const double all = quantile(&table.rows[test->rows[4]], 0.5),
               one = quantile(&table.rows[test->rows[5]], 0.5);
  printf("  %4d kernels: %7.1f ns for each of %d patched nodes (asked: 150); one patched: %7.1f ns "
         "more than 1.05 x raw\n",
         test->nodes, (all - base) / test->nodes, test->nodes, one - base);
}

int main(int argc, char** argv) {
  static const int sizes[3] = {1, 100, 1000};
  int index = 0, rounds = 15;
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
  CHECK(accrt_stream_create(device, NULL, &stream));
  RAW_CALL(cuStreamCreate, &raw_stream, CU_STREAM_NON_BLOCKING);
  load();
  open_memory();
  size_case_t cases[3];
  for (int i = 0; i < 3; ++i)
    open_case(&cases[i], sizes[i]);
  for (int i = 0; i < rounds + 2; ++i) {
    for (int c = 0; c < 3; ++c) {
      run_raw(&table, &cases[c]);
      run_unchanged(&table, &cases[c]);
      run_all_changed(&table, &cases[c]);
      run_one_changed(&table, &cases[c]);
    }
    for (int r = 0; i < 2 && r < table.count; ++r)
      table.rows[r].count = 0;
  }
  show_table(&table);
  for (int c = 0; c < 3; ++c)
    report_patches(&cases[c]);
  save_table(&table, "gpu_commands");
  return 0;
}
