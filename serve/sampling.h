/* serve/sampling.h - a request's parameters as what a step takes: numbers for each sample, and a
 * sparse list of edits of logits (penalties, biases, tokens that may not come yet).
 */
#ifndef ACCRT_SERVE_SAMPLING_H_
#define ACCRT_SERVE_SAMPLING_H_

#include "accrt/serve.h"
#include "serve/base.h"

/* What is known of a token whose logit may be edited. */
typedef struct accsv_counted {
  uint32_t drawn; /* times in the output */
  float bias;
  bool seen; /* in the prompt or the output */
  bool ends; /* an end or stop token */
} accsv_counted_t;

/* Where a token's edit is. */
typedef struct accsv_indexed {
  int32_t token;
  uint32_t place; /* from 1; 0: none */
} accsv_indexed_t;

/* Of a sequence. Its edits are kept as a step takes them: a token that is drawn changes one. */
typedef struct accsv_sampler {
  /* What a step looks at: a line of the processor's cache. Arrays of `capacity`; NULL without
   * edits. */
  _Alignas(64) int32_t* tokens; /* the other three are behind them */
  float *multiply, *add;
  float* early; /* as `add`, before there are `min_new_tokens`; NULL: the same */
  uint32_t count;
  uint32_t late; /* the first of them that counts when there are `min_new_tokens` */
  uint32_t min_new_tokens;
  bool history; /* edits depend on tokens that were drawn */

  accsv_counted_t* counted;
  accsv_indexed_t* index; /* open addressing */
  uint32_t capacity, index_count;
  float repetition, presence, frequency; /* 1, 0, 0: off */
  float temperature, top_p, min_p;
  int32_t top_k;
  uint64_t seed;
} accsv_sampler_t;

/* `request` is complete and checked; `limit` is the most tokens of a sequence. */
accrt_status_t accsv_sampler_init(accsv_sampler_t* sampler, const accrt_allocator_t* allocator,
                                  const accrt_serve_request_t* request,
                                  const accrt_serve_model_info_t* info, uint32_t limit,
                                  uint64_t seed);
void accsv_sampler_deinit(accsv_sampler_t* sampler, const accrt_allocator_t* allocator);
/* Fetches the memory that noting the token will need: first where its edit is, then the edit. */
void accsv_sampler_fetch(const accsv_sampler_t* sampler, int32_t token);
void accsv_sampler_fetch_edit(const accsv_sampler_t* sampler, int32_t token);
/* A token was drawn. */
void accsv_sampler_note(accsv_sampler_t* sampler, int32_t token);
/* Is a plain argmax what it wants next? `drawn`: tokens of the output so far. */
bool accsv_sampler_is_greedy(const accsv_sampler_t* sampler);
/* The edits for the token after `drawn` tokens of output, until the next token is noted. Field by
 * field: a struct that is copied at once waits for the stores that made it. */
static inline void accsv_sampler_edits(const accsv_sampler_t* sampler, uint32_t drawn,
                                       accrt_serve_edits_t* out) {
  const bool early = drawn < sampler->min_new_tokens;
  const uint32_t first = early || sampler->tokens == NULL ? 0 : sampler->late;
  out->tokens = sampler->tokens + first;
  out->multiply = sampler->multiply + first;
  out->add = early ? sampler->early : sampler->add + first;
  out->count = sampler->count - first;
}

#endif /* ACCRT_SERVE_SAMPLING_H_ */
