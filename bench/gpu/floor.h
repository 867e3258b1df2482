/* bench/gpu/floor.h - what the raw-driver benchmarks share: the CUDA driver opened at run time, a
 * clock, medians of interleaved variants. It uses nothing of the library: it measures what the
 * library is held against. */
#ifndef ACCRT_BENCH_FLOOR_H_
#define ACCRT_BENCH_FLOOR_H_

#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "floor_kernels.h"

/* name, version that has the wanted signature */
#define FLOOR_SYMBOLS(X)                                                                           \
  X(cuInit, 12000)                                                                                 \
  X(cuDriverGetVersion, 12000)                                                                     \
  X(cuDeviceGet, 12000)                                                                            \
  X(cuDeviceGetName, 12000)                                                                        \
  X(cuDevicePrimaryCtxRetain, 12000)                                                               \
  X(cuCtxSetCurrent, 12000)                                                                        \
  X(cuCtxGetCurrent, 12000)                                                                        \
  X(cuCtxPushCurrent, 12000)                                                                       \
  X(cuCtxPopCurrent, 12000)                                                                        \
  X(cuGetErrorName, 12000)                                                                         \
  X(cuLibraryLoadData, 12000)                                                                      \
  X(cuLibraryGetKernel, 12000)                                                                     \
  X(cuKernelGetFunction, 12000)                                                                    \
  X(cuFuncLoad, 12040)                                                                             \
  X(cuMemAlloc, 12000)                                                                             \
  X(cuMemFree, 12000)                                                                              \
  X(cuMemGetInfo, 12000)                                                                           \
  X(cuMemHostAlloc, 12000)                                                                         \
  X(cuMemcpyDtoH, 12000)                                                                           \
  X(cuMemcpyHtoD, 12000)                                                                           \
  X(cuMemsetD32, 12000)                                                                            \
  X(cuMemsetD8Async, 12000)                                                                        \
  X(cuMemcpyAsync, 12000)                                                                          \
  X(cuStreamCreateWithPriority, 12000)                                                             \
  X(cuStreamCreate, 12000)                                                                         \
  X(cuStreamSynchronize, 12000)                                                                    \
  X(cuStreamQuery, 12000)                                                                          \
  X(cuStreamIsCapturing, 12000)                                                                    \
  X(cuStreamBeginCapture, 12000)                                                                   \
  X(cuStreamBeginCaptureToGraph, 12030)                                                            \
  X(cuStreamEndCapture, 12000)                                                                     \
  X(cuStreamWriteValue64, 12000)                                                                   \
  X(cuThreadExchangeStreamCaptureMode, 12000)                                                      \
  X(cuEventCreate, 12000)                                                                          \
  X(cuEventRecord, 12000)                                                                          \
  X(cuEventQuery, 12000)                                                                           \
  X(cuEventSynchronize, 12000)                                                                     \
  X(cuStreamWaitEvent, 12000)                                                                      \
  X(cuLaunchKernel, 12000)                                                                         \
  X(cuLaunchKernelEx, 12000)                                                                       \
  X(cuGraphCreate, 12000)                                                                          \
  X(cuGraphDestroy, 12000)                                                                         \
  X(cuGraphAddKernelNode, 12000)                                                                   \
  X(cuGraphAddMemcpyNode, 12000)                                                                   \
  X(cuGraphAddMemsetNode, 12000)                                                                   \
  X(cuGraphAddEmptyNode, 12000)                                                                    \
  X(cuGraphAddEventRecordNode, 12000)                                                              \
  X(cuGraphAddBatchMemOpNode, 12000)                                                               \
  X(cuGraphAddChildGraphNode, 12000)                                                               \
  X(cuGraphAddDependencies, 12030)                                                                 \
  X(cuGraphKernelNodeSetParams, 12000)                                                             \
  X(cuGraphKernelNodeSetAttribute, 12000)                                                          \
  X(cuGraphInstantiateWithFlags, 12000)                                                            \
  X(cuGraphExecDestroy, 12000)                                                                     \
  X(cuGraphExecKernelNodeSetParams, 12000)                                                         \
  X(cuGraphExecNodeSetParams, 12020)                                                               \
  X(cuGraphExecMemcpyNodeSetParams, 12000)                                                         \
  X(cuGraphExecMemsetNodeSetParams, 12000)                                                         \
  X(cuGraphExecUpdate, 12000)                                                                      \
  X(cuGraphNodeSetEnabled, 12000)                                                                  \
  X(cuGraphExecChildGraphNodeSetParams, 12000)                                                     \
  X(cuGraphUpload, 12000)                                                                          \
  X(cuGraphGetNodes, 12000)                                                                        \
  X(cuGraphLaunch, 12000)

#define FLOOR_DECLARE(name, version) __attribute__((unused)) static __typeof__(&name) p_##name;
FLOOR_SYMBOLS(FLOOR_DECLARE)
#undef FLOOR_DECLARE

static inline const char* floor_error(CUresult r) {
  const char* name = "?";
  if (p_cuGetErrorName != NULL)
    p_cuGetErrorName(r, &name);
  return name;
}

#define CHECK(call)                                                                                \
  do {                                                                                             \
    CUresult check_r = (call);                                                                     \
    if (check_r != CUDA_SUCCESS) {                                                                 \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, floor_error(check_r));                  \
      fflush(stdout);                                                                              \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static inline double floor_now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static CUcontext floor_context;
static CUdevice floor_device;
static CUlibrary floor_library, floor_library_90;

static inline void floor_load(void) {
  void* so = dlopen("libcuda.so.1", RTLD_NOW);
  if (so == NULL) {
    printf("no CUDA driver: %s\n", dlerror());
    exit(77);
  }
  typedef CUresult (*get_t)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  void* symbol = dlsym(so, "cuGetProcAddress_v2");
  get_t get;
  memcpy(&get, &symbol, sizeof get);
  CUdriverProcAddressQueryResult found;
  void* pointer;
#define FLOOR_RESOLVE(name, version)                                                               \
  pointer = NULL;                                                                                  \
  if (get(#name, &pointer, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) != CUDA_SUCCESS ||        \
      pointer == NULL)                                                                             \
    printf("missing %s\n", #name);                                                                 \
  memcpy(&p_##name, &pointer, sizeof pointer);
  FLOOR_SYMBOLS(FLOOR_RESOLVE)
#undef FLOOR_RESOLVE
}

static inline void floor_open(void) {
  floor_load();
  CHECK(p_cuInit(0));
  CHECK(p_cuDeviceGet(&floor_device, 0));
  CHECK(p_cuDevicePrimaryCtxRetain(&floor_context, floor_device));
  CHECK(p_cuCtxSetCurrent(floor_context));
  CHECK(p_cuLibraryLoadData(&floor_library, floor_ptx, NULL, NULL, 0, NULL, NULL, 0));
  CHECK(p_cuLibraryLoadData(&floor_library_90, floor_ptx_90, NULL, NULL, 0, NULL, NULL, 0));
  char name[128];
  int version;
  CHECK(p_cuDeviceGetName(name, sizeof name, floor_device));
  CHECK(p_cuDriverGetVersion(&version));
  printf("# %s, CUDA driver API %d\n", name, version);
}

static inline CUfunction floor_function(CUlibrary library, const char* name) {
  CUkernel kernel;
  CUfunction function;
  CHECK(p_cuLibraryGetKernel(&kernel, library, name));
  CHECK(p_cuKernelGetFunction(&function, kernel));
  return function;
}

/* ---- Medians ---- */

#define FLOOR_REPEATS 17
#define FLOOR_MAX_VARIANTS 40

/* Runs `count` operations, without waiting for them; what `self` points to says which. */
typedef struct floor_variant {
  const char* name;
  void (*run)(void* self, int count);
  void* self;
  double submit[FLOOR_REPEATS], total[FLOOR_REPEATS];
} floor_variant_t;

static inline int floor_compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static inline double floor_median(double* values, int count) {
  qsort(values, (size_t)count, sizeof *values, floor_compare);
  return values[count / 2];
}

/* Interleaved: every variant once per repeat. Prints us per operation: submit [quartiles], to
 * completion [quartiles]. */
static inline void floor_measure(const char* title, floor_variant_t* variants, int variant_count,
                                 int count, CUstream stream) {
  printf("## %s: us per operation, %d in a row, median of %d [quartiles]\n", title, count,
         FLOOR_REPEATS);
  for (int r = -2; r < FLOOR_REPEATS; ++r) {
    for (int v = 0; v < variant_count; ++v) {
      CHECK(p_cuStreamSynchronize(stream));
      const double t0 = floor_now_us();
      variants[v].run(variants[v].self, count);
      const double t1 = floor_now_us();
      CHECK(p_cuStreamSynchronize(stream));
      const double t2 = floor_now_us();
      if (r < 0)
        continue;
      variants[v].submit[r] = (t1 - t0) / count;
      variants[v].total[r] = (t2 - t0) / count;
    }
  }
  for (int v = 0; v < variant_count; ++v) {
    const double s = floor_median(variants[v].submit, FLOOR_REPEATS);
    const double t = floor_median(variants[v].total, FLOOR_REPEATS);
    printf("%-46s submit %8.3f [%.3f %.3f]  done %8.3f [%.3f %.3f]\n", variants[v].name, s,
           variants[v].submit[FLOOR_REPEATS / 4], variants[v].submit[FLOOR_REPEATS * 3 / 4], t,
           variants[v].total[FLOOR_REPEATS / 4], variants[v].total[FLOOR_REPEATS * 3 / 4]);
  }
  fflush(stdout);
}

#endif
