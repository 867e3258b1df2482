/* serve/guess.c - see serve/guess.h. */
#include "serve/guess.h"

/* How many tokens up to `end` are the last ones of the text, at most `most`. */
static uint32_t match(const int32_t* tokens, uint32_t count, uint32_t end, uint32_t most) {
  uint32_t length = 0;
  while (length < most && length < end && tokens[end - 1 - length] == tokens[count - 1 - length])
    ++length;
  return length;
}

uint32_t accsv_guess(const int32_t* tokens, uint32_t count, const accsv_lookup_t* lookup,
                     uint32_t wanted, int32_t* out) {
  uint32_t best = 0, from = 0;
  for (uint32_t end = count > 0 ? count - 1 : 0; end > best && best < lookup->most; --end) {
    if (tokens[end - 1] != tokens[count - 1])
      continue;
    const uint32_t length = match(tokens, count, end, lookup->most);
    if (length > best) {
      best = length;
      from = end;
    }
  }
  if (best == 0 || best < lookup->least)
    return 0;
  for (uint32_t i = 0; i < wanted; ++i)
    out[i] = from + i < count ? tokens[from + i] : out[from + i - count];
  return wanted;
}
