/* runtime/drivers/host/driver.c - the host driver's table: opening, devices and their facts, and
 * the way from the table's opaque types to this driver's own. host.h tells how work runs.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/core/cpu.h"
#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"

#define MIN_ALIGNMENT_BYTES 256u
#define DLPACK_CPU 1u

static accrt_status_t open_driver(const accrt_driver_environment_t* environment,
                                  accrt_driver_t** out_driver) {
  *out_driver = NULL;
  host_driver_t* driver;
  ACCRT_TRY(accrt_alloc(environment->allocator, sizeof *driver, (void**)&driver));
  driver->environment = environment;
  accrt_status_t status = accrt_host_options_read(environment, &driver->options);
  if (status != ACCRT_OK) {
    accrt_free(environment->allocator, driver, sizeof *driver);
    return status;
  }
  *out_driver = (accrt_driver_t*)driver;
  return ACCRT_OK;
}

static void close_driver(accrt_driver_t* opaque) {
  host_driver_t* driver = (host_driver_t*)opaque;
  accrt_free(driver->environment->allocator, driver, sizeof *driver);
}

static uint32_t device_count(accrt_driver_t* driver) {
  return ((host_driver_t*)driver)->options.device_count;
}

static void device_close(accrt_driver_device_t* opaque) {
  host_device_t* device = (host_device_t*)opaque;
  accrt_host_workers_stop(device);
  accrt_free_aligned(device->allocator, device, sizeof *device, HOST_CACHE_LINE);
}

static accrt_status_t device_open(accrt_driver_t* opaque, uint32_t index,
                                  accrt_driver_device_t** out_device) {
  host_driver_t* driver = (host_driver_t*)opaque;
  const accrt_allocator_t* allocator = driver->environment->allocator;
  *out_device = NULL;
  host_device_t* device;
  ACCRT_TRY(accrt_alloc_aligned(allocator, sizeof *device, HOST_CACHE_LINE, (void**)&device));
  device->driver = driver;
  device->environment = driver->environment;
  device->allocator = allocator;
  accrt_mutex_init(&device->mutex, ACCRT_LOCK_HOST_DEVICE);
  device->index = index;
  device->worker_count = driver->options.thread_count;
  device->concurrency = device->worker_count == 0 ? 1 : device->worker_count;
  device->spin_ns = (uint64_t)driver->options.spin_us * 1000;
  device->tracing = driver->environment->tracing;
  accrt_status_t status = accrt_host_workers_start(device);
  if (status != ACCRT_OK) {
    device_close((accrt_driver_device_t*)device);
    return status;
  }
  *out_device = (accrt_driver_device_t*)device;
  return ACCRT_OK;
}

static uint64_t physical_memory_bytes(void) {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  return pages < 0 || page_bytes < 0 ? 0 : (uint64_t)pages * (uint64_t)page_bytes;
}

static void device_info(accrt_driver_device_t* opaque, accrt_device_info_t* out_info) {
  const host_device_t* device = (const host_device_t*)opaque;
  out_info->flags =
      ACCRT_DEVICE_FLAG_HOST_MEMORY | ACCRT_DEVICE_FLAG_TIMESTAMPS | ACCRT_DEVICE_FLAG_HOST_KERNELS;
  if (device->worker_count == 0)
    out_info->flags |= ACCRT_DEVICE_FLAG_CALLER_RUNS;
  if (device->environment->executor != NULL) /* it may refuse a task */
    out_info->flags |= ACCRT_DEVICE_FLAG_ENQUEUE_RUNS;
  accrt_cpu_name(out_info->description, sizeof out_info->description);
  (void)snprintf(out_info->arch, sizeof out_info->arch, "%s", accrt_cpu_arch());
  out_info->cpu_features = accrt_cpu_features();
  out_info->memory_total_bytes = physical_memory_bytes();
  out_info->concurrency = device->concurrency;
  out_info->min_alignment_bytes = MIN_ALIGNMENT_BYTES;
  out_info->queue_count = 0;
  out_info->dlpack_device_type = DLPACK_CPU;
  out_info->dlpack_device_id = 0;
  out_info->priority_least = 0;
  out_info->priority_greatest = 0;
  memset(out_info->uuid, 0, sizeof out_info->uuid);
}

static uint32_t device_progress(accrt_driver_device_t* opaque) {
  host_device_t* device = (host_device_t*)opaque;
  if (device->worker_count != 0)
    return 0;
  host_queue_t* queue = accrt_host_queue_take(device);
  if (queue == NULL)
    return 0;
  accrt_host_queue_work(queue, 0, 1, 1);
  return 1;
}

/* ---- From the table's types to this driver's ---- */

static accrt_status_t queue_create(accrt_driver_device_t* device, int32_t priority,
                                   accrt_driver_queue_t** out_queue) {
  host_queue_t* queue;
  const accrt_status_t status = accrt_host_queue_create((host_device_t*)device, priority, &queue);
  *out_queue = (accrt_driver_queue_t*)queue;
  return status;
}
static void queue_destroy(accrt_driver_queue_t* queue) {
  accrt_host_queue_destroy((host_queue_t*)queue);
}
/* A command that is not known would run as a marker: its work would be skipped without a word. */
static accrt_status_t refuse_kind(const host_device_t* device, const char* operation,
                                  uint32_t opcode) {
  return accrt_host_fail(device->environment, ACCRT_ERROR_UNSUPPORTED, 0, NULL, operation,
                         "the host driver has no commands of kind %u here", (unsigned)opcode);
}

static accrt_status_t queue_enqueue(accrt_driver_queue_t* queue,
                                    const accrt_driver_command_t* command,
                                    const accrt_driver_submission_t* submission) {
  if (command->opcode == ACCRT_DRIVER_COMMAND_OPERATOR || !host_is_known(command->opcode))
    return refuse_kind(((host_queue_t*)queue)->device, "queue_enqueue", command->opcode);
  return accrt_host_queue_enqueue((host_queue_t*)queue, command, submission);
}
static accrt_status_t queue_execute(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                    const accrt_driver_submission_t* submission) {
  return accrt_host_queue_execute((host_queue_t*)queue, (host_list_t*)list, submission);
}
static accrt_status_t queue_run(accrt_driver_queue_t* queue, accrt_driver_list_t* list,
                                const accrt_driver_submission_t* submission) {
  return accrt_host_queue_run((host_queue_t*)queue, (host_list_t*)list, submission);
}
static accrt_status_t queue_notify(accrt_driver_queue_t* queue,
                                   accrt_driver_completion_t completion) {
  return accrt_host_queue_notify((host_queue_t*)queue, completion);
}
static accrt_status_t queue_reset(accrt_driver_queue_t* queue) {
  return accrt_host_queue_reset((host_queue_t*)queue);
}
static accrt_status_t queue_progress(accrt_driver_queue_t* queue, uint64_t* out_number) {
  return accrt_host_queue_progress((host_queue_t*)queue, out_number);
}
static accrt_status_t queue_wait(accrt_driver_queue_t* queue, uint64_t number, uint64_t timeout_ns,
                                 uint32_t policy) {
  return accrt_host_queue_wait((host_queue_t*)queue, number, timeout_ns, policy);
}
static void queue_cancel(accrt_driver_queue_t* queue) {
  accrt_host_queue_cancel((host_queue_t*)queue);
}
static accrt_status_t list_create(accrt_driver_device_t* device,
                                  const accrt_driver_list_info_t* info,
                                  accrt_driver_list_t** out_list) {
  host_list_t* list;
  *out_list = NULL;
  for (uint32_t i = 0; i < info->command_count; ++i) {
    if (!host_is_known(info->commands[i].opcode))
      return refuse_kind((host_device_t*)device, "list_create", info->commands[i].opcode);
  }
  const accrt_status_t status =
      accrt_host_list_create((host_device_t*)device, info->commands, info->command_count,
                             info->binding_count, info->scalar_count, &list);
  *out_list = (accrt_driver_list_t*)list;
  return status;
}
static void list_destroy(accrt_driver_list_t* list) {
  accrt_host_list_destroy((host_list_t*)list);
}

const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi) {
  static const char* const keys[] = {"host.threads", "host.affinity", "host.devices",
                                     "host.spin_us", NULL};
  static const accrt_driver_table_t table = {
      .struct_size = (uint32_t)sizeof table,
      .abi_version = ACCRT_DRIVER_ABI_VERSION,
      .name = "host",
      .option_keys = keys,
      .open = open_driver,
      .close = close_driver,
      .device_count = device_count,
      .device_open = device_open,
      .device_close = device_close,
      .device_info = device_info,
      .device_progress = device_progress,
      .memory_info = accrt_host_memory_info,
      .memory_allocate = accrt_host_memory_allocate,
      .memory_free = accrt_host_memory_free,
      .memory_import = accrt_host_memory_import,
      .memory_unimport = accrt_host_memory_unimport,
      .queue_create = queue_create,
      .queue_destroy = queue_destroy,
      .queue_enqueue = queue_enqueue,
      .queue_execute = queue_execute,
      .queue_run = queue_run,
      .queue_notify = queue_notify,
      .queue_reset = queue_reset,
      .list_create = list_create,
      .list_destroy = list_destroy,
      .queue_progress = queue_progress,
      .queue_wait = queue_wait,
      .queue_cancel = queue_cancel,
  };
  return max_abi >> 16 == ACCRT_DRIVER_ABI_MAJOR ? &table : NULL;
}
