/* bench/gpu/start.c - from the start of a process to the first MiniLM result on a GPU, step by
 * step, beside what the driver takes alone.
 *
 *   gpu_start [--device N] [--runs R] [BUNDLE]
 *
 * The parent starts itself again for each run, with and without the library, in turn. BUNDLE:
 * $ACCRT_TEST_BUNDLES/minilm.accx. Text to the terminal, JSON to gpu_start.json in
 * $ACCRT_BENCH_RESULTS. */
#include "gpu.h"

#include <sys/wait.h>
#include <unistd.h>

#define STEPS 7
static const char* const step_names[STEPS] = {"instance",      "device (cuInit, context)",
                                              "open bundle",   "program (weights, modules)",
                                              "session, call", "first result",
                                              "whole"};

/* Child: the raw driver alone. Prints nanoseconds. */
static int child_raw(int device) {
  const double begin = now_ns();
  raw_open(device);
  printf("%.0f\n", now_ns() - begin);
  return 0;
}

static int child_library(int index, const char* path) {
  double times[STEPS + 1];
  char name[32];
  int64_t ids[32], mask[32];
  float vector[384];
  accrt_instance_t* instance;
  accrt_device_t* device;
  accrt_bundle_t* bundle;
  accrt_program_t* program;
  accrt_session_t* session;
  accrt_call_t* call;
  const double begin = now_ns();
  snprintf(name, sizeof name, "cuda:%d", index);
  CHECK(accrt_instance_create(NULL, &instance));
  times[0] = now_ns();
  CHECK(accrt_instance_device_by_name(instance, name, &device));
  times[1] = now_ns();
  CHECK(accrt_bundle_open_path(instance, path, NULL, &bundle));
  times[2] = now_ns();
  CHECK(accrt_program_create(device, bundle, NULL, &program));
  times[3] = now_ns();
  CHECK(accrt_session_create(program, NULL, &session));
  CHECK(accrt_call_create(session, "encode", &call));
  for (int i = 0; i < 32; ++i) {
    ids[i] = i == 0 ? 101 : i == 31 ? 102 : 1000 + 37 * i;
    mask[i] = 1;
  }
  const int64_t tokens[2] = {1, 32}, embedded[2] = {1, 384};
  const accrt_tensor_t in_ids = {.data = ids, .dtype = ACCRT_DTYPE_I64, .rank = 2, .shape = tokens};
  const accrt_tensor_t in_mask = {
      .data = mask, .dtype = ACCRT_DTYPE_I64, .rank = 2, .shape = tokens};
  const accrt_tensor_t out = {
      .data = vector, .dtype = ACCRT_DTYPE_F32, .rank = 2, .shape = embedded};
  CHECK(accrt_call_set_tensor(call, 0, &in_ids));
  CHECK(accrt_call_set_tensor(call, 1, &in_mask));
  CHECK(accrt_call_set_tensor(call, 2, &out));
  times[4] = now_ns();
  CHECK(accrt_call_run(call, ACCRT_TIMEOUT_INFINITE));
  times[5] = now_ns();
  times[6] = times[5];
  double length = 0;
  for (int i = 0; i < 384; ++i)
    length += (double)vector[i] * vector[i];
  if (!(fabs(length - 1) < 1e-2))
    die("first result", "is no vector of length 1");
  for (int i = 0; i < STEPS; ++i)
    printf("%.0f ", times[i] - (i == 0 || i == STEPS - 1 ? begin : times[i - 1]));
  printf("\n");
  return 0;
}

/* Runs a child and reads the numbers that it prints. */
static void read_child(const char* self, const char* mode, const char* device, const char* path,
                       double* out, int count) {
  int ends[2];
  if (pipe(ends) != 0)
    die("pipe", "failed");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    close(ends[0]);
    execl(self, self, mode, device, path, (char*)NULL);
    _exit(127);
  }
  close(ends[1]);
  FILE* file = fdopen(ends[0], "r");
  for (int i = 0; i < count; ++i) {
    if (fscanf(file, "%lf", &out[i]) != 1)
      die(mode, "the child gave no numbers");
  }
  fclose(file);
  waitpid(child, NULL, 0);
}

static table_t table = {
    .title = "From the start of a process to the first MiniLM result, 1 x 32 tokens"};

int main(int argc, char** argv) {
  if (argc == 4 && strcmp(argv[1], "--child-raw") == 0)
    return child_raw(atoi(argv[2]));
  if (argc == 4 && strcmp(argv[1], "--child-library") == 0)
    return child_library(atoi(argv[2]), argv[3]);
  const char* folder = getenv("ACCRT_TEST_BUNDLES");
  const char *device = "0", *path = NULL;
  char own[512], name[96];
  int runs = 9, rows[STEPS];
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
      device = argv[++i];
    else if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
      runs = atoi(argv[++i]);
    else
      path = argv[i];
  }
  if (path == NULL) {
    snprintf(own, sizeof own, "%s/minilm.accx", folder != NULL ? folder : "build/models");
    path = own;
  }
  const int raw_row =
      add_row(&table, "libcuda alone: dlopen, cuInit, primary context", "ms", -1, 0);
  for (int i = 0; i < STEPS; ++i) {
    snprintf(name, sizeof name, "accrt: %s%s", step_names[i],
             i == STEPS - 1 ? " (asked: the driver alone + 100 ms)" : "");
    rows[i] = add_row(&table, name, "ms", i == STEPS - 1 ? raw_row : -1, 0);
  }
  for (int run = 0; run < runs + 1; ++run) {
    double alone, steps[STEPS];
    read_child(argv[0], "--child-raw", device, path, &alone, 1);
    read_child(argv[0], "--child-library", device, path, steps, STEPS);
    if (run == 0)
      continue; /* files into the page cache, PTX into the cache */
    add_sample(&table, raw_row, alone * 1e-6);
    for (int i = 0; i < STEPS; ++i)
      add_sample(&table, rows[i], steps[i] * 1e-6);
  }
  show_table(&table);
  raw_open(atoi(device));
  save_table(&table, "gpu_start");
  return 0;
}
