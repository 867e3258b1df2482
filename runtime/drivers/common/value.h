/* Numbers and ranges of driver commands that are known when the command is made. */
#ifndef ACCRT_DRIVERS_COMMON_VALUE_H
#define ACCRT_DRIVERS_COMMON_VALUE_H

#include "accrt/sys/driver.h"

#define VALUE(number) ((accrt_driver_value_t){.constant = (number), .scalar = ACCRT_DRIVER_NONE})

/* `address`: of the first byte, in the device's terms. */
static inline accrt_driver_range_t range_at(uint64_t address, uint64_t size_bytes,
                                            uint32_t access) {
  return (accrt_driver_range_t){.binding = ACCRT_DRIVER_NONE,
                                .access = access,
                                .offset = VALUE(address),
                                .size_bytes = VALUE(size_bytes)};
}

#endif
