/* abi/watch_call.c - x86-64: one way through a validated call for all entry points, which come here
 * from abi/watch_entry.h.
 *
 * A public function takes at most eight integers and pointers (abi/entries.py sees to it), so six
 * registers and two words of the stack hold them all, whatever their types. It may know nothing of
 * the single functions.
 */
#include "abi/watch.h"

#ifdef ACCRT_WATCH_STUBS

/* Calls `body` with the words as its arguments. */
uint64_t accrt_watch_forward(const uintptr_t* words, const void* body)
    __attribute__((visibility("hidden")));
/* From accrt_watch_through: checks the words, calls `body`, and notes what it has given. */
uint64_t accrt_watch_call(const char* spec, const uintptr_t* words, const void* body)
    __attribute__((visibility("hidden"), used));

uint64_t accrt_watch_call(const char* spec, const uintptr_t* words, const void* body) {
  const accrt_status_t entered = accrt_watch_enter(spec, words);
  const char kind = spec[0];
  if (entered != ACCRT_OK)
    return kind == 's' || kind == 'g' ? (uint64_t)entered : kind == 'r' ? words[0] : 0;
  const uint64_t result = accrt_watch_forward(words, body);
  if (kind == 'g')
    return (uint64_t)accrt_watch_leave(spec, words, (accrt_status_t)result);
  return kind == 'l' ? (uintptr_t)accrt_watch_lend(spec, words, (void*)(uintptr_t)result) : result;
}

/* accrt_watch_through: the entry point's arguments are where its caller put them. It has called
 * only to say where it is: behind the call is the specification's distance, and the five bytes
 * before it are a jump to the body. The words are six registers and two of the stack's, which are
 * there to be read whether or not the function has so many arguments: they belong to the caller. */
__asm__(".pushsection .text.unlikely.accrt_watch,\"ax\",@progbits\n"
        ".globl accrt_watch_through\n"
        ".hidden accrt_watch_through, accrt_watch_call, accrt_watch_forward\n"
        ".type accrt_watch_through, @function\n"
        "accrt_watch_through:\n"
        "popq %rax\n"
        "movslq -9(%rax), %r11\n"
        "leaq -5(%rax,%r11), %r11\n"
        "movslq (%rax), %r10\n"
        "addq %r10, %rax\n"
        "pushq %rbp\n"
        "movq %rsp, %rbp\n"
        "pushq 24(%rbp)\n"
        "pushq 16(%rbp)\n"
        "pushq %r9\n"
        "pushq %r8\n"
        "pushq %rcx\n"
        "pushq %rdx\n"
        "pushq %rsi\n"
        "pushq %rdi\n"
        "movq %rax, %rdi\n"
        "movq %rsp, %rsi\n"
        "movq %r11, %rdx\n"
        "call accrt_watch_call\n"
        "leave\n"
        "ret\n"
        ".size accrt_watch_through, . - accrt_watch_through\n"
        ".globl accrt_watch_forward\n"
        ".type accrt_watch_forward, @function\n"
        "accrt_watch_forward:\n"
        "pushq %rbp\n"
        "movq %rsp, %rbp\n"
        "movq %rsi, %rax\n"
        "movq %rdi, %r11\n"
        "pushq 56(%r11)\n"
        "pushq 48(%r11)\n"
        "movq 40(%r11), %r9\n"
        "movq 32(%r11), %r8\n"
        "movq 24(%r11), %rcx\n"
        "movq 16(%r11), %rdx\n"
        "movq 8(%r11), %rsi\n"
        "movq (%r11), %rdi\n"
        "call *%rax\n"
        "leave\n"
        "ret\n"
        ".size accrt_watch_forward, . - accrt_watch_forward\n"
        ".popsection\n");

#endif
