/* write/layout_encode.h - declarations for write/layout_encode*.c alone. */
#ifndef ACCRT_WRITE_LAYOUT_ENCODE_H_
#define ACCRT_WRITE_LAYOUT_ENCODE_H_

#include "format/layout.h"

/* Encodes 256 values as one block of Q4_K, Q5_K or Q6_K. `importance` may be NULL. */
void accx_layout_encode_k(uint32_t layout, const float* values, const float* importance,
                          bool search, unsigned char* block);

/* Finds the scale and the minimum (not above 0) such that scale * (0..most) + minimum is closest to
 * the n values, by weighted squared error. */
void accx_layout_fit_affine(const float* values, const float* weights, uint32_t count, float most,
                            float* out_scale, float* out_least);

#endif /* ACCRT_WRITE_LAYOUT_ENCODE_H_ */
