// bench/gpu/cancel_gate.cu - what it would cost to look on the device whether work was cancelled:
// chains of kernels as one graph, with a conditional node around each part, as several launches,
// and as launches of which two are enqueued at a time. It does not use this library. Compile it
// with nvcc -O2 -std=c++17 -arch=sm_90 --extended-lambda. docs/decisions/safe-in-every-hand.md has
// the result.
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    const cudaError_t error_ = (call);                                                             \
    if (error_ != cudaSuccess) {                                                                   \
      printf("line %d: %s\n", __LINE__, cudaGetErrorString(error_));                               \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static unsigned* counted;    // on the device
static unsigned* flag;       // the host's, which the device reads
static unsigned* flag_there; // the same, at the device's address

__global__ void work(unsigned* count, unsigned spin_ns) {
  if (threadIdx.x == 0)
    atomicAdd(count, 1u);
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (spin_ns != 0 && now - begin < spin_ns);
}

__global__ void look(const volatile unsigned* cancelled, cudaGraphConditionalHandle handle) {
  cudaGraphSetConditional(handle, *cancelled == 0);
}

static double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Adds `count` kernels behind `last`, if there is one, and returns the last.
static cudaGraphNode_t chain(cudaGraph_t graph, int count, unsigned spin_ns, cudaGraphNode_t last) {
  for (int i = 0; i < count; ++i) {
    void* arguments[] = {&counted, &spin_ns};
    cudaKernelNodeParams params = {};
    params.func = (void*)work;
    params.gridDim = dim3(1);
    params.blockDim = dim3(32);
    params.kernelParams = arguments;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, &last, last != nullptr, &params));
    last = node;
  }
  return last;
}

// A part behind a kernel that looks at the flag, in a conditional node.
static cudaGraphNode_t gate(cudaGraph_t graph, int count, unsigned spin_ns, cudaGraphNode_t last) {
  cudaGraphConditionalHandle handle;
  CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
  void* arguments[] = {&flag_there, &handle};
  cudaKernelNodeParams params = {};
  params.func = (void*)look;
  params.gridDim = dim3(1);
  params.blockDim = dim3(1);
  params.kernelParams = arguments;
  cudaGraphNode_t looking, node;
  CHECK(cudaGraphAddKernelNode(&looking, graph, &last, last != nullptr, &params));
  cudaGraphNodeParams both = {};
  both.type = cudaGraphNodeTypeConditional;
  both.conditional.handle = handle;
  both.conditional.type = cudaGraphCondTypeIf;
  both.conditional.size = 1;
  CHECK(cudaGraphAddNode(&node, graph, &looking, nullptr, 1, &both));
  (void)chain(both.conditional.phGraph_out[0], count, spin_ns, nullptr);
  return node;
}

static cudaGraphExec_t build(int count, int part, unsigned spin_ns, bool is_gated) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaGraphNode_t last = nullptr;
  CHECK(cudaGraphCreate(&graph, 0));
  for (int done = 0; done < count; done += part)
    last = (is_gated ? gate : chain)(graph, std::min(part, count - done), spin_ns, last);
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphUpload(exec, 0));
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaGraphDestroy(graph));
  return exec;
}

// Medians of the submission and of the time to completion, in us.
template <class Launch> static void timed(const char* name, int runs, Launch launch) {
  std::vector<double> submissions, all;
  for (int i = 0; i < runs; ++i) {
    const double begin = now_us();
    launch();
    const double enqueued = now_us();
    CHECK(cudaDeviceSynchronize());
    submissions.push_back(enqueued - begin);
    all.push_back(now_us() - begin);
  }
  std::sort(submissions.begin(), submissions.end());
  std::sort(all.begin(), all.end());
  printf("%s %.1f / %.1f; ", name, submissions[runs / 2], all[runs / 2]);
}

static void compare(cudaStream_t stream, int count, unsigned spin_ns) {
  const int runs = count * spin_ns > 1000000 ? 15 : 41, part = std::max(1, count / 10);
  char name[64];
  printf("%4d x %2u us: ", count, spin_ns / 1000);
  cudaGraphExec_t whole = build(count, count, spin_ns, false);
  timed("one graph", runs, [&] { CHECK(cudaGraphLaunch(whole, stream)); });
  for (const int size : {count, count / 2, part}) {
    cudaGraphExec_t gated = build(count, size, spin_ns, true);
    snprintf(name, sizeof name, "a gate each %d", size);
    timed(name, runs, [&] { CHECK(cudaGraphLaunch(gated, stream)); });
    CHECK(cudaGraphExecDestroy(gated));
  }
  cudaGraphExec_t tenth = build(part, part, spin_ns, false);
  timed("10 launches", runs, [&] {
    for (int i = 0; i < 10; ++i)
      CHECK(cudaGraphLaunch(tenth, stream));
  });
  cudaEvent_t ends[2];
  for (cudaEvent_t& end : ends)
    CHECK(cudaEventCreateWithFlags(&end, cudaEventDisableTiming | cudaEventBlockingSync));
  timed("two at a time", runs, [&] {
    for (int i = 0; i < 10; ++i) {
      if (i >= 2)
        CHECK(cudaEventSynchronize(ends[i & 1]));
      CHECK(cudaGraphLaunch(tenth, stream));
      CHECK(cudaEventRecord(ends[i & 1], stream));
    }
  });
  printf("\n");
  for (const cudaEvent_t end : ends)
    CHECK(cudaEventDestroy(end));
  CHECK(cudaGraphExecDestroy(whole));
  CHECK(cudaGraphExecDestroy(tenth));
}

// 20 launches are enqueued, and cancelled while they run.
static void cancel(cudaStream_t stream, int part) {
  enum { KERNELS = 1000, LAUNCHES = 20, RUNS = 9 };
  cudaGraphExec_t exec = build(KERNELS, part, 50000, true);
  std::vector<double> late;
  unsigned ran = 0;
  for (int i = 0; i < RUNS; ++i) {
    *(volatile unsigned*)flag = 0;
    CHECK(cudaMemset(counted, 0, sizeof *counted));
    CHECK(cudaDeviceSynchronize());
    for (int k = 0; k < LAUNCHES; ++k)
      CHECK(cudaGraphLaunch(exec, stream));
    usleep(20000);
    const double begin = now_us();
    *(volatile unsigned*)flag = 1;
    CHECK(cudaDeviceSynchronize());
    late.push_back(now_us() - begin);
    CHECK(cudaMemcpy(&ran, counted, sizeof ran, cudaMemcpyDeviceToHost));
  }
  std::sort(late.begin(), late.end());
  printf(
      "cancelled, a gate each %d of %d x %d kernels of 50 us: idle after %.0f us, %u kernels ran\n",
      part, LAUNCHES, KERNELS, late[RUNS / 2], ran);
  CHECK(cudaGraphExecDestroy(exec));
}

int main() {
  cudaStream_t stream;
  CHECK(cudaMalloc(&counted, sizeof *counted));
  CHECK(cudaHostAlloc(&flag, sizeof *flag, cudaHostAllocMapped));
  CHECK(cudaHostGetDevicePointer(&flag_there, flag, 0));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  *(volatile unsigned*)flag = 0;
  printf("us, submission / to completion, medians; a chain of kernels\n");
  for (const int count : {10, 100, 1000}) {
    for (const unsigned spin_ns : {0u, 5000u, 50000u}) {
      if (count * spin_ns <= 6000000)
        compare(stream, count, spin_ns);
    }
  }
  cancel(stream, 10);
  cancel(stream, 100);
  return 0;
}
