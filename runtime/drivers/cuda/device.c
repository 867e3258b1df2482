/* runtime/drivers/cuda/device.c - devices: primary contexts, properties, peers. It may not start
 * CUDA. */
#include <stdio.h>
#include <string.h>

#include "runtime/drivers/cuda/cuda.h"

#define MIN_ALIGNMENT_BYTES 256u
#define MAX_PUSHED 64

static int attribute(const cuda_device_t* device, CUdevice_attribute which) {
  int value = 0;
  return device->api->cuDeviceGetAttribute(&value, which, device->device) == CUDA_SUCCESS ? value
                                                                                          : 0;
}

/* Explains a refused context: the compute mode may allow one process only, or none. */
static const char* mode_text(const cuda_device_t* device) {
  switch (attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)) {
  case CU_COMPUTEMODE_PROHIBITED:
    return "its compute mode is 'prohibited'";
  case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
    return "its compute mode is 'exclusive process', and another process has it";
  default:
    return "its context could not be made";
  }
}

/* Reads the device's attributes. A missing value of an attribute that the driver depends on is an
 * error. An unknown optional feature counts as absent. */
static accrt_status_t read_facts(cuda_device_t* device) {
  static const CUdevice_attribute needed[] = {
      CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
      CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
      CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_PITCH};
  int facts[5];
  for (size_t i = 0; i < 5; ++i) {
    const CUresult result = device->api->cuDeviceGetAttribute(&facts[i], needed[i], device->device);
    if (result != CUDA_SUCCESS) {
      return accrt_cuda_fail_at(device->environment, device->api, result, "cuDeviceGetAttribute",
                                "cuda:%u does not report attribute %d", device->ordinal,
                                (int)needed[i]);
    }
  }
  device->compute_major = facts[0];
  device->compute_minor = facts[1];
  device->multiprocessor_count = facts[2];
  device->max_shared_bytes = facts[3];
  device->max_pitch_bytes = facts[4];
  device->has_clusters = attribute(device, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0;
  device->has_cooperative = attribute(device, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) != 0;
  device->has_virtual_memory =
      device->driver->options.virtual_memory &&
      attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
  snprintf(device->arch, sizeof device->arch, "sm_%d%d", device->compute_major % 100,
           device->compute_minor % 10);
  if (device->api->cuDeviceGetName(device->name, (int)sizeof device->name, device->device) !=
      CUDA_SUCCESS) {
    snprintf(device->name, sizeof device->name, "CUDA device");
  }
  return ACCRT_OK;
}

static void read_granularity(cuda_device_t* device) {
  const CUmemAllocationProp properties = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->device}};
  size_t granularity = 0;
  if (device->has_virtual_memory &&
      device->api->cuMemGetAllocationGranularity(
          &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS &&
      accrt_is_power_of_two(granularity)) {
    device->granularity_bytes = granularity;
    return;
  }
  device->has_virtual_memory = false;
  device->granularity_bytes = CUDA_PLAIN_GRANULARITY_BYTES;
}

void accrt_cuda_drop_contexts(const cuda_device_t* device) {
  CUcontext current = NULL;
  for (int i = 0; i < MAX_PUSHED; ++i) {
    (void)device->api->cuCtxSetCurrent(NULL);
    if (device->api->cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == NULL)
      return;
  }
}

/* Requires the current context. CUDA's priorities count downwards: -5 is more urgent than 0. */
static void read_priorities(cuda_device_t* device) {
  int least = 0;
  int greatest = 0;
  if (device->api->cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS)
    return;
  device->priority_least = -least;
  device->priority_greatest = -greatest;
}

static accrt_status_t retain_context(cuda_device_t* device) {
  const cuda_driver_t* driver = device->driver;
  CUresult result = driver->api.cuDeviceGet(&device->device, (int)device->ordinal);
  if (result != CUDA_SUCCESS) {
    return accrt_cuda_fail_at(driver->environment, &driver->api, result, "cuDeviceGet",
                              "the device is not there");
  }
  /* The context keeps its flags, or gets the defaults. All users of the process share them. */
  result = driver->api.cuDevicePrimaryCtxRetain(&device->context, device->device);
  if (result == CUDA_SUCCESS)
    return ACCRT_OK;
  device->context = NULL;
  return accrt_cuda_fail_at(driver->environment, &driver->api, result, "cuDevicePrimaryCtxRetain",
                            "the device cannot be used: %s", mode_text(device));
}

static void set_open(cuda_device_t* device, cuda_device_t* value) {
  accrt_mutex_lock(&device->driver->mutex);
  device->driver->devices[device->ordinal] = value;
  accrt_mutex_unlock(&device->driver->mutex);
}

void accrt_cuda_device_close(accrt_driver_device_t* opaque) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  accrt_cuda_poller_stop(device);
  accrt_cuda_graphs_close(device);
  accrt_cuda_detour_close(device);
  set_open(device, NULL);
  if (device->context != NULL)
    (void)device->api->cuDevicePrimaryCtxRelease(device->device);
  accrt_free_aligned(device->allocator, device, sizeof *device, _Alignof(cuda_device_t));
}

accrt_status_t accrt_cuda_device_open(accrt_driver_t* opaque, uint32_t index,
                                      accrt_driver_device_t** out_device) {
  cuda_driver_t* driver = (cuda_driver_t*)opaque;
  *out_device = NULL;
  void* memory;
  ACCRT_TRY(accrt_alloc_aligned(driver->allocator, sizeof(cuda_device_t), _Alignof(cuda_device_t),
                                &memory));
  cuda_device_t* device = memory;
  device->driver = driver;
  device->api = &driver->api;
  device->environment = driver->environment;
  device->allocator = driver->allocator;
  device->ordinal = index;
  device->tracing = driver->environment->tracing;
  accrt_mutex_init(&device->mutex, ACCRT_LOCK_CUDA_DEVICE);
  accrt_mutex_init(&device->queues_mutex, ACCRT_LOCK_CUDA_QUEUES);
  accrt_mutex_init(&device->graphs.mutex, ACCRT_LOCK_CUDA_GRAPHS);
  accrt_status_t status = retain_context(device);
  if (status == ACCRT_OK)
    status = read_facts(device);
  if (status == ACCRT_OK) {
    read_granularity(device);
    const cuda_scope_t scope = cuda_enter(device);
    read_priorities(device);
    cuda_leave(device, scope);
    status = accrt_cuda_poller_start(device);
  }
  if (status != ACCRT_OK) {
    accrt_cuda_device_close((accrt_driver_device_t*)device);
    return status;
  }
  set_open(device, device);
  *out_device = (accrt_driver_device_t*)device;
  return ACCRT_OK;
}

void accrt_cuda_device_info(accrt_driver_device_t* opaque, accrt_device_info_t* out_info) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  out_info->flags = ACCRT_DEVICE_FLAG_TIMESTAMPS;
  snprintf(out_info->description, sizeof out_info->description, "%s (CUDA %d.%d)", device->name,
           device->driver->version / 1000, device->driver->version % 1000 / 10);
  snprintf(out_info->arch, sizeof out_info->arch, "%s", device->arch);
  size_t total_bytes = 0;
  (void)device->api->cuDeviceTotalMem(&total_bytes, device->device);
  out_info->cpu_features = 0;
  out_info->memory_total_bytes = total_bytes;
  out_info->concurrency =
      device->multiprocessor_count > 0 ? (uint32_t)device->multiprocessor_count : 1;
  out_info->min_alignment_bytes = MIN_ALIGNMENT_BYTES;
  out_info->queue_count = 0;
  out_info->dlpack_device_type = 2; /* kDLCUDA */
  out_info->dlpack_device_id = (int32_t)device->ordinal;
  out_info->priority_least = device->priority_least;
  out_info->priority_greatest = device->priority_greatest;
  CUuuid uuid;
  memset(out_info->uuid, 0, sizeof out_info->uuid);
  if (device->api->cuDeviceGetUuid(&uuid, device->device) == CUDA_SUCCESS)
    memcpy(out_info->uuid, uuid.bytes, sizeof out_info->uuid);
}

accrt_status_t accrt_cuda_device_status(accrt_driver_device_t* opaque) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  return cuda_device_is_lost(device) ? accrt_cuda_device_lost(device, "device_status") : ACCRT_OK;
}

/* ---- Peers ---- */

/* Enables peer access between contexts, for memory of cuMemAlloc. */
static accrt_status_t enable_contexts(cuda_device_t* device, cuda_device_t* peer) {
  const cuda_scope_t scope = cuda_enter(device);
  const CUresult result = device->api->cuCtxEnablePeerAccess(peer->context, 0);
  cuda_leave(device, scope);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    return ACCRT_OK;
  return accrt_cuda_fail(device, result, "cuCtxEnablePeerAccess", "access was refused");
}

accrt_status_t accrt_cuda_device_enable_peer(accrt_driver_device_t* opaque,
                                             accrt_driver_device_t* opaque_peer) {
  cuda_device_t* device = (cuda_device_t*)opaque;
  cuda_device_t* peer = (cuda_device_t*)opaque_peer;
  if (device == peer || device->device == peer->device)
    return ACCRT_OK;
  int reachable = 0;
  const CUresult result =
      device->api->cuDeviceCanAccessPeer(&reachable, device->device, peer->device);
  if (result != CUDA_SUCCESS)
    return accrt_cuda_fail(device, result, "cuDeviceCanAccessPeer",
                           "the path could not be asked for");
  if (reachable == 0) {
    return accrt_cuda_refuse(device->environment, ACCRT_ERROR_UNSUPPORTED, "device_enable_peer",
                             "there is no path from this %s to the memory of that %s", device->name,
                             peer->name);
  }
  accrt_status_t status = enable_contexts(device, peer);
  return status == ACCRT_OK ? accrt_cuda_memory_open_to(peer, device) : status;
}
