/* runtime/core/try.h - the one idiom for a call that may fail. It may include only the statuses.
 *
 * Use ACCRT_TRY where there is nothing to undo. Where something has to be undone, a function stores
 * its status in a variable and leaves by one exit.
 */
#ifndef ACCRT_RUNTIME_CORE_TRY_H_
#define ACCRT_RUNTIME_CORE_TRY_H_

#include "accrt/base.h"

/* Returns the status unless it is ACCRT_OK. */
#define ACCRT_TRY(...)                                                                             \
  do {                                                                                             \
    const accrt_status_t accrt_try_status = (__VA_ARGS__);                                         \
    if (accrt_try_status != ACCRT_OK)                                                              \
      return accrt_try_status;                                                                     \
  } while (0)

#endif /* ACCRT_RUNTIME_CORE_TRY_H_ */
