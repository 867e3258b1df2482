/* runtime/core/reach.h - the bytes that a strided tensor covers. It does not know the tensor's
 * address. */
#ifndef ACCRT_RUNTIME_CORE_REACH_H_
#define ACCRT_RUNTIME_CORE_REACH_H_

#include <stdbool.h>
#include <stdint.h>

/* Bytes relative to element 0. */
typedef struct accrt_reach_bytes {
  int64_t first_bytes; /* 0, or negative with negative strides */
  uint64_t size_bytes; /* from first_bytes on; 0 without elements */
} accrt_reach_bytes_t;

/* Measures a tensor whose elements have `bits` bits (not 0) and whose dimensions are not negative.
 * Strides count elements. False when the result exceeds 63 bits, or for negative strides of
 * elements under a byte (they would start in the middle of a byte). */
bool accrt_reach_measure(uint32_t rank, const int64_t* shape, const int64_t* strides, uint32_t bits,
                         accrt_reach_bytes_t* out_reach);

#endif /* ACCRT_RUNTIME_CORE_REACH_H_ */
