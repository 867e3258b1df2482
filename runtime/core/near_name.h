/* runtime/core/near_name.h - "did you mean": near names for NOT_FOUND messages.
 *
 * For all of the library. It may not allocate: everything is in the struct, on the caller's stack.
 *
 *   accrt_near_t near;
 *   accrt_near_init(&near, name);
 *   for (...) accrt_near_add(&near, candidate);
 *   return ACCRT_FAIL(NOT_FOUND, "no function '%s'%s", name, accrt_near_text(&near));
 */
#ifndef ACCRT_RUNTIME_CORE_NEAR_NAME_H_
#define ACCRT_RUNTIME_CORE_NEAR_NAME_H_

#include <stdint.h>

#define ACCRT_NEAR_MAX_NAMES 4u
#define ACCRT_NEAR_TEXT_BYTES 256u

typedef struct accrt_near {
  const char* wanted;
  uint32_t candidate_count;
  uint32_t near_count;
  const char*
      near[ACCRT_NEAR_MAX_NAMES]; /* ascending distance; ties in the order they were added */
  uint32_t distance[ACCRT_NEAR_MAX_NAMES];
  /* Of all candidates: shown when these are all there are and none is near. */
  const char* first[ACCRT_NEAR_MAX_NAMES];
  char text[ACCRT_NEAR_TEXT_BYTES];
} accrt_near_t;

/* `wanted` is borrowed until accrt_near_text. */
void accrt_near_init(accrt_near_t* near, const char* wanted);
/* `candidate` is borrowed until accrt_near_text. NULL and "" are passed over. */
void accrt_near_add(accrt_near_t* near, const char* candidate);
/* "; did you mean 'a' or 'b'?", or "; there is 'a', 'b'" when none is near and there are few, or ";
 * there is none", or "". Lives in `near`. */
const char* accrt_near_text(accrt_near_t* near);

/* Edits (insert, delete, replace, swap neighbours; letters' case is free) from a to b, or limit + 1
 * when there are more. limit <= 8; only the first 128 bytes are compared. */
uint32_t accrt_near_distance(const char* a, const char* b, uint32_t limit);

#endif /* ACCRT_RUNTIME_CORE_NEAR_NAME_H_ */
