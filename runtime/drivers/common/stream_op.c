/* runtime/drivers/common/stream_op.c - streams: operations, their storage and what they refer to.
 * It may not know when they are made or done. */
#include <string.h>

#include "runtime/drivers/common/stream_internal.h"

#define MAX_SPARES 256u

void accrt_op_free(accrt_stream_t* stream, accrt_op_t* op) {
  if (op == NULL)
    return;
  accrt_free(&stream->instance->allocator, op->storage, op->storage_bytes);
  accrt_free(&stream->instance->allocator, op, sizeof *op);
}

bool accrt_op_recycle(accrt_stream_t* stream, accrt_op_t* op) {
  ACCRT_ASSERT_HELD(&stream->lock);
  if (op->kind == ACCRT_OP_MARK && stream->mark == NULL) {
    stream->mark = op;
    return false;
  }
  if (stream->spare_count >= MAX_SPARES)
    return true;
  op->next = stream->spares;
  stream->spares = op;
  stream->spare_count += 1;
  return false;
}

accrt_op_t* accrt_op_take_spare(accrt_stream_t* stream) {
  accrt_op_t* op = stream->spares;
  if (op == NULL)
    return NULL;
  stream->spares = op->next;
  ACCRT_ASSERT(stream->spare_count > 0);
  stream->spare_count -= 1;
  op->next = NULL;
  return op;
}

accrt_status_t accrt_op_make(accrt_stream_t* stream, accrt_op_t** out_op) {
  void* memory;
  const accrt_status_t status =
      accrt_alloc(&stream->instance->allocator, sizeof(accrt_op_t), &memory);
  *out_op = memory;
  return status;
}

static accrt_status_t reserve_storage(accrt_stream_t* stream, accrt_op_t* op, size_t size_bytes) {
  if (op->storage_bytes >= size_bytes)
    return ACCRT_OK;
  void* memory;
  ACCRT_TRY(accrt_alloc(&stream->instance->allocator, size_bytes, &memory));
  accrt_free(&stream->instance->allocator, op->storage, op->storage_bytes);
  op->storage = memory;
  op->storage_bytes = size_bytes;
  return ACCRT_OK;
}

accrt_status_t accrt_op_copy_arrays(accrt_stream_t* stream, accrt_op_t* op,
                                    const accrt_request_t* request) {
  if (request->kind == ACCRT_OP_COMMAND) {
    op->command = *request->command;
    if (op->command.opcode != ACCRT_DRIVER_COMMAND_DISPATCH ||
        op->command.as.dispatch.params_size_bytes == 0)
      return ACCRT_OK;
    const size_t size_bytes = op->command.as.dispatch.params_size_bytes;
    ACCRT_TRY(reserve_storage(stream, op, size_bytes));
    memcpy(op->storage, request->command->as.dispatch.params, size_bytes);
    op->command.as.dispatch.params = op->storage;
    return ACCRT_OK;
  }
  const size_t binding_bytes = request->binding_count * sizeof(accrt_driver_binding_t);
  const size_t scalar_bytes = request->scalar_count * sizeof(uint64_t);
  ACCRT_TRY(reserve_storage(stream, op, binding_bytes + scalar_bytes));
  if (binding_bytes > 0)
    memcpy(op->storage, request->bindings, binding_bytes);
  if (scalar_bytes > 0)
    memcpy((char*)op->storage + binding_bytes, request->scalars, scalar_bytes);
  return ACCRT_OK;
}

void accrt_op_fill(accrt_stream_t* stream, accrt_op_t* op, const accrt_request_t* request) {
  op->stream = stream;
  op->kind = request->kind;
  op->name = request->name;
  op->done = false;
  op->reported = false;
  op->after_unreported = true; /* until it is known */
  op->abandoned = false;
  op->waiting = ACCRT_WAITING_NEW;
  op->status = ACCRT_OK;
  op->time_ns = 0;
  op->semaphore = request->semaphore;
  op->value = request->value;
  op->event = request->event;
  op->generation = request->generation;
  op->notify = request->notify;
  op->notify_user = request->notify_user;
  op->list = request->list;
  op->completion = request->completion;
  op->retained_class = request->retained_class;
  op->retained = request->retained;
  op->binding_count = request->binding_count;
  op->scalar_count = request->scalar_count;
  if (op->semaphore != NULL && op->kind == ACCRT_OP_WAIT)
    accrt_semaphore_ref_wait(op->semaphore);
  else if (op->semaphore != NULL)
    accrt_object_retain(&op->semaphore->object);
  if (op->event != NULL)
    accrt_object_retain(&op->event->object);
  if (op->retained_class != NULL)
    op->retained_class->ref(op->retained);
}

accrt_op_references_t accrt_op_take_references(accrt_op_t* op) {
  const accrt_op_references_t references = {op->semaphore, op->event, op->retained_class,
                                            op->retained,
                                            op->semaphore != NULL && op->kind == ACCRT_OP_WAIT};
  op->semaphore = NULL;
  op->event = NULL;
  op->retained_class = NULL;
  op->retained = NULL;
  return references;
}

void accrt_op_drop_references(const accrt_op_references_t* references) {
  if (references->waits)
    accrt_semaphore_unref_wait(references->semaphore);
  else
    accrt_semaphore_unref(references->semaphore);
  accrt_event_unref(references->event);
  if (references->retained_class != NULL)
    references->retained_class->drop(references->retained);
}
