/* runtime/drivers/common/pieces.c - command lists in pieces. It may not know how streams hold
 * pieces back, nor what records the list: pieces.h. */
#include "runtime/core/error.h"
#include "runtime/drivers/common/objects.h"
#include "runtime/drivers/common/pieces.h"

struct accrt_pieces {
  accrt_pieces_t* next;
  uint32_t commands_per_piece, command_count, count;
  accrt_driver_command_t* commands; /* as recorded, but each waits for the one before it */
  uint32_t* before;                 /* 0, 1, 2, ...: the index of what a command waits for */
  accrt_driver_list_t** lists;
};

static void free_pieces(accrt_device_t* device, accrt_pieces_t* pieces) {
  const accrt_allocator_t* allocator = &device->instance->allocator;
  for (uint32_t i = 0; i < pieces->count && pieces->lists != NULL; ++i) {
    if (pieces->lists[i] != NULL)
      device->table->list_destroy(pieces->lists[i]);
  }
  accrt_free_array(allocator, pieces->lists, pieces->count, sizeof(*pieces->lists));
  accrt_free_array(allocator, pieces->before, pieces->commands_per_piece, sizeof(uint32_t));
  accrt_free_array(allocator, pieces->commands, pieces->command_count, sizeof(*pieces->commands));
  accrt_free(allocator, pieces, sizeof *pieces);
}

void accrt_pieces_free(accrt_device_t* device, accrt_divided_t* divided) {
  /* Relaxed is enough: no other thread uses the list any more. */
  accrt_pieces_t* pieces = atomic_load_explicit(&divided->first, memory_order_relaxed);
  while (pieces != NULL) {
    accrt_pieces_t* next = pieces->next;
    free_pieces(device, pieces);
    pieces = next;
  }
}

/* The order between pieces is the stream's, and inside a piece it is one after the other. So what
 * was recorded to run at the same time runs in the order of recording. */
static void chain_commands(accrt_pieces_t* pieces, const accrt_driver_command_t* recorded) {
  for (uint32_t i = 0; i < pieces->commands_per_piece; ++i)
    pieces->before[i] = i;
  for (uint32_t i = 0; i < pieces->command_count; ++i) {
    accrt_driver_command_t* command = &pieces->commands[i];
    const uint32_t at = i % pieces->commands_per_piece;
    *command = recorded[i];
    command->predecessor_count = at != 0 && command->opcode != ACCRT_DRIVER_COMMAND_BARRIER;
    command->predecessors = command->predecessor_count != 0 ? &pieces->before[at - 1] : NULL;
  }
}

static accrt_status_t create_lists(accrt_device_t* device, const accrt_driver_list_info_t* info,
                                   accrt_pieces_t* pieces) {
  accrt_driver_list_info_t piece = *info;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < pieces->count && status == ACCRT_OK; ++i) {
    const uint32_t first = i * pieces->commands_per_piece;
    const uint32_t left = pieces->command_count - first;
    piece.commands = &pieces->commands[first];
    piece.command_count = left < pieces->commands_per_piece ? left : pieces->commands_per_piece;
    status = device->table->list_create(device->driver_device, &piece, &pieces->lists[i]);
    if (status != ACCRT_OK)
      pieces->lists[i] = NULL;
  }
  accrt_device_note_status(device, status);
  return status;
}

static accrt_status_t make_pieces(accrt_device_t* device, const accrt_driver_list_info_t* info,
                                  uint32_t commands_per_piece, accrt_pieces_t** out_pieces) {
  const accrt_allocator_t* allocator = &device->instance->allocator;
  accrt_pieces_t* pieces;
  ACCRT_TRY(ACCRT_NEW(allocator, &pieces));
  pieces->commands_per_piece = commands_per_piece;
  pieces->command_count = info->command_count;
  pieces->count = (info->command_count - 1) / commands_per_piece + 1;
  accrt_status_t status = ACCRT_NEW_ARRAY(allocator, pieces->command_count, &pieces->commands);
  if (status == ACCRT_OK)
    status = ACCRT_NEW_ARRAY(allocator, commands_per_piece, &pieces->before);
  if (status == ACCRT_OK)
    status = ACCRT_NEW_ARRAY(allocator, pieces->count, &pieces->lists);
  if (status == ACCRT_OK) {
    chain_commands(pieces, info->commands);
    status = create_lists(device, info, pieces);
  }
  if (status != ACCRT_OK) {
    free_pieces(device, pieces);
    return status;
  }
  *out_pieces = pieces;
  return ACCRT_OK;
}

/* Two threads may make the same pieces at once: both stay. */
static void keep(accrt_divided_t* divided, accrt_pieces_t* pieces) {
  pieces->next = atomic_load_explicit(&divided->first, memory_order_relaxed);
  /* Release pairs with the acquire in accrt_pieces_add. */
  while (!atomic_compare_exchange_weak_explicit(&divided->first, &pieces->next, pieces,
                                                memory_order_release, memory_order_relaxed)) {
  }
}

accrt_status_t accrt_pieces_add(accrt_stream_t* stream, const accrt_driver_list_info_t* info,
                                accrt_divided_t* divided, accrt_stream_work_t* work) {
  const uint32_t size = stream->commands_per_piece;
  ACCRT_ASSERT(size != 0);
  if (info->command_count <= size)
    return ACCRT_OK;
  /* Acquire pairs with the release in keep: the pieces are complete. */
  accrt_pieces_t* pieces = atomic_load_explicit(&divided->first, memory_order_acquire);
  while (pieces != NULL && pieces->commands_per_piece != size)
    pieces = pieces->next;
  if (pieces == NULL) {
    ACCRT_TRY(make_pieces(stream->device, info, size, &pieces));
    keep(divided, pieces);
  }
  work->pieces = pieces->lists;
  work->piece_count = pieces->count;
  return ACCRT_OK;
}
