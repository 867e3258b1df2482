/* runtime/core/fork.h - knowing that the process was forked. 
 *
 * It may not allocate. A child of a process with live instances gets ACCRT_ERROR_FORKED from every function, for ever: threads
 * and drivers did not come along, and locks may be held by threads that do not exist here.
 */
#ifndef ACCRT_RUNTIME_CORE_FORK_H_
#define ACCRT_RUNTIME_CORE_FORK_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/base.h"

/* Set in the child only. Relaxed everywhere: written while the child has one thread. */
extern atomic_int accrt_forked_flag;
static inline bool accrt_forked(void) {
  return atomic_load_explicit(&accrt_forked_flag, memory_order_relaxed) != 0;
}

/* First line of every public function: notes its name for error records, and records ACCRT_ERROR_FORKED in a child (one load). */
accrt_status_t accrt_check_fork_in(const char* function);
#define accrt_check_fork() accrt_check_fork_in(__func__)

/* An instance begins or ends to live. The first call installs the fork handler; ACCRT_ERROR_OUT_OF_MEMORY if it cannot. */
accrt_status_t accrt_fork_instance_born(void);
void accrt_fork_instance_gone(void);

#endif /* ACCRT_RUNTIME_CORE_FORK_H_ */
