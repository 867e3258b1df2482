/* examples/custom_kernel/squared_relu.c - y = scale * max(x, 0)^2, one workgroup for each 4096
 * elements. build.py makes squared_relu_params_t and includes accrt/kernel.h before this. */
#define BLOCK 4096

int32_t squared_relu(const accrt_kernel_environment_t* environment,
                     const accrt_kernel_dispatch_t* dispatch,
                     const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const squared_relu_params_t* p = dispatch->params;
  const int64_t first = (int64_t)workgroup->workgroup_id[0] * BLOCK;
  const int64_t last = first + BLOCK < p->n ? first + BLOCK : p->n;
  for (int64_t i = first; i < last; ++i) {
    const float x = p->x[i] > 0 ? p->x[i] : 0;
    p->y[i] = p->scale * x * x;
  }
  return 0;
}
