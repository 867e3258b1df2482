/* accrt/tensor.h - views of tensors and data types. It includes accrt/dlpack.h: DLPack in and out.
 *
 * Nothing here depends on programs or bundles.
 */
#ifndef ACCRT_TENSOR_H_
#define ACCRT_TENSOR_H_

#include "accrt/base.h"

ACCRT_BEGIN

#define ACCRT_MAX_RANK 8

/** A view of a tensor in a buffer or in plain host memory. Frozen. It owns nothing. A function that
 * takes one copies it, shape and strides too, and retains `buffer` if it needs it after its
 * return. */
typedef struct accrt_tensor {
  accrt_buffer_t* buffer; /**< NULL: `data` is a host address */
  void* data; /**< used when buffer is NULL; may be NULL when the tensor has no elements */
  uint64_t offset_bytes; /**< of element 0, from the buffer's start or from data */
  accrt_dtype_t dtype;
  uint32_t rank;          /**< 0..ACCRT_MAX_RANK */
  const int64_t* shape;   /**< rank entries, each >= 0; may be NULL when rank is 0 */
  const int64_t* strides; /**< rank entries, in elements; NULL: row-major contiguous */
} accrt_tensor_t;
ACCRT_ASSERT_LAYOUT(accrt_tensor_t, strides, 48);

/** Bits of one element; 0 for an unknown type. Thread-safe. Since: 0.1 */
ACCRT_API uint32_t accrt_dtype_bits(accrt_dtype_t dtype);
/** Short name ("f32", "bf16", "i64", "bool"); "?" for an unknown type. Static string. Since: 0.1 */
ACCRT_API const char* accrt_dtype_name(accrt_dtype_t dtype);

ACCRT_END

#include "accrt/dlpack.h"

#endif /* ACCRT_TENSOR_H_ */
