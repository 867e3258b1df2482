/* abi/watch_entry.h - what the entry points of abi/entries.c are made of. It is for that file.
 *
 * An entry point asks one flag and goes on to the function's body. What it does where handles are
 * validated is outlined, and small: on x86-64 it names the function's specification and its body,
 * and abi/watch_call.c does the rest for all functions. Elsewhere each function has it in C.
 */
#ifndef ACCRT_ABI_WATCH_ENTRY_H_
#define ACCRT_ABI_WATCH_ENTRY_H_

#include "abi/watch.h"

/* ENTRY(result, name, (parameters), (arguments), kind, roles, words...): `kind` is STATUS, GIVING
 * (a status; handles are given or taken), RETAIN, LENDING (both return a handle) or VALUE (another
 * pointer, or a number). */
#define ENTRY(result, name, declared, arguments, kind, roles, ...)                                 \
  result accrt_body_##name declared;                                                               \
  WATCHED(result, name, declared, arguments, kind, roles, __VA_ARGS__);                            \
  result accrt_##name declared {                                                                   \
    return accrt_watched() ? accrt_watched_##name arguments : accrt_body_##name arguments;         \
  }
/* The same for functions that return nothing. */
#define ENTRY_VOID(name, declared, arguments, roles, ...)                                          \
  void accrt_body_##name declared;                                                                 \
  WATCHED(void, name, declared, arguments, VOID, roles, __VA_ARGS__);                              \
  void accrt_##name declared {                                                                     \
    if (accrt_watched())                                                                           \
      accrt_watched_##name arguments;                                                              \
    else                                                                                           \
      accrt_body_##name arguments;                                                                 \
  }

/* The specification's first letter. */
#define KIND_STATUS "s"
#define KIND_GIVING "g"
#define KIND_RETAIN "r"
#define KIND_LENDING "l"
#define KIND_VALUE "n"
#define KIND_VOID "v"

#ifdef ACCRT_WATCH_STUBS
/* Registers and stack are the caller's still. Each stands in sections of its own, which the linker
 * drops with the function. */
#define WATCHED(result, name, declared, arguments, kind, roles, ...)                               \
  __attribute__((visibility("hidden"))) result accrt_watched_##name declared;                      \
  __asm__(".pushsection .text.unlikely.accrt_watched_" #name ",\"ax\",@progbits\n"                 \
          ".globl accrt_watched_" #name "\n"                                                       \
          ".hidden accrt_watched_" #name ", accrt_body_" #name ", accrt_watch_through\n"           \
          ".type accrt_watched_" #name ", @function\n"                                             \
          "accrt_watched_" #name ":\n"                                                             \
          "leaq 9f(%rip), %rax\n"                                                                  \
          "leaq accrt_body_" #name "(%rip), %r11\n"                                                \
          "jmp accrt_watch_through\n"                                                              \
          ".size accrt_watched_" #name ", . - accrt_watched_" #name "\n"                           \
          ".popsection\n"                                                                          \
          ".pushsection .rodata.str1.1,\"aMS\",@progbits,1\n"                                      \
          "9: .asciz \"" KIND_##kind roles ";accrt_" #name "\"\n"                                  \
                                           ".popsection\n")
#else
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
