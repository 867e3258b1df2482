/* pack.c - the table of the pack "accrt.cublaslt": host operators on cuBLASLt for CUDA devices. It
 * refuses where the library is missing, so that a bundle's other variants are taken. */
#include "accrt/kernel.h"
#include "library.h"
#include "matmul.h"

#define OPTIONAL_READ(field)                                                                       \
  {                                                                                                \
#field, ACCRT_KERNEL_PARAM_BUFFER, ACCRT_KERNEL_ACCESS_READ, ACCRT_KERNEL_PARAM_FLAG_OPTIONAL, \
        3, (uint32_t)offsetof(matmul_params_t, field), 8, 0                                        \
  }
#define NUMBER(field) ACCRT_KERNEL_PARAM(matmul_params_t, field, SYMBOL, NONE)

static const accrt_kernel_param_t params[] = {
    ACCRT_KERNEL_PARAM(matmul_params_t, a, BUFFER, READ),
    ACCRT_KERNEL_PARAM(matmul_params_t, b, BUFFER, READ),
    OPTIONAL_READ(bias),
    OPTIONAL_READ(residual),
    ACCRT_KERNEL_PARAM(matmul_params_t, c, BUFFER, WRITE),
    NUMBER(m),
    NUMBER(n),
    NUMBER(k),
    NUMBER(lda),
    NUMBER(ldb),
    NUMBER(ldc),
    NUMBER(ld_residual),
    NUMBER(batch0),
    NUMBER(batch1),
    NUMBER(a0),
    NUMBER(a1),
    NUMBER(b0),
    NUMBER(b1),
    NUMBER(c0),
    NUMBER(c1),
    NUMBER(form),
    ACCRT_KERNEL_PARAM(matmul_params_t, scale, SCALAR, NONE),
    ACCRT_KERNEL_LENGTH(matmul_params_t, a_bytes),
    ACCRT_KERNEL_LENGTH(matmul_params_t, b_bytes),
    ACCRT_KERNEL_LENGTH(matmul_params_t, bias_bytes),
    ACCRT_KERNEL_LENGTH(matmul_params_t, residual_bytes),
    ACCRT_KERNEL_LENGTH(matmul_params_t, c_bytes),
};

static const accrt_operator_def_t operators[] = {{
    .struct_size = sizeof(accrt_operator_def_t),
    .traits = ACCRT_KERNEL_TRAIT_DETERMINISTIC | ACCRT_KERNEL_TRAIT_CAPTURABLE |
              ACCRT_KERNEL_TRAIT_BUNDLES_MAY_CALL,
    .name = "matmul",
    .params = params,
    .param_count = sizeof params / sizeof params[0],
    .params_size_bytes = sizeof(matmul_params_t),
    .device_type = 2,
    .query_workspace = matmul_query_workspace,
    .prepare = matmul_prepare,
    .execute = matmul_execute,
    .destroy = matmul_destroy,
}};

static const accrt_kernel_pack_table_t table = {
    .struct_size = sizeof(accrt_kernel_pack_table_t),
    .abi_version = ACCRT_KERNEL_ABI_VERSION,
    .name = "accrt.cublaslt",
    .kernel_size_bytes = sizeof(accrt_kernel_def_t),
    .host_operators = operators,
    .host_operator_count = sizeof operators / sizeof operators[0],
    .host_operator_size_bytes = sizeof(accrt_operator_def_t),
};

ACCRT_KERNEL_EXPORT const accrt_kernel_pack_table_t*
accrt_kernel_pack_query(uint32_t max_abi, const accrt_kernel_environment_t* environment) {
  (void)environment;
  if (max_abi < ACCRT_KERNEL_ABI_VERSION || !library_is_there())
    return NULL;
  return &table;
}
