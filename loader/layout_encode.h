/* loader/layout_encode.h - what the two halves of the quantizer share. Private to loader/layout_encode*.c. */
#ifndef ACCRT_LOADER_LAYOUT_ENCODE_H_
#define ACCRT_LOADER_LAYOUT_ENCODE_H_

#include "loader/layout.h"

/* Encodes 256 values as one block of Q4_K, Q5_K or Q6_K. `importance` may be NULL. */
void accx_layout_encode_k(uint32_t layout, const float* values, const float* importance,
                          bool search, unsigned char* block);

/* Values of one block as accrt_layout_dequantize gives them. */
void accx_layout_decode_block(uint32_t layout, const unsigned char* block, float* out);

/* The scale and the least value (not above 0) by which n values are nearest to scale * (0..most) + least, by weights. */
void accx_layout_fit_affine(const float* values, const float* weights, uint32_t count, float most,
                            float* out_scale, float* out_least);

#endif /* ACCRT_LOADER_LAYOUT_ENCODE_H_ */
