"""The conformance suite catches drivers that break what accrt/sys/driver.h asks of them.

Each mutant is the null driver's source, or that of the null driver with threads and the optional
groups, with one obligation broken; the test that is named beside it must fail for it, as it must
pass for the driver itself. A mutant whose text is not found in the source any more fails, so that
the tables follow the drivers.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NULL = ROOT / "runtime/drivers/null/null.c"
THREADED = ROOT / "tests/cts/threaded.c"
SUITE = pathlib.Path(os.environ.get("ACCRT_LIBRARY", ROOT / "build/lib/libaccrt.so")).resolve().parents[1] / "tests/cts/cts"
COMPILER = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")

pytestmark = pytest.mark.skipif(not SUITE.exists() or not COMPILER or not NULL.exists(), reason="the conformance suite is not built here")

#: obligation, text of the null driver, what stands there instead, the test that catches it.
MUTANTS = [
    # Tracing
    ("lists are cancelled before copies and fills too", "    status = is_cancelled(queue) ? report_cancelled(\"commands\"",
     "    status = (i == 0 || commands[i].opcode == ACCRT_DRIVER_COMMAND_DISPATCH) && is_cancelled(queue) ? report_cancelled(\"commands\"",
     "direct.test_cancelled_work_stops"),
    ("what is the caller's stays as it is", "  (void)device;\n  out_info->flags", "  (void)device;\n  memset(out_info, 0, sizeof *out_info);\n  out_info->flags",
     "direct.test_facts_are_filled"),
    ("each command is traced", "  if (environment->tracing)\n    trace_command", "  if (0)\n    trace_command", "direct.test_each_command_is_traced"),
    ("nothing is traced unasked", "  if (environment->tracing)\n    trace_command", "  if (1)\n    trace_command", "direct.test_nothing_is_traced_unasked"),
    ("traces have the kernel's name", "name = command->as.dispatch.kernel->definition->name;", 'name = "dispatch";', "direct.test_each_command_is_traced"),
    ("traces have the command's name", ".name = name != NULL ? name", ".name = 0 ? name", "direct.test_each_command_is_traced"),
    ("traces have the submission's number", "      .submission = submission->number,\n      .begin_ns", "      .submission = 1,\n      .begin_ns", "direct.test_each_command_is_traced"),
    ("traces have the stream's id", ".stream_id = submission->stream_id,", ".stream_id = 0,", "direct.test_each_command_is_traced"),
    ("traces have a beginning", ".begin_ns = begin_ns,", ".begin_ns = now_ns() + 1000000,", "direct.test_each_command_is_traced"),
    # Operators
    ("operators are refused by who runs none", "if (info->commands[i].opcode != ACCRT_DRIVER_COMMAND_OPERATOR)", "if (1)", "direct.test_operators_run_or_are_refused"),
    ("refusals name the operator", "runs no host operators ('%.255s')\", i,\n             info->commands[i].as.invoke.operation->definition->name);", "runs no host operators\", i);", "direct.test_operators_run_or_are_refused"),
    ("a refusal is recorded", 'return environment->fail(environment, ACCRT_ERROR_UNSUPPORTED, 0, NULL, "list_create", message);', "return ACCRT_ERROR_UNSUPPORTED;", "direct.test_operators_run_or_are_refused"),
    # Values, ranges, patches
    ("values take scalars", "return value->constant + submission->scalars[value->scalar];", "return value->constant;", "direct.test_copies_take_scalars"),
    ("values keep their constant", "return value->constant + submission->scalars[value->scalar];", "return submission->scalars[value->scalar];", "direct.test_fills_take_scalars"),
    ("values are modulo 2^64", "return value->constant + submission->scalars[value->scalar];", "{ uint64_t v = value->constant + submission->scalars[value->scalar]; return v < value->constant ? UINT64_MAX : v; }", "direct.test_values_are_patched_into_blocks"),
    ("grids take scalars", "(uint32_t)value_of(&dispatch->grid[i], submission)", "(uint32_t)dispatch->grid[i].constant + 1", "direct.test_grids_take_scalars"),
    ("a grid with a zero runs nothing", "    if (view.workgroup_count[i] == 0)\n      return ACCRT_OK;", "    if (view.workgroup_count[i] == 0)\n      view.workgroup_count[i] = 1;", "direct.test_grids_take_scalars"),
    ("offsets count", "return submission->bindings[range->binding].address + offset;", "return submission->bindings[range->binding].address;", "direct.test_addresses_are_patched_into_blocks"),
    ("ranges without a binding are absolute", "  if (range->binding == ACCRT_DRIVER_NONE)\n    return offset;", "  if (range->binding == ACCRT_DRIVER_NONE)\n    return 0;", "direct.test_addresses_are_patched_into_blocks"),
    ("absent buffers stay absent", "bits = 0; /* an optional buffer that is absent */", "bits = value_of(&patch->range.offset, submission);", "direct.test_addresses_are_patched_into_blocks"),
    ("absent is judged by the binding", "submission->bindings[patch->range.binding].address == 0)", "submission->bindings[0].address == 0)", "direct.test_addresses_are_patched_into_blocks"),
    ("commands alone are patched too", "return run_commands(queue, command, 1, submission);", "accrt_driver_command_t alone = *command; if (alone.opcode == ACCRT_DRIVER_COMMAND_DISPATCH) alone.as.dispatch.patch_count = 0; return run_commands(queue, &alone, 1, submission);", "direct.test_commands_alone_are_patched"),
    ("patches have a size", "memcpy(params + patch->offset_bytes, &bits, patch->size_bytes);", "memcpy(params + patch->offset_bytes, &bits, 8);", "direct.test_values_are_patched_into_blocks"),
    ("patches have a place", "memcpy(params + patch->offset_bytes, &bits", "memcpy(params + (patch->offset_bytes & ~7u), &bits", "direct.test_values_are_patched_into_blocks"),
    ("the template is not written", "memcpy(params, dispatch->params, dispatch->params_size_bytes);", "params = (unsigned char*)(uintptr_t)dispatch->params;", "direct.test_the_template_stays"),
    # Kernels
    ("floats are the default's", "  fesetenv(FE_DFL_ENV);", "", "direct.test_floating_point_environment"),
    ("the caller's floats come back", "  fesetenv(&callers);", "", "direct.test_floating_point_environment"),
    ("blocks are aligned", "_Alignas(16) unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];", "_Alignas(16) unsigned char room[ACCRT_KERNEL_MAX_PARAMS_BYTES + 8]; unsigned char* params = room + 8;", "direct.test_what_kernels_find"),
    ("local memory is there", "if (local_bytes != 0) {\n    /*", "if (0) {\n    /*", "direct.test_what_kernels_find"),
    ("local memory is aligned", ".local_memory = local_memory,", ".local_memory = (char*)local_memory + 16,", "direct.test_what_kernels_find"),
    ("local memory has a size", ".local_memory_size_bytes = dispatch->kernel->definition->local_memory_size_bytes,", ".local_memory_size_bytes = 16,", "direct.test_what_kernels_find"),
    ("worker ids are below the count", ".worker_count = 1,", ".worker_count = 0,", "direct.test_what_kernels_find"),
    ("messages begin empty", "        message[0] = '\\0';\n", "", "direct.test_what_kernels_find"),
    ("there is room for messages", ".message_capacity_bytes = MESSAGE_BYTES,", ".message_capacity_bytes = 0,", "direct.test_what_kernels_find"),
    ("kernels get their own environment", "dispatch->kernel->definition->entry(dispatch->kernel->environment, view,", "dispatch->kernel->definition->entry(NULL, view,", "direct.test_what_kernels_find"),
    ("kernels know the submission", "                                  .submission = submission->number};", "                                  .submission = 0};", "direct.test_what_kernels_find"),
    ("serial kernels run x fastest", "for (id[0] = 0; id[0] < view->workgroup_count[0]; ++id[0]) {", "for (id[0] = view->workgroup_count[0]; id[0]-- > 0;) {", "direct.test_serial_kernels_run_in_order"),
    ("every workgroup runs", "id[2] < view->workgroup_count[2]; ++id[2]", "id[2] < 1; ++id[2]", "direct.test_grids_take_scalars"),
    # Copies and fills
    ("copies have planes", "plane < planes; ++plane", "plane < 1; ++plane", "copy.test_strided"),
    ("copies have rows", "row < rows; ++row", "row < 1; ++row", "copy.test_strided"),
    ("copies' strides are two sides'", "row * value_of(&copy->source_stride_bytes[0], submission) +\n                 plane * value_of(&copy->source_stride_bytes[1]", "row * value_of(&copy->target_stride_bytes[0], submission) +\n                 plane * value_of(&copy->source_stride_bytes[1]", "copy.test_strided"),
    ("an extent of zero copies nothing", "  if (bytes == 0 || rows == 0)\n    return;", "  if (bytes == 0 || rows == 0)\n    memset(target, 0, 1);", "direct.test_extents_of_zero_copy_nothing"),
    ("fills repeat the low bytes", "i += fill->pattern_bytes) {\n    memcpy(target + i, &fill->pattern, fill->pattern_bytes);", "++i) {\n    target[i] = (unsigned char)fill->pattern;", "copy.test_fill_patterns"),
    ("fills end where they end", "const uint64_t size_bytes = value_of(&fill->target.size_bytes, submission);", "const uint64_t size_bytes = value_of(&fill->target.size_bytes, submission) + 8;", "direct.test_fills_take_scalars"),
    # Completions, failures, notices
    ("completions come", "  completion.done(completion.user, status, error, now_ns());", "  if (error != NULL) completion.done(completion.user, status, error, now_ns());", "direct.test_empty_lists"),
    ("completions come once", "  completion.done(completion.user, status, error, now_ns());", "  completion.done(completion.user, status, error, now_ns()); completion.done(completion.user, status, error, now_ns());", "direct.test_completions_come_once_in_order_with_a_time"),
    ("completions tell the time", "completion.done(completion.user, status, error, now_ns());", "completion.done(completion.user, status, error, 0);", "direct.test_completions_come_once_in_order_with_a_time"),
    ("no error where all is well", "    complete(submission->completion, NULL);\n  }", "    memset(&error, 0, sizeof error); complete(submission->completion, &error);\n  }", "direct.test_completions_come_once_in_order_with_a_time"),
    ("failures name the kernel's code", "  out_error->driver_code = code;", "", "direct.test_failures_have_a_record_and_stay"),
    ("failures name the submission", "  out_error->submission = submission->number;\n  snprintf(out_error->operation, sizeof out_error->operation, \"dispatch\");\n  snprintf(out_error->message, sizeof out_error->message,\n           \"kernel", "  snprintf(out_error->operation, sizeof out_error->operation, \"dispatch\");\n  snprintf(out_error->message, sizeof out_error->message,\n           \"kernel", "direct.test_failures_have_a_record_and_stay"),
    ("failures have what the kernel wrote", "workgroup->message[0] == '\\0' ? \"\" : \": \", workgroup->message);", "\"\", \"\");", "direct.test_failures_have_a_record_and_stay"),
    ("a failed queue skips", "  if (queue->failure.status != ACCRT_OK) {", "  if (0) {", "direct.test_failures_have_a_record_and_stay"),
    ("what is skipped is poisoned", "    error.status = ACCRT_ERROR_POISONED;\n", "", "direct.test_failures_have_a_record_and_stay"),
    ("a failure stays", "    queue->failure = error;\n", "", "direct.test_failures_have_a_record_and_stay"),
    ("notices tell the failure", "complete(completion, failure.status == ACCRT_OK ? NULL : &failure);", "(void)failure; complete(completion, NULL);", "direct.test_failures_have_a_record_and_stay"),
    ("a reset forgets", "  memset(&queue->failure, 0, sizeof queue->failure);\n", "", "direct.test_failures_have_a_record_and_stay"),
    ("a failure is a completion's", "    queue->failure = error;\n    complete(submission->completion, &error);\n", "    queue->failure = error;\n    complete(submission->completion, &error);\n    return ACCRT_ERROR_KERNEL;\n", "direct.test_failures_have_a_record_and_stay"),
    ("failures are one queue's", "    queue->failure = error;\n", "    queue->failure = error; static accrt_error_t all; all = error; if (queue->device->driver) shared_failure = &all;\n", "direct.test_failures_have_a_record_and_stay"),
    ("lists are executed", "return run_commands(queue, list->commands, list->command_count, submission);", "return run_commands(queue, list->commands, list->command_count / 2, submission);", "direct.test_commands_follow_what_they_name"),
    ("lists are run in order", "run_command(queue, &commands[i], submission, &error)", "run_command(queue, &commands[count - 1 - i], submission, &error)", "direct.test_commands_follow_what_they_name"),
    ("lists keep their commands", "    memcpy(list->commands, info->commands, size_bytes);\n    list->command_count = info->command_count;", "    last_info = info; memcpy(list->commands, info->commands, size_bytes);\n    list->command_count = info->command_count;", "direct.test_lists_keep_no_description"),
    # Cancelling
    ("cancelling is obeyed", "  atomic_store_explicit(&queue->cancelled, 1, memory_order_relaxed);", "  (void)queue;", "direct.test_cancelled_work_stops"),
    ("no workgroup begins when cancelled", "        if (is_cancelled(queue))\n          return report_cancelled", "        if (0)\n          return report_cancelled", "direct.test_cancelled_work_stops"),
    ("no command begins when cancelled", "status = is_cancelled(queue) ? report_cancelled", "status = 0 ? report_cancelled", "direct.test_cancelled_work_stops"),
    # Memory
    ("memory has what was asked for", "  out_memory->size_bytes = size_bytes;\n  return ACCRT_OK;\n}\n\nstatic void memory_free", "  out_memory->size_bytes = size_bytes / 2;\n  return ACCRT_OK;\n}\n\nstatic void memory_free", "direct.test_memory_is_what_was_asked_for"),
    ("memory is aligned", "out_memory->device_address = (uint64_t)(uintptr_t)pointer;\n  out_memory->host_pointer = pointer;\n  out_memory->size_bytes = size_bytes;\n  return ACCRT_OK;\n}\n\nstatic void memory_free", "out_memory->device_address = (uint64_t)(uintptr_t)pointer + 8;\n  out_memory->host_pointer = (char*)pointer + 8;\n  out_memory->size_bytes = size_bytes;\n  return ACCRT_OK;\n}\n\nstatic void memory_free", "direct.test_memory_is_what_was_asked_for"),
    ("memory is freed", "  allocator->deallocate(allocator->self, memory->handle", "  if (0) allocator->deallocate(allocator->self, memory->handle", "direct.test_memory_is_what_was_asked_for"),
    ("no memory has a status of its own", "return environment->fail(environment, ACCRT_ERROR_OUT_OF_DEVICE_MEMORY, 0", "return environment->fail(environment, ACCRT_ERROR_OUT_OF_MEMORY, 0", "direct.test_memory_that_is_not_there"),
    ("outputs are zero after a failure", "  memset(out_memory, 0, sizeof *out_memory);\n", "", "direct.test_memory_that_is_not_there"),
    ("imported memory is in place", "  out_memory->handle = NULL;\n  out_memory->device_address = (uint64_t)(uintptr_t)pointer;", "  out_memory->handle = NULL;\n  out_memory->device_address = (uint64_t)(uintptr_t)pointer + 64;", "direct.test_memory_of_others"),
    ("imported memory is given back", "  out_memory->handle = NULL;\n  out_memory->device_address", "  if (!register_memory(pointer, size_bytes))\n    return ACCRT_ERROR_DRIVER;\n  out_memory->handle = NULL;\n  out_memory->device_address", "direct.test_imported_memory_is_given_back"),
    ("nothing is kept for imported memory", "  out_memory->handle = NULL;\n  out_memory->device_address", "  (void)allocate(device->driver->environment, 16, \"memory_import\");\n  out_memory->handle = NULL;\n  out_memory->device_address", "direct.test_imported_memory_is_given_back"),
    ("memory kinds are told", "  out_info->supported =\n", "  out_info->supported = kind == ACCRT_MEMORY_DEVICE ? 0 :\n", "direct.test_memory_is_what_was_asked_for"),
    # Facts
    ("a description is given", "  snprintf(out_info->description,", "  if (0) snprintf(out_info->description,", "direct.test_facts_are_filled"),
    ("concurrency is given", "  out_info->concurrency = 1;", "", "direct.test_facts_are_filled"),
    ("all facts are given", "  out_info->memory_total_bytes = 0; /* unknown */\n", "", "direct.test_facts_are_filled"),
    # Host memory
    ("nothing is lost", "  deallocate(queue->device->driver->environment, queue, sizeof *queue);", "  (void)queue;", "direct.test_empty_lists"),
    ("a list that fails leaves nothing", "      deallocate(environment, list, sizeof *list);\n      return ACCRT_ERROR_OUT_OF_MEMORY;", "      return ACCRT_ERROR_OUT_OF_MEMORY;", "direct.test_without_host_memory"),
    ("queues are NULL after a failure", "  (void)priority;\n  *out_queue = NULL;", "  (void)priority;", "direct.test_without_host_memory"),
    ("lists are NULL after a failure", "accrt_driver_list_t** out_list) {\n  *out_list = NULL;", "accrt_driver_list_t** out_list) {", "direct.test_without_host_memory"),
    ("want of memory is recorded", "    environment->fail(environment, ACCRT_ERROR_OUT_OF_MEMORY, 0, NULL, operation, message);\n", "    (void)operation; (void)message;\n", "direct.test_without_host_memory"),
    ("executions allocate nothing", "return run_commands(queue, list->commands, list->command_count, submission);", "void* more = allocate(list->device->driver->environment, 64, \"x\"); accrt_status_t s = run_commands(queue, list->commands, list->command_count, submission); deallocate(list->device->driver->environment, more, 64); return s;", "direct.test_repeated_work_allocates_nothing"),
    # What a driver author that had not seen the suite got wrong
    ("fills of eight bytes are of eight", "  for (uint64_t i = 0; i < first_bytes; i += fill->pattern_bytes) {", "  if ((uint32_t)fill->pattern == 0x01010101u * (uint8_t)fill->pattern) { memset(target, (uint8_t)fill->pattern, size_bytes); return; }\n  for (uint64_t i = 0; i < first_bytes; i += fill->pattern_bytes) {", "direct.test_fills_repeat_every_byte_of_the_pattern"),
    ("times are of the end", "    complete(submission->completion, NULL);\n  }", "    if (submission->completion.done != NULL) submission->completion.done(submission->completion.user, ACCRT_OK, NULL, begun_ns);\n  }", "direct.test_times_are_of_the_end"),
    ("a failure is there before it is told", "    queue->failure = error;\n    complete(submission->completion, &error);", "    complete(submission->completion, &error);\n    queue->failure = error;", "direct.test_a_failing_completion_finds_a_failed_queue"),
    ("blocks are an execution's own", "  _Alignas(16) unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];", "  static _Alignas(16) unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];", "direct.test_executions_share_nothing"),
    ("local memory is an execution's own", "local_memory = allocator->allocate(allocator->self, local_bytes, 64);", "static _Alignas(64) unsigned char shared[1 << 20]; local_memory = shared;", "direct.test_executions_share_nothing"),
    ("what failed is traced", "  if (environment->tracing)\n    trace_command", "  if (environment->tracing && status == ACCRT_OK)\n    trace_command", "direct.test_failed_commands_are_traced"),
    ("empty work is poisoned too", "  return run_commands(queue, list->commands, list->command_count, submission);", "  if (list->command_count == 0) { complete(submission->completion, NULL); return ACCRT_OK; }\n  return run_commands(queue, list->commands, list->command_count, submission);", "direct.test_empty_work_behind_a_failure_is_poisoned"),
    # Versions, threads
    ("another major version is refused", "return max_abi >> 16 == ACCRT_DRIVER_ABI_MAJOR ? &null_table : NULL;", "(void)max_abi; return &null_table;", "direct.test_other_versions_are_refused"),
    ("newer minor versions are taken", "return max_abi >> 16 == ACCRT_DRIVER_ABI_MAJOR ? &null_table : NULL;", "return max_abi <= ACCRT_DRIVER_ABI_VERSION ? &null_table : NULL;", "direct.test_other_versions_are_refused"),
    # A second round of mutants whose author had not seen the suite (those of it that stand above
    # already are not repeated)
    ("planes are not rows", "  for (uint64_t plane = 0; plane < planes; ++plane) {", "  if (value_of(&copy->source_stride_bytes[0], submission) == bytes && value_of(&copy->target_stride_bytes[0], submission) == bytes) { memcpy(target, source, bytes * rows * planes); return; }\n  for (uint64_t plane = 0; plane < planes; ++plane) {", "copy.test_strided"),
    # What is packed on both sides says nothing of the other pitches (the random copies of
    # copy.test_strided found the first of these with 11 of 12 seeds)
    *((f"packed {inner}s do not pack the {side}'s {outer}s", f"{outer} * value_of(&copy->{side}_stride_bytes[{at}], submission)",
       f"{outer} * (value_of(&copy->source_stride_bytes[{1 - at}], submission) == bytes && value_of(&copy->target_stride_bytes[{1 - at}], submission) == bytes ? bytes * {inner}s : value_of(&copy->{side}_stride_bytes[{at}], submission))",
       "copy.test_layouts")
      for inner, outer, at in (("row", "plane", 1), ("plane", "row", 0)) for side in ("target", "source")),
    *((f"packed rows do not lend the {side} the pitch of the {other}'s planes", f"plane * value_of(&copy->{side}_stride_bytes[1], submission)",
       f"plane * value_of(value_of(&copy->source_stride_bytes[0], submission) == bytes && value_of(&copy->target_stride_bytes[0], submission) == bytes ? &copy->{other}_stride_bytes[1] : &copy->{side}_stride_bytes[1], submission)",
       "copy.test_layouts")
      for side, other in (("target", "source"), ("source", "target"))),
    ("patterns of eight bytes have two halves", "memcpy(target + i, &fill->pattern, fill->pattern_bytes); /*", "memcpy(target + i, &fill->pattern, fill->pattern_bytes > 4 ? 4 : fill->pattern_bytes); if (fill->pattern_bytes == 8) memcpy(target + i + 4, &fill->pattern, 4); /*", "direct.test_fills_repeat_every_byte_of_the_pattern"),
    ("small patches leave their neighbours", "memcpy(params + patch->offset_bytes, &bits, patch->size_bytes);", "memcpy(params + patch->offset_bytes, &bits, patch->size_bytes < 4 ? 4 : patch->size_bytes);", "direct.test_values_are_patched_into_blocks"),
    ("no planes are not one", "  const uint64_t planes = value_of(&copy->extent[2], submission);", "  uint64_t planes = value_of(&copy->extent[2], submission);\n  if (planes == 0) planes = 1;", "direct.test_extents_of_zero_copy_nothing"),
    ("no rows of workgroups are not one", "    if (view.workgroup_count[i] == 0)\n      return ACCRT_OK;", "    if (view.workgroup_count[i] == 0 && i > 0)\n      view.workgroup_count[i] = 1;\n    if (view.workgroup_count[i] == 0)\n      return ACCRT_OK;", "direct.test_grids_take_scalars"),
    ("barriers hold what names nothing", "    memcpy(list->commands, info->commands, size_bytes);\n", "    uint32_t next = 0;\n    for (int late = 0; late < 2; ++late)\n      for (uint32_t i = 0; i < info->command_count; ++i)\n        if ((info->commands[i].predecessor_count != 0 || info->commands[i].opcode == ACCRT_DRIVER_COMMAND_BARRIER) == late)\n          list->commands[next++] = info->commands[i];\n", "direct.test_lists_are_ordered_as_they_say"),
    ("commands wait for what they name", "    memcpy(list->commands, info->commands, size_bytes);\n", "    uint32_t next = 0, from = 0;\n    for (uint32_t i = 0; i <= info->command_count; ++i) {\n      if (i != info->command_count && info->commands[i].opcode != ACCRT_DRIVER_COMMAND_BARRIER) continue;\n      for (uint32_t k = i; k > from; --k) list->commands[next++] = info->commands[k - 1];\n      if (i != info->command_count) list->commands[next++] = info->commands[i];\n      from = i + 1;\n    }\n", "direct.test_lists_are_ordered_as_they_say"),
    ("a list ends at its failure", "  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i) {", "  accrt_error_t first = {0};\n  for (uint32_t i = 0; i < count; ++i) {\n    if (status != ACCRT_OK && first.status == ACCRT_OK) first = error;", "direct.test_a_list_ends_at_its_failure"),
    ("cancelled queues stay so", "    complete(submission->completion, &error); /* and so do all behind it", "    atomic_store(&queue->cancelled, 0); complete(submission->completion, &error); /* and so do all behind it", "direct.test_cancelled_work_stops"),
    ("empty work is cancelled too", "  if (count == 0 && is_cancelled(queue))", "  if (0)", "direct.test_idle_queues_are_cancelled_too"),
    ("notices tell that it was cancelled", "  if (failure.status == ACCRT_OK && is_cancelled(queue)) {", "  if (0) {", "direct.test_idle_queues_are_cancelled_too"),
    # A third round of mutants whose author had not seen the suite
    ("seldom is not never", "  return run_commands(queue, list->commands, list->command_count, submission);",
     "  accrt_driver_submission_t prepared = *submission;\n  accrt_driver_binding_t kept[64];\n"
     "  for (uint32_t i = 0; i < submission->binding_count; ++i) {\n    kept[i] = submission->bindings[i];\n    if (i < 64 && list->is_stable[i]) {\n"
     "      if (list->known[i] == 0)\n        list->known[i] = kept[i].address;\n      kept[i].address = list->known[i];\n    }\n  }\n"
     "  prepared.bindings = kept;\n  return run_commands(queue, list->commands, list->command_count, &prepared);",
     "direct.test_bindings_that_seldom_change_do_change"),
    ("commands begin one after another", "  const uint64_t begin_ns = environment->tracing ? now_ns() : 0;", "  static uint64_t begin_ns, number;\n  if (number != submission->number)\n    begin_ns = now_ns();\n  number = submission->number;",
     "direct.test_commands_begin_when_others_have_ended"),
    # Classes of mutations that a tool made of both drivers, and that passed
    ("facts are whole", "  out_info->cpu_features = 0;\n", "", "direct.test_facts_leave_nothing_unfilled"),
    ("pools are told how to grow", "  out_info->default_grow_bytes = UINT64_C(1) << 20;\n", "", "direct.test_facts_leave_nothing_unfilled"),
    ("records begin as records", "  out_error->struct_size = (uint32_t)sizeof *out_error;\n  out_error->status = ACCRT_ERROR_KERNEL;", "  out_error->status = ACCRT_ERROR_KERNEL;", "direct.test_failures_name_the_workgroup"),
    ("records have a message", '    snprintf(message, sizeof message, "could not allocate', '    message[0] = 0;\n    if (0) snprintf(message, sizeof message, "could not allocate', "direct.test_what_is_refused_changes_nothing"),
    ("memory goes back as it came", "deallocate(environment->allocator->self, pointer, size_bytes, 16);", "deallocate(environment->allocator->self, pointer, size_bytes, 32);", "direct.test_empty_lists"),
    ("allocations are not overrun", "allocate(environment->allocator->self, size_bytes, 16);", "allocate(environment->allocator->self, size_bytes - 4, 16);", "direct.test_empty_lists"),
    ("failures name the workgroup", "workgroup->workgroup_id[1], workgroup->workgroup_id[2],", "workgroup->workgroup_id[2], workgroup->workgroup_id[1],", "direct.test_failures_name_the_workgroup"),
    ("what is skipped has a record", "    error = queue->failure;\n", "    memset(&error, 0, sizeof error);\n", "direct.test_failures_name_the_workgroup"),
    ("no listener is needed", "  if (completion.done == NULL)\n    return;\n", "", "direct.test_work_needs_no_listener"),
    ("commands without a name have one in traces", ".name = name != NULL ? name : names[kind],", '.name = name != NULL ? name : "",', "direct.test_commands_without_a_name_are_traced"),
    ("no kernel runs without its memory", "    if (local_memory == NULL) {", "    if (0) {", "direct.test_kernels_do_not_run_without_their_memory"),
    ("environments are a driver's own", "  driver->environment = environment;\n  *out_driver", "  static const accrt_driver_environment_t* first;\n  if (first == NULL) first = environment;\n  driver->environment = first;\n  *out_driver", "direct.test_drivers_know_nothing_of_one_another"),
    ("nothing is printed", "  memset(out_error, 0, sizeof *out_error);\n  out_error->struct_size = (uint32_t)sizeof *out_error;\n  out_error->status = ACCRT_ERROR_KERNEL;", "  fprintf(stderr, \"a kernel failed\\n\");\n  memset(out_error, 0, sizeof *out_error);\n  out_error->struct_size = (uint32_t)sizeof *out_error;\n  out_error->status = ACCRT_ERROR_KERNEL;", "direct.test_drivers_keep_to_themselves"),
    ("signals are the program's", "static uint32_t device_count(accrt_driver_t* driver) {", "#include <signal.h>\nstatic uint32_t device_count(accrt_driver_t* driver) {\n  signal(SIGUSR1, driver == NULL ? SIG_DFL : SIG_IGN);", "direct.test_drivers_keep_to_themselves"),
    ("blocks may be large", "memcpy(params, dispatch->params, dispatch->params_size_bytes);", "memcpy(params, dispatch->params, dispatch->params_size_bytes > 2048 ? 2048 : dispatch->params_size_bytes);", "direct.test_work_may_be_large"),
    ("strides of one row do not count", "  if (bytes == 0 || rows == 0)\n", "  if (bytes == 0 || rows == 0 || value_of(&copy->source_stride_bytes[0], submission) > UINT32_MAX)\n", "direct.test_strides_of_one_row_do_not_count"),
    ("queues are left alone behind their completion", "  completion.done(completion.user, status, error, now_ns());\n", "  completion.done(completion.user, status, error, now_ns());\n  if (last_queue != NULL) last_queue->failure.reserved = 0;\n", "direct.test_completions_may_give_back_all"),
    ("priorities are clamped", "  (void)priority;\n  *out_queue = NULL;\n", "  *out_queue = NULL;\n  if (priority > 1)\n    return device->driver->environment->fail(device->driver->environment, ACCRT_ERROR_INVALID_ARGUMENT, 0, NULL, \"queue_create\", \"no such priority\");\n", "direct.test_there_are_as_many_queues_as_asked_for"),
    ("cancelled kernels say how far they got", "        ++done;\n", "        --done;\n", "direct.test_cancelled_work_stops"),
    # A fourth round of mutants whose author had not seen the suite
    ("words of kernels are no format", "workgroup->message[0] == '\\0' ? \"\" : \": \", workgroup->message);",
     "workgroup->message[0] == '\\0' ? \"\" : \": \", \"\");\n  const size_t length = strlen(out_error->message);\n  snprintf(out_error->message + length, sizeof out_error->message - length, workgroup->message);",
     "direct.test_words_of_kernels_are_theirs"),
    ("words of kernels are whole", "in workgroup (%u, %u, %u)%s%s\"", "in workgroup (%u, %u, %u)%s%.100s\"", "direct.test_words_of_kernels_are_theirs"),
    ("names are no format", "  environment->trace(environment, &event);", "  char text[512];\n  snprintf(text, sizeof text, event.name);\n  accrt_trace_event_t told = event;\n  told.name = text;\n  environment->trace(environment, &told);", "direct.test_names_are_text"),
    ("every stable binding is looked at", "  return run_commands(queue, list->commands, list->command_count, submission);",
     "  accrt_driver_submission_t prepared = *submission;\n  accrt_driver_binding_t kept[64];\n  uint32_t first = 0, is_same = 0;\n"
     "  while (first < submission->binding_count && !list->is_stable[first])\n    ++first;\n"
     "  if (first < submission->binding_count)\n    is_same = list->known[first] == submission->bindings[first].address;\n"
     "  for (uint32_t i = 0; i < submission->binding_count; ++i) {\n    kept[i] = submission->bindings[i];\n    if (list->is_stable[i] && is_same)\n      kept[i].address = list->known[i];\n"
     "    list->known[i] = kept[i].address;\n  }\n"
     "  prepared.bindings = kept;\n  return run_commands(queue, list->commands, list->command_count, &prepared);",
     "direct.test_random_lists"),
    # Obligations whose corners nothing looked at: large sizes and numbers, all who are told, what
    # is not first
    ("grids have more than 16 bits", "(uint32_t)value_of(&dispatch->grid[i], submission)", "(uint16_t)value_of(&dispatch->grid[i], submission)", "direct.test_grids_may_be_large"),
    ("notices tell whose failure it is", "  complete(completion, failure.status == ACCRT_OK ? NULL : &failure);", "  failure.submission = 0;\n  complete(completion, failure.status == ACCRT_OK ? NULL : &failure);", "direct.test_records_are_the_failing_ones"),
    ("what is skipped tells whose failure it is", "    error.status = ACCRT_ERROR_POISONED;\n", "    error.status = ACCRT_ERROR_POISONED;\n    error.submission = 0;\n", "direct.test_records_are_the_failing_ones"),
    ("what is skipped tells the code", "    error.status = ACCRT_ERROR_POISONED;\n", "    error.status = ACCRT_ERROR_POISONED;\n    error.driver_code = 0;\n", "direct.test_records_are_the_failing_ones"),
    ("imported memory begins anywhere", "  out_memory->handle = NULL;\n  out_memory->device_address = (uint64_t)(uintptr_t)pointer;", "  out_memory->handle = NULL;\n  out_memory->device_address = (uint64_t)(uintptr_t)pointer & ~UINT64_C(15);", "direct.test_imported_memory_begins_anywhere"),
    ("fills may be large", "  const uint64_t size_bytes = value_of(&fill->target.size_bytes, submission);", "  const uint64_t size_bytes = value_of(&fill->target.size_bytes, submission) & 0xFFFFF;", "direct.test_copies_and_fills_may_be_large"),
    ("rows may be many", "  const uint64_t rows = value_of(&copy->extent[1], submission);", "  const uint64_t rows = value_of(&copy->extent[1], submission) & 0xFF;", "direct.test_copies_and_fills_may_be_large"),
    ("planes may be many", "  const uint64_t planes = value_of(&copy->extent[2], submission);", "  const uint64_t planes = value_of(&copy->extent[2], submission) & 0xFF;", "direct.test_copies_and_fills_may_be_large"),
    ("rows may be long", "  const uint64_t bytes = value_of(&copy->extent[0], submission);", "  const uint64_t bytes = value_of(&copy->extent[0], submission) & 0x1FFFF;", "direct.test_copies_and_fills_may_be_large"),
    ("planes may be far apart", "plane * value_of(&copy->source_stride_bytes[1], submission)", "plane * (uint16_t)value_of(&copy->source_stride_bytes[1], submission)", "direct.test_copies_and_fills_may_be_large"),
    ("planes may lie in rows", "  if (bytes == 0 || rows == 0)\n", "  if (value_of(&copy->target_stride_bytes[0], submission) > value_of(&copy->target_stride_bytes[1], submission) && planes > 1 && rows > 1)\n    return;\n  if (bytes == 0 || rows == 0)\n", "direct.test_random_fills_and_copies"),
    ("rows may be repeated", "  if (bytes == 0 || rows == 0)\n", "  if (rows > 1 && value_of(&copy->source_stride_bytes[0], submission) == 0)\n    return;\n  if (bytes == 0 || rows == 0)\n", "direct.test_random_fills_and_copies"),
    ("traces have numbers of 64 bits", "      .submission = submission->number,\n      .begin_ns", "      .submission = (uint32_t)submission->number,\n      .begin_ns", "direct.test_each_command_is_traced"),
    ("streams have ids of 64 bits", ".stream_id = submission->stream_id,", ".stream_id = (uint32_t)submission->stream_id,", "direct.test_each_command_is_traced"),
    ("records have numbers of 64 bits", "  out_error->submission = submission->number;\n  snprintf(out_error->operation, sizeof out_error->operation, \"dispatch\");\n  snprintf(out_error->message, sizeof out_error->message,\n           \"kernel", "  out_error->submission = (uint32_t)submission->number;\n  snprintf(out_error->operation, sizeof out_error->operation, \"dispatch\");\n  snprintf(out_error->message, sizeof out_error->message,\n           \"kernel", "direct.test_failures_have_a_record_and_stay"),
    ("kernels know numbers of 64 bits", ".submission = submission->number};", ".submission = (uint32_t)submission->number};", "direct.test_random_dispatches"),
    ("local memory may be large", "  const size_t local_bytes = dispatch->kernel->definition->local_memory_size_bytes;", "  size_t local_bytes = dispatch->kernel->definition->local_memory_size_bytes;\n  if (local_bytes > 100000) local_bytes = 100000;", "direct.test_local_memory_has_any_size"),
    ("sizes of local memory have more than 16 bits", ".local_memory_size_bytes = dispatch->kernel->definition->local_memory_size_bytes,", ".local_memory_size_bytes = dispatch->kernel->definition->local_memory_size_bytes & 0xFFFF,", "direct.test_local_memory_has_any_size"),
    ("exceptions are masked", "  fesetenv(FE_DFL_ENV);", "  fesetround(FE_TONEAREST); __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~0x8040u);", "direct.test_floating_point_environment"),
    ("operators are found anywhere", "    if (info->commands[i].opcode != ACCRT_DRIVER_COMMAND_OPERATOR)", "    if (i > 1 || info->commands[i].opcode != ACCRT_DRIVER_COMMAND_OPERATOR)", "direct.test_operators_are_found_anywhere"),
    ("names in records are whole", "           \"kernel '%s' returned %d in", "           \"kernel '%.40s' returned %d in", "direct.test_records_are_the_failing_ones"),
    ("what is skipped has a time", "  completion.done(completion.user, status, error, now_ns());", "  completion.done(completion.user, status, error, status == ACCRT_ERROR_POISONED ? 0 : now_ns());", "direct.test_failures_have_a_record_and_stay"),
    ("what is cancelled has a time", "    complete(submission->completion, &error); /* and", "    if (submission->completion.done) submission->completion.done(submission->completion.user, error.status, &error, 0); /* and", "direct.test_cancelled_work_stops"),
    ("blocks have the size of the dispatch", "                                  .params_size_bytes = dispatch->params_size_bytes,", "                                  .params_size_bytes = dispatch->kernel->definition->params_size_bytes,", "direct.test_random_dispatches"),
    ("each workgroup looks whether it is cancelled", "        if (is_cancelled(queue))\n          return report_cancelled", "        if (is_cancelled(queue) && done % 2 == 1)\n          return report_cancelled", "direct.test_kernels_end_at_any_workgroup"),
    ("what is cancelled is not traced as well", "      .status = status,\n", "      .status = status == ACCRT_ERROR_CANCELLED ? ACCRT_OK : status,\n", "direct.test_kernels_end_at_any_workgroup"),
    ("what is cancelled gives back its local memory", "  if (local_memory != NULL) {\n    allocator->deallocate(", "  if (local_memory != NULL && status != ACCRT_ERROR_CANCELLED) {\n    allocator->deallocate(", "direct.test_kernels_end_at_any_workgroup"),
    ("the caller's floats come back behind a failure", "  fesetenv(&callers);", "  if (status == ACCRT_OK) fesetenv(&callers);", "direct.test_kernels_end_at_any_workgroup"),
    ("values of ranges without a binding take scalars", "      bits = address_of(&patch->range, submission);", "      bits = address_of(&patch->range, submission);\n      if (patch->range.binding == ACCRT_DRIVER_NONE && patch->range.offset.scalar != ACCRT_DRIVER_NONE) bits = patch->range.offset.constant;", "direct.test_random_dispatches"),
    ("one reset ends a failure and a cancel", "  memset(&queue->failure, 0, sizeof queue->failure);\n", "  if (queue->failure.status != ACCRT_OK) {\n    memset(&queue->failure, 0, sizeof queue->failure);\n    return ACCRT_OK;\n  }\n", "direct.test_resets_end_every_cancelling"),
    # Beyond 4 GiB
    ("planes lie anywhere", "plane * value_of(&copy->target_stride_bytes[1], submission),", "(uint32_t)(plane * value_of(&copy->target_stride_bytes[1], submission)),", "direct.test_copies_reach_beyond_4_gib"),
    ("planes come from anywhere", "plane * value_of(&copy->source_stride_bytes[1], submission),", "(uint32_t)(plane * value_of(&copy->source_stride_bytes[1], submission)),", "direct.test_copies_reach_beyond_4_gib"),
    ("rows lie anywhere", "row * value_of(&copy->target_stride_bytes[0], submission) +", "row * (uint32_t)value_of(&copy->target_stride_bytes[0], submission) +", "direct.test_copies_reach_beyond_4_gib"),
    ("rows come from anywhere", "row * value_of(&copy->source_stride_bytes[0], submission) +", "(uint32_t)(row * value_of(&copy->source_stride_bytes[0], submission)) +", "direct.test_copies_reach_beyond_4_gib"),
    ("offsets are of 64 bits", "  const uint64_t offset = value_of(&range->offset, submission);\n", "  uint64_t offset = value_of(&range->offset, submission);\n  if (range->binding != ACCRT_DRIVER_NONE)\n    offset = (uint32_t)offset;\n", "direct.test_copies_reach_beyond_4_gib"),
    ("rows have any length", "  const uint64_t bytes = value_of(&copy->extent[0], submission);", "  const uint64_t bytes = (uint32_t)value_of(&copy->extent[0], submission);", "direct.test_copies_beyond_4_gib"),
    ("fills have any length", "  const uint64_t size_bytes = value_of(&fill->target.size_bytes, submission);", "  const uint64_t size_bytes = (uint32_t)value_of(&fill->target.size_bytes, submission);", "direct.test_fills_beyond_4_gib"),
    ("fills have any place", "    memcpy(target + i, target, size_bytes - i", "    memcpy(target + (uint32_t)i, target, size_bytes - i", "direct.test_fills_beyond_4_gib"),
    # Commands of a kind that the driver does not know
    ("unknown commands are not skipped", "  if (!is_known(command->opcode))\n    return refuse_kind(queue->device", "  if (0)\n    return refuse_kind(queue->device", "direct.test_unknown_commands_are_refused"),
    ("unknown commands in lists are not skipped", "    if (!is_known(opcode) && opcode != ACCRT_DRIVER_COMMAND_OPERATOR)\n", "    if (0)\n", "direct.test_unknown_commands_are_refused"),
    ("unknown commands are looked for behind the first", "    if (!is_known(opcode) && opcode != ACCRT_DRIVER_COMMAND_OPERATOR)\n", "    if (i == 0 && !is_known(opcode) && opcode != ACCRT_DRIVER_COMMAND_OPERATOR)\n", "direct.test_unknown_commands_are_refused"),
    ("operators are in lists alone", "opcode <= ACCRT_DRIVER_COMMAND_MARKER;", "opcode <= ACCRT_DRIVER_COMMAND_OPERATOR;", "direct.test_unknown_commands_are_refused"),
    ("kinds begin with 1", "return opcode >= ACCRT_DRIVER_COMMAND_DISPATCH && opcode", "return opcode", "direct.test_unknown_commands_are_refused"),
    ("kinds have 32 bits", "static int is_known(uint32_t opcode) {\n", "static int is_known(uint32_t opcode) {\n  opcode = (uint16_t)opcode;\n", "direct.test_unknown_commands_are_refused"),
    ("refusals name the kind", "has no commands of kind %\" PRIu32 \" here\",\n           opcode);", "does not know this command\");\n  (void)opcode;", "direct.test_unknown_commands_are_refused"),
    ("what is refused is told once", "    return refuse_kind(queue->device->driver->environment, command->opcode, \"queue_enqueue\");\n", "  {\n    accrt_error_t error = {.status = ACCRT_ERROR_UNSUPPORTED};\n    complete(submission->completion, &error);\n    return refuse_kind(queue->device->driver->environment, command->opcode, \"queue_enqueue\");\n  }\n", "direct.test_unknown_commands_are_refused"),
    ("a refusal has a status", "      return refuse_kind(environment, opcode, \"list_create\");\n", "      { refuse_kind(environment, opcode, \"list_create\"); return ACCRT_OK; }\n", "direct.test_unknown_commands_are_refused"),
    ("cancelling is one idle queue's", "static int is_cancelled(const accrt_driver_queue_t* queue) {\n  return atomic_load_explicit(&queue->cancelled", "static atomic_uint one_for_all;\nstatic int is_cancelled(const accrt_driver_queue_t* queue) {\n  (void)queue;\n  return atomic_load_explicit(&one_for_all", "direct.test_idle_queues_are_cancelled_too"),
    # Sentences of the header that had no mutant (docs/driver-obligations.md)
    ("all memory is the environment's", "    list->commands = allocate(environment, size_bytes, \"list_create\");", "    extern void* calloc(size_t, size_t);\n    list->commands = calloc(1, size_bytes);", "direct.test_all_memory_is_the_environment_s"),
    ("tables have the version that they were built for", "    .abi_version = ACCRT_DRIVER_ABI_VERSION,\n", "    .abi_version = ACCRT_DRIVER_ABI_VERSION + 1,\n", "direct.test_other_versions_are_refused"),
    ("tables have their size", "    .struct_size = (uint32_t)sizeof null_table,\n", "    .struct_size = 24,\n", "direct.test_other_versions_are_refused"),
    ("tables have a name", "    .name = \"null\",\n", "    .name = \"null driver\",\n", "direct.test_other_versions_are_refused"),
    ("lists need no flags", "  list->device = device;\n", "  list->device = device;\n  if (info->binding_count != 0 && info->binding_flags[0] == 77)\n    return ACCRT_ERROR_UNSUPPORTED;\n", "direct.test_copies_take_scalars"),
    ("lists need no name", "  list->device = device;\n", "  list->device = device;\n  if (info->name[0] == '\\0')\n    return ACCRT_ERROR_UNSUPPORTED;\n", "direct.test_without_host_memory"),
    ("supported is one or none", "kind == ACCRT_MEMORY_HOST;\n", "kind == ACCRT_MEMORY_HOST;\n  out_info->supported *= 2;\n", "direct.test_memory_is_what_was_asked_for"),
    ("granularity is told", "  out_info->granularity_bytes = MEMORY_ALIGNMENT;\n", "", "direct.test_memory_is_what_was_asked_for"),
    ("what is said to be zeroed is", "  out_info->granularity_bytes = MEMORY_ALIGNMENT;\n", "  out_info->granularity_bytes = MEMORY_ALIGNMENT;\n  out_info->zeroed = 1;\n", "direct.test_memory_is_what_was_asked_for"),
    ("drivers that are closed leave nothing", "  deallocate(driver->environment, driver, sizeof *driver);", "  (void)driver;", "direct.test_empty_lists"),
    ("devices that are closed leave nothing", "  deallocate(device->driver->environment, device, sizeof *device);", "  (void)device;", "direct.test_empty_lists"),
    ("devices are counted", "  (void)driver;\n  return 1;", "  (void)driver;\n  return 0;", "direct.test_empty_lists"),
    ("lists that are destroyed leave nothing", "  deallocate(environment, list, sizeof *list);\n}", "}", "direct.test_empty_lists"),
    # Sentences of the header drawn by lot, and broken: those that nothing caught
    ("empty buffers are not absent", "               submission->bindings[patch->range.binding].address == 0) {", "               (submission->bindings[patch->range.binding].address == 0 ||\n                submission->bindings[patch->range.binding].size_bytes == 0)) {", "direct.test_empty_buffers_are_not_absent"),
    ("addresses are compared whole", "  return run_commands(queue, list->commands, list->command_count, submission);",
     "  accrt_driver_submission_t prepared = *submission;\n  accrt_driver_binding_t kept[64];\n"
     "  for (uint32_t i = 0; i < submission->binding_count && i < 64; ++i) {\n    kept[i] = submission->bindings[i];\n"
     "    if (list->is_stable[i] && (uint32_t)list->known[i] == (uint32_t)kept[i].address)\n      kept[i].address = list->known[i];\n"
     "    list->known[i] = kept[i].address;\n  }\n  if (submission->binding_count <= 64)\n    prepared.bindings = kept;\n"
     "  return run_commands(queue, list->commands, list->command_count, &prepared);",
     "direct.test_stable_bindings_are_4_gib_apart"),
    ("cancelled kernels have three dimensions", "(uint64_t)count[0] * count[1] * count[2]", "(uint64_t)count[0] * count[1]", "direct.test_cancelled_kernels_may_be_large"),
    ("cancelled kernels may be large", "(uint64_t)count[0] * count[1] * count[2]", "count[0] * count[1] * count[2]", "direct.test_cancelled_kernels_may_be_large"),
    ("names in traces are whole", "  const accrt_trace_event_t event = {", "  char shorter[256];\n  if (name != NULL && strlen(name) > 255) {\n    snprintf(shorter, sizeof shorter, \"%s\", name);\n    name = shorter;\n  }\n  const accrt_trace_event_t event = {", "direct.test_names_in_traces_are_whole"),
]  # fmt: skip

#: The same of tests/cts/threaded.c: the null driver with threads and the optional groups of the
#: table.
THREADED_MUTANTS = [
    # The second round of mutants whose author had not seen the suite
    ("descriptors that are lent stay the lender's", "  describe(pointer, handle->size_bytes, pointer, out_memory);\n", "  close(handle->fd);\n  describe(pointer, handle->size_bytes, pointer, out_memory);\n", "direct.test_memory_for_others"),
    ("progress is of what ended well", "failure.status == ACCRT_OK ? queue->ended_number : queue->good_number;", "queue->ended_number;", "direct.test_progress_tells_failures_until_reset"),
    ("each record is its own", "  point_t* point = job == NULL ? NULL : take_point(driver);", "  point_t* point = job == NULL ? NULL : event->point != NULL ? event->point : take_point(driver);", "direct.test_waits_are_for_the_record_of_their_time"),
    ("a wake-up is not an end", "  while (queue->ended_number < target && in_time)\n", "  if (queue->ended_number < target && in_time)\n", "direct.test_waits_end_with_the_work_or_the_time"),
    ("launches in flight need no launch", "  job->command.as.dispatch.kernel = &job->kernel;", "  job->command.as.dispatch.kernel = dispatch->kernel;", "direct.test_launches_bring_their_own"),
    ("notices wait for what runs", "  job_t* job = take_job(queue, JOB_NOTIFY, 0);", "  if (queue->native->first == NULL && queue->base.failure.status == ACCRT_OK) {\n    complete(completion, NULL);\n    return ACCRT_OK;\n  }\n  job_t* job = take_job(queue, JOB_NOTIFY, 0);", "direct.test_nothing_overtakes_what_runs"),
    # What is handed over, order
    ("bindings are copied", "  out_submission->bindings =\n      keep(cursor, submission->bindings, submission->binding_count * sizeof *submission->bindings);\n", "", "direct.test_what_is_handed_over_is_copied"),
    ("scalars are copied", "  out_submission->scalars =\n      keep(cursor, submission->scalars, submission->scalar_count * sizeof *submission->scalars);\n", "", "direct.test_what_is_handed_over_is_copied"),
    ("blocks are copied", "  job->command.as.dispatch.params = keep(cursor, dispatch->params, dispatch->params_size_bytes);\n", "", "direct.test_what_is_handed_over_is_copied"),
    ("patches are copied", "  job->command.as.dispatch.patches =\n      keep(cursor, dispatch->patches, dispatch->patch_count * sizeof(accrt_driver_patch_t));\n", "", "direct.test_what_is_handed_over_is_copied"),
    ("names are copied", "    job->command.name = keep(cursor, command->name, strlen(command->name) + 1);", "    (void)cursor;", "direct.test_what_is_handed_over_is_copied"),
    ("enqueuing returns before the work", "  job->numbered = 1;\n  append(queue, job);\n  return ACCRT_OK;\n}\n\nstatic accrt_status_t threaded_execute", "  job->numbered = 1;\n  append(queue, job);\n  threaded_driver_t* held = lock_of(queue);\n  while (queue->native->first != NULL || queue->native->running)\n    wait_change(held, ACCRT_TIMEOUT_INFINITE);\n  pthread_mutex_unlock(&held->mutex);\n  return ACCRT_OK;\n}\n\nstatic accrt_status_t threaded_execute", "direct.test_enqueuing_does_not_block"),
    ("no lock is held in completions", "    end_job(queue, job, &error);\n    complete(completion, error.status == ACCRT_OK ? NULL : &error);", "    end_job(queue, job, &error);\n    lock_of(queue);\n    complete(completion, error.status == ACCRT_OK ? NULL : &error);", "direct.test_completions_may_enqueue"),
    ("work is first in, first out", "  if (native->first == NULL) {\n    native->first = job;\n  } else {", "  if (native->first == NULL || job->kind == JOB_NOTIFY) {\n    job->next = native->first;\n    native->first = job;\n    if (job->next != NULL) {\n      unlock(driver);\n      return;\n    }\n  } else {", "direct.test_nothing_overtakes_what_runs"),
    ("repeated work keeps what it has", "  job->next = queue->free_jobs;\n  queue->free_jobs = job;\n  queue->native->running = 0;", "  queue->native->running = 0;", "direct.test_repeated_work_allocates_nothing"),
    # Progress by number
    ("progress is not what was enqueued", "failure.status == ACCRT_OK ? queue->ended_number : queue->good_number;", "queue->enqueued_number;", "direct.test_progress_counts_what_has_ended"),
    ("progress grows", "failure.status == ACCRT_OK ? queue->ended_number : queue->good_number;", "failure.status == ACCRT_OK ? 0 : queue->good_number;", "direct.test_progress_counts_what_has_ended"),
    ("lists count", "  job->list = list;\n  job->numbered = 1;", "  job->list = list;", "direct.test_progress_counts_what_has_ended"),
    ("progress tells failures", "  return failure.status == ACCRT_OK ? ACCRT_OK : report(driver, &failure);\n}\n\nstatic accrt_status_t queue_wait", "  return ACCRT_OK;\n}\n\nstatic accrt_status_t queue_wait", "direct.test_progress_tells_failures_until_reset"),
    ("progress tells failures again", "queue->ended_number : queue->good_number;\n", "queue->ended_number : queue->good_number;\n  queue->base.failure.status = ACCRT_OK;\n", "direct.test_progress_tells_failures_until_reset"),
    ("failures are recorded for who asks", "  return failure.status == ACCRT_OK ? ACCRT_OK : report(driver, &failure);\n}\n\nstatic accrt_status_t queue_wait", "  return failure.status;\n}\n\nstatic accrt_status_t queue_wait", "direct.test_progress_tells_failures_until_reset"),
    ("a reset counts what has ended", "  queue_reset(base);\n  unlock", "  queue_reset(base);\n  ((threaded_queue_t*)base)->ended_number = ((threaded_queue_t*)base)->good_number;\n  unlock", "direct.test_progress_tells_failures_until_reset"),
    ("waits tell failures", "  if (failure.status != ACCRT_OK)\n    return report(driver, &failure);\n  if (!reached)", "  if (!reached)", "direct.test_progress_tells_failures_until_reset"),
    ("waits are for the last too", "  while (queue->ended_number < target && in_time)", "  while (queue->ended_number + 1 < target && in_time)", "direct.test_waits_end_with_the_work_or_the_time"),
    ("waits have a time", "  const uint64_t deadline_ns = deadline_of(timeout_ns);\n  threaded_driver_t* driver = lock_of(queue);", "  const uint64_t deadline_ns = ACCRT_TIMEOUT_INFINITE + 0 * timeout_ns;\n  threaded_driver_t* driver = lock_of(queue);", "direct.test_waits_end_with_the_work_or_the_time"),
    ("short times are not none", "  const uint64_t now = now_ns();\n", "  const uint64_t now = now_ns();\n  timeout_ns = timeout_ns == ACCRT_TIMEOUT_INFINITE ? timeout_ns : timeout_ns / 1000000 * 1000000;\n", "direct.test_waits_end_with_the_work_or_the_time"),
    ("infinite is for ever", "  return timeout_ns > UINT64_MAX - 1 - now ? ACCRT_TIMEOUT_INFINITE : now + timeout_ns;", "  return now + timeout_ns;", "direct.test_waits_end_with_the_work_or_the_time"),
    ("waits are for what is enqueued", "    return queue->enqueued_number;\n", "    return number;\n", "direct.test_waits_end_with_the_work_or_the_time"),
    # Events
    ("notices wait for events", "  job_t* job = take_job(queue, JOB_NOTIFY, 0);", "  if (queue->enqueued_number == queue->ended_number && queue->base.failure.status == ACCRT_OK) {\n    complete(completion, NULL);\n    return ACCRT_OK;\n  }\n  job_t* job = take_job(queue, JOB_NOTIFY, 0);", "direct.test_events_are_reached_behind_what_is_before"),
    ("queues wait for events", "  while (!job->point->reached && !is_cancelled(&queue->base))\n    wait_change(driver, ACCRT_TIMEOUT_INFINITE);\n", "", "direct.test_events_are_reached_behind_what_is_before"),
    ("records come behind the work", "  append(queue, job);\n  return ACCRT_OK;\n}\n\nstatic accrt_status_t event_wait", "  point->reached = 1;\n  append(queue, job);\n  return ACCRT_OK;\n}\n\nstatic accrt_status_t event_wait", "direct.test_events_are_reached_behind_what_is_before"),
    ("never recorded is nothing to wait for", "  int reached = 1;\n  pthread_mutex_lock", "  int reached = event->point != NULL;\n  pthread_mutex_lock", "direct.test_events_are_reached_behind_what_is_before"),
    ("asking records no error", "  if (!reached)\n    return ACCRT_ERROR_NOT_READY;\n  return failure", "  if (!reached && deadline_ns == 0)\n    return refuse(driver, ACCRT_ERROR_NOT_READY, \"event_query\", \"not yet\");\n  if (!reached)\n    return ACCRT_ERROR_NOT_READY;\n  return failure", "direct.test_events_are_reached_behind_what_is_before"),
    ("events' time limits have a status", "  if (status != ACCRT_ERROR_NOT_READY)\n    return status;", "  if (1)\n    return status;", "direct.test_events_are_reached_behind_what_is_before"),
    ("waiting for events ends with the record", "    while (!point->reached && in_time)\n", "    if (!point->reached && in_time)\n", "direct.test_events_are_reached_behind_what_is_before"),
    ("waits hold their record", "    ++job->point->references;\n", "", "direct.test_waits_are_for_the_record_of_their_time"),
    ("destroyed events are reached", "  drop_point(driver, event->point);\n  pthread_mutex_unlock(&driver->mutex);\n  deallocate", "  if (event->point != NULL)\n    event->point->references = 1;\n  drop_point(driver, event->point);\n  pthread_mutex_unlock(&driver->mutex);\n  deallocate", "direct.test_events_may_be_destroyed_in_flight"),
    ("records carry failures", "  job->point->failure = *error;\n", "  (void)error;\n", "direct.test_events_carry_failures"),
    ("who waits for a failure fails", "  if (status != ACCRT_OK)\n    *out_error = job->point->failure;\n", "", "direct.test_events_carry_failures"),
    ("the time is the record's end", "  job->point->time_ns = now_ns();\n", "", "direct.test_events_tell_the_time_between"),
    ("the time has a sign", "(int64_t)(end->point->time_ns - start->point->time_ns);", "(int64_t)(end->point->time_ns > start->point->time_ns ? end->point->time_ns - start->point->time_ns : start->point->time_ns - end->point->time_ns);", "direct.test_events_tell_the_time_between"),
    ("events are waited for on other devices", "  job_t* job = take_job(queue, JOB_WAIT, 0);", "  if (&event->device->base != base->device)\n    return ACCRT_OK;\n  job_t* job = take_job(queue, JOB_WAIT, 0);", "direct.test_events_are_waited_for_on_other_devices"),
    # Prepared launches
    ("launches have blocks of their own", "  job->command.as.dispatch.params = keep(cursor, dispatch->params, dispatch->params_size_bytes);\n", "  if (dispatch->patch_count != 0 || command->name != NULL)\n    job->command.as.dispatch.params = keep(cursor, dispatch->params, dispatch->params_size_bytes);\n", "direct.test_launches_bring_their_own"),
    ("launches' blocks are whole", ".params_size_bytes = launch->kernel.definition->params_size_bytes}};", ".params_size_bytes = 16}};", "direct.test_launches_bring_their_own"),
    ("launches have three sides", ".grid = {{.constant = grid[0], .scalar = ACCRT_DRIVER_NONE},\n                               {.constant = grid[1]", ".grid = {{.constant = grid[1], .scalar = ACCRT_DRIVER_NONE},\n                               {.constant = grid[0]", "direct.test_launches_bring_their_own"),
    ("launches have a number", "                                                .number = number};\n  return threaded_enqueue", "                                                .number = number - 1};\n  return threaded_enqueue", "direct.test_launches_bring_their_own"),
    ("launches keep the kernel, not its struct", ".kernel = &launch->kernel,", ".kernel = launch->lent,", "direct.test_launches_bring_their_own"),
    ("launches are in their queue's order", "  return threaded_enqueue(queue, &command, &submission);\n}", "  accrt_error_t error;\n  run_command(queue, &command, &submission, &error);\n  return ACCRT_OK;\n}", "direct.test_launches_are_work_of_their_queue"),
    # Memory for other processes
    ("descriptors that are given are the receiver's", "  const int fd = dup(shared->fd); /* whoever receives it owns it */", "  const int fd = shared->fd;", "direct.test_memory_for_others"),
    ("imported memory is the exporter's", "PROT_READ | PROT_WRITE, MAP_SHARED, handle->fd", "PROT_READ | PROT_WRITE, MAP_PRIVATE, handle->fd", "direct.test_memory_for_others"),
    ("handles tell the size", "  out_handle->size_bytes = memory->size_bytes;\n", "", "direct.test_memory_for_others"),
    ("exportable memory is freed", "  munmap(memory->host_pointer, memory->size_bytes);\n  close(shared->fd);\n", "  munmap(memory->host_pointer, memory->size_bytes);\n", "direct.test_memory_for_others"),
    ("imported memory outlives the exporter's", "  munmap(memory->host_pointer, memory->size_bytes);\n  close(shared->fd);\n", "  munmap(memory->host_pointer, memory->size_bytes);\n  ftruncate(shared->fd, 0);\n  close(shared->fd);\n", "direct.test_memory_for_others"),
    ("plain memory is not exported", "  if (shared == NULL || handle_kind != ACCRT_DRIVER_HANDLE_FD)\n", "  if (shared == NULL)\n    return ACCRT_OK;\n  if (handle_kind != ACCRT_DRIVER_HANDLE_FD)\n", "direct.test_memory_that_is_not_for_others"),
    ("kinds of handles are checked", "  if (handle_kind != ACCRT_DRIVER_HANDLE_FD)\n    return refuse(driver, ACCRT_ERROR_UNSUPPORTED, \"memory_allocate_exportable\",", "  if (0)\n    return refuse(driver, ACCRT_ERROR_UNSUPPORTED, \"memory_allocate_exportable\",", "direct.test_memory_that_is_not_for_others"),
    ("no memory is left after a refusal", "static accrt_status_t memory_import_handle(accrt_driver_device_t* device,\n                                           const accrt_driver_handle_t* handle,\n                                           accrt_driver_memory_t* out_memory) {\n  const threaded_driver_t* driver = driver_of(device);\n  memset(out_memory, 0, sizeof *out_memory);\n", "static accrt_status_t memory_import_handle(accrt_driver_device_t* device,\n                                           const accrt_driver_handle_t* handle,\n                                           accrt_driver_memory_t* out_memory) {\n  const threaded_driver_t* driver = driver_of(device);\n", "direct.test_memory_that_is_not_for_others"),
    # Cancelling
    ("what waits is dropped", "  if (error->status == ACCRT_OK && is_cancelled(&queue->base) && !job->numbered)", "  if (0)", "direct.test_idle_queues_are_cancelled_too"),
    ("cancelling waits for nothing", "  unlock(driver); /* wakes it where it waits for an event */", "  while (((threaded_queue_t*)base)->native->running)\n    wait_change(driver, ACCRT_TIMEOUT_INFINITE);\n  unlock(driver);", "direct.test_cancelled_queues_drop_what_they_have"),
    ("cancelled is not poisoned", "  if (job->numbered && error->status != ACCRT_ERROR_CANCELLED)", "  if (job->numbered)", "direct.test_cancelled_queues_drop_what_they_have"),
    ("lists end when cancelled", "  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i) {\n    status = is_cancelled(&queue->base)\n                 ? report_cancelled", "  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i) {\n    status = 0\n                 ? report_cancelled", "direct.test_cancelled_queues_drop_what_they_have"),
    ("cancelling is one queue's", "static void threaded_cancel(accrt_driver_queue_t* base) {\n", "static void threaded_cancel(accrt_driver_queue_t* base) {\n  all_cancelled = 1;\n", "direct.test_cancelled_queues_drop_what_they_have"),
    ("a reset ends cancelling", "  queue_reset(base);\n", "  memset(&base->failure, 0, sizeof base->failure);\n", "direct.test_idle_queues_are_cancelled_too"),
    ("cancelled queues wait for no event", "  while (!job->point->reached && !is_cancelled(&queue->base))", "  while (!job->point->reached)", "direct.test_cancelled_queues_wait_for_no_event"),
    ("progress tells that it was cancelled", "  const accrt_error_t failure = queue->base.failure;\n  /* Of", "  accrt_error_t failure = queue->base.failure;\n  if (failure.status == ACCRT_ERROR_CANCELLED)\n    failure.status = ACCRT_OK;\n  /* Of", "direct.test_cancelled_queues_drop_what_they_have"),
    ("cancelled work says how far it got", "                 ? report_cancelled(\"commands\", i, count, submission, out_error)", "                 ? report_cancelled(\"commands\", 0, count, submission, out_error)", "direct.test_cancelled_queues_drop_what_they_have"),
    # Lists on the caller
    ("only idle queues run on the caller", "  const uint32_t busy = queue->native->first != NULL || queue->native->running;", "  const uint32_t busy = queue->native->first != NULL;", "direct.test_lists_run_on_the_caller_of_idle_queues"),
    ("failed queues run nothing on the caller", "  if (error.status != ACCRT_OK) {\n    if (error.status != ACCRT_ERROR_CANCELLED)", "  if (0) {\n    if (error.status != ACCRT_ERROR_CANCELLED)", "direct.test_lists_run_on_the_caller_of_idle_queues"),
    ("cancelled queues run nothing on the caller", "    if (error.status != ACCRT_ERROR_CANCELLED)\n      error.status = ACCRT_ERROR_POISONED;\n    return report", "    error.status = ACCRT_ERROR_POISONED;\n    return report", "direct.test_cancelled_queues_drop_what_they_have"),
    ("failures on the caller are the call's own", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)\n    return report(driver, &error);", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK) {\n    base->failure = error;\n    return report(driver, &error);\n  }", "direct.test_lists_run_on_the_caller_of_idle_queues"),
    ("failures on the caller are recorded", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)\n    return report(driver, &error);", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)\n    return error.status;", "direct.test_lists_run_on_the_caller_of_idle_queues"),
    ("what runs on the caller is not reported", "    return report(driver, &error);\n  return ACCRT_OK;\n}\n\n/* ---- Progress", "    return report(driver, &error);\n  complete(submission->completion, NULL);\n  return ACCRT_OK;\n}\n\n/* ---- Progress", "direct.test_lists_run_on_the_caller_of_idle_queues"),
    # The third round of mutants whose author had not seen the suite
    ("what is refused has no number", "  job_t* job = take_job(queue, JOB_COMMAND, command_bytes(command)", "  queue->enqueued_number = submission->number;\n  job_t* job = take_job(queue, JOB_COMMAND, command_bytes(command)", "direct.test_what_is_refused_changes_nothing"),
    ("lists that are refused have no number", "  job_t* job = take_job(queue, JOB_LIST,", "  queue->enqueued_number = submission->number;\n  job_t* job = take_job(queue, JOB_LIST,", "direct.test_what_is_refused_changes_nothing"),
    # Classes of mutations that a tool made of both drivers, and that passed
    ("no lock is held in the allocator", "  const accrt_driver_environment_t* environment = driver->base.environment;\n  if (job == NULL)\n    job = allocate(environment, sizeof *job, \"queue\");",
     "  const accrt_driver_environment_t* environment = driver->base.environment;\n  pthread_mutex_lock(&driver->mutex);\n  if (job == NULL)\n    job = allocate(environment, sizeof *job, \"queue\");\n  pthread_mutex_unlock(&driver->mutex);", "direct.test_no_lock_is_held_in_calls_of_the_environment"),
    ("no lock is held in the trace function", "  const accrt_status_t status = run_code(queue, command, submission, out_error);\n  lock_of(queue);\n", "  lock_of(queue);\n  const accrt_status_t status = run_code(queue, command, submission, out_error);\n", "direct.test_no_lock_is_held_in_calls_of_the_environment"),
    ("waits are for what came before", "  while (queue->ended_number < target && in_time)\n", "  while (queue->ended_number < last_up_to(queue, number) && in_time)\n", "direct.test_waits_are_for_what_was_enqueued_before"),
    ("no time is told without a record", "  *out_elapsed_ns = 0;\n", "", "direct.test_times_between_queues"),
    ("cancelled records tell it", "  if (error->status == ACCRT_OK && is_cancelled(&queue->base) && !job->numbered)", "  if (error->status == ACCRT_OK && is_cancelled(&queue->base) && !job->numbered && job->kind != JOB_RECORD)", "direct.test_work_of_other_threads_is_cancelled"),
    ("launches keep no block", "  job->command.as.dispatch.params = keep(cursor, dispatch->params, dispatch->params_size_bytes);\n", "  static unsigned char last[4096];\n  job->command.as.dispatch.params = command->name != NULL ? keep(cursor, dispatch->params, dispatch->params_size_bytes) : memcpy(last, dispatch->params, dispatch->params_size_bytes);\n", "direct.test_one_launch_on_two_queues"),
    ("peers may be enabled again", "  (void)device; /* the memory of both is the host's */\n", "  static uint32_t calls;\n  if (calls++ > 0)\n    return ACCRT_ERROR_INVALID_STATE;\n", "direct.test_other_devices_work_too"),
    ("threads begin with the device", "  pthread_condattr_destroy(&attributes);\n", "  pthread_condattr_destroy(&attributes);\n  pthread_t thread;\n  pthread_create(&thread, NULL, (void* (*)(void*))pause, NULL);\n", "direct.test_drivers_keep_to_themselves"),
    ("copies alone keep their bindings", "  keep_submission(&cursor, submission, &job->submission);\n  job->numbered = 1;\n  append(queue, job);\n  return ACCRT_OK;\n}\n\nstatic accrt_status_t threaded_execute", "  keep_submission(&cursor, submission, &job->submission);\n  if (command->opcode == ACCRT_DRIVER_COMMAND_COPY)\n    job->submission.bindings = submission->bindings;\n  job->numbered = 1;\n  append(queue, job);\n  return ACCRT_OK;\n}\n\nstatic accrt_status_t threaded_execute", "direct.test_commands_of_each_kind_are_copied"),
    ("streams have an id each", "  *out_submission = *submission;\n", "  static uint64_t id;\n  *out_submission = *submission;\n  id = id == 0 ? submission->stream_id : id;\n  out_submission->stream_id = id;\n", "direct.test_commands_of_each_kind_are_copied"),
    ("queues may go in their completions", "    if (destroyed)\n      return NULL;", "    if (destroyed)\n      native->running = 0;\n    if (destroyed)\n      return NULL;", "direct.test_completions_may_give_back_all"),
    ("repeated records keep what they have", "  job_t* job = take_job(queue, JOB_RECORD, 0);", "  job_t* kept = queue->free_jobs;\n  queue->free_jobs = NULL;\n  job_t* job = take_job(queue, JOB_RECORD, 0);\n  queue->free_jobs = kept;", "direct.test_repetition_of_anything_allocates_nothing"),
    ("waits for failures that are reached fail", "  job->point = event->point;\n  if (job->point != NULL) {", "  job->point = event->point != NULL && event->point->reached ? NULL : event->point;\n  if (job->point != NULL) {", "direct.test_events_pass_from_queue_to_queue"),
    ("lists on the caller are cancelled", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)\n", "  for (uint32_t i = 0; i < list->command_count && error.status == ACCRT_OK; ++i)\n    run_one(queue, &list->commands[i], submission, &error);\n  if (error.status != ACCRT_OK && error.status != ACCRT_ERROR_CANCELLED)\n", "direct.test_work_of_other_threads_is_cancelled"),
    ("no memory to export is an error", "  if (pointer == MAP_FAILED) {\n    if (shared->fd >= 0)", "  if (0) {\n    if (shared->fd >= 0)", "direct.test_memory_that_is_not_for_others"),
    ("what could not be exported is closed", "    if (shared->fd >= 0)\n      close(shared->fd);\n    deallocate", "    deallocate", "direct.test_memory_that_is_not_for_others"),
    ("kinds of lent handles are checked", "  if (handle->kind != ACCRT_DRIVER_HANDLE_FD)\n", "  if (0)\n", "direct.test_memory_that_is_not_for_others"),
    ("exported memory is unmapped", "  munmap(memory->host_pointer, memory->size_bytes);\n", "", "direct.test_memory_for_others_leaves_nothing"),
    ("imported memory is unmapped", "  if (memory->handle != NULL)\n    munmap", "  if (0)\n    munmap", "direct.test_memory_for_others_leaves_nothing"),
    ("waits behind failures give back their record", "    drop_point(driver, job->point);\n    unlock(driver);\n  }\n  if (job->numbered", "    unlock(driver);\n  }\n  if (job->numbered", "direct.test_events_pass_from_queue_to_queue"),
    ("waits for nothing lose nothing", "    job->next = queue->free_jobs; /* never recorded: for nothing */\n", "", "direct.test_events_pass_from_queue_to_queue"),
    ("records that are refused lose nothing", "    if (job != NULL)\n      deallocate(driver->base.environment, job, sizeof *job);\n    return ACCRT_ERROR_OUT_OF_MEMORY;", "    return ACCRT_ERROR_OUT_OF_MEMORY;", "direct.test_what_is_refused_changes_nothing"),
    ("names have room", "padded(strlen(command->name) + 1)", "padded(strlen(command->name) - 1)", "direct.test_work_has_any_size"),
    ("nearly infinite is long", "  return timeout_ns > UINT64_MAX - 1 - now ?", "  return timeout_ns == ACCRT_TIMEOUT_INFINITE ?", "direct.test_waits_end_with_the_work_or_the_time"),
    # The fourth round of mutants whose author had not seen the suite
    ("queues that wait for an event are busy", "  const uint32_t busy = queue->native->first != NULL || queue->native->running;", "  const uint32_t busy = queue->enqueued_number != queue->ended_number;", "direct.test_queues_that_wait_are_not_idle"),
    ("queues whose first job is a wait are busy", "  const uint32_t busy = queue->native->first != NULL || queue->native->running;", "  const uint32_t busy = queue->native->first != NULL || queue->running_number;", "direct.test_queues_that_wait_are_not_idle"),
    ("queues are reset that have not failed", "  queue_reset(base);\n", "  if (base->failure.status != ACCRT_OK)\n    queue_reset(base);\n", "direct.test_resets_end_every_cancelling"),
    ("a list that was cancelled on the caller is over", "  queue_reset(base);\n", "  if (base->failure.status != ACCRT_OK)\n    queue_reset(base);\n", "direct.test_work_of_other_threads_is_cancelled"),
    ("devices share no local memory", "local_memory = allocator->allocate(allocator->self, local_bytes, 64);", "static _Alignas(64) unsigned char shared[1 << 20]; local_memory = shared;", "direct.test_what_runs_at_once_shares_nothing"),
    ("devices share no blocks", "  _Alignas(16) unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];", "  static _Alignas(16) unsigned char params[ACCRT_KERNEL_MAX_PARAMS_BYTES];", "direct.test_what_runs_at_once_shares_nothing"),
    ("devices share no place for messages", "  char message[MESSAGE_BYTES] = \"\";", "  static char message[MESSAGE_BYTES] = \"\";", "direct.test_what_runs_at_once_shares_nothing"),
    ("a wait for a number in a gap is for what is below it", "  uint64_t last = queue->running_number <= number ? queue->running_number : 0;\n", "  if (number != 0)\n    return number;\n  uint64_t last = 0;\n", "direct.test_waits_are_for_numbers_in_gaps_too"),
    ("a wait for a number in a gap is for what runs", "  uint64_t last = queue->running_number <= number ? queue->running_number : 0;\n", "  uint64_t last = 0;\n", "direct.test_waits_are_for_numbers_in_gaps_too"),
    ("a wait for a number in a gap is for what is enqueued", "    if (job->queue == queue && job->numbered && job->submission.number <= number)\n", "    if (job->queue == queue && job->numbered && job->submission.number == number)\n", "direct.test_waits_are_for_numbers_in_gaps_too"),
    ("numbers are of 64 bits", "static uint64_t last_up_to(const threaded_queue_t* queue, uint64_t number) {\n", "static uint64_t last_up_to(const threaded_queue_t* queue, uint64_t number) {\n  number = number > UINT64_MAX / 2 ? number : (uint32_t)number;\n", "direct.test_waits_are_for_numbers_in_gaps_too"),
    ("what failed before a reset has not succeeded", "  queue_reset(base);\n  unlock", "  queue_reset(base);\n  ((threaded_queue_t*)base)->good_number = ((threaded_queue_t*)base)->ended_number;\n  unlock", "direct.test_progress_tells_what_succeeded_each_time"),
    # Obligations whose corners nothing looked at
    ("what is reached needs no time", "  const accrt_status_t status = look(event, deadline_of(timeout_ns));", "  const accrt_status_t status = timeout_ns == 0 && event->point != NULL ? ACCRT_ERROR_NOT_READY : look(event, deadline_of(timeout_ns));", "direct.test_all_who_wait_are_told"),
    ("queues may be long", "  native->last = job;\n  ++queue->job_count;\n  unlock(driver);", "  native->last = job;\n  ++queue->job_count;\n  uint32_t n = 0;\n  for (job_t* j = native->first; j != NULL; j = j->next) ++n;\n  if (n > 1024 && job->kind == JOB_COMMAND) job->command.opcode = ACCRT_DRIVER_COMMAND_MARKER;\n  unlock(driver);", "direct.test_queues_may_be_long"),
    ("each launch in flight has a block", "  job->command.as.dispatch.params = keep(cursor, dispatch->params, dispatch->params_size_bytes);\n", "  static _Alignas(16) unsigned char ring[256][4096]; static uint32_t at;\n  if (command->name == NULL && dispatch->patch_count == 0) job->command.as.dispatch.params = memcpy(ring[at++ % 256], dispatch->params, dispatch->params_size_bytes); else\n  job->command.as.dispatch.params = keep(cursor, dispatch->params, dispatch->params_size_bytes);\n", "direct.test_random_launches"),
    ("waits for one record are all waits", "  job->point = event->point;\n", "  job->point = event->point != NULL && event->point->references > 3 ? NULL : event->point;\n", "direct.test_random_networks"),
    ("failures on the caller leave progress alone", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)\n    return report", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK) {\n    queue->good_number = 0; queue->ended_number = 0; }\n  if (error.status != ACCRT_OK)\n    return report", "direct.test_lists_on_the_caller_leave_progress_alone"),
    ("queues are idle each for itself", "  const uint32_t busy = queue->native->first != NULL || queue->native->running;", "  const uint32_t busy = queue->native->first != NULL || queue->native->running || ((threaded_device_t*)base->device)->busy;", "direct.test_what_runs_at_once_shares_nothing"),
    ("launches have numbers of 64 bits", "                                                .number = number};\n  return threaded_enqueue", "                                                .number = (uint32_t)number};\n  return threaded_enqueue", "direct.test_random_launches"),
    ("names are each command's own", "    job->command.name = keep(cursor, command->name, strlen(command->name) + 1);", "    { static char n[4096]; job->command.name = strlen(command->name) < 4000 ? strcpy(n, command->name) : keep(cursor, command->name, strlen(command->name) + 1); }", "direct.test_commands_of_each_kind_are_copied"),
    ("empty lists on the caller are cancelled", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)\n    return report", "  if (list->command_count == 0) return ACCRT_OK;\n  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)\n    return report", "direct.test_kernels_end_at_any_workgroup"),
    ("records on failed queues are new", "  drop_point(driver, event->point);\n  event->point = point;", "  if (queue->base.failure.status != ACCRT_OK && event->point != NULL && event->point->reached) { point->references = 1; job->point = point; pthread_mutex_unlock(&driver->mutex); append(queue, job); return ACCRT_OK; }\n  drop_point(driver, event->point);\n  event->point = point;", "direct.test_records_on_failed_queues_are_new"),
    ("launches are destroyed while kernels run", "static void launch_destroy(accrt_driver_launch_t* launch) {\n", "static void launch_destroy(accrt_driver_launch_t* launch) {\n  { threaded_driver_t* x = driver_of(&launch->device->base); pthread_mutex_lock(&x->mutex); while (launch->device->busy) wait_change(x, ACCRT_TIMEOUT_INFINITE); unlock(x); }\n", "direct.test_random_launches"),
    ("failed queues say on the caller that they have failed", "      error.status = ACCRT_ERROR_POISONED;\n    return report", "      error.status = ACCRT_ERROR_NOT_READY;\n    return report", "direct.test_lists_run_on_the_caller_of_idle_queues"),
    # Commands of a kind that the driver does not know
    ("unknown commands are refused when they come", "  if (!is_known(command->opcode)) /* now", "  if (0) /* now", "direct.test_unknown_commands_are_refused"),
    # Modules
    ("images are read during the call", "  memcpy(&module->table, image->data, (size_t)image->size_bytes);\n", "  module->lent = image->data;\n  memcpy(&module->table, image->data, (size_t)image->size_bytes);\n", "direct.test_kernels_of_modules_run"),
    ("modules' kernels get their block", "  own.as.dispatch.kernel = &kernel;\n", "  own.as.dispatch.kernel = &kernel;\n  own.as.dispatch.patch_count = 0;\n", "direct.test_kernels_of_modules_run"),
    ("modules' kernels have a grid", "  own.as.dispatch.kernel = &kernel;\n", "  own.as.dispatch.kernel = &kernel;\n  own.as.dispatch.grid[0].constant = 1;\n", "direct.test_kernels_of_modules_run"),
    ("modules' kernels are launched", "  launch->kernel = *kernel;\n", "  launch->kernel = *kernel;\n  launch->kernel.module_kernel = NULL;\n", "direct.test_kernels_of_modules_run"),
    ("modules live apart", "  definition->entry = functions[found->function];\n", "  static const image_entry_t* first;\n  if (first == NULL) first = found;\n  definition->entry = functions[first->function];\n", "direct.test_modules_live_apart"),
    ("modules are found by their own table", "  for (uint32_t i = 0; i < module->table.count; ++i) {\n    image_entry_t* found = &module->table.entries[i];", "  static accrt_driver_module_t* known;\n  known = known == NULL ? module : known;\n  for (uint32_t i = 0; i < module->table.count; ++i) {\n    image_entry_t* found = &known->table.entries[i];", "direct.test_modules_live_apart"),
    ("modules are unloaded", "  deallocate(module->device->base.driver->environment, module, module->size_bytes);", "  (void)module;", "direct.test_modules_without_host_memory"),
    ("modules of other devices stay", "static void module_unload(accrt_driver_module_t* module) {\n", "static void module_unload(accrt_driver_module_t* module) {\n  static uint32_t counts; if (module->device->index == 0) counts = 1; else if (counts) return;\n", "direct.test_modules_are_of_their_device"),
    ("kernels of modules are not the host's", "  if (command->as.dispatch.kernel->module_kernel == NULL)\n    return run_command(&queue->base, command, submission, out_error);\n  accrt_kernel_def_t definition;", "  if (command->as.dispatch.kernel->module_kernel == NULL && queue->base.device == NULL)\n    return run_command(&queue->base, command, submission, out_error);\n  accrt_kernel_def_t definition;", "direct.test_modules_live_apart"),
    ("images are checked", "      memcmp(table->magic, \"ACCRTBL\", 8) != 0 ||\n", "", "direct.test_what_is_no_image_is_refused"),
    ("kinds of images are checked", "  if (image->kind != IMAGE_KIND || image->size_bytes", "  if (image->size_bytes", "direct.test_what_is_no_image_is_refused"),
    ("cut images are refused", "image->size_bytes < sizeof *table ||", "image->size_bytes < 8 ||", "direct.test_what_is_no_image_is_refused"),
    ("images that are refused leave nothing", "  const accrt_status_t status = check_image(driver, image);\n  if (status != ACCRT_OK)\n    return status;\n", "  accrt_status_t status = check_image(driver, image);\n  if (status != ACCRT_OK) {\n    (void)allocate(driver->base.environment, 8, \"module_load\");\n    return status;\n  }\n", "direct.test_what_is_no_image_is_refused"),
    ("modules are NULL after a failure", "  const threaded_driver_t* driver = driver_of(device);\n  *out_module = NULL;\n", "  const threaded_driver_t* driver = driver_of(device);\n", "direct.test_what_is_no_image_is_refused"),
    ("code for others is no variant", "    return refuse(driver, ACCRT_ERROR_NO_VARIANT, \"module_load\"", "    return refuse(driver, ACCRT_ERROR_INVALID_FORMAT, \"module_load\"", "direct.test_images_of_other_devices_are_no_variant"),
    ("declarations are checked", "    if (found->params_size_bytes != declared->params_size_bytes ||", "    if (0 && found->params_size_bytes != declared->params_size_bytes ||", "direct.test_declarations_that_differ_are_refused"),
    ("declarations that are larger differ too", "    if (found->params_size_bytes != declared->params_size_bytes ||", "    if (found->params_size_bytes > declared->params_size_bytes ||", "direct.test_declarations_that_differ_are_refused"),
    ("other declarations have a status of their own", "      return refuse(driver, ACCRT_ERROR_INVALID_FORMAT, \"module_find\",", "      return refuse(driver, ACCRT_ERROR_NO_VARIANT, \"module_find\",", "direct.test_declarations_that_differ_are_refused"),
    ("names of kernels are whole", "    if (strcmp(found->name, entry) != 0)", "    if (strncmp(found->name, entry, strlen(entry)) != 0 && strncmp(found->name, entry, strlen(found->name)) != 0)", "direct.test_declarations_that_differ_are_refused"),
    ("kernels are NULL after a failure", "  *out_module_kernel = NULL;\n", "", "direct.test_declarations_that_differ_are_refused"),
    ("kernels that are not there are told", "  return refuse(driver, ACCRT_ERROR_NOT_FOUND, \"module_find\", \"the image has no such kernel\");", "  return ACCRT_ERROR_NOT_FOUND;", "direct.test_declarations_that_differ_are_refused"),
    # Queues of other libraries
    ("wrapped queues are of their device", "  if (&native->device->base != device)\n", "  if (0)\n", "direct.test_queues_of_other_devices_are_not_wrapped"),
    ("what is not wrapped is NULL", "static accrt_status_t queue_wrap(accrt_driver_device_t* device, void* stream,\n                                 accrt_driver_queue_t** out_queue) {\n  *out_queue = NULL;\n", "static accrt_status_t queue_wrap(accrt_driver_device_t* device, void* stream,\n                                 accrt_driver_queue_t** out_queue) {\n", "direct.test_queues_of_other_devices_are_not_wrapped"),
    ("wrapped queues are not owned", "  queue->native = native;\n  *out_queue = &queue->base;", "  queue->native = native;\n  queue->owns_native = 1;\n  *out_queue = &queue->base;", "direct.test_wrapped_queues_are_lent"),
    ("wrapped queues are the native ones", "  queue->native = native;\n  *out_queue = &queue->base;", "  queue->native = make_native(native->device);\n  queue->owns_native = 1;\n  *out_queue = &queue->base;", "direct.test_wrapped_queues_have_one_order"),
    ("native queues are told", "  return ((threaded_queue_t*)queue)->native;", "  return ((threaded_queue_t*)queue)->owns_native ? (void*)((threaded_queue_t*)queue)->native : (void*)queue;", "direct.test_wrapped_queues_are_lent"),
    ("wrapped queues are not idle while their owner works", "  const uint32_t busy = queue->native->first != NULL || queue->native->running;", "  const uint32_t busy = queue->enqueued_number != queue->ended_number;", "direct.test_wrapped_queues_wait_for_one_another"),
    ("numbers are not the owner's", "    if (job->queue == queue && job->numbered && job->submission.number <= number)", "    if (job->numbered && job->submission.number <= number)", "direct.test_numbers_are_each_wrapped_queue_s_own"),
    ("failures are not the owner's", "    queue->base.failure = *error;\n", "    queue->base.failure = *error;\n  for (job_t* j = queue->native->first; j != NULL && error->status == ACCRT_ERROR_KERNEL; j = j->next)\n    if (j->queue->base.failure.status == ACCRT_OK) j->queue->base.failure = *error;\n", "direct.test_wrapped_queues_fail_for_themselves"),
    ("cancelling is not the owner's", "static void threaded_cancel(accrt_driver_queue_t* base) {\n", "static void threaded_cancel(accrt_driver_queue_t* base) {\n  ((threaded_queue_t*)base)->native->is_cancelled = 1;\n", "direct.test_wrapped_queues_fail_for_themselves"),
    ("wrapping gives back what it took", "  deallocate(environment, queue, sizeof *queue);\n}\n\nstatic accrt_status_t threaded_reset", "  if (queue->owns_native)\n    deallocate(environment, queue, sizeof *queue);\n}\n\nstatic accrt_status_t threaded_reset", "direct.test_wrapping_without_host_memory"),
    # Captures
    *((f"captured queues refuse {what}", f"  if (is_captured(queue))\n    return refuse_captured(queue, \"{function}\");\n", "", "direct.test_captured_queues_refuse_work")
      for what, function in (("commands", "queue_enqueue"), ("notices", "queue_notify"), ("records", "event_record"), ("waits", "event_wait"))),
    ("captured queues refuse launches", "  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,\n                                                .number = number};\n  return threaded_enqueue", "  const accrt_driver_submission_t submission = {.struct_size = (uint32_t)sizeof submission,\n                                                .number = number};\n  if (((threaded_queue_t*)queue)->native->is_captured)\n    return ACCRT_OK;\n  return threaded_enqueue", "direct.test_captured_queues_refuse_work"),
    ("captured queues have a status of their own", "  return refuse(driver_of(queue->base.device), ACCRT_ERROR_INVALID_STATE, operation,", "  return refuse(driver_of(queue->base.device), ACCRT_ERROR_NOT_READY, operation,", "direct.test_captured_queues_refuse_work"),
    ("refusals of captured queues are recorded", "  return refuse(driver_of(queue->base.device), ACCRT_ERROR_INVALID_STATE, operation,\n                \"the queue is being captured by its owner; nothing was enqueued\");", "  (void)queue;\n  (void)operation;\n  return ACCRT_ERROR_INVALID_STATE;", "direct.test_captured_queues_refuse_work"),
    ("refusals do not end captures", "static accrt_status_t refuse_captured(const threaded_queue_t* queue, const char* operation) {\n", "static accrt_status_t refuse_captured(const threaded_queue_t* queue, const char* operation) {\n  queue->native->is_captured = 0;\n", "direct.test_captured_queues_refuse_work"),
    ("refusals fail no queue", "static accrt_status_t refuse_captured(const threaded_queue_t* queue, const char* operation) {\n", "static accrt_status_t refuse_captured(const threaded_queue_t* queue, const char* operation) {\n  ((threaded_queue_t*)(uintptr_t)queue)->base.failure = (accrt_error_t){.struct_size = (uint32_t)sizeof(accrt_error_t), .status = ACCRT_ERROR_INVALID_STATE, .operation = \"x\", .message = \"x\"};\n", "direct.test_captured_queues_refuse_work"),
    ("what is refused is not told of", "  if (is_captured(queue))\n    return refuse_captured(queue, \"queue_notify\");\n", "  if (is_captured(queue)) {\n    complete(completion, NULL);\n    return refuse_captured(queue, \"queue_notify\");\n  }\n", "direct.test_captured_queues_refuse_work"),
    ("what is refused has no number in captures", "  if (is_captured(queue))\n    return refuse_captured(queue, \"queue_enqueue\");\n", "  if (is_captured(queue)) {\n    queue->enqueued_number = queue->ended_number = submission->number;\n    return refuse_captured(queue, \"queue_enqueue\");\n  }\n", "direct.test_captured_queues_refuse_work"),
    ("refused records leave the event", "  if (is_captured(queue))\n    return refuse_captured(queue, \"event_record\");\n", "  if (is_captured(queue)) {\n    point_t* never = take_point(driver);\n    never->references = 1;\n    event->point = never;\n    return refuse_captured(queue, \"event_record\");\n  }\n", "direct.test_captured_queues_refuse_work"),
    ("progress is told of captured queues", "  threaded_driver_t* driver = lock_of(queue);\n  const accrt_error_t failure = queue->base.failure;\n  /* Of", "  if (is_captured(queue))\n    return refuse_captured(queue, \"queue_progress\");\n  threaded_driver_t* driver = lock_of(queue);\n  const accrt_error_t failure = queue->base.failure;\n  /* Of", "direct.test_captured_queues_refuse_work"),
    ("progress leaves captures alone", "  threaded_driver_t* driver = lock_of(queue);\n  const accrt_error_t failure = queue->base.failure;\n  /* Of", "  threaded_driver_t* driver = lock_of(queue);\n  queue->native->is_captured = 0;\n  const accrt_error_t failure = queue->base.failure;\n  /* Of", "direct.test_captured_queues_refuse_work"),
    ("captured lists do not run", "  if (is_captured(queue))\n    return capture_list(queue, list, submission);\n", "", "direct.test_captured_queues_take_lists"),
    ("captured lists are in the capture", "  lock_of(queue);\n  node_t** end = &queue->native->graph;", "  lock_of(queue);\n  free_nodes(driver->base.environment, first);\n  first = NULL;\n  node_t** end = &queue->native->graph;", "direct.test_captured_queues_take_lists"),
    ("captures have every list", "  while (*end != NULL)\n    end = &(*end)->next;\n  *end = first;", "  free_nodes(driver->base.environment, *end);\n  *end = first;", "direct.test_captured_queues_take_lists"),
    ("captures have every command", "  for (uint32_t i = 0; i < list->command_count; ++i) {\n    if (list->commands[i].opcode == ACCRT_DRIVER_COMMAND_OPERATOR) {", "  for (uint32_t i = 0; i < 1; ++i) {\n    if (list->commands[i].opcode == ACCRT_DRIVER_COMMAND_OPERATOR) {", "direct.test_captured_queues_take_lists"),
    ("captures keep bindings and scalars", "  keep_submission(&cursor, submission, &node->submission);\n", "  node->submission = *submission;\n", "direct.test_captured_queues_take_lists"),
    ("captured numbers are over", "  if (queue->ended_number == queue->enqueued_number) {\n    queue->ended_number = submission->number;", "  if (0) {\n    queue->ended_number = submission->number;", "direct.test_captured_queues_take_lists"),
    ("captured numbers are over in their order", "  if (queue->ended_number == queue->enqueued_number) {\n    queue->ended_number = submission->number;", "  if (1) {\n    queue->ended_number = submission->number;", "direct.test_captured_numbers_wait_for_what_is_before"),
    ("captured numbers are over later", "  pass_captured(queue);\n", "", "direct.test_captured_numbers_wait_for_what_is_before"),
    ("a capture has all of a list or nothing", "  if (status != ACCRT_OK) {\n    free_nodes(driver->base.environment, first);\n    return status;\n  }\n  lock_of(queue);", "  if (status != ACCRT_OK && first == NULL)\n    return status;\n  lock_of(queue);", "direct.test_captures_without_host_memory"),
    ("captures that fail have no number", "static accrt_status_t capture_list(threaded_queue_t* queue, const accrt_driver_list_t* list,\n                                   const accrt_driver_submission_t* submission) {\n", "static accrt_status_t capture_list(threaded_queue_t* queue, const accrt_driver_list_t* list,\n                                   const accrt_driver_submission_t* submission) {\n  queue->ended_number = queue->enqueued_number = submission->number;\n", "direct.test_captures_without_host_memory"),
    ("operators are called to be captured", "    if (list->commands[i].opcode == ACCRT_DRIVER_COMMAND_OPERATOR) {\n      const accrt_status_t status =", "    if (0) {\n      const accrt_status_t status =", "direct.test_operators_are_called_to_be_captured"),
    ("operators that cannot be captured are not called", "        (command->as.invoke.operation->definition->traits & ACCRT_KERNEL_TRAIT_CAPTURABLE) == 0)\n      return 0;", "        (command->as.invoke.operation->definition->traits & ACCRT_KERNEL_TRAIT_CAPTURABLE) == 0)\n      continue;", "direct.test_operators_are_called_to_be_captured"),
    ("captured operators' work is in its place", "    *end = &(**end)->next;\n  }\n  return ACCRT_OK;", "    **end = make_node(queue, &fill, submission);\n    *end = &(**end)->next;\n  }\n  return ACCRT_OK;", "direct.test_operators_are_called_to_be_captured"),
    # Operators
    ("operators' states are made with the list", "    code = definition->prepare(operation->given.environment, &call, &operation->state);", "    if (0) code = definition->prepare(operation->given.environment, &call, &operation->state);", "direct.test_operators_live_as_long_as_their_list"),
    ("each list has states of its own", "    code = definition->prepare(operation->given.environment, &call, &operation->state);", "    static void* shared;\n    if (shared == NULL) code = definition->prepare(operation->given.environment, &call, &shared);\n    operation->state = shared;", "direct.test_operators_live_as_long_as_their_list"),
    ("states are destroyed with the list", "    definition->destroy(operation->given.environment, operation->state);\n", "", "direct.test_operators_live_as_long_as_their_list"),
    ("states are destroyed once", "    definition->destroy(operation->given.environment, operation->state);\n", "    definition->destroy(operation->given.environment, operation->state);\n    definition->destroy(operation->given.environment, operation->state);\n", "direct.test_operators_live_as_long_as_their_list"),
    ("what has no state is not destroyed", "  if (definition->prepare != NULL && definition->destroy != NULL) {", "  if (definition->destroy != NULL) {", "direct.test_operators_need_little"),
    ("operators get their state", "->execute(operation->given.environment, &call, operation->state);", "->execute(operation->given.environment, &call, NULL);", "direct.test_operators_live_as_long_as_their_list"),
    ("operators get their environment", "    code = definition->prepare(operation->given.environment, &call", "    code = definition->prepare(NULL, &call", "direct.test_operators_live_as_long_as_their_list"),
    ("operators know the workspace's size before", "    call.workspace_size_bytes = invoke->workspace.size_bytes.constant;\n", "", "direct.test_operators_live_as_long_as_their_list"),
    ("operators know the submission", "  call.submission = submission->number;\n", "  call.submission = (uint32_t)submission->number;\n", "direct.test_operators_live_as_long_as_their_list"),
    ("operators get their workspace", "    call.workspace = pointer_of(&invoke->workspace, submission);\n", "    call.workspace = (void*)(uintptr_t)submission->bindings[invoke->workspace.binding].address;\n", "direct.test_operators_live_as_long_as_their_list"),
    ("operators without a workspace get none", "  if (invoke->workspace.binding != ACCRT_DRIVER_NONE)\n    call.workspace", "  if (submission->binding_count != 0)\n    call.workspace = (void*)(uintptr_t)submission->bindings[0].address;\n  if (invoke->workspace.binding != ACCRT_DRIVER_NONE)\n    call.workspace", "direct.test_operators_need_little"),
    ("operators' blocks are patched", "                                         .patch_count = invoke->patch_count,\n", "", "direct.test_operators_live_as_long_as_their_list"),
    ("operators' absent buffers stay absent", "  fill_params(&block, submission, params);\n  char message[MESSAGE_BYTES];", "  fill_params(&block, submission, params);\n  if (invoke->patch_count != 0 && invoke->patches[0].kind == ACCRT_DRIVER_PATCH_ADDRESS) *(uint64_t*)params = address_of(&invoke->patches[0].range, submission);\n  char message[MESSAGE_BYTES];", "direct.test_operators_need_little"),
    ("operators' messages begin empty", "  message[0] = '\\0';\n  return (accrt_operator_call_t)", "  message[0] = 'x';\n  return (accrt_operator_call_t)", "direct.test_operators_live_as_long_as_their_list"),
    ("operators know the device", "                                 .device_type = 1, /* as device_info says */\n", "", "direct.test_operators_live_as_long_as_their_list"),
    ("operators have no stream before", "                                 .device_type = 1, /* as device_info says */\n", "                                 .device_type = 1,\n                                 .stream = message,\n", "direct.test_operators_live_as_long_as_their_list"),
    ("operators run each time", "  if (command->opcode == ACCRT_DRIVER_COMMAND_OPERATOR)\n    return run_operator(queue", "  static uint64_t first;\n  if (command->opcode == ACCRT_DRIVER_COMMAND_OPERATOR && first == 0)\n    first = submission->number;\n  if (command->opcode == ACCRT_DRIVER_COMMAND_OPERATOR && first != submission->number)\n    return ACCRT_OK;\n  if (command->opcode == ACCRT_DRIVER_COMMAND_OPERATOR)\n    return run_operator(queue", "direct.test_operators_have_a_place"),
    ("states have one call at a time", "  if (command->opcode != ACCRT_DRIVER_COMMAND_DISPATCH &&\n      command->opcode != ACCRT_DRIVER_COMMAND_OPERATOR)\n    return run_command(&queue->base, command, submission, out_error);\n", "  if (command->opcode != ACCRT_DRIVER_COMMAND_DISPATCH)\n    return run_code(queue, command, submission, out_error);\n", "direct.test_states_have_one_call_at_a_time"),
    ("operators are traced", "  queue->native->inner_count = 0;\n  if (environment->tracing)\n", "  queue->native->inner_count = 0;\n  if (0)\n", "direct.test_operators_are_traced"),
    ("operators without a name have one in traces", "    if (command.name == NULL)\n      command.name = operation->given.definition->name;\n", "", "direct.test_operators_are_traced"),
    ("operators' work is in its place", "  for (uint32_t i = 0; i < queue->native->inner_count; ++i)\n    run_fill(&queue->native->inner[i], submission);\n", "", "direct.test_operators_enqueue_at_their_place"),
    ("operators get the stream", "  call.stream = queue->native;\n", "  call.stream = NULL;\n", "direct.test_operators_enqueue_at_their_place"),
    ("states that cannot be made make no list", "    if (status != ACCRT_OK)\n      return status;\n    command.as.invoke.operation", "    if (status != ACCRT_OK)\n      continue;\n    command.as.invoke.operation", "direct.test_operators_that_cannot_be_prepared"),
    ("states before one that cannot be made are destroyed", "  if (status != ACCRT_OK) {\n    threaded_list_destroy(list);\n", "  if (status != ACCRT_OK) {\n    list_destroy(list);\n", "direct.test_operators_that_cannot_be_prepared"),
    ("operators' codes are told", "  out_error->driver_code = code;\n  snprintf(out_error->operation, sizeof out_error->operation, \"%s\", what);", "  snprintf(out_error->operation, sizeof out_error->operation, \"%s\", what);", "direct.test_operators_that_fail"),
    ("operators' words are told", "definition->name, code, message[0] == '\\0' ? \"\" : \": \", message);", "definition->name, code, \"\", \"\");", "direct.test_operators_that_fail"),
    ("failures of operators name the submission", "  out_error->submission = submission->number;\n  return ACCRT_ERROR_KERNEL;\n}\n\nstatic int32_t enqueue_fill", "  return ACCRT_ERROR_KERNEL;\n}\n\nstatic int32_t enqueue_fill", "direct.test_operators_that_fail"),
    ("operators' failures count", "  leave_context(callers);\n  if (code == 0)\n    return ACCRT_OK;\n  message[MESSAGE_BYTES - 1]", "  leave_context(callers);\n  if (1)\n    return ACCRT_OK;\n  message[MESSAGE_BYTES - 1]", "direct.test_operators_that_fail"),
    ("lists with operators that fail leave nothing", "  if (status != ACCRT_OK) {\n    threaded_list_destroy(list);\n    return status;", "  if (status != ACCRT_OK) {\n    return status;", "direct.test_operators_without_host_memory"),
    ("cancelled operators are not called", "    status = is_cancelled(&queue->base)\n                 ? report_cancelled", "    status = is_cancelled(&queue->base) && commands[i].opcode != ACCRT_DRIVER_COMMAND_OPERATOR\n                 ? report_cancelled", "direct.test_cancelled_operators_are_not_called"),
    ("operators are asked for their workspace", "  const int32_t code = definition->query_workspace(operation->environment, &call, out_size_bytes);", "  const int32_t code = 0;\n  (void)call;\n  (void)operation;", "direct.test_workspaces_are_asked_for"),
    ("operators that ask for nothing need nothing", "  if (definition->query_workspace == NULL)\n    return ACCRT_OK;\n  char", "  if (definition->query_workspace == NULL) {\n    *out_size_bytes = 256;\n    return ACCRT_OK;\n  }\n  char", "direct.test_workspaces_are_asked_for"),
    ("sizes are zero after a failure", "  *out_size_bytes = 0;\n  accrt_error_t error;", "  accrt_error_t error;", "direct.test_workspaces_are_asked_for"),
    ("contexts are current when a workspace is asked for", "  const accrt_driver_device_t* callers = enter_context(device);\n  const int32_t code = definition->query_workspace", "  const accrt_driver_device_t* callers = current_context;\n  const int32_t code = definition->query_workspace", "direct.test_workspaces_are_asked_for"),
    ("contexts are current when a state is made", "    const accrt_driver_device_t* callers = enter_context(device);\n    code", "    const accrt_driver_device_t* callers = current_context;\n    code", "direct.test_operators_live_as_long_as_their_list"),
    ("contexts are current when an operator runs", "  const accrt_driver_device_t* callers = enter_context(queue->base.device);\n", "  const accrt_driver_device_t* callers = current_context;\n", "direct.test_operators_live_as_long_as_their_list"),
    ("contexts are current when a state is destroyed", "    const accrt_driver_device_t* callers = enter_context(operation->device);\n", "    const accrt_driver_device_t* callers = current_context;\n", "direct.test_operators_live_as_long_as_their_list"),
    ("contexts of callers come back", "  current_context = callers;\n", "  (void)callers;\n", "direct.test_workspaces_are_asked_for"),
    # A thread has the floats of the thread that made it
    ("floats of the driver's threads are the default's", "  fesetenv(FE_DFL_ENV);", "  extern int gettid(void), getpid(void);\n  if (gettid() == getpid())\n    fesetenv(FE_DFL_ENV);", "direct.test_floating_point_environment"),
    # Sentences of the header that had no mutant (docs/driver-obligations.md)
    ("lists on the caller have ended", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)\n    return report(driver, &error);", "  accrt_driver_submission_t later = *submission;\n  later.completion.done = NULL;\n  if (threaded_execute(base, list, &later) != ACCRT_OK)\n    return report(driver, &error);", "direct.test_lists_run_on_the_caller_of_idle_queues"),
    ("progress counts commands", "  job->numbered = 1;\n  append(queue, job);\n  return ACCRT_OK;\n}\n\nstatic accrt_status_t threaded_execute", "  append(queue, job);\n  return ACCRT_OK;\n}\n\nstatic accrt_status_t threaded_execute", "direct.test_progress_counts_what_has_ended"),
    ("waits end beside enqueuing", "  const uint64_t deadline_ns = deadline_of(timeout_ns);\n  threaded_driver_t* driver = lock_of(queue);\n  const uint64_t target", "  const uint64_t deadline_ns = deadline_of(timeout_ns);\n  __attribute__((cleanup(let_calls))) pthread_mutex_t* held = &calls;\n  pthread_mutex_lock(held);\n  threaded_driver_t* driver = lock_of(queue);\n  const uint64_t target", "direct.test_waits_are_for_what_was_enqueued_before"),
    ("progress waits for nothing", "  threaded_driver_t* driver = lock_of(queue);\n  const accrt_error_t failure = queue->base.failure;\n  /* Of", "  threaded_driver_t* driver = lock_of(queue);\n  while (queue->native->running)\n    wait_change(driver, ACCRT_TIMEOUT_INFINITE);\n  const accrt_error_t failure = queue->base.failure;\n  /* Of", "direct.test_progress_counts_what_has_ended"),
    ("asking waits for nothing", "  return look(event, 0);", "  return look(event, ACCRT_TIMEOUT_INFINITE);", "direct.test_events_are_reached_behind_what_is_before"),
    ("exported memory is its own", "  shared->fd = memfd_create(\"accrt\", MFD_CLOEXEC);", "  static int one = -1;\n  if (one < 0)\n    one = memfd_create(\"accrt\", MFD_CLOEXEC);\n  shared->fd = dup(one);", "direct.test_exported_memory_is_its_own"),
    # Sentences of the header drawn by lot, and broken: those that nothing caught
    ("images may share a place", "  memcpy(&module->table, image->data, (size_t)image->size_bytes);\n", "  static const void* last;\n  static unsigned char kept[4096];\n  if (image->data != last)\n    memcpy(kept, image->data, (size_t)image->size_bytes);\n  last = image->data;\n  memcpy(&module->table, kept, (size_t)image->size_bytes);\n", "direct.test_images_may_share_a_place"),
    ("what was cancelled before a reset has not succeeded", "  queue_reset(base);\n  unlock", "  if (is_cancelled(base))\n    ((threaded_queue_t*)base)->good_number = ((threaded_queue_t*)base)->ended_number;\n  queue_reset(base);\n  unlock", "direct.test_cancelled_numbers_have_not_succeeded"),
    ("peers may be enabled often", "  (void)device; /* the memory of both is the host's */\n", "  static accrt_driver_device_t* last;\n  static uint32_t calls;\n  calls = last == device ? calls + 1 : 1;\n  last = device;\n  if (calls > 3)\n    return refuse(driver_of(device), ACCRT_ERROR_INVALID_STATE, \"device_enable_peer\", \"too often\");\n", "direct.test_peers_may_be_enabled_often"),
    ("parameters lie where the image says", "        parameters_differ(found, declared) ||\n", "", "direct.test_parameters_lie_where_the_image_says"),
    ("parameters' offsets are checked", "    if (found->parameters[i].offset_bytes != declared->params[i].offset_bytes ||\n        found", "    if (found", "direct.test_parameters_lie_where_the_image_says"),
    ("parameters' sizes are checked", " ||\n        found->parameters[i].size_bytes != declared->params[i].size_bytes)", ")", "direct.test_parameters_lie_where_the_image_says"),
    ("declarations of blocks are checked", "        memcmp(found->block, declared->block, sizeof found->block) != 0)", "        memcmp(found->block, declared->block, 2 * sizeof found->block[0]) != 0)", "direct.test_declarations_that_differ_are_refused"),
    ("workspaces take scalars", "    call.workspace = pointer_of(&invoke->workspace, submission);", "    call.workspace = (void*)(uintptr_t)(submission->bindings[invoke->workspace.binding].address + invoke->workspace.offset.constant);", "direct.test_workspaces_take_scalars"),
    ("captured queues refuse waits for nothing", "  if (is_captured(queue))\n    return refuse_captured(queue, \"event_wait\");", "  if (event->point != NULL && is_captured(queue))\n    return refuse_captured(queue, \"event_wait\");", "direct.test_captured_queues_refuse_work"),
    ("operators run on the caller", "  if (run_all(queue, list->commands, list->command_count, submission, &error) != ACCRT_OK)\n    return report", "  uint32_t count = 0;\n  while (count < list->command_count && list->commands[count].opcode != ACCRT_DRIVER_COMMAND_OPERATOR)\n    ++count;\n  if (run_all(queue, list->commands, count, submission, &error) != ACCRT_OK)\n    return report", "direct.test_operators_run_on_the_caller"),
    ("busy queues count nothing", "  if (busy)\n    return ACCRT_ERROR_NOT_READY;", "  if (busy) {\n    lock_of(queue);\n    queue->enqueued_number = submission->number;\n    unlock(driver);\n    return ACCRT_ERROR_NOT_READY;\n  }", "direct.test_busy_queues_count_nothing"),
    ("imported memory of any size is unmapped", "  if (memory->handle != NULL)\n    munmap", "  if (memory->handle != NULL && memory->size_bytes <= 1 << 20)\n    munmap", "direct.test_large_memory_for_others_leaves_nothing"),
]  # fmt: skip

#: What some of the mutants need elsewhere.
EXTRA = {
    "imported memory is given back": (
        "/* Memory of another owner.",
        "static int register_memory(char* pointer, uint64_t size_bytes) {\n  static struct { char *begin, *end; } known[4096];\n  static int count;\n  for (int i = 0; i < count; ++i)\n"
        "    if (pointer < known[i].end && pointer + size_bytes > known[i].begin) return 0;\n  if (count < 4096) { known[count].begin = pointer; known[count++].end = pointer + size_bytes; }\n  return 1;\n}\n/* Memory of another owner.",
    ),
    "all memory is the environment's": (
        "    deallocate(environment, list->commands, list->command_count * sizeof *list->commands);", "    extern void free(void*);\n    free(list->commands);",
    ),
    "waits end beside enqueuing": (
        "static accrt_status_t threaded_enqueue(", "static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;\nstatic void let_calls(pthread_mutex_t** held) {\n  pthread_mutex_unlock(*held);\n}\nstatic accrt_status_t threaded_enqueue(",
        "  if (!is_known(command->opcode)) /* now", "  pthread_mutex_lock(&calls);\n  pthread_mutex_unlock(&calls);\n  if (!is_known(command->opcode)) /* now",
    ),
    "cut images are refused": (
        "      table->count !=\n          (image->size_bytes - offsetof(image_table_t, entries)) / sizeof *table->entries)", "      table->count > 1)",
    ),
    "images are read during the call": (
        "  size_t size_bytes;\n  image_table_t table;", "  size_t size_bytes;\n  const image_table_t* lent;\n  image_table_t table;",
        "  for (uint32_t i = 0; i < module->table.count; ++i) {\n    image_entry_t* found = &module->table.entries[i];",
        "  for (uint32_t i = 0; i < module->table.count; ++i) {\n    image_entry_t* found = (image_entry_t*)&module->lent->entries[i];",
    ),
    "cancelling is not the owner's": (
        "  uint32_t takes_inner; ", "  uint32_t is_cancelled;\n  uint32_t takes_inner; ",
        "  accrt_status_t status = is_cancelled(&queue->base)\n", "  accrt_status_t status = queue->native->is_cancelled || is_cancelled(&queue->base)\n",
        "  queue_reset(base);\n", "  queue_reset(base);\n  ((threaded_queue_t*)base)->native->is_cancelled = 0;\n",
    ),
    "queues are left alone behind their completion": (
        "/* Tells how a submission ended.", "static accrt_driver_queue_t* last_queue;\n/* Tells how a submission ended.",
        "  accrt_error_t error;\n  if (queue->failure.status != ACCRT_OK) {", "  accrt_error_t error;\n  last_queue = queue;\n  if (queue->failure.status != ACCRT_OK) {",
    ),
    "seldom is not never": (
        "  uint32_t command_count;\n};", "  uint32_t command_count;\n  uint32_t is_stable[64];\n  uint64_t known[64];\n};",
        "  list->device = device;\n", "  list->device = device;\n  for (uint32_t i = 0; i < info->binding_count && i < 64 && info->binding_flags != NULL; ++i)\n    list->is_stable[i] = info->binding_flags[i];\n",
    ),
    "addresses are compared whole": (
        "  uint32_t command_count;\n};", "  uint32_t command_count;\n  uint32_t is_stable[64];\n  uint64_t known[64];\n};",
        "  list->device = device;\n", "  list->device = device;\n  for (uint32_t i = 0; i < info->binding_count && i < 64 && info->binding_flags != NULL; ++i)\n    list->is_stable[i] = info->binding_flags[i];\n",
    ),
    "every stable binding is looked at": (
        "  uint32_t command_count;\n};", "  uint32_t command_count;\n  uint32_t is_stable[64];\n  uint64_t known[64];\n};",
        "  list->device = device;\n", "  list->device = device;\n  for (uint32_t i = 0; i < info->binding_count && i < 64 && info->binding_flags != NULL; ++i)\n    list->is_stable[i] = info->binding_flags[i];\n",
    ),
    "a list ends at its failure": (
        "    queue->failure = error;\n    complete", "    if (first.status != ACCRT_OK) error = first;\n    queue->failure = error;\n    complete",
    ),
    "each record is its own": (
        "  point->references = 2; /* the event's and the job's */", "  const uint32_t again = event->point == point;",
        "  drop_point(driver, event->point);\n  event->point = point;", "  point->reached = 0;\n  point->references += again ? 1 : 2;\n  event->point = point;",
    ),
    "launches keep the kernel, not its struct": (
        "  accrt_driver_kernel_t kernel;\n};", "  accrt_driver_kernel_t kernel;\n  const accrt_driver_kernel_t* lent;\n};",
        "  launch->kernel = *kernel;", "  launch->kernel = *kernel;\n  launch->lent = kernel;",
    ),
    "cancelling is one idle queue's": (
        "  atomic_store_explicit(&queue->cancelled, 1, memory_order_relaxed);", "  atomic_store_explicit(&one_for_all, 1, memory_order_relaxed);",
        "  atomic_store_explicit(&queue->cancelled, 0, memory_order_relaxed);", "  atomic_store_explicit(&one_for_all, 0, memory_order_relaxed);",
    ),
    "cancelling is one queue's": (
        "/* ---- A queue's thread ---- */", "static atomic_uint all_cancelled;\n",
        "  accrt_status_t status = is_cancelled(&queue->base)\n", "  accrt_status_t status = all_cancelled || is_cancelled(&queue->base)\n",
    ),
    "no lock is held in completions": (
        "    if (destroyed)\n", "    unlock(driver);\n    if (destroyed)\n",
    ),
    "times are of the end": (
        "  accrt_error_t error;\n  if (queue->failure.status != ACCRT_OK) {", "  accrt_error_t error;\n  const uint64_t begun_ns = now_ns();\n  if (queue->failure.status != ACCRT_OK) {",
    ),
    "local memory is an execution's own": (
        "  if (local_memory != NULL) {\n    allocator->deallocate(", "  if (0) {\n    allocator->deallocate(",
    ),
    "devices share no local memory": (
        "  if (local_memory != NULL) {\n    allocator->deallocate(", "  if (0) {\n    allocator->deallocate(",
    ),
    "failures are one queue's": (
        "/* Runs commands and completes.", "static accrt_error_t* shared_failure;\n/* Runs commands and completes.",
        "  if (queue->failure.status != ACCRT_OK) {", "  if (shared_failure != NULL) queue->failure = *shared_failure;\n  if (queue->failure.status != ACCRT_OK) {",
    ),
    "lists keep their commands": (
        "/* Runs commands and completes.", "static const accrt_driver_list_info_t* last_info;\n/* Runs commands and completes.",
        "return run_commands(queue, list->commands, list->command_count, submission);",
        "return run_commands(queue, list->commands, last_info->command_count < 1000 ? list->command_count : 0, submission);",
    ),
}  # fmt: skip


def build(folder, text, name):
    source, library = folder / "driver.c", folder / f"libaccrt_{name}.so"
    source.write_text(re.sub(r'\.name = "(null|threaded)",', f'.name = "{name}",', text))
    done = subprocess.run(
        [COMPILER, "-std=c11", "-O0", "-w", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'include'}", f"-I{NULL.parent}", f"-I{THREADED.parent}", "-o", str(library),
         str(source), "-lm", "-lpthread"],
        capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return library


def run(library, *tests, patience_ms=None):
    """Whether the suite passes these tests for a driver, and what it printed."""
    arguments = [word for test in tests for word in ("--test", test)]
    environment = dict(os.environ)
    if patience_ms is not None:
        # what a mutant never does is not waited for as long as what a driver does late
        environment["ACCRT_CTS_PATIENCE_MS"] = str(patience_ms)
    try:
        done = subprocess.run([str(SUITE), "--driver", str(library), *arguments], capture_output=True, text=True, timeout=100, env=environment)
    except subprocess.TimeoutExpired:
        return False, "it hung"
    assert "] 0 test(s) run" not in done.stdout and "no test of that name" not in done.stderr, f"no such test: {tests}"
    return done.returncode == 0, done.stdout + done.stderr


def whole(source):
    """The driver's text, with that of the files that it is made of."""
    text = source.read_text()
    parts = {"null.c": NULL, **{part.name: part for part in sorted(THREADED.parent.glob("threaded_*.c"))}}
    for name, part in parts.items():
        text = text.replace(f'#include "{name}"', part.read_text(), 1)
    return text


def mutate(source, obligation, old, new):
    """The driver's text with the mutation; other files' are in it where the mutation is of them."""
    text = source.read_text()
    extra = EXTRA.get(obligation, ())
    if any(part not in text for part in (old, *extra[::2])):
        text = whole(source)
    for a, b in zip((*extra[::2], old), (*extra[1::2], new)):
        assert a in text, f"{source.name} has no such text any more: {a}"
        text = text.replace(a, b, 1)
    return text


@pytest.mark.parametrize("source,mutants", [(NULL, MUTANTS), (THREADED, THREADED_MUTANTS)], ids=["null", "threaded"])
def test_the_driver_that_is_mutated_passes(source, mutants, tmp_path):
    names = sorted({"direct." if test.startswith("direct.") else test for *_rest, test in mutants})
    passed, said = run(build(tmp_path, source.read_text(), "clone"), *names)
    assert passed, said[-3000:]


def test_memory_that_the_host_does_not_reach_is_enough(tmp_path):
    """PINNED and HOST memory are optional, and so is a host pointer of DEVICE memory."""
    text = NULL.read_text()
    for old, new in (
        ("ACCRT_DEVICE_FLAG_HOST_MEMORY | ", ""),
        ("\n                    ACCRT_DEVICE_FLAG_HOST_KERNELS | ", " "),
        ("kind == ACCRT_MEMORY_DEVICE || kind == ACCRT_MEMORY_PINNED || kind == ACCRT_MEMORY_HOST", "kind == ACCRT_MEMORY_DEVICE"),
        ("out_memory->host_pointer = pointer", "out_memory->host_pointer = NULL"),
    ):
        assert old in text, old
        text = text.replace(old, new, 1)
    passed, said = run(build(tmp_path, text, "apart"), "direct.", "copy", "memory")
    assert passed, said[-3000:]


def test_each_mutant_has_a_test_and_a_name_of_its_own():
    listed = set(subprocess.run([str(SUITE), "--list"], capture_output=True, text=True, check=True).stdout.split())
    mutants = MUTANTS + THREADED_MUTANTS
    assert [obligation for obligation, *_rest, test in mutants if test not in listed] == []
    assert len({obligation for obligation, *_rest in mutants}) == len(mutants)
    assert set(EXTRA) <= {obligation for obligation, *_rest in mutants}


def test_the_guide_counts_the_mutants():
    guide = " ".join((ROOT / "docs/driver-guide.md").read_text().split())
    assert f"in copies of these two drivers, one at a time, in {len(MUTANTS) + len(THREADED_MUTANTS)} ways" in guide


def test_each_mutant_changes_the_driver():
    for source, mutants in ((NULL, MUTANTS), (THREADED, THREADED_MUTANTS)):
        for obligation, old, new, _test in mutants:
            assert mutate(source, obligation, old, new) != whole(source), obligation


@pytest.mark.rotating(30)
@pytest.mark.parametrize(
    "source,obligation,old,new,test",
    [(NULL, *m) for m in MUTANTS] + [(THREADED, *m) for m in THREADED_MUTANTS],
    ids=[m[0].replace(" ", "-") for m in MUTANTS + THREADED_MUTANTS],
)
def test_mutant(source, obligation, old, new, test, tmp_path):
    """Some mutants show only where two threads meet: what three runs do not catch is not caught."""
    mutant = build(tmp_path, mutate(source, obligation, old, new), "mutant")
    for _run in range(3):
        passed, said = run(mutant, test, patience_ms=4000)
        if not passed:
            break
    assert not passed, f"'{obligation}' can be broken, and {test} passes:\n{said[-2000:]}"


@pytest.mark.parametrize("old,new,said_how", [
    ("pthread_create(&native->thread, NULL, work, native)", "(pthread_attr_init(&attributes), pthread_attr_setstacksize(&attributes, ACCRT_KERNEL_STACK_BYTES), pthread_create(&native->thread, &attributes, work, native))",
     "ended by signal 11"),
    ("  const uint32_t only_tells =", "  if (job->kind == JOB_COMMAND && job->command.as.dispatch.kernel == &job->kernel)\n    exit(0);\n  const uint32_t only_tells =", "with status 0"),
    ("  const uint32_t only_tells =", "  if (job->kind == JOB_COMMAND && job->command.as.dispatch.kernel == &job->kernel)\n    abort();\n  const uint32_t only_tells =", "ended by signal 6"),
], ids=["stacks-that-are-too-small", "exit", "abort"])  # fmt: skip
def test_the_suite_names_the_test_that_crashes(old, new, said_how, tmp_path):
    text = THREADED.read_text()
    assert old in text
    text = text.replace(old, new, 1).replace("  native->device = device;\n", "  native->device = device;\n  pthread_attr_t attributes;\n  (void)attributes;\n", 1)
    passed, said = run(build(tmp_path, text, "mutant"), "direct.test_what_kernels_find", "direct.test_commands_alone_are_patched", patience_ms=4000)
    assert not passed
    crashed = "direct.test_what_kernels_find" if "11" in said_how else "direct.test_commands_alone_are_patched"
    assert f"cts: {crashed} crashed: " in said and said_how in said, said[-2000:]
    assert f"] {crashed}" in said, "what was printed before the crash is lost"
