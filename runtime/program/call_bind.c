/* runtime/program/call_bind.c - storage of a call: the places of results, overlaps between
 * arguments, and the binding table. */
#include <string.h>

#include "runtime/program/internal.h"

/* ---- Results ---- */

/* The call may write its own result buffer again when no other object has a reference to it and no
 * submitted work uses it. */
static bool is_free_again(const accrt_call_t* call, const accrt_call_argument_t* result) {
  return !call->maybe_in_flight && accrt_buffer_is_unshared(result->buffer);
}

static accrt_status_t allocate_result(accrt_call_t* call, uint32_t argument) {
  accrt_call_argument_t* result = &call->arguments[argument];
  uint64_t capacity_bytes = call->plan->result_bytes[argument - call->input_count];
  if (result->size_bytes > capacity_bytes)
    capacity_bytes = result->size_bytes;
  if (result->own && result->capacity_bytes >= capacity_bytes && is_free_again(call, result))
    return ACCRT_OK;
  accrt_buffer_t* buffer;
  const accrt_status_t status = accrt_session_allocate(
      call->session, capacity_bytes, accrt_call_argument_name(call, argument), &buffer);
  if (status != ACCRT_OK) {
    accrt_call_prefix(call, argument);
    return status;
  }
  accrt_call_clear_argument(call, argument);
  result->buffer = buffer;
  result->own = true;
  accrt_buffer_range(buffer, &result->address, &result->capacity_bytes);
  call->dirty |= ACCRT_CALL_DIRTY_ADDRESSES;
  return ACCRT_OK;
}

static accrt_status_t fail_alias(const accrt_call_t* call, uint32_t argument, uint32_t input) {
  const accrt_status_t status = ACCRT_FAIL(
      ALIASED,
      "it must have the storage of input '%s': it is at 0x%" PRIx64 ", the input at 0x%" PRIx64,
      accrt_call_argument_name(call, input), call->arguments[argument].address,
      call->arguments[input].address);
  accrt_call_prefix(call, argument);
  return status;
}

/* Gives a result the storage of its input. */
static accrt_status_t share_input(accrt_call_t* call, uint32_t argument, uint32_t input) {
  accrt_call_argument_t* result = &call->arguments[argument];
  const accrt_call_argument_t* source = &call->arguments[input];
  if (result->bound)
    return result->address == source->address ? ACCRT_OK : fail_alias(call, argument, input);
  if (result->size_bytes > source->size_bytes) {
    const accrt_status_t status =
        ACCRT_FAIL(SHAPE_MISMATCH, "it needs %" PRIu64 " bytes, its input '%s' has %" PRIu64,
                   result->size_bytes, accrt_call_argument_name(call, input), source->size_bytes);
    accrt_call_prefix(call, argument);
    return status;
  }
  if (result->own)
    accrt_call_clear_argument(call, argument);
  if (!result->shared || result->address != source->address)
    call->dirty |= ACCRT_CALL_DIRTY_ADDRESSES;
  result->shared = true;
  result->address = source->address;
  return ACCRT_OK;
}

static accrt_status_t place_results(accrt_call_t* call) {
  accrt_status_t status = ACCRT_OK;
  if (call->maybe_in_flight) {
    call->maybe_in_flight = accrt_session_is_busy(call->session);
    /* A stream updates its progress only when it is queried. The query
     * is worth its cost only where a result's buffer might be reused. */
    if (call->maybe_in_flight && call->own_results) {
      accrt_fence_refresh(accrt_stream_fence(call->session->stream));
      call->maybe_in_flight = accrt_session_is_busy(call->session);
    }
  }
  for (uint32_t i = call->input_count; i < call->argument_count && status == ACCRT_OK; ++i) {
    const accx_argument_t* record = &call->signature[i];
    if (record->alias_kind == ACCX_ALIAS_MUST && call->present[record->alias_input]) {
      status = share_input(call, i, record->alias_input);
    } else if (!call->arguments[i].bound) {
      call->arguments[i].shared = false;
      status = allocate_result(call, i);
    }
  }
  return status;
}

/* ---- Overlap ---- */

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a_bytes != 0 && b_bytes != 0 && a < b + b_bytes && b < a + a_bytes;
}

static bool is_written(const accrt_call_t* call, uint32_t argument) {
  const uint32_t kind = call->signature[argument].kind;
  return kind == ACCX_ARGUMENT_READ_WRITE || kind == ACCX_ARGUMENT_DONATED ||
         kind == ACCX_ARGUMENT_RESULT;
}

static bool has_storage(const accrt_call_t* call, uint32_t argument) {
  return call->present[argument] && call->signature[argument].kind != ACCX_ARGUMENT_SCALAR;
}

/* True when `argument` is a result that may have exactly the storage of `other`. */
static bool may_alias(const accrt_call_t* call, uint32_t argument, uint32_t other) {
  const accx_argument_t* record = &call->signature[argument];
  return record->kind == ACCX_ARGUMENT_RESULT && record->alias_kind != ACCX_ALIAS_NONE &&
         record->alias_input == other &&
         call->arguments[argument].address == call->arguments[other].address;
}

static accrt_status_t fail_overlap(const accrt_call_t* call, uint32_t argument, const char* what,
                                   const char* name, uint64_t address, uint64_t size_bytes) {
  const accrt_call_argument_t* own = &call->arguments[argument];
  const accrt_status_t status =
      ACCRT_FAIL(ALIASED,
                 "its %" PRIu64 " bytes at 0x%" PRIx64 " overlap %s '%s' (%" PRIu64
                 " bytes at 0x%" PRIx64 "), and one of them is written",
                 own->size_bytes, own->address, what, name, size_bytes, address);
  accrt_call_prefix(call, argument);
  return status;
}

static accrt_status_t check_arguments(const accrt_call_t* call, uint32_t written) {
  const accrt_call_argument_t* own = &call->arguments[written];
  for (uint32_t i = 0; i < call->argument_count; ++i) {
    const accrt_call_argument_t* other = &call->arguments[i];
    if (i == written || !has_storage(call, i))
      continue;
    if (!overlap(own->address, own->size_bytes, other->address, other->size_bytes))
      continue;
    if (may_alias(call, written, i) || may_alias(call, i, written))
      continue;
    return fail_overlap(call, written, i < call->input_count ? "input" : "result",
                        accrt_call_argument_name(call, i), other->address, other->size_bytes);
  }
  return ACCRT_OK;
}

/* Compares one binding of the plan (memory of the session or the program) with the storage that the
 * caller bound. */
static accrt_status_t check_binding(const accrt_call_t* call, uint32_t index) {
  const accrt_plan_binding_t* binding = &call->plan->bindings[index];
  const bool is_written_by_plan = (binding->access & ACCRT_KERNEL_ACCESS_WRITE) != 0;
  const accrt_bundle_tables_t* tables = call->program->tables;
  for (uint32_t i = 0; i < call->argument_count; ++i) {
    const accrt_call_argument_t* own = &call->arguments[i];
    if (!own->bound || !has_storage(call, i) || !(is_written_by_plan || is_written(call, i)))
      continue;
    if (!overlap(own->address, own->size_bytes, call->bindings[index].address,
                 call->bindings[index].size_bytes))
      continue;
    const bool is_state = binding->kind == ACCRT_PLAN_STATE;
    return fail_overlap(
        call, i, is_state ? "state" : "memory of the",
        is_state ? accrt_program_string(call->program, tables->states[binding->index].name)
                 : "program",
        call->bindings[index].address, call->bindings[index].size_bytes);
  }
  return ACCRT_OK;
}

static accrt_status_t check_aliases(const accrt_call_t* call) {
  bool writes_bound_memory = false;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < call->argument_count && status == ACCRT_OK; ++i) {
    /* A buffer that the runtime allocated overlaps no other argument. */
    if (call->arguments[i].own || !has_storage(call, i) || !is_written(call, i))
      continue;
    writes_bound_memory = true;
    status = check_arguments(call, i);
  }
  for (uint32_t i = 0; i < call->plan->binding_count && status == ACCRT_OK; ++i) {
    const uint32_t kind = call->plan->bindings[i].kind;
    if (kind == ACCRT_PLAN_STATE || (kind == ACCRT_PLAN_COMPONENT && writes_bound_memory))
      status = check_binding(call, i);
  }
  return status;
}

/* ---- The table ---- */

static accrt_driver_binding_t resolve_binding(const accrt_call_t* call,
                                              const accrt_plan_binding_t* binding) {
  const accrt_session_t* session = call->session;
  accrt_driver_binding_t result = {0, 0};
  switch (binding->kind) {
  case ACCRT_PLAN_ARGUMENT:
    if (!call->present[binding->index])
      break;
    result.address = accrt_call_device_address(call, binding->index);
    result.size_bytes = call->arguments[binding->index].size_bytes;
    break;
  case ACCRT_PLAN_COMPONENT:
    result.address = session->weights->components[binding->index].address;
    result.size_bytes = session->weights->components[binding->index].size_bytes;
    break;
  case ACCRT_PLAN_STATE:
    result.address = session->states[binding->index].address;
    result.size_bytes = session->states[binding->index].size_bytes;
    break;
  default:
    result.address = session->arena_address;
    result.size_bytes = session->arena_bytes;
    break;
  }
  return result;
}

accrt_status_t accrt_call_bind(accrt_call_t* call) {
  accrt_session_t* session = call->session;
  accrt_status_t status = ACCRT_OK;
  if (call->plan->arena_bytes > session->arena_bytes)
    status = accrt_session_reserve_arena(session, call->plan->arena_bytes);
  if (status != ACCRT_OK)
    return status;
  accrt_session_refresh_weights(session);
  if (call->own_results || (call->dirty & ACCRT_CALL_DIRTY_ADDRESSES) != 0)
    status = place_results(call);
  if (status != ACCRT_OK)
    return status;
  const uint32_t relevant = ACCRT_CALL_DIRTY_ADDRESSES | ACCRT_CALL_DIRTY_SHAPES;
  if ((call->dirty & relevant) == 0 && call->session_version == session->version)
    return ACCRT_OK;
  ACCRT_TRY(accrt_call_stage(call));
  for (uint32_t i = 0; i < call->plan->binding_count; ++i) {
    call->bindings[i] = resolve_binding(call, &call->plan->bindings[i]);
  }
  status = check_aliases(call);
  if (status == ACCRT_OK)
    call->session_version = session->version;
  return status;
}
