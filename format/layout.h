/* format/layout.h - the layout registry as the library sees it: which components a weight has, and
 * their exact sizes. For the verifier, the writers and the weight readers. It may not allocate, and
 * knows nothing of bundles. */
#ifndef ACCRT_FORMAT_LAYOUT_H_
#define ACCRT_FORMAT_LAYOUT_H_

#include <stdbool.h>

#include "accrt/layout.h"

typedef struct accx_layout {
  uint8_t id;
  uint8_t flags; /* ACCRT_LAYOUT_FLAG_* */
  uint8_t min_rank;
  uint8_t max_rank;
  uint16_t block_elements; /* the last dimension is a multiple */
  uint16_t block_bytes;    /* of layouts that are one run of blocks */
  uint8_t row_multiple;    /* of the dimension before the last */
  uint8_t tile_rows;       /* rows that share a scale */
  uint16_t group_elements; /* elements that share a scale; 0: free or the row */
  uint8_t required_roles;  /* bit 1 << role */
  uint8_t since_minor;     /* of the layout registry */
  uint8_t extents
      [ACCRT_LAYOUT_ROLE_COUNT]; /* how many elements a component has: extent_t of layout.c */
  uint32_t dtypes[ACCRT_LAYOUT_ROLE_COUNT]; /* bit 1 << data type */
  char name[16];
} accx_layout_t;

/* NULL for ids that this library does not know. */
const accx_layout_t* accx_layout_find(uint32_t id);
/* All of them in order of id: for listings. */
const accx_layout_t* accx_layout_at(uint32_t index);

/* What a weight's shape is to its layout. */
typedef struct accx_layout_view {
  const accx_layout_t* layout;
  uint64_t batch;  /* product of the dimensions before the last two */
  uint64_t rows;   /* batch times the dimension before the last */
  uint64_t n;      /* the dimension before the last; 1 for vectors */
  uint64_t k;      /* the last dimension; 1 for rank 0 */
  uint64_t group;  /* elements that share a scale; k when the whole row does */
  uint64_t groups; /* of a row, the last one may be short */
} accx_layout_view_t;

typedef enum {
  ACCX_LAYOUT_GOOD,
  ACCX_LAYOUT_BAD_ID,
  ACCX_LAYOUT_BAD_DTYPE, /* a quantized weight is f32, f16 or bf16 */
  ACCX_LAYOUT_BAD_GROUP, /* not 0 where fixed; else a multiple of 8 up to 2^24 */
  ACCX_LAYOUT_BAD_RANK,
  ACCX_LAYOUT_NEGATIVE, /* a dimension */
  ACCX_LAYOUT_BAD_COLUMNS,
  ACCX_LAYOUT_BAD_ROWS,
  ACCX_LAYOUT_OVERFLOW, /* a size does not fit */
} accx_layout_problem_t;

/* Checks a type by itself, before sizes are known. */
accx_layout_problem_t accx_layout_check_type(uint32_t id, accrt_dtype_t dtype, uint32_t group,
                                             uint32_t rank);
/* The shape of a type that is good. */
accx_layout_problem_t accx_layout_look_at(uint32_t id, accrt_dtype_t dtype, uint32_t group,
                                          uint32_t rank, const int64_t* shape,
                                          accx_layout_view_t* out_view);
/* Both. */
accx_layout_problem_t accx_layout_look(uint32_t id, accrt_dtype_t dtype, uint32_t group,
                                       uint32_t rank, const int64_t* shape,
                                       accx_layout_view_t* out_view);
/* What a problem is, for messages. */
const char* accx_layout_problem_text(accx_layout_problem_t problem);

/* True when the layout has this role with this data type; PLAIN: that of the constant. */
bool accx_layout_takes(const accx_layout_t* layout, accrt_dtype_t constant_dtype, uint32_t role,
                       accrt_dtype_t dtype);
/* Exact bytes of a component that accx_layout_takes; false when that does not fit. OPAQUE has no
 * size of its own. */
bool accx_layout_size(const accx_layout_view_t* view, uint32_t role, accrt_dtype_t dtype,
                      uint64_t* out_size_bytes);

/* Copies a caller's struct and looks at it; records an error. Components are not looked at. */
accrt_status_t accx_layout_read(const accrt_layout_tensor_t* tensor, accrt_layout_tensor_t* out,
                                accx_layout_view_t* out_view);

/* That the components are those of the layout, with all their bytes. */
accrt_status_t accx_layout_check_components(const accrt_layout_tensor_t* tensor,
                                            const accx_layout_view_t* view);
accrt_status_t accx_layout_check_rows(const accx_layout_view_t* view, uint64_t first,
                                      uint64_t count);

/* The values of one block, as of accrt_layout_dequantize. */
void accx_layout_decode_block(uint32_t layout, const unsigned char* block, float* out);

#endif /* ACCRT_FORMAT_LAYOUT_H_ */
