/* runtime/program/external.h - where the bytes of constants are: which tensor of which source is
 * each, the bundle itself being one. Private to runtime/program.
 */
#ifndef ACCRT_RUNTIME_PROGRAM_EXTERNAL_H_
#define ACCRT_RUNTIME_PROGRAM_EXTERNAL_H_

#include "format/digest.h"
#include "loader/weights.h"
#include "runtime/program/internal.h"
#include "runtime/program/shard.h"

/* Where a component's bytes are. */
typedef struct accrt_external_part {
  accrt_weights_t* weights; /* NULL: a prepare function makes it, or nothing here uses it */
  uint32_t tensor;
  uint32_t component;
} accrt_external_part_t;

/* All of a program at one time. Immutable but for `checked`; counted: sets of weights keep what
 * they use in place. */
struct accrt_external {
  accrt_object_t object;
  const accrt_allocator_t* allocator;
  accrt_weights_t* own;      /* the bundle; an internal reference, as all here are */
  accrt_weights_t** sources; /* the others */
  uint32_t source_count;
  size_t source_capacity;
  uint32_t component_count;
  uint32_t constant_count;
  accrt_external_part_t* parts; /* by component */
  /* By constant: what is known of its bytes. Relaxed: a thread that sees GOOD needs nothing else
   * that was written. */
  atomic_uchar* checked;
};
enum {
  ACCRT_EXTERNAL_FREE = 0, /* no digest is to match */
  ACCRT_EXTERNAL_UNKNOWN = 1,
  ACCRT_EXTERNAL_GOOD = 2,
};

/* What is to be bound. */
typedef struct accrt_external_request {
  accrt_weights_t* const* weights;
  uint32_t weight_count;
  const char* const* names; /* only these; NULL: all that are EXTERNAL and used here */
  uint32_t name_count;
  bool by_name; /* digests do not matter */
  bool is_load; /* of a program that is there: files that the bundle names are not looked at */
  const accrt_external_t* base; /* what is bound already, and stays where nothing new is; or NULL */
} accrt_external_request_t;

/* Binds constants to tensors, all or none; without a base, what the bundle stores to itself first.
 * `changed`, by constant, gets 1 for each that was bound to something else. NULL in *out_external
 * when nothing changes the base. */
accrt_status_t accrt_external_create(accrt_program_t* program,
                                     const accrt_external_request_t* request, uint8_t* changed,
                                     accrt_external_t** out_external);
static inline void accrt_external_retain(accrt_external_t* external) {
  if (external != NULL)
    accrt_object_retain(&external->object);
}
/* True when some source has the component. */
static inline bool accrt_external_has(const accrt_external_t* external, uint32_t component) {
  return external->parts[component].weights != NULL;
}
/* True when that is the bundle, whose chunks have digests of their own. */
static inline bool accrt_external_is_own(const accrt_external_t* external, uint32_t component) {
  return external->parts[component].weights == external->own;
}
/* What of the source's tensor is the rank's; NULL: all of it, as always of what the bundle
 * stores. */
static inline const accrt_slice_t* accrt_external_slice(const accrt_program_t* program,
                                                        const accrt_external_t* external,
                                                        uint32_t component) {
  return accrt_external_is_own(external, component) ? NULL
                                                    : accrt_program_slice(program, component);
}
/* The record of a component whose source is a bundle: where it lies in that. */
const accx_component_t* accrt_external_stored(const accrt_external_t* external, uint32_t component);
/* Whether a host can use a component where it is in its source, without reading more than that. */
bool accrt_external_lies_well(const accrt_program_t* program, const accrt_external_t* external,
                              uint32_t component);
/* The address of one that does, after the digest of its constant was found to match. */
accrt_status_t accrt_external_bytes(accrt_program_t* program, accrt_external_t* external,
                                    uint32_t component, const void** out_data,
                                    uint64_t* out_size_bytes);
/* Copies bytes of a component: of a rank's part of it where the bundle has shards. */
accrt_status_t accrt_external_read(const accrt_program_t* program, const accrt_external_t* external,
                                   uint32_t component, uint64_t offset_bytes, void* target,
                                   uint64_t size_bytes);
/* Compares a digest that was made of a constant's bytes, and remembers that it matched. */
accrt_status_t accrt_external_accept(const accrt_program_t* program, accrt_external_t* external,
                                     uint32_t constant, const accx_digest_t* found);
/* Makes it here, unless it is known. */
accrt_status_t accrt_external_check(const accrt_program_t* program, accrt_external_t* external,
                                    uint32_t constant);
/* Compares with their SHA-256 those of the `bound` constants (by constant) whose digest has one in
 * the bundle's metadata. ACCRT_ERROR_DATA_CORRUPT. May read all of them, by several threads. */
accrt_status_t accrt_external_check_roots(const accrt_program_t* program,
                                          accrt_external_t* external, const uint8_t* bound);
static inline bool accrt_external_unknown(const accrt_external_t* external, uint32_t constant) {
  return atomic_load_explicit(&external->checked[constant], memory_order_relaxed) ==
         ACCRT_EXTERNAL_UNKNOWN;
}

#endif /* ACCRT_RUNTIME_PROGRAM_EXTERNAL_H_ */
