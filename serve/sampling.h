/* serve/sampling.h - a request's parameters as what a step takes: numbers for each sample, and a
 * sparse list of edits of logits (penalties, biases, tokens that may not come yet).
 */
#ifndef ACCRT_SERVE_SAMPLING_H_
#define ACCRT_SERVE_SAMPLING_H_

#include "accrt/serve.h"
#include "serve/base.h"

/* A token whose logit may be edited. */
typedef struct accsv_counted {
  int32_t token;
  uint32_t drawn; /* times in the output */
  float bias;
  bool seen; /* in the prompt or the output */
  bool ends; /* an end or stop token */
} accsv_counted_t;

/* Of a sequence. */
typedef struct accsv_sampler {
  float temperature, top_p, min_p;
  int32_t top_k;
  uint64_t seed;
  float repetition, presence, frequency; /* 1, 0, 0: off */
  uint32_t min_new_tokens;
  bool history; /* edits depend on tokens that were drawn */
  /* NULL without edits */
  accsv_counted_t* tokens;
  uint32_t* index; /* open addressing: 1 + place in `tokens`, 0: empty */
  uint32_t count, capacity, index_count;
} accsv_sampler_t;

/* The edits of a step, one sample after the other. */
typedef struct accsv_edits {
  int32_t* tokens;
  float* multiply;
  float* add;
  uint32_t count, capacity;
} accsv_edits_t;

/* `request` is complete and checked; `limit` is the most tokens of a sequence. */
accrt_status_t accsv_sampler_init(accsv_sampler_t* sampler, const accrt_allocator_t* allocator,
                                  const accrt_serve_request_t* request,
                                  const accrt_serve_model_info_t* info, uint32_t limit,
                                  uint64_t seed);
void accsv_sampler_deinit(accsv_sampler_t* sampler, const accrt_allocator_t* allocator);
/* A token was drawn. */
void accsv_sampler_note(accsv_sampler_t* sampler, int32_t token);
/* Is a plain argmax what it wants next? `drawn`: tokens of the output so far. */
bool accsv_sampler_is_greedy(const accsv_sampler_t* sampler);
/* Most edits that it may add. */
static inline uint32_t accsv_sampler_edits_most(const accsv_sampler_t* sampler) {
  return sampler->count;
}
/* Appends the edits for the token after `drawn` tokens of output. There must be room. */
void accsv_sampler_edits(const accsv_sampler_t* sampler, uint32_t drawn, accsv_edits_t* edits);

#endif /* ACCRT_SERVE_SAMPLING_H_ */
