/* tools/accx/accx.h - what every file of the tool shares: exit codes, errors, the standard output, the list of verbs.
 *
 * The tool stands on the library's public headers alone. Functions that can fail print one line on standard error through
 * accx_fail or accx_fail_status and return the exit code; 0 is success. What a verb prints goes to accx_out, which reaches
 * standard output only when the verb succeeds.
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
  ACCX_DIFFERENT = 5,  /* accx diff --exit-code: nothing failed */
};

#if defined(__GNUC__)
#define ACCX_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define ACCX_PRINTF(text, first)
#endif

/* What the verb prints. Collected in memory, written when the verb returns ACCX_OK. */
extern FILE* accx_out;

/* One line "accx: ..." on standard error; control characters are escaped. Returns exit_code. */
int accx_fail(int exit_code, const char* format, ...) ACCX_PRINTF(2, 3);
/* The same with the library's record of the last failed call after "context: ". The exit code follows from the status. */
int accx_fail_status(accrt_status_t status, const char* format, ...) ACCX_PRINTF(2, 3);
/* The exit code of a failed call of the library. */
int accx_exit_code(accrt_status_t status);
/* What the library last said. */
const char* accx_last_message(void);
/* A line "accx: note: ..." on standard error, for what succeeds and still needs saying. */
void accx_note(const char* format, ...) ACCX_PRINTF(1, 2);

/* A string from a file, fit for a terminal: the same pointer, or a copy (kept until exit) with control characters escaped. */
const char* accx_safe(const char* text);
/* A formatted string that lives until exit. */
const char* accx_text(const char* format, ...) ACCX_PRINTF(1, 2);
/* Zeroed memory for small things; ends the program when there is none. */
void* accx_alloc(size_t count, size_t size_bytes);
/* Frees what accx_safe and accx_text keep. */
void accx_forget_texts(void);

/* Near names: adds ", did you mean 'x'?" to messages. names ends with count. Returns "" or a text that lives until exit. */
const char* accx_near(const char* wrong, const char* const* names, size_t count);

/* The verbs, one file each. */
extern const accx_verb_t accx_verb_keygen, accx_verb_sign, accx_verb_trust, accx_verb_encrypt,
    accx_verb_decrypt;
extern const accx_verb_t accx_verb_devices, accx_verb_caps, accx_verb_inspect, accx_verb_verify,
    accx_verb_run, accx_verb_bench, accx_verb_dump, accx_verb_build, accx_verb_diff,
    accx_verb_quantize, accx_verb_pack;

#endif /* ACCX_ACCX_H_ */
