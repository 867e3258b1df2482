/* tools/accx/deprecated.h - what a bundle may hold that readers read and the next major drops (docs/contract.md, "Support"). It needs
 * the library alone, and prints nothing. */
#ifndef ACCX_DEPRECATED_H_
#define ACCX_DEPRECATED_H_

#include <stdbool.h>

#include "accrt/accrt.h"

enum { ACCX_DEPRECATED_SECTION, ACCX_DEPRECATED_OPCODE, ACCX_DEPRECATED_LAYOUT };

typedef struct accx_deprecated {
  uint32_t kind; /* ACCX_DEPRECATED_* */
  uint32_t number;
  const char* name;
  const char* since;   /* "container 0.4" */
  const char* instead; /* what writers make now */
} accx_deprecated_t;

/* All that is, and how many: the table of the contract. */
extern const accx_deprecated_t accx_deprecated[];
extern const size_t accx_deprecated_count;

/* "section". */
const char* accx_deprecated_kind(const accx_deprecated_t* entry);
/* Says of each entry of a list whether a bundle holds it. Blocks on the file where the list names opcodes. */
accrt_status_t accx_deprecated_find(accrt_bundle_t* bundle, const accx_deprecated_t* list,
                                    size_t count, bool* out_held);

#endif /* ACCX_DEPRECATED_H_ */
