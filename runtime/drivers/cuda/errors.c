/* runtime/drivers/cuda/errors.c - translates CUDA's results to statuses, and handles a device whose
 * context is broken. Of CUDA it calls only the functions that name errors.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/error.h"
#include "runtime/drivers/cuda/cuda.h"

bool accrt_cuda_is_fatal(CUresult result) {
  switch (result) {
  case CUDA_ERROR_ECC_UNCORRECTABLE:
  case CUDA_ERROR_HARDWARE_STACK_ERROR:
  case CUDA_ERROR_ILLEGAL_ADDRESS:
  case CUDA_ERROR_ILLEGAL_INSTRUCTION:
  case CUDA_ERROR_INVALID_ADDRESS_SPACE:
  case CUDA_ERROR_INVALID_PC:
  case CUDA_ERROR_LAUNCH_FAILED:
  case CUDA_ERROR_LAUNCH_TIMEOUT:
  case CUDA_ERROR_MISALIGNED_ADDRESS:
  case CUDA_ERROR_ASSERT:
  case CUDA_ERROR_NVLINK_UNCORRECTABLE:
  case CUDA_ERROR_CONTEXT_IS_DESTROYED:
  case CUDA_ERROR_MPS_CLIENT_TERMINATED:
  case CUDA_ERROR_UNKNOWN:
    return true;
  default:
    return false;
  }
}

accrt_status_t accrt_cuda_status(CUresult result) {
  if (accrt_cuda_is_fatal(result))
    return ACCRT_ERROR_DEVICE_LOST;
  switch (result) {
  case CUDA_SUCCESS:
    return ACCRT_OK;
  case CUDA_ERROR_NOT_READY:
    return ACCRT_ERROR_NOT_READY;
  case CUDA_ERROR_OUT_OF_MEMORY:
    return ACCRT_ERROR_OUT_OF_DEVICE_MEMORY;
  case CUDA_ERROR_NO_DEVICE:
  case CUDA_ERROR_NOT_FOUND:
  case CUDA_ERROR_STUB_LIBRARY:
    return ACCRT_ERROR_NOT_FOUND;
  case CUDA_ERROR_INVALID_VALUE:
  case CUDA_ERROR_INVALID_DEVICE:
  case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
  case CUDA_ERROR_INVALID_CLUSTER_SIZE:
    return ACCRT_ERROR_INVALID_ARGUMENT;
  case CUDA_ERROR_INVALID_IMAGE:
  case CUDA_ERROR_INVALID_PTX:
  case CUDA_ERROR_INVALID_SOURCE:
    return ACCRT_ERROR_INVALID_FORMAT;
  case CUDA_ERROR_NO_BINARY_FOR_GPU:
  case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    return ACCRT_ERROR_NO_VARIANT;
  case CUDA_ERROR_NOT_SUPPORTED:
  case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
  case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
  case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: /* other code has registered a part of it */
  case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    return ACCRT_ERROR_UNSUPPORTED;
  case CUDA_ERROR_NOT_PERMITTED:
  case CUDA_ERROR_DEVICE_UNAVAILABLE:
  case CUDA_ERROR_DEVICE_NOT_LICENSED:
  case CUDA_ERROR_OPERATING_SYSTEM:
    return ACCRT_ERROR_PERMISSION_DENIED;
  case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
  case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
    return ACCRT_ERROR_VERSION_MISMATCH;
  case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
  case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
  case CUDA_ERROR_STREAM_CAPTURE_MERGE:
  case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
  case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
  case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
  case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
  case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
  case CUDA_ERROR_CAPTURED_EVENT:
  case CUDA_ERROR_NOT_INITIALIZED:
  case CUDA_ERROR_SYSTEM_NOT_READY:
  case CUDA_ERROR_INVALID_CONTEXT: /* also an IPC handle in the process that made it */
    return ACCRT_ERROR_INVALID_STATE;
  default:
    return ACCRT_ERROR_DRIVER;
  }
}

const char* accrt_cuda_result_name(const cuda_api_t* api, CUresult result) {
  const char* name = NULL;
  if (api->cuGetErrorName == NULL || api->cuGetErrorName(result, &name) != CUDA_SUCCESS ||
      name == NULL) {
    return "CUDA_ERROR";
  }
  return name;
}

static const char* result_text(const cuda_api_t* api, CUresult result) {
  const char* text = NULL;
  if (api->cuGetErrorString == NULL || api->cuGetErrorString(result, &text) != CUDA_SUCCESS ||
      text == NULL) {
    return "an error that this driver does not name";
  }
  return text;
}

accrt_status_t accrt_cuda_refuse(const accrt_driver_environment_t* environment,
                                 accrt_status_t status, const char* operation, const char* format,
                                 ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return environment->fail(environment, status, 0, NULL, operation, message);
}

static accrt_status_t record(const accrt_driver_environment_t* environment, const cuda_api_t* api,
                             CUresult result, accrt_status_t status, const char* call,
                             const char* what) {
  char message[512];
  snprintf(message, sizeof message, "%s: %s (%d), %s", what, accrt_cuda_result_name(api, result),
           (int)result, result_text(api, result));
  return environment->fail(environment, status, (int32_t)result,
                           accrt_cuda_result_name(api, result), call, message);
}

/* For failures before a device exists. There is no device to lose. */
accrt_status_t accrt_cuda_fail_at(const accrt_driver_environment_t* environment,
                                  const cuda_api_t* api, CUresult result, const char* call,
                                  const char* format, ...) {
  char what[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  const accrt_status_t status =
      accrt_cuda_is_fatal(result) ? ACCRT_ERROR_DRIVER : accrt_cuda_status(result);
  return record(environment, api, result, status, call, what);
}

accrt_status_t accrt_cuda_fail(cuda_device_t* device, CUresult result, const char* call,
                               const char* format, ...) {
  char what[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  if (accrt_cuda_is_fatal(result))
    accrt_cuda_device_lose(device, result, call, what);
  return record(device->environment, device->api, result, accrt_cuda_status(result), call, what);
}

void accrt_cuda_device_lose(cuda_device_t* device, CUresult result, const char* operation,
                            const char* what) {
  accrt_error_t failure;
  memset(&failure, 0, sizeof failure);
  failure.struct_size = (uint32_t)sizeof failure;
  failure.status = ACCRT_ERROR_DEVICE_LOST;
  failure.driver_code = (int32_t)result;
  snprintf(failure.driver_name, sizeof failure.driver_name, "%s",
           accrt_cuda_result_name(device->api, result));
  snprintf(failure.operation, sizeof failure.operation, "%s", operation);
  snprintf(failure.message, sizeof failure.message, "cuda:%u is lost: %s (%d), %s; seen by %s: %s",
           device->ordinal, failure.driver_name, (int)result, result_text(device->api, result),
           operation, what);
  bool first = false;
  accrt_mutex_lock(&device->mutex);
  if (atomic_load_explicit(&device->lost, memory_order_relaxed) == 0) {
    device->failure = failure;
    /* Release pairs with the acquire in cuda_device_is_lost. */
    atomic_store_explicit(&device->lost, 1, memory_order_release);
    first = true;
  }
  accrt_mutex_unlock(&device->mutex);
  if (first)
    device->environment->log(device->environment, ACCRT_LOG_ERROR, failure.message);
}

/* The record is complete before `lost` is visible, and never changes afterwards. */
accrt_status_t accrt_cuda_device_lost(cuda_device_t* device, const char* operation) {
  const accrt_error_t* failure = &device->failure;
  return device->environment->fail(device->environment, ACCRT_ERROR_DEVICE_LOST,
                                   failure->driver_code, failure->driver_name, operation,
                                   failure->message);
}
