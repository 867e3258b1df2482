/* runtime/core/near_name.c - bounded edit distance, and the sentence for messages. It may not
 * allocate. */
#include "runtime/core/near_name.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_COMPARED 128u
#define MAX_LIMIT 8u
/* Rank of a candidate that is a prefix of the wanted name, or the reverse: behind typing errors. */
#define PREFIX_DISTANCE (MAX_LIMIT + 1u)

static unsigned char fold(char c) {
  const unsigned char byte = (unsigned char)c;
  return byte >= 'A' && byte <= 'Z' ? (unsigned char)(byte + 32) : byte;
}

static uint32_t min_u32(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

uint32_t accrt_near_distance(const char* a, const char* b, uint32_t limit) {
  if (limit > MAX_LIMIT)
    limit = MAX_LIMIT;
  const uint32_t a_length = (uint32_t)strnlen(a, MAX_COMPARED);
  const uint32_t b_length = (uint32_t)strnlen(b, MAX_COMPARED);
  const uint32_t longer = a_length > b_length ? a_length - b_length : b_length - a_length;
  if (longer > limit)
    return limit + 1;
  /* Three rows of the usual table (a swap looks back two rows). Only entries within `limit` of the
   * diagonal are computed. */
  uint32_t rows[3][MAX_COMPARED + 1];
  for (uint32_t j = 0; j <= b_length; ++j)
    rows[0][j] = j;
  for (uint32_t i = 1; i <= a_length; ++i) {
    uint32_t* row = rows[i % 3];
    const uint32_t* above = rows[(i + 2) % 3];
    const uint32_t* two_above = rows[(i + 1) % 3];
    const uint32_t begin = i > limit ? i - limit : 1;
    const uint32_t end = min_u32(b_length, i + limit);
    uint32_t best = limit + 1;
    row[begin - 1] = begin == 1 ? i : limit + 1;
    for (uint32_t j = begin; j <= end; ++j) {
      const uint32_t replaced = above[j - 1] + (fold(a[i - 1]) != fold(b[j - 1]) ? 1u : 0u);
      const uint32_t deleted = (j == i + limit ? limit : above[j]) + 1;
      uint32_t cost = min_u32(min_u32(replaced, deleted), row[j - 1] + 1);
      if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1])) {
        cost = min_u32(cost, two_above[j - 2] + 1);
      }
      row[j] = cost;
      best = min_u32(best, cost);
    }
    if (end >= begin && best > limit)
      return limit + 1;
  }
  return min_u32(rows[a_length % 3][b_length], limit + 1);
}

void accrt_near_init(accrt_near_t* near, const char* wanted) {
  memset(near, 0, sizeof *near);
  near->wanted = wanted != NULL ? wanted : "";
}

static void insert_near(accrt_near_t* near, const char* candidate, uint32_t distance) {
  uint32_t at = near->near_count;
  while (at > 0 && near->distance[at - 1] > distance)
    --at;
  if (at == ACCRT_NEAR_MAX_NAMES)
    return;
  if (near->near_count < ACCRT_NEAR_MAX_NAMES)
    ++near->near_count;
  for (uint32_t i = near->near_count - 1; i > at; --i) {
    near->near[i] = near->near[i - 1];
    near->distance[i] = near->distance[i - 1];
  }
  near->near[at] = candidate;
  near->distance[at] = distance;
}

void accrt_near_add(accrt_near_t* near, const char* candidate) {
  if (candidate == NULL || candidate[0] == '\0')
    return;
  if (near->candidate_count < ACCRT_NEAR_MAX_NAMES)
    near->first[near->candidate_count] = candidate;
  if (near->candidate_count < UINT32_MAX)
    ++near->candidate_count;
  const size_t wanted_length = strnlen(near->wanted, MAX_COMPARED);
  if (wanted_length == 0)
    return;
  /* A third of the name may be wrong, at most three letters. */
  const uint32_t limit = min_u32(3, (uint32_t)(wanted_length + 2) / 3);
  const uint32_t distance = accrt_near_distance(near->wanted, candidate, limit);
  const size_t candidate_length = strnlen(candidate, MAX_COMPARED);
  const size_t shorter = wanted_length < candidate_length ? wanted_length : candidate_length;
  if (distance <= limit) {
    insert_near(near, candidate, distance);
  } else if (shorter >= 3 && strncmp(near->wanted, candidate, shorter) == 0) {
    insert_near(near, candidate, PREFIX_DISTANCE);
  }
}

/* Appends the formatted text if it fits; otherwise appends nothing and returns false. */
static int append(accrt_near_t* near, size_t* length, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t room = sizeof near->text - *length;
  const int written = vsnprintf(near->text + *length, room, format, arguments);
  va_end(arguments);
  if (written < 0 || (size_t)written >= room) {
    near->text[*length] = '\0';
    return 0;
  }
  *length += (size_t)written;
  return 1;
}

const char* accrt_near_text(accrt_near_t* near) {
  near->text[0] = '\0';
  size_t length = 0;
  if (near->candidate_count == 0)
    return strcpy(near->text, "; there is none");
  if (near->near_count == 0 && near->candidate_count > ACCRT_NEAR_MAX_NAMES)
    return near->text;
  const int found = near->near_count > 0;
  const uint32_t count = found ? near->near_count : near->candidate_count;
  const char* const* names = found ? near->near : near->first;
  append(near, &length, found ? "; did you mean " : "; there is ");
  const size_t start = length;
  for (uint32_t i = 0; i < count; ++i) {
    const char* separator = i == 0 ? "" : found && i + 1 == count ? " or " : ", ";
    if (!append(near, &length, "%s'%s'", separator, names[i]))
      break;
  }
  if (length == start)
    near->text[0] = '\0'; /* not even one name fits */
  if (length != start && found)
    append(near, &length, "?");
  return near->text;
}
