/* serve/pace.c - see serve/pace.h. */
#include "serve/pace.h"

#define FADE 0.97        /* of a step, with each that follows */
#define FADE_STARTS 0.99 /* the same, for requests that began */
#define FADE_ENDS 0.98   /* of a request, with each that ends */
#define ENOUGH 4.0       /* steps before anything is known */

void accsv_pace_note_step(accsv_pace_t* pace, uint32_t tokens, uint64_t ns, uint32_t starts) {
  const double x = (double)tokens, y = (double)ns;
  pace->count = pace->count * FADE + 1;
  pace->tokens = pace->tokens * FADE + x;
  pace->ns = pace->ns * FADE + y;
  pace->tokens_squared = pace->tokens_squared * FADE + x * x;
  pace->tokens_ns = pace->tokens_ns * FADE + x * y;
  pace->starts = pace->starts * FADE_STARTS + (double)starts;
  pace->starting_ns = pace->starting_ns * FADE_STARTS + y;
}

void accsv_pace_note_end(accsv_pace_t* pace, uint32_t drawn, uint32_t most) {
  pace->drawn = pace->drawn * FADE_ENDS + (double)drawn;
  pace->wanted = pace->wanted * FADE_ENDS + (double)most;
}

/* Of a step: what it takes beside its tokens, and each token. Steps that all have nearly the same
 * number of tokens say nothing of that: then all of the time is the tokens'. */
static void fit(const accsv_pace_t* pace, double* out_step, double* out_token) {
  const double x = pace->tokens / pace->count, y = pace->ns / pace->count;
  const double spread = pace->tokens_squared / pace->count - x * x;
  double token = y / x;
  if (spread > 0.01 * x * x)
    token = (pace->tokens_ns / pace->count - x * y) / spread;
  if (token < 0)
    token = 0;
  if (token > y / x)
    token = y / x;
  *out_token = token;
  *out_step = y - token * x;
}

uint32_t accsv_pace_tokens(const accsv_pace_t* pace, uint64_t ns) {
  double step, token;
  if (pace->count < ENOUGH)
    return UINT32_MAX;
  fit(pace, &step, &token);
  const double left = (double)ns - step;
  if (left <= 0)
    return 0;
  return token * (double)UINT32_MAX > left ? (uint32_t)(left / token) : UINT32_MAX;
}

uint64_t accsv_pace_request(const accsv_pace_t* pace, uint32_t prompt, uint32_t step_tokens,
                            uint32_t most) {
  if (pace->count < ENOUGH)
    return 0;
  const double part = pace->wanted > 0 ? pace->drawn / pace->wanted : 1;
  const double steps = (double)prompt / (double)step_tokens + (double)most * part;
  return (uint64_t)(steps * pace->ns / pace->count);
}

uint64_t accsv_pace_queue(const accsv_pace_t* pace, uint32_t waiting) {
  if (pace->starts < 0.01)
    return 0;
  return (uint64_t)((double)waiting * pace->starting_ns / pace->starts);
}
