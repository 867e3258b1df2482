/* abi/watch.h - validates handles: does each have the right type, who made it, who still has a
 * reference.
 *
 * For the generated entry points of abi/entries.c alone. An entry point first checks one flag.
 * While no instance validates, it goes on to the function's body. While one does (option
 * validate.handles, docs/options.md), each returned handle is registered by its address: its type,
 * the function that made or lent it, and the caller's number of references. Each argument is looked
 * up before it is accessed. The memory of released handles is kept, so that no other handle gets
 * their address.
 */
#ifndef ACCRT_ABI_WATCH_H_
#define ACCRT_ABI_WATCH_H_

#include <stddef.h>

#include "accrt/accrt.h"
#include "runtime/core/watched.h"

/* Validated calls go through abi/watch_call.c. */
#if defined __x86_64__ && defined __LP64__ && defined __ELF__
#define ACCRT_WATCH_STUBS 1
#endif

/* A handle in a struct. `count_offset` is not 0 for an array of handles. */
typedef struct accrt_watch_field {
  uint16_t offset;
  uint16_t count_offset;
  char type;
  char name[15];
} accrt_watch_field_t;

#define ACCRT_WATCH_ALWAYS 0u
#define ACCRT_WATCH_SIZED 1u /* begins with struct_size; fields behind that size do not exist */
#define ACCRT_WATCH_UNBOUND                                                                        \
  2u                          /* accrt_binding_place_t: its handle is used only without a binding */
#define ACCRT_WATCH_MEMORY 3u /* accrt_kernel_argument_t: its handle is used only for memory */
typedef struct accrt_watch_struct {
  uint16_t size_bytes;
  uint8_t field_first; /* in accrt_watch_fields */
  uint8_t field_count;
  uint8_t when; /* ACCRT_WATCH_* */
} accrt_watch_struct_t;
extern const accrt_watch_field_t accrt_watch_fields[];
extern const accrt_watch_struct_t accrt_watch_structs[];

/* Checks the arguments of a function. `spec` is the kind of its result (abi/watch_entry.h), items
 * separated by commas that describe `words`, the arguments, ';', and the function's name. An item
 * has a role (h a handle, c a handle that is released, a an array of handles, s structs, o and l a
 * returned handle, owned or lent, O and L the buffer of a returned tensor, z a returned number, r
 * and g the handle returned by a _retain or an accessor), a type or a struct, the index of the
 * count or '-', its own index, and its name. A wrong handle is ACCRT_ERROR_INVALID_ARGUMENT,
 * recorded and logged; the results are then NULL or zero. */
accrt_status_t accrt_watch_enter(const char* spec, const uintptr_t* words);
/* Registers the handles that the function returned. Returns `status`. */
accrt_status_t accrt_watch_leave(const char* spec, const uintptr_t* words, accrt_status_t status);
/* The same for a lent handle that is the function's return value. */
void* accrt_watch_lend(const char* spec, const uintptr_t* words, void* handle);
/* accrt_instance_create, which starts the validation if the options or the environment ask for
 * it. */
accrt_status_t accrt_watch_instance(const accrt_instance_options_t* options,
                                    accrt_instance_t** out_instance);

#endif /* ACCRT_ABI_WATCH_H_ */
