/* runtime/core/fork.c - the fork flag. It is process-wide, because fork is. */
#include "runtime/core/fork.h"

#include <pthread.h>
#include <string.h>

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
  return accrt_check_fork_quick(function);
}

accrt_status_t accrt_enter_refuse(accrt_error_place_t place, const char* names,
                                  const void* const* arguments) {
  return accrt_forked() ? accrt_fail_forked() : accrt_error_fail_null(place, names, arguments);
}

accrt_status_t accrt_enter(const char* function, accrt_error_place_t place, const char* names,
                           const void* const* arguments) {
  accrt_error_enter(function);
  return accrt_check_arguments(place, names, arguments);
}

accrt_status_t accrt_check_arguments(accrt_error_place_t place, const char* names,
                                     const void* const* arguments) {
  if (accrt_forked())
    return accrt_fail_forked();
  const void* const* argument = arguments;
  for (const char* name = names; name != NULL; name = strchr(name + 1, ',')) {
    if (*argument++ == NULL)
      return accrt_error_fail_null(place, names, arguments);
  }
  return ACCRT_OK;
}

accrt_status_t accrt_fail_forked(void) {
  return ACCRT_FAIL(
      FORKED, "forked from a process that used the library: start workers by spawn, not fork");
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
