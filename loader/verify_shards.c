/* loader/verify_shards.c - the proof that ranks cover their tensors, and the tensors of adapters
 * (rules 130, 131, 135). Reads private memory only, and takes linear time. */
#include "loader/internal.h"
#include "format/layout.h"

#include "accrt/tensor.h"

/* ---- Shards ---- */

static accrt_status_t check_shard(const accx_verifier_t* verifier, uint32_t index) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_shard_t* shard = &tables->shards[index];
  const bool split = shard->kind == ACCX_SHARD_SPLIT;
  bool good = shard->constant < tables->constant_count &&
              (index == 0 || shard->constant > shard[-1].constant) &&
              shard->kind <= ACCX_SHARD_SPLIT && shard->degree >= 1 &&
              shard->degree == tables->shards[0].degree;
  if (good && split) {
    good = shard->axis < tables->constants[shard->constant].rank && shard->extent >= 0 &&
           shard->segment_count >= 1;
  } else if (good) {
    good = shard->axis == 0 && shard->extent == 0 && shard->segment_first == 0 &&
           shard->segment_count == 0;
  }
  if (good)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, SHARD, "shards", index, NULL,
                     "constant %" PRIu32 " of kind %" PRIu32 ", axis %" PRIu32 ", degree %" PRIu32
                     ", extent %" PRId64 ", %" PRIu32 " segments",
                     shard->constant, shard->kind, shard->axis, shard->degree, shard->extent,
                     shard->segment_count);
}

static uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/* The unit of parts: no byte, block, group or tile is cut. If two units apply, one is a multiple of
 * the other. */
static uint32_t unit_along(const accx_constant_t* constant, uint32_t axis) {
  const accx_layout_t* layout = accx_layout_find(constant->encoding);
  const uint32_t bits = accrt_dtype_bits(constant->dtype);
  if (constant->encoding <= ACCX_ENCODING_OPAQUE)
    return bits < 8 ? 8 / bits : 1;
  if (axis + 1 == constant->rank) {
    return larger(layout->block_elements, larger(constant->group_elements, layout->group_elements));
  }
  return axis + 2 == constant->rank ? larger(layout->row_multiple, layout->tile_rows) : 1;
}

/* Computes one rank's part of a segment. False when the segment cannot be divided evenly into
 * multiples of `unit` (an undivided segment at the tensor's end is exempt). */
static bool part_of(const accx_segment_t* segment, const accx_shard_t* shard, uint32_t unit,
                    int64_t* out_part) {
  if (segment->replicas == 0 || shard->degree % segment->replicas != 0 || segment->reserved != 0)
    return false;
  const int64_t parts = shard->degree / segment->replicas;
  const int64_t size = segment->end - segment->begin;
  *out_part = size / parts;
  const bool is_tail = parts == 1 && segment->end == shard->extent;
  return size % parts == 0 && (is_tail || *out_part % unit == 0);
}

/* Checks the segments from `next` on: they must tile the extent, and one rank's parts must add up
 * to the constant's size. */
static accrt_status_t check_segments(const accx_verifier_t* verifier, uint32_t index,
                                     uint32_t* next) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  const accx_shard_t* shard = &tables->shards[index];
  const uint32_t unit = unit_along(&tables->constants[shard->constant], shard->axis);
  int64_t end = 0, local = 0;
  if (shard->segment_first != *next ||
      !accrt_range_fits(*next, shard->segment_count, tables->segment_count)) {
    return ACCX_REJECT(verifier, SEGMENT, "shards", index, "segment_first",
                       "%" PRIu32 " segments from %" PRIu32 ", expected from %" PRIu32
                       " of %" PRIu32,
                       shard->segment_count, shard->segment_first, *next, tables->segment_count);
  }
  for (uint32_t i = *next; i < *next + shard->segment_count; ++i) {
    const accx_segment_t* segment = &tables->segments[i];
    int64_t part = 0;
    /* Both ends are in [0, extent], so neither their difference nor the sum of parts overflows. */
    if (segment->begin != end || segment->end <= end || segment->end > shard->extent ||
        !part_of(segment, shard, unit, &part)) {
      return ACCX_REJECT(
          verifier, SEGMENT, "segments", i, NULL,
          "[%" PRId64 ", %" PRId64 ") with %" PRIu32 " replicas of degree %" PRIu32
          " after %" PRId64 ", in an extent of %" PRId64 ", in multiples of %" PRIu32,
          segment->begin, segment->end, segment->replicas, shard->degree, end, shard->extent, unit);
    }
    end = segment->end;
    local += part;
  }
  *next += shard->segment_count;
  const int64_t size = tables->constants[shard->constant].shape[shard->axis];
  if (end == shard->extent && local == size)
    return ACCRT_OK;
  return ACCX_REJECT(verifier, SEGMENT, "shards", index, "extent",
                     "segments end at %" PRId64 " of %" PRId64 " and give a rank %" PRId64
                     " of axis %" PRIu32 ", where constant '%.64s' has %" PRId64,
                     end, shard->extent, local, shard->axis,
                     accx_verifier_text(verifier, tables->constants[shard->constant].name), size);
}

/* Checks that nothing is sharded, or that every constant from another file is. */
static accrt_status_t check_all_sharded(const accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t shard = 0;
  for (uint32_t i = 0; i < tables->constant_count; ++i) {
    if (shard < tables->shard_count && tables->shards[shard].constant == i) {
      ++shard;
    } else if (tables->constants[i].source == ACCX_CONSTANT_EXTERNAL) {
      return ACCX_REJECT(verifier, SHARD, "constants", i, NULL,
                         "'%.64s' is EXTERNAL and has no shard, where others have",
                         accx_verifier_text(verifier, tables->constants[i].name));
    }
  }
  return ACCRT_OK;
}

accrt_status_t accx_verify_shards(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t next = 0;
  for (uint32_t i = 0; i < tables->shard_count; ++i) {
    ACCRT_TRY(check_shard(verifier, i));
    if (tables->shards[i].kind == ACCX_SHARD_SPLIT)
      ACCRT_TRY(check_segments(verifier, i, &next));
  }
  if (next != tables->segment_count) {
    return ACCX_REJECT(verifier, SEGMENT, "segments", next, NULL,
                       "%" PRIu32 " segments, but shards name %" PRIu32, tables->segment_count,
                       next);
  }
  return tables->shard_count > 0 ? check_all_sharded(verifier) : ACCRT_OK;
}

/* ---- Adapters ---- */

enum { INPUT_OPTIONAL = 1, INPUT_PLAIN = 2 };

/* Notes, for each input that an adapter names, whether functions have it as optional or
 * required. */
static void note_inputs(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  for (uint32_t f = 0; f < tables->function_count; ++f) {
    const accx_function_t* function = &tables->functions[f];
    for (uint32_t i = 0; i < function->input_count; ++i) {
      const accx_argument_t* argument = &tables->arguments[function->argument_first + i];
      uint32_t* const found = accx_set_find(verifier, argument->name);
      if (found != NULL) {
        *found |=
            (argument->flags & ACCX_ARGUMENT_FLAG_OPTIONAL) != 0 ? INPUT_OPTIONAL : INPUT_PLAIN;
      }
    }
  }
}

accrt_status_t accx_verify_adapters(accx_verifier_t* verifier) {
  const accrt_bundle_tables_t* tables = verifier->tables;
  uint32_t previous = 0;
  accx_set_clear(verifier);
  for (uint32_t i = 0; i < tables->adapter_count; ++i) {
    const accx_adapter_t* adapter = &tables->adapters[i];
    ACCRT_TRY(accx_check_ordered_name(verifier, adapter->slot, previous, "adapters", i, "slot"));
    ACCRT_TRY(accx_check_name(verifier, adapter->input, "adapters", i, "input"));
    previous = adapter->slot;
    (void)accx_set_value(verifier, adapter->input, 0);
  }
  if (tables->adapter_count > 0)
    note_inputs(verifier);
  for (uint32_t i = 0; i < tables->adapter_count; ++i) {
    const accx_adapter_t* adapter = &tables->adapters[i];
    if (adapter->flags <= ACCX_ADAPTER_SCALED && adapter->reserved == 0 &&
        *accx_set_find(verifier, adapter->input) == INPUT_OPTIONAL)
      continue;
    return ACCX_REJECT(
        verifier, ADAPTER, "adapters", i, "input",
        "'%.64s' is no OPTIONAL input wherever it is one; flags 0x%" PRIx32 ", reserved %" PRIu32,
        accx_verifier_text(verifier, adapter->input), adapter->flags, adapter->reserved);
  }
  return ACCRT_OK;
}
