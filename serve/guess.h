/* serve/guess.h - what may come next, by the text itself: prompt lookup. Each text has an index of
 * where its short runs of tokens were last, so a token costs the same however long the text is.
 */
#ifndef ACCRT_SERVE_GUESS_H_
#define ACCRT_SERVE_GUESS_H_

#include "serve/base.h"

/* The sizes of runs that are looked up. The seed is random, so that no text can be made that fills
 * one place of a table; it changes nothing else. */
typedef struct accsv_lookup {
  uint32_t least, most;
  uint64_t seed;
} accsv_lookup_t;

/* Where each run of a text ended last: a table for each size, with open addressing. What a table
 * has of a run is where it ended, and above that as much of its hash as there is room for. */
typedef struct accsv_lookback {
  uint32_t* tables;
  uint32_t least, sizes; /* of runs: `sizes` of them, from `least` on */
  uint32_t slots;        /* of a table, a power of two */
  uint64_t seed;
  uint32_t place_mask; /* bits of a slot that are a place */
  uint32_t noted;      /* tokens of the text whose runs are in the tables */
  uint32_t from;       /* where the longest run that ends there ended before; 0: nowhere */
} accsv_lookback_t;

/* For a text of `limit` tokens at most. The memory is 8 to 16 bytes for each of these and each
 * size. */
accrt_status_t accsv_lookback_init(accsv_lookback_t* lookback, const accrt_allocator_t* allocator,
                                   const accsv_lookup_t* lookup, uint32_t limit);
void accsv_lookback_deinit(accsv_lookback_t* lookback, const accrt_allocator_t* allocator);
/* The text has `count` tokens now; none that was noted has changed. */
void accsv_lookback_note(accsv_lookback_t* lookback, const int32_t* tokens, uint32_t count);
/* Fetches the memory that noting the last token will need. */
void accsv_lookback_fetch(const accsv_lookback_t* lookback, const int32_t* tokens, uint32_t count);

/* Looks for the last tokens of a text where they were before: as many of them as `lookup` let, the
 * longest first, and of equally long ones the last. Writes `wanted` tokens that followed there;
 * where those reach the text's end, they go on as if it were repeated. Returns `wanted`, or 0:
 * nothing was found. */
uint32_t accsv_guess(accsv_lookback_t* lookback, const int32_t* tokens, uint32_t count,
                     uint32_t wanted, int32_t* out);

#endif /* ACCRT_SERVE_GUESS_H_ */
