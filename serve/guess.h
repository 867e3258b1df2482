/* serve/guess.h - what may come next, by the text itself: prompt lookup. It keeps nothing.
 */
#ifndef ACCRT_SERVE_GUESS_H_
#define ACCRT_SERVE_GUESS_H_

#include "serve/base.h"

/* The sizes of n-grams that are looked up. */
typedef struct accsv_lookup {
  uint32_t least, most;
} accsv_lookup_t;

/* Looks for the last tokens of a text where they were before: as many of them as `lookup` lets,
 * the longest first, and of equally long ones the last. Writes `wanted` tokens that followed there;
 * where those reach the text's end, they go on as if it were repeated. Returns `wanted`, or 0:
 * nothing was found. */
uint32_t accsv_guess(const int32_t* tokens, uint32_t count, const accsv_lookup_t* lookup,
                     uint32_t wanted, int32_t* out);

#endif /* ACCRT_SERVE_GUESS_H_ */
