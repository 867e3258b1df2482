/* runtime/core/context.h - which calls this thread is inside of, and its queue of follow-up tasks.
 *
 * Feeding a stream may complete work at once (a driver may be synchronous), which may advance a
 * semaphore, which may make another stream ready, and so on. To keep that flat, follow-up tasks are
 * queued per thread and run by the outermost accrt_context_leave, with no lock held. It may not
 * allocate: tasks are part of what they act on.
 */
#ifndef ACCRT_RUNTIME_CORE_CONTEXT_H_
#define ACCRT_RUNTIME_CORE_CONTEXT_H_

#include <stdbool.h>

typedef struct accrt_task {
  struct accrt_task* next;
  void (*run)(struct accrt_task* task); /* the task may be freed when this returns */
} accrt_task_t;

/* Every path that calls a driver's queue or advances a timeline lies between these two calls. */
void accrt_context_enter(void);
void accrt_context_leave(void);
/* Queues a task for the outermost accrt_context_leave of this thread. Requires an open context. */
void accrt_context_post(accrt_task_t* task);
/* True between enter and leave, so possibly inside a driver's completion. */
bool accrt_context_inside(void);

/* Marks this thread as a runtime thread of an instance. */
void accrt_context_set_runtime_thread(bool is_runtime_thread);
bool accrt_context_is_runtime_thread(void);

#endif /* ACCRT_RUNTIME_CORE_CONTEXT_H_ */
