/* runtime/drivers/common/dlpack.c - tensors from and to other libraries through DLPack. Deleters
 * are plain C: they need no interpreter and no lock of ours. */
#include "runtime/core/dlpack.h"

#include <string.h>

#include "runtime/core/reach.h"
#include "runtime/drivers/common/objects.h"

/* ---- Data types ---- */

typedef struct dl_number {
  uint8_t code;
  uint8_t bits;
  uint8_t minor; /* of the DLPack version that brought it */
} dl_number_t;

static const dl_number_t numbers[] = {
    [ACCRT_DTYPE_BOOL] = {ACCRT_DL_BOOL, 8, 0},
    [ACCRT_DTYPE_I8] = {ACCRT_DL_INT, 8, 0},
    [ACCRT_DTYPE_I16] = {ACCRT_DL_INT, 16, 0},
    [ACCRT_DTYPE_I32] = {ACCRT_DL_INT, 32, 0},
    [ACCRT_DTYPE_I64] = {ACCRT_DL_INT, 64, 0},
    [ACCRT_DTYPE_U8] = {ACCRT_DL_UINT, 8, 0},
    [ACCRT_DTYPE_U16] = {ACCRT_DL_UINT, 16, 0},
    [ACCRT_DTYPE_U32] = {ACCRT_DL_UINT, 32, 0},
    [ACCRT_DTYPE_U64] = {ACCRT_DL_UINT, 64, 0},
    [ACCRT_DTYPE_F16] = {ACCRT_DL_FLOAT, 16, 0},
    [ACCRT_DTYPE_BF16] = {ACCRT_DL_BFLOAT, 16, 0},
    [ACCRT_DTYPE_F32] = {ACCRT_DL_FLOAT, 32, 0},
    [ACCRT_DTYPE_F64] = {ACCRT_DL_FLOAT, 64, 0},
    [ACCRT_DTYPE_F8E4M3FN] = {ACCRT_DL_F8E4M3FN, 8, 1},
    [ACCRT_DTYPE_F8E5M2] = {ACCRT_DL_F8E5M2, 8, 1},
    [ACCRT_DTYPE_F8E8M0] = {ACCRT_DL_F8E8M0, 8, 1},
    [ACCRT_DTYPE_F4E2M1] = {ACCRT_DL_F4E2M1, 4, 1},
    [ACCRT_DTYPE_I4] = {ACCRT_DL_INT, 4, 0},
    [ACCRT_DTYPE_U4] = {ACCRT_DL_UINT, 4, 0},
};
enum { NUMBER_COUNT = sizeof numbers / sizeof *numbers };

/* Of several lanes, only those that fill one byte: torch has f4e2m1 by pairs. */
static accrt_dtype_t type_from_dl(accrt_dl_type_t type) {
  if (type.lanes != 1 && type.bits * type.lanes != 8)
    return ACCRT_DTYPE_NONE;
  for (accrt_dtype_t i = NUMBER_COUNT; --i > 0;) {
    if (numbers[i].code == type.code && numbers[i].bits == type.bits)
      return i;
  }
  return ACCRT_DTYPE_NONE;
}

/* ---- Extents ---- */

/* Those that are given; NULL: row-major. */
static bool copy_strides(const int64_t* shape, uint32_t rank, const int64_t* given,
                         int64_t* strides) {
  int64_t stride = 1;
  if (given != NULL) {
    memcpy(strides, given, rank * sizeof *strides);
    return true;
  }
  for (uint32_t i = rank; i-- > 0;) {
    strides[i] = stride;
    if (shape[i] > 1 && __builtin_mul_overflow(stride, shape[i], &stride))
      return false;
  }
  return true;
}

/* An element of several lanes becomes that many of the last dimension. */
static bool split_lanes(int64_t lanes, uint32_t rank, int64_t* shape, int64_t* strides) {
  if (lanes == 1)
    return true;
  const uint32_t last = rank - 1;
  if (rank == 0 || (shape[last] > 1 && strides[last] != 1))
    return false;
  strides[last] = 1;
  for (uint32_t i = 0; i < last; ++i) {
    if (__builtin_mul_overflow(strides[i], lanes, &strides[i]))
      return false;
  }
  return !__builtin_mul_overflow(shape[last], lanes, &shape[last]);
}

static accrt_status_t check_shape(const int64_t* shape, int64_t rank) {
  if (rank < 0 || rank > ACCRT_MAX_RANK)
    return ACCRT_FAIL(UNSUPPORTED, "rank %" PRId64 "; at most %d is taken", rank, ACCRT_MAX_RANK);
  if (rank > 0 && shape == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "rank %" PRId64 " without a shape", rank);
  for (int64_t i = 0; i < rank; ++i) {
    if (shape[i] < 0)
      return ACCRT_FAIL(INVALID_ARGUMENT, "dimension %" PRId64 " is %" PRId64, i, shape[i]);
  }
  return ACCRT_OK;
}

/* ---- Import ---- */

/* Managed memory is every CUDA device's own. */
static bool is_own_memory(const accrt_device_info_t* facts, const accrt_dl_tensor_t* tensor) {
  if (tensor->device_type == ACCRT_DL_CUDA_MANAGED)
    return facts->dlpack_device_type == ACCRT_DL_CUDA;
  return facts->dlpack_device_type != 0 &&
         (int64_t)facts->dlpack_device_type == tensor->device_type &&
         facts->dlpack_device_id == tensor->device_id;
}

/* What both forms of managed tensors say. */
typedef struct import {
  const accrt_dl_tensor_t* tensor;
  uint64_t flags;
  void (*drop)(void* managed);
  void* managed;
} import_t;

static accrt_status_t check_place(accrt_device_t* device, const accrt_dl_tensor_t* tensor) {
  const int32_t type = tensor->device_type;
  if (type == ACCRT_DL_CPU || type == ACCRT_DL_CUDA_HOST || type == ACCRT_DL_ROCM_HOST)
    return ACCRT_OK;
  if (is_own_memory(accrt_device_facts(device), tensor))
    return ACCRT_OK;
  return ACCRT_FAIL(UNSUPPORTED,
                    "the tensor is on DLPack device (%" PRId32 ", %" PRId32
                    "), which %s cannot take",
                    type, tensor->device_id, accrt_device_facts(device)->name);
}

static accrt_status_t import_tensor(accrt_device_t* device, const import_t* import,
                                    accrt_tensor_t* out_tensor, int64_t* shape, int64_t* strides) {
  const accrt_dl_tensor_t* tensor = import->tensor;
  ACCRT_TRY(check_place(device, tensor));
  ACCRT_TRY(check_shape(tensor->shape, tensor->ndim));
  const accrt_dtype_t dtype = type_from_dl(tensor->dtype);
  const bool padded = (import->flags & ACCRT_DL_FLAG_SUBBYTE_PADDED) != 0 && tensor->dtype.bits < 8;
  if (dtype == ACCRT_DTYPE_NONE || padded) {
    return ACCRT_FAIL(UNSUPPORTED, "DLPack type (code %u, %u bits, %u lanes%s)", tensor->dtype.code,
                      tensor->dtype.bits, tensor->dtype.lanes, padded ? ", padded" : "");
  }
  const uint32_t rank = (uint32_t)tensor->ndim;
  int64_t sizes[ACCRT_MAX_RANK], steps[ACCRT_MAX_RANK];
  accrt_reach_bytes_t extent;
  if (rank > 0)
    memcpy(sizes, tensor->shape, rank * sizeof *sizes);
  if (tensor->byte_offset > INT64_MAX || /* it would wrap */
      !copy_strides(sizes, rank, tensor->strides, steps) ||
      !split_lanes(tensor->dtype.lanes, rank, sizes, steps) ||
      !accrt_reach_measure(rank, sizes, steps, tensor->dtype.bits, &extent)) {
    return ACCRT_FAIL(
        UNSUPPORTED,
        "the tensor's strides or offset reach too far, or its last dimension has %u lanes with "
        "gaps",
        tensor->dtype.lanes);
  }
  char* first =
      tensor->data != NULL ? (char*)tensor->data + tensor->byte_offset + extent.first_bytes : NULL;
  accrt_buffer_t* buffer;
  ACCRT_TRY(accrt_inner_buffer_import(device, first, extent.size_bytes, import->drop,
                                      import->managed, &buffer));
  memcpy(shape, sizes, rank * sizeof *shape);
  memcpy(strides, steps, rank * sizeof *strides);
  *out_tensor = (accrt_tensor_t){.buffer = buffer,
                                 .offset_bytes = (uint64_t)(-extent.first_bytes),
                                 .dtype = dtype,
                                 .rank = rank,
                                 .shape = shape,
                                 .strides = strides};
  return ACCRT_OK;
}

static void delete_managed(void* user) {
  accrt_dl_managed_t* managed = user;
  if (managed->deleter != NULL)
    managed->deleter(managed);
}

static void delete_unversioned(void* user) {
  accrt_dl_unversioned_t* managed = user;
  if (managed->deleter != NULL)
    managed->deleter(managed);
}

accrt_status_t accrt_dlpack_import(accrt_device_t* device, accrt_dl_managed_t* managed,
                                   accrt_tensor_t* out_tensor, int64_t* shape, int64_t* strides,
                                   uint32_t* out_read_only) {
  if (out_tensor != NULL)
    memset(out_tensor, 0, sizeof *out_tensor);
  if (out_read_only != NULL)
    *out_read_only = 0;
  ACCRT_ENTER(device, managed, out_tensor, shape, strides, out_read_only);
  const accrt_dl_managed_t* producer = managed;
  if (producer->major != ACCRT_DL_MAJOR) {
    return ACCRT_FAIL(VERSION_MISMATCH,
                      "the tensor is of DLPack %" PRIu32 ".%" PRIu32 "; %u.x is taken",
                      producer->major, producer->minor, ACCRT_DL_MAJOR);
  }
  const import_t import = {&producer->tensor, producer->flags, delete_managed, managed};
  /* Asked before: once it is imported the producer may be gone. */
  const uint32_t read_only = (producer->flags & ACCRT_DL_FLAG_READ_ONLY) != 0;
  accrt_status_t status = import_tensor(device, &import, out_tensor, shape, strides);
  if (status == ACCRT_OK)
    *out_read_only = read_only;
  return status;
}

accrt_status_t accrt_dlpack_import_unversioned(accrt_device_t* device,
                                               accrt_dl_unversioned_t* managed,
                                               accrt_tensor_t* out_tensor, int64_t* shape,
                                               int64_t* strides) {
  if (out_tensor != NULL)
    memset(out_tensor, 0, sizeof *out_tensor);
  ACCRT_ENTER(device, managed, out_tensor, shape, strides);
  const accrt_dl_unversioned_t* producer = managed;
  const import_t import = {&producer->tensor, 0, delete_unversioned, managed};
  return import_tensor(device, &import, out_tensor, shape, strides);
}

/* ---- Export ---- */

typedef struct exported_tensor {
  union {
    accrt_dl_managed_t managed;
    accrt_dl_unversioned_t unversioned;
  } form; /* first: consumers have its address */
  const accrt_allocator_t* allocator;
  accrt_buffer_t* buffer;
  int64_t shape[ACCRT_MAX_RANK];
  int64_t strides[ACCRT_MAX_RANK];
} exported_tensor_t;

static void drop_exported(exported_tensor_t* exported) {
  if (exported == NULL || accrt_forked())
    return;
  accrt_buffer_t* buffer = exported->buffer;
  accrt_free(exported->allocator, exported, sizeof *exported);
  /* Last: the buffer keeps the instance, and so the allocator. */
  accrt_buffer_release(buffer);
}

static void delete_exported(accrt_dl_managed_t* managed) {
  drop_exported((exported_tensor_t*)managed);
}

static void delete_exported_unversioned(accrt_dl_unversioned_t* managed) {
  drop_exported((exported_tensor_t*)managed);
}

/* Where a consumer finds the memory. */
static accrt_status_t place_exported(accrt_buffer_t* buffer, accrt_dl_tensor_t* tensor) {
  accrt_buffer_info_t info = ACCRT_BUFFER_INFO_INIT;
  ACCRT_TRY(accrt_inner_buffer_info(buffer, &info));
  const accrt_device_info_t* facts = accrt_device_facts(accrt_buffer_device(buffer));
  const bool is_named = facts->dlpack_device_type != 0 && facts->dlpack_device_type != ACCRT_DL_CPU;
  if (info.host_pointer != NULL || (info.size_bytes == 0 && !is_named)) {
    tensor->device_type = ACCRT_DL_CPU;
    tensor->data = info.host_pointer;
    return ACCRT_OK;
  }
  if (!is_named) {
    return ACCRT_FAIL(UNSUPPORTED, "DLPack has no name for memory of %s that the host cannot reach",
                      facts->name);
  }
  uint64_t address, size_bytes;
  accrt_buffer_range(buffer, &address, &size_bytes);
  tensor->device_type = (int32_t)facts->dlpack_device_type;
  tensor->device_id = facts->dlpack_device_id;
  tensor->data = (void*)(uintptr_t)address;
  return ACCRT_OK;
}

static accrt_status_t check_exported(const accrt_tensor_t* tensor, const dl_number_t* type,
                                     int64_t* strides, bool* out_empty) {
  ACCRT_TRY(check_shape(tensor->shape, tensor->rank));
  accrt_reach_bytes_t extent;
  uint64_t address, size_bytes;
  accrt_buffer_range(tensor->buffer, &address, &size_bytes);
  const bool fits = copy_strides(tensor->shape, tensor->rank, tensor->strides, strides) &&
                    accrt_reach_measure(tensor->rank, tensor->shape, strides, type->bits, &extent);
  const uint64_t before = fits ? (uint64_t)(-extent.first_bytes) : 0;
  if (fits && before <= tensor->offset_bytes &&
      accrt_range_fits(tensor->offset_bytes - before, extent.size_bytes, size_bytes)) {
    *out_empty = extent.size_bytes == 0;
    return ACCRT_OK;
  }
  return ACCRT_FAIL(OUT_OF_RANGE,
                    "the tensor at offset %" PRIu64 " does not fit its buffer of %" PRIu64 " bytes",
                    tensor->offset_bytes, size_bytes);
}

/* The part of both forms: what is exported, retained, with the description that `out_placed`
 * gets. */
static accrt_status_t export_tensor(const accrt_tensor_t* tensor, const dl_number_t** out_type,
                                    accrt_dl_tensor_t* out_placed,
                                    exported_tensor_t** out_exported) {
  if (tensor == NULL || tensor->buffer == NULL) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "%s is NULL", tensor == NULL ? "tensor" : "tensor->buffer");
  }
  if (tensor->dtype == ACCRT_DTYPE_NONE || tensor->dtype >= NUMBER_COUNT)
    return ACCRT_FAIL(UNSUPPORTED, "data type %s has no DLPack type",
                      ACCRT_DTYPE_TEXT(tensor->dtype));
  const dl_number_t* type = &numbers[tensor->dtype];
  int64_t strides[ACCRT_MAX_RANK];
  accrt_dl_tensor_t placed = {.ndim = (int32_t)tensor->rank,
                              .dtype = {type->code, type->bits, 1},
                              .byte_offset = tensor->offset_bytes};
  bool is_empty = false;
  ACCRT_TRY(check_exported(tensor, type, strides, &is_empty));
  ACCRT_TRY(place_exported(tensor->buffer, &placed));
  if (is_empty) { /* the standard asks for NULL */
    placed.data = NULL;
    placed.byte_offset = 0;
  }
  const accrt_allocator_t* allocator =
      accrt_instance_allocator(accrt_device_instance(accrt_buffer_device(tensor->buffer)));
  exported_tensor_t* exported;
  ACCRT_TRY(ACCRT_NEW(allocator, &exported));
  exported->allocator = allocator;
  exported->buffer = accrt_buffer_retain(tensor->buffer);
  if (tensor->rank > 0) {
    memcpy(exported->shape, tensor->shape, tensor->rank * sizeof *exported->shape);
    memcpy(exported->strides, strides, tensor->rank * sizeof *strides);
  }
  placed.shape = exported->shape;
  placed.strides = exported->strides;
  *out_type = type;
  *out_placed = placed;
  *out_exported = exported;
  return ACCRT_OK;
}

accrt_status_t accrt_dlpack_export(const accrt_tensor_t* tensor, uint32_t read_only,
                                   accrt_dl_managed_t** out_managed) {
  if (out_managed != NULL)
    *out_managed = NULL;
  ACCRT_ENTER(out_managed);
  const dl_number_t* type;
  accrt_dl_tensor_t placed;
  exported_tensor_t* exported;
  ACCRT_TRY(export_tensor(tensor, &type, &placed, &exported));
  exported->form.managed = (accrt_dl_managed_t){.major = ACCRT_DL_MAJOR,
                                                .minor = type->minor,
                                                .deleter = delete_exported,
                                                .flags = read_only ? ACCRT_DL_FLAG_READ_ONLY : 0,
                                                .tensor = placed};
  *out_managed = &exported->form.managed;
  return ACCRT_OK;
}

accrt_status_t accrt_dlpack_export_unversioned(const accrt_tensor_t* tensor,
                                               accrt_dl_unversioned_t** out_managed) {
  if (out_managed != NULL)
    *out_managed = NULL;
  ACCRT_ENTER(out_managed);
  const dl_number_t* type;
  accrt_dl_tensor_t placed;
  exported_tensor_t* exported;
  ACCRT_TRY(export_tensor(tensor, &type, &placed, &exported));
  exported->form.unversioned =
      (accrt_dl_unversioned_t){.tensor = placed, .deleter = delete_exported_unversioned};
  *out_managed = &exported->form.unversioned;
  return ACCRT_OK;
}
