/* tools/accx/signature.h - types and signatures of a bundle's functions as text. */
#ifndef ACCX_SIGNATURE_H_
#define ACCX_SIGNATURE_H_

#include "accx.h"

/* Such as "f32[batch, 384]"; "?" if the library fails. Lives until exit. */
const char* accx_type_text(accrt_bundle_t* bundle, uint32_t function, uint32_t index);
/* The type of a state. A dimension other than a number or a symbol is shown as "...". */
const char* accx_state_type_text(accrt_bundle_t* bundle, const accrt_state_info_t* state);
/* "f32[32, 384]" from concrete sizes. */
const char* accx_shape_text(accrt_dtype_t dtype, uint32_t rank, const int64_t* shape);
/* A symbol's class and range: "runtime, 0 to 1024, multiple of 2, buckets 32 128". */
const char* accx_symbol_text(const accrt_symbol_info_t* symbol);

#endif /* ACCX_SIGNATURE_H_ */
