/* runtime/core/dlpack.h - DLPack 1.x as it lies in memory: our own declarations of a published ABI
 * (github.com/dmlc/dlpack).
 *
 * It may not include anything of the library. Sizes and offsets are those of 64-bit targets and are
 * asserted.
 */
#ifndef ACCRT_RUNTIME_CORE_DLPACK_H_
#define ACCRT_RUNTIME_CORE_DLPACK_H_

#include <stddef.h>
#include <stdint.h>

#define ACCRT_DL_MAJOR 1u

enum {
  ACCRT_DL_CPU = 1,
  ACCRT_DL_CUDA = 2,
  ACCRT_DL_CUDA_HOST = 3,
  ACCRT_DL_ROCM_HOST = 11,
  ACCRT_DL_CUDA_MANAGED = 13,
};

enum {
  ACCRT_DL_INT = 0,
  ACCRT_DL_UINT = 1,
  ACCRT_DL_FLOAT = 2,
  ACCRT_DL_BFLOAT = 4,
  ACCRT_DL_BOOL = 6,
  /* since 1.1 */
  ACCRT_DL_F8E4M3FN = 10,
  ACCRT_DL_F8E5M2 = 12,
  ACCRT_DL_F8E8M0 = 14,
  ACCRT_DL_F4E2M1 = 17,
};

#define ACCRT_DL_FLAG_READ_ONLY UINT64_C(1)
#define ACCRT_DL_FLAG_SUBBYTE_PADDED UINT64_C(4) /* types under 8 bits take a byte each */

typedef struct accrt_dl_type {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} accrt_dl_type_t;

typedef struct accrt_dl_tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  accrt_dl_type_t dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL: row-major (until 1.2, which asks producers to fill it) */
  uint64_t byte_offset;
} accrt_dl_tensor_t;

/* Named as in dlpack.h and accrt/tensor.h. Version, context and deleter never move, whatever the
 * major version. */
typedef struct DLManagedTensorVersioned {
  uint32_t major;
  uint32_t minor;
  void* manager_context;
  void (*deleter)(struct DLManagedTensorVersioned* self); /* may be NULL */
  uint64_t flags;
  accrt_dl_tensor_t tensor;
} accrt_dl_managed_t;

/* From before DLPack 1.0: it has no version and no flags. */
typedef struct DLManagedTensor {
  accrt_dl_tensor_t tensor;
  void* manager_context;
  void (*deleter)(struct DLManagedTensor* self); /* may be NULL */
} accrt_dl_unversioned_t;

_Static_assert(sizeof(accrt_dl_unversioned_t) == 64, "DLManagedTensor");
_Static_assert(sizeof(accrt_dl_tensor_t) == 48 && offsetof(accrt_dl_tensor_t, byte_offset) == 40,
               "DLTensor");
_Static_assert(sizeof(accrt_dl_managed_t) == 80 && offsetof(accrt_dl_managed_t, tensor) == 32,
               "DLManagedTensorVersioned");

#endif /* ACCRT_RUNTIME_CORE_DLPACK_H_ */
