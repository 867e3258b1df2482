/* accrt/layout.h - the registry of weight layouts: what a quantized weight's bytes mean, how large they are, and the exact
 * conversion from and to f32. It may not mention devices or bundles: it works on plain host memory.
 *
 * docs/layouts.md has the formula of each layout, the order of its f32 operations and what it was checked against.
 */
#ifndef ACCRT_LAYOUT_H_
#define ACCRT_LAYOUT_H_

#include "accrt/base.h"

ACCRT_BEGIN

/* Ids are frozen: one is never used again for something else. A weight W is [..., N, K]; groups and blocks run along K. */
#define ACCRT_LAYOUT_PLAIN 0u  /**< row-major elements */
#define ACCRT_LAYOUT_OPAQUE 1u /**< bytes whose meaning only the bundle's own kernels know */
#define ACCRT_LAYOUT_F8_TENSOR 2u
#define ACCRT_LAYOUT_F8_CHANNEL 3u
#define ACCRT_LAYOUT_F8_BLOCK128 4u
#define ACCRT_LAYOUT_I8_CHANNEL 5u
#define ACCRT_LAYOUT_I8_GROUP 6u
#define ACCRT_LAYOUT_I4_GROUP 7u
#define ACCRT_LAYOUT_I4_GROUP_ASYM 8u
#define ACCRT_LAYOUT_GPTQ_V1 9u /**< zeros stored less one */
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

/* What a component of a weight is. */
#define ACCRT_LAYOUT_ROLE_DATA 0u
#define ACCRT_LAYOUT_ROLE_SCALES 1u
#define ACCRT_LAYOUT_ROLE_ZEROS 2u
#define ACCRT_LAYOUT_ROLE_GROUP_INDEX 3u
#define ACCRT_LAYOUT_ROLE_GLOBAL_SCALE 4u
#define ACCRT_LAYOUT_ROLE_COUNT 5u

#define ACCRT_LAYOUT_FLAG_FREE_GROUP 1u /**< the weight says how many elements share a scale */
#define ACCRT_LAYOUT_FLAG_WRITABLE 2u   /**< accrt_layout_quantize makes it */

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
  uint32_t tile_rows;      /**< rows that share a scale: cuts between rows are at multiples of it */
  uint32_t group_elements; /**< elements of a row that share a scale; 0: free, or the whole row */
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
  const int64_t* shape;    /**< of the weight, in elements, whatever its storage */
  accrt_layout_component_t components[5]; /**< by role */
} accrt_layout_tensor_t;
ACCRT_ASSERT_LAYOUT(accrt_layout_tensor_t, components, 160);
#define ACCRT_LAYOUT_TENSOR_INIT ACCRT_STRUCT_INIT(accrt_layout_tensor_t)

/** What is known of a layout. @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND. Thread-safe. Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_info(uint32_t layout, accrt_layout_info_t* out_info);
/** Id of a layout by name ("q4_k"). @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (the message names all). Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_find(const char* name, uint32_t* out_layout);
/** Exact bytes of one component; its data type is read from `tensor` (its data and size are not), 0 bytes when it is not there.
 * @return ACCRT_OK; ACCRT_ERROR_NOT_FOUND (layout); ACCRT_ERROR_INVALID_ARGUMENT, ACCRT_ERROR_SHAPE_MISMATCH,
 *   ACCRT_ERROR_TYPE_MISMATCH, ACCRT_ERROR_OVERFLOW (the message names what does not fit the layout). Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_component_size(const accrt_layout_tensor_t* tensor,
                                                     uint32_t role, uint64_t* out_size_bytes);
/** Converts rows to f32: `row_count` rows from `row_first` on of the weight as [product of all other dimensions, K]. Exactly the
 * formula of the layout, in its order, whatever the processor. A component that is not there has data type NONE.
 * @param out row_count * K values.
 * @return as accrt_layout_component_size; ACCRT_ERROR_UNSUPPORTED (OPAQUE; a PLAIN type that has no f32 form);
 *   ACCRT_ERROR_OUT_OF_RANGE (rows, or an entry of GROUP_INDEX). Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_dequantize(const accrt_layout_tensor_t* tensor,
                                                 uint64_t row_first, uint64_t row_count,
                                                 float* out);
#define ACCRT_QUANTIZE_NEAREST 0u /**< scales from the largest value, elements to the nearest */
#define ACCRT_QUANTIZE_SEARCH 1u  /**< scales that make the weighted squared error least */
/** How to quantize. */
typedef struct accrt_quantize_options {
  uint32_t struct_size;
  uint32_t method; /**< ACCRT_QUANTIZE_* */
  const accrt_chain_t* next;
  const float*
      importance; /**< K weights of squared errors, e.g. the mean square of each input channel's
                                activations: 0 to 2^60; NULL: all 1 */
  float
      amax; /**< F8_TENSOR and NVFP4: largest magnitude of the whole weight, when not all rows are given; else 0 */
  uint32_t reserved; /**< 0 */
} accrt_quantize_options_t;
ACCRT_ASSERT_LAYOUT(accrt_quantize_options_t, reserved, 32);
#define ACCRT_QUANTIZE_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_quantize_options_t)

/** What quantizing did to the rows given. Sums add up over rows. */
typedef struct accrt_quantize_report {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  void* next;        /**< NULL */
  uint64_t elements;
  double amax;             /**< largest magnitude before */
  double max_error;        /**< largest magnitude of a difference */
  double weight_squares;   /**< sum of squares before */
  double error_squares;    /**< sum of squares of differences */
  double weighted_squares; /**< the same with importance */
  double weighted_error_squares;
} accrt_quantize_report_t;
ACCRT_ASSERT_LAYOUT(accrt_quantize_report_t, weighted_error_squares, 72);
#define ACCRT_QUANTIZE_REPORT_INIT ACCRT_STRUCT_INIT(accrt_quantize_report_t)

/** Quantizes rows into the components of `target` (whole components; only these rows' bytes are written, and the scales that they
 * need). Layouts that are ACCRT_LAYOUT_FLAG_WRITABLE; PLAIN as f32, f16 or bf16. Rows of one weight may be made by several
 * threads at a time: what it has one of is written with row 0. F8_BLOCK128 takes whole tiles of 128 rows.
 * @param source row_count * K values, all finite and at most 2^60.
 * @param options NULL for the defaults. @param out_report NULL, or what was lost.
 * @return as accrt_layout_dequantize; ACCRT_ERROR_UNSUPPORTED (the layout is for reading alone; GROUP_INDEX);
 *   ACCRT_ERROR_INVALID_ARGUMENT (a value that is not finite: the message says where). Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_quantize(const accrt_layout_tensor_t* target,
                                               const float* source, uint64_t row_first,
                                               uint64_t row_count,
                                               const accrt_quantize_options_t* options,
                                               accrt_quantize_report_t* out_report);

ACCRT_END
#endif /* ACCRT_LAYOUT_H_ */
