/* runtime/drivers/cuda/command.c - puts one command on a stream. Of queues it may know only how
 * they launch. Lists call it with streams alone. */
#include <string.h>

#include "runtime/drivers/cuda/cuda.h"

void accrt_cuda_block_patch(const accrt_driver_patch_t* patches, uint32_t patch_count,
                            const accrt_driver_submission_t* submission, void* block) {
  unsigned char* bytes = block;
  for (uint32_t i = 0; i < patch_count; ++i) {
    const accrt_driver_patch_t* patch = &patches[i];
    uint64_t bits;
    if (patch->kind == ACCRT_DRIVER_PATCH_VALUE) {
      bits = cuda_value(&patch->value, submission);
    } else if (patch->range.binding != ACCRT_DRIVER_NONE &&
               submission->bindings[patch->range.binding].address == 0) {
      bits = 0; /* an optional buffer is absent */
    } else {
      bits = cuda_address(&patch->range, submission);
    }
    memcpy(bytes + patch->offset_bytes, &bits, patch->size_bytes); /* little-endian hosts */
  }
}

void accrt_cuda_block_fill(const void* params, uint32_t size_bytes,
                           const accrt_driver_patch_t* patches, uint32_t patch_count,
                           const accrt_driver_submission_t* submission, void* block) {
  if (size_bytes != 0)
    memcpy(block, params, size_bytes);
  accrt_cuda_block_patch(patches, patch_count, submission, block);
}

CUresult accrt_cuda_kernel_launch(const cuda_kernel_t* kernel, CUstream stream,
                                  const uint32_t grid[3], const void* block) {
  const cuda_api_t* api = kernel->device->api;
  size_t size_bytes = kernel->params_size_bytes;
  /* CUDA only reads the block, but its parameter is not const. */
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void*)(uintptr_t)block,
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &size_bytes, CU_LAUNCH_PARAM_END};
  void** arguments = size_bytes != 0 ? extra : NULL;
  if (kernel->attribute_count == 0) {
    return api->cuLaunchKernel(kernel->function, grid[0], grid[1], grid[2], kernel->block[0],
                               kernel->block[1], kernel->block[2], kernel->shared_bytes, stream,
                               NULL, arguments);
  }
  const CUlaunchConfig configuration = {
      .gridDimX = grid[0],
      .gridDimY = grid[1],
      .gridDimZ = grid[2],
      .blockDimX = kernel->block[0],
      .blockDimY = kernel->block[1],
      .blockDimZ = kernel->block[2],
      .sharedMemBytes = kernel->shared_bytes,
      .hStream = stream,
      .attrs = (CUlaunchAttribute*)(uintptr_t)kernel->attributes,
      .numAttrs = kernel->attribute_count,
  };
  return api->cuLaunchKernelEx(&configuration, kernel->function, NULL, arguments);
}

/* Launches on a queue's stream, or on any stream when `queue` is NULL. */
static accrt_status_t dispatch(cuda_device_t* device, cuda_queue_t* queue, CUstream stream,
                               const accrt_driver_dispatch_t* command,
                               const accrt_driver_submission_t* submission) {
  _Alignas(16) unsigned char block[ACCRT_KERNEL_MAX_PARAMS_BYTES];
  const cuda_kernel_t* kernel = command->kernel->module_kernel;
  if (kernel == NULL) {
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_UNSUPPORTED, "dispatch",
                             "kernel '%s' is a host kernel, but cuda:%u runs only device code",
                             command->kernel->definition->name, device->ordinal);
  }
  uint32_t grid[3];
  for (int i = 0; i < 3; ++i) {
    grid[i] = (uint32_t)cuda_value(&command->grid[i], submission);
    if (grid[i] == 0)
      return ACCRT_OK;
  }
  const void* params = command->params;
  if (command->patch_count > 0) {
    accrt_cuda_block_fill(command->params, command->params_size_bytes, command->patches,
                          command->patch_count, submission, block);
    params = block;
  }
  const CUresult result = queue != NULL
                              ? accrt_cuda_queue_launch_kernel(queue, kernel, grid, params)
                              : accrt_cuda_kernel_launch(kernel, stream, grid, params);
  return result == CUDA_SUCCESS ? ACCRT_OK : accrt_cuda_kernel_fail(kernel, result, grid);
}

accrt_status_t accrt_cuda_kernel_fail(const cuda_kernel_t* kernel, CUresult result,
                                      const uint32_t grid[3]) {
  return accrt_cuda_fail(kernel->device, result, "cuLaunchKernel",
                         "kernel '%s' with a grid of %u x %u x %u workgroups%s of %u x %u x %u "
                         "threads and %u bytes of shared memory",
                         kernel->name, grid[0], grid[1], grid[2], cuda_grid_limit(grid),
                         kernel->block[0], kernel->block[1], kernel->block[2],
                         kernel->shared_bytes);
}

accrt_status_t accrt_cuda_dispatch_enqueue(cuda_queue_t* queue,
                                           const accrt_driver_dispatch_t* command,
                                           const accrt_driver_submission_t* submission) {
  return dispatch(queue->device, queue, queue->stream, command, submission);
}

accrt_status_t accrt_cuda_command_enqueue(cuda_device_t* device, CUstream stream,
                                          const accrt_driver_command_t* command,
                                          const accrt_driver_submission_t* submission) {
  cuda_copy_t copy;
  switch (command->opcode) {
  case ACCRT_DRIVER_COMMAND_DISPATCH:
    return dispatch(device, NULL, stream, &command->as.dispatch, submission);
  case ACCRT_DRIVER_COMMAND_COPY:
    accrt_cuda_copy_values(&command->as.copy, submission, &copy);
    return accrt_cuda_copy_enqueue(device, stream, &copy);
  case ACCRT_DRIVER_COMMAND_FILL:
    return accrt_cuda_fill_enqueue(device, stream,
                                   cuda_address(&command->as.fill.target, submission),
                                   cuda_value(&command->as.fill.target.size_bytes, submission),
                                   command->as.fill.pattern, command->as.fill.pattern_bytes);
  case ACCRT_DRIVER_COMMAND_BARRIER:
  case ACCRT_DRIVER_COMMAND_MARKER:
    return ACCRT_OK; /* a stream runs in order, so nothing is needed */
  default:
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_UNSUPPORTED, "queue_enqueue",
                             "cuda:%u has no commands of kind %u here", device->ordinal,
                             command->opcode);
  }
}
