/* runtime/program/tensors.c - checks of a caller's tensors, and sizes. It knows no call. */
#include "runtime/program/internal.h"

bool accrt_shape_bytes(accrt_dtype_t dtype, uint32_t rank, const int64_t* shape,
                       uint64_t* out_size_bytes) {
  uint64_t bits = accrt_dtype_bits(dtype);
  bool is_empty = false;
  for (uint32_t i = 0; i < rank; ++i) {
    if (shape[i] < 0)
      return false;
    if (shape[i] == 0)
      is_empty = true;
  }
  *out_size_bytes = 0;
  if (is_empty)
    return true;
  for (uint32_t i = 0; i < rank; ++i) {
    if (!accrt_mul_u64(bits, (uint64_t)shape[i], &bits))
      return false;
  }
  *out_size_bytes = bits / 8 + (bits % 8 != 0);
  return *out_size_bytes <= INT64_MAX;
}

/* True for row-major order without gaps. The strides of dimensions of size 1, and of tensors
 * without elements, are ignored. */
static bool is_contiguous(const accrt_tensor_t* tensor) {
  if (tensor->strides == NULL)
    return true;
  int64_t expected = 1;
  for (uint32_t i = 0; i < tensor->rank; ++i) {
    if (tensor->shape[i] == 0)
      return true;
  }
  for (uint32_t i = tensor->rank; i-- > 0;) {
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected)
      return false;
    expected *= tensor->shape[i]; /* cannot overflow: the size was checked */
  }
  return true;
}

accrt_status_t accrt_tensor_check(const accrt_tensor_t* tensor, const accx_type_t* type,
                                  uint64_t* out_size_bytes) {
  if (tensor->dtype != type->dtype) {
    return ACCRT_FAIL(TYPE_MISMATCH, "got %s", ACCRT_DTYPE_TEXT(tensor->dtype));
  }
  if (tensor->rank != type->rank) {
    return ACCRT_FAIL(SHAPE_MISMATCH, "got %" PRIu32 " dimensions, expected %" PRIu32, tensor->rank,
                      type->rank);
  }
  if (tensor->rank != 0 && tensor->shape == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "its shape is NULL");
  for (uint32_t i = 0; i < tensor->rank; ++i) {
    if (tensor->shape[i] < 0) {
      return ACCRT_FAIL(SHAPE_MISMATCH, "dimension %" PRIu32 " is %" PRId64, i, tensor->shape[i]);
    }
  }
  if (!accrt_shape_bytes(tensor->dtype, tensor->rank, tensor->shape, out_size_bytes)) {
    return ACCRT_FAIL(SHAPE_MISMATCH, "its size does not fit 63 bits");
  }
  if (!is_contiguous(tensor))
    return ACCRT_FAIL(SHAPE_MISMATCH, "it is not contiguous (copy it first)");
  return ACCRT_OK;
}
