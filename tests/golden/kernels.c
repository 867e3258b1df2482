/* tests/golden/kernels.c - the kernels of the golden bundles: freestanding, one of every kind of
 * parameter. make.py compiles it. */
#include "accrt/kernel.h"

ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS()

typedef struct axpb_params {
  const float* x;
  const float* bias; /* NULL: no bias */
  float* y;
  float alpha;
  int64_t n;
} axpb_params_t;

/* y = alpha * x + bias, 256 elements a workgroup. */
static int32_t axpb(const accrt_kernel_environment_t* environment,
                    const accrt_kernel_dispatch_t* dispatch,
                    const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const axpb_params_t* p = dispatch->params;
  const int64_t begin = (int64_t)workgroup->workgroup_id[0] * 256;
  const int64_t end = begin + 256 < p->n ? begin + 256 : p->n;
  for (int64_t i = begin; i < end; ++i)
    p->y[i] = p->alpha * p->x[i] + (p->bias != 0 ? p->bias[i] : 0.0f);
  return 0;
}

typedef struct rows_params {
  accrt_kernel_tensor_t x;
  float* sum;
  double* scratch;
  uint8_t square;
} rows_params_t;

/* sum[r] = sum of x[r, :] (of squares), one row a workgroup, through a workspace of one double a
 * row. */
static int32_t rows(const accrt_kernel_environment_t* environment,
                    const accrt_kernel_dispatch_t* dispatch,
                    const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const rows_params_t* p = dispatch->params;
  const int64_t row = workgroup->workgroup_id[0];
  const float* x = (const float*)p->x.data + row * p->x.strides[0];
  p->scratch[row] = 0;
  for (int64_t i = 0; i < p->x.shape[1]; ++i) {
    const double value = x[i * p->x.strides[1]];
    p->scratch[row] += p->square ? value * value : value;
  }
  p->sum[row] = (float)p->scratch[row];
  return 0;
}

typedef struct reverse_params {
  const float* source;
  float* target;
  int64_t n;
} reverse_params_t;

static int32_t reverse(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  const reverse_params_t* p = dispatch->params;
  for (int64_t i = 0; i < p->n; ++i)
    p->target[i] = p->source[p->n - 1 - i];
  return 0;
}

static const accrt_kernel_param_t axpb_list[] = {
    ACCRT_KERNEL_PARAM(axpb_params_t, x, BUFFER, READ),
    {"bias", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ, ACCRT_KERNEL_PARAM_FLAG_OPTIONAL,
     3, offsetof(axpb_params_t, bias), 8, 0},
    ACCRT_KERNEL_PARAM(axpb_params_t, y, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(axpb_params_t, alpha, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(axpb_params_t, n, SYMBOL, NONE),
};
static const accrt_kernel_param_t rows_list[] = {
    ACCRT_KERNEL_PARAM(rows_params_t, x, TENSOR, READ),
    ACCRT_KERNEL_PARAM(rows_params_t, sum, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(rows_params_t, scratch, WORKSPACE, READ_WRITE),
    ACCRT_KERNEL_PARAM(rows_params_t, square, SCALAR, NONE),
};
static const accrt_kernel_param_t reverse_list[] = {
    ACCRT_KERNEL_PARAM(reverse_params_t, source, BUFFER, READ),
    ACCRT_KERNEL_PARAM(reverse_params_t, target, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(reverse_params_t, n, SYMBOL, NONE),
};
#define KERNEL(name, list, type)                                                                   \
  {                                                                                                \
    sizeof(accrt_kernel_def_t), ACCRT_KERNEL_TRAIT_DETERMINISTIC, #name, name, list,               \
        sizeof list / sizeof list[0], sizeof(type), 0, 0, 0, "kernels.c", 0, 0                     \
  }
static const accrt_kernel_def_t kernels[] = {
    KERNEL(axpb, axpb_list, axpb_params_t),
    KERNEL(reverse, reverse_list, reverse_params_t),
    KERNEL(rows, rows_list, rows_params_t),
};
static const accrt_kernel_pack_table_t table = {sizeof(accrt_kernel_pack_table_t),
                                                ACCRT_KERNEL_ABI_VERSION,
                                                "golden",
                                                kernels,
                                                3,
                                                sizeof(accrt_kernel_def_t),
                                                0,
                                                0,
                                                0};

ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t*
accrt_kernel_pack_query(uint32_t max_abi, const accrt_kernel_environment_t* environment);
const accrt_kernel_pack_table_t*
accrt_kernel_pack_query(uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  if (max_abi < ACCRT_KERNEL_ABI_VERSION)
    return 0;
  accrt_kernel_bind(environment);
  return &table;
}
