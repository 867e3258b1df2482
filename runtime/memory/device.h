/* runtime/memory/device.h - the lower half of a device, and the table of what memory needs from
 * above.
 *
 * Memory may use nothing else of streams, devices and instances but this and
 * runtime/core/instance.h.
 */
#ifndef ACCRT_RUNTIME_MEMORY_DEVICE_H_
#define ACCRT_RUNTIME_MEMORY_DEVICE_H_

#include <stdbool.h>

#include "accrt/memory.h"
#include "accrt/stream.h"
#include "accrt/sys/driver.h"
#include "runtime/core/instance.h"
#include "runtime/core/sync.h"
#include "runtime/memory/fence.h"

/* The list of a device's pools. The device owns it. */
typedef struct accrt_pool_set {
  accrt_mutex_t lock;
  accrt_pool_t* head; /* linked through the pools; a pool removes itself at its end */
  accrt_pool_t* defaults[ACCRT_MEMORY_MAPPED + 1]; /* by kind; the set has a reference to each */
} accrt_pool_set_t;

/* The functions that memory needs from the floor above. None is NULL. */
typedef struct accrt_memory_above {
  /* Records ACCRT_ERROR_DEVICE_LOST, with the reason, and returns it. */
  accrt_status_t (*fail_lost)(accrt_device_t* device);
  /* The end of work without a listener is not reported, so a fence may be behind the device. This
   * asks the driver and advances the fences of all streams of the device. A failure that it finds
   * is recorded in its stream. It never blocks, but it calls the driver: call it under no lock.
   * Check with accrt_fence_passed first, refresh when it has not, check again. */
  void (*refresh_fences)(accrt_device_t* device);
  /* watch asks for a wake-up of the runtime's thread by completions; that thread calls
   * accrt_device_reap_pools. unwatch ends one such request. */
  void (*watch)(accrt_instance_t* instance);
  void (*unwatch)(accrt_instance_t* instance);
  /* Wakes that thread now. */
  void (*kick)(accrt_instance_t* instance);
  /* Returns the fence of a stream, and the stream's device. */
  accrt_fence_t* (*fence_of)(accrt_stream_t* stream, accrt_device_t** out_device);
} accrt_memory_above_t;

struct accrt_device {
  accrt_instance_t* instance;
  const accrt_memory_above_t* above;
  const accrt_driver_table_t* table;
  accrt_driver_device_t* driver_device; /* valid when open */
  accrt_device_info_t info;
  atomic_uint lost;
  accrt_pool_set_t pools;
};

static inline const accrt_driver_table_t* accrt_device_driver_table(const accrt_device_t* device) {
  return device->table;
}
static inline accrt_driver_device_t* accrt_device_driver_device(const accrt_device_t* device) {
  return device->driver_device;
}
/* As accrt_device_info, without copying. */
static inline const accrt_device_info_t* accrt_device_facts(const accrt_device_t* device) {
  return &device->info;
}
static inline bool accrt_device_is_lost(const accrt_device_t* device) {
  /* Relaxed is enough: it is set once, and publishes nothing else. */
  return atomic_load_explicit(&device->lost, memory_order_relaxed) != 0;
}
/* ACCRT_ERROR_DEVICE_LOST, with the reason, once the device is lost. */
static inline accrt_status_t accrt_device_check(accrt_device_t* device) {
  return accrt_device_is_lost(device) ? device->above->fail_lost(device) : ACCRT_OK;
}

#endif /* ACCRT_RUNTIME_MEMORY_DEVICE_H_ */
