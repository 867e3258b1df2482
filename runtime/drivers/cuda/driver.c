/* runtime/drivers/cuda/driver.c - the CUDA driver's function table, and the start of CUDA.
 *
 * open only reads options. CUDA starts at the first query for devices (device_count), because the
 * start takes a quarter of a second and creates threads. docs/decisions/cuda-lazy-start.md says
 * more.
 */
#include <stdlib.h>

#include "runtime/drivers/cuda/cuda.h"

static accrt_status_t open_driver(const accrt_driver_environment_t* environment,
                                  accrt_driver_t** out_driver) {
  *out_driver = NULL;
  cuda_driver_t* driver;
  ACCRT_TRY(ACCRT_NEW(environment->allocator, &driver));
  driver->environment = environment;
  driver->allocator = environment->allocator;
  accrt_mutex_init(&driver->mutex, ACCRT_LOCK_CUDA_DRIVER);
  accrt_mutex_init(&driver->detour_mutex, ACCRT_LOCK_CUDA_DETOUR);
  accrt_mutex_init(&driver->imports_mutex, ACCRT_LOCK_CUDA_IMPORTS);
  accrt_status_t status = accrt_cuda_options_read(environment, &driver->options);
  if (status != ACCRT_OK) {
    accrt_free(environment->allocator, driver, sizeof *driver);
    return status;
  }
  *out_driver = (accrt_driver_t*)driver;
  return ACCRT_OK;
}

static void close_driver(accrt_driver_t* opaque) {
  cuda_driver_t* driver = (cuda_driver_t*)opaque;
  accrt_free(driver->allocator, driver, sizeof *driver);
}

/* Explains why CUDA does not start where CUDA's own text is too short. */
static const char* start_hint(CUresult result) {
  switch (result) {
  case CUDA_ERROR_NO_DEVICE:
    return getenv("CUDA_VISIBLE_DEVICES") != NULL
               ? "no device is visible to this process; CUDA_VISIBLE_DEVICES is set"
               : "no device is visible to this process";
  case CUDA_ERROR_STUB_LIBRARY:
    return "the library that was found is the toolkit's stub, not a driver";
  case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    return "the user-mode driver does not fit the kernel module";
  case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
    return "forward compatibility is not offered on this device";
  case CUDA_ERROR_SYSTEM_NOT_READY:
    return "the system is not ready; on machines with NVSwitch the fabric manager must run";
  case CUDA_ERROR_UNKNOWN:
    return "CUDA does not start; the kernel module may be missing, or of another version";
  default:
    return "CUDA does not start";
  }
}

static accrt_status_t start(cuda_driver_t* driver) {
  const accrt_driver_environment_t* environment = driver->environment;
  ACCRT_TRY(accrt_cuda_symbols_load(environment, driver->options.library_path, &driver->api,
                                    &driver->version));
  CUresult result = driver->api.cuInit(0);
  if (result != CUDA_SUCCESS) {
    return accrt_cuda_fail_at(environment, &driver->api, result, "cuInit", "%s",
                              start_hint(result));
  }
  int count = 0;
  result = driver->api.cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS)
    return accrt_cuda_fail_at(environment, &driver->api, result, "cuDeviceGetCount",
                              "devices could not be counted");
  if (count <= 0) {
    return accrt_cuda_refuse(environment, ACCRT_ERROR_NOT_FOUND, "cuda.open", "%s",
                             start_hint(CUDA_ERROR_NO_DEVICE));
  }
  driver->device_count = count > (int)CUDA_MAX_DEVICES ? CUDA_MAX_DEVICES : (uint32_t)count;
  driver->started = true;
  return ACCRT_OK;
}

/* The common code calls this once. Returns 0, with the reason in the error record, when CUDA does
 * not start. */
static uint32_t device_count(accrt_driver_t* opaque) {
  cuda_driver_t* driver = (cuda_driver_t*)opaque;
  if (!driver->started && start(driver) != ACCRT_OK)
    return 0;
  return driver->device_count;
}

const accrt_driver_table_t* accrt_driver_cuda_query(uint32_t max_abi) {
  static const accrt_driver_table_t table = {
      .struct_size = (uint32_t)sizeof table,
      .abi_version = ACCRT_DRIVER_ABI_VERSION,
      .name = "cuda",
      .option_keys = accrt_cuda_option_keys,
      .open = open_driver,
      .close = close_driver,
      .device_count = device_count,
      .device_open = accrt_cuda_device_open,
      .device_close = accrt_cuda_device_close,
      .device_info = accrt_cuda_device_info,
      .device_status = accrt_cuda_device_status,
      .memory_info = accrt_cuda_memory_info,
      .memory_allocate = accrt_cuda_memory_allocate,
      .memory_free = accrt_cuda_memory_free,
      .memory_import = accrt_cuda_memory_import,
      .memory_unimport = accrt_cuda_memory_unimport,
      .module_load = accrt_cuda_module_load,
      .module_unload = accrt_cuda_module_unload,
      .module_find = accrt_cuda_module_find,
      .queue_create = accrt_cuda_queue_create,
      .queue_destroy = accrt_cuda_queue_destroy,
      .queue_enqueue = accrt_cuda_queue_enqueue,
      .queue_execute = accrt_cuda_queue_execute,
      .queue_notify = accrt_cuda_queue_notify,
      .queue_reset = accrt_cuda_queue_reset,
      .list_create = accrt_cuda_list_create,
      .list_destroy = accrt_cuda_list_destroy,
      .queue_progress = accrt_cuda_queue_progress,
      .queue_wait = accrt_cuda_queue_wait,
      .event_create = accrt_cuda_event_create,
      .event_destroy = accrt_cuda_event_destroy,
      .event_record = accrt_cuda_event_record,
      .event_wait = accrt_cuda_event_wait,
      .event_query = accrt_cuda_event_query,
      .event_synchronize = accrt_cuda_event_synchronize,
      .event_elapsed = accrt_cuda_event_elapsed,
      .launch_create = accrt_cuda_launch_create,
      .launch_destroy = accrt_cuda_launch_destroy,
      .queue_launch = accrt_cuda_queue_launch,
      .queue_wrap = accrt_cuda_queue_wrap,
      .queue_native = accrt_cuda_queue_native,
      .memory_allocate_exportable = accrt_cuda_memory_allocate_exportable,
      .memory_export = accrt_cuda_memory_export,
      .memory_import_handle = accrt_cuda_memory_import_handle,
      .device_enable_peer = accrt_cuda_device_enable_peer,
      .operator_workspace = accrt_cuda_operator_workspace,
  };
  return max_abi >> 16 == ACCRT_DRIVER_ABI_MAJOR ? &table : NULL;
}
