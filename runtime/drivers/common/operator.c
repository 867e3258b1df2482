/* runtime/drivers/common/operator.c - what common code asks of host operators before a list with
 * them is made: whether they are for a device, and how much workspace they need. Drivers prepare
 * and execute them. */
#include <string.h>

#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/operator.h"

#define MESSAGE_BYTES 256u

accrt_status_t accrt_operator_check_device(accrt_device_t* device, const accrt_kernel_t* kernel) {
  const accrt_driver_operator_t* operation = accrt_kernel_operator_view(kernel);
  const char* name = accrt_kernel_driver_view(kernel)->definition->name;
  if (operation == NULL) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "'%s' is no host operator: record it with accrt_commands_dispatch", name);
  }
  if (kernel->instance != NULL && kernel->instance != device->instance)
    return accrt_kernel_fail_instance(device, kernel);
  const uint32_t type = operation->definition->device_type;
  if (type == 0 || type == device->info.dlpack_device_type)
    return ACCRT_OK;
  return ACCRT_FAIL(UNSUPPORTED,
                    "operator '%s' is for devices of type %" PRIu32 ", %s is of %" PRIu32, name,
                    type, device->info.name, device->info.dlpack_device_type);
}

/* For devices without contexts: the operator is asked here. */
static accrt_status_t query(const accrt_device_t* device, const accrt_driver_operator_t* operation,
                            const void* params, uint32_t params_size_bytes,
                            uint64_t* out_size_bytes) {
  char message[MESSAGE_BYTES] = "";
  const accrt_operator_call_t call = {.struct_size = (uint32_t)sizeof call,
                                      .device_type = device->info.dlpack_device_type,
                                      .device_id = device->info.dlpack_device_id,
                                      .params_size_bytes = params_size_bytes,
                                      .params = params,
                                      .message = message,
                                      .message_capacity_bytes = sizeof message};
  const int32_t code =
      operation->definition->query_workspace(operation->environment, &call, out_size_bytes);
  if (code == 0)
    return ACCRT_OK;
  message[sizeof message - 1] = '\0';
  accrt_text_one_line(message);
  return accrt_error_record_driver(
      ACCRT_ERROR_KERNEL, code, NULL, accrt_error_operation(), __FILE__, (uint32_t)__LINE__,
      "operator '%s': query_workspace gave %" PRId32 "%s%s", operation->definition->name, code,
      message[0] != '\0' ? ": " : "", message);
}

accrt_status_t accrt_device_operator_workspace(accrt_device_t* device,
                                               const accrt_driver_operator_t* operation,
                                               const void* params, uint32_t params_size_bytes,
                                               uint64_t* out_size_bytes) {
  *out_size_bytes = 0;
  if (operation->definition->query_workspace == NULL)
    return ACCRT_OK;
  const accrt_driver_table_t* table = device->table;
  const accrt_status_t status =
      table->operator_workspace != NULL
          ? table->operator_workspace(device->driver_device, operation, params, params_size_bytes,
                                      out_size_bytes)
          : query(device, operation, params, params_size_bytes, out_size_bytes);
  if (status != ACCRT_OK)
    *out_size_bytes = 0;
  return status;
}
