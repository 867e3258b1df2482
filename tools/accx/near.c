/* tools/accx/near.c - similar names, for "did you mean". It may not use the library. */
#include "accx.h"
#include "write/text/show.h"

const char* accx_near(const char* wrong, const char* const* names, size_t count) {
  accx_near_t near = {.wrong = wrong};
  for (size_t i = 0; i < count; ++i)
    accx_near_try(&near, names[i]);
  return accx_text("%s", ACCX_NEAR_TEXT(&near));
}
