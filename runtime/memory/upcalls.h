/* runtime/memory/upcalls.h - the few things that memory asks of the layer above it. Implemented in runtime/drivers/common.
 *
 * Memory may use nothing else of streams, devices and instances but this.
 */
#ifndef ACCRT_RUNTIME_MEMORY_UPCALLS_H_
#define ACCRT_RUNTIME_MEMORY_UPCALLS_H_

#include <stdbool.h>

#include "accrt/memory.h"
#include "accrt/stream.h"
#include "accrt/sys/driver.h"
#include "runtime/core/instance.h"
#include "runtime/core/sync.h"
#include "runtime/memory/fence.h"

/* Option pool.one_mapping. */
uint32_t accrt_instance_one_mapping(const accrt_instance_t* instance);
const accrt_driver_table_t* accrt_device_driver_table(const accrt_device_t* device);
accrt_driver_device_t* accrt_device_driver_device(const accrt_device_t* device);
/* As accrt_device_info, without copying. */
const accrt_device_info_t* accrt_device_facts(const accrt_device_t* device);

/* ACCRT_ERROR_DEVICE_LOST, with the reason, once the device is lost. */
accrt_status_t accrt_device_check(accrt_device_t* device);

/* Internal references hold the object and not the instance, for what ends with it. */
void accrt_stream_unref(accrt_stream_t* stream);

/* The pools of a device, in a list that the device owns. */
typedef struct accrt_pool_set {
  accrt_mutex_t lock;
  accrt_pool_t* head; /* linked through the pools; a pool takes itself out when it goes */
  accrt_pool_t* defaults[ACCRT_MEMORY_MAPPED + 1]; /* by kind; the set holds a reference on each */
} accrt_pool_set_t;

accrt_pool_set_t* accrt_device_pool_set(accrt_device_t* device);

accrt_fence_t* accrt_stream_fence(accrt_stream_t* stream);
/* Number of the last submission that the stream took. */
uint64_t accrt_stream_last_submission(accrt_stream_t* stream);

/* Work that nobody waits for ends without a word: a fence that has not passed may be behind the device. These ask the driver and
 * advance what can be advanced; failures that come to light go to the streams that have them. They never block, but call the
 * driver: under no lock. Cheap when there is nothing to ask (the stream is gone, or all that it took has passed). Check with
 * accrt_fence_passed first, refresh when it has not, check again. */
void accrt_fence_refresh(accrt_fence_t* fence);
/* The same for all streams of a device. */
void accrt_device_refresh_fences(accrt_device_t* device);

/* True inside a driver's completion, or while the runtime feeds a stream: no driver function that may block is called then. */
bool accrt_context_inside(void);
/* Says that a completion should wake the runtime's thread, which calls accrt_device_reap_pools; and takes that back. */
void accrt_instance_watch(accrt_instance_t* instance);
void accrt_instance_unwatch(accrt_instance_t* instance);
/* Wakes that thread now. */
void accrt_instance_kick(accrt_instance_t* instance);

#endif /* ACCRT_RUNTIME_MEMORY_UPCALLS_H_ */
