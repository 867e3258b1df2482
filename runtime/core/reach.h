/* runtime/core/reach.h - which bytes a strided tensor covers. It may not know where the tensor lies. */
#ifndef ACCRT_RUNTIME_CORE_REACH_H_
#define ACCRT_RUNTIME_CORE_REACH_H_

#include <stdbool.h>
#include <stdint.h>

/* Bytes relative to element 0. */
typedef struct accrt_reach_bytes {
  int64_t first_bytes; /* 0, or negative where strides are */
  uint64_t size_bytes; /* from there; 0 without elements */
} accrt_reach_bytes_t;

/* Measures a tensor of elements of `bits` (not 0) whose dimensions are not negative; strides are in elements. False when it
 * does not fit 63 bits, or when elements under a byte are walked backwards (they would start in the middle of one). */
bool accrt_reach_measure(uint32_t rank, const int64_t* shape, const int64_t* strides, uint32_t bits,
                         accrt_reach_bytes_t* out_reach);

#endif /* ACCRT_RUNTIME_CORE_REACH_H_ */
