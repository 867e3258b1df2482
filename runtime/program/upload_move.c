/* runtime/program/upload_move.c - moves components of whatever sources into one buffer, in one
 * pass: to devices with memory of their own, and on a host what cannot be used where it lies.
 * Digests are made of what is moved while it is in the cache; bundles are read by whole chunks,
 * which have theirs. It may not know how bytes get to a device.
 */
#include <stdio.h>
#include <string.h>

#include "format/sort.h"
#include "loader/data.h"
#include "runtime/program/external.h"
#include "runtime/program/upload.h"

/* What fill may begin and end a piece at: one constant's bytes that cross no multiple of it come in
 * one piece. */
#define PIECE_BYTES ((uint64_t)ACCX_CHUNK_BYTES)
/* Pieces of one constant come in order but for what threads do to it. A thread that waits so
 * long gives up: then the digest is made afterwards. */
#define PATIENCE_NS UINT64_C(200000000)
/* A digest is made in order, so that threads which work on one constant wait for each other. So
 * many are moved in turn, a run of each. */
#define RUN_BYTES (UINT64_C(4) << 20)
#define RUN_WIDTH 16u

/* The digest of a constant whose pieces come one by one, from several threads. */
typedef struct check {
  accx_hasher_t hasher;
  accrt_mutex_t lock;
  uint64_t next;   /* how far it is */
  bool late;       /* given up */
  atomic_uint fed; /* counts the pieces that were added; threads wait for it */
} check_t;

/* A constant that is moved. */
typedef struct load {
  uint64_t sort_key;
  uint32_t constant;
  uint32_t chosen;     /* bits of its components */
  uint32_t first, end; /* items */
  check_t* check;      /* NULL: it comes in one piece, or needs none */
} load_t;

/* A component in the buffer. */
typedef struct item {
  uint64_t offset_bytes;
  uint64_t size_bytes;
  uint64_t place_bytes;   /* of what comes by chunks: in DATA; else as in the buffer */
  uint64_t digest_offset; /* of what its constant's digest is made of */
  uint32_t component;
  uint32_t load;
} item_t;

typedef struct shipment {
  accrt_program_t* program;
  accrt_external_t* external;
  load_t* loads;
  uint32_t* order; /* of loads */
  uint32_t load_count;
  item_t* items; /* in that order; in the buffer they ascend, apart */
  uint32_t item_count;
  uint32_t item_capacity;
  uint32_t part_count;  /* of items: those behind come by chunks of bundles */
  accrt_extent_t* runs; /* in the order in which they are moved; addresses begin at `base` */
  size_t run_capacity;
  uint32_t run_count;
  uint64_t base;
  uint64_t moved_bytes; /* of all runs, and gaps before chunks */
  uint64_t size_bytes;  /* of the buffer */
} shipment_t;

/* ---- What is moved, and when ---- */

/* Bits of the components that are moved: all of a constant, for its digest; where there is none, or
 * some stay in place, only what is missing. */
static uint32_t choose(const shipment_t* shipment, const accrt_weight_set_t* weights,
                       const uint8_t* wanted, uint32_t only, uint32_t constant) {
  const accrt_program_t* program = shipment->program;
  const accx_constant_t* record = &program->tables->constants[constant];
  const bool own_memory = accrt_program_has_own_memory(program);
  uint32_t missing = 0;
  for (uint32_t i = 0; i < record->component_count; ++i) {
    const uint32_t component = record->component_first + i;
    if (!accrt_external_has(weights->external, component))
      return 0;
    if (weights->components[component].ready ||
        (only != ACCX_NONE ? component != only : wanted[component] == 0))
      continue;
    if (own_memory || !accrt_external_lies_well(program, weights->external, component))
      missing |= 1u << i;
  }
  return own_memory && missing != 0 && only == ACCX_NONE &&
                 accrt_external_unknown(weights->external, constant)
             ? (1u << record->component_count) - 1
             : missing;
}

static bool is_large(const accrt_program_t* program, uint32_t constant) {
  const accx_constant_t* record = &program->tables->constants[constant];
  for (uint32_t i = 0; i < record->component_count; ++i) {
    if (program->tables->components[record->component_first + i].size_bytes >= PIECE_BYTES)
      return true;
  }
  return false;
}

/* Whether a constant is one of a bundle, whose chunks are moved as they are. */
static bool comes_by_chunks(const shipment_t* shipment, uint32_t constant) {
  const accx_constant_t* record = &shipment->program->tables->constants[constant];
  const accrt_external_part_t* parts = &shipment->external->parts[record->component_first];
  bool whole =
      accrt_program_has_own_memory(shipment->program) && parts->weights->files[0].bundle != NULL;
  for (uint32_t i = 0; i < record->component_count; ++i) {
    whole = whole && parts[i].weights == parts->weights && parts[i].tensor == parts->tensor &&
            accrt_external_slice(shipment->program, shipment->external,
                                 record->component_first + i) == NULL;
  }
  return whole;
}

/* Small ones first, so that they lie together; what comes by chunks last, in the order of each
 * file. */
#define SORT_LARGE (UINT64_C(1) << 32)
#define SORT_CHUNKS (UINT64_C(2) << 32)
static uint64_t sort_key_of(const shipment_t* shipment, uint32_t constant) {
  if (!comes_by_chunks(shipment, constant))
    return (is_large(shipment->program, constant) ? SORT_LARGE : 0) + constant;
  const accrt_external_t* external = shipment->external;
  const accrt_external_part_t* part =
      &external->parts[shipment->program->tables->constants[constant].component_first];
  uint64_t source = 0; /* the program's bundle is behind the others */
  while (source < external->source_count && external->sources[source] != part->weights)
    ++source;
  return SORT_CHUNKS + (source << 32) + part->tensor;
}

static bool comes_before(const void* context, uint32_t a, uint32_t b) {
  const load_t* loads = context;
  return loads[a].sort_key < loads[b].sort_key;
}

/* Counts first, then notes. */
static accrt_status_t choose_loads(shipment_t* shipment, const accrt_weight_set_t* weights,
                                   const uint8_t* wanted, uint32_t only) {
  const accrt_allocator_t* allocator = shipment->program->allocator;
  const bool one = only != ACCX_NONE;
  const uint32_t begin = one ? accrt_program_constant_of(shipment->program, only) : 0;
  const uint32_t end = one ? begin + 1 : shipment->external->constant_count;
  for (uint32_t i = begin; i < end; ++i) {
    if (choose(shipment, weights, wanted, only, i) == 0)
      continue;
    shipment->load_count += 1;
    shipment->item_capacity += shipment->program->tables->constants[i].component_count;
  }
  ACCRT_TRY(ACCRT_NEW_ARRAY(allocator, shipment->load_count, &shipment->loads));
  ACCRT_TRY(ACCRT_NEW_ARRAY(allocator, shipment->load_count, &shipment->order));
  ACCRT_TRY(ACCRT_NEW_ARRAY(allocator, shipment->item_capacity, &shipment->items));
  uint32_t count = 0;
  for (uint32_t i = begin; i < end && count < shipment->load_count; ++i) {
    const uint32_t chosen = choose(shipment, weights, wanted, only, i);
    if (chosen == 0)
      continue;
    shipment->order[count] = count;
    shipment->loads[count++] =
        (load_t){.sort_key = sort_key_of(shipment, i), .constant = i, .chosen = chosen};
  }
  accx_sort(shipment->order, count, comes_before, shipment->loads);
  return ACCRT_OK;
}

/* ---- What goes where ---- */

static uint64_t end_bytes_of(const shipment_t* shipment, const load_t* load) {
  const item_t* last = &shipment->items[load->end - 1];
  return last->place_bytes + last->size_bytes;
}

/* Whether a constant that is to be checked may come in several pieces. */
static bool spans(const shipment_t* shipment, const load_t* load) {
  const uint64_t begin_bytes = shipment->items[load->first].place_bytes;
  const uint64_t end_bytes = end_bytes_of(shipment, load);
  return accrt_external_unknown(shipment->external, load->constant) && end_bytes > begin_bytes &&
         (end_bytes - begin_bytes >= PIECE_BYTES ||
          begin_bytes / PIECE_BYTES != (end_bytes - 1) / PIECE_BYTES);
}

static accrt_status_t add_items(shipment_t* shipment, load_t* load) {
  const accrt_bundle_tables_t* tables = shipment->program->tables;
  const accx_constant_t* record = &tables->constants[load->constant];
  uint64_t digest_offset = 0;
  load->first = shipment->item_count;
  for (uint32_t i = 0; i < record->component_count; ++i) {
    if ((load->chosen >> i & 1) == 0)
      continue;
    const uint32_t component = record->component_first + i;
    const uint64_t size_bytes = tables->components[component].size_bytes;
    item_t* item = &shipment->items[shipment->item_count++];
    *item =
        (item_t){0, size_bytes, 0, digest_offset, component, (uint32_t)(load - shipment->loads)};
    if (!accrt_align_u64(shipment->size_bytes, ACCRT_STORAGE_ALIGN, &item->offset_bytes) ||
        !accrt_add_u64(item->offset_bytes, size_bytes, &shipment->size_bytes) ||
        !accrt_add_u64(digest_offset, size_bytes, &digest_offset))
      return ACCRT_FAIL(OVERFLOW, "the weights do not fit 64 bits");
    item->place_bytes = load->sort_key >= SORT_CHUNKS
                            ? accrt_external_stored(shipment->external, component)->offset_bytes
                            : item->offset_bytes;
  }
  load->end = shipment->item_count;
  if (load->sort_key < SORT_CHUNKS)
    shipment->part_count = load->end;
  return ACCRT_OK;
}

static accrt_status_t add_load(shipment_t* shipment, load_t* load) {
  const accx_constant_t* record = &shipment->program->tables->constants[load->constant];
  /* The digest is that of all components of the full tensor: no part of it proves anything. */
  if (load->chosen + 1 != 1u << record->component_count ||
      accrt_shard_is_split(accrt_program_shard(shipment->program, load->constant)))
    ACCRT_TRY(accrt_external_check(shipment->program, shipment->external, load->constant));
  ACCRT_TRY(add_items(shipment, load));
  if (!spans(shipment, load))
    return ACCRT_OK;
  void* memory;
  ACCRT_TRY(accrt_alloc_aligned(shipment->program->allocator, sizeof *load->check, 64, &memory));
  load->check = memory;
  accrt_mutex_init(&load->check->lock, ACCRT_LOCK_DIGEST);
  accx_hasher_init(&load->check->hasher);
  return ACCRT_OK;
}

static load_t* load_at(const shipment_t* shipment, uint32_t index) {
  return &shipment->loads[shipment->order[index]];
}

static accrt_status_t add_loads(shipment_t* shipment) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < shipment->load_count && status == ACCRT_OK; ++i)
    status = add_load(shipment, load_at(shipment, i));
  return status;
}

/* ---- In which order ---- */

/* Notes that what is moved at an offset goes to an address. */
static accrt_status_t add_run(shipment_t* shipment, uint64_t offset_bytes, uint64_t size_bytes,
                              uint64_t address) {
  accrt_extent_t* last = shipment->run_count > 0 ? &shipment->runs[shipment->run_count - 1] : NULL;
  if (size_bytes == 0)
    return ACCRT_OK;
  if (last == NULL || address - last->address != offset_bytes - last->offset_bytes) {
    ACCRT_TRY(ACCRT_GROW(shipment->program->allocator, (size_t)shipment->run_count + 1,
                         &shipment->runs, &shipment->run_capacity));
    last = &shipment->runs[shipment->run_count++];
    *last = (accrt_extent_t){offset_bytes, 0, address};
  }
  last->size_bytes = offset_bytes + size_bytes - last->offset_bytes;
  return ACCRT_OK;
}

/* Moves a part of the buffer next. */
static accrt_status_t add_part(shipment_t* shipment, uint64_t begin_bytes, uint64_t end_bytes) {
  const uint64_t offset_bytes = shipment->moved_bytes;
  shipment->moved_bytes += end_bytes - begin_bytes;
  return add_run(shipment, offset_bytes, end_bytes - begin_bytes, begin_bytes);
}

static bool is_large_part(const load_t* load) {
  return load->sort_key >= SORT_LARGE && load->sort_key < SORT_CHUNKS && load->check != NULL;
}

/* Constants from one on that are checked piece by piece and large, at most RUN_WIDTH of them: a run
 * of each in turn. */
static accrt_status_t interleave(shipment_t* shipment, uint32_t first, uint32_t* out_end) {
  uint64_t begins[RUN_WIDTH], ends[RUN_WIDTH], longest = 0;
  uint32_t count = 0;
  for (; count < RUN_WIDTH && first + count < shipment->load_count; ++count) {
    const load_t* load = load_at(shipment, first + count);
    if (!is_large_part(load))
      break;
    begins[count] = shipment->items[load->first].offset_bytes;
    ends[count] = end_bytes_of(shipment, load);
    longest = ends[count] - begins[count] > longest ? ends[count] - begins[count] : longest;
  }
  *out_end = first + count;
  accrt_status_t status = ACCRT_OK;
  for (uint64_t at = 0; at < longest; at += RUN_BYTES) {
    for (uint32_t k = 0; k < count && status == ACCRT_OK; ++k) {
      const uint64_t left = ends[k] - begins[k] > at ? ends[k] - begins[k] - at : 0;
      const uint64_t begin = begins[k] + at;
      if (left > 0)
        status = add_part(shipment, begin, begin + (left < RUN_BYTES ? left : RUN_BYTES));
    }
  }
  return status;
}

/* Pieces begin and end at multiples of 1 MiB: a small constant's are the same here and in the
 * buffer. */
static accrt_status_t order_parts(shipment_t* shipment) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0, end; status == ACCRT_OK && i < shipment->load_count; i = end) {
    const load_t* load = load_at(shipment, i);
    if (load->sort_key >= SORT_CHUNKS)
      break;
    end = i + 1;
    const uint64_t next_bytes = load->end < shipment->part_count
                                    ? shipment->items[load->end].offset_bytes
                                    : end_bytes_of(shipment, load);
    status = is_large_part(load)
                 ? interleave(shipment, i, &end)
                 : add_part(shipment, shipment->items[load->first].offset_bytes, next_bytes);
  }
  return status;
}

static accrt_bundle_t* bundle_of(const shipment_t* shipment, const item_t* item) {
  return shipment->external->parts[item->component].weights->files[0].bundle;
}

/* Where the chunk ends that an item ends in, or DATA. */
static uint64_t chunk_end(const shipment_t* shipment, const item_t* item) {
  const uint64_t data_bytes = accrt_bundle_tables(bundle_of(shipment, item))->data_size_bytes;
  const uint64_t last = (item->place_bytes + item->size_bytes - 1) / PIECE_BYTES;
  return data_bytes - last * PIECE_BYTES < PIECE_BYTES ? data_bytes : (last + 1) * PIECE_BYTES;
}

/* Whether an item lies behind another in one bundle, and what is between them in the file is in the
 * chunks that they touch. */
static bool follows(const shipment_t* shipment, const item_t* item, const item_t* other) {
  const uint64_t end_bytes = other->place_bytes + other->size_bytes;
  return bundle_of(shipment, item) == bundle_of(shipment, other) &&
         item->place_bytes >= end_bytes &&
         item->place_bytes / PIECE_BYTES <= (end_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

/* Chunks that follow one another in the file do so here; others begin at the next piece. What wraps
 * around is too large for any buffer. */
static accrt_status_t order_chunks(shipment_t* shipment) {
  uint64_t data_bytes = 0; /* where DATA would begin here */
  const item_t* last = NULL;
  for (uint32_t i = shipment->part_count; i < shipment->item_count; ++i) {
    const item_t* item = &shipment->items[i];
    if (item->size_bytes == 0)
      continue;
    if (last == NULL || !follows(shipment, item, last)) {
      data_bytes = (shipment->moved_bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES -
                   item->place_bytes / PIECE_BYTES * PIECE_BYTES;
    }
    ACCRT_TRY(
        add_run(shipment, data_bytes + item->place_bytes, item->size_bytes, item->offset_bytes));
    shipment->moved_bytes = data_bytes + chunk_end(shipment, item);
    last = item;
  }
  return ACCRT_OK;
}

/* ---- Filling ---- */

/* Adds a constant's bytes at `at` when all before them were added. */
static void feed(check_t* check, uint64_t at, const void* bytes, uint64_t size_bytes) {
  const uint64_t deadline = accrt_deadline_ns(PATIENCE_NS);
  for (;;) {
    const unsigned fed = atomic_load_explicit(&check->fed, memory_order_acquire);
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
    accrt_futex_wait(&check->fed, fed, left);
  }
  accx_hasher_update(&check->hasher, bytes, (size_t)size_bytes);
  accrt_mutex_lock(&check->lock);
  check->next += size_bytes;
  accrt_mutex_unlock(&check->lock);
  /* Release pairs with the acquire above. */
  atomic_fetch_add_explicit(&check->fed, 1, memory_order_release);
  accrt_futex_wake(&check->fed, INT32_MAX);
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

static accrt_status_t name_constant(const shipment_t* shipment, const item_t* item,
                                    accrt_status_t status) {
  const accrt_program_t* program = shipment->program;
  if (status != ACCRT_OK)
    accrt_error_prefix(
        "constant '%s'",
        accrt_program_string(
            program, program->tables->constants[shipment->loads[item->load].constant].name));
  return status;
}

static accrt_status_t copy_item(const shipment_t* shipment, const item_t* item,
                                uint64_t offset_bytes, void* target, uint64_t size_bytes) {
  accrt_status_t status = accrt_checkpoint();
  if (status == ACCRT_OK)
    status = accrt_external_read(shipment->program, shipment->external, item->component,
                                 offset_bytes, target, size_bytes);
  return name_constant(shipment, item, status);
}

/* A constant that is whole in a piece. */
static accrt_status_t check_whole(const shipment_t* shipment, const load_t* load,
                                  uint64_t piece_place, const unsigned char* piece) {
  accx_hasher_t hasher;
  accx_hasher_init(&hasher);
  for (uint32_t i = load->first; i < load->end; ++i) {
    const item_t* item = &shipment->items[i];
    accx_hasher_update(&hasher, piece + (item->place_bytes - piece_place),
                       (size_t)item->size_bytes);
  }
  const accx_digest_t found = accx_hasher_finish(&hasher);
  return accrt_external_accept(shipment->program, shipment->external, load->constant, &found);
}

/* What a piece has of one. */
static void check_part(check_t* check, const item_t* item, uint64_t piece_place,
                       const unsigned char* piece, uint64_t piece_bytes) {
  const uint64_t from = item->place_bytes > piece_place ? item->place_bytes : piece_place;
  const uint64_t item_end = item->place_bytes + item->size_bytes;
  const uint64_t piece_end = piece_place + piece_bytes;
  const uint64_t to = item_end < piece_end ? item_end : piece_end;
  if (to > from)
    feed(check, item->digest_offset + (from - item->place_bytes), piece + (from - piece_place),
         to - from);
}

/* The last constant first: only what began in an earlier piece is waited for, and who has that
 * piece does not wait for this one. */
static accrt_status_t check_piece(const shipment_t* shipment, uint32_t begin, uint32_t end,
                                  uint64_t piece_place, const unsigned char* piece,
                                  uint64_t piece_bytes) {
  accrt_status_t status = ACCRT_OK;
  while (end > begin && status == ACCRT_OK) {
    const load_t* load = &shipment->loads[shipment->items[end - 1].load];
    const uint32_t first = load->first > begin ? load->first : begin;
    const bool unknown = accrt_external_unknown(shipment->external, load->constant);
    for (uint32_t i = first; i < end && unknown && load->check != NULL; ++i)
      check_part(load->check, &shipment->items[i], piece_place, piece, piece_bytes);
    if (unknown && load->check == NULL && first == load->first)
      status = check_whole(shipment, load, piece_place, piece);
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
  for (; end < shipment->part_count && shipment->items[end].offset_bytes < end_bytes; ++end) {
    const item_t* item = &shipment->items[end];
    if (item->offset_bytes > at) {
      memset((unsigned char*)memory + (at - offset_bytes), 0, item->offset_bytes - at);
      at = item->offset_bytes;
    }
    const uint64_t item_end = item->offset_bytes + item->size_bytes;
    const uint64_t to = item_end < end_bytes ? item_end : end_bytes;
    if (to <= at)
      continue;
    ACCRT_TRY(copy_item(shipment, item, at - item->offset_bytes,
                        (unsigned char*)memory + (at - offset_bytes), to - at));
    at = to;
  }
  memset((unsigned char*)memory + (at - offset_bytes), 0, end_bytes - at);
  return check_piece(shipment, begin, end, offset_bytes, memory, size_bytes);
}

/* The chunk of a bundle that an offset in the buffer, in its item `begin` or before it, is of. */
static accrt_status_t fill_chunk(const shipment_t* shipment, uint32_t begin, uint64_t offset_bytes,
                                 void* memory) {
  const item_t* first = &shipment->items[begin];
  accrt_bundle_t* bundle = bundle_of(shipment, first);
  const uint64_t place_bytes =
      (first->place_bytes + offset_bytes - first->offset_bytes) / PIECE_BYTES * PIECE_BYTES;
  const uint64_t left = accrt_bundle_tables(bundle)->data_size_bytes - place_bytes;
  const uint64_t size_bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
  accrt_status_t status = accrt_checkpoint();
  if (status == ACCRT_OK)
    status = accrt_bundle_data_read(bundle, place_bytes, memory, size_bytes);
  if (status != ACCRT_OK)
    return name_constant(shipment, first, status);
  uint32_t end = begin + 1;
  while (end < shipment->item_count &&
         shipment->items[end].place_bytes < place_bytes + size_bytes &&
         follows(shipment, &shipment->items[end], &shipment->items[end - 1]))
    ++end;
  return check_piece(shipment, begin, end, place_bytes, memory, size_bytes);
}

/* A piece of at most 1 MiB of what is moved: into `memory`, or (NULL) to where it shall be. */
static accrt_status_t fill_piece(const shipment_t* shipment, uint64_t offset_bytes, void* memory,
                                 uint64_t size_bytes) {
  const uint64_t end_bytes = offset_bytes + size_bytes;
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = accrt_extent_find(shipment->runs, shipment->run_count, offset_bytes);
       i < shipment->run_count && shipment->runs[i].offset_bytes < end_bytes && status == ACCRT_OK;
       ++i) {
    const accrt_extent_t* run = &shipment->runs[i];
    const uint64_t from = run->offset_bytes > offset_bytes ? run->offset_bytes : offset_bytes;
    const uint64_t run_end = run->offset_bytes + run->size_bytes;
    const uint64_t to = run_end < end_bytes ? run_end : end_bytes;
    const uint64_t address = run->address + (from - run->offset_bytes);
    const uint32_t item = first_item(shipment, address - shipment->base);
    if (item >= shipment->part_count)
      return fill_chunk(shipment, item, address - shipment->base, memory);
    void* target =
        memory != NULL ? (unsigned char*)memory + (from - offset_bytes) : (void*)(uintptr_t)address;
    status = fill_part(shipment, address - shipment->base, target, to - from);
  }
  return status;
}

static accrt_status_t fill(void* user, uint64_t offset_bytes, void* memory, uint64_t size_bytes) {
  accrt_status_t status = ACCRT_OK;
  for (uint64_t done = 0; done < size_bytes && status == ACCRT_OK; done += PIECE_BYTES) {
    const uint64_t left = size_bytes - done;
    status =
        fill_piece(user, offset_bytes + done, memory != NULL ? (unsigned char*)memory + done : NULL,
                   left < PIECE_BYTES ? left : PIECE_BYTES);
  }
  return status;
}

/* ---- On a host ---- */

void accrt_upload_on_threads(const accrt_program_t* program, uint64_t size_bytes,
                             void* (*work)(void*), void* user) {
  const uint64_t useful = size_bytes / RUN_BYTES;
  const uint32_t most = accrt_device_facts(program->device)->concurrency;
  accrt_threads_run(useful < most ? useful : most, work, user);
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
  accrt_mutex_init(&copying.lock, ACCRT_LOCK_COPYING);
  atomic_init(&copying.next, 0);
  accrt_upload_on_threads(shipment->program, shipment->moved_bytes, copy_pieces, &copying);
  return copying.failed_at == UINT64_MAX ? ACCRT_OK : accrt_error_restore(&copying.error);
}

/* ---- All of it ---- */

/* Digests that are complete, and those that are not known yet: of constants without a wait, and of
 * those without a byte. */
static accrt_status_t finish_checks(const shipment_t* shipment) {
  accrt_status_t status = ACCRT_OK;
  for (uint32_t i = 0; i < shipment->load_count && status == ACCRT_OK; ++i) {
    const load_t* load = load_at(shipment, i);
    const item_t* last = &shipment->items[load->end - 1];
    const check_t* check = load->check;
    if (check != NULL && !check->late && check->next == last->digest_offset + last->size_bytes) {
      const accx_digest_t found = accx_hasher_finish(&check->hasher);
      status = accrt_external_accept(shipment->program, shipment->external, load->constant, &found);
    } else {
      status = accrt_external_check(shipment->program, shipment->external, load->constant);
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
  const accrt_upload_t upload = {.name = accrt_error_operation(),
                                 .size_bytes = shipment->moved_bytes,
                                 .extents = shipment->runs,
                                 .extent_count = shipment->run_count,
                                 .fill = fill,
                                 .user = shipment};
  return accrt_device_upload(shipment->program->device, &upload);
}

/* A buffer for all of it, labelled for those who look for who holds what. */
static accrt_status_t allocate(const shipment_t* shipment, accrt_buffer_t** out_buffer) {
  char label[64];
  const char* name = accrt_bundle_name(shipment->program->bundle);
  const char* slash = strrchr(name, '/');
  (void)snprintf(label, sizeof label, "weights of %s", slash != NULL ? slash + 1 : name);
  return accrt_weight_allocate(shipment->program, label, shipment->size_bytes, out_buffer);
}

static accrt_status_t ship(shipment_t* shipment, accrt_weight_set_t* weights) {
  accrt_buffer_t* buffer = NULL;
  uint64_t size_bytes;
  ACCRT_TRY(add_loads(shipment));
  ACCRT_TRY(order_parts(shipment));
  ACCRT_TRY(order_chunks(shipment));
  ACCRT_TRY(allocate(shipment, &buffer));
  accrt_buffer_range(buffer, &shipment->base, &size_bytes);
  for (uint32_t i = 0; i < shipment->run_count; ++i)
    shipment->runs[i].address += shipment->base;
  accrt_status_t status = move(shipment);
  if (status == ACCRT_OK)
    status = finish_checks(shipment);
  if (status == ACCRT_OK)
    share_out(shipment, weights, buffer, shipment->base);
  accrt_buffer_unref(buffer);
  return status;
}

static void discard(const shipment_t* shipment) {
  const accrt_allocator_t* allocator = shipment->program->allocator;
  accrt_free_array(allocator, shipment->runs, shipment->run_capacity, sizeof *shipment->runs);
  for (uint32_t i = 0; shipment->loads != NULL && i < shipment->load_count; ++i)
    accrt_free_aligned(allocator, shipment->loads[i].check, sizeof(check_t), 64);
  accrt_free_array(allocator, shipment->items, shipment->item_capacity, sizeof *shipment->items);
  accrt_free_array(allocator, shipment->order, shipment->load_count, sizeof *shipment->order);
  accrt_free_array(allocator, shipment->loads, shipment->load_count, sizeof *shipment->loads);
}

accrt_status_t accrt_upload_move(accrt_program_t* program, accrt_weight_set_t* weights,
                                 const uint8_t* wanted, uint32_t only) {
  shipment_t shipment;
  memset(&shipment, 0, sizeof shipment);
  shipment.program = program;
  shipment.external = weights->external;
  accrt_status_t status = choose_loads(&shipment, weights, wanted, only);
  if (status == ACCRT_OK && shipment.load_count > 0)
    status = ship(&shipment, weights);
  discard(&shipment);
  return status;
}
