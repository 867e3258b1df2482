/* tools/accx/npy.h - .npy and .npz files: a strict reader for untrusted files, and a writer. */
#ifndef ACCX_NPY_H_
#define ACCX_NPY_H_

#include "array.h"

/* A source of the bytes of one .npy file. */
typedef struct accx_npy_source {
  void* self;
  uint64_t size_bytes;
  bool (*read)(void* self, void* target, size_t size_bytes); /* exactly size_bytes, in order */
} accx_npy_source_t;
/* Reads an array; `what` names the source in errors. It refuses Fortran order, big-endian and
 * structured types, and a size that differs from the header's. bf16 is stored as 16-bit void
 * (ml_dtypes). */
int accx_npy_parse(const accx_npy_source_t* source, const char* what, accx_array_t* out_array);
int accx_npy_read(const char* path, accx_array_t* out_array);
/* Writes version 1.0. A type that .npy lacks is written as unsigned integers of its width;
 * *out_note then has a text about that (otherwise NULL). */
int accx_npy_write(const char* path, const accx_array_t* array, const char** out_note);

typedef struct accx_npz accx_npz_t;
int accx_npz_open(const char* path, accx_npz_t** out_npz);
void accx_npz_close(accx_npz_t* npz);
size_t accx_npz_count(const accx_npz_t* npz);
/* Name of an entry without ".npy"; NULL for an entry that is not an array. Lives until exit. */
const char* accx_npz_name(const accx_npz_t* npz, size_t index);
int accx_npz_read(accx_npz_t* npz, const char* name, accx_array_t* out_array);

#endif /* ACCX_NPY_H_ */
