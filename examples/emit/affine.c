/* examples/emit/affine.c - the one kernel of the example, for processors: y = a * x + b, a share of
 * the elements for each workgroup. It may use nothing but accrt/kernel.h. */
#include <accrt/kernel.h>

ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS()

typedef struct affine_params {
  const float* x;
  float* y;
  int64_t n;
  float a;
  float b;
} affine_params_t;

enum { SHARE = 256 };

static int32_t affine(const accrt_kernel_environment_t* environment,
                      const accrt_kernel_dispatch_t* dispatch,
                      const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const affine_params_t* p = dispatch->params;
  const int64_t first = (int64_t)workgroup->workgroup_id[0] * SHARE;
  const int64_t last = first + SHARE < p->n ? first + SHARE : p->n;
  for (int64_t i = first; i < last; ++i)
    p->y[i] = p->a * p->x[i] + p->b;
  return 0;
}

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(affine_params_t, x, BUFFER, READ),
    ACCRT_KERNEL_PARAM(affine_params_t, y, BUFFER, WRITE),
    ACCRT_KERNEL_PARAM(affine_params_t, n, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(affine_params_t, a, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(affine_params_t, b, SCALAR, NONE),
};

static const accrt_kernel_def_t kernels[] = {{
    .struct_size = sizeof(accrt_kernel_def_t),
    .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC,
    .name = "affine",
    .entry = affine,
    .params = params,
    .param_count = 5,
    .params_size_bytes = sizeof(affine_params_t),
}};

static const accrt_kernel_pack_table_t table = {
    .struct_size = sizeof(accrt_kernel_pack_table_t),
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "affine",
    .kernels = kernels,
    .kernel_count = 1,
    .kernel_size_bytes = sizeof(accrt_kernel_def_t),
};

ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t*
accrt_kernel_pack_query(uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  if (max_abi < ACCRT_KERNEL_ABI_VERSION)
    return 0;
  accrt_kernel_bind(environment);
  return &table;
}
