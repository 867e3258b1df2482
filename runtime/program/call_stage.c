/* runtime/program/call_stage.c - plain host memory as arguments on devices that cannot access it.
 * Each such argument has a device buffer. The session's stream fills it before a run and copies it
 * back afterwards.
 *
 * The argument keeps its host address for overlap checks. Only the binding table has the buffer's
 * address. This file does not know how copies are done.
 */
#include "runtime/program/internal.h"

static bool is_staged(const accrt_call_t* call, uint32_t index) {
  const accrt_call_argument_t* argument = &call->arguments[index];
  return call->stages && call->present[index] && argument->bound && argument->buffer == NULL &&
         argument->size_bytes != 0 && call->signature[index].kind != ACCX_ARGUMENT_SCALAR;
}

static void release_staged(accrt_call_t* call, accrt_buffer_t* buffer) {
  if (buffer == NULL)
    return;
  accrt_buffer_ref(buffer);
  accrt_session_let_go(call->session, buffer);
  accrt_buffer_release(buffer);
}

void accrt_call_unstage(accrt_call_t* call, uint32_t index) {
  accrt_call_argument_t* argument = &call->arguments[index];
  release_staged(call, argument->staged);
  argument->staged = NULL;
  argument->staged_address = 0;
  argument->staged_bytes = 0;
}

static accrt_status_t allocate(accrt_call_t* call, uint32_t index) {
  accrt_call_argument_t* argument = &call->arguments[index];
  if (argument->staged != NULL && !argument->staged_shared &&
      argument->staged_bytes >= argument->size_bytes)
    return ACCRT_OK;
  accrt_buffer_t* buffer;
  const accrt_status_t status = accrt_session_allocate(
      call->session, argument->size_bytes, accrt_call_argument_name(call, index), &buffer);
  if (status != ACCRT_OK) {
    accrt_call_prefix(call, index);
    return status;
  }
  accrt_call_unstage(call, index);
  argument->staged = buffer;
  argument->staged_shared = false;
  accrt_buffer_range(buffer, &argument->staged_address, &argument->staged_bytes);
  return ACCRT_OK;
}

/* The input whose memory the caller bound to this result too. NONE when the result has memory of
 * its own. */
static uint32_t shared_input(const accrt_call_t* call, uint32_t index) {
  const accx_argument_t* record = &call->signature[index];
  if (record->kind != ACCX_ARGUMENT_RESULT || record->alias_kind == ACCX_ALIAS_NONE)
    return ACCX_NONE;
  const bool same = is_staged(call, record->alias_input) &&
                    call->arguments[record->alias_input].address == call->arguments[index].address;
  return same ? record->alias_input : ACCX_NONE;
}

static void share(accrt_call_t* call, uint32_t index, uint32_t input) {
  accrt_call_argument_t* argument = &call->arguments[index];
  const accrt_call_argument_t* source = &call->arguments[input];
  if (argument->staged != source->staged) {
    accrt_call_unstage(call, index);
    argument->staged = accrt_buffer_retain(source->staged);
  }
  argument->staged_shared = true;
  argument->staged_address = source->staged_address;
  argument->staged_bytes = source->staged_bytes;
}

accrt_status_t accrt_call_stage(accrt_call_t* call) {
  accrt_status_t status = ACCRT_OK;
  call->staged_count = 0;
  for (uint32_t i = 0; call->stages && i < call->argument_count && status == ACCRT_OK; ++i) {
    if (!is_staged(call, i)) {
      accrt_call_unstage(call, i);
      continue;
    }
    call->staged_count += 1;
    /* inputs come first, so this one has its buffer already */
    const uint32_t input = shared_input(call, i);
    if (input == ACCX_NONE) {
      status = allocate(call, i);
    } else {
      share(call, i, input);
    }
  }
  return status;
}

uint64_t accrt_call_device_address(const accrt_call_t* call, uint32_t index) {
  const accrt_call_argument_t* argument = &call->arguments[index];
  if (argument->shared)
    return accrt_call_device_address(call, call->signature[index].alias_input);
  return argument->staged != NULL ? argument->staged_address : argument->address;
}

static accrt_status_t copy(accrt_call_t* call, uint32_t index, bool in) {
  const accrt_call_argument_t* argument = &call->arguments[index];
  const accrt_place_t host = {NULL, argument->data, argument->offset_bytes};
  const accrt_place_t device = {argument->staged, NULL, 0};
  const accrt_status_t status = accrt_inner_stream_copy(call->session->stream, in ? &host : &device,
                                                        in ? &device : &host, argument->size_bytes);
  if (status != ACCRT_OK)
    accrt_call_prefix(call, index);
  return status;
}

accrt_status_t accrt_call_copy_in(accrt_call_t* call) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < call->input_count && call->staged_count != 0 && status == ACCRT_OK;
       ++i) {
    if (call->arguments[i].staged != NULL)
      status = copy(call, i, true);
  }
  return status;
}

accrt_status_t accrt_call_copy_out(accrt_call_t* call) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < call->argument_count && call->staged_count != 0 && status == ACCRT_OK;
       ++i) {
    const uint32_t kind = call->signature[i].kind;
    const bool is_written = kind == ACCX_ARGUMENT_RESULT || kind == ACCX_ARGUMENT_READ_WRITE;
    if (call->arguments[i].staged != NULL && is_written)
      status = copy(call, i, false);
  }
  return status;
}
