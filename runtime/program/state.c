/* runtime/program/state.c - a session's memory: states, the arena, and the release of buffers that
 * calls in flight may still use. */
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
  return accrt_inner_buffer_create(session->pool, size_bytes, &options, out_buffer);
}

void accrt_session_let_go(accrt_session_t* session, accrt_buffer_t* buffer) {
  if (buffer == NULL)
    return;
  if (accrt_session_is_busy(session)) {
    const accrt_error_t saved = *accrt_error_current();
    if (accrt_buffer_note_use(buffer, session->stream, session->last_submission) != ACCRT_OK) {
      /* No memory to note the use. Waiting for the stream is the only safe way left. */
      (void)accrt_inner_stream_synchronize(session->stream, ACCRT_TIMEOUT_INFINITE,
                                           ACCRT_WAIT_BLOCK);
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
  const accrt_status_t status =
      accrt_inner_buffer_create(session->pool, size_bytes, &options, &arena);
  if (status != ACCRT_OK) {
    accrt_error_prefix("arena");
    return status;
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

/* Charges a state's size to the budget before the state is allocated. On a device with its own
 * memory the pool sets the limit. */
static accrt_status_t charge_state(const accrt_program_t* program, uint64_t size_bytes) {
  accrt_meter_t* const meter = accrt_meter_current;
  if (meter == NULL)
    return ACCRT_OK;
  ACCRT_TRY(accrt_charge(1));
  ACCRT_TRY(accrt_checkpoint());
  if (!accrt_program_has_own_memory(program))
    ACCRT_TRY(accrt_meter_take(meter, size_bytes));
  return ACCRT_OK;
}

accrt_status_t accrt_session_create_states(accrt_session_t* session) {
  accrt_program_t* program = session->program;
  const uint32_t count = program->tables->state_count;
  void* memory;
  ACCRT_TRY(accrt_alloc_array(program->allocator, count, sizeof *session->states, &memory));
  session->states = memory;
  accrt_status_t status =
      accrt_alloc_array(program->allocator, count, sizeof *session->state_bytes, &memory);
  session->state_bytes = memory;
  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i) {
    accrt_session_state_t* state = &session->states[i];
    ACCRT_TRY(accrt_state_size(program, i, session->symbols, NULL, &state->size_bytes));
    session->state_bytes[i] = state->size_bytes;
    accrt_buffer_t* buffer;
    status = charge_state(program, state->size_bytes);
    if (status == ACCRT_OK)
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

/* Bytes to fill between two checks of the budget's time: some hundredths of a second. */
#define FILL_BYTES (UINT64_C(1) << 26)

/* Fills up to FILL_BYTES at a time. `pending_bytes` counts the bytes that are submitted but not yet
 * waited for. */
static accrt_status_t fill_pieces(accrt_stream_t* stream, const accrt_session_state_t* state,
                                  uint64_t pattern, uint32_t pattern_bytes,
                                  uint64_t* pending_bytes) {
  accrt_status_t status = ACCRT_OK;
  uint64_t piece_bytes;
  for (uint64_t done = 0; done < state->size_bytes && status == ACCRT_OK; done += piece_bytes) {
    const accrt_place_t target = {state->buffer, NULL, state->offset_bytes + done};
    piece_bytes = state->size_bytes - done < FILL_BYTES ? state->size_bytes - done : FILL_BYTES;
    status = accrt_checkpoint();
    if (status == ACCRT_OK)
      status = accrt_inner_stream_fill(stream, &target, piece_bytes, pattern, pattern_bytes);
    *pending_bytes += piece_bytes;
    if (status != ACCRT_OK || *pending_bytes < FILL_BYTES)
      continue;
    *pending_bytes = 0;
    status = accrt_finish_stream(stream);
  }
  return status;
}

/* `is_new`: nothing was written to the state since its buffer was allocated. */
static accrt_status_t fill_state(const accrt_session_t* session, accrt_stream_t* stream,
                                 uint32_t index, const accrt_session_state_t* state, bool is_new,
                                 uint64_t* pending_bytes) {
  const accx_state_t* record = &session->program->tables->states[index];
  const uint32_t bits = accrt_dtype_bits(record->type.dtype);
  uint64_t pattern = record->fill_pattern;
  /* Pages that are not touched are not taken from the system: pools of pages for long texts. */
  if (is_new && pattern == 0 && state->buffer != NULL && accrt_buffer_began_zeroed(state->buffer))
    return ACCRT_OK;
  /* Repeat elements of less than a byte until they fill the byte. */
  for (uint32_t b = bits; b < 8; b *= 2) {
    pattern &= (UINT64_C(1) << b) - 1;
    pattern |= pattern << b;
  }
  return fill_pieces(stream, state, pattern, bits < 8 ? 1 : bits / 8, pending_bytes);
}

/* Fills states from `first` on, which no work uses, and returns when they are filled. It uses a
 * separate stream: calls that wait for something may be on the session's stream. */
static accrt_status_t fill_states(const accrt_session_t* session,
                                  const accrt_session_state_t* states, uint32_t first,
                                  uint32_t count, bool are_new) {
  if (count == 0)
    return ACCRT_OK;
  accrt_stream_t* stream;
  ACCRT_TRY(accrt_inner_stream_create(session->program->device, NULL, &stream));
  uint64_t pending_bytes = 0;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i)
    status = fill_state(session, stream, first + i, &states[i], are_new, &pending_bytes);
  /* Wait even after a failure, so that nothing writes later. */
  const accrt_error_t error = *accrt_error_current();
  const accrt_status_t finished = accrt_finish_stream(stream);
  accrt_stream_release(stream);
  return status != ACCRT_OK ? accrt_error_restore(&error) : finished;
}

accrt_status_t accrt_session_fill_states(accrt_session_t* session, bool are_new) {
  return fill_states(session, session->states, 0, session->program->tables->state_count, are_new);
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
  ACCRT_ENTER(session, out_tensor, shape, strides);
  ACCRT_USE_SESSION(session);
  uint32_t index = 0;
  ACCRT_TRY(find_state(session, name, &index));
  int64_t own[ACCX_MAX_RANK];
  uint64_t size_bytes;
  ACCRT_TRY(accrt_state_size(session->program, index, session->symbols, own, &size_bytes));
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
  const accrt_status_t status = accrt_device_check_same("buffer", accrt_buffer_device(buffer),
                                                        "session", session->program->device);
  if (status != ACCRT_OK) {
    accrt_error_prefix("state '%s'", state_name(session, index));
    return status;
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

/* Gives a state session-owned storage with its initial value. */
static accrt_status_t bind_own(accrt_session_t* session, uint32_t index) {
  accrt_session_state_t made = session->states[index];
  accrt_buffer_t* buffer;
  ACCRT_TRY(accrt_session_allocate(session, made.size_bytes, state_name(session, index), &buffer));
  set_storage(&made, buffer, 0, false);
  accrt_status_t status = fill_states(session, &made, index, 1, true);
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
  ACCRT_ENTER(session);
  ACCRT_USE_SESSION(session);
  uint32_t index = 0;
  ACCRT_TRY(find_state(session, name, &index));
  accrt_status_t status = ACCRT_OK;
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
