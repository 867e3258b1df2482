/* tools/accx/whole.h - files that appear whole: written beside their names, and all renamed
 * together at the end. A failure or an interruption (SIGINT, SIGTERM, SIGHUP) leaves no file
 * behind. */
#ifndef ACCX_WHOLE_H_
#define ACCX_WHOLE_H_

#include "accx.h"

#include "accrt/write.h"

/* Writes a bundle beside `path`. Reports a failure, unless `*reported_code` is an exit code: then
 * it was reported already. */
int accx_whole_write(accrt_bundle_writer_t* writer, const char* path, const int* reported_code);
/* Renames all written files to their names. With a `code` other than ACCX_OK removes them. Returns
 * `code`. */
int accx_whole_finish(int code);

#endif /* ACCX_WHOLE_H_ */
