/* runtime/program/upload.h - placing all weights of a program at once. Private to runtime/program. */
#ifndef ACCRT_RUNTIME_PROGRAM_UPLOAD_H_
#define ACCRT_RUNTIME_PROGRAM_UPLOAD_H_

#include "runtime/program/internal.h"

/* On a device with memory of its own: puts every constant that the device uses and that has no place yet into one buffer (those of sources
 * outside into another), each chunk of the file read once and checked before any of it can be called. On others that is done with what
 * sources have and what cannot be used where it is mapped. Components share the buffer: its memory goes with the last of them. Blocks. */
accrt_status_t accrt_weight_set_upload_all(accrt_program_t* program, accrt_weight_set_t* weights);

/* The same for what only prepare functions read, in a buffer of its own: for the time that they run. */
accrt_status_t accrt_weight_set_upload_sources(accrt_program_t* program,
                                               accrt_weight_set_t* weights);
/* Gives that back. */
void accrt_weight_set_drop_sources(const accrt_program_t* program, accrt_weight_set_t* weights);

/* On a device that uses weights where they lie: checks what of `count` components from `first` on the bundle stores and is used, or of
 * just one in any case, with as many threads as the device has. What is wrong is told by whoever places it. */
void accrt_weight_set_check_ahead(const accrt_program_t* program, const accrt_weight_set_t* weights,
                                  uint32_t first, uint32_t count);
#define ACCRT_CHECK_AHEAD_BYTES (UINT64_C(32) << 20) /* of one component: less is not worth it */

/* Marks, by component, what prepare functions of this device read. */
void accrt_program_mark_sources(const accrt_program_t* program, uint8_t* sources);
/* A buffer for weights. */
accrt_status_t accrt_upload_allocate(accrt_program_t* program, uint64_t size_bytes,
                                     accrt_buffer_t** out_buffer);
/* accrt_weight_set_upload_all for what sources outside the bundle have, of components that are wanted: digests are made on the
 * way (upload_external.c). */
accrt_status_t accrt_external_upload(accrt_program_t* program, accrt_weight_set_t* weights,
                                     const uint8_t* wanted);

#endif /* ACCRT_RUNTIME_PROGRAM_UPLOAD_H_ */
