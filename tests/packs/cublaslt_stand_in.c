/* cublaslt_stand_in.c - a cuBLASLt for tests on machines without a GPU: the functions that the pack calls, computed on the CPU in double.
 * Layouts are columns, as the library's are. STAND_IN_FAIL=N in the environment makes the N-th fallible call fail;
 * cublasLtStandInCalls() tells how many there were, cublasLtStandInHeuristics() how many of them asked for an algorithm. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

#define EXPORT __attribute__((visibility("default")))
enum { STATUS_NOT_SUPPORTED = 15, STATUS_INTERNAL = 14, STATUS_INVALID = 7 };

struct lt_handle {
  int unused;
};
struct lt_matmul_desc {
  int32_t compute, scale, transpose_a, transpose_b, bias_type;
  uint32_t epilogue;
  const void* bias;
};
struct lt_layout {
  int type;
  uint64_t rows, columns;
  int64_t ld, step;
  int32_t batch;
};
struct lt_preference {
  uint64_t workspace_bytes;
  uint32_t reduction, alignment_bytes[4];
};

static int calls, heuristic_calls;
static uint64_t last_run_columns, last_run_reduction;

EXPORT int cublasLtStandInHeuristics(void);
int cublasLtStandInHeuristics(void) {
  return heuristic_calls;
}
/** The columns that the last product's algorithm was chosen for; `out_reduction`: how parts of a
 * sum might meet in it. */
EXPORT uint64_t cublasLtStandInChosenFor(uint64_t* out_reduction);
uint64_t cublasLtStandInChosenFor(uint64_t* out_reduction) {
  *out_reduction = last_run_reduction;
  return last_run_columns;
}
EXPORT int cublasLtStandInCalls(void);
int cublasLtStandInCalls(void) {
  return calls;
}

static int fails(void) {
  const char* which = getenv("STAND_IN_FAIL");
  return ++calls == (which ? atoi(which) : -1);
}

#define MAKE(type, out, ...)                                                                       \
  do {                                                                                             \
    struct type* made = fails() ? NULL : calloc(1, sizeof *made);                                  \
    if (made == NULL)                                                                              \
      return STATUS_INTERNAL;                                                                      \
    *made = (struct type){__VA_ARGS__};                                                            \
    *(out) = made;                                                                                 \
    return 0;                                                                                      \
  } while (0)

static lt_status_t take(void* to, size_t wanted_bytes, const void* from, size_t size_bytes) {
  if (fails())
    return STATUS_INTERNAL;
  if (size_bytes != wanted_bytes)
    return STATUS_INVALID;
  memcpy(to, from, size_bytes);
  return 0;
}

EXPORT lt_status_t cublasLtCreate(lt_handle_t* out);
lt_status_t cublasLtCreate(lt_handle_t* out) {
  MAKE(lt_handle, out, 0);
}

EXPORT lt_status_t cublasLtDestroy(lt_handle_t handle);
lt_status_t cublasLtDestroy(lt_handle_t handle) {
  free(handle);
  return 0;
}

EXPORT const char* cublasLtGetStatusName(lt_status_t status);
const char* cublasLtGetStatusName(lt_status_t status) {
  return status == STATUS_INTERNAL ? "CUBLAS_STATUS_INTERNAL_ERROR" : "CUBLAS_STATUS_OTHER";
}

EXPORT lt_status_t cublasLtMatmulDescCreate(lt_matmul_desc_t* out, int compute, int scale);
lt_status_t cublasLtMatmulDescCreate(lt_matmul_desc_t* out, int compute, int scale) {
  MAKE(lt_matmul_desc, out, compute, scale, 0, 0, 0, LT_EPILOGUE_DEFAULT, NULL);
}

EXPORT lt_status_t cublasLtMatmulDescSetAttribute(lt_matmul_desc_t desc, int attribute,
                                                  const void* value, size_t size_bytes);
lt_status_t cublasLtMatmulDescSetAttribute(lt_matmul_desc_t desc, int attribute, const void* value,
                                           size_t size_bytes) {
  switch (attribute) {
  case LT_DESC_TRANSA:
    return take(&desc->transpose_a, 4, value, size_bytes);
  case LT_DESC_TRANSB:
    return take(&desc->transpose_b, 4, value, size_bytes);
  case LT_DESC_EPILOGUE:
    return take(&desc->epilogue, 4, value, size_bytes);
  case LT_DESC_BIAS_POINTER:
    return take(&desc->bias, sizeof desc->bias, value, size_bytes);
  case LT_DESC_BIAS_DATA_TYPE:
    return take(&desc->bias_type, 4, value, size_bytes);
  default:
    return STATUS_INVALID;
  }
}

EXPORT lt_status_t cublasLtMatmulDescDestroy(lt_matmul_desc_t desc);
lt_status_t cublasLtMatmulDescDestroy(lt_matmul_desc_t desc) {
  free(desc);
  return 0;
}

EXPORT lt_status_t cublasLtMatrixLayoutCreate(lt_layout_t* out, int type, uint64_t rows,
                                              uint64_t columns, int64_t ld);
lt_status_t cublasLtMatrixLayoutCreate(lt_layout_t* out, int type, uint64_t rows, uint64_t columns,
                                       int64_t ld) {
  MAKE(lt_layout, out, type, rows, columns, ld, 0, 1);
}

EXPORT lt_status_t cublasLtMatrixLayoutSetAttribute(lt_layout_t layout, int attribute,
                                                    const void* value, size_t size_bytes);
lt_status_t cublasLtMatrixLayoutSetAttribute(lt_layout_t layout, int attribute, const void* value,
                                             size_t size_bytes) {
  if (attribute == LT_LAYOUT_BATCH_COUNT)
    return take(&layout->batch, 4, value, size_bytes);
  return attribute == LT_LAYOUT_BATCH_STRIDE ? take(&layout->step, 8, value, size_bytes)
                                             : STATUS_INVALID;
}

EXPORT lt_status_t cublasLtMatrixLayoutDestroy(lt_layout_t layout);
lt_status_t cublasLtMatrixLayoutDestroy(lt_layout_t layout) {
  free(layout);
  return 0;
}

EXPORT lt_status_t cublasLtMatmulPreferenceCreate(lt_preference_t* out);
lt_status_t cublasLtMatmulPreferenceCreate(lt_preference_t* out) {
  MAKE(lt_preference, out, 0);
}

EXPORT lt_status_t cublasLtMatmulPreferenceSetAttribute(lt_preference_t preference, int attribute,
                                                        const void* value, size_t size_bytes);
lt_status_t cublasLtMatmulPreferenceSetAttribute(lt_preference_t preference, int attribute,
                                                 const void* value, size_t size_bytes) {
  if (attribute == LT_PREFERENCE_WORKSPACE)
    return take(&preference->workspace_bytes, 8, value, size_bytes);
  if (attribute == LT_PREFERENCE_REDUCTION)
    return take(&preference->reduction, 4, value, size_bytes);
  const int which = attribute - LT_PREFERENCE_ALIGNMENT_A;
  return which < 0 || which > 3 ? STATUS_INVALID
                                : take(&preference->alignment_bytes[which], 4, value, size_bytes);
}

EXPORT lt_status_t cublasLtMatmulPreferenceDestroy(lt_preference_t preference);
lt_status_t cublasLtMatmulPreferenceDestroy(lt_preference_t preference) {
  free(preference);
  return 0;
}

/** The algorithm remembers the alignment that it was chosen for, so that matmul can check it, the
 * number of columns, and whether sums may have parts. Products of one row and one column find none.
 */
EXPORT lt_status_t cublasLtMatmulAlgoGetHeuristic(lt_handle_t handle, lt_matmul_desc_t desc,
                                                  lt_layout_t a, lt_layout_t b, lt_layout_t c,
                                                  lt_layout_t d, lt_preference_t preference,
                                                  int wanted, lt_heuristic_t* out, int* found);
lt_status_t cublasLtMatmulAlgoGetHeuristic(lt_handle_t handle, lt_matmul_desc_t desc, lt_layout_t a,
                                           lt_layout_t b, lt_layout_t c, lt_layout_t d,
                                           lt_preference_t preference, int wanted,
                                           lt_heuristic_t* out, int* found) {
  (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)wanted;
  *found = 0;
  ++heuristic_calls;
  if (fails())
    return STATUS_NOT_SUPPORTED;
  if (d->rows == 1 && d->columns == 1)
    return 0;
  const uint32_t* alignment = preference->alignment_bytes;
  *out = (lt_heuristic_t){.workspace_size_bytes = alignment[0] * 16};
  out->algo.data[0] = alignment[0];
  out->algo.data[1] = d->columns;
  out->algo.data[2] = preference->reduction;
  *found = alignment[1] == alignment[0] && alignment[3] == alignment[0];
  return 0;
}

static double load(int type, const void* base, int64_t at) {
  if (type == LT_R_32F)
    return (double)((const float*)base)[at];
  const uint32_t bits = ((const uint16_t*)base)[at];
  if (type == LT_R_16BF) {
    const uint32_t wide = bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
  }
  const int exponent = (int)(bits >> 10 & 31);
  const double fraction = (double)(bits & 1023) / 1024.0;
  const double size = exponent ? ldexp(1.0 + fraction, exponent - 15) : ldexp(fraction, -14);
  return bits >> 15 ? -size : size;
}

/** Results are f32 or bf16 (cut off); f16 is for operands. */
static void store(int type, void* base, int64_t at, double value) {
  const float narrow = (float)value;
  uint32_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  if (type == LT_R_32F)
    ((float*)base)[at] = narrow;
  else
    ((uint16_t*)base)[at] = (uint16_t)(bits >> 16);
}

static double finish(const struct lt_matmul_desc* desc, double value, int64_t row) {
  if (desc->epilogue & LT_EPILOGUE_BIAS)
    value += load(desc->bias_type, desc->bias, row);
  if (desc->epilogue & LT_EPILOGUE_RELU)
    value = value < 0 ? 0 : value;
  if (desc->epilogue & LT_EPILOGUE_GELU) {
    value = 0.5 * value * (1 + tanh(0.7978845608028654 * (value + 0.044715 * pow(value, 3))));
  }
  return value;
}

static int misaligned(const void* address, const lt_algo_t* algo) {
  return (uintptr_t)address % algo->data[0] != 0;
}

/** More than 4,000 columns are too many for any algorithm. */
EXPORT lt_status_t cublasLtMatmulAlgoCheck(lt_handle_t handle, lt_matmul_desc_t desc, lt_layout_t a,
                                           lt_layout_t b, lt_layout_t c, lt_layout_t d,
                                           const lt_algo_t* algo, lt_heuristic_t* out);
lt_status_t cublasLtMatmulAlgoCheck(lt_handle_t handle, lt_matmul_desc_t desc, lt_layout_t a,
                                    lt_layout_t b, lt_layout_t c, lt_layout_t d,
                                    const lt_algo_t* algo, lt_heuristic_t* out) {
  (void)handle, (void)desc, (void)a, (void)b, (void)c;
  if (fails() || d->columns > 4000)
    return STATUS_NOT_SUPPORTED;
  *out = (lt_heuristic_t){.algo = *algo, .workspace_size_bytes = algo->data[0] * 16};
  return 0;
}

EXPORT lt_status_t cublasLtMatmul(lt_handle_t handle, lt_matmul_desc_t desc, const void* alpha,
                                  const void* a, lt_layout_t la, const void* b, lt_layout_t lb,
                                  const void* beta, const void* c, lt_layout_t lc, void* d,
                                  lt_layout_t ld, const lt_algo_t* algo, void* workspace,
                                  size_t workspace_size_bytes, void* stream);
lt_status_t cublasLtMatmul(lt_handle_t handle, lt_matmul_desc_t desc, const void* alpha,
                           const void* a, lt_layout_t la, const void* b, lt_layout_t lb,
                           const void* beta, const void* c, lt_layout_t lc, void* d, lt_layout_t ld,
                           const lt_algo_t* algo, void* workspace, size_t workspace_size_bytes,
                           void* stream) {
  (void)handle, (void)workspace, (void)stream;
  if (fails())
    return STATUS_INTERNAL;
  if (workspace_size_bytes < algo->data[0] * 16 || misaligned(a, algo) || misaligned(b, algo) ||
      misaligned(c, algo) || misaligned(d, algo))
    return STATUS_INVALID;
  last_run_columns = algo->data[1], last_run_reduction = algo->data[2];
  const int64_t depth = (int64_t)(desc->transpose_a ? la->rows : la->columns);
  const float by = *(const float*)alpha, keep = *(const float*)beta;
  for (int32_t z = 0; z < ld->batch; ++z) {
    for (int64_t column = 0; column < (int64_t)ld->columns; ++column) {
      for (int64_t row = 0; row < (int64_t)ld->rows; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < depth; ++i) {
          const int64_t at_a = desc->transpose_a ? i + row * la->ld : row + i * la->ld;
          const int64_t at_b = desc->transpose_b ? column + i * lb->ld : i + column * lb->ld;
          sum += load(la->type, a, z * la->step + at_a) * load(lb->type, b, z * lb->step + at_b);
        }
        sum *= (double)by;
        if (keep != 0.0f)
          sum += (double)keep * load(lc->type, c, z * lc->step + row + column * lc->ld);
        store(ld->type, d, z * ld->step + row + column * ld->ld, finish(desc, sum, row));
      }
    }
  }
  return 0;
}
