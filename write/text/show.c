/* write/text/show.c - shows words in messages. See show.h. */
#include "write/text/show.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LONGEST 64

/* ---- In quotes ---- */

/* The bytes of the character at this position. An invalid byte counts as one character. */
static size_t character_bytes(const unsigned char* at) {
  const size_t bytes = at[0] < 0xC0 ? 1 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at[i] & 0xC0) != 0x80)
      return 1;
  }
  return bytes;
}

size_t accx_unsafe_bytes(const char* text) {
  const unsigned char* at = (const unsigned char*)text;
  if (at[0] < 0x20 || at[0] == 0x7F)
    return 1;
  if (at[0] == 0xC2)
    return at[1] >= 0x80 && at[1] < 0xA0 ? 2 : 0;
  if (at[0] != 0xE2 || (at[1] != 0x80 && at[1] != 0x81))
    return 0;
  /* U+200E, U+200F, U+2028 to U+202E; U+2066 to U+2069. */
  const bool unsafe = at[1] == 0x80
                          ? at[2] == 0x8E || at[2] == 0x8F || (at[2] >= 0xA8 && at[2] <= 0xAE)
                          : at[2] >= 0xA6 && at[2] <= 0xA9;
  return unsafe ? 3 : 0;
}

static size_t put_character(char* target, const unsigned char* at, size_t bytes) {
  static const char known[] = "\n\t\r\\'", letters[] = "ntr\\'";
  const char* found = memchr(known, at[0], sizeof known - 1);
  if (found != NULL)
    return (size_t)sprintf(target, "\\%c", letters[found - known]);
  if (accx_unsafe_bytes((const char*)at) == 3)
    return (size_t)sprintf(target, "\\u20%02x", ((at[1] & 1u) << 6) | (at[2] & 0x3Fu));
  if (accx_unsafe_bytes((const char*)at) > 0 || (bytes == 1 && at[0] >= 0x80))
    return (size_t)sprintf(target, "\\x%02x", (unsigned)at[bytes - 1]);
  memcpy(target, at, bytes);
  return bytes;
}

const char* accx_show(char buffer[ACCX_SHOWN_BYTES], const char* word) {
  const unsigned char* at = (const unsigned char*)word;
  char* end = buffer;
  *end++ = '\'';
  while (*at != '\0') {
    /* The longest escape has 6 bytes; "..." and the quote follow. */
    if ((size_t)(end - buffer) + 6 + 5 > ACCX_SHOWN_BYTES) {
      memcpy(end, "...", 3);
      end += 3;
      break;
    }
    const size_t bytes = character_bytes(at);
    end += put_character(end, at, bytes);
    at += bytes;
  }
  *end++ = '\'';
  *end = '\0';
  return buffer;
}

/* ---- Similar words ---- */

static size_t smallest(size_t a, size_t b, size_t c) {
  const size_t ab = a < b ? a : b;
  return ab < c ? ab : c;
}

/* Edit distance; swapping two neighbours counts as one edit. Words longer than LONGEST are never
 * similar. */
static size_t distance_of(const char* a, const char* b) {
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

static size_t tolerance(const char* wrong, const char* word) {
  const size_t length = strlen(wrong);
  if (length >= 3 && strncmp(wrong, word, length) == 0)
    return SIZE_MAX - 1; /* a prefix is always similar */
  return length < 2 ? 0 : length < 4 ? 1 : length < 9 ? 2 : 3;
}

void accx_near_try(accx_near_t* near, const char* word) {
  const size_t distance = distance_of(near->wrong, word);
  if (distance == 0 || distance > tolerance(near->wrong, word) ||
      (near->best != NULL && distance >= near->distance))
    return;
  near->best = word;
  near->distance = distance;
}

const char* accx_near_text(char buffer[ACCX_SHOWN_BYTES + 32], const accx_near_t* near) {
  if (near->best == NULL)
    return "";
  (void)snprintf(buffer, ACCX_SHOWN_BYTES + 32, ", did you mean %s?", ACCX_SHOW(near->best));
  return buffer;
}
