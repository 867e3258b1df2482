/* serve/handles.h - validates handles: does each have the right type, who made it, who still has a
 * reference.
 *
 * For the generated entry points (serve/entries.c, serve/http/entries.c) and for those who allocate
 * handles. It does for libaccrt_serve and libaccrt_http what abi/watch.h does for libaccrt; each of
 * the two shared libraries has a register of its own, linked statically they share one. Until
 * something asks for validation (accrt/serve.h) an entry point checks one flag. The same flag makes
 * every entry point fail in a process that was forked from one that had handles.
 */
#ifndef ACCRT_SERVE_HANDLES_H_
#define ACCRT_SERVE_HANDLES_H_

#include <stdatomic.h>

#include "serve/base.h"

/* What an argument's use does to the caller's references. */
typedef enum accsv_handle_use {
  ACCSV_HANDLE_USE,
  ACCSV_HANDLE_RETAIN,
  ACCSV_HANDLE_RELEASE,
  ACCSV_HANDLE_ANSWER /* of a job: it ends unless accsv_handle_unanswered takes that back */
} accsv_handle_use_t;

/* How a result is given. */
typedef enum accsv_handle_gift {
  ACCSV_HANDLE_OWNED,
  ACCSV_HANDLE_LENT, /* while the handle that it comes from is valid */
  ACCSV_HANDLE_DUE   /* lent, and to be answered */
} accsv_handle_gift_t;

/* A handle is validated; this process was forked from one that had handles. Relaxed is enough: a
 * thread that got a handle is ordered after the store, and a child begins with one thread. */
#define ACCSV_HANDLES_VALIDATED 1u
#define ACCSV_HANDLES_FORKED 2u
extern atomic_uint accsv_handles_flag __attribute__((visibility("hidden")));
/* True if handles have to be checked. */
static inline bool accsv_handles_on(void) {
  return __builtin_expect(atomic_load_explicit(&accsv_handles_flag, memory_order_relaxed) != 0, 0);
}

/* What asks for a new handle's validation, or against it. */
typedef enum accsv_ask {
  ACCSV_ASK_ENVIRONMENT, /* ACCRT_VALIDATE, if anything */
  ACCSV_ASK_ON,
  ACCSV_ASK_OFF
} accsv_ask_t;

/* `options` is a public struct that begins with struct_size and flags; NULL: it does not ask. */
accsv_ask_t accsv_handle_asked(const void* options);
/* The options ask, or these flags of what the handle is made for. */
accsv_ask_t accsv_handle_asked_by_flags(const void* options, uint32_t flags);
/* The options ask, or validate.handles of the device's instance. */
accsv_ask_t accsv_handle_asked_by_device(const void* options, accrt_device_t* device);
/* For a function that makes a handle from none: is it wanted that it is validated? Refuses another
 * word than "handles" in the environment, where that counts. */
accrt_status_t accsv_handle_begin(const char* function, accsv_ask_t ask, bool* out_wanted);
/* For a function that makes a handle from another one: only ACCSV_ASK_ON is wanted. */
bool accsv_handle_wanted(accsv_ask_t ask);
/* True if the handle is in the register, not released. */
bool accsv_handle_is_validated(const void* handle);
/* Checks one argument. In a forked process it is ACCRT_ERROR_FORKED. A wrong handle is
 * ACCRT_ERROR_INVALID_ARGUMENT, recorded, and written to standard error. NULL passes: the
 * function's body reports it. */
accrt_status_t accsv_handle_check(const char* function, const char* name, const void* handle,
                                  const char* type, accsv_handle_use_t use);
/* Registers a result. `from` is the handle that it comes from; NULL: none, and validation is
 * wanted. What comes from a handle that is not registered is not registered. */
void accsv_handle_give(const char* function, const char* type, const void* handle, const void* from,
                       accsv_handle_gift_t gift);
/* After an ACCSV_HANDLE_ANSWER that has failed: the job is still to be answered. */
void accsv_handle_unanswered(const void* handle);

/* Zeroed memory of a handle. While handles are validated it does not come from the allocator, and
 * once freed it is kept, so that no other handle gets its address. */
accrt_status_t accsv_handle_new_at(const accrt_allocator_t* allocator, size_t size_bytes,
                                   void* place);
void accsv_handle_free_at(const accrt_allocator_t* allocator, void* handle, size_t size_bytes);
#define ACCSV_HANDLE_NEW(allocator, place)                                                         \
  accsv_handle_new_at((allocator), sizeof **(place), (place))
#define ACCSV_HANDLE_FREE(allocator, handle)                                                       \
  accsv_handle_free_at((allocator), (handle), sizeof *(handle))

#endif /* ACCRT_SERVE_HANDLES_H_ */
