/* runtime/drivers/cuda/detour.c - copies between GPUs without a path to each other. They go through
 * pinned host memory, in pieces.
 *
 * Each device in the copy works on a stream of its own context. The queue's device uses the queue's
 * stream; another device uses a stream that it has for this purpose. Two chunks alternate. Events
 * order the streams, and no thread waits. One lock is held while all work is submitted, so an event
 * is always recorded before a stream waits for it. This file may not use lists: a list with such a
 * copy runs command by command.
 */
#include "runtime/drivers/cuda/cuda.h"

#define CHUNK_BYTES (UINT64_C(4) << 20)
#define CHUNKS CUDA_DETOUR_CHUNKS

/* One side of a copy. */
typedef struct side {
  cuda_device_t* device;
  CUstream stream;
} side_t;

/* Rows of `width` bytes; all of them fit into a chunk. */
typedef struct piece {
  uint64_t from, from_stride;
  uint64_t to, to_stride;
  uint64_t width, rows;
} piece_t;

/* ---- Streams, events and chunks of a device ---- */

static CUresult make_events(const cuda_device_t* device, CUevent* events, int count) {
  CUresult result = CUDA_SUCCESS;
  for (int i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    if (events[i] == NULL)
      result = device->api->cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING);
  }
  return result;
}

/* Makes the device's stream and events. They stay until the device is closed. */
static CUresult make_stream_and_events(cuda_device_t* device) {
  cuda_detour_t* detour = &device->detour;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  CUresult result = make_events(device, &detour->begin, 1);
  if (result == CUDA_SUCCESS)
    result = make_events(device, detour->filled, CHUNKS);
  for (int i = 0; i < 2 && result == CUDA_SUCCESS; ++i)
    result = make_events(device, detour->emptied[i], CHUNKS);
  if (result == CUDA_SUCCESS && detour->stream == NULL)
    result = device->api->cuStreamCreateWithPriority(&detour->stream, CU_STREAM_NON_BLOCKING, 0);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  return result;
}

static CUresult make_chunks(cuda_device_t* device) {
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  CUresult result = CUDA_SUCCESS;
  for (int i = 0; i < CHUNKS && result == CUDA_SUCCESS; ++i) {
    if (device->detour.chunks[i] == NULL)
      result = device->api->cuMemHostAlloc(&device->detour.chunks[i], CHUNK_BYTES,
                                           CU_MEMHOSTALLOC_PORTABLE);
  }
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  return result;
}

void accrt_cuda_detour_close(cuda_device_t* device) {
  cuda_detour_t* detour = &device->detour;
  const cuda_api_t* api = device->api;
  if (detour->begin == NULL)
    return;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  (void)api->cuEventDestroy(detour->begin);
  for (int i = 0; i < CHUNKS; ++i) {
    if (detour->filled[i] != NULL)
      (void)api->cuEventDestroy(detour->filled[i]);
    for (int k = 0; k < 2; ++k) {
      if (detour->emptied[k][i] != NULL)
        (void)api->cuEventDestroy(detour->emptied[k][i]);
    }
    if (detour->chunks[i] != NULL)
      (void)api->cuMemFreeHost(detour->chunks[i]);
  }
  if (detour->stream != NULL)
    (void)api->cuStreamDestroy(detour->stream);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
}

/* ---- One piece ---- */

static CUresult move(const side_t* side, uint64_t from, uint64_t from_stride, uint64_t to,
                     uint64_t to_stride, const piece_t* piece) {
  const cuda_api_t* api = side->device->api;
  CUDA_MEMCPY2D request;
  const cuda_copy_t copy = {.source = from,
                            .target = to,
                            .extent = {piece->width, piece->rows, 1},
                            .source_stride = {from_stride, 0},
                            .target_stride = {to_stride, 0}};
  const cuda_scope_t scope = cuda_enter(side->device);
  CUresult result;
  if (piece->rows == 1) {
    result = api->cuMemcpyAsync(to, from, piece->width, side->stream);
  } else {
    accrt_cuda_copy_2d(&copy, &request);
    result = api->cuMemcpy2DAsync(&request, side->stream);
  }
  cuda_leave(side->device, scope);
  return result;
}

static CUresult record(const side_t* side, CUevent event) {
  const cuda_scope_t scope = cuda_enter(side->device);
  const CUresult result = side->device->api->cuEventRecord(event, side->stream);
  cuda_leave(side->device, scope);
  return result;
}

static CUresult await(const side_t* side, CUevent event) {
  if (event == NULL)
    return CUDA_SUCCESS;
  const cuda_scope_t scope = cuda_enter(side->device);
  const CUresult result =
      side->device->api->cuStreamWaitEvent(side->stream, event, CU_EVENT_WAIT_DEFAULT);
  cuda_leave(side->device, scope);
  return result;
}

static CUresult move_piece(cuda_device_t* device, const side_t* source, const side_t* target,
                           const piece_t* piece) {
  cuda_detour_t* detour = &device->detour;
  const uint32_t index = detour->next++ % CHUNKS;
  const uint64_t chunk = (uint64_t)(uintptr_t)detour->chunks[index];
  const CUevent emptied = target->device->detour.emptied[target->device != device][index];
  CUresult result = await(source, detour->last_emptied[index]);
  if (result == CUDA_SUCCESS)
    result = move(source, piece->from, piece->from_stride, chunk, piece->width, piece);
  if (result == CUDA_SUCCESS)
    result = record(source, source->device->detour.filled[index]);
  if (result == CUDA_SUCCESS)
    result = await(target, source->device->detour.filled[index]);
  if (result == CUDA_SUCCESS)
    result = move(target, chunk, piece->width, piece->to, piece->to_stride, piece);
  if (result == CUDA_SUCCESS)
    result = record(target, emptied);
  detour->last_emptied[index] = emptied;
  return result;
}

/* ---- The whole copy ---- */

/* Copies several rows at a time if CUDA accepts their pitches. A row that is longer than a chunk is
 * copied in parts. */
static CUresult move_plane(cuda_device_t* device, const side_t* source, const side_t* target,
                           const cuda_copy_t* copy, uint64_t from, uint64_t to) {
  const uint64_t limit = (uint64_t)device->max_pitch_bytes;
  const uint64_t width = copy->extent[0], rows = copy->extent[1];
  const bool pitched = copy->source_stride[0] >= width && copy->source_stride[0] <= limit &&
                       copy->target_stride[0] >= width && copy->target_stride[0] <= limit;
  const uint64_t most = pitched && width < CHUNK_BYTES ? CHUNK_BYTES / width : 1;
  CUresult result = CUDA_SUCCESS;
  for (uint64_t row = 0; row < rows && result == CUDA_SUCCESS;) {
    piece_t piece = {.from_stride = copy->source_stride[0],
                     .to_stride = copy->target_stride[0],
                     .rows = rows - row < most ? rows - row : most};
    for (uint64_t at = 0; at < width && result == CUDA_SUCCESS; at += CHUNK_BYTES) {
      piece.width = width - at < CHUNK_BYTES ? width - at : CHUNK_BYTES;
      piece.from = from + row * copy->source_stride[0] + at;
      piece.to = to + row * copy->target_stride[0] + at;
      result = move_piece(device, source, target, &piece);
    }
    row += piece.rows;
  }
  return result;
}

static CUresult move_all(cuda_device_t* device, const side_t* own, const side_t* source,
                         const side_t* target, const cuda_copy_t* copy) {
  CUresult result = record(own, device->detour.begin);
  if (result == CUDA_SUCCESS && source->stream != own->stream)
    result = await(source, device->detour.begin);
  for (uint64_t plane = 0; plane < copy->extent[2] && result == CUDA_SUCCESS; ++plane) {
    result = move_plane(device, source, target, copy, copy->source + plane * copy->source_stride[1],
                        copy->target + plane * copy->target_stride[1]);
  }
  /* Later work on the queue must follow the last piece. After a failure too, because some pieces
   * were submitted. */
  for (int i = 0; i < CHUNKS && target->stream != own->stream; ++i) {
    const CUresult joined = await(own, device->detour.last_emptied[i]);
    result = result == CUDA_SUCCESS ? joined : result;
  }
  return result;
}

CUresult accrt_cuda_detour_copy(cuda_device_t* device, CUstream stream, const cuda_copy_t* copy,
                                cuda_device_t* const far[2]) {
  const side_t own = {device, stream};
  side_t sides[2];
  accrt_mutex_lock(&device->driver->detour_mutex);
  CUresult result = make_stream_and_events(device);
  if (result == CUDA_SUCCESS)
    result = make_chunks(device);
  for (int i = 0; i < 2 && result == CUDA_SUCCESS; ++i) {
    if (far[i] != NULL)
      result = make_stream_and_events(far[i]);
    sides[i] = far[i] != NULL ? (side_t){far[i], far[i]->detour.stream} : own;
  }
  if (result == CUDA_SUCCESS)
    result = move_all(device, &own, &sides[0], &sides[1], copy);
  accrt_mutex_unlock(&device->driver->detour_mutex);
  return result;
}
