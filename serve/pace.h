/* serve/pace.h - how long steps take, from those that were measured: what `max_step_ns`, deadlines
 * and Retry-After are computed from. The line through the times of steps over their tokens, newer
 * ones counting more. Externally synchronized.
 */
#ifndef ACCRT_SERVE_PACE_H_
#define ACCRT_SERVE_PACE_H_

#include "serve/base.h"

typedef struct accsv_pace {
  /* Sums over steps, each of which fades with those after it: their number, tokens, times. */
  double count, tokens, ns, tokens_squared, tokens_ns;
  double starts, starting_ns; /* requests that began, and the time in which they did */
  double drawn, wanted;       /* tokens that ended requests have, and the most they might */
} accsv_pace_t;

/* A step of so many tokens took so long. */
void accsv_pace_note_step(accsv_pace_t* pace, uint32_t tokens, uint64_t ns, uint32_t starts);
/* A sequence ended with `drawn` new tokens of `most`. */
void accsv_pace_note_end(accsv_pace_t* pace, uint32_t drawn, uint32_t most);
/* Tokens that a step may have to end in `ns`; UINT32_MAX: not known. */
uint32_t accsv_pace_tokens(const accsv_pace_t* pace, uint64_t ns);
/* What a request takes from now on, in the mean: so many tokens of its prompt are to be computed,
 * at most `step_tokens` in a step, and at most `most` will be drawn. 0: not known. */
uint64_t accsv_pace_request(const accsv_pace_t* pace, uint32_t prompt, uint32_t step_tokens,
                            uint32_t most);
/* How long so many requests take to begin; 0: not known. */
uint64_t accsv_pace_queue(const accsv_pace_t* pace, uint32_t waiting);

#endif /* ACCRT_SERVE_PACE_H_ */
