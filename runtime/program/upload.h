/* runtime/program/upload.h - placing weights of a program, many at once. Private to
 * runtime/program. */
#ifndef ACCRT_RUNTIME_PROGRAM_UPLOAD_H_
#define ACCRT_RUNTIME_PROGRAM_UPLOAD_H_

#include "runtime/program/internal.h"

/* ---- upload.c ---- */

/* On a device with memory of its own: puts every constant that the device uses and that has no
 * place yet into one buffer, whatever sources have them: bytes are read once, and checked before
 * any of it can be called. On others that is done with what cannot be used where it lies, and
 * digests of constants are compared. Components share the buffer: its memory goes with the last of
 * them. Blocks. */
accrt_status_t accrt_weight_set_upload_all(accrt_program_t* program, accrt_weight_set_t* weights);

/* The same for what only prepare functions read, in a buffer of its own: for the time that they
 * run. */
accrt_status_t accrt_weight_set_upload_sources(accrt_program_t* program,
                                               accrt_weight_set_t* weights);
/* Gives that back. */
void accrt_weight_set_drop_sources(const accrt_program_t* program, accrt_weight_set_t* weights);

/* On a device that uses weights where they lie: checks what of `count` components from `first` on
 * bundles store and is used, or of just one in any case, with as many threads as the device has.
 * The placing of the weights reports what is wrong. */
void accrt_weight_set_check_ahead(const accrt_program_t* program, const accrt_weight_set_t* weights,
                                  uint32_t first, uint32_t count);
#define ACCRT_CHECK_AHEAD_BYTES (UINT64_C(32) << 20) /* of one component: less is not worth it */

/* Marks, by component, what prepare functions of this device read. */
void accrt_program_mark_sources(const accrt_program_t* program, uint8_t* sources);

/* ---- upload_move.c ---- */

/* Moves components that are wanted (1 for each; or, unless ACCX_NONE, `only` one), have no place
 * yet and need one, into one buffer, and compares digests on the way. Blocks. */
accrt_status_t accrt_upload_move(accrt_program_t* program, accrt_weight_set_t* weights,
                                 const uint8_t* wanted, uint32_t only);
/* accrt_threads_run on as many threads as the device has, and as so many bytes are worth. */
void accrt_upload_on_threads(const accrt_program_t* program, uint64_t size_bytes,
                             void* (*work)(void*), void* user);

#endif /* ACCRT_RUNTIME_PROGRAM_UPLOAD_H_ */
