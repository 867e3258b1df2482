/* bench/gpu/floor_launch.c - what one kernel launch costs in the raw CUDA driver, by each of the
 * ways there are: cuLaunchKernel, cuLaunchKernelEx, a one-node graph patched with new parameters.
 * Results of launches with changing arguments are checked. It uses nothing of the library. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "floor.h"

#define ELEMENTS 32
#define OUTPUTS 1024
#define MAX_EXECS 32

typedef struct packed {
  uint64_t a, b, out;
  int32_t n;
  float s;
} packed_t;

/* Which arguments differ from launch to launch. */
#define VARY_OUT 1
#define VARY_S 2
#define VARY_N 4
#define VARY_A 8
#define VARY_B 16
#define VARY 3

/* One way of launching, and what it launches. */
typedef struct launcher {
  CUstream stream;
  CUfunction function;
  CUdeviceptr a, b, out;
  CUgraph graphs[MAX_EXECS];
  CUgraphNode nodes[MAX_EXECS];
  CUgraphExec execs[MAX_EXECS];
  int exec_count; /* used in turn */
  int vary;       /* another output and another factor each time */
  uint32_t seed;
} launcher_t;

static void pack(const launcher_t* self, int i, packed_t* out) {
  const int output = self->vary & VARY_OUT ? i % OUTPUTS : 0;
  const uint64_t other = (uint64_t)(i & 1) * 1024;
  *out = (packed_t){.a = self->a + (self->vary & VARY_A ? other : 0),
                    .b = self->b + (self->vary & VARY_B ? other : 0),
                    .out = self->out + (uint64_t)output * ELEMENTS * sizeof(float),
                    .n = ELEMENTS + (self->vary & VARY_N ? i & 1 : 0),
                    .s = (float)(self->vary & VARY_S ? (uint32_t)i + self->seed : 1)};
}

static CUDA_KERNEL_NODE_PARAMS node_params(const launcher_t* self, void** params, void** extra) {
  CUDA_KERNEL_NODE_PARAMS p;
  memset(&p, 0, sizeof p);
  p.func = self->function;
  p.gridDimX = p.gridDimY = p.gridDimZ = 1;
  p.blockDimX = ELEMENTS;
  p.blockDimY = p.blockDimZ = 1;
  p.kernelParams = params;
  p.extra = extra;
  return p;
}

static void launcher_init(launcher_t* self, CUstream stream, CUfunction function, int exec_count,
                          int vary, unsigned long long flags) {
  memset(self, 0, sizeof *self);
  self->stream = stream;
  self->function = function;
  self->exec_count = exec_count;
  self->vary = vary;
  CHECK(p_cuMemAlloc(&self->a, 8192));
  CHECK(p_cuMemAlloc(&self->b, 8192));
  CHECK(p_cuMemAlloc(&self->out, (OUTPUTS + 1) * ELEMENTS * sizeof(float)));
  CHECK(p_cuMemsetD32(self->a, 0x3F800000u, 2048)); /* 1.0f */
  CHECK(p_cuMemsetD32(self->b, 0x40000000u, 2048)); /* 2.0f */
  packed_t block;
  pack(self, 0, &block);
  void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
  for (int i = 0; i < exec_count; ++i) {
    CUDA_KERNEL_NODE_PARAMS p = node_params(self, params, NULL);
    CHECK(p_cuGraphCreate(&self->graphs[i], 0));
    CHECK(p_cuGraphAddKernelNode(&self->nodes[i], self->graphs[i], NULL, 0, &p));
    const CUresult r = p_cuGraphInstantiateWithFlags(&self->execs[i], self->graphs[i], flags);
    if (r != CUDA_SUCCESS) {
      printf("instantiate with flags %llu: %s\n", flags, floor_error(r));
      CHECK(p_cuGraphInstantiateWithFlags(&self->execs[i], self->graphs[i], 0));
    }
    CHECK(p_cuGraphUpload(self->execs[i], stream));
  }
  CHECK(p_cuStreamSynchronize(stream));
}

/* After OUTPUTS launches with vary: all outputs are as they must be. */
static void launcher_verify(launcher_t* self, void (*run)(void*, int), const char* name) {
  static float out[OUTPUTS * ELEMENTS];
  CHECK(p_cuMemsetD32(self->out, 0, OUTPUTS * ELEMENTS));
  self->seed = 7;
  run(self, OUTPUTS);
  CHECK(p_cuStreamSynchronize(self->stream));
  CHECK(p_cuMemcpyDtoH(out, self->out, sizeof out));
  int wrong = 0;
  for (int i = 0; i < OUTPUTS * ELEMENTS; ++i)
    wrong += out[i] != (float)(i / ELEMENTS + 7) + 2.0f;
  printf("%-46s %s (%d of %d elements wrong)\n", name, wrong == 0 ? "results right" : "WRONG",
         wrong, OUTPUTS * ELEMENTS);
}

static void run_kernel(void* opaque, int count) {
  launcher_t* self = opaque;
  for (int i = 0; i < count; ++i) {
    packed_t block;
    pack(self, i, &block);
    void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
    CHECK(p_cuLaunchKernel(self->function, 1, 1, 1, ELEMENTS, 1, 1, 0, self->stream, params, NULL));
  }
}

static void run_kernel_packed(void* opaque, int count) {
  launcher_t* self = opaque;
  for (int i = 0; i < count; ++i) {
    packed_t block;
    pack(self, i, &block);
    size_t size = sizeof block;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    CHECK(p_cuLaunchKernel(self->function, 1, 1, 1, ELEMENTS, 1, 1, 0, self->stream, NULL, extra));
  }
}

static void run_kernel_ex(void* opaque, int count) {
  launcher_t* self = opaque;
  CUlaunchConfig config;
  memset(&config, 0, sizeof config);
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = ELEMENTS;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = self->stream;
  for (int i = 0; i < count; ++i) {
    packed_t block;
    pack(self, i, &block);
    void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
    CHECK(p_cuLaunchKernelEx(&config, self->function, params, NULL));
  }
}

static void run_relaunch(void* opaque, int count) {
  launcher_t* self = opaque;
  for (int i = 0; i < count; ++i)
    CHECK(p_cuGraphLaunch(self->execs[i % self->exec_count], self->stream));
}

static void run_patch(void* opaque, int count) {
  launcher_t* self = opaque;
  for (int i = 0; i < count; ++i) {
    packed_t block;
    pack(self, i, &block);
    void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
    const CUDA_KERNEL_NODE_PARAMS p = node_params(self, params, NULL);
    const int e = i % self->exec_count;
    CHECK(p_cuGraphExecKernelNodeSetParams(self->execs[e], self->nodes[e], &p));
    CHECK(p_cuGraphLaunch(self->execs[e], self->stream));
  }
}

static void run_patch_packed(void* opaque, int count) {
  launcher_t* self = opaque;
  for (int i = 0; i < count; ++i) {
    packed_t block;
    pack(self, i, &block);
    size_t size = sizeof block;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    const CUDA_KERNEL_NODE_PARAMS p = node_params(self, NULL, extra);
    const int e = i % self->exec_count;
    CHECK(p_cuGraphExecKernelNodeSetParams(self->execs[e], self->nodes[e], &p));
    CHECK(p_cuGraphLaunch(self->execs[e], self->stream));
  }
}

/* cuGraphExecNodeSetParams, the call for all kinds of nodes. */
static void run_patch_generic(void* opaque, int count) {
  launcher_t* self = opaque;
  for (int i = 0; i < count; ++i) {
    packed_t block;
    pack(self, i, &block);
    void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
    CUgraphNodeParams p;
    memset(&p, 0, sizeof p);
    p.type = CU_GRAPH_NODE_TYPE_KERNEL;
    p.kernel.func = self->function;
    p.kernel.gridDimX = p.kernel.gridDimY = p.kernel.gridDimZ = 1;
    p.kernel.blockDimX = ELEMENTS;
    p.kernel.blockDimY = p.kernel.blockDimZ = 1;
    p.kernel.kernelParams = params;
    const int e = i % self->exec_count;
    CHECK(p_cuGraphExecNodeSetParams(self->execs[e], self->nodes[e], &p));
    CHECK(p_cuGraphLaunch(self->execs[e], self->stream));
  }
}

/* Patch alone: launched once at the end. */
static void run_patch_only(void* opaque, int count) {
  launcher_t* self = opaque;
  for (int i = 0; i < count; ++i) {
    packed_t block;
    pack(self, i, &block);
    void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
    const CUDA_KERNEL_NODE_PARAMS p = node_params(self, params, NULL);
    CHECK(p_cuGraphExecKernelNodeSetParams(self->execs[0], self->nodes[0], &p));
  }
  CHECK(p_cuGraphLaunch(self->execs[0], self->stream));
}

/* Always with the same arguments. */
static void run_patch_saved_context(void* opaque, int count) {
  for (int i = 0; i < count; ++i) {
    CUcontext before;
    CHECK(p_cuCtxGetCurrent(&before));
    CUstreamCaptureStatus capturing;
    CHECK(p_cuStreamIsCapturing(((launcher_t*)opaque)->stream, &capturing));
    run_patch(opaque, 1);
  }
}

static void launches(CUstream stream) {
  CUfunction axpb = floor_function(floor_library, "axpb");
  static launcher_t one, vary[6], flags[4];
  launcher_init(&one, stream, axpb, 1, 0, 0);
  const int counts[6] = {1, 2, 4, 8, 16, 32};
  for (int i = 0; i < 6; ++i)
    launcher_init(&vary[i], stream, axpb, counts[i], VARY, 0);
  launcher_init(&flags[0], stream, axpb, 1, VARY, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  launcher_init(&flags[1], stream, axpb, 1, VARY, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
  launcher_init(&flags[2], stream, axpb, 1, VARY, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  launcher_init(&flags[3], stream, axpb, 1, VARY, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
  floor_variant_t v[] = {
      {.name = "cuLaunchKernel, same arguments", .run = run_kernel, .self = &one},
      {.name = "cuLaunchKernel, other arguments", .run = run_kernel, .self = &vary[0]},
      {.name = "cuLaunchKernel, packed", .run = run_kernel_packed, .self = &vary[0]},
      {.name = "cuLaunchKernelEx", .run = run_kernel_ex, .self = &vary[0]},
      {.name = "graph of 1, as it is", .run = run_relaunch, .self = &one},
      {.name = "graph of 1, patched, same arguments", .run = run_patch, .self = &one},
      {.name = "graph of 1, patched, other arguments", .run = run_patch, .self = &vary[0]},
      {.name = "  2 in turn", .run = run_patch, .self = &vary[1]},
      {.name = "  4 in turn", .run = run_patch, .self = &vary[2]},
      {.name = "  8 in turn", .run = run_patch, .self = &vary[3]},
      {.name = "  16 in turn", .run = run_patch, .self = &vary[4]},
      {.name = "  32 in turn", .run = run_patch, .self = &vary[5]},
      {.name = "  packed", .run = run_patch_packed, .self = &vary[0]},
      {.name = "  8 in turn, packed", .run = run_patch_packed, .self = &vary[3]},
      {.name = "  cuGraphExecNodeSetParams", .run = run_patch_generic, .self = &vary[0]},
      {.name = "  patch alone", .run = run_patch_only, .self = &vary[0]},
      {.name = "  + cuCtxGetCurrent + cuStreamIsCapturing",
       .run = run_patch_saved_context,
       .self = &one},
      {.name = "  instantiated with UPLOAD", .run = run_patch, .self = &flags[0]},
      {.name = "  with USE_NODE_PRIORITY", .run = run_patch, .self = &flags[1]},
      {.name = "  with AUTO_FREE_ON_LAUNCH", .run = run_patch, .self = &flags[2]},
      {.name = "  with DEVICE_LAUNCH", .run = run_patch, .self = &flags[3]},
  };
  const int n = (int)(sizeof v / sizeof v[0]);
  floor_measure("launch", v, n, 1000, stream);
  floor_measure("launch", v, n, 50, stream);
  floor_measure("launch", v, n, 1, stream);
  for (int i = 0; i < n; ++i) {
    if (((launcher_t*)v[i].self)->vary == VARY && v[i].run != run_patch_only)
      launcher_verify(v[i].self, v[i].run, v[i].name);
  }
}

/* What a patch costs by what differs from the last one. */
static void differences(CUstream stream, const char* kernel) {
  static const int masks[8] = {0,
                               VARY_OUT,
                               VARY_S,
                               VARY_N | VARY_S,
                               VARY_OUT | VARY_S,
                               VARY_A | VARY_B,
                               VARY_A | VARY_B | VARY_OUT,
                               31};
  static const char* const names[8] = {"nothing", "out", "s",       "n s",
                                       "out s",   "a b", "a b out", "a b out n s"};
  static launcher_t l[8];
  static char text[40][64];
  static floor_variant_t v[40];
  int n = 0;
  CUfunction function = floor_function(floor_library, kernel);
  for (int i = 0; i < 8; ++i)
    launcher_init(&l[i], stream, function, 1, masks[i], 0);
  void (*runs[3])(void*, int) = {run_patch, run_patch_packed, run_patch_only};
  static const char* const hows[3] = {"patched", "patched packed", "patch alone"};
  for (int k = 0; k < 3; ++k) {
    for (int i = 0; i < 8; ++i) {
      snprintf(text[n], 64, "%s, differs: %s", hows[k], names[i]);
      v[n] = (floor_variant_t){.name = text[n], .run = runs[k], .self = &l[i]};
      n += 1;
    }
  }
  static launcher_t raw, turn;
  launcher_init(&raw, stream, function, 1, VARY, 0);
  launcher_init(&turn, stream, function, 8, VARY, 0);
  v[n++] = (floor_variant_t){.name = "cuLaunchKernel", .run = run_kernel, .self = &raw};
  v[n++] = (floor_variant_t){.name = "8 in turn", .run = run_patch, .self = &turn};
  v[n++] = (floor_variant_t){.name = "8 in turn, as they are", .run = run_relaunch, .self = &turn};
  v[n++] = (floor_variant_t){.name = "one, as it is", .run = run_relaunch, .self = &raw};
  printf("kernel %s\n", kernel);
  floor_measure("what differs", v, n, 1000, stream);
}

/* ---- Threads on streams of their own ---- */

/* Launches that are being made in the process: all, and those by graph. */
static atomic_int active, active_graphs;

static void patch_one(launcher_t* self, int i) {
  packed_t block;
  pack(self, i, &block);
  void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
  const CUDA_KERNEL_NODE_PARAMS p = node_params(self, params, NULL);
  CHECK(p_cuGraphExecKernelNodeSetParams(self->execs[0], self->nodes[0], &p));
}

static void kernel_one(launcher_t* self, int i) {
  packed_t block;
  pack(self, i, &block);
  void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
  CHECK(p_cuLaunchKernel(self->function, 1, 1, 1, ELEMENTS, 1, 1, 0, self->stream, params, NULL));
}

/* By graph while not more than so many others launch, or launch by graph; else by cuLaunchKernel.
 */
typedef struct sharing {
  int max_active, max_graphs;
} sharing_t;
static sharing_t sharing;

static void run_shared(void* opaque, int count) {
  launcher_t* self = opaque;
  for (int i = 0; i < count; ++i) {
    bool graph = atomic_fetch_add_explicit(&active, 1, memory_order_relaxed) < sharing.max_active;
    if (graph) {
      graph =
          atomic_fetch_add_explicit(&active_graphs, 1, memory_order_relaxed) < sharing.max_graphs;
      if (!graph)
        atomic_fetch_sub_explicit(&active_graphs, 1, memory_order_relaxed);
    }
    if (graph) {
      patch_one(self, i);
      CHECK(p_cuGraphLaunch(self->execs[0], self->stream));
      atomic_fetch_sub_explicit(&active_graphs, 1, memory_order_relaxed);
    } else {
      kernel_one(self, i);
    }
    atomic_fetch_sub_explicit(&active, 1, memory_order_relaxed);
  }
}

#define THREADS_MAX 8
typedef struct thread_job {
  launcher_t launcher;
  void (*run)(void*, int);
  int count;
  atomic_int* ready;
  atomic_int* go;
} thread_job_t;

static void* thread_main(void* opaque) {
  thread_job_t* job = opaque;
  CHECK(p_cuCtxSetCurrent(floor_context));
  atomic_fetch_add(job->ready, 1);
  while (atomic_load(job->go) == 0) {
  }
  job->run(&job->launcher, job->count);
  CHECK(p_cuStreamSynchronize(job->launcher.stream));
  return NULL;
}

static double threads_once(thread_job_t* jobs, int thread_count, void (*run)(void*, int),
                           int count) {
  atomic_int ready = 0, go = 0;
  pthread_t threads[THREADS_MAX];
  for (int t = 0; t < thread_count; ++t) {
    jobs[t].run = run;
    jobs[t].count = count;
    jobs[t].ready = &ready;
    jobs[t].go = &go;
    pthread_create(&threads[t], NULL, thread_main, &jobs[t]);
  }
  while (atomic_load(&ready) < thread_count) {
  }
  const double t0 = floor_now_us();
  atomic_store(&go, 1);
  for (int t = 0; t < thread_count; ++t)
    pthread_join(threads[t], NULL);
  return (floor_now_us() - t0) / count;
}

static void threads(void) {
  static thread_job_t jobs[THREADS_MAX];
  CUfunction axpb = floor_function(floor_library, "axpb");
  for (int t = 0; t < THREADS_MAX; ++t) {
    CUstream stream;
    CHECK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    launcher_init(&jobs[t].launcher, stream, axpb, 1, VARY, 0);
  }
  printf("## threads on their own streams: us per launch and thread, sustained, median of 9\n");
  static const struct {
    const char* name;
    void (*run)(void*, int);
    sharing_t sharing;
  } ways[] = {{"cuLaunchKernel", run_kernel, {0, 0}},
              {"graph of 1, patched", run_patch, {0, 0}},
              {"graph while nobody launches", run_shared, {1, 99}},
              {"graph while at most 1 other launches", run_shared, {2, 99}},
              {"graph while at most 2 others launch", run_shared, {3, 99}},
              {"graph while nobody launches by graph", run_shared, {99, 1}},
              {"graph while 1 other launches by graph", run_shared, {99, 2}},
              {"graph while 2 others launch by graph", run_shared, {99, 3}}};
  enum { WAYS = sizeof ways / sizeof ways[0] };
  static const int thread_counts[] = {1, 2, 3, 4, 6, 8};
  for (int k = 0; k < 6; ++k) {
    const int thread_count = thread_counts[k];
    double times[WAYS][9];
    for (int r = 0; r < 9; ++r) {
      for (int v = 0; v < WAYS; ++v) {
        sharing = ways[v].sharing;
        times[v][r] = threads_once(jobs, thread_count, ways[v].run, 2000);
      }
    }
    for (int v = 0; v < WAYS; ++v) {
      const double m = floor_median(times[v], 9);
      printf("%d threads %-40s %8.3f [%.3f %.3f]  %.0f launches/ms\n", thread_count, ways[v].name,
             m, times[v][2], times[v][6], thread_count * 1000.0 / m);
    }
  }
  for (int t = 0; t < 4; ++t)
    launcher_verify(&jobs[t].launcher, run_patch, "thread's launcher");
  fflush(stdout);
}

/* ---- What the device needs for each ---- */

/* Of every `period` launches one by cuLaunchKernel. */
typedef struct mixed {
  launcher_t* launcher;
  int period;
  int vary;
} mixed_t;

static void run_mixed(void* opaque, int count) {
  mixed_t* m = opaque;
  m->launcher->vary = m->vary;
  for (int i = 0; i < count; ++i) {
    if (m->period != 0 && i % m->period == 0) {
      kernel_one(m->launcher, i);
      continue;
    }
    patch_one(m->launcher, i);
    CHECK(p_cuGraphLaunch(m->launcher->execs[0], m->launcher->stream));
  }
  m->launcher->vary = VARY;
}

/* Launches behind a kernel that runs long enough for all to be submitted: what is left is the
 * device's. */
static void device_side(CUstream stream, const char* kernel) {
  static launcher_t l;
  launcher_init(&l, stream, floor_function(floor_library, kernel), 8, VARY, 0);
  CUfunction spin = floor_function(floor_library, "spin");
  static mixed_t m[6];
  static const int periods[6] = {1, 0, 0, 2, 3, 5};
  static const char* const names[6] = {"cuLaunchKernel",
                                       "graph of 1, nothing differs",
                                       "graph of 1, out and s differ",
                                       "every 2nd by cuLaunchKernel",
                                       "every 3rd",
                                       "every 5th"};
  static floor_variant_t v[6];
  printf("## device alone, kernel %s: us per launch, 400 behind a kernel of 3 ms, median of 9\n",
         kernel);
  for (int k = 0; k < 6; ++k) {
    m[k] = (mixed_t){&l, periods[k], k == 1 ? 0 : VARY};
    v[k] = (floor_variant_t){.name = names[k], .run = run_mixed, .self = &m[k]};
    double times[9], host[9];
    for (int r = 0; r < 9; ++r) {
      uint32_t value = 1, ns = 3000000;
      CUdeviceptr out = l.b + 4096;
      void* params[3] = {&out, &value, &ns};
      CHECK(p_cuStreamSynchronize(stream));
      const double t0 = floor_now_us();
      CHECK(p_cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
      const double t1 = floor_now_us();
      run_mixed(&m[k], 400);
      host[r] = floor_now_us() - t1;
      CHECK(p_cuStreamSynchronize(stream));
      times[r] = (floor_now_us() - t0 - 3000) / 400;
    }
    printf("%-46s %8.3f [%.3f %.3f]  host in all %.0f us\n", names[k], floor_median(times, 9),
           times[2], times[6], floor_median(host, 9));
  }
  floor_measure("the same from an idle device", v, 6, 1000, stream);
}

/* ---- Small calls ---- */

static void small_calls(CUstream stream) {
  CUcontext context;
  CUevent event;
  CUstreamCaptureStatus capturing;
  CHECK(p_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  printf("## small calls: ns, mean of 20000 on an idle stream\n");
#define SMALL(text, call)                                                                          \
  do {                                                                                             \
    const double t0 = floor_now_us();                                                              \
    for (int i = 0; i < 20000; ++i)                                                                \
      (void)(call);                                                                                \
    printf("%-46s %8.1f\n", text, (floor_now_us() - t0) / 20.0);                                   \
    CHECK(p_cuStreamSynchronize(stream));                                                          \
  } while (0)
  SMALL("clock_gettime", floor_now_us());
  SMALL("cuCtxGetCurrent", p_cuCtxGetCurrent(&context));
  SMALL("cuCtxSetCurrent, same", p_cuCtxSetCurrent(floor_context));
  SMALL("cuCtxPushCurrent + Pop", (p_cuCtxPushCurrent(floor_context), p_cuCtxPopCurrent(&context)));
  SMALL("cuCtxSetCurrent NULL + back", (p_cuCtxSetCurrent(NULL), p_cuCtxSetCurrent(floor_context)));
  SMALL("cuStreamIsCapturing", p_cuStreamIsCapturing(stream, &capturing));
  SMALL("cuStreamQuery", p_cuStreamQuery(stream));
  SMALL("cuStreamSynchronize", p_cuStreamSynchronize(stream));
  SMALL("cuEventRecord", p_cuEventRecord(event, stream));
  SMALL("cuEventQuery", p_cuEventQuery(event));
  SMALL("cuEventRecord + cuStreamWaitEvent",
        (p_cuEventRecord(event, stream), p_cuStreamWaitEvent(stream, event, 0)));
}

/* ---- Launch and wait ---- */

typedef struct waiter {
  launcher_t* launcher;
  CUevent event, blocking;
  volatile uint64_t* flag; /* pinned */
  uint64_t next;
  CUgraphExec event_exec, flag_exec; /* kernel + event record node; kernel + memory write node */
  CUgraphNode flag_node, event_kernel_node, flag_kernel_node;
  CUevent graph_event;
  int graph;
  int kind;
} waiter_t;

static void patch_node(launcher_t* l, CUgraphExec exec, CUgraphNode node, int i) {
  packed_t block;
  pack(l, i, &block);
  void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
  const CUDA_KERNEL_NODE_PARAMS p = node_params(l, params, NULL);
  CHECK(p_cuGraphExecKernelNodeSetParams(exec, node, &p));
}

static void wait_event_spin(CUevent event) {
  while (p_cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
  }
}

static void run_wait(void* opaque, int count) {
  waiter_t* w = opaque;
  CUstream stream = w->launcher->stream;
  for (int i = 0; i < count; ++i) {
    if (w->kind == 6) {
      patch_node(w->launcher, w->event_exec, w->event_kernel_node, i);
      CHECK(p_cuGraphLaunch(w->event_exec, stream));
      wait_event_spin(w->graph_event);
      continue;
    }
    if (w->kind == 7) {
      *w->flag = 0;
      patch_node(w->launcher, w->flag_exec, w->flag_kernel_node, i);
      CHECK(p_cuGraphLaunch(w->flag_exec, stream));
      while (*w->flag == 0) {
      }
      continue;
    }
    if (w->graph)
      run_patch(w->launcher, 1);
    else
      run_kernel(w->launcher, 1);
    switch (w->kind) {
    case 0:
      CHECK(p_cuStreamSynchronize(stream));
      break;
    case 1:
      CHECK(p_cuEventRecord(w->event, stream));
      wait_event_spin(w->event);
      break;
    case 2:
      CHECK(p_cuEventRecord(w->blocking, stream));
      CHECK(p_cuEventSynchronize(w->blocking));
      break;
    case 3:
      while (p_cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) {
      }
      break;
    case 4:
      CHECK(p_cuEventRecord(w->event, stream));
      CHECK(p_cuEventSynchronize(w->event));
      break;
    default:
      w->next += 1;
      CHECK(p_cuStreamWriteValue64(stream, (CUdeviceptr)(uintptr_t)w->flag, w->next, 0));
      while (*w->flag != w->next) {
      }
    }
  }
}

static void waits(CUstream stream) {
  static launcher_t l;
  static waiter_t w[16];
  static floor_variant_t v[16];
  CUfunction axpb = floor_function(floor_library, "axpb");
  launcher_init(&l, stream, axpb, 1, VARY, 0);
  void* flag;
  CHECK(p_cuMemHostAlloc(&flag, 4096, CU_MEMHOSTALLOC_PORTABLE));
  waiter_t base;
  memset(&base, 0, sizeof base);
  base.launcher = &l;
  base.flag = flag;
  base.next = 1000;
  CHECK(p_cuEventCreate(&base.event, CU_EVENT_DISABLE_TIMING));
  CHECK(p_cuEventCreate(&base.graph_event, CU_EVENT_DISABLE_TIMING));
  CHECK(p_cuEventCreate(&base.blocking, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
  packed_t block;
  pack(&l, 0, &block);
  void* params[5] = {&block.a, &block.b, &block.out, &block.n, &block.s};
  const CUDA_KERNEL_NODE_PARAMS p = node_params(&l, params, NULL);
  CUgraph g;
  CUgraphNode node;
  CHECK(p_cuGraphCreate(&g, 0));
  CHECK(p_cuGraphAddKernelNode(&base.event_kernel_node, g, NULL, 0, &p));
  CHECK(p_cuGraphAddEventRecordNode(&node, g, &base.event_kernel_node, 1, base.graph_event));
  CHECK(p_cuGraphInstantiateWithFlags(&base.event_exec, g, 0));
  CHECK(p_cuGraphCreate(&g, 0));
  CHECK(p_cuGraphAddKernelNode(&base.flag_kernel_node, g, NULL, 0, &p));
  CUstreamBatchMemOpParams op;
  memset(&op, 0, sizeof op);
  op.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  op.writeValue.address = (CUdeviceptr)(uintptr_t)flag;
  op.writeValue.value64 = 1;
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch;
  memset(&batch, 0, sizeof batch);
  batch.ctx = floor_context;
  batch.count = 1;
  batch.paramArray = &op;
  CHECK(p_cuGraphAddBatchMemOpNode(&node, g, &base.flag_kernel_node, 1, &batch));
  CHECK(p_cuGraphInstantiateWithFlags(&base.flag_exec, g, 0));
  static const char* const names[] = {
      "cuStreamSynchronize",     "event + query in a loop",    "blocking event",
      "cuStreamQuery in a loop", "event + cuEventSynchronize", "cuStreamWriteValue64 + spin on it"};
  static char text[16][64];
  int n = 0;
  for (int kind = 0; kind < 6; ++kind) {
    for (int graph = 0; graph < 2; ++graph) {
      w[n] = base;
      w[n].kind = kind;
      w[n].graph = graph;
      snprintf(text[n], sizeof text[n], "%s, %s", graph ? "patched graph" : "cuLaunchKernel",
               names[kind]);
      v[n] = (floor_variant_t){.name = text[n], .run = run_wait, .self = &w[n]};
      n += 1;
    }
  }
  for (int kind = 6; kind < 8; ++kind) {
    w[n] = base;
    w[n].kind = kind;
    v[n] = (floor_variant_t){.name = kind == 6 ? "graph of kernel + event record, query loop"
                                               : "graph of kernel + memory write, spin on it",
                             .run = run_wait,
                             .self = &w[n]};
    n += 1;
  }
  floor_measure("launch and wait", v, n, 200, stream);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  floor_open();
  CUstream stream;
  CHECK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  small_calls(stream);
  launches(stream);
  differences(stream, "axpb");
  differences(stream, "set5");
  device_side(stream, "axpb");
  device_side(stream, "set5");
  waits(stream);
  threads();
  return 0;
}
