/* tests/cts/kernels.c - the suite's own kernel pack, registered by the program. Written like any
 * pack: accrt/kernel.h is all that its kernels need.
 */
#include "cts.h"

/* Writes into buffer[0..] what it got through every other kind of parameter. */
static int32_t everything(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  const cts_everything_params_t* p = dispatch->params;
  if (dispatch->params_size_bytes != sizeof *p || workgroup->local_memory != NULL)
    return 1;
  if (p->tensor.rank != 2 || p->tensor.dtype != ACCRT_DTYPE_F32)
    return 2;
  const float* data = p->tensor.data;
  float sum = 0;
  for (int64_t i = 0; i < p->tensor.shape[0]; ++i) {
    for (int64_t k = 0; k < p->tensor.shape[1]; ++k) {
      sum += data[i * p->tensor.strides[0] + k * p->tensor.strides[1]];
    }
  }
  p->workspace[0] = 11;
  p->buffer[0] = sum;
  p->buffer[1] = (float)p->tiny;
  p->buffer[2] = (float)p->narrow;
  p->buffer[3] = (float)p->wide;
  p->buffer[4] = (float)p->symbol;
  p->buffer[5] = (float)p->workspace[0];
  p->buffer[6] = p->optional == NULL ? -1.0f : p->optional[0];
  p->buffer[7] = (float)p->real;
  p->buffer[8] = environment->imports->expf(0.0f);
  return 0;
}

static const accrt_kernel_param_t everything_params[] = {
    ACCRT_KERNEL_PARAM(cts_everything_params_t, buffer, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(cts_everything_params_t, tensor, TENSOR, READ),
    ACCRT_KERNEL_PARAM(cts_everything_params_t, tiny, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(cts_everything_params_t, narrow, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(cts_everything_params_t, wide, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(cts_everything_params_t, symbol, SYMBOL, NONE),
    ACCRT_KERNEL_PARAM(cts_everything_params_t, workspace, WORKSPACE, READ_WRITE),
    {"optional", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ,
     ACCRT_KERNEL_PARAM_FLAG_OPTIONAL, 3, offsetof(cts_everything_params_t, optional),
     sizeof(float*), 0},
    ACCRT_KERNEL_PARAM(cts_everything_params_t, real, SCALAR, NONE),
};

/* Appends its number to a log. Only order keeps it right: nothing is atomic. */
static int32_t append(const accrt_kernel_environment_t* environment,
                      const accrt_kernel_dispatch_t* dispatch,
                      const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  const cts_append_params_t* p = dispatch->params;
  p->log[1 + p->log[0]] = p->number;
  ++p->log[0];
  return 0;
}

static const accrt_kernel_param_t append_params[] = {
    ACCRT_KERNEL_PARAM(cts_append_params_t, log, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(cts_append_params_t, number, SCALAR, NONE),
};

static int32_t fail_at(const accrt_kernel_environment_t* environment,
                       const accrt_kernel_dispatch_t* dispatch,
                       const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const cts_fail_params_t* p = dispatch->params;
  if (workgroup->workgroup_id[0] != p->workgroup)
    return 0;
  snprintf(workgroup->message, workgroup->message_capacity_bytes, "told to fail with %u", p->code);
  return (int32_t)p->code;
}

static const accrt_kernel_param_t fail_params[] = {
    ACCRT_KERNEL_PARAM(cts_fail_params_t, code, SCALAR, NONE),
    ACCRT_KERNEL_PARAM(cts_fail_params_t, workgroup, SCALAR, NONE),
};

/* Counts each workgroup in a cell of its own; checks its surroundings. */
static int32_t cover(const accrt_kernel_environment_t* environment,
                     const accrt_kernel_dispatch_t* dispatch,
                     const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const cts_cover_params_t* p = dispatch->params;
  const uint32_t* id = workgroup->workgroup_id;
  const uint32_t* count = dispatch->workgroup_count;
  if (id[0] >= count[0] || id[1] >= count[1] || id[2] >= count[2])
    return 1;
  if (workgroup->worker_id >= dispatch->worker_count)
    return 2;
  if ((uintptr_t)workgroup->local_memory % 64 != 0)
    return 3;
  if (workgroup->local_memory_size_bytes != 1024)
    return 4;
  if ((uintptr_t)dispatch->params % 16 != 0)
    return 5;
  const uint32_t index = id[0] + count[0] * (id[1] + count[1] * id[2]);
  volatile uint32_t* local = workgroup->local_memory;
  for (uint32_t i = 0; i < 256; ++i)
    local[i] = index;
  for (uint32_t i = 0; i < 256; ++i) {
    if (local[i] != index)
      return 6; /* somebody else wrote here */
  }
  ++p->cells[index];
  return 0;
}

static const accrt_kernel_param_t cover_params[] = {
    ACCRT_KERNEL_PARAM(cts_cover_params_t, cells, BUFFER, READ_WRITE),
};

/* Workgroups of a serial kernel come in order, one at a time. */
static int32_t serial(const accrt_kernel_environment_t* environment,
                      const accrt_kernel_dispatch_t* dispatch,
                      const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  const cts_cover_params_t* p = dispatch->params;
  if (p->cells[0] != workgroup->workgroup_id[0])
    return 1;
  ++p->cells[0];
  return 0;
}

/* Order shows in the result: neither commutative nor associative. */
static int32_t mix(const accrt_kernel_environment_t* environment,
                   const accrt_kernel_dispatch_t* dispatch,
                   const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)workgroup;
  const cts_mix_params_t* p = dispatch->params;
  p->target[0] = p->target[0] * 31u + p->source[0] + p->number;
  return 0;
}

static const accrt_kernel_param_t mix_params[] = {
    ACCRT_KERNEL_PARAM(cts_mix_params_t, target, BUFFER, READ_WRITE),
    ACCRT_KERNEL_PARAM(cts_mix_params_t, source, BUFFER, READ),
    ACCRT_KERNEL_PARAM(cts_mix_params_t, number, SCALAR, NONE),
};

/* Round to nearest, denormals kept. */
static int32_t check_float(const accrt_kernel_environment_t* environment,
                           const accrt_kernel_dispatch_t* dispatch,
                           const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  volatile float tiny = 1e-40f;
  volatile float one = 1.0f;
  if (tiny * one == 0.0f)
    return 1;
  volatile float third = one / 3.0f;
  return third == 0x1.555556p-2f ? 0 : 2;
}

/* At least ACCRT_KERNEL_STACK_BYTES of stack. */
static int32_t use_stack(const accrt_kernel_environment_t* environment,
                         const accrt_kernel_dispatch_t* dispatch,
                         const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  volatile char area[ACCRT_KERNEL_STACK_BYTES - 4096];
  for (size_t i = 0; i < sizeof area; i += 512)
    area[i] = (char)workgroup->worker_id;
  return area[0] == (char)workgroup->worker_id ? 0 : 1;
}

static int32_t do_nothing(const accrt_kernel_environment_t* environment,
                          const accrt_kernel_dispatch_t* dispatch,
                          const accrt_kernel_workgroup_t* workgroup) {
  (void)environment;
  (void)dispatch;
  (void)workgroup;
  return 0;
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define KERNEL(name_, function, params_, type, traits_, local)                                     \
  {                                                                                                \
    .struct_size = sizeof(accrt_kernel_def_t), .traits = (traits_), .name = (name_),               \
    .entry = (function), .params = (params_), .param_count = COUNT(params_),                       \
    .params_size_bytes = sizeof(type), .local_memory_size_bytes = (local)                          \
  }
#define BARE_KERNEL(name_, function)                                                               \
  { .struct_size = sizeof(accrt_kernel_def_t), .name = (name_), .entry = (function) }

/* ---- The device module ---- */

static const unsigned char module_text[] = {
#include "kernels_ptx.h"
    , 0};

bool cts_loads_modules(const accrt_device_info_t* info) {
  return info->dlpack_device_type == 2; /* CUDA */
}

bool cts_has_traits(const accrt_device_info_t* info) {
  return cts_loads_modules(info) && strncmp(info->arch, "sm_", 3) == 0 &&
         strtoul(info->arch + 3, NULL, 10) >= 90;
}

#define DEVICE_KERNEL(name_, params_, type, traits_, shared, threads)                              \
  {                                                                                                \
    .struct_size = sizeof(accrt_kernel_def_t), .traits = (traits_), .name = (name_),               \
    .params = (params_), .param_count = COUNT(params_), .params_size_bytes = sizeof(type),         \
    .local_memory_size_bytes = (shared), .block = {                                                \
      (threads),                                                                                   \
      1,                                                                                           \
      1                                                                                            \
    }                                                                                              \
  }

void cts_module_options(accrt_module_options_t* options) {
  static const accrt_kernel_def_t kernels[] = {
      DEVICE_KERNEL("everything", everything_params, cts_everything_params_t, 0, 0, 1),
      DEVICE_KERNEL("append", append_params, cts_append_params_t, 0, 0, 1),
      DEVICE_KERNEL("cover", cover_params, cts_cover_params_t, 0, 1024, 64),
      DEVICE_KERNEL("mix", mix_params, cts_mix_params_t, ACCRT_KERNEL_TRAIT_DETERMINISTIC, 0, 1),
      {.struct_size = sizeof(accrt_kernel_def_t), .name = "nothing", .block = {32, 1, 1}},
  };
  options->kind = ACCRT_MODULE_PTX;
  options->image = module_text;
  options->size_bytes = sizeof module_text;
  options->name = "cts";
  options->kernels = kernels;
  options->kernel_count = COUNT(kernels);
  options->kernel_size_bytes = (uint32_t)sizeof(accrt_kernel_def_t);
}

const accrt_kernel_pack_table_t* cts_pack_query(uint32_t max_abi,
                                                const accrt_kernel_environment_t* environment) {
  (void)environment;
  static const accrt_kernel_def_t kernels[] = {
      KERNEL("everything", everything, everything_params, cts_everything_params_t, 0, 0),
      KERNEL("append", append, append_params, cts_append_params_t, 0, 0),
      KERNEL("fail_at", fail_at, fail_params, cts_fail_params_t, 0, 0),
      KERNEL("cover", cover, cover_params, cts_cover_params_t, 0, 1024),
      KERNEL("serial", serial, cover_params, cts_cover_params_t, ACCRT_KERNEL_TRAIT_SERIAL, 0),
      KERNEL("mix", mix, mix_params, cts_mix_params_t, ACCRT_KERNEL_TRAIT_DETERMINISTIC, 0),
      BARE_KERNEL("check_float", check_float),
      BARE_KERNEL("use_stack", use_stack),
      BARE_KERNEL("nothing", do_nothing),
  };
  static const accrt_kernel_pack_table_t table = {
      .struct_size = sizeof table,
      .abi_version = ACCRT_KERNEL_ABI_VERSION,
      .name = "cts",
      .kernels = kernels,
      .kernel_count = COUNT(kernels),
      .kernel_size_bytes = sizeof(accrt_kernel_def_t),
  };
  return max_abi >= ACCRT_KERNEL_ABI_VERSION ? &table : NULL;
}
