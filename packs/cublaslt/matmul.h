/* matmul.h - the pack's operator, and the numbers of its `form` parameter. The compiler's
 * products.py has the same. */
#ifndef ACCRT_PACK_CUBLASLT_MATMUL_H_
#define ACCRT_PACK_CUBLASLT_MATMUL_H_

#include "accrt/kernel.h"

/** c = activation(scale * (a @ b) + bias) + residual, batch by batch; all matrices have contiguous
 * rows. a is [m, k], b [k, n] or [n, k], bias [n], residual and c [m, n]. Members from `m` on are
 * elements. */
typedef struct matmul_params {
  const void* a;
  const void* b;
  const void* bias;
  const void* residual;
  void* c;
  int64_t m, n, k, lda, ldb, ldc, ld_residual;
  int64_t batch0, batch1; /* batch entry i of batch0 * batch1 is (i / batch1, i % batch1) */
  int64_t a0, a1, b0, b1, c0, c1;
  int64_t form;
  float scale;
  float reserved;
  int64_t a_bytes, b_bytes, bias_bytes, residual_bytes, c_bytes; /* filled by the runtime */
} matmul_params_t;

/* form: types (ACCRT_DTYPE_*) of a and b, of c and residual, and of bias (0: there is none), an
 * activation, and flags. */
#define MATMUL_FORM_A(form) ((accrt_dtype_t)((form)&0xff))
#define MATMUL_FORM_C(form) ((accrt_dtype_t)((form) >> 8 & 0xff))
#define MATMUL_FORM_BIAS(form) ((accrt_dtype_t)((form) >> 16 & 0xff))
#define MATMUL_FORM_ACTIVATION(form) ((int)((form) >> 24 & 0xff))
#define MATMUL_FORM_B_IS_NK ((int64_t)1 << 32) /* b is [n, k] */
#define MATMUL_FORM_RESIDUAL ((int64_t)1 << 33)
/* 1 << 34: b and bias are not written while a program runs, which is for other kernels. */
#define MATMUL_FORM_BATCH_INVARIANT                                                                \
  ((int64_t)1 << 35) /* a row's bits are the same for any m: one algorithm, whose sums are whole */

enum { MATMUL_NONE = 0, MATMUL_RELU = 1, MATMUL_GELU_TANH = 3 };

/* The operator's own codes; a message goes with each. */
enum {
  MATMUL_ERROR_LIBRARY = 1,     /* cuBLASLt cannot be opened or has no handle for the device */
  MATMUL_ERROR_UNSUPPORTED = 2, /* types, activation or sizes that it does not do */
  MATMUL_ERROR_CALL = 3,        /* a call of cuBLASLt failed */
  MATMUL_ERROR_MEMORY = 4,      /* no host memory */
  MATMUL_ERROR_ARGUMENT =
      5, /* execute: an argument that prepare got is missing or too short, or too little
            workspace */
};

int32_t matmul_query_workspace(const accrt_kernel_environment_t* environment,
                               const accrt_operator_call_t* call, uint64_t* out_size_bytes);
int32_t matmul_prepare(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void** out_state);
int32_t matmul_execute(const accrt_kernel_environment_t* environment,
                       const accrt_operator_call_t* call, void* state);
void matmul_destroy(const accrt_kernel_environment_t* environment, void* state);

#endif
