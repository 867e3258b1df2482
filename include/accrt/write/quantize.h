/* accrt/write/quantize.h - quantizes weights into the layouts of accrt/layout.h.
 *
 * Nothing here depends on devices or bundles: the functions work on plain host memory. Link
 * libaccrt_write.
 */
#ifndef ACCRT_WRITE_QUANTIZE_H_
#define ACCRT_WRITE_QUANTIZE_H_

#include "accrt/layout.h"

ACCRT_BEGIN

#define ACCRT_QUANTIZE_NEAREST 0u /**< scales from the largest value, elements to the nearest */
#define ACCRT_QUANTIZE_SEARCH 1u  /**< scales with the least weighted squared error */
/** How to quantize. */
typedef struct accrt_quantize_options {
  uint32_t struct_size;
  uint32_t method; /**< ACCRT_QUANTIZE_* */
  const accrt_chain_t* next;
  /** K weights of squared errors, 0 to 2^60, e.g. the mean square of each input channel; NULL: all
   * 1 */
  const float* importance;
  /** F8_TENSOR and NVFP4: largest magnitude of the whole weight, if you pass only some rows; else
   * 0 */
  float amax;
  uint32_t reserved; /**< 0 */
} accrt_quantize_options_t;
ACCRT_ASSERT_LAYOUT(accrt_quantize_options_t, reserved, 32);
#define ACCRT_QUANTIZE_OPTIONS_INIT ACCRT_STRUCT_INIT(accrt_quantize_options_t)

/** The error of quantizing these rows. You may add the sums of several calls. */
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

/** Quantizes rows into the components of `target`. The components are those of the whole weight;
 * only the bytes of these rows and the scales that they need are written. The layout must have
 * ACCRT_LAYOUT_FLAG_WRITABLE; PLAIN must be f32, f16 or bf16. Several threads may write rows of one
 * weight at a time: a value that the weight has only once is written with row 0. F8_BLOCK128 takes
 * whole tiles of 128 rows.
 * @param source row_count * K values, all finite and at most 2^60.
 * @param options NULL for the defaults.
 * @param out_report the error; may be NULL.
 * @return as accrt_layout_dequantize; ACCRT_ERROR_UNSUPPORTED (a layout that is not writable; a
 *   GROUP_INDEX); ACCRT_ERROR_INVALID_ARGUMENT (a value that is not finite: the message says
 *   where). Since: 0.3 */
ACCRT_API accrt_status_t accrt_layout_quantize(const accrt_layout_tensor_t* target,
                                               const float* source, uint64_t row_first,
                                               uint64_t row_count,
                                               const accrt_quantize_options_t* options,
                                               accrt_quantize_report_t* out_report);

ACCRT_END
#endif /* ACCRT_WRITE_QUANTIZE_H_ */
