/* tools/accx/deprecated.h - content of bundles that readers still read and the next major drops
 * (docs/contract.md, "Support"). It needs only the library, and prints nothing. */
#ifndef ACCX_DEPRECATED_H_
#define ACCX_DEPRECATED_H_

#include <stdbool.h>

#include "accrt/accrt.h"

enum { ACCX_DEPRECATED_SECTION, ACCX_DEPRECATED_OPCODE, ACCX_DEPRECATED_LAYOUT };

typedef struct accx_deprecated {
  uint32_t kind; /* ACCX_DEPRECATED_* */
  uint32_t number;
  const char* name;
  const char* since;   /* such as "container 0.4" */
  const char* instead; /* what writers use instead */
} accx_deprecated_t;

/* All deprecated content, as in the table of docs/contract.md, and its number. */
extern const accx_deprecated_t accx_deprecated[];
extern const size_t accx_deprecated_count;

/* Such as "section". */
const char* accx_deprecated_kind(const accx_deprecated_t* entry);
/* Checks for each entry of a list whether a bundle contains it. Blocks on the file if the list has
 * opcodes. */
accrt_status_t accx_deprecated_find(accrt_bundle_t* bundle, const accx_deprecated_t* list,
                                    size_t count, bool* out_held);

#endif /* ACCX_DEPRECATED_H_ */
