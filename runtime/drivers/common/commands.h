/* runtime/drivers/common/commands.h - what is behind accrt_commands_t. Private to commands.c and
 * commands_submit.c.
 */
#ifndef ACCRT_RUNTIME_DRIVERS_COMMON_COMMANDS_H_
#define ACCRT_RUNTIME_DRIVERS_COMMON_COMMANDS_H_

#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/pieces.h"

/* Memory of one command: parameter block, patches, predecessors, text. */
typedef struct blob {
  void* memory;
  size_t size_bytes;
} blob_t;

/* One range that lies in a binding. */
typedef struct bound_range {
  uint32_t command;
  uint32_t binding;
  uint64_t offset_bytes;
  uint64_t size_bytes;
} bound_range_t;

/* What can only be judged when addresses are known. */
typedef struct late_check {
  uint32_t command;
  uint32_t pattern_bytes; /* not 0: the target's alignment; 0: source and target may not overlap */
  uint64_t source_bytes;
  uint64_t target_bytes;
} late_check_t;

/* What a list needs of a binding. */
typedef struct need {
  uint64_t size_bytes; /* how far its ranges reach */
  bool reached;        /* by more than copies: by kernels, operators, fills */
  bool by_kernel;      /* by more than copies and fills */
} need_t;

struct accrt_commands {
  accrt_zombie_t zombie; /* first: see accrt_dispose */
  accrt_object_t object;
  accrt_device_t* device;
  accrt_instance_t* instance;
  uint32_t binding_count;
  accrt_guard_t guard; /* of recording */
  bool finalized;
  accrt_driver_list_t* list;
  accrt_divided_t divided; /* of the list */
  accrt_driver_command_t* commands;
  size_t count, capacity;
  blob_t* blobs;
  size_t blob_count, blob_capacity;
  bound_range_t* ranges;
  size_t range_count, range_capacity;
  late_check_t* checks;
  size_t check_count, check_capacity;
  accrt_kernel_pack_t** packs; /* internal references, distinct */
  size_t pack_count, pack_capacity;
  accrt_buffer_t**
      buffers; /* internal references, distinct: named by commands instead of bindings */
  size_t buffer_count, buffer_capacity;
  need_t* needs; /* by binding */
  /* Of all operators together: a binding behind the caller's, of memory that is the list's own. */
  uint64_t workspace_bytes;
  accrt_buffer_t* workspace; /* also among `buffers` */
};

/* What the driver's list is given at a submission: the caller's bindings, then the workspace. */
static inline uint32_t accrt_commands_table_count(const accrt_commands_t* commands) {
  return commands->binding_count + (commands->workspace_bytes != 0);
}

/* What the driver's list is made of. flags: by binding; NULL: none. */
static inline accrt_driver_list_info_t accrt_commands_info(const accrt_commands_t* commands,
                                                           const uint32_t* flags) {
  return (accrt_driver_list_info_t){.struct_size = (uint32_t)sizeof(accrt_driver_list_info_t),
                                    .command_count = (uint32_t)commands->count,
                                    .commands = commands->commands,
                                    .binding_count = accrt_commands_table_count(commands),
                                    .binding_flags = flags};
}

/* Two ranges of bytes have one in common; their ends fit 64 bits. */
static inline bool accrt_ranges_overlap(uint64_t a, uint64_t a_bytes, uint64_t b,
                                        uint64_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

#endif /* ACCRT_RUNTIME_DRIVERS_COMMON_COMMANDS_H_ */
