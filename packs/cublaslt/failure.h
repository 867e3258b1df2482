/* failure.h - why the last call into runtime/core failed. What the pack has of it inside
 * (safe_open.c) needs somewhere to write that: the runtime's own records are not reached from a
 * pack. */
#ifndef ACCRT_PACK_CUBLASLT_FAILURE_H_
#define ACCRT_PACK_CUBLASLT_FAILURE_H_

/** Of this thread; valid until it fails again. */
const char* failure_message(void);

#endif
