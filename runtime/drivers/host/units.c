/* runtime/drivers/host/units.c - runs pieces of single commands: workgroups of a dispatch, bytes or
 * rows of a copy or fill. Every piece can run on any thread. It may not know waves or queues.
 */
#include <string.h>

#include "runtime/core/memory.h"
#include "runtime/drivers/host/host.h"

/* ---- Copies and fills ---- */

static void drop_plane(host_copy_t* copy) {
  copy->extent[1] = copy->extent[2];
  copy->extent[2] = 1;
  copy->source_stride[0] = copy->source_stride[1];
  copy->target_stride[0] = copy->target_stride[1];
}

void accrt_host_copy_simplify(host_copy_t* copy) {
  if (copy->extent[0] == 0 || copy->extent[1] == 0 || copy->extent[2] == 0) {
    memset(copy->extent, 0, sizeof copy->extent);
    return;
  }
  if (copy->extent[1] == 1)
    drop_plane(copy); /* of one row: planes are the rows */
  for (int i = 0; i < 2; ++i) {
    const uint64_t row = copy->extent[0];
    if (copy->extent[1] == 1)
      break;
    if (copy->source_stride[0] != row || copy->target_stride[0] != row)
      break;
    copy->extent[0] = row * copy->extent[1];
    drop_plane(copy);
  }
}

static void copy_row(const host_copy_t* copy, uint64_t row) {
  const uint64_t plane = row / copy->extent[1];
  const uint64_t line = row % copy->extent[1];
  const uint64_t source =
      copy->source + line * copy->source_stride[0] + plane * copy->source_stride[1];
  const uint64_t target =
      copy->target + line * copy->target_stride[0] + plane * copy->target_stride[1];
  memcpy((void*)(uintptr_t)target, (const void*)(uintptr_t)source, copy->extent[0]);
}

void accrt_host_copy_items(const host_copy_t* copy, uint64_t begin, uint64_t end) {
  if (begin == end)
    return;
  if (copy->extent[1] == 1 && copy->extent[2] == 1) {
    memcpy((void*)(uintptr_t)(copy->target + begin), (const void*)(uintptr_t)(copy->source + begin),
           end - begin);
    return;
  }
  for (uint64_t row = begin; row < end; ++row)
    copy_row(copy, row);
}

/* `begin` is a multiple of 8 from the fill's start, so the pattern starts anew there. */
void accrt_host_fill_items(const host_fill_t* fill, uint64_t begin, uint64_t end) {
  if (begin == end)
    return;
  unsigned char* const target = (unsigned char*)(uintptr_t)(fill->target + begin);
  const uint64_t size_bytes = end - begin;
  const uint64_t first = fill->pattern & 0xFF;
  if (fill->pattern == first * UINT64_C(0x0101010101010101)) {
    memset(target, (int)first, size_bytes);
    return;
  }
  uint64_t done = 0;
  for (; done + 8 <= size_bytes; done += 8)
    memcpy(target + done, &fill->pattern, 8);
  memcpy(target + done, &fill->pattern, size_bytes - done);
}

/* ---- Dispatches ---- */

/* The first failure of a run is the one that is reported. Relaxed reads elsewhere only save work;
 * who reads the details has waited for the units (release of `done`, acquire by the coordinator) or
 * is this thread. */
static void record_failure(host_run_t* run, const host_scratch_t* scratch,
                           const host_command_t* command, int32_t code) {
  uint_least32_t expected = 0;
  if (!atomic_compare_exchange_strong_explicit(&run->failed, &expected, HOST_RUN_FAILED,
                                               memory_order_relaxed, memory_order_relaxed)) {
    return;
  }
  run->code = code;
  run->command = command;
  memcpy(run->workgroup_id, scratch->workgroup.workgroup_id, sizeof run->workgroup_id);
  memcpy(run->message, scratch->message, sizeof run->message);
  run->message[sizeof run->message - 1] = '\0';
}

static void set_workgroup(accrt_kernel_workgroup_t* workgroup, const uint32_t count[3],
                          uint64_t item) {
  if (item == 0) { /* nearly always: divisions take longer than the rest of a small dispatch */
    memset(workgroup->workgroup_id, 0, sizeof workgroup->workgroup_id);
    return;
  }
  workgroup->workgroup_id[0] = (uint32_t)(item % count[0]);
  workgroup->workgroup_id[1] = (uint32_t)(item / count[0] % count[1]);
  workgroup->workgroup_id[2] = (uint32_t)(item / count[0] / count[1]);
}

static void next_workgroup(accrt_kernel_workgroup_t* workgroup, const uint32_t count[3]) {
  if (++workgroup->workgroup_id[0] < count[0])
    return;
  workgroup->workgroup_id[0] = 0;
  if (++workgroup->workgroup_id[1] < count[1])
    return;
  workgroup->workgroup_id[1] = 0;
  ++workgroup->workgroup_id[2];
}

static void run_workgroups(host_run_t* run, host_scratch_t* scratch, const host_command_t* command,
                           uint64_t begin, uint64_t end) {
  const host_dispatch_t* dispatch = &command->as.dispatch;
  accrt_kernel_workgroup_t* workgroup = &scratch->workgroup;
  workgroup->local_memory = dispatch->local_bytes == 0 ? NULL : scratch->local;
  workgroup->local_memory_size_bytes = dispatch->local_bytes;
  set_workgroup(workgroup, dispatch->view.workgroup_count, begin);
  for (uint64_t item = begin; item < end; ++item) {
    if (atomic_load_explicit(&run->failed, memory_order_relaxed) != 0)
      return;
    scratch->message[0] = '\0'; /* what a kernel wrote that did not fail is no message */
    const int32_t code = dispatch->entry(dispatch->environment, &dispatch->view, workgroup);
    if (__builtin_expect(code != 0, 0)) {
      record_failure(run, scratch, command, code);
      return;
    }
    next_workgroup(workgroup, dispatch->view.workgroup_count);
  }
}

void accrt_host_run_units(host_run_t* run, host_scratch_t* scratch, const host_command_t* command,
                          uint32_t begin, uint32_t end) {
  const uint64_t first = begin * command->items_per_unit;
  uint64_t last;
  if (!accrt_mul_u64(end, command->items_per_unit, &last) || last > command->item_count) {
    last = command->item_count;
  }
  switch (command->kind) {
  case ACCRT_DRIVER_COMMAND_DISPATCH:
    run_workgroups(run, scratch, command, first, last);
    break;
  case ACCRT_DRIVER_COMMAND_COPY:
    accrt_host_copy_items(&command->as.copy, first, last);
    break;
  case ACCRT_DRIVER_COMMAND_FILL:
    accrt_host_fill_items(&command->as.fill, first, last);
    break;
  default:
    break;
  }
}
