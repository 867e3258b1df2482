/* tools/accx/array.h - arrays in memory, for .npy files and functions: elements, statistics,
 * generation. */
#ifndef ACCX_ARRAY_H_
#define ACCX_ARRAY_H_

#include "accx.h"

typedef struct accx_array {
  accrt_dtype_t dtype;
  uint32_t rank;
  int64_t shape[ACCRT_MAX_RANK];
  uint64_t element_count;
  uint64_t size_bytes;
  void* data; /* 64-byte aligned, row-major; not NULL after creation */
} accx_array_t;

/* Creates an array with undefined contents. `what` names it in errors. Sizes are checked for
 * overflow. */
int accx_array_create(accrt_dtype_t dtype, uint32_t rank, const int64_t* shape, const char* what,
                      accx_array_t* out_array);
void accx_array_free(accx_array_t* array);

/* One element, as the widest number of its kind. */
typedef enum accx_kind { ACCX_REAL, ACCX_SIGNED, ACCX_UNSIGNED } accx_kind_t;
typedef struct accx_value {
  accx_kind_t kind;
  double real;
  int64_t whole;
  uint64_t natural;
} accx_value_t;
accx_value_t accx_array_value(const accx_array_t* array, uint64_t index);
double accx_value_real(accx_value_t value);
/* Digits that distinguish any two values of a type: 17 for f64, 9 for f32 and all narrower
 * types. */
int accx_dtype_digits(accrt_dtype_t dtype);
/* "0.25", "-3", "true"; lives until exit. */
const char* accx_value_text(const accx_array_t* array, accx_value_t value);

typedef struct accx_statistics {
  accx_value_t minimum, maximum; /* without NaN; valid when counted > 0 */
  double mean;
  uint64_t counted; /* number of elements that are not NaN */
  uint64_t nan_count;
} accx_statistics_t;
accx_statistics_t accx_array_statistics(const accx_array_t* array);

/* Sets every element. `pattern` is "zeros", "ones", "arange" or "random". `seed` is for "random":
 * reals are uniform in [-1, 1), whole numbers in 0..99, booleans 0 or 1. */
int accx_array_generate(accx_array_t* array, const char* pattern, uint64_t seed, const char* what);

#endif /* ACCX_ARRAY_H_ */
