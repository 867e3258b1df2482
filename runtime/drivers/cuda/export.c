/* runtime/drivers/cuda/export.c - memory shared with other processes: by file descriptor (virtual
 * memory) and by CUDA IPC (cuMemAlloc). An exported buffer has an allocation of its own, in whole
 * granules, because a handle shares the whole allocation.
 */
#include <string.h>

#include "runtime/drivers/cuda/memory.h"

_Static_assert(sizeof(CUipcMemHandle) == sizeof(((accrt_driver_handle_t*)0)->bytes),
               "an IPC handle is what the interface has room for");

static accrt_status_t refuse_kind(const cuda_device_t* device, uint32_t handle_kind,
                                  const char* operation) {
  return accrt_cuda_refuse(device->environment, ACCRT_ERROR_UNSUPPORTED, operation,
                           "cuda:%u has no handles of kind %u for memory%s", device->ordinal,
                           handle_kind,
                           handle_kind == ACCRT_DRIVER_HANDLE_FD && !device->has_virtual_memory
                               ? ": it has no virtual memory management, or it is switched off"
                               : "");
}

accrt_status_t accrt_cuda_memory_allocate_exportable(accrt_driver_device_t* opaque,
                                                     uint64_t size_bytes, uint32_t handle_kind,
                                                     accrt_driver_memory_t* out_memory) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  memset(out_memory, 0, sizeof *out_memory);
  const bool by_descriptor = handle_kind == ACCRT_DRIVER_HANDLE_FD && device->has_virtual_memory;
  if (!by_descriptor && handle_kind != ACCRT_DRIVER_HANDLE_IPC)
    return refuse_kind(device, handle_kind, "memory_allocate_exportable");
  const uint64_t piece_bytes = device->granularity_bytes > CUDA_PLAIN_GRANULARITY_BYTES
                                   ? device->granularity_bytes
                                   : CUDA_PLAIN_GRANULARITY_BYTES;
  uint64_t whole_bytes;
  if (!accrt_align_u64(size_bytes, piece_bytes, &whole_bytes)) {
    return accrt_cuda_refuse(
        device->environment, ACCRT_ERROR_OVERFLOW, "memory_allocate_exportable",
        "%llu bytes do not fit 64 bits rounded up", (unsigned long long)size_bytes);
  }
  return accrt_cuda_memory_create(device, by_descriptor ? CUDA_MEMORY_VIRTUAL : CUDA_MEMORY_PLAIN,
                                  true, whole_bytes, out_memory);
}

accrt_status_t accrt_cuda_memory_export(accrt_driver_device_t* opaque,
                                        const accrt_driver_memory_t* described,
                                        uint32_t handle_kind, accrt_driver_handle_t* out_handle) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  const cuda_memory_t* memory = described->handle;
  memset(out_handle, 0, sizeof *out_handle);
  out_handle->fd = -1;
  const uint32_t wanted =
      handle_kind == ACCRT_DRIVER_HANDLE_FD ? CUDA_MEMORY_VIRTUAL : CUDA_MEMORY_PLAIN;
  if ((handle_kind != ACCRT_DRIVER_HANDLE_FD && handle_kind != ACCRT_DRIVER_HANDLE_IPC) ||
      !memory->exportable || memory->kind != wanted) {
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_UNSUPPORTED, "memory_export",
                             "this memory was not allocated for export by a handle of kind %u",
                             handle_kind);
  }
  CUresult result;
  const char* call;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  if (handle_kind == ACCRT_DRIVER_HANDLE_FD) {
    int fd = -1;
    call = "cuMemExportToShareableHandle";
    result = device->api->cuMemExportToShareableHandle(&fd, memory->allocation,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS)
      out_handle->fd = fd;
  } else {
    call = "cuIpcGetMemHandle";
    CUipcMemHandle ipc;
    result = device->api->cuIpcGetMemHandle(&ipc, memory->address);
    if (result == CUDA_SUCCESS)
      memcpy(out_handle->bytes, &ipc, sizeof out_handle->bytes);
  }
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (result != CUDA_SUCCESS)
    return accrt_cuda_fail(device, result, call, "%llu bytes of cuda:%u for another process",
                           (unsigned long long)memory->size_bytes, device->ordinal);
  out_handle->kind = handle_kind;
  out_handle->size_bytes = memory->size_bytes;
  return ACCRT_OK;
}

static const char* open_descriptor(cuda_device_t* device, int fd, cuda_memory_t* memory,
                                   CUresult* out_result) {
  *out_result = device->api->cuMemImportFromShareableHandle(
      &memory->allocation, (void*)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (*out_result != CUDA_SUCCESS)
    return "cuMemImportFromShareableHandle";
  const char* failed = accrt_cuda_memory_map(device, memory, out_result);
  if (failed != NULL)
    (void)device->api->cuMemRelease(memory->allocation);
  return failed;
}

static const char* open_ipc(cuda_device_t* device, const unsigned char* bytes,
                            cuda_memory_t* memory, CUresult* out_result) {
  CUipcMemHandle ipc;
  memcpy(&ipc, bytes, sizeof ipc);
  *out_result =
      device->api->cuIpcOpenMemHandle(&memory->address, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  return *out_result == CUDA_SUCCESS ? NULL : "cuIpcOpenMemHandle";
}

void accrt_cuda_memory_close(cuda_device_t* device, cuda_memory_t* memory) {
  accrt_cuda_device_drain(device);
  if (memory->kind == CUDA_MEMORY_VIRTUAL) {
    accrt_cuda_memory_unmap(device, memory);
  } else {
    (void)device->api->cuIpcCloseMemHandle(memory->address);
  }
}

accrt_status_t accrt_cuda_memory_import_handle(accrt_driver_device_t* opaque,
                                               const accrt_driver_handle_t* handle,
                                               accrt_driver_memory_t* out_memory) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  memset(out_memory, 0, sizeof *out_memory);
  const bool by_descriptor = handle->kind == ACCRT_DRIVER_HANDLE_FD;
  if ((by_descriptor && !device->has_virtual_memory) ||
      (!by_descriptor && handle->kind != ACCRT_DRIVER_HANDLE_IPC)) {
    return refuse_kind(device, handle->kind, "memory_import_handle");
  }
  cuda_memory_t* memory;
  ACCRT_TRY(accrt_cuda_memory_make(device, by_descriptor ? CUDA_MEMORY_VIRTUAL : CUDA_MEMORY_IPC,
                                   handle->size_bytes, &memory));
  CUresult result;
  const cuda_scope_t scope = cuda_enter(device);
  const CUstreamCaptureMode mode = cuda_relax(device);
  const char* failed = by_descriptor ? open_descriptor(device, handle->fd, memory, &result)
                                     : open_ipc(device, handle->bytes, memory, &result);
  cuda_unrelax(device, mode);
  cuda_leave(device, scope);
  if (failed != NULL) {
    accrt_free(device->allocator, memory, sizeof *memory);
    return accrt_cuda_fail(device, result, failed,
                           "%llu bytes that another process exported, on cuda:%u%s",
                           (unsigned long long)handle->size_bytes, device->ordinal,
                           result == CUDA_ERROR_INVALID_CONTEXT
                               ? " (the process that exported an IPC handle cannot open it)"
                               : "");
  }
  accrt_cuda_memory_describe(memory, NULL, out_memory);
  return ACCRT_OK;
}
