/* serve/program_adapters.c - see serve/program_adapters.h. */
#include "serve/program_adapters.h"

#include <string.h>

#define PREFIX "lora."

static bool is_factors(const char* name) {
  return strncmp(name, PREFIX, sizeof PREFIX - 1) == 0;
}

/* ---- What there is ---- */

static accrt_status_t find_state(accrt_session_t* session, const char* name, uint32_t places,
                                 accsv_factors_t* out) {
  accrt_tensor_t tensor;
  int64_t shape[ACCRT_MAX_RANK], strides[ACCRT_MAX_RANK];
  ACCRT_TRY(accrt_session_state(session, name, &tensor, shape, strides));
  if (tensor.rank < 2 || shape[0] != (int64_t)places)
    return ACCSV_FAIL(INVALID_FORMAT, "state '%s' has no room for %" PRIu32 " adapters", name,
                      places);
  uint64_t elements = 1;
  for (uint32_t i = 1; i < tensor.rank; ++i)
    elements *= (uint64_t)shape[i];
  *out = (accsv_factors_t){.name = name,
                           .buffer = accrt_buffer_retain(tensor.buffer),
                           .offset_bytes = tensor.offset_bytes,
                           .row_bytes = elements * accrt_dtype_bits(tensor.dtype) / 8};
  return ACCRT_OK;
}

static accrt_status_t state_name(accrt_bundle_t* bundle, uint32_t index, const char** out_name) {
  accrt_state_info_t info = ACCRT_STATE_INFO_INIT;
  ACCRT_TRY(accrt_bundle_state(bundle, index, &info));
  *out_name = info.name;
  return ACCRT_OK;
}

accrt_status_t accsv_program_adapters_init(accsv_program_adapters_t* adapters,
                                           accrt_session_t* session, accrt_bundle_t* bundle,
                                           uint32_t places) {
  if (places == 0)
    return ACCRT_OK;
  accrt_bundle_info_t info = ACCRT_BUNDLE_INFO_INIT;
  ACCRT_TRY(accrt_bundle_info(bundle, &info));
  uint32_t count = 0;
  for (uint32_t i = 0; i < info.state_count; ++i) {
    const char* name;
    ACCRT_TRY(state_name(bundle, i, &name));
    count += is_factors(name);
  }
  ACCRT_TRY(ACCSV_NEW(&accsv_allocator_system, count, &adapters->states));
  adapters->count = count;
  adapters->places = places;
  accsv_factors_t* next = adapters->states;
  for (uint32_t i = 0; i < info.state_count; ++i) {
    const char* name;
    ACCRT_TRY(state_name(bundle, i, &name));
    if (is_factors(name))
      ACCRT_TRY(find_state(session, name, places, next++));
  }
  return ACCRT_OK;
}

void accsv_program_adapters_deinit(accsv_program_adapters_t* adapters) {
  for (uint32_t i = 0; i < adapters->count; ++i)
    accrt_buffer_release(adapters->states[i].buffer);
  ACCSV_FREE(&accsv_allocator_system, adapters->states, adapters->count);
  *adapters = (accsv_program_adapters_t){0};
}

/* ---- Putting one into its place ---- */

/* Tensors come in the order of the states, mostly: the search begins at `first`. */
static accsv_factors_t* find(const accsv_program_adapters_t* adapters, const char* name,
                             uint32_t first) {
  for (uint32_t i = 0; i < adapters->count; ++i) {
    accsv_factors_t* state = &adapters->states[(first + i) % adapters->count];
    if (strcmp(state->name, name) == 0)
      return state;
  }
  return NULL;
}

static accrt_status_t check(accsv_program_adapters_t* adapters,
                            const accrt_serve_adapter_tensor_t* tensors, uint32_t tensor_count) {
  for (uint32_t i = 0; i < adapters->count; ++i)
    adapters->states[i].given = false;
  for (uint32_t i = 0; i < tensor_count; ++i) {
    accsv_factors_t* state = find(adapters, tensors[i].name, i);
    if (state == NULL)
      return ACCSV_FAIL(NOT_FOUND, "the model has no place for '%.200s'", tensors[i].name);
    if (tensors[i].size_bytes != state->row_bytes)
      return ACCSV_FAIL(SHAPE_MISMATCH, "'%.200s' has %" PRIu64 " bytes, expected %" PRIu64,
                        state->name, tensors[i].size_bytes, state->row_bytes);
    if (state->given)
      return ACCSV_FAIL(INVALID_ARGUMENT, "'%.200s' is there twice", state->name);
    state->given = true;
  }
  return ACCRT_OK;
}

static accrt_place_t target_of(const accsv_factors_t* state, uint32_t place) {
  return (accrt_place_t){.buffer = state->buffer,
                         .offset_bytes = state->offset_bytes + place * state->row_bytes};
}

static accrt_status_t put(const accsv_program_adapters_t* adapters, accrt_stream_t* stream,
                          uint32_t place, const accrt_serve_adapter_tensor_t* tensors,
                          uint32_t tensor_count) {
  for (uint32_t i = 0; i < adapters->count; ++i) {
    const accrt_place_t target = target_of(&adapters->states[i], place);
    if (!adapters->states[i].given)
      ACCRT_TRY(accrt_stream_fill(stream, &target, adapters->states[i].row_bytes, 0, 1));
  }
  for (uint32_t i = 0; i < tensor_count; ++i) {
    const accsv_factors_t* state = find(adapters, tensors[i].name, i);
    const accrt_place_t target = target_of(state, place);
    /* It is only read, though the place is not const. */
    const accrt_place_t source = {.pointer = (void*)(uintptr_t)tensors[i].data};
    ACCRT_TRY(accrt_stream_copy(stream, &source, &target, state->row_bytes));
  }
  return ACCRT_OK;
}

accrt_status_t accsv_program_adapters_set(accsv_program_adapters_t* adapters,
                                          accrt_stream_t* stream, uint32_t place,
                                          const accrt_serve_adapter_tensor_t* tensors,
                                          uint32_t tensor_count) {
  if (place >= adapters->places)
    return ACCSV_FAIL(OUT_OF_RANGE, "place %" PRIu32 " of %" PRIu32, place, adapters->places);
  ACCRT_TRY(check(adapters, tensors, tensor_count));
  const accrt_status_t status = put(adapters, stream, place, tensors, tensor_count);
  /* What was queued reads the caller's memory: also after a failure nothing may be left. */
  const accrt_status_t ended =
      accrt_stream_synchronize(stream, ACCRT_TIMEOUT_INFINITE, ACCRT_WAIT_BLOCK);
  return status != ACCRT_OK ? status : ended;
}

/* ---- A reset ---- */

static uint64_t largest(const accsv_program_adapters_t* adapters) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < adapters->count; ++i) {
    const uint64_t bytes = adapters->places * adapters->states[i].row_bytes;
    most = bytes > most ? bytes : most;
  }
  return most;
}

/* Gives the states one buffer that may be filled with zeros, or (NULL) their own again. */
static accrt_status_t rebind(const accsv_program_adapters_t* adapters, accrt_session_t* session,
                             accrt_buffer_t* spare) {
  for (uint32_t i = 0; i < adapters->count; ++i) {
    const accsv_factors_t* state = &adapters->states[i];
    ACCRT_TRY(accrt_session_bind_state(session, state->name, spare != NULL ? spare : state->buffer,
                                       spare != NULL ? 0 : state->offset_bytes));
  }
  return ACCRT_OK;
}

accrt_status_t accsv_program_adapters_reset(accsv_program_adapters_t* adapters,
                                            accrt_device_t* device, accrt_session_t* session) {
  if (adapters->count == 0)
    return accrt_session_reset(session);
  accrt_pool_t* pool;
  accrt_buffer_t* spare;
  ACCRT_TRY(accrt_device_pool(device, ACCRT_MEMORY_DEVICE, &pool));
  ACCRT_TRY(accrt_buffer_create(pool, largest(adapters), NULL, &spare));
  accrt_status_t status = rebind(adapters, session, spare);
  if (status == ACCRT_OK)
    status = accrt_session_reset(session);
  const accrt_status_t bound = rebind(adapters, session, NULL);
  accrt_buffer_release(spare);
  return status != ACCRT_OK ? status : bound;
}
