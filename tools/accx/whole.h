/* tools/accx/whole.h - files that appear when they are whole: written beside their names, put in place all together at the end. What fails
 * or is interrupted (SIGINT, SIGTERM, SIGHUP) leaves nothing behind. */
#ifndef ACCX_WHOLE_H_
#define ACCX_WHOLE_H_

#include "accx.h"

#include "accrt/bundle_writer.h"

/* Writes a bundle beside `path`. Says what failed, but for what was said already when `*told` is an exit code then. */
int accx_whole_write(accrt_bundle_writer_t* writer, const char* path, const int* told);
/* Puts all files that were written in place; with `code` not ACCX_OK takes them away, and returns it. */
int accx_whole_finish(int code);

#endif /* ACCX_WHOLE_H_ */
