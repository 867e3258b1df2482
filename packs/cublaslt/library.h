/* library.h - the part of cuBLASLt that the pack calls, declared here so that neither its headers
 * nor the library are needed to build, and how the library is found at run time. Names and numbers
 * are those of NVIDIA's cublasLt.h, stable since version 11. */
#ifndef ACCRT_PACK_CUBLASLT_LIBRARY_H_
#define ACCRT_PACK_CUBLASLT_LIBRARY_H_

#include <stddef.h>
#include <stdint.h>

typedef int lt_status_t; /* 0: success */
typedef struct lt_handle* lt_handle_t;
typedef struct lt_matmul_desc* lt_matmul_desc_t;
typedef struct lt_layout* lt_layout_t;
typedef struct lt_preference* lt_preference_t;

typedef struct lt_algo {
  uint64_t data[8];
} lt_algo_t;

typedef struct lt_heuristic {
  lt_algo_t algo;
  size_t workspace_size_bytes;
  lt_status_t state;
  float waves;
  int reserved[4];
} lt_heuristic_t;

enum { LT_COMPUTE_32F = 68 };
enum { LT_R_32F = 0, LT_R_16F = 2, LT_R_16BF = 14 }; /* cudaDataType_t */
enum { LT_OP_N = 0, LT_OP_T = 1 };
enum { LT_DESC_TRANSA = 3, LT_DESC_TRANSB = 4, LT_DESC_EPILOGUE = 7, LT_DESC_BIAS_POINTER = 8 };
enum { LT_DESC_BIAS_DATA_TYPE = 26 };
enum { LT_LAYOUT_BATCH_COUNT = 5, LT_LAYOUT_BATCH_STRIDE = 6 };
enum { LT_PREFERENCE_WORKSPACE = 1, LT_PREFERENCE_REDUCTION = 3 };
enum { LT_PREFERENCE_ALIGNMENT_A = 5 }; /* B, C and D follow A */
enum { LT_REDUCTION_NONE = 0, LT_REDUCTION_COMPUTE_TYPE = 2 };
/* LT_EPILOGUE_GELU is the approximation by tanh; the library has none with erf. */
enum { LT_EPILOGUE_DEFAULT = 1, LT_EPILOGUE_RELU = 2, LT_EPILOGUE_BIAS = 4, LT_EPILOGUE_GELU = 32 };

typedef struct lt_functions {
  lt_status_t (*create)(lt_handle_t*);
  lt_status_t (*destroy)(lt_handle_t);
  const char* (*status_name)(lt_status_t);
  lt_status_t (*desc_create)(lt_matmul_desc_t*, int compute, int scale);
  lt_status_t (*desc_set)(lt_matmul_desc_t, int attribute, const void*, size_t);
  lt_status_t (*desc_destroy)(lt_matmul_desc_t);
  lt_status_t (*layout_create)(lt_layout_t*, int type, uint64_t rows, uint64_t columns, int64_t ld);
  lt_status_t (*layout_set)(lt_layout_t, int attribute, const void*, size_t);
  lt_status_t (*layout_destroy)(lt_layout_t);
  lt_status_t (*preference_create)(lt_preference_t*);
  lt_status_t (*preference_set)(lt_preference_t, int attribute, const void*, size_t);
  lt_status_t (*preference_destroy)(lt_preference_t);
  lt_status_t (*heuristic)(lt_handle_t, lt_matmul_desc_t, lt_layout_t a, lt_layout_t b,
                           lt_layout_t c, lt_layout_t d, lt_preference_t, int wanted,
                           lt_heuristic_t*, int* found);
  lt_status_t (*algo_check)(lt_handle_t, lt_matmul_desc_t, lt_layout_t a, lt_layout_t b,
                            lt_layout_t c, lt_layout_t d, const lt_algo_t*, lt_heuristic_t*);
  lt_status_t (*matmul)(lt_handle_t, lt_matmul_desc_t, const void* alpha, const void* a,
                        lt_layout_t, const void* b, lt_layout_t, const void* beta, const void* c,
                        lt_layout_t, void* d, lt_layout_t, const lt_algo_t*, void* workspace,
                        size_t workspace_size_bytes, void* stream);
} lt_functions_t;

/** Whether the library can be opened. It is not opened when it is seen in a usual place, which
 * takes microseconds: opening takes much longer, and a program that never multiplies with it need
 * not wait. */
int library_is_there(void);

/** The library, opened at the first call; NULL with a message when it cannot be. Any thread. */
const lt_functions_t* library_open(char* message, size_t message_capacity_bytes);

/** The handle for a device, made at the first call with its context current; NULL with a message on
 * failure. Any thread. */
lt_handle_t library_handle(const lt_functions_t* lt, int32_t device_id, char* message,
                           size_t message_capacity_bytes);

#endif
