/* runtime/core/assertion.h - assertions about the library's own invariants, in builds with
 * ACCRT_ASSERTIONS (Debug and sanitizers).
 *
 * A failed assertion is a bug of the library: it is printed, and the process aborts. Other builds
 * do not evaluate the condition. Mistakes of callers and of the environment are never asserted.
 */
#ifndef ACCRT_RUNTIME_CORE_ASSERTION_H_
#define ACCRT_RUNTIME_CORE_ASSERTION_H_

#include <stdbool.h>

#include "runtime/core/lock_order.h"

#if defined(ACCRT_ASSERTIONS) && ACCRT_ASSERTIONS

_Noreturn void accrt_assert_failed(const char* condition, const char* file, int line);
/* Notes that this thread takes a lock, and first checks the order. A try cannot wait, so it may be
 * out of order. */
void accrt_lock_enter(const void* lock, accrt_lock_class_t lock_class);
void accrt_lock_enter_tried(const void* lock, accrt_lock_class_t lock_class);
void accrt_lock_leave(const void* lock);
bool accrt_lock_is_held(const void* lock);
bool accrt_lock_is_held_below(accrt_lock_class_t lock_class);

#define ACCRT_ASSERT(condition)                                                                    \
  ((condition) ? (void)0 : accrt_assert_failed(#condition, __FILE__, __LINE__))
/* Asserts that this thread holds the lock, an accrt_mutex_t or accrt_monitor_t. */
#define ACCRT_ASSERT_HELD(lock)                                                                    \
  (accrt_lock_is_held(lock) ? (void)0 : accrt_assert_failed(#lock " is held", __FILE__, __LINE__))
/* Asserts that this thread holds no lock of a class further down than `name`. */
#define ACCRT_ASSERT_NONE_BELOW(name)                                                              \
  (accrt_lock_is_held_below(name)                                                                  \
       ? accrt_assert_failed("no lock below " #name " is held", __FILE__, __LINE__)                \
       : (void)0)
#define ACCRT_LOCK_CLASS_FIELD accrt_lock_class_t lock_class;
#define ACCRT_LOCK_CLASS_SET(lock, name) ((void)((lock)->lock_class = (name)))
#define ACCRT_LOCK_ENTER(lock) accrt_lock_enter((lock), (lock)->lock_class)
#define ACCRT_LOCK_ENTER_TRIED(lock) accrt_lock_enter_tried((lock), (lock)->lock_class)
#define ACCRT_LOCK_LEAVE(lock) accrt_lock_leave(lock)

#else

/* Compiled but not evaluated, so that its variables count as used. */
#define ACCRT_ASSERT(condition) ((void)sizeof((condition) ? 1 : 0))
#define ACCRT_ASSERT_HELD(lock) ((void)sizeof(lock))
#define ACCRT_ASSERT_NONE_BELOW(name) ((void)(name))
#define ACCRT_LOCK_CLASS_FIELD
#define ACCRT_LOCK_CLASS_SET(lock, name) ((void)(name))
#define ACCRT_LOCK_ENTER(lock) ((void)0)
#define ACCRT_LOCK_ENTER_TRIED(lock) ((void)0)
#define ACCRT_LOCK_LEAVE(lock) ((void)0)

#endif

#endif /* ACCRT_RUNTIME_CORE_ASSERTION_H_ */
