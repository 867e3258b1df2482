/* bench/gpu/floor_chains.c - what graphs of parallel chains cost in the raw CUDA driver:
 * chains against branches, independent kernels, the shape of a transformer. It uses nothing of
 * the library. */
#include "floor_node.h"

/* ---- Chains against branches ---- */

typedef struct shape {
  CUstream stream;
  CUgraphExec exec;
} shape_t;

#define MOST_ROUNDS 9

/* What launches of one graph took, in microseconds. */
typedef struct shape_times {
  double done[MOST_ROUNDS], submit[MOST_ROUNDS];
} shape_times_t;

/* Launches each graph in turn, `warmup` rounds that are not counted and `rounds` that are. */
static void measure(shape_t* shapes, shape_times_t* times, int count, int warmup, int rounds) {
  for (int r = -warmup; r < rounds; ++r) {
    for (int i = 0; i < count; ++i) {
      CHECK(p_cuStreamSynchronize(shapes[i].stream));
      const double t0 = floor_now_us();
      CHECK(p_cuGraphLaunch(shapes[i].exec, shapes[i].stream));
      const double t1 = floor_now_us();
      CHECK(p_cuStreamSynchronize(shapes[i].stream));
      if (r >= 0)
        times[i].done[r] = floor_now_us() - t0, times[i].submit[r] = t1 - t0;
    }
  }
}

/* Prints the median of each graph, named by its number of chains, and destroys the graphs. */
static void report(shape_t* shapes, shape_times_t* times, const int* widths, int count,
                   int rounds) {
  for (int i = 0; i < count; ++i) {
    printf("  %d: %.1f (%.1f)", widths[i], floor_median(times[i].done, rounds),
           floor_median(times[i].submit, rounds));
    CHECK(p_cuGraphExecDestroy(shapes[i].exec));
  }
  printf("\n");
}

/* `node_count` kernels in `branches` chains between a first and a last node. */
static void shape_init(shape_t* s, CUstream stream, int node_count, int branches, unsigned grid,
                       uint32_t cycles) {
  static CUdeviceptr out;
  if (out == 0)
    CHECK(p_cuMemAlloc(&out, 4096));
  CUfunction work = floor_function(floor_library, "work");
  CUgraph g;
  CUgraphNode first, last, ends[64];
  void* params[2] = {&out, &cycles};
  uint32_t none = 0;
  void* no_work[2] = {&out, &none};
  CUDA_KERNEL_NODE_PARAMS p = kernel_node(work, grid, 128, params);
  CUDA_KERNEL_NODE_PARAMS q = kernel_node(work, 1, 32, no_work);
  CHECK(p_cuGraphCreate(&g, 0));
  CHECK(p_cuGraphAddKernelNode(&first, g, NULL, 0, &q));
  for (int b = 0; b < branches; ++b)
    ends[b] = first;
  for (int i = 0; i < node_count; ++i) {
    CUgraphNode node;
    CHECK(p_cuGraphAddKernelNode(&node, g, &ends[i % branches], 1, &p));
    ends[i % branches] = node;
  }
  CHECK(p_cuGraphAddKernelNode(&last, g, ends, (size_t)branches, &q));
  CHECK(p_cuGraphInstantiateWithFlags(&s->exec, g, 0));
  CHECK(p_cuGraphUpload(s->exec, stream));
  s->stream = stream;
}

static void branches(CUstream stream) {
  static const unsigned grids[4] = {1, 16, 66, 132};
  static const uint32_t cycles[5] = {0, 1500, 4000, 10000, 40000};
  static const int widths[5] = {1, 2, 4, 8, 32};
  printf("## 32 kernels between two, in so many parallel chains: us a graph to completion "
         "(submit), median "
         "of 7\n");
  for (int g = 0; g < 4; ++g) {
    for (int c = 0; c < 5; ++c) {
      shape_times_t times[5];
      shape_t s[5];
      for (int w = 0; w < 5; ++w)
        shape_init(&s[w], stream, 32, widths[w], grids[g], cycles[c]);
      measure(s, times, 5, 1, 7);
      printf("grid %3u, %5u cycles:", grids[g], cycles[c]);
      report(s, times, widths, 5, 7);
    }
  }
  fflush(stdout);
}

/* ---- Independent kernels, in so many parallel chains ---- */

static void chains_init(shape_t* s, CUstream stream, CUfunction function, CUdeviceptr out,
                        int node_count, int chains, int head) {
  CUgraph g;
  static CUgraphNode ends[1000];
  CUgraphNode first = NULL;
  uint32_t none = 0;
  void* no_work[2] = {&out, &none};
  CUDA_KERNEL_NODE_PARAMS q = kernel_node(function, 1, 32, no_work);
  CHECK(p_cuGraphCreate(&g, 0));
  if (head == 1)
    CHECK(p_cuGraphAddKernelNode(&first, g, NULL, 0, &q));
  if (head == 2)
    CHECK(p_cuGraphAddEmptyNode(&first, g, NULL, 0));
  for (int i = 0; i < chains; ++i)
    ends[i] = first;
  for (int i = 0; i < node_count; ++i) {
    CUgraphNode* end = &ends[i % chains];
    CUgraphNode node;
    CHECK(p_cuGraphAddKernelNode(&node, g, *end != NULL ? end : NULL, *end != NULL, &q));
    *end = node;
  }
  CHECK(p_cuGraphInstantiateWithFlags(&s->exec, g, 0));
  CHECK(p_cuGraphUpload(s->exec, stream));
  s->stream = stream;
}

static void chains(CUstream stream) {
  static const int counts[3] = {8, 100, 1000};
  static const int widths[9] = {1, 2, 4, 8, 16, 32, 64, 100, 1000};
  static const char* const heads[3] = {"roots", "after a kernel", "after an empty node"};
  CUdeviceptr out;
  CHECK(p_cuMemAlloc(&out, 4096));
  CUfunction work = floor_function(floor_library, "work");
  printf("## independent tiny kernels in so many parallel chains: us a graph to completion "
         "(submit), median "
         "of 9\n");
  for (int n = 0; n < 3; ++n) {
    for (int head = 0; head < 3; ++head) {
      shape_t s[9];
      shape_times_t times[9];
      int used = 0;
      for (int w = 0; w < 9 && widths[w] <= counts[n]; ++w, ++used)
        chains_init(&s[w], stream, work, out, counts[n], widths[w], head);
      measure(s, times, used, 2, 9);
      printf("%4d %-20s:", counts[n], heads[head]);
      report(s, times, widths, used, 9);
    }
  }
}

/* A transformer-like shape: a long chain where every 4th step is three kernels side by side, of so
 * many cycles and workgroups. */
static void layered(CUstream stream) {
  static const unsigned grids[3] = {1, 32, 132};
  static const uint32_t cycles[3] = {0, 2000, 8000};
  CUdeviceptr out;
  CHECK(p_cuMemAlloc(&out, 4096));
  CUfunction work = floor_function(floor_library, "work");
  printf("## 50 x (one kernel, then three side by side, then one): us to completion as a chain, as "
         "branches; median of 9\n");
  for (int gi = 0; gi < 3; ++gi) {
    for (int c = 0; c < 3; ++c) {
      shape_t s[2];
      shape_times_t times[2];
      for (int k = 0; k < 2; ++k) {
        CUgraph g;
        CUgraphNode last = NULL;
        void* params[2] = {&out, (void*)(uintptr_t)&cycles[c]};
        CUDA_KERNEL_NODE_PARAMS p = kernel_node(work, grids[gi], 128, params);
        CHECK(p_cuGraphCreate(&g, 0));
        for (int i = 0; i < 50; ++i) {
          CUgraphNode one, three[3];
          CHECK(p_cuGraphAddKernelNode(&one, g, last != NULL ? &last : NULL, last != NULL, &p));
          for (int t = 0; t < 3; ++t)
            CHECK(p_cuGraphAddKernelNode(&three[t], g, k == 0 && t > 0 ? &three[t - 1] : &one, 1,
                                         &p));
          CHECK(p_cuGraphAddKernelNode(&last, g, k == 0 ? &three[2] : three, k == 0 ? 1 : 3, &p));
        }
        CHECK(p_cuGraphInstantiateWithFlags(&s[k].exec, g, 0));
        CHECK(p_cuGraphUpload(s[k].exec, stream));
        s[k].stream = stream;
      }
      measure(s, times, 2, 1, 9);
      printf("grid %3u, %5u cycles: chain %.1f branches %.1f\n", grids[gi], cycles[c],
             floor_median(times[0].done, 9), floor_median(times[1].done, 9));
    }
  }
}
int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  floor_open();
  CUstream stream;
  CHECK(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  branches(stream);
  chains(stream);
  layered(stream);
  return 0;
}
