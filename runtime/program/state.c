/* runtime/program/state.c - a session's memory: states, the arena, buffers that calls in flight still use. */
#include <string.h>

#include "runtime/core/near_name.h"
#include "runtime/core/struct.h"
#include "runtime/program/internal.h"

accrt_status_t accrt_session_allocate(accrt_session_t* session, uint64_t size_bytes,
                                      const char* label, accrt_buffer_t** out_buffer) {
  char bytes[64];
  accrt_text_t text = {bytes, sizeof bytes, 0};
  accrt_text_add(&text, "%s%s%s", session->label != NULL ? session->label : "",
                 session->label != NULL ? "." : "", label);
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.alignment_bytes = ACCRT_STORAGE_ALIGN;
  options.label = bytes;
  const accrt_status_t status =
      accrt_buffer_create(session->pool, size_bytes, &options, out_buffer);
  if (status != ACCRT_OK)
    return status;
  accrt_device_t* device = accrt_buffer_device(*out_buffer);
  if (device == session->program->device)
    return ACCRT_OK;
  accrt_buffer_release(*out_buffer);
  *out_buffer = NULL;
  return ACCRT_FAIL(INVALID_ARGUMENT, "the pool is of device '%s', the session's program of '%s'",
                    accrt_device_facts(device)->name,
                    accrt_device_facts(session->program->device)->name);
}

void accrt_session_let_go(accrt_session_t* session, accrt_buffer_t* buffer) {
  if (buffer == NULL)
    return;
  if (accrt_session_is_busy(session)) {
    const accrt_error_t saved = *accrt_error_current();
    if (accrt_buffer_note_use(buffer, session->stream, session->last_submission) != ACCRT_OK) {
      /* No memory to note it: the one safe thing left is to wait for what uses the buffer. */
      (void)accrt_stream_synchronize(session->stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
      (void)accrt_error_restore(&saved);
    }
  }
  accrt_buffer_unref(buffer);
}

/* ---- Arena ---- */

accrt_status_t accrt_session_reserve_arena(accrt_session_t* session, uint64_t size_bytes) {
  if (size_bytes <= session->arena_bytes)
    return ACCRT_OK;
  accrt_buffer_options_t options = ACCRT_BUFFER_OPTIONS_INIT;
  options.alignment_bytes = ACCRT_ARENA_ALIGN;
  options.label = session->label != NULL ? session->label : "arena";
  accrt_buffer_t* arena;
  const accrt_status_t status = accrt_buffer_create(session->pool, size_bytes, &options, &arena);
  if (status != ACCRT_OK) {
    accrt_error_prefix("arena");
    return status;
  }
  if (accrt_buffer_device(arena) != session->program->device) {
    accrt_buffer_release(arena);
    return ACCRT_FAIL(INVALID_ARGUMENT, "the session's pool is not of its program's device '%s'",
                      accrt_device_facts(session->program->device)->name);
  }
  accrt_program_internalize(session->program);
  accrt_session_let_go(session, session->arena);
  session->arena = arena;
  accrt_buffer_range(arena, &session->arena_address, &session->arena_bytes);
  ++session->version;
  return ACCRT_OK;
}

/* ---- States ---- */

static void set_storage(accrt_session_state_t* state, accrt_buffer_t* buffer, uint64_t offset_bytes,
                        bool external) {
  uint64_t address;
  uint64_t size_bytes;
  accrt_buffer_range(buffer, &address, &size_bytes);
  state->buffer = buffer;
  state->offset_bytes = offset_bytes;
  state->address = address + offset_bytes;
  state->external = external;
}

static const char* state_name(const accrt_session_t* session, uint32_t state) {
  return accrt_program_string(session->program, session->program->tables->states[state].name);
}

accrt_status_t accrt_session_create_states(accrt_session_t* session) {
  accrt_program_t* program = session->program;
  const uint32_t count = program->tables->state_count;
  void* memory;
  accrt_status_t status =
      accrt_alloc_array(program->allocator, count, sizeof *session->states, &memory);
  if (status != ACCRT_OK)
    return status;
  session->states = memory;
  status = accrt_alloc_array(program->allocator, count, sizeof *session->state_bytes, &memory);
  session->state_bytes = memory;
  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i) {
    accrt_session_state_t* state = &session->states[i];
    status = accrt_state_size(program, i, session->symbols, NULL, &state->size_bytes);
    if (status != ACCRT_OK)
      return status;
    session->state_bytes[i] = state->size_bytes;
    accrt_buffer_t* buffer;
    status = accrt_session_allocate(session, state->size_bytes, state_name(session, i), &buffer);
    if (status != ACCRT_OK)
      accrt_error_prefix("state '%s'", state_name(session, i));
    if (status == ACCRT_OK) {
      accrt_program_internalize(program);
      set_storage(state, buffer, 0, false);
    }
  }
  return status;
}

void accrt_session_destroy_states(accrt_session_t* session) {
  const uint32_t count = session->program->tables->state_count;
  for (uint32_t i = 0; session->states != NULL && i < count; ++i)
    accrt_buffer_unref(session->states[i].buffer);
  accrt_free_array(session->program->allocator, session->states, count, sizeof *session->states);
  accrt_free_array(session->program->allocator, session->state_bytes, count,
                   sizeof *session->state_bytes);
}

static accrt_status_t fill_state(const accrt_session_t* session, accrt_stream_t* stream,
                                 uint32_t index, const accrt_session_state_t* state) {
  const accx_state_t* record = &session->program->tables->states[index];
  const uint32_t bits = accrt_dtype_bits(record->type.dtype);
  uint64_t pattern = record->fill_pattern;
  /* Elements of less than a byte: as many as a byte has. */
  for (uint32_t b = bits; b < 8; b *= 2) {
    pattern &= (UINT64_C(1) << b) - 1;
    pattern |= pattern << b;
  }
  const accrt_place_t target = {state->buffer, NULL, state->offset_bytes};
  if (state->size_bytes == 0)
    return ACCRT_OK;
  return accrt_stream_fill(stream, &target, state->size_bytes, pattern, bits < 8 ? 1 : bits / 8);
}

/* Fills states from `first` on, which nothing uses now, and returns when they are filled. On a stream apart: the session's may
 * have calls before it that wait for something. */
static accrt_status_t fill_states(const accrt_session_t* session,
                                  const accrt_session_state_t* states, uint32_t first,
                                  uint32_t count) {
  if (count == 0)
    return ACCRT_OK;
  accrt_stream_t* stream;
  accrt_status_t status = accrt_stream_create(session->program->device, NULL, &stream);
  if (status != ACCRT_OK)
    return status;
  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i)
    status = fill_state(session, stream, first + i, &states[i]);
  /* Also after a failure: nothing may be written later. */
  const accrt_error_t error = *accrt_error_current();
  const accrt_status_t finished = accrt_finish_stream(stream);
  accrt_stream_release(stream);
  return status != ACCRT_OK ? accrt_error_restore(&error) : finished;
}

accrt_status_t accrt_session_fill_states(accrt_session_t* session) {
  return fill_states(session, session->states, 0, session->program->tables->state_count);
}

static accrt_status_t find_state(const accrt_session_t* session, const char* name,
                                 uint32_t* out_state) {
  if (name == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "the state's name is NULL");
  *out_state = accrt_bundle_lookup_state(session->program->bundle, name);
  if (*out_state != ACCX_NONE)
    return ACCRT_OK;
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < session->program->tables->state_count; ++i)
    accrt_near_add(&near, state_name(session, i));
  return ACCRT_FAIL(NOT_FOUND, "bundle '%s' has no state '%s'%s",
                    accrt_bundle_name(session->program->bundle), name, accrt_near_text(&near));
}

accrt_status_t accrt_session_state(accrt_session_t* session, const char* name,
                                   accrt_tensor_t* out_tensor, int64_t* shape, int64_t* strides) {
  if (out_tensor != NULL)
    memset(out_tensor, 0, sizeof *out_tensor);
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (session == NULL || out_tensor == NULL || shape == NULL || strides == NULL) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "session, out_tensor, shape or strides is NULL");
  }
  uint32_t index = 0;
  status = find_state(session, name, &index);
  if (status != ACCRT_OK)
    return status;
  int64_t own[ACCX_MAX_RANK];
  uint64_t size_bytes;
  status = accrt_state_size(session->program, index, session->symbols, own, &size_bytes);
  if (status != ACCRT_OK)
    return status;
  const accx_type_t* type = &session->program->tables->states[index].type;
  int64_t stride = 1;
  for (uint32_t i = type->rank; i-- > 0;) {
    shape[i] = own[i];
    strides[i] = stride;
    stride *= own[i] > 0 ? own[i] : 1;
  }
  out_tensor->buffer = session->states[index].buffer;
  out_tensor->offset_bytes = session->states[index].offset_bytes;
  out_tensor->dtype = type->dtype;
  out_tensor->rank = type->rank;
  out_tensor->shape = shape;
  out_tensor->strides = strides;
  return ACCRT_OK;
}

static accrt_status_t check_storage(const accrt_session_t* session, uint32_t index,
                                    accrt_buffer_t* buffer, uint64_t offset_bytes) {
  const accrt_device_t* device = accrt_buffer_device(buffer);
  if (device != session->program->device) {
    return ACCRT_FAIL(INVALID_ARGUMENT,
                      "state '%s': the buffer is of device '%s', the session of '%s'",
                      state_name(session, index), accrt_device_facts(device)->name,
                      accrt_device_facts(session->program->device)->name);
  }
  uint64_t address;
  uint64_t size_bytes;
  accrt_buffer_range(buffer, &address, &size_bytes);
  if (!accrt_range_fits(offset_bytes, session->states[index].size_bytes, size_bytes)) {
    return ACCRT_FAIL(OUT_OF_RANGE,
                      "state '%s' needs %" PRIu64 " bytes, the buffer has %" PRIu64
                      " from offset %" PRIu64,
                      state_name(session, index), session->states[index].size_bytes,
                      offset_bytes <= size_bytes ? size_bytes - offset_bytes : 0, offset_bytes);
  }
  if ((address + offset_bytes) % ACCRT_STORAGE_ALIGN != 0) {
    return ACCRT_FAIL(INVALID_ARGUMENT, "state '%s': address 0x%" PRIx64 " is not a multiple of %u",
                      state_name(session, index), address + offset_bytes, ACCRT_STORAGE_ALIGN);
  }
  return ACCRT_OK;
}

/* Storage of the session's own, with the initial value. */
static accrt_status_t bind_own(accrt_session_t* session, uint32_t index) {
  accrt_session_state_t made = session->states[index];
  accrt_buffer_t* buffer;
  accrt_status_t status =
      accrt_session_allocate(session, made.size_bytes, state_name(session, index), &buffer);
  if (status != ACCRT_OK)
    return status;
  set_storage(&made, buffer, 0, false);
  status = fill_states(session, &made, index, 1);
  if (status != ACCRT_OK) {
    accrt_buffer_release(buffer);
    return status;
  }
  accrt_program_internalize(session->program);
  accrt_session_let_go(session, session->states[index].buffer);
  session->states[index] = made;
  return ACCRT_OK;
}

accrt_status_t accrt_session_bind_state(accrt_session_t* session, const char* name,
                                        accrt_buffer_t* buffer, uint64_t offset_bytes) {
  accrt_status_t status = accrt_check_fork();
  if (status != ACCRT_OK)
    return status;
  if (session == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "session is NULL");
  uint32_t index = 0;
  status = find_state(session, name, &index);
  if (status != ACCRT_OK)
    return status;
  if (buffer == NULL) {
    status = bind_own(session, index);
  } else {
    status = check_storage(session, index, buffer, offset_bytes);
    if (status == ACCRT_OK) {
      accrt_buffer_ref(buffer);
      accrt_session_let_go(session, session->states[index].buffer);
      set_storage(&session->states[index], buffer, offset_bytes, true);
    }
  }
  if (status == ACCRT_OK)
    ++session->version;
  return status;
}
