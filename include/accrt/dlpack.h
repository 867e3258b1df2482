/* accrt/dlpack.h - tensors from and to other libraries through DLPack, without a copy.
 *
 * It names the structs of dlpack.h (github.com/dmlc/dlpack) and does not include it. A file that
 * includes both needs no cast.
 */
#ifndef ACCRT_DLPACK_H_
#define ACCRT_DLPACK_H_

#include "accrt/tensor.h"

ACCRT_BEGIN

struct DLManagedTensorVersioned;
struct DLManagedTensor;

/** Imports a DLPack tensor (of major version 1) without a copy. Memory of the host (kDLCPU,
 * kDLCUDAHost, kDLROCMHost) can be imported for every device, other memory only for the device that
 * has it. A type of 4 bits and 2 lanes, as torch has float4_e2m1fn_x2, becomes twice as many
 * elements in the last dimension, whose stride must be 1.
 * @param managed On success the library owns it: it calls the deleter once, on any thread, when the
 *   last reference and the last use on a stream are gone. On failure the caller still owns it.
 * @param out_tensor a view of it. The caller owns its buffer:
 *   accrt_buffer_release(out_tensor->buffer). Zeros on failure.
 * @param shape, strides storage for ACCRT_MAX_RANK entries each, to which out_tensor points.
 * @param out_read_only 1 when the producer forbids writing.
 * @return ACCRT_OK; ACCRT_ERROR_VERSION_MISMATCH; ACCRT_ERROR_UNSUPPORTED (a data type, rank or
 *   device that `device` cannot take; the message names it); ACCRT_ERROR_OUT_OF_MEMORY.
 *   Thread-safe. Since: 0.1 */
ACCRT_API accrt_status_t accrt_dlpack_import(accrt_device_t* device,
                                             struct DLManagedTensorVersioned* managed,
                                             accrt_tensor_t* out_tensor, int64_t* shape,
                                             int64_t* strides, uint32_t* out_read_only);
/** Exports a tensor as a DLManagedTensorVersioned (1.0) that retains the tensor's buffer.
 * `tensor->buffer` may not be NULL. Types of 4 bits have one lane, as the standard says.
 * @param out_managed the consumer calls its `deleter` once, on any thread.
 * @return ACCRT_OK; ACCRT_ERROR_UNSUPPORTED (a data type that DLPack lacks);
 *   ACCRT_ERROR_OUT_OF_MEMORY. Thread-safe. Since: 0.1 */
ACCRT_API accrt_status_t accrt_dlpack_export(const accrt_tensor_t* tensor, uint32_t read_only,
                                             struct DLManagedTensorVersioned** out_managed);

/** Imports a tensor of DLPack before 1.0 (DLManagedTensor) without a copy. JAX makes such tensors.
 * They cannot say that they are read-only: the caller must know it.
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
#endif /* ACCRT_DLPACK_H_ */
