/* accrt/layout.h - the registry of weight layouts: what the bytes of a quantized weight mean, how
 * many there are, and the exact conversion to f32 (from f32: accrt/write/quantize.h).
 *
 * Nothing here depends on devices or bundles: the functions work on plain host memory.
 * docs/layouts.md has the formula of each layout, the order of its f32 operations, and what it was
 * checked against.
 */
#ifndef ACCRT_LAYOUT_H_
#define ACCRT_LAYOUT_H_

#include "accrt/base.h"

ACCRT_BEGIN

/* Ids are frozen: no id ever changes its meaning. A weight W is [..., N, K]; groups and blocks run
 * along K. */
/* layouts: made of format/format.def */
#define ACCRT_LAYOUT_PLAIN 0u  /**< row-major elements */
#define ACCRT_LAYOUT_OPAQUE 1u /**< bytes that only the bundle's own kernels understand */
#define ACCRT_LAYOUT_F8_TENSOR 2u
#define ACCRT_LAYOUT_F8_CHANNEL 3u
#define ACCRT_LAYOUT_F8_BLOCK128 4u
#define ACCRT_LAYOUT_I8_CHANNEL 5u
#define ACCRT_LAYOUT_I8_GROUP 6u
#define ACCRT_LAYOUT_I4_GROUP 7u
#define ACCRT_LAYOUT_I4_GROUP_ASYM 8u
#define ACCRT_LAYOUT_GPTQ_V1 9u /**< stores each zero point minus one */
#define ACCRT_LAYOUT_GPTQ_V2 10u
#define ACCRT_LAYOUT_AWQ 11u
#define ACCRT_LAYOUT_Q8_0 16u
#define ACCRT_LAYOUT_Q4_0 17u
#define ACCRT_LAYOUT_Q4_1 18u
#define ACCRT_LAYOUT_Q4_K 19u
#define ACCRT_LAYOUT_Q5_K 20u
#define ACCRT_LAYOUT_Q6_K 21u
#define ACCRT_LAYOUT_GGML_MXFP4 22u
#define ACCRT_LAYOUT_GGML_NVFP4 23u
#define ACCRT_LAYOUT_MXFP4 24u
#define ACCRT_LAYOUT_MXFP8 25u
#define ACCRT_LAYOUT_NVFP4 26u
#define ACCRT_LAYOUT_Q5_0 27u /**< for reading, as all below */
#define ACCRT_LAYOUT_Q5_1 28u
#define ACCRT_LAYOUT_Q2_K 29u
#define ACCRT_LAYOUT_Q3_K 30u
#define ACCRT_LAYOUT_IQ4_NL 31u
/* layouts: end */

/* What a component of a weight is. */
/* roles: made of format/format.def */
#define ACCRT_LAYOUT_ROLE_DATA 0u
#define ACCRT_LAYOUT_ROLE_SCALES 1u
#define ACCRT_LAYOUT_ROLE_ZEROS 2u
#define ACCRT_LAYOUT_ROLE_GROUP_INDEX 3u
#define ACCRT_LAYOUT_ROLE_GLOBAL_SCALE 4u
/* roles: end */
#define ACCRT_LAYOUT_ROLE_COUNT 5u

#define ACCRT_LAYOUT_FLAG_FREE_GROUP 1u /**< each weight chooses how many elements share a scale */
/** accrt_layout_quantize can write it (accrt/write/quantize.h) */
#define ACCRT_LAYOUT_FLAG_WRITABLE 2u

/** One layout. */
typedef struct accrt_layout_info {
  uint32_t struct_size;
  uint32_t id; /**< ACCRT_LAYOUT_* */
  void* next;  /**< NULL */
  const char* name;
  uint32_t flags;          /**< ACCRT_LAYOUT_FLAG_* */
  uint32_t block_elements; /**< the last dimension is a multiple of it */
  uint32_t block_bytes;    /**< layouts of one component: bytes of a block; else 0 */
  uint32_t row_multiple;   /**< the dimension before the last is a multiple of it */
  uint32_t tile_rows;      /**< rows that share a scale; rows may be cut at multiples of it */
  uint32_t group_elements; /**< elements of a row with one scale; 0: free, or the whole row */
  uint32_t required_roles; /**< bit 1 << role: the component is always there */
  uint32_t dtypes[5];      /**< by role: bit 1 << data type for each that the component may have */
} accrt_layout_info_t;
ACCRT_ASSERT_LAYOUT(accrt_layout_info_t, dtypes, 72);
#define ACCRT_LAYOUT_INFO_INIT ACCRT_STRUCT_INIT(accrt_layout_info_t)

/** One component of a weight in memory. Frozen. */
typedef struct accrt_layout_component {
  void* data;          /**< accrt_layout_dequantize only reads it; any alignment */
  uint64_t size_bytes; /**< exactly what accrt_layout_component_size says */
  accrt_dtype_t dtype; /**< ACCRT_DTYPE_NONE: the component is not there */
  uint32_t reserved;   /**< 0 */
} accrt_layout_component_t;
ACCRT_ASSERT_LAYOUT(accrt_layout_component_t, reserved, 24);

/** A weight in a layout. */
typedef struct accrt_layout_tensor {
  uint32_t struct_size;
  uint32_t layout; /**< ACCRT_LAYOUT_* */
  const accrt_chain_t* next;
  accrt_dtype_t dtype;     /**< PLAIN: of the elements; else the logical one: f32, f16 or bf16 */
  uint32_t group_elements; /**< layouts with a free group size; else 0 */
  uint32_t rank;           /**< at least 1; 0 for PLAIN alone */
  uint32_t reserved;       /**< 0 */
  const int64_t* shape;    /**< of the weight, in elements; not the shape of its storage */
  accrt_layout_component_t components[5]; /**< by role */
} accrt_layout_tensor_t;
ACCRT_ASSERT_LAYOUT(accrt_layout_tensor_t, components, 160);
#define ACCRT_LAYOUT_TENSOR_INIT ACCRT_STRUCT_INIT(accrt_layout_tensor_t)

/** Facts about a layout.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND. Thread-safe. Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_info(uint32_t layout, accrt_layout_info_t* out_info);
/** Id of a layout by name ("q4_k").
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the message names all). Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_find(const char* name, uint32_t* out_layout);
/** The exact size of one component, 0 if the layout does not have it. It reads the component's data
 * type from `tensor`, not its data or size.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (layout); ACCRT_ERROR_INVALID_ARGUMENT,
 *   ACCRT_ERROR_SHAPE_MISMATCH, ACCRT_ERROR_TYPE_MISMATCH, ACCRT_ERROR_OVERFLOW (the message says
 *   what does not fit the layout). Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_component_size(const accrt_layout_tensor_t* tensor,
                                                     uint32_t role, uint64_t* out_size_bytes);
/** Converts rows to f32. The weight counts as a matrix [product of all other dimensions, K];
 * `row_count` rows are converted, from `row_first` on. The result is exactly that of the layout's
 * formula, in its order, on every processor. A component that is absent has data type NONE.
 * @param out row_count * K values.
 * @return as accrt_layout_component_size; ACCRT_ERROR_UNSUPPORTED (OPAQUE; a PLAIN type that has no
 *   f32 form); ACCRT_ERROR_OUT_OF_RANGE (rows, or an entry of GROUP_INDEX). Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_dequantize(const accrt_layout_tensor_t* tensor,
                                                 uint64_t row_first, uint64_t row_count,
                                                 float* out);

ACCRT_END
#endif /* ACCRT_LAYOUT_H_ */
