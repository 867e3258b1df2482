/* tests/bundles/kernels.c - small kernels for the tests of programs: freestanding. make.py compiles it, once as it is and once
 * with ACCRT_TEST_SECOND for variants that are told apart by what they write. */
#include "accrt/kernel.h"

ACCRT_KERNEL_DEFINE_MEMORY_FUNCTIONS()

#ifdef ACCRT_TEST_SECOND
#define OWN_NUMBER 2
#else
#define OWN_NUMBER 1
#endif

#define KERNEL(name)                                                                               \
  static int32_t name(const accrt_kernel_environment_t* environment,                               \
                      const accrt_kernel_dispatch_t* dispatch,                                     \
                      const accrt_kernel_workgroup_t* workgroup)
#define UNUSED_ARGUMENTS ((void)environment, (void)dispatch, (void)workgroup)

KERNEL(empty) {
  UNUSED_ARGUMENTS;
  return 0;
}

/* y = alpha * x + beta, 64 elements a workgroup. */
typedef struct affine_params {
  const float* x;
  float* y;
  float alpha;
  float beta;
  int64_t n;
} affine_params_t;
KERNEL(affine) {
  UNUSED_ARGUMENTS;
  const affine_params_t* p = dispatch->params;
  const int64_t begin = (int64_t)workgroup->workgroup_id[0] * 64;
  const int64_t end = begin + 64 < p->n ? begin + 64 : p->n;
  for (int64_t i = begin; i < end; ++i)
    p->y[i] = p->alpha * p->x[i] + p->beta;
  return 0;
}

/* z = x + y; y may be absent. */
typedef struct add_params {
  const float* x;
  const float* y;
  float* z;
  int64_t n;
} add_params_t;
KERNEL(add) {
  UNUSED_ARGUMENTS;
  const add_params_t* p = dispatch->params;
  for (int64_t i = 0; i < p->n; ++i)
    p->z[i] = p->x[i] + (p->y != 0 ? p->y[i] : 0.0f);
  return 0;
}

/* Fails with `code`, unless that is 0. */
typedef struct fail_params {
  int64_t code;
} fail_params_t;
KERNEL(fail) {
  UNUSED_ARGUMENTS;
  const fail_params_t* p = dispatch->params;
  static const char text[] = "asked to fail";
  if (p->code == 0)
    return 0;
  for (uint32_t i = 0; i < sizeof text && i < workgroup->message_capacity_bytes; ++i)
    workgroup->message[i] = text[i];
  return (int32_t)p->code;
}

/* Writes count numbers: first, first + 1, ... */
typedef struct iota_params {
  int64_t* y;
  int64_t first;
  int64_t count;
} iota_params_t;
KERNEL(iota) {
  UNUSED_ARGUMENTS;
  const iota_params_t* p = dispatch->params;
  for (int64_t i = 0; i < p->count; ++i)
    p->y[i] = p->first + i;
  return 0;
}

/* y[0] = y[0] * 10 + digit: what order commands ran in. */
typedef struct digit_params {
  int64_t* y;
  int64_t digit;
} digit_params_t;
KERNEL(digit) {
  UNUSED_ARGUMENTS;
  const digit_params_t* p = dispatch->params;
  *p->y = *p->y * 10 + p->digit;
  return 0;
}

/* Sum of a strided matrix, rank 2, any strides. */
typedef struct total_params {
  accrt_kernel_tensor_t x;
  float* y;
} total_params_t;
KERNEL(total) {
  UNUSED_ARGUMENTS;
  const total_params_t* p = dispatch->params;
  const float* x = p->x.data;
  float sum = 0;
  for (int64_t i = 0; i < p->x.shape[0]; ++i) {
    for (int64_t k = 0; k < p->x.shape[1]; ++k)
      sum += x[i * p->x.strides[0] + k * p->x.strides[1]];
  }
  *p->y = sum;
  return 0;
}

/* Counts bytes of its workspace that are not zero, then spoils it. */
typedef struct scratch_params {
  unsigned char* scratch;
  int64_t* y;
  int64_t size;
} scratch_params_t;
KERNEL(scratch) {
  UNUSED_ARGUMENTS;
  const scratch_params_t* p = dispatch->params;
  int64_t count = 0;
  for (int64_t i = 0; i < p->size; ++i)
    count += p->scratch[i] != 0;
  for (int64_t i = 0; i < p->size; ++i)
    p->scratch[i] = 0xAB;
  *p->y = count;
  return 0;
}

/* Writes which image it comes from. */
typedef struct which_params {
  int64_t* y;
  const float* x;
  int64_t n;
  uint32_t mode;
} which_params_t;
KERNEL(which) {
  UNUSED_ARGUMENTS;
  const which_params_t* p = dispatch->params;
  *p->y = OWN_NUMBER;
  return 0;
}

/* y[i] = x[n - 1 - i], through local memory. */
typedef struct reverse_params {
  const float* x;
  float* y;
  int64_t n;
} reverse_params_t;
KERNEL(reverse) {
  UNUSED_ARGUMENTS;
  const reverse_params_t* p = dispatch->params;
  float* local = workgroup->local_memory;
  for (int64_t i = 0; i < p->n; i += 16) {
    const int64_t count = p->n - i < 16 ? p->n - i : 16;
    for (int64_t k = 0; k < count; ++k)
      local[k] = p->x[p->n - 1 - i - k];
    for (int64_t k = 0; k < count; ++k)
      p->y[i + k] = local[k];
  }
  return 0;
}

#define FIELD(kernel, field, kind, access)                                                         \
  ACCRT_KERNEL_PARAM(kernel##_params_t, field, kind, access)
static const accrt_kernel_param_t affine_list[] = {
    FIELD(affine, x, BUFFER, READ),     FIELD(affine, y, BUFFER, WRITE),
    FIELD(affine, alpha, SCALAR, NONE), FIELD(affine, beta, SCALAR, NONE),
    FIELD(affine, n, SYMBOL, NONE),
};
static const accrt_kernel_param_t add_list[] = {
    FIELD(add, x, BUFFER, READ),
    {"y", ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ, ACCRT_KERNEL_PARAM_FLAG_OPTIONAL, 3,
     offsetof(add_params_t, y), 8, 0},
    FIELD(add, z, BUFFER, WRITE),
    FIELD(add, n, SYMBOL, NONE),
};
static const accrt_kernel_param_t fail_list[] = {FIELD(fail, code, SYMBOL, NONE)};
static const accrt_kernel_param_t iota_list[] = {FIELD(iota, y, BUFFER, WRITE),
                                                 FIELD(iota, first, SYMBOL, NONE),
                                                 FIELD(iota, count, SYMBOL, NONE)};
static const accrt_kernel_param_t digit_list[] = {FIELD(digit, y, BUFFER, READ_WRITE),
                                                  FIELD(digit, digit, SYMBOL, NONE)};
static const accrt_kernel_param_t total_list[] = {FIELD(total, x, TENSOR, READ),
                                                  FIELD(total, y, BUFFER, WRITE)};
static const accrt_kernel_param_t scratch_list[] = {FIELD(scratch, scratch, WORKSPACE, READ_WRITE),
                                                    FIELD(scratch, y, BUFFER, WRITE),
                                                    FIELD(scratch, size, SYMBOL, NONE)};
static const accrt_kernel_param_t which_list[] = {
    FIELD(which, y, BUFFER, WRITE), FIELD(which, x, BUFFER, READ), FIELD(which, n, SYMBOL, NONE),
    FIELD(which, mode, SCALAR, NONE)};
static const accrt_kernel_param_t reverse_list[] = {FIELD(reverse, x, BUFFER, READ),
                                                    FIELD(reverse, y, BUFFER, WRITE),
                                                    FIELD(reverse, n, SYMBOL, NONE)};

#define DEFINE(name_, traits_, local_)                                                             \
  {                                                                                                \
    sizeof(accrt_kernel_def_t), (traits_), #name_, name_, name_##_list,                            \
        sizeof name_##_list / sizeof name_##_list[0], sizeof(name_##_params_t), (local_), 0, 0, 0, \
        0, 0                                                                                       \
  }
#define PLAIN ACCRT_KERNEL_TRAIT_DETERMINISTIC
static const accrt_kernel_def_t kernels[] = {
    {sizeof(accrt_kernel_def_t), PLAIN, "empty", empty, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    DEFINE(affine, PLAIN, 0),
    DEFINE(add, PLAIN, 0),
    DEFINE(fail, PLAIN, 0),
    DEFINE(iota, PLAIN, 0),
    DEFINE(digit, PLAIN, 0),
    DEFINE(total, PLAIN, 0),
    DEFINE(scratch, PLAIN | ACCRT_KERNEL_TRAIT_ZEROED_WORKSPACE, 0),
    DEFINE(which, PLAIN, 0),
    DEFINE(reverse, PLAIN, 64),
};
static const accrt_kernel_pack_table_t table = {sizeof table,
                                                ACCRT_KERNEL_ABI_VERSION,
                                                "tests",
                                                kernels,
                                                sizeof kernels / sizeof kernels[0],
                                                sizeof kernels[0],
                                                0,
                                                0,
                                                0};

ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t*
accrt_kernel_pack_query(uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  if (max_abi < table.abi_version)
    return 0;
  accrt_kernel_bind(environment);
  return &table;
}
