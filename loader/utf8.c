/* loader/utf8.c - what UTF-8 is. It may not allocate. */
#include "loader/utf8.h"

#include <stddef.h>

uint32_t accx_utf8_length(const unsigned char* at) {
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
    /* Continuation bytes are never NUL, so this stops at what ends the string. */
    for (uint32_t k = 2; k < forms[i].length; ++k) {
      if ((at[k] & 0xC0) != 0x80)
        return 0;
    }
    return forms[i].length;
  }
  return 0;
}
