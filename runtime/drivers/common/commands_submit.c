/* runtime/drivers/common/commands_submit.c - submitting finalized command lists: bindings become
 * addresses, what was recorded is checked against them, and a stream gets the list. It may not
 * change what is recorded, nor know how streams or drivers run it.
 */
#include "runtime/core/struct.h"
#include "runtime/drivers/common/commands.h"

#define INLINE_BINDINGS 128u

/* ---- Bindings ---- */

accrt_status_t accrt_binding_resolve(accrt_device_t* device, const accrt_binding_t* binding,
                                     const char* what, accrt_driver_binding_t* out_binding) {
  *out_binding = (accrt_driver_binding_t){0, 0};
  uint64_t size_bytes = binding->size_bytes;
  if (binding->buffer != NULL) {
    uint64_t address, buffer_bytes;
    accrt_buffer_range(binding->buffer, &address, &buffer_bytes);
    if (size_bytes == ACCRT_TO_END)
      size_bytes = binding->offset_bytes <= buffer_bytes ? buffer_bytes - binding->offset_bytes : 0;
  } else if (binding->pointer == NULL && (size_bytes == 0 || size_bytes == ACCRT_TO_END)) {
    return ACCRT_OK; /* an entry that nothing may reach into */
  } else if ((device->info.flags & ACCRT_DEVICE_FLAG_HOST_MEMORY) == 0) {
    return ACCRT_FAIL(UNSUPPORTED, "%s: %s does not take plain host pointers", what,
                      device->info.name);
  } else if (size_bytes == ACCRT_TO_END) {
    return ACCRT_FAIL(OUT_OF_RANGE, "%s: a host pointer needs a size", what);
  }
  const accrt_place_t place = {binding->buffer, binding->pointer, binding->offset_bytes};
  const accrt_status_t status =
      accrt_place_resolve(device, &place, size_bytes, what, &out_binding->address);
  if (status == ACCRT_OK)
    out_binding->size_bytes = size_bytes;
  return status;
}

/* ---- Checks ---- */

static accrt_status_t check_submission(accrt_stream_t* stream, accrt_commands_t* commands,
                                       const accrt_binding_t* bindings, uint32_t binding_count,
                                       uint32_t binding_size_bytes) {
  if (stream->device != commands->device) {
    return accrt_device_check_same("list of commands", commands->device, "stream", stream->device);
  }
  if (!commands->finalized)
    return ACCRT_FAIL(INVALID_STATE, "the list is not finalized");
  if (binding_count != commands->binding_count) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "%" PRIu32 " bindings; the list was recorded with %" PRIu32,
                      binding_count, commands->binding_count);
  }
  if (binding_count == 0)
    return ACCRT_OK;
  if (bindings == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "bindings is NULL");
  return accrt_struct_check_element("accrt_binding_t", binding_size_bytes, sizeof(accrt_binding_t));
}

static accrt_status_t fail_range(const accrt_commands_t* commands, uint32_t binding,
                                 uint64_t size_bytes) {
  for (size_t i = 0; i < commands->range_count; ++i) {
    const bound_range_t* range = &commands->ranges[i];
    if (range->binding != binding ||
        accrt_range_fits(range->offset_bytes, range->size_bytes, size_bytes))
      continue;
    const char* name = commands->commands[range->command].name;
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "command %" PRIu32 " (%s): offset %" PRIu64 " + size %" PRIu64
                      " is past binding %" PRIu32 "'s %" PRIu64 " bytes",
                      range->command, name, range->offset_bytes, range->size_bytes, binding,
                      size_bytes);
  }
  return ACCRT_FAIL(INTERNAL,
                    "binding %" PRIu32 " of %" PRIu64 " bytes is too small for no command", binding,
                    size_bytes);
}

static uint64_t address_of(const accrt_driver_range_t* range, const accrt_driver_binding_t* table) {
  return range->offset.constant +
         (range->binding != ACCRT_DRIVER_NONE ? table[range->binding].address : 0);
}

static accrt_status_t check_late(const accrt_commands_t* commands,
                                 const accrt_driver_binding_t* table) {
  for (size_t i = 0; i < commands->check_count; ++i) {
    const late_check_t* check = &commands->checks[i];
    const accrt_driver_command_t* command = &commands->commands[check->command];
    if (check->pattern_bytes != 0) {
      const uint64_t at = address_of(&command->as.fill.target, table);
      if (at % check->pattern_bytes == 0)
        continue;
      return ACCRT_FAIL(INVALID_ARGUMENT,
                        "command %" PRIu32 " (fill): address 0x%" PRIx64
                        " is not aligned to the pattern's %" PRIu32 " bytes",
                        check->command, at, check->pattern_bytes);
    }
    const uint64_t from = address_of(&command->as.copy.source, table),
                   to = address_of(&command->as.copy.target, table);
    if (!accrt_ranges_overlap(from, check->source_bytes, to, check->target_bytes))
      continue;
    return ACCRT_FAIL(ALIASED,
                      "command %" PRIu32 " (copy): source [0x%" PRIx64 ", +%" PRIu64
                      ") and target [0x%" PRIx64 ", +%" PRIu64 ") overlap",
                      check->command, from, check->source_bytes, to, check->target_bytes);
  }
  return ACCRT_OK;
}

/* ---- The table ---- */

/* The short way, of nearly all bindings: a range of a buffer of the list's own device. False: for
 * accrt_binding_resolve to take or to refuse. */
static bool resolve_own(const accrt_commands_t* commands, const accrt_binding_t* binding,
                        accrt_driver_binding_t* out_binding) {
  const accrt_buffer_t* buffer = binding->buffer;
  const bool to_end = binding->size_bytes == ACCRT_TO_END;
  if (buffer == NULL || !accrt_buffer_is_own(commands->device, buffer, binding->offset_bytes,
                                             to_end ? 0 : binding->size_bytes))
    return false;
  *out_binding = (accrt_driver_binding_t){buffer->address + binding->offset_bytes,
                                          to_end ? buffer->size_bytes - binding->offset_bytes
                                                 : binding->size_bytes};
  return true;
}

static accrt_status_t resolve_bindings(accrt_commands_t* commands, const accrt_binding_t* bindings,
                                       accrt_driver_binding_t* table) {
  for (uint32_t i = 0; i < commands->binding_count; ++i) {
    accrt_status_t status = ACCRT_OK;
    if (!resolve_own(commands, &bindings[i], &table[i])) {
      status = accrt_binding_resolve(commands->device, &bindings[i], "binding", &table[i]);
      if (status == ACCRT_OK && commands->needs[i].reached && bindings[i].buffer != NULL)
        status = accrt_buffer_check_reach(commands->device, bindings[i].buffer,
                                          commands->needs[i].by_kernel, "binding");
    }
    if (status != ACCRT_OK) {
      accrt_error_prefix("binding %" PRIu32, i);
      return status;
    }
    if (table[i].size_bytes < commands->needs[i].size_bytes)
      return fail_range(commands, i, table[i].size_bytes);
  }
  if (commands->workspace != NULL) {
    accrt_driver_binding_t* last = &table[commands->binding_count];
    accrt_buffer_range(commands->workspace, &last->address, &last->size_bytes);
  }
  return check_late(commands, table);
}

/* ---- Submission ---- */

static accrt_status_t prepare_uses(accrt_stream_t* stream, accrt_commands_t* commands,
                                   const accrt_binding_t* bindings) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < commands->binding_count && status == ACCRT_OK; ++i) {
    if (bindings[i].buffer != NULL)
      status = accrt_buffer_note_fence(bindings[i].buffer, stream->fence, 0);
  }
  /* Those that the commands name are kept by the list, which is kept as long as it runs. */
  return status;
}

static void note_uses(accrt_stream_t* stream, accrt_commands_t* commands,
                      const accrt_binding_t* bindings, uint64_t number) {
  for (uint32_t i = 0; i < commands->binding_count; ++i) {
    if (bindings[i].buffer != NULL &&
        accrt_buffer_note_fence(bindings[i].buffer, stream->fence, number) != ACCRT_OK)
      accrt_buffer_note_or_wait(bindings[i].buffer, stream, number);
  }
}

static accrt_status_t enqueue_list(accrt_stream_t* stream, accrt_commands_t* commands,
                                   const accrt_binding_t* bindings,
                                   const accrt_driver_binding_t* table, uint64_t* out_number) {
  ACCRT_TRY(prepare_uses(stream, commands, bindings));
  accrt_stream_work_t work = {.list = commands->list,
                              .bindings = table,
                              .scalars = NULL,
                              .binding_count = accrt_commands_table_count(commands),
                              .scalar_count = 0,
                              .name = "accrt_stream_submit",
                              .completion = {NULL, NULL},
                              .retained_class = &accrt_retained_commands,
                              .retained = commands};
  if (accrt_stream_divides(stream)) {
    const accrt_driver_list_info_t info = accrt_commands_info(commands, NULL);
    ACCRT_TRY(accrt_pieces_add(stream, &info, &commands->divided, &work));
  }
  const accrt_status_t status = accrt_stream_enqueue_work(stream, NULL, &work, out_number);
  if (status == ACCRT_OK || (work.piece_count != 0 && *out_number != 0))
    note_uses(stream, commands, bindings, *out_number);
  return status;
}

/* Submits, or runs on this thread where that can be. `*out_number` is 0 when it has run. */
static accrt_status_t submit(accrt_stream_t* stream, accrt_commands_t* commands,
                             const accrt_binding_t* bindings, bool here, uint64_t* out_number) {
  accrt_driver_binding_t few[INLINE_BINDINGS];
  accrt_driver_binding_t* table = few;
  void* many = NULL;
  const accrt_allocator_t* allocator = &commands->instance->allocator;
  *out_number = 0;
  accrt_status_t status = ACCRT_OK;
  if (accrt_commands_table_count(commands) > INLINE_BINDINGS) {
    ACCRT_TRY(
        accrt_alloc_array(allocator, accrt_commands_table_count(commands), sizeof *table, &many));
    table = many;
  }
  status = resolve_bindings(commands, bindings, table);
  if (status != ACCRT_OK)
    goto out;
  status = ACCRT_ERROR_NOT_READY;
  if (here) {
    const accrt_stream_work_t work = {.list = commands->list,
                                      .bindings = table,
                                      .binding_count = accrt_commands_table_count(commands),
                                      .name = "accrt_stream_run"};
    uint64_t number;
    status = accrt_stream_execute_inline(stream, &work, &number);
  }
  if (status == ACCRT_ERROR_NOT_READY)
    status = enqueue_list(stream, commands, bindings, table, out_number);
out:
  accrt_free_array(allocator, many, accrt_commands_table_count(commands), sizeof *table);
  return status;
}

accrt_status_t accrt_stream_submit(accrt_stream_t* stream, accrt_commands_t* commands,
                                   const accrt_binding_t* bindings, uint32_t binding_count,
                                   uint32_t binding_size_bytes) {
  ACCRT_ENTER(stream, commands);
  ACCRT_TRY(check_submission(stream, commands, bindings, binding_count, binding_size_bytes));
  uint64_t number;
  return submit(stream, commands, bindings, false, &number);
}

accrt_status_t accrt_stream_run(accrt_stream_t* stream, accrt_commands_t* commands,
                                const accrt_binding_t* bindings, uint32_t binding_count,
                                uint32_t binding_size_bytes, uint64_t timeout_ns) {
  ACCRT_ENTER(stream, commands);
  ACCRT_TRY(check_submission(stream, commands, bindings, binding_count, binding_size_bytes));
  uint64_t number;
  const bool unlimited = timeout_ns == ACCRT_TIMEOUT_INFINITE;
  const uint64_t deadline_ns = accrt_deadline_ns(timeout_ns);
  accrt_status_t status = ACCRT_OK;
  if (!unlimited)
    status = accrt_stream_hand_over(stream);
  if (status == ACCRT_OK)
    status = submit(stream, commands, bindings, unlimited, &number);
  if (!unlimited)
    accrt_stream_go(stream);
  if (status != ACCRT_OK || number == 0)
    return status;
  return accrt_stream_wait_number(stream, number, accrt_limit_left_ns(timeout_ns, deadline_ns),
                                  timeout_ns, ACCRT_WAIT_BLOCK);
}
