/* runtime/program/call.c - calls: creation, arguments, results. Running is in call_run.c. */
#include <string.h>

#include "runtime/core/near_name.h"
#include "runtime/program/internal.h"

/* ---- Life ---- */

ACCRT_RARE static void destroy(accrt_call_t* call) {
  accrt_session_t* session = call->session;
  const accrt_program_t* program = call->program;
  const accrt_allocator_t* allocator = program->allocator;
  for (uint32_t i = 0; call->arguments != NULL && i < call->argument_count; ++i)
    accrt_call_clear_argument(call, i);
  accrt_plan_release(call->plan);
  accrt_free_array(allocator, call->arguments, call->argument_count, sizeof *call->arguments);
  accrt_free_array(allocator, call->present, call->argument_count, 1);
  accrt_free_array(allocator, call->symbols, program->tables->symbol_count, sizeof *call->symbols);
  accrt_free_array(allocator, call->binders, program->tables->symbol_count, sizeof *call->binders);
  accrt_free_array(allocator, call->signature_values,
                   program->tables->functions[call->function].expression_count,
                   sizeof *call->signature_values);
  accrt_free_array(allocator, call->key, call->key_count, sizeof *call->key);
  accrt_free_array(allocator, call->bindings, call->binding_capacity, sizeof *call->bindings);
  accrt_free_array(allocator, call->scalars, call->scalar_capacity, sizeof *call->scalars);
  accrt_free_array(allocator, call->values, call->value_capacity, sizeof *call->values);
  accrt_free(allocator, call, sizeof *call);
  accrt_session_release(session);
}

static accrt_status_t allocate(accrt_call_t* call) {
  const accrt_program_t* program = call->program;
  const uint32_t symbol_count = program->tables->symbol_count;
  const uint32_t node_count = program->tables->functions[call->function].expression_count;
  void* memory[6] = {NULL};
  const struct {
    size_t count;
    size_t bytes;
  } wanted[6] = {
      {call->argument_count, sizeof *call->arguments}, {call->argument_count, 1},
      {symbol_count, sizeof *call->symbols},           {symbol_count, sizeof *call->binders},
      {node_count, sizeof *call->signature_values},    {call->key_count, sizeof *call->key}};
  accrt_status_t status = ACCRT_OK;
  for (int i = 0; i < 6 && status == ACCRT_OK; ++i) {
    status = accrt_alloc_array(program->allocator, wanted[i].count, wanted[i].bytes, &memory[i]);
  }
  call->arguments = memory[0];
  call->present = memory[1];
  call->symbols = memory[2];
  call->binders = memory[3];
  call->signature_values = memory[4];
  call->key = memory[5];
  return status;
}

ACCRT_RARE accrt_status_t accrt_call_create(accrt_session_t* session, const char* function,
                                            accrt_call_t** out_call) {
  if (out_call != NULL)
    *out_call = NULL;
  ACCRT_ENTER(out_call, session);
  ACCRT_USE_SESSION(session);
  const accrt_program_t* program = session->program;
  uint32_t index;
  ACCRT_TRY(accrt_program_find_function(program, function, &index));
  accrt_call_t* call;
  ACCRT_TRY(ACCRT_NEW(program->allocator, &call));
  accrt_object_init(&call->object);
  call->session = accrt_session_retain(session);
  call->program = session->program;
  call->function = index;
  call->signature = accrt_function_arguments(program, index);
  call->argument_count = accrt_function_argument_count(program, index);
  call->input_count = program->tables->functions[index].input_count;
  call->key_count = accrt_plan_key_count(program, index);
  call->stages = accrt_program_has_own_memory(program);
  call->dirty = ACCRT_CALL_DIRTY_SHAPES | ACCRT_CALL_DIRTY_ADDRESSES;
  accrt_status_t status = allocate(call);
  if (status != ACCRT_OK) {
    destroy(call);
    return status;
  }
  call->own_results = call->argument_count != call->input_count;
  for (uint32_t i = call->input_count; i < call->argument_count; ++i)
    call->present[i] = 1;
  *out_call = call;
  return ACCRT_OK;
}

accrt_call_t* accrt_call_retain(accrt_call_t* call) {
  if (call != NULL)
    accrt_object_retain(&call->object);
  return call;
}

void accrt_call_release(accrt_call_t* call) {
  if (call == NULL || accrt_forked())
    return;
  if (accrt_object_release(&call->object))
    destroy(call);
}

/* ---- Arguments ---- */

ACCRT_RARE accrt_status_t accrt_call_find(accrt_call_t* call, const char* name,
                                          uint32_t* out_index) {
  if (out_index != NULL)
    *out_index = 0;
  ACCRT_ENTER(call, name, out_index);
  accrt_near_t near;
  accrt_near_init(&near, name);
  for (uint32_t i = 0; i < call->argument_count; ++i) {
    *out_index = i;
    if (strcmp(accrt_call_argument_name(call, i), name) == 0)
      return ACCRT_OK;
    accrt_near_add(&near, accrt_call_argument_name(call, i));
  }
  *out_index = 0;
  return ACCRT_FAIL(NOT_FOUND, "function '%s' has no argument '%s'%s",
                    accrt_function_name(call->program, call->function), name,
                    accrt_near_text(&near));
}

void accrt_call_clear_argument(accrt_call_t* call, uint32_t argument) {
  accrt_call_argument_t* own = &call->arguments[argument];
  accrt_call_unstage(call, argument);
  if (own->buffer != NULL)
    accrt_buffer_ref(own->buffer);
  accrt_session_let_go(call->session, own->buffer);
  accrt_buffer_release(own->buffer);
  own->buffer = NULL;
  own->data = NULL;
  own->offset_bytes = 0;
  own->address = 0;
  own->capacity_bytes = 0;
  own->bound = false;
  own->adapted = false;
  own->own = false;
  own->shared = false;
}

static void note_own_results(accrt_call_t* call) {
  call->own_results = false;
  for (uint32_t i = call->input_count; i < call->argument_count; ++i) {
    call->own_results = call->own_results || !call->arguments[i].bound;
  }
}

static accrt_status_t check_index(const accrt_call_t* call, uint32_t index) {
  if (index < call->argument_count)
    return ACCRT_OK;
  return ACCRT_FAIL(OUT_OF_RANGE, "function '%s' has %" PRIu32 " arguments, there is no %" PRIu32,
                    accrt_function_name(call->program, call->function), call->argument_count,
                    index);
}

/* Checks plain host memory that each run copies. It needs no alignment. */
static accrt_status_t resolve_plain(const accrt_tensor_t* tensor, uint64_t size_bytes,
                                    uint64_t* out_address) {
  uint64_t end;
  if (tensor->data == NULL)
    return ACCRT_FAIL(INVALID_ARGUMENT, "neither a buffer nor a pointer");
  if (accrt_add_u64((uint64_t)(uintptr_t)tensor->data, tensor->offset_bytes, out_address) &&
      accrt_add_u64(*out_address, size_bytes, &end))
    return ACCRT_OK;
  return ACCRT_FAIL(OUT_OF_RANGE, "offset %" PRIu64 " + size %" PRIu64 " from %p wraps around",
                    tensor->offset_bytes, size_bytes, tensor->data);
}

/* Finds the device address of a tensor. A tensor without elements gets address 0. */
static accrt_status_t resolve(const accrt_call_t* call, uint32_t index,
                              const accrt_tensor_t* tensor, uint64_t size_bytes,
                              uint64_t* out_address) {
  *out_address = 0;
  if (size_bytes == 0)
    return ACCRT_OK;
  if (call->stages && tensor->buffer == NULL)
    return resolve_plain(tensor, size_bytes, out_address);
  const accrt_binding_t binding = {tensor->buffer, tensor->data, tensor->offset_bytes, size_bytes};
  accrt_driver_binding_t resolved;
  ACCRT_TRY(accrt_binding_resolve(call->program->device, &binding,
                                  accrt_call_argument_name(call, index), &resolved));
  if (tensor->buffer != NULL)
    ACCRT_TRY(accrt_buffer_check_reach(call->program->device, tensor->buffer, true,
                                       accrt_call_argument_name(call, index)));
  *out_address = resolved.address;
  const uint32_t bits = accrt_dtype_bits(tensor->dtype);
  const uint32_t align = size_bytes >= ACCRT_ARGUMENT_ALIGN ? ACCRT_ARGUMENT_ALIGN : (bits + 7) / 8;
  if (resolved.address % align == 0)
    return ACCRT_OK;
  return ACCRT_FAIL(INVALID_ARGUMENT, "address 0x%" PRIx64 " is not a multiple of %" PRIu32,
                    resolved.address, align);
}

static accrt_status_t check_tensor(const accrt_call_t* call, uint32_t index,
                                   const accrt_tensor_t* tensor, uint64_t* out_size_bytes,
                                   uint64_t* out_address) {
  const accx_argument_t* record = &call->signature[index];
  accrt_status_t status;
  if (record->kind == ACCX_ARGUMENT_SCALAR) {
    status = ACCRT_FAIL(INVALID_ARGUMENT, "it is a scalar: accrt_call_set_scalar binds it");
  } else {
    status = accrt_tensor_check(tensor, &record->type, out_size_bytes);
  }
  if (status == ACCRT_OK)
    status = resolve(call, index, tensor, *out_size_bytes, out_address);
  if (status != ACCRT_OK)
    accrt_call_prefix(call, index);
  return status;
}

static void unbind(accrt_call_t* call, uint32_t index) {
  accrt_call_argument_t* argument = &call->arguments[index];
  if (!argument->bound)
    return;
  accrt_call_clear_argument(call, index);
  call->adapter_version = 0; /* the next run may bind the session's adapter to this input */
  call->dirty |= ACCRT_CALL_DIRTY_SHAPES | ACCRT_CALL_DIRTY_ADDRESSES;
  note_own_results(call);
}

static bool same_shape(const accrt_call_argument_t* argument, const accrt_tensor_t* tensor) {
  for (uint32_t i = 0; i < tensor->rank; ++i) {
    if (argument->shape[i] != tensor->shape[i])
      return false;
  }
  return true;
}

accrt_status_t accrt_call_set_tensor(accrt_call_t* call, uint32_t index,
                                     const accrt_tensor_t* tensor) {
  ACCRT_ENTER(call);
  ACCRT_USE_SESSION(call->session);
  return accrt_call_put_tensor(call, index, tensor);
}

accrt_status_t accrt_call_put_tensor(accrt_call_t* call, uint32_t index,
                                     const accrt_tensor_t* tensor) {
  ACCRT_TRY(check_index(call, index));
  if (tensor == NULL) {
    unbind(call, index);
    return ACCRT_OK;
  }
  uint64_t size_bytes = 0;
  uint64_t address = 0;
  ACCRT_TRY(check_tensor(call, index, tensor, &size_bytes, &address));
  accrt_call_argument_t* argument = &call->arguments[index];
  const bool was_bound = argument->bound;
  if (!was_bound || !same_shape(argument, tensor))
    call->dirty |= ACCRT_CALL_DIRTY_SHAPES;
  if (argument->address != address || !was_bound)
    call->dirty |= ACCRT_CALL_DIRTY_ADDRESSES;
  if (argument->buffer != tensor->buffer || !was_bound) {
    (void)accrt_buffer_retain(tensor->buffer);
    accrt_call_clear_argument(call, index);
    argument->buffer = tensor->buffer;
  }
  argument->data = tensor->data;
  argument->offset_bytes = tensor->offset_bytes;
  argument->address = address;
  argument->size_bytes = size_bytes;
  argument->bound = true;
  argument->adapted = false;
  for (uint32_t i = 0; i < tensor->rank; ++i)
    argument->shape[i] = tensor->shape[i];
  if (!was_bound)
    note_own_results(call);
  return ACCRT_OK;
}

accrt_status_t accrt_call_set_scalar(accrt_call_t* call, uint32_t index, int64_t value) {
  ACCRT_ENTER(call);
  ACCRT_USE_SESSION(call->session);
  ACCRT_TRY(check_index(call, index));
  if (call->signature[index].kind != ACCX_ARGUMENT_SCALAR) {
    const accrt_status_t status =
        ACCRT_FAIL(INVALID_ARGUMENT, "it is not a scalar: accrt_call_set_tensor binds it");
    accrt_call_prefix(call, index);
    return status;
  }
  accrt_call_argument_t* argument = &call->arguments[index];
  if (argument->bound && argument->scalar == value)
    return ACCRT_OK;
  const bool is_quick =
      argument->bound && call->program->functions[call->function].quick_scalars[index];
  call->dirty |= is_quick ? ACCRT_CALL_DIRTY_SCALARS : ACCRT_CALL_DIRTY_SHAPES;
  argument->scalar = value;
  argument->bound = true;
  return ACCRT_OK;
}

/* ---- Results ---- */

static void describe_shape(const accrt_call_argument_t* argument, uint32_t rank, int64_t* shape,
                           int64_t* strides) {
  int64_t stride = 1;
  for (uint32_t i = rank; i-- > 0;) {
    shape[i] = argument->shape[i];
    strides[i] = stride;
    stride *= argument->shape[i] > 0 ? argument->shape[i] : 1;
  }
}

accrt_status_t accrt_call_result(accrt_call_t* call, uint32_t index, accrt_tensor_t* out_tensor,
                                 int64_t* shape, int64_t* strides) {
  if (out_tensor != NULL)
    memset(out_tensor, 0, sizeof *out_tensor);
  ACCRT_ENTER(call, out_tensor, shape, strides);
  ACCRT_USE_SESSION(call->session);
  const uint32_t count = call->argument_count - call->input_count;
  const char* const name = accrt_function_name(call->program, call->function);
  if (index >= count) {
    return ACCRT_FAIL(OUT_OF_RANGE, "function '%s' has %" PRIu32 " results, there is no %" PRIu32,
                      name, count, index);
  }
  if (!call->ran)
    return ACCRT_FAIL(INVALID_STATE, "function '%s' was not run by this call", name);
  const uint32_t argument = call->input_count + index;
  const accrt_call_argument_t* result = &call->arguments[argument];
  const accrt_call_argument_t* storage = result;
  if (result->shared)
    storage = &call->arguments[call->signature[argument].alias_input];
  out_tensor->buffer = storage->buffer;
  out_tensor->data = storage->data;
  out_tensor->offset_bytes = storage->offset_bytes;
  out_tensor->dtype = call->signature[argument].type.dtype;
  out_tensor->rank = call->signature[argument].type.rank;
  out_tensor->shape = shape;
  out_tensor->strides = strides;
  describe_shape(result, out_tensor->rank, shape, strides);
  return ACCRT_OK;
}
