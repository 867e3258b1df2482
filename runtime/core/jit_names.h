/* runtime/core/jit_names.h - gives gdb and perf the names of code that was loaded from memory.
 *
 * gdb: through its JIT interface, always (this costs one copy of the image). perf: lines in
 * /tmp/perf-PID.map, if the instance's options ask for them. Neither can fail a load: the caller
 * gets a text to log. It may not depend on kernels or packs: its input is an image that elf_image.c
 * has validated and loaded.
 */
#ifndef ACCRT_RUNTIME_CORE_JIT_NAMES_H_
#define ACCRT_RUNTIME_CORE_JIT_NAMES_H_

#include "runtime/core/elf_image.h"

/* gdb's record of one image. */
typedef struct accrt_jit_entry accrt_jit_entry_t;

/* Registers the image with gdb. `bytes` is the file of the image; it is copied. NULL when memory is
 * short or the section headers are invalid: gdb then does not know the names. */
accrt_jit_entry_t* accrt_jit_register(const accrt_allocator_t* allocator,
                                      const accrt_elf_image_t* image, const void* bytes,
                                      size_t size_bytes);
/* Call it before the image is unloaded. NULL is allowed. */
void accrt_jit_unregister(const accrt_allocator_t* allocator, accrt_jit_entry_t* entry);

/* Appends one line for each function of the image to /tmp/perf-PID.map, as "name:function". The
 * file is made with mode 0600; a link, or a file of another user, is not written. Returns 0, or an
 * errno value. */
int accrt_perf_map_append(const accrt_elf_image_t* image, const void* bytes, size_t size_bytes,
                          const char* name);

#endif /* ACCRT_RUNTIME_CORE_JIT_NAMES_H_ */
