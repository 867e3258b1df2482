/* bench/gpu/gpu.h - what the GPU benchmarks share: the raw driver's entry points, samples, tables,
 * JSON. Header only.
 *
 * The raw driver is the floor: it is called here as a careful program would call it, from the same
 * process, on the same primary context, interleaved with what is measured. Measures nothing by
 * itself. */
#ifndef ACCRT_BENCH_GPU_GPU_H_
#define ACCRT_BENCH_GPU_GPU_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "accrt/accrt.h"

/* ---- The raw driver ---- */

#define RAW_FUNCTIONS(X)                                                                           \
  X(cuInit, 2000)                                                                                  \
  X(cuDriverGetVersion, 2020)                                                                      \
  X(cuDeviceGet, 2000)                                                                             \
  X(cuDeviceGetName, 2000)                                                                         \
  X(cuDevicePrimaryCtxRetain, 7000)                                                                \
  X(cuCtxSetCurrent, 4000)                                                                         \
  X(cuModuleLoadData, 2000)                                                                        \
  X(cuModuleGetFunction, 2000)                                                                     \
  X(cuMemAlloc, 3020)                                                                              \
  X(cuMemFree, 3020)                                                                               \
  X(cuMemAllocAsync, 11020)                                                                        \
  X(cuMemFreeAsync, 11020)                                                                         \
  X(cuMemHostAlloc, 2020)                                                                          \
  X(cuMemFreeHost, 2000)                                                                           \
  X(cuMemcpyHtoD, 3020)                                                                            \
  X(cuMemcpyDtoH, 3020)                                                                            \
  X(cuMemcpyHtoDAsync, 3020)                                                                       \
  X(cuMemcpyDtoDAsync, 3020)                                                                       \
  X(cuStreamCreate, 2000)                                                                          \
  X(cuStreamSynchronize, 2000)                                                                     \
  X(cuStreamQuery, 2000)                                                                           \
  X(cuStreamWaitEvent, 3020)                                                                       \
  X(cuEventCreate, 2000)                                                                           \
  X(cuEventRecord, 2000)                                                                           \
  X(cuEventQuery, 2000)                                                                            \
  X(cuEventSynchronize, 2000)                                                                      \
  X(cuEventElapsedTime, 2000)                                                                      \
  X(cuLaunchKernel, 4000)                                                                          \
  X(cuGraphCreate, 10000)                                                                          \
  X(cuGraphAddKernelNode, 12000)                                                                   \
  X(cuGraphInstantiateWithFlags, 11040)                                                            \
  X(cuGraphUpload, 11010)                                                                          \
  X(cuGraphExecKernelNodeSetParams, 12000)                                                         \
  X(cuGraphLaunch, 10000)                                                                          \
  X(cuGetErrorName, 6000)

/* The newest form of each is asked for by name and version, so none of cuda.h's macros may rename
 * them here. */
typedef struct raw_driver {
  void* library;
  CUdevice device;
  CUcontext context;
  CUresult (*get_proc)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
#define X(name, version) void* name##_address;
  RAW_FUNCTIONS(X)
#undef X
} raw_driver_t;

static raw_driver_t raw;
static inline void raw_check(CUresult result, const char* what);
#define RAW(name) ((__typeof__(&name))raw.name##_address)
#define RAW_CALL(name, ...) raw_check(((__typeof__(&name))raw.name##_address)(__VA_ARGS__), #name)

static inline void die(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static inline void raw_check(CUresult result, const char* what) {
  const char* name = "?";
  if (result == CUDA_SUCCESS)
    return;
  RAW(cuGetErrorName)(result, &name);
  die(what, name);
}

static inline void raw_open(int index) {
  raw.library = dlopen("libcuda.so.1", RTLD_NOW);
  if (raw.library == NULL)
    die("libcuda.so.1", dlerror());
  *(void**)&raw.get_proc = dlsym(raw.library, "cuGetProcAddress_v2");
  if (raw.get_proc == NULL)
    die("cuGetProcAddress_v2", "the driver is too old");
#define X(name, version)                                                                           \
  if (raw.get_proc(#name, &raw.name##_address, version, 0, NULL) != CUDA_SUCCESS ||                \
      raw.name##_address == NULL)                                                                  \
    die(#name, "not in this driver");
  RAW_FUNCTIONS(X)
#undef X
  RAW_CALL(cuInit, 0);
  RAW_CALL(cuDeviceGet, &raw.device, index);
  RAW_CALL(cuDevicePrimaryCtxRetain, &raw.context, raw.device);
  RAW_CALL(cuCtxSetCurrent, raw.context);
}

/* ---- The library ---- */

static inline void check(accrt_status_t status, const char* what) {
  if (status == ACCRT_OK)
    return;
  accrt_error_t error = ACCRT_ERROR_INIT;
  accrt_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", what, accrt_status_name(status), error.message);
  exit(1);
}
#define CHECK(call) check(call, #call)

/* ---- Samples ---- */

#define MAX_SAMPLES 256
#define MAX_ROWS 64

/* One line of a table: nanoseconds (or GB/s, say) per operation, and what it is held against. */
typedef struct row {
  char name[96];
  const char* unit;
  int against; /* row of the floor, or -1 */
  double
      limit; /* asked for: ratio to the floor, or, without a floor, the value itself; 0: nothing */
  int more_is_better;
  int count;
  double samples[MAX_SAMPLES];
} row_t;

typedef struct table {
  const char* title;
  row_t rows[MAX_ROWS];
  int count;
} table_t;

static inline int add_row(table_t* table, const char* name, const char* unit, int against,
                          double limit) {
  if (table->count == MAX_ROWS)
    die(table->title, "too many rows");
  row_t* row = &table->rows[table->count];
  snprintf(row->name, sizeof row->name, "%s", name);
  row->unit = unit;
  row->against = against;
  row->limit = limit;
  return table->count++;
}

static inline void add_sample(table_t* table, int row, double value) {
  row_t* r = &table->rows[row];
  if (r->count < MAX_SAMPLES)
    r->samples[r->count++] = value;
}

static inline double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static inline int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static inline double quantile(row_t* row, double q) {
  if (row->count == 0)
    return NAN;
  qsort(row->samples, (size_t)row->count, sizeof(double), by_value);
  return row->samples[(int)(q * (row->count - 1) + 0.5)];
}

static inline void show_table(table_t* table) {
  printf("\n%s\n  %-66s %10s %10s %10s  %7s %7s\n", table->title, "", "median", "p25", "p75",
         "ratio", "asked");
  for (int i = 0; i < table->count; ++i) {
    row_t* row = &table->rows[i];
    printf("  %-66s %10.1f %10.1f %10.1f %-4s", row->name, quantile(row, 0.5), quantile(row, 0.25),
           quantile(row, 0.75), row->unit);
    if (row->against >= 0)
      printf(" %6.3f", quantile(row, 0.5) / quantile(&table->rows[row->against], 0.5));
    else
      printf(" %6s", "");
    if (row->limit != 0)
      printf("  %s%.4g", row->more_is_better ? ">=" : "<=", row->limit);
    printf("\n");
  }
}

/* Appends the table as one JSON object to NAME.json in $ACCRT_BENCH_RESULTS (or the current
 * folder). */
static inline void save_table(table_t* table, const char* name) {
  const char* folder = getenv("ACCRT_BENCH_RESULTS");
  char path[512], gpu[128] = "";
  int version = 0;
  snprintf(path, sizeof path, "%s/%s.json", folder != NULL ? folder : ".", name);
  RAW_CALL(cuDeviceGetName, gpu, (int)sizeof gpu, raw.device);
  RAW_CALL(cuDriverGetVersion, &version);
  FILE* file = fopen(path, "w");
  if (file == NULL)
    die(path, "cannot be written");
  fprintf(file, "{\"title\": \"%s\", \"gpu\": \"%s\", \"cuda_driver\": %d, \"rows\": [",
          table->title, gpu, version);
  for (int i = 0; i < table->count; ++i) {
    row_t* row = &table->rows[i];
    fprintf(file,
            "%s\n {\"name\": \"%s\", \"unit\": \"%s\", \"median\": %.4f, \"p25\": %.4f, "
            "\"p75\": %.4f, \"samples\": %d",
            i == 0 ? "" : ",", row->name, row->unit, quantile(row, 0.5), quantile(row, 0.25),
            quantile(row, 0.75), row->count);
    if (row->against >= 0)
      fprintf(file, ", \"against\": \"%s\", \"ratio\": %.4f", table->rows[row->against].name,
              quantile(row, 0.5) / quantile(&table->rows[row->against], 0.5));
    if (row->limit != 0)
      fprintf(file, ", \"asked\": %.4g", row->limit);
    fprintf(file, "}");
  }
  fprintf(file, "\n]}\n");
  fclose(file);
}

#endif /* ACCRT_BENCH_GPU_GPU_H_ */
