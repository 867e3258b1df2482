/* tools/accx/quantize.h - `accx quantize`: what its two files share. */
#ifndef ACCX_QUANTIZE_H_
#define ACCX_QUANTIZE_H_

#include "accx.h"
#include "join.h"

/* What becomes of one tensor of the source. */
typedef struct accx_quantize_item {
  const accx_weight_t* weight;  /* of the source */
  accrt_weights_tensor_t from;  /* what it is there */
  bool chosen;                  /* quantized; else copied as it is */
  const char* why;              /* it is not; NULL when chosen */
  const float* importance;      /* K values, or NULL */
  accrt_layout_tensor_t target; /* data is NULL but while the tensor is in hand */
  accrt_quantize_report_t report;
} accx_quantize_item_t;

/* The whole job. */
typedef struct accx_quantize_job {
  accrt_weights_t* source;
  accx_weight_list_t list; /* of it */
  accx_quantize_item_t* items;
  uint32_t count;
  uint32_t method; /* ACCRT_QUANTIZE_* */
  uint32_t threads;
  /* While writing: the tensor in hand. */
  accx_quantize_item_t* current;
  unsigned char* memory[ACCRT_LAYOUT_ROLE_COUNT];
  int code; /* of the first failure while writing */
  uint64_t done_bytes, total_bytes;
} accx_quantize_job_t;

/* Quantizes an item into job->memory, dropping what was there. */
int accx_quantize_tensor(accx_quantize_job_t* job, accx_quantize_item_t* item);
void accx_quantize_forget(accx_quantize_job_t* job);

#endif /* ACCX_QUANTIZE_H_ */
