/* runtime/core/fork.c - the fork flag. One of the few process-wide things: fork is process-wide. */
#include "runtime/core/fork.h"

#include <pthread.h>

#include "runtime/core/error.h"

atomic_int accrt_forked_flag;

static atomic_int live_instances;
static pthread_once_t installed = PTHREAD_ONCE_INIT;
static int install_error;

static void in_child(void) {
  if (atomic_load_explicit(&live_instances, memory_order_relaxed) > 0) {
    atomic_store_explicit(&accrt_forked_flag, 1, memory_order_relaxed);
  }
}

static void install(void) {
  install_error = pthread_atfork(NULL, NULL, in_child);
}

accrt_status_t accrt_check_fork_in(const char* function) {
  accrt_error_enter(function);
  if (__builtin_expect(!accrt_forked(), 1))
    return ACCRT_OK;
  return ACCRT_FAIL_INNER(
      FORKED,
      "this process was forked from one that used the library; its handles belong to the parent");
}

accrt_status_t accrt_fork_instance_born(void) {
  (void)pthread_once(&installed, install);
  if (install_error != 0)
    return ACCRT_FAIL_ERRNO(OUT_OF_MEMORY, install_error, "pthread_atfork failed");
  atomic_fetch_add_explicit(&live_instances, 1, memory_order_relaxed);
  return ACCRT_OK;
}

void accrt_fork_instance_gone(void) {
  atomic_fetch_sub_explicit(&live_instances, 1, memory_order_relaxed);
}
