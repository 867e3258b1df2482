/* serve/guess.c - see serve/guess.h. */
#include "serve/guess.h"

#include <string.h>

/* As the prefix cache hashes tokens. */
static uint64_t longer(uint64_t hash, int32_t token) {
  const __uint128_t product = (__uint128_t)(hash ^ (uint32_t)token) * UINT64_C(0x9E3779B97F4A7C15);
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint32_t first_slot(const accsv_lookback_t* lookback, uint64_t hash) {
  return (uint32_t)(hash >> 32) & (lookback->slots - 1);
}

accrt_status_t accsv_lookback_init(accsv_lookback_t* lookback, const accrt_allocator_t* allocator,
                                   const accsv_lookup_t* lookup, uint32_t limit) {
  uint32_t slots = 8;
  while (slots / 2 < limit && slots < UINT32_C(1) << 31)
    slots *= 2;
  *lookback = (accsv_lookback_t){.least = lookup->least,
                                 .sizes = lookup->most - lookup->least + 1,
                                 .slots = slots,
                                 .seed = lookup->seed,
                                 .place_mask = slots - 1};
  const accrt_status_t status =
      accsv_new_at(allocator, lookback->sizes, slots * sizeof *lookback->tables, &lookback->tables);
  if (status != ACCRT_OK)
    *lookback = (accsv_lookback_t){0};
  return status;
}

void accsv_lookback_deinit(accsv_lookback_t* lookback, const accrt_allocator_t* allocator) {
  accsv_free(allocator, lookback->tables, lookback->sizes,
             lookback->slots * sizeof *lookback->tables);
  *lookback = (accsv_lookback_t){0};
}

/* The run of `size` tokens that ends at `end` is in its table from now on. Returns where it ended
 * before; 0: nowhere. */
static uint32_t note_run(const accsv_lookback_t* lookback, const int32_t* tokens, uint32_t end,
                         uint32_t size, uint64_t hash) {
  const uint32_t mask = lookback->slots - 1, places = lookback->place_mask;
  uint32_t* table = lookback->tables + (size_t)(size - lookback->least) * lookback->slots;
  const uint32_t mark = (uint32_t)hash & ~places;
  uint32_t at = first_slot(lookback, hash);
  for (; table[at] != 0; at = (at + 1) & mask) {
    const uint32_t place = table[at] & places;
    if ((table[at] & ~places) != mark ||
        memcmp(tokens + place - size, tokens + end - size, size * sizeof *tokens) != 0)
      continue;
    table[at] = mark | end;
    return place;
  }
  table[at] = mark | end;
  return 0;
}

/* Of the runs that end at `end`, the longest that was there before counts. */
static uint32_t note_end(const accsv_lookback_t* lookback, const int32_t* tokens, uint32_t end) {
  const uint32_t most = lookback->least + lookback->sizes - 1;
  uint32_t from = 0;
  uint64_t hash = lookback->seed;
  for (uint32_t size = 1; size <= most && size <= end; ++size) {
    hash = longer(hash, tokens[end - size]);
    if (size < lookback->least)
      continue;
    const uint32_t place = note_run(lookback, tokens, end, size, hash);
    if (place != 0)
      from = place;
  }
  return from;
}

void accsv_lookback_note(accsv_lookback_t* lookback, const int32_t* tokens, uint32_t count) {
  while (lookback->noted < count) {
    ++lookback->noted;
    lookback->from = note_end(lookback, tokens, lookback->noted);
  }
}

void accsv_lookback_fetch(const accsv_lookback_t* lookback, const int32_t* tokens, uint32_t count) {
  const uint32_t most = lookback->least + lookback->sizes - 1;
  const uint32_t* table = lookback->tables;
  uint64_t hash = lookback->seed;
  for (uint32_t size = 1; size <= most && size <= count; ++size) {
    hash = longer(hash, tokens[count - size]);
    if (size < lookback->least)
      continue;
    __builtin_prefetch(table + first_slot(lookback, hash), 1);
    table += lookback->slots;
  }
}

uint32_t accsv_guess(accsv_lookback_t* lookback, const int32_t* tokens, uint32_t count,
                     uint32_t wanted, int32_t* out) {
  accsv_lookback_note(lookback, tokens, count);
  const uint32_t from = lookback->from;
  if (from == 0)
    return 0;
  for (uint32_t i = 0; i < wanted; ++i)
    out[i] = from + i < count ? tokens[from + i] : out[from + i - count];
  return wanted;
}
