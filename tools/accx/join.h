/* tools/accx/join.h - a source's weights in the sense of their projects: separate tensors (codes,
 * scales, zero points, group indices) form one weight with the components of its layout. For `accx
 * pack` and `accx quantize`. */
#ifndef ACCX_JOIN_H_
#define ACCX_JOIN_H_

#include "accx.h"
#include "args.h"

#include "accrt/layout.h"
#include "accrt/weights.h"

/* How a component is computed from the stored bytes. */
typedef enum {
  ACCX_PART_STORED,     /* the same bytes */
  ACCX_PART_TURNED,     /* from words of zero points along N to rows of nibbles */
  ACCX_PART_RECIPROCAL, /* from a scale that divides to one that multiplies */
} accx_part_kind_t;

typedef struct accx_weight_part {
  uint32_t role;
  uint32_t tensor; /* of the source */
  uint32_t component;
  accrt_dtype_t dtype;
  uint64_t size_bytes;
  accx_part_kind_t kind;
} accx_weight_part_t;

typedef struct accx_weight {
  accrt_weights_tensor_t facts; /* `shape` is the one below if the weight was joined */
  int64_t shape[ACCRT_MAX_RANK];
  accx_weight_part_t parts[ACCRT_LAYOUT_ROLE_COUNT];
  bool apart; /* part of a weight that could not be joined: useless alone */
} accx_weight_t;

typedef struct accx_weight_list {
  accrt_weights_t* source;
  accx_weight_t* weights;
  uint32_t count;
  /* The last component that was computed. */
  void* made;
  const accx_weight_part_t* made_of;
} accx_weight_list_t;

/* Lists a source's weights in its order. Uses --gptq and --apart. Reports the tensors that could
 * not be joined, and why. */
int accx_weight_list_make(const accx_args_t* args, const char* path, accrt_weights_t* source,
                          accx_weight_list_t* out_list);
void accx_weight_list_free(accx_weight_list_t* list);
/* Copies a piece of a component's bytes. For a stored component, reads only that piece. Files are
 * read and not mapped: if another process truncates one, the result is an error. */
accrt_status_t accx_weight_read(accx_weight_list_t* list, const accx_weight_t* weight,
                                uint32_t part, uint64_t offset_bytes, void* target,
                                uint64_t size_bytes);

/* The options of verbs that list weights. */
#define ACCX_JOIN_OPTIONS                                                                          \
  {"gptq", "v1|v2", false,                                                                         \
   "v1 or v2: what zero points of GPTQ tensors mean, which differ by one; see config.json's "      \
   "checkpoint_format (gptq: v1)"},                                                                \
  {                                                                                                \
    "apart", NULL, false, "do not join the tensors of quantized weights"                           \
  }

#endif /* ACCX_JOIN_H_ */
