/* runtime/program/shard.c - which bytes of full tensors are a rank's: by the bundle's shards, and
 * by the layout of each component. It reads them when asked, and places nothing.
 */
#include "runtime/program/shard.h"

#include <stdio.h>
#include <string.h>

#include "accrt/tensor.h"
#include "format/layout.h"

const accx_shard_t* accrt_program_shard(const accrt_program_t* program, uint32_t constant) {
  const accrt_bundle_tables_t* tables = program->tables;
  uint32_t low = 0, end = tables->shard_count;
  while (low < end) {
    const uint32_t middle = low + (end - low) / 2;
    if (tables->shards[middle].constant < constant)
      low = middle + 1;
    else
      end = middle;
  }
  return low < tables->shard_count && tables->shards[low].constant == constant
             ? &tables->shards[low]
             : NULL;
}

/* ---- Pieces ---- */

static uint64_t byte_of(const accrt_slice_t* slice, int64_t index) {
  return index == slice->extent ? slice->row_bytes
                                : (uint64_t)index / slice->unit * slice->unit_bytes;
}

/* What the rank has of a segment, along the axis. The verifier has proved that it divides. */
static int64_t piece_of(const accrt_slice_t* slice, uint32_t segment, int64_t* out_end) {
  const accx_segment_t* record = &slice->segments[segment];
  const int64_t part = (record->end - record->begin) / (slice->degree / record->replicas);
  const int64_t begin = record->begin + part * (slice->rank / record->replicas);
  *out_end = begin + part;
  return begin;
}

bool accrt_slice_is_run(const accrt_slice_t* slice, uint64_t* out_offset_bytes) {
  int64_t end;
  *out_offset_bytes = byte_of(slice, piece_of(slice, 0, &end));
  return slice->rows == 1 && slice->segment_count == 1;
}

accrt_status_t accrt_slice_read(const accrt_slice_t* slice, accrt_weights_t* weights,
                                uint32_t tensor, uint32_t component, uint64_t offset_bytes,
                                void* target, uint64_t size_bytes) {
  unsigned char* bytes = target;
  accrt_status_t status = ACCRT_OK;
  while (size_bytes > 0 && status == ACCRT_OK) {
    const uint64_t row = offset_bytes / slice->local_row_bytes;
    uint64_t at = offset_bytes % slice->local_row_bytes;
    uint64_t from = 0, left = 0;
    for (uint32_t i = 0; i < slice->segment_count; ++i) {
      int64_t end;
      from = byte_of(slice, piece_of(slice, i, &end));
      left = byte_of(slice, end) - from;
      if (at < left)
        break;
      at -= left;
    }
    const uint64_t count = left - at < size_bytes ? left - at : size_bytes;
    status = accx_weights_copy(weights, tensor, component, row * slice->row_bytes + from + at,
                               bytes, count);
    bytes += count;
    offset_bytes += count;
    size_bytes -= count;
  }
  return status;
}

/* ---- Where pieces lie ---- */

typedef struct cut {
  const accx_constant_t* constant;
  const accx_shard_t* shard;
  const accx_component_t* component;
  const accx_layout_t* layout;
} cut_t;

/* Bytes of the component of a tensor of so much along the axis. */
static bool size_with(const cut_t* cut, int64_t along, accx_layout_view_t* view,
                      uint64_t* out_size_bytes) {
  const accx_constant_t* constant = cut->constant;
  int64_t shape[ACCX_MAX_RANK];
  memcpy(shape, constant->shape, sizeof shape);
  shape[cut->shard->axis] = along;
  return accx_layout_look(constant->encoding, constant->dtype, constant->group_elements,
                          constant->rank, shape, view) == ACCX_LAYOUT_GOOD &&
         accx_layout_size(view, cut->component->role, cut->component->dtype, out_size_bytes);
}

static uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/* What must not be cut. Of two that matter one is a multiple of the other. */
static uint32_t unit_of(const cut_t* cut) {
  const accx_constant_t* constant = cut->constant;
  const uint32_t bits = accrt_dtype_bits(constant->dtype);
  if (constant->encoding <= ACCX_ENCODING_OPAQUE)
    return bits < 8 ? 8 / bits : 1;
  if (cut->shard->axis + 1 == constant->rank) {
    const uint32_t group = larger(constant->group_elements, cut->layout->group_elements);
    /* Zero points of two groups share a byte. */
    const bool pairs = constant->encoding == ACCRT_LAYOUT_I4_GROUP_ASYM &&
                       cut->component->role == ACCRT_LAYOUT_ROLE_ZEROS;
    return larger(cut->layout->block_elements, pairs ? 2 * group : group);
  }
  return cut->shard->axis + 2 == constant->rank
             ? larger(cut->layout->row_multiple, cut->layout->tile_rows)
             : 1;
}

/* Rows of the component, each of which is cut alike: what comes before the axis in the order of
 * storage. */
static uint64_t rows_of(const cut_t* cut, const accx_layout_view_t* full) {
  const accx_constant_t* constant = cut->constant;
  const uint32_t axis = cut->shard->axis;
  const uint32_t role = cut->component->role;
  const uint32_t encoding = constant->encoding;
  if (encoding >= ACCRT_LAYOUT_GPTQ_V1 && encoding <= ACCRT_LAYOUT_AWQ) {
    /* These have K before N; GPTQ has eight of K in a word. */
    const uint64_t k = encoding == ACCRT_LAYOUT_AWQ ? full->k : full->k / 8;
    return axis == 1 ? 1 : role == ACCRT_LAYOUT_ROLE_DATA ? k : full->groups;
  }
  const uint32_t tile = cut->layout->tile_rows;
  if (axis + 1 == constant->rank && tile > 1 && role == ACCRT_LAYOUT_ROLE_SCALES)
    return full->batch * (full->n / tile + (full->n % tile != 0));
  uint64_t rows = 1;
  for (uint32_t i = 0; i < axis; ++i)
    rows *= (uint64_t)constant->shape[i];
  return rows;
}

/* Pieces begin and end at whole units, and make up what the constant has. */
static bool is_sound(const cut_t* cut, accrt_slice_t* slice) {
  for (uint32_t i = 0; i < slice->segment_count; ++i) {
    int64_t end;
    const int64_t begin = piece_of(slice, i, &end);
    if (begin % slice->unit != 0 || (end % slice->unit != 0 && end != slice->extent))
      return false;
    slice->local_row_bytes += byte_of(slice, end) - byte_of(slice, begin);
  }
  return slice->local_row_bytes * slice->rows == cut->component->size_bytes;
}

/* False when the component cannot be cut so. */
static bool make_slice(const cut_t* cut, const accx_segment_t* segments, uint32_t rank,
                       accrt_slice_t* slice) {
  accx_layout_view_t view, full;
  const uint32_t unit = unit_of(cut);
  uint64_t one, two, all;
  if (!size_with(cut, unit, &view, &one) || !size_with(cut, 2 * (int64_t)unit, &view, &two) ||
      !size_with(cut, cut->shard->extent, &full, &all))
    return false;
  /* Indices of groups are those of the full tensor. */
  if (cut->component->role == ACCRT_LAYOUT_ROLE_GROUP_INDEX && one != two)
    return false;
  const uint64_t rows = rows_of(cut, &full);
  if (one == two || rows == 0)
    return cut->component->size_bytes == all;
  *slice = (accrt_slice_t){.segments = segments + cut->shard->segment_first,
                           .segment_count = cut->shard->segment_count,
                           .degree = cut->shard->degree,
                           .rank = rank,
                           .unit = unit,
                           .extent = cut->shard->extent,
                           .unit_bytes = one / rows,
                           .rows = rows,
                           .row_bytes = all / rows};
  return one % rows == 0 && all % rows == 0 && is_sound(cut, slice);
}

static void cut_constant(accrt_program_t* program, const accx_shard_t* shard, uint32_t rank) {
  const accrt_bundle_tables_t* tables = program->tables;
  const accx_constant_t* constant = &tables->constants[shard->constant];
  cut_t cut = {constant, shard, NULL, accx_layout_find(constant->encoding)};
  for (uint32_t i = 0; i < constant->component_count; ++i) {
    accrt_slice_t* slice = &program->slices[constant->component_first + i];
    cut.component = &tables->components[constant->component_first + i];
    if (!make_slice(&cut, tables->segments, rank, slice))
      *slice = (accrt_slice_t){.segments = tables->segments};
  }
}

/* ---- All of a program ---- */

static accrt_status_t fail_degree(const accrt_program_t* program, uint32_t rank, uint32_t degree) {
  const accrt_bundle_tables_t* tables = program->tables;
  char example[192] = "";
  for (uint32_t i = 0; i < tables->shard_count && example[0] == '\0'; ++i) {
    const accx_shard_t* shard = &tables->shards[i];
    const accx_constant_t* constant = &tables->constants[shard->constant];
    if (accrt_shard_is_split(shard))
      (void)snprintf(example, sizeof example, " ('%.100s' has %" PRId64 " of %" PRId64 ")",
                     accrt_program_string(program, constant->name), constant->shape[shard->axis],
                     shard->extent);
  }
  return ACCRT_FAIL(INVALID_ARGUMENT,
                    "'%s' is made for a degree of %" PRIu32 "%s: rank %" PRIu32
                    " of degree %" PRIu32 "%s was asked for",
                    accrt_bundle_name(program->bundle),
                    tables->shard_count > 0 ? tables->shards[0].degree : 1, example, rank, degree,
                    degree == 0 ? " (none given)" : "");
}

accrt_status_t accrt_program_shards_create(accrt_program_t* program, uint32_t rank,
                                           uint32_t degree) {
  const accrt_bundle_tables_t* tables = program->tables;
  if (degree == 0 && rank == 0)
    return ACCRT_OK;
  if (degree != (tables->shard_count > 0 ? tables->shards[0].degree : 1))
    return fail_degree(program, rank, degree);
  if (rank >= degree) {
    return ACCRT_FAIL(OUT_OF_RANGE, "'%s': rank %" PRIu32 " of %" PRIu32 " ranks",
                      accrt_bundle_name(program->bundle), rank, degree);
  }
  program->rank = rank;
  ACCRT_TRY(ACCRT_NEW_ARRAY(program->allocator, tables->component_count, &program->slices));
  for (uint32_t i = 0; i < tables->shard_count; ++i) {
    if (accrt_shard_is_split(&tables->shards[i]))
      cut_constant(program, &tables->shards[i], rank);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_program_check_shard(const accrt_program_t* program,
                                         const accx_shard_t* shard) {
  if (shard == NULL)
    return ACCRT_OK;
  if (program->slices == NULL)
    return fail_degree(program, 0, 0);
  const accx_constant_t* constant = &program->tables->constants[shard->constant];
  for (uint32_t i = 0; i < constant->component_count; ++i) {
    const uint32_t component = constant->component_first + i;
    const accrt_slice_t* slice = accrt_program_slice(program, component);
    if (slice == NULL || slice->degree != 0)
      continue;
    return ACCRT_FAIL(UNSUPPORTED,
                      "constant '%s' (%s): its component of role %" PRIu32
                      " cannot be cut along axis %" PRIu32 " for %" PRIu32 " ranks",
                      accrt_program_string(program, constant->name),
                      accx_layout_find(constant->encoding)->name,
                      program->tables->components[component].role, shard->axis, shard->degree);
  }
  return ACCRT_OK;
}

void accrt_program_shards_destroy(accrt_program_t* program) {
  accrt_free_array(program->allocator, program->slices, program->tables->component_count,
                   sizeof *program->slices);
}
