/* tests/fuzz/mutate_text.h - mutations of texts (YAML, JSON): lines and words are moved, doubled, taken away or put in each other's
 * place, numbers changed. What stands behind a NUL stays as it is. The rest are libFuzzer's own, with the dictionary. */
#ifndef ACCRT_TESTS_FUZZ_MUTATE_TEXT_H_
#define ACCRT_TESTS_FUZZ_MUTATE_TEXT_H_

#include <stdbool.h>

#include "tests/fuzz/fuzz.h"

typedef struct span {
  size_t begin, end;
} span_t;

static inline bool is_word(uint8_t c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '-' || c == '+' || c == '.' || c >= 0x80;
}

/* The word, or the single mark, at or after a place that is drawn. */
static inline span_t draw_word(choices_t* choices, const uint8_t* text, size_t size) {
  span_t span = {0, 0};
  if (size == 0)
    return span;
  span.begin = draw_below(choices, size);
  while (span.begin > 0 && is_word(text[span.begin]) && is_word(text[span.begin - 1]))
    --span.begin;
  span.end = span.begin + 1;
  while (is_word(text[span.begin]) && span.end < size && is_word(text[span.end]))
    ++span.end;
  return span;
}

/* What stands between two commas, or a line. */
static inline span_t draw_piece(choices_t* choices, const uint8_t* text, size_t size) {
  span_t span = {0, 0};
  if (size == 0)
    return span;
  span.begin = draw_below(choices, size);
  const uint8_t mark = memchr(text, '\n', size) != NULL && draw_below(choices, 4) != 0 ? '\n' : ',';
  while (span.begin > 0 && text[span.begin - 1] != mark)
    --span.begin;
  span.end = span.begin;
  while (span.end < size && text[span.end] != mark)
    ++span.end;
  if (span.end < size)
    ++span.end;
  return span;
}

/* Puts `bytes` in place of a span, as far as there is room; the new size. */
static inline size_t replace_span(uint8_t* text, size_t size, size_t max_size, span_t span,
                                  const uint8_t* bytes, size_t count) {
  if (size - (span.end - span.begin) + count > max_size)
    return size;
  memmove(text + span.begin + count, text + span.end, size - span.end);
  if (count > 0)
    memcpy(text + span.begin, bytes, count);
  return size - (span.end - span.begin) + count;
}

static inline size_t draw_number(choices_t* choices, char* out, size_t capacity) {
  const uint64_t value = draw_value(choices, NULL, 0, 8);
  const char* const forms[] = {"%lld", "%llu", "0x%llx", "%llu.5", "%llue3"};
  const int length =
      snprintf(out, capacity, forms[draw_below(choices, 8) % 5], (unsigned long long)value);
  return length > 0 ? (size_t)length : 0;
}

static inline size_t mutate_text(choices_t* choices, uint8_t* text, size_t size, size_t max_size) {
  uint8_t saved[512];
  char number[64];
  const bool of_words = draw_below(choices, 2) == 0;
  const span_t one = of_words ? draw_word(choices, text, size) : draw_piece(choices, text, size);
  const span_t two = of_words ? draw_word(choices, text, size) : draw_piece(choices, text, size);
  const size_t count = one.end - one.begin < sizeof saved ? one.end - one.begin : sizeof saved;
  memcpy(saved, text + one.begin, count);
  switch (draw_below(choices, 6)) {
  case 0: /* again, somewhere else */
    return replace_span(text, size, max_size, (span_t){two.begin, two.begin}, saved, count);
  case 1:
    return replace_span(text, size, max_size, one, NULL, 0);
  case 2:
    if (of_words && count > 0 && saved[0] >= '0' && saved[0] <= '9')
      return replace_span(text, size, max_size, one, (const uint8_t*)number,
                          draw_number(choices, number, sizeof number));
    return replace_span(text, size, max_size, two, saved, count);
  default: /* in place of another */
    return replace_span(text, size, max_size, two, saved, count);
  }
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  choices_t choices = {seed};
  if (size == 0 || draw_below(&choices, 3) == 0)
    return LLVMFuzzerMutate(data, size, max_size);
  const uint8_t* end = memchr(data, 0, size);
  const size_t tail = end != NULL ? size - (size_t)(end - data) : 0;
  size_t text = size - tail;
  for (uint32_t i = 0; i < 1 + draw_below(&choices, 3); ++i) {
    uint8_t* copy = malloc(max_size);
    fuzz_require(copy != NULL);
    memcpy(copy, data, text);
    const size_t grown = mutate_text(&choices, copy, text, max_size - tail);
    memmove(data + grown, data + text, tail);
    memcpy(data, copy, grown);
    text = grown;
    free(copy);
  }
  return text + tail;
}

#endif /* ACCRT_TESTS_FUZZ_MUTATE_TEXT_H_ */
