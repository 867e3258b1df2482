/* tools/accx/quantize.h - `accx quantize`: declarations for its two files. */
#ifndef ACCX_QUANTIZE_H_
#define ACCX_QUANTIZE_H_

#include "accrt/write.h"
#include "accx.h"
#include "join.h"

/* The conversion of one tensor of the source. */
typedef struct accx_quantize_item {
  const accx_weight_t* weight;  /* entry of the source's list */
  accrt_weights_tensor_t from;  /* description in the source */
  bool chosen;                  /* true: quantize it; false: copy it unchanged */
  const char* why;              /* why it is not quantized; NULL when chosen */
  const float* importance;      /* K values, or NULL */
  accrt_layout_tensor_t target; /* data is NULL except during the tensor's conversion */
  accrt_quantize_report_t report;
} accx_quantize_item_t;

/* The whole job. */
typedef struct accx_quantize_job {
  accrt_weights_t* source;
  accx_weight_list_t list; /* of the source */
  accx_quantize_item_t* items;
  uint32_t count;
  uint32_t method; /* ACCRT_QUANTIZE_* */
  uint32_t threads;
  /* While writing: the current tensor. */
  accx_quantize_item_t* current;
  unsigned char* memory[ACCRT_LAYOUT_ROLE_COUNT];
  /* bytes of its source components, during its conversion */
  unsigned char* given[ACCRT_LAYOUT_ROLE_COUNT];
  int code; /* exit code of the first failure while writing */
  uint64_t done_bytes, total_bytes;
} accx_quantize_job_t;

/* Quantizes an item into job->memory, in place of the previous one. */
int accx_quantize_tensor(accx_quantize_job_t* job, accx_quantize_item_t* item);
void accx_quantize_forget(accx_quantize_job_t* job);

#endif /* ACCX_QUANTIZE_H_ */
