/* scale_add - the smallest useful kernel pack: y = a * x + y over f32, a share of the elements for
 * each workgroup. It may use nothing but accrt/kernel.h. */
#include "accrt/kernel.h"

ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS()

typedef struct scale_add_params {
  const float* x;
  float* y;
  int64_t n;
  float a;
} scale_add_params_t;

enum { SHARE = 1024 };

static int32_t scale_add(const accrt_kernel_environment_t* environment,
                         const accrt_kernel_dispatch_t* dispatch,
                         const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const scale_add_params_t* p = dispatch->params;
  int64_t first = (int64_t)workgroup->workgroup_id[0] * SHARE;
  int64_t last = first + SHARE < p->n ? first + SHARE : p->n;
  for (int64_t i = first; i < last; i++)
    p->y[i] = p->a * p->x[i] + p->y[i];
  return 0;
}

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(scale_add_params_t, x, BUFFER, READ),
    ACCRT_KERNEL_PARAM(scale_add_params_t, y, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(scale_add_params_t, n, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(scale_add_params_t, a, SCALAR, NONE),
};

static const accrt_kernel_def_t kernels[] = {{
    .struct_size = sizeof(accrt_kernel_def_t),
    .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC,
    .name = "scale_add",
    .entry = scale_add,
    .params = params,
    .param_count = 4,
    .params_size_bytes = sizeof(scale_add_params_t),
    .source_file = "scale_add.c",
    .source_line = 18,
}};

static const accrt_kernel_pack_table_t table = {
    .struct_size = sizeof(accrt_kernel_pack_table_t),
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "scale_add",
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
