/* accrt/base.h - what every public header needs: export mark, status codes, struct negotiation,
 * opaque handles.
 *
 * Documents that headers name, such as docs/concepts.md, are installed under share/doc/accrt. Of
 * the library's headers, this one includes kernel.h only (for data types). The rules below hold for
 * the whole C API.
 *
 * Status. Every function that can fail returns accrt_status_t. It first sets an output that is a
 *   handle, a pointer or a number to NULL or zero. If it fails, it changes nothing else, output
 *   structs and keys included, unless its comment says otherwise. accrt_last_error() gives the
 *   thread's full record. Every function may return ACCRT_ERROR_INVALID_ARGUMENT (a NULL that is
 *   not allowed, a bad struct) and ACCRT_ERROR_FORKED (the process was forked after the instance
 *   was made; release functions then do nothing). Comments do not repeat these two.
 * Structs. Extensible structs begin with `struct_size` (set it with the _INIT macro; a multiple of
 *   8), a reserved zero and `next`. A smaller (older) struct is accepted. So is a larger (newer)
 *   input whose unknown tail is zero. A chain member of unknown type is an error unless it is
 *   marked ACCRT_STRUCT_IGNORABLE. An output struct is filled up to the smaller of both sizes; its
 *   struct_size then says how much was filled. Frozen structs never change and carry no size.
 * Handles. Handles are opaque and count references: _retain adds a reference, _release drops one
 *   (NULL is allowed). A function's name says whether the handle that it returns is owned or lent:
 *   - Owned: the name has one of the verbs create, open, load, register, wrap, import, clone or
 *     retain. The caller owns a reference and releases it.
 *   - Lent: all other names. The handle is valid while the object that it came from is, or until
 *     the function's comment says. Do not release it. To keep it for longer, retain it.
 *   Releasing a lent device does nothing. Releasing another lent handle is an error, which the
 *   option validate.handles finds (docs/concepts.md). Children retain their parents. Ids are never
 *   reused.
 * Threads. Any thread may use a handle at any time, unless a comment says "externally
 *   synchronized". If two threads use such an object at once, the second gets
 *   ACCRT_ERROR_INVALID_STATE, whose message names the function that the first is in; nothing is
 *   changed. A handle that a function is given must be valid until the function returns, with one
 *   exception. A call may tell another thread something: that thread waits for what is signalled
 *   (also by a submitted call), recorded, failed or cancelled, or runs a notification. It may then
 *   release all handles, even while the call that told it has not returned. No user code
 *   (allocator, log sink, notification) runs under a lock of the library, so it may call the
 *   library unless a comment forbids it. It may not throw C++ exceptions.
 * Sizes. ACCRT_TO_END as the size of a range in a buffer or a binding means "from the offset to its
 *   end", in every function that takes such a size: copies of one row, fills, reads of files, maps,
 *   bindings, kernel arguments. ACCRT_TO_END is refused, like a size that does not fit, where the
 *   end is not known: plain host memory, a binding of a list that is being recorded, copies of
 *   several rows, a size to allocate, a size of a file.
 * Time. `timeout_ns`: 0 polls, ACCRT_TIMEOUT_INFINITE waits without a limit, any other value counts
 *   from the call.
 */
#ifndef ACCRT_BASE_H_
#define ACCRT_BASE_H_

#include <stddef.h>
#include <stdint.h>

#include "accrt/kernel.h"

#if defined(ACCRT_BUILDING) && defined(__GNUC__)
#define ACCRT_API __attribute__((visibility("default")))
#else
#define ACCRT_API
#endif

#ifdef __cplusplus
#ifdef __GNUC__
/* In C++ a function hides the constructor of a struct that has its name, as accrt_device_info does.
 * It does no harm, because the structs have no constructors of their own. */
#define ACCRT_BEGIN                                                                                \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wshadow\"") extern "C" {
#define ACCRT_END                                                                                  \
  }                                                                                                \
  _Pragma("GCC diagnostic pop")
#else
#define ACCRT_BEGIN extern "C" {
#define ACCRT_END }
#endif
#define ACCRT_STATIC_ASSERT(condition, message) static_assert(condition, message)
#else
#define ACCRT_BEGIN
#define ACCRT_END
#define ACCRT_STATIC_ASSERT(condition, message) _Static_assert(condition, message)
#endif
/* Pins the end of a struct: `last` is its last field and the struct is `size` bytes on 64-bit
 * targets. */
#define ACCRT_ASSERT_LAYOUT(type, last, size)                                                      \
  ACCRT_STATIC_ASSERT(sizeof(void*) != 8 ||                                                        \
                          (sizeof(type) == (size) &&                                               \
                           offsetof(type, last) + sizeof(((type*)0)->last) <= (size) &&            \
                           offsetof(type, last) + sizeof(((type*)0)->last) + 8 > (size)),          \
                      #type " layout changed")

/* Version of the library that these headers describe. */
#define ACCRT_VERSION_MAJOR 0
#define ACCRT_VERSION_MINOR 4
#define ACCRT_VERSION_PATCH 0
#define ACCRT_MAKE_VERSION(major, minor, patch)                                                    \
  (((uint32_t)(major) << 24) | ((uint32_t)(minor) << 12) | (uint32_t)(patch))
#define ACCRT_VERSION                                                                              \
  ACCRT_MAKE_VERSION(ACCRT_VERSION_MAJOR, ACCRT_VERSION_MINOR, ACCRT_VERSION_PATCH)

/* ---- Status codes: one list for the enum, the names and the tests. Numbers are frozen. ---- */
#define ACCRT_STATUS_LIST(X)                                                                       \
  X(INVALID_ARGUMENT, 1, "an argument is NULL, out of its domain, or a struct is malformed")       \
  X(OUT_OF_RANGE, 2, "an index, offset or size lies outside its object")                           \
  X(NOT_FOUND, 3, "there is no object of that name, index or path")                                \
  X(ALREADY_EXISTS, 4, "an object of that name exists already")                                    \
  X(UNSUPPORTED, 5, "valid, but this library, driver or device cannot do it")                      \
  X(INVALID_STATE, 6, "the object is in a state that does not allow this")                         \
  X(OUT_OF_MEMORY, 7, "no host memory is left")                                                    \
  X(OUT_OF_DEVICE_MEMORY, 8, "no device memory is left, or a pool's limit is reached")             \
  X(TIMEOUT, 9, "the deadline passed")                                                             \
  X(NOT_READY, 10, "a poll found that the work is not complete yet")                               \
  X(CANCELLED, 11, "the work was cancelled")                                                       \
  X(PERMISSION_DENIED, 12, "a policy or the operating system forbids it")                          \
  X(IO, 13, "reading or writing a file failed")                                                    \
  X(INVALID_FORMAT, 14, "a file or image violates its format")                                     \
  X(VERSION_MISMATCH, 15, "a version or a required feature is outside the supported range")        \
  X(DATA_CORRUPT, 16, "a digest does not match")                                                   \
  X(SHAPE_MISMATCH, 17, "a dimension does not fit the signature or a symbol's range")              \
  X(TYPE_MISMATCH, 18, "a data type or encoding does not fit the signature")                       \
  X(ALIASED, 19, "arguments overlap where the signature forbids it")                               \
  X(NO_VARIANT, 20, "no variant of a kernel can run on this device")                               \
  X(KERNEL, 21, "a kernel returned an error")                                                      \
  X(POISONED, 22, "this object failed, or depends on something that failed")                       \
  X(DEVICE_LOST, 23, "the device is gone; its objects can only be released")                       \
  X(DRIVER, 24, "the driver failed and no other code fits; see driver_code")                       \
  X(FORKED, 25, "the process was forked; handles belong to the parent")                            \
  X(OVERFLOW, 26, "a size or an expression does not fit 64 bits, or divides by zero")              \
  X(INTERNAL, 27, "the library broke an invariant of its own: please report it")                   \
  X(UNTRUSTED, 28,                                                                                 \
    "no trusted key signed the machine code or the weights, and the policy asks for that")         \
  X(BUDGET, 29, "work on a file would take more steps or memory than its budget allows")

typedef int32_t accrt_status_t;
enum {
  ACCRT_OK = 0,
#define ACCRT_STATUS_ENUM(name, number, text) ACCRT_ERROR_##name = number,
  ACCRT_STATUS_LIST(ACCRT_STATUS_ENUM)
#undef ACCRT_STATUS_ENUM
};

#define ACCRT_TIMEOUT_INFINITE UINT64_MAX
/** As the size of a range in a buffer or a binding: from the offset to its end. The name is new in
 * 0.4. */
#define ACCRT_TO_END UINT64_MAX

/* ---- Struct negotiation ---- */

/* A member of a `next` chain. */
typedef struct accrt_chain {
  uint32_t struct_size; /* of the whole member */
  uint32_t struct_type; /* ACCRT_STRUCT_*, optionally | ACCRT_STRUCT_IGNORABLE */
  const struct accrt_chain* next;
} accrt_chain_t;
ACCRT_ASSERT_LAYOUT(accrt_chain_t, next, 16);
#define ACCRT_STRUCT_IGNORABLE 0x80000000u

/* Start value of an extensible struct: everything zero but its size. */
#ifdef __cplusplus
extern "C++" {
template <typename T> static inline T accrt_struct_init() {
  T value = T();
  value.struct_size = static_cast<uint32_t>(sizeof(T));
  return value;
}
}
#define ACCRT_STRUCT_INIT(type) accrt_struct_init<type>()
#else
#define ACCRT_STRUCT_INIT(type)                                                                    \
  { .struct_size = (uint32_t)sizeof(type) }
#endif

/* ---- Budgets ---- */

/** What work on an untrusted file may cost: to open and verify it, to make a program of it, to make
 * a plan. Work that passes a limit ends with ACCRT_ERROR_TIMEOUT, ACCRT_ERROR_CANCELLED or
 * ACCRT_ERROR_BUDGET; the message says which limit and where. Nothing is left behind. The function
 * that takes a budget copies it. docs/hostile-input.md says what the limits count. Since: 0.4 */
typedef struct accrt_budget {
  uint32_t struct_size;
  uint32_t reserved; /**< 0 */
  const accrt_chain_t* next;
  uint64_t timeout_ns; /**< 0: no time limit */
  uint64_t max_steps;  /**< 0: a default in proportion to the file; UINT64_MAX: no limit */
  /** host memory (pools limit device memory); 0, UINT64_MAX: as max_steps */
  uint64_t max_memory_bytes;
  /** may be NULL. The work ends soon after another thread stores a value other than 0 here, with an
   * atomic operation. It must stay valid as long as the object that copied the budget */
  const uint32_t* cancel;
} accrt_budget_t;
ACCRT_ASSERT_LAYOUT(accrt_budget_t, cancel, 48);
#define ACCRT_BUDGET_INIT ACCRT_STRUCT_INIT(accrt_budget_t)

/* ---- Handles ---- */
typedef struct accrt_instance accrt_instance_t;
typedef struct accrt_device accrt_device_t;
typedef struct accrt_pool accrt_pool_t;
typedef struct accrt_buffer accrt_buffer_t;
typedef struct accrt_stream accrt_stream_t;
typedef struct accrt_event accrt_event_t;
typedef struct accrt_semaphore accrt_semaphore_t;
typedef struct accrt_launch accrt_launch_t;
typedef struct accrt_commands accrt_commands_t;
typedef struct accrt_kernel_pack accrt_kernel_pack_t;
typedef struct accrt_kernel accrt_kernel_t;
typedef struct accrt_bundle accrt_bundle_t;
typedef struct accrt_weights accrt_weights_t;
typedef struct accrt_adapter accrt_adapter_t;
typedef struct accrt_program accrt_program_t;
typedef struct accrt_session accrt_session_t;
typedef struct accrt_call accrt_call_t;

#endif /* ACCRT_BASE_H_ */
