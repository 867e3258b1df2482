/* tests/python/kernel_mistakes.c - kernels for `accx kernel check` and accrt.Kernel.check: one that
 * keeps what it declares, and one for each way not to. Each is y = 2 * x, 256 elements a workgroup. */
#include "accrt/kernel.h"

typedef struct params {
  const float* x;
  float* y;
  int64_t n;
} params_t;

#define ENTRY(name)                                                                                \
  static void name##_at(float* x, float* y, int64_t n, int64_t i);                                 \
  static int32_t name(const accrt_kernel_environment_t* environment,                               \
                      const accrt_kernel_dispatch_t* dispatch,                                     \
                      const accrt_kernel_workgroup_t* workgroup) {                                 \
    const params_t* p = dispatch->params;                                                          \
    const int64_t first = (int64_t)workgroup->workgroup_id[0] * 256;                               \
    (void)environment;                                                                             \
    for (int64_t i = first; i < first + 256 && i < p->n; ++i)                                      \
      name##_at((float*)p->x, p->y, p->n, i);                                                      \
    return 0;                                                                                      \
  }                                                                                                \
  static void name##_at(float* x, float* y, int64_t n, int64_t i)

static volatile float sink;
static volatile int64_t zero, calls;

ENTRY(good) {
  (void)n;
  y[i] = 2 * x[i];
}
ENTRY(writes_after) {
  y[n] = y[i] = 2 * x[i];
}
ENTRY(writes_before) {
  (void)n;
  y[i] = 2 * x[i];
  y[-1] = 0;
}
ENTRY(writes_far_after) {
  y[i] = 2 * x[i];
  y[n + (1 << 18)] = 0; /* 1 MiB */
}
ENTRY(reads_after) {
  y[i] = 2 * x[i];
  if (i == n - 1)
    sink = ((volatile float*)x)[n];
}
ENTRY(reads_before) {
  (void)n;
  y[i] = 2 * x[i];
  sink = ((volatile float*)x)[-1];
}
ENTRY(differs) {
  (void)n;
  y[i] = 2 * x[i] + (float)calls++;
}
ENTRY(writes_read) {
  (void)n;
  y[i] = 2 * x[i];
  x[i] += 1;
}
ENTRY(writes_same) { /* the bytes that are there */
  (void)n;
  y[i] = 2 * x[i];
  ((volatile float*)x)[i] = x[i];
}
ENTRY(leaves) {
  if (i < n - 1 || n == 1)
    y[i] = 2 * x[i];
}
ENTRY(crashes) {
  (void)n;
  y[i] = 2 * x[i];
  sink = *(volatile float*)zero;
}
ENTRY(endless) {
  y[i] = 2 * x[i];
  while (n == 37 && zero == 0) {
  }
}
ENTRY(remembers) { /* the address of its first run */
  static float* volatile first;
  (void)n;
  if (!first)
    first = y;
  first[i] = 2 * x[i];
}

static int32_t divides(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* workgroup) {
  const params_t* p = dispatch->params;
  if (p->n < 0x7FFFFFFF)
    sink = (float)(100 / p->n); /* there is no element 0 of nothing */
  return good(environment, dispatch, workgroup);
}

static int32_t touches_nothing(const accrt_kernel_environment_t* environment,
                               const accrt_kernel_dispatch_t* dispatch,
                               const accrt_kernel_workgroup_t* workgroup) {
  const params_t* p = dispatch->params;
  if (workgroup->workgroup_id[0] == 0)
    p->y[0] = 2 * p->x[0]; /* also if n is 0 */
  return good(environment, dispatch, workgroup);
}

static int32_t changes_parameters(const accrt_kernel_environment_t* environment,
                                  const accrt_kernel_dispatch_t* dispatch,
                                  const accrt_kernel_workgroup_t* workgroup) {
  const params_t* p = dispatch->params;
  const int32_t code = good(environment, dispatch, workgroup);
  if (p->n <= 256) /* one workgroup: no other one reads it */
    ((params_t*)(uintptr_t)dispatch->params)->n = 0;
  return code;
}

static int32_t writes_later(const accrt_kernel_environment_t* environment,
                            const accrt_kernel_dispatch_t* dispatch,
                            const accrt_kernel_workgroup_t* workgroup) {
  params_t* p = (params_t*)(uintptr_t)dispatch->params;
  const int32_t code = good(environment, dispatch, workgroup);
  if (p->n <= 256) /* in the next run from the same block of parameters */
    p->y += 1;
  return code;
}

static int32_t refuses(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* workgroup) {
  const params_t* p = dispatch->params;
  return p->n == 37 ? 9 : good(environment, dispatch, workgroup);
}

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(params_t, x, BUFFER, READ),
    ACCRT_KERNEL_PARAM(params_t, y, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(params_t, n, SYMBOL, NONE),
};

/* What bundles may call: any number may come. */
typedef struct open_params {
  const float* x;
  float* y;
  int64_t n, x_bytes, y_bytes;
} open_params_t;

static int32_t keeps_lengths(const accrt_kernel_environment_t* environment,
                             const accrt_kernel_dispatch_t* dispatch,
                             const accrt_kernel_workgroup_t* workgroup) {
  const open_params_t* p = dispatch->params;
  (void)environment;
  if (p->n < 0 || p->n > p->x_bytes / 4 || p->n > p->y_bytes / 4)
    return 3;
  if (workgroup->workgroup_id[0] == 0) {
    for (int64_t i = 0; i < p->n; ++i)
      p->y[i] = 2 * p->x[i];
  }
  return 0;
}

static int32_t trusts_numbers(const accrt_kernel_environment_t* environment,
                              const accrt_kernel_dispatch_t* dispatch,
                              const accrt_kernel_workgroup_t* workgroup) {
  const open_params_t* p = dispatch->params;
  (void)environment;
  (void)workgroup;
  if (p->n * 4 > p->y_bytes) /* overflows */
    return 3;
  if (p->n > 0)
    p->y[p->n - 1] = 2;
  return 0;
}

static const accrt_kernel_param_t open_params[] = {
    ACCRT_KERNEL_PARAM(open_params_t, x, BUFFER, READ),
    ACCRT_KERNEL_PARAM(open_params_t, y, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(open_params_t, n, SYMBOL, NONE),
    ACCRT_KERNEL_LENGTH(open_params_t, x_bytes),
    ACCRT_KERNEL_LENGTH(open_params_t, y_bytes),
};

#define DEFINITION(kernel, traits_, params_, type)                                                 \
  {                                                                                                \
    .struct_size = sizeof(accrt_kernel_def_t), .traits = (traits_), .name = #kernel,               \
    .entry = kernel, .params = params_, .param_count = sizeof params_ / sizeof params_[0],         \
    .params_size_bytes = sizeof(type)                                                              \
  }
#define KERNEL(kernel) DEFINITION(kernel, ACCRT_KERNEL_TRAIT_DETERMINISTIC, params, params_t)
#define OPEN(kernel)                                                                               \
  DEFINITION(kernel, ACCRT_KERNEL_TRAIT_DETERMINISTIC | ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL,       \
             open_params, open_params_t)

#ifndef ONLY
#define ONLY                                                                                       \
  KERNEL(good), KERNEL(writes_after), KERNEL(writes_before), KERNEL(writes_far_after),             \
      KERNEL(reads_after), KERNEL(reads_before), KERNEL(differs), KERNEL(writes_read),             \
      KERNEL(writes_same), KERNEL(leaves), KERNEL(crashes), KERNEL(endless), KERNEL(remembers),    \
      KERNEL(divides), KERNEL(touches_nothing), KERNEL(refuses), KERNEL(changes_parameters),       \
      KERNEL(writes_later), OPEN(keeps_lengths), OPEN(trusts_numbers), {                           \
    .struct_size = sizeof(accrt_kernel_def_t), .name = "says_it_differs", .entry = differs,        \
    .params = params, .param_count = 3, .params_size_bytes = sizeof(params_t)                      \
  }
#endif

static const accrt_kernel_def_t kernels[] = {ONLY};

ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t*
accrt_kernel_pack_query(uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  static const accrt_kernel_pack_table_t table = {
      .struct_size = sizeof table,
      .abi_version = ACCRT_KERNEL_ABI_VERSION,
      .name = "mistakes",
      .kernels = kernels,
      .kernel_count = sizeof kernels / sizeof kernels[0],
      .kernel_size_bytes = sizeof kernels[0],
  };
  (void)environment;
#ifdef CRASH_AT_LOAD
  sink = *(volatile float*)zero;
#endif
  return max_abi < ACCRT_KERNEL_ABI_VERSION ? 0 : &table;
}
