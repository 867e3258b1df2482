/* tools/accx/convert.h - converts plain floats, rounding to nearest, ties to even. */
#ifndef ACCX_CONVERT_H_
#define ACCX_CONVERT_H_

#include "accx.h"

/* True for f64, f32, f16 and bf16. */
bool accx_converts(accrt_dtype_t dtype);
/* Converts `count` elements. `target` and `source` may have any alignment and must not overlap.
 * Returns the number of finite values that became infinite. */
uint64_t accx_convert(accrt_dtype_t to, void* target, accrt_dtype_t from, const void* source,
                      uint64_t count);

#endif /* ACCX_CONVERT_H_ */
