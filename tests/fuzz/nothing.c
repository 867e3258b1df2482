/* tests/fuzz/nothing.c - a kernel that touches nothing, whatever it is given: for the fuzzer of the Python surface. It may use nothing
 * but accrt/kernel.h. */
#include "accrt/kernel.h"

ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS()

typedef struct nothing_params {
  const float* x;
  float* y;
  int64_t n;
  float a;
} nothing_params_t;

static int32_t nothing(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return 0;
}

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(nothing_params_t, x, BUFFER, READ),
    ACCRT_KERNEL_PARAM(nothing_params_t, y, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(nothing_params_t, n, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(nothing_params_t, a, SCALAR, NONE),
};

static const accrt_kernel_def_t kernels[] = {{
    .struct_size = sizeof(accrt_kernel_def_t),
    .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC,
    .name = "nothing",
    .entry = nothing,
    .params = params,
    .param_count = 4,
    .params_size_bytes = sizeof(nothing_params_t),
    .source_file = "nothing.c",
    .source_line = 17,
}};

static const accrt_kernel_pack_table_t table = {
    .struct_size = sizeof(accrt_kernel_pack_table_t),
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "nothing",
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
