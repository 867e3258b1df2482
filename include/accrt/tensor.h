/* accrt/tensor.h - views of tensors, data types, DLPack in and out.
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

/* Of dlpack.h (github.com/dmlc/dlpack), which need not be included. */
struct DLManagedTensorVersioned;
struct DLManagedTensor;

/** Imports a DLPack tensor (of major version 1) without a copy. A type of 4 bits and 2 lanes, as
 * torch has float4_e2m1fn_x2, becomes twice as many elements in the last dimension, whose stride
 * has to be 1.
 * @param managed On success the library owns it: it calls the deleter once, on any thread, when the
 *   last reference and the last use on a stream are gone. On failure the caller still owns it.
 * @param out_tensor a view of it. The caller owns its buffer:
 *   accrt_buffer_release(out_tensor->buffer).
 * @param shape, strides storage for ACCRT_MAX_RANK entries each, to which out_tensor points.
 * @param out_read_only 1 when the producer forbids writing.
 * @return ACCRT_OK; ACCRT_ERROR_VERSION_MISMATCH; ACCRT_ERROR_UNSUPPORTED (a data type, rank or
 *   device that `device` cannot take; the message names it); ACCRT_ERROR_OUT_OF_MEMORY.
 *   Since: 0.1 */
ACCRT_API accrt_status_t accrt_dlpack_import(accrt_device_t* device,
                                             struct DLManagedTensorVersioned* managed,
                                             accrt_tensor_t* out_tensor, int64_t* shape,
                                             int64_t* strides, uint32_t* out_read_only);
/** Exports a tensor as a DLManagedTensorVersioned (1.0) that retains the tensor's buffer.
 * `tensor->buffer` may not be NULL. Types of 4 bits have one lane, as the standard says.
 * @param out_managed the consumer calls its `deleter` once, on any thread.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (a data type that DLPack lacks);
 *   ACCRT_ERROR_OUT_OF_MEMORY. Since: 0.1 */
ACCRT_API accrt_status_t accrt_dlpack_export(const accrt_tensor_t* tensor, uint32_t read_only,
                                             struct DLManagedTensorVersioned** out_managed);

/** Imports a tensor of DLPack before 1.0 (DLManagedTensor) without a copy: JAX gives these. Such a
 * tensor cannot say that it is read-only: the caller has to know.
 * @param managed owned as in accrt_dlpack_import.
 * @param out_tensor, shape, strides as in accrt_dlpack_import.
 * @return as accrt_dlpack_import, without ACCRT_ERROR_VERSION_MISMATCH. Thread-safe. Since: 0.4 */
ACCRT_API accrt_status_t accrt_dlpack_import_unversioned(accrt_device_t* device,
                                                         struct DLManagedTensor* managed,
                                                         accrt_tensor_t* out_tensor, int64_t* shape,
                                                         int64_t* strides);
/** Exports a tensor as a DLManagedTensor, for consumers of DLPack before 1.0. They may write to it:
 * this version of DLPack cannot forbid that.
 * @param out_managed as in accrt_dlpack_export.
 * @return as accrt_dlpack_export. Thread-safe. Since: 0.4 */
ACCRT_API accrt_status_t accrt_dlpack_export_unversioned(const accrt_tensor_t* tensor,
                                                         struct DLManagedTensor** out_managed);

ACCRT_END
#endif /* ACCRT_TENSOR_H_ */
