/* runtime/program/upload_external.c - weights of sources outside the bundle, all at once: for devices with memory of their own, and what a
 * host cannot use where it is mapped. One buffer, one pass over the files, digests made of what is moved while it is in the cache. It
 * may not know how bytes get to a device.
 */
#include <pthread.h>
#include <string.h>

#include "runtime/program/external.h"
#include "runtime/program/shard.h"
#include "runtime/program/upload.h"

/* What fill may begin and end a piece at: one constant's bytes that cross no multiple of it come in one piece. */
#define PIECE_BYTES (UINT64_C(1) << 20)
/* Pieces of one constant come in order but for what threads do to it. Whoever waits so long gives up: then the digest is made afterwards. */
#define PATIENCE_NS UINT64_C(200000000)
/* A digest is made in order, so that threads which work on one constant wait for each other. So many are moved in turn, a run of each. */
#define RUN_BYTES (UINT64_C(4) << 20)
#define RUN_WIDTH 16u
#define MAX_COPIERS 16u

/* The digest of a constant whose pieces come one by one, from several threads. */
typedef struct check {
  accx_hasher_t hasher;
  accrt_mutex_t lock;
  uint64_t next; /* how far it is */
  bool late;     /* given up */
  atomic_uint turn;
} check_t;

/* A component in the buffer. */
typedef struct item {
  uint64_t offset_bytes;
  uint64_t size_bytes;
  uint64_t digest_offset; /* of what its constant's digest is made of */
  uint32_t component;
  uint32_t constant;
  check_t* check; /* NULL: the constant comes in one piece, or needs none */
} item_t;

typedef struct shipment {
  accrt_program_t* program;
  accrt_external_t* external;
  item_t* items; /* ascending, apart; components of a constant follow one another */
  uint32_t item_count;
  check_t* checks;
  uint32_t check_count;
  accrt_extent_t* runs; /* in the order in which they are moved; addresses begin at `base` */
  size_t run_capacity;
  uint32_t run_count;
  uint64_t base;
  uint64_t moved_bytes; /* of all runs */
  uint64_t size_bytes;  /* of the buffer */
} shipment_t;

/* ---- What goes where ---- */

/* Whether the host cannot use a component of a mapped file where it is. */
static bool must_be_copied(const shipment_t* shipment, uint32_t component) {
  const accrt_external_part_t* part = &shipment->external->parts[component];
  const accx_weights_entry_t* entry = &part->weights->entries[part->tensor];
  const accx_weights_file_t* file = &part->weights->files[entry->file];
  const accrt_slice_t* slice = accrt_program_slice(shipment->program, component);
  uint64_t offset_bytes = 0;
  if (file->bundle != NULL || file->on_demand)
    return false;
  return (slice != NULL && !accrt_slice_is_run(slice, &offset_bytes)) ||
         ((uintptr_t)file->bytes + entry->offset_bytes + offset_bytes) % ACCRT_ARGUMENT_ALIGN != 0;
}

/* Bits of the components that are moved: all of the constant, for its digest; where some stay in place, only the others. */
static uint32_t choose(const shipment_t* shipment, const accrt_weight_set_t* weights,
                       const uint8_t* wanted, uint32_t constant) {
  const accx_constant_t* record = &shipment->program->tables->constants[constant];
  const uint32_t all = (1u << record->component_count) - 1;
  uint32_t missing = 0, copied = 0;
  for (uint32_t i = 0; i < record->component_count; ++i) {
    const uint32_t component = record->component_first + i;
    if (accrt_external_part(weights->external, component) == NULL)
      return 0;
    if (!wanted[component] || weights->components[component].ready)
      continue;
    missing |= 1u << i;
    copied |= (uint32_t)must_be_copied(shipment, component) << i;
  }
  return !accrt_program_has_own_memory(shipment->program) ? copied : missing != 0 ? all : 0;
}

static accrt_status_t add_constant(shipment_t* shipment, uint32_t constant, uint32_t chosen) {
  const accrt_bundle_tables_t* tables = shipment->program->tables;
  const accx_constant_t* record = &tables->constants[constant];
  uint64_t digest_offset = 0;
  /* The digest is that of all components of the full tensor: no part of it proves anything. */
  if (chosen + 1 != 1u << record->component_count ||
      accrt_shard_is_split(accrt_program_shard(shipment->program, constant))) {
    const accrt_status_t status =
        accrt_external_check(shipment->program, shipment->external, constant);
    if (status != ACCRT_OK)
      return status;
  }
  for (uint32_t i = 0; i < record->component_count; ++i) {
    if ((chosen >> i & 1) == 0)
      continue;
    const uint32_t component = record->component_first + i;
    const uint64_t size_bytes = tables->components[component].size_bytes;
    item_t* item = &shipment->items[shipment->item_count++];
    *item = (item_t){0, size_bytes, digest_offset, component, constant, NULL};
    if (!accrt_align_u64(shipment->size_bytes, ACCRT_STORAGE_ALIGN, &item->offset_bytes) ||
        !accrt_add_u64(item->offset_bytes, size_bytes, &shipment->size_bytes) ||
        !accrt_add_u64(digest_offset, size_bytes, &digest_offset))
      return ACCRT_FAIL_INNER(OVERFLOW, "the weights do not fit 64 bits");
  }
  return ACCRT_OK;
}

static bool is_large(const accrt_program_t* program, uint32_t constant) {
  const accx_constant_t* record = &program->tables->constants[constant];
  for (uint32_t i = 0; i < record->component_count; ++i) {
    if (program->tables->components[record->component_first + i].size_bytes >= PIECE_BYTES)
      return true;
  }
  return false;
}

/* Small ones first, so that they lie together. */
static accrt_status_t add_constants(shipment_t* shipment, const accrt_weight_set_t* weights,
                                    const uint8_t* wanted) {
  accrt_status_t status = ACCRT_OK;
  const uint32_t count = shipment->program->tables->constant_count;
  for (uint32_t turn = 0; turn < 2; ++turn) {
    for (uint32_t i = 0; i < count && status == ACCRT_OK; ++i) {
      const uint32_t chosen =
          is_large(shipment->program, i) == (turn == 1) ? choose(shipment, weights, wanted, i) : 0;
      if (chosen != 0)
        status = add_constant(shipment, i, chosen);
    }
  }
  return status;
}

/* The items of the constant that begins at `first`. */
static uint32_t end_of(const shipment_t* shipment, uint32_t first) {
  uint32_t end = first;
  while (end < shipment->item_count &&
         shipment->items[end].constant == shipment->items[first].constant)
    ++end;
  return end;
}

static uint64_t end_bytes_of(const shipment_t* shipment, uint32_t end) {
  return shipment->items[end - 1].offset_bytes + shipment->items[end - 1].size_bytes;
}

/* Whether a constant that is to be checked may come in several pieces. */
static bool spans(const shipment_t* shipment, uint32_t first, uint32_t end) {
  const uint64_t begin_bytes = shipment->items[first].offset_bytes;
  const uint64_t end_bytes = end_bytes_of(shipment, end);
  return accrt_external_unknown(shipment->external, shipment->items[first].constant) &&
         end_bytes > begin_bytes &&
         (end_bytes - begin_bytes >= PIECE_BYTES ||
          begin_bytes / PIECE_BYTES != (end_bytes - 1) / PIECE_BYTES);
}

/* Gives a check to each constant that may come in several pieces. Counts them first. */
static accrt_status_t make_checks(shipment_t* shipment) {
  uint32_t count = 0;
  for (uint32_t i = 0, end; i < shipment->item_count; i = end) {
    end = end_of(shipment, i);
    count += spans(shipment, i, end);
  }
  void* memory;
  const accrt_status_t status = accrt_alloc_aligned(shipment->program->allocator,
                                                    count * sizeof *shipment->checks, 64, &memory);
  if (status != ACCRT_OK)
    return status;
  shipment->checks = memory;
  for (uint32_t i = 0, end; i < shipment->item_count; i = end) {
    end = end_of(shipment, i);
    if (!spans(shipment, i, end))
      continue;
    check_t* check = &shipment->checks[shipment->check_count++];
    accx_hasher_init(&check->hasher);
    for (uint32_t k = i; k < end; ++k)
      shipment->items[k].check = check;
  }
  return ACCRT_OK;
}

/* ---- In which order ---- */

/* Moves a part of the buffer next. */
static accrt_status_t add_run(shipment_t* shipment, uint64_t begin_bytes, uint64_t end_bytes) {
  accrt_extent_t* last = shipment->run_count > 0 ? &shipment->runs[shipment->run_count - 1] : NULL;
  const uint64_t size_bytes = end_bytes - begin_bytes;
  if (size_bytes == 0)
    return ACCRT_OK;
  if (last == NULL || last->address + last->size_bytes != begin_bytes) {
    void* memory = shipment->runs;
    const accrt_status_t status =
        accrt_grow_array(shipment->program->allocator, (size_t)shipment->run_count + 1,
                         sizeof *shipment->runs, &shipment->run_capacity, &memory);
    shipment->runs = memory;
    if (status != ACCRT_OK)
      return status;
    last = &shipment->runs[shipment->run_count++];
    *last = (accrt_extent_t){shipment->moved_bytes, 0, begin_bytes};
  }
  last->size_bytes += size_bytes;
  shipment->moved_bytes += size_bytes;
  return ACCRT_OK;
}

/* Constants from `first` on that are checked piece by piece and large, at most RUN_WIDTH of them: a run of each in turn. */
static accrt_status_t interleave(shipment_t* shipment, uint32_t first, uint32_t* out_end) {
  uint64_t begins[RUN_WIDTH], ends[RUN_WIDTH], longest = 0;
  uint32_t count = 0, i = first;
  while (count < RUN_WIDTH && i < shipment->item_count) {
    const uint32_t end = end_of(shipment, i);
    if (!spans(shipment, i, end))
      break;
    begins[count] = shipment->items[i].offset_bytes;
    ends[count] = end_bytes_of(shipment, end);
    longest = ends[count] - begins[count] > longest ? ends[count] - begins[count] : longest;
    ++count;
    i = end;
  }
  *out_end = i;
  accrt_status_t status = ACCRT_OK;
  for (uint64_t at = 0; at < longest; at += RUN_BYTES) {
    for (uint32_t k = 0; k < count && status == ACCRT_OK; ++k) {
      const uint64_t left = ends[k] - begins[k] > at ? ends[k] - begins[k] - at : 0;
      const uint64_t begin = begins[k] + at;
      if (left > 0)
        status = add_run(shipment, begin, begin + (left < RUN_BYTES ? left : RUN_BYTES));
    }
  }
  return status;
}

/* Pieces begin and end at multiples of 1 MiB: a small constant's are the same here and in the buffer. */
static accrt_status_t make_runs(shipment_t* shipment) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0, end; i < shipment->item_count && status == ACCRT_OK; i = end) {
    end = end_of(shipment, i);
    const uint64_t begin_bytes = shipment->items[i].offset_bytes;
    const uint64_t next_bytes =
        end < shipment->item_count ? shipment->items[end].offset_bytes : shipment->size_bytes;
    const bool large = is_large(shipment->program, shipment->items[i].constant);
    status = large && spans(shipment, i, end) ? interleave(shipment, i, &end)
                                              : add_run(shipment, begin_bytes, next_bytes);
  }
  return status;
}

/* ---- Filling ---- */

/* Adds a constant's bytes at `at` when it is their turn. */
static void feed(check_t* check, uint64_t at, const void* bytes, uint64_t size_bytes) {
  const uint64_t deadline = accrt_deadline_ns(PATIENCE_NS);
  for (;;) {
    const unsigned turn = atomic_load_explicit(&check->turn, memory_order_acquire);
    const uint64_t left = accrt_deadline_left_ns(deadline);
    accrt_mutex_lock(&check->lock);
    const bool mine = check->next == at;
    check->late = check->late || (left == 0 && !mine);
    const bool late = check->late;
    accrt_mutex_unlock(&check->lock);
    if (late)
      return;
    if (mine)
      break;
    accrt_futex_wait(&check->turn, turn, left);
  }
  accx_hasher_update(&check->hasher, bytes, (size_t)size_bytes);
  accrt_mutex_lock(&check->lock);
  check->next += size_bytes;
  accrt_mutex_unlock(&check->lock);
  /* Release pairs with the acquire above. */
  atomic_fetch_add_explicit(&check->turn, 1, memory_order_release);
  accrt_futex_wake(&check->turn, INT32_MAX);
}

/* The first item that ends behind an offset. */
static uint32_t first_item(const shipment_t* shipment, uint64_t offset_bytes) {
  uint32_t low = 0, end = shipment->item_count;
  while (low < end) {
    const uint32_t middle = low + (end - low) / 2;
    if (shipment->items[middle].offset_bytes + shipment->items[middle].size_bytes <= offset_bytes)
      low = middle + 1;
    else
      end = middle;
  }
  return low;
}

static accrt_status_t copy_item(const shipment_t* shipment, const item_t* item,
                                uint64_t offset_bytes, void* target, uint64_t size_bytes) {
  const accrt_status_t status = accrt_external_read(
      shipment->program, shipment->external, item->component, offset_bytes, target, size_bytes);
  if (status != ACCRT_OK) {
    accrt_error_prefix(
        "constant '%s'",
        accrt_program_string(shipment->program,
                             shipment->program->tables->constants[item->constant].name));
  }
  return status;
}

/* A constant that is whole in a piece: its items, the first of which is given. */
static accrt_status_t check_whole(const shipment_t* shipment, uint32_t first, uint64_t piece_offset,
                                  const unsigned char* piece) {
  accx_hasher_t hasher;
  const uint32_t end = end_of(shipment, first);
  accx_hasher_init(&hasher);
  for (uint32_t i = first; i < end; ++i) {
    const item_t* item = &shipment->items[i];
    accx_hasher_update(&hasher, piece + (item->offset_bytes - piece_offset),
                       (size_t)item->size_bytes);
  }
  const accx_digest_t found = accx_hasher_finish(&hasher);
  return accrt_external_accept(shipment->program, shipment->external,
                               shipment->items[first].constant, &found);
}

static bool is_first(const shipment_t* shipment, uint32_t item) {
  return item == 0 || shipment->items[item - 1].constant != shipment->items[item].constant;
}

static accrt_status_t check_item(const shipment_t* shipment, uint32_t index, uint64_t offset_bytes,
                                 const unsigned char* memory, uint64_t size_bytes) {
  const item_t* item = &shipment->items[index];
  if (!accrt_external_unknown(shipment->external, item->constant))
    return ACCRT_OK;
  const uint64_t from = item->offset_bytes > offset_bytes ? item->offset_bytes : offset_bytes;
  const uint64_t item_end = item->offset_bytes + item->size_bytes;
  const uint64_t to = item_end < offset_bytes + size_bytes ? item_end : offset_bytes + size_bytes;
  if (item->check != NULL && to > from)
    feed(item->check, item->digest_offset + (from - item->offset_bytes),
         memory + (from - offset_bytes), to - from);
  return item->check == NULL && is_first(shipment, index)
             ? check_whole(shipment, index, offset_bytes, memory)
             : ACCRT_OK;
}

/* The last constant first: only what began in an earlier piece is waited for, and who has that piece does not wait for this one. */
static accrt_status_t check_piece(const shipment_t* shipment, uint32_t begin, uint32_t end,
                                  uint64_t offset_bytes, const unsigned char* memory,
                                  uint64_t size_bytes) {
  accrt_status_t status = ACCRT_OK;
  while (end > begin && status == ACCRT_OK) {
    uint32_t first = end - 1;
    while (first > begin && !is_first(shipment, first))
      --first;
    for (uint32_t i = first; i < end && status == ACCRT_OK; ++i)
      status = check_item(shipment, i, offset_bytes, memory, size_bytes);
    end = first;
  }
  return status;
}

/* A part of the buffer. */
static accrt_status_t fill_part(const shipment_t* shipment, uint64_t offset_bytes, void* memory,
                                uint64_t size_bytes) {
  const uint64_t end_bytes = offset_bytes + size_bytes;
  const uint32_t begin = first_item(shipment, offset_bytes);
  uint32_t end = begin;
  uint64_t at = offset_bytes;
  for (; end < shipment->item_count && shipment->items[end].offset_bytes < end_bytes; ++end) {
    const item_t* item = &shipment->items[end];
    if (item->offset_bytes > at) {
      memset((unsigned char*)memory + (at - offset_bytes), 0, item->offset_bytes - at);
      at = item->offset_bytes;
    }
    const uint64_t item_end = item->offset_bytes + item->size_bytes;
    const uint64_t to = item_end < end_bytes ? item_end : end_bytes;
    if (to <= at)
      continue;
    const accrt_status_t status = copy_item(shipment, item, at - item->offset_bytes,
                                            (unsigned char*)memory + (at - offset_bytes), to - at);
    if (status != ACCRT_OK)
      return status;
    at = to;
  }
  memset((unsigned char*)memory + (at - offset_bytes), 0, end_bytes - at);
  return check_piece(shipment, begin, end, offset_bytes, memory, size_bytes);
}

static uint32_t first_run(const shipment_t* shipment, uint64_t offset_bytes) {
  uint32_t low = 0, end = shipment->run_count;
  while (low < end) {
    const uint32_t middle = low + (end - low) / 2;
    if (shipment->runs[middle].offset_bytes + shipment->runs[middle].size_bytes <= offset_bytes)
      low = middle + 1;
    else
      end = middle;
  }
  return low;
}

/* What is moved at an offset: into `memory`, or (NULL) to where it shall be. */
static accrt_status_t fill(void* user, uint64_t offset_bytes, void* memory, uint64_t size_bytes) {
  const shipment_t* shipment = user;
  const uint64_t end_bytes = offset_bytes + size_bytes;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = first_run(shipment, offset_bytes);
       i < shipment->run_count && shipment->runs[i].offset_bytes < end_bytes && status == ACCRT_OK;
       ++i) {
    const accrt_extent_t* run = &shipment->runs[i];
    const uint64_t from = run->offset_bytes > offset_bytes ? run->offset_bytes : offset_bytes;
    const uint64_t run_end = run->offset_bytes + run->size_bytes;
    const uint64_t to = run_end < end_bytes ? run_end : end_bytes;
    const uint64_t address = run->address + (from - run->offset_bytes);
    void* target =
        memory != NULL ? (unsigned char*)memory + (from - offset_bytes) : (void*)(uintptr_t)address;
    status = fill_part(shipment, address - shipment->base, target, to - from);
  }
  return status;
}

/* ---- On a host ---- */

/* Runs `work` on as many threads as the device has, and as so many bytes are worth. The caller is one of them. A thread that cannot be
 * had is done without. */
static void run_on_threads(const accrt_program_t* program, uint64_t size_bytes,
                           void* (*work)(void*), void* user) {
  pthread_t threads[MAX_COPIERS];
  uint32_t count = 0;
  const uint32_t most = accrt_device_facts(program->device)->concurrency;
  while (count < MAX_COPIERS && count + 1 < most && count + 1 < size_bytes / RUN_BYTES &&
         pthread_create(&threads[count], NULL, work, user) == 0)
    ++count;
  (void)work(user);
  while (count > 0)
    (void)pthread_join(threads[--count], NULL);
}

/* Threads take pieces in order until one fails; the first piece that did says why. */
typedef struct copying {
  shipment_t* shipment;
  atomic_uint_fast64_t next;
  accrt_mutex_t lock;
  uint64_t failed_at; /* under the lock, as is `error` */
  accrt_error_t error;
} copying_t;

static void* copy_pieces(void* user) {
  copying_t* copying = user;
  const uint64_t size_bytes = copying->shipment->moved_bytes;
  for (;;) {
    /* Relaxed: a number to be taken; what is found goes through the lock and the join. */
    const uint64_t at =
        atomic_fetch_add_explicit(&copying->next, PIECE_BYTES, memory_order_relaxed);
    if (at >= size_bytes)
      return NULL;
    const uint64_t left = size_bytes - at;
    if (fill(copying->shipment, at, NULL, left < PIECE_BYTES ? left : PIECE_BYTES) == ACCRT_OK)
      continue;
    accrt_mutex_lock(&copying->lock);
    if (at < copying->failed_at) {
      copying->failed_at = at;
      copying->error = *accrt_error_current();
    }
    accrt_mutex_unlock(&copying->lock);
    atomic_store_explicit(&copying->next, size_bytes, memory_order_relaxed);
  }
}

static accrt_status_t copy_here(shipment_t* shipment) {
  copying_t copying = {.shipment = shipment, .failed_at = UINT64_MAX};
  accrt_mutex_init(&copying.lock);
  atomic_init(&copying.next, 0);
  run_on_threads(shipment->program, shipment->moved_bytes, copy_pieces, &copying);
  return copying.failed_at == UINT64_MAX ? ACCRT_OK : accrt_error_restore(&copying.error);
}

/* Digests of what is used in place, a constant at a time. */
typedef struct checking {
  const accrt_program_t* program;
  accrt_external_t* external;
  const uint8_t* wanted;
  atomic_uint next;
} checking_t;

static uint64_t unchecked_bytes(const checking_t* checking, uint32_t constant) {
  const accrt_bundle_tables_t* tables = checking->program->tables;
  const accx_constant_t* record = &tables->constants[constant];
  uint64_t size_bytes = 0;
  bool any = false;
  for (uint32_t i = record->component_first; i < record->component_first + record->component_count;
       ++i) {
    any = any || checking->wanted[i] != 0;
    size_bytes += tables->components[i].size_bytes;
  }
  return any && accrt_external_part(checking->external, record->component_first) != NULL &&
                 accrt_external_unknown(checking->external, constant)
             ? size_bytes
             : 0;
}

static void* check_constants(void* user) {
  checking_t* checking = user;
  const uint32_t count = checking->program->tables->constant_count;
  for (;;) {
    const uint32_t constant = atomic_fetch_add_explicit(&checking->next, 1, memory_order_relaxed);
    if (constant >= count)
      return NULL;
    /* Whoever places it finds the same, and says so. */
    if (unchecked_bytes(checking, constant) > 0 &&
        accrt_external_check(checking->program, checking->external, constant) != ACCRT_OK)
      atomic_store_explicit(&checking->next, count, memory_order_relaxed);
  }
}

static void check_in_place(const accrt_program_t* program, const accrt_weight_set_t* weights,
                           const uint8_t* wanted) {
  checking_t checking = {.program = program, .external = weights->external, .wanted = wanted};
  uint64_t size_bytes = 0;
  atomic_init(&checking.next, 0);
  for (uint32_t i = 0; i < program->tables->constant_count; ++i)
    size_bytes += unchecked_bytes(&checking, i);
  if (size_bytes >= ACCRT_CHECK_AHEAD_BYTES)
    run_on_threads(program, size_bytes, check_constants, &checking);
}

/* ---- All of it ---- */

/* Digests that are complete, and those that are not known yet: of what nobody waited for, and of constants without a byte. */
static accrt_status_t finish_checks(const shipment_t* shipment) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0, end; i < shipment->item_count && status == ACCRT_OK; i = end) {
    end = end_of(shipment, i);
    const item_t* last = &shipment->items[end - 1];
    const check_t* check = last->check;
    if (check != NULL && !check->late && check->next == last->digest_offset + last->size_bytes) {
      const accx_digest_t found = accx_hasher_finish(&check->hasher);
      status = accrt_external_accept(shipment->program, shipment->external, last->constant, &found);
    } else {
      status = accrt_external_check(shipment->program, shipment->external, last->constant);
    }
  }
  return status;
}

static void share_out(const shipment_t* shipment, accrt_weight_set_t* weights,
                      accrt_buffer_t* buffer, uint64_t address) {
  for (uint32_t i = 0; i < shipment->item_count; ++i) {
    const item_t* item = &shipment->items[i];
    accrt_weight_component_t* component = &weights->components[item->component];
    accrt_buffer_unref(component->buffer);
    accrt_buffer_ref(buffer);
    *component = (accrt_weight_component_t){.buffer = buffer,
                                            .address = address + item->offset_bytes,
                                            .size_bytes = item->size_bytes,
                                            .ready = true};
  }
}

static accrt_status_t move(shipment_t* shipment) {
  if (shipment->size_bytes == 0)
    return ACCRT_OK;
  if (!accrt_program_has_own_memory(shipment->program))
    return copy_here(shipment);
  const accrt_upload_t upload = {.name = "accrt_program_create",
                                 .size_bytes = shipment->moved_bytes,
                                 .extents = shipment->runs,
                                 .extent_count = shipment->run_count,
                                 .fill = fill,
                                 .user = shipment};
  return accrt_device_upload(shipment->program->device, &upload);
}

static accrt_status_t ship(shipment_t* shipment, accrt_weight_set_t* weights) {
  accrt_buffer_t* buffer = NULL;
  uint64_t size_bytes;
  accrt_status_t status = make_checks(shipment);
  if (status == ACCRT_OK)
    status = make_runs(shipment);
  if (status == ACCRT_OK)
    status = accrt_upload_allocate(shipment->program, shipment->size_bytes, &buffer);
  if (status != ACCRT_OK)
    return status;
  accrt_buffer_range(buffer, &shipment->base, &size_bytes);
  for (uint32_t i = 0; i < shipment->run_count; ++i)
    shipment->runs[i].address += shipment->base;
  status = move(shipment);
  if (status == ACCRT_OK)
    status = finish_checks(shipment);
  if (status == ACCRT_OK)
    share_out(shipment, weights, buffer, shipment->base);
  accrt_buffer_unref(buffer);
  return status;
}

accrt_status_t accrt_external_upload(accrt_program_t* program, accrt_weight_set_t* weights,
                                     const uint8_t* wanted) {
  shipment_t shipment;
  memset(&shipment, 0, sizeof shipment);
  shipment.program = program;
  shipment.external = weights->external;
  void* memory;
  accrt_status_t status =
      accrt_alloc_array(program->allocator, weights->count, sizeof *shipment.items, &memory);
  if (status != ACCRT_OK)
    return status;
  shipment.items = memory;
  status = add_constants(&shipment, weights, wanted);
  if (status == ACCRT_OK && shipment.item_count > 0)
    status = ship(&shipment, weights);
  accrt_free_array(program->allocator, shipment.runs, shipment.run_capacity, sizeof *shipment.runs);
  accrt_free_aligned(program->allocator, shipment.checks,
                     shipment.check_count * sizeof *shipment.checks, 64);
  accrt_free_array(program->allocator, memory, weights->count, sizeof *shipment.items);
  if (status == ACCRT_OK && !accrt_program_has_own_memory(program))
    check_in_place(program, weights, wanted);
  return status;
}
