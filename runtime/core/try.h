/* runtime/core/try.h - the one idiom for a call that may fail, and the mark of functions that
 * rarely run, and a function's name. It may include only the statuses.
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

/* Of a function in a file that is compiled for speed: it runs once in an object's life, so it is
 * compiled for size, and lies apart from what runs at each call. */
#define ACCRT_RARE __attribute__((cold))

/* The name of the function that it stands in, as a string literal: the linker makes it the end of
 * the text that the entry point has (abi/watch_entry.h). __func__ is an array of its own. */
#define ACCRT_THIS_FUNCTION __builtin_FUNCTION()

#endif /* ACCRT_RUNTIME_CORE_TRY_H_ */
