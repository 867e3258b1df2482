/* tests/fakecuda/transcript.h - what the sections of the transcript have in common: one line a call,
 * and a device that has begun. */
#ifndef FAKECUDA_TRANSCRIPT_H_
#define FAKECUDA_TRANSCRIPT_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GRAIN (2 * MIB)

extern char* ptx; /* of transcript_kernels.ptx */
extern CUcontext primary;
extern CUmodule module;

/* Prints the line of a call, and returns what it gave. */
CUresult say(const char* expression, CUresult result);
void value(const char* name, uint64_t number);
/* Makes the primary context of the first device current; ends the process where there is none. */
void begin(void);
/* A kernel of the PTX. */
CUfunction function(const char* name);
CUresult launch(CUfunction f, unsigned grid, unsigned block, CUstream stream, void** params);
/* Keeps a stream busy for 400 ms: longer than a busy machine keeps this thread from asking. */
void be_late(CUstream stream);
uint32_t read_word(CUdeviceptr at);

#define T(call) say(#call, call)
/* The call with a note of what it is about. */
#define N(note, call) say(#call "  [" note "]", call)
#define V(expression) value(#expression, (uint64_t)(expression))

/* transcript_memory.c */
void section_memory(void);
void section_virtual(void);
void section_copy(void);

/* transcript_graphs.c */
void section_graph(void);
void section_node_attribute(void);
void section_child(void);
void section_capture_global(void);
void section_capture_blocking(void);
void section_capture_relaxed(void);
void section_capture(void);
void section_random(void);

#endif /* FAKECUDA_TRANSCRIPT_H_ */
