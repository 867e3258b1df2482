/* runtime/program/shard.h - the part of a full tensor that one rank of a bundle with shards reads.
 * Private to runtime/program. */
#ifndef ACCRT_RUNTIME_PROGRAM_SHARD_H_
#define ACCRT_RUNTIME_PROGRAM_SHARD_H_

#include "loader/weights.h"
#include "runtime/program/internal.h"

/* How a rank's component lies in the full one: `rows` rows one after another, of each of which the
 * rank has one piece a segment. */
struct accrt_slice {
  const accx_segment_t* segments; /* NULL: the rank has all of it */
  uint32_t segment_count;
  uint32_t degree; /* 0: the component cannot be cut so */
  uint32_t rank;
  uint32_t unit;       /* what pieces begin and end at, along the axis */
  int64_t extent;      /* of the full tensor */
  uint64_t unit_bytes; /* of a row, for each `unit` of the axis */
  uint64_t rows;
  uint64_t row_bytes; /* of the full component */
  uint64_t local_row_bytes;
};

/* Compares what the options say with the bundle's shards, and finds each component's part. */
accrt_status_t accrt_program_shards_create(accrt_program_t* program, uint32_t rank,
                                           uint32_t degree);
void accrt_program_shards_destroy(accrt_program_t* program);
/* Before a constant is bound: a rank was given, and each of its components can be cut. */
accrt_status_t accrt_program_check_shard(const accrt_program_t* program, const accx_shard_t* shard);
/* NULL: a source has all of the component, and nothing else. */
static inline const accrt_slice_t* accrt_program_slice(const accrt_program_t* program,
                                                       uint32_t component) {
  const accrt_slice_t* slice = program->slices != NULL ? &program->slices[component] : NULL;
  return slice != NULL && slice->segments != NULL ? slice : NULL;
}
/* True of a constant of which a rank has a part. */
static inline bool accrt_shard_is_split(const accx_shard_t* shard) {
  return shard != NULL && shard->kind == ACCX_SHARD_SPLIT;
}
/* A constant's record; NULL: it has none. */
const accx_shard_t* accrt_program_shard(const accrt_program_t* program, uint32_t constant);
/* Copies bytes of the rank's component, [offset_bytes, offset_bytes + size_bytes) of it, and reads
 * no others. */
accrt_status_t accrt_slice_read(const accrt_slice_t* slice, accrt_weights_t* weights,
                                uint32_t tensor, uint32_t component, uint64_t offset_bytes,
                                void* target, uint64_t size_bytes);
/* Where its only piece begins in the full component; false when there are several. */
bool accrt_slice_is_run(const accrt_slice_t* slice, uint64_t* out_offset_bytes);

#endif /* ACCRT_RUNTIME_PROGRAM_SHARD_H_ */
