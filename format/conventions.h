/* format/conventions.h - the table of format/conventions.def. It may include public headers only:
 * the tool uses it too. */
#ifndef ACCRT_FORMAT_CONVENTIONS_H_
#define ACCRT_FORMAT_CONVENTIONS_H_

#include <stdint.h>

#include "accrt/layout.h"

enum {
#define ACCX_CONVENTION(name, first, last, data, scales, zeros, index, global)                     \
  ACCX_CONVENTION_##name,
#include "format/conventions.def"
#undef ACCX_CONVENTION
  ACCX_CONVENTION_COUNT
};

/* Texts stand in the tables themselves: a pointer takes 32 bytes of the library. */
typedef char accx_suffix_t[15];
typedef struct accx_convention {
  uint8_t first_layout, last_layout; /* ACCRT_LAYOUT_* */
  accx_suffix_t suffixes[ACCRT_LAYOUT_ROLE_COUNT];
} accx_convention_t;

static const accx_convention_t accx_conventions[ACCX_CONVENTION_COUNT] = {
#define ACCX_CONVENTION(name, first, last, data, scales, zeros, index, global)                     \
  {ACCRT_LAYOUT_##first, ACCRT_LAYOUT_##last, {data, scales, zeros, index, global}},
#include "format/conventions.def"
#undef ACCX_CONVENTION
};

/* A suffix as it is behind the name. */
static inline const char* accx_convention_suffix(uint32_t convention, uint32_t role) {
  const char* suffix = accx_conventions[convention].suffixes[role];
  return suffix + (suffix[0] == '!');
}

#endif /* ACCRT_FORMAT_CONVENTIONS_H_ */
