/* tools/sandbox/wire.h - what accrt-sandbox and who starts it say to each other (accx and Python's
 * accrt.sandbox).
 *
 * accrt-sandbox MODE THREADS MEMORY_BYTES CPU_S WEIGHTS VARIANT [SYMBOL=VALUE]...
 *   MODE: "strict", or "weak" where a kernel without Landlock will do. THREADS: a number, or ""
 *   for the default. MEMORY_BYTES, CPU_S: 0 for no limit. WEIGHTS: how many descriptors of weights
 *   follow. VARIANT: "" for the best.
 * Descriptors: 3 a stream socket, 4 a pipe for the report of a refused system call, 5 the bundle, 6
 * and on the weights.
 *
 * Messages have a header and a payload, in the machine's byte order (both ends are on one machine).
 * The helper says READY once it is confined, before it opens the bundle: no code of the bundle has
 * run by then. LOADED follows when functions can be called. Instead of either it may say ERROR, and
 * end. To each CALL it answers RESULTS or ERROR with the call's id, a random number: an answer with
 * another id is of another call, or was made up. The reader of the helper's messages after READY
 * believes no number in them unchecked: hostile code may have written them. */
#ifndef ACCRT_SANDBOX_WIRE_H_
#define ACCRT_SANDBOX_WIRE_H_

#include <stdint.h>

enum { WIRE_CONTROL_FD = 3, WIRE_REPORT_FD = 4, WIRE_BUNDLE_FD = 5, WIRE_WEIGHTS_FD = 6 };

enum {
  WIRE_READY = 1,   /* number: the version of Landlock that confines it besides seccomp, 0: none */
  WIRE_CALL = 2,    /* number: the function's index; items of the inputs */
  WIRE_RESULTS = 3, /* number: nanoseconds; items of results and of inputs that were updated */
  WIRE_ERROR = 4,   /* number: a status; text: the message */
  WIRE_LOADED = 5,  /* functions can be called */
};

typedef struct wire_header {
  uint32_t type;
  uint32_t item_count;
  uint64_t number;
  uint64_t id;         /* of the call; 0 before the first one */
  uint64_t size_bytes; /* of the payload: items, then bytes */
} wire_header_t;
_Static_assert(sizeof(wire_header_t) == 32, "wire_header_t");

enum { WIRE_ABSENT = 0, WIRE_TENSOR = 1, WIRE_SCALAR = 2 };

typedef struct wire_item {
  uint32_t index; /* of the argument: inputs first, then results */
  uint32_t kind;
  uint32_t dtype;
  uint32_t rank;
  int64_t shape[8];
  int64_t scalar;
  uint64_t offset; /* of its bytes in the payload, a multiple of 64 */
  uint64_t size_bytes;
} wire_item_t;
_Static_assert(sizeof(wire_item_t) == 104, "wire_item_t");

#define WIRE_ALIGNMENT 64u
#define WIRE_MAX_ITEMS 65536u
#define WIRE_MAX_TEXT_BYTES 1024u

#endif /* ACCRT_SANDBOX_WIRE_H_ */
