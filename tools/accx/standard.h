/* tools/accx/standard.h - `-` for a file that is read (standard input) or written (standard
 * output). */
#ifndef ACCX_STANDARD_H_
#define ACCX_STANDARD_H_

#include "accx.h"

/* Replaces each `-` that names a file, by the verb's table, by the path of a substitute file. */
int accx_standard_take(accx_args_t* args);
/* Call it after the verb. If `code` is success, writes the substitute file to standard output, in
 * place of the verb's printed output. */
int accx_standard_deliver(int code, bool* out_delivered);
/* True when a path is that of standard input and its content is a ZIP archive (.npz). */
bool accx_standard_is_zip(const char* path);
/* The path of standard input's copy; NULL if unused. Messages then say "standard input". */
const char* accx_standard_path(void);
/* The path of the file for standard output; NULL if unused. Messages then say "standard output". */
const char* accx_standard_output_path(void);

#endif /* ACCX_STANDARD_H_ */
