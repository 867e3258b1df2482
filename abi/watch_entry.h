/* abi/watch_entry.h - what the entry points of abi/entries.c are made of. It is for that file.
 *
 * An entry point asks one flag and goes on to the function's body. On x86-64 it is a comparison and
 * two jumps, and what it does where handles are validated is small too: it says where it is, and
 * abi/watch_call.c does the rest for all functions. Elsewhere each function has it in C.
 */
#ifndef ACCRT_ABI_WATCH_ENTRY_H_
#define ACCRT_ABI_WATCH_ENTRY_H_

#include "abi/watch.h"

/* ENTRY(result, name, (parameters), (arguments), kind, roles, words...): `kind` is STATUS, GIVING
 * (a status; handles are given or taken), RETAIN, LENDING (both return a handle) or VALUE (another
 * pointer, or a number). ENTRY_VOID is the same for functions that return nothing. */
#ifdef ACCRT_WATCH_STUBS
#define ENTRY(result, name, declared, arguments, kind, roles, ...) STUB(name, KIND_##kind roles)
#define ENTRY_VOID(name, declared, arguments, roles, ...) STUB(name, KIND_VOID roles)
/* Registers and stack are the caller's still. accrt_watch_through finds the body in the jump before
 * the call, and the specification behind the call; abi/api.c uses the hidden name. Each entry point
 * stands in a section of its own, which the linker drops with the function. */
#define STUB(name, spec)                                                                           \
  __asm__(".pushsection .text.accrt_" #name ",\"ax\",@progbits\n"                                  \
          ".globl accrt_" #name "\n"                                                               \
          ".globl accrt_entry_" #name "\n"                                                         \
          ".hidden accrt_entry_" #name ", accrt_body_" #name "\n"                                  \
          ".hidden accrt_watch_through, accrt_watch_flag\n"                                        \
          ".type accrt_" #name ", @function\n"                                                     \
          "accrt_entry_" #name ":\n"                                                               \
          "accrt_" #name ":\n" STUB_LANDING "cmpl $0, accrt_watch_flag(%rip)\n"                    \
          "jne 1f\n"                                                                               \
          "jmp accrt_body_" #name "\n"                                                             \
          "1: call accrt_watch_through\n"                                                          \
          ".long 9f - .\n"                                                                         \
          ".size accrt_" #name ", . - accrt_" #name "\n"                                           \
          ".popsection\n"                                                                          \
          ".pushsection .rodata.str1.1,\"aMS\",@progbits,1\n"                                      \
          "9: .asciz \"" spec ";accrt_" #name "\"\n"                                               \
          ".popsection\n");
#if defined __CET__ && __CET__ & 1
#define STUB_LANDING "endbr64\n"
#else
#define STUB_LANDING ""
#endif
#else
#define ENTRY(result, name, declared, arguments, kind, roles, ...)                                 \
  result accrt_body_##name declared;                                                               \
  WATCHED(result, name, declared, arguments, kind, roles, __VA_ARGS__);                            \
  result accrt_##name declared {                                                                   \
    return accrt_watched() ? accrt_watched_##name arguments : accrt_body_##name arguments;         \
  }
#define ENTRY_VOID(name, declared, arguments, roles, ...)                                          \
  void accrt_body_##name declared;                                                                 \
  WATCHED(void, name, declared, arguments, VOID, roles, __VA_ARGS__);                              \
  void accrt_##name declared {                                                                     \
    if (accrt_watched())                                                                           \
      accrt_watched_##name arguments;                                                              \
    else                                                                                           \
      accrt_body_##name arguments;                                                                 \
  }
#endif

/* The specification's first letter. */
#define KIND_STATUS "s"
#define KIND_GIVING "g"
#define KIND_RETAIN "r"
#define KIND_LENDING "l"
#define KIND_VALUE "n"
#define KIND_VOID "v"

#ifndef ACCRT_WATCH_STUBS
#define WATCHED(result, name, declared, arguments, kind, roles, ...)                               \
  static __attribute__((cold, noinline)) result accrt_watched_##name declared {                    \
    const char* const spec = KIND_##kind roles ";accrt_" #name;                                    \
    const uintptr_t words[] = {__VA_ARGS__};                                                       \
    const accrt_status_t entered = accrt_watch_enter(spec, words);                                 \
    WATCHED_##kind(result, accrt_body_##name arguments);                                           \
  }                                                                                                \
  _Static_assert(sizeof(KIND_##kind) == 2, "one letter")
#define WATCHED_STATUS(result, call) return entered == ACCRT_OK ? call : entered
#define WATCHED_GIVING(result, call)                                                               \
  return entered == ACCRT_OK ? accrt_watch_leave(spec, words, call) : entered
/* Refused: the handle that came in. */
#define WATCHED_RETAIN(result, call) return entered == ACCRT_OK ? call : (result)words[0]
#define WATCHED_LENDING(result, call)                                                              \
  return entered == ACCRT_OK ? accrt_watch_lend(spec, words, call) : NULL
#define WATCHED_VALUE(result, call) return entered == ACCRT_OK ? call : 0
#define WATCHED_VOID(result, call)                                                                 \
  if (entered == ACCRT_OK)                                                                         \
  call
#endif

#endif /* ACCRT_ABI_WATCH_ENTRY_H_ */
