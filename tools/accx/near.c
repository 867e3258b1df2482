/* tools/accx/near.c - near names, for "did you mean". It may not touch the library. */
#include <stdlib.h>
#include <string.h>

#include "accx.h"

#define LONGEST 64

static size_t smallest(size_t a, size_t b, size_t c) {
  const size_t ab = a < b ? a : b;
  return ab < c ? ab : c;
}

/* Edit distance in which swapping two neighbours counts one. Names longer than LONGEST are never near. */
static size_t distance(const char* a, const char* b) {
  const size_t n = strlen(a), m = strlen(b);
  if (n > LONGEST || m > LONGEST)
    return SIZE_MAX;
  size_t rows[3][LONGEST + 1];
  size_t *before = rows[0], *last = rows[1], *row = rows[2];
  for (size_t j = 0; j <= m; ++j)
    last[j] = j;
  for (size_t i = 1; i <= n; ++i) {
    row[0] = i;
    for (size_t j = 1; j <= m; ++j) {
      row[j] = smallest(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
          before[j - 2] + 1 < row[j])
        row[j] = before[j - 2] + 1;
    }
    size_t* oldest = before;
    before = last;
    last = row;
    row = oldest;
  }
  return last[m];
}

static size_t tolerance(const char* wrong, const char* name) {
  const size_t length = strlen(wrong);
  if (length >= 3 && strncmp(wrong, name, length) == 0)
    return SIZE_MAX - 1; /* a beginning is always near */
  return length < 2 ? 0 : length < 4 ? 1 : length < 9 ? 2 : 3;
}

const char* accx_near(const char* wrong, const char* const* names, size_t count) {
  const char* best = NULL;
  size_t best_distance = SIZE_MAX;
  for (size_t i = 0; i < count; ++i) {
    const size_t d = distance(wrong, names[i]);
    if (d <= tolerance(wrong, names[i]) && d < best_distance) {
      best = names[i];
      best_distance = d;
    }
  }
  return best ? accx_text(", did you mean '%s'?", best) : "";
}
