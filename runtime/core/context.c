/* runtime/core/context.c - the per-thread queue of follow-up tasks. It may not allocate or take a
 * lock. */
#include "runtime/core/context.h"

#include <stddef.h>
#include <stdint.h>

#include "runtime/core/assertion.h"

/* Initial-exec as for error records: the first access may not allocate. */
static _Thread_local struct {
  uint32_t depth;
  bool is_runtime_thread;
  accrt_task_t* head;
  accrt_task_t** tail;
} context __attribute__((tls_model("initial-exec")));

void accrt_context_enter(void) {
  context.depth += 1;
}

void accrt_context_leave(void) {
  ACCRT_ASSERT(context.depth > 0);
  /* Only the outermost leave runs tasks. They still run inside the context and may post more. */
  while (context.depth == 1 && context.head != NULL) {
    accrt_task_t* task = context.head;
    context.head = task->next;
    if (context.head == NULL)
      context.tail = NULL;
    task->run(task);
  }
  context.depth -= 1;
}

void accrt_context_post(accrt_task_t* task) {
  ACCRT_ASSERT(context.depth > 0);
  task->next = NULL;
  if (context.tail == NULL) {
    context.head = task;
  } else {
    *context.tail = task;
  }
  context.tail = &task->next;
}

bool accrt_context_inside(void) {
  return context.depth > 0;
}

void accrt_context_set_runtime_thread(bool is_runtime_thread) {
  context.is_runtime_thread = is_runtime_thread;
}
bool accrt_context_is_runtime_thread(void) {
  return context.is_runtime_thread;
}
