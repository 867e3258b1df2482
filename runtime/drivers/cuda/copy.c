/* runtime/drivers/cuda/copy.c - strided copies and fills as calls of CUDA. Addresses are unified:
 * CUDA finds out whether an address is in host, device or peer memory.
 *
 * CUDA's 2D and 3D copies require pitches of at least the width and below a limit, and planes of a
 * whole number of pitches. Copies of another shape (a source with a stride of 0, or rows that
 * overlap in the source) are split into smaller copies.
 */
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/drivers/cuda/cuda.h"

/* ---- Shapes ---- */

static void drop_unit_dimensions(cuda_copy_t* copy) {
  if (copy->extent[1] == 1) {
    copy->extent[1] = copy->extent[2];
    copy->source_stride[0] = copy->source_stride[1];
    copy->target_stride[0] = copy->target_stride[1];
    copy->extent[2] = 1;
  }
  if (copy->extent[2] == 1) {
    copy->source_stride[1] = 0;
    copy->target_stride[1] = 0;
  }
  if (copy->extent[1] == 1) {
    copy->source_stride[0] = copy->extent[0];
    copy->target_stride[0] = copy->extent[0];
  }
}

/* Merges rows that are contiguous on both sides into one row, and contiguous planes into more
 * rows. */
static void merge(cuda_copy_t* copy) {
  uint64_t whole;
  if (copy->extent[2] > 1 && accrt_mul_u64(copy->extent[1], copy->source_stride[0], &whole) &&
      whole == copy->source_stride[1] &&
      accrt_mul_u64(copy->extent[1], copy->target_stride[0], &whole) &&
      whole == copy->target_stride[1] && accrt_mul_u64(copy->extent[1], copy->extent[2], &whole)) {
    copy->extent[1] = whole;
    copy->extent[2] = 1;
    copy->source_stride[1] = copy->target_stride[1] = 0;
  }
  if (copy->extent[1] > 1 && copy->source_stride[0] == copy->extent[0] &&
      copy->target_stride[0] == copy->extent[0] &&
      accrt_mul_u64(copy->extent[0], copy->extent[1], &whole)) {
    copy->extent[0] = whole;
    copy->extent[1] = 1;
    drop_unit_dimensions(copy);
  }
}

static bool is_pitch(uint64_t stride, uint64_t width, uint64_t max_pitch_bytes) {
  return stride >= width && stride <= max_pitch_bytes;
}

static bool are_pitches(const cuda_copy_t* copy, uint64_t max_pitch_bytes) {
  return is_pitch(copy->source_stride[0], copy->extent[0], max_pitch_bytes) &&
         is_pitch(copy->target_stride[0], copy->extent[0], max_pitch_bytes);
}

/* True when planes are a whole number of pitches apart and do not overlap. */
static bool is_height(uint64_t plane_stride, uint64_t pitch, uint64_t rows) {
  return plane_stride % pitch == 0 && plane_stride / pitch >= rows;
}

uint32_t accrt_cuda_copy_shape(cuda_copy_t* copy, uint64_t max_pitch_bytes) {
  if (copy->extent[0] == 0 || copy->extent[1] == 0 || copy->extent[2] == 0)
    return CUDA_COPY_NOTHING;
  drop_unit_dimensions(copy);
  merge(copy);
  if (copy->extent[1] == 1 && copy->extent[2] == 1)
    return CUDA_COPY_LINEAR;
  const bool pitched = are_pitches(copy, max_pitch_bytes);
  if (copy->extent[2] == 1)
    return pitched ? CUDA_COPY_2D : CUDA_COPY_ROWS;
  if (pitched && is_height(copy->source_stride[1], copy->source_stride[0], copy->extent[1]) &&
      is_height(copy->target_stride[1], copy->target_stride[0], copy->extent[1])) {
    return CUDA_COPY_3D;
  }
  return CUDA_COPY_PLANES;
}

void accrt_cuda_copy_values(const accrt_driver_copy_t* command,
                            const accrt_driver_submission_t* submission, cuda_copy_t* out_copy) {
  out_copy->source = cuda_address(&command->source, submission);
  out_copy->target = cuda_address(&command->target, submission);
  for (int i = 0; i < 3; ++i)
    out_copy->extent[i] = cuda_value(&command->extent[i], submission);
  for (int i = 0; i < 2; ++i) {
    out_copy->source_stride[i] = cuda_value(&command->source_stride_bytes[i], submission);
    out_copy->target_stride[i] = cuda_value(&command->target_stride_bytes[i], submission);
  }
}

/* ---- The device of an address ---- */

/* Returns 0 for an address that CUDA does not know. */
static CUmemorytype query_pointer(const cuda_device_t* device, uint64_t address, int* out_ordinal) {
  CUmemorytype type = (CUmemorytype)0;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* where[] = {&type, out_ordinal};
  const CUresult result = device->api->cuPointerGetAttributes(2, which, where, address);
  return result == CUDA_SUCCESS ? type : (CUmemorytype)0;
}

static CUmemorytype memory_type(const cuda_device_t* device, uint64_t address) {
  int ordinal = 0;
  return query_pointer(device, address, &ordinal);
}

/* Returns the other device of this driver that owns the memory, if it has not given `device` access
 * yet. */
static cuda_device_t* peer_without_access(const cuda_device_t* device, uint64_t address) {
  cuda_driver_t* driver = device->driver;
  int ordinal = 0;
  if (query_pointer(device, address, &ordinal) != CU_MEMORYTYPE_DEVICE || ordinal < 0 ||
      ordinal >= (int)CUDA_MAX_DEVICES || (uint32_t)ordinal == device->ordinal) {
    return NULL;
  }
  accrt_mutex_lock(&driver->mutex);
  cuda_device_t* peer = driver->devices[ordinal];
  accrt_mutex_unlock(&driver->mutex);
  if (peer == NULL)
    return NULL;
  accrt_mutex_lock(&peer->mutex);
  const bool open = (peer->peer_mask >> device->ordinal & 1) != 0;
  accrt_mutex_unlock(&peer->mutex);
  return open ? NULL : peer;
}

/* Enables access to the peer's memory. False when the devices have no path to each other. */
static bool open_path(cuda_device_t* device, cuda_device_t* peer) {
  const uint64_t bit = UINT64_C(1) << peer->ordinal;
  /* Relaxed is enough: a thread that misses the bit asks CUDA again. */
  if ((atomic_load_explicit(&device->unreachable_peers, memory_order_relaxed) & bit) != 0)
    return false;
  const accrt_error_t saved = *accrt_error_current();
  const accrt_status_t status =
      accrt_cuda_device_enable_peer((accrt_driver_device_t*)device, (accrt_driver_device_t*)peer);
  (void)accrt_error_restore(&saved);
  if (status == ACCRT_ERROR_UNSUPPORTED)
    atomic_fetch_or_explicit(&device->unreachable_peers, bit, memory_order_relaxed);
  return status != ACCRT_ERROR_UNSUPPORTED; /* the copy reports any other failure */
}

bool accrt_cuda_copy_reach(cuda_device_t* device, uint64_t source, uint64_t target,
                           cuda_device_t* out_far[2]) {
  const uint64_t places[] = {source, target};
  out_far[0] = out_far[1] = NULL;
  if (device->driver->device_count < 2)
    return true;
  for (int i = 0; i < 2; ++i) {
    cuda_device_t* peer = peer_without_access(device, places[i]);
    if (peer != NULL && !open_path(device, peer))
      out_far[i] = peer;
  }
  return out_far[0] == NULL && out_far[1] == NULL;
}

/* ---- Submitting ---- */

static CUresult copy_linear(const cuda_device_t* device, CUstream stream, uint64_t source,
                            uint64_t target, uint64_t size_bytes) {
  return device->api->cuMemcpyAsync(target, source, size_bytes, stream);
}

void accrt_cuda_copy_2d(const cuda_copy_t* copy, CUDA_MEMCPY2D* out_request) {
  memset(out_request, 0, sizeof *out_request);
  out_request->srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  out_request->srcDevice = copy->source;
  out_request->srcPitch = copy->source_stride[0];
  out_request->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  out_request->dstDevice = copy->target;
  out_request->dstPitch = copy->target_stride[0];
  out_request->WidthInBytes = copy->extent[0];
  out_request->Height = copy->extent[1];
}

void accrt_cuda_copy_3d(const cuda_copy_t* copy, CUDA_MEMCPY3D* out_request) {
  memset(out_request, 0, sizeof *out_request);
  out_request->srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  out_request->srcDevice = copy->source;
  out_request->srcPitch = copy->source_stride[0];
  out_request->srcHeight =
      copy->extent[2] > 1 ? copy->source_stride[1] / copy->source_stride[0] : copy->extent[1];
  out_request->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  out_request->dstDevice = copy->target;
  out_request->dstPitch = copy->target_stride[0];
  out_request->dstHeight =
      copy->extent[2] > 1 ? copy->target_stride[1] / copy->target_stride[0] : copy->extent[1];
  out_request->WidthInBytes = copy->extent[0];
  out_request->Height = copy->extent[1];
  out_request->Depth = copy->extent[2];
}

static CUresult copy_rows(const cuda_device_t* device, CUstream stream, const cuda_copy_t* copy) {
  CUresult result = CUDA_SUCCESS;
  for (uint64_t row = 0; row < copy->extent[1] && result == CUDA_SUCCESS; ++row) {
    result = copy_linear(device, stream, copy->source + row * copy->source_stride[0],
                         copy->target + row * copy->target_stride[0], copy->extent[0]);
  }
  return result;
}

/* Copies at most one plane. */
static CUresult copy_plane(const cuda_device_t* device, CUstream stream, const cuda_copy_t* copy,
                           uint32_t shape) {
  CUDA_MEMCPY2D request;
  switch (shape) {
  case CUDA_COPY_LINEAR:
    return copy_linear(device, stream, copy->source, copy->target, copy->extent[0]);
  case CUDA_COPY_2D:
    accrt_cuda_copy_2d(copy, &request);
    return device->api->cuMemcpy2DAsync(&request, stream);
  case CUDA_COPY_ROWS:
    return copy_rows(device, stream, copy);
  default:
    return CUDA_SUCCESS;
  }
}

static CUresult copy_planes(const cuda_device_t* device, CUstream stream, const cuda_copy_t* copy) {
  CUresult result = CUDA_SUCCESS;
  for (uint64_t plane = 0; plane < copy->extent[2] && result == CUDA_SUCCESS; ++plane) {
    cuda_copy_t one = *copy;
    one.source += plane * copy->source_stride[1];
    one.target += plane * copy->target_stride[1];
    one.extent[2] = 1;
    const uint32_t shape = accrt_cuda_copy_shape(&one, (uint64_t)device->max_pitch_bytes);
    result = copy_plane(device, stream, &one, shape);
  }
  return result;
}

accrt_status_t accrt_cuda_copy_enqueue(cuda_device_t* device, CUstream stream, cuda_copy_t* copy) {
  const uint32_t shape = accrt_cuda_copy_shape(copy, (uint64_t)device->max_pitch_bytes);
  CUresult result;
  CUDA_MEMCPY3D request;
  cuda_device_t* far[2];
  const bool reached =
      shape == CUDA_COPY_NOTHING || accrt_cuda_copy_reach(device, copy->source, copy->target, far);
  switch (reached ? shape : CUDA_COPY_DETOUR) {
  case CUDA_COPY_DETOUR:
    result = accrt_cuda_detour_copy(device, stream, copy, far);
    break;
  case CUDA_COPY_3D:
    accrt_cuda_copy_3d(copy, &request);
    result = device->api->cuMemcpy3DAsync(&request, stream);
    break;
  case CUDA_COPY_PLANES:
    result = copy_planes(device, stream, copy);
    break;
  default:
    result = copy_plane(device, stream, copy, shape);
    break;
  }
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  return accrt_cuda_fail(device, result, "cuMemcpyAsync",
                         "a copy of %llu x %llu x %llu bytes from 0x%llx to 0x%llx",
                         (unsigned long long)copy->extent[0], (unsigned long long)copy->extent[1],
                         (unsigned long long)copy->extent[2], (unsigned long long)copy->source,
                         (unsigned long long)copy->target);
}

/* ---- Fills ---- */

/* Bytes that columns fill before copies multiply them. */
#define SEED_BYTES (UINT64_C(64) << 10)

/* Fills 8 bytes at a time. CUDA has no such fill unless both halves are equal. Otherwise each half
 * is a column of 4 bytes in rows of 8. */
static CUresult fill_columns(const cuda_api_t* api, CUstream stream, uint64_t target,
                             uint64_t count, uint64_t pattern) {
  const CUresult result = api->cuMemsetD2D32Async(target, 8, (unsigned)pattern, 1, count, stream);
  if (result != CUDA_SUCCESS)
    return result;
  return api->cuMemsetD2D32Async(target + 4, 8, (unsigned)(pattern >> 32), 1, count, stream);
}

/* Filling columns is slow. On the device, a long fill copies its filled part behind itself, and
 * doubles it each time. In host memory it does not, because copies between host addresses would
 * block. */
static CUresult fill_8(const cuda_device_t* device, CUstream stream, uint64_t target,
                       uint64_t size_bytes, uint64_t pattern) {
  const cuda_api_t* api = device->api;
  if ((unsigned)pattern == (unsigned)(pattern >> 32))
    return api->cuMemsetD32Async(target, (unsigned)pattern, size_bytes / 4, stream);
  if (size_bytes <= 2 * SEED_BYTES || memory_type(device, target) != CU_MEMORYTYPE_DEVICE)
    return fill_columns(api, stream, target, size_bytes / 8, pattern);
  CUresult result = fill_columns(api, stream, target, SEED_BYTES / 8, pattern);
  for (uint64_t done = SEED_BYTES; done < size_bytes && result == CUDA_SUCCESS; done *= 2) {
    const uint64_t left = size_bytes - done;
    result = api->cuMemcpyAsync(target + done, target, left < done ? left : done, stream);
  }
  return result;
}

/* A host thread of CUDA fills memory that CUDA does not know, when the stream gets there. */
typedef struct host_fill {
  const accrt_allocator_t* allocator;
  uint64_t target;
  uint64_t size_bytes;
  uint64_t pattern;
  uint32_t pattern_bytes;
} host_fill_t;

static void fill_here(const host_fill_t* fill) {
  unsigned char* at = (unsigned char*)(uintptr_t)fill->target;
  unsigned char* const end = at + fill->size_bytes;
  if (fill->pattern_bytes == 1) {
    memset(at, (int)(fill->pattern & 0xFF), fill->size_bytes);
    return;
  }
  for (; at < end; at += fill->pattern_bytes)
    memcpy(at, &fill->pattern, fill->pattern_bytes); /* the low bytes of the pattern */
}

/* Runs on a thread of CUDA, which may not call CUDA. */
static void CUDA_CB run_host_fill(void* argument) {
  host_fill_t* fill = argument;
  fill_here(fill);
  accrt_free(fill->allocator, fill, sizeof *fill);
}

static accrt_status_t fill_on_host(cuda_device_t* device, CUstream stream,
                                   const host_fill_t* fill) {
  host_fill_t* kept;
  ACCRT_TRY(ACCRT_NEW(device->allocator, &kept));
  *kept = *fill;
  kept->allocator = device->allocator;
  const CUresult result = device->api->cuLaunchHostFunc(stream, run_host_fill, kept);
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  accrt_free(device->allocator, kept, sizeof *kept);
  return accrt_cuda_fail(device, result, "cuLaunchHostFunc",
                         "a fill of %llu bytes of host memory at 0x%llx",
                         (unsigned long long)fill->size_bytes, (unsigned long long)fill->target);
}

static CUresult fill_by_device(const cuda_device_t* device, CUstream stream,
                               const host_fill_t* fill) {
  const cuda_api_t* api = device->api;
  const uint64_t count = fill->size_bytes / fill->pattern_bytes;
  switch (fill->pattern_bytes) {
  case 1:
    return api->cuMemsetD8Async(fill->target, (unsigned char)fill->pattern, count, stream);
  case 2:
    return api->cuMemsetD16Async(fill->target, (unsigned short)fill->pattern, count, stream);
  case 4:
    return api->cuMemsetD32Async(fill->target, (unsigned)fill->pattern, count, stream);
  default:
    return fill_8(device, stream, fill->target, fill->size_bytes, fill->pattern);
  }
}

bool accrt_cuda_is_known(const cuda_device_t* device, uint64_t address) {
  return memory_type(device, address) != 0;
}

accrt_status_t accrt_cuda_fill_enqueue(cuda_device_t* device, CUstream stream, uint64_t target,
                                       uint64_t size_bytes, uint64_t pattern,
                                       uint32_t pattern_bytes) {
  if (size_bytes == 0)
    return ACCRT_OK;
  const host_fill_t fill = {NULL, target, size_bytes, pattern, pattern_bytes};
  const CUresult result = fill_by_device(device, stream, &fill);
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  if (result == CUDA_ERROR_INVALID_VALUE && !accrt_cuda_is_known(device, target))
    return fill_on_host(device, stream, &fill);
  return accrt_cuda_fail(device, result, "cuMemsetAsync", "a fill of %llu bytes at 0x%llx",
                         (unsigned long long)size_bytes, (unsigned long long)target);
}
