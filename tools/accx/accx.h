/* tools/accx/accx.h - shared by all files of the tool: exit codes, errors, standard output, the
 * list of verbs.
 *
 * The tool uses only the library's public headers. A function that fails prints one line on
 * standard error by accx_fail or accx_fail_status and returns the exit code; 0 is success. A verb
 * prints to accx_out, which reaches standard output only if the verb succeeds.
 */
#ifndef ACCX_ACCX_H_
#define ACCX_ACCX_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "accrt/accrt.h"
#include "args.h"

enum {
  ACCX_OK = 0,
  ACCX_FAILED = 1,     /* the operation failed */
  ACCX_USAGE = 2,      /* the command line is wrong */
  ACCX_BAD_BUNDLE = 3, /* the bundle is malformed, damaged or needs another version */
  ACCX_REFUSED = 4,    /* it holds machine code that was not allowed, or that fits no device here */
  ACCX_DIFFERENT = 5,  /* accx diff --exit-code, findings of accx kernel check: nothing failed */
};

#if defined(__GNUC__)
#define ACCX_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define ACCX_PRINTF(text, first)
#endif

/* The verb's output. It is collected in memory, and written when the verb returns ACCX_OK. */
extern FILE* accx_out;
/* Where failures and notes are collected, in lines; NULL: they are printed on standard error. */
extern FILE* accx_failures;

/* Prints one line "accx: ..." on standard error with escaped control characters. Returns
 * exit_code. */
int accx_fail(int exit_code, const char* format, ...) ACCX_PRINTF(2, 3);
/* The same with "context: " and the library's last error. The exit code follows from the status. */
int accx_fail_status(accrt_status_t status, const char* format, ...) ACCX_PRINTF(2, 3);
/* The exit code of a failed call of the library. */
int accx_exit_code(accrt_status_t status);
/* The message of the library's last error. */
const char* accx_last_message(void);
/* Prints a line "accx: note: ..." on standard error, for a success that needs a remark. */
void accx_note(const char* format, ...) ACCX_PRINTF(1, 2);

/* Makes a string from a file safe for a terminal. Returns the same pointer, or a copy with escaped
 * control characters that lives until exit. */
const char* accx_safe(const char* text);
/* A formatted string that lives until exit. */
const char* accx_text(const char* format, ...) ACCX_PRINTF(1, 2);
/* Opens a regular file for reading, with additional `flags` of open. Anything else (a FIFO, a
 * device, a folder) is a failure that names it. */
int accx_open_regular(const char* path, int flags, FILE** out_file);
/* Allocates zeroed memory for small objects. Ends the program if that fails. */
void* accx_alloc(size_t count, size_t size_bytes);
/* Frees the strings of accx_safe and accx_text. */
void accx_forget_texts(void);

/* Returns ", did you mean 'x'?" with a similar name, or "". `names` has `count` entries. Lives
 * until exit. */
const char* accx_near(const char* wrong, const char* const* names, size_t count);

/* The verbs, one file each. */
extern const accx_verb_t accx_verb_keygen, accx_verb_sign, accx_verb_trust, accx_verb_encrypt,
    accx_verb_decrypt;
extern const accx_verb_t accx_verb_devices, accx_verb_caps, accx_verb_inspect, accx_verb_verify,
    accx_verb_run, accx_verb_bench, accx_verb_dump, accx_verb_build, accx_verb_diff,
    accx_verb_quantize, accx_verb_pack, accx_verb_kernel, accx_verb_completion, accx_verb_manual;

#endif /* ACCX_ACCX_H_ */
