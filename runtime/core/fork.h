/* runtime/core/fork.h - detects that the process was forked.
 *
 * It may not allocate. In a child of a process with live instances, every function returns
 * ACCRT_ERROR_FORKED for ever. The child has no threads and no drivers, and the parent's threads
 * may hold locks.
 */
#ifndef ACCRT_RUNTIME_CORE_FORK_H_
#define ACCRT_RUNTIME_CORE_FORK_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "accrt/base.h"
#include "runtime/core/error.h"

/* Set in the child only. Relaxed everywhere: written while the child has one thread. */
extern atomic_int accrt_forked_flag __attribute__((visibility("hidden")));
static inline bool accrt_forked(void) {
  return atomic_load_explicit(&accrt_forked_flag, memory_order_relaxed) != 0;
}

/* Notes the public function's name for error records, and records ACCRT_ERROR_FORKED in a child
 * (one load). */
accrt_status_t accrt_check_fork_in(const char* function);
#define accrt_check_fork() accrt_check_fork_in(ACCRT_THIS_FUNCTION)
/* The same without a call, for functions that take some tens of nanoseconds. */
accrt_status_t accrt_fail_forked(void);
static inline accrt_status_t accrt_check_fork_quick(const char* function) {
  accrt_error_enter(function);
  return __builtin_expect(accrt_forked(), 0) ? accrt_fail_forked() : ACCRT_OK;
}

/* The start of an entry point. It notes the function's name, refuses a forked child, and refuses
 * the first of the arguments (one to six) that is NULL, by its name. Set the results to their
 * failure values before it. */
#ifdef __OPTIMIZE_SIZE__ /* one call, in files that are compiled for size */
#define ACCRT_CHECK(...)                                                                           \
  ACCRT_TRY(accrt_check_arguments(ACCRT_PLACE(ACCRT_ERROR_INVALID_ARGUMENT), #__VA_ARGS__,         \
                                  (const void* const[]){__VA_ARGS__}))
#define ACCRT_ENTER(...)                                                                           \
  ACCRT_TRY(accrt_enter(ACCRT_THIS_FUNCTION, ACCRT_PLACE(ACCRT_ERROR_INVALID_ARGUMENT),            \
                        #__VA_ARGS__, (const void* const[]){__VA_ARGS__}))
#else
#define ACCRT_ENTER(...)                                                                           \
  do {                                                                                             \
    accrt_error_enter(ACCRT_THIS_FUNCTION);                                                        \
    ACCRT_CHECK(__VA_ARGS__);                                                                      \
  } while (0)
#define ACCRT_CHECK(...)                                                                           \
  do {                                                                                             \
    if (__builtin_expect(accrt_forked() || ACCRT_ANY_NULL(__VA_ARGS__, 6, 5, 4, 3, 2, 1, 0), 0))   \
      return accrt_enter_refuse(ACCRT_PLACE(ACCRT_ERROR_INVALID_ARGUMENT), #__VA_ARGS__,           \
                                (const void* const[]){__VA_ARGS__});                               \
  } while (0)
#endif
/* The same in a helper of several entry points, which pass their ACCRT_THIS_FUNCTION. */
#define ACCRT_ENTER_AS(function, ...)                                                              \
  ACCRT_TRY(accrt_enter((function), ACCRT_PLACE(ACCRT_ERROR_INVALID_ARGUMENT), #__VA_ARGS__,       \
                        (const void* const[]){__VA_ARGS__}))
/* A public function that the library calls too is two. accrt_inner_... does everything and begins
 * with ACCRT_CHECK, which is ACCRT_ENTER without the name. The public one notes its name and calls
 * it. The library calls accrt_inner_... alone, so a record names what the user called
 * (tests/python/test_entry_points.py). */
#define ACCRT_ENTER_INNER(call)                                                                    \
  accrt_error_enter(ACCRT_THIS_FUNCTION);                                                          \
  return call
accrt_status_t accrt_check_arguments(accrt_error_place_t place, const char* names,
                                     const void* const* arguments);
/* `names` are those of the arguments, divided by commas. */
accrt_status_t accrt_enter(const char* function, accrt_error_place_t place, const char* names,
                           const void* const* arguments);
/* The failing half, in a function that is noted already. */
__attribute__((cold)) accrt_status_t
accrt_enter_refuse(accrt_error_place_t place, const char* names, const void* const* arguments);
#define ACCRT_ANY_NULL(a, b, c, d, e, f, count, ...) ACCRT_ANY_NULL_##count(a, b, c, d, e, f)
#define ACCRT_ANY_NULL_1(a, ...) ((a) == NULL)
#define ACCRT_ANY_NULL_2(a, ...) ((a) == NULL || ACCRT_ANY_NULL_1(__VA_ARGS__))
#define ACCRT_ANY_NULL_3(a, ...) ((a) == NULL || ACCRT_ANY_NULL_2(__VA_ARGS__))
#define ACCRT_ANY_NULL_4(a, ...) ((a) == NULL || ACCRT_ANY_NULL_3(__VA_ARGS__))
#define ACCRT_ANY_NULL_5(a, ...) ((a) == NULL || ACCRT_ANY_NULL_4(__VA_ARGS__))
#define ACCRT_ANY_NULL_6(a, ...) ((a) == NULL || ACCRT_ANY_NULL_5(__VA_ARGS__))

/* Count an instance's creation and end. The first call installs the fork handler;
 * ACCRT_ERROR_OUT_OF_MEMORY if it cannot. */
accrt_status_t accrt_fork_instance_born(void);
void accrt_fork_instance_gone(void);

#endif /* ACCRT_RUNTIME_CORE_FORK_H_ */
