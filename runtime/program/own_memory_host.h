/* runtime/program/own_memory_host.h - for tests: the host driver with a driver table that can claim
 * that its devices have their own memory. A test file includes it once. */
#ifndef ACCRT_RUNTIME_PROGRAM_OWN_MEMORY_HOST_H_
#define ACCRT_RUNTIME_PROGRAM_OWN_MEMORY_HOST_H_

#include "runtime/program/testing.h"

extern const accrt_driver_table_t* accrt_driver_host_query(uint32_t max_abi);

/* Whether the devices opened from now on claim their own memory. */
static bool own_memory;

static void own_memory_info(accrt_driver_device_t* device, accrt_device_info_t* out_info) {
  accrt_driver_host_query(ACCRT_DRIVER_ABI_VERSION)->device_info(device, out_info);
  if (own_memory)
    out_info->flags &= ~ACCRT_DEVICE_FLAG_HOST_MEMORY;
}

static const void* own_memory_query(uint32_t max_abi) {
  (void)max_abi;
  static accrt_driver_table_t table;
  table = *accrt_driver_host_query(ACCRT_DRIVER_ABI_VERSION);
  table.device_info = own_memory_info;
  return &table;
}

/* Opens the fixture's device, a device of the host driver. */
static void open_own_memory_device(fixture_t* f) {
  OK(accrt_instance_register_driver(f->instance, own_memory_query));
  OK(accrt_instance_device_by_name(f->instance, "host", &f->device));
}

#endif /* ACCRT_RUNTIME_PROGRAM_OWN_MEMORY_HOST_H_ */
