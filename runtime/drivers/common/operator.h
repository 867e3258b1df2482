/* runtime/drivers/common/operator.h - what common code asks of a host operator before a list with
 * it is made. For the program layer too. */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_OPERATOR_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_OPERATOR_H_

#include "accrt/sys/driver.h"

/* How much workspace it asks for with this block: 0 when it has no query_workspace.
 * ACCRT_ERROR_KERNEL with its code and message. */
accrt_status_t accrt_device_operator_workspace(accrt_device_t* device,
                                               const accrt_driver_operator_t* operation,
                                               const void* params, uint32_t params_size_bytes,
                                               uint64_t* out_size_bytes);

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_OPERATOR_H_ */
