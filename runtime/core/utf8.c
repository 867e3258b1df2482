/* runtime/core/utf8.c - checks of UTF-8. It may not allocate. */
#include "runtime/core/utf8.h"

#include <stddef.h>

uint32_t accrt_utf8_length(const unsigned char* at) {
  static const struct {
    unsigned char first_low, first_high, second_low, second_high, length;
  } forms[] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
               {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3},
               {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
               {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
  if (at[0] < 0x80)
    return 1;
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
    if (at[0] < forms[i].first_low || at[0] > forms[i].first_high)
      continue;
    if (at[1] < forms[i].second_low || at[1] > forms[i].second_high)
      return 0;
    /* NUL is not a continuation byte, so this stops at the end of the string. */
    for (uint32_t k = 2; k < forms[i].length; ++k) {
      if ((at[k] & 0xC0) != 0x80)
        return 0;
    }
    return forms[i].length;
  }
  return 0;
}

size_t accrt_utf8_check(const char* text) {
  const unsigned char* at = (const unsigned char*)text;
  for (; *at >= 0x01 && *at < 0x80; ++at)
    continue;
  uint32_t length = 1;
  while (*at != '\0' && (length = accrt_utf8_length(at)) != 0)
    at += length;
  return (size_t)(at - (const unsigned char*)text);
}

const char* accrt_utf8_check_line(const char* text) {
  const unsigned char* at = (const unsigned char*)text;
  while (*at != '\0') {
    const uint32_t length = accrt_utf8_length(at);
    if (length == 0)
      return "it is not UTF-8";
    if (*at < ' ' || *at == 0x7F || (at[0] == 0xC2 && at[1] < 0xA0) ||
        (at[0] == 0xE2 && at[1] == 0x80 && (at[2] | 1) == 0xA9))
      return "there is a control character or a separator of lines";
    at += length;
  }
  return NULL;
}
