/* runtime/core/near_name.h - "did you mean": similar names for NOT_FOUND messages.
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
      /* ascending distance; equal ones in the order of accrt_near_add */
      near[ACCRT_NEAR_MAX_NAMES];
  uint32_t distance[ACCRT_NEAR_MAX_NAMES];
  /* The first candidates. They are shown if they are all and none is similar. */
  const char* first[ACCRT_NEAR_MAX_NAMES];
  char text[ACCRT_NEAR_TEXT_BYTES];
} accrt_near_t;

/* `wanted` must live until accrt_near_text. */
void accrt_near_init(accrt_near_t* near, const char* wanted);
/* `candidate` must live until accrt_near_text. NULL and "" are ignored. */
void accrt_near_add(accrt_near_t* near, const char* candidate);
/* "; did you mean 'a' or 'b'?"; or "; there is 'a', 'b'" when none is similar and there are few; or
 * "; there is none"; or "". The text lives in `near`. */
const char* accrt_near_text(accrt_near_t* near);

/* Number of edits from a to b (insert, delete, replace, swap neighbours; upper and lower case are
 * equal), or limit + 1 when there are more. limit <= 8. Only the first 128 bytes are compared. */
uint32_t accrt_near_distance(const char* a, const char* b, uint32_t limit);

#endif /* ACCRT_RUNTIME_CORE_NEAR_NAME_H_ */
